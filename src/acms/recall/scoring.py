"""Score the messages of a corpus against a query: one formula for every log (decision 0105).

    words     = BM25(message) + BM25(message with its neighbours, each half as much as the one before)
    meaning   = cosine of the message and of its neighbourhood, in standard deviations above the log's own mean;
                of several vectors of a message the nearest counts
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

from acms.recall.corpus import K1, Corpus, add_neighbours
from acms.recall.index import NO_POSITIONS, Floats, Ints
from acms.recall.planner import FRAME_TOKENS
from acms.recall.query import Query, QueryWord
from acms.text.index_record import EMPTY
from acms.text.tokenizer import compute_idf

NATS_PER_DEVIATION = 6.0
"""Nats that one standard deviation of cosine is worth; this many deviations are a full answer."""
SPEAKER_FACTOR = 1.5
"""Factor of messages by a speaker whom the query names, and of the user's messages among those of a model."""
MARK_FACTOR = 6.0
"""Contribution of a mark: its weight times this times the best relevance, to the extent the message is on topic."""
ON_TOPIC_DEVIATIONS = 3.0
"""Standard deviations of meaning from which a marked message is fully on topic."""


class CosineStats(NamedTuple):
    """Mean and standard deviation of the cosines of a query with the messages of a log."""

    mean: float
    deviation: float


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
    #: Positions of the messages that hold each word of the query, ascending.
    holders: Sequence[Ints]
    #: The inverse document frequency of each word of the query.
    rarities: Sequence[float]


def score_messages(corpus: Corpus, query: Query, asking_positions: Ints = NO_POSITIONS) -> Scores:
    """Score every message of a corpus.

    The messages at `asking_positions` ask the query, so they are no answers, and do not count as neighbours.
    """
    words = score_words(corpus, query.words, asking_positions)
    meaning_own = meaning = cosine_stats = None
    coverage = 1.0
    relevance = words.own + words.near
    if query.vector is not None and query.space is not None:
        cosines = find_cosines(corpus, query.space, query.vector)
        known_count = np.count_nonzero(~np.isnan(cosines))
        coverage = min(1.0, known_count / corpus.text_count) if corpus.text_count else 1.0
        cosine_stats = measure_cosines(cosines)
        cosines[asking_positions] = np.nan
        meaning_own, meaning = _standardize_cosines(corpus, cosines, cosine_stats)
        relevance = relevance + np.float32(NATS_PER_DEVIATION) * np.maximum(0, meaning)
    relevance = relevance * _speaker_factor(corpus, query)
    relevance[asking_positions] = 0
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
    return np.asarray(relevance / np.sqrt(tokens.astype(np.float32) + np.float32(FRAME_TOKENS)), np.float32)


# ── words ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class WordScores(NamedTuple):
    """The scores of messages by words alone, with the meaning of the fields of `Scores`."""

    own: Floats
    near: Floats
    information: Floats
    holders: list[Ints]
    rarities: list[float]


def score_words(
    corpus: Corpus,
    words: Sequence[QueryWord],
    asking_positions: Ints = NO_POSITIONS,
    known_rarities: Sequence[float] | None = None,
) -> WordScores:
    """Score every entry by the words of a query that it and its neighbours hold.

    The rarity of each word is that in the corpus unless `known_rarities` are given.
    """
    size = len(corpus)
    own, information = np.zeros(size, np.float32), np.zeros(size, np.float32)
    near_by_cell = np.zeros(corpus.padded_size, np.float32)
    norms, norm_by_cell = corpus.norms, corpus.padded_norms
    holders: list[Ints] = []
    rarities: list[float] = []
    for index, word in enumerate(words):
        positions, counts = corpus.word_postings(word)
        if len(asking_positions):
            is_other = ~np.isin(positions, asking_positions)
            positions, counts = positions[is_other], counts[is_other]
        # In a namespace, and where messages were edited, the order of documents is not that of positions.
        is_reordered = corpus.position_by_document is not None
        holders.append(np.sort(positions, kind="stable") if is_reordered else positions)
        rarity = compute_idf(size, len(positions)) if known_rarities is None else known_rarities[index]
        rarities.append(rarity)
        if not len(positions):
            continue
        weight = np.float32(rarity * (K1 + 1))
        information[positions] += np.float32(rarity)
        own[positions] += weight * counts / (counts + norms[positions])
        cells = np.zeros(corpus.padded_size, np.float32)
        cells[corpus.padded_positions(positions)] = counts
        nearby_counts = add_neighbours(cells)
        near_by_cell += weight * (nearby_counts / (nearby_counts + norm_by_cell))
    near = near_by_cell[corpus.padded_positions(np.arange(size))]
    # the sum in float32 may be a little more than 1
    information = np.minimum(information / np.float32(sum(rarities) or 1), np.float32(1))
    return WordScores(own, near, information, holders, rarities)


# ── meaning ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def find_cosines(corpus: Corpus, space: str, query: Floats) -> Floats:
    """Return the cosine of a query with the nearest vector of each active entry; NaN for an entry without vectors."""
    cosines = np.full(len(corpus), np.nan, np.float32)
    for segment, count, vectors, size in corpus.snapshot.vectors(space, len(query)):
        begin = vectors.begin[: size + 1]
        products = vectors.values[: begin[-1]] @ query
        values = products if len(products) == size else np.maximum.reduceat(products, begin[:-1])
        is_in_snapshot = vectors.documents[:size] < count
        positions = vectors.documents[:size][is_in_snapshot].astype(np.int64) + segment.base
        values = values[is_in_snapshot]
        if corpus.position_by_document is not None:
            positions = corpus.position_by_document[positions]
            active = positions >= 0
            positions, values = positions[active], values[active]
        cosines[positions] = values
    return cosines


def measure_cosines(cosines: Floats) -> CosineStats:
    """Return the mean and the standard deviation of the cosines of a query with the messages of a log.

    They are rounded to a thousandth, so that they do not depend on how the vectors are stored.
    """
    values = cosines[~np.isnan(cosines)].astype(np.float64)
    if len(values) < 2:
        return CosineStats(1.0, 1.0)
    return CosineStats(round(float(values.mean()), 3), max(0.001, round(float(values.std()), 3)))


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


def find_without_vectors(corpus: Corpus, space: str, dimension: int) -> Ints:
    """Return the positions of the entries with content that have no vector."""
    has_vector = np.zeros(corpus.snapshot.count, bool)
    for segment, count, vectors, size in corpus.snapshot.vectors(space, dimension):
        documents = vectors.documents[:size]
        has_vector[segment.base + documents[documents < count]] = True
    positions = np.flatnonzero((corpus.column("flags") & EMPTY) == 0)
    return positions[~has_vector[corpus.documents(positions)]]


def vectors_of(corpus: Corpus, space: str, dimension: int, documents: Ints) -> Floats:
    """Return the first vectors of some documents, a row each; zeros for one without a vector."""
    matrix = np.zeros((len(documents), dimension), np.float32)
    for segment, count, vectors, size in corpus.snapshot.vectors(space, dimension):
        end = segment.base + min(count, len(vectors.slot))
        rows = np.flatnonzero((documents >= segment.base) & (documents < end))
        slots = vectors.slot[documents[rows] - segment.base]
        has_vector = (slots >= 0) & (slots < size)
        matrix[rows[has_vector]] = vectors.values[vectors.begin[slots[has_vector]]]
    return matrix


# ── speakers and marks ──────────────────────────────────────────────────────────────────────────────────────────────


def _speaker_factor(corpus: Corpus, query: Query) -> Floats:
    """Return a factor for every message: `SPEAKER_FACTOR` for a speaker whom the query names or for the user, else 1.

    The messages of the named speakers are raised, or if these are all messages or none, those of the user.
    """
    codes, labels = corpus.labels
    is_used = corpus.used_labels
    factors = np.ones(len(labels), np.float32)
    is_named = np.array([label.actor in query.speakers for label in labels], bool)
    for is_raised in (is_named, corpus.user_labels):
        divides_messages = (is_raised & is_used).any() and (~is_raised & is_used).any()
        if divides_messages:
            factors[is_raised] = SPEAKER_FACTOR
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
        full = max(ON_TOPIC_DEVIATIONS, float(meaning.max(initial=0.0)))
        on_topic = np.maximum(on_topic, np.clip(meaning[positions] / np.float32(full), 0, 1))
    lift = np.float32(MARK_FACTOR * float(relevance.max(initial=0.0)))
    with_marks = relevance.copy()
    with_marks[positions] += lift * weights[positions] * on_topic
    return with_marks
