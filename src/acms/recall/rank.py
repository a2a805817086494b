"""Rank: how well the entries in force answer a query, by shared words, by meaning, and by what stands around them.

One formula for every log (decision 0056). Words are weighed as in BM25 (Robertson and Zaragoza, "The Probabilistic
Relevance Framework", 2009), in the entry itself and in its neighbourhood; the best entries lend the terms that set them
apart (pseudo-relevance feedback); meaning is fused with words by a convex combination; what costs more tokens has to
answer better. An entry *qualifies* by its own words, markers or meaning alone: its neighbourhood ranks it and never
makes it an answer, so what has no evidence of its own comes after all that has. No recency enters (decision 0007). All
statistics are those of the entries the reader sees, so a past version ranks as it did then (rule 2.9).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import exp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from acms.recall.corpus import NEAR, Field
from acms.recall.index import Floats, Ints
from acms.recall.vector_score import Level, Meaning, by_meaning, cosines, level, slots_of, with_context
from acms.text.index_record import EXTERNAL
from acms.text.tokenizer import found_by, names, rarity, tally, term, terms, words

DEEP = 10
"""Entries whose cosines are computed exactly when sign bits chose, for each one that the budget holds."""
RESCORED = range(640, 2_001)
"""How many these are, at least and at most: what is packed agrees to 0.99 with what exact cosines pack."""
VECTORS = 5_000
"""Vectors that these have together, about, at most: fewer entries where each has many."""
SHORT = 16
"""Tokens of a short entry: a budget has one candidate for each so many."""
CANDIDATES = 256
"""Entries that planning considers, at least."""
FEWEST = 64
"""Candidates that are kept however small the budget is."""
MARKED = 64
"""Marked entries that planning considers, however many unmarked ones answer better."""
MEANT = 1 / 3
"""Least answer by meaning that is evidence: two standard deviations above what is usual."""
FLOOR = 0.2
"""Share of what is asked that the best entry must hold to be the measure of all others: below it nothing answers."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a recall asks with: the terms of the query, its vector and the space that one belongs to."""

    terms: tuple[int, ...]
    space: str | None = None
    vector: Floats | None = None
    #: Of each name in it: the terms of its words, and those under which it is found beside them. Two words beside each
    #: other may be one where it was said: "roll back", "rollback".
    names: tuple[tuple[frozenset[int], tuple[int, ...]], ...] = ()
    #: Markers by the terms of their own names and patterns: "what did we choose?" finds what is marked as a decision.
    markers: tuple[tuple[int, str], ...] = ()
    #: All terms under which its own text would be found.
    itself: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        query: str,
        space: str | None = None,
        vector: Floats | None = None,
        markers: Iterable[tuple[int, str]] = (),
    ) -> Question:
        """Return a query as the index asks it."""
        said, named = words(query), names(query)
        asked = tuple(dict.fromkeys(terms(said)))
        also = [(frozenset(terms(words(name.said))), name.also) for name in named]
        also += [(frozenset[int](), (term(f"{one}{other}"),)) for one, other in pairwise(said)]
        return cls(
            asked,
            space,
            vector,
            tuple(also),
            tuple(pair for pair in markers if pair[0] in asked),
            frozenset(tally(said)).union(*(name.also for name in named)),
        )

    def known_names(self, field: Field) -> Question:
        """Return it with its names under all terms by which a log knows them.

        Words of a name that nobody has said are left out when it is known otherwise: they would only make every answer
        look worse.
        """
        if not self.names:
            return self
        asked = dict.fromkeys(self.terms)
        for own, also in self.names:
            known = [number for number in also if len(field.snapshot.postings(number))]
            if known:
                for number in own & asked.keys():
                    if not len(field.snapshot.postings(number)):
                        del asked[number]
                asked.update(dict.fromkeys(known))
        return Question(tuple(asked), self.space, self.vector, (), self.markers, self.itself)


# ── words ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Posted(NamedTuple):
    """Where a term is, and what it weighs."""

    weight: float
    places: Ints
    #: Occurrences over the normalised length of each entry.
    density: Floats


class Words(NamedTuple):
    """How well every entry in force answers by words, in units of the weights of terms."""

    message: Floats
    near: Floats
    feedback: Floats
    #: Weight of all that is asked, also of what nobody has said.
    total: float
    #: Places of the entries that hold each term of the query.
    held: Mapping[int, Ints]


def by_words(field: Field, asked: Question) -> Words:
    """Score by words: of the entry, of its neighbourhood, and by terms that the best ones lend."""
    size, weights = len(field), field.weights
    message, near, feedback = (np.zeros(size, np.float32) for _ in range(3))
    posted = {number: _posted(field, number, asked.markers) for number in dict.fromkeys(asked.terms)}
    spread, part = np.zeros(size + 2 * NEAR, np.float32), np.empty(size, np.float32)
    for one in posted.values():
        if len(one.places):
            gain, k = np.float32(one.weight), np.float32(weights.k)
            message[one.places] += gain * one.density / (one.density + k)
            _add_near(near, spread, part, one, k)
    near *= np.float32(weights.near)
    for number in _lent(field, message + near, frozenset(posted)) if size else ():
        one = _posted(field, number, ())
        gain = np.float32(one.weight * weights.feedback)
        feedback[one.places] += gain * one.density / (one.density + np.float32(weights.k))
    total = sum(one.weight for one in posted.values()) * (1 + weights.near)
    return Words(message, near, feedback, total, {number: one.places for number, one in posted.items()})


def _posted(field: Field, number: int, markers: Sequence[tuple[int, str]]) -> Posted:
    """Return where a term is; a marker that it names is a word of every entry that carries it."""
    places, counts = field.postings(number)
    marked = [field.carrying(marker) for own, marker in markers if own == number]
    if marked:
        found = np.zeros(len(field), np.float32)
        found[places] = counts
        for which in marked:
            found[which] = np.maximum(found[which], 1)
        places = np.flatnonzero(found)
        counts = found[places]
    weight = rarity(len(field), len(places)) ** field.weights.rarity
    return Posted(weight, places, np.asarray(counts / field.norms[places], np.float32))


def _add_near(near: Floats, spread: Floats, part: Floats, one: Posted, k: np.float32) -> None:
    """Add what a term is worth in the neighbourhood of every entry; `spread` is all zeros before and after."""
    places, gain, size = one.places, np.float32(one.weight), len(near)
    spread[places + NEAR] = one.density
    if len(places) * 40 < size:
        reached = (places[:, None] + _REACH).ravel()
        reached = reached[(reached >= 0) & (reached < size)]
        values = spread[reached + NEAR]
        for shift in range(1, NEAR + 1):
            values = values + (spread[reached + NEAR - shift] + spread[reached + NEAR + shift]) / np.float32(
                shift
            )
        # A place that comes twice comes with the same value, and is read before it is written.
        near[reached] += gain * values / (values + k)
    else:
        np.copyto(part, spread[NEAR : NEAR + size])
        for shift in range(1, NEAR + 1):
            share = np.float32(1 / shift)
            part += share * spread[NEAR - shift : NEAR - shift + size]
            part += share * spread[NEAR + shift : NEAR + shift + size]
        near += gain * (part / (part + k))
    spread[places + NEAR] = 0


_REACH = np.arange(-NEAR, NEAR + 1)


def _lent(field: Field, scores: Floats, asked: frozenset[int]) -> list[int]:
    """Return the terms in which the best entries differ most from all others, without those asked."""
    count = field.weights.lenders
    if not field.weights.feedback or scores.max(initial=0) <= 0:
        return []
    best = largest(scores, count)
    best = best[scores[best] > 0]
    said = [field.snapshot.terms_of(field.document(place)) for place in np.sort(best).tolist()]
    numbers, which = np.unique(np.concatenate([numbers for numbers, _ in said]), return_inverse=True)
    often = np.concatenate([counts for _, counts in said]).astype(np.float32)
    worth = np.repeat(scores[np.sort(best)], [len(counts) for _, counts in said])
    weight = np.bincount(which, worth * often / (often + 0.5), len(numbers)) * field.rarities(numbers)
    weight[np.isin(numbers, np.fromiter(asked, np.uint32, len(asked)))] = 0
    order = np.lexsort((numbers, -weight))[:count]
    return numbers[order[weight[order] > 0]].tolist()


# ── both ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Later(NamedTuple):
    """A later statement on the same subject as an earlier one."""

    #: Places of both.
    place: int
    earlier: int


class Ranking:
    """The entries in force that answer a query best, and by how much each signal spoke for them."""

    def __init__(
        self,
        field: Field,
        asked: Question,
        said: Words,
        fused: Floats,
        own: Floats,
        places: Ints,
        *,
        meant: Meant | None,
        allowed: NDArray[np.bool_] | None = None,
    ) -> None:
        self.field = field
        #: Which entries may be shown; None for all.
        self.allowed = allowed
        self._said = said
        self._meant = meant
        #: What every entry is worth, and how much of what was asked it holds itself, both in [0, 1].
        self._fused = fused
        self._own = own
        #: The measure of relevance: what the best entry holds, or the least that answers anything.
        self.measure = max(float(own.max(initial=0.0)), FLOOR)
        #: Places of the candidates, best first.
        self.places = places
        #: Share of the entries that have a vector in the space of the query; 1 when nobody asked by meaning.
        self.coverage = 1.0 if meant is None else meant.coverage
        #: Places of the entries that hold each of the terms of the query, and how many these are.
        self.held = said.held
        #: All terms under which the text of the query would be found.
        self.itself = asked.itself
        self.often = {number: len(places) for number, places in said.held.items()}
        #: What a cosine with the query usually is; None when nobody asked by meaning.
        self.level = None if meant is None else meant.level
        self.space = None if meant is None else meant.space
        self.dimension = 0 if meant is None else meant.dimension
        #: What the words of the best entry are worth: other rankings of the same query are measured by it too.
        self.best = _measure(said)
        #: Places of the later statements on the same subject, by the place of the earlier one.
        self.later: dict[int, int] = {}
        #: Relevance and worth of what is later than something on the same subject, by place.
        self._lifted: dict[int, tuple[float, float]] = {}

    def keep(self, tokens: int) -> None:
        """Keep the best candidates that hold so many tokens, a few at least, and all that are marked or linked."""
        held = self.field.column("tokens")[self.places]
        if self.field.external is not None:  # external text keeps no other text out
            held = held * ~self.field.external[self.places]
        held = held.cumsum(dtype=np.int64)
        size = max(FEWEST, int(held.searchsorted(tokens)) + 1)
        if size < len(self.places):
            rest, marked = self.places[size:], self.field.marked()
            stays = np.isin(rest, list(self.heirs))  # without it an earlier statement would be shown alone
            if marked is not None:
                stays |= marked[rest]
            self.places = np.concatenate([self.places[:size], rest[stays]])

    def link(self, found: Iterable[Later]) -> None:
        """Let later statements stand right below the earlier ones, or above those that carry one of their markers."""
        for one in found:
            self.later[one.earlier] = one.place
            (relevance,), (worth,) = self.worth(np.array([one.earlier]))
            self.lift(one.place, relevance, worth + (ABOVE if self._marked_alike(one) else -ABOVE))

    def _marked_alike(self, one: Later) -> bool:
        """Whether both carry a marker in common: what is decided again is decided otherwise."""
        earlier, later = (self.field.snapshot.doc(self.field.document(at)) for at in (one.earlier, one.place))
        return not set(earlier.markers).isdisjoint(later.markers)

    def lift(self, place: int, relevance: float, worth: float) -> None:
        """Let an entry be worth no less than this; it becomes a candidate if it was none."""
        (own,), (held,) = self.worth(np.array([place]))
        self._lifted[place] = max(relevance, own), max(worth, held)
        if place not in self.places:
            self.places = np.append(self.places, place)

    def allows(self, place: int) -> bool:
        """Whether an entry may be shown."""
        return self.allowed is None or bool(self.allowed[place])

    @property
    def heirs(self) -> Collection[int]:
        """Places of the later statements on the same subject as something earlier."""
        return self._lifted.keys()

    def worth(self, places: Ints) -> tuple[list[float], list[float]]:
        """Return the relevance of some entries, and what their scores are made of by `raise_score`."""
        found: list[float] = np.minimum(self._own[places] / np.float32(self.measure), 1).tolist()
        worth: list[float] = (
            self._fused[places] * np.where(self._own[places] > 0, 1, np.float32(BESIDE))
        ).tolist()
        if self._lifted:
            for index, place in enumerate(places.tolist()):
                if place in self._lifted:
                    found[index], worth[index] = self._lifted[place]
        return found, worth

    def meaning(self, places: Ints) -> Floats:
        """Return how well some entries answer by meaning, in [0, 1]."""
        return np.zeros(len(places), np.float32) if self._meant is None else self._meant.own[places]

    def parts(self, place: int) -> Mapping[str, float]:
        """Return what each signal adds to the worth of an entry, before its price."""
        share = 1.0 if self._meant is None else 1 - self.field.weights.meaning
        scale = share / self.best if self.best else 0.0
        found = {
            name: float(values[place]) * scale
            for name, values in zip(("message", "near", "feedback"), self._said[:3], strict=True)
        }
        if self._meant is not None:
            found["meaning"] = float(self._meant.near[place]) * self.field.weights.meaning
        return {name: round(value, 4) for name, value in found.items() if value > 0}

    def relevance(self, place: int) -> float:
        """Return how much of what was asked an entry holds itself, relative to the best, in [0, 1]."""
        return self.worth(np.array([place]))[0][0]

    def cheaper(self, place: int, tokens: int) -> float:
        """Return by what an entry is worth less when so many tokens have to be shown with it."""
        own = max(1, int(self.field.column("tokens")[place]))
        return min(1.0, own / max(1, tokens)) ** self.field.weights.price

    def score(self, place: int, boost: float = 0.0) -> float:
        """Return the score of an entry in [0, 1): its worth, raised by its markers as far as it answers."""
        (relevance,), (worth,) = self.worth(np.array([place]))
        return raise_score(worth, boost * relevance)


ABOVE = 1e-4
"""How far an earlier statement and a later one on the same subject are apart in worth."""


def raise_score(worth: float, boost: float) -> float:
    """Return the score of an entry in [0, 1) by what it is worth and the boost of its markers."""
    return 1 - exp(-worth * (1 + boost))


class Meant(NamedTuple):
    """How well every entry answers by meaning, in [0, 1]: by itself, and with what stands around it."""

    own: Floats
    near: Floats
    level: Level
    space: str
    dimension: int
    #: Share of the entries that have a vector.
    coverage: float


def rank(
    field: Field, asked: Question, size: int = CANDIDATES, allowed: NDArray[np.bool_] | None = None
) -> Ranking:
    """Rank the entries in force; `size` of them become candidates, those with evidence of their own first.

    All of them tell how rare a word is and what stands around an answer; only those `allowed` become candidates.
    """
    found: Meaning | None = None
    if asked.vector is not None and asked.space is not None:
        # First: it goes through so much memory that nothing stays at hand of what was made before it.
        found = by_meaning(field, asked.space, asked.vector)
    said = by_words(field, asked)
    lexical = (said.message + said.near + said.feedback) * np.float32(1 / (_measure(said) or 1))
    factor = field.prices * field.named(_named(field, asked.terms))
    own = said.message * np.float32((1 + field.weights.near) / (said.total or 1))
    if found is None or asked.vector is None or asked.space is None:
        fused, own = _only(allowed, np.asarray(lexical * factor, np.float32), own)
        places = _best(field, fused, own, size)
        return Ranking(field, asked, said, fused, own, places, meant=None, allowed=allowed)
    usual = level(field, asked.space, asked.vector, found)
    values = found.cosines
    if not found.exact:
        rough = _fused(field, lexical, usual.of(with_context(values)), factor)
        rough, _ = _only(allowed, rough, own)
        likely = np.sort(largest(rough, max(size, _rescored(field, found, size))))
        values = values.copy()
        values[likely] = cosines(field, asked.space, asked.vector, likely)
    meant = Meant(
        usual.of(values),
        usual.of(with_context(values)),
        usual,
        asked.space,
        len(asked.vector),
        min(1.0, found.known / field.texts) if field.texts else 1.0,
    )
    fused = _fused(field, lexical, meant.near, factor)
    evident = np.where(meant.own >= np.float32(MEANT), meant.own, np.float32(0))
    fused, own = _only(allowed, fused, np.asarray(own + evident - own * evident, np.float32))
    places = _best(field, fused, own, size)
    return Ranking(field, asked, said, fused, own, places, meant=meant, allowed=allowed)


def _only(allowed: NDArray[np.bool_] | None, fused: Floats, own: Floats) -> tuple[Floats, Floats]:
    """Return what entries are worth and hold; of those that are not allowed nothing."""
    return (fused, own) if allowed is None else (fused * allowed, own * allowed)


def _measure(said: Words) -> float:
    """Return what words are measured by: the best entry, or the least that answers anything."""
    best = float((said.message + said.near + said.feedback).max(initial=0.0))
    return max(best, FLOOR * said.total)


def _fused(field: Field, lexical: Floats, meant: Floats, factor: Floats) -> Floats:
    share = np.float32(field.weights.meaning)
    return np.asarray(((1 - share) * lexical + share * meant) * factor, np.float32)


BESIDE = 0.1
"""Factor of the score of what has no evidence of its own."""


def _best(field: Field, fused: Floats, own: Floats, size: int) -> Ints:
    """Return the places of the candidates, best first, those with evidence of their own before all others."""
    ordered = fused + (own > 0) * np.float32(1 + fused.max(initial=0.0))
    places = _largest_of_each(ordered, field.external, size)
    places = places[ordered[places] > 0]
    places = places[np.lexsort((places, -ordered[places]))]
    marked = field.marked()
    if marked is not None and len(places) < len(field):
        marked[places] = False
        if field.external is not None:
            marked &= ~field.external
        others = np.flatnonzero(marked & (own > 0))
        others = others[largest(fused[others], MARKED)]
        places = np.concatenate([places, others[np.lexsort((others, -fused[others]))]])
    return places


def _largest_of_each(values: Floats, external: NDArray[np.bool_] | None, size: int) -> Ints:
    """Return the places of the largest values: so many of external text and as many of all other text."""
    if external is None:
        return largest(values, size)
    groups = [np.flatnonzero(external), np.flatnonzero(~external)]
    return np.concatenate([places[largest(values[places], size)] for places in groups])


def _rescored(field: Field, found: Meaning, size: int) -> int:
    """Return how many entries are compared exactly, of those that sign bits rank first."""
    least, most = RESCORED[0], RESCORED[-1]
    deep = int(DEEP * SHORT * size / max(1.0, field.tokens))
    return min(max(least, min(most, deep)), VECTORS * found.known // max(1, found.vectors))


def alike(field: Field, ranking: Ranking) -> list[int]:
    """Return for each candidate the index of the best one that says the same: its own when there is no better one.

    Two entries say the same when they hold the same words, whatever their order. External text never takes the place of
    other text.
    """
    documents = field.documents(ranking.places)
    prints = field.snapshot.column("print")[documents].tolist()
    exact = field.snapshot.column("exact")[documents].tolist()
    external = (field.snapshot.column("flags")[documents] & EXTERNAL).tolist()
    first: dict[tuple[int, int, int], int] = {}
    return [
        first.setdefault(key, index) if key[0] else index
        for index, key in enumerate(zip(prints, exact, external, strict=True))
    ]


def wholes(field: Field, space: str, dimension: int, documents: Ints) -> Floats:
    """Return the vectors of documents, as wholes, a row each; zeros for one without a vector."""
    rows = np.zeros((len(documents), dimension), np.float32)
    for held in field.snapshot.vectors(space, dimension):
        vectors = held[2]
        own, slots = slots_of(documents, *held)
        vectors.fill(rows, own, vectors.begin[slots])
    return rows


def _named(field: Field, query: Sequence[int]) -> frozenset[str]:
    """Return the speakers whom a query names; none when it names all."""
    asked = set(query)
    actors = field.speakers
    named = {actor for actor in actors if not asked.isdisjoint(_name(actor))}
    return frozenset() if len(named) == len(actors) else frozenset(named)


def unnamed(query: str, speakers: Iterable[str]) -> str:
    """Return what a query is about without the names of speakers; with them when nothing else is asked.

    Every vector of a message tells who speaks. With the name a query would be nearest to whatever the one says, and
    that a speaker is named counts already.
    """
    named = _said_of(frozenset(speakers))
    if not any(term(said.lower()) in named for said in _WORDS.findall(query)):
        return query
    rest = _WORD.sub(lambda found: "" if term(found[1].lower()) in named else found[0], query)
    return " ".join(rest.split()) if rest != query and any(map(term, words(rest))) else query


_WORDS = re.compile(r"\w+")
_WORD = re.compile(r"(\w+)(?:['\u2019]s\b)?")


@lru_cache(maxsize=64)
def _said_of(speakers: frozenset[str]) -> frozenset[int]:
    """Return the terms that name any of some speakers."""
    return frozenset[int]().union(*map(_name, speakers))


@lru_cache(maxsize=1024)
def _name(actor: str) -> frozenset[int]:
    return frozenset(found_by(actor))


def largest(values: Floats, size: int) -> Ints:
    """Return the places of the largest values, in no order."""
    if len(values) <= size:
        return np.arange(len(values))
    if (
        len(values) > 4 * size
    ):  # a sixteenth of them tells about where those begin: few have to be put in order
        rank = size // 8 + 1
        likely = np.flatnonzero(values >= np.partition(values[::16], -rank)[-rank])
        if size < len(likely) < 8 * size:
            near = values[likely]
            best = likely[near >= np.partition(near, -size)[-size]]
            if len(best) == size:  # no other one is as large as the last of them
                return best
    return np.argpartition(-values, size - 1)[:size]
