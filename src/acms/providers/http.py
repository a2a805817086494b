"""Model servers over HTTP: one JSON request, one JSON answer; retried, and bounded in time, size and number.

Errors and logs of this module hold only a status, the server's own code for it and an exception's name: never the key,
the text of a request or an answer. Keys are removed from answers too, since a server may echo them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar
from weakref import WeakKeyDictionary

import httpx2

from acms.config import RetryConfig
from acms.errors import ACMSError, ConfigurationError, ProviderError
from acms.observability.logging import log_event
from acms.providers.addresses import AddressGuard, Resolve, resolve_host
from acms.providers.refusal import TEXT_REFUSAL_STATUSES, says_too_long
from acms.providers.retry import with_retry
from acms.runtime.threads import in_thread, pause_if_busy

__all__ = ["Endpoint", "StatusError", "UnreachableError", "resolve_endpoint", "retry_after"]

T = TypeVar("T")

FIELD_REFUSAL_STATUSES = (400, 422)
"""Statuses by which a server refuses a field it does not know."""
_FIELD_CHARS = 80
"""Characters of an error message in which a field counts as the one at fault: later ones may echo the request."""

_TRANSIENT = frozenset((408, 409, 425, 429))
_REDACTED = "[key]"
_MIN_KEY_CHARS = 8  # characters: a shorter one is a placeholder such as "none", and part of ordinary words
_ERROR_BYTES = 64 * 1024
_LONG_ANSWER_BYTES = 256 * 1024  # bytes, about 5 ms: a longer answer is parsed in a worker thread
_CODE = re.compile(r"[a-z][a-z0-9_.-]{0,63}", re.IGNORECASE)
_HOST = re.compile(rb"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_TOKEN = re.compile(r"[A-Za-z0-9-]+")


class StatusError(ProviderError):
    """A model server answered with an error."""

    def __init__(
        self,
        message: str,
        *,
        provider: str,
        status: int,
        param: str = "",
        retryable: bool = False,
        retry_after: float | None = None,
        too_long: bool = False,
    ) -> None:
        super().__init__(message, provider=provider, retryable=retryable, retry_after=retry_after)
        #: The status of HTTP.
        self.status = status
        #: The field of the request that the server complains of, where it names one.
        self.param = param
        #: Whether the server refused the texts themselves: sent again as they are, they are refused again.
        self.refuses_input = too_long or status in TEXT_REFUSAL_STATUSES


class UnreachableError(ProviderError):
    """A server cannot be reached; nothing was sent."""


class _Secret:
    """An API key that its repr does not show."""

    __slots__ = ("reveal",)

    def __init__(self, text: str) -> None:
        self.reveal = lambda: text

    def __repr__(self) -> str:
        return "_Secret(…)"


class _Connections:
    """The open connections to one server, of one event loop."""

    def __init__(self, client: httpx2.AsyncClient, places: int) -> None:
        self.client = client
        self.places = asyncio.Semaphore(places)
        self.closed = False


class _Request(NamedTuple):
    """A request to a server."""

    method: str
    url: httpx2.URL
    content: bytes | None = None
    headers: Mapping[str, str] = {}
    #: Whether the body of the answer is read; False if its status is enough.
    reads_body: bool = True


class Endpoint:
    """A model server at an address, with its key; requests and answers are JSON.

    The first call opens the connections, once for each event loop; `aclose` closes those of the running loop, and a
    later call opens new ones. Calls may overlap: at most `concurrency` run at once, the others wait for their turn.

    Every failure is a `ProviderError` that names `provider` (by default the host). Timeouts, broken connections,
    truncated or malformed answers, and the statuses 408, 409, 425, 429 and 5xx are `retryable`, and retried as `retry`
    configures, at the server's pace; other statuses, redirects and an answer of more than `max_bytes` are not.
    `timeout` applies to one attempt, without the wait for its turn.

    An address in code is trusted, including loopback and plain HTTP. With `trusted=False` it may come from data: then
    it must be https, its name is resolved before every attempt, the connection goes to an address that was checked to
    be public (or lies in a network of `allow`), and proxies of the environment are not used.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        key_header: str = "authorization",
        headers: Mapping[str, str] | None = None,
        provider: str | None = None,
        timeout: float = 30.0,
        connect_timeout: float = 10.0,
        retry: RetryConfig | None = None,
        concurrency: int = 8,
        max_bytes: int = 32 * 1024 * 1024,
        trusted: bool = True,
        allow: Sequence[str] = (),
        resolve: Resolve = resolve_host,
        verify: ssl.SSLContext | None = None,
    ) -> None:
        self._url = _parse_base_url(base_url, trusted)
        #: Named in every error: the host, unless it was given.
        self.provider = provider or self._url.host
        #: The host of the address.
        self.host = self._url.host
        self._key = None if api_key is None else _Secret(_check_header_value(api_key, "api_key"))
        self._key_header = key_header
        self._headers = {
            name: _check_header_value(value, f"headers[{name!r}]") for name, value in (headers or {}).items()
        }
        for name in (key_header, *self._headers):
            if not _TOKEN.fullmatch(name):
                raise ConfigurationError(f"{name!r} is not the name of a header")
        self._timeout = _check_positive(timeout, "timeout")
        self._connect_timeout = min(timeout, _check_positive(connect_timeout, "connect_timeout"))
        self.retry = retry or RetryConfig()
        self._concurrency = int(_check_positive(concurrency, "concurrency"))
        self._max_bytes = int(_check_positive(max_bytes, "max_bytes"))
        if allow and trusted:
            raise ConfigurationError("allow needs trusted=False: a trusted address may be anywhere")
        self._guard = None if trusted else AddressGuard(allow, resolve)
        self._verify = verify
        self._connections_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connections] = (
            WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"Endpoint({str(self._url)!r})"

    async def post(self, path: str, body: Mapping[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
        """Send a request, and return the result of `read` for the answer, a JSON object.

        When `read` raises anything but an error of ACMS, the answer counts as garbled. It may be called in a worker
        thread, and again with another answer.
        """
        content = json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        return await self._ask_with_retry(_Request("POST", self._url_of(path), content), read)

    async def get(self, path: str, read: Callable[[dict[str, Any]], T], *, query: str = "") -> T:
        """Fetch a JSON object and return the result of `read` for it, as `post` does."""
        url = self._url_of(path)
        return await self._ask_with_retry(
            _Request("GET", url.copy_with(query=query.encode()) if query else url), read
        )

    async def _ask_with_retry(self, request: _Request, read: Callable[[dict[str, Any]], T]) -> T:
        connections = self._connections()
        return await with_retry(
            lambda: self._ask_and_read(connections, request, read), self.retry, on_retry=self._log_retry
        )

    async def notify(self, content: bytes, headers: Mapping[str, str]) -> None:
        """Post content to the address itself, once. A success status is enough: the body of the answer is not read."""
        await self._ask(self._connections(), _Request("POST", self._url, content, headers, reads_body=False))

    def _url_of(self, path: str) -> httpx2.URL:
        return self._url.copy_with(path=f"{self._url.path.rstrip('/')}/{path.lstrip('/')}")

    async def aclose(self) -> None:
        """Close the connections of the running event loop; calls under way fail. Idempotent."""
        connections = self._connections_of_loop.pop(asyncio.get_running_loop(), None)
        if connections is not None:
            connections.closed = True
            await connections.client.aclose()

    async def __aenter__(self) -> Self:
        """Keep the connections open until the block ends."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what the running event loop opened."""
        await self.aclose()

    # ── one attempt ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _connections(self) -> _Connections:
        """Return the connections of the running event loop, opened on first use."""
        loop = asyncio.get_running_loop()
        connections = self._connections_of_loop.get(loop)
        if connections is None:
            headers = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "acms"}
            headers |= {"content-type": "application/json", **self._headers}
            if self._key is not None:
                bearer = self._key_header.lower() == "authorization"
                headers[self._key_header] = f"{'Bearer ' if bearer else ''}{self._key.reveal()}"
            client = httpx2.AsyncClient(
                headers=headers,
                verify=self._verify or _create_ssl_context(),
                trust_env=self._guard is None,
                timeout=httpx2.Timeout(self._timeout, connect=self._connect_timeout),
                limits=httpx2.Limits(
                    max_connections=self._concurrency, max_keepalive_connections=self._concurrency
                ),
                follow_redirects=False,
            )
            connections = self._connections_of_loop[loop] = _Connections(client, self._concurrency)
        return connections

    async def _ask_and_read(
        self, connections: _Connections, request: _Request, read: Callable[[dict[str, Any]], T]
    ) -> T:
        """Send a request and return what `read` makes of the answer, in a thread if it is long."""
        answer = await self._ask(connections, request)
        try:
            if len(answer) <= _LONG_ANSWER_BYTES:
                return read(self._parse_answer(answer))
            return await in_thread(lambda: read(self._parse_answer(answer)))
        except ACMSError:
            raise
        except Exception:  # it may hold words of the answer: the failure below says enough
            pass
        raise unreadable_answer_error(self.provider)

    async def _ask(self, connections: _Connections, request: _Request) -> bytes:
        """Send a request and return the body of the answer; any failure becomes a `ProviderError` without secrets."""
        # Failures are raised outside of the except blocks: what httpx2 raises holds the request, and with it the key.
        async with connections.places:
            if connections.closed:
                raise self._failure("the connections were closed", retryable=False)
            failure: ProviderError
            try:
                async with asyncio.timeout(self._timeout):
                    return await self._exchange(connections.client, request)
            except ProviderError as error:
                failure = error
            except (httpx2.TimeoutException, TimeoutError) as error:
                if isinstance(error, httpx2.ConnectTimeout):
                    failure = self._unreachable(f"no connection within {self._connect_timeout:g} s")
                else:
                    failure = self._failure(f"no answer within {self._timeout:g} s")
            except httpx2.ConnectError as error:
                # Nothing was sent yet, so the message is about the network alone.
                failure = self._unreachable(f"cannot be reached: {' '.join(str(error).split())[:200]}")
            except Exception as error:
                closed = connections.closed
                failure = self._failure(
                    "the connections were closed"
                    if closed
                    else f"the connection broke ({type(error).__name__})",
                    retryable=not closed,
                )
        raise failure

    async def _exchange(self, client: httpx2.AsyncClient, request: _Request) -> bytes:
        """Send a request over a client; with a guard, to one of the addresses that it permits.

        The addresses are tried in turn until a connection is made. Host and TLS name stay those of the URL.
        """
        method, url, content, headers, reads_body = request
        if self._guard is None:
            http_request = client.build_request(method, url, content=content, headers={**headers})
            return await self._send(client, http_request, reads_body)
        host = url.raw_host.decode("ascii")
        *other_addresses, last_address = await self._guard.addresses(
            host, url.port or 443, provider=self.provider
        )

        async def send(address: str) -> bytes:
            http_request = client.build_request(
                method,
                url.copy_with(host=address),
                content=content,
                headers={**headers, "host": url.netloc.decode("ascii")},
                extensions={"sni_hostname": host},
            )
            return await self._send(client, http_request, reads_body)

        for address in other_addresses:
            # Without a connection nothing was sent, so it is safe to try the next address.
            with contextlib.suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
                return await send(address)
        return await send(last_address)

    async def _send(self, client: httpx2.AsyncClient, request: httpx2.Request, reads_body: bool) -> bytes:
        """Send a request and return the body of the answer; `StatusError` with the reason for any other status."""
        response = await client.send(request, stream=True)
        try:
            status = response.status_code
            if 200 <= status < 300:
                return await self._read(response) if reads_body else b""
            code, param, too_long = self._parse_complaint(await self._read_error_start(response))
            # A rate limit says "too large" of the recent traffic, and that passes.
            too_long = too_long and status not in _TRANSIENT
        finally:
            await response.aclose()
        words = " ".join(filter(None, (code, param)))
        description = f"answered {status}{f' ({words})' if words else ''}"
        if 300 <= status < 400:
            raise self._failure(f"{description}; redirects are not followed", retryable=False)
        wait = retry_after(response.headers.get("retry-after"), datetime.now(UTC))
        if wait is not None:
            description += f", asks to wait {wait:g} s"
        raise StatusError(
            f"{self.provider} {description}",
            provider=self.provider,
            retryable=is_transient_status(status) and not too_long,
            retry_after=wait,
            status=status,
            param=param,
            too_long=too_long,
        )

    async def _read(self, response: httpx2.Response) -> bytes:
        """Read the whole answer; stop as soon as it exceeds the limit."""
        too_large = f"answered with more than {self._max_bytes} bytes"
        announced = response.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self._max_bytes:
            raise self._failure(too_large, retryable=False)
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > self._max_bytes:
                raise self._failure(too_large, retryable=False)
            if len(body) > _LONG_ANSWER_BYTES:
                await asyncio.sleep(0)  # let others run: data that has arrived is read without waiting
        return bytes(body)

    async def _read_error_start(self, response: httpx2.Response) -> bytes:
        """Read the start of an error's body; a failure does not matter, since the status is known."""
        body_start = bytearray()
        with contextlib.suppress(httpx2.HTTPError):
            async for chunk in response.aiter_raw():
                body_start += chunk
                if len(body_start) > _ERROR_BYTES:
                    break
        return bytes(body_start)

    # ── words that are safe to show ─────────────────────────────────────────────────────────────────────────────────

    def _failure(self, why: str, *, retryable: bool = True) -> ProviderError:
        return ProviderError(f"{self.provider}: {why}", provider=self.provider, retryable=retryable)

    def _unreachable(self, why: str) -> ProviderError:
        return UnreachableError(f"{self.provider}: {why}", provider=self.provider, retryable=True)

    def _parse_complaint(self, body: bytes) -> tuple[str, str, bool]:
        """Return the server's code for an error, the field at fault, and whether the input was too long.

        Code and field are empty unless they are short, are made of harmless characters, and contain no part of the key.
        """
        try:
            parsed = json.loads(body)
            error = parsed.get("error", parsed)
            if isinstance(error, str):  # the whole error is a sentence: it may quote the request
                return "", "", says_too_long(error)
            code, param = error.get("code") or error.get("type"), field_at_fault(error)
            message = error.get("message") or error.get("detail")
        except (ValueError, AttributeError, RecursionError):
            return "", "", False
        return self._safe_word(code), self._safe_word(param), says_too_long(message)

    def _safe_word(self, word: object) -> str:
        """Return a short code of the server that may be logged, or "" if it is long or holds a part of the key."""
        if not isinstance(word, str) or not _CODE.fullmatch(word):
            return ""
        key = self._key.reveal() if self._key is not None else ""
        size = min(len(key), 6)  # a part of the key must not be logged either
        pieces = (key[start : start + size] for start in range(len(key) - size + 1)) if key else ()
        return "" if any(piece.lower() in word.lower() for piece in pieces) else word

    def _parse_answer(self, content: bytes) -> dict[str, Any]:
        """Parse the JSON object of an answer, without the key if the server repeats it."""
        # Decode strictly first: given bytes, `json` accepts encoded surrogates, which are half a character each.
        answer = json.loads(
            str(content, "utf-8"), parse_constant=_reject_constant, object_hook=_yield_to_event_loop
        )
        if not isinstance(answer, dict):
            raise TypeError("not an object")
        key = self._key.reveal() if self._key is not None else ""
        return without_key(key, answer)

    def _log_retry(self, attempt: int, error: Exception) -> None:
        status = error.status if isinstance(error, StatusError) else None
        log_event(logging.INFO, "provider_retried", provider=self.provider, attempt=attempt, status=status)


@cache
def _create_ssl_context() -> ssl.SSLContext:
    """Return the context that checks certificates: creating it takes 10 ms, and all endpoints share it."""
    return httpx2.create_ssl_context()


def is_transient_status(status: int) -> bool:
    """Return whether a status means that the same call may succeed later."""
    return status in _TRANSIENT or status >= 500


def unreadable_answer_error(provider: str) -> ProviderError:
    """Return the error of an answer that cannot be read."""
    return ProviderError(
        f"{provider}: its answer does not have the expected form", provider=provider, retryable=True
    )


def without_key(key: str, value: T) -> T:
    """Return an answer without the key, which a server may echo. A very short key is a placeholder and stays."""
    return _redact_key(key, value) if len(key) >= _MIN_KEY_CHARS else value


def _redact_key(key: str, value: Any) -> Any:
    """Replace the key in every text of a parsed JSON value; a list of floats, such as a vector, is not searched."""
    if isinstance(value, str):
        return value.replace(key, _REDACTED)
    if isinstance(value, dict):
        return {_redact_key(key, name): _redact_key(key, item) for name, item in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], float):
            return value
        return [_redact_key(key, item) for item in value]
    return value


def _yield_to_event_loop(parsed_object: dict[str, Any]) -> dict[str, Any]:
    """Let other threads run after each parsed object: the parser would hold the interpreter until its end."""
    pause_if_busy()
    return parsed_object


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def retry_after(header: str | None, current_time: datetime) -> float | None:
    """Return the seconds that a Retry-After header asks for: a number, or a date of HTTP."""
    if not header:
        return None
    text = header.strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII):
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - current_time).total_seconds())


def _check_positive(value: float, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigurationError(f"{name} must be a number above 0, was {value!r}")
    return value


def _check_header_value(value: str, name: str) -> str:
    """Return a valid header value; the error for an invalid one does not quote it."""
    if not isinstance(value, str) or not value or not re.fullmatch(r"[\x21-\x7e]+( [\x21-\x7e]+)*", value):
        raise ConfigurationError(f"{name} must be printable ASCII without spaces at its ends")
    return value


def _parse_base_url(base_url: str, trusted: bool) -> httpx2.URL:
    """Parse an address; errors do not quote the address, since it may contain a password."""
    try:
        url = httpx2.URL(base_url)
    except (httpx2.InvalidURL, TypeError):
        url = None
    if url is None or url.scheme not in ("http", "https") or not _HOST.fullmatch(url.raw_host):
        raise ConfigurationError("base_url must be an address such as https://api.example.com/v1")
    if url.userinfo or url.query or url.fragment:
        raise ConfigurationError(
            "base_url must not contain a user, a password, a query or a fragment: use api_key"
        )
    if not trusted and url.scheme != "https":
        raise ConfigurationError("base_url must be https, unless it is trusted", options=("trusted=True",))
    return url


def field_at_fault(error: Mapping[str, Any]) -> str:
    """Return the field that an error complains of: its `param`, or the temperature if its message starts with it."""
    param = error.get("param")
    if param:
        return param if isinstance(param, str) else ""
    return "temperature" if "temperature" in str(error.get("message"))[:_FIELD_CHARS] else ""


def resolve_endpoint(
    base_url: str | Endpoint, *, api_key: str | None, timeout: float, max_retries: int
) -> Endpoint:
    """Return an endpoint as it is, or make one from an address and settings."""
    if isinstance(base_url, Endpoint):
        if api_key is not None:
            raise ConfigurationError("an Endpoint has its own api_key")
        return base_url
    if type(max_retries) is not int or max_retries < 0:
        raise ConfigurationError(f"max_retries must be a whole number of at least 0, was {max_retries!r}")
    return Endpoint(
        base_url, api_key=api_key, timeout=timeout, retry=RetryConfig(max_attempts=max_retries + 1)
    )


class EndpointProvider:
    """A provider over an endpoint: closing it closes the endpoint's connections; `async with` closes it."""

    _endpoint: Endpoint

    async def aclose(self) -> None:
        """Close the connections of the running event loop; a later call opens them again."""
        await self._endpoint.aclose()

    async def __aenter__(self) -> Self:
        """Keep the connections open until the block ends."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections of the running event loop."""
        await self.aclose()
