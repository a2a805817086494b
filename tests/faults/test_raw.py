"""Broken requests over raw connections among sound ones: nothing falls, nothing grows, nothing is lost.

pytest -m faults tests/faults/test_raw.py      the long run: 10,000 requests
"""

from __future__ import annotations

import json
import random
import socket
from collections import Counter
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from ._service import create_contexts, read_messages, run_acms, running_service

WARM = 100
"""Requests before the memory is read for the first time."""
GROWTH = 1.15
"""How much of that the service may hold in the end."""
ODD = (
    b"\r\n",
    b"\r\n\r\n",
    b"\x00",
    b"\xff\xfe",
    b"%00",
    b"\xed\xa0\x80",
    b"Content-Length: 1\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked, identity\r\n",
    b"Expect: 100-continue\r\n",
    b"Upgrade: websocket\r\n",
    b"Host: evil.example\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Range: bytes=0-\r\n",
    b"ffffffffffffffff\r\n",
    b"-1\r\n",
    b"0\r\n\r\n",
    b'{"a":' * 200,
    b"9" * 400,
    b"A" * 5000,
)
"""Pieces that are put anywhere."""


def valid_requests(context: str) -> list[bytes]:
    """Return requests that are answered as they should be, before anything is done to them."""
    body = json.dumps({"messages": [{"role": "user", "content": "the orders service gets a table"}]}).encode()
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(body[n : n + 20]), body[n : n + 20]) for n in range(0, len(body), 20)
    )
    head = b"Host: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return [
        b"GET /api/v1/contexts?limit=3 HTTP/1.1\r\n%b\r\n" % head,
        b"GET /api/v1/contexts/%b/window?budget=500 HTTP/1.1\r\n%b\r\n" % (context.encode(), head),
        b"GET /health HTTP/1.1\r\n%b\r\n" % head,
        b"POST /api/v1/contexts HTTP/1.1\r\n%bContent-Length: 2\r\n\r\n{}" % head,
        b"POST /api/v1/contexts/%b/messages HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b"
        % (context.encode(), head, len(body), body),
        b"POST /api/v1/contexts/%b/messages HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n%b0\r\n\r\n"
        % (context.encode(), head, chunks),
    ]


def break_request(rng: random.Random, request: bytes) -> bytes:
    """Do up to four things to a request: change, cut out, put in, repeat."""
    found = bytearray(request)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(5):
            case 0:
                found[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del found[at : at + rng.randint(1, 30)]
            case 2:
                found[at:at] = rng.choice(ODD)
            case 3:
                found[at:at] = found[at : at + rng.randint(1, 60)]
            case _:
                line = found.find(b"\r\n", at) + 2  # between two lines, where header fields are
                found[line:line] = rng.choice(ODD)
    return bytes(found)


def statuses_of_answers(url: str, said: bytes, seconds: float) -> list[bytes]:
    """Send it over a connection of its own, and return the status of each answer that comes before so much silence."""
    address = urlsplit(url)
    heard = b""
    with suppress(OSError), socket.create_connection((address.hostname, address.port), 30) as connection:
        connection.sendall(said)
        connection.settimeout(seconds)
        while piece := connection.recv(65_536):
            heard += piece
    return [line.split()[1] for line in heard.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]


def attack_service(path: Path, count: int) -> None:
    """Send broken requests, and a message after each ten of them; then look at everything that was promised."""
    db, rng, told = f"sqlite:///{path}", random.Random(count), Counter[bytes]()
    with running_service(db, "--auth", "off") as one, one.client() as client:
        target, *others = create_contexts(one, 4)
        requests, memory = valid_requests(target), psutil.Process(one.process.pid).memory_info
        assert all(statuses_of_answers(one.url, request, 30) in ([b"200"], [b"201"]) for request in requests)
        held = memory().rss
        kept: dict[str, list[tuple[str, str]]] = {context: [] for context in others}
        for number in range(count):
            if number == WARM:
                held = memory().rss
            if number % 10 == 0:
                context, content = rng.choice(others), f"message {number}"
                body = {"messages": [{"role": "user", "content": content}]}
                reply = client.post(f"/contexts/{context}/messages", json=body)
                kept[context].append((content, reply.json()["data"][0]["id"]))
            said = break_request(rng, rng.choice(requests))
            told.update(statuses_of_answers(one.url, said, 0 if rng.random() < 0.1 else 0.1))
        assert not [status for status in told if status >= b"500"], told
        assert told.total() > count / 2
        assert memory().rss < held * GROWTH, (held, memory().rss)
        for context, expected in kept.items():
            assert [(found["content"], found["id"]) for found in read_messages(client, context)] == expected
        assert one.stop() == 0
    assert run_acms("verify", "--db", db)
    print(f"{count} broken requests ({dict(told)}), {count // 10} messages beside them: each is there once")


def test_broken_requests_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    attack_service(tmp_path / "log.db", 200)


@pytest.mark.faults
def test_ten_thousand_broken_requests_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    attack_service(tmp_path / "log.db", 10_000)
