"""A fitted prompt is within the budget by the provider's own count, for any messages and any codec."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import FitError, Role, ToolCall, ToolResult
from acms.codecs import AnthropicMessages, OpenAIChat, OpenAIResponses, Tool
from acms.plan.nodes import (
    ComposedMessage,
    FittedPrompt,
    KeptEnd,
    MessageGroup,
    Omit,
    Piece,
    Scope,
    Strategy,
    Summarise,
    Truncate,
    Window,
)
from acms.plan.tool_groups import pair_tool_calls
from acms.ports import Codec
from acms.prompt.fit import fit_prompt
from acms.prompt.resolve import lay_out_messages
from acms.prompt_types import PromptMessage
from tests.providers.prompts import generated_conversations, texts, tools
from tests.support.toy import run_to_end, text_group

CODECS: list[Codec] = [
    OpenAIChat("gpt-4o"),
    OpenAIChat("gpt-5"),
    OpenAIResponses("gpt-5"),
    AnthropicMessages("claude-sonnet-4-5"),
]
STRATEGIES: list[Strategy | None] = [
    None,
    Omit(),
    Truncate(),
    Truncate(60, KeptEnd.START),
    Window(),
    Summarise("sum", "what was said", 2, 30),
]


@st.composite
def generated_trees(draw: st.DrawFn) -> Scope:
    children: list[Scope | MessageGroup] = []
    for number in range(draw(st.integers(1, 3))):
        messages = draw(generated_conversations(max_steps=6))
        befores = accumulate([message.tokens or 1 for message in messages], initial=0)
        units = [
            MessageGroup((message,), before=before)
            for message, before in zip(messages, befores, strict=False)
        ]
        if units and draw(st.booleans()):
            units[-1] = units[-1]._replace(mandatory=True)
        children.append(
            Scope(
                id=f"s{number}",
                children=tuple(units),
                priority=draw(st.integers(0, 3)),
                strategy=draw(st.sampled_from(STRATEGIES)),
                floor=draw(st.sampled_from([0, 0, 20])),
            )
        )
    pieces = tuple(
        Piece(text, f"p{place}", float(place % 3))
        for place, text in enumerate(draw(st.lists(texts, max_size=5)))
    )
    block = ComposedMessage(Role.DEVELOPER, pieces, "<recalled>\n", "\n\n", "\n</recalled>")
    children.append(
        Scope(id="recall", children=(block,), strategy=Truncate(40), priority=2, moves=draw(st.booleans()))
    )
    return Scope(id="prompt", children=(*children, text_group("What now?")))


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: f"{codec.name} {codec.model}")
@given(tree=generated_trees(), tools=tools, budget=st.one_of(st.integers(0, 250), st.integers(0, 2_500)))
def test_what_is_fitted_is_within_the_budget(
    codec: Codec, tree: Scope, tools: list[Tool], budget: int
) -> None:
    limit = codec.limit(budget)
    steps = fit_prompt(pair_tool_calls(tree), codec, limit, tools=tools, budget=budget)
    try:
        found: FittedPrompt = run_to_end(steps, ["a summary of what was said"])
    except FitError as error:
        assert error.over > 0
        assert error.options
        return
    assert found.tokens <= limit
    placed = lay_out_messages(found.placed)
    payload = codec.render([one.message for one in placed], tools=tools)
    assert codec.count(payload).upper_bound <= budget
    _assert_calls_answered([one.message for one in placed])


def _assert_calls_answered(messages: list[PromptMessage]) -> None:
    """Check that every call is answered right behind it, and nothing else is."""
    waiting: list[str] = []
    for message in messages:
        results = [part.call_id for part in message.parts if isinstance(part, ToolResult)]
        assert results == waiting[:1] if message.role is Role.TOOL else not waiting
        waiting = waiting[1:]
        if message.role is Role.ASSISTANT:
            waiting = [part.call_id for part in message.parts if isinstance(part, ToolCall)]
    assert not waiting
