"""The decision record: what each candidate of a reply was worth and what became of it, in numbers and ids, no text.

Columns cost little to make, to keep and to let go; sentences are made when somebody asks.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isnan
from typing import NamedTuple

from acms.contract.benefit import CITATION, JUDGED, OVERLAP, RECENCY
from acms.contract.schema import Layer, Lod
from acms.results import Verdict

RULES = ("score", "budget", "irrelevant", "duplicate", "external")
"""What decided about a candidate, in the words of a recall: "score" showed it, the others left it out."""
SHOWN, BUDGET, IRRELEVANT, DUPLICATE, EXTERNAL = range(len(RULES))

_REASONS = (
    "among the best that fit",
    "does not fit what is left of the token budget",
    "covers nothing that was asked for and is not relevant enough",
    "the same id came again; the fresher, then the cheaper one is kept",
    "external text has a share of the token budget while other text that answers is left out",
)
_LODS, _LAYERS = tuple(Lod), tuple(Layer)
#: Places of the enumerations in the columns.
LOD = {lod: place for place, lod in enumerate(_LODS)}
LAYER = {layer: place for place, layer in enumerate(_LAYERS)}


class Rejected(NamedTuple):
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
class Weighed:
    """Every candidate of a choice, a row each: those with a row of their own first, then ids that came again."""

    ids: list[str] = field(default_factory=list[str])
    #: Place in `RULES`, `LOD`, `LAYER`.
    rules: bytearray = field(default_factory=bytearray)
    lods: bytearray = field(default_factory=bytearray)
    layers: bytearray = field(default_factory=bytearray)
    #: Tokens of the rendition that is shown, or of the shortest one.
    costs: list[int] = field(default_factory=list[int])
    scores: array[float] = field(default_factory=_empty_array)
    #: The published benefit.
    benefits: array[float] = field(default_factory=_empty_array)
    #: How many entities that were asked for it covers, its recency, what citations earn, the relevance that is
    #: claimed for it or NaN.
    own: array[float] = field(default_factory=_empty_array)
    fresh: array[float] = field(default_factory=_empty_array)
    cited: array[float] = field(default_factory=_empty_array)
    judged: array[float] = field(default_factory=_empty_array)
    #: How many entities were asked for.
    asked: int = 0
    #: Tokens that nothing was found for.
    room: int = 0
    quality: bool = True

    def too_large(self) -> bool:
        """Whether something was left out for want of room."""
        return BUDGET in self.rules

    @cached_property
    def single(self) -> int:
        """How many rows have an id of their own."""
        return len(self.ids) - self.rules.count(DUPLICATE)

    @cached_property
    def by_score(self) -> Mapping[str, float]:
        """Scores by id, before anything was chosen."""
        return dict(zip(self.ids[: self.single], self.scores, strict=False))

    @cached_property
    def by_benefit(self) -> Mapping[str, float]:
        """Published benefits by id."""
        return dict(zip(self.ids[: self.single], self.benefits, strict=False))

    @cached_property
    def left(self) -> tuple[Rejected, ...]:
        """What was left out, best score first; then the ids that came again."""
        rows = sorted(
            range(self.single), key=lambda row: -self.scores[row]
        )  # stable: of equals the better rank
        rows += range(self.single, len(self.ids))
        return tuple(
            Rejected(
                self.ids[row],
                RULES[self.rules[row]],
                _REASONS[self.rules[row]],
                self.scores[row],
                self.costs[row],
            )
            for row in rows
            if self.rules[row] != SHOWN
        )

    def parts(self, row: int) -> dict[str, float]:
        """Return what each signal adds to the worth of a candidate, by name; the score is their sum over its size."""
        share = self.own[row] / self.asked if self.asked else 0.0
        judged = self.judged[row]
        if not self.quality or isnan(judged):
            scale = share if self.quality and share else 1.0
            return {
                "overlap": OVERLAP * share,
                "recency": RECENCY * self.fresh[row] * scale,
                "citation": CITATION * self.cited[row] * scale,
            }
        most = JUDGED if self.asked else 1.0
        return {
            "relevance": judged * (1 - CITATION) * most,
            "overlap": (1 - CITATION) * (1 - most) * share,
            "citation": judged * CITATION * self.cited[row],
        }

    def verdicts(self) -> Iterator[Verdict]:
        """Yield a verdict on each id."""
        again = Counter(self.ids[self.single :])
        for row in range(self.single):
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
                reason=self._reason(row, again[id]),
            )

    def _reason(self, row: int, again: int) -> str:
        rule = self.rules[row]
        said = f"from {_LAYERS[self.layers[row]]}, {_REASONS[rule]}"
        if rule == SHOWN:
            said += f", as {_LODS[self.lods[row]]}"
        elif rule == BUDGET:
            said += f": needs {self.costs[row]} tokens at least, {self.room} are left"
        return said + (f"; {again} more came under its id" if again else "")
