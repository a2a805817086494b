"""Pydantic AI: an agent of 200 turns whose model sees a session's log within a budget."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import pytest
from pydantic_ai import (
    Agent,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.messages import ImageUrl, ModelMessage, SystemPromptPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from acms import ACMS, ACMSConfig, PrivacyConfig, TokenBudgetExceededError, open_storage
from acms.erasure.erase import erase_subject
from acms.integrations.pydantic_ai import ACMSHistory
from tests.integrations import agent as script
from tests.integrations.pages import run_example, run_page

USER = "user:1"
INSTRUCTIONS = "You look after disks."


def chat(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    """Write messages as a provider of chat completions would be sent them."""
    found: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, ModelResponse):
            calls = [
                {
                    "id": part.tool_call_id,
                    "type": "function",
                    "function": {"name": part.tool_name, "arguments": part.args_as_json_str()},
                }
                for part in message.parts
                if isinstance(part, ToolCallPart)
            ]
            texts = [part.content for part in message.parts if isinstance(part, TextPart | ThinkingPart)]
            found.append({"role": "assistant", "content": "\n".join(texts) or None})
            if calls:
                found[-1]["tool_calls"] = calls
            continue
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                answer = {"tool_call_id": part.tool_call_id, "content": part.model_response_str()}
                found.append({"role": "tool", **answer})
            else:
                role = "system" if isinstance(part, SystemPromptPart) else "user"
                content = (
                    part.content if isinstance(part.content, str) else [_item(one) for one in part.content]
                )
                found.append({"role": role, "content": content})
    return found


def _item(content: Any) -> dict[str, Any]:
    if isinstance(content, str):
        return {"type": "text", "text": content}
    return {"type": "image_url", "image_url": {"url": content.url}}


class Model:
    """The model of the script, and what it was shown."""

    def __init__(self, budget: int = script.BUDGET, thinking: str = "") -> None:
        self.budget = budget
        self.thinking = thinking
        self.seen: list[list[ModelMessage]] = []
        self.calls = 0

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.seen.append(messages)
        sent = chat(messages)
        instructions = [{"role": "system", "content": info.instructions}] if info.instructions else []
        script.check([*instructions, *sent], self.budget)
        said = script.answer(sent)
        self.calls += 1
        parts: list[Any] = [ThinkingPart(self.thinking)] if self.thinking else []
        if said["content"]:
            parts.append(TextPart(said["content"]))
        for call in said.get("tool_calls", ()):
            function = call["function"]
            parts.append(ToolCallPart(function["name"], function["arguments"], f"{call['id']}_{self.calls}"))
        return ModelResponse(parts)


def agent(session: ACMS, model: Model, **more: Any) -> Agent[None, str]:
    made = Agent(
        FunctionModel(model),
        instructions=INSTRUCTIONS,
        capabilities=[ACMSHistory(session, budget=model.budget)],
        **more,
    )
    made.tool_plain(script.disk)
    return made


async def said_in(session: ACMS) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for entry in await session.entries():
        assert entry.role is not None
        text = entry.content if entry.role.value != "assistant" or not _calls(entry) else ""
        found.append((entry.role.value, text))
    return found


def _calls(entry: Any) -> bool:
    return any(type(part).__name__ == "ToolCall" for part in entry.parts)


@pytest.mark.parametrize("held", [True, False], ids=["history passed", "history in the log"])
async def test_200_turns_stay_within_the_budget_and_are_kept_once(tmp_path: Path, held: bool) -> None:
    model = Model()
    async with ACMS("s", open_storage(f"sqlite:///{tmp_path}/m.db"), None, namespace=USER) as session:
        made = agent(session, model)
        history: list[ModelMessage] = []
        for turn in range(script.TURNS):
            result = await made.run(script.said(turn), message_history=history if held else None)
            history = [*history, *result.new_messages()]
        assert await said_in(session) == script.expected(0, script.TURNS)
        answer = await made.run(script.QUESTION, message_history=history if held else None)
        assert answer.output == "It is marzipan-4711."
    shown = model.seen[-1]
    runs = {message.run_id: message for message in history}
    same = [one for one in shown if isinstance(one, ModelResponse)]
    assert same
    for one in same:  # what was said comes back as it was made, with its ids
        assert one.run_id in runs
        assert any(one == kept for kept in history if kept.run_id == one.run_id)


async def _talk(url: str, session_id: str, first: int, last: int, acknowledged: bool = False) -> list[Any]:
    model = Model()
    storage = open_storage(url)
    async with ACMS(session_id, storage, None, namespace=USER) as session:
        made = agent(session, model)
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
        for session_id, text in (("one", script.said(3)), ("two", script.QUESTION)):
            async with ACMS(session_id, storage, None, namespace=USER) as session:
                result = await agent(session, Model()).run(text)
        assert result.output == "It is marzipan-4711."
        async with ACMS("two", storage, None, namespace="user:2") as session:
            assert (await agent(session, Model()).run(script.QUESTION)).output == "I do not know."
        await erase_subject(storage, namespace=USER, verify=True)
        assert script.left_in(tmp_path, ["marzipan"]) == []


async def test_what_was_edited_or_withheld_is_not_shown_as_it_was_made() -> None:
    model = Model()
    config = ACMSConfig(privacy=PrivacyConfig(mode="redact"))
    async with ACMS("s", "memory://", None, config=config) as session:
        made = agent(session, model)
        await made.run("My address is ana@example.org, the number of the room is 12.")
        await made.run("And the floor is 3.")
        kept = [entry for entry in await session.entries() if entry.content.startswith("And the floor")]
        await session.replace(kept[0].id, "And the floor is 4.")
        await made.run("Say it again.")
    shown = json.dumps(chat(model.seen[-1]))
    assert "ana@example.org" not in shown
    assert "room is 12" in shown
    assert "floor is 3" not in shown
    assert "floor is 4" in shown


async def test_reasoning_tools_and_system_prompts_count() -> None:
    model = Model(budget=400, thinking="Let me think about it. " * 8)
    async with ACMS("s", "memory://", None) as session:
        made = agent(session, model, system_prompt="Be brief.")
        history: list[ModelMessage] = []
        for turn in range(12):
            history = (await made.run(script.said(turn), message_history=history)).all_messages()
        assert chat(model.seen[-1])[0] == {"role": "system", "content": "Be brief."}
        assert len([one for one in chat(model.seen[-1]) if one["role"] == "system"]) == 1
        model.budget = 20
        with pytest.raises(TokenBudgetExceededError):
            await agent(session, model).run("Hello?")


async def test_an_image_is_shown_again_as_it_was_given() -> None:
    model = Model(budget=4000)
    asked = UserPromptPart(["What is this?", ImageUrl("https://example.org/a.png")])
    async with ACMS("s", "memory://", None) as session:
        made = agent(session, model)
        await made.run(
            "Hello?", message_history=[ModelRequest([asked]), ModelResponse([TextPart("A disk.")])]
        )
        await made.run("Hello again?")
    assert model.seen[-1][0].parts[0] == asked


async def test_the_page_and_the_example_run_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        await run_page("pydantic-ai.md", tmp_path, monkeypatch)
    assert run_example("pydantic_ai_agent.py", tmp_path).strip().endswith("124 messages kept; It is 4711.")


def measure() -> list[float]:
    """Return what one model request of a long conversation takes more with ACMS than without, warm."""

    async def run(folder: Path) -> list[float]:
        times: list[float] = []
        storage = open_storage(f"sqlite:///{folder}/m.db")
        async with ACMS("s", storage, None, namespace=USER) as session:
            history = ACMSHistory[None](session, budget=script.BUDGET)
            prepare = history.prepare_model_request

            async def timed(ctx: Any, request_context: Any) -> Any:
                began = perf_counter()
                found = await prepare(ctx, request_context)
                times.append(perf_counter() - began)
                return found

            monkey.setattr(history, "prepare_model_request", timed)
            made = Agent(FunctionModel(Model()), instructions=INSTRUCTIONS, capabilities=[history])
            made.tool_plain(script.disk)
            messages: list[ModelMessage] = []
            for turn in range(script.TURNS):
                messages = (await made.run(script.said(turn), message_history=messages)).all_messages()
        await storage.aclose()
        return times[20:]

    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkey:
        return asyncio.run(run(Path(folder)))


if __name__ == "__main__":
    script.report("pydantic-ai", measure)
