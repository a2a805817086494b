"""How long a call waits for vectors that are being made."""

from __future__ import annotations

from contextvars import ContextVar

PATIENCE = 2.0
"""Seconds: enough to load the local model and embed a hundred short messages, or for one call of a remote model."""

patience: ContextVar[float] = ContextVar("acms_patience", default=PATIENCE)
"""Seconds that a recall waits here; callers with less time for an answer set it."""
