"""Topic: the content words of a query, and whether other sessions have anything to say about it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from acms.recall.corpus import Corpus
from acms.recall.index import Ints
from acms.recall.query import Query
from acms.recall.scoring import Scores
from acms.text.tokenizer import compute_idf, function_terms, primary_term, subjectless_terms

LEAST_SHARE = 0.45
"""Share of the query that an exchange of another session must hold: a little less than half of its words."""
EXCHANGE = 2
"""Messages before and after one that belong to its exchange, and may hold a part of its answer."""
BEST = 64
"""Best messages that are examined."""
MEANING = 4.0
"""Standard deviations of meaning from which a message is about the query whatever its words."""

_COURTESIES = """
    hi hey hello bye goodbye ciao hola hallo salut bonjour morning evening night thanks thank thx merci gracias danke
    grazie obrigado obrigada please sorry welcome cheers ok okay yes yeah yep yup no nope sure right alright great good
    nice fine cool perfect awesome wow lol haha hmm well continue go see later noted understood ja nein oui non si sí
    não sim bitte gern gut bien bueno bom
"""


@lru_cache(maxsize=1)
def contentless_terms() -> frozenset[int]:
    """Return the primary terms of words that ask nothing: function words of English, and courtesies."""
    return function_terms() | frozenset(map(primary_term, _COURTESIES.split()))


def find_content_words(query: Query) -> list[int]:
    """Return the indexes of the content words of a query; none for a greeting or an acknowledgment.

    A courtesy counts like any other word if other content words are present: "the right night".
    """
    function = function_terms()
    content = [
        index for index, word in enumerate(query.words) if word.is_name or word.terms[0] not in function
    ]
    for index in content:
        word = query.words[index]
        if word.is_name or word.terms[0] not in contentless_terms():
            return content
    return []


def concerns_others(corpus: Corpus, query: Query, scores: Scores, positions: Ints) -> bool:
    """Return whether other sessions say something about a query.

    They do if it names a speaker, its meaning is near, or one exchange holds about half of its content, or two of its
    words that are rare together. Otherwise a question on a new topic would recall anything that shares one of its
    words. `positions` are the candidates, best first.
    """
    if query.speakers:
        return True
    content = find_content_words(query)
    best = positions[positions < corpus.start][:BEST]
    if not content or not len(best):
        return False
    if scores.meaning_own is not None and float(scores.meaning_own[best].max()) >= MEANING:
        return True
    first, last = np.maximum(best - EXCHANGE, 0), np.minimum(best + EXCHANGE + 1, corpus.start)
    information = np.zeros(len(best), np.float32)
    subject_words = np.zeros(len(best), np.int64)
    for index in content:
        holders, weight = scores.holders[index], scores.rarities[index]
        is_held = holders.searchsorted(first) < holders.searchsorted(last)
        information += np.float32(weight) * is_held
        if query.words[index].terms[0] not in subjectless_terms():
            subject_words += is_held
    total = sum(scores.rarities[index] for index in content)
    rarest = compute_idf(len(corpus), 0)
    holds_half = information >= LEAST_SHARE * total
    holds_rare_words = (subject_words > 1) & (information >= rarest)
    return bool((holds_half | holds_rare_words).any())
