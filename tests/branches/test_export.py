"""Whole logs move verbatim, and whatever is wrong with one is found and named."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import apsw
import psycopg
import pytest

from acms import ACMS, ConflictError, Kind, SessionNotFoundError, State, ValidationError, open_storage
from acms.branches.export import PAGE, Problem, export, verify
from acms.branches.restoring import restore
from acms.errors import CorruptRecordError
from acms.log.encoding import dump, entry_to_json
from acms.model import ONCE, Append, Context, ContextDraft, Draft
from acms.ports import Handle, StorageBackend
from acms.storage import MemoryStorage


@pytest.fixture
async def store(url: str) -> AsyncIterator[Handle]:
    async with open_storage(url) as opened:
        yield opened


@pytest.fixture
async def other(url: str) -> AsyncIterator[Handle]:
    """A second store of the same kind."""
    async with open_storage(url_of_other_store(url)) as opened:
        yield opened


def url_of_other_store(url: str) -> str:
    """Return the URL of another empty store: another tenant, or another file."""
    return f"{url}-beside" if "tenant=" in url else f"{url}.beside"


async def write_eventful_session(store: StorageBackend, name: str = "s") -> Context:
    """Write a session with everything in it: tools, an edit, a retraction, a manual close, an erased message."""
    async with ACMS(name, store) as session:
        ids = [
            await session.ingest("user", f"message {n}", markers=["goal"], metadata={"n": n})
            for n in range(4)
        ]
        await session.ingest("assistant", "", tool_calls=[{"id": "c1", "name": "disk", "arguments": "{}"}])
        await session.ingest("tool", "61 %", tool_call_id="c1")
        many = [{"role": "user", "content": f"batch {n}", "key": f"k{n}"} for n in range(PAGE + 300)]
        receipts = await session.ingest_many(many)
        await session.replace(ids[0], "message zero")
        await session.retract(ids[1])
        await session.close_episode("manual")
        await session.ingest("user", "the end")
        context = await store.context(name)
        gone = [(await session.get(ids[2])).version, receipts[7].version]
        await store.blank(context.id, gone, to=State.ERASED, audit={"by": "test"})
    return context


async def lines_of(store: StorageBackend, name: str = "s") -> list[str]:
    return [line async for line in export(store, name)]


async def entries_of(store: StorageBackend, context: str) -> list[dict[str, Any]]:
    return [entry_to_json(entry) for entry in await store.read(context)]


async def test_round_trip_is_verbatim(store: Handle, other: Handle) -> None:
    context = await write_eventful_session(store)
    written = await lines_of(store)
    head = await store.head(context.id)
    assert len(written) == head.version + 1
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in written)
    assert await restore(other, written) == context
    assert await entries_of(other, context.id) == await entries_of(store, context.id)
    there = await other.head(context.id)
    assert (there.version, there.chain, there.messages, there.tokens) == (
        head.version, head.chain, head.messages, head.tokens,
    )  # fmt: skip
    assert await lines_of(other) == written
    assert await verify(other, context) == []
    async with ACMS("s", store) as here, ACMS("s", other) as moved:
        assert (await moved.window(200)).text() == (await here.window(200)).text()
        assert await moved.episodes() == await here.episodes()
        again = await moved.ingest_many([{"role": "user", "content": "batch 0", "key": "k0"}])
        assert again[0].repeated
        await moved.ingest("user", "goes on")
    assert await verify(other, context) == []


async def test_a_key_that_nobody_gave_is_not_exported_and_is_read_from_older_exports(
    store: Handle, other: Handle
) -> None:
    made = f"{ONCE}1"
    async with ACMS("s", store) as session:
        await session.ingest("user", "hello", idempotency_key=made)
        await session.ingest("user", "again", idempotency_key="mine")
    head, first, second = await lines_of(store)
    assert (json.loads(first).get("key"), json.loads(second)["key"]) == (None, "mine")
    older = dump({**json.loads(first), "key": made}) + "\n"
    context = await restore(other, [head, older, second])
    assert await restore(other, [head, first, second]) == context
    assert await verify(other, context) == []
    async with ACMS("s", other) as moved:
        assert (await moved.ingest_many([{"role": "user", "content": "hello", "key": made}]))[0].repeated
    assert await lines_of(other) == [head, first, second]


async def test_memory_and_others_exchange_logs(store: Handle) -> None:
    memory = MemoryStorage()
    context = await write_eventful_session(memory)
    await restore(store, await lines_of(memory))
    assert await verify(store, context) == []
    assert await verify(memory, context) == []


async def test_restore_resumes_and_repeats(store: Handle, other: Handle) -> None:
    context = await write_eventful_session(store)
    written = await lines_of(store)
    with pytest.raises(CorruptRecordError, match="ends at version 300 of"):
        await restore(other, written[:301])
    with pytest.raises(SessionNotFoundError):
        await other.context(context.id)
    head = json.loads(written[0])
    del head["end"]
    await restore(other, [dump(head) + "\n", *written[1:7]])  # as far as a process came that was killed
    assert (await other.head(context.id)).version == 6
    told: list[tuple[int, int]] = []
    for _ in range(2):
        await restore(other, written, progress=lambda done, total: told.append((done, total)))
        assert await lines_of(other) == written
    assert told[-1] == (len(written) - 1, len(written) - 1)
    assert all(done <= total for done, total in told)


async def test_async_lines(store: Handle, other: Handle) -> None:
    context = await write_eventful_session(store)
    await restore(other, export(store, "s"))
    assert (await other.head(context.id)).version == (await store.head(context.id)).version


async def test_forks_move_parents_first(store: Handle, other: Handle) -> None:
    parent = await write_eventful_session(store)
    draft = ContextDraft(
        key="fork", counter=parent.counter, created_at=parent.created_at, parent=parent.id, fork=10
    )
    fork = await store.create(draft)
    empty = await store.create(
        ContextDraft(
            key="empty", counter=parent.counter, created_at=parent.created_at, parent=parent.id, fork=0
        )
    )
    grandchild = await store.create(
        ContextDraft(
            key="grand", counter=parent.counter, created_at=parent.created_at, parent=empty.id, fork=0
        )
    )
    async with ACMS("fork", store) as session:
        await session.ingest("user", "only here")
    async with ACMS("grand", store) as session:
        await session.ingest_many([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    written = {name: await lines_of(store, name) for name in ("s", "fork", "empty", "grand")}
    assert len(written["fork"]) == 2
    with pytest.raises(ConflictError, match="parent"):
        await restore(other, written["fork"])
    for name in written:
        await restore(other, written[name])
        assert await lines_of(other, name) == written[name]
    for context in (parent, fork, empty, grandchild):
        assert await verify(store, context) == []
        assert await verify(other, context) == []


async def test_what_another_tool_has_written_anew_is_the_same_export(store: Handle, other: Handle) -> None:
    async with ACMS("s", store) as session:
        await session.ingest("user", "größer", markers=["goal"], metadata={"ü": ["é"]})
        await session.ingest("user", "and on")
    written = await lines_of(store)
    anew = [line for one in written for line in (json.dumps(json.loads(one), indent=None) + "\n", " \n")]
    assert "\\u00f6" in anew[2]

    async def arriving() -> AsyncIterator[str]:
        for line in anew:
            yield line

    for lines in (anew, arriving()):
        await restore(other, lines)
        assert await lines_of(other) == written


async def test_an_export_that_does_not_say_where_it_ends_is_read_as_far_as_it_goes(
    store: Handle, other: Handle
) -> None:
    await write_eventful_session(store)
    written = await lines_of(store)
    head = json.loads(written[0])
    del head["end"]
    older = [dump(head) + "\n", *written[1:]]
    await restore(other, older[:5])
    assert len(await lines_of(other)) == 5
    await restore(other, older)
    assert await lines_of(other) == written


async def test_a_fork_that_begins_with_what_is_no_message_moves(store: Handle, other: Handle) -> None:
    async with ACMS("s", store) as session:
        id = await session.ingest("user", "a")
        async with await session.fork(session_id="fork") as fork:
            await fork.retract(id)
            await fork.ingest("user", "b")
            for name in ("s", "fork"):
                await restore(other, await lines_of(store, name))
                assert await lines_of(other, name) == await lines_of(store, name)
            assert await verify(other, await other.context("fork")) == []


async def test_export_of_an_empty_and_an_unknown_session(store: Handle, other: Handle) -> None:
    context = await store.create(
        ContextDraft(key="empty", counter="c", created_at=(await write_eventful_session(store)).created_at)
    )
    written = await lines_of(store, "empty")
    assert len(written) == 1
    assert await restore(other, written) == context
    assert await verify(other, context) == []
    with pytest.raises(SessionNotFoundError):
        await lines_of(store, "nobody")


async def test_broken_exports_are_refused(store: Handle, other: Handle) -> None:
    context = await write_eventful_session(store)
    written = await lines_of(store)

    def changed(number: int, **fields: object) -> list[str]:
        entry = json.loads(written[number]) | fields
        return [*written[:number], json.dumps(entry) + "\n", *written[number + 1 :]]

    broken: list[tuple[list[str], str]] = [
        ([], "empty"),
        (["nothing\n"], "line 1 .* not JSON"),
        (["[]\n"], "not a JSON object"),
        (['{"acms": 99}\n'], "format 99"),
        ([*written[:5], "{\n"], "line 6"),
        ([*written[:5], "{}\n"], "not an exported entry"),
        (changed(4, content="forged"), "digest"),
        (changed(3, content="forged"), "is erased and still has content"),
        (changed(3, position=9), "version 3: has position 9"),
        (changed(3, total=1), "running total"),
        ([*written[:3], *written[4:]], "version 4"),
        (written[:-1], "ends at version"),
        (changed(0, end="soon"), "not an exported context"),
        (changed(808, position=1), "version 808: has position 1, but it is no message"),
        (changed(0, root="c_other"), "export:1: root: is not the id of a session"),
        (changed(0, root="c_0000000000000000"), "export:1: root: .* is its own root"),
        (
            [written[0], written[1].replace("message 0", "a \\u0000"), *written[2:]],
            "line 2 .* a NUL character",
        ),
        ([written[0], written[1].replace("message 0", "a \\ud83d"), *written[2:]], "half a surrogate pair"),
        ([written[0], written[1].replace('"goal"', '"\\u0000"'), *written[2:]], "line 2 .* a NUL character"),
    ]
    for lines, what in broken:
        with pytest.raises((CorruptRecordError, ValidationError), match=what):
            await restore(other, lines)
    await restore(other, written)
    assert await verify(other, context) == []


async def test_another_log_under_the_same_name(store: Handle, other: Handle) -> None:
    await write_eventful_session(store)
    await write_eventful_session(other)
    with pytest.raises(ConflictError):
        await restore(other, await lines_of(store))


# ── verify ──────────────────────────────────────────────────────────────────────────────────────────────────────────


ROW = "row = (SELECT min(ref) << 32 FROM contexts) | ?"
PLACE = (
    "context_id = (SELECT context_id FROM acms.contexts WHERE @mine ORDER BY number LIMIT 1) AND version = %s"
)


def edit_stored_row(url: str, statement: str, version: int | None = None) -> None:
    """Change a stored row behind the store's back; @row is the row of a version."""
    values = () if version is None else (version,)
    if url.startswith("sqlite"):
        with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as connection:
            connection.execute(statement.replace("@row", ROW), values).fetchall()
        return
    home, _, tenant = url.partition("?tenant=")
    statement = statement.replace("zeroblob(32)", "decode(repeat('00', 32), 'hex')")
    statement = statement.replace("x'6dff73' AS TEXT", "'m' || chr(255) || 's' AS TEXT")
    statement = statement.replace("last_message = 'm_x'", "last_nonce = 'x'")
    statement = re.sub("(UPDATE|FROM) (entries|contexts)", r"\1 acms.\2", statement)
    statement = statement.replace("@row", f"@mine AND {PLACE}")
    statement += "" if "@mine" in statement else " WHERE @mine"
    # As the superuser, whom no policy binds; it would wait for ever for a transaction of the loop that it holds up.
    with psycopg.connect(home, autocommit=True, options="-c lock_timeout=20s") as connection:
        changed = connection.execute(statement.replace("@mine", f"tenant_id = '{tenant}'"), values)  # type: ignore[arg-type]
        assert changed.rowcount == 1


async def problems_of_log(store: Handle, context: Context) -> list[tuple[int, str]]:
    found = await verify(store, context)
    assert all(isinstance(problem, Problem) and problem.context == context.id for problem in found)
    return [(problem.version, problem.what) for problem in found]


@pytest.mark.parametrize(
    ("statement", "version", "what"),
    [
        ("UPDATE entries SET content = 'message 3!' WHERE @row", 4, "digest"),
        ("UPDATE entries SET digest = zeroblob(32) WHERE @row", 4, "digest"),
        ("UPDATE entries SET chain = zeroblob(32) WHERE @row", 4, "chain"),
        ("UPDATE entries SET salt = NULL WHERE @row", 4, "salt"),
        ("UPDATE entries SET created_at = created_at + 1 WHERE @row", 600, "digest"),
        ("UPDATE entries SET position = 99 WHERE @row", 4, "position 99"),
        ("UPDATE entries SET total = 0 WHERE @row", 4, "running total"),
        ("DELETE FROM entries WHERE @row", 4, "missing"),
        ("DELETE FROM entries WHERE @row", 810, "missing"),
        ("UPDATE entries SET metadata = '{' WHERE @row", 4, "cannot be read"),
        ('UPDATE entries SET parts = \'[{"type": "virus"}]\' WHERE @row', 4, "cannot be read"),
        ("UPDATE entries SET content = 'forged' WHERE @row", 3, "is erased and still has content"),
        ("UPDATE contexts SET messages = messages + 1", 810, "number of messages"),
        ("UPDATE contexts SET tokens = 0", 810, "number of tokens"),
        ("UPDATE contexts SET chain = zeroblob(32)", 810, "chain hash"),
        ("UPDATE contexts SET last_message = 'm_x'", 810, "last message"),
        ("UPDATE contexts SET rewrites = 0", 810, "rewrites"),
    ],
)
async def test_verify_names_what_is_wrong(
    store: Handle, url: str, statement: str, version: int, what: str
) -> None:
    context = await write_eventful_session(store)
    assert (await store.head(context.id)).version == 810
    assert await problems_of_log(store, context) == []
    edit_stored_row(url, statement, version if "@row" in statement else None)
    found = await problems_of_log(store, context)
    assert found
    assert found[0][0] == version
    assert what in found[0][1]


async def test_one_unreadable_entry_does_not_hide_the_rest(store: Handle, url: str) -> None:
    context = await write_eventful_session(store)
    edit_stored_row(url, "UPDATE entries SET metadata = '{' WHERE @row", 4)
    edit_stored_row(url, "UPDATE entries SET content = 'forged' WHERE @row", 100)
    edit_stored_row(url, "UPDATE entries SET content = 'forged' WHERE @row", 809)
    assert [version for version, _ in await problems_of_log(store, context)] == [4, 100, 809]


async def test_the_export_of_a_log_that_has_lost_its_end_is_found_out(
    store: Handle, other: Handle, url: str
) -> None:
    async with ACMS("s", store) as session:
        for text in "abc":
            await session.ingest("user", text)
    edit_stored_row(url, "DELETE FROM entries WHERE @row", 3)
    written = await lines_of(store)
    assert len(written) == 3
    with pytest.raises(CorruptRecordError, match="ends at version 2 of 3"):
        await restore(other, written)


async def test_t45_one_flipped_byte_of_a_text_is_named(store: Handle, url: str) -> None:
    context = await write_eventful_session(store)
    edit_stored_row(url, "UPDATE entries SET content = CAST(x'6dff73' AS TEXT) WHERE @row", 4)
    assert [version for version, _ in await problems_of_log(store, context)] == [4]


async def test_what_a_fork_inherited_is_verified(store: Handle, url: str) -> None:
    parent = await write_eventful_session(store)
    fork = await store.create(
        ContextDraft(
            key="fork", counter=parent.counter, created_at=parent.created_at, parent=parent.id, fork=10
        )
    )
    (result,) = await store.append(
        [Append(context=fork.id, drafts=(Draft(kind=Kind.FACT, content="x", created_at=parent.created_at),))]
    )
    assert not isinstance(result, Exception)
    told: list[tuple[int, int]] = []
    assert await verify(store, fork, progress=lambda done, total: told.append((done, total))) == []
    assert told == [(11, 11)]
    edit_stored_row(url, "UPDATE entries SET content = 'forged' WHERE @row", 4)
    assert [version for version, _ in await problems_of_log(store, fork)] == [4]


async def test_url_of_the_restored_store_opens(url: str, store: Handle) -> None:
    await write_eventful_session(store)
    copy = open_storage(url_of_other_store(url))
    async with copy:
        await restore(copy, await lines_of(store))
        assert (await copy.context("s")).key == "s"
