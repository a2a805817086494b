"""How well ACMS finds what answers a question, on real conversations, beside other systems.

    python benchmarks/quality.py
    python benchmarks/quality.py --embedder local --cache ../vectors --evidence

The conversations are research data, read by path and not part of this repository: LoCoMo (snap-research, CC BY-NC 4.0),
REALTALK (danny911kr/REALTALK, no licence stated), BEAM (mohammadtavakoli78/BEAM, no licence stated) and LongMemEval
(xiaowu0162/LongMemEval, MIT). A folder that is missing is named and passed over; `--data` takes other paths.

`acms_eval.retrieval` defines every figure; all are means over questions, in percent. With `--evidence` there are
also E columns: the share of gold in a real `recall(question, token_budget=n)`, frames and the current episode included.
"acms, past only" leaves the current episode out, "acms, offline" distils facts as it reads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from acms.errors import ACMSError
from acms_eval import CachedEmbedder, RetrievalReport, evaluate, load, systems
from acms_eval.retrieval import Progress


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


def summary(report: RetrievalReport) -> dict[str, Any]:
    """Return the means in percent, by set, system and group."""
    return {
        dataset: {
            "conversations": size.conversations,
            "messages": size.messages,
            "questions": size.questions - size.without_gold,
            "figures": {
                system: {
                    group: {
                        "questions": next(iter(found.values())).count,
                        **{name: round(100 * value.mean, 1) for name, value in found.items()},
                    }
                    for group in report.groups(dataset)
                    if (found := report.means(dataset, system, group))
                }
                for system in report.systems
            },
        }
        for dataset, size in report.sizes.items()
    }


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
    parser.add_argument("--data", type=Path, nargs="+", metavar="PATH", help="run these instead of all that")
    parser.add_argument("--systems", nargs="+", metavar="NAME", help="run these only")
    parser.add_argument("--embedder", choices=("none", "local"), default="none")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="keep vectors here for the next run")
    parser.add_argument("--evidence", action="store_true", help="recall within real budgets too")
    parser.add_argument(
        "--every", type=int, default=4, metavar="N", help="ask gleanr every nth question only"
    )
    parser.add_argument("--intervals", action="store_true", help="print 95 %% bootstrap intervals")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the whole report here, as JSON")
    options = parser.parse_args()
    embedder = embedder_named(options.embedder, options.cache)
    found, left_out = systems(embedder, names=options.systems)
    paths = options.data or [options.locomo, options.realtalk, options.beam, options.beam_500k]
    conversations = []
    for path in filter(None, paths):
        try:
            conversations += load(path)
        except ACMSError as error:
            print(error, file=sys.stderr)
    if not conversations:
        raise SystemExit("no conversations: give a folder with --locomo, --realtalk, --beam or --data")
    start = time.perf_counter()
    report = await evaluate(
        conversations,
        found,
        evidence=options.evidence,
        every={"gleanr": options.every},
        left_out=left_out,
        settings={"embedder": options.embedder},
        progress=show,
    )
    say("")
    seconds = round(time.perf_counter() - start, 1)
    if options.out is not None:
        options.out.write_text(report.to_json(), encoding="utf-8")
    if options.json:
        document = {"embedder": options.embedder, "seconds": seconds, "sets": summary(report)}
        print(json.dumps(document, indent=2))
    else:
        print(report.table(groups=True, intervals=options.intervals))
        print(f"\nembedder: {options.embedder}; {seconds:.0f} s")


if __name__ == "__main__":
    asyncio.run(main())
