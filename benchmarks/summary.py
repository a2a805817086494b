"""Compact long agent logs by extraction: how fast, and how many planted details stay.

    python benchmarks/summary.py                   # half a minute
    python benchmarks/summary.py --messages 10000 --rounds 5 --json

Logs of one thread each, generated from a seed: chatter, log lines and JSON with numbers, ids, paths and names of their
own, and 50 planted details of five kinds said once, in unmarked turns. "kept" is the share of them that stands letter
by letter in a summary of a fifth of the tokens; "three rounds" compacts a third, then the summary and the next third,
and so on. Medians of rounds in which the styles take turns; "cpu" is the time
of the one thread, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.agentlog import STYLES, agent_log, rounds

from acms.providers.tokens import token_counter
from acms.text.extract import extract_summary


def kept(text: str, planted: list[str]) -> float:
    return 100 * sum(detail in text for detail in planted) / len(planted)


def quality(style: str, seeds: int, count: Callable[[str], int]) -> dict[str, float]:
    once: list[float] = []
    thrice: list[float] = []
    for seed in range(seeds):
        turns, planted = agent_log(random.Random(f"{style} {seed}"), style=style)
        limit = sum(count(turn.text) for turn in turns) // 5
        once.append(kept(extract_summary(turns, limit, count), planted))
        thrice.append(kept(rounds(turns, 0.2, count), planted))
    return {
        "kept": statistics.mean(once),
        "worst": min(once),
        "three rounds": statistics.mean(thrice),
        "worst of three rounds": min(thrice),
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    count = token_counter("o200k_base").count
    count("load the vocabulary")
    logs = {
        style: agent_log(random.Random(f"{style} speed"), style=style, turns=options.messages, tokens=60)[0]
        for style in STYLES
    }
    sizes = {style: sum(count(turn.text) for turn in turns) for style, turns in logs.items()}
    seconds: dict[str, list[float]] = {style: [] for style in STYLES}
    cpu: dict[str, list[float]] = {style: [] for style in STYLES}
    for _ in range(options.rounds):
        for style, turns in logs.items():
            start, worked = time.perf_counter(), time.thread_time()
            extract_summary(turns, sizes[style] // 5, count)
            seconds[style].append(time.perf_counter() - start)
            cpu[style].append(time.thread_time() - worked)
    report = {
        style: {
            "tokens": sizes[style],
            "seconds": statistics.median(seconds[style]),
            "cpu": statistics.median(cpu[style]),
            **quality(style, options.seeds, count),
        }
        for style in STYLES
    }
    if options.json:
        print(json.dumps(report, indent=2))
        return
    print(
        f"{options.messages} messages to a fifth of their tokens; details of {options.seeds} logs of 1,000 turns"
    )
    for style, found in report.items():
        print(
            f"  {style:<8} {found['tokens']:>8} tokens  {found['seconds']:5.2f} s (cpu {found['cpu']:.2f} s)"
            f"   kept {found['kept']:5.1f} % (worst {found['worst']:.0f})"
            f"   three rounds {found['three rounds']:5.1f} % (worst {found['worst of three rounds']:.0f})"
        )


if __name__ == "__main__":
    main()
