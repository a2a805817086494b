"""A source of knowledge on a server: `provider_request.v0` in, `provider_response.v0` out, by HTTP."""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from acms.config import RetryConfig
from acms.errors import ConfigurationError
from acms.model import Layer
from acms.providers.http import Endpoint, EndpointProvider

__all__ = ["HTTPSource"]

MAX_BYTES = 8 * 1024 * 1024
"""Bytes of one answer, at most."""


class WireRequest(Protocol):
    """A request of the contract, which defines its format."""

    def to_wire(self) -> dict[str, Any]:
        """Return it as JSON."""
        ...


class HTTPSource(EndpointProvider):
    """A knowledge source over HTTP: requests go to `url`, such as "https://kb.example.com/v1/search".

    A call stays within its share of a reply's time, including the retries of `max_retries` and their waits.
    `deadline_ms` is the longest it may take; without it its layer decides. The engine parses and checks the answer.

    An address from code is trusted. Pass an `Endpoint` and the `path` on it for headers, limits and addresses that come
    from data (`trusted=False`). Close the source, or use it as a block: connections are kept open between calls.
    """

    def __init__(
        self,
        url: str | Endpoint,
        *,
        layer: Layer | str,
        name: str | None = None,
        path: str | None = None,
        api_key: str | None = None,
        deadline_ms: float | None = None,
        timeout: float = 5.0,
        max_retries: int = 1,
    ) -> None:
        if isinstance(url, Endpoint):
            if api_key is not None:
                raise ConfigurationError("an Endpoint has its own api_key")
            self._endpoint, self._path = url, "search" if path is None else path
        else:
            if path is not None:
                raise ConfigurationError("path goes with an Endpoint; url holds the whole address")
            base, self._path = _split_url(url)
            self._endpoint = Endpoint(
                base,
                api_key=api_key,
                timeout=timeout,
                max_bytes=MAX_BYTES,
                retry=RetryConfig(max_attempts=max_retries + 1, base_delay=0.02),
            )
        try:
            #: Where its knowledge comes from.
            self.layer = Layer(layer)
        except ValueError as error:
            raise ConfigurationError("layer must be L1, L2 or L4") from error
        #: Named in warnings and errors: the host, unless it was given.
        self.name = name or self._endpoint.provider
        self.deadline_ms = deadline_ms

    def __repr__(self) -> str:
        return f"HTTPSource({self._endpoint!r}, layer={self.layer.value!r})"

    async def search(self, request: WireRequest) -> dict[str, Any]:
        """Ask, and return the answer as it came; `ProviderError` when there is none."""
        return await self._endpoint.post(self._path, request.to_wire(), dict)


def _split_url(url: str) -> tuple[str, str]:
    """Return the address of a server, and the last step of a path on it."""
    if not isinstance(url, str):
        raise ConfigurationError("url must be an address such as https://kb.example.com/v1/search")
    parts = urlsplit(url)
    base, _, last_segment = parts.path.rstrip("/").rpartition("/")
    if not last_segment:
        raise ConfigurationError("url must name a path, as in https://kb.example.com/v1/search")
    return urlunsplit(parts._replace(path=base)), last_segment
