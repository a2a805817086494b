"""What a run measured, as sections of a report: tables of all systems beside each other, and charts."""

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
    "by_words",
    "composite_of",
    "judged",
    "limits",
    "means",
    "requests",
    "retrieval",
    "scenarios",
    "shares",
    "timed",
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
"""Of a probe, in [0, 1]; None where it has none."""
_SPANNED = ("answered", "hit", "hit@1", "hit@5", "nDCG@5")
"""Figures whose interval is shown."""


def shares(reports: Sequence[Report], name: str) -> list[tuple[str, float]]:
    """Return a figure of every probe that has it, each with the conversation it is about."""
    read = FIGURES[name]
    return [
        (report.scenario, float(value))
        for report in reports
        for score in report.scores
        if (value := read(score)) is not None
    ]


def means(reports: Sequence[Report], name: str) -> float | None:
    """Return the mean of a figure over all probes that have it; None when none has."""
    found = [value for _, value in shares(reports, name)]
    return fmean(found) if found else None


def composite_of(reports: Sequence[Report]) -> float | None:
    """Return the composite of a system, or None when a scenario that has a weight was not run."""
    return composite(reports).score if set(WEIGHTS) <= {report.kind for report in reports} else None


def _percent(value: float | None) -> str:
    return _MISSING if value is None else f"{round(100 * value, 1) + 0.0:.1f}"  # no -0.0


def _interval(found: Interval | None, *, sign: bool = False) -> str:
    if found is None:
        return _MISSING
    plus = "+" if sign and found.mean >= 0 else ""
    return f"{plus}{_percent(found.mean)} [{_percent(found.low)}, {_percent(found.high)}]"


# ── scenarios ───────────────────────────────────────────────────────────────────────────────────────────────────────


def scenarios(suite: Suite, *, seed: int = 0, rounds: int = bootstrap.ROUNDS) -> tuple[Section, ...]:
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
                _percent(composite_of(reports)),
                *(_percent(means(reports, name)) for name in FIGURES),
                f"{fmean([score.items for score in scores]):.1f}" if scores else _MISSING,
                f"{fmean([score.tokens for score in scores]):.0f}" if scores else _MISSING,
            )
        )
        spans.append((system, *(_interval(_spread(reports, name, seed, rounds)) for name in _SPANNED)))
    heads = ("", "probes", "composite", *FIGURES, "items", "tokens")
    by_kind: list[tuple[str, ...]] = []
    for kind in suite.kinds:
        found = [suite.of(system, kind) for system in suite.systems]
        count = sum(len(report.scores) for report in found[0])
        by_kind.append((kind, str(count), *(_percent(means(reports, "answered")) for reports in found)))
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
                    rows=tuple(by_kind),
                ),
            ),
        ),
    )


def _spread(reports: Sequence[Report], name: str, seed: int, rounds: int) -> Interval | None:
    found = shares(reports, name)
    if not found:
        return None
    values = [value for _, value in found]
    return bootstrap.interval(values, [conversation for conversation, _ in found], seed=seed, rounds=rounds)


def timed(suite: Suite) -> Section:
    """Return what telling and asking took."""
    rows: list[tuple[str, ...]] = []
    for system in suite.systems:
        reports = suite.of(system)
        told = 1000 * sum(report.tell_seconds for report in reports) / sum(report.turns for report in reports)
        asked = [1000 * score.seconds for report in reports for score in report.scores]
        rows.append((system, f"{told:.2f}", f"{fmean(asked):.2f}" if asked else _MISSING))
    table = Table(
        title="Milliseconds, background work included",
        heads=("", "a message", "a question"),
        rows=tuple(rows),
    )
    return Section(name="speed", title="What it takes", text=(), tables=(table,))


def judged(found: Mapping[str, Judgement]) -> Section:
    """Return what a judge said of the answers of every system."""
    rows: list[tuple[str, ...]] = []
    for system, judgement in found.items():
        figures = judgement.figures()
        counts = (str(figures[name]) for name in ("rated", "unreadable", "failed"))
        rows.append((system, _percent(judgement.rating), *counts))
    one = next(iter(found.values()))
    by = f", answered by {one.answered_by} from what was recalled" if one.answered_by else ""
    table = Table(
        title=f"Rated by {one.model}{by}: 1 right, 0.5 in part, 0 wrong; mean {PERCENT}",
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
"""What the numbers mean by which a set names its kinds of question."""


# ── real conversations ──────────────────────────────────────────────────────────────────────────────────────────────


def retrieval(report: RetrievalReport, *, against: RetrievalReport | None = None) -> tuple[Section, ...]:
    """Return a section for each set of conversations; `against` is the same on the data that was tuned on."""
    return tuple(_dataset(report, dataset, against) for dataset in report.datasets)


def _dataset(report: RetrievalReport, dataset: str, against: RetrievalReport | None) -> Section:
    size = report.sizes[dataset]
    names = report.names(dataset)
    groups = report.groups(dataset)
    found = {
        system: {group: report.means(dataset, system, group) for group in groups} for system in report.systems
    }
    found = {system: by for system, by in found.items() if by[ALL]}
    key = dataset.casefold()
    tables = [
        Table(
            title=f"Means over the questions that have an answer, {PERCENT}",
            heads=("", "n", *names),
            rows=tuple(
                (system, str(by[ALL][names[0]].count), *(_mean(by[ALL].get(name)) for name in names))
                for system, by in found.items()
            ),
        ),
        Table(
            title="95 % bootstrap intervals over conversations and questions",
            heads=("", *names),
            rows=tuple(
                (system, *(_span(by[ALL].get(name)) for name in names)) for system, by in found.items()
            ),
        ),
        *_margins(report, dataset, tuple(found), names, against),
        *_groups(found, groups, [name for name in ("R@10", *names[4:5]) if name in names]),
        *_abstention(report, dataset),
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
        charts=_charts(key, dataset, found, names) if found else (),
    )


def _mean(found: Interval | None) -> str:
    return _percent(None if found is None else found.mean)


def _span(found: Interval | None) -> str:
    return _MISSING if found is None else f"{_percent(found.low)} to {_percent(found.high)}"


def _margins(
    report: RetrievalReport,
    dataset: str,
    systems: Sequence[str],
    names: Sequence[str],
    against: RetrievalReport | None,
) -> list[Table]:
    chosen = [name for name in ("R@10", "nDCG@10", *names[4:6]) if name in names]
    ours = [system for system in systems if system.startswith("acms")]
    others = [system for system in systems if not system.startswith("acms")]
    tables = [
        Table(
            title=f"{of} above the others, question by question, in points [95 % interval]",
            heads=("over", *chosen),
            rows=tuple(
                (
                    over,
                    *(
                        _interval(report.margin(dataset, name, of=of, over=over), sign=True)
                        for name in chosen
                    ),
                )
                for over in others
            ),
        )
        for of in ours
    ]
    if against is not None and dataset in against.datasets:
        rows: list[tuple[str, ...]] = []
        for of in ours:
            for over in others:
                shrunk = [against.shrinkage(report, dataset, name, of=of, over=over) for name in chosen]
                if any(shrunk):
                    held = all(one.low <= 0 for one in shrunk if one is not None)
                    cells = (_interval(one, sign=True) for one in shrunk)
                    rows.append((f"{of} over {over}", *cells, "yes" if held else "no"))
        tables.append(
            Table(
                title="How much smaller the margin is than on the other data; it holds where the interval reaches 0",
                heads=("margin of", *chosen, "holds"),
                rows=tuple(rows),
            )
        )
    return tables


def _groups(
    found: Mapping[str, Mapping[str, Mapping[str, Interval]]], groups: Sequence[str], names: Sequence[str]
) -> list[Table]:
    tables: list[Table] = []
    for name in names:
        rows: list[tuple[str, ...]] = []
        for group in groups:
            values = [by[group].get(name) for by in found.values()]
            count = max((one.count for one in values if one is not None), default=0)
            rows.append((group, str(count), *map(_mean, values)))
        tables.append(
            Table(title=f"{name} by kind of question, {PERCENT}", heads=("", "n", *found), rows=tuple(rows))
        )
    return tables


def _abstention(report: RetrievalReport, dataset: str) -> list[Table]:
    rows: list[tuple[str, ...]] = []
    for system in report.systems:
        one = report.abstention(dataset, system)
        if one is not None:
            rows.append(
                (
                    system,
                    str(one.unanswerable),
                    f"{one.auc:.3f}",
                    str(one.declined),
                    _percent(one.precision),
                    _percent(one.recall),
                    _percent(one.false_alarms),
                )
            )
    return [
        Table(
            title=f"Questions without an answer: declined below a confidence of {POSSIBLE_FROM}",
            heads=("", "unanswerable", "AUC", "declined", "precision", "recall", "false alarms"),
            rows=tuple(rows),
        )
    ]


def _charts(
    key: str, dataset: str, found: Mapping[str, Mapping[str, Mapping[str, Interval]]], names: Sequence[str]
) -> tuple[Chart, ...]:
    def axis(label: str) -> Axis:
        return Axis(label=label, unit="share")

    budgets = [name for name in names if name.startswith("B")]
    best = Chart(
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
                    Point(x=system, y=one.mean, low=one.low, high=one.high)
                    for system, by in found.items()
                    if (one := by[ALL].get("R@10")) is not None
                ),
            ),
        ),
    )
    packed = Chart(
        name=f"{key}-packed",
        title=f"{dataset}: evidence within a budget",
        text="Share of the evidence that a recall with a budget of tokens shows.",
        x=Axis(label="tokens", log=True),
        y=axis("evidence"),
        series=tuple(
            Series(
                name=system, points=tuple(Point(x=_tokens(name), y=by[ALL][name].mean) for name in budgets)
            )
            for system, by in found.items()
        ),
    )
    return best, packed


def _tokens(name: str) -> float:
    """Return the budget that a figure such as B500 or B2k is measured at."""
    size = name[1:]
    return 1000.0 * float(size[:-1]) if size.endswith("k") else float(size)


def by_words(suite: Suite) -> Section | None:
    """Return how much of what is answered depends on the words in which it is said; None with one word list."""
    lists = sorted({report.words for report in suite.reports})
    if len(lists) < 2:
        return None
    rows: list[tuple[str, ...]] = []
    for system in suite.systems:
        found = [
            means([report for report in suite.of(system) if report.words == name], "answered") or 0.0
            for name in lists
        ]
        rows.append((system, *map(_percent, found), _percent(max(found) - min(found))))
    return Section(
        name="words",
        title="In other words",
        text=(
            "The same scenarios written from several word lists: other subjects, other people, other turns of phrase. "
            "Every seed takes the next list.",
        ),
        tables=(Table(title=f"Answered, {PERCENT}", heads=("", *lists, "spread"), rows=tuple(rows)),),
    )


def requests(rows: Sequence[Row], requesting: Mapping[str, str]) -> Section:
    """Return what whole requests show and cost beside what a recall brings; `requesting` has both names of each."""
    found: list[tuple[str, ...]] = []
    for one in rows:
        if one.system not in requesting:
            continue
        of = (one.sweep, one.variant, one.scenario, one.at)
        beside = [row for row in rows if row.system == requesting[one.system]]
        item = next((row for row in beside if (row.sweep, row.variant, row.scenario, row.at) == of), None)
        if item is not None:
            name = " ".join(filter(None, (_sweep(one), f"{one.at:g}:", item.system)))
            found.append(
                (name, *_evidence(item), *_evidence(one), "" if one.paid is None else f"{one.paid:.0f}")
            )
    figures = ("evidence", "only outdated", "tokens")
    heads = (*(f"{of}: {figure}" for of in ("recall", "request") for figure in figures), "request: paid")
    return Section(
        name="requests",
        title="Whole requests",
        text=(
            "The same questions asked of a recall and of a whole request, history and recall within the same budget. "
            "Evidence: every expected word is there. Only outdated: what is no longer so is there, what is so is not. "
            "Paid: the tokens of a request, of which those that the provider has in its cache count a tenth.",
        ),
        tables=(Table(title="A recall and a request", heads=("", *heads), rows=tuple(found)),),
    )


def _evidence(row: Row) -> tuple[str, str, str]:
    stale = _MISSING if row.only_outdated is None else f"{row.only_outdated:.0%}"
    return f"{row.hit:.0%}", stale, f"{row.tokens:.0f}"


def _sweep(one: Row | Limit) -> str:
    """Return what a sweep is called."""
    about = "" if " + " in one.scenario else f"({one.scenario.replace('_', ' ')})"
    return " ".join(filter(None, (one.sweep.replace("_", " "), one.variant, about)))


def limits(found: Sequence[Limit]) -> Section:
    """Say where each system breaks in each sweep, and why; of a sweep in which none does, that no limit was found."""
    rows: list[tuple[str, ...]] = []
    whole: list[str] = []
    for sweep in dict.fromkeys((one.sweep, one.variant, one.scenario) for one in found):
        curves = [one for one in found if (one.sweep, one.variant, one.scenario) == sweep]
        name = _sweep(curves[0])
        if all(one.broke is None for one in curves):
            whole.append(f"{name} (to {curves[0].held:g})")
        rows += [(f"{name}: {one.system}", *_limit(one)) for one in curves]
    return Section(
        name="limits",
        title="Where it breaks",
        text=(
            f"The first value at which less than {HOLDS:.0%} of the probes are answered, in the order from easy to "
            "hard, and the most frequent cause of what was missed there.",
            "Causes: " + "; ".join(f"{name}: {text}" for name, text in CAUSES.items()) + ".",
            f"No limit was found in: {', '.join(whole)}."
            if whole
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


def _limit(one: Limit) -> tuple[str, ...]:
    precision = "" if one.precision is None else f"{one.precision:.0%}"
    return (
        "" if one.held is None else f"{one.held:g}",
        "no limit found" if one.broke is None else f"{one.broke:g}",
        f"{one.answered:.0%}",
        "" if one.spread is None else f"{one.spread[0]:.0%} to {one.spread[1]:.0%}",
        f"{one.hit:.0%}",
        precision,
        "" if one.broke is None else one.cause,
    )
