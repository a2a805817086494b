"""Evaluation items: the ids that a reply of the ACS contract should hold, and the figures of a reply.

Both are plain JSON, `evaluation_item.v0` and `evaluation_result.v0` in `acms/schemas`, version 0.1 of the format.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import log2

from acms.contract.entities import normalize_entity
from acms.contract.schema import Layer, RenderReply
from acms.contract.wire import parse_choice, parse_object, parse_strings, parse_text, require_field
from acms.errors import ValidationError
from acms.model import Json, Privacy
from acms.privacy.detect import redact_text

__all__ = ["GoldItem", "evaluation_result"]

VERSION = "0.1"
_LOWER_IS_BETTER = frozenset(("p50_ms", "p95_ms", "errors", "privacy_leak"))
_LABELS = ("agent_id", "user_id", "layer", "model_id", "tool_id")
_FIELDS = ("schema_version", "id", "query", "expected_ids", "layers", "entities", "tags")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldItem:
    """A question with the ids that answer it (`evaluation_item.v0`)."""

    id: str
    query: str
    #: Ids of candidates that belong into the reply, in no order.
    expected_ids: tuple[str, ...]
    #: Layers that are asked.
    layers: tuple[Layer, ...]
    #: Entities that the reply should be about; None leaves them to what the engine finds in the query.
    entities: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: object) -> GoldItem:
        """Read an item; `ValidationError` names the field."""
        body = parse_object(data, "", _FIELDS, False)
        if body.get("schema_version", VERSION) != VERSION:
            raise ValidationError(f"must be {VERSION!r}", field="schema_version")
        stated = body.get("entities")
        return cls(
            id=parse_text(require_field(body, "id"), "id", min_chars=1, max_chars=512),
            query=parse_text(require_field(body, "query"), "query", min_chars=1),
            expected_ids=parse_strings(require_field(body, "expected_ids"), "expected_ids"),
            layers=tuple(
                parse_choice(Layer, layer, "layers")
                for layer in parse_strings(require_field(body, "layers"), "layers")
            ),
            entities=None if stated is None else parse_strings(stated, "entities"),
            tags=parse_strings(body.get("tags", ()), "tags"),
        )


def evaluation_result(
    gold: GoldItem,
    reply: RenderReply | Mapping[str, Json],
    *,
    latencies_ms: Sequence[float] = (),
    planted: Collection[str] = (),
    privacy: Privacy | str = Privacy.ALLOW,
    thresholds: Mapping[str, float] | None = None,
    labels: Mapping[str, str] | None = None,
    ts: datetime | None = None,
) -> dict[str, Json]:
    """Return the figures of a reply, also as it came over the wire, as JSON (`evaluation_result.v0`).

    Precision, nDCG and reciprocal rank are of the fragments in the order of the reply, each expected id being as
    relevant as any other: precision at k is divided by k, nDCG by that of the best order. `latencies_ms` are of one or
    more renders of the request. `privacy_leak` counts the `planted` texts that the reply holds, and the fragments with
    something that the mode `privacy` does not allow. `thresholds` make verdicts: the least that is good enough, and of
    times, errors and leaks the most. `labels` are of agent_id, user_id, layer, model_id, tool_id.
    """
    wire = reply.to_wire(extended=True) if isinstance(reply, RenderReply) else reply
    fragments: Sequence[Mapping[str, Json]] = wire.get("fragments") or ()
    retrieved_ids: list[str] = [fragment["id"] for fragment in fragments]
    metrics: dict[str, Json] = {
        "p_at_5": precision_at(5, retrieved_ids, gold.expected_ids),
        "p_at_10": precision_at(10, retrieved_ids, gold.expected_ids),
        "ndcg_10": ndcg_at(10, retrieved_ids, gold.expected_ids),
        "mrr_10": reciprocal_rank_at(10, retrieved_ids, gold.expected_ids),
        "errors": int(wire.get("error") is not None),
        "privacy_leak": count_leaks(wire, planted, parse_choice(Privacy, privacy, "privacy")),
    }
    covered = _entity_coverage(gold, wire)
    if covered is not None:
        metrics["cov_entities"] = covered
    if latencies_ms:
        metrics["p50_ms"] = percentile(latencies_ms, 0.5)
        metrics["p95_ms"] = percentile(latencies_ms, 0.95)
    result: dict[str, Json] = {"schema_version": VERSION, "id": gold.id, "request_id": wire["request_id"]}
    for name, value in (labels or {}).items():
        if name not in _LABELS:
            raise ValidationError(f"is none of {', '.join(_LABELS)}", field=f"labels.{name}")
        result[name] = parse_choice(Layer, value, "labels.layer").value if name == "layer" else value
    if ts is not None:
        result["ts"] = ts.astimezone(UTC).isoformat()
    result |= {"retrieved_ids": retrieved_ids, "metrics": metrics}
    if thresholds:
        result["verdicts"] = [
            _check_threshold(name, metrics, limit) for name, limit in sorted(thresholds.items())
        ]
    return result


def precision_at(k: int, found: Sequence[str], expected: Collection[str]) -> float:
    """Return the share of the first k places that hold something expected."""
    return len(set(found[:k]) & set(expected)) / k


def ndcg_at(k: int, found: Sequence[str], expected: Collection[str]) -> float:
    """Return the discounted gain of the first k over that of the best order; 0 where nothing is expected."""
    expected_ids = set(expected)
    best_gain = sum(1 / log2(index + 2) for index in range(min(k, len(expected_ids))))
    gain = sum(1 / log2(index + 2) for index, id in enumerate(found[:k]) if id in expected_ids)
    return gain / best_gain if best_gain else 0.0


def reciprocal_rank_at(k: int, found: Sequence[str], expected: Collection[str]) -> float:
    """Return one over the place of the first that was expected; 0 when it is not among the first k."""
    return next((1 / index for index, id in enumerate(found[:k], 1) if id in set(expected)), 0.0)


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that so large a share of them does not exceed (nearest rank)."""
    ordered = sorted(samples)
    return ordered[max(0, -(-len(ordered) * round(1000 * share) // 1000) - 1)]


def count_leaks(wire: Mapping[str, Json], planted: Collection[str], privacy: Privacy) -> int:
    """Return how many planted texts a reply holds, and how many fragments hold what a mode does not allow."""
    full_text = json.dumps(wire, ensure_ascii=False)
    leak_count = sum(
        planted_text in full_text or json.dumps(planted_text, ensure_ascii=False)[1:-1] in full_text
        for planted_text in planted
        if planted_text
    )
    texts: list[str] = [fragment["text"] for fragment in wire.get("fragments") or () if "text" in fragment]
    if privacy is Privacy.BLOCK:
        return leak_count + len(texts)
    return leak_count + sum(bool(redact_text(text, privacy).spans) for text in texts)


def _entity_coverage(gold: GoldItem, wire: Mapping[str, Json]) -> float | None:
    expected_names = {normalize_entity(name) for name in gold.entities or ()} - {""}
    if not expected_names:
        return (wire.get("metrics") or {}).get("coverage_entities")
    found_names = {
        normalize_entity(name) for fragment in wire.get("fragments") or () for name in fragment["entities"]
    }
    return len(expected_names & found_names) / len(expected_names)


def _check_threshold(name: str, metrics: Mapping[str, Json], limit: float) -> Json:
    value = metrics.get(name)
    if not isinstance(value, int | float):
        raise ValidationError("is no metric of this result", field=f"thresholds.{name}")
    passed = value <= limit if name in _LOWER_IS_BETTER else value >= limit
    return {"metric": name, "value": value, "threshold": limit, "pass": passed}
