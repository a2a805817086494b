"""The conformance suite of embedders.

An embedder's own test file is five lines:

    class TestMyEmbedder(EmbedderTests):
        @pytest.fixture
        def embedder(self):
            return MyEmbedder()

Optional: `tolerance`, for an embedder whose vectors of one text differ from call to call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from acms.ports import Embedder

__all__ = ["EmbedderTests"]

TEXTS = (
    "We chose PostgreSQL for the orders service.",
    "",
    "ok",
    "Zażółć gęślą jaźń, e\u0301tude, Straße, İstanbul",
    "数据库选择了PostgreSQL。 🙂‍↔️ 🎉",
    "  tabs\tand\r\nlines\n",
    "\x00\x1f\u200b\ufeff\u2028",
    "The meeting is on the fourth of March at noon in the small room. " * 3,
    "word " * 2_000,
    "x" * 10_000,
    "ok",
)
"""Short and long, empty, in several scripts, one of them twice."""


class EmbedderTests:
    """What `Embedder` promises; subclass it and give the fixture `embedder`."""

    #: The largest difference, in any number, between two vectors of one text.
    tolerance: float = 1e-6

    @pytest.fixture
    def embedder(self) -> Embedder:
        """Return the embedder under test."""
        raise NotImplementedError("give the fixture 'embedder'")

    async def _vectors(self, embedder: Embedder, texts: Sequence[str]) -> NDArray[np.float32]:
        found = np.asarray(await embedder.embed(list(texts)), np.float32)
        assert found.shape == (len(texts), embedder.dimension)
        return found

    def _same(self, one: NDArray[np.float32], other: NDArray[np.float32]) -> None:
        np.testing.assert_allclose(one, other, rtol=0, atol=self.tolerance)

    async def test_it_has_a_dimension_and_a_name(self, embedder: Embedder) -> None:
        """A store keeps both beside the vectors."""
        assert type(embedder.dimension) is int
        assert embedder.dimension > 0
        name = getattr(embedder, "model", type(embedder).__name__)
        assert isinstance(name, str)
        assert name

    async def test_nothing_gives_nothing(self, embedder: Embedder) -> None:
        """No texts are no vectors, not an error."""
        assert len(await embedder.embed([])) == 0

    async def test_every_text_has_a_vector_of_length_one(self, embedder: Embedder) -> None:
        """Also an empty text, one of control characters only, and one of ten thousand characters."""
        lengths = np.linalg.norm(await self._vectors(embedder, TEXTS), axis=1)
        np.testing.assert_allclose(lengths, 1, rtol=0, atol=1e-3)

    async def test_order_is_kept(self, embedder: Embedder) -> None:
        """A vector stands where its text stands."""
        forth = await self._vectors(embedder, TEXTS)
        back = await self._vectors(embedder, TEXTS[::-1])
        self._same(forth, back[::-1])
        self._same(forth[TEXTS.index("ok")], forth[-1])
        assert np.abs(forth[0] - forth[3]).max() > self.tolerance

    @pytest.mark.parametrize("size", [1, 2, 5])
    async def test_the_batch_does_not_matter(self, embedder: Embedder, size: int) -> None:
        """Alone or among others, a text has the same vector."""
        whole = await self._vectors(embedder, TEXTS)
        parts = [
            await self._vectors(embedder, TEXTS[start : start + size]) for start in range(0, len(TEXTS), size)
        ]
        self._same(whole, np.concatenate(parts))

    async def test_any_sequence_will_do_and_is_left_alone(self, embedder: Embedder) -> None:
        """A list is read, not changed."""
        texts = list(TEXTS)
        self._same(await self._vectors(embedder, texts), await self._vectors(embedder, tuple(texts)))
        assert texts == list(TEXTS)

    async def test_calls_may_overlap(self, embedder: Embedder) -> None:
        """Concurrent calls do not mix their vectors."""
        alone = await self._vectors(embedder, TEXTS)
        turns = range(0, len(TEXTS), 3)
        together = await asyncio.gather(
            *(self._vectors(embedder, [*TEXTS[turn:], *TEXTS[:turn]]) for turn in turns)
        )
        for turn, found in zip(turns, together, strict=True):
            self._same(np.roll(found, turn, axis=0), alone)

    async def test_similar_texts_are_closer(self, embedder: Embedder) -> None:
        """The dot product of two texts about one thing is larger than that of texts about two."""
        cat, mat, money = await self._vectors(
            embedder,
            [
                "The cat sat on the warm mat.",
                "A cat sat on the mat in the sun.",
                "Quarterly revenue grew by nine percent.",
            ],
        )
        assert cat @ mat > max(cat @ money, mat @ money) + 0.1
