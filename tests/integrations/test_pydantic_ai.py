"""Pydantic AI: an agent of 200 turns whose model sees a session's log within a budget."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
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

from acms import ACMS, ACMSConfig, FitError, PrivacyConfig, TokenBudgetExceededError, open_storage
from acms.codecs import OpenAIChat
from acms.integrations.model_input import Request, build_model_input, original_of_entry
from acms.integrations.pydantic_ai import ACMSHistory, history
from acms.integrations.pydantic_ai.history import DIALECT
from tests.integrations import agent as script
from tests.integrations import transcripts
from tests.integrations.pages import run_example, run_page

CODEC = OpenAIChat("gpt-5")


def messages_as_chat(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
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
                    part.content
                    if isinstance(part.content, str)
                    else [_content_item(one) for one in part.content]
                )
                found.append({"role": role, "content": content})
    return found


def _content_item(content: Any) -> dict[str, Any]:
    if isinstance(content, str):
        return {"type": "text", "text": content}
    return {"type": "image_url", "image_url": {"url": content.url}}


class Model:
    """The model of the script, and its prompts."""

    def __init__(
        self,
        budget: int = script.BUDGET,
        thinking: str = "",
        interrupted: bool = False,
    ) -> None:
        self.budget = budget
        self.thinking = thinking
        self.interrupted = interrupted
        self.seen: list[list[ModelMessage]] = []
        self.calls = 0

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.seen.append(messages)
        sent = messages_as_chat(messages)
        instructions = [{"role": "system", "content": info.instructions}] if info.instructions else []
        script.assert_valid_request([*instructions, *sent], self.budget, interrupted=self.interrupted)
        said = script.answer(sent)
        self.calls += 1
        parts: list[Any] = [ThinkingPart(self.thinking)] if self.thinking else []
        if said["content"]:
            parts.append(TextPart(said["content"]))
        for call in said.get("tool_calls", ()):
            function = call["function"]
            parts.append(ToolCallPart(function["name"], function["arguments"], f"{call['id']}_{self.calls}"))
        return ModelResponse(parts)


def make_agent(session: ACMS, model: Model, **more: Any) -> Agent[None, str]:
    history = ACMSHistory[None](session, budget=model.budget)
    made = Agent(FunctionModel(model), instructions=script.INSTRUCTIONS, capabilities=[history], **more)
    made.tool_plain(script.disk)
    return made


class Driver(script.Driver):
    def __init__(self, *where: Any, **how: Any) -> None:
        super().__init__(*where, **how)
        self.storage = open_storage(self.url)
        self.session = ACMS(self.name, self.storage, None, namespace=self.namespace)
        self.model = Model(interrupted=self.interrupted)
        self.agent = make_agent(self.session, self.model)

    @property
    def memory(self) -> ACMS:
        return self.session

    async def turn(self, text: str, id: str | None = None) -> str:
        result = await self.agent.run(text)
        self.made += deepcopy(_without_request_bounds(result.all_messages()))
        self.seen += map(_without_request_bounds, self.model.seen[len(self.seen) :])
        return result.output

    async def kept(self) -> list[Any]:
        found = [original_of_entry(entry, DIALECT) for entry in await self.session.entries()]
        return _without_request_bounds([piece.message for piece in found if piece])

    async def aclose(self) -> None:
        await self.session.close()
        await self.storage.aclose()


def _without_request_bounds(messages: Sequence[ModelMessage]) -> list[Any]:
    """Return messages without the bounds of requests: adjacent ones are sent as one."""
    return [one for each in messages for one in ([each] if isinstance(each, ModelResponse) else each.parts)]


class TestStory(script.Story):
    driver = Driver


async def test_a_history_that_is_passed_is_stored_once() -> None:
    model = Model()
    async with ACMS("s", "memory://", None) as session:
        made = make_agent(session, model)
        history: list[ModelMessage] = []
        for turn in range(20):
            history = (await made.run(script.said(turn), message_history=history)).all_messages()
        assert [entry.content for entry in await session.entries() if entry.role == "user"] == [
            script.said(turn) for turn in range(20)
        ]
    answers = [one for one in model.seen[-1] if isinstance(one, ModelResponse)]
    assert answers
    assert all(one in history for one in answers)


async def test_a_request_ends_where_the_history_ends_that_is_passed() -> None:
    model = Model()
    async with ACMS("s", "memory://", None) as session:
        made = make_agent(session, model)
        begun = (await made.run("The floor is 3.")).all_messages()
        await made.run(script.said(1), message_history=begun)
        for one in (made, make_agent(session, model)):
            said = await one.run(script.said(2), message_history=begun)
            asked = {"role": "user", "content": script.said(2)}
            assert messages_as_chat(model.seen[-2]) == [*messages_as_chat(begun), asked]
            assert messages_as_chat(model.seen[-1]) == [
                *messages_as_chat(begun),
                *messages_as_chat(said.new_messages())[:-1],
            ]
            begun = begun if one is made else said.all_messages()
        await one.run("Thanks.", message_history=begun)
        assert messages_as_chat(model.seen[-1])[:-1] == messages_as_chat(begun)
        assert script.said(1) in [entry.content for entry in await session.entries()]


async def test_a_correction_is_not_taken_back_by_a_history_that_is_passed() -> None:
    async with ACMS("s", "memory://", None) as session:
        said = (await make_agent(session, Model()).run("The floor is 3.")).all_messages()
        await session.replace((await session.entries())[0].id, "The floor is 4.")
        model = Model()
        await make_agent(session, model).run("Thanks.", message_history=said)
        assert messages_as_chat(model.seen[-1])[0]["content"] == "The floor is 4."


async def test_a_message_of_a_history_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[ModelMessage] = []
    monkeypatch.setattr(
        history,
        "_key_of_message",
        lambda message, key=history._key_of_message: read.append(message) or key(message),
    )
    model = Model()
    async with ACMS("s", "memory://", None) as session:
        made = make_agent(session, model)
        said: list[ModelMessage] = []
        for turn in range(10):
            said = (await made.run(script.said(turn), message_history=said)).all_messages()
    assert len(read) == len(said)


async def test_a_history_that_was_changed_is_stored_again() -> None:
    model = Model()
    async with ACMS("s", "memory://", None) as session:
        made = make_agent(session, model)
        said = (await made.run("The floor is 3.")).all_messages()
        said = (await made.run("Thanks.", message_history=said)).all_messages()
        first = said[0]
        assert isinstance(first, ModelRequest)
        said[0] = replace(first, parts=[replace(first.parts[0], content="The floor is 4.")])
        await made.run("Say it again.", message_history=said)
        assert [entry.content for entry in await session.entries() if entry.role == "user"] == [
            "The floor is 4.",
            "Thanks.",
            "Say it again.",
        ]


async def test_what_was_edited_keeps_its_frame() -> None:
    model = Model(budget=4000)
    async with ACMS("s", "memory://", None) as session:
        made = make_agent(session, model)
        await made.run(script.said(1))
        _, call, answer, _ = await session.entries()
        await session.replace(call.id, "I look.")
        await session.replace(answer.id, "50 %")
        await made.run("Say it again.")
    call, answer = model.seen[-1][1:3]
    text, called = call.parts
    assert (text.content, called.tool_name, called.args_as_dict()) == ("I look.", "disk", {"host": "host-1"})
    (returned,) = answer.parts
    assert (returned.tool_name, returned.content, returned.tool_call_id) == (
        "disk",
        "50 %",
        called.tool_call_id,
    )


async def test_what_was_edited_or_withheld_is_not_shown_as_it_was_made() -> None:
    model = Model()
    config = ACMSConfig(privacy=PrivacyConfig(mode="redact"))
    async with ACMS("s", "memory://", None, config=config) as session:
        made = make_agent(session, model)
        await made.run("My address is ana@example.org, the number of the room is 12.")
        await made.run("And the floor is 3.")
        kept = [entry for entry in await session.entries() if entry.content.startswith("And the floor")]
        await session.replace(kept[0].id, "And the floor is 4.")
        await made.run("Say it again.")
    shown = json.dumps(messages_as_chat(model.seen[-1]))
    assert "ana@example.org" not in shown
    assert "room is 12" in shown
    assert "floor is 3" not in shown
    assert "floor is 4" in shown


async def test_what_no_store_can_keep_ends_no_run() -> None:
    odd = "half\0 a \ud800word"
    given: list[ModelMessage] = [
        ModelRequest([UserPromptPart("\0")]),
        ModelResponse([ThinkingPart(odd), TextPart(odd), ToolCallPart("disk", {"host": "db1"}, "c1")]),
        ModelRequest([ToolReturnPart("disk", odd, "c1")]),
    ]
    async with ACMS("s", "memory://", None) as session:
        await session.sync([DIALECT.write(piece) for piece in history.split_into_pieces(given)])
        await make_agent(session, Model()).run(["half\0 a word"])
        said = [entry.content for entry in await session.entries()]
        assert said[0] == "\ufffd"
        assert said[1].startswith("half\ufffd a \ufffdword")
        assert said[2:4] == ["half\ufffd a \ufffdword", "half\ufffd a word"]


async def test_reasoning_tools_and_system_prompts_count() -> None:
    model = Model(budget=400, thinking="Let me think about it. " * 8)
    async with ACMS("s", "memory://", None) as session:
        made = make_agent(session, model, system_prompt="Be brief.")
        history: list[ModelMessage] = []
        for turn in range(12):
            history = (await made.run(script.said(turn), message_history=history)).all_messages()
        assert messages_as_chat(model.seen[-1])[0] == {"role": "system", "content": "Be brief."}
        assert len([one for one in messages_as_chat(model.seen[-1]) if one["role"] == "system"]) == 1
        model.budget = 20
        with pytest.raises(TokenBudgetExceededError):
            await make_agent(session, model).run("Hello?")


async def test_an_image_is_shown_again_as_it_was_given() -> None:
    model = Model(budget=4000)
    asked = UserPromptPart(["What is this?", ImageUrl("https://example.org/a.png")])
    async with ACMS("s", "memory://", None) as session:
        made = make_agent(session, model)
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


def messages_of(steps: Sequence[transcripts.Step]) -> list[ModelMessage]:
    found: list[ModelMessage] = []
    for step in steps:
        if step.role == "assistant":
            thought = [ThinkingPart(step.thought)] if step.thought else []
            text = [TextPart(step.text)] if step.text else []
            calls = [ToolCallPart(call.name, call.arguments, call.id) for call in step.calls]
            found.append(ModelResponse([*thought, *text, *calls]))
        elif step.answers is not None:
            found.append(ModelRequest([ToolReturnPart(step.answers.name, step.text, step.answers.id)]))
        else:
            found.append(ModelRequest([UserPromptPart(step.text)]))
    return found


@given(seed=st.integers(0, 2**32))
def test_any_conversation_is_stored_and_shown_as_a_valid_request(seed: int) -> None:
    async def run() -> None:
        messages = messages_of(transcripts.random_conversation(Random(seed)))
        async with ACMS("s", "memory://", None) as session:
            await session.sync([DIALECT.write(piece) for piece in history.split_into_pieces(messages)])
            for budget in transcripts.BUDGETS:
                request = Request(codec=CODEC, budget=budget, query="crane", instructions="Be brief.")
                with suppress(FitError, TokenBudgetExceededError):
                    known = {piece.key: piece for piece in history.split_into_pieces(messages)}
                    shown = await build_model_input(session, request, DIALECT, known)
                    transcripts.assert_valid_request(
                        messages_as_chat([piece.message for piece in shown]), budget, "Be brief."
                    )

    asyncio.run(run())
