"""The OpenAI Agents session: foreign items come back exactly, beside the SDK's own SQLite session."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acms import open_storage
from acms.integrations.openai_agents import ACMSSession

ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "Which disk is full?"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA\u0000\ud800"},
    {"type": "function_call", "call_id": "c1", "name": "disk", "arguments": '{"host": "db1"}', "id": "fc_1"},
    {"type": "function_call_output", "call_id": "c1", "output": "40% used"},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "db1 is at 40 %.", "annotations": []}],
    },
    {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "x"},
    },
    {
        "role": "user",
        "content": [{"type": "input_image", "image_url": "https://example.org/a.png", "detail": "low"}],
    },
]


@pytest.fixture
async def session(any_url: str) -> AsyncIterator[ACMSSession]:
    found = ACMSSession("s", open_storage(any_url))
    yield found
    await found.close()


async def test_items_come_back_byte_exact(session: ACMSSession) -> None:
    await session.add_items(ITEMS)
    assert [json.dumps(item) for item in await session.get_items()] == [json.dumps(item) for item in ITEMS]
    assert await session.get_items(2) == ITEMS[-2:]
    assert await session.get_items(0) == []


async def test_pop_and_clear_rewind_but_history_keeps_everything(session: ACMSSession) -> None:
    assert await session.pop_item() is None
    await session.add_items(ITEMS)
    assert [await session.pop_item() for _ in range(4)] == ITEMS[:-5:-1]
    assert await session.get_items() == ITEMS[:3]
    await session.add_items([ITEMS[0]])
    await session.clear_session()
    assert await session.get_items() == []
    assert await session.pop_item() is None
    await session.add_items([ITEMS[4]])
    assert await session.get_items() == [ITEMS[4]]
    assert await session.memory.at(len(ITEMS)).entries() != []


async def test_the_same_log_can_be_recalled_and_its_tool_calls_are_groups(session: ACMSSession) -> None:
    await session.add_items(ITEMS)
    window = await session.memory.window(4000)
    assert len({item.group for item in window if item.group}) == 1
    found = await session.memory.recall("how full is db1", token_budget=500)
    assert any("40 %" in item.content for item in found)


async def test_same_answers_as_the_sdks_own_session(session: ACMSSession, tmp_path: Path) -> None:
    from agents import SQLiteSession

    other = SQLiteSession("s", tmp_path / "sdk.db")
    try:
        for step in (ITEMS[:3], ITEMS[3:], [ITEMS[0]]):
            await session.add_items(step)
            await other.add_items(step)
            assert await session.get_items() == await other.get_items()
            assert await session.get_items(2) == await other.get_items(2)
            assert await session.pop_item() == await other.pop_item()
        await session.clear_session()
        await other.clear_session()
        assert await session.get_items() == await other.get_items() == []
    finally:
        other.close()


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=8), json_values, max_size=4), min_size=1, max_size=5))
def test_any_json_object_survives(items: list[dict[str, Any]]) -> None:
    import asyncio

    for item in items:
        item["type"] = "vendor_item"

    async def main() -> None:
        session = ACMSSession("s", open_storage("memory://"))
        await session.add_items(items)
        assert await session.get_items() == items

    asyncio.run(main())
