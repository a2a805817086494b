"""The command that imports conversations of other programs: import."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from acms.branches import limits
from acms.branches.importers import FORMATS, Import, open_import
from acms.branches.importing import Importer, PlannedConversation, StoredConversation, survey_import
from acms.cli.base import Shell, allow_interrupt, define_command, get_or_create_session, iterate_contexts
from acms.cli.output import Column, count_noun
from acms.errors import ACMSError, ValidationError
from acms.ports import StorageBackend
from acms.session import ACMS

_NO_FOLDERS = frozenset((".git", ".hg", ".svn", ".venv", "node_modules", "__pycache__"))
"""Folders that never contain conversations."""

IMPORTED = (
    Column("session", "cyan", wide=True),
    Column("new", align_right=True),
    Column("read", align_right=True),
    Column("changed", align_right=True, value=lambda row: row["replaced"] + row["retracted"]),
    Column("title", value=lambda row: row["title"][:28]),
)
PLANNED = tuple(column for column in IMPORTED if column.name not in ("new", "changed"))
"""The columns of a dry run, which does not look at what is stored."""
LEFT_OUT = (Column("file", "cyan"), Column("why", wide=True))


def _check_format(name: str | None) -> str | None:
    if name is not None and name not in FORMATS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(FORMATS)}")
    return name


def _check_path(path: Path) -> Path:
    if path.name != "-" and not path.exists():
        raise typer.BadParameter(f"{str(path)!r} does not exist")
    return path


PathArgument = Annotated[
    Path,
    typer.Argument(metavar="PATH", callback=_check_path, help="A file, a folder of files, or - for stdin."),
]
SessionOption = Annotated[
    str | None,
    typer.Option("--session", metavar="NAME", help="Session to import into; default: the file name."),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME",
        callback=_check_format,
        help=f"{', '.join(FORMATS)}; default: detected.",
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option("--trust", help="Keep system and developer messages as instructions."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Read and check everything; store nothing.")]


@define_command("import", "acms import ~/.claude/projects --namespace agents", resumes=True)
async def import_transcripts(
    shell: Shell,
    path: PathArgument,
    session: SessionOption = None,
    format: FormatOption = None,
    trust: TrustOption = False,
    dry_run: DryRunOption = False,
) -> None:
    """Import transcripts, logs and exports of other programs.

    The format is detected from the content: sessions of coding agents, trajectories, messages and logs of providers
    and frameworks, exports of chat programs. Each conversation becomes a session, each branch a fork. A file is checked
    before anything is stored. Importing it again adds only new messages and applies the edits of an export, so running
    an interrupted import again continues it. In a folder, every file with conversations is imported; the summary lists
    the skipped files and the reasons. System and developer messages are stored as external text and shown as user text,
    unless --trust is set.
    """
    if path.is_dir():
        if session is not None:
            raise typer.BadParameter("names one session, but a folder has many", param_hint="--session")
        await _import_folder(shell, path, format, trust=trust, dry_run=dry_run)
        return
    with allow_interrupt():
        data = limits.read_within(sys.stdin.buffer, "stdin") if path.name == "-" else None
    if data is not None:
        path = Path("stdin")
    with _path_as_given(path):
        await _import_file(shell, path, data, session, format, trust=trust, dry_run=dry_run)


# ── one file ────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _path_as_given(path: Path) -> Generator[None]:
    """Let errors about a file name its path as the user gave it, not only the name of the file."""
    try:
        yield
    except ValidationError as error:
        if not error.field.startswith(path.name):
            raise
        message = str(error).removeprefix(f"{error.field}: ")
        field = f"{path}{error.field.removeprefix(path.name)}"
        raise type(error)(message, field=field, options=error.options) from error


async def _import_file(
    shell: Shell,
    path: Path,
    data: bytes | None,
    session: str | None,
    format: str | None,
    *,
    trust: bool,
    dry_run: bool,
) -> None:
    """Import a file, or the `data` of stdin."""
    source = open_import(path, format=format, data=data, trust=trust)
    if source.format == "chat" and session is None and data is not None:
        raise typer.BadParameter("is needed when the messages come from stdin", param_hint="--session")
    plans = await survey_import(source)
    if dry_run:
        _show_file(shell, source, _planned_json(plans, session or path.stem), dry_run=True)
        return
    async with shell.open_store(write=True) as storage:
        importer = await _create_importer(shell, storage, follows=True)
        with shell.progress(f"importing {path.name}") as report:
            results = await importer.import_file(source, plans, session, path.stem, report)
        sessions = [asdict(result) for result in results]
        if source.format == "chat":
            await _show_chat(shell, storage, sessions[0], source.skipped)
        else:
            _show_file(shell, source, sessions)


class _Sessions:
    """Opens the sessions of a namespace for an importer."""

    def __init__(self, storage: StorageBackend, namespace: str) -> None:
        self._storage = storage
        self._namespace = namespace

    @asynccontextmanager
    async def session(self, name: str) -> AsyncGenerator[ACMS]:
        """Open a session by its name."""
        async with await get_or_create_session(self._storage, name, self._namespace) as session:
            yield session


async def _create_importer(shell: Shell, storage: StorageBackend, *, follows: bool) -> Importer:
    contexts = [context async for context in iterate_contexts(storage, shell.namespace)]
    names = [context.key for context in contexts if context.key]
    return Importer(storage, _Sessions(storage, shell.namespace), names, follows=follows)


def _planned_json(plans: Mapping[str, PlannedConversation], stem: str) -> list[dict[str, Any]]:
    """Return the sessions that a dry run would write."""
    sessions: list[dict[str, Any]] = []
    for plan in plans.values():
        name = plan.conversation.name or stem
        sessions.append(asdict(StoredConversation(name, plan.conversation.title, plan.read)))
    return sessions


async def _show_chat(
    shell: Shell, storage: StorageBackend, counts: Mapping[str, Any], skipped: Mapping[str, int]
) -> None:
    name, new_count, read_count = counts["session"], counts["new"], counts["read"]
    async with await get_or_create_session(storage, name, shell.namespace) as session:
        stats = await session.get_session_stats()
    value = {
        "session": name,
        "read": read_count,
        "new": new_count,
        "messages": stats.messages,
        "tokens": stats.tokens,
        "skipped": dict(skipped),
    }
    stored = f"{new_count} new of {count_noun(read_count, 'message')}"
    message = f"{name}: {stored}; it has {stats.messages:,} ({stats.tokens:,} tokens)"
    for reason, count in skipped.items():
        message += f"; skipped {count:,} {reason}"
    shell.show_line(value, message)


def _show_file(
    shell: Shell, source: Import, sessions: Sequence[dict[str, Any]], *, dry_run: bool = False
) -> None:
    read_count = _sum_field(sessions, "read")
    new_count = _sum_field(sessions, "new")
    skipped = dict(source.skipped)

    def draw() -> None:
        shell.list(PLANNED if dry_run else IMPORTED, sessions)
        _draw_skipped(shell, skipped)
        counts = f"{count_noun(read_count, 'message')}, nothing stored (dry run)"
        if not dry_run:
            counts = f"{new_count:,} new of {count_noun(read_count, 'message')}"
        shell.line(f"{count_noun(len(sessions), 'session')} from {source.format}: {counts}")

    value = {
        "format": source.format,
        "read": read_count,
        "new": new_count,
        "sessions": sessions,
        "skipped": skipped,
        "dry_run": dry_run,
    }
    shell.show(value, draw)


def _sum_field(rows: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(row[name] for row in rows)


def _draw_skipped(shell: Shell, skipped: Mapping[str, int]) -> None:
    for reason, count in sorted(skipped.items()):
        shell.line(f"skipped {count:,} {reason}", "dim")


# ── a folder ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Summary:
    """The result of importing a folder."""

    files: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    skipped_messages: Counter[str] = field(default_factory=Counter[str])
    skipped_files: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    #: Files in a known format that could not be imported.
    failures: int = 0

    def add(self, name: str, source: Import, sessions: Sequence[dict[str, Any]]) -> None:
        """Add a file and its sessions; a session may have messages from several files."""
        read_count = _sum_field(sessions, "read")
        new_count = _sum_field(sessions, "new")
        self.files.append({"file": name, "format": source.format, "read": read_count, "new": new_count})
        self.skipped_messages += source.skipped
        for session in sessions:
            empty_counts = asdict(StoredConversation(session["session"], session["title"], 0))
            session_counts = self.sessions.setdefault(session["session"], empty_counts)
            for key in ("read", "new", "replaced", "retracted", "erased"):
                session_counts[key] += session[key]


async def _import_folder(
    shell: Shell, folder: Path, format: str | None, *, trust: bool, dry_run: bool
) -> None:
    paths = list(_find_files(folder))
    if not paths:
        raise ValidationError(
            "has no files", field=str(folder), options=("acms import --help names the formats",)
        )
    summary = _Summary()
    async with AsyncExitStack() as stack:
        importer = None
        if not dry_run:
            storage = await stack.enter_async_context(shell.open_store(write=True))
            importer = await _create_importer(shell, storage, follows=False)
        stack.enter_context(shell.progress(f"importing {folder.name}"))
        for number, path in enumerate(paths, 1):
            name = path.relative_to(folder).as_posix()
            task = f"importing {name} ({number} of {len(paths)})"
            source = None
            try:
                source = open_import(path, format=format, trust=trust, within=folder)
                sessions = await _import_one(shell, importer, source, _session_stem(name), task)
                summary.add(name, source, sessions)
            except ACMSError as error:
                summary.failures += source is not None
                reason = str(error).removeprefix(f"{path.name}: ")
                summary.skipped_files.append({"file": name, "why": reason})
    _show_folder(shell, summary, dry_run=dry_run)
    if summary.failures:
        raise ValidationError(
            f"{count_noun(summary.failures, 'file')} could not be imported: the summary has the reasons",
            field=str(folder),
        )
    if not summary.files:
        raise ValidationError(
            "has no file with conversations",
            field=str(folder),
            options=("acms import --help names the formats",),
        )


async def _import_one(
    shell: Shell, importer: Importer | None, source: Import, stem: str, task: str
) -> list[dict[str, Any]]:
    """Import a file of a folder, or only plan it without an importer."""
    plans = await survey_import(source)
    if importer is None:
        return _planned_json(plans, stem)
    with shell.progress(task) as report:
        results = await importer.import_file(source, plans, None, stem, report)
    return [asdict(result) for result in results]


def _find_files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, sorted by name; symbolic links are not followed."""
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _NO_FOLDERS)
        for name in sorted(files):
            path = Path(root) / name
            if path.is_file() and not path.is_symlink():
                yield path


def _session_stem(name: str) -> str:
    return "-".join(Path(name).with_suffix("").parts).lstrip(".")


def _show_folder(shell: Shell, summary: _Summary, *, dry_run: bool) -> None:
    read_count = _sum_field(summary.files, "read")
    new_count = _sum_field(summary.files, "new")
    sessions = list(summary.sessions.values())

    def draw() -> None:
        shell.list(PLANNED if dry_run else IMPORTED, sessions, if_empty="no conversations")
        _draw_skipped(shell, summary.skipped_messages)
        if summary.skipped_files:
            shell.list(LEFT_OUT, summary.skipped_files)
        outcome = "nothing stored (dry run)" if dry_run else f"{new_count:,} new"
        shell.line(
            f"{count_noun(len(summary.files), 'file')}, {count_noun(len(sessions), 'session')}, "
            f"{count_noun(read_count, 'message')}: {outcome}; {count_noun(len(summary.skipped_files), 'file')} skipped"
        )

    value = {
        "files": summary.files,
        "read": read_count,
        "new": new_count,
        "sessions": sessions,
        "skipped": {"files": summary.skipped_files, "messages": dict(summary.skipped_messages)},
        "dry_run": dry_run,
    }
    shell.show(value, draw)
