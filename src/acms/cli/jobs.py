"""Commands for work done later: the worker that does it, and the list of it."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from acms import compose
from acms.cli import render
from acms.cli.base import Model, ReflectorName, Shell, Url, command, reflecting
from acms.cli.keys import served
from acms.cli.render import Column, Screen
from acms.config import ACMSConfig
from acms.errors import ACMSError, ConfigurationError
from acms.jobs import requests
from acms.jobs.worker import GRACE, Handler, Worker
from acms.log.in_force import preview_text
from acms.log.validation import PAGE
from acms.model import Job, JobQuery, JobState
from acms.observability.events import Event, JobFailed, JobFinished
from acms.observability.logging import log_event, safe_error
from acms.ports import Reflector, StorageBackend

if TYPE_CHECKING:
    from acms.server.keys import Keys
    from acms.server.tenants import Stores

LIST, RETRY, CANCEL = "list", "retry", "cancel"


@command("acms worker --concurrency 2", namespace="unused", waits=False)
async def worker(
    shell: Shell,
    once: Annotated[bool, typer.Option("--once", help="Do what is due, and leave.")] = False,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, metavar="N", help="Jobs to run at a time.")
    ] = 1,
    kinds: Annotated[
        str | None, typer.Option("--kinds", metavar="KIND,...", help="Only jobs of these kinds.")
    ] = None,
    everybody: Annotated[
        bool, typer.Option("--all-tenants", help="Work for every tenant that has an API key.")
    ] = False,
    reflector: ReflectorName = None,
    url: Url = None,
    model: Model = None,
) -> None:
    """Work off jobs until told to stop.

    Any number may share a store. SIGTERM and SIGINT stop it: what runs may finish within five seconds, or is
    handed back. With --reflector it also does the reflections that were asked of that one; keys of a model come
    from the environment, and so do settings such as ACMS_WORKER_LEASE_SECONDS. With --all-tenants it works for every
    tenant of the HTTP service, --concurrency jobs of each at a time; new ones are found within a minute.
    """
    wanted = None if kinds is None else [kind.strip() for kind in kinds.split(",")]
    can = compose.handlers(ACMSConfig())
    for kind in wanted or ():
        if kind not in can and not (reflector and kind.startswith("reflect:")):
            raise typer.BadParameter(f"{kind!r} is not one of {', '.join(sorted(can))}", param_hint="--kinds")
    config = ACMSConfig.from_env()
    async with AsyncExitStack() as stack:
        found: list[Reflector] = []
        if reflector is not None:
            found.append(await stack.enter_async_context(reflecting(reflector, url=url, model=model)))
        handlers = _of_kinds(wanted, compose.handlers(config, reflectors=found))

        def made(storage: StorageBackend) -> Worker:
            return Worker(
                storage,
                handlers,
                config=config.worker,
                retry=config.retry,
                concurrency=concurrency,
                on_event=lambda event: _report(shell, event),
            )

        one: Worker | Everybody
        if everybody:
            poll = config.worker.poll_seconds
            one = Everybody(*await stack.enter_async_context(served(shell.db)), made, poll_seconds=poll)
        else:
            one = made(await stack.enter_async_context(shell.opened()))
        with _signals(one):
            await (one.drain() if once else one.run())


def _of_kinds(wanted: Sequence[str] | None, handlers: Mapping[str, Handler]) -> Mapping[str, Handler]:
    """Return the handlers of these kinds, all for None; only a reflector itself knows the name of its kind."""
    known = ", ".join(sorted(handlers))
    if unknown := [kind for kind in wanted or () if kind not in handlers]:
        raise ConfigurationError(
            f"--kinds: this worker cannot do {', '.join(unknown)}, only {known}",
            options=tuple(sorted(handlers)),
        )
    return handlers if wanted is None else {kind: handlers[kind] for kind in handlers if kind in wanted}


LOOK_SECONDS = 30.0
"""How often tenants are looked for that had no key before."""


class Everybody:
    """The workers of all tenants that have an API key.

    Each looks for jobs every `poll_seconds`, over connections that they share. A tenant whose store fails is asked
    again then, and keeps nobody else waiting.
    """

    def __init__(
        self,
        stores: Stores,
        keys: Keys,
        make: Callable[[StorageBackend], Worker],
        *,
        poll_seconds: float,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._stores = stores
        self._keys = keys
        self._make = make
        self._poll_seconds = poll_seconds
        self._look_seconds = look_seconds
        self._workers: dict[str, Worker] = {}
        self._told = asyncio.Event()

    async def run(self) -> None:
        """Work until `stop`."""
        await self._work(once=False)

    async def drain(self) -> None:
        """Work off everything that is due, and return when nothing is, or on `stop`."""
        await self._work(once=True)

    def stop(self, *, grace: float = GRACE) -> None:
        """Begin no more jobs. What still runs after `grace` seconds is handed back."""
        self._told.set()
        for one in self._workers.values():
            one.stop(grace=grace)

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._told.is_set()

    async def _work(self, *, once: bool) -> None:
        working: dict[str, asyncio.Task[None]] = {}
        told = asyncio.create_task(self._told.wait())
        try:
            while not self.stopping:
                try:
                    names = {key.tenant for key in await self._keys.list()}
                except ACMSError as error:
                    if once or not error.retryable:
                        raise
                    log_event(logging.WARNING, "keys_unread", code=error.code)
                else:
                    for name in sorted(names - working.keys()):
                        working[name] = asyncio.create_task(self._serve(name, once=once))
                if once:
                    await asyncio.gather(*working.values())
                    return
                ended, _ = await asyncio.wait(
                    [told, *working.values()],
                    timeout=self._look_seconds,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in ended:
                    task.result()  # raises what nobody foresaw
        finally:
            if not self.stopping:
                self.stop()
            await asyncio.gather(told, *working.values(), return_exceptions=True)

    async def _serve(self, name: str, *, once: bool) -> None:
        """Work for one tenant."""
        while not self.stopping:
            try:
                one = self._workers.get(name) or await self._worker(name)
                await one.drain()
            except ACMSError as error:
                if once:
                    raise
                log_event(logging.WARNING, "tenant_failed", tenant=name, error=safe_error(error))
            if once:
                return
            await self._pause(self._poll_seconds)

    async def _worker(self, name: str) -> Worker:
        tenant = await self._stores.of(name)
        tenant.users += 1  # for good: while it is used its store is not closed
        one = self._workers[name] = self._make(tenant.handle)
        if self.stopping:
            one.stop()
        return one

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._told.wait()


@contextmanager
def _signals(one: Worker | Everybody) -> Generator[None]:
    """Stop a worker on SIGTERM and SIGINT inside the block; the second one waits for nothing."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        one.stop(grace=0 if one.stopping else GRACE)

    def stop_on_signal(*_: object) -> None:
        loop.call_soon_threadsafe(stop)

    before = {name: signal.signal(name, stop_on_signal) for name in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _report(screen: Screen, event: Event) -> None:
    """Write one line about an attempt, at once: whoever reads it may be a pipe."""
    if not isinstance(event, JobFinished | JobFailed):
        return
    state = event.state if isinstance(event, JobFailed) else JobState.DONE.value
    error = event.error if isinstance(event, JobFailed) else ""
    if screen.as_json:
        value = {"id": event.job_id, "kind": event.kind, "context": event.context_id, "state": state}
        print(json.dumps({**value, "attempt": event.attempt, "error": error or None}), flush=True)
        return
    told = f"job {event.job_id} {event.kind} {state}, attempt {event.attempt}"
    print(render.clean(f"{told}: {error}" if error else told), flush=True)


@command("acms jobs --state failed")
async def jobs(
    shell: Shell,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[list] [SESSION] | retry ID... | cancel ID...",
            help="The jobs of a session, or of all; or what to do with some.",
        ),
    ] = None,
    state: Annotated[
        JobState | None, typer.Option("--state", help="Only jobs that stand there.", show_choices=True)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=PAGE, metavar="N", help="Jobs to show.")] = 50,
    after: Annotated[str | None, typer.Option("--after", metavar="ID", help="Start behind this job.")] = None,
) -> None:
    """List jobs, newest first; try some again, or cancel some.

    retry makes a job due now that failed, was cancelled or waits. cancel gives a job up; what a running attempt
    still does has no effect.
    """
    verb, *rest = words or [LIST]
    if verb not in (LIST, RETRY, CANCEL):
        verb, rest = LIST, [verb, *rest]
    if verb == LIST and len(rest) > 1:
        raise typer.BadParameter(f"one session, not {len(rest)}", param_hint="SESSION")
    if verb != LIST and not rest:
        raise typer.BadParameter("name at least one job", param_hint="ID")
    async with shell.opened() as storage:
        next_after: str | None = None
        if verb == LIST:
            context = (await shell.known(storage, rest[0])).id if rest else None
            page = await storage.jobs(
                JobQuery(context=context, states=(state,) if state else (), after=after, limit=limit)
            )
            found, next_after = list(page.items), page.next_after
        else:
            change = requests.retry_job_by_id if verb == RETRY else requests.cancel_job_by_id
            found = [await change(storage, id) for id in rest]
        names = await _sessions(storage, found)

    def draw() -> None:
        shell.list(JOBS, listed, none="no jobs")
        if next_after is not None:
            shell.line(f"more: --after {next_after}", "dim")

    listed = [{"session": names[job.context], **render.fields_of(job)} for job in found]
    shell.show({"jobs": listed, "next_after": next_after}, draw)


JOBS = (
    Column("id", "cyan", right=True),
    Column("kind", "magenta"),
    Column("state", "yellow"),
    Column("session"),
    Column("error", wide=True, of=lambda job: preview_text(job["error"] or job["reason"] or "", 120)),
    Column("attempt", right=True),
    Column("due", "dim", of=lambda job: job["not_before"] if job["state"] in WAITING else ""),
)
WAITING = (JobState.READY, JobState.RUNNING)


async def _sessions(storage: StorageBackend, found: Sequence[Job]) -> dict[str, str]:
    """Return the name of each job's session by the id of its context, or the id when it has no name."""
    contexts = [await storage.context(id) for id in {job.context for job in found}]
    return {context.id: context.key or context.id for context in contexts}
