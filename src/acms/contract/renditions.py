"""Renditions: candidates as the selection weighs them, each in the ways it may be written, at costs that hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Any, TypeAlias

from acms.contract.schema import Candidate, Lod, Variant

SHOWN = 0.7
"""What a shorter rendition is worth: this power of its share of the tokens of the longest."""

PIECE = 250
"""Objects that are let go of at a time."""

Counts: TypeAlias = Callable[[Iterable[str]], Iterable[int]]
"""Counts the tokens of many texts, in their order."""

_NONE: frozenset[str] = frozenset()


class Item:
    """A candidate that may be chosen; what is said of its renditions is in the same order, the shortest first."""

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
        #: What each is worth, against the longest.
        self.shown = shown
        #: Which of them the provider meant.
        self.offered = offered
        stamp = candidate.timestamp
        self.stamp = -inf if stamp is None else stamp.timestamp()
        #: What comes first among equals.
        self.key = -self.stamp, -len(candidate.citations), costs[offered], candidate.id
        #: Place in that order.
        self.rank = 0
        #: The gaze entities it covers, and their share.
        self.own = _NONE
        self.overlap = 0.0
        #: Its recency, what citations earn, the relevance that is claimed for it.
        self.fresh = 0.0
        self.cited = 0.0
        self.claimed: float | None = None
        #: Benefit beside coverage, and what an entity of the gaze adds to it.
        self.static = 0.0
        self.weight = 0.0
        #: Its benefit and its score before anything is chosen.
        self.most = 0.0
        self.score = 0.0


def normalize_candidates(
    candidates: Iterable[Candidate], counts: Counts, prefer: Lod | None, *, upwards: bool
) -> tuple[list[Item], list[Item]]:
    """Return the candidates with costs that can be relied on, and those whose id came again.

    A cost is what is claimed or what is counted, whichever is more. Renditions more detailed than the one that was
    offered count only `upwards`. Of two with the same id the fresher is kept, then the cheaper.
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
    """Yield the texts of which the tokens are counted, in the order in which `_item` takes the numbers."""
    for one in candidates:
        if one.text is not None:
            yield one.text
            for variant in one.variants:
                yield variant.text


def _is_preferred(item: Item, other: Item) -> bool:
    """Whether the first of two with the same id is the one to keep."""
    mine, theirs = (-item.stamp, item.key[2]), (-other.stamp, other.key[2])
    if mine != theirs:
        return mine < theirs
    return repr(item.candidate) < repr(other.candidate)  # whichever, as long as it is always the same


def _build_item(candidate: Candidate, counted: Iterator[int], prefer: Lod | None, upwards: bool) -> Item:
    """Return an item with the renditions that are wanted, without those that say less than a cheaper one."""
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
    """Empty a list a piece at a time: whoever waits for the interpreter has a turn in between."""
    while pile:
        del pile[-PIECE:]
