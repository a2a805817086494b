"""Messages that ask what a query asks: the query itself, and earlier requests of the same form.

A query without a subject of its own, such as "And how much is it?", asks about the subject of the turn before.

An agent that works through tickets is asked "Next please look into ticket T-140" forty times. All of these share every
word but 140 with the newest, and none of them answers it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from acms.ports import StorageBackend
from acms.recall.corpus import Corpus
from acms.recall.index import NO_POSITIONS, Ints
from acms.recall.query import Query, QueryWord, contentless_terms, parse_query
from acms.text.function_words import QUESTION_MARKS
from acms.text.index_record import sign_words
from acms.text.tokenizer import function_terms, primary_term, split_words

ROUTINE_REPETITIONS = 3
"""Earlier requests of the same form from which on a form is routine."""
MOST_COMPARED = 256
"""Newest messages with the words of a query that may be requests of its form."""
MOST_SUBJECT_WORDS = 32
"""Words of a message that names a subject; more are a text that was pasted."""
MOST_READ = 3
"""Texts that are read to find one with the form of a query: most messages with all its words have it."""


class AskingMessages(NamedTuple):
    """The messages that ask a query."""

    #: Their positions.
    positions: Ints
    #: Position of the last entry if the user asks the query word by word there, otherwise -1.
    query_position: int


async def find_asking_messages(
    storage: StorageBackend, corpus: Corpus, query: Query, text: str
) -> AskingMessages:
    """Return the messages that ask a query, of which `text` is the wording: they are no answers.

    These are the query itself and, if its form is routine, earlier requests of the form, but not the newest of them.
    """
    position, is_verbatim = await _find_query(storage, corpus, query, text)
    is_last = position == len(corpus) - 1 == corpus.newest_of_user
    query_position = position if is_verbatim and is_last else -1
    own = NO_POSITIONS if position < 0 else np.array([position])
    repetitions = np.setdiff1d(await _find_repetitions(storage, corpus, text), own)
    if len(repetitions) < ROUTINE_REPETITIONS:
        return AskingMessages(own, query_position)
    return AskingMessages(np.append(repetitions[:-1], own), query_position)


async def _find_query(storage: StorageBackend, corpus: Corpus, query: Query, text: str) -> tuple[int, bool]:
    """Return the position of the newest message that is the query itself, or -1; and whether it is so word by word.

    A message with other words around the same subject is the query only if it asks something: "The deadline is March
    15." answers "Is the deadline March 15?".
    """
    query_words = split_words(text)
    for position in _find_possible_queries(corpus, query.resolve_names(corpus.count_holders), query_words):
        content = await _read_content(storage, corpus, position)
        if content is None:
            continue
        is_verbatim = split_words(content) == query_words
        if is_verbatim or content.rstrip().endswith(QUESTION_MARKS):
            return position, is_verbatim
    return -1, False


def repeats_query(corpus: Corpus, query: Query, position: int) -> bool:
    """Return whether an entry holds all words of a query and, function words aside, no others."""
    term_array, _ = corpus.snapshot.terms_of(corpus.document(position))
    entry_terms = frozenset(term_array.tolist())
    if not all(word.terms[0] in entry_terms for word in query.words):
        return False
    query_terms = {term for word in query.words for term in word.terms}
    return entry_terms - function_terms() <= query_terms


def _find_possible_queries(corpus: Corpus, query: Query, query_words: Sequence[str]) -> list[int]:
    """Return the positions of the newest entry and the newest one of the user that may be a query.

    Their words are all those of its text, or those that it searches for, function words aside.
    """
    if not len(corpus) or not query_words:
        return []
    newest = dict.fromkeys((len(corpus) - 1, corpus.newest_of_user))
    signatures = corpus.column("exact")
    query_signature = sign_words(query_words)
    possible: list[int] = []
    for position in newest:
        if position < 0:
            continue
        has_same_words = int(signatures[position]) == query_signature
        if has_same_words or (query.words and repeats_query(corpus, query, position)):
            possible.append(position)
    return possible


# ── follow-ups ─────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── requests of the same form ───────────────────────────────────────────────────────────────────────────────────────


async def _find_repetitions(storage: StorageBackend, corpus: Corpus, text: str) -> Ints:
    """Return the positions of the messages of the user that have the form of a text, in their order.

    The form is the sequence of words without digits. The index keeps no order of words, so one message is read, and
    those with the same words and as many others are taken for its like.
    """
    form = _words_without_digits(text)
    positions = _find_holders_of_all(corpus, form)
    for position in positions[: -MOST_READ - 1 : -1].tolist():
        content = await _read_content(storage, corpus, position)
        if content is not None and _words_without_digits(content) == form:
            size = _count_terms(corpus, position)
            is_alike = [_count_terms(corpus, other) == size for other in positions.tolist()]
            return positions[is_alike]
    return NO_POSITIONS


def _find_holders_of_all(corpus: Corpus, words: Iterable[str]) -> Ints:
    """Return the positions of the newest messages of the user that hold all of some words."""
    terms = list({primary_term(word) for word in words})
    if len(terms) < 2 or not len(corpus):
        return NO_POSITIONS
    terms.sort(key=corpus.count_holders)
    codes, _ = corpus.labels
    positions, _ = corpus.postings(terms[0])
    positions = positions[corpus.user_labels[codes[positions]]]
    for term in terms[1:]:
        if len(positions) < ROUTINE_REPETITIONS:
            return NO_POSITIONS
        positions = positions[corpus.counts_at(term, positions) > 0]
    return positions[-MOST_COMPARED:]


def _count_terms(corpus: Corpus, position: int) -> int:
    """Return how many different terms the text of an entry has."""
    return len(corpus.snapshot.terms_of(corpus.document(position))[0])


def _words_without_digits(text: str) -> list[str]:
    return [word for word in split_words(text) if not any(map(str.isdigit, word))]


async def _read_content(storage: StorageBackend, corpus: Corpus, position: int) -> str | None:
    """Return the text of an entry; None if it is gone."""
    document = corpus.snapshot.doc(corpus.document(position))
    (entry,) = await storage.get([document.id])
    return None if entry is None else entry.content
