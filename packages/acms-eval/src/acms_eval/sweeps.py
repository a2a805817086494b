"""Sweeps: the same question to a memory while one thing varies (E2, E3, E5.3).

Every sweep takes systems by name and returns plain rows, one for each system and value, over the probes of several
conversations that differ in their seed. What is read off a clock stands last in a row; the rest is the same in every
run. `progress` is told after every conversation.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median
from typing import Any

from acms.config import ACMSConfig, EpisodeBoundaryConfig, RecallConfig
from acms.errors import ValidationError
from acms_eval.causes import cause
from acms_eval.composite import WEIGHTS
from acms_eval.nouns import Report, Scenario, Score, System
from acms_eval.peers import OpenSystem
from acms_eval.running import measure_budgets
from acms_eval.scenarios import DISTANCES, SCENARIOS, corrections, spread, temporal_degradation
from acms_eval.topics import Phrases, drawn

__all__ = [
    "CURRENT_PCTS",
    "EPISODE_TURNS",
    "LENGTHS",
    "NOISES",
    "TOKEN_BUDGETS",
    "Configured",
    "Latency",
    "Row",
    "Step",
    "current_shares",
    "distances",
    "episode_lengths",
    "latencies",
    "lengths",
    "many_episodes",
    "marked_and_plain",
    "token_budgets",
    "topic_shares",
]

TOKEN_BUDGETS = (100, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 4000)
EPISODE_TURNS = (4, 6, 8, 12, 16)
CURRENT_PCTS = (0.2, 0.3, 0.4, 0.5, 0.6)
LENGTHS = (50, 100, 150, 200, 300, 500, 1000)
NOISES = (0.0, 0.25, 0.5, 0.75, 0.9)
ROOMY = 8
"""Times its budget within which a probe that was missed is asked again, to tell whether that was for want of room."""
DENSE = "high_density"
"""Scenario of the sweeps of parameters: twenty facts, so that a parameter has something to decide."""

Words = Phrases | Sequence[Phrases] | None
"""Word lists: of several every seed takes the next one; None is the first of those that come along."""
Configured = Callable[[ACMSConfig], OpenSystem]
"""Makes systems of one configuration; only ACMS has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How far a sweep has come."""

    sweep: str
    #: What was just measured.
    system: str
    at: float
    done: int
    of: int


Progress = Callable[[Step], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one system made of one value of a sweep."""

    sweep: str
    #: The value of what varies: tokens, messages, a share.
    at: float
    system: str
    #: Names of the scenarios.
    scenario: str
    #: Which of several curves it belongs to, such as "marked" and "plain"; empty when there is one.
    variant: str = ""
    turns: int
    token_budget: int
    probes: int
    #: Shares of the probes; `acms_eval.metrics` defines every figure.
    hit: float
    hit_at_1: float
    hit_at_5: float
    answered: float
    #: Of the probes where something was superseded; None when there were none.
    outdated: float | None
    #: None when nothing was recalled.
    precision: float | None
    ndcg: float
    items: float
    tokens: float
    #: Of the probes that were not answered: how many for which cause, see `acms_eval.causes`.
    causes: Mapping[str, int]
    #: By the clock: one recall, and one message told, background work included.
    ask_ms: float
    tell_ms: float
    #: Share of the probes where something was superseded that show what is no longer so, and not what is.
    only_outdated: float | None = None
    #: What a request costs, in units of one token of uncached input; None for what makes no requests.
    paid: float | None = None
    #: Answered, by the word list of the conversation.
    by_words: Mapping[str, float] = field(default_factory=dict[str, float])

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON has it."""
        return asdict(self)

    def to_json(self) -> str:
        """Return the row as JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """What a message costs once so many have been told; all of it by the clock."""

    system: str
    turns: int
    #: Median of telling a message, since the row before.
    ingest_ms: float
    #: Median of a recall.
    recall_ms: float
    #: Mean of what goes on in the background for one message: vectors, reflection.
    background_ms: float

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON has it."""
        return asdict(self)

    def to_json(self) -> str:
        """Return the row as JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One conversation told to one system."""

    at: float
    system: str
    opened: OpenSystem
    scenario: Scenario
    token_budget: int | None = None
    variant: str = ""


@dataclass(slots=True)
class _Pool:
    """The reports of one row."""

    first: _Run
    reports: list[Report] = field(default_factory=list[Report])
    #: The same with more room each, and what was told: they tell why something was missed.
    roomy: list[Report] = field(default_factory=list[Report])
    scenarios: list[Scenario] = field(default_factory=list[Scenario])

    async def measure(self, one: _Run, system: System) -> None:
        """Tell a conversation and ask within its budget, and what was missed once more with more room."""
        budget = one.scenario.token_budget if one.token_budget is None else one.token_budget
        report, roomy = await measure_budgets(one.scenario, system, (budget,), roomy=ROOMY * budget)
        self.reports.append(report)
        self.roomy.append(roomy)
        self.scenarios.append(one.scenario)


async def _measured(sweep: str, runs: Sequence[_Run], progress: Progress | None) -> list[Row]:
    """Measure conversation after conversation, and return one row for each system, variant and value."""
    pools: dict[tuple[str, str, float], _Pool] = {}
    for done, one in enumerate(runs, 1):
        pool = pools.setdefault((one.system, one.variant, one.at), _Pool(one))
        async with one.opened() as system:
            await pool.measure(one, system)
        _tell(progress, sweep, one, done, len(runs))
    return [_row(sweep, pool.first, pool) for pool in pools.values()]


def _tell(progress: Progress | None, sweep: str, one: _Run, done: int, of: int) -> None:
    if progress is not None:
        progress(Step(sweep=sweep, system=one.system, at=one.at, done=done, of=of))


def _row(sweep: str, run: _Run, pool: _Pool, after: int | None = None) -> Row:
    """Return what was found, of the probes that were due after a message or of all."""
    reports, scores, causes = pool.reports, list[Score](), Counter[str]()
    by_words: dict[str, list[bool]] = {}
    for report, roomy, talk in zip(reports, pool.roomy, pool.scenarios, strict=True):
        for score, with_room in zip(report.scores, roomy.scores, strict=True):
            if after in (None, score.probe.after):
                scores.append(score)
                by_words.setdefault(report.words, []).append(score.answered)
                if (found := cause(talk, score, with_room)) is not None:
                    causes[found] += 1
    together = replace(reports[0], scores=tuple(scores))
    figures = together.figures()
    told = sum(report.tell_seconds for report in reports) / sum(report.turns for report in reports)
    return Row(
        sweep=sweep,
        at=run.at,
        system=run.system,
        scenario=" + ".join(dict.fromkeys(report.kind for report in reports)),
        variant=run.variant,
        turns=together.turns,
        token_budget=together.token_budget,
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
        tell_ms=1000 * told,
        only_outdated=figures["only outdated"],
        paid=figures["paid"],
        by_words={name: fmean(answered) for name, answered in sorted(by_words.items())},
    )


def _written(name: str, turns: int, seed: int, phrases: Words) -> Scenario:
    if name not in SCENARIOS:
        raise ValidationError(f"{name!r} is no known scenario", field="scenario", options=tuple(SCENARIOS))
    return SCENARIOS[name](turns=turns, seed=seed, phrases=drawn(phrases, seed))


# ── E2: what parameters do ──────────────────────────────────────────────────────────────────────────────────────────


async def token_budgets(
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
        _Run(at=max(values), system=name, opened=opened, scenario=_written(scenario, turns, seed, phrases))
        for name, opened in systems.items()
        for scenario in scenarios
        for seed in seeds
    ]
    pools = {(name, value): _Pool(runs[0]) for name in systems for value in values}
    for done, one in enumerate(runs, 1):
        async with one.opened() as system:
            *found, roomy = await measure_budgets(one.scenario, system, values, roomy=ROOMY * max(values))
        for value, report in zip(values, found, strict=True):
            pool = pools[one.system, value]
            pool.reports.append(report)
            pool.roomy.append(roomy)
            pool.scenarios.append(one.scenario)
        _tell(progress, "token_budget", one, done, len(runs))
    return [
        _row(
            "token_budget",
            _Run(at=value, system=name, opened=systems[name], scenario=runs[0].scenario),
            pool,
        )
        for (name, value), pool in pools.items()
    ]


async def episode_lengths(
    configured: Mapping[str, Configured],
    *,
    values: Sequence[int] = EPISODE_TURNS,
    scenario: str = DENSE,
    turns: int = 200,
    token_budget: int | None = None,
    seeds: Sequence[int] = range(3),
    phrases: Words = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Return how recall depends on the messages after which an episode ends by itself (E2.2)."""
    runs = [
        _Run(
            at=value,
            system=name,
            opened=make(ACMSConfig(episodes=EpisodeBoundaryConfig(max_turns=value))),
            scenario=_written(scenario, turns, seed, phrases),
            token_budget=token_budget,
        )
        for name, make in configured.items()
        for value in values
        for seed in seeds
    ]
    return await _measured("max_turns_per_episode", runs, progress)


async def current_shares(
    configured: Mapping[str, Configured],
    *,
    values: Sequence[float] = CURRENT_PCTS,
    scenario: str = DENSE,
    turns: int = 200,
    token_budget: int | None = 500,
    seeds: Sequence[int] = range(3),
    phrases: Words = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Return how recall depends on the share of the budget that is kept for the current episode (E2.3)."""
    runs = [
        _Run(
            at=value,
            system=name,
            opened=make(ACMSConfig(recall=RecallConfig(current_episode_budget_pct=value))),
            scenario=_written(scenario, turns, seed, phrases),
            token_budget=token_budget,
        )
        for name, make in configured.items()
        for value in values
        for seed in seeds
    ]
    return await _measured("current_episode_budget_pct", runs, progress)


# ── E3: what length does ────────────────────────────────────────────────────────────────────────────────────────────


async def lengths(
    systems: Mapping[str, OpenSystem],
    *,
    values: Sequence[int] = LENGTHS,
    scenario: str = DENSE,
    token_budget: int | None = None,
    seeds: Sequence[int] = range(3),
    phrases: Words = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Return how recall depends on the length of a conversation (E3.1): facts early, probes spread over the rest."""
    runs = [
        _Run(
            at=value,
            system=name,
            opened=opened,
            scenario=spread(_written(scenario, value, seed, phrases)),
            token_budget=token_budget,
        )
        for name, opened in systems.items()
        for value in values
        for seed in seeds
    ]
    return await _measured("turns", runs, progress)


async def many_episodes(
    configured: Mapping[str, Configured],
    *,
    values: Sequence[int] = (80, 160, 320),
    scenario: str = DENSE,
    token_budget: int | None = None,
    seeds: Sequence[int] = range(3),
    phrases: Words = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Return recall across episodes of four messages (E3.2): facts in the first ones, everything asked at the end."""
    config = ACMSConfig(episodes=EpisodeBoundaryConfig(max_turns=4))
    runs = [
        _Run(
            at=value // 4,
            system=name,
            opened=make(config),
            scenario=_written(scenario, value, seed, phrases),
            token_budget=token_budget,
        )
        for name, make in configured.items()
        for value in values
        for seed in seeds
    ]
    return await _measured("episodes", runs, progress)


async def latencies(
    systems: Mapping[str, OpenSystem],
    *,
    values: Sequence[int] = (10, 50, 100, 200, 500, 1000),
    scenario: str = DENSE,
    asks: int = 20,
    seed: int = 0,
    phrases: Words = None,
    progress: Progress | None = None,
) -> list[Latency]:
    """Return what a message and a recall cost as a conversation grows (E3.3).

    One conversation is told in stretches. After every message the system comes to rest, which is counted as background
    work; at the end of a stretch the probes are asked in turn, `asks` times altogether.
    """
    stops = sorted(set(values))
    talk = _written(scenario, max(stops), seed, phrases)
    rows: list[Latency] = []
    done = 0
    for name, opened in systems.items():
        async with opened() as system:
            told = 0
            for stop in stops:
                ingest: list[float] = []
                background: list[float] = []
                for said in talk.said[told:stop]:
                    start = time.perf_counter()
                    await system.tell(said)
                    between = time.perf_counter()
                    await system.settle()
                    ingest.append(between - start)
                    background.append(time.perf_counter() - between)
                told = stop
                recall: list[float] = []
                for place in range(asks):
                    start = time.perf_counter()
                    await system.ask(talk.probes[place % len(talk.probes)].question, talk.token_budget)
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
                    of = len(stops) * len(systems)
                    progress(Step(sweep="latency", system=name, at=stop, done=done, of=of))
    return rows


# ── E5.3, and what markers are worth ────────────────────────────────────────────────────────────────────────────────


async def distances(
    systems: Mapping[str, OpenSystem],
    *,
    values: Sequence[int] = DISTANCES,
    noises: Sequence[float] = (0.0, 0.5),
    token_budget: int = 300,
    seeds: Sequence[int] = range(20),
    phrases: Words = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Return how recall depends on the messages since a fact (E5.3), without noise about its topic and with it."""
    known = [value for value in sorted(set(values)) if value in DISTANCES]
    if len(known) < len(set(values)):
        raise ValidationError(f"must be of {', '.join(map(str, DISTANCES))}", field="values")
    runs = [
        _Run(
            at=max(known),
            system=name,
            opened=opened,
            scenario=temporal_degradation(
                turns=max(known) + 1, seed=seed, phrases=drawn(phrases, seed), noise=noise
            ),
            token_budget=token_budget,
            variant=f"{round(100 * noise)} % noise",
        )
        for name, opened in systems.items()
        for noise in noises
        for seed in seeds
    ]
    pools: dict[tuple[str, str], _Pool] = {}
    for done, one in enumerate(runs, 1):
        pool = pools.setdefault((one.system, one.variant), _Pool(one))
        async with one.opened() as system:
            await pool.measure(one, system)
        _tell(progress, "distance", one, done, len(runs))
    return [
        _row("distance", replace(pool.first, at=value), pool, value + 1)
        for pool in pools.values()
        for value in known
    ]


async def topic_shares(
    systems: Mapping[str, OpenSystem],
    *,
    values: Sequence[float] = NOISES,
    distance: int = 300,
    token_budget: int = 300,
    seeds: Sequence[int] = range(20),
    phrases: Words = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Return how recall depends on the share of what is said since a fact that is about its topic (E5.5)."""
    runs: list[_Run] = []
    for name, opened in systems.items():
        for value in values:
            for seed in seeds:
                said = drawn(phrases, seed)
                talk = temporal_degradation(turns=distance + 1, seed=seed, phrases=said, noise=value)
                last = max(probe.after for probe in talk.probes)
                talk = replace(talk, probes=tuple(one for one in talk.probes if one.after == last))
                runs.append(
                    _Run(at=value, system=name, opened=opened, scenario=talk, token_budget=token_budget)
                )
    return await _measured("noise", runs, progress)


async def marked_and_plain(
    systems: Mapping[str, OpenSystem],
    *,
    values: Sequence[int] = (200, 1000),
    token_budget: int | None = None,
    seeds: Sequence[int] = range(3),
    phrases: Words = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Return what it is worth to state facts with markers: the same conversations with and without."""
    runs = [
        _Run(
            at=value,
            system=name,
            opened=opened,
            scenario=corrections(turns=value, seed=seed, phrases=drawn(phrases, seed), marked=marked),
            token_budget=token_budget,
            variant="marked" if marked else "plain",
        )
        for name, opened in systems.items()
        for marked in (True, False)
        for value in values
        for seed in seeds
    ]
    return await _measured("marked", runs, progress)
