"""`acms serve` for as long as you like under mixed load and faults: does it keep what it said, and does it stay small?

    python benchmarks/soak.py --minutes 10
    python benchmarks/soak.py --minutes 60 --db postgresql://acms@db1/acms      # an empty database

Four clients append to new contexts, two read old ones at random, so that the service has to let go of sessions; one
asks for compactions, which an `acms worker` does that is killed every ten seconds. Others misbehave: they leave in the
middle of a request or before its answer, send bodies byte by byte, bodies that are too large, and garbage. Every second
the service's memory, open files and connections are read. In the end every acknowledged message must be there once, in
order, `acms verify` must find nothing, and the medians of the last quarter must not be above those of the second.
Leaves with 1 when one of this does not hold.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2
import psutil

GROWTH = 1.05
"""How much of the second quarter's memory the last quarter's may be."""
MESSAGES = 12
"""In a context of the load."""
KILL_SECONDS = 10.0
WORDS = "orders table index region latency budget invoice customer deploy rollback cache token queue shard".split()


class Sample(NamedTuple):
    """What the service held at one moment."""

    seconds: float
    rss: int
    files: int
    connections: int
    threads: int


class Load:
    """What is done to the service, and what came of it."""

    def __init__(self, url: str, seconds: float) -> None:
        self.url = url
        self.address = (urlsplit(url).hostname or "", urlsplit(url).port or 0)
        self.until = time.monotonic() + seconds
        self.lock = threading.Lock()
        #: By context: the contents that were acknowledged, in order.
        self.ledger: dict[str, list[str]] = {}
        self.contexts: list[str] = []
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    @property
    def on(self) -> bool:
        """Whether to go on."""
        return time.monotonic() < self.until and not self.wrong

    def count(self, what: str) -> None:
        """Count something."""
        with self.lock:
            self.counts[what] += 1

    def client(self) -> httpx2.Client:
        """Return a client."""
        return httpx2.Client(base_url=f"{self.url}/api/v1", timeout=60, verify=False)

    def asked(self, client: httpx2.Client, method: str, path: str, *expected: int, **given: Any) -> Any:
        """Send a request until it is answered, and return the answer; another status than expected ends the run."""
        while True:
            try:
                reply = client.request(method, path, **given)
            except httpx2.TransportError:
                self.count("sent again")
                continue
            self.count(f"{method} {reply.status_code}")
            if reply.status_code not in expected:
                raise RuntimeError(f"{method} {path}: {reply.status_code} {reply.text[:300]}")
            return reply.json()["data"]

    def any(self, rng: random.Random) -> str | None:
        """Return some context."""
        with self.lock:
            return rng.choice(self.contexts) if self.contexts else None

    # ── those who behave ────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, rng: random.Random) -> None:
        """Append to one new context after the other."""
        with self.client() as client:
            while self.on:
                key = f"{rng.getrandbits(64):x}"
                context = self.asked(client, "POST", "/contexts", 200, 201, json={"key": key})["id"]
                said: list[str] = []
                with self.lock:
                    self.ledger[context] = said
                    self.contexts.append(context)
                for number in range(MESSAGES):
                    content = f"{number} {' '.join(rng.choices(WORDS, k=rng.randrange(5, 120)))}"
                    body = {"messages": [{"role": "user", "content": content}]}
                    path, headers = f"/contexts/{context}/messages", {"Idempotency-Key": f"{key}-{number}"}
                    self.asked(client, "POST", path, 201, json=body, headers=headers)
                    said.append(content)

    def read(self, rng: random.Random) -> None:
        """Read contexts at random."""
        with self.client() as client:
            while self.on:
                context = self.any(rng)
                if context is None:
                    time.sleep(0.1)
                    continue
                path = f"/contexts/{context}"
                match rng.randrange(4):
                    case 0:
                        self.asked(client, "GET", f"{path}/window", 200, params={"budget": 500})
                    case 1:
                        self.asked(client, "GET", f"{path}/history", 200)
                    case 2:
                        body = {"query": rng.choice(WORDS), "budget": 500}
                        self.asked(client, "POST", f"{path}/chat", 200, json=body)
                    case _:
                        self.asked(client, "GET", f"{path}/stats", 200)

    def compact(self, rng: random.Random) -> None:
        """Ask for compactions; a worker does them."""
        with self.client() as client:
            while self.on:
                context = self.any(rng)
                if context is not None:
                    path = f"/contexts/{context}/compact"
                    self.asked(client, "POST", path, 200, 202, json={"preserveRecentCount": 2})
                time.sleep(0.2)

    # ── those who do not ────────────────────────────────────────────────────────────────────────────────────────────

    def leave(self, rng: random.Random) -> None:
        """Go away in the middle of a request, or before its answer."""
        while self.on:
            whole = self._request(rng, b'{"query": "orders", "budget": 500}', "chat")
            with self._connection() as one:
                one.sendall(whole[: rng.choice((10, len(whole) - 5, len(whole)))])
            self.count("left")
            time.sleep(0.05)

    def dawdle(self, rng: random.Random) -> None:
        """Send a body in small pieces."""
        while self.on:
            whole = self._request(rng, b'{"query": "orders", "budget": 500}', "chat")
            end = whole.index(b"\r\n\r\n") + 4
            with self._connection() as one:
                one.sendall(whole[:end])
                for at in range(end, len(whole), 3):
                    time.sleep(0.2)
                    one.sendall(whole[at : at + 3])
                self._expect(one, 200, 404)
            self.count("dawdled")

    def exceed(self, rng: random.Random) -> None:
        """Send bodies that are too large."""
        while self.on:
            whole = self._request(rng, b'{"messages": "' + b"x" * 1_100_000 + b'"}', "messages")
            try:
                with self._connection() as one:
                    one.sendall(whole)
                    self._expect(one, 413)
                self.count("exceeded, told so")
            except ConnectionError:  # it need not read what it refuses
                self.count("exceeded, cut off")
            time.sleep(0.5)

    def babble(self, rng: random.Random) -> None:
        """Send what is no request, or no JSON."""
        while self.on:
            try:
                with self._connection() as one:
                    if rng.randrange(2):
                        one.sendall(rng.randbytes(rng.randrange(1, 5000)) + b"\r\n\r\n")
                    else:
                        one.sendall(self._request(rng, rng.randbytes(50), "messages"))
                    self._expect(one, 400)
            except ConnectionError:
                self.count("babbled, cut off")
            self.count("babbled")
            time.sleep(0.1)

    def _connection(self) -> socket.socket:
        return socket.create_connection(self.address, 60)

    def _request(self, rng: random.Random, body: bytes, what: str) -> bytes:
        head = (
            f"POST /api/v1/contexts/{self.any(rng) or 'c_0000000000000000'}/{what} HTTP/1.1\r\n"
            f"Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode() + body

    def _expect(self, one: socket.socket, *statuses: int) -> None:
        """Read an answer; one that is there must begin with one of these."""
        answer = one.recv(65536)
        if answer and not any(answer.startswith(b"HTTP/1.1 %d " % status) for status in statuses):
            raise RuntimeError(f"{statuses} expected: {answer[:300]!r}")

    def run(self, work: Callable[[random.Random], None], seed: int) -> threading.Thread:
        """Do something in a thread until the time is over; an error ends the run."""

        def worked() -> None:
            try:
                work(random.Random(seed))
            except Exception as error:
                self.wrong.append(f"{work.__name__}: {type(error).__name__}: {error}")

        thread = threading.Thread(target=worked)
        thread.start()
        return thread


def command(*arguments: str, **given: Any) -> subprocess.Popen[str]:
    """Start `acms`."""
    return subprocess.Popen([sys.executable, "-m", "acms.cli", *arguments], text=True, **given)


def sample(process: psutil.Process, began: float) -> Sample:
    """Look at the service."""
    with process.oneshot():
        return Sample(
            time.monotonic() - began,
            process.memory_info().rss,
            process.num_fds(),
            len(process.net_connections()),
            process.num_threads(),
        )


def missing(load: Load) -> list[str]:
    """Return the contexts whose log is not what was acknowledged."""
    wrong: list[str] = []
    with load.client() as client:
        for context, said in load.ledger.items():
            path = f"/contexts/{context}/messages"
            listed = load.asked(client, "GET", path, 200, params={"limit": 1000})
            if [one["content"] for one in listed] != said:
                wrong.append(context)
    return wrong


def flat(samples: list[Sample]) -> list[str]:
    """Compare the second quarter of the run with its last one, and return what grew."""
    quarter = len(samples) // 4
    second, last = samples[quarter : 2 * quarter], samples[3 * quarter :]
    grown: list[str] = []
    for name in ("rss", "files", "connections", "threads"):
        before, after = (statistics.median(getattr(one, name) for one in part) for part in (second, last))
        unit, by = (" MB", 1e6) if name == "rss" else ("", 1)
        print(f"  {name:12} {before / by:8.1f}{unit} -> {after / by:8.1f}{unit}")
        if after > before * GROWTH + (0 if name == "rss" else 5):
            grown.append(name)
    return grown


def main() -> int:
    """Run it."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--minutes", type=float, default=10.0)
    given.add_argument("--db", help="an empty store; default: an SQLite file that is removed")
    given.add_argument("--samples", type=Path, help="a file for what was sampled, as JSON")
    asked = given.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return soak(asked.db or f"sqlite:///{folder}/log.db", asked.minutes * 60, asked.samples)


def soak(db: str, seconds: float, written: Path | None) -> int:
    """Load a service for some time, and return the exit code."""
    service = command("serve", "--json", "--no-work", "--port", "0", "--db", db, stdout=subprocess.PIPE)
    workers: list[subprocess.Popen[str]] = []
    samples: list[Sample] = []
    kills = 0
    try:
        assert service.stdout is not None
        load = Load(json.loads(service.stdout.readline())["url"], seconds)
        began, process = time.monotonic(), psutil.Process(service.pid)
        works = [load.write] * 4 + [load.read] * 2 + [load.compact, load.leave, load.dawdle]
        threads = [load.run(work, seed) for seed, work in enumerate([*works, load.exceed, load.babble])]
        killed = began
        while load.on:
            if not workers or time.monotonic() - killed > KILL_SECONDS:
                for worker in workers:
                    worker.kill()
                    worker.wait()
                    kills += 1
                workers = [command("worker", "--db", f"{db}?tenant=default", stdout=subprocess.DEVNULL)]
                killed = time.monotonic()
            samples.append(sample(process, began))
            time.sleep(1)
        for thread in threads:
            thread.join()
        for worker in workers:
            worker.terminate()
            worker.wait()
        wrong = [*load.wrong, *(f"{context} is not what was acknowledged" for context in missing(load))]
        service.terminate()
        code = service.wait(30)
    finally:
        for left in (service, *workers):
            if left.poll() is None:
                left.kill()
                left.wait()
    if code:
        wrong.append(f"the service left with {code}")
    if command("verify", "--db", f"{db}?tenant=default", stdout=subprocess.DEVNULL).wait():
        wrong.append("acms verify found something")
    if written is not None:
        written.write_text(json.dumps([one._asdict() for one in samples]))
    count = sum(map(len, load.ledger.values()))
    print(
        f"{seconds / 60:g} minutes, {len(load.ledger)} contexts, {count} messages kept, {kills} kills of workers"
    )
    print("  " + ", ".join(f"{what}: {number}" for what, number in sorted(load.counts.items())))
    wrong += [f"{name} grew" for name in flat(samples)]
    print("\n".join(wrong) or "nothing was lost, nothing grew")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
