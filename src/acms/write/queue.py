"""One queue of writes per context and process: waiting requests are decided together and appended as one operation.

Placing a message (episode, tool group) needs the end of the log. The write queue remembers it from its last append and
names the newest message it has seen as a precondition; if another process wrote first, the store refuses, the head is
read again and the same messages are placed again (rule 1.3). A caller cancelled before its messages were taken leaves
no trace; after that the messages may still be stored, and repeating them with their keys is safe.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, NamedTuple

from acms.config import EpisodeBoundaryConfig, RetryConfig
from acms.errors import (
    ACMSError,
    ConflictError,
    IdempotencyMismatchError,
    PreconditionError,
    StorageUnavailableError,
    ValidationError,
)
from acms.jobs import requests
from acms.jobs.requests import CompactionRequest, EpisodeReflection
from acms.log import policy as policy_levels
from acms.log import read
from acms.log.encoding import Entropy, draw_token
from acms.log.facts import simulate_append
from acms.log.policy import CompactionPolicy, is_compaction_due
from acms.log.read import count_active
from acms.model import (
    ANY,
    Append,
    Draft,
    Embedded,
    Expect,
    Head,
    JobDraft,
    Kind,
    Receipt,
    Seen,
    Span,
    ToolCall,
    ToolResult,
)
from acms.nouns import episode_id
from acms.observability.logging import log_event
from acms.ports import StorageBackend
from acms.results import MessageReceipt
from acms.runtime.chance import chance
from acms.runtime.loops import PerLoop
from acms.session_state import SharedSession
from acms.storage.handles import get_loop_state, get_shared_state
from acms.write.episodes import Place, Tail, assign_episode, tail_of

MERGE = 512
"""Messages one append may hold when callers are merged."""
POLICY_SECONDS = 5.0
"""How long a policy is remembered: another process may change it."""


@dataclass(slots=True)
class AppendRequest:
    """The append request of one caller."""

    drafts: Sequence[Draft]
    rules: EpisodeBoundaryConfig
    retry: RetryConfig
    #: The drafts are no new turns (edits, retractions): appended as they are, without moving the tail.
    rewrite: bool = False
    #: `Head.rewrites` under which the targets of a rewrite were found to be in force.
    rewrites: int | None = None
    #: Version at which a rewrite was decided: with a fact that came since it has to be decided again.
    decided: int | None = None
    #: Edits and retractions that are appended as they are, before the drafts.
    before: Sequence[Draft] = ()
    #: Whether edits and retractions may change which calls wait for results, even if none does now.
    regroups: bool = False
    #: Version at which all of it was decided: at any other one it has to be decided again.
    at: int | None = None
    #: Puts the drafts in their places itself, behind the end of the log, and returns them with the end behind them.
    arrange: Callable[[Tail], tuple[Sequence[Draft], Tail]] | None = None
    #: Id of the newest message its writer has seen, None for an empty log.
    seen: Seen = ANY
    #: Close the current episode for this reason instead of appending drafts.
    close: str | None = None
    #: How compaction is asked for; None when an append asks for none.
    watch: CompactionRequest | None = None
    #: Kind of the reflection that the end of an episode asks for; None when it asks for none.
    reflect: EpisodeReflection | None = None
    #: Where the answer goes when the caller waits in the queue.
    answer: asyncio.Future[Delivered | None] | None = None


class Overtaken(ConflictError):
    """Something was replaced or retracted since the targets were looked at: look again."""


class Delivered(NamedTuple):
    """The drafts as they were placed, and their part of the receipt."""

    drafts: Sequence[Draft]
    receipt: Receipt
    #: Where they start within the receipt.
    start: int
    #: Ordinals of the episodes that a long silence before a message has ended.
    gaps: tuple[int, ...] = ()
    #: Whether the append asked for a job that a worker must be woken for.
    asked: bool = False
    #: Whether it ended an episode that is to be reflected on.
    reflects: bool = False


@dataclass(slots=True)
class _Placed:
    """The placed drafts of a batch, and the effects of their placement."""

    #: The end of the log behind them.
    tail: Tail
    #: Those of each request.
    drafts: list[Sequence[Draft]] = field(default_factory=list)
    #: Ordinals of the episodes that a long silence has ended.
    gaps: list[int] = field(default_factory=list)
    #: Kind of the reflection that an ended episode asks for.
    reflects: EpisodeReflection | None = None


class WriteQueue:
    """The writes of one context, in the order of arrival."""

    def __init__(self, storage: StorageBackend, context: str, entropy: Entropy) -> None:
        self._storage = storage
        self._here = get_loop_state(storage)
        self.context = context
        self._entropy = entropy
        self._waiting: deque[AppendRequest] = deque()
        self._head: Head | None = None
        self._tail = Tail()
        #: Kept, because the event loop alone does not keep a task alive.
        self._task: asyncio.Task[None] | None = None
        #: True while an append is running: new requests are queued.
        self._busy = False
        #: Tasks that wait for that to end.
        self._idlers: list[asyncio.Future[None]] = []
        #: The policy in force, and when it is asked for again.
        self._policy: CompactionPolicy | None = None
        self._policy_until = 0.0
        #: (rewrites, epoch) of a head, and the inactive tokens of its log, less those of summaries.
        self._hidden = (-1, -1, 0)

    async def post(self, request: AppendRequest) -> Delivered | None:
        """Append a request; return None when there was no open episode to close."""
        if self._busy:
            request.answer = asyncio.get_running_loop().create_future()
            self._waiting.append(request)
            return await request.answer
        # The queue is idle: deliver directly, without a task and a future.
        self._busy = True
        try:
            (delivered,) = await self._append([request])
            return delivered
        except BaseException:
            self._head = None  # it may or may not have been stored
            raise
        finally:
            if self._waiting:
                self._task = asyncio.get_running_loop().create_task(self._deliver())
            else:
                self._rest()

    async def idle(self) -> None:
        """Wait until everything that was posted is delivered."""
        while self._busy:
            idler = asyncio.get_running_loop().create_future()
            self._idlers.append(idler)
            await idler

    def _rest(self) -> None:
        self._busy = False
        while self._idlers:
            idler = self._idlers.pop()
            if not idler.done():
                idler.set_result(None)

    async def _deliver(self) -> None:
        """Deliver the waiting requests until none is left."""
        try:
            while self._waiting:
                batch = self._take()
                try:
                    if batch:
                        self._answer(batch, await self._append(batch))
                except (IdempotencyMismatchError, ValidationError) as error:
                    # Nothing was stored, and one request spoils it for all: each on its own.
                    if len(batch) == 1:
                        _fail_requests(batch, error)
                    for request in batch if len(batch) > 1 else ():
                        try:
                            self._answer([request], await self._append([request]))
                        except Exception as own:
                            self._head = None
                            _fail_requests([request], own)
                except Exception as error:
                    self._head = None
                    _fail_requests(batch, error)
                except BaseException as error:  # the loop is shutting down: fail all waiting requests
                    self._head = None
                    _fail_requests([*batch, *self._waiting], error)
                    self._waiting.clear()
                    raise
        finally:
            self._rest()

    def _answer(self, batch: Sequence[AppendRequest], delivered: Sequence[Delivered | None]) -> None:
        for request, one in zip(batch, delivered, strict=True):
            if request.answer is not None and not request.answer.done():
                request.answer.set_result(one)

    def _take(self) -> list[AppendRequest]:
        """Take the requests that can share one append: plain messages with distinct keys; other requests go alone."""
        taken: list[AppendRequest] = []
        keys: set[str] = set()
        size = 0
        while self._waiting:
            request = self._waiting[0]
            if request.answer is not None and request.answer.cancelled():
                self._waiting.popleft()
                continue
            alone = request.rewrite or request.close is not None
            alone = alone or request.seen is not ANY or request.at is not None
            own = {draft.key for draft in request.drafts if draft.key is not None}
            if taken and (alone or own & keys or size + len(request.drafts) > MERGE):
                break
            taken.append(self._waiting.popleft())
            keys |= own
            size += len(request.drafts)
            if alone:
                break
        return taken

    async def _append(self, batch: Sequence[AppendRequest]) -> list[Delivered | None]:
        attempt = conflicts = 0
        lost: ACMSError | None = None
        while True:
            try:
                return await self._try(batch)
            except IdempotencyMismatchError:
                await self._check_that_nothing_came_after(batch[0].at)
                raise
            except ConflictError:
                seen, self._head = self._head, None
                log_event(logging.DEBUG, "append_conflict", context=self.context, requests=len(batch))
                try:
                    head, _ = await self._end_of_log()
                except ACMSError as error:
                    if not error.retryable:
                        raise
                    continue
                if batch[0].rewrites not in (None, head.rewrites):
                    raise Overtaken from None
                if batch[0].seen not in (ANY, head.last_message):
                    raise PreconditionError(
                        f"the newest message is {head.last_message}, not {batch[0].seen}",
                        options=("read what came since, and decide again",),
                    ) from None
                conflicts = conflicts + 1 if seen is not None and seen.version == head.version else 0
                if conflicts > 1:  # no other writer: the store would keep refusing
                    raise
            except ACMSError as error:
                attempt += 1
                retry = batch[0].retry
                # The retry is placed after a head that may include this attempt: only keys identify a repeated message.
                unknown = isinstance(error, StorageUnavailableError) and error.unknown
                keyed = all(draft.key is not None for request in batch for draft in request.drafts)
                lost = error if unknown else lost
                if not error.retryable or attempt >= retry.max_attempts or (unknown and not keyed):
                    if (
                        lost is not None and error.retryable
                    ):  # this failed retry does not prove that the lost attempt failed
                        raise lost from error
                    raise
                self._head = None
                log_event(
                    logging.WARNING, "append_retry", context=self.context, code=error.code, attempt=attempt
                )
                await asyncio.sleep(retry.delay(attempt, chance.random()))

    async def _check_that_nothing_came_after(self, version: int | None) -> None:
        """Raise `Overtaken` if another writer has appended since something was decided at a version.

        The other writer may have used the same keys, which the store checks before versions.
        """
        if version is not None and (await self._end_of_log())[0].version != version:
            self._head = None
            raise Overtaken

    async def _try(self, batch: Sequence[AppendRequest]) -> list[Delivered | None]:
        known = batch[0].close is None  # closing an episode reads the tail from the store
        head, tail = (self._head, self._tail) if self._head and known else await self._end_of_log()
        placed = _Placed(tail)
        for request in batch:
            if request.at not in (None, head.version):
                raise Overtaken
            if request.close is not None:
                if tail.episode == 0 or tail.closed is not None:
                    return [None]
                placed.drafts.append([await self._closing(request.drafts[0], tail)])
                placed.tail = replace(tail, closed=request.close)
                placed.reflects = request.reflect
            elif request.rewrite:
                await self._refuse_overtaken(request, head)
                placed.drafts.append(request.drafts)
                gone = [draft for draft in request.drafts if draft.kind is Kind.RETRACTION]
                if gone and (
                    request.regroups or tail.calls
                ):  # an edit alone leaves calls and results as they are
                    placed.tail = await self._rebuild(head, tail, gone)
            elif request.arrange is not None:
                drafts, behind = request.arrange(tail)
                placed.drafts.append(drafts)
                placed.tail = await self._rebuild(head, behind, drafts)
                if any(draft.closes is not None for draft in drafts):
                    placed.reflects = request.reflect
            else:
                if request.regroups:
                    placed.tail = await self._rebuild(head, tail, request.before)
                self._place(request, placed)
        jobs = await self._jobs(batch[-1].watch, head, placed)
        tail, seen = placed.tail, batch[0].seen
        op = Append(
            context=self.context,
            drafts=tuple([draft for drafts in placed.drafts for draft in drafts]),
            expect=Expect(
                last_message=head.last_message if seen is ANY else seen,
                version=head.version,
                rewrites=batch[0].rewrites,
            ),
            tail=tail.to_json(),
            jobs=jobs,
        )
        self._here.appended = monotonic()
        (result,) = await self._storage.append([op])
        if isinstance(result, ACMSError):
            raise result
        self._here.tell(self.context)
        self._head = result.head
        self._tail = Tail.from_json(result.head.tail) if result.repeated else tail
        return self._delivered(placed, jobs, result)

    async def _refuse_overtaken(self, request: AppendRequest, head: Head) -> None:
        """Raise `Overtaken` when a fact was appended after the version at which a rewrite was decided."""
        if request.decided not in (None, head.version) and await self._storage.read(
            self.context, after=request.decided or 0, at=head.version, kinds=(Kind.FACT,), limit=1
        ):
            raise Overtaken

    def _place(self, request: AppendRequest, placed: _Placed) -> None:
        """Place new messages behind those placed before: in an episode, and in a tool group."""
        tail = placed.tail
        for draft in request.drafts:
            calls = draft.parts and any(isinstance(part, ToolCall) for part in draft.parts)
            found = assign_episode(
                tail, draft, request.rules, f"g_{draw_token(self._entropy, 10)}" if calls else ""
            )
            _apply_placement(draft, found)
            if tail.closed is None and 0 < tail.episode < found.episode:
                placed.gaps.append(tail.episode)
                placed.reflects = placed.reflects or request.reflect
            if found.closes is not None:
                placed.reflects = placed.reflects or request.reflect
            tail = found.tail
        placed.tail = tail
        placed.drafts.append([*request.before, *request.drafts] if request.before else request.drafts)

    async def _jobs(
        self, watch: CompactionRequest | None, head: Head, placed: _Placed
    ) -> tuple[JobDraft, ...]:
        """Return the jobs an append requests; the tail remembers the size of the log at the last compaction request."""
        jobs: tuple[JobDraft, ...] = ()
        if watch is not None and (self._policy is None or self._policy.budget or self._asks_again()):
            jobs = await self._asks(watch, head, placed.tail, placed.drafts)
            if jobs:
                placed.tail = replace(placed.tail, asked=head.tokens + _count_tokens(placed.drafts))
            elif self._policy is not None and await self._outdates(self._policy, head, placed.drafts):
                jobs = (requests.draft_compaction(self.context, watch, self._policy, force=False),)
        if placed.reflects is not None:
            jobs = (*jobs, requests.draft_reflection(self.context, *placed.reflects))
        return jobs

    def _delivered(
        self, placed: _Placed, jobs: Sequence[JobDraft], receipt: Receipt
    ) -> list[Delivered | None]:
        """Divide the receipt of an append among the requests it was made of."""
        delivered: list[Delivered | None] = []
        start = 0
        for drafts in placed.drafts:
            silent = placed.gaps if drafts is placed.drafts[0] else ()
            silences = () if receipt.repeated else tuple(silent)
            asked = bool(jobs) and not receipt.repeated
            ended = asked and placed.reflects is not None
            if ended and len(jobs) == 1 and self.context in self._here.reflecting:
                asked = False  # a running reflection of this process will see it
            delivered.append(Delivered(drafts, receipt, start, silences, asked, ended))
            start += len(drafts)
        return delivered

    @property
    def _front(self) -> StorageBackend:
        """The store behind the cache that its sessions share."""
        return get_shared_state(self._storage).front or self._storage

    def forget_policy(self) -> None:
        """Ask for the policy again with the next append."""
        self._policy = None

    def _asks_again(self) -> bool:
        return monotonic() > self._policy_until

    async def _asks(
        self, watch: CompactionRequest, head: Head, tail: Tail, placed: Sequence[Sequence[Draft]]
    ) -> tuple[JobDraft, ...]:
        """Return the compaction that an append shall ask for, in the same commit (decision 11)."""
        if self._policy is None or self._asks_again():
            known = await policy_levels.resolve_policy(
                self._storage, self.context, namespace=watch.namespace, service=watch.service
            )
            self._policy, self._policy_until = known.policy, monotonic() + POLICY_SECONDS
        policy = self._policy
        if not policy.budget:
            return ()
        total = head.tokens + _count_tokens(placed)
        if not is_compaction_due(policy, total, total - tail.asked):
            return ()
        if self._hidden[:2] != (head.rewrites, head.epoch):
            cover = await read.cover_at(self._front, self.context, head, head.version)
            _, tokens = await count_active(self._front, self.context, head, head.version, cover)
            self._hidden = (head.rewrites, head.epoch, head.tokens - tokens)
        if not is_compaction_due(policy, total - self._hidden[2], total - tail.asked):
            return ()
        return (requests.draft_compaction(self.context, watch, policy, force=False),)

    async def _outdates(
        self, policy: CompactionPolicy, head: Head, placed: Sequence[Sequence[Draft]]
    ) -> bool:
        """Whether a message behind an active summary is replaced or retracted, and appends request compactions."""
        rewrites = (Kind.MESSAGE, Kind.RETRACTION)
        gone = [span for drafts in placed for one in drafts if one.kind in rewrites for span in one.replaces]
        if not gone or not policy.enabled or not policy.budget:
            return False
        cover = await read.cover_at(self._front, self.context, head, head.version)
        return any(
            summary.kind is Kind.SUMMARY
            and _spans_overlap(summary.replaces, gone)
            and not _spans_overlap([(summary.version, summary.version)], gone)
            for summary in cover.shown
        )

    async def _end_of_log(self) -> tuple[Head, Tail]:
        head = await self._storage.head(self.context)
        tail = Tail.from_json(head.tail) if head.tail else Tail()
        if not head.tail and head.messages:
            tail = await self._rebuild(head)
        self._head, self._tail = head, tail
        return head, tail

    async def _rebuild(self, head: Head, known: Tail | None = None, drafts: Sequence[Draft] = ()) -> Tail:
        """Read back to the start of the last episode: after a restore, and in a fork, the head has no tail.

        Of one that is `known`, what drafts behind it change anew: which calls wait for results, as far as is read.
        """
        named = [span for draft in drafts if _has_call_ids(draft) for span in draft.replaces]
        least, size = min(named, default=(head.version, 0))[0], 64
        while True:
            entries = await self._storage.read(
                self.context, at=head.version, kinds=(Kind.MESSAGE, Kind.EPISODE), newest=size
            )
            turns = [entry.episode for entry in entries if entry.kind is Kind.MESSAGE and not entry.replaces]
            whole = turns and (turns[0] != turns[-1] or (known is not None and len(turns) >= 64))
            if len(entries) < size or (whole and entries[0].version <= least):
                break
            size *= 2
        after = entries[0].version if entries else head.version
        replacing = await self._storage.read(self.context, after=after, at=head.version, replacing=True)
        new = simulate_append(drafts, head.version)
        replacing += [entry for entry in new if entry.replaces]
        found = tail_of([*entries, *new], replacing, {} if known is None else known.calls)
        return found if known is None else replace(known, calls=found.calls, pending=found.pending)

    async def _closing(self, draft: Draft, tail: Tail) -> Draft:
        """Fill in the span that a manual close covers."""
        size = max(16, 2 * tail.turns)
        while True:
            entries = await self._storage.read(self.context, kinds=(Kind.MESSAGE,), newest=size)
            turns = [entry for entry in entries if not entry.replaces]
            own = [entry.version for entry in turns if entry.episode == tail.episode]
            if len(own) >= tail.turns or len(entries) < size:
                return replace(draft, covers=(own[0], own[-1]), episode=tail.episode)
            size *= 2


def _spans_overlap(some: Sequence[Span], others: Sequence[Span]) -> bool:
    return any(first <= end and start <= last for first, last in some for start, end in others)


def _has_call_ids(draft: Draft) -> bool:
    return any(isinstance(part, ToolCall | ToolResult) for part in draft.parts)


def _count_tokens(placed: Sequence[Sequence[Draft]]) -> int:
    return sum([draft.tokens for drafts in placed for draft in drafts if draft.kind is Kind.MESSAGE])


def _apply_placement(draft: Draft, place: Place) -> None:
    """Set the placement of a draft in place: it is not shared yet, and copying 24 fields would cost more."""
    object.__setattr__(draft, "episode", place.episode)
    if draft.closes is not place.closes:
        object.__setattr__(draft, "closes", place.closes)
    if draft.group is not place.group:
        object.__setattr__(draft, "group", place.group)


def _fail_requests(batch: Sequence[AppendRequest], error: BaseException) -> None:
    for request in batch:
        if request.answer is not None and not request.answer.done():
            request.answer.set_exception(error)


def write_queue(storage: StorageBackend, context: str, entropy: Entropy) -> WriteQueue:
    """Return the write queue of a context, the same for every session on this handle in the running event loop."""
    queues = get_loop_state(storage).write_queues
    queue = queues.get(context)
    if queue is None:
        queue = queues[context] = WriteQueue(storage, context, entropy)
    return queue


def receipts_of(
    context: str,
    delivered: Delivered,
    embedded: Embedded,
    drafts: Sequence[Draft],
    versions: Sequence[int] | None,
) -> list[MessageReceipt]:
    """Return the receipt of each message; without `versions` they follow the first of the append."""
    receipt, start = delivered.receipt, delivered.start
    found: list[MessageReceipt] = []
    for offset, draft in enumerate(drafts, start):
        position = receipt.positions[offset]
        assert position is not None  # only facts and the like have none
        one = MessageReceipt(
            message_id=receipt.ids[offset],
            version=receipt.versions[0] + offset if versions is None else versions[offset - start],
            position=position,
            chain_hash=receipt.chains[offset].hex(),
            episode_id=episode_id(context, draft.episode),
            tokens=draft.tokens,
            markers=draft.markers,
            durability=receipt.durability,
            embedded=embedded,
            repeated=receipt.repeated,
        )
        found.append(one)
    return found


class Writer:
    """Appends to one session's log and notifies the indexes and the embedder."""

    def __init__(self, shared: SharedSession) -> None:
        self._shared = shared
        #: Kept, so that what they remember of the end of the log is.
        self._queues: PerLoop[WriteQueue] = PerLoop()

    def post(self, context: str, request: AppendRequest) -> Coroutine[Any, Any, Delivered | None]:
        """Append a request; return None when there was no open episode to close."""
        queue = self._queues.get()
        if queue is None or queue.context != context:
            queue = write_queue(self._shared.handle, context, os.urandom)
            self._queues.set(queue)
        return queue.post(request)

    def forget_policy(self, context: str) -> None:
        """Let the next append ask for the policy again."""
        write_queue(self._shared.handle, context, os.urandom).forget_policy()

    async def idle(self) -> None:
        """Wait until everything that was posted in this event loop is delivered."""
        queue = self._queues.get()
        if queue is not None:
            await queue.idle()
            self._queues.pop()

    def note(self, context: str, delivered: Delivered) -> bool:
        """Hand new entries to the index; return whether there is more to do that takes time."""
        shared, receipt = self._shared, delivered.receipt
        if receipt.repeated:
            return False
        indexes, epoch, start = shared.indexes, receipt.head.epoch, delivered.start
        for offset, draft in enumerate(delivered.drafts, start):
            indexes.note(context, epoch, receipt.versions[0] + offset, receipt.ids[offset], draft)
        return indexes.due or shared.embedding is not None

    async def index(self, context: str, delivered: Delivered) -> Embedded:
        """Pass new entries to the index and new messages to the embedder, without waiting for either."""
        shared, receipt = self._shared, delivered.receipt
        if shared.indexes.due:
            await shared.indexes.flush(everything=False)
        first = receipt.versions[0] + delivered.start
        said = [one for one in enumerate(delivered.drafts, first) if one[1].kind is Kind.MESSAGE]
        if shared.embedding is None or not said:
            return "stored"
        return shared.embedding.put(context, receipt.head.epoch, said, shared.indexes.learn)

    async def rewrite(
        self, context: str, drafts: Sequence[Draft], head: Head, *, regroups: bool = False
    ) -> Delivered | None:
        """Append an edit or retraction with its effects on facts; None after a concurrent rewrite: decide again."""
        shared = self._shared
        request = AppendRequest(
            drafts,
            shared.config.episodes,
            shared.config.retry,
            rewrite=True,
            regroups=regroups,
            rewrites=head.rewrites,
            decided=head.version,
            watch=shared.watch,
        )
        try:
            delivered = await self.post(context, request)
        except Overtaken:
            return None
        if delivered is not None and delivered.asked:
            shared.work()
        if delivered is not None and self.note(context, delivered):
            await self.index(context, delivered)
        return delivered
