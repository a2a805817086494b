"""CPU that `import acms` takes in a fresh interpreter, beside `import asyncio` in the same interleaved run.

python benchmarks/imports.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

GOAL = 0.150
"""Seconds of CPU."""
_PROBE = "import time; a = time.process_time(); import {name}; print(time.process_time() - a)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, metavar="N")
    rounds: int = parser.parse_args().rounds
    taken: dict[str, list[float]] = {"asyncio": [], "acms": []}
    for _ in range(rounds):
        for name, found in taken.items():
            ran = subprocess.run(
                [sys.executable, "-c", _PROBE.format(name=name)], check=True, capture_output=True
            )
            found.append(float(ran.stdout))
    for name, found in taken.items():
        print(f"import {name:8} CPU p50 {statistics.median(found):.3f} s, least {min(found):.3f} s")
    ratio = statistics.median(taken["acms"]) / statistics.median(taken["asyncio"])
    print(f"ratio {ratio:.1f}; goal {GOAL:.3f} s")


if __name__ == "__main__":
    main()
