"""Topic: whether other sessions of a namespace hold anything about a query."""

from __future__ import annotations

import numpy as np

from acms.recall.corpus import Corpus
from acms.recall.index import Ints
from acms.recall.query import Query, find_content_words
from acms.recall.scoring import Scores
from acms.text.tokenizer import compute_idf, subjectless_terms

LEAST_SHARE = 0.45
"""Share of the query that an exchange of another session must hold: a little less than half of its words."""
EXCHANGE_DISTANCE = 2
"""Messages before and after one that belong to its exchange, and may hold a part of its answer."""
EXAMINED_MESSAGES = 64
"""Best messages that are examined."""
MEANING_DEVIATIONS = 4.0
"""Standard deviations of meaning from which a message is about the query whatever its words."""


def concerns_others(corpus: Corpus, query: Query, scores: Scores, positions: Ints) -> bool:
    """Return whether other sessions hold something about a query; `positions` are the candidates, best first.

    They do if the query names a speaker, if a candidate is near in meaning, or if the messages around a candidate hold
    about half of the query's content or two of its words that are rare together. A single shared word is not enough:
    a question on a new topic would recall anything that shares it.
    """
    if query.speakers:
        return True
    content = find_content_words(query)
    best = positions[positions < corpus.start][:EXAMINED_MESSAGES]
    if not content or not len(best):
        return False
    if scores.meaning_own is not None and float(scores.meaning_own[best].max()) >= MEANING_DEVIATIONS:
        return True
    exchange_start = np.maximum(best - EXCHANGE_DISTANCE, 0)
    exchange_end = np.minimum(best + EXCHANGE_DISTANCE + 1, corpus.start)
    information = np.zeros(len(best), np.float32)
    subject_words = np.zeros(len(best), np.int64)
    for index in content:
        holders, weight = scores.holders[index], scores.rarities[index]
        is_held = holders.searchsorted(exchange_start) < holders.searchsorted(exchange_end)
        information += np.float32(weight) * is_held
        if query.words[index].terms[0] not in subjectless_terms():
            subject_words += is_held
    total = sum(scores.rarities[index] for index in content)
    rarest = compute_idf(len(corpus), 0)
    holds_half = information >= LEAST_SHARE * total
    holds_rare_words = (subject_words > 1) & (information >= rarest)
    return bool((holds_half | holds_rare_words).any())
