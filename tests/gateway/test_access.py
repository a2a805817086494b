"""Who may use the gateway, and whose key goes to the provider."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from acms.config import ACMSConfig
from acms.errors import ConfigurationError
from acms.gateway import GatewayConfig
from acms.server.audit import Audit
from acms.server.keys import Keys
from acms.server.tenants import Engine, Stores
from tests.gateway.serving import Running, running_gateway

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[tuple[Running, str]]:
    url = f"sqlite:///{tmp_path / 'log.db'}"

    async def make() -> str:
        stores = Stores(url, Engine(config=ACMSConfig()))
        _, token = await Keys(stores, Audit(stores)).create("acme", scopes=["context:append", "memory:read"])
        await stores.aclose()
        return token

    token = asyncio.run(make())
    config = GatewayConfig(auth="required", provider_keys={"openai": "sk-of-the-house"})
    with running_gateway(config, url) as running:
        yield running, token


def test_another_machine_needs_a_key() -> None:
    with pytest.raises(ConfigurationError, match="no key is required"):
        GatewayConfig(host="0.0.0.0")


def test_without_a_key_nothing_is_forwarded(keyed: tuple[Running, str]) -> None:
    running, _ = keyed
    for path in ("/v1/chat/completions", "/v1/models"):
        assert running.client.post(path, json=HELLO).status_code == 401
    assert not running.upstream.received


def test_an_acms_key_beside_the_providers_key(keyed: tuple[Running, str]) -> None:
    running, token = keyed
    answer = running.client.post("/v1/chat/completions", json=HELLO, headers={"x-acms-key": token})
    assert answer.status_code == 200
    assert answer.headers["x-acms-session"]
    headers = dict(running.newest.headers)
    assert headers["authorization"] == "Bearer sk-test"
    assert token not in str(running.newest)


def test_a_key_lists_the_sessions_of_its_own_tenant(keyed: tuple[Running, str]) -> None:
    running, token = keyed
    assert running.client.get("/acms/sessions").status_code == 401
    headers = {"x-acms-key": token}
    running.client.post("/v1/chat/completions", json=HELLO, headers={**headers, "x-acms-session": "orders"})

    async def wait_for_store() -> None:
        memory = await running.gateway.tenants.memory("acme")
        await memory.idle()

    running.inside(wait_for_store)
    (row,) = running.client.get("/acms/sessions", headers=headers).json()["sessions"]
    assert (row["session"], row["requests"], row["untouched"]) == ("orders", 1, 1)


def test_an_acms_key_in_place_of_the_providers_key(keyed: tuple[Running, str]) -> None:
    running, token = keyed
    answer = running.client.post(
        "/v1/chat/completions", json=HELLO, headers={"authorization": f"Bearer {token}"}
    )
    assert answer.status_code == 200
    assert dict(running.newest.headers)["authorization"] == "Bearer sk-of-the-house"


def test_an_acms_key_never_goes_to_a_provider(keyed: tuple[Running, str]) -> None:
    running, token = keyed
    before = len(running.upstream.received)
    answer = running.client.post("/v1/messages", json=HELLO, headers={"x-api-key": token})
    assert answer.status_code == 401
    assert len(running.upstream.received) == before


def test_a_namespace_of_the_service_itself_is_not_written(keyed: tuple[Running, str]) -> None:
    running, token = keyed
    headers = {"x-acms-key": token, "x-acms-namespace": "@acms"}
    answer = running.client.post("/v1/chat/completions", json=HELLO, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["x-acms-memory"] == "bypassed;PermissionDeniedError"
    assert "x-acms-session" not in answer.headers
