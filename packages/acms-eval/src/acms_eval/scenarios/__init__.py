"""Scenarios: conversations that are written by rule from a seed and a word list, the same in every run.

original five   decision_tracking, constraint_awareness, failure_memory, multi_fact_tracking, goal_tracking
E1              semantic_distractors, overlapping_facts, fact_correction, unmarked_facts, high_density
E5              contradiction, cascading_decisions, temporal_degradation, budget_pressure, noise_injection
corrections     twenty facts, three of them corrected, with noise and small talk
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from acms_eval.nouns import Scenario
from acms_eval.scenarios.changes import cascading_decisions, contradiction, fact_correction
from acms_eval.scenarios.corrections import corrections
from acms_eval.scenarios.facts import (
    constraint_awareness,
    decision_tracking,
    failure_memory,
    goal_tracking,
    high_density,
    multi_fact_tracking,
    overlapping_facts,
    semantic_distractors,
    unmarked_facts,
)
from acms_eval.scenarios.pressure import DISTANCES, budget_pressure, noise_injection, temporal_degradation
from acms_eval.scenarios.writer import spread
from acms_eval.topics import Phrases

__all__ = ["DISTANCES", "SCENARIOS", "Builder", "corrections", "spread", "temporal_degradation"]


class Builder(Protocol):
    """Writes a scenario: the same for the same turns, seed and word list."""

    def __call__(self, *, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
        """Return the scenario, of `turns` messages."""
        ...


SCENARIOS: Mapping[str, Builder] = MappingProxyType(
    {
        "decision_tracking": decision_tracking,
        "constraint_awareness": constraint_awareness,
        "failure_memory": failure_memory,
        "multi_fact_tracking": multi_fact_tracking,
        "goal_tracking": goal_tracking,
        "semantic_distractors": semantic_distractors,
        "overlapping_facts": overlapping_facts,
        "fact_correction": fact_correction,
        "unmarked_facts": unmarked_facts,
        "high_density": high_density,
        "contradiction": contradiction,
        "cascading_decisions": cascading_decisions,
        "temporal_degradation": temporal_degradation,
        "budget_pressure": budget_pressure,
        "noise_injection": noise_injection,
        "corrections": corrections,
    }
)
"""Every scenario by its name."""
