"""Tool calls and their answers stay together, wherever the answers were written."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from acms import Reasoning, Role, Text, ToolCall, ToolResult
from acms.plan.nodes import ComposedMessage, MessageGroup, Piece, Scope
from acms.plan.tool_groups import join_answers, pair_tool_calls
from acms.prompt_types import PromptMessage
from acms.text.chat_messages import NO_RESULT, ORPHAN, wrap_text
from tests.providers.prompts import generated_conversations
from tests.support.groups import group_messages
from tests.support.toy import text_message


def call_message(*ids: str, text: str = "", group: str | None = None) -> PromptMessage:
    parts = (Text(text),) if text else ()
    return PromptMessage(
        role=Role.ASSISTANT,
        parts=(*parts, *(ToolCall(id, "look") for id in ids)),
        group=group,
        sources=(f"c-{ids}",),
    )


def answer_message(id: str, output: str, group: str | None = None) -> PromptMessage:
    return PromptMessage(role=Role.TOOL, parts=(ToolResult(id, output),), group=group, sources=(output,))


def comparable_units(units: Sequence[MessageGroup]) -> list[list[str]]:
    """Write units down: the text, calls and outputs of every message."""
    return [
        [
            " ".join(
                part.text
                if isinstance(part, Text | Reasoning)
                else part.call_id
                if isinstance(part, ToolCall)
                else f"={part.output}"
                for part in message.parts
                if isinstance(part, Text | Reasoning | ToolCall | ToolResult)
            )
            for message in one.messages
        ]
        for one in units
    ]


def test_a_call_without_an_answer_gets_a_placeholder() -> None:
    (one,) = group_messages([call_message("a", "b"), answer_message("a", "one")])
    assert comparable_units([one]) == [["a b", "=one", f"={NO_RESULT}"]]
    assert one.messages[2].sources == ()


def test_an_answer_to_no_call_becomes_text_of_the_user_in_marks() -> None:
    (one,) = group_messages([answer_message("a", "lost")])
    (message,) = one.messages
    assert message.role is Role.USER
    assert message.text == wrap_text("lost", ORPHAN)
    assert message.sources == ("lost",)


def test_a_message_of_a_tool_without_any_answer_is_an_orphan_too() -> None:
    (one,) = group_messages([text_message("lost", Role.TOOL, tokens=3, counter="words")])
    assert one.messages[0] == text_message(wrap_text("lost", ORPHAN))


def test_a_second_answer_to_a_call_becomes_text() -> None:
    found = group_messages([call_message("a"), answer_message("a", "one"), answer_message("a", "again")])
    assert comparable_units(found) == [["a", "=one"], [wrap_text("again", ORPHAN)]]


def test_an_answer_goes_to_the_nearest_open_call_with_its_id() -> None:
    found = group_messages(
        [call_message("a"), call_message("a"), answer_message("a", "near"), answer_message("a", "far")]
    )
    assert comparable_units(found) == [["a", "=far"], ["a", "=near"]]


def test_groups_tell_calls_with_the_same_id_apart() -> None:
    found = group_messages(
        [call_message("a", group="g1"), call_message("a", group="g2"), answer_message("a", "first", "g1")]
    )
    assert comparable_units(found) == [["a", "=first"], ["a", f"={NO_RESULT}"]]
    found = group_messages([call_message("a", group="g1"), answer_message("a", "stray", "g2")])
    assert comparable_units(found) == [["a", f"={NO_RESULT}"], [wrap_text("stray", ORPHAN)]]


def test_reasoning_stays_with_the_call_it_led_to() -> None:
    thought = PromptMessage(role=Role.ASSISTANT, parts=(Reasoning("hm", "sig"), ToolCall("a", "look")))
    assert comparable_units(group_messages([thought, text_message("x"), answer_message("a", "one")])) == [
        ["hm a", "=one"],
        ["x"],
    ]


def test_a_message_with_several_answers_is_taken_apart() -> None:
    both = PromptMessage(
        role=Role.USER,
        parts=(ToolResult("b", "two"), ToolResult("a", "one"), Text("and now?")),
        tokens=9,
        counter="c",
    )
    found = group_messages([call_message("a", "b"), both])
    assert comparable_units(found) == [["a b", "=one", "=two"], ["and now?"]]
    assert [message.role for message in found[0].messages[1:]] == [Role.TOOL, Role.TOOL]
    assert found[1].messages[0].tokens is None  # it is another text now


def test_an_untouched_message_stays_the_same_object() -> None:
    messages = [text_message("hi"), call_message("a"), answer_message("a", "one")]
    found = [message for one in group_messages(messages) for message in one.messages]
    assert all(new is old for new, old in zip(found, messages, strict=True))
    units = [MessageGroup((message,), 1, 1) for message in messages]
    assert join_answers(units)[0] is units[0]


def test_units_that_join_span_the_versions_of_both() -> None:
    units = [
        MessageGroup((call_message("a"),), 4, 4, before=10),
        MessageGroup((text_message("x"),), 5, 5, before=20),
        MessageGroup((answer_message("a", "one"),), 6, 6, before=30, mandatory=True),
    ]
    assert join_answers(units)[0] == MessageGroup(
        (call_message("a"), answer_message("a", "one")), 4, 6, 10, True
    )


def make_scope(id: str, *children: Scope | MessageGroup | ComposedMessage) -> Scope:
    return Scope(id=id, children=children)


def test_an_answer_in_another_scope_joins_the_scope_of_its_call() -> None:
    history = make_scope(
        "history", MessageGroup((text_message("hi"),), 1, 1), MessageGroup((call_message("a"),), 2, 2)
    )
    pins = ComposedMessage(Role.DEVELOPER, (Piece("p", "p"),))
    tree = make_scope(
        "prompt",
        history,
        pins,
        make_scope("now", MessageGroup((answer_message("a", "one"),)), MessageGroup((text_message("go"),))),
    )
    found = pair_tool_calls(tree)
    assert found == make_scope(
        "prompt",
        make_scope(
            "history",
            MessageGroup((text_message("hi"),), 1, 1),
            MessageGroup((call_message("a"), answer_message("a", "one")), 2, 2, 0, True),
        ),
        pins,
        make_scope("now", MessageGroup((text_message("go"),))),
    )
    assert pair_tool_calls(found) is found


def test_a_placeholder_gives_way_to_the_answer_the_caller_wrote() -> None:
    (open_call,) = group_messages([call_message("a")])
    found = pair_tool_calls(
        make_scope("prompt", make_scope("history", open_call), MessageGroup((answer_message("a", "late"),)))
    )
    assert found == make_scope(
        "prompt", make_scope("history", MessageGroup((call_message("a"), answer_message("a", "late"))))
    )


def test_a_call_with_all_its_answers_is_left_as_it_is_and_takes_no_other() -> None:
    (whole,) = group_messages(
        [call_message("a", "b"), answer_message("a", "one"), answer_message("b", "two")]
    )
    tree = make_scope("prompt", whole, MessageGroup((answer_message("a", "again"),)))
    assert pair_tool_calls(make_scope("prompt", whole)) == make_scope("prompt", whole)
    found = pair_tool_calls(tree)
    assert found.children[0] is whole
    stray = found.children[1]
    assert isinstance(stray, MessageGroup)
    assert comparable_units([stray]) == [[wrap_text("again", ORPHAN)]]


def test_the_same_unit_twice_is_shown_twice() -> None:
    open_call = MessageGroup((call_message("a"),))
    found = pair_tool_calls(
        make_scope(
            "prompt", open_call, make_scope("now", open_call, MessageGroup((answer_message("a", "one"),)))
        )
    )
    placeholder = f"={NO_RESULT}"
    first, now = found.children
    assert isinstance(first, MessageGroup)
    assert isinstance(now, Scope)
    assert comparable_units([first]) == [["a", placeholder]]
    assert comparable_units([one for one in now.children if isinstance(one, MessageGroup)]) == [["a", "=one"]]


def test_a_tree_without_tools_is_returned_as_it_is() -> None:
    tree = make_scope(
        "prompt", MessageGroup((text_message("hi"),)), make_scope("in", MessageGroup((text_message("ho"),)))
    )
    assert pair_tool_calls(tree) is tree


@given(generated_conversations())
def test_conversations_are_paired_once_and_for_all(messages: list[PromptMessage]) -> None:
    units = group_messages(messages)
    assert join_answers(units) == units
    assert [one.messages[0].role for one in units].count(Role.TOOL) == 0


IDS = st.sampled_from("ab")
MESSAGES = st.one_of(
    st.lists(IDS, min_size=1, max_size=3).map(lambda ids: call_message(*ids)),
    st.builds(answer_message, IDS, st.text("xyz", min_size=1, max_size=4)),
    st.builds(text_message, st.just("words")),
)


@given(st.lists(st.lists(MESSAGES, max_size=5), max_size=4))
def test_every_call_is_followed_by_its_answers_and_nothing_is_lost(scopes: list[list[PromptMessage]]) -> None:
    tree = make_scope(
        "prompt",
        *(
            make_scope(str(place), *(MessageGroup((one,)) for one in messages))
            for place, messages in enumerate(scopes)
        ),
    )
    found = pair_tool_calls(tree)
    assert pair_tool_calls(found) == found
    units = [one for child in found.children for one in (child.children if isinstance(child, Scope) else ())]
    outputs: list[str] = []
    for one in units:
        assert isinstance(one, MessageGroup)
        waiting: list[str] = []
        for message in one.messages:
            results = [part for part in message.parts if isinstance(part, ToolResult)]
            if message.role is Role.TOOL:
                assert [part.call_id for part in results] == [waiting.pop(0)]
                outputs += [part.output for part in results if part.output != NO_RESULT]
            else:
                assert not results
                assert not waiting
                waiting = [part.call_id for part in message.parts if isinstance(part, ToolCall)]
                if message.role is Role.USER and message.text != "words":
                    outputs += message.text.removeprefix(ORPHAN[0]).removesuffix(ORPHAN[1]).split("\n")
        assert not waiting
    told_first = [
        part.output
        for messages in scopes
        for message in messages
        for part in message.parts
        if isinstance(part, ToolResult)
    ]
    assert sorted(outputs) == sorted(told_first)


def test_calls_that_were_made_side_by_side_stay_side_by_side() -> None:
    made = [
        call_message("a"),
        call_message("b"),
        answer_message("a", "one"),
        answer_message("b", "two"),
        text_message("thanks"),
    ]
    units = [MessageGroup((message,), at, at) for at, message in enumerate(made, 1)]
    found = join_answers(units)
    assert comparable_units(found) == [["a", "b", "=one", "=two"], ["thanks"]]
    assert join_answers(found) == found
    ours = [
        MessageGroup((made[0], made[2]), 1, 3),
        MessageGroup((made[1], made[3]), 2, 4),
        MessageGroup((made[4],), 5, 5),
    ]
    assert list(pair_tool_calls(Scope(id="t", children=tuple(ours))).children) == found


def test_a_call_that_was_made_after_an_answer_stays_behind_it() -> None:
    made = [call_message("a"), answer_message("a", "one"), call_message("b"), answer_message("b", "two")]
    units = [MessageGroup((message,), at, at) for at, message in enumerate(made, 1)]
    assert comparable_units(join_answers(units)) == [["a", "=one"], ["b", "=two"]]
