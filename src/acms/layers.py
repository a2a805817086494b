"""Layers: what the engine asks for knowledge, and how it waits for it.

L1 is the world, L2 the project, L4 experience. A source is anything with a name, a layer and an async `search`; a
session is two of them, over one recall. Sources are asked at the same time, each within its slice. Whatever one of them
does (hang, fail, lie, answer without end) costs its own answer and nothing else.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, fields, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from acms.contract import (
    Candidate,
    Code,
    Layer,
    Lod,
    Notice,
    ProviderRequest,
    ProviderResponse,
    RenderRequest,
    Variant,
)
from acms.core.admission import excerpt
from acms.core.entities import entities, gaze
from acms.core.episodes import is_mark
from acms.core.history import preview
from acms.core.passages import spans
from acms.core.privacy import effective, redact
from acms.errors import ACMSError, ConfigurationError, ProviderError, ValidationError
from acms.logs import log, shown
from acms.model import Entry, Json, Kind, Privacy, State
from acms.model import Source as Origin
from acms.projections import ContextItem, ContextItems, speak
from acms.reading import ITEMS, one_of
from acms.view import View

if TYPE_CHECKING:
    from acms.providers.http_source import HTTPSource

__all__ = ["HTTPSource", "KnowledgeSource"]

T = TypeVar("T")

CHARS = 4_000_000
"""Characters of all texts of one answer, at most."""
INLINE = 8_000
"""Characters that are read on the event loop, about 2 ms; more go to a thread."""
TURN = 0.002
"""Seconds that reading an answer holds the event loop at a time."""
LEAST_GRACE, GRACE = 0.005, 0.05
"""Seconds that a call which is cancelled has to clean up, at least and at most."""
KILL = 0.01
"""Seconds that a call which would not be cancelled has to end once it was closed."""


@runtime_checkable
class KnowledgeSource(Protocol):
    """Offers candidates: a library, a search engine, another memory.

    `deadline_ms`, where there is one, is how long it may take at most; else its layer decides. `search` answers with a
    `ProviderResponse` or the JSON of one, under the `request_id` it was asked with. It is cancelled when its time is
    over, and must not block the event loop.
    """

    @property
    def name(self) -> str:
        """Names it in messages and logs."""
        ...

    @property
    def layer(self) -> Layer | str:
        """Where its knowledge comes from: L1, L2 or L4."""
        ...

    async def search(self, request: ProviderRequest) -> ProviderResponse | Mapping[str, Json]:
        """Return what it knows about a query, within `request.deadline_ms`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A source as the engine asks it."""

    name: str
    layer: Layer
    source: Any
    #: None leaves it to the layer.
    deadline_ms: float | None = None
    #: A session of the caller, which is trusted.
    own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One question to one provider, and how long it may take."""

    provider: Provider
    request: ProviderRequest
    slice_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a call."""

    call: Call
    #: None when it answered.
    code: Code | None = None
    candidates: tuple[Candidate, ...] = ()
    #: Codes of its warnings.
    warnings: frozenset[str] = frozenset()
    #: The deadline cut its search short.
    partial: bool = False
    #: Candidates that could not be read or were not allowed.
    dropped: int = 0
    #: Candidates that came with a text although none was allowed.
    disobeyed: int = 0
    #: Asking again at once may help.
    passing: bool = False


def providers(sources: Sequence[object]) -> tuple[Provider, ...]:
    """Return sources as the engine asks them: a session as its project and its experience."""
    found: list[Provider] = []
    for source in sources:
        if isinstance(source, View):
            name = source.session_id
            found.append(Provider(name=name, layer=Layer.L2, source=source, own=True))
            found.append(Provider(name=name, layer=Layer.L4, source=source, own=True))
            continue
        if isinstance(source, type) or not callable(getattr(source, "search", None)):
            raise ConfigurationError(
                "a source must be a session or have an async method search(request)",
                options=("pass the session itself", "acms.layers.KnowledgeSource says what is needed"),
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
                name=name if isinstance(name, str) and name else type(source).__name__,
                layer=layer,
                source=source,
                deadline_ms=deadline,
            )
        )
    return tuple(found)


# ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def ask(calls: Sequence[Call], memories: Mapping[int, Memory], *, until: float) -> list[Answer]:
    """Ask all at the same time, each within its slice; return an answer for each, in order. Nothing is left running.

    A call that is late is cancelled, and closed by force when it has not cleaned up by `until`, in the loop's time.
    """
    if not calls:
        return []
    loop = asyncio.get_running_loop()
    begin = loop.time()
    tasks = [asyncio.create_task(_answer(call, memories)) for call in calls]
    ends = {task: begin + call.slice_ms / 1000 for task, call in zip(tasks, calls, strict=True)}
    waiting, late = set(tasks), set[asyncio.Task[Answer]]()
    try:
        while waiting:
            left = min(ends[task] for task in waiting) - loop.time()
            await asyncio.wait(waiting, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
            now = loop.time()
            for task in tuple(waiting):
                if task.done():
                    waiting.discard(task)
                elif ends[task] <= now:
                    task.cancel()
                    waiting.discard(task)
                    late.add(task)
    finally:
        await _ended(tasks, max(LEAST_GRACE, min(GRACE, until - loop.time())))
    return [_outcome(task, call, task in late) for task, call in zip(tasks, calls, strict=True)]


async def _ended(tasks: Sequence[asyncio.Task[Answer]], grace: float) -> None:
    """See to it that no task is left, whatever it does about being cancelled."""
    left = {task for task in tasks if not task.done()}
    for task in left:
        task.cancel()
        task.add_done_callback(_forget)
    if left:
        _, left = await asyncio.wait(left, timeout=grace)
    for _ in range(2):
        if not left:
            return
        for task in left:
            coroutine: Any = task.get_coro()
            with suppress(Exception):
                coroutine.close()  # ends also what catches the cancellation and goes on
            task.cancel()
        _, left = await asyncio.wait(left, timeout=KILL)
    if left:
        log(logging.ERROR, "provider_abandoned", tasks=len(left))


def _forget(task: asyncio.Task[Any]) -> None:
    """Look at what became of a task that nobody waits for."""
    if not task.cancelled():
        task.exception()


def _outcome(task: asyncio.Task[Answer], call: Call, late: bool) -> Answer:
    if not task.done():
        return Answer(call=call, code=Code.PROVIDER_TIMEOUT)
    if task.cancelled():
        return Answer(call=call, code=Code.PROVIDER_TIMEOUT if late else Code.PROVIDER_ERROR)
    error = task.exception()
    if late:
        return Answer(call=call, code=Code.PROVIDER_TIMEOUT)
    if error is None:
        return task.result()
    code = _code(error)
    log(
        logging.WARNING,
        "provider_failed",
        provider=call.provider.name,
        request_id=call.request.request_id,
        code=code.value,
        error=shown(error) if call.provider.own else type(error).__name__,
    )
    passing = isinstance(error, ConnectionError) or (
        isinstance(error, ACMSError) and error.retryable and not isinstance(error, ProviderError)
    )
    return Answer(call=call, code=code, passing=passing)


def _code(error: BaseException) -> Code:
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


async def _answer(call: Call, memories: Mapping[int, Memory]) -> Answer:
    if call.provider.own:
        memory = memories[id(call.provider.source)]
        found = await (memory.project() if call.provider.layer is Layer.L2 else memory.experience())
        return Answer(call=call, candidates=found)
    said = call.provider.source.search(call.request)
    if inspect.isawaitable(said):
        said = await said
    return await _read(said, call)


# ── reading an answer ───────────────────────────────────────────────────────────────────────────────────────────────

_CANDIDATE = tuple(field.name for field in fields(Candidate))
_VARIANT = tuple(field.name for field in fields(Variant))
_RESPONSE = tuple(field.name for field in fields(ProviderResponse))


def _plain(value: object, names: Sequence[str]) -> object:
    """Return an object as the mapping it would be on the wire: what others made is checked like what was sent."""
    return value if isinstance(value, Mapping) else {name: getattr(value, name) for name in names}


def _candidate(value: object) -> object:
    if not isinstance(value, Candidate):
        return value
    body: Any = _plain(value, _CANDIDATE)
    variants = body["variants"]
    if isinstance(variants, Sequence):
        body["variants"] = [_plain(one, _VARIANT) if isinstance(one, Variant) else one for one in variants]
    return body


async def _read(said: object, call: Call) -> Answer:
    """Read an answer, a candidate at a time; one that is malformed is passed over.

    `ValidationError` when the answer as a whole is: no candidates, another request's id, more than is allowed.
    """
    body: Any = _plain(said, _RESPONSE) if isinstance(said, ProviderResponse) else said
    if not isinstance(body, Mapping):
        raise ValidationError("must be an object", field="response")
    given: Any = body.get("candidates")
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or len(given) > ITEMS:
        raise ValidationError(f"must be a list of at most {ITEMS} candidates", field="candidates")
    warnings = body.get("warnings", ())
    if isinstance(warnings, Sequence) and not isinstance(warnings, str | bytes):
        warnings = [{"code": one.code, "message": ""} if isinstance(one, Notice) else one for one in warnings]
    frame = ProviderResponse.of({**body, "candidates": (), "warnings": warnings})
    if frame.request_id != call.request.request_id:
        raise ValidationError("answers another request", field="request_id")
    found: list[Candidate] = []
    dropped = disobeyed = size = 0
    began = perf_counter()
    for value in given:
        if perf_counter() - began > TURN:
            await asyncio.sleep(0)
            began = perf_counter()
        one = _candidate(value)
        try:
            (candidate,) = ProviderResponse.of(
                {"request_id": frame.request_id, "candidates": [one]}
            ).candidates
        except ValidationError:
            dropped += 1
            continue
        if candidate.source is Layer.L1 and not call.request.expansion:
            dropped += 1  # knowledge of the world by a back door: nobody asked for it
            continue
        if candidate.text is not None or candidate.variants:
            size += len(candidate.text or "") + sum(len(variant.text) for variant in candidate.variants)
            if size > CHARS:
                raise ValidationError(f"has more than {CHARS} characters", field="candidates")
            disobeyed += call.request.privacy is Privacy.BLOCK
        found.append(candidate)
    if dropped and not found:
        raise ValidationError("has no candidate that can be read", field="candidates")
    return Answer(
        call=call,
        candidates=tuple(found),
        warnings=frozenset(one.code for one in frame.warnings),
        partial=frame.partial,
        dropped=dropped,
        disobeyed=disobeyed,
    )


def __getattr__(name: str) -> Any:
    """Import the HTTP client on first use."""
    if name != "HTTPSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from acms.providers.http_source import HTTPSource

    return HTTPSource


async def in_thread(work: Callable[[], T]) -> T:
    """Do something long beside the event loop, in a thread of its own: nobody who fills up a pool can delay it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(end: Callable[[], None]) -> None:
        if not done.done():
            end()

    def run() -> None:
        try:
            end = partial(done.set_result, context.run(work))
        except BaseException as error:
            end = partial(done.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, end)

    context = copy_context()
    threading.Thread(target=run, daemon=True, name="acms-render").start()
    return await done


# ── our own memory ──────────────────────────────────────────────────────────────────────────────────────────────────

TITLE = 100
"""Characters of a message's shortest rendition."""
LONG = 400
"""Characters from which a message has shorter renditions."""
ROOM = 2
"""A recall may find this many times what fits: the rest is there to choose from."""
LEAST_BUDGET = 4_000
"""Tokens that a recall may use where little fits: of long messages shorter renditions do."""
PAST = 64
"""Episodes, the newest ones, whose summaries are looked through."""


class Memory:
    """A session as the engine asks it, for one reply: facts, summaries and messages of one recall, and past episodes.

    A whole history that fits the budget is offered whole: recall is for what does not fit (decision 17 of the design).
    """

    def __init__(self, session: View, request: RenderRequest, mode: Privacy) -> None:
        self._session = session
        self._query = request.intent
        self._tokens_max = request.tokens_max
        self._mode = mode
        self._asked = frozenset(gaze(request))
        self._recalling = asyncio.Lock()
        self._items: ContextItems | None = None

    async def project(self) -> tuple[Candidate, ...]:
        """Return what this log and its profile know about the query."""
        items = await self._recall()
        more: list[Entry] = []
        if items.version and (await self._session.storage.head(items.context)).tokens <= self._tokens_max:
            known = {item.id for item in items}
            shown = [one.id for one in await self._session.entries() if one.id not in known]
            more = [one for one in await self._session.storage.get(shown) if one is not None]
        return await self._offered(items, more)

    async def experience(self) -> tuple[Candidate, ...]:
        """Return the summaries of past episodes."""
        items = await self._recall()
        if not items.version:
            return ()
        found = await self._session.storage.read(
            items.context, at=items.version, kinds=(Kind.SUMMARY,), newest=PAST
        )
        marks = [one for one in found if is_mark(one) and _there(one)]
        return await self._made([(one, one.content, partial(self._episode, one)) for one in marks])

    async def _recall(self) -> ContextItems:
        async with self._recalling:
            if self._items is None:
                budget = max(LEAST_BUDGET, ROOM * self._tokens_max)
                self._items = await self._session.recall(self._query, token_budget=budget)
            return self._items

    async def _offered(self, items: ContextItems, more: Sequence[Entry]) -> tuple[Candidate, ...]:
        ids = [item.id for item in items]
        rows = {
            one.id: one for one in await self._session.storage.get(ids) if one is not None and _there(one)
        }
        work = [
            (rows[item.id], item.content, partial(self._recalled, item, rows[item.id]))
            for item in map(partial(_as_stored, rows=rows), items)
            if item.id in rows and item.content.strip()
        ]
        work += [(one, one.content, partial(self._message, one)) for one in more if _there(one)]
        return await self._made(work)

    async def _made(
        self, work: Sequence[tuple[Entry, str, Callable[[], Candidate]]]
    ) -> tuple[Candidate, ...]:
        """Read the texts, beside the event loop when they are long."""

        def make() -> tuple[Candidate, ...]:
            return tuple(one() for _, _, one in work)

        if sum(len(row.content) + len(shown) for row, shown, _ in work) <= INLINE:
            return make()
        return await in_thread(make)

    def _episode(self, row: Entry) -> Candidate:
        return self._candidate(
            row, row.content, source=Layer.L4, lod=Lod.MICRO, citations=(f"episode:{row.episode}",)
        )

    def _recalled(self, item: ContextItem, row: Entry) -> Candidate:
        """Return what was recalled as a candidate, with its score as relevance where it was ranked."""
        relevance = item.score or None
        if item.source is Origin.FACT:
            data = row.data
            about = f"{data.get('subject', '')} {data.get('attribute', '')} "
            return self._candidate(
                row, item.content, lod=Lod.MACRO, citations=row.sources, about=about, relevance=relevance
            )
        lead = speak(item.speaker, "")
        return self._said(row, item.content, lead, relevance)

    def _message(self, row: Entry) -> Candidate:
        return self._said(
            row, row.content, "" if row.kind is Kind.SUMMARY else speak(row.actor or row.role, ""), None
        )

    def _said(self, row: Entry, content: str, lead: str, relevance: float | None) -> Candidate:
        summary = row.kind is Kind.SUMMARY
        return self._candidate(
            row,
            content,
            lod=Lod.MICRO if summary else Lod.ATOMIC,
            citations=row.sources if summary else (row.id,),
            lead=lead,
            relevance=relevance,
        )

    def _candidate(
        self,
        row: Entry,
        content: str,
        *,
        lod: Lod,
        citations: tuple[str, ...],
        source: Layer = Layer.L2,
        lead: str = "",
        about: str = "",
        relevance: float | None = None,
    ) -> Candidate:
        """Return an entry as a candidate: redacted first, for what is cut from a text may cut a secret in two.

        Of a blocked one only the entities that the caller has named: ours are the words of its text.
        """
        mode = effective(self._mode, self._session.stage.mode or Privacy.ALLOW, row.privacy)
        if mode is Privacy.BLOCK:
            names = tuple(name for name in entities(about + content) if name in self._asked)
            return Candidate(
                id=row.id,
                source=source,
                lod=lod,
                entities=names,
                timestamp=row.created_at,
                relevance=relevance,
                privacy=mode,
            )
        clean = redact(content, mode).text if content == row.content else excerpt(content, row.content, mode)
        if clean is None:
            clean = redact(row.content, mode).text
        return Candidate(
            id=row.id,
            source=source,
            lod=lod,
            text=lead + clean,
            entities=entities(about + clean),
            timestamp=row.created_at,
            citations=citations,
            variants=_shorter(lead + clean, lod),
            relevance=relevance,
            privacy=row.privacy,
        )


def _as_stored(item: ContextItem, rows: Mapping[str, Entry]) -> ContextItem:
    """Return an item that its session has redacted with what was stored: a reply has a stage of its own."""
    if item.redaction is None or item.id not in rows:
        return item
    return replace(item, content=rows[item.id].content)


def _there(row: Entry) -> bool:
    return row.state is State.LIVE and bool(row.content.strip())


def _shorter(shown: str, lod: Lod) -> tuple[Variant, ...]:
    """Return shorter renditions of a long text: its first line, and its first sentences."""
    if len(shown) < LONG or lod is Lod.MACRO:
        return ()
    title = Variant(lod=Lod.MACRO, text=preview(shown, TITLE), cost_tokens=0)
    if lod is Lod.MICRO:
        return (title,)
    end = 0
    for _, stop in spans(shown):
        if stop > len(shown) // 3:
            break
        end = stop
    if end <= TITLE:
        return (title,)
    return (title, Variant(lod=Lod.MICRO, text=f"{shown[:end].rstrip()} […]", cost_tokens=0))
