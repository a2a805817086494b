"""LangChain: an agent whose memory is a log, a history, a retriever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_openai_messages,
)
from langchain_core.tools import tool
from langchain_tests.integration_tests import RetrieversIntegrationTests
from langgraph.checkpoint.memory import InMemorySaver

from acms import ACMS, ConfigurationError, FitError, ValidationError, open_storage
from acms.erasure import erase_subject
from acms.integrations.langchain import ACMSChatMessageHistory, ACMSRetriever
from tests.integrations import agent as script
from tests.integrations.langchain_agent import Agent


def _said(messages: list[BaseMessage]) -> list[tuple[str, str]]:
    chat = convert_to_openai_messages(messages)
    return [(message["role"], message["content"] or "") for message in chat]


@pytest.mark.parametrize("turns", [25, pytest.param(script.TURNS, marks=pytest.mark.slow)])
async def test_a_long_run_is_valid_within_its_budget_and_keeps_every_id(url: str, turns: int) -> None:
    agent = Agent(url)
    for turn in range(turns):
        await agent.turn(script.said(turn), f"u{turn}")
    answer = await agent.turn(script.QUESTION, "q")
    assert answer.text == "It is marzipan-4711."
    kept = await agent.history()
    assert _said(kept[:-2]) == script.expected(0, turns)
    known = {message.id: message for message in kept}
    shown = [message for messages in agent.model.seen for message in messages[1:] if message.id]
    assert {message.id for message in shown} == set(known) - {answer.id}
    assert all(message == known[message.id] for message in shown)
    assert max(agent.model.costs) > script.BUDGET / 2
    await agent.memory.aclose()


async def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'memory.db'}"
    done = script.killed("tests.integrations.langchain_agent", url, 0, 10_000, after=6)
    agent = Agent(url, interrupted=True)
    for turn in range(done + 1, done + 4):
        await agent.turn(script.said(turn), f"u{turn}")
    kept = await agent.history()
    before = script.expected(0, done + 1)
    assert _said(kept)[: len(before)] == before
    assert [message.id for message in kept if message.type == "human"] == [f"u{n}" for n in range(done + 4)]
    assert _said(kept)[-len(script.expected(done + 2, done + 4)) :] == script.expected(done + 2, done + 4)
    await agent.memory.aclose()


async def test_a_fork_goes_on_by_itself(url: str) -> None:
    agent = Agent(url)
    for turn in range(4):
        await agent.turn(script.said(turn), f"u{turn}")
    async with ACMS("t", agent.storage) as session:
        await (await session.fork(session_id="t2")).close()
    assert (await agent.turn(script.QUESTION, "q", "t2")).text == "It is marzipan-4711."
    assert _said(await agent.history()) == script.expected(0, 4)
    assert [message.id for message in (await agent.history("t2"))[:-1]] == [
        *(message.id for message in await agent.history()),
        "q",
    ]
    await agent.memory.aclose()


async def test_another_session_of_the_user_is_recalled_until_the_user_is_erased(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'memory.db'}"
    agent = Agent(url, namespace="user:1")
    other = Agent(url, namespace="user:2")
    await agent.turn(script.said(3), "u1", "monday")
    assert (await agent.turn(script.QUESTION, "u2", "friday")).text == "It is marzipan-4711."
    assert (await other.turn(script.QUESTION, "u3", "friday")).text == "I do not know."
    await erase_subject(agent.storage, namespace="user:1")
    again = Agent(url, namespace="user:1")
    assert (await again.turn(script.QUESTION, "u4", "saturday")).text == "I do not know."
    for one in (agent, other, again):
        await one.memory.aclose()
    assert script.left_in(tmp_path, ["marzipan-4711"]) == []


# ── the middleware ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_run_with_a_checkpointer_is_stored_once() -> None:
    agent = Agent("memory://", checkpointer=InMemorySaver())
    for turn in range(4):
        await agent.turn(script.said(turn), f"u{turn}")
    assert _said(await agent.history()) == script.expected(0, 4)
    state = await agent.graph.aget_state({"configurable": {"thread_id": "t"}})
    assert state.values["messages"] == await agent.history()


async def test_reasoning_goes_back_within_its_turn_and_within_the_budget() -> None:
    thinking = {"type": "thinking", "thinking": "A disk.", "signature": "c2ln"}
    call = {"type": "tool_use", "id": "c1", "name": "disk", "input": {"host": "host-1"}}
    calls = [{"id": "c1", "name": "disk", "args": {"host": "host-1"}, "type": "tool_call"}]
    usage = {"input_tokens": 9, "output_tokens": 5, "total_tokens": 14}
    thought = AIMessage([thinking, call], id="a1", tool_calls=calls, usage_metadata=usage)
    long = AIMessage([{**thinking, "thinking": "A disk. " * 2000}, call], id="a2", tool_calls=calls)
    agent = Agent("memory://")
    agent.model.given = [thought, AIMessage("40 %", id="a3")]
    await agent.turn("How full is it?", "u1")
    assert agent.model.seen[-1][-2] == thought
    agent.model.given = [long, AIMessage("41 %", id="a4")]
    await agent.turn("And now?", "u2")
    shown = {message.id: message for message in agent.model.seen[-1]}
    assert shown["a1"] == thought.model_copy(update={"content": ""})
    assert shown["a2"] == long.model_copy(update={"content": ""})
    assert [one for one in await agent.history() if one.id in ("a1", "a2")] == [thought, long]


def test_blocking_code_may_run_an_agent_also_inside_an_event_loop() -> None:
    agent = Agent("memory://")
    config = {"configurable": {"thread_id": "t"}}

    async def inside() -> str:
        done = agent.graph.invoke({"messages": [HumanMessage(script.QUESTION)]}, config)
        return done["messages"][-1].text

    agent.graph.invoke({"messages": [HumanMessage(script.said(3))]}, config)
    assert asyncio.run(inside()) == "It is marzipan-4711."
    agent.memory.close()


async def test_the_answer_of_a_tool_that_ends_the_run_is_stored() -> None:
    agent = Agent("memory://")

    @tool(return_direct=True)
    def last(host: str) -> str:
        """Return how full the disk of a host is, and that is that."""
        return "40 %"

    agent.graph = create_agent(agent.model, [last], middleware=[agent.memory])
    calls = [{"id": "c1", "name": "last", "args": {"host": "h"}, "type": "tool_call"}]
    agent.model.given = [AIMessage("", tool_calls=calls)]
    await agent.turn("How full is it?", "u1")
    assert _said(await agent.history()) == [("user", "How full is it?"), ("assistant", ""), ("tool", "40 %")]


async def test_sessions_that_are_not_used_are_closed_when_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from acms.integrations import langchain

    monkeypatch.setattr(langchain, "_SESSIONS", 2)
    agent = Agent("memory://")
    for thread in "abcab":
        await agent.turn("Hello.", f"u{thread}", thread)
    assert [thread for _, thread in agent.memory._sessions] == ["a", "b"]
    assert len(await agent.history("a")) == 3, "the same message again is not stored again"


async def test_a_run_without_a_thread_and_a_budget_without_room_are_told() -> None:
    agent = Agent("memory://")
    with pytest.raises(ConfigurationError, match="which conversation"):
        await agent.graph.ainvoke({"messages": [("user", "Hello.")]})
    agent.memory._budget = 5
    with pytest.raises(FitError):
        await agent.turn("Hello.", "u1")


# ── the history ─────────────────────────────────────────────────────────────────────────────────────────────────────

KINDS: list[BaseMessage] = [
    SystemMessage("Be brief.", id="m0"),
    HumanMessage("Which disk is full?", id="m1", name="ana"),
    HumanMessage(
        [
            {"type": "text", "text": "This one?"},
            {"type": "image_url", "image_url": {"url": "https://example.org/disk.png"}},
        ],
        id="m2",
    ),
    AIMessage(
        "I look.",
        id="m3",
        tool_calls=[{"id": "c1", "name": "disk", "args": {"host": "db1"}, "type": "tool_call"}],
        response_metadata={"model": "fake", "finish_reason": "tool_calls"},
        usage_metadata={"input_tokens": 9, "output_tokens": 5, "total_tokens": 14},
    ),
    ToolMessage("40 %", id="m4", tool_call_id="c1", name="disk", artifact={"rows": [1, 2]}, status="error"),
    AIMessage(
        [{"type": "reasoning", "reasoning": "It has room."}, {"type": "text", "text": "It is at 40 %."}],
        id="m5",
    ),
]


async def test_every_kind_of_message_comes_back_as_it_was(url: str) -> None:
    async with ACMS("s", open_storage(url)) as session:
        history = ACMSChatMessageHistory(session)
        await history.aadd_messages(KINDS)
        assert await history.aget_messages() == KINDS
        await history.aadd_messages([HumanMessage("Which one is full?", id="m1", name="ana")])
        assert (await history.aget_messages())[1].text == "Which one is full?"
        await history.aadd_messages([AIMessageChunk(content="Yes.", id="m6")])
        assert (await history.aget_messages())[-1] == AIMessage("Yes.", id="m6")
        await history.aclear()
        assert await history.aget_messages() == []


def test_blocking_code_has_the_same_history() -> None:
    history = ACMSChatMessageHistory(ACMS("s", open_storage("memory://")))
    history.add_user_message("Hello.")
    history.add_ai_message("Hi.")
    assert [message.text for message in history.messages] == ["Hello.", "Hi."]
    assert str(history) == "Human: Hello.\nAI: Hi."
    history.clear()
    assert history.messages == []


async def test_what_a_log_cannot_hold_is_refused_or_left_out() -> None:
    async with ACMS("s", open_storage("memory://")) as session:
        history = ACMSChatMessageHistory(session)
        picture = {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}
        with pytest.raises(ValidationError, match="image_url"):
            await history.aadd_messages([HumanMessage([picture])])
        await history.aadd_messages([KINDS[3], KINDS[4].model_copy(update={"artifact": object()})])
        assert (await history.aget_messages())[1] == KINDS[4].model_copy(update={"artifact": None})


# ── the retriever ───────────────────────────────────────────────────────────────────────────────────────────────────


def _session() -> ACMS:
    async def fill() -> ACMS:
        session = ACMS("s", open_storage("memory://"))
        for host in ("db1", "db2", "web1", "web2"):
            await session.ingest("user", f"The disk of {host} is full again.", metadata={"host": host})
            await session.ingest("user", f"We order a new chair for room {host[-1]}.")
        return session

    return asyncio.run(fill())


class TestRetriever(RetrieversIntegrationTests):
    """What LangChain asks of every retriever."""

    @property
    def retriever_constructor(self) -> type[ACMSRetriever]:
        return ACMSRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"session": _session()}

    @property
    def retriever_query_example(self) -> str:
        return "Which disk is full?"


def test_documents_come_the_most_relevant_first() -> None:
    found = ACMSRetriever(session=_session(), k=3).invoke("What about the disk of web2?")
    assert found[0].page_content == "The disk of web2 is full again."
    assert found[0].metadata["host"] == "web2"
    assert [one.metadata["score"] for one in found] == sorted(
        (one.metadata["score"] for one in found), reverse=True
    )
