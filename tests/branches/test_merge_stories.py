"""Random forks, merged and compared with a plain three-way merge of values: no conflict unseen, nothing lost."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import ACMS, Entry, IdempotencyMismatchError, Kind, MergeConflictError, open_storage
from acms.log.active_entries import Replacements, effective_sequence
from acms.log.merges import MergeStrategy
from acms.storage import append_rules
from tests.support.talk import contents_of, session_on

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ours", "theirs"]),
        st.sampled_from(
            ["say", "edit", "edit", "retract", "call", "answer", "answer", "state", "state", "unstate"]
        ),
        st.integers(0, 99),
        st.integers(0, 2),
    ),
    max_size=14,
)
ROUNDS = st.lists(
    st.tuples(STEPS, st.sampled_from(["ours", "theirs"]), st.booleans()), min_size=1, max_size=2
)


@dataclass
class Model:
    """A branch as values: what each message says (None: retracted), which group it is of, and one value an address."""

    said: dict[str, str | None] = field(default_factory=dict[str, str | None])
    group: dict[str, str] = field(default_factory=dict[str, str])
    facts: dict[str, str] = field(default_factory=dict[str, str])

    def told(self) -> tuple[list[str], dict[str, str]]:
        return sorted(text for text in self.said.values() if text is not None), self.facts


def merge_models(base: Model, ours: Model, theirs: Model, strategy: str) -> tuple[Model, int]:
    """Merge values; return the result and the number of conflicts."""
    out, conflicts = deepcopy(ours), 0
    out.group.update(theirs.group)
    units: dict[Hashable, list[str]] = {}
    for name in dict.fromkeys((*base.said, *theirs.said, *ours.said)):
        units.setdefault(out.group.get(name, name), []).append(name)
    for names in units.values():
        b, o, t = ([side.said.get(name) for name in names] for side in (base, ours, theirs))
        slots = list(zip(b, o, t, strict=True))
        changed = [(x, y, z) for x, y, z in slots if z not in (x, y)]
        moved_here = any((x is None) != (y is None) for x, y, _ in slots)
        moved_there = any((x is None) != (z is None) for x, _, z in changed)
        if any(y != x for x, y, _ in changed) or (moved_here and moved_there):
            conflicts += 1
            if strategy == "theirs":
                out.said.update(zip(names, t, strict=True))
        else:
            out.said.update({name: z for name, (x, _, z) in zip(names, slots, strict=True) if z != x})
    for address in {*base.facts, *theirs.facts, *ours.facts}:
        x, y, z = (side.facts.get(address) for side in (base, ours, theirs))
        if z in (x, y):
            continue
        if y != x:
            conflicts += 1
        if y == x or strategy == "theirs":
            out.facts.pop(address, None)
            if z is not None:
                out.facts[address] = z
    return out, conflicts


class Branch:
    """A session and the values it should have."""

    def __init__(self, session: ACMS, name: str) -> None:
        self.session = session
        self.name = name
        self.model = Model()
        self.ids: dict[str, str] = {}
        self.open: dict[str, str] = {}

    async def act(self, verb: str, which: int, value: int, number: int) -> None:
        fresh = f"{self.name}{number}"
        live = [name for name, text in self.model.said.items() if text is not None]
        target = live[which % len(live)] if live else ""
        if verb == "say":
            await self._said(fresh, role="user", content=fresh)
        elif verb == "call":
            call = {"id": f"c{fresh}", "name": "look", "arguments": "{}"}
            also = {"id": f"d{fresh}", "name": "look", "arguments": "{}"}
            await self._said(fresh, role="assistant", content=fresh, tool_calls=[call, also])
            self.model.group[fresh] = fresh
            self.open.update({call["id"]: fresh, also["id"]: fresh})
        elif verb == "answer":
            ready = [call for call, opened in self.open.items() if self.model.said.get(opened) is not None]
            if ready:
                call = ready[which % len(ready)]
                opened = self.open.pop(call)
                await self._said(fresh, role="tool", content=fresh, tool_call_id=call)
                self.model.group[fresh] = self.model.group[opened]
        elif verb == "state":
            await self.session.state(f"s{which % 3}", "is", str(value))
            self.model.facts[f"s{which % 3}"] = str(value)
        elif verb == "unstate":
            await self.session.unstate(f"s{which % 3}", "is")
            self.model.facts.pop(f"s{which % 3}", None)
        elif target and verb == "edit":
            await self.session.replace(self.ids[target], f"e{value}")
            self.model.said[target] = f"e{value}"
        elif target and verb == "retract":
            await self.session.retract(self.ids[target])
            group = self.model.group.get(target, "")
            for name in self.model.said:
                if name == target or (group and self.model.group.get(name) == group):
                    self.model.said[name] = None

    async def _said(self, name: str, **given: Any) -> None:
        self.ids[name] = await self.session.ingest(**given)
        self.model.said[name] = given["content"]

    async def learn(self, other: Branch) -> None:
        """Find out what this log calls the messages that came from the other one."""
        names = {id: name for branch in (self, other) for name, id in branch.ids.items()}
        context = await self.session.context_id()
        for entry in await self.session.storage.read(context or "", kinds=(Kind.MESSAGE,)):
            found = [names[id] for id in (entry.id, *entry.sources) if id in names]
            if found and not entry.replaces:
                self.ids[found[0]] = entry.id
        self.open = {}

    async def told(self) -> tuple[list[str], dict[str, str]]:
        context = await self.session.context_id() or ""
        storage = self.session.storage
        entries = await storage.read(context, kinds=(Kind.MESSAGE,))
        replacements = Replacements(await storage.read(context, replacing=True))
        said = sorted(
            text.partition("\n")[0] for text in contents_of(effective_sequence(entries, replacements))
        )  # calls follow
        return said, {fact.subject: fact.value for fact in await self.session.facts()}


class Story:
    """Two forks of one session."""

    def __init__(self, ours: Branch, theirs: Branch, base: Model) -> None:
        self.ours = ours
        self.theirs = theirs
        self.base = base
        self.told = 100  # what was said before has smaller numbers

    async def act(self, steps: list[tuple[str, str, int, int]]) -> None:
        for side, verb, which, value in steps:
            self.told += 1
            branch = self.ours if side == "ours" else self.theirs
            await branch.act(verb, which, value, self.told)

    async def merge(self, strategy: MergeStrategy, undo: bool) -> None:
        """Merge theirs into ours, then ours into theirs; check everything that must hold."""
        ours, theirs = self.ours.session, self.theirs.session
        wanted, conflicts = merge_models(self.base, self.ours.model, self.theirs.model, strategy)
        before = await self._seen()
        await self._check_refusal(conflicts)
        done = await ours.merge(self.theirs.session, strategy=strategy)
        assert len(done.conflicts) == conflicts
        assert await self.ours.told() == wanted.told()
        if undo and done.version is not None:
            await ours.undo(done.version)
            assert await self.ours.told() == self.ours.model.told()
            assert await ours.undo(done.version) == await ours.undo(done.version)
            again = await ours.merge(theirs, strategy=strategy)
            assert (again.version is None, len(again.conflicts)) == (False, conflicts)
            assert await self.ours.told() == wanted.told()
        head = await ours.storage.head(await ours.context_id() or "")
        assert not await ours.merge(theirs, strategy="theirs")
        assert (await ours.storage.head(head.context)).version == head.version
        assert not (await theirs.merge(ours)).conflicts
        assert await self.theirs.told() == wanted.told()
        assert not await theirs.merge(ours)
        await self._check_past(before)
        await self.ours.learn(self.theirs)
        await self.theirs.learn(self.ours)
        self.ours.model, self.theirs.model, self.base = wanted, deepcopy(wanted), deepcopy(wanted)

    async def _check_refusal(self, conflicts: int) -> None:
        plan = await self.ours.session.merge(self.theirs.session, dry_run=True)
        assert len(plan.conflicts) == conflicts
        assert await self.ours.told() == self.ours.model.told()
        if conflicts:
            try:
                await self.ours.session.merge(self.theirs.session)
                raise AssertionError("a conflict was not refused")
            except MergeConflictError as error:
                assert error.conflicts == plan.conflicts

    async def _seen(self) -> list[tuple[ACMS, int, Any]]:
        sessions = (self.ours.session, self.theirs.session)
        versions = [(one, (await one.get_session_stats()).version) for one in sessions]
        return [(one, at, (await one.at(at).history(limit=500)).entries) for one, at in versions]

    async def _check_past(self, before: list[tuple[ACMS, int, Any]]) -> None:
        for session, at, entries in before:
            assert (await session.at(at).history(limit=500)).entries == entries


async def _run_story(
    start: list[tuple[str, str, int, int]], rounds: list[tuple[Any, MergeStrategy, bool]]
) -> None:
    storage = open_storage("memory://")
    parent = Branch(session_on(storage, "ours"), "p")
    await parent.session.ingest("user", "hello")
    for place, (_, verb, which, value) in enumerate(start):
        await parent.act(verb, which, value, place)
    child = Branch(await parent.session.fork(session_id="theirs"), "q")
    child.model, child.ids, child.open = deepcopy(parent.model), dict(parent.ids), dict(parent.open)
    story = Story(parent, child, deepcopy(parent.model))
    parent.model.said["hello"] = child.model.said["hello"] = story.base.said["hello"] = "hello"
    (first,) = [e.id for e in (await parent.session.history(limit=1)).entries]
    parent.ids["hello"] = child.ids["hello"] = first
    for steps, strategy, undo in rounds:
        await story.act(steps)
        await story.merge(strategy, undo)
    for branch in (parent, child):
        await branch.session.close()
    await storage.aclose()


@given(STEPS, ROUNDS)
def test_random_forks_merge_as_plain_values_do(
    start: list[tuple[str, str, int, int]], rounds: list[tuple[Any, MergeStrategy, bool]]
) -> None:
    asyncio.run(_run_story(start, rounds))


# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────────

BODIES = st.dictionaries(
    st.sampled_from("abcd"), st.sampled_from(["one", "one", "two"]), min_size=1, max_size=3
)
TRIES = st.lists(st.tuples(st.sampled_from(["ours", "theirs"]), BODIES), max_size=6)


class Keyed:
    """A session whose messages all have keys, and its messages in order."""

    def __init__(self, session: ACMS, said: list[tuple[str, str]]) -> None:
        self.session = session
        self.said = said

    async def say(self, bodies: dict[str, str]) -> None:
        """Say something once: all of it is new, all of it is known, or it is a mistake."""
        stands = dict(self.said)
        known = [key for key, text in bodies.items() if stands.get(key) == text]
        new = [(key, text) for key, text in bodies.items() if key not in stands]
        version = (await self.session.get_session_stats()).version
        try:
            receipts = await self.session.ingest_many([_keyed_message(*body) for body in bodies.items()])
        except IdempotencyMismatchError:
            assert len(known) < len(bodies) > len(new)
            return
        assert len(bodies) in (len(known), len(new))
        assert {one.repeated for one in receipts} == {not new}
        assert (await self.session.get_session_stats()).version == version + len(new)
        self.said += new

    async def say_as_before(self, key: str, text: str, inherited: int) -> None:
        """Say something as the forks of older releases did, which did not know the keys they inherit."""
        if key not in dict(self.said[inherited:]):
            with patch.object(append_rules, "is_repeated_append", lambda op, known: False):
                await self.session.ingest(_keyed_message(key, text))
            self.said.append((key, text))

    async def told(self) -> list[str]:
        return sorted(contents_of(await self.session.window(100_000)))


def _keyed_message(key: str, text: str) -> dict[str, str]:
    return {"id": key, "role": "user", "content": f"{key} {text}"}


def merged_keys(ours: Keyed, theirs: Keyed, inherited: int, strategy: str) -> tuple[list[str], int]:
    """Return what this side says once the other one is merged, and how many conflicts there are."""
    base, here = dict(ours.said[:inherited]), dict(ours.said[inherited:])
    out, more, conflicts = {**base, **here}, [], 0
    for key, text in theirs.said[inherited:]:
        if key in base:
            more += [f"{key} {text}"] * (text != base[key])
            continue
        conflicts += here.get(key, text) != text
        if key not in here or strategy == "theirs":
            out[key] = text
    return sorted([f"{key} {text}" for key, text in out.items()] + more), conflicts


async def _tell_keys(
    before: dict[str, str], tries: Any, old: dict[str, str], strategy: MergeStrategy
) -> None:
    storage = open_storage("memory://")
    ours = Keyed(session_on(storage, "ours"), [])
    await ours.say(before)
    theirs = Keyed(await ours.session.fork(session_id="theirs"), list(ours.said))
    for key, text in old.items():
        await theirs.say_as_before(key, text, len(before))
    for side, bodies in tries:
        await (ours if side == "ours" else theirs).say(bodies)
    wanted, conflicts = merged_keys(ours, theirs, len(before), strategy)
    plan = await ours.session.merge(theirs.session, strategy=strategy, dry_run=True)
    assert len(plan.conflicts) == conflicts
    if conflicts and strategy == "refuse":
        with pytest.raises(MergeConflictError):
            await ours.session.merge(theirs.session)
    else:
        done = await ours.session.merge(theirs.session, strategy=strategy)
        assert replace(plan, dry_run=False, version=done.version) == done
        assert await ours.told() == wanted
        assert not await ours.session.merge(theirs.session, strategy=strategy)
        await theirs.session.merge(ours.session)
        assert set(wanted) <= set(await theirs.told())
        if not conflicts:
            for key, text in {**dict(theirs.said), **dict(ours.said)}.items():
                assert await ours.session.ingest(_keyed_message(key, text)) in [
                    one.id for one in await _read_log(ours)
                ]
            assert await ours.told() == wanted
    for one in (ours, theirs):
        await one.session.close()
    await storage.aclose()


async def _read_log(side: Keyed) -> list[Entry]:
    return await side.session.storage.read(await side.session.context_id() or "")


@given(BODIES, TRIES, st.one_of(st.just({}), BODIES), st.sampled_from(["refuse", "ours", "theirs"]))
def test_random_forks_that_say_things_again_merge_without_loss(
    before: dict[str, str], tries: Any, old: dict[str, str], strategy: MergeStrategy
) -> None:
    asyncio.run(_tell_keys(before, tries, old, strategy))
