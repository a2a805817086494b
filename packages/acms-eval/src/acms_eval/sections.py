"""The figures of a run as sections of a report: tables of all systems beside each other, and charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from acms.results import POSSIBLE_FROM
from acms_eval import bootstrap
from acms_eval.bootstrap import Interval
from acms_eval.causes import CAUSES
from acms_eval.chart_nouns import Axis, Chart, Point, Series
from acms_eval.composite import WEIGHTS, composite
from acms_eval.judge import Judgement
from acms_eval.limits import HOLDS, Limit
from acms_eval.nouns import Report, Score
from acms_eval.report import Section, Table
from acms_eval.retrieval import ALL, RetrievalReport
from acms_eval.suite import Suite
from acms_eval.sweeps import Row

__all__ = [
    "FIGURES",
    "composite_of",
    "figure_by_probe",
    "judge_section",
    "limit_section",
    "mean_figure",
    "request_section",
    "retrieval_sections",
    "scenario_sections",
    "speed_section",
    "word_list_section",
]

PERCENT = "in percent"
_MISSING = "–"

FIGURES: Mapping[str, Callable[[Score], float | None]] = {
    "answered": lambda score: score.answered,
    "hit": lambda score: score.hit,
    "hit@1": lambda score: score.hit_at_1,
    "hit@5": lambda score: score.hit_at_5,
    "outdated": lambda score: score.outdated,
    "precision": lambda score: score.precision,
    "nDCG@5": lambda score: score.ndcg,
}
"""Figures of a probe in [0, 1] by their names; None where it has none."""
_SPANNED = ("answered", "hit", "hit@1", "hit@5", "nDCG@5")
"""Figures whose interval is shown."""


def figure_by_probe(reports: Sequence[Report], name: str) -> list[tuple[str, float]]:
    """Return a figure of every probe that has it, each with the conversation it is about."""
    figures: list[tuple[str, float]] = []
    for report in reports:
        for score in report.scores:
            value = FIGURES[name](score)
            if value is not None:
                figures.append((report.scenario, float(value)))
    return figures


def mean_figure(reports: Sequence[Report], name: str) -> float | None:
    """Return the mean of a figure over all probes that have it; None when none has."""
    values = [value for _, value in figure_by_probe(reports, name)]
    return fmean(values) if values else None


def composite_of(reports: Sequence[Report]) -> float | None:
    """Return the composite of a system, or None when a scenario that has a weight was not run."""
    return composite(reports).score if set(WEIGHTS) <= {report.kind for report in reports} else None


def _format_percent(value: float | None) -> str:
    return _MISSING if value is None else f"{round(100 * value, 1) + 0.0:.1f}"  # no -0.0


def _format_interval(value: Interval | None, *, sign: bool = False) -> str:
    if value is None:
        return _MISSING
    plus = "+" if sign and value.mean >= 0 else ""
    return (
        f"{plus}{_format_percent(value.mean)} [{_format_percent(value.low)}, {_format_percent(value.high)}]"
    )


# ── scenarios ───────────────────────────────────────────────────────────────────────────────────────────────────────


def scenario_sections(suite: Suite, *, seed: int = 0, rounds: int = bootstrap.ROUNDS) -> tuple[Section, ...]:
    """Return the tables of a run of scenarios: systems over all probes, and scenario by scenario."""
    rows: list[tuple[str, ...]] = []
    spans: list[tuple[str, ...]] = []
    for system in suite.systems:
        reports = suite.of(system)
        scores = [score for report in reports for score in report.scores]
        rows.append(
            (
                system,
                str(len(scores)),
                _format_percent(composite_of(reports)),
                *(_format_percent(mean_figure(reports, name)) for name in FIGURES),
                f"{fmean([score.items for score in scores]):.1f}" if scores else _MISSING,
                f"{fmean([score.tokens for score in scores]):.0f}" if scores else _MISSING,
            )
        )
        spans.append(
            (
                system,
                *(_format_interval(_interval_over_probes(reports, name, seed, rounds)) for name in _SPANNED),
            )
        )
    heads = ("", "probes", "composite", *FIGURES, "items", "tokens")
    return (
        Section(
            name="systems",
            title="All scenarios",
            text=(
                "Answered: every expected word was recalled, and what is no longer so did not rank above what is. "
                "Composite: the mean of the hits of eight scenarios, with the weights of the evaluation plan: what is "
                "so and what was so before stand there in order of time, so their ranks are a figure apart.",
            ),
            tables=(
                Table(title=f"Means over the probes, {PERCENT}", heads=heads, rows=tuple(rows)),
                Table(
                    title="With 95 % bootstrap intervals over conversations and probes",
                    heads=("", *_SPANNED),
                    rows=tuple(spans),
                ),
            ),
        ),
        Section(
            name="scenarios",
            title="Scenario by scenario",
            text=(),
            tables=(
                Table(
                    title=f"Answered, {PERCENT}",
                    heads=("", "probes", *suite.systems),
                    rows=tuple(_rows_by_kind(suite)),
                ),
            ),
        ),
    )


def _rows_by_kind(suite: Suite) -> list[tuple[str, ...]]:
    """Return the share of answered probes of every system, a row for each scenario."""
    rows: list[tuple[str, ...]] = []
    for kind in suite.kinds:
        reports_by_system = [suite.of(system, kind) for system in suite.systems]
        count = sum(len(report.scores) for report in reports_by_system[0])
        rows.append(
            (
                kind,
                str(count),
                *(_format_percent(mean_figure(reports, "answered")) for reports in reports_by_system),
            )
        )
    return rows


def _interval_over_probes(reports: Sequence[Report], name: str, seed: int, rounds: int) -> Interval | None:
    values_of_probes = figure_by_probe(reports, name)
    if not values_of_probes:
        return None
    values = [value for _, value in values_of_probes]
    return bootstrap.mean_interval(
        values, [conversation for conversation, _ in values_of_probes], seed=seed, rounds=rounds
    )


def speed_section(suite: Suite) -> Section:
    """Return the mean milliseconds of a message and of a question."""
    rows: list[tuple[str, ...]] = []
    for system in suite.systems:
        reports = suite.of(system)
        tell_seconds = sum(report.tell_seconds for report in reports)
        tell_milliseconds = 1000 * tell_seconds / sum(report.turns for report in reports)
        ask_milliseconds = [1000 * score.seconds for report in reports for score in report.scores]
        rows.append(
            (
                system,
                f"{tell_milliseconds:.2f}",
                f"{fmean(ask_milliseconds):.2f}" if ask_milliseconds else _MISSING,
            )
        )
    table = Table(
        title="Milliseconds, background work included",
        heads=("", "a message", "a question"),
        rows=tuple(rows),
    )
    return Section(name="speed", title="What it takes", text=(), tables=(table,))


def judge_section(found: Mapping[str, Judgement]) -> Section:
    """Return the judge's ratings of every system."""
    rows: list[tuple[str, ...]] = []
    for system, judgement in found.items():
        figures = judgement.figures()
        counts = (str(figures[name]) for name in ("rated", "unreadable", "failed"))
        rows.append((system, _format_percent(judgement.rating), *counts))
    first_judgement = next(iter(found.values()))
    answered_by = first_judgement.answered_by
    answered_by = f", answered by {answered_by} from what was recalled" if answered_by else ""
    table = Table(
        title=f"Rated by {first_judgement.model}{answered_by}: 1 right, 0.5 in part, 0 wrong; mean {PERCENT}",
        heads=("", "rating", "rated", "unreadable", "failed"),
        rows=tuple(rows),
    )
    return Section(
        name="judge",
        title="A model as judge",
        text=("Answers without a rating are not in the mean.",),
        tables=(table,),
    )


_KINDS: Mapping[str, tuple[str, ...]] = {
    "LoCoMo": (
        "Kinds of question: 1 multi-hop, 2 temporal, 3 open-domain, 4 single-hop, 5 asked about the wrong speaker, and "
        "so without an answer.",
    ),
}
"""A legend for sets that number their kinds of question."""


# ── real conversations ──────────────────────────────────────────────────────────────────────────────────────────────


def retrieval_sections(
    report: RetrievalReport, *, against: RetrievalReport | None = None
) -> tuple[Section, ...]:
    """Return a section for each set of conversations; `against` is the same on the data that was tuned on."""
    return tuple(_dataset_section(report, dataset, against) for dataset in report.datasets)


def _dataset_section(report: RetrievalReport, dataset: str, against: RetrievalReport | None) -> Section:
    size = report.sizes[dataset]
    names = report.names(dataset)
    groups = report.groups(dataset)
    means_by_system = {
        system: {group: report.means(dataset, system, group) for group in groups} for system in report.systems
    }
    means_by_system = {system: groups for system, groups in means_by_system.items() if groups[ALL]}
    key = dataset.casefold()
    tables = [
        Table(
            title=f"Means over the questions that have an answer, {PERCENT}",
            heads=("", "n", *names),
            rows=tuple(
                (
                    system,
                    str(group_means[ALL][names[0]].count),
                    *(_format_mean(group_means[ALL].get(name)) for name in names),
                )
                for system, group_means in means_by_system.items()
            ),
        ),
        Table(
            title="95 % bootstrap intervals over conversations and questions",
            heads=("", *names),
            rows=tuple(
                (system, *(_format_ends(group_means[ALL].get(name)) for name in names))
                for system, group_means in means_by_system.items()
            ),
        ),
        *_margin_tables(report, dataset, tuple(means_by_system), names, against),
        *_group_tables(means_by_system, groups, [name for name in ("R@10", *names[4:5]) if name in names]),
        *_abstention_tables(report, dataset),
    ]
    return Section(
        name=key,
        title=dataset,
        text=(
            f"{size.conversations} conversations, {size.messages:,} messages, {size.questions:,} questions, "
            f"{size.without_gold:,} of them without evidence that can be found.",
            *_KINDS.get(dataset, ()),
        ),
        tables=tuple(table for table in tables if table.rows),
        charts=_dataset_charts(key, dataset, means_by_system, names) if means_by_system else (),
    )


def _format_mean(interval: Interval | None) -> str:
    return _format_percent(None if interval is None else interval.mean)


def _format_ends(interval: Interval | None) -> str:
    return (
        _MISSING
        if interval is None
        else f"{_format_percent(interval.low)} to {_format_percent(interval.high)}"
    )


def _margin_tables(
    report: RetrievalReport,
    dataset: str,
    systems: Sequence[str],
    names: Sequence[str],
    against: RetrievalReport | None,
) -> list[Table]:
    chosen = [name for name in ("R@10", "nDCG@10", *names[4:6]) if name in names]
    own_systems = [system for system in systems if system.startswith("acms")]
    other_systems = [system for system in systems if not system.startswith("acms")]
    tables = [
        Table(
            title=f"{own_system} above the others, question by question, in points [95 % interval]",
            heads=("over", *chosen),
            rows=tuple(
                (
                    other_system,
                    *(
                        _format_interval(
                            report.margin(dataset, name, of=own_system, over=other_system), sign=True
                        )
                        for name in chosen
                    ),
                )
                for other_system in other_systems
            ),
        )
        for own_system in own_systems
    ]
    if against is not None and dataset in against.datasets:
        rows: list[tuple[str, ...]] = []
        for own_system in own_systems:
            for other_system in other_systems:
                shrunk = [
                    against.shrinkage(report, dataset, name, of=own_system, over=other_system)
                    for name in chosen
                ]
                if any(shrunk):
                    holds = all(interval.low <= 0 for interval in shrunk if interval is not None)
                    cells = (_format_interval(interval, sign=True) for interval in shrunk)
                    rows.append((f"{own_system} over {other_system}", *cells, "yes" if holds else "no"))
        tables.append(
            Table(
                title="How much smaller the margin is than on the other data; it holds where the interval reaches 0",
                heads=("margin of", *chosen, "holds"),
                rows=tuple(rows),
            )
        )
    return tables


def _group_tables(
    means_by_system: Mapping[str, Mapping[str, Mapping[str, Interval]]],
    groups: Sequence[str],
    names: Sequence[str],
) -> list[Table]:
    tables: list[Table] = []
    for name in names:
        rows: list[tuple[str, ...]] = []
        for group in groups:
            values = [group_means[group].get(name) for group_means in means_by_system.values()]
            count = max((interval.count for interval in values if interval is not None), default=0)
            rows.append((group, str(count), *map(_format_mean, values)))
        tables.append(
            Table(
                title=f"{name} by kind of question, {PERCENT}",
                heads=("", "n", *means_by_system),
                rows=tuple(rows),
            )
        )
    return tables


def _abstention_tables(report: RetrievalReport, dataset: str) -> list[Table]:
    rows: list[tuple[str, ...]] = []
    for system in report.systems:
        abstention = report.abstention(dataset, system)
        if abstention is not None:
            rows.append(
                (
                    system,
                    str(abstention.unanswerable),
                    f"{abstention.auc:.3f}",
                    str(abstention.declined),
                    _format_percent(abstention.precision),
                    _format_percent(abstention.recall),
                    _format_percent(abstention.false_alarms),
                )
            )
    return [
        Table(
            title=f"Questions without an answer: declined below a confidence of {POSSIBLE_FROM}",
            heads=("", "unanswerable", "AUC", "declined", "precision", "recall", "false alarms"),
            rows=tuple(rows),
        )
    ]


def _dataset_charts(
    key: str,
    dataset: str,
    means_by_system: Mapping[str, Mapping[str, Mapping[str, Interval]]],
    names: Sequence[str],
) -> tuple[Chart, ...]:
    def axis(label: str) -> Axis:
        return Axis(label=label, unit="share")

    budgets = [name for name in names if name.startswith("B")]
    found_chart = Chart(
        name=f"{key}-found",
        title=f"{dataset}: evidence among the first ten",
        text="R@10 of every system with its 95 % interval, over the questions that have an answer.",
        kind="rows",
        x=Axis(label="system"),
        y=axis("R@10"),
        series=(
            Series(
                name="R@10",
                points=tuple(
                    Point(x=system, y=interval.mean, low=interval.low, high=interval.high)
                    for system, group_means in means_by_system.items()
                    if (interval := group_means[ALL].get("R@10")) is not None
                ),
            ),
        ),
    )
    budget_chart = Chart(
        name=f"{key}-packed",
        title=f"{dataset}: evidence within a budget",
        text="Share of the evidence that a recall with a budget of tokens shows.",
        x=Axis(label="tokens", log=True),
        y=axis("evidence"),
        series=tuple(
            Series(
                name=system,
                points=tuple(
                    Point(x=_budget_of_figure(name), y=group_means[ALL][name].mean) for name in budgets
                ),
            )
            for system, group_means in means_by_system.items()
        ),
    )
    return found_chart, budget_chart


def _budget_of_figure(name: str) -> float:
    """Return the budget that a figure such as B500 or B2k is measured at."""
    size = name[1:]
    return 1000.0 * float(size[:-1]) if size.endswith("k") else float(size)


def word_list_section(suite: Suite) -> Section | None:
    """Return the share answered by word list, or None if there is only one list."""
    lists = sorted({report.words for report in suite.reports})
    if len(lists) < 2:
        return None
    rows: list[tuple[str, ...]] = []
    for system in suite.systems:
        answered_shares = [
            mean_figure([report for report in suite.of(system) if report.words == name], "answered") or 0.0
            for name in lists
        ]
        rows.append(
            (
                system,
                *map(_format_percent, answered_shares),
                _format_percent(max(answered_shares) - min(answered_shares)),
            )
        )
    return Section(
        name="words",
        title="In other words",
        text=(
            "The same scenarios written from several word lists: other subjects, other people, other turns of phrase. "
            "Every seed takes the next list.",
        ),
        tables=(Table(title=f"Answered, {PERCENT}", heads=("", *lists, "spread"), rows=tuple(rows)),),
    )


def request_section(rows: Sequence[Row], requesting: Mapping[str, str]) -> Section:
    """Return evidence and cost of whole requests and of recalls; `requesting` maps each system to its recall."""
    table_rows: list[tuple[str, ...]] = []
    for request in rows:
        if request.system not in requesting:
            continue
        measured_at = (request.sweep, request.variant, request.scenario, request.at)
        recalls = [row for row in rows if row.system == requesting[request.system]]
        recall = next(
            (row for row in recalls if (row.sweep, row.variant, row.scenario, row.at) == measured_at), None
        )
        if recall is not None:
            name = " ".join(filter(None, (_sweep_title(request), f"{request.at:g}:", recall.system)))
            table_rows.append(
                (
                    name,
                    *_evidence_cells(recall),
                    *_evidence_cells(request),
                    "" if request.paid is None else f"{request.paid:.0f}",
                )
            )
    figures = ("evidence", "only outdated", "tokens")
    heads = (
        *(f"{measured_at}: {figure}" for measured_at in ("recall", "request") for figure in figures),
        "request: paid",
    )
    return Section(
        name="requests",
        title="Whole requests",
        text=(
            "The same questions asked of a recall and of a whole request, history and recall within the same budget. "
            "Evidence: every expected word is there. Only outdated: what is no longer so is there, what is so is not. "
            "Paid: the tokens of a request, of which those that the provider has in its cache count a tenth.",
        ),
        tables=(Table(title="A recall and a request", heads=("", *heads), rows=tuple(table_rows)),),
    )


def _evidence_cells(row: Row) -> tuple[str, str, str]:
    stale = _MISSING if row.only_outdated is None else f"{row.only_outdated:.0%}"
    return f"{row.hit:.0%}", stale, f"{row.tokens:.0f}"


def _sweep_title(measured: Row | Limit) -> str:
    """Return the title of a sweep."""
    about = "" if " + " in measured.scenario else f"({measured.scenario.replace('_', ' ')})"
    return " ".join(filter(None, (measured.sweep.replace("_", " "), measured.variant, about)))


def limit_section(found: Sequence[Limit]) -> Section:
    """Return where each system breaks in each sweep, and why, and which sweeps no system breaks in."""
    rows: list[tuple[str, ...]] = []
    unbroken: list[str] = []
    for sweep in dict.fromkeys((limit.sweep, limit.variant, limit.scenario) for limit in found):
        curves = [limit for limit in found if (limit.sweep, limit.variant, limit.scenario) == sweep]
        name = _sweep_title(curves[0])
        if all(limit.broke is None for limit in curves):
            unbroken.append(f"{name} (to {curves[0].held:g})")
        rows += [(f"{name}: {limit.system}", *_limit_cells(limit)) for limit in curves]
    return Section(
        name="limits",
        title="Where it breaks",
        text=(
            f"The first value at which less than {HOLDS:.0%} of the probes are answered, in the order from easy to "
            "hard, and the most frequent cause of what was missed there.",
            "Causes: " + "; ".join(f"{name}: {text}" for name, text in CAUSES.items()) + ".",
            f"No limit was found in: {', '.join(unbroken)}."
            if unbroken
            else "Every sweep has a limit for somebody.",
        ),
        tables=(
            Table(
                title="Limits",
                heads=(
                    "sweep",
                    "holds to",
                    "breaks at",
                    "answered",
                    "by word list",
                    "hit",
                    "precision",
                    "cause",
                ),
                rows=tuple(rows),
            ),
        ),
    )


def _limit_cells(limit: Limit) -> tuple[str, ...]:
    precision = "" if limit.precision is None else f"{limit.precision:.0%}"
    return (
        "" if limit.held is None else f"{limit.held:g}",
        "no limit found" if limit.broke is None else f"{limit.broke:g}",
        f"{limit.answered:.0%}",
        "" if limit.spread is None else f"{limit.spread[0]:.0%} to {limit.spread[1]:.0%}",
        f"{limit.hit:.0%}",
        precision,
        "" if limit.broke is None else limit.cause,
    )
