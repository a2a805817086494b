"""The worker of this process for the jobs of one storage handle: it runs while there is something to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any

from acms import handles
from acms.config import RetryConfig, WorkerConfig
from acms.events import Event
from acms.logs import log, shown
from acms.protocols import StorageBackend
from acms.worker import GRACE, Handler, Worker


def background(
    handle: StorageBackend,
    storage: StorageBackend,
    config: WorkerConfig,
    retry: RetryConfig,
    on_event: Callable[[Event], Any] | None = None,
) -> Background:
    """Return the worker of a handle, made by the first who asks; it works once one of them allows it.

    `storage` is the handle, or what stands in front of it.
    """
    shared = handles.shared(handle)
    found: Background | None = shared.background
    if found is None:
        found = shared.background = Background(storage, config, retry, on_event, shared.calls)
    found.enabled = found.enabled or config.enabled
    return found


class Background:
    """Works off the jobs that the sessions of one storage handle ask for, a few at a time.

    Nothing is polled: it begins with the first `poke` and ends when nothing is due and nothing was put off. It is
    stopped before the handle is closed by its last user, and may begin again afterwards.
    """

    def __init__(
        self,
        storage: StorageBackend,
        config: WorkerConfig,
        retry: RetryConfig,
        on_event: Callable[[Event], Any] | None = None,
        calls: Collection[asyncio.Task[Any]] = (),
    ) -> None:
        #: Whether `poke` does anything.
        self.enabled = config.enabled
        self._storage = storage
        self._config = config
        self._retry = retry
        self._on_event = on_event
        self._calls = calls
        self._handlers: dict[str, Handler] = {}
        self._worker: Worker | None = None
        self._task: asyncio.Task[None] | None = None

    def serve(self, kind: str, handler: Handler) -> None:
        """Run jobs of a kind with this handler; the first one given stays."""
        self._handlers.setdefault(kind, handler)

    def poke(self) -> None:
        """Say that there may be work, on the event loop of the handle."""
        if not self.enabled:
            return
        loop = asyncio.get_running_loop()
        if self._worker is not None and not self._worker.stopping and self._runs(loop):
            self._worker.poke()
            return
        self._worker = Worker(
            self._storage,
            self._handlers,
            config=self._config,
            retry=self._retry,
            concurrency=self._config.concurrency,
            on_event=self._on_event,
        )
        self._task = loop.create_task(self._worker.drain(retries=True), name="acms-background")
        self._task.add_done_callback(_ended)

    def _runs(self, loop: asyncio.AbstractEventLoop) -> bool:
        task = self._task
        return task is not None and not task.done() and task.get_loop() is loop

    async def settled(self) -> None:
        """Wait until nothing is due and nothing was put off; returns at once when nobody asked for anything."""
        task = self._task
        if task is not None and self._runs(asyncio.get_running_loop()):
            await asyncio.wait([task])

    async def stop(self, *, grace: float = GRACE) -> None:
        """Begin no more jobs and wait for what runs; after `grace` seconds it is handed back to be done by others.

        A reflector is not waited for: what it was asked for is handed back at once.
        """
        task = self._task
        if self._worker is not None and task is not None and self._runs(asyncio.get_running_loop()):
            self._worker.stop(grace=grace)
            for call in list(self._calls):
                call.cancel()
            await asyncio.wait([task])


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log(logging.ERROR, "background_failed", error=shown(error))
