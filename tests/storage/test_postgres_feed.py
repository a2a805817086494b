"""The feed and the hints of a PostgreSQL store."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from acms import State, ValidationError, open_storage
from acms.model import Append, JobDraft
from acms.storage import PostgresStorage
from acms.storage.postgres.append_parameters import AppendGroup, PendingAppend, build_append_statement
from acms.testing.logs import append_drafts, create_log, draft_fact, draft_message, fork_log


async def everything_in(store, after=None, *, limit=1000):
    """Read a feed to its end; return the entries and the cursor."""
    found = []
    while True:
        page = await store.feed(after, limit=limit)
        found += page.items
        if not page.items and page.next_after == after:
            return found, after
        after = page.next_after
        if not page.items:
            return found, after


@pytest.fixture
async def store(tenant_url):
    async with open_storage(tenant_url) as store:
        yield store


async def test_a_feed_has_every_entry_of_every_log_in_the_order_of_each(store):
    one, two = await create_log(store), await create_log(store)
    for n in range(7):
        await append_drafts(store, one, draft_message(f"one {n}"), draft_fact("a fact"))
        await append_drafts(store, two, draft_message(f"two {n}"))
    child = await fork_log(store, one)
    await append_drafts(store, child, draft_message("of the child"))
    for limit in (1, 3, 100):
        found, cursor = await everything_in(store, limit=limit)
        for context, count in ((one, 14), (two, 7), (child, 1)):
            versions = [entry.version for entry in found if entry.context == context.id]
            assert versions == sorted(versions)
            assert len(versions) == count
        assert len(found) == 22
        assert (await everything_in(store, cursor))[0] == []
    await append_drafts(store, two, draft_message("later"))
    assert [entry.content for entry in (await everything_in(store, cursor))[0]] == ["later"]


async def test_a_feed_shows_what_is_erased_as_blank_and_other_tenants_nothing(store):
    context = await create_log(store)
    await append_drafts(store, context, draft_message("secret"))
    await store.blank(context.id, [1], to=State.ERASED, audit={})
    assert [entry.content for entry in (await everything_in(store))[0]] == [""]
    async with store.for_tenant(f"{store.tenant}-other") as other:
        assert (await everything_in(other))[0] == []


async def test_what_is_no_cursor_is_refused(store):
    for cursor in ("", "1", "1.2.c", "a.0..0", "1.0..-1", "9" * 400, "1.2.\0.3", "99999999999.0..0"):
        with pytest.raises(ValidationError):
            await store.feed(cursor)


async def test_t31_a_consumer_that_dies_again_and_again_misses_nothing_of_slow_writers(store):
    """16 writers whose transactions stay open for a while after they wrote; the consumer forgets half its cursors."""
    draw = random.Random(7)
    contexts = [await create_log(store) for _ in range(8)]
    done = asyncio.Event()

    async def write(number):
        for n in range(12):
            context = draw.choice(contexts)

            async def slowly(connection, context=context, n=n):
                rows = await store._db.query_in(connection, "lock_context", {"context": context.id})
                assert rows
                op = Append(context=context.id, drafts=(draft_message(f"{number}.{n}"),), tail={})
                one = PendingAppend(op, os.urandom, asyncio.get_running_loop().create_future())
                assert await store._db.query_in(connection, *build_append_statement([AppendGroup([one])]))
                await asyncio.sleep(draw.random() * 0.02)

            await store._db.run_transaction(slowly)

    seen: dict[str, list[int]] = {context.id: [] for context in contexts}

    async def consume():
        kept = None
        while True:
            finished = done.is_set()
            page = await store.feed(kept, limit=draw.choice((1, 5, 50)))
            for entry in page.items:
                seen[entry.context].append(entry.version)
            if draw.random() < 0.5 or finished:  # else it died before it kept the cursor
                if finished and not page.items and page.next_after == kept:
                    return
                kept = page.next_after

    consumer = asyncio.ensure_future(consume())
    await asyncio.gather(*[write(number) for number in range(16)])
    done.set()
    await asyncio.wait_for(consumer, 60)
    for context in contexts:
        head = await store.head(context.id)
        first = list(dict.fromkeys(seen[context.id]))
        assert first == list(range(1, head.version + 1))
    assert sum(len(set(versions)) for versions in seen.values()) == 16 * 12


async def test_an_append_with_jobs_wakes_whoever_listens(postgres_url):
    """A hint may be missed, so the writer goes on until one arrives; other tenants hear nothing."""
    async with (
        PostgresStorage(postgres_url, hints=True) as store,
        PostgresStorage(postgres_url) as other,
        other.for_tenant("other") as foreign,
    ):
        woken, disturbed = asyncio.Event(), asyncio.Event()
        async with other.hints(woken.set), foreign.hints(disturbed.set):
            context = await create_log(store)
            for n in range(6_000):
                await append_drafts(store, context, jobs=(JobDraft(kind="k", dedupe=f"d{n}"),))
                if woken.is_set():
                    break
                await asyncio.sleep(0.01)
        assert woken.is_set()
        assert not disturbed.is_set()
