"""One figure over several scenarios, each with its weight (E4.4): the weighted mean of their hit rates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType

from acms.errors import ValidationError
from acms_eval.nouns import Report

__all__ = ["WEIGHTS", "Composite", "Part", "composite"]

WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "decision_tracking": 1.0,
        "constraint_awareness": 1.2,
        "failure_memory": 1.0,
        "multi_fact_tracking": 1.5,
        "goal_tracking": 0.8,
        "unmarked_facts": 1.5,
        "fact_correction": 1.3,
        "high_density": 1.5,
    }
)
"""Of the scenarios that count, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The share of one scenario in a composite."""

    scenario: str
    weight: float
    #: Share of the probes that are hits: all expected words were recalled, whatever ranks above them.
    score: float
    probes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Composite:
    """The weighted mean of the scores of the scenarios, in [0, 1]."""

    system: str
    score: float
    parts: tuple[Part, ...]

    def to_json(self) -> str:
        """Return the score and its parts as JSON."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)


def composite(reports: Sequence[Report]) -> Composite:
    """Return the composite of one system; all reports of a scenario count as one.

    Reports of scenarios without a weight are ignored. Raises `ValidationError` if a scenario with a weight is missing,
    or if the reports are of several systems.
    """
    systems = sorted({report.system for report in reports})
    if len(systems) > 1:
        raise ValidationError(f"must be of one system, were of {', '.join(systems)}", field="reports")
    hits_by_scenario: dict[str, list[bool]] = {name: [] for name in WEIGHTS}
    for report in reports:
        if report.kind in WEIGHTS:
            hits_by_scenario[report.kind] += [score.hit for score in report.scores]
    missing = [name for name, hits in hits_by_scenario.items() if not hits]
    if missing:
        raise ValidationError(f"lack {', '.join(missing)}", field="reports")
    parts = tuple(
        Part(scenario=name, weight=WEIGHTS[name], score=sum(hits) / len(hits), probes=len(hits))
        for name, hits in hits_by_scenario.items()
    )
    weighted_sum = sum(part.weight * part.score for part in parts)
    return Composite(system=systems[0], score=weighted_sum / sum(WEIGHTS.values()), parts=parts)
