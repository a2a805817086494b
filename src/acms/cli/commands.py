"""Every command: importing one registers it, in the order in which help lists them."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Annotated

import typer

from acms.cli import (
    adding,
    branching,
    compacting,
    demo,
    erasing,
    facts,
    importing,
    jobs,
    keys,
    migrating,
    moving,
    pinning,
    prompting,
    reading,
    reindexing,
    rendering,
    scanning,
    serving,
)
from acms.cli.base import app

__all__ = [
    "adding",
    "app",
    "branching",
    "compacting",
    "demo",
    "erasing",
    "facts",
    "importing",
    "jobs",
    "keys",
    "migrating",
    "moving",
    "pinning",
    "prompting",
    "reading",
    "reindexing",
    "rendering",
    "scanning",
    "serving",
]

with suppress(ModuleNotFoundError):  # `acms eval` comes with the distribution acms-eval
    importlib.import_module("acms_eval.cli")


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
