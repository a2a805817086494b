"""Trying again: calls to a provider that failed for a passing reason, with backoff and at the provider's pace."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from acms.config import RetryConfig
from acms.errors import ACMSError, ProviderError
from acms.observability.logging import log_event
from acms.runtime.chance import chance

__all__ = ["with_retry"]

T = TypeVar("T")


async def with_retry(
    fn: Callable[[], Awaitable[T]],
    config: RetryConfig | None = None,
    *,
    on_retry: Callable[[int, Exception], None] | None = None,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    fraction: Callable[[], float] = chance.random,
) -> T:
    """Call `fn` until it succeeds, fails permanently, or has failed `max_attempts` times; then raise the last error.

    Errors of ACMS that are `retryable` and those named in `retryable_exceptions` are retried. The wait doubles (by
    `exponential_base`) up to `max_delay` and is never shorter than the `retry_after` of a `ProviderError`; one that
    asks for more than `max_delay` is not retried, and the error says so. `on_retry(attempt, error)` is called before
    each wait; errors that it raises are logged and ignored. A cancelled call ends at once, also while it waits.
    """
    config = config or RetryConfig()
    attempt = 1
    while True:
        try:
            return await fn()
        except Exception as error:
            if not _is_retryable(error, config) or attempt >= config.max_attempts:
                raise
            wait = config.delay(attempt, fraction())
            if isinstance(error, ProviderError) and error.retry_after is not None:
                if error.retry_after > config.max_delay:
                    raise _delay_exceeded_error(error, error.retry_after, config) from error
                wait = max(wait, error.retry_after)
            if on_retry is not None:
                _notify_retry(on_retry, attempt, error)
        await sleep(wait)  # outside of the except block: this error is not the context of the next one
        attempt += 1


def _is_retryable(error: Exception, config: RetryConfig) -> bool:
    if isinstance(error, ACMSError):
        return error.retryable
    return isinstance(error, config.retryable_exceptions)


def _delay_exceeded_error(error: ProviderError, seconds: float, config: RetryConfig) -> ProviderError:
    return ProviderError(
        f"{error}; not retried, because it asks to wait {seconds:g} s and retry.max_delay is {config.max_delay:g} s",
        provider=error.provider,
        retryable=True,
        retry_after=seconds,
        options=(f"call again after {seconds:g} s", "raise retry.max_delay"),
    )


def _notify_retry(on_retry: Callable[[int, Exception], None], attempt: int, error: Exception) -> None:
    try:
        on_retry(attempt, error)
    except Exception:
        log_event(logging.WARNING, "on_retry_failed", attempt=attempt)
