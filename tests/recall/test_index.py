"""Index: however it came about, it holds the same and ranks the same; a past version ranks as it did then."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acms import ContextItems, Entry, State
from acms.log.active_entries import Replacements
from acms.recall.candidates import group_at_index
from acms.recall.companions import add_companions
from acms.recall.corpus import Corpus
from acms.recall.index import Segment, Snapshot
from acms.recall.pipeline import plan_recall
from acms.recall.planner import LoadedEntries
from acms.recall.query import Query, parse_query
from acms.recall.ranking import Ranking
from acms.recall.request import RankedLog, Recall
from acms.recall.text_frame import TextFrame
from acms.text.markers import WEIGHTS
from acms.text.tokenizer import content_terms, split_words
from tests.recall.test_planner import BYTES
from tests.support.indexes import (
    Row,
    build_segment,
    grow_segment,
    index_records_of,
    make_query,
    rank_corpus,
    replacements_of,
    snapshot_of,
    split_into_segments,
    unit_vector,
)
from tests.support.logs import CONTEXT, Log
from tests.support.stories import QUERIES, random_log, random_vectors, randoms, shuffle_rows

FRAME = TextFrame(BYTES)
SPACE = "model/24"


def entries_until(log: Log, version: int) -> list[Entry]:
    return log.entries[:version]


def snapshot_until(segments: Sequence[Segment], version: int) -> Snapshot:
    return Snapshot(
        [
            (CONTEXT, segment, min(segment.count, version - segment.base))
            for segment in segments
            if segment.base < version
        ]
    )


def in_pieces(cards: Sequence[bytes | None]) -> Segment:
    """Build a segment as one with millions of terms is built."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("acms.recall.index.RECORD_BATCH", 3)
        return build_segment(cards)


def segments_by_way(log: Log, version: int, random: Random) -> dict[str, list[Segment]]:
    """Segments that hold at least the entries up to a version, by how they came about."""
    cards, now = index_records_of(log.entries), index_records_of(entries_until(log, version))
    cut = random.randint(0, version)
    both = Segment(0)
    both.extend(now[:cut])
    both.extend(now[cut:])
    return {
        "bulk": [build_segment(now)],
        "bulk, as of very many": [in_pieces(now)],
        "appended": [grow_segment(now)],
        "by threes": [grow_segment(now, step=3)],
        "bulk and appended": [both],
        "fork": split_into_segments(now, [cut]),
        "fork of a fork": split_into_segments(now, [cut, random.randint(0, version)]),
        "at": [build_segment(cards)],
        "at, appended": [grow_segment(cards)],
        "at, in a fork": split_into_segments(cards, [cut, random.randint(0, len(cards))]),
    }


def same_order(left: Ranking, right: Ranking, places: Sequence[int], others: Sequence[int]) -> None:
    """The same places in the same order, but for those whose scores are equal within a rounding."""
    assert sorted(places) == sorted(others)
    assert [left.score(place) for place in places] == pytest.approx(
        [right.score(place) for place in others], abs=2e-6
    )


def assert_same_ranking(left: Corpus, right: Corpus, question: Query) -> None:
    one, other = Ranking(left, question), Ranking(right, question)
    same_order(one, other, one.positions.tolist(), other.positions.tolist())
    for place in range(len(left)):
        assert one.score(place) == pytest.approx(other.score(place), abs=2e-6)
        assert one.relevance(place) == pytest.approx(other.relevance(place), abs=2e-6)
        assert one.parts(place) == pytest.approx(other.parts(place), abs=2e-4)
    assert one.coverage == other.coverage
    for ranking in (one, other):
        add_companions(ranking.corpus, ranking)
    same_order(one, other, one.positions.tolist(), other.positions.tolist())


def recall_from_corpus(field: Corpus, question: Query, query: str, asks: bool) -> ContextItems:
    """A recall of budget 0: its decisions depend on no rounding, and no text is needed."""
    asked = Recall(query=query, budget=0, weights=WEIGHTS)
    query_position = len(field) - 1 if asks else -1
    ranking = Ranking(field, question, query_position=query_position)
    found = RankedLog(CONTEXT, field.snapshot.count, field, ranking)
    steps = plan_recall(found, asked, BYTES, FRAME)
    try:
        wanted = next(steps)
        rows = {id: Log().say("user", "x") for id in wanted}
        while True:
            steps.send(LoadedEntries(rows, {}))
    except StopIteration as end:
        result: ContextItems = end.value
        return result


def verdicts_by_id(items: ContextItems) -> dict[str, tuple[bool, str, str, int]]:
    return {one.id: (one.included, one.rule, one.reason, one.tokens) for one in items.ledger}


def assert_ways_agree(
    log: Log, version: int, random: Random, rows: Sequence[Row], question: Query, query: str
) -> None:
    entries = entries_until(log, version)
    plain = build_segment(index_records_of(entries))
    plain.add_vectors(SPACE, [row for row in rows if row[0] <= version])
    expected = Corpus(snapshot_of(plain), replacements_of(entries))
    for segments in segments_by_way(log, version, random).values():
        held = sum(segment.count for segment in segments)
        for segment in segments:
            for batch in shuffle_rows(random, rows):
                segment.add_vectors(
                    SPACE, [row for row in batch if segment.base < row[0] <= segment.base + segment.count]
                )
        field = Corpus(snapshot_until(segments, version), replacements_of(entries))
        assert held >= version == field.snapshot.count
        assert [field.document(place) for place in range(len(field))] == [
            expected.document(place) for place in range(len(expected))
        ]
        for number in {
            *(one for word in question.words for one in word.terms),
            *content_terms(split_words("march sam 2026")),
        }:
            left, right = field.snapshot.postings(number), expected.snapshot.postings(number)
            assert left.tolist() == right.tolist()
        for name in ("minute", "tokens", "episode", "nonce", "flags", "exact", "length", "print"):
            assert field.snapshot.column(name).tolist() == expected.snapshot.column(name).tolist()
        for document in range(version):
            if log.entries[document].state is State.LIVE:
                assert field.snapshot.doc(document) == expected.snapshot.doc(document)
                assert field.snapshot.members(document) == expected.snapshot.members(document)
        assert_same_ranking(field, expected, question)
        asks = random.random() < 0.3
        found, wanted = (recall_from_corpus(one, question, query, asks) for one in (field, expected))
        assert verdicts_by_id(found) == verdicts_by_id(wanted)
        assert found.confidence == pytest.approx(wanted.confidence, abs=2e-6)


@given(randoms, st.integers(0, 40), st.sampled_from(QUERIES))
def test_an_index_is_the_same_however_it_came_about(random: Random, steps: int, query: str) -> None:
    log = random_log(random, steps)
    assert_ways_agree(log, random.randint(0, log.version), random, (), parse_query(query), query)


@settings(max_examples=20)
@given(randoms, st.integers(1, 40), st.sampled_from(QUERIES))
def test_also_with_vectors_that_come_late_and_out_of_order(random: Random, steps: int, query: str) -> None:
    log = random_log(random, steps)
    vector = unit_vector(np.random.default_rng(random.getrandbits(32)).normal(size=24))
    question = parse_query(query, space=SPACE, vector=vector)
    assert_ways_agree(
        log, random.randint(0, log.version), random, random_vectors(random, log), question, query
    )


# ── what is in force ────────────────────────────────────────────────────────────────────────────────────────────────


@given(randoms, st.integers(0, 50))
def test_a_field_is_the_effective_sequence_without_what_is_gone(random: Random, steps: int) -> None:
    log = random_log(random, steps)
    version = random.randint(0, log.version)
    field = Corpus(
        snapshot_until([build_segment(index_records_of(log.entries))], version),
        replacements_of(entries_until(log, version)),
    )
    expected = [entry for entry in log.sequence(version) if entry.state is State.LIVE]
    assert [field.document(place) + 1 for place in range(len(field))] == [one.version for one in expected]
    assert len(field) == len(expected)
    for place, entry in enumerate(expected):
        assert field.position_of(entry.version - 1) == place
        doc = field.snapshot.doc(entry.version - 1)
        group = log.entries[entry.version - 1].group
        assert (doc.id, doc.markers, doc.group) == (entry.id, entry.markers, group)
    gone = {*range(1, version + 1)} - {entry.version for entry in expected}
    assert all(field.position_of(each - 1) == -1 for each in gone)


@given(randoms, st.integers(0, 50))
def test_units_are_those_of_the_log(random: Random, steps: int) -> None:
    log = random_log(random, steps, erasing=False)
    field = Corpus(snapshot_of(build_segment(index_records_of(log.entries))), log.replacements())
    shown = []
    for place in range(len(field)):
        found, reason = group_at_index(field, place)
        if not reason and found.entries[-1].version == field.document(place) + 1:
            shown.append(tuple(entry.version for entry in found.entries))
    assert shown == log.shown()


def test_an_edit_whose_content_is_gone_is_gone() -> None:
    """The entry is still in the cover, but there is no card: it can neither be found nor shown."""
    log = Log()
    log.say("user", "orders database")
    log.say("user", "something else")
    edit = log.edit(1, "orders cache")
    cards = index_records_of(log.entries)
    cards[2] = None
    for segment in (build_segment(cards), grow_segment(cards)):
        field = Corpus(snapshot_of(segment), log.replacements())
        assert [field.document(place) for place in range(len(field))] == [1]
    whole = build_segment(index_records_of(log.entries))
    whole.blanked.add(edit.version - 1)
    field = Corpus(snapshot_of(whole), log.replacements())
    assert [field.document(place) for place in range(len(field))] == [1]


def test_what_is_found_to_be_gone_is_out_of_the_next_field() -> None:
    log = Log()
    for text in ("orders", "database", "cache"):
        log.say("user", text)
    segment = build_segment(index_records_of(log.entries))
    before = Corpus(snapshot_of(segment), Replacements([]))
    segment.blanked.add(1)
    after = Corpus(snapshot_of(segment), Replacements([]))
    assert (len(before), len(after)) == (3, 2)
    assert [len(places) for places in rank_corpus(before, "database").scores.holders] == [1]
    assert [len(places) for places in rank_corpus(after, "database").scores.holders] == [0]
    assert after.postings(content_terms(["database"])[0])[0].tolist() == []


# ── growing under a reader ──────────────────────────────────────────────────────────────────────────────────────────


@given(randoms, st.integers(2, 40), st.sampled_from(QUERIES))
def test_a_snapshot_does_not_change_while_more_is_added(random: Random, steps: int, query: str) -> None:
    log = random_log(random, steps)
    version = random.randint(0, log.version)
    cards, rows = index_records_of(log.entries), random_vectors(random, log)
    first = [row for row in rows if row[0] <= version and random.random() < 0.5]
    known = {row[0] for row in first}
    first = [row for row in rows if row[0] in known]
    vector = unit_vector(np.random.default_rng(random.getrandbits(32)).normal(size=24))
    segment = build_segment(cards[:version])
    segment.add_vectors(SPACE, first)
    replacements = replacements_of(entries_until(log, version))
    taken = snapshot_of(segment)  # nothing has been read of it yet
    used = Corpus(snapshot_of(segment), replacements)
    question = make_query(used, query, SPACE, vector)
    before = Ranking(used, question)
    segment.extend(cards[version:])
    segment.add_vectors(SPACE, [row for row in rows if row[0] not in known])
    segment.add_vectors("another/24", rows)
    for later in (Ranking(used, question), Ranking(Corpus(taken, replacements), question)):
        assert later.positions.tolist() == before.positions.tolist()
        assert later.coverage == before.coverage
        for place in range(len(used)):
            assert later.score(place) == before.score(place)
            assert later.parts(place) == before.parts(place)


def test_a_segment_grows_beyond_its_first_room() -> None:
    log = Log()
    for number in range(200):
        log.say("user", f"note{number}")
    segment = grow_segment(index_records_of(log.entries))
    assert segment.count == 200
    assert all(
        segment.postings(content_terms([f"note{n}"])[0], 200).tolist() == [n << 8 | 1] for n in range(200)
    )
    assert segment.bytes > 200 * 30


def test_more_documents_than_can_be_counted_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acms.recall.index.MAX_DOCUMENTS", 3)
    segment = grow_segment([None, None])
    with pytest.raises(OverflowError):
        segment.extend([None, None])
    assert segment.count == 2


def test_a_log_of_nothing_but_what_is_gone_is_empty() -> None:
    for found in ([None], [None] * 20):
        field = Corpus(snapshot_of(build_segment(found)), Replacements([]))
        assert len(field) == 0
        assert rank_corpus(field, "orders").positions.tolist() == []


def test_a_document_that_is_not_there_is_an_error() -> None:
    with pytest.raises(IndexError):
        Snapshot([]).find_segment(0)
