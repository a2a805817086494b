"""Structured logs through the standard library: silent by default, ids and counts only, never message text.

logging.getLogger("acms").addHandler(handler)      # handler.setFormatter(JSONFormatter())
with correlation("request-17"): ...                # every record inside carries correlation_id="request-17"
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import PurePath
from typing import Any

from acms.errors import ACMSError
from acms.observability.operations import annotate_operation

__all__ = ["JSONFormatter", "correlation", "correlation_id"]

logger = logging.getLogger("acms")
logger.addHandler(logging.NullHandler())

correlation_id: ContextVar[str | None] = ContextVar("acms_correlation_id", default=None)
"""The id that is added to every record of this task, or None."""


@contextmanager
def correlation(id: str) -> Generator[None]:
    """Give every record inside the block a correlation id."""
    token = correlation_id.set(id)
    try:
        yield
    finally:
        correlation_id.reset(token)


def log_event(level: int, name: str, **fields: object) -> None:
    """Write one event by name, its data as fields."""
    if logger.isEnabledFor(level):
        logger.log(level, name, extra={"acms": fields, "correlation_id": correlation_id.get()})


def emit_event(listener: Callable[[Any], object] | None, event: object) -> None:
    """Pass an event to the listener, if any; an error of the listener is logged and has no other effect."""
    annotate_operation(event)
    if listener is None:
        return
    try:
        listener(event)
    except Exception as error:
        log_event(
            logging.WARNING, "on_event_failed", event_type=type(event).__name__, error=safe_error(error)
        )


def safe_error(error: BaseException) -> str:
    """Return the text of an ACMS error; of any other only its class and location, which are safe to store.

    An error of a model's client may quote the conversation, and erased text must not survive in a job or a log.
    """
    if isinstance(error, ACMSError):
        return f"{error.code}: {error}"[:500]
    frames = traceback.extract_tb(error.__traceback__)
    location = f" at {PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{location}"


class JSONFormatter(logging.Formatter):
    """One JSON object per record: time, level, logger, event, correlation_id and the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record as one line of JSON."""
        fields: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        record_id = getattr(record, "correlation_id", None)
        if record_id is not None:
            fields["correlation_id"] = record_id
        fields.update(getattr(record, "acms", {}))
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)
