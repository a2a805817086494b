"""Seeded faults of the PostgreSQL store, run by `python -m tests.storage.mutations`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any
from unittest.mock import patch

from acms.model import Append, Expect, Receipt
from acms.storage import PostgresStorage
from acms.storage.postgres import append as postgres_append
from acms.storage.postgres import append_parameters, database, migrate
from acms.testing import sound
from acms.testing.logs import append_drafts, create_log, draft_message
from tests.faults._proxy import Wire
from tests.servers.stores import another

Plant = Callable[[ExitStack], None]
OF_SCHEMA: set[Plant] = set()
"""Plants that are in the schema: only a database that is made with one has it."""
TENANT = r"\b(?:\w+\.)?tenant_id = %\(tenant\)s"


# ── planting ────────────────────────────────────────────────────────────────────────────────────────────────────────


def edit_query(name: str, old: str, new: str) -> Plant:
    """Replace a pattern in a query, or in all of them when the name is empty."""

    def plant(stack: ExitStack) -> None:
        right = database.load_queries("postgres")
        wrong = {of: re.sub(old, new, text) if name in ("", of) else text for of, text in right.items()}
        assert wrong != right, f"{name} has no {old!r} any more: bring this fault up to date"
        stack.enter_context(patch.object(database, "load_queries", lambda dialect: wrong))

    return plant


def edit_schema(old: str, new: str) -> Plant:
    """Replace a text in the schema; it takes a database of its own."""

    def plant(stack: ExitStack) -> None:
        right = migrate.list_known_migrations()
        wrong = [(version, needs, sum, script.replace(old, new)) for version, needs, sum, script in right]
        assert wrong != right, f"the schema has no {old!r} any more: bring this fault up to date"
        stack.enter_context(patch.object(migrate, "list_known_migrations", lambda: wrong))

    OF_SCHEMA.add(plant)
    return plant


def edit_preamble(old: str, new: str) -> Plant:
    """Replace a text in what every transaction is told first."""

    def plant(stack: ExitStack) -> None:
        wrong = database.PREAMBLE.replace(old, new)
        assert wrong != database.PREAMBLE, f"the preamble has no {old!r} any more"
        stack.enter_context(patch.object(database, "PREAMBLE", wrong))

    return plant


def plant_both(*plants: Plant) -> Plant:
    def plant(stack: ExitStack) -> None:
        for one in plants:
            one(stack)

    return plant


def make_always_true(owner: Any, name: str) -> Plant:
    """Let a property be true whatever it is asked."""
    return lambda stack: stack.enter_context(patch.object(owner, name, True))


def postgres_faults(code: Callable[..., Plant]) -> Iterator[tuple[str, Plant, str]]:
    """Yield name, fault, and what must find it."""
    append = postgres_append.Appender
    yield (
        "a key is not unique",
        edit_schema("CREATE UNIQUE INDEX entries_key", "CREATE INDEX entries_key"),
        "test_repeating_an_append_with_its_keys_changes_nothing",
    )
    yield (
        "a session's name is not unique",
        edit_schema("CREATE UNIQUE INDEX contexts_key", "CREATE INDEX contexts_key"),
        "test_t02_many_writers_of_many_contexts_share_one_context_per_key",
    )
    yield (
        "jobs of one name are many",
        edit_schema("CREATE UNIQUE INDEX jobs_dedupe", "CREATE INDEX jobs_dedupe"),
        "test_a_job_is_enqueued_with_its_append_and_once_per_name",
    )
    yield (
        "the chain goes on from the wrong head",
        edit_query("append", r"sha256\(c\.chain \|\|", "sha256(c.before ||"),
        "test_appends_take_the_next_versions_and_messages_the_next_positions",
    )
    yield (
        "the newest message is not locked with its head",
        edit_query("append", r"\(NOT g\.expect_last OR", "(TRUE OR"),
        "test_t03_of_two_appends_on_the_same_head_one_is_refused",
    )
    yield (
        "expected rewrites are not asked of the row",
        edit_query("append", r"g\.expect_rewrites = c\.rewrites", "TRUE"),
        "test_expected_rewrites_are_not_disturbed_by_new_messages",
    )
    yield (
        "a deleted log takes appends",
        edit_query("append", r"AND c\.deleted_at IS NULL AND", "AND"),
        "test_a_deleted_context_is_hidden_from_every_read_and_append",
    )
    yield (
        "a group is put behind any head",
        edit_query("append", r"decode\(g\.expect_chain, 'hex'\) = c\.chain", "TRUE"),
        "handles",
    )
    yield (
        "a group is one batch",
        code(append_parameters.AppendGroup, "drafts", ('"batch": entries + 1', '"batch": 1')),
        "handles",
    )
    yield (
        "what cannot be known again is sent twice",
        make_always_true(append_parameters.PendingAppend, "repeatable"),
        "wire",
    )
    yield (
        "a lost append is taken for refused",
        code(append, "_diagnose", ("if unknown:", "if False:")),
        "wire",
    )
    yield (
        "a stale lease is accepted (postgres)",
        edit_query("finish_job", r"AND attempt = %\(attempt\)s", ""),
        "test_a_stale_lease_is_fenced_off",
    )
    yield (
        "a lease never runs out (postgres)",
        edit_query("claim_job", r"OR \(j\.state = 'running' AND j\.lease <= t\.now\)", ""),
        "test_a_stale_lease_is_fenced_off",
    )
    yield (
        "a transaction does not name its tenant",
        edit_preamble("set_config('acms.tenant', %s, true)", "set_config('acms.else', %s, true)"),
        "test_appends_take_the_next_versions_and_messages_the_next_positions",
    )
    yield (
        "queries ignore tenants and nothing is below them",
        plant_both(
            edit_query("", TENANT, "TRUE"), edit_preamble("set_config('role', 'acms_app', true)", "1")
        ),
        "test_t33_two_tenants_see_nothing_of_each_other",
    )
    yield (
        "a lineage is remembered without its parent",
        code(
            database.Database,
            "read_head",
            ("self.lineages[context] = segments", "self.lineages[context] = segments[1:]"),
        ),
        "test_derived_rows_are_counted_once_for_a_whole_fork_tree",
    )
    yield (
        "a record is put over any revision (postgres)",
        edit_query("put_record", r"WHERE r\.rev = %\(rev\)s", ""),
        "test_a_record_is_put_only_at_the_revision_that_was_read",
    )
    yield (
        "derived rows are counted per context (postgres)",
        edit_query(
            "put_derived",
            r"AND context_id = \(SELECT c\.root .*?%\(context\)s\)",
            "AND context_id = %(context)s",
        ),
        "test_derived_rows_are_counted_once_for_a_whole_fork_tree",
    )
    yield (
        "an erasure is counted in no fork",
        edit_query("count_rewrite", r"= ANY\(%\(contexts\)s::text\[\]\)", "= (%(contexts)s::text[])[1]"),
        "test_an_erasure_is_seen_in_every_fork_and_raises_one_epoch",
    )
    yield (
        "an erasure keeps the salt (postgres)",
        edit_query("blank_entry", "salt = NULL,", ""),
        "test_expiring_deletes_the_content_and_keeps_the_rest",
    )
    yield (
        "namespaces are ignored by search (postgres)",
        edit_query("", r"e\.found_in = %\(namespace\)s", "e.found_in IS NOT NULL"),
        "test_a_search_stays_in_its_namespace",
    )


# ── what it takes more than one handle to find ──────────────────────────────────────────────────────────────────────


async def _write_over_handles(home: str) -> None:
    """Let three handles write on one log, at once."""
    place, _, tenant = another(home).partition("?tenant=")
    async with AsyncExitStack() as stack:
        stores = [
            await stack.enter_async_context(PostgresStorage(place, tenant=tenant, retry_seconds=5))
            for _ in range(3)
        ]
        context = await create_log(stores[0])

        async def write(number: int) -> None:
            for n in range(8):
                receipt = await append_drafts(
                    stores[number % 3], context, draft_message(f"{number}.{n}"), tail={"by": number}
                )
                (entry,) = await stores[(number + 1) % 3].get(receipt.ids)
                assert entry is not None
                assert (entry.content, entry.batch) == (f"{number}.{n}", receipt.versions[0])

        await asyncio.gather(*(write(number) for number in range(9)))
        # A handle sends what follows an append of its own as one group, whether the head still is where it left it
        # or not.
        for last in (0, 1):
            await append_drafts(stores[0], context, draft_message("known"), tail={"by": 0})
            await append_drafts(stores[last], context, draft_message("last"), tail={"by": last})
            ops = [
                Append(context=context.id, drafts=(draft_message(f"together {n}"),), tail={"by": n})
                for n in range(3)
            ]
            for result in await stores[0].append(ops):
                assert isinstance(result, Receipt)
                (entry,) = await stores[1].get(result.ids)
                assert entry is not None
                assert entry.batch == result.versions[0]
        assert len(await sound(stores[0], context.id)) == 82


async def _cut_wire(home: str) -> None:
    """Cut an append at every message; it is there once, or said to be unknown."""
    place, _, tenant = another(home).partition("?tenant=")
    port = int(place.rpartition(":")[2].partition("/")[0])
    async with (
        Wire(port) as wire,
        PostgresStorage(place, tenant=tenant) as direct,
        PostgresStorage(wire.url(place), tenant=tenant, retry_seconds=5) as store,
    ):
        context = await create_log(direct)
        await store.head(context.id)
        for nth in range(1, 30):
            expected = Expect(version=(await direct.head(context.id)).version) if nth % 2 else Expect()
            wire.arm("server", nth // 2 + 1, forwarded=False)
            op = Append(context=context.id, drafts=(draft_message(f"m{nth}"),), expect=expected)
            (result,) = await store.append([op])
            wire.disarm()
            stored = [entry.content for entry in await direct.read(context.id)].count(f"m{nth}")
            if nth % 2:
                assert isinstance(result, Receipt), "it can be known again"
            assert stored == 1 if isinstance(result, Receipt) else stored <= 1


CHECKS: dict[str, Callable[[str], Awaitable[None]]] = {"handles": _write_over_handles, "wire": _cut_wire}


def check_passes(name: str, home: str) -> bool:
    """Run one of the checks; return False when it fails or takes for ever."""

    async def run() -> None:
        await asyncio.wait_for(CHECKS[name](home), 60)

    try:
        asyncio.run(run())
    except Exception:
        return False
    return True
