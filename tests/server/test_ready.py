"""Sessions that are kept ready: the least used ones go, none while a request uses it, and their store closes."""

from __future__ import annotations

import asyncio

import httpx2
import numpy as np

from acms.recall.embeddings import RECIPE
from acms.server import App, ServerConfig, create_app
from acms.server.routes.table import OPERATIONS
from acms.storage import handles


class Slow:
    """An embedder that answers when it may."""

    dimension = 2

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.asked = asyncio.Event()

    async def embed(self, texts: list[str]) -> np.ndarray:
        self.asked.set()
        await self.may.wait()
        return np.ones((len(texts), self.dimension), np.float32)


def _client(app: App) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=app)
    return httpx2.AsyncClient(transport=transport, base_url="http://localhost/api/v1", verify=False)


async def _talk(client: httpx2.AsyncClient, content: str) -> str:
    id: str = (await client.post("/contexts", json={})).json()["data"]["id"]
    body = {"messages": [{"role": "user", "content": content}]}
    assert (await client.post(f"/contexts/{id}/messages", json=body)).status_code == 201
    return id


async def test_a_session_in_use_is_not_closed_though_others_take_its_place() -> None:
    slow = Slow()
    slow.may.set()
    app = create_app("memory://", ServerConfig(auth="off", ready_sessions=1), embedder=slow)
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
        await tenant.handle.put_derived(first, ())
        missing = await tenant.handle.missing(f"Slow/2/f16/{RECIPE}", context=first, limit=9)
        assert missing == [], "its vector was waited for, though others took its place"
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
