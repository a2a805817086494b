"""What reaches the model, and what it costs: evidence in each request, and tokens paid with a prefix cache.

    python benchmarks/request.py --data ../shared/data                   # every set, hours
    python benchmarks/request.py --sets locomo-dev support --limit 2
    python benchmarks/request.py --sets locomo-dev --limit 1 --turns 20  # about a minute
    python benchmarks/request.py --chart frontier.svg --json > report.json

Conversations are replayed message by message with questions along the way (`request_frames`), each way of making a
request is asked at every call of the model (`request_systems`). Data are those of benchmarks/quality.py, a folder for
each set; the support log is made from a seed.

- "evid.": share of the annotated evidence whose text stands in the request; of a text of several lines the share of its
  lines. "stale": requests that hold only evidence that a newer one outdates, of those where there is some.
- "tokens": of the request, o200k_base. "use": median of the share of the budget, where the log is larger than it.
- "cached": tokens of the longest prefix shared with the request before of the same system, of all.
- "paid": tokens at the price of reading from the cache / of all others.
- "p50", "p95": milliseconds of a render, the index being up to date.

"bound" gives all of the budget to recall. "gap" is what is missing to its evidence, in points, "cost" the share of what
it pays, "uncached" the same if it had no cache; means over the budgets, then over frames.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from request_frames import Script, chat, support
from request_systems import SYSTEMS, Sample, replay

from acms import ACMSConfig, RecallConfig
from acms.errors import ACMSError
from acms_eval import CachedEmbedder, load

BUDGETS = (2000, 4000, 8000)
FRAMES = ("chat", "loop", "support")
PRICES = ((0.1, 1.0), (0.1, 1.25), (0.05, 1.25), (0.1, 2.0))
"""Of a token that is read from the cache, and of any other."""
SUPPORT = "support"
SEEDS = 2
"""Support logs, where no limit says otherwise."""
BOUND = "bound"


# ── the run ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def scripts(options: argparse.Namespace) -> list[Script]:
    """Return what is replayed, the longest first."""
    folders = [path for path in sorted(options.data.iterdir()) if path.is_dir()] if options.data else []
    if options.data and not any(options.sets or ()) and not folders:
        folders = [options.data]
    found: list[Script] = []
    for folder in folders:
        if options.sets and folder.name not in options.sets:
            continue
        try:
            conversations = load(folder)[: options.limit]
        except ACMSError as error:
            print(error, file=sys.stderr)
            continue
        for frame in ("chat", "loop"):
            if frame in options.frames:
                found += [chat(one, options.turns, loop=frame == "loop") for one in conversations]
    if SUPPORT in options.frames and (not options.sets or SUPPORT in options.sets):
        found += [support(seed, options.turns) for seed in range(1, (options.limit or SEEDS) + 1)]
    return sorted((one for one in found if one.turns), key=lambda one: -one.calls)


_done: Any = None
"""Requests made so far in all processes, of the process that counts them."""


def _begin(done: Any) -> None:
    global _done
    _done = done


def _step() -> None:
    with _done.get_lock():
        _done.value += 1


def replayed(script: Script, options: argparse.Namespace) -> list[Sample]:
    """Replay one script, in whatever process this is."""
    embedder = None
    if options.embedder == "local":
        from acms.providers import LocalEmbedder

        embedder = CachedEmbedder(LocalEmbedder())
    chosen = [one for one in SYSTEMS if not options.systems or one.name in options.systems]
    config = None if options.effort is None else ACMSConfig(recall=RecallConfig(effort=options.effort))
    return asyncio.run(
        replay(script, chosen, options.budgets, embedder=embedder, config=config, progress=_step)
    )


def run(found: Sequence[Script], options: argparse.Namespace) -> list[Sample]:
    """Replay all scripts, several at a time, and tell whoever is watching how far it is."""
    context = multiprocessing.get_context("spawn")
    done, total = context.Value("i", 0), sum(one.calls for one in found)
    samples: list[Sample] = []
    with ProcessPoolExecutor(options.jobs, context, _begin, (done,)) as pool:
        tasks = [pool.submit(replayed, one, options) for one in found]
        while not all(one.done() for one in tasks):
            time.sleep(0.2)
            if sys.stderr.isatty():
                bar = "#" * (30 * done.value // total)
                print(f"\r[{bar:<30}] {done.value} of {total}", end="", file=sys.stderr, flush=True)
        for task in tasks:
            samples += task.result()
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    return samples


# ── figures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Row(NamedTuple):
    """The figures of one system at one budget in one frame of one set."""

    dataset: str
    frame: str
    #: 0: the same for each.
    budget: int
    system: str
    requests: int
    failed: int
    evidence: float
    stale: float | None
    tokens: float
    use: float | None
    cached: float
    #: By price.
    paid: tuple[float, ...]
    p50: float
    p95: float


def row(key: tuple[str, str, int, str], samples: Sequence[Sample]) -> Row:
    """Return the means over the requests of one kind; a request that failed holds and costs nothing."""
    made = [one for one in samples if not one.failed]
    outdated = [one.stale for one in made if one.stale is not None]
    budget = key[2]
    used = [one.tokens / budget for one in made if budget and one.log > budget]
    took = sorted(one.seconds * 1e3 for one in samples)
    total = sum(one.tokens for one in made)
    return Row(
        *key,
        requests=len(samples),
        failed=len(samples) - len(made),
        evidence=fmean(one.evidence for one in samples),
        stale=fmean(outdated) if outdated else None,
        tokens=total / max(1, len(made)),
        use=median(used) if used else None,
        cached=sum(one.shared for one in made) / max(1, total),
        paid=tuple(
            sum(read * one.shared + write * (one.tokens - one.shared) for one in made) / max(1, len(made))
            for read, write in PRICES
        ),
        p50=median(took),
        p95=took[math.ceil(len(took) * 0.95) - 1],
    )


def rows(samples: Iterable[Sample]) -> list[Row]:
    """Return a row for each system at each budget in each frame, as the systems are listed."""
    groups: dict[tuple[str, str, int, str], list[Sample]] = {}
    for one in samples:
        groups.setdefault((one.dataset, one.frame, one.budget, one.system), []).append(one)
    order = {one.name: place for place, one in enumerate(SYSTEMS)}
    found = [row(key, some) for key, some in groups.items()]
    return sorted(found, key=lambda one: (one.dataset, one.frame, one.budget or math.inf, order[one.system]))


class Distance(NamedTuple):
    """How far a system is from the bound: means over budgets."""

    #: Points of evidence.
    gap: float
    cost: float
    #: The same, if the bound paid for all of its tokens.
    uncached: float


def distances(found: Sequence[Row]) -> dict[str, dict[str, dict[str, Distance]]]:
    """Return how far each system is from the bound, by set, system and frame; "both" is the mean of chat and loop."""
    bounds = {(one.dataset, one.frame, one.budget): one for one in found if one.system == BOUND}
    result: dict[str, dict[str, dict[str, Distance]]] = {}
    for dataset in dict.fromkeys(one.dataset for one in found):
        for system in dict.fromkeys(one.system for one in found if one.budget and one.system != BOUND):
            frames: dict[str, Distance] = {}
            for frame in FRAMES:
                pairs = [
                    (one, bounds[dataset, frame, one.budget])
                    for one in found
                    if (one.dataset, one.frame, one.system) == (dataset, frame, system)
                    and (dataset, frame, one.budget) in bounds
                ]
                if pairs:
                    frames[frame] = Distance(
                        fmean(100 * (most.evidence - one.evidence) for one, most in pairs),
                        fmean(one.paid[0] / most.paid[0] for one, most in pairs),
                        fmean(one.paid[0] / most.tokens for one, most in pairs),
                    )
            if "chat" in frames and "loop" in frames:
                both = zip(frames["chat"], frames["loop"], strict=True)
                frames["both"] = Distance(*(fmean(pair) for pair in both))
            result.setdefault(dataset, {})[system] = frames
    return result


# ── the report ──────────────────────────────────────────────────────────────────────────────────────────────────────


def table(found: Sequence[Row]) -> str:
    """Return all rows, a block for each frame of each set."""
    priced = "".join(f"{f'{read:g}/{write:g}':>10}" for read, write in PRICES)
    head = (
        f"{'budget':>7}  {'system':<14}{'evid.':>6}{'stale':>7}{'tokens':>8}{'use':>6}{'cached':>8}{priced}"
    )
    head += f"{'p50':>7}{'p95':>7}"
    blocks: list[str] = []
    for dataset, frame in dict.fromkeys((one.dataset, one.frame) for one in found):
        some = [one for one in found if (one.dataset, one.frame) == (dataset, frame)]
        lines = [f"{dataset}, {frame}: {some[0].requests} requests; paid at four prices, milliseconds", head]
        lines += map(line, some)
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def line(one: Row) -> str:
    stale = "" if one.stale is None else f"{100 * one.stale:.1f}"
    use = "" if one.use is None else f"{one.use:.2f}"
    paid = "".join(f"{price:>10.0f}" for price in one.paid)
    failed = f"  {one.failed} failed" if one.failed else ""
    return (
        f"{one.budget or '–':>7}  {one.system:<14}{100 * one.evidence:>6.1f}{stale:>7}{one.tokens:>8.0f}{use:>6}"
        f"{100 * one.cached:>7.1f}%{paid}{one.p50:>7.1f}{one.p95:>7.1f}{failed}"
    )


def summary(found: Sequence[Row]) -> str:
    """Return how far each system is from the bound, a block for each set."""
    blocks: list[str] = []
    for dataset, systems in distances(found).items():
        names = [name for name in (*FRAMES, "both") if any(name in one for one in systems.values())]
        heads = "".join(f"{name + ': gap':>14}{'cost':>7}{'uncached':>9}" for name in names)
        lines = [f"{dataset}, beside the bound", f"{'system':<14}{heads}"]
        for system, frames in systems.items():
            cells = "".join(
                f"{frames[name].gap:>14.1f}{frames[name].cost:>7.2f}{frames[name].uncached:>9.2f}"
                if name in frames
                else " " * 30
                for name in names
            )
            lines.append(f"{system:<14}{cells}")
        if names:
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def chart(found: Sequence[Row]) -> str:
    """Return the frontier as SVG: evidence against tokens paid, means over sets and frames, a line for each system."""
    from acms_eval.charts import Axis, Chart, Point, Series, draw_svg

    points: dict[str, list[Point]] = {}
    for system, budget in dict.fromkeys((one.system, one.budget) for one in found):
        some = [one for one in found if (one.system, one.budget) == (system, budget)]
        label = f"{budget:,} tokens" if budget else "whole log"
        paid, evidence = fmean(one.paid[0] for one in some), fmean(one.evidence for one in some)
        points.setdefault(system, []).append(Point(x=paid, y=evidence, label=label))
    names = sorted(points, key=[one.name for one in SYSTEMS].index)
    return draw_svg(
        Chart(
            name="request-frontier",
            title="Evidence in a request, and what it costs",
            text="Share of the evidence that is in a request, against the tokens paid for it with a prefix cache.",
            x=Axis(label="tokens paid for a request, a cached one counting 0.1", log=True),
            y=Axis(label="evidence in the request", unit="share"),
            series=tuple(
                Series(name=name, points=tuple(points[name]), style=place, dashed=place > 7)
                for place, name in enumerate(names)
            ),
        )
    )


def parsed() -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given = os.environ.get("ACMS_DATA")
    names = [one.name for one in SYSTEMS]
    parser.add_argument("--data", type=Path, default=Path(given) if given else None, metavar="FOLDER")
    parser.add_argument("--sets", nargs="+", metavar="NAME", help=f"folders of the data, or {SUPPORT}")
    parser.add_argument("--frames", nargs="+", choices=FRAMES, default=FRAMES)
    parser.add_argument("--systems", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS)
    parser.add_argument("--limit", type=int, metavar="N", help="the first conversations of each set only")
    parser.add_argument(
        "--turns", type=int, metavar="N", help="the first questions of each conversation only"
    )
    parser.add_argument(
        "--effort", type=float, metavar="SHARE", help="of RecallConfig, instead of its default"
    )
    parser.add_argument("--embedder", choices=("none", "local"), default="none")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--chart", type=Path, metavar="FILE", help="draw the frontier here, as SVG")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main(show: Callable[[str], object] = print) -> None:
    """Run and print."""
    options = parsed()
    found = scripts(options)
    if not found:
        raise SystemExit("nothing to replay: give a folder with --data, and its sets with --sets")
    start = time.perf_counter()
    figures = rows(run(found, options))
    if options.chart is not None:
        options.chart.write_text(chart(figures), encoding="utf-8")
    if options.json:
        apart = distances(figures)
        told = {
            name: {
                system: {frame: one._asdict() for frame, one in some.items()} for system, some in of.items()
            }
            for name, of in apart.items()
        }
        show(
            json.dumps(
                {"prices": PRICES, "rows": [one._asdict() for one in figures], "bound": told}, indent=1
            )
        )
        return
    show(
        f"{table(figures)}\n\n{summary(figures)}\n\nembedder: {options.embedder}; {time.perf_counter() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
