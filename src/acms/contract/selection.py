"""Selection: which fragments enter a reply, at which level of detail, within a hard cap of tokens.

`published` is the formula of the contract with the plain greedy choice (docs/decisions/0042):

    benefit = 0.6 · overlap + 0.3 · recency + 0.1 · citation        recency = exp(-age in hours / 168)
    score   = benefit / (1 + tokens / 1000)

`quality` corrects its weaknesses: irrelevant text earns nothing for being fresh and cited, an entity that is already
covered counts less, a provider's own relevance is used, the level of detail is chosen item by item, the best of several
ways to fill the budget is kept, and the remaining tokens are filled with candidates that sessions offer for that: the
newest messages, then the next best answers. Both are deterministic: scores are rounded to 1e-9, and ties are broken by
freshness, then by more citations, then by fewer tokens, then by the smaller id.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from heapq import heapify, heappop, heappush
from math import nan
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias

from acms.contract.benefit import (
    CITATION,
    OVERLAP,
    RECENCY,
    RELEVANCE_SHARE,
    SCORE_DECIMALS,
    clamp_relevance,
    compute_score,
    recency_of_age,
    score_citations,
)
from acms.contract.decision_record import (
    BUDGET,
    DUPLICATE,
    EXTERNAL,
    IRRELEVANT,
    LAYER_INDEX,
    LOD_INDEX,
    SHOWN,
    DecisionRecord,
    Rejection,
)
from acms.contract.renditions import Counts, Item, normalize_candidates, release_in_chunks
from acms.contract.schema import Candidate, Fragment, Purpose, RiskLevel

Profile: TypeAlias = Literal["published", "quality"]
PROFILES: tuple[Profile, ...] = ("published", "quality")

COVERED_WEIGHT = 0.5
"""Weight of an entity that is already covered, relative to a new one."""
WORTH_EXPONENT = 3
"""When sets are compared, an item's worth is its benefit raised to this power: the best are needed far more often."""
FRAME_TOKENS = 20
"""Tokens added to the cost of every fragment when worth per token is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The chosen fragments, and the record of all candidates."""

    fragments: tuple[Fragment, ...] = ()
    #: Sum over the fragments.
    used_tokens: int = 0
    #: Share of the gaze that the fragments cover; None if the gaze is empty.
    coverage: float | None = None
    #: Every candidate, with the decision about it.
    record: DecisionRecord = field(default_factory=DecisionRecord)

    @property
    def rejected(self) -> tuple[Rejection, ...]:
        """The rejected candidates, best score first."""
        return self.record.rejected

    @property
    def scores(self) -> Mapping[str, float]:
        """Scores by id, of every candidate, as of before the choice."""
        return self.record.scores_by_id

    @property
    def benefits(self) -> Mapping[str, float]:
        """Published benefits by id, of every candidate."""
        return self.record.benefits_by_id


# ── the choice ──────────────────────────────────────────────────────────────────────────────────────────────────────


def select_fragments(
    candidates: Iterable[Candidate],
    *,
    gaze: Sequence[str],
    tokens_max: int,
    now: datetime,
    count: Callable[[str], int],
    counts: Counts | None = None,
    profile: Profile = "quality",
    risk: RiskLevel = RiskLevel.MEDIUM,
    order: Literal["selection", "lod"] = "selection",
    external_share: float = 1.0,
) -> Selection:
    """Choose the fragments of a reply; their tokens together never exceed `tokens_max`.

    `gaze` lists the requested entities. `count` counts the tokens of a text, and `counts` those of many texts at once;
    a text costs the claimed or the counted tokens, whichever is more. External text of sessions gets at most
    `external_share` of the tokens while other relevant text is left out. The order of the candidates does not matter.
    Of candidates with the same id the newest counts, and of equally new ones the cheapest.
    """
    is_quality = profile == "quality"
    requested_names = frozenset([name.strip().lower() for name in gaze])
    items, duplicates = normalize_candidates(candidates, counts or partial(map, count), upwards=is_quality)
    _sort_items(items)
    _read_signals(items, requested_names, now.timestamp(), risk)
    benefits = array("d", [OVERLAP * item.overlap + item.static for item in items])

    def choose(offered: Sequence[Item]) -> _Run:
        if is_quality:
            return _run_quality_profile(offered, len(requested_names), tokens_max)
        return _run_published_profile(offered, [benefits[item.rank] for item in offered], tokens_max)

    run = _limit_external_share(items, choose, tokens_max, external_share)
    chosen_items = run.chosen
    if order == "lod":
        chosen_items = sorted(chosen_items, key=lambda pair: pair[0].lods[pair[1]].rank)
    fragments = tuple(_build_fragment(item, rendition) for item, rendition in chosen_items)
    covered_names = frozenset[str]().union(*(item.entities for item, _ in chosen_items))
    used_tokens = sum(fragment.cost_tokens for fragment in fragments)
    record = replace(
        _record_decisions(items, duplicates, run),
        benefits=benefits,
        requested_count=len(requested_names),
        remaining=max(0, tokens_max - used_tokens),
        is_quality=is_quality,
    )
    release_in_chunks(items)
    return Selection(
        fragments=fragments,
        used_tokens=used_tokens,
        coverage=len(covered_names) / len(requested_names) if requested_names else None,
        record=record,
    )


def _sort_items(items: list[Item]) -> None:
    """Sort items by their key, in chunks first, because one long sort would block all other threads."""
    key = attrgetter("key")
    chunk = 2_000  # items, which take about a millisecond
    for start in range(0, len(items), chunk):
        items[start : start + chunk] = sorted(items[start : start + chunk], key=key)
    items.sort(key=key)  # fast, because the sorted chunks are only merged


def _read_signals(
    items: Sequence[Item], requested_names: frozenset[str], moment: float, risk: RiskLevel
) -> None:
    """Set the rank and the signals of each item: coverage, recency, citations, claimed relevance."""
    for rank, item in enumerate(items):
        item.rank = rank
        candidate = item.candidate
        if requested_names and candidate.entities:
            covered_names = requested_names.intersection(map(str.lower, candidate.entities))
            if covered_names:
                item.entities = covered_names
                item.overlap = len(covered_names) / len(requested_names)
        item.recency = recency = recency_of_age(moment - item.stamp)
        item.citation = citation = score_citations(candidate, risk)
        item.claimed = clamp_relevance(candidate)
        item.static = RECENCY * recency + CITATION * citation


_Chosen: TypeAlias = tuple[Item, int]
"""An item and the index of its rendition."""


class _Run(NamedTuple):
    """The outcome of a profile."""

    #: The chosen items, each with the index of its rendition, in the order of choice.
    chosen: list[_Chosen]
    #: Ranks of the items below the floor.
    below_floor: Sequence[int] = ()
    #: Ranks of external items that were left out because of the external share.
    beyond_share: Collection[int] = ()


def _limit_external_share(
    items: Sequence[Item], choose: Callable[[Sequence[Item]], _Run], tokens_max: int, share: float
) -> _Run:
    """Choose items; if external text exceeds its share while other relevant text is left out, choose again with less.

    External text may come from anybody, so it must not crowd out other answers. In the second choice only external
    items within the share take part. If no other answer is left out then, the rest of them fill the free tokens.
    """
    run = choose(items)
    external = [(item, rendition) for item, rendition in run.chosen if item.candidate.external]
    external_tokens = int(share * tokens_max)
    if _sum_costs(external) <= external_tokens or not _omits_answers(items, run):
        return run
    admitted: set[int] = set()
    for item, _ in external:
        most_detailed_cost = item.costs[-1]
        if most_detailed_cost <= external_tokens:
            admitted.add(item.rank)
            external_tokens -= most_detailed_cost
    run = choose([item for item in items if not item.candidate.external or item.rank in admitted])
    excess = [item for item, _ in external if item.rank not in admitted]
    if not _omits_answers(items, run):
        filling_items = _fill_remaining(excess, tokens_max - _sum_costs(run.chosen))
        run = run._replace(chosen=[*run.chosen, *filling_items])
    taken_ranks = {item.rank for item, _ in run.chosen}
    return run._replace(beyond_share=[item.rank for item in excess if item.rank not in taken_ranks])


def _sum_costs(chosen_items: Iterable[_Chosen]) -> int:
    return sum(item.costs[rendition] for item, rendition in chosen_items)


def _omits_answers(items: Sequence[Item], run: _Run) -> bool:
    """Return whether relevant text that is not external is left out."""
    decided = {item.rank for item, _ in run.chosen}.union(run.below_floor)
    for item in items:
        is_relevant = item.entities or item.claimed
        if is_relevant and not item.candidate.external and item.rank not in decided:
            return True
    return False


def _build_fragment(item: Item, rendition: int) -> Fragment:
    candidate = item.candidate
    return Fragment(
        id=candidate.id,
        lod=item.lods[rendition],
        text=item.texts[rendition],
        entities=candidate.entities,
        cost_tokens=item.costs[rendition],
        source=candidate.source,
    )


def _record_decisions(items: Sequence[Item], duplicates: Sequence[Item], run: _Run) -> DecisionRecord:
    """Return the decision about every candidate as columns: first the items by rank, then the duplicates."""
    ordered_duplicates = sorted(duplicates, key=lambda item: (item.candidate.id, -item.stamp, item.costs))
    if ordered_duplicates:
        scores = {item.candidate.id: item.score for item in items}
        for item in ordered_duplicates:
            item.score = scores[item.candidate.id]
            item.claimed = clamp_relevance(item.candidate)
    rows = [*items, *ordered_duplicates]
    rules = bytearray([BUDGET]) * len(items) + bytearray([DUPLICATE]) * len(ordered_duplicates)
    lods = bytearray([LOD_INDEX[item.lods[0]] for item in rows])
    costs = [item.costs[0] for item in rows]
    for rank in run.below_floor:
        rules[rank] = IRRELEVANT
    for rank in run.beyond_share:
        rules[rank] = EXTERNAL
    for item, rendition in run.chosen:
        rules[item.rank] = SHOWN
        lods[item.rank] = LOD_INDEX[item.lods[rendition]]
        costs[item.rank] = item.costs[rendition]
    return DecisionRecord(
        ids=[item.candidate.id for item in rows],
        rules=rules,
        lods=lods,
        layers=bytearray([LAYER_INDEX[item.candidate.source] for item in rows]),
        costs=costs,
        scores=array("d", [item.score for item in rows]),
        covered_counts=array("d", [len(item.entities) for item in rows]),
        recencies=array("d", [item.recency for item in items]),
        citation_scores=array("d", [item.citation for item in items]),
        relevances=array("d", [nan if item.claimed is None else item.claimed for item in rows]),
    )


# ── published ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _run_published_profile(items: Sequence[Item], benefits: Sequence[float], tokens_max: int) -> _Run:
    """Choose greedily by the contract's score, each item in the most detailed rendition that fits."""
    for item, benefit in zip(items, benefits, strict=True):
        item.score = compute_score(benefit, item.costs[item.offered])
    remaining = tokens_max
    chosen_items: list[_Chosen] = []
    for item in sorted(items, key=attrgetter("score"), reverse=True):  # stable: of equals the better rank
        if item.costs[0] <= remaining:
            rendition = _find_fitting_rendition(item.costs[: item.offered + 1], remaining)
            remaining -= item.costs[rendition]
            chosen_items.append((item, rendition))
    return _Run(chosen_items)


# ── quality ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _run_quality_profile(items: Sequence[Item], requested_count: int, tokens_max: int) -> _Run:
    """Choose from the relevant items, then from the others, then fill the remaining tokens.

    `requested_count` is the number of requested entities.
    """
    tiers, filling_items, ranks_below_floor = _split_tiers(items, requested_count)
    chosen_items: list[_Chosen] = []
    for tier in tiers:
        chosen_items += _choose_best(tier, tokens_max - _sum_costs(chosen_items))
    return _Run(
        chosen_items + _fill_remaining(filling_items, tokens_max - _sum_costs(chosen_items)),
        ranks_below_floor,
    )


def _fill_remaining(items: Sequence[Item], remaining: int) -> list[_Chosen]:
    """Fill the remaining tokens: items without a claimed relevance, newest first, then the others, best first.

    Each item is taken in its most detailed rendition that fits.
    """
    chosen_items: list[_Chosen] = []
    for item in sorted(items, key=_filling_order):
        if item.costs[0] <= remaining:
            rendition = _find_fitting_rendition(item.costs, remaining)
            remaining -= item.costs[rendition]
            chosen_items.append((item, rendition))
    return chosen_items


def _filling_order(item: Item) -> tuple[bool, float, int]:
    return item.claimed is not None, -(item.claimed or 0.0), item.rank


def _split_tiers(
    items: Sequence[Item], requested_count: int
) -> tuple[list[list[Item]], list[Item], list[int]]:
    """Score the items and split them into tiers; `requested_count` is the number of requested entities.

    Return ([relevant items, other items], items that fill the remaining tokens, ranks of items below the floor).
    """
    claims = [item.claimed or 0.0 for item in items if item.candidate.purpose is not Purpose.FILL]
    best = max(claims, default=0.0)
    # The least relevance of an item that covers no requested entity; it is lower if even the best claim is low.
    floor = 0.2 * best * best
    relevant: list[Item] = []
    other_items: list[Item] = []
    filling_items: list[Item] = []
    ranks_below_floor: list[int] = []
    for item in items:
        _set_benefit(item, requested_count)
        purpose = item.candidate.purpose
        is_wanted = bool(item.entities) or not requested_count
        if item.claimed is not None and not (is_wanted or purpose or item.claimed >= floor):
            ranks_below_floor.append(item.rank)
        elif purpose is Purpose.FILL:
            filling_items.append(item)
        elif is_wanted or item.claimed is not None:
            relevant.append(item)
        else:
            other_items.append(item)
    return [relevant, other_items], filling_items, ranks_below_floor


def _set_benefit(item: Item, requested_count: int) -> None:
    """Set the benefit and score of an item while no other is chosen."""
    share = RELEVANCE_SHARE if requested_count else 1.0
    if item.claimed is None:
        item.weight = OVERLAP / requested_count if requested_count else 0.0
        # Recency and citations count only in proportion to the overlap.
        if item.entities:
            item.static *= item.overlap
    else:
        # The provider's relevance already includes recency: it is not added again (decision 0007).
        item.static = item.claimed * ((1 - CITATION) * share + CITATION * item.citation)
        item.weight = (1 - CITATION) * (1 - share) / requested_count if requested_count else 0.0
    item.benefit = item.static + item.weight * len(item.entities)
    item.score = compute_score(item.benefit, item.costs[-1])


def _marginal_benefit(item: Item, covered_names: set[str]) -> float:
    """Return the benefit that an item adds, given the entities covered so far."""
    if not item.entities:
        return item.static
    already_covered = len(item.entities & covered_names)
    return item.static + item.weight * (len(item.entities) - (1 - COVERED_WEIGHT) * already_covered)


def _choose_best(items: Sequence[Item], tokens_max: int) -> list[_Chosen]:
    """Return the best of three ways to fill the budget: by score, by worth per token, the single best item."""
    by_score = _choose_by_score(items, tokens_max)
    has_all = len(by_score) == len(items)
    # If everything fits in full detail, no other way can be better.
    if has_all and all(rendition == len(item.costs) - 1 for item, rendition in by_score):
        return by_score
    by_density = _sort_by_gain(_choose_by_density(items, tokens_max))
    return max(by_score, by_density, _choose_single(items, tokens_max), key=_worth_of_set)


def _worth_of_set(chosen_items: Sequence[_Chosen]) -> float:
    """Return the total worth of a set, which is ordered by score, best first."""
    covered_names: set[str] = set()
    total = 0.0
    for item, rendition in chosen_items:
        total += _marginal_benefit(item, covered_names) ** WORTH_EXPONENT * item.shares[rendition]
        covered_names |= item.entities
    return round(total, SCORE_DECIMALS)


def _choose_single(items: Sequence[Item], tokens_max: int) -> list[_Chosen]:
    """Return the single item of the most worth that fits, or nothing."""
    best: list[_Chosen] = []
    best_worth = -1.0
    for item in items:
        if item.costs[0] <= tokens_max:
            rendition = _find_fitting_rendition(item.costs, tokens_max)
            worth = item.benefit**WORTH_EXPONENT * item.shares[rendition]
            if worth > best_worth:
                best, best_worth = [(item, rendition)], worth
    return best


def _choose_by_score(items: Sequence[Item], tokens_max: int) -> list[_Chosen]:
    """Choose greedily by score, each item in as much detail as fits.

    The gain of an item only shrinks as others are chosen, so a score that is still the best after it is recomputed is
    the best of all (lazy evaluation: Minoux 1978).
    """
    covered_names: set[str] = set()
    # The smallest element of a heap comes first, so scores are negated.
    heap = [(-item.score, item.rank, item) for item in items]
    heapify(heap)
    cheapest = min((item.costs[0] for item in items), default=0)
    remaining = tokens_max
    chosen_items: list[_Chosen] = []
    while heap and remaining >= cheapest:
        negated_score, rank, item = heappop(heap)
        costs = item.costs
        if costs[0] > remaining:  # never fits later either: the budget only shrinks
            continue
        if item.entities and not covered_names.isdisjoint(item.entities):
            score = compute_score(_marginal_benefit(item, covered_names), costs[-1])
            if score < -negated_score:
                heappush(heap, (-score, rank, item))
                continue
        rendition = _find_fitting_rendition(costs, remaining)
        remaining -= costs[rendition]
        covered_names |= item.entities
        chosen_items.append((item, rendition))
    return chosen_items


def _find_fitting_rendition(costs: Sequence[int], remaining: int) -> int:
    """Return the index of the most detailed rendition that fits; the first one always does."""
    rendition = len(costs) - 1
    while costs[rendition] > remaining:
        rendition -= 1
    return rendition


def _sort_by_gain(chosen_items: Sequence[_Chosen]) -> list[_Chosen]:
    """Return the chosen items, best score first; a score counts the entities of better items as covered."""
    covered_names: set[str] = set()
    heap = [(-item.score, item.rank, item, rendition) for item, rendition in chosen_items]
    heapify(heap)
    ordered: list[_Chosen] = []
    while heap:
        negated_score, rank, item, rendition = heappop(heap)
        score = compute_score(_marginal_benefit(item, covered_names), item.costs[-1])
        if score < -negated_score:
            heappush(heap, (-score, rank, item, rendition))
            continue
        covered_names |= item.entities
        ordered.append((item, rendition))
    return ordered


_Step: TypeAlias = tuple[float, int, int, Item]
"""A rendition that may be chosen next: minus its worth per 1,000 tokens, rank and index; the smallest is the best."""


def _choose_by_density(items: Sequence[Item], tokens_max: int) -> list[_Chosen]:
    """Choose greedily by worth per token: a new item, or more detail of a chosen one."""
    covered_names: set[str] = set()
    remaining = tokens_max
    #: Worth by rank; it shrinks when entities of an item are covered by others.
    worths = {item.rank: item.benefit**WORTH_EXPONENT for item in items}
    steps = [_find_next_step(item, -1, remaining, worths[item.rank]) for item in items]
    heap = [step for step in steps if step is not None]
    heapify(heap)
    cheapest = min((item.costs[0] for item in items), default=0)
    chosen_by_rank: dict[int, _Chosen] = {}
    while heap:
        loss, rank, rendition, item = heappop(heap)
        current_rendition = chosen_by_rank[rank][1] if rank in chosen_by_rank else -1
        if current_rendition < 0:
            if remaining < cheapest:  # no new item fits, only more detail of chosen ones
                continue
            if item.entities and not covered_names.isdisjoint(item.entities):
                worths[rank] = _marginal_benefit(item, covered_names) ** WORTH_EXPONENT
        step = _find_next_step(item, current_rendition, remaining, worths[rank])
        if step is None:
            continue
        # If the step is worth less than when it was pushed, or no longer fits, others come first.
        updated_loss, _, updated_rendition, _ = step
        if updated_loss > loss or updated_rendition != rendition:
            heappush(heap, step)
            continue
        tokens_of_chosen = item.costs[current_rendition] if current_rendition >= 0 else 0
        remaining -= item.costs[rendition] - tokens_of_chosen
        covered_names |= item.entities
        chosen_by_rank[rank] = item, rendition
        next_step = _find_next_step(item, rendition, remaining, worths[rank])
        if next_step is not None:
            heappush(heap, next_step)
    return list(chosen_by_rank.values())


def _find_next_step(item: Item, current_rendition: int, remaining: int, worth: float) -> _Step | None:
    """Return the more detailed rendition of an item with the greatest gain per token, or None if none fits.

    `current_rendition` is the index of the rendition chosen so far, or -1 for a new item, which also costs a frame.
    `worth` is the worth of the item in full detail.
    """
    costs, shares = item.costs, item.shares
    is_new = current_rendition < 0
    chosen_share = 0.0 if is_new else shares[current_rendition]
    chosen_cost = 0 if is_new else costs[current_rendition]
    frame_tokens = FRAME_TOKENS if is_new else 0
    best_gain, best_rendition = 0.0, -1
    for rendition in range(current_rendition + 1, len(costs)):
        extra_tokens = costs[rendition] - chosen_cost
        if extra_tokens > remaining:
            break
        gain = worth * (shares[rendition] - chosen_share) / max(1, extra_tokens + frame_tokens)
        if best_rendition < 0 or gain >= best_gain:
            best_gain, best_rendition = gain, rendition
    if best_rendition < 0:
        return None
    return -round(1000 * best_gain, SCORE_DECIMALS), item.rank, best_rendition, item
