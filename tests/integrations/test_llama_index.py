"""LlamaIndex: an agent of 200 turns on a session's log, its memory block and its retriever."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from inspect import isawaitable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import Memory
from pydantic import PrivateAttr
from sqlalchemy.ext.asyncio import create_async_engine

from acms import ACMS, ACMSConfig, FitError, Kind, TokenBudgetExceededError, ValidationError, open_storage
from acms.integrations.llama_index import ACMSFunctionAgent, ACMSMemory, ACMSMemoryBlock, ACMSRetriever
from tests.integrations import agent as script
from tests.integrations import transcripts
from tests.integrations.pages import run_example, run_page

pytestmark = pytest.mark.filterwarnings(
    "ignore::pydantic.warnings.PydanticDeprecationWarning",  # LlamaIndex reads `__fields__` and the like
    "ignore:There is no current event loop:DeprecationWarning",
)


def messages_as_chat(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Write messages as a provider of chat completions would be sent them."""
    found: list[dict[str, Any]] = []
    for message in messages:
        written: dict[str, Any] = {"role": message.role.value, "content": message.content}
        calls = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
        if calls:
            written["tool_calls"] = [
                {
                    "id": call.tool_call_id,
                    "type": "function",
                    "function": {"name": call.tool_name, "arguments": _arguments_of_call(call)},
                }
                for call in calls
            ]
        if message.role.value == "tool":
            written["tool_call_id"] = message.additional_kwargs["tool_call_id"]
        found.append(written)
    return found


def _arguments_of_call(call: ToolCallBlock) -> str:
    return call.tool_kwargs if isinstance(call.tool_kwargs, str) else json.dumps(call.tool_kwargs)


class Model:
    """The model of the script, and its prompts."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen
        self.calls = 0

    def __call__(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatMessage:
        self.seen.append(list(messages))
        said = script.answer(messages_as_chat(messages))
        self.calls += 1
        blocks: list[Any] = [TextBlock(text=said["content"])] if said["content"] else []
        for call in said.get("tool_calls", ()):
            blocks.append(
                ToolCallBlock(
                    tool_call_id=f"{call['id']}_{self.calls}",
                    tool_name=call["function"]["name"],
                    tool_kwargs=json.loads(call["function"]["arguments"]),
                )
            )
        return ChatMessage(role="assistant", blocks=blocks)


class CheckedMemory(ACMSMemory):
    """Checks every list before the agent adds the messages it has not handed over yet."""

    _interrupted: bool = PrivateAttr(default=False)
    _made: list[Any] = PrivateAttr(default_factory=list)

    async def aput_messages(self, messages: list[ChatMessage]) -> None:
        self._made += deepcopy(messages)
        await super().aput_messages(messages)

    async def aget(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:
        found = await super().aget(input, **kwargs)
        script.assert_valid_request(messages_as_chat(found), self.budget, interrupted=self._interrupted)
        return found


class Driver(script.Driver):
    agent_class: type[FunctionAgent] = ACMSFunctionAgent

    def __init__(self, *where: Any, **how: Any) -> None:
        super().__init__(*where, **how)
        self.storage = open_storage(self.url)
        session = ACMS(self.name, self.storage, None, namespace=self.namespace)
        self.cache = CheckedMemory(session=session, budget=script.BUDGET)
        self.cache._interrupted, self.cache._made = self.interrupted, self.made
        self.model = Model(self.seen)
        llm = MockFunctionCallingLLM(response_generator=self.model, is_chat_model=True)
        self.agent = self.agent_class(llm=llm, tools=[script.disk], streaming=False)

    @property
    def memory(self) -> ACMS:
        return self.cache.session

    async def turn(self, text: str, id: str | None = None) -> str:
        result = await self.agent.run(text, memory=self.cache)
        return result.response.content or ""

    async def kept(self) -> list[Any]:
        return await self.cache.aget_all()

    async def aclose(self) -> None:
        await self.memory.close()
        await self.storage.aclose()


class TestStory(script.Story):
    driver = Driver

    async def test_another_session_of_the_user_is_retrieved(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/m.db"
        async with Driver(url, "one") as agent:
            await agent.turn(script.said(3))
        async with Driver(url, "two") as agent:
            (found, *_) = await ACMSRetriever(agent.memory).aretrieve(script.QUESTION)
        assert script.SECRET in found.text
        assert found.metadata["session"] == "one"


async def test_an_agent_of_llama_index_stores_a_turn_at_its_end(tmp_path: Path) -> None:
    class Theirs(Driver):
        agent_class = FunctionAgent

    async with Theirs(f"sqlite:///{tmp_path}/m.db") as agent:
        for turn in range(12):
            await agent.turn(script.said(turn))
        assert await agent.said() == script.expected_messages(0, 12)


async def test_calls_are_stored_before_their_tools_run(tmp_path: Path) -> None:
    async with Driver(f"sqlite:///{tmp_path}/m.db") as agent:
        stored: list[int] = []

        async def disk(host: str) -> str:
            """Return how full the disk of a host is."""
            stored.append(len(await agent.memory.entries()))
            return script.disk(host)

        llm = MockFunctionCallingLLM(response_generator=agent.model, is_chat_model=True)
        agent.agent = ACMSFunctionAgent(llm=llm, tools=[disk], streaming=False)
        await agent.turn(script.said(1))
        assert stored == [2]


MESSAGES = [
    ChatMessage(role="system", content="Be brief."),
    ChatMessage(
        role="user", blocks=[TextBlock(text="What is this?"), ImageBlock(url="https://example.org/a.png")]
    ),
    ChatMessage(
        role="assistant", blocks=[ThinkingBlock(content="A disk, I think."), TextBlock(text="A disk.")]
    ),
    ChatMessage(role="user", content="Which one?"),
    ChatMessage(
        role="assistant",
        content="",
        additional_kwargs={
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "disk", "arguments": "{}"}}]
        },
    ),
    ChatMessage(role="tool", content="db1", additional_kwargs={"tool_call_id": "c1", "name": "disk"}),
    ChatMessage(role="assistant", content="It is db1."),
]


def test_messages_come_back_as_they_were_put_also_without_a_loop() -> None:
    memory = ACMSMemory.from_defaults(session=ACMS("s", "memory://", None), budget=4000)
    memory.put_messages(MESSAGES)
    assert memory.get_all() == MESSAGES
    assert memory.get() == MESSAGES
    memory.put(ChatMessage(role="user", content="Thanks."))
    memory.set(MESSAGES[:3])
    assert memory.get_all() == MESSAGES[:3]
    memory.set(MESSAGES[:2])
    assert memory.get("What?") == MESSAGES[:2]
    memory.reset()
    assert memory.get() == memory.get_all() == []
    memory.put(MESSAGES[1])
    assert memory.get_all() == [MESSAGES[1]]


async def test_a_list_is_put_whole_or_not_at_all() -> None:
    async with ACMS("s", "memory://", None, config=ACMSConfig(strict=True)) as session:
        memory = ACMSMemory(session=session, budget=4000)
        unkept = ChatMessage(role="user", content="too long" * 200_000)
        for put in (memory.put_messages, memory.aput_messages, memory.set, memory.aset):
            with pytest.raises(ValidationError):
                await resolve_value(put([MESSAGES[1], unkept]))
            assert await memory.aget_all() == []


async def test_what_no_store_can_keep_ends_no_run() -> None:
    odd = "half\0 a \ud800word"
    call = {"id": "c1", "type": "function", "function": {"name": "disk", "arguments": odd}}
    blocks = [ThinkingBlock(content=odd), TextBlock(text=odd)]
    async with ACMS("s", "memory://", None) as session:
        memory = ACMSMemory(session=session, budget=4000)
        await memory.aput_messages(
            [
                ChatMessage(role="user", content="\0"),
                ChatMessage(role="assistant", blocks=blocks, additional_kwargs={"tool_calls": [call]}),
                ChatMessage(role="tool", content=odd, additional_kwargs={"tool_call_id": "c1"}),
                ChatMessage(role="user", content=odd),
            ]
        )
        shown = await memory.aget(odd)
        assert [one.role.value for one in shown] == ["user", "assistant", "tool", "user"]
        assert [one.content for one in await memory.aget_all()][3] == "half\0 a \ufffdword"
        assert shown[3].content == "half\ufffd a \ufffdword"
        assert [entry.content for entry in await session.entries()][2:] == ["half\ufffd a \ufffdword"] * 2
        assert await ACMSRetriever(session).aretrieve(odd)


async def resolve_value(given: Any) -> Any:
    return await given if isawaitable(given) else given


async def test_setting_and_resetting_need_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **more: Any) -> Any:
        raise AssertionError("a thread is used")

    async with ACMS("s", "memory://", None) as session:
        memory = ACMSMemory(session=session, budget=4000)
        with monkeypatch.context() as patch:
            patch.setattr("asyncio.to_thread", refuse)
            await memory.aput_messages(MESSAGES)
            twice = [MESSAGES[3], MESSAGES[1], MESSAGES[3]]
            for some in (MESSAGES[3:], MESSAGES[:3], twice, MESSAGES[6:], [], MESSAGES, MESSAGES[::-1][:2]):
                for _ in range(2):
                    await memory.aset(some)
                    assert await memory.aget_all() == some
            changed = ToolCallBlock(tool_call_id="c2", tool_name="disk", tool_kwargs={"host": "db2"})
            called = MESSAGES[4].model_copy(update={"blocks": [changed], "additional_kwargs": {}})
            for last in (MESSAGES[4], called):
                await memory.aset([MESSAGES[1], last])
                assert await memory.aget_all() == [MESSAGES[1], last]
            await memory.areset()
            assert await memory.aget_all() == []


async def test_setting_brings_nothing_back_that_was_edited_or_summarised() -> None:
    async with ACMS("s", "memory://", None) as session:
        memory = ACMSMemory(session=session, budget=4000)
        said = [ChatMessage(role="user", content=f"Message {number}. " * 20) for number in range(20)]
        await memory.aput_messages(said)
        (edited, *_, last) = await session.entries()
        for text in ("Edited.", "Edited again."):
            await session.replace(edited.id, text)
            await session.replace(last.id, text)
        await memory.aset(said[17:19])
        assert await memory.aget_all() == said[17:19]
        await memory.aput_messages(said)
        for recent in (12, 4):
            await session.wait(await session.compact(preserve_recent_count=recent))
        assert (await session.entries())[0].kind is Kind.SUMMARY
        for some in ([said[19]], said[:1]):
            await memory.aset(some)
            assert await memory.aget_all() == some


async def test_what_was_edited_keeps_its_frame() -> None:
    async with ACMS("s", "memory://", None) as session:
        memory = ACMSMemory(session=session, budget=4000)
        await memory.aput_messages(MESSAGES[3:6])
        _, call, answer = await session.entries()
        await session.replace(call.id, "I look.")
        await session.replace(answer.id, "db2")
        for _, call, answer in (await memory.aget_all(), await memory.aget("And?")):
            text, called = call.blocks
            assert text == TextBlock(text="I look.")
            assert (called.tool_call_id, called.tool_name, called.tool_kwargs) == ("c1", "disk", "{}")
            assert (answer.content, answer.additional_kwargs["tool_call_id"]) == ("db2", "c1")


async def test_a_memory_is_never_over_its_budget() -> None:
    async with ACMS("s", "memory://", None) as session:
        memory = ACMSMemory(session=session, budget=200)
        await memory.aput(ChatMessage(role="system", content="Be brief."))
        for number in range(40):
            await memory.aput(ChatMessage(role="user", content=f"Question {number} " * 5))
            thought = ThinkingBlock(content="Let me think. " * 10)
            await memory.aput(
                ChatMessage(role="assistant", blocks=[thought, TextBlock(text=f"Answer {number}.")])
            )
            found = await memory.aget()
            assert found[0].content == "Be brief."
            thoughts = [
                block.content for one in found for block in one.blocks if isinstance(block, ThinkingBlock)
            ]
            cost = script.assert_valid_request(messages_as_chat(found), 200) + sum(
                session.counter.count(text or "") for text in thoughts
            )
            assert cost <= 200
        memory.budget = 10
        with pytest.raises(TokenBudgetExceededError):
            await memory.aget()


async def test_a_block_recalls_what_the_queue_let_go() -> None:
    async with ACMS("s", "memory://", None) as session:
        block = ACMSMemoryBlock(session=session, budget=300)
        engine = create_async_engine("sqlite+aiosqlite:///:memory:")
        memory = Memory.from_defaults(
            async_engine=engine,
            session_id="s",
            token_limit=600,
            token_flush_size=100,
            chat_history_token_ratio=0.5,
            memory_blocks=[block],
        )
        for turn in range(60):
            for role, text in script.expected_messages(turn, turn + 1):
                if role != "tool" and text:
                    await memory.aput(ChatMessage(role=role, content=text))
        await memory.aput(ChatMessage(role="user", content=script.QUESTION))
        assert any(script.SECRET in (one.content or "") for one in await memory.aget())
        text = await block.aget([ChatMessage(role="user", content=script.QUESTION)])
        assert session.counter.count(text) <= 300
        shorter = await block.atruncate(text, 100)
        assert shorter is not None
        assert session.counter.count(shorter) <= 200
        assert await block.atruncate(text, 1000) is None
        await engine.dispose()


async def test_the_page_and_the_example_run_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        await run_page("llama-index.md", tmp_path, monkeypatch)
    assert run_example("llama_index_agent.py", tmp_path).strip().endswith("124 messages kept; It is 4711.")


def message_of_step(step: transcripts.Step) -> ChatMessage:
    if step.answers is not None:
        return ChatMessage(
            role="tool", content=step.text, additional_kwargs={"tool_call_id": step.answers.id}
        )
    blocks: list[Any] = [ThinkingBlock(content=step.thought)] if step.thought else []
    blocks += [TextBlock(text=step.text)] if step.text else []
    for call in step.calls:
        blocks.append(ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=call.arguments))
    return ChatMessage(role=step.role, blocks=blocks)


@given(seed=st.integers(0, 2**32))
def test_any_conversation_is_stored_and_shown_as_a_valid_request(seed: int) -> None:
    async def run() -> None:
        messages = [message_of_step(step) for step in transcripts.random_conversation(Random(seed))]
        async with ACMS("s", "memory://", None) as session:
            for budget in transcripts.BUDGETS:
                memory = ACMSMemory(session=session, budget=budget)
                await memory.aset(messages)
                assert len(await memory.aget_all()) == len(messages)
                with suppress(FitError, TokenBudgetExceededError):
                    transcripts.assert_valid_request(messages_as_chat(await memory.aget()), budget)

    asyncio.run(run())
