"""A summary of which something was rewritten says so wherever it is shown, and is made anew by the next compaction."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from acms import ACMS, ACMSConfig, CompactionPolicy, ConflictError, JobState, Kind, Raw, State, open_storage
from acms.codecs import AnthropicMessages, OpenAIChat
from acms.knowledge import DOUBT
from acms.model import Append, Draft, JobQuery
from acms.ports import SummaryRequest
from acms.prompt import Prompt
from tests.compaction.test_compaction import (
    Toy,
    compact_session,
    compaction_config,
    make_worker,
    say_messages,
    word_for_number,
)
from tests.compaction.test_compaction import begin_compaction as started
from tests.facts.test_labels import begun as begun
from tests.facts.test_labels import texts_by_way, texts_of_prompt
from tests.support.talk import Storage, session_on, versions_of

DEADLINE = "The deadline of the migration is March 15."
QUESTION = "When is the deadline?"


async def summarized_session(storage: Any, **given: Any) -> tuple[ACMS, list[str], Any]:
    """A session with a summary that says the deadline, the ids of its messages, and the compaction."""
    session = session_on(storage, **given)
    listed = [{"id": "first", "role": "user", "content": DEADLINE}]
    listed += [{"id": f"m{n}", "role": "user", "content": f"Row {n} was read."} for n in range(30)]
    done = await session.sync(listed)
    made = await session.wait(await session.compact(preserve_recent_count=4))
    assert made is not None
    assert DEADLINE in made.summary
    return session, list(done.appended), made


async def rewrite_message(session: ACMS, change: str, id: str) -> int:
    """Retract or correct a message; return the version that does it."""
    if change == "retract":
        return await session.retract(id)
    if change == "replace":
        return (await session.get(await session.replace(id, "The deadline is in April."))).version
    (done,) = (await session.sync([{"id": "first", "role": "user", "content": "It is in April."}])).replaced
    return (await session.get(done)).version


@pytest.mark.parametrize("change", ["retract", "replace", "sync"])
async def test_a_summary_says_that_something_of_it_was_rewritten(storage: Storage, change: str) -> None:
    session, ids, made = await summarized_session(storage)
    plain = await texts_by_way(session, QUESTION, 900)
    version = await rewrite_message(session, change, ids[0])
    did = "took back" if change == "retract" else "replaced"
    for way, found in (await texts_by_way(session, QUESTION, 900)).items():
        saying = [text for text in found if DEADLINE in text]
        assert saying, way
        for text in saying:
            assert f"[in doubt: rests on v1, which v{version} {did}]" in text, way
    for budget in range(20, 200, 9):
        window = await session.window(budget)
        assert window.tokens <= budget
        assert session.counter.count(window.text()) <= budget
        assert all(DOUBT in item.content for item in window if item.id == made.id)
    assert DOUBT not in (await session.at(version - 1).window(900)).text()
    await session.undo(version)
    after = await texts_by_way(session, QUESTION, 900)
    assert DOUBT not in str(after)
    assert (after["window"], after["messages"], after["recall"]) == (
        plain["window"],
        plain["messages"],
        plain["recall"],
    )
    await session.close()


@pytest.mark.parametrize("change", ["retract", "replace", "sync"])
async def test_a_compaction_makes_an_outdated_summary_anew(storage: Storage, change: str) -> None:
    session, ids, made = await summarized_session(storage)
    version = await rewrite_message(session, change, ids[0])
    done = await session.wait(await session.compact())  # no message is old enough to be taken
    assert done is not None
    assert (done.renews, made.renews) == ((made.version,), ())
    assert DEADLINE not in done.summary
    window = await session.window(900)
    assert DOUBT not in window.text()
    assert DEADLINE not in window.text()
    assert ("April" in window.text()) == (change != "retract")
    assert await session.wait(await session.compact()) is None
    assert DOUBT in (await session.at(version).window(900)).text()
    await session.undo(version)
    assert DEADLINE in [item.content for item in await session.window(900)], (
        "it came back, and no summary has it"
    )
    await session.undo(done.version)
    assert DEADLINE in (await session.window(900)).text()
    assert DOUBT not in (await session.window(900)).text()
    await session.close()


async def test_what_reads_behind_an_outdated_summary_is_summarised_with_it(storage: Storage) -> None:
    toy = Toy()
    async with session_on(storage, words=True, config=compaction_config(), summarizer=toy) as session:
        made: list[Any] = []
        for n in range(3):
            await say_messages(session, 30, start=30 * n)
            made.append(await compact_session(session, storage, toy))
        (second,) = [one for one in await session.expand(made[1].version) if one.version == 40]
        await session.retract(second.id)
        done = await compact_session(session, storage, toy)
        assert done.renews == (made[1].version,)
        assert [one.version for one in await session.compactions() if one.in_force] == [
            made[0].version,
            done.version,
        ]
        read = [turn.version for turn in toy.requests[-1].turns]
        assert read == sorted(read)
        assert 40 not in read


async def test_a_summary_of_which_nothing_is_left_goes(storage: Storage) -> None:
    toy = Toy()
    async with session_on(storage, words=True, config=compaction_config(), summarizer=toy) as session:
        await say_messages(session, 14)
        done = await compact_session(session, storage, toy, summary_tokens=20)
        assert done.replaces == (1, 4)
        taken = [await session.retract(one.id) for one in await session.expand(done.version)]
        assert DOUBT in (await session.window(900)).text()
        assert await compact_session(session, storage, toy) is None
        assert versions_of(await session.window(900)) == list(range(5, 15))
        await session.undo(taken[0])
        assert versions_of(await session.window(900)) == [1, *range(5, 15)]


async def test_an_outdated_summary_that_cannot_be_made_anew_stays_with_its_label(storage: Storage) -> None:
    toy = Toy()
    async with session_on(storage, words=True, config=compaction_config(), summarizer=toy) as session:
        await say_messages(session, 30)
        done = await compact_session(session, storage, toy)
        first = (await session.expand(done.version))[0]
        await storage.blank(session._shared.context_id or "", range(2, 21), to=State.EXPIRED, audit={})
        await session.retract(first.id)
        for n in range(1, 6):
            await say_messages(session, 30, start=30 * n)
            await compact_session(session, storage, toy)
        assert not any(turn.summary for request in toy.requests for turn in request.turns)
        (text,) = [item.content for item in await session.window(10_000) if item.id == done.id]
        assert text.startswith("so far: 20 turns [in doubt")


async def test_what_retracts_asks_for_the_compaction_that_its_session_makes_by_itself(
    storage: Storage,
) -> None:
    toy = Toy()
    config = compaction_config(budget=600)
    async with session_on(storage, words=True, config=config, summarizer=toy) as session:
        works = make_worker(session, storage, toy)
        await say_messages(session, 45)
        await works.drain()
        (done,) = await session.compactions()
        ready = JobQuery(states=(JobState.READY,))
        newest = (await session.window(600))[-1]
        await session.retract(newest.id)
        assert not (await storage.jobs(ready)).items, "no summary stands for it"
        await session.retract((await session.expand(done.version))[2].id)
        assert len((await storage.jobs(ready)).items) == 1
        before = await session.window(600)
        await works.drain()
        (_, anew) = await session.compactions()
        assert anew.renews == (done.version,)
        assert versions_of(await session.window(600))[1:] == versions_of(before)[1:], (
            "no message was taken with it"
        )
        await session.set_policy(enabled=False)
        await session.retract((await session.expand(done.version))[3].id)
        assert not (await storage.jobs(ready)).items


async def test_what_is_asked_for_takes_the_place_of_what_a_retraction_asked_for(storage: Storage) -> None:
    config = ACMSConfig(compaction=CompactionPolicy(budget=8000))
    session, ids, _ = await summarized_session(storage, config=config)
    async with session:
        for number in range(20):
            await session.ingest("user", f"Line {number} was written.")
        await session.retract(ids[0])
        made = await session.wait(await session.compact(preserve_recent_count=2))
        assert made is not None
        assert made.preserved == 2
        await session.retract(ids[1])
        assert (await session.compact(summary_tokens=300)).payload["force"]
        await session.wait_pending()


async def test_a_prompt_begins_anew_once_for_a_summary_that_was_outdated(
    storage: Storage, begun: list[int]
) -> None:
    config = ACMSConfig(compaction=CompactionPolicy(budget=4_000))
    session, ids, _ = await summarized_session(storage, config=config)
    prompt = Prompt(OpenAIChat("gpt-5")).history(session)
    first = texts_of_prompt(await prompt.render(budget=1_000))
    await session.retract(ids[0])
    told = texts_of_prompt(await prompt.render(budget=1_000))
    assert told != first
    assert DOUBT in "".join(told)
    await session.wait_pending()
    assert len(await session.compactions()) == 2
    await session.ingest("user", "Go on.")
    assert texts_of_prompt(await prompt.render(budget=1_000))[: len(told)] == told
    assert len(begun) == 2
    await session.close()


async def test_a_compaction_of_a_provider_goes_back_as_text_once_it_is_outdated() -> None:
    session = ACMS("day", open_storage("memory://"), None)
    wrong = await session.ingest("user", DEADLINE)
    await session.ingest("assistant", "Noted.")
    block = Raw("anthropic", '{"type": "compaction", "content": "The deadline is in March."}')
    await session.ingest("assistant", parts=[block])
    await session.ingest("user", "And now?")
    codec = AnthropicMessages("claude-opus-5-5")

    async def sent() -> str:
        return str((await Prompt(codec).history(session).render(budget=900)).payload["messages"])

    assert "compaction" in await sent()
    await session.retract(wrong)
    assert "compaction" not in await sent()
    assert "The deadline is in March. [in doubt" in await sent()
    done = await session.wait(await session.compact())
    assert done is not None
    assert DOUBT not in await sent()
    assert "March" not in await sent()
    await session.close()


async def test_a_summarised_message_can_be_corrected(storage: Storage) -> None:
    session, ids, made = await summarized_session(storage)
    edit = await session.replace(ids[0], "The deadline is in April.")
    assert (await session.get("first")).content == "The deadline is in April."
    again = await session.replace("first", "The deadline is in May.")
    found = [item.id for item in await session.recall(QUESTION)]
    assert again in found
    assert not {ids[0], edit} & set(found)
    assert [item.id for item in await session.window(900)][:2] == [made.id, again]
    done = await session.wait(await session.compact(preserve_recent_count=0))
    assert done is not None
    assert "May" in done.summary
    assert (await session.get("first")).content == "The deadline is in May."
    last = await session.replace("first", "The deadline is in June.")
    assert (await session.get("first")).id == last
    await session.retract(ids[0])
    found = [item.id for item in await session.recall(QUESTION)]
    assert not {ids[0], edit, again, last} & set(found)
    await session.close()


async def test_a_late_answer_to_a_summarised_call_is_shown(storage: Storage) -> None:
    session = session_on(storage)
    await session.ingest("user", "Please deploy.")
    await session.ingest("assistant", "", tool_calls=[{"id": "c1", "name": "approve", "arguments": "{}"}])
    for n in range(20):
        await session.ingest("user", f"Row {n} was read.")
    for n in range(3):
        assert await session.wait(await session.compact(preserve_recent_count=3))
        for row in range(20):
            await session.ingest("user", f"Row {n} {row} was read.")
    await session.ingest("tool", "APPROVED by Ann", tool_call_id="c1")
    assert [item.content for item in await session.window(900)][-2:] == ["approve({})", "APPROVED by Ann"]
    await session.ingest("user", "Go on.")
    history = await Prompt(OpenAIChat("gpt-4o")).history(session).render(budget=900)
    assert [one["role"] for one in history.payload["messages"]][-3:] == ["assistant", "tool", "user"]
    assert [one.kind for one in await session.entries()].count(Kind.SUMMARY) == 3
    await session.close()


async def test_a_late_answer_is_shown_where_an_earlier_release_summarised_its_call(storage: Storage) -> None:
    session = session_on(storage)
    await session.ingest("user", "Please deploy.")
    await session.ingest("assistant", "", tool_calls=[{"id": "c1", "name": "approve", "arguments": "{}"}])
    for n in range(100):
        await session.ingest("user", f"Row {n} was read.")
    context = session._shared.context_id or ""
    summary = Draft(
        kind=Kind.SUMMARY, content="Deploying.", created_at=datetime.now(UTC), tokens=2, replaces=((1, 90),),
        covers=(1, 90),
    )  # fmt: skip
    await storage.append([Append(context=context, drafts=(summary,))])
    answer = await session.ingest("tool", "APPROVED by Ann", tool_call_id="c1")
    await session.ingest("user", "Go on.")
    for budget in (60, 900):
        assert (await session.window(budget))[-2].id == answer
        assert "APPROVED by Ann" in str(await session.messages("And?", budget=budget))
        for codec in (OpenAIChat("gpt-4o"), AnthropicMessages("claude-opus-5-5")):
            history = await Prompt(codec).history(session).render(budget=4 * budget)
            assert "APPROVED by Ann" in str(history.payload["messages"])
    done = await session.wait(await session.compact(preserve_recent_count=0))
    assert done is not None
    assert (await session.expand(done.version))[-2].id == answer
    await session.close()


async def test_a_retraction_during_a_compaction_has_it_make_the_summary_anew_too(storage: Storage) -> None:
    toy = Toy()
    async with session_on(storage, words=True, config=compaction_config(), summarizer=toy) as session:
        await say_messages(session, 30)
        done = await compact_session(session, storage, toy)
        await say_messages(session, 30, start=30)
        toy.called.clear()
        job, working, go = await started(session, storage, toy)
        await session.retract((await session.expand(done.version))[0].id)
        go.set()
        await working
        anew = await session.wait(job)
        assert anew is not None
        assert anew.renews == (done.version,)
        assert DOUBT not in (await session.window(10_000)).text()


class First(Toy):
    """A summarizer that keeps the first word of each message."""

    async def summarize(self, request: SummaryRequest) -> str:
        return " ".join([turn.text.split()[0] for turn in request.turns])


class Rewriting:
    """A log that is rewritten and compacted at random, and the texts it must show."""

    def __init__(self, session: ACMS, storage: Any, toy: Toy, rng: Random) -> None:
        self.session, self.storage, self.toy, self.rng = session, storage, toy, rng
        #: The word that each message says now, by its first id; "" when it was retracted.
        self.now: dict[str, str] = {}
        #: What can be undone: the message of each rewrite and its word before that, by version.
        self.before: dict[int, tuple[str, str]] = {}
        self.count = 0

    def text(self) -> str:
        self.count += 1
        return " ".join([word_for_number(self.count)] * 12)

    async def step(self) -> None:
        what = self.rng.choice(
            ("say", "say", "say", "retract", "replace", "undo", "compact", "compact", "apart")
        )
        said = [id for id, now in self.now.items() if now]
        if what == "say" or not said:
            id = await self.session.ingest("user", text := self.text())
            self.now[id] = text.split()[0]
        elif what == "retract":
            id = self.rng.choice(said)
            self.note(await self.session.retract(id), id, "")
        elif what == "replace":
            id = self.rng.choice(said)
            entry = await self.session.get(await self.session.replace(id, text := self.text()))
            self.note(entry.version, id, text.split()[0])
        elif what == "undo" and self.before:
            version = self.rng.choice(list(self.before))
            with suppress(ConflictError):  # something later did it again, or a summary stands for the edit
                await self.session.undo(version)
                id, old = self.before.pop(version)
                self.now[id] = old
        elif what == "apart" and (made := [one for one in await self.session.compactions() if one.in_force]):
            await self.session.undo(self.rng.choice(made).version)
        elif what == "compact":
            await compact_session(
                self.session, self.storage, self.toy, preserve_recent_count=self.rng.choice((0, 3))
            )
            assert DOUBT not in (await self.session.window(100_000)).text()

    def note(self, version: int, id: str, now: str) -> None:
        self.before[version] = id, self.now[id]
        self.now[id] = now

    async def check(self) -> None:
        said = set(self.now.values()) - {""}
        found = [item.content for item in await self.session.window(100_000)]
        found_too = [str(one["content"]) for one in await self.session.messages("", budget=100_000)]
        for shown_now in (found, found_too):
            words = [set(re.findall(r"word\w+", text)) for text in shown_now]
            assert said <= set().union(*words), "something in force is shown nowhere"
            assert all(DOUBT in text or own <= said for text, own in zip(shown_now, words, strict=True))


@pytest.mark.parametrize("seed", range(12))
async def test_what_is_in_force_is_shown_and_what_is_not_is_in_doubt(seed: int) -> None:
    storage, toy = open_storage("memory://"), First()
    async with session_on(storage, words=True, config=compaction_config(), summarizer=toy) as session:
        log = Rewriting(session, storage, toy, Random(seed))
        for _ in range(90):
            await log.step()
            await log.check()
