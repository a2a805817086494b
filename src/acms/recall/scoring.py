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

import numpy as np
from numpy.typing import NDArray

from acms.recall.corpus import K1, REACH, Corpus, add_neighbours
from acms.recall.index import Floats, Ints
from acms.recall.query import Query, QueryWord
from acms.recall.vector_score import find_cosines, measure_cosines, rescore_exactly
from acms.text.tokenizer import compute_idf

SIGMA = 6.0
"""Nats that one standard deviation of cosine is worth; this many deviations are a full answer."""
NAMED = 1.5
"""Factor of messages by a speaker whom the query names, and of the user's where other roles speak too."""
FRAME = 30
"""Tokens that any message costs in addition to its text: name, date, separators."""
LIFT = 6.0
"""Contribution of a mark: its weight times this times the best relevance, to the extent the message is on topic."""
ABOUT = 3.0
"""Standard deviations of meaning from which a marked message is fully about the question."""
SPARSE = 64
"""A term in fewer than one of so many messages is scored only where it occurs."""
DENSE_CELLS = 1 << 17
"""Terms times messages that are scored in one step: 512 KB of floats stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The relevance of every message of a corpus for a query."""

    #: BM25 of each message, and of its neighbourhood.
    own: Floats
    near: Floats
    #: Share of the query's information that each message holds itself, in [0, 1].
    information: Floats
    #: Standard deviations of cosine above the mean, of each message alone and with its neighbourhood; None without
    #: vectors.
    meaning_own: Floats | None
    meaning: Floats | None
    #: Relevance in nats without marks and with them.
    plain: Floats
    marked: Floats
    #: Share of the messages that have a vector; 1 when nothing was compared by meaning.
    coverage: float
    #: Mean and standard deviation of the cosines of the query with the messages.
    level: tuple[float, float] | None
    #: Places of the messages that hold each word of the query.
    holders: Sequence[Ints]
    #: The inverse document frequency of each word of the query.
    rarities: Sequence[float]


def score_messages(corpus: Corpus, query: Query, *, asking: int = -1) -> Scores:
    """Score every message of a corpus.

    `asking` is the position of the query itself: it is no answer, and lends nothing to its neighbours.
    """
    own, near, information, holders, rarities = _score_words(corpus, query.words, asking)
    meaning_own = meaning = level = None
    coverage = 1.0
    plain = own + near
    if query.vector is not None and query.space is not None:
        found = find_cosines(corpus, query.space, query.vector)
        coverage = min(1.0, found.known / corpus.texts) if corpus.texts else 1.0
        level = measure_cosines(corpus, query.space, query.vector, found)
        cosines = found.cosines
        if not found.exact:
            _, rough_meaning = _standardize_cosines(corpus, cosines, level)
            rough = plain + np.float32(SIGMA) * np.maximum(0, rough_meaning)
            cosines = rescore_exactly(corpus, query, found, rough)
        if asking >= 0:
            cosines = cosines.copy()
            cosines[asking] = np.nan
        meaning_own, meaning = _standardize_cosines(corpus, cosines, level)
        plain = plain + np.float32(SIGMA) * np.maximum(0, meaning)
    plain = plain * _speaker_factor(corpus, query)
    marked = _add_marks(corpus, query, plain, meaning, holders)
    return Scores(
        own,
        near,
        information,
        meaning_own,
        meaning,
        plain,
        marked,
        coverage,
        level,
        holders,
        rarities,
    )


def order_by_cost(relevance: Floats, tokens: NDArray[np.uint32]) -> Floats:
    """Return the cost-scaled score of each message (cost-scaled greedy choice: Lin and Bilmes, 2010)."""
    return np.asarray(relevance / np.sqrt(tokens.astype(np.float32) + np.float32(FRAME)), np.float32)


# ── words ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _score_words(
    corpus: Corpus, words: Sequence[QueryWord], asking: int
) -> tuple[Floats, Floats, Floats, list[Ints], list[float]]:
    """Return BM25 of each message and of its neighbourhood, the share of information, and the holders of each word."""
    size = len(corpus)
    own, near, information = (np.zeros(size, np.float32) for _ in range(3))
    norms = corpus.norms
    holders: list[Ints] = []
    rare: list[tuple[float, Ints, Floats]] = []
    common: list[tuple[float, Ints, Floats]] = []
    rarities: list[float] = []
    for word in words:
        positions, counts = corpus.word_postings(word)
        if asking >= 0:
            others = positions != asking
            positions, counts = positions[others], counts[others]
        holders.append(positions)
        weight = compute_idf(size, len(positions))
        rarities.append(weight)
        if not len(positions):
            continue
        information[positions] += np.float32(weight)
        own[positions] += np.float32(weight * (K1 + 1)) * counts / (counts + norms[positions])
        is_rare = len(positions) * SPARSE < size
        (rare if is_rare else common).append((weight, positions, counts))
    if rare:
        near += _neighbours_of_rare_words(corpus, rare)
    if common:
        near += _neighbours_of_common_words(corpus, common)
    # the sum in float32 may be a little more than 1
    information = np.minimum(information / np.float32(sum(rarities) or 1), np.float32(1))
    return own, near, information, holders, rarities


def _neighbours_of_rare_words(corpus: Corpus, words: Sequence[tuple[float, Ints, Floats]]) -> Floats:
    """Return BM25 of neighbourhoods by words that few messages hold, computed only around these."""
    width = corpus.padded_size
    cells = np.zeros(len(words) * width, np.float32)
    keys = np.concatenate(
        [corpus.padded_positions(positions) + row * width for row, (_, positions, _) in enumerate(words)]
    )
    counts = np.concatenate([counts for _, _, counts in words])
    cells[keys] += counts
    for distance in range(1, REACH + 1):
        share = counts * np.float32(0.5**distance)
        cells[keys + distance] += share
        cells[keys - distance] += share
    touched = _find_unique(keys[:, None] + np.arange(-REACH, REACH + 1), len(cells))
    positions = corpus.position_by_cell[touched % width]
    inside = positions >= 0
    positions, touched = positions[inside], touched[inside]
    weights = np.array([weight for weight, _, _ in words], np.float32)[touched // width]
    values = cells[touched]
    gains = weights * np.float32(K1 + 1) * values / (values + corpus.norms[positions])
    return np.bincount(positions, gains, len(corpus)).astype(np.float32)


def _find_unique(numbers: Ints, size: int) -> Ints:
    """Return numbers below a size, each once: faster than sorting them."""
    numbers = numbers.ravel()
    last_index = np.empty(size, np.int32)
    indexes = np.arange(len(numbers), dtype=np.int32)
    last_index[numbers] = indexes
    return numbers[last_index[numbers] == indexes]


def _neighbours_of_common_words(corpus: Corpus, words: Sequence[tuple[float, Ints, Floats]]) -> Floats:
    """Return BM25 of neighbourhoods by words that many messages hold."""
    width = corpus.padded_size
    sums = np.zeros(width, np.float32)
    norms = corpus.padded_norms
    step = max(1, DENSE_CELLS // width)
    for low in range(0, len(words), step):
        chosen = words[low : low + step]
        rows = np.zeros((len(chosen), width), np.float32)
        for row, (_, positions, counts) in zip(rows, chosen, strict=True):
            row[corpus.padded_positions(positions)] = counts
        values = add_neighbours(rows)
        weights = np.array([weight for weight, _, _ in chosen], np.float32) * np.float32(K1 + 1)
        sums += weights @ (values / (values + norms))
    return sums[corpus.padded_positions(np.arange(len(corpus)))]


# ── meaning ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _standardize_cosines(
    corpus: Corpus, cosines: Floats, level: tuple[float, float]
) -> tuple[Floats, Floats]:
    """Return standard deviations above the mean: of each message, and half of it and half of its neighbourhood.

    A message without a vector has none of its own, and half of its neighbours'.
    """
    mean, deviation = level
    known = ~np.isnan(cosines)
    own = np.where(known, (cosines - np.float32(mean)) / np.float32(deviation), np.float32(0))
    known_nearby = corpus.neighbourhood(known.astype(np.float32))
    near = corpus.neighbourhood(own) / np.maximum(known_nearby, np.float32(1e-6))
    own = np.asarray(own, np.float32)
    return own, np.asarray((own + near) * np.float32(0.5), np.float32)


# ── speakers and marks ──────────────────────────────────────────────────────────────────────────────────────────────


def _speaker_factor(corpus: Corpus, query: Query) -> Floats:
    """Return a factor for every message: more if a named speaker said it, and if the user did."""
    codes, labels = corpus.labels
    users, present = corpus.roles
    factor = np.ones(len(labels), np.float32)
    named = np.array([label.actor in query.speakers for label in labels], bool)
    for chosen in (named, users):
        divides_messages = (chosen & present).any() and (~chosen & present).any()
        if divides_messages:
            factor[chosen] *= np.float32(NAMED)
    return factor[codes]


def _add_marks(
    corpus: Corpus, query: Query, plain: Floats, meaning: Floats | None, holders: Sequence[Ints]
) -> Floats:
    """Return relevance with marks: a contribution justified by the topic of the query is added, never multiplied.

    A topic word that occurs in every message has no rarity, so a factor would raise nothing.
    """
    weights = corpus.mark_weights(query.marker_weights)
    if weights is None or not len(plain):
        return plain
    positions = np.flatnonzero(weights)
    topic = [
        word_holders
        for word, word_holders in zip(query.words, holders, strict=True)
        if not word.is_name and len(word_holders)
    ]
    topic_words = sum(not word.is_name for word in query.words)
    about = np.zeros(len(positions), np.float32)
    for word_holders in topic:
        at = np.searchsorted(word_holders, positions)
        at[at == len(word_holders)] = 0
        about += word_holders[at] == positions
    about /= np.float32(max(1, topic_words))
    if meaning is not None:
        scale = max(ABOUT, float(meaning.max(initial=0.0)))
        about = np.maximum(about, np.clip(meaning[positions] / np.float32(scale), 0, 1))
    marked = plain.copy()
    marked[positions] += np.float32(LIFT * float(plain.max(initial=0.0))) * weights[positions] * about
    return marked
