"""Canaries: 200 secrets in one session, and not one of them comes out of any sink, in any mode.

No secret stands in this file: all are made when the tests run, as hosts of repositories refuse realistic ones.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from acms import (
    ACMS,
    ACMSConfig,
    CompactionPolicy,
    ConfigurationError,
    Entry,
    EpisodeBoundaryConfig,
    Media,
    Privacy,
    PrivacyConfig,
    Raw,
    Reasoning,
    Redaction,
    RetryConfig,
    Text,
    TokenBudgetExceededError,
    ToolCall,
    ToolResult,
    WorkerConfig,
    compose,
    open_storage,
)
from acms.acs import ACS
from acms.codecs import AnthropicMessages, OpenAIChat, OpenAIResponses
from acms.integrations.openai_agents import ACMSSession
from acms.jobs.worker import Worker
from acms.kv import InMemoryKV
from acms.model import Append, JobDraft
from acms.observability.tracing import record_content
from acms.ports import Reflection, ReflectionRequest, SummaryRequest, Turn
from acms.privacy import redact_entry
from acms.privacy.redactor import RedactionCache
from acms.prompt import Prompt
from acms.prompt.manifest import Manifest
from acms.prompt.replay import replay
from acms.prompt.summaries import Summaries
from acms.providers import OfflineReflector
from acms.recall.planner import trim_entry
from acms.storage import MemoryStorage
from acms.text import chat_messages
from tests.providers import validators
from tests.support.fakes import FakeEmbedder
from tests.support.sources import request
from tests.support.talk import full_text

VALID: dict[str, Callable[[Any], None]] = {
    "openai-chat": validators.openai_chat,
    "openai-responses": validators.openai_responses,
    "anthropic-messages": validators.anthropic,
}
ALNUM = string.ascii_letters + string.digits
WITHHELD = "[withheld]"


class Canary(NamedTuple):
    """A secret, how it is said, and whether it goes under `allow` too."""

    secret: str
    said: str
    clear: bool = True


def card_number(draw: random.Random) -> str:
    body = "4" + "".join(draw.choices(string.digits, k=14))
    doubled = [int(char) * (2 - index % 2) for index, char in enumerate(reversed(body))]
    return body + str(-sum(one - 9 if one > 9 else one for one in doubled) % 10)


def make_canaries(count: int = 200, seed: int = 46) -> list[Canary]:
    draw = random.Random(seed)

    def made(size: int, alphabet: str = ALNUM) -> str:
        return "".join(draw.choices(alphabet, k=size)) + "aB7"

    found: list[Canary] = []
    while len(found) < count:
        key, word, host = f"sk-{made(40)}", f"X{made(12)}", made(5, string.ascii_lowercase)
        token, number = f"ghp_{made(33)}", card_number(draw)
        mail, phone = f"{host.lower()}@example.org", f"+49 30 {draw.randrange(10**6, 10**7)}"
        found += [
            Canary(key, f"We call the orders service with {key} from now on."),
            Canary(word, f"The password is {word}, do not lose it."),
            Canary(word[1:], f"postgresql://admin:{word}@db/orders is where orders are."),
            Canary(token, f"export GITHUB_TOKEN={token}"),
            Canary(number, f"Decision: we pay orders with card {number}."),
            Canary(mail, f"Send orders to {mail} please.", clear=False),
            Canary(phone, f"Call about orders: {phone}.", clear=False),
        ]
    return found[:count]


SOME = 2 * 6 * 7
"""Canaries of each of seven kinds in each of six places of a message, twice."""
PLANTED = make_canaries()
CLEAR = [one.secret for one in PLANTED if one.clear]
ALL = [one.secret for one in PLANTED]


class Sink:
    """Everything that has left, and from where; also a summarizer and a reranker that remember what they read."""

    window = None
    model = "spy"
    candidates = 64

    def __init__(self, canaries: Sequence[str]) -> None:
        self.canaries = canaries
        self.seen: dict[str, int] = {}
        self.leaks: list[tuple[str, str]] = []

    def take(self, name: str, *values: object) -> None:
        text = "\n".join(
            value if isinstance(value, str) else json.dumps(value, default=repr, ensure_ascii=False)
            for value in values
        )
        self.seen[name] = self.seen.get(name, 0) + len(text)
        self.leaks += [(name, one) for one in self.canaries if one in text]

    async def summarize(self, asked: SummaryRequest) -> str:
        self.take("summarizer", *[f"{turn.speaker}: {turn.text}" for turn in asked.turns])
        return "They spoke of orders."

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        self.take("reranker", query, *texts)
        return [0.5] * len(texts)


class Reflecting(OfflineReflector):
    """The offline reflector, watched."""

    model = "watched"

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self.sink = sink

    async def reflect(self, request: ReflectionRequest) -> Any:
        self.sink.take("reflector", *[f"{turn.speaker}: {turn.text}" for turn in request.turns])
        self.sink.take("reflector facts", *map(repr, request.facts))
        return await super().reflect(request)


def canary_messages(privacy: str, count: int = len(PLANTED)) -> list[dict[str, Any]]:
    """The canaries in every place of a message, tool turns whole."""
    found: list[dict[str, Any]] = []
    for number, one in enumerate(PLANTED[:count]):
        place = number % 6
        if place == 0:
            call = {"id": f"c{number}", "name": "orders", "arguments": json.dumps({"sql": one.said})}
            found.append({"role": "assistant", "content": "I look.", "tool_calls": [call]})
            found.append({"role": "tool", "content": "3 rows", "tool_call_id": f"c{number}"})
        elif place == 1:
            call = {"id": f"c{number}", "name": "orders", "arguments": "{}"}
            found.append({"role": "assistant", "tool_calls": [call]})
            found.append(
                {"role": "tool", "content": json.dumps([{"note": one.said}]), "tool_call_id": f"c{number}"}
            )
        elif place == 2:
            parts = [
                Reasoning(one.said, "signature"),
                Text("I thought about orders."),
                Raw(
                    "openai", json.dumps({"id": "rs_1", "type": "reasoning", "summary": [{"text": one.said}]})
                ),
            ]
            found.append({"role": "assistant", "parts": parts})
        elif place == 3:
            found.append(
                {"role": "user", "content": "Note this.", "metadata": {"note": [one.said], "n": number}}
            )
        elif place == 4:
            found.append({"role": "user", "content": one.said, "markers": ["decision"]})
        else:
            found.append({"role": "user", "content": one.said, "actor_id": "Ann"})
    return [{**one, "privacy": privacy} for one in found]


def privacy_config(mode: str | None, sink: Sink | None = None, **privacy: Any) -> ACMSConfig:
    return ACMSConfig(
        privacy=PrivacyConfig(mode=mode, **privacy),  # type: ignore[arg-type]  # a word is read as a mode
        episodes=EpisodeBoundaryConfig(max_turns=24),
        worker=WorkerConfig(poll_seconds=0.01),
        on_event=None if sink is None else lambda event: sink.take("event", repr(event)),
    )


@pytest.fixture
def spans_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    record_content()
    yield exporter
    record_content(False)
    provider.shutdown()


MODES = [
    (None, "redact"),
    (None, "block"),
    ("allow", "allow"),
    ("redact", "allow"),
    ("block", "allow"),
    (None, "allow"),
]
IDS = [f"configured {mode}, said to be {privacy}" for mode, privacy in MODES]
SHOWING = {
    "after", "agents", "compaction", "diff", "embedder", "entries", "episodes", "event", "expand", "facts", "history",
    "messages", "namespace recall", "prompt", "prompt summary", "recall", "recall relevant", "reflector",
    "reflector facts", "reply", "reranker", "spans", "summarizer", "window", "written summary",
}  # fmt: skip
"""Sinks that show text: where no mode asks for anything, canaries come out of every one of them."""


@pytest.mark.parametrize("count", [SOME, pytest.param(len(PLANTED), marks=pytest.mark.slow)])
@pytest.mark.parametrize(("mode", "privacy"), MODES, ids=IDS)
async def test_no_canary_comes_out_of_any_sink(
    mode: str | None,
    privacy: str,
    count: int,
    spans_of: InMemorySpanExporter,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    sink = Sink([one.secret for one in PLANTED[:count] if one.clear or mode != "allow"])
    storage = MemoryStorage()
    embedder = FakeEmbedder()
    settings = privacy_config(mode, sink)
    models: dict[str, Any] = {"reranker": sink, "summarizer": sink, "reflector": Reflecting(sink)}
    async with (
        storage,
        ACMS("s", storage, embedder, config=settings, namespace="team", **models) as session,
        ACMS("other", storage, embedder, config=settings, namespace="team", **models) as other,
    ):
        said = canary_messages(privacy, count)
        receipts = await session.ingest_many(said)
        await session.replace(receipts[4 + 9].message_id, f"Note {PLANTED[9].said}")
        await session.close_episode()
        await other.ingest("user", "What do we know about orders?")
        fork = await session.fork(at=100, session_id="fork")
        await session.wait_pending()

        for query in ("orders", "which card pays orders?", "password", "note"):
            for name, items in (
                ("recall", await session.recall(query, token_budget=2000)),
                ("recall relevant", await session.recall(query, token_budget=900, relevant_only=True)),
                ("namespace recall", await other.recall(query, token_budget=2000, scope="namespace")),
            ):
                sink.take(name, items.text(), *map(repr, items))
                sink.take("ledger", *map(repr, items.ledger), str(items.ledger.certainty))
                assert sum(item.token_count for item in items) <= items.budget
                assert session.counter.count(items.text()) <= items.budget
            asked = await session.messages(query, budget=3000)
            sink.take("messages", asked)
            assert chat_messages.count_message_tokens(asked, session.counter) <= 3000
        for budget in (10, 100, 1000, 100_000):
            window = await session.window(budget)
            sink.take("window", window.text(), *map(repr, window))
            assert window.tokens <= budget
            assert session.counter.count(window.text()) <= budget
        page = await session.history(limit=500)
        sink.take("history", *map(repr, page.entries))
        sink.take("entries", *map(repr, await session.entries()))
        sink.take(
            "facts", *map(repr, [*await session.facts(history=True), *await session.facts(scope="namespace")])
        )
        sink.take("episodes", *[f"{episode!r} {episode.summary}" for episode in await session.episodes()])
        diff = await fork.diff(session)
        sink.take("diff", str(diff), full_text(diff))
        agents = ACMSSession("s", storage, config=settings, namespace="team")
        sink.take("agents", await agents.get_items())
        await agents.close()

        kv = InMemoryKV()
        for codec in (
            OpenAIChat("gpt-4o"),
            OpenAIResponses("gpt-4o"),
            AnthropicMessages("claude-sonnet-4-5"),
        ):
            prompt = (
                Prompt(codec)
                .system("Be brief.")
                .recall(session, "which card pays orders?", tokens=600)
                .history(session, priority=2)
                .user("Go on.")
            )
            for budget in (1500, 200_000):
                rendered = await prompt.render(budget=budget)
                assert rendered.tokens.upper_bound <= budget
                sink.take("prompt", rendered.payload, *map(repr, rendered.messages))
                manifest = json.dumps(rendered.manifest.to_json())
                sink.take("manifest", manifest, *map(repr, rendered.ledger))
                again = Manifest.from_json(json.loads(manifest))
                assert again == rendered.manifest
                assert await replay(again, storage, codec) == rendered.payload
                assert bool(again.redactions) == (mode is not None or privacy != "allow")
                VALID[codec.name](rendered.payload)
        summaries = Summaries(kv, summarizer=sink)
        silent = "block" in (mode, privacy)
        if not silent:  # else there is nothing to summarise
            sink.take("written summary", await summaries.write("s", session))
        told = (
            await Prompt(OpenAIChat("gpt-4o"))
            .summary(session, store=kv, id="s", summarizer=sink)
            .user("Go")
            .render(budget=200_000 if silent else 900)
        )
        sink.take("prompt summary", told.payload)

        engine = ACS([session])
        for level in ("allow", "redact", "block"):
            reply = await engine.render(request("which card pays orders?", privacy=level))
            sink.take("reply", repr(reply))

        job = await session.compact(budget=600)
        made = None if silent else await session.wait(job)
        sink.take("compaction", full_text(made), full_text(await session.compactions()))
        if made is not None:
            sink.take("expand", *map(repr, await session.expand(made.version)))
        sink.take("after", (await session.recall("orders", token_budget=2000)).text())
        sink.take("after", await session.messages("orders", budget=2000))

        sink.take("embedder", *embedder.texts)
        sink.take("spans", *[span.to_json() for span in spans_of.get_finished_spans()])
        sink.take("logs", caplog.text, *[repr(vars(record)) for record in caplog.records])
        if privacy == "block":
            assert not any(WITHHELD in text for text in embedder.texts)  # nothing of it is sent at all
        for receipt, message in zip(receipts, said, strict=True):  # and the owner has lost nothing
            raw = await session.get(receipt.message_id)
            assert raw.privacy == privacy
            if "content" in message and "parts" not in message and "tool_calls" not in message:
                assert raw.content == message["content"]
    if mode is None and privacy == "allow":
        assert {name for name, _ in sink.leaks} == SHOWING
        return
    assert sink.leaks == []
    asked = {"reranker", "summarizer", "reflector", "embedder"}
    assert sink.seen.keys() >= {"recall", "event", "spans", "logs", *(() if silent else asked)}


# ── jobs are done in the mode of the session that asked ─────────────────────────────────────────────────────────────

INBOX = "ann@example.org"


class Readers:
    """A summarizer and a reflector that remember their requests, by speaker."""

    model, window = "readers", None

    def __init__(self) -> None:
        self.read: dict[str, list[str]] = {"plain": [], "strict": []}

    def _take(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            for who, texts in self.read.items():
                if who in turn.text and not turn.summary:
                    texts.append(turn.text)

    async def summarize(self, asked: SummaryRequest) -> str:
        self._take(asked.turns)
        return "They spoke of mail."

    async def reflect(self, request: ReflectionRequest) -> Reflection:
        self._take(request.turns)
        return Reflection()


def worker_config(mode: str | None, *, works: bool = True, budget: int | None = 300) -> ACMSConfig:
    return ACMSConfig(
        privacy=PrivacyConfig(mode=mode),  # type: ignore[arg-type]  # a word is read as a mode
        worker=WorkerConfig(enabled=works),
        retry=RetryConfig(max_attempts=1),
        compaction=CompactionPolicy(budget=budget, preserve_recent_count=2),
    )


async def say_enough(session: ACMS) -> None:
    """Say enough that the log is compacted by itself, and end an episode, which asks for a reflection."""
    for number in range(16):
        text = f"{session.session_id} {number}: mail {INBOX}, and then tell everybody what became of it."
        await session.ingest("user", text)
    await session.close_episode()
    await session.wait_pending()


@pytest.mark.parametrize("asked", [False, True], ids=["by itself", "when asked"])
@pytest.mark.parametrize("mode", ["redact", "block"])
@pytest.mark.parametrize("first", ["plain", "strict"])
async def test_sessions_on_one_handle_are_worked_off_each_in_its_own_mode(
    storage: MemoryStorage, first: str, mode: str, asked: bool
) -> None:
    modes = {"plain": None, "strict": mode}
    summarizer, reflector = Readers(), Readers()
    for who in sorted(modes, key=lambda who: who != first):
        settings = worker_config(modes[who], budget=None if asked else 300)
        session = ACMS(who, storage, summarizer=summarizer, reflector=reflector, config=settings)
        await say_enough(session)
        if asked:
            await session.compact()
            await session.reflect()
            await session.wait_pending()
        await session.close()
    for one in (summarizer, reflector):
        assert any(INBOX in text for text in one.read["plain"])
        assert not any(INBOX in text for text in one.read["strict"])
        assert bool(one.read["strict"]) == (mode == "redact")


@pytest.mark.parametrize(
    ("asked", "worker", "left"),
    [
        (None, None, INBOX),
        ("redact", None, "[REDACTED: email]"),
        (None, "redact", "[REDACTED: email]"),
        ("block", "redact", ""),
    ],
)
async def test_a_worker_elsewhere_obeys_the_mode_of_who_asked_and_its_own_where_it_is_stricter(
    any_url: str, asked: str | None, worker: str | None, left: str
) -> None:
    there = Readers()
    async with open_storage(any_url) as storage:
        here: dict[str, Any] = {"summarizer": Readers(), "reflector": Readers()}
        async with ACMS("strict", storage, config=worker_config(asked, works=False), **here) as session:
            await say_enough(session)
        handlers = compose.handlers(worker_config(worker), [there], reflectors=[there])
        await Worker(storage, handlers, retry=RetryConfig(max_attempts=1)).drain()
    assert [text for text in there.read["strict"] if left not in text] == []
    assert (len(there.read["strict"]) > 16) == bool(left)  # of both of them


@pytest.mark.parametrize("asked", [False, True], ids=["by itself", "when asked"])
async def test_a_job_that_waits_is_done_as_strictly_as_whoever_works_it_off_asks(
    url: str, asked: bool
) -> None:
    """Such as one from before privacy was switched on."""
    there = Readers()
    here: dict[str, Any] = {"summarizer": there, "reflector": there}
    async with ACMS("strict", open_storage(url), config=worker_config(None, works=False), **here) as session:
        await say_enough(session)
        await session.compact()
        await session.reflect()
    async with ACMS("strict", open_storage(url), config=worker_config("block"), **here) as session:
        await say_enough(session)
        if asked:
            await session.compact()
            await session.reflect()
        await session.wait_pending()
    assert there.read["strict"] == []


async def test_a_job_that_names_no_mode_is_done_in_that_of_the_worker(storage: MemoryStorage) -> None:
    there = Readers()
    async with ACMS("strict", storage, config=worker_config(None, works=False)) as session:
        await say_enough(session)
        context = await session.context_id()
    assert context is not None
    job = JobDraft(kind="reflect:readers", dedupe=f"reflect:{context}", payload={"force": True})
    await storage.append([Append(context=context, drafts=(), jobs=(job,))])
    await Worker(storage, compose.handlers(worker_config("redact"), reflectors=[there], modes={})).drain()
    assert there.read["strict"]
    assert not any(INBOX in text for text in there.read["strict"])


async def test_what_an_erasure_has_compacted_again_is_read_in_the_mode_of_its_session(
    storage: MemoryStorage,
) -> None:
    async with (
        ACMS("plain", storage, config=worker_config(None)) as plain,
        ACMS("strict", storage, config=worker_config("redact")) as strict,
    ):
        await say_enough(plain)
        await say_enough(strict)
        (made,) = await strict.compactions()
        await strict.erase((await strict.expand(made.version))[0].id)
        await strict.wait_pending()  # for the job that the erasure asked for
        again = (await strict.compactions())[-1]
        assert again.version > made.version
        assert INBOX not in (await strict.get(again.id)).content


# ── before it is stored ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("mode", "canaries"), [(None, CLEAR), ("allow", CLEAR), ("redact", ALL), ("block", ALL)]
)
async def test_check_34_what_is_redacted_before_it_is_stored_is_in_no_byte_of_the_store(
    mode: str | None, canaries: list[str], tmp_path: Path
) -> None:
    storage = open_storage(f"sqlite:///{tmp_path}/notes.db")
    settings = privacy_config(mode, redact_before_persist=True)
    async with storage, ACMS("s", storage, FakeEmbedder(), config=settings) as session:
        receipts = await session.ingest_many(canary_messages("allow"))
        first = PLANTED[0]
        named = {"metadata": {first.said: 1}, "idempotency_key": first.secret}
        once = await session.ingest("user", f"Decision: {first.said}", **named)
        assert await session.ingest("user", f"Decision: {first.said}", **named) == once
        await session.replace(once, f"Constraint: {PLANTED[1].said}")
        await session.close_episode()
        await session.wait_pending()
        for receipt in receipts:
            entry = await session.get(receipt.message_id)
            assert entry.tokens == session.counter.count(entry.content) == receipt.tokens
            for part in entry.parts:
                if isinstance(part, ToolCall):
                    json.loads(part.arguments)
                elif isinstance(part, ToolResult) and part.output.startswith("["):
                    json.loads(part.output)
                elif isinstance(part, Raw):
                    assert json.loads(part.json)["id"] == "rs_1"
        raw = b"".join(
            file.read_bytes() for file in tmp_path.iterdir()
        )  # the log of changes beside the database too
        assert b"orders" in raw
        assert [one for one in canaries if one.encode() in raw] == []
        if mode in (None, "allow"):
            assert all(one.secret.encode() in raw for one in PLANTED if not one.clear)
        if mode != "block":
            assert "[REDACTED: api_key]" in (await session.recall("api_key orders", token_budget=9000)).text()


async def test_without_it_what_is_stored_is_what_was_said(tmp_path: Path) -> None:
    async with open_storage(f"sqlite:///{tmp_path}/notes.db") as storage:
        session = ACMS("s", storage, config=privacy_config("block"))
        await session.ingest_many(canary_messages("block"))
        await session.close()
    raw = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert all(one.secret.encode() in raw for one in PLANTED if not one.said.endswith('"'))


async def test_a_marker_is_looked_for_in_what_is_stored() -> None:
    async with ACMS(
        "s", MemoryStorage(), config=privacy_config("allow", redact_before_persist=True)
    ) as session:
        await session.ingest("user", f"Decision: use {PLANTED[0].secret}")
        assert session.last_receipt is not None
        assert session.last_receipt.markers == ("decision",)


# ── what each mode leaves ───────────────────────────────────────────────────────────────────────────────────────────

KEY, MAIL = PLANTED[0].secret, PLANTED[5].secret


async def window_message(privacy: str, mode: str | None = None, **said: Any) -> Any:
    """Return a message as a window shows it."""
    async with ACMS("s", MemoryStorage(), config=privacy_config(mode)) as session:
        await session.ingest(said.pop("role", "user"), said.pop("content", ""), privacy=privacy, **said)
        (item,) = await session.window(10_000)
        assert item.token_count == session.counter.count(f"{item.speaker}: ") + session.counter.count(
            item.content
        ) + session.counter.count("\n\n")
        return item


@pytest.mark.parametrize(
    ("mode", "privacy", "left"),
    [
        (None, "allow", f"Use {KEY} of {MAIL}"),
        ("allow", "allow", f"Use [REDACTED: api_key] of {MAIL}"),
        (None, "redact", "Use [REDACTED: api_key] of [REDACTED: email]"),
        ("allow", "redact", "Use [REDACTED: api_key] of [REDACTED: email]"),
        ("redact", "allow", "Use [REDACTED: api_key] of [REDACTED: email]"),
        ("redact", "block", WITHHELD),
        ("block", "redact", WITHHELD),
    ],
)
async def test_the_stricter_of_the_two_modes_holds(mode: str | None, privacy: str, left: str) -> None:
    item = await window_message(privacy, mode, content=f"Use {KEY} of {MAIL}")
    assert item.content == left
    if left == WITHHELD:
        assert item.redaction == Redaction(Privacy.BLOCK)
    elif MAIL in left:
        assert item.redaction == (None if mode is None else Redaction(Privacy.ALLOW, (("api_key", 1),)))
    else:
        assert item.redaction == Redaction(Privacy.REDACT, (("api_key", 1), ("email", 1)))


async def test_who_spoke_and_what_was_noted_is_redacted_too() -> None:
    item = await window_message(
        "redact", content="Hello.", actor_id=MAIL, metadata={"key": KEY, "n": 1}, markers=["goal"]
    )
    assert (item.actor_id, item.metadata) == (None, {"key": "[REDACTED: api_key]", "n": 1})
    item = await window_message(
        "block", content="Hello.", actor_id="Ann", metadata={"n": 1}, markers=["goal", f"custom:{KEY}"]
    )
    assert (item.actor_id, item.metadata, item.markers) == ("Ann", {}, ("goal",))


async def test_of_what_is_withheld_the_frame_of_calls_is_left() -> None:
    async with ACMS("s", MemoryStorage()) as session:
        call = {"id": "c", "name": "mail", "arguments": {"to": MAIL}}
        await session.ingest("assistant", "I write.", tool_calls=[call], privacy="block")
        await session.ingest("tool", f"sent to {MAIL}", tool_call_id="c", privacy="block")
        asked, answer = await session.window(1000)
        assert asked.parts == (Text(WITHHELD), ToolCall("c", "mail", "{}"))
        assert answer.parts == (ToolResult("c", WITHHELD),)
        assert [message.get("content") for message in await session.messages("?", budget=1000)] == [
            WITHHELD
        ] * 2
        agents = ACMSSession("s", session.storage)
        assert [item["type"] for item in await agents.get_items()] == [
            "function_call",
            "function_call_output",
        ]


async def test_a_blocked_message_is_not_found_by_what_it_says() -> None:
    async with ACMS("s", MemoryStorage()) as session:
        blocked = await session.ingest("user", "The vault is under the staircase.", privacy="block")
        await session.close_episode()
        for number in range(8):
            await session.ingest("user", f"Chatter {number} about the weather.")
        items = await session.recall("staircase vault", budget=1000, min_relevance=0.1)
        assert blocked not in [item.id for item in items]
        assert items.ledger.why(blocked).relevance == 0


async def test_what_replaced_a_part_of_a_message_is_left_out_of_the_redacted_one_too() -> None:
    said = f"The key is {KEY} now. We pay with Stripe. We ship from Berlin."
    start = said.index("We ship")
    entry = await stored_entry(said, "redact")
    left = redact_entry.apply_privacy_mode(entry, Privacy.REDACT, len)
    assert trim_entry(left, [(start, len(said))]).content == "[…] We ship from Berlin."
    assert trim_entry(left, [(0, said.index(" now"))]).content == "The key is [REDACTED: api_key] […]"
    inside = said.index(KEY) + 5  # the middle of what is hidden: the mark is shown whole
    assert trim_entry(left, [(inside, said.index(" We pay"))]).content == "[…] [REDACTED: api_key] now. […]"
    blocked = redact_entry.apply_privacy_mode(entry, Privacy.BLOCK, len)
    assert trim_entry(blocked, [(0, 3)]) is blocked


async def stored_entry(content: str, privacy: str, **said: Any) -> Entry:
    async with ACMS("s", MemoryStorage()) as session:
        return await session.get(await session.ingest("user", content, privacy=privacy, **said))


@pytest.mark.parametrize(
    "before",
    [
        {"sql": f"select '{KEY}'", "rows": [1, 2.5, None, True]},
        {"password": "X" + KEY[3:20]},
        {"card": int(PLANTED[4].secret)},
        {"nested": json.dumps({"to": MAIL, "deep": json.dumps([KEY])})},
        {MAIL: {KEY: []}},
        {"said": f'{MAIL}\n{KEY}\t\\ "quoted" \u00e4 \ud800'},
        [f"{KEY}", {"at": f"postgresql://admin:{KEY[4:20]}@db/orders"}],
    ],
    ids=["text", "name", "number", "nested", "keys", "escapes", "list"],
)
@pytest.mark.parametrize("ascii", [True, False])
def test_what_is_json_stays_json(before: Any, ascii: bool) -> None:
    written = json.dumps(before, ensure_ascii=ascii, indent=None if ascii else 2)
    text, kinds = redact_entry.redact_text_or_json(written, Privacy.REDACT)
    assert kinds
    after = json.loads(text)
    assert type(after) is type(before)
    assert len(after) == len(before)
    assert not any(one in repr(after) for one in (KEY, MAIL, PLANTED[4].secret, KEY[4:20], KEY[3:20]))
    assert redact_entry.redact_text_or_json(text, Privacy.REDACT) == (text, {})


def test_ids_of_a_vendors_item_stay_and_reasoning_goes_whole() -> None:
    item = {
        "type": "message",
        "id": f"msg_{KEY}",
        "content": [{"text": MAIL}],
        "encrypted_content": KEY,
        "n": 1,
    }
    parts = [
        Reasoning(f"They said {KEY}.", "sig"),
        Reasoning("Fine.", "sig"),
        Raw("openai", json.dumps(item)),
    ]
    parts += [
        Media("image/png", f"https://bob:{KEY[4:20]}@h/x.png", tokens=5),
        Media("image/png", f"data:{KEY}"),
    ]
    said = redact_entry.redact_message("", parts, Privacy.REDACT)
    thought, raw, link, data = said.parts
    assert thought == parts[1]
    assert isinstance(raw, Raw)
    assert json.loads(raw.json) == {**item, "content": [{"text": "[REDACTED: email]"}]}
    assert isinstance(link, Text)
    assert KEY[4:20] not in link.text
    assert data == parts[4]
    assert said.kinds == {"api_key": 1, "email": 1, "connection_string": 1} | dict(said.kinds)


def test_an_id_stays_however_far_the_colon_stands_behind_its_name() -> None:
    written = f'{{"type": "message", "id"             : "msg_{KEY}"}}'
    said = redact_entry.redact_message("", [Raw("openai", written)], Privacy.REDACT)
    (raw,) = said.parts
    assert isinstance(raw, Raw)
    assert json.loads(raw.json)["id"] == f"msg_{KEY}"


# ── what is remembered, what is replayed, what is configured ────────────────────────────────────────────────────────


async def test_what_was_redacted_is_remembered_until_it_is_erased() -> None:
    async with ACMS("s", MemoryStorage()) as session:
        one = await session.ingest("user", f"Use {KEY}.", privacy="redact")
        await session.ingest("user", "Nothing to hide.", privacy="redact")
        await session.ingest("user", "Nothing to ask.")
        first, second = [await session.window(1000) for _ in range(2)]
        assert first == second
        entry, again = [(await session.entries())[0] for _ in range(2)]
        assert entry is again
        assert entry is session.internals.redactor.redact_entry(await session.get(one))
        await session.erase(one)
        erased = await session.get(one)
        assert session.internals.redactor.redact_entry(erased) is erased


def test_what_is_remembered_is_bounded_by_bytes() -> None:
    cache = RedactionCache(max_bytes=3000)
    for number in range(20):
        cache.add((f"m{number}", Privacy.REDACT, "c"), None)
        assert cache.bytes <= 3000
    assert cache.find(("m0", Privacy.REDACT, "c")) is None
    assert cache.find(("m19", Privacy.REDACT, "c")) == (None,)
    assert 0 < len(cache) < 20
    cache.forget(f"m{number}" for number in range(20))
    assert (len(cache), cache.bytes) == (0, 0)


async def test_a_ledger_says_what_was_taken_out_and_shows_none_of_it() -> None:
    async with ACMS("s", MemoryStorage()) as session:
        one = await session.ingest("user", f"Use {KEY} and {PLANTED[7].secret} of {MAIL}.", privacy="redact")
        two = await session.ingest("user", "Not for you.", privacy="block")
        rendered = await Prompt(OpenAIChat("gpt-4o")).history(session).render(budget=1000)
        assert rendered.ledger.why(one).reason.endswith("; redacted: 2 api_key, 1 email")
        assert rendered.ledger.why(two).reason.endswith("; its text was withheld")
        assert [entry for entry, _, _ in rendered.manifest.redactions] == [one, two]


async def test_a_prompt_with_a_summary_is_summarised_again_in_another_mode() -> None:
    kv, storage = InMemoryKV(), MemoryStorage()
    async with storage:
        for mode in (None, "allow"):
            sink = Sink([KEY])
            async with ACMS("s", storage, config=privacy_config(mode)) as session:
                if mode is None:
                    for number in range(40):
                        await session.ingest("user", f"Point {number}: {KEY} and so on, and so on.")
                prompt = Prompt(OpenAIChat("gpt-4o")).summary(session, store=kv, id="s", summarizer=sink)
                await prompt.user("Go.").render(budget=500)
            assert bool(sink.leaks) == (mode is None)
            assert "summarizer" in sink.seen


@pytest.mark.parametrize("wrong", [{"mode": "hide"}, {"mode": 5}, {"redact_before_persist": "yes"}])
def test_a_configuration_that_means_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="privacy"):
        PrivacyConfig(**wrong)


def test_it_is_read_from_the_environment() -> None:
    found = ACMSConfig.from_env({"ACMS_PRIVACY_MODE": "Redact", "ACMS_PRIVACY_REDACT_BEFORE_PERSIST": "on"})
    assert found.privacy == PrivacyConfig(mode=Privacy.REDACT, redact_before_persist=True)
    assert ACMSConfig.from_env({"ACMS_PRIVACY_MODE": ""}).privacy == PrivacyConfig()
    with pytest.raises(ConfigurationError):
        ACMSConfig.from_env({"ACMS_PRIVACY_MODE": "hide"})


@given(
    said=st.lists(
        st.tuples(
            st.sampled_from(["user", "assistant"]), st.integers(0, 199), st.sampled_from(list(Privacy))
        ),
        min_size=1,
        max_size=12,
    ),
    mode=st.sampled_from([None, *Privacy]),
    budget=st.integers(0, 160),
)
def test_what_is_redacted_never_takes_more_than_the_budget(
    said: list[tuple[str, int, Privacy]], mode: Privacy | None, budget: int
) -> None:
    async def work() -> None:
        async with ACMS("s", MemoryStorage(), config=privacy_config(mode)) as session:
            rows = [
                {"role": role, "content": f"pw {PLANTED[n].said}", "privacy": how} for role, n, how in said
            ]
            await session.ingest_many(rows)
            for items in (
                await session.recall("orders password", token_budget=budget),
                await session.window(budget),
            ):
                assert items.tokens <= budget
                assert session.counter.count(items.text()) <= budget
            with suppress(TokenBudgetExceededError):
                assert (
                    chat_messages.count_message_tokens(
                        await session.messages("orders", budget=budget), session.counter
                    )
                    <= budget
                )

    asyncio.run(work())
