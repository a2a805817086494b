"""The extractive summary: always within its limit, and what cannot be guessed again survives."""

from __future__ import annotations

import json
import os
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from acms.ports import TokenCounter, Turn
from acms.providers.tokens import token_counter
from acms.text.extract import extract_summary
from tests.support.agentlog import STYLES, agent_log, rounds
from tests.support.counters import COUNTERS, NAMES, Counting

count = token_counter("o200k_base").count


def make_turn(
    text: str, speaker: str = "user", *markers: str, version: int = 1, summary: bool = False
) -> Turn:
    return Turn(speaker=speaker, text=text, markers=markers, version=version, summary=summary)


def summary_turn(text: str) -> Turn:
    return make_turn(text, "summary", version=99, summary=True)


TALK = [
    make_turn(
        "Please look at the billing service. It fails since yesterday. The invoice ORD-4312 was for $1,250.00."
    ),
    make_turn("Okay, I'll have a look at the logs. One moment.", "assistant"),
    make_turn(
        '{"status": "ok", "path": "/var/log/billing.log", "message": "connection reset by peer"}', "tool"
    ),
    make_turn(
        "Looking at it now. The connection to db-3.internal:5432 is reset after 30 s. Ask Maria Keller.",
        "assistant",
    ),
    make_turn("We decided to move to PostgreSQL 17. Nobody likes it.", "user", "decision"),
    make_turn("Good. I'll continue with the migration then. It will take a while.", "assistant"),
]


# ── what survives ───────────────────────────────────────────────────────────────────────────────────────────────────

SEEDS = [1, random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID")).randrange(1 << 32)]


@pytest.mark.parametrize("style", STYLES)
def test_details_said_once_survive_in_a_fifth_of_the_tokens(style: str) -> None:
    for seed in SEEDS:
        turns, planted = agent_log(random.Random(seed), style=style)
        limit = sum(count(one.text) for one in turns) // 5
        summary = extract_summary(turns, limit, count)
        assert count(summary) <= limit
        lost = [detail for detail in planted if detail not in summary]
        print(
            f"{style}, seed {seed}: {len(planted) - len(lost)} of {len(planted)} in {count(summary)} tokens"
        )
        assert len(lost) <= 0.05 * len(planted), (seed, lost)


@pytest.mark.parametrize("style", STYLES)
def test_details_survive_three_rounds_of_compaction(style: str) -> None:
    """Each round may have a fifth of its own input: the last summary is under a tenth of all that was said."""
    for seed in SEEDS:
        turns, planted = agent_log(random.Random(seed), style=style)
        summary = rounds(turns, 0.2, count)
        lost = [detail for detail in planted if detail not in summary]
        print(
            f"{style}, seed {seed}: {len(planted) - len(lost)} of {len(planted)} in {count(summary)} tokens"
        )
        assert len(lost) <= 0.1 * len(planted), (seed, lost)


def test_it_reads_well() -> None:
    summary = extract_summary(TALK, 75, count)
    assert summary.splitlines() == [
        '- user (decision): "We decided to move to PostgreSQL 17. Nobody likes it."',
        'Details: The invoice ORD-4312 was for $1,250.00; "path": "/var/log/billing.log"; '
        '"message": "connection reset by peer"; The connection to db-3.internal:5432 is reset after 30 s',
    ]


def test_what_fits_is_kept_whole_in_order() -> None:
    summary = extract_summary(TALK, 10_000, count)
    assert [line.split(": ")[0] for line in summary.splitlines()] == [
        "- user", "- assistant", "- tool", "- assistant", "- user (decision)", "- assistant",
    ]  # fmt: skip
    for one in TALK:
        assert one.text in summary


@pytest.mark.parametrize("limit", [20, 40, 60, 90, 10_000])
def test_a_summary_that_fits_is_returned_as_it_is(limit: int) -> None:
    summary = extract_summary(TALK, limit, count)
    assert extract_summary([summary_turn(summary)], limit, count) == summary
    assert extract_summary([summary_turn(summary)], 10_000, count) == summary


def test_two_summaries_make_one_with_one_list_of_details() -> None:
    one, two = extract_summary(TALK[:3], 40, count), extract_summary(TALK[3:], 60, count)
    both = extract_summary([summary_turn(one), summary_turn(two)], 10_000, count)
    assert both.count("Details: ") == 1
    assert "ORD-4312" in both
    assert "Maria Keller" in both


def test_a_summary_of_another_author_is_text_like_any_other() -> None:
    other = "The user wants to fix billing.\n\nThey decided on PostgreSQL 17."
    summary = extract_summary([summary_turn(other)], 1000, count)
    assert summary == "- summary: The user wants to fix billing.\n- summary: They decided on PostgreSQL 17."
    assert extract_summary([summary_turn(summary)], 1000, count) == summary


def test_what_is_empty_in_a_summary_is_no_line_of_it() -> None:
    given = '- Ann (decision): "  "\n\n- Ben: We ship on Friday.\nDetails: ORD-1; ; ORD-2'
    summary = extract_summary([summary_turn(given)], 1000, count)
    assert summary == "- Ben: We ship on Friday.\nDetails: ORD-1; ORD-2"


def test_a_number_is_listed_with_what_it_is_about_and_the_newest_first() -> None:
    turns = [
        make_turn(f"table_{n % 4} is fine. It has {1_000 + n} rows.", speaker="assistant") for n in range(60)
    ]
    summary = extract_summary(turns, 200, count)
    details = summary.rpartition("Details: ")[2].split("; ")
    assert "table_3 […] It has 1059 rows" in details
    assert all(detail.startswith("table_") for detail in details)
    assert "It has 1001 rows" not in summary


def test_near_repeats_are_said_once() -> None:
    turns = [
        make_turn(f"The nightly backup job of the cluster finished without any warning. Run {n}.")
        for n in range(50)
    ]
    turns.append(make_turn("The landlord wants to repaint the kitchen in a warmer colour before spring."))
    summary = extract_summary(turns, 120, count)
    assert summary.count("nightly backup") == 1
    assert "landlord wants to repaint" in summary


# ── marked messages ─────────────────────────────────────────────────────────────────────────────────────────────────


def noise_turns(size: int) -> list[Turn]:
    return agent_log(random.Random(7), style="mixed", turns=size)[0] if size >= 50 else []


def test_marked_messages_stay_verbatim_through_many_rounds() -> None:
    code = 'Constraint: use this, please:\n\n    if x < 3:\n        return "no"\n- and never: more'
    marked = [
        make_turn("We go with plan B, at last.", "Ana", "decision"),
        make_turn(code, "user", "constraint", "goal"),
    ]
    summary = extract_summary([*noise_turns(60), *marked, *noise_turns(60)], 600, count)
    for _ in range(5):
        assert '- Ana (decision): "We go with plan B, at last."' in summary
        assert f'- user (constraint, goal, 5 lines): "{code}"' in summary
        summary = extract_summary([summary_turn(summary), *noise_turns(60)], 600, count)


def test_a_marked_message_too_long_for_its_share_is_cut_to_its_most_telling_sentences() -> None:
    filler = " ".join(
        f"And then we talked about the weather for a while, {word}." for word in "abcdefghijklmnop"
    )
    long = f"Decision: the limit is 4,096 MB. {filler} It goes live on 2027-03-01. {filler}"
    summary = extract_summary([make_turn(long, "user", "decision"), *noise_turns(60)], 150, count)
    assert summary.startswith('- user (decision): "Decision: the limit is 4,096 MB. ')
    assert "2027-03-01" in summary.splitlines()[0]
    assert "[…]" in summary.splitlines()[0]


def test_of_too_many_marked_messages_the_weightiest_stay() -> None:
    turns = [
        make_turn(f"Failed: attempt {n} with the usual tools did not work.", "user", "failure")
        for n in range(200)
    ]
    turns.insert(100, make_turn("Never write to the production database.", "user", "constraint"))
    summary = extract_summary(turns, 200, count)
    assert '(constraint): "Never write to the production database."' in summary
    assert count(summary) <= 200


# ── the limit ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("counter", COUNTERS, ids=NAMES)
def test_it_is_within_every_limit_by_every_counter(counter: TokenCounter) -> None:
    for limit in (*range(0, 120, 7), 200, 400, 1000):
        assert counter.count(extract_summary(TALK, limit, counter.count)) <= limit


WORDS = [
    "ORD-4312",
    "the",
    "queue",
    "is",
    "slow.",
    "\n",
    '- a (b, 9 lines): "',
    "Details: ",
    "; ",
    "/a/b.py",
    "好。",
    "👍",
]
TEXTS = st.text(max_size=60) | st.lists(st.sampled_from(WORDS)).map(" ".join)
TURNS = st.lists(
    st.builds(
        Turn,
        speaker=st.sampled_from(["user", "tool", "A: b", "x (y)", "", "\n"]) | st.text(max_size=5),
        text=TEXTS,
        markers=st.sampled_from([(), (), (), ("decision",), ("a, b", "(c)")]),
        version=st.integers(1, 9),
        summary=st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@example([make_turn("a")], 1, 0)
@given(TURNS, st.integers(0, 60), st.integers(0, len(COUNTERS) - 1))
def test_any_turns_are_within_any_limit_and_come_out_the_same_again(
    turns: list[Turn], limit: int, which: int
) -> None:
    counter = COUNTERS[which]
    if which < 2:
        turns = [one for one in turns if one.text.encode("utf-8", "replace").decode() == one.text]
    summary = extract_summary(turns, limit, counter.count)
    assert counter.count(summary) <= limit
    assert extract_summary(turns, limit, counter.count) == summary


def test_a_counter_that_changes_its_mind_is_still_held_to_its_last_word() -> None:
    rng = random.Random(3)
    last: dict[str, int] = {}

    def erratic(text: str) -> int:
        last[text] = rng.randrange(2 * len(text) + 1)
        return last[text]

    for limit in (1, 10, 100, 1000):
        summary = extract_summary(TALK, limit, erratic)
        assert not summary or last[summary] <= limit


def test_it_is_empty_only_if_nothing_fits() -> None:
    assert extract_summary(TALK, 0, count) == ""
    assert extract_summary(TALK, 1, count) != ""
    assert extract_summary(TALK, 6, Counting("constant", lambda text: 7).count) == ""
    assert extract_summary([make_turn("unbelievable")], 1, len) == "u"
    assert extract_summary([make_turn("")], 100, count) == ""
    assert extract_summary([make_turn("  \n ")], 100, count) == ""
    assert extract_summary([], 100, count) == ""
    assert extract_summary([make_turn("👍"), make_turn("}")], 100, count) == "- user: 👍\n- user: }"


# ── what texts there are ────────────────────────────────────────────────────────────────────────────────────────────


def test_one_turn() -> None:
    assert extract_summary([make_turn("The build is green.")], 100, count) == "- user: The build is green."


def test_other_languages() -> None:
    chinese = [make_turn("我们今天先看一下这个问题。然后再决定下一步怎么做。") for _ in range(30)]
    chinese.insert(
        9, make_turn("客户王小明的订单ORD-4312还没有发货。金额是4096元，地址见/srv/orders/4312.json。")
    )
    summary = extract_summary(chinese, 60, count)
    assert all(detail in summary for detail in ("ORD-4312", "4096元", "/srv/orders/4312.json"))
    german = [
        make_turn("Wir sehen uns das heute noch einmal in Ruhe an und sprechen morgen darüber.")
        for _ in range(30)
    ]
    german.insert(
        9, make_turn("Die Rechnung RE-20931 über 1.250,00 € ging am 3. März 2026 an Frau Grünwald.")
    )
    summary = extract_summary(german, 60, count)
    assert all(detail in summary for detail in ("RE-20931", "1.250,00 €", "3. März 2026", "Frau Grünwald"))


def test_code_and_json() -> None:
    code = "```python\ndef total(rows):\n    rate = 0.19\n    return sum(rows) * (1 + rate)\n\n\nprint(total([1]))\n```"
    rows = [{"id": f"job-{n}", "state": "done", "ms": 20 + n % 7} for n in range(40)]
    rows.insert(
        20, {"id": "job-x", "state": "crashed", "file": "/srv/dumps/core.8812", "owner": "ops@example.org"}
    )
    turns = [
        make_turn(code, "assistant"),
        make_turn(json.dumps(rows, indent=1), "tool"),
        make_turn(json.dumps(rows), "tool"),
    ]
    summary = extract_summary(turns, 150, count)
    assert "/srv/dumps/core.8812" in summary
    assert "ops@example.org" in summary
    assert count(summary) <= 150


def test_a_line_of_fifty_thousand_letters() -> None:
    rng = random.Random(5)
    words = " ".join(rng.choice(["lorem", "ipsum", "dolor", "sit", "amet"]) for _ in range(9000))
    words = f"{words[:25_000]} the key is in /srv/keys/main.pem now {words[25_000:]}"
    for text in (words, words.replace(" ", "_"), "x" * 50_000):
        summary = extract_summary([make_turn(text, "tool")], 300, count)
        assert 0 < count(summary) <= 300
    assert "/srv/keys/main.pem" in extract_summary([make_turn(words, "tool")], 300, count)


def test_a_summary_full_of_openings_is_read_once() -> None:
    """Looking for the end of each marked message anew would take minutes here."""
    text = '- a (b, 9999999 lines): "x\n' * 50_000
    assert extract_summary([summary_turn(text)], 100, len) != ""
