"""A run, end to end: what ACMS remembers of a conversation with facts and corrections."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from acms.providers import OfflineReflector
from acms_eval import (
    MostRecent,
    PerfectReflector,
    PlainBM25,
    Probe,
    Recalled,
    Report,
    Said,
    Scenario,
    corrections,
    measure,
    run,
    table,
)

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]


class Asked:
    """A system that records its messages and questions."""

    name = "asked"

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def tell(self, said: Said) -> None:
        self.calls.append(said.text)

    async def settle(self) -> None:
        self.calls.append("settle")

    async def ask(self, question: str, budget: int) -> Sequence[Recalled]:
        self.calls.append(f"{question} {budget}")
        return [Recalled(text="tea", tokens=1)]


async def test_probes_are_asked_when_they_are_due_after_the_system_came_to_rest() -> None:
    said = corrections().said[:3]
    probes = (
        Probe(question="now?", expected=("tea",), after=1),
        Probe(question="later?", expected=("milk",), after=3),
    )
    system = Asked()
    report = await measure(Scenario(name="tea", said=said, probes=probes), system, budget=7)
    one, two, three = (one.text for one in said)
    assert system.calls == [one, "settle", "now? 7", two, three, "settle", "later? 7"]
    assert [score.hit for score in report.scores] == [True, False]


@pytest.mark.parametrize("seed", SEEDS)
async def test_perfect_proposals_give_every_answer_and_no_stale_one(seed: int) -> None:
    scenario = corrections(turns=200, seed=seed)
    figures = _checked_figures(await run(scenario, reflector=PerfectReflector(scenario)))
    assert figures["hit"] >= 0.98
    assert figures["stale"] <= 0.2  # never alone: what is so now is there in 98 of 100


@pytest.mark.parametrize("seed", SEEDS)
async def test_perfect_proposals_do_the_same_in_plain_conversation(seed: int) -> None:
    scenario = corrections(turns=200, seed=seed, marked=False)
    figures = _checked_figures(await run(scenario, reflector=PerfectReflector(scenario)))
    assert figures["hit"] >= 0.98
    assert figures["stale"] <= 0.2


@pytest.mark.parametrize("seed", SEEDS)
async def test_rules_without_a_model_give_nearly_every_answer_that_was_marked(seed: int) -> None:
    figures = _checked_figures(await run(corrections(turns=200, seed=seed), reflector=OfflineReflector()))
    assert figures["hit"] >= 0.95
    assert figures["stale"] <= 0.2


async def test_without_a_reflector_what_is_no_longer_so_is_recalled_too() -> None:
    figures = _checked_figures(await run(corrections(turns=200)))
    assert figures["stale"] > 0


async def test_facts_hold_in_a_file_and_along_the_way(tmp_path: Path) -> None:
    scenario = corrections(turns=200, seed=3, spread=True)
    report = await run(
        scenario, storage=f"sqlite:///{tmp_path / 'facts.db'}", reflector=PerfectReflector(scenario)
    )
    figures = _checked_figures(report)
    assert figures["hit"] >= 0.98
    assert figures["stale"] <= 0.2
    assert report.facts == 20


async def test_the_newest_messages_alone_know_next_to_nothing() -> None:
    figures = _checked_figures(await measure(corrections(turns=1000), MostRecent()))
    assert figures["hit"] <= 0.1


async def test_words_alone_find_the_answers_and_the_stale_ones() -> None:
    figures = _checked_figures(await measure(corrections(turns=200), PlainBM25()))
    assert figures["hit"] >= 0.9
    assert figures["stale"] > 0


async def test_baselines_keep_the_budget_and_rank_what_they_find() -> None:
    for system in (MostRecent(), PlainBM25()):
        for said in corrections(turns=200).said:
            await system.tell(said)
        items = await system.ask("Which database holds our data?", 100)
        assert 0 < sum(item.tokens for item in items) <= 100
    assert [item.score for item in items] == sorted((item.score for item in items), reverse=True)


def _checked_figures(report: Report) -> dict[str, float]:
    """Return the figures of a report after checking that they can be what they say."""
    figures = {name: value for name, value in report.figures().items() if value is not None}
    assert len(report.scores) == 20
    for name in ("hit", "stale", "stale anywhere", "precision", "precision past", "nDCG@5"):
        assert 0.0 <= figures[name] <= 1.0
    assert figures["tokens"] <= report.budget
    return figures


async def test_a_report_is_json_and_a_row_of_a_table() -> None:
    report = await measure(corrections(turns=100), MostRecent(), budget=50)
    document = json.loads(report.to_json())
    assert document["figures"]["tokens"] <= 50
    assert len(document["scores"]) == 20
    assert document["scores"][0]["probe"]["question"]
    heads, row = report.table().splitlines()
    assert heads.split()[:3] == ["turns", "system", "hit"]
    assert row.split()[:4] == ["100", "most", "recent", "window"]


async def test_reports_of_several_runs_are_one_over_all_their_probes() -> None:
    reports = [await measure(corrections(turns=100, seed=seed), MostRecent()) for seed in (1, 2)]
    together = Report.together([replace(reports[0], facts=3), replace(reports[1], facts=5)])
    assert len(together.scores) == 40
    assert together.facts == 4
    assert together.tell_seconds == sum(report.tell_seconds for report in reports)
    assert "    4" in table([together])
