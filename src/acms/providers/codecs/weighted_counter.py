"""Estimate the tokens of a tokenizer that is not public from those of o200k_base and the characters by script."""

from __future__ import annotations

import math
from typing import NamedTuple

from acms.providers.tokens import default_counter

__all__ = ["ScriptWeights", "WeightedTokenCounter"]


class ScriptWeights(NamedTuple):
    """Weights of an estimate: tokens for each token of o200k_base, and further tokens for each character of a class."""

    token: float
    capital: float = 0.0
    accented: float = 0.0
    cyrillic: float = 0.0
    #: Other scripts of two bytes a character: Greek, Hebrew, Arabic, Armenian.
    two_bytes: float = 0.0
    #: Thai, Lao and the scripts of India.
    indic: float = 0.0
    #: Georgian, Khmer and others that begin with the same byte.
    georgian: float = 0.0
    symbol: float = 0.0
    han: float = 0.0
    hangul: float = 0.0
    #: A character outside the basic plane, such as an emoji.
    emoji: float = 0.0
    #: Sixteen spaces in a row.
    spaces: float = 0.0


_FIRST_BYTES = (
    range(ord("A"), ord("Z") + 1),
    range(0xC3, 0xCC),
    range(0xD0, 0xD4),
    (*range(0xCC, 0xD0), *range(0xD4, 0xE0)),
    (0xE0,),
    (0xE1,),
    (0xE2,),
    range(0xE3, 0xEA),
    range(0xEA, 0xF0),
    range(0xF0, 0xF8),
)
"""First bytes in UTF-8 of the characters of each class, in the order of `ScriptWeights`."""
_SPACES = " " * 16


def _build_class_table() -> bytes:
    """Return a table that maps the first byte of a character to its class, from 1 on, or to 0."""
    table = bytearray(256)
    for number, members in enumerate(_FIRST_BYTES, start=1):
        for byte in members:
            table[byte] = number
    return bytes(table)


_CLASS = _build_class_table()


class WeightedTokenCounter:
    """Counts tokens of o200k_base and characters of some classes, each with its weight."""

    def __init__(self, name: str, weights: ScriptWeights) -> None:
        self.name = name
        #: Counts the tokens that `weigh` takes.
        self.base = default_counter()
        self._weights = weights
        self._by_class = weights[1 : 1 + len(_FIRST_BYTES)]

    def count(self, text: str) -> int:
        """Return the estimate of a text."""
        return self.weigh(self.base.count(text), text)

    def weigh(self, tokens: int, text: str) -> int:
        """Return the estimate of a text that has so many tokens of o200k_base."""
        classes = text.encode("utf-8", "surrogatepass").translate(_CLASS)
        total = self._weights.token * tokens + self._weights.spaces * text.count(_SPACES)
        for number, weight in enumerate(self._by_class, start=1):
            if weight:
                total += weight * classes.count(number)
        return math.ceil(total)
