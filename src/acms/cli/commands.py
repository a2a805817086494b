"""The application with every command."""

from __future__ import annotations

from acms.cli.loading import load_commands

__all__ = ["app"]

app = load_commands()
