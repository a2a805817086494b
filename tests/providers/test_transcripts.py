"""Whatever providers returned, and wherever it was interrupted: every request made of it is valid."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from acms import ACMS, ACMSConfig, FitError, Prompt, Raw, Role, ValidationError
from acms.codecs import AnthropicMessages, Gemini, OpenAIChat, OpenAIResponses
from acms.ports import Codec
from acms.prompt_types import PromptMessage
from acms.storage import MemoryStorage
from tests.providers import judge
from tests.providers.transcripts import Message, native_pair, random_transcript

pytestmark = pytest.mark.anyio

Judge = Callable[[dict[str, Any]], list[str]]
CODECS: list[tuple[Codec, Judge]] = [
    (OpenAIChat("gpt-4o"), judge.chat),
    (OpenAIChat("deepseek-chat"), judge.chat),
    (OpenAIResponses("gpt-5"), judge.responses),
    (AnthropicMessages("claude-sonnet-4-5", max_tokens=9), judge.anthropic),
    (AnthropicMessages("claude-opus-5-5", max_tokens=9), judge.anthropic),
    (Gemini("gemini-3-pro"), judge.faults_of_gemini),
]
RESPONSES = OpenAIResponses("gpt-5")


def new_session() -> ACMS:
    return ACMS("s", MemoryStorage(), None)


async def payload_of(session: ACMS, codec: Codec, budget: int = 100_000) -> dict[str, Any]:
    rendered = await Prompt(codec).history(session).user("go on").render(budget=budget)
    return dict(rendered.payload)


@pytest.mark.parametrize("seed", range(30))
async def test_every_request_made_of_any_transcript_is_valid(seed: int) -> None:
    random = Random(seed)
    messages = random_transcript(random, random.randint(1, 8))
    async with new_session() as session:
        await session.sync(messages)
        again = await session.sync(messages)
        assert (again.appended, again.replaced) == ((), ())
        for codec, violations in CODECS:
            for budget in (random.randint(60, 1_500), random.randint(200, 4_000), 100_000):
                try:
                    rendered = await Prompt(codec).history(session).user("go on").render(budget=budget)
                except FitError:
                    continue
                assert violations(dict(rendered.payload)) == [], (codec.name, budget)
                assert codec.count(rendered.payload).upper_bound <= budget
                assert codec.normal(codec.parse(rendered.payload)) == codec.parse(rendered.payload)


@pytest.mark.parametrize("seed", range(20))
async def test_a_native_pair_comes_back_as_it_was_given(seed: int) -> None:
    random = Random(seed)
    call, result = native_pair(random, "a")
    async with new_session() as session:
        await session.sync([{"role": "user", "content": "q"}, call, result])
        items = (await payload_of(session, RESPONSES))["input"]
        assert [without_id(items[1]), without_id(items[2])] == [without_id(call), without_id(result)]
        text = " ".join([entry.content for entry in await session.entries()])
        assert all(word in text for word in strings_of(call.get("arguments", call.get("input", ""))))
        assert (await session.get_session_stats()).active_tokens > 5
        for codec, _ in CODECS:
            shown = json.dumps(await payload_of(session, codec), ensure_ascii=False)
            assert (
                "lookup" in shown or str(call["type"]).removesuffix("_call") in shown or call["name"] in shown
            )


async def test_items_of_unknown_types_keep_the_call_id_that_they_share() -> None:
    items = [
        {"type": "qubit_request", "call_id": "c", "circuit": "x"},
        {"type": "qubit_progress", "call_id": "c", "percent": 3},
        {"type": "qubit_measurement", "call_id": "c", "output": {"bits": ["101"]}},
    ]
    for given in (items, items[:2]):
        async with new_session() as session:
            await session.sync([{"role": "user", "content": "q"}, *given])
            rendered = await Prompt(RESPONSES).history(session).user("go on").render(budget=100_000)
            assert rendered.payload["input"][1:-1] == given


def test_open_calls_of_unknown_types_are_one_message_as_in_what_is_read_back() -> None:
    open_calls = [{"type": "qubit_request", "call_id": id, "circuit": "x"} for id in ("c", "d")]
    messages = [
        PromptMessage(role=Role.ASSISTANT, parts=(Raw("openai-responses", json.dumps(item)),))
        for item in open_calls
    ]
    assert RESPONSES.normal(messages) == RESPONSES.parse(RESPONSES.render(messages))


async def test_the_output_of_a_program_keeps_the_id_that_the_api_asks_for() -> None:
    call = {"type": "program", "id": "prog_1", "call_id": "c", "code": "1 + 1", "fingerprint": "f"}
    output = {"type": "program_output", "id": "po_1", "call_id": "c", "result": "2", "status": "completed"}
    async with new_session() as session:
        await session.sync([{"role": "user", "content": "q"}, call, output])
        assert (await payload_of(session, RESPONSES))["input"][1:-1] == [call, output]


def without_id(item: Message) -> Message:
    return {name: value for name, value in item.items() if name != "id"}


def strings_of(value: Any) -> list[str]:
    return value.split() if isinstance(value, str) and not value.startswith("{") else []


async def test_an_item_keeps_its_id_behind_the_reasoning_that_led_to_it() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    call = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c", "name": "apply_patch", "input": "p"}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}
    async with new_session() as session:
        await session.sync([{"role": "user", "content": "q"}, reasoning, call, output])
        going_on = await Prompt(RESPONSES).history(session).render(budget=None)
        assert going_on.payload["input"][1:] == [reasoning, call, output]
        over = (await payload_of(session, RESPONSES))["input"]
        assert [item.get("id") for item in over] == [None] * 4, (
            "without reasoning the API takes no id of a call"
        )


@pytest.mark.parametrize("codec", [one for one, _ in CODECS], ids=lambda codec: f"{codec.name} {codec.model}")
async def test_what_an_interrupted_turn_said_is_shown_and_its_open_call_has_a_stand_in(codec: Codec) -> None:
    calls = [
        {"id": id, "type": "function", "function": {"name": "disk", "arguments": "{}"}} for id in ("a", "b")
    ]
    async with new_session() as session:
        await session.sync(
            [
                {"role": "user", "content": "check both"},
                {"role": "assistant", "content": "The code is 4471.", "tool_calls": calls},
                {"role": "tool", "tool_call_id": "a", "content": "97 percent"},
                {"role": "user", "content": "stop"},
            ]
        )
        shown = json.dumps(await payload_of(session, codec))
        assert all(one in shown for one in ("4471", "97 percent", "no result: interrupted"))
        assert "97 percent" in (await session.window(1_000)).text()


async def test_one_call_that_was_cancelled_gets_a_native_stand_in() -> None:
    call = {"type": "shell_call", "call_id": "c", "status": "completed", "action": {"commands": ["ls"]}}
    async with new_session() as session:
        await session.sync([{"role": "user", "content": "q"}, call, {"role": "user", "content": "stop"}])
        items = (await payload_of(session, RESPONSES))["input"]
    assert items[2]["type"] == "shell_call_output"
    assert items[2]["output"][0]["stdout"] == "no result: interrupted"


async def test_what_other_servers_add_goes_back_to_them_alone() -> None:
    answer = {"role": "assistant", "content": "x", "reasoning_content": "hm", "unheard_of": {"a": 1}}
    async with new_session() as session:
        await session.sync([{"role": "user", "content": "q"}, answer])
        back = (await payload_of(session, OpenAIChat("deepseek-chat")))["messages"][1]
        assert back == answer
        other = (await payload_of(session, OpenAIChat("gpt-5")))["messages"][1]
        assert other == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize("role", ["user", "system"])
async def test_reasoning_of_a_message_that_is_not_an_answer_is_left_out(role: str) -> None:
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "S"}]
    async with new_session() as session:
        await session.ingest({"role": role, "content": "q", "thinking_blocks": blocks})
        await session.ingest({"role": role, "content": "r", "reasoning_content": "hm"})
        assert [item.content for item in await session.window(budget=100)] == ["q", "r"]


async def test_a_thought_signature_in_the_chat_format_goes_back_in_either_format() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    signed = {**call, "extra_content": {"google": {"thought_signature": "SIG"}}}
    answer = {"role": "assistant", "content": None, "tool_calls": [signed]}
    async with new_session() as session:
        await session.sync(
            [{"role": "user", "content": "q"}, answer, {"role": "tool", "tool_call_id": "c", "content": "r"}]
        )
        chat = await payload_of(session, OpenAIChat("gemini-3-pro"))
        assert chat["messages"][1]["tool_calls"] == [signed]
        assert "SIG" not in json.dumps(await payload_of(session, OpenAIChat("gpt-5")))
        gemini = await payload_of(session, Gemini("gemini-3-pro"))
        assert gemini["contents"][1]["parts"][0]["thoughtSignature"] == "SIG"


ODD: dict[str, list[Message]] = {
    "surrogate": [{"role": "user", "content": "cut \ud83d"}],
    "NUL": [{"role": "user", "content": "a\0b"}],
    "megabytes": [{"role": "user", "content": "x " * 600_000}],
    "long id": [{"role": "user", "content": "a", "id": "m" * 900}],
    "one id twice": [{"role": "user", "content": "a", "id": "m"}, {"role": "user", "content": "b", "id": "m"}],
    "no role": [{"content": "a"}],
    "no content": [{"role": "assistant", "content": None}],
    "a number": [{"role": "user", "content": 7}],
    "odd role": [{"role": "critic", "content": "no"}],
    "calls of one id": [
        {"role": "assistant", "content": None,
         "tool_calls": [{"id": "c", "type": "function", "function": {"name": one, "arguments": "{}"}} for one in "ab"]},
        {"role": "tool", "tool_call_id": "c", "content": "of a"},
        {"role": "tool", "tool_call_id": "c", "content": "of b"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
async def test_one_odd_message_never_refuses_a_list(name: str) -> None:
    front, back = {"role": "user", "content": "before"}, {"role": "user", "content": "after"}
    messages = [front, *ODD[name], back]
    async with new_session() as session:
        done = await session.sync(messages)
        assert [entry.content for entry in await session.entries()][:: len(done.appended) - 1] == [
            "before",
            "after",
        ]
        assert len(done.ids) == len(messages)
        assert [id for ids in done.ids for id in ids] == list(done.appended)
        assert done.notes or done.ignored
        again = await session.sync(messages)
        assert (again.appended, again.ids) == ((), done.ids)
        for codec, violations in CODECS:
            assert violations(await payload_of(session, codec, 2_000_000)) == []
    async with ACMS("strict", MemoryStorage(), None, config=ACMSConfig(strict=True)) as session:
        with pytest.raises(ValidationError):
            await session.sync(messages)


async def test_results_of_calls_that_share_an_id_stay_in_order() -> None:
    async with new_session() as session:
        await session.sync([{"role": "user", "content": "q"}, *ODD["calls of one id"]])
        messages = (await payload_of(session, OpenAIChat("gpt-4o")))["messages"]
        names = {call["id"]: call["function"]["name"] for call in messages[1]["tool_calls"]}
        assert {names[one["tool_call_id"]]: one["content"] for one in messages[2:4]} == {
            "a": "of a",
            "b": "of b",
        }


async def test_hundreds_of_calls_are_stored_and_answered() -> None:
    ids = [f"c{number}" for number in range(300)]
    calls = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in ids]
    answers = [{"role": "tool", "tool_call_id": id, "content": f"r {id}"} for id in ids]
    async with new_session() as session:
        await session.sync(
            [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": None, "tool_calls": calls},
                *answers,
            ]
        )
        messages = (await payload_of(session, OpenAIChat("gpt-4o")))["messages"]
        assert [one["tool_call_id"] for one in messages[2:302]] == ids


async def test_ingest_takes_a_list_of_parts_and_says_what_it_repaired() -> None:
    async with new_session() as session:
        await session.ingest("user", [{"type": "text", "text": "half \ud83d"}])
        assert session.last_receipt is not None
        assert session.last_receipt.notes == (
            "NUL characters and halves of surrogate pairs are replaced by U+FFFD",
        )
        await session.ingest({"role": "assistant", "content": ""})
        assert [entry.content for entry in await session.entries()] == ["half \ufffd", ""]
        with pytest.raises(ValidationError):
            await session.ingest("user", "")


FIELDS = ("citations", "caller")


async def test_unknown_fields_of_a_block_go_back_to_anthropic_alone() -> None:
    blocks = [
        {
            "type": "text",
            "text": "As they say.",
            "citations": [{"type": "page_location", "cited_text": "yes"}],
        },
        {"type": "tool_use", "id": "toolu_1", "name": "disk", "input": {}, "caller": {"type": "direct"}},
    ]
    result = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "full"}],
    }
    async with new_session() as session:
        await session.sync(
            [{"role": "user", "content": "q"}, {"role": "assistant", "content": blocks}, result]
        )
        codec = AnthropicMessages("claude-opus-4-5", max_tokens=9)
        rendered = await Prompt(codec).history(session).render(budget=100_000)
        user, answer, *behind = rendered.payload["messages"]
        assert answer["content"] == blocks
        plain = [{name: value for name, value in one.items() if name not in FIELDS} for one in blocks]
        without = {**rendered.payload, "messages": [user, {**answer, "content": plain}, *behind]}
        assert codec.count(without).tokens < codec.count(rendered.payload).tokens
        for other, _ in CODECS:
            if other.name != "anthropic-messages":
                shown = json.dumps(await payload_of(session, other))
                assert not any(f'"{name}"' in shown for name in FIELDS)


async def test_unknown_fields_of_a_part_go_back_to_gemini_alone() -> None:
    call = {"id": "f1", "name": "disk", "args": {}, "willWait": True}
    answer = {"id": "f1", "name": "disk", "response": {"output": "full"}, "scheduling": "WHEN_IDLE"}
    contents = [
        {"role": "user", "parts": [{"text": "q"}]},
        {
            "role": "model",
            "parts": [
                {"text": "As they say.", "partMetadata": {"of": "x"}},
                {"functionCall": call, "thoughtSignature": "c2ln"},
            ],
        },
        {"role": "user", "parts": [{"functionResponse": answer}]},
    ]
    async with new_session() as session:
        await session.sync(contents)
        rendered = await Prompt(Gemini("gemini-3-pro")).history(session).render(budget=100_000)
        assert rendered.payload["contents"] == contents
        for other, _ in CODECS:
            if other.name != "gemini":
                shown = json.dumps(await payload_of(session, other))
                assert not any(name in shown for name in ("partMetadata", "willWait", "scheduling"))
