"""What every codec promises, for prompts drawn at random: valid, read back, counted, always the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import Media, Role, Text, ToolResult
from acms import codecs as codecs_module
from acms.codecs import AnthropicMessages, Exactness, Gemini, OpenAIChat, OpenAIResponses, Tool
from acms.errors import PayloadError
from acms.model import Json, Part
from acms.ports import Codec
from acms.prompt_types import CacheMark, PromptMessage
from tests.support.groups import group_messages

from . import validators
from .prompts import cache_marks, generated_conversations, tidy_conversations, tools, wild

CASES: dict[str, tuple[Codec, Callable[[Json], None]]] = {
    "openai-chat": (OpenAIChat("gpt-5"), validators.openai_chat),
    "openai-chat, published": (OpenAIChat("gpt-4o"), validators.openai_chat),
    "openai-responses": (OpenAIResponses("gpt-5"), validators.openai_responses),
    "anthropic": (AnthropicMessages("claude-opus-5"), partial(validators.anthropic, system=True)),
    "anthropic, with prefill": (
        AnthropicMessages("claude-sonnet-4-5", max_tokens=1_000),
        partial(validators.anthropic, prefill=True),
    ),
    "anthropic, cited": (
        AnthropicMessages("claude-opus-5", search_results=True),
        partial(validators.anthropic, system=True),
    ),
    "gemini": (Gemini("gemini-3-pro"), validators.gemini),
    "anthropic, unknown": (AnthropicMessages("claude-next"), validators.anthropic),
    "anthropic, bytes": (
        AnthropicMessages("claude-opus-5", bound="bytes"),
        partial(validators.anthropic, system=True),
    ),
}
"""A codec, and what its provider accepts."""

REFUSED = (
    "messages: there must be a message",
    "messages[",  # an answer last, where the model does not go on with one
    "messages: must",
    "input: must",
    "contents: must",
)
"""How a prompt is refused that cannot be sent: there is nothing to say, or the provider would not answer."""

prompts = st.one_of(generated_conversations(), generated_conversations(), wild)
codecs = pytest.mark.parametrize(("codec", "accepts"), CASES.values(), ids=CASES.keys())


def render_or_none(
    codec: Codec,
    messages: Sequence[PromptMessage],
    *,
    tools: Sequence[Tool] = (),
    marks: Sequence[CacheMark] = (),
) -> dict[str, Json] | None:
    """The payload, or None for a prompt that is rightly refused."""
    try:
        return codec.render(messages, tools=tools, marks=marks)
    except PayloadError as error:
        assert str(error).startswith(REFUSED), error
        last = [message for message in codec.normal(messages) if message.role is not Role.SYSTEM][-1:]
        assert not last or last[0].role is Role.ASSISTANT, error
        return None


def without_sources(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
    """Messages without what no payload has: sources, counts, groups, what media are stated to be."""
    return [
        replace(
            message,
            parts=tuple([_bare_part(part) for part in message.parts]),
            sources=(),
            tokens=None,
            counter="",
            group=None,
        )
        for message in messages
    ]


def _bare_part(part: Part) -> Part:
    return Media("", part.ref) if isinstance(part, Media) else part


@codecs
@given(messages=prompts, offered=tools, draw=st.data())
def test_a_payload_is_accepted_reads_back_and_is_the_same_every_time(
    codec: Codec,
    accepts: Callable[[Json], None],
    messages: list[PromptMessage],
    offered: list[Tool],
    draw: st.DataObject,
) -> None:
    marked = draw.draw(cache_marks(len(messages)))
    normal = codec.normal(messages)
    assert codec.normal(normal) == normal
    payload = render_or_none(codec, messages, tools=offered, marks=marked)
    assert render_or_none(codec, tuple(messages), tools=tuple(offered), marks=tuple(marked)) == payload
    if payload is None:
        return
    accepts(payload)
    codec.check(payload)
    assert without_sources(codec.parse(payload)) == without_sources(normal)
    assert render_or_none(codec, normal, tools=offered) == render_or_none(codec, messages, tools=offered)
    assert codec.count(payload) == codec.count(payload)


@codecs
@given(messages=prompts, offered=tools, draw=st.data())
def test_a_payload_has_no_more_tokens_than_its_messages_apart(
    codec: Codec,
    accepts: Callable[[Json], None],
    messages: list[PromptMessage],
    offered: list[Tool],
    draw: st.DataObject,
) -> None:
    # As a prompt has them: every call with its answers, or with what stands for one that was not given.
    messages = [message for unit in group_messages(messages) for message in unit.messages]
    payload = render_or_none(codec, messages, tools=offered, marks=draw.draw(cache_marks(len(messages))))
    if payload is None:
        return
    count = codec.count(payload)
    apart = codec.base(offered) + sum([codec.cost(message) for message in messages])
    assert count.tokens <= apart
    assert count.upper_bound >= count.tokens
    if count.exactness is Exactness.EXACT:
        assert count.upper_bound == count.tokens
    has_names = any(message.name for message in messages)  # a name may be taken into the text
    if not codec.notes(messages) and not has_names:
        assert count.tokens >= apart - _taken_in(offered)


@codecs
@given(messages=tidy_conversations(), offered=tools)
def test_a_tidy_prompt_is_sent_as_it_is_and_its_counts_add_up(
    codec: Codec, accepts: Callable[[Json], None], messages: list[PromptMessage], offered: list[Tool]
) -> None:
    assert [note for note in codec.notes(messages) if "stand-in" not in note] == []
    payload = codec.render(messages, tools=offered)
    accepts(payload)
    apart = codec.base(offered) + sum([codec.cost(message) for message in messages])
    assert apart - _taken_in(offered) <= codec.count(payload).tokens <= apart
    said = [text for message in codec.normal(messages) for text in _texts_of_message(message)]
    assert said == [text for message in messages for text in _texts_of_message(message)]


@codecs
@given(messages=tidy_conversations())
def test_what_was_sent_is_not_changed_by_what_is_said_later(
    codec: Codec, accepts: Callable[[Json], None], messages: list[PromptMessage]
) -> None:
    whole = codec.render(messages)
    key = next(key for key in ("input", "messages", "contents") if key in whole)
    for end, message in enumerate(messages, 1):
        if message.role is Role.USER:
            earlier = codec.render(messages[:end])
            assert earlier[key] == whole[key][: len(earlier[key])]
            assert earlier.get("system") == whole.get("system")


def _taken_in(offered: Sequence[Tool]) -> int:
    """How many tokens a system message can save by taking in the tools."""
    return 4 if offered else 0


def _texts_of_message(message: PromptMessage) -> list[str]:
    return [
        part.text if isinstance(part, Text) else part.output
        for part in message.parts
        if isinstance(part, Text | ToolResult)
    ]


@codecs
@given(messages=prompts)
def test_every_source_of_what_is_sent_is_kept(
    codec: Codec, accepts: Callable[[Json], None], messages: list[PromptMessage]
) -> None:
    given_ = {source for message in messages for source in message.sources}
    kept = {source for message in codec.normal(messages) for source in message.sources}
    assert kept <= given_
    for message in messages:
        if any(isinstance(part, Text) and part.text.strip() for part in message.parts):
            assert set(message.sources) <= kept


@codecs
@given(budget=st.integers(0, 500_000))
def test_the_limit_is_the_most_raw_tokens_within_a_budget(
    codec: Codec, accepts: Callable[[Json], None], budget: int
) -> None:
    limit = codec.limit(budget)
    assert 0 <= limit <= budget
    assert codec.limit(budget + 1) >= limit


# ── the types of the providers' packages ────────────────────────────────────────────────────────────────────────────


@given(messages=prompts, offered=tools)
def test_requests_have_the_types_of_the_anthropic_package(
    messages: list[PromptMessage], offered: list[Tool]
) -> None:
    payload = render_or_none(CASES["anthropic"][0], messages, tools=offered) or {}
    for block in payload.get("system", ()):
        validators.validate_type("anthropic.types.beta", "BetaTextBlockParam", block)
    for message in payload.get("messages", ()):
        validators.validate_type("anthropic.types.beta", "BetaMessageParam", message)
    for tool in payload.get("tools", ()):
        validators.validate_type("anthropic.types.beta", "BetaToolParam", tool)


@given(messages=prompts, offered=tools)
def test_requests_have_the_types_of_the_openai_package(
    messages: list[PromptMessage], offered: list[Tool]
) -> None:
    chat = render_or_none(CASES["openai-chat"][0], messages, tools=offered) or {}
    for message in chat.get("messages", ()):
        validators.validate_type("openai.types.chat", "ChatCompletionMessageParam", message)
    for tool in chat.get("tools", ()):
        validators.validate_type("openai.types.chat", "ChatCompletionToolParam", tool)
    responses = render_or_none(CASES["openai-responses"][0], messages, tools=offered) or {}
    for item in responses.get("input", ()):
        validators.validate_type("openai.types.responses", "ResponseInputItemParam", item)
    for tool in responses.get("tools", ()):
        validators.validate_type("openai.types.responses", "FunctionToolParam", tool)


def test_a_misspelt_name_of_a_codec_is_corrected() -> None:
    with pytest.raises(ImportError, match="did you mean 'AnthropicMessages'"):
        from acms.codecs import Anthropic  # noqa: F401
    assert not hasattr(codecs_module, "Unrelated")


def test_every_name_that_the_module_lists_can_be_imported() -> None:
    assert all(hasattr(codecs_module, name) for name in dir(codecs_module))


def test_a_codec_shows_its_model() -> None:
    assert repr(OpenAIChat("gpt-4o")) == "OpenAIChat('gpt-4o')"
