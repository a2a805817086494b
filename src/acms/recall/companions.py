"""Companions: later statements about the same subject are shown with the best answers, which they may correct.

No rule on free text distinguishes a correction from another remark about the same subject: of 46 links read in natural
chat none was an update. So both are shown with their dates, and the model judges. An entry is called superseded only
where structure proves it: an edit, a retraction, the address of a fact. The best answers are called *leaders* here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from acms.recall.asking_messages import repeats_query
from acms.recall.corpus import K1, Corpus
from acms.recall.index import Floats, Ints
from acms.recall.ranking import Ranking, find_largest_indices
from acms.recall.scoring import NATS_PER_DEVIATION, vectors_of
from acms.text.index_record import QUESTION
from acms.text.tokenizer import compute_idf, subjectless_terms

MAX_STATEMENT_WORDS = 60
"""Words of a statement, at most: a longer text has many subjects."""
COMPARED_WORDS = 8
"""Rarest words of a statement, by which others are compared with it. With 4 VehicleMemBench shows 3.6 points more
outdated answers without the newer one; all words do no better than 8.
"""
RELATED_DEVIATIONS = 2.0
"""Standard deviations of cosine from which a statement that shares no word with another is about the same subject.

A recall in chats shows 4.1 unrelated messages with this limit and 5.6 without. Of 48 corrections that share no word
with what they correct, it misses one more (14 instead of 13).
"""
MIN_SPREAD = 0.125
"""Least standard deviation, as a share of the way from the mean cosine to 1. Near-identical messages have none."""
COMPARED_STATEMENTS = 64
"""Later statements whose vectors are compared with that of a leader, of those that share the rarest words."""


def add_companions(corpus: Corpus, ranking: Ranking) -> None:
    """Find companions for the three best answers, and let the ranking choose each right after its leader.

    The companions of a leader are the nearest later statement by the same speaker, and the nearest of the others. In a
    namespace these are chosen among other sessions and in this one apart: what this one says is mostly visible already.
    """
    is_statement = (corpus.column("length") <= MAX_STATEMENT_WORDS) & (corpus.column("group") < 0)
    leaders = _find_leaders(corpus, ranking, is_statement)
    may_accompany = is_statement & ((corpus.column("flags") & QUESTION) == 0)  # a question corrects nothing
    if ranking.allowed is not None:
        may_accompany &= ranking.allowed
    is_own = np.arange(len(corpus)) >= corpus.start
    leader_by_companion: dict[int, int] = {}
    for leader in leaders:
        for is_searched in (~is_own, is_own) if corpus.start else (is_own,):
            for companion in _find_companions(corpus, ranking, leader, may_accompany & is_searched):
                leader_by_companion.setdefault(companion, leader)
    ranking.set_companions(leader_by_companion)


def _find_leaders(corpus: Corpus, ranking: Ranking, is_statement: NDArray[np.bool_]) -> list[int]:
    """Return the positions of up to three best statements on the topic of the query, without the query itself."""
    leaders: list[int] = []
    for position in ranking.positions.tolist():
        if len(leaders) == 3 or ranking.scores.without_marks[position] <= 0:
            break
        if not ranking.searches(position):
            continue
        is_on_topic = is_statement[position] and ranking.on_topic[position]
        if is_on_topic and not repeats_query(corpus, ranking.query, position):
            leaders.append(position)
    return leaders


def _find_companions(
    corpus: Corpus, ranking: Ranking, leader: int, may_accompany: NDArray[np.bool_]
) -> list[int]:
    """Return the nearest later statement by the speaker of a leader, and the nearest of the other later statements."""
    later_positions = corpus.following(leader)
    is_allowed = np.zeros(len(corpus), bool)
    is_allowed[later_positions[later_positions != leader + 1]] = (
        True  # the next statement is shown as a neighbour
    )
    is_allowed &= may_accompany
    label_codes, labels = corpus.labels
    leader_label = labels[label_codes[leader]]
    speaker = (leader_label.role, leader_label.actor)
    is_label_of_speaker = np.array([(label.role, label.actor) == speaker for label in labels], bool)
    is_same_speaker = is_label_of_speaker[label_codes]
    nearness = _measure_nearness(corpus, leader, is_allowed)
    if ranking.query.space is not None:
        nearness = _add_meaning(corpus, ranking, leader, nearness)
    companions: list[int] = []
    for values in (np.where(is_same_speaker, nearness, np.float32(0)), nearness):
        values[companions] = 0
        best = len(values) - 1 - int(values[::-1].argmax())  # of equals the newest
        if values[best] > 0:
            companions.append(best)
    return companions


def _measure_nearness(corpus: Corpus, leader: int, is_allowed: NDArray[np.bool_]) -> Floats:
    """Return BM25 of every allowed entry for the rarest words of a statement that name a subject; 0 for all others."""
    terms, _ = corpus.snapshot.terms_of(corpus.document(leader))
    subject_terms = [term for term in terms.tolist() if term not in subjectless_terms()]
    subject_terms.sort(key=corpus.count_holders)
    nearness = np.zeros(len(corpus), np.float32)
    for term in subject_terms[:COMPARED_WORDS]:
        positions, counts = corpus.postings(term)
        weight = np.float32(compute_idf(len(corpus), len(positions)) * (K1 + 1))
        nearness[positions] += weight * counts / (counts + corpus.norms[positions])
    nearness[~is_allowed] = 0
    return nearness


def _add_meaning(corpus: Corpus, ranking: Ranking, leader: int, nearness: Floats) -> Floats:
    """Add nearness by meaning, in standard deviations, to the nearness by words of the likely companions of a leader.

    If the leader or a likely companion has no vector yet, nearness by words is returned unchanged.
    """
    space, vector = ranking.query.space, ranking.query.vector
    assert space is not None
    assert vector is not None
    likely_positions = _find_likely_companions(corpus, ranking, leader, nearness)
    sample = np.unique(np.linspace(0, len(corpus) - 1, COMPARED_STATEMENTS).astype(np.int64))
    sample = sample[sample != leader]
    compared_positions = np.concatenate([[leader], likely_positions, sample])
    vectors = vectors_of(corpus, space, len(vector), corpus.documents(compared_positions))
    has_vector = np.count_nonzero(vectors, axis=1) > 0
    cosines = vectors[1:] @ vectors[0]
    likely_cosines, sample_cosines = cosines[: len(likely_positions)], cosines[len(likely_positions) :]
    sample_cosines = sample_cosines[has_vector[1 + len(likely_positions) :]]
    if not has_vector[: 1 + len(likely_positions)].all() or len(sample_cosines) == 0:
        return nearness
    mean = float(sample_cosines.mean())
    deviation = max(float(sample_cosines.std()), (1 - mean) * MIN_SPREAD, 1e-3)
    deviations = (likely_cosines - mean) / deviation
    is_related = (nearness[likely_positions] > 0) | (deviations >= RELATED_DEVIATIONS)
    total_nearness = nearness.copy()
    total_nearness[likely_positions] += np.float32(NATS_PER_DEVIATION) * np.where(
        is_related, np.maximum(0, deviations), 0
    )
    return total_nearness


def _find_likely_companions(corpus: Corpus, ranking: Ranking, leader: int, nearness: Floats) -> Ints:
    """Return the statements nearest to a leader by words, and the best later answers to the query."""
    by_words = find_largest_indices(nearness, COMPARED_STATEMENTS)
    by_words = by_words[nearness[by_words] > 0]
    is_later = np.isin(ranking.positions, corpus.following(leader))
    answers = ranking.positions[is_later][:COMPARED_STATEMENTS]
    is_statement = (corpus.column("length")[answers] <= MAX_STATEMENT_WORDS) & (
        corpus.column("group")[answers] < 0
    )
    answers = answers[is_statement]
    return np.union1d(by_words, answers[answers != leader + 1])
