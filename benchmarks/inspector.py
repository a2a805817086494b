"""How soon a page of the inspector is painted, for a long log.

    python -m benchmarks.inspector                      # 100,000 messages
    python -m benchmarks.inspector --messages 10000

Writes a log of random words and twenty requests of 8,000 tokens, opens it with `acms inspect`, and loads every view in
Chromium. Prints the median and the slowest time from the navigation to the first contentful paint, as the browser
reports it (W3C Paint Timing), in milliseconds. The goal is 300.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.browser import chromium

from acms import ACMS, ACMSConfig, Prompt, RenderLogConfig
from acms.codecs import OpenAIChat

if TYPE_CHECKING:
    from playwright.sync_api import Page

VIEWS = ("timeline", "what the model saw", "diff", "ask", "facts", "jobs & compactions", "cost", "forks")
FIRST_PAINT = (
    "performance.getEntriesByName('first-contentful-paint').map(entry => entry.startTime)[0] ?? null"
)
CONFIG = ACMSConfig(renders=RenderLogConfig(enabled=True))
REQUESTS = 20


async def write_log(url: str, messages: int) -> None:
    """Write a log of random words, and render requests of it."""
    rng = random.Random(17)
    words = [f"word{number}" for number in range(4000)]

    def make_message(number: int) -> dict[str, str]:
        return {"role": "user" if number % 2 else "assistant", "content": " ".join(rng.choices(words, k=25))}

    async with ACMS("log", url, None, config=CONFIG) as session:
        for start in range(0, messages, 500):
            await session.ingest_many(list(map(make_message, range(start, min(messages, start + 500)))))
        for _ in range(REQUESTS):
            query = " ".join(rng.choices(words, k=4))
            prompt = Prompt(OpenAIChat("gpt-5")).system("You help.").history(session)
            await prompt.recall(session, query).user(query).render(budget=8000)


@contextmanager
def inspect(file: Path) -> Generator[str]:
    """Run `acms inspect` on a file; yield the address that it prints."""
    command = [sys.executable, "-m", "acms.cli", "inspect", str(file), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found.group()
    finally:
        process.terminate()
        process.wait()


def measure_view(page: Page, view: str, times: int) -> list[float]:
    """Load a view several times; return the first paints in milliseconds, without that of the first load."""
    page.get_by_role("link", name=view, exact=True).first.click()
    paints: list[float] = []
    for _ in range(times + 1):
        page.reload()
        while (painted := page.evaluate(FIRST_PAINT)) is None:
            page.wait_for_timeout(20)
        paints.append(painted)
        page.wait_for_load_state("networkidle")  # what the page loads later must not delay the next load
    return paints[1:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log.db"
        asyncio.run(write_log(f"sqlite:///{file}", options.messages))
        with inspect(file) as url, chromium() as browser:
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            page.goto(url)
            page.get_by_role("link", name="log", exact=True).click()
            for view in VIEWS:
                paints = measure_view(page, view, options.times)
                print(f"{view:20} median {statistics.median(paints):4.0f} ms, slowest {max(paints):4.0f} ms")


if __name__ == "__main__":
    main()
