"""Whatever bytes come in, only errors of ACMS come out (T42)."""

from __future__ import annotations

import random
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fuzz.targets import TARGETS, mutated

MINUTE = 60
ROOT = Path(__file__).parents[2]
TIMES = {"exported": 20, "question": 40, "reply": 200}
"""How often the slow ones run by default."""


@pytest.mark.parametrize("name", list(TARGETS))
def test_examples_and_what_is_near_them_break_nothing(name: str) -> None:
    found = TARGETS[name]()
    for example in found.examples:
        found.run(example)
    seed = 42 if settings().derandomize else secrets.randbits(32)
    choose = random.Random(seed)
    for _ in range(TIMES.get(name, 400)):
        data = mutated(choose.choice(found.examples), choose)
        try:
            found.run(data)
        except Exception as error:
            pytest.fail(f"seed {seed}: {data!r} raises {error!r}")


@pytest.mark.slow
@pytest.mark.needs("atheris")
@pytest.mark.parametrize("name", list(TARGETS))
def test_a_minute_of_what_reaches_new_code_breaks_nothing(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", name, f"-max_total_time={MINUTE}", "-rss_limit_mb=4096"]
    done = subprocess.run(
        [*command, f"-artifact_prefix={tmp_path}/"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=10 * MINUTE,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    print(done.stderr.splitlines()[-1])
