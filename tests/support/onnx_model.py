"""Tiny models written as ONNX files, with their tokenizer: what a test of a local model runs without a network.

The format is protobuf: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto3. A text is a row of words; an embedder
looks up the vector of each, a cross-encoder adds up what each is worth.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = """
    we chose postgresql for the orders service . , : ? ok meeting is on fourth of march at noon in small room word x cat
    sat warm mat a sun quarterly revenue grew by nine percent query passage search where does she work caroline
    """.split()
FLOAT, INT64 = 1, 7


def write_embedder(folder: Path, *, dimension: int = 32) -> None:
    """Write an embedder whose vector of a text is the mean of those of its words, once it is pooled."""
    table = np.random.default_rng(7).normal(size=(len(SPECIAL) + len(WORDS), dimension))
    node = _encode_node("Gather", ["table", "input_ids"], "last_hidden_state")
    _write_model(folder, [node], table.astype(np.float32), "last_hidden_state", ["batch", "words", dimension])
    (folder / "config.json").write_text(json.dumps({"hidden_size": dimension, "pad_token_id": 0}))


def write_reranker(folder: Path, worth: Mapping[str, float]) -> None:
    """Write a cross-encoder whose logit of a pair is the sum of what its words are worth; others are worth 0."""
    table = np.array([[worth.get(word, 0.0)] for word in (*SPECIAL, *WORDS)], np.float32)
    nodes = [
        _encode_node("Gather", ["table", "input_ids"], "each"),
        _encode_node("ReduceSum", ["each"], "logits", _encode_ints("axes", [1]), _encode_int("keepdims", 0)),
    ]
    _write_model(folder, nodes, table, "logits", ["batch", 1])
    (folder / "config.json").write_text(json.dumps({"pad_token_id": 0}))


def _write_model(
    folder: Path, nodes: Sequence[bytes], table: NDArray[np.float32], output: str, shape: Sequence[str | int]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    graph = b"".join(_encode_field(1, node) for node in nodes)
    graph += _encode_field(2, "tiny") + _encode_field(5, _encode_tensor("table", table))
    for name in ("input_ids", "attention_mask"):
        graph += _encode_field(11, _encode_value_info(name, INT64, ["batch", "words"]))
    graph += _encode_field(12, _encode_value_info(output, FLOAT, shape))
    model = _encode_field(1, 7) + _encode_field(7, graph) + _encode_field(8, _encode_field(2, 11))
    (folder / "model.onnx").write_bytes(model)
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer_document()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 128, "pad_token": "[PAD]"}))


# ── the tokenizer ───────────────────────────────────────────────────────────────────────────────────────────────────


def _tokenizer_document() -> dict[str, object]:
    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *WORDS))}

    def mark(name: str, type_id: int) -> dict[str, object]:
        return {"SpecialToken": {"id": name, "type_id": type_id}}

    def text(name: str, type_id: int) -> dict[str, object]:
        return {"Sequence": {"id": name, "type_id": type_id}}

    single = [mark("[CLS]", 0), text("A", 0), mark("[SEP]", 0)]
    template = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B", 1), mark("[SEP]", 1)],
        "special_tokens": {
            name: {"id": name, "ids": [vocabulary[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")
        },
    }
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": vocabulary[name], "content": name, **flags} for name in SPECIAL],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": template,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }


# ── the messages of ONNX ────────────────────────────────────────────────────────────────────────────────────────────


def _encode_number(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _encode_field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _encode_number(number << 3) + _encode_number(value)
    data = value.encode() if isinstance(value, str) else value
    return _encode_number(number << 3 | 2) + _encode_number(len(data)) + data


def _encode_node(kind: str, inputs: Sequence[str], output: str, *attributes: bytes) -> bytes:
    found = (
        b"".join(_encode_field(1, name) for name in inputs)
        + _encode_field(2, output)
        + _encode_field(4, kind)
    )
    return found + b"".join(_encode_field(5, attribute) for attribute in attributes)


def _encode_int(name: str, value: int) -> bytes:
    return _encode_field(1, name) + _encode_field(3, value) + _encode_field(20, 2)


def _encode_ints(name: str, values: Sequence[int]) -> bytes:
    return (
        _encode_field(1, name) + b"".join(_encode_field(8, value) for value in values) + _encode_field(20, 7)
    )


def _encode_tensor(name: str, values: NDArray[np.float32]) -> bytes:
    sizes = b"".join(_encode_field(1, size) for size in values.shape)
    return (
        sizes
        + _encode_field(2, FLOAT)
        + _encode_field(8, name)
        + _encode_field(9, values.astype("<f4").tobytes())
    )


def _encode_value_info(name: str, kind: int, shape: Sequence[str | int]) -> bytes:
    sizes = b"".join(
        _encode_field(1, _encode_field(1 if isinstance(size, int) else 2, size)) for size in shape
    )
    return _encode_field(1, name) + _encode_field(
        2, _encode_field(1, _encode_field(1, kind) + _encode_field(2, sizes))
    )
