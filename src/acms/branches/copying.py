"""Copy all data of a tenant from one store to another, or one session into a new session.

A copy between stores is verbatim and resumable, and never overwrites other data. Parents are copied before their forks,
the newest settings after the entries, and unfinished jobs last. A second run copies only new data.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from acms.branches import export, forks, limits
from acms.branches.export import Problem, read_appends, read_pages
from acms.branches.forks import find_context, list_contexts
from acms.errors import ACMSError, ConflictError, CorruptRecordError, SessionNotFoundError, ValidationError
from acms.log import policy, validation
from acms.log.encoding import draw_token, genesis_hash
from acms.log.exported import validate_context, validate_entry
from acms.log.provenance import COPIED, COPIES, COPYING, copy_batch, id_of_copy
from acms.log.settings import TAGS, read_setting
from acms.model import (
    Append,
    Context,
    ContextQuery,
    Derived,
    Entry,
    Job,
    JobDraft,
    JobQuery,
    JobState,
    Json,
    Receipt,
    State,
)
from acms.observability.logging import log_event
from acms.ports import HasSpaces, Progress, StorageBackend
from acms.storage.append_rules import split_segments
from acms.storage.sessions import count_erased
from acms.storage.wrapper import find_layer
from acms.text import index_record

if TYPE_CHECKING:
    from acms.session_state import SharedSession

__all__ = ["Copied", "copy"]

# ── from store to store ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The result of a copy: the numbers of items that were new in the target; `contexts` counts all."""

    #: Contexts of the source, deleted ones too.
    contexts: int
    #: Number of these contexts that are new in the target.
    created: int
    entries: int
    #: Entries that had lost their content in the source since they were copied.
    blanked: int
    derived: int
    #: Unfinished jobs of the source; the target has each of them once.
    jobs: int
    #: Descriptions of the data that could not be copied.
    left: tuple[str, ...]
    #: Problems found in the target, if it was verified.
    problems: tuple[Problem, ...]
    verified: bool


async def copy(
    source: StorageBackend,
    target: StorageBackend,
    *,
    derived: bool = True,
    verify: bool = False,
    progress: Progress | None = None,
) -> Copied:
    """Copy all data of the tenant of one handle to the tenant of another: same ids, versions and hashes.

    Copies logs with their tombstones, settings, tags and policies, deleted contexts, unfinished jobs, and `derived`
    rows, which are computed again where they are left out. Parents are copied before their forks. Call it again to
    resume an interrupted copy, or later to copy new entries, erasures, settings and jobs. Before writing anything it
    raises `ValidationError` for settings or entries that the API would refuse, and `ConflictError` if the target has
    another log under an id or a name, or has advanced by itself. Do not write to either store during the copy: changes
    to the source after a log was read are left for the next call. With `verify` both sides are compared afterwards and
    every hash of the target is computed again.
    """
    if source is target:
        raise ValidationError("is the same store as the source", field="target")
    return await _Copy(source, target, progress).run(derived=derived, verify=verify)


@dataclass(slots=True)
class _Step:
    """One context that is to be copied."""

    id: str
    #: Version before its own entries; those up to it are inherited from its parent.
    start: int
    #: Last version in the source.
    last: int
    #: Last version in the target; None when it is not there.
    target_last: int | None

    @property
    def after(self) -> int:
        """The version after which entries are copied."""
        return self.start if self.target_last is None else self.target_last


class _Copy:
    """One run of a copy."""

    def __init__(self, source: StorageBackend, target: StorageBackend, progress: Progress | None) -> None:
        self._source = source
        self._target = target
        self._progress = progress
        self._done = self._total = 0
        #: Counts of what was copied.
        self._created = self._entries = self._blanked = self._derived = 0
        self._left: list[str] = []
        #: Appends without entries that wait to share a commit.
        self._pending: list[Append] = []

    async def run(self, *, derived: bool, verify: bool) -> Copied:
        jobs = await self._read_jobs()
        contexts = await list_contexts(self._source, ContextQuery(deleted=True))
        steps = [await self._plan_step(context.id) for context in contexts]
        for step in steps:
            await self._validate_entries(step)
            self._total += step.last - step.after
        for step in steps:  # before any is created: a context deleted in the source must free its name
            if step.target_last is not None:
                await self._delete_in_target(step.id, jobs.get(step.id, ()))
        for step in steps:
            own_jobs = jobs.get(step.id, ())
            await self._restore(step, own_jobs)
            if step.target_last is not None:
                await self._erase_lost_content(step)
            if derived:
                await self._copy_derived(step)
            await self._delete_in_target(step.id, own_jobs)
            await self._copy_settings(step)
        jobs = await self._read_jobs()
        for id, own_jobs in jobs.items():
            await self._queue_jobs(id, own_jobs)
        await self._flush()
        problems: list[Problem] = []
        if verify:
            for step in steps:
                problems += await self._verify(step)
        return Copied(
            contexts=len(steps),
            created=self._created,
            entries=self._entries,
            blanked=self._blanked,
            derived=self._derived,
            jobs=sum(map(len, jobs.values())),
            left=tuple(dict.fromkeys(self._left)),
            problems=tuple(problems),
            verified=verify,
        )

    # planning

    async def _read_jobs(self) -> dict[str, list[JobDraft]]:
        """Return the unfinished jobs of the source by context, oldest first."""
        drafts_by_context: dict[str, list[JobDraft]] = {}
        for job in await _read_unfinished_jobs(self._source):
            drafts_by_context.setdefault(job.context, []).append(_draft_from_job(job, job.dedupe))
        return drafts_by_context

    async def _plan_step(self, id: str) -> _Step:
        """Compare a context with the one that the target has under its id or name, before anything is written."""
        context = await self._source.context(id)
        with limits.set_error_field(f"{id} of the source"):
            validate_context(context, own_name=validation.AUDIT)
        start = context.fork or 0
        last, chain = await _read_end(self._source, id)
        copy = await find_context(self._target, id, namespace=context.namespace)
        if copy is None or copy.id != id:  # not there, or found by a name that is equal to the id
            await self._check_name(context)
            return _Step(id, start, last, None)
        if _identity(copy) != _identity(context):
            raise ConflictError(f"{id} is another context in the target", retryable=False)
        target_last, target_chain = await _read_end(self._target, id)
        if target_last > last:
            raise _diverged_error(context, f"is at version {target_last} there and at {last} here")
        if start < target_last < last:  # the target is behind: compare the entry at which it stopped
            (entry,) = await self._source.read(
                id, after=target_last - 1, before=target_last + 1, deleted=True
            )
            chain = entry.chain
        if target_last > start and target_chain != chain:
            raise ConflictError(f"{id} holds another log in the target", retryable=False)
        # The same revision with other settings, or a higher revision, was written in the target itself.
        same_rev = copy.settings_rev == context.settings_rev
        same_deletion = _is_deleted(copy) == _is_deleted(context)
        same_settings = same_deletion and dict(copy.settings) == dict(context.settings)
        if copy.settings_rev > context.settings_rev or (same_rev and not same_settings):
            raise _diverged_error(context, "has other settings there")
        return _Step(id, start, last, max(target_last, start))

    async def _validate_entries(self, step: _Step) -> None:
        """Raise for an entry that the API would refuse: then nothing is copied."""
        async for page in read_pages(self._source, step.id, at=step.last, after=step.after, deleted=True):
            for entry in page:
                with limits.set_error_field(f"{step.id} v{entry.version} of the source"):
                    validate_entry(entry)

    async def _check_name(self, context: Context) -> None:
        """Raise when another context has this one's name in the target, unless the source says that it was deleted."""
        if context.key is None or _is_deleted(context):
            return
        same_name = await find_context(self._target, context.key, namespace=context.namespace)
        if same_name is None or same_name.key != context.key or _is_deleted(same_name):
            return
        source = await find_context(self._source, same_name.id, namespace=context.namespace)
        if source is None or not _is_deleted(source):
            raise ConflictError(
                f"the session {context.key!r} of namespace {context.namespace!r} exists in the target with another id",
                retryable=False,
                options=("copy into another tenant or another store", "delete one of them"),
            )

    # writing

    async def _restore(self, step: _Step, jobs: Sequence[JobDraft]) -> None:
        """Copy the new entries of a context, and create the context if the target does not have it."""
        context = await self._source.context(step.id)
        if step.target_last is None:
            self._created += 1
            if _is_deleted(context) and jobs:
                # A deleted context takes no job, so it is restored as a live one with a revision to spare. `_hide`
                # deletes it after its jobs are copied, such as the job that collects its entries.
                visible = replace(context, deleted_at=None, settings_rev=max(0, context.settings_rev - 1))
                try:
                    return await self._target.restore(visible, self._iter_missing_entries(step))
                except ConflictError:
                    # Another live context has its name now, so it can only be restored as deleted, without jobs.
                    self._left += [f"job {job.kind} of {step.id}: its name was taken again" for job in jobs]
        await self._target.restore(context, self._iter_missing_entries(step))

    async def _iter_missing_entries(self, step: _Step) -> AsyncIterator[Entry]:
        """Yield the entries that the target does not have, whole appends only."""
        unreported = 0
        async for append in read_appends(self._source, step.id, at=step.last, after=step.after):
            for entry in append:
                yield entry
            self._entries += len(append)
            unreported += len(append)
            if unreported >= export.PAGE:
                self._report_progress(unreported)
                unreported = 0
        self._report_progress(unreported)

    def _report_progress(self, entries: int) -> None:
        self._done += entries
        if entries and self._progress is not None:
            self._progress(self._done, max(self._done, self._total))

    async def _erase_lost_content(self, step: _Step) -> None:
        """Remove the content of copied entries that have lost it in the source since."""
        context = await self._source.context(step.id)
        # The epoch counts erasures: at 0 nothing was erased. A deleted context has no readable epoch.
        if not _is_deleted(context) and not (await self._source.head(step.id)).epoch:
            return
        self._blanked += await _blank_copied_entries(
            self._source, step.id, self._target, step.id, after=step.start, last=step.last
        )

    async def _copy_derived(self, step: _Step) -> None:
        """Copy the derived rows of a context's own entries that the target does not have."""
        source = find_layer(self._source, HasSpaces)
        if source is None:
            return
        try:
            for space in await source.spaces(step.id):
                copied_versions: set[int] = set()
                if step.target_last is not None:
                    copied_versions = {row.version for row in await self._target.derived(step.id, space)}
                rows = await self._source.derived(step.id, space, at=step.last)
                new_rows = [
                    row for row in rows if row.version > step.start and row.version not in copied_versions
                ]
                self._derived += await _store_derived_rows(self._target, step.id, new_rows)
        except SessionNotFoundError:  # it was deleted: its rows are computed again if it is restored
            return

    async def _copy_settings(self, step: _Step) -> None:
        """Bring the settings and the tail (the state at the end, such as the open episode) of a log up to date.

        Each change raises the target's settings revision by one, until it is that of the source.
        """
        context = await self._source.context(step.id)
        copy = await self._target.context(step.id)
        change: dict[str, Json] = {**dict.fromkeys(copy.settings), **context.settings}
        if _is_deleted(copy) != _is_deleted(context):
            change["deleted"] = False  # only a restored context is left here: `_hide` ran before
        while copy.settings_rev < context.settings_rev:
            copy = await self._target.settings(step.id, change, rev=copy.settings_rev)
            change = {}  # further changes only bring the revision to that of the source
        if _is_deleted(context):
            return
        head, copied_head = await self._source.head(step.id), await self._target.head(step.id)
        if head.version == copied_head.version and dict(head.tail) != dict(copied_head.tail):
            await self._queue_append(Append(context=step.id, drafts=(), tail=dict(head.tail)))

    async def _delete_in_target(self, id: str, jobs: Sequence[JobDraft]) -> None:
        """Delete in the target a context that the source has deleted, after its unfinished jobs are copied."""
        context = await self._source.context(id)
        copy = await self._target.context(id)
        if not _is_deleted(context) or _is_deleted(copy):
            return
        await self._queue_jobs(id, jobs)
        await self._flush()
        change = {**dict.fromkeys(copy.settings), **context.settings, "deleted": True}
        await self._target.settings(id, change, rev=copy.settings_rev)

    async def _queue_jobs(self, id: str, jobs: Sequence[JobDraft]) -> None:
        if jobs and not _is_deleted(await self._target.context(id)):
            await self._queue_append(Append(context=id, drafts=(), jobs=tuple(jobs)))

    async def _queue_append(self, append: Append) -> None:
        """Queue an append without entries; a page of them is sent in one commit."""
        self._pending.append(append)
        if len(self._pending) >= export.PAGE:
            await self._flush()

    async def _flush(self) -> None:
        pending, self._pending = self._pending, []
        if pending:
            _raise_errors(await self._target.append(pending))

    async def _verify(self, step: _Step) -> list[Problem]:
        """Compare both sides of a context and compute its hashes again."""
        end, copied_end = await _read_end(self._source, step.id), await _read_end(self._target, step.id)
        if end == copied_end:
            context = await self._target.context(step.id)
            return [] if _is_deleted(context) else await export.verify(self._target, context)
        problem = "the chain hash is not that of the source"
        if end[0] != copied_end[0]:
            problem = f"the source has gone on to v{end[0]} meanwhile: copy again"
        return [Problem(context=step.id, version=copied_end[0], what=problem)]


async def _blank_copied_entries(
    source: StorageBackend, context: str, target: StorageBackend, copy: str, *, after: int, last: int
) -> int:
    """Remove the content of copied entries whose originals lost it after the copy; return their number."""
    count = 0
    async for page in read_pages(source, context, after=after, at=last, deleted=True):
        copies = await target.read(copy, after=after, before=page[-1].version + 1, deleted=True)
        for state in (State.EXPIRED, State.ERASED):
            blanked: list[int] = []
            for entry, copied in zip(page, copies, strict=True):
                if entry.state is state and copied.state not in (state, State.ERASED):
                    blanked.append(entry.version)
            if blanked:
                count += await target.blank(copy, blanked, to=state, audit={"reason": "copied"})
        after = page[-1].version
    return count


async def _store_derived_rows(storage: StorageBackend, context: str, rows: Sequence[Derived]) -> int:
    """Store derived rows (vectors and index records of entries); return how many the store kept.

    All rows of one version are stored in one commit, because readers need them together.
    """
    count = 0
    batch: list[Derived] = []
    for row in sorted(rows, key=lambda row: (row.version, row.part)):
        if len(batch) >= export.PAGE and row.version != batch[-1].version:
            count += await storage.put_derived(context, batch)
            batch = []
        batch.append(row)
    if batch:
        count += await storage.put_derived(context, batch)
    return count


async def _read_unfinished_jobs(storage: StorageBackend, context: str | None = None) -> list[Job]:
    """Return the unfinished jobs of a context, or of all, oldest first."""
    jobs: list[Job] = []
    query = JobQuery(context=context, states=(JobState.READY, JobState.RUNNING), limit=export.PAGE)
    while True:
        page = await storage.jobs(query)
        jobs += page.items
        if page.next_after is None:
            return jobs[::-1]
        query = replace(query, after=page.next_after)


def _draft_from_job(job: Job, name: str) -> JobDraft:
    """Return a job to be run in another store; a running one is due there at once, as it may never end here."""
    due = job.not_before if job.state is JobState.READY else None
    return JobDraft(kind=job.kind, dedupe=name, payload=dict(job.payload), not_before=due)


async def _read_end(storage: StorageBackend, context: str) -> tuple[int, bytes]:
    """Return the last version of a context and its chain value, also of a deleted one."""
    newest = await storage.read(context, newest=1, deleted=True)
    return (newest[0].version, newest[0].chain) if newest else (0, b"")


def _raise_errors(results: Sequence[Receipt | ACMSError]) -> None:
    for result in results:
        if isinstance(result, ACMSError):
            raise result


def _identity(context: Context) -> tuple[object, ...]:
    """Return the fields that must agree for two contexts of one id to be the same."""
    return context.namespace, context.key, context.lineage, context.created_at


def _is_deleted(context: Context) -> bool:
    return context.deleted_at is not None


def _diverged_error(context: Context, difference: str) -> ConflictError:
    return ConflictError(
        f"the session {context.key or context.id!r} was changed in the target: it {difference}",
        retryable=False,
        options=("copy the other way round", "copy into another tenant or another store"),
    )


# ── one session into a new one ──────────────────────────────────────────────────────────────────────────────────────


async def copy_session(shared: SharedSession, at: int | str | None, session_id: str | None) -> Context:
    """Return a copy of a session at a version: a separate log that inherits nothing; a named copy is made once.

    The copy is hidden until it is complete. Call again to resume an interrupted copy. An erasure in the original,
    during the copy or later, also erases the content in the copy: the original records its copies.
    """
    storage = shared.storage
    key = None if session_id is None else validation.validate_new_session_name(session_id, "session_id")
    id = await shared.require_context()
    original = await storage.context(id)
    version = await forks.resolve_version(storage, id, at)
    attempts = 0
    while True:
        try:
            return await _create_or_resume_copy(storage, original, version, key)
        except (ConflictError, CorruptRecordError) as error:
            attempts += 1
            is_final = isinstance(error, ConflictError) and not error.retryable
            if is_final or attempts == 10:
                raise
            # Another task may be making the same copy: look again, and continue its copy.


async def _create_or_resume_copy(
    storage: StorageBackend, original: Context, version: int, key: str | None
) -> Context:
    """Return a complete copy: the existing one of this name, an interrupted one that is completed now, or a new one."""
    origin = {"context": original.id, "version": version}
    copy = None if key is None else await find_context(storage, key, namespace=original.namespace)
    if copy is None or _is_deleted(copy):
        hidden = await _prepare_hidden_copy(storage, original, version, key)
        copy = await _fill_copy(storage, original, version, hidden)
    elif copy.settings.get(COPIED) != origin:
        raise ConflictError(
            f"the name {key!r} belongs to another session",
            retryable=False,
            options=("choose another session_id",),
        )
    elif COPYING not in copy.settings:
        return copy
    runs = split_segments(original.id, original.lineage, 1, version)
    owners = dict.fromkeys(owner for owner, _, _ in runs)
    await _copy_expire_jobs(storage, owners, copy.id)
    await _copy_vectors(storage, original.id, version, copy.id, owners)
    log_event(logging.DEBUG, "copy", context=copy.id, original=original.id, version=version)
    return await policy.update_settings(storage, copy.id, lambda _: {COPYING: None})


async def _fill_copy(storage: StorageBackend, original: Context, version: int, hidden: Context) -> Context:
    """Copy the entries and tags of the original into a hidden copy, and make it visible."""

    def add_copy(settings: Mapping[str, Json]) -> Mapping[str, Json]:
        return {COPIES: list(dict.fromkeys((*read_setting(settings, COPIES, ()), hidden.id)))}

    # Before the copy has any content: an erasure in the original then finds it.
    await policy.update_settings(storage, original.id, add_copy)
    chains: dict[int, str] = {}
    try:
        await storage.restore(hidden, _rewrite_entries(storage, original, version, hidden.id, chains))
    except ConflictError as error:  # another task began or finished this copy: the caller looks again
        raise ConflictError(str(error), retryable=True, options=error.options) from error
    has_erasures = (await storage.head(original.id)).epoch > 0
    if has_erasures:  # one of them may have happened during the copy
        await _blank_copied_entries(storage, original.id, storage, hidden.id, after=0, last=version)
        await count_erased(storage, hidden.id)
    tags: dict[str, Json] = {}
    for name, tagged in (await forks.read_tags(storage, original.id, version)).items():
        tags[name] = {"version": tagged, "chain": chains.get(tagged, "")}
    rev = (await storage.context(hidden.id)).settings_rev
    return await storage.settings(hidden.id, {TAGS: tags or None, "deleted": False}, rev=rev)


async def _prepare_hidden_copy(
    storage: StorageBackend, original: Context, version: int, key: str | None
) -> Context:
    """Return the hidden context of an incomplete copy: that of an interrupted call, or a new one."""
    name = draw_token(os.urandom, 16) if key is None else key
    attempt = 0
    while True:
        id = id_of_copy(original.id, version, f"{original.namespace} {name}", attempt)
        unfinished = await find_context(storage, id, namespace=original.namespace)
        if unfinished is None:
            break
        if _is_deleted(unfinished) and unfinished.settings.get(COPYING):
            return unfinished
        attempt += 1  # this id belongs to a complete copy, which was deleted since: use the next id
    settings: dict[str, Json] = {COPIED: {"context": original.id, "version": version}, COPYING: True}
    if policy.POLICY in original.settings:
        settings[policy.POLICY] = original.settings[policy.POLICY]
    now = datetime.now(UTC)
    return Context(
        id=id,
        namespace=original.namespace,
        key=key,
        root=id,
        counter=original.counter,
        settings=settings,
        created_at=now,
        deleted_at=now,
    )


async def _rewrite_entries(
    storage: StorageBackend, original: Context, version: int, copy: str, chains: dict[int, str]
) -> AsyncIterator[Entry]:
    """Yield the entries of a log as its copy has them, whole appends only; put their chain values into `chains`.

    A fork of an older release may have used an inherited key again: the key stays with the first message that had it.
    """
    runs = split_segments(original.id, original.lineage, 1, version)
    chain = genesis_hash(copy)
    keys: set[str] = set()
    async for append in read_appends(storage, original.id, at=version):
        batch: list[Entry] = []
        for entry in append:
            batch.append(replace(entry, key=None) if entry.key in keys else entry)
            if entry.key is not None and len(runs) > 1:
                keys.add(entry.key)
        for copied in copy_batch(batch, chain, copy, runs):
            chain = copied.chain
            chains[copied.version] = chain.hex()
            yield copied


async def _copy_expire_jobs(storage: StorageBackend, owners: Iterable[str], copy: str) -> None:
    """Copy the pending expiry jobs, so that retention applies to the copy as it does to the original."""
    jobs: list[JobDraft] = []
    for owner in owners:
        for job in await _read_unfinished_jobs(storage, owner):
            if job.kind == "expire":
                jobs.append(_draft_from_job(job, job.dedupe.replace(owner, copy)))
    if jobs:
        _raise_errors(await storage.append([Append(context=copy, drafts=(), jobs=tuple(jobs))]))


async def _copy_vectors(
    storage: StorageBackend, original: str, version: int, copy: str, owners: Iterable[str]
) -> None:
    """Copy the embedder's vectors of the entries; index records name their entry and are computed again."""
    inner = find_layer(storage, HasSpaces)
    if inner is None:
        return
    spaces: set[str] = set()
    for owner in owners:
        try:
            spaces.update(await inner.spaces(owner))
        except SessionNotFoundError:  # an ancestor that was deleted
            continue
    for space in sorted(spaces - {index_record.SPACE}):
        await _store_derived_rows(storage, copy, await storage.derived(original, space, at=version))
