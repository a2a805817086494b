"""Operations as routes: each request is checked in one order, run within the deadline, and answered.

Find the operation, authenticate the caller, read the request, run the handler, answer. Errors are raised; the
middleware answers them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from types import AsyncGeneratorType
from typing import Any
from urllib.parse import parse_qsl

from pydantic.alias_generators import to_camel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from acms.errors import (
    ACMSError,
    MediaTypeError,
    MethodError,
    SessionNotFoundError,
    TooLargeError,
    ValidationError,
)
from acms.server import wire
from acms.server.deadlines import Deadlines, run_within_deadline
from acms.server.middleware import ADMITTED, EXCHANGE, Exchange, has_encoded_slash
from acms.server.operation import BASE, Call, Operation, Reply
from acms.server.principal import EVERYWHERE
from acms.server.rights import Right, drop_client, end_stream, limit_send_buffer
from acms.server.service import Service

__all__ = ["build_operation_routes", "parse_query_pairs", "read_body"]

EVENTS = "text/event-stream"
STREAMS = frozenset({EVENTS, "application/x-ndjson"})
"""Media types of answers that are sent in pieces, without a deadline."""
SEND_SECONDS = 30.0
"""Time that a client has to receive one piece of a stream."""


def build_operation_routes(service: Service, operations: Iterable[Operation]) -> list[Route]:
    """Return the routes of operations, one for each path."""
    operations_by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        path = operation.path if operation.rooted else BASE + operation.path
        operations_by_path.setdefault(path, {})[operation.method] = operation
    deadlines = Deadlines(service.config.limits.deadline_seconds)
    routes: list[Route] = []
    for path, methods in operations_by_path.items():
        route = Route(path, _Resource(service, methods, deadlines))
        # "$" would also match before a line feed at the end.
        route.path_regex = re.compile(route.path_regex.pattern.removesuffix("$") + r"\Z")
        routes.append(route)
    return routes


class _Resource:
    """The operations of one path by method, as an ASGI application."""

    def __init__(self, service: Service, operations: Mapping[str, Operation], deadlines: Deadlines) -> None:
        self._service = service
        self._operations = operations
        self._deadlines = deadlines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request to this path, while its right is checked again at intervals."""
        exchange: Exchange = scope[EXCHANGE]
        if has_encoded_slash(scope):
            parameters: Mapping[str, str] = scope["path_params"]
            scope["path_params"] = {name: value.replace("%2F", "/") for name, value in parameters.items()}
        operation = self._find_operation(scope["method"], scope["path_params"])
        exchange.operation = operation
        call = await self._read_call(operation, exchange, scope, receive)
        call.right = Right(
            self._service.rights,
            call.principal,
            exchange.headers,
            operation.scope,
            operation.action,
            call.path.get("context_id"),
        )
        try:
            with call.right:
                await self._answer_call(call, scope, receive, send)
        except ACMSError as error:
            if error is not call.right.error or not exchange.status:
                raise
            # The right ended after the answer had begun. No error can be sent any more, so the stream is ended.
            exchange.code = error.code
            if operation.media != EVENTS:
                drop_client(scope)  # the client must see that the answer is incomplete
            await end_stream(scope, send)

    async def _answer_call(self, call: Call[Any, Any], scope: Scope, receive: Receive, send: Send) -> None:
        """Run the operation of an admitted request and send its answer."""
        operation = call.operation
        lease = None
        if operation.scope is not None:  # other operations need no tenant and no store
            call.tenant = await self._service.stores.tenant(call.principal.tenant)
            lease = call.tenant.enter(call.principal.access, operation.action)
        try:
            reply = await self._run_handler(call)
            try:
                if operation.media in STREAMS:
                    limit_send_buffer(scope)
                    send = _limit_send_time(send, scope)
                await _build_response(reply, operation, scope["method"])(scope, receive, send)
            finally:
                if isinstance(reply.body, AsyncGeneratorType):  # the client may have left before its end
                    await reply.body.aclose()
        finally:
            for end in call.ends:
                end()
            if lease is not None:
                call.tenant.leave(lease)

    def _find_operation(self, method: str, path: Mapping[str, str]) -> Operation:
        """Return the operation of a method; raise an error for an unknown method or a NUL character in the path."""
        for name, value in path.items():
            if "\0" in value:  # some stores cannot look up such an id
                raise ValidationError("must not contain a NUL character", field=to_camel(name))
        operation = self._operations.get("GET" if method == "HEAD" else method)
        if operation is None:
            allowed_methods = tuple(sorted(self._operations))
            raise MethodError(
                f"this path supports {', '.join(allowed_methods)}, not {method}", options=allowed_methods
            )
        return operation

    async def _read_call(
        self, operation: Operation, exchange: Exchange, scope: Scope, receive: Receive
    ) -> Call[Any, Any]:
        """Authenticate the caller, and check the request: parameters, media type, size, body."""
        service, headers = self._service, exchange.headers
        client = scope.get("client")
        address = client[0] if client else ""
        principal = await service.gate.admit(operation, headers, address, scope.get(ADMITTED))
        exchange.who = {"tenant": principal.tenant, "key": principal.key}
        query = wire.parse_query_parameters(operation, parse_query_pairs(scope["query_string"]))
        body: Any = None
        stream: AsyncIterator[bytes] | None = None
        if operation.body is not None or operation.streams:
            _check_media_type(operation, headers)
        if operation.body is not None:
            receive = _limit_body_size(receive, headers, service.config.limits.body_bytes)
            data = await run_within_deadline(
                _receive_body(receive), self._deadlines, "the body did not arrive within"
            )
            body = wire.parse_request_body(operation, data)
        elif operation.streams:
            receive = _limit_body_size(receive, headers, service.config.limits.import_bytes)
            stream = Request(scope, receive).stream()
        return Call(
            app=service,
            operation=operation,
            principal=principal,
            config=service.config,
            path=scope["path_params"],
            query=query,
            body=body,
            headers=headers,
            request_id=exchange.request_id,
            stream=stream,
        )

    async def _run_handler(self, call: Call[Any, Any]) -> Reply:
        """Run a handler within the deadline, with an audit record if the operation is audited.

        Streams have no deadline. Writes that reach the store before the deadline are stored completely or not at all.
        """
        operation, audit = call.operation, self._service.audit
        streams = call.stream is not None or operation.media in STREAMS
        deadlines = None if streams else self._deadlines
        work = audit.run(call, deadlines) if operation.audited else operation.handler(call)
        try:
            return await run_within_deadline(work, deadlines)
        except SessionNotFoundError:
            id = call.path.get("context_id")
            # Another process may have deleted the context: its open session is of no more use. A key that is bound to
            # namespaces gets this error for existing contexts too, and must not close their sessions.
            is_deleted = call.principal.access is EVERYWHERE
            if id is not None and is_deleted:
                call.tenant.forget(id)
            raise


def _check_media_type(operation: Operation, headers: Mapping[str, str]) -> None:
    """Raise `MediaTypeError` unless the body has an accepted type; an optional body may be missing."""
    accepted = operation.streams or ("application/json",)
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    no_body = not media_type and headers.get("content-length", "0") == "0"
    if media_type in accepted or (operation.optional and no_body):
        return
    message = f"must be {' or '.join(accepted)}"
    if media_type:
        message += f", not {media_type[:64]}"
    raise MediaTypeError(message, field="content-type")


def parse_query_pairs(query: bytes) -> list[tuple[str, str]]:
    """Parse a query string as names and values; raise `ValidationError` if it is invalid."""
    if not query:
        return []
    try:
        return parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=64)
    except ValueError:
        raise ValidationError("the query string cannot be parsed", field="query") from None


def _body_too_large_error(size: str) -> TooLargeError:
    return TooLargeError(f"has {size}", field="body", options=("split it into several requests",))


def _limit_body_size(receive: Receive, headers: Mapping[str, str], max_bytes: int) -> Receive:
    """Return a `receive` that raises `TooLargeError` for a body of more than `max_bytes` bytes."""
    length = headers.get("content-length", "0")
    if length.isascii() and length.isdecimal() and int(length) > max_bytes:
        raise _body_too_large_error(f"{length} bytes, the limit is {max_bytes}")
    size = 0

    async def receive_within_limit() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > max_bytes:
            raise _body_too_large_error(f"more than {max_bytes} bytes")
        return message

    return receive_within_limit


async def read_body(receive: Receive, headers: Mapping[str, str], max_bytes: int) -> bytes:
    """Return a body; raise `TooLargeError` if it has more than `max_bytes` bytes."""
    return await _receive_body(_limit_body_size(receive, headers, max_bytes))


async def _receive_body(receive: Receive) -> bytes:
    """Return the body of a request.

    `Request.body()` does the same, but takes 3 µs more, because it reads through a generator.
    """
    pieces: list[bytes] = []
    has_more = True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        has_more = message.get("more_body", False)
    return b"".join(pieces)


def _limit_send_time(send: Send, scope: Scope) -> Send:
    """Return a `send` that drops a client if it takes longer than `SEND_SECONDS` to receive a piece of a stream."""

    async def send_in_time(message: Message) -> None:
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)
        except TimeoutError:
            drop_client(scope)

    return send_in_time


def _build_response(reply: Reply, operation: Operation, method: str) -> Response:
    """Return the HTTP response of a reply: a stream, nothing, bytes, or JSON."""
    status = reply.status or operation.status
    body = reply.body
    # A dict is checked first: asking the abstract class takes 1 µs.
    if not isinstance(body, dict) and isinstance(body, AsyncIterator):
        stream = () if method == "HEAD" else body
        response: Response = StreamingResponse(stream, status, media_type=reply.media)
    elif body is None:
        response = Response(b"", status)
    else:
        data = body if isinstance(body, bytes) else wire.encode_json(body)
        response = Response(data, status, media_type=reply.media)
    response.raw_headers[:0] = [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in reply.headers.items()
    ]
    return response
