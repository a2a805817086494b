"""T49: histories of stores that tell the truth have no anomaly, and each lie of one that does not is found."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acms import ACMSError, Entry, StorageError
from acms.log.encoding import entry_id
from acms.model import Append, Context, ContextDraft, ContextQuery, Head, Receipt
from acms.ports import StorageBackend
from acms.storage import CachedStorage, MemoryStorage, SQLiteStorage, WrapperStorage, open_storage
from acms.testing import sound
from acms.testing.logs import append_drafts, create_log, draft_message
from tests.faults._process import finish_process, start_python
from tests.storage.suite.checker import (
    Asked,
    Forked,
    Operation,
    Read,
    RecordingStorage,
    Wrote,
    dump_history,
    find_anomalies,
    load_history,
)
from tests.support.faulty import FaultyStorage

from ._talker import record_history

PROCESSES = 4


@pytest.fixture(params=["memory", "sqlite", "cached", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StorageBackend]:
    if request.param == "memory":
        yield MemoryStorage()
        return
    if request.param == "postgres":
        async with open_storage(request.getfixturevalue("tenant_url")) as found:
            yield found
        return
    async with SQLiteStorage(tmp_path / "a.db", durability="relaxed") as inner:
        yield CachedStorage(inner) if request.param == "cached" else inner


# ── the truth ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_t49_the_history_of_many_tasks_has_no_anomaly(store: StorageBackend) -> None:
    recorder = await record_history(store, 49, 1_000)
    assert find_anomalies(recorder.history) == []
    verbs = Counter(type(one) for one in recorder.history)
    assert verbs[Wrote] > 400
    assert verbs[Read] > 500
    assert verbs[Forked] >= 5
    assert any(one.repeated for one in recorder.history if isinstance(one, Wrote))
    assert list(load_history(dump_history(recorder.history))) == recorder.history


def run_talkers(where: str | Path, operations: int) -> list[Operation]:
    """Let several processes talk on one file; return what all of them were told."""
    each = str(operations // PROCESSES)
    processes = [
        start_python("-m", "tests.storage._talker", str(where), str(n), each) for n in range(PROCESSES)
    ]
    history: list[Operation] = []
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.stdout for process in processes if process.stdout is not None]
    for output in outputs:
        history += load_history(output)
    assert [finish_process(process) for process in processes] == [0] * PROCESSES
    return history


@pytest.mark.parametrize("url", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)], indirect=True)
async def test_t49_the_history_of_several_processes_has_no_anomaly(url: str) -> None:
    history = run_talkers(url, 800)
    assert len(history) > 800
    assert find_anomalies(history) == []


@pytest.mark.slow
async def test_t49_a_history_of_100_000_operations_has_no_anomaly(url: str) -> None:
    history = run_talkers(url, 100_000)
    assert len(history) > 100_000
    assert find_anomalies(history) == []
    async with open_storage(url) as found:
        for context in (await found.contexts(ContextQuery(limit=1000))).items:
            await sound(found, context.id)


# ── lies ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Liar(WrapperStorage):
    """Tells the truth until its chance comes, then lies once."""

    def __init__(self, inner: StorageBackend, after: int) -> None:
        super().__init__(inner)
        self.left = after
        self.lied = False
        #: Context → the newest version that was acknowledged.
        self.told: dict[str, int] = {}

    def chance(self, fits: bool = True) -> bool:
        """Return whether to lie now."""
        if self.lied or not fits:
            return False
        self.left -= 1
        self.lied = self.left <= 0
        return self.lied

    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        results = await super().append(ops)
        for result in results:
            if isinstance(result, Receipt):
                context = result.head.context
                self.told[context] = max(self.told.get(context, 0), result.versions[1])
        return results


def is_single_unkeyed(ops: Sequence[Append]) -> bool:
    """Whether it is one new message without a key, which nobody will repeat."""
    return len(ops) == 1 and len(ops[0].drafts) == 1 and ops[0].drafts[0].key is None


class LosesAnAck(Liar):
    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        if not self.chance(is_single_unkeyed(ops)):
            return await super().append(ops)
        head = await self.inner.head(ops[0].context)
        version = head.version + 1
        id = entry_id(ops[0].drafts[0].kind, head.context, version, "000000")
        return [
            Receipt(head=head, versions=(version, version), ids=(id,), positions=(version,), chains=(b"",))
        ]


class AcksAVersionTwice(Liar):
    def __init__(self, inner: StorageBackend, after: int) -> None:
        super().__init__(inner, after)
        self.last: dict[str, Receipt] = {}

    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        known = self.last.get(ops[0].context)
        if known is not None and self.chance(is_single_unkeyed(ops)):
            return [known]
        results = await super().append(ops)
        if is_single_unkeyed(ops) and isinstance(results[0], Receipt):
            self.last[ops[0].context] = results[0]
        return results


class AcksOutOfOrder(Liar):
    """Keeps a place free before one append and gives it to a later one."""

    free: Receipt | None = None

    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        if self.free is not None and is_single_unkeyed(ops) and ops[0].context == self.free.head.context:
            found, self.free = self.free, None
            return [found]
        if not self.chance(is_single_unkeyed(ops)):
            return await super().append(ops)
        (found,) = await self.inner.append([replace(ops[0], drafts=(draft_message("kept free"),))])
        results = await super().append(ops)
        assert isinstance(found, Receipt)
        self.free = found
        return results


class AppendsWhatNobodyAskedFor(Liar):
    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        if self.chance():
            await self.inner.append([Append(context=ops[0].context, drafts=(draft_message("from nowhere"),))])
        return await super().append(ops)


class ForgetsKeys(Liar):
    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        if self.lied or self.chance():
            told = [replace(op, drafts=tuple(replace(one, key=None) for one in op.drafts)) for op in ops]
            return await super().append(told)
        return await super().append(ops)


class LiesWhenRead(Liar):
    def bend(self, entries: list[Entry]) -> list[Entry]:
        """Return another answer."""
        raise NotImplementedError

    async def read(self, context: str, **given: Any) -> list[Entry]:
        told = self.told.get(context, 0)
        entries = await super().read(context, **given)
        fits = len(entries) > 2 and entries[0].context == context and entries[-1].version <= told
        return self.bend(entries) if self.chance(fits) else entries


class ReadsStale(LiesWhenRead):
    def bend(self, entries: list[Entry]) -> list[Entry]:
        return entries[:-1]


class ReadsWithAGap(LiesWhenRead):
    def bend(self, entries: list[Entry]) -> list[Entry]:
        return [entries[0], *entries[2:]]


class ReadsAnotherText(LiesWhenRead):
    def bend(self, entries: list[Entry]) -> list[Entry]:
        return [replace(entries[0], content="something else"), *entries[1:]]


class ReadsAnotherEntry(LiesWhenRead):
    def bend(self, entries: list[Entry]) -> list[Entry]:
        return [replace(entries[0], id=f"{entries[0].id[:-6]}000000"), *entries[1:]]


class LiesAboutTheHead(Liar):
    async def head(self, context: str) -> Head:
        told = self.told.get(context, 0)
        found = await super().head(context)
        return replace(found, version=found.version - 1) if self.chance(0 < found.version == told) else found


class ForksElsewhere(Liar):
    """Forks one version above or below what it says."""

    by = 1

    async def create(self, context: ContextDraft) -> Context:
        if context.parent is None or context.fork is None:
            return await super().create(context)
        end = (await self.inner.head(context.parent)).version
        if not 0 < context.fork < end or not self.chance():
            return await super().create(context)
        made = await super().create(replace(context, fork=context.fork + self.by))
        return replace(made, fork=context.fork)


class ForksTooShort(ForksElsewhere):
    by = -1


LIES: list[tuple[type[Liar], int, set[str]]] = [
    (LosesAnAck, 8, {"lost", "duplicate"}),
    (AcksAVersionTwice, 4, {"duplicate"}),
    (AcksOutOfOrder, 8, {"reordered"}),
    (AppendsWhatNobodyAskedFor, 30, {"gap"}),
    (ForgetsKeys, 10, {"key"}),
    (ReadsStale, 15, {"stale"}),
    (ReadsWithAGap, 15, {"lost"}),
    (ReadsAnotherText, 15, {"changed"}),
    (ReadsAnotherEntry, 15, {"lost"}),
    (LiesAboutTheHead, 5, {"stale"}),
    (ForksElsewhere, 1, {"fork"}),
    (ForksTooShort, 1, {"fork"}),
]
"""A lie, the chance it waits for, and the kinds of anomaly of which at least these must be found."""


@pytest.mark.parametrize("store", ["memory", pytest.param("sqlite", marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize(("lie", "after", "kinds"), LIES, ids=[lie.__name__ for lie, _, _ in LIES])
async def test_t49_each_planted_anomaly_is_found(
    store: StorageBackend, lie: type[Liar], after: int, kinds: set[str]
) -> None:
    liar = lie(store, after)
    recorder = await record_history(liar, 7, 500)
    assert liar.lied, "the chance never came"
    found = find_anomalies(recorder.history)
    assert kinds <= {anomaly.kind for anomaly in found}, [*map(str, found)]


# ── what is an anomaly and what is not ──────────────────────────────────────────────────────────────────────────────


def make_wrote(first: int, *ids: str, when: tuple[int, int], context: str = "a", **fields: Any) -> Wrote:
    keys = fields.pop("keys", (None,) * len(ids))
    return Wrote(start=when[0], end=when[1], context=context, first=first, ids=ids, keys=keys, **fields)


def make_read(*ids: str, when: tuple[int, int], context: str = "a", **fields: Any) -> Read:
    first = fields.pop("first", fields.get("after", 0) + 1)
    seen = tuple((version, id, id) for version, id in enumerate(ids, first))
    return Read(start=when[0], end=when[1], context=context, seen=seen, **fields)


def make_forked(fork: int, when: tuple[int, int], *, newest: bool = False) -> Forked:
    return Forked(start=when[0], end=when[1], context="b", parent="a", fork=fork, newest=newest)


ONE, TWO = make_wrote(1, "x", when=(0, 1)), make_wrote(2, "y", when=(2, 3))

HISTORIES: dict[str, tuple[list[Operation], list[str]]] = {
    "nothing": ([], []),
    "one after the other": ([ONE, TWO, make_read("x", "y", when=(4, 5))], []),
    "appends that overlap take any order": (
        [make_wrote(2, "y", when=(0, 5)), make_wrote(1, "x", when=(1, 6)), make_wrote(3, "z", when=(2, 3))],
        [],
    ),
    "an append after another one is above it": (
        [make_wrote(2, "y", when=(0, 1)), make_wrote(1, "x", when=(2, 3))],
        ["reordered"],
    ),
    "of one moment either may come first": ([make_wrote(2, "y", when=(0, 1)), make_wrote(1, "x", when=(1, 2))], []),
    "a read that overlaps an append may miss it": ([ONE, TWO, make_read("x", when=(2, 4))], []),
    "a read after an append sees it": ([ONE, TWO, make_read("x", when=(4, 5))], ["stale"]),
    "a read after a read that saw it sees it too": (
        [ONE, make_wrote(2, "y", when=(2, 9)), make_read("x", "y", when=(3, 4)), make_read("x", when=(5, 6))],
        ["stale"],
    ),
    "a head after an append knows of it": (
        [ONE, TWO, Read(start=4, end=5, context="a", head=1)],
        ["stale"],
    ),
    "a read of the past needs no more": ([ONE, TWO, make_read("x", when=(4, 5), upto=1)], []),
    "a read of the past shows no more": ([ONE, TWO, make_read("x", "y", when=(4, 5), upto=1)], ["changed"]),
    "the last ones are enough": ([ONE, TWO, make_read("y", when=(4, 5), first=2, cut="start")], []),
    "the first ones are enough": ([ONE, TWO, make_read("x", when=(4, 5), cut="end")], []),
    "some kinds are enough": ([ONE, TWO, make_read(when=(4, 5), chosen=True)], []),
    "nothing is not enough": ([ONE, make_read(when=(4, 5))], ["stale"]),
    "a gap": ([ONE, TWO, make_wrote(3, "z", when=(4, 5)), make_read("y", "z", when=(6, 7), first=2)], ["lost"]),
    "another entry than acknowledged": ([ONE, make_read("z", when=(2, 3))], ["lost"]),
    "another text than before": (
        [ONE, make_read("x", when=(2, 3)), Read(start=4, end=5, context="a", seen=((1, "x", "other"),))],
        ["changed"],
    ),
    "an erased text": (
        [ONE, make_read("x", when=(2, 3)), Read(start=4, end=5, context="a", seen=((1, "x", ""),))],
        [],
    ),
    "two appends of one version": ([ONE, make_wrote(1, "y", when=(0, 3))], ["duplicate"]),
    "one append acknowledged twice": ([ONE, make_wrote(1, "x", when=(0, 3))], ["duplicate"]),
    "a repeated append": (
        [
            make_wrote(1, "x", when=(0, 1), keys=("k",)),
            TWO,
            make_wrote(1, "x", when=(4, 5), keys=("k",), repeated=True),
        ],
        [],
    ),
    "a repeated append stored twice": (
        [make_wrote(1, "x", when=(0, 1), keys=("k",)), make_wrote(2, "y", when=(2, 3), keys=("k",))],
        ["key"],
    ),
    "an append without an answer": ([ONE, Asked(start=2, end=3, context="a", drafts=1)], []),
    "an append without an answer that was stored": (
        [ONE, Asked(start=2, end=3, context="a", drafts=1), make_read("x", "y", when=(4, 5))],
        [],
    ),
    "more than was asked for": (
        [ONE, Asked(start=2, end=3, context="a", drafts=1), make_read("x", "y", "z", when=(4, 5))],
        ["gap"],
    ),
    "read before it was written": (
        [make_read("x", when=(0, 1)), make_wrote(1, "x", when=(2, 3))], ["early", "reordered"]
    ),
    "a fork reads what its parent read": (
        [ONE, TWO, make_forked(1, (4, 5)), make_wrote(2, "z", when=(6, 7), context="b"),
         make_read("x", "z", when=(8, 9), context="b"), make_read("x", "y", when=(8, 9))],
        [],
    ),
    "a fork that reads what its parent said later": (
        [ONE, TWO, make_forked(1, (4, 5)), make_read("x", "y", when=(8, 9), context="b")],
        ["fork", "gap"],
    ),
    "a fork that misses what it inherited": (
        [ONE, TWO, make_forked(2, (4, 5)), make_read("x", when=(8, 9), context="b")],
        ["fork"],
    ),
    "a fork that inherited something else": (
        [ONE, TWO, make_forked(2, (4, 5)), make_read("x", "z", when=(8, 9), context="b")],
        ["lost"],
    ),
    "a fork of an old head": ([ONE, TWO, make_forked(1, (4, 5), newest=True)], ["stale"]),
    "a fork asked for before": ([ONE, TWO, make_forked(1, (2, 5), newest=True)], []),
}  # fmt: skip


@pytest.mark.parametrize("what", HISTORIES)
def test_what_is_an_anomaly_and_what_is_not(what: str) -> None:
    history, kinds = HISTORIES[what]
    for one in (history, history[::-1]):  # histories of several recorders come in any order
        found = find_anomalies(one)
        assert sorted({anomaly.kind for anomaly in found}) == kinds, [*map(str, found)]
        assert all(anomaly.context in str(anomaly) for anomaly in found)


async def test_an_append_that_raises_is_recorded_as_one_without_an_answer() -> None:
    inner = FaultyStorage(MemoryStorage())
    store = RecordingStorage(inner, now=itertools.count().__next__)
    context = await create_log(store)
    inner.fail("append", 1, StorageError("the answer is lost"), after=True)
    with pytest.raises(StorageError, match="the answer is lost"):
        await append_drafts(store, context, draft_message("first", key="1"))
    assert store.history == [Asked(start=1, end=2, context=context.id, drafts=1)]
    assert (await append_drafts(store, context, draft_message("first", key="1"))).repeated
    await append_drafts(store, context, draft_message("second"))
    assert len(await store.read(context.id, limit=5)) == 2
    assert find_anomalies(store.history) == []
    assert list(load_history(dump_history(store.history))) == store.history
