"""The HTTP service beside bare servers that store nothing, and one that inserts a row: CPU a request, p50 and p99.

    python benchmarks/service.py                     # 3 rounds of 4 seconds at 1, 16 and 64 connections; needs wrk
    python benchmarks/service.py --rounds 1 --seconds 2 --connections 16

Each server runs alone on one core (where there are two), wrk on the other; the servers take turns in every round.
`fastapi noop` checks the same body with pydantic and answers; `fastapi insert` also inserts it into an SQLite file, WAL
and FULL, a commit each. `acms append` is the versioned, hash-chained, durable append of one message with everything
that is read off it; `acms window` reads the newest 2,000 tokens of a log of 1,000 messages. The CPU is the server's own
(user and system) divided by the requests it answered; all run on the event loop of asyncio, with the same parser. Peers
that are not installed are left out and named.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

GOAL = 150.0
"""Microseconds of CPU an append may take beyond the bare FastAPI noop."""

BODY = json.dumps({"messages": [{"role": "user", "content": "word " * 75}]})

FASTAPI = """
import sqlite3, sys
from fastapi import FastAPI
from pydantic import BaseModel

class Message(BaseModel):
    role: str
    content: str

class Body(BaseModel):
    messages: list[Message]

app = FastAPI()
kept = sqlite3.connect(sys.argv[2], isolation_level=None, check_same_thread=False)
kept.execute("PRAGMA journal_mode=WAL")
kept.execute("PRAGMA synchronous=FULL")
kept.execute("CREATE TABLE IF NOT EXISTS m (id INTEGER PRIMARY KEY, role TEXT, content TEXT)")

@app.post("/noop")
async def noop(body: Body):
    return {"stored": len(body.messages)}

@app.post("/insert")
async def insert(body: Body):
    for one in body.messages:
        kept.execute("INSERT INTO m (role, content) VALUES (?, ?)", (one.role, one.content))
    return {"stored": len(body.messages)}

import uvicorn
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False, loop="asyncio")
"""

STARLETTE = """
import sys
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

class Message(BaseModel):
    role: str
    content: str

class Body(BaseModel):
    messages: list[Message]

async def noop(request):
    return JSONResponse({"stored": len(Body.model_validate_json(await request.body()).messages)})

import uvicorn
app = Starlette(routes=[Route("/noop", noop, methods=["POST"])])
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False, loop="asyncio")
"""


class Run(NamedTuple):
    """What one run of wrk measured."""

    rate: float
    cpu: float
    p50: float
    p99: float


class Server:
    """A server process on a port of its own."""

    def __init__(self, *command: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [*pinned(0), *(part.replace("{port}", str(self.port)) for part in command)]
        )
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"{command} does not listen")

    def cpu(self) -> float:
        """Return the seconds of CPU its process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def call(self, path: str, body: str) -> Any:
        """Post JSON and return the answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", body.encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def close(self) -> None:
        """Stop it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def pinned(core: int) -> list[str]:
    """Return what runs a command on one core."""
    return ["taskset", "-c", str(core)] if (os.cpu_count() or 1) > 1 and shutil.which("taskset") else []


def wrk(folder: Path, server: Server, path: str, body: str | None, connections: int, seconds: int) -> Run:
    """Load a server and measure."""
    script = folder / "load.lua"
    lines = ['wrk.headers["Content-Type"] = "application/json"']
    if body is not None:
        lines += ['wrk.method = "POST"', f"wrk.body = {json.dumps(body)}"]
    lines.append(
        "done = function(s, l, r) io.write(string.format('%d %d %d %d %d\\n', s.requests, s.duration,"
        " l:percentile(50), l:percentile(99), s.errors.status + s.errors.read + s.errors.timeout)) end"
    )
    script.write_text("\n".join(lines))
    before = server.cpu()
    ran = subprocess.run(
        [*pinned(1), "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script),
         f"http://127.0.0.1:{server.port}{path}"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    used = server.cpu() - before
    requests, duration, p50, p99, errors = map(
        int, re.findall(r"^\d+ \d+ \d+ \d+ \d+$", ran.stdout, re.M)[0].split()
    )
    if errors:
        raise RuntimeError(f"{path}: {errors} requests failed")
    return Run(requests / (duration / 1e6), 1e6 * used / requests, p50 / 1000, p99 / 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--seconds", type=int, default=4, metavar="S")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64], metavar="N")
    given = parser.parse_args()
    if shutil.which("wrk") is None:
        parser.error("wrk is not installed: apt-get install wrk")
    folder = Path(tempfile.mkdtemp(prefix="acms-http-"))
    acms = Server(
        sys.executable,
        "-m",
        "acms.cli",
        "serve",
        "--port",
        "{port}",
        "--db",
        f"sqlite:///{folder / 'log.db'}",
    )
    servers: list[Server] = [acms]
    loads: dict[str, Callable[[int], Run]] = {}

    def load(name: str, server: Server, path: str, body: str | None) -> None:
        loads[name] = lambda connections: wrk(folder, server, path, body, connections, given.seconds)

    if importlib.util.find_spec("fastapi") is None:
        print("left out, not installed: fastapi")
    else:
        peer = Server(sys.executable, "-c", FASTAPI, "{port}", str(folder / "peer.db"))
        servers.append(peer)
        load("fastapi noop", peer, "/noop", BODY)
        load("fastapi insert", peer, "/insert", BODY)
        bare = Server(sys.executable, "-c", STARLETTE, "{port}")  # it comes with FastAPI
        servers.append(bare)
        load("starlette noop", bare, "/noop", BODY)
    try:
        measure(given, loads, acms, load)
    finally:
        for server in servers:
            server.close()
        shutil.rmtree(folder)


def measure(
    given: argparse.Namespace,
    loads: dict[str, Callable[[int], Run]],
    acms: Server,
    load: Callable[[str, Server, str, str | None], None],
) -> None:
    """Take turns, and print."""
    hot = acms.call("/api/v1/contexts", "{}")["data"]["id"]
    read = acms.call("/api/v1/contexts", "{}")["data"]["id"]
    many = json.dumps({"messages": [{"role": "user", "content": "word " * 60}] * 100})
    for _ in range(10):
        acms.call(f"/api/v1/contexts/{read}/messages", many)
    load("acms append", acms, f"/api/v1/contexts/{hot}/messages", BODY)
    load("acms window", acms, f"/api/v1/contexts/{read}/window?budget=2000", None)
    load("acms health", acms, "/health", None)
    for name in loads:
        loads[name](4)  # warm
    found: dict[tuple[str, int], list[Run]] = {}
    for _ in range(given.rounds):
        for connections in given.connections:
            for name, run in loads.items():
                found.setdefault((name, connections), []).append(run(connections))
    print(f"{'':16} conns   req/s  CPU us/req   p50 ms   p99 ms")
    for (name, connections), runs in found.items():
        rate, cpu, p50, p99 = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{name:16} {connections:5} {rate:7.0f} {cpu:11.0f} {p50:8.2f} {p99:8.2f}")
    for connections in given.connections:
        noop = [run.cpu for run in found.get(("fastapi noop", connections), [])]
        ours = [run.cpu for run in found["acms append", connections]]
        if noop:
            over = statistics.median([b - a for a, b in zip(noop, ours, strict=True)])
            print(f"append at {connections}: fastapi noop + {over:.0f} us of CPU; goal + {GOAL:.0f}")


if __name__ == "__main__":
    main()
