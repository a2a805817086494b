"""Commands about forks and versions: fork, merge, log, diff, at, tag, delete."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import Annotated, Any

import typer

from acms.branches import forks
from acms.cli import output
from acms.cli.base import (
    At,
    Session,
    Shell,
    build_session,
    define_command,
    find_session,
    resolve_version,
)
from acms.cli.hints import keep_store
from acms.cli.output import Column, Screen
from acms.errors import MergeConflictError, SessionNotFoundError, ValidationError
from acms.log.active_entries import Replacements
from acms.log.encoding import parse_entry_id
from acms.log.settings import read_setting
from acms.model import Kind
from acms.ports import StorageBackend
from acms.results import Branch, Tree
from acms.view import View


@define_command("fork", "acms fork user_123 --at 12 --as what-if")
async def fork_session(
    shell: Shell,
    session: Session,
    at: At = None,
    name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Name of the fork; default: its id.")
    ] = None,
    copies_entries: Annotated[
        bool,
        typer.Option(
            "--copy", help="Copy the entries instead of sharing them: for ancestries that are too deep."
        ),
    ] = False,
) -> None:
    """Create a session from a version of another session.

    The default is the newest version. Entries are shared, not copied, unless --copy is set. Running the same command
    again changes nothing.
    """
    async with shell.open_session(session) as parent:
        version = None
        if at is not None:
            context = await shell.find_session(parent.storage, session)
            version = await resolve_version(parent.storage, context.id, at)
        create = parent.copy if copies_entries else parent.fork
        child = await create(version, name)
        branch = (await child.ancestry())[-1]
        newest_version = (await parent.ancestry())[-1].version
    value = {
        "session": branch.session_id,
        "id": branch.context_id,
        "parent": branch.parent and session,
        "fork": branch.fork,
        "version": branch.version,
    }
    message = f"{branch.session_id} forks {session} at v{branch.fork}"
    if at is None and branch.fork is not None and branch.fork < newest_version:
        message += f": it was created then; {session} is at v{newest_version} now"
    if copies_entries:
        message = f"{branch.session_id} is a copy of {session} up to v{branch.version}"
    shell.show_line(value, message)


class Strategy(StrEnum):
    """How a merge resolves conflicts."""

    REFUSE = "refuse"
    OURS = "ours"
    THEIRS = "theirs"


OtherArgument = Annotated[
    str,
    typer.Argument(metavar="OTHER", help="Branch to merge: a session, SESSION@VERSION or SESSION@TAG."),
]
StrategyOption = Annotated[
    Strategy,
    typer.Option("--strategy", help="Which side wins in conflicts, or refuse."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the changes and write nothing.")]


@define_command("merge", "acms merge user_123 what-if --dry-run")
async def merge_branch(
    shell: Shell,
    session: Session,
    other: OtherArgument,
    strategy: StrategyOption = Strategy.REFUSE,
    dry_run: DryRunOption = False,
) -> None:
    """Merge the changes of another branch into a session.

    Everything is written in one commit, or nothing if there are conflicts. The other branch does not change. `acms
    undo` reverts a merge.
    """
    async with shell.open_session(session) as ours:
        other_view = await _resolve_side(ours.storage, other, shell.namespace, None)
        try:
            merge_result = await ours.merge(other_view, strategy=strategy.value, dry_run=dry_run)
        except MergeConflictError as error:
            retry = f"acms merge {session} {other}"
            raise MergeConflictError(
                str(error),
                conflicts=error.conflicts,
                options=(
                    f"{retry} --dry-run shows all of them",
                    f"{retry} --strategy ours keeps the version of {session}",
                    f"{retry} --strategy theirs takes the version of {other}",
                ),
            ) from error

    def draw() -> None:
        _draw_diff(shell, str(merge_result))
        if merge_result.version is not None:
            undo = keep_store(f"acms undo {session} {merge_result.version}")
            shell.line(f"merged as v{merge_result.version}; {undo} takes it back")
        elif merge_result:
            shell.line("nothing was written")

    shell.show({"merged": merge_result.version is not None, **output.to_json_value(merge_result)}, draw)


_DIFF_STYLES = {"-": "red", "+": "green", "@": "cyan", "!": "yellow"}


def _draw_diff(screen: Screen, text: str) -> None:
    for line in text.splitlines():
        is_heading = line.startswith(("---", "+++"))
        screen.line(line, "bold" if is_heading else _DIFF_STYLES.get(line[0], "dim"))


TAGS = (
    Column("tag", wide=True, value=itemgetter(0)),
    Column("version", "cyan", value=lambda pair: f"v{pair[1]}"),
)


NameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="The tag; without it, all tags are listed.")
]
VersionArgument = Annotated[
    str | None, typer.Argument(metavar="[VERSION]", help="A version or another tag; default: the newest.")
]
DeleteOption = Annotated[bool, typer.Option("--delete", help="Delete the tag.")]
MoveOption = Annotated[bool, typer.Option("--move", help="Move an existing tag.")]


@define_command("tag", "acms tag user_123 before-migration 12")
async def tag_version(
    shell: Shell,
    session: Session,
    name: NameArgument = None,
    version: VersionArgument = None,
    delete: DeleteOption = False,
    move: MoveOption = False,
) -> None:
    """Tag a version of a session, delete a tag, or list the tags.

    A fork inherits the tags of its parent. A tag can be used wherever a version can.
    """
    if delete and (name is None or version is not None or move):
        raise typer.BadParameter("--delete takes a name and nothing else")
    if move and name is None:
        raise typer.BadParameter("--move takes the name of a tag")
    async with shell.open_store() as storage:
        context = await shell.find_session(storage, session)
        if delete:
            await forks.remove_tag(storage, context.id, name or "")
        elif name is not None:
            number = None
            if version is not None:
                number = await resolve_version(storage, context.id, version)
            await forks.tag_version(storage, context.id, name, number, move=move)
        tags = await forks.read_tags(storage, context.id, None)

    def draw() -> None:
        if delete:
            shell.line(f"the tag {name} is deleted")
        elif name is not None:
            shell.line(f"{name} is v{tags[name]}")
        else:
            shell.list(TAGS, tags.items(), if_empty="there are no tags")

    shell.show({"session": session, "tags": tags}, draw)


@define_command("diff", "acms diff user_123@12 what-if")
async def diff_sessions(
    shell: Shell,
    left: Annotated[str, typer.Argument(metavar="A", help="A session, or SESSION@VERSION, or SESSION@TAG.")],
    right: Annotated[
        str | None, typer.Argument(metavar="[B]", help="The other side; default: A now.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="VERSION|TAG", help="Version or tag of A.")
    ] = None,
) -> None:
    """Compare two sessions, or two versions of one.

    Lists the messages, facts and summaries that are active on one side only: - in A, + in B.
    """
    async with shell.open_store() as storage:
        left_view = await _resolve_side(storage, left, shell.namespace, at)
        right_view = await _resolve_side(storage, right or left_view.session_id, shell.namespace, None)
        difference = await left_view.diff(right_view)
    value = {"different": bool(difference), **output.to_json_value(difference)}
    shell.show(value, lambda: _draw_diff(shell, str(difference)))


async def _resolve_side(storage: StorageBackend, text: str, namespace: str, at: str | None) -> View:
    """Return the view that a side of a comparison names.

    A session of that name goes first, because a name may contain an @; otherwise SESSION@VERSION is split.
    """
    name = text
    try:
        context = await find_session(storage, text, namespace)
    except SessionNotFoundError:
        name, _, version_or_tag = text.rpartition("@")
        if not name or not version_or_tag:
            raise
        if at is not None:
            raise ValidationError(f"is given twice: {version_or_tag} and {at}", field="at") from None
        at = version_or_tag
        context = await find_session(storage, name, namespace)
    session = build_session(storage, context, name)
    if at is None:
        return session
    version = await resolve_version(storage, context.id, at)
    return session.at(version)


# ── log ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@define_command("log", "acms log user_123 --graph")
async def show_log(
    shell: Shell,
    session: Session,
    graph: Annotated[bool, typer.Option("--graph", help="Draw the whole fork tree.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=500, metavar="N", help="Number of newest entries.")
    ] = 20,
) -> None:
    """Show the ancestry of a session and its newest entries.

    --graph draws the whole fork tree, with tags and compactions.
    """
    if graph:
        await _show_graph(shell, session)
    else:
        await _show_entries(shell, session, limit)


def _log_preview(row: Mapping[str, Any]) -> str:
    preview: str = row["preview"]
    return preview if row["in_force"] else f"[replaced] {preview}"


LOGGED = (
    Column(
        "text",
        wide=True,
        value=_log_preview,
    ),
    Column("version", "cyan", align_right=True, value=lambda row: f"v{row['version']}"),
    Column("role", "yellow"),
    Column("tags", "green", value=lambda row: ", ".join(row["tags"])),
    Column("session", "magenta", value="branch"),
    Column("kind"),
)


async def _show_entries(shell: Shell, session: str, limit: int) -> None:
    async with shell.open_session(session) as reader:
        ancestry = await reader.ancestry()
        tags = await reader.tags()
        start = max(0, ancestry[-1].version - limit)
        page = await reader.history(after=start, limit=limit)
    names = {branch.context_id: branch.session_id for branch in ancestry}
    tags_by_version: dict[int, list[str]] = {}
    for name, version in tags.items():
        tags_by_version.setdefault(version, []).append(name)
    rows: list[dict[str, Any]] = []
    for entry in page.entries:
        context_and_version = parse_entry_id(entry.id)
        branch = names.get(context_and_version[0], "") if context_and_version else ""
        entry_tags = tags_by_version.get(entry.version, [])
        rows.append({**output.to_json_value(entry), "branch": branch, "tags": entry_tags})

    def draw() -> None:
        for branch in ancestry:
            origin = "" if branch.fork is None else f", from v{branch.fork}"
            shell.line(f"{_describe_branch(branch)}{origin}", "bold")
        shell.list(LOGGED, rows)

    shell.show({"session": session, "ancestry": ancestry, "entries": rows}, draw)


async def _show_graph(shell: Shell, session: str) -> None:
    async with shell.open_store() as storage:
        current = (await shell.find_session(storage, session)).id
        tree = await forks.read_fork_tree(storage, current)
        notes = {branch.context_id: await _read_notes(storage, branch) for _, branch in tree}
    branches: list[dict[str, Any]] = []
    for depth, branch in tree:
        value: dict[str, Any] = {"depth": depth, **output.to_json_value(branch)}
        value["here"] = branch.context_id == current
        value |= output.to_json_value(notes[branch.context_id])
        branches.append(value)

    def draw() -> None:
        console = shell.console
        supports_unicode = console is not None and "utf" in console.encoding.lower()
        for line in draw_tree(tree, notes, current, BOXES if supports_unicode else ASCII):
            shell.line(line)

    shell.show({"session": session, "branches": branches}, draw)


@dataclass(frozen=True, slots=True)
class BranchNotes:
    """The tags and compactions of a branch, without those of its ancestors."""

    tags: Mapping[str, int]
    compactions: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Signs:
    """The characters of a drawn tree."""

    branch: str
    last_branch: str
    line: str
    dash: str
    tag: str
    compaction: str
    current: str


BOXES = Signs("├", "└", "│", "─", "◇", "◆", "←")
ASCII = Signs("|", "`", "|", "-", "#", "*", "<-")


async def _read_notes(storage: StorageBackend, branch: Branch) -> BranchNotes:
    context, deleted = branch.context_id, branch.deleted
    settings = (await storage.context(context)).settings
    tags = {name: tag["version"] for name, tag in read_setting(settings, "tags", {}).items()}
    summaries = await storage.read(context, kinds=(Kind.SUMMARY,), after=branch.fork or 0, deleted=deleted)
    replacing = await storage.read(context, replacing=True, deleted=deleted) if summaries else []
    replacements = Replacements(replacing)
    compactions: list[dict[str, Any]] = []
    for entry in summaries:
        if entry.covers is None or not entry.replaces:
            continue
        first_version, last_version = entry.covers
        is_active = replacements.replaced_by(entry.version) is None
        compactions.append(
            {"version": entry.version, "first": first_version, "last": last_version, "in_force": is_active}
        )
    return BranchNotes(tags, compactions)


def draw_tree(tree: Tree, notes: Mapping[str, BranchNotes], current: str, signs: Signs) -> list[str]:
    """Return the lines of a fork tree: the events of each branch below it, oldest first."""

    def label(branch: Branch) -> str:
        text = _describe_branch(branch)
        return f"{text} {signs.current} here" if branch.context_id == current else text

    lines = [label(tree.branch)]
    open_branches = [(_list_events(tree, notes[tree.branch.context_id], signs), "")]
    while open_branches:  # a loop, because a tree may be deeper than the recursion limit
        events, prefix = open_branches[-1]
        if not events:
            open_branches.pop()
            continue
        event = events.popleft()
        corner = signs.branch if events else signs.last_branch
        if isinstance(event, str):
            lines.append(f"{prefix}{corner} {event}")
            continue
        fork = event.branch
        lines.append(f"{prefix}{corner}{signs.dash} from v{fork.fork}: {label(fork)}")
        line = signs.line if events else " "
        open_branches.append((_list_events(event, notes[fork.context_id], signs), f"{prefix}{line}  "))
    return lines


def _list_events(tree: Tree, notes: BranchNotes, signs: Signs) -> deque[str | Tree]:
    """Return the tags, compactions and forks of a branch, by version."""
    events: list[tuple[int, str | Tree]] = []
    for name, version in notes.tags.items():
        events.append((version, f"{signs.tag} v{version} {name}"))
    for compaction in notes.compactions:
        version, first_version, last_version = compaction["version"], compaction["first"], compaction["last"]
        suffix = "" if compaction["in_force"] else " (not active)"
        events.append(
            (version, f"{signs.compaction} v{version} replaces v{first_version} to v{last_version}{suffix}")
        )
    for fork in tree.forks:
        events.append((fork.branch.fork or 0, fork))
    events.sort(key=itemgetter(0))  # stable: at one version tags come before compactions and forks
    return deque(event for _, event in events)


def _describe_branch(branch: Branch) -> str:
    text = f"{branch.session_id} v{branch.version}"
    return f"{text} (deleted)" if branch.deleted else text
