"""Vectors for entries and queries: requested from an embedder in batches, stored beside the log, healed when missing.

A message is committed and acknowledged first and embedded in the background: a slow or unavailable embedder costs a
vector, never a message, and its writer no time (rule 2.4). Acknowledged entries wait here in a bounded queue, and the
next recall of their log waits for them, for a bounded time too. All other entries without vectors are not remembered
but queried from the store: that covers a full queue, a provider that failed, a process that was killed, and a new model
(rule 2.3). A text that the model refuses is embedded in parts, and without a vector when its parts are refused too.

A model reads only a limited number of words, so a long text is embedded in chunks of about 170 words that end with a
sentence; the nearest chunk counts. Every text includes the speaker, and the first text also the date. A fact is one
statement: its one text begins with its subject and attribute instead.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from acms.errors import ACMSError, ProviderError, SessionNotFoundError
from acms.model import Derived, Draft, Embedded, Kind, Privacy, State
from acms.observability.logging import log_event
from acms.ports import Embedder, StorageBackend
from acms.privacy.modes import mode_of
from acms.providers.refusal import InputRefusedError
from acms.recall.patience import PATIENCE, patience
from acms.storage import handles
from acms.text.index_record import join_fact_names
from acms.text.tokenizer import find_sentence_spans

RECIPE = "said2"
"""Name of this recipe in a space: vectors of another one are never compared with these."""
WORDS = 170
"""Words of a chunk, at most, unless one sentence is longer."""
PARTS = 64
"""Chunks of one entry, at most."""

SHORTEST = 100
"""Characters of a part of a refused text, at least."""
PROBE = "text"
"""A text every model accepts: a model that refuses it refuses everything."""

_MONTHS = (
    "January February March April May June July August September October November December".split()
)  # fmt: skip


class Passage(NamedTuple):
    """A text to embed, and the characters of the content it stands for."""

    start: int
    end: int
    text: str


def split_passages(draft: Draft) -> list[Passage]:
    """Return the whole entry, or its chunks in order where it is long; nothing for one without content."""
    content = draft.content
    if not content.strip():
        return []
    speaker = draft.actor or (draft.role.value if draft.role else draft.kind.value)
    said = draft.created_at
    date = f"{said.day} {_MONTHS[said.month - 1]} {said.year}"
    if draft.kind is Kind.FACT:  # it stands alone, under its address
        about = join_fact_names(draft)
        return [Passage(0, len(content), f"{about}: {content}" if about else content)]
    if len(content.split(None, WORDS + 1)) <= WORDS:
        return [Passage(0, len(content), f"{date} {speaker}: {content}")]
    (_, end), *rest = _chunk_sentences(content, find_sentence_spans(content))[:PARTS]
    first = Passage(0, end, f"{date} {speaker}: {content[:end]}")
    return [first, *(Passage(start, end, f"{speaker}: {content[start:end]}") for start, end in rest)]


def _chunk_sentences(content: str, sentences: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    start, words = sentences[0][0], 0
    for first, last in sentences:
        size = len(content[first:last].split())
        if words and words + size > WORDS:
            found.append((start, first))
            start, words = first, 0
        words += size
    found.append((start, len(content)))
    return found


BATCH = 64
"""Texts of one call to an embedder."""
PASSAGE = 60
"""Characters of a passage, about: so many passages a queued entry counts for before it is read."""
QUEUED = 4_000_000
"""Characters that may wait in the queue, about two thousand short messages; the store knows the others."""
ENTRY = 1_500
"""Characters that an entry counts for in the queue beside its own: about its memory overhead."""
LULL = 0.05
"""Seconds without an append after which the queue is worked off: writers go first, and their texts go together."""
POSTPONED = 1.0
"""Seconds for which appends may hold that up, at most."""
LOGS = 10_000
"""Logs of which is remembered whether they lack vectors; of others the store is asked again."""
HEALED = 16
"""Logs whose missing vectors are asked for at once; the others wait their turn."""
QUERIES = 64
"""Queries whose vectors are remembered."""
SECONDS = 30.0
"""How long a call to an embedder may take, and a query wait for its vector before words alone must do."""
BACKOFF = 5.0
"""Seconds after a failure before missing vectors are asked for again, and after a wait in vain before the next wait."""

Learn: TypeAlias = Callable[[str, int, Sequence[Derived]], None]
"""Takes (context, erasure generation, vectors) as soon as there are any."""


@dataclass(slots=True, eq=False)
class _Queued:
    """An entry that waits for its vectors."""

    context: str
    #: Erasure generation it was appended in.
    epoch: int
    version: int
    draft: Draft
    learn: Learn
    #: Done when waiting for it is no longer useful; created by the first waiter.
    ended: asyncio.Future[None] | None = None


def get_shared_embedding(storage: StorageBackend, embedder: Embedder, mode: Privacy | None) -> Embedding:
    """Return an embedder at work on a storage handle, the same for all sessions of this process on it."""
    known = handles.get_loop_state(storage).embeddings
    found: Embedding | None = known.get((id(embedder), mode))
    if found is None:
        found = known[id(embedder), mode] = Embedding(storage, embedder, mode)
    return found


class Embedding:
    """One embedder on one storage handle."""

    def __init__(self, storage: StorageBackend, embedder: Embedder, mode: Privacy | None = None) -> None:
        self.storage = storage
        self._mode = mode
        self._embedder = embedder
        given: Any = embedder  # two methods are optional
        self._embed_query: Callable[[str], Awaitable[Any]] | None = getattr(given, "embed_query", None)
        self._reads: Callable[[str], bool] | None = getattr(given, "reads", None)
        #: Whether it met a text that the model does not read, and whether that was said.
        self._met_unread = self._said_unread = False
        self.dimension = embedder.dimension
        #: Names it where it is told who ranked.
        self.model: str = getattr(embedder, "model", None) or type(embedder).__name__
        #: Names everything that makes two vectors comparable.
        self.space = f"{self.model}/{self.dimension}/f16/{RECIPE}"
        self._queries: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        #: Entries appended in this process that have no vectors yet, by log; then the characters they count for.
        self._queue: OrderedDict[str, deque[_Queued]] = OrderedDict()
        self._size = 0
        #: The newest entry of a log that waits or is being embedded.
        self._newest: dict[str, _Queued] = {}
        #: Logs of which some entries found no room: the store is asked for them when the queue is empty.
        self._overflowed: set[str] = set()
        #: Logs that are healed when others are not.
        self._deferred: set[str] = set()
        #: Logs that a recall waits for: they come first.
        self._wanted: set[str] = set()
        self._hurry = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._healing: dict[str, asyncio.Task[None]] = {}
        #: By log that is healed for the first time: done when that has ended, or is known to take long.
        self._first: dict[str, asyncio.Future[None]] = {}
        #: Version of each log up to which no vector is missing, and the entries queued or being embedded.
        self._whole: dict[str, int] = {}
        self._under_way: set[tuple[str, int]] = set()
        self._not_before = self._patient_from = -math.inf

    async def query(self, text: str) -> NDArray[np.float32] | None:
        """Return the unit vector of a query; None when the embedder fails, which is logged."""
        found = self._queries.get(text)
        if found is None:
            try:
                found = await self._embed_question(text)
            except Exception as error:
                self._failed("query", error)
                return None
            self._queries[text] = found
            if len(self._queries) > QUERIES:
                self._queries.popitem(last=False)
        else:
            self._queries.move_to_end(text)
        return found

    def passages(self, draft: Draft) -> list[Passage]:
        """Return the texts of an entry that may be sent to the embedder and that it reads; none of a blocked one."""
        mode = mode_of(self._mode, draft.privacy)
        shown: Draft | None = draft
        if mode is not None:
            from acms.privacy.redact_entry import redact_for_embedding  # the rules come with it

            shown = redact_for_embedding(draft, mode)
        return [] if shown is None else [one for one in split_passages(shown) if self.reads(one.text)]

    def reads(self, text: str) -> bool:
        """Whether the model knows the language of a text; the first one that it does not know is logged."""
        if self._reads is None or self._reads(text):
            return True
        if not self._met_unread:
            self._met_unread = True
            log_event(logging.WARNING, "language_not_read", space=self.space)
        return False

    def take_notice(self) -> tuple[str, ...]:
        """Return, once, that the model does not read all that was said."""
        if not self._met_unread or self._said_unread:
            return ()
        self._said_unread = True
        return (f"{self.model} does not read the language of some texts: they are ranked by words alone",)

    # ── the queue ───────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, context: str, epoch: int, drafts: Sequence[tuple[int, Draft]], learn: Learn) -> Embedded:
        """Queue entries that were just committed, in order.

        "pending" when the store will be asked for them instead: the embedder has just failed, or too much waits.
        """
        loop = asyncio.get_running_loop()
        size = sum([ENTRY + len(draft.content) for _, draft in drafts])
        if loop.time() < self._not_before:
            return "pending"
        if context in self._overflowed or (self._size and self._size + size > QUEUED):
            if len(self._overflowed) < LOGS:
                self._overflowed.add(context)
            return "pending"
        items = [_Queued(context, epoch, version, draft, learn) for version, draft in drafts]
        self._queue.setdefault(context, deque()).extend(items)
        self._size += size
        self._newest[context] = items[-1]
        self._under_way.update([(context, version) for version, _ in drafts])
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._run())
        return "queued"

    async def ready(self, context: str, version: int) -> bool:
        """Wait for the vectors of a log up to a version, within the caller's patience; return whether it waited.

        This covers entries appended in this process, also to the ancestors of a fork; and, the first time the log is
        used, its other missing vectors unless there are many. After a wait in vain, later calls do not wait for a
        while.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + patience.get()
        waited = False
        if self._newest and loop.time() >= self._patient_from:
            waited = await self._done_by(await self._owners(context), end)
        self.heal(context, version)
        first = self._first.get(context)
        if first is not None and loop.time() >= self._patient_from:
            await self._wait([first], end)
            waited = True
        return waited

    async def _owners(self, context: str) -> list[str]:
        """Return whose entries a log reads of which something waits; a log that is gone has none."""
        if self._newest.keys() <= {context}:
            return [*self._newest]
        try:
            lineage = (await self.storage.context(context)).lineage
        except SessionNotFoundError:
            return []
        return [owner for owner, _ in (*lineage, (context, 0)) if owner in self._newest]

    async def _done_by(self, owners: Sequence[str], end: float | None) -> bool:
        """Wait for the newest entries of some logs; return whether there were any."""
        waits: list[asyncio.Future[None]] = []
        for owner in owners:
            item = self._newest.get(owner)
            if item is not None:
                item.ended = item.ended or asyncio.get_running_loop().create_future()
                waits.append(item.ended)
        if waits:
            self._wanted.update(owners)
            self._hurry.set()
            try:
                await self._wait(waits, end)
            finally:
                self._wanted.difference_update(owners)
            for owner in owners:  # what rides on the next commit is read from the store by forks
                await self.storage.put_derived(owner, ())
        return bool(waits)

    async def _wait(self, waits: Sequence[asyncio.Future[None]], end: float | None) -> None:
        loop = asyncio.get_running_loop()
        _, late = await asyncio.wait(waits, timeout=None if end is None else max(0.0, end - loop.time()))
        if late:
            self._patient_from = loop.time() + BACKOFF

    async def _run(self) -> None:
        """Embed waiting entries until there are none."""
        await self._lull()
        while self._queue:
            taken = self._take()
            try:
                await self._embed_entries(taken)
            except Exception as error:
                self._failed("entries", error)
                taken += self._drop()  # the store knows which are missing
            finally:
                self._ended(taken)
        self._begin_to_catch_up()

    def _begin_to_catch_up(self) -> None:
        waits = self._overflowed or self._deferred
        if waits and (self._catching_up is None or self._catching_up.done()):
            self._catching_up = asyncio.get_running_loop().create_task(self._catch_up())

    async def _catch_up(self) -> None:
        """Request vectors for entries that did not fit the queue, log by log: all at once would delay queries."""
        while waits := self._overflowed or self._deferred:
            context = waits.pop()
            self.heal(context)
            if context in self._healing:
                await asyncio.wait([self._healing[context]])
            if asyncio.get_running_loop().time() < self._not_before:  # it is down: recalls will ask
                self._forget_who_waits()

    def _forget_who_waits(self) -> None:
        self._overflowed.clear()
        self._deferred.clear()

    async def _lull(self) -> None:
        """Let writers go first for a moment, unless a recall waits for vectors."""
        self._hurry.clear()
        loop, state = asyncio.get_running_loop(), handles.get_loop_state(self.storage)
        end = loop.time() + POSTPONED
        while not self._wanted and (left := min(state.appended + LULL, end) - loop.time()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._hurry.wait()
            except TimeoutError:
                continue

    def _take(self) -> list[_Queued]:
        """Take about one call's worth of entries: of a log that a recall waits for, else the oldest."""
        taken: list[_Queued] = []
        texts = 0
        while self._queue and texts < BATCH:
            context = next((one for one in self._queue if one in self._wanted), next(iter(self._queue)))
            queue = self._queue[context]
            while queue and texts < BATCH:
                item = queue.popleft()
                self._size -= ENTRY + len(item.draft.content)
                texts += 1 + len(item.draft.content) // PASSAGE
                taken.append(item)
            if not queue:
                del self._queue[context]
        return taken

    def _drop(self) -> list[_Queued]:
        dropped = [item for queue in self._queue.values() for item in queue]
        self._queue.clear()
        self._size = 0
        return dropped

    async def _embed_entries(self, taken: Sequence[_Queued]) -> None:
        """Embed queued entries together and hand over their vectors, which ride on the next commit of their log."""
        found = await self._possible([(item.version, item.draft) for item in taken])
        by_log: dict[str, list[tuple[_Queued, list[Derived]]]] = {}
        for item, rows in zip(taken, found, strict=True):
            if rows is not None:
                by_log.setdefault(item.context, []).append((item, rows))
        for context, some in by_log.items():
            try:
                await self.storage.put_derived(context, [row for _, rows in some for row in rows], wait=False)
            except SessionNotFoundError:  # deleted meanwhile
                continue
            for item, rows in some:
                item.learn(context, item.epoch, rows)
                if self._whole.get(context, 0) == item.version - 1:
                    self._is_whole(context, item.version)

    def _is_whole(self, context: str, version: int) -> None:
        self._whole[context] = max(version, self._whole.pop(context, 0))
        if len(self._whole) > LOGS:
            del self._whole[next(iter(self._whole))]

    def _ended(self, items: Iterable[_Queued]) -> None:
        """Tell those who wait that there is nothing more to wait for."""
        for item in items:
            self._under_way.discard((item.context, item.version))
            if self._newest.get(item.context) is item:
                del self._newest[item.context]
            if item.ended is not None and not item.ended.done():
                item.ended.set_result(None)

    # ── healing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def heal(self, context: str, version: int | None = None) -> None:
        """Request the missing vectors of a log in the background; queued entries get theirs anyway.

        With a version, do so only when some may be missing up to it, and not right after a failure; beyond a number of
        logs at once, the others wait their turn.
        """
        loop = asyncio.get_running_loop()
        known = version is not None and version <= self._whole.get(context, 0)
        early = version is not None and loop.time() < self._not_before
        if context in self._healing or context in self._newest or known or early:
            return
        if version is not None and len(self._healing) >= HEALED:
            if len(self._deferred) < LOGS:
                self._deferred.add(context)
            return
        if context not in self._whole:
            self._first[context] = loop.create_future()
        task = self._healing[context] = loop.create_task(self._heal(context))
        task.add_done_callback(lambda _: self._healed(context))

    def _healed(self, context: str) -> None:
        self._healing.pop(context, None)
        self._need_not_wait(context)
        if self._pump is None or self._pump.done():  # else it does so when it ends
            self._begin_to_catch_up()

    def _need_not_wait(self, context: str) -> None:
        first = self._first.pop(context, None)
        if first is not None and not first.done():
            first.set_result(None)

    async def _heal(self, context: str) -> None:
        refused: set[tuple[str, int]] = set()
        try:
            await self.storage.put_derived(context, ())  # queued rows are stored before the store is queried
            version, after = (await self.storage.head(context)).version, self._whole.get(context, 0)
            while True:
                limit = BATCH + len(refused)
                missing = await self.storage.missing(self.space, context=context, after=after, limit=limit)
                if not missing:
                    self._is_whole(context, version)
                    return
                if len(missing) == limit:
                    self._need_not_wait(context)
                drafts: list[tuple[int, Draft]] = []
                for _, number in (one for one in missing if one not in self._under_way | refused):
                    for entry in await self.storage.read(context, after=number - 1, before=number + 1):
                        if entry.state is State.LIVE:
                            drafts.append((number, entry))
                rows = await self.possible(drafts) if drafts else []
                if not rows or not await self.storage.put_derived(context, rows):
                    return
                stored = {row.version for row in rows}
                refused |= {(context, of) for of, _ in drafts if of not in stored}
        except SessionNotFoundError:  # deleted meanwhile
            return
        except Exception as error:
            self._failed("heal", error)

    async def possible(self, drafts: Sequence[tuple[int, Draft]]) -> list[Derived]:
        """Return the vectors of the entries that the embedder does not refuse; none when it fails."""
        try:
            found = await self._possible(drafts)
        except Exception as error:
            self._failed("heal", error)
            return []
        return [row for rows in found if rows is not None for row in rows]

    async def _possible(self, drafts: Sequence[tuple[int, Draft]]) -> list[list[Derived] | None]:
        """Embed together, or one by one when that fails: a text that is refused keeps no other from its vector."""
        try:
            return [*await self._rows(drafts)]
        except Exception as error:
            if len(drafts) == 1 and not isinstance(error, InputRefusedError):
                raise
            self._tell("entries", error)
        found: list[list[Derived] | None] = [None] * len(drafts)
        for number, one in enumerate(drafts):
            try:
                found[number] = await self._rows_of_one(*one)
            except Exception:
                if number >= min(2, len(drafts) - 1) and not any(found):  # it is no matter of the texts
                    raise
        return found

    async def _rows_of_one(self, version: int, draft: Draft) -> list[Derived]:
        """Return the vectors of an entry; of a text that is refused, those of its parts that are not.

        An entry of which every part is refused is stored without a vector, so that it is not asked for again.
        """
        try:
            (rows,) = await self._rows([(version, draft)])
            return rows
        except InputRefusedError:
            parts = [part for one in self.passages(draft) for part in await self._accepted(one)]
            if not parts:
                await self._call([PROBE])  # raises when the model refuses everything
            log_event(logging.WARNING, "input_refused", space=self.space, version=version, parts=len(parts))
            known = {part.text: vector for part, vector in parts}
            return self._stored(version, [part for part, _ in parts], known)

    async def _accepted(self, passage: Passage) -> list[tuple[Passage, NDArray[np.float32]]]:
        """Return the parts of a passage that are not refused, with their vectors."""
        try:
            (vector,) = await self._call([passage.text])
            return [(passage, vector)]
        except InputRefusedError:
            size = passage.end - passage.start
            if size < 2 * SHORTEST:
                return []
            lead = passage.text[: len(passage.text) - size]
            content = passage.text[len(lead) :]
            middle = find_middle(content)
            halves = (
                Passage(passage.start, passage.start + middle, lead + content[:middle]),
                Passage(passage.start + middle, passage.end, lead + content[middle:]),
            )
            return [part for half in halves for part in await self._accepted(half)]

    async def _rows(self, drafts: Sequence[tuple[int, Draft]]) -> list[list[Derived]]:
        """Return the vectors of each entry, as they are stored."""
        found = [(version, self.passages(draft)) for version, draft in drafts]
        texts = list(dict.fromkeys(passage.text for _, some in found for passage in some))
        known: dict[str, NDArray[np.float32]] = {}
        for start in range(0, len(texts), BATCH):
            some = texts[start : start + BATCH]
            known.update(zip(some, await self._call(some), strict=True))
        return [self._stored(version, some, known) for version, some in found]

    def _stored(
        self, version: int, some: Sequence[Passage], known: dict[str, NDArray[np.float32]]
    ) -> list[Derived]:
        if not some:  # nothing to embed: said once, so that it is not asked for again
            return [Derived(version=version, space=self.space, data=b"")]
        return [
            Derived(
                version=version,
                space=self.space,
                part=part,
                start=passage.start,
                end=passage.end,
                data=known[passage.text].astype("<f2").tobytes(),
            )
            for part, passage in enumerate(some)
        ]

    async def settle(self, context: str) -> None:
        """Wait until the vectors that a log lacks have been asked for."""
        while owners := await self._owners(context):
            await self._done_by(owners, None)
        self.heal(context)
        while context in self._healing:
            await asyncio.wait([self._healing[context]])

    async def stop(self) -> None:
        """Wait a moment for queued entries, and give up the rest: the next session finds out which are missing."""
        if self._pump is not None and not self._pump.done():
            self._wanted.update(self._queue)
            self._hurry.set()
            await asyncio.wait([self._pump], timeout=PATIENCE)
        self._forget_who_waits()
        tasks = [*self._healing.values(), *filter(None, (self._pump, self._catching_up))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._ended(self._drop())
        self._wanted.clear()

    def _failed(self, what: str, error: Exception) -> None:
        self._not_before = asyncio.get_running_loop().time() + BACKOFF
        self._tell(what, error)

    def _tell(self, what: str, error: Exception) -> None:
        code = error.code if isinstance(error, ACMSError) else type(error).__name__
        log_event(logging.WARNING, "embedding_failed", space=self.space, what=what, code=code)

    # ── the embedder ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _call(self, texts: list[str]) -> NDArray[np.float32]:
        async with asyncio.timeout(SECONDS):
            found = np.asarray(await self._embedder.embed(texts), np.float32)
        return self._checked(found, len(texts))

    async def _embed_question(self, text: str) -> NDArray[np.float32]:
        """Return the vector of a question: of one that is refused, the mean of those of its halves."""
        try:
            if self._embed_query is None:
                (vector,) = await self._call([text])
                return vector
            async with asyncio.timeout(SECONDS):
                found = np.asarray(await self._embed_query(text), np.float32)
            (vector,) = self._checked(found[None], 1)
            return vector
        except InputRefusedError:
            if len(text) < 2 * SHORTEST:
                raise
            middle = find_middle(text)
            halves = [await self._embed_question(half) for half in (text[:middle], text[middle:])]
            (vector,) = self._checked(np.sum(halves, axis=0)[None], 1)
            return vector

    def _checked(self, found: NDArray[np.float32], count: int) -> NDArray[np.float32]:
        """Return vectors with length 1; `ProviderError` for anything else than so many of finite numbers."""
        if found.shape != (count, self.dimension) or not np.isfinite(found).all():
            raise ProviderError(
                f"embedder gave {found.shape}, not {count} vectors of {self.dimension} finite numbers",
                provider=self.space,
            )
        norms = np.sqrt(np.einsum("ij,ij->i", found, found))
        return np.asarray(found / np.where(norms > 0, norms, 1)[:, None], np.float32)


def find_middle(text: str) -> int:
    """Return the place of the space that is nearest to the middle of a text, or the middle itself."""
    middle = len(text) // 2
    before, behind = text.rfind(" ", 0, middle), text.find(" ", middle)
    spaces = [position for position in (before, behind) if 0 < position < len(text) - 1]
    return min(spaces, key=lambda position: abs(position - middle), default=middle)
