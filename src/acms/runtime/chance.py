"""The random numbers from which ACMS draws the lengths of its waits."""

from __future__ import annotations

from random import SystemRandom

__all__ = ["chance"]

chance = SystemRandom()
"""The system's generator. Processes that seed `random` equally still wait differently, and their own draws stay as
seeded."""
