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
_CONNECTIONS = 64
"""Concurrent requests, and connections in the pool; more wait, so that a burst does not open hundreds."""
_LONG = 256 * 1024
"""Bytes of an answer that are parsed in the event loop, about 5 ms."""
_DOWN = frozenset({502, 503, 504})
"""Statuses of an intermediary when the service is unavailable."""


_UNSENT = (UnreachableError, RateLimitError, StorageBusyError)
"""Errors after which the request certainly had no effect."""


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
            raise ACMSError("the server that answered is not this service", options=("check the address",))
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
            f"{name!r} cannot be requested over HTTP: no address can contain it",
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
        self._slots = asyncio.Semaphore(_CONNECTIONS)
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
        repeatable: bool = True,
    ) -> Answer:
        """Send a request, and retry while the failure is transient and `retry` allows it.

        A caller that changes something passes an `Idempotency-Key` in `headers`, which is the same at every attempt.
        Without `repeatable`, a request is repeated only if it certainly had no effect.
        """
        content = None
        all_headers = dict(headers or {})
        if body is not None:
            content = _encode_body(body)
            all_headers["content-type"] = "application/json"
        params = _build_query_params(query)
        attempt = 1
        while True:
            try:
                return await self._send_once(method, path, params, content, all_headers)
            except ACMSError as error:
                may_repeat = repeatable or isinstance(error, _UNSENT)
                seconds = self._retry_delay(error, attempt) if may_repeat else None
                if seconds is None:
                    raise
            await self._sleep(seconds)
            attempt += 1

    def _retry_delay(self, error: ACMSError, attempt: int) -> float | None:
        """Return the seconds to wait before the next attempt, or None if there is none."""
        return None if attempt >= self.retry.max_attempts else self.pause(error, attempt)

    def pause(self, error: ACMSError, attempt: int) -> float | None:
        """Return the seconds to wait before a retry, or None if the error is not transient or the wait too long."""
        if not _is_transient_error(error):
            return None
        retry_after: float = getattr(error, "retry_after", None) or 0.0
        if retry_after > self.retry.max_delay:
            return None
        return max(retry_after, self.retry.delay(attempt, self._fraction()))

    async def _send_once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        content: bytes | None,
        headers: Mapping[str, str],
    ) -> Answer:
        """Send a request once, and return the parsed answer."""
        client = self._open_client()
        import httpx2

        # Failures are raised outside the except blocks, because errors of httpx2 hold the request with the API key.
        failure: ACMSError
        try:
            async with self._slots, asyncio.timeout(self._timeout):
                response = await client.request(
                    method, self.url + path, params=params, content=content, headers=dict(headers)
                )
        except (httpx2.HTTPError, TimeoutError) as error:
            failure = self._connection_error(error)
        else:
            return await self._parse_answer(response.status_code, response.headers, response.content)
        raise failure

    async def events(
        self, path: str, *, query: Mapping[str, object] | None = None
    ) -> AsyncGenerator[tuple[str, str, str]]:
        """Yield (name, id, data) of each server-sent event of an answer; "" for a missing part.

        An event without data confirms that everything before its id was sent. The stream ends with the answer. It
        raises an error if nothing arrives for 45 seconds, since the connection must then be broken.
        """
        name = id = ""
        data: list[str] = []
        max_silence = max(self._timeout, 45.0)  # the time of three heartbeats
        async for line in self.lines(path, query=query, accept=EVENTS, max_silence=max_silence):
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
        max_silence: float | None = None,
    ) -> AsyncGenerator[str]:
        """Yield the lines of a streamed answer, each with its newline; `max_silence` is the longest wait in seconds."""
        client = self._open_client()
        import httpx2

        params = _build_query_params(query)
        headers = {"accept": accept}
        timeout = httpx2.Timeout(self._timeout, read=max_silence or self._timeout)
        stream = client.stream("GET", self.url + path, params=params, headers=headers, timeout=timeout)
        failure: (
            ACMSError  # raised after the try block, as errors of httpx2 hold the request with the API key
        )
        try:
            async with self._slots, stream as response:
                if response.status_code == 200:
                    incomplete = b""
                    async for chunk in response.aiter_bytes():
                        # Only "\n" ends a line, because a text may contain other line separators.
                        *complete, incomplete = (incomplete + chunk).split(b"\n")
                        for line in complete:
                            yield line.decode("utf-8") + "\n"
                    if incomplete:
                        yield incomplete.decode("utf-8")
                    return
                await response.aread()
        except httpx2.HTTPError as error:
            failure = self._connection_error(error)
        except UnicodeDecodeError:
            failure = ACMSError(f"{self.url} answered with bytes that are not text")
        else:
            await self._parse_answer(response.status_code, response.headers, response.content)
            failure = ACMSError(f"{self.url} answered {response.status_code} to a stream")
        raise failure

    async def send(self, path: str, lines: AsyncIterable[str]) -> Answer:
        """Send lines as a stream; there is no retry, because the lines are not kept."""
        client = self._open_client()
        import httpx2

        caller_errors: list[BaseException] = []

        async def encode_chunks() -> AsyncIterator[bytes]:
            """Yield the lines in chunks of about 64 KiB, and note an error of the caller's iterator."""
            buffer: list[str] = []
            size = 0
            try:
                async for line in lines:
                    buffer.append(line)
                    size += len(line)
                    if size >= 65_536:
                        yield "".join(buffer).encode("utf-8")
                        buffer.clear()
                        size = 0
            except BaseException as error:
                caller_errors.append(error)
                raise
            if buffer:
                yield "".join(buffer).encode("utf-8")

        failure: ACMSError
        try:
            async with self._slots:
                response = await client.post(
                    self.url + path, content=encode_chunks(), headers={"content-type": _NDJSON}, timeout=None
                )
        except httpx2.HTTPError as error:
            if caller_errors:
                raise caller_errors[0] from None
            failure = self._connection_error(error)
        else:
            return await self._parse_answer(response.status_code, response.headers, response.content)
        raise failure

    # ── one attempt ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _open_client(self) -> httpx2.AsyncClient:
        """Return the HTTP client, which the first call creates; raise `HandleError` in another event loop."""
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
                    max_connections=_CONNECTIONS,
                    max_keepalive_connections=_CONNECTIONS,
                    keepalive_expiry=3.0,  # less than servers keep a connection open
                ),
                follow_redirects=False,
                http2=False,
            )
            self._loop = loop
            self._slots = asyncio.Semaphore(_CONNECTIONS)
        elif self._loop is not loop:
            raise HandleError(
                "a client belongs to the event loop that used it first",
                options=("create one client per event loop", "from acms.sync import Client"),
            )
        return self._client

    def _connection_error(self, error: Exception) -> ACMSError:
        """Return the ACMS error for an error of the HTTP client: unreachable, too slow, or broken."""
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
            f"the connection to {self.url} broke ({type(error).__name__}); the request may have arrived"
        )

    async def _parse_answer(self, status: int, headers: Mapping[str, str], content: bytes) -> Answer:
        """Return the parsed answer if it is successful; raise the error that it describes if not."""
        body: Json = None
        succeeded = 200 <= status < 300
        if content:
            try:
                body = await _parse_content(content)
            except (ValueError, RecursionError):
                if succeeded:
                    raise ACMSError(f"{self.url} answered {status} without valid JSON") from None
        if succeeded:
            return Answer(status=status, headers=headers, body=body)
        raise self._error_of_answer(status, headers, body)

    def _error_of_answer(self, status: int, headers: Mapping[str, str], body: Json) -> ACMSError:
        """Return the error for an unsuccessful answer, from its problem document or else from its status."""
        retry_after = _parse_seconds(headers.get("retry-after"))
        if isinstance(body, dict) and isinstance(body.get("code"), str):
            error = problem_details.parse_problem(cast("dict[str, Json]", body))
            if isinstance(error, ValidationError):
                _use_argument_name(error)
        elif status == 429:
            error = RateLimitError(retry_after=0.0)
        elif status in _DOWN:
            error = StorageUnavailableError(f"{self.url} answered {status}: the service is not available")
        elif status in (401, 407):
            error = AuthenticationError(f"{self.url} answered {status}")
        elif 300 <= status < 400:
            error = ConfigurationError(
                f"{self.url} answered {status}; redirects are not followed", options=("check the address",)
            )
        else:
            error = ACMSError(f"{self.url} answered {status}in a form that this service does not use")
        if retry_after is not None and error.retryable:
            error.__dict__["retry_after"] = retry_after
        return error


_ARGUMENTS: Mapping[str, str] = {
    "cursor": "after",
    "key": "session_id",
    "at_tag": "at",
    "at_version": "at",
    "other_version": "at",
}


def _use_argument_name(error: ValidationError) -> None:
    """Give the field at fault its name in Python instead of its name on the wire."""
    name = re.sub(r"(?<=[a-z])[A-Z]", lambda match: f"_{match[0].lower()}", error.field)
    rename_error_field(error, _ARGUMENTS.get(name, name))


def rename_error_field(error: ValidationError, field: str) -> None:
    """Change the field that an error names, also at the beginning of its text."""
    wire, text = error.field, str(error)
    error.field = field
    if text.startswith(f"{wire}: "):
        error.args = (field + text[len(wire) :],)


def _is_transient_error(error: ACMSError) -> bool:
    """Return whether the same request may be sent again: the service was unavailable or overloaded."""
    return error.retryable and problem_details.status_of(error) in (429, 503)


def _create_ssl_context(url: str) -> ssl.SSLContext:
    """Return the context that checks certificates; without https none are loaded, which takes time."""
    import ssl

    import httpx2

    secure = url.startswith("https:")
    return httpx2.create_ssl_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


async def _parse_content(content: bytes) -> Json:
    """Parse JSON, in a thread if it takes more than about 5 ms; raise `ValueError` for invalid text or JSON."""
    if len(content) <= _LONG:
        value = _parse_json(content)
    else:
        value = await asyncio.to_thread(_parse_json, content)
    if b"\\ud" in content or b"\\uD" in content:
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # raises ValueError for lone surrogates
    return value


def _parse_json(content: bytes) -> Json:
    return json.loads(str(content, "utf-8"))  # from bytes `json` would accept lone surrogates


def _encode_body(body: Json) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError:  # half a character: the service says in which field
        return json.dumps(body, allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise ValidationError(f"is not JSON: {error}", field=_find_unserializable_argument(body)) from None


def _find_unserializable_argument(body: Json) -> str:
    """Return the name of the first argument that cannot be serialized as JSON, or "body"."""
    arguments = body if isinstance(body, dict) else {}
    for name, value in arguments.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            return to_snake_case(name)
    return "body"


def _build_query_params(query: Mapping[str, object] | None) -> dict[str, str]:
    """Return query parameters as text, without those that are None."""
    params: dict[str, str] = {}
    for name, value in (query or {}).items():
        if value is None:
            continue
        text = str(value)
        params[name] = _check_encodable(text.lower() if isinstance(value, bool) else text, name)
    return params


def _check_encodable(value: str, field: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValidationError("contains a lone surrogate", field=field) from None
    return value


def _parse_seconds(text: str | None) -> float | None:
    """Return the number of seconds in a header, or None if it is missing or no number."""
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        return None


def _normalize_base_url(base_url: str) -> str:
    """Validate and normalize the address of a service: no credentials, query or fragment."""
    try:
        parts = urlsplit(base_url)
        port = parts.port
    except ValueError:
        raise ConfigurationError("base_url is not an address") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError("base_url must begin with http:// or https://")
    has_credentials = parts.username is not None or parts.password is not None
    if has_credentials or parts.query or parts.fragment:
        raise ConfigurationError(
            "base_url must be an address alone, without a name, a password, ? or #", options=("api_key=",)
        )
    address = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if port is not None:
        address += f":{port}"
    return f"{parts.scheme}://{address}{parts.path.rstrip('/')}"


def _check_api_key(key: str) -> str:
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigurationError("api_key must be one word of printable ASCII")
    return key
