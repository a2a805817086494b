"""Rules shared by every store: detect repeated appends, check an append's preconditions, compute the new head.

Also holds `Read`, the arguments of a read, which each store passes unchanged from its method down to its rows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from acms.errors import (
    ACMSError,
    ConflictError,
    CorruptRecordError,
    ForkDepthError,
    GoneError,
    IdempotencyMismatchError,
    LeaseLostError,
    StorageError,
    ValidationError,
)
from acms.log.encoding import Stamp, chain_values, entry_id, parse_entry_id
from acms.log.validation import validate_name
from acms.model import (
    ANY,
    UNFINISHED,
    Append,
    Context,
    ContextDraft,
    ContextQuery,
    Done,
    Draft,
    Durability,
    Entry,
    Failed,
    Head,
    Job,
    JobQuery,
    JobState,
    Json,
    Kind,
    Lease,
    Page,
    Receipt,
    Retry,
    State,
    client_supplied_key,
)
from acms.ports import StorageBackend

Item = TypeVar("Item", Context, Job)

_KINDS_WITH_CONTENT = frozenset((Kind.MESSAGE, Kind.FACT, Kind.SUMMARY))
"""Kinds with content of their own: a retraction only names its target."""
MAX_LINEAGE = 64
"""Segments a fork may inherit before it must be copied instead."""
CLOCKS_DIFFER = timedelta(minutes=1)
"""A job that was changed further than this in the future was changed under a clock that has been set back since."""


def check_append(op: Append, head: Head) -> None:
    """Raise when an append may not go on this head."""
    expected = op.expect.last_message
    if expected is not ANY and expected != head.last_message:
        raise ConflictError(
            f"the newest message is {head.last_message}, not {expected}",
            options=("read the head again and decide again",),
        )
    if op.expect.version is not None and op.expect.version != head.version:
        raise ConflictError(
            f"the log is at version {head.version}, not {op.expect.version}",
            options=("read the head again and decide again",),
        )
    if op.expect.rewrites is not None and op.expect.rewrites != head.rewrites:
        raise ConflictError(
            f"{head.rewrites - op.expect.rewrites} rewrites happened in between",
            options=("check that every target is still active and submit again",),
        )
    for draft in op.drafts:
        for first, last in draft.replaces:
            if not 1 <= first <= last <= head.version:
                problem = f"{first}..{last} is not a span of versions up to {head.version}"
                raise ValidationError(problem, field="replaces")
        if draft.key is not None:
            validate_name(draft.key, "key")


def check_read(newest: int | None, limit: int | None) -> None:
    """Raise when a read asks for both the newest and the first entries, or for a negative number of them."""
    if newest is not None and limit is not None:
        raise ValidationError("newest and limit exclude each other", field="newest")
    for field, count in (("newest", newest), ("limit", limit)):
        if count is not None and count < 0:
            raise ValidationError(f"must not be negative, was {count}", field=field)


def collect_source_ids(op: Append) -> list[str]:
    """Return the ids of the entries from which the drafts of an append are derived."""
    return [id for draft in op.drafts if draft.kind in _KINDS_WITH_CONTENT for id in draft.sources]


def parse_entry_ids(ids: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Return by id the location (context, version) that each of the ids names; ids of another form are left out."""
    location_of: dict[str, tuple[str, int]] = {}
    for id in ids:
        location = parse_entry_id(id)
        if location is not None:
            location_of[id] = location
    return location_of


def refuse_erased_sources(entries: Iterable[Entry | None]) -> None:
    """Raise `GoneError` if any source entry is erased: an entry derived from it would restore erased content."""
    for entry in entries:
        if entry is not None and entry.state is State.ERASED:
            raise GoneError(f"{entry.id} was erased, with everything made from it")


def is_repeated_append(op: Append, stored_entries: Sequence[Entry | None]) -> bool:
    """Return whether every draft of an append was stored before under its key.

    `stored_entries` has, for each draft, the entry that is stored under its key.
    `IdempotencyMismatchError` when only some were, or when a key was used for something else.
    """
    if not any(entry is not None for entry in stored_entries):
        return False
    for index, (draft, entry) in enumerate(zip(op.drafts, stored_entries, strict=True)):
        if entry is None:
            key = client_supplied_key(draft.key)
            new_item = f"message {index}" if key is None else repr(key)
            raise IdempotencyMismatchError(
                f"some keys of this append are new and others are not: {new_item} is new",
                options=("repeat exactly the same append", "use new keys"),
            )
        if entry.state is State.LIVE and not draft_matches_entry(draft, entry):
            raise IdempotencyMismatchError(
                f"key {draft.key!r} was used before for another entry", options=("use a new key",)
            )
    return True


def draft_matches_entry(draft: Draft, entry: Entry) -> bool:
    """Return whether a draft equals a stored entry; their times may differ between two attempts."""
    names = ["kind", "role", "content", "parts", "data", "metadata"]
    if draft.kind is Kind.MESSAGE:  # derived entries take these from the current state of their sources
        names += ["privacy", "origin"]
    return all(getattr(draft, name) == getattr(entry, name) for name in names)


def is_append_allowed(op: Append, head: Head) -> bool:
    """Return whether an append may follow a head; a cached head may be outdated, so this is no reason to refuse it."""
    try:
        check_append(op, head)
    except ACMSError:
        return False
    return True


def predict_receipt(op: Append, stamps: Sequence[Stamp], head: Head, durability: Durability) -> Receipt:
    """Return the receipt of an append that follows a head, with the head after it; nothing is checked."""
    ids: list[str] = []
    positions: list[int | None] = []
    version, last_message = head.version, head.last_message
    messages, tokens, rewrites = head.messages, head.tokens, head.rewrites
    for draft, stamp in zip(op.drafts, stamps, strict=True):
        version += 1
        id = entry_id(draft.kind, op.context, version, stamp.nonce)
        position: int | None = None
        if draft.kind is Kind.MESSAGE:
            messages += 1
            tokens += draft.tokens
            position, last_message = messages, id
        if draft.replaces:
            rewrites += 1
        ids.append(id)
        positions.append(position)
    chains = tuple(chain_values(head.chain, stamps))
    new_head = Head(
        context=op.context,
        version=version,
        messages=messages,
        tokens=tokens,
        last_message=last_message,
        rewrites=rewrites,
        derived=head.derived,
        epoch=head.epoch,
        chain=chains[-1] if chains else head.chain,
        tail=head.tail if op.tail is None else op.tail,
    )
    return Receipt(
        head=new_head,
        versions=(head.version + 1, version),
        ids=tuple(ids),
        positions=tuple(positions),
        chains=chains,
        durability=durability,
    )


def build_receipt(
    head: Head, entries: Sequence[tuple[int, str, int | None, bytes]], durability: Durability
) -> Receipt:
    """Return the receipt for (version, id, position, chain) of new entries."""
    no_versions = (head.version + 1, head.version)  # an empty span behind the head
    return Receipt(
        head=head,
        versions=(entries[0][0], entries[-1][0]) if entries else no_versions,
        ids=tuple(id for _, id, _, _ in entries),
        positions=tuple(position for _, _, position, _ in entries),
        chains=tuple(chain for _, _, _, chain in entries),
        durability=durability,
    )


def build_repeat_receipt(head: Head, entries: Sequence[Entry], durability: Durability) -> Receipt:
    """Return the receipt for entries that were there before."""
    columns = [(entry.version, entry.id, entry.position, entry.chain) for entry in entries]
    return replace(build_receipt(head, columns, durability), repeated=True)


def count_drafts(drafts: Sequence[Draft]) -> tuple[int, int, int]:
    """Return how many messages, message tokens and rewrites some drafts add."""
    messages = tokens = rewrites = 0
    for draft in drafts:
        if draft.kind is Kind.MESSAGE:
            messages += 1
            tokens += draft.tokens
        if draft.replaces:
            rewrites += 1
    return messages, tokens, rewrites


def wrap_unexpected_error(error: Exception) -> ACMSError:
    """Return the error for an operation that failed because of the caller's input."""
    bad_input = isinstance(error, UnicodeEncodeError | OverflowError)
    text = f"{type(error).__name__}: {error}"
    wrapped = ValidationError(text) if bad_input else StorageError(text)
    wrapped.__cause__ = error
    return wrapped


def job_number(id: str) -> int:
    """Return a job id as a number; 0, which no job has, if it is not a number that a store can hold."""
    return int(id) if id.isascii() and id.isdecimal() and len(id) <= 18 else 0


def is_unfinished_query(query: JobQuery) -> bool:
    """Return whether a query lists only unfinished jobs, for which there is a smaller index."""
    return bool(query.states) and set(query.states) <= set(UNFINISHED)


def resolve_outcome(job: Job, outcome: Retry | Failed | Done) -> tuple[JobState, str | None, datetime]:
    """Return the state of a job after an attempt, its error or why it changed nothing, and when it is due."""
    if isinstance(outcome, Retry):
        return JobState.READY, outcome.error, outcome.not_before
    if isinstance(outcome, Failed):
        return JobState.CANCELLED if outcome.cancelled else JobState.FAILED, outcome.error, job.not_before
    return JobState.DONE, outcome.reason, job.not_before


def lease_lost_error(lease: Lease) -> LeaseLostError:
    """Return the error for an attempt whose lease on its job was lost."""
    return LeaseLostError(f"attempt {lease.attempt} no longer holds job {lease.job.id}")


def job_missing_error(id: object) -> GoneError:
    """Return the error for a lease on a job that does not exist."""
    return GoneError(f"job {id} does not exist")


def duplicate_job_error(job: str, twin: str) -> ConflictError:
    """Return the error for trying a job again while another job, its twin, does the same work."""
    return ConflictError(
        f"job {twin} already does the work of job {job}",
        retryable=False,
        options=(f"let job {twin} end, or cancel it",),
    )


def split_segments(
    owner: str, lineage: Sequence[tuple[str, int]], first: int, last: int
) -> list[tuple[str, int, int]]:
    """Split versions first..last of a context into (owner, first, last) segments, ascending.

    `lineage` are the ancestors, oldest first, each with the last version that it owns.
    """
    segments: list[tuple[str, int, int]] = []
    start = 1
    for ancestor, ancestor_last in lineage:
        if ancestor_last >= start:
            segments.append((ancestor, max(first, start), min(last, ancestor_last)))
            start = ancestor_last + 1
    segments.append((owner, max(first, start), last))
    return [segment for segment in segments if segment[1] <= segment[2]]  # the range may miss some of them


def lineage_of_fork(
    parent: str, lineage: Sequence[tuple[str, int]], fork: int
) -> tuple[tuple[str, int], ...]:
    """Return the lineage of a fork of `parent` at a version: its ancestors' segments cut there, then its own."""
    segments = split_segments(parent, lineage, 1, fork)
    if len(segments) > MAX_LINEAGE:
        raise ForkDepthError(
            f"a fork inherits at most {MAX_LINEAGE} segments",
            options=("copy the context instead of forking it: session.copy(), acms fork --copy",),
        )
    return tuple((owner, last) for owner, _, last in segments)


def settings_of_fork(settings: Mapping[str, Json], draft: ContextDraft) -> dict[str, Json]:
    """Return the settings of a fork: the inherited settings of its parent, overridden by its own."""
    inherited = {name: settings[name] for name in draft.inherit if name in settings}
    return {**inherited, **draft.settings}


async def whole_appends(
    context: Context, head: Head, entries: AsyncIterator[Entry]
) -> AsyncIterator[list[Entry]]:
    """Yield the entries a restored log lacks after its head, in batches of about 1,000, without splitting an append.

    Raises `CorruptRecordError` for entries of another log and `ConflictError` if the store holds a different log.
    """
    batch: list[Entry] = []
    start = 1 if context.fork is None else context.fork + 1
    async for entry in entries:
        if entry.context != context.id or entry.version < start:
            raise CorruptRecordError(f"version {entry.version} does not belong to {context.id}")
        if entry.version <= head.version:
            if entry.version == head.version and entry.chain != head.chain:
                raise ConflictError(f"{context.id} holds another log")
            continue
        batch.append(entry)
        # More entries of the same append may follow, and a stored append must be whole: it waits for the next batch.
        open_append = entry.batch
        if len(batch) >= 1_000 and batch[0].batch != open_append:
            yield [entry for entry in batch if entry.batch != open_append]
            batch = [entry for entry in batch if entry.batch == open_append]
    if batch:
        yield batch


def contexts_query(query: ContextQuery) -> str:
    """Return the name of the SQL query that lists contexts by the narrowest index."""
    if query.parent is not None:
        return "contexts_of_parent"
    return "contexts" if query.root is None else "contexts_of_root"


def build_page(
    rows: Sequence[Sequence[Any]], limit: int, read_row: Callable[[Sequence[Any]], Item]
) -> Page[Item]:
    """Build a page from its rows, of which there is one more than `limit` where another page follows."""
    items = tuple(read_row(row) for row in rows[:limit])
    return Page(items=items, next_after=items[-1].id if len(rows) > limit else None)


def apply_settings_change(
    context: Context, change: Mapping[str, Json], *, rev: int, clock: Callable[[], datetime]
) -> Context:
    """Return a context with changed settings; a value of None removes a setting.

    The setting `deleted` is not stored: it sets or clears the time of deletion, and the first deletion's time stays.

    `ConflictError` if its settings are not at revision `rev` any more.
    """
    if context.settings_rev != rev:
        raise ConflictError(f"the settings are at revision {context.settings_rev}, not {rev}")
    deleted_at = context.deleted_at
    if "deleted" in change:
        deleted_at = (deleted_at or clock()) if change["deleted"] else None
    merged_settings = {**context.settings, **change}
    merged_settings.pop("deleted", None)
    settings = {name: value for name, value in merged_settings.items() if value is not None}
    return replace(context, settings=settings, settings_rev=rev + 1, deleted_at=deleted_at)


def check_restored_context(stored: Context, context: Context) -> None:
    """Raise `ConflictError` if a stored context is another one than the context to be restored under its id."""
    identity = (context.namespace, context.key, context.lineage, context.created_at)
    if (stored.namespace, stored.key, stored.lineage, stored.created_at) != identity:
        raise ConflictError(f"{context.id} is another context here", retryable=False)


def key_taken_error(key: str | None) -> ConflictError:
    """Return the error for a restored context whose key a live context has."""
    return ConflictError(
        f"the session {key!r} exists here with another id", options=("restore into another store",)
    )


def parent_missing_error(parent: str) -> ConflictError:
    """Return the error for a restored fork whose parent is not stored."""
    return ConflictError(f"the parent {parent} is not in this store", options=("restore it first",))


def resolve_fork_version(head: Head, fork: int | None) -> int:
    """Return the version at which a log is forked: the given one, or that of its head."""
    version = head.version if fork is None else fork
    if not 0 <= version <= head.version:
        raise ValidationError(f"must be from 0 to {head.version}, was {version}", field="fork")
    return version


class Read(NamedTuple):
    """The keywords of `StorageBackend.read`; a tuple, since one is made for every read."""

    at: int | None = None
    after: int = 0
    before: int | None = None
    kinds: Sequence[Kind] | None = None
    replacing: bool = False
    newest: int | None = None
    limit: int | None = None
    deleted: bool = False

    def last_version(self, version: int) -> int:
        """Return the last version that is read of a log with this head version."""
        if self.at is not None:
            version = min(version, self.at)
        return version if self.before is None else min(version, self.before - 1)

    @property
    def query(self) -> str:
        """The name of the SQL query that reads these entries from one context."""
        table = "entries"
        if self.replacing:
            table = "replacing"
        elif self.kinds is not None and Kind.MESSAGE not in self.kinds:
            table = "others"
        return f"{table}_forward" if self.newest is None else f"{table}_backward"

    def at_most(self, count: int) -> bool:
        """Return whether the read can return at most `count` entries, however long the log is."""
        limits = [limit for limit in (self.newest, self.limit) if limit is not None]
        limits += [end - self.after for end in (self.before, self.at) if end is not None]
        return any(limit <= count for limit in limits)

    def select(self, entries: list[Entry]) -> list[Entry]:
        """Return the entries, ascending, that have one of `kinds`: of these the `newest`, or the first `limit`."""
        if self.kinds is not None:
            entries = [entry for entry in entries if entry.kind in self.kinds]
        if self.newest is None:
            return entries[: self.limit]
        return entries[max(0, len(entries) - self.newest) :]

    def run(self, storage: StorageBackend, context: str) -> Awaitable[list[Entry]]:
        """Read these entries of a log from a store."""
        return storage.read(context, **self._asdict())
