"""Who may look: keys, cookies, pages of others, and a file that is only read."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.server.serving import Service


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
def test_a_file_is_looked_at_and_never_written(told: Path) -> None:
    before = told.read_bytes()
    command = [sys.executable, "-m", "acms.cli", "inspect", str(told), "--no-browser", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout
        url = json.loads(running.stdout.readline())["url"]
        listed = httpx2.get(f"{url}api/v1/contexts", verify=False).json()["data"]
        context = next(one["id"] for one in listed if one["key"] == "demo")
        for view in ("", "/sent", "/jobs", "/facts"):
            page = httpx2.get(f"{url}s/{context}{view}", verify=False)
            assert page.status_code == 200
            assert 'method="post"' not in page.text.replace(f'method="post" action="/s/{context}/ask"', "")
        tried = httpx2.post(
            f"{url}s/{context}/do/undo",
            content="version=1",
            headers={"origin": url.rstrip("/")},
            verify=False,
        )
        assert tried.status_code == 404
        running.send_signal(signal.SIGINT)
        running.wait(30)
    assert told.read_bytes() == before
