"""Who may look: keys, cookies, pages of others, and a file that is only read."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

from acms.cli.commands import app as commands
from acms.inspector import mounted
from acms.server import App, ServerConfig, create_app
from tests.inspector.conftest import inspecting
from tests.server.serving import OPEN, Service, visited


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

    async def look(client: httpx2.AsyncClient, _: App) -> None:
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
    assert done.stdout == f"looking at sqlite:///{told}?mode=ro on {url} (Ctrl-C ends it)\n"
    named = ("inspect", "--db", f"sqlite:///{told}?mode=ro", "--no-browser", "--json")
    assert json.loads(visited(monkeypatch, look, *named).stdout)["url"] != url
    assert opened == [url]
    assert told.read_bytes() == before


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
    made = mounted(create_app("memory://", ServerConfig(auth="required")))
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
