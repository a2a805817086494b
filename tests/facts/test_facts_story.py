"""Random stories of facts: proposals, undos, retractions, edits, on every store, alone and through a fork.

Whatever is proposed and taken back, at most one fact is in force at an address of cardinality one, every fact ever
learned is still listed, undo restores exactly the earlier facts, and a new reader of the log finds the same.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_story

from acms import (
    ACMS,
    ACMSConfig,
    CacheConfig,
    ConflictError,
    Entry,
    Fact,
    Kind,
    Origin,
    WorkerConfig,
    open_storage,
)
from acms.facts.request import read_facts
from acms.log.active_entries import Replacements
from acms.log.facts import FactHistory, normalize_address
from acms.model import Append, Expect, Receipt
from acms.ports import Proposal
from tests.servers.stores import another
from tests.support.factlog import RULES, consolidate_proposals
from tests.support.talk import LONG_EPISODES

CITIES = ["Rome", "Oslo", "Bern", "15", "March 20"]
CONFIG = ACMSConfig(episodes=LONG_EPISODES, worker=WorkerConfig(enabled=False))

proposed = st.builds(
    lambda action, subject, attribute, value, cardinality, confidence: Proposal(
        action=action, content=f"{attribute or 'it'}: {value}.", subject=subject, attribute=attribute, value=value,
        cardinality=cardinality, confidence=confidence,
    ),
    st.sampled_from(["add", "add", "add", "update", "remove", "keep"]),
    st.sampled_from(["user", "the Users"]),
    st.sampled_from(["city", "cities", "allergy", ""]),
    st.sampled_from(CITIES),
    st.sampled_from([None, "one", "one", "many"]),
    st.sampled_from([1.0, 0.9, 0.5]),
)  # fmt: skip
anyone = st.integers(0, 99)


class FactsStory(RuleBasedStateMachine):
    """One session that learns and unlearns."""

    kind: ClassVar[str]
    cached: ClassVar[bool]
    postgres: ClassVar[str | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.learned: dict[str, str] = {}
        self.number = 0

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    @initialize(forked=st.booleans())
    def begin(self, forked: bool) -> None:
        self.url = {
            "memory": "memory://",
            "sqlite": f"sqlite:///{Path(self.folder.name) / 'a.db'}?durability=relaxed",
            "postgres": another(self.postgres or ""),
        }[self.kind]
        self.store = open_storage(self.url)
        self.run(self.store.__aenter__())
        config = ACMSConfig(
            episodes=CONFIG.episodes, worker=CONFIG.worker, cache=CacheConfig(enabled=self.cached)
        )
        self.session = ACMS("story", self.store, config=config)
        self.run(self.session.ingest("user", "Rome is what I say."))
        if forked:
            self.run(
                self.learn(
                    [Proposal(content="city: Rome.", attribute="city", value="Rome", cardinality="one")]
                )
            )
            self.session = self.run(self.session.fork(session_id="fork"))
        self.context = self.run(self.store.context(self.session.session_id)).id

    def teardown(self) -> None:
        try:
            self.run(self.end())
        finally:
            self.runner.close()
            self.folder.cleanup()

    async def end(self) -> None:
        if hasattr(self, "session"):
            await self.session.close()
        if hasattr(self, "store"):
            await self.store.__aexit__(None, None, None)
            await self.store.aclose()

    # ── what happens ────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(value=st.sampled_from(CITIES), origin=st.sampled_from([Origin.USER, Origin.USER, Origin.EXTERNAL]))
    def say(self, value: str, origin: Origin) -> None:
        self.run(self.session.ingest("user", f"{value} is what I say. Good.", origin=origin))

    @rule(some=st.lists(proposed, min_size=1, max_size=4), which=anyone, most=st.sampled_from([100, 100, 2]))
    def propose(self, some: list[Proposal], which: int, most: int) -> None:
        """Reflect on the newest message, and take back what became of it when it is one entry."""
        known = self.run(self.session.facts())
        ids = [fact.id for fact in known] + ["f_0123456789abcdef_1_0a1b2c"]
        some = [
            one if one.action == "add" else Proposal(
                **{name: getattr(one, name) for name in Proposal.__slots__} | {"fact_id": ids[(which + n) % len(ids)]}
            )
            for n, one in enumerate(some)
        ]  # fmt: skip
        before = self.known()
        receipt = self.run(self.learn(some, most))
        if receipt is not None and receipt.versions[0] == receipt.versions[1] and which % 2:
            (entry,) = self.run(self.store.read(self.context, after=receipt.versions[0] - 1))
            after = self.known()
            back = self.run(
                self.session.undo(entry.version) if entry.replaces else self.session.retract(entry.id)
            )
            assert self.known() == before
            self.run(self.session.undo(back))
            assert self.known() == after

    async def learn(self, some: list[Proposal], most: int = 100) -> Receipt | None:
        context = (await self.store.context(self.session.session_id)).id
        head = await self.store.head(context)
        log = await self.store.read(context, at=head.version)
        said: list[Entry] = [entry for entry in await self.session.entries() if entry.kind is Kind.MESSAGE]
        if not said:
            return None
        self.number += 1
        rules = (
            RULES
            if most == 100
            else type(RULES)(min_confidence=0.7, max_facts=10, max_tokens=200, max_active=most)
        )
        made = consolidate_proposals(
            some, await read_facts(self.store, context, None), log, said[-1:], rules, f"r:{self.number}"
        )
        if not made.drafts:
            return None
        op = Append(context=context, drafts=made.drafts, expect=Expect(rewrites=head.rewrites))
        (receipt,) = await self.store.append([op])
        assert isinstance(receipt, Receipt), receipt
        for id, draft in zip(receipt.ids, made.drafts, strict=True):
            if draft.kind is Kind.FACT:
                self.learned[id] = draft.content
        return receipt

    @rule(which=anyone)
    def undo(self, which: int) -> None:
        """Take a rewrite back, and that again."""
        replacing = self.run(self.store.read(self.context, replacing=True))
        if not replacing:
            return
        entry = replacing[which % len(replacing)]
        before, size = self.known(), self.size()
        try:
            back = self.run(self.session.undo(entry.version))
        except ConflictError:
            assert (self.known(), self.size()) == (before, size)
            return
        if self.size() == size:  # it was taken back before
            assert self.known() == before
            return
        if which % 3 == 0:
            try:
                self.run(self.session.undo(back))
            except ConflictError:
                raise AssertionError("what was just taken back cannot be brought back") from None
            assert self.known() == before

    @rule(which=anyone, undo=st.booleans())
    def retract_a_fact(self, which: int, undo: bool) -> None:
        known: list[Fact] = self.run(self.session.facts())
        if not known:
            return
        fact = known[which % len(known)]
        before = self.known()
        version = self.run(self.session.retract(fact.id))
        assert self.known() == [row for row in before if row[0] != fact.id]
        if undo:
            self.run(self.session.undo(version))
            assert self.known() == before

    @rule(which=anyone)
    def relearn(self, which: int) -> None:
        """Retract a fact, fill its address again, and try to bring it back."""
        known: list[Fact] = [one for one in self.run(self.session.facts()) if one.cardinality == "one"]
        if not known:
            return
        fact, before = known[which % len(known)], self.known()
        gone = self.run(self.session.retract(fact.id))
        self.number += 1
        new = Proposal(
            content=f"{fact.attribute}: {self.number}.", subject=fact.subject, attribute=fact.attribute,
            value=f"no {self.number}", cardinality="one",
        )  # fmt: skip
        receipt = self.run(self.learn([new]))
        if receipt is None:
            return
        after = self.known()
        with pytest.raises(ConflictError, match="would come back"):
            self.run(self.session.undo(gone))
        assert self.known() == after
        if which % 2:
            self.run(self.session.retract(receipt.ids[0]))
            self.run(self.session.undo(gone))
            assert self.known() == before

    @rule(which=anyone, undo=st.booleans(), edit=st.booleans())
    def revoke_a_message(self, which: int, undo: bool, edit: bool) -> None:
        """Retract or edit a message: nothing that was made from it is in force."""
        said = [entry for entry in self.run(self.session.entries()) if entry.kind is Kind.MESSAGE]
        if not said:
            return
        target, before = said[which % len(said)], self.known()
        if edit:
            id = self.run(self.session.replace(target.id, "Nowhere is what I say."))
            version = self.run(self.session.get(id)).version
        else:
            try:
                version = self.run(self.session.retract(target.id))
            except ConflictError:  # an edit is taken back, and with it what it retired
                assert target.replaces
                assert self.known() == before
                return
        assert all(target.id not in fact.sources for fact in self.run(self.session.facts()))
        if undo:
            self.run(self.session.undo(version))
            assert self.known() == before

    @precondition(lambda self: self.number % 5 == 4)
    @rule()
    def clear(self) -> None:
        before = self.known()
        version = self.run(self.session.clear())
        assert self.known() == []
        self.run(self.session.undo(version))
        assert self.known() == before

    # ── what always holds ───────────────────────────────────────────────────────────────────────────────────────────

    def known(self) -> list[tuple[str, str]]:
        return [(fact.id, fact.content) for fact in self.run(self.session.facts())]

    def size(self) -> int:
        return int(self.run(self.store.head(self.context)).version)

    @invariant()
    def one_at_an_address_of_one(self) -> None:
        if not hasattr(self, "context"):
            return
        known: list[Fact] = self.run(self.session.facts())
        for fact in known:
            where = normalize_address(fact.subject, fact.attribute)
            if fact.cardinality == "one" and where[1]:
                assert [one for one in known if normalize_address(one.subject, one.attribute) == where] == [
                    fact
                ]
        replacing = self.run(self.store.read(self.context, replacing=True))
        found = FactHistory(
            self.run(self.store.read(self.context, kinds=(Kind.FACT,))), Replacements(replacing)
        )
        # Nothing but entries of the log puts a fact out of force: none is merely outshone by a newer one.
        assert [one for one in found.entries if found.is_unreplaced(one)] == found.active

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "context"):
            return
        history: list[Fact] = self.run(self.session.facts(history=True))
        assert {fact.id: fact.content for fact in history} == self.learned
        versions = {fact.version for fact in history}
        for fact in history:
            if fact.retired is not None:
                by = self.run(self.session.get(fact.retired.by))
                assert by.version == fact.retired.version
                assert by.kind is not Kind.FACT or by.version in versions

    @invariant()
    def whoever_reads_anew_knows_the_same(self) -> None:
        if not hasattr(self, "context"):
            return
        assert self.run(read_facts(self.store, self.context, None)) == self.run(self.session.facts())
        if self.kind != "memory" and self.number % 4 == 0:
            assert self.run(self.anew()) == self.run(self.session.facts(history=True))

    async def anew(self) -> list[Fact]:
        async with (
            open_storage(self.url) as store,
            ACMS(self.session.session_id, store, config=CONFIG) as session,
        ):
            return await session.facts(history=True)


def run_facts_story(kind: str, cached: bool, examples: int, steps: int, postgres: str | None = None) -> None:
    story = type("Story", (FactsStory,), {"kind": kind, "cached": cached, "postgres": postgres})
    run_story(
        story,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip


@pytest.mark.parametrize(("kind", "cached"), [("memory", True), ("memory", False), ("sqlite", True)])
def test_facts_stay_true_whatever_is_proposed_and_taken_back(kind: str, cached: bool) -> None:
    run_facts_story(kind, cached, 8 if kind == "memory" else 3, 20)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_facts_stay_true_through_many_long_stories(kind: str) -> None:
    run_facts_story(kind, True, 60 if kind == "memory" else 30, 40)


def test_facts_stay_true_on_postgres(postgres_home: str) -> None:
    run_facts_story("postgres", True, 1, 15, postgres_home)
