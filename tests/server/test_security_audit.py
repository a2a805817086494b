"""The audit trail: every change is there, with actor, action and result, and never with the content of a message."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import apsw
import httpx2
import pytest
from typer.testing import CliRunner

from acms.cli.commands import app as commands
from acms.log import encoding
from acms.server import create_app
from acms.server.audit import Noted, read_audit_trail
from acms.server.operation import Scope
from acms.server.routes.table import OPERATIONS
from acms.server.tenants import SERVICE_NAMESPACE
from tests.server.guarded import GUARDED, Guarded, guarded_service, store_url
from tests.server.slow import Slow
from tests.support.virtual_time import advance_loop_time

CANARY = "canary-7f3a"


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgres"])
async def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Guarded]:
    async with guarded_service(store_url(request, tmp_path_factory)) as running:
        yield running


@pytest.fixture
def tenant() -> str:
    """A tenant of the test's own."""
    return f"t-{secrets.token_hex(6)}"


async def audit_trail(service: Guarded, tenant: str) -> list[Noted]:
    """Return the trail without the making of keys, oldest first."""
    found = await read_audit_trail(await service.app.stores.tenant(tenant))
    return [one for one in reversed(found) if not one.operation.endswith("Key")]


async def create_conversation(client: httpx2.AsyncClient, *contents: str) -> str:
    id: str = (await client.post("/contexts", json={"name": CANARY})).json()["data"]["id"]
    body = {"messages": [{"role": "user", "content": content} for content in contents]}
    assert (await client.post(f"/contexts/{id}/messages", json=body)).status_code == 201
    return id


def test_every_operation_that_writes_is_audited_except_appending() -> None:
    changing = {one.name for one in OPERATIONS if one.writes}
    assert changing - {one.name for one in OPERATIONS if one.audited} == {"appendMessages"}


async def test_a_change_is_an_intent_and_an_outcome(service: Guarded, tenant: str) -> None:
    client = await service.key(tenant)
    (key,) = await service.app.keys.list(tenant)
    id = await create_conversation(client, f"{CANARY} one", f"{CANARY} two", f"{CANARY} three")
    messages = (await client.get(f"/contexts/{id}/messages")).json()["data"]
    await client.patch(
        f"/contexts/{id}/entries/{messages[0]['id']}",
        json={"content": f"{CANARY} other"},
        headers={"X-Request-Id": "mine-1"},
    )
    await client.post(f"/contexts/{id}/entries/{messages[1]['id']}/retract", json={"reason": CANARY})
    await client.put("/pins/user:1", json={"key": "style", "value": CANARY, "label": CANARY})
    await client.delete(f"/contexts/{id}")
    found = await audit_trail(service, tenant)
    operations = ["createContext", "replaceEntry", "retractEntry", "putPin", "deleteContext"]
    assert [(one.step, one.operation) for one in found] == [
        (step, name) for name in operations for step in ("intent", "outcome")
    ]
    assert {one.key for one in found} == {key.id}
    assert [one.status for one in found if one.step == "outcome"] == [201, 200, 200, 200, 200]
    assert all(one.code == "" for one in found)
    made, replaced, retracted = found[1], found[3], found[5]
    assert made.context == id
    assert (replaced.request, found[2].request) == ("mine-1", "mine-1")
    assert replaced.before is not None
    assert replaced.after is not None
    assert replaced.after[0] > replaced.before[0]
    assert replaced.after[1] != replaced.before[1]
    assert retracted.before == replaced.after
    assert retracted.target == {"context_id": id, "entry_id": messages[1]["id"]}
    assert found[7].target == {"namespace": "user:1", "key": "style"}
    assert CANARY not in json.dumps([repr(one) for one in found])


async def test_the_trail_is_a_chain_that_verifies_and_nobody_can_reach_it(
    service: Guarded, tenant: str
) -> None:
    client = await service.key(tenant)
    await create_conversation(client, "hello")
    home = await service.app.stores.tenant(tenant)
    context = await home.handle.context("@audit", namespace=SERVICE_NAMESPACE)
    entries = await home.handle.read(context.id)
    assert len(entries) == 4
    assert list(encoding.verify_chain(entries, head=encoding.genesis_hash(context.id), version=0)) == []
    for one in OPERATIONS:
        if "{context_id}" not in one.path:
            continue
        path = one.path.replace("{context_id}", context.id).replace(
            "{entry_id}", f"m_{context.id[2:]}_1_000000"
        )
        path = path.replace("{version}", "1").replace("{name}", "x").replace("{tag}", "x")
        body = {} if one.example is None else {"json": one.example}
        reply = await client.request(one.method, path, **body)
        assert reply.status_code in (404, 400, 415), (one.name, reply.text)
    listed = (await client.get("/contexts", params={"limit": 500})).text
    assert "@a" not in listed
    assert (
        await client.post("/contexts", json={"key": "@audit", "namespace": SERVICE_NAMESPACE})
    ).status_code == 400
    assert (await client.get("/contexts", params={"key": "@audit", "namespace": SERVICE_NAMESPACE})).json()[
        "data"
    ] == []
    assert "@a" not in (await client.get("/export", params={"namespace": SERVICE_NAMESPACE})).text


async def test_what_is_refused_is_in_the_trail_too(service: Guarded, tenant: str) -> None:
    client = await service.key(tenant)
    await client.delete("/contexts/c_0000000000000000")
    intent, outcome = await audit_trail(service, tenant)
    assert (intent.step, outcome.status, outcome.code) == ("intent", 404, "SESSION_NOT_FOUND")
    assert outcome.before is outcome.after is None


async def test_the_trail_is_read_by_whoever_may_configure(service: Guarded, tenant: str) -> None:
    client = await service.key(tenant)
    for _ in range(3):
        await client.post("/contexts", json={})
    whole = (await client.get("/audit")).json()
    assert [one["operation"] for one in whole["data"]] == ["createContext"] * 6 + ["createKey"] * 2
    assert not whole["hasMore"]
    pages, cursor = [], None
    while True:
        page = (
            await client.get("/audit", params={"limit": 3} | ({"cursor": cursor} if cursor else {}))
        ).json()
        pages += page["data"]
        cursor = page["nextCursor"]
        if not page["hasMore"]:
            break
    assert pages == whole["data"]
    other = await service.key(tenant, [one for one in Scope if one is not Scope.ADMIN])
    assert (await other.get("/audit")).status_code == 403


# ── cut short ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def _begin_correction(
    client: httpx2.AsyncClient, id: str, slow: Slow
) -> asyncio.Future[httpx2.Response]:
    """Begin to correct the one message of a context, and return when it is committed and not acknowledged."""
    (entry,) = (await client.get(f"/contexts/{id}/messages")).json()["data"]
    slow.may.clear()
    slow.asked.clear()
    path = f"/contexts/{id}/entries/{entry['id']}"
    asking = asyncio.ensure_future(client.patch(path, json={"content": "other"}))
    await slow.asked.wait()
    return asking


async def test_a_change_that_is_cut_at_its_deadline_has_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, limits = Slow(monkeypatch), replace(GUARDED.limits, deadline_seconds=30)
    async with guarded_service("memory://", replace(GUARDED, limits=limits)) as service:
        client = await service.key("acme")
        id = await create_conversation(client, "one")
        asking = await _begin_correction(client, id, slow)
        advance_loop_time(monkeypatch, 31)
        reply = await asking
        assert (reply.status_code, reply.json()["code"]) == (503, "DEADLINE")
        await service.app.audit.idle()
        slow.may.set()
        intent, outcome = (await audit_trail(service, "acme"))[-2:]
        assert (intent.step, outcome.step, outcome.intent) == ("intent", "outcome", intent.version)
        assert (outcome.status, outcome.code) == (503, "DEADLINE")
        assert outcome.before is not None
        assert outcome.after is not None
        assert outcome.after[0] > outcome.before[0], "it was stored before"


async def test_a_change_whose_client_is_gone_has_the_outcome_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    app = create_app("memory://", GUARDED)
    _, secret = await app.keys.create("acme")
    await app.start()
    headers = {"Authorization": f"Bearer {secret}"}
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://localhost/api/v1", headers=headers, verify=False
    ) as client:
        id = await create_conversation(client, "one")
        asking = await _begin_correction(client, id, slow)
        asking.cancel()
        await asyncio.wait([asking])
        slow.may.set()
        await app.audit.idle()
        outcome = (await read_audit_trail(await app.stores.tenant("acme")))[0]
        assert (outcome.operation, outcome.status, outcome.code) == ("replaceEntry", 200, "")
    await app.stop()


async def test_the_outcome_of_what_a_process_took_with_it_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, slow = f"sqlite:///{tmp_path / 'log.db'}", Slow(monkeypatch)
    async with guarded_service(url, replace(GUARDED, grace_seconds=0)) as service:
        client = await service.key("acme")
        id = await create_conversation(client, "one")
        asking = await _begin_correction(client, id, slow)
        await service.app.audit.stop()
        await asyncio.wait([asking])
        intent = (await audit_trail(service, "acme"))[-1]
        assert intent.step == "intent"
        slow.may.set()
    for _ in range(2):
        async with guarded_service(url) as service:
            client = await service.key("acme")
            outcomes = [one for one in await audit_trail(service, "acme") if one.intent == intent.version]
            assert [(one.operation, one.code) for one in outcomes] == [("replaceEntry", "UNKNOWN")]


# ── once ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_erasure_is_answered_as_it_was(service: Guarded, tenant: str) -> None:
    client = await service.key(tenant)
    id = await create_conversation(client, "one", "two")
    entry = (await client.get(f"/contexts/{id}/messages")).json()["data"][0]["id"]
    path, once = f"/contexts/{id}/entries/{entry}", {"Idempotency-Key": f"once-{tenant}"}
    first = await client.delete(path, headers=once)
    again = await client.delete(path, headers=once)
    assert first.status_code == again.status_code == 200
    assert first.json() == again.json()
    assert first.json()["data"]["ids"] == [entry]
    assert (await client.delete(path)).status_code == 200
    other = await client.delete(path, headers=once, params={"verify": True})
    assert (other.status_code, other.json()["code"]) == (422, "IDEMPOTENCY_MISMATCH")
    steps = [one.step for one in await audit_trail(service, tenant) if one.operation == "eraseEntry"]
    assert steps == ["intent", "outcome"] * 2


async def test_a_compaction_is_asked_for_once(service: Guarded, tenant: str) -> None:
    client = await service.key(tenant)
    id = await create_conversation(
        client, *(f"{CANARY} number {number}: " + "word " * 60 for number in range(40))
    )
    path = f"/contexts/{id}/compact"
    once = {"Idempotency-Key": "once", "Prefer": "wait=20"}
    body = {"preserveRecentCount": 10}
    first = await client.post(path, json=body, headers=once)
    again = await client.post(path, json=body, headers=once)
    assert first.status_code == again.status_code == 200, first.text
    assert first.json() == again.json()
    assert CANARY in first.json()["data"]["compaction"]["summary"]
    polled = await client.post(path, json=body, headers={"Idempotency-Key": "once"})
    assert polled.status_code == 202
    assert polled.json()["data"]["job"]["id"] == first.json()["data"]["job"]["id"]
    other = await client.post(path, json={"preserveRecentCount": 5}, headers=once)
    assert (other.status_code, other.json()["code"]) == (422, "IDEMPOTENCY_MISMATCH")
    assert len((await client.get(f"/contexts/{id}/compactions")).json()["data"]) == 1
    home = await service.app.stores.tenant(tenant)
    log = await home.handle.context("@audit", namespace=SERVICE_NAMESPACE)
    assert CANARY not in repr(await home.handle.read(log.id))


async def test_the_same_key_for_another_context_or_by_another_key_is_another_request(
    service: Guarded, tenant: str
) -> None:
    client, colleague = await service.key(tenant), await service.key(tenant)
    once = {"Idempotency-Key": "once"}
    for each in (client, colleague):
        for id in (await create_conversation(each, "one"), await create_conversation(each, "two")):
            assert (await each.post(f"/contexts/{id}/compact", headers=once)).status_code == 202


async def test_a_request_that_failed_is_tried_again(service: Guarded, tenant: str) -> None:
    client = await service.key(tenant)
    id = await create_conversation(client, "one", "two")
    entry = (await client.get(f"/contexts/{id}/messages")).json()["data"][0]["id"]
    path, once = f"/contexts/{id}/entries/{entry}", {"Idempotency-Key": "once"}
    home = await service.app.stores.tenant(tenant)
    policy = {"legal_hold": True}
    rev = (await home.handle.context(id)).settings_rev
    await home.handle.settings(id, policy, rev=rev)
    held = await client.delete(path, headers=once)
    if held.status_code == 423:
        await home.handle.settings(id, {"legal_hold": None}, rev=rev + 1)
        assert (await client.delete(path, headers=once)).status_code == 200
    else:
        pytest.fail(held.text)


async def test_many_at_once_are_one(service: Guarded, tenant: str) -> None:
    client = await service.key(tenant)
    id = await create_conversation(client, "one", "two")
    entry = (await client.get(f"/contexts/{id}/messages")).json()["data"][0]["id"]
    path, once = f"/contexts/{id}/entries/{entry}", {"Idempotency-Key": "once"}
    replies = await asyncio.gather(*[client.delete(path, headers=once) for _ in range(8)])
    assert {one.status_code for one in replies} == {200}
    intents = [
        one
        for one in await audit_trail(service, tenant)
        if one.operation == "eraseEntry" and one.step == "intent"
    ]
    assert len(intents) == 1


async def test_odd_idempotency_keys_are_refused(service: Guarded, tenant: str) -> None:
    client = await service.key(tenant)
    id = await create_conversation(client, "one")
    reply = await client.post(f"/contexts/{id}/compact", headers={"Idempotency-Key": "x" * 256})
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (400, "idempotency-key")


# ── tampering ───────────────────────────────────────────────────────────────────────────────────────────────────────


TAMPER = {
    "changed": "UPDATE entries SET data = replace(data, 'deleteContext', 'createContext') WHERE row >> 32 = :log",
    "removed": "DELETE FROM entries WHERE row = (:log << 32) + 3",
    "cut": """
        DELETE FROM entries WHERE row > (:log << 32) + 3 AND row >> 32 = :log;
        UPDATE contexts SET version = 3, messages = 3, tokens = 0, (chain, last_message) = (
            SELECT chain, 'm_' || substr(id, 3) || '_3_' || nonce FROM entries WHERE row = (:log << 32) + 3
        ) WHERE ref = :log""",
}


def run_acms(*arguments: str) -> tuple[int, str]:
    """Run a command; return its exit code and output."""
    done = CliRunner().invoke(commands, list(arguments))
    return done.exit_code, done.stdout


@pytest.mark.parametrize("how", TAMPER)
async def test_a_trail_that_was_tampered_with_is_noticed(tmp_path: Path, how: str) -> None:
    """By `verify` where a row was changed; by the witness where the end is gone and the head fits again."""
    file, witness = tmp_path / "log.db", tmp_path / "heads.jsonl"
    async with guarded_service(f"sqlite:///{file}") as service:
        client = await service.key("acme")
        id = await create_conversation(client, "one")
        assert (await client.delete(f"/contexts/{id}")).status_code == 200
    db = ("--db", f"sqlite:///{file}?tenant=acme")
    run = partial(asyncio.to_thread, run_acms)
    assert (await run("witness", str(witness), *db))[0] == 0
    assert (await run("verify", "--witness", str(witness), *db))[0] == 0
    connection = apsw.Connection(str(file))
    (log,) = next(connection.execute("SELECT ref FROM contexts WHERE key = '@audit' AND tenant = 'acme'"))
    before = connection.total_changes()
    connection.execute(TAMPER[how], {"log": log}).fetchall()
    assert connection.total_changes() > before
    connection.close()
    code, said = await run("verify", *db)
    assert (code, "@audit" in said) == ((0, False) if how == "cut" else (1, True)), said
    code, said = await run("verify", "--witness", str(witness), *db)
    assert code == 1, said
    if how == "cut":
        assert "the log ends before this version" in said
