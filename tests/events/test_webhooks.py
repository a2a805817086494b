"""Webhooks: delivered at least once, in the order of each log, signed, without text, and nowhere that is not public."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from acms import (
    ACMS,
    ACMSError,
    ConflictError,
    Job,
    JobState,
    Kind,
    NotFoundError,
    State,
    ValidationError,
    WorkerConfig,
    open_storage,
)
from acms.errors import StorageUnavailableError
from acms.events import delivery, webhooks
from acms.events.delivery import RETRY_SECONDS, Delivery
from acms.events.webhooks import KINDS, Webhooks
from acms.jobs import requests
from acms.jobs.worker import Worker
from acms.kv import InMemoryKV, KVEntry
from acms.model import WEBHOOK, Append, Done, Failed, JobDraft, JobQuery, Lease, Receipt
from acms.ports import HasOwnValues
from acms.storage import MemoryStorage, outbox
from acms.storage.outbox import JOB, WEBHOOKS
from acms.testing.logs import append_drafts, create_log, draft_fact, draft_message, draft_summary, fork_log
from tests.events.receiver import OK, Receiver, answer_status, running_receiver
from tests.support.talk import Storage


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """An address that keeps its requests."""
    with running_receiver() as found:
        yield found


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Webhooks count from the next append on, and waits are short."""
    monkeypatch.setattr(outbox, "FRESH", 0.0)
    monkeypatch.setattr(delivery, "RETRY_SECONDS", (0.01,) * len(RETRY_SECONDS))
    monkeypatch.setattr(delivery, "SHORTEST_WAIT", timedelta(seconds=0.01))


async def deliver_all(storage: Any) -> None:
    """Work until nothing is to be delivered any more."""
    worker = Worker(storage, {WEBHOOK: Delivery()}, config=WorkerConfig(poll_seconds=0.02), concurrency=4)
    await worker.drain(retries=True)
    while worker.seconds_until_due is not None:  # another one has put something off
        await asyncio.sleep(worker.seconds_until_due)
        await worker.drain(retries=True)


async def delivery_jobs(storage: Any, *states: JobState) -> list[Job]:
    """Return the jobs that deliver."""
    found = (await storage.jobs(JobQuery(states=states, limit=500))).items
    return [job for job in found if job.kind == WEBHOOK]


async def add_webhook(storage: Any, receiver: Receiver, **given: Any) -> tuple[str, str]:
    """Add a webhook of the test's own network; return its id and its secret."""
    made, secret = await Webhooks(storage).add(receiver.url, private=True, **given)
    return made.id, secret


async def test_what_is_appended_from_now_on_is_delivered_in_order_signed_and_without_text(
    storage: Storage, receiver: Receiver
) -> None:
    old, quiet = await create_log(storage, "old"), await create_log(storage, "quiet")
    await append_drafts(storage, old, *[draft_message(f"before {n}") for n in range(3)])
    await append_drafts(storage, quiet, draft_message("never again"))
    id, secret = await add_webhook(storage, receiver)
    async with ACMS("user_123", storage, None) as session:
        for n in range(5):
            await session.ingest("user", f"secret text {n}")
        context = await storage.context("user_123")
    await append_drafts(storage, old, draft_fact("secret fact"))
    child = await fork_log(storage, old)
    await append_drafts(storage, child, draft_message("secret of the child"))
    await append_drafts(storage, old, draft_summary(1, 2), draft_message("after"))
    await deliver_all(storage)
    found = receiver.verified(secret)
    assert receiver.versions(context.id) == [1, 2, 3, 4, 5]
    assert receiver.versions(old.id) == [4, 5, 6]
    assert receiver.versions(child.id) == [5]
    assert receiver.versions(quiet.id) == []
    assert b"secret" not in b"".join(body for _, body in receiver.requests)
    first = next(one for one in found if one["data"]["contextId"] == context.id)
    entry = (await storage.read(context.id, limit=1))[0]
    assert first == {
        "type": "message.appended",
        "timestamp": entry.created_at.isoformat().replace("+00:00", "Z"),
        "data": {
            "contextId": context.id, "sessionId": "user_123", "namespace": "default", "id": entry.id,
            "kind": "message", "role": "user", "version": 1, "position": 1,
        },
    }  # fmt: skip
    ids = [headers["webhook-id"] for headers, _ in receiver.requests]
    assert len(set(ids)) == len(ids)
    assert ids[[json.loads(body) for _, body in receiver.requests].index(first)] == entry.id
    assert {one["type"] for one in found} == {"message.appended", "fact.appended", "summary.appended"}
    assert {job.state for job in await delivery_jobs(storage)} == {JobState.DONE}
    assert [one.id for one in await Webhooks(storage).list()] == [id]


async def test_only_the_kinds_that_were_asked_for_are_delivered(storage: Storage, receiver: Receiver) -> None:
    await add_webhook(storage, receiver, events=["fact"])
    context = await create_log(storage)
    await append_drafts(storage, context, draft_message("a"))
    assert await delivery_jobs(storage) == []
    await append_drafts(
        storage, context, draft_message("b"), draft_fact("c"), draft_message("d"), draft_fact("e")
    )
    await deliver_all(storage)
    assert receiver.versions(context.id) == [3, 5]


async def test_what_is_the_services_own_is_nobodys_business(storage: Storage, receiver: Receiver) -> None:
    await add_webhook(storage, receiver)
    await append_drafts(
        storage, await create_log(storage, "@audit", namespace="@acms"), draft_message("intent")
    )
    assert await delivery_jobs(storage) == []


async def test_each_tenant_has_webhooks_of_its_own(url: str, receiver: Receiver) -> None:
    bare = url.partition("?")[0]
    async with open_storage(url) as one, open_storage(f"{bare}?tenant=other-of-{id(receiver)}") as other:
        await add_webhook(one, receiver)
        assert await Webhooks(other).list() == []
        await append_drafts(other, await create_log(other), draft_message("of another tenant"))
        assert await delivery_jobs(other) == []
        await one.aclose()
        await other.aclose()


async def test_a_failure_is_tried_again_before_anything_later_is_sent(
    storage: Storage, receiver: Receiver
) -> None:
    _, secret = await add_webhook(storage, receiver)
    context = await create_log(storage)
    answers = iter(
        [OK, answer_status(500), answer_status(429, **{"retry-after": "0"}), answer_status(404), OK]
    )

    def answer(handler: BaseHTTPRequestHandler) -> None:
        next(answers, OK)(handler)

    receiver.answer = answer
    await append_drafts(storage, context, *[draft_message(str(n)) for n in range(4)])
    await deliver_all(storage)
    assert receiver.versions(context.id) == [1, 2, 2, 2, 2, 3, 4]
    assert len(receiver.verified(secret)) == 7


async def test_what_is_given_up_is_listed_and_replayed_from_where_it_stood(
    storage: Storage, receiver: Receiver
) -> None:
    id, _ = await add_webhook(storage, receiver)
    context = await create_log(storage)
    receiver.answer = answer_status(500)
    await append_drafts(storage, context, draft_message("a"), draft_message("b"))
    await deliver_all(storage)
    assert receiver.versions(context.id) == [1] * (len(RETRY_SECONDS) + 1)
    (dead,) = await delivery_jobs(storage, JobState.FAILED)
    assert dead.error == "the webhook answered 500"
    assert dead.payload["webhook"] == id
    await append_drafts(storage, context, draft_message("c"))  # one more attempt, and no more
    await deliver_all(storage)
    assert receiver.versions(context.id) == [1] * (len(RETRY_SECONDS) + 2)
    receiver.answer = OK
    del receiver.requests[:]
    assert len(await Webhooks(storage).replay(id)) == 1
    await deliver_all(storage)
    assert receiver.versions(context.id) == [1, 2, 3]
    with pytest.raises(NotFoundError):
        await Webhooks(storage).replay("nobody")


def never_answer(receiver: Receiver) -> Any:
    """Take a request and never answer it."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        del handler
        receiver.ends.wait(60)

    return answer


def answer_endlessly(handler: BaseHTTPRequestHandler) -> None:
    """Answer with success and go on for ever."""
    handler.send_response(200)
    handler.send_header("content-length", str(10**12))
    handler.end_headers()
    while True:
        handler.wfile.write(b"x" * 65536)


async def test_addresses_that_answer_badly_cost_little_and_lead_nowhere(
    storage: Storage, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = await create_log(storage)
    with running_receiver() as inside:
        await add_webhook(storage, receiver)
        receiver.answer = answer_status(302, location=inside.url)
        await append_drafts(storage, context, draft_message("a"))
        await asyncio.wait_for(deliver_all(storage), 60)
        (dead,) = await delivery_jobs(storage, JobState.FAILED)
        assert dead.error == "the webhook: answered 302; redirects are not followed"
        assert inside.requests == []
    receiver.answer = never_answer(receiver)
    monkeypatch.setattr(delivery, "RETRY_SECONDS", ())
    seconds = delivery.ANSWER_SECONDS
    monkeypatch.setattr(delivery, "ANSWER_SECONDS", 0.2)
    await append_drafts(storage, context, draft_message("b"))
    await asyncio.wait_for(deliver_all(storage), 60)
    assert (await delivery_jobs(storage, JobState.FAILED))[0].error == "the webhook: no answer within 0.2 s"
    receiver.answer = answer_endlessly
    monkeypatch.setattr(delivery, "ANSWER_SECONDS", seconds)
    del receiver.requests[:]
    await append_drafts(storage, context, draft_message("c"))
    await asyncio.wait_for(deliver_all(storage), 60)
    assert receiver.versions(context.id) == [1, 2, 3]


async def test_an_address_that_is_not_public_is_not_connected_to(
    storage: Storage, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "RETRY_SECONDS", ())
    await Webhooks(storage).add(receiver.url.replace("http:", "https:").replace("127.0.0.1", "localhost"))
    context = await create_log(storage)
    await append_drafts(storage, context, draft_message("a"))
    await deliver_all(storage)
    (dead,) = await delivery_jobs(storage, JobState.FAILED)
    assert "public" in (dead.error or "")
    assert "127.0.0.1" not in (dead.error or "")
    assert receiver.requests == []


@pytest.mark.parametrize(
    ("url", "private"),
    [
        ("", True), ("example.com", True), ("ftp://example.com/", True), ("http://example.com/", False),
        ("https://user:hunter2@example.com/", False), ("https://example.com/?a=b", False),
        ("https://example.com/#a", False), ("https://[::1/", False), ("https://", False),
        ("https://exa mple.com/", False), ("https://example.com:99999/", False), ("https://example.com:0/", False),
    ],
)  # fmt: skip
async def test_what_is_no_address_is_refused_without_being_repeated(url: str, private: bool) -> None:
    async with open_storage("memory://") as storage:
        with pytest.raises(ValidationError, match=r"^url: ") as caught:
            await Webhooks(storage).add(url, private=private)
        assert "hunter2" not in str(caught.value)


async def test_there_is_an_end_to_kinds_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "MAX_WEBHOOKS", 2)
    async with open_storage("memory://") as storage:
        home = Webhooks(storage)
        for kinds in ([], ["gossip"]):
            with pytest.raises(ValidationError, match="events") as caught:
                await home.add("https://example.com/", events=kinds)
            assert caught.value.options == KINDS
        for _ in range(2):
            await home.add("https://example.com/")
        with pytest.raises(ConflictError):
            await home.add("https://example.com/")


async def test_what_is_erased_before_its_delivery_is_told_without_its_text(
    storage: Storage, receiver: Receiver
) -> None:
    await add_webhook(storage, receiver)
    context = await create_log(storage)
    await append_drafts(storage, context, draft_message("secret"), draft_message("b"))
    await storage.blank(context.id, [1], to=State.ERASED, audit={})
    await deliver_all(storage)
    assert receiver.versions(context.id) == [1, 2]
    assert b"secret" not in b"".join(body for _, body in receiver.requests)


async def test_a_death_between_a_delivery_and_its_record_delivers_it_again_and_loses_nothing(
    storage: Storage, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_webhook(storage, receiver)
    context = await create_log(storage)
    kept = Webhooks.store_progress
    dies = iter([False, False, True])  # the first is where it begins

    async def keep(self: Webhooks, *given: Any) -> None:
        if next(dies, False):
            raise StorageUnavailableError
        await kept(self, *given)

    monkeypatch.setattr(Webhooks, "store_progress", keep)
    await append_drafts(storage, context, draft_message("a"), draft_message("b"), draft_message("c"))
    await deliver_all(storage)
    assert receiver.versions(context.id) == [1, 2, 2, 3]


async def test_what_is_appended_while_a_delivery_ends_is_not_forgotten(
    storage: Storage, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_webhook(storage, receiver)
    context = await create_log(storage)
    before = delivery.try_finish_delivery
    late = iter([draft_message("late"), draft_message("later")])

    async def ends(*given: Any) -> bool:
        if (draft := next(late, None)) is not None:
            await append_drafts(storage, context, draft)  # its job is there already, and runs
        return await before(*given)

    monkeypatch.setattr(delivery, "try_finish_delivery", ends)
    await append_drafts(storage, context, draft_message("a"))
    await deliver_all(storage)
    assert receiver.versions(context.id) == [1, 2, 3]
    assert {job.state for job in await delivery_jobs(storage)} == {JobState.DONE}


async def test_a_webhook_that_is_removed_is_told_nothing_more(storage: Storage, receiver: Receiver) -> None:
    id, _ = await add_webhook(storage, receiver)
    context = await create_log(storage)
    await append_drafts(storage, context, draft_message("a"))
    await deliver_all(storage)
    await append_drafts(storage, context, draft_message("b"))
    await Webhooks(storage).remove(id)
    await deliver_all(storage)
    assert receiver.versions(context.id) == [1]
    assert isinstance(storage, HasOwnValues)
    left = [entry.key for entry in (await storage.own_values().list("webhooks")).entries]
    assert left == [WEBHOOKS]
    await append_drafts(storage, context, draft_message("c"))
    assert not await delivery_jobs(storage, JobState.READY)
    with pytest.raises(NotFoundError):
        await Webhooks(storage).remove(id)


async def test_a_webhook_that_does_not_answer_leaves_other_work_its_places(
    storage: Storage, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "RETRY_SECONDS", (3_600.0,))
    await add_webhook(storage, receiver)
    hang_up = threading.Event()
    receiver.answer = lambda handler: hang_up.wait(60)  # and say nothing
    contexts = [await create_log(storage) for _ in range(6)]
    for context in contexts:
        await append_drafts(storage, context, draft_message("a"))
    worker = Worker(storage, {WEBHOOK: Delivery()}, concurrency=4)
    working = asyncio.create_task(worker.run())
    while len(receiver.requests) < delivery.MAX_LOGS_AT_ONCE:
        await asyncio.sleep(0.01)
    hang_up.set()
    while (
        len({job.id for job in await delivery_jobs(storage) if job.state is JobState.READY and job.attempt})
        < 6
    ):
        await asyncio.sleep(0.02)
    worker.stop()
    await working
    assert len(receiver.requests) == delivery.MAX_LOGS_AT_ONCE, "who has failed is left alone for a while"


async def test_while_the_store_does_not_say_which_webhooks_there_are_they_are_as_before(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage("memory://") as storage:
        await add_webhook(storage, receiver)
        context = await create_log(storage)
        await append_drafts(storage, context, draft_message("a"))

        async def fails(key: str) -> None:
            raise StorageUnavailableError

        assert isinstance(storage, HasOwnValues)
        with monkeypatch.context() as patch:
            patch.setattr(storage.own_values(), "get", fails)
            await append_drafts(storage, context, draft_message("b"))
        assert len(await delivery_jobs(storage, JobState.READY)) == 1
        await deliver_all(storage)
        assert receiver.versions(context.id) == [1, 2]


async def test_a_job_that_was_put_off_often_is_run_again_after_its_worker_died(receiver: Receiver) -> None:
    async with open_storage("memory://") as storage:
        await add_webhook(storage, receiver)
        context = await create_log(storage)
        await append_drafts(storage, context, draft_message("a"))
        for _ in range(9):
            await storage.claim([WEBHOOK], lease=timedelta(0))
        await deliver_all(storage)
        assert receiver.versions(context.id) == [1]


async def test_a_delivery_of_a_deleted_session_is_cancelled(receiver: Receiver) -> None:
    async with open_storage("memory://") as storage:
        await add_webhook(storage, receiver)
        async with ACMS("user_123", storage, None) as session:
            await session.ingest("user", "a")
            await session.delete()
        await deliver_all(storage)
        assert {job.state for job in await delivery_jobs(storage)} == {JobState.CANCELLED}
        assert receiver.requests == []
        assert await requests.retry_job_by_id(storage, (await delivery_jobs(storage))[0].id)


async def test_appends_at_once_read_the_list_of_webhooks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "FRESH", 2.0)
    read: list[str] = []
    now = 0.0

    class Values(InMemoryKV):
        async def get(self, key: str) -> KVEntry | None:
            read.append(key)
            await asyncio.sleep(0)
            return await super().get(key)

    async def append(ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        assert read, "before anything is written"
        return []

    async def crowd() -> None:
        await asyncio.gather(*[box.append([], append) for _ in range(20)])

    box = outbox.Outbox(MemoryStorage(), Values(), elapsed=lambda: now)
    await crowd()
    await crowd()
    assert read == [WEBHOOKS]
    now = 2.0
    await crowd()
    assert read == [WEBHOOKS, WEBHOOKS]


# ── changes of jobs ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_webhook_can_be_told_of_every_kind_of_entry() -> None:
    assert set(KINDS) == {*Kind, JOB}


def deliveries_in_order(receiver: Receiver) -> list[tuple[str, str]]:
    """Return what arrived in order: of entries their version, of jobs their number and how they stood."""
    found: list[tuple[str, str]] = []
    for headers, body in list(receiver.requests):
        said = json.loads(body)
        data = said["data"]
        found.append((data["kind"], data.get("state") or str(data["version"])))
        if "state" in data:
            assert said["type"] == f"job.{data['state']}"
            assert headers["webhook-id"] == f"job_{data['id']}_{data['attempt']}_{data['state']}"
    return found


async def request_job(storage: Any, context: Any, kind: str = "tidy", *drafts: Any) -> None:
    """Ask for a job, with an append or alone."""
    job = JobDraft(kind=kind, dedupe=f"{kind}:{context.id}", payload={"secret": "text"})
    await storage.append([Append(context=context.id, drafts=drafts, jobs=(job,))])


async def claim_job(storage: Any, kind: str = "tidy") -> Lease:
    """Take a job that is due."""
    (lease,) = await storage.claim([kind], lease=timedelta(minutes=1))
    return lease


async def request_and_finish(storage: Any, context: Any, kind: str = "tidy") -> None:
    """Ask for a job, and do it."""
    await request_job(storage, context, kind)
    await storage.settle(await claim_job(storage, kind), Done())


async def one_look(storage: Any) -> None:
    """Deliver all due events, without waiting for work that goes on; on return the next look is due."""
    await Worker(storage, {WEBHOOK: Delivery()}, config=WorkerConfig(poll_seconds=0.02)).drain()
    await asyncio.sleep(0.02)
    for job in await delivery_jobs(storage, JobState.READY):
        await asyncio.sleep(max(0.0, (job.not_before - datetime.now(UTC)).total_seconds() + 0.01))


async def test_a_job_is_told_as_it_stands_after_the_entries_it_appended(
    storage: Storage, receiver: Receiver
) -> None:
    _, secret = await add_webhook(storage, receiver)
    context = await create_log(storage)
    await request_job(storage, context, "tidy", draft_message("a"))
    await one_look(storage)
    await one_look(storage)
    assert deliveries_in_order(receiver) == [("message", "1"), ("tidy", "ready")]
    lease = await claim_job(storage)
    await one_look(storage)
    assert deliveries_in_order(receiver)[2:] == [("tidy", "running")]
    await storage.append([Append(context=context.id, drafts=(draft_summary(1, 1),), finish=lease)])
    await deliver_all(storage)
    assert deliveries_in_order(receiver)[3:] == [("summary", "2"), ("tidy", "done")]
    assert receiver.verified(secret)[-1]["data"]["attempt"] == 1
    assert b"secret" not in b"".join(body for _, body in receiver.requests)
    assert {job.state for job in await delivery_jobs(storage)} == {JobState.DONE}


async def test_what_becomes_of_a_job_without_an_append_is_told_too(
    storage: Storage, receiver: Receiver
) -> None:
    await add_webhook(storage, receiver, events=["job"])
    context = await create_log(storage)
    await append_drafts(storage, context, draft_message("nobody's business"))
    await request_job(storage, context)
    lease = await claim_job(storage)
    await one_look(storage)
    await storage.settle(lease, Failed(error="it broke"))
    await deliver_all(storage)
    assert deliveries_in_order(receiver) == [("tidy", "running"), ("tidy", "failed")]
    again = await requests.retry_job_by_id(storage, lease.job.id)  # nobody follows it any more
    await one_look(storage)
    await requests.cancel_job_by_id(storage, again.id)
    await deliver_all(storage)
    assert deliveries_in_order(receiver)[2:] == [("tidy", "ready"), ("tidy", "cancelled")]
    assert {job.state for job in await delivery_jobs(storage)} == {JobState.DONE}


async def test_a_job_that_ends_before_the_first_look_is_told_and_what_was_there_before_is_not(
    storage: Storage, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = await create_log(storage)
    await request_job(storage, context, "old")
    await request_and_finish(storage, context, "older")
    await asyncio.sleep(0.05)
    await add_webhook(storage, receiver, events=["job"])
    await request_and_finish(storage, context)
    await one_look(storage)
    assert deliveries_in_order(receiver) == [("tidy", "done")]
    await storage.settle(await claim_job(storage, "old"), Done())
    await deliver_all(storage)
    assert deliveries_in_order(receiver)[1:] == [("old", "done")]


async def test_what_is_asked_for_during_the_last_look_is_not_forgotten(
    storage: Storage, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_webhook(storage, receiver, events=["job"])
    context = await create_log(storage)
    looked = delivery.find_changed_jobs
    late = iter([False, True])

    async def looks(*given: Any) -> Any:
        found = await looked(*given)
        if next(late, False):
            await request_and_finish(storage, context, "late")
        return found

    monkeypatch.setattr(delivery, "find_changed_jobs", looks)
    for kind in ("first", "second"):
        await request_and_finish(storage, context, kind)
        await deliver_all(storage)
    assert [kind for kind, _ in deliveries_in_order(receiver)] == ["first", "second", "late"]


async def test_a_death_while_jobs_are_told_tells_the_last_one_again(
    storage: Storage, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_webhook(storage, receiver, events=["job"])
    context = await create_log(storage)
    kept = Webhooks.store_progress
    dies = iter([True])

    async def keep(self: Webhooks, *given: Any) -> None:
        if len(receiver.requests) == 2 and next(dies, False):
            raise StorageUnavailableError
        await kept(self, *given)

    monkeypatch.setattr(Webhooks, "store_progress", keep)
    for kind in ("a", "b", "c"):
        await request_and_finish(storage, context, kind)
    await deliver_all(storage)
    assert deliveries_in_order(receiver) == [("a", "done"), ("b", "done"), ("b", "done"), ("c", "done")]


async def test_changes_of_jobs_that_are_given_up_are_replayed_from_where_they_stood(
    storage: Storage, receiver: Receiver
) -> None:
    id, _ = await add_webhook(storage, receiver, events=["job"])
    context = await create_log(storage)
    receiver.answer = answer_status(500)
    for kind in ("a", "b"):
        await request_and_finish(storage, context, kind)
    await deliver_all(storage)
    assert deliveries_in_order(receiver) == [("a", "done")] * (len(RETRY_SECONDS) + 1)
    receiver.answer = OK
    del receiver.requests[:]
    assert len(await Webhooks(storage).replay(id)) == 1
    await deliver_all(storage)
    assert deliveries_in_order(receiver) == [("a", "done"), ("b", "done")]
    await Webhooks(storage).remove(id)
    assert isinstance(storage, HasOwnValues)
    assert [entry.key for entry in (await storage.own_values().list("webhooks")).entries] == [WEBHOOKS]


async def test_a_removed_secret_is_neither_in_the_file_nor_in_its_log(tmp_path: Path) -> None:
    file = tmp_path / "log.db"
    removed: list[bytes] = []
    async with open_storage(f"sqlite:///{file}") as storage:
        hooks = Webhooks(storage)
        context = await create_log(storage)
        kept = await hooks.add("https://example.com/kept")
        for number in range(19):
            made, secret = await hooks.add(f"https://example.com/{number}")
            await append_drafts(storage, context, draft_message(f"message {number} " + "x" * 300))
            await hooks.remove(made.id)
            removed.append(secret.encode())
        stored = b"".join([one.read_bytes() for one in tmp_path.iterdir()])
        assert [secret for secret in removed if secret in stored] == []
        assert await hooks.find(kept[0].id) == kept


async def test_no_job_waits_for_receivers_that_never_answer(storage: Storage, receiver: Receiver) -> None:
    """As many logs are told as a worker has places, to receivers that take a request and never answer."""
    called = threading.Semaphore(0)

    def hang(_: BaseHTTPRequestHandler) -> None:
        called.release()
        receiver.ends.wait()

    receiver.answer = hang
    done = asyncio.Event()

    async def compact(_: Any, __: Lease) -> Done:
        done.set()
        return Done()

    for _ in range(2):
        await add_webhook(storage, receiver)
    for number in range(2):
        await append_drafts(storage, await create_log(storage, f"told-{number}"), draft_message("a"))
    handlers: Any = {WEBHOOK: Delivery(), "compact": compact}
    worker = Worker(storage, handlers, config=WorkerConfig(poll_seconds=0.02), concurrency=2)
    working = asyncio.ensure_future(worker.run())
    await asyncio.to_thread(lambda: [called.acquire() for _ in range(2)])
    busy = await create_log(storage, "busy")
    await append_drafts(storage, busy, draft_message("b"), jobs=(JobDraft(kind="compact", dedupe="d"),))
    await done.wait()
    assert len(await delivery_jobs(storage, JobState.RUNNING)) == 2, "the receivers have not answered"
    worker.stop(grace=0)
    await working
