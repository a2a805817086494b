"""Models of fastembed: a folder on this machine is enough, and a query is told from a passage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acms import ACMS, ConfigurationError, MissingExtraError, ProviderError, ValidationError, open_storage
from acms.cli import base
from acms.ports import Embedder
from acms.providers import FastEmbedEmbedder, FastEmbedReranker, registry
from acms.testing import EmbedderTests
from tests.support.onnx_model import write_embedder, write_reranker

pytestmark = pytest.mark.needs("fastembed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "tiny"
    write_embedder(found)
    return found


class TestFastEmbedEmbedder(EmbedderTests):
    @pytest.fixture
    def embedder(self, folder: Path) -> Embedder:
        return FastEmbedEmbedder(folder)


async def test_a_query_and_a_passage_get_what_the_model_wants_before_them(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-e5"
    write_embedder(folder)
    told = FastEmbedEmbedder(folder)
    plain = FastEmbedEmbedder(folder, query_prefix="", passage_prefix="")
    assert (told.model, plain.model) == ("tiny-e5 passage:", "tiny-e5")
    query, passage = await plain.embed(["query: where does she work", "passage: where does she work"])
    np.testing.assert_allclose(await told.embed_query("where does she work"), query, atol=1e-6)
    np.testing.assert_allclose((await told.embed(["where does she work"]))[0], passage, atol=1e-6)
    assert np.abs(query - passage).max() > 1e-3


async def test_a_folder_says_how_its_model_is_pooled(tmp_path: Path, folder: Path) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    one, other = await FastEmbedEmbedder(folder).embed(["the cat", "nine percent"])
    np.testing.assert_allclose(one, other, atol=1e-6)  # all begin with the same token
    write_embedder(tmp_path / "mean")
    one, other = await FastEmbedEmbedder(tmp_path / "mean").embed(["the cat", "nine percent"])
    assert np.abs(one - other).max() > 1e-3


async def test_a_session_finds_by_it(folder: Path) -> None:
    async with ACMS("s", open_storage("memory://"), FastEmbedEmbedder(folder)) as session:
        await session.ingest("user", "The cat sat on the warm mat.")
        await session.ingest("user", "Quarterly revenue grew by nine percent.")
        await session.wait_pending()
        items = await session.recall("where is the cat", budget=500)
        assert (items.coverage, items.tier, items.ledger.warnings) == (1.0, "tiny", ())


def test_what_it_cannot_be_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such folder") as caught:
        FastEmbedEmbedder("nobody/nothing")
    assert "intfloat/multilingual-e5-large" in caught.value.options
    with pytest.raises(ConfigurationError, match="no such folder"):
        FastEmbedReranker("nobody/nothing")
    with pytest.raises(ConfigurationError, match="no folder"):
        FastEmbedEmbedder(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="give dimension"):
        FastEmbedEmbedder(tmp_path / "empty")
    with pytest.raises(ConfigurationError, match=r"has no tokenizer\.json"):
        FastEmbedReranker(tmp_path / "empty")
    with pytest.raises(ConfigurationError, match="pooling"):
        FastEmbedEmbedder(folder, pooling="max")  # pyright: ignore[reportArgumentType]
    (folder / "model.onnx").unlink()
    with pytest.raises(ConfigurationError, match="no ONNX model"):
        FastEmbedEmbedder(folder)


async def test_a_damaged_file_is_an_error_of_the_provider(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ProviderError, match="fastembed"):
        await FastEmbedEmbedder(folder).embed(["a"])


@pytest.mark.parametrize("texts", ["text", [1], [None]])
async def test_only_a_list_of_texts_will_do(folder: Path, texts: Any) -> None:
    with pytest.raises(ValidationError):
        await FastEmbedEmbedder(folder).embed(texts)


async def test_a_cross_encoder_scores_texts_in_their_order(tmp_path: Path) -> None:
    write_reranker(tmp_path / "cross", {"noon": 3.0, "cat": -3.0})
    reranker = FastEmbedReranker(tmp_path / "cross", candidates=8)
    assert (reranker.model, reranker.candidates) == ("cross", 8)
    found = await reranker.rerank("when is lunch", ["the cat sat", "orders at noon", "ok"])
    assert found == pytest.approx([0.0474, 0.9526, 0.5], abs=1e-4)
    assert await reranker.rerank("when is lunch", []) == []


def test_they_are_made_by_their_names(tmp_path: Path, folder: Path) -> None:
    write_reranker(tmp_path / "cross", {})
    assert isinstance(registry.create("embedder", "fastembed", model=folder), FastEmbedEmbedder)
    assert isinstance(registry.create("reranker", "fastembed", model=tmp_path / "cross"), FastEmbedReranker)
    found = base.create_embedder(f"fastembed#{folder}")  # in the shell
    assert isinstance(found, FastEmbedEmbedder)
    assert found.model == "tiny"


def test_without_the_extra_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fastembed", None)
    with pytest.raises(MissingExtraError, match="fastembed"):
        FastEmbedEmbedder(folder)
