"""What rests on something that has gone, or is over, is never shown as certain, in no way of asking."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

from acms import ACMS, PrivacyConfig, open_storage
from acms.acs import ACS
from acms.codecs import AnthropicMessages, OpenAIChat
from acms.knowledge import DOUBT
from acms.prompt import Prompt, Rendered
from acms.prompt.history.stable_history import StableHistory
from acms.providers import OfflineReflector
from acms.recall import window
from acms_eval.cascades import changed_premises
from acms_eval.nouns import Scenario
from acms_eval.reflectors import PerfectReflector
from acms_eval.running import Remembering
from tests.facts.test_doubt import Wordy, doubt_config, say_and_reflect
from tests.seeds.test_remembering import CHAIN
from tests.support.talk import Storage

REQUEST = {
    "version": "v0", "id": "6f3b6f21-7a5f-4e3f-9af0-1b2c3d4e5f60", "request_id": "r",
    "risk_profile": {"level": "low"}, "privacy_mode": "allow",
}  # fmt: skip


async def texts_by_way(session: ACMS, question: str, budget: int) -> dict[str, list[str]]:
    """What each way of asking shows of a log within a budget, text by text."""
    history = Prompt(OpenAIChat("gpt-5")).history(session)
    reply = await ACS(sources=[session]).render(
        {**REQUEST, "intent": question, "budgets": {"tokens_max": budget, "time_ms": 60_000}}
    )
    chats = {
        "messages": await session.messages(question, budget=budget),
        "history": (await history.user(question).render(budget=budget + 60)).payload["messages"],
        "prompt": (await history.recall(session, question).user(question).render(budget=budget + 60)).payload[
            "messages"
        ],
    }
    return {
        "recall": [item.content for item in await session.recall(question, budget=budget)],
        "window": [item.content for item in await session.window(budget)],
        "reply": [fragment.text or "" for fragment in reply.fragments or ()],
        **{
            way: [text for one in chat for text in one["content"].split("\n\n")]
            for way, chat in chats.items()
        },
    }


async def taken_for_certain(session: ACMS, question: str, budget: int) -> list[str]:
    """Name each text that shows a doubtful statement unlabelled, where the message that changed it is not shown."""
    facts = await session.facts(history=True)
    by_id = {fact.id: fact for fact in facts}
    found: list[str] = []
    for way, texts in (await texts_by_way(session, question, budget)).items():
        for fact in facts:
            if fact.doubt is None:
                continue
            gone = by_id[fact.doubt.premise].retired
            assert gone is not None
            news = [(await session.get(id)).content for id in gone.evidence]
            if way in ("window", "messages", "history", "prompt") and any(
                one in text for one in news for text in texts
            ):
                continue
            statements = [fact.content]
            if len(fact.sources) == 1:
                statements.append((await session.get(fact.sources[0])).content)
            found += [
                f"{way} at {budget}: {text}"
                for statement in statements
                for text in texts
                if statement in text and DOUBT not in text
            ]
    return found


@asynccontextmanager
async def session_of_scenario(scenario: Scenario, tier: str) -> AsyncGenerator[ACMS]:
    reflector = OfflineReflector() if tier == "offline" else PerfectReflector(scenario)
    async with ACMS(scenario.name, open_storage("memory://"), None, reflector=reflector) as session:
        system = Remembering(session)
        for one in scenario.said:
            await system.tell(one)
        await session.close_episode()
        await system.settle()
        yield session


@pytest.mark.parametrize(("tier", "seed"), [("offline", 0), ("perfect", 1), ("perfect", 2)])
async def test_no_dependant_is_shown_as_certain_where_what_changed_is_not_visible(
    tier: str, seed: int
) -> None:
    scenario = changed_premises(turns=60, seed=seed)
    async with session_of_scenario(scenario, tier) as session:
        doubtful = [fact for fact in await session.facts() if fact.doubt is not None]
        assert doubtful
        wrong: list[str] = []
        for budget in (60, 200, 900, 6000):
            for probe in scenario.probes[:2]:
                wrong += await taken_for_certain(session, probe.question, budget)
        assert not wrong


@pytest.mark.parametrize("seed", [3, 4])
async def test_every_way_of_asking_says_a_doubt_that_no_message_brought_up(seed: int) -> None:
    whole = changed_premises(turns=60, seed=seed)
    end = next(place for place, one in enumerate(whole.said) if one.part == "correction")
    cut = [pair for pair in whole.proposals if pair[0] < end]
    scenario = replace(whole, said=whole.said[:end], proposals=tuple(cut))
    async with session_of_scenario(scenario, "perfect") as session:
        rested = {id for fact in await session.facts() for id in fact.depends_on}
        for fact in await session.facts():
            if fact.id in rested and not fact.depends_on:
                await session.state(fact.subject, fact.attribute, "something else")
        assert len([fact for fact in await session.facts() if fact.doubt is not None]) >= 3
        question = next(probe.question for probe in scenario.probes if probe.topic == "changed")
        wrong = [
            text for budget in (90, 400, 6000) for text in await taken_for_certain(session, question, budget)
        ]
        assert not wrong
        ways = await texts_by_way(session, question, 6000)
        assert not [way for way, texts in ways.items() if DOUBT not in "".join(texts)]


SAID = (
    ("user", "We write the backend in Python."),
    ("assistant", "Noted, go on."),
    ("user", "Since we chose Python, the mapper is SQLAlchemy."),
    ("assistant", "Noted, go on."),
)


def texts_of_prompt(rendered: Rendered) -> list[str]:
    return [str(one["content"]) for one in rendered.payload["messages"]]


async def test_a_history_stays_as_it_was_while_it_shows_what_changed(storage: Storage) -> None:
    async with ACMS("stays", storage, None, reflector=OfflineReflector(), config=doubt_config()) as session:
        await say_and_reflect(session, *CHAIN.values())
        prompt = Prompt(OpenAIChat("gpt-5")).history(session)
        before = texts_of_prompt(await prompt.render(budget=4000))
        await say_and_reflect(session, "Decision: we're switching from Python to Go.")
        assert any(fact.doubt is not None for fact in await session.facts())
        after = texts_of_prompt(await prompt.render(budget=4000))
        assert after[: len(before)] == before
        assert DOUBT not in "".join(after)
        assert DOUBT not in (await session.window(4000)).text()
        short = await session.recall("Which ORM pattern do we use?", budget=4000)
        assert DOUBT in short.text(), "a recall says it in any case"


async def test_what_changed_out_of_sight_labels_a_history_and_begins_it_anew(storage: Storage) -> None:
    async with ACMS("aside", storage, None, config=doubt_config()) as session:
        ids = [await session.ingest(role, text) for role, text in SAID]
        python = await session.state("backend", "language", "Python", sources=ids[:1])
        await session.state("backend", "mapper", "SQLAlchemy, because of Python", sources=ids[2:3])
        prompt = Prompt(OpenAIChat("gpt-5")).history(session)
        plain = texts_of_prompt(await prompt.render(budget=4000))
        stated = await session.state("backend", "language", "Go")
        statement = SAID[2][1]
        label = f"[in doubt: rests on v{python.version}, which v{stated.version} replaced]"
        for shown in (
            texts_of_prompt(await prompt.render(budget=4000)),
            texts_of_prompt(
                await Prompt(AnthropicMessages("claude-sonnet-4-5")).last(session, n=9).render(budget=4000)
            ),
            [str(one["content"]) for one in await session.messages("What do we use?", budget=4000)],
            [item.content for item in await session.window(4000)],
        ):
            assert any(f"{statement} {label}" in text for text in shown), shown
        rendered = await prompt.render(budget=4000)
        assert rendered.tokens.upper_bound <= 4000
        assert any(f"{statement} {label}" in text for text in texts_of_prompt(rendered)), "and so it stays"
        assert DOUBT not in (await session.at(stated.version - 1).window(4000)).text()
        await session.undo(stated.version)
        assert texts_of_prompt(await prompt.render(budget=4000)) == plain
        await session.ingest("user", "Go on then.")
        assert texts_of_prompt(await prompt.render(budget=4000))[: len(plain)] == plain


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions at which an epoch of a prompt began."""
    found: list[int] = []
    begin = StableHistory._begin

    async def noted(self: StableHistory, *given: Any) -> Any:
        placed = await begin(self, *given)
        found.append(placed.window.began_at)
        return placed

    monkeypatch.setattr(StableHistory, "_begin", noted)
    return found


FAR = [f"Row {number} of the import was read without a fault." for number in range(60)]


@pytest.mark.parametrize("by", ["doubt", "time", "a doubt about an answer of a tool"])
async def test_a_label_in_a_recall_stays_as_it_was(storage: Storage, begun: list[int], by: str) -> None:
    async with ACMS("again", storage, None, config=doubt_config()) as session:
        ids = [await session.ingest(role, text) for role, text in SAID]
        if "tool" in by:
            call = {"id": "c1", "name": "mapper", "arguments": "{}"}
            await session.ingest("assistant", "", tool_calls=[call])
            ids[2] = await session.ingest("tool", SAID[2][1], tool_call_id="c1")
        await say_and_reflect(session, *FAR)
        await session.state("backend", "language", "Python", sources=ids[:1])
        over = {"valid_to": "2020-01-01", "valid_from": "2019-01-01"} if by == "time" else {}
        await session.state("backend", "mapper", "SQLAlchemy, because of Python", sources=ids[2:3], **over)
        if by != "time":
            await session.state("backend", "language", "Go")
        question = "Which mapper, SQLAlchemy?"
        await session.ingest("user", question)
        prompt = Prompt(OpenAIChat("gpt-5")).history(session).recall(session, question)
        first = texts_of_prompt(await prompt.render(budget=700))
        assert any(DOUBT in one or "[until" in one for one in first), first
        assert texts_of_prompt(await prompt.render(budget=700)) == first
        assert len(begun) == 1


@pytest.mark.parametrize("spoken", [(), ("Let me look that up.",)])
@pytest.mark.parametrize("keep", ["end", "start"])
async def test_a_question_that_waits_is_sent_as_it_was_while_tools_are_called(
    storage: Storage, begun: list[int], keep: Literal["end", "start"], spoken: tuple[str, ...]
) -> None:
    async with ACMS("waits", storage, None, config=doubt_config()) as session:
        await session.ingest("user", "Hello.")
        await session.ingest("assistant", "Hello, go on.")
        question = "The desk was mine that week, which one was it?"
        id = await session.ingest("user", question)
        await session.state(
            "desk", "owner", "user", sources=[id], valid_from="2019-01-01", valid_to="2020-01-01"
        )
        empty = Prompt(OpenAIChat("gpt-5"))
        prompt = empty.history(session) if keep == "end" else empty.truncate(session, 500, keep=keep)
        first = texts_of_prompt(await prompt.render(budget=2000))
        for text in spoken:
            await session.ingest("assistant", text)
        await session.ingest("assistant", "", tool_calls=[{"id": "c1", "name": "desks", "arguments": "{}"}])
        await session.ingest("tool", "The one in the corner.", tool_call_id="c1")
        assert texts_of_prompt(await prompt.render(budget=2000))[: len(first)] == first
        assert len(begun) <= 1


@pytest.mark.parametrize("budget", [250, 400, 600, 800])
async def test_an_edit_that_is_cut_away_does_not_take_a_label_with_it(
    storage: Storage, begun: list[int], budget: int
) -> None:
    def row(number: int, word: str = "Row") -> str:
        return f"{word} {number} of the import was read without any fault at all today."

    async with ACMS("edited", storage, None, config=doubt_config()) as session:
        python = await session.ingest("user", "We write the backend in Python.")
        edited = await session.ingest("user", "Something else.")
        for number in range(30):
            await session.ingest("user" if number % 2 else "assistant", row(number))
        mapper = await session.ingest("assistant", "Since we chose Python, the mapper is SQLAlchemy.")
        for number in range(4):
            await session.ingest("assistant" if number % 2 else "user", row(number, "Then"))
        await session.state("backend", "language", "Python", sources=[python])
        await session.state("backend", "mapper", "SQLAlchemy, because of Python", sources=[mapper])
        edit = await session.replace(edited, "We write the backend in Go.")
        await session.state("backend", "language", "Go", sources=[edit])
        await session.ingest("user", "What is next?")
        history = Prompt(OpenAIChat("gpt-5")).history(session)
        for prompt in (history, history.recall(session, "What is the backend written in?")):
            del begun[:]
            found = [texts_of_prompt(await prompt.render(budget=budget)) for _ in range(4)]
            assert all(one == found[0] for one in found)
            assert len(begun) == 1
            told = [text for text in found[0] if "SQLAlchemy" in text]
            assert told or budget < 400
            assert all(DOUBT in text for text in told)
        for shown in (await session.window(budget // 3), await session.messages("", budget=budget // 3)):
            said = [one["content"] if isinstance(one, dict) else one.content for one in shown]
            assert all(DOUBT in text for text in said if "SQLAlchemy" in text)


async def test_what_only_looks_like_a_label_is_no_label_of_a_fragment(storage: Storage) -> None:
    redact = replace(doubt_config(), privacy=PrivacyConfig(mode="redact"))
    async with ACMS("looks", storage, None, config=redact) as session:
        await session.ingest(
            "user", "The ticket said [until 2020-01-01] in red, and nobody paid a@b.com for it."
        )
        for number in range(40):
            await session.ingest("assistant", f"Row {number} of the import was read without fault.")
        asked = {**REQUEST, "privacy_mode": "redact", "intent": "what did the ticket say?"}
        reply = await ACS(sources=[session]).render(
            {**asked, "budgets": {"tokens_max": 300, "time_ms": 60_000}}
        )
        (text,) = [one.text for one in reply.fragments or () if "ticket said" in (one.text or "")]
        assert (text or "").endswith("for it.")


async def test_a_window_has_the_labels_of_its_version(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ACMS("race", storage, None, config=doubt_config()) as session:
        ids = [await session.ingest(role, text) for role, text in SAID]
        await session.state("backend", "language", "Python", sources=ids[:1])
        await session.state("backend", "mapper", "SQLAlchemy, because of Python", sources=ids[2:3])
        gather = window.gather_newest

        async def meanwhile(*given: Any) -> Any:
            found = await gather(*given)
            await session.state("backend", "language", "Go")
            return found

        monkeypatch.setattr(window, "gather_newest", meanwhile)
        assert DOUBT not in (await session.window(4000)).text()
        monkeypatch.undo()
        assert DOUBT in (await session.window(4000)).text()


async def test_a_summary_in_front_says_that_it_is_in_doubt(storage: Storage) -> None:
    reflector = OfflineReflector()
    async with ACMS(
        "front", storage, None, reflector=reflector, config=doubt_config(), summarizer=Wordy()
    ) as session:
        await say_and_reflect(
            session, *CHAIN.values(), *(f"Row {n} of the import was read. " * 30 for n in range(8))
        )
        done = await session.wait(await session.compact(preserve_recent_count=2))
        assert done is not None
        await say_and_reflect(session, "Decision: we're switching from Python to Go.")
        for budget in (900, 3000):
            for way, found in (await texts_by_way(session, "What is next?", budget)).items():
                for text in found:
                    assert DOUBT in text or (done.summary or "") not in text, way
                if way not in ("recall", "reply"):
                    assert any((done.summary or "") in text for text in found), way


@pytest.mark.parametrize("budget", [1, 5, 20, 30, 45, 60, 100])
async def test_a_label_never_breaks_a_budget(storage: Storage, budget: int) -> None:
    async with ACMS("tight", storage, None, config=doubt_config()) as session:
        await session.state("backend", "language", "Python")
        id = await session.ingest(
            "assistant", "Since it is Python, the mapper is SQLAlchemy. " * (1 + budget // 12)
        )
        await session.state("backend", "mapper", "SQLAlchemy, because of Python", sources=[id])
        await session.state("backend", "language", "Go")
        for items in (await session.window(budget), await session.recall("mapper?", budget=budget)):
            assert session.counter.count(items.text()) <= budget
            assert items.tokens <= budget


async def test_what_is_over_says_so_in_the_message_that_said_it(storage: Storage) -> None:
    async with ACMS("over", storage, None, config=doubt_config()) as session:
        now = datetime(2026, 3, 2, 9, tzinfo=UTC)
        session._shared.clock = lambda: now
        id = await session.ingest("user", "The desk in the corner is mine this week.")
        await session.ingest("assistant", "Noted, go on.")
        await session.state("desk", "owner", "user", sources=[id], valid_to="2026-03-09")
        assert "[until" not in (await session.window(500)).text()
        now += timedelta(days=30)
        text = "The desk in the corner is mine this week. [until 2026-03-09]"
        for way, found in (await texts_by_way(session, "Whose desk is in the corner?", 500)).items():
            assert any(text in one for one in found), way


async def test_what_another_session_said_carries_its_label(storage: Storage) -> None:
    async with (
        ACMS("here", storage, None, config=doubt_config(), namespace="user:1") as here,
        ACMS("there", storage, None, config=doubt_config(), namespace="user:1") as there,
    ):
        await here.ingest("user", "Good morning.")
        ids = [await there.ingest(role, text) for role, text in SAID]
        python = await there.state("backend", "language", "Python", sources=ids[:1])
        await there.state("backend", "mapper", "SQLAlchemy, because of Python", sources=ids[2:3])
        stated = await there.state("backend", "language", "Go")
        label = f"[in doubt: rests on v{python.version}, which v{stated.version} replaced]"
        items = await here.recall("Which mapper, SQLAlchemy?", scope="namespace", budget=2000)
        (shown_,) = [item.content for item in items if item.id == ids[2]]
        assert shown_ == f"{SAID[2][1]} {label}"
        child = await there.fork(session_id="child")
        items = await child.recall("Which mapper, SQLAlchemy?", scope="namespace", budget=2000)
        assert f"{SAID[2][1]} {label}" in [item.content for item in items]
        assert label in (await child.window(2000)).text()
