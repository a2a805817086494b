"""Commands that list, describe and delete sessions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from acms.branches import forks
from acms.branches.forks import COLLECT_AFTER
from acms.cli import output
from acms.cli.base import At, Full, Session, Shell, Yes, create_group, define_command
from acms.cli.output import Column, count_noun
from acms.config import ACMSConfig
from acms.log import policy
from acms.log.active_entries import preview_text
from acms.log.policy import ResolvedPolicy
from acms.ports import StorageBackend
from acms.results import ContextInfo

sessions = create_group("sessions", "List the sessions; show statistics and episodes of one.", default="list")


def _describe_session(session: Mapping[str, Any]) -> str:
    labels = [f"#{label}" for label in session["labels"]]
    return " ".join([session["name"] or "", *labels]).strip()


SESSIONS = (
    Column("session", "cyan", wide=True),
    Column("messages", align_right=True),
    Column("tokens", align_right=True),
    Column("about", value=_describe_session),
    Column("namespace", "magenta"),
    Column("created", "dim", value="created_at"),
    Column("id"),
)
DELETED = Column("deleted", "red", value="deleted_at")
HELD = Column("legal hold", "yellow", value=lambda session: "yes" if session["legal_hold"] else "")


def _parse_filter_value(text: str) -> Any:
    """Return the value of a filter: parsed as JSON if possible, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _parse_filters(options: Sequence[str]) -> dict[str, Any]:
    """Parse `KEY=VALUE` options; labels and names are always text, even if they look like numbers."""
    filters: dict[str, Any] = {}
    labels: list[str] = []
    for option in options:
        key, equals, text = option.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{option!r} is not KEY=VALUE", param_hint="--where")
        if key == "label":
            labels.append(text)
        elif key == "name":
            filters[key] = text
        else:
            filters[key] = _parse_filter_value(text)
    if labels:
        filters["label"] = labels
    return filters


EverywhereOption = Annotated[bool, typer.Option("--all", help="List the sessions of every namespace.")]
WhereOption = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="KEY=VALUE", help="Filter by label, name or metadata; repeatable."),
]
LimitOption = Annotated[
    int, typer.Option("--limit", min=1, max=500, metavar="N", help="Maximum number of sessions.")
]
DeletedOption = Annotated[bool, typer.Option("--deleted", help="List deleted sessions too.")]
AfterOption = Annotated[
    str | None,
    typer.Option("--after", metavar="ID", help="Start after this session: see the end of a page."),
]


@define_command(
    "list", "acms sessions --namespace user:1 --where label=support --where tier=gold", group=sessions
)
async def list_sessions(
    shell: Shell,
    everywhere: EverywhereOption = False,
    where: WhereOption = None,
    deleted: DeletedOption = False,
    limit: LimitOption = 50,
    after: AfterOption = None,
) -> None:
    """List the sessions, newest first.

    Prints one page of the sessions that match every --where.
    """
    filters = _parse_filters(where or ())
    async with shell.open_store() as storage:
        page = await storage.sessions(
            namespace=None if everywhere else shell.namespace,
            where=filters,
            deleted=deleted,
            after=after,
            limit=limit,
        )
        rows = await _session_rows(storage, page.sessions)

    def draw() -> None:
        if_empty = "no sessions like that" if filters else "no sessions"
        if not everywhere:
            if_empty = f"{if_empty} in namespace {shell.namespace!r}; see acms sessions --all"
        is_any_held = any(row["legal_hold"] for row in rows)
        marks = (*([DELETED] if deleted else []), *([HELD] if is_any_held else []))
        columns = (*SESSIONS[:3], *marks, *SESSIONS[3:])
        shell.list(columns, rows, if_empty=if_empty)
        if page.next_after is not None:
            shell.line(f"more: --after {page.next_after}", "dim")

    shell.show({"sessions": rows, "next_after": page.next_after}, draw)


async def _session_rows(storage: StorageBackend, sessions: Sequence[ContextInfo]) -> list[dict[str, Any]]:
    """Return the fields of sessions, with the retention and legal hold of each."""
    retention = ACMSConfig.from_env().retention_seconds
    policies: dict[str, ResolvedPolicy] = {}
    held_ids: set[str] = set()
    for namespace in sorted({session.namespace for session in sessions}):
        policies[namespace] = await policy.resolve_policy(
            storage, namespace=namespace, service_retention=retention
        )
        held_ids |= await policy.find_held_contexts(storage, namespace)
    rows: list[dict[str, Any]] = []
    for session in sessions:
        shared = policies[session.namespace]
        rows.append(_session_json(session, shared, legal_hold=shared.legal_hold or session.id in held_ids))
    return rows


def _session_json(session: ContextInfo, shared: ResolvedPolicy, *, legal_hold: bool) -> dict[str, Any]:
    return {
        "session": session.key,
        "id": session.id,
        "namespace": session.namespace,
        "name": session.name,
        "labels": session.labels,
        "metadata": session.metadata,
        "version": session.latest_version,
        "messages": session.message_count,
        "tokens": session.total_tokens,
        "created_at": session.created_at,
        "deleted_at": session.deleted_at,
        "parent": session.parent_id,
        "retention_seconds": shared.retention_seconds,
        "legal_hold": legal_hold,
    }


@define_command("stats", "acms sessions stats user_123", group=sessions)
async def show_stats(shell: Shell, session: Session, at: At = None) -> None:
    """Show the statistics of a session.

    Counts all entries, and the active ones. The retention and the legal hold are those of now.
    """
    async with shell.open_view(session, at) as view:
        resolved = await view.policy()
        stats = output.to_json_value(await view.get_session_stats())
    stats |= {
        "retention_seconds": resolved.retention_seconds,
        "legal_hold": resolved.legal_hold,
    }
    shell.show_list(stats, STATS, stats.items())


STATS = (
    Column("name", "magenta", value=lambda row: row[0].replace("_", " ")),
    Column("value", value=lambda row: str(row[1]).lower() if isinstance(row[1], bool) else row[1]),
)


EPISODES = (
    Column("summary", wide=True, value=lambda episode: preview_text(episode.summary or "", 160)),
    Column("episode", "cyan", align_right=True, value="ordinal"),
    Column("versions", value=lambda episode: f"v{episode.first}-v{episode.last}"),
    Column("because", "magenta", value=lambda episode: episode.reason or "still open"),
    Column("messages", align_right=True),
    Column("tokens", align_right=True),
    Column("ended", "dim", value=lambda episode: episode.ended_at if episode.status == "closed" else None),
)


@define_command("episodes", "acms sessions episodes user_123", group=sessions)
async def list_episodes(shell: Shell, session: Session, full: Full = False, at: At = None) -> None:
    """List the episodes of a session, oldest first.

    Prints the first and last version of each, the reason why it ended, and its summary after reflection.
    """
    async with shell.open_view(session, at) as view:
        episodes = await view.episodes()

    def draw() -> None:
        shell.list(EPISODES, episodes, if_empty="no episodes yet")
        if not full:
            return
        for episode in episodes:
            if episode.summary is not None:
                output.write_block(shell, f"{episode.ordinal}.", episode.summary)

    shell.show({"session": session, "episodes": episodes}, draw)


VersionOrTag = Annotated[str, typer.Argument(metavar="VERSION|TAG", help="A version or a tag.")]


@define_command("at", "acms sessions at user_123 12", group=sessions)
async def show_version(
    shell: Shell,
    session: Session,
    version: VersionOrTag,
    last: Annotated[
        int, typer.Option("--last", min=0, max=500, metavar="N", help="Number of newest messages.")
    ] = 5,
) -> None:
    """Show a session at an earlier version.

    Prints the counts, tags and newest messages of that version.
    """
    async with shell.open_view(session, version) as view:
        stats = await view.get_session_stats()
        tags = await view.tags()
        entries = await view.entries(newest=last)

    def draw() -> None:
        shell.line(f"{session} at v{stats.version}", "bold cyan")
        derived = f"{count_noun(stats.facts, 'fact')}, {count_noun(stats.summaries, 'summary')}"
        shell.line(f"{count_noun(stats.messages, 'message')}, {count_noun(stats.tokens, 'token')}; {derived}")
        shell.line(
            f"active: {count_noun(stats.active_messages, 'message')}, {count_noun(stats.active_tokens, 'token')}"
        )
        if tags:
            names = ", ".join(f"{name} (v{number})" for name, number in tags.items())
            shell.line(f"tags: {names}")
        shell.list(output.ENTRIES_WITHOUT_TOKENS, entries)

    value = {"session": session, "version": stats.version, "tags": tags, "stats": stats}
    shell.show({**value, "messages": entries}, draw)


@define_command("delete", "acms delete what-if --yes")
async def delete_session(shell: Shell, session: Session, yes: Yes = False) -> None:
    """Delete a session and free its name.

    Forks still read the entries that they share with it. Other entries are deleted after a delay. Use `acms erase` to
    remove content from forks too.
    """
    shell.confirm(f"Delete {session}?", yes)
    async with shell.open_store() as storage:
        context = await shell.find_session(storage, session)
        keeping = await forks.hide_context(storage, context.id)
    collected_from = datetime.now(UTC) + COLLECT_AFTER

    def draw() -> None:
        shell.line(f"{session} is deleted; it is collected from {collected_from:%Y-%m-%d} on")
        for branch in keeping:
            shell.line(f"{branch.session_id} (v{branch.version}) keeps on reading what it shares with it")

    shell.show(
        {"session": session, "id": context.id, "kept_by": keeping, "collected_from": collected_from}, draw
    )
