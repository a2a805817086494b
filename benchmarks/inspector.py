"""How fast the inspector's pages are, and how long they hold the service's event loop.

    python benchmarks/inspector.py                   # 10,000 messages; a log of 100,000 is read from end to end
    python -m benchmarks.inspector --browser         # also the first paint, in the Chromium of the tests

A log of random words with twenty renders of prompts of 8,000 tokens; the service runs in a thread with a loop of its
own, who asks in another process. Of each view the time until the whole page is there, warm: median and slowest of
`--times`. The loop is asked every millisecond whether it is late, and how much this process has worked meanwhile: on
a machine with other work that is the figure that says something.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from acms import ACMS, ACMSConfig, Prompt, RenderLogConfig
from acms.codecs import OpenAIChat
from acms.inspector import mounted
from acms.runtime.garbage import collecting
from acms.server import ServerConfig, create_app

VIEWS = ("", "/sent", "/diff", "/facts", "/jobs", "/cost", "/forks")
PAINTED = "performance.getEntriesByName('first-contentful-paint').map(one => one.startTime)"
CONFIG = ACMSConfig(renders=RenderLogConfig(enabled=True))


async def fill(url: str, name: str, messages: int, renders: int) -> None:
    """Write a log and render prompts of it."""
    chance = random.Random(17)
    words = [f"word{number}" for number in range(4000)]
    async with ACMS(name, url, None, config=CONFIG) as session:
        for start in range(0, messages, 500):
            await session.ingest_many([
                {"role": "user" if at % 2 else "assistant", "content": " ".join(chance.choices(words, k=25))}
                for at in range(start, min(messages, start + 500))
            ])  # fmt: skip
        for _ in range(renders):
            query = " ".join(chance.choices(words, k=4))
            prompt = Prompt(OpenAIChat("gpt-5")).system("You help.").history(session)
            await prompt.recall(session, query).user(query).render(budget=8000)


class Server:
    """The service with its pages, on a loop in a thread."""

    def __init__(self, url: str) -> None:
        app = mounted(create_app(url, ServerConfig(auth="off"), engine=CONFIG, embedder=None))
        self._app = app
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="on")
        self._server = uvicorn.Server(config)
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.late: list[float] = []
        self.worked: list[float] = []
        self._watching = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        watch = asyncio.create_task(self._watch())
        async with collecting(self._app.quiet):  # as `acms serve` does
            await self._server.serve(sockets=[self._socket])
        watch.cancel()

    async def _watch(self) -> None:
        while True:
            before, worked = time.perf_counter(), time.process_time()
            await asyncio.sleep(0.001)
            if self._watching:
                self.late.append(1000 * (time.perf_counter() - before) - 1)
                self.worked.append(1000 * (time.process_time() - worked))

    @contextmanager
    def watched(self, what: str) -> Generator[None]:
        """Note inside the block how late the loop is, and print it."""
        self.late.clear()
        self.worked.clear()
        self._watching = True
        yield
        self._watching = False
        (most, nearly), (worked, _) = _most(self.late), _most(self.worked)
        print(
            f"{what}: the loop was late by {most:.1f} ms at most, 99 % below {nearly:.1f} ms; "
            f"at most {worked:.1f} ms of work of this process"
        )

    def __enter__(self) -> Server:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.02)
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._thread.join()


def context(client: httpx2.Client, name: str) -> str:
    return str(
        client.get("/api/v1/contexts", params={"key": name, "namespace": "default"}).json()["data"][0]["id"]
    )


def views(url: str, session: str, times: int) -> None:
    """Ask for every view; run in a process of its own."""
    with httpx2.Client(base_url=url, timeout=60, verify=False) as client:
        form = {"query": "word17 word99 word1234", "budget": "4000"}
        for view in (*VIEWS, "/ask"):
            took: list[float] = []
            for _ in range(times + 2):
                began = time.perf_counter()
                path = f"/s/{session}{view}"
                answer = (
                    client.post(path, data=form, headers={"origin": url})
                    if view == "/ask"
                    else client.get(path)
                )
                assert answer.status_code == 200, answer.text
                took.append(1000 * (time.perf_counter() - began))
            warm, size, name = took[2:], len(answer.content), view or "/timeline"
            print(f"{name:10} {statistics.median(warm):6.1f} ms, slowest {max(warm):6.1f}, {size:,} bytes")


def _most(found: list[float]) -> tuple[float, float]:
    ordered = sorted(found)
    return ordered[-1], ordered[int(0.99 * len(ordered))]


def read(url: str, session: str, head: int, steps: int, begun: Event) -> None:
    """Read a log in stretches from its end to its beginning; run in a process of its own."""
    with httpx2.Client(base_url=url, timeout=60, verify=False) as client:
        for step in [0, 1, 2, *range(steps)]:
            before = max(100, head + 1 - step * head // steps)
            assert client.get(f"/s/{session}", params={"at": head, "before": before}).status_code == 200
            if step == 2:
                begun.set()


def aside(work: Callable[..., None], *given: Any) -> None:
    """Run a function in another process."""
    process = get_context("spawn").Process(target=work, args=given)
    process.start()
    process.join()
    assert process.exitcode == 0


def paint(url: str, session: str) -> None:
    from tests.servers.browser import chromium

    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        for view in VIEWS:
            found: list[float] = []
            for _ in range(4):
                page.goto(f"{url}/s/{session}{view}")
                while not (painted := page.evaluate(PAINTED)):
                    page.wait_for_timeout(20)
                found.append(painted[0])
            print(f"first paint {view or '/timeline':10} {statistics.median(found[1:]):6.0f} ms")


def scroll(server: Server, session: str, head: int, steps: int) -> None:
    spawn = get_context("spawn")
    with server.watched("nothing asked"):
        time.sleep(4)
    begun = spawn.Event()
    process = spawn.Process(target=read, args=(server.url, session, head, steps, begun))
    process.start()
    begun.wait()
    with server.watched(f"{steps} stretches of a log of {head:,}"):
        process.join()
    assert process.exitcode == 0


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--messages", type=int, default=10_000)
    asked.add_argument("--scroll", type=int, default=100_000)
    asked.add_argument("--times", type=int, default=15)
    asked.add_argument("--browser", action="store_true")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'log.db'}"
        asyncio.run(fill(url, "log", given.messages, 20))
        if given.scroll:
            asyncio.run(fill(url, "long", given.scroll, 0))
        with Server(url) as server, httpx2.Client(base_url=server.url, timeout=60, verify=False) as client:
            aside(views, server.url, context(client, "log"), given.times)
            if given.browser:
                paint(server.url, context(client, "log"))
            if given.scroll:
                scroll(server, context(client, "long"), given.scroll, 60)


if __name__ == "__main__":
    main()
