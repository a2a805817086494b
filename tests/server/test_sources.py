"""Sources of a service from a file: whom `/orchestration/render` asks when a request names no contexts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from acms import ConfigurationError
from acms.server.sources import load_http_sources
from tests.providers.server import Behave, ModelServer
from tests.server.serving import serving
from tests.support.sources import make_item, request


async def test_a_file_names_servers_by_layer(tmp_path: Path) -> None:
    file = tmp_path / "sources.toml"
    said = {
        "request_id": "req-1", "latency_ms": 1, "candidates": [make_item("kb:1", "Copy the orders.", "orders")],
    }  # fmt: skip
    async with ModelServer() as server:
        server.otherwise = Behave(body=said)
        file.write_text(
            f'[[sources]]\nlayer = "L2"\nurl = "{server.root}/v1/search"\nname = "handbook"\nkey_env = "KB_KEY"\n'
            'deadline_ms = 5000\n[[sources]]\nlayer = "L4"\nurl = "http://127.0.0.1:9/v1/search"\n',
            encoding="utf-8",
        )
        found = load_http_sources(file, {"KB_KEY": "sk-secret"})
        assert [(one.layer, one.name) for one in found] == [("L2", "handbook"), ("L4", "127.0.0.1")]
        with serving("memory://", sources=found) as running:
            asked = asyncio.to_thread(running.client.post, "/orchestration/render", json=request())
            assert [one["id"] for one in (await asked).json()["fragments"]] == ["kb:1"]
            for one in found:  # what it opened belongs to the loop of the service
                closed = asyncio.run_coroutine_threadsafe(one.aclose(), running.loop)
                await asyncio.wrap_future(closed)
        assert [(call.path, call.key) for call in server.calls] == [("/v1/search", "sk-secret")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[sources]", "not TOML"),
        ('colour = "red"', r"colour: there are \[\[sources\]\] only"),
        ('sources = "none"', "write each source"),
        ("sources = [1]", "write each source"),
        ('[[sources]]\nlayer = "L2"', "source 1: url is missing"),
        ('[[sources]]\nlayer = "L2"\nurl = "http://a/b"\nport = 1', "port is unknown"),
        ('[[sources]]\nlayer = "L2"\nurl = "http://a/b"\ntimeout = true', "timeout must be int"),
        ('[[sources]]\nlayer = "L3"\nurl = "http://a/b"', "L1, L2 or L4"),
        ('[[sources]]\nlayer = "L2"\nurl = "http://a/b"\nkey_env = "NONE"', "NONE is not set"),
    ],
)
def test_a_file_that_cannot_be_followed_says_where(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "sources.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=said):
        load_http_sources(file, {})


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_http_sources(tmp_path / "none.toml", {})
