"""Cache windows: a log as prompts read it that change only when their start moves."""

from __future__ import annotations

from dataclasses import replace

from acms.log.in_force import is_automatic_summary
from acms.log.read import cover_at, version_of
from acms.model import Kind
from acms.plan.prefix_cache import epoch_length, epoch_start
from acms.ports import Frame, StorageBackend
from acms.privacy.stage import OPEN, Stage
from acms.recall.pipeline import Gathered, count_tokens_before, gather_newest


async def gather_epoch(
    storage: StorageBackend,
    context: str,
    at: int | None,
    frame: Frame,
    budget: int,
    scale: int,
    slack: float,
    stage: Stage = OPEN,
) -> Gathered:
    """Read back until a budget is filled, with the summaries of the log as they were when its epoch began.

    Automatic summaries take effect from the next epoch on; until then the messages they cover are read in their
    original wording. So a compaction changes prompts only when their start moves anyway.
    """
    head = await storage.head(context)
    version = version_of(head, at)
    whole = await cover_at(storage, context, head, version)
    cover = whole if head.epoch else whole.asked(0)  # where content is gone a summary is all there is
    waits = cover is not whole
    said = await gather_newest(storage, context, at, frame, budget, stage, cover)
    length = _epoch_length(said, scale, slack)
    said = replace(said, length=length)
    tokens = count_tokens_before(said.units[-1]) if said.units else 0
    if not waits or not said.units or (said.whole and tokens < 2 * length):
        return said
    since = epoch_start(tokens, length)
    began = min((unit.version for unit in said.units if count_tokens_before(unit) >= since), default=version)
    cover = whole.asked(began)
    ends = [last for one in cover.shown if is_automatic_summary(one) for _, last in one.replaces]
    if not ends:
        return said
    known = {entry.id for unit in said.units for entry in unit.entries}
    rest = await gather_newest(storage, context, at, frame, budget, stage, cover)
    left = [unit for unit in rest.units if unit.entries[0].kind is Kind.MESSAGE and unit.version < max(ends)]
    older = [unit for unit in left if known.isdisjoint(entry.id for entry in unit.entries)]
    stays = frozenset(entry.id for unit in left for entry in unit.entries)
    gone = {one.id for one in whole.replacing if one.kind is Kind.SUMMARY}.difference(
        one.id for one in cover.shown
    )
    now = [unit for unit in said.units if gone.isdisjoint(entry.id for entry in unit.entries)]
    return replace(said, cover=cover, units=[*older, *now], stays=stays)


def _epoch_length(said: Gathered, scale: int, slack: float) -> int:
    """Return the length of an epoch from the average message, measured when the longest possible epoch began."""
    plain = [entry for unit in said.units for entry in unit.entries if entry.position]
    if not plain:
        return epoch_length(scale, slack)
    since = epoch_start(plain[-1].total - plain[-1].tokens, epoch_length(scale, slack, 1))
    first = next((entry for entry in plain if entry.total > since), plain[-1])
    return epoch_length(scale, slack, first.total, first.position or 1)
