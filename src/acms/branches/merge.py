"""Merge one branch into another: read both, decide, and append everything in one commit.

A merge reads each side's own entries, the changed entries of the common part, and the facts. If another write changes
the version that the append expects, both sides are read again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import get_args

from acms.branches import diff, forks, merge_drafts, three_way
from acms.branches.forks import Side
from acms.branches.merge_drafts import Drafts, Terms
from acms.branches.three_way import Log, Plan
from acms.errors import ConflictError, GoneError, MergeConflictError, SessionNotFoundError, ValidationError
from acms.log.known import hash_sensitive_key
from acms.log.merges import MergeConflict, Merged, MergeStrategy
from acms.log.policy import PRIVATE
from acms.model import Append, Context, Draft, Entry, Head, Kind, Span, ToolCall
from acms.observability.logging import log_event
from acms.ports import StorageBackend
from acms.privacy.modes import stored_mode
from acms.privacy.stage import Stage
from acms.recall.planner import media_tokens
from acms.results import Change
from acms.session_state import SharedSession
from acms.storage import append_rules
from acms.storage.append_rules import split_segments
from acms.write import retirement
from acms.write.queue import AppendRequest, Delivered, Overtaken, Writer

_TRIES = 5
"""How often both sides are read again because something of them was erased meanwhile."""


@dataclass(frozen=True, slots=True)
class _Read:
    """Both sides as they were read."""

    context: Context
    head: Head
    other: Context
    version: int
    ours: Log
    theirs: Log


async def merge_session(
    shared: SharedSession, writer: Writer, side: Side, strategy: MergeStrategy, *, dry_run: bool
) -> Merged:
    """Merge another session into this one; return a description of the merge, which `dry_run` only plans."""
    if strategy not in get_args(MergeStrategy):
        allowed = ", ".join(get_args(MergeStrategy))
        raise ValidationError(f"{strategy!r} is not one of {allowed}", field="strategy")
    erased = 0
    while True:
        found = await _read_sides(shared, side)
        plan = three_way.plan_merge(found.ours, found.theirs, strategy)
        merged = _describe_merge(shared, side, found, plan, strategy, dry_run=dry_run)
        refused = strategy == "refuse" and bool(plan.conflicts)
        if not plan or (dry_run and refused):
            return merged
        if refused:
            raise _merge_conflict_error(merged)
        try:
            drafts, written = await _build_drafts(shared, side, found, plan, strategy)
            if dry_run:
                op = Append(context=found.context.id, drafts=drafts)
                append_rules.refuse_erased_sources(
                    await shared.storage.get(append_rules.collect_source_ids(op))
                )
                return merged
            delivered = await _append_drafts(shared, writer, found, drafts, written)
        except Overtaken:
            continue
        except GoneError:  # an entry was erased between the read and the write
            erased += 1
            if erased == _TRIES:
                raise
            continue
        version = delivered.receipt.versions[0] + delivered.start + len(delivered.drafts) - 1
        log_event(logging.INFO, "merged", context=found.context.id, other=found.other.id, version=version)
        return replace(merged, version=version)


def _merge_conflict_error(merged: Merged) -> MergeConflictError:
    count = len(merged.conflicts)
    listed = "; ".join(map(str, merged.conflicts[:5])) + ("; …" if count > 5 else "")
    return MergeConflictError(
        f"{count} conflict{'s' if count > 1 else ''} with {merged.theirs}: {listed}",
        conflicts=merged.conflicts,
        options=(
            'merge with strategy="ours" to keep what this session says in them',
            'merge with strategy="theirs" to take what the other session says in them',
            "merge with dry_run=True to see all of them, settle them on either side, and merge again",
        ),
    )


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _read_sides(shared: SharedSession, side: Side) -> _Read:
    storage = shared.storage
    if storage is not side.shared.storage:
        raise ValidationError(
            "both sides must be sessions on one storage handle",
            field="other",
            options=("open both with the same storage object",),
        )
    context, other = await _load_live_context(shared), await _load_live_context(side.shared)
    _check_mergeable(context, other)
    version = await forks.version_of(storage, other.id, side.at)
    head = await storage.head(context.id)
    runs = split_segments(context.id, context.lineage, 1, head.version)
    there = split_segments(other.id, other.lineage, 1, version)
    common = diff.find_common_version(runs, there)
    theirs = await _read_replacing_entries(storage, other.id, version)
    own = await storage.read(other.id, at=version, after=common)
    spans = sorted(
        {
            *three_way.find_touched_spans(theirs, common),
            *await _find_duplicate_spans(shared, context.id, common, own),
        }
    )
    both = await _read_touched_messages(storage, other.id, common, spans, own)
    return _Read(
        context,
        head,
        other,
        version,
        await _read_side_log(storage, context.id, runs, common, both),
        await _read_side_log(storage, other.id, there, common, both, theirs, own),
    )


async def _load_live_context(shared: SharedSession) -> Context:
    context = await shared.storage.context(await shared.written())
    if context.deleted_at is not None:
        raise SessionNotFoundError(
            f"the session {shared.session_id!r} was deleted", options=("undelete it first",)
        )
    return context


def _check_mergeable(context: Context, other: Context) -> None:
    if context.id == other.id:
        raise ValidationError("is this session itself", field="other")
    if context.root != other.root:
        raise ValidationError(
            "has no history in common with this session: only forks of one tree can be merged",
            field="other",
            options=("fork one of them from the other", "ingest what it says"),
        )
    if other.settings.get(PRIVATE) and not context.settings.get(PRIVATE):
        raise ConflictError(
            f"{other.key or other.id!r} is private and {context.key or context.id!r} is not: what was said there "
            "would be found from other sessions",
            retryable=False,
            options=("make this session private first: set_private()",),
        )


async def _read_replacing_entries(storage: StorageBackend, context: str, version: int) -> list[Entry]:
    return await storage.read(context, at=version, replacing=True)


async def _find_duplicate_spans(
    shared: SharedSession, context: str, common: int, own: Sequence[Entry]
) -> list[Span]:
    """Return where the common part has a key of the other side's own: forks did not always know what they inherit."""
    keys = {entry.key for entry in own if entry.key is not None}
    if not keys:
        return []
    known = shared.known
    await known.catch_up(shared.storage, context)
    rows = [known.under(name) for key in keys for name in (key, hash_sensitive_key(key))]
    return [(row.version, row.version) for row in rows if row is not None and row.version <= common]


async def _read_touched_messages(
    storage: StorageBackend,
    context: str,
    common: int,
    spans: Sequence[tuple[int, int]],
    own: Sequence[Entry],
) -> list[Entry]:
    """Return the messages of the common part that the other side touched; all when it touched a tool group of it."""
    opened = {entry.group for entry in own if any(isinstance(part, ToolCall) for part in entry.parts)}
    late = any(entry.group is not None and entry.group not in opened for entry in own)
    found: list[Entry] = []
    for first, last in diff.merge_nearby_spans(spans):
        found += await storage.read(context, at=last, after=first - 1, kinds=(Kind.MESSAGE,))
    inside = [one for one in found if any(first <= one.version <= last for first, last in spans)]
    if late or any(one.group is not None for one in inside):
        return await storage.read(context, at=common, kinds=(Kind.MESSAGE,)) if common else []
    return inside


async def _read_side_log(
    storage: StorageBackend,
    context: str,
    runs: Sequence[tuple[str, int, int]],
    common: int,
    both: Sequence[Entry],
    replacing: Sequence[Entry] | None = None,
    own: Sequence[Entry] | None = None,
) -> Log:
    """Return the log of one side; entries passed by the caller are not read again."""
    version = runs[-1][2] if runs else 0
    if own is None:
        own = await storage.read(context, at=version, after=common)
    if replacing is None:
        replacing = await _read_replacing_entries(storage, context, version)
    return Log(
        context,
        runs,
        common,
        replacing=replacing,
        entries=[*both, *own],
        facts=await storage.read(context, at=version, kinds=(Kind.FACT,)),
        retractions=await storage.read(context, at=version, kinds=(Kind.RETRACTION,)),
    )


# ── telling ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _describe_merge(
    shared: SharedSession, side: Side, found: _Read, plan: Plan, strategy: MergeStrategy, *, dry_run: bool
) -> Merged:
    """Say what a plan does, each entry as it may leave."""
    ours, theirs = shared.stage, side.shared.stage
    comes = [(slot.entry.version, shown) for slot in plan.comes if (shown := slot.now) is not None]
    comes += [(edit.shown.version, edit.shown) for edit in plan.edits if edit.slot.now is None]
    comes += [(one.fact.version, one.fact) for one in plan.learned if not one.ended]
    changed = [(now, edit.shown) for edit in plan.edits if (now := edit.slot.now) is not None]
    changed += [(one.ended[0], one.fact) for one in plan.learned if one.ended]
    gone = [slot.now or slot.entry for slot, _ in plan.retracted]
    gone += [entry for one in plan.unlearned for entry in one.entries]
    return Merged(
        ours=f"{shared.session_id} v{found.head.version}",
        theirs=f"{side.shared.session_id} v{found.version}",
        common=found.ours.common,
        strategy=strategy,
        dry_run=dry_run,
        appended=tuple(theirs.entries([shown for _, shown in sorted(comes, key=lambda row: row[0])])),
        changed=tuple([Change(before=ours.entry(one), after=theirs.entry(two)) for one, two in changed]),
        retracted=tuple(ours.entries(sorted(gone, key=lambda entry: entry.version))),
        conflicts=tuple([_redact_conflict(one, ours, theirs) for one in plan.conflicts]),
        gone=plan.gone,
    )


def _redact_conflict(conflict: MergeConflict, ours: Stage, theirs: Stage) -> MergeConflict:
    return replace(
        conflict,
        base=tuple(theirs.entries(conflict.base)),
        ours=tuple(ours.entries(conflict.ours)),
        theirs=tuple(theirs.entries(conflict.theirs)),
    )


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _build_drafts(
    shared: SharedSession, side: Side, found: _Read, plan: Plan, strategy: MergeStrategy
) -> tuple[tuple[Draft, ...], Drafts]:
    """Return all drafts that a plan appends, and those of the plan itself; raise the error that a merge would raise."""
    context, version = found.context.id, found.head.version
    counts = found.context.counter == found.other.counter
    terms = Terms(
        session=side.shared.session_id,
        version=found.version,
        strategy=strategy,
        now=datetime.now(UTC),
        cleaned=lambda draft: _clean_draft(shared, draft, counts=counts),
    )
    written = merge_drafts.build_merge_drafts(plan, found.ours, found.theirs, terms)
    gone = frozenset(entry.id for entry in written.gone)
    drafts = await retirement.with_facts(
        shared.storage, context, written.drafts, found.ours.cover, version, gone
    )
    return (*drafts, merge_drafts.build_merge_record(plan, found.ours, found.theirs, terms)), written


async def _append_drafts(
    shared: SharedSession, writer: Writer, found: _Read, drafts: tuple[Draft, ...], written: Drafts
) -> Delivered:
    """Append as one operation; `Overtaken` when the log is at another version by now."""
    context, version = found.context.id, found.head.version
    delivered = await writer.post(
        context,
        AppendRequest(
            drafts,
            shared.config.episodes,
            shared.config.retry,
            at=version,
            arrange=lambda tail: merge_drafts.assign_episodes(drafts, written.episodes, tail),
            watch=shared.watch,
            reflect=shared.reflects,
        ),
    )
    assert delivered is not None
    await _notify_followers(shared, writer, context, written.gone, delivered)
    return delivered


async def _notify_followers(
    shared: SharedSession, writer: Writer, context: str, gone: Sequence[Entry], delivered: Delivered
) -> None:
    """Notify the followers of a log: the worker, the indexes, the profile of the namespace."""
    if delivered.asked:
        shared.work()
    if writer.note(context, delivered):
        await writer.index(context, delivered)
    ids = frozenset(entry.id for entry in gone)
    by = delivered.receipt.ids[delivered.start + len(delivered.drafts) - 1]
    await retirement.propagate_to_profile(shared.storage, shared.namespace, retirement.Rewrite((), ids), by)


def _clean_draft(shared: SharedSession, draft: Draft, *, counts: bool) -> Draft:
    """Return a draft with its content redacted and counted by the rules of this side."""
    made = draft
    if shared.config.privacy.redact_before_persist:
        from acms.privacy.redact_entry import (
            redact_for_embedding,
            redact_for_storage,
        )  # the rules come with it

        mode = stored_mode(shared.config.privacy.mode, draft.privacy)
        if draft.kind is Kind.MESSAGE:
            text, parts, metadata, actor, key = redact_for_storage(
                draft.content, draft.parts, draft.metadata, draft.actor, draft.key, mode
            )
            made = replace(draft, content=text, parts=parts, metadata=metadata, actor=actor, key=key)
        else:
            made = redact_for_embedding(draft, mode) or draft
    if counts and made.content == draft.content:
        return made
    return replace(made, tokens=shared.counter.count(made.content) + media_tokens(made.parts))
