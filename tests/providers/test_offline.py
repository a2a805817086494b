"""The offline reflector: whole episodes, what they change about what is known, and silence where nothing is said."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from acms.knowledge import Fact, Proposal
from acms.model import Origin
from acms.ports import ReflectionRequest, Reflector, Turn
from acms.providers import OfflineReflector
from acms.providers.tokens import default_counter
from acms_eval import corrections, run

SAID = datetime(2026, 3, 2, tzinfo=UTC)


def turn(version: int, text: str, origin: Origin = Origin.USER, **more: object) -> Turn:
    given = {"speaker": origin.value, "created_at": SAID, **more}
    return Turn(text=text, version=version, origin=origin, **given)  # pyright: ignore[reportArgumentType]


async def reflect(said: Sequence[str | Turn], facts: Sequence[Fact] = ()) -> list[Proposal]:
    turns = tuple(turn(n, one) if isinstance(one, str) else one for n, one in enumerate(said, 1))
    request = ReflectionRequest(
        turns=turns, facts=tuple(facts), max_summary_tokens=100, counter=default_counter()
    )
    reflection = await OfflineReflector().reflect(request)
    assert reflection.summary is None
    assert reflection.unreadable == ()
    return [one for one in reflection.proposals if one.confidence >= 0.7]


def fact(id: str, subject: str, attribute: str, value: str, content: str = "", **more: object) -> Fact:
    given = {"cardinality": "one", "content": content or f"The {attribute} is {value}.", **more}
    return Fact(id=id, subject=subject, attribute=attribute, value=value, **given)  # pyright: ignore[reportArgumentType]


CACHE = fact("f1", "project", "cache layer", "Redis")
BUDGET = fact("f2", "project", "budget", "40,000 dollars")
DEADLINE = fact("f3", "project", "deadline", "May 5")
FRAMEWORK = fact("f4", "project", "API framework", "Flask")
NUTS = fact("f5", "user", "allergy", "nuts", "The user is allergic to nuts.", cardinality="many")
KNOWN = [CACHE, BUDGET, DEADLINE, FRAMEWORK, NUTS]


async def test_it_is_a_reflector_with_a_name() -> None:
    reflector: Reflector = OfflineReflector()
    assert OfflineReflector.model == "offline1"
    assert reflector is not None


async def test_an_episode_becomes_facts_that_cite_their_turns() -> None:
    found = await reflect(
        [
            "Hi!\nDecision: the cache layer is Redis.",
            turn(2, "Noted, Redis it is.", Origin.ASSISTANT),
            "The budget is 40,000 dollars and the deadline is May 5.",
            turn(4, "Constraint: the deadline is May 9.", Origin.TOOL),
            "Never deploy on Fridays. What else do you need?",
            turn(6, "Decision: use MongoDB.", Origin.EXTERNAL),
            turn(7, "Decision: old summary", Origin.USER, summary=True),
        ]
    )
    assert [(one.action, one.attribute, one.value, one.sources) for one in found] == [
        ("add", "cache layer", "Redis", (1,)),
        ("add", "budget", "40,000 dollars", (3,)),
        ("add", "deadline", "May 5", (3,)),
        ("add", "rule", "deploy on Fridays", (5,)),
    ]
    assert [one.confidence for one in found] == [0.95, 0.8, 0.8, 0.8]
    assert found[2].valid_to == datetime(2026, 5, 5, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "id", "value"),
    [
        ("Correction: the cache layer is now KeyDB instead of Redis.", "f1", "KeyDB"),
        ("Decision: our cache is Valkey now.", "f1", "Valkey"),
        ("We use Memcached for caching.", "f1", "Memcached"),
        ("We're switching from Redis to KeyDB.", "f1", "KeyDB"),
        ("We replaced Redis with Dragonfly.", "f1", "Dragonfly"),
        ("Drop Redis and use Valkey.", "f1", "Valkey"),
        ("Update: the budget is now 45,000 dollars.", "f2", "45,000 dollars"),
        ("The budget was raised to $50k.", "f2", "$50k"),
        ("Actually make that 64,000 dollars.", "f2", "64,000 dollars"),
        ("The due date is May 9.", "f3", "May 9"),
        ("The deadline moved from May 5 to May 12.", "f3", "May 12"),
        ("Switching from Flask to FastAPI for async support.", "f4", "FastAPI"),
        ("Replace Flask by Litestar as the API framework.", "f4", "Litestar"),
    ],
)
async def test_a_correction_supersedes_what_is_in_force(text: str, id: str, value: str) -> None:
    (found,) = await reflect([text], KNOWN)
    before = next(one for one in KNOWN if one.id == id)
    assert (found.action, found.fact_id, found.value) == ("update", id, value)
    assert (found.subject, found.attribute, found.cardinality) == (before.subject, before.attribute, "one")
    assert before.value.lower() not in found.content.lower()
    assert value in found.content


async def test_a_fact_says_only_what_is_so_now() -> None:
    (found,) = await reflect(["Switching from Flask to FastAPI for async support."], KNOWN)
    assert found.content == "API framework: FastAPI (for async support)."


@pytest.mark.parametrize(
    "text",
    [
        "The cache layer is Redis.",
        "We use Redis for caching.",
        "I'm allergic to nuts.",
        "Our budget is 40,000 dollars.",
    ],
)
async def test_what_is_known_already_is_not_proposed_again(text: str) -> None:
    assert await reflect([text], KNOWN) == []


async def test_allergies_add_up() -> None:
    (found,) = await reflect(["I'm allergic to shellfish."], KNOWN)
    assert (found.action, found.subject, found.attribute, found.cardinality) == (
        "add",
        "user",
        "allergy",
        "many",
    )


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("We no longer use Redis.", "f1"),
        ("Redis is no longer needed.", "f1"),
        ("The budget limit was lifted; the budget is no longer valid.", "f2"),
        ("I'm no longer allergic to nuts.", "f5"),
        ("We got rid of Flask.", "f4"),
    ],
)
async def test_what_has_ended_is_removed(text: str, id: str) -> None:
    found = await reflect([text], KNOWN)
    assert [(one.action, one.fact_id) for one in found] == [("remove", id)]


async def test_a_correction_without_a_subject_means_what_was_just_spoken_of() -> None:
    found = await reflect(["The port is 8080.", "Sorry, make that 9090."], KNOWN)
    assert [(one.attribute, one.value) for one in found] == [("port", "8080"), ("port", "9090")]
    found = await reflect(["The cache is Redis. Scratch that, it's KeyDB now."])
    assert [(one.attribute, one.value) for one in found] == [("cache", "Redis"), ("cache", "KeyDB")]


@pytest.mark.parametrize(
    "text",
    [
        "It's PostgreSQL now.",
        "Actually make that Django.",
        "Switching to Valkey.",
        "We no longer use MongoDB.",
    ],
)
async def test_nothing_is_proposed_when_two_facts_could_be_meant_or_none(text: str) -> None:
    assert await reflect([text], KNOWN) == []


async def test_the_same_value_in_two_places_is_corrected_only_where_it_is_said() -> None:
    queue = fact("f9", "project", "queue", "Redis")
    assert await reflect(["We no longer use Redis."], [CACHE, queue]) == []
    assert await reflect(["We replaced Redis with Valkey."], [CACHE, queue]) == []
    (found,) = await reflect(["We no longer use Redis for caching."], [CACHE, queue])
    assert found.fact_id == "f1"
    (found,) = await reflect(["We replaced Redis with NATS as the queue."], [CACHE, queue])
    assert found.fact_id == "f9"


async def test_an_address_in_force_is_used_for_other_words_of_the_same_topic() -> None:
    database = fact("f8", "orders service", "database", "MySQL")
    (found,) = await reflect(["The orders DB is PostgreSQL."], [database])
    assert (found.fact_id, found.subject, found.attribute) == ("f8", "orders service", "database")


async def test_topics_that_only_share_a_word_stay_apart() -> None:
    (found,) = await reflect(["The marketing budget is 10,000 dollars."], KNOWN)
    assert (found.action, found.fact_id) == ("add", None)
    (found,) = await reflect(["The test database is SQLite."], [fact("f7", "project", "database", "Oracle")])
    assert found.fact_id is None


async def test_the_newest_of_two_values_comes_last() -> None:
    found = await reflect(["The cache layer is KeyDB.", "Update: the cache layer is Valkey."], KNOWN)
    assert [(one.fact_id, one.value) for one in found] == [("f1", "KeyDB"), ("f1", "Valkey")]


@pytest.mark.parametrize(
    ("first", "then", "proposed"),
    [
        (
            "We use Redis for caching.",
            "We're switching from Redis to Valkey.",
            [("add", "caching", "Redis", 1, "one"), ("add", "caching", "Valkey", 3, "one")],
        ),
        (
            "We use Flask.",
            "We're switching from Flask to FastAPI.",
            [
                ("add", "technology", "Flask", 1, "many"),
                ("remove", "technology", "Flask", 3, None),
                ("add", "technology", "FastAPI", 3, "many"),
            ],
        ),
        (
            "The port is 8080.",
            "The port is no longer valid.",
            [("add", "port", "8080", 1, "one"), ("remove", "port", "8080", 3, None)],
        ),
    ],
)
async def test_what_is_said_and_corrected_later_in_one_episode_is_proposed_in_order(
    first: str, then: str, proposed: list[tuple[object, ...]]
) -> None:
    found = await reflect([first, turn(2, "Fine.", Origin.ASSISTANT), then])
    assert [
        (one.action, one.attribute, one.value, *one.sources, one.cardinality) for one in found
    ] == proposed
    assert {one.fact_id for one in found} == {None}
    assert first.rstrip(".") not in found[-1].content


async def test_what_is_taken_back_in_the_same_turn_is_not_proposed() -> None:
    assert await reflect(["The port is 8080. The port is no longer valid."]) == []
    (found,) = await reflect(["We use Flask. No, we switched from Flask to FastAPI."])
    assert (found.action, found.value) == ("add", "FastAPI")


async def test_a_change_of_one_part_leaves_the_other_as_it_was_said() -> None:
    found = await reflect(
        [
            "The budget is 40,000 dollars and the deadline is March 15.",
            "Actually, the deadline is April 2.",
        ]
    )
    assert [one.content for one in found] == [
        "The budget is 40,000 dollars.",
        "The deadline is March 15.",
        "The deadline is April 2.",
    ]


async def test_people_are_named_when_they_have_names() -> None:
    found = await reflect(
        [turn(1, "I live in Porto.", speaker="ines"), turn(2, "I live in Oslo.", speaker="jon")]
    )
    assert [(one.subject, one.value, one.content) for one in found] == [
        ("ines", "Porto", "ines lives in Porto."),
        ("jon", "Oslo", "jon lives in Oslo."),
    ]


async def test_the_same_turns_give_the_same_proposals() -> None:
    said = [
        "Decision: use Redis for caching.",
        "The budget is 9,000 dollars.",
        "We use Kafka as the event bus.",
    ]
    assert await reflect(said, KNOWN) == await reflect(said, KNOWN)


async def test_small_talk_changes_nothing() -> None:
    said = [
        "Hi there!",
        "How was your weekend?",
        "I had pasta.",
        "The weather is lovely.",
        "Thanks, see you!",
    ]
    assert await reflect(said, KNOWN) == []


async def test_a_long_stretch_is_read_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    to_thread = asyncio.to_thread

    async def noted(*arguments: object) -> object:
        result = await to_thread(
            lambda: (threads.add(threading.get_ident()), arguments[0](*arguments[1:]))[1]
        )  # pyright: ignore
        return result

    monkeypatch.setattr(asyncio, "to_thread", noted)
    assert await reflect(["Fine. " * 10]) == []
    assert not threads
    assert await reflect(["That went well. " * 10_000]) == []
    assert threads
    assert threading.get_ident() not in threads


# ── through the engine ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", [11, 12])
async def test_corrections_behind_markers_reach_what_is_recalled(seed: int) -> None:
    report = await run(corrections(turns=200, seed=seed), reflector=OfflineReflector())
    figures = report.figures()
    assert (figures["hit"] or 0) >= 0.95
    assert (figures["stale"] or 0) <= 0.05


# ── real conversations ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_chatter_between_people_gives_few_facts(data_dir: Path) -> None:
    turns = facts = 0
    for file in sorted((data_dir / "locomo-dev").glob("*.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        conversation = (document[0] if isinstance(document, list) else document)["conversation"]
        for name, session in conversation.items():
            if name.startswith("session_") and isinstance(session, list):
                said = [turn(n, one["text"], speaker=one["speaker"]) for n, one in enumerate(session, 1)]
                turns += len(said)
                facts += len(await reflect(said))
    assert turns > 2000
    assert facts < turns / 50
