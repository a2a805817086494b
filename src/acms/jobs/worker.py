"""Runs jobs: takes a lease, runs the handler, extends the lease meanwhile, and settles the outcome.

The handler is called at least once and its effect on the log happens exactly once: it commits the effect and the end of
the job in one append, `Append(..., finish=lease)`, which the store refuses when another attempt holds the job. Any
number of workers may share a store, in one process or in many; `Background` is this process's worker for a handle.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol, TypeAlias

from acms.config import RetryConfig, WorkerConfig
from acms.errors import ACMSError, GoneError, LeaseLostError, SessionNotFoundError
from acms.log import validation
from acms.model import UNFINISHED, WEBHOOK, Done, Failed, Job, JobQuery, JobState, Lease, Retry
from acms.observability.events import Event, JobFailed, JobFinished
from acms.observability.logging import emit_event, log_event, safe_error
from acms.observability.operations import record_operation
from acms.ports import HasHints, StorageBackend
from acms.runtime.chance import chance
from acms.storage import handles

__all__ = ["Handler", "Outcome", "Worker"]

Outcome: TypeAlias = Done | Retry | Failed | None
Handler: TypeAlias = Callable[[StorageBackend, Lease], Awaitable[Outcome]]
"""Does the work of one kind of job. None means that the effect and the end of the job were committed together."""

GRACE = 5.0
"""Seconds that running jobs have to finish when a worker is stopped."""
LONGEST_WAIT = 60.0
"""Maximum seconds of one wait for a point in time, because the clock may be set back meanwhile."""
POLL = 0.05
"""Seconds between two reads of a job that another process runs."""


PATIENT_KINDS = frozenset({WEBHOOK})
"""Kinds of jobs that are often retried because of others: many attempts do not show that such a job kills workers."""


class _Lane:
    """Kinds of jobs that share slots in a worker, and the tasks running there."""

    def __init__(self, kinds: Collection[str]) -> None:
        self.kinds = list(kinds)
        self.running: set[asyncio.Task[None]] = set()
        #: The tasks of the handlers themselves: only these are cancelled, never the settling of their outcomes.
        self.handling: set[asyncio.Task[Outcome]] = set()
        #: The attempt after one that never ended. It runs alone: if it kills its worker, no other job dies with it.
        self.suspect: asyncio.Task[None] | None = None

    def is_full(self, concurrency: int) -> bool:
        """Return whether no further job may begin."""
        return self.suspect is not None or len(self.running) == concurrency


class Worker:
    """Runs the jobs of some kinds on one store, `concurrency` at a time.

    The same number of webhook deliveries run in addition, so no job waits for a receiver that does not answer.

    A handler that raises is tried again after `retry.delay`, until `config.max_attempts`; then the job has failed and
    stays in the store with its error (a dead letter). An error that is not retryable fails the job at once, and a
    deleted context cancels it. A job also fails if that many attempts ended without an outcome.
    """

    def __init__(
        self,
        storage: StorageBackend,
        handlers: Mapping[str, Handler],
        *,
        config: WorkerConfig | None = None,
        retry: RetryConfig | None = None,
        concurrency: int = 1,
        on_event: Callable[[Event], Any] | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        fraction: Callable[[], float] = chance.random,
    ) -> None:
        self._storage = storage
        self._handlers = handlers
        self._config = config or WorkerConfig()
        self._retry = retry or RetryConfig()
        self._concurrency = validation.validate_integer(concurrency, "concurrency", minimum=1)
        self._on_event = on_event
        self._clock = clock
        self._fraction = fraction
        self._lease = timedelta(seconds=self._config.lease_seconds)
        #: Built when work begins, because handlers may be added until then.
        self._lanes: list[_Lane] = []
        self._wake = asyncio.Event()
        #: Seconds of grace, once `stop` was called.
        self._grace: float | None = None
        #: The times at which jobs that this worker put off are due again.
        self._retry_times: list[datetime] = []
        #: After `drain(retries=True)`: seconds until a job that another worker holds or has put off may be due here.
        self.seconds_until_due: float | None = None

    async def run(self) -> None:
        """Work until `stop`; claim jobs every `config.poll_seconds`, and at once after `poke` or a hint of the store.

        If the store is busy, the worker tries again later. Any other error is raised after the running jobs were handed
        back.
        """
        listening = self._storage.hints(self.poke) if isinstance(self._storage, HasHints) else nullcontext()
        async with listening:
            await self._run_jobs(forever=True)

    async def drain(self, *, retries: bool = False) -> None:
        """Run all jobs that are due or become due meanwhile; return when none is due, or on `stop`.

        With `retries`, jobs that this worker put off are also waited for and retried. `seconds_until_due` is set for
        jobs that other workers hold or have put off: a worker that was killed does not report them.
        """
        await self._run_jobs(retries=retries)

    def poke(self) -> None:
        """Look for work now."""
        self._wake.set()

    def stop(self, *, grace: float = GRACE) -> None:
        """Begin no more jobs. Those running after `grace` seconds are cancelled, and due at once for other workers.

        Calling it again replaces the grace period, counted from the first call.
        """
        self._grace = grace
        self._wake.set()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._grace is not None

    # ── the loop ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _run_jobs(self, *, forever: bool = False, retries: bool = False) -> None:
        """Run due jobs until `stop`; unless `forever`, end when none is due, and with `retries` none is put off."""
        failures = 0
        other_kinds = [kind for kind in self._handlers if kind not in PATIENT_KINDS]
        patient_kinds = [kind for kind in self._handlers if kind in PATIENT_KINDS]
        self._lanes = [_Lane(kinds) for kinds in (other_kinds, patient_kinds) if kinds]
        try:
            while not self.stopping:
                self._wake.clear()
                pause: float | None
                try:
                    await self._begin_due_jobs()
                    if retries and not self._list_running():
                        self.seconds_until_due = await self._find_seconds_until_due()
                except ACMSError as error:
                    failures += 1
                    last_attempt = failures == self._retry.max_attempts and not forever
                    if last_attempt or not error.retryable:
                        raise
                    pause = self._retry_delay(failures)
                    log_event(logging.WARNING, "claim_failed", code=error.code, seconds=pause)
                else:
                    failures = 0
                    if forever or self._list_running():
                        # With all slots taken, there is nothing to claim before a job ends.
                        pause = None if self._is_full() else self._config.poll_seconds
                    else:
                        pause = self._seconds_until_retry() if retries else None
                        is_idle = pause is None and not self._wake.is_set()
                        if is_idle:
                            return
                await self._wait_for_wake(pause)
            await self._await_running()
        finally:
            await self._cancel_running()

    def _is_full(self) -> bool:
        return all(lane.is_full(self._concurrency) for lane in self._lanes)

    def _list_running(self) -> list[asyncio.Task[None]]:
        return [task for lane in self._lanes for task in lane.running]

    async def _begin_due_jobs(self) -> None:
        """Claim due jobs and begin them while there are free slots."""
        now = self._clock()
        self._retry_times = [time for time in self._retry_times if time > now]
        for lane in self._lanes:
            while not lane.is_full(self._concurrency) and not self.stopping:
                leases = await self._storage.claim(lane.kinds, lease=self._lease)
                if not leases:
                    break
                lease = leases[0]
                task = asyncio.create_task(self._run_attempt(lane, lease))
                if lease.silent:
                    lane.suspect = task
                lane.running.add(task)
                task.add_done_callback(partial(self._handle_task_end, lane))

    def _handle_task_end(self, lane: _Lane, task: asyncio.Task[None]) -> None:
        """Free the slot of an attempt that has ended, and look for work."""
        lane.running.discard(task)
        if lane.suspect is task:
            lane.suspect = None
        self._wake.set()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log_event(logging.ERROR, "settle_failed", error=safe_error(error))
            self._retry_times.append(self._clock() + self._lease)  # the job is due again when its lease ends

    def _seconds_until_retry(self) -> float | None:
        """Return the seconds until a job that was put off may be due; None if this worker put none off."""
        if not self._retry_times:
            return None
        seconds = (min(self._retry_times) - self._clock()).total_seconds()
        longest = LONGEST_WAIT
        if self.seconds_until_due is not None:
            longest = min(LONGEST_WAIT, self.seconds_until_due)
        return min(max(0.001, seconds), longest)  # a time that has passed gives a minimal wait

    async def _find_seconds_until_due(self) -> float | None:
        """Return the seconds until an unfinished job of any worker may be due here, or None if there is none."""
        page = await self._storage.jobs(JobQuery(states=UNFINISHED, limit=validation.PAGE))
        waits = [self._seconds_until_claimable(job) for job in page.items if job.kind in self._handlers]
        if page.next_after is not None:  # a job that is not on this page may be due sooner
            waits.append(self._config.lease_seconds)
        return min(*waits, LONGEST_WAIT) if waits else None

    def _seconds_until_claimable(self, job: Job) -> float:
        """Return the seconds until a job that could not be claimed may be due.

        The clock of the store may differ from the local one. So the wait is never longer than the time for which the
        job was held or put off, and a job that is due by the local clock is claimed every `poll_seconds`.
        """
        due = job.lease_until or job.not_before
        remaining = min(due - self._clock(), due - job.updated_at).total_seconds()
        if remaining <= 0:
            return self._config.poll_seconds
        return remaining + 0.01  # a timer may be early, and clocks are coarse

    async def _wait_for_wake(self, seconds: float | None) -> None:
        """Wait for `poke`, `stop` or the end of a job, at most for a number of seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _await_running(self) -> None:
        """Let the running jobs finish within the grace period."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while self._list_running():
            remaining = began + (self._grace or 0) - loop.time()
            if remaining <= 0:
                break
            self._wake.clear()
            await self._wait_for_wake(remaining)

    async def _cancel_running(self) -> None:
        """Cancel the jobs still running, and wait until they are handed back."""
        running = self._list_running()
        if not running:
            return
        self.stop(grace=0)
        for lane in self._lanes:
            for handler_task in lane.handling:
                handler_task.cancel()
        await asyncio.wait(running)

    # ── one attempt ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _run_attempt(self, lane: _Lane, lease: Lease) -> None:
        """Run the handler of a job under its lease, and settle the outcome.

        The lease is `silent` if the previous attempt ended without an outcome. After too many attempts such a job has
        failed: it may be the reason why its workers die.
        """
        too_many = lease.attempt > self._config.max_attempts and lease.job.kind not in PATIENT_KINDS
        if lease.silent and too_many:
            error = f"attempt {lease.attempt - 1} ended without an answer: its worker died or was too slow"
            await self._settle_attempt(lease, Failed(error=error))
            return
        handler_task = asyncio.create_task(self._run_handler(lane, lease))
        lane.handling.add(handler_task)
        handler_task.add_done_callback(lane.handling.discard)
        if self._grace == 0:  # the worker was stopped after the job was claimed
            handler_task.cancel()
        is_lease_lost = False
        try:
            is_lease_lost = not await self._hold_lease(handler_task, lease)
        except asyncio.CancelledError:  # the event loop is about to end
            self.stop(grace=0)
        if not handler_task.done():
            handler_task.cancel()
            await asyncio.wait([handler_task])
        if not handler_task.cancelled():
            await self._settle_attempt(lease, handler_task.result())
        elif self.stopping:
            await self._settle_attempt(lease, Retry(error="the worker was stopped", not_before=self._clock()))
        elif not is_lease_lost:  # the handler cancelled itself
            await self._settle_attempt(lease, self._retry_or_fail(lease, "CancelledError"))

    async def _run_handler(self, lane: _Lane, lease: Lease) -> Outcome:
        """Run the handler of a job; return its outcome, or the outcome that corresponds to its error."""
        try:
            other_tasks = lane.handling - {asyncio.current_task()}
            if lease.silent and other_tasks:
                # The job runs alone: if it kills this worker, no other job dies with it.
                await asyncio.wait(other_tasks)
            return await self._call_handler(lease)
        except LeaseLostError:  # another attempt has the job
            return None
        except (SessionNotFoundError, GoneError) as error:
            return Failed(error=safe_error(error), cancelled=True)
        except ACMSError as error:
            if error.retryable:
                return self._retry_or_fail(lease, safe_error(error))
            return Failed(error=safe_error(error))
        except Exception as error:
            return self._retry_or_fail(lease, safe_error(error))

    async def _call_handler(self, lease: Lease) -> Outcome:
        """Call the handler of the job, recorded as an operation of its own."""
        job = lease.job
        attributes = {"acms.job.attempt": lease.attempt, "gen_ai.memory.store.id": job.context}
        with record_operation("job", attributes, apart=True) as operation:
            operation.note(job)
            outcome = await self._handlers[job.kind](self._storage, lease)
            operation.note(Done() if outcome is None else outcome)
            return outcome

    def _retry_or_fail(self, lease: Lease, error: str) -> Retry | Failed:
        """Return a later attempt as the outcome, or a failure after the last one."""
        if lease.attempt >= self._config.max_attempts:
            return Failed(error=error)
        return Retry(
            error=error, not_before=self._clock() + timedelta(seconds=self._retry_delay(lease.attempt))
        )

    def _retry_delay(self, attempt: int) -> float:
        # A job that was retried by hand often may have so many attempts that the delay would overflow.
        return self._retry.delay(min(attempt, 20), self._fraction())

    async def _hold_lease(self, handler_task: asyncio.Task[Outcome], lease: Lease) -> bool:
        """Prolong a lease until its handler has ended; return False as soon as another attempt has the job."""
        while True:
            await asyncio.wait([handler_task], timeout=self._config.lease_seconds / 3)
            if handler_task.done():
                return True
            try:
                if not await self._extend_lease(lease):
                    return False
            except ACMSError as error:  # tried again before the lease ends
                log_event(logging.WARNING, "extend_failed", job=lease.job.id, code=error.code)

    async def _extend_lease(self, lease: Lease) -> bool:
        """Prolong a lease; return False if another attempt has the job.

        True also if the handler has ended the job with its append and is still cleaning up: then it may continue.
        """
        try:
            await self._storage.extend(lease, by=self._lease)
            return True
        except (LeaseLostError, GoneError):
            job = await self._read_job(lease)
            return job is not None and job.state is JobState.DONE and job.attempt == lease.attempt

    async def _read_job(self, lease: Lease) -> Job | None:
        jobs = (await self._storage.jobs(JobQuery(ids=(lease.job.id,)))).items
        return jobs[0] if jobs else None

    async def _settle_attempt(self, lease: Lease, outcome: Outcome) -> None:
        """Store the outcome of an attempt, and report it.

        Without an outcome the handler has ended the job itself, in the commit of its result.
        """
        failures = 0
        while True:
            try:
                if outcome is None:
                    job = await self._read_job(lease)
                else:
                    job = await self._storage.settle(lease, outcome)
                break
            except (LeaseLostError, GoneError):
                job = await self._read_job(lease)
                break
            except ACMSError as error:
                failures += 1
                if not error.retryable or failures == self._retry.max_attempts:
                    raise
                await asyncio.sleep(self._retry_delay(failures))
        # If another attempt has the job, that attempt reports the outcome.
        if job is None or job.attempt != lease.attempt:
            log_event(
                logging.INFO, "lease_lost", job=lease.job.id, kind=lease.job.kind, attempt=lease.attempt
            )
        elif job.state is JobState.RUNNING:
            await self._settle_attempt(
                lease, Failed(error="the handler returned None without finishing the job")
            )
        else:
            self._report_outcome(job)

    def _report_outcome(self, job: Job) -> None:
        """Log the state of a job after an attempt, emit an event, and note when a job that was put off is due."""
        fields: dict[str, Any] = {
            "context_id": job.context,
            "job_id": job.id,
            "kind": job.kind,
            "attempt": job.attempt,
        }
        if job.state is JobState.READY:
            self._retry_times.append(job.not_before)
        if job.state is JobState.DONE:
            log_event(logging.INFO, "job_finished", **fields)
            event: Event = JobFinished(**fields, reason=job.reason)
        else:
            state, error = job.state.value, job.error or ""
            log_event(logging.WARNING, "job_failed", **fields, state=state, error=error)
            event = JobFailed(**fields, state=state, error=error)
        emit_event(self._on_event, event)


def get_background_worker(
    handle: StorageBackend,
    storage: StorageBackend,
    config: WorkerConfig,
    retry: RetryConfig,
    on_event: Callable[[Event], Any] | None = None,
) -> Background:
    """Return the background worker of a handle, created on the first call; it runs once any caller enables it.

    `storage` is the handle, or the store in front of it.
    """
    state = handles.get_loop_state(handle)
    background: Background | None = state.background
    if background is None:
        sessions = handles.get_shared_state(handle).sessions
        background = state.background = Background(storage, config, retry, on_event, state.calls, sessions)
    background.enabled = background.enabled or config.enabled
    return background


class JobSession(Protocol):
    """A session that supplies the handlers for its own jobs."""

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The handlers of the session's jobs by kind."""
        ...

    def emit(self, event: Event) -> None:
        """Receive an event about its jobs."""
        ...


class Background:
    """Runs the jobs that the sessions of one storage handle request, a few at a time.

    It does not poll: it begins with the first `poke` and ends when no job is due and none was put off. If other workers
    hold or have put off jobs that it could run, it begins again when those are due, since the others may have been
    killed. It is stopped before the last user closes the handle, and may begin again afterwards.
    """

    def __init__(
        self,
        storage: StorageBackend,
        config: WorkerConfig,
        retry: RetryConfig,
        on_event: Callable[[Event], Any] | None = None,
        calls: Collection[asyncio.Task[Any]] = (),
        sessions: Mapping[str, JobSession] = {},
    ) -> None:
        #: Whether `poke` does anything.
        self.enabled = config.enabled
        self._storage = storage
        self._config = config
        self._retry = retry
        self._on_event = on_event
        #: Running calls of reflectors, which are cancelled when the work ends.
        self._calls = calls
        #: Open sessions by the id of their log: their handlers and listeners are used for its jobs.
        self._sessions = sessions
        self._handlers: dict[str, Handler] = {}
        self._worker: Worker | None = None
        self._task: asyncio.Task[None] | None = None
        #: Timer that begins the work again when a job that others hold or have put off is due.
        self._alarm: asyncio.TimerHandle | None = None

    def serve(self, kind: str, handler: Handler) -> None:
        """Run jobs of a kind with a handler, unless a session on the log has its own; the first handler given stays."""
        sessions = self._sessions

        async def run(storage: StorageBackend, lease: Lease) -> Outcome:
            session = sessions.get(lease.job.context)
            own_handler = handler if session is None else session.handlers.get(kind, handler)
            return await own_handler(storage, lease)

        self._handlers.setdefault(kind, run)

    def serves(self, job: Job) -> bool:
        """Return whether this worker will run a job once no other worker holds it."""
        return self.enabled and not self.has_failed and job.kind in self._handlers

    @property
    def has_failed(self) -> bool:
        """Whether its last work ended with an error: then it does nothing until the next `poke`."""
        task = self._task
        if task is None or not task.done() or task.cancelled():
            return False
        return task.exception() is not None

    def poke(self) -> None:
        """Look for work now; call it on the event loop of the handle."""
        if not self.enabled:
            return
        loop = asyncio.get_running_loop()
        self._cancel_alarm()
        if self._worker is not None and not self._worker.stopping and self._runs_on(loop):
            self._worker.poke()
            return
        self._worker = worker = Worker(
            self._storage,
            self._handlers,
            config=self._config,
            retry=self._retry,
            concurrency=self._config.concurrency,
            on_event=self._emit_event,
        )
        self._task = loop.create_task(self._run_worker(worker), name="acms-background")
        self._task.add_done_callback(_log_worker_failure)

    async def _run_worker(self, worker: Worker) -> None:
        await worker.drain(retries=True)
        if worker.seconds_until_due is not None and not worker.stopping:
            self._alarm = asyncio.get_running_loop().call_later(
                worker.seconds_until_due, _poke_worker, weakref.ref[Background](self)
            )

    def _emit_event(self, event: Event) -> None:
        """Pass an event to the session whose log it is about, else to the listener of the first session."""
        session = self._sessions.get(getattr(event, "context_id", ""))
        emit_event(self._on_event if session is None else session.emit, event)

    def _cancel_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _runs_on(self, loop: asyncio.AbstractEventLoop) -> bool:
        task = self._task
        return task is not None and not task.done() and task.get_loop() is loop

    async def wait_until_idle(self) -> None:
        """Wait until no job is due and none is put off; return at once if there were no requests."""
        task = self._task
        if task is not None and self._runs_on(asyncio.get_running_loop()):
            await asyncio.wait([task])

    async def stop(self, *, grace: float = GRACE) -> None:
        """Begin no more jobs and wait for the running ones; after `grace` seconds hand them back to other workers.

        Calls of reflectors are not waited for: they are cancelled, and their jobs handed back at once.
        """
        self._cancel_alarm()
        task = self._task
        if self._worker is not None and task is not None and self._runs_on(asyncio.get_running_loop()):
            self._worker.stop(grace=grace)
            for call in list(self._calls):
                call.cancel()
            await asyncio.wait([task])


def _poke_worker(reference: weakref.ref[Background]) -> None:
    """Poke a background worker unless it was collected: a timer must not keep a store open."""
    background = reference()
    if background is not None:
        background.poke()


def _log_worker_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log_event(logging.ERROR, "background_failed", error=safe_error(error))
