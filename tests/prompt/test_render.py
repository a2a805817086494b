"""Rendering: a prompt within its budget, over real sessions, with the reasons for everything in it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from acms import (
    ACMS,
    EntryNotFoundError,
    FitError,
    Role,
    Text,
    ToolCall,
    ToolResult,
    ValidationError,
    open_storage,
)
from acms.codecs import Count, Exactness, OpenAIChat, Tool
from acms.kv import InMemoryKV
from acms.pins import create_pin_registry
from acms.plan.nodes import MessageGroup, Omit, Scope
from acms.ports import SummaryRequest
from acms.prompt import Prompt, Rendered
from acms.prompt.replay import replay
from acms.prompt_types import PromptMessage
from acms.text.chat_messages import wrap_summary
from tests.providers.server import ModelServer
from tests.support.fakes import FakeEmbedder
from tests.support.talk import Storage, ingest_texts, session_on, tool_turn
from tests.support.toy import Toy


def exact_prompt(**given: Any) -> Prompt:
    """A prompt whose requests are counted exactly."""
    return Prompt(OpenAIChat("gpt-4o"), **given)


def texts_of_prompt(rendered: Rendered) -> list[str]:
    return [message.text for message in rendered.messages]


async def size_of_prompt(built: Prompt) -> int:
    """Return the tokens of everything in a prompt."""
    return (await built.render()).tokens.upper_bound


LONG = " ".join(f"word{number}" for number in range(300))


# ── the budget ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("budget", [float("nan"), float("inf"), True, -1, 10.5, 8000.0, "100", 10**12])
async def test_defect_10_a_budget_that_is_no_number_of_tokens_is_refused(budget: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        await exact_prompt().omit("x").render(budget=budget)
    assert caught.value.field == "budget"


async def test_without_a_budget_everything_is_shown_but_what_is_over_a_cap() -> None:
    rendered = await exact_prompt().omit(LONG).truncate(LONG, tokens=30).render()
    assert rendered.budget is None
    assert rendered.messages[0].text == LONG
    assert len(rendered.messages[1].text) < len(LONG)


async def test_what_fits_exactly_is_left_as_it_is() -> None:
    built = exact_prompt().system("Required.").omit("Optional.")
    whole = await size_of_prompt(built)
    assert texts_of_prompt(await built.render(budget=whole)) == ["Required.", "Optional."]
    assert texts_of_prompt(await built.render(budget=whole - 1)) == ["Required."]


async def test_what_is_required_and_does_not_fit_is_an_error_in_the_callers_budget() -> None:
    heard: list[Any] = []
    built = exact_prompt(on_event=heard.append).system(LONG).omit("Optional.")
    with pytest.raises(FitError) as caught:
        await built.render(budget=100)
    error = caught.value
    assert error.budget == 100
    assert error.required == 100 + error.over == await size_of_prompt(exact_prompt().system(LONG))
    assert error.where == "prompt/system"
    assert any("omit of prompt/omit (priority 3)" in tried for tried in error.tried)
    assert error.options
    assert [(type(event).__name__, event.code) for event in heard] == [("PromptFailed", "FIT")]
    rendered = await built.render(budget=error.required)
    assert rendered.tokens.upper_bound == error.required


async def test_tools_count_and_an_error_says_so() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string", "description": LONG}}}
    with pytest.raises(FitError) as caught:
        await exact_prompt().user("U").tools([Tool(name="search", parameters=schema)]).render(budget=100)
    assert caught.value.where == "tools"
    assert any(option.startswith("offer fewer tools") for option in caught.value.options)


async def test_the_largest_priority_number_goes_first() -> None:
    built = (
        exact_prompt().omit("Critical " * 20, priority=1).omit("Useful " * 20, priority=2).omit("Nice " * 20)
    )
    budget = await size_of_prompt(built)
    shown = []
    while budget > 30:
        rendered = await built.render(budget=budget)
        shown.append([text.split()[0] for text in texts_of_prompt(rendered)])
        budget = rendered.tokens.upper_bound - 1
        if len(rendered.messages) == 1:
            break
    assert shown == [["Critical", "Useful", "Nice"], ["Critical", "Useful"], ["Critical"]]


async def test_of_equal_priorities_the_first_goes_first_and_only_as_many_as_must() -> None:
    built = exact_prompt().user("U").omit("first " * 20).omit("second " * 20)
    rendered = await built.render(budget=await size_of_prompt(built) - 1)
    assert [text.split()[0] for text in texts_of_prompt(rendered)] == ["U", "second"]


async def test_at_a_budget_of_the_required_alone_all_else_is_left_out() -> None:
    required = await size_of_prompt(exact_prompt().user("U"))
    built = exact_prompt().user("U").omit("first " * 20).omit("second " * 20)
    rendered = await built.render(budget=required)
    assert texts_of_prompt(rendered) == ["U"]
    assert [step.path for step in rendered.steps] == ["prompt/omit", "prompt/omit-2"]
    for budget in (0, required - 1):
        with pytest.raises(FitError) as caught:
            await built.render(budget=budget)
        assert caught.value.required == required


class Grows(Toy):
    """A format that needs more for a whole request than for its messages."""

    def count(self, payload: Any) -> Count:
        tokens = super().count(payload).tokens + 9
        return Count(tokens=tokens, exactness=Exactness.EXACT, upper_bound=tokens)


async def test_a_request_that_grows_when_it_is_written_is_fitted_again() -> None:
    built = Prompt(Grows()).system("S").truncate(["word " * 10] * 9, tokens=1000)
    for budget in range(20, 130, 7):
        rendered = await built.render(budget=budget)
        assert rendered.tokens.upper_bound <= budget
    with pytest.raises(FitError) as caught:
        await built.render(budget=11)
    assert caught.value.budget == 11


async def test_truncate_drops_the_oldest_and_keeps_the_rest() -> None:
    built = exact_prompt().system("Head").truncate(["Alpha " * 10, "Beta"], tokens=1000)
    rendered = await built.render(budget=await size_of_prompt(built) - 1)
    assert texts_of_prompt(rendered) == ["Head", "Beta"]


# ── sections ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_section_has_a_budget_of_its_own(storage: Storage) -> None:
    session = session_on(storage)
    await ingest_texts(session, *(f"message {number} " + "words " * 20 for number in range(40)))
    built = (
        exact_prompt().system("S").section("log", lambda empty: empty.history(session), ceiling=150).user("U")
    )
    rendered = await built.render(budget=2000)
    ours = [one for one in rendered.manifest.messages if one.path.startswith("prompt/log/")]
    assert 0 < sum(one.tokens for one in ours) <= 150
    half = await exact_prompt().section("log", [session], share=0.5, priority=3).user("U").render(budget=600)
    ours = [one for one in half.manifest.messages if one.path == "prompt/log"]
    assert 200 < sum(one.tokens for one in ours) <= 300


async def test_a_floor_is_kept_while_others_shrink() -> None:
    notes = [f"note {number} " + "words " * 10 for number in range(10)]
    built = (
        exact_prompt()
        .section("notes", lambda empty: empty.truncate(notes, tokens=1000, priority=9), floor=80)
        .truncate([f"other {number} " + "words " * 10 for number in range(10)], tokens=1000, priority=1)
    )
    rendered = await built.render(budget=120)
    tokens = sum(one.tokens for one in rendered.manifest.messages if one.path.startswith("prompt/notes"))
    assert tokens >= 80
    with pytest.raises(FitError) as caught:
        await built.render(budget=60)
    assert any(option.startswith("lower the floor of prompt/notes to") for option in caught.value.options)


async def test_a_section_that_is_required_and_over_its_ceiling_is_an_error() -> None:
    tree = exact_prompt().section("rules", Prompt().system(LONG), ceiling=50)
    with pytest.raises(FitError) as caught:
        await tree.render(budget=5000)
    assert caught.value.where == "prompt/rules"
    assert caught.value.options[0].startswith("raise the ceiling of prompt/rules to")
    cut = (
        await exact_prompt()
        .section("rules", Prompt().system(LONG), ceiling=50, priority=2)
        .render(budget=5000)
    )
    assert cut.tokens.tokens < 60


# ── history ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_history_shows_the_newest_messages_that_fit(storage: Storage) -> None:
    session = session_on(storage)
    await ingest_texts(session, *(f"message {number} " + "words " * 20 for number in range(60)))
    rendered = await exact_prompt().system("S").history(session).user("U").render(budget=500)
    shown = [int(text.split()[1]) for text in texts_of_prompt(rendered) if text.startswith("message")]
    assert shown == list(range(60 - len(shown), 60))
    assert 5 < len(shown) < 25
    everything = await exact_prompt().system("S").history(session).user("U").render(budget=5000)
    assert len(everything.messages) == 62


async def test_the_newest_message_is_cut_rather_than_the_render_failed(storage: Storage) -> None:
    session = session_on(storage)
    await ingest_texts(session, "before", LONG)
    for build in (exact_prompt().history(session), exact_prompt().last(session, n=5)):
        rendered = await build.render(budget=60)
        assert rendered.tokens.upper_bound <= 60
        assert "word0" in texts_of_prompt(rendered)[-1]
        assert any("was cut" in warning for warning in rendered.warnings)
        assert rendered.ledger.why(session.last_receipt.message_id).included  # type: ignore[union-attr]


async def test_of_a_long_log_only_what_could_fit_is_read(storage: Storage) -> None:
    session = session_on(storage)
    ids = [
        receipt.message_id
        for receipt in await session.ingest_many(
            [{"role": "user", "content": f"message {number} " + "words " * 10} for number in range(900)]
        )
    ]
    rendered = await exact_prompt().history(session).render(budget=300)
    (read,) = rendered.manifest.reads
    assert read.first > 800
    assert rendered.ledger.why_not(ids[0]).rule == "unread"  # type: ignore[union-attr]
    assert rendered.ledger.why_not(ids[-1]) is None


async def test_what_is_older_than_a_history_shows_is_said_to_be_in_each_render(
    storage: Storage,
) -> None:
    session = session_on(storage)
    ids = await ingest_texts(session, *(f"message {number} " + "words " * 10 for number in range(30)))
    built = exact_prompt().history(session)
    budget = await size_of_prompt(built) - 5
    for _ in range(3):
        rendered = await built.render(budget=budget)
        (read,) = rendered.manifest.reads
        shown = rendered.manifest.messages[0].first
        assert read.first == shown > 1
        verdict = rendered.ledger.why_not(ids[0])
        assert verdict is not None
        assert verdict.rule in ("window", "unread")
        assert verdict.reason.startswith(
            ("older than the first message of the history", f"older than v{shown}:")
        )
        await ingest_texts(session, "one more")


async def test_a_log_that_is_required_and_does_not_fit_says_how_much_all_of_it_is(storage: Storage) -> None:
    session = session_on(storage)
    await ingest_texts(session, *[LONG] * 10)
    for built in (exact_prompt().add(session), exact_prompt().section("log", session).omit("U")):
        with pytest.raises(FitError) as caught:
            await built.render(budget=100)
        rendered = await built.render(budget=caught.value.required)
        assert texts_of_prompt(rendered)[:10] == [LONG] * 10
    built = exact_prompt().omit(session).user("U")
    assert texts_of_prompt(await built.render(budget=100)) == ["U"]
    assert texts_of_prompt(await built.render(budget=await size_of_prompt(built))) == [*[LONG] * 10, "U"]


async def test_a_log_counted_by_another_counter_is_read_as_far_as_it_takes(storage: Storage) -> None:
    """A log of few words may have many tokens: how much is read goes by what the codec counts."""
    session = session_on(storage, words=True)
    await ingest_texts(session, *(f"{number}" for number in range(300)))
    rendered = await exact_prompt().history(session).render(budget=600)
    assert 0.45 * 600 < rendered.use.history <= 0.5 * 600
    beside = await exact_prompt().history(session).recall(session, "zebra").render(budget=600)
    assert beside.use.free < 0.05 * 600
    assert beside.tokens.upper_bound <= 600


async def test_an_edit_and_a_retraction_are_shown_as_they_are_read(storage: Storage) -> None:
    session = session_on(storage)
    ids = await ingest_texts(session, "the first", "the second", "the third", "the fourth")
    await session.replace(ids[2], "the corrected third")
    rendered = await exact_prompt().history(session).render(budget=500)
    assert texts_of_prompt(rendered) == ["the first", "the second", "the corrected third", "the fourth"]
    await session.retract(ids[0])
    assert texts_of_prompt(await exact_prompt().history(session).render(budget=500))[0] == "the second"


class Short:
    """Says how many turns there were."""

    model = "short"

    async def summarize(self, request: SummaryRequest) -> str:
        return f"There were {len(request.turns)} turns."


async def test_a_summary_of_the_log_stands_for_what_was_compacted(storage: Storage) -> None:
    async with ACMS("compacted", storage, summarizer=Short()) as session:
        await ingest_texts(session, *(f"message {number} " + "words " * 20 for number in range(30)))
        done = await session.wait(await session.compact())
        rendered = await exact_prompt().history(session).render(budget=3000)
        assert texts_of_prompt(rendered)[0].startswith(
            wrap_summary("There were 20 turns.").removesuffix("</summary>")
        )
        assert texts_of_prompt(rendered)[0].endswith("\n</summary>")
        assert len(rendered.messages) == 11
        kept = await exact_prompt().history(session).render(budget=300)
        assert len(kept.messages) < 11
        assert texts_of_prompt(kept)[0].startswith("<summary>"), "it says most in the fewest tokens"
        assert await replay(kept.manifest, storage, OpenAIChat("gpt-4o")) == kept.payload
        before = await exact_prompt().history(session.at(done.version - 1)).render(budget=3000)
        assert len(before.messages) == 30


async def test_a_fork_shows_what_it_inherited_and_says_where_it_is_from(storage: Storage) -> None:
    session = session_on(storage)
    ids = await ingest_texts(session, *(f"message {number} " + "words " * 10 for number in range(40)))
    child = await session.fork(at=39, session_id="child")
    await ingest_texts(child, "what if?")
    rendered = await exact_prompt().history(child).render(budget=200)
    assert texts_of_prompt(rendered)[-1] == "what if?"
    assert rendered.ledger.why(ids[38]).included
    assert not rendered.ledger.why(ids[0]).included
    with pytest.raises(EntryNotFoundError):  # it was said after the fork, elsewhere
        rendered.ledger.why(ids[39])
    assert await replay(rendered.manifest, storage, OpenAIChat("gpt-4o")) == rendered.payload


# ── recall ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def session_with_past(storage: Storage) -> Any:
    session = session_on(storage)
    await ingest_texts(
        session, "We chose PostgreSQL 18 for the orders service because of transactions.", close=True
    )
    await ingest_texts(session, *(f"Small talk number {number} about the weather." for number in range(30)))
    return session


async def test_recall_stands_before_the_newest_message_of_the_user(storage: Storage) -> None:
    session = await session_with_past(storage)
    built = (
        exact_prompt()
        .system("S")
        .recall(session, "what did we choose for orders?")
        .last(session, n=2)
        .user("Plan.")
    )
    rendered = await built.render(budget=500)
    assert texts_of_prompt(rendered)[0] == "S"
    assert texts_of_prompt(rendered)[-1] == "Plan."
    assert "PostgreSQL" in texts_of_prompt(rendered)[-2]
    assert texts_of_prompt(rendered)[-2].startswith("<recalled>\n")
    assert texts_of_prompt(rendered)[-2].endswith("\n</recalled>")
    before = (
        exact_prompt()
        .system("S")
        .recall(session, "what did we choose for orders?", in_place=True)
        .user("Plan.")
    )
    assert "PostgreSQL" in texts_of_prompt(await before.render(budget=500))[1]
    answer = (
        exact_prompt().recall(session, "what did we choose for orders?").user("Plan.").assistant("It is:")
    )
    assert texts_of_prompt(await answer.render(budget=500))[-1] == "It is:"


async def test_in_one_prompt_an_entry_appears_once(storage: Storage) -> None:
    session = await session_with_past(storage)
    query = "what did we choose for orders?"
    built = (
        exact_prompt()
        .recall(session, query, tokens=300)
        .recall(session, "PostgreSQL", tokens=300)
        .last(session, n=3)
    )
    rendered = await built.render(budget=1000)
    shown = [source for message in rendered.manifest.messages for source in message.sources]
    assert len(shown) == len(set(shown))
    everything = await exact_prompt().history(session).recall(session, query).render(budget=3000)
    assert sum("PostgreSQL" in text for text in texts_of_prompt(everything)) == 1
    assert len(everything.messages) == 31


async def test_a_query_that_was_just_ingested_is_not_recalled(storage: Storage) -> None:
    session = await session_with_past(storage)
    query = "Which database did we choose for orders?"
    await session.ingest("user", query)
    await tool_turn(session, "c", "nothing found")
    rendered = await exact_prompt().recall(session, query).user("go").render(budget=500)
    assert "PostgreSQL" in texts_of_prompt(rendered)[-2]
    assert query not in texts_of_prompt(rendered)[-2]
    assert texts_of_prompt(rendered)[-1] == "go"
    beside = await exact_prompt().history(session).recall(session, query).render(budget=250)
    assert [one for one in texts_of_prompt(beside) if query in one] == [query]
    block = texts_of_prompt(beside)[texts_of_prompt(beside).index(query) - 1]
    assert block.startswith("<recalled>")
    assert "PostgreSQL" in block


async def test_what_the_open_episode_said_beyond_the_history_is_recalled_too(storage: Storage) -> None:
    session = session_on(storage)
    await ingest_texts(
        session, "The licence costs 48,000 a year.", *(f"Small talk {number}." for number in range(20))
    )
    built = exact_prompt().recall(session, "what does the licence cost?", tokens=100).last(session, n=2)
    assert "48,000" in texts_of_prompt(await built.render(budget=200))[-2]


async def test_a_history_that_fits_is_not_cut_for_what_could_be_recalled(storage: Storage) -> None:
    session = await session_with_past(storage)
    await session_on(storage, "other").ingest("user", "something else")
    whole = await size_of_prompt(exact_prompt().history(session))
    rendered = (
        await exact_prompt().history(session).recall(session, "orders", tokens=400).render(budget=whole)
    )
    assert len(rendered.messages) == 31
    assert rendered.steps == ()


async def test_the_past_of_another_session_is_not_squeezed_by_a_history_that_fits(storage: Storage) -> None:
    session = await session_with_past(storage)
    other = session_on(storage, "other")
    await ingest_texts(other, *(f"Small talk {number} " + "words " * 20 for number in range(10)))
    built = exact_prompt().history(other).recall(session, "what did we choose for orders?", tokens=60)
    whole = await size_of_prompt(exact_prompt().history(other))
    rendered = await built.render(budget=whole + 5)
    assert "PostgreSQL" in texts_of_prompt(rendered)[-2]


async def test_last_shows_as_many_of_the_n_as_fit(storage: Storage) -> None:
    session = session_on(storage)
    await ingest_texts(session, *(f"message {number} " + "words " * 20 for number in range(30)))
    one = await size_of_prompt(exact_prompt().last(session, n=2)) - await size_of_prompt(
        exact_prompt().last(session, n=1)
    )
    rendered = (
        await exact_prompt()
        .last(session, n=20)
        .render(budget=await size_of_prompt(exact_prompt().last(session, n=20)) - 1)
    )
    assert len(rendered.messages) == 19
    assert one > 20


async def test_a_log_that_another_counter_counted_fills_its_room_all_the_same(storage: Storage) -> None:
    class Letters:
        name = "letters"

        def count(self, text: str) -> int:
            return len(text)

    session = session_on(storage, token_counter=Letters())
    await ingest_texts(session, *(f"message {number} says that all is well" for number in range(90)))
    rendered = await exact_prompt().section("talk", Prompt().history(session)).render(budget=500)
    assert texts_of_prompt(rendered)[-1].startswith("message 89 ")
    assert 225 <= rendered.tokens.upper_bound <= 500


async def test_recall_is_kept_longer_than_history_and_goes_before_what_is_required(storage: Storage) -> None:
    session = await session_with_past(storage)
    built = (
        exact_prompt()
        .system("S")
        .history(session)
        .recall(session, "what did we choose for orders?", tokens=90)
    )
    rendered = await built.render(budget=180)
    assert "PostgreSQL" in texts_of_prompt(rendered)[-2]
    assert 3 <= len(rendered.messages) < 31
    assert rendered.tokens.upper_bound <= 180
    tight = (
        await exact_prompt().system("S").recall(session, "what did we choose for orders?").render(budget=14)
    )
    assert texts_of_prompt(tight) == ["S"]


async def test_recalled_tokens_are_bounded(storage: Storage) -> None:
    session = session_on(storage)
    await ingest_texts(
        session, *(f"The orders service decision {number} is about databases." for number in range(50))
    )
    await session.close_episode()
    rendered = (
        await exact_prompt()
        .recall(session, "orders service decision", tokens=100)
        .user("U")
        .render(budget=5000)
    )
    (recalled,) = [one for one in rendered.manifest.messages if one.path == "prompt/recall"]
    assert 50 < recalled.tokens <= 140  # the frame comes on top


async def test_other_sessions_of_a_namespace_are_asked_unless_the_session_alone_is(storage: Storage) -> None:
    other = session_on(storage, "other", namespace="team")
    await other.ingest("user", "Decision: the licence costs 48,000 a year.")
    session = session_on(storage, namespace="team")
    await ingest_texts(session, "Good morning.")
    query = "what does the licence cost?"
    own = await exact_prompt().user("U").recall(session, query, scope="session").render(budget=300)
    assert not any("48,000" in text for text in texts_of_prompt(own))
    all_of_them = await exact_prompt().user("U").recall(session, query).render(budget=300)
    assert "48,000" in texts_of_prompt(all_of_them)[-2]
    assert await replay(all_of_them.manifest, storage, OpenAIChat("gpt-4o")) == all_of_them.payload


async def test_a_recall_of_nothing_and_a_blank_one_ask_no_embedder() -> None:
    embedder = FakeEmbedder()
    session = ACMS("a", open_storage("memory://"), embedder=embedder)
    await ingest_texts(session, "PostgreSQL for orders", "Redis for carts")
    await session.wait_pending()
    before = len(embedder.calls)
    assert texts_of_prompt(
        await exact_prompt().recall(session, "orders", tokens=0).user("U").render(budget=500)
    ) == ["U"]
    with pytest.raises(ValidationError) as caught:
        exact_prompt().recall(session, "  ")
    assert (caught.value.field, len(embedder.calls)) == ("query", before)
    await exact_prompt().recall(session, "orders", tokens=50).user("U").render(budget=500)
    assert len(embedder.calls) > before
    await session.close()


async def test_recall_takes_what_recall_takes(storage: Storage) -> None:
    session = await session_with_past(storage)
    found = await session.recall("PostgreSQL orders", token_budget=100, include_current_episode=False)
    built = (
        exact_prompt()
        .user("U")
        .recall(session, "PostgreSQL orders", exclude=[found[0].id], min_relevance=0.5)
    )
    rendered = await built.render(budget=500)
    assert texts_of_prompt(rendered) == ["U"]
    assert rendered.ledger.why_not(found[0].id).rule == "excluded"  # type: ignore[union-attr]
    for exclude in ("id", None, 5):
        with pytest.raises(ValidationError) as caught:
            exact_prompt().recall(session, "PostgreSQL", exclude=exclude)  # type: ignore[arg-type]
        assert caught.value.field == "exclude"
    for id in (None, 5, [found[0].id]):
        for ask in (rendered.ledger.why, rendered.ledger.why_not, found.ledger.why):
            with pytest.raises(ValidationError) as caught:
                ask(id)
            assert caught.value.field == "id"


# ── reasons ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_everything_has_a_reason(storage: Storage) -> None:
    session = await session_with_past(storage)
    kv = InMemoryKV()
    await kv.set("profile", {"name": "Sam"})
    registry = create_pin_registry(kv, namespace="user:123")
    await registry.pin("profile")
    await registry.pin("missing")
    built = (
        exact_prompt()
        .system("S")
        .pinned_kv(store=kv, namespace="user:123")
        .recall(session, "what did we choose for orders?", tokens=60)
        .last(session, n=5)
        .omit(LONG)
    )
    rendered = await built.render(budget=250)
    ledger = rendered.ledger
    assert ledger.why("prompt/system").included
    assert ledger.why("profile").rule == "pin"
    assert ledger.why_not("missing").rule == "missing"  # type: ignore[union-attr]
    assert ledger.why_not("prompt/omit").rule == "omit"  # type: ignore[union-attr]
    first = (await session.entries())[0]
    assert ledger.why(first.id).rule == "recall"
    assert ledger.why(session.last_receipt.message_id).rule == "history"
    assert await replay(rendered.manifest, storage, OpenAIChat("gpt-4o")) == rendered.payload


async def test_events_tell_what_happened_in_order_and_a_listener_that_fails_changes_nothing(
    storage: Storage,
) -> None:
    heard: list[Any] = []

    def fails(event: Any) -> None:
        heard.append(event)
        raise RuntimeError("not my day")

    session = await session_with_past(storage)
    built = exact_prompt(on_event=fails).system("S").history(session)
    built = built.omit("x " * 150, priority=4).omit("y " * 50, priority=5).user("U")
    also: list[Any] = []
    rendered = await built.render(budget=200, on_event=also.append)
    assert [type(event).__name__ for event in heard] == ["ScopeShrunk", "ScopeShrunk", "PromptRendered"]
    assert [event.path for event in heard[:2]] == ["prompt/omit-2", "prompt/omit"]
    assert all(event.tokens_after < event.tokens_before for event in heard[:2])
    assert heard == also
    assert heard[-1].upper_bound == rendered.tokens.upper_bound
    assert not any("Small talk" in repr(event) for event in heard)


async def test_the_same_prompt_renders_the_same_twice_and_eight_times_at_once(storage: Storage) -> None:
    session = await session_with_past(storage)
    kv = InMemoryKV()
    await kv.set("profile", {"name": "Sam"})
    await create_pin_registry(kv, namespace="n").pin("profile")
    heard: list[Any] = []
    built = (
        exact_prompt(on_event=heard.append)
        .system("S")
        .pinned_kv(store=kv, namespace="n")
        .recall(session, "what did we choose for orders?", tokens=80)
        .history(session)
    )
    once = await built.render(budget=200)
    assert (await built.render(budget=200)).payload == once.payload
    budgets = [200, 160, 240, 200, 300, 160, 300, 200]
    alone = [await built.render(budget=budget) for budget in budgets]
    heard.clear()
    together = await asyncio.gather(*(built.render(budget=budget) for budget in budgets))
    assert [one.payload for one in together] == [one.payload for one in alone]
    assert [one.steps for one in together] == [one.steps for one in alone]
    rendered = [event for event in heard if type(event).__name__ == "PromptRendered"]
    assert len({event.render_id for event in rendered}) == 8
    again = [await built.render(budget=budget) for budget in budgets]
    assert [one.outline.digest for one in together] == [one.outline.digest for one in again]


async def test_two_renders_are_compared(storage: Storage) -> None:
    session = await session_with_past(storage)
    built = exact_prompt().system("S " * 1200).history(session)
    first = await built.render(budget=5000)
    assert first.cache.predicted_tokens == 0
    assert first.cache.first_change is None
    assert "no earlier prompt" in first.cache.reason
    await session.ingest("assistant", "More.")
    for after in (first, first.manifest):
        second = await built.render(budget=5000, after=after)
        assert second.cache.predicted_tokens > 1000
        assert second.cache.first_change is None
    changed = await exact_prompt().system("T").history(session).render(budget=5000, after=second)
    assert changed.cache.first_change is not None
    assert changed.cache.first_change.path == "prompt/system"
    with pytest.raises(ValidationError):
        await built.render(after="before")  # type: ignore[arg-type]


async def test_a_report_teaches_the_count_and_checks_the_prediction() -> None:
    codec = OpenAIChat("gpt-5")
    built = Prompt(codec).system("S " * 1200).user("U")
    first = await built.render(budget=5000)
    usage = {"prompt_tokens": first.tokens.tokens + 3, "completion_tokens": 1, "total_tokens": 1}
    found = first.report(usage)
    assert found.within
    assert found.off_by == 3
    assert found.missed == ""
    second = await built.render(budget=5000, after=first)
    found = second.report({**usage, "prompt_tokens_details": {"cached_tokens": 0}})
    assert "none of the" in found.missed
    found = second.report(
        {**usage, "prompt_tokens_details": {"cached_tokens": second.cache.predicted_tokens}}
    )
    assert found.missed == ""


# ── what an earlier library got wrong ───────────────────────────────────────────────────────────────────────────────


async def test_defect_2_a_cap_is_a_cap_whatever_the_budget() -> None:
    """One block of 300 words under a cap of 50 is cut to 50, not shown whole and not dropped."""
    for budget in (None, 5000):
        rendered = await exact_prompt().system("S").truncate(LONG, tokens=50).render(budget=budget)
        cut = rendered.manifest.messages[1]
        assert 40 <= cut.tokens <= 50
    many = await exact_prompt().truncate([f"message {number}" for number in range(20)], tokens=100).render()
    assert sum(one.tokens for one in many.manifest.messages) <= 100
    assert len(many.messages) > 10


async def test_defect_3_a_strategy_without_progress_does_not_end_the_render() -> None:
    stuck = Scope(
        id="stuck",
        children=(Scope(id="empty", strategy=Omit(), priority=9),),
        priority=8,
        strategy=Omit(),
    )
    built = exact_prompt().user("U").raw(stuck).omit(LONG, priority=1)
    assert texts_of_prompt(await built.render(budget=20)) == ["U"]


@pytest.mark.parametrize("budget", range(20, 120, 7))
async def test_defect_5_no_budget_splits_a_call_from_its_answers(storage: Storage, budget: int) -> None:
    session = session_on(storage)
    await ingest_texts(session, "How full are the disks?")
    calls = [{"id": f"c{number}", "name": "disk", "arguments": "{}"} for number in range(3)]
    await session.ingest("assistant", "", tool_calls=calls)
    for number in (2, 0, 1):
        await session.ingest("tool", f"{number} " + "full " * 10, tool_call_id=f"c{number}")
    await ingest_texts(session, "thanks")
    for built in (
        exact_prompt().history(session),
        exact_prompt().last(session, n=3),
        exact_prompt().user("U").truncate(session, tokens=60),
        exact_prompt().user("U").omit([session]),
    ):
        try:
            rendered = await built.render(budget=budget)
        except FitError:
            continue
        open_calls: list[str] = []
        for message in rendered.messages:
            if message.role is Role.TOOL:
                (answer,) = (part.call_id for part in message.parts if isinstance(part, ToolResult))
                open_calls.remove(answer)
            else:
                assert not open_calls
                open_calls = [part.call_id for part in message.parts if isinstance(part, ToolCall)]
        assert not open_calls


async def test_defect_8_a_listener_shared_by_renders_hears_every_end() -> None:
    heard: list[Any] = []
    built = exact_prompt(on_event=heard.append).user("U").omit(LONG)
    await asyncio.gather(*(built.render(budget=20) for _ in range(8)))
    ids = [event.render_id for event in heard]
    assert len(set(ids)) == 8
    assert sorted(ids.count(one) for one in set(ids)) == [2] * 8


async def test_defect_9_what_may_shrink_goes_before_what_is_required() -> None:
    """An omit goes first without a stated priority."""
    rendered = await exact_prompt().omit(LONG).system("S").render(budget=20)
    assert texts_of_prompt(rendered) == ["S"]


# ── the front door ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A model server in a loop of its own, so that a client that blocks is answered."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    found = ModelServer(say=lambda body: "Here is the plan.")
    asyncio.run_coroutine_threadsafe(found.__aenter__(), loop).result()
    yield found
    asyncio.run_coroutine_threadsafe(found.__aexit__(None, None, None), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def test_the_front_door_runs_as_written(
    storage: Storage, server: ModelServer, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    import openai

    session = await session_with_past(storage)
    client = openai.OpenAI(api_key="k", base_url=server.url)

    from acms.kv import SQLiteKV

    kv = SQLiteKV("pins.db")
    await kv.set("profile", {"name": "Sam", "timezone": "America/Los_Angeles"})
    await create_pin_registry(kv, namespace="user:123").pin("profile", label="User profile", priority=10)

    rendered = await (
        Prompt(OpenAIChat("gpt-5"))
        .system("You are the orders team's assistant.")
        .pinned_kv(store=kv, namespace="user:123")
        .recall(session, "what did we choose for orders?", tokens=2000, priority=2)
        .last(session, n=20)
        .user("Write the migration plan.")
        .render(budget=8000)
    )
    response = client.chat.completions.create(model="gpt-5", **rendered.payload)
    client.close()
    assert rendered.tokens.upper_bound <= 8000
    entries = await session.entries()
    assert rendered.ledger.why(entries[0].id).rule == "recall"
    assert rendered.ledger.why_not(entries[-1].id) is None
    assert rendered.cache.predicted_tokens == 0
    assert rendered.cache.first_change is None
    assert rendered.report(response.usage).usage.input_tokens == 1

    assert server.calls[0].body["messages"] == rendered.payload["messages"]
    roles = [message["role"] for message in rendered.payload["messages"]]
    assert roles == ["system", "developer", *["user"] * 20, "user", "user"]
    assert rendered.payload["messages"][1]["content"] == (
        'Pinned context:\n- profile (User profile)\n  {"name":"Sam","timezone":"America/Los_Angeles"}'
    )
    await kv.aclose()


def test_groups_are_messages_the_caller_keeps_together() -> None:
    one = PromptMessage(role=Role.USER, parts=(Text("one"),))
    assert exact_prompt().raw(MessageGroup((one, one))).steps


async def test_a_question_that_is_stored_and_written_is_warned_of() -> None:
    async with ACMS("twice", open_storage("memory://")) as session:
        await session.ingest("user", "Which floor is it?")
        history = Prompt(OpenAIChat("gpt-4o")).history(session)
        once = await history.recall(session, "Which floor is it?").render(budget=200)
        twice = (
            await history.recall(session, "Which floor is it?").user("Which floor is it?").render(budget=200)
        )
    assert once.warnings == ()
    assert any(warning.startswith("the question is sent twice") for warning in twice.warnings)
