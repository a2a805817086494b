"""How well ACMS finds what answers a question, on real conversations, beside other systems.

    python benchmarks/quality.py
    python benchmarks/quality.py --embedder local --cache ../vectors --systems acms --full
    python benchmarks/quality.py --embedder local --cache ../vectors --data ../shared/data/vehicle-dev --first 3

The conversations are research data, read by path and not part of this repository: LoCoMo (snap-research, CC BY-NC 4.0),
REALTALK (danny911kr/REALTALK, no licence stated), BEAM (mohammadtavakoli78/BEAM, no licence stated), VehicleMemBench
(isyuhaochen/VehicleMemBench, Apache-2.0), MemSim (nuster1128/MemSim, no licence stated) and LongMemEval
(xiaowu0162/LongMemEval, MIT). A folder that is missing is named and passed over; `--data` takes other paths.

`acms_eval.retrieval` defines every figure; all are means over questions, in percent, of real recalls with default
settings. A line shows a set at its main budgets; with `--full` also the other budgets and the kinds of question.
"acms, past only" leaves the current episode out, "acms, offline" distils facts as it reads.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

from acms.errors import ACMSError
from acms_eval import CachedEmbedder, Conversation, evaluate, load, systems
from acms_eval.retrieval import Progress

SETS = ("locomo-dev", "realtalk-dev", "beam-100k-dev", "vehicle-dev", "memsim-dev")


def embedder_named(name: str, folder: Path | None) -> CachedEmbedder | None:
    if name == "none":
        return None
    try:
        from acms.providers import LocalEmbedder

        return CachedEmbedder(LocalEmbedder(), folder / "vectors.db" if folder else None)
    except ACMSError as error:
        raise SystemExit(f"there is no local embedder in this installation: {error}") from error


def say(text: str) -> None:
    """Show progress to someone who is watching."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def show(progress: Progress) -> None:
    say(f"{progress.dataset} {progress.conversation}: {progress.system} {progress.done} of {progress.of}")


async def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = [Path("../shared/data") / name for name in SETS]
    parser.add_argument("--data", type=Path, nargs="+", default=data, metavar="PATH")
    parser.add_argument("--first", type=int, metavar="N", help="the first conversations of each path only")
    parser.add_argument("--systems", nargs="+", metavar="NAME", help="run these only")
    parser.add_argument("--embedder", choices=("none", "local"), default="none")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="keep vectors here for the next run")
    parser.add_argument("--every", type=int, default=4, metavar="N", help="ask gleanr every nth question")
    parser.add_argument("--full", action="store_true", help="print all budgets, and the kinds of question")
    parser.add_argument("--intervals", action="store_true", help="print 95 %% bootstrap intervals")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the whole report here, as JSON")
    options = parser.parse_args()
    found, left_out = systems(embedder_named(options.embedder, options.cache), names=options.systems)
    conversations: list[Conversation] = []
    for path in options.data:
        try:
            conversations += load(path)[: options.first]
        except ACMSError as error:
            print(error, file=sys.stderr)
    if not conversations:
        raise SystemExit("no conversations: give paths with --data")
    start = time.perf_counter()
    report = await evaluate(
        conversations,
        found,
        every={"gleanr": options.every},
        left_out=left_out,
        settings={"embedder": options.embedder},
        progress=show,
    )
    say("")
    if options.out is not None:
        options.out.write_text(report.to_json(), encoding="utf-8")
    print(report.table(groups=options.full, intervals=options.intervals, main=not options.full))
    print(f"\nembedder: {options.embedder}; {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    asyncio.run(main())
