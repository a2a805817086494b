"""Microsoft Agent Framework: an agent of 200 turns on ACMS sessions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
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

from acms import ACMS, TokenBudgetExceededError, open_storage
from acms.erasure.erase import erase_subject
from acms.integrations.agent_framework import ACMSHistoryProvider
from acms.model import ToolCall
from acms.ports import StorageBackend
from tests.integrations import agent as script
from tests.integrations.pages import run_example, run_page

USER = "user:1"
INSTRUCTIONS = "You look after disks."


def chat(messages: Sequence[Message]) -> list[dict[str, Any]]:
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
                    "function": {"name": one.name, "arguments": _arguments(one)},
                }
                for one in calls
            ]
    return found


def _arguments(call: Content) -> str:
    return call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)


class Client(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """The model of the script, and what it was shown."""

    def __init__(self, budget: int = script.BUDGET, thought: str = "") -> None:
        super().__init__()
        self.budget = budget
        self.thought = thought
        self.seen: list[list[Message]] = []
        self.calls = 0

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        async def respond() -> ChatResponse:
            self.seen.append(list(messages))
            sent = chat(messages)
            system = [{"role": "system", "content": options.get("instructions") or ""}]
            script.check([*system, *sent], self.budget)
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


class Talk:
    def __init__(
        self, storage: StorageBackend, session_id: str = "s", namespace: str = USER, **more: Any
    ) -> None:
        self.client = Client(**more)
        self.history = ACMSHistoryProvider(storage, budget=self.client.budget, namespace=namespace)
        self.agent = Agent(self.client, INSTRUCTIONS, tools=[script.disk], context_providers=[self.history])
        self.session = AgentSession(session_id=session_id)

    async def run(self, text: str) -> str:
        return (await self.agent.run(text, session=self.session)).text

    @property
    def memory(self) -> ACMS:
        return self.history.memory(self.session.session_id)

    async def said(self) -> list[tuple[str, str]]:
        return [
            (
                entry.role.value,
                "" if any(isinstance(part, ToolCall) for part in entry.parts) else entry.content,
            )
            for entry in await self.memory.entries()
            if entry.role
        ]


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[StorageBackend]:
    async with open_storage(f"sqlite:///{tmp_path}/m.db") as found:
        yield found


async def test_200_turns_stay_within_the_budget_and_are_kept_once(storage: StorageBackend) -> None:
    talk = Talk(storage)
    for turn in range(script.TURNS):
        await talk.run(script.said(turn))
    assert await talk.said() == script.expected(0, script.TURNS)
    assert await talk.run(script.QUESTION) == "It is marzipan-4711."
    kept = [one.to_dict() for one in await talk.history.get_messages("s")]
    shown = [one.to_dict() for one in talk.client.seen[-1]]
    assert len([one for one in shown if one in kept]) >= len(shown) - 3  # what was recalled is not
    await talk.history.aclose()


async def _talk(url: str, session_id: str, first: int, last: int, acknowledged: bool = False) -> list[Any]:
    async with open_storage(url) as storage:
        talk = Talk(storage, session_id)
        for turn in range(first, last):
            await talk.run(script.said(turn))
            if acknowledged:
                script.acknowledge(turn)
        found = await talk.said()
        await talk.history.aclose()
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


async def test_another_session_of_the_user_knows_and_erasing_leaves_nothing(
    storage: StorageBackend, tmp_path: Path
) -> None:
    await Talk(storage, "one").run(script.said(3))
    assert await Talk(storage, "two").run(script.QUESTION) == "It is marzipan-4711."
    other = Talk(storage, "two")
    other.session.state["acms"] = {"namespace": "user:2"}
    assert await other.run(script.QUESTION) == "I do not know."
    await erase_subject(storage, namespace=USER, verify=True)
    assert script.left_in(tmp_path, ["marzipan"]) == []


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


class Weather(ContextProvider):
    async def before_run(self, *, context: Any, **given: Any) -> None:
        context.extend_messages(self, [Message("user", ["It rains today. " * 10])])


async def test_reasoning_and_other_providers_count(storage: StorageBackend) -> None:
    talk = Talk(storage, budget=500, thought="Let me think about it. " * 8)
    talk.agent.context_providers.append(Weather("weather"))
    for turn in range(9):
        await talk.run(script.said(turn))
    assert talk.client.seen[-1][0].text.startswith("It rains")
    assert all("It rains" not in text for _, text in await talk.said())
    with pytest.raises(TokenBudgetExceededError):
        await Talk(storage, budget=20).run("Hello?")


async def test_the_page_and_the_example_run_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        await run_page("agent-framework.md", tmp_path, monkeypatch)
    assert (
        run_example("agent_framework_agent.py", tmp_path).strip().endswith("124 messages kept; It is 4711.")
    )


def measure() -> list[float]:
    """Return how long a run takes in a long conversation, for each of its requests to the model, warm."""

    async def run(folder: str) -> list[float]:
        times: list[float] = []
        async with open_storage(f"sqlite:///{folder}/m.db") as storage:
            talk = Talk(storage)
            for turn in range(script.TURNS):
                before, began = len(talk.client.seen), perf_counter()
                await talk.run(script.said(turn))
                times.append((perf_counter() - began) / (len(talk.client.seen) - before))
            await talk.history.aclose()
        return times[20:]

    with TemporaryDirectory() as folder:
        return asyncio.run(run(folder))


if __name__ == "__main__":
    script.report("agent-framework", measure)
