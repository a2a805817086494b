"""Selection: which fragments enter a reply, at which level of detail, within a hard cap of tokens.

`published` is the formula of the contract with the plain greedy choice (docs/decisions/0042):

    benefit = 0.6 · overlap + 0.3 · recency + 0.1 · citation        recency = exp(-age in hours / 168)
    score   = benefit / (1 + tokens / 1000)

`quality` mends what that gets wrong: junk that is fresh and cited earns nothing by that alone, an entity that is
covered counts less the next time, a provider's own judgement of relevance is believed, the level of detail is chosen
item by item, and of several ways to fill the room the best one is kept. Both are deterministic: scores are rounded to
1e-9, and of equals the fresher comes first, then the more often cited, then the smaller, then the smaller id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import heapify, heappop, heappush
from math import exp, inf
from typing import Literal, NamedTuple, TypeAlias

from acms.contract import Candidate, Fragment, Lod, RiskLevel

Profile: TypeAlias = Literal["published", "quality"]

OVERLAP, RECENCY, CITATION = 0.6, 0.3, 0.1
"""Weights of the published benefit."""
FADES = 168.0
"""Hours in which recency falls to 1/e."""
DIGITS = 9
"""Decimals that count when two scores are compared."""

AGAIN = 0.5
"""What an entity that is covered already counts, against one that is not."""
JUDGED = 0.8
"""Share of a provider's relevance in how well an item answers; the rest is the overlap."""
FLOOR = 0.2
"""What covers nothing asked for needs this times the square of the best relevance."""
POWER = 5
"""The chance that an item is needed grows with this power of its benefit (measured, decision 0042)."""
SHOWN = 0.5
"""What a shorter rendition is worth: this power of its share of the tokens of the longest."""
FRAME = 20
"""Tokens that every fragment is taken to cost beside its own when worth per token is compared."""
MIXED = 0.05
"""What a level of detail loses when it has all the tokens and should have none."""


class Rejected(NamedTuple):
    """A candidate that was left out, and why."""

    id: str
    #: "budget", "relevance" or "duplicate".
    rule: str
    reason: str
    score: float
    #: Tokens of its shortest rendition.
    cost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What was chosen, and what was left."""

    fragments: tuple[Fragment, ...] = ()
    #: Sum over the fragments.
    used_tokens: int = 0
    #: Share of the gaze that the fragments cover; None when the gaze is empty.
    coverage: float | None = None
    #: Best score first.
    left: tuple[Rejected, ...] = ()
    #: By id, of every candidate: its score before anything was chosen.
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    #: By id, of every candidate: the published benefit.
    benefits: Mapping[str, float] = field(default_factory=dict[str, float])


# ── the published formula ───────────────────────────────────────────────────────────────────────────────────────────


def recency(timestamp: datetime | None, now: datetime) -> float:
    """Return how fresh something is, in [0, 1]: 0 when its time is unknown, 1 when it lies ahead."""
    if timestamp is None:
        return 0.0
    return exp(-max(0.0, (now - timestamp).total_seconds()) / (3600 * FADES))


def citation(candidate: Candidate, risk: RiskLevel) -> float:
    """Return what citations earn: 1 with one at least, else 0.5, or 0 where the risk is high."""
    return 1.0 if candidate.citations else 0.0 if risk is RiskLevel.HIGH else 0.5


def benefit(overlap: float, recency: float, citation: float) -> float:
    """Return the published benefit."""
    return OVERLAP * overlap + RECENCY * recency + CITATION * citation


def score(benefit: float, tokens: int) -> float:
    """Return the published score, as it is compared."""
    return round(benefit / (1 + tokens / 1000), DIGITS)


# ── the choice ──────────────────────────────────────────────────────────────────────────────────────────────────────


class _Level(NamedTuple):
    """One way to write an item."""

    lod: Lod
    text: str | None
    cost: int
    #: What it is worth, against the longest.
    shown: float = 1.0


class _Item:
    """A candidate that may be chosen."""

    __slots__ = ("candidate", "cites", "levels", "offered", "overlap", "own", "rank", "stamp", "static", "weight")

    def __init__(self, candidate: Candidate, levels: list[_Level], offered: int) -> None:
        self.candidate = candidate
        #: Renditions, the shortest first; which of them the provider meant.
        self.levels = levels
        self.offered = offered
        stamp = candidate.timestamp
        self.stamp = -inf if stamp is None else stamp.timestamp()
        self.cites = len(candidate.citations)
        #: Numbers of the gaze entities it covers, and their share.
        self.own: frozenset[int] = _NONE
        self.overlap = 0.0
        #: Benefit beside coverage, and what an entity of the gaze adds to it.
        self.static = 0.0
        self.weight = 0.0
        #: Place among those of the same score.
        self.rank = 0


_NONE: frozenset[int] = frozenset()


def select(
    candidates: Iterable[Candidate],
    *,
    gaze: Sequence[str],
    tokens_max: int,
    now: datetime,
    count: Callable[[str], int],
    profile: Profile = "quality",
    risk: RiskLevel = RiskLevel.MEDIUM,
    prefer: Lod | None = None,
    order: Literal["selection", "lod"] = "selection",
    lod_mix: Mapping[Lod, float] | None = None,
) -> Selection:
    """Choose what enters a reply; the tokens of all fragments together never exceed `tokens_max`.

    `count` is the engine's tokenizer: a text costs what is claimed or what is counted, whichever is more. `prefer` is
    the most detail that is wanted; an item that has only more is taken as short as it comes. `lod_mix` names the share
    of the tokens that each level should have, softly; profile `quality` only. The order in which candidates come does
    not matter. Of two with the same id the fresher counts, then the cheaper.
    """
    asked = {name: number for number, name in enumerate(dict.fromkeys(one.strip().lower() for one in gaze))}
    items, doubles = _normalised(candidates, count, prefer)
    for item in items:
        names = item.candidate.entities
        if asked and names:
            own = frozenset([asked[name] for name in map(str.lower, names) if name in asked])
            if own:
                item.own = own
                item.overlap = len(own) / len(asked)
    items.sort(
        key=lambda item: (-item.stamp, -item.cites, item.levels[item.offered].cost, item.candidate.id)
    )
    benefits: dict[str, float] = {}
    for rank, item in enumerate(items):
        item.rank = rank
        one = item.candidate
        item.static = RECENCY * recency(one.timestamp, now) + CITATION * citation(one, risk)
        benefits[one.id] = OVERLAP * item.overlap + item.static
    if profile == "published":
        run = _published(items, benefits, tokens_max)
    else:
        run = _quality(items, len(asked), tokens_max, risk, lod_mix)
    taken = run.taken
    if order == "lod":
        taken = sorted(taken, key=lambda pair: pair[0].levels[pair[1]].lod.rank)
    fragments = tuple(_fragment(item, level) for item, level in taken)
    covered: set[int] = set()
    for item, _ in taken:
        covered |= item.own
    return Selection(
        fragments=fragments,
        used_tokens=sum(fragment.cost_tokens for fragment in fragments),
        coverage=len(covered) / len(asked) if asked else None,
        left=_left(items, doubles, run),
        scores=run.scores,
        benefits=benefits,
    )


class _Run(NamedTuple):
    """The outcome of a profile."""

    #: Items with the number of their level, in the order in which they were chosen.
    taken: list[tuple[_Item, int]]
    scores: dict[str, float]
    #: Those below the floor, by id.
    floored: frozenset[str] = frozenset()


def _fragment(item: _Item, number: int) -> Fragment:
    one, level = item.candidate, item.levels[number]
    return Fragment(
        id=one.id,
        lod=level.lod,
        text=level.text,
        entities=one.entities,
        cost_tokens=level.cost,
        source=one.source,
    )


_REASONS = {
    "budget": "does not fit what is left of the token budget",
    "relevance": "covers nothing that was asked for and is not relevant enough",
    "duplicate": "the same id came again; the fresher, then the cheaper one is kept",
}


def _left(items: Sequence[_Item], doubles: Sequence[_Item], run: _Run) -> tuple[Rejected, ...]:
    scores, floored = run.scores, run.floored
    taken = {item.rank for item, _ in run.taken}
    rest = [item for item in items if item.rank not in taken]
    rest.sort(key=lambda item: -scores[item.candidate.id])  # stable: of equals the better rank
    found: list[Rejected] = []
    for item in rest:
        id = item.candidate.id
        rule = "relevance" if id in floored else "budget"
        found.append(Rejected(id, rule, _REASONS[rule], scores[id], item.levels[0].cost))
    for item in sorted(doubles, key=lambda item: (item.candidate.id, -item.stamp, item.levels[0].cost)):
        id = item.candidate.id
        found.append(Rejected(id, "duplicate", _REASONS["duplicate"], scores[id], item.levels[0].cost))
    return tuple(found)


# ── normalising ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _normalised(
    candidates: Iterable[Candidate], count: Callable[[str], int], prefer: Lod | None
) -> tuple[list[_Item], list[_Item]]:
    """Return the candidates with costs that can be relied on, and those whose id came again."""
    best: dict[str, _Item] = {}
    doubles: list[_Item] = []
    for candidate in candidates:
        item = _item(candidate, count, prefer)
        other = best.setdefault(candidate.id, item)
        if other is item:
            continue
        keep, drop = sorted((other, item), key=_twin)
        best[candidate.id] = keep
        doubles.append(drop)
    return list(best.values()), doubles


def _twin(item: _Item) -> tuple[float, int, str]:
    return -item.stamp, item.levels[item.offered].cost, repr(item.candidate)


def _item(candidate: Candidate, count: Callable[[str], int], prefer: Lod | None) -> _Item:
    text, cost = candidate.text, candidate.cost_tokens
    if text is not None:
        cost = max(cost, count(text))
    own = _Level(candidate.lod, text, max(0, cost))
    if not candidate.variants or text is None:
        return _Item(candidate, [own], 0)
    by_lod = {own.lod: own}
    for variant in candidate.variants:
        level = _Level(variant.lod, variant.text, max(0, variant.cost_tokens, count(variant.text)))
        known = by_lod.get(level.lod)
        if known is None or (known is not own and (level.cost, level.text) < (known.cost, known.text)):
            by_lod[level.lod] = level
    levels = sorted(by_lod.values(), key=lambda level: level.lod.rank)
    if prefer is not None and (levels[0] is not own or levels[-1] is not own):
        levels = [level for level in levels if level.lod.rank <= prefer.rank] or levels[:1]
    return _leveled(candidate, levels, own)


def _leveled(candidate: Candidate, levels: list[_Level], own: _Level) -> _Item:
    """Return an item without renditions that say less than a cheaper one."""
    useful: list[_Level] = []
    least: float = inf
    for level in reversed(levels):
        if level.cost < least or level is own:
            useful.append(level)
            least = min(least, level.cost)
    useful.sort(key=lambda level: level.lod.rank)
    offered = next((at for at, level in enumerate(useful) if level is own), len(useful) - 1)
    longest = useful[-1].cost
    if longest:
        useful = [level._replace(shown=min(1.0, level.cost / longest) ** SHOWN) for level in useful]
        useful[-1] = useful[-1]._replace(shown=1.0)
    return _Item(candidate, useful, offered)


# ── published ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _published(items: Sequence[_Item], benefits: Mapping[str, float], tokens_max: int) -> _Run:
    scores = {
        item.candidate.id: score(benefits[item.candidate.id], item.levels[item.offered].cost) for item in items
    }
    left = tokens_max
    taken: list[tuple[_Item, int]] = []
    for item in sorted(items, key=lambda item: -scores[item.candidate.id]):
        for number in range(item.offered, -1, -1):
            if item.levels[number].cost <= left:
                left -= item.levels[number].cost
                taken.append((item, number))
                break
    return _Run(taken, scores)


# ── quality ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _quality(
    items: Sequence[_Item],
    size: int,
    tokens_max: int,
    risk: RiskLevel,
    lod_mix: Mapping[Lod, float] | None,
) -> _Run:
    first, second, floored = _tiers(items, size, risk)
    scores = {
        item.candidate.id: score(item.static + item.weight * len(item.own), item.levels[-1].cost)
        for item in items
    }
    taken: list[tuple[_Item, int]] = []
    left, covered = tokens_max, set[int]()
    for tier in (first, second):
        if lod_mix is not None:
            chosen = _mixed(tier, left, covered, lod_mix)
        else:
            chosen = _best(tier, left, covered)
        taken += chosen
        for item, number in chosen:
            left -= item.levels[number].cost
            covered |= item.own
    return _Run(taken, scores, floored)


def _tiers(
    items: Sequence[_Item], size: int, risk: RiskLevel
) -> tuple[list[_Item], list[_Item], frozenset[str]]:
    """Weigh the items; return those that answer, those that may fill what is left, and the ids of the rest."""
    best = max((item.candidate.relevance or 0.0 for item in items), default=0.0)
    floor = FLOOR * best * best
    first: list[_Item] = []
    second: list[_Item] = []
    floored: list[str] = []
    for item in items:
        one = item.candidate
        judged = one.relevance
        if judged is None:
            item.weight = OVERLAP / size if size else 0.0
            # What is fresh and cited is worth that much only as far as it answers.
            if item.own:
                item.static *= item.overlap
            (first if item.own or not size else second).append(item)
            continue
        cited = CITATION * citation(one, risk)
        share = JUDGED if size else 1.0
        # Whoever judged relevance knew the time: it is not added once more (decision 0007).
        item.static = judged * ((1 - CITATION) * share + cited)
        item.weight = judged * 0 + (1 - CITATION) * (1 - share) / size if size else 0.0
        if size and not item.own and judged < floor:
            floored.append(one.id)
        else:
            first.append(item)
    return first, second, frozenset(floored)


def _benefit(item: _Item, covered: set[int]) -> float:
    """Return what an item adds to what is covered already."""
    if not item.own:
        return item.static
    known = len(item.own & covered)
    return item.static + item.weight * (len(item.own) - (1 - AGAIN) * known)


def _best(items: Sequence[_Item], tokens_max: int, covered: set[int]) -> list[tuple[_Item, int]]:
    """Return the best of three ways to fill the room: by score, by worth per token, the one best item."""
    plain = _by_score(items, tokens_max, covered)
    if len(plain) == len(items) and all(number == len(item.levels) - 1 for item, number in plain):
        return plain
    found, most = plain, _worth(plain, covered)
    dense = _in_order(_by_density(items, tokens_max, covered), covered)
    if (worth := _worth(dense, covered)) > most:
        found, most = dense, worth
    single = _single(items, tokens_max, covered)
    if single and _worth(single, covered) > most:
        found = single
    return found


def _worth(taken: Sequence[tuple[_Item, int]], covered: set[int]) -> float:
    known = set(covered)
    total = 0.0
    for item, number in taken:
        total += _benefit(item, known) ** POWER * item.levels[number].shown
        known |= item.own
    return round(total, DIGITS)


def _single(items: Sequence[_Item], tokens_max: int, covered: set[int]) -> list[tuple[_Item, int]]:
    best: tuple[float, _Item, int] | None = None
    for item in items:
        for number in range(len(item.levels) - 1, -1, -1):
            level = item.levels[number]
            if level.cost <= tokens_max:
                worth = _benefit(item, covered) ** POWER * level.shown
                if best is None or worth > best[0]:
                    best = worth, item, number
                break
    return [] if best is None else [best[1:]]


def _by_score(items: Sequence[_Item], tokens_max: int, covered: set[int]) -> list[tuple[_Item, int]]:
    """Take the best score again and again, each item in as much detail as fits.

    What an item adds only shrinks while others are taken, so a score that is still the best when it is looked at
    again is the best of all (lazy evaluation: Minoux 1978).
    """
    known = set(covered)
    heap = [(-score(_benefit(item, known), item.levels[-1].cost), item.rank, item) for item in items]
    heapify(heap)
    least = min((item.levels[0].cost for item in items), default=0)
    left = tokens_max
    taken: list[tuple[_Item, int]] = []
    while heap and left >= least:
        was, rank, item = heappop(heap)
        levels = item.levels
        if levels[0].cost > left:
            continue
        if item.own and not known.isdisjoint(item.own):
            now = -score(_benefit(item, known), levels[-1].cost)
            if now > was:
                heappush(heap, (now, rank, item))
                continue
        number = _fitting(levels, left)
        left -= levels[number].cost
        known |= item.own
        taken.append((item, number))
    return taken


def _fitting(levels: Sequence[_Level], left: int) -> int:
    """Return the most detailed level that fits; the first one does."""
    number = len(levels) - 1
    while levels[number].cost > left:
        number -= 1
    return number


def _in_order(taken: Sequence[tuple[_Item, int]], covered: set[int]) -> list[tuple[_Item, int]]:
    """Return what was chosen with the best score first."""
    known = set(covered)
    heap = [
        (-score(_benefit(item, known), item.levels[number].cost), item.rank, item, number)
        for item, number in taken
    ]
    heapify(heap)
    found: list[tuple[_Item, int]] = []
    while heap:
        was, rank, item, number = heappop(heap)
        now = -score(_benefit(item, known), item.levels[number].cost)
        if now > was:
            heappush(heap, (now, rank, item, number))
            continue
        known |= item.own
        found.append((item, number))
    return found


def _by_density(items: Sequence[_Item], tokens_max: int, covered: set[int]) -> list[tuple[_Item, int]]:
    """Take what is worth most per token again and again: an item, or more detail of one that is in."""
    known = set(covered)
    left = tokens_max
    worth: dict[int, float] = {}
    at: dict[int, int] = {}
    heap: list[tuple[float, int, int, _Item]] = []
    for item in items:
        worth[item.rank] = _benefit(item, known) ** POWER
        step = _step(item, -1, left, worth[item.rank])
        if step is not None:
            heap.append((*step, item))
    heapify(heap)
    taken: dict[int, tuple[_Item, int]] = {}
    while heap:
        was, rank, number, item = heappop(heap)
        here = at.get(rank, -1)
        if here < 0 and item.own and not known.isdisjoint(item.own):
            worth[rank] = _benefit(item, known) ** POWER
        step = _step(item, here, left, worth[rank])
        if step is None:
            continue
        if step[0] > was or step[2] != number:
            heappush(heap, (*step, item))
            continue
        left -= item.levels[number].cost - (item.levels[here].cost if here >= 0 else 0)
        known |= item.own
        at[rank] = number
        taken[rank] = item, number
        more = _step(item, number, left, worth[rank])
        if more is not None:
            heappush(heap, (*more, item))
    return list(taken.values())


def _step(item: _Item, here: int, left: int, worth: float) -> tuple[float, int, int] | None:
    """Return the best next level of an item that fits: minus its worth per 1,000 tokens, rank, number."""
    levels = item.levels
    if here < 0:
        shown, spent, frame = 0.0, 0, FRAME
    else:
        shown, spent, frame = levels[here].shown, levels[here].cost, 0
    best: tuple[float, int, int] | None = None
    for number in range(here + 1, len(levels)):
        level = levels[number]
        if level.cost - spent > left:
            break
        gain = round(1000 * worth * (level.shown - shown) / max(1, level.cost - spent + frame), DIGITS)
        if best is None or -gain <= best[0]:
            best = -gain, item.rank, number
    return best


def _mixed(
    items: Sequence[_Item], tokens_max: int, covered: set[int], lod_mix: Mapping[Lod, float]
) -> list[tuple[_Item, int]]:
    """Take the best score again and again, where a level of detail that has more than its share loses a little.

    What a level loses is the same for all renditions of it, so the best of each level are all that must be compared.
    """
    known = set(covered)
    left = tokens_max
    heaps: dict[Lod, list[tuple[float, int, int, _Item]]] = {lod: [] for lod in Lod}
    for item in items:
        gain = _benefit(item, known)
        for number, level in enumerate(item.levels):
            heaps[level.lod].append((-score(gain * level.shown, level.cost), item.rank, number, item))
    for heap in heaps.values():
        heapify(heap)
    spent = dict.fromkeys(Lod, 0)
    taken: dict[int, tuple[_Item, int]] = {}
    while True:
        best: tuple[float, int, Lod] | None = None
        used = tokens_max - left
        for lod, heap in heaps.items():
            _settled(heap, taken, known, left)
            if heap:
                over = max(0.0, spent[lod] / used - lod_mix.get(lod, 0.0)) if used else 0.0
                found = round(heap[0][0] + MIXED * over, DIGITS), heap[0][1], lod
                if best is None or found[:2] < best[:2]:
                    best = found
        if best is None:
            return list(taken.values())
        _, rank, number, item = heappop(heaps[best[2]])
        left -= item.levels[number].cost
        spent[best[2]] += item.levels[number].cost
        known |= item.own
        taken[rank] = item, number


def _settled(
    heap: list[tuple[float, int, int, _Item]], taken: Mapping[int, object], known: set[int], left: int
) -> None:
    """Bring to the top of a heap what is really the best in it, and can be taken."""
    while heap:
        was, rank, number, item = heap[0]
        level = item.levels[number]
        if rank in taken or level.cost > left:
            heappop(heap)
            continue
        now = -score(_benefit(item, known) * level.shown, level.cost)
        if now <= was:
            return
        heappop(heap)
        heappush(heap, (now, rank, number, item))
