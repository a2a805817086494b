"""Sweeps: the same question to a memory while one thing varies (E2, E3, E5.3).

Every sweep takes systems by name and returns plain rows, one for each system and value, over the probes of several
conversations that differ in their seed. Apart from the durations a row is the same in every run. `progress` is told
after every conversation.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median
from typing import Any

from acms.config import ACMSConfig, EpisodeBoundaryConfig, RecallConfig
from acms.errors import ValidationError
from acms_eval.causes import find_cause
from acms_eval.composite import WEIGHTS
from acms_eval.nouns import Report, Scenario, Score, System
from acms_eval.peers import OpenSystem
from acms_eval.running import measure_budgets
from acms_eval.scenarios import DISTANCES, SCENARIOS, corrections, spread, temporal_degradation
from acms_eval.topics import Phrases, phrases_of_seed

__all__ = [
    "CURRENT_PCTS",
    "EPISODE_TURNS",
    "LENGTHS",
    "NOISES",
    "TOKEN_BUDGETS",
    "Latency",
    "OpenWithConfig",
    "Row",
    "Step",
    "compare_markers",
    "measure_latencies",
    "sweep_current_shares",
    "sweep_distances",
    "sweep_episode_counts",
    "sweep_episode_lengths",
    "sweep_lengths",
    "sweep_token_budgets",
    "sweep_topic_shares",
]

TOKEN_BUDGETS = (100, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 4000)
EPISODE_TURNS = (4, 6, 8, 12, 16)
CURRENT_PCTS = (0.2, 0.3, 0.4, 0.5, 0.6)
LENGTHS = (50, 100, 150, 200, 300, 500, 1000)
NOISES = (0.0, 0.25, 0.5, 0.75, 0.9)
ROOMY = 8
"""A missed probe is asked again within so many times its budget: a hit then means that only room was missing."""
DENSE = "high_density"
"""Scenario of the sweeps of parameters: twenty facts, so that a parameter has something to decide."""

Words = Phrases | Sequence[Phrases] | None
"""Word lists: of several every seed takes the next one, so that no figure rests on one list; None: `SHIPPED[0]`."""
OpenWithConfig = Callable[[ACMSConfig], OpenSystem]
"""Makes systems of one configuration; only ACMS has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The progress of a sweep."""

    sweep: str
    #: The system and the value that were just measured.
    system: str
    at: float
    done: int
    of: int


Progress = Callable[[Step], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The figures of one system at one value of a sweep."""

    sweep: str
    #: The value of what varies: tokens, messages, a share.
    at: float
    system: str
    #: Names of the scenarios.
    scenario: str
    #: Which of several curves it belongs to, such as "marked" and "plain"; empty when there is one.
    variant: str = ""
    turns: int
    budget: int
    probes: int
    #: Shares of the probes; `acms_eval.metrics` defines every figure.
    hit: float
    hit_at_1: float
    hit_at_5: float
    answered: float
    #: The share among probes with a superseded value; None when there were none.
    outdated: float | None
    #: None when nothing was recalled.
    precision: float | None
    ndcg: float
    items: float
    tokens: float
    #: The number of unanswered probes by their cause, see `acms_eval.causes`.
    causes: Mapping[str, int]
    #: Duration of one recall, and of telling one message, background work included.
    ask_ms: float
    tell_ms: float
    #: The share among probes with a superseded value that show this value, and not the present one.
    only_outdated: float | None = None
    #: The cost of a request, in units of one token of uncached input; None for systems that make no requests.
    paid: float | None = None
    #: Answered, by the word list of the conversation.
    by_words: Mapping[str, float] = field(default_factory=dict[str, float])

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON has it."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long a message and a question take once `turns` messages have been told."""

    system: str
    turns: int
    #: Median of telling a message, since the row before.
    ingest_ms: float
    #: Median of a recall.
    recall_ms: float
    #: Mean of the background work for one message: vectors, reflection.
    background_ms: float

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON has it."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One conversation told to one system."""

    #: The value of what the sweep varies.
    value: float
    system: str
    open_system: OpenSystem
    scenario: Scenario
    budget: int | None = None
    variant: str = ""


@dataclass(slots=True)
class _Pool:
    """The reports that one row is made of: those of its seeds and scenarios."""

    first_run: _Run
    reports: list[Report] = field(default_factory=list[Report])
    #: For each report the one with `ROOMY` times its budget, and its scenario: the causes of misses follow from them.
    roomy_reports: list[Report] = field(default_factory=list[Report])
    scenarios: list[Scenario] = field(default_factory=list[Scenario])

    async def measure(self, run: _Run, system: System) -> None:
        """Tell a conversation, ask within its budget, and ask missed probes again within `ROOMY` times as much."""
        budget = run.scenario.budget if run.budget is None else run.budget
        report, roomy = await measure_budgets(run.scenario, system, (budget,), roomy=ROOMY * budget)
        self.reports.append(report)
        self.roomy_reports.append(roomy)
        self.scenarios.append(run.scenario)


async def _measure_runs(sweep: str, runs: Sequence[_Run], progress: Progress | None) -> list[Row]:
    """Measure conversation after conversation, and return one row for each system, variant and value."""
    pools: dict[tuple[str, str, float], _Pool] = {}
    for run_count, run in enumerate(runs, 1):
        pool = pools.setdefault((run.system, run.variant, run.value), _Pool(run))
        async with run.open_system() as system:
            await pool.measure(run, system)
        _tell_progress(progress, sweep, run, run_count, len(runs))
    return [_make_row(sweep, pool.first_run, pool) for pool in pools.values()]


def _tell_progress(progress: Progress | None, sweep: str, run: _Run, done: int, of: int) -> None:
    if progress is not None:
        progress(Step(sweep=sweep, system=run.system, at=run.value, done=done, of=of))


def _make_row(sweep: str, run: _Run, pool: _Pool, after: int | None = None) -> Row:
    """Return the row of a pool, over the probes asked after message number `after`, or over all."""
    reports, scores, causes = pool.reports, list[Score](), Counter[str]()
    by_words: dict[str, list[bool]] = {}
    for report, roomy_report, scenario in zip(reports, pool.roomy_reports, pool.scenarios, strict=True):
        for score, roomy_score in zip(report.scores, roomy_report.scores, strict=True):
            if after in (None, score.probe.after):
                scores.append(score)
                by_words.setdefault(report.words, []).append(score.answered)
                if (why := find_cause(scenario, score, roomy_score)) is not None:
                    causes[why] += 1
    together = replace(reports[0], scores=tuple(scores))
    figures = together.figures()
    tell_seconds = sum(report.tell_seconds for report in reports) / sum(report.turns for report in reports)
    return Row(
        sweep=sweep,
        at=run.value,
        system=run.system,
        scenario=" + ".join(dict.fromkeys(report.kind for report in reports)),
        variant=run.variant,
        turns=together.turns,
        budget=together.budget,
        probes=len(scores),
        hit=figures["hit"] or 0.0,
        hit_at_1=figures["hit@1"] or 0.0,
        hit_at_5=figures["hit@5"] or 0.0,
        answered=figures["answered"] or 0.0,
        outdated=figures["outdated"],
        precision=figures["precision"],
        ndcg=figures["nDCG@5"] or 0.0,
        items=figures["items"] or 0.0,
        tokens=figures["tokens"] or 0.0,
        causes=dict(causes.most_common()),
        ask_ms=figures["ask ms"] or 0.0,
        tell_ms=1000 * tell_seconds,
        only_outdated=figures["only outdated"],
        paid=figures["paid"],
        by_words={name: fmean(answered) for name, answered in sorted(by_words.items())},
    )


def _write_scenario(name: str, turns: int, seed: int, phrases: Words) -> Scenario:
    if name not in SCENARIOS:
        raise ValidationError(f"{name!r} is no known scenario", field="scenario", options=tuple(SCENARIOS))
    return SCENARIOS[name](turns=turns, seed=seed, phrases=phrases_of_seed(phrases, seed))


# ── E2: what parameters do ──────────────────────────────────────────────────────────────────────────────────────────


async def sweep_token_budgets(
    systems: Mapping[str, OpenSystem],
    *,
    values: Sequence[int] = TOKEN_BUDGETS,
    scenarios: Sequence[str] = tuple(WEIGHTS),
    turns: int = 200,
    seeds: Sequence[int] = range(3),
    phrases: Words = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Return the curve from budget to recall (E2.1), by default over the probes of all scenarios of the composite.

    A conversation is told once and asked within every budget.
    """
    runs = [
        _Run(
            value=max(values),
            system=name,
            open_system=open_system,
            scenario=_write_scenario(scenario, turns, seed, phrases),
        )
        for name, open_system in systems.items()
        for scenario in scenarios
        for seed in seeds
    ]
    pools = {(name, value): _Pool(runs[0]) for name in systems for value in values}
    for run_count, run in enumerate(runs, 1):
        async with run.open_system() as system:
            *reports, roomy = await measure_budgets(run.scenario, system, values, roomy=ROOMY * max(values))
        for value, report in zip(values, reports, strict=True):
            pool = pools[run.system, value]
            pool.reports.append(report)
            pool.roomy_reports.append(roomy)
            pool.scenarios.append(run.scenario)
        _tell_progress(progress, "budget", run, run_count, len(runs))
    return [
        _make_row(
            "budget",
            _Run(value=value, system=name, open_system=systems[name], scenario=runs[0].scenario),
            pool,
        )
        for (name, value), pool in pools.items()
    ]


async def sweep_episode_lengths(
    configured: Mapping[str, OpenWithConfig],
    *,
    values: Sequence[int] = EPISODE_TURNS,
    turns: int = 200,
    budget: int | None = None,
    seeds: Sequence[int] = range(3),
    phrases: Words = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Return how recall depends on the messages after which an episode ends by itself (E2.2)."""
    runs = [
        _Run(
            value=value,
            system=name,
            open_system=make(ACMSConfig(episodes=EpisodeBoundaryConfig(max_turns=value))),
            scenario=_write_scenario(DENSE, turns, seed, phrases),
            budget=budget,
        )
        for name, make in configured.items()
        for value in values
        for seed in seeds
    ]
    return await _measure_runs("max_turns_per_episode", runs, progress)


async def sweep_current_shares(
    configured: Mapping[str, OpenWithConfig],
    *,
    values: Sequence[float] = CURRENT_PCTS,
    turns: int = 200,
    budget: int | None = 500,
    seeds: Sequence[int] = range(3),
    phrases: Words = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Return how recall depends on the share of the budget that is kept for the current episode (E2.3)."""
    runs = [
        _Run(
            value=value,
            system=name,
            open_system=make(ACMSConfig(recall=RecallConfig(current_episode_budget_pct=value))),
            scenario=_write_scenario(DENSE, turns, seed, phrases),
            budget=budget,
        )
        for name, make in configured.items()
        for value in values
        for seed in seeds
    ]
    return await _measure_runs("current_episode_budget_pct", runs, progress)


# ── E3: what length does ────────────────────────────────────────────────────────────────────────────────────────────


async def sweep_lengths(
    systems: Mapping[str, OpenSystem],
    *,
    values: Sequence[int] = LENGTHS,
    scenario: str = DENSE,
    budget: int | None = None,
    seeds: Sequence[int] = range(3),
    phrases: Words = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Return how recall depends on the length of a conversation (E3.1): facts early, probes spread over the rest."""
    runs = [
        _Run(
            value=value,
            system=name,
            open_system=open_system,
            scenario=spread(_write_scenario(scenario, value, seed, phrases)),
            budget=budget,
        )
        for name, open_system in systems.items()
        for value in values
        for seed in seeds
    ]
    return await _measure_runs("turns", runs, progress)


async def sweep_episode_counts(
    configured: Mapping[str, OpenWithConfig],
    *,
    values: Sequence[int] = (80, 160, 320),
    seeds: Sequence[int] = range(3),
    phrases: Words = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Return recall across episodes of four messages (E3.2): facts in the first ones, everything asked at the end."""
    config = ACMSConfig(episodes=EpisodeBoundaryConfig(max_turns=4))
    runs = [
        _Run(
            value=value // 4,
            system=name,
            open_system=make(config),
            scenario=_write_scenario(DENSE, value, seed, phrases),
        )
        for name, make in configured.items()
        for value in values
        for seed in seeds
    ]
    return await _measure_runs("episodes", runs, progress)


async def measure_latencies(
    systems: Mapping[str, OpenSystem],
    *,
    values: Sequence[int] = (10, 50, 100, 200, 500, 1000),
    scenario: str = DENSE,
    asks: int = 20,
    seed: int = 0,
    phrases: Words = None,
    progress: Progress | None = None,
) -> list[Latency]:
    """Return the time of a message and of a recall as a conversation grows (E3.3).

    One conversation is told in stretches. After every message the system comes to rest, which is counted as background
    work; at the end of a stretch the probes are asked in turn, `asks` times altogether.
    """
    stops = sorted(set(values))
    scenario_told = _write_scenario(scenario, max(stops), seed, phrases)
    rows: list[Latency] = []
    done = 0
    for name, open_system in systems.items():
        async with open_system() as system:
            told_count = 0
            for stop in stops:
                ingest: list[float] = []
                background: list[float] = []
                for said in scenario_told.said[told_count:stop]:
                    start = time.perf_counter()
                    await system.tell(said)
                    told_at = time.perf_counter()
                    await system.settle()
                    ingest.append(told_at - start)
                    background.append(time.perf_counter() - told_at)
                told_count = stop
                recall: list[float] = []
                for index in range(asks):
                    start = time.perf_counter()
                    await system.ask(
                        scenario_told.probes[index % len(scenario_told.probes)].question,
                        scenario_told.budget,
                    )
                    recall.append(time.perf_counter() - start)
                rows.append(
                    Latency(
                        system=name,
                        turns=stop,
                        ingest_ms=1000 * median(ingest),
                        recall_ms=1000 * median(recall),
                        background_ms=1000 * fmean(background),
                    )
                )
                done += 1
                if progress is not None:
                    step_count = len(stops) * len(systems)
                    progress(Step(sweep="latency", system=name, at=stop, done=done, of=step_count))
    return rows


# ── E5.3, and what markers are worth ────────────────────────────────────────────────────────────────────────────────


async def sweep_distances(
    systems: Mapping[str, OpenSystem],
    *,
    values: Sequence[int] = DISTANCES,
    noises: Sequence[float] = (0.0, 0.5),
    budget: int = 300,
    seeds: Sequence[int] = range(20),
    phrases: Words = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Return how recall depends on the messages since a fact (E5.3), without noise about its topic and with it."""
    chosen_distances = [value for value in sorted(set(values)) if value in DISTANCES]
    if len(chosen_distances) < len(set(values)):
        raise ValidationError(f"must be of {', '.join(map(str, DISTANCES))}", field="values")
    runs = [
        _Run(
            value=max(chosen_distances),
            system=name,
            open_system=open_system,
            scenario=temporal_degradation(
                turns=max(chosen_distances) + 1,
                seed=seed,
                phrases=phrases_of_seed(phrases, seed),
                noise=noise,
            ),
            budget=budget,
            variant=f"{round(100 * noise)} % noise",
        )
        for name, open_system in systems.items()
        for noise in noises
        for seed in seeds
    ]
    pools: dict[tuple[str, str], _Pool] = {}
    for run_count, run in enumerate(runs, 1):
        pool = pools.setdefault((run.system, run.variant), _Pool(run))
        async with run.open_system() as system:
            await pool.measure(run, system)
        _tell_progress(progress, "distance", run, run_count, len(runs))
    return [
        _make_row("distance", replace(pool.first_run, value=value), pool, value + 1)
        for pool in pools.values()
        for value in chosen_distances
    ]


async def sweep_topic_shares(
    systems: Mapping[str, OpenSystem],
    *,
    values: Sequence[float] = NOISES,
    distance: int = 300,
    budget: int = 300,
    seeds: Sequence[int] = range(20),
    phrases: Words = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Return how recall depends on the share of messages since a fact that have its topic (E5.5)."""
    runs: list[_Run] = []
    for name, open_system in systems.items():
        for value in values:
            for seed in seeds:
                scenario = temporal_degradation(
                    turns=distance + 1, seed=seed, phrases=phrases_of_seed(phrases, seed), noise=value
                )
                end = max(probe.after for probe in scenario.probes)
                last_probes = tuple(probe for probe in scenario.probes if probe.after == end)
                runs.append(
                    _Run(
                        value=value,
                        system=name,
                        open_system=open_system,
                        scenario=replace(scenario, probes=last_probes),
                        budget=budget,
                    )
                )
    return await _measure_runs("noise", runs, progress)


async def compare_markers(
    systems: Mapping[str, OpenSystem],
    *,
    values: Sequence[int] = (200, 1000),
    budget: int | None = None,
    seeds: Sequence[int] = range(3),
    phrases: Words = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Return recall of the same conversations with facts stated with markers and without."""
    runs = [
        _Run(
            value=value,
            system=name,
            open_system=open_system,
            scenario=corrections(
                turns=value, seed=seed, phrases=phrases_of_seed(phrases, seed), marked=marked
            ),
            budget=budget,
            variant="marked" if marked else "plain",
        )
        for name, open_system in systems.items()
        for marked in (True, False)
        for value in values
        for seed in seeds
    ]
    return await _measure_runs("marked", runs, progress)
