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
    StorageBusyError,
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
    Entry,
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
from acms.write.episodes import MessagePlacement, Tail, assign_episode, rebuild_tail

MAX_MERGED = 512
"""Messages that one append may hold when the requests of several callers are merged."""
UNKNOWN_CALL_NOTE = "no earlier message makes the tool call that this answers: it is shown as text"
NEWEST_MESSAGES = 64
"""Messages that are read at first to find the last episode: most episodes are shorter."""
POLICY_SECONDS = 5.0
"""Seconds for which a policy is cached; another process may change it meanwhile."""


@dataclass(slots=True)
class AppendRequest:
    """The append request of one caller."""

    drafts: Sequence[Draft]
    rules: EpisodeBoundaryConfig
    retry: RetryConfig
    #: Whether the drafts are edits and retractions. They are appended as they are, and no episode gets a new message.
    rewrite: bool = False
    #: `Head.rewrites` at which the targets of a rewrite were active.
    rewrites: int | None = None
    #: Version at which a rewrite was decided. It must be decided again if a fact was appended since.
    decided_at: int | None = None
    #: Edits and retractions that are appended as they are, before the drafts.
    before: Sequence[Draft] = ()
    #: Whether edits and retractions may change which calls wait for results, even if none does now.
    regroups: bool = False
    #: The only version after which the request may be appended: at any other one it must be decided again.
    at: int | None = None
    #: Function that places the drafts of a merge itself after the tail, and returns them with the new tail.
    arrange: Callable[[Tail], tuple[Sequence[Draft], Tail]] | None = None
    #: Id of the newest message its writer has seen, None for an empty log.
    seen: Seen = ANY
    #: Reason for which the current episode is closed; the only draft is the entry of the close.
    close: str | None = None
    #: How a compaction is requested if the log is too long; None to request none.
    watch: CompactionRequest | None = None
    #: Kind of the reflection that the end of an episode requests; None if it requests none.
    reflect: EpisodeReflection | None = None
    #: Gets the result if the caller waits in the queue.
    future: asyncio.Future[AppendResult | None] | None = None


class LogChangedError(ConflictError):
    """The log has changed since a request was decided: its caller decides again."""


class AppendResult(NamedTuple):
    """The drafts as they were placed, and their part of the receipt."""

    drafts: Sequence[Draft]
    receipt: Receipt
    #: Where they start within the receipt.
    start: int
    #: Ordinals of the episodes that a long silence before a message has ended.
    gaps: tuple[int, ...] = ()
    #: Whether the append enqueued a job for which a worker must be woken.
    needs_worker: bool = False
    #: Whether the append ended an episode that is to be reflected on.
    reflects: bool = False

    @property
    def last_version(self) -> int:
        """The version of the last draft."""
        return self.receipt.versions[0] + self.start + len(self.drafts) - 1

    @property
    def last_id(self) -> str:
        """The id of the last draft."""
        return self.receipt.ids[self.start + len(self.drafts) - 1]


@dataclass(slots=True)
class _Placement:
    """The placed drafts of a batch, and the effects of their placement."""

    #: The end of the log after them.
    tail: Tail
    #: The drafts of each request.
    drafts: list[Sequence[Draft]] = field(default_factory=list)
    #: Ordinals of the episodes that a long silence has ended.
    gaps: list[int] = field(default_factory=list)
    #: Kind of the reflection that an ended episode asks for.
    reflects: EpisodeReflection | None = None

    def count_tokens(self) -> int:
        """Return the tokens of the placed messages."""
        messages = [draft for drafts in self.drafts for draft in drafts if draft.kind is Kind.MESSAGE]
        return sum(draft.tokens for draft in messages)


class WriteQueue:
    """The writes of one context, in the order of arrival."""

    def __init__(self, storage: StorageBackend, context: str, entropy: Entropy) -> None:
        self._storage = storage
        self._loop_state = get_loop_state(storage)
        self.context = context
        self._entropy = entropy
        self._waiting: deque[AppendRequest] = deque()
        self._head: Head | None = None
        self._tail = Tail()
        #: Kept, because the event loop alone does not keep a task alive.
        self._task: asyncio.Task[None] | None = None
        #: True while an append is running: then new requests are queued.
        self._busy = False
        #: Futures of the tasks that wait until the queue is idle.
        self._idle_waiters: list[asyncio.Future[None]] = []
        #: The cached policy, and the time at which it is read again.
        self._policy: CompactionPolicy | None = None
        self._policy_until = 0.0
        #: (rewrites, epoch) of a head, and the tokens that its rewrites saved: those of inactive entries, less those of
        #: summaries.
        self._saved_tokens = (-1, -1, 0)

    async def post(self, request: AppendRequest) -> AppendResult | None:
        """Append a request; return None when there was no open episode to close."""
        if self._busy:
            request.future = asyncio.get_running_loop().create_future()
            self._waiting.append(request)
            return await request.future
        # The queue is idle: deliver directly, without a task and a future.
        self._busy = True
        try:
            (delivered,) = await self._append([request])
            return delivered
        except BaseException:
            self._head = None  # the append may or may not have been stored: read the head again
            raise
        finally:
            if self._waiting:
                self._task = asyncio.get_running_loop().create_task(self._deliver())
            else:
                self._end_delivery()

    async def idle(self) -> None:
        """Wait until everything that was posted is delivered."""
        while self._busy:
            waiter = asyncio.get_running_loop().create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def _end_delivery(self) -> None:
        """Mark the queue as idle, and wake the tasks that wait for that."""
        self._busy = False
        while self._idle_waiters:
            waiter = self._idle_waiters.pop()
            if not waiter.done():
                waiter.set_result(None)

    async def _deliver(self) -> None:
        """Deliver the waiting requests until none is left."""
        try:
            while self._waiting:
                batch = self._take_batch()
                try:
                    if batch:
                        self._answer(batch, await self._append(batch))
                except (IdempotencyMismatchError, ValidationError) as error:
                    if len(batch) == 1:
                        _fail_requests(batch, error)
                    else:  # nothing was stored, and one request may have failed all of them
                        await self._deliver_one_by_one(batch)
                except Exception as error:
                    self._head = None
                    _fail_requests(batch, error)
                except BaseException as error:  # the loop is shutting down: fail all waiting requests
                    self._head = None
                    _fail_requests([*batch, *self._waiting], error)
                    self._waiting.clear()
                    raise
        finally:
            self._end_delivery()

    async def _deliver_one_by_one(self, batch: Sequence[AppendRequest]) -> None:
        """Append the requests of a refused batch one after the other, so that only those at fault fail."""
        for request in batch:
            try:
                self._answer([request], await self._append([request]))
            except Exception as error:
                self._head = None  # the append may have moved the head: the next one reads it again
                _fail_requests([request], error)

    def _answer(self, batch: Sequence[AppendRequest], delivered: Sequence[AppendResult | None]) -> None:
        """Pass the results of an append to the callers that wait for them."""
        for request, result in zip(batch, delivered, strict=True):
            if request.future is not None and not request.future.done():
                request.future.set_result(result)

    def _take_batch(self) -> list[AppendRequest]:
        """Take the requests that can share one append: plain messages with distinct keys; other requests go alone."""
        batch: list[AppendRequest] = []
        keys: set[str] = set()
        size = 0
        while self._waiting:
            request = self._waiting[0]
            if request.future is not None and request.future.cancelled():
                self._waiting.popleft()
                continue
            if batch and _needs_own_append(request):
                break
            request_keys = {draft.key for draft in request.drafts if draft.key is not None}
            size += len(request.drafts)
            if batch and (request_keys & keys or size > MAX_MERGED):
                break
            batch.append(self._waiting.popleft())
            keys |= request_keys
            if _needs_own_append(request):
                break
        return batch

    async def _append(self, batch: Sequence[AppendRequest]) -> list[AppendResult | None]:
        """Append some requests in one operation; repeat it after another writer's append, and after a failure.

        A request that cannot share an append is alone in its batch, so the first request has all conditions.
        """
        first = batch[0]
        attempt = conflicts = 0
        #: The error of an attempt that may have been stored nevertheless.
        unknown_error: ACMSError | None = None
        while True:
            try:
                return await self._append_once(batch)
            except IdempotencyMismatchError:
                await self._refuse_newer_append(first.at)
                raise
            except ConflictError:
                log_event(logging.DEBUG, "append_conflict", context=self.context, requests=len(batch))
                previous_head, self._head = self._head, None
                try:
                    head, _ = await self._read_end_of_log()
                except ACMSError as error:
                    if not error.retryable:
                        raise
                    continue  # the next attempt reads the head again, and counts the failure
                _refuse_outdated(first, head)
                is_same_version = previous_head is not None and previous_head.version == head.version
                conflicts = conflicts + 1 if is_same_version else 0
                if conflicts > 1:  # no other writer has appended, so the store would keep refusing
                    raise
            except ACMSError as error:
                attempt += 1
                is_unknown = isinstance(error, StorageUnavailableError) and error.unknown
                if is_unknown:
                    unknown_error = error
                # The retry is placed after a head that may include this attempt: only keys identify a repeated message.
                all_have_keys = all(draft.key is not None for request in batch for draft in request.drafts)
                may_repeat = all_have_keys or not is_unknown
                has_waited = isinstance(error, StorageBusyError) and error.waited
                if not error.retryable or has_waited:
                    raise
                if attempt >= first.retry.max_attempts or not may_repeat:
                    if unknown_error is not None:  # the caller must know that an attempt may have been stored
                        raise unknown_error from error
                    raise
                self._head = None
                log_event(
                    logging.WARNING, "append_retry", context=self.context, code=error.code, attempt=attempt
                )
                await asyncio.sleep(first.retry.delay(attempt, chance.random()))

    async def _refuse_newer_append(self, version: int | None) -> None:
        """Raise `LogChangedError` if another writer has appended after the version at which a request was decided.

        The other writer may have stored the same keys; a store checks keys before versions. None means that the request
        was decided at no version.
        """
        if version is None:
            return
        head, _ = await self._read_end_of_log()
        if head.version != version:
            self._head = None
            raise LogChangedError

    async def _append_once(self, batch: Sequence[AppendRequest]) -> list[AppendResult | None]:
        """Place the drafts of some requests and append them; return [None] if there is no open episode to close."""
        first = batch[0]
        head, tail = self._head, self._tail
        if head is None or first.close is not None:  # closing an episode reads the tail from the store
            head, tail = await self._read_end_of_log()
        if first.close is not None and (tail.episode == 0 or tail.closed is not None):
            return [None]
        placement = _Placement(tail)
        for request in batch:
            await self._place(request, head, placement)
        jobs = await self._request_jobs(batch[-1].watch, head, placement)
        append = Append(
            context=self.context,
            drafts=tuple([draft for drafts in placement.drafts for draft in drafts]),
            expect=Expect(
                last_message=head.last_message if first.seen is ANY else first.seen,
                version=head.version,
                rewrites=first.rewrites,
            ),
            tail=placement.tail.to_json(),
            jobs=jobs,
        )
        self._loop_state.appended = monotonic()
        (result,) = await self._storage.append([append])
        if isinstance(result, ACMSError):
            raise result
        self._loop_state.notify_listeners(self.context)  # the streams of events of this log
        self._head = result.head
        self._tail = Tail.from_json(result.head.tail) if result.repeated else placement.tail
        return self._divide_receipt(result, placement, jobs)

    async def _place(self, request: AppendRequest, head: Head, placement: _Placement) -> None:
        """Place the drafts of a request after those placed before: set their episodes and tool groups.

        There are four sorts of requests: a manual close of the episode, a rewrite (edits and retractions), drafts that
        the request arranges itself, and new messages.
        """
        if request.at not in (None, head.version):
            raise LogChangedError
        tail = placement.tail
        if request.close is not None:
            placement.drafts.append([await self._with_covered_span(request.drafts[0], tail)])
            placement.tail = replace(tail, closed=request.close)
            placement.reflects = request.reflect
        elif request.rewrite:
            await self._refuse_newer_facts(request, head)
            placement.drafts.append(request.drafts)
            retractions = [draft for draft in request.drafts if draft.kind is Kind.RETRACTION]
            # An edit keeps its calls and results; only a retraction can change which calls wait for results.
            if retractions and (request.regroups or tail.calls):
                placement.tail = await self._rebuild_tail(head, tail, retractions)
        elif request.arrange is not None:
            drafts, arranged = request.arrange(tail)
            placement.drafts.append(drafts)
            placement.tail = await self._rebuild_tail(head, arranged, drafts)
            if any(draft.closes is not None for draft in drafts):
                placement.reflects = request.reflect
        else:
            if request.regroups:
                placement.tail = await self._rebuild_tail(head, tail, request.before)
            self._place_messages(request, placement)

    async def _refuse_newer_facts(self, request: AppendRequest, head: Head) -> None:
        """Raise `LogChangedError` if a fact was appended after the version at which a rewrite was decided.

        The rewrite may have to retire that fact too.
        """
        if request.decided_at in (None, head.version):
            return
        facts = await self._storage.read(
            self.context, after=request.decided_at or 0, at=head.version, kinds=(Kind.FACT,), limit=1
        )
        if facts:
            raise LogChangedError

    def _place_messages(self, request: AppendRequest, placement: _Placement) -> None:
        """Place new messages: in an episode, and in a tool group."""
        tail = placement.tail
        for draft in request.drafts:
            makes_calls = draft.parts and any(isinstance(part, ToolCall) for part in draft.parts)
            group = f"g_{draw_token(self._entropy, 10)}" if makes_calls else ""
            place = assign_episode(tail, draft, request.rules, group)
            _apply_placement(draft, place)
            is_gap = tail.closed is None and 0 < tail.episode < place.episode
            if is_gap:
                placement.gaps.append(tail.episode)
            if is_gap or place.closes is not None:
                placement.reflects = placement.reflects or request.reflect
            tail = place.tail
        placement.tail = tail
        placement.drafts.append([*request.before, *request.drafts] if request.before else request.drafts)

    async def _request_jobs(
        self, watch: CompactionRequest | None, head: Head, placement: _Placement
    ) -> tuple[JobDraft, ...]:
        """Return the jobs to enqueue in the same commit (decision 11).

        The tail remembers the size of the log at the last request for a compaction.
        """
        jobs: list[JobDraft] = []
        policy = None if watch is None else await self._find_policy(watch)
        if watch is not None and policy is not None and policy.budget:
            is_due = await self._is_compaction_due(policy, head, placement)
            if is_due:
                total = head.tokens + placement.count_tokens()
                placement.tail = replace(placement.tail, asked=total)
            if is_due or await self._outdates_summary(policy, head, placement.drafts):
                jobs.append(requests.draft_compaction(self.context, watch, policy, force=False))
        if placement.reflects is not None:
            jobs.append(requests.draft_reflection(self.context, *placement.reflects))
        return tuple(jobs)

    def _divide_receipt(
        self, receipt: Receipt, placement: _Placement, jobs: Sequence[JobDraft]
    ) -> list[AppendResult | None]:
        """Divide the receipt of an append among the requests it was made of."""
        gaps = () if receipt.repeated else tuple(placement.gaps)
        needs_worker = bool(jobs) and not receipt.repeated
        reflects = needs_worker and placement.reflects is not None
        is_only_job = len(jobs) == 1
        if reflects and is_only_job and self.context in self._loop_state.reflecting:
            needs_worker = False  # a running reflection of this process will read the episode
        delivered: list[AppendResult | None] = []
        start = 0
        for drafts in placement.drafts:
            delivered.append(AppendResult(drafts, receipt, start, gaps, needs_worker, reflects))
            start += len(drafts)
            gaps = ()  # only the first request reports them
        return delivered

    # ── compaction ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _front(self) -> StorageBackend:
        """The store with the cache that its sessions share, or the store itself if it has none."""
        return get_shared_state(self._storage).front or self._storage

    def forget_policy(self) -> None:
        """Forget the cached policy: the next append reads it again."""
        self._policy = None

    async def _find_policy(self, watch: CompactionRequest) -> CompactionPolicy:
        if self._policy is None or monotonic() > self._policy_until:
            resolved = await policy_levels.resolve_policy(
                self._storage, self.context, namespace=watch.namespace, service=watch.service
            )
            self._policy = resolved.policy
            self._policy_until = monotonic() + POLICY_SECONDS
        return self._policy

    async def _is_compaction_due(self, policy: CompactionPolicy, head: Head, placement: _Placement) -> bool:
        """Return whether the active part of the log is too long.

        Counting the inactive tokens takes reads, so they are only counted if the whole log is too long.
        """
        total = head.tokens + placement.count_tokens()
        grown = total - placement.tail.asked
        if not is_compaction_due(policy, total, grown):
            return False
        if self._saved_tokens[:2] != (head.rewrites, head.epoch):
            replacements = await read.replacements_at(self._front, self.context, head, head.version)
            _, active = await count_active(self._front, self.context, head, head.version, replacements)
            self._saved_tokens = (head.rewrites, head.epoch, head.tokens - active)
        return is_compaction_due(policy, total - self._saved_tokens[2], grown)

    async def _outdates_summary(
        self, policy: CompactionPolicy, head: Head, placed: Sequence[Sequence[Draft]]
    ) -> bool:
        """Return whether the placed drafts replace or retract a message behind a summary that stays active.

        Then a compaction is requested, which renews the summary.
        """
        replaced: list[Span] = []
        for drafts in placed:
            for draft in drafts:
                if draft.kind in (Kind.MESSAGE, Kind.RETRACTION):
                    replaced += draft.replaces
        if not replaced or not policy.enabled:
            return False
        replacements = await read.replacements_at(self._front, self.context, head, head.version)
        for summary in replacements.substitutes:
            if summary.kind is not Kind.SUMMARY:
                continue
            is_replaced = _spans_overlap([(summary.version, summary.version)], replaced)
            if _spans_overlap(summary.replaces, replaced) and not is_replaced:
                return True
        return False

    # ── the end of the log ──────────────────────────────────────────────────────────────────────────────────────────

    async def _read_end_of_log(self) -> tuple[Head, Tail]:
        """Read the head of the log and the tail in it; rebuild a missing tail from the last entries."""
        head = await self._storage.head(self.context)
        if not head.tail and head.messages:
            tail = await self._rebuild_tail(head)
        else:
            tail = Tail.from_json(head.tail)
        self._head, self._tail = head, tail
        return head, tail

    async def _rebuild_tail(
        self, head: Head, known_tail: Tail | None = None, drafts: Sequence[Draft] = ()
    ) -> Tail:
        """Return the tail of the log after some drafts, rebuilt from the entries since the start of the last episode.

        This is needed after a restore and in a fork, where the head has no tail, and after edits or retractions. With a
        `known_tail`, only its open calls are rebuilt: the drafts may change them, and nothing else in the tail.
        """
        oldest = head.version
        for draft in drafts:
            if any(isinstance(part, ToolCall | ToolResult) for part in draft.parts):
                oldest = min([oldest, *(first for first, _ in draft.replaces)])
        entries = await self._read_last_episode(head, oldest, whole=known_tail is None)
        after = entries[0].version if entries else head.version
        replacing = await self._storage.read(self.context, after=after, at=head.version, replacing=True)
        new_entries = simulate_append(drafts, head.version)
        replacing += [entry for entry in new_entries if entry.replaces]
        if known_tail is None:
            return rebuild_tail([*entries, *new_entries], replacing)
        tail = rebuild_tail([*entries, *new_entries], replacing, known_tail.calls)
        return replace(known_tail, calls=tail.calls, pending=tail.pending)

    async def _read_last_episode(self, head: Head, oldest: int, *, whole: bool) -> list[Entry]:
        """Read the messages and closes of the last episode, and at least those since a version.

        Unless the `whole` episode is needed, its newest messages (`NEWEST_MESSAGES`) suffice.
        """
        size = NEWEST_MESSAGES
        while True:
            entries = await self._storage.read(
                self.context, at=head.version, kinds=(Kind.MESSAGE, Kind.EPISODE), newest=size
            )
            if len(entries) < size:
                return entries
            messages = [entry for entry in entries if entry.kind is Kind.MESSAGE and not entry.replaces]
            has_whole_episode = bool(messages) and messages[0].episode != messages[-1].episode
            is_enough = not whole and len(messages) >= NEWEST_MESSAGES
            if (has_whole_episode or is_enough) and entries[0].version <= oldest:
                return entries
            size *= 2

    async def _with_covered_span(self, draft: Draft, tail: Tail) -> Draft:
        """Return a manual close with the ordinal and the first and last version of the episode that it closes."""
        size = max(16, 2 * tail.turns)  # edits between the messages are read too
        while True:
            entries = await self._storage.read(self.context, kinds=(Kind.MESSAGE,), newest=size)
            originals = [entry for entry in entries if not entry.replaces]
            versions = [entry.version for entry in originals if entry.episode == tail.episode]
            if len(versions) >= tail.turns or len(entries) < size:
                return replace(draft, covers=(versions[0], versions[-1]), episode=tail.episode)
            size *= 2


def _needs_own_append(request: AppendRequest) -> bool:
    """Return whether a request must have an append of its own: it has conditions on the log, or is no new message."""
    if request.rewrite or request.close is not None:
        return True
    return request.seen is not ANY or request.at is not None


def _refuse_outdated(request: AppendRequest, head: Head) -> None:
    """Raise an error if the conditions of a request no longer hold after a conflict.

    `LogChangedError` after a rewrite: the caller decides again. `PreconditionError` after a new message.
    """
    if request.rewrites not in (None, head.rewrites):
        raise LogChangedError from None
    if request.seen not in (ANY, head.last_message):
        raise PreconditionError(
            f"the newest message is {head.last_message}, not {request.seen!r}",
            options=("read the newer messages, and decide again",),
        ) from None


def _spans_overlap(spans: Sequence[Span], others: Sequence[Span]) -> bool:
    return any(first <= end and start <= last for first, last in spans for start, end in others)


def _apply_placement(draft: Draft, place: MessagePlacement) -> None:
    """Set the episode of a draft, its end and its tool group, although a draft is frozen.

    It is not shared yet, and copying its 24 fields would cost more.
    """
    # The episode always changes. The other two are nearly always None already, and setting costs more than comparing.
    object.__setattr__(draft, "episode", place.episode)
    if draft.closes is not place.closes:
        object.__setattr__(draft, "closes", place.closes)
    if draft.group is not place.group:
        object.__setattr__(draft, "group", place.group)


def _fail_requests(batch: Sequence[AppendRequest], error: BaseException) -> None:
    for request in batch:
        if request.future is not None and not request.future.done():
            request.future.set_exception(error)


def get_write_queue(storage: StorageBackend, context: str, entropy: Entropy) -> WriteQueue:
    """Return the write queue of a context, the same for every session on this handle in the running event loop."""
    queues = get_loop_state(storage).write_queues
    queue = queues.get(context)
    if queue is None:
        queue = queues[context] = WriteQueue(storage, context, entropy)
    return queue


def build_receipts(
    context: str, delivered: AppendResult, embedded: Embedded, repeated: Sequence[Entry] = ()
) -> list[MessageReceipt]:
    """Return the receipt of each delivered message; `repeated` are the stored entries if the append was repeated."""
    receipt, start = delivered.receipt, delivered.start
    messages: Sequence[Draft] = repeated or delivered.drafts
    receipts: list[MessageReceipt] = []
    for offset, draft in enumerate(messages, start):
        position = receipt.positions[offset]
        assert position is not None  # every message has one
        version = draft.version if isinstance(draft, Entry) else receipt.versions[0] + offset
        receipts.append(
            MessageReceipt(
                message_id=receipt.ids[offset],
                version=version,
                position=position,
                chain_hash=receipt.chains[offset].hex(),
                episode_id=episode_id(context, draft.episode),
                tokens=draft.tokens,
                markers=draft.markers,
                durability=receipt.durability,
                embedded=embedded,
                repeated=receipt.repeated,
                notes=placement_notes(draft),
            )
        )
    return receipts


def placement_notes(message: Draft | Entry) -> tuple[str, ...]:
    """Return a note if a message answers a tool call that the log does not have."""
    if message.group or not any(isinstance(part, ToolResult) for part in message.parts):
        return ()
    return (UNKNOWN_CALL_NOTE,)


class Writer:
    """Appends to one session's log and passes new entries to its worker, its indexes and its embedder."""

    def __init__(self, shared: SharedSession) -> None:
        self._shared = shared
        #: The queue of each event loop, kept here so that it is not collected with its cached end of the log.
        self._queues: PerLoop[WriteQueue] = PerLoop()

    def post(self, context: str, request: AppendRequest) -> Coroutine[Any, Any, AppendResult | None]:
        """Append a request; return None when there was no open episode to close."""
        queue = self._queues.get()
        if queue is None or queue.context != context:
            queue = get_write_queue(self._shared.handle, context, os.urandom)
            self._queues.set(queue)
        return queue.post(request)

    def forget_policy(self, context: str) -> None:
        """Let the next append read the policy again."""
        get_write_queue(self._shared.handle, context, os.urandom).forget_policy()

    async def idle(self) -> None:
        """Wait until everything that was posted in this event loop is delivered."""
        queue = self._queues.get()
        if queue is not None:
            await queue.idle()
            self._queues.pop()

    async def finish_append(self, context: str, delivered: AppendResult) -> Embedded:
        """Start the worker if a job was enqueued, index the new entries, and pass new messages to the embedder.

        The embedder is not waited for. The entries of a repeated append were indexed by the first one.
        """
        shared, receipt = self._shared, delivered.receipt
        if delivered.needs_worker:
            shared.start_worker()
        if receipt.repeated:
            return "stored"
        indexes, epoch, start = shared.indexes, receipt.head.epoch, delivered.start
        messages: list[tuple[int, Draft]] = []
        for offset, draft in enumerate(delivered.drafts, start):
            version = receipt.versions[0] + offset
            indexes.note(context, epoch, version, receipt.ids[offset], draft)
            if draft.kind is Kind.MESSAGE:
                messages.append((version, draft))
        if indexes.is_flush_due:
            await indexes.flush(everything=False)
        if shared.embedding is None or not messages:
            return "stored"
        return shared.embedding.put(context, epoch, messages, indexes.learn)

    async def rewrite(
        self, context: str, drafts: Sequence[Draft], head: Head, *, regroups: bool = False
    ) -> AppendResult | None:
        """Append an edit or retraction with its effects on facts.

        Return None after a concurrent rewrite: the caller must decide again.
        """
        shared = self._shared
        request = AppendRequest(
            drafts,
            shared.config.episodes,
            shared.config.retry,
            rewrite=True,
            regroups=regroups,
            rewrites=head.rewrites,
            decided_at=head.version,
            watch=shared.watch,
        )
        try:
            delivered = await self.post(context, request)
        except LogChangedError:
            return None
        if delivered is not None:
            await self.finish_append(context, delivered)
        return delivered
