"""The service's own operations, asked without a network: what every page is written from."""

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
    """An operation answered with a problem (RFC 9457): the page says it in its words."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(problem.get("detail", ""))
        self.status = status
        self.code = str(problem.get("code", ""))
        self.detail = str(problem.get("detail") or problem.get("title") or "the service did not say why")
        self.options = [str(one) for one in problem.get("options") or ()]


def quote_path_parts(*parts: str) -> str:
    """Return a path below the service's base, each part quoted whole."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


class API:
    """The operations as one visitor may use them."""

    def __init__(self, app: ASGIApp, scope: Scope, key: str | None) -> None:
        self._app = app
        names = {b"host", b"cookie"}  # the name of the service and its token are checked again
        self._headers = [one for one in scope["headers"] if one[0] in names]
        if key is not None:
            self._headers.append((b"authorization", f"Bearer {key}".encode("latin-1", "replace")))
        self._scope = {
            name: scope.get(name) for name in ("client", "server", "scheme", "http_version", "asgi")
        }

    async def get(self, path: str, **query: object) -> Any:
        """Return what an operation answers; arguments that are None or "" are left out."""
        given = {name: value for name, value in query.items() if value is not None and value != ""}
        return await self._ask(
            "GET", path, urlencode({name: _format_query_value(value) for name, value in given.items()})
        )

    async def post(self, path: str, body: Mapping[str, Json] | None = None, *, method: str = "POST") -> Any:
        """Send a body and return what is answered."""
        return await self._ask(method, path, "", json.dumps(body or {}).encode())

    async def _ask(self, method: str, path: str, query: str, body: bytes = b"") -> Any:
        headers = [*self._headers]
        if method != "GET":
            headers += [(b"content-type", b"application/json"), (b"idempotency-key", uuid4().hex.encode())]
        raw = path if path.startswith("/openapi") else BASE + path
        scope = {
            **self._scope,
            "type": "http",
            "method": method,
            "path": raw.replace("%20", " "),
            "raw_path": raw.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": headers,
        }
        status, pieces = 0, list[bytes]()
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return waiting.pop() if waiting else {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                pieces.append(message.get("body", b""))

        await self._app(scope, receive, send)
        found = json.loads(b"".join(pieces) or b"null")
        if status >= 400:
            raise Refused(status, found if isinstance(found, dict) else {})
        return found


def _format_query_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
