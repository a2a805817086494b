"""Search on PostgreSQL: the indexes of large namespaces give what comparing everything would, and nothing of others."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import numpy as np
import psycopg
import pytest

from acms import ConfigurationError, State, ValidationError, open_storage
from acms.model import Context, ContextQuery, Derived, Search
from acms.ports import StorageBackend
from acms.storage import MemoryStorage, PostgresStorage
from acms.storage.postgres import migrate, search
from acms.storage.postgres.pool import Pool
from acms.testing.logs import append_drafts, create_log, draft_fact, draft_message, pack_vector
from tests.servers.postgres import Databases
from tests.storage.suite.storage import HOSTILE

Superuser: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"
SPACE = "model/8/f16/said1"


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStorage]:
    async with PostgresStorage(postgres_url) as store:
        yield store


@pytest.fixture
async def tenant(tenant_url: str) -> AsyncIterator[StorageBackend]:
    """A store in a database that others share: its words are in one index with theirs."""
    async with open_storage(tenant_url) as store:
        yield store


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every namespace counts as a large one."""
    monkeypatch.setattr(search, "SMALL", 0)
    monkeypatch.setattr(search, "EXACT", 0)


def pack_half_floats(*numbers: float) -> bytes:
    return np.array(numbers, "<f2").tobytes()


def random_directions(count: int, dimension: int, seed: int = 1) -> list[list[float]]:
    return np.random.default_rng(seed).normal(size=(count, dimension)).tolist()


async def search_ids(store: StorageBackend, query: Search) -> list[str]:
    return [hit.id for hit in await store.search(query)]


# ── words ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def random_texts(count: int) -> list[str]:
    """Texts of common and rare words."""
    chance = random.Random(3)
    common = ["decision", "queue", "database", "invoice", "because", "service", "orders", "deploy"]
    rare = [
        f"{a}{b}" for a in ("zeta", "kilo", "amber", "novel") for b in ("ridge", "field", "works", "stone")
    ]
    return [
        " ".join([*chance.choices(common, k=6), chance.choice(rare)]) + f" number{number % 17}"
        for number in range(count)
    ]


@pytest.mark.usefixtures("large")
async def test_the_index_of_words_finds_what_comparing_all_finds(tenant: StorageBackend) -> None:
    reference = MemoryStorage()
    same: dict[str, str] = {}
    for one in random_texts(240), random_texts(60):
        mine, theirs = await create_log(tenant), await create_log(reference)
        for start in range(0, len(one), 60):
            drafts = [draft_fact(text) for text in one[start : start + 60]]
            for a, b in zip(
                (await append_drafts(tenant, mine, *drafts)).ids,
                (await append_drafts(reference, theirs, *drafts)).ids,
                strict=True,
            ):
                same[b] = a
    for words in (
        ["zetaridge"],
        ["invoice", "kilofield"],
        ["deploying", "decisions"],
        ["number3", "queue"],
        ["the"],
    ):
        query = Search(namespace="default", terms=tuple(words), limit=20)
        found, expected = await tenant.search(query), await reference.search(query)
        every = {same[hit.id]: hit.score for hit in await reference.search(replace(query, limit=1000))}
        assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected], abs=5e-3)
        assert all(every[hit.id] == pytest.approx(hit.score, abs=5e-3) for hit in found)


WRITTEN = [
    ("see src/acms/recall/index.py for it", "index.py"),
    ("see src/acms/recall/index.py for it", "src/acms/recall/index.py"),
    ("call find_searchable_rows now", "find_searchable_rows"),
    ("it moved to https://example.org/a/b?page=7", "example.org"),
    ("write to ana@example.org", "ana@example.org"),
    ("in <b>bold</b> and <never closed", "closed"),
    ("the price is 3.14159", "3.14159"),
    ("order AB-1234-XY shipped", "1234"),
    ("version v1.20.3 broke it", "v1.20.3"),
    ("it fails below zero", "below"),
    ("we decided on RabbitMQ", "decides"),
    ("Zażółć gęślą jaźń", "gęślą"),
    ("数据库 选择", "数据库"),
    ("-1e10 degrees", "1e10"),
    ("[x] `code` {y} |z| ~w ^v", "code"),
]


@pytest.mark.usefixtures("large")
async def test_words_that_a_parser_would_join_or_drop_are_found(tenant: StorageBackend) -> None:
    for number, (written, asked) in enumerate(WRITTEN):
        context = await create_log(tenant, namespace=f"n{number}")
        receipt = await append_drafts(tenant, context, draft_fact("nothing of the kind"), draft_fact(written))
        assert await search_ids(tenant, Search(namespace=f"n{number}", terms=(asked,))) == [receipt.ids[1]], (
            asked
        )


@pytest.mark.usefixtures("large")
async def test_t35_no_text_is_read_as_a_query_language(tenant: StorageBackend) -> None:
    """Hostile words, namespaces, spaces and vectors find nothing of others and break nothing."""
    context = await create_log(tenant)
    await append_drafts(tenant, context, draft_fact("secret & plain | words ! here"))
    for text in [*HOSTILE, "!", "a:*", "a & b", "(", "'a' <-> 'b'", "a | !b"]:
        for query in (
            Search(namespace="default", terms=(text, "nowhere")),
            Search(namespace=text, terms=("secret",)),
            Search(namespace="default", space=text, vector=(1.0,)),
        ):
            try:
                assert await tenant.search(query) == [], text[:40]
            except ValidationError:
                continue
    for vector in ((), (0.0,), (float("nan"),), (float("inf"), 1.0), (1e300,), (1.0,) * 20_000):
        assert await tenant.search(Search(namespace="default", space=SPACE, vector=vector)) == []
    assert len(await tenant.search(Search(namespace="default", terms=("!secret", "&", "|")))) == 1
    await append_drafts(
        tenant, context, draft_fact("x" * 1_000_000), draft_fact("𠀀 " * 400_000), draft_fact("a1 " * 300_000)
    )


@pytest.mark.usefixtures("large")
async def test_a_query_of_stop_words_only_is_answered(tenant: StorageBackend) -> None:
    context = await create_log(tenant)
    receipt = await append_drafts(tenant, context, draft_fact("to be or not to be"), draft_fact("nothing"))
    assert await search_ids(tenant, Search(namespace="default", terms=("to", "be"))) == [receipt.ids[0]]


# ── vectors ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def fill_log(store: StorageBackend, vectors: Sequence[Sequence[float]], space: str) -> Context:
    context = await create_log(store)
    kind = "<f2" if "/f16/" in space else "<f4"
    for start in range(0, len(vectors), 200):
        some = vectors[start : start + 200]
        await append_drafts(store, context, *(draft_fact(f"fact {start + n}") for n in range(len(some))))
        rows = [
            Derived(version=start + n, space=space, data=np.array(one, kind).tobytes())
            for n, one in enumerate(some, 1)
        ]
        assert await store.put_derived(context.id, rows) == len(rows)
    return context


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    ("dimension", "kind"),
    [
        (8, "f16"),
        (384, "f32"),
        pytest.param(8, "f32", marks=pytest.mark.slow),
        pytest.param(256, "f16", marks=pytest.mark.slow),
    ],
)
async def test_the_nearest_vectors_and_their_scores_are_those_of_comparing_all(
    store: PostgresStorage, dimension: int, kind: str
) -> None:
    reference = MemoryStorage()
    space = f"model/{dimension}/{kind}/said1"
    vectors = random_directions(600, dimension)
    for one in (store, reference):
        await fill_log(one, vectors, space)
    for vector in random_directions(5, dimension, seed=2):
        query = Search(namespace="default", space=space, vector=tuple(vector), limit=20)
        found, expected = await store.search(query), await reference.search(query)
        assert [hit.score for hit in found] == [hit.score for hit in expected]
        assert [hit.id.split("_")[2] for hit in found] == [hit.id.split("_")[2] for hit in expected]


@pytest.fixture
def superuser(postgres_url: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


async def test_the_index_of_vectors_is_used(store: PostgresStorage, superuser: Superuser) -> None:
    await fill_log(store, random_directions(300, 256), "model/256/f16/said1")
    scans = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'vectors_256'"
    superuser.execute("SELECT pg_stat_force_next_flush()")
    ((before,),) = superuser.execute(scans).fetchall()
    for exact, used in ((20_000, 0), (0, 1)):
        rows = superuser.execute(
            "SELECT * FROM acms.nearest('default', 'default', 'model/256/f16/said1', %s::real[], %s, 10)",
            [random_directions(1, 256)[0], exact],
        ).fetchall()
        assert len(rows) == 10
        superuser.execute("SELECT pg_stat_force_next_flush()")
        assert superuser.execute(scans).fetchall() == [(before + used,)]


async def test_only_vectors_of_what_is_searched_are_indexed(
    store: PostgresStorage, superuser: Superuser
) -> None:
    context = await create_log(store)
    await append_drafts(
        store,
        context,
        draft_fact("fact"),
        draft_message("plain"),
        draft_message("marked", markers=("decision",)),
    )
    good = pack_half_floats(1, 0, 0, 0, 0, 0, 0, 0)
    rows = [Derived(version=version, space=SPACE, data=good) for version in (1, 2, 3)]
    rows += [
        Derived(version=1, space=SPACE, part=1, data=pack_half_floats(*(0,) * 8)),
        Derived(version=1, space=SPACE, part=2, data=pack_half_floats(float("nan"), *(0,) * 7)),
        Derived(version=1, space=SPACE, part=3, data=pack_half_floats(1, 2)),
        Derived(version=1, space=SPACE, part=4, data=b""),
        Derived(version=1, space="cards1", data=good),
        Derived(version=1, space="model/2/f32/said1", data=pack_vector(3e38, -1e-40)),
        Derived(version=1, space="model/99999/f16/said1", data=good),
    ]
    assert await store.put_derived(context.id, rows) == len(rows)
    held = "SELECT version, space, part, embedding::text FROM acms.vectors ORDER BY 1, 2, 3"
    assert superuser.execute(held).fetchall() == [
        (1, "model/2/f32/said1", 0, "[1,0]"),
        (1, SPACE, 0, "[1,0,0,0,0,0,0,0]"),
        (3, SPACE, 0, "[1,0,0,0,0,0,0,0]"),
    ]
    await store.put_derived(
        context.id, [Derived(version=1, space=SPACE, data=pack_half_floats(0, 1, *(0,) * 6))]
    )
    await store.put_derived(context.id, [Derived(version=3, space=SPACE, data=b"")])
    assert superuser.execute(held).fetchall()[1:] == [(1, SPACE, 0, "[0,1,0,0,0,0,0,0]")]


@pytest.mark.usefixtures("large")
async def test_vectors_of_half_width_are_compared_by_every_store(
    store: PostgresStorage, tmp_path: Path
) -> None:
    for one in (store, MemoryStorage(), open_storage(f"sqlite:///{tmp_path}/v.db")):
        async with one:
            context = await create_log(one)
            receipt = await append_drafts(one, context, draft_fact("north"), draft_fact("east"))
            rows = [
                Derived(version=1, space="m/2/f16/said1", data=pack_half_floats(0, 1)),
                Derived(version=2, space="m/2/f16/said1", data=pack_half_floats(1, 0)),
            ]
            await one.put_derived(context.id, rows)
            hits = await one.search(Search(namespace="default", space="m/2/f16/said1", vector=(3.0, 4.0)))
            assert [(hit.id, hit.score) for hit in hits] == [
                (receipt.ids[0], pytest.approx(0.8)),
                (receipt.ids[1], pytest.approx(0.6)),
            ]


@pytest.mark.usefixtures("large")
async def test_spaces_that_name_no_dimension_are_compared_whole(tenant: StorageBackend) -> None:
    context = await create_log(tenant)
    receipt = await append_drafts(
        tenant, context, draft_fact("north"), draft_fact("east"), draft_fact("nowhere")
    )
    rows = [
        Derived(version=n, space="s", data=pack_vector(*at)) for n, at in enumerate([(0, 1), (1, 0.1)], 1)
    ]
    await tenant.put_derived(context.id, rows)
    query = Search(namespace="default", space="s", vector=(1.0, 0.2), terms=("nowhere",))
    assert sorted(await search_ids(tenant, query)) == sorted(receipt.ids)


# ── what is gone, and what belongs to others ────────────────────────────────────────────────────────────────────────


def relation_bytes(superuser: Superuser, pattern: str) -> bytes:
    """Return the bytes of all relations of a name, after what is dead was removed from them."""
    superuser.execute("VACUUM (INDEX_CLEANUP ON, FREEZE) acms.entries")
    superuser.execute("VACUUM (INDEX_CLEANUP ON, FREEZE) acms.derived")
    superuser.execute("VACUUM (INDEX_CLEANUP ON, FREEZE) acms.vectors")
    superuser.execute("CHECKPOINT")
    names = superuser.execute(
        "SELECT pg_read_binary_file(pg_relation_filepath(c.oid)) FROM pg_class c"
        " WHERE c.relnamespace = 'acms'::regnamespace AND c.relname ~ %s AND c.relkind IN ('r', 'i')",
        [pattern],
    ).fetchall()
    assert names
    return b"".join(data for (data,) in names)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("to", [State.ERASED, State.EXPIRED])
async def test_t38_erased_content_is_in_neither_index(
    store: PostgresStorage, superuser: Superuser, to: State
) -> None:
    context = await create_log(store)
    receipt = await append_drafts(
        store, context, draft_fact("xylophonequartz is secret"), draft_fact("plain words")
    )
    vectors = random_directions(2, 256)
    space = "model/256/f16/said1"
    rows = [Derived(version=n, space=space, data=pack_half_floats(*one)) for n, one in enumerate(vectors, 1)]
    await store.put_derived(context.id, rows)
    asked = (
        Search(namespace="default", terms=("xylophonequartz",)),
        Search(namespace="default", space=space, vector=tuple(vectors[0])),
    )
    trace = pack_half_floats(*vectors[0])[:64]
    assert trace in relation_bytes(superuser, "^vectors")
    assert [len(await store.search(query)) > 0 for query in asked] == [True, True]
    await store.blank(context.id, [1], to=to, audit={})
    assert await store.search(asked[0]) == []
    assert receipt.ids[0] not in await search_ids(store, asked[1])
    assert superuser.execute("SELECT version FROM acms.vectors").fetchall() == [(2,)]
    assert superuser.execute("SELECT version FROM acms.entries WHERE found_in IS NOT NULL").fetchall() == [
        (2,)
    ]
    assert trace not in relation_bytes(superuser, "^vectors")
    assert b"xylophon" not in relation_bytes(superuser, "^entries")


async def test_other_tenants_stay_invisible_without_the_predicate(
    store: PostgresStorage, superuser: Superuser
) -> None:
    """Row-level security is the net: a query that forgets its tenant sees no vector, the search function no word."""
    async with store.for_tenant("other") as other:
        for one in (store, other):
            context = await create_log(one)
            await append_drafts(one, context, draft_fact("secret"))
            await one.put_derived(
                context.id, [Derived(version=1, space=SPACE, data=pack_half_floats(*range(1, 9)))]
            )
    assert superuser.execute("SELECT count(*) FROM acms.vectors").fetchall() == [(2,)]
    for tenant, seen in (("other", 1), ("default", 1), ("nobody", 0), ("", 0)):
        with superuser.transaction():
            superuser.execute(
                "SELECT set_config('role', 'acms_app', true), set_config('acms.tenant', %s, true)", [tenant]
            )
            assert superuser.execute("SELECT count(*) FROM acms.vectors").fetchall() == [(seen,)]
            near = "SELECT count(*) FROM acms.nearest(%s, 'default', %s, %s::real[], %s, 9)"
            for exact in (0, 9):
                for asked in ("default", "other"):
                    (found,) = superuser.execute(near, [asked, SPACE, list(range(1, 9)), exact]).fetchall()
                    assert found == (int(asked == tenant),)
            words = "SELECT count(*) FROM acms.places(%s, 'default', '{secret}', 9, 9)"
            if seen:
                assert superuser.execute(words, [tenant]).fetchall() == [(1,)]
            theirs = "default" if tenant == "other" else "other"
            with pytest.raises(psycopg.errors.InsufficientPrivilege), superuser.transaction():
                superuser.execute(words, [theirs])
            with pytest.raises(psycopg.errors.InsufficientPrivilege), superuser.transaction():
                superuser.execute("SET LOCAL ROLE acms_search").execute("DELETE FROM acms.entries")


async def test_the_function_that_sees_all_tenants_is_the_only_one_and_is_closed(
    store: PostgresStorage, superuser: Superuser
) -> None:
    await store.contexts(ContextQuery())
    rows = superuser.execute(
        "SELECT p.proname, p.proowner::regrole::text, p.proconfig,"
        " has_function_privilege('acms_app', p.oid, 'EXECUTE'),"
        " coalesce(array_to_string(p.proacl, ' '), '=X') ~ '(^| )=X'"
        " FROM pg_proc p WHERE p.pronamespace = 'acms'::regnamespace AND p.prosecdef"
    ).fetchall()
    ((name, owner, settings, open_to_app, open_to_all),) = rows
    assert (name, owner, open_to_app, open_to_all) == ("places", "acms_search", True, False)
    assert "search_path=pg_catalog, pg_temp" in settings
    rights = superuser.execute(
        "SELECT table_name, privilege_type FROM information_schema.role_table_grants WHERE grantee = 'acms_search'"
        " ORDER BY 1, 2"
    ).fetchall()
    assert {right for _, right in rights} == {"SELECT"}
    assert {"contexts", "entries"} >= {name for name, _ in rights}
    ((login, bypass, super_, create),) = superuser.execute(
        "SELECT rolcanlogin, rolbypassrls, rolsuper, has_schema_privilege('acms_search', 'acms', 'CREATE')"
        " FROM pg_roles WHERE rolname = 'acms_search'"
    ).fetchall()
    assert (login, bypass, super_, create) == (False, False, False, False)


# ── pgvector: absent, old, added later ──────────────────────────────────────────────────────────────────────────────


async def apply_migrations_to(url: str, *, vectors: bool = True) -> list[int]:
    pool = Pool(url, size=1, patience=5.0, statement_seconds=30.0)
    try:
        return [step.version for step in await migrate.apply_migrations(pool, partitions=4, vectors=vectors)]
    finally:
        await pool.close()


@pytest.mark.usefixtures("large")
async def test_without_pgvector_vectors_are_compared_one_by_one_until_a_migration_adds_them(
    postgres_url: str, superuser: Superuser, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await apply_migrations_to(postgres_url, vectors=False) == [1, 4, 5]
    monkeypatch.setattr(migrate, "_IS_UNUSED", "SELECT false")  # as if it had been used long since
    space = "model/256/f16/said1"
    vectors = random_directions(30, 256)
    query = Search(namespace="default", space=space, vector=tuple(vectors[7]), limit=3)
    async with PostgresStorage(postgres_url) as before:
        assert superuser.execute("SELECT to_regclass('acms.vectors')").fetchall() == [(None,)]
        context = await fill_log(before, vectors, space)
        async with before.for_tenant("other") as other:
            await fill_log(other, vectors[:2], space)
        first = await before.search(query)
        assert first[0].id.split("_")[2] == "8"
        assert await apply_migrations_to(postgres_url) == [2, 3]
        assert await apply_migrations_to(postgres_url) == []
        assert superuser.execute("SELECT count(*) FROM acms.vectors").fetchall() == [(32,)]
        # a process from before goes on, and what it writes is indexed
        later = await append_drafts(before, context, draft_fact("later"))
        await before.put_derived(
            context.id, [Derived(version=31, space=space, data=pack_half_floats(*vectors[7]))]
        )
        assert len(await before.search(query)) == 3
    async with PostgresStorage(postgres_url) as after:
        found = await after.search(query)
        assert {hit.id for hit in found[:2]} == {first[0].id, later.ids[0]}
        assert found[0].score == pytest.approx(1.0, abs=1e-3)


@pytest.fixture
def owner_url(postgres: Databases, postgres_url: str) -> Iterator[str]:
    """An empty database of a user who may not create extensions; the roles are there."""
    name, database = f"owner_{secrets.token_hex(4)}", urlsplit(postgres_url).path.lstrip("/")
    other = postgres.create_database()
    asyncio.run(apply_migrations_to(other, vectors=False))
    postgres.drop_database(other)
    postgres.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'p'")
    postgres.execute(f"GRANT acms_app, acms_search TO {name}")
    postgres.execute(f"ALTER DATABASE {database} OWNER TO {name}")
    host = urlsplit(postgres_url).netloc.rpartition("@")[2]
    yield urlsplit(postgres_url)._replace(netloc=f"{name}:p@{host}").geturl()
    postgres.drop_database(postgres_url)
    postgres.execute(f"DROP ROLE {name}")


def test_an_owner_who_may_not_create_the_extension_gets_vectors_once_it_is_there(
    owner_url: str, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Row-level security binds the owner too, and what is copied by the migration is still all there is."""
    space = "model/8/f16/said1"

    async def work() -> None:
        async with PostgresStorage(owner_url) as store, store.for_tenant("other") as other:
            assert "vectors_left_out" in caplog.text
            for one in (store, other):
                await fill_log(one, random_directions(3, 8), space)
        with psycopg.connect(postgres_url, autocommit=True) as superuser:
            superuser.execute("CREATE EXTENSION vector")
            assert await apply_migrations_to(owner_url) == [2, 3]
            rows = superuser.execute("SELECT tenant_id, count(*) FROM acms.vectors GROUP BY 1 ORDER BY 1")
            assert rows.fetchall() == [("default", 3), ("other", 3)]

    asyncio.run(work())


@pytest.mark.usefixtures("large")
async def test_a_server_without_pgvector_searches_all_the_same_and_says_what_is_missing(
    postgres15_url: str,
) -> None:
    space = "model/256/f16/said1"
    vectors = random_directions(30, 256)
    async with PostgresStorage(postgres15_url) as store:
        await fill_log(store, vectors, space)
        near = await store.search(Search(namespace="default", space=space, vector=tuple(vectors[7]), limit=3))
        words = await store.search(Search(namespace="default", terms=("fact", "11")))
    assert (near[0].id.split("_")[2], words[0].id.split("_")[2]) == ("8", "c")
    connection = await psycopg.AsyncConnection.connect(postgres15_url, autocommit=True)
    async with connection:
        steps = await migrate.read_migration_status(connection)
    wants = "pgvector 0.8.2 or newer on the server"
    assert [(step.applied, step.waits_for) for step in steps] == [
        (True, None),
        (False, wants),
        (False, wants),
        (True, None),
        (True, None),
    ]
    assert await apply_migrations_to(postgres15_url) == []


async def test_a_pgvector_that_is_too_old_is_refused(postgres_url: str, superuser: Superuser) -> None:
    async with PostgresStorage(postgres_url) as store:
        await create_log(store)
    superuser.execute("UPDATE pg_extension SET extversion = '0.8.1' WHERE extname = 'vector'")
    with pytest.raises(ConfigurationError, match=r"0\.8\.1.*0\.8\.2") as refused:
        await PostgresStorage(postgres_url).contexts(ContextQuery())
    assert "ALTER EXTENSION vector UPDATE" in str(refused.value.options)
    with pytest.raises(ConfigurationError):
        await apply_migrations_to(postgres_url)
