"""Candidates: which entries become candidates, which are rejected before planning, and a verdict for every entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import ContextItems, Entry, EntryNotFoundError, EpisodeBoundaryConfig, Kind, Role, Source, State
from acms.log.active_entries import Demotions, find_demotions
from acms.log.facts import collect_facts as facts_of
from acms.log.facts import valid_times
from acms.ports import TokenCounter
from acms.recall.candidates import (
    CandidateSet,
    Conditions,
    OmissionReasons,
    collect_candidates,
)
from acms.recall.companions import add_companions
from acms.recall.corpus import Corpus
from acms.recall.fact_candidates import FactIndex, measure_rarities
from acms.recall.pipeline import KnownFacts, plan_recall
from acms.recall.planner import LoadedEntries
from acms.recall.request import RankedLog, Recall
from acms.recall.text_frame import TextFrame
from acms.text.markers import WEIGHTS
from tests.support.counters import COUNTERS, Counting
from tests.support.indexes import field_of, index_records_of, rank_corpus, snapshot_of, split_into_segments
from tests.support.logs import CONTEXT, Log
from tests.support.stories import QUERIES, random_log, randoms

BYTES = Counting("bytes", lambda text: len(text.encode()))
FRAME = TextFrame(BYTES)


def candidates_for(
    log: Log, query: str = "orders", size: int = 256, query_position: int = -1, **given: Any
) -> CandidateSet:
    field = field_of(log.entries)
    given.setdefault("budget", 10_000)
    ranking = rank_corpus(field, query, size, query_position=query_position)
    return collect_candidates(field, ranking, Conditions(**given), FRAME)


def find_query(log: Log, query: str) -> int:
    """The position of the newest message if it is the query itself; otherwise -1."""
    newest = log.entries[-1] if log.entries else None
    is_query = newest is not None and newest.role is Role.USER and newest.content == query
    return len(field_of(log.entries)) - 1 if is_query else -1


def candidate_versions(found: Any) -> list[int]:
    return [one.unit.version for one in found]


def turned_down(found: CandidateSet) -> dict[int, str]:
    return {choice.candidate.unit.version: choice.rule for choice in found.rejected}


def recall_from_log(
    log: Log,
    query: str,
    budget: int,
    counter: TokenCounter = BYTES,
    field: Corpus | None = None,
    **given: Any,
) -> ContextItems:
    """A recall as the pipeline makes it, with the log as its store."""
    field = field or field_of(log.entries)
    asked = Recall(query=query, budget=budget, weights=WEIGHTS, **given)
    rows: dict[str, Entry] = {entry.id: entry for entry in log.entries}
    ranking = rank_corpus(field, query, query_position=find_query(log, query))
    add_companions(field, ranking)
    found = RankedLog(CONTEXT, log.version, field, ranking, stale_in(log))
    steps = plan_recall(found, asked, counter, TextFrame(counter), facts_beside(found, log))
    try:
        wanted = next(steps)
        while True:
            wanted = steps.send(LoadedEntries({id: rows[id] for id in wanted}, {}))
    except StopIteration as end:
        result: ContextItems = end.value
        return result


def stale_in(log: Log) -> Demotions:
    return find_demotions(log.replacements())


def facts_beside(found: RankedLog, log: Log) -> KnownFacts:
    facts = found.corpus.facts
    if facts is None:
        return KnownFacts()
    made = [entry for entry in log.entries if entry.kind is Kind.FACT]
    replacing = [entry for entry in log.entries if entry.replaces]
    times = valid_times(facts_of(made, log.replacements(), replacing))
    rarities = measure_rarities(found.ranking, [facts])
    return KnownFacts([FactIndex(CONTEXT, facts, found.ranking, rarities, times, found.corpus.newest_time)])


def rules_by_version(items: ContextItems, log: Log) -> Mapping[int, str]:
    return {entry.version: items.ledger.why(entry.id).rule for entry in log.entries}


# ── the current episode and the past ────────────────────────────────────────────────────────────────────────────────


def two_episodes() -> Log:
    log = Log(BYTES.count)
    log.say("user", "orders live in postgres")
    log.say("user", "gardens are green")
    log.say("user", "orders cache", after=9000)
    log.say("user", "the weather")
    return log


def test_the_current_episode_is_offered_apart_from_the_past() -> None:
    found = candidates_for(two_episodes())
    assert (candidate_versions(found.past), candidate_versions(found.current)) == ([1, 2], [3, 4])
    assert {one.source for one in found.current} == {Source.CURRENT}
    assert found.past[0].source is Source.SIMILAR
    assert found.past[0].relevance > 0 == found.past[1].relevance  # a neighbour holds nothing of it itself
    assert found.past[1].score > 0
    assert found.current[0].relevance > 0


def test_without_an_episode_all_compete() -> None:
    found = candidates_for(two_episodes(), episode=False)
    assert (candidate_versions(found.past), candidate_versions(found.current)) == ([1, 2, 3, 4], [])


def test_what_is_shown_anyway_is_no_candidate() -> None:
    found = candidates_for(two_episodes(), episode=False, shown={1, 3})
    assert candidate_versions(found.past) == [2, 4]
    assert turned_down(found) == {}


def test_a_log_of_the_query_alone_offers_nothing() -> None:
    log = Log(BYTES.count)
    log.say("user", "orders")
    found = candidates_for(log, query_position=0)
    assert (found.past, found.current, turned_down(found)) == ([], [], {1: "query"})


def test_a_copy_of_what_is_offered_is_no_candidate() -> None:
    log = Log(BYTES.count)
    for text in ("orders ship", *"abcde", "orders ship", *"fghij", "orders ship"):
        log.say("user", text, after=9000)
    log.say("user", "bye", after=9000)
    found = candidates_for(log)
    assert len([version for version in candidate_versions(found.past) if version in (1, 7, 13)]) == 1
    assert list(turned_down(found).values()).count("duplicate") == 2


def test_a_giant_episode_is_not_a_thousand_candidates() -> None:
    log = Log(BYTES.count, EpisodeBoundaryConfig(max_turns=10_000))
    for number in range(1000):
        log.say("user", f"note {number} of many", markers=["goal"] if number in (3, 500) else [])
    found = candidates_for(log, budget=500)
    size = sum(one.tokens for one in found.current)
    assert len(found.current) < 40
    assert candidate_versions(found.current)[:2] == [4, 501]
    assert candidate_versions(found.current)[-1] == 1000
    assert size < 500 + 3 * max(one.tokens for one in found.current)
    assert candidate_versions(found.past) == []
    relevant = candidates_for(log, "note 77", budget=500)
    assert 78 in candidate_versions(relevant.past)


def test_a_source_is_named_by_what_a_unit_holds() -> None:
    log = Log(BYTES.count)
    for text, markers in (("orders", ()), ("orders two", ("goal",)), ("orders three", ()), ("x", ())):
        log.say("user", text, markers=markers, after=9000)
    log.summarise((3, 3), content="orders summary")
    found = candidates_for(log)
    assert [one.source for one in found.past] == [Source.SIMILAR, Source.MARKED, Source.SUMMARY]
    assert found.past[1].boost > 0


# ── tool groups ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_tool_group_is_found_by_any_of_its_words_and_offered_whole() -> None:
    log = Log(BYTES.count)
    log.say("assistant", "let me look", calls=["c1", "c2"])
    log.say("tool", "first", answers="c1")
    log.say("tool", "the orders", answers="c2")
    for text in "abcdef":
        log.say("user", text, after=9000)
    found = candidates_for(log)
    (one,) = (one for one in found.past if len(one.unit.entries) > 1)
    assert [entry.version for entry in one.unit.entries] == [1, 2, 3]
    assert one.relevance == max(one.relevance for one in found.past)
    assert len(one.costs) == 3


def test_a_call_without_an_answer_is_shown() -> None:
    log = Log(BYTES.count)
    log.say("user", "orders?")
    log.say("assistant", "orders", calls=["c1"])
    found = candidates_for(log)
    assert found.current[-1].unit.version == 2
    assert not found.current[-1].unit.complete
    log.say("user", "never mind")
    assert 2 in candidate_versions(candidates_for(log).current)


# ── the ledger ──────────────────────────────────────────────────────────────────────────────────────────────────────


@given(
    randoms,
    st.integers(0, 50),
    st.sampled_from(QUERIES),
    st.sampled_from(COUNTERS),
    st.integers(0, 300) | st.integers(0, 4000),
    st.booleans(),
)
def test_every_entry_has_exactly_one_verdict(
    random: Random, steps: int, query: str, counter: TokenCounter, budget: int, current: bool
) -> None:
    log = random_log(random, steps)
    for index, entry in enumerate(log.entries):
        log.entries[index] = replace(entry, tokens=counter.count(entry.content))
    if log.version and random.random() < 0.3 and log.entries[-1].kind is Kind.MESSAGE:
        query = log.entries[-1].content
    chosen = [entry.id for entry in log.entries if random.random() < 0.1]
    cuts = [random.randint(0, log.version), random.randint(0, log.version)] if random.random() < 0.5 else []
    field = (
        Corpus(snapshot_of(*split_into_segments(index_records_of(log.entries), cuts)), log.replacements())
        if cuts
        else None
    )
    items = recall_from_log(
        log,
        query,
        budget,
        counter,
        field,
        include_current=current,
        exclude=frozenset(chosen),
        min_relevance=random.choice([0.0, 0.0, 0.2]),
    )
    said = [
        entry
        for entry in log.entries
        if entry.kind in (Kind.MESSAGE, Kind.SUMMARY, Kind.FACT) and entry.state is State.LIVE
    ]
    written = list(items.ledger)
    assert sorted(verdict.id for verdict in written) == sorted(entry.id for entry in said)
    assert len(items.ledger) == len(said)
    shown = {item.id for item in items}
    for entry in said:
        verdict = items.ledger.why(entry.id)
        assert entry.id in items.ledger
        assert verdict in written
        assert verdict.version == entry.version
        assert verdict.included == (entry.id in shown)
        assert verdict.rule
        assert verdict.reason
        assert (items.ledger.why_not(entry.id) is None) == verdict.included
        if entry.id in chosen:
            assert not verdict.included
        if log.replacements().replaced_by(entry.version) is not None:
            assert verdict.rule == "hidden"
    assert_recall_invariants(log, items, counter, budget)


def assert_recall_invariants(log: Log, items: ContextItems, counter: TokenCounter, budget: int) -> None:
    """What holds of every recall: budget, whole groups, order, live text."""
    assert items.tokens <= budget
    assert counter.count(items.text()) <= budget
    shown = [item.id for item in items]
    assert len(set(shown)) == len(shown)
    known = {entry.id: entry for entry in log.entries}
    for item in items:
        entry = known[item.id]
        assert entry.state is State.LIVE
        if not item.truncated:
            assert item.content == entry.content
    for unit in log.units():
        members = [entry.id for entry in unit.entries if entry.state is State.LIVE]
        assert [id for id in shown if id in members] in ([], members)
    for item in items:
        verdict = items.ledger.why(item.id)
        assert (verdict.relevance, verdict.score) == (item.relevance, item.score)
        assert 0 <= item.relevance <= 1


def test_a_verdict_says_what_each_signal_adds() -> None:
    log = two_episodes()
    items = recall_from_log(log, "orders postgres", 1000)
    verdict = items.ledger.why(log.entries[0].id)
    assert (verdict.included, verdict.rule, verdict.source) == (True, "score", Source.SIMILAR)
    assert {"message", "near"} <= set(verdict.parts)
    assert sum(verdict.parts.values()) == pytest.approx(1, abs=1e-3)  # the best one is the measure
    assert 0 < items.confidence <= 1


def test_an_id_that_is_not_in_the_log_is_an_error() -> None:
    log = two_episodes()
    ledger = recall_from_log(log, "orders", 100).ledger
    known = log.entries[0].id
    for id in (
        "nonsense",
        "",
        f"{known[:-1]}z",
        known.replace("m_", "s_", 1),
        Log().say("user", "x").id + "0",
    ):
        with pytest.raises(EntryNotFoundError):
            ledger.why(id)
        with pytest.raises(EntryNotFoundError):
            ledger.why_not(id)
        assert id not in ledger
    six = two_episodes()
    for _ in range(2):
        six.say("user", "x")
    with pytest.raises(EntryNotFoundError):
        ledger.why(six.entries[-1].id)


def test_what_is_not_among_the_best_is_told_so() -> None:
    log = Log(BYTES.count)
    for number in range(30):
        log.say("user", f"orders {number}", after=9000)
    field = field_of(log.entries)
    ranking = rank_corpus(field, "orders", 5)
    rest = OmissionReasons(field, ranking)
    worst = rank_corpus(field, "orders").positions[-1]
    verdict = rest.why(log.entries[int(worst)].id)
    assert verdict is not None
    assert (verdict.rule, verdict.included) == ("rank", False)
    assert verdict.relevance > 0
    assert "5 best" in verdict.reason
    assert len(list(rest)) == 30


def test_what_has_nothing_to_do_with_the_query_is_told_so() -> None:
    log = two_episodes()
    assert rules_by_version(recall_from_log(log, "zanzibar", 1000), log) == {
        1: "irrelevant",
        2: "irrelevant",
        3: "episode",
        4: "latest",
    }


def test_what_is_out_of_force_is_told_by_what() -> None:
    log = two_episodes()
    log.edit(1, "orders live in sqlite")
    log.retract(2)
    items = recall_from_log(log, "orders", 1000)
    for version, reason in ((1, "replaced by v5"), (2, "retracted by v6")):
        verdict = items.ledger.why(log.entries[version - 1].id)
        assert (verdict.rule, verdict.reason) == ("hidden", reason)
    assert items.ledger.why(log.entries[4].id).included


def test_what_is_gone_has_no_verdict_and_breaks_nothing() -> None:
    for index in range(4):
        log = two_episodes()
        gone = log.entries[index]
        log.entries[index] = replace(gone, content="", state=State.ERASED)
        ledger = recall_from_log(log, "orders", 1000).ledger
        assert len(list(ledger)) == 3
        assert gone.id not in ledger


# ── excerpts ────────────────────────────────────────────────────────────────────────────────────────────────────────

FILLER = "The garden was quiet that morning and nobody spoke about work at all. "


@given(
    st.sampled_from([one for one in COUNTERS if one.name not in ("constant", "squares")]),
    st.integers(20, 80),
    st.floats(0, 1),
    st.integers(180, 700),
)
def test_an_excerpt_fits_and_holds_the_sentence_that_answers(
    counter: TokenCounter, size: int, at: float, budget: int
) -> None:
    answer = "The orders database runs on PostgreSQL 18. "
    sentences = [f"{number}: {FILLER}" for number in range(size)]
    sentences.insert(int(at * size), answer)
    log = Log(counter.count)
    log.say("user", "".join(sentences).strip())
    log.say("user", "bye", after=9000)
    items = recall_from_log(log, "Which database for orders?", budget, counter)
    assert items.tokens <= budget
    assert counter.count(items.text()) <= budget
    large = log.entries[0]
    if large.tokens > budget:
        assert [item.version for item in items] == [1, 2]
        verdict = items.ledger.why(large.id)
        assert (verdict.rule, verdict.included) == ("excerpt", True)
        assert answer.strip() in items[0].content
        assert items[0].truncated
        assert items[0].content != large.content
        assert items[0].token_count <= max(48, budget // 3)


def test_an_excerpt_keeps_the_order_of_its_sentences_and_marks_what_is_left_out() -> None:
    log = Log(BYTES.count)
    log.say("user", f"{FILLER * 5}Orders ship on friday. {FILLER * 5}Orders are late. {FILLER * 5}")
    log.say("user", "bye", after=9000)
    (item, _) = recall_from_log(log, "late orders friday ship", 200)
    assert item.content == "[…] Orders ship on friday. […] Orders are late. […]"
    assert item.content.index("friday") < item.content.index("late")


def test_of_a_sentence_that_is_too_long_for_an_excerpt_a_part_is_shown() -> None:
    log = Log(BYTES.count)
    log.say("user", f"{FILLER * 5}Orders ship {'very ' * 60}late. {FILLER * 5}")
    log.say("user", "bye", after=9000)
    (item, _) = recall_from_log(log, "late orders", 200)
    assert item.content.startswith("Orders ship")
    assert item.content.endswith("late.")
    assert item.truncated
    assert item.token_count <= 66


def test_of_a_large_tool_group_a_small_budget_shows_what_answers() -> None:
    log = Log(BYTES.count)
    log.say("assistant", "orders", calls=["c1"])
    log.say("tool", f"orders. {FILLER * 20}", answers="c1")
    log.say("user", "bye", after=9000)
    items = recall_from_log(log, "orders", 300)
    assert [item.version for item in items] == [1, 2, 3]
    assert items[1].truncated
    assert items.tokens <= 300
    assert rules_by_version(items, log)[2] == "excerpt"


# ── facts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fact_is_measured_like_a_message_that_stands_alone() -> None:
    """It is its own neighbourhood: the same text is as relevant, however many facts there are."""
    alone = Log(BYTES.count)
    for name in "abcdefgh":
        alone.say("user", f"talk of {name}", after=200_000)
    text = "the orders ship on friday"
    said = alone.say("user", text, after=200_000)
    alone.say("user", "bye", after=200_000)
    as_message = recall_from_log(alone, "orders friday", 1000).ledger.why(said.id).relevance
    for facts in (1, 5):
        log = Log(BYTES.count)
        for name in "abcdefgh":
            log.say("user", f"talk of {name}", after=200_000)
        log.say("user", "bye", after=200_000)
        fact = log.fact(text)
        for number in range(facts - 1):
            log.fact(f"the garden has {number} trees")
        as_fact = recall_from_log(log, "orders friday", 1000).ledger.why(fact.id).relevance
        assert as_fact == pytest.approx(as_message, abs=0.05)


def test_at_an_address_of_one_value_only_the_newest_fact_is_known() -> None:
    log = two_episodes()
    older = log.fact("We use Flask.", subject="project", attribute="web framework", cardinality="one")
    newer = log.fact("We use Django.", subject="the Project", attribute="Web frameworks", cardinality="many")
    both = [log.fact(f"Allergic to {one}.", subject="user", attribute="allergy") for one in ("nuts", "milk")]
    items = recall_from_log(log, "web framework allergy", 1000)
    shown = [item.id for item in items]
    assert older.id not in shown
    assert [newer.id, *(one.id for one in both)] == shown[:3]
    assert items.ledger.why(older.id).rule == "hidden"


def test_a_tool_group_that_says_what_was_replaced_is_left_out_as_a_whole() -> None:
    log = Log(BYTES.count)
    log.say("assistant", "let me look", calls=["c1"])
    answer = log.say("tool", "the orders run on flask. the port is 80.", answers="c1")
    old = log.fact("Orders run on flask.", sources=[2])
    log.say("user", "bye", after=9000)
    log.fact("Orders run on django.", replaces=[old.version], demotes={2: [[25, 40]]})
    assert rules_by_version(recall_from_log(log, "orders port", 1000), log)[answer.version] == "superseded"
    assert rules_by_version(recall_from_log(log, "orders port", 1000), log)[1] == "superseded"
    assert (
        rules_by_version(recall_from_log(log, "orders port", 1000, include_superseded=True), log)[2]
        == "score"
    )


def test_an_older_copy_of_what_was_replaced_is_left_out_too_and_a_newer_one_is_not() -> None:
    log = Log(BYTES.count)
    for number in range(3):
        log.say("user", "orders run on flask", after=90_000)
        log.say("user", f"{'talk ' * number}", after=90_000)
    old = log.fact("Orders run on flask.", sources=[3])
    log.fact("Orders run on django.", replaces=[old.version], demotes={3: []})
    again = log.say("user", "orders run on flask", after=90_000)
    log.say("user", "bye", after=90_000)
    found = rules_by_version(recall_from_log(log, "flask orders", 1000), log)
    assert [found[version] for version in (1, 3, 5)] == ["superseded"] * 3
    assert found[again.version] == "score"


def test_what_is_left_of_a_message_is_counted_and_cut_like_any_other() -> None:
    text = "Orders run on flask. " + FILLER * 12 + "Orders are shipped on friday."
    log = Log(BYTES.count)
    log.say("user", text)
    old = log.fact("Orders run on flask.", sources=[1])
    log.fact("Orders run on django.", replaces=[old.version], demotes={1: [[20, len(text)]]})
    log.say("user", "bye", after=9000)
    for budget in range(60, 1600, 70):
        items = recall_from_log(log, "orders shipped", budget)
        assert items.tokens <= budget
        assert BYTES.count(items.text()) <= budget
        assert "flask" not in items.text()
    assert items.ledger.why(log.entries[0].id).rule == "trimmed"
