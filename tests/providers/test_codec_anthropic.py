"""How prompts become requests of the Messages API, and what they count."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import Media, Raw, Reasoning, Role, Text, ToolCall, ToolResult, ValidationError
from acms.codecs import AnthropicMessages, Calibration, Exactness, Tool, Usage
from acms.errors import PayloadError
from acms.log.provider_messages import EXTRA_FIELDS
from acms.model import Json, Part
from acms.prompt_types import CacheMark, PromptMessage
from acms.providers.codecs.anthropic_blocks import Sizes
from acms.providers.codecs.calibration import ADDED
from acms.providers.tokens import default_counter
from acms.text.chat_messages import NO_RESULT
from tests.providers.prompts import make_count

from .prompts import generated_conversations, wild

NEW = AnthropicMessages("claude-opus-5")
OLD = AnthropicMessages("claude-sonnet-4-5")


def make_message(role: str, *parts: Part | str, **more: Any) -> PromptMessage:
    found = tuple([Text(part) if isinstance(part, str) else part for part in parts])
    return PromptMessage(role=Role(role), parts=found, **more)


def comparable_contents(payload: dict[str, Json]) -> list[tuple[str, list[Any]]]:
    """Roles and, of every block, its text, or its type and what tells it apart."""

    def short(block: dict[str, Any]) -> Any:
        match block["type"]:
            case "text":
                return block["text"]
            case "tool_use":
                return ("call", block["id"])
            case "tool_result":
                return ("result", block["tool_use_id"], block.get("content", ""))
            case other:
                return other

    return [
        (message["role"], [short(block) for block in message["content"]]) for message in payload["messages"]
    ]


def cache_breakpoints(payload: dict[str, Json]) -> list[tuple[str, str | None]]:
    """The blocks that end a cached prefix, and how long each is kept."""
    blocks = [*payload.get("tools", []), *payload.get("system", [])]
    blocks += [block for message in payload["messages"] for block in message["content"]]
    return [
        (block.get("text") or block.get("name") or block["type"], block["cache_control"].get("ttl"))
        for block in blocks
        if "cache_control" in block
    ]


# ── what is sent ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_conversation_with_tools_is_one_request() -> None:
    payload = AnthropicMessages("claude-opus-5", max_tokens=1_024).render(
        [
            make_message("system", "Answer in one line."),
            make_message("developer", "Use metric units."),
            make_message("user", "How warm is it in Lyon?", name="sam"),
            make_message(
                "assistant", "Let me see.", ToolCall("toolu_1", "weather", '{"city":"Lyon"}'), group="g1"
            ),
            make_message("tool", ToolResult("toolu_1", "31 °C"), group="g1"),
            make_message("assistant", "31 °C."),
            make_message("user", "And in Nice?"),
        ],
        tools=[Tool(name="weather", description="Temperature of a city.", parameters={"type": "object"})],
        marks=[CacheMark(messages=2, ttl=86_400), CacheMark(messages=6)],
    )
    assert payload == {
        "max_tokens": 1_024,
        "tools": [
            {"name": "weather", "description": "Temperature of a city.", "input_schema": {"type": "object"}}
        ],
        "system": [
            {"type": "text", "text": "Answer in one line."},
            {
                "type": "text",
                "text": "Use metric units.",
                "cache_control": {"type": "ephemeral", "ttl": "1h"},
            },
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "sam: How warm is it in Lyon?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Lyon"}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "31 °C"}],
            },
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "31 °C.", "cache_control": {"type": "ephemeral"}}],
            },
            {"role": "user", "content": [{"type": "text", "text": "And in Nice?"}]},
        ],
    }
    json.dumps(payload)


def test_messages_of_one_role_are_joined_and_keep_their_sources() -> None:
    messages = [
        make_message("user", "one", sources=("m_1",)),
        make_message("user", "", sources=("m_2",)),
        make_message("user", "two", sources=("m_3",)),
    ]
    (joined,) = NEW.normal(messages)
    assert joined == make_message("user", "one", "two", sources=("m_1", "m_3"))


def test_the_name_of_a_user_stands_before_the_text_and_no_other_is_sent() -> None:
    image = Media("image/png", "https://example.com/a.png")
    messages = [
        make_message("user", "Hello.", name="sam"),
        make_message("user", image, name=" ann "),
        make_message("assistant", "Hi.", name="bot"),
        make_message("user", ToolResult("z", "out"), "", name="joe"),
    ]
    orphan = "<tool_result>\nout\n</tool_result>"
    assert comparable_contents(NEW.render(messages)) == [
        ("user", ["sam: Hello.", "ann:", "image"]),
        ("assistant", ["Hi."]),
        ("user", [orphan]),
    ]
    assert NEW.notes(messages[:2]) == ()
    assert NEW.notes(messages[:3]) == (
        "names are left out of messages that are not the user's: the format has no field for them",
    )
    assert NEW.notes([make_message("user", "Hello.")]) == ()


def test_later_rules_stay_where_the_model_takes_them_and_are_marked_elsewhere() -> None:
    messages = [
        make_message("user", "hi"),
        make_message("system", "Be brief."),
        make_message("assistant", "Yes."),
        make_message("user", "Go."),
    ]
    assert comparable_contents(NEW.render(messages))[1] == ("system", ["Be brief."])
    assert NEW.notes(messages) == ()
    told = "<system-reminder>\nBe brief.\n</system-reminder>"
    assert comparable_contents(OLD.render(messages))[0] == ("user", ["hi", told])
    assert "marked as a reminder" in OLD.notes(messages)[0]
    elsewhere = AnthropicMessages("claude-opus-5", system_messages=False)
    assert comparable_contents(elsewhere.render(messages))[0] == ("user", ["hi", told])


def test_rules_that_may_not_stand_between_two_messages_are_told_by_the_user() -> None:
    messages = [make_message("user", "hi"), make_message("system", "Be brief."), make_message("user", "Go.")]
    told = "<system-reminder>\nBe brief.\n</system-reminder>"
    assert comparable_contents(NEW.render(messages)) == [("user", ["hi", told, "Go."])]


def test_results_are_moved_behind_their_calls_in_the_order_of_the_calls() -> None:
    messages = [
        make_message("user", "Compare."),
        make_message("assistant", ToolCall("a", "search"), ToolCall("b", "search"), group="g"),
        make_message("tool", ToolResult("b", "second"), group="g"),
        make_message("user", "Hurry."),
        make_message("tool", ToolResult("a", "first", is_error=True), group="g"),
    ]
    payload = NEW.render(messages)
    assert comparable_contents(payload)[2] == (
        "user",
        [("result", "a", "first"), ("result", "b", "second"), "Hurry."],
    )
    assert payload["messages"][2]["content"][0]["is_error"] is True
    assert NEW.notes(messages) == ("late tool results are moved behind their calls",)


def test_of_calls_with_one_id_that_of_its_group_is_answered() -> None:
    messages = [
        make_message("user", "Go."),
        make_message("assistant", ToolCall("a", "search"), group="g1"),
        make_message("assistant", ToolCall("a", "read"), group="g2"),
        make_message("tool", ToolResult("a", "found"), group="g1"),
        make_message("tool", ToolResult("a", "text"), group="g2"),
    ]
    payload = NEW.render(messages)
    assert [block["name"] for block in payload["messages"][1]["content"]] == ["search", "read"]
    asked = [block["id"] for block in payload["messages"][1]["content"]]
    assert comparable_contents(payload)[2] == (
        "user",
        [("result", asked[0], "found"), ("result", asked[1], "text")],
    )


def test_a_call_without_a_result_gets_one_and_a_result_without_a_call_is_text() -> None:
    messages = [
        make_message("user", "Go."),
        make_message("assistant", ToolCall("a", "search")),
        make_message("tool", ToolResult("z", "found elsewhere")),
    ]
    orphan = "<tool_result>\nfound elsewhere\n</tool_result>"
    assert comparable_contents(NEW.render(messages))[2] == ("user", [("result", "a", NO_RESULT), orphan])
    assert len(NEW.notes(messages)) == 2


def test_calls_that_follow_calls_are_parallel_and_words_that_follow_are_said_after_the_results() -> None:
    messages = [
        make_message("user", "Go."),
        make_message("assistant", ToolCall("a", "search")),
        make_message("assistant", ToolCall("b", "search")),
        make_message("assistant", "Meanwhile."),
        make_message("tool", ToolResult("a", "1")),
        make_message("tool", ToolResult("b", "2")),
        make_message("user", "Well?"),
    ]
    assert comparable_contents(NEW.render(messages)) == [
        ("user", ["Go."]),
        ("assistant", [("call", "a"), ("call", "b")]),
        ("user", [("result", "a", "1"), ("result", "b", "2")]),
        ("assistant", ["Meanwhile."]),
        ("user", ["Well?"]),
    ]


def test_ids_used_twice_or_written_otherwise_are_replaced_the_same_way_each_time() -> None:
    def turn(id_: str, answer: str) -> list[PromptMessage]:
        return [
            make_message("assistant", ToolCall(id_, "files.read")),
            make_message("tool", ToolResult(id_, answer)),
        ]

    messages = [make_message("user", "Go."), *turn("call 1", "1"), *turn("call 1", "2"), *turn("i" * 70, "3")]
    payload = NEW.render(messages)
    assert payload == NEW.render(messages)
    said = [
        found for _, blocks in comparable_contents(payload) for found in blocks if isinstance(found, tuple)
    ]
    assert [found[1] for found in said[:4]] == ["call_1", "call_1", "call_1_2", "call_1_2"]
    assert [found[2] for found in said[1::2]] == ["1", "2", "3"]
    assert said[4][1] == said[5][1]
    assert len(said[4][1]) == 64
    assert payload["messages"][1]["content"][0]["name"] == "files_read"
    # The ids of what came before do not change when something is said.
    longer = NEW.render([*messages, *turn("call 1", "4")])
    assert longer["messages"][: len(payload["messages"])] == payload["messages"]


def test_an_id_used_thousands_of_times_is_replaced_in_linear_time() -> None:
    turn = [
        make_message("assistant", ToolCall("call_1", "search")),
        make_message("tool", ToolResult("call_1", "1")),
    ]
    payload = NEW.render([make_message("user", "Go."), *(turn * 3_000)])
    ids = [found[1] for _, blocks in comparable_contents(payload) for found in blocks if found[0] == "call"]
    assert len(set(ids)) == 3_000


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ('{ "q": "\\u00e9", "n": 1.50 }', {"q": "é", "n": 1.5}),
        ("", {}),
        ("[1]", {"_raw": "[1]"}),
        ('{"cut": "off', {"_raw": '{"cut": "off'}),
        ('{"n": NaN}', {"_raw": '{"n": NaN}'}),
        ('{"n": 1e400}', {"_raw": '{"n": 1e400}'}),
        ('{"half": "\\ud83d"}', {"_raw": '{"half": "\\ud83d"}'}),
        ('{"a": ' + "[" * 100_000, {"_raw": '{"a": ' + "[" * 100_000}),
    ],
)
def test_arguments_are_sent_as_an_object(written: str, sent: dict[str, Json]) -> None:
    messages = [make_message("user", "Go."), make_message("assistant", ToolCall("a", "search", written))]
    payload = NEW.render(messages)
    assert payload["messages"][1]["content"][0]["input"] == sent
    assert any("_raw" in note for note in NEW.notes(messages)) == ("_raw" in sent)


def test_signed_reasoning_is_sent_back_where_the_model_takes_it() -> None:
    hidden = Raw("anthropic", '{"type":"redacted_thinking","data":"EmwK"}')
    messages = [
        make_message("user", "Think."),
        make_message("assistant", Reasoning("Hm.", "sig=="), hidden, "Done.", Reasoning("unsigned")),
        make_message("user", "Sure?"),
    ]
    payload = NEW.render(messages)
    assert payload["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "sig=="},
        {"type": "redacted_thinking", "data": "EmwK"},
        {"type": "text", "text": "Done."},
    ]
    assert NEW.notes(messages) == ("reasoning without the provider's signature is left out",)
    unknown = AnthropicMessages("a-model-behind-a-gateway")
    assert comparable_contents(unknown.render(messages))[1] == ("assistant", ["Done."])
    assert "not known" in unknown.notes(messages)[0]
    told = AnthropicMessages("a-model-behind-a-gateway", reasoning=True)
    assert comparable_contents(told.render(messages)) == comparable_contents(payload)


SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"encrypted_content": "AA"}]}


def raw_block(block: dict[str, Json]) -> Raw:
    return Raw("anthropic", json.dumps(block))


def test_calls_of_the_providers_own_tools_go_back_to_it_with_their_results() -> None:
    messages = [
        make_message("user", "q"),
        make_message("assistant", raw_block(SEARCH), raw_block(FOUND), "It is 7."),
        make_message("user", "n"),
    ]
    payload = NEW.render(messages)
    assert payload["messages"][1]["content"] == [SEARCH, FOUND, {"type": "text", "text": "It is 7."}]
    assert NEW.notes(messages) == ()
    assert NEW.parse(payload) == tuple([replace(one, sources=()) for one in NEW.normal(messages)])
    assert NEW.count(payload).tokens <= NEW.base() + sum(map(NEW.cost, messages))


def test_a_turn_that_the_provider_paused_goes_back_as_it_is() -> None:
    thought = Reasoning("hm", "c2ln")
    payload = NEW.render(
        [make_message("user", "q"), make_message("assistant", thought, "I search.", raw_block(SEARCH))]
    )
    assert [block["type"] for block in payload["messages"][1]["content"]] == [
        "thinking",
        "text",
        "server_tool_use",
    ]


def test_an_open_call_of_the_providers_own_tools_is_left_out_where_the_answer_went_on() -> None:
    prefilled = AnthropicMessages("claude-sonnet-4-5")
    answer = make_message("assistant", "I search.", raw_block(SEARCH), "It is")
    payload = prefilled.render([make_message("user", "q"), answer])
    assert payload["messages"][1]["content"] == [
        {"type": "text", "text": word} for word in ("I search.", "It is")
    ]
    assert len(prefilled.notes([make_message("user", "q"), answer])) == 1


def test_a_result_before_its_call_is_no_result_of_it() -> None:
    messages = [
        make_message("user", "q"),
        make_message("assistant", raw_block(FOUND), raw_block(SEARCH), "Well."),
        make_message("user", "n"),
    ]
    assert [kind for _, kinds in comparable_contents(NEW.render(messages)) for kind in kinds] == [
        "q",
        "Well.",
        "n",
    ]


def test_a_call_of_the_providers_own_tools_is_left_out_without_its_result_and_the_reverse() -> None:
    messages = [
        make_message("user", "q"),
        make_message("assistant", "I search.", raw_block(SEARCH)),
        make_message("user", "never mind"),
        make_message("assistant", raw_block({**FOUND, "tool_use_id": "srv_2"}), "Well."),
        make_message("user", "n"),
    ]
    assert [kind for _, kinds in comparable_contents(NEW.render(messages)) for kind in kinds] == [
        "q",
        "I search.",
        "never mind",
        "Well.",
        "n",
    ]
    assert len(NEW.notes(messages)) == 1


@pytest.mark.parametrize(
    "parts",
    [
        ("Said first.", Reasoning("Hm.", "sig==")),
        (Reasoning("Hm.", "sig=="),),
        ("Said first.", Reasoning("Hm.", "sig=="), "And then."),
    ],
)
def test_reasoning_is_left_out_where_it_does_not_begin_an_answer_or_ends_it(
    parts: tuple[Part | str, ...],
) -> None:
    messages = [
        make_message("user", "Think."),
        make_message("assistant", *parts),
        make_message("user", "Well?"),
    ]
    assert "thinking" not in json.dumps(NEW.render(messages))
    assert any(note.startswith("reasoning that does not begin") for note in NEW.notes(messages))


@pytest.mark.parametrize(
    ("media", "source"),
    [
        (
            Media("image/png", "https://example.com/a.png"),
            {"type": "url", "url": "https://example.com/a.png"},
        ),
        (
            Media("image/gif", "data:image/png;base64,iVBORw0KGgo="),
            {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
        ),
        (Media("application/pdf", "file_011CN"), {"type": "file", "file_id": "file_011CN"}),
    ],
)
def test_images_and_documents_are_sent_by_url_data_or_file(media: Media, source: dict[str, str]) -> None:
    messages = [make_message("user", media, "What is it?")]
    block = NEW.render(messages)["messages"][0]["content"][0]
    assert block["type"] == ("document" if media.mime == "application/pdf" else "image")
    assert block["source"] == source
    assert NEW.notes(messages) == ()


@pytest.mark.parametrize(
    ("media", "named"),
    [
        (Media("audio/wav", "https://example.com/a.wav"), "[audio/wav: https://example.com/a.wav]"),
        (Media("image/png", "file-abc123"), "[image/png: file-abc123]"),
        (Media("image/tiff", "data:image/tiff;base64,AAAA"), "[image/tiff]"),
    ],
)
def test_media_that_cannot_be_sent_are_named(media: Media, named: str) -> None:
    assert comparable_contents(NEW.render([make_message("user", media)])) == [("user", [named])]
    assert NEW.notes([make_message("user", media)]) == (
        "media that the format cannot hold are named in text",
    )


@pytest.mark.parametrize(
    "given",
    [
        {"type": "search_result", "source": "s", "title": "t", "content": 2},
        {"type": "document", "title": "t", "source": {"type": "content", "content": 2}},
        {"type": "document", "title": "t"},
        {"type": "text", "citations": [{"cited_text": "b"}]},
    ],
)
def test_a_frame_around_what_is_there_no_more_is_left_out_and_its_text_is_not(given: dict[str, Json]) -> None:
    messages = [make_message("user", "one text", Raw(EXTRA_FIELDS, json.dumps(given)))]
    assert comparable_contents(NEW.render(messages)) == [("user", ["one text"])]
    assert NEW.notes(messages) == ()


def test_a_conversation_that_begins_with_the_assistant_is_given_a_beginning() -> None:
    messages = [
        make_message("system", "Rules."),
        make_message("assistant", "As I said."),
        make_message("user", "Go on."),
    ]
    payload = NEW.render(messages)
    assert [role for role, _ in comparable_contents(payload)] == ["user", "assistant", "user"]
    assert NEW.count(payload).tokens == NEW.base() + sum(map(NEW.cost, messages))


def test_an_answer_to_go_on_with_is_sent_to_models_that_take_it() -> None:
    messages = [make_message("user", "Count."), make_message("assistant", "One, two, ")]
    assert comparable_contents(OLD.render(messages))[-1] == ("assistant", ["One, two,"])
    with pytest.raises(PayloadError) as refused:
        NEW.render(messages)
    assert refused.value.field == "messages[1]"
    assert refused.value.options[0] == "add a message of the user"


def test_a_prompt_without_a_message_is_refused() -> None:
    with pytest.raises(PayloadError) as refused:
        NEW.render([make_message("system", "Rules."), make_message("user", " ")])
    assert refused.value.field == "messages"
    assert refused.value.options


# ── cache marks ─────────────────────────────────────────────────────────────────────────────────────────────────────

TALK = [
    make_message("system", "s"),
    *[make_message(("user", "assistant")[at % 2], str(at)) for at in range(7)],
]


def test_marks_end_at_the_last_block_of_their_prefix() -> None:
    marks = [CacheMark(messages=0, ttl=60), CacheMark(messages=1), CacheMark(messages=3, ttl=60)]
    payload = NEW.render(TALK, tools=[Tool(name="f"), Tool(name="g")], marks=marks)
    assert cache_breakpoints(payload) == [("g", "5m"), ("s", None), ("1", "5m")]
    assert cache_breakpoints(NEW.render(TALK, marks=marks)) == [("s", None), ("1", "5m")]
    assert cache_breakpoints(NEW.render(TALK)) == []


def test_of_many_marks_the_first_and_the_last_three_are_kept() -> None:
    payload = NEW.render(TALK, marks=[CacheMark(messages=at) for at in range(1, 8)])
    assert cache_breakpoints(payload) == [("s", None), ("3", None), ("4", None), ("5", None)]


def test_what_stands_before_an_hour_is_kept_for_an_hour() -> None:
    marks = [CacheMark(messages=1, ttl=60), CacheMark(messages=3, ttl=3_600), CacheMark(messages=5, ttl=60)]
    assert cache_breakpoints(NEW.render(TALK, marks=marks)) == [("s", "1h"), ("1", "1h"), ("3", "5m")]


def test_a_mark_never_covers_what_was_moved_into_its_prefix() -> None:
    messages = [
        make_message("user", "Go."),
        make_message("assistant", ToolCall("a", "search")),
        make_message("user", "Hurry."),
        make_message("tool", ToolResult("a", "late")),
    ]
    assert cache_breakpoints(NEW.render(messages, marks=[CacheMark(messages=3)])) == [("search", None)]
    assert cache_breakpoints(NEW.render(messages, marks=[CacheMark(messages=4)])) == [("Hurry.", None)]


def test_a_mark_steps_back_from_reasoning() -> None:
    messages = [
        make_message("user", "Go."),
        make_message("assistant", Reasoning("Hm.", "sig==")),
        make_message("assistant", "Done."),
        make_message("user", "Well?"),
    ]
    assert cache_breakpoints(NEW.render(messages, marks=[CacheMark(messages=2)])) == [("Go.", None)]


@pytest.mark.parametrize(
    ("model", "least"),
    [
        ("claude-opus-5-5", 512),
        ("claude-fable-5-2", 512),
        ("claude-sonnet-5-5", 512),
        ("claude-haiku-5-5", 512),
        ("claude-sonnet-5", 1_024),
        ("claude-opus-4-8", 1_024),
        ("us.anthropic.claude-opus-4-7-v1:0", 2_048),
        ("claude-haiku-4-5-20251001", 4_096),
        ("claude-opus-4-20250514", 1_024),
        ("anthropic/claude-sonnet-4.6", 1_024),
        ("claude-3-5-haiku-latest", 2_048),
        ("claude-of-the-future", 4_096),
    ],
)
def test_a_prefix_is_cached_from_the_length_that_is_published_for_the_model(model: str, least: int) -> None:
    codec = AnthropicMessages(model)
    assert codec.cached(least) == least
    assert codec.cached(least - 1) == 0


# ── counts ──────────────────────────────────────────────────────────────────────────────────────────────────────────

WEATHER = Tool(
    name="get_weather",
    description="Get the current weather in a given location",
    parameters={
        "type": "object",
        "properties": {
            "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"}
        },
        "required": ["location"],
    },
)


@pytest.mark.parametrize(
    ("messages", "tools", "published"),
    [
        # platform.claude.com/docs/en/build-with-claude/working-with-messages, "Basic request and response"
        ([make_message("user", "Hello, Claude")], [], 12),
        # platform.claude.com/docs/en/build-with-claude/token-counting, for claude-opus-5: "Count tokens in basic
        # messages" and "Count tokens in messages with tools"
        ([make_message("system", "You are a scientist"), make_message("user", "Hello, Claude")], [], 14),
        ([make_message("user", "What's the weather like in San Francisco?")], [WEATHER], 403),
    ],
)
def test_published_counts_are_within_the_bound(
    messages: list[PromptMessage], tools: list[Tool], published: int
) -> None:
    for codec in (NEW, AnthropicMessages("claude-opus-5", bound="bytes")):
        count = codec.count(codec.render(messages, tools=tools))
        assert published <= count.upper_bound
        assert count.tokens <= count.upper_bound


def test_a_payload_from_elsewhere_is_counted_as_well() -> None:
    payload = {
        "system": "You are a scientist",
        "messages": [
            {"role": "user", "content": "Hello, Claude"},
            {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s", "name": "web_search"}]},
        ],
        "tools": [{"type": "web_search_20260318", "name": "web_search"}],
    }
    ours = NEW.count(
        NEW.render([make_message("system", "You are a scientist"), make_message("user", "Hello, Claude")])
    )
    assert NEW.count(payload).tokens > ours.tokens
    for block in (
        {"type": "thinking", "thinking": "Hm. " * 99},
        {"text": "no type " * 99},
    ):  # as all they say
        odd = {"messages": [payload["messages"][0], {"role": "assistant", "content": [block]}]}
        assert NEW.count(odd).tokens > 99 + NEW.count({"messages": odd["messages"][:1]}).tokens


@given(messages=st.one_of(generated_conversations(), wild))
def test_messages_cost_the_same_apart_and_joined(messages: list[PromptMessage]) -> None:
    for codec in (NEW, AnthropicMessages("claude-opus-5", bound="bytes")):
        try:
            payload = codec.render(messages)
        except PayloadError:
            continue
        # Also with calls that were never answered, and with text of the system that the user has to say.
        assert codec.count(payload).tokens <= codec.base() + sum(map(codec.cost, messages))


def test_tokens_that_are_known_are_not_counted_again() -> None:
    counter = default_counter().name
    text, output = "hello there " * 40, "out " * 40
    for role, part in (("user", Text(text)), ("system", Text(text)), ("tool", ToolResult("a", output))):
        message = make_message(role, part)
        tokens = default_counter().count(text if isinstance(part, Text) else output)
        known = replace(message, tokens=tokens, counter=counter)
        assert NEW.cost(known) == NEW.cost(message)
        assert NEW.cost(replace(known, tokens=tokens + 100)) >= NEW.cost(message) + 100
        assert NEW.cost(replace(known, tokens=1, counter="another")) == NEW.cost(message)


def test_media_cost_what_was_stated_else_the_most_they_are_likely_to() -> None:
    stated = make_message("user", Media("image/png", "https://example.com/a.png", tokens=85))
    codec = AnthropicMessages("claude-opus-5")
    payload = codec.render([stated])
    assert codec.count(payload).tokens == codec.base() + codec.cost(stated)
    assert codec.count(payload).tokens < 200
    assert AnthropicMessages("claude-opus-5").count(payload).tokens > 4_784
    assert OLD.count(payload).tokens < 1_700
    document = make_message("user", Media("application/pdf", "file_1"))
    assert codec.cost(document) > 10_000


def test_what_is_remembered_of_costs_is_bounded_and_changes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sizes, "KEPT", 2)
    codec = AnthropicMessages("claude-opus-5")
    payloads: list[dict[str, Json]] = []
    for at in (0, 1, 2, 3, 0):
        picture = Media("image/png", f"https://example.com/{at}.png", tokens=85)
        shown = make_message("user", picture, name=f"user {at}")
        assert codec.cost(shown) == AnthropicMessages("claude-opus-5").cost(shown)
        payloads.append(codec.render([shown]))
        assert codec.count(payloads[-1]).tokens <= codec.base() + codec.cost(shown)
    assert codec.count(payloads[1]).tokens > 4_784  # its picture is forgotten


def test_hidden_reasoning_costs_what_its_signature_holds() -> None:
    signed = make_message("assistant", Reasoning("", "s" * 4_000), "Done.")
    assert NEW.cost(signed) >= 1_000
    assert AnthropicMessages("claude-opus-5", reasoning=False).cost(signed) < 20


def test_a_bound_by_bytes_relies_on_no_tokenizer() -> None:
    codec = AnthropicMessages("claude-opus-5", bound="bytes")
    count = codec.count(codec.render([make_message("user", "Ⱦ" * 100)]))
    assert count.exactness is Exactness.BYTES
    assert count.tokens == count.upper_bound >= 600
    assert codec.limit(1_000) == 1_000
    codec.observe(count, Usage(input_tokens=5_000))
    assert codec.calibration.state() == Calibration(1).state()


def test_reports_bring_the_bound_to_what_the_provider_counts() -> None:
    codec = AnthropicMessages("claude-opus-5", margin=0)
    assert codec.limit(24_000) == (24_000 - ADDED) // 1.15
    for _ in range(codec.calibration.needed):
        codec.observe(
            make_count(10_000), codec.usage({"input_tokens": 2_000, "cache_read_input_tokens": 13_000})
        )
    assert codec.limit(24_000) == (24_000 - ADDED) // 1.5
    assert codec.limit(2_400) < 2_080
    codec.observe(make_count(10_000), Usage(input_tokens=0))
    assert codec.limit(24_000) == (24_000 - ADDED) // 1.5
    shared = AnthropicMessages("claude-opus-5", calibration=codec.calibration)
    assert shared.limit(24_000) == codec.limit(24_000)


@pytest.mark.parametrize(
    ("text", "earlier", "newer"),
    [
        # Counts of ctok 1.3.0 for forty lines, without the frame of a request.
        (
            "The deploy of the billing service failed again, so we rolled it back to Tuesday's version.",
            799,
            1199,
        ),
        ("def load(path):\n    with open(path) as file:\n        return json.load(file)\n", 999, 999),
        ('{"id": 4711, "status": "shipped", "items": [{"sku": "A-17", "count": 2}]}', 1359, 1559),
        ("Развёртывание не удалось, поэтому мы вернулись к прежней версии.", 1159, 1159),
        ("部署失败了，所以我们回到了以前的版本。", 800, 799),
        ("x" + " " * 640, 1679, 1679),
    ],
)
def test_each_kind_of_text_has_a_close_bound(text: str, earlier: int, newer: int) -> None:
    repeated = "\n".join([text] * 40)
    for model, tokens in (("claude-opus-4-5", earlier), ("claude-opus-5", newer)):
        codec = AnthropicMessages(model)
        empty = codec.count(codec.render([make_message("user", "a")])).upper_bound
        count = codec.count(codec.render([make_message("user", repeated)]))
        assert tokens <= count.upper_bound <= 1.5 * tokens + empty
        assert count.margin == count.upper_bound - count.tokens > 0


# ── what comes back ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_usage_is_read_with_what_the_cache_took() -> None:
    reported = {"input_tokens": 20, "cache_creation_input_tokens": 300, "cache_read_input_tokens": 4_000}
    expected = Usage(input_tokens=4_320, cached_tokens=4_000, written_tokens=300)
    assert NEW.usage(reported) == expected
    assert NEW.usage(SimpleNamespace(**reported, output_tokens=5)) == expected
    assert NEW.usage({"input_tokens": 20, "cache_creation_input_tokens": None}) == Usage(input_tokens=20)


def test_usage_is_read_from_the_package_itself() -> None:
    from anthropic import types

    usage = types.Usage(input_tokens=20, output_tokens=5, cache_read_input_tokens=4_000)
    assert NEW.usage(usage) == Usage(input_tokens=4_020, cached_tokens=4_000)


@pytest.mark.parametrize(
    "usage",
    [
        {},
        {"prompt_tokens": 5},
        {"input_tokens": 5, "output_tokens": 5, "total_tokens": 10},
        {"input_tokens": "5"},
        {"input_tokens": -1},
        None,
    ],
)
def test_usage_of_another_provider_is_refused(usage: object) -> None:
    with pytest.raises(ValidationError) as refused:
        NEW.usage(usage)
    assert refused.value.field.startswith("usage")


def test_a_payload_written_by_hand_is_read() -> None:
    payload = {
        "system": "Rules.",
        "messages": [
            {"role": "user", "content": "Go."},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {"q": 1}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "out"}]},
                    {"type": "text", "text": "Well?"},
                ],
            },
        ],
    }
    NEW.check(payload)
    assert NEW.parse(payload) == (
        make_message("system", "Rules."),
        make_message("user", "Go."),
        make_message("assistant", ToolCall("a", "f", '{"q": 1}')),
        make_message("tool", ToolResult("a", "out")),
        make_message("user", "Well?"),
    )
