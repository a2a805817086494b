"""Which context holds the facts of a namespace, remembered for a storage handle."""

from __future__ import annotations

import asyncio

from acms.log.read import profile
from acms.ports import StorageBackend

ABSENT = 2.0
"""Seconds for which it is believed that a namespace has none."""
NAMESPACES = 4096
"""Namespaces, and askers without a profile, of which it is remembered."""


class Profiles:
    """Which context holds the facts of a namespace: its id is remembered for good, that there is none for a moment."""

    def __init__(self, storage: StorageBackend) -> None:
        self._storage = storage
        self._found: dict[str, str] = {}
        #: Until when there is none, by namespace and by who asked.
        self._absent: dict[tuple[str, object], float] = {}

    async def find(self, namespace: str, asking: object = None) -> str | None:
        """Return the id of a namespace's profile; None when it has none.

        `asking` is what the caller knows of its own log: when that has changed, the store is asked again.
        """
        found = self._found.get(namespace)
        if found is not None:
            return found
        key, now = (namespace, asking), asyncio.get_running_loop().time()
        if now < self._absent.get(key, 0.0):
            return None
        context = await profile(self._storage, namespace)
        if context is None:
            if len(self._absent) >= NAMESPACES:
                self._absent.clear()
            self._absent[key] = now + ABSENT
            return None
        if len(self._found) >= NAMESPACES:
            self._found.clear()
        self._found[namespace] = context.id
        return context.id

    def forget(self, namespace: str) -> None:
        """Ask the store again: the profile was deleted."""
        self._found.pop(namespace, None)
