"""Databases as they were written: files kept from earlier states of the code, and what is read from a copy of one.

python -m tests.golden store NAME     write another one, stored/NAME.db.gz, with today's code
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from acms import ACMS, ACMSConfig, ReflectionConfig
from acms.kv import open_kv
from acms.pins import create_pin_registry
from acms.prompt import Prompt
from acms.providers import OfflineReflector
from acms.storage import SQLiteStorage, open_storage
from acms.testing import HashEmbedder

from .book import Records
from .cli import run
from .generated import LOGS, QUESTIONS, Message
from .plain import Names
from .prompts import CODECS, rendered
from .reading import asked, shown
from .rewriting import state
from .sources import Talk, context, ingest

STORED = Path(__file__).parent / "stored"
MOST_BYTES = 200_000
_NOON = datetime(2025, 12, 1, 12, tzinfo=UTC)
_LATER: dict[str, Message] = {
    "fork": {"role": "user", "content": "On the fork we use MongoDB as the database.", "created_at": _NOON},
    "new": {
        "role": "user",
        "content": "Written by a later release: the mascot is an otter.",
        "created_at": _NOON,
    },
}
_QUIET = ACMSConfig(reflection=ReflectionConfig(enabled=False))


def files() -> list[str]:
    """Return the names of the stored files."""
    return sorted(file.name.removesuffix(".db.gz") for file in STORED.glob("*.db.gz"))


async def write(name: str) -> Path:
    """Write a file with everything a log can hold; one that is there is never written again."""
    target = STORED / f"{name}.db.gz"
    if target.exists():
        raise FileExistsError(target)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stored.db"
        await _fill(path)
        STORED.mkdir(exist_ok=True)
        target.write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
    return target


async def _fill(path: Path) -> None:
    async with SQLiteStorage(path) as store:
        async with ACMS("project", store, None, reflector=OfflineReflector(), config=_QUIET) as session:
            await ingest(session, LOGS["project"]())
            await session.close_episode("stored")
            await session.wait(await session.reflect())
            await _rewritten(session)
            await session.wait(await session.compact(preserve_recent_count=12))
            await session.set_policy(budget=50_000)
            async with await session.fork("half", "forked") as fork, await session.copy(12, "copied") as copy:
                await fork.ingest(**_LATER["fork"])
                await copy.retract((await copy.entries())[0].id)
            async with await session.fork(session_id="gone") as gone:
                await gone.delete()
        async with ACMS("agent", store, HashEmbedder(), namespace="work") as session:
            await ingest(session, LOGS["agent"](4))
            await session.wait_pending()
    async with ACMS("people", SQLiteStorage(path, tenant="other"), None) as session:
        await ingest(session, LOGS["people"](3))
    async with open_kv(f"sqlite:///{path}") as kv:
        registry = create_pin_registry(kv, namespace="golden")
        await kv.set("style", "Answer in one sentence.", metadata={"by": "golden"})
        await kv.set("profile", {"name": "Sam", "since": 2021})
        await registry.pin("style", priority=10)
        await registry.pin("profile", label="User profile", tags=["who"])


async def _rewritten(session: ACMS) -> None:
    said = await session.entries()
    await session.tag("half", said[len(said) // 2].version)
    await session.replace(said[1].id, "Corrected: noted.")
    await session.retract(said[4].id, reason="stored")
    await session.undo(await session.retract(said[7].id))
    await session.erase(said[9].id)


async def read(talk: Talk) -> Records:
    """Read everything from a copy of a stored file, then write to it."""
    found: Records = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stored.db"
        path.write_bytes(gzip.decompress((STORED / f"{talk.name}.db.gz").read_bytes()))
        url = f"sqlite:///{path}"
        found |= await _commands(url)
        async with open_storage(url) as store:
            async with ACMS("project", store, None, config=_QUIET) as session:
                found |= await _session(session)
            async with ACMS("agent", store, HashEmbedder(), namespace="work") as session:
                names = Names(await context(session))
                found |= await state(session, names, "vectors")
                found |= await _recalled(session, names, "agent")
        async with ACMS("people", open_storage(f"{url}?tenant=other"), None) as session:
            found |= await state(session, Names(await context(session)), "tenant")
        found |= await _pinned(url)
        found |= await _written(url)
    return found


async def _commands(url: str) -> Records:
    """Check every hash, and export verbatim: salts, hashes and random ids are those of the file."""
    code, out = await run("verify", "--db", url)
    found: Records = {"verify": {"exit": code, "lines": len(out.splitlines())}}
    _, out = await run("jobs", "--db", url, "--json")
    found["jobs"] = sorted(
        f"{job['kind']} {job['state']} {job['attempt']}" for job in json.loads(out)["jobs"]
    )
    for key in ("project", "forked", "copied"):
        code, out = await run("export", key, "--db", url)
        digest = hashlib.sha256(out.encode()).hexdigest()[:16]
        found[f"export {key}"] = {"exit": code, "lines": len(out.splitlines()), "digest": digest}
    return found


async def _session(session: ACMS) -> Records:
    names = Names(await context(session))
    found = await state(session, names, "project")
    found |= await _recalled(session, names, "project")
    for number, fact in enumerate(await session.facts(history=True)):
        found[f"fact {number:03}"] = names.fact(fact)
    found["history"] = [
        f"{names.text(one.id)} {one.state.value} {one.tokens}t {one.in_force}"
        for one in (await session.history(limit=500)).entries
    ]
    found["episodes"] = names.digest(await session.episodes())
    found["tags"] = await session.tags()
    found["policy"] = names.plain(await session.policy())
    found["tree"] = names.plain([(depth, branch) for depth, branch in await session.tree() or ()])
    for one in await session.compactions():
        found["compaction"] = names.plain(one)
        found["compaction behind"] = [names.entry(entry) for entry in await session.expand(one.version)]
    for key in ("forked", "copied"):
        async with ACMS(key, session.storage, None, config=_QUIET) as other:
            found |= await state(other, names, key)
            found[f"diff {key}"] = names.digest(str(await session.diff(other)))
    half = session.at(found["tags"]["half"])
    found |= await state(half, names, "at-half")
    return found


async def _recalled(session: ACMS, names: Names, log: str) -> Records:
    questions = [(f"q{place:03}", question) for place, question in enumerate(QUESTIONS[log])]
    found = await asked(session, names, questions, f"{log} recall", 600)
    found[f"{log} window"] = shown(await session.window(900), names)
    found[f"{log} messages"] = names.digest(await session.messages(questions[0][1], budget=1200))
    return found


async def _pinned(url: str) -> Records:
    names, found = Names(), {}
    async with open_kv(url) as kv:
        for key in ("style", "profile", "nothing"):
            found[f"kv {key}"] = names.plain(await kv.get(key))
        found["pins"] = names.plain(await create_pin_registry(kv, namespace="golden").list())
        made = Prompt(CODECS["chat"]()).pinned_kv(store=kv, namespace="golden").user("Who am I?")
        found["pins prompt"] = rendered(await made.render(500), names)
    return found


async def _written(url: str) -> Records:
    """Write to the copy, and read it back through another handle."""
    found: Records = {}
    async with ACMS("project", open_storage(url), None, reflector=OfflineReflector()) as session:
        names = Names(await context(session))
        await session.ingest(**_LATER["new"])
        (newest,) = await session.entries(1)
        await session.undo((await session.compactions())[-1].version)
        await session.wait_pending()
    async with ACMS("project", open_storage(url), None) as session:
        found |= await state(session, names, "written")
        found["written newest"] = names.entry(await session.get(newest.id))
        found |= await asked(session, names, [("mascot", "What is the mascot?")], "written recall", 600)
    code, _ = await run("verify", "--db", url)
    found["written verify"] = code
    return found
