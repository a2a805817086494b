"""The user's words in the log of an agent: rules and corrections that hold whatever is asked later.

Such a log is mostly outputs of tools, and a turn is about one of its subjects. A question about a test shares no word
with "Never touch production", so no ranking finds it; but what the user said is short, and the outputs are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from acms.model import Role
from acms.recall.corpus import Corpus
from acms.recall.index import NO_POSITIONS, Ints
from acms.text.index_record import EXTERNAL, QUESTION
from acms.text.tokenizer import compute_idf, function_terms, subjectless_terms

MAX_MESSAGE_TOKENS = 120
"""Tokens of a message, at most: a longer one is a pasted text, of which excerpts are found by what they say."""
UNUSUAL_SHARE = 0.5
"""Share of a message's words that are not routine, above which it says more than "Next, please: T-12"."""
ROUTINE_SHARE = 0.08
"""Share of the messages that hold a routine word, such as "ticket" where the user hands over one after the other."""
MIN_ROUTINE_MESSAGES = 4
"""So many messages make no word routine: the rule and its corrections share their words."""
MOST_COMPARED = 128
"""Newest messages that are compared to find out which words are routine; of older ones it is not known."""
SPEAKER_TOKENS = 4
"""Tokens that a message takes besides its text."""


def find_user_words(corpus: Corpus, max_tokens: int) -> Ints:
    """Return the positions of short messages of the user, each with its answer, and of marked ones, in an agent's log.

    Of the searched log they take at most `max_tokens` tokens, in the order of `_order_by_worth`. Of a log without tool
    calls nothing is returned: there such messages are the log.
    """
    is_own = np.arange(len(corpus)) >= corpus.start
    is_single = corpus.column("group") < 0
    if not (is_own & ~is_single).any():
        return NO_POSITIONS
    codes, labels = corpus.labels
    is_user = is_own & corpus.user_labels[codes]
    is_assistant = np.array([label.role is Role.ASSISTANT for label in labels], bool)[codes]
    is_external = (corpus.column("flags") & EXTERNAL) != 0
    tokens = corpus.column("tokens")
    is_short = is_own & is_single & ~is_external & (tokens <= MAX_MESSAGE_TOKENS)
    only_asks = (corpus.column("flags") & QUESTION) != 0
    is_marked = corpus.marker_mask()
    says_something = is_user & ~only_asks if is_marked is None else (is_user & ~only_asks) | is_marked
    positions = np.flatnonzero(is_short & says_something)
    replies = dict(
        zip(positions.tolist(), find_replies(corpus, positions, is_short & is_assistant), strict=True)
    )
    chosen: list[int] = []
    remaining = max_tokens
    for position in _order_by_worth(corpus, positions):
        reply = int(replies[position])
        words = [position] if reply < 0 else [position, reply]
        costs = [int(tokens[word]) + SPEAKER_TOKENS for word in words]
        if sum(costs) > remaining:  # without its answer, if that fits
            words, costs = words[:1], costs[:1]
        remaining -= sum(costs)
        if remaining < 0:
            break
        chosen += words
    return np.unique(np.array(chosen, np.int64))


def find_replies(corpus: Corpus, positions: Ints, is_reply: NDArray[np.bool_]) -> Ints:
    """Return the last reply to each of some messages before the next message of the user; -1 for one without any."""
    users = np.flatnonzero(corpus.user_labels[corpus.labels[0]])
    turn_ends = np.append(users, len(corpus))[np.searchsorted(users, positions, side="right")]
    candidates = np.append(np.flatnonzero(is_reply), -1)  # index -1 is that of no reply
    replies = candidates[np.searchsorted(candidates[:-1], turn_ends) - 1]
    is_later = replies > positions
    logs = corpus.snapshot.logs
    if logs is not None:
        is_later &= logs[corpus.documents(replies)] == logs[corpus.documents(positions)]
    return np.where(is_later, replies, -1)


def _order_by_worth(corpus: Corpus, positions: Ints) -> list[int]:
    """Return positions: the first one, those that may correct it, then the newest; routine ones are left out.

    Rules stand in the first message. Those behind it that share a word with it, other than routine words, come next, or
    an old rule would be shown without its correction: first those that share most of its rare words.
    """
    first, newest_first = positions[:1], positions[:0:-1]
    terms_by_position = {
        position: corpus.terms_at(position)
        for position in [*first.tolist(), *newest_first[:MOST_COMPARED].tolist()]
    }
    routine_terms = find_routine_terms(terms_by_position.values())
    subjects = [
        term
        for position in first.tolist()
        for term in terms_by_position[position] - routine_terms - subjectless_terms()
    ]
    shared_information = np.zeros(len(corpus), np.float32)
    for term in subjects:
        holders, _ = corpus.postings(term)
        shared_information[holders] += compute_idf(len(corpus), len(holders))
    is_related = shared_information[newest_first] > 0
    related = newest_first[is_related]
    related = related[np.argsort(-shared_information[related], kind="stable")]
    informative: list[int] = []
    for position in newest_first[~is_related].tolist():
        terms = terms_by_position.get(position)
        if terms is None or not is_routine(terms, routine_terms):
            informative.append(position)
    return [*first.tolist(), *related.tolist(), *informative]


def is_routine(terms: frozenset[int], routine_terms: frozenset[int]) -> bool:
    """Return whether at most `UNUSUAL_SHARE` of the terms of a message that name something are not routine."""
    naming_terms = terms - subjectless_terms()
    return len(naming_terms - routine_terms) <= UNUSUAL_SHARE * len(naming_terms)


def find_routine_terms(terms_by_message: Collection[frozenset[int]]) -> frozenset[int]:
    """Return the terms that many of some messages hold, and function words."""
    message_counts = Counter(term for terms in terms_by_message for term in terms)
    max_count = max(MIN_ROUTINE_MESSAGES, ROUTINE_SHARE * len(terms_by_message))
    return function_terms().union(term for term, count in message_counts.items() if count > max_count)
