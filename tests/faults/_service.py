"""`acms serve` and `acms worker` as processes, and clients that keep a ledger of the answers they got."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import httpx2
from typer.testing import CliRunner

from acms.cli.commands import app

from ._process import finish_process, start_python


class Service:
    """A service process that may be killed and started again at the same address."""

    def __init__(self, db: str, *options: str) -> None:
        self._command = ("-m", "acms.cli", "serve", "--json", "--db", db, *options)
        self._url = ""
        self.process = self._launch("0")

    def _launch(self, port: str) -> subprocess.Popen[str]:
        return start_python(*self._command, "--port", port)

    @property
    def url(self) -> str:
        """Where it listens; waits until it does."""
        if not self._url:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert line, "the service did not start"
            self._url = json.loads(line)["url"]
        return self._url

    def start(self) -> None:
        """Start it again where it was, and wait until it listens."""
        port = self.url.rpartition(":")[2]
        self._url = ""
        self.process = self._launch(port)
        assert self.url.endswith(f":{port}")

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        assert finish_process(self.process) == -signal.SIGKILL

    def stop(self) -> int:
        """Tell it to stop, wait, and return its exit code."""
        self.process.terminate()
        return finish_process(self.process)

    def client(self, key: str | None = None) -> httpx2.Client:
        """Return a client of it."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx2.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=60, verify=False)


@contextmanager
def running_service(db: str, *options: str) -> Generator[Service]:
    """Run a service until the block ends."""
    one = Service(db, *options)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.process.kill()
            finish_process(one.process)


@contextmanager
def running_worker(*options: str) -> Generator[subprocess.Popen[str]]:
    """Run `acms worker` until the block ends, where it has to leave in order."""
    process = start_python("-m", "acms.cli", "worker", "--json", *options)
    try:
        yield process
        process.terminate()
        assert finish_process(process) == 0
    finally:
        if process.poll() is None:
            process.kill()
            finish_process(process)


def run_acms(*arguments: str) -> Any:
    """Run a command that must succeed, and return its output, parsed as JSON."""
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


class Crowd:
    """Clients in threads of their own, each appending to a context of its own, one message after another.

    A message that got no answer is sent again under its key, once there is a service again, until it gets one.
    """

    def __init__(self, where: Service, contexts: list[str], *, again: bool = True) -> None:
        self._where = where
        self._again = again
        self._count = threading.Condition()
        self._up = threading.Event()
        self._up.set()
        self._ends = threading.Event()
        #: By context: what was acknowledged, in order, as content and id.
        self.ledger: dict[str, list[tuple[str, str]]] = {context: [] for context in contexts}
        self.acknowledged = 0
        #: Sendings that got no answer; answers that said it had been there before.
        self.unknown = 0
        self.repeated = 0
        #: Answers that were neither whole nor absent, and errors of the clients themselves.
        self.broken: list[str] = []
        self._threads = [
            threading.Thread(target=self._talk, args=(context,), daemon=True) for context in contexts
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, more: int) -> None:
        """Wait until so many more messages were acknowledged."""
        with self._count:
            goal = self.acknowledged + more
            assert self._count.wait_for(lambda: self.acknowledged >= goal or self.broken, 60)
        assert not self.broken, self.broken

    def pause(self) -> None:
        """Let those that get no answer wait."""
        self._up.clear()

    def resume(self) -> None:
        """Let them go on."""
        self._up.set()

    def end(self) -> None:
        """Let everybody finish the message at hand, and wait for them."""
        self._ends.set()
        self._up.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        assert not self.broken, self.broken

    def _talk(self, context: str) -> None:
        try:
            with self._where.client() as client:
                number = 0
                while not self._ends.is_set():
                    content = f"{context} says {number}"
                    if not self._say(client, context, content):
                        return
                    number += 1
        except Exception as error:
            with self._count:
                self.broken.append(f"{type(error).__name__}: {error}")
                self._count.notify_all()

    def _say(self, client: httpx2.Client, context: str, content: str) -> bool:
        while True:
            try:
                reply = client.post(
                    f"/contexts/{context}/messages",
                    json={"messages": [{"role": "user", "content": content}]},
                    headers={"Idempotency-Key": content},
                )
            except httpx2.TransportError as error:
                # Only a service that is killed may leave in the middle of an answer.
                if not self._again and "complete message body" in str(error):
                    raise
                with self._count:
                    self.unknown += 1
                if not self._again:
                    return False
                self._up.wait(60)
                continue
            assert reply.status_code == 201, reply.text
            (stored,) = reply.json()["data"]
            with self._count:
                self.ledger[context].append((content, stored["id"]))
                self.repeated += stored["repeated"]
                self.acknowledged += 1
                self._count.notify_all()
            return True


def create_contexts(where: Service, count: int) -> list[str]:
    """Create contexts and return their ids."""
    with where.client() as client:
        made = [client.post("/contexts", json={}) for _ in range(count)]
    assert {reply.status_code for reply in made} == {201}
    return [reply.json()["data"]["id"] for reply in made]


def read_messages(client: httpx2.Client, context: str) -> list[dict[str, Any]]:
    """Return all messages of a context."""
    found: list[dict[str, Any]] = []
    cursor: int | None = 0
    while cursor is not None:
        reply = client.get(f"/contexts/{context}/messages", params={"limit": 1000, "cursor": cursor})
        assert reply.status_code == 200, reply.text
        found += reply.json()["data"]
        cursor = reply.json()["nextCursor"]
    return found
