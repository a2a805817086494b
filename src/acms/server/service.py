"""The service about itself: is it there, can it serve, what can it do."""

from __future__ import annotations

from typing import Any

from acms.server.operation import Call, Operations, Reply

__all__ = ["operations"]

operations = Operations("service")


@operations("GET", "/health", scope=None, rooted=True, reply={"type": "object"})
async def health(call: Call[Any, Any]) -> Reply:
    """Say that the process runs.

    Nothing else is looked at: `/ready` asks the store.
    """
    return Reply(body={"status": "ok"})


@operations("GET", "/openapi.json", scope=None, rooted=True, reply={"type": "object"})
async def openapi(call: Call[Any, Any]) -> Reply:
    """Return this document."""
    return Reply(body=call.app.document)
