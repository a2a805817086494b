"""Events: frozen objects in the past tense, passed to `ACMSConfig.on_event`. Ids and counts only, never message text.

`Reflected` is the exception: it is the trace of a reflection, and holds the proposals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from acms.knowledge import Decision
from acms.prompt_types import Use

__all__ = [
    "Compacted",
    "EpisodeClosed",
    "Event",
    "Ingested",
    "JobFailed",
    "JobFinished",
    "PinsLoaded",
    "PinsSkipped",
    "PinsTruncated",
    "Planned",
    "PromptFailed",
    "PromptRendered",
    "Reflected",
    "Rewritten",
    "ScopeShrunk",
]


UNUSED = Use()
"""Use of tokens in a request whose use is not known."""


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
    """A message was retracted or replaced, or a summary was undone."""

    context_id: str
    version: int
    target_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """A summary replaces a stretch of the log."""

    context_id: str
    version: int
    #: First and last version that the summary replaces.
    first: int
    last: int
    #: Tokens of the active entries.
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflected:
    """Episodes were reflected on: the messages read, the proposals, and their outcomes."""

    context_id: str
    job_id: str
    #: Name of the reflector.
    reflector: str
    #: Ordinals of the episodes, and the versions of the messages that were read.
    episodes: tuple[int, ...]
    turns: tuple[int, ...]
    #: Ids of the active facts that the reflector was shown.
    known: tuple[str, ...]
    #: Every proposal in order, each with its outcome; those that the reflector itself refused at the end.
    decisions: tuple[Decision, ...]
    #: The parts of the answer that could not be read.
    unreadable: tuple[str, ...]
    #: Versions of the first and last entry it appended; None when it appended none.
    versions: tuple[int, int] | None
    #: Seconds of the reflector's call, and of the whole job.
    call_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFinished:
    """A job is done."""

    context_id: str
    job_id: str
    kind: str
    attempt: int
    #: Why it changed nothing, when it did not.
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """An attempt of a job failed."""

    context_id: str
    job_id: str
    kind: str
    attempt: int
    #: The new state of the job: "ready" to be retried, "failed" permanently, or "cancelled".
    state: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PinsLoaded:
    """The pins of a namespace were read for a prompt."""

    namespace: str
    #: Keys shown, in order.
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PinsSkipped:
    """Pins of a namespace are not in a prompt: nothing is stored under their key, or there are too many."""

    namespace: str
    missing: tuple[str, ...]
    #: Beyond `max_pins`.
    beyond: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PinsTruncated:
    """Pins were left out of a prompt or cut because there were too few tokens."""

    namespace: str
    left_out: tuple[str, ...]
    cut: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeShrunk:
    """A part of a prompt was made smaller to fit."""

    render_id: str
    path: str
    priority: int
    strategy: str
    #: Raw tokens of the whole prompt.
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRendered:
    """A prompt was rendered within its budget."""

    render_id: str
    codec: str
    model: str
    budget: int | None
    tokens: int
    upper_bound: int
    messages: int
    #: Scopes that were shrunk, and pieces and messages that were left out.
    steps: int
    left_out: int
    predicted_cached_tokens: int
    seconds: float
    #: How its tokens are used, and their cost in units of uncached input: reads at a tenth.
    use: Use = UNUSED
    paid: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFailed:
    """A prompt could not be rendered."""

    render_id: str
    codec: str
    model: str
    budget: int | None
    #: Code of the error, as on the wire.
    code: str
    seconds: float


Event: TypeAlias = (
    Ingested
    | EpisodeClosed
    | Planned
    | Rewritten
    | Compacted
    | Reflected
    | JobFinished
    | JobFailed
    | PinsLoaded
    | PinsSkipped
    | PinsTruncated
    | ScopeShrunk
    | PromptRendered
    | PromptFailed
)
