"""Storing the conversations of a file: each becomes a session, each branch of one a fork.

A transcript is stored in batches under the keys of its messages, a conversation that comes whole by one `sync`. So the
same import again stores nothing, and one that was interrupted is continued by running it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, Protocol

from acms.branches.importers import Conversation, Import, Turn
from acms.errors import EntryNotFoundError, GoneError, IdempotencyMismatchError, ValidationError
from acms.log import validation
from acms.log.in_force import GONE
from acms.model import Entry, Origin
from acms.ports import StorageBackend
from acms.results import MessageReceipt, Synced
from acms.runtime.threads import in_thread

__all__ = ["Importer", "Plan", "Sessions", "Stored", "survey_import"]

BATCH = 200
"""Messages that an import stores in one commit."""
BATCH_CHARACTERS = 1_000_000
"""Characters that an import stores in one commit: a batch is held in memory."""
_READ_AT_ONCE = 64
"""Messages that a thread reads before the event loop goes on."""


class ImportSession(Protocol):
    """What an import needs of a session."""

    async def context_id(self) -> str | None: ...

    async def get(self, id: str) -> Entry: ...

    async def ingest_many(self, messages: Sequence[Mapping[str, Any]]) -> list[MessageReceipt]: ...

    async def sync(
        self, messages: Sequence[Mapping[str, Any]], *, gone: Literal["keep", "retract"] = "keep"
    ) -> Synced: ...

    async def retract(self, message_id: str, *, reason: str = "retracted") -> int: ...

    async def fork(self, at: int, session_id: str) -> ImportSession: ...

    async def close(self) -> None: ...


class Sessions(Protocol):
    """The sessions that an import writes to."""

    def session(self, name: str) -> AbstractAsyncContextManager[ImportSession]:
        """Open a session by its name; its first message begins one that is not there."""
        ...


@dataclass(slots=True)
class Stored:
    """What became of a conversation of a file."""

    session: str
    title: str
    #: Messages that the file has.
    read: int
    new: int = 0
    replaced: int = 0
    retracted: int = 0
    erased: int = 0

    def add(self, synced: Synced) -> None:
        """Count what a sync did."""
        self.new += len(synced.appended)
        self.replaced += len(synced.replaced)
        self.retracted += len(synced.retracted)
        self.erased += len(synced.erased)


@dataclass(slots=True)
class Plan:
    """A conversation of a file before it is stored, and how many messages it has there."""

    conversation: Conversation
    read: int = 0


async def survey_import(
    opened: Import, check: Callable[[Conversation], None] = lambda _: None
) -> dict[str, Plan]:
    """Check all messages of a file, holding none; return its conversations by their ids."""
    found: dict[str, Plan] = {}
    async for piece in _read_pieces(opened):
        check(piece)
        if opened.whole and piece.id in found:
            raise ValidationError(f"two conversations of the file are named {piece.id!r}", field="session")
        header = Conversation(id=piece.id, title=piece.title, fork=piece.fork)
        found.setdefault(piece.id, Plan(header)).read += len(piece.messages)
    return found


async def _read_pieces(opened: Import) -> AsyncIterator[Conversation]:
    """Read a file in a thread: single messages by the batch, whole conversations one by one."""
    pieces = opened.pieces()
    size = 1 if opened.whole else _READ_AT_ONCE
    while batch := await in_thread(lambda: list(islice(pieces, size))):
        for piece in batch:
            yield piece


@dataclass(slots=True)
class _Open:
    """A session that is written to, and the messages that wait for their commit."""

    session: ImportSession
    stored: Stored
    waiting: list[Turn] = field(default_factory=list[Turn])
    characters: int = 0


class Importer:
    """Stores files in a namespace."""

    def __init__(
        self, storage: StorageBackend, sessions: Sessions, names: Sequence[str], *, follows: bool
    ) -> None:
        self._storage = storage
        self._sessions = sessions
        #: Sessions that an earlier import may have made.
        self._names = list(names)
        #: Whether what a file no longer has is retracted.
        self._follows = follows

    async def import_file(
        self,
        opened: Import,
        survey: Mapping[str, Plan],
        session: str | None,
        stem: str,
        report: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> list[Stored]:
        """Store a file that was checked; return what became of each conversation."""
        names = self.name_sessions(survey, session, stem)
        total = sum(plan.read for plan in survey.values())
        sessions: dict[str, _Open] = {}
        done = 0
        async with AsyncExitStack() as stack:
            async for piece in _read_pieces(opened):
                one = sessions.get(piece.id)
                if one is None:
                    if piece.fork is not None and piece.fork.key is not None:
                        trunk = sessions[piece.fork.conversation]
                        await _flush_turns(trunk, opened)
                        await self._make_fork(trunk.session, piece.fork.key, names[piece.id])
                    log = await stack.enter_async_context(self._sessions.session(names[piece.id]))
                    plan = survey[piece.id]
                    one = _Open(log, Stored(names[piece.id], plan.conversation.title, plan.read))
                    sessions[piece.id] = one
                await self._take_back(one, piece.taken_back)
                await self._store(one, piece.messages, opened)
                done += len(piece.messages)
                report(done, total)
            for one in sessions.values():
                await _flush_turns(one, opened)
        self._names += [name for name in names.values() if name not in self._names]
        return [one.stored for one in sessions.values()]

    def name_sessions(self, survey: Mapping[str, Plan], session: str | None, stem: str) -> dict[str, str]:
        """Return the session of each conversation: the one that an earlier import made, whatever its title was then."""
        plans = [plan.conversation for plan in survey.values()]
        trunks = [one for one in plans if one.fork is None]
        if session is not None and len(trunks) > 1:
            raise ValidationError(
                f"names one session, and the file holds {len(trunks)} conversations",
                field="session",
                options=("leave it out: each conversation becomes a session",),
            )
        names: dict[str, str] = {}
        for one in sorted(plans, key=lambda one: one.fork is not None):
            if one.fork is not None:
                names[one.id] = f"{names[one.fork.conversation]}-{one.fork.first[:8]}"
            else:
                names[one.id] = session or self._known_name(one) or one.name or stem
            validation.session_name(names[one.id], "session")
        for name, count in Counter(names.values()).items():
            if count > 1:
                raise ValidationError(f"two conversations of the file are named {name!r}", field="session")
        return names

    def _known_name(self, one: Conversation) -> str | None:
        if not one.title:
            return None
        return next((name for name in self._names if name.endswith(f"-{one.ending}")), None)

    async def _make_fork(self, trunk: ImportSession, key: str, name: str) -> None:
        """Make the session of a branch that shares the messages up to a key with another conversation."""
        if name in self._names:
            return
        shared = await trunk.get(key)
        version = shared.replaces[0][0] if shared.replaces else shared.version
        await (await trunk.fork(version, name)).close()

    async def _take_back(self, one: _Open, keys: Sequence[str]) -> None:
        """Retract messages that an earlier import stored."""
        if one.stored.session not in self._names:
            return
        for key in keys:
            try:
                await one.session.get(key)
            except (EntryNotFoundError, GoneError):
                continue
            context = await one.session.context_id()
            assert context is not None
            before = (await self._storage.head(context)).version
            one.stored.retracted += await one.session.retract(key, reason=GONE) > before

    async def _store(self, one: _Open, turns: Sequence[Turn], opened: Import) -> None:
        if opened.whole:
            one.stored.add(await one.session.sync(turns, gone="retract" if self._follows else "keep"))
            return
        for turn in turns:
            if any(turn["key"] == waiting["key"] for waiting in one.waiting):
                await _flush_turns(
                    one, opened
                )  # the file says it again, or says something else under its key
            one.waiting.append(turn)
            one.characters += len(turn.get("content") or "")
            if len(one.waiting) == BATCH or one.characters >= BATCH_CHARACTERS:
                await _flush_turns(one, opened)


async def _flush_turns(one: _Open, opened: Import) -> None:
    """Store the messages that wait, in one commit; message by message when some of them are known."""
    waiting, one.waiting, one.characters = one.waiting, [], 0
    if not waiting:
        return
    try:
        receipts = await one.session.ingest_many(waiting)
    except IdempotencyMismatchError:
        for turn in waiting:
            await _store_alone(one, turn, opened)
        return
    one.stored.new += sum(not receipt.repeated for receipt in receipts)


async def _store_alone(one: _Open, turn: Turn, opened: Import) -> None:
    """Store one message, or the edit of one that says something else than when it was stored."""
    try:
        (receipt,) = await one.session.ingest_many([turn])
    except IdempotencyMismatchError as error:
        stored = await one.session.get(turn["key"])
        says_the_same = stored.content == turn.get("content", "")
        was_external = stored.origin is Origin.EXTERNAL
        if says_the_same and was_external != (turn.get("origin") == Origin.EXTERNAL):
            option = "import it into another session, if it was imported with another --trust before"
            raise IdempotencyMismatchError(str(error), options=(option, *error.options)) from error
        if opened.format == "chat":
            raise  # a key made of the message's own text: another message has it
        one.stored.add(await one.session.sync([turn]))
        return
    one.stored.new += not receipt.repeated
