"""MCP in the service: a real server with keys, tenants and scopes, and the SDK's client."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from socket import socket
from typing import Any

import anyio
import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from typer.testing import CliRunner

from acms import ACMSConfig, RenderLogConfig
from acms.cli.commands import app as commands
from acms.mcp import mount_mcp
from acms.mcp import server as mcp_server
from acms.server import App, ServerConfig
from acms.server.audit import read_audit_trail
from acms.server.operation import Scope
from tests.mcp.conftest import REQUEST, error_of_result, text_of
from tests.server.guarded import GUARDED, Guarded, guarded_service
from tests.server.slow import Slow

READS = (Scope.READ, Scope.MEMORY_READ)
CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
ACCEPT = {"accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
async def service() -> AsyncIterator[Guarded]:
    """A service over a store in memory: what the stores promise is tested elsewhere."""
    engine = ACMSConfig(renders=RenderLogConfig(enabled=True))
    async with guarded_service("memory://", engine=engine, embedder=None) as running:
        mount_mcp(running.app)
        yield running


@pytest.fixture
def tenant() -> str:
    """A tenant of the test's own."""
    return f"t-{secrets.token_hex(6)}"


@asynccontextmanager
async def connect_tenant(
    service: Guarded, tenant: str, path: str, *, scopes: Iterable[Scope] = tuple(Scope), mode: str = "auto"
) -> AsyncIterator[Client]:
    """Connect with a new key of a tenant."""
    _, secret = await service.app.keys.create(tenant, scopes=scopes)
    async with (
        httpx2.AsyncClient(
            headers={"authorization": f"Bearer {secret}"}, verify=False, trust_env=False, timeout=60
        ) as carrier,
        Client(streamable_http_client(f"{service.url}{path}", http_client=carrier), mode=mode) as client,
    ):
        yield client


async def call_tool(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    assert json.loads(text_of(result)) == result.structured_content
    return dict(result.structured_content)


@pytest.mark.parametrize(("mode", "spoken"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
async def test_every_tool_works_at_a_service(service: Guarded, tenant: str, mode: str, spoken: str) -> None:
    async with connect_tenant(service, tenant, "/mcp/team/one", mode=mode) as client:
        assert client.protocol_version == spoken
        assert len((await client.list_tools()).tools) == 8
        made = await call_tool(
            client, "remember", text="Ada lives in Lyon.", origin="user", subject="Ada", attribute="city",
            value="Lyon",
        )  # fmt: skip
        found = await call_tool(client, "recall", query="Where does Ada live?")
        assert {made["id"], made["fact"]["id"]} == {one["id"] for one in found["items"]}
        assert (await call_tool(client, "why", query="Ada", id=made["id"]))["included"] is True
        assert [one["value"] for one in (await call_tool(client, "facts"))["facts"]] == ["Lyon"]
        assert (await call_tool(client, "history"))["entries"][0]["id"] == made["id"]
        reply = await call_tool(client, "render", request=REQUEST)
        assert made["id"] in [one["id"] for one in reply["fragments"]]
        listed = (await client.list_resources()).resources
        assert listed[0].uri == "acms://session"
        assert len(listed) == 2, "what the reply showed was kept"
        for one in (*[one.uri for one in listed], f"acms://session/entry/{made['id']}"):
            assert (await client.read_resource(one)).contents[0].text
        assert "Lyon" in str(await client.get_prompt("recall", {"question": "Where does Ada live?"}))
        await call_tool(client, "forget", id=made["id"], forever=True)
        left = [await call_tool(client, "recall", query="Ada Lyon"), await call_tool(client, "history")]
        left += [
            await call_tool(client, "facts", history=True),
            await call_tool(client, "render", request=REQUEST),
        ]
        assert "Lyon" not in json.dumps(left)
        assert len((await client.list_resources()).resources) <= 2, "the render that quoted it is gone"


async def test_an_id_opens_no_log_of_another_namespace(service: Guarded, tenant: str) -> None:
    api = await service.key(tenant)
    body = {"key": "one", "namespace": "team"}
    context = (await api.post("/contexts", json=body)).json()["data"]["id"]
    async with connect_tenant(service, tenant, f"/mcp/other/{context}") as client:
        for tool, given in (("history", {}), ("remember", {"text": "hi"}), ("recall", {"query": "hi"})):
            result = await client.call_tool(tool, given)
            assert result.is_error, tool
            assert result.structured_content["error"]["argument"] == "namespace"
            assert result.structured_content["error"]["options"] == ["name the namespace of the log"]
    async with connect_tenant(service, tenant, f"/mcp/team/{context}") as client:
        assert (await call_tool(client, "history"))["entries"] == []


async def test_what_a_program_noted_beside_a_message_is_shown(service: Guarded, tenant: str) -> None:
    api = await service.key(tenant)
    context = (await api.post("/contexts", json={"key": "one", "namespace": "team"})).json()["data"]["id"]
    call = {"id": "c1", "name": "look_up", "arguments": {"city": "Lyon", "limit": None}}
    noted = {"run": 12, "where": {"file": "", "lines": [1, 2]}}
    messages = [
        {"role": "user", "content": "Ada lives in Lyon.", "metadata": noted},
        {"role": "assistant", "content": "", "toolCalls": [call]},
    ]
    stored = await api.post(f"/contexts/{context}/messages", json={"messages": messages})
    ids = [one["id"] for one in stored.json()["data"]]
    async with connect_tenant(service, tenant, "/mcp/team/one") as client:
        read = [await client.read_resource(f"acms://session/entry/{id}") for id in ids]
        said, called = [json.loads(one.contents[0].text) for one in read]
    assert said["metadata"] == noted
    assert json.loads(called["parts"][0]["arguments"]) == call["arguments"]


async def test_without_a_valid_key_nothing_is_answered_but_how_to_get_in(service: Guarded) -> None:
    async with httpx2.AsyncClient(verify=False, trust_env=False) as stranger:
        for authorization in (None, "Bearer acms_0000000000_nothing", "Basic YTpi"):
            headers = ACCEPT if authorization is None else {**ACCEPT, "authorization": authorization}
            reply = await stranger.post(f"{service.url}/mcp/team/one", json=CALL, headers=headers)
            assert reply.status_code == 401
            assert reply.json()["code"] == "UNAUTHENTICATED"
            challenge = reply.headers["www-authenticate"]
            where = f"{service.url}/.well-known/oauth-protected-resource/mcp/team/one"
            assert challenge == f'Bearer realm="acms", resource_metadata="{where}"'
        metadata = (await stranger.get(where)).json()
        assert metadata["resource"] == f"{service.url}/mcp/team/one"
        assert metadata["bearer_methods_supported"] == ["header"]
        assert "authorization_servers" not in metadata, "nobody gives out tokens"
        strange = {**ACCEPT, "host": 'evil"\\.example'}
        reply = await stranger.post(f"{service.url}/mcp/team/one", json=CALL, headers=strange)
        assert reply.headers["www-authenticate"] == 'Bearer realm="acms"'


async def test_a_key_that_was_revoked_opens_nothing_more(service: Guarded, tenant: str) -> None:
    key, secret = await service.app.keys.create(tenant, scopes=tuple(Scope))
    headers = {**ACCEPT, "authorization": f"Bearer {secret}"}
    async with httpx2.AsyncClient(verify=False, trust_env=False, headers=headers) as client:
        assert (await client.post(f"{service.url}/mcp/one", json=CALL)).status_code == 200
        await service.app.keys.revoke(key.id)
        assert (await client.post(f"{service.url}/mcp/one", json=CALL)).status_code == 401


async def test_a_key_never_reads_what_is_another_tenants(service: Guarded, tenant: str) -> None:
    canary = secrets.token_hex(8)
    async with connect_tenant(service, tenant, "/mcp/team/one") as owner:
        made = await call_tool(owner, "remember", text=f"The canary is {canary}.")
        uri = f"acms://session/entry/{made['id']}"
        context = json.loads((await owner.read_resource(uri)).contents[0].text)["contextId"]
        for path in ("/mcp/team/one", "/mcp/one", f"/mcp/{context}", f"/mcp/team/{context}"):
            async with connect_tenant(service, f"{tenant}-other", path) as other:
                answers = [
                    await other.call_tool("recall", {"query": f"the canary {canary}"}),
                    await other.call_tool("recall", {"query": "the canary", "scope": "namespace"}),
                    await other.call_tool("why", {"query": "canary", "id": made["id"]}),
                    await other.call_tool("facts", {"history": True}),
                    await other.call_tool("history", {}),
                    await other.call_tool("render", {"request": REQUEST | {"intent": "the canary"}}),
                ]
                ids = {
                    "forget": {"id": made["id"]},
                    "read": {"id": made["id"]},
                    "why": {"id": made["id"], "query": "x"},
                }
                for tool, arguments in ids.items():
                    result = await other.call_tool(tool, arguments)
                    assert result.structured_content["error"]["code"] in (
                        "ENTRY_NOT_FOUND",
                        "SESSION_NOT_FOUND",
                    )
                with pytest.raises(MCPError) as caught:
                    await other.read_resource(uri)
                assert caught.value.error.data["code"] in ("ENTRY_NOT_FOUND", "SESSION_NOT_FOUND")
            assert canary not in str([text_of(one) for one in answers]).replace(f"the canary {canary}", "")
        assert canary in text_of(await owner.call_tool("recall", {"query": "the canary"}))


async def test_sessions_of_one_namespace_find_each_other_and_no_others(service: Guarded, tenant: str) -> None:
    async with connect_tenant(service, tenant, "/mcp/user%3A1/monday") as monday:
        await call_tool(monday, "remember", text="We deploy on Tuesdays.", origin="user")
    query = {"query": "When do we deploy?"}
    async with connect_tenant(service, tenant, "/mcp/user%3A1/tuesday") as tuesday:
        own = await call_tool(tuesday, "recall", **query)
        assert own["items"] == []
        assert 'scope "namespace"' in own["hint"]
        found = await call_tool(tuesday, "recall", **query, scope="namespace")
        assert [(one["text"], one["session"]) for one in found["items"]] == [
            ("We deploy on Tuesdays.", "monday")
        ]
    async with connect_tenant(service, tenant, "/mcp/user%3A2/tuesday") as somebody:
        assert (await call_tool(somebody, "recall", **query, scope="namespace"))["items"] == []
    async with connect_tenant(service, tenant, "/mcp/tuesday") as unnamed:
        assert "hint" not in await call_tool(unnamed, "recall", **query)
        error = error_of_result(
            await unnamed.call_tool("recall", {**query, "scope": "namespace"}), "VALIDATION"
        )
        assert "HTTP: connect to /mcp/NAMESPACE/SESSION" in error["options"]


async def test_names_may_hold_a_slash(service: Guarded, tenant: str) -> None:
    async with connect_tenant(service, tenant, "/mcp/a%2Fb/c%2Fd") as client:
        await call_tool(client, "remember", text="Here.")
        found = json.loads((await client.read_resource("acms://session")).contents[0].text)
    assert (found["namespace"], found["session"]) == ("a/b", "c/d")


async def test_a_name_that_no_address_can_hold_does_nothing_else(service: Guarded, tenant: str) -> None:
    async with connect_tenant(service, tenant, "/mcp/u/s") as client:
        await client.call_tool("remember", {"text": "precious"})
        for id in ("", ".", ".."):
            for forever in (False, True):
                done = await client.call_tool("forget", {"id": id, "forever": forever})
                error_of_result(done, "VALIDATION")
        kept = await client.call_tool("history", {})
        assert "precious" in text_of(kept)


async def test_a_key_does_what_its_scopes_allow(service: Guarded, tenant: str) -> None:
    async with connect_tenant(service, tenant, "/mcp/team/one") as owner:
        made = await call_tool(owner, "remember", text="Ada lives in Lyon.")
    async with connect_tenant(service, tenant, "/mcp/team/one", scopes=READS) as reader:
        assert made["id"] in text_of(await reader.call_tool("recall", {"query": "Where does Ada live?"}))
        assert (await call_tool(reader, "read", id=made["id"]))["text"] == "Ada lives in Lyon."
        for tool, arguments, scope in (
            ("remember", {"text": "x"}, "context:append"),
            ("forget", {"id": made["id"]}, "context:append"),
            ("forget", {"id": made["id"], "forever": True}, "erase"),
        ):
            with pytest.raises(MCPError, match=scope) as denied:
                await reader.call_tool(tool, arguments)
            assert denied.value.error.data["code"] == "FORBIDDEN"
            assert denied.value.error.data["options"] == [
                "use a key that has it",
                "ask the operator of the service for one",
            ]
    async with connect_tenant(service, tenant, "/mcp/team/one", scopes=[Scope.READ]) as watcher:
        with pytest.raises(MCPError, match="memory:read"):
            await watcher.call_tool("recall", {"query": "Ada"})
        with pytest.raises(MCPError, match="memory:read"):
            await watcher.get_prompt("recall", {"question": "Ada"})
        assert len((await watcher.list_resources()).resources) == 1


@pytest.mark.parametrize(
    "more",
    [{"then": "reflect"}, {"origin": "user", "subject": "Ada", "attribute": "lives in", "value": "Lyon"}],
)
async def test_what_was_stored_before_a_scope_was_missing_is_not_asked_for_again(
    service: Guarded, tenant: str, more: dict[str, str]
) -> None:
    _, secret = await service.app.keys.create(tenant, scopes=[Scope.READ, Scope.APPEND])
    said = {"name": "remember", "arguments": {"text": "Ada lives in Lyon.", **more}}
    headers = {**ACCEPT, "authorization": f"Bearer {secret}"}
    async with httpx2.AsyncClient(verify=False, trust_env=False, headers=headers) as client:
        call = {**CALL, "method": "tools/call", "params": said}
        reply = await client.post(f"{service.url}/mcp/team/half-{len(more)}", json=call)
    assert reply.status_code == 200, "a client that is told 403 gets itself the scope and asks again"
    assert "the text was stored as m_" in reply.text


async def test_what_a_scope_is_missing_for_is_answered_403_with_a_challenge_that_names_it(
    service: Guarded, tenant: str
) -> None:
    _, secret = await service.app.keys.create(tenant, scopes=READS)
    call = {**CALL, "method": "tools/call", "params": {"name": "remember", "arguments": {"text": "x"}}}
    headers = {**ACCEPT, "authorization": f"Bearer {secret}"}
    async with httpx2.AsyncClient(verify=False, trust_env=False, headers=headers) as client:
        reply = await client.post(f"{service.url}/mcp/team/one", json=call)
        listed = await client.post(f"{service.url}/mcp/team/one", json=CALL)
    assert reply.status_code == 403
    assert reply.headers["www-authenticate"] == (
        'Bearer error="insufficient_scope", scope="context:append", '
        f'resource_metadata="{service.url}/.well-known/oauth-protected-resource/mcp/team/one"'
    )
    assert reply.json()["error"]["data"]["code"] == "FORBIDDEN"
    assert "context:append" in reply.json()["error"]["message"]
    assert (listed.status_code, "www-authenticate" in listed.headers) == (200, False)


async def test_a_request_counts_once_in_the_rates_however_many_operations_it_asks() -> None:
    limits = replace(GUARDED.limits, key_rate=0.001, key_burst=3)
    async with guarded_service("memory://", replace(GUARDED, limits=limits), embedder=None) as service:
        mount_mcp(service.app)
        _, secret = await service.app.keys.create("acme")
        call = {**CALL, "method": "tools/call", "params": {"name": "remember", "arguments": {"text": "x"}}}
        headers = {**ACCEPT, "authorization": f"Bearer {secret}"}
        async with httpx2.AsyncClient(verify=False, trust_env=False, headers=headers) as client:
            replies = [await client.post(f"{service.url}/mcp/team/one", json=call) for _ in range(4)]
        assert [one.status_code for one in replies] == [200, 200, 200, 429]
        assert not any("RATE_LIMITED" in one.text for one in replies[:3])


async def test_an_erasure_is_in_the_audit_trail_with_its_key(service: Guarded, tenant: str) -> None:
    async with connect_tenant(service, tenant, "/mcp/team/one") as client:
        made = await call_tool(client, "remember", text="Ada lives in Lyon.")
        await call_tool(client, "forget", id=made["id"], forever=True)
    noted = await read_audit_trail(await service.app.stores.tenant(tenant))
    assert "eraseEntry" in [one.operation for one in noted]


async def test_what_is_no_request_of_the_protocol_is_refused(service: Guarded, tenant: str) -> None:
    _, secret = await service.app.keys.create(tenant)
    headers = {**ACCEPT, "authorization": f"Bearer {secret}"}
    async with httpx2.AsyncClient(verify=False, trust_env=False, headers=headers) as client:
        at = f"{service.url}/mcp/team/one"
        for method in ("GET", "DELETE", "PUT"):
            reply = await client.request(method, at)
            assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
        for path, status in (("/mcp/", 404), ("/mcp/a/b/c", 404), ("/mcp/%00", 400), ("/mcp/@acms/x", 200)):
            assert (await client.post(f"{service.url}{path}", json=CALL)).status_code == status
        assert (
            await client.post(at, content=b"{", headers={"content-type": "application/json"})
        ).status_code == 400
        huge = json.dumps({**CALL, "params": {"_meta": {"x": "y" * 1_100_000}}}).encode()
        reply = await client.post(at, content=huge, headers={"content-type": "application/json"})
        assert reply.status_code == 413
        foreign = await client.post(at, json=CALL, headers={"origin": "https://evil.example"})
        assert foreign.status_code == 403
        call = {**CALL, "method": "tools/call", "params": {"name": "remember", "arguments": {"text": "x"}}}
        own = await client.post(f"{service.url}/mcp/@acms/x", json=call)
        assert "is reserved" in own.text


async def test_a_web_page_that_is_listed_may_connect() -> None:
    page = "https://app.example.org"
    config = replace(GUARDED, origins=(page,))
    async with (
        guarded_service("memory://", config, embedder=None) as service,
        httpx2.AsyncClient(verify=False) as it,
    ):
        mount_mcp(service.app)
        headers = {
            "origin": page,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, mcp-protocol-version",
        }
        reply = await it.options(f"{service.url}/mcp/one", headers=headers)
    allowed = reply.headers["access-control-allow-headers"].split(", ")
    assert {"authorization", "mcp-protocol-version", "mcp-method", "mcp-name"} <= set(allowed)


async def test_on_this_machine_alone_no_key_is_needed() -> None:
    async with guarded_service("memory://", ServerConfig(auth="off"), embedder=None) as service:
        mount_mcp(service.app)
        carrier = httpx2.AsyncClient(verify=False, trust_env=False)
        at = streamable_http_client(f"{service.url}/mcp/one", http_client=carrier)
        async with carrier, Client(at) as client:
            made = await call_tool(client, "remember", text="Ada lives in Lyon.")
            assert made["id"] in text_of(await client.call_tool("recall", {"query": "Ada"}))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_who_hangs_up_has_stored_all_or_nothing(
    service: Guarded, tenant: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_server, "REPORT_SECONDS", 0.05)
    slow = Slow(monkeypatch)
    slow.may.clear()
    reports: list[float] = []
    given = {"text": "We deploy.", "key": "k"}

    async def reported(progress: float, _: float | None, __: str | None) -> None:
        reports.append(progress)
        if len(reports) == 2:
            scope.cancel()

    async with connect_tenant(service, tenant, "/mcp/team/one", mode=mode) as client:
        with anyio.CancelScope() as scope:
            await client.call_tool("remember", given, progress_callback=reported)
        assert scope.cancelled_caught
    with anyio.fail_after(60):  # it is given up, and not waited for
        while mcp_server._ENDING:
            await anyio.sleep(0.01)
    slow.may.set()
    async with connect_tenant(service, tenant, "/mcp/team/one") as again:
        assert (await call_tool(again, "remember", **given))["repeated"]
        assert len((await call_tool(again, "history"))["entries"]) == 1


def test_the_command_serves_it_before_the_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[App] = []

    async def served(app: App, _: object, listening: socket, *__: object) -> None:
        made.append(app)
        listening.close()
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            reply = await client.post("/mcp/one", json=CALL, headers=ACCEPT)
            assert len(json.loads(reply.text.partition("data: ")[2] or reply.text)["result"]["tools"]) == 8
            assert (await client.get("/")).headers["content-type"].startswith("text/html")
        await app.stop()

    monkeypatch.setattr("acms.cli.serving._run_server", served)
    command = ["serve", "--mcp", "--port", "0", "--db", f"sqlite:///{tmp_path / 'log.db'}"]
    done = CliRunner().invoke(commands, command)
    assert (done.exit_code, len(made)) == (0, 1), done.output
