"""Speed of recall: by size and tier, stage by stage, from a cold start, its memory, and beside floors and peers.

    python benchmarks/recall.py                               # everything on made-up text, about ten minutes
    python benchmarks/recall.py --quick --json                # up to 10,000 messages
    python benchmarks/recall.py --data ../locomo --beam ../beam-100k

`--data` is a folder of LoCoMo conversations: their turns joined to messages of about 60 tokens, from the second pass on
with a quarter of the rarer words replaced by words drawn by Zipf's law; the questions are theirs. Without it text and
questions are drawn by Zipf's law. `--beam` is a folder of BEAM chats, for the memory they take.

The embedder is not measured: a stand-in returns clustered vectors that depend on the text. Every figure is a recall
through the public API with a budget of 4,000 tokens, in milliseconds; "common words" asks for five words of which each
is in more than 5 % of the made-up messages. Tiers: "none" without a model, "one" vector per
message (its text has no sentence ends), "several" (the whole and each sentence). "p50" and "p95" are over all
recalls; "best" is the median over questions of the fastest of several rounds; "cpu" the same in processor time. On a
busy machine the last two say more. OpenBLAS runs in one thread. The floor, exact cosines of one vector a message by
numpy, is timed in turns with recall: what recall takes as a multiple of it depends less on the machine.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import asyncio
import json
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from importlib import import_module
from itertools import accumulate, islice
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw
import numpy as np

from acms import ACMS, ACMSConfig, CacheConfig, open_storage
from acms.model import ContextDraft
from acms.providers.tokens import EstimatingTokenCounter, default_counter
from acms.text.tokenizer import content_terms, split_words
from acms_eval.turns import read_file

DIMENSION = 384
BUDGET = 4000
TIERS = ("none", "one", "several")
CROWD, EACH = 400, 300
"""Sessions on one handle, and messages of each: enough to be indexed."""
SESSIONS, SAID = 1_000, 100
"""Sessions of one namespace, and messages of each."""
FLOOR = "floor: numpy exact, 64 best"
#: All indexes of this run stay in memory: several vectors each for 100,000 messages are more than the default allows.
CONFIG = ACMSConfig(cache=CacheConfig(index_bytes=1 << 33))
Turn = dict[str, Any]
Figures = dict[str, float]


def say(*what: object) -> None:
    """Report progress when a person is watching."""
    if sys.stderr.isatty():
        print(*what, file=sys.stderr, flush=True)


# ── text and vectors ────────────────────────────────────────────────────────────────────────────────────────────────


class Words:
    """A vocabulary from which words are drawn by Zipf's law."""

    def __init__(self, rng: random.Random, size: int = 30_000) -> None:
        syllables = [c + v for c in "bcdfghjklmnprstvwz" for v in "aeiou"]
        found = dict.fromkeys(
            "".join(rng.choice(syllables) for _ in range(rng.randint(2, 4))) for _ in range(2 * size)
        )
        self.words = list(found)[:size]
        self._weights = list(accumulate(1 / (rank + 10) for rank in range(len(self.words))))
        self._rng = rng

    def draw(self, count: int) -> list[str]:
        """Draw words."""
        return self._rng.choices(self.words, cum_weights=self._weights, k=count)


class Talk:
    """Messages of about 60 tokens, as many as wanted, and questions about them."""

    def __init__(self, folder: Path | None) -> None:
        self._rng = random.Random(11)
        self._words = Words(self._rng)
        self._base: list[tuple[str, str]] = []
        self.questions: list[str] = []
        for path in sorted(folder.glob("*.json")) if folder else ():
            self._base += _joined(read_file(path))
            document = json.loads(path.read_text(encoding="utf-8"))
            for one in (document[0] if isinstance(document, list) else document)["qa"]:
                if 2 <= len(set(content_terms(split_words(one["question"])))) <= 12:
                    self.questions.append(one["question"])
        self.source = f"{len(self._base)} LoCoMo messages, then varied" if self._base else "made up"
        if not self._base:
            self.questions = [" ".join(self._words.draw(self._rng.randint(4, 9))) + "?" for _ in range(1000)]
        self._rng.shuffle(self.questions)
        often = Counter(word for _, text in self._base for word in split_words(text))
        common = [word for word, _ in often.most_common() if list(content_terms([word]))] or self._words.words
        #: Each word in every twentieth message or more, where the text is made up.
        self.common = [" ".join(self._rng.sample(common[:60], 5)) + "?" for _ in range(len(self.questions))]
        self._rare = {word for word, count in often.items() if count < 300 and word.isalpha()}

    def messages(self, count: int, *, sentences: bool) -> Iterator[Turn]:
        """Yield messages, about fifty a day; without sentences each is embedded as a whole only."""
        start = datetime(2019, 1, 7, 9, tzinfo=UTC)
        for number in range(count):
            actor, text = self._said(number)
            yield {
                "role": "user" if number % 2 == 0 else "assistant",
                "actor_id": actor,
                "content": text if sentences else joined(text),
                "created_at": start + timedelta(days=number // 50, minutes=number % 50 * 8),
            }

    def _said(self, number: int) -> tuple[str, str]:
        if not self._base:
            return ("Ann", "Ben")[number % 2], " ".join(
                " ".join(self._words.draw(9)).capitalize() + self._rng.choice(".?!..") for _ in range(3)
            )
        actor, text = self._base[number % len(self._base)]
        if number >= len(self._base):
            text = re.sub(r"\w+", self._varied, text)
        return actor, text

    def _varied(self, match: re.Match[str]) -> str:
        word = match.group()
        swap = word.lower() in self._rare and self._rng.random() < 0.25
        return self._words.draw(1)[0] if swap else word


def joined(text: str) -> str:
    """Return a text without sentence ends: it is embedded as a whole only."""
    return re.sub(r"[.!?]+(?=[\"')\]]*\s|$)|\n+", ",", text)


def _joined(turns: list[Turn]) -> list[tuple[str, str]]:
    """Join the turns of a conversation to messages of at least 52 tokens."""
    count = EstimatingTokenCounter().count
    found: list[tuple[str, str]] = []
    text = ""
    for turn in turns:
        text = f"{text} {turn['content']}".strip()
        if count(text) >= 52:
            found.append((turn.get("actor_id") or turn["role"], text))
            text = ""
    return found


class Clustered:
    """An embedder that takes no time: a vector near one of 400 centres, found by the text."""

    model = "clustered"
    dimension = DIMENSION

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        self._centres = rng.standard_normal((400, DIMENSION)).astype(np.float32)
        self._noise = rng.standard_normal((4096, DIMENSION)).astype(np.float32)
        self.calls = 0

    async def embed(self, texts: list[str]) -> Any:
        """Return vectors."""
        self.calls += len(texts)
        return self.vectors(texts)

    def vectors(self, texts: Sequence[str]) -> Any:
        """Return vectors."""
        keys = np.fromiter((crc32(text.encode()) for text in texts), np.int64, len(texts))
        found = self._centres[keys % 400] + np.float32(1.2) * self._noise[keys // 400 % 4096]
        return found / np.linalg.norm(found, axis=1, keepdims=True)


# ── sessions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def opened(path: Path, tier: str, embedder: Clustered | None = None) -> ACMS:
    """Open a session on a file."""
    if embedder is None and tier != "none":
        embedder = Clustered()
    return ACMS("long", open_storage(f"sqlite:///{path}"), embedder, config=CONFIG)


async def fill(session: ACMS, turns: Iterator[Turn], size: int) -> None:
    """Write a conversation."""
    turns = islice(turns, size)
    while batch := list(islice(turns, 1000)):
        await session.ingest_many(batch)


async def settled(session: ACMS, question: str) -> None:
    """Recall until nothing is done in the background any more."""
    await session.recall(question, token_budget=BUDGET)
    await session.wait_pending()
    for _ in range(3):
        await session.recall(question, token_budget=BUDGET)


class Clock:
    """Times, wall and processor, of what is repeated for several questions."""

    def __init__(self) -> None:
        self.wall: dict[int, list[float]] = defaultdict(list)
        self.cpu: dict[int, list[float]] = defaultdict(list)

    @contextmanager
    def over(self, question: int) -> Iterator[None]:
        """Time what is done inside."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.cpu[question].append(time.process_time() - cpu)
        self.wall[question].append(time.perf_counter() - wall)

    def figures(self) -> Figures:
        """Return milliseconds."""
        wall = sorted(one for found in self.wall.values() for one in found)
        return {
            "p50": statistics.median(wall) * 1e3,
            "p95": wall[int(len(wall) * 0.95)] * 1e3,
            "best": statistics.median(map(min, self.wall.values())) * 1e3,
            "cpu": statistics.median(map(min, self.cpu.values())) * 1e3,
        }


Ask = Callable[[str], Awaitable[Any]]


async def timed(
    systems: dict[str, tuple[Ask, int]], questions: Sequence[str], rounds: int, *, apart: bool = False
) -> dict[str, Figures]:
    """Time systems on the same questions, interleaved: each with its number of questions a round.

    One question of each in turn; `apart` all questions of each, so that none finds the processor's caches full of
    what another one left there.
    """
    clocks = {name: Clock() for name in systems}
    order = list(systems)
    rng = random.Random(1)
    for _ in range(rounds):
        for some in [range(len(questions))] if apart else ([number] for number in range(len(questions))):
            rng.shuffle(order)
            for name in order:
                ask, share = systems[name]
                for number in some:
                    if number < share:
                        with clocks[name].over(number):
                            await ask(questions[number])
    return {name: clock.figures() for name, clock in clocks.items()}


# ── tiers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def tier(path: Path, name: str, talk: Talk, size: int, options: argparse.Namespace) -> dict[str, Any]:
    """Time recall on one log: warm, after an append, in the past, on a fork; and its stages and memory."""
    questions = talk.questions[: options.questions]
    rounds = options.rounds
    async with opened(path, name) as session:
        await fill(session, talk.messages(size, sentences=name == "several"), size)
        await settled(session, questions[0])
        vectors = _vectors(session)
        found: dict[str, Any] = {"vectors": vectors["count"]}

        async def ask(question: str) -> None:
            await session.recall(question, token_budget=BUDGET)

        past = session.at(size // 2)

        async def before(question: str) -> None:
            await past.recall(question, token_budget=BUDGET)

        systems = {"recall": (ask, len(questions)), FLOOR: (exact(size, questions), len(questions))}
        found |= await timed(systems, questions, rounds, apart=True)
        found["recall, times the floor"] = {
            of: found["recall"][of] / found[FLOOR][of] for of in ("p50", "best")
        }
        common = talk.common[: options.questions]
        found["recall, common words"] = (await timed({"": (ask, len(common))}, common, rounds))[""]
        found["at(n/2)"] = (await timed({"": (before, len(questions))}, questions, rounds))[""]
        if size == options.sizes[-1]:
            found["bytes a message, without vectors"] = (
                session.internals.index_stats.bytes - vectors["bytes"]
            ) / size
            found["fork"] = await forked(path, name, session, questions, rounds)
        found["stages"] = await stages(session, questions, max(2, rounds // 2))
        clock = Clock()
        for turn, question in zip(
            talk.messages(len(questions), sentences=name == "several"), questions, strict=False
        ):
            await session.ingest(turn["role"], turn["content"], actor_id=turn["actor_id"])
            with clock.over(len(clock.wall)):
                await session.recall(question, token_budget=BUDGET)
        found["append, then recall"] = clock.figures()
    return found


async def forked(path: Path, name: str, session: ACMS, questions: Sequence[str], rounds: int) -> Figures:
    """Time recall on a fork of a log, beside nothing else."""
    shared = session._shared
    parent = await shared.find()
    draft = ContextDraft(key="fork", counter=shared.counter.name, created_at=datetime.now(UTC), parent=parent)
    await shared.storage.create(draft)
    fork = ACMS("fork", shared.handle, shared._embedder, config=CONFIG)
    async with fork:

        async def ask(question: str) -> None:
            await fork.recall(question, token_budget=BUDGET)

        await settled(fork, questions[0])
        return (await timed({"": (ask, len(questions))}, questions, rounds))[""]


def exact(size: int, questions: Sequence[str]) -> Ask:
    """Return what takes the exact cosines of one vector a message and no more."""
    matrix = np.random.default_rng(5).standard_normal((size, DIMENSION), np.float32)
    vectors = dict(zip(questions, Clustered().vectors(questions), strict=True))

    async def ask(question: str) -> None:
        np.argpartition(-(matrix @ vectors[question]), 64)[:64]

    return ask


def _vectors(session: ACMS) -> Figures:
    """Return how many vectors the indexes hold, and the bytes they take."""
    held = [
        vectors for part in session._shared.indexes._segments.values() for vectors in part.spaces.values()
    ]
    return {
        "count": sum(int(vectors.begin[vectors.count]) for vectors in held),
        "bytes": sum(vectors.bytes for vectors in held),
    }


async def stages(session: ACMS, questions: Sequence[str], rounds: int) -> Figures:
    """Return where the time of a recall goes: medians, by wrapping the functions of each stage."""
    from acms.recall import candidates, companions, pipeline, scoring
    from acms.recall.index_cache import Indexes
    from acms.recall.ranking import Ranking

    spent: dict[str, float] = defaultdict(float)

    def wrapped(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[name] += time.perf_counter() - start

        async def wait(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return await function(*args, **kwargs)
            finally:
                spent[name] += time.perf_counter() - start

        return wait if asyncio.iscoroutinefunction(function) else run

    places: list[tuple[Any, str, str]] = [
        (session._shared.storage, "head", "head"),
        (Indexes, "load_corpus", "field"),
        (scoring, "score_words", "words"),
        (scoring, "find_cosines", "meaning"),
        (scoring, "measure_cosines", "meaning"),
        (Ranking, "__init__", "rank"),
        (companions, "add_companions", "link"),
        (candidates, "collect_candidates", "offer"),
        (session._shared.storage, "get", "get"),
        (pipeline, "rank_log", "ranked"),
        (pipeline, "plan_recall", "plan"),
        (pipeline, "run_plan", "fetched"),
    ]
    before = [(owner, name, owner.__dict__.get(name)) for owner, name, _ in places]
    samples: dict[str, list[float]] = defaultdict(list)
    try:
        for owner, name, stage in places:
            setattr(owner, name, wrapped(getattr(owner, name), stage))
        for question in [*questions] * rounds:
            spent.clear()
            start = time.perf_counter()
            await session.recall(question, token_budget=BUDGET)
            total = time.perf_counter() - start
            shown = {
                "head + catch-up": spent["head"] + spent["field"],
                "words": spent["words"],
                "meaning": spent["meaning"],
                "fuse + candidates": spent["rank"] - spent["words"] - spent["meaning"],
                "companions": spent["link"],
                "query vector, thread": (
                    spent["ranked"] - spent["rank"] - spent["link"] - spent["head"] - spent["field"]
                ),
                "offer": spent["offer"],
                "fetch": spent["get"],
                "plan": spent["fetched"] - spent["get"] - spent["offer"],
                "rest": total - spent["ranked"] - spent["fetched"],
            }
            for stage, seconds in shown.items():
                samples[stage].append(seconds * 1e3)
    finally:
        for owner, name, function in before:
            if function is None:
                delattr(owner, name)
            else:
                setattr(owner, name, function)
    return {stage: statistics.median(found) for stage, found in samples.items()}


# ── many sessions ──────────────────────────────────────────────────────────────────────────────────────────────────


async def crowd(path: Path, talk: Talk, options: argparse.Namespace) -> dict[str, Any]:
    """Time recall of one session while the same handle holds the indexes of others."""
    questions = talk.questions[: options.questions]
    found: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        handle = await stack.enter_async_context(open_storage(f"sqlite:///{path}"))
        turns = list(talk.messages(CROWD * EACH, sentences=False))
        for number in range(CROWD):
            session = ACMS(f"session {number}", handle, None, config=CONFIG)
            await stack.enter_async_context(session)
            await fill(session, iter(turns[number * EACH : (number + 1) * EACH]), EACH)
            await session.recall(questions[0], token_budget=BUDGET)
            if number == 0:
                first = session

                async def ask(question: str, session: ACMS = first) -> None:
                    await session.recall(question, token_budget=BUDGET)

            if number + 1 in (1, CROWD // 8, CROWD):
                systems: dict[str, tuple[Ask, int]] = {"": (ask, len(questions))}
                found[f"{number + 1} sessions"] = (await timed(systems, questions, options.rounds))[""]
    return found


async def across(path: Path, talk: Talk, options: argparse.Namespace) -> dict[str, Any]:
    """Time recall across the sessions of a namespace: the first one, warm ones, and those after a message elsewhere."""
    url, questions = f"sqlite:///{path}", talk.questions[: options.questions]
    turns = list(talk.messages(SESSIONS * SAID, sentences=False))
    async with open_storage(url) as handle:
        for number in range(SESSIONS):
            session = ACMS(f"session {number}", handle, None, config=CONFIG, namespace="user:ana")
            async with session:
                await fill(session, iter(turns[number * SAID : (number + 1) * SAID]), SAID)
    async with open_storage(url) as handle, open_storage(url) as elsewhere:
        asking = ACMS("asking", handle, None, config=CONFIG, namespace="user:ana")
        other = ACMS("session 7", elsewhere, None, config=CONFIG, namespace="user:ana")
        async with asking, other:
            await asking.ingest("user", "Good morning")

            async def ask(question: str) -> None:
                await asking.recall(question, budget=BUDGET, scope="namespace")

            begun, cpu = time.perf_counter(), time.process_time()
            await ask(questions[0])
            first = {"first (s)": time.perf_counter() - begun, "cpu (s)": time.process_time() - cpu}
            found: dict[str, Any] = {"first": first}
            found["warm"] = (await timed({"": (ask, len(questions))}, questions, options.rounds))[""]
            after: list[float] = []
            for number in range(20):
                await other.ingest("user", f"Message {number} of another process")
                begun = time.perf_counter()
                await ask(questions[number % len(questions)])
                after.append(1000 * (time.perf_counter() - begun))
            found["after a message elsewhere"] = {"p50": statistics.median(after), "best": min(after)}
    return found


# ── cold ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def open_cold(path: Path, name: str, question: str, started: float) -> Figures:
    """Run in a process of its own: open a file and recall once; print the times."""
    for module in (
        "acms.recall.candidates",
        "acms.recall.companions",
        "acms.recall.embeddings",
        "acms.recall.index_cache",
        "snowballstemmer",
    ):
        import_module(module)
    ready, imported = time.time(), time.perf_counter()
    default_counter().count("load the vocabulary")
    loaded = time.perf_counter()
    embedder = None if name == "none" else Clustered()
    begun, cpu = time.perf_counter(), time.process_time()
    memory = resident()
    async with opened(path, name, embedder) as session:
        await session.recall(question, token_budget=BUDGET)
        first, used = time.perf_counter(), time.process_time()
        await session.wait_pending()
        grown = resident() - memory
        head = await session.get_session_stats()
        return {
            "open + first recall (s)": first - begun,
            "cpu of it (s)": used - cpu,
            "start and imports (s)": ready - started,
            "vocabulary (s)": loaded - imported,
            "RSS growth, bytes a message": grown / head.messages,
        }


def resident() -> int:
    """Return the bytes in memory; 0 where that is not known."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def cold(path: Path, name: str, question: str, rounds: int) -> Figures:
    """Return the medians of several processes."""
    samples: dict[str, list[float]] = defaultdict(list)
    for _ in range(rounds):
        start = time.perf_counter()
        command = [
            sys.executable,
            __file__,
            "--open",
            str(path),
            "--tier",
            name,
            "--question",
            question,
            "--started",
            str(time.time()),
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        samples["whole process (s)"].append(time.perf_counter() - start)
        for what, value in json.loads(done.stdout).items():
            samples[what].append(value)
    return {what: min(found) for what, found in samples.items()}


# ── floors and peers ────────────────────────────────────────────────────────────────────────────────────────────────


async def beside(folder: Path, talk: Talk, size: int, options: argparse.Namespace) -> dict[str, Any]:
    """Time raw floors and peers on the same messages, vectors and questions, interleaved."""
    embedder = Clustered()
    turns = list(talk.messages(size, sentences=False))
    lines = [f"{turn['actor_id']}: {turn['content']}" for turn in turns]
    matrix = np.concatenate([embedder.vectors(lines[at : at + 4096]) for at in range(0, size, 4096)])
    questions = talk.questions[: options.questions]
    vectors = dict(zip(questions, embedder.vectors(questions), strict=True))
    systems: dict[str, tuple[Ask, int]] = {}
    absent: list[str] = []
    session = opened(folder / "ours.db", "one")
    async with session:
        await fill(session, iter(turns), size)
        await settled(session, questions[0])

        async def ours(question: str) -> None:
            await session.recall(question, token_budget=BUDGET)

        async def dense(question: str) -> None:
            scored = matrix @ vectors[question]
            np.argpartition(-scored, 64)[:64]

        text = apsw.Connection(str(folder / "fts5.db"))
        text.execute("CREATE VIRTUAL TABLE f USING fts5 (content, tokenize='porter unicode61')")
        text.execute("BEGIN")
        text.executemany("INSERT INTO f (rowid, content) VALUES (?, ?)", enumerate(lines, 1))
        text.execute("COMMIT")

        async def match(question: str) -> None:
            query = " OR ".join(f'"{word}"' for word in dict.fromkeys(split_words(question)))
            text.execute("SELECT rowid FROM f WHERE f MATCH ? ORDER BY bm25(f) LIMIT 64", (query,)).fetchall()

        systems["acms, one vector"] = ours, len(questions)
        systems[FLOOR] = dense, len(questions)
        systems["floor: FTS5 bm25, 64 best"] = match, min(len(questions), 20)
        rest: dict[str, Callable[[], Awaitable[Ask]]] = {
            "chromadb, 64 best": lambda: chroma(folder, lines, matrix, vectors),
            "sqlite-vec, 64 best": lambda: sqlite_vec(folder, matrix, vectors),
        }
        if size == 10_000:
            rest["gleanr, 4,000 tokens"] = lambda: gleanr(folder, turns, embedder)
        for name, build in rest.items():
            say(f"  loading {name}")
            try:
                share = 3 if name.startswith("gleanr") else 20
                systems[name] = await build(), min(len(questions), share)
            except ImportError as error:
                absent.append(f"{name.split(',')[0]} ({error.name} is not installed)")
        found: dict[str, Any] = dict(await timed(systems, questions, 2))
    own = found["acms, one vector"]["best"]
    found["ratio to acms"] = {
        name: found[name]["best"] / own for name in systems if name != "acms, one vector"
    }
    found["not installed, left out"] = ", ".join(absent) or "none"
    return found


async def chroma(folder: Path, lines: list[str], matrix: Any, vectors: dict[str, Any]) -> Ask:
    """Load chromadb: a persistent collection."""
    import chromadb

    client = chromadb.PersistentClient(
        str(folder / "chroma"), settings=chromadb.Settings(anonymized_telemetry=False)
    )
    held = client.create_collection("long", metadata={"hnsw:space": "cosine"}, embedding_function=None)
    for at in range(0, len(lines), 4000):
        held.add(
            ids=[str(number) for number in range(at, min(at + 4000, len(lines)))],
            embeddings=matrix[at : at + 4000],
            documents=lines[at : at + 4000],
        )

    async def ask(question: str) -> None:
        held.query(query_embeddings=[vectors[question]], n_results=64)

    return ask


async def sqlite_vec(folder: Path, matrix: Any, vectors: dict[str, Any]) -> Ask:
    """Load sqlite-vec."""
    import sqlite_vec as extension

    db = apsw.Connection(str(folder / "vec.db"))
    db.enable_load_extension(True)
    db.load_extension(extension.loadable_path())
    db.execute(f"CREATE VIRTUAL TABLE v USING vec0 (e float[{DIMENSION}] distance_metric=cosine)")
    db.execute("BEGIN")
    db.executemany(
        "INSERT INTO v (rowid, e) VALUES (?, ?)", ((n, row.tobytes()) for n, row in enumerate(matrix, 1))
    )
    db.execute("COMMIT")

    async def ask(question: str) -> None:
        db.execute(
            "SELECT rowid, distance FROM v WHERE e MATCH ? AND k = 64", (vectors[question].tobytes(),)
        ).fetchall()

    return ask


async def gleanr(folder: Path, turns: list[Turn], embedder: Clustered) -> Ask:
    """Load gleanr."""
    import aiosqlite  # noqa: F401  (its SQLite backend needs it)
    from gleanr import Gleanr
    from gleanr.storage.sqlite import SQLiteBackend

    class Listed:
        dimension = DIMENSION

        async def embed(self, texts: list[str]) -> list[list[float]]:
            """Return vectors."""
            found: list[list[float]] = embedder.vectors(texts).tolist()
            return found

    storage = SQLiteBackend(str(folder / "gleanr.db"))
    session = Gleanr("long", storage, Listed())
    await session.initialize()
    await storage._connection.execute("PRAGMA synchronous=off")  # loading is not measured
    for turn in turns:
        await session.ingest(turn["role"], turn["content"], actor_id=turn["actor_id"])

    async def ask(question: str) -> None:
        await session.recall(question, token_budget=BUDGET)

    return ask


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def memory(folder: Path, beam: Path, limit: int) -> dict[str, Any]:
    """Return the bytes a message that BEAM chats take in the index, as one log, vectors left out."""
    turns = [turn for path in sorted(beam.glob("*/chat.json"))[:limit] for turn in read_file(path)]
    for turn in turns:
        turn.pop("key", None)
    async with opened(folder / "beam.db", "several") as session:
        await fill(session, iter(turns), len(turns))
        await settled(session, "what did I ask first?")
        vectors = _vectors(session)
        size = (await session.get_session_stats()).tokens / len(turns)
        return {
            "messages": float(len(turns)),
            "tokens a message": size,
            "bytes a message, without vectors": (session.internals.index_stats.bytes - vectors["bytes"])
            / len(turns),
            "vectors a message": vectors["count"] / len(turns),
        }


# ── all of it ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of LoCoMo conversations")
    parser.add_argument("--beam", type=Path, help="folder of BEAM chats")
    parser.add_argument(
        "--quick", action="store_true", help="fewer questions and rounds, up to 10,000 messages"
    )
    parser.add_argument("--sizes", type=lambda text: tuple(map(int, text.split(","))), default=None)
    parser.add_argument("--tiers", type=lambda text: tuple(text.split(",")), default=TIERS)
    parser.add_argument(
        "--only",
        type=lambda text: set(text.split(",")),
        help="of tiers, cold, beside, crowd, across, memory",
    )
    parser.add_argument(
        "--dir", default=None, help="folder on the disk to measure; default: the temporary folder"
    )
    parser.add_argument("--json", action="store_true")
    for hidden in ("--open", "--tier", "--question", "--started"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open:
        print(
            json.dumps(
                await open_cold(Path(options.open), options.tier, options.question, float(options.started))
            )
        )
        return
    options.questions, options.rounds = (20, 3) if options.quick else (50, 7)
    options.sizes = options.sizes or ((1_000, 10_000) if options.quick else (1_000, 10_000, 100_000))
    wanted = options.only or {"tiers", "cold", "beside", "crowd", "across", "memory"}
    talk = Talk(options.data)
    report: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} CPUs, {platform.system()}, Python {platform.python_version()}",
        "text": talk.source,
    }
    with suppress(OSError):
        report["load average"] = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        folder = Path(name)
        for size in options.sizes:
            for kind in options.tiers if wanted & {"tiers", "cold"} else ():
                say(f"{size} messages, {kind}")
                path = folder / f"{size}-{kind}.db"
                if "tiers" in wanted:
                    report[f"{size} messages, {kind}"] = await tier(path, kind, talk, size, options)
                else:
                    async with opened(path, kind) as session:
                        await fill(session, talk.messages(size, sentences=kind == "several"), size)
                        await settled(session, talk.questions[0])
                if "cold" in wanted and size >= 10_000:
                    report[f"{size} messages, {kind}: cold"] = cold(path, kind, talk.questions[0], 3)
                for file in folder.glob(f"{path.name}*"):
                    file.unlink()
            if "beside" in wanted and size >= 10_000:
                say(f"{size} messages, floors and peers")
                place = folder / f"beside-{size}"
                place.mkdir()
                report[f"{size} messages, beside others"] = await beside(place, talk, size, options)
        if "crowd" in wanted:
            say(f"{CROWD} sessions")
            report[f"one of many sessions of {EACH} messages"] = await crowd(
                folder / "crowd.db", talk, options
            )
        if "across" in wanted:
            say(f"{SESSIONS} sessions of a namespace")
            title = f"across {SESSIONS} sessions of {SAID} messages"
            report[title] = await across(folder / "across.db", talk, options)
        if "memory" in wanted:
            report["BEAM chats"] = (
                await memory(folder, options.beam, 4 if options.quick else 20)
                if options.beam
                else "no --beam, left out"
            )
    if options.json:
        print(json.dumps(report, indent=2))
        return
    for title, found in report.items():
        show(title, found, 0)


def show(title: str, found: Any, depth: int) -> None:
    """Print a table, or a line of it."""
    indent = "  " * depth
    if not isinstance(found, dict):
        print(
            f"{indent}{title:<40} {found:10.3f}" if isinstance(found, float) else f"{indent}{title}: {found}"
        )
    elif found and all(isinstance(value, float) for value in found.values()) and len(found) <= 4:
        print(f"{indent}{title:<40} " + "  ".join(f"{name} {value:8.3f}" for name, value in found.items()))
    else:
        print(f"\n{title}" if depth == 0 else f"{indent}{title}")
        for name, value in found.items():
            show(name, value, depth + 1)


if __name__ == "__main__":
    asyncio.run(main())
