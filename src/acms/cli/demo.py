"""`acms demo`: three days of an orders team, told with the library's own verbs."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from importlib.resources import as_file, files
from operator import itemgetter
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import typer

from acms.branches.importers import Turn, read_chat
from acms.cli import render
from acms.cli.base import Shell, command, embedder, file_url
from acms.cli.render import Column, Screen
from acms.config import ACMSConfig, ReflectionConfig
from acms.knowledge import Fact
from acms.log.in_force import preview_text
from acms.model import Kind
from acms.ports import Progress
from acms.providers import OfflineReflector
from acms.results import ContextItems
from acms.session import ACMS
from acms.storage import open_storage

SESSION = "demo"
WINDOW = 300
BUDGET = 400
SHOWN = 3
LISTED = 8
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


@command("acms demo --db sqlite:///demo.db", db=False)
async def demo(
    shell: Shell,
    db: Annotated[
        str | None,
        typer.Option("--db", metavar="URL", help="Where to keep it; default: a temporary file."),
    ] = None,
) -> None:
    """Show what ACMS does, on a bundled conversation.

    Uses a temporary database, unless --db names one to keep.
    """
    async with AsyncExitStack() as stack:
        url = db
        if url is None:
            folder = tempfile.TemporaryDirectory(prefix="acms-", ignore_cleanup_errors=True)
            url = file_url(Path(stack.enter_context(folder)) / "demo.db")
        # the story reflects when it has been told
        later = ACMSConfig(reflection=ReflectionConfig(enabled=False))
        storage, reflector = open_storage(url), OfflineReflector()
        session = ACMS(
            SESSION, storage, embedder(), reflector=reflector, config=later, namespace=shell.namespace
        )
        with shell.progress("telling the story") as tell:
            told = await _run_story(await stack.enter_async_context(session), tell)
    shell.show(_json(told), lambda: _draw(shell, told, db))


async def _run_story(session: ACMS, tell: Progress) -> dict[str, Any]:
    """Use the session, and return what there is to show."""
    with as_file(files("acms") / "data" / "demo.jsonl") as path:
        turns = list(read_chat(path))
    moments = [perf_counter()]
    new = 0
    for turn in turns:
        await session.ingest(**_arguments(turn))
        assert session.last_receipt is not None
        new += not session.last_receipt.repeated
        moments.append(perf_counter())
        tell(len(moments) - 1, len(turns))
    ready, seconds = moments[1] - moments[0], moments[-1] - moments[1]
    started = perf_counter()
    await session.wait_pending()
    embedded = perf_counter() - started
    end = len(turns)
    window = await session.at(end).window(WINDOW)
    answers: list[tuple[str, ContextItems]] = []
    took: list[float] = []
    for question in QUESTIONS:
        started = perf_counter()
        answers.append((question, await session.at(end).recall(question, token_budget=BUDGET)))
        took.append(perf_counter() - started)
    episodes = await session.at(end).episodes()
    entries = (await session.at(end).history(limit=500)).entries
    said = [entry for entry in entries if entry.kind is Kind.MESSAGE]
    old = next(entry for entry in said if entry.preview.startswith(OLD))
    changed = next(entry for entry in said if entry.preview.startswith(NEW)).version
    then = await session.at(changed - 1).recall(QUESTIONS[-1], token_budget=BUDGET)
    retraction = await session.retract(old.id, reason="replaced by the outbox")
    now = await session.recall(QUESTIONS[-1], token_budget=BUDGET)
    started = perf_counter()
    await session.wait(await session.reflect())
    facts = await session.facts()
    reflected = perf_counter() - started
    stats = await session.get_session_stats()
    return {
        "messages": (new, len(turns), ready, seconds),
        "embedded": embedded,
        "recalled": median(took),
        "window": window,
        "answers": answers,
        "old": old,
        "retraction": retraction,
        "changed": changed,
        "then": _best(then),
        "now": _best(now),
        "why_not": now.ledger.why_not(old.id),
        "episodes": episodes,
        "facts": (facts, reflected),
        "entries": entries,
        "stats": stats,
    }


def _json(told: dict[str, Any]) -> dict[str, Any]:
    """Return what there is to show as JSON."""
    (new, total, ready, seconds), window = told["messages"], told["window"]
    return {
        "ingested": {
            "messages": total,
            "new": new,
            "ready_seconds": ready,
            "seconds": seconds,
            "per_second": (total - 1) / seconds,
            "embedded_seconds": told["embedded"],
        },
        "window": {
            "budget": WINDOW,
            "tokens": window.tokens,
            "versions": [item.version for item in window],
        },
        "recall": [
            {
                "query": question,
                "budget": items.budget,
                "tokens": items.tokens,
                "confidence": items.confidence,
                "band": items.band,
                "items": [render.item_json(item) for item in items.best(len(items))],
            }
            for question, items in told["answers"]
        ],
        "ledger": list(told["answers"][-1][1].ledger),
        "episodes": told["episodes"],
        "time": {
            "retracted": told["old"].version,
            "by": told["retraction"],
            "before": {"at": told["changed"] - 1, **told["then"]},
            "after": told["now"],
            "why_not": told["why_not"],
        },
        "facts": told["facts"][0],
        "stats": told["stats"],
    }


def _arguments(turn: Turn) -> dict[str, Any]:
    """Return the arguments of `ingest`, which calls the key of a message its idempotency key."""
    return {("idempotency_key" if name == "key" else name): value for name, value in turn.items()}


def _best(items: ContextItems) -> dict[str, Any]:
    """Return the best decision among what was recalled."""
    best = next(item for item in items.best(len(items)) if "decision" in item.markers)
    return {"version": best.version, "content": best.content}


def _draw(screen: Screen, told: dict[str, Any], db: str | None) -> None:
    screen.line("ACMS: every message kept, and within a hard token budget the ones that matter", "bold")
    screen.line(
        "Three days of a team that builds an orders service: users, an assistant, tools, decisions.", "dim"
    )
    _draw_messages(screen, told)
    _draw_answers(screen, told)
    _draw_log(screen, told)
    _draw_facts(screen, told)
    stats = told["stats"]
    screen.title(f"8. acms stats {SESSION}")
    screen.line(
        f"version {stats.version}, {stats.messages} messages ({stats.tokens:,} tokens by {stats.counter}), "
        f"{stats.active_messages} in force ({stats.active_tokens:,}), {stats.episodes} episodes; "
        f"ranked by {stats.tier if stats.tier == 'words' else f'words and {stats.tier}'}"
    )
    screen.title("Go on")
    kept = db or "sqlite:///demo.db"
    if db is None:
        screen.line(f"  acms demo --db {kept}              keep this conversation, and ask it:")
    screen.line(f'  acms recall {SESSION} "{ASK}" --why --db {kept}')
    for line in OWN:
        screen.line(line)


def _draw_messages(screen: Screen, told: dict[str, Any]) -> None:
    new, total, ready, seconds = told["messages"]
    screen.title("1. acms import: each message is on disk before the next one")
    rate = f"{(total - 1) / seconds:,.0f} a second" if new else "all there already: nothing is stored twice"
    screen.line(
        f"the first after {ready:.2f} s, with a new file and the vocabulary; then {total - 1} more: {rate}"
    )

    stats = told["stats"]
    if stats.tier == "words":
        screen.line("recall is by words; with the local model it finds by meaning too", "dim")
    else:
        screen.line(
            f"their vectors by {stats.tier}, behind the acknowledgement: {told['embedded']:.2f} s more", "dim"
        )

    window: ContextItems = told["window"]
    screen.title(f"2. acms window {SESSION} --budget {WINDOW}: the newest messages that fit")
    screen.list(render.WINDOWED, window)
    screen.line(
        f"{len(window)} messages, {window.tokens} of {WINDOW} tokens; tool calls keep all their answers",
        "dim",
    )


def _draw_answers(screen: Screen, told: dict[str, Any]) -> None:
    took = f"{1000 * told['recalled']:.1f} ms a question"
    screen.title(f"3. acms recall {SESSION} QUESTION --budget {BUDGET}: {took}")
    for question, items in told["answers"]:
        screen.line(f"? {question}", "bold yellow")
        screen.list(render.RANKED, items.best(SHOWN))
        screen.line(f"best {SHOWN} of {len(items)} items, {items.tokens} of {items.budget} tokens", "dim")

    last: ContextItems = told["answers"][-1][1]
    verdicts = list(last.ledger)
    shown = [verdict for verdict in verdicts if verdict.included][:3]
    rejected = [verdict for verdict in verdicts if not verdict.included]
    screen.title("4. --why: the reason of each message that is in or out (last question)")
    screen.list(render.LEDGER, (*shown, *rejected[:4]))
    screen.line(
        f"{len(verdicts) - len(rejected)} shown, {len(rejected)} left out, each with its reason", "dim"
    )


def _draw_log(screen: Screen, told: dict[str, Any]) -> None:
    screen.title(f"5. acms episodes {SESSION}: found while writing")
    reasons = Counter(episode.reason or "still open" for episode in told["episodes"])
    columns = (
        Column("ends with", "magenta", of=lambda pair: pair[0].replace("_", " ")),
        Column("episodes", right=True, of=itemgetter(1)),
    )
    screen.list(columns, reasons.most_common())

    old, then, now = told["old"], told["then"], told["now"]
    screen.title("6. Time: nothing is ever lost")
    screen.line(f"at v{told['changed'] - 1} the decision was v{then['version']}: {then['content']}")
    screen.line(f"v{told['changed']} takes its place, so now it is v{now['version']}: {now['content']}")
    gone = told["retraction"]
    screen.line(f"v{gone} takes v{old.version} back: from there on the old one is not shown at all")
    screen.line(f"why not the old one? {told['why_not'].reason}; acms at {SESSION} {gone - 1} still shows it")


def _draw_facts(screen: Screen, told: dict[str, Any]) -> None:
    facts: list[Fact]
    facts, reflected = told["facts"]
    screen.title(f"7. acms facts {SESSION}: what the episodes established, by rules, without a model")
    places = {entry.id: f"v{entry.version}" for entry in told["entries"]}
    columns = (
        Column("value", wide=True, of=lambda fact: preview_text(fact.value or fact.content, 100)),
        Column("subject", "magenta"),
        Column("attribute", "magenta"),
        Column("said at", "cyan", of=lambda fact: " ".join(str(places.get(id, id)) for id in fact.sources)),
    )
    screen.list(columns, facts[:LISTED])
    screen.line(f"{min(LISTED, len(facts))} of {len(facts)} facts, found in {reflected:.2f} s", "dim")
