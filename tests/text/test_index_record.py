"""Index records: the record of an entry reads back, alone and among many, and nothing else is kept."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import Kind, Origin, Role, ToolCall, ToolResult
from acms.log.encoding import to_microseconds
from acms.model import Draft
from acms.recall.index import Segment
from acms.text import index_record
from acms.text.index_record import EMPTY, HEADER, REPLACES, read_group, read_label
from acms.text.tokenizer import content_terms, count_terms, day_terms, searchable_terms, split_words
from acms.text.tokenizer import find_names as names_in
from tests.support.indexes import build_segment, grow_segment, snapshot_of
from tests.support.logs import NONCE, NOON

moments = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
contents = (
    st.lists(st.sampled_from("orders database not 42 the cache ? no. blue".split()), max_size=30).map(
        " ".join
    )
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
    | st.just("again " * 300 + "once")
)


@st.composite
def generated_drafts(draw: st.DrawFn) -> Draft:
    kind = draw(st.sampled_from([Kind.MESSAGE, Kind.MESSAGE, Kind.SUMMARY, Kind.FACT, Kind.RETRACTION]))
    calls = draw(st.lists(st.sampled_from(["c1", "c2", "数"]), unique=True))
    answers = draw(st.lists(st.sampled_from(["c1", "c3"]), unique=True))
    return Draft(
        kind=kind,
        content=draw(contents),
        role=draw(st.sampled_from(list(Role))) if kind is Kind.MESSAGE else None,
        origin=Origin.USER,
        created_at=draw(moments),
        parts=(*(ToolCall(id, "look", "{}") for id in calls), *(ToolResult(id, "x") for id in answers)),
        markers=tuple(draw(st.lists(names, max_size=3))),
        actor=draw(st.none() | names),
        tokens=draw(st.integers(0, 2**32 - 1)),
        episode=draw(st.integers(0, 2**32 - 1)),
        group=draw(st.none() | st.just("g7")) if kind is not Kind.FACT else None,
        replaces=draw(st.sampled_from([(), ((1, 2),)])),
    )


def index_both_ways(draft: Draft) -> list[Segment]:
    """The one record of a draft, indexed alone and as one of many."""
    record = index_record.encode_index_record(draft, NONCE)
    return [grow_segment([record]), build_segment([record] * 2)]


@given(generated_drafts())
def test_every_field_is_read_back(draft: Draft) -> None:
    counts = {number: count for number, count in count_terms(split_words(draft.content)).items() if count}
    plain = {number for number, count in count_terms(split_words(draft.content)).items() if not count}
    minute = min(to_microseconds(draft.created_at) // 60_000_000, 2**31 - 1)
    said = Counter({number: min(count, 255) for number, count in counts.items()})
    named = {number for name in names_in(draft.content) for number in name.extra_terms} | plain
    named -= counts.keys()
    said.update(named)
    said.update(day_terms(minute // 1440))
    said.update(searchable_terms(draft.actor) if draft.actor else ())
    expected = {number: min(count, 255) for number, count in said.items()}
    for segment in index_both_ways(draft):
        doc = snapshot_of(segment).doc(0)
        assert (doc.version, doc.kind, doc.role, doc.actor) == (1, draft.kind, draft.role, draft.actor)
        assert (doc.markers, doc.tokens, doc.episode) == (draft.markers, draft.tokens, draft.episode)
        assert doc.group == draft.group
        assert doc.id.endswith(f"_1_{NONCE}")
        column = {name: values[0] for name, values in segment.columns.items()}
        assert int(column["minute"]) == minute
        flags = int(column["flags"])
        assert bool(flags & REPLACES) == bool(draft.replaces)
        assert bool(flags & EMPTY) == (not draft.content)
        assert column["length"] == sum(expected.values()) - len(named)
        for number, count in expected.items():
            assert segment.postings(number, 1).tolist() == [count]
        if draft.group is not None:
            made, given_ = segment.links[0]
            calls = [part for part in draft.parts if isinstance(part, ToolCall)]
            assert (len(made), len(given_)) == (len(calls), len(draft.parts) - len(calls))
            open_calls = {part.call_id for part in calls} - {
                part.call_id for part in draft.parts if isinstance(part, ToolResult)
            }
            assert snapshot_of(segment).tool_call_state([0]) == (bool(calls), not open_calls)


def test_a_name_makes_a_text_no_longer_and_is_found() -> None:
    plain, named = (
        Draft(kind=Kind.MESSAGE, content=text, created_at=NOON, role=Role.USER)
        for text in ("look in src core rank py", "look in src/core/rank.py")
    )
    lengths = [
        float(segment.columns["length"][0]) for draft in (plain, named) for segment in index_both_ways(draft)
    ]
    assert len(set(lengths)) == 1
    for segment in index_both_ways(named):
        for text in ("src/core/rank.py", "rank.py", "rank", "core"):
            assert all(len(segment.postings(number, 1)) for number in searchable_terms(text)), text


def test_a_card_of_the_recipe_before_is_read_as_it_was() -> None:
    """Names were added later, to the same format: a log may hold records of both kinds."""
    draft = Draft(kind=Kind.MESSAGE, content="look in src/core/rank.py", created_at=NOON, role=Role.USER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_record, "find_names", lambda _: [])  # pyright: ignore[reportUnknownLambdaType]
        before = index_record.encode_index_record(draft, NONCE)
    after = index_record.encode_index_record(draft, NONCE)
    assert before != after
    assert len(before) < len(after)
    segment = build_segment([before, after])
    for number in content_terms(split_words(draft.content)):
        assert segment.postings(number, 2).tolist() == [1, 1 << 8 | 1]


def record_header(draft: Draft) -> dict[str, int | bytes]:
    names = "minute tokens episode nonce flags exact label group terms repeated".split()
    return dict(zip(names, HEADER.unpack_from(index_record.encode_index_record(draft, NONCE)), strict=True))


def message_draft(content: str, **given: object) -> Draft:
    return Draft(content=content, role=Role.USER, created_at=NOON, **given)  # type: ignore[arg-type]


def test_terms_are_three_bytes_and_only_repeated_ones_have_a_count() -> None:
    short = index_record.encode_index_record(message_draft("orders database"), NONCE)
    assert len(short) == HEADER.size + len("message\0user\0") + 2 * 3
    again = index_record.encode_index_record(message_draft("orders database orders"), NONCE)
    assert len(again) == len(short) + 1
    assert again[-1] == 2


def test_more_than_255_occurrences_count_as_255() -> None:
    record = index_record.encode_index_record(message_draft("orders " * 300), NONCE)
    assert record[-1] == 255
    (number,) = content_terms(["orders"])
    for segment in (grow_segment([record]), build_segment([record, record])):
        assert segment.postings(number, 1).tolist() == [255]


def test_a_card_of_a_usual_message_is_smaller_than_its_text() -> None:
    text = (
        "We decided to keep the orders database on PostgreSQL 18 because the team knows it well, and because moving"
        " the reporting queries to another engine would take at least three weeks. The cache stays on Redis; its"
        " memory limit is raised to 4 GB, and the eviction policy becomes allkeys-lru after the deploy on Friday."
    )
    size = len(index_record.encode_index_record(message_draft(text, actor="Melanie"), NONCE))
    assert size < len(text) * 0.7
    assert size < 210


def test_an_entry_without_content_has_a_card_without_terms() -> None:
    found = record_header(message_draft(""))
    assert (found["flags"], found["terms"], found["exact"]) == (EMPTY, 0, 0)
    assert record_header(message_draft("   "))["flags"] == 0


@pytest.mark.parametrize(
    ("year", "minute"),
    [(1, -719_162 * 1440), (1969, -365 * 1440), (1970, 0), (6054, 2**31 - 1), (9999, 2**31 - 1)],
)
def test_dates_out_of_reach_of_a_card_are_the_last_it_knows(year: int, minute: int) -> None:
    draft = Draft(content="x", role=Role.USER, created_at=datetime(year, 1, 1, tzinfo=UTC))
    assert record_header(draft)["minute"] == minute


def test_seconds_are_left_out_also_before_1970() -> None:
    moment = datetime(1969, 12, 31, 23, 59, 30, tzinfo=UTC)
    assert record_header(Draft(content="x", role=Role.USER, created_at=moment))["minute"] == -1
    later = Draft(content="x", role=Role.USER, created_at=NOON + timedelta(seconds=59))
    assert record_header(later)["minute"] == record_header(message_draft("x"))["minute"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("the limit is 5 GB", "the limit is 6 GB"),
        ("we will use redis", "we will not use redis"),
        ("we use redis", "we never use redis"),
        ("they can deploy", "they cannot deploy"),
        ("they do deploy", "they don't deploy"),
        ("ship v1", "ship v2"),
        ("ask the people in", "ask the people out"),
        ("turn the heating on", "turn the heating off"),
        ("call me before lunch", "call me after lunch"),
        ("keep it under 5 GB", "keep it over 5 GB"),
        ("wir nutzen Redis", "wir nutzen kein Redis"),
        ("usamos Redis", "no usamos Redis"),
        ("мы используем Redis", "мы не используем Redis"),
        ("我们用它", "我们不用它"),
    ],
)
def test_the_words_of_a_text_sign_its_card(one: str, other: str) -> None:
    assert record_header(message_draft(one))["exact"] != record_header(message_draft(other))["exact"]


def test_the_order_and_the_case_of_words_do_not_sign_a_card() -> None:
    assert (
        record_header(message_draft("5 of 42 orders"))["exact"]
        == record_header(message_draft("Orders: 42 of 5!"))["exact"]
    )


def test_a_long_text_of_many_different_words_keeps_those_said_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_record, "_MAX_TERMS", 50)
    content = " ".join(f"w{number}" for number in range(70)) + " w69 w69"
    record = index_record.encode_index_record(message_draft(content), NONCE)
    assert (
        record_header(message_draft(content))["terms"],
        record_header(message_draft(content))["repeated"],
    ) == (50, 1)
    assert grow_segment([record]).columns["length"][0] == build_segment([record, record]).columns["length"][0]


def test_a_message_with_very_many_calls_has_a_card() -> None:
    parts = tuple(ToolCall(f"c{number}", "look", "{}") for number in range(256))
    record = index_record.encode_index_record(message_draft("x", parts=parts, group="g1"), NONCE)
    assert snapshot_of(grow_segment([record])).tool_call_state([0]) == (True, False)


def test_labels_and_groups_are_read_as_written() -> None:
    assert read_label(b"message\0tool\0\0goal\0custom:x") == (
        Kind.MESSAGE,
        Role.TOOL,
        None,
        ("goal", "custom:x"),
    )
    assert read_label(b"summary\0\0Sam") == (Kind.SUMMARY, None, "Sam", ())
    draft = message_draft("x", parts=(ToolCall("c1", "f", "{}"), ToolResult("c2", "y")), group="g1")
    record = index_record.encode_index_record(draft, NONCE)
    start = HEADER.size + int(record_header(draft)["label"])
    name, calls, answers = read_group(record[start : start + int(record_header(draft)["group"])])
    assert (name, len(calls), len(answers)) == ("g1", 1, 1)
    assert calls != answers
