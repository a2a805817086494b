"""Renditions: candidates as the selection weighs them, each in the ways it may be written, at costs that hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from acms.contract import Candidate, Lod

SHOWN = 0.7
"""What a shorter rendition is worth: this power of its share of the tokens of the longest."""

PIECE = 250
"""Objects that are let go of at a time."""

_NONE: frozenset[int] = frozenset()


class Item:
    """A candidate that may be chosen; what is said of its renditions is in the same order, the shortest first."""

    __slots__ = (
        "candidate", "costs", "key", "lods", "offered", "overlap", "own", "rank", "score", "shown", "stamp", "static",
        "texts", "weight",
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
        #: Numbers of the gaze entities it covers, and their share.
        self.own = _NONE
        self.overlap = 0.0
        #: Benefit beside coverage, and what an entity of the gaze adds to it.
        self.static = 0.0
        self.weight = 0.0
        #: Before anything is chosen.
        self.score = 0.0


def normalised(
    candidates: Iterable[Candidate], count: Callable[[str], int], prefer: Lod | None, *, upwards: bool
) -> tuple[list[Item], list[Item]]:
    """Return the candidates with costs that can be relied on, and those whose id came again.

    A cost is what is claimed or what is counted, whichever is more. Renditions more detailed than the one that was
    offered count only `upwards`. Of two with the same id the fresher is kept, then the cheaper.
    """
    best: dict[str, Item] = {}
    doubles: list[Item] = []
    for candidate in candidates:
        item = _item(candidate, count, prefer, upwards)
        other = best.setdefault(candidate.id, item)
        if other is item:
            continue
        if _before(item, other):
            best[candidate.id] = item
            item = other
        doubles.append(item)
    return list(best.values()), doubles


def _before(item: Item, other: Item) -> bool:
    """Whether the first of two with the same id is the one to keep."""
    mine, theirs = (-item.stamp, item.key[2]), (-other.stamp, other.key[2])
    if mine != theirs:
        return mine < theirs
    return repr(item.candidate) < repr(other.candidate)  # whichever, as long as it is always the same


def _item(candidate: Candidate, count: Callable[[str], int], prefer: Lod | None, upwards: bool) -> Item:
    """Return an item with the renditions that are wanted, without those that say less than a cheaper one."""
    text, lod, cost = candidate.text, candidate.lod, candidate.cost_tokens
    if text is not None and (counted := count(text)) > cost:
        cost = counted
    if text is None or not candidate.variants:
        return Item(candidate, (lod,), (text,), (cost if cost > 0 else 0,))
    own = _RANK[lod]
    by_rank: list[tuple[int, str] | None] = [None, None, None]
    for variant in candidate.variants:
        rank, spent = _RANK[variant.lod], count(variant.text)
        found = spent if spent > variant.cost_tokens else variant.cost_tokens, variant.text
        known = by_rank[rank]
        if known is None or found < known:
            by_rank[rank] = found
    by_rank[own] = cost if cost > 0 else 0, text
    if prefer is not None:
        most = _RANK[prefer]
        if not any(by_rank[: most + 1]):
            most = next(rank for rank in range(3) if by_rank[rank])
        by_rank[most + 1 :] = [None] * (2 - most)
        own = min(own, most)
    ranks: list[int] = []
    costs: list[int] = []
    texts: list[str | None] = []
    for rank in (2, 1, 0) if upwards else range(own, -1, -1):
        level = by_rank[rank]
        if level is not None and (not costs or level[0] < costs[-1]):
            ranks.append(rank)
            costs.append(level[0])
            texts.append(level[1])
    costs.reverse()
    longest = costs[-1]
    return Item(
        candidate,
        tuple([_LODS[rank] for rank in reversed(ranks)]),
        tuple(reversed(texts)),
        tuple(costs),
        tuple([1.0 if one >= longest else (one / longest) ** SHOWN for one in costs]),
        len(ranks) - 1 - ranks.index(own) if own in ranks else len(ranks) - 1,
    )


_LODS = tuple(Lod)
_RANK = {lod: lod.rank for lod in Lod}


def let_go(pile: list[Any]) -> None:
    """Empty a list a piece at a time: whoever waits for the interpreter has a turn in between."""
    while pile:
        del pile[-PIECE:]
