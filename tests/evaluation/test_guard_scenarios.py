"""A floor under what ACMS remembers of the generated scenarios: no model, no network, seconds.

The floors are a little below the measured figures; raise a floor with its figure. `festival.json` is a word list
that nothing was tuned on, and is to stay so: a summer festival instead of a software project, with corrections in other
words.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from acms_eval import SCENARIOS, WEIGHTS, Phrases, Report, composite, phrases, run
from acms_eval.peers import systems
from acms_eval.sweeps import sweep_distances

COMPOSITE_AT_500 = 0.95
COMPOSITE_OF_FESTIVAL = 0.95
HIT_AT_5 = 0.95

SEEDS = (11, 12)


async def _run_scenarios(
    name: str, *, budget: int | None = None, words: Phrases | None = None
) -> list[Report]:
    written = [SCENARIOS[name](turns=160, seed=seed, phrases=words) for seed in SEEDS]
    return [await run(scenario, budget=budget) for scenario in written]


async def test_the_composite_at_500_tokens_does_not_fall() -> None:
    reports = [report for name in WEIGHTS for report in await _run_scenarios(name, budget=500)]
    found = composite(reports)
    assert found.score >= COMPOSITE_AT_500, found.to_json()
    hits = [score.hit_at_5 for report in reports for score in report.scores]
    assert sum(hits) / len(hits) >= HIT_AT_5


async def test_it_does_not_fall_with_words_that_nothing_was_tuned_on() -> None:
    words = phrases(Path(__file__).with_name("festival.json"))
    reports = [report for name in WEIGHTS for report in await _run_scenarios(name, budget=500, words=words)]
    found = composite(reports)
    assert found.score >= COMPOSITE_OF_FESTIVAL, found.to_json()


@pytest.mark.parametrize(
    "words",
    [pytest.param(None, marks=pytest.mark.slow), Path(__file__).with_name("festival.json")],
    ids=["own", "festival"],
)
async def test_what_is_no_longer_so_is_never_recalled_without_what_is(words: Path | None) -> None:
    reports = [
        report
        for name in ("fact_correction", "contradiction")
        for report in await _run_scenarios(name, budget=500, words=phrases(words))
    ]
    alone = [score.only_outdated for report in reports for score in report.scores]
    assert alone.count(False) >= 16
    assert alone.count(True) == 0


@pytest.mark.parametrize(
    "words",
    [pytest.param(None, marks=pytest.mark.slow), Path(__file__).with_name("festival.json")],
    ids=["own", "festival"],
)
async def test_a_marked_decision_is_recalled_however_much_is_said_about_its_topic(words: Path | None) -> None:
    found, _ = systems(names=["acms"])
    rows = await sweep_distances(
        found, values=(10, 100, 300, 1000), noises=(0.5,), seeds=range(6), phrases=phrases(words)
    )
    assert min(row.hit for row in rows) >= 0.8
