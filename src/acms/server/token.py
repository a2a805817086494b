"""Access to a service by one token: a browser sends it once in the query, and from then on a cookie."""

from __future__ import annotations

import secrets
from html import escape
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from acms.errors import PermissionDeniedError
from acms.server.middleware import EXCHANGE

__all__ = ["PARAMETER", "TokenMiddleware"]

PARAMETER = "token"
"""Name of the query parameter that holds the token."""
_REFUSED = (
    "this service is open only to the user who started it: open the address that the command printed,"
    f" which ends with ?{PARAMETER}=…"
)
_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title>{head}</head>
<body><h1>{title}</h1><p>{text}</p></body>
</html>
"""


class TokenMiddleware:
    """ASGI middleware that answers 403 to every request without the token or the cookie that was given for it."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token
        # Not the token itself: a browser also sends cookies to other ports of the same host.
        self._visit = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass that has the cookie; exchange the token in a URL for the cookie; refuse all others."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        query = parse_qsl(request.url.query, keep_blank_values=True)
        tokens = [value for name, value in query if name == PARAMETER]
        is_read = request.method in ("GET", "HEAD")
        if is_read and any(_compare_constant_time(token, self._token) for token in tokens):
            await self._set_cookie_and_redirect(request, query)(scope, receive, send)
        elif _compare_constant_time(request.cookies.get(_cookie_name(scope), ""), self._visit):
            await self._app(scope, receive, send)
        elif "text/html" in request.headers.get("accept", ""):
            scope[EXCHANGE].code = PermissionDeniedError.code
            page = _PAGE.format(title="Not allowed", head="", text=escape(_REFUSED))
            await HTMLResponse(page, 403)(scope, receive, send)
        else:
            raise PermissionDeniedError(_REFUSED)

    def _set_cookie_and_redirect(self, request: Request, query: list[tuple[str, str]]) -> Response:
        """Return a response that sets the cookie and redirects to the same address without the token."""
        scope = request.scope
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        path = "/" + raw_path.decode("latin-1").lstrip("/")  # two slashes would name another host
        other_parameters = urlencode([pair for pair in query if pair[0] != PARAMETER])
        address = f"{path}?{other_parameters}" if other_parameters else path
        if request.headers.get("sec-fetch-site") == "cross-site":
            # A browser that follows a link of another site sends no strict cookie, not even after a redirect, so a page
            # of this site starts a new navigation.
            head = f'<meta http-equiv="refresh" content="0; url={escape(address)}">'
            page = _PAGE.format(title="Opening", head=head, text="The page opens.")
            response: Response = HTMLResponse(page)
        else:
            response = RedirectResponse(address, 303)
        secure = scope.get("scheme") == "https"
        response.set_cookie(
            _cookie_name(scope), self._visit, httponly=True, samesite="strict", secure=secure, path="/"
        )
        return response


def _cookie_name(scope: Scope) -> str:
    """Return the name of the cookie, with the port: a browser sends cookies to all ports of a host."""
    server = scope.get("server")
    return f"acms_token_{server[1] if server else ''}"


def _compare_constant_time(candidate: str, secret: str) -> bool:
    """Compare a text with the secret in a time that does not depend on where they differ."""
    return secrets.compare_digest(candidate.encode("utf-8", "replace"), secret.encode())
