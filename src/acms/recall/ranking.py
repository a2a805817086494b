"""Rank: the messages of a corpus that answer a query, best first, with the reasons for each of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from acms.recall.corpus import Corpus
from acms.recall.index import NO_POSITIONS, Floats, Ints
from acms.recall.planner import Topic
from acms.recall.query import Query, contentless_terms, find_content_words, is_bare_reply
from acms.recall.scoring import NATS_PER_DEVIATION, Scores, order_by_cost, score_messages

CUTOFF_SHARE = 0.25
"""Share of the best relevance below which a message does not answer (97.7 % of the evidence at 71 % of the tokens)."""
EXCERPT_SHARE = 0.5
"""Share of the best relevance from which a message of a tool call answers, however long it is.

With a quarter, recalls in the log of an agent take 10 % more tokens and find nothing more.
"""
NEAR_DEVIATIONS = 2.0
"""Standard deviations of meaning from which a message is about the question although it shares no word with it."""

MIN_CANDIDATES = 256
"""Entries that planning considers, at least."""

#: Reasons why an entry does not answer.
ASKS_NOTHING = "the query is a greeting, thanks, an acknowledgment or a bare reply"
BELOW_CUTOFF = "below a quarter of the best relevance"


class Ranking:
    """The active messages of a corpus, ordered by relevance over the root of their tokens."""

    def __init__(
        self,
        corpus: Corpus,
        query: Query,
        size: int = MIN_CANDIDATES,
        allowed: NDArray[np.bool_] | None = None,
        *,
        asking_positions: Ints = NO_POSITIONS,
        query_position: int = -1,
    ) -> None:
        """Rank a corpus; the rarity of words comes from all of it, but only `allowed` entries become candidates.

        The messages at `asking_positions` ask the query, so they are no answers. `query_position` is that of the last
        entry if it is the query word by word, otherwise -1.
        """
        self.corpus = corpus
        self.query_position = query_position
        self.query = query.resolve_names(corpus.count_holders)
        #: Which entries may be shown; None for all.
        self.allowed = allowed
        self._asking_positions = asking_positions
        self.scores: Scores = score_messages(corpus, self.query, self._asking_positions)
        #: Share of the messages that have a vector in the space of the query; 1 if nothing is compared by meaning.
        self.coverage = self.scores.coverage
        #: Cost-scaled score of each message, and the best of them.
        self._cost_scaled = order_by_cost(self.scores.with_marks, corpus.column("tokens"))
        self.best = float(self._cost_scaled.max(initial=0.0))
        #: Companions by position, each with the score of the best statement that it accompanies.
        self._companions: dict[int, float] = {}
        #: Positions that are shown whatever their relevance, and those of them that come before the answers.
        self._always_included: frozenset[int] = frozenset()
        self._user_words: frozenset[int] = frozenset()
        #: Which messages are searched: none if the query asks nothing, and those of other sessions only as far as they
        #: are about the query.
        self._is_searched = np.ones(len(corpus), bool)
        #: Positions of the candidates, best first.
        self.positions = self._find_candidates(size)

    def _find_candidates(self, size: int) -> Ints:
        """Return the positions of the best `size` entries, then those of the best marked entries among the others."""
        scores = self._cost_scaled if self.allowed is None else self._cost_scaled * self.allowed
        external = self.corpus.external
        best = _largest_of_each(scores, external, size)
        best = best[scores[best] > 0]
        has_markers = self.corpus.marker_mask()
        if has_markers is None or len(best) == len(self.corpus):
            return _sort_by_score(best, scores)
        has_markers[best] = False
        if external is not None:
            has_markers &= ~external
        marked_positions = np.flatnonzero(has_markers & (scores > 0))
        marked_positions = marked_positions[find_largest_indices(scores[marked_positions], 64)]
        return np.concatenate([_sort_by_score(best, scores), _sort_by_score(marked_positions, scores)])

    def limit_candidates(self, tokens: int) -> None:
        """Keep the best candidates up to a number of tokens, but at least 64 of them, marked ones, and companions."""
        costs = self.corpus.column("tokens")[self.positions]
        if self.corpus.external is not None:  # external text displaces no other text
            costs = costs * ~self.corpus.external[self.positions]
        fitting = int(costs.cumsum(dtype=np.int64).searchsorted(tokens))
        is_kept = np.arange(len(self.positions)) < max(64, fitting + 1)
        is_kept |= np.isin(self.positions, list(self._companions))
        has_markers = self.corpus.marker_mask()
        if has_markers is not None:
            is_kept |= has_markers[self.positions]
        self.positions = self.positions[is_kept]

    def include_all(self) -> None:
        """Make every entry that may be shown a candidate, even those that do not answer."""
        positions = np.arange(len(self.corpus)) if self.allowed is None else np.flatnonzero(self.allowed)
        self.positions = _sort_by_score(positions, self._cost_scaled)

    def include_always(self, positions: Ints) -> None:
        """Count messages as answers whatever their relevance, if they are allowed and have content words."""
        allowed_positions = positions if self.allowed is None else positions[self.allowed[positions]]
        with_content = [
            position for position in allowed_positions.tolist() if not self._is_contentless(position)
        ]
        self._always_included |= frozenset(with_content)
        new_positions = np.setdiff1d(np.array(with_content, np.int64), self.positions)
        self.positions = np.concatenate([self.positions, _sort_by_score(new_positions, self._cost_scaled)])

    def keep_user_words(self, positions: Ints) -> None:
        """Choose messages of the user before the answers, unless they ask the query: see `acms.recall.user_words`."""
        positions = np.setdiff1d(positions, self._asking_positions)
        self.include_always(positions)
        self._user_words = self._always_included.intersection(positions.tolist())

    def limit_other_sessions(self, is_searched: NDArray[np.bool_]) -> None:
        """Put messages of other sessions below the cutoff, except those that are searched or always included."""
        self._is_searched[: self.corpus.start] &= is_searched

    def exclude_answers(self) -> None:
        """Put all messages below the cutoff, except those that are always included."""
        self._is_searched[:] = False

    def set_companions(self, leaders: Mapping[int, int]) -> None:
        """Let messages be chosen right after their leaders, whatever their own scores and session.

        `leaders` maps the position of each companion to that of the message it is chosen after.
        """
        self._is_searched[list(leaders)] = True
        leader_scores = self.scores_of(np.array(list(leaders.values()), np.int64))
        self._companions = dict(zip(leaders, leader_scores, strict=True))
        candidates = set(self.positions.tolist())
        new_positions = [position for position in leaders if position not in candidates]
        self.positions = np.concatenate([self.positions, np.array(new_positions, np.int64)])

    @cached_property
    def asks_nothing(self) -> bool:
        """Whether the query is a courtesy or a bare reply, which no message answers."""
        return self.query.asks_nothing or is_bare_reply(self.query)

    def searches(self, position: int) -> bool:
        """Return whether a message is searched: the query asks something, and of another session, concerns it."""
        return bool(self._is_searched[position])

    def asks(self, position: int) -> bool:
        """Return whether an entry asks the query: it is the query, or an earlier request of its form."""
        return position in self._asking_positions

    def allows(self, position: int) -> bool:
        """Return whether an entry may be shown."""
        return self.allowed is None or bool(self.allowed[position])

    # ── figures of messages ─────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def relevances(self) -> Floats:
        """Return how well each message answers by itself, in [0, 1], whatever else the log holds.

        The larger of two figures: the share of the query's information that the message holds, and a sixth of the
        standard deviations by which its cosine exceeds the mean.
        """
        meaning = self.scores.meaning_own
        if meaning is None:
            return self.scores.information
        return np.maximum(self.scores.information, np.clip(meaning / np.float32(NATS_PER_DEVIATION), 0, 1))

    @cached_property
    def on_topic(self) -> NDArray[np.bool_]:
        """Return which messages share a content word with the query, or are near to it in meaning.

        Names of speakers count only if the query has no other content words, because all messages of a speaker hold the
        name. If the query is a greeting, no message is on topic.
        """
        on_topic = np.zeros(len(self.corpus), bool)
        content = find_content_words(self.query)
        if not content:
            return on_topic
        other_than_names = [index for index in content if not self.query.words[index].is_name]
        for index in other_than_names or content:
            on_topic[self.scores.holders[index]] = True
        if self.scores.meaning_own is not None:
            on_topic |= self.scores.meaning_own >= NEAR_DEVIATIONS
        return on_topic

    def topics_of(self, positions: Ints) -> list[int]:
        """Return the `Topic` of messages. Companions and messages that are always included count as on topic."""
        is_adjacent = np.zeros(len(self.corpus) + 2, bool)  # a cell more at each end
        is_adjacent[:-2] |= self.on_topic
        is_adjacent[2:] |= self.on_topic
        by_position = np.where(is_adjacent[1:-1], int(Topic.BESIDE), int(Topic.OFF))
        by_position[self.on_topic] = Topic.ON
        by_position[[*self._companions, *self._always_included]] = Topic.ON
        by_position[[*self._user_words]] = Topic.USER_WORDS
        topics: list[int] = by_position[positions].tolist()
        for index, position in enumerate(positions.tolist()):
            if topics[index] > Topic.ON and self._is_contentless(position):
                topics[index] = Topic.EMPTY
        return topics

    def _is_contentless(self, position: int) -> bool:
        """Return whether a message has words, but only function words and courtesies."""
        terms, _ = self.corpus.snapshot.terms_of(self.corpus.document(position))
        return len(terms) > 0 and contentless_terms().issuperset(terms.tolist())

    @cached_property
    def cutoff(self) -> float:
        """Return the relevance in nats below which a message does not answer."""
        return CUTOFF_SHARE * float(self.scores.without_marks.max(initial=0.0))

    def find_answers(self, positions: Ints) -> NDArray[np.bool_]:
        """Return which messages answer: those above the cutoff, companions, and those that are always included.

        A mark lifts its message above the cutoff if that has any relevance; it does not raise the cutoff for others. If
        the query names no subject, the words and the meaning of neighbours do not count.
        """
        without_marks = self.scores.without_marks[positions]
        is_lifted = self.scores.with_marks[positions] > without_marks
        is_relevant = without_marks > 0
        reaches_cutoff = without_marks.astype(float) >= self.cutoff
        if all(word.is_common for word in self.query.words):
            reaches_cutoff &= self._matches_itself[positions]
        is_above_cutoff = is_relevant & (reaches_cutoff | is_lifted)
        is_above_cutoff |= self._excerpts_answer[positions]
        position_list = positions.tolist()
        is_companion = np.array([position in self._companions for position in position_list], bool)
        is_always_included = np.array([position in self._always_included for position in position_list], bool)
        is_searched = self._is_searched[positions]
        is_asking = np.isin(positions, self._asking_positions)
        return (is_above_cutoff | is_companion) & is_searched & ~is_asking | is_always_included

    @cached_property
    def _excerpts_answer(self) -> NDArray[np.bool_]:
        """Return which messages of tool calls hold enough of the query, however long they are.

        An excerpt of them is shown, so the length by which BM25 divides is not that of what is read.
        """
        holds_enough = self.relevances >= EXCERPT_SHARE * self.relevances.max(initial=0.0)
        return holds_enough & (self.relevances > 0) & (self.corpus.column("group") >= 0)

    @cached_property
    def _matches_itself(self) -> NDArray[np.bool_]:
        """Return which messages hold a word of the query, or are near to it in meaning, without their neighbours."""
        holds_word = self.scores.own > 0
        if self.scores.meaning_own is None:
            return holds_word
        return holds_word | (self.scores.meaning_own >= NEAR_DEVIATIONS)

    def why_no_answer(self, position: int) -> str:
        """Return why a message does not answer."""
        if self.asks(position):
            return "it is the query itself, or an earlier request of the same form"
        if self.asks_nothing and not self._is_searched[position]:
            return ASKS_NOTHING
        if not self._is_searched[position]:
            return (
                "the query names no speaker, no other session holds half of its words or two rare ones, "
                "and this exchange holds no word of it that few hold"
            )
        return BELOW_CUTOFF

    def relevance(self, position: int) -> float:
        """Return how well a message answers by itself, in [0, 1]."""
        return float(self.relevances[position])

    def score(self, position: int) -> float:
        """Return the cost-scaled score of a message, in [0, 1]; 1 is the best."""
        return self.scores_of(np.array([position]))[0]

    def scores_of(self, positions: Ints) -> list[float]:
        """Return the cost-scaled scores of some messages, in [0, 1]."""
        shares = self._cost_scaled[positions].astype(np.float64) / (self.best or 1)
        rounded_shares: list[float] = shares.round(
            6
        ).tolist()  # the last bits depend on the segments of an index
        return rounded_shares

    def leader_scores(self, positions: Ints) -> list[float]:
        """Return the scores of the statements that some messages accompany; 0 for any other message."""
        return [self._companions.get(position, 0.0) for position in positions.tolist()]

    def marks_of(self, positions: Ints) -> list[float]:
        """Return the contributions of marks to some messages, as shares of the best relevance without marks."""
        best = np.float32(float(self.scores.without_marks.max(initial=0.0)) or 1.0)
        contributions = self.scores.with_marks[positions] - self.scores.without_marks[positions]
        shares: list[float] = (contributions / best).tolist()
        return shares

    def score_at_cost(self, position: int, tokens: int) -> float:
        """Return the cost-scaled score of a message if it took a given number of tokens."""
        at_cost = order_by_cost(self.scores.with_marks[[position]], np.array([tokens], np.uint32))
        return float(at_cost[0]) / (self.best or 1)

    def parts(self, position: int) -> Mapping[str, float]:
        """Return the contribution of each signal to the relevance of a message, as shares of the best."""
        scores = self.scores
        best = float(scores.with_marks.max(initial=0.0)) or 1.0
        signals = {"message": float(scores.own[position]), "near": float(scores.near[position])}
        if scores.meaning is not None:
            signals["meaning"] = NATS_PER_DEVIATION * max(0.0, float(scores.meaning[position]))
        signals["mark"] = float(scores.with_marks[position] - scores.without_marks[position])
        return {name: round(value / best, 4) for name, value in signals.items() if value > 0}


def find_largest_indices(values: Floats, size: int) -> Ints:
    """Return the indexes of the `size` largest values, in no particular order."""
    if len(values) <= size:
        return np.arange(len(values))
    return np.argpartition(-values, size - 1)[:size]


def _sort_by_score(positions: Ints, scores: Floats) -> Ints:
    """Return positions by score, best first, those with equal scores oldest first."""
    return positions[np.lexsort((positions, -scores[positions]))]


def _largest_of_each(values: Floats, external: NDArray[np.bool_] | None, size: int) -> Ints:
    """Return the positions of the `size` largest values of external text, and of the `size` largest of other text."""
    if external is None:
        return find_largest_indices(values, size)
    largest: list[Ints] = []
    for positions in (np.flatnonzero(external), np.flatnonzero(~external)):
        largest.append(positions[find_largest_indices(values[positions], size)])
    return np.concatenate(largest)
