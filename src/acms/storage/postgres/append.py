"""Appending on PostgreSQL: concurrent appends share one statement, and each operation stays atomic.

A few lanes take the waiting operations and send them together: one round trip, one flush of the server's log.
Operations on one context share a statement if this handle wrote its head last and they fit after it; the statement then
names the chain it was computed for. A refused operation returns no row and does not affect the others. When the
statement itself fails, its operations are sent one by one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from acms.errors import (
    ACMSError,
    ConflictError,
    GoneError,
    SessionNotFoundError,
    StorageBusyError,
    StorageUnavailableError,
    ValidationError,
)
from acms.log.encoding import entry_id
from acms.model import Append, Durability, Entry, Head, JobState, Kind, Receipt, State
from acms.storage import append_rules
from acms.storage.postgres.append_parameters import AppendGroup, PendingAppend, build_append_statement
from acms.storage.postgres.database import Database, read_columns
from acms.storage.postgres.entries import locate_entries
from acms.storage.postgres.jobs import JobQueue
from acms.storage.postgres.pool import FIRST_WAIT, UNREACHABLE, Connection, Row, UnknownOutcomeError
from acms.storage.sql import VERSION_MASK, read_entry, read_job, read_lineage

LANES = 4
"""Statements under way at once."""
TOGETHER = 64
"""Operations one statement may hold."""
MOST_BYTES = 4 << 20
"""Characters of drafts after which a statement takes no further operation."""
HEADS = 4096
"""Heads a handle remembers."""
UNCOMMITTED: Durability = "relaxed"
"""Durability reported for an append before its commit confirms more."""
TRIES = 8
"""How often an operation is sent again when the log moves between its refusal and asking why."""


class Appender:
    """Appends to the logs of a tenant."""

    def __init__(self, db: Database, jobs: JobQueue) -> None:
        self._db = db
        self._jobs = jobs
        self._running = 0
        self._waiting: dict[str, deque[PendingAppend]] = {}
        #: Contexts with something waiting and nothing under way.
        self._ready: deque[str] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Where this handle left a log; only a guess, which the statement checks.
        self._heads: dict[str, Head] = {}

    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        """Append; each operation is atomic on its own, operations that wait together share a commit."""
        await self._db.open()
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Receipt | ACMSError]] = [loop.create_future() for _ in ops]
        waiting: list[PendingAppend] = []
        for op, future in zip(ops, futures, strict=True):
            try:
                waiting.append(PendingAppend(op, self._db.entropy, future))
            except ACMSError as error:
                future.set_result(error)
            except Exception as error:
                future.set_result(append_rules.wrap_unexpected_error(error))
        await self._look_up_inherited_keys([pending for pending in waiting if pending.keys])
        for pending in waiting:
            if not pending.future.done():
                self._enqueue(pending)
        self._start_lanes()
        return [await future for future in futures]

    async def _look_up_inherited_keys(self, waiting: Sequence[PendingAppend]) -> None:
        """Find out which operations on forks have a key that is inherited: no index of the table refuses those."""
        try:
            await self._look_up_lineages(waiting)
            forked = [pending for pending in waiting if pending.lineage and not pending.needs_own_transaction]
            if not forked:
                return
            answers = await self._db.query_all(
                *[("keyed", _parameters_for_keys(pending)) for pending in forked]
            )
            for pending, rows in zip(forked, answers, strict=True):
                pending.has_inherited_key = bool(rows)
        except Exception as error:
            failure = error if isinstance(error, ACMSError) else append_rules.wrap_unexpected_error(error)
            for pending in waiting:
                pending.answer(failure)

    async def _look_up_lineages(self, waiting: Sequence[PendingAppend]) -> None:
        """Set each operation's lineage, the segments that its context inherits; none if there is no such context."""
        lineages = {pending.op.context: self._db.lineages.get(pending.op.context) for pending in waiting}
        unknown = [context for context, lineage in lineages.items() if lineage is None]
        if unknown:
            heads = await self._db.query_all(*[("head", {"context": context}) for context in unknown])
            for context, rows in zip(unknown, heads, strict=True):
                with suppress(SessionNotFoundError):  # missing or deleted: the append refuses it and says why
                    lineages[context] = self._db.read_head(context, rows).lineage
        for pending in waiting:
            pending.lineage = lineages[pending.op.context] or ()

    # ── the lanes ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _enqueue(self, pending: PendingAppend) -> None:
        """Add an operation to the queue of its context; a context without a queue becomes ready."""
        context = pending.op.context
        queue = self._waiting.get(context)
        if queue is None:
            self._waiting[context] = deque((pending,))
            self._ready.append(context)
        else:  # something of this context is waiting or under way
            queue.append(pending)

    def _start_lanes(self) -> None:
        """Start one more task that commits batches, if a context is ready and the limit is not reached."""
        if self._ready and self._running < min(LANES, self._db.pool.size):
            self._running += 1
            task = asyncio.ensure_future(self._run_lane())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run_lane(self) -> None:
        """Commit batches until no context is ready; callers of a batch that is broken off get an error."""
        try:
            while self._ready:
                batch = self._take_batch()
                try:
                    await self._commit(batch)
                finally:
                    for group in batch:
                        for pending in group.members:
                            # Only a commit that was broken off leaves callers without an answer.
                            pending.answer(StorageBusyError("the append was interrupted"))
                        self._release_context(group.context)
        finally:
            self._running -= 1

    def _take_batch(self) -> list[AppendGroup]:
        """Take the operations that go into one statement: one group per context, until the statement is full.

        An operation that needs a transaction of its own makes a batch by itself.
        """
        batch: list[AppendGroup] = []
        count = size = 0
        while self._ready and count < TOGETHER and size < MOST_BYTES:
            queue = self._waiting[self._ready[0]]
            if queue[0].needs_own_transaction and batch:
                break
            group = self._take_group(queue, TOGETHER - count, MOST_BYTES - size)
            self._ready.popleft()
            batch.append(group)
            count += len(group.members)
            size += sum(pending.size for pending in group.members)
            if group.members[0].needs_own_transaction:
                break
        self._start_lanes()
        return batch

    def _take_group(self, queue: deque[PendingAppend], count: int, size: int) -> AppendGroup:
        """Take waiting operations of one context that can be appended behind the known head of its log; at least one.

        Their receipts are computed in advance. An operation is taken by itself if no head is known, if it needs a
        transaction of its own, or if it keeps the stored tail, which must then be read.
        """
        first_pending = queue.popleft()
        head = self._heads.get(first_pending.op.context)
        if first_pending.op.tail is None or head is None:
            return AppendGroup([first_pending])
        if first_pending.needs_own_transaction or not queue:
            return AppendGroup([first_pending])
        group = AppendGroup([], chain=head.chain, rewrites=head.rewrites)
        keys: set[str] = set()
        queue.appendleft(first_pending)
        while queue:
            pending = queue[0]
            is_full = bool(group.members) and min(count, size) <= 0
            repeats_key = not keys.isdisjoint(pending.keys)
            if is_full or pending.needs_own_transaction or repeats_key:
                break
            if not append_rules.is_append_allowed(pending.op, head):
                break
            queue.popleft()
            keys.update(pending.keys)
            receipt = append_rules.predict_receipt(pending.op, pending.stamps, head, UNCOMMITTED)
            group.members.append(pending)
            group.receipts.append(receipt)
            head = receipt.head
            count, size = count - 1, size - pending.size
        # A single one is sent without these expectations, so that the statement reads the head.
        if len(group.members) > 1:
            return group
        if not group.members:
            queue.popleft()
        return AppendGroup([first_pending])

    def _release_context(self, context: str) -> None:
        """Let the next operations of a context be taken."""
        if self._waiting[context]:
            self._ready.append(context)
            self._start_lanes()
        else:
            del self._waiting[context]

    async def close(self) -> None:
        """Wait for the appends and job notifications under way."""
        while self._tasks or self._jobs.notifications:
            await asyncio.gather(*self._tasks, *self._jobs.notifications)

    # ── statements ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def _commit(self, batch: Sequence[AppendGroup]) -> None:
        """Send a batch in one statement and answer its operations; if it fails, send them one by one."""
        members = [pending for group in batch for pending in group.members]
        if len(members) == 1:
            await self._append_one_by_one(members)
            if members[0].jobs:
                self._jobs.announce()
            return
        try:
            rows, durability = await self._advance(batch)
        except StorageUnavailableError as error:
            # They may have been written: each is looked up, or sent again if that is safe.
            if isinstance(error, UnknownOutcomeError):
                await self._append_one_by_one(members, unknown_outcome=error)
            else:
                self._fail_all_waiting(members)
            return
        except Exception:  # one of them made the whole statement fail
            await self._append_one_by_one(members)
            return
        for number, group in enumerate(batch):
            await self._answer_group(group, rows.get(number), durability)
        if self._jobs.hints and any(pending.jobs for pending in members):
            self._jobs.announce()

    async def _answer_group(self, group: AppendGroup, row: Row | None, durability: Durability) -> None:
        """Answer the operations of a group from the row that the statement returned; None if they were refused."""
        if row is None:
            self._heads.pop(group.context, None)
            await self._append_one_by_one(group.members)
        elif group.chain is None:
            (pending,) = group.members
            pending.answer(self._receipt(pending, row, durability))
        else:
            derived, epoch = row[-2:]
            for pending, receipt in zip(group.members, group.receipts, strict=True):
                head = replace(receipt.head, derived=derived, epoch=epoch)
                pending.answer(replace(receipt, head=head, durability=durability))
                self._heads[group.context] = head

    async def _append_one_by_one(
        self, pending_ops: Sequence[PendingAppend], *, unknown_outcome: UnknownOutcomeError | None = None
    ) -> None:
        """Answer operations one by one, until the server is gone."""
        loop = asyncio.get_running_loop()
        for pending in pending_ops:
            started_at = loop.time()
            result = await self._append_single(pending, unknown_outcome=unknown_outcome)
            pending.answer(result)
            patience_ended = loop.time() - started_at >= self._db.pool.patience
            if patience_ended and isinstance(result, StorageUnavailableError):
                self._fail_all_waiting(pending_ops, unknown_outcome)
                return

    def _fail_all_waiting(
        self, pending_ops: Sequence[PendingAppend], unknown_outcome: UnknownOutcomeError | None = None
    ) -> None:
        """Answer everything that waits: patience ended once, and each would have to wait as long again."""
        text = "the server does not answer; this append was not sent"
        unavailable = StorageUnavailableError(text, options=UNREACHABLE)
        for pending in pending_ops:
            pending.answer(unknown_outcome or unavailable)
        for queue in self._waiting.values():
            for pending in queue:
                pending.answer(unavailable)
            queue.clear()
        for context in self._ready:
            del self._waiting[context]
        self._ready.clear()

    async def _advance(self, batch: Sequence[AppendGroup]) -> tuple[dict[int, Row], Durability]:
        """Send the operations of different contexts in one statement.

        Returns the rows of the appended ones, and the durability of their commit.
        """
        (rows,), durability = await self._db.commit_queries(build_append_statement(batch), may_repeat=False)
        return {row[0]: row for row in rows}, durability

    async def _append_single(
        self, pending: PendingAppend, *, unknown_outcome: UnknownOutcomeError | None = None
    ) -> Receipt | ACMSError:
        """Append one operation; return its receipt, or the error that refused it.

        If an answer is lost, the operation is sent again where a second copy would be recognised, else looked up. A
        refused one is sent again unless `_diagnose` finds a reason: then another writer has moved the head
        meanwhile.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._db.pool.patience
        was_refused = False
        tries = 0
        while True:
            try:
                if unknown_outcome is not None and not pending.repeatable:
                    return await self._find_committed(pending) or unknown_outcome
                if was_refused:
                    was_refused = False
                    outcome = await self._diagnose(pending, unknown=unknown_outcome is not None)
                    if outcome is not None:
                        return outcome
                    tries += 1
                    if tries > TRIES:
                        return ConflictError("other writers were first in every attempt")
                receipt = await self._send_single(pending)
                if receipt is not None:
                    return receipt
                was_refused = True
            except UnknownOutcomeError as error:
                if loop.time() >= deadline:
                    return error
                unknown_outcome = error
                await asyncio.sleep(FIRST_WAIT)
            except ACMSError as error:
                if type(error) is not ConflictError or tries >= TRIES:
                    return await self._resolve_after_refusal(error, pending, unknown_outcome)
                tries += 1
                was_refused = True  # a key was taken in this moment
            except Exception as error:
                return append_rules.wrap_unexpected_error(error)

    async def _resolve_after_refusal(
        self, error: ACMSError, pending: PendingAppend, unknown_outcome: UnknownOutcomeError | None
    ) -> Receipt | ACMSError:
        """Return the outcome after an attempt was refused, perhaps because an earlier one had written it already.

        `unknown_outcome` is the error of an earlier attempt whose answer was lost; None if there was none.
        """
        if unknown_outcome is None:
            return error
        if isinstance(error, StorageBusyError | StorageUnavailableError):  # the server could not be asked
            return unknown_outcome
        try:
            return await self._find_committed(pending) or error
        except ACMSError:
            return unknown_outcome

    async def _send_single(self, pending: PendingAppend) -> Receipt | None:
        """Send one operation by itself; None if the statement refused it."""
        if not pending.needs_own_transaction:
            rows, durability = await self._advance([AppendGroup([pending])])
            return self._receipt(pending, rows[0], durability) if rows else None

        # Locks the context, so that keys and cited entries can be checked before the append.
        async def work(connection: Connection) -> Receipt:
            op = pending.op
            await self._db.query_in(connection, "lock_context", {"context": op.context})
            if pending.keys:
                rows = await self._db.query_in(connection, "keyed", _parameters_for_keys(pending))
                repeated_entries = _match_repeated_entries(pending, rows)
                if repeated_entries:
                    log = await self._db.log_state(op.context, connection=connection)
                    return append_rules.build_repeat_receipt(log.head, repeated_entries, UNCOMMITTED)
            if pending.cited:
                try:
                    await self._check_cited(pending.cited, connection)
                except GoneError:  # check the expectation first: its caller decides again
                    log = await self._db.log_state(op.context, connection=connection)
                    append_rules.check_append(op, log.head)
                    raise
            if op.finish is not None:
                await self._jobs.finish(connection, op.finish)
            rows = await self._db.query_in(connection, *build_append_statement([AppendGroup([pending])]))
            if not rows:
                raise _RefusedError
            return self._receipt(pending, rows[0], UNCOMMITTED)

        try:
            receipt, durability = await self._db.run_transaction(work, may_repeat=False)
        except _RefusedError:
            return None
        return replace(receipt, durability=durability)

    async def _check_cited(self, ids: Sequence[str], connection: Connection) -> None:
        """Refuse an entry derived from an erased entry; the cited entries stay locked until the commit."""
        locations = locate_entries(ids)
        if locations is None:
            return
        rows = await self._db.query_in(connection, "cited", locations)
        erased = {
            entry_id(Kind(kind), context, version, nonce)
            for version, kind, nonce, context, state in rows
            if state == State.ERASED.value
        }
        for id in ids:
            if id in erased:
                raise GoneError(f"{id} was erased, with everything made from it")

    async def _diagnose(self, pending: PendingAppend, *, unknown: bool) -> Receipt | ACMSError | None:
        """Return why an operation was refused, its receipt if it was written before, or None if it can be sent again.

        `unknown` says that the answer to an earlier attempt was lost.
        """
        op = pending.op
        if unknown:
            receipt = await self._find_committed(pending)
            if receipt is not None:
                return receipt
        try:
            head = (await self._db.log_state(op.context)).head
            if pending.keys:
                rows = await self._db.query("keyed", _parameters_for_keys(pending))
                if _match_repeated_entries(pending, rows):
                    return await self._confirm_repeat(pending)
            append_rules.check_append(op, head)
        except (StorageBusyError, StorageUnavailableError):
            raise
        except ACMSError as error:
            return error
        if head.version + len(op.drafts) > VERSION_MASK:
            return ValidationError("the log is full", field="drafts")
        return None

    # A readable row is not necessarily durable: its commit may still wait for a standby, or may have been aborted
    # while waiting. So a found row is acknowledged by a commit of its own. That commit writes the lock, since a
    # transaction that writes nothing does not wait for standbys. The log of the server is in order: a standby that has
    # this commit has the found row, too.

    async def _confirm_repeat(self, pending: PendingAppend) -> Receipt | None:
        """Return the receipt of an append whose entries are stored already, or None if they no longer are.

        They are read in a commit of its own, so that the receipt states its durability truthfully.
        """
        op = pending.op
        target = {"context": op.context}
        (_, head_rows, rows), durability = await self._db.commit_queries(
            ("lock_context", target), ("head", target), ("keyed", _parameters_for_keys(pending))
        )
        repeated_entries = _match_repeated_entries(pending, rows)
        if not repeated_entries:
            return None
        return append_rules.build_repeat_receipt(
            self._db.read_head(op.context, head_rows).head, repeated_entries, durability
        )

    async def _find_committed(self, pending: PendingAppend) -> Receipt | None:
        """Return the receipt of an operation that was committed although its answer was lost."""
        op = pending.op
        target = {"context": op.context}
        try:
            head = (await self._db.log_state(op.context, deleted=True)).head
        except SessionNotFoundError:
            return None
        # The digests of the entries are salted, so only this operation can have written them.
        if op.drafts:
            # They lie near the head: a moment ago they were to be appended behind it.
            after, digests = max(0, head.version - 10_000), [stamp.digest for stamp in pending.stamps]
            query = "written", {**target, "after": after, "digests": digests}
        elif op.finish is not None:
            query = "job", {"id": append_rules.job_number(op.finish.job.id)}
        else:
            return None
        (_, head_rows, rows), durability = await self._db.commit_queries(
            ("lock_context", target), ("head", target), query
        )
        head = self._db.read_head(op.context, head_rows, deleted=True).head
        if not op.drafts:
            assert op.finish is not None
            job = read_job(rows[0]) if rows else None
            is_done = job is not None and (job.attempt, job.state) == (op.finish.attempt, JobState.DONE)
            return append_rules.build_receipt(head, [], durability) if is_done else None
        if len(rows) != len(op.drafts):
            return None
        columns = [
            (version, entry_id(Kind(kind), op.context, version, nonce), position, chain)
            for version, kind, position, nonce, chain in rows
        ]
        return append_rules.build_receipt(head, columns, durability)

    def _receipt(self, pending: PendingAppend, row: Row, durability: Durability) -> Receipt:
        """Build the receipt from the row that the statement returned."""
        context = pending.op.context
        (
            _, version, messages, tokens, chain_before, chain, last_version, last_nonce, rewrites, tail, lineage,
            derived, epoch,
        ) = row  # fmt: skip
        segments = self._db.lineages.get(context)
        if segments is None:
            segments = self._db.lineages[context] = read_lineage(lineage)
        # The row has the head after the append, the receipt is computed from the head before it.
        rewrites -= pending.summary["rewrites"]
        chain = chain_before if pending.op.drafts else chain
        columns = (version, messages, tokens, last_version, last_nonce, rewrites, derived, epoch, chain, tail)
        head = read_columns(context, segments, columns)
        receipt = append_rules.predict_receipt(pending.op, pending.stamps, head, durability)
        if len(self._heads) >= HEADS:
            self._heads.clear()
        self._heads[context] = receipt.head
        return receipt


def _parameters_for_keys(pending: PendingAppend) -> dict[str, Any]:
    """Return the query parameters that find the entries with an operation's keys."""
    owners, last_versions = zip(*pending.lineage, (pending.op.context, VERSION_MASK), strict=True)
    return {"owners": list(owners), "upto": list(last_versions), "keys": pending.keys}


def _match_repeated_entries(pending: PendingAppend, rows: Sequence[Row]) -> list[Entry]:
    """Return the entries of an operation that was appended before under its keys; nothing when it was not."""
    entry_of: dict[str | None, Entry] = {}
    for *columns, owner in rows:
        entry = read_entry(columns, owner)
        entry_of[entry.key] = entry
    stored_entries = [None if draft.key is None else entry_of.get(draft.key) for draft in pending.op.drafts]
    if not append_rules.is_repeated_append(pending.op, stored_entries):
        return []
    return [entry for entry in stored_entries if entry is not None]


class _RefusedError(ACMSError):
    """The statement gave no row back; the transaction is rolled back before anyone asks why."""
