"""Sessions of Gemini CLI: `~/.gemini/tmp/<project>/chats/session-*.json`, or `.jsonl` since 2026; and `logs.json`.

A message of the type gemini has its thoughts, its calls with their results, its model and its tokens. Lines of the
newer format rewrite messages (the same id again), take them back (`$rewindTo`), or replace all of them
(`$set.messages`). A first pass keeps the place in the file of each message that stands, a second one reads them.
`logs.json` has only what the user typed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import NamedTuple

from acms.branches.importers.conversation import (
    Conversation,
    as_mapping,
    as_mapping_list,
    make_result_parts,
    make_tool_call,
    make_turn,
    text_of,
)
from acms.branches.importers.documents import Span
from acms.branches.importers.shapes import has_value, is_list, is_text
from acms.branches.importers.source import Source
from acms.log.foreign import Turn
from acms.model import Json, Part, Reasoning

__all__ = ["SHAPES", "read_gemini_cli"]

SHAPES = (
    (is_text("sessionId"), has_value("projectHash"), is_list("messages")),
    (is_text("sessionId"), has_value("projectHash"), has_value("startTime")),
    (is_text("sessionId"), has_value("messageId"), is_text("message"), has_value("timestamp")),
)


class _Place(NamedTuple):
    """Where a message is in the file."""

    span: Span
    #: Of a message in a list of messages: its number in it, from 0.
    number: int | None = None


class _Session:
    """What a first pass finds in a session file: no message, only where the messages are."""

    def __init__(self) -> None:
        self.id: str | None = None
        #: By the digest of the id, in the order of the conversation.
        self.standing: dict[bytes, _Place] = {}
        self.taken_back: dict[bytes, _Place] = {}

    def add(self, id: str, place: _Place) -> None:
        """Add a message, or a rewritten one in the place of the one before."""
        digest = _digest_id(id)
        self.standing[digest] = place
        self.taken_back.pop(digest, None)

    def rewind(self, first: str) -> None:
        """Take back a message and all after it, as the program does; all of them when it is not known."""
        digests = list(self.standing)
        start = digests.index(_digest_id(first)) if _digest_id(first) in self.standing else 0
        for digest in digests[start:]:
            self.taken_back[digest] = self.standing.pop(digest)

    def replace_all(self, messages: Sequence[Mapping[str, Json]], span: Span) -> None:
        """Put the messages of a list in the place of all so far."""
        self.taken_back |= self.standing
        self.standing = {}
        for number, message in enumerate(messages):
            self.add(str(message.get("id")), _Place(span, number))


def read_gemini_cli(source: Source) -> Iterator[Conversation]:
    """Read the conversation of a session file, or those of a log of prompts, a message at a time."""
    session = _Session()
    yield from _find_messages(source, session)
    if session.id is None:
        return
    if session.taken_back:
        source.skip("messages that were taken back", len(session.taken_back))
        for message in _load_messages(source, session.taken_back.values()):
            keys = [str(turn["key"]) for turn in _translate_message(message, None)]
            yield Conversation(id=session.id, taken_back=keys)
    for message in _load_messages(source, session.standing.values()):
        yield Conversation(id=session.id, messages=list(_translate_message(message, source)))


def _find_messages(source: Source, session: _Session) -> Iterator[Conversation]:
    """Find the messages of a session file; yield those of a log of prompts."""
    for piece in source.split():
        record = as_mapping(piece.value)
        if "messageId" in record:
            yield _translate_prompt(record)
        elif piece.member == "messages" and piece.listed:
            session.add(str(record.get("id")), _Place(piece.span))
        elif piece.member == "sessionId":
            session.id = str(piece.value)
        elif piece.member is None:
            _take_line(session, record, piece.span)


def _translate_prompt(record: Mapping[str, Json]) -> Conversation:
    id, number = str(record["sessionId"]), str(record["messageId"])
    text, at = str(record.get("message")), record.get("timestamp")
    return Conversation(id=id, messages=[make_turn("user", text, key=f"{id}:{number}", at=at)])


def _take_line(session: _Session, record: Mapping[str, Json], span: Span) -> None:
    if "$rewindTo" in record:
        session.rewind(str(record["$rewindTo"]))
        return
    if "id" in record:
        session.add(str(record["id"]), _Place(span))
        return
    settings = as_mapping(record.get("$set", record))
    if "sessionId" in settings:
        session.id = str(settings["sessionId"])
    if listed := as_mapping_list(settings.get("messages")):
        session.replace_all(listed, span)


def _load_messages(source: Source, places: Iterable[_Place]) -> Iterator[Mapping[str, Json]]:
    """Read messages again; a line that holds a list of them is read once."""
    for span, group in groupby(places, key=lambda place: place.span):
        (value,) = source.load([span])
        record = as_mapping(value)
        settings = as_mapping(record.get("$set", record))
        for place in group:
            yield record if place.number is None else as_mapping_list(settings.get("messages"))[place.number]


def _digest_id(id: str) -> bytes:
    return blake2b(id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _translate_message(message: Mapping[str, Json], source: Source | None) -> Iterator[Turn]:
    """Translate a message; one of another type than those of the conversation is counted in the source."""
    kind, key, at = message.get("type"), str(message.get("id")), message.get("timestamp")
    text = text_of(message.get("content"))
    if kind == "user":
        yield make_turn("user", text, key=key, at=at)
        return
    if kind != "gemini":
        if source is not None:
            source.skip(f"messages of the type {kind}")
        return
    calls = as_mapping_list(message.get("toolCalls"))
    parts: list[Part] = []
    for thought in as_mapping_list(message.get("thoughts")):
        said = ": ".join(str(thought[name]) for name in ("subject", "description") if thought.get(name))
        parts.append(Reasoning(said))
    parts += [make_tool_call(one.get("id"), one.get("name"), one.get("args")) for one in calls]
    details = {"model": message.get("model"), "usage": message.get("tokens")}
    yield make_turn("assistant", text, key=key, at=at, parts=parts, details=details)
    for number, one in enumerate(calls, 1):
        failed = one.get("status") in ("error", "cancelled")
        answer = make_result_parts(one.get("id"), _read_output(one), is_error=failed)
        yield make_turn("tool", key=f"{key}:{number}", at=one.get("timestamp") or at, parts=answer)


def _read_output(call: Mapping[str, Json]) -> Json:
    """Return what a tool answered: its function responses, or what the user saw of it."""
    found = call.get("result")
    parts = found if isinstance(found, list) else [found]
    texts: list[str] = []
    for part in parts:
        response = as_mapping(as_mapping(as_mapping(part).get("functionResponse")).get("response"))
        if response:
            texts.append(text_of(response.get("output", response.get("error", dict(response)))))
        elif part:
            texts.append(text_of([part]))
    return "\n".join(texts) or call.get("resultDisplay")
