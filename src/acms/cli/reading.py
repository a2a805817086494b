"""Commands that read sessions: recall, messages, window, history, stats, episodes, sessions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from acms.cli import output
from acms.cli.base import (
    At,
    Budget,
    Full,
    Query,
    Ranking,
    RequiredBudget,
    Session,
    Shell,
    define_command,
    parse_scope,
    parse_version,
)
from acms.cli.output import Column, Screen, count_noun, fields_of
from acms.errors import ValidationError
from acms.log.encoding import parse_entry_id
from acms.results import ContextItems, HistoryEntry, Ledger, Verdict

LEFT_OUT = 10
"""Rejected candidates that `recall --why` shows: about half a screen."""


WhyOption = Annotated[bool, typer.Option("--why", help="Add the decisions and the best rejected candidates.")]
MinRelevanceOption = Annotated[
    float,
    typer.Option("--min-relevance", min=0, max=1, metavar="R", help="Minimum relevance of an item."),
]
ScopeOption = Annotated[
    str,
    typer.Option("--scope", metavar="S", help="session, or namespace to include its other sessions."),
]


@define_command("recall", 'acms recall user_123 "what did we choose?" --budget 500 --why')
async def recall_items(
    shell: Shell,
    session: Session,
    query: Query,
    budget: Budget = None,
    why: WhyOption = False,
    full: Full = False,
    at: At = None,
    min_relevance: MinRelevanceOption = 0.0,
    scope: ScopeOption = "session",
    ranking: Ranking = None,
) -> None:
    """Recall the context for a query.

    Prints the items within the token budget, best first. --why adds the ledger: each decision and its rule.
    """
    if not query.strip():
        raise ValidationError(
            "must not be blank",
            field="query",
            options=(shlex.join(["acms", "window", session]) + " shows the newest messages without a query",),
        )
    async with shell.open_view(session, at, ranking) as view:
        items = await view.recall(
            query, token_budget=budget, min_relevance=min_relevance, scope=parse_scope(scope)
        )
    warnings = [*items.ledger.warnings, *_warn_of_small_budget(items)]
    value: dict[str, Any] = {
        "session": session,
        "query": query,
        "version": items.version,
        "budget": items.budget,
        "tokens": items.tokens,
        "confidence": items.confidence,
        "band": items.band,
        "coverage": items.coverage,
        "tier": items.tier,
        "items": [output.item_json(item) for item in items],
        "warnings": warnings,
    }
    verdicts, rejected = _select_verdicts(items)
    sessions: dict[str, str] = {}
    if why:
        sessions = await _find_sessions_of_verdicts(shell, verdicts)
        rows = [{**fields_of(verdict), "session_id": sessions.get(verdict.id)} for verdict in verdicts]
        value |= {"ledger": rows, "left_out": rejected}

    def draw() -> None:
        _draw_ranked(shell, items, full=full, with_session=scope == "namespace")
        _draw_totals(shell, items)
        if why:
            _draw_why(shell, items.ledger, verdicts, rejected, sessions if scope == "namespace" else None)
        output.write_warnings(shell, warnings)

    shell.show(value, draw)


def _warn_of_small_budget(items: ContextItems) -> list[str]:
    """Return a warning with the least useful budget if no relevant message fits."""
    if any(item.content or item.parts for item in items):
        return []
    costs = [
        verdict.tokens
        for verdict in items.ledger
        if verdict.rule in ("budget", "cut") and verdict.relevance > 0
    ]
    if not costs:
        return []
    return [f"nothing fits --budget {items.budget}; the smallest relevant message takes {min(costs)} tokens"]


def _select_verdicts(items: ContextItems) -> tuple[list[Verdict], int]:
    """Return the verdicts that `--why` shows, and the number of all rejected candidates."""
    included = [verdict for verdict in items.ledger if verdict.included]
    rejected = [verdict for verdict in items.ledger if not verdict.included]
    return included + rejected[:LEFT_OUT], len(rejected)


async def _find_sessions_of_verdicts(shell: Shell, verdicts: Sequence[Verdict]) -> dict[str, str]:
    """Return the names of the sessions that verdicts are about, by the id of the entry."""
    names: dict[str, str] = {}
    sessions: dict[str, str] = {}
    async with shell.open_store() as storage:
        for verdict in verdicts:
            location = parse_entry_id(verdict.id)
            if location is None:
                continue
            owner, _ = location
            if owner not in names:
                context = await storage.context(owner)
                names[owner] = context.key or owner
            sessions[verdict.id] = names[owner]
    return sessions


def _draw_ranked(screen: Screen, items: ContextItems, *, full: bool, with_session: bool) -> None:
    ranked = items.best(len(items))
    if not full:
        session = Column("session", "blue", value="session_id")
        columns = (*output.RANKED[:3], session, *output.RANKED[3:]) if with_session else output.RANKED
        screen.list(columns, ranked)
        return
    for item in ranked:
        heading = f"{item.rank}. {item.score:.2f} v{item.version} {item.source} {item.token_count} tokens"
        if with_session:
            heading = f"{heading} {item.session_id}"
        output.write_block(screen, f"{heading} {output.speaker_name(item)}", item.content)


def _draw_why(
    screen: Screen,
    ledger: Ledger,
    verdicts: Sequence[Verdict],
    rejected: int,
    sessions: Mapping[str, str] | None,
) -> None:
    """Write the ledger, with a column for the session if `sessions` names them by entry id."""
    screen.title("Why")
    screen.line(f"{ledger.certainty}")
    columns = output.LEDGER
    if sessions is not None:
        session = Column("session", "blue", value=lambda verdict: sessions.get(verdict.id))
        columns = (*output.LEDGER[:2], session, *output.LEDGER[2:])
    screen.list(columns, verdicts)
    if rejected > LEFT_OUT:
        screen.line(f"{rejected - LEFT_OUT} more were left out", "dim")


def _draw_totals(screen: Screen, items: ContextItems) -> None:
    totals = (
        f"{count_noun(len(items), 'item')}, {items.tokens} of {items.budget} tokens, log at v{items.version}"
    )
    screen.line(totals, "dim")


@define_command("messages", 'acms messages user_123 "write the migration plan" --budget 6000')
async def show_messages(shell: Shell, session: Session, query: Query, budget: RequiredBudget = 4000) -> None:
    """Show the chat messages to send to a model.

    Prints the whole conversation if it fits the budget; otherwise the newest messages and recalled excerpts.
    """
    async with shell.open_session(session) as reader:
        messages = await reader.messages(query, budget=budget)

    def draw() -> None:
        for message in messages:
            _draw_message(shell, message)
        shell.line(count_noun(len(messages), "message"), "dim")

    shell.show({"session": session, "query": query, "budget": budget, "messages": messages}, draw)


def _draw_message(screen: Screen, message: Mapping[str, Any]) -> None:
    speaker = str(message["role"])
    if "name" in message:
        speaker = f"{speaker} ({message['name']})"
    lines: list[str] = []
    if message.get("content"):
        lines.append(str(message["content"]))
    for call in message.get("tool_calls") or ():
        function = call["function"]
        lines.append(f"→ {function['name']}({function['arguments']})")
    output.write_block(screen, speaker, "\n".join(lines))


@define_command("window", "acms window user_123 --budget 8000 --at 12")
async def show_window(
    shell: Shell, session: Session, budget: RequiredBudget = 4000, at: At = None, full: Full = False
) -> None:
    """Show the newest messages that fit a budget.

    Prints them oldest first; a tool call is included with all its results. --at reads an earlier version.
    """
    async with shell.open_view(session, at) as view:
        items = await view.window(budget)
    warnings = [*items.ledger.warnings, *_warn_of_empty_window(items)]
    value = {
        "session": session,
        "version": items.version,
        "budget": items.budget,
        "tokens": items.tokens,
        "items": [output.item_json(item) for item in items],
        "warnings": warnings,
    }

    def draw() -> None:
        if full:
            for item in items:
                heading = f"v{item.version} {item.token_count} tokens {output.speaker_name(item)}"
                output.write_block(shell, heading, item.content)
        else:
            shell.list(output.WINDOWED, items)
        _draw_totals(shell, items)
        output.write_warnings(shell, warnings)

    shell.show(value, draw)


def _warn_of_empty_window(items: ContextItems) -> list[str]:
    """Return a warning with the reason if the budget is too small for any message."""
    verdicts = list(items.ledger)
    if len(items) or not verdicts:
        return []
    newest = verdicts[-1]
    return [
        f"nothing fits --budget {items.budget}: {newest.reason}; the newest message takes {newest.tokens} tokens"
    ]


def _entry_state(entry: HistoryEntry) -> str:
    if entry.state != "live":
        return entry.state
    return "" if entry.in_force else "replaced"


HISTORY = (
    Column("text", wide=True, value="preview"),
    Column("version", "cyan", align_right=True, value=output.format_version),
    Column("role", "yellow"),
    Column("state", value=_entry_state),
    Column("tokens", align_right=True),
    Column("kind", "magenta"),
    Column("time", "dim", value="created_at"),
)


@define_command("history", "acms history user_123 --limit 20 --after 40")
async def list_entries(
    shell: Shell,
    session: Session,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=500, metavar="N", help="Maximum number of entries.")
    ] = 50,
    after: Annotated[
        int,
        typer.Option("--after", parser=parse_version, metavar="VERSION", help="Start after this version."),
    ] = 0,
    at: At = None,
) -> None:
    """List the log, oldest first.

    Prints one page of messages, edits and retractions.
    """
    async with shell.open_view(session, at) as view:
        page = await view.history(limit=limit, after=after)

    def draw() -> None:
        shell.list(HISTORY, page.entries, if_empty=f"no entries after v{after}" if after else "no entries")
        if page.next_after is not None:
            shell.line(f"more: --after {page.next_after}", "dim")

    shell.show({"session": session, "entries": page.entries, "next_after": page.next_after}, draw)
