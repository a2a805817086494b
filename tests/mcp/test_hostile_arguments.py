"""Every argument of every tool is given every kind of wrong value: a model reads which argument is wrong, and why."""

from __future__ import annotations

from typing import Any

import pytest
from mcp.client.client import Client

from acms import ACMS
from acms.errors import MESSAGE_CHARS
from acms.mcp.memory import Local
from acms.mcp.server import build_mcp_server
from acms.mcp.tools import TOOLS
from tests.mcp.conftest import REQUEST

HOSTILE: list[Any] = [
    None, "", " ", "a\0b", "x" * 1_100_000, "🙂" * 200, 5, -1, 0, 10**30, 1.5, True, [], {}, [None], {"a": 1},
    "2026-13-45",
]  # fmt: skip
GIVEN: dict[str, dict[str, Any]] = {
    "recall": {"query": "orders"},
    "remember": {"text": "We use Redis.", "origin": "user"},
    "why": {"query": "orders"},
    "render": {"request": REQUEST},
}
"""Arguments that a tool needs."""


@pytest.mark.parametrize(
    ("tool", "argument"),
    [(tool, argument) for tool, spec in TOOLS.items() for argument in spec.arguments.model_fields],
)
async def test_a_wrong_argument_is_named(tool: str, argument: str) -> None:
    async with ACMS("one", "memory://", None, namespace="team") as session:
        id = await session.ingest("user", "We use PostgreSQL for orders.")
        async with Client(build_mcp_server(lambda _: Local(session))) as client:
            for value in HOSTILE:
                given = {"id": id} if tool in ("read", "why", "forget") else {}
                result = await client.call_tool(tool, {**given, **GIVEN.get(tool, {}), argument: value})
                if not result.is_error:
                    continue
                error = result.structured_content["error"]
                assert error["code"] != "ACMS", f"{value!r:.40} broke the server"
                assert len(error["message"]) <= MESSAGE_CHARS + 1
                assert error["code"] != "VALIDATION" or error["argument"]
