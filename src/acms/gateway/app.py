"""The gateway as an ASGI application: `create_gateway(url, config)`; `acms gateway` runs it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Literal
from urllib.parse import unquote

import httpx2
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from acms.config import ACMSConfig, PrivacyConfig, RenderLogConfig
from acms.errors import (
    ACMSError,
    AuthenticationError,
    PermissionDeniedError,
    RateLimitError,
    TooLargeError,
    UnreachableError,
)
from acms.gateway.config import GatewayConfig
from acms.gateway.decisions import Remembered
from acms.gateway.memory import Memory
from acms.gateway.protocols import Protocol, Reply, find_protocol
from acms.gateway.proxy import ForwardedRequest, Upstreams, end_to_end_headers, find_upstream
from acms.gateway.relay import relay_bytes, relay_reply
from acms.gateway.tenants import Tenants
from acms.observability.logging import log_event, safe_error
from acms.ports import Embedder
from acms.server.principal import Principal

__all__ = ["Gateway", "create_gateway"]

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_REFUSED = (400, 413, 422)
"""Answers of a provider to a body that it does not take: the client's own bytes are sent then."""


@dataclass(slots=True, kw_only=True)
class _Exchange:
    """One request between its arrival and its answer."""

    path: str
    #: None if the request is forwarded without being remembered.
    protocol: Protocol | None
    headers: Mapping[str, str]
    forwarded: ForwardedRequest
    body: bytes
    #: Who asks.
    caller: Principal
    memory: Memory | None = None
    remembered: Remembered | None = None
    #: Why the client's own bytes are sent without the memory, or "".
    failure: str = ""
    #: Seconds until it was decided what to send, and from then until the answer began.
    memory_seconds: float = 0.0
    upstream_seconds: float = 0.0

    @property
    def outcome(self) -> str:
        """What the memory did."""
        return self.failure if self.remembered is None else self.remembered.outcome

    def bypass(self, reason: str) -> None:
        """Record that the client's own bytes are sent, and the reason."""
        self.failure = f"bypassed;{reason}"
        if self.remembered is not None:
            self.remembered.trimmed = None
            self.remembered.sent_count = self.remembered.client_count
            self.remembered.outcome = self.failure
            self.remembered.rendered = None
            self.remembered.not_searched = reason


class Gateway(Starlette):
    """A proxy in front of model providers that remembers conversations."""

    def __init__(
        self, url: str, config: GatewayConfig, engine: ACMSConfig, embedder: Embedder | Literal["auto"] | None
    ) -> None:
        self.config = config
        self.upstreams = Upstreams(config.upstreams)
        self.tenants = Tenants(url, config, engine, embedder)
        super().__init__(
            routes=[
                Route("/acms/health", self._health, methods=["GET"]),
                Route("/acms/sessions", self._list_sessions, methods=["GET"]),
                Route("/{path:path}", self._handle, methods=_METHODS),
            ],
            lifespan=self._running,
        )

    @asynccontextmanager
    async def _running(self, _: object) -> AsyncGenerator[None]:
        await self.start()
        yield
        await self.stop()

    async def start(self) -> None:
        """Open the store, so that a wrong URL fails at once."""
        await self.tenants.start()

    async def stop(self) -> None:
        """Store the waiting requests, and close everything."""
        await self.tenants.stop()
        await self.upstreams.aclose()

    async def _health(self, request: Request) -> Response:
        """Answer with the status and the names of the upstreams."""
        try:
            self.tenants.check_host(request.headers)
        except ACMSError as error:
            return _error_response(error)
        return JSONResponse({"status": "ok", "upstreams": sorted(self.config.upstreams)})

    async def _list_sessions(self, request: Request) -> Response:
        """List the conversations that the caller may read, the newest first."""
        try:
            self.tenants.check_host(request.headers)
            caller = await self.tenants.admit(request.headers, _client_address(request))
            memory = await self.tenants.memory(caller.tenant)
            rows = await memory.list_sessions(caller)
        except ACMSError as error:
            return _error_response(error)
        return JSONResponse({"sessions": rows})

    async def _handle(self, request: Request) -> Response:
        """Forward one request."""
        if request.headers.get("upgrade", "").lower() == "websocket":
            return Response(status_code=426, headers={"upgrade": "HTTP/1.1"})  # clients fall back to HTTP
        try:
            exchange = await self._admit(request)
            began = perf_counter()
            await self._prepare(exchange)
            prepared = perf_counter()
            answer = await self._send(exchange)
            exchange.memory_seconds = prepared - began
            exchange.upstream_seconds = perf_counter() - prepared
        except ClientDisconnect:
            return Response(status_code=499)
        except ACMSError as error:
            return _error_response(error)
        except Exception as error:  # a traceback could show a key
            log_event(logging.ERROR, "gateway_failed", error=safe_error(error))
            return _error_response(UnreachableError("the request cannot be forwarded"))
        return self._relay(exchange, answer)

    async def _admit(self, request: Request) -> _Exchange:
        """Authenticate the caller, choose the upstream, and read the request."""
        self.tenants.check_host(request.headers)
        caller = await self.tenants.admit(request.headers, _client_address(request))
        name, path, target = _split_target(request)
        headers = dict(request.headers.items())
        upstream = name or find_upstream(path, self.config.upstreams, headers)
        if upstream not in self.config.upstreams:
            upstream_names = ", ".join(sorted(self.config.upstreams))
            raise PermissionDeniedError(f"there is no upstream {upstream!r}: there are {upstream_names}")
        protocol = find_protocol(request.method, path) if self.config.store else None
        is_remembered = protocol is not None
        dropped_names = [b"host", b"content-length"]
        if is_remembered:
            dropped_names.append(b"accept-encoding")
        forwarded_headers = list(end_to_end_headers(request.headers.raw, without=dropped_names))
        if is_remembered:
            forwarded_headers.append((b"accept-encoding", b"identity"))  # the gateway parses the answer too
        forwarded_headers = self.tenants.replace_provider_key(forwarded_headers, upstream)
        return _Exchange(
            path=path,
            protocol=protocol,
            headers=headers,
            forwarded=ForwardedRequest(
                upstream=upstream, method=request.method, target=target, headers=forwarded_headers
            ),
            body=await _read_body(request, self.config.body_bytes),
            caller=caller,
            memory=await self.tenants.memory(caller.tenant) if is_remembered else None,
        )

    async def _prepare(self, exchange: _Exchange) -> None:
        """Let the memory trim the request; on any error or timeout there, the client's own bytes are sent."""
        if exchange.memory is None or exchange.protocol is None:
            return
        try:
            async with asyncio.timeout(self.config.memory_timeout):
                exchange.remembered = await exchange.memory.begin(
                    exchange.protocol, exchange.body, exchange.headers, exchange.caller
                )
                await exchange.memory.fit(exchange.remembered, len(exchange.body))
        except TimeoutError:
            exchange.bypass("timeout")
        except Exception as error:  # a fault of the memory must not stop the client
            exchange.bypass(type(error).__name__)
            log_event(logging.WARNING, "gateway_bypassed", error=safe_error(error))

    async def _send(self, exchange: _Exchange) -> httpx2.Response:
        """Send the trimmed body if there is one; send the client's own if there is none, or if it is refused."""
        trimmed = None if exchange.remembered is None else exchange.remembered.trimmed
        if trimmed is None:
            return await self.upstreams.send(exchange.forwarded, exchange.body)
        answer = await self.upstreams.send(exchange.forwarded, trimmed.text.encode())
        if answer.status_code not in _REFUSED:
            return answer
        await answer.aclose()
        exchange.bypass(f"refused with {answer.status_code}")
        return await self.upstreams.send(exchange.forwarded, exchange.body)

    def _relay(self, exchange: _Exchange, answer: httpx2.Response) -> Response:
        """Relay the answer, and store it if it belongs to a conversation."""
        remembered, memory = exchange.remembered, exchange.memory
        body = relay_bytes(answer)
        if remembered is not None and memory is not None:
            has_line = remembered.line is not None
            if has_line and answer.status_code < 300:
                body = self._relay_and_store(exchange, answer, memory, remembered)
        response = StreamingResponse(body, answer.status_code)
        response.raw_headers = [
            *end_to_end_headers(answer.headers.raw),
            *_describe_outcome(exchange),
        ]
        return response

    async def _relay_and_store(
        self, exchange: _Exchange, answer: httpx2.Response, memory: Memory, remembered: Remembered
    ) -> AsyncGenerator[bytes]:
        """Relay the answer, record its reply before the end is relayed, and store both afterwards."""
        replies: list[Reply] = []

        async def finish(reply: Reply) -> None:
            replies.append(reply)
            try:
                async with asyncio.timeout(self.config.memory_timeout):
                    await memory.finish(remembered, reply)
            except Exception as error:
                log_event(logging.WARNING, "gateway_not_anchored", error=safe_error(error))

        assert exchange.protocol is not None
        try:
            async for chunk in relay_reply(answer, exchange.protocol, finish):
                yield chunk
        finally:
            memory.store_later(remembered, replies[0] if replies else None)


def create_gateway(
    url: str,
    config: GatewayConfig | None = None,
    *,
    engine: ACMSConfig | None = None,
    embedder: Embedder | Literal["auto"] | None = "auto",
) -> Gateway:
    """Return the gateway over the store at a URL.

    `engine` configures its sessions. Texts are redacted before they are stored, unless `config.privacy` is None. Sent
    requests are kept for a week, for the inspector.
    """
    gateway_config = config or GatewayConfig()
    engine = engine or ACMSConfig()
    mode = gateway_config.privacy
    privacy = PrivacyConfig(mode=mode, redact_before_persist=mode is not None)
    engine = replace(engine, privacy=privacy, renders=RenderLogConfig(enabled=True))
    return Gateway(url, gateway_config, engine, embedder)


def _client_address(request: Request) -> str:
    return request.client.host if request.client else ""


def _split_target(request: Request) -> tuple[str, str, bytes]:
    """Return (upstream, path, target): the upstream named by "/u/NAME/…" or "", the rest, and the rest as sent."""
    raw_path: bytes = request.scope.get("raw_path") or request.url.path.encode()
    raw_path = raw_path.partition(b"?")[0]
    upstream = ""
    if raw_path.startswith(b"/u/"):
        raw_name, _, path_behind_name = raw_path[3:].partition(b"/")
        upstream = unquote(raw_name.decode("latin-1"))
        raw_path = b"/" + path_behind_name
    query: bytes = request.scope["query_string"]
    target = raw_path + b"?" + query if query else raw_path
    return upstream, unquote(raw_path.decode("latin-1")), target


async def _read_body(request: Request, limit: int) -> bytes:
    """Return the body of a request; raise `TooLargeError` if it has more than `limit` bytes."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise TooLargeError(f"the body has more than {limit} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _describe_outcome(exchange: _Exchange) -> list[tuple[bytes, bytes]]:
    """Return the headers with the outcome of the memory, the session, and the milliseconds of memory and upstream."""
    if exchange.protocol is None:
        return []
    remembered = exchange.remembered
    memory_ms, upstream_ms = exchange.memory_seconds * 1000, exchange.upstream_seconds * 1000
    timing = f"acms-memory;dur={memory_ms:.1f}, acms-upstream;dur={upstream_ms:.1f}"
    fields = [
        (b"x-acms-memory", exchange.outcome.encode("latin-1", "replace")),
        (b"server-timing", timing.encode()),
    ]
    if remembered is not None and remembered.session_name:
        fields.append((b"x-acms-session", remembered.session_name.encode("latin-1", "replace")))
    return fields


def _error_response(error: ACMSError) -> Response:
    """Return an error of the gateway itself, in a format that the SDKs of both providers can parse."""
    status = 502 if isinstance(error, UnreachableError) else 403
    if isinstance(error, AuthenticationError):
        status = 401
    if isinstance(error, TooLargeError):
        status = 413
    if isinstance(error, RateLimitError):
        status = 429
    detail = {"type": "acms_gateway_error", "message": f"ACMS gateway: {error}", "code": error.code}
    return Response(json.dumps({"type": "error", "error": detail}), status, media_type="application/json")
