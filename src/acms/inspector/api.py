"""Calls the service's own operations inside the process, without a network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode
from uuid import uuid4

from starlette.types import ASGIApp, Message, Scope

from acms.model import Json

__all__ = ["API", "Refused", "quote_path_parts"]

BASE = "/api/v1"


class Refused(Exception):
    """An operation replied with a problem (RFC 9457), which the page shows."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(problem.get("detail", ""))
        self.status = status
        self.code = str(problem.get("code", ""))
        self.detail = str(problem.get("detail") or problem.get("title") or "the service did not say why")
        self.options = [str(option) for option in problem.get("options") or ()]


def quote_path_parts(*parts: str) -> str:
    """Return a path below the service's base, each part quoted whole."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


class API:
    """The operations that one visitor may use."""

    def __init__(self, app: ASGIApp, scope: Scope, key: str | None) -> None:
        self._app = app
        # The service checks the host name and its token, a cookie, in every request, also in these.
        self._headers = [header for header in scope["headers"] if header[0] in (b"host", b"cookie")]
        if key is not None:
            self._headers.append((b"authorization", f"Bearer {key}".encode("latin-1", "replace")))
        names = ("client", "server", "scheme", "http_version", "asgi")
        self._scope = {name: scope.get(name) for name in names}

    async def get(self, path: str, **query: object) -> Any:
        """Return the reply of an operation; arguments that are None or "" are omitted."""
        arguments: dict[str, str] = {}
        for name, value in query.items():
            if value is not None and value != "":
                arguments[name] = _format_query_value(value)
        return await self._request("GET", path, urlencode(arguments))

    async def post(self, path: str, body: Mapping[str, Json] | None = None, *, method: str = "POST") -> Any:
        """Send a body and return the reply."""
        return await self._request(method, path, "", json.dumps(body or {}).encode())

    async def _request(self, method: str, path: str, query: str, body: bytes = b"") -> Any:
        headers = [*self._headers]
        if method != "GET":
            headers += [(b"content-type", b"application/json"), (b"idempotency-key", uuid4().hex.encode())]
        raw_path = path if path.startswith("/openapi") else BASE + path
        scope = {
            **self._scope,
            "type": "http",
            "method": method,
            "path": raw_path.replace("%20", " "),
            "raw_path": raw_path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": headers,
        }
        status = 0
        pieces: list[bytes] = []
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                pieces.append(message.get("body", b""))

        await self._app(scope, receive, send)
        reply = json.loads(b"".join(pieces) or b"null")
        if status >= 400:
            raise Refused(status, reply if isinstance(reply, dict) else {})
        return reply


def _format_query_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
