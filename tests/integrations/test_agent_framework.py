"""Microsoft Agent Framework: an agent of 200 turns on ACMS sessions."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    ContextProvider,
    FunctionInvocationLayer,
    Message,
)
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from acms import ACMS, FitError, TokenBudgetExceededError, open_storage
from acms.integrations import agent_framework
from acms.integrations.agent_framework import ACMSHistoryProvider
from acms.ports import StorageBackend
from tests.integrations import agent as script
from tests.integrations import transcripts
from tests.integrations.pages import run_example, run_page


def messages_as_chat(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Write messages as a provider of chat completions would be sent them."""
    found: list[dict[str, Any]] = []
    for message in messages:
        results = [one for one in message.contents if one.type == "function_result"]
        if results:
            found += [{"role": "tool", "tool_call_id": one.call_id, "content": one.result} for one in results]
            continue
        calls = [one for one in message.contents if one.type == "function_call"]
        texts = [one.text for one in message.contents if one.type in ("text", "text_reasoning")]
        found.append({"role": message.role, "content": "\n".join(texts) or None})
        if calls:
            found[-1]["tool_calls"] = [
                {
                    "id": one.call_id,
                    "type": "function",
                    "function": {"name": one.name, "arguments": _arguments_of_call(one)},
                }
                for one in calls
            ]
    return found


def _without_author(message: Message) -> dict[str, Any]:
    """Return a message without its author, which is noted when the run is over."""
    return message.to_dict(exclude={"author_name"})


def _arguments_of_call(call: Content) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


class Client(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """The model of the script, and its prompts."""

    def __init__(self, driver: script.Driver, budget: int, thought: str) -> None:
        super().__init__()
        self.driver = driver
        self.budget = budget
        self.thought = thought
        self.calls = 0

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        async def respond() -> ChatResponse:
            self.driver.seen.append([_without_author(one) for one in messages])
            sent = messages_as_chat(messages)
            system = [{"role": "system", "content": options.get("instructions") or ""}]
            script.assert_valid_request([*system, *sent], self.budget, interrupted=self.driver.interrupted)
            said = script.answer(sent)
            self.calls += 1
            contents: list[Any] = [Content.from_text_reasoning(text=self.thought)] if self.thought else []
            if said["content"]:
                contents.append(said["content"])
            for call in said.get("tool_calls", ()):
                name, arguments = call["function"]["name"], call["function"]["arguments"]
                contents.append(
                    Content.from_function_call(f"{call['id']}_{self.calls}", name, arguments=arguments)
                )
            return ChatResponse(messages=[Message("assistant", contents)])

        return respond()


class Driver(script.Driver):
    def __init__(self, *where: Any, budget: int = script.BUDGET, thought: str = "", **how: Any) -> None:
        super().__init__(*where, **how)
        self.storage = open_storage(self.url)
        self.client = Client(self, budget, thought)
        self.history = ACMSHistoryProvider(self.storage, budget=budget, namespace="default")
        providers = [self.history]
        self.agent = Agent(self.client, script.INSTRUCTIONS, tools=[script.disk], context_providers=providers)
        self.session = AgentSession(session_id=self.name)
        self.session.state["acms"] = {"namespace": self.namespace}

    async def turn(self, text: str, id: str | None = None) -> str:
        asked = Message("user", [text], message_id=id)
        answered = await self.agent.run(asked, session=self.session)
        self.made += map(_without_author, (asked, *answered.messages))
        return answered.text

    @property
    def memory(self) -> ACMS:
        return self.history.memory(self.name, self.session.state["acms"])

    async def kept(self) -> list[Any]:
        found = await self.history.get_messages(self.name, state=self.session.state["acms"])
        return [_without_author(one) for one in found]

    async def aclose(self) -> None:
        await self.history.aclose()
        await self.storage.aclose()


class TestStory(script.Story):
    driver = Driver


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[StorageBackend]:
    async with open_storage(f"sqlite:///{tmp_path}/m.db") as found:
        yield found


async def test_messages_come_back_as_they_were_saved(storage: StorageBackend) -> None:
    history = ACMSHistoryProvider(storage, budget=1000)
    messages = [
        Message(
            "user", ["What is this?", Content.from_uri("https://example.org/a.png", media_type="image/png")]
        ),
        Message(
            "assistant", [Content.from_text_reasoning(text="A disk, I think."), "A disk."], message_id="m1"
        ),
        Message("user", ["Yes."], author_name="Ana"),
        Message("assistant", [Content.from_function_call("c1", "disk", arguments={"host": "db1"})]),
        Message("tool", [Content.from_function_result("c1", result="40 %")]),
        Message("user", ["Yes."]),
    ]
    await history.save_messages("s", messages[:2])
    await history.save_messages("s", messages[2:])
    assert [one.to_dict() for one in await history.get_messages("s")] == [one.to_dict() for one in messages]
    entries = await history.memory("s").entries()
    await history.memory("s").replace(entries[2].id, "No.")
    assert (await history.get_messages("s"))[2].text == "No."
    assert await history.get_messages("other") == []
    await history.aclose()


@pytest.mark.parametrize("arguments", ['{"host": "db1"}', '{"host": ', ""])
async def test_what_was_edited_keeps_its_frame_whatever_the_arguments(tmp_path: Path, arguments: str) -> None:
    async with Driver(f"sqlite:///{tmp_path}/m.db") as agent:
        call = Content.from_function_call("c1", "disk", arguments=arguments)
        messages = [
            Message("user", ["Check."]),
            Message("assistant", [call]),
            Message("tool", [Content.from_function_result("c1", result="40 %")]),
        ]
        state = agent.session.state["acms"]
        await agent.history.save_messages(agent.name, messages, state=state)
        _, said, answer = await agent.memory.entries()
        await agent.memory.replace(said.id, "I look.")
        await agent.memory.replace(answer.id, "50 %")
        await agent.turn("And now?")
        for shown in (agent.seen[-1], await agent.kept()):
            assert [one["contents"][0]["type"] for one in shown[:3]] == ["text", "text", "function_result"]
            assert shown[1]["contents"][0]["text"] == "I look."
            made = shown[1]["contents"][1]
            assert (made["call_id"], made["name"], made["arguments"]) == ("c1", "disk", arguments or "{}")
            assert [shown[2]["contents"][0][name] for name in ("call_id", "result")] == ["c1", "50 %"]


async def test_arguments_of_any_kind_are_kept(storage: StorageBackend) -> None:
    history = ACMSHistoryProvider(storage, budget=1000)
    given = {"at": datetime(2026, 11, 1, tzinfo=UTC), "serial": b"\xff", "of": Disk(name="db1")}
    call = Content.from_function_call("c1", "disk", arguments=given)
    await history.save_messages("s", [Message("assistant", [call])])
    (kept,) = await history.memory("s").entries()
    assert kept.content == 'disk({"at": "2026-11-01T00:00:00Z", "serial": "_w==", "of": {"name": "db1"}})'
    await history.aclose()


async def test_what_no_store_can_keep_ends_no_run(tmp_path: Path) -> None:
    async with Driver(f"sqlite:///{tmp_path}/m.db") as agent:
        odd = "half\0 a \ud800word"
        thought = Message("assistant", [Content.from_text_reasoning(text=odd), odd])
        state = agent.session.state["acms"]
        await agent.history.save_messages(agent.name, [Message("user", ["\0"]), thought], state=state)
        await agent.turn("half\0 a word")
        said = [entry.content for entry in await agent.memory.entries()]
        assert said[:3] == ["\ufffd", "half\ufffd a \ufffdword", "half\ufffd a word"]
        assert len(await agent.kept()) == len(said)


class Disk(BaseModel):
    name: str


class Weather(ContextProvider):
    async def before_run(self, *, context: Any, **given: Any) -> None:
        context.extend_messages(self, [Message("user", ["It rains today. " * 10])])


async def test_reasoning_and_other_providers_count(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    async with Driver(url, budget=500, thought="Let me think about it. " * 8) as agent:
        agent.agent.context_providers.append(Weather("weather"))
        for turn in range(9):
            await agent.turn(script.said(turn))
        assert agent.seen[-1][0]["contents"][0]["text"].startswith("It rains")
        assert all("It rains" not in text for _, text in await agent.said())
    async with Driver(url, "t", budget=20) as agent:
        with pytest.raises(TokenBudgetExceededError):
            await agent.turn("Hello?")


async def test_a_message_is_written_once_for_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Counter[str]()

    def write(message: Message, *given: Any) -> dict[str, Any]:
        written[message.text or message.to_json()] += 1
        return once(message, *given)

    async with Driver(f"sqlite:///{tmp_path}/m.db", budget=500, thought="Let me think. " * 8) as agent:
        for turn in range(7):
            await agent.turn(script.said(turn))
        once = agent_framework._DIALECT.write
        monkeypatch.setattr(agent_framework._DIALECT, "write", write)
        asked = len(agent.seen)
        await agent.turn(script.said(7))
        assert max(written.values()) <= len(agent.seen) - asked + 1  # and once for storing it


async def test_the_page_and_the_example_run_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        await run_page("agent-framework.md", tmp_path, monkeypatch)
    assert (
        run_example("agent_framework_agent.py", tmp_path).strip().endswith("124 messages kept; It is 4711.")
    )


def message_of_step(step: transcripts.Step) -> Message:
    if step.answers is not None:
        return Message("tool", [Content.from_function_result(step.answers.id, result=step.text)])
    contents: list[Any] = [Content.from_text_reasoning(text=step.thought)] if step.thought else []
    contents += [step.text] if step.text else []
    for call in step.calls:
        contents.append(Content.from_function_call(call.id, call.name, arguments=json.dumps(call.arguments)))
    return Message(step.role, contents)


class Recorder(ChatMiddlewareLayer, BaseChatClient):
    """A client that keeps what its model is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Sequence[Message]] = []

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Any, **kwargs: Any
    ) -> Any:
        async def respond() -> ChatResponse:
            self.seen.append(messages)
            return ChatResponse(messages=[Message("assistant", ["Well."])])

        return respond()


@given(seed=st.integers(0, 2**32))
def test_any_conversation_is_stored_and_shown_as_a_valid_request(seed: int) -> None:
    async def run() -> None:
        *before, last = [message_of_step(step) for step in transcripts.random_conversation(Random(seed))]
        async with open_storage("memory://") as storage:
            for budget in transcripts.BUDGETS:
                history = ACMSHistoryProvider(storage, budget=budget)
                await history.save_messages(f"s{budget}", before)
                assert len(await history.get_messages(f"s{budget}")) == len(before)
                client = Recorder()
                agent = Agent(client, "Be brief.", context_providers=[history])
                with suppress(FitError, TokenBudgetExceededError):
                    await agent.run(last, session=AgentSession(session_id=f"s{budget}"))
                    transcripts.assert_valid_request(messages_as_chat(client.seen[0]), budget, "Be brief.")
                await history.aclose()

    asyncio.run(run())
