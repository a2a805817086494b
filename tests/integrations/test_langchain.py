"""LangChain: an agent whose memory is a log, a history, a retriever."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    convert_to_openai_messages,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langchain_tests.integration_tests import RetrieversIntegrationTests
from langgraph.checkpoint.memory import InMemorySaver

from acms import ACMS, ACMSConfig, ConfigurationError, FitError, ValidationError, open_storage
from acms.integrations.langchain import ACMSChatMessageHistory, ACMSMiddleware, ACMSRetriever
from tests.integrations import agent as script
from tests.integrations import transcripts
from tests.integrations.langchain_agent import Driver


class TestStory(script.Story):
    driver = Driver


# ── the middleware ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_run_with_a_checkpointer_is_stored_once() -> None:
    agent = Driver("memory://", options={"checkpointer": InMemorySaver()})
    for turn in range(4):
        await agent.turn(script.said(turn), f"u{turn}")
    assert await agent.said() == script.expected_messages(0, 4)
    state = await agent.graph.aget_state({"configurable": {"thread_id": agent.name}})
    assert state.values["messages"] == await agent.kept()


async def test_a_checkpointer_that_is_behind_a_correction_does_not_take_it_back() -> None:
    agent = Driver("memory://", options={"checkpointer": InMemorySaver()})
    agent.model.given = [AIMessage("MySQL.", id="a1"), AIMessage("Because.", id="a2")]
    await agent.turn("Which database?", "u1")
    await agent.session.replace("a1", "PostgreSQL.")
    await agent.turn("Why?", "u2")
    assert [one.text for one in agent.model.seen[-1]][-3:] == ["Which database?", "PostgreSQL.", "Why?"]
    assert (await agent.kept())[1].text == "PostgreSQL."


def _texts_of_messages(messages: Sequence[BaseMessage]) -> list[str]:
    return [one.text or f"({one.type})" for one in messages]


async def test_a_turn_that_is_made_again_is_shown_without_what_came_of_it_before() -> None:
    agent = Driver("memory://", options={"checkpointer": InMemorySaver()})
    call = {"id": "c1", "name": "disk", "args": {"host": "host-1"}, "type": "tool_call"}
    agent.model.given = [
        AIMessage("A1", id="a1"),
        AIMessage("A2", id="a2"),
        AIMessage("", id="a3", tool_calls=[call]),
        AIMessage("A2 new", id="a4"),
    ]
    await agent.turn("Q1", "u1")
    await agent.turn("Q2", "u2")
    config: Any = {"configurable": {"thread_id": agent.name}}
    states = [one async for one in agent.graph.aget_state_history(config)]
    before = next(one.config for one in states if one.next == ("model",) and len(one.values["messages"]) == 3)
    config = await agent.graph.aupdate_state(before, {"messages": [HumanMessage("Q2, edited", id="u2")]})
    await agent.graph.ainvoke(None, config)
    assert _texts_of_messages(agent.model.seen[-2]) == ["Q1", "A1", "Q2, edited"]
    assert _texts_of_messages(agent.model.seen[-1]) == [
        "Q1",
        "A1",
        "Q2, edited",
        "(ai)",
        script.disk("host-1"),
    ]
    await agent.turn("Q3", "u3")
    assert _texts_of_messages(agent.model.seen[-1])[3:] == ["(ai)", script.disk("host-1"), "A2 new", "Q3"]
    assert "A2" in _texts_of_messages(await agent.kept())


async def test_a_turn_that_is_repeated_goes_on_where_it_was_and_is_answered_anew_once_it_was_over() -> None:
    agent = Driver("memory://")
    call = {"id": "c1", "name": "disk", "args": {"host": "host-1"}, "type": "tool_call"}
    said = [HumanMessage("Q1", id="u1"), AIMessage("", id="a1", tool_calls=[call])]
    said.append(ToolMessage("40 %", id="t1", tool_call_id="c1"))
    await ACMSChatMessageHistory(agent.session).aadd_messages(said)
    agent.model.given = [AIMessage("A1", id="a2"), AIMessage("A1 again", id="a3")]
    await agent.turn("Q1", "u1")
    assert _texts_of_messages(agent.model.seen[-1]) == ["Q1", "(ai)", "40 %"]
    await agent.turn("Q1", "u1")
    assert _texts_of_messages(agent.model.seen[-1]) == ["Q1"]
    await agent.session.ingest("user", "A note that no framework knows.")
    await agent.graph.ainvoke(
        {"messages": [*said[:1], HumanMessage("Q2", id="u2")]}, {"configurable": {"thread_id": "s"}}
    )
    assert _texts_of_messages(agent.model.seen[-1]) == ["Q1", "A note that no framework knows.", "Q2"]


async def test_reasoning_goes_back_within_its_turn_and_within_the_budget() -> None:
    thinking = {"type": "thinking", "thinking": "A disk.", "signature": "c2ln"}
    call = {"type": "tool_use", "id": "c1", "name": "disk", "input": {"host": "host-1"}}
    calls = [{"id": "c1", "name": "disk", "args": {"host": "host-1"}, "type": "tool_call"}]
    usage = {"input_tokens": 9, "output_tokens": 5, "total_tokens": 14}
    thought = AIMessage([thinking, call], id="a1", tool_calls=calls, usage_metadata=usage)
    long = AIMessage([{**thinking, "thinking": "A disk. " * 2000}, call], id="a2", tool_calls=calls)
    agent = Driver("memory://")
    agent.model.given = [thought, AIMessage("40 %", id="a3")]
    await agent.turn("How full is it?", "u1")
    assert agent.model.seen[-1][-2] == thought
    agent.model.given = [long, AIMessage("41 %", id="a4")]
    await agent.turn("And now?", "u2")
    shown = {message.id: message for message in agent.model.seen[-1]}
    assert shown["a1"] == thought.model_copy(update={"content": ""})
    assert shown["a2"] == long.model_copy(update={"content": ""})
    assert [one for one in await agent.kept() if one.id in ("a1", "a2")] == [thought, long]


@pytest.mark.parametrize("texts", [["One.", "Two."], ["One.\n", "", "Two."], ["data: x"], ['src="data:x"']])
async def test_reasoning_goes_back_whatever_the_texts_beside_it_are(texts: list[str]) -> None:
    call = {"id": "c1", "name": "disk", "args": {"host": "host-1"}, "type": "tool_call"}
    thinking = {"type": "thinking", "thinking": 'About "data:x".', "signature": "c2ln"}
    blocks = [thinking, *({"type": "text", "text": text} for text in texts)]
    thought = AIMessage(blocks, id="a1", tool_calls=[call])
    agent = Driver("memory://")
    agent.model.given = [thought, AIMessage("40 %", id="a2")]
    await agent.turn("How full is it?", "u1")
    assert agent.model.seen[-1][-2] == thought


@pytest.mark.parametrize("given", [AIMessage("", id="a1"), AIMessage(" \n", id="a1"), AIMessage([], id="a1")])
async def test_a_message_that_says_nothing_ends_no_run(given: AIMessage) -> None:
    agent = Driver("memory://")
    agent.model.given = [given, AIMessage("40 %", id="a2")]
    await agent.turn("", "u1")
    await agent.turn("How full is it?", "u2")
    assert (await agent.kept())[:2] == [HumanMessage("", id="u1"), given]


def test_blocking_code_may_run_an_agent_also_inside_an_event_loop() -> None:
    agent = Driver("memory://")
    config = {"configurable": {"thread_id": "t"}}

    async def inside() -> str:
        done = agent.graph.invoke({"messages": [HumanMessage(script.QUESTION)]}, config)
        return done["messages"][-1].text

    agent.graph.invoke({"messages": [HumanMessage(script.said(3))]}, config)
    assert asyncio.run(inside()) == "It is marzipan-4711."
    agent.middleware.close()


async def test_the_answer_of_a_tool_that_ends_the_run_is_stored() -> None:
    agent = Driver("memory://")

    @tool(return_direct=True)
    def last(host: str) -> str:
        """Return how full the disk of a host is, and that is that."""
        return "40 %"

    agent.graph = create_agent(agent.model, [last], middleware=[agent.middleware])
    calls = [{"id": "c1", "name": "last", "args": {"host": "h"}, "type": "tool_call"}]
    agent.model.given = [AIMessage("", tool_calls=calls)]
    await agent.turn("How full is it?", "u1")
    assert await agent.said() == [("user", "How full is it?"), ("assistant", ""), ("tool", "40 %")]


async def test_a_run_without_a_thread_and_a_budget_without_room_are_told() -> None:
    agent = Driver("memory://")
    with pytest.raises(ConfigurationError, match="name its conversation"):
        await agent.graph.ainvoke({"messages": [("user", "Hello.")]})
    agent.middleware._budget = 5
    with pytest.raises(FitError):
        await agent.turn("Hello.", "u1")


async def test_what_no_store_can_keep_ends_no_run() -> None:
    agent = Driver("memory://")
    odd = "half\0 a \ud800word"
    call = {"id": "c1", "name": "disk", "args": {"host": f"{odd}-1"}, "type": "tool_call"}
    thought = AIMessage(
        [{"type": "text", "text": odd}], id="a1", additional_kwargs={"of": odd}, tool_calls=[call]
    )
    agent.model.given = [thought, AIMessage(odd, id="a2")]
    await agent.turn(odd, "u1")
    await agent.turn("Thanks.", "u2")
    asked, called, _, answered, *_ = await agent.kept()
    assert [asked.text, answered.text] == ["half\ufffd a \ufffdword"] * 2
    assert called.content == "half\ufffd a \ufffdword"
    assert await ACMSRetriever(session=agent.session).ainvoke(odd)
    await agent.aclose()


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
    async with ACMS("s", open_storage("memory://"), config=ACMSConfig(strict=True)) as session:
        history = ACMSChatMessageHistory(session)
        picture = {"type": "image", "base64": "iVBORw0KGgo=", "mime_type": "image/png"}
        with pytest.raises(ValidationError, match="image_url"):
            await history.aadd_messages([HumanMessage([picture])])
        await history.aadd_messages([KINDS[3], KINDS[4].model_copy(update={"artifact": object()})])
        assert (await history.aget_messages())[1] == KINDS[4].model_copy(update={"artifact": None})


# ── the retriever ───────────────────────────────────────────────────────────────────────────────────────────────────


def _filled_session() -> ACMS:
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
        return {"session": _filled_session()}

    @property
    def retriever_query_example(self) -> str:
        return "Which disk is full?"


def test_documents_come_the_most_relevant_first() -> None:
    found = ACMSRetriever(session=_filled_session(), k=3).invoke("What about the disk of web2?")
    assert found[0].page_content == "The disk of web2 is full again."
    assert found[0].metadata["host"] == "web2"
    assert [one.metadata["score"] for one in found] == sorted(
        (one.metadata["score"] for one in found), reverse=True
    )


# ── transcripts ─────────────────────────────────────────────────────────────────────────────────────────────────────


def message_of_step(step: transcripts.Step) -> BaseMessage:
    if step.role == "user":
        return HumanMessage(step.text)
    if step.answers is not None:
        return ToolMessage(step.text, tool_call_id=step.answers.id, name=step.answers.name)
    calls = [
        {"id": call.id, "name": call.name, "args": call.arguments, "type": "tool_call"} for call in step.calls
    ]
    thought = {"reasoning_content": step.thought} if step.thought else {}
    return AIMessage(step.text, tool_calls=calls, additional_kwargs=thought)


@given(seed=st.integers(0, 2**32))
def test_any_conversation_is_stored_and_shown_as_a_valid_request(seed: int) -> None:
    async def run() -> None:
        random = Random(seed)
        messages = [message_of_step(step) for step in transcripts.random_conversation(random)]
        async with open_storage("memory://") as storage:
            for budget in transcripts.BUDGETS:
                model = Recorder()
                memory = ACMSMiddleware(storage, budget=budget, embedder=None)
                graph = create_agent(model, middleware=[memory])
                with suppress(FitError):
                    await graph.ainvoke({"messages": messages}, {"configurable": {"thread_id": "s"}})
                    transcripts.assert_valid_request(convert_to_openai_messages(model.seen[0]), budget)
                await memory.aclose()

    asyncio.run(run())


class Recorder(BaseChatModel):
    """A model that keeps its prompts."""

    seen: list[list[BaseMessage]] = []  # noqa: RUF012  # pydantic copies it

    @property
    def _llm_type(self) -> str:
        return "recorder"

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        self.seen.append(messages)
        return ChatResult(generations=[ChatGeneration(message=AIMessage("Well."))])
