"""The worker and the list of jobs in a shell."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from acms import ACMS, ACMSConfig, Job, JobState, WorkerConfig, compose, open_storage
from acms.cli import base
from acms.cli.commands import app
from acms.cli.jobs import TenantWorkers
from acms.cli.keys import open_service_stores
from acms.errors import ConflictError, NotFoundError
from acms.jobs import requests as operations
from acms.jobs.worker import Worker
from acms.model import Append, Failed, JobDraft, JobQuery
from acms.observability.events import Event
from acms.ports import Handle, StorageBackend
from acms.testing.logs import append_drafts, create_log

LISTED = ACMSConfig(worker=WorkerConfig(enabled=False))
"""A session that leaves its jobs to a worker."""


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ACMS_DB", "ACMS_DEBUG", "NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def call(*arguments: str) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json").stdout)


def begin(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "acms.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def add(db: str, *kinds: str) -> None:
    """Enqueue one job of each kind for the session "talk"."""
    async with ACMS("talk", open_storage(db), config=LISTED) as session:
        context = await session._shared.ensure()
        jobs = tuple(JobDraft(kind=kind, dedupe=f"{kind} {os.urandom(4).hex()}") for kind in kinds)
        (result,) = await session._shared.storage.append([Append(context=context, drafts=(), jobs=jobs)])
        assert not isinstance(result, Exception)


async def give_up(db: str, *errors: str) -> None:
    """Let the oldest jobs that are due fail."""
    async with open_storage(db) as storage:
        for error in errors:
            (lease,) = await storage.claim(["compact", "other"], lease=timedelta(minutes=1))
            await storage.settle(lease, Failed(error=error))


@pytest.fixture(params=["sqlite", "postgres"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store with one session and three jobs: one that failed, one that waits, and one nobody can do."""
    fresh = request.param == "postgres"  # its own database, so that its jobs have the numbers 1 to 3
    url = request.getfixturevalue("postgres_url") if fresh else base.file_url(tmp_path / "test.db")
    asyncio.run(add(url, "compact", "compact", "other"))
    asyncio.run(give_up(url, "PROVIDER: overloaded"))
    return url


# ── the list ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_jobs_are_listed_newest_first(db: str) -> None:
    lines = run("jobs", "--db", db).stdout.splitlines()
    assert lines[0].split() == ["id", "kind", "state", "session", "note", "attempt", "due"]
    assert [line.split()[:4] for line in lines[1:]] == [
        ["3", "other", "ready", "talk"],
        ["2", "compact", "ready", "talk"],
        ["1", "compact", "failed", "talk"],
    ]
    assert "PROVIDER: overloaded" in lines[3]
    assert run("jobs", "list", "--db", db).stdout == run("jobs", "list", "talk", "--db", db).stdout
    assert run("jobs", "talk", "--db", db).stdout.splitlines() == lines


def test_the_list_is_cut_by_state_and_in_pages(db: str) -> None:
    assert [job["id"] for job in call("jobs", "--state", "failed", "--db", db)["jobs"]] == ["1"]
    first = call("jobs", "--limit", "2", "--db", db)
    assert ([job["id"] for job in first["jobs"]], first["next_after"]) == (["3", "2"], "2")
    assert "more: --after 2" in run("jobs", "--limit", "2", "--db", db).stdout
    rest = call("jobs", "--after", "2", "--db", db)
    assert ([job["id"] for job in rest["jobs"]], rest["next_after"]) == (["1"], None)
    (job,) = rest["jobs"]
    assert (job["session"], job["kind"], job["state"], job["attempt"], job["error"]) == (
        "talk", "compact", "failed", 1, "PROVIDER: overloaded",
    )  # fmt: skip
    assert run("jobs", "--state", "running", "--db", db).stdout == "no jobs\n"
    assert call("jobs", "--state", "running", "--db", db) == {"jobs": [], "next_after": None}


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)  # the same on every store
def test_jobs_of_an_unknown_session_are_an_error(db: str) -> None:
    assert "SESSION_NOT_FOUND" in run("jobs", "nobody", "--db", db, code=1).stderr
    assert "SESSION_NOT_FOUND" in run("jobs", "list", "retry", "--db", db, code=1).stderr


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)  # the same on every store
@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs", "one", "two"),
        ("jobs", "retry"),
        ("jobs", "cancel"),
        ("jobs", "--state", "odd"),
        ("jobs", "--limit", "0"),
        ("worker", "--concurrency", "0"),
        ("worker", "--kinds", "compact,nonsense"),
    ],
    ids=" ".join,
)
def test_wrong_usage_leaves_with_2(db: str, arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "--db", db, code=2)
    assert result.stdout == ""
    assert result.stderr


def test_a_worker_makes_no_database(tmp_path: Path) -> None:
    url = base.file_url(tmp_path / "absent.db")
    assert "there is no database" in run("worker", "--once", "--db", url, code=1).stderr
    assert not (tmp_path / "absent.db").exists()


# ── retry and cancel ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_failed_job_is_retried_and_done(db: str) -> None:
    assert "ready" in run("jobs", "retry", "1", "--db", db).stdout
    assert run("worker", "--once", "--db", db).stdout.splitlines() == [
        "job 2 compact done, attempt 1",
        "job 1 compact done, attempt 2",
    ]
    error = json.loads(run("jobs", "retry", "1", "--db", db, "--json", code=1).stderr)["error"]
    assert (error["code"], error["message"]) == ("CONFLICT", "job 1 is done")


def test_several_jobs_are_cancelled_and_one_comes_back(db: str) -> None:
    assert [job["state"] for job in call("jobs", "cancel", "1", "2", "--db", db)["jobs"]] == ["cancelled"] * 2
    assert run("worker", "--once", "--db", db).stdout == ""
    assert call("jobs", "cancel", "2", "--db", db)["jobs"][0]["error"] == "cancelled by hand"
    assert call("jobs", "retry", "2", "--db", db)["jobs"][0]["state"] == "ready"
    assert run("worker", "--once", "--db", db).stdout == "job 2 compact done, attempt 1\n"


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)  # the same on every store
def test_an_unknown_job_is_an_error(db: str) -> None:
    for verb in ("retry", "cancel"):
        error = json.loads(run("jobs", verb, "99", "--db", db, "--json", code=1).stderr)["error"]
        assert error["code"] == "NOT_FOUND"
        assert error["options"]


@pytest.fixture
def store(any_url: str) -> Handle:
    return open_storage(any_url)


async def test_operators_cannot_do_what_makes_no_sense(store: Handle) -> None:
    async with store:
        context = await create_log(store)
        draft = JobDraft(kind="k", dedupe="d")
        await append_drafts(store, context, jobs=(draft,))
        (lease,) = await store.claim(["k"], lease=timedelta(minutes=1))
        one = lease.job.id
        with pytest.raises(ConflictError, match="is already running"):
            await operations.retry_job_by_id(store, one)
        assert (await operations.cancel_job_by_id(store, one)).state is JobState.CANCELLED
        assert (await operations.cancel_job_by_id(store, one)).state is JobState.CANCELLED
        await append_drafts(store, context, jobs=(draft,))
        with pytest.raises(ConflictError, match=rf"job \d+ already does the work of job {one}"):
            await operations.retry_job_by_id(store, one)
        (lease,) = await store.claim(["k"], lease=timedelta(minutes=1))
        await append_drafts(store, context, finish=lease)
        for change in (operations.retry_job_by_id, operations.cancel_job_by_id):
            with pytest.raises(ConflictError, match="is done"):
                await change(store, lease.job.id)
            with pytest.raises(NotFoundError):
                await change(store, "no number")
        assert (await operations.retry_job_by_id(store, one)).state is JobState.READY


def test_every_installation_can_do_the_same_kinds_of_job() -> None:
    class Model:
        model = "small"

        async def summarize(self, request: object) -> str:
            return ""

    kinds = compose.handlers(ACMSConfig(), [Model()])
    assert sorted(kinds) == ["adopt", "collect", "compact", "compact:small", "expire", "reflect", "webhook"]


# ── the worker ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_writes_one_line_of_json_for_each_job(db: str) -> None:
    (line,) = run("worker", "--once", "--json", "--db", db).stdout.splitlines()
    found = json.loads(line)
    assert (found["id"], found["kind"], found["state"], found["attempt"], found["error"]) == (
        "2", "compact", "done", 1, None,
    )  # fmt: skip
    assert found["context"].startswith("c_")
    (job,) = call("jobs", "--state", "done", "--db", db)["jobs"]
    assert job["error"] is None
    assert found["reason"] == job["reason"]
    assert job["reason"].startswith("0 of 0 messages could be summarised")
    assert call("jobs", "--state", "ready", "--db", db)["jobs"][0]["kind"] == "other"


def test_a_worker_does_only_the_kinds_it_was_given(db: str) -> None:
    assert run("worker", "--once", "--kinds", "adopt, expire", "--db", db).stdout == ""
    assert "job 2" in run("worker", "--once", "--kinds", "compact", "--db", db).stdout


def test_a_job_that_fails_is_told_with_its_error(db: str) -> None:
    async def delete() -> None:
        async with open_storage(db) as storage:
            context = await storage.context("talk")
            await storage.settings(context.id, {"deleted": True}, rev=context.settings_rev)

    asyncio.run(delete())
    line = run("worker", "--once", "--db", db).stdout
    assert line.startswith("job 2 compact cancelled, attempt 1: SESSION_NOT_FOUND: ")


@pytest.fixture
def worker(db: str) -> Iterator[subprocess.Popen[str]]:
    child = begin("worker", "--db", db)
    yield child
    if child.poll() is None:
        child.kill()
    child.wait()
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_stops_a_worker_in_order(db: str, worker: subprocess.Popen[str], name: str) -> None:
    assert worker.stdout is not None
    assert worker.stderr is not None
    assert worker.stdout.readline() == "job 2 compact done, attempt 1\n"
    asyncio.run(add(db, "compact"))  # while it waits
    assert worker.stdout.readline() == "job 4 compact done, attempt 1\n"
    worker.send_signal(signal.Signals[name])
    assert worker.wait(60) == 0
    assert worker.stderr.read() == ""


async def test_a_session_leaves_its_jobs_to_a_worker(db: str) -> None:
    storage = open_storage(db)
    async with ACMS("talk", storage, config=LISTED) as session:
        for n in range(30):
            await session.ingest("user", f"message {n}")
        job = await session.compact(summary_tokens=30)
        assert isinstance(job, Job)
        said, _ = await asyncio.to_thread(begin("worker", "--once", "--db", db).communicate, timeout=60)
        assert f"job {job.id} compact done, attempt 1" in said
        assert (await session.wait(job)) is not None
        (found,) = (await storage.jobs(JobQuery(ids=(job.id,)))).items
        assert found.state is JobState.DONE


# ── the worker of all tenants ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["sqlite", "postgres"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of two tenants that have keys, each with a job, and of a third without a key, with a job too."""
    fresh = request.param == "postgres"  # its own database: no other test's tenants
    url = request.getfixturevalue("postgres_url") if fresh else base.file_url(tmp_path / "test.db")
    for tenant in ("acme", "globex"):
        call("keys", "create", "--tenant", tenant, "--db", url)
    for tenant in ("acme", "globex", "nokey"):
        asyncio.run(add(f"{url}?tenant={tenant}", "compact"))
    return url


def states(url: str, *tenants: str) -> list[str]:
    """Return how the jobs of tenants stand."""
    return [
        job["state"] for tenant in tenants for job in call("jobs", "--db", f"{url}?tenant={tenant}")["jobs"]
    ]


def test_a_worker_of_all_tenants_does_the_jobs_of_those_with_keys(home: str) -> None:
    lines = run("worker", "--all-tenants", "--once", "--db", home).stdout.splitlines()
    assert len(lines) == 2
    assert states(home, "acme", "globex", "nokey") == ["done", "done", "ready"]
    assert run("worker", "--all-tenants", "--once", "--db", home).stdout == ""


async def test_a_tenant_whose_first_key_is_made_later_is_found(home: str) -> None:
    async with open_service_stores(home) as (stores, keys):
        done: asyncio.Queue[Event] = asyncio.Queue()

        def made(storage: StorageBackend) -> Worker:
            return Worker(storage, compose.handlers(ACMSConfig()), on_event=done.put_nowait)

        one = TenantWorkers(stores, keys, made, poll_seconds=0.01, look_seconds=0.01)
        running = asyncio.create_task(one.run())
        for _ in range(2):
            await asyncio.wait_for(done.get(), 60)
        await keys.create("nokey")
        await asyncio.wait_for(done.get(), 60)
        one.stop()
        await asyncio.wait_for(running, 60)
    assert await asyncio.to_thread(states, home, "acme", "globex", "nokey") == ["done", "done", "done"]


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_a_signal_stops_a_worker_of_all_tenants_in_order(home: str) -> None:
    with begin("worker", "--all-tenants", "--db", home) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert len([child.stdout.readline() for _ in range(2)]) == 2
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
        assert child.stderr.read() == ""
