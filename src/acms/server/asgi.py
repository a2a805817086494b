"""The types of ASGI 3 (asgi.readthedocs.io), as far as the service speaks it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

__all__ = ["Message", "Receive", "Scope", "Send"]

Message: TypeAlias = MutableMapping[str, Any]
"""One event: a piece of a body, the start of an answer, the end of a connection."""
Scope: TypeAlias = MutableMapping[str, Any]
"""What a connection is about: method, path, header fields."""
Receive: TypeAlias = Callable[[], Awaitable[Message]]
"""Waits for the next event of a client."""
Send: TypeAlias = Callable[[Message], Awaitable[None]]
"""Gives an event to the client."""
