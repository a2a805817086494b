"""Evaluation items: figures computed from a reply validate against the shipped schema (check 40)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from math import log2
from typing import Any

import jsonschema
import pytest

from acms import ValidationError
from acms.contract import RenderReply
from acms_eval import GoldItem, evaluation_result
from acms_eval.items import percentile
from tests.support.sources import Source, fragment_ids, load_schema, make_engine, make_item, request

RESULT = jsonschema.Draft202012Validator(load_schema("evaluation_result"))
ITEM = jsonschema.Draft202012Validator(load_schema("evaluation_item"))
GOLD: dict[str, Any] = {
    "schema_version": "0.1",
    "id": "gold-1",
    "query": "implement orders migration",
    "expected_ids": ["a", "c", "z"],
    "layers": ["L2", "L4"],
    "entities": ["Orders", "migration", "billing"],
    "tags": ["smoke"],
}


async def sample_reply(**more: Any) -> RenderReply:
    found = [
        make_item("a", "The orders and their migration.", "orders", "migration", relevance=0.9),
        make_item("b", "Ask bob@example.com about the orders.", "orders", relevance=0.6),
        make_item("c", "The migration is over.", "migration", relevance=0.3),
    ]
    return await make_engine(Source("L2", found)).render(request(GOLD["query"], **more))


async def test_check_40_an_item_computed_from_a_reply_is_valid() -> None:
    ITEM.validate(GOLD)
    reply = await sample_reply()
    result = evaluation_result(
        GoldItem.of(GOLD),
        reply,
        latencies_ms=[float(ms) for ms in range(1, 101)],
        thresholds={"mrr_10": 0.9, "p95_ms": 50, "privacy_leak": 0},
        labels={"agent_id": "tests", "layer": "L2"},
        ts=datetime(2026, 1, 1, tzinfo=UTC),
    )
    RESULT.validate(result)
    assert fragment_ids(reply) == ["a", "b", "c"]
    assert result["retrieved_ids"] == ["a", "b", "c"]
    assert result["metrics"] == {
        "p_at_5": 2 / 5,
        "p_at_10": 2 / 10,
        "ndcg_10": pytest.approx((1 + 1 / log2(4)) / (1 + 1 / log2(3) + 1 / log2(4))),
        "mrr_10": 1.0,
        "cov_entities": pytest.approx(2 / 3),
        "p50_ms": 50.0,
        "p95_ms": 95.0,
        "errors": 0,
        "privacy_leak": 0,
    }
    assert [(one["metric"], one["pass"]) for one in result["verdicts"]] == [
        ("mrr_10", True),
        ("p95_ms", False),
        ("privacy_leak", True),
    ]


async def test_check_40_an_error_is_an_item_too() -> None:
    reply = await make_engine(Source("L2", RuntimeError("x"))).render(request())
    result = evaluation_result(GoldItem.of({**GOLD, "entities": []}), reply)
    RESULT.validate(result)
    assert result["metrics"] == {
        "p_at_5": 0.0,
        "p_at_10": 0.0,
        "ndcg_10": 0.0,
        "mrr_10": 0.0,
        "errors": 1,
        "privacy_leak": 0,
    }


async def test_check_40_a_leak_is_counted() -> None:
    gold = GoldItem.of(GOLD)
    for mode, leaked in (("allow", 0), ("redact", 1), ("block", 3)):
        result = evaluation_result(gold, await sample_reply(), privacy=mode)
        assert result["metrics"]["privacy_leak"] == leaked
        kept = evaluation_result(
            gold,
            await sample_reply(privacy=mode),
            privacy=mode,
            planted=["bob@example.com"] * (mode != "allow"),
        )
        RESULT.validate(kept)
        assert kept["metrics"]["privacy_leak"] == 0
    planted = evaluation_result(gold, await sample_reply(), planted=["The migration is over."])
    assert planted["metrics"]["privacy_leak"] == 1
    assert evaluation_result(gold, replace(await sample_reply(), fragments=None))["metrics"]["mrr_10"] == 0.0


def test_percentiles_are_samples() -> None:
    assert [percentile([3.0, 1.0, 2.0], share) for share in (0.0, 0.5, 0.95, 1.0)] == [1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"id": ""}, "id"),
        ({"layers": ["L3"]}, "layers"),
        ({"schema_version": "1"}, "schema_version"),
        ({"surprise": 1}, "surprise"),
    ],
    ids=str,
)
def test_what_is_no_item_is_refused(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as raised:
        GoldItem.of({**GOLD, **wrong})
    assert raised.value.field == field
    assert not ITEM.is_valid({**GOLD, **wrong})


async def test_a_threshold_and_a_label_must_be_known() -> None:
    for wrong in ({"thresholds": {"speed": 1}}, {"labels": {"colour": "red"}}):
        with pytest.raises(ValidationError):
            evaluation_result(GoldItem.of(GOLD), await sample_reply(), **wrong)
