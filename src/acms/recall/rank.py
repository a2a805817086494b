"""Rank: how well the entries in force answer a query, by shared words, by meaning, and by what stands around them.

Words are weighed as in BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009), but a text is
measured against a fixed length instead of the average one, so that a field of many short messages speaks and one of a
few long ones does not. Four fields are added: the message, its neighbourhood, everything said on its day, and, for the
message after a question, the question. Meaning is the best cosine of any of its vectors. Nothing is relative to the
other results, so a handful of messages ranks as well as a hundred thousand (decision 0015). No recency enters (decision
0007). All statistics are those of the entries the reader sees, so a past version ranks as it did then (rule 2.9).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import pairwise
from math import exp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from acms.recall.corpus import AFTER, BEFORE, Field, sum_around
from acms.recall.index import Snapshot
from acms.recall.query import of_replies, subject
from acms.recall.synonyms import NUMBERS, Related, lent_by
from acms.recall.time_ranges import Span, nearness, spans
from acms.recall.vector_score import Meaning, Usual, answered, by_meaning, cosines, risen, slots_of, usual
from acms.recall.vectors import Floats, Ints
from acms.recall.weights import Weights
from acms.text.tokenizer import found_by, names, rarity, term, terms, words

TERMS = 16
"""Terms of a query that count: the rarest ones."""
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
PARTIAL = 0.45
"""What an entry is worth to which markers raise one that lacks a part of the query, at most."""
HELD = 0.6
"""Share of what was asked, by weight or by meaning, that an entry holds which markers raise without bound."""
MARKED = 64
"""Marked entries that planning considers, however many unmarked ones answer better."""


# ── words ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Words(NamedTuple):
    """How well every entry in force answers by words: each field, weighted, over the most a text could reach."""

    fields: Mapping[str, Floats]
    #: Query terms that occur anywhere, by themselves or by related ones.
    known: int
    #: How many entries hold each query term.
    often: Mapping[int, int]


def by_words(field: Field, query: Sequence[int], lent: Sequence[Sequence[int]] = ()) -> Words:
    """Score by words; each group of `lent` stands for one that is asked and that nobody has said."""
    size = len(field)
    message, window = np.zeros(size, np.float32), np.zeros(size, np.float32)
    held = [(number, *field.postings(number)) for number in dict.fromkeys(query)]
    found = sorted((one for one in held if len(one[1])), key=lambda one: (len(one[1]), one[0]))[:TERMS]
    often = {number: len(places) for number, places, _ in held}
    weights = field.weights
    weighed = [(rarity(size, len(places)), places, counts) for _, places, counts in found]
    # Also the terms that nobody has said: a question of unknown words is answered less by the few that are known.
    best = sum(weight for weight, _, _ in weighed)
    best += rarity(size, 0) * sum(1 for one in held if not len(one[1]))
    for places, counts in filter(None, (lent_by(field, group) for group in lent)):
        weighed.append((weights.related * rarity(size, len(places)), places, counts))
    if not weighed:
        return Words(dict.fromkeys(("message", "window", "day", "question"), message), 0, often)
    own, around, by_day, codes, question = field.measures[:5]
    day = np.zeros(len(by_day), np.float32)
    wide = np.zeros(size + 2 * _MARGIN, np.float32)
    spread = wide[_MARGIN:-_MARGIN]
    sums, part = np.empty(size, np.float32), np.empty(size, np.float32)
    for weight, places, counts in weighed:
        gain = np.float32(weight)
        spread[places] = counts
        if len(places) * 8 < size:
            message[places] += gain * counts / (counts + own[places])
        else:
            np.add(spread, own, out=part)
            np.multiply(spread, gain, out=sums)
            np.divide(sums, part, out=part)
            message += part
        if len(places) * 40 < size:
            near, values = _near(wide, places)
            spread[places] = 0
            # A place that comes twice comes with the same value, and is read before it is written.
            window[near] += gain * values / (values + around[near])
        else:
            sum_around(spread, sums)
            spread[places] = 0
            np.add(sums, around, out=part)
            np.divide(sums, part, out=part)
            part *= gain
            window += part
        in_day = np.bincount(codes[places], counts, len(by_day)).astype(np.float32)
        day += gain * in_day / (in_day + by_day)
    scale = 1 / (best * weights.words)
    before = np.zeros(size, np.float32)
    np.multiply(message[:-1], question[1:], out=before[1:])
    message *= np.float32(scale * weights.message)
    window *= np.float32(scale * weights.window)
    few = field.few
    window[few[message[few] == 0]] *= np.float32(weights.remark)
    day *= np.float32(scale * weights.day)
    before *= np.float32(scale * weights.question)
    return Words(
        {"message": message, "window": window, "day": day.take(codes), "question": before},
        len(weighed),
        often,
    )


_SHIFTS = np.arange(-AFTER, BEFORE + 1)[:, None]
_MARGIN = BEFORE + AFTER
_REACH = np.arange(2 * _MARGIN + 1)[:, None]


def _near(wide: Floats, places: Ints) -> tuple[Ints, Floats]:
    """Return the places whose neighbourhood reaches some, and the sum of the values around each.

    The values have a margin of zeros on both sides, so that no place needs a check. The places ascend, but for
    summaries, which stand where the part began that they stand for.
    """
    held = wide[places + _REACH]
    near = (places + _SHIFTS).ravel()
    sums = held[: len(_SHIFTS)].copy()
    for shift in range(1, len(_SHIFTS)):  # of whole numbers, so in any order they are the same
        sums += held[shift : shift + len(_SHIFTS)]
    sums = sums.ravel()
    last = len(wide) - 2 * _MARGIN - 1
    if places.min() < AFTER or places.max() > last - BEFORE:
        inside = (near >= 0) & (near <= last)
        near, sums = near[inside], sums[inside]
    return near, sums


# ── both ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Question:
    """What a recall asks with: the terms of the query, its vector and the space that one belongs to."""

    terms: tuple[int, ...]
    space: str | None = None
    vector: Floats | None = None
    #: Whether it asks for a time: "when did …", "how long …".
    dated: bool = False
    #: The stretches of time it names.
    when: tuple[Span, ...] = ()
    #: Of each name in it: the terms of its words, and those under which it is found beside them.
    names: tuple[tuple[frozenset[int], tuple[int, ...]], ...] = ()
    #: Whether it asks for what the assistant said: "what did you recommend?".
    replies: bool = False
    #: Terms that stand for one of it that nobody has said: groups, each as good as any of its terms.
    lent: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(
        cls,
        query: str,
        space: str | None = None,
        vector: Floats | None = None,
        now: datetime | None = None,
    ) -> Question:
        """Return a query as the index asks it; `now` is what "last week" is counted from."""
        about = subject(query)
        said = words(about)
        return cls(
            tuple(dict.fromkeys(terms(said))),
            space,
            vector,
            _dated(said),
            () if now is None else spans(query, now),
            tuple((frozenset(terms(words(name.said))), name.also) for name in names(about)),
            of_replies(query),
        )

    def within(self, snapshot: Snapshot) -> Question:
        """Return it with its names under all terms by which a log knows them.

        Words of a name that nobody has said are left out when it is known otherwise: they would only make every answer
        look worse.
        """
        if not self.names:
            return self
        asked = dict.fromkeys(self.terms)
        for own, also in self.names:
            known = [number for number in also if len(snapshot.postings(number))]
            if known:
                for number in own & asked.keys():
                    if not len(snapshot.postings(number)):
                        del asked[number]
                asked.update(dict.fromkeys(known))
        return replace(self, terms=tuple(asked), names=())

    def lending(self, snapshot: Snapshot, related: Related) -> Question:
        """Return it with terms related to those that nobody has said, and with numbers where it asks how many."""
        asked = frozenset(self.terms)
        unsaid = [number for number in self.terms if not len(snapshot.postings(number))]
        groups = [tuple(one for one in related.of(number) if one not in asked) for number in unsaid]
        if _MANY in asked:
            groups.append(NUMBERS)
        return replace(self, lent=tuple(filter(None, groups))) if any(groups) else self


_MANY = term("many")


_PERIODS = frozenset("date day month time week year".split())


def _dated(said: Sequence[str]) -> bool:
    return "when" in said[:3] or any(
        (first in ("what", "which") and second in _PERIODS) or (first == "how" and second == "long")
        for first, second in pairwise(said)
    )


class Raised(NamedTuple):
    """What an entry is worth because it takes the place of an earlier one."""

    #: Version of the earlier one.
    after: int
    relevance: float
    worth: float


class Ranking:
    """The entries in force that answer a query best, and by how much each signal spoke for them."""

    def __init__(
        self,
        field: Field,
        fields: Mapping[str, Floats],
        lexical: Floats,
        meant: Floats | None,
        factor: Floats,
        places: Ints,
        *,
        coverage: float,
        known: int,
        often: Mapping[int, int],
        space: str | None,
        dimension: int = 0,
        usual: Usual | None = None,
    ) -> None:
        self.field = field
        self._fields = fields
        self._lexical = lexical
        self._meant = meant
        self._factor = factor
        #: Places of the candidates, best first.
        self.places = places
        #: Share of the entries that have a vector in the space of the query; 1 when nobody asked by meaning.
        self.coverage = coverage
        #: Terms of the query that occur anywhere, by themselves or by related ones.
        self.known = known
        #: How many entries hold each of its terms.
        self.often = often
        #: Cosines of the query and an entry that has nothing to do with it; None when nobody asked by meaning.
        self.usual = usual
        #: By place, what is worth more than its own words and meaning say.
        self.raised: dict[int, Raised] = {}
        #: By place, the version that it takes the place of and is better than by itself, where another may judge again.
        self.above: dict[int, int] = {}
        #: Space and dimension of the query's vector; None when nobody asked by meaning.
        self.space = space
        self.dimension = dimension

    def keep(self, tokens: int) -> None:
        """Keep the best candidates that hold this many tokens together, a few at least, and the marked ones."""
        held = self.field.column("tokens")[self.places].cumsum(dtype=np.int64)
        size = max(FEWEST, int(held.searchsorted(tokens)) + 1)
        if size < len(self.places):
            marked = self.field.marked()
            rest = self.places[size:]
            more = rest[marked[rest]] if marked is not None else rest[:0]
            self.places = np.concatenate([self.places[:size], more])

    def worth(self, places: Ints) -> tuple[list[float], list[float]]:
        """Return the relevance of some entries, and what their scores are made of by `raise_score`."""
        near = self._fields["window"][places] > 0
        if "time" in self._fields:
            near |= self._fields["time"][places] >= np.float32(self.field.weights.then)
        relevance: Floats = self._lexical[places]
        score = self._scored(relevance, places)
        if self._meant is not None:
            meant = self._meant[places]
            near |= meant > 0
            relevance = np.asarray(relevance + meant - relevance * meant, np.float32)
        found: list[float] = (np.minimum(np.maximum(relevance, 0), 1) * near).tolist()
        worth: list[float] = (np.maximum(score, 0) * near).tolist()
        if self.raised:
            for index, place in enumerate(places.tolist()):
                if place in self.raised:
                    _, found[index], worth[index] = self.raised[place]
        return found, worth

    def adjust(self, factor: Floats) -> None:
        """Multiply the scores of the candidates, one factor each, and put them in order again."""
        whole = np.ones(len(self.field), np.float32)
        whole[self.places] = factor
        self._factor = np.asarray(self._factor * whole, np.float32)
        score = self._scored(self._lexical[self.places], self.places)
        self.places = self.places[np.lexsort((self.places, -score))]

    def meaning(self, places: Ints) -> Floats:
        """Return how well some entries answer by meaning, in [0, 1]."""
        return np.zeros(len(places), np.float32) if self._meant is None else self._meant[places]

    def _scored(self, lexical: Floats, places: Ints) -> Floats:
        meant = None if self._meant is None else self._meant[places]
        return _scored(lexical, meant, self._factor, places, self.field.weights)

    def relevance(self, place: int) -> float:
        """Return how well an entry answers, in [0, 1]; 0 when neither it nor a neighbour has anything to do with it."""
        return self.worth(np.array([place]))[0][0]

    def parts(self, place: int) -> Mapping[str, float]:
        """Return what each signal adds to the relevance of an entry."""
        found = {name: float(values[place]) for name, values in self._fields.items()}
        if self._meant is not None:
            found["meaning"] = float(self._meant[place]) * self.field.weights.meaning
        parts = {name: round(value, 4) for name, value in found.items() if value > 0}
        raised = self.raised.get(place)
        if raised is not None:
            parts[f"succeeds v{raised.after}"] = round(raised.worth, 4)
        return parts

    def bound(self, places: Ints, worth: Sequence[float], boosts: Sequence[float]) -> list[float]:
        """Return by how much markers raise some entries: by less where one holds too little of what was asked.

        What lacks a part of the query is raised to `PARTIAL` at most, which an entry that holds all of it is worth
        without markers. What is raised already because it takes the place of another one stays as it is.
        """
        found = list(boosts)
        over = [
            index
            for index, boost in enumerate(found)
            if boost and worth[index] * (1 + boost) > PARTIAL and int(places[index]) not in self.raised
        ]
        if not over:
            return found
        those = places[over]
        held = self._fields["message"][those] * (1 + self.field.measures[0][those])
        held *= np.float32(self.field.weights.words / self.field.weights.message / self._said)
        if self._meant is not None:
            held = np.maximum(held, self._meant[those])
        for index, share in zip(over, held.tolist(), strict=True):
            if share < HELD:
                found[index] = max(0.0, PARTIAL / worth[index] - 1)
        return found

    @cached_property
    def _said(self) -> float:
        """Return what the terms of the query that anybody said weigh, as a share of all of them."""
        size = len(self.field)
        weights = sorted((count, rarity(size, count)) for count in self.often.values())
        said = [weight for count, weight in weights if count][:TERMS]
        return (
            sum(said) / (sum(said) + sum(weight for count, weight in weights if not count)) if said else 1.0
        )

    def score(self, place: int, boost: float = 0.0) -> float:
        """Return the score of an entry in [0, 1): its relevance, by whose it is, raised by its markers."""
        places = np.array([place])
        worth = self.worth(places)[1]
        return raise_score(worth[0], self.bound(places, worth, [boost])[0])


def raise_score(worth: float, boost: float) -> float:
    """Return the score of an entry in [0, 1) by what it is worth and the boost of its markers."""
    return 1 - exp(-2 * worth * (1 + boost))


def _scored(lexical: Floats, meant: Floats | None, factor: Floats, places: Ints, weights: Weights) -> Floats:
    """Return what entries are ranked by, from their answers by words and by meaning, given for these places."""
    own = factor if len(factor) == 1 else factor[places]
    if meant is None:
        return np.asarray(lexical * own, np.float32)
    return np.asarray((lexical + meant * np.float32(weights.meaning)) * own, np.float32)


def rank(field: Field, asked: Question, size: int = CANDIDATES) -> Ranking:
    """Rank the entries in force; `size` of them become candidates."""
    weights = field.weights
    found: Meaning | None = None
    if asked.vector is not None and asked.space is not None:
        # First: it goes through so much memory that nothing stays at hand of what was made before it.
        found = by_meaning(field, asked.space, asked.vector)
    said = by_words(field, asked.terms, asked.lent)
    if asked.when:
        time = np.float32(weights.then) * nearness(asked.when, field.column("minute"))
        said = said._replace(fields={**said.fields, "time": time})
    first, *rest = said.fields.values()
    lexical = first + rest[0]
    for part in rest[1:]:
        lexical += part
    factor = field.factor(_named(field, asked.terms), asked.dated, asked.replies)
    meant: Floats | None = None
    level: Usual | None = None
    coverage = 1.0
    dimension = 0
    if found is None or asked.vector is None or asked.space is None:
        places = largest(lexical * factor, size)
    else:
        dimension = len(asked.vector)
        coverage = min(1.0, found.known / field.texts) if field.texts else 1.0
        level = usual(field, asked.space, asked.vector, found)
        whole = risen(found.whole, level.whole)
        same = found.best is found.whole and level.best == level.whole
        best = whole.copy() if same else risen(found.best, level.best)
        asks = field.measures.question
        spare = np.zeros_like(whole)
        np.multiply(whole[:-1], asks[1:], out=spare[1:])
        meant = answered(whole, best, spare, weights)
        both = np.multiply(meant, np.float32(weights.meaning), out=spare)
        both += lexical
        both *= factor
        places = largest(both, size if found.exact else max(size, _rescored(field, found, size)))
        there = np.zeros(len(field), bool)
        there[places] = there[places[asks[places] > 0] - 1] = True  # also what they answer
        more = np.flatnonzero(there)
        there[more] = False
        there[places] = True
        own = np.flatnonzero(there[more])
        places = more[own]
        exact = cosines(field, asked.space, asked.vector, more)
        whole[more] = risen(exact.whole, level.whole)
        meant[places] = answered(
            whole[places], risen(exact.best[own], level.best), whole[places - 1] * asks[places], weights
        )
    score = _scored(lexical[places], None if meant is None else meant[places], factor, places, weights)
    if len(places) > size:  # few have to be put in order
        top = score >= np.partition(score, -size)[-size]
        places, score = places[top], score[top]
    places = places[np.lexsort((places, -score))][:size]
    marked = field.marked()
    if marked is not None and len(places) < len(field):
        marked[places] = False
        others = np.flatnonzero(marked)
        near = said.fields["window"][others] > 0
        others = others[near if meant is None else near | (meant[others] > 0)]
        score = _scored(lexical[others], None if meant is None else meant[others], factor, others, weights)
        top = largest(score, MARKED)
        others, score = others[top], score[top]
        places = np.concatenate([places, others[np.lexsort((others, -score))]])
    return Ranking(
        field,
        said.fields,
        lexical,
        meant,
        factor,
        places,
        coverage=coverage,
        known=said.known,
        often=said.often,
        space=asked.space,
        dimension=dimension,
        usual=level,
    )


def _rescored(field: Field, found: Meaning, size: int) -> int:
    """Return how many entries are compared exactly, of those that sign bits rank first."""
    least, most = RESCORED[0], RESCORED[-1]
    deep = int(DEEP * SHORT * size / max(1.0, field.tokens))
    return min(max(least, min(most, deep)), VECTORS * found.known // max(1, found.vectors))


ALIKE = 0.95
"""Cosine from which two entries with the same numbers and the same negations say the same."""
COMPARED = 112
"""Best candidates whose vectors are compared with each other."""


def alike(field: Field, ranking: Ranking) -> list[int]:
    """Return for each candidate the index of the best one that says the same: its own when there is no better one.

    Two entries say the same when they hold the same terms, or when their vectors almost coincide; but never when the
    numbers in them differ or one of them says no.
    """
    documents = field.documents(ranking.places)
    prints = field.snapshot.column("print")[documents].tolist()
    exact = field.snapshot.column("exact")[documents].tolist()
    found = list(range(len(prints)))
    if len(set(prints)) < len(prints):
        first: dict[tuple[int, int], int] = {}
        for index, key in enumerate(zip(prints, exact, strict=True)):
            if key[0]:
                found[index] = first.setdefault(key, index)
    if ranking.space is not None:
        same = _coincide(field, ranking.space, ranking.dimension, documents[:COMPARED])
        for index, other in np.argwhere(same).tolist() if same.any() else ():
            if (
                other < index
                and found[index] == index
                and found[other] == other
                and exact[index] == exact[other]
            ):
                found[index] = other
    return [found[better] for better in found]


def _coincide(field: Field, space: str, dimension: int, documents: Ints) -> NDArray[np.bool_]:
    """Return which documents have almost the same vector as which other ones."""
    rows = wholes(field, space, dimension, documents)
    same = np.asarray(rows @ rows.T >= ALIKE)
    np.fill_diagonal(same, False)
    return same


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


def speaks_of(actor: str, said: Iterable[str]) -> bool:
    """Return whether some words name a speaker."""
    return not _name(actor).isdisjoint(map(term, said))


def unnamed(query: str, speakers: Iterable[str]) -> str:
    """Return what a query is about without the names of speakers; with them when nothing else is asked.

    Every vector of a message tells who speaks. With the name a query would be nearest to whatever the one says, and
    that a speaker is named counts already.
    """
    query = subject(query)
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
