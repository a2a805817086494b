"""Benefit: the published formula for the worth of a candidate, and the signals that `quality` shares with it.

benefit = 0.6 · overlap + 0.3 · recency + 0.1 · citation        recency = exp(-age in hours / 168)
score   = benefit / (1 + tokens / 1000)
"""

from __future__ import annotations

from math import exp

from acms.contract.schema import Candidate, RiskLevel

OVERLAP, RECENCY, CITATION = 0.6, 0.3, 0.1
"""Weights of the published benefit."""
SCORE_DECIMALS = 9
"""Decimals that count when two scores are compared."""
RELEVANCE_SHARE = 0.8
"""Share of a provider's relevance in how well an item answers; the rest is the overlap."""


def recency_of_age(seconds: float) -> float:
    """Return the recency of an age in seconds, in [0, 1]: 1/e after 168 hours, 1 in the future."""
    return exp(-seconds / (168 * 3600)) if seconds > 0 else 1.0


def score_citations(candidate: Candidate, risk: RiskLevel) -> float:
    """Return the citation score: 1 with at least one citation, otherwise 0.5, or 0 if the risk is high."""
    if candidate.citations:
        return 1.0
    return 0.0 if risk is RiskLevel.HIGH else 0.5


def clamp_relevance(candidate: Candidate) -> float | None:
    """Return the relevance a provider claims, clamped to [0, 1], or None if it claims none."""
    relevance = candidate.relevance
    if relevance is None or 0.0 < relevance < 1.0:
        return relevance
    return min(1.0, max(0.0, relevance))


def compute_score(benefit: float, tokens: int) -> float:
    """Return the published score, rounded for comparison."""
    return round(benefit / (1 + tokens / 1000), SCORE_DECIMALS)
