"""A prompt is made to fit its budget: the order of omission, truncation, pinned parts, and the error if it cannot."""

from __future__ import annotations

import pytest

from acms import FitError, Media, Reasoning, Role, ToolCall, ToolResult
from acms.plan.nodes import (
    ComposedMessage,
    FittedPrompt,
    KeptEnd,
    MessageGroup,
    NeedSummary,
    Node,
    Omit,
    Piece,
    Scope,
    Strategy,
    Summarise,
    Truncate,
    Window,
)
from acms.plan.tool_groups import pair_tool_calls
from acms.prompt.fit import fit_prompt
from acms.prompt.truncate import MARK, shorten_text
from acms.prompt_types import PromptMessage
from acms.text.chat_messages import NO_RESULT, wrap_summary
from tests.support.groups import group_messages
from tests.support.toy import (
    Toy,
    Words,
    fit_tree,
    numbered_words,
    run_to_end,
    text_group,
    text_message,
    texts_of_fit,
)


def make_scope(
    id: str,
    *children: Node,
    priority: int = 3,
    by: Strategy | None = None,
    floor: int = 0,
    ceiling: int | None = None,
    moves: bool = False,
) -> Scope:
    return Scope(
        id=id, children=children, priority=priority, strategy=by, floor=floor, ceiling=ceiling, moves=moves
    )


def prompt_scope(*children: Node) -> Scope:
    return Scope(id="prompt", children=children)


def left_out_nodes(found: FittedPrompt) -> list[tuple[str, str, bool]]:
    return [(one.path, one.rule, one.gone) for one in found.omissions]


def composed_pieces(*ranked: tuple[str, float]) -> ComposedMessage:
    return ComposedMessage(
        Role.DEVELOPER,
        tuple(Piece(text, text.split()[0], rank) for text, rank in ranked),
        "pins:\n",
        "\n",
        "",
    )


# ── what is left out, and in which order ────────────────────────────────────────────────────────────────────────────


def test_truncate_leaves_the_oldest_out_and_keeps_its_place() -> None:
    tree = prompt_scope(
        text_group("Head"), make_scope("list", text_group("Alpha"), text_group("Beta"), by=Truncate())
    )
    assert texts_of_fit(fit_tree(tree, 6)) == ["Head", "Beta"]
    keeps_start = prompt_scope(
        text_group("Head"),
        make_scope("list", text_group("Alpha"), text_group("Beta"), by=Truncate(keep=KeptEnd.START)),
    )
    assert texts_of_fit(fit_tree(keeps_start, 6)) == ["Head", "Alpha"]


def test_children_shrink_before_their_parents() -> None:
    inner = make_scope("inner", text_group("inner text"), by=Omit())
    tree = prompt_scope(make_scope("outer", text_group("outer text"), inner, by=Omit()))
    assert texts_of_fit(fit_tree(tree, 4)) == ["outer text"]
    assert texts_of_fit(fit_tree(tree, 3)) == []


def test_a_child_of_lower_priority_number_outlives_its_siblings_but_not_its_parent() -> None:
    pins = make_scope("pins", text_group("pin"), by=Omit(), priority=1)
    tree = prompt_scope(
        make_scope("box", pins, text_group("old"), text_group("new"), by=Truncate(), priority=3)
    )
    assert texts_of_fit(fit_tree(tree, 6)) == ["old", "new"]


def test_a_window_keeps_the_newest_and_the_newest_message_to_the_last() -> None:
    history = make_scope(
        "history",
        *(text_group(numbered_words(3, f"m{n}-"), before=5 * n, mandatory=n == 9) for n in range(10)),
        by=Window(0),
    )
    assert texts_of_fit(fit_tree(prompt_scope(history), 27))[0].startswith("m5-")
    assert len(fit_tree(prompt_scope(history), 27).placed) == 5
    assert texts_of_fit(fit_tree(prompt_scope(history), 5)) == [numbered_words(3, "m9-")]


def test_the_newest_message_is_cut_only_when_nothing_else_is_left() -> None:
    history = make_scope(
        "history", text_group("old"), text_group(numbered_words(9), mandatory=True), by=Window()
    )
    recall = make_scope("recall", text_group("recalled"), by=Omit(), priority=2)
    tree = prompt_scope(history, recall)
    assert texts_of_fit(fit_tree(tree, 11)) == [numbered_words(9)]
    (one,) = fit_tree(tree, 8).placed
    assert one.rendition == "cut"
    assert one.tokens <= 8
    assert MARK in one.message.text
    assert one.message.text.startswith("w0 w1")
    assert one.message.text.endswith("8")
    assert left_out_nodes(fit_tree(tree, 8)) == [
        ("prompt/history", "window", True),
        ("prompt/history", "window", False),
        ("prompt/recall", "omit", True),
    ]


def test_a_window_starts_at_the_same_place_until_a_whole_step_is_given_up() -> None:
    def first(size: int) -> str:
        units = [
            text_group(numbered_words(8, f"m{n}-"), before=10 * n, mandatory=n == size - 1)
            for n in range(size)
        ]
        return texts_of_fit(fit_tree(prompt_scope(make_scope("history", *units, by=Window(0.25))), 200))[
            0
        ].split("-")[0]

    starts = [first(size) for size in range(20, 60)]
    assert len(set(starts)) <= 10
    assert [int(one[1:]) for one in starts] == sorted(int(one[1:]) for one in starts)


def test_what_must_stay_takes_room_from_the_rest_of_a_window() -> None:
    units = [text_group(numbered_words(8, f"m{n}-"), before=10 * n, mandatory=n in (2, 9)) for n in range(10)]
    found = fit_tree(prompt_scope(make_scope("history", *units, by=Window(0))), 50)
    assert [text.split("-")[0] for text in texts_of_fit(found)] == ["m2", "m6", "m7", "m8", "m9"]
    assert found.tokens == 50


def test_a_window_starts_on_a_line_whatever_moves_behind_it() -> None:
    def shown(recalled: int) -> list[str]:
        units = [text_group(numbered_words(8), before=10 * n, first=n, last=n) for n in range(1, 40)]
        recall = make_scope(
            "recall", text_group(numbered_words(recalled)), by=Truncate(60), priority=2, moves=True
        )
        found = fit_tree(prompt_scope(make_scope("history", *units, by=Window()), recall), 300)
        return [str(one.first) for one in found.placed if one.path == "prompt/history"]

    starts = [shown(words)[0] for words in range(1, 60)]
    assert starts == sorted(starts, key=int)
    assert len(set(starts)) == 2


# ── cutting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("keep", "text"),
    [(KeptEnd.START, "w0 w1 w2 […]"), (KeptEnd.END, "[…] w7 w8 w9"), (None, "w0 w1 w2 […] w9")],
)
def test_a_text_is_cut_at_the_end_that_is_not_kept(keep: KeptEnd | None, text: str) -> None:
    assert shorten_text(numbered_words(10), 4 if keep else 5, Words(), keep).split() == text.split()


def test_a_text_that_fits_is_not_cut_and_none_fits_in_nothing() -> None:
    assert shorten_text("one two", 2, Words()) == "one two"
    assert shorten_text("one two", 0, Words()) == ""
    assert shorten_text("", 5, Words()) == ""


@pytest.mark.parametrize("keep", [*KeptEnd, None])
@pytest.mark.parametrize("words", [1, 3])
def test_a_text_of_many_characters_per_token_that_fits_is_not_cut(keep: KeptEnd | None, words: int) -> None:
    text = " ".join(["x" * 120] * words)
    assert shorten_text(text, words, Words(), keep) == text


def test_the_results_of_tools_are_cut_and_calls_are_not() -> None:
    call = PromptMessage(
        role=Role.ASSISTANT,
        parts=(Reasoning("let me see"), ToolCall("a", "read", '{"path": "x"}'), ToolCall("b", "read")),
    )
    answers = [
        PromptMessage(role=Role.TOOL, parts=(ToolResult(id, numbered_words(size)),), sources=(id,))
        for id, size in (("a", 50), ("b", 4))
    ]
    (whole,) = group_messages([call, *answers])
    tree = prompt_scope(make_scope("history", whole._replace(mandatory=True), by=Window()))
    found = fit_tree(tree, 40)
    assert found.tokens <= 40
    assert [one.rendition for one in found.placed] == ["whole", "cut", "whole"]
    assert found.placed[0].message == call
    assert found.placed[2].message == answers[1]
    assert found.placed[1].message.role is Role.TOOL
    assert found.placed[1].message.sources == ("a",)
    assert len({one.group for one in found.placed}) == 1


def test_long_results_are_cut_to_one_length() -> None:
    call = PromptMessage(role=Role.ASSISTANT, parts=(ToolCall("a", "read"), ToolCall("b", "read")))
    answers = [PromptMessage(role=Role.TOOL, parts=(ToolResult(id, numbered_words(50)),)) for id in "ab"]
    tree = prompt_scope(make_scope("history", *group_messages([call, *answers]), by=Truncate()))
    assert [one.tokens for one in fit_tree(tree, 46).placed[1:]] == [20, 20]


def test_what_is_cut_stays_in_its_room_where_a_message_costs_more_than_its_text() -> None:
    class Dear(Toy):
        """Charges one more for every four words of a message."""

        def cost(self, message: PromptMessage) -> int:
            return super().cost(message) * 5 // 4

    for room in range(8, 40):
        tree = prompt_scope(make_scope("list", text_group(numbered_words(60)), by=Truncate(room)))
        (one,) = fit_tree(tree, None, codec=Dear()).placed
        assert room - 4 <= one.tokens <= room


def test_what_cannot_be_cut_is_left_out() -> None:
    picture = PromptMessage(role=Role.USER, parts=(Media("image/png", "ref", tokens=900),))
    codec = Toy()
    codec.media = 900
    tree = prompt_scope(text_group("go"), make_scope("list", MessageGroup((picture,)), by=Truncate()))
    assert texts_of_fit(fit_tree(tree, 100, codec=codec)) == ["go"]


def test_a_stated_count_is_not_taken_for_that_of_the_cut_text() -> None:
    message = text_message(numbered_words(30), tokens=30, counter="words", sources=("m1",))
    found = fit_tree(prompt_scope(make_scope("list", MessageGroup((message,)), by=Truncate(10))), None)
    (one,) = found.placed
    assert one.message.tokens is None
    assert one.message.sources == ("m1",)
    assert (found.omissions[0].ids, found.omissions[0].gone, found.omissions[0].tokens) == (
        ("m1",),
        False,
        32 - one.tokens,
    )


# ── composed messages ───────────────────────────────────────────────────────────────────────────────────────────────


def test_pieces_go_lowest_first_and_of_equals_the_later_one() -> None:
    block = composed_pieces(("a 1", 2), ("b 1", 1), ("c 1", 2), ("d 1", 1))
    tree = prompt_scope(make_scope("pins", block, by=Truncate(), priority=1))
    assert [piece.id for piece in fit_tree(tree, 9).placed[0].pieces] == ["a", "b", "c"]
    assert [piece.id for piece in fit_tree(tree, 7).placed[0].pieces] == ["a", "c"]
    found = fit_tree(tree, 6)
    assert found.placed[0].message.text == "pins:\na 1"
    assert left_out_nodes(found) == [("prompt/pins", "pieces", True)] * 3
    assert [one.ids for one in found.omissions] == [("b",), ("c",), ("d",)]


def test_the_last_piece_is_cut_and_then_the_message_goes() -> None:
    tree = prompt_scope(
        text_group("go"),
        make_scope(
            "pins", composed_pieces((numbered_words(20), 2), ("low", 1)), by=Truncate(keep=KeptEnd.START)
        ),
    )
    found = fit_tree(tree, 12)
    assert found.placed[1].rendition == "cut"
    assert found.placed[1].message.text.startswith("pins:\nw0 w1")
    assert found.placed[1].message.role is Role.DEVELOPER
    assert [(one.ids, one.gone) for one in found.omissions] == [(("w0",), False), (("low",), True)]
    assert texts_of_fit(fit_tree(tree, 4)) == ["go"]


def test_a_composed_message_names_the_sources_of_what_it_shows() -> None:
    block = ComposedMessage(Role.USER, (Piece("one", "p1", 1, ("m1",)), Piece("two", "p2", 0, ("m2", "m1"))))
    assert fit_tree(prompt_scope(block), None).placed[0].message.sources == ("m1", "m2")
    assert fit_tree(prompt_scope(make_scope("recall", block, by=Truncate())), 3).placed[
        0
    ].message.sources == ("m1",)


def test_a_composed_message_without_pieces_is_no_message() -> None:
    found = fit_tree(prompt_scope(ComposedMessage(Role.USER, (), "open", "\n", "close")), 0)
    assert found.placed == ()
    assert found.tokens == 0


def test_a_composed_message_counts_as_it_is_written() -> None:
    class Tight(Toy):
        """Counts joined text as less than its parts: every word that is there already is free."""

        def cost(self, message: PromptMessage) -> int:
            return 2 + len(set(message.text.split()))

    block = ComposedMessage(Role.USER, tuple(Piece("same words", str(n), -n, tokens=2) for n in range(20)))
    tree = prompt_scope(make_scope("recall", block, by=Truncate(4)))
    found = run_to_end(fit_prompt(tree, Tight(), None))
    assert found.tokens == 4
    assert len(found.placed[0].pieces) >= 3


# ── ceilings and floors ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_ceiling_holds_whatever_the_budget() -> None:
    tree = prompt_scope(
        make_scope("docs", text_group("a b"), text_group("c d"), text_group("e f"), ceiling=8)
    )
    found = fit_tree(tree, None)
    assert texts_of_fit(found) == ["c d", "e f"]
    assert left_out_nodes(found) == [("prompt/docs", "ceiling", True)]


def test_of_a_section_over_its_ceiling_pieces_go_before_whole_messages() -> None:
    box = make_scope("docs", composed_pieces(("a one", 2), ("b two", 1)), text_group("c d"), ceiling=9)
    found = fit_tree(prompt_scope(box), None)
    assert texts_of_fit(found) == ["pins:\na one", "c d"]
    assert left_out_nodes(found) == [("prompt/docs", "pieces", True)]


def test_a_section_with_a_ceiling_shrinks_by_its_own_priorities_first() -> None:
    box = make_scope(
        "docs",
        text_group("a b"),
        make_scope("more", text_group("c d"), by=Omit(), priority=9),
        text_group("e f"),
        ceiling=8,
    )
    assert texts_of_fit(fit_tree(prompt_scope(box), None)) == ["a b", "e f"]


def test_a_floor_holds_where_a_text_can_be_cut_in_large_steps_only() -> None:
    class Coarse(Words):
        """Five tokens a word."""

        def count(self, text: str) -> int:
            return 5 * super().count(text)

    codec = Toy()
    codec.counter = Coarse()
    kept = make_scope("kept", text_group(numbered_words(10)), by=Truncate(), floor=33)
    tree = prompt_scope(kept, make_scope("other", text_group(numbered_words(4)), by=Omit(), priority=1))
    assert texts_of_fit(fit_tree(tree, 64, codec=codec))[0] == f"{MARK} w3 w4 w5 w6 w7 w8 w9"
    assert texts_of_fit(fit_tree(tree, 55, codec=codec)) == [
        numbered_words(10)
    ]  # 32 tokens would be below it


def test_a_floor_holds_against_what_is_around_and_what_is_inside() -> None:
    inner = make_scope("inner", text_group("a b"), text_group("c d"), by=Truncate(), floor=4)
    around = prompt_scope(make_scope("outer", inner, text_group("e f"), by=Truncate()))
    assert texts_of_fit(fit_tree(around, 4)) == ["c d"]
    outer = prompt_scope(
        make_scope(
            "outer",
            make_scope("inner", text_group("a b"), text_group("c d"), by=Truncate()),
            text_group("e f"),
            floor=8,
        )
    )
    assert texts_of_fit(fit_tree(outer, 8)) == ["c d", "e f"]
    with pytest.raises(FitError):
        fit_tree(outer, 7)


# ── summaries ───────────────────────────────────────────────────────────────────────────────────────────────────────


def summarized_scope(text: str = "", covers: int = 0, size: int = 8, tokens: int = 6, *others: Node) -> Scope:
    units = (text_group(numbered_words(8, f"m{n}-"), mandatory=n == size - 1) for n in range(size))
    by = Summarise("sum", text, covers, tokens)
    return prompt_scope(make_scope("history", *units, by=by), *others)


def test_a_summary_is_asked_for_only_when_room_is_short() -> None:
    assert fit_tree(summarized_scope(), 80).summaries == ()
    steps = fit_prompt(summarized_scope(), Toy(), 60)
    need = next(steps)
    assert isinstance(need, NeedSummary)
    assert (need.id, need.existing, need.tokens) == ("sum", "", 6)
    found = answered_with(steps, "the story so far")
    assert found.placed[0].rendition == "summary"
    assert found.placed[0].message == text_message(wrap_summary("the story so far"), Role.SYSTEM)
    assert found.summaries == (("sum", "the story so far", len(need.groups)),)
    assert {one.rule for one in found.omissions} == {"summary"}
    assert found.tokens <= 40  # half of the room stays free


def answered_with(steps: object, text: str) -> FittedPrompt:
    try:
        steps.send(text)  # type: ignore[attr-defined]
    except StopIteration as end:
        found: FittedPrompt = end.value
        return found
    raise AssertionError("a second question")


def test_a_stored_summary_that_is_enough_is_used_without_a_question() -> None:
    found = run_to_end(fit_prompt(summarized_scope("told before", 5), Toy(), 60))
    assert texts_of_fit(found)[0] == wrap_summary("told before")
    assert len(found.placed) == 4
    assert found.summaries == ()


def test_a_stored_summary_is_not_used_while_there_is_room() -> None:
    assert [one.rendition for one in fit_tree(summarized_scope("told before", 5), 80).placed] == ["whole"] * 8


def test_a_new_summary_goes_on_from_the_stored_one() -> None:
    need = next(fit_prompt(summarized_scope("told before", 2), Toy(), 50))
    assert need.existing == "told before"
    assert need.groups[0].messages[0].text == numbered_words(8, "m2-")


def test_a_summary_that_is_not_shorter_is_not_used() -> None:
    tree = prompt_scope(
        make_scope(
            "history", text_group("one"), text_group("two"), by=Summarise("sum", numbered_words(9), 2, 20)
        )
    )
    with pytest.raises(FitError):
        fit_tree(tree, 5)


def test_a_summary_that_stands_for_more_takes_the_place_of_the_one_before() -> None:
    units = [text_group(numbered_words(8, f"m{n}-"), mandatory=n == 11) for n in range(12)]
    history = make_scope("history", *units, by=Summarise("sum", "", 0, 6), ceiling=119)
    found = fit_tree(prompt_scope(history, text_group("go")), 35, "the first part", "all of it so far")
    assert [one.rendition for one in found.placed].count("summary") == 1
    assert texts_of_fit(found)[0] == wrap_summary("all of it so far")
    assert [text for _, text, _ in found.summaries] == ["all of it so far"]
    assert found.tokens <= 35


def test_an_answer_is_cut_to_its_tokens() -> None:
    found = fit_tree(summarized_scope(), 60, numbered_words(50, "s"))
    assert found.placed[0].message.text == wrap_summary("s0 s1 s2 s3 s4 […]")


def test_a_summarised_section_shrinks_further() -> None:
    tree = summarized_scope("told you so before", 5, 8, 6)
    assert [one.rendition for one in fit_tree(tree, 39, None).placed] == ["summary", "whole", "whole"]
    assert [one.rendition for one in fit_tree(tree, 30, None).placed] == ["summary", "whole"]
    assert [one.rendition for one in fit_tree(tree, 27, None).placed] == ["summary", "whole"]
    assert MARK in fit_tree(tree, 27, None).placed[0].message.text
    assert [one.rendition for one in fit_tree(tree, 12, None).placed] == ["whole"]
    assert [one.rendition for one in fit_tree(tree, 9, None).placed] == ["cut"]


def test_without_an_answer_the_rest_goes_on() -> None:
    tree = summarized_scope(
        "", 0, 8, 6, make_scope("extra", text_group("extra words"), by=Omit(), priority=1)
    )
    assert texts_of_fit(fit_tree(tree, 80, None))[-1] == numbered_words(8, "m7-")
    with pytest.raises(FitError):
        fit_tree(summarized_scope(), 60, None)
    with pytest.raises(FitError):
        fit_tree(summarized_scope(), 60, "  ")


def test_a_mandatory_message_is_never_summarised() -> None:
    found = fit_tree(summarized_scope(), 14, "all")
    assert texts_of_fit(found)[-1] == numbered_words(8, "m7-") or found.placed[-1].rendition == "cut"


# ── the error ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_error_says_by_how_much_where_what_was_tried_and_what_would_help() -> None:
    tree = prompt_scope(
        make_scope("rules", text_group(numbered_words(30), Role.SYSTEM), priority=0),
        make_scope("extra", text_group("extra"), by=Omit()),
        text_group(numbered_words(16)),
    )
    with pytest.raises(FitError) as caught:
        run_to_end(fit_prompt(tree, Toy(), 20, budget=25))
    error = caught.value
    assert (error.over, error.budget, error.required, error.where) == (30, 25, 55, "prompt/rules")
    assert error.tried == ("omit of prompt/extra (priority 3): 53 → 50 tokens",)
    assert error.options == (
        "raise the budget by 30",
        "give prompt/rules a priority and a strategy: it takes 32 tokens",
    )
    assert str(error) == "55 tokens are required (most of it in prompt/rules), 30 more than the budget of 25"


def test_the_error_asks_for_a_budget_that_is_enough() -> None:
    class Careful(Toy):
        """A bound with a margin of a quarter."""

        def limit(self, budget: int, tools: int = 0) -> int:
            return budget * 4 // 5

    codec, tree = Careful(), prompt_scope(text_group(numbered_words(70)))
    with pytest.raises(FitError) as caught:
        run_to_end(fit_prompt(tree, codec, codec.limit(40), budget=40))
    assert (caught.value.over, caught.value.required) == (50, 90)
    assert run_to_end(fit_prompt(tree, codec, codec.limit(90), budget=90)).tokens == 72


def test_an_empty_prompt_fits_into_nothing() -> None:
    assert fit_tree(prompt_scope(), 0) == FittedPrompt((), 0, (), ())
    with pytest.raises(FitError):
        fit_tree(prompt_scope(), 2, codec=Toy(primer=3))


# ── defects of the seed's engine, absent here (spec 2.2, by number) ─────────────────────────────────────────────────


def test_defect_2_truncate_is_a_cap_of_tokens_and_takes_no_more_than_needed() -> None:
    long = make_scope("block", text_group(numbered_words(660)), by=Truncate(50))
    found = fit_tree(prompt_scope(long), 10_000)
    assert 40 <= found.tokens <= 50  # a block of one message is cut, it does not vanish
    twenty = make_scope("list", *(text_group("one two three") for _ in range(20)), by=Truncate())
    assert len(fit_tree(prompt_scope(twenty), 99).placed) == 19
    assert fit_tree(prompt_scope(make_scope("none", text_group("gone"), by=Truncate(0))), None).placed == ()


def test_defect_2_a_cap_holds_also_for_what_must_stay() -> None:
    call = PromptMessage(role=Role.ASSISTANT, parts=(ToolCall("a", "look", numbered_words(30)),))
    (newest,) = group_messages([call])
    capped = make_scope("history", text_group("old"), newest._replace(mandatory=True), by=Truncate(10))
    assert fit_tree(prompt_scope(capped), None).placed == ()


def test_defect_6_messages_in_nested_scopes_are_part_of_the_content() -> None:
    nested = make_scope(
        "outer",
        make_scope("one", text_group("a"), text_group("b")),
        make_scope("two", make_scope("deep", text_group("c"))),
        by=Window(0),
    )
    assert texts_of_fit(fit_tree(prompt_scope(nested), 6)) == ["b", "c"]


def test_defect_10_a_limit_of_nothing_is_one_and_an_empty_prompt_is_no_error() -> None:
    with pytest.raises(FitError):
        fit_tree(prompt_scope(text_group("hi")), 0)
    assert fit_tree(prompt_scope(make_scope("extra", text_group("hi"), by=Omit())), 0).placed == ()


def test_an_open_call_is_marked_as_a_placeholder() -> None:
    call = PromptMessage(role=Role.ASSISTANT, parts=(ToolCall("a", "look"),))
    found = fit_tree(pair_tool_calls(prompt_scope(MessageGroup((call,)))), None)
    assert [(one.rendition, one.group) for one in found.placed] == [("whole", 0), ("placeholder", 0)]
    assert texts_of_fit(found)[1] == NO_RESULT


def test_what_a_fit_leaves_alone_is_the_same_object() -> None:
    tree = prompt_scope(
        text_group("rules"), make_scope("history", text_group("old"), text_group("new"), by=Truncate())
    )
    found = fit_tree(tree, 6)
    assert found.placed[0].message is tree.children[0].messages[0]  # type: ignore[union-attr]
