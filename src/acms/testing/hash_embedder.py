"""An embedder for tests: no model, and no pytest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from acms.errors import ConfigurationError

__all__ = ["HashEmbedder"]

_WORD = re.compile(r"\w+")


class HashEmbedder:
    """Texts that share words and pairs of words get similar vectors: hashed, the same on every machine, no model.

    For tests; it knows no synonyms.
    """

    def __init__(self, dimension: int = 64) -> None:
        if type(dimension) is not int or dimension < 1:
            raise ConfigurationError(f"dimension must be a whole number above 0, not {dimension!r}")
        self.dimension = dimension
        self.model = f"hash/{dimension}"

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one unit vector for each text, in order."""
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            for feature, weight in _extract_features(text):
                digest = int.from_bytes(
                    blake2b(feature.encode("utf-8", "surrogatepass"), digest_size=8).digest()
                )
                vector[(digest >> 1) % self.dimension] += weight if digest & 1 else -weight
            if not vector.any():  # no word, or words that cancel each other out
                vector[0] = 1
            vector /= np.linalg.norm(vector)
        return vectors


def _extract_features(text: str) -> Iterator[tuple[str, float]]:
    words = [word.lower() for word in _WORD.findall(text)]
    yield from ((word, 1.0) for word in words)
    yield from ((f"{first} {second}", 0.5) for first, second in pairwise(words))
