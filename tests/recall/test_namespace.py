"""Recall across the sessions of a namespace."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from acms import ACMS, Entry, Kind, Source, ToolCall, ValidationError, open_storage
from acms.codecs import OpenAIChat
from acms.model import ContextDraft
from acms.ports import StorageBackend
from acms.prompt import Prompt
from acms.testing import HashEmbedder
from tests.support.talk import Bare, session_on


async def test_a_namespace_answers_with_what_its_other_sessions_decided(storage: StorageBackend) -> None:
    async with storage:
        async with ACMS("monday", storage, namespace="orders") as monday:
            await monday.ingest("user", "Which queue for the invoices?")
            await monday.ingest("assistant", "Decision: invoices go through RabbitMQ.")
            decided = monday.last_receipt
        async with ACMS("elsewhere", storage, namespace="payroll") as other:
            await other.ingest("assistant", "Decision: invoices go by pigeon.")
        async with ACMS("tuesday", storage, namespace="orders") as tuesday:
            await tuesday.ingest("user", "Good morning.")
            alone = await tuesday.recall("How do invoices travel?", token_budget=200)
            together = await tuesday.recall("How do invoices travel?", token_budget=200, scope="namespace")
        assert decided is not None
        assert [item.content for item in alone] == ["Good morning."]
        assert decided.message_id in [item.id for item in together]
        assert together[-1].content == "Good morning."
        assert together[-1].source is Source.CURRENT
        assert not any("pigeon" in item.content for item in together)
        assert together.tokens <= 200
        assert together.ledger.why(decided.message_id).included


async def test_a_session_without_a_word_of_its_own_can_ask_its_namespace(storage: StorageBackend) -> None:
    async with storage:
        async with ACMS("monday", storage, namespace="orders") as monday:
            await monday.ingest("assistant", "Decision: invoices go through RabbitMQ.")
        async with ACMS("new", storage, namespace="orders") as new:
            items = await new.recall("invoices", token_budget=100, scope="namespace")
        assert [item.content for item in items] == ["Decision: invoices go through RabbitMQ."]


async def test_a_prompt_says_that_other_sessions_say_nothing_about_its_question() -> None:
    storage = open_storage("memory://")
    for number in range(80):
        async with ACMS(f"ticket-{number}", storage, None, namespace="shop") as ticket:
            await ticket.ingest(
                "user", f"Please restart printer {number}: it blocks the till on floor {number}."
            )
    new = ACMS("new", storage, None, namespace="shop")
    base = Prompt(OpenAIChat("gpt-4o")).system("You run a shop.").history(new)
    unrelated = await base.recall(new, "What is vegan, please?").render(budget=1_000)
    assert (
        "none of 80 messages of other sessions matches enough of the question: none is recalled"
        in unrelated.warnings
    )
    greeting = await base.recall(new, "Hello, please!").render(budget=1_000)
    assert greeting.warnings == ()
    related = await base.recall(new, "Which floor has printer 44, please?").render(budget=1_000)
    assert "printer 44" in str(related.payload)
    assert related.warnings == ()


async def test_a_namespace_in_which_nobody_has_said_anything_answers_with_nothing(
    storage: StorageBackend,
) -> None:
    async with storage:
        await storage.create(
            ContextDraft(key="silent", namespace="orders", counter="o200k_base", created_at=START)
        )
        async with ACMS("new", storage, None, namespace="orders") as new:
            assert list(await new.recall("invoices", scope="namespace")) == []


async def test_other_sessions_are_asked_by_meaning_too(storage: StorageBackend) -> None:
    embedder = HashEmbedder()
    async with storage:
        async with ACMS("monday", storage, embedder, namespace="orders") as monday:
            await monday.ingest("assistant", "Decision: invoices go through RabbitMQ.")
        async with ACMS("tuesday", storage, embedder, namespace="orders") as tuesday:
            await tuesday.ingest("user", "Good morning.")
            items = await tuesday.recall("invoices RabbitMQ", token_budget=100, scope="namespace")
        found = next(item for item in items if "RabbitMQ" in item.content)
        assert "meaning" in items.ledger.why(found.id).parts


async def test_messages_counted_by_another_counter_are_not_mixed_in(storage: StorageBackend) -> None:
    class Letters:
        name = "letters"

        def count(self, text: str) -> int:
            return len(text)

    async with storage:
        async with ACMS("monday", storage, token_counter=Letters(), namespace="orders") as monday:
            await monday.ingest("assistant", "Decision: invoices go through RabbitMQ.")
        async with ACMS("tuesday", storage, namespace="orders") as tuesday:
            await tuesday.ingest("user", "Good morning.")
            items = await tuesday.recall("invoices", token_budget=100, scope="namespace")
        assert [item.content for item in items] == ["Good morning."]


async def test_scopes_that_make_no_sense_are_refused(storage: StorageBackend) -> None:
    async with (
        storage,
        ACMS("monday", storage, namespace="orders") as monday,
        ACMS("any", storage) as anybody,
    ):
        await monday.ingest("user", "Good morning.")
        with pytest.raises(ValidationError) as wrong:
            await monday.recall("invoices", scope="world")
        assert wrong.value.field == "scope"
        with pytest.raises(ValidationError) as past:
            await monday.at(1).recall("invoices", scope="namespace")
        assert past.value.field == "scope"
        with pytest.raises(ValidationError) as strangers:
            await anybody.recall("invoices", scope="namespace")
        assert strangers.value.field == "scope"
        assert 'namespace="user:123"' in strangers.value.options[0]


async def test_what_somebody_said_in_one_session_is_found_in_another(storage: StorageBackend) -> None:
    said = "I live in Lyon with my cat Minou."
    asked = "Where does the user live, and with which cat?"
    async with storage:
        async with ACMS("one", storage, namespace="user:ana") as one:
            await one.ingest("user", said, actor_id="ana", created_at="2026-03-02T10:00:30+00:00")
        async with ACMS("two", storage, namespace="user:ana") as two:
            await two.ingest("user", "Good morning")
            (item,) = [
                one for one in await two.recall(asked, scope="namespace", budget=500) if one.content == said
            ]
            assert (item.session_id, item.actor_id, item.version) == ("one", "ana", 1)
            assert item.created_at == datetime(2026, 3, 2, 10, 0, 30, tzinfo=UTC)
        for name, namespace in (("two", "user:bob"), ("two", "default")):
            async with ACMS(name, storage, namespace=namespace) as other:
                await other.ingest("user", "Good morning")
                found = await other.recall(asked, scope="session" if namespace == "default" else "namespace")
                assert [item.session_id for item in found] == ["two"]


async def test_a_fork_finds_what_a_deleted_session_left_it(storage: StorageBackend) -> None:
    async with storage, ACMS("two", storage, None, namespace="shop") as two:
        async with ACMS("one", storage, None, namespace="shop") as one:
            await one.ingest("user", "The till runs on SQLite.")
            await two.ingest("user", "The till has a drawer.")
            fork = await one.fork(session_id="fork")
            await one.ingest("user", "The till is painted red.")
            await one.delete()
        await fork.ingest("user", "Good morning.")
        for _ in range(2):
            items = await fork.recall("till", budget=500, scope="namespace")
            assert [(item.session_id, item.content) for item in items] == [
                ("two", "The till has a drawer."),
                ("one", "The till runs on SQLite."),
                ("fork", "Good morning."),
            ]
        others = (await two.recall("till", budget=500, scope="namespace")).text()
        assert "drawer" in others
        assert "SQLite" not in others
        await fork.close()


async def test_a_store_that_knows_no_heads_is_asked_session_by_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("acms.recall.namespace.PAGE", 2)
    async with open_storage("memory://") as whole:
        for name in "abcde":
            async with ACMS(name, whole, None, namespace="shop") as session:
                await session.ingest("user", f"The till of {name} is open.")
        await ACMS("b", whole, None, namespace="shop").set_private()
        for storage in (whole, Bare(whole)):
            async with ACMS("e", storage, None, namespace="shop") as session:
                items = await session.recall("till", budget=500, scope="namespace")
                assert [item.session_id for item in items] == ["a", "c", "d", "e"]


async def test_recall_takes_one_budget(storage: StorageBackend) -> None:
    async with storage, ACMS("one", storage) as one:
        await one.ingest("user", "Good morning")
        assert (await one.recall("morning", budget=50)).budget == (
            await one.recall("m", token_budget=50)
        ).budget
        with pytest.raises(TypeError, match="not both"):
            await one.recall("morning", budget=50, token_budget=50)


# ── against a plain model ───────────────────────────────────────────────────────────────────────────────────────────

ACTORS = ("ana", "bob")
START = datetime(2026, 1, 1, tzinfo=UTC)


class Story:
    """Tells a random story in some sessions, and knows by plain reading what a recall has to find."""

    def __init__(self, storage: Any, seed: int) -> None:
        self.storage = storage
        self.rng = random.Random(seed)
        self.sessions: dict[tuple[str, str], ACMS] = {}
        self.private: set[tuple[str, str]] = set()
        self.said = 0

    def on(self, namespace: str, name: str) -> ACMS:
        key = (namespace, name)
        if key not in self.sessions:
            self.sessions[key] = session_on(
                self.storage, name, words=True, namespace=namespace, embedder=None
            )
        return self.sessions[key]

    async def step(self) -> None:
        rng = self.rng
        session = self.on(rng.choice(("user:ana", "user:ana", "user:bob")), rng.choice(("a", "b", "c")))
        entries = [one for one in await session.entries() if one.kind is Kind.MESSAGE] if self.said else []
        match rng.choice(
            ("say", "say", "say", "call", "edit", "retract", "erase", "fork", "private", "delete")
        ):
            case "say":
                await self.say(session)
            case "call":
                call = [{"id": f"call{self.said}", "name": "disk", "arguments": "{}"}]
                self.said += 1
                await session.ingest("assistant", f"alpha call{self.said}", tool_calls=call)
                if rng.random() < 0.8:
                    await session.ingest("tool", f"alpha answer{self.said}", tool_call_id=call[0]["id"])
                await self.say(session)
            case "edit" if plain := [one for one in entries if one.group is None]:
                self.said += 1
                await session.replace(rng.choice(plain).id, f"alpha edited{self.said}")
            case "retract" if entries:
                await session.retract(rng.choice(entries).id)
            case "erase" if entries and rng.random() < 0.5:
                await session.erase(rng.choice(entries).id)
            case "fork" if entries and (name := f"fork{self.said}"):
                self.said += 1
                at = rng.choice(entries).version
                self.sessions[session.namespace, name] = await session.fork(at=at, session_id=name)
                if (session.namespace, session.session_id) in self.private:
                    self.private.add((session.namespace, name))
            case "private":
                key = (session.namespace, session.session_id)
                self.private ^= {key}
                await session.set_private(key in self.private)
            case "delete" if entries and rng.random() < 0.3:
                key = (session.namespace, session.session_id)
                context = await session.context_id()
                assert context is not None
                rev = (await self.storage.context(context)).settings_rev
                await self.storage.settings(context, {"deleted": True}, rev=rev)
                await self.sessions.pop(key).close()
                self.private.discard(key)
            case _:
                await self.say(session)

    async def say(self, session: ACMS) -> None:
        self.said += 1
        await session.ingest(
            self.rng.choice(("user", "assistant")),
            f"alpha word{self.said}",
            actor_id=self.rng.choice(ACTORS),
            markers=self.rng.choice(([], ["decision"])),
            metadata={"run": self.said % 3} if self.rng.random() < 0.5 else None,
            created_at=START + timedelta(seconds=45 * self.said),
        )

    def where(self) -> dict[str, Any] | None:
        """Return a random filter, or none."""
        rng, middle = self.rng, START + timedelta(seconds=45 * self.said // 2)
        chosen = {
            "role": rng.choice(("user", ["assistant", "tool"])),
            "actor": rng.choice(ACTORS),
            "marker": "decision",
            "metadata": {"run": 1},
            "after": middle.isoformat(),
            "before": middle + timedelta(seconds=100),
            "session": rng.choice((["a"], ["b", "c"])),
        }
        names = rng.sample(sorted(chosen), rng.choice((0, 1, 1, 2)))
        return {name: chosen[name] for name in names} or None

    async def expected(self, asker: ACMS, scope: str, where: Mapping[str, Any] | None) -> dict[str, str]:
        """Return the session of every entry that has to be found, by id: of all that is read in each session."""
        own = await asker.context_id()
        lineage = {} if own is None else dict((await self.storage.context(own)).lineage)
        found = list(await asker.entries())
        for key, session in self.sessions.items():
            open = key[0] == asker.namespace and key not in self.private and session is not asker
            context = await session.context_id() if open and scope == "namespace" else None
            if context is not None:
                read = [one for one in await session.entries() if one.context == context]
                found += [one for one in read if one.version > lineage.get(context, 0)]
        names: dict[str, str] = {}
        for one in found:
            names[one.context] = (await self.storage.context(one.context)).key or ""
        groups: dict[tuple[str, str], list[Entry]] = {}
        for one in found:
            groups.setdefault((one.context, one.group or one.id), []).append(one)
        shown = [
            one
            for (context, _), members in groups.items()
            if can_be_shown(members)
            and any(filter_allows(member, names[context], where or {}) for member in members)
            for one in members
        ]
        return {one.id: names[one.context] for one in shown}


def can_be_shown(members: Sequence[Entry]) -> bool:
    """Whether a tool group can be shown: with its calls, answered or interrupted."""
    if members[0].group is None:
        return True
    return any(isinstance(part, ToolCall) for one in members for part in one.parts)


def filter_allows(one: Entry, session: str, where: Mapping[str, Any]) -> bool:
    def among(value: object, wanted: Any) -> bool:
        return value in ([wanted] if isinstance(wanted, str) else wanted)

    after, before = where.get("after"), where.get("before")
    return (
        ("role" not in where or among(one.role, where["role"]))
        and ("actor" not in where or among(one.actor, where["actor"]))
        and ("marker" not in where or where["marker"] in one.markers)
        and ("session" not in where or among(session, where["session"]))
        and all(one.metadata.get(name) == value for name, value in where.get("metadata", {}).items())
        and (after is None or one.created_at >= datetime.fromisoformat(after))
        and (before is None or one.created_at < before)
    )


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), 2])
async def test_a_recall_finds_what_a_plain_reading_of_the_sessions_finds(
    any_url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything said in the open sessions of the namespace that a filter lets through, once, and nothing else."""
    if seed == 2:  # as with thousands of messages
        monkeypatch.setattr("acms.recall.namespace.THREAD_ABOVE", 0)
        monkeypatch.setattr("acms.recall.namespace.REBUILD_ABOVE", 0)
    async with open_storage(any_url) as storage, open_storage(any_url) as elsewhere:
        shared = any_url.startswith("memory:")
        story, reader = (
            Story(storage, seed),
            storage if shared else elsewhere,
        )  # another process would see the same
        for turn in range(60):
            await story.step()
            if turn % 3:
                continue
            (namespace, name), told = story.rng.choice(sorted(story.sessions.items(), key=lambda one: one[0]))
            asker = session_on(reader, name, words=True, namespace=namespace, embedder=None)
            where, scope = story.where(), story.rng.choice(("namespace", "namespace", "session"))
            async with asker:
                items = await asker.recall("alpha", budget=20_000, scope=scope, where=where)
                expected = await story.expected(told, scope, where)
                assert {item.id: item.session_id for item in items} == expected, (turn, scope, where)
                assert len(items) == len(expected)
                few = await asker.recall("alpha", budget=20_000, scope=scope, where=where, limit=2)
                assert len(few) <= 2
                assert {item.id for item in few} <= expected.keys()
                for id in expected:
                    assert items.ledger.why(id).included
                left = [one for one in await told.entries() if one.id not in expected]
                assert {items.ledger.why_not(one.id).rule for one in left} <= {"filter", "hidden"}
        for session in story.sessions.values():
            await session.close()


@pytest.mark.parametrize(
    ("where", "field", "says"),
    [
        ({"speaker": "ana"}, "where", "role, actor, marker, metadata, after, before, session"),
        ({"role": "robot"}, "where.role", ""),
        ({"after": "2026-01-01T10:00"}, "where.after", ""),
        ({"after": "2026-02-01", "before": "2026-01-01"}, "where.before", ""),
        ({"metadata": "run"}, "where.metadata", ""),
        ({"marker": []}, "where.marker", ""),
        ("role=user", "where", ""),
    ],
)
async def test_filters_that_make_no_sense_are_refused(where: Any, field: str, says: str) -> None:
    async with open_storage("memory://") as storage, ACMS("one", storage) as one:
        with pytest.raises(ValidationError) as wrong:
            await one.recall("alpha", where=where)
        assert wrong.value.field == field
        assert says in " ".join(wrong.value.options)


async def test_a_fact_of_another_session_is_shown_while_it_is_so() -> None:
    """By its own log's times: wherever it stands in the index of all, also where a fork inherits or changes it."""
    now = datetime(2026, 3, 2, tzinfo=UTC)
    async with open_storage("memory://") as storage:

        async def known(session: ACMS, **how: Any) -> list[tuple[str | None, str]]:
            session._shared.clock = lambda: now
            items = await session.recall("till database", budget=500, scope="namespace", **how)
            return [(item.session_id, item.content) for item in items if item.source is Source.FACT]

        async with (
            ACMS("one", storage, None, namespace="shop") as one,
            ACMS("two", storage, None, namespace="shop") as two,
            ACMS("three", storage, None, namespace="shop") as three,
        ):
            for session in (one, two, three):
                await session.ingest("user", "Good morning.")
                session._shared.clock = lambda: now
            lasting = await two.state("garden till", "database", "SQLite")
            await one.ingest("user", "It will not stay.")
            ending = await one.state("till", "database", "PostgreSQL 18", valid_to="2026-04-01")
            fork = await one.fork(session_id="fork")
            later = await one.state(
                "till", "database", "MySQL", valid_from="2026-03-20", valid_to="2026-05-01"
            )
            so = [("one", f"{ending.content} [until 2026-03-20]"), ("two", lasting.content)]
            begins = ("one", f"{later.content} [from 2026-03-20 until 2026-05-01]")
            assert sorted(await known(three)) == sorted([*so, begins])
            inherited = await known(fork)
            assert ("one", f"{ending.content} [until 2026-04-01]") in inherited
            now = datetime(2026, 4, 10, tzinfo=UTC)
            running = ("one", f"{later.content} [until 2026-05-01]")
            assert sorted(await known(three)) == sorted([running, so[1]])
            items = await three.recall("till database", budget=500, scope="namespace")
            assert items.ledger.why(ending.id).reason.startswith("it is over")
            assert so[0] in await known(three, include_superseded=True)
            changed = await fork.state("till", "database", "MongoDB")
            assert ("fork", changed.content) in await known(three)
            await one.unstate("till", "database")
            assert sorted(await known(three)) == sorted([("fork", changed.content), so[1]])
            await fork.close()
