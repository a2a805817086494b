"""Choose the constants of the ranking, and say what the choice is worth on sets that had no part in it.

    python benchmarks/tune.py --cache ../vectors
    python benchmarks/tune.py --embedder none --quick

The procedure. A few hundred choices are drawn at random, each constant from a few round values, and every one is
measured. What counts is the mean over *data sets* of the share of evidence within half, all and twice the main budget
of a set; the tier without a model and the one with the embedder count alike. To these means an additive model is
fitted: what each value of each constant adds. Every constant takes the value that adds most, or a plainer one that adds
no more than 0.1 points less. One value is judged by dozens of choices, so it depends little on any one set, and the
table of effects says which constants matter. One choice serves all sets and tiers.

Then the same with every data set left out in turn: "left out" is what a set reaches with constants that were chosen on
the other sets, "chosen" with those chosen on all, each at its main budget. Last, what every feature is worth: the
chosen constants with one of them switched off.

Sets are LoCoMo, REALTALK, BEAM, Vehicle and MemSim (see `benchmarks/quality.py`), and as logs of agents what
`acms_eval.SCENARIOS` writes. Of a set with many questions an even selection is asked. Messages are packed in the order
of `acms.recall.rank.rank`: a whole recall also links, groups and fills, and is measured by `benchmarks/quality.py`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from acms.recall.rank import Question as Query
from acms.recall.rank import rank
from quality import SETS, embedder_named, say

from acms import ACMS, open_storage
from acms.providers.tokens import BPETokenCounter
from acms.recall.corpus import WEIGHTS, Field, Weights
from acms.recall.pipeline import ranked
from acms.text.markers import own_terms
from acms_eval import SCENARIOS, Conversation, Question, carries, load

VALUES: Mapping[str, tuple[float, ...]] = {
    "k": (0.8, 0.5, 0.3, 0.2),
    "b": (0.75, 0.5, 0.9),
    "length": (20.0, 15.0, 30.0, 40.0),
    "rarity": (1.0, 1.25, 1.5),
    "near": (0.5, 0.75, 1.0, 1.3),
    "feedback": (0.0, 0.2, 0.35, 0.5),
    "lenders": (8, 16),
    "named": (1.0, 1.25, 1.5, 1.75),
    "price": (0.0, 0.15, 0.3, 0.45),
    "meaning": (0.5, 0.3, 0.4, 0.6),
}
"""Of each constant, the plainest first."""
OFF = {"near": 0.0, "rarity": 1.0, "feedback": 0.0, "named": 1.0, "price": 0.0, "b": 0.0, "meaning": 0.0}
"""Values at which a constant does nothing."""
DRAWN = 200
"""Choices that are drawn."""
SLACK = 0.1
"""Points that a value must add over a plainer one."""
BUDGETS = {"BEAM-100K": 4000, "BEAM-500K": 4000, "agents": 200}
"""Main budgets; of other sets 1,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A conversation, indexed, and its questions as the index asks them."""

    dataset: str
    field: Field
    asked: list[tuple[Query, frozenset[int]]]
    #: Tokens of each message, and the first message that says the same.
    lines: list[int]
    firsts: list[int]


CONVERSATIONS: list[Prepared] = []
"""What is measured; processes that help inherit it."""


def agents() -> Iterable[Conversation]:
    """Yield the scenarios as conversations: what states an answer is the evidence for it."""
    for name, build in SCENARIOS.items():
        scenario = build(turns=400, seed=0)
        questions: list[Question] = []
        for probe in scenario.probes:
            gold = frozenset(
                place
                for place, one in enumerate(scenario.said)
                if one.part in ("fact", "correction")
                and any(carries(one.text, word) for word in probe.expected)
            )
            if gold and probe.after == len(scenario.said):
                questions.append(Question(text=probe.question, group=name, gold=gold))
        if questions:
            yield Conversation(name=name, dataset="agents", said=scenario.said, questions=tuple(questions))


async def prepared(conversation: Conversation, questions: Sequence[Question], embedder: Any) -> Prepared:
    session = ACMS(conversation.name, open_storage("memory://"), embedder)
    said = [
        {"role": one.role, "content": one.text, "actor_id": one.speaker, "created_at": one.created_at}
        for one in conversation.said
    ]
    for start in range(0, len(said), 500):
        await session.ingest_many(said[start : start + 500])
    await session.wait_pending()
    shared = session._shared  # the index itself is not part of the public API
    reader, context = shared.reader(), await shared.find()
    count, firsts = BPETokenCounter("cl100k_base").count, conversation.firsts()
    found = [await ranked(reader, context, None, one.text, 1, own_terms()) for one in questions]
    return Prepared(
        dataset=conversation.dataset,
        field=found[0].field,
        asked=[
            (one.question, frozenset(firsts[place] for place in question.gold))
            for one, question in zip(found, questions, strict=True)
        ],
        lines=[count(f"{one.speaker or one.role}: {one.text}\n") for one in conversation.said],
        firsts=firsts,
    )


def measured(number: int, weights: Weights, meaning: bool) -> list[tuple[float, float, float]]:
    """Return the share of evidence within half, all and twice the main budget, for each question."""
    one = CONVERSATIONS[number]
    field = Field(one.field.snapshot, one.field.cover, weights)
    main = BUDGETS.get(one.dataset, 1000)
    found: list[tuple[float, float, float]] = []
    for question, gold in one.asked:
        query = question if meaning else replace(question, space=None, vector=None)
        places = field.documents(rank(field, query).places).tolist()
        order = list(dict.fromkeys(one.firsts[place] for place in places))
        half, full, double = (packed(order, one.lines, gold, size) for size in (main // 2, main, 2 * main))
        found.append((half, full, double))
    return found


def packed(order: Sequence[int], lines: Sequence[int], gold: frozenset[int], size: int) -> float:
    held = 0
    for place in order:
        if lines[place] <= size:
            size -= lines[place]
            held += place in gold
    return 100 * held / len(gold)


class Table:
    """The figures of every configuration that was ever asked for, by data set and tier."""

    def __init__(self, tiers: Sequence[bool], pool: Executor) -> None:
        self.tiers = tiers
        self.sets = list(dict.fromkeys(one.dataset for one in CONVERSATIONS))
        self._pool = pool
        self._known: dict[tuple[Weights, bool], dict[str, tuple[float, float]]] = {}

    def figures(self, weights: Weights, meaning: bool) -> dict[str, tuple[float, float]]:
        """Return for each set the goal and the share at the main budget."""
        key = (weights if meaning else replace(weights, meaning=WEIGHTS.meaning), meaning)
        if key not in self._known:
            numbers = range(len(CONVERSATIONS))
            rows = self._pool.map(measured, numbers, [weights] * len(numbers), [meaning] * len(numbers))
            by_set: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)
            for one, found in zip(CONVERSATIONS, rows, strict=True):
                by_set[one.dataset] += found
            self._known[key] = {
                name: (fmean(map(fmean, found)), fmean(row[1] for row in found))
                for name, found in by_set.items()
            }
            say(f"{len(self._known)} configurations")
        return self._known[key]

    def goal(self, weights: Weights, sets: Iterable[str]) -> float:
        """Return what is maximised: the mean over some sets and all tiers."""
        chosen = list(sets)
        return fmean(self.figures(weights, tier)[name][0] for tier in self.tiers for name in chosen)

    def main(self, weights: Weights, meaning: bool) -> list[float]:
        return [self.figures(weights, meaning)[name][1] for name in self.sets]


def drawn(count: int) -> list[Weights]:
    """Return choices of constants, drawn from all their values."""
    rng = random.Random(0)
    return [
        Weights(**{name: rng.choice(values) for name, values in VALUES.items()})  # type: ignore[arg-type]
        for _ in range(count)
    ]


def effects(table: Table, choices: Sequence[Weights], sets: Sequence[str]) -> dict[str, list[float]]:
    """Return what each value of each constant adds over the first one, by least squares."""
    columns = [(name, value) for name, values in VALUES.items() for value in values[1:]]
    x = np.array([[1.0, *(getattr(one, name) == value for name, value in columns)] for one in choices])
    y = np.array([table.goal(one, sets) for one in choices])
    added = iter(np.linalg.lstsq(x, y, rcond=None)[0][1:].tolist())
    return {name: [0.0, *(next(added) for _ in values[1:])] for name, values in VALUES.items()}


def chosen(found: Mapping[str, Sequence[float]]) -> Weights:
    """Return of each constant the plainest value that adds about as much as the best."""
    best = {
        name: next(value for value, one in zip(VALUES[name], added, strict=True) if one >= max(added) - SLACK)
        for name, added in found.items()
    }
    return Weights(**best)  # type: ignore[arg-type]


def line(name: str, values: Sequence[float], plus: str = "") -> None:
    print(f"{name:<22}" + "".join(f"{value:>{plus}11.1f}" for value in (*values, fmean(values))))


def told(weights: Weights) -> str:
    return ", ".join(f"{name}={getattr(weights, name):g}" for name in VALUES)


def show(table: Table, final: Weights, without: Mapping[str, Weights]) -> None:
    """Print the figures at the main budgets, tier by tier."""
    heads = (*table.sets, "mean")
    for meaning in table.tiers:
        print(
            f"\n{'with the embedder' if meaning else 'no model':<22}" + "".join(f"{one:>11}" for one in heads)
        )
        line("shipped", table.main(WEIGHTS, meaning))
        values = table.main(final, meaning)
        line("chosen", values)
        left = [table.figures(without[name], meaning)[name][1] for name in table.sets]
        line("left out", left)
        line("difference", [one - other for one, other in zip(left, values, strict=True)], "+")
        for name, value in OFF.items():
            if name != "meaning" or meaning:
                off = table.main(replace(final, **{name: value}), meaning)
                line(f"  without: {name}={value:g}", [a - b for a, b in zip(off, values, strict=True)], "+")


async def prepare(options: argparse.Namespace) -> None:
    """Index all conversations."""
    embedder = embedder_named(options.embedder, options.cache)
    by_set: defaultdict[str, list[Conversation]] = defaultdict(list)
    for one in (*(one for path in options.data for one in load(path)), *agents()):
        by_set[one.dataset].append(one)
    most = 40 if options.quick else 150
    for dataset, conversations in by_set.items():
        asked = [(one, q) for one in conversations for q in one.questions if q.gold and q.answerable]
        step = max(1, round(len(asked) / most))
        say(dataset)
        for one in conversations:
            if questions := [q for other, q in asked[::step] if other is one]:
                CONVERSATIONS.append(await prepared(one, questions, embedder))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = [Path("../shared/data") / name for name in SETS]
    parser.add_argument("--data", type=Path, nargs="+", default=data, metavar="PATH")
    parser.add_argument("--embedder", choices=("none", "local"), default="local")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="keep vectors here for the next run")
    parser.add_argument("--quick", action="store_true", help="fewer questions and choices")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    begin = time.perf_counter()
    asyncio.run(prepare(options))
    tiers = (False,) if options.embedder == "none" else (False, True)
    with ProcessPoolExecutor(options.processes, get_context("fork")) as pool:
        table = Table(tiers, pool)
        questions = sum(len(one.asked) for one in CONVERSATIONS)
        choices = drawn(40 if options.quick else DRAWN)
        found = effects(table, choices, table.sets)
        final = chosen(found)
        without = {
            name: chosen(effects(table, choices, [one for one in table.sets if one != name]))
            for name in table.sets
        }
        say("")
        print(f"{len(CONVERSATIONS)} conversations, {questions} questions")
        print(f"drawn   {fmean(table.goal(one, table.sets) for one in choices):.2f} on average")
        print(f"shipped {table.goal(WEIGHTS, table.sets):.2f}  {told(WEIGHTS)}")
        print(f"chosen  {table.goal(final, table.sets):.2f}  {told(final)}")
        for name, weights in without.items():
            print(f"without {name}: {told(weights)}")
        print("\nwhat a value adds, in points")
        for name, added in found.items():
            values = zip(VALUES[name], added, strict=True)
            print(f"{name:<10}" + "".join(f"{f'{value:g}':>8} {one:+.2f}" for value, one in values))
        show(table, final, without)
    print(f"\n{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
