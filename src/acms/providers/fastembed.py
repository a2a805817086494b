"""Models of fastembed on this machine: embedders and cross-encoders on ONNX Runtime (extra `fastembed`)."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from acms.errors import ACMSError, ConfigurationError, MissingExtraError, ProviderError, ValidationError
from acms.providers.arguments import check_texts, replace_surrogates, validate_positive_int
from acms.providers.model_prompts import PromptPrefixes, find_prompts, name_vector_space
from acms.runtime.threads import in_thread

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FastEmbedEmbedder", "FastEmbedReranker"]

_BATCH = 16
"""Texts of one step: all are padded to the longest of them."""
_FILES = (
    "model.onnx",
    "onnx/model.onnx",
    "model_optimized.onnx",
    "model_quantized.onnx",
    "onnx/model_quantized.onnx",
)
_POOLINGS = ("cls", "mean", "last_token")
_registering = threading.Lock()

T = TypeVar("T")


class _Model:
    """A model that is loaded in a thread by the first call. One call uses it at a time."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._loaded: Any = None

    async def run(self, work: Callable[[Any], T]) -> T:
        """Return the result of `work` on the model; raise `ProviderError` if it fails."""

        def locked() -> T:
            with self._lock:
                if self._loaded is None:
                    self._loaded = self._load()
                return work(self._loaded)

        try:
            return await in_thread(locked)
        except ACMSError:
            raise
        except Exception as error:
            raise ProviderError(f"fastembed: {error}", provider="fastembed", cause=error) from error


class FastEmbedEmbedder:
    """An embedding model of fastembed, by its name, or the folder of one that lies on this machine.

    A model that fastembed knows by name is downloaded by the first `embed` and kept in `cache_dir`. A folder needs no
    network: it holds `tokenizer.json`, `tokenizer_config.json`, and `model.onnx` or `onnx/model.onnx`, as repositories
    of sentence-transformers do. Its `dimension` is `hidden_size` of `config.json`, and its `pooling` that of
    `1_Pooling/config.json`, else "mean", unless they are given.

    `query_prefix` and `passage_prefix` are put before a text: by default what the cards of e5, EmbeddingGemma, bge,
    nomic and a few others ask for, by the name of the model or folder. ONNX Runtime uses `threads` threads, all cores
    by default. Texts longer than the model reads are cut. Without the extra `fastembed`: `MissingExtraError`.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        dimension: int | None = None,
        pooling: Literal["cls", "mean", "last_token"] | None = None,
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
        cache_dir: str | Path | None = None,
        threads: int | None = None,
    ) -> None:
        kind = _import_fastembed().TextEmbedding
        folder = _folder_of(model)
        settings: dict[str, Any] = {"cache_dir": cache_dir and str(cache_dir), "threads": threads}
        if folder is None:
            name = label = str(model)
            if dimension is not None or pooling is not None:
                raise ConfigurationError("dimension and pooling are for a model in a folder")
            try:
                size: int = kind.get_embedding_size(name)
            except ValueError:
                raise _unknown_model_error(name, kind) from None
        else:
            name, label = str(folder), folder.name
            size = validate_positive_int(dimension or _hidden_size(folder), "dimension")
            _register_embedder(kind, folder, size, pooling or _find_pooling(folder))
            settings["specific_model_path"] = name
        default_prompts = find_prompts(label)
        self._prompts = PromptPrefixes(
            default_prompts.query if query_prefix is None else query_prefix,
            default_prompts.passage if passage_prefix is None else passage_prefix,
        )
        #: Numbers in a vector.
        self.dimension = size
        #: Names the model and its passage prefix: vectors with different names are never compared.
        self.model = name_vector_space(label, self._prompts.passage)
        self._model = _Model(lambda: kind(name, **settings))

    def __repr__(self) -> str:
        return f"FastEmbedEmbedder({self.model!r}, dimension={self.dimension})"

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one unit vector for each text, in order: float32 of shape (len(texts), dimension)."""
        check_texts(texts)
        if not len(texts):
            return np.empty((0, self.dimension), np.float32)
        prompted_texts = [self._prompts.passage + replace_surrogates(text) for text in texts]
        return await self._model.run(
            lambda model: _stack_normalized(model.passage_embed(prompted_texts, batch_size=_BATCH))
        )

    async def embed_query(self, text: str) -> NDArray[np.float32]:
        """Return the unit vector of a question, to be compared with those of `embed`: float32 of shape (dimension,)."""
        if not isinstance(text, str):
            raise ValidationError("must be a text", field="text")
        prompted_text = self._prompts.query + replace_surrogates(text)
        return (await self._model.run(lambda model: _stack_normalized(model.query_embed(prompted_text))))[0]


class FastEmbedReranker:
    """A cross-encoder of fastembed, by its name, or the folder of one that lies on this machine.

    Names, folders, `cache_dir` and `threads` are as for `FastEmbedEmbedder`. The logits of the model are mapped to
    [0, 1] by the logistic function. It is asked about `candidates` texts in a recall, at most. Without the extra
    `fastembed`: `MissingExtraError`.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        candidates: int = 32,
        cache_dir: str | Path | None = None,
        threads: int | None = None,
    ) -> None:
        kind = _import_fastembed("fastembed.rerank.cross_encoder").TextCrossEncoder
        folder = _folder_of(model)
        name = str(model if folder is None else folder)
        settings: dict[str, Any] = {"cache_dir": cache_dir and str(cache_dir), "threads": threads}
        if folder is not None:
            _register_reranker(kind, folder)
            settings["specific_model_path"] = name
        elif not _supports_model(kind, name):
            raise _unknown_model_error(name, kind)
        #: Names the model.
        self.model = str(model) if folder is None else folder.name
        #: Texts it is asked about in a recall, at most.
        self.candidates = validate_positive_int(candidates, "candidates")
        self._model = _Model(lambda: kind(name, **settings))

    def __repr__(self) -> str:
        return f"FastEmbedReranker({self.model!r})"

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return one score in [0, 1] for each text, in order; none for no texts."""
        check_texts(texts)
        if not texts:
            return []
        clean_texts = [replace_surrogates(text) for text in texts]
        clean_query = replace_surrogates(query)

        def score(model: Any) -> list[float]:
            return list(model.rerank(clean_query, clean_texts, batch_size=_BATCH))

        logits = await self._model.run(score)
        # Clamped: beyond 700 `exp` would overflow.
        return [1 / (1 + math.exp(-min(max(logit, -700.0), 700.0))) for logit in logits]


def _import_fastembed(module: str = "fastembed") -> Any:
    try:
        return import_module(module)
    except ImportError as missing:
        raise MissingExtraError("fastembed", "fastembed") from missing


def _stack_normalized(vectors: Any) -> NDArray[np.float32]:
    """Return vectors as the rows of a matrix, each of length 1."""
    matrix = np.stack(list(vectors)).astype(np.float32)
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    return np.asarray(matrix / np.where(norms > 0, norms, 1), np.float32)


# ── models of fastembed ─────────────────────────────────────────────────────────────────────────────────────────────


def _supports_model(kind: Any, name: str) -> bool:
    return any(description["model"].lower() == name.lower() for description in kind.list_supported_models())


def _unknown_model_error(name: str, kind: Any) -> ConfigurationError:
    names = sorted(description["model"] for description in kind.list_supported_models())
    return ConfigurationError(
        f"fastembed has no model {name!r}, and there is no such folder", options=("give a folder", *names)
    )


def _register_embedder(kind: Any, folder: Path, dimension: int, pooling: str) -> None:
    """Make the embedding model of a folder known to fastembed, once."""
    if pooling not in _POOLINGS:
        raise ConfigurationError(f"pooling must be one of {', '.join(_POOLINGS)}, not {pooling!r}")
    file = _find_file(folder)
    descriptions = _import_fastembed("fastembed.common.model_description")
    with _registering:
        if not _supports_model(kind, str(folder)):
            kind.add_custom_model(
                str(folder),
                pooling=descriptions.PoolingType[pooling.upper()],
                normalization=True,
                sources=descriptions.ModelSource(hf=folder.name),
                dim=dimension,
                model_file=file,
            )


def _register_reranker(kind: Any, folder: Path) -> None:
    """Make the reranking model of a folder known to fastembed, once."""
    file = _find_file(folder)
    descriptions = _import_fastembed("fastembed.common.model_description")
    with _registering:
        if not _supports_model(kind, str(folder)):
            source = descriptions.ModelSource(hf=folder.name)
            kind.add_custom_model(str(folder), sources=source, model_file=file)


# ── folders ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _folder_of(model: str | Path) -> Path | None:
    """Return the folder of a model on this machine, or None for the name of a model. A `Path` must be a folder."""
    path = Path(model)
    if path.is_dir():
        return path.resolve()
    if isinstance(model, Path):
        raise ConfigurationError(f"there is no folder {model}")
    return None


def _find_file(folder: Path) -> str:
    """Return the name of the ONNX file in a folder; raise if it or the tokenizer is missing."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise ConfigurationError(f"{folder} has no {name}")
    for name in _FILES:
        if (folder / name).is_file():
            return name
    raise ConfigurationError(f"{folder} has no ONNX model", options=_FILES)


def _hidden_size(folder: Path) -> int:
    size = _read_json(folder / "config.json").get("hidden_size")
    if not isinstance(size, int):
        raise ConfigurationError(f"the size of the vectors of {folder} is not known: give dimension")
    return size


def _find_pooling(folder: Path) -> str:
    """Return the pooling that a folder states, in the words of sentence-transformers; else "mean"."""
    pooling_config = _read_json(folder / "1_Pooling" / "config.json")
    if pooling_config.get("pooling_mode_cls_token"):
        return "cls"
    return "last_token" if pooling_config.get("pooling_mode_lasttoken") else "mean"


def _read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if there is no such file or object."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
    return value if isinstance(value, dict) else {}
