"""What the Messages API refuses is refused before it is sent, with the place at fault."""

from __future__ import annotations

import pytest

from acms import ConfigurationError
from acms.codecs import AnthropicMessages
from acms.errors import PayloadError
from acms.model import Json

NEW = AnthropicMessages("claude-opus-5")
OLD = AnthropicMessages("claude-sonnet-4-5")

HI = {"role": "user", "content": "hi"}
CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "out"}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "sig=="}
TEXT = {"type": "text", "text": "so"}
SCHEMA = {"type": "object"}


def assistant_message(*blocks: dict[str, Json]) -> dict[str, Json]:
    return {"role": "assistant", "content": list(blocks)}


def user_message(*blocks: dict[str, Json]) -> dict[str, Json]:
    return {"role": "user", "content": list(blocks)}


def cached_block(ttl: str | None = None, **more: Json) -> dict[str, Json]:
    return {**TEXT, "cache_control": {"type": "ephemeral", **({"ttl": ttl} if ttl else {}), **more}}


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [HI], "max_tokens": "many"}, "max_tokens"),
        ({"messages": [HI] * 100_001}, "messages"),
        ({"messages": [HI], "system": ["x"]}, "system[0]"),
        ({"messages": [HI], "system": ""}, "system[0].text"),
        ({"messages": [HI], "system": [RESULT]}, "system[0].type"),
        ({"messages": [assistant_message(TEXT), HI]}, "messages[0].role"),
        ({"messages": [{"role": "developer", "content": "hi"}]}, "messages[0]"),
        ({"messages": [user_message()]}, "messages[0].content"),
        ({"messages": [user_message({"type": "text", "text": " \n"})]}, "messages[0].content[0].text"),
        ({"messages": [user_message(CALL)]}, "messages[0].content[0].type"),
        ({"messages": [HI, assistant_message(RESULT), HI]}, "messages[1].content[0].type"),
        ({"messages": [HI, assistant_message(CALL), HI]}, "messages[2].content"),
        ({"messages": [HI, assistant_message(CALL)]}, "messages[1]"),
        ({"messages": [HI, assistant_message(CALL), user_message(TEXT, RESULT)]}, "messages[2].content"),
        ({"messages": [HI, assistant_message(CALL), user_message(RESULT, RESULT)]}, "messages[2].content"),
        ({"messages": [user_message(RESULT)]}, "messages[0].content"),
        ({"messages": [HI, assistant_message(CALL, TEXT), user_message(RESULT)]}, "messages[1].content[1]"),
        (
            {"messages": [HI, assistant_message(CALL, CALL), user_message(RESULT, RESULT)]},
            "messages[1].content[1].id",
        ),
        (
            {"messages": [HI, assistant_message({**CALL, "id": "a b"}), user_message(RESULT)]},
            "messages[1].content[0].id",
        ),
        (
            {"messages": [HI, assistant_message({**CALL, "name": "a.b"}), user_message(RESULT)]},
            "messages[1].content[0].name",
        ),
        (
            {"messages": [HI, assistant_message({**CALL, "input": "{}"}), user_message(RESULT)]},
            "messages[1].content[0].input",
        ),
        ({"messages": [HI, assistant_message(TEXT, THOUGHT), HI]}, "messages[1].content[0].type"),
        ({"messages": [HI, assistant_message(THOUGHT), HI]}, "messages[1].content[0].type"),
        (
            {"messages": [HI, assistant_message({**THOUGHT, "signature": ""}, TEXT), HI]},
            "messages[1].content[0].signature",
        ),
        ({"messages": [HI, {"role": "system", "content": "x"}, HI]}, "messages[1].role"),
        ({"messages": [HI, assistant_message(TEXT), {"role": "system", "content": "x"}]}, "messages[2].role"),
        ({"messages": [HI], "tools": [{"name": "a.b", "input_schema": SCHEMA}]}, "tools[0].name"),
        ({"messages": [HI], "tools": [{"name": "a", "input_schema": SCHEMA}] * 2}, "tools[1].name"),
        ({"messages": [HI], "tools": [{"name": "a", "input_schema": {}}]}, "tools[0].input_schema"),
        (
            {"messages": [HI], "tools": [{"name": "a", "input_schema": {**SCHEMA, "anyOf": []}}]},
            "tools[0].input_schema",
        ),
        (
            {"messages": [HI], "tools": [{"name": "a", "input_schema": SCHEMA, "strict": True}]},
            "tools[0].input_schema",
        ),
        ({"messages": [user_message(*[cached_block()] * 5)]}, "messages[0].content[4]"),
        ({"messages": [user_message(cached_block("5m"), cached_block("1h"))]}, "messages[0].content[1]"),
        ({"messages": [user_message(cached_block("2h"))]}, "messages[0].content[0]"),
        (
            {
                "messages": [
                    HI,
                    assistant_message({**THOUGHT, "cache_control": {"type": "ephemeral"}}, TEXT),
                    HI,
                ]
            },
            "messages[1].content[0]",
        ),
    ],
)
def test_what_the_provider_refuses_is_refused_here(payload: dict[str, Json], field: str) -> None:
    with pytest.raises(PayloadError) as refused:
        NEW.check(payload)
    assert refused.value.field == field


def test_later_rules_are_refused_for_models_that_do_not_take_them() -> None:
    payload = {"messages": [HI, {"role": "system", "content": "x"}]}
    NEW.check(payload)
    with pytest.raises(PayloadError) as refused:
        OLD.check(payload)
    assert refused.value.field == "messages[1].role"


def test_an_answer_to_go_on_with_leaves_no_call_open() -> None:
    OLD.check({"messages": [HI, assistant_message(TEXT)]})
    with pytest.raises(PayloadError, match="every tool call must have its result") as refused:
        OLD.check({"messages": [HI, assistant_message(CALL)]})
    assert refused.value.field == "messages[1]"


def test_tools_of_the_providers_own_need_a_name_and_no_schema() -> None:
    own = {"type": "web_search_20260318", "name": "web_search"}
    NEW.check({"messages": [HI], "tools": [own, {"name": "f", "input_schema": SCHEMA}]})
    for tools, field in (([{"type": own["type"]}], "tools[0].name"), ([own, own], "tools[1].name")):
        with pytest.raises(PayloadError) as refused:
            NEW.check({"messages": [HI], "tools": tools})
        assert refused.value.field == field


def test_an_answer_to_go_on_with_holds_no_reasoning_and_ends_in_a_word() -> None:
    for last in ({"role": "assistant", "content": "so "}, assistant_message(THOUGHT, TEXT)):
        with pytest.raises(PayloadError) as refused:
            OLD.check({"messages": [HI, last]})
        assert refused.value.field == "messages[1].content"


def test_an_unknown_bound_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        AnthropicMessages("claude-opus-5", bound="exact")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({}, "messages"),
        ({"input": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
    ],
)
def test_a_payload_of_another_format_is_not_read(payload: dict[str, Json], field: str) -> None:
    with pytest.raises(PayloadError) as refused:
        NEW.parse(payload)
    assert refused.value.field == field
