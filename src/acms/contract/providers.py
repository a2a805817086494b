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
    OBJECT,
    SNIPPET,
    Candidate,
    Code,
    Layer,
    Notice,
    ProviderRequest,
    ProviderResponse,
    Variant,
    letters,
)
from acms.contract.wire import ITEMS, one_of
from acms.errors import ACMSError, ConfigurationError, ProviderError, ValidationError
from acms.model import Json, Privacy
from acms.observability.logging import safe_error
from acms.privacy.detect import redact_text
from acms.recall.patience import patience
from acms.view import View

if TYPE_CHECKING:
    from acms.contract.session_source import Memory
    from acms.providers.http_source import HTTPSource

__all__ = ["HTTPSource", "KnowledgeSource"]

CHARS = 4_000_000
"""Characters of all texts of one answer, at most."""
TURN = 0.002
"""Most seconds that reading answers holds the event loop at a time, regardless of their number."""
WARNINGS = 100
"""Warnings of one answer that are read."""
LEAST_GRACE, GRACE = 0.005, 0.05
"""Least and most seconds that a cancelled call has to clean up."""
KILL = 0.005
"""Seconds in which a call that ignored its cancellation has to end after it was closed."""


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
    own: bool = False


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
    passing: bool = False
    #: The error it failed with, in a form that is safe to log.
    error: str | None = None
    #: It did not end even after it was cancelled and closed.
    abandoned: bool = False
    #: Milliseconds until it answered or was cancelled.
    took_ms: float = 0.0


class Desk:
    """A lock under which the answers of one render are read, one slice of one answer at a time."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()


def build_providers(sources: Sequence[object]) -> tuple[Provider, ...]:
    """Return the providers for some sources; a session becomes two, its project and its experience."""
    found: list[Provider] = []
    for source in sources:
        if isinstance(source, View):
            name = redact_text(source.session_id, Privacy.REDACT).text  # it stands in logs and messages
            found.append(Provider(name=name, layer=Layer.L2, source=source, own=True))
            found.append(Provider(name=name, layer=Layer.L4, source=source, own=True))
            continue
        if isinstance(source, type) or not callable(getattr(source, "search", None)):
            raise ConfigurationError(
                "a source must be a session or have an async method search(request)",
                options=(
                    "pass the session itself",
                    "acms.contract.providers.KnowledgeSource says what is needed",
                ),
            )
        name = getattr(source, "name", None)
        deadline: Any = getattr(source, "deadline_ms", None)
        if deadline is not None and (
            isinstance(deadline, bool) or not isinstance(deadline, int | float) or not deadline > 0
        ):
            raise ConfigurationError("deadline_ms of a source must be a number above 0")
        try:
            layer = one_of(Layer, getattr(source, "layer", None), "layer")
        except ValidationError as error:
            raise ConfigurationError("layer of a source must be L1, L2 or L4") from error
        if layer is Layer.CACHED:
            raise ConfigurationError("layer of a source must be L1, L2 or L4")
        found.append(
            Provider(
                name=redact_text(name, Privacy.REDACT).text
                if isinstance(name, str) and name
                else type(source).__name__,
                layer=layer,
                source=source,
                deadline_ms=deadline,
            )
        )
    return tuple(found)


# ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def ask_providers(
    calls: Sequence[Call], memories: Mapping[int, Memory], desk: Desk, *, until: float
) -> list[Answer]:
    """Run all calls concurrently, each within its slice; return their answers in order. No task is left running.

    A late call is cancelled, and closed by force if it has not cleaned up by `until`, in the loop's time. Reading an
    answer does not count against the slice of its provider. Candidates not read by `until` are left out.
    """
    if not calls:
        return []
    loop = asyncio.get_running_loop()
    begin = loop.time()
    pending = [_Pending(call, begin=begin, until=until) for call in calls]
    under_way = {asyncio.create_task(_call_provider(one, memories, desk)): one for one in pending}
    tasks = list(under_way)
    waiting, late = set(tasks), set[asyncio.Task[Answer]]()
    try:
        while waiting:
            left = min(under_way[task].end for task in waiting) - loop.time()
            await asyncio.wait(waiting, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
            now = loop.time()
            for task in tuple(waiting):
                one = under_way[task]
                if task.done():
                    one.note_end()
                    waiting.discard(task)
                elif one.end <= now:
                    one.note_end()
                    task.cancel()
                    waiting.discard(task)
                    late.add(task)
    finally:
        await _cancel_tasks(tasks, max(LEAST_GRACE, min(GRACE, until - loop.time())))
    return [
        replace(_answer_of_task(task, one.call, task in late), took_ms=one.took_ms or 0.0)
        for task, one in under_way.items()
    ]


class _Pending:
    """A call under way."""

    def __init__(self, call: Call, *, begin: float, until: float) -> None:
        self.call = call
        self._begin = begin
        self._until = until
        #: Its deadline in the loop's time: the end of its slice, or `until` once its provider answered.
        self.end = begin + call.slice_ms / 1000
        #: When reading its answer stops.
        self.stop = until - GRACE
        #: Milliseconds until the provider answered or was cancelled.
        self.took_ms: float | None = None

    def note_answer(self) -> None:
        """Record that the provider answered: reading the answer does not count against its slice."""
        self.note_end()
        self.end = max(self.end, self._until)

    def note_end(self) -> None:
        """Record the provider's response time, once."""
        if self.took_ms is None:
            self.took_ms = 1000 * (asyncio.get_running_loop().time() - self._begin)


async def _cancel_tasks(tasks: Sequence[asyncio.Task[Answer]], grace: float) -> None:
    """Cancel the unfinished tasks, and close those that ignore the cancellation."""
    left = {task for task in tasks if not task.done()}
    for task in left:
        task.cancel()
        task.add_done_callback(_retrieve_exception)
    if left:
        _, left = await asyncio.wait(left, timeout=grace)
    for _ in range(2):
        if not left:
            return
        for task in left:
            coroutine: Any = task.get_coro()
            with suppress(Exception):
                coroutine.close()  # also ends a coroutine that swallows the cancellation
            task.cancel()
        _, left = await asyncio.wait(left, timeout=KILL)


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of an abandoned task, so asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def _answer_of_task(task: asyncio.Task[Answer], call: Call, late: bool) -> Answer:
    if not task.done():
        return Answer(call=call, code=Code.PROVIDER_TIMEOUT, abandoned=True)
    if task.cancelled():
        return Answer(call=call, code=Code.PROVIDER_TIMEOUT if late else Code.PROVIDER_ERROR)
    error = task.exception()
    if late:
        return Answer(call=call, code=Code.PROVIDER_TIMEOUT)
    if error is None:
        return task.result()
    code = _code_of_error(error)
    passing = isinstance(error, ConnectionError) or (
        isinstance(error, ACMSError) and error.retryable and not isinstance(error, ProviderError)
    )
    told = safe_error(error) if call.provider.own else type(error).__name__
    return Answer(call=call, code=code, passing=passing, error=told)


def _code_of_error(error: BaseException) -> Code:
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


async def _call_provider(pending: _Pending, memories: Mapping[int, Memory], desk: Desk) -> Answer:
    call = pending.call
    if call.provider.own:
        memory = memories[id(call.provider.source)]
        patience.set(
            min(patience.get(), call.slice_ms / 2000)
        )  # of this task: the rest is for the recall itself
        found = await (memory.project() if call.provider.layer is Layer.L2 else memory.experience())
        return Answer(call=call, candidates=found.candidates, size=found.size)
    said = call.provider.source.search(call.request)
    if inspect.isawaitable(said):
        said = await said
    pending.note_answer()
    held = [said]
    del said  # the reader releases it in chunks
    return await _read_answer(held, call, desk, stop=pending.stop)


# ── reading an answer ───────────────────────────────────────────────────────────────────────────────────────────────

_CANDIDATE = tuple(field.name for field in fields(Candidate))
_VARIANT = tuple(field.name for field in fields(Variant))
_RESPONSE = tuple(field.name for field in fields(ProviderResponse))


def _to_mapping(value: object, names: Sequence[str]) -> object:
    """Return an object as the mapping it would be on the wire, so it is validated like received JSON."""
    return value if isinstance(value, Mapping) else {name: getattr(value, name) for name in names}


def _candidate_to_mapping(value: object) -> object:
    if not isinstance(value, Candidate):
        return value
    body: Any = _to_mapping(value, _CANDIDATE)
    variants = body["variants"]
    if isinstance(variants, Sequence):
        body["variants"] = [
            _to_mapping(one, _VARIANT) if isinstance(one, Variant) else one for one in variants
        ]
    return body


def _split_response(said: object, request_id: str) -> tuple[ProviderResponse, list[object]]:
    """Return a response without its candidates, and the raw candidates; `ValidationError` if it is malformed."""
    body: Any = _to_mapping(said, _RESPONSE) if isinstance(said, ProviderResponse) else said
    if not isinstance(body, Mapping):
        raise ValidationError("must be an object", field="response")
    given: Any = body.get("candidates")
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or len(given) > ITEMS:
        raise ValidationError(f"must be a list of at most {ITEMS} candidates", field="candidates")
    stated: dict[str, object] = {name: body[name] for name in _RESPONSE if name in body}
    warnings: Any = stated.get("warnings", ())
    if isinstance(warnings, Sequence) and not isinstance(warnings, str | bytes):
        warnings = [
            {"code": one.code, "message": ""} if isinstance(one, Notice) else one
            for one in islice(warnings, WARNINGS)
        ]
    frame = ProviderResponse.of({**stated, "candidates": (), "warnings": warnings})
    if frame.request_id != request_id:
        raise ValidationError("answers another request", field="request_id")
    return frame, list(islice(given, len(given)))


async def _read_answer(held: list[Any], call: Call, desk: Desk, *, stop: float) -> Answer:
    """Take an answer and parse its candidates one by one; malformed candidates are dropped.

    Concurrent readers take turns. Candidates not read at `stop`, in the loop's time, are left out, and the answer is
    partial. `ValidationError` if the answer as a whole is malformed: no candidates, another request's id, or too large.
    """
    frame, pile = _split_response(held.pop(), call.request.request_id)
    found: list[Candidate] = []
    unread: list[str] = []
    dropped = disobeyed = chars = done = 0
    clock = asyncio.get_running_loop().time
    while done < len(pile) and (done == 0 or clock() < stop):
        async with desk.turn:
            until = perf_counter() + TURN
            while done < len(pile) and perf_counter() < until:
                one = _candidate_to_mapping(pile[done])
                pile[done] = None
                done += 1
                try:
                    (candidate,) = ProviderResponse.of(
                        {"request_id": frame.request_id, "candidates": [one]}
                    ).candidates
                except ValidationError:
                    dropped += 1
                    unread += _text_of(one)
                    continue
                if candidate.source is Layer.L1 and not call.request.expansion:
                    dropped += 1  # L1 knowledge that was not requested
                    unread += _text_of(one)
                    continue
                if candidate.text is not None or candidate.variants:
                    chars += letters(candidate)
                    if chars > CHARS:
                        raise ValidationError(f"has more than {CHARS} characters", field="candidates")
                    disobeyed += call.request.privacy is Privacy.BLOCK
                found.append(candidate)
            await asyncio.sleep(0)  # within the turn: the next one reads when the loop comes round again
    if dropped and not found:
        raise ValidationError("has no candidate that can be read", field="candidates")
    return Answer(
        call=call,
        candidates=tuple(found),
        size=chars + OBJECT * len(found),
        warnings=frozenset(one.code for one in frame.warnings),
        partial=frame.partial or done < len(pile),
        dropped=dropped,
        unread=tuple(unread) if call.request.privacy is Privacy.BLOCK else (),
        disobeyed=disobeyed,
    )


def _text_of(value: object) -> list[str]:
    """Return the text of a dropped candidate; other candidates of the same answer must not reveal it."""
    said = value.get("text") if isinstance(value, Mapping) else None
    return [said[:SNIPPET]] if isinstance(said, str) else []


def __getattr__(name: str) -> Any:
    """Import the HTTP client on first use."""
    if name != "HTTPSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from acms.providers.http_source import HTTPSource

    return HTTPSource
