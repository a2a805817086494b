"""Spans of prompts: every render has its own, ended, with its stages under it; no text unless it is asked for."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from acms import FitError, Media, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.codecs import OpenAIChat
from acms.observability import PromptRendered, ScopeShrunk, tracing
from acms.observability.tracing import RenderSpan, record_content, render_span
from acms.prompt import Prompt
from acms.prompt_types import PromptMessage
from tests.support.talk import Storage, session_on

SECRET = "the code word is xylophone"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def scope_shrunk(number: int = 0) -> ScopeShrunk:
    return ScopeShrunk(
        render_id=f"r{number}",
        path="prompt/history",
        priority=3,
        strategy="window",
        tokens_before=900,
        tokens_after=400,
    )


def prompt_rendered(number: int = 0) -> PromptRendered:
    return PromptRendered(
        render_id=f"r{number}",
        codec="openai-chat",
        model="gpt-5",
        budget=500,
        tokens=400,
        upper_bound=400,
        messages=3,
        steps=1,
        left_out=2,
        predicted_cached_tokens=128,
        seconds=0.01,
    )


async def render_with_spans(number: int, order: list[int]) -> None:
    with render_span(codec="openai-chat", model="gpt-5", budget=500) as span:
        for stage in ("gather", "recall", "fit"):
            with span.stage(stage):
                order.append(number)
                await asyncio.gather(asyncio.sleep(0), start_child_span(span), start_child_span(span))
        span.step(scope_shrunk(number))
        span.record_result(prompt_rendered(number), [PromptMessage(role=Role.USER, parts=(Text(SECRET),))])


async def start_child_span(span: RenderSpan) -> None:
    """What a stage starts beside itself has the stage as its parent."""
    with trace.get_tracer("test").start_as_current_span("store"):
        await asyncio.sleep(0)


def span_ids(span: ReadableSpan) -> tuple[int, int | None]:
    assert span.context is not None
    return span.context.span_id, None if span.parent is None else span.parent.span_id


async def test_of_eight_renders_at_once_every_span_ends_under_its_own_parent(
    spans: InMemorySpanExporter,
) -> None:
    order: list[int] = []
    with trace.get_tracer("test").start_as_current_span("request"):
        await asyncio.gather(*[render_with_spans(number, order) for number in range(8)])
    assert order != sorted(order), "they ran one after the other"
    found = spans.get_finished_spans()
    assert all(span.end_time for span in found)
    names = Counter(span.name for span in found)
    stages = ("acms.prompt.render.gather", "acms.prompt.render.recall", "acms.prompt.render.fit")
    assert names == {"request": 1, "acms.prompt.render": 8, **dict.fromkeys(stages, 8), "store": 48}
    at = {span_ids(span)[0]: span for span in found}
    children: Counter[tuple[int, str]] = Counter()
    for span in found:
        own, parent = span_ids(span)
        if span.name == "request":
            assert parent is None
            continue
        assert parent is not None
        above = at[parent].name
        assert above == {"acms.prompt.render": "request", "store": above}.get(span.name, "acms.prompt.render")
        if span.name == "store":
            assert above in stages
        children[parent, span.name] += 1
    for span in found:
        if span.name == "acms.prompt.render":
            own = span_ids(span)[0]
            assert [children[own, stage] for stage in stages] == [1, 1, 1]
            assert span.attributes is not None
            (event,) = span.events
            assert event.attributes is not None
            assert event.attributes["acms.scope.path"] == "prompt/history"
    numbers = {
        str((span.attributes or {}).get("acms.prompt.id"))
        for span in found
        if span.name == "acms.prompt.render"
    }
    assert numbers == {f"r{number}" for number in range(8)}


async def test_a_span_says_what_was_rendered_for_whom(spans: InMemorySpanExporter) -> None:
    await render_with_spans(0, [])
    (span,) = [one for one in spans.get_finished_spans() if one.name == "acms.prompt.render"]
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "render_prompt",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-5",
        "acms.prompt.codec": "openai-chat",
        "acms.prompt.budget": 500,
        "acms.prompt.id": "r0",
        "acms.prompt.tokens": 400,
        "acms.prompt.upper_bound": 400,
        "acms.prompt.messages": 3,
        "acms.prompt.steps": 1,
        "acms.prompt.left_out": 2,
        "acms.prompt.predicted_cached_tokens": 128,
    }


async def test_no_text_is_recorded_before_somebody_asks_for_it(spans: InMemorySpanExporter) -> None:
    await render_with_spans(0, [])
    assert SECRET not in "".join(span.to_json() for span in spans.get_finished_spans())


MESSAGE = PromptMessage(
    role=Role.ASSISTANT,
    name="sam",
    parts=(
        Text(SECRET),
        Reasoning("because"),
        ToolCall("c1", "disk", '{"host": "db1"}'),
        ToolResult("c1", "40%"),
        Media("image/png", "s3://a"),
        Raw("openai", "{}"),
    ),
)


def test_text_that_was_asked_for_has_the_form_of_the_conventions(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_content", False)
    record_content()
    with render_span(codec="anthropic", model="claude") as span:
        span.record_result(prompt_rendered(), [MESSAGE])
    record_content(False)
    with render_span(codec="anthropic", model="claude") as span:
        span.record_result(prompt_rendered(), [MESSAGE])
    told, silent = [dict(one.attributes or {}) for one in spans.get_finished_spans()]
    assert told["gen_ai.provider.name"] == "anthropic"
    assert "acms.prompt.budget" not in told
    written = told["gen_ai.input.messages"]
    assert isinstance(written, str)
    assert json.loads(written) == [
        {
            "role": "assistant",
            "name": "sam",
            "parts": [
                {"type": "text", "content": SECRET},
                {"type": "reasoning", "content": "because"},
                {"type": "tool_call", "id": "c1", "name": "disk", "arguments": {"host": "db1"}},
                {"type": "tool_call_response", "id": "c1", "response": "40%"},
                {"type": "uri", "mime_type": "image/png", "modality": "image", "uri": "s3://a"},
                {"type": "openai", "json": "{}"},
            ],
        }
    ]
    assert "gen_ai.input.messages" not in silent


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (
            FitError(budget=10, required=30),
            "FIT",
            "FIT: 30 tokens are required, 20 more than the budget of 10",
        ),
        (RuntimeError(SECRET), "RuntimeError", "RuntimeError at test_tracing.py"),
        (asyncio.CancelledError(), "CancelledError", "CancelledError at"),
    ],
)
def test_an_error_is_recorded_once_and_not_what_a_stranger_says(
    spans: InMemorySpanExporter, error: BaseException, code: str, words: str
) -> None:
    with (
        pytest.raises(type(error)),
        render_span(codec="openai-chat", model="gpt-5") as span,
        span.stage("fit"),
    ):
        raise error
    fit, whole = spans.get_finished_spans()
    assert fit.name == "acms.prompt.render.fit"
    for one in (fit, whole):
        assert one.status.status_code is StatusCode.ERROR
        assert (one.attributes or {})["error.type"] == code
    assert not fit.events
    (event,) = whole.events
    assert event.name == "exception"
    assert str((event.attributes or {})["exception.message"]).startswith(words)
    assert SECRET not in fit.to_json() + whole.to_json()


def test_where_nobody_records_nothing_is_done() -> None:
    with render_span(codec="openai-chat", model="gpt-5") as span, span.stage("fit"):
        span.step(scope_shrunk())
        span.record_result(prompt_rendered(), [MESSAGE])
        assert not trace.get_current_span().is_recording()


def test_without_opentelemetry_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with render_span(codec="openai-chat", model="gpt-5") as span, span.stage("fit"):
        span.step(scope_shrunk())
        span.record_result(prompt_rendered(), [MESSAGE])


async def test_prompts_that_are_rendered_at_once_share_no_span(
    spans: InMemorySpanExporter, storage: Storage
) -> None:
    sessions = [session_on(storage, f"user_{number}") for number in range(8)]
    for number, session in enumerate(sessions):
        for turn in range(20):
            await session.ingest("user", f"Message {turn} of user {number}: {SECRET}.")
    prompts = [
        Prompt(OpenAIChat("gpt-5"))
        .system("Rules.")
        .omit("An example. " * 30)
        .history(session)
        .recall(session, "message 3", tokens=50)
        .user("?")
        for session in sessions
    ]
    await asyncio.gather(*[prompt.render(budget=150) for prompt in prompts])
    found = [one for one in spans.get_finished_spans() if one.name.startswith("acms.prompt")]
    whole = {span_ids(span)[0]: span for span in found if span.name == "acms.prompt.render"}
    assert len(whole) == 8
    for own, span in whole.items():
        assert span_ids(span)[1] is None
        stages = [one for one in found if span_ids(one)[1] == own]
        assert [one.name.rpartition(".")[2] for one in stages] == ["gather", "recall", "fit"]
        assert {event.name for event in span.events} == {"acms.prompt.scope_shrunk"}
    assert len(found) == 8 * 4
    assert all(span.end_time for span in found)
    assert SECRET not in "".join(span.to_json() for span in found)
