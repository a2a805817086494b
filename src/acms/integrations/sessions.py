"""The open sessions of an adapter, and the state that it keeps beside their logs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from acms.ports import CompareAndSetKV, ListingKV, StorageBackend
from acms.session import ACMS

__all__ = ["Sessions", "StateMemory"]

MAX_IDLE = 256
"""Idle sessions that stay open: each holds an index of its log in memory."""


class StateMemory(CompareAndSetKV, ListingKV, Protocol):
    """The key-value memory of an adapter beside its logs: names, states, records."""


@dataclass(slots=True)
class _Open:
    """A session that is open."""

    session: ACMS
    #: How many calls are using it.
    calls: int = 0
    #: Whether it was handed out, and may be used at any time.
    handed_out: bool = False


class Sessions:
    """The sessions of one storage that an adapter uses, by namespace and name; `options` are those of `ACMS`.

    Where there are many, the one that was used longest ago is closed, unless it was handed out.
    """

    def __init__(self, storage: StorageBackend, **options: Any) -> None:
        self._storage = storage
        self._options = options
        #: The one used last at the end.
        self._open: OrderedDict[tuple[str, str], _Open] = OrderedDict()

    def hand_out(self, namespace: str, name: str) -> ACMS:
        """Return a session, the same one each time; it stays open until all are closed."""
        open_session = self._get(namespace, name)
        open_session.handed_out = True
        return open_session.session

    @asynccontextmanager
    async def use(self, namespace: str, name: str) -> AsyncGenerator[ACMS]:
        """Yield a session that stays open inside the block."""
        open_session = self._get(namespace, name)
        open_session.calls += 1
        try:
            yield open_session.session
        finally:
            open_session.calls -= 1
            for session in self._remove_idle():  # no caller can get them while they are being closed
                await session.close()

    def _remove_idle(self) -> list[ACMS]:
        """Remove the least recently used idle sessions above the limit."""
        idle = [
            key
            for key, open_session in self._open.items()
            if not open_session.calls and not open_session.handed_out
        ]
        return [self._open.pop(key).session for key in idle[: max(0, len(idle) - MAX_IDLE)]]

    async def aclose(self) -> None:
        """Close the sessions; the caller closes the storage."""
        while self._open:
            await self._open.popitem()[1].session.close()

    def _get(self, namespace: str, name: str) -> _Open:
        """Return the open session of a name, open_session if necessary, as the last used one."""
        key = namespace, name
        if key not in self._open:
            self._open[key] = _Open(ACMS(name, self._storage, namespace=namespace, **self._options))
        self._open.move_to_end(key)
        return self._open[key]
