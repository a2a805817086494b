"""What consecutive prompts of an agent share, with a recall every turn and a log that compacts itself."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from acms import ACMS, ACMSConfig, CompactionPolicy, Kind, RecallConfig, open_storage
from acms.codecs import AnthropicMessages, Gemini, OpenAIChat, OpenAIResponses
from acms.log.encoding import is_summary_id
from acms.ports import Codec, HasRecords, StorageBackend
from acms.prompt import Prompt, Rendered
from acms.prompt.history.cache_window import CacheWindow, read_windows
from tests.support.agents import SYSTEM, agent_log, follow

RULES = "Answer in one sentence."


async def say_steps(session: ACMS, first: int, last: int) -> None:
    """Say some steps, a user and an assistant in turn."""
    for n in range(first, last + 1):
        text = (
            f"Step {n}: the report of day {n} has {n * 7} rows and was sent to office {n % 5} in the morning."
        )
        await session.ingest(("assistant", "user")[n % 2], text)


def summary_ids(rendered: Rendered) -> set[str]:
    """Return the ids of the summaries that a prompt shows."""
    return {id for one in rendered.manifest.messages for id in one.sources if is_summary_id(id)}


def record_epochs(storage: StorageBackend) -> list[tuple[str, int]]:
    """Return a list that fills with the epochs that are stored: the log of each, and the version it began at."""
    assert isinstance(storage, HasRecords)
    found: list[tuple[str, int]] = []
    inner = storage.put_record

    async def put(context: str, name: str, data: Any, *, rev: int) -> Any:
        placed = CacheWindow.unpack(next(iter(read_windows(data).values())))
        found.append((context, placed.began_at))
        return await inner(context, name, data, rev=rev)

    storage.put_record = put  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize(
    ("style", "budget", "turns"),
    [
        ("support", 3000, 30),
        pytest.param("coding", 4000, 30, marks=pytest.mark.slow),
        pytest.param("support", 4000, 50, marks=pytest.mark.slow),
        pytest.param("coding", 8000, 70, marks=pytest.mark.slow),
    ],
)
async def test_prompts_of_an_agent_grow_at_their_end_within_an_epoch(
    style: str, budget: int, turns: int, tmp_path: Path
) -> None:
    log = agent_log(style, 7, turns=turns, planted=12)
    storage = open_storage(f"sqlite:///{tmp_path}/agent.db")
    stored = record_epochs(storage)
    found = await follow(log, storage, OpenAIChat("gpt-5"), budget=budget, every=turns // 3)
    assert found.compactions >= 1
    assert found.tokens > 1.5 * budget
    begun = {began for context, began in stored if context == stored[0][0]}
    assert turns - found.grown <= len(begun)  # whatever else changed began an epoch
    assert found.grown > turns / 2
    assert mean(found.ours.evidence) >= mean(found.sliding.evidence) - 0.01
    assert found.ours.cached > found.sliding.cached + 0.1
    # Ids of entries are random, and their tokens decide whether a turn more fits.
    assert found.ours.cached > found.top.cached + 0.15


async def test_a_prompt_begins_with_all_of_the_one_before_and_what_was_recalled_for_it() -> None:
    session = ACMS("a", open_storage("memory://"))
    await say_steps(session, 1, 60)
    base, earlier = Prompt(OpenAIChat("gpt-5")).system(RULES).history(session), None
    moved = 0
    for n in range(61, 121, 2):
        await say_steps(session, n, n)
        rendered = await base.recall(session, f"What was sent on day {n - 55}?", tokens=100).render(
            budget=1500, after=earlier
        )
        *_, block, newest = rendered.manifest.messages
        assert newest.last == n
        assert block.pieces
        assert not any(one.moves for one in rendered.manifest.messages)
        if earlier is not None:
            change = rendered.cache.first_change
            if change is None:
                assert rendered.cache.shared_tokens == earlier.tokens.tokens
            else:
                moved += 1
                assert change.index == 1
                assert rendered.cache.reason.startswith("the start of prompt/history moved: v")
        earlier = rendered
        await say_steps(session, n + 1, n + 1)
    # The 60 messages have 1,700 tokens and each turn adds 120: an epoch has seven of them, but the first one is full.
    assert 3 <= moved <= 5


async def test_a_budget_that_changes_from_turn_to_turn_keeps_the_start_of_the_prompt() -> None:
    session = ACMS("a", open_storage("memory://"))
    await say_steps(session, 1, 60)
    base, earlier = Prompt(OpenAIChat("gpt-5")).system(RULES).history(session), None
    kept = 0
    for n in range(61, 81, 2):
        await say_steps(session, n, n)
        question = f"What was sent on day {n - 55}?"
        rendered = await base.recall(session, question, tokens=100).render(
            budget=3000 - n % 7 * 10, after=earlier
        )
        assert rendered.tokens.upper_bound <= 3000 - n % 7 * 10
        if earlier is not None:
            kept += rendered.cache.shared_tokens >= 0.9 * earlier.tokens.tokens
        earlier = rendered
        await say_steps(session, n + 1, n + 1)
    assert kept >= 8  # of nine; an epoch ends in between


async def test_a_much_larger_budget_is_used_at_once() -> None:
    session = ACMS("a", open_storage("memory://"))
    await say_steps(session, 1, 400)
    base = Prompt(OpenAIChat("gpt-5")).system(RULES).history(session)
    prompt = base.recall(session, "What was sent on day 6?")
    small, large = await prompt.render(budget=1000), await prompt.render(budget=8000)
    assert small.tokens.tokens > 600
    assert large.tokens.tokens > 5000
    again = await prompt.render(budget=1000, after=small)
    assert again.payload == small.payload


async def test_a_larger_budget_for_the_same_question_shows_what_the_smaller_one_left_out() -> None:
    session = ACMS("a", open_storage("memory://"))
    for number in range(60):
        await session.ingest(
            "user", f"The violin lesson number {number} is at {number} o'clock. " + "Play. " * 20
        )
        await session.ingest("assistant", "Fine. " * 30)
    prompt = (
        Prompt(OpenAIChat("gpt-5")).history(session).recall(session, "When is the violin lesson number 7?")
    )
    small, large = await prompt.render(budget=900), await prompt.render(budget=1800)
    alone = ACMS("b", open_storage("memory://"))
    for message in await session.messages("", budget=100_000):
        await alone.ingest(message["role"], message["content"])
    same = Prompt(OpenAIChat("gpt-5")).history(alone).recall(alone, "When is the violin lesson number 7?")
    fresh = await same.render(budget=1800)
    assert small.tokens.tokens >= 0.4 * 1800
    assert large.tokens.tokens == fresh.tokens.tokens


async def test_what_is_chosen_anew_each_turn_moves_before_the_newest_message_of_the_user() -> None:
    session, other = (ACMS(name, open_storage("memory://")) for name in "ab")
    await say_steps(session, 1, 60)
    await say_steps(other, 1, 20)
    base, earlier = Prompt(OpenAIChat("gpt-5")).system(RULES).history(session), None
    for n in range(61, 81, 2):
        await say_steps(session, n, n)
        rendered = await base.recall(other, f"What was sent on day {n - 55}?", tokens=100).render(
            budget=4000, after=earlier
        )
        *before, block, newest = rendered.manifest.messages
        assert block.moves
        assert not any(one.moves for one in (*before, newest))
        if earlier is not None:
            stays = earlier.manifest.messages[:-2]
            assert rendered.cache.reason.startswith("what was recalled stood here")
            assert rendered.cache.first_change is not None
            assert rendered.cache.first_change.index == len(stays)
            assert rendered.cache.shared_tokens >= sum(one.tokens for one in stays)
        earlier = rendered
        await say_steps(session, n + 1, n + 1)


async def test_another_process_starts_a_history_at_the_same_place(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with ACMS("a", open_storage(url)) as session:
        await say_steps(session, 1, 150)
        one = await Prompt(OpenAIChat("gpt-5")).system(RULES).history(session).render(budget=1500)
    async with ACMS("a", open_storage(url)) as session:
        other = await Prompt(OpenAIChat("gpt-5")).system(RULES).history(session).render(budget=1500)
        assert other.payload == one.payload
        await say_steps(session, 151, 152)
        later = (
            await Prompt(OpenAIChat("gpt-5")).system(RULES).history(session).render(budget=1500, after=one)
        )
        assert later.cache.first_change is None
        assert later.cache.predicted_tokens == later.codec.cached(later.cache.shared_tokens)


@pytest.mark.parametrize("codec", [OpenAIChat("gpt-5"), OpenAIResponses("gpt-5"), Gemini("gemini-3-pro")])
async def test_no_more_tokens_are_predicted_from_a_cache_than_the_request_has(codec: Codec) -> None:
    """Names that a provider refuses, and messages that a codec merges, take fewer tokens in a request than alone."""
    async with ACMS("user", "memory://", None) as session:
        for n in range(40):
            text = f"Report {n}: " + "all rows are there. " * 30
            await session.ingest("user", text, actor_id="bob smith")
            await session.ingest("system", text)
        prompt = Prompt(codec).system("You help.").history(session)
        first = await prompt.render(budget=100_000)
        second = await prompt.render(budget=100_000, after=first)
        assert 0 < second.cache.predicted_tokens <= second.tokens.tokens
        assert second.cache.shared_tokens == second.cache.total_tokens == second.tokens.tokens


async def test_the_last_messages_slide_every_turn_and_a_history_does_not() -> None:
    session = ACMS("a", open_storage("memory://"))
    await say_steps(session, 1, 40)
    prompt = Prompt(OpenAIChat("gpt-5")).system(RULES)
    slides, stays = (
        await prompt.last(session, n=10).render(),
        await prompt.history(session).render(budget=4000),
    )
    await say_steps(session, 41, 41)
    after = await prompt.last(session, n=10).render(after=slides)
    assert after.cache.reason == "the start of prompt/last moved: v31 left"
    assert after.cache.first_change is not None
    assert after.cache.first_change.index == 1
    still = await prompt.history(session).render(budget=4000, after=stays)
    assert still.cache.first_change is None


async def test_a_summary_that_an_append_asked_for_is_shown_from_the_next_epoch_on() -> None:
    budget = 2000
    session = ACMS(
        "a", open_storage("memory://"), config=ACMSConfig(compaction=CompactionPolicy(budget=budget))
    )
    base = Prompt(OpenAIChat("gpt-5")).system(RULES).history(session)
    earlier, known, waited, shown_late = None, 0, 0, 0
    for n in range(1, 241, 2):
        await say_steps(session, n, n + 1)
        await session.wait_pending()
        compacted = len(await session.compactions())
        rendered = await base.render(budget=budget, after=earlier)
        change = rendered.cache.first_change
        if compacted > known and change is None:
            waited += 1
        if earlier is not None and change is not None:
            assert change.index <= 1 + len(summary_ids(earlier))  # never between two messages that stay
            shown_late += summary_ids(rendered) != summary_ids(earlier)
        earlier, known = rendered, compacted
    assert min(waited, shown_late) >= 2
    await session.close()


async def test_the_history_of_a_section_starts_at_the_same_message_for_many_turns() -> None:
    session = ACMS("a", open_storage("memory://"))
    prompt = Prompt(OpenAIChat("gpt-5")).system(RULES).section("talk", Prompt().history(session), share=0.8)
    await say_steps(session, 1, 60)
    earlier, moves = await prompt.render(budget=2000), 0
    for n in range(61, 121):
        await say_steps(session, n, n)
        rendered = await prompt.render(budget=2000, after=earlier)
        moves += rendered.cache.first_change is not None
        assert rendered.tokens.tokens >= 0.3 * 2000
        earlier = rendered
    assert 1 <= moves <= 4


async def test_no_summary_is_shown_beside_one_that_stands_for_it() -> None:
    config = ACMSConfig(compaction=CompactionPolicy(budget=2000))
    session = ACMS("a", open_storage("memory://"), config=config)
    prompt = Prompt(OpenAIChat("gpt-5")).system(RULES).history(session)
    merged = 0
    for n in range(1, 400, 4):
        await say_steps(session, n, n + 3)
        await session.wait_pending()
        if n in (101, 221):
            await session.wait(await session.compact())
        made = await session.compactions()
        shown = summary_ids(await prompt.render(budget=2000))
        for one in made:
            if one.id in shown:
                under = {other.id for other in made for a, b in one.spans if a <= other.version <= b}
                merged += bool(under)
                assert shown.isdisjoint(under)
    assert merged
    await session.close()


async def test_marked_messages_that_a_compaction_left_stay_beside_its_summary() -> None:
    config = ACMSConfig(compaction=CompactionPolicy(budget=2000))
    session = ACMS("a", open_storage("memory://"), config=config)
    decided = await session.ingest("user", "DECISION: the reports go to office 9 from now on.")
    for start in range(1, 240, 4):
        await say_steps(session, start, start + 3)
        await session.wait_pending()
    rendered = await Prompt(OpenAIChat("gpt-5")).system(RULES).history(session).render(budget=2000)
    shown = [one.sources[0] for one in rendered.manifest.messages if one.first]
    assert decided in shown[:3]
    assert summary_ids(rendered).intersection(shown[:3])
    await session.close()


async def test_where_content_was_erased_a_summary_is_shown_at_once() -> None:
    config = ACMSConfig(compaction=CompactionPolicy(budget=2000))
    session = ACMS("a", open_storage("memory://"), config=config)
    prompt = Prompt(OpenAIChat("gpt-5")).system(RULES).history(session)
    n = 1
    while not await session.compactions():
        await say_steps(session, n, n + 1)
        await session.wait_pending()
        assert not summary_ids(await prompt.render(budget=2000))  # an append asked for it: the epoch goes on
        n += 2
    await session.erase(await session.ingest("user", "My number is 555-0100."))
    (summary,) = [one for one in await session.entries() if one.kind is Kind.SUMMARY]
    assert summary_ids(await prompt.render(budget=2000)) == {summary.id}
    await session.close()


async def test_summaries_of_a_log_stay_in_front_of_its_newest_messages() -> None:
    config = ACMSConfig(compaction=CompactionPolicy(budget=3000))
    session = ACMS("a", open_storage("memory://"), config=config)
    for start in range(1, 150, 10):
        await say_steps(session, start, start + 9)
        await session.wait_pending()
    entries = await session.entries()
    summaries = [one for one in entries if one.kind is Kind.SUMMARY]
    assert summaries
    rendered = await Prompt(OpenAIChat("gpt-5")).system(RULES).history(session).render(budget=1200)
    shown = [one.sources[0] for one in rendered.manifest.messages if one.first]
    assert shown[0] == summaries[0].id
    said = [one.id for one in entries if one.kind is Kind.MESSAGE]
    assert shown[1:] == said[-len(shown) + 1 :]
    assert len(shown) - 1 < len(said)
    verdict = rendered.ledger.why_not(said[0])
    assert verdict is not None
    assert verdict.rule == "unread"
    await session.close()


async def test_a_summary_larger_than_half_the_room_gives_way_to_the_newest_messages() -> None:
    session = ACMS("a", open_storage("memory://"))
    await say_steps(session, 1, 150)
    await session.wait(await session.compact())
    (summary,) = [one for one in await session.entries() if one.kind is Kind.SUMMARY]
    rendered = await Prompt(OpenAIChat("gpt-5")).history(session).render(budget=400)
    shown = [one for one in rendered.manifest.messages if one.first]
    assert all(summary.id not in one.sources for one in shown)
    assert shown[-1].last == 150


async def test_a_compaction_is_named_as_the_reason_of_a_change() -> None:
    session = ACMS("a", open_storage("memory://"))
    await say_steps(session, 1, 40)
    prompt = Prompt(OpenAIChat("gpt-5")).system(RULES).history(session)
    before = await prompt.render(budget=8000)
    await session.wait(await session.compact())
    after = await prompt.render(budget=8000, after=before.manifest)
    assert after.cache.reason == "prompt/history: a summary, v41, replaces v1 to v30"
    await session.close()


async def test_an_edit_and_a_retraction_are_named_as_the_reason_of_a_change() -> None:
    session = ACMS("a", open_storage("memory://"))
    ids = [await session.ingest("user", f"message {number}") for number in range(6)]
    built = Prompt(OpenAIChat("gpt-4o")).system("S").history(session)
    before = await built.render()
    await session.replace(ids[2], "another")
    edited = await built.render(after=before)
    assert edited.cache.reason == "prompt/history: an edit, v7, replaces v3"
    await session.retract(ids[4])
    assert (await built.render(after=edited)).cache.reason == "prompt/history: v5 left"
    await session.close()


def recalled_tokens(rendered: Rendered) -> list[int]:
    """Return the tokens of each message that was recalled."""
    return [one.tokens for one in rendered.manifest.messages if one.pieces]


async def test_a_recall_and_a_history_share_the_room() -> None:
    session = ACMS("a", open_storage("memory://"))
    await say_steps(session, 1, 150)
    base = Prompt(AnthropicMessages("claude-sonnet-4-5")).system(SYSTEM)
    query = "reports with rows sent in the morning"
    bounded = await base.history(session).recall(session, query, tokens=300).render(budget=3200)
    (tokens,) = recalled_tokens(bounded)
    assert 100 < tokens <= 300
    shared = await base.history(session).recall(session, query).render(budget=3200)
    (tokens,) = recalled_tokens(shared)
    assert tokens > 300
    for rendered in (bounded, shared):
        assert rendered.use.free < 0.03 * 3200
    alone = await base.recall(session, query).user(query).render(budget=3200)
    (tokens,) = recalled_tokens(alone)
    assert 1000 < tokens <= 3200 * 0.52


@pytest.mark.parametrize("effort", [0.2, 0.4])
async def test_a_turn_of_an_epoch_recalls_no_more_than_its_effort(effort: float) -> None:
    session = ACMS("a", open_storage("memory://"), config=ACMSConfig(recall=RecallConfig(effort=effort)))
    await say_steps(session, 1, 150)
    base = Prompt(OpenAIChat("gpt-5")).system(RULES).history(session)
    begun = 0
    earlier: Rendered | None = None
    for n in range(151, 191, 2):
        await say_steps(session, n, n)
        rendered = await base.recall(session, f"office {n % 5} morning rows day {n - 60}").render(
            budget=2000, after=earlier
        )
        if earlier is not None:
            blocks = recalled_tokens(rendered)
            begun += rendered.cache.first_change is not None
            assert all(tokens <= effort * 2000 for tokens in blocks)
        earlier = rendered
        await say_steps(session, n + 1, n + 1)
    assert begun


def _marked_texts(rendered: Rendered) -> list[str]:
    """Return the first words of each block that has a cache mark."""
    payload = rendered.payload
    blocks = [block for message in payload["messages"] for block in message["content"]]
    blocks += payload.get("system", [])
    return [block["text"][:20] for block in blocks if "cache_control" in block]


async def test_claude_caches_a_history_without_a_hint() -> None:
    codec = AnthropicMessages("claude-sonnet-4-5")
    async with ACMS("s", open_storage("memory://"), None) as session:
        await say_steps(session, 1, 81)
        prompt = Prompt(codec).system("You count rows. " * 400).history(session).user("And today?")
        first = await prompt.render(budget=6000)
        assert _marked_texts(first) == ["Step 81: the report ", "You count rows. You "]
        await say_steps(session, 82, 85)
        second = await prompt.render(budget=6000, after=first)
        assert second.cache.predicted_tokens > 0.95 * first.tokens.tokens
        assert _marked_texts(second) == ["Step 85: the report ", "You count rows. You "]

        hinted = Prompt(codec).system("You count rows. " * 400).cache_hint(id="rules").history(session)
        assert len(_marked_texts(await hinted.user("And today?").render(budget=6000))) == 2
        short = Prompt(codec).history(session).user("And today?")
        assert _marked_texts(await short.render(budget=600)) == []  # too short for the cache
        past = Prompt(codec).history(session.at(80)).user("And today?")
        assert _marked_texts(await past.render(budget=6000)) == []  # no later request continues it
        uncached = Prompt(AnthropicMessages("claude-sonnet-4-5", cache_history=False)).history(session)
        assert _marked_texts(await uncached.user("And today?").render(budget=6000)) == []
