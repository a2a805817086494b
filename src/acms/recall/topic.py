"""Topic: which messages of a namespace's other sessions are searched for a query."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from acms.recall.corpus import Corpus
from acms.recall.index import Ints
from acms.recall.query import Query, find_content_words
from acms.recall.scoring import Scores
from acms.text.tokenizer import compute_idf

LEAST_SHARE = 0.45
"""Share of the query that an exchange of another session must hold: a little less than half of its words."""
EXCHANGE_DISTANCE = 2
"""Messages before and after one that belong to its exchange, and may hold a part of its answer."""
EXAMINED_MESSAGES = 64
"""Best messages that are examined."""
MEANING_DEVIATIONS = 4.0
"""Standard deviations of meaning from which a message is about the query whatever its words."""
RARE_EXCHANGES = 2
"""Exchanges that may hold a word for it to be enough by itself.

Words that few texts hold make up about the same share of any new text, however many texts there are (Zipf's law). So
a fixed number keeps the share of unrelated queries that match by chance the same in small and in large namespaces.
"""


def find_searched_others(corpus: Corpus, query: Query, scores: Scores, positions: Ints) -> NDArray[np.bool_]:
    """Return which messages of other sessions are searched for a query; `positions` are the candidates, best first.

    All of them are if they concern the query. Otherwise only the exchanges with a rare word of it are: a word that
    names a subject and that at most `RARE_EXCHANGES` exchanges hold.
    """
    if concerns_others(corpus, query, scores, positions):
        return np.ones(corpus.start, bool)
    is_searched = np.zeros(corpus.start, bool)
    for index in find_content_words(query):
        holders = scores.holders[index]
        holders = holders[holders < corpus.start]
        if query.words[index].is_common or not _fit_few_exchanges(holders):
            continue
        for position in holders.tolist():
            is_searched[max(0, position - EXCHANGE_DISTANCE) : position + EXCHANGE_DISTANCE + 1] = True
    return is_searched


def _fit_few_exchanges(positions: Ints) -> bool:
    """Return whether messages at some positions, which are ascending, are of at most `RARE_EXCHANGES` exchanges."""
    exchanges = int(np.count_nonzero(np.diff(positions) > EXCHANGE_DISTANCE)) + 1
    most_messages = RARE_EXCHANGES * (2 * EXCHANGE_DISTANCE + 1)
    return exchanges <= RARE_EXCHANGES and len(positions) <= most_messages


def concerns_others(corpus: Corpus, query: Query, scores: Scores, positions: Ints) -> bool:
    """Return whether other sessions as a whole concern a query.

    They do if the query names a speaker, if a candidate is near in meaning, or if the messages around a candidate hold
    about half of the query's content or two of its words that are rare together.
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
        if not query.words[index].is_common:
            subject_words += is_held
    total = sum(scores.rarities[index] for index in content)
    rarest = compute_idf(len(corpus), 0)
    holds_half = information >= LEAST_SHARE * total
    holds_rare_words = (subject_words > 1) & (information >= rarest)
    return bool((holds_half | holds_rare_words).any())
