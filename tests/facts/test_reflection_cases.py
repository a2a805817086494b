"""The cases by which an earlier engine tested its reflection, told as what must hold here, on every store.

What its tests froze and this engine decides otherwise is told with the other ending: a similarity never retires a fact,
a value that differs is never a duplicate, an answer that failed is asked for again, what waits for more survives a
restart.

| its case | test here |
| --- | --- |
| full cycle | test_a_full_cycle_from_messages_to_facts_to_an_answer |
| consolidation: PostgreSQL to MySQL, and a new fact | test_an_update_and_an_addition_in_one_answer |
| consolidation: dark to light by remove and add | test_a_removal_and_an_addition_change_a_preference |
| consolidation: keep leaves all untouched | test_what_is_kept_is_not_written_again |
| consolidation: a reflector of the old shape adds only | test_a_reflector_of_the_old_shape_only_adds |
| confidence filter, low-confidence add and update | test_what_the_reflector_is_not_sure_of_changes_nothing |
| cap of facts in one call | test_one_call_adds_no_more_facts_than_it_may |
| cap of facts in force | test_beyond_the_limit_the_least_sure_facts_are_archived |
| reflection switched off | test_switched_off_an_episode_asks_for_nothing |
| no reflector | test_without_a_reflector_nothing_is_distilled |
| carry-over of 1 + 3 turns | test_a_short_episode_is_read_together_with_the_next |
| carry-over of three singles and one | test_short_episodes_wait_until_they_are_enough |
| carry-over flushed | test_what_waits_for_more_is_read_when_it_is_asked_for, test_what_waits_survives_a_restart |
| update, remove | test_an_update_by_id_replaces_whatever_its_address, test_a_removed_fact_is_gone_and_listed |
| unknown id | test_an_update_of_an_unknown_fact_is_added_and_a_removal_is_not |
| no actions | test_an_answer_without_proposals_is_an_answer |
| scoping with zero vectors and without vectors | test_the_reflector_is_shown_every_fact_whatever_its_vectors |
| scoping above the limit | test_the_reflector_is_shown_the_facts_that_have_most_to_do_with_the_turns |
| traces of each mode, as plain values | test_a_trace_says_what_was_read_proposed_and_decided |
| trace callback raises; no callback | test_a_listener_that_fails_changes_nothing |
| dedup: identical skipped | test_what_is_known_already_is_a_duplicate |
| dedup: different kept; threshold 1.0 | test_statements_that_only_resemble_each_other_are_both_kept |
| dedup: zero vectors never block | test_vectors_without_a_direction_never_block_a_fact |
| store dedup, less sure one retired | test_a_surer_repetition_retires_nothing |
| coverage: fact named, or its words said | test_a_fact_the_answer_does_not_mention_stays_in_force |
| recall: orthogonal vector | test_a_fact_about_something_else_is_not_recalled_before_the_one_that_answers |
| recall: identical vector and boost | test_a_marked_fact_weighs_more_than_a_plain_one |
| recall: no vector | test_a_fact_is_found_by_its_words_without_an_embedder |
| recall: near-duplicates 2 to 1, distinct kept | test_recall_says_a_fact_once_and_different_facts_both |
| parsing: prose, fences, unknown type, no confidence, unknown action | test_what_a_model_wrote_becomes_a_fact |
| background, order | test_episodes_are_read_in_order_though_they_close_while_the_model_thinks |
| background, failure | test_a_failure_loses_nothing |
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from acms import ACMS, ACMSConfig, Decision, Fact, ReflectionConfig, Source
from acms.observability import Event, JobFailed, Reflected
from acms.ports import Proposal, Reflection, ReflectionRequest
from acms.providers import HTTPReflector
from tests.providers.server import ModelServer
from tests.support.fakes import FakeEmbedder
from tests.support.reflectors import Scripted, one, says
from tests.support.talk import LONG_EPISODES, PATIENT, Storage, contents_of, ingest_texts, session_on


def reflection_config(**reflection: Any) -> ACMSConfig:
    """Episodes that end by hand, retries at once."""
    return ACMSConfig(episodes=LONG_EPISODES, retry=PATIENT, reflection=ReflectionConfig(**reflection))


def open_session(storage: Any, reflector: Any, heard: list[Event] | None = None, **given: Any) -> ACMS:
    reflection = {name: given.pop(name) for name in list(given) if name in ReflectionConfig.__slots__}
    made = reflection_config(**reflection)
    if heard is not None:
        made = replace(made, on_event=heard.append)
    return session_on(storage, reflector=reflector, config=made, **given)


async def reflect_episode(session: ACMS, *texts: str) -> list[str]:
    """One episode, reflected on when this returns; a single text gets an answer."""
    ids = await ingest_texts(session, *texts)
    if len(texts) == 1:
        await session.ingest("assistant", "Noted.")
    await session.close_episode()
    await session.wait_pending()
    return ids


async def fact_values(session: ACMS, **given: Any) -> list[str]:
    return sorted(fact.value or fact.content for fact in await session.facts(**given))


def reflected_events(heard: list[Event]) -> list[Reflected]:
    return [event for event in heard if isinstance(event, Reflected)]


def reflected_decisions(heard: list[Event]) -> list[Decision]:
    return [decision for trace in reflected_events(heard) for decision in trace.decisions]


def decision_outcomes(heard: list[Event]) -> list[str]:
    return [decision.outcome for decision in reflected_decisions(heard)]


def update_answer(proposal: Proposal, value: str | None = None) -> Any:
    """An answer that names the fact in force with a value, or the only one."""

    def answer(request: ReflectionRequest) -> Reflection:
        (found,) = [fact for fact in request.facts if value in (None, fact.value)]
        return says(replace(proposal, fact_id=found.id))

    return answer


DATABASE = one("orders service", "database", "PostgreSQL", fact_type="decision")


# ── the whole way ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_full_cycle_from_messages_to_facts_to_an_answer(storage: Storage) -> None:
    reflector = Scripted(says(DATABASE, summary="They chose a database."))
    async with open_session(storage, reflector) as session:
        ids = await reflect_episode(
            session, "Decision: the orders service runs on PostgreSQL.", "Good, go ahead."
        )
        (fact,) = await session.facts()
        assert (fact.subject, fact.attribute, fact.value, fact.fact_type) == (
            "orders service", "database", "PostgreSQL", "decision",
        )  # fmt: skip
        assert (set(fact.sources), fact.retired, fact.replaces) == (set(ids), None, ())
        assert fact.version > 2
        (closed,) = await session.episodes("closed")
        assert closed.summary == "They chose a database."
        await session.ingest("user", "next topic")
        items = await session.recall("which database does the orders service use?", token_budget=200)
        assert fact.id in [item.id for item in items]
        assert items.tokens <= 200
        assert (await session.get_session_stats()).facts == 1


async def test_an_update_and_an_addition_in_one_answer(storage: Storage) -> None:
    login = one("orders service", "login", "OAuth")
    mysql = one("orders service", "database", "MySQL")
    reflector = Scripted(
        says(DATABASE), lambda request: says(update_answer(mysql)(request).proposals[0], login)
    )
    async with open_session(storage, reflector) as session:
        await reflect_episode(session, "We use PostgreSQL for orders.")
        await reflect_episode(session, "We move the orders to MySQL, and log in with OAuth.")
        assert await fact_values(session) == ["MySQL", "OAuth"]
        every = await session.facts(history=True)
        assert len(every) == 3
        (old,) = [fact for fact in every if fact.retired is not None]
        (new,) = await session.facts(attribute="database")
        assert new.replaces == (old.id,)
        assert old.retired is not None
        assert (old.retired.reason, old.retired.by, old.retired.version) == ("updated", new.id, new.version)


async def test_a_removal_and_an_addition_change_a_preference(storage: Storage) -> None:
    dark = Proposal(content="The user prefers dark mode.", fact_type="preference")
    light = Proposal(content="The user prefers light mode.", fact_type="preference")
    gone = update_answer(Proposal(action="remove"))
    reflector = Scripted(says(dark), lambda request: says(*gone(request).proposals, light))
    async with open_session(storage, reflector) as session:
        await reflect_episode(session, "I like dark mode.")
        said = await reflect_episode(session, "No, light mode is better after all.")
        assert contents_of(await session.facts()) == ["The user prefers light mode."]
        first, _ = await session.facts(history=True)
        assert first.retired is not None
        assert first.retired.reason == "removed"
        assert set(said) <= set(first.retired.evidence)


async def test_what_is_kept_is_not_written_again(storage: Storage) -> None:
    heard: list[Event] = []
    async with open_session(
        storage, Scripted(says(DATABASE), update_answer(Proposal(action="keep"))), heard
    ) as session:
        await reflect_episode(session, "We use PostgreSQL for orders.")
        before = await session.facts(history=True)
        await reflect_episode(session, "PostgreSQL is fine.")
        assert await session.facts(history=True) == before
        assert decision_outcomes(heard) == ["added", "kept"]
        assert reflected_decisions(heard)[1].fact_id == before[0].id


class OldShape:
    """The simpler shape: an episode and its turns in, facts out."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, list[Any]]] = []

    async def reflect(self, episode: Any, turns: list[Any]) -> list[Fact]:
        self.calls.append((episode, turns))
        return [Fact(content=f"They talked about {turns[0].text}", fact_type="decision")]


async def test_a_reflector_of_the_old_shape_only_adds(storage: Storage) -> None:
    reflector = OldShape()
    async with open_session(storage, reflector) as session:
        await reflect_episode(session, "databases")
        await reflect_episode(session, "logins")
        assert contents_of(await session.facts()) == [
            "They talked about databases",
            "They talked about logins",
        ]
        assert [given.ordinal for given, _ in reflector.calls] == [1, 2]


# ── what is passed over ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_the_reflector_is_not_sure_of_changes_nothing(storage: Storage) -> None:
    heard: list[Event] = []
    unsure = one("orders service", "database", "MySQL", confidence=0.5)
    reflector = Scripted(says(DATABASE), says(unsure), update_answer(replace(unsure, action="update")))
    async with open_session(storage, reflector, heard) as session:
        for text in ("We use PostgreSQL.", "Perhaps MySQL?", "MySQL, maybe."):
            await reflect_episode(session, text)
        assert await fact_values(session, history=True) == ["PostgreSQL"]
        assert decision_outcomes(heard) == ["added", "low_confidence", "low_confidence"]
        assert all(decision.reason for decision in reflected_decisions(heard)[1:])


async def test_the_threshold_itself_is_sure_enough(storage: Storage) -> None:
    async with open_session(storage, Scripted(says(replace(DATABASE, confidence=0.7)))) as session:
        await reflect_episode(session, "We use PostgreSQL.")
        assert await fact_values(session) == ["PostgreSQL"]


async def test_one_call_adds_no_more_facts_than_it_may(storage: Storage) -> None:
    heard: list[Event] = []
    many = [one(f"host {number}", "port", str(number)) for number in range(5)]
    async with open_session(storage, Scripted(says(*many)), heard, max_facts_per_call=3) as session:
        await reflect_episode(session, "Five hosts.")
        assert len(await session.facts()) == 3
        assert decision_outcomes(heard) == ["added"] * 3 + ["over_limit"] * 2


async def test_beyond_the_limit_the_least_sure_facts_are_archived(storage: Storage) -> None:
    many = [one(f"host {number}", "port", str(number), confidence=0.8 + number / 100) for number in range(6)]
    limit = one("host 9", "limit", "9", confidence=0.75, fact_type="constraint")
    reflector = Scripted(says(limit, *many[:3]), says(*many[3:]))
    async with open_session(storage, reflector, max_active_facts=4) as session:
        await reflect_episode(session, "Three hosts and a limit.")
        assert await fact_values(session) == ["0", "1", "2", "9"]
        await reflect_episode(session, "Three more hosts.")
        assert await fact_values(session) == [
            "3",
            "4",
            "5",
            "9",
        ]  # a constraint goes last, whatever its confidence
        gone = [fact.retired for fact in await session.facts(history=True) if fact.retired is not None]
        assert {retired.reason for retired in gone} == {"archived"}
        await session.undo(gone[0].version)
        assert len(await session.facts()) == 7


async def test_one_answer_cannot_add_more_facts_than_may_be_in_force(storage: Storage) -> None:
    many = [one(f"host {number}", "port", str(number)) for number in range(6)]
    async with open_session(storage, Scripted(says(*many)), max_active_facts=4) as session:
        await reflect_episode(session, "Six hosts.")
        assert len(await session.facts()) == 4


async def test_switched_off_an_episode_asks_for_nothing(storage: Storage) -> None:
    reflector = Scripted(says(DATABASE))
    async with open_session(storage, reflector, enabled=False) as session:
        await reflect_episode(session, "We use PostgreSQL.")
        assert (reflector.requests, await session.facts()) == ([], [])
        await session.wait(await session.reflect())
        assert await fact_values(session) == ["PostgreSQL"]


async def test_without_a_reflector_nothing_is_distilled(storage: Storage) -> None:
    async with open_session(storage, None) as session:
        await reflect_episode(session, "We use PostgreSQL.")
        assert await session.facts() == []
        stats = await session.get_session_stats()
        assert (stats.version, stats.facts, stats.summaries) == (3, 0, 0)


# ── short episodes ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_short_episode_is_read_together_with_the_next(storage: Storage) -> None:
    reflector = Scripted(says(DATABASE))
    async with open_session(storage, reflector) as session:
        await ingest_texts(session, "one", close=True)
        await session.wait_pending()
        assert reflector.requests == []
        await ingest_texts(session, "two", "three", "four", close=True)
        await session.wait_pending()
        assert reflector.read == [["one", "two", "three", "four"]]


async def test_short_episodes_wait_until_they_are_enough(storage: Storage) -> None:
    reflector = Scripted(says(DATABASE))
    async with open_session(storage, reflector, min_episode_turns=4) as session:
        for text in ("one", "two", "three"):
            await ingest_texts(session, text, close=True)
            await session.wait_pending()
        assert (reflector.requests, await session.facts()) == ([], [])
        await ingest_texts(session, "four", close=True)
        await session.wait_pending()
        assert reflector.read == [["one", "two", "three", "four"]]
        assert all(found.summary for found in await session.episodes())


async def test_what_waits_for_more_is_read_when_it_is_asked_for(storage: Storage) -> None:
    reflector = Scripted(says(DATABASE))
    async with open_session(storage, reflector) as session:
        await ingest_texts(session, "one", close=True)
        await session.wait_pending()
        assert reflector.requests == []
        await session.wait(await session.reflect())
        assert reflector.read == [["one"]]


async def test_what_waits_survives_a_restart(url: str) -> None:
    from acms import open_storage

    reflector = Scripted(says(DATABASE))
    for texts in (["one"], ["two", "three"]):
        async with open_session(open_storage(url), reflector) as session:
            await ingest_texts(session, *texts, close=True)
            await session.wait_pending()
    assert reflector.read == [["one", "two", "three"]]


# ── by id ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_update_by_id_replaces_whatever_its_address(storage: Storage) -> None:
    renamed = Proposal(action="update", content="Orders are kept in Spanner.", value="Spanner")
    async with open_session(storage, Scripted(says(DATABASE), update_answer(renamed))) as session:
        await reflect_episode(session, "We use PostgreSQL.")
        await reflect_episode(session, "We use Spanner now.")
        assert await fact_values(session) == ["Spanner"]
        assert await fact_values(session, history=True) == ["PostgreSQL", "Spanner"]


async def test_a_removed_fact_is_gone_and_listed(storage: Storage) -> None:
    async with open_session(
        storage, Scripted(says(DATABASE), update_answer(Proposal(action="remove")))
    ) as session:
        await reflect_episode(session, "We use PostgreSQL.")
        await reflect_episode(session, "There is no orders database any more.")
        assert await session.facts() == []
        (fact,) = await session.facts(subject="the Orders Services", attribute="Database", history=True)
        assert fact.retired is not None
        assert (fact.retired.reason, fact.value) == ("removed", "PostgreSQL")


async def test_an_update_of_an_unknown_fact_is_added_and_a_removal_is_not(storage: Storage) -> None:
    heard: list[Event] = []
    lost = replace(one("orders service", "region", "Frankfurt"), action="update", fact_id="f_nobody")
    gone = Proposal(action="remove", fact_id="f_nobody")
    kept = Proposal(action="keep", fact_id="f_nobody")
    async with open_session(storage, Scripted(says(lost, gone, kept)), heard) as session:
        await reflect_episode(session, "Orders run in Frankfurt.")
        assert await fact_values(session) == ["Frankfurt"]
        assert decision_outcomes(heard) == ["added", "unknown_id", "unknown_id"]


async def test_an_answer_without_proposals_is_an_answer(storage: Storage) -> None:
    reflector = Scripted(says(DATABASE), says(), says())
    async with open_session(storage, reflector) as session:
        for text in ("We use PostgreSQL.", "Hello.", "Hello again."):
            await reflect_episode(session, text)
        assert await fact_values(session) == ["PostgreSQL"]
        assert len(reflector.requests) == 3  # and none of it is asked about twice


async def test_a_fact_the_answer_does_not_mention_stays_in_force(storage: Storage) -> None:
    other = one("billing service", "database", "SQLite")
    async with open_session(storage, Scripted(says(DATABASE), says(other))) as session:
        await reflect_episode(session, "We use PostgreSQL.")
        await reflect_episode(session, "Billing has SQLite. Was there a PostgreSQL too?")
        assert await fact_values(session) == ["PostgreSQL", "SQLite"]


# ── what the reflector is shown ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("vectors", ["none", "of words", "of zeros"])
async def test_the_reflector_is_shown_every_fact_whatever_its_vectors(storage: Storage, vectors: str) -> None:
    embedder = FakeEmbedder() if vectors != "none" else None
    if embedder is not None and vectors == "of zeros":
        embedder.answer = lambda texts: [[0.0] * embedder.dimension for _ in texts]
    many = [one(f"host {number}", "port", str(number)) for number in range(8)]
    reflector = Scripted(says(*many))
    async with open_session(storage, reflector, embedder=embedder) as session:
        await reflect_episode(session, "Eight hosts.")
        await reflect_episode(session, "Something else.")
        assert {fact.value for fact in reflector.requests[1].facts} == {str(number) for number in range(8)}


async def test_the_reflector_is_shown_the_facts_that_have_most_to_do_with_the_turns(storage: Storage) -> None:
    rooms = [one(f"room {number}", "guest", f"guest {number}") for number in range(60)]
    rooms[30:30] = [one("printers", "contact", "Ana")]
    reflector = Scripted(says(*rooms))
    async with open_session(storage, reflector, max_facts_per_call=100) as session:
        await reflect_episode(session, "Whom to ask.")
        await reflect_episode(session, "The printers are out of paper again.")
        assert len(await session.facts()) == 61
        assert reflector.requests[1].facts[0].subject == "printers"


# ── what a fact was made from ───────────────────────────────────────────────────────────────────────────────────────


async def test_what_was_said_beside_a_fact_that_is_replaced_stays_reachable(storage: Storage) -> None:
    """A reflector that cites nothing in particular cites all it has read: only what says the fact steps back."""
    reflector = Scripted(says(DATABASE), says(one("orders service", "database", "MySQL")))
    async with open_session(storage, reflector) as session:
        await reflect_episode(
            session, "We use PostgreSQL. Ben wrote the schema.", "Staging is db-7.", "Lunch is at noon."
        )
        await reflect_episode(session, "We moved to MySQL.")
        await session.ingest("user", "next topic")
        for query, answer in (
            ("what is staging?", "Staging is db-7."), ("when is lunch?", "Lunch is at noon."),
            ("who wrote the schema?", "Ben wrote the schema."),
        ):  # fmt: skip
            text = (await session.recall(query, token_budget=200)).text()
            assert answer in text
            assert "PostgreSQL" not in text


@pytest.mark.parametrize("known", [True, False], ids=["known before", "in the same answer"])
async def test_a_tool_cannot_overrule_what_the_user_said(storage: Storage, known: bool) -> None:
    heard: list[Event] = []

    def answer(request: ReflectionRequest) -> Reflection:
        return says(
            *[
                one("project", "budget", turn.text.split()[-1], sources=(turn.version,))
                for turn in request.turns
                if "budget" in turn.text
            ]
        )

    async with open_session(storage, Scripted(answer, answer), heard) as session:
        await ingest_texts(session, "The budget is 100", "ok", close=known)
        await session.wait_pending()
        await session.ingest("assistant", "", tool_calls=[{"id": "c", "name": "look", "arguments": "{}"}])
        await session.ingest("tool", "the budget is 999", tool_call_id="c")
        await session.close_episode()
        await session.wait_pending()
        assert await fact_values(session, history=True) == ["100"]
        assert decision_outcomes(heard) == ["added", "untrusted"]


# ── traces ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_trace_says_what_was_read_proposed_and_decided(storage: Storage) -> None:
    heard: list[Event] = []
    mysql = one("orders service", "database", "MySQL")
    async with open_session(storage, Scripted(says(DATABASE), says(mysql)), heard) as session:
        await reflect_episode(session, "We use PostgreSQL.")
        (old,) = await session.facts()
        await reflect_episode(session, "We use MySQL.")
        (new,) = await session.facts()
        first, second = reflected_events(heard)
        assert (first.reflector, first.episodes, first.turns, first.known) == ("scripted/1", (1,), (1, 2), ())
        assert (second.episodes, second.known) == ((2,), (old.id,))
        (decision,) = second.decisions
        assert (decision.proposal, decision.outcome, decision.fact_id) == (mysql, "updated", new.id)
        assert second.versions is not None
        assert second.versions[0] <= new.version <= second.versions[1]
        assert second.seconds >= second.call_seconds >= 0


async def test_a_listener_that_fails_changes_nothing(storage: Storage) -> None:
    def fail(event: Event) -> None:
        raise RuntimeError("the listener is broken")

    made = replace(reflection_config(), on_event=fail)
    async with session_on(storage, reflector=Scripted(says(DATABASE)), config=made) as session:
        await reflect_episode(session, "We use PostgreSQL.")
        assert await fact_values(session) == ["PostgreSQL"]


# ── what counts as the same ─────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_known_already_is_a_duplicate(storage: Storage) -> None:
    heard: list[Event] = []
    plain = Proposal(content="Sam prefers the train.")
    again = replace(DATABASE, subject="Orders Services", attribute="the database", value="postgresql")
    reflector = Scripted(says(DATABASE, plain), says(again, Proposal(content="Sam prefers the train")))
    async with open_session(storage, reflector, heard) as session:
        await reflect_episode(session, "We use PostgreSQL. Sam prefers the train.")
        before = await session.facts(history=True)
        await reflect_episode(session, "As I said.")
        assert await session.facts(history=True) == before
        assert decision_outcomes(heard) == ["added", "added", "duplicate", "duplicate"]


async def test_statements_that_only_resemble_each_other_are_both_kept(storage: Storage) -> None:
    texts = ("Sam prefers the train to Frankfurt.", "Sam prefers the train to Hamburg.")
    reflector = Scripted(*[says(Proposal(content=text)) for text in texts])
    async with open_session(storage, reflector, embedder=FakeEmbedder()) as session:
        for text in texts:
            await reflect_episode(session, text)
        assert contents_of(await session.facts()) == list(texts)


async def test_vectors_without_a_direction_never_block_a_fact(storage: Storage) -> None:
    embedder = FakeEmbedder()
    embedder.answer = lambda texts: [[0.0] * embedder.dimension for _ in texts]
    reflector = Scripted(says(DATABASE), says(one("orders service", "region", "Frankfurt")))
    async with open_session(storage, reflector, embedder=embedder) as session:
        await reflect_episode(session, "We use PostgreSQL.")
        await reflect_episode(session, "In Frankfurt.")
        assert await fact_values(session) == ["Frankfurt", "PostgreSQL"]


async def test_a_surer_repetition_retires_nothing(storage: Storage) -> None:
    first = replace(DATABASE, confidence=0.75)
    reflector = Scripted(says(first), says(replace(DATABASE, confidence=1.0)), says(first))
    async with open_session(storage, reflector) as session:
        for text in ("PostgreSQL, I think.", "PostgreSQL, for sure.", "PostgreSQL, I think."):
            await reflect_episode(session, text)
        assert len(await session.facts()) == 1
        assert [fact.retired for fact in await session.facts(history=True)] == [None]


# ── recall ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def recalled_facts(session: ACMS, query: str, **given: Any) -> dict[str, Any]:
    """What recall says of facts, by value."""
    items = await session.recall(query, include_current_episode=False, **given)
    known = {fact.id: fact.value for fact in await session.facts()}
    return {known[item.id]: item for item in items if item.source is Source.FACT}


@pytest.mark.parametrize("vectors", [False, True])
async def test_a_fact_about_something_else_is_not_recalled_before_the_one_that_answers(
    storage: Storage, vectors: bool
) -> None:
    lunch = one("canteen", "lunch", "noon", content="Lunch is served at noon.")
    reflector = Scripted(says(DATABASE, lunch))
    async with open_session(storage, reflector, embedder=FakeEmbedder() if vectors else None) as session:
        await reflect_episode(session, "We use PostgreSQL. Lunch is at noon.")
        await session.ingest("user", "next topic")
        found = await recalled_facts(session, "which database does the orders service use?")
        assert next(iter(found)) == "PostgreSQL" or found["PostgreSQL"].score > found["noon"].score
        assert "noon" not in found or found["noon"].score < 0.5


async def test_a_marked_fact_weighs_more_than_a_plain_one(storage: Storage) -> None:
    plain = Proposal(content="orders go to the archive", value="plain")
    marked = Proposal(content="orders go to the backlog", value="marked", fact_type="decision")
    async with open_session(storage, Scripted(says(plain, marked))) as session:
        await reflect_episode(session, "Where orders go.")
        await session.ingest("user", "next topic")
        found = await recalled_facts(session, "orders go to the")
        assert found["marked"].score > found["plain"].score
        assert found["marked"].score <= 1


async def test_a_fact_is_found_by_its_words_without_an_embedder(storage: Storage) -> None:
    async with open_session(storage, Scripted(says(DATABASE))) as session:
        await reflect_episode(session, "We settled it.")
        await session.ingest("user", "next topic")
        assert list(await recalled_facts(session, "orders database")) == ["PostgreSQL"]


async def test_recall_says_a_fact_once_and_different_facts_both(storage: Storage) -> None:
    limit = one("invoices", "limit", "500 EUR", content="Invoices above 500 EUR need an approval.")
    copy = one("invoices", "copy", "Ben", content="Copies of invoices go to Ben.")
    again = replace(limit, subject="the invoice", content="An invoice above 500 EUR needs an approval.")
    async with open_session(storage, Scripted(says(limit, copy), says(again))) as session:
        await reflect_episode(session, "How invoices are handled.")
        await reflect_episode(session, "As I said.")
        await session.ingest("user", "next topic")
        text = (await session.recall("invoices above 500 EUR approval copies", token_budget=400)).text()
        assert text.count("500 EUR") == 1
        assert text.count("to Ben") == 1


# ── what a model wrote ──────────────────────────────────────────────────────────────────────────────────────────────

PLAIN = {
    "action": "add",
    "content": "The budget is 100.",
    "subject": "project",
    "attribute": "budget",
    "value": "100",
}
SURE = {**PLAIN, "type": "decision", "confidence": 0.9}


@pytest.mark.parametrize(
    ("answer", "confidence", "fact_type"),
    [
        (json.dumps({"proposals": [SURE]}), 0.9, "decision"),
        (f"Here is what I found: {json.dumps({'proposals': [SURE]})} I hope this helps!", 0.9, "decision"),
        (f"```json\n{json.dumps({'proposals': [SURE]})}\n```", 0.9, "decision"),
        (json.dumps({"proposals": [{**SURE, "action": "ADD"}]}), 0.9, "decision"),
        (json.dumps({"proposals": [{**SURE, "type": "Wild Guess!"}]}), 0.9, "fact"),
        (json.dumps({"proposals": [{**PLAIN, "type": "decision"}]}), 0.8, "decision"),
        (json.dumps({"proposals": [{**SURE, "action": "forget"}, SURE]}), 0.9, "decision"),
        (json.dumps({"proposals": [None, 7, "x", {}, {**SURE, "content": None}, SURE]}), 0.9, "decision"),
    ],
    ids=[
        "plain",
        "prose",
        "fence",
        "upper case",
        "unknown type",
        "no confidence",
        "unknown action",
        "garbage",
    ],
)
async def test_what_a_model_wrote_becomes_a_fact(
    storage: Storage, answer: str, confidence: float, fact_type: str
) -> None:
    async with (
        ModelServer(say=lambda body: answer) as server,
        HTTPReflector(server.url, "test-model") as reflector,
        open_session(storage, reflector) as session,
    ):
        await reflect_episode(session, "The budget is 100.")
        (fact,) = await session.facts()
        assert (fact.value, fact.confidence, fact.fact_type) == ("100", confidence, fact_type)
        assert len(server.calls) == 1


# ── in the background ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_episodes_are_read_in_order_though_they_close_while_the_model_thinks(storage: Storage) -> None:
    reflector = Scripted()
    reflector.gate = asyncio.Event()
    async with open_session(storage, reflector) as session:
        await ingest_texts(session, "one", "two", close=True)
        await asyncio.wait_for(reflector.called.wait(), 60)
        await ingest_texts(session, "three", "four", close=True)
        await ingest_texts(session, "five", "six", close=True)
        assert len(reflector.requests) == 1  # one at a time
        reflector.gate.set()
        await session.wait_pending()
        texts = [text for texts in reflector.read for text in texts]
        assert texts == ["one", "two", "three", "four", "five", "six"]


async def test_a_failure_loses_nothing(storage: Storage) -> None:
    heard: list[Event] = []
    reflector = Scripted(OSError("connection reset"), says(DATABASE))
    async with open_session(storage, reflector, heard) as session:
        await reflect_episode(session, "We use PostgreSQL.")
        assert await fact_values(session) == ["PostgreSQL"]
        assert reflector.read == [["We use PostgreSQL.", "Noted."]] * 2
        (failure,) = [event for event in heard if isinstance(event, JobFailed)]
        assert failure.state == "ready"
        assert contents_of(await session.window(100))[:2] == ["We use PostgreSQL.", "Noted."]
