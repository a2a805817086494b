"""Merge one branch into another: read both, decide, and append everything in one commit.

A merge reads each side's own entries, the changed entries of the common part, and the facts. If another write changes
the version that the append expects, both sides are read again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import get_args

from acms.branches import diff, forks, merge_drafts, three_way
from acms.branches.forks import Side
from acms.branches.merge_drafts import Drafts, Terms
from acms.branches.three_way import MergeSide, Plan
from acms.errors import ConflictError, GoneError, ValidationError
from acms.log import validation
from acms.log.active_entries import join_spans
from acms.log.known_messages import hash_sensitive_key
from acms.log.merges import MergeConflict, Merged, MergeStrategy, merge_conflict_error
from acms.log.policy import PRIVATE
from acms.model import Append, Context, Draft, Entry, Head, Kind, Span, ToolCall
from acms.observability.logging import log_event
from acms.ports import StorageBackend
from acms.privacy.modes import stored_mode
from acms.privacy.redactor import Redactor
from acms.recall.planner import media_tokens
from acms.results import Change
from acms.session_state import SharedSession
from acms.storage import append_rules
from acms.storage.append_rules import split_segments
from acms.write import retirement
from acms.write.queue import AppendRequest, LogChangedError, Writer


@dataclass(frozen=True, slots=True)
class _Sides:
    """Both sides as they were read."""

    context: Context
    head: Head
    other: Context
    other_version: int
    ours: MergeSide
    theirs: MergeSide


async def merge_session(
    shared: SharedSession, writer: Writer, side: Side, strategy: MergeStrategy, *, dry_run: bool
) -> Merged:
    """Merge another session into this one; return a description of the merge, which `dry_run` only plans."""
    if strategy not in get_args(MergeStrategy):
        strategies = ", ".join(get_args(MergeStrategy))
        raise ValidationError(f"{strategy!r} is not one of {strategies}", field="strategy")
    validation.require_flag(dry_run, "dry_run")
    attempts = 0
    while True:
        try:
            return await _try_merge(shared, writer, side, strategy, dry_run=dry_run)
        except LogChangedError:  # another write came first: the log has grown, so the merge is planned again
            continue
        except GoneError:  # an entry was erased between the read and the write
            attempts += 1
            if attempts == 5:
                raise


async def _try_merge(
    shared: SharedSession, writer: Writer, side: Side, strategy: MergeStrategy, *, dry_run: bool
) -> Merged:
    """Read both sides, plan the merge and append it.

    Raise `LogChangedError` or `GoneError` if one side changed meanwhile.
    """
    sides = await _read_sides(shared, side)
    plan = three_way.plan_merge(sides.ours, sides.theirs, strategy)
    merged = _describe_merge(shared, side, sides, plan, strategy, dry_run=dry_run)
    if not plan:
        return merged
    if strategy == "refuse" and plan.conflicts:
        if dry_run:
            return merged
        raise merge_conflict_error(merged)
    drafts, planned = await _build_drafts(shared, side, sides, plan, strategy)
    context = sides.context.id
    if dry_run:  # raise the error that the append would raise
        sources = append_rules.collect_source_ids(Append(context=context, drafts=drafts))
        append_rules.refuse_erased_sources(await shared.storage.get(sources))
        return merged
    request = AppendRequest(
        drafts,
        shared.config.episodes,
        shared.config.retry,
        at=sides.head.version,
        arrange=lambda tail: merge_drafts.assign_episodes(drafts, planned.episodes, tail),
        watch=shared.watch,
        reflect=shared.reflects,
    )
    delivered = await writer.post(context, request)
    assert delivered is not None
    await writer.finish_append(context, delivered)
    change = retirement.ProfileChange(frozenset(entry.id for entry in planned.replaced))
    await retirement.propagate_to_profile(shared.storage, shared.namespace, change, delivered.last_id)
    log_event(logging.INFO, "merged", context=context, other=sides.other.id, version=delivered.last_version)
    return replace(merged, version=delivered.last_version)


# ── both sides ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def _read_sides(shared: SharedSession, side: Side) -> _Sides:
    """Read both sides of a merge: their own entries, and the inherited messages that the other side touched."""
    storage = shared.storage
    forks.require_same_storage(shared, side.shared)
    context = await forks.load_live_context(storage, await shared.require_context())
    other = await forks.load_live_context(storage, await side.shared.require_context())
    _check_mergeable(context, other)
    version = await forks.resolve_version(storage, other.id, side.at)
    head = await storage.head(context.id)
    runs = split_segments(context.id, context.lineage, 1, head.version)
    other_runs = split_segments(other.id, other.lineage, 1, version)
    common = diff.find_common_version(runs, other_runs)
    replacing = await storage.read(context.id, at=head.version, replacing=True)
    other_replacing = await storage.read(other.id, at=version, replacing=True)
    own_entries = await storage.read(context.id, at=head.version, after=common)
    other_own_entries = await storage.read(other.id, at=version, after=common)
    spans = {
        *three_way.find_touched_spans(other_replacing, common),
        *await _find_duplicate_spans(shared, context.id, common, other_own_entries),
    }
    inherited = await _read_touched_messages(storage, other.id, common, sorted(spans), other_own_entries)
    entries = [*inherited, *own_entries]
    other_entries = [*inherited, *other_own_entries]
    ours = await _read_log(storage, context.id, head.version, runs, common, entries, replacing)
    theirs = await _read_log(storage, other.id, version, other_runs, common, other_entries, other_replacing)
    return _Sides(context, head, other, version, ours, theirs)


def _check_mergeable(context: Context, other: Context) -> None:
    """Raise an error for two logs that must not be merged: one log, no common history, a private source."""
    if context.id == other.id:
        raise ValidationError("is this session itself", field="other")
    if context.root != other.root:
        raise ValidationError(
            "has no history in common with this session: only forks of one tree can be merged",
            field="other",
            options=("fork one of them from the other", "ingest its messages"),
        )
    if other.settings.get(PRIVATE) and not context.settings.get(PRIVATE):
        raise ConflictError(
            f"{other.key or other.id!r} is private and {context.key or context.id!r} is not: other "
            "sessions would find its messages",
            retryable=False,
            options=("make this session private first: set_private()",),
        )


async def _find_duplicate_spans(
    shared: SharedSession, context: str, common: int, other_own_entries: Sequence[Entry]
) -> list[Span]:
    """Return the spans of inherited messages whose key the other side used again for a message of its own.

    Forks of older releases did not know the keys that they inherit.
    """
    keys = {entry.key for entry in other_own_entries if entry.key is not None}
    if not keys:
        return []
    inherited_messages = shared.known
    await inherited_messages.catch_up(shared.storage, context)
    spans: list[Span] = []
    for key in keys:
        for name in (key, hash_sensitive_key(key)):  # a log may store a sensitive key as its hash
            row = inherited_messages.find_by_key(name)
            if row is not None and row.version <= common:
                spans.append((row.version, row.version))
    return spans


async def _read_touched_messages(
    storage: StorageBackend,
    context: str,
    common: int,
    spans: Sequence[Span],
    other_own_entries: Sequence[Entry],
) -> list[Entry]:
    """Return the inherited messages in some spans, or all of them if the other side touched an inherited tool group.

    A tool group is merged as a whole, and its messages may be anywhere up to `common`, the last version that both sides
    share.
    """
    touched: list[Entry] = []
    for first, last in join_spans(spans, diff.READ_GAP):
        for message in await storage.read(context, at=last, after=first - 1, kinds=(Kind.MESSAGE,)):
            if any(start <= message.version <= end for start, end in spans):
                touched.append(message)
    opened = {
        entry.group for entry in other_own_entries if any(isinstance(part, ToolCall) for part in entry.parts)
    }
    touches_group = any(message.group is not None for message in touched)
    answers_group = any(entry.group is not None and entry.group not in opened for entry in other_own_entries)
    if not common or not (touches_group or answers_group):
        return touched
    return await storage.read(context, at=common, kinds=(Kind.MESSAGE,))


async def _read_log(
    storage: StorageBackend,
    context: str,
    version: int,
    runs: Sequence[tuple[str, int, int]],
    common: int,
    entries: Sequence[Entry],
    replacing: Sequence[Entry],
) -> MergeSide:
    """Return one side up to a version: read its facts and retractions; the other entries were read before."""
    return MergeSide(
        context,
        runs,
        common,
        replacing=replacing,
        entries=entries,
        facts=await storage.read(context, at=version, kinds=(Kind.FACT,)),
        retractions=await storage.read(context, at=version, kinds=(Kind.RETRACTION,)),
    )


# ── description of a merge ──────────────────────────────────────────────────────────────────────────────────────────


def _describe_merge(
    shared: SharedSession, side: Side, sides: _Sides, plan: Plan, strategy: MergeStrategy, *, dry_run: bool
) -> Merged:
    """Describe a plan; each entry is redacted by the redactor of its own session."""
    ours, theirs = shared.redactor, side.shared.redactor
    # Added entries, each with the version at which it is read.
    added = [(slot.entry.version, slot.current) for slot in plan.added]
    changes: list[tuple[Entry, Entry]] = []
    for edit in plan.edits:
        if edit.slot.current is None:  # the message was inactive here, so its edit is new to the reader
            added.append((edit.content.version, edit.content))
        else:
            changes.append((edit.slot.current, edit.content))
    for added_fact in plan.added_facts:
        if added_fact.superseded:
            changes.append((added_fact.superseded[0], added_fact.fact))
        else:
            added.append((added_fact.fact.version, added_fact.fact))
    retracted = [slot.current or slot.entry for slot, _ in plan.retracted]
    for removed in plan.removed_facts:
        retracted += removed.facts
    added.sort(key=lambda row: row[0])
    retracted.sort(key=lambda entry: entry.version)
    return Merged(
        ours=f"{shared.session_id} v{sides.head.version}",
        theirs=f"{side.shared.session_id} v{sides.other_version}",
        common=sides.ours.common,
        strategy=strategy,
        dry_run=dry_run,
        appended=tuple(theirs.redact_entries([entry for _, entry in added if entry is not None])),
        changed=tuple(
            Change(before=ours.redact_entry(previous), after=theirs.redact_entry(updated))
            for previous, updated in changes
        ),
        retracted=tuple(ours.redact_entries(retracted)),
        conflicts=tuple(_redact_conflict(conflict, ours, theirs) for conflict in plan.conflicts),
        gone=plan.gone,
    )


def _redact_conflict(conflict: MergeConflict, ours: Redactor, theirs: Redactor) -> MergeConflict:
    return replace(
        conflict,
        base=tuple(theirs.redact_entries(conflict.base)),
        ours=tuple(ours.redact_entries(conflict.ours)),
        theirs=tuple(theirs.redact_entries(conflict.theirs)),
    )


# ── drafts and effects ──────────────────────────────────────────────────────────────────────────────────────────────


async def _build_drafts(
    shared: SharedSession, side: Side, sides: _Sides, plan: Plan, strategy: MergeStrategy
) -> tuple[tuple[Draft, ...], Drafts]:
    """Return all drafts that a merge appends, and apart from that the drafts of the plan alone.

    All drafts are those of the plan, the retirement of facts made from replaced messages, and the record of the merge.
    """
    context, version = sides.context.id, sides.head.version
    same_counter = sides.context.counter == sides.other.counter
    terms = Terms(
        session=side.shared.session_id,
        version=sides.other_version,
        strategy=strategy,
        now=datetime.now(UTC),
        clean=partial(_clean_draft, shared, same_counter=same_counter),
    )
    planned = merge_drafts.build_merge_drafts(plan, sides.ours, sides.theirs, terms)
    record = merge_drafts.build_merge_record(plan, sides.ours, sides.theirs, terms)
    replaced = frozenset(entry.id for entry in planned.replaced)
    drafts = await retirement.append_retirements(
        shared.storage, context, planned.drafts, sides.ours.replacements, version, replaced
    )
    return (*drafts, record), planned


def _clean_draft(shared: SharedSession, draft: Draft, *, same_counter: bool) -> Draft:
    """Return a draft with its content redacted and counted by the rules of this side."""
    clean = draft
    if shared.config.privacy.redact_before_persist:
        from acms.privacy.redact_entry import redact_draft_for_storage  # it loads the rules

        clean = redact_draft_for_storage(draft, stored_mode(shared.config.privacy.mode, draft.privacy))
    if same_counter and clean.content == draft.content:
        return clean
    return replace(clean, tokens=shared.counter.count(clean.content) + media_tokens(clean.parts))
