"""Requests with recalled messages in their place: within the budget and the rules of every provider."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from acms import ACMS, FitError, Media, Reasoning, Text, ToolCall
from acms.codecs import AnthropicMessages, Gemini, OpenAIChat, OpenAIResponses
from acms.ports import Codec
from acms.prompt import Prompt
from acms.storage import MemoryStorage
from tests.providers import validators

CODECS: dict[str, tuple[Codec, Callable[[Any], None]]] = {
    "chat": (OpenAIChat("gpt-5"), validators.openai_chat),
    "responses": (OpenAIResponses("gpt-5"), validators.openai_responses),
    "anthropic": (AnthropicMessages("claude-opus-5-5"), partial(validators.anthropic, system=True)),
    "gemini": (Gemini("gemini-2.5-pro"), validators.gemini),
}
EACH = 10
"""Requests of one conversation and one provider; between them it goes on."""
THINGS = "drill lathe saw clamp gauge anvil chisel vice plane rasp bolt spring lever crank valve".split()


def random_text(rng: random.Random) -> str:
    """Return a text, mostly short and sometimes longer than a budget."""
    words = [f"{rng.choice(THINGS)} {rng.randint(1, 99)}" for _ in range(rng.choice((1, 3, 8, 20, 400)))]
    return ", ".join(words)


async def add_turn(session: ACMS, rng: random.Random, number: int) -> bool:
    """Let the user, the system and the model say something; return whether the model had the last word."""
    picture = Media("image/png", f"https://example.org/{number}.png", tokens=rng.choice((0, 50)))
    shown = [Text(random_text(rng)), *([picture] if rng.random() < 0.2 else [])]
    await session.ingest("user", parts=shown, actor_id=rng.choice((None, "maya")))
    if rng.random() < 0.15:  # as Claude Code does within its list
        await session.ingest("system", random_text(rng))
    calls = [f"call_{number}_{one}" for one in range(rng.choice((0, 0, 1, 3)))]
    if calls:
        thought = [Reasoning("Hm.", f"signed{number}")] if rng.random() < 0.5 else []
        await session.ingest("assistant", parts=[*thought, *[ToolCall(one, "stock", "{}") for one in calls]])
        for call in calls[: None if rng.random() < 0.9 else -1]:
            await session.ingest("tool", random_text(rng), tool_call_id=call)
    over = rng.random() < 0.7
    if over:
        await session.ingest("assistant", random_text(rng))
    return over


async def all_hold(name: str, seeds: range) -> None:
    codec, accepts = CODECS[name]
    for seed in seeds:
        rng = random.Random(seed)
        async with ACMS("s", MemoryStorage(), None) as session:
            over = True
            for number in range(rng.randint(0, 12)):
                over = await add_turn(session, rng, number)
            for number in range(EACH):
                prompt = Prompt(codec).system("You keep the stock.").history(session)
                how = rng.choice(({}, {"keep": "turn"}, {"in_place": True}, {"tokens": 200}))
                prompt = prompt.recall(session, random_text(rng)[:200], **how)
                prompt = prompt.user("And now?") if over or rng.random() < 0.3 else prompt
                budget = int(20 * 1.9 ** rng.uniform(0, 10))
                try:
                    rendered = await prompt.render(budget=budget)
                except FitError as error:
                    assert error.over > 0
                else:
                    assert rendered.tokens.upper_bound <= budget, (seed, number)
                    codec.check(rendered.payload)
                    accepts(rendered.payload)
                over = await add_turn(session, rng, 100 + number)


@pytest.mark.parametrize("name", sorted(CODECS))
@pytest.mark.parametrize(
    "question", ["Where is my order 4711?", "Where is order 4711? " + "I waited. " * 400]
)
@pytest.mark.parametrize("lines", [4, 400])
async def test_a_system_message_at_the_end_does_not_stand_alone(name: str, question: str, lines: int) -> None:
    codec, accepts = CODECS[name]
    async with ACMS("s", MemoryStorage(), None) as session:
        await session.ingest("user", question)
        await session.ingest("system", "Refunds need a receipt.\n" * lines)
        rendered = await Prompt(codec).history(session).render(budget=400)
        accepts(rendered.payload)
        asked = "".join(message.text for message in rendered.messages if message.role == "user")
        assert "4711" in asked
        assert "Refunds need a receipt." in str(rendered.payload)


@pytest.mark.parametrize("name", sorted(CODECS))
async def test_a_long_question_takes_nothing_from_the_instructions(name: str) -> None:
    codec, _ = CODECS[name]
    rules = "\n".join(f"Rule {number}: be kind." for number in range(30))
    async with ACMS("s", MemoryStorage(), None) as session:
        await session.ingest("system", rules)
        await session.ingest("user", "Where is order 4711? " + "I waited. " * 400)
        rendered = await Prompt(codec).history(session).render(budget=900)
        assert "".join(message.text for message in rendered.messages[:1]) == rules
        assert "Where is order 4711?" in rendered.messages[1].text


@pytest.mark.parametrize("name", sorted(CODECS))
async def test_requests_are_within_budget_and_rules(name: str) -> None:
    await all_hold(name, range(5))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CODECS))
async def test_twenty_thousand_requests_are_within_budget_and_rules(name: str) -> None:
    await all_hold(name, range(100, 100 + 20_000 // EACH // len(CODECS) + 1))


@pytest.mark.parametrize("name", sorted(CODECS))
async def test_a_session_that_lost_all_its_messages_is_rendered(name: str) -> None:
    codec, accepts = CODECS[name]
    async with ACMS("s", MemoryStorage(), None) as session:
        greeting = await session.ingest("user", "Hello.")
        await session.retract(greeting)
        rendered = await Prompt(codec).history(session).user("And now?").render(budget=400)
        accepts(rendered.payload)
        assert "Hello" not in str(rendered.payload)


@pytest.mark.parametrize("name", CODECS)
async def test_a_nul_in_the_json_of_a_call_or_block_does_not_block_the_log(name: str) -> None:
    codec, _ = CODECS[name]
    call = {"type": "tool_use", "id": "c1", "name": "write", "input": {"data": "a\0b", "path": "\\u0000.txt"}}
    citation = {"type": "char_location", "cited_text": "a\0b", "document_index": 0, "document_title": "t"}
    citation |= {"start_char_index": 0, "end_char_index": 1}
    async with ACMS("s", MemoryStorage(), None) as session:
        await session.ingest("user", "Write the file.")
        await session.ingest({"role": "assistant", "content": [call]})
        result = {"type": "tool_result", "tool_use_id": "c1", "content": "written"}
        await session.ingest({"role": "user", "content": [result]})
        text = {"type": "text", "text": "From the file.", "citations": [citation]}
        await session.ingest({"role": "assistant", "content": [text]})
        await session.ingest("user", "Go on.")
        payload = (await Prompt(codec).history(session).render(budget=5_000)).payload
    codec.check(payload)
    assert "written" in str(payload)


@pytest.mark.parametrize("name", CODECS)
async def test_a_second_result_of_a_call_is_not_the_question(name: str) -> None:
    codec, accepts = CODECS[name]
    output = "\n".join(f"10:{n // 60:02}:{n % 60:02} GET /orders/{n * 7919 % 9999} 200" for n in range(200))
    async with ACMS("s", MemoryStorage(), None) as session:
        for n in range(10):
            await session.ingest("user", f"Earlier question {n} about lunch.")
            await session.ingest("assistant", f"Earlier answer {n}.")
        question = "Why did order QX4711 fail?"
        await session.ingest("user", question)
        call = {"id": "c1", "name": "logs", "arguments": "{}"}
        await session.ingest("assistant", "", tool_calls=[call])
        await session.ingest("tool", output, tool_call_id="c1")
        await session.ingest("tool", f"retry\n{output}", tool_call_id="c1")
        prompt = Prompt(codec).system("You help.").history(session).recall(session, question)
        payload = (await prompt.render(budget=4_000)).payload
    accepts(payload)
    assert question in str(payload)


@pytest.mark.parametrize("budget", [500, 1_000, 2_000])
async def test_messages_stay_within_the_budget_by_the_count_of_the_codec(budget: int) -> None:
    async with ACMS("s", MemoryStorage(), None) as session:
        for n in range(60):
            await session.ingest("user", f"Question {n}?")
            ids = [f"c{n}_{k}" for k in range(2)]
            calls = [{"id": id, "name": "files_read", "arguments": '{"a": 1}'} for id in ids]
            await session.ingest("assistant", "", tool_calls=calls)
            for id in ids:
                await session.ingest("tool", f"{n}", tool_call_id=id)
        messages = await session.messages("question 3", budget=budget)
    count = await OpenAIChat("gpt-4o").count_request({"model": "gpt-4o", "messages": list(messages)})
    assert count.upper_bound <= budget
