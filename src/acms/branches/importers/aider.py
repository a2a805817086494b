"""Histories of aider: `.aider.chat.history.md`, which grows by one part for every start of the program.

`####` begins a line of the user, `>` a line that the program printed, and everything else is the model's answer. The
program prints its model at the start and the tokens of an answer after it. Inside a block of code in an answer nothing
is a mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from acms.branches.importers.conversation import Conversation, make_turn
from acms.branches.importers.source import Source
from acms.log.provider_messages import Turn

BEGINS = "# aider chat started at "
_MODEL = re.compile(r"> (?:Main model|Model|Models): (\S+)")
_TOKENS = re.compile(r"> Tokens: ([\d.,]+k?) sent(?:.*?, ([\d.,]+k?) received)?")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")


def read_aider(source: Source) -> Iterator[Conversation]:
    """Read each start of the program as a conversation, a message at a time."""
    chat = _Chat("", "")
    for line in source.lines():
        line = line.rstrip("\r\n")
        if line.startswith(BEGINS) and not chat.fence:
            yield from chat.finish()
            start_time = line.removeprefix(BEGINS).strip()
            chat = _Chat(f"{source.stem}-{re.sub(r'[^0-9]+', '-', start_time)}", start_time)
        elif chat.id:
            yield from chat.take_line(line, source)
    yield from chat.finish()


class _Chat:
    """One start of the program while its lines arrive."""

    def __init__(self, id: str, start_time: str) -> None:
        self.id = id
        self._start_time = start_time
        self._model: str | None = None
        self._role = ""
        self._lines: list[str] = []
        #: The fence that begins the open block of code, or an empty text outside of one.
        self.fence = ""
        #: The newest message. It is held back, because the token usage of an answer comes after it.
        self._last: Turn | None = None
        self._count = 0

    def take_line(self, line: str, source: Source) -> Iterator[Conversation]:
        """Add a line; yield the message that is complete with it."""
        if self.fence:
            self._lines.append(line)
            if line.strip() == self.fence:
                self.fence = ""
            return
        if line.startswith("> "):  # a notice of the program, which ends the message before it
            yield from self._close_message()
            self._read_notice(line)
            source.skip("lines that the program printed")
            return
        role, text = "assistant", line
        if line.startswith("#### ") or line == "####":
            role, text = "user", line.removeprefix("####").removeprefix(" ").rstrip()
        elif not line.strip() and self._role != "assistant":  # a blank line begins no answer
            return
        if role != self._role:
            yield from self._close_message()
            self._role = role
        fence = _FENCE.match(text) if role == "assistant" else None
        if fence:
            self.fence = fence[1]
        self._lines.append(text)

    def finish(self) -> Iterator[Conversation]:
        """Yield the messages that were held back."""
        yield from self._close_message()
        if self._last is not None:
            yield Conversation(id=self.id, messages=[self._last])

    def _close_message(self) -> Iterator[Conversation]:
        """Complete a message and yield the one before it."""
        text = "\n".join(self._lines).strip("\n")
        role = self._role
        self._lines, self._role = [], ""
        if not text.strip():
            return
        if self._last is not None:
            yield Conversation(id=self.id, messages=[self._last])
        details = {"model": self._model if role == "assistant" else None}
        key = f"{self.id}:{self._count}"
        self._last = make_turn(role, text, key=key, created_at=self._start_time, details=details)
        self._count += 1

    def _read_notice(self, line: str) -> None:
        """Read the model and the token usage that the program prints."""
        model = _MODEL.match(line)
        if model:
            self._model = model[1]
        tokens = _TOKENS.match(line)
        if tokens and self._last is not None:
            usage = {"sent": tokens[1], "received": tokens[2]}
            self._last["metadata"] = {**self._last.get("metadata", {}), "usage": usage}
