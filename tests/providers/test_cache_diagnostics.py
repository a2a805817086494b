"""Reports of answers about the prompt cache and about edits, compared with the predictions for their requests.

`anthropic_answers.json` and `openai_answers.json` hold pairs of requests, by what they say, and the answer to the
second as the vendors document it: every reason for a miss, comparisons that are missing, pending or not possible, and
edits made on the server. `found` is whether forecast and diagnosis agree; null where the diagnosis says nothing of the
prompt.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from anthropic.types.beta import BetaMessage
from openai.types.responses import Response

from acms import ACMS, Raw, Reasoning, Role, Text, open_storage
from acms.codecs import (
    AnthropicMessages,
    Changed,
    Diagnosis,
    OpenAIChat,
    OpenAIResponses,
    Outcome,
    ServerEdit,
    Tool,
    Usage,
)
from acms.errors import PayloadError
from acms.model import Json
from acms.ports import Codec
from acms.prompt import Prompt, Rendered
from acms.prompt.cache_forecast import describe_cache_mismatch, diagnosis_agrees
from acms.prompt_types import CacheMark, CachePrediction, PromptMessage
from acms.providers.codecs.anthropic_turns import COMPACTION_MOVED, OLDER_COMPACTION_OMITTED

HERE = Path(__file__).parent
RECORDED: dict[str, list[dict[str, Any]]] = {
    vendor: json.loads((HERE / f"{vendor}_answers.json").read_text()) for vendor in ("anthropic", "openai")
}
CODECS = {"anthropic": AnthropicMessages, "openai": OpenAIResponses}
CASES = [
    pytest.param(vendor, case, id=f"{vendor}: {case['name']}")
    for vendor in RECORDED
    for case in RECORDED[vendor]
]


def text_about(topic: str) -> str:
    """Return a text of some 600 tokens."""
    return f"{topic}. " + " ".join([f"line {n} says {topic}" for n in range(120)])


def build_prompt(codec: Codec, request: dict[str, Any]) -> Prompt:
    """Return a request: `system`, `tools` and `turns` by their topics, `version` that of its cache hint."""
    found = Prompt(codec)
    if "system" in request:
        found = found.system(text_about(request["system"]))
    for at, topic in enumerate(request["turns"]):
        found = found.message(("user", "assistant")[at % 2], text_about(topic))
    found = found.cache_hint(id="agent", version=request.get("version", "1"))
    tools = [Tool(name=name, description=said) for name, said in request.get("tools", [])]
    return found.tools(tools) if tools else found


async def render_second_request(vendor: str, case: dict[str, Any]) -> Rendered:
    """Return the second request of a case, rendered after the first one."""
    before, after = case["before"], None
    if before is not None:
        after = await build_prompt(CODECS[vendor](before["model"]), before).render()
    return await build_prompt(CODECS[vendor](case["now"]["model"]), case["now"]).render(after=after)


@pytest.mark.parametrize(("vendor", "case"), CASES)
async def test_a_forecast_is_held_against_the_diagnosis_of_the_provider(
    vendor: str, case: dict[str, Any]
) -> None:
    rendered = await render_second_request(vendor, case)
    report = rendered.report(case["answer"])
    assert diagnosis_agrees(rendered.cache, report.usage, asked=True) is case["found"]
    said = describe_cache_mismatch(rendered.cache, report.usage, asked=True)
    assert bool(said) is case["missed"]
    diagnosis = report.usage.diagnosis
    if case["found"] is False:
        assert diagnosis is not None
        assert diagnosis.reason in said
        assert rendered.cache.reason in said


async def test_forecast_and_diagnoses_agree() -> None:
    for vendor, cases in RECORDED.items():
        found: list[bool] = []
        for case in cases:
            rendered = await render_second_request(vendor, case)
            agreed = diagnosis_agrees(rendered.cache, rendered.codec.usage(case["answer"]), asked=True)
            if agreed is not None:
                found.append(agreed)
        assert len(cases) >= 20
        assert len(found) >= 20
        assert sum(found) >= 0.95 * len(found)


def test_every_documented_reason_is_among_them() -> None:
    reasons = {
        vendor: {
            _reason_of_diagnosis(CODECS[vendor]("any").usage(case["answer"]).diagnosis) for case in cases
        }
        for vendor, cases in RECORDED.items()
    }
    assert reasons["anthropic"] >= {
        "model_changed",
        "system_changed",
        "tools_changed",
        "messages_changed",
        "previous_message_not_found",
        "unavailable",
        "pending",
    }
    assert reasons["openai"] >= {
        "model_changed",
        "prompt_cache_key_changed",
        "tools_changed",
        "text_format_changed",
        "reasoning_effort_changed",
        "verbosity_changed",
        "context_compacted",
        "input_changed",
        "service_tier_changed",
        "comparison_response_not_found",
        "unavailable",
    }


def _reason_of_diagnosis(diagnosis: Diagnosis | None) -> str:
    return "" if diagnosis is None else diagnosis.reason


@pytest.mark.parametrize(("vendor", "case"), CASES)
def test_answers_are_what_the_vendors_packages_read(vendor: str, case: dict[str, Any]) -> None:
    codec = CODECS[vendor](case["now"]["model"])
    made = BetaMessage if vendor == "anthropic" else Response
    assert codec.usage(made.model_validate(case["answer"])) == codec.usage(case["answer"])


def test_the_usage_alone_says_nothing_of_the_cache() -> None:
    for vendor, cases in RECORDED.items():
        for case in cases:
            usage = CODECS[vendor](case["now"]["model"]).usage(case["answer"]["usage"])
            assert (usage.diagnosis, usage.edits) == (None, ())


def test_a_reason_that_is_not_known_is_told_and_decides_nothing() -> None:
    answer = RECORDED["anthropic"][1]["answer"]
    reason = {"type": "weather_changed", "cache_missed_input_tokens": 7}
    usage = AnthropicMessages("claude-opus-5-5").usage(
        {
            **answer,
            "diagnostics": {"cache_miss_reason": reason},
        }
    )
    assert usage.diagnosis == Diagnosis(outcome=Outcome.MISS, reason="weather_changed", missed_tokens=7)


# ── what is asked ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_diagnostics_are_asked_for_in_the_payload() -> None:
    said = [PromptMessage(role=Role.USER, parts=(Text("Go."),))]
    claude = AnthropicMessages("claude-opus-5-5")
    payload = claude.render(said)
    assert claude.diagnosed(payload, None)["diagnostics"] == {"previous_message_id": None}
    asked = claude.diagnosed(payload, "msg_1")
    assert asked == {**payload, "diagnostics": {"previous_message_id": "msg_1"}}
    assert "diagnostics" not in payload
    claude.check(asked)
    assert claude.parse(asked) == claude.parse(payload)

    responses = OpenAIResponses("gpt-6.2-sol")
    kept = responses.render(said, marks=[CacheMark(messages=1, ttl=7_200)])
    assert responses.diagnosed(kept, None) == kept
    assert responses.diagnosed(kept, "resp_1")["prompt_cache_options"] == {
        "ttl": "12h",
        "comparison_response_id": "resp_1",
    }
    assert kept["prompt_cache_options"] == {"ttl": "12h"}
    for older in (OpenAIResponses("gpt-5.5"), OpenAIChat("gpt-6.2-sol")):
        assert older.diagnosed(older.render(said), "resp_1") == older.render(said)


async def test_silence_is_an_answer_only_to_those_who_asked() -> None:
    case = next(one for one in RECORDED["anthropic"] if one["name"] == "one turn more")
    rendered = await render_second_request("anthropic", case)
    usage = rendered.codec.usage(case["answer"])
    assert diagnosis_agrees(rendered.cache, usage, asked=True) is True
    assert diagnosis_agrees(rendered.cache, usage) is None


def test_another_reason_is_told_also_where_no_token_was_missed() -> None:
    forecast = CachePrediction(
        predicted_tokens=5_000, compared=True, changed=Changed.TOOLS, reason="other tools"
    )
    told = Diagnosis(outcome=Outcome.MISS, changed=Changed.MESSAGES, reason="messages_changed")
    assert describe_cache_mismatch(
        forecast, Usage(input_tokens=6_000, cached_tokens=5_000, diagnosis=told)
    ) == ("the provider says messages_changed, the forecast 'other tools'")
    agreed = replace(told, changed=Changed.TOOLS)
    assert (
        describe_cache_mismatch(forecast, Usage(input_tokens=6_000, cached_tokens=5_000, diagnosis=agreed))
        == ""
    )


# ── what was edited ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_edits_made_on_the_server_are_recorded() -> None:
    found = {
        (vendor, edit)
        for vendor, cases in RECORDED.items()
        for case in cases
        for edit in CODECS[vendor](case["now"]["model"]).usage(case["answer"]).edits
    }
    assert found == {
        ("anthropic", ServerEdit(kind="clear_tool_uses_20250919", count=8, tokens=50_000)),
        ("anthropic", ServerEdit(kind="clear_thinking_20251015", count=3, tokens=15_000)),
        (
            "anthropic",
            ServerEdit(
                kind="thinking_dropped", place="messages.1.content.0", reason="prefix_binding_mismatch"
            ),
        ),
        (
            "anthropic",
            ServerEdit(
                kind="thinking_mismatch_allowed",
                place="messages.1.content.0",
                reason="prefix_binding_mismatch",
            ),
        ),
        ("anthropic", ServerEdit(kind="compaction", place="content.0")),
        ("anthropic", ServerEdit(kind="compaction", place="content.0", reason="failed")),
        ("openai", ServerEdit(kind="reasoning_removed", place="rs_1", reason="prefix_mismatch")),
        ("openai", ServerEdit(kind="reasoning_removed", place="rs_1", reason="model_mismatch")),
        ("openai", ServerEdit(kind="compaction", place="cmp_1")),
    }


COMPACTION: dict[str, Json] = {
    "type": "compaction",
    "content": "They chose PostgreSQL 18.",
    "encrypted_content": "EpwC",
    "signature": "c2ln",
    "tool_changes": [],
}


def test_a_compaction_of_anthropic_is_kept_verbatim_and_sent_back_first() -> None:
    codec = AnthropicMessages("claude-opus-5-5")
    marked = {**COMPACTION, "cache_control": {"type": "ephemeral"}}
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    payload: dict[str, Json] = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
            {"role": "assistant", "content": [marked, thinking, {"type": "text", "text": "Done."}]},
            {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
        ]
    }
    read = codec.parse(payload)
    kept = read[1].parts[0]
    assert isinstance(kept, Raw)
    assert json.loads(kept.json) == COMPACTION
    sent = codec.render(read)
    assert sent["messages"][0] == {"role": "assistant", "content": [COMPACTION]}
    assert sent["messages"][2]["content"] == [thinking, {"type": "text", "text": "Done."}]
    assert codec.normal(read) == codec.parse(sent) == codec.normal(codec.parse(sent))
    assert codec.notes(read) == (COMPACTION_MOVED,)
    assert codec.notes(codec.parse(sent)) == ()
    misplaced = {"messages": [payload["messages"][0], sent["messages"][0], payload["messages"][2]]}
    with pytest.raises(PayloadError, match="must come first"):
        codec.check(misplaced)
    assert codec.cost(read[1]) > codec.cost(PromptMessage(role=Role.ASSISTANT, parts=(Text("Done."),))) + 20
    assert codec.count(sent).tokens <= codec.base() + sum([codec.cost(one) for one in read])
    without = AnthropicMessages("claude-opus-5-5", reasoning=False)
    assert without.render(read)["messages"][2]["content"] == [{"type": "text", "text": "Done."}]
    newer = Raw("anthropic", json.dumps({**COMPACTION, "content": "They chose MySQL."}))
    both = [*read, PromptMessage(role=Role.ASSISTANT, parts=(newer,)), read[0]]
    assert json.loads(newer.json) == codec.render(both)["messages"][0]["content"][0]
    assert codec.notes(both) == (COMPACTION_MOVED, OLDER_COMPACTION_OMITTED)
    older = Raw("anthropic", json.dumps({"type": "compaction", "content": "They met."}))
    behind = [read[0], PromptMessage(role=Role.ASSISTANT, parts=(older, Text("Yes."))), read[0], *read[1:]]
    assert codec.notes(behind) == (COMPACTION_MOVED, OLDER_COMPACTION_OMITTED)
    assert "They met." not in json.dumps(codec.render(behind))
    assert codec.render(behind)["messages"][0]["content"] == [COMPACTION]
    failed = Raw("anthropic", json.dumps({"type": "compaction", "content": None}))
    alone = codec.render([read[0], PromptMessage(role=Role.ASSISTANT, parts=(failed,)), read[2]])
    assert alone["messages"][1]["content"] == [{"type": "compaction", "content": None}]
    unsigned = Raw("anthropic", json.dumps({"type": "compaction", "content": "They met."}))
    appended = [read[0], PromptMessage(role=Role.ASSISTANT, parts=(unsigned, Text("Done."))), read[2]]
    assert codec.render(appended)["messages"][1]["content"][0]["content"] == "They met."  # where it was
    paused = codec.render([appended[0], PromptMessage(role=Role.ASSISTANT, parts=(unsigned,))])
    assert paused["messages"][1]["content"] == [json.loads(unsigned.json)]
    foreign = Raw("anthropic", json.dumps({"type": "compaction", "content": ""}))
    assert codec.notes([PromptMessage(role=Role.ASSISTANT, parts=(foreign, Text("Done.")))])


def test_a_compaction_of_openai_is_kept_verbatim() -> None:
    codec = OpenAIResponses("gpt-6.2-sol")
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}
    payload: dict[str, Json] = {"input": [item, {"type": "message", "role": "user", "content": "And now?"}]}
    read = codec.parse(payload)
    assert codec.render(read) == payload


async def test_the_items_of_a_conversation_at_openai_go_into_a_log_and_into_another_request() -> None:
    codec = OpenAIResponses("gpt-6.2-sol")
    items: list[dict[str, Any]] = [
        {"id": "msg_1", "type": "message", "status": "completed", "role": "user",
         "content": [{"type": "input_text", "text": "Which disk?"}]},
        {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAA", "status": None},
        {"id": "msg_2", "type": "message", "status": "completed", "role": "assistant",
         "content": [{"type": "output_text", "text": "db1.", "annotations": []}]},
        {"id": "cmp_1", "type": "compaction", "encrypted_content": "gAAB", "created_by": "model"},
        {"id": "msg_3", "type": "message", "status": "completed", "role": "user",
         "content": [{"type": "input_text", "text": "And now?"}]},
    ]  # fmt: skip
    session = ACMS("day", open_storage("memory://"), None)
    for _ in range(2):  # listed again: the ids are keys
        await session.ingest_many(items)
    assert [one.version for one in (await session.history()).entries] == [1, 2, 3, 4, 5]
    rendered = await Prompt(codec).history(session).render(budget=4_000)
    assert rendered.payload["input"] == [items[3], {"type": "message", "role": "user", "content": "And now?"}]
    going_on = {**rendered.payload, "conversation": "conv_1"}
    codec.check(going_on)
    assert codec.parse(going_on) == codec.parse(rendered.payload)
    assert codec.count(going_on) == rendered.tokens


# ── what it costs ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_a_request_costs_is_told_in_tokens_of_uncached_input() -> None:
    codec = OpenAIResponses("gpt-6.2-sol")
    first = await build_prompt(codec, {"system": "rules", "turns": ["a"]}).render()
    total = first.cache.total_tokens
    assert total == first.tokens.tokens
    assert first.cache.paid() == total
    then = await build_prompt(codec, {"system": "rules", "turns": ["a", "b", "c"]}).render(after=first)
    cached, total = then.cache.predicted_tokens, then.cache.total_tokens
    assert total > cached > 1_024
    assert then.cache.paid(cached=0.1, write=1.0) == pytest.approx(0.1 * cached + total - cached)
    rates = codec.rates
    assert then.cache.paid(rates.cached, rates.write) == pytest.approx(
        0.05 * cached + 1.25 * (total - cached)
    )


@pytest.mark.parametrize(
    ("codec", "cached", "write", "binds"),
    [
        (AnthropicMessages("claude-fable-5-2"), 0.025, 1.25, True),
        (AnthropicMessages("claude-fable-5-1"), 0.025, 1.25, True),
        (AnthropicMessages("claude-opus-5-5"), 0.05, 1.25, True),
        (AnthropicMessages("anthropic.claude-sonnet-5-5"), 0.05, 1.25, True),
        (AnthropicMessages("claude-haiku-5-5"), 0.1, 1.25, True),
        (AnthropicMessages("claude-fable-5"), 0.1, 1.25, False),
        (AnthropicMessages("claude-opus-5"), 0.1, 1.25, False),
        (AnthropicMessages("claude-opus-7"), 0.1, 1.25, True),
        (OpenAIResponses("gpt-6.2-astra"), 0.05, 1.25, True),
        (OpenAIResponses("gpt-6.1-terra"), 0.05, 1.25, False),
        (OpenAIResponses("gpt-6-luna"), 0.1, 1.25, False),
        (OpenAIResponses("gpt-5.6-sol"), 0.1, 1.25, False),
        (OpenAIChat("gpt-5"), 0.1, 1.0, False),
        (OpenAIChat("gpt-4.1-mini"), 0.25, 1.0, False),
        (OpenAIChat("ft:gpt-4o:acme::x"), 0.5, 1.0, False),
        (OpenAIChat("gpt-4"), 1.0, 1.0, False),
    ],
)
def test_what_models_charge_and_whether_they_bind_reasoning(
    codec: AnthropicMessages | OpenAIChat | OpenAIResponses, cached: float, write: float, binds: bool
) -> None:
    assert (codec.rates.cached, codec.rates.write, codec.binds_reasoning) == (cached, write, binds)


def test_reasoning_is_sent_to_models_that_bind_it() -> None:
    signed = Reasoning("Hm.", "c2ln")
    said = [
        PromptMessage(role=Role.USER, parts=(Text("Think."),)),
        PromptMessage(role=Role.ASSISTANT, parts=(signed, Text("Done."))),
        PromptMessage(role=Role.USER, parts=(Text("Sure?"),)),
    ]
    for model in ("claude-fable-5-1", "claude-fable-5-2", "claude-opus-5-5", "claude-haiku-5-5"):
        codec = AnthropicMessages(model)
        assert codec.render(said)["messages"][1]["content"][0]["type"] == "thinking"
        assert codec.notes(said) == ()
    unknown = AnthropicMessages("a-model-behind-a-gateway")
    assert unknown.render(said)["messages"][1]["content"] == [{"type": "text", "text": "Done."}]


async def test_a_request_without_hints_is_read_up_to_the_newest_message_of_the_user() -> None:
    codec = OpenAIResponses("gpt-6.2-sol")
    plain = Prompt(codec).system(text_about("rules")).user(text_about("a"))
    first = await plain.render()
    then = await plain.assistant(text_about("b")).user(text_about("c")).render(after=first)
    assert then.cache.predicted_tokens == first.cache.total_tokens
    other = await Prompt(codec).system(text_about("rules")).user(text_about("x")).render(after=first)
    assert other.cache.predicted_tokens == 0
    assert other.cache.changed is Changed.MESSAGES
