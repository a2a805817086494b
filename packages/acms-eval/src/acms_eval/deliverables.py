"""The seven figures of the evaluation plan, measured for every system in the same run and drawn.

Decision persistence, sensitivity to the token budget, the overhead, precision against recall, the spectrum of
difficulty, temporal degradation, and the effect of markers. The overhead differs from run to run, and so is a part of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from acms.ports import Embedder
from acms.providers import OfflineReflector
from acms_eval import sections, sweeps
from acms_eval.chart_nouns import Axis, Chart, Point, Series, Unit, format_figure
from acms_eval.limits import find_limits
from acms_eval.peers import OpenSystem, open_acms
from acms_eval.report import Document, Section
from acms_eval.scenarios import DISTANCES, SCENARIOS
from acms_eval.suite import LineUp, Suite, run_suite
from acms_eval.sweeps import Latency, OpenWithConfig, Row, Step, Words
from acms_eval.topics import phrases_of_seed

__all__ = ["FULL", "QUICK", "Sizes", "measure_deliverables"]

SHARE = Axis(label="hit rate", unit="share")
ANSWERED = Axis(label="answered", unit="share")
MESSAGES = Axis(label="messages", log=True)
_WITH_FACTS = ", with facts"
_REQUESTS = ", whole requests"
_CORRECTED = 100
"""The least number of messages that the scenario of corrections takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured."""

    #: Conversations of each kind, of the curve over distances, which has one question a place, and of that over noise.
    seeds: int
    distance_seeds: int
    noise_seeds: int
    #: Messages of a scenario.
    turns: int
    lengths: tuple[int, ...]
    token_budgets: tuple[int, ...]
    distances: tuple[int, ...]
    distance_noises: tuple[float, ...]
    noises: tuple[float, ...]
    noise_distance: int
    #: Sweeps in which ACMS is measured with facts too, and by whole requests: "budget", "corrections", "distance",
    #: "noise".
    with_facts: tuple[str, ...]
    as_requests: tuple[str, ...]
    episode_turns: tuple[int, ...]
    current_pcts: tuple[float, ...]
    #: Messages after which the clock is read, and questions each time.
    clock: tuple[int, ...]
    asks: int


FULL = Sizes(
    seeds=3,
    distance_seeds=6,
    noise_seeds=9,
    turns=200,
    lengths=sweeps.LENGTHS,
    token_budgets=sweeps.TOKEN_BUDGETS,
    distances=DISTANCES,
    distance_noises=(0.0, 0.5),
    noises=sweeps.NOISES,
    noise_distance=300,
    with_facts=("budget", "noise"),
    as_requests=("budget", "corrections", "distance", "noise"),
    episode_turns=sweeps.EPISODE_TURNS,
    current_pcts=sweeps.CURRENT_PCTS,
    clock=(10, 50, 100, 200, 500, 1000),
    asks=20,
)
QUICK = Sizes(
    seeds=1,
    distance_seeds=1,
    noise_seeds=1,
    turns=100,
    lengths=(50, 100),
    token_budgets=(100, 1000),
    distances=(10, 50),
    distance_noises=(0.0, 0.5),
    noises=(0.9,),
    noise_distance=30,
    with_facts=("noise",),
    as_requests=("noise",),
    episode_turns=(4, 16),
    current_pcts=(0.2, 0.6),
    clock=(10, 50),
    asks=3,
)
"""A few seconds: every chart, few points."""

PARTS = 9
"""The number of parts that a run reports its progress in: the scenarios, and eight sweeps."""

OnProgress = Callable[[str, int, int], None]
"""Takes the name of the part under way, how many of its steps are done, and how many there are."""


async def measure_deliverables(
    line_up: LineUp,
    *,
    sizes: Sizes = FULL,
    seed: int = 0,
    phrases: Words = None,
    settings: Mapping[str, str] | None = None,
    progress: OnProgress | None = None,
) -> Document:
    """Measure everything and return the report; the same in every run, but for its times."""
    run = _Run(line_up, sizes, seed, phrases, progress)
    suite = await run.run_scenarios()
    overview, by_scenario = sections.scenario_sections(suite, seed=seed)
    words = sections.word_list_section(suite)
    return Document(
        title="How well ACMS remembers",
        text=(
            "Conversations are written by rule from a word list and a seed, told to every system message by message, "
            "and asked about. A question is never said. A hit: every expected word was recalled. Answered: a hit, and "
            "what is no longer so did not rank above what is. All systems are asked within the same budget of tokens, "
            "by the same words, in the same run.",
        ),
        settings={
            **(settings or {}),
            "words": ", ".join(dict.fromkeys(report.words for report in suite.reports)),
            "seeds": f"{seed} to {seed + sizes.seeds - 1}",
            "seeds over distances": f"{seed} to {seed + sizes.distance_seeds - 1}",
            "seeds over noise": f"{seed} to {seed + sizes.noise_seeds - 1}",
            "messages of a scenario": str(sizes.turns),
        },
        sections=(
            overview,
            await run.measure_persistence(),
            await run.measure_budgets(),
            _precision_section(suite),
            _difficulty_section(suite, by_scenario),
            await run.measure_degradation(),
            await run.measure_topic_share(),
            await run.measure_markers(),
            *([words] if words is not None else []),
            run.build_request_section(),
            run.build_limit_section(),
        ),
        times=(await run.measure_overhead(), sections.speed_section(suite)),
        left_out=line_up.left_out,
    )


class _Run:
    """The sweeps of a report, with the systems, seeds and words they all measure with."""

    def __init__(
        self,
        line_up: LineUp,
        sizes: Sizes,
        seed: int,
        phrases: Words,
        progress: OnProgress | None,
    ) -> None:
        self.systems = line_up.systems
        self.acms = line_up.acms
        self.sizes = sizes
        self.seed = seed
        self.seeds = range(seed, seed + sizes.seeds)
        self.phrases = phrases
        self.progress = progress
        #: Parts of the report, by name, in the order in which they began.
        self._part_numbers: dict[str, int] = {}
        #: The rows of all sweeps that get harder towards one end, for the limits.
        self.rows: list[Row] = []

    def _systems_of_sweep(self, sweep: str) -> Mapping[str, OpenSystem]:
        """Return all systems, and in some sweeps ACMS with facts and as whole requests."""
        systems = dict(self.systems)
        for name, embedder in self.acms.items():
            if sweep in self.sizes.with_facts:
                full_name = f"{name}{_WITH_FACTS}"
                systems[full_name] = open_acms(embedder, name=full_name, reflector=OfflineReflector)
            if sweep in self.sizes.as_requests:
                full_name = f"{name}{_REQUESTS}"
                systems[full_name] = open_acms(embedder, name=full_name, requests=True)
        return systems

    def _report_step(self, step: Step) -> None:
        self._tell_progress(f"{step.sweep}: {step.system}", step.done, step.of)

    def _tell_progress(self, what: str, done: int, of: int) -> None:
        part_name = what.partition(":")[0]
        self._part_numbers.setdefault(part_name, len(self._part_numbers) + 1)
        if self.progress is not None:
            self.progress(f"part {self._part_numbers[part_name]} of {PARTS}, {what}", done, of)

    @property
    def _acms_with_config(self) -> Mapping[str, OpenWithConfig]:
        def accept_config(name: str, embedder: Embedder | None) -> OpenWithConfig:
            return lambda config: open_acms(embedder, name=name, config=config)

        return {name: accept_config(name, embedder) for name, embedder in self.acms.items()}

    async def run_scenarios(self) -> Suite:
        """Run every scenario."""
        talks = [
            build(turns=self.sizes.turns, seed=seed, phrases=phrases_of_seed(self.phrases, seed))
            for build in SCENARIOS.values()
            for seed in self.seeds
        ]
        return await run_suite(
            talks,
            self.systems,
            progress=lambda what, done, of: self._tell_progress(
                f"scenarios: {what.partition(':')[0]}", done, of
            ),
        )

    async def measure_persistence(self) -> Section:
        """Measure recall against the length of a conversation."""
        rows = await sweeps.sweep_lengths(
            self.systems,
            values=self.sizes.lengths,
            seeds=self.seeds,
            phrases=self.phrases,
            progress=self._report_step,
        )
        self.rows += rows
        long_enough = [length for length in self.sizes.lengths if length >= _CORRECTED]
        corrected_rows = await sweeps.sweep_lengths(
            self._systems_of_sweep("corrections"),
            values=long_enough,
            scenario="corrections",
            seeds=self.seeds,
            phrases=self.phrases,
            progress=self._report_step,
        )
        self.rows += corrected_rows
        return Section(
            name="persistence",
            title="Decision persistence",
            text=(
                "Twenty facts are said at the beginning and asked about along the rest of the conversation, which "
                "grows. In the second chart three of them are corrected later, and the correction has to rank above "
                "what it corrects.",
            ),
            charts=(
                _line_chart("persistence", "Decision persistence", MESSAGES, SHARE, rows, _hit_rate),
                _line_chart(
                    "persistence-corrected",
                    "Still known, and still true",
                    MESSAGES,
                    ANSWERED,
                    corrected_rows,
                    _answered_share,
                ),
            ),
        )

    async def measure_budgets(self) -> Section:
        """Measure recall against the token budget and two parameters of ACMS."""
        size = self.sizes
        rows = await sweeps.sweep_token_budgets(
            self._systems_of_sweep("budget"),
            values=size.token_budgets,
            turns=size.turns,
            seeds=self.seeds,
            phrases=self.phrases,
            progress=self._report_step,
        )
        self.rows += rows
        episodes = await sweeps.sweep_episode_lengths(
            self._acms_with_config,
            values=size.episode_turns,
            turns=size.turns,
            budget=500,
            seeds=self.seeds,
            phrases=self.phrases,
            progress=self._report_step,
        )
        current = await sweeps.sweep_current_shares(
            self._acms_with_config,
            values=size.current_pcts,
            turns=size.turns,
            budget=500,
            seeds=self.seeds,
            phrases=self.phrases,
            progress=self._report_step,
        )
        budget, pct = Axis(label="tokens", log=True), Axis(label="share of the budget", unit="share")
        knobs = (
            _line_chart(
                "episodes", "Length of an episode", Axis(label="messages"), SHARE, episodes, _hit_rate
            ),
            _line_chart("current", "Share of the current episode", pct, SHARE, current, _hit_rate),
        )
        return Section(
            name="budget",
            title="Token budget sensitivity",
            text=(
                "Twenty facts in the first twenty exchanges, half of them without a marker, recalled within budgets "
                "from small to large. Then two parameters of ACMS, at 500 tokens: the messages after which an episode "
                "ends, and the share of the budget that the current episode is sure of.",
            ),
            charts=(
                _line_chart("budget", "Token budget sensitivity", budget, SHARE, rows, _hit_rate),
                *(knobs if self.acms else ()),
            ),
        )

    async def measure_degradation(self) -> Section:
        """Measure recall against the distance from a fact."""
        rows = await sweeps.sweep_distances(
            self._systems_of_sweep("distance"),
            values=self.sizes.distances,
            noises=self.sizes.distance_noises,
            seeds=range(self.seed, self.seed + self.sizes.distance_seeds),
            phrases=self.phrases,
            progress=self._report_step,
        )
        self.rows += rows
        variants = list(dict.fromkeys(row.variant for row in rows))
        axis = Axis(label="messages since the fact", log=True)
        names = ["degradation", "degradation-noise"]
        names += [f"degradation-noise-{number}" for number in range(2, len(variants))]
        charts = [
            _line_chart(
                name,
                f"Temporal degradation, {variant}",
                axis,
                SHARE,
                [row for row in rows if row.variant == variant],
                _hit_rate,
            )
            for name, variant in zip(names, variants, strict=False)
        ]
        return Section(
            name="degradation",
            title="Temporal degradation",
            text=(
                "One decision, and the same question again and again, within 300 tokens. With noise, half of what is "
                "said afterwards is about the topic of the decision and names other values.",
            ),
            charts=tuple(charts),
        )

    async def measure_topic_share(self) -> Section:
        """Measure recall against the share of messages about the topic asked."""
        rows = await sweeps.sweep_topic_shares(
            self._systems_of_sweep("noise"),
            values=self.sizes.noises,
            distance=self.sizes.noise_distance,
            seeds=range(self.seed, self.seed + self.sizes.noise_seeds),
            phrases=self.phrases,
            progress=self._report_step,
        )
        self.rows += rows
        share_axis = Axis(label="share about the topic", unit="share")
        return Section(
            name="noise",
            title="Noise",
            text=(
                f"One decision, asked about {self.sizes.noise_distance} messages later within 300 tokens. A share of "
                "what was said in between is about the same topic and names other values.",
            ),
            charts=(_line_chart("noise", "Noise about the topic", share_axis, SHARE, rows, _hit_rate),),
        )

    def build_request_section(self) -> Section:
        """Return evidence and cost of whole requests, beside those of a recall."""
        return sections.request_section(self.rows, {f"{name}{_REQUESTS}": name for name in self.acms})

    def build_limit_section(self) -> Section:
        """Return where each sweep breaks, and why."""
        return sections.limit_section(find_limits(self.rows))

    async def measure_markers(self) -> Section:
        """Measure recall with and without markers."""
        rows = await sweeps.compare_markers(
            self.systems,
            values=[max(_CORRECTED, self.sizes.turns)],
            seeds=self.seeds,
            phrases=self.phrases,
            progress=self._report_step,
        )
        self.rows += rows

        def draw_by_marker(
            name: str, title: str, read_figure: Callable[[Row], float | None], y_axis: Axis
        ) -> Chart:
            series = tuple(
                Series(
                    name=variant,
                    points=tuple(
                        Point(x=row.system, y=read_figure(row)) for row in rows if row.variant == variant
                    ),
                )
                for variant in ("marked", "plain")
            )
            return Chart(
                name=name,
                title=title,
                text=_describe_series("Of every system, with markers and without", series, y_axis.unit),
                kind="rows",
                x=Axis(label="system"),
                y=y_axis,
                series=series,
            )

        return Section(
            name="marked",
            title="Marked and unmarked",
            text=(
                "The same facts and corrections, announced (“Decision: …”) or said in plain conversation. What is "
                "marked weighs more in ACMS; what is not has to be found all the same.",
            ),
            charts=(
                draw_by_marker("marked", "Answered, marked and unmarked", _answered_share, ANSWERED),
                draw_by_marker(
                    "marked-first",
                    "Found first, marked and unmarked",
                    _hit_first,
                    Axis(label="hit@1", unit="share"),
                ),
            ),
        )

    async def measure_overhead(self) -> Section:
        """Measure the time of a message and of a question."""
        systems = {**self.systems}
        for name, embedder in self.acms.items():
            full_name = f"{name}{_WITH_FACTS}"
            systems[full_name] = open_acms(embedder, name=full_name, reflector=OfflineReflector)
        rows = await sweeps.measure_latencies(
            systems,
            values=self.sizes.clock,
            asks=self.sizes.asks,
            seed=self.seed,
            phrases=self.phrases,
            progress=self._report_step,
        )
        longest = max((row.turns for row in rows), default=0)
        return Section(
            name="overhead",
            title="Overhead profile",
            text=(
                "What a message and a question cost. Background: vectors and, “with facts”, the reflection that "
                "distils them by rules. Measured in memory, one conversation at a time, on a machine that may have "
                "had other work to do.",
            ),
            charts=(
                _overhead_chart(
                    f"Overhead after {longest:,} messages", [row for row in rows if row.turns == longest]
                ),
                _latency_chart(rows),
            ),
        )


# ── figures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _hit_rate(row: Row) -> float | None:
    return row.hit


def _hit_first(row: Row) -> float | None:
    return row.hit_at_1


def _answered_share(row: Row) -> float | None:
    return row.answered


def _line_chart(
    name: str,
    title: str,
    x_axis: Axis,
    y_axis: Axis,
    rows: Sequence[Row],
    read_figure: Callable[[Row], float | None],
) -> Chart:
    series = tuple(
        Series(
            name=system,
            points=tuple(Point(x=row.at, y=read_figure(row)) for row in rows if row.system == system),
        )
        for system in dict.fromkeys(row.system for row in rows)
    )
    furthest = max((row.at for row in rows), default=0)
    last_points = tuple(
        Series(name=line.name, points=tuple(point for point in line.points if point.x == furthest))
        for line in series
    )
    text = _describe_series(
        f"{y_axis.label} against {x_axis.label}; at {format_figure(furthest, x_axis.unit)}",
        last_points,
        y_axis.unit,
    )
    return Chart(name=name, title=title, text=text, x=x_axis, y=y_axis, series=series)


def _describe_series(start: str, series: Sequence[Series], unit: Unit) -> str:
    """Return the text of a chart, which a screen reader speaks: every point with its name and figure."""
    figures = [
        f"{line.name}{f' {point.x}' if isinstance(point.x, str) else ''} {format_figure(point.y, unit)}"
        for line in series
        for point in line.points
    ]
    text = f"{start}: {', '.join(figures)}."
    return text[:1].upper() + text[1:]


def _precision_section(suite: Suite) -> Section:
    series: list[Series] = []
    for system in suite.systems:
        points: list[Point] = []
        for kind in (None, *suite.kinds):
            reports = suite.of(system, kind)
            precision = sections.mean_figure(reports, "precision")
            if precision is not None:
                hit_rate = sections.mean_figure(reports, "hit")
                label = "mean of all" if kind is None else kind
                points.append(Point(x=precision, y=hit_rate, label=label, strong=kind is None))
        series.append(Series(name=system, points=tuple(points)))
    precision_axis = Axis(label="precision", unit="share")
    means_text = "; ".join(
        f"{system_series.name}: precision {format_figure(float(point.x), 'share')},"
        f" hit rate {format_figure(point.y, 'share')}"
        for system_series in series
        for point in system_series.points
        if point.strong
    )
    chart = Chart(
        name="precision",
        title="Precision and recall",
        text=f"A small mark for each scenario, a large one for the mean of a system. {means_text}.",
        kind="points",
        x=precision_axis,
        y=SHARE,
        series=tuple(series),
    )
    return Section(
        name="precision",
        title="Precision and recall",
        text=(
            "Precision: the share of what was recalled that carries an expected word. The current episode, which ACMS "
            "shows whatever is asked, counts as recalled. The upper right corner is best.",
        ),
        charts=(chart,),
    )


def _difficulty_section(suite: Suite, tables: Section) -> Section:
    def ease(kind: str) -> float:
        shares = [sections.mean_figure(suite.of(system, kind), "answered") for system in suite.systems]
        return -sum(value or 0.0 for value in shares)

    ordered = sorted(suite.kinds, key=ease)
    series = tuple(
        Series(
            name=system,
            points=tuple(
                Point(x=kind.replace("_", " "), y=sections.mean_figure(suite.of(system, kind), "answered"))
                for kind in ordered
            ),
        )
        for system in suite.systems
    )
    hardest = tuple(
        Series(name=system_series.name, points=system_series.points[-1:]) for system_series in series
    )
    chart = Chart(
        name="difficulty",
        title="Scenarios, easy to hard",
        text=_describe_series("Share answered, scenario by scenario; the hardest", hardest, "share"),
        kind="rows",
        x=Axis(label="scenario"),
        y=ANSWERED,
        series=series,
    )
    return Section(
        name="difficulty",
        title="Scenario difficulty",
        text=("From what all systems together answer best to what they answer worst.",),
        tables=tables.tables,
        charts=(chart,),
    )


# ── the clock ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _overhead_chart(title: str, rows: Sequence[Latency]) -> Chart:
    kinds: tuple[tuple[str, Callable[[Latency], float]], ...] = (
        ("ingest", lambda row: row.ingest_ms),
        ("recall", lambda row: row.recall_ms),
        ("background", lambda row: row.background_ms),
    )
    series = tuple(
        Series(name=name, points=tuple(Point(x=row.system, y=read_milliseconds(row)) for row in rows))
        for name, read_milliseconds in kinds
    )
    return Chart(
        name="overhead",
        title=title,
        text="Milliseconds for a message (ingest, background) and for a question (recall), system by system.",
        kind="rows",
        x=Axis(label="system"),
        y=Axis(label="milliseconds", unit="ms", log=True),
        series=series,
    )


def _latency_chart(rows: Sequence[Latency]) -> Chart:
    systems = list(dict.fromkeys(row.system for row in rows))
    series = tuple(
        Series(
            name=system,
            points=tuple(Point(x=row.turns, y=row.recall_ms) for row in rows if row.system == system),
            style=systems.index(system.removesuffix(_WITH_FACTS)),
            dashed=system.endswith(_WITH_FACTS),
        )
        for system in systems
    )
    return Chart(
        name="latency",
        title="A recall as the conversation grows",
        text="Median milliseconds of a recall against the messages told so far.",
        x=MESSAGES,
        y=Axis(label="milliseconds", unit="ms"),
        series=series,
    )
