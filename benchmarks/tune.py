"""Choose the constants of the ranking, and say what the choice is worth on conversations that had no part in it.

    python benchmarks/tune.py --cache ../vectors
    python benchmarks/tune.py --embedder none --folds 0

The procedure. Beginning with plain constants, one constant after the other is set to each of a few round values, and
moves to the best one when that gains more than 0.03 points; this is repeated until a whole round moves none. What is
gained is the mean of the goal figures of LoCoMo, REALTALK and BEAM-100K, each set and each tier (without a model, with
the embedder) alike. So one configuration is chosen for all sets and both tiers.

Then the same with conversations left out: every fold chooses on the conversations of the other folds, of all sets
together, and is measured on those it left out. "chosen" is what the choice on everything reaches on everything, "left
out" what choices reach on conversations they never saw. The margin over plain BM25 is shown for both, the first with
its 95 % bootstrap interval over conversations and questions; "yes" says that the second is not below that interval.

Every question is ranked by `acms.recall.rank.rank` itself: the 256 best. Figures of one configuration are computed
once, whatever folds ask for them; an idle machine with two cores takes some minutes. The conversations are described in
`benchmarks/quality.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from acms import ACMS, open_storage
from acms.errors import ACMSError
from acms.recall import rank as ranking
from acms.recall.corpus import Field
from acms.recall.pipeline import ranked
from acms.recall.rank import Question, rank
from acms.recall.vector_score import Cosines, Meaning, by_meaning, cosines
from acms.recall.vectors import Floats, Ints
from acms.recall.weights import WEIGHTS, Weights
from acms_eval import CachedEmbedder, bootstrap, load
from acms_eval.baselines import PlainBM25
from acms_eval.datasets import Conversation
from acms_eval.retrieval import budgets, costs, figures

GOALS: Mapping[str, tuple[str, ...]] = {
    "LoCoMo": ("R@10", "nDCG@10", "B1k", "B2k"),
    "REALTALK": ("R@10", "B1k", "B2k"),
    "BEAM-100K": ("R@10", "B4k", "B16k"),
}
START = Weights(
    floor=0.5,
    length=40.0,
    day_length=500.0,
    day=0.2,
    question=0.2,
    whole=0.5,
    part=0.5,
    reply=0.0,
    terse=0.0,
    long=0.0,
    named=1.0,
    addressed=1.0,
    asking=1.0,
    timed=1.0,
)
VALUES: Mapping[str, tuple[float, ...]] = {
    "terse": (0.0, 0.4, 0.7, 1.0, 1.3),
    "long": (0.0, 0.1, 0.2, 0.3),
    "window": (0.6, 0.8, 1.0, 1.3),
    "day": (0.2, 0.3, 0.4, 0.5, 0.6),
    "named": (1.0, 1.2, 1.35, 1.5, 1.7),
    "whole": (0.3, 0.4, 0.5, 0.6, 0.75),
    "part": (0.15, 0.25, 0.35, 0.5),
    "question": (0.2, 0.4, 0.6),
    "addressed": (0.7, 0.75, 0.8, 0.85, 0.9, 1.0),
    "timed": (1.0, 1.2, 1.3, 1.4),
    "asking": (0.9, 0.95, 1.0),
    "reply": (0.0, 0.05, 0.1, 0.15, 0.2),
    "length": (40.0, 50.0, 60.0, 80.0),
    "day_length": (500.0, 700.0, 1000.0, 1500.0),
    "floor": (0.2, 0.3, 0.4, 0.5),
}
MEANING = ("whole", "part", "reply", "unrelated_whole", "unrelated_part")
"""Constants that change nothing without an embedder."""
LEAST = 0.03
"""Points that a constant must gain to be moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A conversation, indexed, and its questions as the index asks them."""

    name: str
    dataset: str
    field: Field
    #: Question, gold.
    asked: list[tuple[Question, frozenset[int]]]
    lines: list[int]
    #: Figures of plain BM25, by question.
    plain: list[dict[str, float]]


async def prepared(conversation: Conversation, embedder: Any) -> Prepared:
    session = ACMS(conversation.name, open_storage("memory://"), embedder)
    said = [
        {"role": one.role, "content": one.text, "actor_id": one.speaker, "created_at": one.created_at}
        for one in conversation.said
    ]
    for start in range(0, len(said), 500):
        await session.ingest_many(said[start : start + 500])
    if embedder is not None:
        await session.wait_pending()
    shared = session._shared  # the index itself is not part of the public API
    reader, context = shared.reader(), await shared.find()
    lines = costs(conversation)
    sizes = budgets(conversation.dataset)
    bm25 = PlainBM25()
    for one in conversation.said:
        await bm25.tell(one)
    await bm25.settle()
    asked: list[tuple[Question, frozenset[int]]] = []
    plain: list[dict[str, float]] = []
    field: Field | None = None
    for question in conversation.questions:
        if question.gold and question.answerable:
            found = await ranked(reader, context, None, question.text, 1, {})
            field = found.field
            asked.append((found.question, question.gold))
            scores = bm25.scores(question.text)
            order = sorted(scores, key=lambda index: (-scores[index], index))
            plain.append(figures(order, question.gold, lines, sizes))
    assert field is not None
    assert len(field) == len(said)
    return Prepared(
        name=conversation.name,
        dataset=conversation.dataset,
        field=field,
        asked=asked,
        lines=lines,
        plain=plain,
    )


CONVERSATIONS: list[Prepared] = []
"""What is measured; processes that help inherit it."""


def remember_cosines() -> None:
    """Let `rank` look up the cosines of its questions: they depend on no constant, and take most of its time."""
    meant: dict[int, tuple[Meaning, Cosines]] = {}
    for one in CONVERSATIONS:
        for asked, _ in one.asked:
            if asked.vector is not None and asked.space is not None:
                everything = np.arange(len(one.field))
                meant[id(asked.vector)] = (
                    by_meaning(one.field, asked.space, asked.vector),
                    cosines(one.field, asked.space, asked.vector, everything),
                )

    def known(field: Field, space: str, query: Floats) -> Meaning:
        return meant[id(query)][0]

    def exact(field: Field, space: str, query: Floats, places: Ints) -> Cosines:
        found = meant[id(query)][1]
        return Cosines(found.whole[places], found.best[places])

    ranking.by_meaning, ranking.cosines = known, exact


def measured(number: int, weights: Weights, meaning: bool) -> list[dict[str, float]]:
    """Return the figures of every question about a conversation."""
    one = CONVERSATIONS[number]
    field = Field(one.field.snapshot, one.field.cover, weights=weights)
    sizes = budgets(one.dataset)
    found: list[dict[str, float]] = []
    for question, gold in one.asked:
        asked = question if meaning else replace(question, space=None, vector=None)
        order = field.documents(rank(field, asked).places).tolist()
        found.append(figures(order, gold, one.lines, sizes))
    return found


Rows = list[list[dict[str, float]]]
"""Figures by conversation and question."""


class Table:
    """The figures of every configuration that was ever asked for."""

    def __init__(self, tiers: Sequence[bool], pool: Executor) -> None:
        self.tiers = tiers
        self._pool = pool
        self._rows: dict[tuple[Weights, bool], Rows] = {}
        self._goals: dict[tuple[Weights, bool], list[float]] = {}

    def rows(self, weights: Weights, meaning: bool) -> Rows:
        if not meaning:
            weights = replace(weights, **{name: getattr(WEIGHTS, name) for name in MEANING})
        key = (weights, meaning)
        if key not in self._rows:
            numbers = range(len(CONVERSATIONS))
            self._rows[key] = list(
                self._pool.map(measured, numbers, [weights] * len(numbers), [meaning] * len(numbers))
            )
        return self._rows[key]

    def worth(self, weights: Weights, numbers: Iterable[int]) -> float:
        """Return the mean of the goal figures over some conversations, in points."""
        chosen = list(numbers)
        found: list[float] = []
        for meaning in self.tiers:
            rows = self.rows(weights, meaning)
            for dataset, names in GOALS.items():
                some = [row for n in chosen if CONVERSATIONS[n].dataset == dataset for row in rows[n]]
                if some:
                    found.append(fmean(fmean(row[name] for row in some) for name in names))
        return 100 * fmean(found)

    @property
    def size(self) -> int:
        return len(self._rows)


def chosen(table: Table, numbers: Sequence[int], say: str) -> Weights:
    """Return the constants that some conversations choose."""
    weights, moved = START, True
    best = table.worth(weights, numbers)
    while moved:
        moved = False
        for name, values in VALUES.items():
            if name in MEANING and True not in table.tiers:
                continue
            others = [
                replace(weights, **{name: value}) for value in values if value != getattr(weights, name)
            ]
            worth, other = max(((table.worth(one, numbers), one) for one in others), key=lambda one: one[0])
            if worth > best + LEAST:
                weights, best, moved = other, worth, True
            progress(f"{say}: {best:.2f} after {name}; {table.size} configurations measured")
    return weights


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def told(weights: Weights) -> str:
    return ", ".join(f"{one.name} {getattr(weights, one.name):g}" for one in fields(weights))


def show(table: Table, final: Weights, of: Sequence[Weights] | None, seed: int) -> bool:
    """Print every goal figure; `of` are the constants each conversation is measured with when it is left out."""
    fine = True
    heads = ("BM25", "start", "shipped", "chosen", *(("left out",) if of else ()))
    print(f"\n{'':<38}" + "".join(f"{head:>10}" for head in heads), end="")
    print(f"   {'margin':>7} {'95 % interval':>16} {'left out':>9}" if of else "")
    for meaning in table.tiers:
        tier = "with the embedder" if meaning else "no model"
        for dataset, names in GOALS.items():
            numbers = [n for n, one in enumerate(CONVERSATIONS) if one.dataset == dataset]
            clusters = [CONVERSATIONS[n].name for n in numbers for _ in CONVERSATIONS[n].asked]
            for name in names:

                def column(rows: Rows, name: str = name, numbers: Sequence[int] = numbers) -> list[float]:
                    return [100 * row[name] for n in numbers for row in rows[n]]

                plain = column([one.plain for one in CONVERSATIONS])
                best = column(table.rows(final, meaning))
                columns = [plain, *(column(table.rows(one, meaning)) for one in (START, WEIGHTS)), best]
                out = (
                    None
                    if of is None
                    else column([table.rows(of[n], meaning)[n] for n in range(len(CONVERSATIONS))])
                )
                if out is not None:
                    columns.append(out)
                print(f"{tier:<18} {dataset:<10}{name:<9}", end="")
                print("".join(f"{fmean(values):>10.1f}" for values in columns), end="" if out else "\n")
                if out is None:
                    continue
                margin = bootstrap.interval(
                    [a - b for a, b in zip(best, plain, strict=True)], clusters, seed=seed
                )
                less = fmean(out) - fmean(plain)
                kept = less >= margin.low
                fine &= kept
                print(
                    f"   {margin.mean:>+7.1f} {f'{margin.low:+.1f} to {margin.high:+.1f}':>16} {less:>+9.1f}"
                    f" {'yes' if kept else 'NO'}"
                )
    return fine


async def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = Path("../shared/data")
    parser.add_argument("--locomo", type=Path, default=data / "locomo-dev", metavar="PATH")
    parser.add_argument("--realtalk", type=Path, default=data / "realtalk-dev", metavar="PATH")
    parser.add_argument("--beam", type=Path, default=data / "beam-100k-dev", metavar="PATH")
    parser.add_argument("--embedder", choices=("none", "local"), default="local")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="keep vectors here for the next run")
    parser.add_argument("--folds", type=int, default=5, help="0: choose on everything only")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap")
    options = parser.parse_args()
    begin = time.perf_counter()
    embedder: CachedEmbedder | None = None
    if options.embedder == "local":
        from acms.providers import LocalEmbedder

        embedder = CachedEmbedder(LocalEmbedder(), options.cache / "vectors.db" if options.cache else None)
    folds: list[int] = []
    try:
        for path in (options.locomo, options.realtalk, options.beam):
            for place, conversation in enumerate(load(path)):
                progress(f"{conversation.dataset} {conversation.name}")
                CONVERSATIONS.append(await prepared(conversation, embedder))
                folds.append(place % options.folds if options.folds else 0)
    except ACMSError as error:
        raise SystemExit(f"needs the conversations of all three sets: {error}") from error
    remember_cosines()
    everything = range(len(CONVERSATIONS))
    tiers = (False,) if embedder is None else (False, True)
    with ProcessPoolExecutor(options.processes, get_context("fork")) as pool:
        table = Table(tiers, pool)
        final = chosen(table, everything, "everything")
        of: list[Weights] | None = None
        if options.folds:
            by_fold = [
                chosen(table, [n for n in everything if folds[n] != fold], f"without fold {fold + 1}")
                for fold in range(options.folds)
            ]
            of = [by_fold[fold] for fold in folds]
        progress("")
        questions = sum(len(one.asked) for one in CONVERSATIONS)
        print(f"{len(CONVERSATIONS)} conversations, {questions} questions, {table.size} configurations")
        print(f"\nshipped  {table.worth(WEIGHTS, everything):.2f}  {told(WEIGHTS)}")
        print(f"chosen   {table.worth(final, everything):.2f}  {told(final)}")
        for fold, weights in enumerate(by_fold if options.folds else ()):
            print(f"fold {fold + 1}   {table.worth(weights, everything):.2f}  {told(weights)}")
        fine = show(table, final, of, options.seed)
    print(f"\n{time.perf_counter() - begin:.0f} s")
    raise SystemExit(0 if fine else 1)


if __name__ == "__main__":
    asyncio.run(main())
