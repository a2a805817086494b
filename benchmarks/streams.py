"""How long another tenant's GET takes while one key's event streams are stalled, or opened and closed in a loop.

    python benchmarks/streams.py                # 64 stalled streams over 60 entries of 249 KB; 8 streams in a loop
    python benchmarks/streams.py --seconds 20

The service runs in a process of its own over an SQLite file, the clients in this one. The first line is the same GET
while nothing else is asked for: what is above it is the streams' cost.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

GOAL = 50.0
"""Milliseconds that 95 of 100 GETs of another tenant may take."""
ENTRIES, CHARACTERS = 60, 249_000
STALLED, LOOPED = 64, 8


class Service:
    """A service in a process of its own."""

    def __init__(self, db: str) -> None:
        self.db = db
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port: int = found.getsockname()[1]

    def key(self, tenant: str) -> str:
        """Make a key and return its secret."""
        words = ["keys", "create", "--db", self.db, "--json", "--tenant", tenant, "--name", "benchmark"]
        made = subprocess.run([sys.executable, "-m", "acms.cli", *words], capture_output=True, check=True)
        return str(json.loads(made.stdout)["secret"])

    @contextmanager
    def run(self) -> Generator[None]:
        """Serve until the block ends."""
        words = [sys.executable, "-m", "acms.cli", "serve", "--db", self.db, "--port", str(self.port)]
        process = subprocess.Popen(
            [*words, "--auth", "required"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", self.port), 1).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait()

    def ask(self, key: str, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return the answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        url = f"http://127.0.0.1:{self.port}/api/v1{path}"
        with urllib.request.urlopen(
            urllib.request.Request(url, data, headers, method=method), timeout=60
        ) as reply:
            return json.load(reply)

    def talk(self, key: str, *texts: str) -> str:
        """Create a context with messages and return its id."""
        context = str(self.ask(key, "POST", "/contexts", {})["data"]["id"])
        for text in texts:
            said = {"messages": [{"role": "user", "content": text}]}
            self.ask(key, "POST", f"/contexts/{context}/messages", said)
        return context

    def open_streams(self, key: str, context: str, count: int) -> list[socket.socket]:
        """Open streams of which nothing is read."""
        opened: list[socket.socket] = []
        for _ in range(count):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", self.port))
            head = f"GET /api/v1/contexts/{context}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            one.sendall(f"{head}Authorization: Bearer {key}\r\n\r\n".encode())
            opened.append(one)
        return opened


def measure(name: str, service: Service, key: str, context: str, seconds: float) -> None:
    """Ask for a short log again and again, and print how long that took."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        service.ask(key, "GET", f"/contexts/{context}/messages")
        times.append(1000 * (time.perf_counter() - began))
        time.sleep(0.02)
    p95 = statistics.quantiles(times, n=20)[-1]
    p50 = statistics.median(times)
    print(f"{name:28} n {len(times):4}  p50 {p50:7.1f}  p95 {p95:7.1f}  max {max(times):7.1f} ms", flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    seconds: float = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        service = Service(f"sqlite:///{folder}/log.db")
        reader, other = service.key("acme"), service.key("beta")
        with service.run():
            context = service.talk(reader, *["xy " * (CHARACTERS // 3)] * ENTRIES)
            own = service.talk(other, "hi")
            measure("nothing else", service, other, own, seconds)
            opened = service.open_streams(reader, context, STALLED)
            measure(f"{STALLED} stalled streams", service, other, own, seconds)
            for one in opened:
                one.close()
            time.sleep(2)
            ends = threading.Event()

            def loop() -> None:
                while not ends.is_set():
                    opened = service.open_streams(reader, context, LOOPED)
                    time.sleep(0.05)
                    for one in opened:
                        one.close()

            looping = threading.Thread(target=loop)
            looping.start()
            measure(f"{LOOPED} streams in a loop", service, other, own, seconds)
            ends.set()
            looping.join()
    print(f"goal: p95 of the last two at most {GOAL:.0f} ms")


if __name__ == "__main__":
    main()
