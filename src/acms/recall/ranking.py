"""Rank: the messages of a corpus that answer a query, best first, with the reasons for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from acms.recall.corpus import Corpus
from acms.recall.index import Floats, Ints
from acms.recall.query import Query, contentless_terms, find_content_words
from acms.recall.scoring import SIGMA, Scores, order_by_cost, score_messages
from acms.recall.vector_score import find_largest_indices
from acms.text.tokenizer import function_terms

CUTOFF = 0.25
"""Share of the best relevance below which a message does not answer (97.7 % of the evidence at 71 % of the tokens)."""
NEAR = 2.0
"""Standard deviations of meaning from which a message is about the question although it shares no word with it."""

CANDIDATES = 256
"""Entries that planning considers, at least."""


class Ranking:
    """The active messages of a corpus, ordered by relevance over the root of their tokens."""

    def __init__(
        self, corpus: Corpus, query: Query, size: int = CANDIDATES, allowed: NDArray[np.bool_] | None = None
    ) -> None:
        """Rank a corpus; the rarity of words comes from all of it, but only `allowed` entries become candidates."""
        self.corpus = corpus
        self.query = query.resolve_names(lambda term: len(corpus.snapshot.postings(term)) > 0)
        #: Which entries may be shown; None for all.
        self.allowed = allowed
        query_position = _find_query(corpus, self.query)
        self.scores: Scores = score_messages(corpus, self.query, asking=query_position)
        #: Share of the messages that have a vector in the space of the query; 1 if nothing is compared by meaning.
        self.coverage = self.scores.coverage
        self._order = order_by_cost(self.scores.marked, corpus.column("tokens"))
        self.best = float(self._order.max(initial=0.0))
        #: Companions by position, each with the score of the best statement that it accompanies.
        self._companions: dict[int, float] = {}
        #: Positions that are shown whatever their relevance.
        self._held: frozenset[int] = frozenset()
        #: Positions before this one are of other sessions, which say nothing about the query.
        self._closed = 0
        #: Positions of the candidates, best first.
        self.positions = self._find_candidates(size)

    def _find_candidates(self, size: int) -> Ints:
        """Return the best entries, and the best marked ones of the others."""
        order = self._order if self.allowed is None else self._order * self.allowed
        external = self.corpus.external
        best = _largest_of_each(order, external, size)
        best = best[order[best] > 0]
        marked = self.corpus.marked()
        if marked is None or len(best) == len(self.corpus):
            return _sort_by_score(best, order)
        marked[best] = False
        if external is not None:
            marked &= ~external
        others = np.flatnonzero(marked & (order > 0))
        others = others[find_largest_indices(order[others], 64)]  # however many marked ones there are
        return np.concatenate([_sort_by_score(best, order), _sort_by_score(others, order)])

    def keep(self, tokens: int) -> None:
        """Keep the best candidates that hold so many tokens, 64 at least, and all that are marked."""
        costs = self.corpus.column("tokens")[self.positions]
        if self.corpus.external is not None:  # external text displaces no other text
            costs = costs * ~self.corpus.external[self.positions]
        fitting = int(costs.cumsum(dtype=np.int64).searchsorted(tokens))
        size = max(64, fitting + 1)
        marked = self.corpus.marked()
        rest = self.positions[size:]
        marked_rest = rest[:0] if marked is None else rest[marked[rest]]
        self.positions = np.concatenate([self.positions[:size], marked_rest])

    def keep_all(self) -> None:
        """Make every entry that may be shown a candidate, even those that do not answer."""
        positions = np.arange(len(self.corpus)) if self.allowed is None else np.flatnonzero(self.allowed)
        self.positions = _sort_by_score(positions, self._order)

    def hold(self, positions: Ints) -> None:
        """Make allowed messages with content words candidates above the cutoff, whatever their relevance."""
        allowed = positions if self.allowed is None else positions[self.allowed[positions]]
        held = [position for position in allowed.tolist() if not self._is_contentless(position)]
        self._held = frozenset(held)
        others = np.setdiff1d(np.array(held, np.int64), self.positions)
        self.positions = np.concatenate([self.positions, _sort_by_score(others, self._order)])

    def close_others(self) -> None:
        """Put messages of other sessions below the cutoff, except those that are held."""
        self._closed = self.corpus.start

    def accompany(self, leaders: Mapping[int, int]) -> None:
        """Let messages be chosen right after others, whatever their own scores; maps each to its leader."""
        scores = self.scores_of(np.array(list(leaders.values()), np.int64))
        self._companions = dict(zip(leaders, scores, strict=True))
        ranked = set(self.positions.tolist())
        new = [position for position in leaders if position not in ranked]
        self.positions = np.concatenate([self.positions, np.array(new, np.int64)])

    def allows(self, position: int) -> bool:
        """Return whether an entry may be shown."""
        return self.allowed is None or bool(self.allowed[position])

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
        on_topic = np.zeros(len(self.corpus), bool)
        content = find_content_words(self.query)
        if not content:
            return on_topic
        unnamed = [index for index in content if not self.query.words[index].is_name]
        for index in unnamed or content:
            on_topic[self.scores.holders[index]] = True
        if self.scores.meaning_own is not None:
            on_topic |= self.scores.meaning_own >= NEAR
        return on_topic

    def distances(self, positions: Ints) -> list[int]:
        """Return the distance of each message from the nearest on-topic one: 0 if on topic, 1 if adjacent, else 2.

        Held messages and companions count as on topic. A message without any content word has distance 3.
        """
        adjacent = np.zeros(len(self.corpus) + 2, bool)
        adjacent[:-2] |= self.on_topic
        adjacent[2:] |= self.on_topic
        by_position = np.where(adjacent[1:-1], 1, 2)
        by_position[self.on_topic] = 0
        by_position[[*self._companions, *self._held]] = 0
        distances: list[int] = by_position[positions].tolist()
        for index, position in enumerate(positions.tolist()):
            if distances[index] and self._is_contentless(position):
                distances[index] = 3
        return distances

    def _is_contentless(self, position: int) -> bool:
        """Return whether a message has only function words and courtesies; a withheld one has no words at all."""
        terms, _ = self.corpus.snapshot.terms_of(self.corpus.document(position))
        return len(terms) > 0 and contentless_terms().issuperset(terms.tolist())

    @cached_property
    def cutoff(self) -> float:
        """Return the relevance in nats below which a message does not answer."""
        return CUTOFF * float(self.scores.plain.max(initial=0.0))

    def find_answers(self, positions: Ints) -> NDArray[np.bool_]:
        """Return which messages are above the cutoff, or accompany one that is.

        A mark lifts one message and hides no other.
        """
        plain = self.scores.plain[positions]
        is_lifted = self.scores.marked[positions] > plain
        is_above = (plain > 0) & ((plain.astype(float) >= self.cutoff) | is_lifted)
        listed = positions.tolist()
        accompanies = np.array([position in self._companions for position in listed], bool)
        is_held = np.array([position in self._held for position in listed], bool)
        is_open = positions >= self._closed
        return (is_above | accompanies) & is_open | is_held

    def why_no_answer(self, position: int) -> str:
        """Return why a message is below the cutoff."""
        if position < self._closed:
            return (
                "the query names no speaker, and no other session holds half of its words, or two rare ones"
            )
        return "below a quarter of the best relevance"

    def relevance(self, position: int) -> float:
        """Return how far a message answers by itself, in [0, 1]."""
        return float(self.relevances[position])

    def score(self, position: int) -> float:
        """Return the cost-scaled score of a message, in [0, 1]; 1 is the best."""
        return self.scores_of(np.array([position]))[0]

    def scores_of(self, positions: Ints) -> list[float]:
        """Return the cost-scaled scores of some messages, in [0, 1]."""
        shares = self._order[positions].astype(np.float64) / (self.best or 1)
        rounded: list[float] = shares.round(6).tolist()  # the last bits depend on the segments of an index
        return rounded

    def leader_scores(self, positions: Ints) -> list[float]:
        """Return the scores of the statements that some messages accompany; 0 for any other message."""
        return [self._companions.get(position, 0.0) for position in positions.tolist()]

    def marks_of(self, positions: Ints) -> list[float]:
        """Return the contributions of marks to some messages, as shares of the best relevance without marks."""
        best = np.float32(float(self.scores.plain.max(initial=0.0)) or 1.0)
        lifts = self.scores.marked[positions] - self.scores.plain[positions]
        shares: list[float] = (lifts / best).tolist()
        return shares

    def score_at_cost(self, position: int, tokens: int) -> float:
        """Return the cost-scaled score of a message for which so many tokens are shown."""
        at_cost = order_by_cost(self.scores.marked[[position]], np.array([tokens], np.uint32))
        return float(at_cost[0]) / (self.best or 1)

    def parts(self, position: int) -> Mapping[str, float]:
        """Return the contribution of each signal to the relevance of a message, as shares of the best."""
        scores = self.scores
        best = float(scores.marked.max(initial=0.0)) or 1.0
        signals = {"message": float(scores.own[position]), "near": float(scores.near[position])}
        if scores.meaning is not None:
            signals["meaning"] = SIGMA * max(0.0, float(scores.meaning[position]))
        signals["mark"] = float(scores.marked[position] - scores.plain[position])
        return {name: round(value / best, 4) for name, value in signals.items() if value > 0}


def repeats_query(corpus: Corpus, query: Query, position: int) -> bool:
    """Return whether an entry holds just the words of a query: it asks, and states nothing."""
    numbers, _ = corpus.snapshot.terms_of(corpus.document(position))
    terms = frozenset(numbers.tolist())
    if not all(word.terms[0] in terms for word in query.words):
        return False
    query_terms = {term for word in query.words for term in word.terms}
    return terms - function_terms() <= query_terms


def _find_query(corpus: Corpus, query: Query) -> int:
    """Return the position of the query itself: the newest entry, or the newest of the user; else -1."""
    if not len(corpus) or not query.words:
        return -1
    for position in (len(corpus) - 1, corpus.newest_of_user):
        if position >= 0 and repeats_query(corpus, query, position):
            return position
    return -1


def _sort_by_score(positions: Ints, order: Floats) -> Ints:
    """Return positions by score, best first, those with equal scores oldest first."""
    return positions[np.lexsort((positions, -order[positions]))]


def _largest_of_each(values: Floats, external: NDArray[np.bool_] | None, size: int) -> Ints:
    """Return the positions of the largest values: so many of external text and as many of all other text."""
    if external is None:
        return find_largest_indices(values, size)
    groups = [np.flatnonzero(external), np.flatnonzero(~external)]
    return np.concatenate([positions[find_largest_indices(values[positions], size)] for positions in groups])
