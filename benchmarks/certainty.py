"""How well a recall knows that memory holds no answer, and where its coefficients come from.

    python benchmarks/certainty.py
    python benchmarks/certainty.py --embedder local --cache ../vectors --fit

Questions that have an answer stand against those that have none: of LoCoMo category 5 (asked about the wrong speaker),
the abstention questions of BEAM (about what the chat is about, but a detail that it never gives), "moved" ones (the
answerable questions of the next conversation of the set, with its speakers' names exchanged for those of this one:
about what was never said here), and scenarios in which half of the topics were never stated: not mentioned at all
("absent"), or only in what others do ("noise"). AUC is how probable it is that a question with an answer gets the
higher confidence; the shares say how many questions of each side fall into a band. "precision" and "recall" are those
of the band "none" where as many questions have an answer as have none. The last lines weigh every set the same, and
both sides of it.

With `--fit` the curve is fitted to all conversations but one, for every one of them, and the AUC of those left out and
the coefficients over all are printed. The conversations are research data, read by path, not part of this repository.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from quality import embedder_named, say

from acms import ACMS, Band, open_storage
from acms.providers import OfflineReflector
from acms.recall.confidence import BY_BOTH, BY_WORDS
from acms.results import POSSIBLE_FROM
from acms_eval import CachedEmbedder, Remembering, corrections, load

MOVED = 80
"""Questions that are moved to another conversation."""
SEEDS = 6
"""Scenarios of each kind."""
OWN = "answerable"
Matrix = np.ndarray


@dataclass(frozen=True, kw_only=True)
class Row:
    """A question that was asked."""

    dataset: str
    #: Whose questions are left out together.
    conversation: str
    #: "answerable", or why it is not.
    kind: str
    confidence: float
    reach: float
    lead: float
    rise: float


async def asked(
    session: ACMS, questions: Sequence[tuple[str, str]], dataset: str, conversation: str
) -> list[Row]:
    rows = []
    for text, kind in questions:
        found = (await session.recall(text, token_budget=1000)).ledger.certainty
        rows.append(
            Row(
                dataset=dataset,
                conversation=conversation,
                kind=kind,
                confidence=found.confidence,
                reach=found.reach,
                lead=found.lead,
                rise=found.rise,
            )
        )
    return rows


def moved(text: str, names: Sequence[str], to: Sequence[str]) -> str:
    for name, other in zip(names, to, strict=False):
        text = re.sub(rf"\b{re.escape(name)}\b", f"\0{other}", text)
    return text.replace("\0", "")


async def conversations(folder: Path, embedder: CachedEmbedder | None) -> list[Row]:
    """Ask every conversation of a set its own questions, and those of the next one."""
    found = load(folder)
    people = [list(dict.fromkeys(one.speaker for one in each.said if one.speaker)) for each in found]
    rows: list[Row] = []
    for place, each in enumerate(found):
        say(f"{each.dataset} {each.name}")
        other = (place + 1) % len(found)
        questions = [
            (
                one.text,
                OWN if one.answerable else f"category {one.group}" if one.group.isdigit() else one.group,
            )
            for one in each.questions
        ]
        if other != place:
            more = [one.text for one in found[other].questions if one.answerable]
            step = max(1, len(more) // MOVED)
            questions += [(moved(text, people[other], people[place]), "moved") for text in more[::step]]
        async with ACMS(each.name, open_storage("memory://"), embedder) as session:
            system = Remembering(session)
            for one in each.said:
                await system.tell(one)
            await system.settle()
            rows += await asked(session, questions, each.dataset, f"{each.dataset} {each.name}")
    return rows


async def scenarios(embedder: CachedEmbedder | None, reflect: bool) -> list[Row]:
    """Ask about topics half of which were never stated."""
    rows: list[Row] = []
    for seed in range(SEEDS):
        for kind in ("absent", "noise"):
            say(f"scenario {seed} {kind}")
            scenario = corrections(turns=400, seed=seed, marked=seed % 2 == 0)
            topics = sorted({one.topic for one in scenario.said if one.topic})
            dropped = set(topics[seed % 2 :: 2])
            reflector = OfflineReflector() if reflect else None
            async with ACMS(
                f"{seed}-{kind}", open_storage("memory://"), embedder, reflector=reflector
            ) as session:
                system = Remembering(session)
                for one in scenario.said:
                    if one.topic not in dropped or (kind == "noise" and one.part == "noise"):
                        await system.tell(one)
                await system.settle()
                questions = [(one.question, kind if one.topic in dropped else OWN) for one in scenario.probes]
                name = f"scenarios, {kind}" + (", facts" if reflect else "")
                rows += await asked(session, questions, name, f"scenario {seed}")
    return rows


# ── figures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def auc(
    answerable: Matrix, other: Matrix, weights: Matrix | None = None, others: Matrix | None = None
) -> float:
    """Return how probable it is that one of the first is higher than one of the second; ties count half."""
    weights = np.ones(len(answerable)) if weights is None else weights
    others = np.ones(len(other)) if others is None else others
    above = (answerable[:, None] > other[None, :]) + 0.5 * (answerable[:, None] == other[None, :])
    return float((weights[:, None] * others[None, :] * above).sum() / (weights.sum() * others.sum()))


def weighed(rows: Sequence[Row]) -> Matrix:
    """Return weights by which every set counts the same, both of its sides, and on these every kind."""
    kinds: defaultdict[tuple[str, bool], set[str]] = defaultdict(set)
    size: defaultdict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        kinds[row.dataset, row.kind == OWN].add(row.kind)
        size[row.dataset, row.kind] += 1
    both = {dataset for dataset, _ in kinds if (dataset, True) in kinds and (dataset, False) in kinds}
    return np.array(
        [
            1 / len(kinds[row.dataset, row.kind == OWN]) / size[row.dataset, row.kind]
            if row.dataset in both
            else 0.0
            for row in rows
        ]
    )


def bands(confidence: Matrix, weights: Matrix) -> str:
    shares = []
    for band in Band:
        inside = np.array([Band.of(float(one)) is band for one in confidence], bool)
        shares.append(f"{100 * weights[inside].sum() / weights.sum():>9.0f}")
    return "".join(shares)


def nothing(confidence: Matrix, own: Matrix, other: Matrix) -> str:
    """Return precision and recall of the band "none" over equal parts with an answer and without."""
    none = confidence < POSSIBLE_FROM
    alarms, right = float(none[own].mean()), float(none[other].mean())
    return f"{right / (right + alarms) if right else 0.0:>11.2f}{right:>8.2f}"


def show(rows: Sequence[Row]) -> None:
    confidence = np.array([row.confidence for row in rows])
    weights = weighed(rows)
    heads = "".join(f"{band:>9}" for band in Band)
    print(f"{'set':<28}{'questions':<22}{'n':>6}{'AUC':>8}{heads}{'precision':>11}{'recall':>8}")
    for dataset in dict.fromkeys(row.dataset for row in rows):
        own = np.array([row.dataset == dataset and row.kind == OWN for row in rows])
        print(f"{dataset:<28}{OWN:<22}{own.sum():>6}{'':>8}{bands(confidence[own], weights[own] + 1e-9)}")
        for kind in sorted({row.kind for row in rows if row.dataset == dataset} - {OWN}):
            other = np.array([row.dataset == dataset and row.kind == kind for row in rows])
            found = auc(confidence[own], confidence[other])
            shares = bands(confidence[other], weights[other] + 1e-9)
            print(f"{'':<28}{kind:<22}{other.sum():>6}{found:>8.3f}{shares}{nothing(confidence, own, other)}")
    own = np.array([row.kind == OWN for row in rows])
    found = auc(confidence[own], confidence[~own], weights[own], weights[~own])
    print(f"\nevery set and both sides of it alike: AUC {found:.3f}")
    for band, side, name in ((Band.NONE, ~own, "no answer"), (Band.STRONG, own, "an answer")):
        inside = np.array([Band.of(float(one)) is band for one in confidence], bool)
        right = weights[inside & side].sum()
        print(
            f"  {band}: {name} in {100 * right / weights[inside].sum():.0f} % of such recalls (precision),"
            f" and {100 * right / weights[side].sum():.0f} % of all questions with {name} are such (recall)"
        )


def fitted(x: Matrix, y: Matrix, weights: Matrix) -> Matrix:
    """Return the coefficients of a logistic curve, the constant first, by Newton's method with a small ridge."""
    x = np.c_[np.ones(len(x)), x]
    found = np.zeros(x.shape[1])
    ridge = np.eye(x.shape[1])
    ridge[0, 0] = 0
    for _ in range(30):
        p = 1 / (1 + np.exp(-x @ found))
        found += np.linalg.solve(
            (x * (weights * p * (1 - p))[:, None]).T @ x + ridge, x.T @ (weights * (y - p)) - ridge @ found
        )
    return found


def fit(rows: Sequence[Row], names: Sequence[str]) -> None:
    x = np.array([[getattr(row, name) for name in names] for row in rows])
    y = np.array([float(row.kind == OWN) for row in rows])
    weights = weighed(rows)
    weights *= len(rows) / weights.sum()
    of = np.array([row.conversation for row in rows])
    left = np.zeros(len(rows))
    for name in dict.fromkeys(of):
        out = of == name
        start, *slopes = fitted(x[~out], y[~out], weights[~out])
        left[out] = start + x[out] @ np.array(slopes)
    own = y > 0
    found = auc(left[own], left[~own], weights[own], weights[~own])
    print(f"\nleaving each conversation out: AUC {found:.3f}")
    print("coefficients: " + ", ".join(f"{value:.2f}" for value in fitted(x, y, weights)))


async def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = Path("../shared/data")
    folders = [data / name for name in ("locomo-dev", "realtalk-dev", "beam-100k-dev")]
    parser.add_argument("--data", type=Path, nargs="+", default=folders, metavar="PATH")
    parser.add_argument("--embedder", choices=("none", "local"), default="none")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="keep vectors here for the next run")
    parser.add_argument("--fit", action="store_true", help="fit the curve, leaving conversations out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    embedder = embedder_named(options.embedder, options.cache)
    rows: list[Row] = []
    for folder in options.data:
        if not folder.exists():
            print(f"{folder} is missing: passed over")
            continue
        rows += await conversations(folder, embedder)
    rows += await scenarios(embedder, reflect=False)
    reflected = await scenarios(embedder, reflect=True)
    say("")
    if options.json:
        print(json.dumps([asdict(row) for row in (*rows, *reflected)], indent=2))
        return
    show(rows)
    print("\nwith facts")
    show(reflected)
    if options.fit:
        names = ("reach", "lead") if embedder is None else ("reach", "lead", "rise")
        fit(rows, names)
        print(f"in use: {BY_WORDS if embedder is None else BY_BOTH}")


if __name__ == "__main__":
    asyncio.run(main())
