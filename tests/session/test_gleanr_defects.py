"""Mistakes others made before us: each probe that broke an earlier engine of this kind, told as what must hold here.

The numbers are those of the list of probes; several tests may tell one. Probe 22 is about its own sources, not about
what it does.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from acms import (
    ACMS,
    ACMSConfig,
    CacheConfig,
    EpisodeBoundaryConfig,
    EpisodeNotFoundError,
    JobState,
    Source,
    WorkerConfig,
    open_storage,
)
from acms.jobs import requests
from acms.model import JobQuery
from acms.observability import Event, JobFailed, Reflected
from acms.ports import Proposal, Reflection, ReflectionRequest
from acms.providers import HTTPReflector
from tests.providers.server import Behave, ModelServer
from tests.support.fakes import FakeEmbedder
from tests.support.reflectors import Scripted, one, says
from tests.support.talk import (
    LONG_EPISODES,
    PATIENT,
    Storage,
    contents_of,
    ingest_texts,
    log_of,
    session_on,
    tool_turn,
    versions_of,
)


@pytest.fixture
def cache(any_url: str) -> CacheConfig:
    """With a cache in front of memory and of a server, and without one in front of a file."""
    return CacheConfig(enabled=not any_url.startswith("sqlite"))


def text_of_tokens(tokens: int) -> str:
    """A text of exactly so many o200k tokens."""
    return " ".join(["word"] * tokens)


def manual_config(cache: CacheConfig) -> ACMSConfig:
    """Episodes that end by hand, retries at once."""
    return ACMSConfig(episodes=LONG_EPISODES, retry=PATIENT, cache=cache)


class Quoting(Scripted):
    """Knows one attribute of the project: the last two words said about it."""

    def __init__(self, attribute: str, word: str) -> None:
        super().__init__()
        self._attribute, self._word = attribute, word

    async def reflect(self, request: ReflectionRequest) -> Reflection:
        await super().reflect(request)
        return says(
            *[
                one("project", self._attribute, " ".join(turn.text.split()[-2:]), sources=(turn.version,))
                for turn in request.turns
                if self._word in turn.text
            ]
        )


def decision_outcomes(heard: list[Event]) -> list[str]:
    """What became of every proposal."""
    return [
        decision.outcome for event in heard if isinstance(event, Reflected) for decision in event.decisions
    ]


async def test_1_the_only_message_is_recalled_when_it_fits_the_budget(
    storage: Storage, cache: CacheConfig
) -> None:
    """A session of one long message: nothing else competes, so it must come back."""
    async with ACMS("s", storage, config=ACMSConfig(cache=cache)) as session:
        await session.ingest("user", text_of_tokens(255))
        (item,) = await session.recall("anything", token_budget=1000)
        assert item.content == text_of_tokens(255)
        assert not item.truncated


async def test_2_the_current_episode_may_use_the_whole_budget_when_nothing_else_wants_it(
    storage: Storage, cache: CacheConfig
) -> None:
    """Five messages of about forty tokens within 300: all are current, so all are shown."""
    async with ACMS("s", storage, config=ACMSConfig(cache=cache)) as session:
        for _ in range(5):
            await session.ingest("user", text_of_tokens(39))
        items = await session.recall("anything", token_budget=300)
        assert len(items) == 5
        assert 200 < items.tokens <= 300


async def test_3_all_answers_of_one_call_belong_to_the_episode_of_the_call(storage: Storage) -> None:
    """A question, three parallel calls and their answers are one episode, closed after the last answer."""
    async with ACMS("s", storage) as session:
        await session.ingest("user", "how full are they?")
        calls = [{"id": f"c{number}", "name": "disk", "arguments": "{}"} for number in range(3)]
        await session.ingest("assistant", "", tool_calls=calls)
        for number in range(3):
            await session.ingest("tool", f"{number} %", tool_call_id=f"c{number}")
        found = await session.episodes()
        assert [(one.messages, one.reason) for one in found] == [(5, "tool_result")]


async def test_4_a_first_message_from_a_tool_leaves_no_empty_episode(storage: Storage) -> None:
    """A log may start with a tool result; there is one episode and the result is in it."""
    async with ACMS("s", storage) as session:
        await session.ingest("tool", "started", tool_call_id="c0")
        assert [(one.ordinal, one.messages) for one in await session.episodes()] == [(1, 1)]
        await session.ingest("user", "hello")
        assert [one.messages for one in await session.episodes()] == [1, 1]


async def test_5_words_of_closing_in_a_request_close_nothing(storage: Storage) -> None:
    """Asking for a complete list, or saying that something is not done, goes on with the topic."""
    async with ACMS("s", storage) as session:
        await ingest_texts(
            session, "give me the complete list", "that is not done yet", "Thanks, but it still fails"
        )
        assert [(one.messages, one.status) for one in await session.episodes()] == [(3, "open")]
        await ingest_texts(session, "Thanks, that fixed it.")
        assert [(one.messages, one.reason) for one in await session.episodes()] == [(4, "pattern")]


async def test_6_an_embedder_that_fails_costs_no_message_and_no_place(storage: Storage) -> None:
    """One failure: the message is stored, counted once, found by its words and embedded later."""
    embedder = FakeEmbedder()
    embedder.error = OSError("connection reset")
    async with ACMS("s", storage, embedder) as session:
        await session.ingest("user", "orders run on db-7")
        embedder.error = None
        await session.ingest("user", "and now?")
        stats = await session.get_session_stats()
        assert (stats.messages, stats.version) == (2, 2)
        assert contents_of(await session.recall("orders")) == ["orders run on db-7", "and now?"]
        await session.wait_pending()
        assert (await session.recall("orders")).coverage == 1


async def test_7_concurrent_ingests_have_distinct_places(storage: Storage) -> None:
    """Twelve at once get twelve positions, in the order of the log."""
    async with ACMS("s", storage) as session:
        await asyncio.gather(*(session.ingest("user", f"m{number}") for number in range(12)))
        log = await log_of(session)
        assert [entry.position for entry in log] == list(range(1, 13))
        assert {entry.preview for entry in log} == {f"m{number}" for number in range(12)}
        assert [one.messages for one in await session.episodes()] == [6, 6]


async def test_8_without_an_embedder_what_was_said_is_found(storage: Storage, cache: CacheConfig) -> None:
    """The offline default ranks by words; it is not a switch that turns recall off."""
    async with session_on(storage, config=ACMSConfig(cache=cache)) as session:
        await ingest_texts(session, "Sam prefers the train to Frankfurt", close=True)
        await ingest_texts(session, "next topic")
        items = await session.recall("how does Sam travel to Frankfurt?")
        assert contents_of(items) == ["Sam prefers the train to Frankfurt", "next topic"]
        assert items.confidence > 0
        assert (items.coverage, items.ledger.warnings) == (1, ())


async def test_9_what_was_only_said_stays_reachable_beside_what_was_distilled(
    storage: Storage, cache: CacheConfig
) -> None:
    """A marked message that matches must not close the way to a plain one that answers."""
    async with session_on(storage, config=ACMSConfig(cache=cache)) as session:
        await ingest_texts(session, "Decision: orders use PostgreSQL", "ok", "fine", "good", close=True)
        await ingest_texts(
            session, "the orders database listens on port 6432", "ok", "fine", "good", close=True
        )
        await ingest_texts(session, "next topic")
        items = await session.recall("which port does the orders database listen on?", token_budget=60)
        found = {item.content: item.source for item in items}
        assert found["the orders database listens on port 6432"] is Source.SIMILAR
        assert found["Decision: orders use PostgreSQL"] is Source.MARKED
        best = max(items[:-1], key=lambda item: item.score)
        assert best.content == "the orders database listens on port 6432"


async def test_8_a_fact_is_found_without_an_embedder(storage: Storage, cache: CacheConfig) -> None:
    """A known fact is recalled by its words: one fact in force, one fact recalled."""
    reflector = Scripted(says(one("Sam", "way of travelling", "the train")))
    async with session_on(storage, reflector=reflector, config=manual_config(cache)) as session:
        await ingest_texts(session, "He never takes a plane.", "Noted.", close=True)
        await session.wait_pending()
        await session.ingest("user", "next topic")
        (fact,) = await session.facts()
        items = await session.recall("how does Sam travel?", include_current_episode=False)
        assert [item.id for item in items if item.source is Source.FACT] == [fact.id]


async def test_9_what_was_never_distilled_is_found_beside_a_fact_that_matches(
    storage: Storage, cache: CacheConfig
) -> None:
    """A fact of the same topic must not close the way to a message that answers."""
    reflector = Scripted(says(one("orders database", "engine", "PostgreSQL", fact_type="decision")))
    async with session_on(storage, reflector=reflector, config=manual_config(cache)) as session:
        await ingest_texts(session, "Decision: orders use PostgreSQL", "ok", "fine", "good", close=True)
        await ingest_texts(
            session, "the orders database listens on port 6432", "ok", "fine", "good", close=True
        )
        await session.wait_pending()
        await session.ingest("user", "next topic")
        items = await session.recall("which port does the orders database listen on?", token_budget=100)
        assert "the orders database listens on port 6432" in contents_of(items)


async def test_10_three_quick_episodes_about_one_thing_leave_one_fact(
    storage: Storage, cache: CacheConfig
) -> None:
    """Episodes that end before the first one is distilled: the last word is in force, and history has all three."""
    reflector = Quoting("budget", "EUR")
    reflector.gate = asyncio.Event()
    async with session_on(storage, reflector=reflector, config=manual_config(cache)) as session:
        for value in ("100 EUR", "200 EUR", "300 EUR"):
            await ingest_texts(session, f"The budget is {value}", "Noted.", close=True)
        reflector.gate.set()
        await session.wait_pending()
        assert [fact.value for fact in await session.facts()] == ["300 EUR"]
        every = await session.facts(subject="project", attribute="budget", history=True)
        assert [fact.value for fact in every][-1] == "300 EUR"
        assert all(fact.retired is not None for fact in every[:-1])


async def test_11_a_reflection_that_fails_is_tried_again_and_seen(
    storage: Storage, cache: CacheConfig
) -> None:
    """Once: it has no effect. For good: the job says so, the log is whole, and trying again brings the facts."""
    heard: list[Event] = []
    good = says(one("project", "budget", "100 EUR"))
    reflector = Scripted(TimeoutError("too slow"), good, *[OSError("down")] * 5, good)
    made = replace(manual_config(cache), on_event=heard.append)
    async with session_on(storage, reflector=reflector, config=made) as session:
        await ingest_texts(session, "The budget is 100 EUR", "Noted.", close=True)
        await session.wait_pending()
        assert [fact.value for fact in await session.facts()] == ["100 EUR"]
        await ingest_texts(session, "And now something else", "Noted.", close=True)
        await session.wait_pending()
        states = [event.state for event in heard if isinstance(event, JobFailed)]
        assert states == ["ready"] * 5 + ["failed"]
        assert len(await session.entries()) == 4
        (failed,) = (await storage.jobs(JobQuery(states=(JobState.FAILED,)))).items
        assert failed.error
        await requests.retry_job_by_id(storage, failed.id)
        await session.wait(failed)
        assert len(reflector.requests) == 8
        assert [turn.text for turn in reflector.requests[-1].turns] == ["And now something else", "Noted."]


async def test_12_with_a_reflector_opening_and_closing_leaves_nothing_behind(url: str) -> None:
    """Nothing was said, so nothing is asked of the reflector and no job waits."""
    reflector = Scripted()
    for _ in range(3):
        async with ACMS("s", open_storage(url), reflector=reflector) as session:
            await session.wait_pending()
    async with open_storage(url) as storage:
        assert (await storage.jobs(JobQuery())).items == ()
    assert reflector.requests == []


async def test_12_opening_and_closing_leaves_nothing_behind(url: str) -> None:
    """A session that says nothing makes no episode, no entry and no context, however often it is opened."""
    for _ in range(3):
        async with ACMS("s", open_storage(url)) as session:
            with pytest.raises(EpisodeNotFoundError):
                await session.close_episode()
            assert (await session.get_session_stats()).episodes == 0
    async with ACMS("s", open_storage(url)) as session:
        await session.ingest("user", "hello")
    for _ in range(3):
        async with ACMS("s", open_storage(url)) as session:
            await session.close_episode()
            await session.close_episode()
    async with ACMS("s", open_storage(url)) as session:
        assert [one.messages for one in await session.episodes()] == [1]
        assert (await session.get_session_stats()).version == 2


async def test_13_a_restart_after_a_thousand_messages_continues_at_the_right_place(url: str) -> None:
    """No limit of a query decides where the log goes on."""
    async with ACMS("s", open_storage(url)) as session:
        await session.ingest_many([{"role": "user", "content": f"m{number}"} for number in range(1000)])
        await session.ingest_many([{"role": "user", "content": f"m{number}"} for number in range(1000, 1005)])
    async with ACMS("s", open_storage(url)) as session:
        await session.ingest("user", "after the restart")
        assert session.last_receipt is not None
        assert (session.last_receipt.position, session.last_receipt.version) == (1006, 1006)
        stats = await session.get_session_stats()
        assert (stats.messages, stats.episodes) == (1006, 168)
        assert versions_of(await session.window(30))[-2:] == [1005, 1006]


async def test_13_a_restart_goes_on_behind_what_was_distilled(url: str) -> None:
    """However long the log is, each message is read by the reflector once, also after a time without workers."""
    reflector = Scripted()
    idle = ACMSConfig(worker=WorkerConfig(enabled=False))
    texts = [f"m{number}" for number in range(1005)]
    async with ACMS("s", open_storage(url), reflector=reflector) as session:
        await session.ingest_many([{"role": "user", "content": text} for text in texts[:600]])
        await session.wait_pending()
    async with ACMS("s", open_storage(url), reflector=reflector, config=idle) as session:
        await session.ingest_many([{"role": "user", "content": text} for text in texts[600:]])
    async with ACMS("s", open_storage(url), reflector=reflector) as session:
        await session.close_episode()
        await session.wait_pending()
    assert [text for call in reflector.read for text in call] == texts


async def test_14_two_updates_of_one_fact_in_one_answer_leave_the_last(
    storage: Storage, cache: CacheConfig
) -> None:
    """Both named the same fact: one is in force, and the trace says what became of the other."""

    def twice(request: ReflectionRequest) -> Reflection:
        (fact,) = request.facts
        asked = [
            one("project", "budget", value, action="update", fact_id=fact.id) for value in ("200", "300")
        ]
        return says(*asked)

    heard: list[Event] = []
    reflector = Scripted(says(one("project", "budget", "100")), twice)
    made = replace(manual_config(cache), on_event=heard.append)
    async with session_on(storage, reflector=reflector, config=made) as session:
        for text in ("The budget is 100", "No, 200. Or rather 300"):
            await ingest_texts(session, text, "Noted.", close=True)
            await session.wait_pending()
        assert [fact.value for fact in await session.facts()] == ["300"]
        assert decision_outcomes(heard) == ["added", "updated", "updated"]


async def test_14_an_update_of_an_unknown_fact_keeps_what_it_says(
    storage: Storage, cache: CacheConfig
) -> None:
    """A model that gets an id wrong still said something worth keeping."""
    lost = one("project", "budget", "100", action="update", fact_id="f_made_up")
    async with session_on(storage, reflector=Scripted(says(lost)), config=manual_config(cache)) as session:
        await ingest_texts(session, "The budget is 100", "Noted.", close=True)
        await session.wait_pending()
        assert [fact.value for fact in await session.facts()] == ["100"]


@pytest.mark.parametrize("addressed", [True, False])
async def test_15_a_value_that_differs_is_never_taken_for_a_repetition(
    storage: Storage, cache: CacheConfig, addressed: bool
) -> None:
    """March 20 beside March 15: at one address the newer one holds; without an address both are kept."""
    dates = ("March 15", "March 20")
    said = [
        one("launch", "deadline", date) if addressed else Proposal(content=f"The deadline is {date}.")
        for date in dates
    ]
    reflector = Scripted(*map(says, said))
    async with session_on(
        storage, embedder=FakeEmbedder(), reflector=reflector, config=manual_config(cache)
    ) as session:
        for date in dates:
            await ingest_texts(session, f"The deadline is {date}", "Noted.", close=True)
            await session.wait_pending()
        known = [fact.content for fact in await session.facts()]
        assert any("March 20" in text for text in known)
        assert len(known) == (1 if addressed else 2)


@pytest.mark.parametrize("together", [False, True], ids=["read apart", "read together"])
async def test_15_the_message_that_said_the_old_value_no_longer_answers(
    storage: Storage, cache: CacheConfig, together: bool
) -> None:
    """What a replaced fact came from is demoted, and comes back when it is asked for."""
    reflector = Quoting("deadline", "March")
    async with session_on(storage, reflector=reflector, config=manual_config(cache)) as session:
        for value in ("15 March", "20 March"):
            await ingest_texts(session, f"The deadline is {value}", "Noted.", close=True)
            if not together:
                await session.wait_pending()
        await session.wait_pending()
        await ingest_texts(session, "next topic")
        text = (await session.recall("what is the deadline?")).text()
        assert "20 March" in text
        assert "15 March" not in text
        text = (await session.recall("what is the deadline?", include_superseded=True)).text()
        assert "15 March" in text


async def test_16_irrelevant_marked_messages_do_not_crowd_out_an_exact_answer(
    storage: Storage, cache: CacheConfig
) -> None:
    """Six constraints about something else must not use up the budget that the one right answer needs."""
    config = ACMSConfig(episodes=EpisodeBoundaryConfig(max_turns=7), cache=cache)
    async with ACMS("s", storage, config=config) as session:
        for topic in ("lunch", "parking", "holidays", "badges", "coffee", "printers"):
            await session.ingest(
                "user", f"Constraint: {topic} is decided by the office. " + text_of_tokens(45)
            )
        answer = "The staging database of the orders service runs on host db-7 in Frankfurt. "
        answer += "It was set up in May. " * 9
        await session.ingest("user", answer)
        await session.ingest("user", "next topic")
        items = await session.recall(
            "Where does the staging database of the orders service run?", token_budget=400
        )
        assert answer in contents_of(items)
        assert items.tokens <= 400


async def test_16_irrelevant_facts_do_not_crowd_out_an_exact_answer(
    storage: Storage, cache: CacheConfig
) -> None:
    """Six constraints that are known, about something else, and one message that answers."""
    topics = ("lunch", "parking", "holidays", "badges", "coffee", "printers")
    long = [
        one(topic, "owner", "the office", content=f"{topic} is decided by the office. {text_of_tokens(45)}",
            fact_type="constraint")
        for topic in topics
    ]  # fmt: skip
    async with session_on(storage, reflector=Scripted(says(*long)), config=manual_config(cache)) as session:
        await ingest_texts(session, "The office decides a lot.", "Noted.", close=True)
        await session.wait_pending()
        answer = "The staging database of the orders service runs on host db-7 in Frankfurt. "
        answer += "It was set up in May. " * 9
        await ingest_texts(session, answer, close=True)
        await ingest_texts(session, "next topic")
        items = await session.recall(
            "Where does the staging database of the orders service run?", token_budget=400
        )
        assert answer in contents_of(items)
        assert items.tokens <= 400


@pytest.mark.parametrize(
    "broken",
    [
        {"confidence": None},
        {"confidence": "high"},
        {"confidence": float("nan")},
        {"content": None, "value": None},
        {"content": "", "value": ""},
        {"action": None},
        {"action": "forget"},
        {"subject": 7},
        {"cardinality": "several"},
    ],
    ids=repr,
)
async def test_17_nonsense_in_an_answer_is_passed_over_and_the_rest_of_it_counts(
    storage: Storage, cache: CacheConfig, broken: dict[str, Any]
) -> None:
    """One proposal is garbage: no exception, nothing half stored, and its neighbour is a fact."""
    heard: list[Event] = []
    bad = one("project", "budget", "100")
    for name, value in broken.items():
        object.__setattr__(bad, name, value)
    reflector = Scripted(says(bad, one("project", "deadline", "March 20")))
    made = replace(manual_config(cache), on_event=heard.append)
    async with session_on(storage, reflector=reflector, config=made) as session:
        await ingest_texts(session, "The budget is 100, the deadline March 20", "Noted.", close=True)
        await session.wait_pending()
        assert "March 20" in [fact.value for fact in await session.facts()]
        assert not [event for event in heard if isinstance(event, JobFailed)]
        (trace,) = [event for event in heard if isinstance(event, Reflected)]
        passed_over = [one for one in trace.decisions if one.outcome == "invalid"]
        assert len(trace.unreadable) + len(passed_over) == 1  # and it is told


@pytest.mark.parametrize(("status", "calls"), [(401, 1), (400, 3)])
async def test_18_a_busy_model_is_asked_again_and_a_refusal_is_final(
    storage: Storage, cache: CacheConfig, status: int, calls: int
) -> None:
    """429 and then 200 are two calls and a fact. Other 4xx end the job: 400 after two simpler ones."""
    fact = {"action": "add", "subject": "project", "attribute": "budget", "value": "100",
            "content": "The budget is 100.", "confidence": 0.9}  # fmt: skip
    heard: list[Event] = []
    made = replace(manual_config(cache), on_event=heard.append)
    async with ModelServer(say=lambda body: json.dumps({"proposals": [fact]})) as server:
        server.script = [Behave(status=429, headers={"retry-after": "0"})]
        async with (
            HTTPReflector(server.url, "test-model", api_key="sk-secret") as reflector,
            session_on(storage, reflector=reflector, config=made) as session,
        ):
            await ingest_texts(session, "The budget is 100", "Noted.", close=True)
            await session.wait_pending()
            assert [fact.value for fact in await session.facts()] == ["100"]
            assert len(server.calls) == 2
            server.otherwise = Behave(status=status, echo=True)
            await ingest_texts(session, "Something else", "Noted.", close=True)
            await session.wait_pending()
            assert len(server.calls) == 2 + calls
            (failure,) = [event for event in heard if isinstance(event, JobFailed)]
            assert failure.state == "failed"
            assert "sk-secret" not in failure.error


async def test_19_a_model_with_another_dimension_neither_fails_nor_counts_as_zero(storage: Storage) -> None:
    """Vectors of two models are not compared: the first recall after the change waits for new ones."""
    async with ACMS("s", storage, FakeEmbedder(dimension=16)) as session:
        await session.ingest("user", "orders run on db-7")
    async with ACMS("s", storage, FakeEmbedder(dimension=24)) as session:
        items = await session.recall("orders")
        assert contents_of(items) == ["orders run on db-7"]
        assert items.coverage == 1
        await session.wait_pending()
        assert (await session.recall("orders")).coverage == 1


async def test_20_without_the_current_episode_its_messages_are_not_returned(
    storage: Storage, cache: CacheConfig
) -> None:
    """Entries excluded by the caller are left out, also when they are all there is."""
    async with ACMS("s", storage, config=ACMSConfig(cache=cache)) as session:
        await session.ingest("user", "orders run on db-7")
        assert list(await session.recall("orders", include_current_episode=False)) == []
        await tool_turn(session, "c1", "orders: 40 %")
        await session.ingest("user", "and now?")
        shown = contents_of(await session.recall("orders", include_current_episode=False))
        assert "and now?" not in shown
        assert "orders run on db-7" in shown


async def test_21_indentation_is_part_of_what_was_said(storage: Storage) -> None:
    """Code loses its meaning without its leading spaces."""
    code = "    if ready:\n        go()\n"
    async with session_on(storage) as session:
        await session.ingest("user", code)
        assert contents_of(await session.recall("ready")) == [code]
        assert contents_of(await session.window(1000)) == [code]
