"""Calls of a vendor's SDK over a client that the caller made: the client retries and waits as configured.

An error of an SDK holds the request with its key, and often the server's message about it; so only its status and the
name of the exception are passed on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, cast

from acms.errors import ConfigurationError, ProviderError
from acms.providers.arguments import validate_model_name
from acms.providers.chat import (
    BOUNDS,
    TEMPERATURE,
    THINKING,
    accepted_schema,
    empty_answer_error,
    feature_to_leave_out,
)
from acms.providers.http import (
    FIELD_REFUSAL_STATUSES,
    StatusError,
    field_at_fault,
    is_transient_status,
    unreadable_answer_error,
    without_key,
)
from acms.providers.refusal import says_too_long

__all__ = ["ClientProvider", "SDKChat", "call_sdk", "create_sdk_client", "validate_client"]

T = TypeVar("T")

_BROKEN = ("APIConnectionError", "APITimeoutError", "TransportError")


def validate_client(client: Any, kind: str) -> Any:
    """Return an SDK's asynchronous client; raise `ConfigurationError` for any other. `kind` is the expected class."""
    if client is None or any(base.__name__ == "SyncAPIClient" for base in type(client).__mro__):
        raise ConfigurationError(f"client must be an {kind}", options=(f"pass {kind}()",))
    return client


def create_sdk_client(kind: Callable[..., Any], settings: Mapping[str, Any], key_variable: str) -> Any:
    """Make a client from settings and the SDK's environment variables; `key_variable` is the one with the API key."""
    try:
        return kind(**settings)
    except Exception:  # the SDK's error may quote a setting, so it is not passed on
        problem = f"{kind.__name__} cannot be made: check its settings and {key_variable}"
    raise ConfigurationError(problem, options=(f"set {key_variable}",))


async def call_sdk(call: Callable[[], Awaitable[Any]], read: Callable[[Any], T], provider: str) -> T:
    """Return the result of `read` for an SDK's answer; every failure is a `ProviderError` without secrets.

    If `read` raises LookupError, TypeError, ValueError or AttributeError, the answer is unreadable: `retryable`.
    """
    failure: ProviderError
    try:
        answer = await call()
    except ProviderError:
        raise
    except Exception as error:
        failure = _convert_error(error, provider)
    else:
        try:
            return read(answer)
        except (LookupError, TypeError, ValueError, AttributeError):
            failure = unreadable_answer_error(provider)
    raise failure  # outside of the except blocks: the SDK's error would be its context


def redact_client_key(text: str, client: Any) -> str:
    """Return the text without the client's API key or token, which a server may echo."""
    for name in ("api_key", "auth_token"):
        key = getattr(client, name, None)
        if isinstance(key, str):
            text = without_key(key, text)
    return text


class ClientProvider:
    """A provider over an SDK's client. It closes the client only if the client was made for it."""

    #: Whether `aclose` closes the client.
    owns_client: bool = False

    def __init__(self, client: Any) -> None:
        self._client = client

    async def aclose(self) -> None:
        """Close the client if it was made for this provider; one that was given stays open."""
        if self.owns_client:
            await self._client.close()


class SDKChat(ABC):
    """One chat model behind an SDK's client.

    It is asked at temperature 0. A temperature or a schema that the server refuses with status 400 or 422 is left out
    from the first answer without it on.
    """

    #: Never sent. The strict modes of the vendors refuse bounds of a schema.
    unsupported: frozenset[str] = frozenset({BOUNDS})

    def __init__(self, client: Any, model: str, provider: str) -> None:
        self.client = client
        self.model = validate_model_name(model)
        self.provider = provider
        self._refused = self.unsupported

    async def complete(
        self, system: str, prompt: str, *, max_tokens: int, schema: Mapping[str, Any] | None = None
    ) -> str:
        """Return the model's answer; `ProviderError` when it gives none, `retryable` unless it refused."""
        refused_features = self._refused
        while True:
            settings = {} if TEMPERATURE in refused_features else {TEMPERATURE: 0}
            allowed_schema = accepted_schema(schema, refused_features)
            if allowed_schema is not None:
                settings |= self._schema_setting(allowed_schema)
            try:
                text = await self._request_text(system, prompt, max_tokens, settings)
            except StatusError as error:
                if error.status not in FIELD_REFUSAL_STATUSES:
                    raise
                # Which of temperature and schema the server objects to; None if it is neither.
                feature = feature_to_leave_out(error, refused_features, schema is not None)
                if feature is None:
                    raise
                refused_features |= {feature}
            else:
                self._refused = refused_features
                return text

    async def _request_text(
        self, system: str, prompt: str, max_tokens: int, settings: Mapping[str, Any]
    ) -> str:
        text, is_refusal = await call_sdk(
            lambda: self._ask(system, prompt, max_tokens, settings), self._parse_answer, self.provider
        )
        if text:
            return text
        raise empty_answer_error(self.provider, is_refusal)

    def _parse_answer(self, answer: Any) -> tuple[str, bool]:
        text, is_refusal = self._extract_text(answer)
        if not isinstance(text, str):
            raise TypeError("not a text")
        return redact_client_key(THINKING.sub("", text, count=1), self.client).strip(), is_refusal

    @abstractmethod
    def _ask(
        self, system: str, prompt: str, max_tokens: int, settings: Mapping[str, Any]
    ) -> Awaitable[Any]: ...

    @abstractmethod
    def _schema_setting(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return the setting that holds the model to a schema."""

    @abstractmethod
    def _extract_text(self, answer: Any) -> tuple[str, bool]:
        """Return the text of an answer, and whether the model or a filter refused to give one."""


def _field_blamed_in_sdk_error(error: Exception) -> str:
    """Return the request field that an SDK's error complains of, or ""; its body may wrap the error in `error`."""
    body = getattr(error, "body", None)
    if not isinstance(body, dict):
        return ""
    inner = cast("dict[str, Any]", body).get("error", body)
    return field_at_fault(cast("dict[str, Any]", inner)) if isinstance(inner, dict) else ""


def _convert_error(error: Exception, provider: str) -> ProviderError:
    """Return the `ProviderError` for an SDK's error; only its status and the name of the exception are shown."""
    status = getattr(error, "status_code", None)
    kinds = {base.__name__ for base in type(error).__mro__}
    if "APIResponseValidationError" in kinds or isinstance(error, ValueError):  # ValueError: no JSON, no data
        return unreadable_answer_error(provider)
    if isinstance(status, int):
        # Some servers answer 500 to a text that is too long; with 4xx the status alone says enough.
        too_long = status >= 500 and says_too_long(str(error))
        return StatusError(
            f"{provider} answered {status}",
            provider=provider,
            status=status,
            param=_field_blamed_in_sdk_error(error),
            retryable=is_transient_status(status) and not too_long,
            too_long=too_long,
        )
    if kinds & set(_BROKEN) or isinstance(error, OSError):
        return ProviderError(
            f"{provider}: no answer ({type(error).__name__})", provider=provider, retryable=True
        )
    return ProviderError(
        f"{provider}: the client raised {type(error).__name__}",
        provider=provider,
        options=("check that the client has a key", "call it directly to see its error"),
    )
