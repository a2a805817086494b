"""LlamaIndex: an agent of 200 turns on a session's log, its memory block and its retriever."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.memory import Memory
from sqlalchemy.ext.asyncio import create_async_engine

from acms import ACMS, TokenBudgetExceededError, open_storage
from acms.erasure.erase import erase_subject
from acms.integrations.llama_index import ACMSMemory, ACMSMemoryBlock, ACMSRetriever
from acms.model import ToolCall
from tests.integrations import agent as script
from tests.integrations.pages import run_example, run_page

pytestmark = pytest.mark.filterwarnings(
    "ignore::pydantic.warnings.PydanticDeprecationWarning",  # LlamaIndex reads `__fields__` and the like
    "ignore:There is no current event loop:DeprecationWarning",
)

USER = "user:1"


def chat(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
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
                    "function": {"name": call.tool_name, "arguments": _arguments(call)},
                }
                for call in calls
            ]
        if message.role.value == "tool":
            written["tool_call_id"] = message.additional_kwargs["tool_call_id"]
        found.append(written)
    return found


def _arguments(call: ToolCallBlock) -> str:
    return call.tool_kwargs if isinstance(call.tool_kwargs, str) else json.dumps(call.tool_kwargs)


class Model:
    """The model of the script, and what it was shown."""

    def __init__(self) -> None:
        self.seen: list[list[ChatMessage]] = []
        self.calls = 0

    def __call__(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatMessage:
        self.seen.append(list(messages))
        said = script.answer(chat(messages))
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
    """Holds every list to what it must be before the agent adds what it has not handed over yet."""

    async def aget(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:
        found = await super().aget(input, **kwargs)
        script.check(chat(found), self.budget)
        return found


class Agent:
    def __init__(self, session: ACMS, budget: int = script.BUDGET) -> None:
        self.model = Model()
        self.memory = CheckedMemory(session=session, budget=budget)
        llm = MockFunctionCallingLLM(response_generator=self.model, is_chat_model=True)
        self.agent = FunctionAgent(llm=llm, tools=[script.disk], streaming=False)

    async def run(self, text: str) -> str:
        result = await self.agent.run(text, memory=self.memory)
        return result.response.content or ""


async def said_in(session: ACMS) -> list[tuple[str, str]]:
    return [
        (entry.role.value, "" if any(isinstance(part, ToolCall) for part in entry.parts) else entry.content)
        for entry in await session.entries()
        if entry.role
    ]


async def test_200_turns_stay_within_the_budget_and_are_kept_once(tmp_path: Path) -> None:
    async with ACMS("s", open_storage(f"sqlite:///{tmp_path}/m.db"), None, namespace=USER) as session:
        made = Agent(session)
        for turn in range(script.TURNS):
            await made.run(script.said(turn))
        assert await said_in(session) == script.expected(0, script.TURNS)
        assert await made.run(script.QUESTION) == "It is marzipan-4711."
        everything = await made.memory.aget_all()
        assert [one.content or "" for one in everything[:8]] == [text for _, text in script.expected(0, 3)][
            :8
        ]
    shown = made.model.seen[-1]
    kept = [one.model_dump() for one in everything]
    assert (
        len([one for one in shown if one.model_dump() in kept]) >= len(shown) - 3
    )  # what was recalled is not


async def _talk(url: str, session_id: str, first: int, last: int, acknowledged: bool = False) -> list[Any]:
    storage = open_storage(url)
    async with ACMS(session_id, storage, None, namespace=USER) as session:
        made = Agent(session)
        for turn in range(first, last):
            await made.run(script.said(turn))
            if acknowledged:
                script.acknowledge(turn)
        found = await said_in(session)
    await storage.aclose()
    return found


def main(url: str, first: int, last: int) -> None:
    asyncio.run(_talk(url, "s", first, last, acknowledged=True))


async def test_a_killed_agent_goes_on_where_it_was(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    done = await asyncio.to_thread(script.killed, __name__, url, 0, script.TURNS, after=40)
    assert done >= 40
    found = await _talk(url, "s", done + 1, done + 21)
    assert found[: len(script.expected(0, done + 1))] == script.expected(0, done + 1)
    assert found[-len(script.expected(done + 2, done + 21)) :] == script.expected(done + 2, done + 21)


async def test_a_fork_goes_on_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    await _talk(url, "s", 0, 12)
    async with ACMS("s", open_storage(url), None, namespace=USER) as session:
        await session.fork(session_id="what-if")
    assert await _talk(url, "what-if", 20, 25) == [*script.expected(0, 12), *script.expected(20, 25)]
    assert await _talk(url, "s", 12, 14) == script.expected(0, 14)


async def test_another_session_of_the_user_knows_and_erasing_leaves_nothing(tmp_path: Path) -> None:
    storage = open_storage(f"sqlite:///{tmp_path}/m.db")
    async with storage:
        answers: list[str] = []
        for session_id, text in (("one", script.said(3)), ("two", script.QUESTION)):
            async with ACMS(session_id, storage, None, namespace=USER) as session:
                answers.append(await Agent(session).run(text))
                found = await ACMSRetriever(session).aretrieve(script.QUESTION)
        assert answers[1] == "It is marzipan-4711."
        assert script.SECRET in found[0].text
        assert found[0].metadata["session"] == "one"
        async with ACMS("two", storage, None, namespace="user:2") as session:
            assert await Agent(session).run(script.QUESTION) == "I do not know."
        await erase_subject(storage, namespace=USER, verify=True)
        assert script.left_in(tmp_path, ["marzipan"]) == []


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
            cost = script.check(chat(found), 200) + sum(
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
            for role, text in script.expected(turn, turn + 1):
                if role != "tool" and text:
                    await memory.aput(ChatMessage(role=role, content=text))
        await memory.aput(ChatMessage(role="user", content=script.QUESTION))
        assert any(script.SECRET in (one.content or "") for one in await memory.aget())
        text = await block.aget([ChatMessage(role="user", content=script.QUESTION)])
        assert session.counter.count(text) <= 300
        shorter = await block.atruncate(text, 200)
        assert shorter is not None
        assert session.counter.count(shorter) <= 100
        assert await block.atruncate(text, 1000) is None
        await engine.dispose()


async def test_the_page_and_the_example_run_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        await run_page("llama-index.md", tmp_path, monkeypatch)
    assert run_example("llama_index_agent.py", tmp_path).strip().endswith("124 messages kept; It is 4711.")


def measure() -> list[float]:
    """Return how long `aget` takes in a long conversation, warm."""

    async def run(folder: str) -> list[float]:
        times: list[float] = []
        storage = open_storage(f"sqlite:///{folder}/m.db")
        async with ACMS("s", storage, None, namespace=USER) as session:
            memory = ACMSMemory(session=session, budget=script.BUDGET)
            for turn in range(script.TURNS):
                for role, text in script.expected(turn, turn + 1):
                    if role != "tool" and text:
                        await memory.aput(ChatMessage(role=role, content=text))
                    if role == "user":
                        began = perf_counter()
                        await memory.aget(text)
                        times.append(perf_counter() - began)
        await storage.aclose()
        return times[20:]

    with TemporaryDirectory() as folder:
        return asyncio.run(run(folder))


if __name__ == "__main__":
    script.report("llama-index", measure)
