"""What reads bytes of others: each target takes any bytes, and only errors of ACMS may come of them.

A target begins with examples, which are changed at random: in the default run a few times, for minutes by atheris,
which keeps what reaches new code (docs/how-to/faults.md).
"""

from __future__ import annotations

import asyncio
import atexit
import io
import json
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any
from urllib.parse import quote

import httpx2

from acms import ACMS, ACMSError, RetryConfig
from acms.branches.export import export, verify
from acms.branches.importers import read_export, read_lines
from acms.branches.restoring import restore
from acms.client import Client
from acms.client.session import RemoteSession
from acms.contract import RenderRequest, problem_details
from acms.kv import InMemoryKV
from acms.model import Search
from acms.pins import create_pin_registry
from acms.prompt.manifest import Manifest
from acms.server import ServerConfig, create_app, wire
from acms.server.dispatch import parse_query_pairs
from acms.server.routes.table import OPERATIONS
from acms.storage import MemoryStorage, open_storage

Run = Callable[[bytes], None]


@dataclass(frozen=True, kw_only=True)
class Target:
    """Something that reads."""

    #: What it reads on good days.
    examples: tuple[bytes, ...]
    run: Run


TARGETS: dict[str, Callable[[], Target]] = {}


def target(make: Callable[[], Target]) -> Callable[[], Target]:
    """Add a target; it is made when it is used."""
    return TARGETS.setdefault(make.__name__, cache(make))


@cache
def _event_loop() -> asyncio.Runner:
    return asyncio.Runner()


def _run_awaitable(work: Awaitable[Any]) -> Any:
    async def done() -> Any:
        return await work

    return _event_loop().run(done())


def run_allowing_errors(run: Callable[[], object]) -> None:
    """Run something; an error of ACMS is an answer."""
    try:
        run()
    except ACMSError as error:
        problem_details.serialize_problem(error, request_id="fuzz")


def _dump_values(*values: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in values)


# ── chats and exports ───────────────────────────────────────────────────────────────────────────────────────────────

_TURNS = [
    {"role": "user", "content": "What did we choose?", "created_at": "2026-01-05T10:00:00Z", "id": "a"},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Postgres"},
            {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        ],
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
        "timestamp": 1_760_000_000,
    },
    {"role": "tool", "tool_call_id": "1", "content": "4", "markers": ["decision"], "metadata": {"a": 1}},
]


@target
def chat() -> Target:
    """Read a chat file."""
    lines = b"\n".join(_dump_values(*_TURNS))

    def run(data: bytes) -> None:
        name = ("chat.json", "chat.jsonl")[data[:1] == b"L"]
        text = io.TextIOWrapper(io.BytesIO(data[1:]), encoding="utf-8-sig", newline="\n")
        run_allowing_errors(lambda: list(read_lines(text, name)))
        run_allowing_errors(lambda: read_export(name, data=data[1:]))

    documents = _dump_values(_TURNS, {"messages": _TURNS})
    return Target(examples=(b"L" + lines, *[b"J" + one for one in documents]), run=run)


async def _export_session() -> bytes:
    storage = MemoryStorage()
    async with ACMS("s", storage) as session:
        await session.ingest_many(_sample_messages())
        await session.close_episode()
        await session.tag("release")
        (first, *_) = (await session.history()).entries
        await session.retract(first.id)
        context = await storage.context("s")
        return "".join([line async for line in export(storage, context.id)]).encode()


def _sample_messages() -> list[dict[str, Any]]:
    return [
        {
            "role": "user",
            "content": "DECISION: we use Postgres",
            "metadata": {"a": {"b": 1}},
            "idempotency_key": "k",
        },
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "add", "arguments": "{}"}]},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
    ]


@target
def exported() -> Target:
    """Restore an export: what memory takes SQLite takes too, and it can be read, checked and exported again."""

    async def taken(storage: Any, text: str) -> bool:
        try:
            context = await restore(storage, text.splitlines())
        except ACMSError:
            return False
        lines = [line async for line in export(storage, context.id)]
        assert lines
        await verify(storage, context)
        return True

    async def tried(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        async with MemoryStorage() as memory:
            first = await taken(memory, text)
        with TemporaryDirectory() as folder:
            async with open_storage(f"sqlite:///{Path(folder) / 'log.db'}?durability=relaxed") as sqlite:
                assert await taken(sqlite, text) == first, "two stores judge one export differently"

    return Target(examples=(_run_awaitable(_export_session()),), run=lambda data: _run_awaitable(tried(data)))


# ── questions ───────────────────────────────────────────────────────────────────────────────────────────────────────


@target
def question() -> Target:
    """Search and recall over SQLite, whose full text search has a language of its own."""
    folder = mkdtemp()
    atexit.register(shutil.rmtree, folder)
    storage = open_storage(f"sqlite:///{Path(folder) / 'log.db'}?durability=relaxed")
    sessions = [ACMS(name, storage) for name in ("one", "two")]

    async def begin() -> None:
        await storage.__aenter__()
        for session in sessions:
            await session.ingest_many(_sample_messages()[:1])

    async def ask(text: str) -> None:
        for work in (
            lambda: storage.search(Search(namespace="default", terms=tuple(text.split()))),
            lambda: storage.search(Search(namespace="default", terms=(text,))),
            lambda: sessions[0].recall(text, token_budget=500),
            lambda: sessions[0].messages(text, budget=500),
        ):
            try:
                await work()
            except ACMSError:
                continue

    _run_awaitable(begin())
    examples = (
        "NEAR(a b)",
        'a AND "b',
        "Postgres*",
        "ctx:2",
        "-a -b",
        "col : (x OR y)",
        "^ä\u0301",
        "a\0b",
        "%_\\",
    )
    return Target(
        examples=tuple(one.encode() for one in examples),
        run=lambda data: _run_awaitable(ask(data.decode("utf-8", "replace"))),
    )


# ── the wire ────────────────────────────────────────────────────────────────────────────────────────────────────────


@target
def body() -> Target:
    """Read the body of every operation that has one."""
    taking = [one for one in OPERATIONS if one.body is not None]

    def run(data: bytes) -> None:
        operation = taking[(data or b"\0")[0] % len(taking)]
        run_allowing_errors(lambda: wire.parse_request_body(operation, data[1:]))

    examples = [bytes([index]) + _dump_values(one.example or {})[0] for index, one in enumerate(taking)]
    return Target(examples=tuple(examples), run=run)


@target
def parameters() -> Target:
    """Read the query string of every operation that has one."""
    taking = [one for one in OPERATIONS if one.query is not None]

    def run(data: bytes) -> None:
        operation = taking[(data or b"\0")[0] % len(taking)]
        run_allowing_errors(lambda: wire.parse_query_parameters(operation, parse_query_pairs(data[1:])))

    examples = [
        bytes([index])
        + "&".join(
            f"{field.alias or name}={quote('1')}" for name, field in one.query.model_fields.items()
        ).encode()
        for index, one in enumerate(taking)
        if one.query is not None
    ]
    return Target(examples=tuple(examples), run=run)


def _each_object(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


@target
def render_request() -> Target:
    """Read a request of the v0 contract."""
    example = next(one.example for one in OPERATIONS if one.contract and one.example)

    def run(data: bytes) -> None:
        for lenient in (False, True):
            run_allowing_errors(lambda lenient=lenient: RenderRequest.of(_each_object(data), lenient=lenient))

    return Target(examples=_dump_values(example), run=run)


@target
def manifest() -> Target:
    """Read a manifest that a caller hands back."""

    def run(data: bytes) -> None:
        run_allowing_errors(lambda: Manifest.from_json(_each_object(data)))

    (found,) = [
        reply for verb, replies in _record_answers().items() if verb == "prompt" for _, reply in replies[-1:]
    ]
    return Target(examples=_dump_values(json.loads(found)["data"]["manifest"]), run=run)


@target
def pin_index() -> Target:
    """List pins from an index that another program wrote."""

    async def indexed() -> bytes:
        store = InMemoryKV()
        registry = create_pin_registry(store, namespace="n")
        await registry.pin("a", label="A", priority=2, tags=["x"], role="system")
        entry = await store.get("__cria:pins:v1__:n")
        assert entry is not None
        return json.dumps(entry.data).encode()

    async def listed(data: bytes) -> None:
        store = InMemoryKV()
        try:
            await store.set("__cria:pins:v1__:n", _each_object(data))
            registry = create_pin_registry(store, namespace="n")
            await registry.list()
            await registry.pin("b")
            await registry.list()
        except ACMSError:
            return

    return Target(examples=(_run_awaitable(indexed()),), run=lambda data: _run_awaitable(listed(data)))


# ── the client ──────────────────────────────────────────────────────────────────────────────────────────────────────

_VERBS: Mapping[str, Callable[[RemoteSession], Awaitable[object]]] = {
    "recall": lambda one: one.recall("Postgres", token_budget=200),
    "window": lambda one: one.window(200),
    "messages": lambda one: one.messages("Postgres", budget=200),
    "history": lambda one: one.history(),
    "episodes": lambda one: one.episodes(),
    "facts": lambda one: one.facts(),
    "forks": lambda one: one.forks(),
    "ancestry": lambda one: one.ancestry(),
    "tree": lambda one: one.tree(),
    "tags": lambda one: one.tags(),
    "diff": lambda one: one.diff(1),
    "compactions": lambda one: one.compactions(),
    "policy": lambda one: one.policy(),
    "stats": lambda one: one.get_session_stats(),
    "ingest": lambda one: one.ingest("user", "hello"),
    "compact": lambda one: one.compact(),
}
_STATUSES = (200, 201, 202, 204, 302, 400, 404, 409, 412, 422, 500)


@cache
def _record_answers() -> dict[str, list[tuple[int, bytes]]]:
    """Return what a service answers each verb with, request by request; "prompt" is asked for as it is."""

    async def asked() -> dict[str, list[tuple[int, bytes]]]:
        app = create_app("memory://", ServerConfig(auth="off"))
        await app.start()
        kept: list[tuple[int, bytes]] = []

        async def keep(reply: httpx2.Response) -> None:
            kept.append((reply.status_code, await reply.aread()))

        found: dict[str, list[tuple[int, bytes]]] = {}
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app), event_hooks={"response": [keep]}, verify=False
        ) as http:
            client = _client_over(http)
            await client.session("s").ingest_many(_sample_messages())
            await client.session("s").tag("release", 1)
            for name, verb in _VERBS.items():
                kept.clear()
                await verb(client.session("s"))
                found[name] = list(kept)
            kept.clear()
            (one,) = [each async for each in client.contexts()]
            url = f"http://localhost/api/v1/contexts/{one.id}/prompt"
            await http.post(
                url, json={"codec": "openai-chat", "budget": 500, "ledger": True, "user": "and now?"}
            )
            found["prompt"] = list(kept)
        await app.stop()
        return found

    return dict(_run_awaitable(asked()))


def _client_over(http: httpx2.AsyncClient) -> Client:
    """Return a client whose connections are these."""
    client = Client("http://localhost", retry=RetryConfig(max_attempts=1))
    client._transport._client, client._transport._loop = http, asyncio.get_running_loop()
    return client


@target
def reply() -> Target:
    """Believe what a service answers: one answer of a verb is hostile."""
    answers = _record_answers()
    verbs = list(_VERBS)

    async def believed(data: bytes) -> None:
        which, nth, status = (*data[:3], 0, 0, 0)[:3]
        verb = verbs[which % len(verbs)]
        good = answers[verb]
        given = iter(range(10**6))

        def answer(request: httpx2.Request) -> httpx2.Response:
            at = next(given)
            if at == nth % len(good):
                return httpx2.Response(_STATUSES[status % len(_STATUSES)], content=data[3:])
            code, content = good[min(at, len(good) - 1)]
            return httpx2.Response(code, content=content)

        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), verify=False) as http:
            try:
                await _VERBS[verb](_client_over(http).session("s"))
            except ACMSError:
                return

    examples = [
        bytes([index, nth, _STATUSES.index(code)]) + content
        for index, verb in enumerate(verbs)
        for nth, (code, content) in enumerate(answers[verb])
    ]
    problem = json.dumps(problem_details.serialize_problem(ACMSError("no"), request_id="x")).encode()
    return Target(examples=(*examples, b"\0\0\5" + problem), run=lambda data: _run_awaitable(believed(data)))


# ── changing ────────────────────────────────────────────────────────────────────────────────────────────────────────

_ODD: Sequence[Any] = (
    None, True, False, 0, -1, 1, 1.5, -0.0, 2**31, 2**53, 2**63, -(2**63) - 1, 2**70, 1e308, float("nan"), float("inf"),
    10**400, "", " ", "\0", "\ud800", "\u202e", "x" * 300, "9" * 5000, "2026-01-05", "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00", "é", "e\u0301", [], {}, [[]], [None], {"": None}, {"role": "user"}, "user", "redact",
)  # fmt: skip


def _iterate_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a document: what holds it, and where."""
    items: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in list(items):
        yield value, key
        yield from _iterate_places(inner)


def _change_document(document: Any, choose: random.Random) -> Any:
    places = list(_iterate_places(document))
    if not places:
        return choose.choice(_ODD)
    holder, key = choose.choice(places)
    what = choose.randrange(6)
    if what < 3:
        holder[key] = choose.choice(_ODD)
    elif what == 3:
        del holder[key]
    elif what == 4:
        other, at = choose.choice(places)
        holder[key] = (
            json.loads(json.dumps(other[at]))
            if at in (other if isinstance(other, dict) else range(len(other)))
            else None
        )
    elif isinstance(holder, dict):
        holder[choose.choice(["", "id", "type", "role", "x", "__class__"])] = holder.pop(key)
    else:
        holder.insert(choose.randrange(len(holder) + 1), holder[key])
    return document


def mutated(data: bytes, choose: random.Random) -> bytes:
    """Change an example: where it holds JSON mostly as JSON, else its bytes."""
    lines = data.split(b"\n")
    at = choose.randrange(len(lines))
    start = min((lines[at].find(mark) for mark in (b"{", b"[") if mark in lines[at]), default=-1)
    if start >= 0 and choose.random() < 0.8:
        try:
            document = json.loads(lines[at][start:])
            for _ in range(choose.choice((1, 1, 1, 2, 4))):
                document = _change_document(document, choose)
            lines[at] = lines[at][:start] + json.dumps(document).encode()
            return b"\n".join(lines)
        except (ValueError, RecursionError):
            pass
    found = bytearray(data)
    for _ in range(choose.choice((1, 1, 2, 8))):
        place = choose.randrange(len(found) + 1)
        what = choose.randrange(4)
        if what == 0:
            found[place:place] = choose.choice(
                (b"\0", b"\xff", b'"', b"{", b"[" * 2000, b"\\ud800", b"1e999", b"\xed\xa0\x80")
            )
        elif what == 1:
            del found[place : place + choose.randrange(1, 9)]
        elif what == 2:
            found[place : place + 1] = bytes([choose.randrange(256)])
        else:
            other = choose.randrange(len(found) + 1)
            found[place:place] = found[other : other + choose.randrange(1, 33)]
    return bytes(found)
