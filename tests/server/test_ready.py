"""Sessions that are kept ready: the least used ones go, none while a request uses it, and their store closes."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from acms.recall.embeddings import Embedding
from acms.server import App, ServerConfig, create_app
from acms.server.routes.table import OPERATIONS
from acms.storage import handles
from acms.testing import HashEmbedder
from tests.server.slow import Slow


def _client(app: App) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=app)
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost/api/v1", verify=False)


async def _talk(client: httpx2.AsyncClient, content: str) -> str:
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
    tenant = await app.stores.of(app.config.tenant)
    async with _client(app) as client:
        first = await _talk(client, "we chose Postgres")
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
        async with asyncio.timeout(10):
            while await tenant.handle.missing(space, context=first, limit=9):
                await asyncio.sleep(0.01)  # its vectors are made, though others took its place
    await app.stop()
    assert handles.shared(tenant.handle).users == 0, "nobody keeps the store open"


async def test_a_contract_that_is_asked_again_does_not_keep_the_store_open() -> None:
    (render,) = [one for one in OPERATIONS if one.path == "/orchestration/render"]
    app = create_app("memory://", ServerConfig(auth="off", ready_sessions=2))
    await app.start()
    tenant = await app.stores.of(app.config.tenant)
    async with _client(app) as client:
        first, second = await _talk(client, "we chose Postgres"), await _talk(client, "we chose Redis")
        for context in (first, second):
            await client.post("/orchestration/render", params={"contexts": context}, json=render.example)
        for _ in range(2):
            await _talk(client, "somebody else")
        for context in (first, second, first):
            reply = await client.post(
                "/orchestration/render", params={"contexts": context}, json=render.example
            )
            assert reply.status_code == 200, reply.text
    await app.stop()
    assert handles.shared(tenant.handle).users == 0, "nobody keeps the store open"
