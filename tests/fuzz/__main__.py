"""Fuzz one target with atheris: `python -m tests.fuzz reply -max_total_time=60`; the rest goes to libFuzzer."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import atheris


def main(name: str, *options: str) -> None:
    """Run until a time, a number of runs or a failure; what fails is written into a file and can be given again."""
    with atheris.instrument_imports(include=["acms"]):
        from tests.fuzz.targets import TARGETS, mutated

        found = TARGETS[name]()

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        return mutated(data, random.Random(seed))[:most]

    with TemporaryDirectory() as folder:
        for number, example in enumerate(found.examples):
            (Path(folder) / str(number)).write_bytes(example)
        corpus = () if any(os.path.isfile(one) for one in options) else (folder,)
        atheris.Setup(
            ["fuzz", *options, "-max_len=65536", *corpus],
            found.run,
            custom_mutator=mutate,
            internal_libfuzzer=True,
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
