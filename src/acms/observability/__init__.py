"""Observability: the events of a session and of a prompt, structured logs, and traces.

`ACMSConfig(on_event=…)` receives the events. Logs use the standard library's `logging` under the name `acms`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from acms.runtime.lazy import lazy_attributes

if TYPE_CHECKING:
    from acms.observability.events import (
        EpisodeClosed,
        Event,
        Ingested,
        JobFailed,
        JobFinished,
        PinsLoaded,
        PinsSkipped,
        PinsTruncated,
        Planned,
        PromptFailed,
        PromptRendered,
        Reflected,
        Rewritten,
        ScopeShrunk,
    )
    from acms.observability.logging import JSONFormatter, correlation

__all__ = [
    "EpisodeClosed",
    "Event",
    "Ingested",
    "JSONFormatter",
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
    "correlation",
]

_LOGGING = ("JSONFormatter", "correlation")

__getattr__, __dir__ = lazy_attributes(
    __name__,
    dict.fromkeys(__all__, "acms.observability.events")
    | dict.fromkeys(_LOGGING, "acms.observability.logging"),
)
