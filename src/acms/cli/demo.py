"""`acms demo`: a bundled conversation of three days, processed with the public methods of a session."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from importlib.resources import as_file, files
from operator import itemgetter
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import typer

from acms.branches.importers import Turn, read_chat
from acms.cli import output
from acms.cli.base import Shell, create_embedder, define_command
from acms.cli.output import Column, Screen, count_noun
from acms.cli.stores import file_url, parse_store
from acms.config import ACMSConfig, ReflectionConfig
from acms.knowledge import Fact
from acms.log.active_entries import preview_text
from acms.model import Kind
from acms.ports import Progress
from acms.providers import OfflineReflector
from acms.results import ContextItems, Episode, HistoryEntry, SessionStats, Verdict
from acms.session import ACMS
from acms.storage import open_storage

SESSION = "demo"
WINDOW = 300
"""Tokens of the window: about 10 messages, which fit on a screen."""
BUDGET = 400
"""Tokens of a recall: about 15 of the 82 messages, so that most of them are rejected."""
QUESTIONS = (
    "Why did the migration fail on staging?",
    "Where may card numbers be stored?",
    "How do order events reach the warehouse and billing?",
)
OLD = "Decision: order events go to the warehouse and to billing through Kafka"
NEW = "Decision: no Kafka for now."
ASK = "what did we decide about Kafka?"
OWN = (
    '  acms add mine user "We deploy on Tuesdays."    begin a session of your own',
    '  acms recall mine "when do we deploy?"          ask it',
    "  acms import chat.jsonl --session mine          or bring a conversation: acms import --help",
)


@define_command("demo", "acms demo --db sqlite:///demo.db", db=False)
async def run_demo(
    shell: Shell,
    db: Annotated[
        str | None,
        typer.Option(
            "--db",
            metavar="URL|FILE",
            callback=parse_store,
            help="Where to keep it; default: a temporary file.",
        ),
    ] = None,
) -> None:
    """Show the features of ACMS on a bundled conversation.

    Uses a temporary database unless --db names one to keep.
    """
    async with AsyncExitStack() as stack:
        url = db
        if url is None:
            folder = tempfile.TemporaryDirectory(prefix="acms-", ignore_cleanup_errors=True)
            url = file_url(Path(stack.enter_context(folder)) / "demo.db")
        session = ACMS(
            SESSION,
            open_storage(url),
            create_embedder(),
            reflector=OfflineReflector(),
            config=ACMSConfig(reflection=ReflectionConfig(enabled=False)),  # the demo reflects later, once
            namespace=shell.namespace,
        )
        await stack.enter_async_context(session)
        with shell.progress("telling the story") as report:
            results = await _run_story(session, report)
    shell.show(_demo_json(results), lambda: _draw_demo(shell, results, db))


class _Results(NamedTuple):
    """What the demo measured and found."""

    ingestion: _Ingestion
    embed_seconds: float
    recall_seconds: float
    window: ContextItems
    answers: list[tuple[str, ContextItems]]
    #: The decision that is retracted, and the version of that retraction.
    old_decision: HistoryEntry
    retraction: int
    #: Version of the message that changes the decision.
    change: int
    decision_before: dict[str, Any]
    decision_after: dict[str, Any]
    why_not: Verdict
    episodes: Sequence[Episode]
    facts: list[Fact]
    reflect_seconds: float
    entries: Sequence[HistoryEntry]
    stats: SessionStats


class _Ingestion(NamedTuple):
    messages: int
    new_messages: int
    #: Until the first message was stored: creates the file and loads the vocabulary.
    ready_seconds: float
    #: For all other messages.
    seconds: float

    @property
    def per_second(self) -> float:
        """Return the rate of messages after the first one."""
        return (self.messages - 1) / self.seconds


async def _run_story(session: ACMS, report: Progress) -> _Results:
    """Ingest the conversation, query it, change it and reflect on it."""
    ingestion = await _ingest_conversation(session, report)
    started_at = perf_counter()
    await session.wait_pending()
    embed_seconds = perf_counter() - started_at

    view = session.at(ingestion.messages)
    window = await view.window(WINDOW)
    answers: list[tuple[str, ContextItems]] = []
    durations: list[float] = []
    for question in QUESTIONS:
        started_at = perf_counter()
        items = await view.recall(question, token_budget=BUDGET)
        durations.append(perf_counter() - started_at)
        answers.append((question, items))
    episodes = await view.episodes()
    entries = (await view.history(limit=500)).entries

    messages = [entry for entry in entries if entry.kind is Kind.MESSAGE]
    old_decision = next(entry for entry in messages if entry.preview.startswith(OLD))
    change = next(entry for entry in messages if entry.preview.startswith(NEW)).version
    recall_before = await session.at(change - 1).recall(QUESTIONS[-1], token_budget=BUDGET)
    retraction = await session.retract(old_decision.id, reason="replaced by the outbox")
    recall_after = await session.recall(QUESTIONS[-1], token_budget=BUDGET)

    why_not = recall_after.ledger.why_not(old_decision.id)
    assert why_not is not None

    started_at = perf_counter()
    await session.wait(await session.reflect())
    facts = await session.facts()
    reflect_seconds = perf_counter() - started_at
    return _Results(
        ingestion=ingestion,
        embed_seconds=embed_seconds,
        recall_seconds=median(durations),
        window=window,
        answers=answers,
        old_decision=old_decision,
        retraction=retraction,
        change=change,
        decision_before=_best_decision(recall_before),
        decision_after=_best_decision(recall_after),
        why_not=why_not,
        episodes=episodes,
        facts=facts,
        reflect_seconds=reflect_seconds,
        entries=entries,
        stats=await session.get_session_stats(),
    )


async def _ingest_conversation(session: ACMS, report: Progress) -> _Ingestion:
    with as_file(files("acms") / "data" / "demo.jsonl") as path:
        turns = list(read_chat(path))
    new_messages = 0
    times = [perf_counter()]
    for count, turn in enumerate(turns, 1):
        await session.ingest(**_ingest_arguments(turn))
        times.append(perf_counter())
        assert session.last_receipt is not None
        new_messages += not session.last_receipt.repeated
        report(count, len(turns))
    return _Ingestion(len(turns), new_messages, times[1] - times[0], times[-1] - times[1])


def _demo_json(results: _Results) -> dict[str, Any]:
    ingestion, window = results.ingestion, results.window
    return {
        "ingested": {
            "messages": ingestion.messages,
            "new": ingestion.new_messages,
            "ready_seconds": ingestion.ready_seconds,
            "seconds": ingestion.seconds,
            "per_second": ingestion.per_second,
            "embedded_seconds": results.embed_seconds,
        },
        "window": {
            "budget": WINDOW,
            "tokens": window.tokens,
            "versions": [item.version for item in window],
        },
        "recall": [_answer_json(question, items) for question, items in results.answers],
        "ledger": list(results.answers[-1][1].ledger),
        "episodes": results.episodes,
        "time": {
            "retracted": results.old_decision.version,
            "by": results.retraction,
            "before": {"at": results.change - 1, **results.decision_before},
            "after": results.decision_after,
            "why_not": results.why_not,
        },
        "facts": results.facts,
        "stats": results.stats,
    }


def _answer_json(question: str, items: ContextItems) -> dict[str, Any]:
    return {
        "query": question,
        "budget": items.budget,
        "tokens": items.tokens,
        "confidence": items.confidence,
        "band": items.band,
        "items": [output.item_json(item) for item in items.best(len(items))],
    }


def _ingest_arguments(turn: Turn) -> dict[str, Any]:
    """Return the arguments of `ingest`, which calls the key of a message its idempotency key."""
    arguments: dict[str, Any] = dict(turn)
    if "key" in arguments:
        arguments["idempotency_key"] = arguments.pop("key")
    return arguments


def _best_decision(items: ContextItems) -> dict[str, Any]:
    """Return the best recalled decision."""
    best_item = next(item for item in items.best(len(items)) if "decision" in item.markers)
    return {"version": best_item.version, "content": best_item.content}


def _draw_demo(screen: Screen, results: _Results, db: str | None) -> None:
    screen.line("ACMS: every message kept, and within a hard token budget the ones that matter", "bold")
    screen.line(
        "Three days of a team that builds an orders service: users, an assistant, tools, decisions.", "dim"
    )
    _draw_messages(screen, results)
    _draw_answers(screen, results)
    _draw_log(screen, results)
    _draw_facts(screen, results)
    _draw_stats(screen, results.stats)
    screen.title("Go on")
    url = db or "sqlite:///demo.db"
    if db is None:
        screen.line(f"  acms demo --db {url}              keep this conversation, and ask it:")
    screen.line(f'  acms recall {SESSION} "{ASK}" --why --db {url}')
    for line in OWN:
        screen.line(line)


def _draw_stats(screen: Screen, stats: SessionStats) -> None:
    screen.title(f"8. acms sessions stats {SESSION}")
    ranking = "words" if stats.tier == "words" else f"words and {stats.tier}"
    screen.line(
        f"version {stats.version}, {stats.messages} messages ({stats.tokens:,} tokens by {stats.counter}), "
        f"{stats.active_messages} active ({stats.active_tokens:,}), {stats.episodes} episodes; "
        f"ranked by {ranking}"
    )


def _draw_messages(screen: Screen, results: _Results) -> None:
    ingestion = results.ingestion
    screen.title("1. acms import: each message is on disk before the next one")
    rate = "all there already: nothing is stored twice"
    if ingestion.new_messages:
        rate = f"{ingestion.per_second:,.0f} a second"
    screen.line(
        f"the first after {ingestion.ready_seconds:.2f} s, with a new file and the vocabulary; "
        f"then {ingestion.messages - 1} more: {rate}"
    )

    tier = results.stats.tier
    if tier == "words":
        screen.line("recall is by words; with the local model it finds by meaning too", "dim")
    else:
        seconds = f"{results.embed_seconds:.2f} s more"
        screen.line(f"their vectors by {tier}, behind the acknowledgement: {seconds}", "dim")

    window = results.window
    screen.title(f"2. acms window {SESSION} --budget {WINDOW}: the newest messages that fit")
    screen.list(output.WINDOWED, window)
    screen.line(
        f"{len(window)} messages, {window.tokens} of {WINDOW} tokens; tool calls keep all their answers",
        "dim",
    )


def _draw_answers(screen: Screen, results: _Results) -> None:
    duration = f"{1000 * results.recall_seconds:.1f} ms a question"
    screen.title(f"3. acms recall {SESSION} QUESTION --budget {BUDGET}: {duration}")
    for question, items in results.answers:
        screen.line(f"? {question}", "bold yellow")
        best_items = items.best(3)
        screen.list(output.RANKED, best_items)
        totals = f"{count_noun(len(items), 'item')}, {items.tokens} of {items.budget} tokens"
        screen.line(f"best {len(best_items)} of {totals}", "dim")

    ledger = results.answers[-1][1].ledger
    included = [verdict for verdict in ledger if verdict.included]
    rejected = [verdict for verdict in ledger if not verdict.included]
    screen.title("4. --why: the reason of each message that is in or out (last question)")
    screen.list(output.LEDGER, (*included[:3], *rejected[:4]))
    screen.line(f"{len(included)} shown, {len(rejected)} left out, each with its reason", "dim")


def _draw_log(screen: Screen, results: _Results) -> None:
    screen.title(f"5. acms sessions episodes {SESSION}: found while writing")
    reasons = Counter(episode.reason or "still open" for episode in results.episodes)
    columns = (
        Column("ends with", "magenta", value=lambda row: row[0].replace("_", " ")),
        Column("episodes", align_right=True, value=itemgetter(1)),
    )
    screen.list(columns, reasons.most_common())

    decision_before, decision_after = results.decision_before, results.decision_after
    change, retraction, old_version = results.change, results.retraction, results.old_decision.version
    screen.title("6. Time: nothing is ever lost")
    screen.line(
        f"at v{change - 1} the decision was v{decision_before['version']}: {decision_before['content']}"
    )
    screen.line(
        f"v{change} takes its place, so now it is v{decision_after['version']}: {decision_after['content']}"
    )
    screen.line(f"v{retraction} takes v{old_version} back: from there on the old one is not shown at all")
    reason = results.why_not.reason
    screen.line(f"why not the old one? {reason}; acms sessions at {SESSION} {retraction - 1} still shows it")


def _draw_facts(screen: Screen, results: _Results) -> None:
    versions = {entry.id: f"v{entry.version}" for entry in results.entries}

    def format_sources(fact: Fact) -> str:
        return " ".join(versions.get(source, source) for source in fact.sources)

    screen.title(f"7. acms facts {SESSION}: what the episodes established, by rules, without a model")
    columns = (
        Column("value", wide=True, value=lambda fact: preview_text(fact.value or fact.content, 100)),
        Column("subject", "magenta"),
        Column("attribute", "magenta"),
        Column("said at", "cyan", value=format_sources),
    )
    shown_facts = results.facts[:8]
    screen.list(columns, shown_facts)
    total_facts, seconds = len(results.facts), results.reflect_seconds
    screen.line(f"{len(shown_facts)} of {total_facts} facts, found in {seconds:.2f} s", "dim")
