"""Commands that measure how well a memory remembers: eval run, answers, report, cascades, scenarios."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acms.cli import output
from acms.cli.base import AsJson, app, run_command
from acms.cli.output import Column, Screen
from acms.errors import ConfigurationError, ValidationError

if TYPE_CHECKING:
    from acms.ports import Embedder
    from acms_eval.answer_report import AnswerReport
    from acms_eval.datasets import Conversation
    from acms_eval.judge import Judgement
    from acms_eval.report import Document, Section, Table
    from acms_eval.retrieval import Progress, RetrievalReport
    from acms_eval.suite import LineUp, Suite

    _Measured = tuple[Document, dict[str, Any], dict[str, str] | None]

JUDGE_KEY = "ACMS_JUDGE_KEY"
MODEL_KEY = "ACMS_MODEL_KEY"
_PARTS = "questions, corrections, days"
_ROWS = "no memory, window, BM25, recall, default prompt, gold evidence"
_SEEDS = (0,)
_TURNS = 200
_SYSTEMS = "acms, recent, bm25, vectors, rrf, gleanr, chroma"

evaluating = typer.Typer(
    help="Measure how well a memory remembers.",
    epilog="Start with:  acms eval run",
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(evaluating, name="eval")

TellProgress = Callable[[str, int, int], None]
"""Takes the name of the work under way, how many of its steps are done, and how many there are."""


def _one_of(*names: str) -> Callable[[list[str]], list[str]]:
    def check(names_given: list[str]) -> list[str]:
        for name in names_given:
            if name not in names:
                raise typer.BadParameter(f"{name} is not known; there are {', '.join(names)}")
        return names_given

    return check


def _check_reflector(name: str) -> str:
    return _one_of("none", "offline")([name])[0]


def _check_word_lists(given: list[str]) -> list[str]:
    from acms_eval.topics import SHIPPED

    for name in given:
        if name not in SHIPPED and not Path(name).is_file():
            shipped = ", ".join(SHIPPED)
            raise typer.BadParameter(f"{name} is no file, and none of the word lists {shipped}")
    return list(dict.fromkeys(given))


Embedders = Annotated[
    list[str],
    typer.Option(
        "--embedder",
        metavar="NAME",
        callback=_one_of("none", "local"),
        help="none or local; give both for both in one run.",
    ),
]
Systems = Annotated[
    list[str],
    typer.Option(
        "--system",
        metavar="NAME",
        callback=_one_of(*_SYSTEMS.split(", ")),
        help=f"Who is measured, once or more: {_SYSTEMS}. Default: all that are installed, without chroma.",
    ),
]
Seeds = Annotated[
    list[int], typer.Option("--seed", metavar="N", help="Of what is said; more than one: all together.")
]
Words = Annotated[
    list[str],
    typer.Option(
        "--words",
        metavar="LIST",
        callback=_check_word_lists,
        help="A word list, once or more: software, household, practice, or a file of your own.",
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option("--cache", metavar="FOLDER", file_okay=False, help="Keep vectors here for the next run."),
]
Data = Annotated[
    list[Path],
    typer.Option(
        "--data",
        metavar="PATH",
        exists=True,
        help="Real conversations: a file, a folder, a folder of folders. Without it: scenarios.",
    ),
]
Scenarios = Annotated[
    list[str],
    typer.Option("--scenario", metavar="NAME", help="Only this one, or these; see acms eval scenarios."),
]
Turns = Annotated[
    int | None, typer.Option("--turns", min=12, metavar="N", help="Messages of a scenario; 200.")
]
Budget = Annotated[
    int | None,
    typer.Option("--budget", min=1, metavar="N", help="Tokens to recall; default: the scenario's own."),
]
Reflects = Annotated[
    str,
    typer.Option(
        "--reflector", metavar="NAME", callback=_check_reflector, help="none, or offline: facts too."
    ),
]
Every = Annotated[
    int, typer.Option("--every", min=1, metavar="N", help="With --data: only every Nth question.")
]
Against = Annotated[
    Path | None,
    typer.Option(
        "--against",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="With --data: the retrieval.json of another run, to compare margins with.",
    ),
]
JudgeUrl = Annotated[
    str | None,
    typer.Option("--judge", metavar="URL", help="A model server that rates what was recalled."),
]
JudgeModel = Annotated[
    str | None, typer.Option("--judge-model", metavar="MODEL", help="The model that rates.")
]
AnswerModel = Annotated[
    str | None,
    typer.Option(
        "--answer-model", metavar="MODEL", help="This one answers first, and its answers are rated."
    ),
]
Report = Annotated[
    Path | None,
    typer.Option("--report", metavar="FOLDER", file_okay=False, help="Write a report there too."),
]


# ── run ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@evaluating.command("run", epilog="Example:  acms eval run --data ../locomo --report out/")
def run_measurement(
    data: Data = [],
    scenario: Scenarios = [],
    turns: Turns = None,
    seed: Seeds = [0],
    words: Words = [],
    budget: Budget = None,
    embedder: Embedders = ["none"],
    reflector: Reflects = "none",
    system: Systems = [],
    cache: Cache = None,
    every: Every = 1,
    against: Against = None,
    judge: JudgeUrl = None,
    judge_model: JudgeModel = None,
    answer_model: AnswerModel = None,
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Measure ACMS beside simpler ways and other packages, on scenarios or on real conversations.

    Scenarios are written from the word list and the seed, the same in every run. --data takes LoCoMo, REALTALK, BEAM
    and LongMemEval as they are published, and conversations of your own; the content says what a file is. No model is
    asked unless --judge names one; its key comes from ACMS_JUDGE_KEY.
    """
    foreign_options = {
        "--scenario": scenario,
        "--turns": turns,
        "--words": words,
        "--budget": budget,
        "--judge": judge,
    }
    if not data:
        foreign_options = {"--every": every > 1, "--against": against}
    if misplaced := [name for name, value in foreign_options.items() if value]:
        about = "scenarios" if data else "--data"
        raise typer.BadParameter(f"works with {about} only", param_hint=misplaced[0])
    _check_scenarios(scenario)
    if bool(judge) != bool(judge_model) or (answer_model and not judge):
        raise typer.BadParameter(
            "--judge needs --judge-model, and neither stands alone", param_hint="--judge"
        )
    settings = {"embedder": ", ".join(embedder), "reflector": reflector, "seed": ", ".join(map(str, seed))}

    async def work() -> None:
        if data:
            compared = None if against is None else _read_report(against)
            measure = _Conversations(data, every, compared, seed[0], settings)
        else:
            judging = None if judge is None or judge_model is None else (judge, judge_model, answer_model)
            measure = _Scenarios(scenario, turns, seed, words, budget, judging, settings)
        line_up_context = _open_line_up(embedder, cache, system, reflector)
        await _measure_and_show(measure, line_up_context, report, Screen(as_json))

    run_command(as_json, work())


async def _measure_and_show(
    measure: _Conversations | _Scenarios,
    line_up_context: AbstractAsyncContextManager[LineUp],
    report: Path | None,
    screen: Screen,
) -> None:
    """Measure, write the report if one is wanted, and show the figures."""
    if report is not None:
        _make_folder(report)
    # Embedders and the bar are closed before the report is shown.
    async with AsyncExitStack() as stack:
        line_up = await stack.enter_async_context(line_up_context)
        document, value, files = await measure.run(line_up, stack.enter_context(_progress_bar()))
    files_written = [] if report is None else document.write(report, files)
    value |= {"settings": dict(document.settings), "left_out": dict(document.left_out)}
    _show_report(screen, document, value, files_written)


@dataclass(frozen=True, slots=True)
class _Conversations:
    """A measurement on real conversations."""

    paths: Sequence[Path]
    every: int
    against: RetrievalReport | None
    seed: int
    settings: dict[str, str]

    async def run(self, line_up: LineUp, tell: TellProgress) -> _Measured:
        """Ask all questions; return the report, its figures, and the file that goes beside it."""
        from acms_eval import sections
        from acms_eval.datasets import read_conversations
        from acms_eval.report import Document
        from acms_eval.retrieval import evaluate

        def report_progress(progress: Progress) -> None:
            label = f"{progress.dataset} {progress.conversation}: {progress.system}"
            tell(label, progress.done, progress.of)

        settings = {**self.settings, "every": str(self.every)}
        retrieval_report = await evaluate(
            chain.from_iterable(map(read_conversations, self.paths)),
            line_up.systems,
            every=dict.fromkeys(line_up.systems, self.every),
            left_out=line_up.left_out,
            settings=settings,
            seed=self.seed,
            progress=report_progress,
        )
        document = Document(
            title="Recall on real conversations",
            text=("How well each system finds the messages that answer a question.",),
            settings=settings,
            sections=sections.retrieval_sections(retrieval_report, against=self.against),
            left_out=line_up.left_out,
        )
        return (
            document,
            _retrieval_json(retrieval_report),
            {"retrieval.json": retrieval_report.to_json() + "\n"},
        )


@dataclass(frozen=True, slots=True)
class _Scenarios:
    """A measurement in scenarios."""

    names: Sequence[str]
    turns: int | None
    seeds: Sequence[int]
    words: Sequence[str]
    budget: int | None
    #: The address of the model that rates, its name, and the name of the one that answers first.
    judging: tuple[str, str, str | None] | None
    settings: dict[str, str]

    async def run(self, line_up: LineUp, tell: TellProgress) -> _Measured:
        """Tell all scenarios, have the answers rated where that is wanted; return the report and its figures."""
        from acms_eval import SCENARIOS, phrases, sections
        from acms_eval.report import Document
        from acms_eval.suite import run_suite
        from acms_eval.topics import SHIPPED

        phrase_lists = list(map(phrases, self.words or SHIPPED[:1]))
        scenarios = [
            SCENARIOS[name](turns=self.turns or _TURNS, seed=seed, phrases=phrase_list)
            for name in (self.names or SCENARIOS)
            for phrase_list in phrase_lists
            for seed in dict.fromkeys(self.seeds)
        ]
        keep = self.judging is not None and bool(self.judging[0])
        suite = await run_suite(scenarios, line_up.systems, budget=self.budget, keep=keep, progress=tell)
        judgements = {} if self.judging is None else await _judge_suite(suite, *self.judging, tell)
        by_words_section = sections.word_list_section(suite)
        word_sections = [] if by_words_section is None else [by_words_section]
        scenario_sections = (*sections.scenario_sections(suite, seed=self.seeds[0]), *word_sections)
        document = Document(
            title="Recall in scenarios",
            text=("What each system knows when it is asked, of what was said in passing.",),
            settings={
                **self.settings,
                "turns": str(self.turns or _TURNS),
                "budget": "each scenario's own" if self.budget is None else str(self.budget),
                "words": ", ".join(phrase_list.name for phrase_list in phrase_lists),
            },
            sections=(*scenario_sections, *([sections.judge_section(judgements)] if judgements else [])),
            times=(sections.speed_section(suite),),
            left_out=line_up.left_out,
        )
        return document, _suite_json(suite, judgements), None


def _check_scenarios(names: Sequence[str]) -> None:
    from acms_eval import SCENARIOS

    for name in names:
        if name not in SCENARIOS:
            hint = "acms eval scenarios lists them"
            raise typer.BadParameter(f"{name} is no scenario: {hint}", param_hint="--scenario")


@contextmanager
def _progress_bar() -> Generator[TellProgress]:
    """Show a progress bar on stderr when it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda what, done, of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, of: bar.update(
            task, description=output.strip_control_characters(what), completed=done, total=of
        )


@asynccontextmanager
async def _open_line_up(
    embedders: Sequence[str], cache: Path | None, systems: Sequence[str], reflector: str
) -> AsyncGenerator[LineUp]:
    """Open the embedders, and yield the systems that are measured with them."""
    from acms.providers import LocalEmbedder, OfflineReflector
    from acms_eval.cached import CachedEmbedder
    from acms_eval.suite import DEFAULT, line_up

    async with AsyncExitStack() as stack:
        tiers: list[tuple[str, Embedder | None]] = []
        for name in dict.fromkeys(embedders):
            embedder: Embedder | None = None
            if name == "local":
                path = None if cache is None else cache / "vectors.db"
                embedder = await stack.enter_async_context(CachedEmbedder(LocalEmbedder(), path))
            tiers.append((name, embedder))
        measured = line_up(
            tiers, names=systems or DEFAULT, reflector=OfflineReflector if reflector == "offline" else None
        )
        if not measured.systems:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in measured.left_out.items())
            raise ConfigurationError(f"there is nothing to measure: {reasons}")
        yield measured


async def _judge_suite(
    suite: Suite, url: str, model: str, answers_with: str | None, tell: TellProgress
) -> dict[str, Judgement]:
    from acms_eval.judge import Judge

    key = os.environ.get(JUDGE_KEY) or None
    async with Judge(url, model, answers_with=answers_with, api_key=key) as judge:
        judgements: dict[str, Judgement] = {}
        for system, answers in suite.answers.items():

            def report_progress(done: int, of: int, system: str = system) -> None:
                tell(f"{model} rates {system}", done, of)

            judgements[system] = await judge.judge(answers, report_progress)
        return judgements


def _make_folder(folder: Path) -> None:
    """Make the folder of a report before anything long runs."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValidationError(f"cannot write to {folder}: {error.strerror}", field="folder") from error


def _read_report(file: Path) -> RetrievalReport:
    from acms_eval.retrieval import RetrievalReport

    try:
        return RetrievalReport.from_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValidationError(f"cannot be read: {error}", field=str(file)) from error


def _suite_json(suite: Suite, judgements: dict[str, Judgement]) -> dict[str, Any]:
    from acms_eval.nouns import Report
    from acms_eval.sections import composite_of

    return {
        "systems": {
            system: {
                "composite": composite_of(suite.of(system)),
                "scenarios": {
                    kind: Report.together(suite.of(system, kind)).figures() for kind in suite.kinds
                },
            }
            for system in suite.systems
        },
        "judge": {system: judgement.figures() for system, judgement in judgements.items()},
    }


def _retrieval_json(report: RetrievalReport) -> dict[str, Any]:
    """Return the means with their intervals, without the questions one by one."""
    value: dict[str, Any] = json.loads(report.to_json())
    del value["asked"]
    value["abstention"] = {dataset: {} for dataset in report.datasets}
    for dataset, by_system in value["abstention"].items():
        for system in report.systems:
            abstention = report.abstention(dataset, system)
            by_system[system] = None if abstention is None else asdict(abstention)
    return value


def _show_report(
    screen: Screen, document: Document, value: dict[str, Any], files_written: Sequence[Path]
) -> None:
    """Write the tables of a report, or its figures as JSON."""

    def draw() -> None:
        for section in (*document.sections, *document.times):
            _show_section(screen, section)
        _show_left_out(screen, document, files_written)

    screen.show({**value, "files": [str(file) for file in files_written]}, draw)


def _show_left_out(screen: Screen, document: Document, files_written: Sequence[Path]) -> None:
    for name, reason in document.left_out.items():
        screen.line(f"not run: {name}, {reason}", "dim")
    if files_written:
        screen.line()
        screen.line(f"report: {next(file for file in files_written if file.suffix == '.html')}")


def _show_section(screen: Screen, section: Section) -> None:
    screen.title(section.title)
    for text in section.text:
        screen.line(text, "dim")
    for table in section.tables:
        screen.line()
        screen.line(table.title)
        for places in _split_columns(table, None if screen.console is None else screen.console.width):
            columns = [Column(table.heads[index], align_right=index > 0) for index in places]
            screen.table(columns, [[row[index] for index in places] for row in table.rows])


def _split_columns(table: Table, room: int | None) -> list[list[int]]:
    """Return the columns of a table in blocks that fit a terminal, each with the first column.

    The table would otherwise cut its figures, and a figure that is cut misleads.
    """
    blocks = [[0]]
    used_width = label_width = _column_width(table, 0) + 1
    for index in range(1, len(table.heads)):
        width = _column_width(table, index)
        if room is not None and used_width + width > room and len(blocks[-1]) > 1:
            blocks.append([0])
            used_width = label_width
        blocks[-1].append(index)
        used_width += width
    return blocks


def _column_width(table: Table, index: int) -> int:
    return 3 + max(len(row[index]) for row in (table.heads, *table.rows))


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


ModelUrl = Annotated[
    str,
    typer.Option(
        "--model-url", metavar="URL", envvar="ACMS_MODEL_URL", help="A server that speaks /chat/completions."
    ),
]
ModelName = Annotated[
    str | None, typer.Option("--model", metavar="MODEL", help="Default: the first that the server lists.")
]
Parts = Annotated[
    list[str],
    typer.Option(
        "--part", metavar="NAME", callback=_one_of(*_PARTS.split(", ")), help=f"Of {_PARTS}; default: all."
    ),
]
Rows = Annotated[
    list[str],
    typer.Option(
        "--row", metavar="NAME", callback=_one_of(*_ROWS.split(", ")), help=f"Of {_ROWS}; default: all."
    ),
]
AnswerTokens = Annotated[
    int,
    typer.Option("--answer-tokens", min=1, metavar="N", help="Of an answer; more if the model thinks first."),
]
KeptAnswers = Annotated[
    Path,
    typer.Option("--cache", metavar="FOLDER", file_okay=False, help="Keep answers here for the next run."),
]


@evaluating.command("answers", epilog="Example:  acms eval answers --model-url http://127.0.0.1:8080/v1")
def measure_answers(
    model_url: ModelUrl,
    model: ModelName = None,
    data: Data = [],
    part: Parts = [],
    row: Rows = [],
    questions: Annotated[int, typer.Option("--questions", min=1, metavar="N", help="How many.")] = 60,
    budget: Annotated[int, typer.Option("--budget", min=1, metavar="N", help="Tokens of memory.")] = 400,
    answer_tokens: AnswerTokens = 32,
    judge_model: JudgeModel = None,
    cache: KeptAnswers = Path("~/.cache/acms"),
    report: Report = None,
    as_json: AsJson = False,
) -> None:
    """Let a model answer from what each way to remember shows it.

    Questions of real conversations (--data), or of a scenario; 20 values that were corrected; three days of an agent
    with tools. Answers are kept, so an interrupted run goes on where it stopped. The key comes from ACMS_MODEL_KEY.
    """

    async def work() -> None:
        from acms_eval.answer_report import PARTS, measure_answers
        from acms_eval.answers import Row
        from acms_eval.cached import CachedEndpoint

        if report is not None:
            _make_folder(report)
        file = cache.expanduser() / "answers.db"
        key = os.environ.get(MODEL_KEY) or None
        async with CachedEndpoint(model_url, file, settings={"temperature": 0}, api_key=key) as endpoint:
            name = model or await endpoint.get("models", lambda answer: answer["data"][0]["id"])
            with _progress_bar() as tell:
                answer_report = await measure_answers(
                    endpoint,
                    name,
                    _load_conversations(data),
                    parts=part or PARTS,
                    rows=[known_row for known_row in Row if not row or known_row in row],
                    count=questions,
                    budget=budget,
                    max_tokens=answer_tokens,
                    judge_model=judge_model,
                    progress=tell,
                )
        _show_answers(answer_report, {"model": name, "budget": str(budget)}, report, as_json)

    run_command(as_json, work())


def _load_conversations(paths: Sequence[Path]) -> list[Conversation]:
    """Return the conversations of all paths, or a scenario where there are none."""
    from acms_eval import SCENARIOS
    from acms_eval.answers import scenario_conversation
    from acms_eval.datasets import load

    if paths:
        return list(chain.from_iterable(map(load, paths)))
    return [scenario_conversation(SCENARIOS["corrections"](turns=_TURNS, seed=0))]


def _show_answers(
    answer_report: AnswerReport, run_with: dict[str, str], report: Path | None, as_json: bool
) -> None:
    """Write the tables with the model, the date and the machine, or all of it as JSON."""
    from acms_eval.report import Document

    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    settings = {**run_with, "temperature": "0", "date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine}
    line = ", ".join(f"{key} {value}" for key, value in settings.items())
    document = Document(title="Answers", text=(line,), settings=settings, sections=answer_report.sections())
    files_written = [] if report is None else document.write(report)
    screen = Screen(as_json)
    if not as_json:
        screen.line(line, "dim")
    _show_report(screen, document, {**answer_report.figures(), "settings": settings}, files_written)


# ── report ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@evaluating.command("report", epilog="Example:  acms eval report --out out/")
def write_full_report(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", file_okay=False, help="Where it goes.")],
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="The first one of what is said.")] = 0,
    words: Words = [],
    embedder: Embedders = ["none"],
    system: Systems = [],
    cache: Cache = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small one, in seconds: few points a chart.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure everything, and write report.json, report.md, a page report.html and its charts.

    The seven figures of the evaluation plan: recall against the length of a conversation, the token budget and the
    distance from a fact; precision against recall; scenarios from easy to hard; what markers are worth; what it all
    costs. Then how much depends on the words, what whole requests show and cost, and where each sweep breaks, and why.
    Of several word lists, by default all that come along, every seed takes the next one. The page needs no script and
    no network. Two runs write the same bytes, but for the times.
    """

    async def work() -> None:
        from acms_eval import phrases
        from acms_eval.deliverables import FULL, QUICK, measure_deliverables
        from acms_eval.topics import SHIPPED

        _make_folder(out)
        phrase_lists = list(map(phrases, words or SHIPPED))
        async with AsyncExitStack() as stack:
            line_up = await stack.enter_async_context(_open_line_up(embedder, cache, system, "none"))
            document = await measure_deliverables(
                line_up,
                sizes=QUICK if quick else FULL,
                seed=seed,
                phrases=phrase_lists,
                settings={"embedder": ", ".join(embedder)},
                progress=stack.enter_context(_progress_bar()),
            )
        files_written = document.write(out)
        screen = Screen(as_json)

        def draw() -> None:
            _show_section(screen, document.sections[0])
            _show_left_out(screen, document, files_written)

        value = {"settings": dict(document.settings), "left_out": dict(document.left_out)}
        screen.show({**value, "files": [str(file) for file in files_written]}, draw)

    run_command(as_json, work())


# ── cascades ────────────────────────────────────────────────────────────────────────────────────────────────────────


@evaluating.command("cascades", epilog="Example:  acms eval cascades --seed 0 --seed 1")
def compare_cascades(
    seed: Seeds = [*range(10)],
    turns: Turns = None,
    words: Words = [],
    budget: Annotated[int, typer.Option("--budget", min=1, metavar="N", help="Tokens to recall.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Change what decisions follow from, ask about them, and count which are flagged.

    In the manner of MEME: premises, what follows from them in one or two steps, and others; one premise gets another
    value, one is dropped. Once with facts of the offline reflector, once with perfect ones that say of none what it
    rests on.
    """

    async def work() -> None:
        from acms_eval import phrases
        from acms_eval.cascades import measure_cascades

        phrase_lists = list(map(phrases, words))
        tier_rows = await measure_cascades(
            turns=turns or 120, seeds=seed, phrases=phrase_lists, budget=budget
        )
        screen = Screen(as_json)
        figures = ("flagged", "flagged_orphans", "caveated", "certain", "mistaken")
        heads = ("premise changed", "premise dropped", "shown with it", "as certain", "mistaken")
        columns = (Column("facts", "cyan"), *(Column(head, align_right=True) for head in heads))
        rows = [
            (tier_row.tier, *(f"{100 * getattr(tier_row, name):.1f} %" for name in figures))
            for tier_row in tier_rows
        ]
        screen.show(
            {"cascades": [asdict(tier_row) for tier_row in tier_rows]}, lambda: screen.table(columns, rows)
        )

    run_command(as_json, work())


# ── scenarios ───────────────────────────────────────────────────────────────────────────────────────────────────────


@evaluating.command("scenarios", epilog="Example:  acms eval scenarios")
def list_scenarios(as_json: AsJson = False) -> None:
    """List the scenarios: what is said in them and what is asked."""

    async def work() -> None:
        from acms_eval import SCENARIOS

        named_texts = [(name, _describe_builder(builder.__doc__)) for name, builder in SCENARIOS.items()]
        screen = Screen(as_json)
        columns = (Column("scenario", "cyan"), Column("what it is"))
        screen.show(
            {"scenarios": [{"name": name, "text": text} for name, text in named_texts]},
            lambda: screen.table(columns, named_texts),
        )

    run_command(as_json, work())


def _describe_builder(doc: str | None) -> str:
    """Return what a scenario is: the first line of its builder's docstring, without "Return"."""
    line = (doc or "").strip().partition("\n")[0].removeprefix("Return ")
    return line[:1].upper() + line[1:]
