"""The module of each command. Loading only the requested one takes a third of the time of loading all."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Annotated

import typer

from acms.cli.base import app

EVALUATION = "acms_eval.cli"
"""Module of the distribution acms-eval, which may not be installed."""

MODULES = {
    "acms.cli.adding": "add replace retract",
    "acms.cli.branching": "diff fork log merge tag",
    "acms.cli.compacting": "compact undo",
    "acms.cli.demo": "demo",
    "acms.cli.erasing": "erase",
    "acms.cli.eventing": "events",
    "acms.cli.facts": "facts",
    "acms.cli.gateway": "gateway",
    "acms.cli.granting": "grants",
    "acms.cli.importing": "import",
    "acms.cli.jobs": "jobs worker",
    "acms.cli.keys": "keys",
    "acms.cli.migrating": "migrate",
    "acms.cli.moving": "backup copy export restore verify witness",
    "acms.cli.pinning": "pin",
    "acms.cli.prompting": "prompt",
    "acms.cli.reading": "history messages recall window",
    "acms.cli.reindexing": "reindex",
    "acms.cli.rendering": "render",
    "acms.cli.scanning": "scan",
    "acms.cli.serving": "inspect mcp serve",
    "acms.cli.sessions": "delete sessions",
    EVALUATION: "eval",
}
"""The commands that importing a module registers."""


def load_commands(arguments: Sequence[str] = ()) -> typer.Typer:
    """Return the application with the command that the arguments name, or with all commands."""
    command = arguments[0] if arguments else ""
    requested = [module for module, commands in MODULES.items() if command in commands.split()]
    for module in requested or MODULES:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            if module != EVALUATION:
                raise
    return app


def _print_version(requested: bool) -> None:
    if requested:
        from acms.runtime.version import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root_command(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """ACMS: keep every message of an agent, and decide what the model sees."""
