"""The service about itself: is it there, can it serve, what can it do."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

from acms.errors import ACMSError
from acms.model import Json
from acms.observability.logging import log_event, safe_error
from acms.runtime.version import __version__
from acms.server.metrics import MEDIA
from acms.server.operation import Call, Operations, Reply, Scope

__all__ = ["operations"]

operations = Operations("service")


@operations("GET", "/health", scope=None, rooted=True, reply={"type": "object"})
async def health(call: Call[Any, Any]) -> Reply:
    """Return whether the process runs.

    Nothing else is checked; `/ready` asks the store.
    """
    return Reply(body={"status": "ok"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether the service can serve."""

    status: Literal["ready", "unready"]
    version: str
    #: Of the store, in milliseconds; None when it did not answer.
    latency_ms: float | None
    #: Code of the error.
    error: str | None


@operations(
    "GET",
    "/ready",
    scope=None,
    rooted=True,
    reply=Readiness,
    also={503: "It cannot serve: the store does not answer."},
)
async def ready(call: Call[Any, Any]) -> Reply:
    """Return whether the store answers.

    Use it as a readiness check: the status is 200 or 503. It needs no key.
    """
    answer: dict[str, Json] = {"status": "ready", "version": __version__}
    try:
        seconds = await call.app.measure_store()
    except Exception as error:
        code = error.code if isinstance(error, ACMSError) else "DEADLINE"
        log_event(logging.WARNING, "unready", error=safe_error(error))
        return Reply(body={**answer, "status": "unready", "latencyMs": None, "error": code}, status=503)
    return Reply(body={**answer, "latencyMs": round(1000 * seconds, 3), "error": None})


@operations("GET", "/metrics", scope=Scope.ADMIN, rooted=True, reply={"type": "string"}, media=MEDIA)
async def metrics(call: Call[Any, Any]) -> Reply:
    """Return the metrics in the Prometheus text format.

    They count the requests of this process, of all tenants together, and cover no content. The scope is `admin:config`.
    """
    return Reply(body=await call.app.serialize_metrics(), media=MEDIA)


@operations("GET", "/openapi.json", scope=None, rooted=True, reply={"type": "object"})
async def openapi(call: Call[Any, Any]) -> Reply:
    """Return this document.

    It needs no key. `/docs` shows the same as a page.
    """
    return Reply(body=call.app.describe())
