"""Histories of aider: `.aider.chat.history.md`, which grows by one part for every start of the program.

`####` begins a line of the user, `>` a line that the program printed, and everything else is the model's answer. The
program prints its model at the start and the tokens of an answer after it. Inside a block of code in an answer nothing
is a mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from acms.branches.importers.conversation import Conversation, make_turn
from acms.branches.importers.source import Source
from acms.log.foreign import Turn

__all__ = ["BEGINS", "read_aider"]

BEGINS = "# aider chat started at "
_MODEL = re.compile(r"> (?:Main model|Model|Models): (\S+)")
_TOKENS = re.compile(r"> Tokens: ([\d.,]+k?) sent(?:.*?, ([\d.,]+k?) received)?")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")


@dataclass(slots=True)
class _Chat:
    """One start of the program while its lines arrive."""

    id: str = ""
    started: str = ""
    model: str | None = None
    role: str = ""
    lines: list[str] = field(default_factory=list[str])
    answer: Turn | None = None
    count: int = 0
    fence: str = ""


def read_aider(source: Source) -> Iterator[Conversation]:
    """Read each start of the program as a conversation, a message at a time."""
    chat = _Chat()
    for line in source.lines():
        line = line.rstrip("\r\n")
        if line.startswith(BEGINS) and not chat.fence:
            yield from _finish_chat(chat)
            started = line.removeprefix(BEGINS).strip()
            chat = _Chat(id=f"{source.stem}-{re.sub(r'[^0-9]+', '-', started)}", started=started)
        elif chat.id:
            yield from _take_line(chat, line, source)
    yield from _finish_chat(chat)


def _take_line(chat: _Chat, line: str, source: Source) -> Iterator[Conversation]:
    if chat.fence:
        chat.lines.append(line)
        if line.strip() == chat.fence:
            chat.fence = ""
        return
    if line.startswith("#### "):
        role, text = "user", line.removeprefix("#### ").rstrip()
    elif line == "####":
        role, text = "user", ""
    elif line.startswith("> "):
        yield from _close_message(chat)
        _read_notice(chat, line)
        source.skip("lines that the program printed")
        return
    elif chat.role == "user" and not line.strip():
        return
    else:
        role, text = "assistant", line
    if role != chat.role:
        if role == "assistant" and not text.strip():
            return
        yield from _close_message(chat)
        chat.role = role
    opens = _FENCE.match(text) if role == "assistant" else None
    if opens:
        chat.fence = opens[1]
    chat.lines.append(text)


def _read_notice(chat: _Chat, line: str) -> None:
    """Read the model and the token usage that the program prints."""
    if model := _MODEL.match(line):
        chat.model = model[1]
    if chat.answer is not None and (tokens := _TOKENS.match(line)):
        usage = {"sent": tokens[1], "received": tokens[2]}
        chat.answer["metadata"] = {**chat.answer.get("metadata", {}), "usage": usage}


def _close_message(chat: _Chat) -> Iterator[Conversation]:
    """End a message. An answer waits for its token usage, which comes after it."""
    text = "\n".join(chat.lines).strip("\n")
    role = chat.role
    chat.lines, chat.role = [], ""
    if not text.strip():
        return
    if chat.answer is not None:
        yield Conversation(id=chat.id, messages=[chat.answer])
    details = {"model": chat.model if role == "assistant" else None}
    key = f"{chat.id}:{chat.count}"
    chat.answer = make_turn(role, text, key=key, at=chat.started, details=details)
    chat.count += 1


def _finish_chat(chat: _Chat) -> Iterator[Conversation]:
    yield from _close_message(chat)
    if chat.answer is not None:
        yield Conversation(id=chat.id, messages=[chat.answer])
