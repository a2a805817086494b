"""Facts in recall: they come first and compete for the budget, and what they replaced is not shown unless asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import ACMS, ACMSConfig, Kind, Source, ValidationError, View, open_storage
from acms.log.read import PROFILE
from acms.model import ContextDraft
from acms.ports import Proposal, Reflection, ReflectionRequest
from acms.providers import LocalEmbedder
from acms.testing.logs import WHEN, append_drafts, draft_fact
from acms.text import chat_messages
from tests.support.talk import (
    LONG_EPISODES,
    PATIENT,
    Storage,
    contents_of,
    ingest_texts,
    session_on,
    tool_turn,
)

CONFIG = ACMSConfig(episodes=LONG_EPISODES, retry=PATIENT)


class Rules:
    """Learns "The <attribute> is <value>." from every turn that says so; "Everywhere" makes it one of the namespace."""

    model = "rules/1"

    async def reflect(self, request: ReflectionRequest) -> Reflection:
        found: list[Proposal] = []
        for turn in request.turns:
            for sentence in turn.text.split(". "):
                words = sentence.rstrip(".").split()
                if words[:1] == ["The"] and words[2:3] == ["is"]:
                    found.append(
                        Proposal(
                            content=f"Our {words[1]} is {' '.join(words[3:])}.",
                            subject="project",
                            attribute=words[1],
                            value=" ".join(words[3:]),
                            cardinality="one",
                            scope="namespace" if "Everywhere" in turn.text else "session",
                            sources=(turn.version,),
                        )
                    )
        return Reflection(proposals=tuple(found))


async def say_and_reflect(session: ACMS, *texts: str) -> list[str]:
    """Say something, end the episode and reflect on it."""
    ids = await ingest_texts(session, *texts, close=True)
    await session.reflect()
    await session.wait_pending()
    return ids


def open_session(storage: Any, name: str = "user_123", **given: Any) -> ACMS:
    return session_on(storage, name, reflector=Rules(), **{"config": CONFIG, "namespace": "team", **given})


@pytest.fixture
async def session(storage: Storage) -> AsyncIterator[ACMS]:
    async with open_session(storage) as session:
        yield session


async def correct_database(session: ACMS) -> tuple[str, str]:
    """A database that was named, then changed; the ids of both messages."""
    (old,) = await say_and_reflect(session, "The database is Postgres. The owner is Ada.")
    (new,) = await say_and_reflect(session, "We have moved on. The database is MySQL.")
    await ingest_texts(session, "good morning")
    return old, new


# ── what is shown ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_facts_come_first_and_are_written_as_facts(session: ACMS) -> None:
    await say_and_reflect(session, "The deadline is June 17.", "The budget is small.")
    await ingest_texts(session, "hello")
    items = await session.recall("When is the deadline?", min_relevance=0.5)
    assert [(item.source, item.content) for item in items] == [
        (Source.FACT, "Our deadline is June 17."),
        (Source.SIMILAR, "The deadline is June 17."),
        (Source.CURRENT, "hello"),
    ]
    assert items.text().startswith("fact: Our deadline is June 17.\n\nuser: The deadline is June 17.")
    fact = items[0]
    assert (fact.role, fact.actor_id, fact.speaker, fact.truncated) == (None, None, "fact", False)
    assert fact.relevance > 0 < items.confidence
    verdict = items.ledger.why(fact.id)
    assert (verdict.included, verdict.rule, verdict.source) == (True, "score", Source.FACT)
    assert verdict.parts["fact"] > 0


async def test_a_fact_is_found_by_its_address_alone(session: ACMS) -> None:
    await say_and_reflect(session, "The broker is NATS.")
    await ingest_texts(session, "hello")
    assert "Our broker is NATS." in contents_of(await session.recall("project"))


async def test_every_fact_has_a_verdict(session: ACMS) -> None:
    await correct_database(session)
    (first, second, owner) = sorted(await session.facts(history=True), key=lambda fact: fact.content)[:3]
    ledger = (await session.recall("zanzibar")).ledger
    said = {fact.content: ledger.why(fact.id) for fact in (first, second, owner)}
    assert said["Our database is MySQL."].rule == "irrelevant"
    assert said["Our database is Postgres."].rule == "hidden"
    assert said["Our database is Postgres."].reason.startswith("replaced by v")
    assert {fact.id for fact in (first, second, owner)} <= {verdict.id for verdict in ledger}


async def test_facts_can_be_excluded_and_need_the_relevance_that_is_asked_for(session: ACMS) -> None:
    await say_and_reflect(session, "The deadline is June 17.")
    await ingest_texts(session, "hello")
    (fact,) = await session.facts()
    items = await session.recall("deadline", exclude=[fact.id])
    assert fact.id not in [item.id for item in items]
    assert items.ledger.why(fact.id).rule == "excluded"
    items = await session.recall("deadline of the migration project", min_relevance=1.0)
    assert items.ledger.why(fact.id).rule == "min_relevance"


async def test_a_log_without_facts_is_recalled_as_before(storage: Storage) -> None:
    texts = [f"orders of day {number} were late" for number in range(30)]
    async with (
        session_on(storage, "plain", config=CONFIG, namespace="team") as plain,
        open_session(storage, "learns") as learns,
    ):
        await ingest_texts(plain, *texts, close=True)
        await ingest_texts(learns, *texts, close=True)
        await learns.reflect()
        await learns.wait_pending()
        for session in (plain, learns):
            await ingest_texts(session, "hello")
        left, right = [await one.recall("orders of day 7", token_budget=200) for one in (plain, learns)]
        assert [(item.content, item.score) for item in left] == [(item.content, item.score) for item in right]


@given(st.integers(0, 400), st.booleans(), st.booleans())
async def test_no_budget_is_exceeded(budget: int, current: bool, superseded: bool) -> None:
    async with open_storage("memory://") as storage, open_session(storage) as session:
        await correct_database(session)
        for query in ("Which database?", "database owner deadline"):
            items = await session.recall(
                query, token_budget=budget, include_current_episode=current, include_superseded=superseded
            )
            assert items.tokens <= budget
            assert session._shared.counter.count(items.text()) <= budget
            assert sum(item.token_count for item in items) == items.tokens


async def test_facts_are_found_by_meaning(storage: Storage) -> None:
    async with open_session(storage, embedder=LocalEmbedder()) as session:
        await say_and_reflect(session, "The database is Postgres.", "The colour is green.")
        await ingest_texts(session, "hello")
        await session.wait_pending()
        items = await session.recall("Which relational DBMS?")
        verdict = items.ledger.why(next(f.id for f in await session.facts() if f.attribute == "database"))
        assert verdict.parts["meaning"] > 0


# ── what was replaced ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_that_says_what_was_replaced_is_left_out_and_the_ledger_says_why(
    session: ACMS,
) -> None:
    (old,) = await say_and_reflect(session, "The database is Postgres.")
    await say_and_reflect(session, "The database is MySQL.")
    await ingest_texts(session, "good morning")
    items = await session.recall("Which database?")
    assert contents_of(items) == ["Our database is MySQL.", "The database is MySQL.", "good morning"]
    verdict = items.ledger.why_not(old)
    (fact,) = await session.facts()
    assert verdict is not None
    assert (verdict.rule, verdict.reason) == (
        "superseded",
        f"states what v{fact.version} replaced; include_superseded=True shows it",
    )
    shown = contents_of(await session.recall("Which database?", include_superseded=True))
    assert "The database is Postgres." in shown
    assert "Our database is Postgres." not in shown  # a retired fact never comes back


async def test_of_a_message_that_says_more_the_rest_is_shown(session: ACMS) -> None:
    old, _ = await correct_database(session)
    items = await session.recall("Which database? Who is the owner?")
    item = next(item for item in items if item.id == old)
    assert item.content == "[…] The owner is Ada."
    assert item.truncated
    count = session._shared.counter.count
    assert item.token_count == count(item.content) + session._shared.frame.cost(item.role, ())
    verdict = items.ledger.why(old)
    assert (verdict.included, verdict.rule) == (True, "trimmed")
    whole = await session.recall("Which database? Who is the owner?", include_superseded=True)
    assert next(item for item in whole if item.id == old).content.startswith("The database is Postgres.")


async def test_the_current_episode_and_the_window_show_what_was_said(session: ACMS) -> None:
    await say_and_reflect(session, "The database is Postgres.")
    await say_and_reflect(session, "The database is MySQL.")
    assert "The database is MySQL." in contents_of(await session.recall("database"))
    assert "The database is Postgres." in contents_of(await session.window(1000))
    assert "The database is Postgres." in [one["content"] for one in await session.messages("x", budget=1000)]


async def test_undoing_a_correction_restores_what_was_said(session: ACMS) -> None:
    old, _ = await correct_database(session)
    before = await session.recall("Which database?", include_current_episode=False)
    (fact,) = await session.facts(attribute="database")
    taken_back = await session.undo(fact.version)
    items = await session.recall("Which database?", include_current_episode=False)
    assert "Our database is Postgres." in contents_of(items)
    assert "Our database is MySQL." not in contents_of(items)
    assert next(item for item in items if item.id == old).content.startswith("The database is Postgres.")
    await session.undo(taken_back)
    after = await session.recall("Which database?", include_current_episode=False)
    assert list(after) == list(before)


async def test_a_past_version_is_recalled_as_it_was(session: ACMS) -> None:
    (old,) = await say_and_reflect(session, "The database is Postgres.")
    version = (await session.get_session_stats()).version
    before = await session.at(version).recall("Which database?")
    await say_and_reflect(session, "The database is MySQL.")
    await ingest_texts(session, "good morning")
    after = await session.at(version).recall("Which database?")
    assert list(after) == list(before)
    assert old in [item.id for item in after]
    assert "Our database is Postgres." in contents_of(after)


async def test_a_fork_knows_what_its_parent_knew(session: ACMS) -> None:
    await correct_database(session)
    branch = await session.fork(session_id="branch")
    async with branch:
        mine, theirs = [await one.recall("Which database?") for one in (session, branch)]
        assert list(mine) == list(theirs)
        await say_and_reflect(branch, "The database is SQLite.")
        await ingest_texts(branch, "now")
        assert "Our database is SQLite." in contents_of(await branch.recall("Which database?"))
        assert "Our database is MySQL." in contents_of(await session.recall("Which database?"))


async def test_an_erased_fact_is_never_shown(session: ACMS) -> None:
    await say_and_reflect(session, "The database is Postgres.")
    await ingest_texts(session, "hello")
    (fact,) = await session.facts()
    assert fact.id in [item.id for item in await session.recall("database")]
    await session.erase(fact.id)
    assert fact.id not in [item.id for item in await session.recall("database")]


async def test_recalled_text_in_a_prompt_holds_facts_and_nothing_that_was_replaced(session: ACMS) -> None:
    await say_and_reflect(session, "The database is Postgres.")
    await say_and_reflect(session, "The database is MySQL.")
    await ingest_texts(
        session, *(f"chatter about the weather of day {number} and more" for number in range(40))
    )
    await ingest_texts(session, "Which database?")
    for budget in (200, 300):
        written = await session.messages("Which database?", budget=budget)
        assert chat_messages.count_message_tokens(written, session._shared.counter) <= budget
        (block,) = [one["content"] for one in written if "<recalled>" in (one["content"] or "")]
        assert "fact: Our database is MySQL." in block
        assert "Postgres" not in block


# ── the profile of a namespace ──────────────────────────────────────────────────────────────────────────────────────


async def test_what_a_namespace_knows_is_recalled_in_all_its_sessions(storage: Storage) -> None:
    async with open_session(storage, "first") as first, open_session(storage, "second") as second:
        await ingest_texts(second, "hi")
        assert contents_of(await second.recall("city")) == ["hi"]
        await say_and_reflect(first, "Everywhere: x. The city is Berlin.")
        (fact,) = await first.facts(scope="namespace")
        items = await second.recall("Which city?")
        assert (items[0].id, items[0].source) == (fact.id, Source.FACT)
        assert items.ledger.why(fact.id).included
        assert items.confidence > 0
        (written, _) = await second.messages("Which city?", budget=500)
        assert "fact: Our city is Berlin." in written["content"]
        assert contents_of(await second.at(1).recall("Which city?")) == ["hi"]
        async with open_session(storage, "third") as third:  # nothing was said in it yet
            assert contents_of(await third.recall("Which city?")) == ["Our city is Berlin."]
        async with open_session(storage, "other", namespace="elsewhere") as other:
            await ingest_texts(other, "hi")
            assert contents_of(await other.recall("Which city?")) == ["hi"]


async def test_where_sessions_are_anybodys_no_fact_reaches_another_one(storage: Storage) -> None:
    """In "default" nothing goes to a profile, and a profile stored by an earlier release is never shown."""
    home = await storage.create(ContextDraft(key=PROFILE, counter="o200k_base", created_at=WHEN))
    old = {"subject": "user", "attribute": "city", "value": "Oslo", "scope": "namespace"}
    await append_drafts(storage, home, draft_fact("Our city is Oslo.", data=old))
    async with (
        open_session(storage, "ana", namespace="default") as ana,
        open_session(storage, "ben", namespace="default") as ben,
    ):
        await say_and_reflect(ana, "Everywhere: x. The broker is NATS.")
        await ingest_texts(ben, "hi")
        for verb in (
            lambda: ana.state("user", "street", "12 Elm Street", scope="namespace"),
            lambda: ana.unstate("user", "city", scope="namespace"),
            lambda: ben.facts(scope="namespace"),
        ):
            with pytest.raises(ValidationError) as refused:
                await verb()
            assert refused.value.field == "scope"
            assert 'namespace="user:123"' in refused.value.options[0]
        assert [(fact.value, fact.scope) for fact in await ana.facts()] == [("NATS", "session")]
        assert contents_of(await ben.recall("Which city, street and broker?")) == ["hi"]
        assert [one["content"] for one in await ben.messages("Which city?", budget=500)] == ["hi"]
    profile = open_session(storage, home.id, namespace="default")
    assert [fact.value for fact in await profile.facts()] == ["Oslo"]  # it is not lost


async def test_what_the_profile_replaced_is_shown_in_no_session(storage: Storage) -> None:
    async with open_session(storage, "first") as first, open_session(storage, "second") as second:
        (old,) = await say_and_reflect(first, "Everywhere: x. The city is Berlin.")
        await say_and_reflect(second, "Everywhere: y. The city is Munich.")
        await ingest_texts(first, "hi")
        items = await first.recall("Which city?")
        assert "Our city is Munich." in contents_of(items)
        assert "Our city is Berlin." not in contents_of(items)
        assert "of the profile" in items.ledger.why(old).reason
        assert "Berlin" not in items.text()
        (fact,) = await first.facts(scope="namespace")
        await open_session(storage, (await storage.context("@profile", namespace="team")).id).erase(fact.id)
        assert fact.id not in [item.id for item in await first.recall("Which city?")]


async def test_a_namespace_is_asked_for_its_sessions_and_its_profile(storage: Storage) -> None:
    async with open_session(storage, "first") as first, open_session(storage, "second") as second:
        await say_and_reflect(first, "The broker is NATS.", "Everywhere: x. The city is Berlin.")
        await ingest_texts(second, "hi")
        items = contents_of(await second.recall("city broker", scope="namespace"))
        assert {"Our city is Berlin.", "Our broker is NATS."} <= set(items)


async def test_a_session_recalls_at_once_what_it_states_for_its_namespace(storage: Storage) -> None:
    async with open_session(storage, "first") as first, open_session(storage, "second") as second:
        await ingest_texts(first, "hi")
        await ingest_texts(second, "hello")
        for session in (first, second):
            assert "Ana" not in str(contents_of(await session.recall("Where does Ana live?")))
        stated = await first.state("Ana", "city", "Lyon", scope="namespace")
        for session in (first, second):
            assert (await session.recall("Where does Ana live?"))[0].id == stated.id


async def test_what_another_counter_counted_is_not_mixed_in(storage: Storage) -> None:
    async with open_session(storage, "first") as first, open_session(storage, "second", words=True) as second:
        await ingest_texts(second, "hello")
        await first.state("Ana", "city", "Lyon", scope="namespace")
        assert "Ana" in (await first.recall("Where does Ana live?")).text()
        assert contents_of(await second.recall("Where does Ana live?")) == ["hello"]


async def test_a_filter_holds_for_facts_and_for_what_is_no_candidate(session: ACMS) -> None:
    await ingest_texts(session, "Our deadline is near.", "lunch is at noon", close=True)
    await session.state("project", "deadline", "June 17")
    await session.state("canteen", "soup", "leek")
    await ingest_texts(session, "hello", close=True)
    (mine,) = await ingest_texts(session, "When is the deadline?", role="assistant")
    items = await session.recall("When is the deadline?", where={"role": "assistant"})
    assert [item.id for item in items] == [mine]
    said = [one.id for one in await session.entries() if one.kind is Kind.MESSAGE]
    left = [*said, *(fact.id for fact in await session.facts())]
    assert {items.ledger.why(id).rule for id in left if id != mine} == {"filter"}


async def test_a_filter_brings_back_no_tool_group_of_which_the_answer_was_taken_back(session: ACMS) -> None:
    await tool_turn(session, "c1", "The deadline is June 17.")
    await ingest_texts(session, "hello", close=True)
    call, answer = [one.id for one in await session.entries() if one.group is not None]
    await session.retract(answer)
    items = await session.recall("When is the deadline?", where={"role": "assistant"})
    assert list(items) == []
    assert {items.ledger.why(id).rule for id in (call, answer)} == {"hidden"}


async def test_of_very_many_facts_the_best_are_candidates(
    session: ACMS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acms.recall.fact_candidates.MIN_CANDIDATES", 2)
    for number in range(4):
        await session.state(f"service {number}", "database", "PostgreSQL")
    best = await session.state("orders", "database", "MySQL")
    items = await session.recall("Which database do the orders have?")
    assert best.id in [item.id for item in items]
    assert len([item for item in items if item.source is Source.FACT]) == 2
    rules = [items.ledger.why(fact.id).rule for fact in await session.facts()]
    assert sorted(rules) == ["rank", "rank", "rank", "score", "score"]


async def test_that_there_is_no_profile_is_asked_once_in_a_while(storage: Storage) -> None:
    async with session_on(storage, "plain", config=CONFIG, namespace="team") as session:
        await ingest_texts(session, "hi")
        profiles = session._shared.indexes.profiles
        await session.recall("x")
        known = dict(profiles._absent)
        assert known
        await session.recall("y")
        assert profiles._absent == known


# ── every way an index comes about ──────────────────────────────────────────────────────────────────────────────────


async def comparable_recall(view: View, query: str = "database owner city") -> Any:
    items = await view.recall(query, token_budget=150)
    return [(item.id, item.score, item.content) for item in items], [
        (verdict.id, verdict.rule) for verdict in items.ledger
    ]


async def test_an_index_with_facts_is_the_same_however_it_came_about(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acms.recall.index_cache.SMALL", 0)
    url = f"sqlite:///{tmp_path / 'log.db'}"
    async with open_storage(url) as storage, open_session(storage) as session:
        await ingest_texts(session, *(f"small talk {number}" for number in range(30)))
        await comparable_recall(session)  # from here on it grows
        await correct_database(session)
        for number in range(4):
            await say_and_reflect(session, f"The thing{number} is red.")
            await comparable_recall(session)
        grown = await comparable_recall(session)
        async with await session.fork(session_id="branch") as branch:
            assert await comparable_recall(branch) == grown
    async with open_storage(url) as storage, open_session(storage) as session:
        assert await comparable_recall(session) == grown
