"""Appending on PostgreSQL: what many tasks append at once goes in one statement, each operation atomic on its own.

A few lanes take what is waiting, at most one operation of a context at a time, and send it together: one round trip,
one flush of the server's log. An operation that is refused gives no row back and leaves its neighbours alone; when the
statement itself fails, its operations are sent one by one.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from acms.core.chain import Entropy, Stamp, entry_id, links, locate, micros, stamp
from acms.core.validate import name
from acms.core.wire import dump, load_mapping
from acms.errors import (
    ACMSError,
    ConflictError,
    GoneError,
    SessionNotFoundError,
    StorageBusyError,
    ValidationError,
)
from acms.model import ANY, Append, Entry, Head, JobState, Kind, Lease, Receipt, State
from acms.storage import log
from acms.storage.postgres_base import Lineage, Row, last_id
from acms.storage.postgres_jobs import PostgresJobs
from acms.storage.postgres_pool import FIRST_WAIT, Connection, UnknownOutcomeError
from acms.storage.sql import VERSION_MASK, draft_columns, read_entry, read_lineage, write_parts

LANES = 4
"""Statements under way at once."""
TOGETHER = 64
"""Operations one statement may hold."""
MOST_BYTES = 4 << 20
"""Characters of drafts after which a statement takes no further operation."""
TRIES = 8
"""How often an operation is sent again when the log moves between its refusal and asking why."""

COLUMNS = (
    "origin", "privacy", "role", "actor", "markers", "detected", "episode", "closes", "grp", "covers", "replaces",
    "sources", "data", "metadata",
)  # fmt: skip
"""The names of `draft_columns`."""


class _Waiting:
    """One operation on its way."""

    __slots__ = ("cited", "drafts", "future", "given", "jobs", "keys", "op", "size", "stamps")

    def __init__(self, op: Append, entropy: Entropy, future: asyncio.Future[Receipt | ACMSError]) -> None:
        self.op = op
        self.future = future
        self.stamps = [stamp(draft, entropy) for draft in op.drafts]
        self.keys = [name(draft.key, "key") for draft in op.drafts if draft.key is not None]
        if len(set(self.keys)) != len(self.keys):
            raise ValidationError("is used twice in one append", field="key")
        self.cited = log.cited(op)
        self.drafts, last, nonce, prefix = _drafts(op, self.stamps)
        self.given = _given(op, last, nonce, prefix)
        self.jobs = [
            {
                "kind": job.kind,
                "dedupe": job.dedupe,
                "payload": dump(dict(job.payload)) if job.payload else None,
                "due": None if job.not_before is None else micros(job.not_before),
            }
            for job in op.jobs
        ]
        self.size = sum(len(draft.content) for draft in op.drafts)

    @property
    def alone(self) -> bool:
        """Whether it needs a transaction of several statements."""
        return bool(self.cited) or self.op.finish is not None

    @property
    def repeatable(self) -> bool:
        """Whether sending it twice can write it only once."""
        expect = self.op.expect
        return (
            self.op.finish is not None
            or expect.version is not None
            or (
                expect.last_message is not ANY and self.given["last"] is not None
            )  # a fact leaves it as it is
            or (bool(self.keys) and len(self.keys) == len(self.op.drafts))
        )


def _drafts(op: Append, stamps: Sequence[Stamp]) -> tuple[list[dict[str, Any]], int | None, str | None, str]:
    """Return the rows of an append without their place, and what the head gets from them."""
    rows: list[dict[str, Any]] = []
    position = total = 0
    last: int | None = None
    nonce: str | None = None
    prefix = sha256()
    for k, (draft, one) in enumerate(zip(op.drafts, stamps, strict=True), 1):
        prefix.update(one.digest)
        place: int | None = None
        if draft.kind is Kind.MESSAGE:
            position, total, last, nonce = position + 1, total + draft.tokens, k, one.nonce
            place = position
        row: dict[str, Any] = {
            "k": k,
            "kind": draft.kind._value_,
            "position": place,
            "nonce": one.nonce,
            "total": total,
            "created_at": micros(draft.created_at),
            "tokens": draft.tokens,
            "salt": one.salt.hex(),
            "digest": one.digest.hex(),
            "prefix": prefix.hexdigest(),
            "key": draft.key,
            "content": draft.content,
        }
        if draft.parts:
            row["parts"] = write_parts(draft.parts, draft.content)
        for column, value in zip(COLUMNS, draft_columns(draft), strict=True):
            if value is not None:
                row[column] = value
        rows.append(row)
    return rows, last, nonce, prefix.hexdigest()


def _given(op: Append, last: int | None, nonce: str | None, prefix: str) -> dict[str, Any]:
    """Return what the statement is told of an append as a whole."""
    messages, tokens, rewrites = log.counts(op.drafts)
    expect = op.expect
    spans = [span for draft in op.drafts for span in draft.replaces]
    if any(not 1 <= first <= upto for first, upto in spans):
        reach = VERSION_MASK + 1  # refused, and `log.check` says why
    else:
        reach = max((upto for _, upto in spans), default=0)
    given: dict[str, Any] = {
        "context": op.context,
        "n": len(op.drafts),
        "said": messages,
        "tokens": tokens,
        "rewrites": rewrites,
        "last": last,
        "nonce": nonce,
        "expect_last": expect.last_message is not ANY,
        "expect_rewrites": expect.rewrites,
        "expect_version": expect.version,
        "reach": reach,
        "keep": op.tail is None,
        "tail": dump(op.tail) if op.tail else None,
        "prefix": prefix,
    }
    if isinstance(expect.last_message, str):
        place = locate(expect.last_message)
        given["last_version"] = -1 if place is None else place[1]
        given["last_nonce"] = expect.last_message.rpartition("_")[2]
    return given


def _answer(one: _Waiting, result: Receipt | ACMSError) -> None:
    """Answer the caller, unless it gave up or was answered before."""
    if not one.future.done():
        one.future.set_result(result)


def _text(values: Sequence[Mapping[str, Any]]) -> str:
    """Write rows as JSON; text that UTF-8 cannot say is refused here."""
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


@dataclass(slots=True)
class _Lanes:
    """What is waiting to be appended."""

    running: int = 0
    waiting: dict[str, deque[_Waiting]] = field(default_factory=dict)
    #: Contexts with something waiting and nothing under way.
    ready: deque[str] = field(default_factory=deque)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class PostgresAppend(PostgresJobs):
    """A PostgreSQL store that appends."""

    _entropy: Entropy = staticmethod(os.urandom)

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._lanes = _Lanes()

    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        """Append; each operation is atomic on its own, those that wait together share a commit."""
        await self._open()
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Receipt | ACMSError]] = []
        for op in ops:
            future: asyncio.Future[Receipt | ACMSError] = loop.create_future()
            futures.append(future)
            try:
                self._queue(_Waiting(op, self._entropy, future))
            except ACMSError as error:
                future.set_result(error)
            except Exception as error:
                future.set_result(log.unexpected(error))
        self._start_lanes()
        return [await future for future in futures]

    # ── the lanes ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _queue(self, one: _Waiting) -> None:
        lanes, context = self._lanes, one.op.context
        queue = lanes.waiting.get(context)
        if queue is None:
            lanes.waiting[context] = deque((one,))
            lanes.ready.append(context)
        else:  # something of this context is waiting or under way
            queue.append(one)

    def _start_lanes(self) -> None:
        lanes = self._lanes
        if lanes.ready and lanes.running < min(LANES, self._pool.size):
            lanes.running += 1
            task = asyncio.ensure_future(self._lane())
            lanes.tasks.add(task)
            task.add_done_callback(lanes.tasks.discard)

    async def _lane(self) -> None:
        lanes = self._lanes
        try:
            while lanes.ready:
                batch = self._take()
                try:
                    await self._commit(batch)
                finally:
                    for one in batch:
                        _answer(one, StorageBusyError("the append was broken off"))
                        self._done(one.op.context)
        finally:
            lanes.running -= 1

    def _take(self) -> list[_Waiting]:
        """Take what goes into one statement."""
        lanes = self._lanes
        batch: list[_Waiting] = []
        size = 0
        while lanes.ready and len(batch) < TOGETHER and size < MOST_BYTES:
            one = lanes.waiting[lanes.ready[0]][0]
            if one.alone and batch:
                break
            lanes.ready.popleft()
            batch.append(lanes.waiting[one.op.context].popleft())
            size += one.size
            if one.alone:
                break
        self._start_lanes()
        return batch

    def _done(self, context: str) -> None:
        """Let the next operation of a context go."""
        lanes = self._lanes
        if lanes.waiting[context]:
            lanes.ready.append(context)
            self._start_lanes()
        else:
            del lanes.waiting[context]

    async def aclose(self) -> None:
        """Finish what is under way and let go of the connections."""
        while self._lanes.tasks:
            await asyncio.gather(*self._lanes.tasks)
        await super().aclose()

    # ── one statement ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _commit(self, batch: Sequence[_Waiting]) -> None:
        """Answer every operation of a batch."""
        if len(batch) == 1:
            one = batch[0]
            _answer(one, await self._alone(one))
            return
        try:
            rows = await self._advance(batch)
        except Exception as error:  # one of them spoiled it: each for itself
            lost = error if isinstance(error, UnknownOutcomeError) else None
            for one in batch:
                _answer(one, await self._alone(one, lost=lost))
            return
        for number, one in enumerate(batch):
            row = rows.get(number)
            _answer(one, await self._alone(one, refused=True) if row is None else self._receipt(one, row))

    async def _advance(
        self, batch: Sequence[_Waiting], connection: Connection | None = None
    ) -> dict[int, Row]:
        """Send the operations of different contexts in one statement; return the rows of those that were appended."""
        jobs = [{"op": n, **job} for n, one in enumerate(batch) for job in one.jobs]
        query = "append_with_jobs" if jobs else "append"
        values: dict[str, Any] = {
            "contexts": [one.op.context for one in batch],
            "ops": _text([{"op": n, **one.given} for n, one in enumerate(batch)]),
            "drafts": _text([{"op": n, **draft} for n, one in enumerate(batch) for draft in one.drafts]),
        }
        if jobs:
            values["jobs"] = _text(jobs)
        if connection is not None:
            rows = await self._rows(connection, query, values)
        else:
            (rows,) = await self._ask((query, values), again=False)
        return {row[0]: row for row in rows}

    async def _alone(
        self, one: _Waiting, *, refused: bool = False, lost: UnknownOutcomeError | None = None
    ) -> Receipt | ACMSError:
        """Append one operation; say why when it is refused, and find out what became of it when nobody answered."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._pool.patience
        tries = 0
        while True:
            try:
                if lost is not None and not one.repeatable:
                    return await self._written(one) or lost
                if refused:
                    refused = False
                    found = await self._why(one, unknown=lost is not None)
                    if found is not None:
                        return found
                    tries += 1
                    if tries > TRIES:
                        return ConflictError("other writers were faster every time")
                receipt = await self._attempt(one)
                if receipt is not None:
                    return receipt
                refused = True
            except UnknownOutcomeError as error:
                if loop.time() >= deadline:
                    return error
                lost = error
                await asyncio.sleep(FIRST_WAIT)
            except ACMSError as error:
                if type(error) is not ConflictError or tries >= TRIES:
                    return error if lost is None else await self._despite(error, one, lost)
                tries += 1
                refused = True  # a key was taken in this moment
            except Exception as error:
                return log.unexpected(error)

    async def _despite(
        self, error: ACMSError, one: _Waiting, lost: UnknownOutcomeError
    ) -> Receipt | ACMSError:
        """Return what became of a try that was lost, when a later one is refused: perhaps because of it."""
        if isinstance(error, StorageBusyError):  # nobody could look
            return lost
        try:
            return await self._written(one) or error
        except ACMSError:
            return lost

    async def _attempt(self, one: _Waiting) -> Receipt | None:
        """Send one operation by itself; None when it was refused."""
        if not one.alone:
            row = (await self._advance([one])).get(0)
            return None if row is None else self._receipt(one, row)

        async def work(connection: Connection) -> Receipt:
            op = one.op
            await self._rows(connection, "lock_context", {"context": op.context})
            if one.keys:
                stored = await self._stored(one, connection)
                if log.repeats(op, stored):
                    head = await self._rows(connection, "head", {"context": op.context})
                    entries = [entry for entry in stored if entry is not None]
                    return log.repeated(self._read_head(op.context, head)[0], entries, self.durability)
            if one.cited:
                await self._check_cited(one.cited, connection)
            if op.finish is not None:
                await self._finish(op.finish, connection)
            row = (await self._advance([one], connection)).get(0)
            if row is None:
                raise _RefusedError
            return self._receipt(one, row)

        try:
            return await self._within(work, again=False)
        except _RefusedError:
            return None

    async def _finish(self, lease: Lease, connection: Connection) -> None:
        values = {"id": log.job_number(lease.job.id), "attempt": lease.attempt}
        if not await self._rows(connection, "finish_job", values):
            await self._job(values["id"])
            raise log.lost(lease)

    async def _check_cited(self, ids: Sequence[str], connection: Connection) -> None:
        """Refuse what was made from an erased entry; the entries stay as they are until the commit."""
        places = [place for id in ids if (place := locate(id)) is not None and place[1] <= VERSION_MASK]
        if not places:
            return
        contexts, versions = zip(*places, strict=True)
        rows = await self._rows(connection, "cited", {"contexts": list(contexts), "versions": list(versions)})
        erased = {
            entry_id(Kind(kind), context, version, nonce)
            for version, kind, nonce, context, state in rows
            if state == State.ERASED.value
        }
        for id in ids:
            if id in erased:
                raise GoneError(f"{id} was erased, and so is what was made from it")

    async def _stored(self, one: _Waiting, connection: Connection | None = None) -> list[Entry | None]:
        """Return, per draft, the entry that has its key."""
        values = {"context": one.op.context, "keys": one.keys}
        rows = (
            await self._one("keyed", values)
            if connection is None
            else await self._rows(connection, "keyed", values)
        )
        found = {entry.key: entry for entry in (read_entry(row, one.op.context) for row in rows)}
        return [None if draft.key is None else found.get(draft.key) for draft in one.op.drafts]

    async def _why(self, one: _Waiting, *, unknown: bool) -> Receipt | ACMSError | None:
        """Return why an operation was refused, or that it was written before; None when nothing is in its way now."""
        op = one.op
        if unknown:
            found = await self._written(one)
            if found is not None:
                return found
        try:
            head, _ = self._read_head(op.context, await self._one("head", {"context": op.context}))
            if one.keys:
                stored = await self._stored(one)
                if log.repeats(op, stored):
                    entries = [entry for entry in stored if entry is not None]
                    return log.repeated(head, entries, self.durability)
            log.check(op, head)
        except StorageBusyError:
            raise
        except ACMSError as error:
            return error
        if head.version + len(op.drafts) > VERSION_MASK:
            return ValidationError("the log is full", field="drafts")
        return None

    async def _written(self, one: _Waiting) -> Receipt | None:
        """Return the receipt of an operation that was written although nobody heard of it."""
        op = one.op
        try:
            head, _ = self._read_head(
                op.context, await self._one("head", {"context": op.context}), deleted=True
            )
        except SessionNotFoundError:
            return None
        if not op.drafts:
            if op.finish is None:
                return None
            job = await self._job(log.job_number(op.finish.job.id))
            return (
                log.receipt(head, [], self.durability)
                if (job.attempt, job.state) == (op.finish.attempt, JobState.DONE)
                else None
            )
        values = {
            "context": op.context,
            "after": max(0, head.version - 10_000),
            "digests": [one.digest for one in one.stamps],
        }
        rows = await self._one("written", values)
        if len(rows) != len(op.drafts):
            return None
        found = [
            (version, entry_id(Kind(kind), op.context, version, nonce), position, chain)
            for version, kind, position, nonce, chain in rows
        ]
        return log.receipt(head, found, self.durability)

    def _receipt(self, one: _Waiting, row: Row) -> Receipt:
        """Build the receipt from what the statement returned."""
        op = one.op
        (
            _, base, said, total, before, chain, last_version, last_nonce, rewrites, tail, lineage, derived, epoch,
        ) = row  # fmt: skip
        segments: Lineage = self._lineages.get(op.context, ())
        if lineage != "[]" and not segments:
            segments = self._lineages[op.context] = read_lineage(lineage)
        ids: list[str] = []
        positions: list[int | None] = []
        position, tokens = said, total
        for version, (draft, stamped) in enumerate(zip(op.drafts, one.stamps, strict=True), base + 1):
            place: int | None = None
            if draft.kind is Kind.MESSAGE:
                place = position = position + 1
                tokens += draft.tokens
            ids.append(entry_id(draft.kind, op.context, version, stamped.nonce))
            positions.append(place)
        version = base + len(op.drafts)
        head = Head(
            context=op.context,
            version=version,
            messages=position,
            tokens=tokens,
            last_message=last_id(op.context, segments, last_version, last_nonce),
            rewrites=rewrites,
            derived=derived,
            epoch=epoch,
            chain=chain,
            tail=op.tail if op.tail is not None else dict(load_mapping(tail)),
        )
        return Receipt(
            head=head,
            versions=(base + 1, version),
            ids=tuple(ids),
            positions=tuple(positions),
            chains=tuple(links(before, one.stamps)),
            durability=self.durability,
        )


class _RefusedError(ACMSError):
    """The statement gave no row back; the transaction is rolled back before anyone asks why."""
