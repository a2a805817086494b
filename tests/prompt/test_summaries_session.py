"""Sessions summarised inside a prompt: no message read twice, none lost, nothing shown that was taken back."""

from __future__ import annotations

import re
from typing import Any

import pytest

from acms import ACMS, FitError, ValidationError, open_storage
from acms.codecs import OpenAIChat
from acms.kv import InMemoryKV
from acms.pins import create_pin_registry
from acms.prompt import Prompt, Rendered
from acms.prompt.summaries import Summaries
from acms.prompt.summary_coverage import parse_watermark
from acms.storage import MemoryStorage
from tests.prompt.test_summaries import ID, Scribe, word_for_number
from tests.support.talk import Storage, session_on, tool_turn

CODEC = OpenAIChat("gpt-4o")
TAIL = " and so on" * 6


def summary_prompt(session: Any, store: InMemoryKV, scribe: Scribe | None, **given: Any) -> Prompt:
    return (
        Prompt(CODEC)
        .system("Be brief.")
        .summary(session, id=ID, store=store, summarizer=scribe, tokens=60, **given)
        .user("Go on.")
    )


async def say_messages(session: ACMS, count: int, start: int = 0) -> list[str]:
    return [
        await session.ingest(
            "assistant" if number % 2 else "user", f"message {word_for_number(number)}{TAIL}"
        )
        for number in range(start, start + count)
    ]


def shown_names(rendered: Rendered) -> list[str]:
    """The messages of the history, by name."""
    return [
        match[1]
        for message in rendered.messages
        if (match := re.match(r"message (\w+)", message.text)) is not None
    ]


def names_read(scribe: Scribe) -> list[str]:
    """The messages a summarizer has read, by name."""
    found = [turn for request in scribe.requests for turn in request.turns if not turn.summary]
    return [turn.text.split()[1] for turn in found]


@pytest.fixture
def store() -> InMemoryKV:
    return InMemoryKV()


@pytest.fixture
def scribe() -> Scribe:
    return Scribe()


async def test_of_a_growing_session_every_message_is_shown_or_was_read_once(
    storage: Storage, store: InMemoryKV, scribe: Scribe
) -> None:
    async with session_on(storage) as session:
        for turn in range(60):
            await say_messages(session, 2, start=2 * turn)
            rendered = await summary_prompt(session, store, scribe).render(budget=700)
            assert rendered.tokens.upper_bound <= 700
            names = [word_for_number(number) for number in range(2 * turn + 2)]
            assert [*names_read(scribe), *shown_names(rendered)] == names
            assert rendered.warnings == ()
        assert len(scribe.requests) <= 15
        for number, request in enumerate(scribe.requests[1:], 1):
            assert request.turns[0].text == f"summary number {number}"


async def test_a_long_log_is_not_read_again(store: InMemoryKV, scribe: Scribe) -> None:
    async with session_on(MemoryStorage()) as session:
        await say_messages(session, 300)
        first = await summary_prompt(session, store, scribe).render(budget=700)
        assert [*names_read(scribe), *shown_names(first)] == [
            word_for_number(number) for number in range(300)
        ]
        run = Summaries(store, summarizer=scribe).run(ID, CODEC.counter, tokens=60)
        loaded, gathered = await run.of_log(session.internals, room=500)
        assert not gathered.whole
        assert len(gathered.units) < 60
        assert loaded.strategy.covers == 1  # the stored text, in place of all that it stands for
        await say_messages(session, 4, start=300)
        again = await summary_prompt(session, store, scribe).render(budget=700)
        assert len(scribe.requests) == 1
        assert [*names_read(scribe), *shown_names(again)] == [
            word_for_number(number) for number in range(304)
        ]
        assert again.messages[: len(first.messages) - 1] == first.messages[:-1]


async def test_a_session_that_fits_is_shown_as_a_whole(store: InMemoryKV, scribe: Scribe) -> None:
    """Also when a smaller budget has once made a summary of it."""
    async with session_on(MemoryStorage()) as session:
        await say_messages(session, 40)
        await summary_prompt(session, store, scribe).render(budget=500)
        assert len(scribe.requests) == 1
        for budget in (5_000, None):
            rendered = await summary_prompt(session, store, scribe).render(budget=budget)
            assert shown_names(rendered) == [word_for_number(number) for number in range(40)]
            assert "<summary>" not in str(rendered.payload)


@pytest.mark.parametrize("how", ["erase", "replace", "retract"])
async def test_what_was_taken_back_is_not_in_a_summary_any_more(
    storage: Storage, store: InMemoryKV, scribe: Scribe, how: str
) -> None:
    async with session_on(storage) as session:
        ids = await say_messages(session, 60)
        await summary_prompt(session, store, scribe).render(budget=500)
        if how == "erase":
            await session.erase(ids[3])
        elif how == "replace":
            await session.replace(ids[3], "message other" + TAIL)
        else:
            await session.retract(ids[3])
        rendered = await summary_prompt(session, store, scribe).render(budget=500)
        assert len(scribe.requests) == 2
        assert not scribe.requests[1].turns[0].summary
        again = [turn.text.split()[1] for turn in scribe.requests[1].turns]
        assert word_for_number(3) not in again[:5]
        assert ("other" in again) == (how == "replace")
        assert [line.rule for line in rendered.manifest.left if ID in line.ids] == ["stale"]
        assert "summary number 2" in str(rendered.payload)
        assert "summary number 1" not in str(rendered.payload)


async def test_what_is_rewritten_behind_it_costs_one_look_at_the_whole(
    store: InMemoryKV, scribe: Scribe
) -> None:
    async with session_on(MemoryStorage()) as session:
        await say_messages(session, 300)
        ids = await say_messages(session, 3, start=300)
        await summary_prompt(session, store, scribe).render(budget=500)
        before = await store.get(ID)
        await session.retract(ids[1])
        rendered = await summary_prompt(session, store, scribe).render(budget=500)
        assert len(scribe.requests) == 1
        assert word_for_number(301) not in shown_names(rendered)
        after = await store.get(ID)
        assert before is not None
        assert after is not None
        old, new = parse_watermark(before.metadata), parse_watermark(after.metadata)
        assert old is not None
        assert new is not None
        assert (after.data, new.atoms, new.chain) == (before.data, old.atoms, old.chain)
        assert new.stamp != old.stamp
        run = Summaries(store, summarizer=scribe).run(ID, CODEC.counter, tokens=60)
        assert not (await run.of_log(session.internals))[1].whole  # known again without reading all


async def test_one_that_is_too_long_now_costs_one_look_at_the_whole(
    store: InMemoryKV, scribe: Scribe
) -> None:
    async with session_on(MemoryStorage()) as session:
        await say_messages(session, 300)
        scribe.say = lambda request: "and so on " * 18
        await summary_prompt(session, store, scribe).render(budget=500)
        scribe.say = lambda request: "a short one"
        run = Summaries(store, summarizer=scribe).run(ID, CODEC.counter, tokens=20)
        loaded, gathered = await run.of_log(session.internals)
        assert gathered.whole
        assert (loaded.strategy.text, loaded.strategy.covers) == ("", 0)
        assert "more than 20 tokens" in run.reason
        made = Prompt(CODEC).summary(session, id=ID, store=store, summarizer=scribe, tokens=20).user("Go on.")
        assert "a short one" in str((await made.render(budget=500)).payload)
        assert len(scribe.requests[-1].turns) > 250


async def test_two_summaries_of_one_prompt_have_names_of_their_own(store: InMemoryKV, scribe: Scribe) -> None:
    async with session_on(MemoryStorage()) as session, session_on(MemoryStorage(), "other") as other:
        await say_messages(session, 4)
        await say_messages(other, 4)
        both = summary_prompt(session, store, scribe)
        with pytest.raises(ValidationError, match="two summaries of one prompt are named") as caught:
            await both.summary(other, id=ID, store=store, summarizer=scribe).render(budget=500)
        assert caught.value.field == "id"
        await both.summary(other, id="other", store=store, summarizer=scribe).render(budget=500)


async def test_a_fork_goes_on_from_the_summary_of_its_parent(store: InMemoryKV, scribe: Scribe) -> None:
    storage = MemoryStorage()
    async with session_on(storage) as session:
        await say_messages(session, 60)
        await summary_prompt(session, store, scribe).render(budget=500)
        async with await session.fork() as fork:
            await say_messages(fork, 1, start=60)
            rendered = await summary_prompt(fork, store, scribe).render(budget=500)
            assert len(scribe.requests) == 1
            assert [*names_read(scribe), *shown_names(rendered)] == [
                word_for_number(number) for number in range(61)
            ]
        async with await session.fork(at=10) as short:
            await say_messages(short, 30, start=100)
            await summary_prompt(short, store, scribe).render(budget=500)
            assert len(scribe.requests) == 2
            assert names_read(scribe)[-3:] != names_read(scribe)[:3]
            assert not scribe.requests[1].turns[0].summary


async def test_an_answer_that_comes_late_is_not_lost(store: InMemoryKV, scribe: Scribe) -> None:
    """The call is in the summary, its answer was not there yet."""
    async with session_on(MemoryStorage()) as session:
        await tool_turn(session, "c1", None, "message start" + TAIL)
        await say_messages(session, 60)
        await summary_prompt(session, store, scribe).render(budget=500)
        assert len(scribe.requests) == 1
        await session.ingest("tool", "the late answer", tool_call_id="c1")
        await say_messages(session, 1, start=60)
        rendered = await summary_prompt(session, store, scribe).render(budget=500)
        told = [turn.text for request in scribe.requests[1:] for turn in request.turns]
        assert "the late answer" in told or "the late answer" in str(rendered.payload)


async def test_marked_messages_and_blocked_ones_are_treated_as_in_a_compaction(store: InMemoryKV) -> None:
    async with session_on(MemoryStorage()) as session:
        await session.ingest("user", "We use PostgreSQL for orders.", markers=["decision"])
        await session.ingest("user", "My card is 4111-2222.", privacy="block")
        await say_messages(session, 60)
        rendered = await summary_prompt(session, store, None).render(budget=500)
        assert '(decision): "We use PostgreSQL for orders."' in str(rendered.messages[1].text)
        assert "4111" not in str(await Summaries(store).get(ID))


async def test_a_render_that_fails_stores_nothing(store: InMemoryKV, scribe: Scribe) -> None:
    async with session_on(MemoryStorage()) as session:
        await say_messages(session, 60)
        with pytest.raises(FitError):
            await summary_prompt(session, store, scribe).system("rule " * 500).render(budget=400)
        assert await store.get(ID) is None


async def test_a_session_is_summarised_now(store: InMemoryKV, scribe: Scribe) -> None:
    summaries = Summaries(store, summarizer=scribe)
    async with session_on(MemoryStorage()) as session:
        with pytest.raises(ValidationError, match="no messages"):
            await summaries.write(ID, session)
        await say_messages(session, 50)
        assert await summaries.write(ID, session, tokens=60) == "summary number 1"
        assert await summaries.write(ID, session, tokens=60) == "summary number 1"
        await say_messages(session, 3, start=50)
        assert await summaries.write(ID, session, tokens=60) == "summary number 2"
        assert names_read(scribe) == [word_for_number(number) for number in range(53)]
        await summary_prompt(session, store, scribe).render(budget=500)
        assert len(scribe.requests) == 2
        assert await summaries.write("plain", ["one" + TAIL, {"role": "assistant", "content": "two" + TAIL}])
        read_before = len(names_read(scribe))
        await summaries.write("both", [session, f"message more{TAIL}"])
        assert names_read(scribe)[read_before:] == [
            *(word_for_number(number) for number in range(53)),
            "more",
        ]
        with pytest.raises(ValidationError, match="only sessions and messages"):
            await summaries.write("x", Prompt().recall(session, "what?"))


# ── pinned ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_pinned_summary_appears_once(store: InMemoryKV, scribe: Scribe) -> None:
    pins = create_pin_registry(store, namespace="user:1")
    await store.set("profile", {"name": "Sam"})
    await pins.pin("profile")
    async with session_on(MemoryStorage()) as session:
        await say_messages(session, 60)

        def whole(budget: int | None) -> Any:
            made = Prompt(CODEC).pinned_kv(store=store, registry=pins, namespace="user:1")
            return made.summary(session, id=ID, store=store, summarizer=scribe, tokens=60, pin=pins).render(
                budget=budget
            )

        for rendered in [await whole(500), await whole(500)]:
            assert str(rendered.payload).count("summary number 1") == 1
            assert "Sam" in rendered.messages[0].text
        again = await whole(500)
        assert [line.rule for line in again.manifest.left if ID in line.ids] == ["once"]
        assert [pin.key for pin in await pins.list()] == [ID, "profile"]
        assert "summary number" not in str((await whole(None)).payload)  # all that it stands for is there

        alone = await Prompt(CODEC).pinned_kv(store=store, registry=pins, namespace="user:1").render()
        assert "summary number 1" in alone.messages[0].text  # no history at all: the pin shows it

        inside = Prompt().summary(session, id=ID, store=store, summarizer=scribe, tokens=60, pin=pins)
        omitted = await (
            Prompt(CODEC)
            .pinned_kv(store=store, registry=pins, namespace="user:1")
            .omit(inside)
            .render(budget=45)
        )
        (only,) = omitted.messages
        assert "summary number" in only.text


async def test_another_value_under_the_same_name_stays_pinned(store: InMemoryKV, scribe: Scribe) -> None:
    other = InMemoryKV()
    pins = create_pin_registry(other, namespace="user:1")
    await other.set(ID, "a ticket to Ulm")
    await pins.pin(ID)
    async with session_on(MemoryStorage()) as session:
        await say_messages(session, 60)
        for _ in range(2):
            rendered = await (
                Prompt(CODEC)
                .pinned_kv(store=other, registry=pins, namespace="user:1")
                .summary(session, id=ID, store=store, summarizer=scribe, tokens=60)
                .render(budget=500)
            )
            assert "a ticket to Ulm" in rendered.messages[0].text
            assert "summary number 1" in rendered.messages[1].text


async def test_the_store_of_the_log_can_hold_its_summary(tmp_path: Any, scribe: Scribe) -> None:
    from acms.kv import open_kv

    url = f"sqlite:///{tmp_path}/memory.db"
    for turn in range(2):
        async with open_storage(url) as storage, open_kv(url) as kv, session_on(storage) as session:
            await say_messages(session, 1 if turn else 60)
            made = Prompt(CODEC).summary(session, id=ID, store=kv, summarizer=scribe, tokens=60)
            assert "summary number 1" in str((await made.render(budget=500)).payload)
    assert len(scribe.requests) == 1
