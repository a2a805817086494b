"""Requests to OpenAI: their form, the conversion of messages they cannot hold, and refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import Media, Raw, Reasoning, Role, Text, ToolCall, ToolResult, ValidationError, open_storage
from acms.codecs import OpenAIChat, OpenAIResponses, Tool
from acms.errors import PayloadError
from acms.model import Part
from acms.prompt_types import CacheMark, PromptMessage
from acms.sync import ACMS, Prompt
from tests.providers import prompts

CHAT = OpenAIChat("gpt-4o")
RESPONSES = OpenAIResponses("gpt-5")
BOTH = [CHAT, RESPONSES]
both = pytest.mark.parametrize("codec", BOTH, ids=["chat", "responses"])

CLOSED = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def make_message(role: Role, *parts: Part | str, name: str | None = None, **more: Any) -> PromptMessage:
    held = tuple([Text(part) if isinstance(part, str) else part for part in parts])
    return PromptMessage(role=role, parts=held, name=name, **more)


def system_message(text: str) -> PromptMessage:
    return make_message(Role.SYSTEM, text)


def user_message(*parts: Part | str, name: str | None = None) -> PromptMessage:
    return make_message(Role.USER, *parts, name=name)


def model_message(*parts: Part | str) -> PromptMessage:
    return make_message(Role.ASSISTANT, *parts)


def tool_message(call_id: str, output: str) -> PromptMessage:
    return make_message(Role.TOOL, ToolResult(call_id, output))


def comparable_messages(messages: Sequence[PromptMessage]) -> list[tuple[Any, ...]]:
    """What messages say, without what a payload does not hold: sources, groups, counts; of media the reference."""
    return [
        (
            one.role,
            one.name,
            *(Media("", part.ref) if isinstance(part, Media) else part for part in one.parts),
        )
        for one in messages
    ]


WEATHER = ToolCall("call_1", "get_weather", '{"city": "Rome"}')
TIME = ToolCall("call_2", "get_time", "{}")
STORY = [
    system_message("Be brief."),
    make_message(Role.DEVELOPER, "Answer in English."),
    user_message("Weather and time?", name="sam"),
    model_message("Let me look.", WEATHER, TIME),
    tool_message("call_1", "18 °C"),
    tool_message("call_2", "12:00"),
    model_message("18 °C at noon."),
    user_message("What is on this?", Media("image/png", "https://example.com/a.png"), "and this?"),
]
TOOLS = [
    Tool(name="get_weather", description="The weather of a city.", parameters=CLOSED, strict=True),
    Tool(name="get_time"),
]


class TestGolden:
    def test_chat(self) -> None:
        assert CHAT.render(STORY, tools=TOOLS) == {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "developer", "content": "Answer in English."},
                {"role": "user", "content": "Weather and time?", "name": "sam"},
                {
                    "role": "assistant",
                    "content": "Let me look.",
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
                        },
                        {
                            "id": "call_2",
                            "type": "function",
                            "function": {"name": "get_time", "arguments": "{}"},
                        },
                    ],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "18 °C"},
                {"role": "tool", "tool_call_id": "call_2", "content": "12:00"},
                {"role": "assistant", "content": "18 °C at noon."},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is on this?"},
                        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
                        {"type": "text", "text": "and this?"},
                    ],
                },
            ],
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "get_weather",
                        "description": "The weather of a city.",
                        "parameters": CLOSED,
                        "strict": True,
                    },
                },
                {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}},
            ],
        }

    def test_responses(self) -> None:
        assert RESPONSES.render(STORY, tools=TOOLS) == {
            "input": [
                {"type": "message", "role": "system", "content": "Be brief."},
                {"type": "message", "role": "developer", "content": "Answer in English."},
                {"type": "message", "role": "user", "content": "sam: Weather and time?"},
                {"type": "message", "role": "assistant", "content": "Let me look."},
                {
                    "type": "function_call",
                    "call_id": "call_1",
                    "name": "get_weather",
                    "arguments": '{"city": "Rome"}',
                },
                {"type": "function_call", "call_id": "call_2", "name": "get_time", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "call_1", "output": "18 °C"},
                {"type": "function_call_output", "call_id": "call_2", "output": "12:00"},
                {"type": "message", "role": "assistant", "content": "18 °C at noon."},
                {
                    "type": "message",
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "What is on this?"},
                        {"type": "input_image", "detail": "auto", "image_url": "https://example.com/a.png"},
                        {"type": "input_text", "text": "and this?"},
                    ],
                },
            ],
            "tools": [
                {
                    "type": "function",
                    "name": "get_weather",
                    "description": "The weather of a city.",
                    "parameters": CLOSED,
                    "strict": True,
                },
                {
                    "type": "function",
                    "name": "get_time",
                    "parameters": {"type": "object"},
                    "strict": False,
                },
            ],
        }

    @both
    def test_a_payload_is_read_back(self, codec: OpenAIChat | OpenAIResponses) -> None:
        assert comparable_messages(codec.parse(codec.render(STORY, tools=TOOLS))) == comparable_messages(
            codec.normal(STORY)
        )

    def test_both_forms_fit_the_types_of_the_sdk(self) -> None:
        from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
        from openai.types.responses import FunctionToolParam, ResponseInputItemParam
        from pydantic import TypeAdapter

        chat, responses = CHAT.render(STORY, tools=TOOLS), RESPONSES.render(STORY, tools=TOOLS)
        for form, written in (
            (ChatCompletionMessageParam, chat["messages"]),
            (ChatCompletionToolParam, chat["tools"]),
            (ResponseInputItemParam, responses["input"]),
            (FunctionToolParam, responses["tools"]),
        ):
            adapter: TypeAdapter[Any] = TypeAdapter(form)
            for one in written:
                adapter.validate_python(one)


class TestMedia:
    @pytest.mark.parametrize(
        ("media", "chat", "responses"),
        [
            (
                Media("image/png", "data:image/png;base64,iVBORw0KGgo="),
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
                {
                    "type": "input_image",
                    "detail": "auto",
                    "image_url": "data:image/png;base64,iVBORw0KGgo=",
                },
            ),
            (
                Media("application/pdf", "file-abc123"),
                {"type": "file", "file": {"file_id": "file-abc123"}},
                {"type": "input_file", "file_id": "file-abc123"},
            ),
            (
                Media("application/pdf", "data:application/pdf;base64,JVBERi0="),
                {
                    "type": "file",
                    "file": {"filename": "file", "file_data": "data:application/pdf;base64,JVBERi0="},
                },
                {
                    "type": "input_file",
                    "filename": "file",
                    "file_data": "data:application/pdf;base64,JVBERi0=",
                },
            ),
            (
                Media("application/pdf", "https://example.com/a.pdf"),
                {"type": "text", "text": "[application/pdf: https://example.com/a.pdf]"},
                {"type": "input_file", "file_url": "https://example.com/a.pdf"},
            ),
            (
                Media("image/png", "file-abc123"),
                {"type": "text", "text": "[image/png: file-abc123]"},
                {"type": "input_image", "detail": "auto", "file_id": "file-abc123"},
            ),
            (
                Media("image/png", "s3://bucket/key"),
                {"type": "text", "text": "[image/png: s3://bucket/key]"},
                {"type": "input_text", "text": "[image/png: s3://bucket/key]"},
            ),
        ],
        ids=["image", "file", "bytes", "file at a URL", "uploaded image", "elsewhere"],
    )
    def test_they_are_sent_as_each_api_can_have_them(
        self, media: Media, chat: dict[str, Any], responses: dict[str, Any]
    ) -> None:
        def shown(given: Any, kind: str) -> Any:
            return [{"type": kind, "text": given}] if isinstance(given, str) else given

        sent = CHAT.render([user_message(media)])["messages"][0]["content"]
        assert shown(sent, "text") == [chat]
        sent = RESPONSES.render([user_message(media)])["input"][0]["content"]
        assert shown(sent, "input_text") == [responses]

    @both
    def test_outside_a_message_of_the_user_they_are_mentioned(
        self, codec: OpenAIChat | OpenAIResponses
    ) -> None:
        shown = model_message("here", Media("image/png", "https://example.com/a.png"))
        assert comparable_messages(codec.normal([shown])) == comparable_messages(
            [model_message("here\n[image/png: https://example.com/a.png]")]
        )
        assert codec.notes([shown]) == ("media outside a message of the user are mentioned in its text",)


class TestNormal:
    @both
    def test_answers_follow_their_calls_wherever_they_came(self, codec: OpenAIChat | OpenAIResponses) -> None:
        given = [
            model_message(WEATHER, TIME),
            tool_message("call_2", "12:00"),
            user_message("still there?"),
            tool_message("call_1", "18 °C"),
            model_message(replace(WEATHER, call_id="call_3", arguments="again")),
            tool_message("call_3", "19 °C"),
        ]
        assert comparable_messages(codec.normal(given)) == comparable_messages(
            [
                given[0],
                tool_message("call_1", "18 °C"),
                tool_message("call_2", "12:00"),
                given[2],
                given[4],
                tool_message("call_3", "19 °C"),
            ]
        )
        assert codec.notes(given) == ()

    def test_an_id_of_an_earlier_turn_is_not_used_again_in_responses(self) -> None:
        given = [
            model_message(WEATHER),
            tool_message("call_1", "18 °C"),
            model_message(WEATHER),
            tool_message("call_1", "19 °C"),
        ]
        items = RESPONSES.render([user_message("?"), *given])["input"]
        assert [item.get("call_id") for item in items] == [None, "call_1", "call_1", "2", "2"]
        assert RESPONSES.notes(given) == ("calls with one id get ids of their own",)

    @both
    def test_a_call_without_an_answer_and_an_answer_without_a_call(
        self, codec: OpenAIChat | OpenAIResponses
    ) -> None:
        given = [model_message(WEATHER), user_message("and?"), tool_message("call_9", "found")]
        assert comparable_messages(codec.normal(given)) == comparable_messages(
            [
                given[0],
                tool_message("call_1", "no result: interrupted"),
                given[1],
                user_message("<tool_result>\nfound\n</tool_result>"),
            ]
        )
        assert codec.notes(given) == (
            "a tool call without a result gets one that says so",
            "a tool result without a call is shown as text of the user",
        )

    @both
    def test_two_calls_with_one_id_are_told_apart(self, codec: OpenAIChat | OpenAIResponses) -> None:
        given = [
            model_message(WEATHER, replace(WEATHER, arguments="{}")),
            tool_message("call_1", "b"),
            tool_message("call_1", "a"),
        ]
        found = codec.normal(given)
        calls = [part.call_id for part in found[0].parts if isinstance(part, ToolCall)]
        assert len(set(calls)) == 2
        assert comparable_messages(found[1:]) == comparable_messages(
            [tool_message(calls[0], "b"), tool_message(calls[1], "a")]
        )
        assert "calls with one id get ids of their own" in codec.notes(given)

    @both
    def test_long_ids_and_odd_names_of_tools_are_made_to_fit(
        self, codec: OpenAIChat | OpenAIResponses
    ) -> None:
        given = [model_message(ToolCall("x" * 80, "files/read me", "{}")), tool_message("x" * 80, "text")]
        call, result = codec.normal(given)
        assert isinstance(call.parts[0], ToolCall)
        assert isinstance(result.parts[0], ToolResult)
        assert call.parts[0].name == "files_read_me"
        assert call.parts[0].call_id == result.parts[0].call_id
        assert len(call.parts[0].call_id) == codec.id_chars
        codec.render(given)

    @both
    def test_what_cannot_be_sent_is_said(self, codec: OpenAIChat | OpenAIResponses) -> None:
        given = [
            user_message(""),
            model_message(Reasoning("hm", "sig"), "yes"),
            model_message(Raw("anthropic", "{}"), "no"),
            model_message(WEATHER),
            make_message(Role.TOOL, ToolResult("call_1", "gone", is_error=True)),
            make_message(Role.SYSTEM, "rules", name="not a name"),
            user_message("hello", name="José Núñez"),
            user_message(ToolCall("call_3", "search", "{}")),
        ]
        assert comparable_messages(codec.normal(given)) == comparable_messages(
            [
                model_message("yes"),
                model_message("no", WEATHER) if codec is RESPONSES else model_message("no"),
                *([] if codec is RESPONSES else [model_message(WEATHER)]),
                tool_message("call_1", "gone"),
                system_message("rules"),
                user_message("José Núñez: hello"),
                user_message("search({})"),
            ]
        )
        assert set(codec.notes(given)) == {
            "a message with nothing to send is left out",
            "reasoning is left out",
            "items that this API does not take are left out",
            "whether a tool result is an error is not sent",
            "a name the API has no field for is left out",
            "a tool call outside an assistant message is shown as text",
        }

    @both
    def test_sources_stay_with_their_text(self, codec: OpenAIChat | OpenAIResponses) -> None:
        given = [
            make_message(Role.ASSISTANT, "let me look", sources=("m_1",)),
            make_message(Role.ASSISTANT, WEATHER, sources=("m_2",), group="g1"),
            make_message(Role.TOOL, ToolResult("call_1", "a", True), sources=("m_3",), group="g1"),
        ]
        found = codec.normal(given)
        assert [id for one in found for id in one.sources] == ["m_1", "m_2", "m_3"]
        assert found[-2].group == found[-1].group == "g1"

    def test_calls_join_the_text_before_them_in_responses(self) -> None:
        given = [model_message("Let me look."), model_message(WEATHER), tool_message("call_1", "18 °C")]
        assert comparable_messages(RESPONSES.normal(given)) == comparable_messages(
            [model_message("Let me look.", WEATHER), given[2]]
        )
        assert comparable_messages(CHAT.normal(given)) == comparable_messages(given)

    def test_texts_and_errors_of_a_tool_message_are_its_output(self) -> None:
        given = [model_message(WEATHER), make_message(Role.TOOL, "warning", ToolResult("call_1", "18 °C"))]
        assert comparable_messages(CHAT.normal(given)) == comparable_messages(
            [given[0], tool_message("call_1", "warning\n18 °C")]
        )


class TestVerbatim:
    REASONING = '{"encrypted_content":"gAAAAAB","id":"rs_1","summary":[],"type":"reasoning"}'

    def test_items_of_responses_are_sent_as_they_are(self) -> None:
        given = [user_message("hi"), model_message(Raw("openai-responses", self.REASONING), "hello")]
        assert RESPONSES.render(given)["input"][1:] == [
            json.loads(self.REASONING),
            {"type": "message", "role": "assistant", "content": "hello"},
        ]
        assert RESPONSES.notes(given) == ()
        assert CHAT.notes(given) == ("items that this API does not take are left out",)

    def test_reasoning_that_nothing_follows_is_left_out(self) -> None:
        given = [
            user_message("hi"),
            model_message(Raw("openai-responses", self.REASONING)),
            user_message("there?"),
        ]
        assert comparable_messages(RESPONSES.normal(given)) == comparable_messages([given[0], given[2]])
        assert RESPONSES.notes(given) == ("reasoning that nothing follows is left out",)

    def test_a_message_with_more_than_a_text_is_kept_whole(self) -> None:
        item = {
            "content": [{"annotations": [], "text": "hello", "type": "output_text"}],
            "id": "msg_1",
            "phase": "final_answer",
            "role": "assistant",
            "status": "completed",
            "type": "message",
        }
        given = [user_message("hi"), model_message(Raw("openai-responses", json.dumps(item)))]
        assert RESPONSES.render(given)["input"][1] == item

    def test_calls_kept_verbatim_are_paired_like_others(self) -> None:
        call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{}"}
        given = [
            model_message(Raw("openai-responses", json.dumps(call))),
            user_message("?"),
            tool_message("call_1", "done"),
        ]
        kept = model_message(ToolCall("call_1", "f", "{}"))
        assert comparable_messages(RESPONSES.normal(given)) == comparable_messages([kept, given[2], given[1]])
        told = {"type": "function_call_output", "id": "fo_1", "call_id": "call_1", "output": "done"}
        given[2] = make_message(Role.TOOL, Raw("openai-responses", json.dumps(told)))
        assert comparable_messages(RESPONSES.normal(given)) == comparable_messages(
            [kept, tool_message("call_1", "done"), given[1]]
        )

    def test_what_the_agents_sdk_has_stored_is_sent_once(self) -> None:
        said = '{"role": "assistant", "content": [{"type": "output_text", "text": "hello"}]}'
        given = [
            model_message(Raw("openai", self.REASONING)),
            model_message("hello", Raw("openai", said)),
        ]
        assert [item["type"] for item in RESPONSES.render(given)["input"]] == ["reasoning", "message"]

    def test_parts_of_chat_are_sent_as_they_are(self) -> None:
        sound = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
        given = [user_message("listen", Raw("openai-chat", json.dumps(sound)))]
        assert CHAT.render(given)["messages"][0]["content"] == [{"type": "text", "text": "listen"}, sound]

    def test_a_refusal_is_a_part_of_its_own(self) -> None:
        given = {"role": "assistant", "content": "hm", "refusal": "no"}
        (found,) = CHAT.parse({"messages": [given]})
        assert found.parts == (Text("hm"), Raw("openai-chat", '{"refusal":"no","type":"refusal"}'))
        assert CHAT.render([found])["messages"][0]["content"] == [
            {"type": "text", "text": "hm"},
            {"type": "refusal", "refusal": "no"},
        ]

    def test_the_output_of_a_call_is_read_as_text_with_its_media(self) -> None:
        output = [
            {"type": "input_text", "text": "see"},
            {"type": "input_image", "image_url": "https://example.com/a.png"},
            {"type": "input_image", "image_url": "https://example.com/b.png", "detail": "high"},
        ]
        found = RESPONSES.parse({"input": [ASKS, {**GETS, "output": output}]})
        image = Media("image/*", "https://example.com/a.png")
        assert comparable_messages(found[1:]) == comparable_messages(
            [make_message(Role.TOOL, ToolResult("call_1", "see"), image)]
        )

    @pytest.mark.parametrize(
        "item",
        [
            {"type": "function_call", "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1"},
            {"role": "tool", "content": "hi"},
            {"role": "user", "content": []},
        ],
        ids=["call", "output", "role", "content"],
    )
    def test_items_that_are_broken_are_left_out(self, item: dict[str, Any]) -> None:
        given = [user_message("hi", Raw("openai-responses", json.dumps(item)))]
        assert comparable_messages(RESPONSES.normal(given)) == comparable_messages([user_message("hi")])
        assert RESPONSES.notes(given) == ("items that the API would refuse are left out",)

    def test_an_item_between_two_texts_parts_them(self) -> None:
        search = '{"id":"ws_1","status":"completed","type":"web_search_call"}'
        given = [
            make_message(
                Role.ASSISTANT, "Let me look.", Raw("openai-responses", search), "Found.", sources=("m_1",)
            )
        ]
        found = RESPONSES.normal(given)
        kept = Raw("openai-responses", search)
        assert comparable_messages(found) == comparable_messages(
            [model_message("Let me look."), model_message(kept, "Found.")]
        )
        assert [one.sources for one in found] == [("m_1",), ("m_1",)]
        count = RESPONSES.count(RESPONSES.render(given))
        assert count.tokens == RESPONSES.base() + RESPONSES.cost(given[0])

    def test_items_are_the_models_whoevers_message_they_were_in(self) -> None:
        kept = Raw("openai-responses", '{"id":"ws_1","status":"completed","type":"web_search_call"}')
        more = Raw("openai-responses", '{"id":"ws_2","status":"completed","type":"web_search_call"}')
        image = Media("image/png", "https://example.com/a.png")
        assert comparable_messages(
            RESPONSES.normal([user_message("look", image, kept), user_message(more)])
        ) == comparable_messages([user_message("look", image), model_message(kept, more)])

    def test_of_items_only_the_reasoning_that_nothing_follows_is_left_out(self) -> None:
        kept = Raw("openai-responses", '{"id":"ws_1","status":"completed","type":"web_search_call"}')
        given = [
            user_message("hi"),
            model_message(kept, Raw("openai-responses", self.REASONING)),
            user_message("there?"),
        ]
        assert comparable_messages(RESPONSES.normal(given)) == comparable_messages(
            [given[0], model_message(kept), given[2]]
        )

    def test_a_message_of_the_user_with_more_than_parts_hold_is_kept_whole(self) -> None:
        parts = [{"type": "input_text", "text": "q"}, {"type": "input_audio", "input_audio": {"data": "AA"}}]
        payload = {"input": [{"role": "user", "content": parts}]}
        assert RESPONSES.render(RESPONSES.parse(payload)) == payload

    @pytest.mark.parametrize("written", ["not JSON", "[]", '{"type": "text"', '{"type": "file", "n": NaN}'])
    @both
    def test_what_is_no_object_is_left_out(self, codec: OpenAIChat | OpenAIResponses, written: str) -> None:
        given = [user_message("hi", Raw(codec.name, written))]
        assert comparable_messages(codec.normal(given)) == comparable_messages([user_message("hi")])


@pytest.mark.parametrize(
    "codec", [OpenAIChat("gpt-6-sol"), OpenAIResponses("gpt-5.6-sol")], ids=["chat", "responses"]
)
@given(
    messages=st.one_of(prompts.generated_conversations(), prompts.wild), tools=prompts.tools, data=st.data()
)
def test_what_is_rendered_is_read_back_as_the_normal_form(
    codec: OpenAIChat | OpenAIResponses, messages: list[PromptMessage], tools: list[Tool], data: st.DataObject
) -> None:
    normal = codec.normal(messages)
    assert codec.normal(normal) == normal
    marks = data.draw(prompts.cache_marks(len(messages)))
    if not normal:
        with pytest.raises(PayloadError, match="at least one message"):
            codec.render(messages, tools=tools, marks=marks)
        return
    payload = codec.render(messages, tools=tools, marks=marks)
    assert codec.render(messages, tools=tools, marks=marks) == payload
    assert json.loads(json.dumps(payload, allow_nan=False)) == payload
    assert comparable_messages(codec.parse(payload)) == comparable_messages(normal)


# ── the prompt cache ────────────────────────────────────────────────────────────────────────────────────────────────


class TestMarks:
    def key(self, messages: Sequence[PromptMessage], *marks: CacheMark, model: str = "gpt-5") -> str:
        return OpenAIChat(model).render(messages, marks=marks)["prompt_cache_key"]

    def test_the_key_names_the_prefix_and_its_content(self) -> None:
        mark = CacheMark(messages=1, id="rules", version="v2")
        key = self.key([system_message("Be brief."), user_message("hi")], mark)
        assert key.startswith("acms:rules:v2:")
        assert len(key) == len("acms:rules:v2:") + 16
        assert key == self.key([system_message("Be brief."), user_message("something else")], mark)
        assert key != self.key([system_message("Be long."), user_message("hi")], mark)
        assert key != self.key([system_message("Be brief."), user_message("hi")], replace(mark, version="v3"))

    def test_tools_are_part_of_every_prefix(self) -> None:
        mark = CacheMark(messages=0)
        payloads = [CHAT.render([user_message("hi")], tools=tools, marks=[mark]) for tools in ((), TOOLS)]
        assert payloads[0]["prompt_cache_key"] != payloads[1]["prompt_cache_key"]

    def test_the_key_is_never_longer_than_the_api_allows(self) -> None:
        marks = [CacheMark(messages=1, id="x" * 60), CacheMark(messages=1, id="x" * 60, version="y")]
        keys = {self.key([system_message("Be brief.")], mark) for mark in marks}
        assert len(keys) == 2
        assert all(len(key) <= 64 for key in keys)

    def test_a_prefix_ends_before_what_came_late(self) -> None:
        given = [
            system_message("Be brief."),
            model_message(WEATHER),
            user_message("and?"),
            tool_message("call_1", "18 °C"),
        ]
        mark = CacheMark(messages=3)
        assert self.key(given, mark) == self.key(given, replace(mark, messages=1))

    @pytest.mark.parametrize(
        ("model", "ttl", "retention"),
        [
            ("gpt-5.1", 86_400, "24h"),
            ("gpt-5.1", 3_600, None),
            ("gpt-5.1", None, None),
            ("gpt-4.1-2025-04-14", 7_200, "24h"),
            ("gpt-4o", 86_400, None),
            ("gpt-5-mini", 86_400, None),
            ("gpt-5.6-sol", 86_400, None),
        ],
    )
    def test_a_day_is_asked_for_where_it_can_be(
        self, model: str, ttl: int | None, retention: str | None
    ) -> None:
        for codec in (OpenAIChat(model), OpenAIResponses(model)):
            payload = codec.render([system_message("Be brief.")], marks=[CacheMark(messages=1, ttl=ttl)])
            assert payload.get("prompt_cache_retention") == retention

    @pytest.mark.parametrize(("ttl", "options"), [(None, None), (1_800, None), (3_600, {"ttl": "12h"})])
    def test_newer_models_keep_half_an_hour_or_half_a_day(
        self, ttl: int | None, options: dict[str, str] | None
    ) -> None:
        codec = OpenAIResponses("gpt-6-sol")
        payload = codec.render([system_message("Be brief.")], marks=[CacheMark(messages=1, ttl=ttl)])
        assert payload.get("prompt_cache_options") == options

    def test_newer_models_get_breakpoints(self) -> None:
        given = [system_message("Be brief."), user_message("hi"), model_message("hello"), user_message("bye")]
        marks = [CacheMark(messages=1), CacheMark(messages=3)]
        end = {"prompt_cache_breakpoint": {"mode": "explicit"}}
        chat = OpenAIChat("gpt-5.6-sol")
        payload = chat.render(given, marks=marks)
        assert payload["messages"] == [
            {"role": "system", "content": [{"type": "text", "text": "Be brief.", **end}]},
            # What the model wrote takes no mark: the nearest message before it does.
            {"role": "user", "content": [{"type": "text", "text": "hi", **end}]},
            {"role": "assistant", "content": "hello"},
            {"role": "user", "content": "bye"},
        ]
        responses = OpenAIResponses("gpt-5.6-sol")
        written = responses.render(given, marks=marks)["input"]
        assert written[0]["content"] == [{"type": "input_text", "text": "Be brief.", **end}]
        assert written[2] == {"type": "message", "role": "assistant", "content": "hello"}
        assert chat.count(payload) == chat.count(chat.render(given))
        assert comparable_messages(chat.parse(payload)) == comparable_messages(given)

    def test_results_can_end_a_prefix(self) -> None:
        given = [
            user_message("hi"),
            model_message(WEATHER),
            tool_message("call_1", "18 °C"),
            user_message("thanks"),
        ]
        end = {"prompt_cache_breakpoint": {"mode": "explicit"}}
        chat = OpenAIChat("gpt-6-sol").render(given, marks=[CacheMark(messages=3)])
        assert chat["messages"][2]["content"] == [{"type": "text", "text": "18 °C", **end}]
        codec = OpenAIResponses("gpt-6-sol")
        payload = codec.render(given, marks=[CacheMark(messages=3)])
        assert payload["input"][2]["output"] == [{"type": "input_text", "text": "18 °C", **end}]
        assert comparable_messages(codec.parse(payload)) == comparable_messages(given)

    def test_a_request_writes_three_of_its_own_at_most(self) -> None:
        given = [user_message(str(number)) for number in range(8)]
        marks = [CacheMark(messages=number) for number in range(1, 7)]
        payload = OpenAIChat("gpt-6-sol").render(given, marks=marks)
        assert [isinstance(one["content"], list) for one in payload["messages"]] == [
            False, False, False, True, True, True, False, False,
        ]  # fmt: skip

    @both
    @pytest.mark.parametrize("messages", [-1, 2])
    def test_a_mark_lies_within_the_messages(
        self, codec: OpenAIChat | OpenAIResponses, messages: int
    ) -> None:
        with pytest.raises(ValidationError) as caught:
            codec.render([user_message("hi")], marks=[CacheMark(messages=messages)])
        assert caught.value.field == "marks[0].messages"


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────────────

HI = {"role": "user", "content": "hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLS = {"role": "assistant", "tool_calls": [CALL]}
DONE = {"role": "tool", "tool_call_id": "call_1", "content": "done"}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


class TestChatRefuses:
    @pytest.mark.parametrize(
        ("messages", "field"),
        [
            (None, "messages"),
            ([], "messages"),
            (["hi"], "messages[0].role"),
            ([{"role": "critic", "content": "hi"}], "messages[0].role"),
            ([{"role": "user"}], "messages[0].content"),
            ([{"role": "user", "content": None}], "messages[0].content"),
            ([{"role": "user", "content": []}], "messages[0].content"),
            ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
            ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].image_url"),
            (
                [{"role": "system", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
                "messages[0].content[0].type",
            ),
            ([{**HI, "name": "José"}], "messages[0].name"),
            ([{**HI, "tool_calls": [CALL]}], "messages[0].tool_calls"),
            ([{"role": "assistant", "content": None}], "messages[0].content"),
            ([{"role": "assistant", "content": "x", "tool_calls": []}], "messages[0].tool_calls"),
            ([{**CALLS, "tool_calls": [{**CALL, "id": ""}]}], "messages[0].tool_calls[0].id"),
            ([{**CALLS, "tool_calls": [{**CALL, "id": "x" * 41}]}], "messages[0].tool_calls[0].id"),
            ([{**CALLS, "tool_calls": [{**CALL, "type": "custom"}]}], "messages[0].tool_calls[0].type"),
            ([{**CALLS, "tool_calls": [CALL, CALL]}], "messages[0].tool_calls[1].id"),
            (
                [{**CALLS, "tool_calls": [{**CALL, "function": {"name": "f"}}]}],
                "messages[0].tool_calls[0].function",
            ),
            (
                [{**CALLS, "tool_calls": [{**CALL, "function": {"name": "f g", "arguments": ""}}]}],
                "messages[0].tool_calls[0].function.name",
            ),
            ([DONE], "messages[0].tool_call_id"),
            ([HI, CALLS], "messages"),
            ([HI, CALLS, HI, DONE], "messages[2]"),
            ([HI, CALLS, DONE, DONE], "messages[3].tool_call_id"),
            ([HI, CALLS, {**DONE, "tool_call_id": "call_2"}], "messages[2].tool_call_id"),
            ([HI, CALLS, {**DONE, "tool_call_id": None}], "messages[2].tool_call_id"),
            ([HI, CALLS, {**DONE, "name": "f"}], "messages[2].name"),
        ],
    )
    def test_messages_that_break_a_rule(self, messages: Any, field: str) -> None:
        with pytest.raises(PayloadError) as caught:
            CHAT.check({"messages": messages})
        assert caught.value.field == field

    def test_nothing_that_keeps_them(self) -> None:
        CHAT.check(
            {"messages": [HI, CALLS, DONE, {"role": "assistant", "content": "ok"}], "tools": [FUNCTION]}
        )

    def test_a_payload_of_another_api(self) -> None:
        with pytest.raises(PayloadError, match="no payload of Chat Completions"):
            CHAT.parse({"input": "hi"})


@both
@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ([Tool(name="a b")], "tools[0].name"),
        ([Tool(name="f"), Tool(name="f")], "tools[1].name"),
        ([Tool(name="f", parameters={"type": "array"})], "tools[0].parameters"),
        ([Tool(name="f", parameters={"type": "object"}, strict=True)], "tools[0].parameters"),
        ([Tool(name=f"f{number}") for number in range(129)], "tools"),
    ],
    ids=["name", "twice", "no object", "not closed", "too many"],
)
def test_tools_that_the_api_refuses(
    codec: OpenAIChat | OpenAIResponses, tools: list[Tool], field: str
) -> None:
    with pytest.raises(PayloadError) as caught:
        codec.render([user_message("hi")], tools=tools)
    assert caught.value.field == field


@both
@pytest.mark.parametrize("tool", ["f", 7, None])
def test_what_is_no_tool_is_refused(codec: OpenAIChat | OpenAIResponses, tool: Any) -> None:
    with pytest.raises(PayloadError) as caught:
        codec.check({**codec.render([user_message("hi")]), "tools": [tool]})
    assert caught.value.field == "tools[0]"


def test_tools_of_the_providers_own_go_to_responses_only() -> None:
    own = [{"type": "web_search"}, {"type": "web_search"}]
    RESPONSES.check({"input": [SAID], "tools": own})
    with pytest.raises(PayloadError) as caught:
        CHAT.check({"messages": [HI], "tools": own})
    assert caught.value.field == "tools[0]"


@both
def test_a_key_that_is_too_long(codec: OpenAIChat | OpenAIResponses) -> None:
    payload = codec.render([user_message("hi")])
    with pytest.raises(PayloadError) as caught:
        codec.check({**payload, "prompt_cache_key": "x" * 65})
    assert caught.value.field == "prompt_cache_key"


SAID = {"role": "user", "content": "hi"}
ASKS = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
GETS = {"type": "function_call_output", "call_id": "call_1", "output": "done"}


class TestResponsesRefuses:
    @pytest.mark.parametrize(
        ("given", "field"),
        [
            (None, "input"),
            ("", "input"),
            ([], "input"),
            (["hi"], "input[0]"),
            ([{"type": 3}], "input[0].type"),
            ([{"role": "tool", "content": "hi"}], "input[0].role"),
            ([{"role": "user"}], "input[0].content"),
            ([{"role": "user", "content": []}], "input[0].content"),
            (
                [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}],
                "input[0].content[0].type",
            ),
            (
                [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}],
                "input[0].content[0].type",
            ),
            ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
            ([{**ASKS, "call_id": ""}], "input[0].call_id"),
            ([{**ASKS, "call_id": "x" * 65}], "input[0].call_id"),
            ([{**ASKS, "name": "f g"}], "input[0].name"),
            ([{**ASKS, "arguments": {}}], "input[0].arguments"),
            ([GETS], "input[0].call_id"),
            ([SAID, ASKS], "input[1]"),
            ([ASKS, ASKS, GETS], "input[1].call_id"),
            ([ASKS, GETS, GETS], "input[2].call_id"),
            ([ASKS, {**GETS, "output": None}], "input[1].output"),
        ],
    )
    def test_items_that_break_a_rule(self, given: Any, field: str) -> None:
        with pytest.raises(PayloadError) as caught:
            RESPONSES.check({"input": given})
        assert caught.value.field == field

    def test_nothing_that_keeps_them(self) -> None:
        RESPONSES.check({"input": [SAID, ASKS, {"type": "item_reference", "id": "rs_1"}, GETS]})

    def test_a_payload_of_another_api(self) -> None:
        with pytest.raises(PayloadError, match="no payload of Responses"):
            RESPONSES.parse({"messages": [HI]})

    def test_a_text_is_a_message_of_the_user(self) -> None:
        assert comparable_messages(RESPONSES.parse({"input": "hi"})) == comparable_messages(
            [user_message("hi")]
        )
        assert RESPONSES.count({"input": "hi"}) == RESPONSES.count({"input": [SAID]})


@both
def test_parallel_calls_keep_the_order_in_which_they_were_handed_over(codec: Any) -> None:
    items = [
        {"role": "user", "content": "q"},
        *({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"} for id in ("c1", "c2")),
        *({"type": "function_call_output", "call_id": id, "output": id} for id in ("c1", "c2")),
        {"role": "user", "content": "n"},
    ]
    session = ACMS("s", open_storage("memory://"), None)
    for item in items:
        session.ingest(item)
    payload = Prompt(codec).history(session).render(budget=4_000).payload
    if codec is RESPONSES:
        assert [item.get("call_id") for item in payload["input"]] == [None, "c1", "c2", "c1", "c2", None]
    else:
        roles = [message["role"] for message in payload["messages"]]
        assert roles == ["user", "assistant", "tool", "tool", "user"]
    assert codec.normal(codec.parse(payload)) == codec.parse(payload)


def test_responses_gets_images_of_tools_and_the_phase_of_an_answer_back() -> None:
    plot = [
        {"type": "input_text", "text": "here is the plot"},
        {"type": "input_image", "detail": "auto", "image_url": "https://e.org/a.png"},
    ]
    said = {"type": "message", "role": "assistant", "phase": "commentary", "content": "I look."}
    session = ACMS("s", open_storage("memory://"), None)
    for item in (
        {"role": "user", "content": "q"},
        {**said, "id": "msg_1", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": plot},
    ):
        session.ingest(item)
    rendered = Prompt(RESPONSES).history(session).render(budget=20_000)
    assert rendered.payload["input"][1] == said
    assert rendered.payload["input"][3]["output"] == plot
    assert rendered.warnings == ()
    assert RESPONSES.normal(RESPONSES.parse(rendered.payload)) == RESPONSES.parse(rendered.payload)
    other = Prompt(CHAT).history(session).render(budget=20_000)
    assert other.payload["messages"][3]["content"] == "[image/*: https://e.org/a.png]\nhere is the plot"
