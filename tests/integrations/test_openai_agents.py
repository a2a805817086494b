"""The OpenAI Agents session: foreign items come back exactly, beside the SDK's own SQLite session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import Runner, SessionSettings
from agents.memory import OpenAIResponsesCompactionSession
from hypothesis import given, settings
from hypothesis import strategies as st

from acms import FitError, open_storage
from acms.erasure import erase_subject
from acms.integrations.openai_agents import ACMSSession
from tests.integrations import agent as script
from tests.integrations.openai_agent import Scene, chat

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
    for item in items:
        item["type"] = "vendor_item"

    async def main() -> None:
        session = ACMSSession("s", open_storage("memory://"))
        await session.add_items(items)
        assert await session.get_items() == items

    asyncio.run(main())


# ── an agent ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _said(items: list[Any]) -> list[tuple[str, str]]:
    return [(one["role"], script.text_of(one)) for one in chat(items)]


@pytest.mark.parametrize("turns", [20, pytest.param(script.TURNS, marks=pytest.mark.slow)])
async def test_a_long_run_is_valid_within_its_budget_and_keeps_every_id(url: str, turns: int) -> None:
    scene = Scene(url)
    for turn in range(turns):
        await scene.turn(script.said(turn))
    assert await scene.turn(script.QUESTION) == "It is marzipan-4711."
    kept = await scene.session.get_items()
    assert _said(kept[:-2]) == script.expected(0, turns)
    known = {item["id"]: item for item in kept if "id" in item}
    for items in scene.model.seen:
        for before, item in zip([{}, *items], items, strict=False):
            if "id" in item:
                assert item == known[item["id"]]
            if str(item.get("id")).startswith("fc_"):
                assert before["id"] == item["id"].replace("fc", "rs"), "a call without its reasoning"
    called = [items for items in scene.model.seen if items[-1].get("type") == "function_call_output"]
    assert all(items[-3]["type"] == "reasoning" for items in called)
    assert max(scene.model.costs) > script.BUDGET / 2
    await scene.session.close()


@pytest.mark.faults
async def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'memory.db'}"
    done = script.killed("tests.integrations.openai_agent", url, 0, 10_000, after=6)
    scene = Scene(url, interrupted=True)
    stored = _said(await scene.session.get_items())
    assert stored[: len(script.expected(0, done + 1))] == script.expected(0, done + 1)
    for turn in (20, 21):
        await scene.turn(script.said(turn))
    again = _said(await scene.session.get_items())
    assert again == stored + script.expected(20, 22)
    await scene.session.close()


async def test_a_fork_goes_on_by_itself(url: str) -> None:
    scene = Scene(url)
    for turn in range(4):
        await scene.turn(script.said(turn))
    await (await scene.session.memory.fork(session_id="s2")).close()
    other = Scene("memory://")
    other.session = ACMSSession("s2", scene.session.memory.storage)
    other.config.call_model_input_filter = other.session.within(script.BUDGET)
    assert await other.turn(script.QUESTION) == "It is marzipan-4711."
    kept = await scene.session.get_items()
    assert _said(kept) == script.expected(0, 4)
    assert (await other.session.get_items())[: len(kept)] == kept
    for one in (scene, other):
        await one.session.close()


async def test_another_session_of_the_user_is_recalled_until_the_user_is_erased(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'memory.db'}"
    monday, friday = Scene(url, "monday", namespace="user:1"), Scene(url, "friday", namespace="user:1")
    other = Scene(url, "friday", namespace="user:2")
    await monday.turn(script.said(3))
    assert await friday.turn(script.QUESTION) == "It is marzipan-4711."
    assert await other.turn(script.QUESTION) == "I do not know."
    await erase_subject(monday.session.memory.storage, namespace="user:1")
    again = Scene(url, "saturday", namespace="user:1")
    assert await again.turn(script.QUESTION) == "I do not know."
    for one in (monday, friday, other, again):
        await one.session.close()
    assert script.left_in(tmp_path, ["marzipan-4711"]) == []


def test_blocking_runs_use_a_session_from_many_event_loops(tmp_path: Path) -> None:
    scene = Scene(f"sqlite:///{tmp_path / 'memory.db'}")

    def turn(text: str) -> str:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            options = {"session": scene.session, "run_config": scene.config}
            return str(Runner.run_sync(scene.agent, text, **options).final_output)
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    turn(script.said(3))
    assert turn(script.QUESTION) == "It is marzipan-4711."
    asyncio.run(scene.session.add_items([{"role": "user", "content": "One more."}]))
    assert len(asyncio.run(scene.session.get_items())) == 5
    asyncio.run(scene.session.close())


async def test_settings_of_the_sdk_limit_what_is_read() -> None:
    session = ACMSSession("s", open_storage("memory://"), session_settings={"limit": 2})
    assert session.session_settings == SessionSettings(limit=2)
    await session.add_items(ITEMS)
    assert await session.get_items() == ITEMS[-2:]
    session.session_settings = None
    assert await session.get_items() == ITEMS
    await session.close()


async def test_what_the_sdk_compacts_stays_in_the_log() -> None:
    class Client:
        """Answers as `responses.compact` does."""

        @property
        def responses(self) -> Any:
            return self

        async def compact(self, **request: Any) -> Any:
            class Compacted:
                output = [{"type": "compaction", "id": "cmp_1", "encrypted_content": "abc"}]  # noqa: RUF012
                usage = None

            return Compacted()

    session = ACMSSession("s", open_storage("memory://"))
    around = OpenAIResponsesCompactionSession("s", session, client=Client())  # type: ignore[arg-type]
    await around.add_items(ITEMS[:5])
    await around.run_compaction({"force": True, "compaction_mode": "input"})
    assert [item["type"] for item in await session.get_items()] == ["compaction"]
    assert len(await session.memory.at(5).entries()) == 5
    await session.close()


async def test_a_summary_of_acms_is_an_item_that_a_model_can_read() -> None:
    session = ACMSSession("s", open_storage("memory://"))
    for turn in range(30):
        await session.add_items([{"role": "user", "content": script.said(turn) * 5}])
    await session.memory.wait(await session.memory.compact(preserve_recent_count=2))
    items = await session.get_items()
    assert len(items) == 3
    assert items[0]["role"] == "user"
    assert items[0]["content"].startswith("<summary>")
    await session.close()


async def test_images_of_the_current_turn_are_sent_and_a_budget_without_room_is_told() -> None:
    scene = Scene("memory://")
    image = {"role": "user", "content": [{"type": "input_image", "image_url": "https://example.org/a.png"}]}
    scene.config.call_model_input_filter = scene.session.within(4000)
    await Runner.run(scene.agent, [image], session=scene.session, run_config=scene.config)
    assert scene.model.seen[0][-1] == image
    scene.config.call_model_input_filter = scene.session.within(20)
    with pytest.raises(FitError):
        await scene.turn("Hello.")
    await scene.session.close()
