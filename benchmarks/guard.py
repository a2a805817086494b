"""Guard the speed of what every user waits for: ten figures, each as a ratio to a floor measured beside it.

    python benchmarks/guard.py                       # measures, and compares with the newest record of another commit
    python benchmarks/guard.py --record FILE         # also appends the figures to a file, a line for each commit
    python benchmarks/guard.py --file FILE --json

Each figure is the median of rounds in which the call and its floor take turns, so a busy machine slows both. Floors:
`scan` is an exact cosine of 10,000 vectors by numpy and the 64 best; `commit` is one row of the same bytes committed to
a SQLite file with the same settings; `parse` is `json.loads` of the same messages. A ratio that is 20 % worse than the
newest record of another commit is printed with a mark, and the exit code is 1.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from pathlib import Path
from time import perf_counter
from typing import Any
from zlib import crc32

import apsw
import numpy as np

from acms import ACMS, Prompt, open_storage
from acms.codecs import OpenAIChat

DIMENSION = 384
MESSAGES = 10_000
"""Messages of the long session; the namespace holds as many in a hundred sessions."""
SYNCED = 1_000
BUDGET = 4_000
ROUNDS = 25
WORSE = 1.2
"""Ratio to the last record from which a figure is marked."""
RECORDS = Path(__file__).with_name("guard.jsonl")
Call = Callable[[], Awaitable[object]]


class HashedWords:
    """An embedder that costs nothing: the direction of a text is the sum of random ones of its words."""

    dimension = DIMENSION
    model = "hashed-words"

    async def embed(self, texts: list[str]) -> list[list[float]]:
        """Return one vector for each text."""
        return [self._direction(text).tolist() for text in texts]

    def _direction(self, text: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        total = np.zeros(DIMENSION)
        for word in text.split() or [""]:
            total += np.random.default_rng(crc32(word.encode())).standard_normal(DIMENSION)
        return total / np.linalg.norm(total)


class Speech:
    """Made-up messages and questions: words drawn by Zipf's law, the same ones on every run."""

    def __init__(self) -> None:
        self._random = random.Random(1)
        self._words = [f"w{number}" for number in range(5_000)]
        self._weights = list(accumulate(1 / rank for rank in range(1, 5_001)))

    def say(self, length: int) -> str:
        """Return so many words."""
        return " ".join(self._random.choices(self._words, cum_weights=self._weights, k=length))

    def talk(self, size: int) -> list[dict[str, Any]]:
        """Return a conversation of so many messages."""
        roles = ("user", "assistant")
        return [{"role": roles[number % 2], "content": self.say(40)} for number in range(size)]


class Floors:
    """What the figures are ratios of."""

    def __init__(self, folder: Path, speech: Speech) -> None:
        generator = np.random.default_rng(1)
        self._vectors = generator.standard_normal((MESSAGES, DIMENSION), np.float32)
        self._asked = generator.standard_normal(DIMENSION, np.float32)
        self._database = apsw.Connection(str(folder / "floor.db"))
        for statement in (
            "PRAGMA journal_mode=WAL",
            "PRAGMA synchronous=FULL",
            "CREATE TABLE said (text TEXT)",
        ):
            self._database.execute(statement).fetchall()
        self._row = speech.say(40)
        self._lines = json.dumps(speech.talk(SYNCED))

    async def scan(self) -> None:
        """Compare a vector with 10,000 others, and find the 64 best."""
        np.argpartition(-(self._vectors @ self._asked), 64)

    async def commit(self) -> None:
        """Commit one row."""
        with self._database:
            self._database.execute("INSERT INTO said VALUES (?)", (self._row,))

    async def parse(self) -> None:
        """Parse a list of messages."""
        json.loads(self._lines)


async def in_turns(call: Call, floor: Call, rounds: int) -> tuple[float, float]:
    """Return the median milliseconds of a call and of its floor, measured in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        for found, measured in zip(times, (call, floor), strict=True):
            started = perf_counter()
            await measured()
            found.append((perf_counter() - started) * 1_000)
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])


async def fill(session: ACMS, messages: Sequence[dict[str, Any]]) -> None:
    """Store a conversation, and wait until its vectors are there."""
    for first in range(0, len(messages), 1_000):
        await session.ingest_many(list(messages[first : first + 1_000]))
    await session.wait_pending()


async def measure(folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return the ten figures: milliseconds, those of the floor, and the ratio."""
    speech = Speech()
    floors = Floors(folder, speech)
    storage = open_storage(f"sqlite:///{folder / 'guard.db'}")
    found: dict[str, dict[str, float]] = {}

    async def note(name: str, call: Call, floor: Call, rounds: int = rounds) -> None:
        took, least = await in_turns(call, floor, rounds)
        found[name] = {"ms": round(took, 3), "floor_ms": round(least, 3), "ratio": round(took / least, 2)}

    words = ACMS("words", storage, None)
    meant = ACMS("meant", storage, HashedWords())
    talk = speech.talk(MESSAGES)
    await fill(words, talk)
    await fill(meant, talk)
    await note("recall by words", lambda: words.recall(speech.say(6), budget=BUDGET), floors.scan)
    await note("recall by meaning", lambda: meant.recall(speech.say(6), budget=BUDGET), floors.scan)

    async def first_recall() -> None:
        async with ACMS("words", open_storage(f"sqlite:///{folder / 'guard.db'}"), None) as session:
            await session.recall("w1 w7 w19", budget=BUDGET)

    await note("first recall of a process", first_recall, floors.parse, 5)

    for number in range(100):
        async with ACMS(f"of {number}", storage, None, namespace="team") as session:
            await session.ingest_many(talk[number * 100 : number * 100 + 100])
    asking = ACMS("asking", storage, None, namespace="team")
    await asking.ingest("user", "Good morning")
    await note(
        "recall in a namespace",
        lambda: asking.recall(speech.say(6), budget=BUDGET, scope="namespace"),
        floors.scan,
    )
    await note("window", lambda: words.window(BUDGET), floors.parse)

    def rendered() -> Awaitable[object]:
        asked = speech.say(6)
        prompt = Prompt(OpenAIChat("gpt-4o")).system("You help.").history(words).recall(words, asked)
        return prompt.user(asked).render(budget=BUDGET)

    await note("prompt", rendered, floors.parse)
    await note("ingest", lambda: words.ingest("user", speech.say(40)), floors.commit, 4 * rounds)
    await note("ingest of 100", lambda: words.ingest_many(speech.talk(100)), floors.commit)
    await note("fork", words.fork, floors.commit)
    synced = ACMS("synced", storage, None)
    held = speech.talk(SYNCED)
    await synced.sync(held)
    await note("sync of an unchanged list", lambda: synced.sync(held), floors.parse)
    for session in (words, meant, asking, synced):
        await session.close()
    await storage.aclose()
    return found


def commit() -> str:
    """Return the commit that is measured; with a mark where files differ from it."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return told.stdout.strip()


def last_record(file: Path, own: str) -> dict[str, Any] | None:
    """Return the newest record of another commit."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return next((record for record in map(json.loads, reversed(lines)) if record["commit"] != own), None)


def main() -> None:
    """Measure, compare and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", type=Path, default=RECORDS, help="records to compare with")
    parser.add_argument("--record", type=Path, help="append the figures to this file")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(Path(folder), options.rounds))
    own = commit()
    before = last_record(options.file, own)
    record = {"commit": own, "figures": figures}
    if options.record:
        with options.record.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    known = {} if before is None else before["figures"]
    worse = [
        name for name, one in figures.items() if name in known and one["ratio"] > WORSE * known[name]["ratio"]
    ]
    if options.json:
        print(json.dumps({**record, "before": before, "worse": worse}))
    else:
        against = "nothing recorded before" if before is None else before["commit"]
        print(f"{own}, beside {against}\n{'':28}{'ms':>10}{'floor':>10}{'ratio':>9}{'before':>9}")
        for name, one in figures.items():
            old = known.get(name, {}).get("ratio", "")
            mark = "  slower" if name in worse else ""
            print(f"{name:28}{one['ms']:10.2f}{one['floor_ms']:10.3f}{one['ratio']:9.1f}{old:>9}{mark}")
    sys.exit(bool(worse))


if __name__ == "__main__":
    main()
