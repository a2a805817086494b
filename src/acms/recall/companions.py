"""Companions: later statements near the best answers are shown with them, dated, without any claim about them.

No rule on free text tells a correction from another remark about the same subject: of 46 links read in natural chat
none was an update. So both are shown, in order of time, and the model judges. An entry is called superseded only where
structure proves it: an edit, a retraction, the address of a fact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from acms.recall.corpus import K1, Corpus
from acms.recall.index import Floats, Ints
from acms.recall.ranking import Ranking, repeats_query
from acms.recall.scoring import SIGMA
from acms.recall.vector_score import find_largest_indices, vectors_of
from acms.text.tokenizer import subjectless_terms

STATEMENT = 60
"""Words of a statement, at most: a longer text has many subjects."""
RELATED = 2.0
"""Standard deviations of cosine from which a statement that shares no word with another is about the same subject.

A recall in chats shows 4.1 unrelated messages with this limit and 5.6 without. Of 48 corrections that share no word
with what they correct, it misses one more (14 instead of 13).
"""
SPREAD = 0.125
"""Least standard deviation, as a share of the way from the mean cosine to 1. Near-identical messages have none."""
COMPARED = 64
"""Later statements whose vectors are compared with that of a leader, of those that share the rarest words."""


def add_companions(corpus: Corpus, ranking: Ranking) -> None:
    """Let the nearest later statements to the best ones be chosen with them.

    For each of the three best: the nearest one of the same speaker, and the nearest of all that are left.
    """
    statements = (corpus.column("length") <= STATEMENT) & (corpus.column("group") < 0)
    leaders = _find_leaders(corpus, ranking, statements)
    if ranking.allowed is not None:
        statements &= ranking.allowed
    companions: dict[int, int] = {}
    for leader in leaders:
        for companion in _find_companions(corpus, ranking, leader, statements):
            companions.setdefault(companion, leader)
    ranking.accompany(companions)


def _find_leaders(corpus: Corpus, ranking: Ranking, statements: NDArray[np.bool_]) -> list[int]:
    """Return the best statements on the topic of the query, without the query itself."""
    leaders: list[int] = []
    for position in ranking.positions.tolist():
        if len(leaders) == 3 or ranking.scores.plain[position] <= 0:
            break
        is_statement = statements[position] and ranking.on_topic[position]
        if is_statement and not repeats_query(corpus, ranking.query, position):
            leaders.append(position)
    return leaders


def _find_companions(
    corpus: Corpus, ranking: Ranking, leader: int, statements: NDArray[np.bool_]
) -> list[int]:
    """Return the nearest later statement of a statement's speaker, and the nearest of all that are left."""
    later = corpus.following(leader)
    allowed = np.zeros(len(corpus), bool)
    allowed[later[later != leader + 1]] = True  # the next statement is shown as a neighbour
    allowed &= statements
    codes, labels = corpus.labels
    own = labels[codes[leader]]
    is_speaker = np.array([(label.role, label.actor) == (own.role, own.actor) for label in labels], bool)
    same_speaker = is_speaker[codes]
    words = _find_words(corpus, leader)
    if ranking.query.space is None:
        nearness = _measure_nearest(corpus, words, allowed, same_speaker)
    else:
        nearness = _add_meaning(corpus, ranking, leader, _measure_nearness(corpus, words, allowed))
    companions: list[int] = []
    for values in (np.where(same_speaker, nearness, np.float32(0)), nearness):
        values[companions] = 0
        best = int(values.argmax())
        if values[best] > 0:
            companions.append(best)
    return companions


class _Words(NamedTuple):
    """The words of a statement as a query."""

    terms: list[int]
    #: How many entries hold each, and its inverse document frequency times K1 + 1.
    holders: Ints
    weights: Floats

    def select(self, chosen: NDArray[np.bool_]) -> _Words:
        """Return some of the words."""
        terms = [term for term, is_chosen in zip(self.terms, chosen.tolist(), strict=True) if is_chosen]
        return _Words(terms, self.holders[chosen], self.weights[chosen])


def _find_words(corpus: Corpus, leader: int) -> _Words:
    """Return the words of a statement that name a subject."""
    all_terms, _ = corpus.snapshot.terms_of(corpus.document(leader))
    terms = [term for term in all_terms.tolist() if term not in subjectless_terms()]
    holders = np.array([corpus.count_holders(term) for term in terms], np.int64)
    rarities = np.log(1 + (len(corpus) - holders + 0.5) / (holders + 0.5)).astype(np.float32)
    return _Words(terms, holders, rarities * np.float32(K1 + 1))


def _measure_nearness(corpus: Corpus, words: _Words, allowed: NDArray[np.bool_]) -> Floats:
    """Return BM25 of every allowed entry for some words; 0 for all others."""
    positions, counts = corpus.postings_of_terms(words.terms)
    weights = np.repeat(words.weights, words.holders)
    chosen = allowed[positions]
    positions, counts, weights = positions[chosen], counts[chosen], weights[chosen]
    gains = weights * counts / (counts + corpus.norms[positions])
    return np.bincount(positions, gains, len(corpus)).astype(np.float32)


def _measure_nearest(
    corpus: Corpus, words: _Words, allowed: NDArray[np.bool_], same_speaker: NDArray[np.bool_]
) -> Floats:
    """Return BM25 of the two nearest entries, and of the nearest of the speaker; 0 for entries that cannot be these.

    Words that many entries hold add less than their weights: they are looked up only for the entries that they could
    bring to the top (MaxScore: Turtle and Flood, "Query evaluation", 1995).
    """
    is_common = words.holders > len(corpus) / 2
    nearness = _measure_nearness(corpus, words.select(~is_common), allowed)
    common = words.select(is_common)
    most_gain = float(common.weights.sum()) + 1e-3  # sums of 32-bit floats may differ by as much
    near = np.flatnonzero(nearness)
    candidates: list[Ints] = []
    for positions, size in ((near, 2), (near[same_speaker[near]], 1)):
        values = nearness[positions]
        least = float(np.partition(values, -size)[-size]) - most_gain if len(values) >= size else 0.0
        if least <= 0:  # an entry that holds only common words may be the nearest
            return _measure_nearness(corpus, words, allowed)
        candidates.append(positions[values >= least])
    positions = np.unique(np.concatenate(candidates))
    exact = nearness[positions]
    norms = corpus.norms[positions]
    for term, weight in zip(common.terms, common.weights, strict=True):
        counts = corpus.counts_at(term, positions)
        exact += weight * counts / (counts + norms)
    nearest = np.zeros(len(corpus), np.float32)
    nearest[positions] = exact
    return nearest


def _add_meaning(corpus: Corpus, ranking: Ranking, leader: int, nearness: Floats) -> Floats:
    """Return nearness by words, and for the likely companions by words and by meaning in standard deviations.

    Likely companions share the rarest words with the statement, or are among the best answers to the query. If
    the vector of one of them is not there yet, words alone decide, as without an embedder.
    """
    space, vector = ranking.query.space, ranking.query.vector
    assert space is not None
    assert vector is not None
    by_words = find_largest_indices(nearness, COMPARED)
    by_words = by_words[nearness[by_words] > 0]
    best = ranking.positions[np.isin(ranking.positions, corpus.following(leader))][:COMPARED]
    best = best[(corpus.column("length")[best] <= STATEMENT) & (corpus.column("group")[best] < 0)]
    likely = np.union1d(by_words, best[best != leader + 1])
    sample = np.unique(np.linspace(0, len(corpus) - 1, COMPARED).astype(np.int64))
    sample = sample[sample != leader]
    compared = np.concatenate([[leader], likely, sample])
    vectors = vectors_of(corpus, space, len(vector), corpus.documents(compared))
    has_vector = np.count_nonzero(vectors, axis=1) > 0
    cosines = vectors[1:] @ vectors[0]
    sample_cosines = cosines[len(likely) :][has_vector[1 + len(likely) :]]
    if not has_vector[: 1 + len(likely)].all() or len(sample_cosines) == 0:
        return nearness
    mean = float(sample_cosines.mean())
    deviation = max(float(sample_cosines.std()), (1 - mean) * SPREAD, 1e-3)
    deviations = (cosines[: len(likely)] - mean) / deviation
    is_related = (nearness[likely] > 0) | (deviations >= RELATED)
    combined = nearness.copy()
    combined[likely] += np.float32(SIGMA) * np.where(is_related, np.maximum(0, deviations), 0)
    return combined
