"""The reference is what the docstrings say."""

from __future__ import annotations

from pathlib import Path

from tests.conventions.reference import DOCS, build_pages

ROOT = Path(__file__).parents[2]


def test_the_reference_is_up_to_date() -> None:
    """Run `python -m tests.conventions.reference` after changing a public docstring."""
    files = [DOCS / "reference.md", *(DOCS / "reference").glob("*.md")]
    stored = {file.relative_to(DOCS).as_posix(): file.read_text(encoding="utf-8") for file in files}
    assert stored == build_pages()


def test_every_command_stands_on_the_command_line_page() -> None:
    from acms.cli.commands import app

    shown = (ROOT / "docs" / "how-to" / "cli.md").read_text(encoding="utf-8")
    names = [
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    ]
    for group in app.registered_groups:
        inner = group.typer_instance
        assert inner is not None
        names += [f"{group.name} {command.name}" for command in inner.registered_commands]
    assert len(names) >= 12
    assert [name for name in names if f"acms {name.rstrip('_')}" not in shown] == []
