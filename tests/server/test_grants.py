"""Namespaces shared within a tenant: a bound key sees its own namespaces, the granted ones, and nothing else."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from acms import NotFoundError, ValidationError
from acms.client import Client
from acms.errors import PermissionDeniedError
from acms.server.audit import read_audit_trail
from acms.server.keys import USUAL
from acms.server.operation import Scope
from acms.server.principal import Action
from acms.server.routes.table import OPERATIONS
from tests.server.guarded import Guarded, guarded_service, store_url
from tests.server.test_tenants import _request_of_operation as requested

EVERYTHING = frozenset(Scope) - {Scope.ADMIN}


@dataclass
class Agent:
    """A key that is bound to its own namespace, and its rights."""

    client: httpx2.AsyncClient
    id: str

    async def ask(self, method: str, path: str, status: int = 200, **given: Any) -> Any:
        reply = await self.client.request(method, path, **given)
        assert reply.status_code == status, (method, path, reply.text)
        return reply.json() if reply.content else None

    async def create(self, namespace: str, key: str, status: int = 201) -> str:
        made = await self.ask("POST", "/contexts", status, json={"namespace": namespace, "key": key})
        return str(made["data"]["id"]) if status < 300 else ""

    async def say(self, context: str, text: str, status: int = 201) -> Any:
        body = {"messages": [{"role": "user", "content": text}]}
        return await self.ask("POST", f"/contexts/{context}/messages", status, json=body)


async def create_agent(
    service: Guarded, tenant: str, *namespaces: str, scopes: frozenset[Scope] = EVERYTHING
) -> Agent:
    key, secret = await service.app.keys.create(tenant, scopes=scopes, namespaces=namespaces)
    return Agent(await service.client(secret), key.id)


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgres"])
async def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Guarded]:
    async with guarded_service(store_url(request, tmp_path_factory)) as running:
        yield running


@pytest.fixture
def tenant() -> str:
    return f"t-{secrets.token_hex(6)}"


# ── who is bound ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_bound_key_sees_its_own_namespace_and_nothing_else(service: Guarded, tenant: str) -> None:
    ana, ben = await create_agent(service, tenant, "ana"), await create_agent(service, tenant, "ben", "ben-2")
    mine = await ana.create("ana", "diary")
    await ana.say(mine, "My cat is called Minou.")
    await ana.create("ben", "intruder", 403)
    await ana.create("default", "intruder", 403)
    theirs = [await ben.create(name, f"{name}-{n}") for name in ("ben", "ben-2") for n in range(3)]
    assert [one["id"] for one in (await ana.ask("GET", "/contexts"))["data"]] == [mine]
    for query in ({"key": "diary", "namespace": "ana"}, {"namespace": "ana"}):
        assert (await ben.ask("GET", "/contexts", params=query))["data"] == []
    for limit in ("2", "3"):  # a page may end with a namespace, or within one
        seen: list[str] = []
        cursor = None
        while True:
            query = {"limit": limit} | ({} if cursor is None else {"cursor": cursor})
            page = await ben.ask("GET", "/contexts", params=query)
            seen += [one["id"] for one in page["data"]]
            cursor = page["nextCursor"]
            if cursor is None:
                break
        assert seen == [*reversed(theirs[:3]), *reversed(theirs[3:])]
    await ben.ask("GET", "/contexts", 400, params={"cursor": mine})
    everybody = Agent(await service.key(tenant), "")
    assert len((await everybody.ask("GET", "/contexts"))["data"]) == 7


async def test_an_erasure_names_what_remains_where_the_key_may_read_and_verifies_nothing(
    service: Guarded, tenant: str
) -> None:
    ana, ben = await create_agent(service, tenant, "ana"), await create_agent(service, tenant, "ben")
    other, stranger = Agent(await service.key(tenant), ""), Agent(await service.key(f"{tenant}-2"), "")
    message = {"role": "user", "content": "My account is Zyxquarble-77.", "key": "imported-1"}
    made: dict[str, str] = {}
    for name, who in (("ana", ana), ("ben", ben), ("open", other), ("ana", stranger)):
        context = await who.create(name, "imported")
        said = await who.ask("POST", f"/contexts/{context}/messages", 201, json={"messages": [message]})
        made.setdefault(name, f"/contexts/{context}/entries/{said['data'][0]['id']}")
    await other.ask("PUT", f"/namespaces/open/grants/{ana.id}", json={"actions": ["read"]})
    done = (await ana.ask("DELETE", made["ana"], params={"verify": "true"}))["data"]
    left = [f"/contexts/{one['context']}/entries/{one['id']}" for one in done["remaining"]]
    assert (left, done["verified"], done["residue"]) == ([made["open"]], False, [])
    await ana.ask("DELETE", made["open"], 403)
    done = (await ben.ask("DELETE", made["ben"], params={"verify": "true"}))["data"]
    assert (done["remaining"], done["verified"]) == ([], False), "what it may not know of is not named"
    done = (await other.ask("DELETE", made["open"], params={"verify": "true"}))["data"]
    assert (done["remaining"], done["verified"]) == ([], True), "another tenant is never looked at"


async def test_what_is_not_shared_is_answered_as_what_does_not_exist(service: Guarded, tenant: str) -> None:
    ana, ben = await create_agent(service, tenant, "ana"), await create_agent(service, tenant, "ben")
    context = await ana.create("ana", "diary")
    first = (await ana.say(context, "marked: my cat is called Minou."))["data"][0]["id"]
    for n in range(20):
        await ana.say(context, f"line {n} " + "word " * 30)
    asked = await ana.ask(
        "POST", f"/contexts/{context}/compact", json={"preserveRecentCount": 5}, headers={"Prefer": "wait=20"}
    )
    job = asked["data"]["job"]["id"]
    own = await ben.create("ben", "own")
    before = (await ana.ask("GET", f"/contexts/{context}/messages"))["data"]
    real = {"context_id": context, "entry_id": first, "job_id": job, "version": "1"}
    none = {
        "context_id": "c_" + "0" * 16,
        "entry_id": first.replace(context[2:], "0" * 16),
        "job_id": "999999999",
        "version": "1",
    }
    named = [one for one in OPERATIONS if re.search(r"{(context_id|job_id)", one.path)]
    assert len(named) > 15
    for one in named:
        answers = []
        for values in (real, none):
            method, path, given = requested(one, values)
            reply = await ben.client.request(method, path, **given)
            text = reply.text.replace(reply.headers["x-request-id"], "")
            answers.append((reply.status_code, re.sub(r"'[^']*'", "''", text)))
        assert answers[0] == answers[1], one.name
        assert answers[0][0] in (400, 404), one.name
    # Where a context is named elsewhere than in the path.
    intent = {
        "version": "v0", "id": "6f3b6f21-7a5f-4e3f-9af0-1b2c3d4e5f60", "request_id": "r", "intent": "cat",
        "budgets": {"tokens_max": 1000, "time_ms": 500}, "risk_profile": {"level": "low"},
        "privacy_mode": "allow",
    }  # fmt: skip
    step = {"type": "session", "session": {"contextId": context}}
    for method, path, given in (
        ("GET", f"/contexts/{own}/diff", {"params": {"other": context}}),
        ("POST", f"/contexts/{own}/prompt", {"json": {"budget": 1000, "steps": [step]}}),
        ("POST", "/orchestration/render", {"params": {"contexts": context}, "json": intent}),
        ("POST", "/import", {"params": {"contextId": context}, "content": b'{"role":"user","content":"x"}'}),
        ("GET", "/jobs", {"params": {"contextId": context}}),
        ("GET", f"/contexts/{own}/entries/{first}", {}),
        ("POST", f"/contexts/{own}/citations", {"json": {"ids": [first]}}),
        ("POST", f"/contexts/{own}/citations", {"json": {"answer": f"See {first}."}}),
    ):
        given.setdefault("headers", {"Content-Type": "application/x-ndjson"} if "content" in given else {})
        assert "marked" not in str(await ben.ask(method, path, 404, **given)), path
    assert (await ben.ask("GET", "/jobs"))["data"] == []
    for ids in ([first, none["entry_id"]], [none["entry_id"], first]):  # be it there or not
        refused = await ben.ask("POST", f"/contexts/{own}/citations", 404, json={"ids": ids})
        assert refused["detail"] == f"there is no entry {ids[0]!r}"
    for method, path, given in (
        ("GET", "/audit", {}),
        ("GET", "/export", {"params": {"namespace": "ben"}}),
        ("GET", "/pins/ben", {}),
        ("PUT", "/pins/ben", {"json": {"key": "ana/secret"}}),
        ("POST", f"/contexts/{own}/prompt", {"json": {"budget": 1000, "pins": "ben"}}),
        ("GET", "/namespaces/ana/policy", {}),
        ("PATCH", "/namespaces/ana/policy", {"json": {"legalHold": False}}),
        ("GET", "/namespaces/ana/grants", {}),
        ("PUT", f"/namespaces/ana/grants/{ben.id}", {}),
        ("DELETE", f"/namespaces/ana/grants/{ben.id}", {}),
    ):
        await ben.ask(method, path, 403, **given)
    assert (await ana.ask("GET", f"/contexts/{context}/messages"))["data"] == before


async def test_a_key_that_is_bound_to_none_sees_what_is_shared(service: Guarded, tenant: str) -> None:
    ana, ben = await create_agent(service, tenant, "ana"), await create_agent(service, tenant)
    context = await ana.create("ana", "plan")
    assert (await ben.ask("GET", "/contexts"))["data"] == []
    await ana.ask("PUT", f"/namespaces/ana/grants/{ben.id}")
    assert [one["id"] for one in (await ben.ask("GET", "/contexts"))["data"]] == [context]


async def test_what_is_about_the_whole_tenant_cannot_be_bound(service: Guarded, tenant: str) -> None:
    keys = service.app.keys
    for given in ({"scopes": [Scope.ADMIN]}, {"scopes": USUAL, "namespace": "@acms"}, {"namespace": " "}):
        with pytest.raises(ValidationError):
            await keys.create(
                tenant, scopes=given.get("scopes", USUAL), namespaces=[given.get("namespace", "ana")]
            )
    with pytest.raises(ValidationError):
        await keys.create(tenant, namespaces="ana")


# ── grants ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_namespace_is_shared_for_reading_then_writing_and_taken_back(
    service: Guarded, tenant: str
) -> None:
    ana, ben = await create_agent(service, tenant, "ana"), await create_agent(service, tenant, "ben")
    context = await ana.create("ana", "plan")
    await ana.say(context, "We chose PostgreSQL.")
    where = f"/namespaces/ana/grants/{ben.id}"
    made = (await ana.ask("PUT", where))["data"]
    assert (made["principal"], made["actions"], made["by"]) == (ben.id, ["read"], ana.id)
    messages = (await ben.ask("GET", f"/contexts/{context}/messages"))["data"]
    assert messages[0]["content"] == "We chose PostgreSQL."
    await ben.say(context, "I may not.", 403)
    await ben.create("ana", "mine", 403)
    await ben.ask("POST", f"/contexts/{context}/fork", 403)
    await ben.ask("PUT", where, 403, json={"actions": ["write"]})
    await ana.ask("PUT", where, json={"actions": ["write"]})
    await ben.say(context, "I may.")
    await ben.ask("DELETE", f"/contexts/{context}/entries/{messages[0]['id']}")
    (listed,) = (await ana.ask("GET", "/namespaces/ana/grants"))["data"]
    assert listed["actions"] == ["read", "write"]
    await ana.ask("DELETE", where, 204)
    await ben.ask("GET", f"/contexts/{context}/messages", 404)
    await ben.say(context, "No more.", 404)
    await ana.ask("DELETE", where, 404)
    assert (await ana.ask("GET", "/namespaces/ana/grants"))["data"] == []
    noted = await read_audit_trail(await service.app.stores.tenant(tenant), limit=500)
    shared = [one for one in noted if one.operation in ("grantNamespace", "revokeGrant")]
    assert {(one.step, one.key) for one in shared if one.code == ""} >= {
        ("intent", ana.id),
        ("outcome", ana.id),
    }
    assert {"namespace": "ana", "principal": ben.id, "actions": ["write"]} in [one.target for one in shared]


async def test_sharing_can_be_handed_on_but_never_more_than_one_has(service: Guarded, tenant: str) -> None:
    ana, ben, cleo = [await create_agent(service, tenant, name) for name in ("ana", "ben", "cleo")]
    context = await ana.create("ana", "plan")
    await ana.ask("PUT", f"/namespaces/ana/grants/{ben.id}", json={"actions": ["share"]})
    await ben.ask("PUT", f"/namespaces/ana/grants/{cleo.id}", 403, json={"actions": ["write"]})
    await ben.ask("PUT", f"/namespaces/ana/grants/{cleo.id}", json={"actions": ["read"]})
    await cleo.ask("GET", f"/contexts/{context}/messages")
    await ben.ask("DELETE", f"/namespaces/ana/grants/{cleo.id}", 204)
    await cleo.ask("GET", f"/contexts/{context}/messages", 404)


async def test_a_grant_never_exceeds_the_scopes_of_a_key(service: Guarded, tenant: str) -> None:
    ana = await create_agent(service, tenant, "ana")
    reader = await create_agent(service, tenant, scopes=frozenset({Scope.READ}))
    context = await ana.create("ana", "plan")
    await ana.ask("PUT", f"/namespaces/ana/grants/{reader.id}", json={"actions": ["write"]})
    await reader.ask("GET", f"/contexts/{context}/messages")
    await reader.say(context, "No scope for this.", 403)


async def test_grants_end_at_the_tenant(service: Guarded, tenant: str) -> None:
    other = f"{tenant}-other"
    ana, eve = await create_agent(service, tenant, "team"), await create_agent(service, other, "eve")
    context = await ana.create("team", "plan")
    unknown = await ana.ask("PUT", "/namespaces/team/grants/00000000", 404)
    foreign = await ana.ask("PUT", f"/namespaces/team/grants/{eve.id}", 404)
    for told, id in ((unknown, "00000000"), (foreign, eve.id)):
        del told["requestId"]
        told["detail"] = told["detail"].replace(id, "")
    assert foreign == unknown
    await service.app.grants.grant(tenant, "team", "oidc:eve", [Action.SHARE])
    assert await service.app.grants.list(other) == []
    with pytest.raises(NotFoundError):
        await service.app.grants.grant(other, "team", ana.id)
    await eve.ask("GET", f"/contexts/{context}", 404)
    for bad in ({"actions": []}, {"actions": ["own"]}, {"actions": "read"}, {"until": 1}):
        await ana.ask("PUT", f"/namespaces/team/grants/{ana.id}", 400, json=bad)


async def test_a_grant_stays_when_a_key_is_rotated(service: Guarded, tenant: str) -> None:
    ana, ben = await create_agent(service, tenant, "ana"), await create_agent(service, tenant, "ben")
    context = await ana.create("ana", "plan")
    await ana.ask("PUT", f"/namespaces/ana/grants/{ben.id}")
    second, _ = await service.app.keys.rotate(ben.id)
    third, secret = await service.app.keys.rotate(second.id)
    ben = Agent(await service.client(secret), third.id)
    await ben.ask("GET", f"/contexts/{context}")
    await ana.ask("DELETE", f"/namespaces/ana/grants/{third.id}", 204)
    await ben.ask("GET", f"/contexts/{context}", 404)


@pytest.mark.parametrize("service", ["sqlite", "postgres"], indirect=True)
async def test_a_grant_is_taken_back_on_every_replica_with_the_next_request(
    service: Guarded, tenant: str
) -> None:
    ana, ben = await create_agent(service, tenant, "ana"), await create_agent(service, tenant, "ben")
    context = await ana.create("ana", "plan")
    secret = ben.client.headers["authorization"].removeprefix("Bearer ")
    async with guarded_service(service.app.stores.url) as replica:
        there = Agent(await replica.client(secret), ben.id)
        for _ in range(3):
            await there.ask("GET", f"/contexts/{context}", 404)
            await ana.ask("PUT", f"/namespaces/ana/grants/{ben.id}")
            await there.ask("GET", f"/contexts/{context}")
            await ana.ask("DELETE", f"/namespaces/ana/grants/{ben.id}", 204)


# ── three agents, one memory ────────────────────────────────────────────────────────────────────────────────────────


async def test_three_agents_share_what_they_know_until_one_is_sent_away(
    service: Guarded, tenant: str
) -> None:
    made = {
        name: await service.app.keys.create(tenant, scopes=EVERYTHING, namespaces=own)
        for name, own in (("ana", ["ana", "team"]), ("ben", ["ben"]), ("cleo", ["cleo"]))
    }
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(Client(service.url, api_key=secret))
            for name, (_, secret) in made.items()
        }
        for name in ("ben", "cleo"):
            await clients["ana"].grant("team", made[name][0].id, actions=["write"])
        assert [one.actions for one in await clients["ana"].grants("team")] == [("read", "write")] * 2
        teams = {name: client.session(name, namespace="team") for name, client in clients.items()}
        for name, client in clients.items():
            await client.session("diary", namespace=name).ingest("user", f"Only {name} knows this.")
            await teams[name].ingest("user", f"{name} works on the orders service.")
        said = [f"{name} says {n}" for name in clients for n in range(4)]
        await asyncio.gather(
            *[teams[one.split()[0]].state("orders", "database", one, scope="namespace") for one in said]
        )
        history = await teams["cleo"].facts(scope="namespace", history=True)
        assert sorted(one.value for one in history) == sorted(said)
        (now,) = [one for one in history if one.retired is None]
        both = await asyncio.gather(
            *[
                teams[name].state(
                    "orders", "database", f"{name} again", scope="namespace", expected=now.version
                )
                for name in ("ana", "ben")
            ],
            return_exceptions=True,
        )
        assert sorted(type(one).__name__ for one in both) == ["Fact", "PreconditionError"]
        for name, client in clients.items():
            seen = {one.namespace async for one in client.contexts()}
            assert seen == {name, "team"}
            recalled = await teams[name].recall("Who works on orders?", token_budget=500, scope="namespace")
            text = " ".join(item.content for item in recalled)
            assert "cleo works on the orders service." in text
            assert "knows this" not in text
        await clients["ana"].revoke("team", made["cleo"][0].id)
        assert {one.namespace async for one in clients["cleo"].contexts()} == {"cleo"}
        for verb in (
            teams["cleo"].recall("Who works on orders?", token_budget=500, scope="namespace"),
            teams["cleo"].ingest("user", "Still here?"),
            teams["cleo"].state("orders", "database", "mine", scope="namespace"),
            clients["cleo"].grants("team"),
        ):
            with pytest.raises((NotFoundError, PermissionDeniedError)):
                await verb
        assert len(await teams["ana"].facts(scope="namespace")) == 1
