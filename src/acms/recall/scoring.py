"""Score the messages of a corpus against a query: one formula for every log (decision 0105).

    words     = BM25(message) + BM25(message with its neighbours, each half as much as the one before)
    meaning   = cosine of the message and of its neighbourhood, in standard deviations above the log's own mean
    relevance = (words + 6 * meaning), times 1.5 for a speaker who is named, and for the user where roles differ
    order     = relevance / sqrt(tokens + 30)

BM25 is that of Robertson and Zaragoza, "The Probabilistic Relevance Framework" (2009). Scores of words are in nats.
No recency enters (decision 0007). All statistics are those of the messages that the reader sees, so a past version is
ranked as it was then (rule 2.9).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from acms.recall.corpus import K1, REACH, Corpus, add_neighbours
from acms.recall.index import NO_POSITIONS, Floats, Ints
from acms.recall.planner import FRAME
from acms.recall.query import Query, QueryWord
from acms.recall.vector_score import CosineStats, find_cosines, measure_cosines
from acms.text.tokenizer import compute_idf

SIGMA = 6.0
"""Nats that one standard deviation of cosine is worth; this many deviations are a full answer."""
NAMED = 1.5
"""Factor of messages by a speaker whom the query names, and of the user's messages among those of a model."""
LIFT = 6.0
"""Contribution of a mark: its weight times this times the best relevance, to the extent the message is on topic."""
ABOUT = 3.0
"""Standard deviations of meaning from which a marked message is fully on topic."""
SPARSE = 64
"""A term in fewer than one of so many messages is scored only where it occurs."""
DENSE_CELLS = 1 << 17
"""Terms times messages that are scored in one step: 512 KB of floats stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The relevance of every message of a corpus for a query."""

    #: BM25 of each message, and of the message with its neighbours.
    own: Floats
    near: Floats
    #: Share of the query's information that each message holds itself, in [0, 1].
    information: Floats
    #: Standard deviations of cosine above the mean, of each message alone and with its neighbourhood; None without
    #: vectors.
    meaning_own: Floats | None
    meaning: Floats | None
    #: Relevance in nats, without the contributions of marks and with them.
    without_marks: Floats
    with_marks: Floats
    #: Share of the messages that have a vector; 1 when nothing was compared by meaning.
    coverage: float
    #: Mean and standard deviation of the cosines of the query with the messages.
    cosine_stats: CosineStats | None
    #: Positions of the messages that hold each word of the query.
    holders: Sequence[Ints]
    #: The inverse document frequency of each word of the query.
    rarities: Sequence[float]


def score_messages(corpus: Corpus, query: Query, asking: Ints = NO_POSITIONS) -> Scores:
    """Score every message of a corpus.

    `asking` are the positions of the messages that ask the query: they are no answers, and do not count as neighbours.
    """
    words = _score_words(corpus, query.words, asking)
    meaning_own = meaning = cosine_stats = None
    coverage = 1.0
    relevance = words.own + words.near
    if query.vector is not None and query.space is not None:
        cosines = find_cosines(corpus, query.space, query.vector)
        known_count = np.count_nonzero(~np.isnan(cosines))
        coverage = min(1.0, known_count / corpus.texts) if corpus.texts else 1.0
        cosine_stats = measure_cosines(cosines)
        cosines[asking] = np.nan
        meaning_own, meaning = _standardize_cosines(corpus, cosines, cosine_stats)
        relevance = relevance + np.float32(SIGMA) * np.maximum(0, meaning)
    relevance = relevance * _speaker_factor(corpus, query)
    return Scores(
        words.own,
        words.near,
        words.information,
        meaning_own,
        meaning,
        without_marks=relevance,
        with_marks=_add_marks(corpus, query, relevance, meaning, words.holders),
        coverage=coverage,
        cosine_stats=cosine_stats,
        holders=words.holders,
        rarities=words.rarities,
    )


def order_by_cost(relevance: Floats, tokens: NDArray[np.uint32]) -> Floats:
    """Return the cost-scaled score of each message (cost-scaled greedy choice: Lin and Bilmes, 2010)."""
    return np.asarray(relevance / np.sqrt(tokens.astype(np.float32) + np.float32(FRAME)), np.float32)


# ── words ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _WordPostings(NamedTuple):
    """The messages that hold a word of the query."""

    #: Inverse document frequency of the word.
    weight: float
    #: Positions of the messages, and how often each holds the word.
    positions: Ints
    counts: Floats


class _WordScores(NamedTuple):
    """The scores of messages by words alone, with the meaning of the fields of `Scores`."""

    own: Floats
    near: Floats
    information: Floats
    holders: list[Ints]
    rarities: list[float]


def _score_words(corpus: Corpus, words: Sequence[QueryWord], asking: Ints) -> _WordScores:
    """Score every message by the words of a query that it and its neighbours hold."""
    size = len(corpus)
    own, near, information = (np.zeros(size, np.float32) for _ in range(3))
    norms = corpus.norms
    holders: list[Ints] = []
    rarities: list[float] = []
    rare: list[_WordPostings] = []
    common: list[_WordPostings] = []
    for word in words:
        positions, counts = corpus.word_postings(word)
        if len(asking):
            is_other = ~np.isin(positions, asking)
            positions, counts = positions[is_other], counts[is_other]
        holders.append(positions)
        weight = compute_idf(size, len(positions))
        rarities.append(weight)
        if not len(positions):
            continue
        information[positions] += np.float32(weight)
        own[positions] += np.float32(weight * (K1 + 1)) * counts / (counts + norms[positions])
        is_rare = len(positions) * SPARSE < size
        (rare if is_rare else common).append(_WordPostings(weight, positions, counts))
    if rare:
        near += _neighbours_of_rare_words(corpus, rare)
    if common:
        near += _neighbours_of_common_words(corpus, common)
    # the sum in float32 may be a little more than 1
    information = np.minimum(information / np.float32(sum(rarities) or 1), np.float32(1))
    return _WordScores(own, near, information, holders, rarities)


def _neighbours_of_rare_words(corpus: Corpus, words: Sequence[_WordPostings]) -> Floats:
    """Return BM25 of neighbourhoods by words that few messages hold, computed only around these messages.

    The cells of all words lie in one array, a row of `padded_size` cells for each word.
    """
    row_size = corpus.padded_size
    cells = np.zeros(len(words) * row_size, np.float32)
    holder_cells = np.concatenate(
        [corpus.padded_positions(word.positions) + row * row_size for row, word in enumerate(words)]
    )
    counts = np.concatenate([word.counts for word in words])
    cells[holder_cells] += counts
    for distance in range(1, REACH + 1):
        share = counts * np.float32(0.5**distance)
        cells[holder_cells + distance] += share
        cells[holder_cells - distance] += share
    filled_cells = _find_unique(holder_cells[:, None] + np.arange(-REACH, REACH + 1), len(cells))
    positions = corpus.position_by_cell[filled_cells % row_size]
    is_message = positions >= 0
    positions, filled_cells = positions[is_message], filled_cells[is_message]
    weight_by_row = np.array([word.weight for word in words], np.float32)
    weights = weight_by_row[filled_cells // row_size]
    values = cells[filled_cells]
    scores = weights * np.float32(K1 + 1) * values / (values + corpus.norms[positions])
    return np.bincount(positions, scores, len(corpus)).astype(np.float32)


def _find_unique(numbers: Ints, size: int) -> Ints:
    """Return each of some numbers once; all are below `size`. Faster than sorting them."""
    numbers = numbers.ravel()
    indexes = np.arange(len(numbers), dtype=np.int32)
    last_index = np.empty(size, np.int32)
    last_index[numbers] = indexes
    is_last = last_index[numbers] == indexes
    return numbers[is_last]


def _neighbours_of_common_words(corpus: Corpus, words: Sequence[_WordPostings]) -> Floats:
    """Return BM25 of neighbourhoods by words that many messages hold, computed for a few words at a time."""
    row_size = corpus.padded_size
    sums = np.zeros(row_size, np.float32)
    norms = corpus.padded_norms
    batch_size = max(1, DENSE_CELLS // row_size)
    for start in range(0, len(words), batch_size):
        batch = words[start : start + batch_size]
        rows = np.zeros((len(batch), row_size), np.float32)
        for row, word in zip(rows, batch, strict=True):
            row[corpus.padded_positions(word.positions)] = word.counts
        values = add_neighbours(rows)
        weights = np.array([word.weight for word in batch], np.float32) * np.float32(K1 + 1)
        sums += weights @ (values / (values + norms))
    return sums[corpus.padded_positions(np.arange(len(corpus)))]


# ── meaning ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _standardize_cosines(corpus: Corpus, cosines: Floats, stats: CosineStats) -> tuple[Floats, Floats]:
    """Return cosines as standard deviations above the mean: of each message, and averaged with its neighbourhood.

    The second array is the mean of a message's own value and that of its neighbourhood. A message without a vector has
    the value 0 and is not counted in the neighbourhood of others.
    """
    has_vector = ~np.isnan(cosines)
    deviations = (cosines - np.float32(stats.mean)) / np.float32(stats.deviation)
    own = np.where(has_vector, deviations, np.float32(0))
    vectors_nearby = corpus.neighbourhood(has_vector.astype(np.float32))
    near = corpus.neighbourhood(own) / np.maximum(vectors_nearby, np.float32(1e-6))
    own = np.asarray(own, np.float32)
    return own, np.asarray((own + near) * np.float32(0.5), np.float32)


# ── speakers and marks ──────────────────────────────────────────────────────────────────────────────────────────────


def _speaker_factor(corpus: Corpus, query: Query) -> Floats:
    """Return a factor for every message: `NAMED` if a speaker named in the query said it, else if the user did.

    The role of the user does not count if the query names a speaker: it asks about one person of several. A rule that
    holds for all messages or for none has no effect.
    """
    codes, labels = corpus.labels
    is_user, is_used = corpus.roles
    factors = np.ones(len(labels), np.float32)
    is_named = np.array([label.actor in query.speakers for label in labels], bool)
    for is_raised in (is_named, is_user):
        divides_messages = (is_raised & is_used).any() and (~is_raised & is_used).any()
        if divides_messages:
            factors[is_raised] = NAMED
            break
    return factors[codes]


def _add_marks(
    corpus: Corpus, query: Query, relevance: Floats, meaning: Floats | None, holders: Sequence[Ints]
) -> Floats:
    """Return relevance with the contributions of marks, which depend on how far a message is on topic.

    On topic is the larger of two: the share of the query's words, names aside, that the message holds, and its meaning.
    The contribution is added, not multiplied: a message may hold only words so common that its relevance is 0.
    """
    weights = corpus.mark_weights(query.marker_weights)
    if weights is None or not len(relevance):
        return relevance
    positions = np.flatnonzero(weights)
    topic_words = 0
    words_held = np.zeros(len(positions), np.float32)
    for word, word_holders in zip(query.words, holders, strict=True):
        if word.is_name:
            continue
        topic_words += 1
        if len(word_holders):
            indexes = np.searchsorted(word_holders, positions)
            indexes[indexes == len(word_holders)] = 0
            words_held += word_holders[indexes] == positions
    on_topic = words_held / np.float32(max(1, topic_words))
    if meaning is not None:
        full = max(ABOUT, float(meaning.max(initial=0.0)))
        on_topic = np.maximum(on_topic, np.clip(meaning[positions] / np.float32(full), 0, 1))
    lift = np.float32(LIFT * float(relevance.max(initial=0.0)))
    with_marks = relevance.copy()
    with_marks[positions] += lift * weights[positions] * on_topic
    return with_marks
