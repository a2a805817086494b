"""The verbs that read a session, at the head of its log or at a past version."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from acms import assembly, handles
from acms.config import ACMSConfig
from acms.core import validate
from acms.core.chain import episode_id
from acms.core.episodes import Rules, episodes
from acms.core.history import Cover, preview
from acms.core.markers import freeze
from acms.core.plan import TextFrame
from acms.errors import (
    ConfigurationError,
    EntryNotFoundError,
    SessionNotFoundError,
    ValidationError,
)
from acms.events import Event, Planned
from acms.logs import correlation_id, log, logger
from acms.model import ContextDraft, Entry, Json, Kind, Role
from acms.projections import ContextItems, Episode, HistoryEntry, HistoryPage, SessionStats
from acms.protocols import Embedder, StorageBackend, TokenCounter
from acms.providers.tokens import default_counter
from acms.storage.cached import CachedStorage

if TYPE_CHECKING:
    from acms.embedding import Embedding
    from acms.indexing import Indexes

__all__ = ["SharedSession", "View"]


class _Named:
    """A token counter without a name, under its class name (seed-shaped counters)."""

    def __init__(self, counter: Any) -> None:
        self.name = type(counter).__name__
        self.count = counter.count


class SharedSession:
    """What a session and its views have in common."""

    def __init__(
        self,
        session_id: str,
        storage: StorageBackend,
        token_counter: TokenCounter | None,
        config: ACMSConfig | None,
        namespace: str,
        embedder: Embedder | None = None,
    ) -> None:
        self.session_id = validate.name(session_id, "session_id")
        self.namespace = validate.name(namespace, "namespace")
        self.config = config or ACMSConfig()
        self.handle = storage
        self.storage = _in_front(storage, self.config)
        counter: Any = token_counter if token_counter is not None else default_counter()
        if isinstance(counter, str | bytes | list | tuple) or not callable(getattr(counter, "count", None)):
            raise ConfigurationError("token_counter must be an object with a method count(text)")
        self.counter: TokenCounter = (
            counter if isinstance(getattr(counter, "name", None), str) else _Named(counter)
        )
        self.frame = TextFrame(self.counter)
        self.patterns = freeze(self.config.marker_patterns)
        self.rules: Rules = self.config.episodes.rules()
        self._embedder = None if embedder is None else _usable(embedder)
        self._embedding: Embedding | None = None
        self._indexes: Indexes | None = None
        self.context_id: str | None = None
        self._creating: asyncio.Future[str] | None = None
        self.retained = False

    @property
    def indexes(self) -> Indexes:
        """Return the indexes of the storage handle, the same for all its sessions; the first one sets their size."""
        if self._indexes is not None:
            return self._indexes
        from acms.indexing import Indexes

        shared = handles.shared(self.handle)
        if shared.indexes is None:
            shared.indexes = Indexes(self.storage, self.config.cache.index_bytes)
        self._indexes = found = shared.indexes
        return found

    @property
    def embedding(self) -> Embedding | None:
        """Return the session's embedder at work on its storage handle; None without one."""
        if self._embedding is None and self._embedder is not None:
            from acms.embedding import Embedding

            self._embedding = Embedding(self.handle, self._embedder)
        return self._embedding

    async def settle(self) -> None:
        """Hand over what waits to be stored, and give up what is done in the background."""
        indexes = handles.shared(self.handle).indexes
        if indexes is not None:
            await indexes.flush()
        if self._embedding is not None:
            await self._embedding.stop()

    def reader(self) -> assembly.Reader:
        """Return what reads need."""
        return assembly.Reader(self.storage, self.indexes, self.embedding, self.counter, self.frame)

    async def find(self) -> str | None:
        """Return the id of the session's context; None when nothing was ever written."""
        self.retain()
        if self.context_id is None:
            try:
                context = await self.storage.context(self.session_id, namespace=self.namespace)
            except SessionNotFoundError:
                return None
            self._check(context.counter)
            self.context_id = context.id
        return self.context_id

    async def ensure(self) -> str:
        """Return the id of the session's context, creating it on the first write."""
        found = await self.find()
        if found is None:
            if self._creating is None:
                self._creating = asyncio.ensure_future(self._create())
            creating = self._creating
            try:
                found = await asyncio.shield(creating)  # all who wait go on in the order in which they came
            finally:
                if creating.done() and self._creating is creating:
                    self._creating = None
        return found

    async def _create(self) -> str:
        context = await self.storage.create(
            ContextDraft(
                key=self.session_id,
                namespace=self.namespace,
                counter=self.counter.name,
                created_at=datetime.now(UTC),
            )
        )
        self._check(context.counter)
        self.context_id = context.id
        return context.id

    def _check(self, name: str) -> None:
        if name != self.counter.name:
            raise ConfigurationError(
                f"the messages of {self.session_id!r} were counted with {name!r}, not {self.counter.name!r}",
                options=(f"open the session with a token counter named {name!r}",),
            )

    def retain(self) -> None:
        """Count as a user of the storage handle, once."""
        if not self.retained:
            handles.retain(self.handle)
            self.retained = True

    def tell(self, event: Event) -> None:
        """Give an event to whoever listens; a listener that fails changes nothing."""
        if self.config.on_event is None:
            return
        try:
            self.config.on_event(event)
        except Exception:
            about = {"acms": {"told": type(event).__name__}, "correlation_id": correlation_id.get()}
            logger.warning("on_event_failed", exc_info=True, extra=about)

    def show(self, verb: str, items: ContextItems) -> ContextItems:
        """Report a plan."""
        if self.config.on_event is not None:
            event = Planned(
                context_id=items.context,
                verb=verb,
                version=items.version,
                budget=items.budget,
                used_tokens=items.tokens,
                items=len(items),
                omitted=items.ledger.omitted,
                warnings=items.ledger.warnings,
            )
            self.tell(event)
        if items.ledger.warnings:
            log(
                logging.WARNING,
                "plan_warning",
                context=items.context,
                verb=verb,
                warnings=items.ledger.warnings,
            )
        log(
            logging.DEBUG,
            verb,
            context=items.context,
            version=items.version,
            tokens=items.tokens,
            items=len(items),
        )
        return items


def _usable(embedder: Any) -> Embedder:
    dimension = getattr(embedder, "dimension", None)
    if isinstance(dimension, bool) or not isinstance(dimension, int) or dimension < 1:
        raise ConfigurationError("embedder.dimension must be a positive whole number")
    if isinstance(embedder, type) or not callable(getattr(embedder, "embed", None)):
        raise ConfigurationError("embedder must be an object with an async method embed(texts)")
    found: Embedder = embedder
    return found


def _in_front(storage: StorageBackend, config: ACMSConfig) -> StorageBackend:
    """Return the handle behind its one cache, which all sessions on it share; the first one sets its size."""
    if not config.cache.enabled or isinstance(storage, CachedStorage):
        return storage
    shared = handles.shared(storage)
    if shared.front is None:
        shared.front = CachedStorage(storage, max_bytes=config.cache.max_bytes)
    return shared.front


class View:
    """A session as it was at a version; it reads and cannot write."""

    def __init__(self, shared: SharedSession, at: int | None) -> None:
        self._shared = shared
        self._at = at

    @property
    def session_id(self) -> str:
        """The caller's name for the conversation."""
        return self._shared.session_id

    async def recall(
        self,
        query: str,
        *,
        token_budget: int | None = None,
        include_current_episode: bool = True,
        min_relevance: float = 0.0,
        exclude: Iterable[str] = (),
        scope: str = "session",
    ) -> ContextItems:
        """Return what the model should see for a query, within a hard token budget.

        Order: past messages and summaries, then the current episode, each oldest first; the rank is `item.score`.
        The latest message is always in, cut and flagged if it must be, unless it is the query itself, is excluded, or
        the current episode was not asked for. `exclude` names entry ids. A tool call and its answers come together.
        With `scope="namespace"` other sessions of the namespace are asked too: those whose facts, summaries or marked
        messages answer best; what they say comes first.
        Raises `ValidationError` for a budget or relevance that makes no sense.
        """
        shared = self._shared
        budget = validate.budget(shared.config.recall.token_budget if token_budget is None else token_budget)
        if isinstance(exclude, str):
            raise ValidationError("must be a list of ids, not a string", field="exclude")
        asked = assembly.Recall(
            query=validate.text(query, "query"),
            budget=budget,
            include_current=include_current_episode,
            min_relevance=validate.fraction(min_relevance, "min_relevance"),
            exclude=frozenset(exclude),
            floor=shared.config.recall.current_episode_budget_pct,
            weights=shared.config.marker_weights,
            namespace=shared.namespace if scope == "namespace" else None,
        )
        if scope not in ("session", "namespace"):
            raise ValidationError(f"{scope!r} is not session or namespace", field="scope")
        if scope == "namespace" and self._at is not None:
            raise ValidationError("a past version of one session has no namespace around it", field="scope")
        context = await shared.find()
        if context is None and asked.namespace is None:
            return shared.show("recall", self._blank(asked.budget))
        return shared.show("recall", await assembly.recall(shared.reader(), context, self._at, asked))

    async def window(self, budget: int, *, keep: Collection[str | Role] = ()) -> ContextItems:
        """Return the newest contiguous messages in force within a budget, oldest first, tool groups whole.

        The newest one is always in, cut if it alone is larger than the budget. `keep` names roles, such as "system",
        whose leading run of messages stays in front.
        """
        shared = self._shared
        budget = validate.budget(budget, "budget")
        roles = [validate.choice(role, Role, "keep") for role in keep]
        context = await shared.find()
        if context is None:
            return shared.show("window", self._blank(budget))
        if roles:
            gathered = await assembly.gather_all(shared.storage, context, self._at)
        else:
            gathered = await assembly.gather_newest(shared.storage, context, self._at, shared.frame, budget)
        return shared.show(
            "window", assembly.plan_window(gathered, budget, shared.counter, shared.frame, roles)
        )

    async def messages(self, query: str, *, budget: int) -> list[dict[str, Json]]:
        """Return chat messages ready for a provider: the window, and what the past says about the query.

        The whole history when it fits. Otherwise leading system messages, then the newest messages, with recalled text
        as delimited data right before the newest user message; nothing twice, every tool call followed by its answers.
        The cost (`acms.core.chat.tokens`) never exceeds the budget; `TokenBudgetExceededError` when the system
        messages and a newest tool call do not fit.
        """
        shared = self._shared
        asked = assembly.Recall(
            query=validate.text(query, "query"),
            budget=validate.budget(budget, "budget"),
            weights=shared.config.marker_weights,
        )
        context = await shared.find()
        if context is None:
            shared.show("messages", self._blank(asked.budget))
            return []
        from acms.chats import chat_plan  # the first prompt loads it

        plan = await chat_plan(shared.reader(), context, self._at, asked)
        shared.show("messages", plan.items)
        return plan.messages

    async def entries(self, newest: int | None = None) -> list[Entry]:
        """Return the messages and summaries in force as they are read, oldest first; `newest` keeps the last n.

        Nothing is left out or cut: half-answered tool calls are there too. Edits stand at their old place.
        """
        shared = self._shared
        if newest is not None:
            newest = validate.whole(newest, "newest")
        context = await shared.find()
        if context is None:
            self._nothing()
            return []
        return await assembly.in_force(shared.storage, context, self._at, newest)

    async def history(self, *, limit: int = 50, after: int = 0) -> HistoryPage:
        """Return a page of the log, oldest first: entries with a version above `after`."""
        shared = self._shared
        limit = validate.whole(limit, "limit", least=1, most=validate.PAGE)
        after = validate.whole(after, "after")
        context = await shared.find()
        if context is None:
            self._nothing()
            return HistoryPage(entries=())
        head = await shared.storage.head(context)
        version = assembly.version_of(head, self._at)
        entries = await shared.storage.read(context, at=version, after=after, limit=limit + 1)
        cover = Cover(await shared.storage.read(context, at=version, replacing=True) if head.rewrites else [])
        page = [
            HistoryEntry(
                id=entry.id,
                version=entry.version,
                position=entry.position,
                kind=entry.kind,
                role=entry.role,
                preview=preview(entry.content),
                tokens=entry.tokens,
                created_at=entry.created_at,
                state=entry.state,
                in_force=cover.by(entry.version) is None,
            )
            for entry in entries[:limit]
        ]
        return HistoryPage(entries=tuple(page), next_after=page[-1].version if len(entries) > limit else None)

    async def episodes(self, status: str | None = None) -> list[Episode]:
        """List the episodes, oldest first; `status` keeps only the open one or the closed ones."""
        if status not in (None, "open", "closed"):
            raise ValidationError(f"{status!r} is not open or closed", field="status")
        context = await self._shared.find()
        if context is None:
            self._nothing()
            return []
        head = await self._shared.storage.head(context)
        version = assembly.version_of(head, self._at)
        entries = await self._shared.storage.read(context, at=version, kinds=(Kind.MESSAGE, Kind.EPISODE))
        return [episode for episode in episodes(context, entries) if status in (None, episode.status)]

    async def get(self, id: str) -> Entry:
        """Return any entry of this session by its id; `EntryNotFoundError` when it has none with it at this version."""
        context = await self._shared.find()
        (entry,) = await self._shared.storage.get([id]) if context is not None else (None,)
        if entry is not None and context is not None:
            head = await self._shared.storage.head(context)
            if entry.version <= assembly.version_of(head, self._at):
                (own,) = await self._shared.storage.read(
                    context, after=entry.version - 1, before=entry.version + 1
                ) or [None]
                if own is not None and own.id == id:
                    return own
        raise EntryNotFoundError(f"the session {self.session_id!r} has no entry {id!r}")

    async def get_session_stats(self) -> SessionStats:
        """Return counts of the session: everything ever said, and what is in force."""
        shared = self._shared
        context = await shared.find()
        if context is None:
            self._nothing()
            return SessionStats(
                session_id=self.session_id,
                version=0,
                messages=0,
                tokens=0,
                active_messages=0,
                active_tokens=0,
                episodes=0,
                current_episode_id=None,
                facts=0,
                summaries=0,
                counter=shared.counter.name,
            )
        head = await shared.storage.head(context)
        version = assembly.version_of(head, self._at)
        newest = await shared.storage.read(context, at=version, kinds=(Kind.MESSAGE,), newest=1)
        cover = Cover(await shared.storage.read(context, at=version, replacing=True) if head.rewrites else [])
        derived = await shared.storage.read(context, at=version, kinds=(Kind.FACT, Kind.SUMMARY))
        active = [entry for entry in derived if cover.by(entry.version) is None]
        messages, tokens = (newest[-1].position or 0, newest[-1].total) if newest else (0, 0)
        gone_messages = gone_tokens = 0
        for first, last in cover.spans():
            for entry in await shared.storage.read(context, at=last, after=first - 1, kinds=(Kind.MESSAGE,)):
                gone_messages += 1
                gone_tokens += entry.tokens
        summaries = [entry for entry in active if entry.kind is Kind.SUMMARY]
        ordinal = await self._newest_episode(context, version)
        return SessionStats(
            session_id=self.session_id,
            version=version,
            messages=messages,
            tokens=tokens,
            active_messages=messages - gone_messages,
            active_tokens=tokens - gone_tokens + sum(entry.tokens for entry in summaries),
            episodes=ordinal,
            current_episode_id=episode_id(context, ordinal) if ordinal else None,
            facts=sum(1 for entry in active if entry.kind is Kind.FACT),
            summaries=len(summaries),
            counter=shared.counter.name,
        )

    async def _newest_episode(self, context: str, version: int) -> int:
        """Return the ordinal of the newest turn's episode; an edit is no turn and keeps the episode it edits."""
        before = version + 1
        while before > 1:
            entries = await self._shared.storage.read(
                context, before=before, kinds=(Kind.MESSAGE,), newest=16
            )
            turns = [entry.episode for entry in entries if not entry.replaces]
            if turns:
                return turns[-1]
            before = entries[0].version if entries else 0
        return 0

    def _blank(self, budget: int) -> ContextItems:
        return assembly.plan_window(self._nothing(), budget, self._shared.counter, self._shared.frame)

    def _nothing(self) -> assembly.Gathered:
        if self._at:
            raise ValidationError(f"the log ends at version 0, {self._at} does not exist yet", field="at")
        return assembly.Gathered("", 0, Cover(()), [], [], whole=True)
