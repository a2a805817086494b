"""The embedder for tests keeps the promise it is there to check."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from acms import ConfigurationError
from acms.ports import Embedder
from acms.testing import EmbedderTests, HashEmbedder


class TestHashEmbedder(EmbedderTests):
    @pytest.fixture
    def embedder(self) -> Embedder:
        return HashEmbedder()


class TestNarrowHashEmbedder(EmbedderTests):
    @pytest.fixture
    def embedder(self) -> Embedder:
        return HashEmbedder(dimension=16)


async def test_it_is_the_same_everywhere() -> None:
    (vector,) = await HashEmbedder(8).embed(["We chose PostgreSQL"])
    assert np.round(vector * 10).tolist() == [0, 6, 0, 3, 0, 0, 6, -3]


async def test_words_that_cancel_each_other_out_have_a_vector() -> None:
    vectors = await HashEmbedder(1).embed([f"{a} {b}" for a in "abcdefgh" for b in "ijklmnop"])
    assert set(np.abs(vectors).ravel().tolist()) == {1.0}


@pytest.mark.parametrize("dimension", [0, -1, 1.5, True])
def test_a_dimension_is_a_whole_number(dimension: int) -> None:
    with pytest.raises(ConfigurationError, match="dimension"):
        HashEmbedder(dimension)


def test_it_needs_no_pytest() -> None:
    without_pytest = "import sys; sys.modules['pytest'] = None; "
    code = without_pytest + "from acms.testing import HashEmbedder; print(HashEmbedder(8).model)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("hash/8\n", "")
