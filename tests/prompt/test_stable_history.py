"""What a request showed stays where it was: random days of an agent, in several processes, with all that can happen."""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from acms import (
    ACMS,
    ACMSConfig,
    CompactionPolicy,
    FitError,
    Reasoning,
    State,
    Text,
    TokenBudgetExceededError,
    ToolCall,
    open_storage,
)
from acms.codecs import AnthropicMessages, Gemini, OpenAIChat, OpenAIResponses
from acms.kv import InMemoryKV
from acms.pins import create_pin_registry
from acms.ports import Codec, HasRecords
from acms.prompt import Prompt, Rendered
from acms.providers.tokens import default_counter
from acms.text import condense
from tests.providers import validators

SYSTEM = "You keep the stock of a workshop."
THINGS = "drill lathe saw clamp gauge anvil chisel vice plane rasp bolt spring lever crank valve".split()
PLACES = "shelf drawer crate rack cabinet bench attic loft".split()
COLOURS = "amber teal maroon ivory olive coral indigo".split()


STOCK = {"name": "stock", "description": "Counts what is there."}


def make_codec() -> AnthropicMessages:
    return AnthropicMessages(
        "claude-opus-5-5", cache_history=False
    )  # refuses a thinking block behind a changed prefix


def random_sentence(rng: random.Random) -> str:
    thing, place, colour = rng.choice(THINGS), rng.choice(PLACES), rng.choice(COLOURS)
    return (
        f"The {colour} {thing} number {rng.randint(100, 999)} lies in {place} {rng.randint(10, 99)}, I think."
    )


def random_table(rng: random.Random) -> str:
    return "\n".join(
        f"row {n} | {rng.choice(THINGS)} | {rng.randint(1000, 9999)}" for n in range(rng.randint(2, 60))
    )


def payload_in_reading_order(payload: Any) -> list[Any]:
    """Return a request in the order in which it is read: tools, system, messages."""
    return [payload.get("tools"), payload.get("system"), *payload["messages"]]


class Day:
    """A conversation, the requests that were sent in it, and what a provider would hold against them."""

    def __init__(self, url: str, seed: int, budget: int) -> None:
        self.rng = random.Random(seed)
        self.url, self.budget = url, budget
        self.session = self.opened()
        self.query = "nothing yet"
        #: Requests by the signature of the reasoning that answered them.
        self.answered: dict[str, list[Any]] = {}
        self.ids: list[str] = []
        self.gone: list[str] = []
        self.kept = self.dropped = 0
        #: Whether the model said its last word of a turn.
        self.over = False

    def opened(self, name: str = "day") -> ACMS:
        config = ACMSConfig(compaction=CompactionPolicy(budget=4 * self.budget))
        return ACMS(name, open_storage(self.url), None, config=config)

    def prompt(self, session: ACMS, query: str) -> Prompt:
        made = Prompt(make_codec()).system(SYSTEM).history(session).recall(session, query)
        return made.user(f"By the way: {query}") if self.over else made

    async def sent(self) -> Rendered:
        """Render as a process would, and check all that must hold of every request."""
        rendered = await self.prompt(self.session, self.query).render(budget=self.budget)
        assert rendered.tokens.upper_bound <= self.budget
        validators.anthropic(rendered.payload, prefill=True)
        text = json.dumps(rendered.payload, ensure_ascii=False)
        assert not [one for one in self.gone if one in text]
        self.judge(rendered)
        async with self.opened() as other:  # another process, with nothing in memory
            again = await self.prompt(other, self.query).render(budget=self.budget)
            assert again.payload == rendered.payload
        return rendered

    def judge(self, rendered: Rendered) -> None:
        """Refuse reasoning behind another prefix than that of the request it answered, as providers do."""
        request = payload_in_reading_order(rendered.payload)
        seen: set[str] = set()
        for place, message in enumerate(request):
            if not isinstance(message, dict) or not isinstance(message.get("content"), list):
                continue
            for block in message["content"]:
                signature = block.get("signature")
                if signature:
                    seen.add(signature)
                    assert request[:place] == self.answered[signature]
        for signature, earlier in self.answered.items():
            thought = "signature" in json.dumps(earlier)  # without, a new epoch may begin like it by accident
            whole = thought and request[: len(earlier)] == earlier and len(request) > len(earlier)
            self.kept += signature in seen
            self.dropped += whole and signature not in seen

    async def answer(self, rendered: Rendered, *, calls: bool) -> None:
        """Let the model think and say something, or call a tool."""
        signature = f"sig{len(self.answered)}"
        self.answered[signature] = payload_in_reading_order(rendered.payload)
        parts: list[Any] = [
            Reasoning(f"Hm, {random_sentence(self.rng)}", signature),
            Text(random_sentence(self.rng)),
        ]
        if not calls:
            self.ids.append(await self.session.ingest("assistant", parts=parts))
            return
        call = f"call_{len(self.ids)}"
        parts.append(ToolCall(call, "stock", "{}"))
        await self.session.ingest("assistant", parts=parts)
        await self.session.ingest("tool", random_table(self.rng), tool_call_id=call)

    async def turn(self) -> None:
        text, self.over = random_sentence(self.rng), False
        self.ids.append(await self.session.ingest("user", text))
        self.query = " ".join(self.rng.sample(text.split(), 4))
        for _ in range(self.rng.choice((0, 0, 1, 3))):
            await self.answer(await self.sent(), calls=True)
        await self.answer(await self.sent(), calls=False)
        self.over = True

    async def event(self) -> None:
        """Let something happen between two turns."""
        what = self.rng.choice(("restart", "fork", "retract", "replace", "erase", "aside", "wait", "compact"))
        if what == "restart":
            await self.session.close()
            self.session = self.opened()
        elif what == "fork":
            await self.forked()
        elif what == "aside":
            self.query = random_sentence(self.rng)
            await self.sent()
        elif what == "wait":
            await self.session.wait_pending()
        elif what == "compact":
            await self.session.wait(await self.session.compact())
        elif self.ids:
            await self.rewritten(what, self.ids.pop(self.rng.randrange(len(self.ids))))

    async def forked(self) -> None:
        """A fork at the head goes on with the very requests of its parent."""
        here = await self.prompt(self.session, self.query).render(budget=self.budget)
        child = await self.session.fork(session_id=f"child {len(self.answered)}")
        there = await self.prompt(child, self.query).render(budget=self.budget)
        assert there.payload == here.payload
        await child.close()

    async def rewritten(self, what: str, id: str) -> None:
        entry = await self.session.get(id)
        if entry.state is not State.LIVE:
            return
        text = next((part.text for part in entry.parts if isinstance(part, Text)), entry.content)
        if what == "retract":
            await self.session.retract(id)
        elif what == "replace":
            await self.session.replace(id, f"Instead of that: {random_sentence(self.rng)}")
        else:
            await self.session.erase(id)
            self.gone.append(text)

    async def run(self, turns: int) -> None:
        for _ in range(turns):
            await self.turn()
            if self.rng.random() < 0.3:
                await self.event()
        await self.session.close()


@pytest.mark.parametrize("seed", range(3))
async def test_requests_stay_valid_whatever_happens(tmp_path: Path, seed: int) -> None:
    day = Day(f"sqlite:///{tmp_path}/day.db", seed, (1500, 3000, 8000)[seed % 3])
    await day.run(14)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4, 5, *range(100, 300)])
async def test_requests_stay_valid_through_thousands_of_turns(tmp_path: Path, seed: int) -> None:
    day = Day(f"sqlite:///{tmp_path}/day.db", seed, (1500, 3000, 8000)[seed % 3])
    await day.run(60)


async def test_a_model_keeps_its_reasoning_while_a_request_only_grows(tmp_path: Path) -> None:
    day = Day(f"sqlite:///{tmp_path}/day.db", 1, 8000)
    kept = 0
    for _ in range(40):
        day.ids.append(await day.session.ingest("user", random_sentence(day.rng)))
        day.query = random_sentence(day.rng)
        rendered = await day.sent()
        kept += "signature" in json.dumps(rendered.payload)
        await day.answer(rendered, calls=False)
    await day.session.close()
    assert not day.dropped
    assert kept >= 30


class Shifting(Day):
    """A conversation in whose prompt something else than the history changes from turn to turn."""

    def __init__(self, url: str, what: str) -> None:
        super().__init__(url, 7, 6000)
        self.what = what
        self.turns = 0
        self.others = ACMS("others", open_storage("memory://"), None)
        self.kv = InMemoryKV()

    def prompt(self, session: ACMS, query: str) -> Prompt:
        made = Prompt(make_codec()).system(SYSTEM)
        if self.what == "tools":
            made = made.tools([STOCK | {"description": f"Counts what is there, by {self.turns // 8}."}])
        if self.what == "pins":
            made = made.pinned_kv(store=self.kv, namespace="day", priority=9)
        made = made.history(session).recall(session, query)
        if self.what == "others":
            made = made.recall(self.others, query, tokens=200)
        return made.user(query) if self.what == "name" else made

    async def run(self, turns: int) -> None:
        for _ in range(60):
            await self.others.ingest("user", random_sentence(self.rng))
        await create_pin_registry(self.kv, namespace="day").pin("rules")
        await self.kv.set("rules", "Put back what you took. " * 60)
        for self.turns in range(turns):
            self.query = random_sentence(self.rng)
            if self.what != "name":
                await self.session.ingest("user", self.query)
            rendered = await self.sent()
            if self.what == "name":  # it is shown with the name from now on
                await self.session.ingest("user", self.query, actor_id="sam")
            await self.answer(rendered, calls=False)
        await self.session.close()
        await self.others.close()


@pytest.mark.parametrize(
    ("what", "kept"), [("tools", True), ("pins", True), ("others", False), ("name", False)]
)
async def test_reasoning_is_not_sent_behind_what_changed_beside_the_history(
    tmp_path: Path, what: str, kept: bool
) -> None:
    day = Shifting(f"sqlite:///{tmp_path}/day.db", what)
    await day.run(25)
    assert bool(day.kept) == kept


async def test_a_prompt_renders_in_a_store_that_is_only_read(tmp_path: Path) -> None:
    async with ACMS("read", open_storage(f"sqlite:///{tmp_path}/read.db"), None) as session:
        rng = random.Random(8)
        for _ in range(90):
            await session.ingest("user", random_sentence(rng))
    async with ACMS("read", open_storage(f"sqlite:///{tmp_path}/read.db?mode=ro"), None) as session:
        rendered = (
            await Prompt(make_codec()).history(session).recall(session, "the lathe").render(budget=2000)
        )
        assert rendered.use.recalled
        assert not rendered.warnings


async def test_a_tool_loop_asks_nothing_twice_and_moves_nothing(tmp_path: Path) -> None:
    async with ACMS("loop", open_storage(f"sqlite:///{tmp_path}/loop.db"), None) as session:
        rng = random.Random(3)
        for _ in range(80):
            await session.ingest("user", random_sentence(rng))
            await session.ingest("assistant", random_sentence(rng))
        await session.ingest("user", "Where is the teal lathe?")
        earlier: list[Any] = []
        version = 0
        for call in range(5):
            prompt = Prompt(OpenAIChat("gpt-4o")).system(SYSTEM).tools([STOCK]).history(session)
            rendered = await prompt.recall(session, "Where is the teal lathe?").render(budget=2000)
            found = rendered.payload["messages"]
            assert found[: len(earlier)] == earlier
            if earlier:
                assert (await session.get_session_stats()).version == version
            blocks = [
                place for place, one in enumerate(found) if str(one["content"]).startswith("<recalled>")
            ]
            assert [found[place + 1]["content"] for place in blocks] == ["Where is the teal lathe?"]
            earlier = found
            calls = [{"id": f"c{call}", "name": "stock", "arguments": "{}"}]
            await session.ingest("assistant", "", tool_calls=calls)
            await session.ingest("tool", f"{call} lathes", tool_call_id=f"c{call}")
            version = (await session.get_session_stats()).version


@pytest.mark.parametrize("between", [4, 80])
async def test_a_tool_loop_fills_its_room_and_finds_it_when_turns_lie_far_apart(between: int) -> None:
    rng = random.Random(4)
    moved, used = 0, list[float]()
    async with ACMS("loops", open_storage("memory://"), None) as session:
        for number in range(14):
            for _ in range(between if number > 3 else 40):
                await session.ingest("user", random_sentence(rng))
                await session.ingest("assistant", random_sentence(rng))
            query = f"Where is the {rng.choice(COLOURS)} {rng.choice(THINGS)}?"
            await session.ingest("user", query)
            earlier: list[Any] = []
            for call in range(3):
                made = Prompt(OpenAIChat("gpt-4o")).system(SYSTEM).history(session)
                rendered = await made.recall(session, query).render(budget=2000)
                found = rendered.payload["messages"]
                if number > 3:
                    moved += found[: len(earlier)] != earlier
                    used.append(rendered.tokens.upper_bound / 2000)
                earlier = found
                calls = [{"id": f"c{number}-{call}", "name": "stock", "arguments": "{}"}]
                await session.ingest("assistant", "", tool_calls=calls)
                await session.ingest(
                    "tool", f"{call} there. {random_sentence(rng)}", tool_call_id=f"c{number}-{call}"
                )
            await session.ingest("assistant", random_sentence(rng))
    assert not moved
    assert median(used) >= 0.75


async def test_an_epoch_for_which_little_is_recalled_begins_with_more_of_the_history() -> None:
    rng = random.Random(8)
    async with ACMS("little", open_storage("memory://"), None) as session:
        for _ in range(60):
            await session.ingest("user", random_sentence(rng))
            await session.ingest("assistant", random_sentence(rng))
        base = Prompt(OpenAIChat("gpt-4o")).system(SYSTEM).history(session)
        asked = ("Where do the amber drill and the teal lathe lie?", "Thanks a lot.")
        for query in asked:
            await session.ingest("user", query)
            rendered = await base.recall(session, query).render(budget=1000)
            await session.ingest("assistant", random_sentence(rng))
        assert not rendered.use.recalled
        assert 350 < rendered.use.history < 450  # the rest is for the turns to come
        assert asked[0] in str(rendered.payload)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("budget", [300, 500, 1000])
async def test_the_exchange_before_a_question_is_always_shown(budget: int, stored: bool) -> None:
    rng = random.Random(4)
    async with ACMS("exchange", open_storage("memory://"), None) as session:
        for _ in range(40):
            query = random_sentence(rng)
            prompt = Prompt(OpenAIChat("gpt-4o")).system(SYSTEM).history(session).recall(session, query)
            newest = [message.content for message in await session.window(budget=10_000)][-2:]
            if stored:
                await session.ingest("user", query)
            rendered = await (prompt if stored else prompt.user(query)).render(budget=budget)
            assert all(content in str(rendered.payload) for content in newest)
            if not stored:
                await session.ingest("user", query)
            await session.ingest("assistant", random_sentence(rng))


@pytest.mark.parametrize(("offered", "least"), [(False, 0.85), (True, 0.6)])
async def test_what_tools_took_before_keeps_no_answer_out(offered: bool, least: float) -> None:
    rng = random.Random(5)
    async with ACMS("beside", open_storage("memory://"), None) as session:
        for _ in range(60):
            await session.ingest("user", random_sentence(rng))
            await session.ingest("assistant", random_sentence(rng))
        await session.ingest("user", "What do we have?")
        for number in range(9):
            calls = [{"id": f"c{number}", "name": "stock", "arguments": "{}"}]
            await session.ingest("assistant", "", tool_calls=calls)
            await session.ingest(
                "tool", " ".join(random_sentence(rng) for _ in range(4)), tool_call_id=f"c{number}"
            )
        await session.ingest("assistant", "Enough.")
        asked = "Where do the amber drill and the teal lathe lie?"
        made = Prompt(OpenAIChat("gpt-4o")).system(SYSTEM).history(session).recall(session, asked).user(asked)
        rendered = await made.tools([STOCK] if offered else []).render(budget=1000)
        assert rendered.tokens.upper_bound >= 1000 * least


@pytest.mark.parametrize(("changing", "most"), [(False, 0.2), (True, 0.35)])
@pytest.mark.parametrize(("budget", "steps"), [(4000, 30), pytest.param(8000, 60, marks=pytest.mark.slow)])
async def test_a_turn_longer_than_the_room_keeps_its_question_and_mostly_grows(
    changing: bool, most: float, budget: int, steps: int
) -> None:
    rng = random.Random(11)
    async with ACMS("long", open_storage("memory://"), None) as session:
        await session.ingest("system", "Never delete a row.")
        for _ in range(30):
            await session.ingest("user", random_sentence(rng))
            await session.ingest("assistant", random_sentence(rng))
        question = "Count everything that is amber and say which shelf is full."
        await session.ingest("user", question)
        earlier: list[Any] = []
        changed = 0
        for call in range(steps):
            made = Prompt(OpenAIChat("gpt-4o")).tools([STOCK]).history(session)
            query = random_sentence(rng) if changing else question
            rendered = await made.recall(session, query).render(budget=budget)
            found = rendered.payload["messages"]
            assert found[0] == {"role": "system", "content": "Never delete a row."}
            assert [one for one in found if one["content"] == question]
            assert not rendered.warnings
            listed_for = await session.messages(query, budget=budget // 2)
            assert listed_for[0]["content"] == "Never delete a row."
            assert [one for one in listed_for if one["content"] == question]
            changed += found[: len(earlier)] != earlier
            earlier = found
            calls = [{"id": f"c{call}", "name": "stock", "arguments": "{}"}]
            await session.ingest("assistant", "", tool_calls=calls)
            await session.ingest("tool", random_table(rng), tool_call_id=f"c{call}")
        assert (await session.get_session_stats()).tokens > 2 * budget
        assert changed <= most * steps


@pytest.mark.parametrize("before", [{"content": "I look."}, {"parts": [Reasoning("Which one?", "c2ln")]}])
async def test_what_a_model_says_before_it_calls_a_tool_is_no_answer(before: dict[str, Any]) -> None:
    async with ACMS("steps", open_storage("memory://"), None) as session:
        await session.ingest("user", "Which lathe is amber?")
        for call in range(8):
            calls = [{"id": f"c{call}", "name": "stock", "arguments": "{}"}]
            await session.ingest("assistant", **before)
            await session.ingest("assistant", "", tool_calls=calls)
            await session.ingest("tool", random_table(random.Random(call)), tool_call_id=f"c{call}")
            made = Prompt(OpenAIChat("gpt-4o")).history(session).recall(session, "Which lathe is amber?")
            rendered = await made.render(budget=1500)
            for found in (rendered.payload["messages"], await session.messages("amber", budget=1500)):
                said_by = [one["content"] for one in found if one["role"] == "user"]
                assert [one for one in said_by if "<recalled>" not in one] == ["Which lathe is amber?"]
                assert found[-1]["role"] == "tool"


async def test_a_question_stays_last_when_a_prompt_was_rendered_behind_the_answer_before_it() -> None:
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", "Decision: PostgreSQL 18 for orders.")
        for number in range(60):
            await session.ingest("user", f"Ticket {number}: the printer on floor {number} is broken again.")
            await session.ingest("assistant", f"Noted, {number}.")
        for question, answer in (
            ("Which database for orders?", "PostgreSQL."),
            ("What of floor 3?", "Broken."),
        ):
            await session.ingest("user", question)
            for query in (question, "and anything else?"):  # the second one comes behind the answer
                prompt = Prompt(OpenAIChat("gpt-4o")).history(session).recall(session, query)
                sent = (await prompt.render(budget=900)).payload["messages"]
                if query == question:
                    assert sent[-1]["content"] == question
                    await session.ingest("assistant", answer)


async def test_a_budget_that_leaves_no_room_at_all_ends() -> None:
    """Each budget around what must be in a request: one of them leaves a history exactly nothing."""
    rng = random.Random(7)
    async with ACMS("tight", "memory://", None) as session:
        for _ in range(12):
            await session.ingest("user", random_sentence(rng))
            await session.ingest("assistant", random_sentence(rng))
        await session.ingest("user", "What do we have?")
        calls = [{"id": f"c{n}", "name": "stock", "arguments": "{}"} for n in range(3)]
        await session.ingest("assistant", "", tool_calls=calls)
        for one in calls:
            await session.ingest("tool", random_sentence(rng), tool_call_id=one["id"])
        base = Prompt(OpenAIChat("gpt-4o")).system("You keep the stock.").history(session)
        hows: tuple[dict[str, Any], ...] = ({}, {"keep": "turn"}, {"in_place": True}, {"tokens": 200})
        for budget, how in product(range(10, 60), hows):
            try:
                rendered = await base.recall(session, "drill", **how).render(budget=budget)
            except FitError as error:
                assert error.over > 0
            else:
                assert rendered.tokens.upper_bound <= budget


def rows_of(number: int) -> list[str]:
    size = 200 if number % 4 == 3 else 30
    return [f"row {n} | order {1000 + 37 * n} | {13 * n % 97} EUR | of call {number}" for n in range(size)]


async def looked_up(session: ACMS, number: int, rows: list[str]) -> None:
    calls = [{"id": f"c{number}", "name": "stock", "arguments": "{}"}]
    await session.ingest("assistant", "", tool_calls=calls)
    await session.ingest("tool", "\n".join(rows), tool_call_id=f"c{number}")


@pytest.mark.parametrize("recalled", [True, False])
async def test_an_output_that_fits_is_sent_whole_and_once(recalled: bool) -> None:
    async with ACMS("whole", open_storage("memory://"), None) as session:
        query = "What does order 1629 cost?"
        await session.ingest("user", query)
        made = Prompt(OpenAIChat("gpt-4o")).tools([STOCK]).history(session)
        made = made.recall(session, query) if recalled else made
        earlier: list[Any] = []
        for number in range(3):
            await looked_up(session, number, rows_of(number))
            rendered = await made.render(budget=4000)
            found = rendered.payload["messages"]
            assert found[: len(earlier)] == earlier
            text = "".join(str(one["content"]) for one in found)
            assert all(text.count(row) == 1 for each in range(number + 1) for row in rows_of(each))
            assert "[…]" not in text
            earlier = found


@pytest.mark.parametrize("recalled", [True, False])
async def test_an_output_stays_as_it_was_shown_until_the_next_epoch(recalled: bool) -> None:
    rng = random.Random(9)
    async with ACMS("stays", open_storage("memory://"), None) as session:
        for _ in range(40):
            await session.ingest("user", random_sentence(rng))
            await session.ingest("assistant", random_sentence(rng))
        query = "What do we have?"
        await session.ingest("user", query)
        made = Prompt(OpenAIChat("gpt-4o")).tools([STOCK]).history(session)
        made = made.recall(session, query) if recalled else made
        earlier: list[Any] = []
        grown = cut = whole = 0
        for number in range(12):
            await looked_up(session, number, rows_of(number))
            rendered = await made.render(budget=2000)
            assert rendered.tokens.upper_bound <= 2000
            found = rendered.payload["messages"]
            grown += found[: len(earlier)] == earlier
            shown = all(row in found[-1]["content"] for row in rows_of(number))
            whole += shown
            verdict = rendered.ledger.why(rendered.messages[-1].sources[0])
            assert verdict is not None
            assert ("did not fit whole" in verdict.reason) is not shown
            cut += not shown
            earlier = found
        assert grown >= 3
        assert whole >= 4
        assert cut


def test_an_output_that_was_forgotten_is_shortened_as_before() -> None:
    rng, counter = random.Random(13), default_counter()
    outputs = ["\n".join(random_table(rng) for _ in range(3)) for _ in range(4)]
    expected = [condense.condense_output(output, 80, counter) for output in outputs]
    for _ in range(2):
        condense._known_choices.clear()
        assert [condense.condense_output(output, 80, counter) for output in outputs] == expected
    assert all(0 < counter.count(one) <= 80 for one in expected)


async def test_what_a_cut_output_does_not_show_is_recalled() -> None:
    rng = random.Random(12)
    async with ACMS("cut", open_storage("memory://"), None) as session:
        for _ in range(40):
            await session.ingest("user", random_sentence(rng))
            await session.ingest("assistant", random_sentence(rng))
        await session.ingest("user", "What do we have?")
        calls = [{"id": "c", "name": "stock", "arguments": "{}"}]
        await session.ingest("assistant", "", tool_calls=calls)
        rows = [f"row {n} | {rng.choice(THINGS)} | {1000 + 7 * n}" for n in range(400)]
        await session.ingest("tool", "\n".join(rows), tool_call_id="c")
        base = Prompt(OpenAIChat("gpt-4o")).tools([STOCK]).history(session)
        for asked, budget, there in (("amber drill", 1500, False), ("Which row has 2057?", 4000, True)):
            rendered = await base.recall(session, asked).user(asked).render(budget=budget)
            text = json.dumps(rendered.payload, ensure_ascii=False)
            assert "of 400 lines left out; entry m_" in text
            assert (rows[151] in text) is there


@pytest.mark.parametrize("how", ["private", "retract"])
async def test_what_another_session_said_goes_from_a_prompt_when_it_is_no_longer_said(how: str) -> None:
    storage = open_storage("memory://")
    rng = random.Random(8)
    async with (
        ACMS("diary", storage, None, namespace="ana") as diary,
        ACMS("chat", storage, None, namespace="ana") as chat,
    ):
        id = await diary.ingest("user", "The spare key of the workshop hangs behind the clock.")
        for _ in range(20):
            await chat.ingest("user", random_sentence(rng))

        async def sent(asked: str) -> str:
            base = Prompt(OpenAIChat("gpt-4o")).system(SYSTEM).history(chat)
            rendered = await base.recall(chat, asked, scope="namespace").render(budget=4000)
            await chat.ingest("user", random_sentence(rng))
            return json.dumps(rendered.payload)

        assert "behind the clock" in await sent("Where does the spare key of the workshop hang?")
        assert "behind the clock" in await sent("Where is the teal lathe?")  # it stays where it was
        await (diary.set_private() if how == "private" else diary.retract(id))
        assert "behind the clock" not in await sent("Where is the teal lathe?")


async def test_views_and_prompts_that_choose_anew_keep_nothing(tmp_path: Path) -> None:
    async with ACMS("anew", open_storage(f"sqlite:///{tmp_path}/anew.db"), None) as session:
        rng = random.Random(4)
        for _ in range(60):
            await session.ingest("user", random_sentence(rng))
        storage = session.storage
        assert isinstance(storage, HasRecords)
        put: list[str] = []
        inner = storage.put_record

        async def watched(context: str, name: str, data: Any, *, rev: int) -> Any:
            put.append(name)
            return await inner(context, name, data, rev=rev)

        storage.put_record = watched  # type: ignore[method-assign]
        view = session.at(50)
        base = Prompt(OpenAIChat("gpt-4o"))
        await base.history(view).recall(view, "the lathe").render(budget=600)
        await base.history(session).recall(session, "the lathe", keep="turn").render(budget=600)
        assert not put
        await base.history(session).recall(session, "the lathe").render(budget=600)
        assert len(put) == 1


async def test_two_renders_at_once_show_the_same(tmp_path: Path) -> None:
    import asyncio

    url = f"sqlite:///{tmp_path}/race.db"
    async with ACMS("race", open_storage(url), None) as one, ACMS("race", open_storage(url), None) as other:
        rng = random.Random(5)
        for _ in range(90):
            await one.ingest("user", random_sentence(rng))
        base = Prompt(OpenAIChat("gpt-4o")).system(SYSTEM)
        made = [base.history(session).recall(session, "the teal lathe") for session in (one, other) * 4]
        found = await asyncio.gather(*(prompt.render(budget=1200) for prompt in made))
        assert all(rendered.payload == found[0].payload for rendered in found)
        assert not any(rendered.warnings for rendered in found)


async def test_a_request_says_what_its_tokens_are_used_for() -> None:
    async with ACMS("use", open_storage("memory://"), None) as session:
        rng = random.Random(6)
        first = await session.ingest("user", "The spare key of the workshop hangs behind the clock.")
        for _ in range(119):
            await session.ingest("user", random_sentence(rng))
        last = await session.ingest("user", random_sentence(rng))
        base = Prompt(OpenAIChat("gpt-4o")).system(SYSTEM).history(session)
        prompt = base.recall(session, "Where is the spare key?").user("Where is the spare key?")
        rendered = await prompt.render(budget=1500)
        use = rendered.use
        parts = use.system + use.written + use.history + use.recalled + use.pins + use.tools
        assert parts == rendered.tokens.tokens
        assert parts + use.free == 1500
        assert use.free < 80
        assert min(use.system, use.written, use.history, use.recalled) > 0
        assert rendered.seen(first)
        assert rendered.seen(last)
        assert not rendered.seen("m_unknown")


@pytest.mark.parametrize(
    "codec",
    [
        OpenAIChat("gpt-5"),
        OpenAIResponses("gpt-5"),
        AnthropicMessages("claude-opus-5-5", cache_history=False),
        Gemini("gemini-2.5-pro"),
    ],
    ids=lambda codec: codec.name,
)
async def test_a_history_says_who_spoke_whatever_the_name(codec: Codec) -> None:
    names = ("Thomas Carter", "用户", "José", "Ann\nLee")
    async with ACMS("names", open_storage("memory://"), None) as session:
        for name in names:
            await session.ingest("user", "I want it warm.", actor_id=name)
        rendered = await Prompt(codec).history(session).user("Who?").render(budget=400)
        text = json.dumps(rendered.payload, ensure_ascii=False)
        assert all(f"{' '.join(name.split())}: I want it warm." in text for name in names)
        assert rendered.manifest.messages  # each stretch of text is found again in its entry


async def test_all_system_messages_that_a_log_begins_with_are_shown_or_an_error_says_so() -> None:
    rng = random.Random(11)
    async with ACMS("rules", open_storage("memory://"), None) as session:
        rules = [f"Rule {number}: count twice." for number in range(20)]
        for rule in rules:
            await session.ingest("system", rule)
        with pytest.raises(TokenBudgetExceededError, match="required"):
            await session.messages("the lathe", budget=40)
        for _ in range(90):
            await session.ingest("user", random_sentence(rng))
        base = Prompt(OpenAIChat("gpt-4o")).history(session).recall(session, "the lathe")
        rendered = await base.render(budget=1500)
        assert [message.text for message in rendered.messages][:20] == rules
        assert not rendered.warnings
        written = await session.messages("the lathe", budget=1500)
        assert [one["content"] for one in written][:20] == rules
        short = await base.render(budget=300)
        assert [message.text for message in short.messages][:20] == rules
        with pytest.raises(FitError, match="the leading system messages of the log") as raised:
            await base.render(budget=200)
        more = raised.value.required - raised.value.budget
        (advised,) = [int(one.split()[-1]) for one in raised.value.options if "raise the budget" in one]
        assert more <= advised <= 2 * more
        rendered = await base.render(budget=200 + advised)
        assert [message.text for message in rendered.messages][:20] == rules


async def test_a_fork_goes_on_with_what_was_kept_before_it_in_a_form_that_is_read() -> None:
    rng = random.Random(12)
    async with ACMS("day", open_storage("memory://"), None) as session:
        for _ in range(60):
            await session.ingest("user", random_sentence(rng))
        storage, context = session.storage, str(await session.context_id())
        assert isinstance(storage, HasRecords)
        names: list[str] = []
        inner = storage.put_record

        async def watched(context: str, name: str, data: Any, *, rev: int) -> Any:
            names.append(name)
            return await inner(context, name, data, rev=rev)

        storage.put_record = watched  # type: ignore[method-assign]

        async def sent(of: ACMS) -> Rendered:
            return await Prompt(OpenAIChat("gpt-4o")).history(of).recall(of, "the lathe").render(budget=900)

        first = await sent(session)
        async with await session.fork(at=10, session_id="early") as early:  # before what is shown now
            shown = await sent(early)
            assert [message.text for message in shown.messages] == [
                one.content for one in await early.entries()
            ]
        kept = await storage.record(context, names[0])
        assert kept is not None
        await inner(context, names[0], {"format": "of another release"}, rev=kept.rev)
        async with await session.fork(session_id="child") as child:
            for of in (child, session):
                again = await sent(of)
                assert again.payload == first.payload
                assert not again.warnings


@pytest.mark.parametrize("query", ["summarise it", "why?"])
@pytest.mark.parametrize("budget", [500, 2_000, 8_000])
async def test_a_document_that_is_longer_than_the_budget_is_still_there_for_the_next_question(
    budget: int, query: str
) -> None:
    rng = random.Random(3)
    document = " ".join(random_sentence(rng) for _ in range(budget // 5))
    async with ACMS("document", open_storage("memory://"), None) as session:
        await session.ingest("user", f"Here is the report:\n{document}\nThat is all.")
        await session.ingest("assistant", "I have read it. What do you want to know?")
        rendered = await prompt_about(session, query).render(budget=budget)
        assert rendered.tokens.tokens >= budget * 0.45
        shown = str(rendered.payload)
        assert "Here is the report" in shown
        assert "That is all." in shown
        assert "characters left out" in shown
        assert any("older messages are cut" in warning for warning in rendered.warnings)
        again = await prompt_about(session, query).render(budget=budget)
        assert again.payload == rendered.payload
        chat = await session.messages(query, budget=budget)
        assert "Here is the report" in str(chat)
        assert sum(len(message["content"]) for message in chat) > budget


async def test_an_output_that_does_not_fit_whole_behind_its_answer_is_shown_as_far_as_it_fits() -> None:
    rng = random.Random(4)
    output = "\n".join(f"row {number} | {rng.choice(THINGS)} | {number * 7}" for number in range(600))
    async with ACMS("output", open_storage("memory://"), None) as session:
        await session.ingest("user", "Load the stock.")
        calls = [{"id": "c1", "name": "stock", "arguments": "{}"}]
        await session.ingest("assistant", "", tool_calls=calls)
        await session.ingest("tool", output, tool_call_id="c1")
        await session.ingest("assistant", "Loaded. What do you want to know?")
        for query in ("why?", "And what is the total?"):
            rendered = await prompt_about(session, query).render(budget=4_000)
            assert rendered.tokens.tokens >= 4_000 * 0.45
            chat = await session.messages(query, budget=4_000)
            assert sum(len(str(message)) for message in chat) > 4_000


def prompt_about(session: ACMS, query: str) -> Prompt:
    """Return a prompt with a history, a recall and a question behind them."""
    return Prompt(OpenAIChat("gpt-4o")).system(SYSTEM).history(session).recall(session, query).user(query)
