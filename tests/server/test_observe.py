"""What the service says about itself: ready or not, numbers, logs, traces, and no text of anybody's."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from acms.observability import JSONFormatter
from tests.server.serving import Service, serving
from tests.servers.postgres import Databases

CANARY = "canary-8c1f5b"


def read_metrics(service: Service) -> dict[str, float]:
    text = httpx2.get(f"{service.url}/metrics").text
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_the_service_says_whether_its_store_answers(service: Service) -> None:
    reply = httpx2.get(f"{service.url}/ready")
    assert reply.status_code == 200
    assert reply.json()["status"] == "ready"
    assert reply.json()["latencyMs"] >= 0
    assert httpx2.get(f"{service.url}/health").json() == {"status": "ok"}


def test_a_service_whose_store_is_gone_is_there_and_not_ready(postgres: Databases, postgres_url: str) -> None:
    with serving(f"{postgres_url}?retry_seconds=0.1") as service:
        assert httpx2.get(f"{service.url}/ready").status_code == 200
        postgres.drop_database(postgres_url)
        assert httpx2.get(f"{service.url}/health").status_code == 200
        reply = httpx2.get(f"{service.url}/ready")
        assert reply.status_code == 503
        assert reply.json()["status"] == "unready"
        assert reply.json()["error"].startswith(("STORAGE", "CONFIGURATION"))
        assert "acms_" not in reply.text.replace("acms_app", "")


def test_what_is_asked_stored_and_refused_is_counted(sqlite_service: Service) -> None:
    context = sqlite_service.create()
    before = read_metrics(sqlite_service)
    sqlite_service.say(context, "one", "two")
    sqlite_service.get(f"/contexts/{context}/window", budget=100)
    assert sqlite_service.client.get("/contexts/c_nope").status_code == 404
    after = read_metrics(sqlite_service)

    def more(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert more("acms_messages_total") == 2
    assert more('acms_tokens_asked_total{verb="window"}') == 100
    assert more('acms_tokens_used_total{verb="window"}') > 0
    missed = (
        'acms_http_requests_total{code="SESSION_NOT_FOUND",method="GET",operation="getContext",status="404"}'
    )
    assert more(missed) == 1
    assert more('acms_http_request_seconds_count{operation="appendMessages"}') == 1


def test_the_share_of_a_prompt_that_a_cache_holds_is_counted(sqlite_service: Service) -> None:
    context = sqlite_service.talk("one " * 400, "two " * 400)
    before = read_metrics(sqlite_service)
    reply = sqlite_service.client.post(
        f"/contexts/{context}/prompt",
        json={"codec": "openai-chat", "model": "gpt-4o", "user": "Go on.", "budget": 3000},
    )
    assert reply.status_code == 200, reply.text
    short = sqlite_service.client.post(
        f"/contexts/{context}/prompt",
        json={"codec": "openai-chat", "model": "gpt-4o", "user": "Go on.", "budget": 1},
    )
    assert short.status_code == 422
    after = read_metrics(sqlite_service)
    assert after["acms_prompt_cached_share_count"] == before["acms_prompt_cached_share_count"] + 1
    assert after['acms_tokens_asked_total{verb="prompt"}'] >= 3000
    assert (
        after['acms_budget_rejections_total{code="FIT"}']
        == before.get('acms_budget_rejections_total{code="FIT"}', 0) + 1
    )


class Lines(logging.Handler):
    """The log as it is written; `ended` is set once a request is in it, which is after its answer was sent."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(JSONFormatter())
        self.written: list[str] = []
        self.ended = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.written.append(self.format(record))
        if record.getMessage() == "request":
            self.ended.set()


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, logger = Lines(), logging.getLogger("acms")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.setLevel(level)
    logger.removeHandler(handler)


def test_a_request_is_one_line_of_the_log_without_what_it_says(sqlite_service: Service, lines: Lines) -> None:
    context = sqlite_service.create()
    assert lines.ended.wait(60)
    lines.written.clear()
    lines.ended.clear()
    body = {"messages": [{"role": "user", "content": CANARY, "metadata": {"note": CANARY}}]}
    headers = {"X-Request-ID": "run-7"}
    sqlite_service.client.post(f"/contexts/{context}/messages", json=body, headers=headers)
    assert lines.ended.wait(60)
    (line,) = [json.loads(one) for one in lines.written if '"event": "request"' in one]
    assert line["correlation_id"] == "run-7"
    assert (line["operation"], line["status"], line["tenant"]) == ("appendMessages", 201, "default")
    assert line["ms"] > 0
    assert CANARY not in "".join(lines.written)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def test_a_request_is_a_span_below_its_callers(sqlite_service: Service, spans: InMemorySpanExporter) -> None:
    context = sqlite_service.talk(CANARY)
    spans.clear()
    above = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{above}-00f067aa0ba902b7-01"}
    sqlite_service.client.get(f"/contexts/{context}/window", params={"budget": 100}, headers=headers)
    (span,) = [one for one in spans.get_finished_spans() if one.kind is trace.SpanKind.SERVER]
    assert format(span.context.trace_id, "032x") == above
    assert span.name == "showWindow"
    assert span.attributes is not None
    assert span.attributes["http.route"] == "/contexts/{context_id}/window"
    assert span.attributes["http.response.status_code"] == 200
    assert context not in str(span.attributes)
    assert CANARY not in str(span.attributes)
