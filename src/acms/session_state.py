"""The state that a session and its views share: the store, the counter, the indexes, the worker, and the log's id."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol

from acms.config import ACMSConfig
from acms.errors import (
    ConfigurationError,
    EntryNotFoundError,
    HandleError,
    SessionNotFoundError,
)
from acms.jobs import requests
from acms.jobs.requests import CompactionRequest, EpisodeReflection
from acms.log import policy, validation
from acms.log.known_messages import KnownMessages, hash_sensitive_key
from acms.log.read import find_entry, replacements_at, version_to_read
from acms.model import EMPTY, Context, ContextDraft, Entry, JobQuery, JobState, Json, Privacy
from acms.observability.events import Event, Planned, Rewritten
from acms.observability.logging import emit_event, log_event
from acms.observability.operations import annotate_operation
from acms.ports import Embedder, Reflector, Reranker, StorageBackend, Summarizer, TokenCounter
from acms.privacy.modes import stricter_mode
from acms.privacy.redactor import Redactor, create_redaction_stage
from acms.providers.tokens import default_counter
from acms.recall import request
from acms.recall.text_frame import TextFrame
from acms.results import ContextItems, IndexStats
from acms.runtime.loops import PerLoop
from acms.storage import handles
from acms.storage.cache import CachedStorage
from acms.storage.checked import CheckedStorage
from acms.text.markers import freeze_patterns

if TYPE_CHECKING:
    from acms.jobs.worker import Background, Handler
    from acms.recall.embeddings import Embedding
    from acms.recall.index_cache import Indexes
    from acms.recall.namespace import Namespaces
    from acms.recall.reranker_calls import Reranking

__all__ = ["SharedSession"]


class _NamedCounter:
    """A token counter that has no name of its own, under the name of its class."""

    def __init__(self, counter: Any) -> None:
        self.name = type(counter).__name__
        self.count = counter.count


class Composition(Protocol):
    """Functions of higher packages that a session calls; `acms.compose` implements them."""

    def build_session_handlers(self, shared: SharedSession) -> Mapping[str, Handler]:
        """Return the handlers of the jobs that this session's process can run, by kind."""
        ...

    async def resume_reflection(self, shared: SharedSession, context: str) -> None:
        """Resume a reflection that another process requested and did not finish."""
        ...

    def default_embedder(self) -> Embedder | None:
        """Return the embedder of sessions that name none, or None if they rank by words."""
        ...


@dataclass(slots=True)
class _LoopState:
    """The state of a session in one event loop."""

    embedding: Embedding | None = None
    #: The creation of the context, while it is under way.
    creating: asyncio.Future[str] | None = None
    known: KnownMessages = field(default_factory=KnownMessages)
    listed: dict[bytes, tuple[Any, ...]] = field(default_factory=dict)
    #: Renders that are being written to their log.
    renders: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    #: Whether the worker has the handlers of the session's jobs.
    served: bool = False


_retain_lock = threading.Lock()
"""Held while a session starts or stops using its handle, because two threads may do so at once."""


class SharedSession:
    """The state that a session and its views share."""

    def __init__(
        self,
        session_id: str,
        storage: StorageBackend,
        token_counter: TokenCounter | None,
        config: ACMSConfig | None,
        namespace: str,
        embedder: Embedder | Literal["auto"] | None = "auto",
        summarizer: Summarizer | None = None,
        reflector: Reflector | None = None,
        reranker: Reranker | None = None,
        *,
        about: Mapping[str, Json] = EMPTY,
        composition: Composition,
    ) -> None:
        self.session_id = validation.validate_session_identifier(session_id, "session_id")
        self.namespace = validation.validate_namespace(namespace)
        #: Name, labels and metadata that the first write stores; empty once they are stored.
        self.about = about
        if config is not None and not isinstance(config, ACMSConfig):
            raise ConfigurationError(
                f"config must be an ACMSConfig, not {type(config).__name__}",
                options=("ACMSConfig(strict=True)", "ACMSConfig.from_env()"),
            )
        self.config = config or ACMSConfig()
        self.handle = _validate_storage(storage)
        self.storage = _wrap_in_cache(storage, self.config)
        self.counter = _validate_counter(token_counter)
        self.frame = TextFrame(self.counter)
        #: Redacts entries before they are shown.
        self.redactor: Redactor = create_redaction_stage(storage, self.config.privacy.mode, self.counter)
        self.patterns = freeze_patterns(self.config.marker_patterns)
        self._embedder = None if embedder is None or embedder == "auto" else _validate_embedder(embedder)
        #: Whether the default embedder has yet to be chosen, at its first use.
        self._uses_default_embedder = embedder == "auto"
        _require_method(summarizer, "summarizer", "summarize")
        self.summarizer = summarizer
        _require_method(reflector, "reflector", "reflect")
        self.reflector = reflector
        self.reranking: Reranking | None = None
        if reranker is not None:
            from acms.recall.reranker_calls import Reranking

            self.reranking = Reranking(reranker, self.config)
        #: The reflection that the end of an episode requests, or None if reflection is off.
        self.reflects: EpisodeReflection | None = None
        if reflector is not None and self.config.reflection.enabled:
            kind = requests.reflection_kind(reflector)
            self.reflects = EpisodeReflection(kind, self.config.privacy.mode)
        self._composition = composition
        self._watch: CompactionRequest | None = None
        self._handlers: Mapping[str, Handler] | None = None
        self.context_id: str | None = None
        self.retained = self.closed = False
        #: The current time of a query or a statement, which decides which facts are valid.
        self.clock: Callable[[], datetime] = _utc_now
        #: Its state in each event loop that uses it.
        self._loops: PerLoop[_LoopState] = PerLoop(_LoopState)

    def sibling(self, context: Context) -> SharedSession:
        """Return the state for another log of this namespace, with the same store and settings."""
        sibling = copy(self)
        sibling.session_id = context.key or context.id
        sibling.context_id = context.id
        sibling.about = EMPTY
        sibling.retained = sibling.closed = False
        sibling._loops = PerLoop(_LoopState)
        return sibling

    @property
    def known(self) -> KnownMessages:
        """The messages of the log, by which a message is found by its key and the messages of a list are recognized."""
        return self._loops.here().known

    @property
    def renders(self) -> set[asyncio.Task[None]]:
        """Renders that are being written to their log."""
        return self._loops.here().renders

    async def wait_for_renders(self) -> None:
        """Wait for the renders that are being written to their log."""
        if self.renders:
            await asyncio.wait(set(self.renders))

    @property
    def listed(self) -> dict[bytes, tuple[Any, ...]]:
        """The matches of the messages in the last list that was synced, by the digest of each message as given."""
        return self._loops.here().listed

    @listed.setter
    def listed(self, value: dict[bytes, tuple[Any, ...]]) -> None:
        self._loops.here().listed = value

    @property
    def indexes(self) -> Indexes:
        """Return the indexes of the storage handle, which all its sessions share; the first one sets their size."""
        loop_state = handles.get_loop_state(self.handle)
        if loop_state.indexes is None:
            from acms.recall.index_cache import Indexes

            loop_state.indexes = Indexes(self.storage, self.config.cache.index_bytes)
        indexes: Indexes = loop_state.indexes
        return indexes

    @property
    def index_stats(self) -> IndexStats:
        """Return the statistics of the indexes, summed over all event loops."""
        loops = handles.get_shared_state(self.handle).loops
        stats_of_loops = [state.indexes.stats for _, state in loops.all() if state.indexes]
        totals: dict[str, int] = {}
        for count in fields(IndexStats):
            totals[count.name] = sum(getattr(stats, count.name) for stats in stats_of_loops)
        return IndexStats(**totals)

    @property
    def namespaces(self) -> Namespaces:
        """Return the namespace indexes of the storage handle, which all its sessions share."""
        from acms.recall.namespace import Namespaces

        loop_state = handles.get_loop_state(self.handle)
        if loop_state.namespaces is None:
            loop_state.namespaces = Namespaces(self.indexes)
        namespaces: Namespaces = loop_state.namespaces
        return namespaces

    @property
    def embedding(self) -> Embedding | None:
        """Return the embedding of the storage handle, or None without an embedder or in the privacy mode BLOCK."""
        if self._uses_default_embedder:
            self._uses_default_embedder = False
            self._embedder = self._composition.default_embedder()
        may_embed = self.redactor.mode is not Privacy.BLOCK  # a provider may not even see the queries
        state = self._loops.here()
        if state.embedding is None and self._embedder is not None and may_embed:
            from acms.recall.embeddings import get_shared_embedding

            state.embedding = get_shared_embedding(self.handle, self._embedder, self.redactor.mode)
        return state.embedding

    @property
    def tier(self) -> str:
        """Return the kind of ranking of its recalls: "words", or the name of the embedder's model."""
        return "words" if self.embedding is None else self.embedding.model

    @property
    def background(self) -> Background:
        """Return this process's worker for the storage handle; events without a session go to the first session."""
        from acms.jobs.worker import get_background_worker

        return get_background_worker(
            self.handle, self.storage, self.config.worker, self.config.retry, self.emit
        )

    async def flush_indexes(self) -> None:
        """Store the index records that are still in memory."""
        indexes = handles.get_loop_state(self.handle).indexes
        if indexes is not None:
            await indexes.flush()

    def reader(self) -> request.Reader:
        """Return the objects that a read needs."""
        return request.Reader(
            self.storage,
            self.indexes,
            self.embedding,
            self.counter,
            self.frame,
            self.reranking,
            self.redactor,
            self.namespaces,
        )

    @property
    def candidates(self) -> int:
        """The number of best candidates that the reranker scores in a recall; 0 without a reranker."""
        if self.reranking is None or self.redactor.mode is Privacy.BLOCK:
            return 0
        return self.reranking.candidates

    async def find(self) -> str | None:
        """Return the id of the session's context, or None if nothing was written yet."""
        self.retain()
        if self.context_id is None:
            try:
                context = await self.storage.context(self.session_id, namespace=self.namespace)
            except SessionNotFoundError:
                return None
            validation.require_same_namespace(self.namespace, context.namespace, self.session_id)
            validation.validate_namespace(context.namespace)
            self._check_counter(context.counter)
            self._register_for_jobs(context.id)
            if self.reflects is not None and self.config.worker.enabled:
                await self._composition.resume_reflection(self, context.id)
            self.indexes.cache_lineage(context)
            self.namespace = context.namespace  # differs if the session was found by its id
            self.context_id = context.id  # set last, because other tasks write as soon as it is set
        return self.context_id

    async def require_context(self) -> str:
        """Return the id of the session's context; raise `SessionNotFoundError` if nothing was written yet."""
        context = await self.find()
        if context is None:
            raise validation.missing_session_error(self.session_id)
        return context

    async def ensure(self) -> str:
        """Return the id of the session's context; if there is none, create it with the session's name and labels.

        Concurrent calls wait for the same creation and continue in their order.
        """
        self.retain()
        context = self.context_id
        if context is None or self.about:
            state = self._loops.here()
            if state.creating is None:
                state.creating = asyncio.ensure_future(self._find_or_create())
            creating = state.creating
            try:
                context = await asyncio.shield(creating)
            finally:
                if creating.done() and state.creating is creating:
                    state.creating = None
        return context

    async def _find_or_create(self) -> str:
        context = await self.find() or await self._create_context()
        if self.about:
            await self._store_description(context)
        return context

    async def _store_description(self, context: str) -> None:
        """Store the name, labels and metadata given for the session if they differ from the stored ones."""
        about = self.about
        settings = (await self.storage.context(context)).settings
        if any(settings.get(name) != value for name, value in about.items()):
            await policy.update_settings(self.storage, context, lambda _: about)
        self.about = EMPTY

    async def _create_context(self) -> str:
        """Create the context of the session with its settings, and return its id."""
        context = await self.storage.create(
            ContextDraft(
                key=validation.validate_new_session_name(self.session_id, "session_id"),
                namespace=self.namespace,
                counter=self.counter.name,
                settings={name: value for name, value in self.about.items() if value is not None},
                created_at=datetime.now(UTC),
            )
        )
        self._check_counter(context.counter)
        self._register_for_jobs(context.id)
        self.context_id = context.id
        return context.id

    def _check_counter(self, name: str) -> None:
        """Raise `ConfigurationError` if a log was counted with another token counter."""
        if name != self.counter.name:
            raise ConfigurationError(
                f"the messages of {self.session_id!r} were counted with {name!r}, not {self.counter.name!r}",
                options=(f"open the session with a token counter named {name!r}",),
            )

    async def entry(self, context: str | None, at: int | None, name: str, *, newest: bool = False) -> Entry:
        """Return the entry with an id or a caller's key at version `at`; raise `EntryNotFoundError` if there is none.

        A key names the first message under it, or with `newest` the newest edit of that message at this version.
        """
        validation.validate_id_or_key(name)
        if context is None:
            raise self.missing_entry_error(name)
        entry = await find_entry(self.storage, context, at, name)
        if entry is not None:
            return entry
        await self.known.catch_up(self.storage, context)
        row = self.known.find_by_key(name) or self.known.find_by_key(hash_sensitive_key(name))
        entry = None if row is None else await find_entry(self.storage, context, at, row.original_id)
        if entry is None:
            raise self.missing_entry_error(name)
        if newest:
            head = await self.storage.head(context)
            replacements = await replacements_at(
                self.storage, context, head, version_to_read(head, at), searchable=True
            )
            edit = replacements.edit_of(entry)
            if edit is None and replacements.replaced_by(entry.version) is not None:  # it was retracted
                edit = next(reversed(replacements.edits_of(entry)), None)
            entry = edit or entry
        return entry

    def missing_entry_error(self, id: str) -> EntryNotFoundError:
        """Return the error for an entry that the session does not have."""
        return EntryNotFoundError(f"the session {self.session_id!r} has no entry {id!r}")

    def retain(self) -> None:
        """Count this session once as a user of the storage handle; raise `HandleError` if the session is closed."""
        if self.closed:
            raise HandleError(
                "the session is closed", options=("open it again: `async with session:`", "make another one")
            )
        if not self.retained:
            with _retain_lock:
                if not self.retained:
                    handles.retain_handle(self.handle)
                    self.retained = True
                    self._register_for_jobs(self.context_id)

    def _register_for_jobs(self, context: str | None) -> None:
        """Register this session for the jobs of its log: they run with its settings and at least its privacy mode."""
        if context is None:
            return
        shared, mode = handles.get_shared_state(self.handle), self.config.privacy.mode
        shared.sessions[context] = self
        if mode is not None:
            shared.modes[context] = stricter_mode(shared.modes.get(context), mode)

    def release(self) -> bool:
        """Stop counting as a user of the storage handle; return whether the session was one."""
        with _retain_lock:
            was_retained, self.retained = self.retained, False
            if was_retained and self.context_id is not None:
                shared = handles.get_shared_state(self.handle)
                shared.modes.pop(self.context_id, None)
                shared.sessions.pop(self.context_id, None)
        return was_retained

    def emit(self, event: Event) -> None:
        """Pass an event to the listener `on_event`; its exceptions have no effect."""
        emit_event(self.config.on_event, event)

    def emit_rewritten(self, context: str, version: int, target: str, reason: str) -> None:
        """Report that an entry was replaced or retracted at a version."""
        self.emit(Rewritten(context_id=context, version=version, target_id=target, reason=reason))

    def start_worker(self) -> None:
        """Start the worker of this process, or wake it up for new jobs, unless workers are disabled."""
        if not self.config.worker.enabled:
            return
        counters = handles.get_shared_state(self.handle).counters
        counters.setdefault(self.counter.name, self.counter)
        # Another session on the same log may have removed the registration when it was closed.
        self._register_for_jobs(self.context_id)
        background = self.background
        state = self._loops.here()
        if not state.served:
            state.served = True
            for kind, handler in self.handlers.items():
                background.serve(kind, handler)
        background.poke()

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers of its jobs by kind."""
        if self._handlers is None:
            self._handlers = self._composition.build_session_handlers(self)
        return self._handlers

    async def wait_until_idle(self, context: str | None) -> None:
        """Wait until all jobs of this process are done, and the jobs of a log that another process runs.

        Jobs that this process could not run are not waited for. If the other process was killed, this process takes
        over its jobs.
        """
        from acms.jobs.worker import POLL

        background = self.background
        await background.wait_until_idle()
        if context is None or not self.config.worker.enabled:
            return
        running = JobQuery(context=context, states=(JobState.RUNNING,))
        has_started_worker = False
        while self.retained:  # once the session is closed, a query would open the store again
            jobs = (await self.storage.jobs(running)).items
            if jobs and not has_started_worker:
                self.start_worker()  # the worker takes over jobs whose lease ends
                has_started_worker = True
            if not any(background.serves(job) for job in jobs):
                return
            await asyncio.sleep(POLL)
            await background.wait_until_idle()

    @property
    def watch(self) -> CompactionRequest:
        """Return the settings by which an append decides whether to request a compaction."""
        if self._watch is None:
            kind = requests.compaction_kind(self.summarizer)
            self._watch = CompactionRequest(
                self.namespace,
                self.config.compaction,
                kind,
                self.config.privacy.mode,
                self.config.retention_seconds,
            )
        return self._watch

    def report_plan(self, verb: str, items: ContextItems) -> ContextItems:
        """Report a plan to the trace, the listener and the log; return its items."""
        annotate_operation(items)
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
            self.emit(event)
        if items.ledger.warnings:
            log_event(
                logging.WARNING,
                "plan_warning",
                context=items.context,
                verb=verb,
                warnings=items.ledger.warnings,
            )
        log_event(
            logging.DEBUG,
            verb,
            context=items.context,
            version=items.version,
            tokens=items.tokens,
            items=len(items),
        )
        return items


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _validate_storage(storage: Any) -> StorageBackend:
    """Return an open store; raise `ConfigurationError` for anything else, such as a class."""
    is_class = isinstance(storage, type)
    has_append = callable(getattr(storage, "append", None))
    # The state that sessions share is kept in the `__dict__` of the handle.
    if is_class or not has_append or not hasattr(storage, "__dict__"):
        given = storage.__name__ if is_class else type(storage).__name__
        raise ConfigurationError(
            f"storage must be a URL, a path or an open store, not {given}",
            options=('open_storage("sqlite:///memory.db")',),
        )
    return storage


def _validate_counter(given: TokenCounter | None) -> TokenCounter:
    """Return a token counter that has a name, by default the one of the library."""
    counter: Any = default_counter() if given is None else given
    if isinstance(counter, str | bytes | list | tuple) or not callable(getattr(counter, "count", None)):
        raise ConfigurationError("token_counter must be an object with a method count(text)")
    return counter if isinstance(getattr(counter, "name", None), str) else _NamedCounter(counter)


def _require_method(provider: object, name: str, method: str) -> None:
    if provider is not None and not callable(getattr(provider, method, None)):
        raise ConfigurationError(f"{name} must be an object with an async method {method}(request)")


def _validate_embedder(embedder: Any) -> Embedder:
    """Return the embedder if it has a dimension and an `embed` method; raise `ConfigurationError` if not."""
    if isinstance(embedder, str):
        raise ConfigurationError(f'embedder must be "auto", None or an embedder, not {embedder!r}')
    dimension = getattr(embedder, "dimension", None)
    if isinstance(dimension, bool) or not isinstance(dimension, int) or dimension < 1:
        raise ConfigurationError("embedder.dimension must be a positive whole number")
    if isinstance(embedder, type) or not callable(getattr(embedder, "embed", None)):
        raise ConfigurationError("embedder must be an object with an async method embed(texts)")
    validated: Embedder = embedder
    return validated


def _wrap_in_cache(storage: StorageBackend, config: ACMSConfig) -> StorageBackend:
    """Return a storage handle wrapped in its cache, which all its sessions share; the first one sets its size.

    Without a cache, each entry is checked whenever it is read.
    """
    if isinstance(storage, CachedStorage):
        return storage
    if not config.cache.enabled:
        return CheckedStorage(storage)
    shared = handles.get_shared_state(storage)
    if shared.front is None:
        shared.front = CachedStorage(
            storage,
            max_bytes=config.cache.max_bytes,
            max_entries=config.cache.max_entries,
            ttl_seconds=config.cache.ttl_seconds,
        )
    return shared.front
