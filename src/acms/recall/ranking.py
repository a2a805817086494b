"""Rank: the messages of a corpus that answer a query, best first, with the reasons for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from acms.recall.corpus import Corpus
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
        self, corpus: Corpus, query: Query, size: int = CANDIDATES, allowed: NDArray[np.bool_] | None = None
    ) -> None:
        """Rank a corpus; the rarity of words comes from all of it, but only `allowed` entries become candidates."""
        self.corpus = corpus
        self.query = query.resolve_names(lambda number: len(corpus.snapshot.postings(number)) > 0)
        #: Which entries may be shown; None for all.
        self.allowed = allowed
        self.scores: Scores = score_messages(corpus, self.query, asking=_find_asking(corpus, self.query))
        #: Share of the messages that have a vector in the space of the query; 1 when nothing is compared by meaning.
        self.coverage = self.scores.coverage
        self._order = order_by_cost(self.scores.marked, corpus.column("tokens"))
        self.best = float(self._order.max(initial=0.0))
        #: Companions by position, each with the score of the best statement that it stands beside.
        self._companions: dict[int, float] = {}
        #: Places that are shown whatever they answer.
        self._held: frozenset[int] = frozenset()
        #: Places before this one are of other sessions, which say nothing about the query.
        self._closed = 0
        #: Places of the candidates, best first.
        self.positions = self._find_candidates(size)

    def _find_candidates(self, size: int) -> Ints:
        order = self._order if self.allowed is None else self._order * self.allowed
        external = self.corpus.external
        positions = _largest_of_each(order, external, size)
        positions = positions[order[positions] > 0]
        positions = positions[np.lexsort((positions, -order[positions]))]
        marked = self.corpus.marked()
        if marked is None or len(positions) == len(self.corpus):
            return positions
        marked[positions] = False
        if external is not None:
            marked &= ~external
        others = np.flatnonzero(marked & (order > 0))
        others = others[find_largest_indices(order[others], MARKED)]
        return np.concatenate([positions, others[np.lexsort((others, -order[others]))]])

    def keep(self, tokens: int) -> None:
        """Keep the best candidates that hold so many tokens, a few at least, and all that are marked."""
        held = self.corpus.column("tokens")[self.positions]
        if self.corpus.external is not None:  # external text keeps no other text out
            held = held * ~self.corpus.external[self.positions]
        held = held.cumsum(dtype=np.int64)
        size = max(FEWEST, int(held.searchsorted(tokens)) + 1)
        if size >= len(self.positions):
            return
        rest, marked = self.positions[size:], self.corpus.marked()
        stays = np.zeros(len(rest), bool) if marked is None else marked[rest]
        self.positions = np.concatenate([self.positions[:size], rest[stays]])

    def keep_all(self) -> None:
        """Make every entry that may be shown a candidate, even those that do not answer."""
        positions = np.arange(len(self.corpus)) if self.allowed is None else np.flatnonzero(self.allowed)
        self.positions = positions[np.lexsort((positions, -self._order[positions]))]

    def hold(self, positions: Ints) -> None:
        """Make allowed messages that say something candidates above the cutoff, whatever their relevance."""
        held = positions if self.allowed is None else positions[self.allowed[positions]]
        held = held[[not self._says_nothing(position) for position in held.tolist()]]
        self._held = frozenset(held.tolist())
        others = np.setdiff1d(held, self.positions)
        self.positions = np.concatenate([self.positions, others[np.lexsort((others, -self._order[others]))]])

    def close_others(self) -> None:
        """Put messages of other sessions below the cutoff, except those that are held."""
        self._closed = self.corpus.start

    def accompany(self, leaders: Mapping[int, int]) -> None:
        """Let messages be chosen right after others, whatever they are worth themselves; maps each to its leader."""
        scores = self.scores_of(np.array(list(leaders.values()), np.int64))
        self._companions = dict(zip(leaders, scores, strict=True))
        ranked = set(self.positions.tolist())
        new = [position for position in leaders if position not in ranked]
        self.positions = np.concatenate([self.positions, np.array(new, np.int64)])

    def allows(self, position: int) -> bool:
        """Whether an entry may be shown."""
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
        found = np.zeros(len(self.corpus), bool)
        content = find_content_words(self.query)
        if not content:
            return found
        unnamed = [position for position in content if not self.query.words[position].is_name]
        for position in unnamed or content:
            found[self.scores.holders[position]] = True
        if self.scores.meaning_own is not None:
            found |= self.scores.meaning_own >= NEAR
        return found

    def distances(self, positions: Ints) -> list[int]:
        """Return the distance of each message from the nearest on-topic one: 0 if on topic, 1 if adjacent, else 2.

        Held messages and companions count as on topic. A message without any content word has distance 3.
        """
        near = np.zeros(len(self.corpus) + 2, bool)
        near[:-2] |= self.on_topic
        near[2:] |= self.on_topic
        found = np.where(near[1:-1], 1, 2)
        found[self.on_topic] = 0
        found[[*self._companions, *self._held]] = 0
        distances: list[int] = found[positions].tolist()
        return [
            3 if distance and self._says_nothing(position) else distance
            for distance, position in zip(distances, positions.tolist(), strict=True)
        ]

    def _says_nothing(self, position: int) -> bool:
        """Whether all words of a message are function words and courtesies; one that is withheld has none."""
        numbers, _ = self.corpus.snapshot.terms_of(self.corpus.document(position))
        return len(numbers) > 0 and contentless_terms().issuperset(numbers.tolist())

    @cached_property
    def least(self) -> float:
        """Return the relevance in nats at which `relevant_only` stops."""
        return CUTOFF * float(self.scores.plain.max(initial=0.0))

    def find_answers(self, positions: Ints) -> NDArray[np.bool_]:
        """Return which messages are above the cutoff, or stand beside one that is.

        A mark lifts one message and hides no other.
        """
        plain = self.scores.plain[positions]
        above = (plain.astype(float) >= self.least) | (self.scores.marked[positions] > plain)
        beside = [position in self._companions for position in positions.tolist()]
        held = [position in self._held for position in positions.tolist()]
        answers = (plain > 0) & above | np.array(beside, bool)
        return answers & (positions >= self._closed) | np.array(held, bool)

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
        # rounded, for the last bits depend on how an index is cut into segments
        found: list[float] = (self._order[positions].astype(np.float64) / (self.best or 1)).round(6).tolist()
        return found

    def leader_scores(self, positions: Ints) -> list[float]:
        """Return the scores of the statements that some messages stand beside; 0 for one that stands alone."""
        return [self._companions.get(position, 0.0) for position in positions.tolist()]

    def marks_of(self, positions: Ints) -> list[float]:
        """Return the contributions of marks to some messages, as shares of the best relevance without marks."""
        best = np.float32(float(self.scores.plain.max(initial=0.0)) or 1.0)
        found: list[float] = ((self.scores.marked[positions] - self.scores.plain[positions]) / best).tolist()
        return found

    def score_at_cost(self, position: int, tokens: int) -> float:
        """Return the cost-scaled score of a message for which so many tokens are shown."""
        at_cost = order_by_cost(self.scores.marked[[position]], np.array([tokens], np.uint32))
        return float(at_cost[0]) / (self.best or 1)

    def parts(self, position: int) -> Mapping[str, float]:
        """Return the contribution of each signal to the relevance of a message, as shares of the best."""
        scores = self.scores
        best = float(scores.marked.max(initial=0.0)) or 1.0
        found = {"message": float(scores.own[position]), "near": float(scores.near[position])}
        if scores.meaning is not None:
            found["meaning"] = SIGMA * max(0.0, float(scores.meaning[position]))
        found["mark"] = float(scores.marked[position] - scores.plain[position])
        return {name: round(value / best, 4) for name, value in found.items() if value > 0}


def repeats_query(corpus: Corpus, query: Query, position: int) -> bool:
    """Whether an entry holds just the words of a query: it asks, and states nothing."""
    numbers, _ = corpus.snapshot.terms_of(corpus.document(position))
    said = frozenset(numbers.tolist())
    if not all(word.terms[0] in said for word in query.words):
        return False
    asked = {number for word in query.words for number in word.terms}
    return said - function_terms() <= asked


def _find_asking(corpus: Corpus, query: Query) -> int:
    """Return the position of the query itself: the newest entry, or the newest of the user; else -1."""
    if not len(corpus) or not query.words:
        return -1
    newest = [len(corpus) - 1] if corpus.newest_of_user < 0 else [len(corpus) - 1, corpus.newest_of_user]
    return next((position for position in newest if repeats_query(corpus, query, position)), -1)


def _largest_of_each(values: Floats, external: NDArray[np.bool_] | None, size: int) -> Ints:
    """Return the positions of the largest values: so many of external text and as many of all other text."""
    if external is None:
        return find_largest_indices(values, size)
    groups = [np.flatnonzero(external), np.flatnonzero(~external)]
    return np.concatenate([positions[find_largest_indices(values[positions], size)] for positions in groups])
