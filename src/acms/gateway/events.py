"""Read a stream of server-sent events from a copy of its bytes."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["EventParser"]

_FRAME = re.compile(rb"\r?\n\r?\n")
_DONE = b"[DONE]"


class EventParser:
    """Turns chunks of a stream into the JSON values of its events."""

    def __init__(self) -> None:
        self._incomplete_frame = b""
        #: Whether the stream sent `[DONE]`, its last event.
        self.finished = False

    def feed(self, chunk: bytes) -> list[Any]:
        """Return the parsed data of the server-sent events that a chunk completes."""
        *complete, self._incomplete_frame = _FRAME.split(self._incomplete_frame + chunk)
        events: list[Any] = []
        for frame in complete:
            data = _data_of_frame(frame)
            if data == _DONE:
                self.finished = True
            elif data:
                events.append(json.loads(data))
        return events


def _data_of_frame(frame: bytes) -> bytes:
    """Return the data of a frame; several lines of data are joined."""
    lines = [line[5:].strip() for line in frame.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)
