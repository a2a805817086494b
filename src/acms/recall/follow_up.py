"""Follow-ups: a query without a subject of its own, such as "And how much is it?", is about that of the turn before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from acms.ports import StorageBackend
from acms.recall.asking_messages import AskingMessages
from acms.recall.corpus import Corpus
from acms.recall.query import Query, QueryWord, contentless_terms, parse_query

MOST_SUBJECT_WORDS = 32
"""Words of a message that names a subject; more are a text that was pasted."""


async def add_subject_before(
    storage: StorageBackend, corpus: Corpus, query: Query, asking: AskingMessages
) -> Query:
    """Return a follow-up with the subject words of the user's message before it; other queries unchanged."""
    if not query.is_follow_up:
        return query
    by_user = np.flatnonzero(corpus.user_labels[corpus.labels[0]])
    earlier = np.setdiff1d(by_user[by_user >= corpus.start], asking.positions)
    if not len(earlier):
        return query
    (entry,) = await storage.get([corpus.snapshot.doc(corpus.document(int(earlier[-1]))).id])
    subject = [] if entry is None else _find_subject_words(entry.content, query)
    if len(subject) > MOST_SUBJECT_WORDS:
        return query
    return replace(query, words=(*query.words, *subject)) if subject else query


def _find_subject_words(text: str, query: Query) -> list[QueryWord]:
    """Return the words of a text that name a subject, without those that a query has already."""
    known = contentless_terms().union(*(word.terms for word in query.words))
    words = parse_query(text).words
    return [word for word in words if not word.is_common and word.terms[0] not in known]
