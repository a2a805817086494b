"""Sweeps: rows for every system and value, the same in every run but for the clock."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from acms import ACMSConfig, ValidationError
from acms_eval import MostRecent, OpenSystem, PlainBM25, Probe, Said, Scenario, System, score, sections
from acms_eval.causes import find_cause
from acms_eval.limits import find_limits
from acms_eval.peers import open_acms
from acms_eval.scenarios.writer import START
from acms_eval.sweeps import (
    CURRENT_PCTS,
    DISTANCES,
    EPISODE_TURNS,
    LENGTHS,
    NOISES,
    TOKEN_BUDGETS,
    Row,
    Step,
    compare_markers,
    measure_latencies,
    sweep_current_shares,
    sweep_distances,
    sweep_episode_counts,
    sweep_episode_lengths,
    sweep_lengths,
    sweep_token_budgets,
    sweep_topic_shares,
)


def opener_of(make: type[System]) -> OpenSystem:
    @asynccontextmanager
    async def fresh() -> AsyncGenerator[System]:
        yield make()

    return fresh


RECENT = {"recent": opener_of(MostRecent)}
BOTH = {**RECENT, "words": opener_of(PlainBM25)}


def without_times(rows: list[Row]) -> list[Row]:
    return [replace(row, ask_ms=0.0, tell_ms=0.0) for row in rows]


def test_the_values_are_those_of_the_seed() -> None:
    assert TOKEN_BUDGETS == (100, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 4000)
    assert EPISODE_TURNS == (4, 6, 8, 12, 16)
    assert CURRENT_PCTS == (0.2, 0.3, 0.4, 0.5, 0.6)
    assert {50, 100, 150, 200, 300, 500, 1000} == set(LENGTHS)
    assert {10, 20, 30, 50, 75, 100, 150, 200, 1000, 5000} <= set(DISTANCES)
    assert (NOISES[0], NOISES[-1]) == (0.0, 0.9)


async def test_a_larger_budget_holds_more_of_a_window() -> None:
    steps: list[Step] = []
    rows = await sweep_token_budgets(
        BOTH, values=(100, 500, 4000), scenarios=["high_density"], turns=100, seeds=[1], progress=steps.append
    )
    assert [(row.system, row.at, row.budget) for row in rows] == [
        (name, value, value) for name in ("recent", "words") for value in (100, 500, 4000)
    ]
    recent = [row.hit for row in rows[:3]]
    assert recent == sorted(recent)
    assert recent[0] == 0.0
    assert recent[-1] == 1.0
    assert all(row.tokens <= row.at and row.probes == 20 for row in rows)
    assert [(step.done, step.of) for step in steps] == [(1, 2), (2, 2)]


async def test_rows_are_the_same_in_every_run_but_for_the_clock() -> None:
    once = await sweep_token_budgets(BOTH, values=(500,), turns=60, seeds=[1, 2])
    again = await sweep_token_budgets(BOTH, values=(500,), turns=60, seeds=[1, 2])
    assert without_times(once) == without_times(again)
    assert once[0].scenario.startswith("decision_tracking + constraint_awareness")
    assert json.loads(json.dumps(once[0].to_dict()))["sweep"] == "budget"


async def test_a_window_forgets_as_a_conversation_grows() -> None:
    rows = await sweep_lengths(RECENT, values=(50, 300, 1000), seeds=[0], budget=500)
    assert [row.at for row in rows] == [row.turns for row in rows] == [50, 300, 1000]
    assert rows[0].hit > rows[-1].hit


async def test_the_settings_of_acms_are_varied_one_at_a_time() -> None:
    seen: list[ACMSConfig] = []

    def configured(config: ACMSConfig) -> OpenSystem:
        seen.append(config)
        return open_acms(config=config)

    made = {"acms": configured}
    rows = await sweep_episode_lengths(made, values=(4, 16), turns=60, seeds=[0])
    assert [row.at for row in rows] == [4, 16]
    assert [config.episodes.max_turns for config in seen] == [4, 16]
    seen.clear()
    rows = await sweep_current_shares(made, values=(0.2, 0.6), turns=60, seeds=[0])
    assert [config.recall.current_episode_budget_pct for config in seen] == [0.2, 0.6]
    assert all(row.budget == 500 for row in rows)
    seen.clear()
    rows = await sweep_episode_counts(made, values=(80,), seeds=[0])
    assert [config.episodes.max_turns for config in seen] == [4]
    assert [(row.at, row.turns) for row in rows] == [(20, 80)]
    assert rows[0].hit >= 0.9


async def test_what_a_message_costs_is_measured_stretch_by_stretch() -> None:
    steps: list[Step] = []
    rows = await measure_latencies(
        BOTH, values=(50, 10), asks=3, progress=steps.append, scenario="decision_tracking"
    )
    assert [(row.system, row.turns) for row in rows] == [
        ("recent", 10),
        ("recent", 50),
        ("words", 10),
        ("words", 50),
    ]
    assert all(min(row.ingest_ms, row.recall_ms, row.background_ms) >= 0 for row in rows)
    assert [(step.done, step.of) for step in steps] == [(1, 4), (2, 4), (3, 4), (4, 4)]


async def test_a_window_loses_a_fact_at_a_distance_and_words_do_not_without_noise() -> None:
    rows = await sweep_distances(BOTH, values=(10, 50, 200), seeds=range(3))
    found = {(row.system, row.variant, row.at): row for row in rows}
    assert len(found) == len(rows) == 12
    assert found["recent", "0 % noise", 10].hit == 1.0
    assert found["recent", "0 % noise", 200].hit == 0.0
    assert found["words", "0 % noise", 200].hit == 1.0
    assert all(row.probes == 3 and row.budget == 300 for row in rows)


async def test_a_curve_says_where_it_breaks_and_why() -> None:
    rows = await sweep_distances(BOTH, values=(10, 50, 200), noises=(0.0,), seeds=range(3))
    recent, words = find_limits(rows)
    assert (recent.held, recent.broke, recent.cause) == (10, 50, "budget")
    assert (words.held, words.broke, words.cause, words.answered) == (200, None, "", 1.0)
    rows = await sweep_token_budgets(
        BOTH, values=(100, 4000), scenarios=["high_density"], turns=100, seeds=[1]
    )
    assert {(one.system, one.held, one.broke) for one in find_limits(rows) if one.system == "recent"} == {
        ("recent", 4000, 100)
    }
    (shown,) = sections.limit_section(find_limits(rows)).tables
    assert (
        "budget (high density): recent",
        "4000",
        "100",
        "0%",
        "",
        "0%",
        "0%",
        "budget",
    ) in shown.rows


async def test_what_is_missed_for_want_of_words_or_rank_is_told_apart() -> None:
    scenario = Scenario(
        name="two",
        said=tuple(
            Said(role="user", text=text, created_at=START, part="fact")
            for text in ("Decision: PostgreSQL it is.", "The cache is Valkey.")
        ),
        probes=(
            Probe(question="Where do rows live?", expected=("PostgreSQL",), after=2),
            Probe(question="What is the cache?", expected=("Valkey",), after=2),
        ),
    )
    missed = [score(probe, ()) for probe in scenario.probes]
    assert [find_cause(scenario, one, one) for one in missed] == ["words", "rank"]


async def test_noise_is_a_share_of_what_is_said_since() -> None:
    rows = await sweep_topic_shares(BOTH, values=(0.0, 0.9), distance=50, seeds=range(2))
    assert [(row.system, row.at, row.probes) for row in rows] == [
        (name, at, 2) for name in ("recent", "words") for at in (0.0, 0.9)
    ]


async def test_whole_requests_are_a_system_of_their_own() -> None:
    systems = {"requests": open_acms(name="requests", requests=True)}
    (row,) = await sweep_topic_shares(systems, values=(0.5,), distance=50, seeds=[0])
    assert (row.hit, row.system) == (1.0, "requests")
    assert 0 < row.tokens <= 300


async def test_marked_and_plain_facts_are_curves_of_their_own() -> None:
    rows = await compare_markers(BOTH, values=(100,), seeds=[0])
    assert [(row.system, row.variant) for row in rows] == [
        ("recent", "marked"),
        ("recent", "plain"),
        ("words", "marked"),
        ("words", "plain"),
    ]
    assert all(row.probes == 20 and row.outdated is not None for row in rows)


async def test_an_unknown_scenario_and_an_unknown_distance_are_refused() -> None:
    with pytest.raises(ValidationError) as caught:
        await sweep_lengths(RECENT, scenario="chess")
    assert caught.value.field == "scenario"
    assert "high_density" in caught.value.options
    with pytest.raises(ValidationError) as caught:
        await sweep_distances(RECENT, values=(10, 33))
    assert caught.value.field == "values"
