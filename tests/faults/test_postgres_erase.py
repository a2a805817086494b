"""F3: erased content is in no byte of a server's files once they are rewritten."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from acms import ACMS, ACMSConfig, ConfigurationError, EpisodeBoundaryConfig, StorageBusyError
from acms.cli.commands import app
from acms.erasure.erase import erase_context, erase_subject
from acms.providers import OfflineReflector
from acms.storage import PostgresStorage
from acms.testing import HashEmbedder, sound
from tests.servers.postgres import Server
from tests.servers.stores import run_inside

CANARY = "Zyxquarble"
"""In every text of the person who is erased, in their keys, metadata, name and the arguments of their tools."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server whose files a test may read."""
    with Server(settings={"autovacuum": "off"}, initdb="--wal-segsize=1") as server:
        yield server


@pytest.fixture
async def url(server: Server) -> AsyncIterator[str]:
    url = server.create_database()
    yield url
    server.drop_database(url)


def bytes_left(server: Server) -> Counter[str]:
    """How often the canary stands in the data folder of a server, by file, in either case, as UTF-8 or UTF-16."""
    found: Counter[str] = Counter()
    data = Path(server.folder) / "data"
    wanted = (CANARY.lower().encode(), CANARY.lower().encode("utf-16le"))
    for file in filter(Path.is_file, data.rglob("*")):
        content = file.read_bytes().lower()
        if count := sum(content.count(one) for one in wanted):
            found[str(file.relative_to(data))] += count
    return found


async def a_life(storage: PostgresStorage) -> None:
    """A user talks, is reflected on, summarised, forked, copied, edited; a bystander talks in the same tables."""
    config = ACMSConfig(episodes=EpisodeBoundaryConfig(max_turns=4))
    parts = {"embedder": HashEmbedder(32), "reflector": OfflineReflector(), "config": config}
    async with ACMS("person", storage, namespace="ana", **parts) as session:
        for n in range(8):
            said = f"We use {CANARY}{n} as the cache. Decision: {CANARY}{n} for orders. " + "filler " * 20 * n
            await session.ingest(
                "user",
                said,
                actor_id=f"Ana {CANARY}",
                metadata={"from": CANARY},
                idempotency_key=f"{CANARY}-{n}",
            )
            calls = [{"id": f"call{n}", "name": "save", "arguments": {"x": CANARY}}] if n % 4 == 0 else None
            await session.ingest("assistant", f"Noted {CANARY}", tool_calls=calls)
            if calls:
                id = await session.ingest("tool", f"ok {CANARY}", tool_call_id=f"call{n}")
        await session.replace(id, f"edited {CANARY}")
        await session.close_episode("manual")
        await session.reflect()
        await session.wait(await session.compact(preserve_recent_count=4, summary_tokens=60), timeout=60)
        async with await session.fork(None, "fork") as fork:
            await fork.ingest("user", f"in the fork {CANARY}")
        async with await session.copy(None, "copy"):
            pass
    async with ACMS("bystander", storage, namespace="bob") as other:
        await other.ingest_many([{"role": "user", "content": f"harmless {n}"} for n in range(40)])


async def test_f3_after_a_rewrite_no_byte_of_the_data_folder_has_what_was_erased(
    server: Server, url: str
) -> None:
    async with PostgresStorage(url) as storage:
        await a_life(storage)
        run_inside(url, "ANALYZE")  # plans are made from values that were sampled
        erased = await erase_subject(storage, namespace="ana", verify=True)
        assert (erased.verified, erased.residue, erased.proof, erased.rewritten) == (True, (), "rows", ())
        assert "rewrite" in erased.unreached[0]
        for table in ("entries", "derived", "jobs"):
            run_inside(url, f"VACUUM acms.{table}")
        run_inside(url, "CHECKPOINT")
        assert any(file.startswith("base/") for file in bytes_left(server)), (
            "a vacuum frees places, not bytes"
        )

        again = await erase_subject(storage, namespace="ana", verify=True, rewrite=True)
        assert (again.ids, again.residue, again.proof) == (erased.ids, (), "rows"), (
            "nobody knows the texts any more"
        )
        assert bytes_left(server) == Counter()
        assert any(name.startswith("acms.entries_") for name in again.rewritten)
        assert any("standbys" in place for place in again.unreached)
        for context in again.contexts:
            await sound(storage, context)
        bystander = await storage.context("bystander", namespace="bob")
        assert len(await storage.read(bystander.id)) == 40


async def test_f3_verified_and_written_anew_at_once_every_byte_was_searched(server: Server, url: str) -> None:
    said, key = f"the one who knows {CANARY}", "ana/notes"
    async with PostgresStorage(url) as storage, storage.kv() as kv:
        async with ACMS("person", storage) as session:
            await session.ingest("user", said, actor_id="Ana of the third floor")
        async with ACMS("bystander", storage) as other:
            await other.ingest(
                "user", "good morning", actor_id="Ana of the third floor"
            )  # not residue: she still talks
        await kv.set(key, {"of": [said]})
        with_pin = await erase_context(storage, "person", verify=True, rewrite=True)
        (pinned,) = with_pin.residue
        assert key in pinned
        assert CANARY not in pinned
        assert with_pin.proof == "bytes"
        await kv.delete(key)
        async with ACMS("person", storage) as session:
            await session.ingest("user", said)
        erased = await erase_context(storage, "person", verify=True, rewrite=True)
        assert (erased.residue, erased.proof, len(erased.ids)) == ((), "bytes", 2)
        assert bytes_left(server) == Counter()


async def test_f3_what_stops_a_rewrite_is_named_and_leaves_nothing_half_done(
    server: Server, url: str
) -> None:
    """Who still sees old versions, who holds a table longer than a statement may take, and who owns none of them."""
    name = url.rpartition("/")[2]
    async with PostgresStorage(url, retry_seconds=0.2) as storage:
        async with ACMS("person", storage) as session:
            await session.ingest("user", f"told once {CANARY}")
        table = run_inside(url, "SELECT tableoid::regclass::text FROM acms.entries")[0][0]
        with psycopg.connect(url) as reader:
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT 1")
            with pytest.raises(StorageBusyError, match=f"the session {reader.info.backend_pid} "):
                await erase_context(storage, "person", rewrite=True)
        assert [entry.content for entry in await sound(storage, (await storage.context("person")).id)] == [""]
        server.execute(f"ALTER DATABASE {name} SET statement_timeout = '200ms'")
        with psycopg.connect(url) as reader:
            reader.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE")
            reader.execute("COMMIT; BEGIN; SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            reader.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE")  # holds no snapshot, only the table
            with pytest.raises(StorageBusyError, match=table) as told:
                await erase_context(storage, "person", rewrite=True)
        assert "repeat" in told.value.options[0]
        assert bytes_left(server)
        server.execute(f"ALTER DATABASE {name} RESET statement_timeout")
        assert table in (await erase_context(storage, "person", rewrite=True)).rewritten
        assert bytes_left(server) == Counter()


async def create_roles(server: Server) -> None:
    """Create the roles that all databases of a server share: the first store does."""
    url = server.create_database()
    try:
        async with PostgresStorage(url) as storage, ACMS("first", storage) as session:
            await session.ingest("user", "Hello.")
    finally:
        server.drop_database(url)


async def test_f3_only_the_owner_writes_tables_anew_and_hears_what_is_left_to_a_superuser(
    server: Server,
) -> None:
    await create_roles(server)
    admin = server.create_database()
    for user in ("keeper", "service"):
        server.execute(f"CREATE ROLE {user} LOGIN IN ROLE acms_app")
    run_inside(admin, "CREATE SCHEMA acms AUTHORIZATION keeper")
    run_inside(admin, "GRANT acms_search TO keeper WITH INHERIT FALSE, SET TRUE")
    owned, served = (admin.replace("postgres@", f"{user}@") for user in ("keeper", "service"))
    try:
        async with PostgresStorage(owned) as storage, PostgresStorage(served) as other:
            async with ACMS("person", other) as session:
                await session.ingest("user", f"told the service {CANARY}")
            with pytest.raises(ConfigurationError, match="only keeper"):
                await erase_context(other, "person", rewrite=True)
            erased = await erase_context(storage, "person", verify=True, rewrite=True)
            assert (erased.residue, erased.proof) == ((), "rows")
            assert "superuser" in erased.unreached[0]
            run_inside(admin, "CHECKPOINT")
            assert not any(file.startswith("base/") for file in bytes_left(server)), "the tables are clean"
    finally:
        server.drop_database(admin)
        for user in ("keeper", "service"):
            server.execute(f"DROP ROLE {user}")


def test_f3_the_command_says_what_it_proved(server: Server) -> None:
    url = server.create_database()
    for how, words in (
        (["--verify"], "no file was searched"),
        (["--verify", "--rewrite"], "no byte of the files"),
    ):
        for arguments in (["add", "person", "user", CANARY], ["erase", "person", "--all", "--yes", *how]):
            done = CliRunner().invoke(app, [*arguments, "--db", url])
            assert done.exit_code == 0, done.output
        assert words in done.stdout
        assert ("acms.entries_" in done.stdout) == ("--rewrite" in how)
    assert bytes_left(server) == Counter()
    server.drop_database(url)
