"""Quotes: entries that repeat an erased message word for word, although they were not made from it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from acms.model import Entry
from acms.privacy.detect import find_sensitive_spans

LEAST_WORDS, LEAST_CHARACTERS = 3, 8
"""Shorter texts, such as "yes, please", occur again by chance."""
RUN, RUN_WITH_NUMBER = 6, 4
"""Words in a row that another entry shares only if it quotes; fewer if one of them has a digit, as in an address."""
LEAST_SECRET = 6
"""Characters of a telephone number, an address, a password and the like, which need not be as long as a text."""
MAX_PIECES = 200_000
"""Pieces to search for, about 100 MB of memory."""
_KEY_WORDS = 3
_WORD = re.compile(r"\w+")
_DIGIT = re.compile(r"\d")


class QuoteIndex:
    """Pieces of erased messages, by their first words."""

    def __init__(self) -> None:
        #: First words → the pieces that begin with them, each with the id of its message.
        self._pieces: dict[tuple[str, ...], dict[str, str]] = {}
        #: The very first word of every piece.
        self._first_words: set[str] = set()
        self._count = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to search for."""
        return not self._pieces

    def add(self, entry: Entry) -> None:
        """Add the whole text of a message, and the sensitive data in it."""
        for piece in _split_pieces(entry.content):
            if self._count >= MAX_PIECES:
                return
            first_words = tuple(_WORD.findall(piece)[:_KEY_WORDS])
            if first_words:
                self._first_words.add(first_words[0])
                self._pieces.setdefault(first_words, {}).setdefault(piece, entry.id)
                self._count += 1

    def find_source(self, content: str) -> str | None:
        """Return the id of an erased message that a text quotes, or None."""
        text = _normalize(content)
        words = _WORD.findall(text)
        for position, word in enumerate(words):
            if word not in self._first_words:
                continue
            for length in range(1, _KEY_WORDS + 1):
                for piece, id in self._pieces.get(tuple(words[position : position + length]), {}).items():
                    if _contains(text, piece):
                        return id
        return None


def _split_pieces(content: str) -> Iterator[str]:
    """Yield the parts of a message that show, if another entry has them, that it quotes the message."""
    text = _normalize(content).strip(" .!?…。！？")
    is_long = len(text.split()) >= LEAST_WORDS or " " not in text  # a key, or a language without spaces
    if is_long and len(text) >= LEAST_CHARACTERS:
        yield text
    yield from _split_runs(text)
    for span in find_sensitive_spans(content):
        secret = _normalize(content[span.start : span.end])
        if len(secret) >= LEAST_SECRET and secret != text:
            yield secret


def _split_runs(text: str) -> Iterator[str]:
    """Yield each run of so many words of a normalized text that it is no common phrase."""
    words = list(_WORD.finditer(text))
    for length in (RUN_WITH_NUMBER, RUN):
        for first, last in zip(words, words[length - 1 :], strict=False):
            run = text[first.start() : last.end()]
            if length == RUN or _DIGIT.search(run):
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
