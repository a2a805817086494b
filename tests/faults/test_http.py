"""The service as processes: killed and stopped under load, and several of them on one store.

pytest -m faults tests/faults/test_http.py      the long run: 50 kills
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from ._service import (
    Crowd,
    Service,
    create_contexts,
    read_messages,
    run_acms,
    running_service,
    running_worker,
)


def kill_loaded_service(path: Path, kills: int) -> None:
    """Kill a service under load again and again; each acknowledged message is stored, and everything once."""
    db, rng = f"sqlite:///{path}", random.Random(kills)
    with running_service(db) as one:
        crowd = Crowd(one, create_contexts(one, 6))
        for _ in range(kills):
            crowd.wait(rng.randrange(20, 120))
            crowd.pause()
            one.kill()
            one.start()
            crowd.resume()
        crowd.wait(20)
        crowd.end()
        with one.client() as client:
            for context, told in crowd.ledger.items():
                found = read_messages(client, context)
                assert [(said["content"], said["id"]) for said in found] == told
                assert [said["version"] for said in found] == list(range(1, len(told) + 1))
        assert one.stop() == 0
    assert run_acms("verify", "--db", db)
    print(
        f"{kills} kills, {crowd.acknowledged} messages acknowledged: each is there once; "
        f"{crowd.unknown} sendings got no answer, {crowd.repeated} of these had been stored"
    )
    assert crowd.unknown >= kills, "nobody was waiting when it was killed"


@pytest.mark.faults
def test_fifty_kills_under_load_lose_and_double_nothing(tmp_path: Path) -> None:
    kill_loaded_service(tmp_path / "log.db", 50)


def send_malformed(one: Service, sent: bytes) -> None:
    """Send bytes that are not a request."""
    address = urlsplit(one.url)
    with socket.create_connection((address.hostname, address.port), 30) as connection:
        connection.sendall(sent)
        assert connection.recv(1000).startswith(b"HTTP/1.1 400 ")


def test_a_service_told_to_stop_under_load_answers_all_that_it_does(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    db = f"sqlite:///{tmp_path / 'log.db'}"
    with running_service(db) as one:
        crowd = Crowd(one, create_contexts(one, 4), again=False)
        crowd.wait(20)
        send_malformed(one, b"\x16\x03\x01 no request\r\n\r\n")
        with one.client() as client:
            for context in crowd.ledger:
                reply = client.post(f"/contexts/{context}/compact", json={"preserveRecentCount": 2})
                assert reply.status_code == 202
        assert one.stop() == 0
        crowd.end()
    # Nothing was done without an answer: what the clients know is all there is.
    with running_service(db, "--no-work") as one, one.client() as client:
        for context, told in crowd.ledger.items():
            assert [(said["content"], said["id"]) for said in read_messages(client, context)] == told
        assert client.get("/jobs", params={"state": "running"}).json()["data"] == []
        assert one.stop() == 0
    assert capfd.readouterr().err == "", "strangers and signals leave no lines"


# ── several processes on one PostgreSQL ─────────────────────────────────────────────────────────────────────────────

PLAN = [
    f"Point {number} of the plan is that the orders service gets a table {number}." for number in range(12)
]


def create_key(db: str, tenant: str) -> tuple[str, str]:
    """Make a key; return its id and what its owner sends."""
    made = run_acms("keys", "create", "--tenant", tenant, "--scopes", "all", "--db", db)
    return made["key"]["id"], made["secret"]


def poll_until(look: Callable[[], Any], *, within: float = 60.0) -> Any:
    """Look until there is something, and return it: not so often that the service's own limit on a key answers."""
    end = time.monotonic() + within
    while not (found := look()):
        assert time.monotonic() < end, f"not within {within} seconds"
        time.sleep(0.02)
    return found


def post_messages(client: httpx2.Client, context: str, *contents: str, **headers: str) -> httpx2.Response:
    """Append messages."""
    body = {"messages": [{"role": "user", "content": content} for content in contents]}
    return client.post(f"/contexts/{context}/messages", json=body, headers=headers)


TURNS = 10
"""How often each of six threads says something."""


def append_over_replicas(replicas: tuple[Service, Service], secret: str, context: str) -> None:
    """Append to one log from six threads, each over both replicas in turn: every version once, without a gap."""
    answered: list[tuple[int, str]] = []

    def talk(name: int) -> None:
        with replicas[0].client(secret) as one, replicas[1].client(secret) as other:
            for turn in range(TURNS):
                content = f"{name} says {turn}"
                reply = post_messages((one, other)[(name + turn) % 2], context, content)
                assert reply.status_code == 201, reply.text
                answered.append((reply.json()["data"][0]["version"], content))

    threads = [threading.Thread(target=talk, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(version for version, _ in answered) == list(range(1, 6 * TURNS + 1))
    for replica in replicas:
        with replica.client(secret) as client:
            found = read_messages(client, context)
        assert [(said["version"], said["content"]) for said in found] == sorted(answered)


def race_appends(clients: tuple[httpx2.Client, httpx2.Client], context: str) -> None:
    """Append on both replicas at once with the same ETag, again and again: one is first, the other is told."""
    for turn in range(5):
        tag = clients[turn % 2].get(f"/contexts/{context}").headers["ETag"]
        start, replies = threading.Barrier(2), []

        def append(
            client: httpx2.Client, tag: str = tag, start: threading.Barrier = start, replies: Any = replies
        ) -> None:
            start.wait(60)
            replies.append(post_messages(client, context, "me first", **{"If-Match": tag}).status_code)

        threads = [threading.Thread(target=append, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(replies) == [201, 412]


def compact_over_replicas(clients: tuple[httpx2.Client, httpx2.Client]) -> None:
    """Ask one replica for a compaction: a worker does it, the other shows it and takes it back."""
    one, other = clients
    context = one.post("/contexts", json={}).json()["data"]["id"]
    assert post_messages(one, context, *PLAN).status_code == 201
    reply = one.post(f"/contexts/{context}/compact", json={"preserveRecentCount": 2})
    assert reply.status_code == 202
    job = reply.headers["Location"].removeprefix("/api/v1")
    poll_until(lambda: other.get(job).json()["data"]["state"] == "done")
    (made,) = other.get(f"/contexts/{context}/compactions").json()["data"]
    assert (made["version"], made["removed"], made["inForce"]) == (13, 10, True)
    assert len(other.get(f"/contexts/{context}/at/13").json()["data"]) == 3
    assert other.post(f"/contexts/{context}/compactions/13/undo").status_code == 200
    assert one.get(f"/contexts/{context}/compactions").json()["data"][0]["inForce"] is False
    listed = one.get(f"/contexts/{context}/at/14").json()["data"]
    assert [said["content"] for said in listed] == PLAN


@pytest.mark.faults
def test_two_replicas_and_two_workers_on_one_server_are_one_service(postgres_url: str) -> None:
    id, secret = create_key(postgres_url, "acme")
    _, foreign = create_key(postgres_url, "globex")
    with ExitStack() as stack:
        options = ("--no-work", "--auth", "required")
        replicas = [stack.enter_context(running_service(postgres_url, *options)) for _ in range(2)]
        for _ in range(2):
            stack.enter_context(running_worker("--all-tenants", "--db", postgres_url))
        one, other = replicas
        first = stack.enter_context(one.client(secret)), stack.enter_context(other.client(secret))
        second = stack.enter_context(one.client(foreign)), stack.enter_context(other.client(foreign))
        context = first[0].post("/contexts", json={}).json()["data"]["id"]
        append_over_replicas((one, other), secret, context)
        race_appends(first, context)
        for clients in (first, second):  # the workers serve every tenant
            compact_over_replicas(clients)
        assert [client.get(f"/contexts/{context}").status_code for client in second] == [404, 404]
        run_acms("keys", "revoke", id, "--db", postgres_url)
        for client in first:
            poll_until(lambda client=client: client.get(f"/contexts/{context}").status_code == 401)
        assert [client.get("/contexts").status_code for client in second] == [200, 200]
        assert [one.stop(), other.stop()] == [0, 0]
