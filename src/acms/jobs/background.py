"""The worker of this process for the jobs of one storage handle: it runs while there is something to do."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Collection
from typing import Any

from acms.config import RetryConfig, WorkerConfig
from acms.jobs.worker import GRACE, Handler, Worker
from acms.model import Job
from acms.observability.events import Event
from acms.observability.logging import log, safe_error
from acms.ports import StorageBackend
from acms.storage import handles


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

    Nothing is polled: it begins with the first `poke` and ends when nothing is due and nothing was put off. When others
    hold or have put off what it could do, it begins again as soon as that is due: they may have been killed. It is
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
        #: Begins again when something that others hold or have put off is due.
        self._alarm: asyncio.TimerHandle | None = None

    def serve(self, kind: str, handler: Handler) -> None:
        """Run jobs of a kind with this handler; the first one given stays."""
        self._handlers.setdefault(kind, handler)

    def serves(self, job: Job) -> bool:
        """Return whether it will run a job once nobody else holds it."""
        return self.enabled and not self.failed and job.kind in self._handlers

    @property
    def failed(self) -> bool:
        """Whether its store refused it when it last worked: until the next `poke` it does nothing."""
        task = self._task
        return task is not None and task.done() and not task.cancelled() and task.exception() is not None

    def poke(self) -> None:
        """Say that there may be work, on the event loop of the handle."""
        if not self.enabled:
            return
        loop = asyncio.get_running_loop()
        self._silence()
        if self._worker is not None and not self._worker.stopping and self._runs(loop):
            self._worker.poke()
            return
        self._worker = worker = Worker(
            self._storage,
            self._handlers,
            config=self._config,
            retry=self._retry,
            concurrency=self._config.concurrency,
            on_event=self._on_event,
        )
        self._task = loop.create_task(self._work(worker), name="acms-background")
        self._task.add_done_callback(_ended)

    async def _work(self, worker: Worker) -> None:
        await worker.drain(retries=True)
        if worker.again is not None and not worker.stopping:
            self._alarm = asyncio.get_running_loop().call_later(
                worker.again, _rouse, weakref.ref[Background](self)
            )

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

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
        self._silence()
        task = self._task
        if self._worker is not None and task is not None and self._runs(asyncio.get_running_loop()):
            self._worker.stop(grace=grace)
            for call in list(self._calls):
                call.cancel()
            await asyncio.wait([task])


def _rouse(found: weakref.ref[Background]) -> None:
    """Poke a worker whose handle somebody still has: a timer keeps no store open."""
    one = found()
    if one is not None:
        one.poke()


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log(logging.ERROR, "background_failed", error=safe_error(error))
