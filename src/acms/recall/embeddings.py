"""Vectors for entries and queries: requested from an embedder in batches, stored beside the log, healed when missing.

A message is committed and acknowledged first, and embedded in the background: a slow or unavailable embedder delays
vectors, but never messages or their writers (rule 2.4). Acknowledged entries wait in a bounded queue, and the next
recall of their log waits for them for a limited time. Other entries without vectors are found in the store: after a
full queue, a failed provider, a killed process, or with a new model (rule 2.3). Embedding these is called *healing*. A
text that the model refuses is embedded in parts; if all its parts are refused, it has no vector.

A model reads only a limited number of words, so a long text is embedded in chunks of about 170 words that end with a
sentence; the nearest chunk counts. Every text includes the speaker, and the first text also the date. The text of a
fact begins with its subject and attribute instead.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from acms.errors import ACMSError, ProviderError, SessionNotFoundError, VectorsUnavailableError
from acms.model import Derived, Draft, Embedded, Kind, Privacy, State
from acms.observability.logging import log_event
from acms.ports import Embedder, StorageBackend
from acms.privacy.modes import mode_of
from acms.providers.refusal import InputRefusedError
from acms.runtime.patience import PATIENCE, patience
from acms.runtime.threads import in_thread
from acms.storage import handles
from acms.text.index_record import join_fact_names
from acms.text.tokenizer import find_sentence_spans

T = TypeVar("T")

RECIPE = "said2"
"""Name of this recipe in a space: vectors of another one are never compared with these."""
CHUNK_WORDS = 170
"""Words of a chunk, at most, unless one sentence is longer."""

MIN_PART_CHARS = 100
"""Characters of a part of a refused text, at least."""
PROBE_TEXT = "text"
"""A text every model accepts: a model that refuses it refuses everything."""

_MONTHS = (
    "January February March April May June July August September October November December".split()
)  # fmt: skip


class Passage(NamedTuple):
    """A text to embed, and the span of the content that it covers."""

    start: int
    end: int
    text: str


def split_passages(draft: Draft) -> list[Passage]:
    """Split an entry into the texts to embed: one for a short entry, chunks for a long one, none without content."""
    content = draft.content
    if not content.strip():
        return []
    if draft.kind is Kind.FACT:  # a fact is one statement, under its address
        names = join_fact_names(draft)
        return [Passage(0, len(content), f"{names}: {content}" if names else content)]
    speaker = draft.actor or (draft.role or draft.kind).value
    created = draft.created_at
    date = f"{created.day} {_MONTHS[created.month - 1]} {created.year}"
    if len(content.split(None, CHUNK_WORDS + 1)) <= CHUNK_WORDS:
        return [Passage(0, len(content), f"{date} {speaker}: {content}")]
    chunks = _chunk_sentences(content, find_sentence_spans(content))
    chunks = chunks[:64]  # the rest of a huge text is not embedded
    passages = [Passage(start, end, f"{speaker}: {content[start:end]}") for start, end in chunks]
    passages[0] = passages[0]._replace(text=f"{date} {passages[0].text}")
    return passages


def _chunk_sentences(content: str, sentences: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Group the sentences of a text, given by their spans, into spans of at most `CHUNK_WORDS` words."""
    chunks: list[tuple[int, int]] = []
    chunk_start, chunk_words = sentences[0][0], 0
    for start, end in sentences:
        words = len(content[start:end].split())
        if chunk_words and chunk_words + words > CHUNK_WORDS:
            chunks.append((chunk_start, start))
            chunk_start, chunk_words = start, 0
        chunk_words += words
    chunks.append((chunk_start, len(content)))
    return chunks


BATCH_TEXTS = 64
"""Texts of one call to an embedder."""
MAX_QUEUED_CHARS = 4_000_000
"""Characters that may wait in the queue, about two thousand short messages; the store knows the others."""
ENTRY_OVERHEAD_CHARS = 1_500
"""Characters added for each queued entry: about its memory overhead."""
PAUSE_SECONDS = 0.05
"""Seconds without an append after which the queue is worked off: writers go first, and their texts go together."""
MAX_KNOWN_LOGS = 10_000
"""Logs of which is remembered whether they lack vectors; of others the store is asked again."""
MAX_HEALING_LOGS = 16
"""Logs whose missing vectors are asked for at once; the others wait their turn."""
MAX_CACHED_QUERIES = 64
"""Queries whose vectors are remembered."""
CALL_SECONDS = 30.0
"""How long a call to an embedder may take: enough for a server that loads its model first. A question waits less."""
STALLED_SECONDS = 30.0
"""Seconds in which the number of missing vectors must fall; else recalls warn of them."""
BACKOFF_SECONDS = 5.0
"""Seconds after a failure before missing vectors are asked for again, and after a wait in vain before the next wait.

A failure is a call that raised, or that took `CALL_SECONDS`.
"""

Learn: TypeAlias = Callable[[str, int, Sequence[Derived]], None]
"""Takes (context, erasure generation, vectors) as soon as there are any."""


@dataclass(slots=True, eq=False)
class _QueuedEntry:
    """An entry that waits for its vectors."""

    context: str
    #: Erasure generation it was appended in.
    epoch: int
    version: int
    draft: Draft
    learn: Learn
    #: Completed when its vectors are made or have failed; created by the first call that waits for them.
    done_future: asyncio.Future[None] | None = None


def get_shared_embedding(storage: StorageBackend, embedder: Embedder, mode: Privacy | None) -> Embedding:
    """Return the running embedder of a storage handle, shared by all sessions of this process on it."""
    embeddings = handles.get_loop_state(storage).embeddings
    key = id(embedder), mode
    embedding: Embedding | None = embeddings.get(key)
    if embedding is None:
        embedding = embeddings[key] = Embedding(storage, embedder, mode)
    return embedding


class Embedding:
    """One embedder on one storage handle."""

    def __init__(self, storage: StorageBackend, embedder: Embedder, mode: Privacy | None = None) -> None:
        self.storage = storage
        self._mode = mode
        self._embedder = embedder
        provider: Any = embedder  # two methods are optional
        self._embed_query: Callable[[str], Awaitable[Any]] | None = getattr(provider, "embed_query", None)
        self._reads: Callable[[str], bool] | None = getattr(provider, "reads", None)
        #: Whether a text that the model does not read was logged, and whether such a question was reported.
        self._has_unread = self._question_reported = False
        #: Number of messages without a vector that get none, by log in which they were reported.
        self._unread_counts: dict[str, int] = {}
        #: Number of missing vectors by log, and the time since when it has not fallen.
        self._backlogs: dict[str, tuple[int, float]] = {}
        self.dimension = embedder.dimension
        #: Names the embedder in results, logs and warnings.
        self.model: str = getattr(embedder, "model", None) or type(embedder).__name__
        #: Names everything that makes two vectors comparable.
        self.space = f"{self.model}/{self.dimension}/f16/{RECIPE}"
        self._query_vectors: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        #: Calls for the vectors of questions, by question; one that is late goes on without a caller that waits.
        self._query_tasks: dict[str, asyncio.Task[NDArray[np.float32]]] = {}
        #: A late call; until it ends, other questions do not call the embedder.
        self._late_query: asyncio.Task[NDArray[np.float32]] | None = None
        self._query_again_at = -math.inf
        #: Entries appended in this process that have no vectors yet, by log; then the characters they count for.
        self._queue: OrderedDict[str, deque[_QueuedEntry]] = OrderedDict()
        self._queued_size = 0
        #: The newest entry of a log that waits or is being embedded.
        self._newest_entries: dict[str, _QueuedEntry] = {}
        #: Logs with entries that did not fit the queue: the store is asked for them when the queue is empty.
        self._overflowed_logs: set[str] = set()
        #: Logs that are healed later, because too many others are being healed.
        self._deferred_logs: set[str] = set()
        #: Logs that a recall waits for: they come first.
        self._wanted_logs: set[str] = set()
        self._hurry = asyncio.Event()
        self._queue_task: asyncio.Task[None] | None = None
        self._backlog_task: asyncio.Task[None] | None = None
        self._healing: dict[str, asyncio.Task[None]] = {}
        #: By log that is healed for the first time: completed when the healing has ended, or is known to take long.
        self._first_healings: dict[str, asyncio.Future[None]] = {}
        #: Version of each log up to which no vector is missing, and the entries queued or being embedded.
        self._complete_versions: dict[str, int] = {}
        self._entries_in_progress: set[tuple[str, int]] = set()
        self._retry_at = self._wait_again_at = -math.inf

    async def query(self, text: str) -> NDArray[np.float32] | None:
        """Return the unit vector of a question, or None if the embedder fails or takes longer than `patience` seconds.

        A late call goes on in the background, as it may be loading a model, and its vector is kept for the same
        question. Until it ends, and `BACKOFF_SECONDS` more if it ends by a timeout, no other question is embedded.
        """
        vector = self._query_vectors.get(text)
        if vector is not None:
            self._query_vectors.move_to_end(text)
            return vector
        loop = asyncio.get_running_loop()
        is_late = self._late_query is not None and not self._late_query.done()
        if is_late or loop.time() < self._query_again_at:
            return None
        task = self._query_tasks.get(text)
        if task is None:
            task = self._query_tasks[text] = loop.create_task(self._embed_question(text))
            task.add_done_callback(lambda task: self._finish_query(text, task))
        await asyncio.wait([task], timeout=patience.get())
        if not task.done():
            if self._late_query is None or self._late_query.done():
                self._late_query = task
                self._log_failure("query", TimeoutError())
            return None
        return None if task.cancelled() or task.exception() else task.result()

    def _finish_query(self, text: str, task: asyncio.Task[NDArray[np.float32]]) -> None:
        """Keep the vector of a question, or log the failure."""
        del self._query_tasks[text]
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, Exception):
            if isinstance(error, TimeoutError):
                self._query_again_at = asyncio.get_running_loop().time() + BACKOFF_SECONDS
            self._record_failure("query", error)
            return
        self._query_vectors[text] = task.result()
        if len(self._query_vectors) > MAX_CACHED_QUERIES:
            self._query_vectors.popitem(last=False)

    def passages(self, draft: Draft) -> list[Passage]:
        """Return the texts of an entry that may be sent to the embedder, redacted, in a language that it reads."""
        mode = mode_of(self._mode, draft.privacy)
        visible: Draft | None = draft
        if mode is not None:
            from acms.privacy.redact_entry import redact_for_embedding  # the rules are loaded with it

            visible = redact_for_embedding(draft, mode)
        if visible is None:
            return []
        return [passage for passage in split_passages(visible) if self.reads(passage.text)]

    def reads(self, text: str) -> bool:
        """Return whether the model reads the language of a text; the first text that it does not read is logged."""
        if self._reads is None or self._reads(text):
            return True
        if not self._has_unread:
            self._has_unread = True
            log_event(logging.WARNING, "language_not_read", space=self.space)
        return False

    def warn_of_question(self) -> list[str]:
        """Return a warning that the model does not read the language of a question; the second time nothing."""
        if self._question_reported:
            return []
        self._question_reported = True
        return [f"{self.model} does not read the language of the question: ranked by words alone"]

    async def warn_of_messages(
        self, context: str, count: int, total: int, id: str, recount: Callable[[], Awaitable[int]]
    ) -> list[str]:
        """Return warnings about `count` of the `total` messages of a log that have no vector.

        Those whose vectors are being computed are not reported, as this takes a moment. Those whose vectors stay
        missing are reported every time, those that the model does not read once for each log. `id` is the message if it
        is only one, else empty. `recount` counts the messages without a vector again: some may have got one since.
        """
        if self._unread_counts.get(context) == count:
            return []
        is_catching_up = False
        try:
            missing = await self.storage.missing(self.space, context=context, limit=count)
            pending = len(missing)
            is_catching_up = self._is_catching_up(context, missing)
        except VectorsUnavailableError:
            pending = count
        unread = count - pending
        if unread > 0:
            unread = max(0, await recount() - pending)
        name = f" ({id})" if id else ""
        warnings: list[str] = []
        if pending and not is_catching_up:
            warnings.append(
                f"{pending:,} of {total:,} messages have no vector yet: ranked by words alone{name}"
            )
        if unread and context not in self._unread_counts:
            warnings.append(
                f"{unread:,} of {total:,} messages contain no text that {self.model} can read: "
                f"ranked by words alone{name}"
            )
        if unread:
            self._unread_counts[context] = unread
            if len(self._unread_counts) > MAX_KNOWN_LOGS:
                del self._unread_counts[next(iter(self._unread_counts))]
        return warnings

    def _is_catching_up(self, context: str, missing: Sequence[tuple[str, int]]) -> bool:
        """Return whether this process computes the missing vectors of a log, and their number falls."""
        now = asyncio.get_running_loop().time()
        if now < self._retry_at:  # the embedder has just failed
            return False
        backlog = sum(1 for key in missing if key not in self._entries_in_progress)
        if not backlog:
            self._backlogs.pop(context, None)
            return True
        previous, since = self._backlogs.get(context, (backlog + 1, now))
        if backlog < previous:
            since = now
        self._backlogs[context] = (backlog, since)
        if len(self._backlogs) > MAX_KNOWN_LOGS:
            del self._backlogs[next(iter(self._backlogs))]
        is_healed = (
            context in self._healing or context in self._overflowed_logs or context in self._deferred_logs
        )
        return is_healed and now - since < STALLED_SECONDS

    def count_in_progress(self) -> int:
        """Return the number of entries of all logs whose vectors this process is computing."""
        is_embedder_down = asyncio.get_running_loop().time() < self._retry_at
        return 0 if is_embedder_down else len(self._entries_in_progress)

    # ── the queue ───────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, context: str, epoch: int, drafts: Sequence[tuple[int, Draft]], learn: Learn) -> Embedded:
        """Queue entries that were just committed, in order; return "queued", or "pending" if they are not queued.

        Nothing is queued while the embedder waits after a failure, or the queue is full. A later scan of the store
        finds these entries.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._retry_at:
            return "pending"
        size = sum([ENTRY_OVERHEAD_CHARS + len(draft.content) for _, draft in drafts])
        is_full = self._queued_size > 0 and self._queued_size + size > MAX_QUEUED_CHARS
        # The store is asked later for an overflowed log, and then finds its newer entries too.
        if is_full or context in self._overflowed_logs:
            if len(self._overflowed_logs) < MAX_KNOWN_LOGS:
                self._overflowed_logs.add(context)
            return "pending"
        entries = [_QueuedEntry(context, epoch, version, draft, learn) for version, draft in drafts]
        self._queue.setdefault(context, deque()).extend(entries)
        self._queued_size += size
        self._newest_entries[context] = entries[-1]
        self._entries_in_progress.update([(context, version) for version, _ in drafts])
        if self._queue_task is None or self._queue_task.done():
            self._queue_task = loop.create_task(self._work_off_queue())
        return "queued"

    async def ready(self, context: str, version: int) -> bool:
        """Wait for the missing vectors of a log up to a version, for `patience` seconds; return whether it waited.

        It waits for entries appended in this process to the log or its ancestors, and the first time that a log is used
        also for its other missing vectors, unless there are many. After a timeout it does not wait again for a while.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + patience.get()
        has_waited = False
        if self._newest_entries and loop.time() >= self._wait_again_at:
            has_waited = await self._wait_for_logs(await self._find_waiting_owners(context), end)
        self.heal(context, version)
        first_healing = self._first_healings.get(context)
        if first_healing is not None and loop.time() >= self._wait_again_at:
            await self._wait([first_healing], end)
            has_waited = True
        return has_waited

    async def _find_waiting_owners(self, context: str) -> list[str]:
        """Return those of a log and its ancestors with entries that wait for vectors; none if the log is deleted."""
        if self._newest_entries.keys() <= {context}:
            return [*self._newest_entries]
        try:
            lineage = (await self.storage.context(context)).lineage
        except SessionNotFoundError:
            return []
        return [owner for owner, _ in (*lineage, (context, 0)) if owner in self._newest_entries]

    async def _wait_for_logs(self, owners: Sequence[str], end: float | None) -> bool:
        """Wait until the queued entries of some logs are embedded, or until `end`; return whether any were queued."""
        futures: list[asyncio.Future[None]] = []
        for owner in owners:
            entry = self._newest_entries.get(owner)
            if entry is None:
                continue
            if entry.done_future is None:
                entry.done_future = asyncio.get_running_loop().create_future()
            futures.append(entry.done_future)
        if not futures:
            return False
        self._wanted_logs.update(owners)
        self._hurry.set()
        try:
            await self._wait(futures, end)
        finally:
            self._wanted_logs.difference_update(owners)
        for owner in owners:  # commit the rows, so that forks can read them from the store
            await self.storage.put_derived(owner, ())
        return True

    async def _wait(self, futures: Sequence[asyncio.Future[None]], end: float | None) -> None:
        """Wait until all futures are done, or until `end`; after a timeout, do not wait again for `BACKOFF_SECONDS`."""
        loop = asyncio.get_running_loop()
        timeout = None if end is None else max(0.0, end - loop.time())
        _, late = await asyncio.wait(futures, timeout=timeout)
        if late:
            self._wait_again_at = loop.time() + BACKOFF_SECONDS

    async def _work_off_queue(self) -> None:
        """Embed queued entries until there are none."""
        await self._wait_for_pause()
        while self._queue:
            batch = self._take_batch()
            try:
                await self._embed_entries(batch)
            except Exception as error:
                self._record_failure("entries", error)
                batch += self._clear_queue()  # their missing vectors are found in the store later
            finally:
                self._finish(batch)
        self._start_backlog()

    def _start_backlog(self) -> None:
        has_backlog = bool(self._overflowed_logs or self._deferred_logs)
        if has_backlog and (self._backlog_task is None or self._backlog_task.done()):
            self._backlog_task = asyncio.get_running_loop().create_task(self._work_off_backlog())

    async def _work_off_backlog(self) -> None:
        """Heal the logs whose entries did not fit the queue, one after the other: all at once would delay queries."""
        while self._overflowed_logs or self._deferred_logs:
            waiting = self._overflowed_logs or self._deferred_logs
            context = waiting.pop()
            self.heal(context)
            if context in self._healing:
                await asyncio.wait([self._healing[context]])
            is_embedder_down = asyncio.get_running_loop().time() < self._retry_at
            if is_embedder_down:  # recalls heal the logs later
                self._clear_backlog()

    def _clear_backlog(self) -> None:
        self._overflowed_logs.clear()
        self._deferred_logs.clear()

    async def _wait_for_pause(self) -> None:
        """Wait for `PAUSE_SECONDS` without an append, at most a second; do not wait if a recall needs vectors."""
        self._hurry.clear()
        loop, state = asyncio.get_running_loop(), handles.get_loop_state(self.storage)
        deadline = loop.time() + 1.0
        while not self._wanted_logs:
            remaining = min(state.appended + PAUSE_SECONDS, deadline) - loop.time()
            if remaining <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await self._hurry.wait()

    def _take_batch(self) -> list[_QueuedEntry]:
        """Remove entries for about one call from the queue: those of logs that a recall waits for, then the oldest."""
        batch: list[_QueuedEntry] = []
        estimated_texts = 0
        while self._queue and estimated_texts < BATCH_TEXTS:
            oldest = next(iter(self._queue))
            context = next((context for context in self._queue if context in self._wanted_logs), oldest)
            queue = self._queue[context]
            while queue and estimated_texts < BATCH_TEXTS:
                entry = queue.popleft()
                characters = len(entry.draft.content)
                self._queued_size -= ENTRY_OVERHEAD_CHARS + characters
                estimated_texts += 1 + characters // 60
                batch.append(entry)
            if not queue:
                del self._queue[context]
        return batch

    def _clear_queue(self) -> list[_QueuedEntry]:
        """Remove all queued entries and return them."""
        entries = [entry for queue in self._queue.values() for entry in queue]
        self._queue.clear()
        self._queued_size = 0
        return entries

    async def _embed_entries(self, batch: Sequence[_QueuedEntry]) -> None:
        """Embed queued entries, and pass their vectors to the store and to the index of their log."""
        rows_by_entry = await self._embed_each([(entry.version, entry.draft) for entry in batch])
        by_log: dict[str, list[tuple[_QueuedEntry, list[Derived]]]] = {}
        for entry, rows in zip(batch, rows_by_entry, strict=True):
            if rows is not None:
                by_log.setdefault(entry.context, []).append((entry, rows))
        for context, entries in by_log.items():
            all_rows = [row for _, rows in entries for row in rows]
            try:
                await self.storage.put_derived(context, all_rows, wait=False)
            except SessionNotFoundError:  # deleted meanwhile
                continue
            for entry, rows in entries:
                entry.learn(context, entry.epoch, rows)
                if self._complete_versions.get(context, 0) == entry.version - 1:
                    self._mark_complete(context, entry.version)

    def _mark_complete(self, context: str, version: int) -> None:
        """Note that a log lacks no vectors up to a version."""
        self._complete_versions[context] = max(version, self._complete_versions.pop(context, 0))
        if len(self._complete_versions) > MAX_KNOWN_LOGS:
            del self._complete_versions[next(iter(self._complete_versions))]

    def _finish(self, batch: Iterable[_QueuedEntry]) -> None:
        """Finish some entries, embedded or not: calls that wait for them go on."""
        for entry in batch:
            self._entries_in_progress.discard((entry.context, entry.version))
            if self._newest_entries.get(entry.context) is entry:
                del self._newest_entries[entry.context]
            if entry.done_future is not None and not entry.done_future.done():
                entry.done_future.set_result(None)

    # ── healing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def heal(self, context: str, version: int | None = None) -> None:
        """Request the missing vectors of a log in the background.

        Do nothing while the log is being healed, or has queued entries. With a version, also do nothing if no vector up
        to it is missing, or right after a failure, and defer the log if `MAX_HEALING_LOGS` are being healed.
        """
        has_queued_entries = context in self._newest_entries
        if context in self._healing or has_queued_entries:
            return
        loop = asyncio.get_running_loop()
        if version is not None:
            is_complete = version <= self._complete_versions.get(context, 0)
            if is_complete or loop.time() < self._retry_at:
                return
            if len(self._healing) >= MAX_HEALING_LOGS:
                if len(self._deferred_logs) < MAX_KNOWN_LOGS:
                    self._deferred_logs.add(context)
                return
        if context not in self._complete_versions:
            self._first_healings[context] = loop.create_future()
        task = self._healing[context] = loop.create_task(self._heal(context))
        task.add_done_callback(lambda _: self._finish_healing(context))

    def _finish_healing(self, context: str) -> None:
        self._healing.pop(context, None)
        self._release_first(context)
        if self._queue_task is None or self._queue_task.done():  # else it does so when it ends
            self._start_backlog()

    def _release_first(self, context: str) -> None:
        """Let calls go on that wait for the first healing of a log."""
        first_healing = self._first_healings.pop(context, None)
        if first_healing is not None and not first_healing.done():
            first_healing.set_result(None)

    async def _heal(self, context: str) -> None:
        """Embed all entries of a log that lack a vector, a batch at a time; stop at the first failure.

        Entries that the embedder refuses stay among the missing ones, so each read is larger by their number.
        """
        refused_keys: set[tuple[str, int]] = set()
        try:
            await self.storage.put_derived(context, ())  # queued rows are stored before the store is queried
            version = (await self.storage.head(context)).version
            after = self._complete_versions.get(context, 0)
            while True:
                limit = BATCH_TEXTS + len(refused_keys)
                missing = await self.storage.missing(self.space, context=context, after=after, limit=limit)
                if not missing:
                    self._mark_complete(context, version)
                    return
                # More than a batch may be missing, which takes long: recalls do not wait for it.
                if len(missing) == limit:
                    self._release_first(context)
                skipped_keys = self._entries_in_progress | refused_keys
                versions = [key[1] for key in missing if key not in skipped_keys]
                drafts = await self._read_live(context, versions)
                rows = await self.embed_accepted(drafts) if drafts else []
                if not rows or not await self.storage.put_derived(context, rows):
                    return
                stored_versions = {row.version for row in rows}
                refused_keys |= {
                    (context, version) for version, _ in drafts if version not in stored_versions
                }
        except SessionNotFoundError:  # deleted meanwhile
            return
        except Exception as error:
            self._record_failure("heal", error)

    async def _read_live(self, context: str, versions: Sequence[int]) -> list[tuple[int, Draft]]:
        """Return the live entries of some versions."""
        drafts: list[tuple[int, Draft]] = []
        for version in versions:
            for entry in await self.storage.read(context, after=version - 1, before=version + 1):
                if entry.state is State.LIVE:
                    drafts.append((version, entry))
        return drafts

    async def embed_accepted(self, drafts: Sequence[tuple[int, Draft]]) -> list[Derived]:
        """Return the vectors of the entries that the embedder does not refuse; none if it fails."""
        try:
            rows_by_draft = await self._embed_each(drafts)
        except Exception as error:
            self._record_failure("heal", error)
            return []
        return [row for rows in rows_by_draft if rows is not None for row in rows]

    async def _embed_each(self, drafts: Sequence[tuple[int, Draft]]) -> list[list[Derived] | None]:
        """Return the vectors of each entry, or None if it failed; embed one by one if one call for all fails."""
        try:
            return [*await self._embed_drafts(drafts)]
        except Exception as error:
            if len(drafts) == 1 and not isinstance(error, InputRefusedError):
                raise
            self._log_failure("entries", error)
        rows_by_draft: list[list[Derived] | None] = [None] * len(drafts)
        for index, (version, draft) in enumerate(drafts):
            try:
                rows_by_draft[index] = await self._embed_draft(version, draft)
            except Exception:
                several_failed = index >= min(2, len(drafts) - 1)
                if several_failed and not any(rows_by_draft):  # the embedder is down: no text is the cause
                    raise
        return rows_by_draft

    async def _embed_draft(self, version: int, draft: Draft) -> list[Derived]:
        """Return the vectors of an entry, or of the accepted parts of its texts if the embedder refuses it.

        An entry whose parts are all refused gets an empty row, so that it does not count as missing.
        """
        try:
            (rows,) = await self._embed_drafts([(version, draft)])
            return rows
        except InputRefusedError:
            accepted_parts: list[tuple[Passage, NDArray[np.float32]]] = []
            for passage in self.passages(draft):
                accepted_parts += await self._embed_parts(passage)
            if not accepted_parts:
                await self._embed_texts([PROBE_TEXT])  # raises if the model refuses everything
            log_event(
                logging.WARNING, "input_refused", space=self.space, version=version, parts=len(accepted_parts)
            )
            vectors = {part.text: vector for part, vector in accepted_parts}
            return self._build_rows(version, [part for part, _ in accepted_parts], vectors)

    async def _embed_parts(self, passage: Passage) -> list[tuple[Passage, NDArray[np.float32]]]:
        """Embed a passage; if the embedder refuses it, its halves. Return the accepted parts with their vectors."""
        try:
            (vector,) = await self._embed_texts([passage.text])
            return [(passage, vector)]
        except InputRefusedError:
            size = passage.end - passage.start
            if size < 2 * MIN_PART_CHARS:
                return []
            prefix_size = len(passage.text) - size
            prefix, content = (
                passage.text[:prefix_size],
                passage.text[prefix_size:],
            )  # prefix: date and speaker
            middle = find_middle(content)
            split_position = passage.start + middle
            first_half = Passage(passage.start, split_position, prefix + content[:middle])
            second_half = Passage(split_position, passage.end, prefix + content[middle:])
            return [*await self._embed_parts(first_half), *await self._embed_parts(second_half)]

    async def _embed_drafts(self, drafts: Sequence[tuple[int, Draft]]) -> list[list[Derived]]:
        """Return the vectors of each entry, as they are stored."""
        passages_by_draft = [self.passages(draft) for _, draft in drafts]
        unique_texts: dict[str, None] = {}
        for passages in passages_by_draft:
            unique_texts.update(dict.fromkeys(passage.text for passage in passages))
        texts = list(unique_texts)
        vectors: dict[str, NDArray[np.float32]] = {}
        for start in range(0, len(texts), BATCH_TEXTS):
            batch = texts[start : start + BATCH_TEXTS]
            vectors.update(zip(batch, await self._embed_texts(batch), strict=True))
        rows: list[list[Derived]] = []
        for (version, _), passages in zip(drafts, passages_by_draft, strict=True):
            rows.append(self._build_rows(version, passages, vectors))
        return rows

    def _build_rows(
        self, version: int, passages: Sequence[Passage], vectors: dict[str, NDArray[np.float32]]
    ) -> list[Derived]:
        """Return the vectors of an entry's passages as rows of the store; `vectors` are by text."""
        if not passages:  # an empty row, so that the entry does not count as missing
            return [Derived(version=version, space=self.space, data=b"")]
        rows: list[Derived] = []
        for part, passage in enumerate(passages):
            data = vectors[passage.text].astype("<f2").tobytes()
            rows.append(
                Derived(
                    version=version,
                    space=self.space,
                    part=part,
                    start=passage.start,
                    end=passage.end,
                    data=data,
                )
            )
        return rows

    async def settle(self, context: str) -> None:
        """Wait until the missing vectors of a log have been embedded, or have failed."""
        while owners := await self._find_waiting_owners(context):
            await self._wait_for_logs(owners, None)
        self.heal(context)
        while context in self._healing:
            await asyncio.wait([self._healing[context]])

    async def stop(self) -> None:
        """Wait PATIENCE seconds for queued entries, and stop all work; the next session heals what is still missing."""
        if self._queue_task is not None and not self._queue_task.done():
            self._wanted_logs.update(self._queue)
            self._hurry.set()
            await asyncio.wait([self._queue_task], timeout=PATIENCE)
        self._clear_backlog()
        tasks: list[asyncio.Task[Any]] = [*self._healing.values(), *self._query_tasks.values()]
        tasks += filter(None, (self._queue_task, self._backlog_task))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._finish(self._clear_queue())
        self._wanted_logs.clear()

    def _record_failure(self, operation: str, error: Exception) -> None:
        self._retry_at = asyncio.get_running_loop().time() + BACKOFF_SECONDS
        self._log_failure(operation, error)

    def _log_failure(self, operation: str, error: Exception) -> None:
        code = error.code if isinstance(error, ACMSError) else type(error).__name__
        log_event(logging.WARNING, "embedding_failed", space=self.space, what=operation, code=code)

    # ── the embedder ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _embed_texts(self, texts: list[str]) -> NDArray[np.float32]:
        async with asyncio.timeout(CALL_SECONDS):
            vectors = np.asarray(await _call_embedder(self._embedder.embed, texts), np.float32)
        return self._normalize_vectors(vectors, len(texts))

    async def _embed_question(self, text: str) -> NDArray[np.float32]:
        """Return the vector of a question, or the mean of the vectors of its halves if the question is refused."""
        try:
            if self._embed_query is None:
                (vector,) = await self._embed_texts([text])
                return vector
            async with asyncio.timeout(CALL_SECONDS):
                query_vector = np.asarray(await _call_embedder(self._embed_query, text), np.float32)
            (vector,) = self._normalize_vectors(query_vector[None], 1)
            return vector
        except InputRefusedError:
            if len(text) < 2 * MIN_PART_CHARS:
                raise
            middle = find_middle(text)
            halves = [await self._embed_question(half) for half in (text[:middle], text[middle:])]
            (vector,) = self._normalize_vectors(np.sum(halves, axis=0)[None], 1)
            return vector

    def _normalize_vectors(self, vectors: NDArray[np.float32], count: int) -> NDArray[np.float32]:
        """Scale vectors to length 1; `ProviderError` unless there are `count` of them, with finite numbers."""
        if vectors.shape != (count, self.dimension) or not np.isfinite(vectors).all():
            raise ProviderError(
                f"the embedder returned {vectors.shape}, not {count} vectors of {self.dimension} finite numbers",
                provider=self.space,
            )
        norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
        return np.asarray(vectors / np.where(norms > 0, norms, 1)[:, None], np.float32)


async def _call_embedder(method: Callable[[T], Any], argument: T) -> Any:
    """Call a method of an embedder; one that is no coroutine function may block, and runs in a thread."""
    if inspect.iscoroutinefunction(method):
        return await method(argument)
    result = await in_thread(partial(method, argument))
    return await result if inspect.isawaitable(result) else result


def find_middle(text: str) -> int:
    """Return the position of the space that is nearest to the middle of a text, or the middle itself."""
    middle = len(text) // 2
    space_before, space_after = text.rfind(" ", 0, middle), text.find(" ", middle)
    spaces = [position for position in (space_before, space_after) if 0 < position < len(text) - 1]
    return min(spaces, key=lambda position: abs(position - middle), default=middle)
