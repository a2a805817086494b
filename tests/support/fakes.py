"""Embedders that need no model: one that tells the truth, and all the ways in which one can fail."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

DIMENSION = 32


def hash_vector(text: str, dimension: int = DIMENSION) -> list[float]:
    """A unit vector of hashed words: texts that share words are close, others nearly at right angles.

    A Chinese character is a word, as Chinese writes no spaces.
    """
    found = [0.0] * dimension
    for word in re.findall(r"[\u4e00-\u9fff]|[^\W\u4e00-\u9fff]+", text.lower()):
        number = crc32(word.encode())
        found[number % dimension] += 1.0 if number >> 16 & 1 else -1.0
    size = sum(value * value for value in found) ** 0.5
    return [value / size for value in found] if size else found


class FakeEmbedder:
    """Deterministic; counts its calls and the texts of each; `answer` replaces its vectors, `gate` makes it wait."""

    def __init__(self, model: str = "fake-1", dimension: int = DIMENSION) -> None:
        self.model = model
        self.dimension = dimension
        #: The texts of every call.
        self.calls: list[list[str]] = []
        #: Raised instead of an answer.
        self.error: Exception | None = None
        #: Given instead of vectors.
        self.answer: Callable[[list[str]], Any] | None = None
        #: Calls wait for it.
        self.gate: asyncio.Event | None = None
        #: Set when a call has come.
        self.called = asyncio.Event()

    async def embed(self, texts: list[str]) -> Sequence[Sequence[float]]:
        self.calls.append(list(texts))
        self.called.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        if self.answer is not None:
            found: Sequence[Sequence[float]] = self.answer(texts)
            return found
        return [hash_vector(text, self.dimension) for text in texts]

    @property
    def sizes(self) -> list[int]:
        """How many texts each call had."""
        return [len(texts) for texts in self.calls]

    @property
    def texts(self) -> list[str]:
        """Every text that was ever embedded, in order."""
        return [text for texts in self.calls for text in texts]


class SeedEmbedder:
    """With no more than must be: a dimension and lists of lists, no name of a model."""

    dimension = DIMENSION

    async def embed(self, texts: list[str]) -> list[list[float]]:
        return [hash_vector(text) for text in texts]
