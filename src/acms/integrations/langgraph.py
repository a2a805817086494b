"""A LangGraph store on ACMS's key-value memory.

    store = ACMSStore(open_kv("sqlite:///memory.db"))
    graph = builder.compile(store=store)

Items lie beside the sessions and pins of the same file or database, and one backup holds them all.
"""

from __future__ import annotations

import asyncio
import operator
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    ensure_embeddings,
    get_text_at_path,
)

from acms.errors import ValidationError
from acms.kv import list_entries
from acms.model import Json, KVEntry
from acms.ports import ListingKV
from acms.runtime.portal import run_in_portal
from acms.text.tokenizer import compute_idf, count_terms, split_words

__all__ = ["ACMSStore"]

_HOME = "langgraph:"
"""The beginning of every key; the labels follow, a dot behind each, then a dot and the key of the item."""
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


class ACMSStore(BaseStore):
    """The items of LangGraph's long-term memory as values of a key-value memory, each written atomically.

    Search reads the items under its namespace. Without an `index` a query ranks them by the words they share with it,
    with one by the cosine of the vectors of its fields, which are stored with the item; items without vectors come
    last, without a score. An embedder of ACMS is an index: `{"dims": 384, "embed": LocalEmbedder().embed}`.

    Blocking and async methods may be mixed, in any thread and event loop. Namespace and key together have up to 500
    characters, a value up to 1 MB. Values do not expire. The caller closes the memory.
    """

    def __init__(self, kv: ListingKV, *, index: IndexConfig | None = None) -> None:
        self.kv = kv
        self.index_config = index
        self.embeddings = None if index is None else ensure_embeddings(index.get("embed"))

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations; see `abatch`."""
        return run_in_portal(self.abatch(ops))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Run operations and return their results in order: all reads run first, then the last write of each key."""
        operations = list(ops)
        paths = [_key_of_operation(op) for op in operations]
        results: list[Result] = []
        writes: dict[str, PutOp] = {}
        for op, path in zip(operations, paths, strict=True):
            if isinstance(op, PutOp):
                writes[path] = op
                results.append(None)
            elif isinstance(op, GetOp):
                entry = await self.kv.get(path)
                results.append(None if entry is None else Item(**_fields_of_entry(entry)))
            elif isinstance(op, SearchOp):
                results.append(await self._search(op, path))
            else:
                results.append(await self._namespaces(op, path))
        await self._write(writes)
        return results

    async def _write(self, writes: Mapping[str, PutOp]) -> None:
        """Store or delete items, with the vectors of their indexed texts; all texts are embedded in one call."""
        texts = {path: self._texts(op) for path, op in writes.items()}
        vectors = await self._embed([text for path_texts in texts.values() for text in path_texts])

        async def write(path: str, op: PutOp) -> None:
            if op.value is None:
                await self.kv.delete(path)
                return
            value: dict[str, Json] = {"value": op.value}
            if texts[path]:
                value["vectors"] = [_encode_vector(vectors[text]) for text in texts[path]]
            await self.kv.set(path, value)

        await asyncio.gather(*(write(path, op) for path, op in writes.items()))

    def _texts(self, op: PutOp) -> list[str]:
        """Return the texts of an item that get a vector."""
        if self.index_config is None or op.value is None or op.index is False:
            return []
        fields = op.index
        if fields is None:
            fields = self.index_config.get("fields") or ["$"]
        return [text for field in fields for text in get_text_at_path(op.value, field)]

    async def _embed(self, texts: Iterable[str]) -> dict[str, list[float]]:
        """Return the vectors of texts."""
        unique_texts = list(dict.fromkeys(texts))
        if not unique_texts or self.embeddings is None:
            return {}
        vectors = await self.embeddings.aembed_documents(unique_texts)
        return dict(zip(unique_texts, vectors, strict=True))

    async def _entries(self, prefix: str) -> list[KVEntry]:
        return [entry async for entry in list_entries(self.kv, prefix)]

    async def _search(self, op: SearchOp, prefix: str) -> list[SearchItem]:
        """Return the items below a prefix that match a filter, ranked by the query if there is one."""
        conditions = op.filter or {}
        entries = [
            entry for entry in await self._entries(prefix) if _matches_filter(entry.data["value"], conditions)
        ]
        scores: Sequence[float | None] = [None] * len(entries)
        if op.query and entries:
            if self.embeddings is None:
                scores = _score_by_words(op.query, entries)
            else:
                scores = _score_by_vectors(await self.embeddings.aembed_query(op.query), entries)
        ranked = sorted(zip(entries, scores, strict=True), key=_rank_of_result)
        page = ranked[op.offset : op.offset + op.limit]
        return [SearchItem(**_fields_of_entry(entry), score=score) for entry, score in page]

    async def _namespaces(self, op: ListNamespacesOp, prefix: str) -> list[tuple[str, ...]]:
        """List the namespaces of items that match the conditions, cut to a depth."""
        conditions = op.match_conditions or ()
        namespaces: set[tuple[str, ...]] = set()
        for entry in await self._entries(prefix):
            namespace = _namespace_of_key(entry.key)
            if all(_matches_condition(namespace, condition) for condition in conditions):
                namespaces.add(namespace[: op.max_depth])
        return sorted(namespaces)[op.offset : op.offset + op.limit]


def _rank_of_result(result: tuple[KVEntry, float | None]) -> tuple[bool, float]:
    """Return a sort key: higher scores first, results without a score last."""
    _, score = result
    return score is None, -(score or 0)


def _key_of_operation(op: Op) -> str:
    """Return the key of an item, or the common prefix of the keys that an operation reads."""
    if isinstance(op, GetOp | PutOp):
        return f"{_prefix_of_namespace(op.namespace)}.{op.key}"
    if isinstance(op, SearchOp):
        return _prefix_of_namespace(op.namespace_prefix)
    if isinstance(op, ListNamespacesOp):
        longest = _HOME
        for condition in op.match_conditions or ():
            path = _prefix_of_namespace(condition.path)
            is_prefix = condition.match_type == "prefix" and "*" not in condition.path
            if is_prefix and len(path) > len(longest):
                longest = path
        return longest
    raise ValidationError(f"{type(op).__name__} is not a store operation", field="ops")


def _prefix_of_namespace(namespace: Sequence[str]) -> str:
    for label in namespace:
        if not isinstance(label, str) or not label or "." in label or "\0" in label:
            raise InvalidNamespaceError(
                f"{label!r} of {namespace} must be a text without a dot, and not empty"
            )
    return _HOME + "".join(f"{label}." for label in namespace)


def _namespace_of_key(path: str) -> tuple[str, ...]:
    return tuple(path.removeprefix(_HOME).partition("..")[0].split("."))


def _fields_of_entry(entry: KVEntry) -> dict[str, Any]:
    """Return the fields of the item that an entry holds."""
    return {
        "namespace": _namespace_of_key(entry.key),
        "key": entry.key.partition("..")[2],
        "value": entry.data["value"],
        "created_at": entry.created_at,
        "updated_at": entry.updated_at,
    }


def _matches_condition(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    """Return whether a namespace begins or ends with a path, in which "*" is any label."""
    size = len(condition.path)
    start = 0 if condition.match_type == "prefix" else max(0, len(namespace) - size)
    labels = namespace[start : start + size]
    pairs = zip(labels, condition.path, strict=False)
    return len(labels) == size and all(pattern in ("*", label) for label, pattern in pairs)


def _matches_filter(value: Any, condition: Any) -> bool:
    """Return whether a value matches a condition: equal to it, compared by operators, or matched field by field."""
    if isinstance(condition, Mapping):
        if any(str(name).startswith("$") for name in condition):
            return all(_compare_values(value, name, operand) for name, operand in condition.items())
        if not isinstance(value, Mapping):
            return False
        return all(_matches_filter(value.get(name), operand) for name, operand in condition.items())
    if isinstance(condition, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(condition):
            return False
        return all(map(_matches_filter, value, condition))
    return value == condition


def _compare_values(value: Any, operator_name: str, operand: Any) -> bool:
    """Compare two values by an operator such as "$gt": as numbers if both are, otherwise as texts."""
    if operator_name not in _COMPARISONS:
        operator_names = ", ".join(_COMPARISONS)
        raise ValidationError(f"{operator_name!r} is not one of {operator_names}", field="filter")
    if operator_name in ("$eq", "$ne"):
        return _COMPARISONS[operator_name](value, operand)
    try:
        return _COMPARISONS[operator_name](float(value), float(operand))
    except (TypeError, ValueError):  # times and words are compared as texts
        return (
            isinstance(value, str)
            and isinstance(operand, str)
            and _COMPARISONS[operator_name](value, operand)
        )


def _score_by_words(query: str, entries: Sequence[KVEntry]) -> list[float | None]:
    """Score items by the words they share with a query; None for those that share none."""
    query_terms = count_terms(split_words(query)).keys()
    shared_terms: list[set[int]] = []
    frequencies = Counter[int]()
    for entry in entries:
        text = " ".join(get_text_at_path(entry.data["value"], "$"))
        shared = set(query_terms & count_terms(split_words(text)).keys())
        shared_terms.append(shared)
        frequencies.update(shared)
    weights = {term: compute_idf(len(entries), count) for term, count in frequencies.items()}
    scores = [sum(weights[term] for term in shared) for shared in shared_terms]
    return [score or None for score in scores]


def _encode_vector(vector: Sequence[float]) -> str:
    return b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()


def _score_by_vectors(query: Sequence[float], entries: Sequence[KVEntry]) -> list[float | None]:
    """Score items by the cosine of the nearest of their vectors; None for those that have none."""
    query_vector = np.asarray(query, dtype=np.float32)
    scores: list[float | None] = []
    for entry in entries:
        packed = entry.data.get("vectors")
        if not packed:
            scores.append(None)
            continue
        vectors = np.stack([np.frombuffer(b64decode(encoded), dtype="<f4") for encoded in packed])
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query_vector)
        scores.append(float(np.max(vectors @ query_vector / np.where(lengths == 0, 1, lengths))))
    return scores
