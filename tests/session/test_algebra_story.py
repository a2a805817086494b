"""Random stories told to a tree of sessions: forks, compactions, undos, edits, erasures, and a past that stays put.

Few sessions, so that their fates cross: a fork compacts what its parent undoes, an entry is erased through a
grandchild, a parent is deleted while a job of its child waits. Whatever was seen once at a version is asked again until
something is erased, also through forks and after the store was closed, when every index and cache is built anew.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from acms import (
    ACMS,
    ACMSConfig,
    CacheConfig,
    CompactionPolicy,
    ContextItems,
    Entry,
    EpisodeBoundaryConfig,
    GoneError,
    JobState,
    Kind,
    ProviderError,
    State,
    TokenBudgetExceededError,
    ToolCall,
    ToolResult,
    ValidationError,
    View,
    WorkerConfig,
    open_storage,
)
from acms.compaction import job as room
from acms.errors import ExpiredError
from acms.jobs.requests import compaction_kind
from acms.log import active_entries as history
from acms.log.active_entries import fold_atomic_groups
from acms.model import Failed, JobQuery
from acms.ports import SummaryRequest
from acms.testing.books import find_active_entries, ids_of_entries
from acms.text import chat_messages
from tests.servers.stores import another
from tests.support.counters import COUNTERS
from tests.support.provider import check_valid
from tests.support.talk import Storage, comparable_items, full_text, log_of, session_on

NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)
MOST_SESSIONS = 4
QUERY = "which host has the orders database?"
BUDGETS = (9, 40, 150, 10**6)
WORDS = [
    "orders", "the database is on db-7.internal", "Decision: cache for 15 minutes", "we keep it in /srv/orders/2.json",
    "数据库", "x" * 60, "  indented\n", "Thanks, Ana.", "🙂", "the host of billing is 10.0.0.7",
]  # fmt: skip

anyone = st.integers(0, 99)
"""Chooses one of what there is: the number modulo how many there are."""
texts = st.builds(
    lambda words, times: " ".join(words * times),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=5),
    st.sampled_from([1, 1, 2, 6]),
)


class Toy:
    """A summarizer that takes the beginnings of its turns."""

    model = "toy"

    def __init__(self, window: int | None) -> None:
        self.window = window

    async def summarize(self, request: SummaryRequest) -> str:
        starts = [" ".join(turn.text.split()[:2]) for turn in request.turns]
        return f"{len(starts)} turns: {'; '.join(starts)}"[: 2 * request.max_tokens + 10]


@dataclass(eq=False)
class Told:
    """One session of the tree, and its observations."""

    session: ACMS
    context: str
    #: The session it was forked from, and at which version.
    parent: Told | None = None
    fork: int = 0
    deleted: bool = False
    #: Version → what every reading verb said there.
    seen: dict[int, list[tuple[str, str]]] = field(default_factory=dict)


class AlgebraStory(RuleBasedStateMachine):
    """A story: rules that write, invariants that read."""

    kind: ClassVar[str]
    postgres: ClassVar[str | None] = None
    cached: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.told: list[Told] = []
        self.time = NOON
        self.number = 0
        self.compacted = False

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    @initialize(
        counter=st.sampled_from(COUNTERS),
        seed=st.integers(0, 2**16),
        window=st.sampled_from([None, 200]),
        budget=st.sampled_from([None, 60, 300]),
        opening=st.lists(texts, min_size=2, max_size=9),
    )
    def begin(
        self, counter: Any, seed: int, window: int | None, budget: int | None, opening: list[str]
    ) -> None:
        """Open a store and begin a session."""
        self.counter = counter
        self.toy = Toy(window)
        self.dice = random.Random(seed)
        self.url = {
            "memory": "memory://",
            "sqlite": f"sqlite:///{Path(self.folder.name) / 'a.db'}?durability=relaxed",
            "postgres": another(self.postgres or ""),
        }[self.kind]
        self.config = ACMSConfig(
            episodes=EpisodeBoundaryConfig(max_turns=4),
            cache=CacheConfig(enabled=self.cached),
            worker=WorkerConfig(enabled=False),
            compaction=CompactionPolicy(budget=budget, preserve_recent_count=2, summary_tokens=12),
        )
        self.store = open_storage(self.url)
        self.run(self.store.__aenter__())
        session = self.open("root")
        self.run(self.put(session, "user", opening[0]))
        self.told.append(Told(session, session._shared.context_id or ""))
        for n, text in enumerate(opening[1:]):
            self.run(self.put(session, ("assistant", "user")[n % 2], text))

    def open(self, name: str) -> ACMS:
        return ACMS(name, self.store, token_counter=self.counter, config=self.config, summarizer=self.toy)

    def teardown(self) -> None:
        try:
            self.run(self.close_all())
        finally:
            self.runner.close()
            self.folder.cleanup()

    async def close_all(self) -> None:
        for told in self.told:
            await told.session.close()
        if hasattr(self, "store"):
            await self.store.aclose()

    # ── who and what ────────────────────────────────────────────────────────────────────────────────────────────────

    def live(self) -> list[Told]:
        return [told for told in self.told if not told.deleted]

    def one(self, which: int) -> Told:
        found = self.live()
        return found[which % len(found)]

    async def put(self, session: ACMS, role: str, content: str = "", **given: Any) -> None:
        self.time += timedelta(seconds=7)
        await session.ingest(role, content, created_at=self.time, **given)

    async def head(self, told: Told) -> int:
        return (await self.store.head(told.context)).version

    async def pick(self, told: Told, place: int) -> Any:
        log = await log_of(told.session)
        return log[place % len(log)] if log else None

    # ── talking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(
        which=anyone,
        role=st.sampled_from(["user", "assistant", "user", "assistant", "system"]),
        text=texts,
        markers=st.sampled_from([None, None, [], ["goal"], ["constraint", "custom:x"]]),
    )
    def say(self, which: int, role: str, text: str, markers: list[str] | None) -> None:
        self.run(self.put(self.one(which).session, role, text, markers=markers))

    @rule(which=anyone, said=st.lists(texts, min_size=3, max_size=9))
    def talk(self, which: int, said: list[str]) -> None:
        """Say a good deal, so that there is something to compact."""
        self.run(self.talked(self.one(which), said))

    async def talked(self, told: Told, said: list[str]) -> None:
        messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(said)]
        self.time += timedelta(seconds=7)
        stamped = [{**one, "created_at": self.time + timedelta(seconds=n)} for n, one in enumerate(messages)]
        await told.session.ingest_many(stamped)

    @rule(which=anyone, calls=st.integers(1, 3), text=st.sampled_from(["", "let me look"]))
    def call_tools(self, which: int, calls: int, text: str) -> None:
        """Ask for some tools at once; they are answered later, or never."""
        self.number += 1
        made = [
            {"id": f"c{self.number % 3}.{n}", "name": "look", "arguments": '{"at": 1}'} for n in range(calls)
        ]
        self.run(self.put(self.one(which).session, "assistant", text, tool_calls=made))

    @rule(which=anyone, place=anyone, text=texts, every=st.booleans())
    def answer(self, which: int, place: int, text: str, every: bool) -> None:
        """Answer an open call, or all of them in one message."""
        self.run(self.answered(self.one(which), place, text, every))

    async def answered(self, told: Told, place: int, text: str, every: bool) -> None:
        parts = [part for entry in await told.session.entries() for part in entry.parts]
        done = {part.call_id for part in parts if isinstance(part, ToolResult)}
        waiting = [part.call_id for part in parts if isinstance(part, ToolCall) and part.call_id not in done]
        if not waiting:
            return
        if every:
            await self.put(
                told.session, "tool", parts=[ToolResult(id, text) for id in dict.fromkeys(waiting)]
            )
        else:
            await self.put(told.session, "tool", text, tool_call_id=waiting[place % len(waiting)])

    @rule(which=anyone)
    def close_episode(self, which: int) -> None:
        told = self.one(which)
        if self.run(told.session.get_session_stats()).episodes:
            self.run(told.session.close_episode())

    # ── rewriting ───────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(which=anyone, place=anyone, text=texts)
    def edit(self, which: int, place: int, text: str) -> None:
        self.run(self.edited(self.one(which), place, text))

    async def edited(self, told: Told, place: int, text: str) -> None:
        target = await self.pick(told, place)
        if target is None:
            return
        try:
            await told.session.replace(target.id, text)
        except GoneError:
            assert not target.in_force or target.state is not State.LIVE
        except ValidationError:
            assert target.kind is not Kind.MESSAGE

    @rule(which=anyone, place=anyone, alone=st.booleans())
    def retract(self, which: int, place: int, alone: bool) -> None:
        told = self.one(which)
        target = self.run(self.pick(told, place))
        if target is not None:
            self.run(told.session.retract(target.id, alone=alone))

    # ── compacting ──────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(
        which=anyone,
        said=st.just([]) | st.lists(texts, min_size=3, max_size=9),
        recent=st.sampled_from([0, 0, 1, 3, 10]),
        keep=st.sampled_from([0.0, 0.0, 0.3]),
        tokens=st.sampled_from([None, 8, 8, 30]),
    )
    def compact(self, which: int, said: list[str], recent: int, keep: float, tokens: int | None) -> None:
        """Say something, compact by hand, and look at the past before and after."""
        told = self.one(which)
        if said:
            self.run(self.talked(told, said))
        wanted = {"preserve_recent_count": recent, "keep": keep, "summary_tokens": tokens}
        for version in self.some_versions(told, 2):
            self.run(self.look(told, version))
        self.run(self.work_off())
        before = self.run(told.session.entries())
        self.run(told.session.compact(**{name: value for name, value in wanted.items() if value is not None}))
        self.run(self.work_off())
        self.stands(before, self.run(told.session.entries()))
        for version in sorted(told.seen)[-3:]:
            self.run(self.look(told, version))

    def stands(self, before: list[Entry], after: list[Entry]) -> None:
        """Assert that a compaction put one summary in the place of whole tool groups, and changed nothing else."""
        here = set(ids_of_entries(after))
        gone = [entry for entry in before if entry.id not in here]
        added = [entry.kind for entry in after if entry.id not in set(ids_of_entries(before))]
        assert added == ([Kind.SUMMARY] if gone else []), "something else than a summary is read"
        groups = {entry.group for entry in gone if entry.group is not None}
        open_calls = {entry.id for entry, _ in fold_atomic_groups(before, whole=True).hidden}
        assert [entry for entry in after if entry.group in groups and entry.id not in open_calls] == []

    @rule(which=anyone, budget=st.sampled_from([None, 60, 200]), recent=st.sampled_from([1, 4]))
    def set_policy(self, which: int, budget: int | None, recent: int) -> None:
        """Let appends ask for compactions from now on, or no more."""
        told = self.one(which)
        self.run(told.session.set_policy(budget=budget, preserve_recent_count=recent, summary_tokens=10))

    @rule()
    def work(self) -> None:
        """Work off what appends have asked for."""
        self.run(self.work_off())

    async def work_off(self) -> None:
        """Be a worker of another process: it knows nothing of the caches of the sessions."""
        kind = compaction_kind(self.toy)
        handle = room.make_compaction_handler(self.config, self.toy, {self.counter.name: self.counter})
        while leases := await self.store.claim([kind], lease=timedelta(minutes=1), limit=10):
            for lease in leases:
                deleted = any(told.deleted for told in self.told if told.context == lease.job.context)
                try:
                    outcome = await handle(self.store, lease)
                except ProviderError as error:
                    outcome = Failed(error=str(error))
                except GoneError as error:
                    outcome = Failed(error=str(error), cancelled=True)
                except Exception as error:
                    assert deleted, error
                    outcome = Failed(error=str(error), cancelled=True)
                self.compacted = self.compacted or outcome is None
                if outcome is not None:
                    await self.store.settle(lease, outcome)
        left = await self.store.jobs(JobQuery(states=(JobState.READY, JobState.RUNNING)))
        assert [job for job in left.items if job.kind == kind] == []

    @precondition(lambda self: self.compacted)
    @rule(which=anyone)
    def undo(self, which: int) -> None:
        """Take back the newest compaction in force: the entries it replaced are read again."""
        self.run(self.undone(self.one(which)))

    async def undone(self, told: Told) -> None:
        found = [one for one in await told.session.compactions() if one.in_force]
        if not found:
            return
        expanded = await told.session.expand(found[-1].version)
        log = await self.store.read(told.context)
        try:
            await told.session.undo(found[-1].version)
        except ExpiredError:
            spans = found[-1].spans
            gone = [entry.version for entry in log if entry.state is State.EXPIRED]
            assert any(first <= version <= last for version in gone for first, last in spans)
            return
        now = {entry.id for entry in await told.session.entries()}
        replacements = history.Replacements(await self.store.read(told.context, replacing=True))
        gone = [entry for entry in expanded if entry.id not in now]
        # An older compaction may be in force again, when its own undoing was retracted meanwhile.
        assert all(replacements.replaced_by(entry.version) is not None for entry in gone), (
            "not everything came back"
        )

    # ── fates ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: len(self.told) < MOST_SESSIONS)
    @rule(which=anyone, place=anyone, newest=st.booleans(), named=st.booleans())
    def fork(self, which: int, place: int, newest: bool, named: bool) -> None:
        """Fork anywhere; the child must show the same as the parent did up to there."""
        parent = self.one(which)
        head = self.run(self.head(parent))
        at = head if newest else place % (head + 1)
        session = self.run(
            parent.session.fork(None if newest else at, f"fork-{len(self.told)}" if named else None)
        )
        context = self.run(session._shared.find())
        seen = {version: said for version, said in parent.seen.items() if version <= at}
        self.told.append(Told(session, context, parent, at, seen=seen))

    @precondition(lambda self: len(self.live()) > 1)
    @rule(which=anyone)
    def delete(self, which: int) -> None:
        told = self.one(which)
        self.run(told.session.delete())
        told.deleted = True

    @rule(
        which=anyone,
        places=st.sets(anyone, min_size=1, max_size=2),
        to=st.sampled_from([State.EXPIRED, State.ERASED]),
    )
    def blank(self, which: int, places: set[int], to: State) -> None:
        """Take content away, in every session of the tree and in the past."""
        told = self.one(which)
        head = self.run(self.head(told))
        versions = sorted({1 + place % head for place in places}) if head else []
        if self.run(self.store.blank(told.context, versions, to=to, audit={"by": "the story"})):
            for relative in self.told:
                relative.seen.clear()

    @rule()
    def reopen(self) -> None:
        """Close everything and go on with new sessions, which know nothing."""
        self.run(self.close_all())
        if self.kind != "memory":
            self.store = open_storage(self.url)
            self.run(self.store.__aenter__())
        for told in self.told:
            told.session = self.open(told.session.session_id)

    # ── what must hold ──────────────────────────────────────────────────────────────────────────────────────────────

    def some_versions(self, told: Told, count: int) -> list[int]:
        head = self.run(self.head(told))
        return [head, *(self.dice.randint(0, head) for _ in range(count - 1))]

    @invariant()
    def the_past_stays_and_the_present_is_whole(self) -> None:
        """Look at one session at its head and in the past, and through a fork at the part it shares with its parent."""
        if not self.told:
            return
        told = self.dice.choice(self.live())
        self.run(self.counted(told))
        for version in {
            *self.some_versions(told, 2),
            *self.dice.sample(sorted(told.seen), min(1, len(told.seen))),
        }:
            self.run(self.look(told, version))
        forks = [one for one in self.live() if one.parent is not None and not one.parent.deleted]
        if forks:
            self.run(self.shared(self.dice.choice(forks)))

    async def shared(self, child: Told) -> None:
        """Assert that a fork reads the past as its parent does."""
        assert child.parent is not None
        version = self.dice.randint(0, child.fork)
        self.same(await self.said(child, version), await self.said(child.parent, version), child, version)

    async def look(self, told: Told, version: int) -> None:
        """Assert that a version always reads the same, and that its entries are sound."""
        now = await self.said(told, version)
        self.same(now, told.seen.setdefault(version, now), told, version)

    def same(self, now: list[tuple[str, str]], then: list[tuple[str, str]], told: Told, version: int) -> None:
        for (verb, one), (_, other) in zip(now, then, strict=True):
            if one != other:
                equal = [a == b for a, b in zip(one, other, strict=False)]
                start = max(0, (equal.index(False) if False in equal else len(equal)) - 200)
                where = f"{verb} at v{version} of {told.session.session_id}"
                said = f"…{one[start : start + 400]} was …{other[start : start + 400]}"
                raise AssertionError(f"{where} says something else: {said}")

    async def said(self, told: Told, version: int) -> list[tuple[str, str]]:
        """Return what every reading verb says, in words that are the same for a fork and its parent."""
        view = told.session.at(version)
        sequence = await view.entries()
        log = {entry.id: entry for entry in await self.store.read(told.context, at=version)}
        newest = sequence[-1] if sequence else None
        found: list[tuple[str, Any]] = [("entries", sequence)]
        for budget in BUDGETS:
            window = await view.window(budget)
            self.sound(window, log, newest)
            assert {item.id for item in window} <= set(ids_of_entries(sequence))
            found.append((f"window({budget})", comparable_items(window)))
        for budget in BUDGETS[1:3]:
            recalled = await view.recall(QUERY, token_budget=budget)
            self.sound(recalled, log, newest)
            found.append(
                (
                    f"recall({budget})",
                    (comparable_items(recalled), list(recalled.ledger), recalled.ledger.warnings),
                )
            )
        for budget in BUDGETS[2:]:
            found.append((f"messages({budget})", await self.prompt(view, budget)))
        page = await view.history(limit=500)
        found.append(("history", page.entries))
        found.append(("stats", await view.get_session_stats()))
        found.append(("episodes", await view.episodes()))
        found.append(("compactions", await view.compactions()))
        names = {repr(told.session.session_id): "@", told.context[2:]: "@"}
        return [(verb, _rename_ids(verb, full_text(what), names)) for verb, what in found]

    async def prompt(self, view: View, budget: int) -> Any:
        try:
            messages = await view.messages(QUERY, budget=budget)
        except TokenBudgetExceededError as error:
            assert error.required > budget
            return str(error)
        check_valid(messages)
        assert (chat_messages.count_message_tokens(messages, self.counter) if messages else 0) <= budget
        return messages

    def sound(self, items: ContextItems, log: dict[str, Entry], newest: Entry | None) -> None:
        """Assert that a plan keeps its budget, repeats nothing and shows no tool call or answer alone."""
        assert sum(item.token_count for item in items) == items.tokens <= items.budget
        assert self.counter.count(items.text()) <= items.budget
        shown = [item.id for item in items]
        assert len(set(shown)) == len(shown)
        for item in items:
            text = item.content.partition(" [in doubt: ")[0]
            assert item.truncated or text == log[item.id].content
        for group in {item.group for item in items if item.group is not None}:
            members = [log[item.id] for item in items if item.group == group]
            calls = {part.call_id for entry in members for part in entry.parts if isinstance(part, ToolCall)}
            told = {part.call_id for entry in members for part in entry.parts if isinstance(part, ToolResult)}
            assert calls, "answers are shown without their calls"
            assert calls <= told or members[-1] == newest, "calls are shown without their answers"

    async def counted(self, told: Told) -> None:
        """Assert that the counters are what a reader of the whole log counts."""
        log = await self.store.read(told.context)
        stats = await told.session.get_session_stats()
        messages = [entry for entry in log if entry.kind is Kind.MESSAGE]
        kept = [entry for entry in messages if entry.state is not State.ERASED]
        active = find_active_entries(log)
        assert ids_of_entries(await told.session.entries()) == ids_of_entries(active)
        assert (stats.version, stats.messages) == (len(log), len(kept))
        assert stats.tokens == sum(entry.tokens for entry in kept)
        said = [entry for entry in active if entry.kind is Kind.MESSAGE]
        assert stats.active_messages == len(said)
        assert stats.active_tokens == sum(entry.tokens for entry in active)
        assert stats.summaries == len(active) - len(said)


def _rename_ids(verb: str, text: str, names: dict[str, str]) -> str:
    if verb in ("stats", "episodes"):
        for old, new in names.items():
            text = text.replace(old, new)
    return text


@pytest.mark.parametrize("to", [State.EXPIRED, State.ERASED])
async def test_what_lost_its_content_is_not_counted_as_in_force(storage: Storage, to: State) -> None:
    async with session_on(storage, words=True) as session:
        for text in ("one", "two three"):
            await session.ingest("user", text)
        context = (await storage.context(session.session_id)).id
        await storage.blank(context, [2], to=to, audit={})
        stats, read = await session.get_session_stats(), await session.entries()
        assert (stats.messages, stats.tokens) == ((1, 1) if to is State.ERASED else (2, 3))
        assert (len(read), sum(entry.tokens for entry in read)) == (1, 1)
        assert (stats.active_messages, stats.active_tokens) == (1, 1)


def run_algebra_story(
    kind: str, cached: bool, examples: int, steps: int, postgres: str | None = None
) -> None:
    story = type("Story", (AlgebraStory,), {"kind": kind, "cached": cached, "postgres": postgres})
    run_state_machine_as_test(
        story,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize(
    ("kind", "cached"),
    [
        ("memory", True),
        ("memory", False),
        ("sqlite", True),
        pytest.param("sqlite", False, marks=pytest.mark.slow),
    ],
)
def test_a_tree_of_sessions_tells_the_same_story_for_ever(kind: str, cached: bool) -> None:
    run_algebra_story(kind, cached, 3 if kind == "memory" else 1, 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "cached"),
    [
        ("memory", True),
        ("memory", False),
        ("sqlite", True),
        pytest.param("sqlite", False, marks=pytest.mark.slow),
    ],
)
def test_many_long_stories_of_a_tree_of_sessions(kind: str, cached: bool) -> None:
    run_algebra_story(kind, cached, 300 if kind == "memory" else 100, 50)


@pytest.mark.parametrize("cached", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_tree_of_sessions_tells_the_same_story_on_postgres(cached: bool, postgres_home: str) -> None:
    run_algebra_story("postgres", cached, 1, 15, postgres_home)


@pytest.mark.slow
@pytest.mark.parametrize("cached", [True, False])
def test_many_long_stories_of_a_tree_of_sessions_on_postgres(cached: bool, postgres_home: str) -> None:
    run_algebra_story("postgres", cached, 60, 50, postgres_home)
