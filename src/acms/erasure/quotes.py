"""Quotes: entries that repeat an erased message word for word, although they were not made from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from acms.model import Entry
from acms.privacy.detect import find_sensitive_spans

LEAST_WORDS, LEAST_CHARACTERS = 3, 8
"""Shorter texts, such as "yes, please", occur again by chance."""
RUN, RUN_WITH_NUMBER = 6, 4
"""Words in a row that another entry shares only if it quotes; fewer if one of them has a digit, as in an address."""
LEAST_SECRET = 6
"""Characters of a telephone number, an address, a password and the like, which need not be as long as a text."""
MAX_PIECES = 1_000_000
"""Pieces and runs to search for, about 150 MB of memory."""
_KEY_WORDS = 3
_WORD = re.compile(r"\w+")
_DIGIT = re.compile(r"\d")


class QuoteIndex:
    """The texts of erased messages, to find them in other entries."""

    def __init__(self) -> None:
        #: First words → whole texts and sensitive data that begin with them, each with the id of its message.
        self._pieces: dict[tuple[str, ...], dict[str, str]] = {}
        #: Hash of some words in a row → the id of a message that has them.
        self._runs: dict[int, str] = {}
        #: The very first word of every piece and run.
        self._first_words: set[str] = set()
        self._piece_count = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to search for."""
        return not self._first_words

    @property
    def is_full(self) -> bool:
        """Whether there may be texts that are not searched for, because they are too many."""
        return self._piece_count + len(self._runs) >= MAX_PIECES

    def list_gaps(self) -> list[str]:
        """Return descriptions of the texts that are not searched for; an empty list if all are."""
        if not self.is_full:
            return []
        return ["the erased texts are too many: quotes of the last ones were not searched for"]

    def add(self, entry: Entry) -> None:
        """Add the whole text of a message, runs of its words, and the sensitive data in it."""
        if self.is_full:
            return
        for piece in _split_pieces(entry.content):
            first_words = tuple(_WORD.findall(piece)[:_KEY_WORDS])
            if first_words:
                self._first_words.add(first_words[0])
                self._pieces.setdefault(first_words, {}).setdefault(piece, entry.id)
                self._piece_count += 1
        words = _WORD.findall(_normalize(entry.content))
        for position in range(len(words)):
            for run in _runs_at(words, position):
                self._first_words.add(run[0])
                self._runs.setdefault(hash(run), entry.id)

    def find_source(self, content: str) -> str | None:
        """Return the id of an erased message that a text quotes, or None."""
        text = _normalize(content)
        words = _WORD.findall(text)
        for position, word in enumerate(words):
            if word not in self._first_words:
                continue
            for run in _runs_at(words, position):
                if hash(run) in self._runs:
                    return self._runs[hash(run)]
            for length in range(1, _KEY_WORDS + 1):
                for piece, id in self._pieces.get(tuple(words[position : position + length]), {}).items():
                    if _contains(text, piece):
                        return id
        return None


def _split_pieces(content: str) -> Iterator[str]:
    """Yield the whole text of a message and the sensitive data in it, as far as they do not occur by chance."""
    text = _normalize(content).strip(" .!?…。！？")
    is_long = len(text.split()) >= LEAST_WORDS or " " not in text  # a key, or a language without spaces
    if is_long and len(text) >= LEAST_CHARACTERS:
        yield text
    for span in find_sensitive_spans(content):
        secret = _normalize(content[span.start : span.end])
        if len(secret) >= LEAST_SECRET and secret != text:
            yield secret


def _runs_at(words: Sequence[str], position: int) -> Iterator[tuple[str, ...]]:
    """Yield the runs of words at a position that are no common phrase."""
    short_run = tuple(words[position : position + RUN_WITH_NUMBER])
    if len(short_run) == RUN_WITH_NUMBER and any(map(_DIGIT.search, short_run)):
        yield short_run
    run = tuple(words[position : position + RUN])
    if len(run) == RUN:
        yield run


def _normalize(text: str) -> str:
    """Return a text without differences in case and spacing."""
    return " ".join(text.casefold().split())


def _contains(text: str, piece: str) -> bool:
    """Return whether a text has a piece that neither begins nor ends inside a word or a number."""
    position = text.find(piece)
    while position >= 0:
        before, after = text[position - 1 : position], text[position + len(piece) :][:1]
        begins_inside = before.isalnum() and before.isascii() and piece[0].isalnum()
        ends_inside = after.isalnum() and after.isascii() and piece[-1].isalnum()
        if not (begins_inside or ends_inside):
            return True
        position = text.find(piece, position + 1)
    return False
