"""Whatever goes wrong in the memory, the client is answered."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from acms.config import ACMSConfig
from acms.gateway import GatewayConfig
from tests.gateway.conversations import Conversation
from tests.gateway.serving import running_gateway


def test_a_memory_that_raises_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_gateway() as running:
        client = Conversation(running.client, "openai-chat")
        client.say("one")

        async def fails(*_: Any, **__: Any) -> None:
            raise RuntimeError("broken")

        monkeypatch.setattr("acms.gateway.memory.Memory.fit", fails)
        client.say("two")
        assert client.memory == "bypassed;RuntimeError"
        assert running.newest.body == client.answers[-1].request.content


LOCK = """
import sqlite3, sys
store = sqlite3.connect(sys.argv[1], isolation_level=None)
store.execute("begin exclusive")
print("locked", flush=True)
sys.stdin.read()
store.execute("rollback")
"""
"""Another process: SQLite's locks of one process do not keep two libraries apart."""


@contextmanager
def locked(file: Path) -> Generator[None]:
    command = [sys.executable, "-c", LOCK, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        try:
            yield
        finally:
            assert process.stdin is not None
            process.stdin.close()


def test_a_locked_store_holds_nobody_up(tmp_path: Path) -> None:
    file = tmp_path / "log.db"
    with running_gateway(GatewayConfig(budget=900), f"sqlite:///{file}", memory_timeout=2.0) as running:
        client = Conversation(running.client, "openai-chat")
        for turn in range(12):
            client.say(f"Turn {turn} " + "ledger invoice " * 40)
        running.settle()
        short = Conversation(running.client, "openai-chat")
        with locked(file):
            short.say("fits")
            assert short.memory == "untouched"
            began = time.perf_counter()
            client.say("does not fit")
            assert client.memory == "bypassed;timeout"
            assert time.perf_counter() - began >= 2.0, "the memory was given its time"
            assert running.newest.body == client.answers[-1].request.content
        sessions = running.sessions()
        assert sessions[short.session] == ["You keep the books.", "fits", "answer 13"]
        assert "does not fit" in sessions[client.session]


def test_half_a_stream_is_relayed_and_not_stored() -> None:
    with running_gateway() as running:
        running.upstream.breaks = True
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "SIZE=90"}]}
        with pytest.raises(httpx2.HTTPError):
            running.client.post("/v1/chat/completions", json=body)
        running.upstream.breaks = False
        (texts,) = running.sessions().values()
        assert texts == ["SIZE=90"]


SECRETS = ["sk-proj-Zt7Qw3Er9Ty1Ui5Op2As8Df4", "sk-ant-api03-Lk6Jh5Gf4Ds3Aq2Wz1Xe9Cr8"]


def test_provider_keys_are_in_no_store_no_log_and_no_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    file = tmp_path / "log.db"
    with running_gateway(GatewayConfig(budget=900), f"sqlite:///{file}") as running:
        openai = Conversation(
            running.client, "openai-chat", headers={"authorization": f"Bearer {SECRETS[0]}"}
        )
        claude = Conversation(running.client, "anthropic", headers={"x-api-key": SECRETS[1]})
        for turn in range(6):
            openai.say(f"Turn {turn} " + "ledger invoice " * 60)
            claude.say(f"Turn {turn} " + "ledger invoice " * 60)
        openai.client.post("/v1/chat/completions", content=b"{", headers=openai.headers)
        claude.client.post("/v1/messages", json={"messages": [None]}, headers=claude.headers)
        sent = [dict(one.headers) for one in running.upstream.received]
        assert any(one.get("authorization") == f"Bearer {SECRETS[0]}" for one in sent)
        assert any(one.get("x-api-key") == SECRETS[1] for one in sent)
        running.settle()
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for secret in SECRETS:
        assert secret.encode() not in written
        assert secret not in caplog.text
        assert all(secret not in repr(vars(record)) for record in caplog.records)


def test_secrets_in_texts_go_to_the_model_and_not_into_the_store(tmp_path: Path) -> None:
    secret = "AKIAQ3EGRTLPW7XK2MZN"
    with running_gateway(url=f"sqlite:///{tmp_path / 'log.db'}") as running:
        client = Conversation(running.client, "openai-chat")
        client.say(f"My access key is {secret}.")
        assert secret in running.newest.body.decode()
        running.settle()
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert secret.encode() not in written


def test_nothing_is_stored_without_a_store(tmp_path: Path) -> None:
    with running_gateway(GatewayConfig(store=False), f"sqlite:///{tmp_path / 'log.db'}") as running:
        client = Conversation(running.client, "openai-chat")
        client.say("one")
        assert "x-acms-memory" not in client.answers[-1].headers


def test_a_body_over_the_limit_is_refused() -> None:
    with running_gateway(GatewayConfig(body_bytes=1_000)) as running:
        answer = running.client.post("/v1/chat/completions", content=b"x" * 2_000)
        assert answer.status_code == 413
        assert json.loads(answer.content)["error"]["code"] == "TOO_LARGE"


def test_a_websocket_is_told_to_use_http() -> None:
    with running_gateway() as running:
        answer = running.client.get(
            "/v1/responses", headers={"upgrade": "websocket", "connection": "upgrade"}
        )
        assert answer.status_code == 426


def test_what_was_stored_is_found_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with running_gateway(url=url) as running:
        client = Conversation(running.client, "openai-chat")
        client.say("one")
        first = client.session
    with running_gateway(url=url) as again:
        client.client = again.client
        client.say("two")
        assert client.session == first
        assert list(again.sessions()) == [first]


def test_the_log_of_renders_shows_what_was_sent(tmp_path: Path) -> None:
    with running_gateway(GatewayConfig(budget=900), engine=ACMSConfig()) as running:
        client = Conversation(running.client, "openai-chat")
        for turn in range(16):
            client.say(f"Turn {turn} " + "ledger invoice " * 40)
        running.settle()

        async def read() -> int:
            memory = await running.gateway.tenants.memory("default")
            session = next(iter(memory.sessions._open.values()))
            return len(await session.renders())

        assert running.inside(read) >= 1


def test_an_error_of_forwarding_shows_no_key(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running_gateway() as running:

        async def fails(*_: Any, **__: Any) -> None:
            raise ValueError(f"Illegal header value b'Bearer {SECRETS[0]}'")

        monkeypatch.setattr("acms.gateway.proxy.Upstreams.send", fails)
        answer = running.client.get("/v1/models", headers={"authorization": f"Bearer {SECRETS[0]}"})
    assert answer.status_code == 502
    assert SECRETS[0] not in answer.text
    assert all(SECRETS[0] not in repr(vars(record)) for record in caplog.records)
