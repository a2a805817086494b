"""Requests to the service: one connection pool, retries where they are safe, typed errors, a key that is never shown.

No error or log of this module holds the key or the text of a request.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast
from urllib.parse import quote, urlsplit

from acms.config import RetryConfig
from acms.contract import problem_details
from acms.errors import (
    ACMSError,
    AuthenticationError,
    ConfigurationError,
    DeadlineError,
    HandleError,
    RateLimitError,
    StorageBusyError,
    StorageUnavailableError,
    UnreachableError,
    ValidationError,
)
from acms.log import validation
from acms.model import Json
from acms.nouns import to_snake_case
from acms.runtime.chance import chance

if TYPE_CHECKING:
    import ssl

    import httpx2

__all__ = ["Answer", "Transport", "build_api_path", "quote_path_step", "rename_error_field"]

BASE = "/api/v1"
_NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"
_PLACES = 64
"""Requests under way at a time; more wait for their turn."""
_QUIET = 45.0
"""Seconds without a word of a stream of events after which its connection is taken for broken: three heartbeats."""
_IDLE = 3.0
"""Seconds after which a connection is not used again: before the other end closes it while a request is on its way."""
_PIECE = 65_536
"""Characters of a stream that are sent at once."""
_LONG = 256 * 1024
"""Bytes of an answer that are parsed without leaving the event loop, about 5 ms."""
_DOWN = frozenset({502, 503, 504})
"""Statuses that an intermediary answers with when the service is unavailable."""


_UNSENT = (UnreachableError, RateLimitError, StorageBusyError)
"""After these it is sure that nothing was done."""


class _Secret:
    """An API key that its repr does not show."""

    __slots__ = ("reveal",)

    def __init__(self, text: str) -> None:
        self.reveal = lambda: text

    def __repr__(self) -> str:
        return "_Secret(…)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer of the service."""

    status: int
    headers: Mapping[str, str]
    body: Json

    @property
    def data(self) -> Json:
        """The value under `data`."""
        if not isinstance(self.body, dict) or "data" not in self.body:
            raise ACMSError("what answered is not this service", options=("check the address",))
        return cast("dict[str, Json]", self.body)["data"]


def build_api_path(*parts: str) -> str:
    """Return a path below the service's base, each part quoted whole; `ValidationError` for an invalid part."""
    return BASE + "".join(f"/{quote_path_step(part, 'id')}" for part in parts)


def quote_path_step(part: object, field: str) -> str:
    """Return a name as one step of a path, quoted; raise `ValidationError` for one that a URL cannot hold.

    "." and ".." have a meaning in a path, also when they are quoted: an intermediary may resolve them.
    """
    name = validation.validate_text(part, field)
    if name in ("", ".", ".."):
        raise ValidationError(
            f"{name!r} cannot be asked for over HTTP, as no address can hold it",
            field=field,
            options=("give its `id`",) if field in ("id", "message_id") else (),
        )
    return quote(name, safe="")


class Transport:
    """The connections to one service, of one event loop."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        *,
        timeout: float,
        retry: RetryConfig,
        why: bool,
        verify: ssl.SSLContext | None,
        carrier: httpx2.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        fraction: Callable[[], float] = chance.random,
    ) -> None:
        self.url = _normalize_base_url(base_url)
        self._key = None if api_key is None else _Secret(_check_api_key(api_key))
        if not timeout > 0:
            raise ConfigurationError("timeout must be above 0")
        self._timeout = timeout
        self.retry = retry
        #: Whether recalls and windows are asked for their reasons.
        self.why = why
        self._verify = verify
        self._carrier = carrier
        self._sleep = sleep
        self._fraction = fraction
        self._client: httpx2.AsyncClient | None = None
        self._places = asyncio.Semaphore(_PLACES)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def aclose(self) -> None:
        """Close the connections; a later call opens new ones. Idempotent."""
        client, self._client, self._loop = self._client, None, None
        if client is not None:
            await client.aclose()

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Json = None,
        headers: Mapping[str, str] | None = None,
        again: bool = True,
    ) -> Answer:
        """Send a request, and retry while the failure is transient and `retry` allows it.

        A caller that changes something passes an `Idempotency-Key` in `headers`: it is the same at every attempt.
        Without `again`, for requests that have another effect the second time, retry only if the request surely did
        nothing.
        """
        content = None
        sent = dict(headers or {})
        if body is not None:
            content = _encode_body(body)
            sent["content-type"] = "application/json"
        params = _build_query_params(query)
        attempt = 1
        while True:
            try:
                return await self._attempt(method, path, params, content, sent)
            except ACMSError as error:
                wait = self._wait(error, attempt) if again or isinstance(error, _UNSENT) else None
                if wait is None:
                    raise
            await self._sleep(wait)
            attempt += 1

    def _wait(self, error: ACMSError, attempt: int) -> float | None:
        """Return the seconds until a request is worth sending again; None when it is not."""
        return None if attempt >= self.retry.max_attempts else self.pause(error, attempt)

    def pause(self, error: ACMSError, attempt: int) -> float | None:
        """Return the seconds to wait before a retry may succeed; None if the error is not transient."""
        if not _is_transient_error(error):
            return None
        asked: float = getattr(error, "retry_after", None) or 0.0
        if asked > self.retry.max_delay:
            return None
        return max(asked, self.retry.delay(attempt, self._fraction()))

    async def _attempt(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        content: bytes | None,
        headers: Mapping[str, str],
    ) -> Answer:
        client = self._open()
        import httpx2

        # Failures are raised outside of the except blocks: what httpx2 raises holds the request, and with it the key.
        failure: ACMSError
        try:
            async with self._places, asyncio.timeout(self._timeout):
                response = await client.request(
                    method, self.url + path, params=params, content=content, headers=dict(headers)
                )
        except (httpx2.HTTPError, TimeoutError) as error:
            failure = self._failure(error)
        else:
            return await self._read(response.status_code, response.headers, response.content)
        raise failure

    async def events(
        self, path: str, *, query: Mapping[str, object] | None = None
    ) -> AsyncGenerator[tuple[str, str, str]]:
        """Yield the server-sent events of an answer: name, id and data, "" for a missing one.

        An event without data confirms that everything before its id was sent. The stream ends when the answer does, and
        raises if nothing arrives for so long that the connection must be broken.
        """
        name = id = ""
        data: list[str] = []
        async for line in self.lines(path, query=query, accept=EVENTS, quiet=max(self._timeout, _QUIET)):
            field, _, value = line.rstrip("\r\n").partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "id":
                id = value
            elif field == "data":
                data.append(value)
            elif not line.strip() and (data or id):
                yield name, id, "\n".join(data)
                name, data = "", []

    async def lines(
        self,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        accept: str = _NDJSON,
        quiet: float | None = None,
    ) -> AsyncGenerator[str]:
        """Yield the lines of a streamed answer, each with its newline; `quiet` is how long none may come."""
        client = self._open()
        import httpx2

        params = _build_query_params(query)
        timeout = httpx2.Timeout(self._timeout, read=quiet or self._timeout)
        failure: ACMSError
        try:
            async with (
                self._places,
                client.stream(
                    "GET", self.url + path, params=params, headers={"accept": accept}, timeout=timeout
                ) as response,
            ):
                if response.status_code == 200:
                    waiting = b""
                    async for piece in response.aiter_bytes():
                        *whole, waiting = (waiting + piece).split(
                            b"\n"
                        )  # a text may hold other ends of lines
                        for line in whole:
                            yield line.decode("utf-8") + "\n"
                    if waiting:
                        yield waiting.decode("utf-8")
                    return
                await response.aread()
        except httpx2.HTTPError as error:
            failure = self._failure(error)
        except UnicodeDecodeError:
            failure = ACMSError(f"{self.url} answered with what is no text")
        else:
            await self._read(response.status_code, response.headers, response.content)
            failure = ACMSError(f"{self.url} answered {response.status_code} to a stream")
        raise failure

    async def send(self, path: str, lines: AsyncIterable[str]) -> Answer:
        """Send lines as a stream, without retries: they are not kept."""
        client = self._open()
        import httpx2

        broken: list[BaseException] = []

        async def pieces() -> AsyncIterator[bytes]:
            waiting: list[str] = []
            size = 0
            try:
                async for line in lines:
                    waiting.append(line)
                    size += len(line)
                    if size >= _PIECE:
                        yield "".join(waiting).encode("utf-8")
                        waiting.clear()
                        size = 0
            except BaseException as error:  # the caller's own
                broken.append(error)
                raise
            if waiting:
                yield "".join(waiting).encode("utf-8")

        failure: ACMSError
        try:
            async with self._places:
                response = await client.post(
                    self.url + path, content=pieces(), headers={"content-type": _NDJSON}, timeout=None
                )
        except httpx2.HTTPError as error:
            if broken:
                raise broken[0] from None
            failure = self._failure(error)
        else:
            return await self._read(response.status_code, response.headers, response.content)
        raise failure

    # ── one attempt ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _open(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None:
            import httpx2

            from acms.runtime.version import __version__

            headers = {"accept": "application/json", "user-agent": f"acms-python/{__version__}"}
            if self._key is not None:
                headers["authorization"] = f"Bearer {self._key.reveal()}"
            self._client = httpx2.AsyncClient(
                headers=headers,
                verify=self._verify or _create_ssl_context(self.url),
                transport=self._carrier,
                timeout=httpx2.Timeout(self._timeout, connect=min(10.0, self._timeout)),
                limits=httpx2.Limits(
                    max_connections=_PLACES, max_keepalive_connections=_PLACES, keepalive_expiry=_IDLE
                ),
                follow_redirects=False,
                http2=False,
            )
            self._loop = loop
            self._places = asyncio.Semaphore(_PLACES)
        elif self._loop is not loop:
            raise HandleError(
                "a client belongs to the event loop that used it first",
                options=("make one client for each loop", "from acms.sync import Client"),
            )
        return self._client

    def _failure(self, error: Exception) -> ACMSError:
        import httpx2

        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return UnreachableError(
                f"{self.url} cannot be reached", options=("acms serve", "check the address")
            )
        if isinstance(error, httpx2.TimeoutException | TimeoutError):
            return DeadlineError(
                f"{self.url} gave no answer within {self._timeout:g} s; a write may still have happened"
            )
        return StorageUnavailableError(
            f"the connection to {self.url} broke ({type(error).__name__}); what was sent may have arrived"
        )

    async def _read(self, status: int, headers: Mapping[str, str], content: bytes) -> Answer:
        found: Json = None
        if content:
            try:
                found = (
                    _parse_json(content)
                    if len(content) <= _LONG
                    else await asyncio.to_thread(_parse_json, content)
                )
                if (
                    b"\\ud" in content or b"\\uD" in content
                ):  # half a character is no text, and could not be sent again
                    json.dumps(found, ensure_ascii=False).encode("utf-8")
            except (ValueError, RecursionError):
                found = None
                if 200 <= status < 300:
                    raise ACMSError(f"{self.url} answered {status} with what is no JSON") from None
        if 200 <= status < 300:
            return Answer(status=status, headers=headers, body=found)
        raise self._error(status, headers, found)

    def _error(self, status: int, headers: Mapping[str, str], found: Json) -> ACMSError:
        after = _parse_seconds(headers.get("retry-after"))
        if isinstance(found, dict) and isinstance(found.get("code"), str):
            error = problem_details.parse_problem(cast("dict[str, Json]", found))
            if isinstance(error, ValidationError):
                _use_argument_name(error)
        elif status == 429:
            error = RateLimitError(retry_after=0.0)
        elif status in _DOWN:
            error = StorageUnavailableError(f"{self.url} answered {status}: the service is not there")
        elif status in (401, 407):
            error = AuthenticationError(f"{self.url} answered {status}")
        elif 300 <= status < 400:
            error = ConfigurationError(
                f"{self.url} answered {status}; redirects are not followed", options=("check the address",)
            )
        else:
            error = ACMSError(f"{self.url} answered {status}, and not as this service does")
        if after is not None and error.retryable:
            error.__dict__["retry_after"] = after
        return error


_ARGUMENTS: Mapping[str, str] = {
    "cursor": "after",
    "key": "session_id",
    "at_tag": "at",
    "at_version": "at",
    "other_version": "at",
}


def _use_argument_name(error: ValidationError) -> None:
    """Name the argument at fault as it is named here, not as on the wire."""
    name = re.sub(r"(?<=[a-z])[A-Z]", lambda found: f"_{found[0].lower()}", error.field)
    rename_error_field(error, _ARGUMENTS.get(name, name))


def rename_error_field(error: ValidationError, field: str) -> None:
    """Say that an argument with this name is at fault."""
    wire, text = error.field, str(error)
    error.field = field
    if text.startswith(f"{wire}: "):
        error.args = (field + text[len(wire) :],)


def _is_transient_error(error: ACMSError) -> bool:
    """Return whether the same request may be sent again: the service was unavailable or overloaded."""
    return error.retryable and problem_details.status_of(error) in (429, 503)


def _create_ssl_context(url: str) -> ssl.SSLContext:
    """Return what checks certificates; where none is expected, loading those of authorities would be for nothing."""
    import ssl

    import httpx2

    secure = url.startswith("https:")
    return httpx2.create_ssl_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _parse_json(content: bytes) -> Json:
    return json.loads(str(content, "utf-8"))  # of bytes `json` would take half a character for one


def _encode_body(body: Json) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError:  # half a character: the service says in which field
        return json.dumps(body, allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise ValidationError(f"is no JSON: {error}", field=_find_unserializable_argument(body)) from None


def _find_unserializable_argument(body: Json) -> str:
    """Return the name of the argument that is no JSON."""
    for name, value in body.items() if isinstance(body, dict) else ():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return to_snake_case(name)
    return "body"


def _build_query_params(query: Mapping[str, object] | None) -> dict[str, str]:
    return {
        name: _check_encodable(str(value) if not isinstance(value, bool) else str(value).lower(), name)
        for name, value in (query or {}).items()
        if value is not None
    }


def _check_encodable(value: str, field: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValidationError("holds half a character (a lone surrogate)", field=field) from None
    return value


def _parse_seconds(given: str | None) -> float | None:
    try:
        return None if given is None else max(0.0, float(given))
    except ValueError:
        return None


def _normalize_base_url(base_url: str) -> str:
    """Validate and normalize the address of a service: no credentials, query or fragment."""
    try:
        found = urlsplit(base_url)
        port = found.port
    except ValueError:
        raise ConfigurationError("base_url is no address") from None
    if found.scheme not in ("http", "https") or not found.hostname:
        raise ConfigurationError("base_url must begin with http:// or https://")
    if found.username is not None or found.password is not None or found.query or found.fragment:
        raise ConfigurationError(
            "base_url must be an address alone, without a name, a password, ? or #", options=("api_key=",)
        )
    host = f"[{found.hostname}]" if ":" in found.hostname else found.hostname
    return f"{found.scheme}://{host}{f':{port}' if port is not None else ''}{found.path.rstrip('/')}"


def _check_api_key(key: str) -> str:
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigurationError("api_key must be one word of printable ASCII")
    return key
