"""Visitors: a key is entered once and stays on the server; the browser has a cookie that scripts cannot read."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

__all__ = ["Visitors", "same_origin"]

COOKIE = "acms_inspector"
SECONDS = 12 * 3600.0
"""Length of a visit: a working day with its breaks."""


class Visitors:
    """The keys of signed-in visitors, in memory. Beyond `max_visits` the oldest visit ends."""

    def __init__(self, *, max_visits: int = 1000, elapsed: Callable[[], float] = monotonic) -> None:
        self._max_visits = max_visits
        self._keys: OrderedDict[str, tuple[float, str]] = OrderedDict()
        self._elapsed = elapsed

    def key(self, request: Request) -> str | None:
        """Return the key of a signed-in visitor, or None."""
        visit = self._keys.get(request.cookies.get(COOKIE, ""))
        if visit is None:
            return None
        expires, key = visit
        return key if expires > self._elapsed() else None

    def enter(self, request: Request, response: Response, key: str) -> None:
        """Begin a visit."""
        name = secrets.token_urlsafe(32)
        self._keys[name] = (self._elapsed() + SECONDS, key)
        if len(self._keys) > self._max_visits:
            self._keys.popitem(last=False)
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, name, httponly=True, samesite="strict", secure=secure, path="/")

    def leave(self, request: Request, response: Response) -> None:
        """End a visit."""
        self._keys.pop(request.cookies.get(COOKIE, ""), None)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict", path="/")


def same_origin(request: Request) -> bool:
    """Return whether a request that changes something comes from one of these pages."""
    origin = request.headers.get("origin", "")
    return bool(origin) and urlsplit(origin).netloc == request.headers.get("host", "")
