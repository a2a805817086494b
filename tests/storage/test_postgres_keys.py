"""The schema as a promise: every key leads with the tenant, nobody sees another's rows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest

from acms.kv import PostgresKV
from acms.storage import open_storage
from acms.storage.sql import load_queries
from tests.servers.stores import run_inside

#: Tables that hold nothing of any tenant.
SHARED = {"migrations"}
#: Queries that look at the server, not at anybody's rows.
OF_NOBODY = {"horizon"}


@pytest.fixture(scope="module", params=["postgres", "postgres15"], ids=["18 with pgvector", "15 without"])
def migrated(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database in which every table of ours was made."""
    server = request.getfixturevalue(request.param)
    url = server.create_database()
    asyncio.run(_create_schema(url))
    yield url
    server.drop_database(url)


async def _create_schema(url: str) -> None:
    async with open_storage(url):
        pass
    kv = PostgresKV(url)
    await kv.get("nothing")
    await kv.aclose()


def table_names(url: str) -> set[str]:
    """The tables of the schema, partitions left out."""
    found = run_inside(
        url,
        "SELECT relname FROM pg_class WHERE relnamespace = 'acms'::regnamespace AND relkind IN ('r', 'p')"
        " AND NOT relispartition",
    )
    return {name for (name,) in found}


def test_every_unique_key_leads_with_the_tenant(migrated: str) -> None:
    keys = run_inside(
        migrated,
        "SELECT i.indrelid::regclass::text, i.indexrelid::regclass::text, a.attname FROM pg_index i"
        " JOIN pg_class c ON c.oid = i.indrelid"
        " LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]"
        " WHERE c.relnamespace = 'acms'::regnamespace AND i.indisunique",
    )
    tenants = [(table, index) for table, index, first in keys if first == "tenant_id"]
    others = [(table, index) for table, index, first in keys if first != "tenant_id"]
    assert others == [("acms.migrations", "acms.migrations_pkey")]
    assert {table.removeprefix("acms.") for table, _ in tenants} >= table_names(migrated) - SHARED


def test_a_foreign_key_stays_within_a_tenant(migrated: str) -> None:
    keys = run_inside(
        migrated,
        "SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE contype = 'f' AND connamespace = 'acms'::regnamespace AND conparentid = 0",
    )
    for table, written in keys:
        assert re.match(r"FOREIGN KEY \(tenant_id, .*REFERENCES acms\.\w+\(tenant_id, ", written), table


def test_the_net_under_the_tenants_has_no_hole(migrated: str) -> None:
    policies: dict[str, list[tuple[str, str, str]]] = {}
    for table, name, verb, roles, condition, check in run_inside(
        migrated,
        "SELECT c.relname, p.polname, p.polcmd, ARRAY(SELECT coalesce(r.rolname, '') FROM unnest(p.polroles) o"
        " LEFT JOIN pg_roles r ON r.oid = o), pg_get_expr(p.polqual, c.oid), pg_get_expr(p.polwithcheck, c.oid)"
        " FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid WHERE c.relnamespace = 'acms'::regnamespace",
    ):
        if name == "search":  # what one function may see: nobody can become its role, see below
            assert (verb, roles, condition, check) == ("r", ["acms_search"], "true", None)
        else:
            assert (roles, check) == ([""], None)
            policies.setdefault(table, []).append((name, verb, condition))
    own = ("tenant", "*", "(tenant_id = current_setting('acms.tenant'::text, true))")
    assert policies == {table: [own] for table in table_names(migrated) - SHARED}
    forced = run_inside(
        migrated,
        "SELECT relname FROM pg_class WHERE relnamespace = 'acms'::regnamespace"
        " AND relrowsecurity AND relforcerowsecurity",
    )
    assert {name for (name,) in forced} == set(policies)
    without = run_inside(
        migrated,
        "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'acms'::regnamespace AND c.relkind IN ('r', 'p')"
        " AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id')",
    )
    assert {name for (name,) in without} == SHARED


def test_the_role_of_every_statement_owns_nothing_and_may_do_only_what_the_queries_do(migrated: str) -> None:
    assert run_inside(migrated, "SELECT classid::regclass::text FROM pg_shdepend WHERE deptype = 'o'"
                            " AND refobjid = 'acms_app'::regrole") == []  # fmt: skip
    assert run_inside(migrated, "SELECT objid::regproc::text FROM pg_shdepend WHERE deptype = 'o' AND dbid ="
                            " (SELECT oid FROM pg_database WHERE datname = current_database())"
                            " AND refobjid = 'acms_search'::regrole") == [("acms.places",)]  # fmt: skip
    granted: dict[str, set[str]] = {}
    for table, verb in run_inside(
        migrated,
        "SELECT table_name, privilege_type FROM information_schema.role_table_grants"
        " WHERE grantee = 'acms_app' AND table_schema = 'acms'",
    ):
        granted.setdefault(table, set()).add(verb)
    everything = {"SELECT", "INSERT", "UPDATE", "DELETE"}
    wanted = {
        "contexts": everything - {"DELETE"},
        "entries": everything - {"DELETE"},
        "jobs": everything - {"DELETE"},
        "derived": everything,
        "records": everything,
        "audit": {"INSERT"},
        "migrations": {"SELECT"},
        "kv": everything,
        "vectors": everything,
    }
    assert granted == {table: wanted[table] for table in table_names(migrated)}
    attributes = run_inside(
        migrated,
        "SELECT rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb OR rolcanlogin OR rolreplication"
        " FROM pg_roles WHERE rolname IN ('acms_app', 'acms_search')",
    )
    assert attributes == [(False,), (False,)]
    assert run_inside(
        migrated,
        "SELECT has_schema_privilege(r, 'acms', 'USAGE'), has_schema_privilege(r, 'acms', 'CREATE'),"
        " pg_has_role(r, 'acms_search', 'MEMBER') FROM (VALUES ('acms_app'::name)) AS roles (r)",
    ) == [(True, False, False)]


def test_nobody_else_may_use_the_schema(migrated: str) -> None:
    assert run_inside(migrated, "SELECT has_schema_privilege('public', 'acms', 'USAGE')") == [(False,)]
    assert run_inside(
        migrated,
        "SELECT count(*) FROM information_schema.role_table_grants WHERE table_schema = 'acms' AND grantee = 'PUBLIC'",
    ) == [(0,)]


@pytest.mark.parametrize("dialect", ["postgres", "kv_postgres"])
def test_every_statement_names_the_tenant(dialect: str) -> None:
    of_nobody: set[str] = set()
    for name, query in load_queries(dialect).items():
        if "acms." not in query and "%(tenant)s" not in query:
            of_nobody.add(name)
            continue
        assert "%(tenant)s" in query, name
        for table, alias in re.findall(
            r"(?:FROM|JOIN|UPDATE) acms\.(\w+)(?! *\()(?: (?!SET|WHERE|ON|ORDER)(\w+))?\b", query
        ):
            column = rf"\b{alias}\.tenant_id" if alias else r"\btenant_id"
            assert re.search(column, query), f"{name}: {table}"
        for columns in re.findall(r"INSERT INTO acms\.\w+(?: AS \w+)? \(([^)]*)\)", query):
            assert columns.startswith("tenant_id,"), name
    assert of_nobody == (OF_NOBODY if dialect == "postgres" else set())
