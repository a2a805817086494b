"""What calls of tools change in files: of each file its path and the lines that were removed and added."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_PATCH_CALL = re.compile(r"^\w+\((\*\*\* Begin Patch\n.*)", re.MULTILINE | re.DOTALL)
_JSON_CALL = re.compile(r"^\w+\((\{.*\})\)$", re.MULTILINE)
_FILE = re.compile(r"^\*\*\* (?:Update|Add|Delete) File: (.+)$", re.MULTILINE)
_PATHS = ("path", "file_path", "filename")
_REMOVED = ("old_string", "old_str")
_ADDED = ("new_string", "new_str", "content", "file_text")


def read_changes(text: str) -> list[str]:
    """Return one line for each file that the calls in a text change."""
    may_have_call = "*** Begin Patch" in text or '"' in text
    if "(" not in text or not may_have_call:
        return []
    changes: list[str] = []
    for patch in _PATCH_CALL.findall(text):
        changes += _changes_of_patch(patch)
    for json_text in _JSON_CALL.findall(text):
        try:
            arguments = json.loads(json_text)
        except (ValueError, RecursionError):
            continue
        changes += _changes_of_call(arguments)
    return list(dict.fromkeys(changes))


def _changes_of_patch(patch: str) -> Iterator[str]:
    """Yield one line for each file of a patch in the format of Codex."""
    _, *paths_and_diffs = _FILE.split(patch)
    paths, diffs = paths_and_diffs[::2], paths_and_diffs[1::2]
    for path, diff in zip(paths, diffs, strict=True):
        yield _format_change(path, _changed_lines(diff))


def _changes_of_call(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each file that a call of an editing tool changes."""
    texts = {name: value for name, value in arguments.items() if isinstance(value, str)}
    for value in texts.values():
        if value.startswith("*** Begin Patch"):
            yield from _changes_of_patch(value)
    path = next((texts[name] for name in _PATHS if name in texts), None)
    if path is None:
        return
    lines = _prefix_lines("-", texts, _REMOVED)
    lines += _prefix_lines("+", texts, _ADDED)
    lines += _changed_lines(texts.get("diff", ""))
    if lines:
        yield _format_change(path, lines)


def _prefix_lines(sign: str, texts: Mapping[str, str], names: tuple[str, ...]) -> list[str]:
    """Return the lines of the named arguments, each with `sign` before it."""
    return [f"{sign}{line}" for name in names for line in texts.get(name, "").splitlines()]


def _changed_lines(diff: str) -> list[str]:
    return [line for line in diff.splitlines() if line.startswith(("-", "+")) and line[1:].strip()]


def _format_change(path: str, lines: list[str]) -> str:
    """Return a change as one line, without indents."""
    joined_lines = " ".join([f"{line[0]}{' '.join(line[1:].split())}" for line in lines])
    # 240 characters are some sixty tokens, a change of two or three lines.
    return f"{path.strip()}: {joined_lines or 'the whole file'}"[:240]
