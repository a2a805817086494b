"""The OpenAI Agents session: foreign items come back exactly, beside the SDK's own SQLite session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from agents import Runner, SessionSettings
from agents.memory import OpenAIResponsesCompactionSession
from agents.run_config import ModelInputData
from hypothesis import given
from hypothesis import strategies as st

from acms import FitError, open_storage
from acms.integrations.openai_agents import ACMSSession
from tests.integrations import agent as script
from tests.integrations import transcripts
from tests.integrations.openai_agent import CODEC, Driver
from tests.providers import judge

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


async def test_an_edited_item_says_what_it_says_now(session: ACMSSession) -> None:
    await session.add_items(ITEMS)
    asked, _, _, answered, *_ = entries = await session.memory.entries()
    for entry in (asked, answered, entries[4]):
        await session.memory.replace(entry.id, "Of db2.")
    found = await session.get_items()
    assert found[0] == {"role": "user", "content": "Of db2."}
    assert found[3] == {"type": "function_call_output", "call_id": "c1", "output": "Of db2."}
    assert found[4] == {"role": "assistant", "content": "Of db2."}
    assert [*found[1:3], *found[5:]] == [*ITEMS[1:3], *ITEMS[5:]]


async def test_popping_brings_nothing_back_that_was_edited_or_summarised(session: ACMSSession) -> None:
    await session.add_items([{"role": "user", "content": f"Message {number}. " * 20} for number in range(20)])
    for text in ("Edited.", "Edited again."):
        await session.memory.replace((await session.memory.entries(1))[0].id, text)
    assert await session.pop_item() == {"role": "user", "content": "Edited again."}
    assert len(await session.get_items()) == 19
    await session.memory.wait(await session.memory.compact(preserve_recent_count=0))
    (summary,) = await session.get_items()
    assert await session.pop_item() == summary
    assert await session.get_items() == []
    assert await session.pop_item() is None


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


class TestStory(script.Story):
    driver = Driver


def test_blocking_runs_use_a_session_from_many_event_loops(tmp_path: Path) -> None:
    agent = Driver(f"sqlite:///{tmp_path / 'memory.db'}")

    def turn(text: str) -> str:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            options = {"session": agent.session, "run_config": agent.config}
            return str(Runner.run_sync(agent.agent, text, **options).final_output)
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    turn(script.said(3))
    assert turn(script.QUESTION) == "It is marzipan-4711."
    asyncio.run(agent.session.add_items([{"role": "user", "content": "One more."}]))
    assert len(asyncio.run(agent.session.get_items())) == 5
    asyncio.run(agent.session.close())


async def test_what_no_store_can_keep_ends_no_run() -> None:
    session = ACMSSession("s", open_storage("memory://"))
    odd = "half\0 a \ud800word"
    items = [
        {"role": "user", "content": odd},
        {"type": "function_call", "call_id": "c1", "name": "disk", "arguments": odd},
        {"type": "function_call_output", "call_id": "c1", "output": odd},
        {"role": "assistant", "content": odd},
    ]
    await session.add_items(items)
    assert await session.get_items() == items
    data: Any = SimpleNamespace(
        model_data=ModelInputData([*items, items[0]], odd), agent=SimpleNamespace(tools=[])
    )
    shown = (await session.within(4000)(data)).input
    assert shown == json.loads(
        json.dumps([*items, items[0]]).replace("\\u0000", "\ufffd").replace("\\ud800", "\ufffd")
    )
    await session.close()


async def test_a_result_that_is_too_long_is_cut_and_ends_no_run() -> None:
    session = ACMSSession("s", open_storage("memory://"))
    call = {"type": "function_call", "call_id": "c1", "name": "disk", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "full " * 300_000}
    await session.add_items([{"role": "user", "content": "q"}, call, output])
    kept = (await session.get_items())[2]
    assert (kept["type"], kept["call_id"]) == ("function_call_output", "c1")
    assert 100_000 < len(kept["output"]) < len(output["output"])
    await session.close()


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
    agent = Driver("memory://")
    image = {"role": "user", "content": [{"type": "input_image", "image_url": "https://example.org/a.png"}]}
    agent.config.call_model_input_filter = agent.session.within(4000)
    await Runner.run(agent.agent, [image], session=agent.session, run_config=agent.config)
    assert agent.model.seen[0] == [image]
    await Runner.run(agent.agent, [image], session=agent.session, run_config=agent.config)
    assert [item for item in agent.model.seen[1] if item.get("role") == "user"] == [image, image]
    agent.config.call_model_input_filter = agent.session.within(20)
    with pytest.raises(FitError):
        await agent.turn("Hello.")
    await agent.session.close()


async def test_the_reasoning_of_the_current_turn_is_sent_whatever_is_left_of_the_budget() -> None:
    """A request that is nearly full makes room for it; one that has no room at all goes without."""
    before: list[Any] = []
    for n in range(30):
        before.append(
            {"role": "user", "content": f"Note {n}: the lamp of room {n} is {'very ' * (n % 7)}dim."}
        )
        before.append({"role": "assistant", "content": f"Noted, room {n}."})
    reasoning = {"id": "rs_" + 30 * "a1b2", "summary": [], "type": "reasoning"}
    call = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "disk", "arguments": "{}"}
    turn = [
        {"role": "user", "content": "How full is the disk?"},
        reasoning,
        call,
        {"type": "function_call_output", "call_id": "c1", "output": "90 %"},
    ]
    for budget in [150, *range(400, 460, 7)]:
        session = ACMSSession("s", open_storage("memory://"))
        await session.add_items([*before, *turn])
        data: Any = SimpleNamespace(
            model_data=ModelInputData([*before, *turn], None), agent=SimpleNamespace(tools=[])
        )
        shown = (await session.within(budget)(data)).input
        without = [turn[0], {name: value for name, value in call.items() if name != "id"}, turn[3]]
        assert shown[-len(turn) :] == turn if budget > 150 else shown[-3:] == without
        await session.close()


@given(seed=st.integers(0, 2**32))
def test_any_conversation_is_stored_and_shown_as_a_valid_request(seed: int) -> None:
    async def run() -> None:
        random = Random(seed)
        items = [
            item
            for step in transcripts.random_conversation(random, unique_ids=True)
            for item in items_of_step(step, random)
        ]
        session = ACMSSession("s", open_storage("memory://"))
        await session.add_items(items)
        assert await session.get_items() == items
        for budget in transcripts.BUDGETS:
            data: Any = SimpleNamespace(
                model_data=ModelInputData(items, "Be brief."), agent=SimpleNamespace(tools=[])
            )
            with suppress(FitError):
                shown = (await session.within(budget)(data)).input
                sent = [without_fake_id(item) for item in shown]
                payload = {"input": [{"role": "system", "content": "Be brief."}, *sent]}
                assert judge.responses(payload) == []
                assert CODEC.count(payload).upper_bound <= budget
        await session.close()

    asyncio.run(run())


def without_fake_id(item: Any) -> Any:
    """Return an item without the id that the SDK makes up, as the SDK sends it."""
    return {name: value for name, value in item.items() if (name, value) != ("id", "__fake_id__")}


def items_of_step(step: transcripts.Step, random: Random) -> list[Any]:
    """Return the items of a message; some of its calls are those of native tools."""
    if step.role == "user":
        return [{"role": "user", "content": step.text or "go on"}]
    if step.answers is not None:
        kind = "custom_tool_call_output" if _is_native(step.answers) else "function_call_output"
        return [{"type": kind, "call_id": step.answers.id, "output": step.text}]
    items: list[Any] = []
    if step.thought and (step.text or step.calls):
        items.append({"type": "reasoning", "id": f"rs_{random.getrandbits(60)}", "summary": []})
    if step.text:
        content = [{"type": "output_text", "text": step.text, "annotations": []}]
        items.append({"type": "message", "id": "__fake_id__", "role": "assistant", "content": content})
    for call in step.calls:
        if _is_native(call):
            said = {"name": "apply_patch", "input": call.arguments["host"]}
            items.append({"type": "custom_tool_call", "call_id": call.id, **said})
        else:
            said = {"name": call.name, "arguments": json.dumps(call.arguments)}
            items.append({"type": "function_call", "call_id": call.id, **said})
    return items


def _is_native(call: transcripts.Call) -> bool:
    return call.id.endswith("1")
