"""What moves from turn to turn stands before the newest message of the user, and nowhere inside of a unit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acms import Role, ToolCall, ToolResult
from acms.plan.nodes import PlacedMessage
from acms.prompt.resolve import lay_out_messages
from acms.prompt_types import PromptMessage
from tests.support.toy import text_message


def placed_text(
    text: str, role: Role = Role.USER, *, moves: bool = False, group: int | None = None
) -> PlacedMessage:
    return PlacedMessage(
        text_message(text, role), "prompt", moves=moves, group=hash(text) if group is None else group
    )


def texts_of_layout(*placed: PlacedMessage) -> list[str]:
    return [one.message.text for one in lay_out_messages(placed)]


def test_what_moves_goes_before_the_newest_message_of_the_user() -> None:
    assert texts_of_layout(placed_text("rules"), placed_text("recalled", moves=True),
        placed_text("history"), placed_text("question")) == [
        "rules", "history", "recalled", "question",
    ]  # fmt: skip


def test_what_moves_keeps_its_order() -> None:
    assert texts_of_layout(
        placed_text("one", moves=True), placed_text("rules"), placed_text("two", moves=True)
    ) == [
        "one",
        "two",
        "rules",
    ]


def test_what_moves_stands_last_where_no_user_speaks() -> None:
    rules, said = placed_text("rules", Role.SYSTEM), placed_text("Sure:", Role.ASSISTANT)
    assert texts_of_layout(rules, placed_text("one", moves=True), said) == ["rules", "Sure:", "one"]


def test_the_beginning_of_an_answer_stays_last() -> None:
    assert texts_of_layout(placed_text("one", moves=True), placed_text("question"),
        placed_text("Sure:", Role.ASSISTANT)) == [
        "one", "question", "Sure:",
    ]  # fmt: skip


def test_a_tool_call_with_its_answer_is_not_taken_apart() -> None:
    call = PlacedMessage(
        PromptMessage(role=Role.ASSISTANT, parts=(ToolCall("a", "look"),)), "prompt", group=1
    )
    answer = PlacedMessage(
        PromptMessage(role=Role.TOOL, parts=(ToolResult("a", "found"),)), "prompt", group=1
    )
    moving = placed_text("recalled", moves=True)
    assert lay_out_messages([moving, call, answer]) == (call, answer, moving)
    assert lay_out_messages([moving, call]) == (call, moving)
    asked = placed_text("asked")
    assert lay_out_messages([moving, asked, call, answer]) == (moving, asked, call, answer)
    assert lay_out_messages([moving, call, answer, asked]) == (call, answer, moving, asked)


def test_a_unit_is_not_taken_apart() -> None:
    asked, said_so = placed_text("asked", group=3), placed_text("said so", Role.ASSISTANT, group=3)
    moving = placed_text("recalled", moves=True, group=1)
    assert lay_out_messages([moving, asked, said_so]) == (moving, asked, said_so)
    again = placed_text("asked again", group=3)
    assert lay_out_messages([moving, asked, said_so, again]) == (moving, asked, said_so, again)


def test_a_prompt_that_does_not_move_is_left_as_it_is() -> None:
    placed = (placed_text("rules"), placed_text("Sure:", Role.ASSISTANT))
    assert lay_out_messages(placed) == placed
    assert lay_out_messages(()) == ()


ROLES = st.sampled_from([Role.USER, Role.ASSISTANT])


@given(st.lists(st.tuples(st.booleans(), ROLES, st.integers(0, 1)), max_size=8))
def test_each_kind_keeps_its_order_and_nothing_is_lost_or_taken_apart(
    kinds: list[tuple[bool, Role, int]],
) -> None:
    placed: list[PlacedMessage] = []
    for moves, role, together in kinds:
        joins = together and placed and not moves and not placed[-1].moves
        group = placed[-1].group if joins else len(placed)
        placed.append(placed_text(str(len(placed)), role, moves=moves, group=group))
    found = lay_out_messages(placed)
    assert [one for one in found if one.moves] == [one for one in placed if one.moves]
    assert [one for one in found if not one.moves] == [one for one in placed if not one.moves]
    assert lay_out_messages(found) == found
    groups = [one.group for one in found]
    assert all(
        groups[place - 1] == group or group not in groups[:place]
        for place, group in enumerate(groups)
        if place
    )
