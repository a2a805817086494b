"""What the lines of an exported log must say to be let into a store: the rules of the API, for values that come whole.

A hash proves that a line was not changed since it was written. It does not prove who wrote it: anybody can compute the
hashes of a log of their own. So every field is validated as if a caller gave it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from acms.errors import ValidationError
from acms.log import summary_levels, trust, validation
from acms.log.doubt import MENTIONS
from acms.log.encoding import encode_base32, entry_id
from acms.log.in_force import ASKED, MERGED, SEEN
from acms.log.merges import KEPT
from acms.log.settings import validate_settings
from acms.model import Context, Entry, Json, Kind, Origin, Span, State

__all__ = ["LAST_VERSION", "validate_context", "validate_entry"]

LAST_VERSION = 2**32 - 1
"""A store packs versions into 32 bits."""
CONTENT_BYTES = 4 * validation.MESSAGE_BYTES
"""Bytes of a stored text: a message was within the limit when it was said, and redaction may have lengthened it."""
HASH_BYTES = 32
SALT_BYTES = 16
_NONCE = re.compile(r"[0-9a-hjkmnp-tv-z]{6}\Z")


def validate_context(context: Context, *, own: str | None = None) -> None:
    """Raise `ValidationError` with the field at fault of a context that is to be restored or copied.

    `own` is the name of the one session that may lie in the namespace of the service.
    """
    validation.context_id(context.id, "id")
    if own is None or context.key != own:
        validation.namespace_name(context.namespace)
    if context.key is not None and context.key not in validation.INNER:
        validation.session_name(context.key, "key")
    validation.validate_name(context.counter, "counter")
    validation.context_id(context.root, "root")
    if (context.parent is None) != (context.fork is None):
        raise ValidationError("a fork has a parent and a version, any other session neither", field="fork")
    if context.parent is None:
        if context.root != context.id or context.lineage:
            raise ValidationError(
                "a session that is no fork is its own root, and inherits nothing", field="root"
            )
    else:
        validation.context_id(context.parent, "parent")
        validation.validate_integer(context.fork, "fork", most=LAST_VERSION)
        for owner, last in context.lineage:
            validation.context_id(owner, "lineage")
            validation.validate_integer(last, "lineage", most=LAST_VERSION)
    validation.validate_integer(context.settings_rev, "settings_rev")
    validate_settings(context.settings)


def validate_entry(entry: Entry) -> None:
    """Raise `ValidationError` with the field at fault of an entry that is to be restored or copied."""
    validation.validate_integer(entry.version, "version", least=1, most=LAST_VERSION)
    _check_id(entry)
    validation.validate_integer(entry.batch, "batch", least=1, most=entry.version)
    validation.validate_integer(entry.tokens, "tokens", most=validation.PARTS * validation.BUDGET)
    validation.validate_integer(entry.total, "total")
    validation.validate_integer(entry.episode, "episode", most=entry.version)
    for value, field in ((entry.key, "key"), (entry.actor, "actor"), (entry.group, "group")):
        validation.optional_name(value, field)
    if entry.closes is not None:
        validation.validate_text(entry.closes, "closes", limit=validation.METADATA_BYTES)
    _check_hashes(entry)
    _check_message(entry)
    validation.validate_markers(entry.markers)
    for spans, field in ((entry.replaces, "replaces"), ((entry.covers,) if entry.covers else (), "covers")):
        _check_spans(spans, field, before=entry.version)
    for source in entry.sources:
        validation.validate_text(source, "sources", limit=validation.NAME_CHARS)
    validation.validate_metadata(entry.metadata)
    validation.serialize_document(dict(entry.data), "data")
    if entry.kind is not Kind.MESSAGE:
        for name, value in entry.data.items():
            if name in _DATA:
                _DATA[name](value, f"data.{name}")


def _check_id(entry: Entry) -> None:
    validation.context_id(entry.context, "context")
    nonce = entry.id[-6:]
    if entry.id != entry_id(entry.kind, entry.context, entry.version, nonce) or not _NONCE.match(nonce):
        wanted = f"{entry.kind.value[0]}_{entry.context[2:]}_{encode_base32(entry.version)}_ and six more"
        raise ValidationError(f"is not the id of this entry, which is {wanted}", field="id")


def _check_hashes(entry: Entry) -> None:
    for value, field in ((entry.digest, "digest"), (entry.chain, "chain")):
        if len(value) != HASH_BYTES:
            raise ValidationError(f"must have {HASH_BYTES} bytes, has {len(value)}", field=field)
    if entry.salt is not None and len(entry.salt) != SALT_BYTES:
        raise ValidationError(f"must have {SALT_BYTES} bytes, has {len(entry.salt)}", field="salt")


def _check_message(entry: Entry) -> None:
    """Check the content of an entry, and that a message has a role and no other entry has one."""
    validation.validate_text(entry.content, "content", limit=CONTENT_BYTES)
    message = entry.kind is Kind.MESSAGE
    if message != (entry.role is not None):
        raise ValidationError("belongs to a message, and to nothing else", field="role")
    if entry.role is not None:
        validation.stored_parts(entry.role, entry.parts)
        silent = not (entry.content.strip() or entry.parts or entry.data)
        if silent and entry.state is State.LIVE:
            raise ValidationError("must not be empty", field="content")
    elif entry.parts:
        raise ValidationError("belong to a message", field="parts")


def _check_spans(spans: Sequence[Span], field: str, *, before: int) -> None:
    for first, last in spans:
        if not 1 <= first <= last < before:
            raise ValidationError(f"{first}..{last} is not a span of earlier versions", field=field)


# ── data of facts, summaries, retractions ───────────────────────────────────────────────────────────────────────────


def _check_text(value: Json, field: str) -> None:
    validation.validate_text(value, field)


def _check_whole(value: Json, field: str) -> None:
    validation.validate_integer(value, field)


def _check_flag(value: Json, field: str) -> None:
    if not isinstance(value, bool):
        raise ValidationError(f"must be true or false, was {value!r}", field=field)


def _check_number(value: Json, field: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValidationError(f"must be a number, not {type(value).__name__}", field=field)


def _check_texts(value: Json, field: str) -> None:
    for one in _require_list(value, field):
        validation.validate_text(one, field)


def _check_time(value: Json, field: str) -> None:
    try:
        datetime.fromisoformat(validation.validate_text(value, field))
    except ValueError as error:
        raise ValidationError(f"{value!r} is not an ISO 8601 time", field=field) from error


def _check_object(value: Json, field: str) -> None:
    if not isinstance(value, Mapping):
        raise ValidationError(f"must be an object, not {type(value).__name__}", field=field)


def _check_counts(value: Json, field: str) -> None:
    """Check whole numbers by name."""
    _check_object(value, field)
    for name, count in value.items():
        validation.validate_integer(count, f"{field}.{name}")


def _check_lost(value: Json, field: str) -> None:
    _check_object(value, field)
    _check_counts(value.get("counts", {}), f"{field}.counts")
    _check_texts(value.get("ids"), f"{field}.ids")


def _check_levels(value: Json, field: str) -> None:
    for index, level in enumerate(_require_list(value, field)):
        _check_object(level, f"{field}[{index}]")
        validation.validate_text(level.get("content"), f"{field}[{index}].content")
        validation.validate_integer(level.get("tokens"), f"{field}[{index}].tokens")


def _check_demoted(value: Json, field: str) -> None:
    """Check ids of messages, each with the spans of characters that are still good."""
    for row in _require_list(value, field):
        if len(_require_list(row, field)) != 2:
            raise ValidationError("must hold pairs of an id and its spans", field=field)
        validation.validate_text(row[0], field)
        for span in _require_list(row[1], field):
            if len(_require_list(span, field)) != 2:
                raise ValidationError("must hold spans of two numbers", field=field)
            for end in span:
                validation.validate_integer(end, field)


def _require_list(value: Json, field: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise ValidationError(f"must be a list, not {type(value).__name__}", field=field)
    return value


def _make_enum_check(kind: type[StrEnum]) -> Callable[[Json, str], None]:
    """Return the check of a name from a closed vocabulary."""

    def check(value: Json, field: str) -> None:
        validation.parse_choice(value, kind, field)

    return check


_DATA: Mapping[str, Callable[[Json, str], None]] = {
    **dict.fromkeys(
        ("subject", "attribute", "value", "cardinality", "fact_type", "scope", "reason", "summarizer", "job"),
        _check_text,
    ),
    **dict.fromkeys(("before", "after", "preserved", "removed", "level", "upto", "episode"), _check_whole),
    **dict.fromkeys(("valid_from", "valid_to", "said"), _check_time),
    **dict.fromkeys(("names", "depends_on", "renews", MENTIONS, KEPT), _check_texts),
    **dict.fromkeys(("negative", ASKED), _check_flag),
    MERGED: _check_text,
    SEEN: _check_counts,
    "confidence": _check_number,
    "policy": _check_object,
    "lost": _check_lost,
    "demotes": _check_demoted,
    summary_levels.LEVELS: _check_levels,
    trust.TRUST: _make_enum_check(Origin),
}
"""Parsers for the names that ACMS itself writes into the data of an entry; other names are plain JSON."""
