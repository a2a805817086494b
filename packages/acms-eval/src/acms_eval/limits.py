"""Limits: where a sweep breaks, and why: the first value at which a system answers less than nine of ten probes.

Why a probe was not answered: *budget*, what answers was recalled with eight times the room; *words*, the question has
no word in common with what was said; *stale*, what is no longer so ranks above the answer; *rank*, anything else: the
words were there, and other things were taken for the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acms.text.tokenizer import terms, words
from acms_eval.metrics import carries
from acms_eval.nouns import Scenario, Score

if TYPE_CHECKING:
    from acms_eval.sweeps import Row

__all__ = ["CAUSES", "HOLDS", "Limit", "cause", "limits"]

HOLDS = 0.9
"""Share of the probes that has to be answered."""
CAUSES = {
    "budget": "no room: with eight times the budget it is recalled",
    "words": "the question has no word in common with what was said",
    "stale": "what is no longer so ranks above it",
    "rank": "its words were there, others were taken for the answer",
}
_EASY_LAST = ("token_budget",)
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
    #: The most frequent cause of what was missed there; empty when nothing was.
    cause: str
    probes: int


def cause(scenario: Scenario, score: Score, roomy: Score) -> str | None:
    """Return why a probe was not answered; None when it was. `roomy` is the same probe asked with more room."""
    if score.answered:
        return None
    if score.hit:
        return "stale"
    if roomy.hit:
        return "budget"
    probe = score.probe
    asked = set(terms(words(probe.question)))
    told = [
        said.text
        for said in scenario.said[: probe.after]
        if said.part in ("fact", "correction") and any(carries(said.text, word) for word in probe.expected)
    ]
    return "rank" if any(asked.intersection(terms(words(text))) for text in told) else "words"


def limits(rows: Sequence[Row], holds: float = HOLDS) -> list[Limit]:
    """Return one limit for every curve among some rows, in their order."""
    curves: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        curves.setdefault((row.sweep, row.variant, row.scenario, row.system), []).append(row)
    return [_limit(curve, holds) for curve in curves.values()]


def _limit(curve: Sequence[Row], holds: float) -> Limit:
    ordered = sorted(curve, key=lambda row: row.at, reverse=curve[0].sweep in _EASY_LAST)
    place = next((place for place, row in enumerate(ordered) if row.answered < holds), None)
    shown = ordered[-1 if place is None else place]
    held = ordered[-1].at if place is None else ordered[place - 1].at if place else None
    return Limit(
        sweep=shown.sweep,
        variant=shown.variant,
        scenario=shown.scenario,
        system=shown.system,
        held=held,
        broke=None if place is None else shown.at,
        answered=shown.answered,
        hit=shown.hit,
        precision=shown.precision,
        cause=next(iter(shown.causes), ""),
        probes=shown.probes,
    )
