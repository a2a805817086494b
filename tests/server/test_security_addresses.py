"""What a caller sends names no place that the service goes to: models and sources are the operator's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from acms.server.routes.table import OPERATIONS
from tests.server.guarded import guarded_service

PLACE = re.compile(
    r"url|uri|host|endpoint|hook|address|proxy|provider|embed|summarizer|reranker|reflector", re.IGNORECASE
)


def _field_names(schema: Any) -> Iterator[str]:
    """Yield the name of every field in a schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
    for value in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _field_names(value)


def test_no_operation_takes_the_address_of_anything_but_a_webhook() -> None:
    taken = {
        name
        for operation in OPERATIONS
        if operation.name != "addWebhook"  # https and public, at each delivery: test_webhooks
        for kind in (operation.body, operation.query)
        if isinstance(kind, type) and issubclass(kind, BaseModel)
        for name in _field_names(kind.model_json_schema(by_alias=True))
    }
    assert {"query", "policyConfig", "model"} <= taken
    assert not [name for name in taken if PLACE.search(name)]


async def test_addresses_among_what_is_said_are_never_called() -> None:
    called: list[Any] = []
    listening = await asyncio.start_server(lambda reader, writer: called.append(writer), "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    places = [
        f"http://127.0.0.1:{port}/a",
        f"http://[::ffff:127.0.0.1]:{port}/a",
        f"http://localhost:{port}/a.png",
    ]
    async with listening, guarded_service("memory://") as service:
        client = await service.key("acme")
        for url in places:
            settings = {"baseUrl": url, "endpoint": url, "summarizer": url, "webhook": url}
            for field in settings:
                refused = await client.post("/contexts", json={field: url})
                assert refused.status_code == 400, refused.text
                assert field in refused.json()["detail"]
            made = await client.post("/contexts", json={"name": url, "metadata": settings})
            path = f"/contexts/{made.json()['data']['id']}"
            media = {"type": "media", "mime": "image/png", "ref": url, "tokens": 10}
            messages = [
                {
                    "role": "user",
                    "parts": [{"type": "text", "text": f"Look at {url}"}, media],
                    "metadata": settings,
                },
                {
                    "role": "assistant",
                    "content": "",
                    "toolCalls": [{"id": "c", "name": url[:4], "arguments": {"url": url}}],
                },
                {"role": "tool", "content": f"[image]({url})", "toolCallId": "c"},
            ]
            assert (await client.post(f"{path}/messages", json={"messages": messages})).status_code == 201
            prompt = {"codec": "openai-chat", "model": "gpt-5", "budget": 900, "system": url, "user": url}
            asked = [
                await client.post(f"{path}/recall", json={"query": url}),
                await client.post(f"{path}/chat", json={"query": url, "budget": 500}),
                await client.post(f"{path}/compact", json={}),
                await client.post(f"{path}/prompt", json=prompt),
            ]
            assert {one.status_code for one in asked} <= {200, 202}, [one.text for one in asked]
        assert not called
