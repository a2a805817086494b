"""Chance: where ACMS draws the lengths of its waits from."""

from __future__ import annotations

from random import SystemRandom

__all__ = ["chance"]

chance = SystemRandom()
"""The system's own: processes that seed `random` alike do not wait alike, and what they draw is as they seeded it."""
