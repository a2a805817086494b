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
from acms.log.active_entries import GONE
from acms.model import Entry, Origin
from acms.ports import StorageBackend
from acms.results import MessageReceipt, Synced
from acms.runtime.threads import in_thread

__all__ = ["Importer", "PlannedConversation", "Sessions", "StoredConversation", "survey_import"]

BATCH = 200
"""Messages that an import stores in one commit, and a thread reads at once: enough to make both cheap."""
BATCH_CHARACTERS = 1_000_000
"""Characters that an import stores in one commit: a batch is held in memory."""


class ImportSession(Protocol):
    """The methods of a session that an import calls."""

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
class StoredConversation:
    """The result of storing one conversation of a file: how many messages were read, stored and changed."""

    session: str
    title: str
    #: Number of messages in the file.
    read: int
    new: int = 0
    replaced: int = 0
    retracted: int = 0
    erased: int = 0

    def add(self, synced: Synced) -> None:
        """Add the counts of a sync."""
        self.new += len(synced.appended)
        self.replaced += len(synced.replaced)
        self.retracted += len(synced.retracted)
        self.erased += len(synced.erased)


@dataclass(slots=True)
class PlannedConversation:
    """A conversation of a file before it is stored, and how many messages it has there."""

    conversation: Conversation
    read: int = 0


async def survey_import(
    opened: Import, check: Callable[[Conversation], None] = lambda _: None
) -> dict[str, PlannedConversation]:
    """Check all messages of a file, without keeping them; return its conversations by id, with their message counts."""
    plans: dict[str, PlannedConversation] = {}
    async for piece in _read_pieces(opened):
        check(piece)
        if opened.whole and piece.id in plans:
            raise ValidationError(f"two conversations of the file are named {piece.id!r}", field="session")
        header = Conversation(id=piece.id, title=piece.title, fork=piece.fork)
        plans.setdefault(piece.id, PlannedConversation(header)).read += len(piece.messages)
    return plans


async def _read_pieces(opened: Import) -> AsyncIterator[Conversation]:
    """Read a file in a thread: in batches if a piece is one message, else one conversation at a time."""
    pieces = opened.pieces()
    size = 1 if opened.whole else BATCH
    while batch := await in_thread(lambda: list(islice(pieces, size))):
        for piece in batch:
            yield piece


@dataclass(slots=True)
class _Batch:
    """The messages of a conversation that are not stored yet, and what became of it so far."""

    stored: StoredConversation
    turns: list[Turn] = field(default_factory=list[Turn])
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
        #: Whether messages that a file no longer has are retracted.
        self._follows = follows
        #: Closes the session that is open. There is only one: a file may hold thousands of conversations.
        self._stack = AsyncExitStack()
        self._open: tuple[str, ImportSession] | None = None

    async def import_file(
        self,
        opened: Import,
        survey: Mapping[str, PlannedConversation],
        session: str | None,
        stem: str,
        report: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> list[StoredConversation]:
        """Store a file that was checked; return what became of each conversation."""
        names = self.name_sessions(survey, session, stem)
        total = sum(plan.read for plan in survey.values())
        batches: dict[str, _Batch] = {}
        stored_count = 0
        self._open = None
        async with self._stack:
            async for piece in _read_pieces(opened):
                if piece.id not in batches:
                    if piece.fork is not None and piece.fork.key is not None:
                        trunk = batches[piece.fork.conversation]
                        await self._flush(trunk, opened)
                        await self._create_fork(trunk, piece.fork.key, names[piece.id])
                    await self._open_session(names[piece.id])
                    plan = survey[piece.id]
                    batches[piece.id] = _Batch(
                        StoredConversation(names[piece.id], plan.conversation.title, plan.read)
                    )
                batch = batches[piece.id]
                await self._retract_messages(batch, piece.taken_back)
                await self._store(batch, piece.messages, opened)
                stored_count += len(piece.messages)
                report(stored_count, total)
            for batch in batches.values():
                await self._flush(batch, opened)
        self._names += [name for name in names.values() if name not in self._names]
        return [batch.stored for batch in batches.values()]

    def name_sessions(
        self, survey: Mapping[str, PlannedConversation], session: str | None, stem: str
    ) -> dict[str, str]:
        """Return the name of the session of each conversation, by conversation id.

        That is `session`, or the one that an earlier import made (whatever its title was then), or the conversation's
        own name, or `stem`, the name of the file. A fork is named after its trunk.
        """
        conversations = [plan.conversation for plan in survey.values()]
        trunks = [conversation for conversation in conversations if conversation.fork is None]
        if session is not None and len(trunks) > 1:
            raise ValidationError(
                f"names one session, and the file holds {len(trunks)} conversations",
                field="session",
                options=("leave it out: each conversation becomes a session",),
            )
        names: dict[str, str] = {}
        for trunk in trunks:
            names[trunk.id] = session or self._known_name(trunk) or trunk.name or stem
        for conversation in conversations:
            if conversation.fork is not None:
                names[conversation.id] = (
                    f"{names[conversation.fork.conversation]}-{conversation.fork.first[:8]}"
                )
        for name, count in Counter(names.values()).items():
            validation.validate_new_session_name(name, "session")
            if count > 1:
                raise ValidationError(f"two conversations of the file are named {name!r}", field="session")
        return names

    def _known_name(self, conversation: Conversation) -> str | None:
        if not conversation.title:
            return None
        return next((name for name in self._names if name.endswith(f"-{conversation.ending}")), None)

    async def _open_session(self, name: str) -> ImportSession:
        """Return a session; open it, and close the one that was open before, if it is another one."""
        if self._open is not None and self._open[0] == name:
            return self._open[1]
        self._open = None
        await self._stack.aclose()
        session = await self._stack.enter_async_context(self._sessions.session(name))
        self._open = name, session
        return session

    async def _create_fork(self, trunk: _Batch, key: str, name: str) -> None:
        """Create the session of a branch that shares the messages up to a key with another conversation.

        A session that an earlier import made is left unchanged.
        """
        if name in self._names:
            return
        session = await self._open_session(trunk.stored.session)
        shared = await session.get(key)
        # An edited message is found as its edit, later in the log: fork at the original.
        position = shared.replaces[0][0] if shared.replaces else shared.version
        fork = await session.fork(position, name)
        await fork.close()

    async def _retract_messages(self, batch: _Batch, keys: Sequence[str]) -> None:
        """Retract the messages under some keys, if an earlier import stored them."""
        if not keys or batch.stored.session not in self._names:
            return
        session = await self._open_session(batch.stored.session)
        for key in keys:
            try:
                await session.get(key)
            except (EntryNotFoundError, GoneError):
                continue
            context = await session.context_id()
            assert context is not None
            version_before = (await self._storage.head(context)).version
            retracted_at = await session.retract(key, reason=GONE)
            if retracted_at > version_before:  # else it was retracted already
                batch.stored.retracted += 1

    async def _store(self, batch: _Batch, turns: Sequence[Turn], opened: Import) -> None:
        """Add messages to a batch, which is written when it is full; a whole conversation is synced at once."""
        if opened.whole:
            session = await self._open_session(batch.stored.session)
            batch.stored.add(await session.sync(turns, gone="retract" if self._follows else "keep"))
            return
        for turn in turns:
            # A commit holds each key once, and the file has this one twice: for the same message or another one.
            if any(turn["key"] == waiting["key"] for waiting in batch.turns):
                await self._flush(batch, opened)
            batch.turns.append(turn)
            batch.characters += len(turn.get("content") or "")
            if len(batch.turns) == BATCH or batch.characters >= BATCH_CHARACTERS:
                await self._flush(batch, opened)

    async def _flush(self, batch: _Batch, opened: Import) -> None:
        """Store the waiting messages in one commit, or one by one when a stored message has one of their keys."""
        turns, batch.turns, batch.characters = batch.turns, [], 0
        if not turns:
            return
        session = await self._open_session(batch.stored.session)
        try:
            receipts = await session.ingest_many(turns)
        except IdempotencyMismatchError:
            for turn in turns:
                await _store_message(session, turn, batch.stored, opened.format)
            return
        batch.stored.new += sum(not receipt.repeated for receipt in receipts)


async def _store_message(session: ImportSession, turn: Turn, stored: StoredConversation, format: str) -> None:
    """Store one message; if its key is stored with another content, store it as an edit of that message."""
    try:
        (receipt,) = await session.ingest_many([turn])
    except IdempotencyMismatchError as error:
        entry = await session.get(turn["key"])
        same_content = entry.content == turn.get("content", "")
        same_trust = (entry.origin is Origin.EXTERNAL) == (turn.get("origin") == Origin.EXTERNAL)
        if same_content and not same_trust:
            option = "import it into another session, if it was imported with another --trust before"
            raise IdempotencyMismatchError(str(error), options=(option, *error.options)) from error
        if format == "chat":
            raise  # the key is made of the message's text, so the stored message is not an earlier version of it
        stored.add(await session.sync([turn]))
        return
    stored.new += not receipt.repeated
