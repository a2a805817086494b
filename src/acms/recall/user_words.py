"""The user's words in the log of an agent: rules and corrections that hold whatever is asked later.

Such a log is mostly outputs of tools, and a turn is about one of its subjects. A question about a test shares no word
with "Never touch production", so no ranking finds it; but what the user said is short, and the outputs are not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from acms.model import Role
from acms.recall.corpus import Corpus
from acms.recall.index import Ints
from acms.text.index_record import EXTERNAL

LONGEST = 120
"""Tokens of a message, at most: a longer one is a pasted text, of which excerpts are found by what they say."""
TELLING = 5
"""Words from which a message says more than "Next, please"."""
SPEAKER_TOKENS = 4
"""Tokens that a message takes besides its text."""


def find_user_words(corpus: Corpus, max_tokens: int) -> Ints:
    """Return the positions of short messages of the user, each with its answer, and of marked ones, in an agent's log.

    Of the searched log they take at most `max_tokens` tokens: the first one, then the newest of those with some words,
    then the newest of all others. Of a log without tool calls nothing is returned: there such messages are the log.
    """
    is_own = np.arange(len(corpus)) >= corpus.start
    is_single = corpus.column("group") < 0
    if not (is_own & ~is_single).any():
        return np.zeros(0, np.int64)
    codes, labels = corpus.labels
    is_user = is_own & corpus.roles[0][codes]
    is_assistant = np.array([label.role is Role.ASSISTANT for label in labels], bool)[codes]
    is_external = (corpus.column("flags") & EXTERNAL) != 0
    tokens = corpus.column("tokens")
    is_short = is_own & is_single & ~is_external & (tokens <= LONGEST)
    is_marked = corpus.marker_mask()
    says_something = is_user if is_marked is None else is_user | is_marked
    positions = np.flatnonzero(is_short & says_something)
    turns = np.append(np.flatnonzero(is_user), len(corpus))
    answers = np.flatnonzero(is_short & is_assistant)
    chosen: list[int] = []
    remaining = max_tokens
    for position in _order_by_worth(positions, corpus.column("length")):
        words = [position]
        turn_end = int(turns[np.searchsorted(turns, position, side="right")])
        last_answer = int(np.searchsorted(answers, turn_end)) - 1
        if last_answer >= 0 and answers[last_answer] > position:
            words.append(int(answers[last_answer]))
        costs = [int(tokens[word]) + SPEAKER_TOKENS for word in words]
        if sum(costs) > remaining:  # without its answer, if that fits
            words, costs = words[:1], costs[:1]
        remaining -= sum(costs)
        if remaining < 0:
            break
        chosen += words
    return np.unique(np.array(chosen, np.int64))


def _order_by_worth(positions: Ints, lengths: NDArray[Any]) -> list[int]:
    """Return positions: the first one, then the newest with at least `TELLING` words, then the newest others."""
    newest_first = positions[:0:-1]
    is_telling = lengths[newest_first] >= TELLING
    ordered = np.concatenate([positions[:1], newest_first[is_telling], newest_first[~is_telling]])
    in_order: list[int] = ordered.tolist()
    return in_order
