"""Events: frozen objects in the past tense, given to `ACMSConfig.on_event`. Ids and counts only, never message text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "Compacted",
    "EpisodeClosed",
    "Event",
    "Ingested",
    "JobFailed",
    "JobFinished",
    "Planned",
    "Rewritten",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """A message is durable."""

    context_id: str
    message_id: str
    version: int
    role: str
    tokens: int
    markers: tuple[str, ...]
    repeated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeClosed:
    """An episode ended."""

    context_id: str
    episode_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A recall, window or prompt was planned."""

    context_id: str
    verb: str
    version: int
    budget: int
    used_tokens: int
    items: int
    omitted: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """Something was put out of force: a message retracted or replaced, a summary undone."""

    context_id: str
    version: int
    target_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """A summary stands for a stretch of the log."""

    context_id: str
    version: int
    #: Versions it stands for.
    first: int
    last: int
    #: Tokens in force.
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinished:
    """A job is done."""

    context_id: str
    job_id: str
    kind: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """An attempt of a job failed."""

    context_id: str
    job_id: str
    kind: str
    attempt: int
    #: What became of the job: "ready" to be tried again, "failed" for good, or "cancelled".
    state: str
    error: str


Event: TypeAlias = Ingested | EpisodeClosed | Planned | Rewritten | Compacted | JobFinished | JobFailed
