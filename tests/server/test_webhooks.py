"""Webhooks over HTTP and in the shell: within the rights of a key, and delivered by the service itself."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from acms import ACMS, open_storage
from acms.server import service
from acms.server.operation import Scope
from tests.cli.test_cli import call, run
from tests.events.receiver import Receiver, running_receiver
from tests.server.guarded import guarded_service
from tests.server.serving import Service, serving

URL = "https://example.com/acms"


def test_a_webhook_is_added_listed_and_removed_and_its_secret_is_shown_once(service: Service) -> None:
    made = service.client.post("/webhooks", json={"url": URL, "events": ["fact", "message"]})
    assert made.status_code == 201, made.text
    shown = made.json()["data"]
    assert shown.pop("secret").startswith("whsec_")
    assert shown["events"] == ["message", "fact"]
    assert service.get("/webhooks")["data"] == [shown]
    every = service.client.post("/webhooks", json={"url": URL}).json()["data"]
    assert every["events"] == ["message", "fact", "summary", "episode", "retraction", "job"]
    for one in (shown, every):
        assert service.client.delete(f"/webhooks/{one['id']}").status_code == 204
        assert service.client.delete(f"/webhooks/{one['id']}").status_code == 404
        assert service.client.post(f"/webhooks/{one['id']}/replay").status_code == 404
    assert service.get("/webhooks")["data"] == []


def test_no_request_names_an_address_that_is_not_public(service: Service) -> None:
    for body in (
        {"url": "http://example.com/"},
        {"url": "http://127.0.0.1:80/"},
        {"url": URL, "private": True},
        {"url": URL, "events": []},
        {"url": URL, "events": ["gossip"]},
        {"url": URL, "secret": "whsec_"},
    ):
        reply = service.client.post("/webhooks", json=body)
        assert reply.status_code == 400, reply.text
    assert service.get("/webhooks")["data"] == []


async def test_webhooks_are_an_administrators_and_a_tenants_own() -> None:
    async with guarded_service("memory://") as service:
        admin, other = await service.key("acme"), await service.key("other")
        made = (await admin.post("/webhooks", json={"url": URL})).json()["data"]
        assert (await other.get("/webhooks")).json()["data"] == []
        assert (await other.delete(f"/webhooks/{made['id']}")).status_code == 404
        assert (await other.post(f"/webhooks/{made['id']}/replay")).status_code == 404
        rest = await service.key("acme", [one for one in Scope if one is not Scope.ADMIN])
        for method, path in (("GET", ""), ("POST", ""), ("DELETE", "/x"), ("POST", "/x/replay")):
            refused = await rest.request(
                method, f"/webhooks{path}", json={"url": URL} if path == "" else None
            )
            assert refused.status_code == 403, (method, path)
        trail = (await admin.get("/audit")).json()
        assert made["secret"] not in json.dumps(trail)
        assert "addWebhook" in json.dumps(trail)
        # Where pins and their values lie there is nothing of it, whatever a pin names.
        pinned = await admin.put("/pins/n", json={"key": "webhooks"})
        listed = await admin.get("/pins/n")
        assert (pinned.status_code, listed.status_code) == (200, 200), pinned.text
        assert "webhooks" in listed.text
        assert made["secret"] not in pinned.text + listed.text


def wait_for_deliveries(receiver: Receiver, count: int) -> list[Any]:
    """Return what arrived, once that is so much."""
    for _ in range(3_000):
        if len(receiver.requests) >= count:
            return [json.loads(body)["data"]["version"] for _, body in receiver.requests]
        threading.Event().wait(0.02)
    raise AssertionError(f"{len(receiver.requests)} of {count} arrived")


def test_the_service_delivers_what_another_process_appends_without_a_look_at_everything(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LOOK_SECONDS", 3_600.0)
    db = f"sqlite:///{tmp_path / 'log.db'}"

    async def append() -> None:
        async with ACMS("user_123", open_storage(db), None) as session:
            await session.ingest("user", "one")

    with running_receiver() as receiver:
        call("events", "webhook", "add", receiver.url, "--private", "--events", "message", "--db", db)
        with serving(db):
            asyncio.run(append())
            assert wait_for_deliveries(receiver, 1) == [1]


def test_the_service_delivers_what_is_appended_to_it(tmp_path: Any) -> None:
    db = f"sqlite:///{tmp_path / 'log.db'}"
    with running_receiver() as receiver:
        assert run("events", "webhook", "add", receiver.url, "--db", db, code=1).exit_code == 1
        made = call("events", "webhook", "add", receiver.url, "--private", "--events", "message", "--db", db)
        with serving(db) as service:
            context = service.talk("one", "two")
            service.say(context, "three")
            assert wait_for_deliveries(receiver, 3) == [1, 2, 3]
            seen = service.client.get("/jobs", params={"contextId": context}).json()["data"]
            assert {job["kind"] for job in seen} == {"webhook"}
            events = service.client.get(f"/contexts/{context}/events", params={"follow": "false"}).text
            assert "event: job" not in events
        receiver.verified(made["secret"])
        assert call("events", "webhook", "list", "--db", db)["webhooks"] == [made["webhook"]]
        assert call("events", "webhook", "replay", made["webhook"]["id"], "--db", db)["jobs"] == []
        call("events", "webhook", "remove", made["webhook"]["id"], "--db", db)
        assert "there are no webhooks" in run("events", "webhook", "list", "--db", db).stdout
