"""Limits: where a sweep breaks, and why: the first value at which a system answers less than nine of ten probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acms_eval.sweeps import Row

__all__ = ["HOLDS", "Limit", "find_limits"]

HOLDS = 0.9
"""Share of the probes that has to be answered."""
_EASY_LAST = ("budget",)
"""Sweeps in which a larger value is easier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Where one system breaks in one sweep, or that it does not."""

    sweep: str
    variant: str
    scenario: str
    system: str
    #: The last value that held, and the first that did not; None when there is none.
    held: float | None
    broke: float | None
    #: At the value that broke, else at the hardest one.
    answered: float
    hit: float
    precision: float | None
    #: The most frequent cause of the probes missed there (`acms_eval.causes`); empty when none was missed.
    cause: str
    probes: int
    #: The least and the most that is answered there, by word list.
    spread: tuple[float, float] | None = None


def find_limits(rows: Sequence[Row], holds: float = HOLDS) -> list[Limit]:
    """Return one limit for every curve among some rows, in their order."""
    curves: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        curves.setdefault((row.sweep, row.variant, row.scenario, row.system), []).append(row)
    return [_find_limit(curve, holds) for curve in curves.values()]


def _find_limit(curve: Sequence[Row], holds: float) -> Limit:
    ordered = sorted(curve, key=lambda row: row.at, reverse=curve[0].sweep in _EASY_LAST)
    broken_at = next((index for index, row in enumerate(ordered) if row.answered < holds), None)
    shown_row = ordered[-1 if broken_at is None else broken_at]
    held_values = [row.at for row in ordered[:broken_at]]
    answered_by_list = list(shown_row.by_words.values())
    spread = (min(answered_by_list), max(answered_by_list)) if len(answered_by_list) > 1 else None
    return Limit(
        sweep=shown_row.sweep,
        variant=shown_row.variant,
        scenario=shown_row.scenario,
        system=shown_row.system,
        held=held_values[-1] if held_values else None,
        broke=None if broken_at is None else shown_row.at,
        answered=shown_row.answered,
        hit=shown_row.hit,
        precision=shown_row.precision,
        cause=next(iter(shown_row.causes), ""),
        probes=shown_row.probes,
        spread=spread,
    )
