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

_IDLE = 256
"""How many unused sessions stay open."""


class StateMemory(CompareAndSetKV, ListingKV, Protocol):
    """The key-value memory of an adapter beside its logs: names, states, records."""


@dataclass(slots=True)
class _Open:
    """A session that is open."""

    session: ACMS
    #: How many calls are using it.
    calls: int = 0
    #: Whether it was handed out, and may be used at any time.
    lent: bool = False


class Sessions:
    """The sessions of one storage that an adapter uses, by namespace and name; `options` are those of `ACMS`.

    Where there are many, the one that was used longest ago is closed, unless it was handed out.
    """

    def __init__(self, storage: StorageBackend, **options: Any) -> None:
        self._storage = storage
        self._options = options
        #: The one used last at the end.
        self._open: OrderedDict[tuple[str, str], _Open] = OrderedDict()

    def of(self, namespace: str, name: str) -> ACMS:
        """Hand a session out, the same one each time; it stays open until all are closed."""
        one = self._get(namespace, name)
        one.lent = True
        return one.session

    @asynccontextmanager
    async def use(self, namespace: str, name: str) -> AsyncGenerator[ACMS]:
        """Give a session that stays open meanwhile."""
        one = self._get(namespace, name)
        one.calls += 1
        try:
            yield one.session
        finally:
            one.calls -= 1
            idle = [key for key, one in self._open.items() if not one.calls and not one.lent]
            gone = [self._open.pop(key) for key in idle[: max(0, len(idle) - _IDLE)]]
            for each in gone:  # no caller can get them while they are being closed
                await each.session.close()

    async def aclose(self) -> None:
        """Close the sessions; the caller closes the storage."""
        while self._open:
            await self._open.popitem()[1].session.close()

    def _get(self, namespace: str, name: str) -> _Open:
        key = namespace, name
        if key not in self._open:
            self._open[key] = _Open(ACMS(name, self._storage, namespace=namespace, **self._options))
        self._open.move_to_end(key)
        return self._open[key]
