"""Copy all data of a tenant from one store to another, or one session into a new session.

A copy between stores is verbatim and resumable, and never overwrites other data. Parents are copied before their forks,
the newest settings after the entries, and unfinished jobs last. A second run copies only new data.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from acms.branches import export, forks
from acms.branches.export import PAGE, Problem
from acms.errors import ACMSError, ConflictError, CorruptRecordError, SessionNotFoundError, ValidationError
from acms.log import policy, validation
from acms.log.encoding import draw_token, genesis_hash
from acms.log.exported import validate_context, validate_entry
from acms.log.provenance import COPIED, COPIES, COPYING, Run, copy_batch, copy_of
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
    State,
)
from acms.observability.logging import log_event
from acms.ports import HasSpaces, Progress, StorageBackend
from acms.storage.append_rules import split_segments
from acms.storage.sessions import count_erased
from acms.storage.wrapper import WrapperStorage
from acms.text import index_record

if TYPE_CHECKING:
    from acms.session_state import SharedSession

__all__ = ["Copied", "copy"]

_TRIES = 10
"""How often a copy looks again that another task makes at the same time."""


# ── from store to store ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What a copy brought to its target; nothing but `contexts` when all of it was there."""

    #: Contexts of the source, deleted ones too.
    contexts: int
    #: Those of them that are new in the target.
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
        raise ValidationError("is the source itself", field="target")
    return await _Copy(source, target, progress).run(derived=derived, verify=verify)


@dataclass(slots=True)
class _Step:
    """One context that is to be copied."""

    id: str
    #: Version before its own entries.
    start: int
    #: Last version in the source.
    last: int
    #: Last version in the target; None when it is not there.
    have: int | None


class _Copy:
    """One run of a copy."""

    def __init__(self, source: StorageBackend, target: StorageBackend, progress: Progress | None) -> None:
        self._source = source
        self._target = target
        self._progress = progress
        self._done = self._total = 0
        self._created = self._entries = self._blanked = self._derived = 0
        self._left: list[str] = []
        #: Appends without entries that wait to share a commit.
        self._notes: list[Append] = []

    async def run(self, *, derived: bool, verify: bool) -> Copied:
        owed = await self._owed()
        steps = [await self._look(id) for id in await self._ids()]
        for step in steps:
            await self._validate(step)
        self._total = sum(step.last - (step.start if step.have is None else step.have) for step in steps)
        for step in steps:  # first: their names may have been taken by others since
            if step.have is not None:
                await self._hide(step.id, owed.get(step.id, ()))
        for step in steps:
            await self._restore(step, owed.get(step.id, ()))
            if step.have is not None:
                await self._blank(step)
            if derived:
                await self._derive(step)
            await self._settle(step, owed.get(step.id, ()))
        owed = await self._owed()
        for id, jobs in owed.items():
            await self._enqueue(id, jobs)
        await self._note()
        problems = [problem for step in steps for problem in await self._check(step)] if verify else []
        return Copied(
            contexts=len(steps),
            created=self._created,
            entries=self._entries,
            blanked=self._blanked,
            derived=self._derived,
            jobs=sum(map(len, owed.values())),
            left=tuple(dict.fromkeys(self._left)),
            problems=tuple(problems),
            verified=verify,
        )

    # what there is to do

    async def _owed(self) -> dict[str, list[JobDraft]]:
        """Return the unfinished jobs of the source by context, oldest first; one that runs may not end there."""
        found: dict[str, list[JobDraft]] = {}
        for job in await _read_unfinished_jobs(self._source):
            found.setdefault(job.context, []).append(_draft_from_job(job, job.dedupe))
        return found

    async def _ids(self) -> list[str]:
        """Return the id of every context, oldest first: a parent before its forks."""
        found: list[str] = []
        query = ContextQuery(deleted=True, limit=PAGE)
        while True:
            page = await self._source.contexts(query)
            found += [context.id for context in page.items]
            if page.next_after is None:
                return found[::-1]
            query = replace(query, after=page.next_after)

    async def _look(self, id: str) -> _Step:
        """Compare a context with what the target has under its id and name, before anything is written."""
        context = await self._source.context(id)
        with _locate_errors(f"{id} of the source"):
            validate_context(context, own=validation.AUDIT)
        start = context.fork or 0
        last, chained = await _end_of(self._source, id)
        there = await _find_context(self._target, id, context.namespace)
        if there is None or there.id != id:
            await self._check_name(context)
            return _Step(id, start, last, None)
        if (there.namespace, there.key, there.lineage, there.created_at) != (
            context.namespace,
            context.key,
            context.lineage,
            context.created_at,
        ):
            raise ConflictError(f"{id} is another context in the target", retryable=False)
        have, known = await _end_of(self._target, id)
        if have > last:
            raise _diverged_error(context, f"is at version {have} there and at {last} here")
        if start < have < last:
            (entry,) = await self._source.read(id, after=have - 1, before=have + 1, deleted=True)
            chained = entry.chain
        if have > start and known != chained:
            raise ConflictError(f"{id} holds another log in the target", retryable=False)
        same = dict(there.settings) == dict(context.settings)
        hidden = (there.deleted_at is None) == (context.deleted_at is None)
        if there.settings_rev > context.settings_rev or (
            there.settings_rev == context.settings_rev and not (same and hidden)
        ):
            raise _diverged_error(context, "has other settings there")
        return _Step(id, start, last, max(have, start))

    async def _validate(self, step: _Step) -> None:
        """Raise for an entry that the API would refuse: then nothing is copied."""
        after = step.start if step.have is None else step.have
        while after < step.last and (page := await self._page(step, after)):
            for entry in page:
                with _locate_errors(f"{step.id} v{entry.version} of the source"):
                    validate_entry(entry)
            after = page[-1].version

    async def _page(self, step: _Step, after: int) -> list[Entry]:
        return await self._source.read(step.id, at=step.last, after=after, limit=PAGE, deleted=True)

    async def _check_name(self, context: Context) -> None:
        """Raise when another context has this one's name in the target, unless the source says that it was deleted."""
        if context.key is None or context.deleted_at is not None:
            return
        taken = await _find_context(self._target, context.key, context.namespace)
        if taken is None or taken.key != context.key or taken.deleted_at is not None:
            return
        here = await _find_context(self._source, taken.id, context.namespace)
        if here is None or here.deleted_at is None:
            raise ConflictError(
                f"the session {context.key!r} of namespace {context.namespace!r} exists in the target with another id",
                retryable=False,
                options=("copy into another tenant or another store", "delete one of them"),
            )

    # doing it

    async def _restore(self, step: _Step, owed: Sequence[JobDraft]) -> None:
        context = await self._source.context(step.id)
        if step.have is None:
            self._created += 1
            if context.deleted_at is not None and owed:
                # A hidden context takes no job: it is hidden once it has those it is owed, such as its collection.
                open_ = replace(context, deleted_at=None, settings_rev=max(0, context.settings_rev - 1))
                try:
                    return await self._target.restore(open_, self._stream(step))
                except ConflictError:
                    self._left += [f"job {job.kind} of {step.id}: its name was taken again" for job in owed]
        await self._target.restore(context, self._stream(step))

    async def _stream(self, step: _Step) -> AsyncIterator[Entry]:
        """Yield what the target has not, whole appends only: half of one could not be checked."""
        after = step.start if step.have is None else step.have
        batch: list[Entry] = []
        while after < step.last and (page := await self._page(step, after)):
            for entry in page:
                if batch and entry.batch != batch[0].batch:
                    for complete in batch:
                        yield complete
                    batch.clear()
                batch.append(entry)
            after = page[-1].version
            self._entries += len(page)
            self._tell(len(page))
        for complete in batch:
            yield complete

    def _tell(self, entries: int) -> None:
        self._done += entries
        if self._progress is not None:
            self._progress(self._done, max(self._done, self._total))

    async def _blank(self, step: _Step) -> None:
        context = await self._source.context(step.id)
        if context.deleted_at is None and not (await self._source.head(step.id)).epoch:
            return
        self._blanked += await _blank_copied_entries(
            self._source, step.id, self._target, step.id, after=step.start, last=step.last
        )

    async def _derive(self, step: _Step) -> None:
        """Copy the derived rows of a context's own entries that the target has not."""
        source = _unwrap_to_spaces(self._source)
        if not isinstance(source, HasSpaces):
            return
        try:
            for space in await source.spaces(step.id):
                known: set[int] = set()
                if step.have is not None:
                    known = {row.version for row in await self._target.derived(step.id, space)}
                rows = await self._source.derived(step.id, space, at=step.last)
                wanted = [row for row in rows if row.version > step.start and row.version not in known]
                self._derived += await _store_derived_rows(self._target, step.id, wanted)
        except SessionNotFoundError:  # it was deleted: computed again should it come back
            return

    async def _settle(self, step: _Step, owed: Sequence[JobDraft]) -> None:
        """Bring the settings and the notes at the end of a log up to date."""
        await self._hide(step.id, owed)
        context = await self._source.context(step.id)
        there = await self._target.context(step.id)
        change: dict[str, Json] = {
            **dict.fromkeys(there.settings),
            **context.settings,
            **({} if (there.deleted_at is None) == (context.deleted_at is None) else {"deleted": False}),
        }
        while there.settings_rev < context.settings_rev:
            there = await self._target.settings(step.id, change, rev=there.settings_rev)
            change = {}
        if context.deleted_at is None:
            ours, theirs = await self._source.head(step.id), await self._target.head(step.id)
            if ours.version == theirs.version and dict(ours.tail) != dict(theirs.tail):
                await self._note(Append(context=step.id, drafts=(), tail=dict(ours.tail)))

    async def _hide(self, id: str, owed: Sequence[JobDraft]) -> None:
        """Delete in the target a context that the source has deleted, after its unfinished jobs are copied."""
        context = await self._source.context(id)
        there = await self._target.context(id)
        if context.deleted_at is None or there.deleted_at is not None:
            return
        await self._enqueue(id, owed)
        await self._note()
        gone = dict.fromkeys(there.settings)
        await self._target.settings(id, {**gone, **context.settings, "deleted": True}, rev=there.settings_rev)

    async def _enqueue(self, id: str, jobs: Sequence[JobDraft]) -> None:
        there = await self._target.context(id)
        if jobs and there.deleted_at is None:
            await self._note(Append(context=id, drafts=(), jobs=tuple(jobs)))

    async def _note(self, op: Append | None = None) -> None:
        """Queue an append without entries and send full batches in one commit; without `op`, send the pending ones."""
        if op is not None:
            self._notes.append(op)
            if len(self._notes) < PAGE:
                return
        notes, self._notes = self._notes, []
        for result in await self._target.append(notes) if notes else ():
            if isinstance(result, ACMSError):
                raise result

    async def _check(self, step: _Step) -> list[Problem]:
        """Compare both sides of a context and compute its hashes again."""
        ours, theirs = await _end_of(self._source, step.id), await _end_of(self._target, step.id)
        if ours != theirs:
            what = f"the source has gone on to v{ours[0]} meanwhile: copy again"
            if ours[0] == theirs[0]:
                what = "the chain hash is not that of the source"
            return [Problem(context=step.id, version=theirs[0], what=what)]
        context = await self._target.context(step.id)
        return [] if context.deleted_at is not None else await export.verify(self._target, context)


async def _blank_copied_entries(
    source: StorageBackend, context: str, target: StorageBackend, copy: str, *, after: int, last: int
) -> int:
    """Take away in a copy what lost its content in the original since it was copied; return how much that was."""
    changed = 0
    while after < last and (
        ours := await source.read(context, at=last, after=after, limit=PAGE, deleted=True)
    ):
        theirs = await target.read(copy, after=after, before=ours[-1].version + 1, deleted=True)
        for state in (State.EXPIRED, State.ERASED):
            gone = [
                entry.version
                for entry, other in zip(ours, theirs, strict=True)
                if entry.state is state and other.state not in (state, State.ERASED)
            ]
            if gone:
                changed += await target.blank(copy, gone, to=state, audit={"reason": "copied"})
        after = ours[-1].version
    return changed


async def _store_derived_rows(storage: StorageBackend, context: str, rows: Sequence[Derived]) -> int:
    """Store derived rows, all of a version in one commit; return how many were kept."""
    kept = 0
    batch: list[Derived] = []
    for row in sorted(rows, key=lambda row: (row.version, row.part)):
        if len(batch) >= PAGE and row.version != batch[-1].version:
            kept += await storage.put_derived(context, batch)
            batch = []
        batch.append(row)
    return kept + (await storage.put_derived(context, batch) if batch else 0)


def _unwrap_to_spaces(storage: StorageBackend) -> StorageBackend:
    """Return the store that can say which spaces there are: the one that is used, or one behind its wrappers."""
    while isinstance(storage, WrapperStorage) and not isinstance(storage, HasSpaces):
        storage = storage.inner
    return storage


async def _read_unfinished_jobs(storage: StorageBackend, context: str | None = None) -> list[Job]:
    """Return the unfinished jobs of a context, or of all, oldest first."""
    found: list[Job] = []
    query = JobQuery(context=context, states=(JobState.READY, JobState.RUNNING), limit=PAGE)
    while True:
        page = await storage.jobs(query)
        found += page.items
        if page.next_after is None:
            return found[::-1]
        query = replace(query, after=page.next_after)


def _draft_from_job(job: Job, name: str) -> JobDraft:
    """Return a job to be done elsewhere; whether one that runs ends here is not known."""
    due = job.not_before if job.state is JobState.READY else None
    return JobDraft(kind=job.kind, dedupe=name, payload=dict(job.payload), not_before=due)


async def _end_of(storage: StorageBackend, context: str) -> tuple[int, bytes]:
    """Return the last version of a context and its chain value, also of a deleted one."""
    newest = await storage.read(context, newest=1, deleted=True)
    return (newest[0].version, newest[0].chain) if newest else (0, b"")


@contextmanager
def _locate_errors(where: str) -> Generator[None]:
    """Set `where` as the field of any `ValidationError` raised inside."""
    try:
        yield
    except ValidationError as error:
        raise ValidationError(str(error), field=where, options=error.options) from error


async def _find_context(storage: StorageBackend, id_or_key: str, namespace: str) -> Context | None:
    try:
        return await storage.context(id_or_key, namespace=namespace)
    except SessionNotFoundError:
        return None


def _diverged_error(context: Context, what: str) -> ConflictError:
    return ConflictError(
        f"the session {context.key or context.id!r} went on in the target: it {what}",
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
    key = None if session_id is None else validation.session_name(session_id, "session_id")
    found = await shared.written()
    original = await storage.context(found)
    version = await forks.version_of(storage, found, at)
    tries = 0
    while True:
        try:
            return await _create_or_resume_copy(storage, original, version, key)
        except (ConflictError, CorruptRecordError) as error:
            tries += 1
            if tries == _TRIES or (isinstance(error, ConflictError) and not error.retryable):
                raise  # else another task may be making the same copy: go on where it is


async def _create_or_resume_copy(
    storage: StorageBackend, original: Context, version: int, key: str | None
) -> Context:
    made = None if key is None else await _find_context(storage, key, original.namespace)
    if made is not None and made.deleted_at is None:
        if made.settings.get(COPIED) != {"context": original.id, "version": version}:
            raise ConflictError(
                f"the name {key!r} stands for another session",
                retryable=False,
                options=("choose another session_id",),
            )
        if COPYING not in made.settings:
            return made
    else:
        made = await _fill_copy(
            storage, original, version, await _prepare_hidden_copy(storage, original, version, key)
        )
    runs = split_segments(original.id, original.lineage, 1, version)
    await _copy_expire_jobs(storage, runs, made.id)
    await _copy_vectors(storage, original.id, version, made.id, runs)
    log_event(logging.DEBUG, "copy", context=made.id, original=original.id, version=version)
    return await policy.update_settings(storage, made.id, lambda _: {COPYING: None})


async def _fill_copy(storage: StorageBackend, original: Context, version: int, made: Context) -> Context:
    """Fill a hidden copy and show it."""
    await policy.update_settings(
        storage, original.id, lambda now: _add_copy_reference(now, made.id)
    )  # before it has any content
    runs = split_segments(original.id, original.lineage, 1, version)
    chains: dict[int, str] = {}
    try:
        await storage.restore(made, _rewrite_entries(storage, original.id, version, made.id, runs, chains))
    except ConflictError as error:  # another task began this copy since, or took its name: look again
        raise ConflictError(str(error), retryable=True, options=error.options) from error
    if (await storage.head(original.id)).epoch:  # something may have been erased behind us
        await _blank_copied_entries(storage, original.id, storage, made.id, after=0, last=version)
        await count_erased(storage, made.id)
    tags = {
        name: {"version": tagged, "chain": chains.get(tagged, "")}
        for name, tagged in (await forks.read_tags(storage, original.id, version)).items()
    }
    now = await storage.context(made.id)
    change = {TAGS: tags or None, "deleted": False}
    return await storage.settings(made.id, change, rev=now.settings_rev)


async def _prepare_hidden_copy(
    storage: StorageBackend, original: Context, version: int, key: str | None
) -> Context:
    """Return the context of a copy that is not whole yet: a begun one, or a new one."""
    attempt = 0
    while True:
        name = draw_token(os.urandom, 16) if key is None else key
        id = copy_of(original.id, version, f"{original.namespace} {name}", attempt)
        begun = await _find_context(storage, id, original.namespace)
        if begun is None:
            break
        if begun.deleted_at is not None and begun.settings.get(COPYING):
            return begun
        attempt += 1  # one that was made before and deleted since
    now = datetime.now(UTC)
    kept = {name: original.settings[name] for name in (policy.POLICY,) if name in original.settings}
    return Context(
        id=id,
        namespace=original.namespace,
        key=key,
        root=id,
        counter=original.counter,
        settings={**kept, COPIED: {"context": original.id, "version": version}, COPYING: True},
        created_at=now,
        deleted_at=now,
    )


def _add_copy_reference(settings: Mapping[str, Json], copy: str) -> Mapping[str, Json]:
    return {COPIES: list(dict.fromkeys((*read_setting(settings, COPIES, ()), copy)))}


async def _rewrite_entries(
    storage: StorageBackend,
    original: str,
    version: int,
    copy: str,
    runs: Sequence[Run],
    chains: dict[int, str],
) -> AsyncIterator[Entry]:
    """Yield a log as its copy has it, whole appends only, and write down its chain values.

    Forks did not always know the keys they inherit: a key that was used again stays with what had it first.
    """
    chain = genesis_hash(copy)
    keys: set[str] = set()
    batch: list[Entry] = []
    after, more = 0, True
    while more:
        page = await storage.read(original, at=version, after=after, limit=PAGE, deleted=True)
        more = bool(page)
        after = page[-1].version if page else after
        for entry in (*page, None):
            ends = not more if entry is None else bool(batch) and entry.batch != batch[0].batch
            if ends:
                for made in copy_batch(batch, chain, copy, runs):
                    chain = made.chain
                    chains[made.version] = chain.hex()
                    yield made
                batch.clear()
            if entry is not None:
                batch.append(replace(entry, key=None) if entry.key in keys else entry)
                if entry.key is not None and len(runs) > 1:
                    keys.add(entry.key)


async def _copy_expire_jobs(storage: StorageBackend, runs: Sequence[Run], copy: str) -> None:
    """Copy the pending expiry jobs, so that retention applies to the copy as it does to the original."""
    owed = [
        _draft_from_job(job, job.dedupe.replace(owner, copy))
        for owner in dict.fromkeys(owner for owner, _, _ in runs)
        for job in await _read_unfinished_jobs(storage, owner)
        if job.kind == "expire"
    ]
    if owed:
        (result,) = await storage.append([Append(context=copy, drafts=(), jobs=tuple(owed))])
        if isinstance(result, ACMSError):
            raise result


async def _copy_vectors(
    storage: StorageBackend, original: str, version: int, copy: str, runs: Sequence[Run]
) -> None:
    """Copy the embedder's vectors of the entries; index records name their entry and are computed again."""
    inmost = _unwrap_to_spaces(storage)
    if not isinstance(inmost, HasSpaces):
        return
    spaces: set[str] = set()
    for owner in {owner for owner, _, _ in runs}:
        try:
            spaces.update(await inmost.spaces(owner))
        except SessionNotFoundError:  # an ancestor that was deleted
            continue
    for space in sorted(spaces - {index_record.SPACE}):
        await _store_derived_rows(storage, copy, await storage.derived(original, space, at=version))
