"""Facts by hand: stated and withdrawn by the rules of reflection, found under their names, and told of by erasure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from acms import (
    ACMS,
    ACMSConfig,
    ConflictError,
    EntryNotFoundError,
    PreconditionError,
    Privacy,
    PrivacyConfig,
    Remaining,
    StorageError,
    ValidationError,
    open_storage,
)
from acms.codecs import OpenAIChat
from acms.model import Append
from acms.prompt import Prompt
from acms.providers import OfflineReflector
from acms.storage import WrapperStorage

ADDRESS = "orders service", "database"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'hand.db'}"


async def fact_values(session: ACMS, **given: Any) -> list[str]:
    return [fact.value for fact in await session.facts(**given)]


async def test_a_fact_by_hand_follows_the_rules(url: str) -> None:
    """Supersession by address, history, undo, provenance, fork, an end, and a repetition that changes nothing."""
    async with ACMS("user", open_storage(url), None) as session:
        old = await session.state(*ADDRESS, "MySQL 8", names=["checkout db"])
        assert (old.names, old.sources, old.trust, old.cardinality) == (("checkout db",), (), "user", "one")
        assert (
            await session.state("the Orders Services", "Databases", "mysql 8", names=["checkout db"]) == old
        )
        source = await session.ingest("user", "We moved it to PostgreSQL 18 now.", idempotency_key="turn-1")
        new = await session.state(*ADDRESS, "PostgreSQL 18", sources=["turn-1"])
        assert (new.sources, new.replaces) == ((source,), (old.id,))
        assert await fact_values(session) == ["PostgreSQL 18"]
        assert await fact_values(session, history=True) == ["MySQL 8", "PostgreSQL 18"]
        assert await fact_values(await session.fork(at=old.version, session_id="fork")) == ["MySQL 8"]
        await session.undo(new.version)
        assert await fact_values(session) == ["MySQL 8"]
        renamed = await session.state(*ADDRESS, "MySQL 8", names=["till"])
        assert (renamed.names, renamed.replaces) == (("till",), (old.id,))
        for value in ("nuts", "shellfish", "nuts"):
            await session.state("user", "allergy", value, cardinality="many")
        assert await fact_values(session, subject="user") == ["nuts", "shellfish"]
        (gone,) = await session.unstate(*ADDRESS)
        assert gone.retired is not None
        assert (gone.id, gone.retired.reason) == (renamed.id, "removed")
        assert await session.unstate(*ADDRESS) == []
        again = await session.state(*ADDRESS, "PostgreSQL 18", sources=["turn-1"])
        await session.retract(source)
        assert again.id not in [fact.id for fact in await session.facts()]


async def test_things_whose_names_differ_in_a_sign_keep_a_value_each(url: str) -> None:
    async with ACMS("s", open_storage(url)) as session:
        for subject in ("C", "C++", "C#", "node 1", "node -1", "db"):
            await session.state(subject, "version", f"of {subject}")
        assert len(await session.facts(attribute="version")) == 6
        for asked, found in (("the DBs", "db"), ("c++", "C++"), ("C", "C")):
            assert [fact.subject for fact in await session.facts(subject=asked)] == [found]


async def test_it_is_found_under_its_names(url: str) -> None:
    async with ACMS("user", open_storage(url), None) as session:
        for number in range(40):
            await session.ingest("user", f"Walk {number} along the river was cold.")
        fact = await session.state("orders service", "owner", "Ada", names=["Kassenbuch", "till"])
        for query in ("Kassenbuch", "the till?", "orders service"):
            assert (await session.recall(query))[0].id == fact.id
        await session.close_episode()
    async with ACMS("user", open_storage(url), None) as anew:
        assert (await anew.recall("Kassenbuch"))[0].id == fact.id


async def test_hands_and_a_reflector_write_the_same_log(url: str) -> None:
    """A reflector does not override a fact stated by hand at once, and replaces it when a user says so."""
    async with ACMS("user", open_storage(url), None, reflector=OfflineReflector()) as session:
        stated = await session.state("project", "database", "MySQL")
        await session.ingest("user", "Decision: our database is PostgreSQL.")
        await session.close_episode()
        await session.wait(await session.reflect())
        (found,) = await session.facts()
        assert (found.value, found.replaces) == ("PostgreSQL", (stated.id,))
        assert await session.state("project", "database", "PostgreSQL") == found
        back = await session.state("project", "database", "MySQL")
        assert await session.facts() == [back]


async def test_two_at_once_leave_one_fact(url: str) -> None:
    async with (
        open_storage(url) as store,
        ACMS("user", store, None) as one,
        ACMS("user", store, None) as other,
    ):
        await one.ingest("user", "hello")
        same = await asyncio.gather(*(each.state("x", "y", "z") for each in (one, other)))
        assert same[0].id == same[1].id
        await asyncio.gather(*(each.state("x", "y", value) for each, value in ((one, "a"), (other, "b"))))
        (left,) = await one.facts()
        assert left.value in ("a", "b")


async def test_many_at_one_address_each_land_and_leave_one(any_url: str) -> None:
    """Three agents, each with a handle and sessions of its own, state in the profile of their namespace at once."""
    async with (
        open_storage(any_url) as one,
        open_storage(any_url) as two,
        open_storage(any_url) as three,
    ):
        handles = (one, one, one) if any_url.startswith("memory") else (one, two, three)
        agents = [ACMS(f"agent-{n}", handle, None, namespace="team") for n, handle in enumerate(handles)]
        said = [f"PostgreSQL {n}" for n in range(12)]
        done = await asyncio.gather(
            *[agents[n % 3].state(*ADDRESS, value, scope="namespace") for n, value in enumerate(said)]
        )
        assert len({fact.version for fact in done}) == len(said)
        assert {fact.scope for fact in done} == {"namespace"}
        for agent in agents:
            (now,) = await agent.facts(scope="namespace")
            assert now.version == max(fact.version for fact in done)
            told = await agent.facts(scope="namespace", history=True)
            assert sorted(fact.value for fact in told) == sorted(said)
            assert await agent.facts() == []
            assert (await agent.recall("Which database?", token_budget=200))[0].content == now.content
        both = await asyncio.gather(
            *[
                agents[n].state(*ADDRESS, f"MySQL {n}", scope="namespace", expected=now.version)
                for n in (0, 1)
            ],
            return_exceptions=True,
        )
        refused = [found for found in both if isinstance(found, PreconditionError)]
        assert len(refused) == 1
        (won,) = [found for found in both if not isinstance(found, BaseException)]
        (gone,) = await agents[2].unstate(*ADDRESS, scope="namespace")
        assert gone.id == won.id
        assert await agents[0].facts(scope="namespace") == []
        for agent in agents:
            await agent.close()


async def test_a_fact_is_stated_only_over_the_one_that_was_seen(url: str) -> None:
    async with ACMS("user", open_storage(url), None) as session:
        first = await session.state(*ADDRESS, "MySQL 8", expected=0)
        with pytest.raises(PreconditionError, match=f"version {first.version}, not 0"):
            await session.state(*ADDRESS, "PostgreSQL 18", expected=0)
        assert await session.state(*ADDRESS, "MySQL 8", expected=0) == first  # a repetition: it is so already
        await session.ingest("user", "Something else is said meanwhile.")
        second = await session.state(*ADDRESS, "PostgreSQL 18", expected=first.version)
        with pytest.raises(PreconditionError):
            await session.state(*ADDRESS, "SQLite", expected=first.version)
        assert await fact_values(session) == [second.value]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"subject": " "}, "subject"), ({"attribute": "??"}, "attribute"), ({"value": ""}, "value"),
        ({"value": 5}, "value"),
        ({"names": "db"}, "names"), ({"names": [""]}, "names"), ({"value": "long " * 800}, "value"),
        ({"names": [" "]}, "names"), ({"names": ["database " * 50]}, "names"),
        ({"scope": "team"}, "scope"), ({"expected": -1}, "expected"), ({"cardinality": "two"}, "cardinality"),
        ({"sources": "m_1"}, "sources"),
    ],
)  # fmt: skip
async def test_what_is_no_fact_is_refused(given: dict[str, Any], field: str) -> None:
    async with ACMS("user", open_storage("memory://"), None) as session:
        with pytest.raises(ValidationError) as refused:
            await session.state(**{"subject": "x", "attribute": "y", "value": "z", **given})
        assert refused.value.field == field
        with pytest.raises(EntryNotFoundError):
            await session.state("x", "y", "z", sources=["nobody said"])
        fact = await session.state("x", "y", "z")
        with pytest.raises(ValidationError, match="sources"):
            await session.state("x", "y", "w", sources=[fact.id])
        assert await session.facts(history=True) == [fact]


class Full(WrapperStorage):
    """Refuses every append."""

    async def append(self, ops: Sequence[Append]) -> Any:
        return [StorageError("the disk is full") for _ in ops]


async def test_a_store_that_refuses_tells_whoever_asks_for_facts_or_a_summary(url: str) -> None:
    async with open_storage(url) as storage:
        async with ACMS("user", storage, None) as session:
            await session.ingest("user", "We use MySQL 8.")
        async with ACMS("user", Full(storage), None, reflector=OfflineReflector()) as session:
            for verb in (
                lambda: session.state(*ADDRESS, "MySQL 8"),
                lambda: session.reflect(),
                lambda: session.compact(),
            ):
                with pytest.raises(StorageError, match="the disk is full"):
                    await verb()
            assert await session.facts() == []


async def test_names_are_private_too(url: str) -> None:
    config = ACMSConfig(privacy=PrivacyConfig(mode=Privacy.REDACT))
    stored = ACMSConfig(privacy=PrivacyConfig(mode=Privacy.REDACT, redact_before_persist=True))
    async with ACMS("user", open_storage(url), None) as session:
        await session.state("Ada", "office", "B 12", names=["ada@example.org"])
    async with ACMS("user", open_storage(url), None, config=config) as session:
        (fact,) = await session.facts()
        assert "example" not in str(fact)
    async with ACMS("other", open_storage(url), None, config=stored) as session:
        made = await session.state("Ada", "mail", "ada@example.org")
        assert "example" not in str(await session.get(made.id))


async def test_what_a_session_that_became_private_had_said_is_known_to_no_other(any_url: str) -> None:
    """For good: sharing brings nothing back. What names no source stands, and so does what another one says since."""
    storage = open_storage(any_url)
    async with (
        ACMS("a", storage, None, namespace="ana") as one,
        ACMS("b", storage, None, namespace="ana") as two,
    ):
        said = await one.ingest("user", "The keeper of the vault is Eve, its code is 1234.")
        await one.state("vault", "keeper", "Eve", sources=[said], scope="namespace")
        await one.state("vault", "code", "1234", sources=[said], scope="namespace")
        await one.state("vault", "colour", "red", scope="namespace")
        for _ in range(2):
            await one.set_private()
            assert await fact_values(two, scope="namespace") == ["red"]
            with pytest.raises(ConflictError, match="private") as refused:
                await one.state("vault", "keeper", "Eve", sources=[said], scope="namespace")
            assert not refused.value.retryable
        await one.state("vault", "keeper", "Eve", sources=[said])
        await one.set_private(False)
        assert await fact_values(two, scope="namespace") == ["red"]
        await one.state("vault", "keeper", "Eve", sources=[said], scope="namespace")
        assert "Eve" in await fact_values(two, scope="namespace")


async def test_no_rewrite_brings_back_what_a_private_session_taught(any_url: str) -> None:
    storage = open_storage(any_url)
    async with (
        ACMS("a", storage, None, namespace="ana") as one,
        ACMS("b", storage, None, namespace="ana") as two,
    ):
        said, heard = (
            await one.ingest("user", "She lives in Berlin."),
            await two.ingest("user", "It is Rome."),
        )
        await one.state("she", "city", "Berlin", sources=[said], scope="namespace")
        gone = await one.retract(said)
        await one.set_private()
        await one.undo(gone)
        assert await fact_values(two, scope="namespace") == []
        await one.set_private(False)
        await one.state("she", "city", "Berlin", sources=[said], scope="namespace")
        await two.state("she", "city", "Rome", sources=[heard], scope="namespace")
        await one.set_private()
        assert await fact_values(two, scope="namespace") == ["Rome"]
        await two.retract(heard)
        assert await fact_values(two, scope="namespace") == []


async def test_an_erasure_says_what_still_says_it(url: str) -> None:
    async with ACMS("user", open_storage(url), None) as session:
        source = await session.ingest("user", "The vault is behind the Monet picture.")
        fact = await session.state("vault", "place", "behind the Monet", sources=[source])
        done = await session.erase(fact.id)
        (context,) = done.contexts
        assert done.remaining == (
            Remaining(id=source, kind="source", of=fact.id, context=context, version=1),
        )
        alone = await session.state("vault", "place", "behind the Monet")
        await session.state("vault", "colour", "green")
        done = await session.erase(source)
        assert done.remaining == (
            Remaining(id=alone.id, kind="statement", of=source, context=context, version=3),
        )
        assert (await session.erase(alone.id, verify=True)).remaining == ()
    both = await _erase_source(url)
    assert both.remaining == ()


async def _erase_source(url: str) -> Any:
    """A source takes the fact that names it along: nothing is left to be told of."""
    async with ACMS("other", open_storage(url), None) as session:
        source = await session.ingest("user", "The vault is behind the Monet picture.")
        await session.state("vault", "place", "behind the Monet", sources=[source])
        return await session.erase(source)


async def test_rendered_messages_lead_back_to_their_originals(url: str) -> None:
    """A framework finds its own messages by the sources of the rendered prompt; the list stays a plain one."""
    originals = [
        {"role": "system", "content": "Answer shortly.", "id": "s"},
        *({"role": "user", "content": f"Walk {n} along the river was cold.", "id": f"u{n}"} for n in range(30)),
        {"role": "assistant", "content": "Looking.", "id": "a", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
        {"role": "tool", "content": "rain", "tool_call_id": "c1", "id": "t"},
    ]  # fmt: skip
    async with ACMS("user", open_storage(url), None) as session:
        await session.sync(originals)
        originals[5] = {**originals[5], "content": "Walk 4 led to the harbour office."}
        await session.sync(originals)
        by_key = {str(one["id"]): one for one in originals}
        for budget in (100_000, 120):
            found = await session.messages("harbour office", budget=budget)
            assert json.loads(json.dumps(found)) == list(found) == found
            assert len(found.sources) == len(found)
            keys = await session.keys(id for ids in found.sources for id in ids)
            for message, ids in zip(found, found.sources, strict=True):
                told = [by_key[keys[id]]["content"] for id in ids]
                assert told
                assert all(str(text) in str(message["content"]) for text in told)
        prompt = Prompt(OpenAIChat("gpt-5")).history(session).user("and now?")
        shown = (await prompt.render(budget=4000)).messages
        keys = await session.keys(id for one in shown for id in one.sources)
        assert [[by_key[keys[id]] for id in one.sources] for one in shown] == [
            *([one] for one in originals),
            [],
        ]
        elsewhere = ACMS("elsewhere", session.storage, None)
        await elsewhere.ingest("user", "hello", idempotency_key="h")
        assert await elsewhere.keys(keys) == {}
        assert elsewhere.last_receipt is not None
        assert await elsewhere.keys([elsewhere.last_receipt.message_id]) == {
            elsewhere.last_receipt.message_id: "h"
        }
        assert await session.at(3).keys(keys) == {
            id: key for id, key in keys.items() if key in ("s", "u0", "u1")
        }
