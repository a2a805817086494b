"""The appender of an SQLite file: as much as possible is computed on the event loop, where the caches are warm.

After the head that this handle wrote last, an append is a few known rows. Several such appends, each to another log,
are written together: two statements for all of them, without a savepoint each. Appends that do not fit, or whose head
has moved, are written on their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import apsw

from acms.errors import ACMSError, ConflictError, CorruptRecordError, ValidationError
from acms.log.encoding import (
    Entropy,
    Stamp,
    dump,
    dump_flat,
    genesis_hash,
    stamp_draft,
    to_microseconds,
    verify_chain,
)
from acms.model import Append, Context, Durability, Entry, Head, Kind, Receipt, State
from acms.storage import append_rules
from acms.storage.append_rules import Read
from acms.storage.sql import VERSION_BITS, VERSION_MASK, draft_columns, read_entry, write_parts
from acms.storage.sqlite.database import Function
from acms.storage.sqlite.jobs import JobQueue
from acms.storage.sqlite.tables import StoredLog, Tables, range_parameters

HEADS = 4096
"""Heads the writer remembers, so that an append need not read the one it left."""


class _Plan(NamedTuple):
    """One append after one head: its rows and the new head."""

    known_head: tuple[int, Head]
    advance: tuple[Any, ...]
    rows: list[tuple[Any, ...]]
    receipt: Receipt


class _Prepared:
    """An append for the writer, with everything it needs except its version."""

    __slots__ = ("appender", "cited", "columns", "is_simple", "keys", "op", "plan", "stamps", "tail")

    def __init__(self, appender: Appender, op: Append) -> None:
        self.appender = appender
        self.op = op
        self.stamps: list[Stamp] = []
        self.keys: list[str] = []
        #: Ids of the entries it was made from.
        self.cited: list[str] = []
        #: Per draft: microseconds, the columns from `origin` to `metadata`, parts.
        self.columns: list[tuple[int, tuple[Any, ...], str | None]] = []
        self.tail: str | None = None
        #: How to write it if the log is still at the cached head; None without one.
        self.plan: _Plan | None = None
        #: Whether writing the plan is all there is to do (no keys, sources or jobs), and its head allows it.
        self.is_simple = False

    def __call__(self, connection: apsw.Connection) -> Receipt:
        """Append inside the writer's transaction."""
        return self.appender.write(connection, self)


class Appender:
    """Appends to the logs of a tenant: prepared on the caller's side, written in the writer's transaction."""

    def __init__(self, tables: Tables, jobs: JobQueue, *, durability: Durability, entropy: Entropy) -> None:
        self._tables = tables
        self._sql = tables.sql
        self._jobs = jobs
        self._durability: Durability = durability
        self._entropy = entropy
        #: Context → (its number in this database, head) as this writer left it; only the writer thread changes it.
        self._heads: dict[str, tuple[int, Head]] = {}
        #: Context → its inherited segments as parameters of the query `inherited`, oldest first; they never change.
        self._inherited: dict[str, list[tuple[int, int, str]]] = {}

    def forget(self) -> None:
        """Clear the caches after a rollback."""
        self._heads.clear()
        self._inherited.clear()

    def prepare(self, op: Append) -> Function:
        """Return an append for the writer; one that cannot be encoded as JSON fails there without affecting others."""
        try:
            return self._prepare(op)
        except Exception as error:
            return partial(_raise_error, append_rules.wrap_unexpected_error(error))

    def _prepare(self, op: Append) -> _Prepared:
        """Do the work that needs no transaction on the caller's thread, where the caches are warm."""
        prepared = _Prepared(self, op)
        for draft in op.drafts:
            created_at = to_microseconds(draft.created_at)
            prepared.stamps.append(stamp_draft(draft, self._entropy, created_at))
            if draft.key is not None:
                prepared.keys.append(draft.key)
            if draft.sources:
                prepared.cited = append_rules.collect_source_ids(op)
            parts = write_parts(draft.parts, draft.content) if draft.parts else None
            prepared.columns.append((created_at, draft_columns(draft), parts))
        if op.tail is not None:
            prepared.tail = dump_flat(op.tail) if op.tail else None
            # A tail that is kept must be read: another handle may have changed it without a new version.
            cached_head = self._heads.get(op.context)
            if cached_head is not None:
                prepared.plan = self._plan(op, prepared, cached_head)
                has_jobs = bool(op.jobs) or op.finish is not None
                if not (prepared.keys or prepared.cited or has_jobs):
                    fits = prepared.plan.receipt.head.version <= VERSION_MASK
                    prepared.is_simple = fits and append_rules.is_append_allowed(op, cached_head[1])
        return prepared

    def _plan(self, op: Append, prepared: _Prepared, known_head: tuple[int, Head]) -> _Plan:
        """Compute what an append behind a known head writes: rows, the new head, the receipt; check nothing."""
        ref, head = known_head
        receipt = append_rules.predict_receipt(op, prepared.stamps, head, self._durability)
        new_head, tail = receipt.head, prepared.tail
        if op.tail is None:
            tail = dump(dict(head.tail)) if head.tail else None
        # New values of the head, then those it must still have.
        advance = (
            new_head.version, new_head.messages, new_head.tokens, new_head.last_message, new_head.rewrites,
            new_head.chain, tail,
            ref, head.version, head.chain, head.rewrites, head.derived, head.epoch,
        )  # fmt: skip
        return _Plan(known_head, advance, _build_rows(op, prepared, known_head, receipt), receipt)

    # ── in the writer's transaction ─────────────────────────────────────────────────────────────────────────────────

    def write_together(self, writer: apsw.Connection, functions: Sequence[Function], start: int) -> list[Any]:
        """Write the simple appends that come next, at most one to each log, in two statements; return their receipts.

        Without two of them, or if one of them fails, nothing is written, and the caller writes them one by one.
        """
        simple_appends = self._take_simple(functions, start)
        if len(simple_appends) < 2:
            return []
        plans = [plan for _, plan in simple_appends]
        writer.execute("SAVEPOINT op")
        succeeded = self._write_plans(writer, plans)
        if not succeeded:  # the caller writes them one by one, which shows which of them fails
            writer.execute("ROLLBACK TO op").fetchall()
            for prepared, _ in simple_appends:
                prepared.is_simple = False
        writer.execute("RELEASE op").fetchall()
        if not succeeded:
            return []
        heads = self._heads
        if len(heads) + len(plans) > HEADS:
            heads.clear()
        for plan in plans:
            ref, _ = plan.known_head
            heads[plan.receipt.head.context] = (ref, plan.receipt.head)
        return [plan.receipt for plan in plans]

    def _take_simple(self, functions: Sequence[Function], start: int) -> list[tuple[_Prepared, _Plan]]:
        """Return the simple appends from `start` on, with their plans, until one is not simple.

        A second append to the same log ends the list too, since its plan is behind the head before the first one; so
        does a plan behind a head that has moved.
        """
        simple_appends: list[tuple[_Prepared, _Plan]] = []
        contexts_taken: set[str] = set()
        heads = self._heads
        for function in functions[start:]:
            if not isinstance(function, _Prepared) or not function.is_simple:
                break
            plan, context = function.plan, function.op.context
            if plan is None or context in contexts_taken or heads.get(context) is not plan.known_head:
                break
            contexts_taken.add(context)
            simple_appends.append((function, plan))
        return simple_appends

    def _write_plans(self, writer: apsw.Connection, plans: Sequence[_Plan]) -> bool:
        """Write plans for different logs; return False if one cannot be written and all must be rolled back."""
        changes_before = writer.total_changes()
        try:
            writer.executemany(self._sql["advance"], [plan.advance for plan in plans])
            if writer.total_changes() - changes_before != len(plans):
                return False
            writer.executemany(self._sql["insert_entry"], [row for plan in plans for row in plan.rows])
        except apsw.ConstraintError:
            return False
        except apsw.Error:  # of the medium: it spoils the whole commit
            raise
        except Exception:  # of what one caller gave
            return False
        return True

    def write(self, connection: apsw.Connection, prepared: _Prepared) -> Receipt:
        """Append to the cached head if no other writer has moved it; otherwise append to the current head."""
        op = prepared.op
        # An append that keeps the tail must read it: another handle may have changed it without a new version.
        cached_head = self._heads.get(op.context) if op.tail is not None else None
        if cached_head is not None:
            try:
                receipt = self._append_at(connection, op, prepared, cached_head)
            except ACMSError:
                if op.context not in self._heads:
                    raise  # the cached head was right: the append was refused for another reason
                receipt = None  # the head may have moved: read it before refusing
            if receipt is not None:
                return receipt
        ref, head, _ = self._tables.log(connection, op.context)
        receipt = self._append_at(connection, op, prepared, (ref, head))
        if receipt is None:
            raise ConflictError("the head moved inside a transaction")
        return receipt

    def _append_at(
        self, connection: apsw.Connection, op: Append, prepared: _Prepared, known_head: tuple[int, Head]
    ) -> Receipt | None:
        """Append behind a known head; None if the log is not at this head any more."""
        if prepared.keys:
            repeat_receipt = self._find_repeat(connection, op, prepared.keys, known_head[0])
            if repeat_receipt is not None:
                return repeat_receipt
        plan = prepared.plan
        if plan is None or plan.known_head is not known_head or not prepared.is_simple:
            plan = self._plan_checked_append(connection, op, prepared, known_head)
        connection.execute(self._sql["advance"], plan.advance)
        if not connection.changes():
            return None
        # If writing the rows fails, the head is rolled back: it must not stay in the cache.
        self._heads.pop(op.context, None)
        self._write_rows(connection, op, prepared, plan)
        if len(self._heads) >= HEADS:
            self._heads.clear()
        self._heads[op.context] = (known_head[0], plan.receipt.head)
        return plan.receipt

    def _find_repeat(
        self, connection: apsw.Connection, op: Append, keys: Sequence[str], ref: int
    ) -> Receipt | None:
        """Return the receipt of an append that was made before under the same keys; None for a new one."""
        if len(set(keys)) != len(keys):
            raise ValidationError("is used twice in one append", field="key")
        entry_of = {key: self._find_by_key(connection, op.context, ref, key) for key in keys}
        new_keys = [key for key, entry in entry_of.items() if entry is None]
        lineage = self._inherited_segments(connection, op.context)
        if lineage and new_keys:
            owner_of = {number: owner for number, _, owner in lineage}
            for row in self._tables.rows(connection, "inherited", (dump(lineage), dump(new_keys))):
                entry = read_entry(row, owner_of[row[0] >> VERSION_BITS])
                entry_of[str(entry.key)] = entry
        stored_entries = [None if draft.key is None else entry_of[draft.key] for draft in op.drafts]
        if not append_rules.is_repeated_append(op, stored_entries):
            return None
        head = self._tables.log(connection, op.context).head
        repeated_entries = [entry for entry in stored_entries if entry is not None]
        return append_rules.build_repeat_receipt(head, repeated_entries, self._durability)

    def _plan_checked_append(
        self, connection: apsw.Connection, op: Append, prepared: _Prepared, known_head: tuple[int, Head]
    ) -> _Plan:
        """Return how an append is written behind a head, when it is allowed there."""
        append_rules.check_append(op, known_head[1])
        if prepared.cited:
            append_rules.refuse_erased_sources(self._tables.entries_by_id(connection, prepared.cited))
        plan = prepared.plan
        if plan is None or plan.known_head is not known_head:
            plan = self._plan(op, prepared, known_head)
        if plan.receipt.head.version > VERSION_MASK:
            raise ValidationError("the log is full", field="drafts")
        return plan

    def _write_rows(self, connection: apsw.Connection, op: Append, prepared: _Prepared, plan: _Plan) -> None:
        """Write the rows of an advanced head: entries, their keys, jobs."""
        if len(plan.rows) == 1:
            connection.execute(self._sql["insert_entry"], plan.rows[0])
        else:
            connection.executemany(self._sql["insert_entry"], plan.rows)
        if prepared.keys:
            ref, head = plan.known_head
            for version, draft in enumerate(op.drafts, head.version + 1):
                if draft.key is not None:
                    connection.execute(self._sql["insert_key"], (ref, draft.key, version)).fetchall()
        if op.jobs or op.finish is not None:
            self._jobs.enqueue(connection, op)

    def _find_by_key(self, connection: apsw.Connection, context: str, ref: int, key: str) -> Entry | None:
        """Return the entry of a log with a key, or None; inherited entries are not looked at."""
        row = self._tables.row(connection, "key_version", (ref, key))
        if row is None:
            return None
        entry_row = self._tables.row(
            connection, "entries_forward", range_parameters(ref, row[0], row[0], limit=1)
        )
        return None if entry_row is None else read_entry(entry_row, context)

    def _inherited_segments(self, connection: apsw.Connection, context: str) -> list[tuple[int, int, str]]:
        """Return the ancestors of a context, oldest first: number, last inherited version and id of each."""
        segments = self._inherited.get(context)
        if segments is None:
            if len(self._inherited) >= HEADS:
                self._inherited.clear()
            lineage = self._tables.log(connection, context).lineage
            segments = [(self._tables.ref(connection, owner), last, owner) for owner, last in lineage]
            self._inherited[context] = segments
        return segments

    def restore(self, connection: apsw.Connection, restored: Context, entries: Sequence[Entry]) -> None:
        """Write entries of a restored log verbatim after the stored ones, if they continue its hash chain."""
        log = self._tables.log(connection, restored.id, deleted=True)
        ref, head = log.ref, log.head
        self._verify_restored(connection, restored, log, entries)
        messages, tokens, rewrites = append_rules.count_drafts(entries)
        rows = [_row_of_entry(ref, entry) for entry in entries]
        connection.executemany(self._sql["insert_entry"], rows)
        last_message = head.last_message
        for entry in entries:
            if entry.key is not None:
                self._tables.rows(connection, "insert_key", (ref, entry.key, entry.version))
            if entry.kind is Kind.MESSAGE:
                last_message = entry.id
        values = (
            entries[-1].version, head.messages + messages, head.tokens + tokens, last_message,
            head.rewrites + rewrites, entries[-1].chain, ref,
        )  # fmt: skip
        self._tables.rows(connection, "advance_restored", values)
        if any(entry.state is not State.LIVE for entry in entries):
            self._tables.rows(connection, "note_blanks", (ref,))

    def _verify_restored(
        self, connection: apsw.Connection, context: Context, log: StoredLog, entries: Sequence[Entry]
    ) -> None:
        """Raise `CorruptRecordError` if the hash chain of new entries does not continue that of the log.

        The chain can be checked only from the start of an append: stored entries of the same append are included.
        """
        stored_entries: list[Entry] = []
        chain, last_version = log.head.chain, log.head.version
        # The last export was cut within this append.
        if (context.fork or 0) < entries[0].batch <= last_version:
            last_version = entries[0].batch - 1
            previous = self._tables.entries(connection, log, Read(after=last_version - 1, at=last_version))
            chain = previous[0].chain if previous else genesis_hash(context.parent or context.id)
            stored_entries = self._tables.entries(connection, log, Read(after=last_version))
        for version, problem in verify_chain([*stored_entries, *entries], head=chain, version=last_version):
            raise CorruptRecordError(f"version {version} of {context.id}: {problem}")


def _build_rows(
    op: Append, prepared: _Prepared, known_head: tuple[int, Head], receipt: Receipt
) -> list[tuple[Any, ...]]:
    """Return the rows of the entries of an append behind a known head."""
    ref, head = known_head
    first_version, last_version = receipt.versions
    total = head.tokens
    rows: list[tuple[Any, ...]] = []
    for version, draft, stamp, (created_at, columns, parts), position, chain in zip(
        range(first_version, last_version + 1),
        op.drafts,
        prepared.stamps,
        prepared.columns,
        receipt.positions,
        receipt.chains,
        strict=True,
    ):
        if position is not None:
            total += draft.tokens
        row = (
            ref << VERSION_BITS | version, draft.kind._value_, position, stamp.nonce, first_version, total,
            created_at, draft.tokens, *columns, None, stamp.salt, stamp.digest, chain, draft.key, parts,
            draft.content,
        )  # fmt: skip
        rows.append(row)
    return rows


def _row_of_entry(ref: int, entry: Entry) -> tuple[Any, ...]:
    """Return an entry as the row that `restore` writes."""
    state = None if entry.state is State.LIVE else entry.state.value
    return (
        ref << VERSION_BITS | entry.version, entry.kind.value, entry.position, entry.id[-6:], entry.batch,
        entry.total, to_microseconds(entry.created_at), entry.tokens, *draft_columns(entry), state, entry.salt,
        entry.digest, entry.chain, entry.key, write_parts(entry.parts, entry.content), entry.content,
    )  # fmt: skip


def _raise_error(error: ACMSError, _connection: apsw.Connection) -> Receipt:
    raise error
