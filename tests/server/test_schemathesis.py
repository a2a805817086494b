"""The service is called in every way its document allows, and in ways it does not, by schemathesis.

Every check that schemathesis has is on: no 5xx, every answer as the document says, invalid input is refused, nothing
without a key. schemathesis.toml says which refusals a JSON Schema cannot tell.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from acms.server import Limits, ServerConfig
from acms.server.operation import Scope
from tests.server.guarded import guarded_service

HERE = Path(__file__).parent
MANY = 10**6
GUARDED = ServerConfig(
    auth="required",
    works=False,
    limits=Limits(
        key_rate=MANY,
        key_burst=MANY,
        tenant_rate=MANY,
        tenant_burst=MANY,
        stranger_rate=MANY,
        stranger_burst=MANY,
    ),
)
"""A key is needed; limits are out of the way, also for those who try without one; no webhook is called."""


async def _run_schemathesis(folder: Path, *options: str) -> str:
    """Serve an empty store, call it in every way, and return what schemathesis says of it."""
    async with guarded_service(f"sqlite:///{folder / 'log.db'}", GUARDED) as service:
        _, key = await service.app.keys.create("acme", scopes=tuple(Scope))
        ran = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli"),
            *("--config-file", str(HERE / "schemathesis.toml"), "run", f"{service.url}/openapi.json"),
            *("--header", f"Authorization: Bearer {key}", "--no-color", *options),
            cwd=folder,
            env={**os.environ, "SCHEMATHESIS_HOOKS": str(HERE / "hooks.py")},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await ran.communicate()
    assert ran.returncode == 0, said.decode()
    return said.decode()


async def test_every_operation_answers_as_its_document_says(tmp_path: Path) -> None:
    phases = ("--phases", "examples,fuzzing", "--max-examples", "1")
    said = await _run_schemathesis(tmp_path, *phases, "--seed", "1", "--no-shrink")
    assert "✅ Fuzzing" in said


@pytest.mark.slow
async def test_every_value_at_the_edge_of_what_the_document_allows_is_answered(tmp_path: Path) -> None:
    print(await _run_schemathesis(tmp_path, "--phases", "examples,coverage,fuzzing", "--max-examples", "100"))


@pytest.mark.slow
async def test_five_minutes_of_calls_that_build_on_each_other_are_answered(tmp_path: Path) -> None:
    print(await _run_schemathesis(tmp_path, "--phases", "stateful", "--max-time", "300"))
