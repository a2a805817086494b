"""Search for texts in raw bytes: of a database file, or of the files of a server.

A long text is split across the pages of a file, so it is searched for in pieces, all at once: the first eight bytes of
each are a number, and a table tells for every eight bytes of the file whether they could be one. Compressed database
content is not searched.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # loaded when something is looked for
    import numpy as np

PIECE = 64
"""Bytes of a piece; of a longer text no 127 bytes in a row can be there unnoticed."""
MIN_TEXT_BYTES = 8
"""Bytes of the shortest text that is looked for: a shorter one is found by chance."""

_BITS = 22


class Traces:
    """Texts to search for, in UTF-8 and in their JSON form."""

    #: Bytes of the longest piece: chunks must overlap by one byte less.
    longest = PIECE

    def __init__(self, texts: Iterable[bytes]) -> None:
        import numpy as np

        self._pieces: dict[int, set[bytes]] = {}
        for text in texts:
            for form in iter_text_forms(text):
                # Pieces are looked up by their first eight bytes, as a number.
                for piece in _split_pieces(form):
                    self._pieces.setdefault(int.from_bytes(piece[:MIN_TEXT_BYTES], "little"), set()).add(
                        piece
                    )
        self._starts = np.array(sorted(self._pieces), np.uint64)
        #: By the hash of eight bytes: whether a piece may begin with them.
        self._table = np.zeros(1 << _BITS, np.bool_)
        self._table[self._hash_words(self._starts)] = True

    def __bool__(self) -> bool:
        """Return whether there is anything to look for."""
        return bool(self._pieces)

    @staticmethod
    def _hash_words(words: np.ndarray) -> np.ndarray:
        golden_ratio = words.dtype.type(0x9E3779B97F4A7C15)  # of 64 bits: Fibonacci hashing
        return (words * golden_ratio) >> words.dtype.type(64 - _BITS)

    def find(self, data: bytes) -> dict[bytes, int]:
        """Return the pieces that some bytes contain, each with its first position.

        All eight-byte words are looked up in a table of the words with which pieces begin, at each of the eight
        alignments.
        """
        import numpy as np

        first_positions: dict[bytes, int] = {}
        for shift in range(min(MIN_TEXT_BYTES, len(data) - MIN_TEXT_BYTES + 1)):
            words = np.frombuffer(data, "<u8", (len(data) - shift) // MIN_TEXT_BYTES, shift)
            candidates = np.flatnonzero(self._table[self._hash_words(words)])
            for word in candidates[np.isin(words[candidates], self._starts)].tolist():
                start = shift + word * MIN_TEXT_BYTES
                for piece in self._pieces[int(words[word])]:
                    if data.startswith(piece, start):
                        first_positions[piece] = min(first_positions.get(piece, start), start)
        return first_positions


def iter_text_forms(text: bytes) -> Iterator[bytes]:
    """Yield a text in its plain form and in its JSON form."""
    yield text
    escaped = json.dumps(text.decode(errors="ignore"), ensure_ascii=False)[1:-1].encode()
    if escaped != text:
        yield escaped


def find_repeating_values(values: Iterable[tuple[str, str]], texts: Iterable[bytes]) -> list[str]:
    """Return which keys of a key-value memory hold a value, in JSON, that repeats a text of a sentence or more."""
    needles = {
        form.decode(errors="ignore")
        for text in texts
        if len(text) >= 16  # bytes: a shorter one may come from anywhere
        for form in iter_text_forms(text)
    }
    return [
        f"the key-value memory repeats it under the key {key!r}: delete(key)"
        for key, value in values
        if any(text in value for text in needles)
    ]


def _split_pieces(text: bytes) -> Iterator[bytes]:
    """Yield the pieces of a text by which it is found; the last one overlaps the one before it."""
    if len(text) < MIN_TEXT_BYTES:
        return
    for start in range(0, len(text), PIECE):
        piece = text[start : start + PIECE]
        yield piece if len(piece) == PIECE else text[-PIECE:]
