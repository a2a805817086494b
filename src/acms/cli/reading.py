"""Commands that read a session: recall, messages, window, history, stats, episodes; and the list of sessions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from acms.cli import render
from acms.cli.base import (
    AsJson,
    At,
    Budget,
    Db,
    Full,
    Namespace,
    Needed,
    Query,
    Session,
    app,
    looking,
    opened,
    reading,
    run,
)
from acms.cli.render import Column, Screen
from acms.log.in_force import preview
from acms.results import ContextInfo, ContextItems, Ledger, Verdict

LEFT_OUT = 10
"""Rejected candidates that `recall --why` shows."""


@app.command(epilog='Example:  acms recall user_123 "what did we choose?" --budget 500 --why')
def recall(
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
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show what the model should see for a query.

    Best first, within a token budget. --why adds the ledger: every decision, and by which rule.
    """

    async def work() -> None:
        async with looking(db, namespace, session, at) as view:
            items = await view.recall(query, token_budget=budget, min_relevance=min_relevance, scope=scope)
        ranks = {item.id: rank for rank, item in render.ranked(items)}
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
            "items": [render.item_json(item, ranks[item.id]) for item in items],
            "warnings": items.ledger.warnings,
        }
        verdicts, rejected = _verdicts(items)
        if why:
            value |= {"ledger": verdicts, "left_out": rejected}
        screen = Screen(as_json)

        def draw() -> None:
            _draw_ranked(screen, items, full=full)
            _count(screen, items)
            if why:
                _draw_why(screen, items.ledger, verdicts, rejected)
            render.warn(screen, items.ledger.warnings)

        screen.show(value, draw)

    run(as_json, work())


def _verdicts(items: ContextItems) -> tuple[list[Verdict], int]:
    """Return the verdicts that `--why` shows, and how many candidates were left out altogether."""
    rejected = [verdict for verdict in items.ledger if not verdict.included]
    return [verdict for verdict in items.ledger if verdict.included] + rejected[:LEFT_OUT], len(rejected)


def _draw_ranked(screen: Screen, items: ContextItems, *, full: bool) -> None:
    found = render.ranked(items)
    if not full:
        screen.table(render.RANKED, [render.ranked_row(rank, item) for rank, item in found])
    for rank, item in found if full else ():
        heading = f"{rank}. {item.score:.2f} v{item.version} {item.source} {item.token_count} tokens"
        render.block(screen, f"{heading} {render.speaker(item)}", item.content)


def _draw_why(screen: Screen, ledger: Ledger, verdicts: Sequence[Verdict], rejected: int) -> None:
    screen.title("Why")
    screen.line(f"{ledger.certainty}")
    screen.table(render.LEDGER, [render.verdict_row(verdict) for verdict in verdicts])
    if rejected > LEFT_OUT:
        screen.line(f"{rejected - LEFT_OUT} more were left out", "dim")


def _count(screen: Screen, items: ContextItems) -> None:
    said = f"{len(items)} items, {items.tokens} of {items.budget} tokens, log at v{items.version}"
    screen.line(said, "dim")


@app.command(epilog='Example:  acms messages user_123 "write the migration plan" --budget 6000')
def messages(
    session: Session,
    query: Query,
    budget: Needed = 4000,
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show the chat messages to send to a model.

    The whole conversation when it fits the budget; else the newest messages, and what the past says about the query.
    """

    async def work() -> None:
        async with reading(db, namespace, session) as one:
            found = await one.messages(query, budget=budget)
        screen = Screen(as_json)

        def draw() -> None:
            for message in found:
                who = f"{message['role']} ({message['name']})" if "name" in message else str(message["role"])
                lines = [str(message["content"])] if message.get("content") else []
                for call in message.get("tool_calls") or ():
                    lines.append(f"→ {call['function']['name']}({call['function']['arguments']})")
                render.block(screen, who, "\n".join(lines))
            screen.line(f"{len(found)} messages", "dim")

        screen.show({"session": session, "query": query, "budget": budget, "messages": found}, draw)

    run(as_json, work())


@app.command(epilog="Example:  acms window user_123 --budget 8000 --at 12")
def window(
    session: Session,
    budget: Needed = 4000,
    at: At = None,
    full: Full = False,
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show the newest messages that fit a budget.

    Oldest first; a tool call comes with all its answers. --at shows them as they were at an earlier version.
    """

    async def work() -> None:
        async with looking(db, namespace, session, at) as view:
            items = await view.window(budget)
        value = {
            "session": session,
            "version": items.version,
            "budget": items.budget,
            "tokens": items.tokens,
            "items": [render.item_json(item) for item in items],
            "warnings": items.ledger.warnings,
        }
        screen = Screen(as_json)

        def draw() -> None:
            if full:
                for item in items:
                    heading = f"v{item.version} {item.token_count} tokens {render.speaker(item)}"
                    render.block(screen, heading, item.content)
            else:
                screen.table(render.WINDOWED, [render.windowed_row(item) for item in items])
            _count(screen, items)
            render.warn(screen, items.ledger.warnings)

        screen.show(value, draw)

    run(as_json, work())


@app.command(epilog="Example:  acms history user_123 --limit 20 --after 40")
def history(
    session: Session,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, metavar="N", help="Entries to show.")] = 50,
    after: Annotated[
        int, typer.Option("--after", min=0, metavar="VERSION", help="Start behind this version.")
    ] = 0,
    at: At = None,
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List the log, oldest first.

    Every message, edit and retraction, a page at a time.
    """

    async def work() -> None:
        async with looking(db, namespace, session, at) as view:
            page = await view.history(limit=limit, after=after)
        columns = (
            Column("version", "cyan", right=True),
            Column("kind", "magenta"),
            Column("role", "yellow"),
            Column("tokens", right=True),
            Column("time", "dim"),
            Column("state"),
            Column("text"),
        )
        rows = [
            [
                f"v{entry.version}",
                entry.kind,
                entry.role or "",
                str(entry.tokens),
                f"{entry.created_at:%Y-%m-%d %H:%M}",
                entry.state if entry.state != "live" else "" if entry.in_force else "replaced",
                entry.preview,
            ]
            for entry in page.entries
        ]
        screen = Screen(as_json)

        def draw() -> None:
            screen.table(columns, rows)
            if page.next_after is not None:
                screen.line(f"more: --after {page.next_after}", "dim")

        screen.show({"session": session, "entries": page.entries, "next_after": page.next_after}, draw)

    run(as_json, work())


@app.command(epilog="Example:  acms stats user_123")
def stats(
    session: Session, at: At = None, db: Db = None, namespace: Namespace = "default", as_json: AsJson = False
) -> None:
    """Count what a session holds.

    Everything ever said, and what is in force.
    """

    async def work() -> None:
        async with looking(db, namespace, session, at) as view:
            found = await view.get_session_stats()
        value = render.plain(found)
        screen = Screen(as_json)
        names = Column("name", "magenta"), Column("value")
        rows = [
            [name.replace("_", " "), f"{n:,}" if isinstance(n, int) else str(n or "")]
            for name, n in value.items()
        ]
        screen.show(value, lambda: screen.table(names, rows))

    run(as_json, work())


@app.command(epilog="Example:  acms episodes user_123")
def episodes(
    session: Session,
    full: Full = False,
    at: At = None,
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List the episodes of a session, oldest first.

    Where each begins and ends, why it ended, and what it was about once it was reflected on.
    """

    async def work() -> None:
        async with looking(db, namespace, session, at) as view:
            found = await view.episodes()
        columns = (
            Column("episode", "cyan", right=True),
            Column("versions"),
            Column("messages", right=True),
            Column("tokens", right=True),
            Column("ended", "dim"),
            Column("because", "magenta"),
            Column("summary"),
        )
        screen = Screen(as_json)

        def draw() -> None:
            rows = [
                [
                    str(one.ordinal),
                    f"v{one.first}-v{one.last}",
                    str(one.messages),
                    str(one.tokens),
                    f"{one.ended_at:%Y-%m-%d %H:%M}" if one.status == "closed" else "",
                    one.reason or "still open",
                    preview(one.summary or "", 160),
                ]
                for one in found
            ]
            screen.table(columns, rows)
            for one in found if full else ():
                if one.summary is not None:
                    render.block(screen, f"{one.ordinal}.", one.summary)

        screen.show({"session": session, "episodes": found}, draw)

    run(as_json, work())


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


@app.command(epilog="Example:  acms sessions --namespace user:1 --where label=support --where tier=gold")
def sessions(
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
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List the sessions, newest first.

    A page at a time. Several --where must all hold.
    """
    asked = _filters(where or ())

    async def work() -> None:
        async with opened(db) as storage:
            page = await storage.sessions(
                namespace=None if everywhere else namespace,
                where=asked,
                after=after,
                limit=limit,
            )
        value = {"sessions": [_session_json(one) for one in page.sessions], "next_after": page.next_after}
        screen = Screen(as_json)

        def draw() -> None:
            if page.sessions:
                screen.table(_SESSIONS, [_session_row(one) for one in page.sessions])
            else:
                like = " like that" if asked else ""
                place = "" if everywhere else f" in namespace {namespace!r}; see acms sessions --all"
                screen.line(f"no sessions{like}{place}")
            if page.next_after is not None:
                screen.line(f"more: --after {page.next_after}", "dim")

        screen.show(value, draw)

    run(as_json, work())


_SESSIONS = (
    Column("session", "cyan"),
    Column("namespace", "magenta"),
    Column("messages", right=True),
    Column("tokens", right=True),
    Column("created", "dim"),
    Column("id"),
    Column("about"),
)


def _session_row(one: ContextInfo) -> list[str]:
    return [
        one.key or "",
        one.namespace,
        f"{one.message_count:,}",
        f"{one.total_tokens:,}",
        f"{one.created_at:%Y-%m-%d %H:%M}",
        one.id,
        " ".join([*([one.name] if one.name else []), *(f"#{label}" for label in one.labels)]),
    ]


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
