"""Track the users of a storage handle: its last user closes it, and the next call opens it again.

A handle is used by every session made with it and by every `async with storage:` block. So a script that gives a fresh
handle to one session needs no second `with`, and a service that opens one handle for all its sessions keeps it open.

Several event loops, one after the other or in threads, may use a handle. Each event loop has its own session state
(write queues, indexes, running embedders, the worker), as separate processes would.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from acms.ports import StorageBackend
from acms.runtime import loops
from acms.runtime.loops import PerLoop

STOPPING = 10.0
"""Seconds that closing waits for the work of another event loop to end."""


@dataclass(slots=True)
class LoopState:
    """State shared by the sessions on one handle in one event loop."""

    #: The retrieval indexes over its logs.
    indexes: Any = None
    #: The retrieval indexes over whole namespaces.
    namespaces: Any = None
    #: One write queue per context, the same for all sessions.
    write_queues: WeakValueDictionary[str, Any] = field(default_factory=WeakValueDictionary)
    #: Embedders at work on it, by identity and mode of privacy, as long as a session uses them.
    embeddings: WeakValueDictionary[tuple[int, Any], Any] = field(default_factory=WeakValueDictionary)
    #: The reader of entries for the streams of events.
    pages: Any = None
    #: The background worker for the jobs of the store.
    background: Any = None
    #: When something was last appended by a session, on the monotonic clock.
    appended: float = -1e9
    #: Logs being reflected on here that will be checked again: no wake-up is needed for them.
    reflecting: set[str] = field(default_factory=set)
    #: Number of callers waiting for background work: while there are any, it need not yield to other work.
    waiting: int = 0
    #: Events to set when a session here appends to a log, by log.
    listening: dict[str, set[asyncio.Event]] = field(default_factory=dict)
    #: Calls of reflectors under way: they end when the handle is closed.
    calls: set[Any] = field(default_factory=set)

    def notify_listeners(self, context: str) -> None:
        """Notify the listeners of a log that an entry was appended."""
        for event in self.listening.get(context, ()):
            event.set()

    async def stop(self) -> None:
        """Stop the background worker and the embedders."""
        if self.background is not None:
            await self.background.stop()
        for embedding in list(self.embeddings.values()):
            await embedding.stop()


class Shared:
    """State shared by the sessions on one handle."""

    def __init__(self) -> None:
        self.users = 0
        #: Held while users are counted.
        self.lock = threading.Lock()
        #: The cache in front of the handle.
        self.front: StorageBackend | None = None
        #: Token counters of its sessions by name, for jobs that count.
        self.counters: dict[str, Any] = {}
        #: Strictest privacy mode of its sessions by log, where they have one.
        self.modes: dict[str, Any] = {}
        #: The newest session of each log: it supplies the handlers of its jobs and receives their events.
        self.sessions: WeakValueDictionary[str, Any] = WeakValueDictionary()
        #: A cache of the redacted forms of entries.
        self.redactions: Any = None
        #: Indexes of an event loop that was closed: the next loop uses them instead of building them again.
        self._kept_indexes: Any = None
        self.loops: PerLoop[LoopState] = PerLoop(self._begin, self._keep_indexes)

    def _begin(self) -> LoopState:
        indexes, self._kept_indexes = self._kept_indexes, None
        return LoopState(indexes=indexes)

    def _keep_indexes(self, state: LoopState) -> None:
        if state.indexes is not None and state.indexes.detach():
            self._kept_indexes = state.indexes


def get_shared_state(storage: StorageBackend) -> Shared:
    """Return the state shared by the sessions on a handle; it is stored on the handle."""
    shared: Shared | None = storage.__dict__.get("_acms_shared")
    return storage.__dict__.setdefault("_acms_shared", Shared()) if shared is None else shared


def get_loop_state(storage: StorageBackend) -> LoopState:
    """Return the state shared by the sessions on a handle in the running event loop."""
    return get_shared_state(storage).loops.here()


@contextmanager
def register_waiter(storage: StorageBackend) -> Generator[None]:
    """Register, inside the block, a caller that waits for background work."""
    state = get_loop_state(storage)
    state.waiting += 1
    try:
        yield
    finally:
        state.waiting -= 1


@contextmanager
def listen_for_appends(storage: StorageBackend, context: str) -> Generator[asyncio.Event]:
    """Yield an event that is set when a session on this handle appends to a log; other processes do not set it."""
    listening, event = get_loop_state(storage).listening, asyncio.Event()
    listening.setdefault(context, set()).add(event)
    try:
        yield event
    finally:
        listening[context].discard(event)
        if not listening[context]:
            del listening[context]


def retain_handle(storage: StorageBackend) -> None:
    """Count one more user of a handle."""
    shared = get_shared_state(storage)
    with shared.lock:
        shared.users += 1


async def release_handle(storage: StorageBackend) -> None:
    """Count one user less, and close the handle when it was the last."""
    shared = get_shared_state(storage)
    with shared.lock:
        shared.users = max(0, shared.users - 1)
    if shared.users == 0:
        # Each step may wait, and another caller may retain the handle meanwhile.
        await get_loop_state(storage).stop()
    if shared.users == 0:  # no other caller has retained it meanwhile
        await _stop_other_loops(storage, shared)
    if shared.users == 0:
        await storage.aclose()


async def _stop_other_loops(storage: StorageBackend, shared: Shared) -> None:
    """Stop the background work that belongs to other event loops of this process which still run."""
    running = asyncio.get_running_loop()
    for loop, loop_state in shared.loops.all():
        if loop is running or not loop.is_running():
            continue
        if loop in loops.waiting:  # it is blocked until this call ends
            asyncio.run_coroutine_threadsafe(_stop_background(storage, loop_state), loop)
        else:
            stopped = asyncio.run_coroutine_threadsafe(loop_state.stop(), loop)
            await asyncio.wait([asyncio.wrap_future(stopped)], timeout=STOPPING)


async def _stop_background(storage: StorageBackend, state: LoopState) -> None:
    """Stop an event loop's background work on a handle that was closed while the loop was blocked."""
    await state.stop()
    if get_shared_state(storage).users == 0:  # handing jobs back has opened it again
        await storage.aclose()
