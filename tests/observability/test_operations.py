"""Every verb is one counted span under its caller; neither the span nor the counter holds a word of a message."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from acms import ACMS, ACMSConfig, ValidationError, WorkerConfig
from acms.acs import ACS
from acms.codecs import OpenAIChat
from acms.erasure.erase import erase_subject
from acms.observability import operations
from acms.prompt import Prompt
from acms.providers import OfflineReflector
from tests.support.talk import Storage

SECRET = "xylophone"


class Recorded(NamedTuple):
    """The spans recorded so far."""

    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    @property
    def spans(self) -> list[ReadableSpan]:
        """Return the spans that ended, in the order in which they began."""
        return sorted(self.exporter.get_finished_spans(), key=lambda one: one.start_time or 0)

    def one(self, name: str) -> ReadableSpan:
        """Return the only span of a name."""
        (found,) = [one for one in self.spans if one.name == name]
        return found

    def above(self, span: ReadableSpan) -> str | None:
        """Return the name of what a span is part of."""
        if span.parent is None:
            return None
        (found,) = [one for one in self.spans if one.context and one.context.span_id == span.parent.span_id]
        return found.name

    def points(self, metric: str) -> dict[str, Any]:
        """Return the points of a metric by operation."""
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            str((point.attributes or {})["acms.operation"]): point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for one in scope.metrics
            if one.name == metric
            for point in one.data.data_points
        }


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    found = Recorded(InMemorySpanExporter(), InMemoryMetricReader())
    spans, numbers = TracerProvider(), MeterProvider([found.reader])
    spans.add_span_processor(SimpleSpanProcessor(found.exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: spans)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: numbers)
    yield found
    spans.shutdown()
    numbers.shutdown()


def span_attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_every_verb_is_one_span_and_is_counted(recorded: Recorded, storage: Storage) -> None:
    session = ACMS("talk", storage, None, reflector=OfflineReflector())
    first = await session.ingest("user", f"I live in Lyon with my {SECRET}.", metadata={"note": SECRET})
    await session.ingest_many([{"role": "assistant", "content": f"A {SECRET}? " * 40}] * 3)
    await session.sync([{"role": "user", "content": f"The {SECRET} is new.", "id": "k1"}])
    await session.replace("k1", f"The {SECRET} is old.")
    items = await session.recall(f"Where is the {SECRET}?", token_budget=200)
    await session.window(100)
    emitted = await session.messages(SECRET, budget=100)
    await session.close_episode(SECRET)
    await session.wait(await session.reflect())
    await session.wait(await session.compact(preserve_recent_count=1))
    child = await session.fork()
    await session.at(3).entries()
    await session.retract(first, reason=SECRET)
    gone = await session.erase(first)
    await session.wait_pending()
    await erase_subject(storage, namespace="default")
    spans = recorded.spans
    verbs = [one.name.removeprefix("acms.") for one in spans if one.name != "acms.job"]
    assert " ".join(verbs) == (
        "ingest ingest_many sync replace recall window messages close_episode reflect wait compact wait fork "
        "entries retract erase wait_pending erase_subject"
    )
    assert all(recorded.above(one) is None for one in spans)
    context = await session.context_id()
    place = {"gen_ai.conversation.id": "talk", "gen_ai.memory.store.id": context}
    assert span_attributes(recorded.one("acms.recall")) == {
        "gen_ai.operation.name": "search_memory",
        **place,
        "gen_ai.memory.record.count": len(items),
        "acms.tokens": items.tokens,
        "acms.budget": 200,
        "acms.omitted": items.ledger.omitted,
        "acms.version": items.version,
    }
    told = span_attributes(recorded.one("acms.ingest"))
    tokens = told.pop("acms.tokens")
    assert told == {
        "gen_ai.operation.name": "create_memory",
        **place,
        "gen_ai.memory.record.count": 1,
        "gen_ai.memory.record.id": first,
        "acms.version": 1,
    }
    assert span_attributes(recorded.one("acms.sync"))["acms.sync.appended"] == 1
    assert span_attributes(recorded.one("acms.messages"))["gen_ai.memory.record.count"] == len(emitted)
    assert (
        span_attributes(recorded.one("acms.fork"))["acms.fork.store.id"]
        == await child.context_id()
        != context
    )
    assert span_attributes(recorded.one("acms.erase"))["gen_ai.memory.record.count"] == len(gone.ids)
    jobs = [span_attributes(one) for one in spans if one.name == "acms.job"]
    assert {one["acms.job.outcome"] for one in jobs} == {"done"}
    assert {one["gen_ai.memory.store.id"] for one in jobs} == {context}
    assert [one["acms.reflection.episodes"] for one in jobs if "acms.reflection.episodes" in one] == [1]
    (sizes,) = [one for one in jobs if "acms.compaction.tokens_after" in one]
    assert sizes["acms.compaction.tokens_after"] < sizes["acms.compaction.tokens_before"]
    assert SECRET not in "".join(one.to_json() for one in spans)

    durations = recorded.points("acms.operation.duration")
    assert {*verbs, "job"} == set(durations)
    assert durations["wait"].count == 2
    assert isinstance(durations["recall"], HistogramDataPoint)
    stored = recorded.points("acms.operation.tokens")
    assert stored["ingest"].sum == tokens
    assert stored["recall"].sum == items.tokens
    assert {"ingest_many", "sync", "window", "messages"} < set(stored)
    assert recorded.points("acms.operation.records")["ingest_many"].value == 3


async def test_what_a_prompt_and_a_reply_read_are_parts_of_them(recorded: Recorded, storage: Storage) -> None:
    session = ACMS("talk", storage, None)
    for number in range(30):
        await session.ingest("user", f"Shelf {number} holds the {SECRET} number {number}.")
    recorded.exporter.clear()
    prompt = Prompt(OpenAIChat("gpt-5")).history(session).recall(session, f"Where is {SECRET} number 3?")
    with trace.get_tracer("test").start_as_current_span("turn"):
        rendered = await prompt.user("?").render(budget=400)
    assert recorded.above(recorded.one("acms.prompt.render")) == "turn"
    recalls = [one for one in recorded.spans if one.name == "acms.recall"]
    assert recalls
    assert {recorded.above(one) for one in recalls} == {"acms.prompt.render.recall"}
    assert recorded.points("acms.operation.tokens")["prompt.render"].sum == rendered.tokens.tokens
    recorded.exporter.clear()
    await ACS([session]).render(
        {
            "version": "v0",
            "id": "6f3b6f21-7a5f-4e3f-9af0-1b2c3d4e5f60",
            "request_id": "r",
            "intent": f"find the {SECRET}",
            "budgets": {"tokens_max": 500, "time_ms": 5000},
            "risk_profile": {"level": "low"},
            "privacy_mode": "allow",
        }
    )
    assert span_attributes(recorded.one("acms.render"))["gen_ai.operation.name"] == "render_context"
    assert SECRET not in "".join(one.to_json() for one in recorded.spans)


async def test_errors_are_recorded_by_type_alone(recorded: Recorded, storage: Storage) -> None:
    class Broken(OfflineReflector):
        async def reflect(self, request: Any) -> Any:
            raise ZeroDivisionError(SECRET)

    session = ACMS(
        "talk", storage, None, reflector=Broken(), config=ACMSConfig(worker=WorkerConfig(max_attempts=1))
    )
    with pytest.raises(ValidationError):
        await session.ingest(SECRET, "a")
    await session.ingest("user", f"I have a {SECRET}.")
    await session.close_episode()
    await session.reflect()
    await session.wait_pending()
    refused = recorded.spans[0]
    assert (refused.name, span_attributes(refused)["error.type"]) == ("acms.ingest", "VALIDATION")
    (failed,) = [
        one for one in recorded.spans if one.name == "acms.job" and "error.type" in span_attributes(one)
    ]
    assert span_attributes(failed)["error.type"] == "PROVIDER"
    for one in (refused, failed):
        assert one.status.status_code is trace.StatusCode.ERROR
        assert one.status.description is None
        assert not one.events
    assert SECRET not in "".join(one.to_json() for one in recorded.spans)
    assert recorded.points("acms.operation.duration")["job"].attributes["error.type"] == "PROVIDER"


def test_no_verb_of_a_session_goes_unrecorded() -> None:
    verbs = {
        name: call
        for name, call in inspect.getmembers(ACMS, inspect.iscoroutinefunction)
        if not name.startswith("_") and name not in operations.QUIET
    }
    assert {"ingest", "sync", "recall", "messages", "compact", "reflect", "erase", "fork"} < set(verbs)
    assert [name for name, call in verbs.items() if not hasattr(call, "__wrapped__")] == []


def test_nobody_listens_before_a_provider_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert operations.find_instruments() is None
    monkeypatch.setattr(trace, "get_tracer_provider", TracerProvider)
    assert operations.find_instruments() is not None
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    assert operations.find_instruments() is None
