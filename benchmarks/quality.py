"""How well ACMS finds what answers a question, on real conversations, beside plain BM25 and plain vectors.

    python benchmarks/quality.py
    python benchmarks/quality.py --embedder local --cache ../vectors

The conversations are research data, read by path and not part of this repository: LoCoMo (snap-research, CC BY-NC 4.0),
REALTALK (danny911kr/REALTALK, no licence stated) and BEAM (mohammadtavakoli78/BEAM, no licence stated). A set whose
folder is missing is named and passed over.

Gold is what the annotators named as evidence; ids of messages that do not exist are dropped, and so are questions
without gold. R@k is |gold ∩ first k| / |gold|, nDCG@10 is binary, Bn is |gold ∩ packed| / |gold|, where packed is what
fits n tokens (cl100k_base) of "Speaker: text" lines in rank order, skipping what does not fit. Every figure is the mean
over questions, in percent. Categories 1 to 4 of LoCoMo are "all", 5 (asked about the wrong speaker) stands apart.

"recent" is newest first; "plain BM25" is k1 1.2, b 0.75 over stems without stop words; "plain vectors" is the cosine of
"speaker: text"; "acms" is what `recall(question, token_budget=1_000_000, include_current_episode=False)` returns, best
score first: the last episode of a conversation, a handful of messages, is out of its reach.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import sys
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from math import log, log2
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

from acms import ACMS, open_storage
from acms.core.terms import terms, words
from acms.errors import ACMSError
from acms.imports import read_chat
from acms.providers.tokens import BPETokenCounter

Ranking = Sequence[int]
"""Indices of messages, best first; what is missing was not found."""
Ask = Callable[[str], Awaitable[Ranking]]

BATCH = 500
EVERYTHING = 1_000_000


# ── conversations ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Question:
    text: str
    group: str
    #: Indices of the messages that answer it.
    gold: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Conversation:
    name: str
    #: As `read_chat` gives them.
    messages: list[dict[str, Any]]
    #: "speaker: text" of each message.
    lines: list[str]
    #: Tokens of each line.
    costs: list[int]
    questions: list[Question]


@dataclass(frozen=True, kw_only=True)
class Set:
    name: str
    #: The chats of a folder.
    pattern: str
    #: Yields (question, group, ids of its evidence) of a chat.
    asked: Callable[[Path], Iterator[tuple[str, str, list[Any]]]]
    #: The name of a message in the evidence.
    key: str
    budgets: tuple[int, ...]
    #: Groups that stand apart from "all".
    apart: frozenset[str] = frozenset()


def spoken(path: Path) -> Iterator[tuple[str, str, list[Any]]]:
    document = json.loads(path.read_text(encoding="utf-8"))
    for question in (document[0] if isinstance(document, list) else document)["qa"]:
        evidence = " ".join(question.get("evidence", ())).replace(";", " ").replace(",", " ").split()
        yield question["question"], str(question["category"]), evidence


def probed(path: Path) -> Iterator[tuple[str, str, list[Any]]]:
    file = path.parent / "probing_questions" / "probing_questions.json"
    for ability, questions in json.loads(file.read_text(encoding="utf-8")).items():
        for question in questions:
            yield question["question"], ability, list(leaves(question.get("source_chat_ids")))


def leaves(ids: Any) -> Iterator[Any]:
    """Yield the ids of a list, or of the lists of an object: BEAM has both."""
    if isinstance(ids, dict):
        ids = list(ids.values())
    if isinstance(ids, list):
        for one in ids:
            yield from leaves(one)
    elif ids is not None:
        yield ids


CHAT = (500, 1000, 2000, 4000)
LONG = (2000, 4000, 8000, 16000)
SETS = {
    "locomo": Set(
        name="LoCoMo", pattern="*.json", asked=spoken, key="dia_id", budgets=CHAT, apart=frozenset("5")
    ),
    "realtalk": Set(name="REALTALK", pattern="*.json", asked=spoken, key="dia_id", budgets=CHAT),
    "beam": Set(name="BEAM-100K", pattern="*/chat.json", asked=probed, key="chat_id", budgets=LONG),
    "beam_500k": Set(name="BEAM-500K", pattern="*/chat.json", asked=probed, key="chat_id", budgets=LONG),
}


def read(path: Path, which: Set) -> Conversation:
    messages = list(read_chat(path))
    known = {message["metadata"][which.key]: index for index, message in enumerate(messages)}
    lines = [f"{message.get('actor_id') or message['role']}: {message['content']}" for message in messages]
    counter = BPETokenCounter("cl100k_base")
    questions = []
    for text, group, evidence in which.asked(path):
        gold = frozenset(known[name] for name in evidence if name in known)
        if gold:
            questions.append(Question(text=text, group=group, gold=gold))
    return Conversation(
        name=path.parent.name if path.stem == "chat" else path.stem,
        messages=messages,
        lines=lines,
        costs=[counter.count(line + "\n") for line in lines],
        questions=questions,
    )


# ── figures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def figures(
    ranking: Ranking, gold: frozenset[int], costs: Sequence[int], budgets: Sequence[int]
) -> list[float]:
    """Return R@5, R@10, nDCG@10 and one share of gold for each budget."""
    gains = [1 / log2(place + 2) for place in range(10)]
    hits = [index in gold for index in ranking[:10]]
    found = [sum(hits[:5]) / len(gold), sum(hits) / len(gold)]
    found.append(sum(gain for gain, hit in zip(gains, hits, strict=False) if hit) / sum(gains[: len(gold)]))
    least = min(costs)
    for budget in budgets:
        left, packed = budget, 0
        for index in ranking:
            if costs[index] <= left:
                left -= costs[index]
                packed += index in gold
                if left < least:
                    break
        found.append(packed / len(gold))
    return found


def heads(which: Set) -> list[str]:
    budgets = [f"B{budget // 1000}k" if budget >= 1000 else f"B{budget}" for budget in which.budgets]
    return ["R@5", "R@10", "nDCG@10", *budgets]


# ── systems ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def ranked(scores: Sequence[float]) -> Ranking:
    return sorted(range(len(scores)), key=lambda index: -scores[index])


async def recent(conversation: Conversation, embedder: Any) -> Ask:
    ranking = range(len(conversation.messages) - 1, -1, -1)

    async def ask(question: str) -> Ranking:
        return ranking

    return ask


async def plain_bm25(conversation: Conversation, embedder: Any, k1: float = 1.2, b: float = 0.75) -> Ask:
    counts = [Counter(terms(words(message["content"]))) for message in conversation.messages]
    lengths = [count.total() for count in counts]
    average = fmean(lengths)
    total = len(counts)
    postings: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for index, count in enumerate(counts):
        norm = k1 * (1 - b + b * lengths[index] / average)
        for term, frequency in count.items():
            postings[term].append((index, frequency * (k1 + 1) / (frequency + norm)))

    async def ask(question: str) -> Ranking:
        scores = [0.0] * total
        for term in dict.fromkeys(terms(words(question))):
            having = postings.get(term, ())
            weight = log(1 + (total - len(having) + 0.5) / (len(having) + 0.5))
            for index, share in having:
                scores[index] += weight * share
        return ranked(scores)

    return ask


async def plain_vectors(conversation: Conversation, embedder: Any) -> Ask:
    import numpy

    def unit(vectors: Any) -> Any:
        matrix = numpy.asarray(vectors, dtype=numpy.float32)
        return matrix / numpy.maximum(numpy.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)

    matrix = unit(await embedder.embed(conversation.lines))

    async def ask(question: str) -> Ranking:
        (query,) = unit(await embedder.embed([question]))
        return ranked((matrix @ query).tolist())

    return ask


async def acms(conversation: Conversation, embedder: Any) -> Ask:
    session = ACMS(conversation.name, open_storage("memory://"), embedder)
    places: dict[str, int] = {}
    messages = iter(conversation.messages)
    while part := list(islice(messages, BATCH)):
        for receipt in await session.ingest_many(part):
            places[receipt.message_id] = len(places)
    if embedder is not None:
        await session.wait_pending()  # type: ignore[attr-defined]  # comes with embedders

    async def ask(question: str) -> Ranking:
        items = await session.recall(question, token_budget=EVERYTHING, include_current_episode=False)
        best = sorted(items, key=lambda item: (-item.score, -item.relevance, item.version))
        return [places[item.id] for item in best]

    return ask


SYSTEMS = {
    "recent": recent,
    "plain BM25": plain_bm25,
    "plain vectors": plain_vectors,
    "acms": acms,
}


class Remembered:
    """An embedder that looks up the vectors of texts it has seen, in this run or, with a folder, in an earlier one."""

    def __init__(self, inner: Any, folder: Path | None) -> None:
        self.inner = inner
        self.dimension: int = inner.dimension
        self.model: str = getattr(inner, "model", type(inner).__name__)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._file = sqlite3.connect(folder / "vectors.db" if folder else ":memory:", isolation_level=None)
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS vector (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID"
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _key(self, text: str) -> bytes:
        return sha256(f"{self.model}\n{self.dimension}\n{text}".encode()).digest()

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        keys = [self._key(text) for text in texts]
        known: dict[bytes, list[float]] = {}
        for key in dict.fromkeys(keys):
            row = self._file.execute("SELECT value FROM vector WHERE key = ?", (key,)).fetchone()
            if row is not None:
                known[key] = array("f", row[0]).tolist()
        missing = list({key: text for key, text in zip(keys, texts, strict=True) if key not in known}.items())
        for start in range(0, len(missing), 64):
            part = missing[start : start + 64]
            vectors = await self.inner.embed([text for _, text in part])
            rows = [(key, array("f", vector)) for (key, _), vector in zip(part, vectors, strict=True)]
            self._file.execute("BEGIN")
            self._file.executemany(
                "INSERT OR IGNORE INTO vector VALUES (?, ?)", [(key, row.tobytes()) for key, row in rows]
            )
            self._file.execute("COMMIT")
            known.update((key, row.tolist()) for key, row in rows)
        return [known[key] for key in keys]


def embedder_named(name: str, folder: Path | None) -> Any:
    if name == "none":
        return None
    try:
        from acms.providers import LocalEmbedder  # type: ignore[attr-defined]

        return Remembered(LocalEmbedder(), folder)
    except (ImportError, ACMSError) as error:
        raise SystemExit(f"there is no local embedder in this installation: {error}") from error


# ── the run ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def say(text: str) -> None:
    """Show progress to someone who is watching."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


async def measure(which: Set, files: Sequence[Path], systems: Sequence[str], embedder: Any) -> dict[str, Any]:
    """Return counts and, by system and group, the mean of every figure in percent."""
    rows: dict[str, list[tuple[str, list[float]]]] = {system: [] for system in systems}
    messages = questions = 0
    for path in files:
        conversation = read(path, which)
        messages += len(conversation.messages)
        questions += len(conversation.questions)
        for system in systems:
            say(f"{which.name} {conversation.name}: {system}")
            ask = await SYSTEMS[system](conversation, embedder)
            for question in conversation.questions:
                ranking = await ask(question.text)
                found = figures(ranking, question.gold, conversation.costs, which.budgets)
                rows[system].append((question.group, found))
    say("")
    groups = sorted({group for group, _ in next(iter(rows.values()))})
    return {
        "conversations": len(files),
        "messages": messages,
        "questions": questions,
        "figures": {
            system: {
                "all": means(which, [found for group, found in measured if group not in which.apart]),
                **{group: means(which, [found for of, found in measured if of == group]) for group in groups},
            }
            for system, measured in rows.items()
        },
    }


def means(which: Set, rows: Sequence[Sequence[float]]) -> dict[str, float]:
    columns = [round(100 * fmean(column), 1) for column in zip(*rows, strict=True)]
    return {"questions": len(rows), **dict(zip(heads(which), columns, strict=True))}


def show(which: Set, report: Mapping[str, Any]) -> None:
    """Print the systems side by side, then each group by the two figures that say most."""
    print(
        f"\n{which.name}: {report['conversations']} conversations, {report['messages']} messages,"
        f" {report['questions']} questions"
        + (f" ({', '.join(sorted(which.apart))} not in the means)" if which.apart else "")
    )
    names = heads(which)
    print(f"{'':<26}" + "".join(f"{name:>9}" for name in names))
    measured: Mapping[str, Mapping[str, Mapping[str, float]]] = report["figures"]
    for system, groups in measured.items():
        print(f"{system:<26}" + "".join(f"{groups['all'][name]:>9.1f}" for name in names))
    chosen = ("R@10", names[4])
    apart = [system for system in measured if system != "recent"]
    width = max(map(len, apart)) + len(chosen[0]) + 3
    print(
        f"\n{'by group':<26}{'n':>9}"
        + "".join(f"{f'{system} {chosen[0]}':>{width}}{chosen[1]:>6}" for system in apart)
    )
    for group in measured["recent"]:
        if group != "all":
            found = [itemgetter(*chosen)(measured[system][group]) for system in apart]
            print(
                f"{group:<26}{measured['recent'][group]['questions']:>9}"
                + "".join(f"{first:>{width}.1f}{second:>6.1f}" for first, second in found)
            )


async def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = Path("../shared/data")
    parser.add_argument("--locomo", type=Path, default=data / "locomo-dev", metavar="PATH")
    parser.add_argument("--realtalk", type=Path, default=data / "realtalk-dev", metavar="PATH")
    parser.add_argument("--beam", type=Path, default=data / "beam-100k-dev", metavar="PATH")
    parser.add_argument("--beam-500k", type=Path, metavar="PATH", help="run BEAM-500K too, from this folder")
    parser.add_argument("--embedder", choices=("none", "local"), default="none")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="keep vectors here for the next run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    embedder = embedder_named(options.embedder, options.cache)
    systems = [name for name in SYSTEMS if embedder is not None or name != "plain vectors"]
    start = time.perf_counter()
    reports: dict[str, Any] = {}
    for name, which in SETS.items():
        folder: Path | None = getattr(options, name)
        if folder is None:
            continue
        files = sorted(folder.glob(which.pattern))
        if not files:
            print(f"{which.name}: {folder} holds no conversations", file=sys.stderr)
            continue
        reports[which.name] = await measure(which, files, systems, embedder)
        if not options.json:
            show(which, reports[which.name])
    if not reports:
        raise SystemExit("no conversations: give a folder with --locomo, --realtalk or --beam")
    seconds = round(time.perf_counter() - start, 1)
    if options.json:
        print(json.dumps({"embedder": options.embedder, "seconds": seconds, "sets": reports}, indent=2))
    else:
        print(f"\nembedder: {options.embedder}; {seconds:.0f} s")


if __name__ == "__main__":
    asyncio.run(main())
