"""A guard: on real conversations, without a model, recall may not get worse.

Floors lie about two points under the figures measured when they were set; a lasting gain raises them. Five
conversations of three sets cannot tell more than that: figures to quote come from `benchmarks/quality.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from acms_eval import RetrievalReport, evaluate, load, retrieval, systems

CONVERSATIONS = (
    "locomo-dev/conv-30.json",
    "realtalk-dev/Chat_1_Emi_Elise.json",
    "beam-100k-dev/1",
    "beam-100k-dev/5",
    "beam-100k-dev/6",
)
#: Set → figure → the least share in percent.
FLOORS = {
    "LoCoMo": {"R@10": 76.5, "nDCG@10": 62.5, "B1k": 85.0, "B4k": 93.0},
    "REALTALK": {"R@10": 45.5, "B1k": 57.0, "B4k": 72.0},
    "BEAM-100K": {"R@10": 50.0, "nDCG@10": 40.0, "B4k": 65.5, "B16k": 80.0},
}
#: Set → the budgets of these figures; each costs a recall of every question.
BUDGETS = {"LoCoMo": (1000, 4000), "REALTALK": (1000, 4000), "BEAM-100K": (4000, 16_000)}


@pytest.fixture(scope="module")
async def report(data_dir: Path, anyio_backend: str) -> RetrievalReport:
    paths = [data_dir / name for name in CONVERSATIONS]
    conversations = [conversation for path in paths for conversation in load(path)]
    found, _ = systems(names=["plain BM25", "acms"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "budgets", BUDGETS.__getitem__)
        return await evaluate(conversations, found, rounds=100)


@pytest.mark.parametrize("dataset", FLOORS)
async def test_recall_without_a_model_stays_above_its_floor(report: RetrievalReport, dataset: str) -> None:
    means = report.means(dataset, "acms")
    fallen = {
        name: f"{100 * means[name].mean:.1f} < {floor}"
        for name, floor in FLOORS[dataset].items()
        if 100 * means[name].mean < floor
    }
    assert not fallen


@pytest.mark.parametrize("dataset", FLOORS)
async def test_recall_is_ahead_of_plain_bm25_on_the_same_questions(
    report: RetrievalReport, dataset: str
) -> None:
    for name in (
        name for name in FLOORS[dataset] if name.startswith("B")
    ):  # evidence within a budget is ranked for
        margin = report.margin(dataset, name)
        assert margin is not None
        assert margin.mean > 0.02, name
