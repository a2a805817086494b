"""Commands for background jobs: `worker` and `jobs`."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from acms import compose
from acms.cli import output
from acms.cli.base import Model, ReflectorName, Shell, Url, define_command, open_reflector
from acms.cli.keys import open_service_stores
from acms.cli.output import Column, Screen
from acms.config import ACMSConfig
from acms.errors import ACMSError, ConfigurationError
from acms.jobs import requests
from acms.jobs.worker import GRACE, Handler, Worker
from acms.log.active_entries import preview_text
from acms.log.validation import PAGE
from acms.model import Job, JobQuery, JobState
from acms.observability.events import Event, JobFailed, JobFinished
from acms.observability.logging import log_event, safe_error
from acms.ports import Reflector, StorageBackend

if TYPE_CHECKING:
    from acms.server.keys import Keys
    from acms.server.tenants import Stores

LIST, RETRY, CANCEL = "list", "retry", "cancel"


OnceOption = Annotated[bool, typer.Option("--once", help="Run the due jobs and exit.")]
ConcurrencyOption = Annotated[
    int, typer.Option("--concurrency", min=1, metavar="N", help="Number of concurrent jobs.")
]
KindsOption = Annotated[
    str | None, typer.Option("--kinds", metavar="KIND,...", help="Only jobs of these kinds.")
]
AllTenantsOption = Annotated[
    bool, typer.Option("--all-tenants", help="Run the jobs of every tenant with an API key.")
]


@define_command("worker", "acms worker --concurrency 2", namespace="unused", waits=False)
async def run_worker(
    shell: Shell,
    once: OnceOption = False,
    concurrency: ConcurrencyOption = 1,
    kinds: KindsOption = None,
    all_tenants: AllTenantsOption = False,
    reflector: ReflectorName = None,
    url: Url = None,
    model: Model = None,
) -> None:
    """Run jobs until stopped.

    Several workers can share a store. SIGTERM and SIGINT stop a worker: running jobs get five seconds to finish, then
    they are released. With --reflector it also runs reflections with that reflector. API keys of a model and settings
    such as ACMS_WORKER_LEASE_SECONDS are read from the environment. With --all-tenants it runs the jobs of every tenant
    of the HTTP service, --concurrency per tenant; new tenants are found within a minute.
    """
    selected = None if kinds is None else [kind.strip() for kind in kinds.split(",")]
    _check_kinds(selected or (), has_reflector=reflector is not None)
    config = ACMSConfig.from_env()
    async with AsyncExitStack() as stack:
        reflectors: list[Reflector] = []
        if reflector is not None:
            reflector_context = open_reflector(reflector, url=url, model=model)
            reflectors.append(await stack.enter_async_context(reflector_context))
        handlers = _select_handlers(selected, compose.handlers(config, reflectors=reflectors))

        def create_worker(storage: StorageBackend) -> Worker:
            return Worker(
                storage,
                handlers,
                config=config.worker,
                retry=config.retry,
                concurrency=concurrency,
                on_event=lambda event: _report_attempt(shell, event),
            )

        worker: Worker | TenantWorkers
        if all_tenants:
            stores, keys = await stack.enter_async_context(open_service_stores(shell.db))
            worker = TenantWorkers(stores, keys, create_worker, poll_seconds=config.worker.poll_seconds)
        else:
            worker = create_worker(await stack.enter_async_context(shell.open_store()))
        with _stop_on_signals(worker):
            if once:
                await worker.drain()
            else:
                await worker.run()


def _check_kinds(kinds: Iterable[str], *, has_reflector: bool) -> None:
    """Refuse unknown kinds of jobs; only an opened reflector knows the name of its own kind."""
    known_kinds = compose.handlers(ACMSConfig())
    for kind in kinds:
        may_be_reflection = has_reflector and kind.startswith("reflect:")
        if kind not in known_kinds and not may_be_reflection:
            raise typer.BadParameter(
                f"{kind!r} is not one of {', '.join(sorted(known_kinds))}", param_hint="--kinds"
            )


def _select_handlers(kinds: Sequence[str] | None, handlers: Mapping[str, Handler]) -> Mapping[str, Handler]:
    """Return the handlers of these kinds, or all for None."""
    if kinds is None:
        return handlers
    known_kinds = sorted(handlers)
    unknown = [kind for kind in kinds if kind not in handlers]
    if unknown:
        raise ConfigurationError(
            f"--kinds: this worker cannot run {', '.join(unknown)}, only {', '.join(known_kinds)}",
            options=tuple(known_kinds),
        )
    return {kind: handler for kind, handler in handlers.items() if kind in kinds}


class TenantWorkers:
    """The workers of all tenants with an API key.

    Each worker polls for jobs every `poll_seconds`, over shared connections. A worker whose store fails retries at the
    next poll and does not delay the other workers. New tenants are searched for every `look_seconds`.
    """

    def __init__(
        self,
        stores: Stores,
        keys: Keys,
        build_worker: Callable[[StorageBackend], Worker],
        *,
        poll_seconds: float,
        look_seconds: float = 30.0,
    ) -> None:
        self._stores = stores
        self._keys = keys
        self._build_worker = build_worker
        self._poll_seconds = poll_seconds
        self._look_seconds = look_seconds
        self._workers: dict[str, Worker] = {}
        self._stop_event = asyncio.Event()

    async def run(self) -> None:
        """Run jobs until `stop`."""
        await self._run_tenants(once=False)

    async def drain(self) -> None:
        """Run the due jobs; return when there are none, or on `stop`."""
        await self._run_tenants(once=True)

    def stop(self, *, grace: float = GRACE) -> None:
        """Start no more jobs; release jobs that still run after `grace` seconds."""
        self._stop_event.set()
        for worker in self._workers.values():
            worker.stop(grace=grace)

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop_event.is_set()

    async def _run_tenants(self, *, once: bool) -> None:
        tasks: dict[str, asyncio.Task[None]] = {}
        stop_waiter = asyncio.create_task(self._stop_event.wait())
        try:
            while not self.stopping:
                try:
                    names = {key.tenant for key in await self._keys.list()}
                except ACMSError as error:
                    if once or not error.retryable:
                        raise
                    log_event(logging.WARNING, "keys_unread", code=error.code)
                else:
                    for name in sorted(names - tasks.keys()):
                        tasks[name] = asyncio.create_task(self._serve_tenant(name, once=once))
                if once:
                    await asyncio.gather(*tasks.values())
                    return
                ended_tasks, _ = await asyncio.wait(
                    [stop_waiter, *tasks.values()],
                    timeout=self._look_seconds,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in ended_tasks:
                    task.result()  # raises the unexpected error of a tenant
        finally:
            if not self.stopping:
                self.stop()
            await asyncio.gather(stop_waiter, *tasks.values(), return_exceptions=True)

    async def _serve_tenant(self, name: str, *, once: bool) -> None:
        while not self.stopping:
            try:
                worker = self._workers.get(name) or await self._create_worker(name)
                await worker.drain()
            except ACMSError as error:
                if once:
                    raise
                log_event(logging.WARNING, "tenant_failed", tenant=name, error=safe_error(error))
            if once:
                return
            await self._pause(self._poll_seconds)

    async def _create_worker(self, name: str) -> Worker:
        tenant = await self._stores.tenant(name)
        tenant.users += 1  # never decreased, so that the store stays open while its worker polls
        worker = self._workers[name] = self._build_worker(tenant.handle)
        if self.stopping:
            worker.stop()
        return worker

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop_event.wait()


@contextmanager
def _stop_on_signals(worker: Worker | TenantWorkers) -> Generator[None]:
    """Stop a worker on SIGTERM and SIGINT inside the block; a second signal stops it without a grace period."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        worker.stop(grace=0 if worker.stopping else GRACE)

    def handle_signal(*_: object) -> None:
        loop.call_soon_threadsafe(stop)

    previous = {number: signal.signal(number, handle_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _report_attempt(screen: Screen, event: Event) -> None:
    """Write one line about a finished attempt and flush it, because the output may be a pipe."""
    error = reason = None
    if isinstance(event, JobFailed):
        state, error = event.state, event.error
    elif isinstance(event, JobFinished):
        state, reason = JobState.DONE.value, event.reason
    else:
        return
    if screen.as_json:
        value = {
            "id": event.job_id,
            "kind": event.kind,
            "context": event.context_id,
            "state": state,
            "attempt": event.attempt,
            "error": error or None,
            "reason": reason,
        }
        print(json.dumps(value), flush=True)
        return
    message = f"job {event.job_id} {event.kind} {state}, attempt {event.attempt}"
    if error:
        message = f"{message}: {error}"
    print(output.strip_control_characters(message), flush=True)


WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[list] [SESSION] | retry ID... | cancel ID...",
        help="List the jobs of one session or all, or change jobs.",
    ),
]
StateOption = Annotated[
    JobState | None, typer.Option("--state", help="Only jobs in this state.", show_choices=True)
]
LimitOption = Annotated[
    int, typer.Option("--limit", min=1, max=PAGE, metavar="N", help="Maximum number of jobs.")
]
AfterOption = Annotated[str | None, typer.Option("--after", metavar="ID", help="Start after this job.")]


@define_command("jobs", "acms jobs --state failed")
async def manage_jobs(
    shell: Shell,
    words: WordsArgument = None,
    state: StateOption = None,
    limit: LimitOption = 50,
    after: AfterOption = None,
) -> None:
    """List jobs, newest first; retry or cancel some.

    retry makes a failed, cancelled or waiting job due now. cancel gives a job up; the result of a running attempt is
    ignored.
    """
    verb, *arguments = words or [LIST]
    if verb not in (LIST, RETRY, CANCEL):
        verb, arguments = LIST, [verb, *arguments]
    if verb == LIST and len(arguments) > 1:
        raise typer.BadParameter(f"one session, not {len(arguments)}", param_hint="SESSION")
    if verb != LIST and not arguments:
        raise typer.BadParameter("name at least one job", param_hint="ID")
    next_after: str | None = None
    async with shell.open_store() as storage:
        if verb == LIST:
            context = (await shell.find_session(storage, arguments[0])).id if arguments else None
            states = (state,) if state else ()
            page = await storage.jobs(JobQuery(context=context, states=states, after=after, limit=limit))
            jobs, next_after = list(page.items), page.next_after
        else:
            change = requests.retry_job_by_id if verb == RETRY else requests.cancel_job_by_id
            jobs = [await change(storage, id) for id in arguments]
        names = await _session_names(storage, jobs)
    rows = [{"session": names[job.context], **output.fields_of(job)} for job in jobs]

    def draw() -> None:
        shell.list(JOBS, rows, if_empty="no jobs")
        if next_after is not None:
            shell.line(f"more: --after {next_after}", "dim")

    shell.show({"jobs": rows, "next_after": next_after}, draw)


JOBS = (
    Column("id", "cyan", align_right=True),
    Column("kind", "magenta"),
    Column("state", "yellow"),
    Column("session"),
    Column("note", wide=True, value=lambda job: preview_text(job["error"] or job["reason"] or "", 120)),
    Column("attempt", align_right=True),
    Column("due", "dim", value=lambda job: job["not_before"] if job["state"] in WAITING else ""),
)
WAITING = (JobState.READY, JobState.RUNNING)


async def _session_names(storage: StorageBackend, jobs: Sequence[Job]) -> dict[str, str]:
    """Return the names of the jobs' sessions by context id; the id if a session has no name."""
    contexts = [await storage.context(id) for id in {job.context for job in jobs}]
    return {context.id: context.key or context.id for context in contexts}
