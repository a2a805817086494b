"""The door of the HTTP service: every request comes in here, is checked in one order, and is answered here.

Name it, find its operation, admit who asks, read what is asked, do it within the deadline, answer. Whatever goes wrong
becomes a problem of RFC 9457; nothing else leaves.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from random import getrandbits
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from pydantic.alias_generators import to_camel

from acms.contract import problem_details
from acms.errors import (
    ACMSError,
    DeadlineError,
    MediaTypeError,
    MethodError,
    NotFoundError,
    RateLimitError,
    SessionNotFoundError,
    TooLargeError,
    ValidationError,
)
from acms.observability.logging import correlation_id, log, safe_error
from acms.observability.tracing import request_span
from acms.server import wire
from acms.server.asgi import Receive, Scope, Send
from acms.server.deadlines import Deadline, Deadlines, within
from acms.server.operation import BASE, Call, Operation, Reply

if TYPE_CHECKING:
    from acms.server.service import Service

__all__ = ["Door", "pairs"]

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_HEADERS: Mapping[bytes, bytes] = {
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
}
"""What every answer tells a browser that should never have come here."""


class _Step:
    """What may follow the first segments of a path; a fixed segment goes before a parameter."""

    def __init__(self) -> None:
        self.fixed: dict[str, _Step] = {}
        self.any: _Step | None = None
        #: The operations of the path that ends here by method, and the names of its parameters.
        self.methods: dict[str, Operation] = {}
        self.names: tuple[str, ...] = ()

    def add(self, operation: Operation, path: str) -> None:
        """Take an operation in."""
        at, names = self, list[str]()
        for segment in path.split("/"):
            if segment.startswith("{"):
                names.append(segment.strip("{}"))
                at.any = at = at.any or _Step()
            else:
                at = at.fixed.setdefault(segment, _Step())
        at.methods[operation.method], at.names = operation, tuple(names)

    def find(self, path: str) -> tuple[Mapping[str, Operation], dict[str, str]]:
        """Return the operations of a path by method, none when it leads nowhere, and its parameters."""
        at: _Step | None = self
        values: list[str] = []
        for segment in path.split("/"):
            step = at.fixed.get(segment)
            if step is None and segment:
                step = at.any
                values.append(segment)
            if step is None:
                return {}, {}
            at = step
        return at.methods, dict(zip(at.names, values, strict=True)) if at.methods else {}


class _GoneError(Exception):
    """The client went away."""


class Door:
    """An ASGI application over a list of operations."""

    def __init__(self, app: Service, operations: Iterable[Operation]) -> None:
        self._app = app
        self._deadlines = Deadlines(app.config.limits.deadline_seconds)
        self._paths = _Step()
        for one in operations:
            self._paths.add(one, one.path if one.rooted else BASE + one.path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get("x-request-id", "")
        request_id = given if _ID.fullmatch(given) else f"req_{getrandbits(80):020x}"
        began = perf_counter()
        answer = _Answer(send, scope["method"] == "HEAD", request_id)
        operation: Operation | None = None
        code = ""
        correlated = correlation_id.set(request_id)
        with request_span(scope["method"], headers) as span:
            try:
                answer.headers.update(self._app.gate.visit(scope["method"], headers))
                if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                    await answer.send(204, b"", None)
                    return
                operation, path = self._find(scope)
                await self._serve(operation, path, scope, headers, request_id, receive, answer)
            except _GoneError:
                code = "CLIENT_GONE"
            except ACMSError as error:
                code = error.code
                await self._fail(error, request_id, answer, operation)
            except asyncio.CancelledError:
                code = "CANCELLED"
                raise
            except Exception as error:
                code = "ACMS"
                log(logging.ERROR, "request_broke", error=safe_error(error))
                await self._fail(ACMSError(), request_id, answer, operation)
            finally:
                seconds = perf_counter() - began
                name, route = ("unknown", "") if operation is None else (operation.name, operation.path)
                self._app.metrics.request(name, scope["method"], answer.status, code, seconds)
                span.done(operation=name, route=route, status=answer.status, code=code)
                log(
                    logging.INFO,
                    "request",
                    operation=name,
                    status=answer.status,
                    code=code,
                    ms=round(1000 * seconds, 3),
                    **answer.who,
                )
                correlation_id.reset(correlated)

    def _find(self, scope: Scope) -> tuple[Operation, Mapping[str, str]]:
        found, values = self._paths.find(scope["path"])
        if not found:
            raise NotFoundError(
                "there is nothing at this path", options=("GET /openapi.json lists what there is",)
            )
        for name, value in values.items():
            if "\0" in value:  # some stores could not even be asked about it
                raise ValidationError("must not contain a NUL character", field=to_camel(name))
        method = scope["method"]
        operation = found.get("GET" if method == "HEAD" else method)
        if operation is None:
            allowed = tuple(sorted(found))
            raise MethodError(f"this path has {', '.join(allowed)}, not {method}", options=allowed)
        return operation, values

    async def _serve(
        self,
        operation: Operation,
        path: Mapping[str, str],
        scope: Scope,
        headers: Mapping[str, str],
        request_id: str,
        receive: Receive,
        answer: _Answer,
    ) -> None:
        client = scope.get("client")
        principal = await self._app.gate.admit(operation, headers, client[0] if client else "")
        answer.who = {"tenant": principal.tenant, "key": principal.key}
        query = wire.parameters(operation, pairs(scope["query_string"]))
        limits = self._app.config.limits
        streamed = operation.streams is not None
        body: Any = None
        if operation.body is not None or streamed:
            self._check_media(operation, headers)
            most = limits.import_bytes if streamed else limits.body_bytes
            length = headers.get("content-length", "0")
            if length.isascii() and length.isdecimal() and int(length) > most:
                raise TooLargeError(f"has {length} bytes, the limit is {most}", field="body")
        if operation.body is not None:
            deadline = Deadline(self._deadlines)
            try:
                with deadline:
                    data = await _whole(receive, limits.body_bytes)
            except TimeoutError:
                raise DeadlineError(
                    f"the body did not arrive within {limits.deadline_seconds:g} seconds"
                ) from None
            body = wire.body(operation, data)
        call: Call[Any, Any] = Call(
            app=self._app,
            operation=operation,
            principal=principal,
            config=self._app.config,
            path=path,
            query=query,
            body=body,
            headers=headers,
            request_id=request_id,
            stream=_pieces(receive, limits.import_bytes) if streamed else None,
        )
        long = streamed or operation.media == "application/x-ndjson"
        if operation.scope is None:  # nobody's data: answered also while no store does
            await answer.reply(await self._within(call, not long), operation.status)
            return
        tenant = call.tenant = await self._app.stores.of(principal.tenant)
        lease = tenant.enter()
        try:
            await answer.reply(await self._within(call, not long), operation.status)
        finally:
            tenant.leave(lease)

    async def _within(self, call: Call[Any, Any], timed: bool) -> Reply:
        """Run a handler within the deadline; what it gave to the store by then is stored as a whole, or not at all."""
        deadlines = self._deadlines if timed else None
        audited = call.operation.audited
        work = self._app.audit.run(call, deadlines) if audited else call.operation.handler(call)
        try:
            return await within(work, deadlines)
        except SessionNotFoundError:
            if (id := call.path.get("context_id")) is not None:
                call.tenant.forget(id)
            raise

    def _check_media(self, operation: Operation, headers: Mapping[str, str]) -> None:
        wanted = operation.streams or "application/json"
        given = headers.get("content-type", "").partition(";")[0].strip().lower()
        if not given and operation.optional and headers.get("content-length", "0") == "0":
            return
        if given != wanted:
            raise MediaTypeError(
                f"must be {wanted}" + (f", not {given[:64]}" if given else ""), field="content-type"
            )

    async def _fail(
        self, error: ACMSError, request_id: str, answer: _Answer, operation: Operation | None
    ) -> None:
        if problem_details.status_of(error) == 500:
            log(logging.ERROR, "request_failed", error=safe_error(error))
        if answer.started:  # a stream that breaks: the client sees that it is not whole
            raise error
        headers: dict[str, str] = {}
        if isinstance(error, RateLimitError):
            headers["Retry-After"] = str(max(1, round(error.retry_after + 0.5)))
        elif problem_details.status_of(error) == 503:
            headers["Retry-After"] = "1"
        if error.code == "UNAUTHENTICATED":
            headers["WWW-Authenticate"] = "Bearer"
        if isinstance(error, MethodError):
            headers["Allow"] = ", ".join(error.options)
        contract = operation is not None and operation.contract
        if isinstance(error, ValidationError) and not contract:
            error = wire.named_on_wire(error)
        written = problem_details.problem(error, request_id=request_id)
        if contract:
            written |= {"message": written["detail"], "request_id": request_id}
            if error.retryable:
                headers["X-Retry-After-Ms"] = str(1000 * int(headers.get("Retry-After", "1")))
        await answer.reply(
            Reply(body=written, status=written["status"], headers=headers, media=problem_details.MEDIA), 500
        )


class _Answer:
    """The one answer to a request."""

    def __init__(self, send: Send, bare: bool, request_id: str) -> None:
        self._send = send
        self._bare = bare
        #: Header fields by lower-case name.
        self.headers = {**_HEADERS, b"x-request-id": request_id.encode("latin-1")}
        self.status = 0
        self.started = False
        #: Who asked, for the log.
        self.who: Mapping[str, str] = {}

    async def reply(self, reply: Reply, status: int) -> None:
        """Send what a handler gave."""
        for name, value in reply.headers.items():
            self.headers[name.lower().encode("latin-1")] = value.encode("latin-1", "replace")
        body = reply.body
        # A dict is no stream: to ask the abstract class takes 1 µs.
        if not isinstance(body, dict) and isinstance(body, AsyncIterator):
            await self._start(reply.status or status, reply.media, None)
            if not self._bare:
                async for piece in body:
                    await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            await self._send({"type": "http.response.body", "body": b""})
            return
        data = body if isinstance(body, bytes) else b"" if body is None else wire.written(body)
        await self.send(reply.status or status, data, None if body is None else reply.media)

    async def send(self, status: int, data: bytes, media: str | None) -> None:
        """Send a whole answer."""
        await self._start(status, media, len(data))
        await self._send({"type": "http.response.body", "body": b"" if self._bare else data})

    async def _start(self, status: int, media: str | None, length: int | None) -> None:
        self.started, self.status = True, status
        if media is not None:
            self.headers[b"content-type"] = media.encode("latin-1")
        if length is not None and status != 204:
            self.headers[b"content-length"] = str(length).encode("latin-1")
        await self._send(
            {"type": "http.response.start", "status": status, "headers": list(self.headers.items())}
        )


def pairs(query: bytes) -> list[tuple[str, str]]:
    """Read a query string as names and values; `ValidationError` when it is none."""
    if not query:
        return []
    try:
        return parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=64)
    except ValueError:
        raise ValidationError("the query string is not understood", field="query") from None


async def _whole(receive: Receive, most: int) -> bytes:
    """Return a body of up to so many bytes; most come in one piece."""
    data, more = await _piece(receive, 0, most)
    return data if not more else b"".join([data, *[one async for one in _pieces(receive, most, len(data))]])


async def _pieces(receive: Receive, most: int, size: int = 0) -> AsyncIterator[bytes]:
    """Yield a body as it arrives, up to so many bytes; `size` have arrived."""
    more = True
    while more:
        piece, more = await _piece(receive, size, most)
        size += len(piece)
        if piece:
            yield piece


async def _piece(receive: Receive, size: int, most: int) -> tuple[bytes, bool]:
    """Return the next piece of a body and whether more follow."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise _GoneError
    piece: bytes = message.get("body", b"")
    if size + len(piece) > most:
        raise TooLargeError(f"has more than {most} bytes", field="body")
    return piece, message.get("more_body", False)
