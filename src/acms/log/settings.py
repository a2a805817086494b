"""The settings of a session: one validator for every interface, and one reader that tolerates damaged values.

The validator checks the settings that a caller sets, that a restored file holds, and that `verify` finds in a store.
Another program may keep plain JSON in a setting under a name of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from acms.errors import ValidationError
from acms.log import policy, validation
from acms.log.provenance import COPIED, COPIES, COPYING
from acms.model import Json

__all__ = [
    "ERASED",
    "LABELS",
    "MAX_TAGS",
    "METADATA",
    "NAME",
    "TAGS",
    "read_setting",
    "validate_session_title",
    "validate_settings",
    "validate_tag_name",
]

NAME, LABELS, METADATA = "name", "labels", "metadata"
"""Names of the settings that describe a session."""
TAGS = "tags"
ERASED = "erased_counts"
"""Setting that counts the messages and tokens of a session that were erased."""
MAX_TAGS = 1_000
"""Maximum number of tags, names of versions, of one session."""
_CHAIN = re.compile(r"(?:[0-9a-f]{64})?\Z")
"""The chain value of a tagged version; empty for version 0."""


def validate_settings(settings: Mapping[str, Json]) -> None:
    """Raise `ValidationError` for an invalid setting; its field is for example `settings.labels`."""
    for name, value in settings.items():
        try:
            _validate_setting(validation.validate_name(name, "name"), value)
        except ValidationError as error:
            field = error.field if error.field.startswith(name) else name
            raise validation.error_at_field(error, f"settings.{field}") from error


def read_setting(settings: Mapping[str, Json], name: str, default: Any = None) -> Any:
    """Return a setting, or `default` if it is missing or damaged: one bad session must not break a list of sessions."""
    if name not in settings:
        return default
    try:
        _validate_setting(name, settings[name])
    except ValidationError:
        return default
    return settings[name]


def validate_session_title(value: object) -> str:
    """Return the display name of a session; an empty name removes it."""
    return validation.validate_text(value, NAME, limit=4 * validation.NAME_CHARS)


def validate_tag_name(value: object) -> str:
    """Return the name of a new tag; 12 and v12 are refused, because they name versions."""
    name = validation.validate_name(value, "name")
    if name.removeprefix("v").isdecimal():
        raise ValidationError(
            f"must not look like a version, as {name!r} does",
            field="name",
            options=(f"choose another name, such as release-{name}",),
        )
    return name


def _validate_setting(name: str, value: Json) -> None:
    check = _CHECKS.get(name)
    if check is None:
        validation.serialize_document(value, name)
    else:
        check(value, name)


def _check_title(value: Json, field: str) -> None:
    validate_session_title(value)


def _check_labels(value: Json, field: str) -> None:
    validation.validate_labels(validation.require_list(value, field), field)


def _check_metadata(value: Json, field: str) -> None:
    validation.validate_metadata(validation.require_object(value, field), field)


def _check_policy(value: Json, field: str) -> None:
    """Check a stored policy; unlike a change of a policy it has no nulls."""
    values = validation.require_object(value, field)
    policy.merge_policy({}, values)  # checks every field
    for name, setting in values.items():  # in a change, null resets a field; such a field is not stored
        if setting is None:
            raise ValidationError("must not be null", field=f"{field}.{name}")


def _check_tags(value: Json, field: str) -> None:
    """Check the tags of a log: by name, each with a version and the hash of the chain there."""
    tags = validation.require_object(value, field)
    if len(tags) > MAX_TAGS:
        raise ValidationError(f"has {len(tags)} tags, the limit is {MAX_TAGS}", field=field)
    for name, tag in tags.items():
        if name.isdecimal():  # v12 was accepted by an earlier release
            raise ValidationError("must not be a number: numbers are versions", field=field)
        validation.validate_name(name, field)
        _check_version_of(tag, f"{field}.{name}", "chain")
        if not _CHAIN.match(validation.validate_text(tag["chain"], f"{field}.{name}.chain")):
            raise ValidationError("must be 64 hexadecimal digits, or empty", field=f"{field}.{name}.chain")


def _check_copied(value: Json, field: str) -> None:
    _check_version_of(value, field, "context")
    validation.validate_context_id(value["context"], f"{field}.context")


def _check_version_of(value: Json, field: str, other_name: str) -> None:
    """Check that an object has a version and one other member; the caller checks the other one."""
    values = validation.require_object(value, field)
    if values.keys() != {"version", other_name}:
        raise ValidationError(f"must have version and {other_name}, and nothing else", field=field)
    validation.validate_integer(values["version"], f"{field}.version")


def _check_copies(value: Json, field: str) -> None:
    for id in validation.require_list(value, field):
        validation.validate_context_id(id, field)


def _check_true(value: Json, field: str) -> None:
    if value is not True:
        raise ValidationError("must be true, or missing", field=field)


def _check_erased(value: Json, field: str) -> None:
    counts = validation.require_object(value, field)
    if counts.keys() != {"messages", "tokens"}:
        raise ValidationError("must have messages and tokens, and nothing else", field=field)
    for name, count in counts.items():
        validation.validate_integer(count, f"{field}.{name}")


_CHECKS: Mapping[str, Callable[[Json, str], object]] = {
    NAME: _check_title,
    ERASED: _check_erased,
    LABELS: _check_labels,
    METADATA: _check_metadata,
    TAGS: _check_tags,
    COPIED: _check_copied,
    COPIES: _check_copies,
    COPYING: _check_true,
    policy.POLICY: _check_policy,
    policy.RETENTION: validation.validate_integer,
    policy.HOLD: _check_true,
    policy.PRIVATE: _check_true,
}
