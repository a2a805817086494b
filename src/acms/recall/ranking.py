"""Rank: the messages of a corpus that answer a query, best first, with the reasons for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from acms.recall.corpus import Field
from acms.recall.index import Floats, Ints
from acms.recall.query import Query
from acms.recall.scoring import SIGMA, Scores, order_by_cost, score_messages
from acms.recall.topic import contentless_terms, find_content_words
from acms.recall.vector_score import find_largest_indices
from acms.text.tokenizer import function_terms

CUTOFF = 0.25
"""Share of the best relevance below which a message does not answer (97.7 % of the evidence at 71 % of the tokens)."""
NEAR = 2.0
"""Standard deviations of meaning from which a message is about the question although it shares no word with it."""
SHORT = 16
"""Tokens of a short entry: a budget has one candidate for each so many."""
CANDIDATES = 256
"""Entries that planning considers, at least."""
FEWEST = 64
"""Candidates that are kept however small the budget is."""
MARKED = 64
"""Marked entries that planning considers, however many unmarked ones answer better."""


class Ranking:
    """The messages in force of a corpus, ordered by relevance over the root of their tokens."""

    def __init__(
        self, field: Field, query: Query, size: int = CANDIDATES, allowed: NDArray[np.bool_] | None = None
    ) -> None:
        """Rank a corpus; the rarity of words comes from all of it, but only `allowed` entries become candidates."""
        self.field = field
        self.query = query.resolve_names(lambda number: len(field.snapshot.postings(number)) > 0)
        #: Which entries may be shown; None for all.
        self.allowed = allowed
        self.scores: Scores = score_messages(field, self.query, asking=_find_asking(field, self.query))
        #: Share of the messages that have a vector in the space of the query; 1 when nothing is compared by meaning.
        self.coverage = self.scores.coverage
        self._order = order_by_cost(self.scores.marked, field.column("tokens"))
        self.best = float(self._order.max(initial=0.0))
        #: Companions by place, each with the score of the best statement that it stands beside.
        self._companions: dict[int, float] = {}
        #: Places that are shown whatever they answer.
        self._held: frozenset[int] = frozenset()
        #: Places before this one are of other sessions, which say nothing about the query.
        self._closed = 0
        #: Places of the candidates, best first.
        self.places = self._find_candidates(size)

    def _find_candidates(self, size: int) -> Ints:
        order = self._order if self.allowed is None else self._order * self.allowed
        external = self.field.external
        places = _largest_of_each(order, external, size)
        places = places[order[places] > 0]
        places = places[np.lexsort((places, -order[places]))]
        marked = self.field.marked()
        if marked is None or len(places) == len(self.field):
            return places
        marked[places] = False
        if external is not None:
            marked &= ~external
        others = np.flatnonzero(marked & (order > 0))
        others = others[find_largest_indices(order[others], MARKED)]
        return np.concatenate([places, others[np.lexsort((others, -order[others]))]])

    def keep(self, tokens: int) -> None:
        """Keep the best candidates that hold so many tokens, a few at least, and all that are marked."""
        held = self.field.column("tokens")[self.places]
        if self.field.external is not None:  # external text keeps no other text out
            held = held * ~self.field.external[self.places]
        held = held.cumsum(dtype=np.int64)
        size = max(FEWEST, int(held.searchsorted(tokens)) + 1)
        if size >= len(self.places):
            return
        rest, marked = self.places[size:], self.field.marked()
        stays = np.zeros(len(rest), bool) if marked is None else marked[rest]
        self.places = np.concatenate([self.places[:size], rest[stays]])

    def keep_all(self) -> None:
        """Make every entry that may be shown a candidate, even those that do not answer."""
        places = np.arange(len(self.field)) if self.allowed is None else np.flatnonzero(self.allowed)
        self.places = places[np.lexsort((places, -self._order[places]))]

    def hold(self, places: Ints) -> None:
        """Make allowed messages that say something candidates above the cutoff, whatever their relevance."""
        held = places if self.allowed is None else places[self.allowed[places]]
        held = held[[not self._says_nothing(place) for place in held.tolist()]]
        self._held = frozenset(held.tolist())
        others = np.setdiff1d(held, self.places)
        self.places = np.concatenate([self.places, others[np.lexsort((others, -self._order[others]))]])

    def close_others(self) -> None:
        """Put messages of other sessions below the cutoff, except those that are held."""
        self._closed = self.field.start

    def accompany(self, leaders: Mapping[int, int]) -> None:
        """Let messages be chosen right after others, whatever they are worth themselves; maps each to its leader."""
        scores = self.scores_of(np.array(list(leaders.values()), np.int64))
        self._companions = dict(zip(leaders, scores, strict=True))
        ranked = set(self.places.tolist())
        new = [place for place in leaders if place not in ranked]
        self.places = np.concatenate([self.places, np.array(new, np.int64)])

    def allows(self, place: int) -> bool:
        """Whether an entry may be shown."""
        return self.allowed is None or bool(self.allowed[place])

    # ── figures of messages ─────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def relevances(self) -> Floats:
        """Return how far each message answers by itself, in [0, 1], whatever else the log holds.

        The larger of the share of the query's information in it, and its standard deviations of meaning above the mean
        over six.
        """
        meaning = self.scores.meaning_own
        if meaning is None:
            return self.scores.information
        return np.maximum(self.scores.information, np.clip(meaning / np.float32(SIGMA), 0, 1))

    @cached_property
    def on_topic(self) -> NDArray[np.bool_]:
        """Return which messages share a content word with the query, or are near to it in meaning.

        The name of a speaker counts only if it is the sole content word, because all messages of that speaker hold it.
        No message is on topic for a greeting, even if it holds the same words.
        """
        found = np.zeros(len(self.field), bool)
        content = find_content_words(self.query)
        if not content:
            return found
        unnamed = [place for place in content if not self.query.words[place].is_name]
        for place in unnamed or content:
            found[self.scores.holders[place]] = True
        if self.scores.meaning_own is not None:
            found |= self.scores.meaning_own >= NEAR
        return found

    def distances(self, places: Ints) -> list[int]:
        """Return the distance of each message from the nearest on-topic one: 0 if on topic, 1 if adjacent, else 2.

        Held messages and companions count as on topic. A message without any content word has distance 3.
        """
        near = np.zeros(len(self.field) + 2, bool)
        near[:-2] |= self.on_topic
        near[2:] |= self.on_topic
        found = np.where(near[1:-1], 1, 2)
        found[self.on_topic] = 0
        found[[*self._companions, *self._held]] = 0
        distances: list[int] = found[places].tolist()
        return [
            3 if distance and self._says_nothing(place) else distance
            for distance, place in zip(distances, places.tolist(), strict=True)
        ]

    def _says_nothing(self, place: int) -> bool:
        """Whether all words of a message are function words and courtesies; one that is withheld has none."""
        numbers, _ = self.field.snapshot.terms_of(self.field.document(place))
        return len(numbers) > 0 and contentless_terms().issuperset(numbers.tolist())

    @cached_property
    def least(self) -> float:
        """Return the relevance in nats at which `relevant_only` stops."""
        return CUTOFF * float(self.scores.plain.max(initial=0.0))

    def find_answers(self, places: Ints) -> NDArray[np.bool_]:
        """Return which messages are above the cutoff, or stand beside one that is.

        A mark lifts one message and hides no other.
        """
        plain = self.scores.plain[places]
        above = (plain.astype(float) >= self.least) | (self.scores.marked[places] > plain)
        beside = [place in self._companions for place in places.tolist()]
        held = [place in self._held for place in places.tolist()]
        answers = (plain > 0) & above | np.array(beside, bool)
        return answers & (places >= self._closed) | np.array(held, bool)

    def why_no_answer(self, place: int) -> str:
        """Return why a message is below the cutoff."""
        if place < self._closed:
            return (
                "the query names no speaker, and no other session holds half of its words, or two rare ones"
            )
        return "below a quarter of the best relevance"

    def relevance(self, place: int) -> float:
        """Return how far a message answers by itself, in [0, 1]."""
        return float(self.relevances[place])

    def score(self, place: int) -> float:
        """Return the cost-scaled score of a message, in [0, 1]; 1 is the best."""
        return self.scores_of(np.array([place]))[0]

    def scores_of(self, places: Ints) -> list[float]:
        """Return the cost-scaled scores of some messages, in [0, 1]."""
        # rounded, for the last bits depend on how an index is cut into segments
        found: list[float] = (self._order[places].astype(np.float64) / (self.best or 1)).round(6).tolist()
        return found

    def leader_scores(self, places: Ints) -> list[float]:
        """Return the scores of the statements that some messages stand beside; 0 for one that stands alone."""
        return [self._companions.get(place, 0.0) for place in places.tolist()]

    def marks_of(self, places: Ints) -> list[float]:
        """Return the contributions of marks to some messages, as shares of the best relevance without marks."""
        best = np.float32(float(self.scores.plain.max(initial=0.0)) or 1.0)
        found: list[float] = ((self.scores.marked[places] - self.scores.plain[places]) / best).tolist()
        return found

    def score_at_cost(self, place: int, tokens: int) -> float:
        """Return the cost-scaled score of a message for which so many tokens are shown."""
        at_cost = order_by_cost(self.scores.marked[[place]], np.array([tokens], np.uint32))
        return float(at_cost[0]) / (self.best or 1)

    def parts(self, place: int) -> Mapping[str, float]:
        """Return the contribution of each signal to the relevance of a message, as shares of the best."""
        scores = self.scores
        best = float(scores.marked.max(initial=0.0)) or 1.0
        found = {"message": float(scores.own[place]), "near": float(scores.near[place])}
        if scores.meaning is not None:
            found["meaning"] = SIGMA * max(0.0, float(scores.meaning[place]))
        found["mark"] = float(scores.marked[place] - scores.plain[place])
        return {name: round(value / best, 4) for name, value in found.items() if value > 0}


def repeats_query(field: Field, query: Query, place: int) -> bool:
    """Whether an entry holds just the words of a query: it asks, and states nothing."""
    numbers, _ = field.snapshot.terms_of(field.document(place))
    said = frozenset(numbers.tolist())
    if not all(word.terms[0] in said for word in query.words):
        return False
    asked = {number for word in query.words for number in word.terms}
    return said - function_terms() <= asked


def _find_asking(field: Field, query: Query) -> int:
    """Return the place where the query itself was just said: the newest entry, or the newest of the user; else -1."""
    if not len(field) or not query.words:
        return -1
    newest = [len(field) - 1] if field.newest_of_user < 0 else [len(field) - 1, field.newest_of_user]
    return next((place for place in newest if repeats_query(field, query, place)), -1)


def _largest_of_each(values: Floats, external: NDArray[np.bool_] | None, size: int) -> Ints:
    """Return the places of the largest values: so many of external text and as many of all other text."""
    if external is None:
        return find_largest_indices(values, size)
    groups = [np.flatnonzero(external), np.flatnonzero(~external)]
    return np.concatenate([places[find_largest_indices(values[places], size)] for places in groups])
