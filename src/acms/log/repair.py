"""Repairs of messages that a log cannot store unchanged; a note describes each change.

A repair depends on the message alone, so the same message is repaired the same way whenever it is handed over.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from hashlib import sha256
from typing import Any, NamedTuple

from acms.log import validation
from acms.log.validation import MESSAGE_BYTES, NAME_CHARS, PARTS, replace_invalid_characters
from acms.model import Media, Raw, Reasoning, Role, Text, ToolCall, ToolResult

OWN_FIELDS = (*validation.MESSAGE_ATTRIBUTES, *validation.MESSAGE_KEYS)
"""Fields that only callers of ACMS write: invalid values are an error, also in a list."""

_DIVISORS = (1, 4, 16, 64, 256, 4_096)
"""Divisors of the byte limit of a message, tried in turn: each gives the limit of one text, as a message has many."""

_ID_FIELDS = frozenset(
    ("id", "call_id", "tool_call_id", "tool_use_id", "approval_request_id", "key", "idempotency_key")
)
_NAME_FIELDS = frozenset(("name", "actor_id"))
_BYTES_FIELDS = frozenset(
    ("data", "file_data", "result", "encrypted_content", "signature", "thoughtSignature")
)
_CUT = "of a text of"
"""How the note on a text that was cut begins."""
_CUT_ADVICE = "hand it over as several messages to keep it whole; ACMSConfig(strict=True) refuses it instead"
_PARTS = (Text, Reasoning, ToolCall, ToolResult, Media, Raw)
_MAX_DEPTH = 100


def refer_by_hash(data: bytes, mime: str) -> str:
    """Return a reference to bytes that are not kept: their hash."""
    return f"sha256:{sha256(data).hexdigest()}"


def generate_repairs(message: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Yield repaired versions of a message, each with shorter texts than the one before, and notes on the changes."""
    own_fields = {name: message[name] for name in OWN_FIELDS if name in message}
    provider_fields = {name: value for name, value in message.items() if name not in OWN_FIELDS}
    for divisor in _DIVISORS:
        repair = _Repair(MESSAGE_BYTES // divisor)
        repaired = repair.limit_parts(repair.value(provider_fields))
        yield {**repaired, **own_fields}, tuple(repair.notes)


def find_cut_notes(notes: Iterable[str]) -> list[str]:
    """Return the notes on texts that were cut."""
    return [note for note in notes if note.startswith(_CUT)]


def repair_value(value: Any) -> Any:
    """Return a JSON value with the texts, ids and names in it as a log can hold them."""
    return _Repair(MESSAGE_BYTES).value(value)


def repair_characters(value: Any) -> Any:
    """Return a JSON value or parts with the characters replaced that no store can keep; no text is cut."""
    return _Repair(sys.maxsize).value(value)


def message_as_json_text(message: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a message whose text is the JSON of a message that cannot be parsed.

    Without a valid role it becomes external text of the user.
    """
    fields, role = dict(message), message.get("role")
    own_fields = {name: fields.pop(name) for name in OWN_FIELDS if fields.get(name) is not None}
    text = json.dumps(fields, ensure_ascii=False, default=repr)
    stored = {"role": role, "content": _Repair(MESSAGE_BYTES // 2).text(text)}
    if not isinstance(role, str) or role not in Role._value2member_map_:
        stored |= {"role": "user", "origin": "external"}
    return {**stored, **own_fields}, ("a message that could not be understood is stored as its JSON",)


class _Repair:
    """Repairs values of one message, whose texts have at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        #: Descriptions of the changes, each once: the keys of a dict, which keeps their order.
        self.notes: dict[str, None] = {}

    def _note(self, note: str) -> None:
        self.notes[note] = None

    def value(self, value: Any, name: str = "", depth: int = 0) -> Any:
        """Return a value with every text in it repaired."""
        if depth > _MAX_DEPTH:
            self._note("what was nested too deep is left out")
            return None
        if isinstance(value, str):
            return self._text_of_field(value, name)
        if isinstance(value, list | tuple):
            return [self.value(item, name, depth + 1) for item in value if not self._is_too_long(item)]
        if isinstance(value, _PARTS):
            names = [part_field.name for part_field in fields(value)]
            return replace(value, **{name: self.value(getattr(value, name), name) for name in names})
        if not isinstance(value, Mapping):
            return value
        repaired: dict[Any, Any] = {}
        for key, item in value.items():
            repaired_key = self.text(key) if isinstance(key, str) else key
            repaired[repaired_key] = self.value(item, str(key), depth + 1)
        return repaired

    def _is_too_long(self, value: Any) -> bool:
        """Return whether a value is a provider's item over the limit: its JSON would be invalid if it were cut."""
        if not isinstance(value, Raw) or len(value.json.encode("utf-8", "surrogatepass")) <= self._limit:
            return False
        self._note("a provider's own item that is too long is left out")
        return True

    def _text_of_field(self, value: str, name: str) -> str:
        """Return the repaired text of a field: long ids and names are shortened, and bytes stay as they are."""
        is_long = len(value) > NAME_CHARS
        if is_long and name in _ID_FIELDS:
            self._note("a long id is shortened")
            # The digest keeps shortened ids distinct: a result must still name its call.
            digest = sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]
            return f"{self.text(value[: NAME_CHARS - 33])}_{digest}"
        if is_long and name in _NAME_FIELDS:
            self._note("a long name is shortened")
            return self.text(value[:NAME_CHARS])
        holds_bytes = name in _BYTES_FIELDS or value.startswith("data:")
        return value if holds_bytes else self.text(value)

    def text(self, text: str) -> str:
        """Return a text that every store can keep: well-formed, without NUL, and no longer than the limit."""
        repaired = replace_invalid_characters(text)
        if repaired != text:
            self._note("NUL characters and halves of surrogate pairs are replaced by U+FFFD")
        data = repaired.encode()
        if len(data) <= self._limit:
            return repaired
        head, tail = data[: self._limit * 3 // 4], data[-self._limit // 8 :]
        head_text, tail_text = head.decode("utf-8", "ignore"), tail.decode("utf-8", "ignore")
        left_out = len(repaired) - len(head_text) - len(tail_text)
        self._note(
            f"{_CUT} {len(data):,} bytes the first {len(head):,} and the last {len(tail):,} are stored, "
            f"{left_out:,} characters are left out: {_CUT_ADVICE}"
        )
        cut = f"\n[… {len(data) - len(head) - len(tail)} bytes cut …]\n"
        return head_text + cut + tail_text

    def limit_parts(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message whose lists of parts are cut to half the number of parts that a message may have."""
        for name in ("content", "parts", "tool_calls"):
            parts = message.get(name)
            if isinstance(parts, list) and len(parts) > PARTS // 2:
                self._note(f"of {len(parts)} parts the first {PARTS // 2} are stored")
                message = {**message, name: parts[: PARTS // 2]}
        return message


# ── calls that share an id ──────────────────────────────────────────────────────────────────────────────────────────


def rename_repeated_calls(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[Sequence[Mapping[str, Any]], tuple[str, ...]]:
    """Return messages in which no two calls of one message share an id, and notes on the changes.

    The results after a changed message get the new ids in the order of its calls.
    """
    renamed: list[Mapping[str, Any]] = []
    ids = _CallIds()
    is_changed = False
    for message in messages:
        call_ids = [part.call_id for part in _tool_parts(message) if not part.is_result]
        if len(set(call_ids)) < len(call_ids):
            is_changed = True
            ids = _CallIds()
            message = _with_ids(message, ids.rename_call, results=False)
        elif is_changed:
            message = _with_ids(message, ids.rename_result, results=True)
        renamed.append(message)
    if not is_changed:
        return messages, ()
    return renamed, ("calls of one message that share an id get ids of their own",)


class _CallIds:
    """The ids of the calls of one message, each id used once."""

    def __init__(self) -> None:
        #: By the id that calls share: their own ids, in order, until their results have come.
        self._waiting: dict[str, list[str]] = {}
        self._numbers: Counter[str] = Counter()

    def rename_call(self, id: str) -> str:
        """Return the own id of the next call that has this shared id."""
        self._numbers[id] += 1
        own_id = id if self._numbers[id] == 1 else f"{id}_{self._numbers[id]}"
        self._waiting.setdefault(id, []).append(own_id)
        return own_id

    def rename_result(self, id: str) -> str:
        """Return the own id of the call that the next result of this shared id answers."""
        waiting = self._waiting.get(id)
        return waiting.pop(0) if waiting else id


class _ToolPart(NamedTuple):
    """A call or a result in a message, in the form of ACMS or of a provider."""

    #: The field that holds the id of the call.
    id_field: str
    call_id: str
    is_result: bool
    #: The field that holds the call or result in a part of Gemini; "" in any other part.
    wrapper: str = ""


_GEMINI_WRAPPERS = {
    "functionCall": False,
    "function_call": False,
    "functionResponse": True,
    "function_response": True,
}
"""Fields of a part of Gemini, also as its SDK spells them, and whether they hold a result."""
_PART_FIELDS = ("tool_calls", "content", "parts")
"""Fields of a message that may hold calls and results."""


def _tool_parts(message: Mapping[str, Any]) -> Iterator[_ToolPart]:
    """Yield the calls and results of a message."""
    for field in _PART_FIELDS:
        items = message.get(field)
        if isinstance(items, list | tuple):
            for item in items:
                tool_part = _parse_tool_part(item, is_call=field == "tool_calls")
                if tool_part is not None:
                    yield tool_part


def _parse_tool_part(part: Any, *, is_call: bool) -> _ToolPart | None:
    """Return a part as a call or a result, or None; `is_call` is true in a list that has only calls."""
    if isinstance(part, ToolCall | ToolResult):
        return _ToolPart("call_id", part.call_id, isinstance(part, ToolResult))
    if not isinstance(part, Mapping):
        return None
    for wrapper, is_result in _GEMINI_WRAPPERS.items():
        inner = part.get(wrapper)
        if isinstance(inner, Mapping) and isinstance(inner.get("id"), str):
            return _ToolPart("id", inner["id"], is_result, wrapper)
    kind = part.get("type")
    is_result = kind == "tool_result"
    id_field = "tool_use_id" if is_result else "id"
    call_id = part.get(id_field)
    if not isinstance(call_id, str) or not (is_call or is_result or kind == "tool_use"):
        return None
    return _ToolPart(id_field, call_id, is_result)


def _with_id(part: Any, tool_part: _ToolPart, call_id: str) -> Any:
    """Return a call or a result with another id."""
    if not isinstance(part, Mapping):
        return replace(part, call_id=call_id)
    if tool_part.wrapper:
        return {**part, tool_part.wrapper: {**part[tool_part.wrapper], tool_part.id_field: call_id}}
    return {**part, tool_part.id_field: call_id}


def _with_ids(
    message: Mapping[str, Any], rename: Callable[[str], str], *, results: bool
) -> Mapping[str, Any]:
    """Return a message in which the ids of its calls, or with `results` of its results, are renamed."""
    renamed: dict[str, Any] = dict(message)
    for field in _PART_FIELDS:
        items = message.get(field)
        if not isinstance(items, list | tuple):
            continue
        parts: list[Any] = []
        for part in items:
            tool_part = _parse_tool_part(part, is_call=field == "tool_calls")
            if tool_part is not None and tool_part.is_result is results:
                part = _with_id(part, tool_part, rename(tool_part.call_id))
            parts.append(part)
        renamed[field] = parts
    if results and isinstance(message.get("tool_call_id"), str):
        renamed["tool_call_id"] = rename(message["tool_call_id"])
    return renamed
