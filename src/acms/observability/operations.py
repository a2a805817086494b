"""Spans and metrics of a session's operations, by OpenTelemetry: names, ids, counts, versions and times, never text.

A verb is a span `acms.<verb>`, a job is `acms.job`. Attributes and the names of operations follow the semantic
conventions for generative AI where they define any; there a log is a memory store. Unless the process has imported
OpenTelemetry, nothing is imported here and nothing is recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from inspect import iscoroutinefunction
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

from acms.errors import ACMSError
from acms.model import Done, Entry, Failed, Job, Retry
from acms.observability.events import Compacted, Reflected
from acms.results import Compaction, ContextItems, Erasure, HistoryPage, MessageReceipt, Synced

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider

__all__ = ["Operation", "annotate_operation", "record_operation", "trace_class", "trace_function"]

Attributes: TypeAlias = Mapping[str, str | int | float | bool]
C = TypeVar("C", bound=type)
R = TypeVar("R")
P = ParamSpec("P")

COUNT, ID = "gen_ai.memory.record.count", "gen_ai.memory.record.id"
STORE, TOKENS = "gen_ai.memory.store.id", "acms.tokens"

NAMES = {
    **dict.fromkeys(("ingest", "ingest_many"), "create_memory"),
    **dict.fromkeys(("sync", "state"), "upsert_memory"),
    "replace": "update_memory",
    **dict.fromkeys(
        ("retract", "clear", "unstate", "erase", "erase_context", "erase_subject", "erase_tenant"),
        "delete_memory",
    ),
    **dict.fromkeys(("fork", "copy"), "create_memory_store"),
    "delete": "delete_memory_store",
    **dict.fromkeys(("recall", "window", "messages", "entries", "history", "facts", "get"), "search_memory"),
    "prompt.render": "render_prompt",
    "render": "render_context",
}
"""What the conventions call an operation; others have their own name."""

QUIET = frozenset(("close", "context_id", "read_span", "run_recall", "add_labels"))
"""Methods that are no verbs: what prompts are made of, and what takes no time."""

_API = ("opentelemetry.trace", "opentelemetry.metrics")
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = tuple(4.0**power for power in range(12))


class _Instruments(NamedTuple):
    """The instruments that record: a tracer, and the metrics by operation."""

    tracer: Tracer
    duration: Histogram
    tokens: Histogram
    records: Counter


def find_instruments() -> _Instruments | None:
    """Return the instruments that record, or None if OpenTelemetry is not imported."""
    trace, metrics = sys.modules.get("opentelemetry.trace"), sys.modules.get("opentelemetry.metrics")
    if trace is None or metrics is None:  # importing an SDK imports both
        return None
    return _create_instruments(trace.get_tracer_provider(), metrics.get_meter_provider())


@lru_cache(maxsize=1)
def _create_instruments(spans: TracerProvider, numbers: MeterProvider) -> _Instruments | None:
    """Return the instruments of providers; None if both are the defaults of the API itself, which record nothing."""
    if all(type(provider).__module__.startswith(_API) for provider in (spans, numbers)):
        return None
    meter = numbers.get_meter("acms")
    return _Instruments(
        spans.get_tracer("acms"),
        meter.create_histogram(
            "acms.operation.duration", "s", "How long it took.", explicit_bucket_boundaries_advisory=SECONDS
        ),
        meter.create_histogram(
            "acms.operation.tokens",
            "{token}",
            "Tokens stored or shown.",
            explicit_bucket_boundaries_advisory=SIZES,
        ),
        meter.create_counter("acms.operation.records", "{record}", "Entries stored, shown or erased."),
    )


class Operation:
    """The recording of a running operation; every method does nothing if nothing is recorded."""

    def __init__(self, span: Span | None = None, instruments: _Instruments | None = None) -> None:
        self.span = span if span is not None and span.is_recording() else None
        self._instruments = instruments
        self.attributes: dict[str, str | int | float | bool] = {}
        #: Tokens it stored or showed.
        self.tokens: int | None = None

    def note(self, result: object) -> None:
        """Record the attributes of a result, if its type has any."""
        if self._instruments is not None:
            describe = next((_TOLD[kind] for kind in type(result).__mro__ if kind in _TOLD), None)
            self.attributes.update({} if describe is None else describe(result))

    @contextmanager
    def stage(self, name: str) -> Generator[None]:
        """Run the block in a child span."""
        if self.span is None or self._instruments is None:
            yield
            return
        from opentelemetry import trace

        # The parent is given: the current span is another one in a task that was started elsewhere.
        child = self._instruments.tracer.start_span(name, context=trace.set_span_in_context(self.span))
        with _current_span(child):
            yield

    def finish(self, name: str, began: float, error: str) -> None:
        """Record the duration, the numbers of tokens and records, and the type of the error ("" without one)."""
        if self._instruments is None:
            return
        about: dict[str, str] = {"acms.operation": name, "gen_ai.operation.name": NAMES.get(name, name)}
        if error:
            about["error.type"] = error
        if "acms.job.kind" in self.attributes:
            about["acms.job.kind"] = str(self.attributes["acms.job.kind"])
        self._instruments.duration.record(perf_counter() - began, about)
        if (tokens := self.attributes.get(TOKENS, self.tokens)) is not None:
            self._instruments.tokens.record(int(tokens), about)
        if (count := self.attributes.get(COUNT)) is not None:
            self._instruments.records.add(int(count), about)
        if self.span is not None:
            self.span.set_attributes(self.attributes)


_running: ContextVar[Operation | None] = ContextVar("acms_operation", default=None)


def annotate_operation(result: object) -> None:
    """Record the attributes of a result on the current operation, if there is one."""
    if (operation := _running.get()) is not None:
        operation.note(result)


@contextmanager
def record_operation(
    name: str, about: Attributes | None = None, *, session: object = None, apart: bool = False
) -> Generator[Operation]:
    """Record the block as an operation, and its error by type alone; with `apart` its span has no parent.

    `session` is the session that the operation belongs to.
    """
    instruments = find_instruments()
    if instruments is None:
        yield Operation()
        return
    from opentelemetry.context import Context

    began, error = perf_counter(), ""
    span = instruments.tracer.start_span(f"acms.{name}", context=Context() if apart else None)
    operation = Operation(span, instruments)
    operation.attributes.update({"gen_ai.operation.name": NAMES.get(name, name), **(about or {})})
    token = _running.set(operation)
    with _current_span(span):
        try:
            yield operation
        except BaseException as raised:
            error = error_type(raised)
            raise
        finally:
            _running.reset(token)
            operation.attributes.update(_session_attributes(session))
            operation.finish(name, began, error)


@contextmanager
def _current_span(span: Span) -> Generator[None]:
    """Make a span the current one until it ends with the block, and mark it when that fails."""
    from opentelemetry import trace

    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except BaseException as error:
            span.set_attribute("error.type", error_type(error))
            span.set_status(trace.StatusCode.ERROR)
            raise


def error_type(error: BaseException) -> str:
    """Return the code of an ACMS error, the class of any other; never its message."""
    return error.code if isinstance(error, ACMSError) else type(error).__qualname__


RECORDED_AS = {"recall_for_prompt": "recall"}
"""Methods that are recorded under the name of another one, as an observer need not distinguish them."""


def trace_class(cls: C) -> C:
    """Record every verb of a class: its public coroutines."""
    for name, call in list(vars(cls).items()):
        if iscoroutinefunction(call) and not name.startswith("_") and name not in QUIET:
            setattr(cls, name, trace_function(call))
    return cls


def trace_function(call: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Record a coroutine function under its name; its first argument is the session, or another object."""
    name = RECORDED_AS.get(call.__name__, call.__name__)

    @wraps(call)
    async def call_recorded(*args: P.args, **kwargs: P.kwargs) -> R:
        if find_instruments() is None:
            return await call(*args, **kwargs)
        owner = args[0] if args else None
        with record_operation(name, session=owner) as operation:
            result = await call(*args, **kwargs)
            operation.note(result)
            if NAMES.get(name) == "create_memory_store":
                operation.attributes["acms.fork.store.id"] = _session_attributes(result).get(STORE, "")
            return result

    return call_recorded


def _session_attributes(session: object) -> dict[str, str]:
    """Return the attributes that identify a session: its conversation and, if it exists, its log."""
    shared: Any = getattr(session, "_shared", None)
    if shared is None:
        return {}
    attributes: dict[str, str] = {"gen_ai.conversation.id": shared.session_id}
    if shared.context_id is not None:
        attributes[STORE] = shared.context_id
    return attributes


def _list_attributes(items: Sequence[Any]) -> Attributes:
    if not items or not isinstance(items[0], MessageReceipt):
        return {COUNT: len(items)}
    return {
        COUNT: len(items),
        TOKENS: sum([item.tokens for item in items]),
        "acms.version": items[-1].version,
    }


_TOLD: Mapping[type, Callable[[Any], Attributes]] = {
    ContextItems: lambda it: {
        COUNT: len(it),
        TOKENS: it.tokens,
        "acms.budget": it.budget,
        "acms.omitted": it.ledger.omitted,
        "acms.version": it.version,
    },
    Synced: lambda it: {
        COUNT: len(it.appended) + len(it.replaced),
        **{
            f"acms.sync.{name}": len(getattr(it, name))
            for name in ("appended", "replaced", "retracted", "unchanged", "inserted", "ignored", "erased")
        },
    },
    Erasure: lambda it: {
        COUNT: len(it.ids),
        "acms.erasure.cascaded": len(it.cascaded),
        "acms.erasure.contexts": len(it.contexts),
        "acms.erasure.residue": len(it.residue),
        "acms.erasure.verified": it.verified,
    },
    Reflected: lambda it: {
        COUNT: sum([one.draft is not None for one in it.decisions]),
        "acms.reflection.episodes": len(it.episodes),
        "acms.reflection.messages": len(it.turns),
        "acms.reflection.proposals": len(it.decisions),
        "acms.reflection.unreadable": len(it.unreadable),
        "acms.reflection.ungrounded": sum(one.outcome == "ungrounded" for one in it.decisions),
        "acms.reflection.call_seconds": it.call_seconds,
    },
    **dict.fromkeys(
        (Compacted, Compaction),
        lambda it: {
            "acms.version": it.version,
            "acms.compaction.tokens_before": it.tokens_before,
            "acms.compaction.tokens_after": it.tokens_after,
        },
    ),
    Job: lambda it: {"acms.job.id": it.id, "acms.job.kind": it.kind, "acms.job.state": it.state.value},
    **{one: lambda it: {"acms.job.outcome": type(it).__name__.lower()} for one in (Done, Failed, Retry)},
    Entry: lambda it: {ID: it.id, "acms.version": it.version},
    HistoryPage: lambda it: {COUNT: len(it.entries)},
    str: lambda it: {ID: it},
    int: lambda it: {"acms.version": it},
    **dict.fromkeys((list, tuple), _list_attributes),
}
"""Attributes of an object that a verb returned, or that it and its jobs report on the way."""
