"""What a request holds and costs, on a generated log of an agent: `benchmarks/request.py` has figures to quote."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.conventions.code import ROOT

BUDGETS = [2000, 4000]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def budget(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def rows(budget: int) -> dict[str, dict[str, Any]]:
    command = (
        f"--sets support --limit 1 --turns 8 --budgets {budget} --systems prompt messages acs bound --jobs 1"
    )
    told = subprocess.run(
        [sys.executable, "benchmarks/request.py", *command.split(), "--json"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {row["system"]: row for row in json.loads(told.stdout)["rows"]}


@pytest.mark.parametrize("budget", BUDGETS, indirect=True)
def test_a_default_prompt_holds_nearly_what_a_recall_does_for_half_of_its_cost(rows: Any) -> None:
    prompt, bound = rows["prompt"], rows["bound"]
    assert not prompt["failed"]
    assert prompt["evidence"] >= bound["evidence"] - 0.08
    assert prompt["paid"][0] <= 0.5 * bound["paid"][0]
    assert prompt["cached"] >= 0.5


@pytest.mark.parametrize("budget", BUDGETS, indirect=True)
@pytest.mark.parametrize("system", ["messages", "acs"])
def test_what_is_made_anew_uses_its_room(rows: Any, system: str) -> None:
    found, bound = rows[system], rows["bound"]
    assert not found["failed"]
    assert found["evidence"] >= bound["evidence"] - 0.05
    assert found["use"] >= 0.9
