"""MCP over streamable HTTP, mounted in the service: its keys, its tenants, its operations.

A request is admitted by its key and answered without any state between requests. Its tools call the service's own
operations inside the process with that key, so scopes, limits, privacy and audit have one place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import httpx2
from mcp.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import INVALID_REQUEST, JSONRPCError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Send
from starlette.types import Scope as Connection

from acms.client import Client
from acms.contract import problem_details
from acms.errors import (
    ACMSError,
    AuthenticationError,
    MethodError,
    NotFoundError,
    PermissionDeniedError,
    TooLargeError,
    ValidationError,
)
from acms.log import validation
from acms.mcp.failures import describe_error
from acms.mcp.memory import Memory
from acms.mcp.messages import check_message, envelope_error
from acms.mcp.remote import Remote
from acms.mcp.server import Context, build_mcp_server
from acms.server import App
from acms.server.dispatch import read_body
from acms.server.middleware import ADMITTED, EXCHANGE, Exchange, build_scope_challenge, has_encoded_slash
from acms.server.operation import Principal, Scope
from acms.server.rights import Right, end_stream

__all__ = ["mount_mcp", "mount_mcp_server"]

BASE = "/mcp"
METADATA = "/.well-known/oauth-protected-resource"
_MEMORY = "acms.memory"
"""Where the scope of a request keeps its `Memory`."""
_DENIED = "acms.denied"
"""Where it keeps the error of a key that lacks a scope."""
_HOST = re.compile(r"[A-Za-z0-9._-]+(?::\d{1,5})?|\[[0-9A-Fa-f:.]+\](?::\d{1,5})?")
_ADVICE = ("connect to /mcp/SESSION or /mcp/NAMESPACE/SESSION",)


def mount_mcp(app: App) -> App:
    """Serve MCP below `/mcp` of a service and return it: `/mcp/{session}` and `/mcp/{namespace}/{session}`.

    Mount it before applications below `/`. Every request needs a key if the service requires keys; the first remembered
    text creates the session.
    """
    return mount_mcp_server(app, build_mcp_server(_memory_of, _note_denied_scope))


def mount_mcp_server(app: App, server: Server[Any]) -> App:
    """Serve any MCP server of the SDK below `/mcp`, with the same keys."""
    server_at_paths = _AuthenticatedServer(app, server)
    app.mount(BASE, Router(_build_routes(server_at_paths.serve), default=_reject_unknown_address))
    app.mount(
        METADATA + BASE, Router(_build_routes(server_at_paths.describe), default=_reject_unknown_address)
    )
    return app


def _build_routes(handler: Any) -> list[Route]:
    return [Route(f"/{path}", _Endpoint(handler)) for path in ("{session}", "{namespace}/{session}")]


class _Endpoint:
    """An ASGI application: Starlette would call a plain function with a request."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        await self._handler(scope, receive, send)


async def _reject_unknown_address(scope: Connection, receive: Receive, send: Send) -> None:
    """Raise `NotFoundError` for an address that names no session."""
    raise NotFoundError("this address names no session", options=_ADVICE)


class _AuthenticatedServer:
    """An MCP server behind the keys of a service."""

    def __init__(self, app: App, server: Server[Any]) -> None:
        self._app = app
        self._server = server

    async def serve(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Answer one request of the protocol."""
        exchange: Exchange = scope[EXCHANGE]
        if scope["method"] != "POST":  # there is no stream to listen to, and no session to end
            raise MethodError(f"this path supports POST, not {scope['method']}", options=("POST",))
        namespace, session = _parse_session_address(scope)
        client = scope.get("client")
        try:
            principal = await self._app.gate.identify(exchange.headers, client[0] if client else "")
        except AuthenticationError as error:
            await _build_challenge(error, scope, exchange)(scope, receive, send)
            return
        exchange.who = {"tenant": principal.tenant, "key": principal.key}
        message = await self._read_message(exchange, receive)
        if isinstance(message, Response):
            await message(scope, receive, send)
            return
        receive = _replay_body(message, receive)
        authorization = exchange.headers.get("authorization") if principal.key else None
        api = self._create_client(scope, authorization, principal)
        scope[_MEMORY] = Remote(api, api.session(session, namespace=namespace))
        # Space around a value is no part of it, and the SDK compares some with the body.
        scope["headers"] = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
        manager = StreamableHTTPSessionManager(
            self._server, stateless=True, max_request_body_size=self._app.config.limits.body_bytes
        )
        right = Right(self._app.rights, principal, exchange.headers)
        try:
            with right:
                async with manager.run():
                    await manager.handle_request(scope, receive, _send_unless_denied(scope, receive, send))
        except ACMSError as error:
            if error is not right.error or not exchange.status:
                raise
            # The right ended after the answer had begun, when no error can be sent any more: end the stream.
            exchange.code = error.code
            await end_stream(scope, send)

    async def _read_message(self, exchange: Exchange, receive: Receive) -> bytes | Response:
        """Return the message in the body, or the response that refuses it."""
        try:
            body = await read_body(receive, exchange.headers, self._app.config.limits.body_bytes)
        except TooLargeError as error:
            exchange.code = error.code
            return _reject_body(413, [envelope_error(str(error))])
        checked: str | list[JSONRPCError] = [envelope_error("is empty")]
        if body.strip():
            checked = check_message(body.decode("utf-8", "replace"))
        if isinstance(checked, str):
            return checked.encode()
        exchange.code = ValidationError.code
        return _reject_body(400, checked)

    async def describe(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Answer with the metadata of a protected resource (RFC 9728): it accepts a key in a header."""
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodError(f"this path supports GET, not {scope['method']}", options=("GET", "HEAD"))
        _parse_session_address(scope)
        body = {
            "resource": f"{_origin_of_request(scope) or ''}{_path_of_request(scope).removeprefix(METADATA)}",
            "resource_name": "ACMS",
            "bearer_methods_supported": ["header"],
            "scopes_supported": [scope_.value for scope_ in Scope],
        }
        await JSONResponse(body)(scope, receive, send)

    def _create_client(self, scope: Connection, authorization: str | None, principal: Principal) -> Client:
        """Return a client that calls the operations with a key. It has no connection to close."""

        async def call_app(inner: Connection, receive: Receive, send: Send) -> None:
            inner[ADMITTED] = principal  # the rate limits count the outer request only
            await self._app(inner, receive, send)

        return Client(
            f"http://{_host_of_request(scope) or 'localhost'}",  # the service checks the host name again
            api_key=None if authorization is None else authorization.partition(" ")[2].strip(),
            why=False,
            transport=httpx2.ASGITransport(call_app),
        )


def _reject_body(status: int, errors: Sequence[JSONRPCError]) -> Response:
    """Return the response to a body that is no message; several errors for a batch."""
    bodies = [error.model_dump(mode="json", exclude_unset=True) for error in errors]
    return JSONResponse(bodies[0] if len(bodies) == 1 else bodies, status)


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that repeats a body that was read already."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def _parse_session_address(scope: Connection) -> tuple[str, str]:
    """Return the namespace and the session of an address."""
    names: dict[str, str] = dict(scope["path_params"])
    if has_encoded_slash(scope):
        names = {name: value.replace("%2F", "/") for name, value in names.items()}
    namespace = validation.validate_name(names.get("namespace", validation.UNNAMED), "namespace")
    return namespace, validation.validate_session_identifier(names["session"], "session")


def _memory_of(context: Context) -> Memory:
    request: Request | None = context.request
    assert request is not None  # every request comes by HTTP
    memory: Memory = request.scope[_MEMORY]
    return memory


def _origin_of_request(scope: Connection) -> str | None:
    """Return the address of the service in a request, or None if its Host field is not usable."""
    host = _host_of_request(scope)
    return None if host is None else f"{scope['scheme']}://{host}"


def _host_of_request(scope: Connection) -> str | None:
    host = scope[EXCHANGE].headers.get("host", "")
    return host if _HOST.fullmatch(host) else None


def _path_of_request(scope: Connection) -> str:
    """Return the path as it was sent."""
    return (scope.get("raw_path") or quote(scope["path"]).encode()).decode("latin-1")


def _build_challenge(error: AuthenticationError, scope: Connection, exchange: Exchange) -> Response:
    """Return 401, with the address of the metadata."""
    exchange.code = error.code
    problem = problem_details.serialize_problem(error, request_id=exchange.request_id)
    headers = {"WWW-Authenticate": f'Bearer realm="acms"{_build_metadata_parameter(scope)}'}
    return JSONResponse(problem, 401, headers, problem_details.MEDIA_TYPE)


def _build_metadata_parameter(scope: Connection) -> str:
    """Return the parameter of a challenge that names the address of the metadata."""
    origin, path = _origin_of_request(scope), _path_of_request(scope)
    return f', resource_metadata="{origin}{METADATA}{path}"' if origin and '"' not in path else ""


def _note_denied_scope(context: Context, error: ACMSError) -> None:
    """Record that a request failed because its key lacks a scope."""
    if isinstance(error, PermissionDeniedError) and error.scope:
        request: Request | None = context.request
        assert request is not None
        request.scope[_DENIED] = error


def _send_unless_denied(scope: Connection, receive: Receive, send: Send) -> Send:
    """Return a `send` that answers 403 instead if the key lacks a scope for the request.

    A client that can request a token with more scopes does so and repeats the request; others show the error. The start
    of the answer is held back until its first piece. An answer that has begun with a progress report continues, with
    the error in it.
    """
    held_start: list[Message] = []
    is_refused = False

    async def answer(message: Message) -> None:
        nonlocal is_refused
        if message["type"] == "http.response.start":
            held_start.append(message)
            return
        error: PermissionDeniedError | None = scope.get(_DENIED)
        if held_start and error is not None:
            is_refused = True
            scope[EXCHANGE].code = error.code
            await _build_forbidden_response(error, scope)(scope, receive, send)
        elif held_start:
            await send(held_start[0])
        held_start.clear()
        if not is_refused:
            await send(message)

    return answer


def _build_forbidden_response(error: PermissionDeniedError, connection: Connection) -> Response:
    """Return 403, which names the scope that the key lacks."""
    error_body = {"code": INVALID_REQUEST, "message": str(error), "data": describe_error(error)}
    headers = {"WWW-Authenticate": build_scope_challenge(error) + _build_metadata_parameter(connection)}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error_body}, 403, headers)
