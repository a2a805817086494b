"""Where each command is: only the one that is asked for is loaded, which takes a third of the time of all."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Annotated

import typer

from acms.cli.base import app

EVALUATION = "acms_eval.cli"
"""Comes with the distribution acms-eval, if at all."""

MODULES = {
    "acms.cli.adding": "add replace retract",
    "acms.cli.branching": "at delete diff fork log merge tag",
    "acms.cli.compacting": "compact compactions expand policy undo",
    "acms.cli.demo": "demo",
    "acms.cli.erasing": "erase",
    "acms.cli.eventing": "events webhook",
    "acms.cli.facts": "facts reflect state unstate",
    "acms.cli.gateway": "gateway",
    "acms.cli.granting": "grant grants revoke",
    "acms.cli.importing": "import",
    "acms.cli.jobs": "jobs worker",
    "acms.cli.keys": "audit keys",
    "acms.cli.mcp": "mcp",
    "acms.cli.migrating": "migrate",
    "acms.cli.moving": "backup copy export restore verify witness",
    "acms.cli.pinning": "pin pins unpin",
    "acms.cli.prompting": "prompt",
    "acms.cli.reading": "episodes history messages recall sessions stats window",
    "acms.cli.reindexing": "reindex",
    "acms.cli.rendering": "render",
    "acms.cli.scanning": "scan",
    "acms.cli.serving": "inspect serve",
    EVALUATION: "eval",
}
"""The commands of each module, which importing it registers."""


def load(arguments: Sequence[str] = ()) -> typer.Typer:
    """Return the application with the command that some arguments begin with; with all where they name none."""
    first = arguments[0] if arguments else ""
    for module in [name for name, words in MODULES.items() if first in words.split()] or MODULES:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            if module != EVALUATION:
                raise
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from acms.runtime.version import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _main(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """ACMS: keep every message of an agent, and decide what the model sees."""
