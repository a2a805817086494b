"""Facts in time: which facts held at a moment, as far as a version knew; an ended fact is never shown as current."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import ACMS, ACMSConfig, CacheConfig, Fact, ValidationError, open_storage
from acms.acs import ACS
from acms.codecs import OpenAIChat
from acms.log.validity import Period
from acms.prompt import Prompt
from acms.providers import OfflineReflector
from acms.text.date_phrases import extract_validity, parse_date_bound, parse_future_period
from tests.support.talk import LONG_EPISODES

DAY = timedelta(days=1)
BASE = datetime(2026, 3, 2, tzinfo=UTC)
REMOVED = "removed"
Said = tuple[datetime, str, datetime | None, datetime | None]

days = st.none() | st.integers(-20, 40)
ops = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from(["say", "say", "say", "again", "unsay"]), days, days),
    max_size=7,
)


def so_at(said: list[Said], moment: datetime) -> list[str]:
    """The answer of a list of intervals for a moment: a later interval cuts the ones it overlaps where it begins."""
    rows: list[tuple[datetime | None, datetime | None, str]] = []
    for when, value, start, end in said:
        over = end is not None and end <= when
        if value == REMOVED:
            rows = [(a, when if b is None else min(b, when), old) for a, b, old in rows]
            continue
        start = when if start is None and rows and not over else start
        for place, (a, b, old) in enumerate(rows):
            apart = (end is not None and a is not None and end <= a) or (
                b is not None and start is not None and b <= start
            )
            if not over and not apart and start is not None:
                rows[place] = a, start if b is None else min(b, start), old
        rows.append((start, end, value))
    return [value for a, b, value in rows if (a is None or a <= moment) and (b is None or moment < b)][-1:]


@given(story=ops, looks=st.lists(st.integers(-25, 90), min_size=3, max_size=3), mid=st.integers(0, 7))
def test_reads_in_time_equal_a_plain_list_of_intervals(
    story: list[tuple[int, str, int | None, int | None]], looks: list[int], mid: int
) -> None:
    asyncio.run(_assert_facts_over_time(story, looks, mid))


async def _assert_facts_over_time(
    story: list[tuple[int, str, int | None, int | None]], looks: list[int], mid: int
) -> None:
    async with ACMS("time", open_storage("memory://"), None) as session:
        now, said, versions = BASE, list[Said](), list[int]()
        session._shared.clock = lambda: now
        newest: Fact | None = None
        for number, (later, act, start, end) in enumerate(story):
            now += later * DAY
            if act == "unsay":
                await session.unstate("the orders service", "databases")
                said.append((now, REMOVED, None, None))
                newest = None
            elif act == "again" and newest is not None:
                again = await session.state(
                    "orders service", "database", newest.value, valid_from=newest.valid_from, valid_to=newest.valid_to
                )  # fmt: skip
                assert again == newest
            elif start is None or end is None or start < end:
                begins, ends = (None if day is None else BASE + day * DAY for day in (start, end))
                value = f"db{number}"
                newest = await session.state(
                    "orders service", "database", value, valid_from=begins, valid_to=ends
                )
                said.append((now, value, begins, ends))
            versions += [(await session.get_session_stats()).version] * (len(said) - len(versions))
        for look in looks:
            moment = BASE + look * DAY
            assert [fact.value for fact in await session.facts(valid_at=moment)] == so_at(said, moment)
            if versions:
                known = min(mid, len(versions) - 1)
                found = await session.facts(valid_at=moment, as_of=versions[known])
                assert [fact.value for fact in found] == so_at(said[: known + 1], moment)
        shown = [item.content for item in await session.recall("orders service database")]
        assert [text.split(": ")[1].split(" [")[0] for text in shown if "[from" not in text] == so_at(
            said, now
        )


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'time.db'}"


async def test_nothing_that_is_over_is_shown_as_if_it_were_so(url: str) -> None:
    """In recall, messages, a prompt that keeps its history, and a reply; no cleanup is needed."""
    now = BASE
    async with ACMS("user", open_storage(url), None, config=ACMSConfig(episodes=LONG_EPISODES)) as session:
        session._shared.clock = lambda: now
        for number in range(60):
            await session.ingest("user", f"Walk {number} along the river was cold and rather long again.")
        await session.state("harbour office", "berth", "4711", valid_to=BASE + 10 * DAY)
        await session.state("harbour office", "berth", "8844", valid_from=BASE + 10 * DAY)
        question = "berth of the harbour office?"

        async def everywhere() -> list[str]:
            prompt = Prompt(OpenAIChat("gpt-5")).history(session).recall(session, question).user(question)
            request = {
                "version": "v0", "id": "6f3b6f21-7a5f-4e3f-9af0-1b2c3d4e5f60", "request_id": "r", "intent": question,
                "budgets": {"tokens_max": 500, "time_ms": 60_000}, "risk_profile": {"level": "low"},
                "privacy_mode": "allow",
            }  # fmt: skip
            return [
                str([item.content for item in await session.recall(question)]),
                str(await session.messages(question, budget=300)),
                str((await prompt.render(budget=700)).payload),
                str((await ACS(sources=[session]).render(request)).to_wire()),
            ]

        for text in await everywhere():
            assert "4711 [until 2026-03-12]" in text
            assert "8844 [from 2026-03-12]" in text
        now = BASE + 10 * DAY
        for text in await everywhere():
            assert "4711" not in text
            assert "8844" in text
        found = await session.recall(question, include_superseded=True)
        assert "4711 [until 2026-03-12]" in str([item.content for item in found])
        old, _ = await session.facts()
        reason = (await session.recall(question)).ledger.why_not(old.id)
        assert reason is not None
        assert "2026-03-12" in reason.reason


async def test_what_was_said_is_resolved_from_when_it_was_said() -> None:
    async with ACMS("user", open_storage("memory://"), None, reflector=OfflineReflector()) as session:
        for text in (
            "Decision: the deadline is next Friday.",
            "Decision: our database is MySQL until the end of June.",
            "Decision: we use Redis for caching until 2027.",
            "Decision: the owner is Ada.",
        ):
            await session.ingest("user", text, created_at=BASE)
        await session.close_episode()
        await session.wait(await session.reflect())
        found = {
            fact.attribute: (fact.value, fact.valid_from, fact.valid_to) for fact in await session.facts()
        }
        assert found == {
            "deadline": ("next Friday", None, datetime(2026, 3, 7, tzinfo=UTC)),
            "database": ("MySQL", None, datetime(2026, 7, 1, tzinfo=UTC)),
            "caching": ("Redis", None, datetime(2027, 1, 1, tzinfo=UTC)),
            "owner": ("Ada", None, None),
        }
        assert {fact.stated_at for fact in await session.facts()} == {BASE}


async def test_a_time_that_makes_no_sense_is_refused() -> None:
    async with ACMS(
        "user", open_storage("memory://"), None, config=ACMSConfig(cache=CacheConfig())
    ) as session:
        fact = await session.state("x", "y", "z", valid_from="2026-03-01")
        assert fact.valid_from == datetime(2026, 3, 1, tzinfo=UTC)
        for given in ({"valid_to": "soon"}, {"valid_from": "2026-03-02", "valid_to": "2026-03-02"}):
            with pytest.raises(ValidationError, match="valid_to"):
                await session.state("x", "y", "w", **given)
        for asked in (
            {"valid_at": BASE, "history": True}, {"valid_at": BASE.replace(tzinfo=None)}, {"as_of": -1},
            {"as_of": 1, "scope": "namespace"},
        ):  # fmt: skip
            with pytest.raises(ValidationError):
                await session.facts(**asked)
        assert await session.facts() == [fact]
        assert await session.facts(as_of=BASE) == []


def day_or_none(text: str | None) -> Any:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "left", "start", "end"),
    [
        ("We use Redis until 2026-05-05.", "We use Redis.", None, "2026-05-06"),
        ("The flat is ours from tomorrow.", "The flat is ours.", "2026-03-03", None),
        ("The lift is shut until the 5th of May 2027.", "The lift is shut.", None, "2027-05-06"),
        ("We rent it from 5 May 2027 to 9 May 2027.", "We rent it.", "2027-05-05", "2027-05-10"),
        ("The pool is shut until in two weeks.", "The pool is shut.", None, "2026-03-16"),
        ("Wir sind ab 1. April in Rom.", "Wir sind in Rom.", "2026-04-01", None),
        # said twice, no such day, over before it begins: nothing is read
        ("It is open until May, until June.", None, None, None),
        ("It is open until 31 February.", None, None, None),
        ("It is ours from 5 May 2027 until 3 May 2027.", None, None, None),
    ],
)
def test_when_something_is_so_is_taken_from_what_was_said(
    text: str, left: str | None, start: str | None, end: str | None
) -> None:
    found = extract_validity(text, BASE)
    assert found.text == (text if left is None else left)
    assert found.period == Period(day_or_none(start), day_or_none(end))


@pytest.mark.parametrize(
    ("text", "said", "start", "end"),
    [
        ("tomorrow", "2026-03-02", "2026-03-03", "2026-03-04"),
        ("in 3 days", "2026-03-02", "2026-03-05", "2026-03-06"),
        ("in two weeks", "2026-03-02", "2026-03-16", "2026-03-17"),
        ("in a month", "2026-01-31", "2026-02-28", "2026-03-01"),
        ("in a year", "2024-02-29", "2025-02-28", "2025-03-01"),
        ("next week", "2026-03-04", "2026-03-09", "2026-03-16"),
        ("next month.", "2026-12-31", "2027-01-01", "2027-02-01"),
        ("nächstes Jahr", "2026-03-02", "2027-01-01", "2028-01-01"),
    ],
)
def test_a_day_to_come_is_counted_from_when_it_was_said(text: str, said: str, start: str, end: str) -> None:
    assert parse_future_period(text, day_or_none(said)) == Period(day_or_none(start), day_or_none(end))
    assert parse_future_period(f"{text} or so", day_or_none(said)) is None


def test_a_date_that_a_model_gives_in_words_begins_and_ends_where_it_is_meant_to() -> None:
    for text, begins, ends in (
        ("May 2027", "2027-05-01", "2027-05-01"),
        ("5 May", "2026-05-05", "2026-05-06"),
        ("2026-05-05", "2026-05-05", "2026-05-06"),
        ("end of June", "2026-06-01", "2026-07-01"),
    ):
        assert parse_date_bound(text, BASE, end=False) == day_or_none(begins)
        assert parse_date_bound(text, BASE, end=True) == day_or_none(ends)
    assert parse_date_bound("when it is done", BASE, end=True) is None
