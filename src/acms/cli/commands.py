"""The application with every command."""

from __future__ import annotations

from acms.cli.loading import load

__all__ = ["app"]

app = load()
