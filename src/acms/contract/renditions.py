"""Renditions: candidates prepared for selection, each with its renditions and their verified token costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Any, TypeAlias

from acms.contract.schema import Candidate, Lod, Variant

Counts: TypeAlias = Callable[[Iterable[str]], Iterable[int]]
"""Counts the tokens of many texts, in their order."""

_NONE: frozenset[str] = frozenset()
_LODS = tuple(Lod)
_RANK = {lod: lod.rank for lod in Lod}


class Item:
    """A candidate that may be chosen; `lods`, `texts`, `costs` and `shares` list its renditions, shortest first."""

    __slots__ = (
        "benefit", "candidate", "citation", "claimed", "costs", "entities", "key", "lods", "offered", "overlap", "rank",
        "recency", "score", "shares", "stamp", "static", "texts", "weight",
    )  # fmt: skip

    def __init__(
        self,
        candidate: Candidate,
        lods: tuple[Lod, ...],
        texts: tuple[str | None, ...],
        costs: tuple[int, ...],
        shares: tuple[float, ...] = (1.0,),
        offered: int = 0,
    ) -> None:
        self.candidate = candidate
        self.lods = lods
        self.texts = texts
        self.costs = costs
        #: The worth of each rendition relative to the longest.
        self.shares = shares
        #: Index of the rendition that the provider offered.
        self.offered = offered
        stamp = candidate.timestamp
        self.stamp = -inf if stamp is None else stamp.timestamp()
        #: Sort key among equal scores.
        self.key = -self.stamp, -len(candidate.citations), costs[offered], candidate.id
        #: Index in that order.
        self.rank = 0
        #: The gaze entities it covers, and their share.
        self.entities = _NONE
        self.overlap = 0.0
        #: Its recency, its citation score, its claimed relevance.
        self.recency = 0.0
        self.citation = 0.0
        self.claimed: float | None = None
        #: Its benefit without coverage, and the addition for each entity of the gaze.
        self.static = 0.0
        self.weight = 0.0
        #: Its benefit and its score, as of before the choice.
        self.benefit = 0.0
        self.score = 0.0


def normalize_candidates(
    candidates: Iterable[Candidate], counts: Counts, *, upwards: bool
) -> tuple[list[Item], list[Item]]:
    """Return the candidates with verified costs, each id once, and the duplicates.

    A cost is the claimed or the counted tokens, whichever is more. Renditions more detailed than the offered one are
    used only with `upwards`. Of candidates with the same id the newest is kept, and of equally new ones the cheapest.
    """
    all_candidates = list(candidates)
    token_counts = iter(counts(_texts_to_count(all_candidates)))
    best: dict[str, Item] = {}
    duplicates: list[Item] = []
    for candidate in all_candidates:
        item = _build_item(candidate, token_counts, upwards)
        best_so_far = best.setdefault(candidate.id, item)
        if best_so_far is item:
            continue
        if _is_preferred(item, best_so_far):
            best[candidate.id] = item
            duplicates.append(best_so_far)
        else:
            duplicates.append(item)
    return list(best.values()), duplicates


def _texts_to_count(candidates: Iterable[Candidate]) -> Iterator[str]:
    """Yield the texts to count, in the order in which `_build_item` consumes the counts."""
    for candidate in candidates:
        if candidate.text is not None:
            yield candidate.text
            for variant in candidate.variants:
                yield variant.text


def _is_preferred(item: Item, other: Item) -> bool:
    """Return whether `item` is to be kept rather than `other`, which has the same id: the newer, then the cheaper."""
    item_key, other_key = (-item.stamp, item.key[2]), (-other.stamp, other.key[2])
    if item_key != other_key:
        return item_key < other_key
    return repr(item.candidate) < repr(other.candidate)  # arbitrary but deterministic


def _build_item(candidate: Candidate, token_counts: Iterator[int], upwards: bool) -> Item:
    """Return an item with the renditions of a candidate, the least detailed first.

    `token_counts` yields the tokens of its text and then of its variants. A rendition that is not cheaper than a more
    detailed one is left out.
    """
    text, lod, cost = candidate.text, candidate.lod, candidate.cost_tokens
    if text is not None:
        cost = max(cost, next(token_counts))
    if text is None or not candidate.variants:
        return Item(candidate, (lod,), (text,), (cost,))
    own_rank = _RANK[lod]
    by_rank = _cheapest_variants(candidate.variants, token_counts)
    by_rank[own_rank] = cost, text
    if not upwards:
        del by_rank[own_rank + 1 :]
    renditions: list[tuple[int, int, str]] = []  # rank, cost and text, the most detailed first
    for rank in reversed(range(len(by_rank))):
        rendition = by_rank[rank]
        if rendition is None:
            continue
        rendition_cost, rendition_text = rendition
        if not renditions or rendition_cost < renditions[-1][1]:
            renditions.append((rank, rendition_cost, rendition_text))
    renditions.reverse()
    ranks = [rank for rank, _, _ in renditions]
    costs = [rendition_cost for _, rendition_cost, _ in renditions]
    # A shorter rendition loses worth more slowly than tokens: half the text has more than half of the worth.
    shares = [*[(shorter_cost / costs[-1]) ** 0.7 for shorter_cost in costs[:-1]], 1.0]
    return Item(
        candidate,
        tuple([_LODS[rank] for rank in ranks]),
        tuple([rendition_text for _, _, rendition_text in renditions]),
        tuple(costs),
        tuple(shares),
        ranks.index(own_rank) if own_rank in ranks else len(ranks) - 1,
    )


def _cheapest_variants(
    variants: Iterable[Variant], token_counts: Iterator[int]
) -> list[tuple[int, str] | None]:
    """Return (cost, text) of the cheapest variant of each level of detail, at the index of its rank."""
    cheapest: list[tuple[int, str] | None] = [None, None, None]
    for variant in variants:
        rank = _RANK[variant.lod]
        rendition = max(variant.cost_tokens, next(token_counts)), variant.text
        cheapest_so_far = cheapest[rank]
        if cheapest_so_far is None or rendition < cheapest_so_far:
            cheapest[rank] = rendition
    return cheapest


def release_in_chunks(pile: list[Any]) -> None:
    """Empty a list in chunks, so waiting threads can take the interpreter in between."""
    while pile:
        del pile[-250:]  # some 0.1 ms
