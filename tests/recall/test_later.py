"""Later statements: what was said again, differently, comes with what it follows, in any language and by every door."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acms import ACMS, ContextItems, Source
from acms.acs import ACS
from acms.codecs import AnthropicMessages, OpenAIChat
from acms.log.in_force import Cover
from acms.prompt import Prompt
from acms.prompt.replay import replay
from acms.providers import OfflineReflector
from acms.recall.corpus import Field
from acms.recall.index import Segment, Snapshot
from acms.recall.later import _subjects
from acms.storage import MemoryStorage
from acms.testing.logs import noted, put
from acms.text.tokenizer import term
from tests.support.counters import COUNTERS
from tests.support.fakes import FakeEmbedder
from tests.support.sources import request
from tests.support.stories import randoms
from tests.support.talk import Storage, contents, fill, session_on, tool_turn

FIRST = datetime(2026, 3, 2, 9, tzinfo=UTC)


@dataclass(frozen=True)
class Tongue:
    """How a language states what something is, asks for it, and talks of other things; no word announces a change."""

    statement: str
    again: str
    question: str
    things: tuple[str, ...]
    values: tuple[str, ...]
    chatter: tuple[str, ...]


TONGUES = {
    "en": Tongue(
        "The {thing} of the Lisbon office is {value}.",
        "In the Lisbon office the {thing} is {value}.",
        "What is the {thing} of the Lisbon office?",
        ("printer", "alarm code", "caterer"),
        ("Brother", "Canon", "Epson", "Ricoh"),
        ("Lunch was late again.", "My sister sent photos.", "The train was full.", "It rained a lot."),
    ),
    "de": Tongue(
        "Der {thing} im Büro Hamburg ist {value}.",
        "Im Büro Hamburg ist {value} der {thing}.",
        "Welcher {thing} steht im Büro Hamburg?",
        ("Drucker", "Türcode", "Lieferant"),
        ("Brother", "Canon", "Epson", "Ricoh"),
        ("Das Essen kam spät.", "Meine Schwester hat Fotos.", "Der Zug war voll.", "Gestern viel Regen."),
    ),
    "es": Tongue(
        "La {thing} de la oficina de Sevilla es {value}.",
        "En la oficina de Sevilla la {thing} es {value}.",
        "¿Cuál es la {thing} de la oficina de Sevilla?",
        ("impresora", "clave", "cafetera"),
        ("Brother", "Canon", "Epson", "Ricoh"),
        ("El almuerzo llegó tarde.", "Mi hermana mandó fotos.", "El tren iba lleno.", "Llovió mucho."),
    ),
    "fr": Tongue(
        "L'{thing} du bureau de Nantes est {value}.",
        "Au bureau de Nantes, l'{thing} est {value}.",
        "Quelle est l'{thing} du bureau de Nantes ?",
        ("imprimante", "alarme", "adresse"),
        ("Brother", "Canon", "Epson", "Ricoh"),
        ("Le repas est arrivé tard.", "Ma sœur a des photos.", "Le train était plein.", "Il a plu."),
    ),
    "zh": Tongue(
        "杭州办公室的{thing}是{value}。",
        "我们杭州办公室{thing}用{value}。",
        "杭州办公室的{thing}是什么？",
        ("打印机", "供应商", "咖啡机"),
        ("兄弟", "佳能", "爱普生", "理光"),
        ("午饭又晚了。", "妹妹寄来了照片。", "火车很挤。", "昨天下了大雨。"),
    ),
}


@dataclass(frozen=True)
class Drawn:
    """A statement, a later one about the same thing, a question for it, and what is said around both."""

    earlier: str
    later: str
    question: str
    around: tuple[str, ...]

    async def tell(self, session: ACMS) -> tuple[str, str]:
        """Say it all, an episode a week; return the ids of both statements."""
        said: list[str] = []
        for week, texts in enumerate((self.around, (self.earlier,), self.around[::-1], (self.later,), ())):
            for text in (*texts, *self.around[week % 2 :: 2]):
                when = FIRST + timedelta(weeks=week, minutes=len(said))
                said.append(await session.ingest("user", f"{text}", created_at=when))
            await session.close_episode()
        await fill(session, "🙂")
        half = len(self.around) + len(self.around[::2])
        first = half
        second = first + 1 + len(self.around[1::2]) + len(self.around) + len(self.around[::2])
        return said[first], said[second]


@st.composite
def drawn(draw: st.DrawFn, names: Sequence[str] = tuple(TONGUES)) -> Drawn:
    tongue = TONGUES[draw(st.sampled_from(names))]
    thing = draw(st.sampled_from(tongue.things))
    old, new = draw(st.permutations(tongue.values))[:2]
    first, second = draw(
        st.sampled_from([(tongue.statement, tongue.again), (tongue.again, tongue.statement)])
    )
    return Drawn(
        first.format(thing=thing, value=old),
        second.format(thing=thing, value=new),
        tongue.question.format(thing=thing),
        tongue.chatter,
    )


def label(entry: Any) -> str:
    return f" [later, same subject: v{entry.version}, {entry.created_at:%Y-%m-%d}]"


def together(items: ContextItems, ids: tuple[str, str]) -> bool:
    """Whether the earlier one is shown; then it is labelled, and the later one stands after it."""
    shown = {item.id: item for item in items}
    if ids[0] not in shown:
        return False
    old, new = shown[ids[0]], shown[ids[1]]
    assert old.later == new.version
    assert old.content.endswith(label(new))
    assert [item.id for item in items].index(old.id) < [item.id for item in items].index(new.id)
    return True


@pytest.mark.parametrize("name", TONGUES)
@settings(max_examples=6)
@given(st.data())
async def test_the_earlier_one_is_never_shown_alone(name: str, data: st.DataObject) -> None:
    one = data.draw(drawn([name]))
    async with session_on(MemoryStorage()) as session:
        ids = await one.tell(session)
        rich = await session.recall(one.question, token_budget=400)
        assert together(rich, ids)
        assert [item.version for item in rich] == sorted(item.version for item in rich)
        least = 10**6
        for budget in range(20, 401, 20):
            items = await session.recall(one.question, token_budget=budget)
            assert items.tokens <= budget
            assert session._shared.counter.count(items.text()) <= budget
            both = together(items, ids)
            assert not both or ids[1] in [item.id for item in items]
            if ids[1] in [item.id for item in items]:
                least = min(least, budget)
        # where one of them fits it is the later one
        assert least <= 80


@settings(max_examples=10)
@given(drawn())
async def test_before_the_later_one_the_earlier_one_stands_unlabelled(one: Drawn) -> None:
    async with session_on(MemoryStorage()) as session:
        old, new = await one.tell(session)
        (later,) = [entry for entry in (await session.history(limit=100)).entries if entry.id == new]
        view = session.at(later.version - 1)
        items = await view.recall(one.question, token_budget=400)
        (shown,) = [item for item in items if item.id == old]
        assert (shown.content, shown.later) == (one.earlier, None)
        async with await session.fork(at=later.version - 1) as branch:
            assert list(await branch.recall(one.question, token_budget=400)) == list(items)


# ── by every door ───────────────────────────────────────────────────────────────────────────────────────────────────

ENGLISH = Drawn(
    "The printer of the Lisbon office is Brother.",
    "In the Lisbon office the printer is Canon.",
    "What is the printer of the Lisbon office?",
    TONGUES["en"].chatter,
)


async def prompted(session: ACMS, codec: Any, shown: int = 0) -> str:
    """What a prompt with recalled text sends, which reads the same when it is sent again."""
    built = Prompt(codec=codec).system("Be brief.")
    built = built.last(session, n=shown) if shown else built
    built = built.recall(session, ENGLISH.question, tokens=200).user(ENGLISH.question)
    rendered = await built.render(budget=2000)
    assert await replay(rendered.manifest, session.storage, codec) == rendered.payload
    return json.dumps(rendered.payload, ensure_ascii=False)


async def test_the_label_reaches_whoever_is_asked(storage: Storage) -> None:
    async with session_on(storage) as session:
        ids = await ENGLISH.tell(session)
        items = await session.recall(ENGLISH.question, token_budget=300)
        assert together(items, ids)
        new = next(item for item in items if item.id == ids[1])
        said = ENGLISH.earlier + label(new)
        assert said in items.text()
        assert items.ledger.why(ids[0]).included
        await fill(session, *(f"chatter number {n} of the day" for n in range(60)), close=True)
        written = str(await session.messages(ENGLISH.question, budget=600))
        assert said in written
        assert ENGLISH.later in written
        for codec in (OpenAIChat("gpt-5"), AnthropicMessages("claude-sonnet-4-5")):
            payload = await prompted(session, codec)
            assert said in payload
            assert payload.index(said) < payload.index(ENGLISH.later)
        reply = await ACS([session]).render(request(ENGLISH.question, tokens=300))
        text = "\n".join(one.text or "" for one in reply.fragments or ())
        assert said in text
        assert ENGLISH.later in text


async def test_what_a_prompt_shows_anyway_is_linked_to_as_well() -> None:
    async with session_on(MemoryStorage()) as session:
        _, new = await ENGLISH.tell(session)
        later = next(one for one in (await session.history(limit=100)).entries if one.id == new)
        payload = await prompted(session, OpenAIChat("gpt-5"), shown=6)
        assert ENGLISH.earlier + label(later) in payload
        assert payload.count(ENGLISH.later) == 1
        for left, rule in (
            ({"exclude": [new]}, "excluded"),
            ({"where": {"before": later.created_at}}, "filter"),
        ):
            items = await session.recall(ENGLISH.question, token_budget=300, **left)
            assert ENGLISH.earlier + label(later) in contents(items)
            assert items.ledger.why(new).rule == rule


@pytest.mark.parametrize("name", TONGUES)
async def test_the_question_itself_is_no_later_statement(name: str) -> None:
    """Also asked before, and when it was ingested before it is asked; by the facts too."""
    tongue = TONGUES[name]
    given = {"thing": tongue.things[0]}
    question = tongue.question.format(**given)
    one = Drawn(
        tongue.statement.format(value=tongue.values[0], **given),
        tongue.again.format(value=tongue.values[1], **given),
        question,
        tongue.chatter,
    )
    async with session_on(MemoryStorage()) as session:
        ids = await one.tell(session)
        await fill(session, question, close=True)
        await fill(session, question)
        items = await session.recall(question, token_budget=400)
        assert together(items, ids)
        await fill(session, *(tongue.chatter * 30), close=True)
        await fill(session, question)
        new = next(item for item in items if item.id == ids[1])
        assert one.earlier + label(new) in str(await session.messages(question, budget=600))


# ── whatever else is in the log ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_marker_on_the_earlier_one_takes_no_room_from_the_later_one(storage: Storage) -> None:
    async with session_on(storage, words=True) as session:
        old = await session.ingest("user", "the Lisbon printer is Brother", markers=["constraint", "goal"])
        await session.close_episode()
        await fill(session, "rain", "bus", "sun", close=True)
        (new,) = await fill(session, "the Lisbon printer in the big room upstairs is Canon", close=True)
        await fill(session, "now")
        for budget in range(2, 60):
            items = await session.recall("Lisbon printer", token_budget=budget)
            shown = [item.id for item in items]
            assert old not in shown or new in shown
            assert (new in shown) == (budget >= 13)
        together(items, (old, new))


async def test_a_copy_of_the_later_one_does_not_hide_it(storage: Storage) -> None:
    async with session_on(storage) as session:
        said = ["the Lisbon printer is Brother", "rain", "the Lisbon printer is Canon", "sun"]
        ids: list[str] = []
        for text in (*said, "the Lisbon printer is Canon", "bus", "the Lisbon printer is Canon"):
            ids += await fill(session, text, close=True)
        await fill(session, "now")
        items = await session.recall("Lisbon printer", token_budget=500)
        shown = {item.id: item for item in items}
        assert shown[ids[0]].later in {shown[id].version for id in (ids[2], ids[4], ids[6]) if id in shown}


async def test_a_tool_turn_is_neither_earlier_nor_later(storage: Storage) -> None:
    async with session_on(storage) as session:
        for number, answer in enumerate(("the Lisbon printer is Brother", "the Lisbon printer is Canon")):
            await tool_turn(session, f"c{number}", answer)
            await fill(session, "thanks", close=True)
        (text,) = await fill(session, "the Lisbon printer is Epson", close=True)
        await fill(session, "now")
        items = await session.recall("Lisbon printer", token_budget=500)
        assert {item.later for item in items} == {None}
        assert contents(items)[1] == "the Lisbon printer is Brother"
        assert text in [item.id for item in items]


async def test_another_log_of_the_namespace_has_versions_of_its_own(storage: Storage) -> None:
    async with (
        session_on(storage, "first", words=True, namespace="team") as first,
        session_on(storage, "other", words=True, namespace="team") as other,
    ):
        for session in (first, other):
            name = session.session_id
            await fill(session, f"the Lisbon printer of {name} is Brother", close=True)
            await fill(session, "rain", close=True)
            extra = (
                "" if session is first else " and nobody who works there likes it at all any more these days"
            )
            await fill(session, f"Decision: the Lisbon printer of {name} is Canon{extra}", close=True)
            await fill(session, "now")
        for budget in range(5, 120, 3):
            items = await first.recall("Lisbon printer", token_budget=budget, scope="namespace")
            assert items.tokens <= budget
            shown = {(item.id.split("_")[1], item.version) for item in items}
            for item in items:
                assert item.later is None or (item.id.split("_")[1], item.later) in shown
        assert [item.session_id for item in items if item.later] == ["first"]


@given(randoms, st.sampled_from(COUNTERS), st.integers(0, 250))
async def test_no_budget_is_exceeded_with_labels(random: Random, counter: Any, budget: int) -> None:
    words = "the orders database Lisbon printer 数据库 Büro 🙂 is Canon , x\n\n".split(" ")
    async with session_on(MemoryStorage(), token_counter=counter) as session:
        for _ in range(random.randint(2, 14)):
            text = " ".join(random.choices(words, k=random.randint(1, 30)))
            await fill(session, text if text.strip() else "x", close=random.random() < 0.7)
        for query in ("orders database", "Lisbon printer 数据库"):
            items = await session.recall(query, token_budget=budget)
            assert items.tokens <= budget
            assert counter.count(items.text()) <= budget
            known = {item.version: items.ledger.why(item.id) for item in items}
            for item in items:
                assert item.later is None or item.later in known
                assert item.later is None or item.later > item.version


# ── facts ───────────────────────────────────────────────────────────────────────────────────────────────────────────

FACT = "The printer of the Lisbon office is Brother."


async def with_fact(session: ACMS, *after: str) -> str:
    """A log with one fact, which no message says, and what was said after it; the id of the fact."""
    await fill(session, *TONGUES["en"].chatter, close=True)
    context = await session._shared.storage.context("user_123")
    await put(session._shared.storage, context, noted(FACT))
    await fill(session, *after, *TONGUES["en"].chatter, close=True)
    await fill(session, "now")
    (fact,) = await session.facts()
    return fact.id


async def test_a_newer_message_stands_above_the_older_fact(storage: Storage) -> None:
    async with session_on(storage) as session:
        fact = await with_fact(session, ENGLISH.later)
        for budget in range(20, 401, 20):
            items = await session.recall(ENGLISH.question, token_budget=budget)
            assert items.tokens <= budget
            shown = {item.id: item for item in items}
            newer = next((item for item in items if item.content == ENGLISH.later), None)
            if fact in shown:
                assert newer is not None
                assert shown[fact].content == FACT + label(newer)
                assert newer.score > shown[fact].score
        assert fact in shown
        assert f"fact: {FACT} [later" in items.text()


async def test_without_one_the_fact_stands_first(storage: Storage) -> None:
    async with session_on(storage) as session:
        fact = await with_fact(session)
        items = await session.recall(ENGLISH.question, token_budget=400)
        assert (items[0].id, items[0].source, items[0].later) == (fact, Source.FACT, None)
        assert items[0].score == max(item.score for item in items)
        assert items[0].content == FACT


# ── by meaning ──────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=10)
@given(drawn())
async def test_with_vectors_the_earlier_one_is_never_shown_alone_either(one: Drawn) -> None:
    async with session_on(MemoryStorage(), embedder=FakeEmbedder()) as session:
        ids = await one.tell(session)
        await session.wait_pending()
        for budget in range(40, 401, 60):
            items = await session.recall(one.question, token_budget=budget)
            assert items.tokens <= budget
            assert items.coverage == 1
            both = together(items, ids)
        assert both


def test_numbers_tell_no_subject_and_every_other_term_does() -> None:
    said = ["0", "7", "42", "2999", "3000", "rollback", "7up", "zzz"]
    terms = np.array([term(word) for word in said], np.uint32)
    terms = np.append(terms, [np.uint32(0), np.uint32((1 << 24) - 1)])
    rare = _subjects(Field(Snapshot([("c", Segment(0), 0)]), Cover(())), terms)
    assert (rare == 0).tolist() == [True] * 4 + [False] * 6


async def test_a_later_statement_that_answers_badly_is_no_more_left_out_than_a_good_one() -> None:
    """Many others answer better by words, and a small budget keeps few of them as candidates."""
    async with session_on(MemoryStorage()) as session:
        await session.ingest("user", "The lacquer colour of Zorblat Quimby is crimson.")
        await session.close_episode()
        for number in range(150):
            await session.ingest("user", f"a colour swatch lies on shelf{number}")
        await session.close_episode()
        await session.ingest("user", "Zorblat Quimby went teal.")
        await session.close_episode()
        await session.ingest("user", "Good morning")
        for budget in (60, 100, 200, 400):
            items = await session.recall(
                "Which colour of lacquer is it?", token_budget=budget, include_current_episode=False
            )
            if "crimson" in items.text():
                assert "teal" in items.text(), budget
        assert "crimson" in items.text()


@pytest.mark.parametrize(
    ("earlier", "later", "question"),
    [
        (
            "The orders service runs on MySQL.",
            "orders service sits on Postgres",
            "Does the orders service run on MySQL?",
        ),
        (
            "Der Vertrag mit Meyer läuft bis Juni.",
            "Vertrag mit Meyer endet im April",
            "Läuft der Vertrag mit Meyer bis Juni?",
        ),
    ],
)
async def test_what_is_asked_for_word_for_word_is_labelled_as_well(
    earlier: str, later: str, question: str
) -> None:
    """Also when it was asked before: the question is no later statement, and takes no other's turn."""
    one = Drawn(earlier, later, question, TONGUES["en"].chatter)
    async with session_on(MemoryStorage()) as session:
        ids = await one.tell(session)
        assert together(await session.recall(question, token_budget=400), ids)
        await fill(session, question, close=True)
        await fill(session, "🙂")
        assert together(await session.recall(question, token_budget=400), ids)


async def test_what_is_said_again_word_for_word_changes_nothing() -> None:
    one = replace(ENGLISH, later=ENGLISH.earlier)
    async with session_on(MemoryStorage()) as session:
        await one.tell(session)
        items = await session.recall(one.question, token_budget=400)
        assert {item.later for item in items} == {None}


async def test_what_has_an_earlier_date_is_not_later() -> None:
    """An import need not be in order."""
    async with session_on(MemoryStorage()) as session:
        for week, text in ((1, ENGLISH.earlier), (3, "Rain."), (0, ENGLISH.later), (4, "Sun.")):
            await session.ingest("user", text, created_at=FIRST + timedelta(weeks=week))
            await session.close_episode()
        items = await session.recall(ENGLISH.question, token_budget=400)
        assert {ENGLISH.earlier, ENGLISH.later} <= set(contents(items))


async def test_what_speaks_of_something_else_that_was_said_before_is_not_linked() -> None:
    """A later remark that is much more like another earlier one is about that one."""
    kitchen = "The kitchen of the Lisbon office has a {} floor."
    one = replace(ENGLISH, around=(kitchen.format("wooden"), "It rained."), later=kitchen.format("marble"))
    async with session_on(MemoryStorage()) as session:
        old, _ = await one.tell(session)
        items = await session.recall(one.question, token_budget=400)
        assert next(item for item in items if item.id == old).later is None


async def test_a_fact_that_was_written_after_the_later_statement_names_it(storage: Storage) -> None:
    """Both were said before a reflection read them, and it has seen that only one of them says something."""
    async with session_on(storage, reflector=OfflineReflector()) as session:
        chatter = TONGUES["en"].chatter
        for text in ("My phone number is 555-0142.", "got a new phone number with the SIM, 555-0199"):
            await fill(session, *chatter, text, *chatter, close=True)
        await session.wait_pending()
        await fill(session, "🙂")
        (fact,) = await session.facts()
        assert fact.value == "555-0142"
        items = await session.recall("What is my phone number?", token_budget=400)
        shown = {item.content.split(" [")[0]: item for item in items if item.source is Source.FACT}
        new = next(item for item in items if "555-0199" in item.content)
        assert shown[fact.content].later == new.version
        assert f"fact: {fact.content}{label(new)}" in items.text()
