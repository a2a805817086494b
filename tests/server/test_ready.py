"""Sessions that are kept ready: the least used ones go, none while a request uses it, and their store closes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from acms import ACMS, ACMSConfig, ConfigurationError, open_storage
from acms.errors import HandleError
from acms.recall.embeddings import Embedding
from acms.server import App, ServerConfig, create_app
from acms.server.routes.table import OPERATIONS
from acms.server.tenants import Engine, Stores
from acms.storage import handles
from acms.testing import HashEmbedder
from acms.testing.logs import append_drafts, create_log, draft_message
from tests.server.slow import Slow


def _client_of_app(app: App) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=app)
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost/api/v1", verify=False)


async def _post_message(client: httpx2.AsyncClient, content: str) -> str:
    id: str = (await client.post("/contexts", json={})).json()["data"]["id"]
    body = {"messages": [{"role": "user", "content": content}]}
    assert (await client.post(f"/contexts/{id}/messages", json=body)).status_code == 201
    return id


async def test_a_session_in_use_is_not_closed_though_others_take_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow, embedder = Slow(monkeypatch), HashEmbedder()
    app = create_app("memory://", ServerConfig(auth="off", ready_sessions=1), embedder=embedder)
    await app.start()
    tenant = await app.stores.tenant(app.config.tenant)
    async with _client_of_app(app) as client:
        first = await _post_message(client, "we chose Postgres")
        slow.may.clear()
        slow.asked.clear()
        (entry,) = (await client.get(f"/contexts/{first}/messages")).json()["data"]
        path = f"/contexts/{first}/entries/{entry['id']}"
        asking = asyncio.ensure_future(client.patch(path, json={"content": "we chose Redis"}))
        await slow.asked.wait()
        for _ in range(3):
            other = (await client.post("/contexts", json={})).json()["data"]["id"]
            assert (await client.get(f"/contexts/{other}/tags")).status_code == 200
        slow.may.set()
        reply = await asking
        assert reply.status_code == 200, reply.text
        space = Embedding(tenant.handle, embedder).space
        async with asyncio.timeout(300):
            while await tenant.handle.missing(space, context=first, limit=9):
                await asyncio.sleep(0.01)  # its vectors are made, though others took its place
    await app.stop()
    assert handles.get_shared_state(tenant.handle).users == 0, "nobody keeps the store open"


async def test_a_contract_that_is_asked_again_does_not_keep_the_store_open() -> None:
    (render,) = [one for one in OPERATIONS if one.path == "/orchestration/render"]
    app = create_app("memory://", ServerConfig(auth="off", ready_sessions=2))
    await app.start()
    tenant = await app.stores.tenant(app.config.tenant)
    async with _client_of_app(app) as client:
        first, second = (
            await _post_message(client, "we chose Postgres"),
            await _post_message(client, "we chose Redis"),
        )
        third = await _post_message(client, "we chose Valkey")
        for context in (third, first, second):
            await client.post("/orchestration/render", params={"contexts": context}, json=render.example)
        assert [*tenant._contracts] == [(first,), (second,)], "no more than sessions are kept ready"
        for _ in range(2):
            await _post_message(client, "somebody else")
        for context in (first, second, first):
            reply = await client.post(
                "/orchestration/render", params={"contexts": context}, json=render.example
            )
            assert reply.status_code == 200, reply.text
    await app.stop()
    assert handles.get_shared_state(tenant.handle).users == 0, "nobody keeps the store open"


async def test_requests_that_come_at_once_share_a_session_and_none_is_left_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tags, close, delays = ACMS.tags, ACMS.close, iter([0.05])

    async def later(self: ACMS) -> Any:
        await asyncio.sleep(0)  # another request comes before its context is found
        return await tags(self)

    async def slowly(self: ACMS) -> None:
        await asyncio.sleep(next(delays, 0))  # the service is stopped while the first one still closes
        await close(self)

    monkeypatch.setattr(ACMS, "tags", later)
    monkeypatch.setattr(ACMS, "close", slowly)
    app = create_app("memory://", ServerConfig(auth="off"))
    await app.start()
    tenant = await app.stores.tenant(app.config.tenant)
    async with _client_of_app(app) as client:
        context = await _post_message(client, "we chose Postgres")
        tenant.forget(context)
        one, other = await asyncio.gather(tenant.session(context), tenant.session(context))
        assert one is other
    await app.stop()
    assert handles.get_shared_state(tenant.handle).users == 0, "nobody keeps the store open"


async def test_of_more_tenants_than_may_be_open_one_without_requests_is_closed(tmp_path: Path) -> None:
    stores = Stores(f"sqlite:///{tmp_path / 'log.db'}", Engine(config=ACMSConfig()), max_open=1)
    busy = await stores.tenant("busy")
    lease = busy.enter()
    idle = await stores.tenant("idle")
    assert stores.list_open() == [busy, idle], "a store in use is not closed"
    last = await stores.tenant("last")
    assert stores.list_open() == [busy, last]
    busy.leave(lease)
    assert await stores.tenant("idle") is not idle
    assert [one.name for one in stores.list_open()] == ["idle"]
    await stores.aclose()


async def test_tenants_of_shards_lie_where_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "shards.toml"
    file.write_text(
        'default = "one"\n[shards]\none = "sqlite:///one.db"\ntwo = "sqlite:///two.db"\n[tenants]\nacme = "two"\n'
    )
    stores = Stores(str(file), Engine(config=ACMSConfig()))
    for tenant in ("acme", "globex"):
        handle = (await stores.tenant(tenant)).handle
        await append_drafts(handle, await create_log(handle, tenant), draft_message(f"this is {tenant}"))
    await stores.aclose()
    with pytest.raises(HandleError, match="closed"):
        stores.handle("acme")
    for name, tenant in (("one", "globex"), ("two", "acme")):
        async with open_storage(f"sqlite:///{tmp_path / name}.db?tenant={tenant}") as store:
            assert (await store.context(tenant)).key == tenant


def test_the_store_of_a_service_is_that_of_all_tenants() -> None:
    with pytest.raises(ConfigurationError, match="the key determines the tenant") as refused:
        create_app("memory://?tenant=acme", ServerConfig(auth="off"))
    assert refused.value.options == ("remove tenant= from the URL",)
