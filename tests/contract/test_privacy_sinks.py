"""Canaries: 200 secrets in one session, and not one of them comes out of any sink, in any mode.

No secret stands in this file: all are made when the tests run, as hosts of repositories refuse realistic ones.
"""

from __future__ import annotations

import json
import logging
import random
import string
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from acms import ACMS, ACMSConfig, PrivacyConfig
from acms.acs import ACS
from acms.codecs import AnthropicMessages, OpenAIChat, OpenAIResponses
from acms.config import EpisodeBoundaryConfig, WorkerConfig
from acms.core import chat
from acms.integrations.openai_agents import ACMSSession
from acms.kv import InMemoryKV
from acms.manifest import Manifest
from acms.model import (
    Raw,
    Reasoning,
    Text,
)
from acms.prompt import Prompt
from acms.protocols import ReflectionRequest, SummaryRequest
from acms.providers import OfflineReflector
from acms.replay import replay
from acms.storage import MemoryStorage
from acms.summaries import Summaries
from acms.telemetry import record_content
from tests.contract.sources import request
from tests.flows.fakes import FakeEmbedder
from tests.providers import validators

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


def card(draw: random.Random) -> str:
    body = "4" + "".join(draw.choices(string.digits, k=14))
    doubled = [int(char) * (2 - index % 2) for index, char in enumerate(reversed(body))]
    return body + str(-sum(one - 9 if one > 9 else one for one in doubled) % 10)


def canaries(count: int = 200, seed: int = 46) -> list[Canary]:
    draw = random.Random(seed)

    def made(size: int, alphabet: str = ALNUM) -> str:
        return "".join(draw.choices(alphabet, k=size)) + "aB7"

    found: list[Canary] = []
    while len(found) < count:
        key, word, host = f"sk-{made(40)}", f"X{made(12)}", made(5, string.ascii_lowercase)
        token, number = f"ghp_{made(33)}", card(draw)
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


PLANTED = canaries()
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


def messages(privacy: str) -> list[dict[str, Any]]:
    """The canaries in every place of a message, tool turns whole."""
    found: list[dict[str, Any]] = []
    for number, one in enumerate(PLANTED):
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


def config(mode: str | None, sink: Sink | None = None, **privacy: Any) -> ACMSConfig:
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
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    record_content()
    yield exporter
    record_content(False)
    provider.shutdown()


MODES = [
    (None, "redact", ALL),
    (None, "block", ALL),
    ("allow", "allow", CLEAR),
    ("redact", "allow", ALL),
    ("block", "allow", ALL),
    (None, "allow", ALL),
]
IDS = [f"configured {mode}, said to be {privacy}" for mode, privacy, _ in MODES]
SHOWING = {
    "after", "agents", "compaction", "diff", "embedder", "entries", "episodes", "event", "expand", "facts", "history",
    "messages", "namespace recall", "prompt", "prompt summary", "recall", "recall relevant", "reflector",
    "reflector facts", "reply", "reranker", "spans", "summarizer", "window", "written summary",
}  # fmt: skip
"""Sinks that show text: where no mode asks for anything, canaries come out of every one of them."""


@pytest.mark.parametrize(("mode", "privacy", "canaries"), MODES, ids=IDS)
async def test_no_canary_comes_out_of_any_sink(
    mode: str | None,
    privacy: str,
    canaries: list[str],
    spans_of: InMemorySpanExporter,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    sink = Sink(canaries)
    storage = MemoryStorage()
    embedder = FakeEmbedder()
    settings = config(mode, sink)
    models: dict[str, Any] = {"reranker": sink, "summarizer": sink, "reflector": Reflecting(sink)}
    async with (
        storage,
        ACMS("s", storage, embedder, config=settings, **models) as session,
        ACMS("other", storage, embedder, config=settings, **models) as other,
    ):
        said = messages(privacy)
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
            assert chat.tokens(asked, session.counter) <= 3000
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
        sink.take("episodes", *map(repr, await session.episodes()))
        diff = await fork.diff(session)
        sink.take("diff", str(diff), repr(diff))
        agents = ACMSSession("s", storage, config=settings)
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
        sink.take("compaction", repr(made), repr(await session.compactions()))
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
