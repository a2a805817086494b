"""Starts the helper processes: fresh interpreters, never forks of the test process."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import acms

ROOT = Path(__file__).parents[2]
SOURCE = Path(next(iter(acms.__path__))).parent


def start_python(*arguments: str) -> subprocess.Popen[str]:
    """Start an interpreter that finds the package and these tests; text pipes on stdin and stdout."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"},
        text=True,
    )


def start_writer(*arguments: str | Path) -> subprocess.Popen[str]:
    """Start a helper process."""
    return start_python("-m", "tests.faults._writer", *map(str, arguments))


def finish_process(process: subprocess.Popen[str]) -> int:
    """Close the pipes, wait, and return the exit code; minus the signal when it was killed."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
    return process.wait(60)
