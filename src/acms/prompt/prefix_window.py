"""Read a log for prompts that change only when the start of their history moves.

Between two moves, consecutive prompts share their beginning: a *window* (`acms.plan.prefix_cache`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from acms.log.active_entries import EntryGroup, Replacements, is_automatic_summary
from acms.log.read import replacements_at, version_to_read
from acms.model import Entry, Kind
from acms.plan.prefix_cache import window_length, window_start
from acms.ports import Frame, StorageBackend
from acms.privacy.redactor import NO_REDACTION, Redactor
from acms.recall.window import LogSpan, count_tokens_before, gather_newest


async def gather_window(
    storage: StorageBackend,
    context: str,
    at: int | None,
    frame: Frame,
    budget: int,
    scale: int,
    slack: float,
    redactor: Redactor = NO_REDACTION,
) -> LogSpan:
    """Read back until a budget is filled, with the summaries of the log as they were when its window began.

    Automatic summaries take effect from the next window on; until then the messages they cover are read in their
    original wording. So a compaction changes prompts only when their start moves anyway.
    """
    head = await storage.head(context)
    version = version_to_read(head, at)
    latest = await replacements_at(storage, context, head, version)

    async def gather(replacements: Replacements) -> LogSpan:
        return await gather_newest(storage, context, at, frame, budget, redactor, replacements)

    # Without automatic summaries at first; after an erasure a summary may be all that is left, so they take effect.
    span = await gather(latest if head.epoch else latest.without_automatic_after(0))
    length = _measure_window(span, scale, slack)
    span = replace(span, window_length=length)
    if head.epoch or not span.units:
        return span
    tokens = count_tokens_before(span.units[-1])
    # With the default slack, two windows fill a budget: a shorter log is shown whole, without summaries.
    if span.whole and tokens < 2 * length:
        return span
    began = window_start(tokens, length)
    versions = [unit.version for unit in span.units if count_tokens_before(unit) >= began]
    replacements = latest.without_automatic_after(min(versions, default=version))
    covered_versions: list[int] = []
    for summary in filter(is_automatic_summary, replacements.substitutes):
        covered_versions += [last for _, last in summary.replaces]
    if not covered_versions:
        return span
    summarised_span = await gather(replacements)
    return _join_summaries(span, summarised_span, max(covered_versions), latest, replacements)


def _join_summaries(
    span: LogSpan,
    summarised_span: LogSpan,
    last_covered: int,
    latest: Replacements,
    replacements: Replacements,
) -> LogSpan:
    """Return a span with its automatic summaries in place of the messages they replace.

    `summarised_span` was read with the summaries, which cover messages up to the version `last_covered`. Messages
    before that which no summary covers are shown in front, and summaries made later are not shown.
    """
    messages = [unit for unit in summarised_span.units if unit.entries[0].kind is Kind.MESSAGE]
    kept_units = [unit for unit in messages if unit.version < last_covered]
    gathered_ids = _entry_ids(span.units)
    kept_older_units = [unit for unit in kept_units if gathered_ids.isdisjoint(_entry_ids([unit]))]
    summary_ids = {entry.id for entry in latest.replacing if entry.kind is Kind.SUMMARY}
    later_summary_ids = summary_ids.difference(entry.id for entry in replacements.substitutes)
    unsummarised_units = [unit for unit in span.units if later_summary_ids.isdisjoint(_entry_ids([unit]))]
    return replace(
        span,
        replacements=replacements,
        units=[*kept_older_units, *unsummarised_units],
        kept_ids=_entry_ids(kept_units),
    )


def _entry_ids(units: Sequence[EntryGroup[Entry]]) -> frozenset[str]:
    return frozenset(entry.id for unit in units for entry in unit.entries)


def _measure_window(span: LogSpan, scale: int, slack: float) -> int:
    """Return the length of a window from the average message, measured when the longest possible window began."""
    messages = [entry for unit in span.units for entry in unit.entries if entry.position]
    if not messages:
        return window_length(scale, slack)
    newest = messages[-1]
    window_start_tokens = window_start(newest.total - newest.tokens, window_length(scale, slack, 1))
    first_message = next((entry for entry in messages if entry.total > window_start_tokens), newest)
    return window_length(scale, slack, first_message.total, first_message.position or 1)
