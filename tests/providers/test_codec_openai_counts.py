"""What requests to OpenAI count: the published recipe on tiktoken, reported counts, bounds for everything else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from acms import Media, Raw, Role, Text, ToolCall, ToolResult, ValidationError
from acms.codecs import AnthropicMessages, Calibration, Exactness, OpenAIChat, OpenAIResponses, Tool, Usage
from acms.model import Part
from acms.plan.tool_groups import is_placeholder
from acms.prompt_types import PromptMessage
from acms.providers import EstimatingTokenCounter
from acms.providers.codecs import openai_base
from acms.providers.codecs.framing import find_published_traits
from acms.providers.tokens import default_counter
from tests.providers import prompts
from tests.providers.prompts import make_count
from tests.providers.test_token_counts import reference  # noqa: F401 - a fixture

COUNTS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "openai_counts.json").read_text(encoding="utf-8")
)
CODECS = [
    OpenAIChat("gpt-4o"),
    OpenAIChat("gpt-5"),
    OpenAIChat("gpt-5.6-sol"),
    OpenAIResponses("gpt-4.1"),
    OpenAIResponses("gpt-6-sol"),
]


def reported_counts(api: str) -> list[Any]:
    return [
        pytest.param(model, request, tokens, id=f"{model}-{tokens}")
        for request in COUNTS[api]
        for model, tokens in request["tokens"].items()
    ]


def payload_of_request(request: Mapping[str, Any]) -> dict[str, Any]:
    return {key: request[key] for key in ("messages", "input", "tools") if key in request}


def make_message(role: Role, *parts: Part, name: str | None = None) -> PromptMessage:
    return PromptMessage(role=role, parts=parts, name=name)


def text_message(role: Role, text: str, name: str | None = None) -> PromptMessage:
    return make_message(role, Text(text), name=name)


class TestReported:
    @pytest.mark.parametrize(("model", "request_", "tokens"), reported_counts("chat"))
    def test_chat_requests_count_what_the_api_reported(
        self, model: str, request_: dict[str, Any], tokens: int
    ) -> None:
        codec = OpenAIChat(model)
        count = codec.count(payload_of_request(request_))
        assert (count.tokens, count.exactness, count.upper_bound) == (tokens, Exactness.EXACT, tokens)

    @pytest.mark.parametrize(("model", "request_", "tokens"), reported_counts("chat"))
    def test_the_costs_of_messages_and_tools_add_up_to_it(
        self, model: str, request_: dict[str, Any], tokens: int
    ) -> None:
        codec = OpenAIChat(model)
        tools = [
            Tool(name=of["name"], description=of.get("description", ""), parameters=of["parameters"])
            for of in (tool["function"] for tool in request_.get("tools", ()))
        ]
        messages = codec.parse(payload_of_request(request_))
        assert codec.render(messages, tools=tools) == payload_of_request(request_)
        apart = codec.base(tools) + sum(map(codec.cost, messages))
        # A system message takes in the tools: that saves up to four tokens.
        assert tokens <= apart <= (tokens + 4 if tools else tokens)

    @pytest.mark.parametrize(("model", "request_", "tokens"), reported_counts("responses"))
    def test_requests_to_responses_are_bounded_by_what_is_charged(
        self, model: str, request_: dict[str, Any], tokens: int
    ) -> None:
        count = OpenAIResponses(model).count(payload_of_request(request_))
        assert count.exactness is Exactness.CALIBRATED
        assert tokens <= count.tokens <= count.upper_bound


def published_count(messages: Sequence[Mapping[str, str]], encoding: tiktoken.Encoding) -> int:
    """The published recipe for messages of text, written anew."""
    fields = [(key, value) for one in messages for key, value in one.items()]
    texts = sum(len(encoding.encode(value, disallowed_special=())) for _, value in fields)
    return 3 + 3 * len(messages) + texts + sum(key == "name" for key, _ in fields)


@given(
    spoken=st.lists(
        st.tuples(
            st.sampled_from((Role.SYSTEM, Role.DEVELOPER, Role.USER, Role.ASSISTANT)),
            prompts.texts.filter(bool),
            st.sampled_from((None, "sam", "Ann-Marie", "agent_7")),
        ),
        min_size=1,
        max_size=5,
    )
)
@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4"])
def test_messages_of_text_count_what_tiktoken_does(
    model: str,
    reference: dict[str, tiktoken.Encoding],  # noqa: F811
    spoken: list[tuple[Role, str, str | None]],
) -> None:
    codec = OpenAIChat(model)
    messages = [text_message(role, text, name) for role, text, name in spoken]
    written = codec.render(messages)
    count = codec.count(written)
    assert count.exactness is Exactness.EXACT
    assert count.tokens == published_count(
        written["messages"], reference[find_published_traits(model).counter]
    )
    assert count.tokens == codec.base() + sum(map(codec.cost, messages))


PLAIN = {"type": "object", "properties": {"q": {"type": "string", "description": "What to look for."}}}


class TestExactness:
    def exactness(self, messages: Sequence[PromptMessage], *tools: Tool, model: str = "gpt-4o") -> Exactness:
        codec = OpenAIChat(model)
        return codec.count(codec.render(messages, tools=tools)).exactness

    def test_text_and_plain_tools_are_exact(self) -> None:
        tool = Tool(name="search", description="Looks things up.", parameters=PLAIN)
        assert self.exactness([text_message(Role.USER, "hello", "sam")], tool) is Exactness.EXACT

    @pytest.mark.parametrize(
        "part",
        [
            Media("image/png", "https://example.com/a.png", tokens=85),
            Raw("openai-chat", '{"type":"input_audio","input_audio":{"data":"UklGRg==","format":"wav"}}'),
        ],
    )
    def test_what_is_no_text_is_not(self, part: Part) -> None:
        assert self.exactness([make_message(Role.USER, Text("look"), part)]) is Exactness.CALIBRATED

    def test_tool_calls_are_not(self) -> None:
        call = make_message(Role.ASSISTANT, ToolCall("call_1", "search", "{}"))
        result = make_message(Role.TOOL, ToolResult("call_1", "found"))
        assert self.exactness([text_message(Role.USER, "hello"), call, result]) is Exactness.CALIBRATED

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "object"},
            {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
            {"type": "object", "properties": {"n": {"type": "integer", "description": "How many."}}},
            {"type": "object", "properties": {"all": {"type": "array"}}},
            {
                "type": "object",
                "properties": {
                    "by": {"type": "object", "properties": {"key": {"type": "string", "enum": ["a", "b"]}}}
                },
            },
        ],
        ids=["nothing", "bare", "number", "array", "nested"],
    )
    def test_tools_that_have_been_measured_are(self, schema: dict[str, Any]) -> None:
        tool = Tool(name="search", parameters=schema)
        assert self.exactness([text_message(Role.USER, "hello")], tool) is Exactness.EXACT
        assert (
            self.exactness([text_message(Role.SYSTEM, "rules"), text_message(Role.USER, "hi")], tool)
            is Exactness.EXACT
        )
        assert self.exactness([text_message(Role.DEVELOPER, "rules")], tool) is Exactness.CALIBRATED

    @pytest.mark.parametrize(
        "more",
        [
            {"parameters": {**PLAIN, "additionalProperties": False}},
            {"parameters": {**PLAIN, "required": ["q"], "additionalProperties": False}, "strict": True},
            {"description": "Looks\nthings up."},
            {"parameters": {"type": "object", "properties": {"q": {"type": "string", "default": "x"}}}},
            {"parameters": {"type": "object", "properties": {"q": {"type": "string", "enum": [1]}}}},
            {"parameters": {"type": "object", "properties": {"n": {"type": "integer", "enum": [1, 2]}}}},
            {"parameters": {"type": "object", "properties": {"q": {"type": ["string", "null"]}}}},
            {"parameters": {"type": "object", "properties": {"q": {"anyOf": [{"type": "string"}]}}}},
            {
                "parameters": {
                    "type": "object",
                    "properties": {"q": {"type": "string", "description": "a\nb"}},
                }
            },
            {"parameters": {"type": "object", "properties": {"q": {"type": "array", "items": {}}}}},
            {"parameters": {"type": "object", "properties": {"q": {"type": "object"}}}},
            {"parameters": {"type": "object", "properties": {"q": True}}},
            {"parameters": {"type": "object", "properties": ["q"]}},
        ],
        ids=lambda more: str(more)[:60],
    )
    def test_tools_that_have_not_are_not(self, more: dict[str, Any]) -> None:
        tool = Tool(**{"name": "search", "description": "Looks things up.", "parameters": PLAIN, **more})
        assert self.exactness([text_message(Role.USER, "hello")], tool) is Exactness.CALIBRATED
        plain = Tool(name="search", description="Looks things up.", parameters={"type": "object"})
        codec = OpenAIChat("gpt-4o")
        assert codec.base([tool]) > codec.base([plain])

    def test_refusals_and_sound_of_the_model_are_not(self) -> None:
        codec = OpenAIChat("gpt-4o")
        hi = {"role": "user", "content": "hi"}
        for more in ({"refusal": "no"}, {"audio": {"id": "audio_1"}}):
            count = codec.count({"messages": [hi, {"role": "assistant", "content": None, **more}]})
            assert count.exactness is Exactness.CALIBRATED
            assert count.tokens > codec.count({"messages": [hi]}).tokens

    @pytest.mark.parametrize(
        "model",
        ["gpt-5", "gpt-4.1", "o3", "gpt-4o-audio-preview", "gpt-4o-search-preview"],
    )
    def test_models_that_the_recipe_does_not_name_are_not(self, model: str) -> None:
        assert self.exactness([text_message(Role.USER, "hello")], model=model) is Exactness.CALIBRATED

    @pytest.mark.parametrize("model", ["gpt-6-sol", "llama-4"])
    def test_models_whose_vocabulary_is_unknown_have_an_estimate(self, model: str) -> None:
        assert self.exactness([text_message(Role.USER, "hello")], model=model) is Exactness.ESTIMATE

    def test_a_counter_of_another_vocabulary_is_not(self) -> None:
        codec = OpenAIChat("gpt-4o", counter=EstimatingTokenCounter())
        count = codec.count(codec.render([text_message(Role.USER, "hello there")]))
        assert count.exactness is Exactness.ESTIMATE
        assert count.upper_bound >= 1.5 * count.tokens

    def test_a_margin_that_is_given_is_kept_above_everything(self) -> None:
        codec = OpenAIChat("gpt-4o", margin=0.1)
        count = codec.count(codec.render([text_message(Role.USER, "hello there " * 500)]))
        assert count.exactness is Exactness.CALIBRATED
        assert count.upper_bound >= 1.1 * count.tokens
        offered = codec.count(codec.render([text_message(Role.SYSTEM, "be brief")], tools=[Tool(name="f")]))
        assert offered.exactness is Exactness.CALIBRATED
        assert offered.upper_bound >= 1.1 * offered.tokens
        exact = OpenAIChat("gpt-4o").count(
            codec.render([text_message(Role.SYSTEM, "be brief")], tools=[Tool(name="f")])
        )
        assert offered.tokens >= exact.tokens  # what a system message saves is not relied on


class TestVocabularies:
    @pytest.mark.parametrize(
        ("model", "encoding"),
        [
            ("gpt-3.5-turbo-0125", "cl100k_base"),
            ("gpt-35-turbo", "cl100k_base"),
            ("gpt-4", "cl100k_base"),
            ("gpt-4-0613", "cl100k_base"),
            ("gpt-4-turbo", "cl100k_base"),
            ("gpt-4o-mini-2024-07-18", "o200k_base"),
            ("gpt-4.1-nano", "o200k_base"),
            ("chatgpt-4o-latest", "o200k_base"),
            ("o1-2024-12-17", "o200k_base"),
            ("o3-mini", "o200k_base"),
            ("o4-mini", "o200k_base"),
            ("gpt-5", "o200k_base"),
            ("gpt-5.4-mini", "o200k_base"),
        ],
    )
    def test_known_models_have_the_vocabulary_that_tiktoken_gives_them(
        self, model: str, encoding: str
    ) -> None:
        assert tiktoken.encoding_name_for_model(model) == encoding
        assert (find_published_traits(model).counter, find_published_traits(model).has_public_vocabulary) == (
            encoding,
            True,
        )

    def test_a_fine_tuned_model_is_like_its_base(self) -> None:
        assert find_published_traits("ft:gpt-4o:acme::abc123") == find_published_traits("gpt-4o")
        assert find_published_traits("ft:gpt-3.5-turbo-0125:acme::x") == find_published_traits(
            "gpt-3.5-turbo-0125"
        )

    def test_an_unknown_model_gets_the_newest_public_one_and_a_wide_bound(self) -> None:
        codec = OpenAIChat("gpt-6-sol")
        count = codec.count(codec.render([text_message(Role.USER, "hello " * 1_000)]))
        assert codec.counter.name == "o200k_base"
        assert count.upper_bound >= 1.25 * count.tokens

    @pytest.mark.parametrize("model", ["", " ", None, 5, "\ud800", "m" * 256])
    @pytest.mark.parametrize("codec", [OpenAIChat, OpenAIResponses, AnthropicMessages])
    def test_a_model_has_a_name(self, codec: Any, model: Any) -> None:
        with pytest.raises(ValidationError) as caught:
            codec(model)
        assert caught.value.field == "model"


# ── costs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: f"{codec.name}/{codec.model}")
@given(messages=st.one_of(prompts.generated_conversations(), prompts.wild), tools=prompts.tools)
def test_costs_bound_the_count_of_what_is_sent(
    codec: OpenAIChat | OpenAIResponses, messages: list[PromptMessage], tools: list[Tool]
) -> None:
    normal = codec.normal(messages)
    if not normal:
        return
    count = codec.count(codec.render(messages, tools=tools))
    assert count.tokens <= codec.base(tools) + sum(map(codec.cost, normal))
    if not any(map(is_placeholder, normal)):
        assert count.tokens <= codec.base(tools) + sum(map(codec.cost, messages))
    if not tools and all(len(one.parts) == 1 and isinstance(one.parts[0], Text) for one in normal):
        assert count.tokens == codec.base(tools) + sum(map(codec.cost, normal))


class TestStoredTokens:
    @pytest.mark.parametrize("role", [Role.SYSTEM, Role.DEVELOPER, Role.USER, Role.ASSISTANT])
    @pytest.mark.parametrize("name", [None, "sam"])
    def test_a_text_counted_before_costs_the_same(self, role: Role, name: str | None) -> None:
        counter = default_counter()
        plain = text_message(role, "We chose PostgreSQL 18.", name)
        stored = PromptMessage(
            role=role, parts=plain.parts, name=name, tokens=counter.count(plain.text), counter=counter.name
        )
        codec = OpenAIChat("gpt-4o")
        assert codec.cost(stored) == codec.cost(stored) == codec.cost(plain)

    def test_a_result_counted_before_costs_the_same(self) -> None:
        counter = default_counter()
        plain = make_message(Role.TOOL, ToolResult("call_1", "40% used"))
        stored = PromptMessage(
            role=Role.TOOL, parts=plain.parts, tokens=counter.count("40% used"), counter=counter.name
        )
        codec = OpenAIChat("gpt-4o")
        assert codec.cost(stored) == codec.cost(plain)

    def test_a_text_of_a_tool_costs_what_it_costs_as_an_answer(self) -> None:
        plain = text_message(Role.TOOL, "40% used")
        stored = replace(plain, tokens=default_counter().count("40% used"), counter=default_counter().name)
        codec = OpenAIChat("gpt-4o")
        assert codec.cost(stored) == codec.cost(plain) > codec.cost(text_message(Role.USER, "40% used"))

    def test_what_is_remembered_of_costs_is_bounded_and_changes_none(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(openai_base, "NAMES", 2)
        codec, counter = OpenAIChat("gpt-4o"), default_counter()
        shown = [
            make_message(Role.USER, Media("image/png", f"https://example.com/{at}.png", tokens=765))
            for at in range(4)
        ]
        for at in (0, 1, 2, 3, 0):
            plain = text_message(Role.USER, "hi", f"user_{at}")
            stored = replace(plain, tokens=counter.count("hi"), counter=counter.name)
            assert codec.cost(stored) == codec.cost(stored) == OpenAIChat("gpt-4o").cost(plain)
            assert codec.cost(shown[at]) == codec.cost(shown[0])
        payload = codec.render([shown[1]])
        assert codec.count(payload).tokens == codec.base() + codec.cost(shown[0])
        for one in shown[2:]:
            codec.render([one])
        assert codec.count(payload).tokens > 765 + codec.base() + codec.cost(text_message(Role.USER, "hi"))

    def test_tokens_of_another_counter_are_counted_again(self) -> None:
        stored = PromptMessage(role=Role.USER, parts=(Text("hello"),), tokens=999, counter="heuristic/4")
        codec = OpenAIChat("gpt-4o")
        assert codec.cost(stored) == codec.cost(text_message(Role.USER, "hello"))

    def test_a_name_in_front_of_the_text_is_paid_for(self) -> None:
        counter = default_counter()
        plain = text_message(Role.USER, "We chose PostgreSQL 18.", "José Núñez")
        stored = PromptMessage(
            role=Role.USER,
            parts=plain.parts,
            name=plain.name,
            tokens=counter.count(plain.text),
            counter=counter.name,
        )
        codec = OpenAIChat("gpt-4o")
        sent = codec.count(codec.render([plain])).tokens - codec.base()
        assert sent == codec.cost(plain) <= codec.cost(stored) <= codec.cost(plain) + 3


class TestMedia:
    @pytest.mark.parametrize(
        "codec", [OpenAIChat("gpt-4o"), OpenAIResponses("gpt-4o")], ids=["chat", "responses"]
    )
    def test_what_was_stated_is_charged_also_in_the_payload(
        self, codec: OpenAIChat | OpenAIResponses
    ) -> None:
        shown = make_message(
            Role.USER, Text("look"), Media("image/png", "https://example.com/x.png", tokens=765)
        )
        assert codec.cost(shown) == codec.cost(text_message(Role.USER, "look")) + 765
        assert codec.count(codec.render([shown])).tokens == codec.base() + codec.cost(shown)

    def test_what_was_not_stated_is_charged_as_the_largest_image(self) -> None:
        codec = OpenAIChat("gpt-4o")
        shown = make_message(Role.USER, Text("look"), Media("image/png", "https://example.com/y.png"))
        assert codec.cost(shown) == codec.cost(text_message(Role.USER, "look")) + 85 + 8 * 170


# ── bounds, reports, the prompt cache ───────────────────────────────────────────────────────────────────────────────


class TestLimit:
    @pytest.mark.parametrize("codec", CODECS, ids=lambda codec: f"{codec.name}/{codec.model}")
    @pytest.mark.parametrize("budget", [0, 1, 16, 17, 100, 8_000, 1_000_000])
    def test_it_is_the_most_whose_bound_is_within_the_budget(
        self, codec: OpenAIChat | OpenAIResponses, budget: int
    ) -> None:
        limit = codec.limit(budget)
        assert codec.counted(limit, covered=False).upper_bound <= max(budget, 0)
        assert codec.counted(limit + 1, covered=False).upper_bound > budget

    def test_nothing_is_lost_where_counts_are_exact(self) -> None:
        assert OpenAIChat("gpt-4o").limit(8_000) == 8_000

    def test_one_report_above_an_exact_count_ends_the_trust_in_it(self) -> None:
        codec = OpenAIChat("gpt-4o")
        codec.observe(make_count(5_000), Usage(input_tokens=5_000))
        assert codec.limit(8_000) == 8_000
        codec.observe(make_count(5_000), Usage(input_tokens=5_500))
        assert codec.limit(8_000) <= 8_000 / 1.1
        count = codec.count(codec.render([text_message(Role.USER, "hello " * 5_000)]))
        assert count.exactness is Exactness.CALIBRATED
        assert count.upper_bound >= 1.1 * count.tokens

    def test_reports_narrow_a_wide_bound(self) -> None:
        codec = OpenAIChat("gpt-6-sol")
        before = codec.limit(3_000)
        for _ in range(200):
            codec.observe(make_count(2_000), Usage(input_tokens=2_010))
        assert before < 2_400 < 2_850 < codec.limit(3_000)

    def test_nothing_reported_is_nothing_learnt(self) -> None:
        codec = OpenAIChat("gpt-5")
        before = codec.calibration.state()
        codec.observe(make_count(0), Usage(input_tokens=10))
        codec.observe(make_count(10), Usage(input_tokens=0))
        assert codec.calibration.state() == before

    def test_codecs_can_share_what_was_learnt(self) -> None:
        shared = Calibration(1.25)
        codecs = [
            OpenAIChat("gpt-6-sol", calibration=shared),
            OpenAIResponses("gpt-6-sol", calibration=shared),
        ]
        codecs[0].observe(make_count(2_000), Usage(input_tokens=4_000))
        assert codecs[1].limit(8_000) <= 4_000


class TestCache:
    @pytest.mark.parametrize(
        ("tokens", "cached"),
        [(0, 0), (1_023, 0), (1_024, 1_024), (1_151, 1_024), (1_152, 1_152), (10_000, 9_984)],
    )
    def test_prefixes_are_read_in_steps_of_128_from_1024_on(self, tokens: int, cached: int) -> None:
        assert OpenAIChat("gpt-5").cached(tokens) == cached

    @pytest.mark.parametrize("model", ["gpt-5.6-sol", "gpt-6-luna", "gpt-6.2-astra"])
    def test_up_to_a_breakpoint_all_of_it_is_read(self, model: str) -> None:
        assert OpenAIResponses(model).cached(1_100) == 1_100
        assert OpenAIResponses(model).cached(1_000) == 0

    @pytest.mark.parametrize("model", ["gpt-4", "gpt-4-turbo", "gpt-3.5-turbo", "gpt-4o-2024-05-13"])
    def test_old_models_have_no_cache(self, model: str) -> None:
        assert OpenAIChat(model).cached(5_000) == 0


class TestUsage:
    def test_chat_reports_as_objects_and_mappings(self) -> None:
        reported = {
            "prompt_tokens": 2_006,
            "completion_tokens": 300,
            "total_tokens": 2_306,
            "prompt_tokens_details": {"cached_tokens": 1_920, "cache_write_tokens": 64},
        }
        expected = Usage(input_tokens=2_006, cached_tokens=1_920, written_tokens=64)
        codec = OpenAIChat("gpt-5")
        assert codec.usage(reported) == expected
        details = SimpleNamespace(cached_tokens=1_920, cache_write_tokens=64)
        assert codec.usage(SimpleNamespace(prompt_tokens=2_006, prompt_tokens_details=details)) == expected

    def test_responses_report_as_objects_and_mappings(self) -> None:
        reported = {"input_tokens": 328, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 52}
        assert OpenAIResponses("gpt-5").usage(reported) == Usage(input_tokens=328)
        assert OpenAIResponses("gpt-5").usage(SimpleNamespace(input_tokens=328)) == Usage(input_tokens=328)

    def test_the_sdks_own_objects_are_read(self) -> None:
        from openai.types.completion_usage import CompletionUsage

        given = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
        assert OpenAIChat("gpt-5").usage(CompletionUsage(**given)) == Usage(input_tokens=9)

    @pytest.mark.parametrize("usage", [None, 12, {}, {"input_tokens": 5}, {"prompt_tokens": None}, "usage"])
    def test_what_is_no_usage_of_chat_is_refused(self, usage: object) -> None:
        with pytest.raises(ValidationError, match="prompt_tokens") as caught:
            OpenAIChat("gpt-5").usage(usage)
        assert caught.value.field == "usage"

    @pytest.mark.parametrize("cached", [-1, "many", 1.5])
    def test_a_report_of_less_than_nothing_is_refused(self, cached: object) -> None:
        reports = [
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": cached}},
            {"prompt_tokens": -9},
        ]
        for report in reports:
            with pytest.raises(ValidationError) as caught:
                OpenAIChat("gpt-5").usage(report)
            assert caught.value.field == "usage"

    def test_usage_of_anthropic_is_none_of_responses(self) -> None:
        foreign = {"input_tokens": 12, "cache_read_input_tokens": 4_000, "cache_creation_input_tokens": 0}
        with pytest.raises(ValidationError, match="another provider"):
            OpenAIResponses("gpt-5").usage(foreign)
