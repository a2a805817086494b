"""The command line, called in this process: what it prints of a stored log, and exports."""

from __future__ import annotations

import asyncio
import json
import tempfile
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer
from typer.testing import CliRunner

from acms import ACMS
from acms.storage import SQLiteStorage

from .book import Records
from .generated import Dice
from .plain import Names
from .prompts import request
from .sources import Talk, context, ingest

_CHANGING = ("salt", "digest", "chain")


def application() -> typer.Typer:
    """Return the application behind the command `acms`, wherever it is defined."""
    (script,) = entry_points(group="console_scripts", name="acms")
    found: list[typer.Typer] = []
    with patch.object(typer.Typer, "__call__", lambda app, **_: found.append(app)):
        script.load()()
    return found[0]


async def run(*arguments: str) -> tuple[int, str]:
    """Run a command and return its exit code and what it printed."""
    runner = CliRunner(env={"ACMS_EMBEDDER": "none"})
    result = await asyncio.to_thread(runner.invoke, application(), list(arguments))
    return result.exit_code, result.stdout


async def commands(talk: Talk) -> Records:
    """Export a log, and run every command that reads one."""
    found: Records = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "golden.db"
        url, asking = f"sqlite:///{path}", Path(folder) / "request.json"
        asking.write_text(json.dumps(request(talk.questions[0], 1, 800)), encoding="utf-8")
        async with ACMS("story", SQLiteStorage(path, entropy=Dice("cli").bytes), None) as session:
            await ingest(session, talk.messages)
            await session.replace((await session.entries())[3].id, "Corrected here.")
            await session.retract((await session.entries())[5].id)
            await session.tag("half", 20)
            async with await session.fork("half", "other") as fork:
                await fork.ingest("user", "Only on the fork.", created_at=talk.messages[-1]["created_at"])
            names = Names(await context(session))
        for label, arguments in _reading(talk, str(asking)).items():
            code, out = await run(*arguments, "--db", url, "--json")
            found[f"cli {label}"] = {"exit": code, "out": _printed(out.replace(folder, ""), names)}
        for key in ("story", "other"):
            found |= _exported(key, (await run("export", key, "--db", url))[1], names)
    return found


def _reading(talk: Talk, request: str) -> dict[str, list[str]]:
    question = talk.questions[0]
    return {
        "recall": ["recall", "story", question, "--budget", "800"],
        "recall-why": ["recall", "story", question, "--budget", "800", "--why"],
        "recall-at": ["recall", "story", question, "--budget", "800", "--at", "half"],
        "messages": ["messages", "story", question, "--budget", "900"],
        "window": ["window", "story", "--budget", "700"],
        "history": ["history", "story"],
        "stats": ["sessions", "stats", "story"],
        "episodes": ["sessions", "episodes", "story"],
        "sessions": ["sessions"],
        "log": ["log", "other"],
        "at": ["sessions", "at", "story", "half"],
        "diff": ["diff", "story", "other"],
        "facts": ["facts", "story"],
        "compactions": ["compact", "list", "story"],
        "jobs": ["jobs"],
        "pins": ["pin", "list", "golden"],
        "policy": ["compact", "policy", "get", "story"],
        "verify": ["verify"],
        "scan": ["scan"],
        "render": ["render", request, "--session", "story", "--extended", "--why"],
        "unknown": ["sessions", "stats", "nobody"],
        "wrong": ["recall", "story"],
    }  # fmt: skip


def _printed(out: str, names: Names) -> Any:
    """Write what a command printed as JSON: the names of its fields, and a digest."""
    try:
        found = json.loads(out)
    except ValueError:
        return {"digest": names.digest(out)}
    fields = sorted(found) if isinstance(found, dict) else [type(found).__name__]
    return {"fields": fields, "digest": names.digest(_timeless(found))}


def _timeless(found: Any) -> Any:
    """Leave out what is measured or drawn at random, and the date of the rules, which may be today."""
    if isinstance(found, dict):
        drawn = {"planner_ms", "chain_hash", "rules", *_CHANGING}
        return {key: _timeless(one) for key, one in found.items() if key not in drawn}
    return [_timeless(one) for one in found] if isinstance(found, list) else found


def _exported(key: str, out: str, names: Names) -> Records:
    """Write an export: digests of the fields and of the values of each line; of what is drawn only the length."""
    found: Records = {}
    for number, line in enumerate(out.splitlines()):
        record = json.loads(line)
        fields = {one: len(str(record[one])) if one in _CHANGING else 0 for one in record}
        where = f"export {key} {number:04} {names.text(record['id'])}"
        found[where] = f"{names.digest(fields)} {names.digest(_timeless(record))}"
    return found
