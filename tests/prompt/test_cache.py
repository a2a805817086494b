"""What consecutive prompts of an agent share, with a recall every turn and a log that compacts itself."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from acms import ACMS, ACMSConfig, CompactionPolicy, open_storage
from acms.codecs import AnthropicMessages, OpenAIChat
from acms.log.encoding import is_summary
from acms.model import Kind
from acms.plan.prefix_cache import recall_tokens
from acms.prompt import Prompt
from acms.prompt.render import Rendered
from tests.support.agents import SYSTEM, agent_log, follow

RULES = "Answer in one sentence."


async def told(session: ACMS, first: int, last: int) -> None:
    """Say some steps, a user and an assistant in turn."""
    for n in range(first, last + 1):
        text = (
            f"Step {n}: the report of day {n} has {n * 7} rows and was sent to office {n % 5} in the morning."
        )
        await session.ingest(("assistant", "user")[n % 2], text)


def summaries(rendered: Rendered) -> set[str]:
    """Return the ids of the summaries that a prompt shows."""
    return {id for one in rendered.manifest.messages for id in one.sources if is_summary(id)}


@pytest.mark.parametrize(("style", "budget", "turns"), [("support", 4000, 50), ("coding", 8000, 70)])
async def test_prompts_of_an_agent_share_what_they_can(
    style: str, budget: int, turns: int, tmp_path: Path
) -> None:
    log = agent_log(style, 7, turns=turns, planted=12)
    found = await follow(
        log,
        open_storage(f"sqlite:///{tmp_path}/agent.db"),
        OpenAIChat("gpt-5"),
        budget=budget,
        recall=recall_tokens(budget),
        every=turns // 3,
    )
    assert found.compactions >= 1
    assert found.tokens > 1.5 * budget
    assert found.ours.kept >= 0.9
    assert found.replanned.kept >= 0.9
    assert found.ours.cached >= 0.75
    assert mean(found.ours.evidence) >= mean(found.sliding.evidence) - 0.01
    assert found.top.kept < found.ours.kept
    assert found.top.cached < found.ours.cached - 0.1


async def test_a_prompt_begins_with_all_of_the_one_before_but_what_was_recalled() -> None:
    session = ACMS("a", open_storage("memory://"))
    await told(session, 1, 60)
    base, earlier = Prompt(OpenAIChat("gpt-5")).system(RULES).history(session), None
    moved = 0
    for n in range(61, 121, 2):
        await told(session, n, n)
        rendered = await base.recall(session, f"What was sent on day {n - 55}?", tokens=100).render(
            budget=1500, after=earlier
        )
        if earlier is not None:
            change = rendered.cache.first_change
            assert change is not None
            stays = [one for one in earlier.manifest.messages if not one.moves]
            if change.index < len(stays):
                moved += 1
                assert change.index == 1
                assert rendered.cache.reason.startswith("the start of prompt/history moved: v")
            else:
                assert rendered.cache.reason.startswith("what was recalled stood here")
                assert rendered.cache.shared_tokens >= sum(one.tokens for one in stays)
            assert rendered.manifest.messages[-1].moves
        earlier = rendered
        await told(session, n + 1, n + 1)
    # The 60 messages have 1,700 tokens, and an epoch has 320.
    assert 1 <= moved <= 6


async def test_another_process_starts_a_history_at_the_same_place(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    async with ACMS("a", open_storage(url)) as session:
        await told(session, 1, 150)
        one = await Prompt(OpenAIChat("gpt-5")).system(RULES).history(session).render(budget=1500)
    async with ACMS("a", open_storage(url)) as session:
        other = await Prompt(OpenAIChat("gpt-5")).system(RULES).history(session).render(budget=1500)
        assert other.payload == one.payload
        await told(session, 151, 152)
        later = (
            await Prompt(OpenAIChat("gpt-5")).system(RULES).history(session).render(budget=1500, after=one)
        )
        assert later.cache.first_change is None
        assert later.cache.predicted_tokens == later.codec.cached(later.cache.shared_tokens)


async def test_the_start_stays_when_a_recall_finds_less_than_it_may() -> None:
    session = ACMS("a", open_storage("memory://"))
    await told(session, 1, 150)
    base = Prompt(OpenAIChat("gpt-5")).system(RULES).history(session)
    firsts = set[int]()
    for query in ("What was sent on day 7?", "zebra", "rows of the report of office 3"):
        rendered = await base.recall(session, query, tokens=300).render(budget=1500)
        firsts.add(next(one.first for one in rendered.manifest.messages if one.first))
    assert len(firsts) == 1


async def test_the_last_messages_slide_every_turn_and_a_history_does_not() -> None:
    session = ACMS("a", open_storage("memory://"))
    await told(session, 1, 40)
    prompt = Prompt(OpenAIChat("gpt-5")).system(RULES)
    slides, stays = (
        await prompt.last(session, n=10).render(),
        await prompt.history(session).render(budget=4000),
    )
    await told(session, 41, 41)
    after = await prompt.last(session, n=10).render(after=slides)
    assert after.cache.reason == "the start of prompt/last moved: v31 left"
    assert after.cache.first_change is not None
    assert after.cache.first_change.index == 1
    still = await prompt.history(session).render(budget=4000, after=stays)
    assert still.cache.first_change is None


async def test_a_prompt_with_a_recall_and_one_without_begin_alike() -> None:
    session = ACMS("a", open_storage("memory://"))
    await told(session, 1, 150)
    base = Prompt(OpenAIChat("gpt-5")).system(RULES).history(session)
    firsts = set[int]()
    for prompt in (base, base.recall(session, "What was sent on day 7?")):
        rendered = await prompt.render(budget=1500)
        firsts.add(next(one.first for one in rendered.manifest.messages if one.first))
    assert len(firsts) == 1


async def test_a_summary_that_an_append_asked_for_is_shown_from_the_next_epoch_on() -> None:
    budget = 2000
    session = ACMS(
        "a", open_storage("memory://"), config=ACMSConfig(compaction=CompactionPolicy(budget=budget))
    )
    base = Prompt(OpenAIChat("gpt-5")).system(RULES).history(session)
    earlier, known, waited, shown_late = None, 0, 0, 0
    for n in range(1, 241, 2):
        await told(session, n, n + 1)
        await session.wait_pending()
        compacted = len(await session.compactions())
        rendered = await base.render(budget=budget, after=earlier)
        change = rendered.cache.first_change
        if compacted > known and change is None:
            waited += 1
        if earlier is not None and change is not None:
            assert change.index <= 1 + len(summaries(earlier))  # never between two messages that stay
            shown_late += summaries(rendered) != summaries(earlier)
        earlier, known = rendered, compacted
    assert waited >= 2
    assert shown_late >= 2
    await session.close()


async def test_no_summary_is_shown_beside_one_that_stands_for_it() -> None:
    config = ACMSConfig(compaction=CompactionPolicy(budget=2000))
    session = ACMS("a", open_storage("memory://"), config=config)
    prompt = Prompt(OpenAIChat("gpt-5")).system(RULES).history(session)
    merged = 0
    for n in range(1, 400, 4):
        await told(session, n, n + 3)
        await session.wait_pending()
        if n in (101, 221):
            await session.wait(await session.compact())
        made = await session.compactions()
        shown = summaries(await prompt.render(budget=2000))
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
        await told(session, start, start + 3)
        await session.wait_pending()
    rendered = await Prompt(OpenAIChat("gpt-5")).system(RULES).history(session).render(budget=2000)
    shown = [one.sources[0] for one in rendered.manifest.messages if one.first]
    assert decided in shown[:3]
    assert summaries(rendered).intersection(shown[:3])
    await session.close()


async def test_where_content_was_erased_a_summary_is_shown_at_once() -> None:
    config = ACMSConfig(compaction=CompactionPolicy(budget=2000))
    session = ACMS("a", open_storage("memory://"), config=config)
    n = 1
    while not await session.compactions():
        await told(session, n, n + 1)
        await session.wait_pending()
        n += 2
    prompt = Prompt(OpenAIChat("gpt-5")).system(RULES).history(session)
    assert not summaries(await prompt.render(budget=2000))
    await session.erase(await session.ingest("user", "My number is 555-0100."))
    (summary,) = [one for one in await session.entries() if one.kind is Kind.SUMMARY]
    assert summaries(await prompt.render(budget=2000)) == {summary.id}
    await session.close()


async def test_summaries_of_a_log_stay_in_front_of_its_newest_messages() -> None:
    config = ACMSConfig(compaction=CompactionPolicy(budget=3000))
    session = ACMS("a", open_storage("memory://"), config=config)
    for start in range(1, 150, 10):
        await told(session, start, start + 9)
        await session.wait_pending()
    summaries = [one for one in await session.entries() if one.kind is Kind.SUMMARY]
    assert summaries
    rendered = await Prompt(OpenAIChat("gpt-5")).system(RULES).history(session).render(budget=1800)
    shown = [one for one in rendered.manifest.messages if one.first]
    assert shown[0].sources == (summaries[0].id,)
    assert any(one.rule == "window" for one in rendered.manifest.left)
    await session.close()


async def test_a_summary_larger_than_half_the_room_gives_way_to_the_newest_messages() -> None:
    session = ACMS("a", open_storage("memory://"))
    await told(session, 1, 150)
    await session.wait(await session.compact())
    (summary,) = [one for one in await session.entries() if one.kind is Kind.SUMMARY]
    rendered = await Prompt(OpenAIChat("gpt-5")).history(session).render(budget=400)
    shown = [one for one in rendered.manifest.messages if one.first]
    assert all(summary.id not in one.sources for one in shown)
    assert shown[-1].last == 150


async def test_a_compaction_is_named_as_the_reason_of_a_change() -> None:
    session = ACMS("a", open_storage("memory://"))
    await told(session, 1, 40)
    prompt = Prompt(OpenAIChat("gpt-5")).system(RULES).history(session)
    before = await prompt.render(budget=8000)
    await session.wait(await session.compact())
    after = await prompt.render(budget=8000, after=before.manifest)
    assert after.cache.reason == "prompt/history: a summary, v41, stands for v1 to v30"
    await session.close()


async def test_an_edit_and_a_retraction_are_named_as_the_reason_of_a_change() -> None:
    session = ACMS("a", open_storage("memory://"))
    ids = [await session.ingest("user", f"message {number}") for number in range(6)]
    built = Prompt(OpenAIChat("gpt-4o")).system("S").history(session)
    before = await built.render()
    await session.replace(ids[2], "another")
    edited = await built.render(after=before)
    assert edited.cache.reason == "prompt/history: an edit, v7, stands for v3"
    await session.retract(ids[4])
    assert (await built.render(after=edited)).cache.reason == "prompt/history: v5 left"
    await session.close()


async def test_a_recall_has_a_sixteenth_of_the_budget_unless_told_otherwise() -> None:
    session = ACMS("a", open_storage("memory://"))
    await told(session, 1, 150)
    base = Prompt(AnthropicMessages("claude-sonnet-4-5")).system(SYSTEM).history(session)
    rendered = await base.recall(session, "reports with rows sent in the morning").render(budget=3200)
    (recalled,) = [one for one in rendered.manifest.messages if one.moves]
    assert recalled.tokens <= 200 + 40
    assert recalled.pieces
