"""Claude's memory tool (`memory_20250818`) on an ACMS log: files are messages, and every edit of a file is an entry.

    memory = AsyncMemoryTool(ACMS("memory", storage, namespace="user:123"))
    runner = client.beta.messages.tool_runner(model="claude-opus-5-5", max_tokens=2048, tools=[memory], messages=[…])

A path is a view of the log: the message that names it in its metadata, as its newest edit reads. So history, past
versions, undo, erasure and recall work on files too. Answers are worded as the tool's documentation has them.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote

from anthropic.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool, ToolError

from acms.errors import ConflictError, EntryNotFoundError, GoneError, ValidationError
from acms.model import Entry, Raw, Text

__all__ = ["PATH", "AsyncMemoryTool", "MemoryTool"]

ROOT = "/memories"
PATH = "memory_path"
"""Name of the path in the metadata of a file: `recall(…, where={"metadata": {PATH: "/memories/a.md"}})`."""
DEEP = 2
"""Levels of a directory that are listed, and lines that are shown around an edit."""
# What Unicode lets a program ignore when it shows a text, besides what `str.isprintable` refuses.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_FILE = Raw("acms-memory", "{}")
"""Beside the text of a file, so that an empty one can be stored."""


def _normalize_path(path: object) -> str:
    """Return the normal form of a path of the tool; `ToolError` for an invalid one, or one outside the directory.

    Two spellings of a path that look the same are one path (NFC), or one of them is refused.
    """
    normal = unicodedata.normalize("NFC", path.rstrip("/")) if isinstance(path, str) else ""
    if normal != ROOT and not normal.startswith(f"{ROOT}/"):
        raise ToolError(f"Path must start with {ROOT}, got: {path}")
    # The backslash and percent signs could stand for a slash elsewhere.
    names = normal.split("/")[1:]
    if ".." in names or "\\" in normal or unquote(normal) != normal:
        raise ToolError(f"Path {path} would escape {ROOT} directory")
    if "" in names or "." in names:
        raise ToolError(f"Path {path} must be written without // and .")
    for name in names:
        if name != name.strip() or not name.isprintable() or _INVISIBLE.search(name):
            raise ToolError(
                f"Path {path!a} must not contain control characters, invisible characters or spaces around a name"
            )
    return normal


def _get_argument(command: Any, name: str, kind: type, default: Any = None) -> Any:
    """Return an argument of a command; `ToolError` for one that is missing, which the SDK does not check."""
    value = getattr(command, name, None)
    value = default if value is None else value
    if not isinstance(value, kind):
        raise ToolError(
            f"Error: `{name}` is missing" if value is None else f"Error: Invalid `{name}` parameter"
        )
    return value


def _parse_view_range(lines: object, count: int) -> tuple[int, int]:
    """Return the first and the last line to view; `ToolError` for a range outside a file of `count` lines."""
    match lines:
        case None:
            return 1, count
        case [int(first_line), int(last_line)] if 1 <= first_line <= count and (
            last_line == -1 or last_line >= first_line
        ):
            return first_line, count if last_line == -1 else last_line
        case _:
            message = f"{lines}. It should be two of the lines of the file, [1, {count}], or end in -1"
            raise ToolError(f"Error: Invalid `view_range` parameter: {message}")


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _number_lines(lines: Sequence[str], first_line: int, last_line: int) -> str:
    return "\n".join(
        [f"{number:>6}\t{line}" for number, line in enumerate(lines[first_line - 1 : last_line], first_line)]
    )


def _format_directory(path: str, files: Mapping[str, Entry]) -> str:
    """Return the listing of a directory, with sizes; the size of a directory is that of all its contents."""
    sizes = {path: 0}
    for file, entry in sorted(files.items()):
        steps = PurePosixPath(file).relative_to(path).parts
        if any(step.startswith(".") or step == "node_modules" for step in steps):
            continue
        for depth in range(min(len(steps), DEEP) + 1):
            name = "/".join([path, *steps[:depth]]) + ("/" if 0 < depth < len(steps) else "")
            sizes[name] = sizes.get(name, 0) + len(entry.content.encode("utf-8", "surrogatepass"))
    return "\n".join([f"{size / 1024:.1f}K\t{name}" for name, size in sizes.items()])


class _Directory:
    """The commands of the tool on the log of a session, or on a past version of it."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        #: Digest of what this tool last showed of a file, by its path.
        self._shown: dict[str, str] = {}

    async def answer(self, command: Any) -> str:
        """Return the answer to a command; a `ToolError` states why it did nothing."""
        if command.command != "view" and not hasattr(self._memory, "replace"):
            raise ToolError("Error: this is a past version of the memory, it can only be viewed")
        path_argument = "old_path" if command.command == "rename" else "path"
        path = _normalize_path(getattr(command, path_argument, None))
        try:
            return await self._run(command, path)
        except (ConflictError, GoneError, EntryNotFoundError) as error:
            raise self._create_conflict_error(path) from error
        except ValidationError as error:
            raise ToolError(f"Error: {error}") from error

    async def _run(self, command: Any, path: str) -> str:
        """Run a command on a path; return the text that the model reads."""
        # Reads an argument of the command that must be a text.
        text = partial(_get_argument, command, kind=str)
        match command.command:
            case "view":
                return await self._view(path, getattr(command, "view_range", None))
            case "create":
                return await self._create(path, text("file_text"))
            case "str_replace":
                return await self._str_replace(path, text("old_str"), text("new_str", default=""))
            case "insert":
                line = _get_argument(command, "insert_line", int)
                return await self._insert(path, line, text("insert_text"))
            case "delete":
                return await self._delete(path)
            case "rename":
                return await self._rename(path, _normalize_path(getattr(command, "new_path", None)))
            case name:
                raise ToolError(f"Error: unknown command {name}")

    def _create_conflict_error(self, path: str) -> ToolError:
        self._shown.pop(path, None)
        return ToolError(f"Error: {path} was changed since you viewed it. View it again before you edit it.")

    async def _read_files(self, root: str = ROOT) -> dict[str, Entry]:
        """Return the entries of the file at a path, or of the files below it, by path.

        If two callers created a path at the same time, the first entry is the file.
        """
        files: dict[str, Entry] = {}
        for entry in await self._memory.entries():
            path = unicodedata.normalize("NFC", str(entry.metadata.get(PATH, "")))
            if path == root or path.startswith(f"{root}/"):
                files.setdefault(path, entry)
        return files

    async def _view(self, path: str, lines: object) -> str:
        """Return the listing of a directory, or the numbered lines of a file."""
        files = await self._read_files(path)
        if not files and path != ROOT:
            raise ToolError(f"The path {path} does not exist. Please provide a valid path.")
        if path not in files:
            heading = f"Here're the files and directories up to {DEEP} levels deep in {path}"
            return f"{heading}, excluding hidden items and node_modules:\n{_format_directory(path, files)}"
        text = files[path].content
        file_lines = text.split("\n")
        self._shown[path] = _hash_text(text)
        first_line, last_line = _parse_view_range(lines, len(file_lines))
        numbered = _number_lines(file_lines, first_line, last_line)
        return f"Here's the content of {path} with line numbers:\n{numbered}"

    async def _create(self, path: str, text: str, **extra_metadata: str) -> str:
        """Create a file; `ToolError` if there is one, also if another caller created it at the same time.

        Two callers can both find the path free: then the first entry in the log is the file, and the other is
        retracted. `extra_metadata` is stored with the entry.
        """
        await self._require_free_path(path)
        parts = [Text(text), _FILE]
        id = await self._memory.ingest(
            "assistant", parts=parts, actor_id=path, metadata={**extra_metadata, PATH: path}
        )
        if (await self._read_files(path))[path].id != id:
            await self._memory.retract(id, reason="created by two at once")
            raise ToolError(f"Error: File {path} already exists")
        self._shown[path] = _hash_text(text)
        return f"File created successfully at: {path}"

    async def _require_free_path(self, path: str) -> None:
        """Raise `ToolError` for a path at which no file can be made."""
        files = await self._read_files()
        for parent in map(str, PurePosixPath(path).parents):
            if parent in files:
                raise ToolError(f"Error: {parent} is a file, not a directory")
        if path == ROOT or await self._read_files(path):
            raise ToolError(f"Error: File {path} already exists")

    async def _edit(self, path: str, change: Callable[[str], str]) -> list[str]:
        """Replace a file's text by the result of `change`, unless it was changed elsewhere; return its lines."""
        entry = (await self._read_files(path)).get(path)
        if entry is None:
            raise ToolError(f"Error: The path {path} does not exist. Please provide a valid path.")
        # The model edits the text it was shown: refuse if the file was changed since.
        if self._shown.get(path) not in (None, _hash_text(entry.content)):
            raise self._create_conflict_error(path)
        # Edited from the stored text, as `replace` checks its digest.
        stored_text = (await self._memory.get(entry.id)).content  # the model may see a redacted text
        await self._memory.replace(entry.id, change(stored_text), sha256=_hash_text(stored_text))
        text = (await self._read_files(path))[path].content
        self._shown[path] = _hash_text(text)
        return text.split("\n")

    async def _str_replace(self, path: str, old_text: str, new_text: str) -> str:
        """Replace the only occurrence of a text in a file; `ToolError` unless there is exactly one."""
        first_line = 0

        def change(text: str) -> str:
            nonlocal first_line
            pieces = text.split(old_text) if old_text else [text]
            # The line of each occurrence.
            lines = [old_text.join(pieces[:end]).count("\n") + 1 for end in range(1, len(pieces))]
            if len(lines) == 1:
                first_line = lines[0]
                return new_text.join(pieces)
            reason = f", old_str `{old_text}` did not appear verbatim in {path}."
            if lines:
                numbers = ", ".join(map(str, lines))
                occurrences = f"Multiple occurrences of old_str `{old_text}` in lines: {numbers}"
                reason = f". {occurrences}. Please ensure it is unique"
            raise ToolError(f"No replacement was performed{reason}")

        lines = await self._edit(path, change)
        last_line = first_line + new_text.count("\n")
        context = _number_lines(lines, max(1, first_line - DEEP), last_line + DEEP)
        return f"The memory file has been edited.\n{context}"

    async def _insert(self, path: str, line: int, inserted_text: str) -> str:
        """Insert text behind a line of a file; 0 is its beginning."""

        def change(text: str) -> str:
            lines = text.removesuffix("\n").split("\n") if text else []
            if not 0 <= line <= len(lines):
                message = f"{line}. It should be within the range of lines of the file: [0, {len(lines)}]"
                raise ToolError(f"Error: Invalid `insert_line` parameter: {message}")
            return (
                "\n".join([*lines[:line], inserted_text.rstrip("\n"), *lines[line:]]).removesuffix("\n")
                + "\n"
            )

        await self._edit(path, change)
        return f"The file {path} has been edited."

    async def _delete(self, path: str) -> str:
        if path == ROOT:
            raise ToolError(f"Error: Cannot delete the {ROOT} directory itself")
        await self._retract_files(await self._read_files(path), path, "deleted")
        return f"Successfully deleted {path}"

    async def _rename(self, old_path: str, new_path: str) -> str:
        """Move files; each is written at its new path before the old one is retracted, so none is ever missing."""
        moved_files = await self._read_files(old_path)
        if moved_files and new_path.startswith(f"{old_path}/"):
            raise ToolError(f"Error: Cannot move {old_path} into itself")
        if moved_files and (new_path == ROOT or await self._read_files(new_path)):
            raise ToolError(f"Error: The destination {new_path} already exists")
        if moved_files:
            await self._require_free_path(new_path)
        for path, entry in moved_files.items():
            stored_text = (await self._memory.get(entry.id)).content
            await self._create(new_path + path[len(old_path) :], stored_text, renamed_from=entry.id)
        await self._retract_files(moved_files, old_path, "renamed")
        return f"Successfully renamed {old_path} to {new_path}"

    async def _retract_files(self, files: Mapping[str, Entry], path: str, reason: str) -> None:
        """Retract files with all their edits: retracting the first version retracts its edits too."""
        if not files:
            raise ToolError(f"Error: The path {path} does not exist")
        for file, entry in files.items():
            while entry.replaces:
                entry = await self._memory.get(entry.sources[0])
            await self._memory.retract(entry.id, reason=reason)
            self._shown.pop(file, None)


class AsyncMemoryTool(BetaAsyncAbstractMemoryTool):
    """The tool for `AsyncAnthropic`: the files are messages of `memory`, a session of its own that is not compacted.

    `memory` is an `ACMS`, or a view such as `session.at(12)`, which is read-only. Recalls of its namespace find it. A
    file that was changed elsewhere since this tool showed it is not edited: the answer says so.
    """

    def __init__(self, memory: Any, *, cache_control: Any = None) -> None:
        super().__init__(cache_control=cache_control)
        self._directory = _Directory(memory)

    async def _answer(self, command: Any) -> str:
        return await self._directory.answer(command)

    view = create = str_replace = insert = delete = rename = _answer


class _Blocking(NamedTuple):
    """Gives the methods of a blocking session as coroutines, so that `_Directory` serves both kinds of session."""

    memory: Any

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        verb = getattr(self.memory, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return verb(*args, **kwargs)

        return call


class MemoryTool(BetaAbstractMemoryTool):
    """The same for `Anthropic`: `memory` is an `acms.sync.ACMS`, or a view of one."""

    def __init__(self, memory: Any, *, cache_control: Any = None) -> None:
        super().__init__(cache_control=cache_control)
        self._directory = _Directory(_Blocking(memory))

    def _answer(self, command: Any) -> str:
        try:
            self._directory.answer(command).send(None)
        except StopIteration as stop:
            return stop.value
        raise AssertionError("a blocking session never waits")

    view = create = str_replace = insert = delete = rename = _answer
