"""OpenTelemetry spans of prompts, with the attribute names of the semantic conventions for generative AI.

A render is one operation, `acms.prompt.render`, with a child for each of its stages and an event for each scope that
was shrunk; every render has its own, whatever runs beside it. Without a listener nothing is recorded. Message text is
recorded only after `record_content()`.

A render calls no model: its operation is `render_prompt`, not `chat`, and its tokens are `acms.prompt.*`, not usage, so
that dashboards which count calls and cost do not count a request twice.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from acms.model import Json, Media, Part, Raw, Reasoning, Text, ToolCall, ToolResult
from acms.observability.events import PromptRendered, ScopeShrunk
from acms.observability.logging import safe_error
from acms.observability.operations import Operation, find_instruments, record_operation
from acms.prompt_types import PromptMessage

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

__all__ = ["RenderSpan", "RequestSpan", "record_content", "render_span", "request_span"]

RENDER = "prompt.render"

_content = False


def record_content(enabled: bool = True) -> None:
    """Record the text of prompts as `gen_ai.input.messages`, in this process; off until it is called."""
    global _content
    _content = enabled


class RenderSpan:
    """The span of one render; every method does nothing if it is not recorded."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation

    def stage(self, name: str) -> AbstractContextManager[object]:
        """Run the block in a child span: "gather", "recall", "fit"."""
        return self._operation.stage(f"acms.{RENDER}.{name}")

    def step(self, event: ScopeShrunk) -> None:
        """Note that a scope was shrunk."""
        if self._operation.span is not None:
            self._operation.span.add_event(
                "acms.prompt.scope_shrunk",
                {
                    "acms.scope.path": event.path,
                    "acms.scope.priority": event.priority,
                    "acms.scope.strategy": event.strategy,
                    "acms.prompt.tokens_before": event.tokens_before,
                    "acms.prompt.tokens_after": event.tokens_after,
                },
            )

    def record_result(self, event: PromptRendered, messages: Sequence[PromptMessage] = ()) -> None:
        """Record the result of the render; the messages are read only when their text is to be recorded."""
        self._operation.tokens = event.tokens
        self._operation.attributes.update(
            {
                "acms.prompt.id": event.render_id,
                "acms.prompt.tokens": event.tokens,
                "acms.prompt.upper_bound": event.upper_bound,
                "acms.prompt.messages": event.messages,
                "acms.prompt.steps": event.steps,
                "acms.prompt.left_out": event.left_out,
                "acms.prompt.predicted_cached_tokens": event.predicted_cached_tokens,
            }
        )
        if _content and self._operation.span is not None:
            self._operation.attributes["gen_ai.input.messages"] = json.dumps(
                [_message_json(message) for message in messages],
                ensure_ascii=False,
                sort_keys=True,
                separators=(",", ":"),
            )


@contextmanager
def render_span(*, codec: str, model: str, budget: int | None = None) -> Generator[RenderSpan]:
    """Open the span of a render; it ends with the block, and an error is recorded on it once."""
    about: dict[str, str | int] = {
        "gen_ai.provider.name": codec.partition("-")[0],
        "gen_ai.request.model": model,
        "acms.prompt.codec": codec,
        **({} if budget is None else {"acms.prompt.budget": budget}),
    }
    with record_operation(RENDER, about) as operation:
        try:
            yield RenderSpan(operation)
        except BaseException as error:
            if operation.span is not None:
                operation.span.add_event(
                    "exception",
                    {"exception.type": type(error).__qualname__, "exception.message": safe_error(error)},
                )
            raise


def _message_json(message: PromptMessage) -> dict[str, Json]:
    """Write a message in the form of the conventions' JSON schema of input messages."""
    fields: dict[str, Json] = {
        "role": message.role.value,
        "parts": [_part_json(part) for part in message.parts],
    }
    if message.name is not None:
        fields["name"] = message.name
    return fields


def _part_json(part: Part) -> dict[str, Json]:
    """Serialize a part in the form of OpenTelemetry's conventions for generative AI."""
    match part:
        case Text(text):
            return {"type": "text", "content": text}
        case Reasoning(text):
            return {"type": "reasoning", "content": text}
        case ToolCall(call_id, name, arguments):
            return {
                "type": "tool_call",
                "id": call_id,
                "name": name,
                "arguments": _parse_arguments(arguments),
            }
        case ToolResult(call_id, output):
            return {"type": "tool_call_response", "id": call_id, "response": output}
        case Media(mime, ref):
            return {"type": "uri", "mime_type": mime, "modality": mime.partition("/")[0], "uri": ref}
        case Raw(vendor, raw):
            return {"type": vendor, "json": raw}


def _parse_arguments(arguments: str) -> Json:
    """Return the arguments of a call as JSON, which the conventions require, or as text if they are no JSON."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


# ── requests of the HTTP service ────────────────────────────────────────────────────────────────────────────────────


class RequestSpan:
    """The span of one request to the HTTP service; does nothing if it is not recorded."""

    def __init__(self, span: Span | None = None) -> None:
        self._span = span

    def record_answer(self, *, operation: str, route: str, status: int, code: str) -> None:
        """Record the operation and the answer's status: no ids, no tenant, no query."""
        if self._span is None:
            return
        self._span.update_name(operation)
        self._span.set_attributes({"http.route": route, "http.response.status_code": status})
        if code:
            self._span.set_attribute("error.type", code)
        if status >= 500:
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR)


_UNSEEN = nullcontext(RequestSpan())


def request_span(method: str, headers: Mapping[str, str]) -> AbstractContextManager[RequestSpan]:
    """Open the span of a request, as a child of the caller's span if the request names it in `traceparent`."""
    instruments = find_instruments()
    return _UNSEEN if instruments is None else _open_request_span(instruments.tracer, method, headers)


@contextmanager
def _open_request_span(tracer: Tracer, method: str, headers: Mapping[str, str]) -> Generator[RequestSpan]:
    """Open the span of a request, as a child of the span that its `traceparent` header names."""
    from opentelemetry import trace

    parent = None
    if "traceparent" in headers:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract(dict(headers))
    span = tracer.start_span(
        method, context=parent, kind=trace.SpanKind.SERVER, attributes={"http.request.method": method}
    )
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        yield RequestSpan(span if span.is_recording() else None)
