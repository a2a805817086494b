"""Hints that name a command: each of them can be called."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from typer.main import get_command

import acms
from acms.cli.commands import app
from tests.cli.test_cli import run

_PLACEHOLDER = "X"
_COMMAND = re.compile(r"\bacms ((?:[^\s;,()\x60\x27]+ ?)+)")


def find_hints() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of every hint in the code: options of errors, and messages of empty lists."""
    root = Path(acms.__file__).parent
    for file in sorted(root.rglob("*.py")):
        code = file.read_text(encoding="utf-8")
        if "acms " not in code:
            continue
        for node in ast.walk(ast.parse(code)):
            if not isinstance(node, ast.keyword) or node.arg not in ("options", "none"):
                continue
            for text in _iter_texts(node.value):
                if re.search(r"\bacms [a-z]", text):
                    yield f"{file.relative_to(root)}:{node.value.lineno}", text


def _iter_texts(value: ast.AST) -> Iterator[str]:
    """Yield the texts below a node; a placeholder of an f-string is a word."""
    if isinstance(value, ast.JoinedStr):
        parts = [
            part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else _PLACEHOLDER
            for part in value.values
        ]
        yield "".join(parts)
    elif isinstance(value, ast.Constant):
        if isinstance(value.value, str):
            yield value.value
    else:
        for child in ast.iter_child_nodes(value):
            yield from _iter_texts(child)


@cache
def _all_commands() -> Any:
    return get_command(app)


def resolve_command(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that words begin with, and the words after it."""
    command = _all_commands()
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    return command, words


def test_every_hint_that_names_a_command_can_be_called() -> None:
    hints = list(find_hints())
    assert len(hints) > 20
    for place, hint in hints:
        _check_commands(place, hint)


def _check_commands(place: str, hint: str) -> None:
    """Check that each command which a hint names exists, with all options that the hint gives it."""
    for written in _COMMAND.findall(hint):
        command, rest = resolve_command(written.split())
        assert command.name is not None, f"{place}: no command {written!r}"
        known = {"--help"} | {flag for parameter in command.params for flag in parameter.opts}
        known |= {flag for parameter in command.params for flag in parameter.secondary_opts}
        if getattr(command, "commands", None):
            known |= {
                flag for child in command.commands.values() for one in child.params for flag in one.opts
            }
        options = [word.partition("=")[0] for word in rest if word.startswith("--")]
        assert set(options) <= known, f"{place}: {hint}"


def test_every_command_that_the_code_names_exists() -> None:
    """Texts of every kind name commands: errors, notes, ledgers, docstrings, pages of the inspector."""
    root = Path(acms.__file__).parent
    unknown: list[str] = []
    for file in sorted(root.rglob("*")):
        if file.suffix not in (".py", ".html", ".json", ".md"):
            continue
        for word in re.findall(r"(?<![\w.'\"/-])acms ([a-z-]+)", file.read_text(encoding="utf-8")):
            command, _ = resolve_command([word])
            if command.name is None:
                unknown.append(f"{file.relative_to(root)}: acms {word}")
    assert not unknown


def test_a_hint_that_names_a_method_names_the_command_in_a_shell(tmp_path: Path) -> None:
    file = str(tmp_path / "notes.db")
    run("add", "u", "user", "Hello.", "--db", file)
    message = run("add", "u", "user", "We meet on Monday.", "--db", file).stdout.split()[-1]
    run("replace", "u", "v2", "We meet on Tuesday.", "--db", file)
    run("retract", "u", "v2", "--db", file)
    for words, hints in (
        (
            ("undo", "u", "v2"),
            [f"acms retract --db {file} SESSION {message} makes it inactive"],
        ),
        (
            ("replace", "u", "v2", "We meet on Friday."),
            [f"acms undo --db {file} SESSION 4 first", "store the corrected text as a new message"],
        ),
        (
            ("compact", "expand", "u", "v1"),
            [f"acms compact list --db {file} SESSION lists them with the versions of their summaries"],
        ),
    ):
        error = json.loads(run(*words, "--db", file, "--json", code=1).stderr)["error"]
        assert error["options"] == hints


def test_the_hints_for_unknown_ids_are_commands(tmp_path: Path) -> None:
    file = str(tmp_path / "notes.db")
    run("add", "u", "user", "Hello.", "--db", file)
    for words, hint in (
        (("prompt", "log", "u", "nowhere"), f"acms prompt log --db {file} u lists the stored requests"),
        (("events", "webhook", "remove", "nowhere"), f"acms events webhook list --db {file}"),
        (("events", "webhook", "replay", "nowhere"), f"acms events webhook list --db {file}"),
    ):
        error = json.loads(run(*words, "--db", file, "--json", code=1).stderr)["error"]
        assert error["options"] == [hint]
