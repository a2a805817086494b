"""Checking what a context is: its namespace, name, parent and settings, which no hash chain covers."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from acms.errors import SessionNotFoundError
from acms.model import Context
from acms.ports import StorageBackend
from acms.storage.wrapper import WrapperStorage

__all__ = ["check_context"]


@runtime_checkable
class KeepsSeals(Protocol):
    """A store that keeps a seal with every context it makes or changes."""

    async def seal_fits(self, context: str) -> bool:
        """Return whether a context is as ACMS wrote it; true of one that was stored before there were seals."""
        ...


async def check_context(storage: StorageBackend, context: Context) -> list[str]:
    """Return what of a context something else than ACMS has changed."""
    while isinstance(storage, WrapperStorage):
        storage = storage.inner
    found: list[str] = []
    if isinstance(storage, KeepsSeals) and not await storage.seal_fits(context.id):
        found.append("its namespace, name, parent or settings were changed by something else than ACMS")
    root = context.id
    if context.parent is not None:
        try:
            root = (await storage.context(context.parent)).root
        except SessionNotFoundError:
            return [*found, f"its parent {context.parent} is not in the store"]
    if context.root != root:
        found.append(f"it is listed in the fork tree of {context.root}, its parent is in that of {root}")
    return found
