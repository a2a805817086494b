"""Commands that read a session: recall, messages, window, history, stats, episodes; and the list of sessions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import itemgetter
from typing import Annotated, Any

import typer

from acms.cli import render
from acms.cli.base import At, Budget, Full, Needed, Query, Ranking, Session, Shell, command
from acms.cli.render import Column, Screen
from acms.log.in_force import preview_text
from acms.results import ContextInfo, ContextItems, Ledger, Verdict

LEFT_OUT = 10
"""Rejected candidates that `recall --why` shows."""


@command('acms recall user_123 "what did we choose?" --budget 500 --why')
async def recall(
    shell: Shell,
    session: Session,
    query: Query,
    budget: Budget = None,
    why: Annotated[
        bool, typer.Option("--why", help="Add every decision, and the best that was left out.")
    ] = False,
    full: Full = False,
    at: At = None,
    min_relevance: Annotated[
        float,
        typer.Option("--min-relevance", min=0, max=1, metavar="R", help="Leave out what answers less well."),
    ] = 0.0,
    scope: Annotated[
        str,
        typer.Option("--scope", metavar="S", help="session, or namespace: ask its other sessions too."),
    ] = "session",
    ranking: Ranking = None,
) -> None:
    """Show what the model should see for a query.

    Best first, within a token budget. --why adds the ledger: every decision, and by which rule.
    """
    async with shell.looking(session, at, ranking) as view:
        items = await view.recall(query, token_budget=budget, min_relevance=min_relevance, scope=scope)
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
        "items": [render.item_json(item) for item in items],
        "warnings": items.ledger.warnings,
    }
    verdicts, rejected = _verdicts(items)
    if why:
        value |= {"ledger": verdicts, "left_out": rejected}

    def draw() -> None:
        _draw_ranked(shell, items, full=full)
        _count(shell, items)
        if why:
            _draw_why(shell, items.ledger, verdicts, rejected)
        render.warn(shell, items.ledger.warnings)

    shell.show(value, draw)


def _verdicts(items: ContextItems) -> tuple[list[Verdict], int]:
    """Return the verdicts that `--why` shows, and how many candidates were left out altogether."""
    rejected = [verdict for verdict in items.ledger if not verdict.included]
    return [verdict for verdict in items.ledger if verdict.included] + rejected[:LEFT_OUT], len(rejected)


def _draw_ranked(screen: Screen, items: ContextItems, *, full: bool) -> None:
    found = items.best(len(items))
    if not full:
        screen.list(render.RANKED, found)
    for item in found if full else ():
        heading = f"{item.rank}. {item.score:.2f} v{item.version} {item.source} {item.token_count} tokens"
        render.block(screen, f"{heading} {render.speaker(item)}", item.content)


def _draw_why(screen: Screen, ledger: Ledger, verdicts: Sequence[Verdict], rejected: int) -> None:
    screen.title("Why")
    screen.line(f"{ledger.certainty}")
    screen.list(render.LEDGER, verdicts)
    if rejected > LEFT_OUT:
        screen.line(f"{rejected - LEFT_OUT} more were left out", "dim")


def _count(screen: Screen, items: ContextItems) -> None:
    said = f"{len(items)} items, {items.tokens} of {items.budget} tokens, log at v{items.version}"
    screen.line(said, "dim")


@command('acms messages user_123 "write the migration plan" --budget 6000')
async def messages(shell: Shell, session: Session, query: Query, budget: Needed = 4000) -> None:
    """Show the chat messages to send to a model.

    The whole conversation when it fits the budget; else the newest messages, and what the past says about the query.
    """
    async with shell.reading(session) as one:
        found = await one.messages(query, budget=budget)

    def draw() -> None:
        for message in found:
            who = f"{message['role']} ({message['name']})" if "name" in message else str(message["role"])
            lines = [str(message["content"])] if message.get("content") else []
            for call in message.get("tool_calls") or ():
                lines.append(f"→ {call['function']['name']}({call['function']['arguments']})")
            render.block(shell, who, "\n".join(lines))
        shell.line(f"{len(found)} messages", "dim")

    shell.show({"session": session, "query": query, "budget": budget, "messages": found}, draw)


@command("acms window user_123 --budget 8000 --at 12")
async def window(
    shell: Shell, session: Session, budget: Needed = 4000, at: At = None, full: Full = False
) -> None:
    """Show the newest messages that fit a budget.

    Oldest first; a tool call comes with all its answers. --at shows them as they were at an earlier version.
    """
    async with shell.looking(session, at) as view:
        items = await view.window(budget)
    value = {
        "session": session,
        "version": items.version,
        "budget": items.budget,
        "tokens": items.tokens,
        "items": [render.item_json(item) for item in items],
        "warnings": items.ledger.warnings,
    }

    def draw() -> None:
        if full:
            for item in items:
                heading = f"v{item.version} {item.token_count} tokens {render.speaker(item)}"
                render.block(shell, heading, item.content)
        else:
            shell.list(render.WINDOWED, items)
        _count(shell, items)
        render.warn(shell, items.ledger.warnings)

    shell.show(value, draw)


HISTORY = (
    Column("text", wide=True, of="preview"),
    Column("version", "cyan", right=True, of=render.version),
    Column("role", "yellow"),
    Column("state", of=lambda one: one.state if one.state != "live" else "" if one.in_force else "replaced"),
    Column("tokens", right=True),
    Column("kind", "magenta"),
    Column("time", "dim", of="created_at"),
)


@command("acms history user_123 --limit 20 --after 40")
async def history(
    shell: Shell,
    session: Session,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, metavar="N", help="Entries to show.")] = 50,
    after: Annotated[
        int, typer.Option("--after", min=0, metavar="VERSION", help="Start behind this version.")
    ] = 0,
    at: At = None,
) -> None:
    """List the log, oldest first.

    Every message, edit and retraction, a page at a time.
    """
    async with shell.looking(session, at) as view:
        page = await view.history(limit=limit, after=after)

    def draw() -> None:
        shell.list(HISTORY, page.entries)
        if page.next_after is not None:
            shell.line(f"more: --after {page.next_after}", "dim")

    shell.show({"session": session, "entries": page.entries, "next_after": page.next_after}, draw)


@command("acms stats user_123")
async def stats(shell: Shell, session: Session, at: At = None) -> None:
    """Count what a session holds.

    Everything ever said, and what is in force.
    """
    async with shell.looking(session, at) as view:
        found = await view.get_session_stats()
    value = render.plain(found)
    names = (
        Column("name", "magenta", of=lambda pair: pair[0].replace("_", " ")),
        Column("value", of=itemgetter(1)),
    )
    shell.show(value, lambda: shell.list(names, value.items()))


EPISODES = (
    Column("summary", wide=True, of=lambda one: preview_text(one.summary or "", 160)),
    Column("episode", "cyan", right=True, of="ordinal"),
    Column("versions", of=lambda one: f"v{one.first}-v{one.last}"),
    Column("because", "magenta", of=lambda one: one.reason or "still open"),
    Column("messages", right=True),
    Column("tokens", right=True),
    Column("ended", "dim", of=lambda one: one.ended_at if one.status == "closed" else None),
)


@command("acms episodes user_123")
async def episodes(shell: Shell, session: Session, full: Full = False, at: At = None) -> None:
    """List the episodes of a session, oldest first.

    Where each begins and ends, why it ended, and what it was about once it was reflected on.
    """
    async with shell.looking(session, at) as view:
        found = await view.episodes()

    def draw() -> None:
        shell.list(EPISODES, found, none="no episodes yet")
        for one in found if full else ():
            if one.summary is not None:
                render.block(shell, f"{one.ordinal}.", one.summary)

    shell.show({"session": session, "episodes": found}, draw)


SESSIONS = (
    Column("session", "cyan", wide=True, of="key"),
    Column("messages", right=True, of="message_count"),
    Column("tokens", right=True, of="total_tokens"),
    Column(
        "about", of=lambda one: " ".join([one.name or "", *(f"#{label}" for label in one.labels)]).strip()
    ),
    Column("namespace", "magenta"),
    Column("created", "dim", of="created_at"),
    Column("id"),
)


def _value(text: str) -> Any:
    """Return what a filter asks for: a JSON value where it is one, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _filters(given: Sequence[str]) -> dict[str, Any]:
    """Return the filters of `KEY=VALUE` options; labels and names are texts, also those that look like numbers."""
    found: dict[str, Any] = {}
    labels: list[str] = []
    for one in given:
        key, equals, text = one.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{one!r} is not KEY=VALUE", param_hint="--where")
        if key == "label":
            labels.append(text)
        else:
            found[key] = text if key == "name" else _value(text)
    return found | ({"label": labels} if labels else {})


@command("acms sessions --namespace user:1 --where label=support --where tier=gold")
async def sessions(
    shell: Shell,
    everywhere: Annotated[bool, typer.Option("--all", help="Of every namespace.")] = False,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where", metavar="KEY=VALUE", help="Only with this label, name or metadata; repeatable."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=500, metavar="N", help="Sessions to show.")
    ] = 50,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="ID", help="Start behind this one: see the end of a page."),
    ] = None,
) -> None:
    """List the sessions, newest first.

    A page at a time. Several --where must all hold.
    """
    asked = _filters(where or ())
    async with shell.opened() as storage:
        page = await storage.sessions(
            namespace=None if everywhere else shell.namespace, where=asked, after=after, limit=limit
        )

    def draw() -> None:
        like = " like that" if asked else ""
        place = "" if everywhere else f" in namespace {shell.namespace!r}; see acms sessions --all"
        shell.list(SESSIONS, page.sessions, none=f"no sessions{like}{place}")
        if page.next_after is not None:
            shell.line(f"more: --after {page.next_after}", "dim")

    shell.show(
        {"sessions": [_session_json(one) for one in page.sessions], "next_after": page.next_after}, draw
    )


def _session_json(one: ContextInfo) -> dict[str, Any]:
    return {
        "session": one.key,
        "id": one.id,
        "namespace": one.namespace,
        "name": one.name,
        "labels": one.labels,
        "metadata": one.metadata,
        "version": one.latest_version,
        "messages": one.message_count,
        "tokens": one.total_tokens,
        "created_at": one.created_at,
        "parent": one.parent_id,
    }
