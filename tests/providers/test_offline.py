"""The offline reflector: marked lines, what supersedes what, and silence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from acms import ACMS, Fact, Origin
from acms.ports import Proposal, ReflectionRequest, Reflector, Turn
from acms.providers import OfflineReflector
from acms.providers.tokens import default_counter
from acms.storage import MemoryStorage
from acms_eval import corrections, run
from acms_eval.datasets import read_conversations
from tests.support.talk import ingest_texts, session_on


def make_turn(version: int, text: str, origin: Origin = Origin.USER, **more: object) -> Turn:
    given = {"speaker": origin.value, **more}
    return Turn(text=text, version=version, origin=origin, **given)  # pyright: ignore[reportArgumentType]


async def reflect_on(said: Sequence[str | Turn], facts: Sequence[Fact] = ()) -> list[Proposal]:
    turns = tuple(make_turn(n, one) if isinstance(one, str) else one for n, one in enumerate(said, 1))
    request = ReflectionRequest(
        turns=turns, facts=tuple(facts), max_summary_tokens=100, counter=default_counter()
    )
    reflection = await OfflineReflector().reflect(request)
    assert (reflection.summary, reflection.unreadable) == (None, ())
    return list(reflection.proposals)


def make_fact(id: str, content: str, **more: object) -> Fact:
    given = {"fact_type": "decision", "subject": "project", "attribute": "decision", "value": content, **more}
    return Fact(id=id, content=content, **given)  # pyright: ignore[reportArgumentType]


async def test_a_decision_corrected_among_forty_messages_is_the_only_one_in_force() -> None:
    said = {
        3: "Decision: Use JWT tokens for auth.",
        25: "Decision: We're switching to session cookies — JWT was too complex.",
    }
    async with ACMS("s", MemoryStorage(), reflector=OfflineReflector()) as session:
        for number in range(1, 41):
            text = said.get(number, f"Filler {number}: can you elaborate?")
            await session.ingest("user" if number % 2 else "assistant", text)
        await session.wait_pending()
        assert [one.value for one in await session.facts()] == ["session cookies"]
        items = await session.recall("What auth method are we using?", budget=2000)
        assert "session cookies" in items[0].content
        assert not any("Use JWT" in item.content for item in items)


async def test_it_is_a_reflector_with_a_name() -> None:
    reflector: Reflector = OfflineReflector()
    assert OfflineReflector.model == "offline5"
    assert reflector is not None


# ── marked lines ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "kind", "content"),
    [
        (
            "Decision: SQLAlchemy needs us to define models.",
            "decision",
            "SQLAlchemy needs us to define models.",
        ),
        ("Decision: Wir nehmen Redis für den Cache.", "decision", "Wir nehmen Redis für den Cache."),
        ("Decision: 我们用 Flask 做接口。", "decision", "我们用 Flask 做接口。"),
        ("- **Decision:** *one* region for all.", "decision", "one* region for all."),
        ("Hi!\nConstraint: invoices stay ten years.\nBye.", "constraint", "invoices stay ten years."),
        ("Budget: 2,400 EUR a month.", "constraint", "Budget: 2,400 EUR a month."),
        ("Cannot: deploy on Fridays.", "constraint", "Cannot: deploy on Fridays."),
        ("Tried but: the proxy ate the headers.", "failure", "Tried but: the proxy ate the headers."),
        ("Goal: ship by May. Is that all right?", "goal", "ship by May."),
        ("Decision: PostgreSQL", "decision", "Decision: PostgreSQL"),
        ("Decision:\n\nWe keep\nthe monolith.\n\nLunch?", "decision", "We keep the monolith."),
        ("Decision: two stores:\n- orders\n- bills", "decision", "two stores: - orders - bills"),
    ],
)
async def test_a_marked_line_is_a_fact_in_its_own_words(text: str, kind: str, content: str) -> None:
    (found,) = await reflect_on([text])
    assert (found.action, found.fact_type, found.content) == ("add", kind, content)
    assert (found.confidence, found.sources) == (0.95, (1,))


async def test_a_marker_that_the_caller_set_counts_for_the_labelled_line_or_for_what_is_said_first() -> None:
    said = [
        make_turn(1, "Hallo!\nEntscheidung: Wir nehmen Redis.\nBis dann.", markers=("decision",)),
        make_turn(2, "Todo: call the bank.", markers=("todo",)),
        make_turn(3, "Everything runs in Oslo.\n\nLunch?", markers=("constraint",)),
    ]
    assert [(one.fact_type, one.content) for one in await reflect_on(said)] == [
        ("decision", "Entscheidung: Wir nehmen Redis."),
        ("todo", "call the bank."),
        ("constraint", "Everything runs in Oslo."),
    ]


LONG = "\n\nSo much for the plan, which has many more parts than these. " * 20


@pytest.mark.parametrize(
    "said",
    [
        make_turn(1, "Decision: use MongoDB.", Origin.TOOL),
        make_turn(1, "Decision: use MongoDB.", Origin.EXTERNAL),
        make_turn(1, "Decision: use MongoDB.", summary=True),
        make_turn(1, "Decision: shall we use MongoDB?"),
        make_turn(1, "Decision:"),
        make_turn(1, "It says\n```\nError: cannot bind\n```\nDecision follows.", markers=("failure",)),
        make_turn(1, f"- **Task:** write the tests.{LONG}", Origin.ASSISTANT, markers=("goal",)),
    ],
)
async def test_what_is_marked_elsewhere_is_no_fact(said: Turn) -> None:
    assert await reflect_on([said]) == []


async def test_an_assistant_decides_at_length_too() -> None:
    (found,) = await reflect_on([make_turn(1, f"Decision: cutover on Tuesday.{LONG}", Origin.ASSISTANT)])
    assert found.content == "cutover on Tuesday."


async def test_a_long_line_ends_with_a_sentence() -> None:
    (found,) = await reflect_on([f"Decision: one. {'And so on and so forth. ' * 100}"])
    assert 500 < len(found.content) <= 600
    assert found.content.endswith("so forth.")


@pytest.mark.parametrize(
    ("text", "attribute", "value", "cardinality"),
    [
        ("the deadline is July 9, and that is final.", "deadline", "July 9", "one"),
        ("Actually, our search engine is OpenSearch.", "search engine", "OpenSearch", "one"),
        ("Gcore is our CDN.", "CDN", "Gcore", "one"),
        ("use Valkey as the cache.", "cache", "Valkey", "one"),
        ("tests are written with Jest.", "tests are written with", "Jest", "one"),
        ("we'll use Flask for the API framework.", "API framework", "Flask", "many"),
        ("the API is slow.", "decision", "the API is slow.", "many"),
        ("it is Tuesday.", "decision", "it is Tuesday.", "many"),
    ],
)
async def test_a_marked_line_has_the_address_that_it_names(
    text: str, attribute: str, value: str, cardinality: str
) -> None:
    (found,) = await reflect_on([f"Decision: {text}"])
    assert (found.attribute, found.value, found.cardinality) == (attribute, value, cardinality)


# ── unmarked sentences ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        "My name is Ada Byron.",
        "The budget is $40,000.",
        "We use Redis for caching.",
        "I live in Porto.",
        "If we used Redis for caching, it would be faster.",
        "He said the database is PostgreSQL.",
        "We are switching from Flask to FastAPI.",
        "```\nDecision: the database is PostgreSQL.\n```",
    ],
)
async def test_what_is_not_marked_is_no_fact(text: str) -> None:
    assert await reflect_on([text]) == []


# ── corrections in a session ────────────────────────────────────────────────────────────────────────────────────────


async def facts_after(*lines: str) -> list[str]:
    """Return the facts in force after each line was said in an episode of its own."""
    async with ACMS("s", MemoryStorage(), None, reflector=OfflineReflector()) as session:
        for line in lines:
            await session.ingest("user", line)
            await session.ingest("assistant", "Can you elaborate on that?")
            await session.close_episode()
            await session.wait_pending()
        return [one.content for one in await session.facts()]


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("Decision: we host on Heroku.", "Decision: hosting moves to Hetzner."),
        ("Decision: we host on Heroku.", "Decision: Hetzner takes over from Heroku."),
        ("Decision: the API is REST.", "Decision: forget REST, the API speaks gRPC."),
        ("Decision: the API is REST.", "Decision: the API will be GraphQL."),
        ("Decision: auth is done with JWT tokens.", "Decision: session cookies replace JWT for auth."),
        ("Constraint: releases only on Mondays.", "Constraint: releases only on Thursdays."),
        ("Constraint: invoices stay 10 years.", "Constraint: invoices stay 12 years."),
        (
            "Decision: Use Flask as the API framework",
            "Decision: Actually, we're switching from Flask to FastAPI for async support.",
        ),
        (
            "Decision: We'll use Flask because the team knows it.",
            "Decision: actually, we are switching the API framework from Flask to FastAPI for async support",
        ),
        (
            "Decision: Use JWT tokens for auth.",
            "Decision: We're switching to session cookies, JWT was too complex.",
        ),
    ],
)
async def test_a_later_line_supersedes_the_one_it_corrects(older: str, newer: str) -> None:
    assert await facts_after(older, newer) == [newer.split(": ", 1)[1]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # Of somebody else.
        ("Decision: we host on Heroku.", "Decision: the client hosts on Hetzner."),
        ("Decision: the API is REST.", "Decision: the partner's API is SOAP."),
        ("Decision: Ana owns billing.", "Decision: Ben owns search."),
        # Only thought of, or rejected.
        ("Decision: we host on Heroku.", "Decision: if prices rise, we move to Hetzner."),
        ("Decision: the API is REST.", "Decision: the API might be GraphQL one day."),
        ("Decision: we host on Heroku.", "Decision: we will not move from Heroku to Hetzner."),
        # Over.
        ("Decision: we host on Heroku.", "Decision: in 2019 the blog was on Hetzner."),
        ("Decision: the deadline is March 15.", "Decision: last year the deadline was April 2."),
        # About different things, however alike.
        ("Decision: the API is REST.", "Decision: the admin API is GraphQL."),
        ("Decision: we use Flask.", "Decision: since we chose Flask, we use SQLAlchemy."),
        ("Decision: use Redis for caching.", "Decision: use Redis for sessions."),
        ("Decision: we host on Heroku.", "Decision: our docs moved to Netlify."),
        ("Constraint: releases only on Mondays.", "Constraint: hotfixes only on Thursdays."),
        ("Constraint: server 1 has 4 GB.", "Constraint: server 2 has 4 GB."),
        ("Goal: ship milestone 1.", "Goal: ship milestone 2."),
        ("Constraint: invoices stay 10 years.", "Constraint: contracts stay 5 years."),
        ("Constraint: uploads are at most 5 MB.", "Constraint: downloads are at most 50 MB."),
    ],
)
async def test_a_line_that_corrects_nothing_supersedes_nothing(one: str, other: str) -> None:
    assert await facts_after(one, other) == [line.split(": ", 1)[1] for line in (one, other)]


# ── corrections ─────────────────────────────────────────────────────────────────────────────────────────────────────

FLASK = make_fact("f1", "We'll use Flask for the API.", attribute="API", value="Flask")
TOKENS = make_fact("f2", "Use JWT tokens for auth.", attribute="auth", value="JWT tokens")
PYTHON = make_fact("f3", "We're building a Python backend.")
KNOWN = [FLASK, TOKENS, PYTHON]


@pytest.mark.parametrize(
    ("text", "id", "value"),
    [
        ("Actually, we're switching from Flask to FastAPI for async support.", "f1", "FastAPI"),
        ("Replace Flask with Litestar.", "f1", "Litestar"),
        ("Use Litestar instead of Flask.", "f1", "Use Litestar instead of Flask."),
        ("The API runs on Litestar, not Flask.", "f1", "The API runs on Litestar, not Flask."),
        ("Wir wechseln von Flask auf Litestar.", "f1", "Litestar"),
        ("Cambiamos de Flask a Litestar.", "f1", "Litestar"),
        ("On remplace Flask par Litestar.", "f1", "Litestar"),
        ("从 Flask 换成 Litestar。", "f1", "Litestar"),
        ("We're switching to session cookies — JWT was too complex.", "f2", "session cookies"),
        ("Use session cookies for auth instead.", "f2", "session cookies"),
        ("We no longer use JWT; cookies do.", "f2", "We no longer use JWT; cookies do."),
    ],
)
async def test_a_marked_line_takes_the_place_of_what_it_says_is_gone(text: str, id: str, value: str) -> None:
    (found,) = await reflect_on([f"Decision: {text}"], KNOWN)
    assert (found.action, found.fact_id, found.content, found.value) == ("update", id, text, value)


@pytest.mark.parametrize(
    "text",
    [
        "Decision: Since we chose Python, we'll use SQLAlchemy as the ORM.",
        "Decision: SQLAlchemy replaces raw SQL in the Python backend.",
        "Decision: Flask runs behind nginx.",
        "Decision: we're moving the tests to pytest.",
        "Decision: we decided against switching from Flask to FastAPI.",
        "Decision: if it gets slow, we replace Flask with FastAPI.",
        "Decision: we might switch from Flask to FastAPI.",
        "Decision: use Redis for sessions instead.",
        "Constraint: never use Flask instead of JWT.",
        "Failed: switching from Flask to FastAPI.",
        "My colleague replaced Flask with FastAPI.",
    ],
)
async def test_what_builds_on_a_fact_or_denies_a_change_ends_nothing(text: str) -> None:
    assert {one.fact_id for one in await reflect_on([text], KNOWN)} <= {None}


async def test_where_two_facts_could_be_meant_none_is() -> None:
    other = make_fact("f9", "Flask serves the admin pages, too.")
    (found,) = await reflect_on(["Decision: we're switching from Flask to FastAPI."], [FLASK, other])
    assert (found.action, found.fact_id) == ("add", None)


async def test_what_is_known_word_by_word_is_not_proposed_again() -> None:
    assert await reflect_on(["Decision: We're building a Python backend."], KNOWN) == []


async def test_the_same_turns_give_the_same_proposals() -> None:
    said = [
        "Decision: use Redis for caching.",
        "The budget is 9,000 dollars.",
        "Decision: replace Flask with X.",
    ]
    assert await reflect_on(said, KNOWN) == await reflect_on(said, KNOWN)


# ── through the engine ──────────────────────────────────────────────────────────────────────────────────────────────


async def known_after(said: Sequence[str], *, together: bool) -> list[str]:
    async with session_on(MemoryStorage(), reflector=OfflineReflector()) as session:
        for text in said:
            await ingest_texts(session, text, "Noted.", close=not together)
            await session.wait_pending()
        if together:
            await session.close_episode()
        await session.wait_pending()
        return [one.content for one in await session.facts()]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("said", "left"),
    [
        (
            [
                "We'll use Flask for the API framework.",
                "Actually, we're switching from Flask to FastAPI for async support.",
            ],
            1,
        ),
        (["Use JWT tokens for auth.", "We're switching to session cookies — JWT was too complex."], 1),
        (["The deadline is July 9.", "the deadline is September 12 now, the client asked for it."], 1),
        (
            [
                "We're building a Python backend.",
                "Since we chose Python, we'll use SQLAlchemy as the ORM.",
                "SQLAlchemy needs us to define models — using the declarative base pattern.",
            ],
            3,
        ),
    ],
)
async def test_a_decision_that_is_taken_again_leaves_one_and_a_chain_leaves_all(
    said: list[str], left: int, together: bool
) -> None:
    assert await known_after([f"Decision: {text}" for text in said], together=together) == said[-left:]


@pytest.mark.parametrize(
    "text",
    [
        "We're switching to session cookies — JWT was too complex.",
        "Actually, use session cookies instead of JWT.",
        "Use session cookies for auth instead.",
        "Replace JWT with session cookies.",
        "Session cookies it is; JWT was too complex.",
        "Drop JWT, go with session cookies.",
        "We moved from JWT to session cookies.",
        "Auth uses session cookies now.",
        "Session cookies for auth, not JWT.",
        "Auth: session cookies.",
        "We no longer use JWT; session cookies handle auth.",
        "Use session cookies for auth.",
        "Auth is session cookies from now on.",
        "JWT is out, session cookies are in.",
        "Let's go with session cookies rather than JWT tokens.",
    ],
)
async def test_however_a_correction_is_worded_it_is_a_fact(text: str) -> None:
    known = await known_after(["Decision: Use JWT tokens for auth.", f"Decision: {text}"], together=False)
    assert known[-1] == text


@pytest.mark.parametrize("seed", [11, 12])
async def test_corrections_behind_markers_reach_what_is_recalled(seed: int) -> None:
    figures = (await run(corrections(turns=200, seed=seed), reflector=OfflineReflector())).figures()
    assert (figures["hit"] or 0) >= 0.9
    assert (figures["stale"] or 0) <= 0.1


# ── time, and real conversations ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        "the a " * 20_000,
        "Decision: " + "a " * 60_000,
        "Decision:\n" * 5_000,
        "Decision: switch from " * 5_000,
        "\n".join(f"Decision: switch from a{n} to b{n}" for n in range(2_000)),
        "a:" * 50_000,
    ],
)
async def test_any_text_is_read_to_its_end(text: str) -> None:
    """One that a pattern went through again and again would take hours."""
    await reflect_on([make_turn(1, text, markers=("decision",))], KNOWN)


async def test_a_long_stretch_is_read_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    to_thread = asyncio.to_thread

    async def noted(call: Callable[[Any], Any], given: Any) -> Any:
        def there() -> Any:
            threads.add(threading.get_ident())
            return call(given)

        return await to_thread(there)

    monkeypatch.setattr(asyncio, "to_thread", noted)
    assert await reflect_on(["Fine. " * 10]) == []
    assert not threads
    assert await reflect_on(["That went well. " * 10_000]) == []
    assert threads
    assert threading.get_ident() not in threads


async def test_chatter_between_people_gives_few_facts(data_dir: Path) -> None:
    turns = facts = 0
    for conversation in read_conversations(data_dir / "locomo-dev"):
        said = [make_turn(n, one.text, speaker=one.speaker) for n, one in enumerate(conversation.said, 1)]
        turns += len(said)
        facts += len(await reflect_on(said))
    assert turns > 2000
    assert facts < turns / 100
