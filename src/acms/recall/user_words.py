"""The user's words in the log of an agent: rules and corrections that hold whatever is asked later.

Such a log is mostly outputs of tools, and a turn is about one of its subjects. A question about a test shares no word
with "Never touch production", so no ranking finds it; but what the user said is short, and the outputs are not.
"""

from __future__ import annotations

import numpy as np

from acms.recall.corpus import Corpus
from acms.recall.index import Ints
from acms.text.index_record import EXTERNAL

LONGEST = 120
"""Tokens of a message, at most: a longer one is a pasted text, of which excerpts are found by what they say."""
SPEAKER_TOKENS = 4
"""Tokens that a message takes besides its text."""


def find_user_words(corpus: Corpus, max_tokens: int) -> Ints:
    """Return the positions of short messages of the user, and of marked ones, in a log with tool calls.

    Of the searched log they take at most `max_tokens` tokens: the first one, then the newest ones. Of a log without
    tool calls nothing is returned: there the messages of the user are the log.
    """
    is_own = np.arange(len(corpus)) >= corpus.start
    if not (is_own & (corpus.column("group") >= 0)).any():
        return np.zeros(0, np.int64)
    says_something = corpus.roles[0][corpus.labels[0]]
    is_marked = corpus.marker_mask()
    if is_marked is not None:
        says_something = says_something | is_marked
    tokens = corpus.column("tokens")
    is_external = (corpus.column("flags") & EXTERNAL) != 0
    is_single = corpus.column("group") < 0
    positions = np.flatnonzero(is_own & says_something & is_single & ~is_external & (tokens <= LONGEST))
    first_then_newest = np.concatenate([positions[:1], positions[1:][::-1]])
    costs = tokens[first_then_newest].astype(np.int64) + SPEAKER_TOKENS
    return np.asarray(first_then_newest[costs.cumsum() <= max_tokens], np.int64)
