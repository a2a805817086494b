"""Exchanges: a question is recalled with its answer.

What was asked earlier says nothing without what was answered, but it shares its words with many later questions; and an
answer such as "94 kilos" shares none with them. So a question and its answer are one unit, like a tool call and its
results, whether the user asks or the assistant. A request of a routine form, such as "Show week 7 by customer", is a
question of the user too. Statements stay alone. So does a question of the user without an answer, which says what the
user wants; one of the assistant is not recalled.
"""

from __future__ import annotations

from typing import NamedTuple

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


class Exchanges(NamedTuple):
    """The questions among the answers of a ranking."""

    #: Positions of question and answer, by both.
    pairs: dict[int, tuple[int, int]]
    #: Positions of all questions of the assistant.
    of_assistant: frozenset[int]


def find_exchanges(corpus: Corpus, ranking: Ranking) -> Exchanges:
    """Return the questions that answer the query of a ranking, with their own answers.

    A question is no answer to another one. Of a question that was asked several times only the newest answer counts.
    """
    codes, labels = corpus.labels
    flags = corpus.column("flags")
    is_user = corpus.user_labels[codes]
    is_assistant = np.array([label.role is Role.ASSISTANT for label in labels], bool)[codes]
    if not is_assistant.any():
        return Exchanges({}, frozenset())
    is_message = (corpus.column("group") < 0) & (flags & (EMPTY | EXTERNAL) == 0)
    only_asks = (flags & QUESTION) != 0
    may_answer = is_message & ~only_asks
    if ranking.allowed is not None:
        may_answer &= ranking.allowed
    answers = ranking.positions[ranking.find_answers(ranking.positions)]
    of_user = _find_questions_of_user(corpus, ranking, answers[is_user[answers]], is_user)
    of_assistant = np.sort(answers[(is_message & is_assistant & only_asks)[answers]])
    replies_to_user = find_replies(corpus, of_user, may_answer & is_assistant)
    may_answer[of_user] = False
    replies_to_assistant = _find_replies_to_assistant(corpus, of_assistant, may_answer & is_user)
    questions = np.concatenate([of_user, of_assistant])
    replies = np.concatenate([replies_to_user, replies_to_assistant])
    prints = corpus.column("print")[questions].tolist()
    newest: dict[tuple[bool, int], tuple[int, int]] = {}  # by who asks and the words of the question
    for index, (question, reply) in enumerate(zip(questions.tolist(), replies.tolist(), strict=True)):
        if reply >= 0:
            newest[index < len(of_user), prints[index]] = (question, reply)
    pairs = {position: exchange for exchange in newest.values() for position in exchange}
    return Exchanges(pairs, frozenset(of_assistant.tolist()))


def _find_replies_to_assistant(corpus: Corpus, positions: Ints, is_reply: NDArray[np.bool_]) -> Ints:
    """Return the next message of the user after each of some questions, which are ascending, if it is a reply; else -1.

    Of several questions before it, it answers the last.
    """
    users = np.append(np.flatnonzero(corpus.user_labels[corpus.labels[0]]), -1)
    replies = users[np.searchsorted(users[:-1], positions, side="right")]
    answers = is_reply[replies] & (replies > positions)
    answers[:-1] &= replies[1:] != replies[:-1]
    logs = corpus.snapshot.logs
    if logs is not None:
        answers &= logs[corpus.documents(replies)] == logs[corpus.documents(positions)]
    return np.where(answers, replies, -1)


def _find_questions_of_user(
    corpus: Corpus, ranking: Ranking, positions: Ints, is_user: NDArray[np.bool_]
) -> Ints:
    """Return which messages of the user are questions or routine requests; `positions` are those that answer."""
    only_asks = (corpus.column("flags")[positions] & QUESTION) != 0
    is_rule = np.array(ranking.topics_of(positions)) == Topic.USER_WORDS
    may_be_routine = ~only_asks & ~is_rule & (corpus.column("length")[positions] <= ROUTINE_WORDS)
    if may_be_routine.any():
        newest = np.flatnonzero(is_user)[-MOST_COMPARED:].tolist()
        routine_terms = find_routine_terms([corpus.terms_at(position) for position in newest])
        for index in np.flatnonzero(may_be_routine).tolist():
            only_asks[index] = is_routine(corpus.terms_at(int(positions[index])), routine_terms)
    return np.sort(positions[only_asks])
