"""When: which stretches of time a question names, and what it gains by naming one."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms.recall.rank import Question, rank
from acms.recall.time_ranges import Span, nearness, spans
from acms.recall.weights import WEIGHTS
from tests.support.indexes import field_of
from tests.support.logs import entry

#: A Saturday.
NOW = datetime(2026, 3, 14, 15, 30, tzinfo=UTC)
EPOCH = date(1970, 1, 1)


def minute(text: str) -> int | None:
    """The first minute of a day; None for nothing."""
    if not text:
        return None
    moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    return int(moment.timestamp()) // 60


def span(text: str) -> Span:
    """A stretch written as first..end, either of which may be left out; a day alone is that day."""
    if ".." not in text:
        first = minute(text)
        assert first is not None
        return Span(first, first + 1440)
    begins, ends = text.split("..")
    return Span(minute(begins), minute(ends))


TABLE = [
    # absolute
    ("What did we decide on 2026-02-03?", "2026-02-03"),
    ("What happened in 2026-02?", "2026-02-01..2026-03-01"),
    ("What did Paola cook on 22.01.2026?", "2026-01-22"),
    ("What did she cook on 1/22/2026?", "2026-01-22"),
    ("What did she cook on 22/1/2026?", "2026-01-22"),
    ("Who came on 12 March?", "2026-03-12"),
    ("Who came on the 12th of March?", "2026-03-12"),
    ("Who came on March 12th, 2025?", "2025-03-12"),
    ("Who came on March 20?", "2025-03-20"),
    ("Where was the picture of December 1,2025 taken?", "2025-12-01"),
    ("Who came on 29 February 2024?", "2024-02-29"),
    ("What did I paint in May?", "2025-05-01..2025-06-01"),
    ("What did I paint in March?", "2026-03-01..2026-04-01"),
    ("What did I paint in May 2023?", "2023-05-01..2023-06-01"),
    ("What did I paint May 2023", "2023-05-01..2023-06-01"),
    ("What did I paint last May?", "2025-05-01..2025-06-01"),
    ("What did I paint last March?", "2025-03-01..2025-04-01"),
    ("What is due this May?", "2026-05-01..2026-06-01"),
    ("What did I paint in early May?", "2025-05-01..2025-05-11"),
    ("What did I paint at the end of May 2023?", "2023-05-21..2023-06-01"),
    ("What did I paint in mid-May?", "2025-05-11..2025-05-21"),
    ("Was the first half of September 2025 good?", "2025-09-01..2025-09-16"),
    ("Where was I in the second week of November?", "2025-11-08..2025-11-15"),
    ("Where was I in the last week of November?", "2025-11-24..2025-12-01"),
    ("Where was I in the first week of 2026?", "2026-01-01..2026-01-08"),
    ("What did we sell in 2025?", "2025-01-01..2026-01-01"),
    ("What did we sell in early 2025?", "2025-01-01..2025-05-02"),
    ("What did we sell in Q3 2025?", "2025-07-01..2025-10-01"),
    ("What did we sell in the fourth quarter?", "2025-10-01..2026-01-01"),
    ("Where did we go in summer 2023?", "2023-06-01..2023-09-01"),
    ("Where did we go in the summer of 2023?", "2023-06-01..2023-09-01"),
    ("Where did we go last summer?", "2025-06-01..2025-09-01"),
    ("Where did we ski in winter 2024 - 2025?", "2024-12-01..2025-03-01"),
    ("Where did we ski this winter?", "2026-12-01..2027-03-01"),
    # counted from the newest message
    ("What did Ana order yesterday?", "2026-03-13"),
    ("What did Ana order the day before yesterday?", "2026-03-12"),
    ("What did Ana order today?", "2026-03-14"),
    ("What did Ana say this morning?", "2026-03-14"),
    ("What did Ana say last night?", "2026-03-13..2026-03-15"),
    ("What did we discuss last week?", "2026-03-02..2026-03-09"),
    ("What did we discuss this week?", "2026-03-09..2026-03-16"),
    ("What did we discuss earlier this month?", "2026-03-01..2026-04-01"),
    ("What did we discuss last weekend?", "2026-03-07..2026-03-09"),
    ("What did we discuss last month?", "2026-02-01..2026-03-01"),
    ("What did we discuss last quarter?", "2025-10-01..2026-01-01"),
    ("What did we discuss last year?", "2025-01-01..2026-01-01"),
    ("What did we discuss on Monday?", "2026-03-09"),
    ("What did we discuss last Friday?", "2026-03-13"),
    ("What did we discuss last Saturday?", "2026-03-07"),
    ("What did I run three days ago?", "2026-03-11"),
    ("What did I run a week ago?", "2026-03-04..2026-03-11"),
    ("What did I run two weeks ago?", "2026-02-25..2026-03-04"),
    ("What did I run a couple of months ago?", "2025-12-30..2026-01-30"),
    ("What did I run in the last 3 days?", "2026-03-11..2026-03-15"),
    ("What did I run in the past week?", "2026-03-07..2026-03-15"),
    ("What did I run an hour ago?", "2026-03-14T14:00..2026-03-14T15:00"),
    ("What did I say in the last two hours?", "2026-03-14T13:30..2026-03-14T15:31"),
    # before, after, between
    ("What broke before March 3?", "..2026-03-03"),
    ("What broke after March 3?", "2026-03-04.."),
    ("What broke since March 3?", "2026-03-03.."),
    ("What broke until March 3?", "..2026-03-04"),
    ("How many did we win by July 10, 2025?", "..2025-07-11"),
    ("What broke before the release on March 3?", "..2026-03-04"),
    ("What broke since the big release on March 3?", "2026-03-03.."),
    ("What broke after her trip in August 2025?", "2025-08-01.."),
    ("What broke since Monday?", "2026-03-09.."),
    ("What broke since last week?", "2026-03-02.."),
    ("What broke between May and July?", "2025-05-01..2025-08-01"),
    ("What broke between November and February?", "2025-11-01..2026-03-01"),
    ("What broke from May to July 2024?", "2024-05-01..2024-08-01"),
    ("What broke between May 3 and June 5?", "2025-05-03..2025-06-06"),
    ("Where was he between August 11 and August 15 2025?", "2025-08-11..2025-08-16"),
    ("What broke between 3 and 5 May?", "2025-05-03..2025-05-06"),
    ("What broke on May 3-5, 2024?", "2024-05-03..2024-05-06"),
    ("What did he do the week before August 3, 2025?", "2025-07-27..2025-08-03"),
    ("What did he do the day after August 3, 2025?", "2025-08-04"),
    ("What did he get two weeks before August 11, 2025?", "2025-07-25..2025-08-01"),
    ("What was on the Sunday before October 25, 2025?", "2025-10-19"),
    ("What did she make on Friday before 10.01.2026?", "2026-01-09"),
    ("What did she do last weekend before April 10, 2025?", "2025-04-05..2025-04-07"),
    # what is sure decides what the rest is counted from
    ("What was her issue last week, as mentioned on November 6, 2025?", "2025-11-06"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), TABLE, ids=[text for text, _ in TABLE])
def test_a_question_names_a_stretch_of_time(text: str, expected: str) -> None:
    assert spans(text, NOW) == (span(expected),)
    assert spans(text.upper(), NOW) == (span(expected),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "When did Ana move to Lisbon?",
        "In which month did Ana move?",
        "What year did she start?",
        "How many weeks did it take?",
        "What may I eat?",
        "May I ask what March is reading?",
        "Did they march through the town?",
        "Which remedies help to fall asleep?",
        "What did I read recently?",
        "Where is the spring of the clock?",
        "What do we do every Friday?",
        "What is planned for next week?",
        "What is planned tomorrow?",
        "When was the last time we met?",
        "Is version 1.2.2024.1 out?",
        "Which of the 2048 games did he win?",
        "Call 555-2023-1111",
        "What did we decide on 2026-13-45?",
        "Who came on 31 February 2026?",
        "Who came on 45.99.2026?",
        "What did April say?",
        "Wie war es letzte Woche?",
    ],
)
def test_other_texts_name_none(text: str) -> None:
    assert spans(text, NOW) == ()


@pytest.mark.parametrize(
    ("text", "now", "expected"),
    [
        ("yesterday", datetime(2024, 3, 1, tzinfo=UTC), "2024-02-29"),
        ("yesterday", datetime(2026, 1, 1, 0, 5, tzinfo=UTC), "2025-12-31"),
        ("in December", datetime(2026, 1, 2, tzinfo=UTC), "2025-12-01..2026-01-01"),
        ("last month", datetime(2026, 1, 31, tzinfo=UTC), "2025-12-01..2026-01-01"),
        ("a month ago", datetime(2026, 3, 31, tzinfo=UTC), "2026-02-13..2026-03-16"),
        ("last weekend", datetime(2026, 3, 16, tzinfo=UTC), "2026-03-14..2026-03-16"),
        ("on Monday", datetime(2026, 3, 16, tzinfo=UTC), "2026-03-16"),
        ("last Monday", datetime(2026, 3, 16, tzinfo=UTC), "2026-03-09"),
        ("last winter", datetime(2026, 2, 1, tzinfo=UTC), "2024-12-01..2025-03-01"),
        ("in winter", datetime(2026, 2, 1, tzinfo=UTC), "2025-12-01..2026-03-01"),
    ],
)
def test_what_is_relative_is_counted_from_the_moment_given(text: str, now: datetime, expected: str) -> None:
    assert spans(text, now) == (span(expected),)


def test_a_span_says_its_kind() -> None:
    assert [
        found.kind for text in ("in 2025", "before 2025", "since 2025") for found in spans(text, NOW)
    ] == [
        "in",
        "before",
        "after",
    ]


def test_two_times_are_two_stretches() -> None:
    assert spans("Was it warmer in May 2024 or in May 2025?", NOW) == (
        span("2024-05-01..2024-06-01"),
        span("2025-05-01..2025-06-01"),
    )


pieces = st.sampled_from(
    """in on before after since between and last this week may march 2025 31 february 12th of the 10.01.2026 99.99.2026
    ago three 999 0 years yesterday friday first half end 2026-02-30 , - to from winter q4 hours until""".split()
)


@given(st.lists(pieces, max_size=9).map(" ".join), st.datetimes(timezones=st.just(UTC)))
def test_any_text_names_stretches_that_end_after_they_begin(text: str, now: datetime) -> None:
    for found in spans(text, now):
        assert found.begins is not None or found.ends is not None
        assert found.begins is None or found.ends is None or found.begins < found.ends


@given(
    st.integers(0, 3000), st.sampled_from(["yesterday", "last week", "two weeks ago", "in the past month"])
)
def test_relative_times_move_with_the_moment(days: int, text: str) -> None:
    later = NOW + timedelta(weeks=days)
    if text != "in the past month":
        (first,), (second,) = spans(text, NOW), spans(text, later)
        assert first.begins is not None
        assert second.begins is not None
        assert second.begins - first.begins == days * 7 * 1440


# ── what it is worth ────────────────────────────────────────────────────────────────────────────────────────────────


@given(
    st.lists(st.integers(-(10**6), 10**8), max_size=30),
    st.integers(0, 10**7),
    st.integers(1, 10**6),
    st.sampled_from(["in", "before", "after"]),
)
def test_nearness_is_one_inside_and_falls_outside(
    minutes: list[int], begins: int, length: int, kind: str
) -> None:
    found = Span(None if kind == "before" else begins, None if kind == "after" else begins + length)
    near = nearness([found], np.array(minutes, np.int32))
    assert ((near >= 0) & (near <= 1)).all()
    for minute, value in zip(minutes, near.tolist(), strict=True):
        inside = (found.begins is None or minute >= found.begins) and (
            found.ends is None or minute < found.ends
        )
        assert (value == 1) == inside or minute == found.ends
    order = sorted(
        (minute, value)
        for minute, value in zip(minutes, near.tolist(), strict=True)
        if found.ends is not None and minute >= found.ends
    )
    assert [value for _, value in order] == sorted((value for _, value in order), reverse=True)


def test_what_is_told_after_a_day_counts_more_than_what_was_planned_before() -> None:
    (day,) = spans("on 2026-03-03", NOW)
    assert day.begins is not None
    minutes = np.array([day.begins + hours * 60 for hours in (-48, -12, 12, 36, 72, 24 * 60)], np.int32)
    before, shortly, inside, after, later, long = nearness([day], minutes).tolist()
    assert inside == 1
    assert after > later > before > long == 0
    assert 1 > shortly > before


DISHES = ("ramen", "pierogi", "falafel", "paella", "goulash", "laksa", "moussaka", "pho")


def dinners() -> list[str]:
    """What was cooked each Wednesday for eight weeks, with three messages between two dinners."""
    chatter = ("The bus was late", "My sister says hello", "I need more coffee")
    return [text for dish in DISHES for text in (f"We cooked {dish} for dinner", *chatter)]


def test_the_dinner_that_is_meant_is_found_by_its_time() -> None:
    """Words cannot tell one dinner from another."""
    first = datetime(2026, 1, 21, 19, tzinfo=UTC)
    field = field_of(
        [
            entry(number + 1, text, created_at=first + timedelta(days=number // 4 * 7 + number % 4))
            for number, text in enumerate(dinners())
        ]
    )
    now = field.newest
    assert now == first + timedelta(days=7 * 7 + 3)
    asked = {
        "three weeks ago": "goulash",
        "two weeks ago": "laksa",
        "last week": "moussaka",
        "on Wednesday": "pho",
        "on 28 January": "pierogi",
        "on 04.02.2026": "falafel",
        "in the second week of February": "paella",
    }
    plain = 0
    for time, dish in asked.items():
        question = f"What did we cook for dinner {time}?"
        found = rank(field, Question.of(question, now=now))
        best = int(found.places[0])
        assert dish in dinners()[best], time
        assert found.parts(best)["time"] > WEIGHTS.then / 2
        plain += dish in dinners()[int(rank(field, Question.of(question)).places[0])]
    assert plain < len(asked) // 2


def test_a_question_without_a_time_gains_nothing() -> None:
    field = field_of([entry(1, "We cooked ramen"), entry(2, "The bus was late")])
    with_now = rank(field, Question.of("When did we cook ramen?", now=field.newest))
    assert "time" not in with_now.parts(0)
    assert with_now.worth(with_now.places) == rank(field, Question.of("When did we cook ramen?")).worth(
        with_now.places
    )


def test_a_time_alone_finds_what_was_said_then() -> None:
    first = datetime(2026, 3, 1, 9, tzinfo=UTC)
    texts = ("alpha", "beta", "gamma", "delta")
    field = field_of(
        [
            entry(number, text, created_at=first + timedelta(days=30 * number))
            for number, text in enumerate(texts, 1)
        ]
    )
    found = rank(field, Question.of("What did we talk about a month ago?", now=field.newest))
    assert int(found.places[0]) == 2
    assert found.relevance(2) >= WEIGHTS.then * 0.9
    assert found.relevance(0) == 0
