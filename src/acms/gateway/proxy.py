"""Forward requests to providers and relay their answers: the very bytes, as they come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import httpx2

from acms.errors import UnreachableError

__all__ = ["ForwardedRequest", "Upstreams", "ask_health", "end_to_end_headers", "find_upstream"]

RawHeaders = Sequence[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 600.0
"""Seconds to connect, and between two pieces of an answer: reasoning models are silent for minutes."""
_CONNECTIONS = 500
"""Requests under way at all providers together."""
_IDLE_SECONDS = 3.0
"""Seconds after which an idle connection is not used again. Servers on uvicorn and Node.js close one after five: a
request sent at that moment is lost, and it cannot be sent twice, since the server may have read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedRequest:
    """A request as it goes to a provider."""

    upstream: str
    method: str
    #: Path and query as the client wrote them.
    target: bytes
    headers: RawHeaders


class Upstreams:
    """The providers, and the connections to them."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = {name: httpx2.URL(url.rstrip("/")) for name, url in urls.items()}
        timeout = httpx2.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS)
        limits = httpx2.Limits(
            max_connections=_CONNECTIONS,
            max_keepalive_connections=_CONNECTIONS,
            keepalive_expiry=_IDLE_SECONDS,
        )
        self._client = httpx2.AsyncClient(timeout=timeout, limits=limits, trust_env=False)

    async def send(self, request: ForwardedRequest, body: bytes) -> httpx2.Response:
        """Send a request and return the answer, whose body is not read yet.

        Raises `UnreachableError` if there is no answer.
        """
        base = self._urls[request.upstream]
        target = base.raw_path.rstrip(b"/") + request.target
        url = base.copy_with(raw_path=target)  # the raw path: nothing is quoted or normalized again
        headers = [(b"host", url.netloc), *request.headers]
        # A method that usually has a body states its length also when it is empty.
        if body or request.method not in ("GET", "HEAD", "OPTIONS"):
            headers.append((b"content-length", str(len(body)).encode()))
        outgoing = httpx2.Request(request.method, url, headers=headers, content=body)
        try:
            return await self._client.send(outgoing, stream=True)
        except httpx2.HTTPError as error:
            raise UnreachableError(
                f"the upstream {request.upstream!r} does not answer: {type(error).__name__}"
            ) from None

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()


async def ask_health(url: str) -> bool:
    """Return whether a gateway answers at a URL."""
    try:
        async with httpx2.AsyncClient(trust_env=False, timeout=_CONNECT_SECONDS) as client:
            answer = await client.get(f"{url.rstrip('/')}/acms/health")
    except httpx2.HTTPError:
        return False
    return answer.status_code == 200


def find_upstream(path: str, names: Mapping[str, str], headers: Mapping[str, str]) -> str:
    """Return the name of the upstream for a request: "anthropic" by its paths and headers, else "openai".

    If neither is in `names`, return the first one.
    """
    is_anthropic = path.startswith(("/v1/messages", "/api/hello")) or "anthropic-version" in headers
    order = ("anthropic", "openai") if is_anthropic else ("openai", "anthropic")
    for name in order:
        if name in names:
            return name
    return next(iter(names))


def end_to_end_headers(
    headers: Iterable[tuple[bytes, bytes]], *, without: Iterable[bytes] = ()
) -> RawHeaders:
    """Return the headers to forward: all but those of the connection, those of ACMS, and `without`."""
    all_headers = list(headers)
    dropped_names = {*_HOP_BY_HOP, *without}
    for name, value in all_headers:
        if name.lower() == b"connection":  # its value names further headers of the connection
            dropped_names.update(name_in_value.strip().lower() for name_in_value in value.split(b","))
    forwarded: list[tuple[bytes, bytes]] = []
    for name, value in all_headers:
        lower = name.lower()
        if lower not in dropped_names and not lower.startswith(b"x-acms-"):
            forwarded.append((name, value))
    return forwarded
