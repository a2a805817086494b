"""The decision record: the scores of each candidate of a reply and the rule that decided, without any text.

It is stored in columns, which are cheap to create, keep and release; sentences are built on demand.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isnan
from typing import NamedTuple

from acms.contract.benefit import CITATION, OVERLAP, RECENCY, RELEVANCE_SHARE
from acms.contract.schema import Layer, Lod
from acms.results import Verdict

RULES = ("score", "budget", "irrelevant", "duplicate", "external")
"""The rule that decided about a candidate, in the terms of a recall: "score" included it, the others left it out."""
SHOWN, BUDGET, IRRELEVANT, DUPLICATE, EXTERNAL = range(len(RULES))

_REASONS = (
    "among the best that fit",
    "does not fit what is left of the token budget",
    "covers nothing that was asked for and is not relevant enough",
    "the same id came again; the fresher, then the cheaper one is kept",
    "external text has a share of the token budget while other text that answers is left out",
)
_LODS, _LAYERS = tuple(Lod), tuple(Layer)
#: Indexes of the enumerations' members in the columns.
LOD_INDEX = {lod: place for place, lod in enumerate(_LODS)}
LAYER_INDEX = {layer: place for place, layer in enumerate(_LAYERS)}


class Rejection(NamedTuple):
    """A candidate that was left out, and why."""

    id: str
    #: One of `RULES`.
    rule: str
    reason: str
    score: float
    #: Tokens of its shortest rendition.
    cost: int


def _empty_array() -> array[float]:
    return array("d")


@dataclass(frozen=True, kw_only=True)
class DecisionRecord:
    """Every candidate of a choice, one row each: unique ids first, then duplicates."""

    ids: list[str] = field(default_factory=list[str])
    #: Index into `RULES`, `LOD_INDEX`, `LAYER_INDEX`.
    rules: bytearray = field(default_factory=bytearray)
    lods: bytearray = field(default_factory=bytearray)
    layers: bytearray = field(default_factory=bytearray)
    #: Tokens of the rendition that is shown, or of the shortest one.
    costs: list[int] = field(default_factory=list[int])
    scores: array[float] = field(default_factory=_empty_array)
    #: The published benefit.
    benefits: array[float] = field(default_factory=_empty_array)
    #: Number of requested entities that a candidate covers, its recency, its citation score, and its claimed relevance
    #: or NaN if it claims none.
    covered_counts: array[float] = field(default_factory=_empty_array)
    recencies: array[float] = field(default_factory=_empty_array)
    citation_scores: array[float] = field(default_factory=_empty_array)
    relevances: array[float] = field(default_factory=_empty_array)
    #: Number of requested entities.
    requested_count: int = 0
    #: Tokens of the budget that are unused.
    remaining: int = 0
    is_quality: bool = True

    def has_too_large(self) -> bool:
        """Return whether a candidate was left out because it did not fit the budget."""
        return BUDGET in self.rules

    @cached_property
    def unique_count(self) -> int:
        """Number of rows with a unique id."""
        return len(self.ids) - self.rules.count(DUPLICATE)

    @cached_property
    def scores_by_id(self) -> Mapping[str, float]:
        """Scores by id, as of before the choice."""
        return dict(zip(self.ids[: self.unique_count], self.scores, strict=False))

    @cached_property
    def benefits_by_id(self) -> Mapping[str, float]:
        """Published benefits by id."""
        return dict(zip(self.ids[: self.unique_count], self.benefits, strict=False))

    @cached_property
    def rejected(self) -> tuple[Rejection, ...]:
        """The rejected candidates, best score first, then the duplicates."""
        # Sorting is stable: ties keep the better rank.
        rows = sorted(range(self.unique_count), key=lambda row: -self.scores[row])
        rows += range(self.unique_count, len(self.ids))
        rejections: list[Rejection] = []
        for row in rows:
            rule = self.rules[row]
            if rule != SHOWN:
                score, cost = self.scores[row], self.costs[row]
                rejections.append(Rejection(self.ids[row], RULES[rule], _REASONS[rule], score, cost))
        return tuple(rejections)

    def parts(self, row: int) -> dict[str, float]:
        """Return the contribution of each signal to a candidate's benefit, which is their sum."""
        covered_share = self.covered_counts[row] / self.requested_count if self.requested_count else 0.0
        relevance = self.relevances[row]
        if not self.is_quality or isnan(relevance):
            scale = covered_share if self.is_quality and covered_share else 1.0
            return {
                "overlap": OVERLAP * covered_share,
                "recency": RECENCY * self.recencies[row] * scale,
                "citation": CITATION * self.citation_scores[row] * scale,
            }
        weight_of_relevance = RELEVANCE_SHARE if self.requested_count else 1.0
        return {
            "relevance": relevance * (1 - CITATION) * weight_of_relevance,
            "overlap": (1 - CITATION) * (1 - weight_of_relevance) * covered_share,
            "citation": relevance * CITATION * self.citation_scores[row],
        }

    def verdicts(self) -> Iterator[Verdict]:
        """Yield a verdict on each candidate; duplicates of an id are counted in its reason."""
        duplicates = Counter(self.ids[self.unique_count :])
        for row in range(self.unique_count):
            id, rule = self.ids[row], self.rules[row]
            parts = self.parts(row)
            yield Verdict(
                id=id,
                version=0,
                included=rule == SHOWN,
                rule=RULES[rule],
                relevance=sum(parts.values()),
                score=self.scores[row],
                parts=parts,
                tokens=self.costs[row],
                reason=self._reason(row, duplicates[id]),
            )

    def _reason(self, row: int, duplicates: int) -> str:
        """Describe the decision about a candidate in words."""
        rule = self.rules[row]
        reason = f"from {_LAYERS[self.layers[row]]}, {_REASONS[rule]}"
        if rule == SHOWN:
            reason += f", as {_LODS[self.lods[row]]}"
        elif rule == BUDGET:
            reason += f": needs {self.costs[row]} tokens at least, {self.remaining} are left"
        return f"{reason}; {duplicates} more came under its id" if duplicates else reason
