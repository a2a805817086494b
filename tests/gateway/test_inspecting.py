"""What the inspector shows of requests that came through a gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2

from acms import open_storage
from acms.cli.serving import _find_client_requests
from acms.gateway import GatewayConfig
from acms.inspector import mount_inspector
from acms.server import ServerConfig, create_app
from tests.gateway.conversations import Conversation
from tests.gateway.serving import running_gateway, serve_app


def test_the_inspector_shows_what_was_asked_and_what_was_sent(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with running_gateway(GatewayConfig(budget=900), url) as running:
        client = Conversation(running.client, "openai-chat")
        for turn in range(16):
            client.say(f"Turn {turn} " + "ledger invoice " * 40)
        running.settle()

    async def context() -> str:
        async with open_storage(url) as storage:
            (one,) = (await storage.sessions()).sessions
            return str(one.id)

    app = create_app(url, ServerConfig(auth="off", writes=False, works=False), embedder=None)
    made = mount_inspector(app, client_requests=_find_client_requests(url, app))
    with serve_app(made) as (address, _):
        page = httpx2.get(f"{address}/s/{asyncio.run(context())}/gateway")
    assert page.status_code == 200
    assert "32 messages" in page.text
    assert "recalled" in page.text
    assert "left out" in page.text
    assert 'aria-current="page">gateway' in page.text


def test_a_store_without_a_gateway_has_no_such_page(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    app = create_app(url, ServerConfig(auth="off"), embedder=None)
    assert _find_client_requests(url, app) is None
