"""Sessions of Gemini CLI: `~/.gemini/tmp/<project>/chats/session-*.json`, or `.jsonl` since 2026; and `logs.json`.

A message of the type gemini has its thoughts, its calls with their results, its model and its tokens. Lines of the
newer format rewrite messages (the same id again) and take them back (`$rewindTo`), so such a file is held as a whole,
as the program itself does it. `logs.json` has only what the user typed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from acms.branches.importers.conversation import (
    Conversation,
    call,
    make_turn,
    mapping,
    mappings,
    result,
    text_of,
)
from acms.branches.importers.shapes import has, is_list, is_text
from acms.branches.importers.source import Source
from acms.log.foreign import Turn
from acms.model import Json, Part, Reasoning

__all__ = ["SHAPES", "read"]

SHAPES = (
    (is_text("sessionId"), has("projectHash"), is_list("messages")),
    (is_text("sessionId"), has("projectHash"), has("startTime")),
    (is_text("sessionId"), has("messageId"), is_text("message"), has("timestamp")),
)


def read(source: Source) -> Iterator[Conversation]:
    """Read the conversation of a session file, or those of a log of prompts."""
    prompts: dict[str, list[Turn]] = {}
    session: dict[str, Any] = {}
    messages: dict[str, Mapping[str, Json]] = {}
    for _, value in source.records():
        record = mapping(value)
        if "messageId" in record:
            id, number = str(record["sessionId"]), str(record["messageId"])
            turn = make_turn(
                "user", str(record.get("message")), key=f"{id}:{number}", at=record.get("timestamp")
            )
            prompts.setdefault(id, []).append(turn)
        elif "$rewindTo" in record:
            _rewind(messages, str(record["$rewindTo"]), source)
        elif "$set" in record:
            session |= mapping(record["$set"])
        elif "sessionId" in record:
            session |= record
        elif "id" in record:
            messages[str(record["id"])] = record
    for id, turns in prompts.items():
        yield Conversation(id=id, messages=turns)
    if session:
        listed = mappings(session.get("messages")) or list(messages.values())
        turns = [turn for message in listed for turn in _turns(message, source)]
        yield Conversation(id=str(session.get("sessionId")), messages=turns)


def _rewind(messages: dict[str, Mapping[str, Json]], first: str, source: Source) -> None:
    """Take back a message and all after it, as the program does; all of them when it is not known."""
    ids = list(messages)
    gone = ids[ids.index(first) :] if first in messages else ids
    for id in gone:
        del messages[id]
    if gone:
        source.skip("messages that were taken back", len(gone))


def _turns(message: Mapping[str, Json], source: Source) -> Iterator[Turn]:
    kind, key, at = message.get("type"), str(message.get("id")), message.get("timestamp")
    text = text_of(message.get("content"))
    if kind == "user":
        yield make_turn("user", text, key=key, at=at)
        return
    if kind != "gemini":
        source.skip(f"messages of the type {kind}")
        return
    calls = mappings(message.get("toolCalls"))
    parts: list[Part] = []
    for thought in mappings(message.get("thoughts")):
        said = ": ".join(str(thought[name]) for name in ("subject", "description") if thought.get(name))
        parts.append(Reasoning(said))
    parts += [call(one.get("id"), one.get("name"), one.get("args")) for one in calls]
    details = {"model": message.get("model"), "usage": message.get("tokens")}
    yield make_turn("assistant", text, key=key, at=at, parts=parts, details=details)
    for number, one in enumerate(calls, 1):
        failed = one.get("status") in ("error", "cancelled")
        answer = result(one.get("id"), _output(one), is_error=failed)
        yield make_turn("tool", key=f"{key}:{number}", at=one.get("timestamp") or at, parts=answer)


def _output(call: Mapping[str, Json]) -> Json:
    """Return what a tool answered: its function responses, or what the user saw of it."""
    found = call.get("result")
    parts = found if isinstance(found, list) else [found]
    texts: list[str] = []
    for part in parts:
        response = mapping(mapping(mapping(part).get("functionResponse")).get("response"))
        if response:
            texts.append(text_of(response.get("output", response.get("error", dict(response)))))
        elif part:
            texts.append(text_of([part]))
    return "\n".join(texts) or call.get("resultDisplay")
