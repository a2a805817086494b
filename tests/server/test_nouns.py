"""A noun is described once: a field that is added to it by one line is everywhere that it is shown."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINE = '    urgency: str = "usual"\n'
SHOWS = """
import asyncio, json, subprocess, sys
from acms import model
from acms.client import Client
from tests.server.serving import serving

assert model.__file__.startswith(sys.argv[2]), model.__file__
url = sys.argv[1]

async def ask(at):
    async with Client(at) as client:
        session = client.session("user_123")
        for number in range(12):
            await session.ingest("user", f"Message {number} about the orders service.")
        return await session.compact()

with serving(url) as service:
    job = asyncio.run(ask(service.url))
    reply = service.get(f"/jobs/{job.id}")["data"]
    listed = service.get("/jobs")["data"][0]
    document = service.app.describe()["components"]["schemas"]
command = [sys.executable, "-m", "acms.cli", "jobs", "--db", url, "--json"]
told = subprocess.run(command, capture_output=True, text=True, check=True)
print(json.dumps({
    "client": job.urgency,
    "reply": reply["urgency"],
    "list": listed["urgency"],
    "document": [document[name]["properties"]["urgency"] for name in ("Job", "EndedJob")],
    "required": "urgency" in document["Job"]["required"],
    "command": json.loads(told.stdout)["jobs"][0]["urgency"],
}))
"""


def test_a_field_of_a_noun_is_one_line(tmp_path: Path) -> None:
    src = tmp_path / "src"
    shutil.copytree(ROOT / "src" / "acms", src / "acms")
    model = src / "acms" / "model.py"
    before = model.read_text(encoding="utf-8")
    place = before.index("    created_at: datetime\n", before.index("class Job:"))
    model.write_text(before[:place] + LINE + before[place:], encoding="utf-8")

    ran = subprocess.run(
        [sys.executable, "-c", SHOWS, f"sqlite:///{tmp_path / 'log.db'}", str(src)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(src)},
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "client": "usual",
        "reply": "usual",
        "list": "usual",
        "document": [{"type": "string"}, {"type": "string"}],
        "required": True,
        "command": "usual",
    }
