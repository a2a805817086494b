"""What a request holds and costs, on a generated log of an agent: `benchmarks/request.py` has figures to quote."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.conventions.code import ROOT


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, int], dict[str, Any]]:
    command = (
        "--sets support --limit 1 --turns 8 --budgets 2000 4000 --systems prompt messages acs bound --jobs 1"
    )
    told = subprocess.run(
        [sys.executable, "benchmarks/request.py", *command.split(), "--json"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {(row["system"], row["budget"]): row for row in json.loads(told.stdout)["rows"]}


@pytest.mark.parametrize("budget", [2000, 4000])
def test_a_default_prompt_holds_nearly_what_a_recall_does_for_half_of_its_cost(
    rows: Any, budget: int
) -> None:
    prompt, bound = rows["prompt", budget], rows["bound", budget]
    assert not prompt["failed"]
    assert prompt["evidence"] >= bound["evidence"] - 0.08
    assert prompt["paid"][0] <= 0.5 * bound["paid"][0]
    assert prompt["cached"] >= 0.5


@pytest.mark.parametrize("budget", [2000, 4000])
@pytest.mark.parametrize("system", ["messages", "acs"])
def test_what_is_made_anew_uses_its_room(rows: Any, system: str, budget: int) -> None:
    found, bound = rows[system, budget], rows["bound", budget]
    assert not found["failed"]
    assert found["evidence"] >= bound["evidence"] - 0.05
    assert found["use"] >= 0.9
