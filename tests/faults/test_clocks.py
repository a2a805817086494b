"""Clocks that go backwards: versions say what came later, leases end, and no age is below zero."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acms import ACMS, ACMSConfig, EpisodeBoundaryConfig, open_storage
from acms.errors import LeaseLostError
from acms.model import JobDraft, Retry
from acms.testing import sound
from acms.testing.logs import WHEN, append_drafts, create_log, draft_message
from tests.servers.stores import another

WORDS = ["orders", "ships", "cache", "invoice", "Berlin", "kernel"]
GAP = 900
AHEAD = """
UPDATE acms.jobs SET not_before = not_before + %(ahead)s, lease = lease + %(ahead)s,
    created_at = created_at + %(ahead)s, updated_at = updated_at + %(ahead)s
WHERE tenant_id = %(tenant)s AND state <> 'done'
"""
"""What a clock that is ahead would have written."""
#: Seconds from one message to the next: less than the pause that ends an episode, or any time back.
steps = st.lists(st.tuples(st.integers(-(10**8), GAP - 1), st.sampled_from(WORDS)), min_size=2, max_size=14)


async def converse_at_times(url: str, told: list[tuple[int, str]]) -> dict[str, Any]:
    """Have a conversation at some times; return all that must not depend on them."""
    config = ACMSConfig(episodes=EpisodeBoundaryConfig(max_turns=3, max_time_gap_seconds=GAP))
    now = WHEN
    async with open_storage(url) as storage, ACMS("s", storage, config=config) as session:
        for n, (step, word) in enumerate(told):
            now += timedelta(seconds=step)
            role = "assistant" if n % 2 else "user"
            await session.ingest(role, f"about {word} number {n}", created_at=now, idempotency_key=f"k{n}")
        entries = await sound(storage, (await storage.context("s")).id)
        recalled = await session.recall("cache of orders", token_budget=500)
        return {
            "log": [(entry.version, entry.position, entry.content, entry.episode) for entry in entries],
            "episodes": [
                (one.ordinal, one.messages, one.status, one.reason) for one in await session.episodes()
            ],
            "window": [item.content for item in await session.window(budget=60)],
            "recalled": [item.content for item in recalled],
            "past": [item.content for item in await session.at(2).window(budget=200)],
            "newest": [entry.preview for entry in (await session.history(limit=3)).entries],
        }


@pytest.mark.parametrize("any_url", ["sqlite", "postgres"], indirect=True)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(told_at=steps)
async def test_a_log_told_under_a_clock_that_goes_back_is_the_log_told_under_one_that_does_not(
    any_url: str, told_at: list[tuple[int, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    def fresh() -> str:
        if any_url.startswith("sqlite"):
            return f"sqlite:///{tmp_path_factory.mktemp('clock') / 'a.db'}"
        return another(any_url.partition("?")[0])

    jumping, steady = (
        await converse_at_times(fresh(), told_at),
        await converse_at_times(fresh(), [(1, word) for _, word in told_at]),
    )
    assert jumping == steady


async def test_t32_what_a_servers_clock_that_was_ahead_has_written_stalls_no_job(tenant_url: str) -> None:
    """After a failover to a host whose clock is right: enqueued, leased and put off are due, and fenced."""
    async with open_storage(tenant_url) as store:
        context = await create_log(store)
        kinds = ("waiting", "leased", "put off")
        for hours in (1, 24 * 365):
            await append_drafts(
                store, context, jobs=tuple(JobDraft(kind=kind, dedupe=kind) for kind in kinds)
            )
            (held,) = await store.claim(["leased"], lease=timedelta(seconds=30))
            (tried,) = await store.claim(["put off"], lease=timedelta(seconds=30))
            await store.settle(tried, Retry(error="busy", not_before=tried.until + timedelta(minutes=5)))
            with psycopg.connect(tenant_url.partition("?")[0], autocommit=True) as server:
                server.execute(AHEAD, {"ahead": hours * 3_600_000_000, "tenant": store.tenant})
            found = await store.claim(kinds, lease=timedelta(seconds=30), limit=9)
            assert sorted((lease.job.kind, lease.attempt) for lease in found) == [
                ("leased", 2), ("put off", 2), ("waiting", 1),
            ]  # fmt: skip
            assert await store.claim(kinds, lease=timedelta(seconds=30), limit=9) == []
            with pytest.raises(LeaseLostError):
                await append_drafts(
                    store, context, draft_message("of the worker that was ahead"), finish=held
                )
            for lease in found:
                await append_drafts(
                    store,
                    context,
                    draft_message(lease.job.kind),
                    finish=await store.extend(lease, by=timedelta(minutes=1)),
                )
        assert [entry.content for entry in await sound(store, context.id)].count("leased") == 2
