"""A wrong argument is the same error at every door: in Python, over HTTP, for MCP clients and in the shell.

Each door names the argument as its callers do, and says what to give.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client

from acms import ACMS, ACMSError
from acms.mcp.memory import Local
from acms.mcp.server import build_mcp_server
from tests.cli.test_cli import run
from tests.mcp.conftest import error_of_result
from tests.server.serving import Service

NAN = float("nan")
RECALL = "POST recall"


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """One wrong argument; a door that cannot be given it is left out."""

    code: str = "VALIDATION"
    #: The field that errors name, in Python.
    field: str = ""
    python: Callable[[Any], Awaitable[Any]]
    #: Method and path below the context, and the body or the query; the field, if it has another name there.
    http: tuple[str, dict[str, Any]] | None = None
    http_field: str | None = None
    mcp: tuple[str, dict[str, Any]] | None = None
    #: A command; a wrong value of its option is wrong usage.
    shell: tuple[str, ...] = ()


WRONG: dict[str, Wrong] = {
    "an empty query": Wrong(
        field="query",
        python=lambda s: s.recall(""),
        http=(RECALL, {"query": ""}),
        mcp=("recall", {"query": ""}),
        shell=("recall", "u", ""),
    ),
    "a blank query": Wrong(
        field="query",
        python=lambda s: s.recall(" \n"),
        http=(RECALL, {"query": " \n"}),
        mcp=("why", {"id": "m_1", "query": " \n"}),
        shell=("recall", "u", " \n"),
    ),
    "no query": Wrong(
        field="query",
        python=lambda s: s.recall(None),
        http=(RECALL, {}),
        mcp=("recall", {}),
    ),
    "a limit in quotes": Wrong(
        field="limit",
        python=lambda s: s.recall("x", limit="3"),
        http=(RECALL, {"query": "x", "limit": "3"}),
        mcp=("recall", {"query": "x", "limit": "3"}),
    ),
    "a limit of nothing": Wrong(
        field="limit",
        python=lambda s: s.recall("x", limit=0),
        http=(RECALL, {"query": "x", "limit": 0}),
        mcp=("recall", {"query": "x", "limit": 0}),
        shell=("history", "u", "--limit", "0"),
    ),
    "a relevance that is no number": Wrong(
        field="min_relevance",
        python=lambda s: s.recall("x", min_relevance=NAN),
        http_field="minRelevance",
        http=(RECALL, {"query": "x", "minRelevance": "NaN"}),
        shell=("recall", "u", "x", "--min-relevance", "nan"),
    ),
    "a time that is none": Wrong(
        field="created_at",
        python=lambda s: s.ingest("user", "x", created_at="yesterday"),
        http_field="messages[0].createdAt",
        http=("POST messages", {"messages": [{"role": "user", "content": "x", "createdAt": "yesterday"}]}),
        shell=("add", "u", "user", "x", "--created-at", "yesterday"),
    ),
    "a time without its zone": Wrong(
        field="created_at",
        python=lambda s: s.ingest("user", "x", created_at="2026-03-14T09:00:00"),
        http_field="messages[0].createdAt",
        http=("POST messages", {"messages": [{"role": "user", "content": "x", "createdAt": "2026-03-14"}]}),
        shell=("add", "u", "user", "x", "--created-at", "2026-03-14T09:00:00"),
    ),
    "a time that is a number": Wrong(
        field="where.after",
        python=lambda s: s.recall("x", where={"after": 5}),
        http=(RECALL, {"query": "x", "where": {"after": 5}}),
        mcp=("recall", {"query": "x", "where": {"after": 5}}),
    ),
    "a version that is to come": Wrong(
        code="NOT_FOUND",
        python=lambda s: s.at(99).window(50),
        http=("GET window", {"budget": 50, "atVersion": 99}),
        shell=("window", "u", "--at", "99"),
    ),
    "a fork of a version that is to come": Wrong(
        code="NOT_FOUND",
        python=lambda s: s.fork(99),
        http=("POST fork", {"atVersion": 99}),
        shell=("fork", "u", "--at", "99", "--as", "v"),
    ),
    "a tag of a version that is to come": Wrong(
        code="NOT_FOUND",
        python=lambda s: s.tag("next", 99),
        http=("PUT tags/next", {"atVersion": 99}),
        shell=("tag", "u", "next", "99"),
    ),
    "an end that is to come": Wrong(
        code="NOT_FOUND",
        python=lambda s: s.undo(99),
        http=("POST undo", {"version": 99}),
        shell=("undo", "u", "99"),
    ),
    "a difference to a version that is to come": Wrong(
        code="NOT_FOUND",
        python=lambda s: s.diff(99),
        http=("GET diff", {"otherVersion": 99}),
        shell=("diff", "u", "u@99"),
    ),
    "a tag that nobody gave": Wrong(
        code="NOT_FOUND",
        python=lambda s: s.at("nope").recall("x"),
        http=(RECALL, {"query": "x", "atTag": "nope"}),
        shell=("recall", "u", "x", "--at", "nope"),
    ),
    **{
        f"a budget of {value!r}": Wrong(
            field="budget",
            python=lambda s, value=value: s.recall("x", budget=value),
            http=None if value != value else (RECALL, {"query": "x", "budget": value}),
            mcp=None if value != value else ("recall", {"query": "x", "budget": value}),
            shell=("recall", "u", "x", "--budget", str(value)) if value in (0.5, -1) else (),
        )
        for value in ("5", 5.0, 0.5, True, NAN, -1, [5])
    },
    **{
        f"a window of {value!r}": Wrong(
            field="budget",
            python=lambda s, value=value: s.window(value),
            http=("GET window", {"budget": str(value)}),
        )
        for value in (5.0, 0.5, True, NAN, -1, None)
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def context(sqlite_service: Service) -> str:
    return sqlite_service.talk("We use Redis.")


@pytest.mark.parametrize("name", WRONG)
async def test_python_names_what_is_wrong(name: str) -> None:
    wrong = WRONG[name]
    async with ACMS("u", "memory://", None) as session:
        await session.ingest("user", "We use Redis.")
        with pytest.raises(ACMSError) as caught:
            await wrong.python(session)
        error = caught.value
        assert (error.code, getattr(error, "field", "")) == (wrong.code, wrong.field)
        assert error.options or wrong.code == "VALIDATION" or "there are no tags" in str(error)
        assert (await session.get_session_stats()).version == 1, "nothing was stored"


@pytest.mark.parametrize("name", [name for name, wrong in WRONG.items() if wrong.mcp])
async def test_a_tool_names_what_is_wrong(name: str) -> None:
    wrong = WRONG[name]
    assert wrong.mcp is not None
    tool, arguments = wrong.mcp
    async with ACMS("u", "memory://", None) as session:
        await session.ingest("user", "We use Redis.")
        async with Client(build_mcp_server(lambda _: Local(session))) as client:
            error = error_of_result(await client.call_tool(tool, arguments), wrong.code)
        assert error.get("argument", "") == wrong.field


@pytest.mark.parametrize("name", [name for name, wrong in WRONG.items() if wrong.http])
def test_the_service_names_what_is_wrong(sqlite_service: Service, context: str, name: str) -> None:
    wrong = WRONG[name]
    assert wrong.http is not None
    line, values = wrong.http
    method, _, path = line.partition(" ")
    given: dict[str, Any] = {"params": values} if method == "GET" else {"json": values}
    reply = sqlite_service.client.request(method, f"/contexts/{context}/{path}", **given)
    problem = reply.json()
    assert (reply.status_code, problem["code"]) == (404 if wrong.code == "NOT_FOUND" else 400, wrong.code)
    if wrong.field:
        assert problem["errors"][0]["field"] == (wrong.http_field or wrong.field)


@pytest.mark.parametrize("name", [name for name, wrong in WRONG.items() if wrong.shell])
def test_the_shell_names_what_is_wrong(tmp_path: Path, name: str) -> None:
    wrong, db = WRONG[name], ("--db", str(tmp_path / "notes.db"))
    run("add", "u", "user", "We use Redis.", *db)
    option = next((word for word in wrong.shell if word.startswith("--")), "")
    is_usage = wrong.code == "VALIDATION" and bool(option)
    result = run(*wrong.shell, *db, "--json", code=2 if is_usage else 1)
    error = json.loads(result.stderr)["error"]
    assert error["code"] == wrong.code
    if is_usage:
        assert option in error["message"]
