"""Validation of everything that enters a log. Every text, number and name is checked here once and trusted inside.

The same input is accepted or refused on every backend, whatever its driver would have said (T35).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

from acms.errors import NotFoundError, SessionNotFoundError, ValidationError
from acms.log.native_items import item_text
from acms.model import Job, Json, MarkerType, Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult

if TYPE_CHECKING:
    from enum import StrEnum

#: Named limits; sizes in bytes of UTF-8, counts in items.
MESSAGE_BYTES = 1_048_576
NAME_CHARS = 255
PARTS, STRICT_PARTS = 4_096, 256
MARKERS = 16
LABELS = 32
BATCH = 1_000
LIST = 100_000
METADATA_BYTES = 16_384
METADATA_KEYS = 64
METADATA_DEPTH = 8
KEY_CHARS = 512
VALUE_BYTES = 1_048_576
VALUE_DEPTH = 64
RECORD_NAME_CHARS = 64
RECORD_BYTES = 65_536
PAGE = 500
BUDGET = 100_000_000
SHOWN_CHARS = 64
"""Characters of a wrong value that an error shows."""
_TIME_OPTIONS = ("give a time with its zone, such as 2026-03-14T09:00:00Z",)

E = TypeVar("E", bound="StrEnum")
_CUSTOM_MARKER = re.compile(r"custom:[A-Za-z0-9_.-]{1,64}\Z")
_MARKERS = frozenset(MarkerType)
_INT64 = 2**63


def error_at_field(error: ValidationError, field: str) -> ValidationError:
    """Return an error under another name of the field at fault."""
    message = str(error).removeprefix(f"{error.field}: ")
    return ValidationError(message, field=field, options=error.options)


@contextmanager
def prefix_field_errors(prefix: str) -> Generator[None]:
    """Put a prefix before the field of a `ValidationError` that is raised in the block."""
    try:
        yield
    except ValidationError as error:
        if not prefix:
            raise
        raise error_at_field(error, prefix + error.field) from error


def validate_text(value: object, field: str, *, limit: int = MESSAGE_BYTES) -> str:
    """Return `value` when it is a string that every backend can store unchanged."""
    if not isinstance(value, str):
        raise ValidationError(f"must be a string, not {type(value).__name__}", field=field)
    if "\0" in value:
        raise ValidationError("must not contain a NUL character", field=field)
    if value.isascii():
        size = len(value)
    else:
        try:
            size = len(value.encode())
        except UnicodeEncodeError as error:
            raise ValidationError("must not contain a lone surrogate", field=field) from error
    if size > limit:
        raise ValidationError(f"is {size} bytes long, the limit is {limit}", field=field)
    return value


def replace_invalid_characters(text: str) -> str:
    """Return a text that every store can keep: U+FFFD in place of NUL and of halves of surrogate pairs."""
    if text.isascii():
        return text.replace("\0", "\ufffd")
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def content_type_error(content: object, field: str) -> ValidationError:
    """Return the error for a content of a message that is neither a text nor a list."""
    return ValidationError(f"must be a text or a list of parts, not {type(content).__name__}", field=field)


def repair_and_validate_text(value: object, field: str) -> str:
    """Return a text that a user or a provider sent, with the characters replaced that no store can keep."""
    return validate_text(replace_invalid_characters(value) if isinstance(value, str) else value, field)


UNNAMED = "default"
"""The namespace of sessions that name none: unrelated users may share it, so nothing is shared within it."""

RESERVED_NAMESPACE = "@acms"
"""The namespace in which a service keeps the audit trail of a tenant."""
NAMESPACE = "@namespace"
"""Name of the context whose settings are those of its namespace; it has no entries."""
PROFILE = "@profile"
"""Name of the context that holds the facts of a whole namespace."""
AUDIT = "@audit"
"""Name of the audit trail of a tenant, in the namespace of the service."""
INNER = (NAMESPACE, PROFILE)
"""Names reserved for the two contexts that a namespace itself has, which hold settings and facts."""
_CONTEXT_ID = re.compile(r"c_[0-9a-z]{16}\Z")


def validate_name(value: object, field: str) -> str:
    """Return a non-empty name of at most 255 characters."""
    checked = validate_text(value, field, limit=4 * NAME_CHARS)
    if not checked.strip():
        raise ValidationError("must not be empty", field=field)
    if len(checked) > NAME_CHARS:
        raise ValidationError(f"is {len(checked)} characters long, the limit is {NAME_CHARS}", field=field)
    return checked


def validate_query(value: object) -> str:
    """Return the text to search for; a blank one is refused, because it matches nothing."""
    checked = repair_and_validate_text(value, "query")
    if not checked.strip():
        raise ValidationError(
            "must not be blank",
            field="query",
            options=("describe in a few words what to find", "window(budget) shows the newest messages"),
        )
    return checked


def validate_namespace(value: object, field: str = "namespace") -> str:
    """Return the name of a namespace for sessions; the reserved namespace of the service is refused."""
    checked = validate_name(value, field)
    if checked == RESERVED_NAMESPACE:
        raise ValidationError(f"{checked!r} is reserved", field=field)
    return checked


def validate_context_id(value: object, field: str) -> str:
    """Return the id of a context."""
    checked = validate_text(value, field, limit=NAME_CHARS)
    if not _CONTEXT_ID.match(checked):
        raise ValidationError("is not the id of a session", field=field)
    return checked


def validate_new_session_name(value: object, field: str) -> str:
    """Return a name for a new session; one that the engine uses itself or that could be taken for an id is refused."""
    checked = validate_session_identifier(value, field)
    if _CONTEXT_ID.match(checked):
        raise ValidationError("looks like the id of a session: choose another name", field=field)
    return checked


def validate_session_identifier(value: object, field: str) -> str:
    """Return the identifier that opens a session; a name reserved by the engine is refused."""
    checked = validate_name(value, field)
    if checked in INNER:
        contents = "settings" if checked == NAMESPACE else "facts"
        raise ValidationError(f"{checked!r} is reserved for the {contents} of the namespace", field=field)
    return checked


def missing_session_error(
    session_id: str, kind: type[SessionNotFoundError] = SessionNotFoundError
) -> SessionNotFoundError:
    """Return the error for a session to which nothing was ever written."""
    return kind(
        f"the session {session_id!r} does not exist yet",
        options=(
            "store a message in it: that creates it",
            "look whether its name and its namespace are right",
        ),
    )


def missing_version_error(newest: int, version: int) -> NotFoundError:
    """Return the error for a version after the newest one of a log."""
    return NotFoundError(
        f"the log ends at version {newest}, {version} does not exist yet",
        options=(f"give a version from 0 to {newest}",),
    )


def require_same_namespace(requested: str, actual: str, id: str) -> None:
    """Raise `ValidationError` if a log that was found by its id is in another namespace than the requested one."""
    if requested not in (UNNAMED, actual):  # a caller that names no namespace may open any log by its id
        raise ValidationError(
            f"is {requested!r}, and {id!r} is the id of a log of another one",
            field="namespace",
            options=("name the namespace of the log", "choose another session_id"),
        )


def require_shared_namespace(namespace: str) -> str:
    """Return a namespace whose sessions share facts and searches; raise `ValidationError` for the unnamed one."""
    if namespace == UNNAMED:
        raise ValidationError(
            f"the sessions of the namespace {UNNAMED!r} may be anybody's,"
            " and one must not find what another has said",
            field="scope",
            options=('open the session in a namespace of its user or project: namespace="user:123"',),
        )
    return namespace


def validate_optional_name(value: object, field: str) -> str | None:
    """Return a name or None."""
    return None if value is None else validate_name(value, field)


def parse_choice(value: object, kind: type[E], field: str) -> E:
    """Return the member of an enumeration with a value, matched without regard to case."""
    if isinstance(value, str):
        members = kind._value2member_map_
        member = members.get(value) or members.get(value.lower())
        if member is not None:
            return cast(E, member)
    allowed = ", ".join(member.value for member in kind)
    if not isinstance(value, str):
        raise ValidationError(f"must be one of {allowed}, not {type(value).__name__}", field=field)
    raise ValidationError(f"{value[:SHOWN_CHARS]!r} is not one of {allowed}", field=field)


def parse_roles(values: Iterable[object], field: str) -> list[Role]:
    """Return some roles; a string alone would be taken for its characters."""
    _require_iterable(values, field, "roles")
    return [parse_choice(value, Role, field) for value in values]


def require_role_first(role: object, *contents: object) -> None:
    """Raise `ValidationError` if a list was passed in place of the role, or a text that no content follows."""
    if isinstance(role, list | tuple):
        raise ValidationError(
            "must be a role or one message, not a list",
            field="role",
            options=("ingest_many(messages)", "sync(messages), which also recognises stored messages"),
        )
    if isinstance(role, str) and not any(contents) and role.lower() not in Role._value2member_map_:
        raise ValidationError(
            "must come before the text",
            field="role",
            options=('ingest("user", "…")', "pass the whole message"),
        )


def require_list(value: object, field: str) -> Sequence[Any]:
    """Return a list of JSON values."""
    if not isinstance(value, list | tuple):
        raise ValidationError(f"must be a list, not {type(value).__name__}", field=field)
    return value


def require_object(value: object, field: str) -> Mapping[str, Any]:
    """Return an object of JSON values."""
    if not isinstance(value, Mapping):
        raise ValidationError(f"must be an object, not {type(value).__name__}", field=field)
    return value


def require_flag(value: object, field: str) -> bool:
    """Return a bool."""
    if not isinstance(value, bool):
        raise ValidationError(f"must be true or false, was {value!r}", field=field)
    return value


def _require_iterable(value: object, field: str, content: str = "") -> None:
    """Raise `ValidationError` for a value that is no iterable, or, if its `content` is named, for a string."""
    if content and isinstance(value, str):
        raise ValidationError(f"must be a list of {content}, not a string", field=field)
    if not isinstance(value, Iterable):
        raise ValidationError(f"must be a list, not {type(value).__name__}", field=field)


def validate_markers(values: Sequence[str] | None, field: str = "markers") -> tuple[str, ...] | None:
    """Return explicit markers without repetition: built-in ones or `custom:<name>`."""
    if values is None:
        return None
    _require_iterable(values, field, "markers")
    markers = dict.fromkeys(map(str, values))
    for marker in markers:
        if marker not in _MARKERS and not _CUSTOM_MARKER.match(marker):
            known = ", ".join(MarkerType)
            raise ValidationError(f"{marker!r} is not one of {known} or custom:<name>", field=field)
    if len(markers) > MARKERS:
        raise ValidationError(f"has {len(markers)} markers, the limit is {MARKERS}", field=field)
    return tuple(markers)


def validate_labels(values: Iterable[str], field: str = "labels") -> tuple[str, ...]:
    """Return the labels of a session without repetition: 32 names at most."""
    _require_iterable(values, field, "labels")
    labels = tuple(dict.fromkeys(validate_name(value, field) for value in values))
    if len(labels) > LABELS:
        raise ValidationError(f"has {len(labels)} labels, the limit is {LABELS}", field=field)
    return labels


def validate_budget(value: object, field: str = "token_budget", *, minimum: int = 0) -> int:
    """Return a token budget: a whole number, `minimum` or more."""
    return validate_integer(value, field, minimum=minimum, maximum=BUDGET)


def validate_fraction(value: object, field: str) -> float:
    """Return a number in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValidationError(f"must be a number from 0 to 1, was {value!r}", field=field)
    return float(value)


def validate_integer(value: object, field: str, *, minimum: int = 0, maximum: int = _INT64 - 1) -> int:
    """Return a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValidationError(f"must be a whole number, not {type(value).__name__}", field=field)
    if value < minimum and maximum == _INT64 - 1:
        raise ValidationError(f"must be at least {minimum}, was {value}", field=field)
    if not minimum <= value <= maximum:
        raise ValidationError(f"must be from {minimum} to {maximum}, was {value}", field=field)
    return value


def validate_version_or_tag(value: object, field: str) -> int | str:
    """Return a version, as a number, or the name of a tag."""
    return validate_name(value, field) if isinstance(value, str) else validate_integer(value, field)


def require_job(value: object) -> Job:
    """Return a job."""
    if not isinstance(value, Job):
        options = ("give the result of compact(), reflect() or job(id)",)
        raise ValidationError(f"must be a job, not {type(value).__name__}", field="job", options=options)
    return value


def validate_timeout(value: object) -> float | None:
    """Return a number of seconds, or None for no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValidationError(f"must be a number of seconds, was {value!r}", field="timeout")
    return value


def parse_moment(value: datetime | str, field: str = "created_at") -> datetime:
    """Return an aware UTC time from an aware datetime or an ISO 8601 string."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as error:
            message = f"{value[:SHOWN_CHARS]!r} is not an ISO 8601 time"
            raise ValidationError(message, field=field, options=_TIME_OPTIONS) from error
    if not isinstance(value, datetime):
        message = f"must be a time, not {type(value).__name__}"
        raise ValidationError(message, field=field, options=_TIME_OPTIONS)
    if value.tzinfo is None:
        raise ValidationError("must be an aware time: add a time zone", field=field, options=_TIME_OPTIONS)
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise ValidationError("is out of range", field=field) from error


def validate_id_or_key(value: object) -> str:
    """Return the id of an entry or the caller's key of a message."""
    if not isinstance(value, str):
        raise ValidationError(
            f"must be an id or a key, not {type(value).__name__}", field="id", options=("give its `id`",)
        )
    return value


def validate_ids(values: Iterable[str], field: str) -> tuple[str, ...]:
    """Return some ids without repetition; a string alone would be taken for its characters."""
    _require_iterable(values, field, "ids")
    return tuple(dict.fromkeys([validate_text(value, field) for value in values]))


def validate_metadata(value: Mapping[str, Json] | None, field: str = "metadata") -> Mapping[str, Json]:
    """Return a plain copy of a JSON object within the limits on size, depth and number of keys."""
    if not value:
        if value is None or isinstance(value, Mapping):
            return {}
        raise ValidationError(f"must be a mapping, not {type(value).__name__}", field=field)
    copy = _copy_plain_value(value, field, METADATA_DEPTH)
    if not isinstance(copy, dict):
        raise ValidationError(f"must be a mapping, not {type(value).__name__}", field=field)
    if len(copy) > METADATA_KEYS:
        raise ValidationError(f"has {len(copy)} keys, the limit is {METADATA_KEYS}", field=field)
    size = len(json.dumps(copy, ensure_ascii=False).encode())
    if size > METADATA_BYTES:
        raise ValidationError(f"is {size} bytes of JSON, the limit is {METADATA_BYTES}", field=field)
    return copy


def _copy_plain_value(value: object, field: str, depth: int) -> Json:
    """Copy a JSON value with at most `depth` levels of lists and objects; `ValidationError` for anything else."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return validate_text(value, field, limit=METADATA_BYTES)
    if isinstance(value, int):
        if not -_INT64 <= value < _INT64:
            raise ValidationError("must fit 64 bits", field=field)
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValidationError(f"must be finite, was {value}", field=field)
        return float(value)
    if depth == 0:
        raise ValidationError(f"is nested deeper than {METADATA_DEPTH}", field=field)
    if isinstance(value, Mapping):
        plain: dict[str, Json] = {}
        for key, item in value.items():
            plain[_validate_object_key(key, field)] = _copy_plain_value(item, f"{field}.{key}", depth - 1)
        return plain
    if isinstance(value, list | tuple):
        return [_copy_plain_value(item, f"{field}[{index}]", depth - 1) for index, item in enumerate(value)]
    raise ValidationError(f"{type(value).__name__} is not a JSON value", field=field)


def _validate_object_key(key: object, field: str) -> str:
    """Return a key of a JSON object; the error names the key, not its value."""
    try:
        return validate_name(key, field)
    except ValidationError as error:
        problem = str(error).removeprefix(f"{field}: ")
        raise ValidationError(f"the key {repr(key)[:NAME_CHARS]} {problem}", field=field) from error


def validate_key(value: object, field: str = "key") -> str:
    """Return the key of a value: 1 to 512 characters."""
    checked = validate_text(value, field, limit=4 * KEY_CHARS)
    if not 1 <= len(checked) <= KEY_CHARS:
        raise ValidationError(f"must have 1 to {KEY_CHARS} characters, has {len(checked)}", field=field)
    return checked


_write = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def serialize_document(value: object, field: str = "data") -> str:
    """Return any JSON value as text, within the limits on size and depth; objects keep the order of their names."""
    written = _write(_copy_json_value(value, field, _JsonBudget()))
    size = len(written.encode())
    if size > VALUE_BYTES:
        raise ValidationError(f"is {size} bytes of JSON, the limit is {VALUE_BYTES}", field=field)
    return written


class _JsonBudget:
    """The levels and the bytes that a JSON value may still have.

    Without the limit on bytes, a small value that holds one list many times would be copied endlessly.
    """

    def __init__(self) -> None:
        self.levels = VALUE_DEPTH
        self._bytes = VALUE_BYTES

    def spend_bytes(self, count: int, field: str) -> None:
        """Subtract bytes; `ValidationError` if fewer are left."""
        self._bytes -= count
        if self._bytes < 0:
            raise ValidationError(f"is more than {VALUE_BYTES} bytes of JSON", field=field)


def _copy_json_value(value: object, field: str, budget: _JsonBudget) -> Json:
    """Copy a JSON value within a budget, which is counted down."""
    if isinstance(value, str):
        text = validate_text(value, field, limit=VALUE_BYTES)
        budget.spend_bytes(len(text), field)
        return text
    budget.spend_bytes(1, field)
    if not isinstance(value, Mapping | list | tuple):
        return _copy_plain_value(value, field, 1)
    budget.spend_bytes(len(value), field)  # a comma or bracket for each item
    if budget.levels == 0:
        raise ValidationError(f"is nested deeper than {VALUE_DEPTH}", field=field)
    budget.levels -= 1
    copy: Json
    if isinstance(value, Mapping):
        copy = {}
        for name, item in value.items():
            if not isinstance(name, str):
                raise ValidationError(f"has a name that is no string but {type(name).__name__}", field=field)
            checked_name = _copy_json_value(name, field, budget)
            nested_field = _nested_field_name(field, f".{checked_name}")
            copy[checked_name] = _copy_json_value(item, nested_field, budget)
    else:
        copy = [
            _copy_json_value(item, _nested_field_name(field, f"[{index}]"), budget)
            for index, item in enumerate(value)
        ]
    budget.levels += 1
    return copy


def _nested_field_name(field: str, step: str) -> str:
    """Return the name of a part of a field; it does not grow beyond the limit of names."""
    return field if len(field) + len(step) > NAME_CHARS else field + step


_SENDERS: Mapping[type[Part], Role] = {
    ToolCall: Role.ASSISTANT,
    Reasoning: Role.ASSISTANT,
    ToolResult: Role.TOOL,
}
"""By kind of part: the only role that may send it. Other kinds may be sent by every role."""


MESSAGE_CONTENT = ("role", "content", "parts", "tool_calls", "tool_call_id")
"""Fields of a message that hold its role and its content."""
MESSAGE_ATTRIBUTES = ("markers", "actor_id", "metadata", "created_at", "origin", "privacy")
"""Fields that describe a message; every interface accepts these fields, and derives its lists from this one."""
MESSAGE_KEYS = ("key", "idempotency_key")
"""Two names of the key that prevents a message from being stored twice."""
UNKNOWN_CALL = "unknown"
"""The id of the call that a tool message without `tool_call_id` answers."""


def build_message_parts(
    role: Role,
    content: str,
    other_parts: Sequence[Part] | None,
    tool_calls: Sequence[Mapping[str, Json]] | None,
    tool_call_id: str | None,
    *,
    max_parts: int = PARTS,
) -> tuple[tuple[Part, ...], str]:
    """Return the parts of a message and its canonical text.

    Without tools or parts the message is its text and has no parts, but for a tool message, which is a result.
    Otherwise `content` becomes the first part (of a tool message: the output), and the canonical text is every text,
    call and result in order, joined by newlines.
    """
    validate_text(content, "content")
    if not other_parts and not tool_calls and tool_call_id is None:
        if not content.strip():
            raise ValidationError(
                "must not be empty",
                field="content",
                options=("give a text, tool_calls, tool_call_id or parts",),
            )
        # The output of a tool is never text of the user, even if the call that it answers is not named.
        return ((ToolResult(UNKNOWN_CALL, content),) if role is Role.TOOL else ()), content
    parts: list[Part] = []
    if tool_call_id is not None:
        if role is not Role.TOOL:
            raise ValidationError(f"belongs to role tool, not {role.value}", field="tool_call_id")
        parts.append(ToolResult(validate_name(tool_call_id, "tool_call_id"), content))
    elif content:
        parts.append(Text(content))
    tool_calls, other_parts = tool_calls or (), other_parts or ()
    _require_iterable(tool_calls, "tool_calls")
    _require_iterable(other_parts, "parts")
    parts += [parse_tool_call(call, f"tool_calls[{index}]") for index, call in enumerate(tool_calls)]
    parts += [_validate_part(part, f"parts[{index}]") for index, part in enumerate(other_parts)]
    if len(parts) > max_parts:
        raise ValidationError(f"has {len(parts)} parts, the limit is {max_parts}", field="parts")
    _check_parts_of_role(parts, role)
    return tuple(parts), validate_text(canonical_text(parts), "content")


def validate_stored_parts(role: Role, parts: Sequence[Part]) -> None:
    """Validate the parts of a message that was stored before."""
    if len(parts) > PARTS:
        raise ValidationError(f"has {len(parts)} parts, the limit is {PARTS}", field="parts")
    for index, part in enumerate(parts):
        _validate_part(part, f"parts[{index}]")
    _check_parts_of_role(parts, role)


def _check_parts_of_role(parts: Sequence[Part], role: Role) -> None:
    """Raise `ValidationError` for a part that another role sends, and for a call id that is used twice."""
    call_ids: list[str] = []
    for part in parts:
        sender = _SENDERS.get(type(part), role)
        if sender is not role:
            raise ValidationError(
                f"{type(part).__name__} belongs to role {sender.value}, not {role.value}", field="parts"
            )
        if isinstance(part, ToolCall | ToolResult):
            call_ids.append(part.call_id)
    if len(set(call_ids)) < len(call_ids):
        raise ValidationError("two calls or results of one message share a call id", field="parts")


def canonical_text(parts: Sequence[Part]) -> str:
    """Join the texts of the parts of a message: a call as `name(arguments)`, reasoning and media left out."""
    lines: list[str] = []
    for part in parts:
        if isinstance(part, Text):
            lines.append(part.text)
        elif isinstance(part, ToolCall):
            lines.append(f"{part.name}({part.arguments})")
        elif isinstance(part, ToolResult):
            lines.append(part.output)
        elif isinstance(part, Raw):
            text = item_text(part)
            if text:
                lines.append(text)
    return "\n".join(lines)


def parse_tool_call(call: Mapping[str, Json], field: str, *, id_field: str = "id") -> ToolCall:
    """Parse a tool call given as `{"id", "name", "arguments"}` or in the nested form of chat completions.

    `id_field` is the name of the id in errors.
    """
    if not isinstance(call, Mapping):
        raise ValidationError(f"must be a mapping, not {type(call).__name__}", field=field)
    function = call.get("function", call)
    if not isinstance(function, Mapping):
        raise ValidationError("must be a mapping", field=f"{field}.function")
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, Mapping):
        try:
            arguments = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValidationError(f"is not JSON: {error}", field=f"{field}.arguments") from error
    return ToolCall(
        validate_name(call.get("id"), f"{field}.{id_field}"),
        validate_name(function.get("name"), f"{field}.name"),
        validate_text(arguments, f"{field}.arguments"),
    )


def _validate_part(part: object, field: str) -> Part:
    """Return a part whose values are within the limits; `ValidationError` names the invalid one."""
    if isinstance(part, Text):
        validate_text(part.text, f"{field}.text")
    elif isinstance(part, Reasoning):
        validate_text(part.text, f"{field}.text")
        if part.signature is not None:
            validate_text(part.signature, f"{field}.signature")
    elif isinstance(part, ToolCall):
        validate_name(part.call_id, f"{field}.call_id")
        validate_name(part.name, f"{field}.name")
        validate_text(part.arguments, f"{field}.arguments")
    elif isinstance(part, ToolResult):
        validate_name(part.call_id, f"{field}.call_id")
        validate_text(part.output, f"{field}.output")
        if not isinstance(part.is_error, bool):
            raise ValidationError("must be a bool", field=f"{field}.is_error")
    elif isinstance(part, Media):
        validate_name(part.mime, f"{field}.mime")
        validate_text(part.ref, f"{field}.ref", limit=METADATA_BYTES)
        validate_text(part.sha256, f"{field}.sha256", limit=64)
        validate_integer(part.tokens, f"{field}.tokens", maximum=BUDGET)
    elif isinstance(part, Raw):
        validate_name(part.vendor, f"{field}.vendor")
        validate_text(part.json, f"{field}.json")
    else:
        raise ValidationError(f"{type(part).__name__} is not a part", field=field)
    return part
