"""Middleware of every request, also to mounted applications: id, span, metrics, log, headers, problem details."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from math import ceil
from secrets import token_hex
from time import perf_counter
from typing import Any
from urllib.parse import unquote

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from acms.contract import problem_details
from acms.errors import (
    ACMSError,
    AuthenticationError,
    MethodError,
    PermissionDeniedError,
    RateLimitError,
    ValidationError,
)
from acms.observability.logging import correlation_id, log_event, logger, safe_error
from acms.observability.tracing import request_span
from acms.server import wire
from acms.server.operation import Operation
from acms.server.service import Service

__all__ = [
    "ADMITTED",
    "EXCHANGE",
    "Exchange",
    "RequestMiddleware",
    "build_scope_challenge",
    "has_encoded_slash",
]

EXCHANGE = "acms.exchange"
"""Key of the `Exchange` in the scope of a request."""
ADMITTED = "acms.admitted"
"""Key of the `Principal` in the scope of a request that is part of another request."""
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_FIELDS: Mapping[bytes, bytes] = {
    b"cache-control": b"no-store",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
}
"""Security header fields of every answer, for browsers."""
_SINGLE = frozenset(
    (b"authorization", b"content-type", b"host", b"idempotency-key", b"if-match", b"origin", b"x-request-id")
)
"""Header fields that a request must not repeat."""


class Exchange:
    """One request, and the state of its answer."""

    def __init__(self, scope: Scope) -> None:
        #: Headers of the request by lower-case name; of a repeated header the last one.
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        client_id = self.headers.get("x-request-id", "")
        self.request_id = client_id if _ID.fullmatch(client_id) else f"req_{token_hex(10)}"
        #: Default headers of the answer.
        self.fields = {**_FIELDS, b"x-request-id": self.request_id.encode("latin-1")}
        self.operation: Operation | None = None
        #: The caller, for the log.
        self.who: Mapping[str, str] = {}
        #: Status of the answer; 0 before it begins.
        self.status = 0
        #: Code of the error; "" when there was none.
        self.code = ""

    def complete_headers(self, send: Send, *, without_body: bool) -> Send:
        """Return a `send` that adds the default headers to the answer, and drops its body if `without_body`.

        It is not stored in this object, because that would create a reference cycle with the connection.
        """

        async def send_completed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                self.status = message["status"]
                for name, _ in headers:
                    self.fields.pop(name, None)
                message["headers"] = [*self.fields.items(), *headers]
            elif without_body and message["type"] == "http.response.body":
                message["body"] = b""
            await send(message)

        return send_completed


def _check_single_headers(scope: Scope) -> None:
    """Raise `ValidationError` if Host is missing, or a header that may only be given once is repeated.

    A proxy in front of the service may have interpreted such a request differently.
    """
    names = [name for name, _ in scope["headers"] if name in _SINGLE]
    if len(set(names)) != len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValidationError("is given twice", field=duplicate.decode("latin-1"))
    if b"host" not in names and scope.get("http_version") == "1.1":
        raise ValidationError("is required", field="host", options=("name the service in a Host field",))


def has_encoded_slash(scope: Scope) -> bool:
    """Return whether a name in the path contains a slash."""
    return b"%2f" in (scope.get("raw_path") or b"").lower()


class RequestMiddleware:
    """ASGI middleware around a service. It answers HTTP alone: a WebSocket is closed."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request, pass on the start and stop of the server, and close websockets."""
        if scope["type"] == "http":
            if has_encoded_slash(scope):
                # Routes match `path`, where an encoded slash in a name must not separate two steps.
                path = re.sub("(?i)%2F", "%252F", scope["raw_path"].decode("latin-1"))
                scope["path"] = unquote(path)
            await self._observe(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _observe(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and count, trace and log it."""
        service, method, began = self._service, scope["method"], perf_counter()
        exchange = Exchange(scope)
        scope[EXCHANGE] = exchange
        service.open_requests += 1
        service.idle.clear()
        context_token = correlation_id.set(exchange.request_id)
        with request_span(method, exchange.headers) as span:
            try:
                complete = exchange.complete_headers(send, without_body=method == "HEAD")
                await self._answer(scope, receive, complete)
            except asyncio.CancelledError:
                exchange.code = "CANCELLED"
                raise
            finally:
                seconds = perf_counter() - began
                operation = exchange.operation
                name, route = ("unknown", "") if operation is None else (operation.name, operation.path)
                fields: dict[str, Any] = {"operation": name, "status": exchange.status, "code": exchange.code}
                service.metrics.count_request(name, method, exchange.status, exchange.code, seconds)
                span.record_answer(**fields, route=route)
                if logger.isEnabledFor(logging.INFO):
                    log_event(logging.INFO, "request", **fields, ms=round(1000 * seconds, 3), **exchange.who)
                correlation_id.reset(context_token)
                service.open_requests -= 1
                service.answered = perf_counter()
                if not service.open_requests:
                    service.idle.set()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the headers, host and origin, and answer; turn errors into problem documents."""
        exchange: Exchange = scope[EXCHANGE]
        try:
            _check_single_headers(scope)
            exchange.fields.update(self._service.gate.check_origin(scope["method"], exchange.headers))
            if scope["method"] == "OPTIONS" and "access-control-request-method" in exchange.headers:
                await Response(status_code=204)(scope, receive, send)
            else:
                await self._app(scope, receive, send)
        except ClientDisconnect:
            exchange.code = "CLIENT_GONE"
        except ACMSError as error:
            await _build_problem_response(error, exchange)(scope, receive, send)
        except Exception as error:
            log_event(logging.ERROR, "response_interrupted", error=safe_error(error))
            await _build_problem_response(ACMSError(), exchange)(scope, receive, send)


def build_scope_challenge(error: PermissionDeniedError) -> str:
    """Return the value of WWW-Authenticate for a key that lacks a scope (RFC 6750, section 3.1)."""
    return f'Bearer error="insufficient_scope", scope="{error.scope}"'


def _build_problem_response(error: ACMSError, exchange: Exchange) -> Response:
    """Return an error as an RFC 9457 problem response; raise the error if the response has already begun."""
    exchange.code = error.code
    status = problem_details.status_of(error)
    if status == 500:
        log_event(logging.ERROR, "request_failed", error=safe_error(error))
    has_begun = exchange.status != 0
    if has_begun:
        raise error  # the server breaks the connection, so that the client sees that the answer is incomplete
    headers = _build_error_headers(error, status)
    # Operations of the ACS contract use their own field names and two more fields.
    contract = exchange.operation is not None and exchange.operation.contract
    if isinstance(error, ValidationError) and not contract:
        error = wire.with_wire_field_name(error)
    problem = problem_details.serialize_problem(error, request_id=exchange.request_id)
    if contract:
        problem |= {"message": problem["detail"], "request_id": exchange.request_id}
        if error.retryable:
            headers["X-Retry-After-Ms"] = str(1000 * int(headers.get("Retry-After", "1")))
    return Response(wire.encode_json(problem), problem["status"], headers, problem_details.MEDIA_TYPE)


def _build_error_headers(error: ACMSError, status: int) -> dict[str, str]:
    """Return the headers that belong to an error: when to retry, how to authenticate, which methods exist."""
    headers: dict[str, str] = {}
    if isinstance(error, RateLimitError):
        headers["Retry-After"] = str(max(1, ceil(error.retry_after)))
    elif status == 503:
        headers["Retry-After"] = "1"
    if isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = error.challenge
    if isinstance(error, PermissionDeniedError) and error.scope:
        headers["WWW-Authenticate"] = build_scope_challenge(error)
    if isinstance(error, MethodError):
        headers["Allow"] = ", ".join(error.options)
    return headers
