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
    DIGITS,
    JUDGED,
    OVERLAP,
    RECENCY,
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
    LAYER,
    LOD,
    SHOWN,
    Rejected,
    Weighed,
)
from acms.contract.renditions import Counts, Item, normalize_candidates, release_in_chunks
from acms.contract.schema import Candidate, Fragment, Lod, Purpose, RiskLevel

Profile: TypeAlias = Literal["published", "quality"]
PROFILES: tuple[Profile, ...] = ("published", "quality")

AGAIN = 0.5
"""Weight of an entity that is already covered, relative to a new one."""
FLOOR = 0.2
"""An item that covers no requested entity needs at least this times the square of the best relevance."""
POWER = 3
"""When sets are compared, an item's worth is its benefit raised to this power: the best are needed far more often."""
FRAME = 20
"""Tokens added to the cost of every fragment when worth per token is compared."""
RUN = 2_000
"""Items that are sorted at a time."""
MIXED = 0.05
"""Score that a level of detail loses if it has all the tokens and should have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The chosen fragments, and the record of all candidates."""

    fragments: tuple[Fragment, ...] = ()
    #: Sum over the fragments.
    used_tokens: int = 0
    #: Share of the gaze that the fragments cover; None if the gaze is empty.
    coverage: float | None = None
    #: Every candidate, with the decision about it.
    weighed: Weighed = field(default_factory=Weighed)

    @property
    def left(self) -> tuple[Rejected, ...]:
        """The rejected candidates, best score first."""
        return self.weighed.left

    @property
    def scores(self) -> Mapping[str, float]:
        """Scores by id, of every candidate, as of before the choice."""
        return self.weighed.by_score

    @property
    def benefits(self) -> Mapping[str, float]:
        """Published benefits by id, of every candidate."""
        return self.weighed.by_benefit


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
    prefer: Lod | None = None,
    order: Literal["selection", "lod"] = "selection",
    lod_mix: Mapping[Lod, float] | None = None,
    external_share: float = 1.0,
) -> Selection:
    """Choose the fragments of a reply; their tokens together never exceed `tokens_max`.

    `count` is the engine's tokenizer, `counts` the same for many texts where that is faster: a text costs the claimed
    or the counted tokens, whichever is more. `prefer` is the highest level of detail; an item without a rendition at or
    below it uses its least detailed one. `lod_mix` is the target share of tokens for each level, a soft limit, with
    profile `quality` only. External text of sessions gets at most `external_share` of the tokens while other relevant
    text is left out. The order of the candidates does not matter. Of two with the same id the fresher counts, then the
    cheaper.
    """
    asked = frozenset([one.strip().lower() for one in gaze])
    items, doubles = normalize_candidates(
        candidates, partial(map, count) if counts is None else counts, prefer, upwards=profile == "quality"
    )
    _sort_items(items)
    _read_signals(items, asked, now.timestamp(), risk)
    benefits = array("d", [OVERLAP * item.overlap + item.static for item in items])

    def choose(some: Sequence[Item]) -> _Run:
        if profile == "published":
            return _run_published_profile(some, [benefits[item.rank] for item in some], tokens_max)
        return _run_quality_profile(some, len(asked), tokens_max, lod_mix)

    run = _limit_external_share(items, choose, tokens_max, external_share)
    taken = run.taken
    if order == "lod":
        taken = sorted(taken, key=lambda pair: pair[0].lods[pair[1]].rank)
    fragments = tuple(_build_fragment(item, level) for item, level in taken)
    covered: set[str] = set()
    for item, _ in taken:
        covered |= item.own
    used = sum(fragment.cost_tokens for fragment in fragments)
    weighed = replace(
        _record_decisions(items, doubles, run),
        benefits=benefits,
        asked=len(asked),
        room=max(0, tokens_max - used),
        quality=profile == "quality",
    )
    release_in_chunks(items)
    return Selection(
        fragments=fragments,
        used_tokens=used,
        coverage=len(covered) / len(asked) if asked else None,
        weighed=weighed,
    )


def _sort_items(items: list[Item]) -> None:
    """Sort items by rank, in chunks first: a sort blocks all other threads."""
    key = attrgetter("key")
    for start in range(0, len(items), RUN):
        items[start : start + RUN] = sorted(items[start : start + RUN], key=key)
    items.sort(key=key)  # sorted runs are only merged


def _read_signals(items: Sequence[Item], asked: frozenset[str], moment: float, risk: RiskLevel) -> None:
    """Set the rank and the signals of each item: coverage, recency, citations, claimed relevance."""
    covers, lower, size = asked.intersection, str.lower, len(asked)
    for rank, item in enumerate(items):
        item.rank = rank
        one = item.candidate
        if size and one.entities and (own := covers(map(lower, one.entities))):
            item.own = own
            item.overlap = len(own) / size
        item.fresh = since = recency_of_age(moment - item.stamp)
        item.cited = cited = score_citations(one, risk)
        item.claimed = clamp_relevance(one)
        item.static = RECENCY * since + CITATION * cited


_Chosen: TypeAlias = tuple[Item, int]
"""An item and the number of its rendition."""


class _Run(NamedTuple):
    """The outcome of a profile."""

    #: Items with the index of their rendition, in the order of choice.
    taken: list[_Chosen]
    #: Ranks of the items below the floor.
    floored: Sequence[int] = ()
    #: Ranks of external items that were left out because of the external share.
    beyond_share: Collection[int] = ()


def _limit_external_share(
    items: Sequence[Item], choose: Callable[[Sequence[Item]], _Run], tokens_max: int, share: float
) -> _Run:
    """Choose, and choose again if external text exceeds its share while other relevant text is left out."""
    run = choose(items)
    external = [(item, number) for item, number in run.taken if item.candidate.external]
    left = int(share * tokens_max)
    if sum(item.costs[number] for item, number in external) <= left or not _omits_answers(items, run):
        return run
    admitted: set[int] = set()
    for item, _ in external:
        if item.costs[-1] <= left:
            admitted.add(item.rank)
            left -= item.costs[-1]
    run = choose([item for item in items if not item.candidate.external or item.rank in admitted])
    beyond = [item for item, _ in external if item.rank not in admitted]
    if not _omits_answers(items, run):
        used = sum(item.costs[number] for item, number in run.taken)
        more = _fill_remaining(beyond, tokens_max - used)
        run = run._replace(taken=[*run.taken, *more])
    taken = {item.rank for item, _ in run.taken}
    return run._replace(beyond_share=[item.rank for item in beyond if item.rank not in taken])


def _omits_answers(items: Sequence[Item], run: _Run) -> bool:
    """Return whether relevant text that is not external is left out."""
    decided = {item.rank for item, _ in run.taken}.union(run.floored)
    own = [item for item in items if not item.candidate.external and item.rank not in decided]
    return any(item.own or item.claimed for item in own)


def _build_fragment(item: Item, number: int) -> Fragment:
    one = item.candidate
    return Fragment(
        id=one.id,
        lod=item.lods[number],
        text=item.texts[number],
        entities=one.entities,
        cost_tokens=item.costs[number],
        source=one.source,
    )


def _record_decisions(items: Sequence[Item], doubles: Sequence[Item], run: _Run) -> Weighed:
    """Return the decision about every candidate."""
    if doubles:
        scores = {item.candidate.id: item.score for item in items}
        again = sorted(doubles, key=lambda item: (item.candidate.id, -item.stamp, item.costs))
        for item in again:
            item.score = scores[item.candidate.id]
            item.claimed = clamp_relevance(item.candidate)
        rows = [*items, *again]
    else:
        rows = items
    rules = bytearray([BUDGET]) * len(items) + bytearray([DUPLICATE]) * len(doubles)
    lods = bytearray([LOD[item.lods[0]] for item in rows])
    costs = [item.costs[0] for item in rows]
    for rank in run.floored:
        rules[rank] = IRRELEVANT
    for rank in run.beyond_share:
        rules[rank] = EXTERNAL
    for item, number in run.taken:
        rules[item.rank] = SHOWN
        lods[item.rank] = LOD[item.lods[number]]
        costs[item.rank] = item.costs[number]
    return Weighed(
        ids=[item.candidate.id for item in rows],
        rules=rules,
        lods=lods,
        layers=bytearray([LAYER[item.candidate.source] for item in rows]),
        costs=costs,
        scores=array("d", [item.score for item in rows]),
        own=array("d", [len(item.own) for item in rows]),
        fresh=array("d", [item.fresh for item in items]),
        cited=array("d", [item.cited for item in items]),
        judged=array("d", [nan if item.claimed is None else item.claimed for item in rows]),
    )


# ── published ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _run_published_profile(items: Sequence[Item], benefits: Sequence[float], tokens_max: int) -> _Run:
    for item, benefit in zip(items, benefits, strict=True):
        item.score = compute_score(benefit, item.costs[item.offered])
    left = tokens_max
    taken: list[_Chosen] = []
    for item in sorted(items, key=attrgetter("score"), reverse=True):  # stable: of equals the better rank
        for number in range(item.offered, -1, -1):
            if item.costs[number] <= left:
                left -= item.costs[number]
                taken.append((item, number))
                break
    return _Run(taken)


# ── quality ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _run_quality_profile(
    items: Sequence[Item],
    size: int,
    tokens_max: int,
    lod_mix: Mapping[Lod, float] | None,
) -> _Run:
    first, second, fill, floored = _split_tiers(items, size)
    taken = _choose_best(first, tokens_max) if lod_mix is None else _choose_by_mix(first, tokens_max, lod_mix)
    left = tokens_max - sum(item.costs[number] for item, number in taken)
    if second and left >= 0:
        taken += _choose_best(second, left) if lod_mix is None else _choose_by_mix(second, left, lod_mix)
        left = tokens_max - sum(item.costs[number] for item, number in taken)
    return _Run(taken + _fill_remaining(fill, left), floored)


def _fill_remaining(items: Sequence[Item], left: int) -> list[_Chosen]:
    """Fill the remaining tokens: items without a claimed relevance, newest first, then the others, best first.

    Each item is taken in its most detailed rendition that fits.
    """
    taken: list[_Chosen] = []
    for item in sorted(items, key=_filling_order):
        if item.costs[0] <= left:
            number = _find_fitting_rendition(item.costs, left)
            left -= item.costs[number]
            taken.append((item, number))
    return taken


def _filling_order(item: Item) -> tuple[bool, float, int]:
    return item.claimed is not None, -(item.claimed or 0.0), item.rank


def _split_tiers(items: Sequence[Item], size: int) -> tuple[list[Item], list[Item], list[Item], list[int]]:
    """Score the items and split them into tiers.

    Return the relevant items, the items after them, the items that fill the remaining tokens, and the ranks of items
    below the floor.
    """
    claims = [item.claimed or 0.0 for item in items if item.candidate.purpose is not Purpose.FILL]
    best = max(claims, default=0.0)
    floor = FLOOR * best * best
    unjudged = OVERLAP / size if size else 0.0
    share = JUDGED if size else 1.0
    beside = (1 - CITATION) * (1 - share) / size if size else 0.0
    first: list[Item] = []
    second: list[Item] = []
    fill: list[Item] = []
    floored: list[int] = []
    for item in items:
        claimed, own, purpose = item.claimed, item.own, item.candidate.purpose
        if claimed is None:
            item.weight = unjudged
            # Recency and citations count only in proportion to the overlap.
            if own:
                item.static *= item.overlap
            tier = first if own or not size else second
        else:
            # The provider's relevance already includes recency: it is not added again (decision 0007).
            item.static = claimed * ((1 - CITATION) * share + CITATION * item.cited)
            item.weight = beside
            tier = first if own or not size or purpose or claimed >= floor else None
        if tier is None:
            floored.append(item.rank)
        else:
            (fill if purpose is Purpose.FILL else tier).append(item)
        item.most = most = item.static + item.weight * len(own) if own else item.static
        item.score = compute_score(most, item.costs[-1])
    return first, second, fill, floored


def _marginal_benefit(item: Item, covered: set[str]) -> float:
    """Return the benefit that an item adds, given the entities covered so far."""
    if not item.own:
        return item.static
    known = len(item.own & covered)
    return item.static + item.weight * (len(item.own) - (1 - AGAIN) * known)


def _choose_best(items: Sequence[Item], tokens_max: int) -> list[_Chosen]:
    """Return the best of three ways to fill the budget: by score, by worth per token, the single best item."""
    plain = _choose_by_score(items, tokens_max)
    if len(plain) == len(items) and all(number == len(item.costs) - 1 for item, number in plain):
        return plain
    found, most = plain, _worth_of_set(plain)
    for other in (_sort_by_gain(_choose_by_density(items, tokens_max)), _choose_single(items, tokens_max)):
        if (worth := _worth_of_set(other)) > most:
            found, most = other, worth
    return found


def _worth_of_set(taken: Sequence[_Chosen]) -> float:
    """Return the total worth of a set, which is ordered by score, best first."""
    known: set[str] = set()
    total = 0.0
    for item, number in taken:
        total += _marginal_benefit(item, known) ** POWER * item.shown[number]
        known |= item.own
    return round(total, DIGITS)


def _choose_single(items: Sequence[Item], tokens_max: int) -> list[_Chosen]:
    best: tuple[float, Item, int] | None = None
    for item in items:
        if item.costs[0] <= tokens_max:
            number = _find_fitting_rendition(item.costs, tokens_max)
            worth = item.most**POWER * item.shown[number]
            if best is None or worth > best[0]:
                best = worth, item, number
    return [] if best is None else [best[1:]]


def _choose_by_score(items: Sequence[Item], tokens_max: int) -> list[_Chosen]:
    """Choose greedily by score, each item in as much detail as fits.

    The gain of an item only shrinks as others are chosen, so a score that is still the best after it is recomputed is
    the best of all (lazy evaluation: Minoux 1978).
    """
    known: set[str] = set()
    heap = [(-item.score, item.rank, item) for item in items]
    heapify(heap)
    least = min((item.costs[0] for item in items), default=0)
    left = tokens_max
    taken: list[_Chosen] = []
    while heap and left >= least:
        was, rank, item = heappop(heap)
        costs = item.costs
        if costs[0] > left:
            continue
        if item.own and not known.isdisjoint(item.own):
            now = -compute_score(_marginal_benefit(item, known), costs[-1])
            if now > was:
                heappush(heap, (now, rank, item))
                continue
        number = _find_fitting_rendition(costs, left)
        left -= costs[number]
        known |= item.own
        taken.append((item, number))
    return taken


def _find_fitting_rendition(costs: Sequence[int], left: int) -> int:
    """Return the index of the most detailed rendition that fits; the first one always does."""
    number = len(costs) - 1
    while costs[number] > left:
        number -= 1
    return number


def _sort_by_gain(taken: Sequence[_Chosen]) -> list[_Chosen]:
    """Return the chosen items, best score first."""
    known: set[str] = set()
    heap = [(-item.score, item.rank, item, number) for item, number in taken]
    heapify(heap)
    found: list[_Chosen] = []
    while heap:
        was, rank, item, number = heappop(heap)
        now = -compute_score(_marginal_benefit(item, known), item.costs[-1])
        if now > was:
            heappush(heap, (now, rank, item, number))
            continue
        known |= item.own
        found.append((item, number))
    return found


def _choose_by_density(items: Sequence[Item], tokens_max: int) -> list[_Chosen]:
    """Choose greedily by worth per token: a new item, or more detail of a chosen one."""
    known: set[str] = set()
    left = tokens_max
    #: By rank, for items whose entities are partly covered.
    worths: dict[int, float] = {}
    heap = [step for item in items if (step := _find_first_step(item, left)) is not None]
    heapify(heap)
    least = min((item.costs[0] for item in items), default=0)
    taken: dict[int, _Chosen] = {}
    while heap:
        was, rank, number, item = heappop(heap)
        here = taken[rank][1] if rank in taken else -1
        if here < 0:
            if left < least:
                continue
            if item.own and not known.isdisjoint(item.own):
                worths[rank] = _marginal_benefit(item, known) ** POWER
        worth = worths.get(rank)
        if worth is None:
            worth = item.most**POWER
        step = _find_next_step(item, here, left, worth)
        if step is None:
            continue
        if step[0] > was or step[2] != number:
            heappush(heap, step)
            continue
        left -= item.costs[number] - (item.costs[here] if here >= 0 else 0)
        known |= item.own
        taken[rank] = item, number
        more = _find_next_step(item, number, left, worth)
        if more is not None:
            heappush(heap, more)
    return list(taken.values())


def _find_first_step(item: Item, left: int) -> tuple[float, int, int, Item] | None:
    """Return `_find_next_step` for an item that is not chosen, faster: this runs for every candidate."""
    costs, shown, worth = item.costs, item.shown, item.most**POWER
    if len(costs) == 1:
        cost = costs[0]
        return None if cost > left else (-round(1000 * worth / (cost + FRAME), DIGITS), item.rank, 0, item)
    best, chosen = 0.0, -1
    for number, cost in enumerate(costs):
        if cost > left:
            break
        gain = worth * shown[number] / (cost + FRAME)
        if gain >= best:
            best, chosen = gain, number
    return None if chosen < 0 else (-round(1000 * best, DIGITS), item.rank, chosen, item)


def _find_next_step(item: Item, here: int, left: int, worth: float) -> tuple[float, int, int, Item] | None:
    """Return the best next rendition of an item that fits: minus its worth per 1,000 tokens, rank, index, item."""
    costs, shown = item.costs, item.shown
    if here < 0:
        if costs[-1] <= left and len(costs) == 1:
            return -round(1000 * worth / (costs[0] + FRAME), DIGITS), item.rank, 0, item
        seen, spent, frame = 0.0, 0, FRAME
    else:
        seen, spent, frame = shown[here], costs[here], 0
    best, chosen = 0.0, -1
    for number in range(here + 1, len(costs)):
        more = costs[number] - spent
        if more > left:
            break
        gain = worth * (shown[number] - seen) / max(1, more + frame)
        if chosen < 0 or gain >= best:
            best, chosen = gain, number
    return None if chosen < 0 else (-round(1000 * best, DIGITS), item.rank, chosen, item)


def _choose_by_mix(items: Sequence[Item], tokens_max: int, lod_mix: Mapping[Lod, float]) -> list[_Chosen]:
    """Choose greedily by score, with a small penalty for a level of detail above its share.

    The penalty is the same for all renditions of a level, so only the best of each level are compared.
    """
    known: set[str] = set()
    left = tokens_max
    heaps: dict[Lod, list[tuple[float, int, int, Item]]] = {lod: [] for lod in Lod}
    for item in items:
        gain = _marginal_benefit(item, known)
        for number, lod in enumerate(item.lods):
            heaps[lod].append(
                (-compute_score(gain * item.shown[number], item.costs[number]), item.rank, number, item)
            )
    for heap in heaps.values():
        heapify(heap)
    spent = dict.fromkeys(Lod, 0)
    taken: dict[int, _Chosen] = {}
    while True:
        best: tuple[float, int, Lod] | None = None
        used = tokens_max - left
        for lod, heap in heaps.items():
            _settle_heap(heap, taken, known, left)
            if heap:
                over = max(0.0, spent[lod] / used - lod_mix.get(lod, 0.0)) if used else 0.0
                found = round(heap[0][0] + MIXED * over, DIGITS), heap[0][1], lod
                if best is None or found[:2] < best[:2]:
                    best = found
        if best is None:
            return list(taken.values())
        _, rank, number, item = heappop(heaps[best[2]])
        left -= item.costs[number]
        spent[best[2]] += item.costs[number]
        known |= item.own
        taken[rank] = item, number


def _settle_heap(
    heap: list[tuple[float, int, int, Item]], taken: Mapping[int, object], known: set[str], left: int
) -> None:
    """Update a heap until its top is the best rendition that can still be chosen."""
    while heap:
        was, rank, number, item = heap[0]
        if rank in taken or item.costs[number] > left:
            heappop(heap)
            continue
        now = -compute_score(_marginal_benefit(item, known) * item.shown[number], item.costs[number])
        if now <= was:
            return
        heappop(heap)
        heappush(heap, (now, rank, number, item))
