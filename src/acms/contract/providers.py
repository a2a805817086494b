"""Context providers: the sources that the engine queries, and how it waits for their answers.

L1 is the world, L2 the project, L4 experience. A source is anything with a name, a layer and an async `search`; a
session provides two of them from one recall. Sources are queried concurrently, each within its time slice. A source
that hangs, fails, lies or answers without end loses its own answer and affects no other.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from acms.contract.schema import (
    MAX_SNIPPET_CHARS,
    OBJECT,
    Candidate,
    Code,
    Layer,
    Notice,
    ProviderRequest,
    ProviderResponse,
    Variant,
    letters,
    parse_candidate,
)
from acms.contract.wire import MAX_LIST_ITEMS, parse_list
from acms.errors import ACMSError, ConfigurationError, ProviderError, ValidationError
from acms.model import Json, Privacy
from acms.observability.logging import safe_error
from acms.privacy.detect import redact_text
from acms.runtime.patience import patience
from acms.view import View

if TYPE_CHECKING:
    from acms.contract.session_source import SessionMemory
    from acms.providers.http_source import HTTPSource

__all__ = ["HTTPSource", "KnowledgeSource"]

MAX_ANSWER_CHARS = 4_000_000
"""Characters of all texts of one answer: a thousand times what a model reads of it."""
READING_SECONDS = 0.002
"""Seconds that reading answers holds the event loop at a time, regardless of their number."""
MIN_GRACE_SECONDS, MAX_GRACE_SECONDS = 0.005, 0.05
"""Least and most seconds that a cancelled call has to clean up, and that a call closed by force has to end."""


@runtime_checkable
class KnowledgeSource(Protocol):
    """Offers candidates: a library, a search engine, another memory.

    The optional `deadline_ms` is its time limit; the default depends on its layer. `search` returns a
    `ProviderResponse` or the JSON of one, with the `request_id` of the request. It is cancelled when its time is over,
    and must not block the event loop.
    """

    @property
    def name(self) -> str:
        """Its name in messages and logs."""
        ...

    @property
    def layer(self) -> Layer | str:
        """Where its knowledge comes from: L1, L2 or L4."""
        ...

    async def search(self, request: ProviderRequest) -> ProviderResponse | Mapping[str, Json]:
        """Return candidates for a query within `request.deadline_ms`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A source and its settings, as the engine queries it."""

    name: str
    layer: Layer
    source: Any
    #: None uses the default of the layer.
    deadline_ms: float | None = None
    #: A session of the caller, which is trusted.
    is_session: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to one provider, with its time limit."""

    provider: Provider
    request: ProviderRequest
    slice_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a call."""

    call: Call
    #: None if it answered.
    code: Code | None = None
    candidates: tuple[Candidate, ...] = ()
    #: Approximate number of characters in the candidates.
    size: int = 0
    #: Codes of its warnings.
    warnings: frozenset[str] = frozenset()
    #: The deadline cut its search short.
    partial: bool = False
    #: Candidates that could not be read or were not allowed.
    dropped: int = 0
    #: Texts of the dropped candidates, under `block`.
    unread: tuple[str, ...] = ()
    #: Candidates that contained a text although `block` allows none.
    disobeyed: int = 0
    #: The failure is transient: an immediate retry may succeed.
    transient: bool = False
    #: The error it failed with, in a form that is safe to log.
    error: str | None = None
    #: It did not end even after it was cancelled and closed.
    abandoned: bool = False
    #: Milliseconds until it answered or was cancelled.
    took_ms: float = 0.0


def build_providers(sources: Sequence[object]) -> tuple[Provider, ...]:
    """Return the providers for some sources; a session becomes two, its project and its experience."""
    providers: list[Provider] = []
    for source in sources:
        if isinstance(source, View):
            name = redact_text(source.session_id, Privacy.REDACT).text  # it appears in logs and messages
            for layer in (Layer.L2, Layer.L4):
                providers.append(Provider(name=name, layer=layer, source=source, is_session=True))
        else:
            providers.append(_build_provider(source))
    return tuple(providers)


def _build_provider(source: Any) -> Provider:
    """Return the provider for a source that is not a session; raise `ConfigurationError` if it is no valid source."""
    if isinstance(source, type) or not callable(getattr(source, "search", None)):
        raise ConfigurationError(
            "a source must be a session or have an async method search(request)",
            options=(
                "pass the session itself",
                "acms.contract.providers.KnowledgeSource describes the interface",
            ),
        )
    deadline_ms: Any = getattr(source, "deadline_ms", None)
    if deadline_ms is not None:
        is_number = isinstance(deadline_ms, int | float) and not isinstance(deadline_ms, bool)
        if not is_number or not deadline_ms > 0:
            raise ConfigurationError("deadline_ms of a source must be a number above 0")
    layer = getattr(source, "layer", None)
    if layer not in (Layer.L1, Layer.L2, Layer.L4):
        raise ConfigurationError("layer of a source must be L1, L2 or L4")
    name = type(source).__name__
    own_name = getattr(source, "name", None)
    if isinstance(own_name, str) and own_name:
        name = redact_text(own_name, Privacy.REDACT).text
    return Provider(name=name, layer=Layer(layer), source=source, deadline_ms=deadline_ms)


# ── calls to providers ──────────────────────────────────────────────────────────────────────────────────────────────


async def ask_providers(
    calls: Sequence[Call], memories: Mapping[int, SessionMemory], reading: asyncio.Lock, *, until: float
) -> list[Answer]:
    """Run all calls concurrently, each within its time slice, and return their answers in order.

    A late call is cancelled, and closed by force if it has not ended by `until`, in the loop's time; no task is left
    running. Parsing an answer does not count against the slice of its provider. Candidates not parsed by `until` are
    left out. Answers are parsed under the lock `reading`, a part of one answer at a time.
    """
    if not calls:
        return []
    loop = asyncio.get_running_loop()
    begin = loop.time()
    all_pending = [_Pending(call, begin=begin, answers_due=until) for call in calls]
    tasks = [asyncio.create_task(_call_provider(pending, memories, reading)) for pending in all_pending]
    waiting = dict(zip(tasks, all_pending, strict=True))
    late_tasks: set[asyncio.Task[Answer]] = set()
    try:
        while waiting:
            seconds = min(pending.deadline for pending in waiting.values()) - loop.time()
            await asyncio.wait(waiting, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
            current_time = loop.time()
            for task, pending in tuple(waiting.items()):
                if not task.done() and pending.deadline > current_time:
                    continue
                if not task.done():
                    task.cancel()
                    late_tasks.add(task)
                pending.note_end()
                del waiting[task]
    finally:
        await _cancel_tasks(tasks, max(MIN_GRACE_SECONDS, min(MAX_GRACE_SECONDS, until - loop.time())))
    answers: list[Answer] = []
    for task, pending in zip(tasks, all_pending, strict=True):
        answer = _answer_of_task(task, pending.call, task in late_tasks)
        answers.append(replace(answer, took_ms=pending.took_ms or 0.0))
    return answers


class _Pending:
    """A call under way."""

    def __init__(self, call: Call, *, begin: float, answers_due: float) -> None:
        self.call = call
        self._begin = begin
        self._answers_due = answers_due
        #: In the loop's time: the end of its slice, or `answers_due` once its provider answered.
        self.deadline = begin + call.slice_ms / 1000
        #: When reading its answer stops, in the loop's time.
        self.reading_deadline = answers_due - MAX_GRACE_SECONDS
        #: Milliseconds until the provider answered or was cancelled.
        self.took_ms: float | None = None

    def note_answer(self) -> None:
        """Record that the provider answered: reading the answer does not count against its slice."""
        self.note_end()
        self.deadline = max(self.deadline, self._answers_due)

    def note_end(self) -> None:
        """Record the provider's response time, once."""
        if self.took_ms is None:
            self.took_ms = 1000 * (asyncio.get_running_loop().time() - self._begin)


async def _cancel_tasks(tasks: Sequence[asyncio.Task[Answer]], grace: float) -> None:
    """Cancel the unfinished tasks, and close those that have not ended after `grace` seconds."""
    unfinished = {task for task in tasks if not task.done()}
    for task in unfinished:
        task.cancel()
        task.add_done_callback(_retrieve_exception)
    if unfinished:
        _, unfinished = await asyncio.wait(unfinished, timeout=grace)
    for _ in range(2):  # a coroutine may swallow the first attempt
        if not unfinished:
            return
        for task in unfinished:
            coroutine: Any = task.get_coro()
            with suppress(Exception):
                coroutine.close()  # also ends a coroutine that swallows the cancellation
            task.cancel()
        _, unfinished = await asyncio.wait(unfinished, timeout=MIN_GRACE_SECONDS)


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of an abandoned task, so asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def _answer_of_task(task: asyncio.Task[Answer], call: Call, is_late: bool) -> Answer:
    """Return the answer of a call, or an answer with the code of its failure; `is_late` if its time was over."""
    if is_late or not task.done():
        if task.done() and not task.cancelled():
            task.exception()  # retrieved, so asyncio does not log it
        return Answer(call=call, code=Code.PROVIDER_TIMEOUT, abandoned=not task.done())
    if task.cancelled():
        return Answer(call=call, code=Code.PROVIDER_ERROR)
    error = task.exception()
    if error is None:
        return task.result()
    # The message of a foreign source may quote the query, so only the class of its error is shown.
    description = safe_error(error) if call.provider.is_session else type(error).__name__
    return Answer(call=call, code=_code_of_error(error), transient=_is_transient(error), error=description)


def _is_transient(error: BaseException) -> bool:
    """Return whether an immediate retry may succeed."""
    if isinstance(error, ConnectionError):
        return True
    # A provider over HTTP has retried by itself before it raises a `ProviderError`.
    return isinstance(error, ACMSError) and error.retryable and not isinstance(error, ProviderError)


def _code_of_error(error: BaseException) -> Code:
    """Return the code of the contract for the error of a provider, by its class or its HTTP status."""
    if isinstance(error, TimeoutError):
        return Code.PROVIDER_TIMEOUT
    if isinstance(error, ConnectionError):
        return Code.PROVIDER_UNAVAILABLE
    if isinstance(error, ProviderError):
        from acms.providers.http import UnreachableError

        if isinstance(error, UnreachableError):
            return Code.PROVIDER_UNAVAILABLE
    return _BY_STATUS.get(getattr(error, "status", None), Code.PROVIDER_ERROR)


_BY_STATUS: Mapping[object, Code] = {
    408: Code.PROVIDER_TIMEOUT,
    429: Code.PROVIDER_UNAVAILABLE,
    502: Code.PROVIDER_UNAVAILABLE,
    503: Code.PROVIDER_UNAVAILABLE,
    504: Code.PROVIDER_TIMEOUT,
}


async def _call_provider(
    pending: _Pending, memories: Mapping[int, SessionMemory], reading: asyncio.Lock
) -> Answer:
    """Ask one provider: a session's memory by a recall, any other by its `search`."""
    call = pending.call
    if call.provider.is_session:
        memory = memories[id(call.provider.source)]
        # Half of the time is for waiting for vectors, the rest for the recall. The value applies to this task alone.
        half_seconds = call.slice_ms / 1000 / 2
        patience.set(min(patience.get(), half_seconds))
        is_project = call.provider.layer is Layer.L2
        collected = await (memory.project() if is_project else memory.experience())
        return Answer(call=call, candidates=collected.candidates, size=collected.size)
    response = call.provider.source.search(call.request)
    if inspect.isawaitable(response):
        response = await response
    pending.note_answer()
    response_holder = [response]
    del response  # the reader must hold the only reference, so that it can free the response in chunks
    return await _read_answer(response_holder, call, reading, stop=pending.reading_deadline)


# ── validation of answers ───────────────────────────────────────────────────────────────────────────────────────────


def _to_mapping(value: object) -> object:
    """Return an object of the contract as a mapping like its JSON, so that both are validated in the same way."""
    if isinstance(value, Candidate | Variant | ProviderResponse):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Notice):
        return {"code": value.code, "message": ""}
    return value


def _candidate_to_mapping(value: object) -> object:
    body: Any = _to_mapping(value)
    if isinstance(value, Candidate) and isinstance(value.variants, Sequence):
        body["variants"] = [_to_mapping(variant) for variant in value.variants]
    return body


def _split_response(response: object, request_id: str) -> tuple[ProviderResponse, list[object]]:
    """Return a response without its candidates, and the raw candidates; `ValidationError` if it is malformed."""
    body: Any = _to_mapping(response)
    if not isinstance(body, Mapping):
        raise ValidationError("must be an object", field="response")
    candidates = parse_list(
        body.get("candidates"),
        "candidates",
        f"a list of at most {MAX_LIST_ITEMS} candidates",
        max_items=MAX_LIST_ITEMS,
    )
    names = [field.name for field in fields(ProviderResponse)]
    frame: dict[str, object] = {name: body[name] for name in names if name in body}
    frame["candidates"] = ()
    warnings = frame.get("warnings")
    if isinstance(warnings, Sequence) and not isinstance(warnings, str | bytes):
        frame["warnings"] = [_to_mapping(warning) for warning in islice(warnings, 100)]
    parsed = ProviderResponse.of(frame)
    if parsed.request_id != request_id:
        raise ValidationError("answers another request", field="request_id")
    return parsed, list(islice(candidates, len(candidates)))


class _Reader:
    """Parses the candidates of an answer one by one; malformed candidates are dropped."""

    def __init__(self, request: ProviderRequest) -> None:
        self._request = request
        self.candidates: list[Candidate] = []
        self.characters = 0
        self.dropped = 0
        #: Texts of the dropped candidates: other candidates of the same answer must not reveal them.
        self.unread: list[str] = []
        #: Candidates that contained a text although `block` allows none.
        self.disobeyed = 0

    def read(self, raw_candidate: object) -> None:
        """Read the next candidate; raise `ValidationError` if the answer is too large."""
        body = _candidate_to_mapping(raw_candidate)
        try:
            candidate = parse_candidate(body, "candidates")
        except ValidationError:
            self._drop(body)
            return
        if candidate.source is Layer.L1 and not self._request.expansion:
            self._drop(body)  # L1 knowledge that was not requested
            return
        if candidate.text is not None or candidate.variants:
            self.characters += letters(candidate)
            if self.characters > MAX_ANSWER_CHARS:
                raise ValidationError(f"has more than {MAX_ANSWER_CHARS} characters", field="candidates")
            self.disobeyed += self._request.privacy is Privacy.BLOCK
        self.candidates.append(candidate)

    def _drop(self, body: object) -> None:
        self.dropped += 1
        text = body.get("text") if isinstance(body, Mapping) else None
        if isinstance(text, str):
            self.unread.append(text[:MAX_SNIPPET_CHARS])


async def _read_answer(
    response_holder: list[Any], call: Call, reading: asyncio.Lock, *, stop: float
) -> Answer:
    """Take the response out of the list `response_holder` and parse its candidates.

    Concurrent readers take turns. Candidates not parsed at `stop`, in the loop's time, are left out, and the answer is
    partial. Raises `ValidationError` if the whole response is invalid: no candidates, another request's id, too large.
    """
    frame, raw_candidates = _split_response(response_holder.pop(), call.request.request_id)
    reader = _Reader(call.request)
    position = 0
    clock = asyncio.get_running_loop().time
    while position < len(raw_candidates) and (position == 0 or clock() < stop):  # always some candidates
        async with reading:
            pause_at = perf_counter() + READING_SECONDS
            while position < len(raw_candidates) and perf_counter() < pause_at:
                reader.read(raw_candidates[position])
                raw_candidates[position] = None  # frees its memory
                position += 1
            # While the lock is held, so that other tasks run before the next reader begins.
            await asyncio.sleep(0)
    if reader.dropped and not reader.candidates:
        raise ValidationError("has no readable candidate", field="candidates")
    return Answer(
        call=call,
        candidates=tuple(reader.candidates),
        size=reader.characters + OBJECT * len(reader.candidates),
        warnings=frozenset(warning.code for warning in frame.warnings),
        partial=frame.partial or position < len(raw_candidates),
        dropped=reader.dropped,
        unread=tuple(reader.unread) if call.request.privacy is Privacy.BLOCK else (),
        disobeyed=reader.disobeyed,
    )


def __getattr__(name: str) -> Any:
    """Import the HTTP client on first use."""
    if name != "HTTPSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from acms.providers.http_source import HTTPSource

    return HTTPSource
