"""Figures of retrieval: each as its definition says, counted by hand on conversations of a few messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from math import log2

import pytest

from acms import ProviderError, ValidationError
from acms.providers import BPETokenCounter
from acms_eval import Conversation, Question, Recalled, RetrievalReport, Said, System, evaluate, systems
from acms_eval.retrieval import (
    DataSize,
    Progress,
    QuestionFigures,
    budgets_of_dataset,
    compute_auc,
    headline_figures,
    rank_messages,
    ranked_figures,
    recall_figures,
)

AT = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def alternating_messages(*texts: str) -> tuple[Said, ...]:
    return tuple(
        Said(role="user", text=text, speaker="Bo" if place % 2 else "Ines", created_at=AT)
        for place, text in enumerate(texts)
    )


CHAT = Conversation(
    name="one",
    dataset="LoCoMo",
    said=alternating_messages(
        "I bought a kayak.",
        "Where do you paddle?",
        "On the lake behind the mill.",
        "My sister bakes rye bread.",
        "The kayak leaks.",
        "Glue it.",
    ),
    questions=(
        Question(text="Who bought a kayak?", group="1", gold=frozenset({0})),
        Question(text="What about the kayak?", group="4", gold=frozenset({0, 4})),
        Question(text="Which bread?", group="4", gold=frozenset()),
        Question(text="Does Bo bake bread?", group="5", gold=frozenset({3}), answerable=False),
    ),
)


class Told:
    """Answers every question with the same items."""

    name = "told"

    def __init__(self, answers: Sequence[Recalled], confidence: float | None = None) -> None:
        self.answers = answers
        if confidence is not None:
            self.confidence = confidence
        self.asked: list[tuple[str, int]] = []
        self.settled = 0
        self.told: list[Said] = []

    async def tell(self, said: Said) -> None:
        self.told.append(said)

    async def settle(self) -> None:
        self.settled += 1

    async def ask(self, question: str, budget: int) -> Sequence[Recalled]:
        self.asked.append((question, budget))
        return self.answers if budget > 1000 else self.answers[:1]


def opener_of(system: System):
    @asynccontextmanager
    async def opened() -> AsyncGenerator[System]:
        yield system

    return opened


@pytest.mark.parametrize(
    ("ranked", "gold", "found"),
    [
        ([3, 1, 2], {3}, {"R@5": 1, "R@10": 1, "nDCG@10": 1}),
        ([0, 1, 2], {9}, {"R@5": 0, "R@10": 0, "nDCG@10": 0}),
        ([], {1}, {"R@5": 0, "R@10": 0, "nDCG@10": 0}),
        ([0, 1, 2, 3, 4, 5, 6], {1, 6}, {"R@5": 1 / 2, "R@10": 1}),
        ([0, 1], {1}, {"nDCG@10": 1 / log2(3)}),
        ([5, 0, 6], {5, 6}, {"nDCG@10": (1 + 1 / log2(4)) / (1 + 1 / log2(3))}),
        (list(range(20)), set(range(20)), {"R@5": 5 / 20, "R@10": 10 / 20, "nDCG@10": 1}),
        (list(range(20)), {10}, {"R@10": 0, "nDCG@10": 0}),
    ],
)
def test_recall_and_gain_by_hand(ranked: list[int], gold: set[int], found: dict[str, float]) -> None:
    measured = ranked_figures(ranked, gold)
    assert {name: measured[name] for name in found} == pytest.approx(found)


@pytest.mark.parametrize(
    ("shown", "outdated", "found"),
    [
        ([], (), {"B": 0, "P": 0}),
        ([1, 7, 8, None], (), {"B": 1 / 2, "P": 1 / 4}),
        ([1, 1, 2], (), {"B": 1, "P": 1}),  # of two that say the same both answer
        ([1, 7], (1,), {"B": 1 / 2, "P": 1 / 2, "S": 1}),  # only what was so before
        ([2, 1], (1,), {"B": 1, "P": 1, "S": 0}),
        ([7], (1,), {"B": 0, "P": 0, "S": 0}),
    ],
)
def test_what_is_shown_by_hand(
    shown: list[int | None], outdated: tuple[int, ...], found: dict[str, float]
) -> None:
    assert recall_figures(shown, {1, 2}, outdated) == pytest.approx(found)


async def test_the_simple_ways_show_the_lines_that_fit_in_rank_order() -> None:
    count = BPETokenCounter("cl100k_base").count
    opened, _ = systems(names=["plain BM25"])
    async with opened["plain BM25"]() as system:
        for one in CHAT.said:
            await system.tell(one)
        kayak = await system.ask("kayak lake mill", 1000)
        assert [one.index for one in kayak] == [2, 0, 4] or [one.index for one in kayak] == [2, 4, 0]
        assert sum(one.tokens for one in kayak) == sum(
            count(f"{CHAT.said[place].speaker}: {CHAT.said[place].text}\n") for place in (0, 2, 4)
        )
        small = await system.ask("kayak lake mill", count("Ines: The kayak leaks.\n"))
        assert [one.index for one in small] == [4]  # the best one does not fit


async def test_neighbours_and_speakers_count_in_the_window_baseline() -> None:
    opened, _ = systems(names=["BM25, speaker, ±1"])
    async with opened["BM25, speaker, ±1"]() as system:
        for one in CHAT.said:
            await system.tell(one)
        found = {one.index: one.score for one in await system.ask("mill", 1000)}
        assert found[1] == found[3] == found[2] / 2
        assert set(found) == {1, 2, 3}
        assert {one.index for one in await system.ask("Bo", 1000)} == set(range(6))


async def test_two_chinese_characters_are_a_word_of_the_simple_ways() -> None:
    opened, _ = systems(names=["plain BM25"])
    async with opened["plain BM25"]() as system:
        for text in ("我将要参加金融科技精英论坛。", "你好"):
            await system.tell(Said(role="user", text=text, created_at=AT))
        assert [one.index for one in await system.ask("科技论坛的地点是什么？", 1000)] == [0]


def test_a_rank_is_the_score_of_a_message_that_was_recalled() -> None:
    items = [
        Recalled(text="a fact", score=0.99),
        Recalled(text="b", score=0.2, index=1),
        Recalled(text="c", score=0.9, index=2),
        Recalled(text="again", score=0.1, index=2),
        Recalled(text="same as b", score=0.2, index=0),
        Recalled(text="now", score=0.0, index=3, current=True),
    ]
    assert rank_messages(items) == [2, 1, 0]
    assert rank_messages([]) == []


def test_budgets_follow_the_length_of_messages() -> None:
    for short in ("LoCoMo", "REALTALK", "Vehicle", "MemSim"):
        assert budgets_of_dataset(short) == (500, 1000, 2000, 4000)
        assert "B1k" in headline_figures(short)
    assert budgets_of_dataset("BEAM-1M") == budgets_of_dataset("LongMemEval") == (2000, 4000, 8000, 16000)
    assert {"B4k", "B16k"} <= set(headline_figures("BEAM-1M"))


async def test_a_system_is_told_all_rests_and_is_asked_within_every_budget() -> None:
    system = Told([Recalled(text="x", score=1.0, index=0), Recalled(text="y", score=0.5, index=4)], 0.75)
    seen: list[Progress] = []
    report = await evaluate([CHAT], {"told": opener_of(system)}, progress=seen.append, rounds=100)
    assert [one.text for one in system.told] == [one.text for one in CHAT.said]
    assert system.settled == 1
    assert system.asked == [
        (question.text, budget)
        for question in CHAT.questions
        for budget in ((500, 1000, 2000, 4000) if question.gold else (4000,))
    ]
    assert [(row.group, row.confidence) for row in report.asked] == [
        ("1", 0.75), ("4", 0.75), ("4", 0.75), ("5", 0.75),
    ]  # fmt: skip
    assert report.asked[2].figures == {}
    assert report.sizes == {"LoCoMo": DataSize(conversations=1, messages=6, questions=4, without_gold=1)}
    assert report.groups("LoCoMo") == ["all", "1", "4", "5"]
    means = report.means("LoCoMo", "told")
    assert (means["R@5"].mean, means["R@5"].count) == (1.0, 2)  # questions without an answer stand apart
    assert report.means("LoCoMo", "told", "5")["nDCG@10"].mean == 0  # it never came up: nothing is filled in
    assert report.means("LoCoMo", "nobody") == {}
    assert [one.done for one in seen] == [0, 1, 2, 3, 4]
    assert seen[0].of == 4
    assert "told" in report.table()
    assert "[" in report.table(intervals=True)
    assert "5: told" in report.table(groups=True)


async def test_evidence_and_precision_are_those_of_a_recall_of_that_budget() -> None:
    items = [
        Recalled(text="x", score=1.0, index=0),
        Recalled(text="y", score=0.9, index=4, current=True),
        Recalled(text="fact", score=0.9),
    ]
    report = await evaluate([CHAT], {"told": opener_of(Told(items))}, rounds=100)
    row = report.asked[1]  # gold is 0 and 4; up to 1,000 tokens only the first item is told
    assert {name: row.figures[name] for name in ("B500", "B1k", "B2k", "B4k")} == {
        "B500": 0.5, "B1k": 0.5, "B2k": 1.0, "B4k": 1.0,
    }  # fmt: skip
    assert (row.figures["P1k"], row.figures["P2k"]) == (1.0, pytest.approx(2 / 3))
    assert row.figures["nDCG@10"] < 1  # the current episode has no rank
    assert row.seconds is not None
    assert row.confidence is None


async def test_only_stale_counts_where_a_set_says_what_is_outdated() -> None:
    moved = Question(text="Kayak?", group="4", gold=frozenset({0, 4}), outdated=frozenset({0}))
    chat = replace(CHAT, questions=(*CHAT.questions[:1], moved))
    report = await evaluate(
        [chat], {"told": opener_of(Told([Recalled(text="x", score=1.0, index=0)]))}, rounds=100
    )
    assert "S1k" not in report.asked[0].figures
    assert report.asked[1].figures["S1k"] == 1.0
    assert report.means("LoCoMo", "told")["S1k"].count == 1
    assert report.names("LoCoMo")[-1].startswith("S")
    assert "S1k" in report.table(main=True)
    assert "nDCG@10" not in report.table(main=True)


async def test_a_message_is_found_by_what_it_says() -> None:
    twice = replace(
        CHAT,
        said=(*CHAT.said, *CHAT.said[:1]),
        questions=(Question(text="Kayak?", group="1", gold=frozenset({6})),),
    )
    report = await evaluate(
        [twice], {"told": opener_of(Told([Recalled(text="x", score=1.0, index=0)]))}, rounds=100
    )
    assert report.asked[0].figures["B1k"] == report.asked[0].figures["R@10"] == 1.0


async def test_a_slow_system_is_asked_every_nth_question_and_compared_on_those() -> None:
    good = Told([Recalled(text="x", score=1.0, index=0), Recalled(text="y", score=0.5, index=4)])
    bad = Told([Recalled(text="z", score=1.0, index=5)])
    report = await evaluate(
        [CHAT], {"good": opener_of(good), "bad": opener_of(bad)}, every={"bad": 2}, rounds=100
    )
    assert [row.question for row in report.asked if row.system == "bad"] == [0, 2]
    margin = report.margin("LoCoMo", "nDCG@10", of="good", over="bad")
    assert margin is not None
    assert (margin.mean, margin.count) == (1.0, 1)
    assert report.margin("LoCoMo", "R@10", of="good", over="nobody") is None


class Failing(Told):
    """Gives up at the second question."""

    async def ask(self, question: str, budget: int) -> Sequence[Recalled]:
        if self.asked:
            raise ProviderError("it is too long", provider="other")
        return await super().ask(question, budget)


async def test_a_system_of_others_that_fails_is_left_out_and_the_rest_goes_on() -> None:
    items = [Recalled(text="x", score=1.0, index=0)]
    chats = [CHAT, replace(CHAT, name="two")]
    report = await evaluate(
        chats, {"bad": opener_of(Failing(items)), "good": opener_of(Told(items))}, rounds=100
    )
    assert report.systems == ["good"]
    assert len(report.asked) == 8
    assert report.left_out["bad"].startswith("failed in LoCoMo one: ")
    assert "too long" in report.left_out["bad"]


def rows_of_shares(
    dataset: str, system: str, shares: Sequence[float], conversations: int
) -> list[QuestionFigures]:
    return [
        QuestionFigures(
            system=system,
            dataset=dataset,
            conversation=str(place % conversations),
            question=place,
            group="1",
            answerable=True,
            figures={"R@10": share},
        )
        for place, share in enumerate(shares)
    ]


def report_of_margins(margins: Sequence[float]) -> RetrievalReport:
    plain = [0.25 + 0.01 * (place % 7) for place in range(len(margins))]
    ours = [share + margin for share, margin in zip(plain, margins, strict=True)]
    return RetrievalReport(
        asked=tuple(
            rows_of_shares("LoCoMo", "plain BM25", plain, 4) + rows_of_shares("LoCoMo", "acms", ours, 4)
        ),
        sizes={"LoCoMo": DataSize()},
        rounds=200,
    )


def test_a_margin_that_holds_elsewhere_has_an_interval_that_reaches_zero() -> None:
    wobble = [0.2 + 0.05 * (place % 5 - 2) for place in range(40)]
    here, same, less = (
        report_of_margins(wobble),
        report_of_margins(wobble[::-1]),
        report_of_margins([margin - 0.15 for margin in wobble]),
    )
    held = here.shrinkage(same, "LoCoMo", "R@10")
    lost = here.shrinkage(less, "LoCoMo", "R@10")
    assert held is not None
    assert held.low <= 0 <= held.high
    assert lost is not None
    assert lost.mean == pytest.approx(0.15)
    assert lost.low > 0
    assert here.shrinkage(less, "REALTALK", "R@10") is None


@pytest.mark.parametrize(
    ("answerable", "unanswerable", "expected"),
    [
        ([0.9, 0.8], [0.1, 0.2], 1.0),
        ([0.1], [0.9], 0.0),
        ([0.5], [0.5], 0.5),
        ([0.9, 0.3], [0.5, 0.3], 0.625),
    ],
)
def test_auc_counts_pairs(answerable: list[float], unanswerable: list[float], expected: float) -> None:
    assert compute_auc(answerable, unanswerable) == expected


def test_abstention_by_hand() -> None:
    asked = [
        QuestionFigures(
            system="s",
            dataset="d",
            conversation="c",
            question=place,
            group="g",
            answerable=answerable,
            figures={},
            confidence=confidence,
        )
        for place, (answerable, confidence) in enumerate(
            [(True, 0.9), (True, 0.7), (True, 0.2), (True, 0.6), (False, 0.1), (False, 0.65), (True, None)]
        )
    ]
    found = RetrievalReport(asked=tuple(asked), sizes={"d": DataSize()}).abstention("d", "s", threshold=0.5)
    assert found is not None
    assert (found.answerable, found.unanswerable, found.declined) == (4, 2, 2)
    assert found.auc == 6 / 8
    assert (found.precision, found.recall, found.false_alarms) == (0.5, 0.5, 0.25)
    careless = RetrievalReport(asked=tuple(asked), sizes={"d": DataSize()}).abstention(
        "d", "s", threshold=0.0
    )
    assert careless is not None
    assert (careless.precision, careless.recall) == (None, 0.0)
    assert RetrievalReport(asked=tuple(asked[:4]), sizes={"d": DataSize()}).abstention("d", "s") is None


async def test_a_report_is_written_and_read_again_without_a_word_of_the_conversation() -> None:
    found, left_out = systems(names=["most recent window", "plain BM25", "plain vectors", "acms"])
    report = await evaluate([CHAT], found, left_out=left_out, settings={"embedder": "none"}, rounds=100)
    text = report.to_json()
    assert "kayak" not in text
    assert RetrievalReport.from_json(text) == report
    assert report.systems == ["most recent window", "plain BM25", "acms"]
    assert report.left_out == {"plain vectors": "needs an embedder"}
    assert "plain vectors (needs an embedder)" in report.table()
    assert report.means("LoCoMo", "acms")["B4k"].mean == 1.0


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"asked": 1}', '{"asked": [{}], "sizes": {}}'])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        RetrievalReport.from_json(text)


def test_figures_need_gold_and_auc_needs_both_kinds() -> None:
    with pytest.raises(ValidationError):
        ranked_figures([1], frozenset())
    with pytest.raises(ValidationError):
        compute_auc([0.5], [])
