"""A conversation of a file, and what its readers share."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple, cast

from acms.errors import ValidationError
from acms.log import validation
from acms.log.foreign import Turn
from acms.model import EMPTY, Json, Part, Reasoning, ToolCall, ToolResult

__all__ = [
    "Conversation",
    "Fork",
    "as_mapping",
    "as_mapping_list",
    "has_content",
    "join_call",
    "make_result_parts",
    "make_tool_call",
    "make_turn",
    "parse_timestamp",
    "serialize_json",
    "split_branches",
    "text_of",
]

_WORD = re.compile(r"[^\W_]+")
_LONGEST = 48
_MILLISECONDS = (
    100_000_000_000  # a number above this counts milliseconds: as seconds it would be the year 5138
)


class Fork(NamedTuple):
    """Where a branch leaves another conversation."""

    #: Id of the conversation that it leaves.
    conversation: str
    #: Key of the last message that both share, or None when they share none.
    key: str | None
    #: What the program calls the first message of the branch.
    first: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation of a file, or a piece of one: it becomes a session."""

    #: What the product calls it, the same in every export. Empty where the file does not name it.
    id: str
    #: Empty where it has none.
    title: str = ""
    #: Its messages, oldest first, each with its key.
    messages: Sequence[Turn] = ()
    #: A branch has only the messages that the other conversation does not have.
    fork: Fork | None = None
    #: Keys of messages that the program took back from it. An earlier import may have stored them.
    taken_back: Sequence[str] = ()

    @property
    def ending(self) -> str:
        """What the session's name ends with: a title may change, an id does not."""
        return self.id[:8]

    @property
    def name(self) -> str:
        """A name for the session: words of the title and the beginning of the id, or the id alone."""
        words = "-".join(_WORD.findall(self.title.lower()))[:_LONGEST].strip("-")
        return f"{words}-{self.ending}" if words else self.id


# ── JSON of other programs ──────────────────────────────────────────────────────────────────────────────────────────


def as_mapping(value: Any) -> Mapping[str, Json]:
    """Return a JSON object, an empty one for anything else: exports leave fields out, or write null."""
    return cast("Mapping[str, Json]", value) if isinstance(value, Mapping) else {}


def as_mapping_list(value: Any) -> list[Mapping[str, Json]]:
    """Return the objects of a JSON list, none for anything else."""
    return [as_mapping(one) for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def serialize_json(value: Json) -> str:
    """Serialize a value for people and models to read."""
    return json.dumps(value, ensure_ascii=False)


def text_of(content: Json) -> str:
    """Return a content as text: of a list the texts of its parts, and JSON for every part that has none."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return serialize_json(content)
    texts: list[str] = []
    for part in content:
        text = as_mapping(part).get("text")
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(text, str):
            texts.append(text)
        else:
            texts.append(serialize_json(part))
    return "\n".join(text for text in texts if text)


def parse_timestamp(value: Json) -> datetime:
    """Parse a time: ISO 8601 (UTC when it names no zone) or seconds or milliseconds since 1970."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return datetime.fromtimestamp(value / 1000 if abs(value) > _MILLISECONDS else value, UTC)
        except (OverflowError, OSError, ValueError) as error:
            raise ValidationError(f"{value!r} is not a time", field="created_at") from error
    if not isinstance(value, str):
        raise ValidationError(f"{value!r} is not a time", field="created_at")
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        return validation.parse_moment(value)
    return validation.parse_moment(parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC))


# ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────────


def make_turn(
    role: str,
    text: str = "",
    *,
    key: str,
    at: Json = None,
    parts: Sequence[Part] = (),
    actor: Json = None,
    details: Mapping[str, Json] = EMPTY,
) -> Turn:
    """Make a message for `ingest`; those of its `details` that are not empty become its metadata."""
    turn: Turn = {"role": role, "content": text, "key": _shorten_key(key)}
    if parts:
        turn["parts"] = list(parts)
    if actor:
        turn["actor_id"] = str(actor)[: validation.NAME_CHARS]
    if at not in (None, ""):
        turn["created_at"] = parse_timestamp(at)
    metadata = {name: value for name, value in details.items() if value not in (None, {}, [], "")}
    if metadata:
        turn["metadata"] = metadata
    return turn


def _shorten_key(key: str) -> str:
    if len(key) <= validation.NAME_CHARS:
        return key
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def make_tool_call(id: Json, name: Json, arguments: Json) -> ToolCall:
    """Make a call of a tool; arguments that are no text are serialized."""
    written = (
        arguments if isinstance(arguments, str) else serialize_json({} if arguments is None else arguments)
    )
    return ToolCall(str(id), str(name), written)


def make_result_parts(id: Json, output: Json, *, is_error: bool = False) -> list[Part]:
    """Make the parts of a tool's answer."""
    return [ToolResult(str(id), text_of(output), is_error)]


def has_content(turn: Turn) -> bool:
    """Return whether a message has a text, a part, or the answer to a call."""
    content = turn.get("content") or ""
    if isinstance(content, str):
        content = content.strip()
    return bool(content or turn.get("parts") or turn.get("tool_calls") or turn.get("tool_call_id"))


def join_call(before: Turn, turn: Turn) -> Turn | None:
    """Return a call together with the answer or call right before it; None when they are not one message."""
    parts = turn.get("parts") or ()
    only_calls = parts and all(isinstance(part, ToolCall | Reasoning) for part in parts)
    if before["role"] != "assistant" or turn["role"] != "assistant" or turn.get("content") or not only_calls:
        return None
    return {**before, "parts": [*before.get("parts", ()), *parts]}


# ── branches ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Path(NamedTuple):
    """The messages of one branch of a tree of messages."""

    #: The last message that it shares with a branch before, or None.
    leaves: str | None
    nodes: list[str]


def split_branches(parents: Mapping[str, Any], current: str | None) -> Iterator[Path]:
    """Yield the branch that ends at `current`, and then every other where it leaves one of those before.

    `parents` has the parent of each message, in the order of the file.
    """
    inner = {parent for parent in parents.values() if parent in parents}
    leaves = [id for id in parents if id not in inner]
    seen: set[str] = set()
    for leaf in [current, *leaves]:
        nodes: list[str] = []
        at: Any = leaf
        while at in parents and at not in seen:
            seen.add(at)
            nodes.append(at)
            at = parents[at]
        if nodes:
            yield Path(at if at in parents else None, nodes[::-1])
