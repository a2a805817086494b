"""Metrics of the service in the Prometheus format: requests, tokens, prompts, jobs.

No label holds a text of the client: no id, no tenant, no path as it was sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from acms.observability.events import (
    Event,
    Ingested,
    JobFailed,
    JobFinished,
    Planned,
    PromptFailed,
    PromptRendered,
)
from acms.observability.logging import emit_event

__all__ = ["MEDIA", "Metrics"]

MEDIA = CONTENT_TYPE_LATEST
"""Media type of the metrics."""
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SHARES = (0.0, 0.1, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)


def _with_labels(metric: Any, *labels: str) -> Any:
    return metric.labels(*labels)


class Metrics:
    """Counts and times of one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        registry = self.registry
        self._requests = Counter(
            "acms_http_requests",
            "Requests answered.",
            ("operation", "method", "status", "code"),
            registry=registry,
        )
        self._seconds = Histogram(
            "acms_http_request_seconds",
            "Time to answer.",
            ("operation",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._messages = Counter("acms_messages", "Messages stored.", registry=registry)
        self._tokens_asked = Counter(
            "acms_tokens_asked", "Tokens of the budgets that were given.", ("verb",), registry=registry
        )
        self._tokens_used = Counter(
            "acms_tokens_used", "Tokens that were shown within them.", ("verb",), registry=registry
        )
        self._refused = Counter(
            "acms_budget_rejections", "Calls whose budget was too small.", ("code",), registry=registry
        )
        self._share = Histogram(
            "acms_prompt_cached_share",
            "Share of a prompt that the provider's cache is predicted to hold.",
            buckets=_SHARES,
            registry=registry,
        )
        self._parts = Counter(
            "acms_prompt_tokens",
            "Tokens of prompts, by what they are used for.",
            ("part",),
            registry=registry,
        )
        self._jobs = Counter(
            "acms_jobs", "Attempts of jobs that ended.", ("kind", "state"), registry=registry
        )
        self.waiting = Gauge(
            "acms_jobs_waiting", "Jobs that are due or put off, of the open stores.", registry=registry
        )
        #: Returns a metric with its labels; cached, because the look-up costs more than counting.
        self._labeled = cache(_with_labels)

    def count_request(self, operation: str, method: str, status: int, code: str, seconds: float) -> None:
        """Count one answered request, which took `seconds`."""
        method_label = method if method in _METHODS else "other"
        self._labeled(self._requests, operation, method_label, str(status), code).inc()
        self._labeled(self._seconds, operation).observe(seconds)
        if code in ("BUDGET_EXCEEDED", "FIT"):
            self._labeled(self._refused, code).inc()

    def make_listener(self, next_listener: Callable[[Event], Any] | None) -> Callable[[Event], None]:
        """Return a listener that counts an engine's events and passes them on."""

        def count(event: Event) -> None:
            self.count_event(event)
            emit_event(next_listener, event)

        return count

    def count_event(self, event: Event) -> None:
        """Count an event of an engine."""
        match event:
            case Ingested(repeated=False):
                self._messages.inc()
            case Planned():
                self._labeled(self._tokens_asked, event.verb).inc(event.budget)
                self._labeled(self._tokens_used, event.verb).inc(event.used_tokens)
            case PromptRendered():
                self._count_prompt(event)
            case PromptFailed():
                self._labeled(self._tokens_asked, "prompt").inc(event.budget or 0)
            case JobFinished():
                self._count_job(event.kind, "done")
            case JobFailed():
                self._count_job(event.kind, event.state)
            case _:
                pass

    def _count_prompt(self, event: PromptRendered) -> None:
        """Count a rendered prompt: its budget, its tokens by use, and the share predicted to be cached."""
        self._labeled(self._tokens_asked, "prompt").inc(event.budget or 0)
        self._labeled(self._tokens_used, "prompt").inc(event.upper_bound)
        if event.tokens:
            self._share.observe(event.predicted_cached_tokens / event.tokens)
        for part in fields(event.use):
            self._labeled(self._parts, part.name).inc(getattr(event.use, part.name))

    def _count_job(self, kind: str, state: str) -> None:
        self._labeled(self._jobs, kind.partition(":")[0], state).inc()

    def serialize(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self.registry)
