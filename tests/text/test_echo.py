"""Rendered text: text written by ACMS is not learned again, and messages of users are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import ACMS, open_storage
from acms.text import chat_messages
from acms.text.markers import detect_markers, remove_rendered_text, strip_rendered_blocks

BLOCK = chat_messages.wrap_text("user: Decision: use Redis.\n\nassistant: Noted.", chat_messages.RECALLED)
TRANSCRIPT = "user: Decision: use Redis.\n\nassistant: Noted.\n\nHere is a second paragraph.\n\nuser: Thanks."

PROSE = [
    "",
    "Decision: use Redis.",
    "We use Redis.\n\nThe budget is 40,000 dollars.\n",
    "  Indented.\n\n\n\nFar below.  \n",
    "The user: a person. The tool: a hammer.",
    "User: this is how I write.\n\nAssistant: and this is how you do.",
    "useragent: Mozilla/5.0",
    "I wrote user:pass somewhere.",
    "Use <recalled> in the template.",
    "<details>\n<summary>\nMore\n</summary>\nDecision: use Redis.\n</details>",
    "An opening mark alone\n<recalled>\nis no block.",
    "A closing mark alone\n</recalled>\nis none either.",
    "Line one\r\n\r\nLine two\r\n",
    "Constraint: never deploy on Friday.\n- user: root\n- port: 22",
    "Karl: I am no speaker you know.",
]


@pytest.mark.parametrize("text", PROSE)
def test_ordinary_prose_is_returned_byte_for_byte(text: str) -> None:
    assert remove_rendered_text(text) == text
    assert strip_rendered_blocks(text) is text


@given(st.text(alphabet=st.sampled_from("ab :.\n\r\t-*`<>/é"), max_size=200))
def test_text_without_roles_and_blocks_is_returned_byte_for_byte(text: str) -> None:
    assert remove_rendered_text(text) == (text if text.strip() else "")


@pytest.mark.parametrize(
    "block",
    [
        BLOCK,
        *(chat_messages.wrap_text("x", marks) for marks in (chat_messages.SUMMARY, chat_messages.ORPHAN)),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_delimited_block_is_left_out_wherever_it_stands(block: str, end: str) -> None:
    block = block.replace("\n", end)
    assert remove_rendered_text(block) == ""
    assert remove_rendered_text(f"Look:{end}{block}") == "Look:"
    assert remove_rendered_text(f"{block}{end}{end}What do you make of it?") == "What do you make of it?"
    assert (
        remove_rendered_text(f"Before.{end}{block}{end}After.{end}{block}{end}Last.")
        == "Before.\n\nAfter.\n\nLast."
    )


def test_a_block_inside_a_block_belongs_to_it() -> None:
    nested = chat_messages.wrap_text(f"user: see this:\n{BLOCK}\nand that", chat_messages.RECALLED)
    assert remove_rendered_text(f"{nested}\nMine.") == "Mine."
    summary = chat_messages.wrap_text(nested, chat_messages.SUMMARY)
    assert remove_rendered_text(f"{summary}\nMine.") == "Mine."


def test_an_opening_mark_that_somebody_said_does_not_let_the_block_out() -> None:
    block = chat_messages.wrap_text("user: write <recalled>\nbefore it", chat_messages.RECALLED)
    assert remove_rendered_text(f"{block}\n\nMine.") == "Mine."


def test_a_transcript_is_left_out_with_contents_of_several_paragraphs() -> None:
    assert remove_rendered_text(TRANSCRIPT) == ""
    assert (
        remove_rendered_text(f"You said:\n\n{TRANSCRIPT}\n\nIs that right?") == "You said:\n\nIs that right?"
    )


def test_what_follows_a_quotation_is_told_as_far_as_it_can_be() -> None:
    assert remove_rendered_text("assistant: Steps:\n\n1. one\n\n2. two\n\nI did both.") == "I did both."
    assert remove_rendered_text("assistant: Run\n```\na\n\nDecision: b\n\n```\n\nI ran it.") == "I ran it."
    assert remove_rendered_text("user: a\n\n    Decision: indented\n\nMine.") == "Mine."


def test_known_speakers_are_quoted_too() -> None:
    text = "Caroline: Hi.\n\nMelanie: Hello."
    assert remove_rendered_text(text) == text
    assert remove_rendered_text(text, speakers={"Caroline", "Melanie"}) == ""
    assert remove_rendered_text(f"{text}\n\nWho is that?", speakers={"Caroline", "Melanie"}) == "Who is that?"


def test_known_facts_are_not_learned_again() -> None:
    known = {"The cache layer is Redis.", "Line one.\n\nLine two."}
    assert remove_rendered_text("The cache layer is Redis.", known=known) == ""
    assert remove_rendered_text("fact: The cache layer is Redis.\n\nRight?", known=known) == "Right?"
    assert remove_rendered_text("Line one.\n\nLine two.\n\nMine.", known=known) == "Mine."
    assert remove_rendered_text("Line one.\n\nMine.", known=known) == "Line one.\n\nMine."
    assert (
        remove_rendered_text("The cache layer is Redis now.", known=known) == "The cache layer is Redis now."
    )
    assert (
        remove_rendered_text("So: The cache layer is Redis.", known=known) == "So: The cache layer is Redis."
    )


def test_what_is_kept_keeps_its_own_gaps() -> None:
    assert remove_rendered_text("a\n\n\nb\n\nuser: c\n\nd\n \ne") == "a\n\n\nb\n\nd\n \ne"


@pytest.mark.parametrize("size", [100_000])
def test_adversarial_texts_are_read_in_one_pass(size: int) -> None:
    for text in (
        "<recalled>\n" * (size // 11),
        "\n</recalled>" * (size // 12),
        "user: a\n\n" * (size // 9),
        "\n" * size,
        "\n \t" * (size // 3),
        "```\n\n" * (size // 5),
        "<summary>\n<recalled>\n\n</summary>\n</recalled>" * (size // 45),
    ):
        remove_rendered_text(text, known={"user: a", "x"}, speakers={"user"})


# ── round trips ─────────────────────────────────────────────────────────────────────────────────────────────────────

_CONTENT = st.lists(
    st.sampled_from(["Decision: use Redis.", "Fine.\n\nAnd more.", "- a\n- b", "Why: because.", "ok"]),
    min_size=1,
    max_size=4,
)


@given(contents=_CONTENT, own=st.sampled_from(["", "What about that?", "Decision: use KeyDB."]))
def test_joined_items_pasted_give_the_own_words_around_them(contents: list[str], own: str) -> None:
    pasted = "\n\n".join(f"assistant: {content}" for content in [*contents, "Done."])
    assert remove_rendered_text(f"{pasted}\n\n{own}" if own else pasted) == own
    assert remove_rendered_text(f"{own}\n\n{pasted}" if own else pasted) == own
    assert remove_rendered_text(chat_messages.wrap_text(pasted, chat_messages.RECALLED) + own) == own


async def test_recalled_text_pasted_into_a_message_is_no_message_of_its_own(tmp_path: Path) -> None:
    async with open_storage(f"sqlite:///{tmp_path / 'log.db'}") as storage, ACMS("s", storage) as session:
        await session.ingest("user", "Decision: the cache layer is Redis.")
        await session.ingest("assistant", "Noted.\n\nThe cache layer is Redis, then.")
        for n in range(12):
            await session.ingest("user", f"Chatter about the weather on day {n}.")
        items = await session.recall("Which cache layer?", token_budget=400)
        assert "Redis" in items.text()
        assert remove_rendered_text(items.text()) == ""
        assert remove_rendered_text(f"{items.text()}\n\nIs that so?") == "Is that so?"
        messages = await session.messages("Which cache layer?", budget=120)
        joined = "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)
        assert "<recalled>" in joined
        assert remove_rendered_text(joined) == ""
        block = next(
            str(message["content"]) for message in messages if "<recalled>" in str(message["content"])
        )
        assert (
            remove_rendered_text(f"I was told this:\n{block}\nIs that so?")
            == "I was told this:\n\nIs that so?"
        )


# ── markers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_marker_is_found_in_what_messages_delimited() -> None:
    lines = chat_messages.wrap_text("Decision: use Redis.\nGoal: ship.", chat_messages.RECALLED)
    assert detect_markers("Decision: use Redis.\nGoal: ship.") == ("decision", "goal")
    assert detect_markers(lines) == ()
    assert detect_markers(f"{lines}\nConstraint: no Redis.") == ("constraint",)
    assert detect_markers(f"Goal: ship.\n{lines}") == ("goal",)


async def test_a_session_marks_what_was_said_and_not_what_it_rendered(tmp_path: Path) -> None:
    async with open_storage(f"sqlite:///{tmp_path / 'log.db'}") as storage, ACMS("s", storage) as session:
        block = chat_messages.wrap_text("Decision: use Redis.", chat_messages.RECALLED)
        (shown,) = await session.ingest_many([{"role": "user", "content": block}])
        assert shown.markers == ()
        (said,) = await session.ingest_many([{"role": "user", "content": f"{block}\nGoal: leave Redis."}])
        assert said.markers == ("goal",)
        id = await session.replace(said.message_id, f"{block}\nNo goal any more.")
        assert (await session.get(id)).markers == ()
