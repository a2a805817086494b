"""The reference store: plain Python, lost when the process ends. Its behavior defines that of every store."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from functools import wraps
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, TypeVar

from acms.errors import ACMSError, ConflictError, CorruptRecordError, SessionNotFoundError, ValidationError
from acms.log.encoding import Entropy, context_id, genesis_hash, parse_entry_id, seal_drafts, verify_chain
from acms.log.validation import INNER, validate_name
from acms.model import (
    EMPTY,
    UNFINISHED,
    Append,
    Context,
    ContextDraft,
    ContextQuery,
    Derived,
    Done,
    Draft,
    Durability,
    Entry,
    Failed,
    Head,
    Hit,
    Job,
    JobQuery,
    JobState,
    Json,
    Kind,
    Lease,
    Page,
    Receipt,
    Record,
    Retry,
    Search,
    SessionHead,
    State,
)
from acms.storage import append_rules, handles, records, search
from acms.storage.append_rules import Read
from acms.storage.kv_home import InMemoryKV
from acms.storage.outbox import Outbox
from acms.storage.sessions import compose_session_page, json_contains, read_session_page

P = ParamSpec("P")
R = TypeVar("R")


def _with_lock(
    method: Callable[Concatenate[MemoryStorage, P], CoroutineType[Any, Any, R]],
) -> Callable[Concatenate[MemoryStorage, P], CoroutineType[Any, Any, R]]:
    """Return a method that runs when no other thread is in the store; it awaits nothing but others of the store."""

    @wraps(method)
    async def call(self: MemoryStorage, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.lock:
            return await method(self, *args, **kwargs)

    return call


class JobQueue:
    """The jobs of a store in plain Python."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._jobs: dict[str, Job] = {}

    def enqueue(self, op: Append) -> None:
        """Do what an append does to jobs: end the one it finishes, add new ones."""
        now = self._clock()
        if op.finish is not None:
            job = self._held(op.finish)
            self._jobs[job.id] = replace(
                job, state=JobState.DONE, error=None, lease_until=None, updated_at=now
            )
        for draft in op.jobs:
            if self._twin(draft.dedupe) is not None:
                continue
            id = str(len(self._jobs) + 1)
            self._jobs[id] = Job(
                id=id,
                kind=draft.kind,
                dedupe=draft.dedupe,
                context=op.context,
                payload=dict(draft.payload),
                not_before=draft.not_before or now,
                created_at=now,
                updated_at=now,
            )

    def forget(self, contexts: Set[str], ids: Set[str]) -> None:
        """Empty the payloads of jobs of these contexts that name erased entries."""
        for id, job in self._jobs.items():
            if job.context in contexts and not ids.isdisjoint(job.payload.get("ids", ())):
                self._jobs[id] = replace(job, payload=EMPTY)

    def _twin(self, dedupe: str) -> Job | None:
        """Return the unfinished job of a name."""
        named = (job for job in self._jobs.values() if job.dedupe == dedupe)
        return next((job for job in named if job.state in UNFINISHED), None)

    def _held(self, lease: Lease) -> Job:
        job = self._jobs.get(lease.job.id)
        if job is None:
            raise append_rules.job_missing_error(lease.job.id)
        if job.attempt != lease.attempt or job.state is not JobState.RUNNING:
            raise append_rules.lease_lost_error(lease)
        return job

    def claim(self, kinds: Sequence[str], lease: timedelta, limit: int) -> list[Lease]:
        """Take due jobs, oldest first."""
        now = self._clock()
        due = [job for job in self._jobs.values() if job.kind in kinds and self._due(job, now)]
        found: list[Lease] = []
        for job in sorted(due, key=lambda job: (job.not_before, int(job.id)))[:limit]:
            taken = replace(
                job, state=JobState.RUNNING, attempt=job.attempt + 1, lease_until=now + lease, updated_at=now
            )
            self._jobs[job.id] = taken
            silent = job.state is JobState.RUNNING
            found.append(Lease(job=taken, attempt=taken.attempt, until=now + lease, silent=silent))
        return found

    def _due(self, job: Job, now: datetime) -> bool:
        if job.state not in UNFINISHED:
            return False
        when = job.not_before if job.state is JobState.READY else job.lease_until
        return when is None or when <= now or job.updated_at > now + append_rules.CLOCKS_DIFFER

    def extend(self, lease: Lease, by: timedelta) -> Lease:
        """Prolong a lease."""
        now = self._clock()
        job = self._jobs[lease.job.id] = replace(self._held(lease), lease_until=now + by, updated_at=now)
        return replace(lease, job=job, until=now + by)

    def settle(self, lease: Lease, outcome: Retry | Failed | Done) -> Job:
        """End an attempt that has no effect on the log."""
        job = self._jobs.get(lease.job.id)
        if job is None:
            raise append_rules.job_missing_error(lease.job.id)
        if (job.attempt, job.state) != (lease.attempt, lease.job.state) or job.state is JobState.DONE:
            raise append_rules.lease_lost_error(lease)
        state, why, due = append_rules.resolve_outcome(job, outcome)
        done = state is JobState.DONE
        twin = self._twin(job.dedupe) if state is JobState.READY else None
        if twin is not None and twin.id != job.id:
            raise append_rules.duplicate_job_error(job.id, twin.id)
        job = replace(
            job,
            state=state,
            error=None if done else why,
            reason=why if done else None,
            not_before=due,
            lease_until=None,
            updated_at=self._clock(),
        )
        self._jobs[job.id] = job
        return job

    def page(self, query: JobQuery) -> Page[Job]:
        """List jobs, newest first."""
        found = [
            job
            for job in sorted(self._jobs.values(), key=lambda job: -int(job.id))
            if (not query.ids or job.id in query.ids)
            and (query.context is None or job.context == query.context)
            and (not query.states or job.state in query.states)
            and (query.after is None or int(job.id) < append_rules.job_number(query.after))
        ]
        shown = tuple(found[: query.limit])
        return Page(items=shown, next_after=shown[-1].id if len(found) > query.limit else None)


_DRAFT_FIELDS = tuple(field.name for field in fields(Draft))


@dataclass(slots=True)
class Log:
    """One context and the entries it owns."""

    context: Context
    head: Head
    entries: list[Entry] = field(default_factory=list)
    keys: dict[str, int] = field(default_factory=dict)
    derived: dict[tuple[str, int, int], Derived] = field(default_factory=dict)
    #: Revision and data by name, the one put longest ago first.
    records: dict[str, tuple[int, str]] = field(default_factory=dict)
    #: Both count on the root of the fork tree only.
    epoch: int = 0
    seq: int = 0
    #: Chain value before the first entry it owns.
    start: bytes = b""

    @property
    def first(self) -> int:
        """Version of the first entry it owns."""
        return 1 if self.context.fork is None else self.context.fork + 1


class MemoryStorage:
    """A store in memory."""

    durability: Durability = "memory"

    def __init__(
        self,
        *,
        tenant: str = "default",
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        entropy: Entropy = os.urandom,
    ) -> None:
        self.tenant = validate_name(tenant, "tenant")
        self._clock = clock
        self._entropy = entropy
        self._logs: dict[str, Log] = {}
        self._jobs = JobQueue(clock)
        self._own = InMemoryKV(clock=clock, entropy=entropy)
        self._outbox = Outbox(self, self._own)
        #: Held during reads and writes: several event loops run in several threads.
        self.lock = threading.RLock()
        #: One record per erasure or expiry.
        self.audit: list[Mapping[str, Json]] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._logs)} contexts, tenant={self.tenant!r})"

    async def __aenter__(self) -> MemoryStorage:
        """Use the store in a block."""
        handles.retain_handle(self)
        return self

    async def __aexit__(self, *error: object) -> None:
        """Leave the block; the stored data stays."""
        await handles.release_handle(self)

    async def aclose(self) -> None:
        """Do nothing: the stored data lives as long as the object."""

    # ── contexts ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _by_key(self, namespace: str, key: str) -> Context | None:
        for found in self._logs.values():
            context = found.context
            if (context.namespace, context.key, context.deleted_at) == (namespace, key, None):
                return context
        return None

    @_with_lock
    async def create(self, context: ContextDraft) -> Context:
        """Create a context, or return the live one with the same namespace and key."""
        if context.key is not None:
            found = self._by_key(context.namespace, context.key)
            if found is not None:
                return found
        id = context_id(self._entropy)
        new = Context(
            id=id,
            namespace=validate_name(context.namespace, "namespace"),
            key=None if context.key is None else validate_name(context.key, "key"),
            root=id,
            counter=context.counter,
            settings=append_rules.freeze_value(context.settings),
            created_at=context.created_at,
        )
        head = Head(context=id, chain=genesis_hash(id))
        if context.parent is not None:
            new, head = self._forked(new, context.parent, context.fork)
            settings = append_rules.settings_of_fork(self._logs[context.parent].context.settings, context)
            new = replace(new, settings=append_rules.freeze_value(settings))
        self._logs[id] = Log(new, head, start=head.chain)
        return new

    def _forked(
        self, new: Context, parent: str, fork: int | None, *, deleted: bool = False
    ) -> tuple[Context, Head]:
        source = self._log(parent, deleted=deleted)
        at = source.head.version if fork is None else fork
        if not 0 <= at <= source.head.version:
            raise ValidationError(f"must be from 0 to {source.head.version}, was {at}", field="fork")
        lineage = append_rules.lineage_of_fork(parent, source.context.lineage, at)
        inherited = self._select(source, 1, at)
        said = [entry for entry in inherited if entry.kind is Kind.MESSAGE]
        head = Head(
            context=new.id,
            version=at,
            messages=said[-1].position or 0 if said else 0,
            tokens=said[-1].total if said else 0,
            last_message=said[-1].id if said else None,
            rewrites=sum(1 for entry in inherited if entry.replaces),
            chain=inherited[-1].chain if inherited else genesis_hash(parent),
        )
        return replace(new, root=source.context.root, parent=parent, fork=at, lineage=lineage), head

    @_with_lock
    async def context(self, id_or_key: str, *, namespace: str = "default") -> Context:
        """Return a context by its id or by the key of a live one."""
        found = self._by_key(namespace, id_or_key)
        if found is None and id_or_key in self._logs:
            found = self._logs[id_or_key].context
        if found is None:
            raise SessionNotFoundError(f"no session or context is named {id_or_key!r}")
        return found

    @_with_lock
    async def contexts(self, query: ContextQuery) -> Page[Context]:
        """List contexts, newest first."""
        ids = list(self._logs)
        if query.after is not None:
            if query.after not in self._logs:
                raise SessionNotFoundError(f"no context has the id {query.after!r}")
            ids = ids[: ids.index(query.after)]
        found = [
            context
            for context in (self._logs[id].context for id in reversed(ids))
            if (query.namespace is None or context.namespace == query.namespace)
            and (query.parent is None or context.parent == query.parent)
            and (query.root is None or context.root == query.root)
            and not (query.spoken and context.key in INNER)
            and (not query.where or json_contains(context.settings, query.where))
            and (query.deleted or context.deleted_at is None)
        ]
        shown = tuple(found[: query.limit])
        return Page(items=shown, next_after=shown[-1].id if len(found) > query.limit else None)

    sessions = read_session_page
    session_page = compose_session_page

    @_with_lock
    async def heads(self, namespace: str) -> list[SessionHead]:
        """Return where each live context of a namespace stands, oldest first."""
        return [
            SessionHead(
                one.context.id,
                one.context.key,
                one.context.counter,
                one.context.fork or 0,
                one.head.version,
                one.head.rewrites,
                self._logs[one.context.root].seq,
                self._logs[one.context.root].epoch,
                bool(one.context.settings.get("private")),
            )
            for one in self._logs.values()
            if one.context.namespace == namespace and one.context.deleted_at is None
        ]

    @_with_lock
    async def settings(self, context: str, change: Mapping[str, Json], *, rev: int) -> Context:
        """Merge a change into the settings if they are still at `rev`."""
        found = self._log(context, deleted=True)
        old = found.context
        if old.settings_rev != rev:
            raise ConflictError(f"the settings are at revision {old.settings_rev}, not {rev}")
        deleted_at = old.deleted_at
        if "deleted" in change:
            deleted_at = (deleted_at or self._clock()) if change["deleted"] else None
        back = old.deleted_at is not None and deleted_at is None
        if back and old.key is not None and self._by_key(old.namespace, old.key) is not None:
            raise ConflictError(f"the session {old.key!r} exists again")
        merged = {**old.settings, **change, "deleted": None}
        settings = {key: value for key, value in merged.items() if value is not None}
        found.context = replace(
            old,
            settings=append_rules.freeze_value(settings),
            settings_rev=rev + 1,
            deleted_at=deleted_at,
        )
        if deleted_at is not None:
            found.records.clear()
        return found.context

    # ── the log ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _log(self, context: str, *, deleted: bool = False) -> Log:
        found = self._logs.get(context)
        if found is None:
            raise SessionNotFoundError(f"no context has the id {context!r}")
        if found.context.deleted_at is not None and not deleted:
            raise SessionNotFoundError(f"the context {context!r} was deleted", options=("undelete it first",))
        return found

    def _get(self, id: str) -> Entry | None:
        place = parse_entry_id(id)
        found = None if place is None else self._logs.get(place[0])
        if place is None or found is None or not found.first <= place[1] <= found.head.version:
            return None
        entry = found.entries[place[1] - found.first]
        return entry if entry.id == id else None

    async def heads_of(self, contexts: Sequence[str]) -> list[Head | None]:
        """Return the heads of contexts in their order; None for one that is not there, or was deleted."""
        found = map(self._logs.get, contexts)
        return [
            self._head(one) if one is not None and one.context.deleted_at is None else None for one in found
        ]

    @_with_lock
    async def head(self, context: str) -> Head:
        """Return where the log stands."""
        return self._head(self._log(context))

    def _head(self, found: Log) -> Head:
        root = self._logs[found.context.root]
        return replace(found.head, epoch=root.epoch, derived=root.seq)

    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        """Append; each operation is atomic on its own."""
        return await self._outbox.append(ops, self._append_all)

    def own_values(self) -> InMemoryKV:
        """Return ACMS's own data about the tenant."""
        return self._own

    @_with_lock
    async def _append_all(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        results: list[Receipt | ACMSError] = []
        for op in ops:
            try:
                results.append(self._append(op))
            except ACMSError as error:
                results.append(error)
            except Exception as error:  # of what the caller gave: it must not take its neighbours along
                results.append(append_rules.wrap_unexpected_error(error))
        return results

    def _append(self, op: Append) -> Receipt:
        found = self._log(op.context)
        head = self._head(found)
        keyed = [draft.key for draft in op.drafts if draft.key is not None]
        if len(set(keyed)) != len(keyed):
            raise ValidationError("is used twice in one append", field="key")
        known = [None if draft.key is None else self._keyed(found, draft.key) for draft in op.drafts]
        if keyed and append_rules.is_repeated_append(op, known):
            return append_rules.build_repeat_receipt(
                head, [entry for entry in known if entry is not None], self.durability
            )
        append_rules.check_append(op, head)
        append_rules.refuse_erased_sources(self._get(id) for id in append_rules.collect_source_ids(op))
        position, total, last = head.messages, head.tokens, head.last_message
        added: list[Entry] = []
        for draft, (id, salt, digest, chain) in zip(
            op.drafts,
            seal_drafts(op.context, head.version + 1, head.chain, op.drafts, self._entropy),
            strict=True,
        ):
            message = draft.kind is Kind.MESSAGE
            if message:
                position, total, last = position + 1, total + draft.tokens, id
            added.append(
                Entry(
                    **{name: append_rules.freeze_value(getattr(draft, name)) for name in _DRAFT_FIELDS},
                    context=op.context,
                    version=head.version + 1 + len(added),
                    position=position if message else None,
                    id=id,
                    batch=head.version + 1,
                    total=total,
                    salt=salt,
                    digest=digest,
                    chain=chain,
                )
            )
        self._jobs.enqueue(op)
        found.entries.extend(added)
        found.keys.update({entry.key: entry.version for entry in added if entry.key is not None})
        found.head = replace(
            head,
            version=head.version + len(added),
            messages=position,
            tokens=total,
            last_message=last,
            rewrites=head.rewrites + append_rules.count_drafts(op.drafts)[2],
            chain=added[-1].chain if added else head.chain,
            tail=head.tail if op.tail is None else append_rules.freeze_value(op.tail),
        )
        return append_rules.build_receipt(
            found.head,
            [(entry.version, entry.id, entry.position, entry.chain) for entry in added],
            self.durability,
        )

    def _keyed(self, found: Log, key: str) -> Entry | None:
        """Return the entry under a key: the log's own, else the newest inherited one."""
        for one, _, last in reversed(self._runs(found, 1, found.head.version)):
            version = one.keys.get(key, last + 1)
            if version <= last:
                return one.entries[version - one.first]
        return None

    @_with_lock
    async def read(
        self,
        context: str,
        *,
        at: int | None = None,
        after: int = 0,
        before: int | None = None,
        kinds: Sequence[Kind] | None = None,
        replacing: bool = False,
        newest: int | None = None,
        limit: int | None = None,
        deleted: bool = False,
    ) -> list[Entry]:
        """Read entries, ascending; inherited ones too."""
        append_rules.check_read(newest, limit)
        read = Read(at, after, before, kinds, replacing, newest, limit, deleted)
        found = self._log(context, deleted=deleted)
        entries = self._select(found, after + 1, read.last(found.head.version))
        return read.cut([entry for entry in entries if entry.replaces] if replacing else entries)

    def _select(self, found: Log, first: int, last: int) -> list[Entry]:
        entries: list[Entry] = []
        for one, low, high in self._runs(found, first, last):
            entries.extend(one.entries[low - one.first : high - one.first + 1])
        return entries

    def _runs(self, found: Log, first: int, last: int) -> list[tuple[Log, int, int]]:
        """Split versions of a log into (owner, first, last) runs, ascending."""
        runs = append_rules.split_segments(found.context.id, found.context.lineage, first, last)
        return [(self._logs[owner], low, high) for owner, low, high in runs]

    @_with_lock
    async def get(self, ids: Sequence[str]) -> list[Entry | None]:
        """Return entries by id, with None for ids that do not exist."""
        return [self._get(id) for id in ids]

    # ── erasing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @_with_lock
    async def blank(
        self, context: str, versions: Sequence[int], *, to: State, audit: Mapping[str, Json]
    ) -> int:
        """Delete the content of entries permanently, in every lineage."""
        if to is State.LIVE:
            raise ValidationError("must be expired or erased", field="to")
        found = self._log(context, deleted=True)
        tree = [one for one in self._logs.values() if one.context.root == found.context.root]
        changed: list[int] = []
        for owner, low, high in append_rules.split_segments(
            context, found.context.lineage, 1, found.head.version
        ):
            one = self._logs[owner]
            gone: list[Entry] = []
            for version in sorted({version for version in versions if low <= version <= high}):
                entry = one.entries[version - one.first]
                if entry.state is to or entry.state is State.ERASED:
                    continue
                one.entries[version - one.first] = append_rules.blank_entry(entry, to)
                gone.append(entry)
            if to is State.ERASED:
                self._forget(one, gone, {one.context.id for one in tree})
            changed.extend(entry.version for entry in gone)
        if changed:
            for one in tree:
                one.head = replace(one.head, rewrites=one.head.rewrites + 1)
                if to is State.ERASED:
                    one.records.clear()
            self._logs[found.context.root].epoch += 1
            self.audit.append(
                {"context": context, "action": to.value, "versions": changed, "detail": dict(audit)}
            )
        return len(changed)

    def _forget(self, one: Log, gone: Sequence[Entry], tree: set[str]) -> None:
        """Delete the keys, derived rows and job payloads of erased entries of one owner."""
        for entry in gone:
            one.keys.pop(entry.key or "", None)
        versions = {entry.version for entry in gone}
        one.derived = {place: row for place, row in one.derived.items() if row.version not in versions}
        self._jobs.forget(tree, {entry.id for entry in gone})

    @_with_lock
    async def residue(self, ids: Sequence[str], texts: Sequence[bytes]) -> list[str]:
        """Return the remains of erased entries outside the log; there are no bytes to search for texts."""
        found: list[str] = []
        places = {place for id in ids if (place := parse_entry_id(id)) is not None and place[0] in self._logs}
        for owner in sorted({owner for owner, _ in places}):
            one = self._logs[owner]
            keys = sum((owner, version) in places for version in one.keys.values())
            rows = sum((owner, row.version) in places for row in one.derived.values())
            found += [
                f"{owner}: {count} {what}"
                for what, count in (("keys", keys), ("derived rows", rows))
                if count
            ]
        return found

    @_with_lock
    async def find_messages(self, times: Sequence[datetime], keys: Sequence[str]) -> list[str]:
        """Return the ids of the messages with content that have one of these times or keys."""
        moments, names = set(times), set(keys)
        return [
            entry.id
            for log in self._logs.values()
            for entry in log.entries
            if entry.kind is Kind.MESSAGE
            and entry.state is State.LIVE
            and (entry.created_at in moments or entry.key in names)
        ]

    # ── derived rows ────────────────────────────────────────────────────────────────────────────────────────────────

    @_with_lock
    async def put_derived(self, context: str, rows: Sequence[Derived], *, wait: bool = True) -> int:
        """Store derived rows; those of blanked versions are dropped."""
        found = self._log(context)
        root = self._logs[found.context.root]
        before = root.seq
        for row in rows:
            for one, low, _ in self._runs(found, row.version, min(row.version, found.head.version)):
                if one.entries[low - one.first].state is State.LIVE:
                    root.seq += 1
                    one.derived[row.space, row.version, row.part] = replace(row, seq=root.seq)
        return root.seq - before

    @_with_lock
    async def derived(
        self, context: str, space: str, *, after: int = 0, at: int | None = None
    ) -> list[Derived]:
        """Return the derived rows of one space by sequence number, from every context of the lineage."""
        found = self._log(context)
        last = found.head.version if at is None else min(at, found.head.version)
        rows = [
            row
            for one, low, high in self._runs(found, 1, last)
            for row in one.derived.values()
            if row.space == space and row.seq > after and low <= row.version <= high
        ]
        return sorted(rows, key=lambda row: row.seq)

    @_with_lock
    async def spaces(self, context: str) -> list[str]:
        """Return the names of the spaces in which a context has its own derived rows."""
        return sorted({space for space, _, _ in self._log(context).derived})

    @_with_lock
    async def missing(
        self, space: str, *, context: str | None = None, limit: int, after: int = 0
    ) -> list[tuple[str, int]]:
        """Return live messages, facts and summaries that have no row in the space."""
        append_rules.check_read(None, limit)
        live = [one for one in self._logs.values() if one.context.deleted_at is None]
        runs = [(one, one.first, one.head.version) for one in live]
        if context is not None:
            found = self._log(context)
            runs = self._runs(found, 1, found.head.version)
        return [
            (context or one.context.id, entry.version)
            for one, low, high in runs
            for covered in ({version for of, version, _ in one.derived if of == space},)
            for entry in one.entries[low - one.first : high - one.first + 1]
            if entry.version > after
            and entry.version not in covered
            and entry.state is State.LIVE
            and entry.kind in (Kind.MESSAGE, Kind.FACT, Kind.SUMMARY)
            and entry.content
        ][:limit]

    # ── records ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @_with_lock
    async def record(self, context: str, name: str) -> Record | None:
        """Return the record a context itself has under a name."""
        named, found = records.validate_record_name(name), self._log(context)
        if named not in found.records:
            return None
        return records.record_from_columns(context, named, *found.records[named])

    @_with_lock
    async def put_record(self, context: str, name: str, data: Mapping[str, Json], *, rev: int) -> Record:
        """Store a record if it is still at `rev`."""
        named = records.validate_record_name(name)
        text = records.serialize_record_data(data, rev)
        found = self._log(context)
        if found.records.get(named, (0, ""))[0] != rev:
            raise records.revision_conflict_error(named, rev)
        found.records.pop(named, None)
        found.records[named] = (rev + 1, text)
        for old in list(found.records)[: -records.KEPT]:
            del found.records[old]
        return records.record_from_columns(context, named, rev + 1, text)

    # ── restoring, searching ────────────────────────────────────────────────────────────────────────────────────────

    async def restore(self, context: Context, entries: AsyncIterator[Entry]) -> None:
        """Write a context verbatim; resumes after the last stored version."""
        with self.lock:
            found = self._restored(context)
        async for entry in entries:
            with self.lock:
                self._restore(found, entry)

    def _restore(self, found: Log, entry: Entry) -> None:
        context = found.context
        if entry.context != context.id or entry.version < found.first:
            raise CorruptRecordError(f"version {entry.version} does not belong to {context.id}")
        if entry.version <= found.head.version:
            if entry.version == found.head.version and entry.chain != found.head.chain:
                raise ConflictError(f"{context.id} holds another log")
            return
        same = [other for other in found.entries[-1000:] if other.batch == entry.batch]
        before = found.entries[-len(same) - 1].chain if len(found.entries) > len(same) else found.start
        for version, wrong in verify_chain(
            [*same, entry], head=before, version=entry.version - len(same) - 1
        ):
            raise CorruptRecordError(f"version {version} of {context.id}: {wrong}")
        messages, tokens, rewrites = append_rules.count_drafts([entry])
        found.entries.append(entry)
        if entry.key is not None:
            found.keys[entry.key] = entry.version
        found.head = replace(
            found.head,
            version=entry.version,
            messages=found.head.messages + messages,
            tokens=found.head.tokens + tokens,
            last_message=entry.id if messages else found.head.last_message,
            rewrites=found.head.rewrites + rewrites,
            chain=entry.chain,
            tail=EMPTY,
        )
        if entry.state is not State.LIVE:
            root = self._logs[context.root]
            root.epoch = max(root.epoch, 1)

    def _restored(self, context: Context) -> Log:
        found = self._logs.get(context.id)
        if found is not None:
            here = found.context
            same = (here.namespace, here.key, here.lineage, here.created_at)
            if same != (context.namespace, context.key, context.lineage, context.created_at):
                raise ConflictError(f"{context.id} is another context here", retryable=False)
            return found
        live = context.key if context.deleted_at is None else None
        if live is not None and self._by_key(context.namespace, live):
            raise ConflictError(
                f"the session {context.key!r} exists here with another id",
                options=("restore into another store",),
            )
        head = Head(context=context.id, chain=genesis_hash(context.id))
        if context.parent is not None:
            if context.parent not in self._logs:
                raise ConflictError(f"the parent {context.parent} is not here", options=("restore it first",))
            if context.root != self._logs[context.parent].context.root:
                raise CorruptRecordError(f"{context.id} is of another tree than its parent")
            _, head = self._forked(context, context.parent, context.fork, deleted=True)
        found = self._logs[context.id] = Log(context, head, start=head.chain)
        return found

    @_with_lock
    async def search(self, query: Search) -> list[Hit]:
        """Search facts, summaries and marked messages across the live contexts of a namespace."""
        rows: list[tuple[str, int, str, str, str]] = []
        vectors: list[tuple[str, int, bytes]] = []
        for id, found in self._logs.items():
            if found.context.namespace != query.namespace or found.context.deleted_at is not None:
                continue
            for entry in found.entries:
                marked = entry.kind is Kind.MESSAGE and entry.markers
                if entry.state is State.LIVE and (entry.kind in (Kind.FACT, Kind.SUMMARY) or marked):
                    rows.append((id, entry.version, entry.kind.value, entry.id[-6:], entry.content))
            vectors.extend(
                (id, row.version, row.data) for row in found.derived.values() if row.space == query.space
            )
        return search.rank_hits(query, rows, vectors)

    # ── jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @_with_lock
    async def claim(self, kinds: Sequence[str], *, lease: timedelta, limit: int = 1) -> list[Lease]:
        """Take due jobs, oldest first."""
        return self._jobs.claim(kinds, lease, limit)

    @_with_lock
    async def extend(self, lease: Lease, *, by: timedelta) -> Lease:
        """Prolong a lease."""
        return self._jobs.extend(lease, by)

    @_with_lock
    async def settle(self, lease: Lease, outcome: Retry | Failed | Done) -> Job:
        """End an attempt that has no effect on the log."""
        return self._jobs.settle(lease, outcome)

    @_with_lock
    async def jobs(self, query: JobQuery) -> Page[Job]:
        """List jobs, newest first."""
        return self._jobs.page(query)


InMemoryBackend = MemoryStorage
"""The name that the implementation plan gave it."""
