"""Exchanges: a question is recalled with its answer, or not at all.

What was asked earlier says nothing without what was answered, but it shares its words with many later questions. So a
question of the user and its answer are one unit, like a tool call and its results. A request of a routine form, such as
"Show week 7 by customer", is a question too. A statement of the user stays alone, and so does a question without an
answer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from acms.model import Role
from acms.recall.corpus import Corpus
from acms.recall.index import Ints
from acms.recall.planner import Topic
from acms.recall.ranking import Ranking
from acms.recall.user_words import MOST_COMPARED, find_replies, find_routine_terms, is_routine
from acms.text.index_record import EMPTY, EXTERNAL, QUESTION

ROUTINE_WORDS = 12
"""Words of a routine request, at most: a longer message about the usual subject says something new of it.

Without this limit BEAM loses 20 points of evidence within 2,000 tokens: half of the words of a project are routine.
"""


def find_exchanges(corpus: Corpus, ranking: Ranking) -> dict[int, tuple[int, int]]:
    """Return the positions of question and answer, by both, for the questions that answer the query of a ranking.

    Of a question that was asked several times only the newest answer counts.
    """
    codes, labels = corpus.labels
    flags = corpus.column("flags")
    is_reply = np.array([label.role is Role.ASSISTANT for label in labels], bool)[codes]
    is_reply &= (corpus.column("group") < 0) & (flags & (EMPTY | EXTERNAL) == 0)
    if ranking.allowed is not None:
        is_reply &= ranking.allowed
    if not is_reply.any():
        return {}
    positions = _find_questions(corpus, ranking, corpus.user_labels[codes])
    replies = find_replies(corpus, positions, is_reply)
    prints = corpus.column("print")[positions].tolist()
    newest: dict[int, tuple[int, int]] = {}  # by the words of the question
    for words, question, reply in zip(prints, positions.tolist(), replies.tolist(), strict=True):
        if reply >= 0:
            newest[words] = (question, reply)
    return {position: exchange for exchange in newest.values() for position in exchange}


def _find_questions(corpus: Corpus, ranking: Ranking, is_user: NDArray[np.bool_]) -> Ints:
    """Return the positions of the questions and routine requests of the user among the answers of a ranking."""
    positions = ranking.positions[is_user[ranking.positions]]
    positions = positions[ranking.find_answers(positions)]
    only_asks = (corpus.column("flags")[positions] & QUESTION) != 0
    is_rule = np.array(ranking.topics_of(positions)) == Topic.USER_WORDS
    may_be_routine = ~only_asks & ~is_rule & (corpus.column("length")[positions] <= ROUTINE_WORDS)
    if may_be_routine.any():
        newest = np.flatnonzero(is_user)[-MOST_COMPARED:].tolist()
        routine_terms = find_routine_terms([corpus.terms_at(position) for position in newest])
        for index in np.flatnonzero(may_be_routine).tolist():
            only_asks[index] = is_routine(corpus.terms_at(int(positions[index])), routine_terms)
    return np.sort(positions[only_asks])
