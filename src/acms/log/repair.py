"""Repairs of messages that a log cannot store unchanged; a note describes each change.

A repair depends on the message alone, so the same message is repaired the same way whenever it is handed over.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from hashlib import sha256
from typing import Any

from acms.log.validation import MESSAGE_BYTES, NAME_CHARS, PARTS
from acms.model import Media, Raw, Reasoning, Role, Text, ToolCall, ToolResult

__all__ = [
    "OWN",
    "as_text",
    "generate_repairs",
    "refer_by_hash",
    "rename_repeated_calls",
    "repair_value",
    "well_formed",
]

OWN = ("markers", "created_at", "privacy", "origin", "actor_id", "metadata", "key", "idempotency_key")
"""Fields that only callers of ACMS write: invalid values are an error, also in a list."""

TRIES = (1, 4, 16, 64, 256, 4_096)
"""Fractions of the limit of a message that one of its texts may have, tried in turn: it may hold many of them."""

_IDS = frozenset(
    ("id", "call_id", "tool_call_id", "tool_use_id", "approval_request_id", "key", "idempotency_key")
)
_NAMES = frozenset(("name", "actor_id"))
_OPAQUE = frozenset(("data", "file_data", "result", "encrypted_content", "signature", "thoughtSignature"))
_PARTS = (Text, Reasoning, ToolCall, ToolResult, Media, Raw)
_DEEPEST = 100

Note = Callable[[str], object]


def refer_by_hash(data: bytes, mime: str) -> str:
    """Refer to bytes that are not kept."""
    return f"sha256:{sha256(data).hexdigest()}"


def generate_repairs(message: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Yield a message with its texts, ids and names repaired, cut shorter each time, and the notes on the changes."""
    own = {name: message[name] for name in OWN if name in message}
    given = {name: value for name, value in message.items() if name not in OWN}
    for fraction in TRIES:
        notes: dict[str, None] = {}
        made = _Repair(MESSAGE_BYTES // fraction, notes.setdefault).value(given)
        yield {**_with_few_parts(made, notes.setdefault), **own}, tuple(notes)


def repair_value(value: Any) -> Any:
    """Return a JSON value with the texts, ids and names in it as a log can hold them."""
    return _Repair(MESSAGE_BYTES, lambda note: None).value(value)


def as_text(message: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a message that cannot be understood as one whose text is its JSON, external where it names no role."""
    notes = ("a message that could not be understood is stored as its JSON",)
    given, role = dict(message), message.get("role")
    own = {name: given.pop(name) for name in OWN if given.get(name) is not None}
    known = role if isinstance(role, str) and role in Role._value2member_map_ else None
    text = json.dumps(given, ensure_ascii=False, default=repr)
    said = _Repair(MESSAGE_BYTES // 2, lambda note: None).text(text)
    return {
        "role": known or "user",
        "content": said,
        **({} if known else {"origin": "external"}),
        **own,
    }, notes


def well_formed(text: str) -> str:
    """Return a text that every store can keep: U+FFFD in place of NUL and of halves of surrogate pairs."""
    if text.isascii():
        return text.replace("\0", "\ufffd")
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class _Repair:
    """Repairs values of one message."""

    def __init__(self, limit: int, note: Note) -> None:
        self._limit = limit
        self._note = note

    def value(self, value: Any, name: str = "", depth: int = 0) -> Any:
        """Return a value with every text in it repaired."""
        if depth > _DEEPEST:
            self._note("what was nested too deep is left out")
            return None
        if isinstance(value, str):
            return self._named(value, name)
        if isinstance(value, Mapping):
            return {
                self.text(key) if isinstance(key, str) else key: self.value(one, str(key), depth + 1)
                for key, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(one, name, depth + 1) for one in value if not self._is_too_long(one)]
        if isinstance(value, _PARTS):
            changed = {one.name: self.value(getattr(value, one.name), one.name) for one in fields(value)}
            return replace(value, **changed)
        return value

    def _is_too_long(self, value: Any) -> bool:
        """Return whether a value is an item that would be no JSON any more if it were cut."""
        if not isinstance(value, Raw) or len(value.json.encode("utf-8", "surrogatepass")) <= self._limit:
            return False
        self._note("a provider's own item that is too long is left out")
        return True

    def _named(self, value: str, name: str) -> str:
        """Return the text of a field, by what fields of that name may hold."""
        if name in _IDS and len(value) > NAME_CHARS:
            self._note("a long id is shortened")
            digest = sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]
            return f"{self.text(value[: NAME_CHARS - 33])}_{digest}"
        if name in _NAMES and len(value) > NAME_CHARS:
            self._note("a long name is shortened")
            return self.text(value[:NAME_CHARS])
        if name in _OPAQUE or value.startswith("data:"):
            return value
        return self.text(value)

    def text(self, text: str) -> str:
        """Return a text that every store can keep: well-formed, without NUL, and no longer than the limit."""
        made = well_formed(text)
        if made != text:
            self._note("NUL characters and halves of surrogate pairs are replaced by U+FFFD")
        written = made.encode()
        if len(written) <= self._limit:
            return made
        self._note(f"a text of {len(written):,} bytes is cut")
        head, tail = written[: self._limit * 3 // 4], written[-self._limit // 8 :]
        cut = f"\n[… {len(written) - len(head) - len(tail)} bytes cut …]\n"
        return head.decode("utf-8", "ignore") + cut + tail.decode("utf-8", "ignore")


def _with_few_parts(message: dict[str, Any], note: Note) -> dict[str, Any]:
    """Return a message with no more parts than a message may have: the first of them."""
    for name in ("content", "parts", "tool_calls"):
        found = message.get(name)
        if isinstance(found, list) and len(found) > PARTS // 2:
            note(f"of {len(found)} parts the first {PARTS // 2} are stored")
            message = {**message, name: found[: PARTS // 2]}
    return message


# ── calls that share an id ──────────────────────────────────────────────────────────────────────────────────────────


def rename_repeated_calls(
    messages: Sequence[Mapping[str, Any]],
) -> tuple[Sequence[Mapping[str, Any]], tuple[str, ...]]:
    """Return messages in which no two calls of one share an id, their results renamed in the same order."""
    found: list[Mapping[str, Any]] = []
    ids = _Ids()
    changed = False
    for message in messages:
        called = _call_ids(message)
        if len(set(called)) < len(called):
            changed = True
            ids = _Ids()
            message = _with_ids(message, ids.of_call, results=False)
        elif changed:
            message = _with_ids(message, ids.of_result, results=True)
        found.append(message)
    if not changed:
        return messages, ()
    return found, ("calls of one message that share an id get ids of their own",)


class _Ids:
    """The ids of the calls of one message, each id used once."""

    def __init__(self) -> None:
        #: By the id that calls share: their own ids, in order, until their results have come.
        self._waiting: dict[str, list[str]] = {}
        self._numbers: Counter[str] = Counter()

    def of_call(self, id: str) -> str:
        """Return the id of the next call that was given this one."""
        self._numbers[id] += 1
        own = id if self._numbers[id] == 1 else f"{id}_{self._numbers[id]}"
        self._waiting.setdefault(id, []).append(own)
        return own

    def of_result(self, id: str) -> str:
        """Return the id of the call that the next result of this id answers."""
        waiting = self._waiting.get(id)
        return waiting.pop(0) if waiting else id


def _call_ids(message: Mapping[str, Any]) -> list[str]:
    """Return the ids of the calls that a message makes, in whichever form."""
    return [id for one, _, id in _tool_parts(message) if not _is_result(one)]


def _is_result(one: Any) -> bool:
    return isinstance(one, ToolResult) or (isinstance(one, Mapping) and one.get("type") == "tool_result")


def _tool_parts(message: Mapping[str, Any]) -> Iterator[tuple[Any, str, str]]:
    """Yield the calls and results in a message, each with the field of its id, and the id."""
    for field in ("tool_calls", "content", "parts"):
        listed = message.get(field)
        for one in listed if isinstance(listed, list | tuple) else ():
            if isinstance(one, ToolCall | ToolResult):
                yield one, "call_id", one.call_id
            elif isinstance(one, Mapping):
                kind = one.get("type")
                name = "tool_use_id" if kind == "tool_result" else "id"
                known = field == "tool_calls" or kind in ("tool_use", "tool_result")
                if known and isinstance(one.get(name), str):
                    yield one, name, one[name]


def _with_ids(message: Mapping[str, Any], own: Callable[[str], str], *, results: bool) -> Mapping[str, Any]:
    """Return a message with other ids of its calls, or of its results."""
    made: dict[str, Any] = dict(message)
    found = [
        (one, name, call_id) for one, name, call_id in _tool_parts(message) if _is_result(one) is results
    ]
    for field in ("tool_calls", "content", "parts"):
        listed = message.get(field)
        if isinstance(listed, list | tuple):
            made[field] = [_with_id(one, found, own) for one in listed]
    if results and isinstance(message.get("tool_call_id"), str):
        made["tool_call_id"] = own(message["tool_call_id"])
    return made


def _with_id(one: Any, found: Sequence[tuple[Any, str, str]], own: Callable[[str], str]) -> Any:
    for part, name, call_id in found:
        if part is one:
            renamed = own(call_id)
            return {**one, name: renamed} if isinstance(one, Mapping) else replace(one, call_id=renamed)
    return one
