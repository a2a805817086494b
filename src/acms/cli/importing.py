"""The command that brings conversations of other programs: import."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from acms.branches import limits
from acms.branches.importers import FORMATS, Import, open_import
from acms.branches.importing import Importer, Plan, Stored, survey_import
from acms.cli.base import Shell, command, contexts, continued, interruptible
from acms.cli.render import Column
from acms.errors import ACMSError
from acms.ports import StorageBackend
from acms.session import ACMS

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
    survey = await survey_import(opened)
    if dry_run:
        _show_file(shell, opened, _planned(survey, session or path.stem))
        return 0
    async with shell.opened(write=True) as storage:
        one = await _importer(shell, storage, follows=True)
        with shell.progress(f"importing {path.name}") as report:
            stored = await one.import_file(opened, survey, session, path.stem, report)
        done = [asdict(each) for each in stored]
        if opened.format == "chat":
            await _show_chat(shell, storage, done[0])
        else:
            _show_file(shell, opened, done)
    return 0


# ── one file ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Sessions:
    """The sessions of a namespace, for an import."""

    def __init__(self, storage: StorageBackend, namespace: str) -> None:
        self._storage = storage
        self._namespace = namespace

    @asynccontextmanager
    async def session(self, name: str) -> AsyncGenerator[ACMS]:
        """Open a session by its name."""
        async with await continued(self._storage, name, self._namespace) as one:
            yield one


async def _importer(shell: Shell, storage: StorageBackend, *, follows: bool) -> Importer:
    names = [one.key async for one in contexts(storage, shell.namespace) if one.key]
    return Importer(storage, _Sessions(storage, shell.namespace), names, follows=follows)


def _planned(survey: Mapping[str, Plan], stem: str) -> list[dict[str, Any]]:
    """Return what a dry run says about each conversation."""
    plans = [(plan.conversation, plan.read) for plan in survey.values()]
    return [asdict(Stored(one.name or stem, one.title, read)) for one, read in plans]


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
            known = self.sessions.setdefault(one["session"], asdict(Stored(one["session"], one["title"], 0)))
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
            importer = await _importer(shell, storage, follows=False)
        stack.enter_context(shell.progress(f"importing {folder.name}"))
        for number, path in enumerate(paths, 1):
            name = path.relative_to(folder).as_posix()
            known = False
            try:
                opened = open_import(path, format=format, trust=trust, within=folder)
                known = True
                survey = await survey_import(opened)
                if importer is None:
                    done = _planned(survey, _stem(name))
                else:
                    with shell.progress(f"importing {name} ({number} of {len(paths)})") as report:
                        stored = await importer.import_file(opened, survey, None, _stem(name), report)
                    done = [asdict(one) for one in stored]
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
