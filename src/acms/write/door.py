"""The door of a log: what providers and servers return is stored, repaired where it has to be, with notes of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from acms.errors import ValidationError
from acms.log import foreign, repair
from acms.log.foreign import Turn
from acms.log.native_items import AS_GIVEN
from acms.model import Raw

T = TypeVar("T")

__all__ = ["read_message", "says_nothing", "with_something"]

_NOT_KEPT = "the bytes of media are not kept, only their hash: give ACMSConfig(media=…) a place for them"


def says_nothing(turn: Turn) -> bool:
    """Return whether a message has neither a text nor parts."""
    content = turn.get("content")
    blank = content is None or (isinstance(content, str) and not content.strip())
    return blank and not any(turn.get(name) for name in ("parts", "tool_calls", "tool_call_id"))


def with_something(turn: Turn) -> Turn:
    """Return a message that says nothing with what it came as in a part, so that it can be stored."""
    if not says_nothing(turn):
        return turn
    return {**turn, "content": "", "parts": [Raw(AS_GIVEN, foreign.dump({"content": turn.get("content")}))]}


def read_message(
    message: Mapping[str, Any],
    field: str,
    keep: foreign.Keep | None,
    check: Callable[[Sequence[Turn]], T],
    *,
    strict: bool,
    listed: bool = True,
) -> tuple[T, tuple[str, ...]]:
    """Read a message as it is stored, and say what had to be repaired.

    `check` makes something of what was read, or raises. A message that no repair helps is stored as its JSON when it
    is one of a list, which it must not stop; alone it is an error, as everything that is wrong is when `strict`.
    """
    notes: dict[str, None] = {}

    def refer(data: bytes, mime: str) -> str:
        notes[_NOT_KEPT] = None
        return repair.refer_by_hash(data, mime)

    keeper = keep if strict or keep is not None else refer

    def read(given: Mapping[str, Any]) -> T:
        return check(foreign.read(given, field, keep=keeper, strict=strict))

    try:
        return read(message), tuple(notes)
    except ValidationError as error:
        if strict:
            raise
        first = error
    for repaired, changed in repair.repairs(message):
        try:
            return read(repaired), (*changed, *notes)
        except ValidationError:
            continue
    if listed:
        text, changed = repair.as_text(message)
        try:
            return read(text), changed
        except ValidationError:
            pass
    raise first
