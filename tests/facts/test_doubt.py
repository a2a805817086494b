"""Facts whose sources no longer hold are flagged with the reason wherever they are shown, until said again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import ACMS, ACMSConfig, Fact, open_storage
from acms.acs import ACS
from acms.codecs import OpenAIChat
from acms.knowledge import DOUBT
from acms.log import doubt
from acms.ports import Proposal, ReflectionRequest
from acms.prompt import Prompt
from acms.providers import OfflineReflector
from acms.providers.reflection_parser import parse_reflection
from tests.seeds.test_remembering import CHAIN
from tests.support.logs import NOON
from tests.support.reflectors import Scripted, one, says
from tests.support.talk import LONG_EPISODES, Storage

CHANGE = "Decision: we're switching from Python to Go."


async def say_and_reflect(session: ACMS, *texts: str) -> None:
    """Say these texts, end the episode, and let it be distilled."""
    for text in texts:
        await session.ingest("user", text)
        await session.ingest("assistant", "Noted, go on.")
    await session.close_episode()
    await session.wait_pending()


def doubt_labels(facts: list[Fact]) -> dict[str, str]:
    return {fact.content: fact.doubt.label for fact in facts if fact.doubt is not None}


def doubt_config() -> ACMSConfig:
    return ACMSConfig(episodes=LONG_EPISODES)


async def texts_everywhere(session: ACMS, question: str) -> list[str]:
    """The texts of a recall, of a prompt that keeps its history, and of a reply."""
    prompt = Prompt(OpenAIChat("gpt-5")).history(session).recall(session, question).user(question)
    request = {
        "version": "v0", "id": "6f3b6f21-7a5f-4e3f-9af0-1b2c3d4e5f60", "request_id": "r", "intent": question,
        "budgets": {"tokens_max": 800, "time_ms": 60_000}, "risk_profile": {"level": "low"},
        "privacy_mode": "allow",
    }  # fmt: skip
    return [
        (await session.recall(question)).text(),
        str((await prompt.render(budget=700)).payload),
        str((await ACS(sources=[session]).render(request)).to_wire()),
    ]


def stated_fact(value: str, version: int) -> Fact:
    return Fact(
        id=f"f_{version}", version=version, content=f"The thing {version} is {value}", subject=f"thing {version}",
        attribute="kind", value=value, context="c", tokens=1, created_at=NOON, stated_at=NOON,
    )  # fmt: skip


WORDS = ["red", "red cat", "cat", "стол", "木", "木村", "村", "é", "a"]


@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4), min_size=1, max_size=7))
def test_a_fact_rests_on_those_whose_values_it_says(values: list[list[str]]) -> None:
    facts = [stated_fact(" ".join(words), version) for version, words in enumerate(values, 1)]
    for fact in doubt.annotate_doubts(facts):
        text = f" thing {fact.version} the thing {fact.version} is {fact.value} {fact.value} "
        said = {
            one.value: ""
            for one in facts
            if f" {one.value} " in text or (not one.value.isascii() and one.value in text)
        }
        assert fact.depends_on == tuple(
            one.id for value in said for one in facts if one.value == value and one.version < fact.version
        )


def test_values_are_looked_up_and_not_compared_with_each_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    class Text(str):
        __slots__ = ()

        def __contains__(self, key: str) -> bool:
            nonlocal compared
            compared += 1
            return super().__contains__(key)

    statement = doubt._parse_statement
    monkeypatch.setattr(
        doubt, "_parse_statement", lambda *given: (own := statement(*given))._replace(text=Text(own.text))
    )
    facts = [stated_fact(f"colour {version}", version) for version in range(1, 60)]
    facts += [stated_fact(f"цвет {version}", version) for version in range(60, 64)]
    assert doubt.annotate_doubts(facts)[-1].depends_on == ()
    assert compared < len(facts)


async def test_what_followed_from_a_changed_decision_is_in_doubt_wherever_it_is_shown(any_url: str) -> None:
    storage = open_storage(any_url)
    async with ACMS("chain", storage, None, reflector=OfflineReflector(), config=doubt_config()) as session:
        await say_and_reflect(session, *CHAIN.values())
        await say_and_reflect(
            session, *(f"Walk {n} along the river was cold and rather long again." for n in range(40))
        )
        question = "Which ORM pattern are we using?"
        assert not any(DOUBT in text for text in await texts_everywhere(session, question))
        before = await session.facts()
        python, mapper, pattern = before
        assert [fact.depends_on for fact in before] == [(), (python.id,), (mapper.id,)]
        await say_and_reflect(session, CHANGE)
        facts = await session.facts()
        go = facts[-1]
        label = f"[in doubt: rests on v{python.version}, which v{go.version} replaced]"
        assert doubt_labels(facts) == {mapper.content: label, pattern.content: label}
        for text in await texts_everywhere(session, question):
            assert f"{pattern.content} {label}" in text
        assert not doubt_labels(await session.facts(as_of=go.version - 1))
        undone = await session.undo(go.version)
        assert not doubt_labels(await session.facts())
        assert not any(DOUBT in text for text in await texts_everywhere(session, question))
        await session.undo(undone)
        assert len(doubt_labels(await session.facts())) == 2
        await say_and_reflect(session, f"Goal: {pattern.content}")
        await say_and_reflect(session, CHAIN[5], "Decision: the declarative base pattern stays.")
        assert mapper.content not in doubt_labels(await session.facts()), "it was said again"


async def test_a_reflector_says_what_a_fact_follows_from(storage: Storage) -> None:
    def answer(request: ReflectionRequest) -> object:
        mapper = {
            "action": "add", "content": "The ORM is SQLAlchemy.", "subject": "backend", "attribute": "orm",
            "value": "SQLAlchemy", "cardinality": "one", "sources": [5], "depends_on": ["F1", "F9"],
        }  # fmt: skip
        text = json.dumps({"proposals": [mapper], "summary": ""})
        return parse_reflection(text, request, provider="scripted")

    reflector = Scripted(
        says(one("backend", "language", "Python")), answer, says(one("backend", "language", "Go"))
    )
    async with ACMS("says", storage, None, reflector=reflector, config=doubt_config()) as session:
        await say_and_reflect(session, "We build it in Python.", "It is decided.")
        await say_and_reflect(session, "The mapper is SQLAlchemy then.", "It is decided.")
        language, mapper = await session.facts()
        assert mapper.depends_on == (language.id,)
        copy = await session.copy(session_id="copy")
        assert [fact.depends_on for fact in await copy.facts()][1] == ((await copy.facts())[0].id,)
        await say_and_reflect(session, "We take Go.", "It is decided.")
        assert list(doubt_labels(await session.facts())) == [mapper.content]
        await say_and_reflect(session, "Nothing new about that.", "It is decided.")
        assert [fact.doubt is not None for fact in reflector.requests[-1].facts] == [True, False]
        await session.unstate("backend", "language")
        assert list(doubt_labels(await session.facts())) == [mapper.content]
        await session.state("backend", "orm", "SQLAlchemy")
        assert not doubt_labels(await session.facts()), "somebody says so again"


async def test_what_is_in_doubt_and_kept_is_said_again(storage: Storage) -> None:
    def kept(request: ReflectionRequest) -> object:
        return says(*(Proposal(action="keep", fact_id=fact.id) for fact in request.facts))

    orm = one("backend", "orm", "SQLAlchemy for Python")
    language = one("backend", "language", "Python"), one("backend", "language", "Go")
    reflector = Scripted(says(language[0]), says(orm), says(language[1]), kept)
    async with ACMS("kept", storage, None, reflector=reflector, config=doubt_config()) as session:
        for text in ("We build it in Python.", "The mapper follows.", "We take Go."):
            await say_and_reflect(session, text, "It is decided.")
        assert list(doubt_labels(await session.facts())) == [orm.content]
        await say_and_reflect(session, "All of that stays.", "It is decided.")
        facts = {fact.content: fact for fact in await session.facts()}
        assert not doubt_labels(list(facts.values()))
        assert facts[orm.content].replaces
        assert not facts[language[1].content].replaces[1:]


@pytest.mark.parametrize(
    ("first", "follows", "change", "flagged"),
    [
        (("service", "runtime", "Python 3.12"), "We pin ruff because of Python.", "Python 3.13", False),
        (("service", "runtime", "Python 3.12"), "The wheel needs 3.12.", "Go", False),
        (("service", "runtime", "Python 3.12"), "We pin ruff because of Python.", "Go", True),
        (("office", "heating", "gas boiler"), "The gas boiler stands in the basement.", "heat pump", True),
        (("office", "heating", "gas boiler"), "Gas is delivered on Mondays.", "heat pump", False),
        (("Büro", "Sitz", "東京本社"), "会議室は東京本社にある。", "大阪", True),
    ],
)
async def test_what_is_taken_from_a_fact_decides(
    storage: Storage, first: tuple[str, str, str], follows: str, change: str, flagged: bool
) -> None:
    async with ACMS("taken", storage, None) as session:
        await session.state(*first)
        await session.state("note", "text", follows)
        await session.state(*first[:2], change)
        assert bool(doubt_labels(await session.facts())) is flagged


class Wordy:
    """Summarises in one sentence that keeps the decisions."""

    model = "wordy/1"

    async def summarize(self, request: object) -> str:
        return "The backend is in Python, the mapper is SQLAlchemy, and rows of an import were read."


async def test_a_summary_of_what_is_no_longer_so_says_it_in_a_recall(storage: Storage) -> None:
    async with ACMS(
        "summed", storage, None, reflector=OfflineReflector(), config=doubt_config(), summarizer=Wordy()
    ) as session:
        await say_and_reflect(
            session, *CHAIN.values(), *(f"Row {n} of the import was read. " * 30 for n in range(8))
        )
        done = await session.wait(await session.compact(preserve_recent_count=2))
        assert "Python" in (done.summary or "")
        await say_and_reflect(session, CHANGE)
        items = await session.recall("Which mapper has the Python backend?", budget=2000)
        (shown,) = [item.content for item in items if item.version == done.version]
        assert DOUBT in shown
