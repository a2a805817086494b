"""Commands about forks and versions: fork, merge, log, diff, at, tag, delete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain, repeat
from operator import itemgetter
from typing import Annotated, Any

import typer

from acms.branches import forks
from acms.branches.forks import COLLECT_AFTER
from acms.cli import render
from acms.cli.base import At, Session, Shell, Yes, command, known, opened, over, point
from acms.cli.render import Column, Screen
from acms.errors import MergeConflictError, SessionNotFoundError, ValidationError
from acms.log.encoding import parse_entry_id
from acms.log.in_force import Cover
from acms.log.settings import read_setting
from acms.model import Kind
from acms.ports import StorageBackend
from acms.results import Branch, Tree
from acms.view import View

Place = Annotated[str, typer.Argument(metavar="VERSION|TAG", help="A version, or the name of one.")]


@command("acms fork user_123 --at 12 --as what-if")
async def fork(
    shell: Shell,
    session: Session,
    at: At = None,
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Name of the fork; its id when left out.")
    ] = None,
    whole: Annotated[
        bool,
        typer.Option("--copy", help="Copy everything instead of sharing it: for a line that is too deep."),
    ] = False,
) -> None:
    """Start a new session from a version of another one.

    The newest version when --at is left out. Nothing is copied, unless --copy says so. The same command again
    changes nothing.
    """
    async with shell.reading(session) as one:
        place = None if at is None else point(at)
        child = await (one.copy(place, name) if whole else one.fork(place, name))
        made = (await child.ancestry())[-1]
    value = {
        "session": made.session_id,
        "id": made.context_id,
        "parent": made.parent and session,
        "fork": made.fork,
    }
    told = f"{made.session_id} goes on from v{made.fork} of {session}"
    if whole:
        told = f"{made.session_id} is a copy of {session} up to v{made.version}"
    shell.show({**value, "version": made.version}, lambda: shell.line(told))


class Strategy(StrEnum):
    """What becomes of conflicts."""

    REFUSE = "refuse"
    OURS = "ours"
    THEIRS = "theirs"


@command("acms merge user_123 what-if --dry-run")
async def merge(
    shell: Shell,
    session: Session,
    other: Annotated[
        str,
        typer.Argument(metavar="OTHER", help="What is merged: a session, SESSION@VERSION or SESSION@TAG."),
    ],
    strategy: Annotated[
        Strategy,
        typer.Option("--strategy", help="What becomes of conflicts: whose side has its way in them."),
    ] = Strategy.REFUSE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would come, and write nothing.")
    ] = False,
) -> None:
    """Bring what another branch has changed into a session.

    All of it in one commit, or nothing where both sides changed the same. The other branch stays as it is. acms undo
    takes a merge back.
    """
    async with shell.reading(session) as ours:
        theirs = await _side(ours.storage, other, shell.namespace, None)
        try:
            found = await ours.merge(theirs, strategy=strategy.value, dry_run=dry_run)
        except MergeConflictError as error:
            again = f"acms merge {session} {other}"
            raise MergeConflictError(
                str(error),
                conflicts=error.conflicts,
                options=(
                    f"{again} --dry-run shows all of them",
                    f"{again} --strategy ours keeps what {session} says in them",
                    f"{again} --strategy theirs takes what {other} says in them",
                ),
            ) from error
    styles = {"-": "red", "+": "green", "@": "cyan", "!": "yellow"}

    def draw() -> None:
        for line in str(found).splitlines():
            shell.line(line, "bold" if line[:3] in ("---", "+++") else styles.get(line[0], "dim"))
        if found.version is not None:
            shell.line(f"merged as v{found.version}; acms undo {session} {found.version} takes it back")
        elif found:
            shell.line("nothing was written")

    shell.show({"merged": found.version is not None, **render.plain(found)}, draw)


TAGS = Column("tag", wide=True, of=itemgetter(0)), Column("version", "cyan", of=lambda pair: f"v{pair[1]}")


@command("acms tag user_123 before-migration 12")
async def tag(
    shell: Shell,
    session: Session,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The name; without it the tags are listed.")
    ] = None,
    version: Annotated[
        str | None, typer.Argument(metavar="[VERSION]", help="A version or another tag; default: the newest.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Take the name off its version.")] = False,
    move: Annotated[bool, typer.Option("--move", help="The name may stand for another version.")] = False,
) -> None:
    """Name a version of a session.

    A fork knows the tags of what it inherited. A tag can be used wherever a version can.
    """
    if delete and (name is None or version is not None or move):
        raise typer.BadParameter("--delete takes a name and nothing else")
    async with shell.opened() as storage:
        context = await shell.known(storage, session)
        if delete:
            await forks.remove_tag(storage, context.id, name or "")
        elif name is not None:
            number = None
            if version is not None:
                number = await forks.version_of(storage, context.id, point(version))
            await forks.tag_version(storage, context.id, name, number, move=move)
        found = await forks.read_tags(storage, context.id, None)

    def draw() -> None:
        if delete:
            shell.line(f"{name} is off")
        elif name is not None:
            shell.line(f"{name} is v{found[name]}")
        else:
            shell.list(TAGS, found.items(), none="no version has a name")

    shell.show({"session": session, "tags": found}, draw)


@command("acms at user_123 12")
async def at(
    shell: Shell,
    session: Session,
    place: Place,
    last: Annotated[int, typer.Option("--last", min=0, max=500, metavar="N", help="Messages to show.")] = 5,
) -> None:
    """Show a session as it was at a version.

    Its counts, its tags and its last messages then.
    """
    async with shell.looking(session, place) as view:
        stats, tags = await view.get_session_stats(), await view.tags()
        entries = await view.entries(newest=last)

    def draw() -> None:
        facts = f"{stats.facts} facts, {stats.summaries} summaries"
        shell.line(f"{session} at v{stats.version}", "bold cyan")
        shell.line(f"{stats.messages:,} messages, {stats.tokens:,} tokens; {facts}")
        in_force = f"{stats.active_messages:,} messages, {stats.active_tokens:,} tokens"
        shell.line(f"in force: {in_force}")
        if tags:
            shell.line("tags: " + ", ".join(f"{name} (v{number})" for name, number in tags.items()))
        shell.list(render.ENTRIES[:3], entries)

    value = {"session": session, "version": stats.version, "tags": tags, "stats": stats}
    shell.show({**value, "messages": entries}, draw)


@command("acms diff user_123@12 what-if")
async def diff(
    shell: Shell,
    left: Annotated[str, typer.Argument(metavar="A", help="A session, or SESSION@VERSION, or SESSION@TAG.")],
    right: Annotated[
        str | None, typer.Argument(metavar="[B]", help="The other side; A as it is now when left out.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="VERSION|TAG", help="A as it was at this version.")
    ] = None,
) -> None:
    """Compare two sessions, or two versions of one.

    What is in force in B and not in A, and the other way round. Messages, facts and summaries; - is A, + is B.
    """
    async with shell.opened() as storage:
        before = await _side(storage, left, shell.namespace, at)
        after = await _side(storage, right or before.session_id, shell.namespace, None)
        found = await before.diff(after)
    styles = {"-": "red", "+": "green", "@": "cyan"}

    def draw() -> None:
        for line in str(found).splitlines():
            shell.line(line, "bold" if line[:3] in ("---", "+++") else styles.get(line[0], "dim"))

    shell.show({"different": bool(found), **render.plain(found)}, draw)


async def _side(storage: StorageBackend, text: str, namespace: str, at: str | None) -> View:
    """Return a side of a comparison; the name of a session may itself contain an @."""
    name = text
    try:
        context = await known(storage, text, namespace)
    except SessionNotFoundError:
        name, _, place = text.rpartition("@")
        if not name or not place:
            raise
        if at is not None:
            raise ValidationError(f"is given twice: {place} and {at}", field="at") from None
        at = place
        context = await known(storage, name, namespace)
    one = over(storage, context, name)
    return one if at is None else one.at(await forks.version_of(storage, context.id, point(at)))


@command("acms delete what-if --yes")
async def delete(shell: Shell, session: Session, yes: Yes = False) -> None:
    """Hide a session; its name is free again.

    Forks keep on reading what they share with it. What no fork reads is collected after a while. To take content away
    from forks too, erase it.
    """
    shell.confirm(f"Delete {session}?", yes)
    async with shell.opened() as storage:
        context = await shell.known(storage, session)
        keeping = await forks.hide_context(storage, context.id)
    until = datetime.now(UTC) + COLLECT_AFTER

    def draw() -> None:
        shell.line(f"{session} is deleted; it is collected from {until:%Y-%m-%d} on")
        for branch in keeping:
            shell.line(f"{branch.session_id} (v{branch.version}) keeps on reading what it shares with it")

    shell.show({"session": session, "id": context.id, "kept_by": keeping, "collected_from": until}, draw)


# ── log ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@command("acms log user_123 --graph")
async def log(
    shell: Shell,
    session: Session,
    graph: Annotated[bool, typer.Option("--graph", help="Draw the whole fork tree.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=500, metavar="N", help="Newest entries to show.")
    ] = 20,
) -> None:
    """Show where a session comes from, and its newest entries.

    --graph draws every fork of its tree, with tags and compactions.
    """
    if graph:
        await _graph(shell, shell.db, shell.namespace, session)
    else:
        await _log(shell, session, limit)


LOGGED = (
    Column(
        "text",
        wide=True,
        of=lambda row: row["preview"] if row["in_force"] else f"[replaced] {row['preview']}",
    ),
    Column("version", "cyan", right=True, of=lambda row: f"v{row['version']}"),
    Column("role", "yellow"),
    Column("tags", "green", of=lambda row: ", ".join(row["tags"])),
    Column("session", "magenta", of="branch"),
    Column("kind"),
)


async def _log(shell: Shell, session: str, limit: int) -> None:
    async with shell.reading(session) as one:
        line, tags = await one.ancestry(), await one.tags()
        entries = (await one.history(after=max(0, line[-1].version - limit), limit=limit)).entries
    names = {branch.context_id: branch.session_id for branch in line}
    tagged: dict[int, list[str]] = {}
    for name, version in tags.items():
        tagged.setdefault(version, []).append(name)
    rows: list[dict[str, Any]] = []
    for entry in entries:
        place = parse_entry_id(entry.id)
        owner = names.get(place[0], "") if place else ""
        rows.append({**render.plain(entry), "branch": owner, "tags": tagged.get(entry.version, [])})

    def draw() -> None:
        for branch in line:
            shell.line(
                _called(branch) + (f", from v{branch.fork}" if branch.fork is not None else ""), "bold"
            )
        shell.list(LOGGED, rows)

    shell.show({"session": session, "ancestry": line, "entries": rows}, draw)


async def _graph(screen: Screen, db: str | None, namespace: str, session: str) -> None:
    async with opened(db) as storage:
        here = (await known(storage, session, namespace)).id
        tree = await forks.read_fork_tree(storage, here)
        notes = {branch.context_id: await _notes(storage, branch) for _, branch in tree}
    value = [
        {
            "depth": depth,
            **render.plain(branch),
            "here": branch.context_id == here,
            **render.plain(notes[branch.context_id]),
        }
        for depth, branch in tree
    ]

    def draw() -> None:
        console = screen.console
        signs = BOXES if console is not None and "utf" in console.encoding.lower() else ASCII
        for line in drawn(tree, notes, here, signs):
            screen.line(line)

    screen.show({"session": session, "branches": value}, draw)


@dataclass(frozen=True, slots=True)
class Notes:
    """What a branch has at versions of its own."""

    tags: Mapping[str, int]
    compactions: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Signs:
    """What a tree is drawn with."""

    more: str
    last: str
    line: str
    dash: str
    tag: str
    compaction: str
    here: str


BOXES = Signs("├", "└", "│", "─", "◇", "◆", "←")
ASCII = Signs("|", "`", "|", "-", "#", "*", "<-")


async def _notes(storage: StorageBackend, branch: Branch) -> Notes:
    settings = (await storage.context(branch.context_id)).settings
    tags = {name: tagged["version"] for name, tagged in read_setting(settings, "tags", {}).items()}
    context, deleted = branch.context_id, branch.deleted
    summaries = await storage.read(context, kinds=(Kind.SUMMARY,), after=branch.fork or 0, deleted=deleted)
    cover = Cover(await storage.read(context, replacing=True, deleted=deleted) if summaries else [])
    compactions = [
        {
            "version": entry.version,
            "first": entry.covers[0],
            "last": entry.covers[1],
            "in_force": cover.by(entry.version) is None,
        }
        for entry in summaries
        if entry.covers is not None and entry.replaces
    ]
    return Notes(tags, compactions)


def drawn(tree: Tree, notes: Mapping[str, Notes], here: str, signs: Signs) -> list[str]:
    """Draw a fork tree: under each branch what happened on it, oldest first."""

    def label(branch: Branch) -> str:
        return _called(branch) + (f" {signs.here} here" if branch.context_id == here else "")

    def events(tree: Tree) -> Iterator[tuple[bool, str | Tree]]:
        noted = notes[tree.branch.context_id]
        rows: list[tuple[int, int, str | Tree]] = [
            (version, 0, f"{signs.tag} v{version} {name}") for name, version in noted.tags.items()
        ]
        for one in noted.compactions:
            undone = "" if one["in_force"] else " (out of force)"
            text = (
                f"{signs.compaction} v{one['version']} stands for v{one['first']} to v{one['last']}{undone}"
            )
            rows.append((one["version"], 1, text))
        rows += [(fork.branch.fork or 0, 2, fork) for fork in tree.forks]
        rows.sort(key=lambda row: row[:2])
        return zip(chain(repeat(False, len(rows) - 1), [True]), [row[2] for row in rows], strict=False)

    lines = [label(tree.branch)]
    open_ = [(events(tree), "")]
    while open_:  # no recursion: a tree may be deep
        rest, prefix = open_[-1]
        last, event = next(rest, (True, None))
        corner = signs.last if last else signs.more
        if event is None:
            open_.pop()
        elif isinstance(event, str):
            lines.append(f"{prefix}{corner} {event}")
        else:
            lines.append(f"{prefix}{corner}{signs.dash} from v{event.branch.fork}: {label(event.branch)}")
            open_.append((events(event), prefix + (" " if last else signs.line) + "  "))
    return lines


def _called(branch: Branch) -> str:
    return f"{branch.session_id} v{branch.version}" + (" (deleted)" if branch.deleted else "")
