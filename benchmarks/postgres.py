"""The PostgreSQL store beside the same statement sent by psycopg, pgbench, and LangGraph's PostgresSaver.

    python benchmarks/postgres.py                          # starts a server of its own, fsync on; some minutes
    python benchmarks/postgres.py --url postgresql://…     # on a server on which databases may be created
    python benchmarks/postgres.py --only append            # or forks, recall, bytes

`append`: 32 tasks append one message each, with a key and a job, on 1 and on 1000 contexts; in turns of two seconds the
store does it, and psycopg sends the store's own statement for one append over as many connections, with nothing around
it (no ids, hashes, receipts: the parameters are made before the clock starts). pgbench runs the statement without a
client in Python. `forks`: a fork and an append behind 10,000 messages, beside LangGraph's PostgresSaver (left out when
it is not installed). `recall`: 64 clients on 1000 sessions, each ingests a message and recalls, as an API would: once
where every recall is the first of its session, and once again. `bytes`: what a message takes on disk, table by table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from ingest import text

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.servers.postgres import Server

from acms import ACMS, ACMSConfig, WorkerConfig
from acms.model import Append, ContextDraft, Draft, JobDraft, Origin, Role
from acms.storage.postgres.append_parameters import PendingAppend
from acms.storage.postgres.append_parameters import serialize_rows as written
from acms.storage.postgres.store import PostgresStorage

CLIENTS = 32
QUIET = ACMSConfig(worker=WorkerConfig(enabled=False))

Rates = dict[str, list[float]]


def draft(rng: random.Random, n: int) -> Draft:
    """Return one message with a key."""
    content = text(rng)
    return Draft(
        content=content,
        tokens=61,
        role=Role.USER,
        origin=Origin.USER,
        created_at=datetime.now(UTC),
        key=f"k{n}",
    )


def operation(context: str, rng: random.Random) -> Append:
    """Return an append as a session makes it: a keyed message, a tail, a job."""
    n = rng.getrandbits(64)
    job = JobDraft(kind="reflect", dedupe=f"d{n}", payload={"n": n})
    return Append(context=context, drafts=(draft(rng, n),), tail={"episode": 1, "turns": 3}, jobs=(job,))


async def contexts(storage: PostgresStorage, count: int) -> list[str]:
    """Create contexts."""
    now = datetime.now(UTC)
    made = [
        storage.create(ContextDraft(key=f"{count}-{n}", counter="o200k_base", created_at=now))
        for n in range(count)
    ]
    return [context.id for context in await asyncio.gather(*made)]


# ── appends ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def for_a_while(seconds: float, work: Callable[[int], Awaitable[object]]) -> float:
    """Return how often a second the clients got their work done."""
    end = time.perf_counter() + seconds

    async def client(number: int) -> int:
        done = 0
        while time.perf_counter() < end:
            await work(number)
            done += 1
        return done

    start = time.perf_counter()
    counts = await asyncio.gather(*[client(number) for number in range(CLIENTS)])
    return sum(counts) / (time.perf_counter() - start)


def spread(ids: list[str], rng: random.Random) -> Callable[[int], str]:
    """Return the choice of a context for a client."""
    return lambda number: rng.choice(ids)


async def appends(url: str, options: argparse.Namespace, programs: Path | None) -> dict[str, Any]:
    """Measure appends."""
    rng = random.Random(7)
    found: dict[str, Any] = {}
    async with PostgresStorage(url, pool_size=CLIENTS) as storage:
        connections = [
            await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=3)
            for _ in range(CLIENTS)
        ]
        await asyncio.gather(*[connection.execute("SET ROLE acms_app") for connection in connections])
        await asyncio.gather(
            *[connection.execute("SET acms.tenant = 'default'") for connection in connections]
        )
        statement = storage._db._sql["append_with_jobs"]
        loop = asyncio.get_running_loop()
        for count in (1, 1000):
            ids = await contexts(storage, count)
            choose = spread(ids, rng)
            sessions = [ACMS(f"{count}-{n}", storage, None, config=QUIET) for n in range(min(count, CLIENTS))]

            def parameters(choose: Callable[[int], str] = choose) -> dict[str, Any]:
                one = PendingAppend(operation(choose(0), rng), storage._db.entropy, loop.create_future())
                return {
                    "tenant": "default",
                    "contexts": [one.op.context],
                    "ops": written([{"op": 0, **one.summary}]),
                    "drafts": written([{"op": 0, "batch": 1, **row} for row in one.drafts]),
                    "jobs": written([{"op": 0, **job} for job in one.jobs]),
                }

            async def ours(number: int, choose: Callable[[int], str] = choose) -> None:
                (receipt,) = await storage.append([operation(choose(number), rng)])
                assert not isinstance(receipt, Exception)

            async def session(number: int, sessions: list[ACMS] = sessions) -> None:
                await sessions[number % len(sessions)].ingest("user", text(rng))

            rates: Rates = {}
            for _ in range(options.rounds):
                ready = iter([parameters() for _ in range(int(options.seconds * 12_000))])
                systems = [
                    ("acms", ours),
                    ("psycopg, the same statement", sender(connections, statement, ready)),
                ]
                if options.sessions:
                    systems.append(("acms ingest", session))
                rng.shuffle(systems)
                for name, work in systems:
                    rates.setdefault(name, []).append(await for_a_while(options.seconds, work))
            lines = {name: statistics.median(values) for name, values in rates.items()}
            ratios = [a / b for a, b in zip(rates["acms"], rates["psycopg, the same statement"], strict=True)]
            if programs is not None:
                lines["pgbench, 32 clients"] = pgbench(programs, url, statement, parameters, options.seconds)
            found[f"{count} contexts"] = {**lines, "acms to psycopg": statistics.median(ratios)}
            for one in sessions:
                await one.close()
        for connection in connections:
            await connection.close()
    return found


def sender(
    connections: list[psycopg.AsyncConnection[Any]], statement: str, ready: Iterator[dict[str, Any]]
) -> Callable[[int], Awaitable[object]]:
    """Return a client that only sends the statement and takes the answer."""

    async def send(number: int) -> None:
        cursor = await connections[number].execute(statement, next(ready), binary=True)
        assert await cursor.fetchone()

    return send


def pgbench(
    programs: Path, url: str, statement: str, parameters: Callable[[], dict[str, Any]], seconds: float
) -> float:
    """Return the rate at which pgbench runs the statement; keys and names are made in the server."""
    given = parameters()
    one = json.loads(given["drafts"])[0]
    sql = statement.rstrip(";\n ")
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM acms.contexts").fetchone()
    assert row
    count = row[0]
    drafts = json.dumps([{**one, "key": None}]).replace("'", "''")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "append.sql"
        key = "md5(random()::text)"
        ops = json.dumps({k: v for k, v in json.loads(given["ops"])[0].items() if k != "context"}).replace(
            "'", "''"
        )
        context = "(SELECT context_id FROM acms.contexts WHERE number = (SELECT min(number) FROM acms.contexts) + :n)"
        body = (
            sql.replace("%(tenant)s", "'default'")
            .replace("%(contexts)s::text[]", "ARRAY[:c]::text[]")
            .replace(
                "%(ops)s::json",
                f"json_build_array(('{ops}'::jsonb || jsonb_build_object('context', :c))::json)",
            )
            .replace(
                "%(drafts)s::json",
                f"json_build_array((('{drafts}'::jsonb -> 0) || jsonb_build_object('key', {key}))::json)",
            )
            .replace(
                "%(jobs)s::json",
                f"json_build_array(json_build_object('op', 0, 'kind', 'reflect', 'dedupe', {key}, 'payload', '{{}}'))",
            )
            .replace(":c", context)
        )
        head = f"\\set n random(0, {count - 1})\n"
        script.write_text(head + " ".join(body.split()) + ";\n")
        options = f"-n -M prepared -c {CLIENTS} -j 2 -T {max(2, int(seconds * 2))} -f".split()
        run = subprocess.run(
            [programs / "pgbench", *options, script, url], capture_output=True, text=True, check=False
        )
        rates = [line for line in run.stdout.splitlines() if line.startswith("tps")]
        if not rates:
            raise SystemExit(run.stderr[-2000:])
        return float(rates[0].split()[2])


# ── forks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def forks(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure a fork and an append behind 10,000 messages, beside LangGraph's."""
    rng = random.Random(7)
    samples: Rates = {}
    peer = Peer.of(url, options.messages, rng)
    async with PostgresStorage(url) as storage:
        short = ACMS("short", storage, None, config=QUIET)
        long = ACMS("long", storage, None, config=QUIET)
        await short.ingest_many([{"role": "user", "content": text(rng)} for _ in range(100)])
        for _ in range(options.messages // 1000):
            await long.ingest_many([{"role": "user", "content": text(rng)} for _ in range(1000)])
        for n in range(options.rounds * 10):
            work: list[tuple[str, Callable[[], Awaitable[object]]]] = [
                ("acms append", lambda: long.ingest("user", text(rng))),
                ("acms fork of 100", lambda n=n: short.fork(session_id=f"s{n}")),
                (f"acms fork of {options.messages}", lambda n=n: long.fork(session_id=f"l{n}")),
            ]
            if peer is not None and n < options.rounds * 2:
                work += [
                    ("LangGraph append", lambda: asyncio.to_thread(peer.append, rng)),
                    ("LangGraph fork", lambda: asyncio.to_thread(peer.fork, rng)),
                ]
            rng.shuffle(work)
            for name, do in work:
                start = time.perf_counter()
                await do()
                samples.setdefault(name, []).append(time.perf_counter() - start)
        await short.close()
        await long.close()
    found: dict[str, Any] = {
        f"{name} (ms)": statistics.median(times) * 1e3 for name, times in samples.items()
    }
    found["fork of the long log to the short one"] = (
        found[f"acms fork of {options.messages} (ms)"] / found["acms fork of 100 (ms)"]
    )
    if peer is not None:
        peer.close()
        found["LangGraph append to acms"] = found["LangGraph append (ms)"] / found["acms append (ms)"]
        found["LangGraph fork to acms"] = (
            found["LangGraph fork (ms)"] / found[f"acms fork of {options.messages} (ms)"]
        )
    return found


class Peer:
    """A LangGraph thread in PostgreSQL with one channel of messages."""

    def __init__(self, url: str) -> None:
        from langchain_core.messages import HumanMessage
        from langgraph.checkpoint.postgres import PostgresSaver
        from langgraph.graph import START, MessagesState, StateGraph

        self.message = HumanMessage
        self.stack = ExitStack()
        saver = self.stack.enter_context(PostgresSaver.from_conn_string(url))
        saver.setup()
        builder = StateGraph(MessagesState)
        builder.add_node("agent", lambda state: {})
        builder.add_edge(START, "agent")
        self.graph = builder.compile(checkpointer=saver)
        self.config: Any = {"configurable": {"thread_id": "long"}}
        self.states: list[Any] = []

    @classmethod
    def of(cls, url: str, messages: int, rng: random.Random) -> Peer | None:
        """Return a filled thread, if LangGraph is installed."""
        try:
            peer = cls(url)
        except ImportError:
            return None
        rows = [peer.message(text(rng), id=str(n)) for n in range(messages)]
        peer.graph.update_state(peer.config, {"messages": rows}, as_node="agent")
        for _ in range(3):
            peer.append(rng)
        return peer

    def append(self, rng: random.Random) -> None:
        """Add one message as a new checkpoint."""
        found = self.graph.update_state(self.config, {"messages": [self.message(text(rng))]}, as_node="agent")
        self.states.append(found)

    def fork(self, rng: random.Random) -> None:
        """Go on from a past checkpoint."""
        self.graph.update_state(rng.choice(self.states[:3]), {"messages": []}, as_node="agent")

    def close(self) -> None:
        """Let go of the server."""
        self.stack.close()


# ── recall ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def recalls(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """64 clients take a turn in each of 1000 sessions of 300 messages, ingest and recall, and then another one.

    The sessions are written by one handle and used by another one, so that the first round finds nothing in memory.
    """
    rng = random.Random(7)
    names = [f"user-{n}" for n in range(options.contexts)]
    async with PostgresStorage(url) as storage:
        for start in range(0, len(names), 50):
            sessions = [ACMS(name, storage, None, config=QUIET) for name in names[start : start + 50]]
            await asyncio.gather(*[session.ingest_many(said(rng, options.each)) for session in sessions])
            for session in sessions:
                await session.close()
    found: dict[str, Any] = {}
    async with PostgresStorage(url) as storage:
        sessions = [ACMS(name, storage, None, config=QUIET) for name in names]
        for kind in ("first", "warm"):
            rng.shuffle(sessions)
            found |= {f"{kind}: {name}": value for name, value in (await turns(sessions, rng)).items()}
        for session in sessions:
            await session.close()
    return found


def said(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Return messages."""
    return [{"role": "user", "content": text(rng)} for _ in range(count)]


async def turns(sessions: Sequence[ACMS], rng: random.Random) -> dict[str, float]:
    """Let 64 clients take one turn in each session."""
    times: dict[str, list[float]] = {"ingest": [], "recall": []}
    waiting = iter(sessions)

    async def client() -> None:
        for session in waiting:
            start = time.perf_counter()
            await session.ingest("user", text(rng))
            middle = time.perf_counter()
            await session.recall(text(rng)[:80], token_budget=2000)
            times["ingest"].append(middle - start)
            times["recall"].append(time.perf_counter() - middle)

    begun, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*[client() for _ in range(64)])
    spent, used = time.perf_counter() - begun, time.process_time() - cpu
    found = {"turns a second": len(sessions) / spent, "turns a second of its processor": len(sessions) / used}
    for name, values in times.items():
        ordered = sorted(values)
        found[f"{name} p50 (ms)"] = statistics.median(ordered) * 1e3
        found[f"{name} p95 (ms)"] = ordered[int(len(ordered) * 0.95)] * 1e3
    return found


# ── bytes ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_SIZES = """
SELECT coalesce(p.parent, c.relname), c.relkind, sum(pg_relation_size(c.oid))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'acms'
LEFT JOIN LATERAL (SELECT i.inhparent::regclass::text AS parent FROM pg_inherits i WHERE i.inhrelid = c.oid) p ON true
WHERE c.relkind IN ('r', 'i') GROUP BY 1, 2 HAVING sum(pg_relation_size(c.oid)) > 0 ORDER BY 3 DESC
"""


async def sizes(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """What 50,000 messages take, table by table."""
    rng = random.Random(7)
    async with PostgresStorage(url) as storage:
        said = 0
        for n in range(50):
            async with ACMS(f"user-{n}", storage, None, config=QUIET) as session:
                rows = [text(rng) for _ in range(1000)]
                said += sum(map(len, rows))
                await session.ingest_many([{"role": "user", "content": row} for row in rows])
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM")
        rows = connection.execute(_SIZES).fetchall()
    found: dict[str, Any] = {"characters of text a message": said / 50_000}
    for name, _, size in rows:
        found[f"{name} (bytes a message)"] = float(size) / 50_000
    found["all (bytes a message)"] = sum(float(size) for _, _, size in rows) / 50_000
    return found


async def main() -> None:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url")
    parser.add_argument("--only", choices=["append", "forks", "recall", "bytes"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--contexts", type=int, default=1000)
    parser.add_argument("--each", type=int, default=300)
    parser.add_argument("--pgbench", type=Path, help="folder of pgbench")
    parser.add_argument("--sessions", action="store_true", help="also ingest through sessions")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        server = (
            None
            if options.url
            else stack.enter_context(Server(fsync=True, settings={"shared_buffers": "1GB"}))
        )
        for name, measure in (("append", appends), ("forks", forks), ("recall", recalls), ("bytes", sizes)):
            if options.only not in (None, name):
                continue
            url = options.url or (server.create_database() if server else "")
            if measure is appends:
                found[name] = await appends(url, options, options.pgbench)
            else:
                found[name] = await measure(url, options)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, lines in found.items():
        print(name)
        for line, value in lines.items():
            if isinstance(value, dict):
                print(f"  {line}")
                for inner, number in value.items():
                    print(f"    {inner:<45}{number:>12,.2f}")
            else:
                print(f"  {line:<47}{value:>12,.2f}")


if __name__ == "__main__":
    asyncio.run(main())
