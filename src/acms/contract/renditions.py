"""Renditions: candidates prepared for selection, each with its renditions and their verified token costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Any, TypeAlias

from acms.contract.schema import Candidate, Lod, Variant

SHOWN = 0.7
"""The worth of a shorter rendition is its share of the longest one's tokens, raised to this power."""

PIECE = 250
"""Objects that are released at a time."""

Counts: TypeAlias = Callable[[Iterable[str]], Iterable[int]]
"""Counts the tokens of many texts, in their order."""

_NONE: frozenset[str] = frozenset()


class Item:
    """A candidate that may be chosen; `lods`, `texts`, `costs` and `shown` list its renditions, shortest first."""

    __slots__ = (
        "candidate", "cited", "claimed", "costs", "fresh", "key", "lods", "most", "offered", "overlap", "own", "rank",
        "score", "shown", "stamp", "static", "texts", "weight",
    )  # fmt: skip

    def __init__(
        self,
        candidate: Candidate,
        lods: tuple[Lod, ...],
        texts: tuple[str | None, ...],
        costs: tuple[int, ...],
        shown: tuple[float, ...] = (1.0,),
        offered: int = 0,
    ) -> None:
        self.candidate = candidate
        self.lods = lods
        self.texts = texts
        self.costs = costs
        #: The worth of each rendition relative to the longest.
        self.shown = shown
        #: Index of the rendition that the provider offered.
        self.offered = offered
        stamp = candidate.timestamp
        self.stamp = -inf if stamp is None else stamp.timestamp()
        #: Sort key among equal scores.
        self.key = -self.stamp, -len(candidate.citations), costs[offered], candidate.id
        #: Index in that order.
        self.rank = 0
        #: The gaze entities it covers, and their share.
        self.own = _NONE
        self.overlap = 0.0
        #: Its recency, its citation score, its claimed relevance.
        self.fresh = 0.0
        self.cited = 0.0
        self.claimed: float | None = None
        #: Its benefit without coverage, and the addition for each entity of the gaze.
        self.static = 0.0
        self.weight = 0.0
        #: Its benefit and its score, as of before the choice.
        self.most = 0.0
        self.score = 0.0


def normalize_candidates(
    candidates: Iterable[Candidate], counts: Counts, prefer: Lod | None, *, upwards: bool
) -> tuple[list[Item], list[Item]]:
    """Return the candidates with verified costs, and the duplicates by id.

    A cost is the claimed or the counted tokens, whichever is more. Renditions more detailed than the offered one are
    used only with `upwards`. Of two candidates with the same id the fresher is kept, then the cheaper.
    """
    pile = list(candidates)
    counted = iter(counts(_texts_to_count(pile)))
    best: dict[str, Item] = {}
    doubles: list[Item] = []
    for candidate in pile:
        item = _build_item(candidate, counted, prefer, upwards)
        other = best.setdefault(candidate.id, item)
        if other is item:
            continue
        if _is_preferred(item, other):
            best[candidate.id] = item
            item = other
        doubles.append(item)
    return list(best.values()), doubles


def _texts_to_count(candidates: Iterable[Candidate]) -> Iterator[str]:
    """Yield the texts to count, in the order in which `_build_item` consumes the counts."""
    for one in candidates:
        if one.text is not None:
            yield one.text
            for variant in one.variants:
                yield variant.text


def _is_preferred(item: Item, other: Item) -> bool:
    """Return whether the first of two items with the same id is the one to keep."""
    mine, theirs = (-item.stamp, item.key[2]), (-other.stamp, other.key[2])
    if mine != theirs:
        return mine < theirs
    return repr(item.candidate) < repr(other.candidate)  # arbitrary but deterministic


def _build_item(candidate: Candidate, counted: Iterator[int], prefer: Lod | None, upwards: bool) -> Item:
    """Return an item with the allowed renditions, without those that are less detailed but not cheaper."""
    text, lod, cost = candidate.text, candidate.lod, candidate.cost_tokens
    if text is not None and (spent := next(counted)) > cost:
        cost = spent
    if text is None or not candidate.variants:
        return Item(candidate, _LODS_AT[1 << _RANK[lod]], (text,), (cost,))
    own = _RANK[lod]
    costs_at, texts_at = _cheapest_variants(candidate.variants, counted)
    costs_at[own] = cost
    texts_at[own] = text
    most = 2 if upwards else own
    if prefer is not None:
        wanted = _RANK[prefer]
        while wanted < 2 and costs_at[wanted] is None and costs_at[:wanted] == [None] * wanted:
            wanted += 1
        own, most = min(own, wanted), min(most, wanted)
    costs: list[int] = []
    texts: list[str] = []
    shown: list[float] = []
    present = longest = 0
    offered = -1
    for rank in _DOWN[most]:
        spent = costs_at[rank]
        if spent is None or (costs and spent >= costs[-1]):
            continue
        if rank == own:
            offered = len(costs)
        if not costs:
            longest = spent
        present |= 1 << rank
        costs.append(spent)
        texts.append(texts_at[rank])
        shown.append(1.0 if spent >= longest else (spent / longest) ** SHOWN)
    costs.reverse()
    texts.reverse()
    shown.reverse()
    return Item(
        candidate,
        _LODS_AT[present],
        tuple(texts),
        tuple(costs),
        tuple(shown),
        len(costs) - 1 - max(0, offered),
    )


def _cheapest_variants(
    variants: Iterable[Variant], counted: Iterator[int]
) -> tuple[list[int | None], list[str]]:
    """Return the cost and the text of the cheapest variant of each level of detail."""
    costs_at: list[int | None] = [None, None, None]
    texts_at = ["", "", ""]
    for variant in variants:
        rank, spent = _RANK[variant.lod], next(counted)
        if variant.cost_tokens > spent:
            spent = variant.cost_tokens
        known = costs_at[rank]
        if known is None or spent < known or (spent == known and variant.text < texts_at[rank]):
            costs_at[rank] = spent
            texts_at[rank] = variant.text
    return costs_at, texts_at


_LODS = tuple(Lod)
_RANK = {lod: lod.rank for lod in Lod}
#: Levels of detail by the set of their ranks, as bits; ranks from one down.
_LODS_AT = tuple(tuple(lod for lod in _LODS if present >> lod.rank & 1) for present in range(8))
_DOWN = ((0,), (1, 0), (2, 1, 0))


def release_in_chunks(pile: list[Any]) -> None:
    """Empty a list in chunks, so waiting threads can take the interpreter in between."""
    while pile:
        del pile[-PIECE:]
