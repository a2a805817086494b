"""Cache windows: a log as prompts read it that change only when their start moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from acms.log.in_force import EntryGroup, Replacements, is_automatic_summary
from acms.log.read import replacements_at, version_of
from acms.model import Entry, Kind
from acms.plan.prefix_cache import window_length, window_start
from acms.ports import Frame, StorageBackend
from acms.privacy.redactor import OPEN, Redactor
from acms.recall.pipeline import LogSpan, count_tokens_before, gather_newest


async def gather_window(
    storage: StorageBackend,
    context: str,
    at: int | None,
    frame: Frame,
    budget: int,
    scale: int,
    slack: float,
    redactor: Redactor = OPEN,
) -> LogSpan:
    """Read back until a budget is filled, with the summaries of the log as they were when its window began.

    Automatic summaries take effect from the next window on; until then the messages they cover are read in their
    original wording. So a compaction changes prompts only when their start moves anyway.
    """
    head = await storage.head(context)
    version = version_of(head, at)
    latest = await replacements_at(storage, context, head, version)
    replacements = (
        latest if head.epoch else latest.without_automatic_after(0)
    )  # where content was erased a summary is all there is
    gathered = await gather_newest(storage, context, at, frame, budget, redactor, replacements)
    length = _measure_window(gathered, scale, slack)
    gathered = replace(gathered, length=length)
    if replacements is latest or not gathered.units:
        return gathered
    tokens = count_tokens_before(gathered.units[-1])
    if gathered.whole and tokens < 2 * length:
        return gathered
    began = window_start(tokens, length)
    versions = [unit.version for unit in gathered.units if count_tokens_before(unit) >= began]
    return await _apply_summaries(
        storage,
        context,
        at,
        frame,
        budget,
        redactor,
        gathered,
        latest,
        latest.without_automatic_after(min(versions, default=version)),
    )


async def _apply_summaries(
    storage: StorageBackend,
    context: str,
    at: int | None,
    frame: Frame,
    budget: int,
    redactor: Redactor,
    gathered: LogSpan,
    latest: Replacements,
    replacements: Replacements,
) -> LogSpan:
    """Return a span of a log with its automatic summaries in place of the messages they replace."""
    covered = [
        span
        for summary in filter(is_automatic_summary, replacements.substitutes)
        for span in summary.replaces
    ]
    if not covered:
        return gathered
    last_covered = max(last for _, last in covered)
    summarised = await gather_newest(storage, context, at, frame, budget, redactor, replacements)
    messages = [unit for unit in summarised.units if unit.entries[0].kind is Kind.MESSAGE]
    kept = [unit for unit in messages if unit.version < last_covered]
    known = _entry_ids(gathered.units)
    older = [unit for unit in kept if known.isdisjoint(_entry_ids([unit]))]
    summaries = {entry.id for entry in latest.replacing if entry.kind is Kind.SUMMARY}
    later_summaries = summaries.difference(entry.id for entry in replacements.substitutes)
    newer = [unit for unit in gathered.units if later_summaries.isdisjoint(_entry_ids([unit]))]
    return replace(gathered, replacements=replacements, units=[*older, *newer], stays=_entry_ids(kept))


def _entry_ids(units: Sequence[EntryGroup[Entry]]) -> frozenset[str]:
    return frozenset(entry.id for unit in units for entry in unit.entries)


def _measure_window(gathered: LogSpan, scale: int, slack: float) -> int:
    """Return the length of a window from the average message, measured when the longest possible window began."""
    messages = [entry for unit in gathered.units for entry in unit.entries if entry.position]
    if not messages:
        return window_length(scale, slack)
    newest = messages[-1]
    since = window_start(newest.total - newest.tokens, window_length(scale, slack, 1))
    first = next((entry for entry in messages if entry.total > since), newest)
    return window_length(scale, slack, first.total, first.position or 1)
