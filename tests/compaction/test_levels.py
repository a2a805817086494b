"""A summary has a text for small prompts, is made from the messages, and lists the details it lost."""

from __future__ import annotations

import random
from typing import Any

import pytest

from acms import ACMS, ACMSConfig, CompactionPolicy, Kind, PrivacyConfig, ProviderError, State, open_storage
from acms.codecs import OpenAIChat
from acms.kv import InMemoryKV
from acms.log.summary_levels import levels_of_summary, read_shorter_levels
from acms.pins import create_pin_registry
from acms.ports import SummaryRequest
from acms.prompt import Prompt
from tests.compaction.test_compaction import Toy, compact_session, compaction_config, say_messages
from tests.compaction.test_probes import Talk as ProbeTalk
from tests.support.talk import Storage, message_ids, session_on

QUIET = ACMSConfig(compaction=CompactionPolicy(enabled=False))


class Talk(ProbeTalk):
    """A talk with as many details as one wants."""

    def __init__(self, seed: int, turns: int, details: int) -> None:
        self.draw = random.Random(seed)
        self.details: list[str] = []
        places = set(self.draw.sample(range(turns - 15), details))
        self.turns = [self._turn(n in places) for n in range(turns)]


async def ingest_turns(session: ACMS, turns: list[str], start: int = 0) -> None:
    rows = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(turns, start)]
    for place in range(0, len(rows), 500):
        await session.ingest_many(rows[place : place + 500])


async def summary_of(session: ACMS) -> Any:
    (found,) = [entry for entry in await session.entries() if entry.kind is Kind.SUMMARY]
    return found


# ── which text is shown ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def long_talk() -> Talk:
    return Talk(seed=25, turns=1250, details=400)


async def test_a_prompt_smaller_than_the_summary_starts_with_a_shorter_text_of_it(long_talk: Talk) -> None:
    async with ACMS("agent", open_storage("memory://"), config=QUIET) as session:
        await session.ingest("system", "Help the orders team.")
        await ingest_turns(session, long_talk.turns)
        done = await session.wait(await session.compact())
        assert done is not None
        assert done.tokens_before > 54_000
        summary = await summary_of(session)
        assert summary.tokens > 4_000
        assert levels_of_summary(summary)[0].tokens <= 400
        counter = session._shared.counter
        assert all(one.tokens == counter.count(one.content) for one in levels_of_summary(summary))

        shown: list[int] = []
        for budget in (600, 1_000, 2_000, 4_000, 8_000, 32_000):
            window = await session.window(budget)
            assert window.tokens <= budget
            assert window[0 if window[0].role is None else 1].id == summary.id
            (item,) = [item for item in window if item.id == summary.id]
            shown.append(item.token_count)
            messages = await session.messages("which settings are used?", budget=budget)
            assert messages[0]["role"] == "system"
            assert str(messages[1]["content"]).startswith("<summary>")
        assert shown == sorted(shown)
        assert len(set(shown)) >= 4
        assert shown[-1] >= summary.tokens


async def test_where_no_text_fits_the_shortest_is_cut_and_a_warning_says_so(long_talk: Talk) -> None:
    async with ACMS("agent", open_storage("memory://"), config=QUIET) as session:
        await ingest_turns(session, long_talk.turns)
        await session.wait(await session.compact())
        summary = await summary_of(session)
        window = await session.window(300)
        assert (window[0].id, window[0].truncated) == (summary.id, True)
        assert window[0].why.endswith("are left")
        assert window.ledger.warnings == (f"a summary was cut to fit ({summary.id})",)
        assert window.tokens <= 300
        tiny = await session.window(30)
        assert summary.id not in [item.id for item in tiny]
        assert "shortest text" in str(tiny.ledger.why(summary.id))


async def test_a_window_is_counted_by_the_text_it_shows(long_talk: Talk) -> None:
    """The same summary is shown in another length by the next window of the same session."""
    async with ACMS("agent", open_storage("memory://"), config=QUIET) as session:
        await ingest_turns(session, long_talk.turns)
        await session.wait(await session.compact())
        for budget in (32_000, 4_000, 1_000, 4_000, 32_000):
            window = await session.window(budget)
            assert session._shared.counter.count(window.text()) <= window.tokens <= budget


async def test_a_summary_of_an_earlier_release_is_cut(storage: Storage) -> None:
    toy = Toy(" ".join(f"Sentence number {n} says little." for n in range(20)))
    async with session_on(storage, words=True, config=compaction_config(), summarizer=toy) as session:
        await say_messages(session, 40, words=30)
        await compact_session(session, storage, toy)
        summary = await summary_of(session)
        assert read_shorter_levels(summary.data) == []  # as short as the shortest would be
        window = await session.window(300)
        assert window[0].id == summary.id


async def test_shorter_texts_are_redacted_too(storage: Storage) -> None:
    secret = "sam@example.org"
    toy = Toy(f"Write to {secret}. " + " ".join(f"Sentence number {n} says little." for n in range(70)))
    plain = compaction_config(smallest_prompt=500)
    async with session_on(storage, words=True, config=plain, summarizer=toy) as session:
        await say_messages(session, 100, words=30)
        await compact_session(session, storage, toy)
        assert any(secret in one.content for one in levels_of_summary(await summary_of(session))[:-1])
    redacting = ACMSConfig(privacy=PrivacyConfig(mode="redact"))  # type: ignore[arg-type]  # a word is read as a mode
    async with session_on(storage, words=True, config=redacting) as session:
        found = await summary_of(session)
        assert found.content
        for level in levels_of_summary(found):
            assert secret not in level.content
        for budget in (400, 600, 900):
            assert secret not in (await session.window(budget)).text()


async def test_a_model_that_fails_at_a_shorter_text_does_not_fail_the_compaction(storage: Storage) -> None:
    class Once(Toy):
        async def summarize(self, request: SummaryRequest) -> str:
            if self.requests:
                self.requests.append(request)
                raise ProviderError("429", provider="toy")
            return await super().summarize(request)

    toy = Once(" ".join(f"Sentence number {n} says little." for n in range(70)))
    async with session_on(
        storage, words=True, config=compaction_config(smallest_prompt=500), summarizer=toy
    ) as session:
        await say_messages(session, 100, words=30)
        done = await compact_session(session, storage, toy)
        assert done.summary.startswith("Sentence number 0")
        assert len(toy.requests) > 1
        assert 0 < levels_of_summary(await summary_of(session))[0].tokens <= 50


# ── made from what was said ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_summary_of_summaries_is_made_from_the_messages(storage: Storage) -> None:
    toy = Toy()
    async with session_on(storage, words=True, config=compaction_config(), summarizer=toy) as session:
        for n in range(5):
            await say_messages(session, 30, start=30 * n)
            if n == 4:
                wrong = (await message_ids(session))[3]
                await session.retract(wrong)
            await compact_session(session, storage, toy)
        last = toy.requests[-1]
        assert not any(turn.summary for turn in last.turns)
        assert [turn.version for turn in last.turns] == sorted(turn.version for turn in last.turns)
        assert len(last.turns) == 139, "150, without ten that stay and one that was retracted"
        assert not any(turn.text.startswith("wordd ") for turn in last.turns)


async def test_a_summary_whose_messages_have_expired_is_all_there_is_of_them(storage: Storage) -> None:
    toy = Toy()
    async with session_on(storage, words=True, config=compaction_config(), summarizer=toy) as session:
        for n in range(5):
            await say_messages(session, 30, start=30 * n)
            done = await compact_session(session, storage, toy)
            if n == 0:
                gone = list(range(1, done.replaces[1] + 1))
                await storage.blank(session._shared.context_id or "", gone, to=State.EXPIRED, audit={})
        summaries = [turn for turn in toy.requests[-1].turns if turn.summary]
        assert [turn.text for turn in summaries] == ["so far: 20 turns"]
        assert len(toy.requests[-1].turns) == 1 + 120


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("budget", [None, pytest.param(8_000, marks=pytest.mark.slow)])
async def test_ten_compactions_keep_what_one_keeps(budget: int | None, seed: int) -> None:
    config = ACMSConfig(compaction=CompactionPolicy(enabled=False, budget=budget))
    talk = Talk(seed, turns=1000, details=300)
    shares: dict[int, float] = {}
    for rounds in (1, 10):
        async with ACMS("agent", open_storage("memory://"), config=config) as session:
            step = len(talk.turns) // rounds
            for start in range(0, len(talk.turns), step):
                await ingest_turns(session, talk.turns[start : start + step], start)
                await session.wait(await session.compact())
            text = (await session.window(100_000)).text()
            shares[rounds] = sum(one in text for one in talk.details) / 300
    assert shares[10] >= shares[1] - 0.02


# ── what is lost, and what is not ───────────────────────────────────────────────────────────────────────────────────


async def test_a_compaction_says_what_it_lost(storage: Storage) -> None:
    toy = Toy("little was said")
    async with session_on(
        storage, words=True, config=compaction_config(summary_tokens=8), summarizer=toy
    ) as session:
        asked = await session.ingest("user", "Who pays for the parking?")
        await session.ingest("user", "By the way, I filed ORD-4312 and ORD-4313 and ORD-4314.")
        await say_messages(session, 40)
        done = await compact_session(session, storage, toy)
        assert done.lost.counts["question"] == 1
        assert done.lost.counts["id"] >= 1
        assert done.lost.ids[0] == asked
        assert (await session.compactions())[0].lost == done.lost
        async with await session.copy(session_id="copy") as other:
            (copied,) = await other.compactions()
            assert copied.lost.counts == done.lost.counts
            assert await other.get(copied.lost.ids[0])


async def test_pins_and_system_text_survive_word_for_word(long_talk: Talk) -> None:
    first = "You are the helper of the orders team. Never promise a refund above EUR 50."
    later = "From now on answer in French, and keep the tone of a letter."
    pin = "Always greet Ms Okonkwo by her title."
    store = InMemoryKV()
    await store.set("greeting", pin)
    await create_pin_registry(store, namespace="user:1").pin("greeting")
    async with ACMS("agent", open_storage("memory://"), config=QUIET) as session:
        await session.ingest("system", first)
        half = len(long_talk.turns) // 2
        await ingest_turns(session, long_talk.turns[:half])
        await session.ingest("system", later)
        await ingest_turns(session, long_talk.turns[half:])
        for _ in range(3):
            await session.wait(await session.compact())
            await ingest_turns(session, long_talk.turns[:100])
        said = [entry.content for entry in await session.entries()]
        assert first in said
        assert later in said
        prompt = Prompt(OpenAIChat("gpt-5")).pinned_kv(store=store, namespace="user:1").history(session)
        rendered = await prompt.render(budget=32_000)
        texts = [message.text for message in rendered.messages]
        assert first in texts
        assert later in texts
        assert any(pin in text for text in texts)


async def test_too_many_instructions_are_quoted(storage: Storage) -> None:
    toy = Toy("little was said")
    async with session_on(storage, words=True, config=compaction_config(), summarizer=toy) as session:
        await say_messages(session, 2)
        for n in range(40):
            await session.ingest(
                "developer", f"rule for case letter {chr(97 + n % 26) * (1 + n // 26)} is to wait"
            )
        await say_messages(session, 12, start=2)
        done = await compact_session(session, storage, toy)
        assert "(instruction)" in done.summary
        assert "rule for case letter" in done.summary
