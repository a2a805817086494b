"""Who may look: keys, cookies, pages of others, and a file that is only read."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

from acms.cli.commands import app as commands
from acms.config import ACMSConfig
from acms.errors import StorageReadOnlyError
from acms.inspector import mount_inspector
from acms.model import ContextQuery
from acms.server import App, ServerConfig, create_app
from acms.server.operation import Operation
from acms.server.routes.table import OPERATIONS
from acms.session import ACMS
from acms.storage import open_storage
from tests.inspector.conftest import aside, inspecting
from tests.server.serving import OPEN, Service, visited
from tests.servers.browser import chromium


def test_only_its_own_pages_may_change_anything(inspected: Service) -> None:
    context = inspected.get("/contexts")["data"][0]["id"]
    do = f"{inspected.url}/s/{context}/do/withdraw"
    form = {"content-type": "application/x-www-form-urlencoded"}
    for origin in (None, "null", "https://evil.example", "http://127.0.0.1:1"):
        headers = form if origin is None else {**form, "origin": origin}
        assert httpx2.post(do, content="subject=a", headers=headers, verify=False).status_code == 403, origin
    own = httpx2.post(
        do, content="subject=a&attribute=b", headers={**form, "origin": inspected.url}, verify=False
    )
    assert own.status_code == 303
    reply = httpx2.get(f"{inspected.url}/s/{context}", verify=False)
    policy = reply.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert httpx2.get(f"{inspected.url}/s/{context}?before=x", verify=False).status_code == 400
    assert httpx2.get(f"{inspected.url}/nowhere", verify=False).json()["code"] == "NOT_FOUND"
    assert httpx2.get(f"{inspected.url}/static/..%2fpages.py", verify=False).status_code == 404


@pytest.mark.skipif(sys.platform == "win32", reason="the signals of POSIX")
def test_a_file_is_looked_at_and_never_written(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, opened = told.read_bytes(), list[str]()
    monkeypatch.setattr("webbrowser.open", opened.append)

    async def look(client: httpx2.AsyncClient, made: App) -> None:
        await enter(client, made)
        listed = (await client.get("/api/v1/contexts")).json()["data"]
        context = next(one["id"] for one in listed if one["key"] == "demo")
        for view in ("", "/sent", "/jobs", "/facts"):
            page = await client.get(f"/s/{context}{view}")
            assert page.status_code == 200
            assert 'method="post"' not in page.text.replace(f'method="post" action="/s/{context}/ask"', "")
        own = {"origin": str(client.base_url)}
        tried = await client.post(f"/s/{context}/do/undo", content="version=1", headers=own)
        assert tried.status_code == 404

    done = visited(monkeypatch, look, "inspect", str(told))
    (url,) = opened
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", url)
    assert done.stdout == f"looking at sqlite:///{told}?mode=ro on {url} (Ctrl-C ends it)\n"
    named = ("inspect", "--db", f"sqlite:///{told}?mode=ro", "--no-browser", "--json")
    assert json.loads(visited(monkeypatch, look, *named).stdout)["url"] != url
    assert opened == [url]
    assert told.read_bytes() == before


READ_ONLY = replace(OPEN, writes=False, works=False)
WRITES = [one for one in OPERATIONS if one.writes]


async def enter(client: httpx2.AsyncClient, made: App) -> httpx2.Response:
    """Show the token of a service that was started by `acms inspect`, as a browser does."""
    return await client.get("/", params={"token": made.config.token})


def path_of(operation: Operation, **known: str) -> str:
    """Return the path of an operation, with names that are not known made up."""
    path = operation.path if operation.rooted else f"/api/v1{operation.path}"
    return re.sub(r"{(\w+)}", lambda found: known.get(found[1], "none"), path)


async def story(url: str) -> tuple[str, str]:
    """Store a message, and return the ids of its context and of itself."""
    async with open_storage(url) as storage, ACMS("talk", storage, None) as session:
        message = await session.ingest("user", "The kettle whistles at seven.")
        return (await storage.context("talk")).id, message


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store of each kind that outlives its handles, without a tenant."""
    postgres = request.param == "postgres"
    return request.getfixturevalue("postgres_url") if postgres else f"sqlite:///{tmp_path}/log.db"


@pytest.mark.skipif(sys.platform == "win32", reason="the signals of POSIX")
def test_nothing_is_written_through_inspect_on_any_store(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACMS_EMBEDDER", "none")
    monkeypatch.setattr("webbrowser.open", list[str]().append)
    context, message = asyncio.run(story(store))

    async def look(client: httpx2.AsyncClient, made: App) -> None:
        await enter(client, made)
        own = {"origin": str(client.base_url).rstrip("/")}
        for one in WRITES:
            path = path_of(one, context_id=context, entry_id=message)
            reply = await client.request(one.method, path, json={}, headers=own)
            assert (reply.status_code, reply.json()["code"]) == (403, "FORBIDDEN"), one.name
            assert "read-only" in reply.json()["detail"]
        here = f"/api/v1/contexts/{context}"
        found = await client.post(f"{here}/recall", json={"query": "kettle", "budget": 100})
        assert "kettle" in found.json()["data"]["items"][0]["content"]
        prompt = {"budget": 600, "user": "When does it whistle?"}
        assert (await client.post(f"{here}/prompt", json=prompt)).status_code == 200
        assert (await client.get(f"/s/{context}/facts")).status_code == 200
        for button in ("undo", "forget", "withdraw"):
            assert (await client.post(f"/s/{context}/do/{button}", headers=own)).status_code == 404
        tenant = await made.stores.tenant("default")
        async with ACMS("new", tenant.handle, None) as session:
            with pytest.raises(StorageReadOnlyError, match="read-only"):
                await session.ingest("user", "Hello")
        with pytest.raises(StorageReadOnlyError, match="read-only"):
            await tenant.kv.set("new", 1)

    assert len(WRITES) > 30
    visited(monkeypatch, look, "inspect", "--db", store)

    async def unchanged() -> None:
        async with open_storage(store) as storage:
            assert (await storage.head(context)).version == 1
            assert [one.key for one in (await storage.contexts(ContextQuery())).items] == ["talk"]

    asyncio.run(unchanged())


async def test_a_read_only_service_over_a_store_in_memory_refuses_writes() -> None:
    made = create_app("memory://", READ_ONLY, engine=ACMSConfig(), embedder=None)
    await made.start()
    try:
        transport = httpx2.ASGITransport(app=made)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for one in OPERATIONS:
                reply = await client.request(one.method, path_of(one), json={})
                assert (reply.status_code == 403) is one.writes, one.name
    finally:
        await made.stop()


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    done = CliRunner().invoke(commands, ["inspect", str(tmp_path / "none.db")])
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"there is no file '{tmp_path / 'none.db'}'" in done.stderr
    assert "try: acms demo --db sqlite:///demo.db makes one" in done.stderr


def test_a_session_in_which_nothing_was_said_says_so_on_every_page() -> None:
    with inspecting("memory://") as service:
        context = service.create(key="new")
        for view, said in {
            "": "nothing was said yet",
            "/sent": "Nothing that was sent is kept",
            "/diff": "Nothing that was sent is kept",
            "/facts": "nothing is known yet",
            "/jobs": "nothing was asked for",
        }.items():
            page = service.client.get(f"{service.url}/s/{context}{view}")
            assert (page.status_code, said in page.text) == (200, True), view
        forks = service.client.get(f"{service.url}/s/{context}/forks").text
        assert "Compare" in forks
        assert "common up to" not in forks
        assert "already up to date" not in forks


def test_a_button_does_what_it_says_and_goes_back_to_its_page() -> None:
    with inspecting("memory://", replace(OPEN, works=False)) as service:
        context = service.talk("The kettle whistles.", "Noted.", "And now?")
        client, here = service.client, f"/contexts/{context}"

        def press(what: str, status: int = 303, **form: str) -> str:
            headers = {"origin": service.url}
            reply = client.post(f"{service.url}/s/{context}/do/{what}", data=form, headers=headers)
            assert reply.status_code == status, reply.text
            return reply.headers.get("location", "")

        first = service.get(f"{here}/messages")["data"][0]["id"]
        assert client.post(f"{here}/entries/{first}/retract").json()["data"] == {"version": 4}
        assert service.get(f"{here}/stats")["data"]["activeMessages"] == 2
        assert press("undo", version="4") == f"/s/{context}"
        assert service.get(f"{here}/stats")["data"]["activeMessages"] == 3
        press("undo", 400, version="first")

        asked = client.post(f"{here}/compact", json={"preserveRecentCount": 1}).json()["data"]["job"]["id"]
        for what, state in (("cancel", "cancelled"), ("retry", "ready")):
            assert press(what, job=asked, back="jobs") == f"/s/{context}/jobs"
            assert service.get(f"/jobs/{asked}")["data"]["state"] == state

        client.post(f"{here}/prompt", json={"budget": 600, "user": "Hello?"}).raise_for_status()
        assert len(service.get(f"{here}/renders")["data"]) == 1
        assert press("forget", back="cost") == f"/s/{context}/cost"
        assert service.get(f"{here}/renders")["data"] == []

        assert press("undo", version="4", back="//evil.example") == f"/s/{context}"
        press("nonsense", 404)
        press("withdraw", 413, subject="s" * 70_000)


async def test_who_signed_in_with_a_key_that_ended_is_asked_for_another() -> None:
    made = mount_inspector(create_app("memory://", ServerConfig(auth="required")))
    key, secret = await made.keys.create("acme")
    await made.start()
    try:
        transport = httpx2.ASGITransport(app=made)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            own = {"origin": "http://localhost"}
            entered = await client.post("/sign-in", data={"key": secret}, headers=own)
            assert (entered.status_code, entered.headers["location"]) == (303, "/")
            assert (await client.get("/")).status_code == 200
            await made.keys.revoke(key.id)
            turned = await client.get("/")
            assert (turned.status_code, turned.headers["location"]) == (303, "/sign-in")
    finally:
        await made.stop()


async def test_only_the_token_opens_an_inspected_store(caplog: pytest.LogCaptureFixture) -> None:
    token = "the-token-of-this-test-has-43-characters-xx"
    made = mount_inspector(create_app("memory://", replace(READ_ONLY, token=token)))
    assert token not in repr(made.config)
    await made.start()
    caplog.set_level(logging.DEBUG)
    transport = httpx2.ASGITransport(app=made)
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8123") as client:
            for path in (
                "/",
                "/docs",
                "/static/inspector.css",
                "/health",
                "/openapi.json",
                "/api/v1/contexts",
            ):
                for query in ("", "?token=", "?token=wrong", f"?token={token[:-1]}", f"?key={token}"):
                    refused = await client.get(path + query)
                    assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN"), path
                    assert "token" in refused.json()["detail"]
                    assert "set-cookie" not in refused.headers
            page = await client.get("/", headers={"accept": "text/html,*/*"})
            assert (page.status_code, page.headers["content-type"]) == (403, "text/html; charset=utf-8")
            assert "open the address that the command printed" in page.text
            assert (await client.post(f"/api/v1/contexts?token={token}", json={})).status_code == 403
            other = {"host": "evil.example:8123"}
            assert (await client.get(f"/?token={token}", headers=other)).status_code == 403

            entered = await client.get(f"/api/v1/contexts?limit=1&token={token}&namespace=user%3A1")
            assert (entered.status_code, entered.headers["location"]) == (
                303,
                "/api/v1/contexts?limit=1&namespace=user%3A1",
            )
            cookie = entered.headers["set-cookie"]
            assert cookie.startswith("acms_token_8123=")
            assert "HttpOnly" in cookie
            assert "SameSite=strict" in cookie
            assert token not in cookie
            assert (await client.get(entered.headers["location"])).json()["data"] == []
            assert (await client.get("/")).status_code == 200
            elsewhere = await client.get(f"{client.base_url}//evil.example/?token={token}")
            assert elsewhere.headers["location"] == "/evil.example/"

            client.cookies.clear()
            client.cookies.set("acms_token_8123", token)
            assert (await client.get("/")).status_code == 403
    finally:
        await made.stop()
    logged = [vars(record) for record in caplog.records if record.name == "acms"]
    assert len(logged) > 30
    assert token not in str(logged)


def test_a_browser_comes_in_by_the_address_and_by_a_link_of_another_page(tmp_path: Path) -> None:
    token = "the-token-of-this-test-has-43-characters-xx"

    def look() -> None:
        with (
            inspecting("memory://", replace(READ_ONLY, token=token)) as service,
            chromium() as browser,
        ):
            address = f"{service.url}/?token={token}"
            link = tmp_path / "link.html"
            link.write_text(f'<a href="{address}">open</a>')
            for entry in (address, link.as_uri()):
                context = browser.new_context()
                page = context.new_page()
                page.goto(entry)
                if entry != address:
                    page.get_by_text("open").click()
                page.wait_for_url(f"{service.url}/")
                assert page.get_by_role("heading", level=1).inner_text() == "Sessions"
                assert page.evaluate("document.cookie") == ""
                stranger = browser.new_context().new_page()
                refused = stranger.goto(f"{service.url}/")
                assert refused is not None
                assert refused.status == 403
                assert "open the address that the command printed" in stranger.inner_text("body")

    aside(look)
