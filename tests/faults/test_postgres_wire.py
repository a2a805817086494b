"""T06, T08: the wire to a PostgreSQL server is cut at any message of any verb, before it arrives or after."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from acms import ACMSError, JobState, Kind, State, StorageBusyError
from acms.errors import StorageUnavailableError
from acms.model import (
    Append,
    Context,
    ContextDraft,
    Derived,
    Done,
    Expect,
    Failed,
    JobDraft,
    JobQuery,
    Receipt,
)
from acms.storage import PostgresStorage
from acms.testing import sound
from acms.testing.logs import WHEN, append_drafts, create_log, draft_fact, draft_message
from tests.servers.postgres import Databases
from tests.servers.stores import another

from ._proxy import Wire

MINUTE = timedelta(minutes=1)
MOST = 200
"""Messages of one side that no verb exceeds."""
STEPS = [13, pytest.param(1, marks=pytest.mark.faults)]
"""Cut at every seventh message, or at every one."""


@dataclass(frozen=True)
class Line:
    """A store behind a wire that can be cut, and the same store without one."""

    wire: Wire
    store: PostgresStorage
    direct: PostgresStorage


@pytest.fixture
async def line(postgres: Databases, postgres_home: str) -> AsyncIterator[Line]:
    place, _, tenant = another(postgres_home).partition("?tenant=")
    port = int(place.rpartition(":")[2].partition("/")[0])
    async with (
        PostgresStorage(place, tenant=tenant) as direct,
        Wire(port) as wire,
        PostgresStorage(wire.url(place), tenant=tenant, pool_size=2) as store,
    ):
        yield Line(wire, store, direct)


async def cut_everywhere(line: Line, once: Any, *, least: int, step: int = 1) -> Counter[str]:
    """Do something again and again, each time with the cut one message later, until no cut happens any more."""
    outcomes: Counter[str] = Counter()
    cuts = 0
    for side in ("client", "server"):
        for forwarded in (False, True):
            for nth in range(1, MOST, step):
                before = line.wire.cuts
                line.wire.arm(side, nth, forwarded=forwarded)
                outcome = await once(f"{side}-{nth}-{forwarded}")
                line.wire.disarm()
                outcomes[outcome] += 1
                if line.wire.cuts == before:
                    break
                cuts += 1
            else:
                raise AssertionError("it needs more messages than anything should")
    assert cuts >= least // step, "hardly anything was cut"
    assert len(line.store._db.pool.bind().all) <= 2
    return outcomes


# ── appends ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def append_over_line(line: Line, op: Append) -> Receipt | ACMSError:
    (result,) = await line.store.append([op])
    return result


async def assert_appended_once(line: Line, context: Context, result: Receipt, contents: list[str]) -> None:
    """Assert that a receipt names the newest entries, and that they are there once."""
    entries = await sound(line.direct, context.id)
    assert Counter(entry.content for entry in entries if entry.content in contents) == Counter(contents)
    mine = entries[result.versions[0] - 1 : result.versions[1]]
    assert [entry.content for entry in mine] == contents
    assert tuple(entry.id for entry in mine) == result.ids
    assert tuple(entry.chain for entry in mine) == result.chains
    assert [entry.position for entry in mine] == list(result.positions)


@pytest.mark.parametrize("kind", ["keyed", "expecting a message", "expecting a version"])
@pytest.mark.parametrize("step", STEPS)
async def test_t06_an_append_that_can_be_known_again_is_written_exactly_once(
    line: Line, kind: str, step: int
) -> None:
    context = await create_log(line.direct)
    head = (await append_drafts(line.direct, context, draft_message("first"))).head

    async def once(name: str) -> str:
        nonlocal head
        contents = [f"{name} a", f"{name} b"]
        expect = {
            "keyed": Expect(),
            "expecting a message": Expect(last_message=head.last_message),
            "expecting a version": Expect(version=head.version),
        }[kind]
        keys = (f"{name}/a", f"{name}/b") if kind == "keyed" else (None, None)
        drafts = tuple(draft_message(text, key=key) for text, key in zip(contents, keys, strict=True))
        result = await append_over_line(line, Append(context=context.id, drafts=drafts, expect=expect))
        assert isinstance(result, Receipt)
        await assert_appended_once(line, context, result, contents)
        head = result.head
        return "repeated" if result.repeated else "new"

    outcomes = await cut_everywhere(line, once, least=30, step=step)
    assert not outcomes["repeated"], "its own first try is no repetition"


@pytest.mark.parametrize("step", STEPS)
async def test_t06_a_fact_that_expects_a_message_is_not_written_twice(line: Line, step: int) -> None:
    """The newest message is the same after it: the expectation does not tell a second try from the first."""
    context = await create_log(line.direct)
    message = (await append_drafts(line.direct, context, draft_message("first"))).head.last_message

    async def once(name: str) -> str:
        expect = Expect(last_message=message)
        result = await append_over_line(
            line, Append(context=context.id, drafts=(draft_fact(name),), expect=expect)
        )
        stored = [entry.content for entry in await sound(line.direct, context.id)].count(name)
        if isinstance(result, Receipt):
            assert stored == 1
            return "acknowledged"
        assert isinstance(result, StorageBusyError | StorageUnavailableError)
        assert stored <= 1
        return "unknown"

    await cut_everywhere(line, once, least=30, step=step)


@pytest.mark.parametrize("step", STEPS)
async def test_t06_an_append_that_cannot_be_known_again_is_written_once_or_told_to_be_unknown(
    line: Line, step: int
) -> None:
    context = await create_log(line.direct)

    async def once(name: str) -> str:
        result = await append_over_line(line, Append(context=context.id, drafts=(draft_message(name),)))
        stored = [entry.content for entry in await sound(line.direct, context.id)].count(name)
        if isinstance(result, Receipt):
            assert stored == 1
            return "acknowledged"
        assert isinstance(result, StorageBusyError | StorageUnavailableError)
        assert "not known" in str(result)
        assert stored <= 1
        return "unknown"

    outcomes = await cut_everywhere(line, once, least=30, step=step)
    assert outcomes["acknowledged"] > 0
    assert outcomes["unknown"] > 0 or step > 1


async def test_t06_an_unknown_append_stays_unknown_while_nobody_can_look(
    line: Line, postgres_home: str
) -> None:
    """A wire that stays cut does not make it look as if nothing had been sent: a caller would send it again."""
    context = await create_log(line.direct)
    place = line.wire.url(postgres_home)
    async with PostgresStorage(place, tenant=line.store.tenant, retry_seconds=0.2) as hasty:
        await append_drafts(hasty, context, draft_message("before"))  # reads, too, which webhooks there are
        line.wire.arm("client", 1, forwarded=True)
        line.wire.open = False
        (result,) = await hasty.append([Append(context=context.id, drafts=(draft_message("one"),))])
    assert isinstance(result, StorageBusyError | StorageUnavailableError)
    assert "not known" in str(result)


@pytest.mark.parametrize("step", STEPS)
async def test_t06_appends_that_share_a_statement_keep_their_promises_each(line: Line, step: int) -> None:
    places = [await create_log(line.direct) for _ in range(5)]
    versions = {place.id: 0 for place in places}

    async def once(name: str) -> str:
        kinds = ["keyed", "expecting", "bare", "keyed", "bare"]
        ops = [
            Append(
                context=place.id,
                drafts=(draft_message(f"{name} {n}", key=name if kind == "keyed" else None),),
                expect=Expect(version=versions[place.id]) if kind == "expecting" else Expect(),
            )
            for n, (place, kind) in enumerate(zip(places, kinds, strict=True))
        ]
        results = await line.store.append(ops)
        unknown = 0
        for n, (place, kind, result) in enumerate(zip(places, kinds, results, strict=True)):
            entries = await sound(line.direct, place.id)
            stored = [entry.content for entry in entries].count(f"{name} {n}")
            versions[place.id] = len(entries)
            if kind == "bare" and isinstance(result, StorageBusyError | StorageUnavailableError):
                assert stored <= 1
                unknown += 1
            else:
                assert isinstance(result, Receipt)
                assert stored == 1
        return f"{unknown} unknown"

    await cut_everywhere(line, once, least=30, step=step)


@pytest.mark.parametrize("step", STEPS)
async def test_t06_an_effect_of_a_job_is_written_exactly_once(line: Line, step: int) -> None:
    """The effect has no key: its lease keeps it from being there twice. The sources make it several statements."""
    context = await create_log(line.direct)
    source = (await append_drafts(line.direct, context, draft_message("first"))).ids[0]

    async def once(name: str) -> str:
        await append_drafts(line.direct, context, jobs=(JobDraft(kind="k", dedupe=name),))
        (lease,) = await line.direct.claim(["k"], lease=MINUTE)
        draft = draft_fact(name, sources=(source,))
        result = await append_over_line(line, Append(context=context.id, drafts=(draft,), finish=lease))
        assert isinstance(result, Receipt)
        await assert_appended_once(line, context, result, [name])
        (job,) = (await line.direct.jobs(JobQuery(ids=(lease.job.id,)))).items
        assert job.state is JobState.DONE
        return "done"

    await cut_everywhere(line, once, least=60, step=step)


# ── the other verbs ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("step", STEPS)
async def test_t06_other_verbs_have_their_effect_once(line: Line, step: int) -> None:
    context = await create_log(line.direct)

    async def create(name: str) -> str:
        draft = ContextDraft(key=name, counter="words", created_at=WHEN)
        made = await line.store.create(draft)
        assert await line.direct.context(name) == made
        nameless = await line.store.create(ContextDraft(counter="words", created_at=WHEN))
        assert (await line.direct.context(nameless.id)).id == nameless.id
        return "made"

    async def settings(name: str) -> str:
        rev = (await line.direct.context(context.id)).settings_rev
        found = await line.store.settings(context.id, {"name": name}, rev=rev)
        assert (found.settings_rev, found.settings["name"]) == (rev + 1, name)
        return "set"

    async def blank(name: str) -> str:
        version = (await append_drafts(line.direct, context, draft_message(name))).versions[0]
        assert await line.store.blank(context.id, [version], to=State.ERASED, audit={"why": name}) == 1
        (entry,) = await line.direct.read(context.id, after=version - 1, limit=1)
        assert entry.state is State.ERASED
        return "blank"

    async def derived(name: str) -> str:
        version = (await append_drafts(line.direct, context, draft_message(name))).versions[0]
        row = Derived(version=version, space="s", data=name.encode())
        assert await line.store.put_derived(context.id, [row]) == 1
        rows = await line.direct.derived(context.id, "s", at=None)
        assert [one.data for one in rows if one.version == version] == [name.encode()]
        return "derived"

    async def settle(name: str) -> str:
        await append_drafts(line.direct, context, jobs=(JobDraft(kind="k", dedupe=name),))
        (lease,) = await line.direct.claim(["k"], lease=MINUTE)
        outcome = Failed(error=name) if "server" in name else Done()
        job = await line.store.settle(lease, outcome)
        assert job.state is (JobState.FAILED if "server" in name else JobState.DONE)
        return "settled"

    async def claim(name: str) -> str:
        """Nothing is lost: an unacknowledged claim runs out."""
        await append_drafts(line.direct, context, jobs=(JobDraft(kind="c", dedupe=name),))
        leases = await line.store.claim(["c"], lease=timedelta(milliseconds=1))
        while not leases:
            leases = await line.direct.claim(["c"], lease=MINUTE)
        await line.direct.settle(leases[0], Failed(error="over"))
        return "claimed"

    for verb in (create, settings, blank, derived, settle, claim):
        await cut_everywhere(line, verb, least=20, step=step)
    await sound(line.direct, context.id)
    audits = await asyncio.to_thread(_count_audits, line.direct)
    assert audits == len(
        {entry.version for entry in await line.direct.read(context.id) if entry.state is State.ERASED}
    )


def _count_audits(store: PostgresStorage) -> int:
    import psycopg

    with psycopg.connect(store._db.pool._conninfo) as connection:
        row = connection.execute(
            "SELECT count(*) FROM acms.audit WHERE tenant_id = %s", (store.tenant,)
        ).fetchone()
    assert row is not None
    return row[0]


# ── restore ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("step", STEPS)
async def test_t06_a_log_is_restored_whole_whenever_the_wire_is_cut(line: Line, step: int) -> None:
    source = await create_log(line.direct, "source")
    await append_drafts(line.direct, source, *[draft_message(f"message {n}", key=str(n)) for n in range(20)])
    entries = await line.direct.read(source.id)
    assert {entry.kind for entry in entries} == {Kind.MESSAGE}

    async def once(name: str) -> str:
        elsewhere = f"{line.store.tenant}-{name}"
        async with line.store.for_tenant(elsewhere) as target, line.direct.for_tenant(elsewhere) as seen:

            async def stream() -> AsyncIterator[Any]:
                for entry in entries:
                    yield entry

            await target.restore(source, stream())
            assert await sound(seen, source.id) == entries
        return "restored"

    await cut_everywhere(line, once, least=60, step=step)
