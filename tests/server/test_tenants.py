"""Two tenants, one service: no byte of the other in any answer, log or metric (T33), also after requests that were cut
off (T34), whatever is asked for (T35), by whatever name."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from hypothesis import settings

from acms.observability import JSONFormatter
from acms.server import App, create_app
from acms.server.operation import Operation, Scope
from acms.server.routes.table import OPERATIONS
from tests.server.guarded import GUARDED, Guarded, guarded_service, store_url
from tests.servers.stores import run_inside


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgres"])
async def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Guarded]:
    async with guarded_service(store_url(request, tmp_path_factory)) as running:
        yield running


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """Everything that anything logs, as text."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Kept()
    handler.setFormatter(JSONFormatter())
    loggers = [logging.getLogger(name) for name in ("", "acms", "uvicorn", "uvicorn.error", "uvicorn.asgi")]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.DEBUG)
    loggers[0].addHandler(handler)
    loggers[1].addHandler(handler)
    yield lines
    for one, level in zip(loggers, levels, strict=True):
        one.setLevel(level)
    loggers[0].removeHandler(handler)
    loggers[1].removeHandler(handler)


@dataclass
class Side:
    """A tenant, its messages, and all the answers it got."""

    client: httpx2.AsyncClient
    tenant: str
    mark: str
    contexts: list[str] = field(default_factory=list)
    entries: list[tuple[str, str]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    async def ask(self, method: str, path: str, **given: Any) -> Any:
        reply = await self.client.request(method, path, **given)
        assert reply.status_code < 500, (method, path, reply.text)
        self.seen.append(reply.text + repr(dict(reply.headers)))
        return reply


async def create_side(service: Guarded) -> Side:
    tenant = f"t-{secrets.token_hex(6)}"
    return Side(await service.key(tenant), tenant, f"mark{secrets.token_hex(8)}")


# ── a random mix of everything (T33) ────────────────────────────────────────────────────────────────────────────────


async def _random_step(one: Side, other: Side, choose: random.Random) -> None:
    """Do something at random: under names that both use, now and then with ids of the other."""
    mark, name = one.mark, f"key-{choose.randrange(3)}"
    everybody = one.contexts + other.contexts
    context = choose.choice(everybody) if everybody else "c_0000000000000000"
    owner, entry = choose.choice(one.entries + other.entries or [(context, "m_0000000000000000_1_000000")])
    what = choose.randrange(14)
    if what < 2 or not one.contexts:
        made = await one.ask("POST", "/contexts", json={"key": name, "name": mark, "metadata": {"of": mark}})
        one.contexts.append(made.json()["data"]["id"])
    elif what < 5:
        body = {
            "messages": [{"role": "user", "content": f"DECISION: {mark} uses Postgres {choose.random()}"}]
        }
        key = {"Idempotency-Key": f"same-{choose.randrange(20)}"}
        reply = await one.ask("POST", f"/contexts/{context}/messages", json=body, headers=key)
        if reply.status_code == 201:
            one.entries += [(context, message["id"]) for message in reply.json()["data"]]
    elif what == 5:
        await one.ask("PUT", "/pins/user:1", json={"key": "style", "value": mark, "label": mark})
        await one.ask("GET", "/pins/user:1")
    elif what == 6:
        await one.ask("GET", f"/contexts/{context}/messages")
        await one.ask("GET", "/contexts", params={"key": name})
    elif what == 7:
        await one.ask("POST", f"/contexts/{context}/recall", json={"query": "Postgres decision"})
    elif what == 8:
        await one.ask("GET", f"/contexts/{owner}/entries/{entry}")
        await one.ask("PATCH", f"/contexts/{owner}/entries/{entry}", json={"content": f"{mark} corrected"})
    elif what == 9:
        await one.ask("DELETE", f"/contexts/{owner}/entries/{entry}", headers={"Idempotency-Key": name})
    elif what == 10:
        await one.ask("POST", f"/contexts/{context}/compact", headers={"Idempotency-Key": name})
        await one.ask("GET", "/jobs")
    elif what == 11:
        await one.ask("GET", "/export", params={"namespace": "default"})
    elif what == 12:
        await one.ask("GET", "/audit", params={"limit": 500})
    else:
        await one.ask("GET", f"/contexts/{context}/facts")
        await one.ask("GET", "/contexts")


async def test_no_byte_of_the_other_is_seen(service: Guarded, logged: list[str]) -> None:
    one, other = await create_side(service), await create_side(service)
    seed = 35 if settings().derandomize else secrets.randbits(32)
    choose = random.Random(seed)
    for _ in range(6):
        await asyncio.gather(
            *[_random_step(*pair, choose) for pair in ((one, other), (other, one)) for _ in range(5)]
        )
    for mine, theirs in ((one, other), (other, one)):
        assert mine.contexts
        for reply in mine.seen:
            assert theirs.mark not in reply, f"seed {seed}"
            assert theirs.tenant not in reply, f"seed {seed}"
            assert "@acms" not in reply, f"seed {seed}"
    operator = await service.key("operator", [Scope.ADMIN])
    metrics = (await operator.get(f"{service.url}/metrics")).text
    for told in ("\n".join(logged), metrics):
        assert one.mark not in told
        assert other.mark not in told
    assert one.tenant not in metrics


# ── ids of others ───────────────────────────────────────────────────────────────────────────────────────────────────


def _request_of_operation(one: Operation, values: dict[str, str]) -> tuple[str, str, dict[str, Any]]:
    path = re.sub(r"{(\w+)[^}]*}", lambda found: values.get(found[1], "1"), one.path)
    if one.streams:
        return one.method, path, {"content": b"{}", "headers": {"Content-Type": one.streams[0]}}
    body = one.example if one.example is not None else {}
    given: dict[str, Any] = {} if one.body is None else {"json": body}
    if one.query is not None and "key" in one.query.model_fields and one.method == "DELETE":
        given["params"] = {"key": "style"}
    return one.method, path, given


async def test_what_belongs_to_another_is_answered_as_what_does_not_exist(service: Guarded) -> None:
    mine, theirs = await create_side(service), await create_side(service)
    body = {
        "messages": [{"role": "user", "content": f"{theirs.mark} {n} " + "word " * 30} for n in range(30)]
    }
    context = (await theirs.ask("POST", "/contexts", json={"key": "shared"})).json()["data"]["id"]
    await theirs.ask("POST", f"/contexts/{context}/messages", json=body)
    (first, *_) = (await theirs.ask("GET", f"/contexts/{context}/messages")).json()["data"]
    asked = await theirs.ask(
        "POST", f"/contexts/{context}/compact", json={"preserveRecentCount": 5}, headers={"Prefer": "wait=20"}
    )
    job = asked.json()["data"]["job"]["id"]
    before = (await theirs.ask("GET", "/export", params={"namespace": "default"})).text
    real = {"context_id": context, "entry_id": first["id"], "job_id": job, "version": "1"}
    none = {
        "context_id": "c_" + "0" * 16,
        "entry_id": first["id"].replace(context[2:], "0" * 16),
        "job_id": "999999999",
        "version": "1",
    }
    named = [one for one in OPERATIONS if re.search(r"{(context_id|job_id)", one.path)]
    assert len(named) > 15
    for one in named:
        answers = []
        for values in (real, none):
            method, path, given = _request_of_operation(one, values)
            reply = await mine.ask(method, path, **given)
            text = reply.text.replace(reply.headers["x-request-id"], "")
            answers.append((reply.status_code, re.sub(r"'[^']*'", "''", text)))  # the id itself is said again
        assert answers[0] == answers[1], one.name
        assert answers[0][0] in (400, 404), one.name
    assert not [text for text in mine.seen if theirs.mark in text]
    assert (await theirs.ask("GET", "/export", params={"namespace": "default"})).text == before


async def test_the_key_alone_says_whose_data_is_meant(service: Guarded) -> None:
    mine, theirs = await create_side(service), await create_side(service)
    context = (await theirs.ask("POST", "/contexts", json={"key": "shared"})).json()["data"]["id"]
    for header in ("X-Tenant", "X-Tenant-Id", "Tenant", "X-ACMS-Tenant"):
        reply = await mine.ask("GET", f"/contexts/{context}", headers={header: theirs.tenant})
        assert reply.status_code == 404
    for name in ("tenant", "tenantId", "tenant_id"):
        assert (await mine.ask("GET", "/contexts", params={name: theirs.tenant})).status_code == 400
        assert (await mine.ask("POST", "/contexts", json={name: theirs.tenant})).status_code == 400


# ── requests that are cut off (T34) ─────────────────────────────────────────────────────────────────────────────────


async def _status_of_request(app: App, secret: str, method: str, path: str, body: Any = None) -> int:
    """Send a request straight to the application; return the status."""
    data = b"" if body is None else json.dumps(body).encode()
    headers = [
        (b"host", b"localhost"),
        (b"authorization", f"Bearer {secret}".encode()),
        (b"content-type", b"application/json"),
    ]
    path, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "root_path": "",
    }  # fmt: skip
    waiting = [{"type": "http.request", "body": data, "more_body": False}]
    status = 0

    async def receive() -> Any:
        return waiting.pop() if waiting else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    await app(scope, receive, send)
    return status


async def test_a_connection_of_a_request_that_was_cut_off_serves_the_next_tenant(postgres_home: str) -> None:
    app = create_app(postgres_home, GUARDED)
    tenants = [f"t-{secrets.token_hex(6)}" for _ in range(2)]
    (_, one), (_, other) = [await app.keys.create(tenant) for tenant in tenants]
    await app.start()
    body = {"messages": [{"role": "user", "content": "mine"}]}
    try:
        contexts = []
        for secret in (one, other):
            assert await _status_of_request(app, secret, "POST", "/api/v1/contexts", {"key": "same"}) == 201
        for tenant in tenants:
            home = await app.stores.tenant(tenant)
            contexts.append((await home.handle.context("same")).id)
        for ticks in range(60):
            path = f"/api/v1/contexts/{contexts[0]}/messages"
            running = asyncio.ensure_future(_status_of_request(app, one, "POST", path, body))
            for _ in range(ticks):
                await asyncio.sleep(0)
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            foreign = f"/api/v1/contexts/{contexts[0]}/messages"
            assert await _status_of_request(app, other, "GET", foreign) == 404
            assert (
                await _status_of_request(app, other, "GET", f"/api/v1/contexts/{contexts[1]}/messages") == 200
            )
        assert (
            await _status_of_request(app, one, "GET", f"/api/v1/contexts/{contexts[0]}/messages?limit=500")
            == 200
        )
        state = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
        assert run_inside(postgres_home, state) == [(0,)]
    finally:
        await app.stop()


# ── odd names (T35) ─────────────────────────────────────────────────────────────────────────────────────────────────

ODD = [
    "'", '"', "';--", "' OR 1=1 --", "$.", "$.a'", "NEAR(", "a AND", "AND", "*", "ctx:2", "-", "a -b", "(", ")",
    "%", "_", "\\", "\0", "a\0b", "\u202e", "\u0000", "é", "e\u0301", "\U0001f600", "x" * 256, "x" * 5000, "-1", "0",
    "1e5", "NaN", str(2**31), str(2**63), str(2**64), "9" * 400, "true", "null", "[]", "{}", "../..", "%2e%2e",
    "http://169.254.169.254/",
    "@acms", "@audit", "@namespace", " ", "\t", "\n", "c_", "m_0_0_0", "m_0000000000000000_1_000000",
    "DROP TABLE contexts",
]  # fmt: skip


def _fuzzed_requests() -> Iterator[tuple[str, str, dict[str, Any], Any]]:
    """Yield (method, path, query, body): each parameter and field of text of every operation, one odd at a time."""
    for one in OPERATIONS:
        if one.rooted or one.streams:
            continue
        names = re.findall(r"{(\w+)[^}]*}", one.path)
        for name in names:
            for odd in ODD:
                values = dict.fromkeys(names, "1") | {"context_id": "CONTEXT", name: odd}
                yield one.method, one.path, values, (None, one.example or {})
        for name, known in (one.query.model_fields if one.query is not None else {}).items():
            for odd in ODD:
                query = {known.alias or name: odd}
                yield one.method, one.path, {"context_id": "CONTEXT"}, (query, one.example or {})
        for name, value in (one.example or {}).items() if isinstance(one.example, dict) else ():
            if isinstance(value, str):
                for odd in (*ODD, "\ud800", "a\udfffb"):
                    yield one.method, one.path, {"context_id": "CONTEXT"}, (None, {**one.example, name: odd})


@pytest.mark.parametrize("most", [200, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
async def test_odd_names_are_judged_alike_by_every_store(
    tmp_path_factory: pytest.TempPathFactory, postgres_home: str, most: int | None
) -> None:
    urls = ["memory://", f"sqlite:///{tmp_path_factory.mktemp('odd') / 'log.db'}", postgres_home]
    verdicts: list[list[tuple[Any, ...]]] = []
    seed = 35 if settings().derandomize else secrets.randbits(32)
    requests = list(_fuzzed_requests())
    nul_in_body = [one for one in requests if isinstance(one[3][1], dict) and "\0" in one[3][1].values()]
    chosen = requests if most is None else nul_in_body + random.Random(seed).sample(requests, most)
    for url in urls:
        app = create_app(url, GUARDED)
        _, secret = await app.keys.create(f"t-{secrets.token_hex(6)}", scopes=tuple(Scope))
        await app.start()
        found: list[tuple[Any, ...]] = []
        try:
            transport = httpx2.ASGITransport(app=app)
            client = httpx2.AsyncClient(transport=transport, base_url="http://localhost/api/v1", verify=False)
            client.headers["Authorization"] = f"Bearer {secret}"
            made = await client.post("/contexts", json={"key": "odd"})
            context = made.json()["data"]["id"]
            messages = [{"role": "user", "content": f"we said {n}"} for n in range(3)]
            await client.post(f"/contexts/{context}/messages", json={"messages": messages})
            for method, path, values, (query, body) in chosen:
                where = re.sub(
                    r"{(\w+)[^}]*}",
                    lambda at, values=values: _quote_value(values.get(at[1], "1")),
                    path,
                ).replace("CONTEXT", context)
                sent = json.dumps(body).encode() if method not in ("GET", "DELETE") else None
                reply = await client.request(
                    method, where, params=query, content=sent, headers={"Content-Type": "application/json"}
                )
                found.append(
                    (
                        method,
                        where.replace(context, "C"),
                        query,
                        body,
                        reply.status_code,
                        _code_of_reply(reply),
                    )
                )
                assert reply.status_code < 500, found[-1]
            await client.aclose()
        finally:
            await app.stop()
        verdicts.append(found)
    differ = [pair for pair in zip(*verdicts, strict=True) if len(set(map(repr, pair))) > 1]
    assert not differ, "\n".join([f"seed {seed}", *map(repr, differ)])


def _quote_value(value: str) -> str:
    from urllib.parse import quote

    return quote(value, safe="")


def _code_of_reply(reply: httpx2.Response) -> str:
    return "" if reply.status_code < 400 else str(reply.json()["code"])
