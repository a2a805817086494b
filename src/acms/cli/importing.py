"""The command that brings conversations of other programs: import."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from acms.branches import limits
from acms.branches.importers import FORMATS, Conversation, Import, Turn, open_import
from acms.cli.base import Shell, command, contexts, continued, interruptible
from acms.cli.render import Column
from acms.errors import (
    ACMSError,
    EntryNotFoundError,
    GoneError,
    IdempotencyMismatchError,
    ValidationError,
)
from acms.log import validation
from acms.log.in_force import GONE
from acms.model import Origin
from acms.ports import StorageBackend
from acms.results import Synced
from acms.session import ACMS

BATCH = 200
"""Messages that an import stores in one commit."""
BATCH_CHARACTERS = 1_000_000
"""Characters that an import stores in one commit: a batch is held in memory."""
_NO_FOLDERS = frozenset((".git", ".hg", ".svn", ".venv", "node_modules", "__pycache__"))
"""Folders that no program keeps conversations in."""

IMPORTED = (
    Column("session", "cyan", wide=True),
    Column("new", right=True),
    Column("read", right=True),
    Column("changed", right=True, of=lambda one: one["replaced"] + one["retracted"]),
    Column("title", of=lambda one: one["title"][:28]),
)
LEFT_OUT = (Column("file", "cyan"), Column("why", wide=True))


def _format(name: str | None) -> str | None:
    if name is not None and name not in FORMATS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(FORMATS)}")
    return name


def _exists(path: Path) -> Path:
    if path.name != "-" and not path.exists():
        raise typer.BadParameter(f"{str(path)!r} does not exist")
    return path


@command("acms import ~/.claude/projects --namespace agents", name="import", resumes=True)
async def import_(
    shell: Shell,
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", callback=_exists, help="A file, a folder of files, or - for stdin."),
    ],
    session: Annotated[
        str | None, typer.Option("--session", metavar="NAME", help="Where to; default: the file's name.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="NAME", callback=_format, help=f"{', '.join(FORMATS)}; else it is detected."
        ),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Let system and developer messages of the file instruct the model."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and check everything, and store nothing.")
    ] = False,
) -> int:
    """Import transcripts, logs and exports of other programs.

    The format is detected by the content: sessions of coding agents, trajectories, messages and logs of providers and
    frameworks, exports of chat programs. Each conversation becomes a session, each branch of one a fork. A file is
    checked before any of it is stored. Importing it again adds only what is new, and follows what was edited in an
    export; so an import that was interrupted is continued by running it again. Of a folder every file is imported that
    holds conversations, and the summary says what was skipped and why. System and developer messages become external
    text, shown as text of a user, unless --trust says that you know who wrote the file.
    """
    if path.is_dir():
        if session is not None:
            raise typer.BadParameter("names one session, and a folder has many", param_hint="--session")
        return await _import_folder(shell, path, format, trust=trust, dry_run=dry_run)
    with interruptible():
        data = limits.read_within(sys.stdin.buffer, "stdin") if path.name == "-" else None
    path = Path("stdin") if data is not None else path
    opened = open_import(path, format=format, data=data, trust=trust)
    if opened.format == "chat" and session is None and data is not None:
        raise typer.BadParameter("is needed when the messages come from stdin", param_hint="--session")
    survey = _survey(opened)
    if dry_run:
        _show_file(shell, opened, list(_planned(survey, session or path.stem)))
        return 0
    async with shell.opened(write=True) as storage:
        one = _Importer(shell, storage, follows=True)
        await one.load_names()
        done = await one.import_file(opened, survey, session, path.stem, path.name)
        if opened.format == "chat":
            await _show_chat(shell, storage, done[0])
        else:
            _show_file(shell, opened, done)
    return 0


# ── one file ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Plan:
    """A conversation of a file before it is stored, and how many messages it has there."""

    conversation: Conversation
    read: int = 0


def _survey(opened: Import) -> dict[str, _Plan]:
    """Check all messages of a file, holding none; return its conversations by their ids."""
    found: dict[str, _Plan] = {}
    for piece in opened.pieces():
        if opened.whole and piece.id in found:
            raise ValidationError(f"two conversations of the file are named {piece.id!r}", field="session")
        header = Conversation(id=piece.id, title=piece.title, fork=piece.fork)
        found.setdefault(piece.id, _Plan(header)).read += len(piece.messages)
    return found


def _planned(survey: Mapping[str, _Plan], stem: str) -> Iterator[dict[str, Any]]:
    """Yield what a dry run says about each conversation."""
    for plan in survey.values():
        name = plan.conversation.name or stem
        yield _counts(name, plan.conversation.title, plan.read)


def _counts(name: str, title: str, read: int) -> dict[str, Any]:
    return {
        "session": name,
        "title": title,
        "read": read,
        "new": 0,
        "replaced": 0,
        "retracted": 0,
        "erased": 0,
    }


@dataclass(slots=True)
class _Open:
    """A session that is written to, and the messages that wait for their commit."""

    session: ACMS
    counts: dict[str, Any]
    waiting: list[Turn] = field(default_factory=list[Turn])
    characters: int = 0


class _Importer:
    """Stores files in a namespace."""

    def __init__(self, shell: Shell, storage: StorageBackend, *, follows: bool) -> None:
        self._shell = shell
        self._storage = storage
        #: Whether what a file no longer has is retracted.
        self._follows = follows
        self._names: list[str] = []

    async def load_names(self) -> None:
        """Read the names of the sessions that an earlier import may have made."""
        self._names = [one.key async for one in contexts(self._storage, self._shell.namespace) if one.key]

    async def import_file(
        self, opened: Import, survey: Mapping[str, _Plan], session: str | None, stem: str, label: str
    ) -> list[dict[str, Any]]:
        """Store a file that was checked; return what became of each conversation."""
        names = self._name_sessions(survey, session, stem)
        total = sum(plan.read for plan in survey.values())
        sessions: dict[str, _Open] = {}
        done = 0
        async with AsyncExitStack() as stack:
            with self._shell.progress(f"importing {label}") as report:
                for piece in opened.pieces():
                    one = sessions.get(piece.id)
                    if one is None:
                        plan = survey[piece.id]
                        if piece.fork is not None and piece.fork.conversation in sessions:
                            await _flush(sessions[piece.fork.conversation])
                        log = await stack.enter_async_context(await self._open(piece, names))
                        one = _Open(log, _counts(names[piece.id], plan.conversation.title, plan.read))
                        sessions[piece.id] = one
                    await self._take_back(one, piece.taken_back)
                    await self._store(one, piece.messages, whole=opened.whole)
                    done += len(piece.messages)
                    report(done, total)
                for one in sessions.values():
                    await _flush(one)
        self._names += [name for name in names.values() if name not in self._names]
        return [one.counts for one in sessions.values()]

    def _name_sessions(self, survey: Mapping[str, _Plan], session: str | None, stem: str) -> dict[str, str]:
        """Return the session of each conversation: the one that an earlier import made, whatever its title was then."""
        plans = [plan.conversation for plan in survey.values()]
        trunks = [one for one in plans if one.fork is None]
        if session is not None and len(trunks) > 1:
            raise ValidationError(
                f"names one session, and the file holds {len(trunks)} conversations",
                field="session",
                options=("leave it out: each conversation becomes a session",),
            )
        names: dict[str, str] = {}
        for one in sorted(plans, key=lambda one: one.fork is not None):
            if one.fork is not None:
                names[one.id] = f"{names[one.fork.conversation]}-{one.fork.first[:8]}"
            else:
                names[one.id] = session or self._known_name(one) or one.name or stem
            validation.session_name(names[one.id], "session")
        for name, count in Counter(names.values()).items():
            if count > 1:
                raise ValidationError(f"two conversations of the file are named {name!r}", field="session")
        return names

    def _known_name(self, one: Conversation) -> str | None:
        if not one.title:
            return None
        return next((name for name in self._names if name.endswith(f"-{one.ending}")), None)

    async def _open(self, piece: Conversation, names: Mapping[str, str]) -> ACMS:
        """Return the session of a conversation; that of a branch is a fork of another session."""
        name, fork = names[piece.id], piece.fork
        if fork is not None and fork.key is not None and name not in self._names:
            trunk = await continued(self._storage, names[fork.conversation], self._shell.namespace)
            async with trunk:
                shared = await trunk.get(fork.key)
                version = shared.replaces[0][0] if shared.replaces else shared.version
                await (await trunk.fork(version, name)).close()
        return await continued(self._storage, name, self._shell.namespace)

    async def _take_back(self, one: _Open, keys: Sequence[str]) -> None:
        """Retract messages that an earlier import stored."""
        if one.counts["session"] not in self._names:
            return
        for key in keys:
            context = await one.session.context_id()
            try:
                await one.session.get(key)
            except (EntryNotFoundError, GoneError):
                continue
            assert context is not None
            before = (await self._storage.head(context)).version
            one.counts["retracted"] += await one.session.retract(key, reason=GONE) > before

    async def _store(self, one: _Open, turns: Sequence[Turn], *, whole: bool) -> None:
        if whole:
            gone = "retract" if self._follows else "keep"
            _count(one.counts, await one.session.sync(turns, gone=gone))
            return
        for turn in turns:
            if any(turn["key"] == waiting["key"] for waiting in one.waiting):
                await _flush(one)  # the file says it again, or says something else under its key
            one.waiting.append(turn)
            one.characters += len(turn.get("content") or "")
            if len(one.waiting) == BATCH or one.characters >= BATCH_CHARACTERS:
                await _flush(one)


def _count(counts: dict[str, Any], synced: Synced) -> None:
    counts["new"] += len(synced.appended)
    counts["replaced"] += len(synced.replaced)
    counts["retracted"] += len(synced.retracted)
    counts["erased"] += len(synced.erased)


async def _flush(one: _Open) -> None:
    """Store the messages that wait, in one commit; message by message when some of them are known."""
    waiting, one.waiting, one.characters = one.waiting, [], 0
    if not waiting:
        return
    try:
        receipts = await one.session.ingest_many(waiting)
    except IdempotencyMismatchError:
        for turn in waiting:
            await _store_alone(one, turn)
        return
    one.counts["new"] += sum(not receipt.repeated for receipt in receipts)


async def _store_alone(one: _Open, turn: Turn) -> None:
    """Store one message, or the edit of one that says something else than when it was stored."""
    try:
        (receipt,) = await one.session.ingest_many([turn])
    except IdempotencyMismatchError as error:
        stored = await one.session.get(turn["key"])
        says_the_same = stored.content == turn.get("content", "")
        was_external = stored.origin is Origin.EXTERNAL
        if says_the_same and was_external != (turn.get("origin") == Origin.EXTERNAL):
            option = "import it into another session, if it was imported with another --trust before"
            raise IdempotencyMismatchError(str(error), options=(option, *error.options)) from error
        _count(one.counts, await one.session.sync([turn]))
        return
    one.counts["new"] += not receipt.repeated


async def _show_chat(shell: Shell, storage: StorageBackend, counts: Mapping[str, Any]) -> None:
    name, new, read = counts["session"], counts["new"], counts["read"]
    async with await continued(storage, name, shell.namespace) as one:
        stats = await one.get_session_stats()
    value = {"session": name, "read": read, "new": new, "messages": stats.messages, "tokens": stats.tokens}
    message = f"{name}: {new} new of {read} messages; it has {stats.messages:,} ({stats.tokens:,} tokens)"
    shell.show(value, lambda: shell.line(message))


def _show_file(shell: Shell, opened: Import, done: Sequence[dict[str, Any]]) -> None:
    read, new = (sum(one[name] for one in done) for name in ("read", "new"))
    skipped = dict(opened.skipped)

    def draw() -> None:
        shell.list(IMPORTED, done)
        _draw_skipped(shell, skipped)
        shell.line(f"{len(done)} sessions from {opened.format}: {new:,} new of {read:,} messages")

    shell.show(
        {"format": opened.format, "read": read, "new": new, "sessions": done, "skipped": skipped}, draw
    )


def _draw_skipped(shell: Shell, skipped: Mapping[str, int]) -> None:
    for reason, count in sorted(skipped.items()):
        shell.line(f"skipped {count:,} {reason}", "dim")


# ── a folder ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Summary:
    """What became of a folder."""

    files: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    messages: Counter[str] = field(default_factory=Counter[str])
    left_out: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    broken: int = 0

    def add(self, name: str, opened: Import, done: Sequence[dict[str, Any]]) -> None:
        read, new = (sum(one[key] for one in done) for key in ("read", "new"))
        self.files.append({"file": name, "format": opened.format, "read": read, "new": new})
        self.messages += opened.skipped
        for one in done:
            known = self.sessions.setdefault(one["session"], _counts(one["session"], one["title"], 0))
            for key in ("read", "new", "replaced", "retracted", "erased"):
                known[key] += one[key]


async def _import_folder(
    shell: Shell, folder: Path, format: str | None, *, trust: bool, dry_run: bool
) -> int:
    paths = list(_find_files(folder))
    summary = _Summary()

    async with AsyncExitStack() as stack:
        importer = None
        if not dry_run:
            storage = await stack.enter_async_context(shell.opened(write=True))
            importer = _Importer(shell, storage, follows=False)
            await importer.load_names()
        stack.enter_context(shell.progress(f"importing {folder.name}"))
        for number, path in enumerate(paths, 1):
            name = path.relative_to(folder).as_posix()
            known = False
            try:
                opened = open_import(path, format=format, trust=trust, within=folder)
                known = True
                survey = _survey(opened)
                if importer is None:
                    done = list(_planned(survey, _stem(name)))
                else:
                    label = f"{name} ({number} of {len(paths)})"
                    done = await importer.import_file(opened, survey, None, _stem(name), label)
                summary.add(name, opened, done)
            except ACMSError as error:
                summary.broken += known
                summary.left_out.append({"file": name, "why": _reason(error, path.name)})
    _show_folder(shell, summary, dry_run=dry_run)
    return 1 if summary.broken or not summary.files else 0


def _find_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its folders, in the order of their names; links are not followed."""
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _NO_FOLDERS)
        for name in sorted(files):
            path = Path(root) / name
            if path.is_file() and not path.is_symlink():
                yield path


def _stem(name: str) -> str:
    return "-".join(Path(name).with_suffix("").parts).lstrip(".")


def _reason(error: ACMSError, file: str) -> str:
    """Return why a file was left out, without its name, which stands beside it."""
    return str(error).removeprefix(f"{file}: ")


def _show_folder(shell: Shell, summary: _Summary, *, dry_run: bool) -> None:
    read, new = (sum(one[name] for one in summary.files) for name in ("read", "new"))
    sessions = list(summary.sessions.values())

    def draw() -> None:
        shell.list(IMPORTED, sessions)
        _draw_skipped(shell, summary.messages)
        if summary.left_out:
            shell.list(LEFT_OUT, summary.left_out)
        stored = "nothing stored (dry run)" if dry_run else f"{new:,} new"
        shell.line(
            f"{len(summary.files)} files, {len(sessions)} sessions, {read:,} messages: {stored};"
            f" {len(summary.left_out)} files skipped"
        )

    value = {
        "files": summary.files,
        "read": read,
        "new": new,
        "sessions": sessions,
        "skipped": {"files": summary.left_out, "messages": dict(summary.messages)},
        "dry_run": dry_run,
    }
    shell.show(value, draw)
