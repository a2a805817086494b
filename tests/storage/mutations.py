"""Seeded faults: proof that the suite and the story find what they are there to find.

    python -m tests.storage.mutations

plants one fault after the other in a store, runs the whole suite and a short story against it, prints which test found
it, and exits with 1 when a fault survived both. Those of PostgreSQL are in `mutations_postgres`; a server is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import io
import itertools
import re
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import Phase

from acms.log import active_entries
from acms.ports import StorageBackend
from acms.storage import CachedStorage, MemoryStorage, PostgresStorage, SQLiteStorage, append_rules
from acms.storage.append_rules import Read
from acms.storage.sqlite import append as sqlite_append
from acms.storage.sqlite import database, tables
from acms.storage.sqlite import store as sqlite
from acms.testing import ManualClock, run_story
from tests.servers.postgres import Databases, Server
from tests.servers.stores import another
from tests.storage.suite import StorageBackendTests

from . import mutations_postgres

TIMEOUT = 60
#: How many stories are told: as many as seconds allow.
EXAMPLES = {"memory": 250, "cached": 150, "sqlite": 100, "postgres": 20}

_numbers = itertools.count()

Plant = Callable[[ExitStack], None]


# ── planting ────────────────────────────────────────────────────────────────────────────────────────────────────────


def edit_source(owner: Any, name: str, *edits: tuple[str, str]) -> Plant:
    """Replace text in the source of a function; a text that is not there any more is an error."""

    function = vars(owner)[name]
    assert isinstance(function, FunctionType)
    right = textwrap.dedent(inspect.getsource(function))

    def plant(stack: ExitStack) -> None:
        wrong = right
        for old, new in edits:
            assert old in wrong, f"{name} has no {old!r} any more: bring this fault up to date"
            wrong = wrong.replace(old, new)
        found: dict[str, Any] = {}
        exec(
            compile("from __future__ import annotations\n" + wrong, "<fault>", "exec"),
            function.__globals__,
            found,
        )
        stack.enter_context(patch.object(owner, name, found[name]))

    return plant


def edit_query(name: str, old: str, new: str) -> Plant:
    """Replace a pattern in a query of SQLite, or in all of them when the name is empty."""

    def plant(stack: ExitStack) -> None:
        right = sqlite.load_queries("sqlite")
        wrong = {of: re.sub(old, new, text) if name in ("", of) else text for of, text in right.items()}
        assert wrong != right, f"{name} has no {old!r} any more: bring this fault up to date"
        stack.enter_context(patch.object(sqlite, "load_queries", lambda dialect: wrong))

    return plant


@dataclass(frozen=True)
class Fault:
    """Something that could be wrong with a store."""

    name: str
    store: str
    plant: Plant
    #: A test that must find it; "story" when only a story can, "handles" or "wire" when it takes several handles or
    #: a connection that is cut.
    found_by: str


FAULTS = [
    Fault(
        "an append ignores its keys", "memory",
        edit_source(sqlite_append.Appender, "_append_at", ("if prepared.keys:", "if False:")),
        "test_repeating_an_append_with_its_keys_changes_nothing",
    ),
    Fault(
        "a key may stand for two bodies", "memory",
        edit_source(append_rules, "is_repeated_append", ("and not draft_matches_entry(draft, entry)", "and False")),
        "test_a_key_never_stands_for_two_bodies",
    ),
    Fault(
        "new and old keys mix", "sqlite",
        edit_source(append_rules, "is_repeated_append", ("if entry is None:", "if False:"), 
             ("if entry.state", "if entry and entry.state")),
        "test_new_and_old_keys_do_not_mix",
    ),
    Fault(
        "keys are shared by all contexts", "sqlite", edit_query("key_version", r"ref = \? AND", "(ref = ? OR 1) AND"),
        "test_a_key_belongs_to_one_context",
    ),
    Fault(
        "a fork knows what its parent said later", "sqlite",
        edit_query("inherited", "AND k.version <= o.value ->> 1", ""),
        "test_a_key_belongs_to_one_context",
    ),
    Fault(
        "a fork does not know the keys it inherits", "memory",
        edit_source(sqlite_append.Appender, "_find_repeat", ("self._inherited_segments(connection, op.context)", "()")),
        "test_a_fork_knows_the_keys_that_it_inherits",
    ),
    Fault(
        "the expected last message is ignored", "sqlite",
        edit_source(append_rules, "check_append", ("expected is not ANY and", "False and")),
        "test_t03_of_two_appends_on_the_same_head_one_is_refused",
    ),
    Fault(
        "expected rewrites are ignored", "sqlite",
        edit_source(append_rules, "check_append", ("op.expect.rewrites is not None and", "False and")),
        "test_expected_rewrites_are_not_disturbed_by_new_messages",
    ),
    Fault(
        "a bulk append skips a version", "memory",
        edit_source(append_rules, "predict_receipt", ("version += 1", "version += 1 + (version == head.version + 1)")),
        "test_a_long_log_reads_whole_and_in_pages",
    ),
    Fault(
        "the chain is not advanced", "memory",
        edit_source(append_rules, "predict_receipt", ("chains[-1] if chains else head.chain", "head.chain")),
        "test_appends_take_the_next_versions_and_messages_the_next_positions",
    ),
    Fault(
        "facts take positions", "memory",
        edit_source(append_rules, "predict_receipt", ("kind is Kind.MESSAGE", "kind in (Kind.MESSAGE, Kind.FACT)")),
        "test_appends_take_the_next_versions_and_messages_the_next_positions",
    ),
    Fault(
        "a refused operation takes its neighbours with it", "sqlite",
        edit_source(database, "run_undoable",
             ("except ACMSError as error:\n        result = error", "except ACMSError as error:\n        raise")),
        "test_a_refused_operation_leaves_its_neighbours_alone",
    ),
    Fault(
        "a refused operation is not undone", "sqlite",
        edit_source(database, "run_undoable", ('"ROLLBACK TO op"', '"SELECT 1"')),
        "test_a_stale_lease_is_fenced_off",
    ),
    Fault(
        "a fork sees what its parent says later", "sqlite",
        edit_source(append_rules, "split_segments", ("min(last, ancestor_last)", "last")),
        "test_t10_a_fork_at_any_version_reads_exactly_what_was_there",
    ),
    Fault(
        "a fork above version 3 misses its last entry", "memory",
        edit_source(append_rules, "lineage_of_fork", ("lineage, 1, fork)", "lineage, 1, fork - (fork > 3))")),
        "test_t10_a_fork_at_any_version_reads_exactly_what_was_there",
    ),
    Fault(
        "a deep fork reads its grandparent to the end", "memory",
        edit_source(
            append_rules, "lineage_of_fork", ("(owner, last) for", "(owner, dict(lineage).get(owner, last)) for")
        ),
        "test_t10_a_fork_of_a_fork_inherits_from_both",
    ),
    Fault(
        "a deleted context can be read", "sqlite",
        edit_source(tables.Tables, "log", ("deleted_at is not None and not deleted", "False")),
        "test_a_deleted_context_is_hidden_from_every_read_and_append",
    ),
    Fault(
        "tenants are ignored", "sqlite", edit_query("", r"(\w*\.?tenant = (?:\?\d?|:tenant))", r"(\1 OR 1)"),
        "test_t33_two_tenants_see_nothing_of_each_other",
    ),
    Fault(
        "namespaces are ignored by search", "sqlite",
        edit_query("searchable", r"c\.namespace = \?", "(c.namespace = ? OR 1)"),
        "test_a_search_stays_in_its_namespace",
    ),
    Fault(
        "replacements of the future are in force", "memory",
        edit_source(
            Read, "last_version", ("if self.at is not None:", "if self.at is not None and not self.replacing:")
        ),
        "test_t11_what_was_read_at_a_version_is_read_there_for_ever",
    ),
    Fault(
        "an erasure keeps the key", "sqlite", edit_query("forget_key", "WHERE", "WHERE 0 AND"),
        "test_erasing_also_deletes_keys_derived_rows_and_job_payloads",
    ),
    Fault(
        "an erasure keeps the salt", "sqlite", edit_query("blank_entry", "salt = NULL,", ""),
        "test_expiring_deletes_the_content_and_keeps_the_rest",
    ),
    Fault(
        "an erasure keeps what forks' jobs carry", "sqlite",
        edit_query("delete_payload", r"WHERE root = \(.*?\?2\)", "WHERE ref = ?2"),
        "test_erasing_also_deletes_keys_derived_rows_and_job_payloads",
    ),
    Fault(
        "an erasure raises no epoch", "memory", edit_query("raise_epoch", r"epoch \+ 1", "epoch"),
        "test_an_erasure_is_seen_in_every_fork_and_raises_one_epoch",
    ),
    Fault(
        "a vector brings an erased entry back", "memory",
        edit_query("live", "AND state IS NULL", ""),
        "test_t07_what_arrives_after_an_erasure_brings_nothing_back",
    ),
    Fault(
        "derived rows are counted per context", "sqlite",
        edit_query("count_derived", r"\(SELECT root FROM contexts WHERE ref = \?\)", "?"),
        "test_derived_rows_are_counted_once_for_a_whole_fork_tree",
    ),
    Fault(
        "a head is asked for the counter of its own context", "sqlite", edit_query("head", r"r\.derived", "c.derived"),
        "test_derived_rows_are_counted_once_for_a_whole_fork_tree",
    ),
    Fault(
        "a replaced row keeps its number", "sqlite", edit_query("put_derived", r"seq = excluded\.seq,", ""),
        "test_one_watermark_misses_no_row_of_a_lineage",
    ),
    Fault(
        "a record is put over any revision", "sqlite",
        edit_query("put_record", r"WHERE records\.rev = :rev", "WHERE 1"),
        "test_a_record_is_put_only_at_the_revision_that_was_read",
    ),
    Fault(
        "an erasure keeps the records of other forks", "sqlite",
        edit_query("delete_records_of_tree", r"ref IN \(.*\)", "ref = ?"),
        "test_an_erasure_deletes_the_records_of_its_fork_tree",
    ),
    Fault(
        "the record named first goes first", "memory",
        edit_query("put_record", r"seq = excluded\.seq, ", ""),
        "test_a_context_keeps_a_bounded_number_of_records",
    ),
    Fault(
        "missing ignores what a fork inherited", "memory",
        edit_source(tables.DerivedRows, "missing",
             ("tables.segments(connection, tables.log(connection, context))",
              "tables.segments(connection, tables.log(connection, context))[-1:]")),
        "test_missing_of_a_fork_names_what_it_inherited",
    ),
    Fault(
        "missing takes a block that is nearly covered for covered", "sqlite",
        edit_source(tables.DerivedRows, "missing", ("<= block[3] - first:", "< block[3] - first:")),
        "test_missing_of_a_fork_names_what_it_inherited",
    ),
    Fault(
        "a cache gets by id what it got before", "cached",
        edit_source(CachedStorage, "_find_cached_logs",
             ("self._cached_log(context, await self.inner.head(context))",
              "self._logs.get(context) or self._cached_log(context, await self.inner.head(context))")),
        "test_what_was_got_before_an_erasure_is_got_blank_after_it",
    ),
    Fault(
        "a cache ignores the epoch", "cached",
        edit_source(CachedStorage, "_cached_log", ("cached.epoch != head.epoch", "False")),
        "test_expiring_deletes_the_content_and_keeps_the_rest",
    ),
    Fault(
        "a cache remembers the head", "cached",
        edit_source(CachedStorage, "read",
             ("head = await self.inner.head(context)",
              "head = self.__dict__.setdefault(f'head {context}', await self.inner.head(context))")),
        "test_t10_a_fork_at_any_version_reads_exactly_what_was_there",
    ),
    Fault(
        "a cache ignores new replacements", "cached",
        edit_source(CachedStorage, "_read_replacing",
             ("cached_up_to >= head.version or cached.rewrites == head.rewrites", "cached_up_to")),
        "test_t11_what_was_read_at_a_version_is_read_there_for_ever",
    ),
    Fault(
        "a stale lease is accepted", "sqlite", edit_query("finish_job", r"attempt = \?", "(attempt = ? OR 1)"),
        "test_a_stale_lease_is_fenced_off",
    ),
    Fault(
        "a lease never runs out", "sqlite", edit_query("due_jobs", r"OR \(state = 'running' AND lease <= :now\)", ""),
        "test_a_stale_lease_is_fenced_off",
    ),
    Fault(
        "restoring verifies nothing", "memory",
        edit_source(sqlite_append.Appender, "_verify_restored", ("in verify_chain(", "in (lambda *a, **k: ())(")),
        "test_restoring_a_broken_log_is_refused",
    ),
    Fault(
        "restoring forgets the keys", "sqlite",
        edit_source(sqlite_append.Appender, "restore", ("if entry.key is not None:", "if False:")),
        "test_a_restored_log_is_the_same_log",
    ),
    Fault(
        "units split a tool group", "memory",
        edit_source(active_entries, "fold_atomic_groups",
             ("units.append(EntryGroup(tuple(members), complete=made_ids <= answered_ids))",
              "units.extend(EntryGroup((member,)) for member in members)")),
        "story",
    ),
    Fault(
        "an undone summary stays in force", "memory",
        edit_source(active_entries.Replacements, "_has_effect",
             ("replacing_version = self.replaced_by(entry.version)", "replacing_version = None")),
        "story",
    ),
    Fault(
        "an edit is read at the end", "memory",
        edit_source(active_entries, "anchor_version", ("if entry.replaces and", "if False and")),
        "story",
    ),
    Fault(
        "a fork of the newest version misses it", "sqlite",
        edit_source(append_rules, "resolve_fork_version", ("head.version if fork", "head.version - 1 if fork")),
        "test_t12_a_fork_during_appends_is_a_snapshot",
    ),
    Fault(
        "a whole store is listed for one tree", "sqlite", edit_query("contexts_of_root", r"\bc?\.?root = ", "0 < "),
        "test_contexts_are_listed_newest_first_in_pages",
    ),
    Fault(
        "settings change at any revision", "memory",
        edit_source(append_rules, "apply_settings_change", ("context.settings_rev != rev", "False")),
        "test_settings_change_only_at_the_revision_that_was_read",
    ),
    Fault(
        "an erasure is a rewrite of one context only", "sqlite",
        edit_query("count_rewrite", r"root = \(.*\?\)", "ref = ?"),
        "test_an_erasure_is_seen_in_every_fork_and_raises_one_epoch",
    ),
    Fault(
        "a claim ignores leases", "sqlite", edit_query("due_jobs", "lease <= :now", "(lease <= :now OR 1)"),
        "test_a_job_is_claimed_by_one_of_many_workers",
    ),
    Fault(
        "names of jobs are ignored", "memory",
        edit_query("insert_job", r"VALUES \(\?, \?, \?, \?", "VALUES (?, ?, ?, ? || random()"),
        "test_a_job_is_enqueued_with_its_append_and_once_per_name",
    ),
    Fault(
        "what is done is settled again", "memory",
        edit_query("settle_job", r"state = \? AND state <> 'done'", "? IS NOT NULL"),
        "test_what_is_done_is_neither_settled_again_nor_retried",
    ),
    Fault(
        "a cancelled job is brought back", "sqlite",
        edit_query("settle_job", r"state = \? AND state <> 'done'", "? IS NOT NULL AND state <> 'done'"),
        "test_a_cancelled_job_is_not_brought_back_by_the_worker_that_ran_it",
    ),
    Fault(
        "a lost lease is prolonged", "sqlite", edit_query("extend_job", r"attempt = \?", "(attempt = ? OR 1)"),
        "test_a_stale_lease_is_fenced_off",
    ),
]  # fmt: skip


# ── running ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Stores:
    """Fresh stores of one kind, each SQLite file with its own name."""

    def __init__(
        self, kind: str, folder: Path, server: Databases | None = None, home: str | None = None
    ) -> None:
        self.kind = kind
        self.folder = folder
        self._server = server
        self._home = home

    def home(self) -> str:
        """Return the URL of the database of these stores; its schema is made by its first user, faults and all."""
        assert self._server is not None
        if self._home is None:
            self._home = self._server.create_database()
        return self._home

    def make(self, **options: Any) -> AbstractAsyncContextManager[StorageBackend]:
        """Return a fresh store, to be entered."""
        if self.kind == "sqlite":
            return SQLiteStorage(self.folder / f"{next(_numbers)}.db", durability="relaxed", **options)
        if self.kind == "postgres":
            tenant = another("").removeprefix("?tenant=")
            return PostgresStorage(self.home(), tenant=tenant, retry_seconds=5, **options)
        inner = MemoryStorage(**options)
        return CachedStorage(inner) if self.kind == "cached" else inner

    @contextlib.asynccontextmanager
    async def fixtures(self, wanted: set[str]) -> AsyncIterator[dict[str, Any]]:
        """Yield what a test asks for."""
        async with AsyncExitStack() as stack:
            clock = ManualClock()
            found: dict[str, Any] = {
                "clock": clock,
                "store": await stack.enter_async_context(self.make(clock=clock)),
            }
            if "other_tenant" in wanted:
                if self.kind not in ("sqlite", "postgres"):
                    pytest.skip("one tenant")
                store = found["store"]
                other = (
                    store.for_tenant(another("").removeprefix("?tenant="))  # two tests share a database
                    if self.kind == "postgres"
                    else SQLiteStorage(store.path, tenant="other")
                )
                found["other_tenant"] = await stack.enter_async_context(other)
            yield {name: found[name] for name in wanted}


class Suite(StorageBackendTests):
    """The suite, smaller where size proves nothing."""

    takes_clock = True
    crowd = (4, 40)


class SuiteOfServer(Suite):
    """The same on a store that goes by the clock of its server, with enough writers for two to make one name."""

    takes_clock = False
    crowd = (16, 40)


def suite_tests() -> Iterator[str]:
    """Yield the names of the suite's tests in the order in which they are written."""
    written = {
        name: one for owner in reversed(StorageBackendTests.__mro__) for name, one in vars(owner).items()
    }
    for name, function in written.items():
        marks = [mark.name for mark in getattr(function, "pytestmark", ())]
        if name.startswith("test_") and "soak" not in marks:
            yield name


def suite_test_passes(name: str, stores: Stores) -> bool:
    """Run one test; return False when it fails or takes for ever."""

    async def run() -> None:
        test = getattr(SuiteOfServer() if stores.kind == "postgres" else Suite(), name)
        async with stores.fixtures(set(inspect.signature(test).parameters)) as given:
            await asyncio.wait_for(test(**given), TIMEOUT)

    try:
        asyncio.run(run())
    except pytest.skip.Exception:
        return True
    except (Exception, pytest.fail.Exception):
        return False
    return True


def story_holds(stores: Stores) -> bool:
    """Tell a short story, always the same; return whether nothing contradicted it."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            run_story(
                stores.make, max_examples=EXAMPLES[stores.kind], steps=30, derandomize=True, database=None,
                phases=[Phase.generate], report_multiple_bugs=False,
            )  # fmt: skip
    except Exception:
        return False
    return True


@contextlib.contextmanager
def planted_fault(fault: Fault | None) -> Iterator[None]:
    """Plant a fault; calls that a failing test left behind say nothing."""
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if fault is not None:
            fault.plant(stack)
        yield
        gc.collect()


def check_passes(name: str, stores: Stores) -> bool:
    """Run what is named for a fault; return whether it found nothing."""
    if name == "story":
        return story_holds(stores)
    if name in mutations_postgres.CHECKS:
        return mutations_postgres.check_passes(name, stores.home())
    return suite_test_passes(name, stores)


def all_faults() -> list[Fault]:
    """Return the faults of all stores."""
    postgres = [
        Fault(name, "postgres", plant, found_by)
        for name, plant, found_by in mutations_postgres.postgres_faults(edit_source)
    ]
    return [*FAULTS, *postgres]


def survivors_of_named_tests(folder: Path, server: Databases) -> list[str]:
    """Let each fault be found by the one test that is named for it; return the names of those that survived."""
    survivors: list[str] = []
    home = server.create_database()  # one schema for all faults that are not in it
    asyncio.run(_create_schema(home))
    for fault in all_faults():
        own = fault.plant in mutations_postgres.OF_SCHEMA
        stores = Stores(fault.store, folder, server, None if own else home)
        with planted_fault(fault):
            if check_passes(fault.found_by, stores):
                survivors.append(fault.name)
    return survivors


async def _create_schema(home: str) -> None:
    """Make the schema of a database, before any fault is planted."""
    async with PostgresStorage(home):
        pass


def survivors_of_everything(
    folder: Path, server: Databases, say: Callable[[str], object] = print
) -> list[str]:
    """Run everything against each fault and print a table; return the names of those that survived."""
    for kind in ("memory", "sqlite", "cached", "postgres"):
        stores = Stores(kind, folder, server)
        with planted_fault(None):
            broken = [name for name in suite_tests() if not suite_test_passes(name, stores)]
            assert not broken, f"without a fault the {kind} store fails {broken}"
            assert story_holds(stores), f"without a fault the {kind} store contradicts the story"
            for name in mutations_postgres.CHECKS if kind == "postgres" else ():
                assert check_passes(name, stores), f"without a fault {name} finds one"
    survivors: list[str] = []
    say(f"{'fault':<50} {'store':<8} {'story':<6} {'tests':>5}  first test that finds it")
    for fault in all_faults():
        stores = Stores(fault.store, folder, server)
        with planted_fault(fault):
            found = [name for name in suite_tests() if not suite_test_passes(name, stores)]
            told = not story_holds(stores)
            named = told if fault.found_by == "story" else fault.found_by in found
            if fault.found_by in mutations_postgres.CHECKS:
                named = not check_passes(fault.found_by, stores)
        if not named:
            say(f"the next one is not found by {fault.found_by}, which is named for it")
            survivors.append(f"{fault.name} (not found by {fault.found_by})")
        first = found[0].removeprefix("test_") if found else fault.found_by if named else "-"
        say(f"{fault.name:<50} {fault.store:<8} {'found' if told else '-':<6} {len(found):>5}  {first}")
    return survivors


def main() -> int:
    """Run everything; return 1 when a fault survived."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Server() as server:
        survivors = survivors_of_everything(Path(folder), server)
    for name in survivors:
        print("SURVIVED:", name)
    count = len(all_faults())
    print(f"{count - len(survivors)} of {count} faults found in {time.monotonic() - start:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
