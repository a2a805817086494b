"""Sessions of Gemini CLI: `~/.gemini/tmp/<project>/chats/session-*.json`, or `.jsonl` since 2026; and `logs.json`.

A message of the type gemini has its thoughts, its calls with their results, its model and its tokens. Lines of the
newer format rewrite messages (the same id again), take them back (`$rewindTo`), or replace all of them
(`$set.messages`). A first pass keeps the location in the file of each active message, a second one reads them.
`logs.json` has only what the user typed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from acms.branches.importers.conversation import (
    Conversation,
    Record,
    as_mapping,
    digest_text,
    make_result_parts,
    make_tool_call,
    make_turn,
    record_at,
    records_at,
    text_of,
)
from acms.branches.importers.documents import RecordSpan
from acms.branches.importers.shapes import has_value, is_list, is_text
from acms.branches.importers.source import Source
from acms.log.provider_messages import Turn
from acms.model import Json, Part, Reasoning

SHAPES = (
    (is_text("sessionId"), has_value("projectHash"), is_list("messages")),
    (is_text("sessionId"), has_value("projectHash"), has_value("startTime")),
    (is_text("sessionId"), has_value("messageId"), is_text("message"), has_value("timestamp")),
)


class _Location(NamedTuple):
    """The position of a message in the file."""

    span: RecordSpan
    #: Index of the message if the record is a list of messages, else None.
    number: int | None = None


class _Session:
    """The positions of the messages in a session file, which the first pass finds."""

    def __init__(self, id: str) -> None:
        self.id = id
        #: By the digest of the id, in the order of the conversation.
        self.active: dict[bytes, _Location] = {}
        self.taken_back: dict[bytes, _Location] = {}

    def add(self, message: Record, location: _Location) -> None:
        """Add a message; a message with a known id replaces the earlier one."""
        digest = digest_text(_id_of_message(message, location))
        self.active[digest] = location
        self.taken_back.pop(digest, None)

    def rewind(self, first_id: str) -> None:
        """Take back a message and all after it, or all messages if it is not known, as the program does."""
        digests = list(self.active)
        first_digest = digest_text(first_id)
        start = digests.index(first_digest) if first_digest in self.active else 0
        for digest in digests[start:]:
            self.taken_back[digest] = self.active.pop(digest)

    def replace_all(self, messages: Sequence[Record], span: RecordSpan) -> None:
        """Replace all messages so far by those of a list."""
        self.taken_back |= self.active
        self.active = {}
        for number, message in enumerate(messages):
            self.add(message, _Location(span, number))


def read_gemini_cli(source: Source) -> Iterator[Conversation]:
    """Read the conversation of a session file, or those of a log of prompts, a message at a time.

    A conversation without an id is named after the file, a message without one after its position.
    """
    session = _Session(source.stem)
    yield from _find_messages(source, session)
    if session.taken_back:
        source.skip("messages that were taken back", len(session.taken_back))
    for message, id in _load_messages(source, session.taken_back.values()):
        keys = [str(turn["key"]) for turn in _translate_message(message, id)]
        yield Conversation(id=session.id, taken_back=keys)
    for message, id in _load_messages(source, session.active.values()):
        turns = _translate_message(message, id)
        if not turns:
            source.skip(f"messages of the type {message.get('type')}")
        yield Conversation(id=session.id, messages=turns)


def _find_messages(source: Source, session: _Session) -> Iterator[Conversation]:
    """Find the messages of a session file; yield those of a log of prompts."""
    for piece in source.split():
        record = as_mapping(piece.value)
        if "messageId" in record:
            yield _translate_prompt(record, source.stem)
        elif piece.member == "messages" and piece.is_element:
            session.add(record, _Location(piece.span))
        elif piece.member == "sessionId":
            session.id = str(piece.value or session.id)
        elif piece.member is None:
            _take_line(session, record, piece.span)


def _translate_prompt(record: Record, stem: str) -> Conversation:
    id = str(record.get("sessionId") or stem)
    text, created_at = str(record.get("message")), record.get("timestamp")
    return Conversation(
        id=id, messages=[make_turn("user", text, key=f"{id}:{record['messageId']}", created_at=created_at)]
    )


def _take_line(session: _Session, record: Record, span: RecordSpan) -> None:
    """Apply a line of a session file: a rewind, a message, or new settings, which may replace all messages."""
    if "$rewindTo" in record:
        session.rewind(str(record["$rewindTo"]))
        return
    if "id" in record:
        session.add(record, _Location(span))
        return
    settings = as_mapping(record.get("$set", record))
    session.id = str(settings.get("sessionId") or session.id)
    messages = records_at(settings, "messages")
    if messages:
        session.replace_all(messages, span)


def _load_messages(source: Source, locations: Iterable[_Location]) -> Iterator[tuple[Record, str]]:
    """Read messages again, each with its id; a line that holds a list of them is read once."""
    for span, group in groupby(locations, key=lambda location: location.span):
        (value,) = source.load([span])
        record = as_mapping(value)
        settings = as_mapping(record.get("$set", record))
        for location in group:
            message = record
            if location.number is not None:
                message = records_at(settings, "messages")[location.number]
            yield message, _id_of_message(message, location)


def _id_of_message(message: Record, location: _Location) -> str:
    number = location.span.number if location.number is None else location.number
    return str(message.get("id") or number)


def _translate_message(message: Record, key: str) -> list[Turn]:
    """Translate a message; return nothing for one that is no part of the conversation."""
    created_at, text = message.get("timestamp"), text_of(message.get("content"))
    if message.get("type") == "user":
        return [make_turn("user", text, key=key, created_at=created_at)]
    if message.get("type") != "gemini":
        return []
    parts: list[Part] = []
    for thought in records_at(message, "thoughts"):
        lines = [str(thought[name]) for name in ("subject", "description") if thought.get(name)]
        parts.append(Reasoning(": ".join(lines)))
    results: list[Turn] = []
    for number, call in enumerate(records_at(message, "toolCalls"), 1):
        result_key = f"{key}:{number}"
        id = call.get("id") or result_key
        parts.append(make_tool_call(id, call.get("name"), call.get("args")))
        is_error = call.get("status") in ("error", "cancelled")
        answer = make_result_parts(id, _read_output(call), is_error=is_error)
        results.append(
            make_turn("tool", key=result_key, created_at=call.get("timestamp") or created_at, parts=answer)
        )
    details = {"model": message.get("model"), "usage": message.get("tokens")}
    return [
        make_turn("assistant", text, key=key, created_at=created_at, parts=parts, details=details),
        *results,
    ]


def _read_output(call: Record) -> Json:
    """Return the output of a tool: its function responses, or else the text shown to the user."""
    result = call.get("result")
    texts: list[str] = []
    for part in result if isinstance(result, list) else [result]:
        response = record_at(part, "functionResponse.response")
        if response:
            texts.append(text_of(response.get("output", response.get("error", dict(response)))))
        elif part:
            texts.append(text_of([part]))
    return "\n".join(texts) or call.get("resultDisplay")
