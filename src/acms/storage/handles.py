"""Who uses a storage handle: it is closed when its last user leaves, and opened again by the next call.

A handle is used by every session made with it and by every `async with storage:` block. So a script that gives a fresh
handle to one session needs no second `with`, and a service that opens one handle for all its sessions keeps it open.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from acms.ports import StorageBackend


@dataclass(slots=True)
class Shared:
    """What the sessions on one handle have in common."""

    users: int = 0
    #: The cache in front of the handle.
    front: StorageBackend | None = None
    #: The retrieval indexes over it.
    indexes: Any = None
    #: Those of whole namespaces.
    namespaces: Any = None
    #: Token counters of its sessions by name, for jobs that count.
    counters: dict[str, Any] = field(default_factory=dict)
    #: One write queue per context, the same for all sessions of a process.
    write_queues: WeakValueDictionary[str, Any] = field(default_factory=WeakValueDictionary)
    #: Embedders at work on it, by identity and mode of privacy, as long as a session uses them.
    embeddings: WeakValueDictionary[tuple[int, Any], Any] = field(default_factory=WeakValueDictionary)
    #: The worker of this process for the jobs in it.
    background: Any = None
    #: When something was last appended by a session, on the monotonic clock.
    appended: float = -1e9
    #: Logs that this process reflects on and will look at again: nobody need be woken for them.
    reflecting: set[str] = field(default_factory=set)
    #: How many wait for what is done in the background: then it need not keep out of anybody's way.
    waiting: int = 0
    #: Calls of reflectors under way: they end when the handle is closed.
    calls: set[Any] = field(default_factory=set)
    #: What the stage of privacy made of entries.
    redactions: Any = None


def shared(storage: StorageBackend) -> Shared:
    """Return what the sessions on a handle have in common; it lives on the handle and dies with it."""
    found: Shared | None = storage.__dict__.get("_acms_shared")
    if found is None:
        found = storage.__dict__["_acms_shared"] = Shared()
    return found


@contextmanager
def waiting(storage: StorageBackend) -> Generator[None]:
    """Say inside the block that somebody waits for what is done in the background."""
    state = shared(storage)
    state.waiting += 1
    try:
        yield
    finally:
        state.waiting -= 1


def retain(storage: StorageBackend) -> None:
    """Count one more user of a handle."""
    shared(storage).users += 1


async def release(storage: StorageBackend) -> None:
    """Count one user less, and close the handle when it was the last."""
    state = shared(storage)
    state.users = max(0, state.users - 1)
    if state.users == 0 and state.background is not None:
        await state.background.stop()
    for embedding in list(state.embeddings.values()) if state.users == 0 else ():
        await embedding.stop()
    if state.users == 0:  # still
        await storage.aclose()
