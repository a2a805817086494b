"""Gemini: contents go into a log and come back, signatures in place, and counts learn from reported usage."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from acms import ACMS, Raw, Role, Text, ToolCall, ToolResult, ValidationError, open_storage
from acms.codecs import CacheRates, Exactness, Gemini, OpenAIChat, Usage, named
from acms.errors import PayloadError
from acms.log.provider_messages import EXTRA_FIELDS
from acms.prompt import Prompt
from acms.prompt_types import PromptMessage
from acms.providers.codecs.anthropic_turns import FOREIGN
from acms.providers.tokens import default_counter
from tests.providers import validators
from tests.providers.prompts import make_count

CODEC = Gemini("gemini-3-pro")
CONTENTS: list[dict[str, Any]] = [
    {"role": "user", "parts": [{"text": "Is flight AA100 on time?"}]},
    {
        "role": "model",
        "parts": [
            {"text": "I look it up.", "thought": True},
            {
                "functionCall": {"id": "c1", "name": "check_flight", "args": {"flight": "AA100"}},
                "thoughtSignature": "c2lnIEE=",
            },
            {"functionCall": {"id": "c2", "name": "check_gate", "args": {}}},
        ],
    },
    {
        "role": "user",
        "parts": [
            {"functionResponse": {"id": "c1", "name": "check_flight", "response": {"output": "delayed"}}},
            {"functionResponse": {"id": "c2", "name": "check_gate", "response": {"error": "no such gate"}}},
        ],
    },
    {"role": "model", "parts": [{"text": "It is late.", "thoughtSignature": "c2lnIEI="}]},
    {"role": "user", "parts": [{"text": "Book a taxi."}]},
]


async def session_of_contents(*contents: dict[str, Any]) -> ACMS:
    session = ACMS("day", open_storage("memory://"), None)
    for content in contents:
        await session.ingest(content)
    return session


async def render_payload(session: ACMS, codec: Any = CODEC, budget: int = 4_000) -> Any:
    rendered = await Prompt(codec).history(session).render(budget=budget)
    assert rendered.tokens.upper_bound <= budget
    return rendered.payload


async def test_contents_come_back_with_their_signatures() -> None:
    session = await session_of_contents(*CONTENTS)
    payload = await render_payload(session)
    validators.gemini(payload)
    spoken = [dict(one, parts=[part for part in one["parts"] if not part.get("thought")]) for one in CONTENTS]
    assert payload["contents"] == spoken
    assert json.dumps(CODEC.parse(payload), default=str) == json.dumps(
        CODEC.normal(CODEC.parse(payload)), default=str
    )
    other = json.dumps(await render_payload(session, OpenAIChat("gpt-5")))
    assert "check_flight" in other
    assert "c2lnIEE" not in other


async def test_the_objects_of_the_sdk_and_calls_without_ids() -> None:
    call = {
        "role": "model",
        "parts": [{"function_call": {"name": "f", "args": {}}, "thought_signature": b"sig"}] * 2,
    }
    answer = {"role": "user", "parts": [{"function_response": {"name": "f", "response": {"rows": 3}}}] * 2}
    session = await session_of_contents({"role": "user", "parts": [{"text": "Go."}]}, call, answer)
    first = (await session.entries())[1]
    assert [part.call_id for part in first.parts if isinstance(part, ToolCall)] == ["call_f_1", "call_f_2"]
    assert Raw("gemini", '{"thoughtSignature": "c2ln"}') in first.parts
    contents = (await render_payload(session))["contents"]
    assert [part["functionResponse"]["response"] for part in contents[2]["parts"]] == [
        {"output": '{"rows": 3}'}
    ] * 2
    picture = {"role": "user", "parts": [{"fileData": {"mimeType": "image/png", "fileUri": "gs://b/a.png"}}]}
    assert (await render_payload(await session_of_contents(picture), budget=10_000))["contents"] == [picture]
    code = {"role": "model", "parts": [{"executableCode": {"code": "1+1", "language": "PYTHON"}}]}
    kept = (await (await session_of_contents(code)).entries())[0].parts
    assert [part.vendor for part in kept if isinstance(part, Raw)] == ["gemini"]


SIGNED = {"thoughtSignature": "c2lnIEE="}
CODE = {"executableCode": {"language": "PYTHON", "code": "1"}}
RAN = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}
CALLED = {"toolCall": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "args": {}}}
TOLD = {"toolResponse": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "response": {}}}
PICTURE = {"fileData": {"mimeType": "image/png", "fileUri": "https://e.org/i.png"}}
VIDEO = {"fileData": {"mimeType": "video/*", "fileUri": "https://www.youtube.com/watch?v=9hE5-98ZeCg"}}


@pytest.mark.parametrize(
    "parts",
    [
        [{**CODE, **SIGNED}, RAN, {"text": "x"}],
        [{**CALLED, **SIGNED}, TOLD, {"text": "x"}],
        [{"text": "hm", "thought": True, **SIGNED}, {"text": "x"}],
        [{"text": "here"}, {**PICTURE, **SIGNED}],
        [{"text": "", **SIGNED}, {"text": "x"}],
        [{"text": "x"}, {"text": "", **SIGNED}],
    ],
)
async def test_what_the_model_made_goes_back_with_its_signature_where_it_was(parts: list[Any]) -> None:
    answer = {"role": "model", "parts": parts}
    payload = await render_payload(
        await session_of_contents(CONTENTS[0], answer, {"role": "model", "parts": [{"text": "y"}]}),
        budget=20_000,
    )
    validators.gemini(payload)
    assert payload["contents"][1]["parts"] == [*parts, {"text": "y"}]
    assert CODEC.normal(CODEC.parse(payload)) == CODEC.parse(payload)


async def test_the_signature_of_what_cannot_be_sent_goes_with_it() -> None:
    said = (
        PromptMessage(role=Role.USER, parts=(Text("q"),)),
        PromptMessage(
            role=Role.ASSISTANT,
            parts=(Raw("gemini", json.dumps(SIGNED)), Text(" "), Text("x")),
        ),
    )
    assert CODEC.render(said)["contents"][1]["parts"] == [{"text": "x"}]


def test_of_two_signatures_in_a_row_the_last_one_goes_with_the_part_behind_them() -> None:
    held = [Raw("gemini", json.dumps({"thoughtSignature": one})) for one in ("c2lnIEE=", "c2lnIEI=")]
    said = (
        PromptMessage(role=Role.USER, parts=(Text("q"),)),
        PromptMessage(role=Role.ASSISTANT, parts=(*held, Text("x"))),
    )
    assert CODEC.render(said)["contents"][1]["parts"] == [
        {"text": "", "thoughtSignature": "c2lnIEE="},
        {"text": "x", "thoughtSignature": "c2lnIEI="},
    ]


def test_what_another_provider_said_besides_is_left_out_and_only_its_items_are_told_of() -> None:
    kept = Raw(EXTRA_FIELDS, '{"stop_reason": "end_turn"}')
    said = [
        PromptMessage(role=Role.USER, parts=(Text("q"),)),
        PromptMessage(role=Role.ASSISTANT, parts=(Text("x"), kept)),
        PromptMessage(role=Role.USER, parts=(Text("n"),)),
    ]
    assert CODEC.render(said)["contents"][1]["parts"] == [{"text": "x"}]
    assert CODEC.notes(said) == ()
    item = Raw("openai-responses", '{"type": "web_search_call"}')
    said[1] = PromptMessage(role=Role.ASSISTANT, parts=(Text("x"), item))
    assert CODEC.render(said)["contents"][1]["parts"] == [{"text": "x"}]
    assert CODEC.notes(said) == (FOREIGN,)


async def test_each_call_keeps_its_own_signature() -> None:
    calls = [
        {"functionCall": {"id": id, "name": "f", "args": {}}, "thoughtSignature": held}
        for id, held in (("c1", "c2lnIEE="), ("c2", "c2lnIEI="))
    ]
    answers = [
        {"functionResponse": {"id": id, "name": "f", "response": {"output": "1"}}} for id in ("c1", "c2")
    ]
    session = await session_of_contents(
        CONTENTS[0], {"role": "model", "parts": calls}, {"role": "user", "parts": answers}
    )
    assert (await render_payload(session))["contents"][1]["parts"] == calls


async def test_files_are_fetched_from_the_web() -> None:
    content = {"role": "user", "parts": [VIDEO, PICTURE, {"text": "q"}]}
    assert (await render_payload(await session_of_contents(content), budget=20_000))["contents"] == [content]


async def test_system_text_leads_or_is_told_and_tools_are_declared() -> None:
    tool = {"name": "f", "description": "Does it.", "parameters": {"type": "object", "properties": {}}}
    prompt = (
        Prompt(CODEC)
        .system("Rules.")
        .user("Go.")
        .assistant("Yes.")
        .system("Be quick.")
        .user("And?")
        .tools([tool])
    )
    rendered = await prompt.render(budget=4_000)
    assert rendered.payload["config"]["systemInstruction"] == {"parts": [{"text": "Rules."}]}
    assert rendered.payload["config"]["tools"][0]["functionDeclarations"][0]["name"] == "f"
    assert "<system-reminder>" in rendered.payload["contents"][2]["parts"][0]["text"]
    assert rendered.payload["contents"][-1]["parts"][-1] == {"text": "And?"}


def test_what_the_api_refuses() -> None:
    call = {"role": "model", "parts": [{"functionCall": {"id": "c", "name": "f", "args": {}}}]}
    for contents, why in (
        ([], "not empty"),
        ([call], "answered by the next"),
        ([CONTENTS[0], call, CONTENTS[0]], "answered by the next"),
        ([{"role": "model", "parts": [{"text": "x"}]}], "the user's"),
        ([{"role": "system", "parts": [{"text": "x"}]}], "user or the model"),
        ([{"role": "user", "parts": []}], "not empty"),
        ([{"role": "user", "parts": call["parts"]}], "only the model"),
    ):
        with pytest.raises(PayloadError, match=why):
            CODEC.check({"contents": contents})
    with pytest.raises(PayloadError, match="not a supported part"):
        CODEC.parse({"contents": [{"role": "user", "parts": [{"videoMetadata": {}}]}]})


async def test_counts_begin_with_an_estimate_and_learn() -> None:
    codec = named("gemini", "gemini-3-flash")
    session = await session_of_contents(*CONTENTS)
    rendered = await Prompt(codec).history(session).render(budget=4_000)
    assert rendered.tokens.exactness is Exactness.CALIBRATED
    assert rendered.tokens.upper_bound >= 1.6 * rendered.tokens.tokens
    before = codec.limit(10_000)
    told = SimpleNamespace(prompt_token_count=rendered.tokens.tokens, cached_content_token_count=3)
    usage = codec.usage(SimpleNamespace(usage_metadata=told))
    assert (usage.input_tokens, usage.cached_tokens) == (rendered.tokens.tokens, 3)
    assert 6_000 < before <= 6_250
    assert codec.counter.count("4711") == 4
    assert codec.counter.count("on 2026-11-26 at 9") == default_counter().count("on 2026-11-26 at 9") + 4
    for _ in range(100):
        codec.observe(make_count(8_000), codec.usage({"usageMetadata": {"promptTokenCount": 8_800}}))
    assert 8_500 < codec.limit(10_000) < 9_100
    with pytest.raises(ValidationError, match="prompt token count"):
        codec.usage({"input_tokens": 3})
    for told in ("8800", -1, True):
        with pytest.raises(ValidationError, match="number of tokens"):
            codec.usage({"usageMetadata": {"promptTokenCount": told}})
    learnt = codec.calibration.state()
    codec.observe(make_count(0), Usage(input_tokens=10))
    codec.observe(make_count(10), Usage(input_tokens=0))
    assert codec.calibration.state() == learnt
    assert (codec.cached(4_095), codec.cached(5_000)) == (0, 5_000)
    assert CODEC.rates == CacheRates(cached=0.1, write=1.0, long=1.0)


def test_tokens_that_are_known_are_not_counted_again() -> None:
    text = "at 14:30 on 2026-11-26 " * 20
    tokens = CODEC.counter.count(text)
    for role, part, taken in (
        (Role.USER, Text(text), True),
        (Role.ASSISTANT, Text(text), True),
        (Role.TOOL, ToolResult("c1", text), True),
        (Role.SYSTEM, Text(text), False),  # it may have to be told by the user
    ):
        message = PromptMessage(role=role, parts=(part,))
        known = replace(message, tokens=tokens, counter=CODEC.counter.name)
        assert CODEC.cost(known) == CODEC.cost(message)
        assert CODEC.cost(replace(known, tokens=tokens + 7)) == CODEC.cost(message) + (7 if taken else 0)
        assert CODEC.cost(replace(known, tokens=1, counter="another")) == CODEC.cost(message)
