"""Which conversation a request belongs to.

A *line* is one growing list of messages, and one session of ACMS. An *anchor* is the digest of a list up to a reply: a
list that holds it goes on from there. The tip of a line is claimed when a request starts, by compare-and-set, so that
of two requests from one tip one goes on and the other becomes a fork. All names are derived from digests: the same
request, sent again, finds the same line.

The records are values of `acms.kv` under a tenant of their own, in SQLite, PostgreSQL or memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from acms.errors import ConflictError
from acms.gateway.digests import digest_of_texts
from acms.kv import CompareAndSetKV, ListingKV, list_entries

__all__ = ["Line", "Lines", "Position"]

IDLE = timedelta(days=30)
"""How long anchors of an idle conversation are kept."""
_SHORT = 10
"""Hexadecimal digits of a digest in the name of a line: 40 bits are enough to distinguish the forks of one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a request stands: digests of its list, and what its client says about it."""

    namespace: str
    #: The client's name for its session, or "".
    hint: str
    #: Whether the client named the session in ACMS's own header.
    explicit: bool
    #: Digest of the list up to each element, and which elements are replies.
    chains: tuple[str, ...]
    replies: tuple[int, ...]
    #: Digests of what each element says.
    digests: tuple[str, ...]
    #: Digest of the first message of the user, and of the tools that are offered.
    first_message: str
    tools: str
    #: The answer that the provider keeps and that the list goes on from, or "".
    previous: str = ""

    @property
    def request(self) -> str:
        """Digest of the whole list."""
        return self.chains[-1]

    @property
    def session_key(self) -> str:
        """Key of the record of the client's session."""
        return f"session/{digest_of_texts(self.namespace, self.hint)}"

    def reply_key(self, digest: str) -> str:
        """Key of the record of a reply, by what it says."""
        return f"reply/{digest_of_texts(self.namespace, self.hint, digest)}"

    def response_key(self, id: str) -> str:
        """Key of the anchor of an answer that the provider keeps."""
        return f"anchor/{digest_of_texts('response', self.namespace, id)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The line of a request, and how it was found."""

    name: str
    reason: str
    #: The line it is forked from, and the key of the last message that both share; "" for none.
    parent: str = ""
    shared: str = ""


class Lines:
    """The records of all lines."""

    def __init__(self, kv: CompareAndSetKV) -> None:
        self._kv = kv

    async def begin(self, position: Position) -> Line | None:
        """Return the line (conversation) that a request continues, and reserve its end for this request.

        Return None for a side request, which is not stored.
        """
        key = f"request/{position.request}"
        entry = await self._kv.get(key)
        if entry is not None and not entry.data["answered"]:
            return _line_of_record(entry.data, "retry")  # the client got no answer, and sends it again
        if entry is not None:  # it got one, and asks for another
            return await self._begin_again(position, entry.data, entry.revision)
        line = await self._continue_line(position)
        line = line or await self._place_in_session(position)
        if line is None:
            return None
        try:
            await self._kv.compare_and_set(key, _record_of_line(line), expect=None)
        except ConflictError:
            return await self.begin(position)
        return line

    async def _begin_again(self, position: Position, record: Mapping[str, Any], revision: str) -> Line:
        """Return the line of a request that was answered before: a fork before the answer, or a new line."""
        short = digest_of_texts(position.request, record["answered"])[:_SHORT]
        has_beginning = bool(position.replies or position.previous)
        if has_beginning:
            line = Line(
                name=f"{_root_name(record['line'])}~{short}",
                reason="regenerate",
                parent=record["line"],
                shared=record["last"],
            )
        else:  # nothing stands before the answer that a fork could share
            base = _root_name(record["line"]) if position.hint else "chat"
            line = Line(name=f"{base}~{short}", reason="new")
        try:
            new_record = _record_of_line(line)
            await self._kv.compare_and_set(f"request/{position.request}", new_record, expect=revision)
        except ConflictError:
            line_of_other_request = await self.begin(position)
            assert line_of_other_request is not None
            return line_of_other_request
        return line

    async def _continue_line(self, position: Position) -> Line | None:
        """Return the line that ends with the newest known reply of the list, or a fork if another request continues it.

        Return None if no reply of the list is known.
        """
        keys = [f"anchor/{position.chains[index]}" for index in reversed(position.replies)]
        if position.previous:
            keys.append(position.response_key(position.previous))
        for key in keys:
            entry = await self._kv.get(key)
            if entry is None:
                continue
            claimed = await self._claim(key, position.request)
            if claimed["next"] == position.request:
                return Line(name=claimed["line"], reason="prefix")
            short = digest_of_texts(position.request)[:_SHORT]
            name = f"{_root_name(claimed['line'])}~{short}"
            return Line(name=name, reason="fork", parent=claimed["line"], shared=claimed["last"])
        return None

    async def _claim(self, key: str, request: str) -> Mapping[str, Any]:
        """Reserve an anchor (the end of a line) for a request unless another request has it; return the anchor."""
        while True:
            entry = await self._kv.get(key)
            assert entry is not None
            if entry.data["next"]:
                return entry.data
            claimed = {**entry.data, "next": request}
            try:
                await self._kv.compare_and_set(key, claimed, expect=entry.revision)
            except ConflictError:
                continue
            return claimed

    async def _place_in_session(self, position: Position) -> Line | None:
        """Return a line for a list without a known reply, by the client's name of its session; None for a side request.

        A request without tools, or with tools that no line of the session has, is a side request, such as one for a
        title, unless the client names its session explicitly. A list with the same tools and another beginning is a new
        line: the client replaced its messages by a summary.
        """
        if not position.hint:
            return Line(name=f"chat-{position.request[:_SHORT]}", reason="new")
        entry = await self._kv.get(position.session_key)
        lines = list(entry.data["lines"]) if entry is not None else []
        if not lines:
            new_line = Line(name=position.hint, reason="header")
        else:
            has_tools = any(line["tools"] for line in lines)
            if has_tools and not position.tools and not position.explicit:
                return None
            shared_line = await self._find_shared_line(position, lines)
            if shared_line:
                return Line(name=shared_line, reason="header")
            offers_same = any(line["tools"] == position.tools for line in lines)
            if not offers_same and not position.explicit:
                return None
            new_line = Line(name=f"{position.hint}~{position.request[:_SHORT]}", reason="reset")
        lines.append({"name": new_line.name, "first": position.first_message, "tools": position.tools})
        revision = None if entry is None else entry.revision
        try:
            await self._kv.compare_and_set(position.session_key, {"lines": lines}, expect=revision)
        except ConflictError:
            return await self._place_in_session(position)
        return new_line

    async def _find_shared_line(self, position: Position, lines: Sequence[Mapping[str, Any]]) -> str:
        """Return the name of the newest line with the same first message, or with one of the replies, or ""."""
        for line in reversed(lines):
            if line["first"] == position.first_message:
                return str(line["name"])
        for index in reversed(position.replies):
            entry = await self._kv.get(position.reply_key(position.digests[index]))
            if entry is not None:
                return str(entry.data["line"])
        return ""

    async def finish(
        self,
        position: Position,
        line: Line,
        answer: Position,
        *,
        answer_key: str,
        question_key: str,
        response_id: str = "",
    ) -> Line:
        """Record the answer to a request and return its line, which is a fork if another answer was recorded first.

        `answer` is the position of the list with the answer. `question_key` is the key of the newest message of the
        request, `answer_key` the key of the last message of the answer, and `response_id` the provider's id of it.
        """
        key = f"request/{position.request}"
        entry = await self._kv.get(key)
        if entry is not None and entry.data["answered"] not in ("", answer.request):
            short = digest_of_texts(answer.request)[:_SHORT]
            name = f"{_root_name(line.name)}~{short}"
            line = Line(name=name, reason="fork", parent=line.name, shared=question_key)
        anchor = {"line": line.name, "next": "", "last": answer_key}
        records = {
            key: {**_record_of_line(line), "answered": answer.request, "last": question_key},
            f"anchor/{answer.request}": anchor,
        }
        if position.hint:
            records[position.reply_key(answer.digests[-1])] = {"line": line.name}
        if response_id:
            records[position.response_key(response_id)] = anchor
        await asyncio.gather(*[self._kv.set(name, record) for name, record in records.items()])
        return line

    async def prune(self, now: datetime) -> int:
        """Delete the records of conversations that were idle for longer than `IDLE`; return their number."""
        assert isinstance(self._kv, ListingKV)
        idle_keys: list[str] = []
        for prefix in ("anchor/", "reply/", "request/", "trimming/"):
            async for entry in list_entries(self._kv, prefix):
                if entry.updated_at < now - IDLE:
                    idle_keys.append(entry.key)
        for key in idle_keys:
            await self._kv.delete(key)
        return len(idle_keys)


def _root_name(name: str) -> str:
    """Return the name of the line that a fork comes from in the end."""
    return name.partition("~")[0]


def _record_of_line(line: Line) -> dict[str, Any]:
    return {"line": line.name, "parent": line.parent, "shared": line.shared, "answered": "", "last": ""}


def _line_of_record(record: Mapping[str, Any], reason: str) -> Line:
    return Line(name=record["line"], reason=reason, parent=record["parent"], shared=record["shared"])
