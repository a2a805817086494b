"""A conversation of a file, and what its readers share."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b, sha256
from typing import Any, NamedTuple, TypeAlias, cast

from acms.errors import ValidationError
from acms.log import provider_messages, validation
from acms.log.provider_messages import Turn
from acms.log.repair import refer_by_hash
from acms.model import EMPTY, Json, Media, Part, Reasoning, ToolCall, ToolResult

_WORD = re.compile(r"[^\W_]+")


Record: TypeAlias = Mapping[str, Json]
"""A JSON object of a file."""


class Fork(NamedTuple):
    """Where a branch leaves another conversation."""

    #: Id of the conversation that it leaves.
    conversation: str
    #: Key of the last message that both share, or None when they share none.
    key: str | None
    #: The id that the program gives to the first message of the branch.
    first: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation of a file, or a piece of one: it becomes a session."""

    #: Its id in the product, the same in every export; empty if the file has none.
    id: str
    #: Empty if it has none.
    title: str = ""
    #: Its messages, oldest first, each with its key.
    messages: Sequence[Turn] = ()
    #: A branch has only the messages that the other conversation does not have.
    fork: Fork | None = None
    #: Keys of messages that the program took back from it. An earlier import may have stored them.
    taken_back: Sequence[str] = ()

    @property
    def ending(self) -> str:
        """The end of the session's name, from the id: a title may change, an id does not."""
        return self.id[:8]

    @property
    def name(self) -> str:
        """A name for the session: words of the title and the beginning of the id, or the id alone."""
        words = "-".join(_WORD.findall(self.title.lower()))[:48].strip("-")  # leaves a name a line can show
        return f"{words}-{self.ending}" if words else self.id


# ── JSON of other programs ──────────────────────────────────────────────────────────────────────────────────────────


def as_mapping(value: Any) -> Record:
    """Return a JSON object, or an empty one for any other value: exports leave fields out, or write null."""
    return cast("Record", value) if isinstance(value, Mapping) else {}


def as_mapping_list(value: Any) -> list[Record]:
    """Return the objects of a JSON list, none for anything else."""
    if not isinstance(value, list):
        return []
    return [as_mapping(item) for item in value if isinstance(item, Mapping)]


def find_value(value: Json, path: str) -> Json:
    """Return the value at a path such as `messages.0.role`, or None if there is none."""
    for name in path.split("."):
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def record_at(value: Json, path: str) -> Record:
    """Return the object at a path, an empty one if there is none: exports leave fields out, or write null."""
    return as_mapping(find_value(value, path))


def records_at(value: Json, path: str) -> list[Record]:
    """Return the objects of the list at a path, none if there is no list."""
    return as_mapping_list(find_value(value, path))


def first_value(record: Record, names: Iterable[str]) -> Json:
    """Return the value of the first of some fields that is not null, or None."""
    for name in names:
        value = record.get(name)
        if value is not None:
            return value
    return None


def digest_text(text: str) -> bytes:
    """Return a 16-byte digest, which takes less memory than the text: a file may have a million messages."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class DerivedIds:
    """Ids for those conversations of a file that have none: digests of how they begin."""

    def __init__(self) -> None:
        self._counts = Counter[bytes]()

    def derive(self, *beginning: Json) -> str:
        """Return an id made of how a conversation begins, so that it stays the same while the conversation grows.

        Conversations that begin alike get different ids, in the order of the file.
        """
        digest = digest_text(json.dumps(beginning, sort_keys=True))
        self._counts[digest] += 1
        return digest_text(f"{digest.hex()} {self._counts[digest]}").hex()


def serialize_json(value: Json) -> str:
    """Serialize a value for people and models to read."""
    return json.dumps(value, ensure_ascii=False)


def text_of(content: Json) -> str:
    """Return a content as text. The texts of a list are joined by newlines; a part without text becomes JSON."""
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
        # As seconds, a number of this size would be the year 5138.
        seconds = value / 1000 if abs(value) > 100_000_000_000 else value
        try:
            return datetime.fromtimestamp(seconds, UTC)
        except (OverflowError, OSError, ValueError) as error:
            raise ValidationError(f"{value!r} is not a time", field="created_at") from error
    if not isinstance(value, str):
        raise ValidationError(f"{value!r} is not a time", field="created_at")
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        return validation.parse_moment(value)
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return validation.parse_moment(parsed)


# ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────────


def make_turn(
    role: str,
    text: str = "",
    *,
    key: str,
    created_at: Json = None,
    parts: Sequence[Part] = (),
    actor: Json = None,
    details: Record = EMPTY,
) -> Turn:
    """Make a message for `ingest`; those of its `details` that are not empty become its metadata."""
    turn: Turn = {"role": role, "content": text, "key": _shorten_key(key)}
    if parts:
        turn["parts"] = list(parts)
    if actor:
        turn["actor_id"] = str(actor)[: validation.NAME_CHARS]
    if created_at not in (None, ""):
        turn["created_at"] = parse_timestamp(created_at)
    metadata = {name: value for name, value in details.items() if value not in (None, {}, [], "")}
    if metadata:
        turn["metadata"] = metadata
    return turn


def _shorten_key(key: str) -> str:
    if len(key) <= validation.NAME_CHARS:
        return key
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def parse_turns(message: Mapping[str, Any], base: Turn) -> list[Turn]:
    """Translate a provider's message and add the fields of `base`; keys after the first one are numbered."""
    turns: list[Turn] = []
    for number, parsed in enumerate(provider_messages.parse_provider_message(message, keep=refer_by_hash)):
        key = f"{base['key']}:{number}" if number else base["key"]
        turns.append({**base, **parsed, "key": key})
    return turns


def make_tool_call(id: Json, name: Json, arguments: Json) -> ToolCall:
    """Make a call of a tool; arguments that are no text are serialized."""
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, str):
        arguments = serialize_json(arguments)
    return ToolCall(str(id), str(name), arguments)


def make_result_parts(id: Json, output: Json, *, is_error: bool = False) -> list[Part]:
    """Make the parts of a tool's answer."""
    return [ToolResult(str(id), text_of(output), is_error)]


def make_media(kind: Json, reference: Json) -> Media:
    """Make a reference to a file, whose media type may be missing."""
    return Media(str(kind or "application/octet-stream"), str(reference))


class TurnBuilder:
    """Builds the turns of one message of a program, in which calls and results of tools may alternate with text."""

    def __init__(self, role: str, key: str, created_at: Json, details: Record = EMPTY) -> None:
        self._role = role
        self._key = key
        self._created_at = created_at
        self._details = details
        self.texts: list[str] = []
        self.parts: list[Part] = []
        self.turns: list[Turn] = []

    @property
    def key(self) -> str:
        """The key of the next turn."""
        return f"{self._key}:{len(self.turns)}" if self.turns else self._key

    def finish(self) -> None:
        """Make a turn of the texts and parts so far."""
        text = "\n".join(self.texts)
        if text or self.parts:
            turn = make_turn(
                self._role,
                text,
                key=self.key,
                created_at=self._created_at,
                parts=self.parts,
                details=self._details,
            )
            self.turns.append(turn)
        self.texts.clear()
        self.parts.clear()

    def add_result(self, id: Json, output: Json, *, is_error: bool = False) -> None:
        """Finish the turn so far and add a turn with a tool's result, whose call is in an earlier turn."""
        self.finish()
        answer = make_result_parts(id, output, is_error=is_error)
        self.turns.append(make_turn("tool", key=self.key, created_at=self._created_at, parts=answer))


SAYS_NOTHING = "messages that say nothing"
"""The reason for leaving out messages without content."""


def has_content(turn: Turn) -> bool:
    """Return whether a message has a text, a part, or the answer to a call."""
    content = turn.get("content") or ""
    if isinstance(content, str):
        content = content.strip()
    return bool(content or turn.get("parts") or turn.get("tool_calls") or turn.get("tool_call_id"))


def join_call(previous: Turn, turn: Turn) -> Turn | None:
    """Join a turn that has only calls or reasoning to the assistant's turn before it, or return None.

    Some programs record the text and the calls of one answer as separate messages.
    """
    parts = turn.get("parts") or ()
    if not parts or turn.get("content"):
        return None
    if previous["role"] != "assistant" or turn["role"] != "assistant":
        return None
    if not all(isinstance(part, ToolCall | Reasoning) for part in parts):
        return None
    return {**previous, "parts": [*previous.get("parts", ()), *parts]}


# ── branches ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Path(NamedTuple):
    """The messages of one branch of a tree of messages."""

    #: The last message that it shares with an earlier branch, or None.
    shared: str | None
    nodes: list[str]


def split_branches(parents: Mapping[str, Any], current: str | None) -> Iterator[Path]:
    """Yield the branch that ends at the message `current`, then what each other branch has beyond the earlier ones.

    `parents` maps the id of each message to that of its parent, in the order of the file.
    """
    with_children = set(parents.values())
    leaves = [id for id in parents if id not in with_children]
    visited: set[str] = set()
    for leaf in [current, *leaves]:
        nodes: list[str] = []
        node: Any = leaf
        # Go up to the root or to an earlier branch. A file whose parents form a cycle ends here too.
        while node in parents and node not in visited:
            visited.add(node)
            nodes.append(node)
            node = parents[node]
        if nodes:
            nodes.reverse()
            yield Path(node if node in parents else None, nodes)
