"""`with_retry`: which errors are retried, how long it waits, and its limits."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from acms import ConfigurationError, ConflictError, ProviderError, RetryConfig, ValidationError
from acms.providers import with_retry
from acms.providers.http import retry_after

EVEN = RetryConfig(max_attempts=4, base_delay=1, max_delay=30, jitter=False)


class Calls:
    """Fails with each of some errors in turn, then returns "done"; remembers the waits in between."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.made = 0
        self.waits: list[float] = []

    async def __call__(self) -> str:
        self.made += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def run(self, config: RetryConfig | None = EVEN, **given: Any) -> str:
        return await with_retry(self, config, sleep=self.sleep, **given)


def retryable_error(seconds: float | None = None) -> ProviderError:
    return ProviderError("busy", provider="test", retryable=True, retry_after=seconds)


async def test_what_succeeds_is_called_once() -> None:
    calls = Calls()
    assert (await calls.run(), calls.made, calls.waits) == ("done", 1, [])


@pytest.mark.parametrize(
    "error", [retryable_error(), ConflictError(), ConnectionError(), ConnectionResetError(), TimeoutError()]
)
async def test_a_passing_failure_is_tried_again(error: Exception) -> None:
    calls = Calls(error)
    assert (await calls.run(), calls.made) == ("done", 2)


@pytest.mark.parametrize(
    "error",
    [
        ProviderError("no", provider="test"),
        ValidationError("no"),
        ValueError("no"),
        KeyError("no"),
        OSError("no"),
    ],
)
async def test_a_failure_for_good_is_not(error: Exception) -> None:
    calls = Calls(error)
    with pytest.raises(type(error)) as raised:
        await calls.run()
    assert (raised.value, calls.made, calls.waits) == (error, 1, [])


async def test_other_exceptions_can_be_named() -> None:
    config = RetryConfig(base_delay=0, retryable_exceptions=(LookupError,))
    named, not_named = Calls(KeyError("x")), Calls(ConnectionError())
    assert await named.run(config) == "done"
    with pytest.raises(ConnectionError):
        await not_named.run(config)


@pytest.mark.parametrize(
    "wrong", [ConnectionError, [ConnectionError], ("x",), (asyncio.CancelledError,), None]
)
def test_what_is_no_tuple_of_exceptions_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="retryable_exceptions"):
        RetryConfig(retryable_exceptions=wrong)


async def test_the_last_error_is_raised_after_the_last_attempt() -> None:
    errors = [retryable_error() for _ in range(9)]
    calls = Calls(*errors)
    with pytest.raises(ProviderError) as raised:
        await calls.run()
    assert raised.value is errors[3]
    assert (calls.made, calls.waits) == (4, [1, 2, 4])
    assert raised.value.__context__ is None


async def test_without_a_config_three_attempts_are_made() -> None:
    calls = Calls(*(retryable_error() for _ in range(9)))
    with pytest.raises(ProviderError):
        await calls.run(None)
    assert calls.made == 3


async def test_the_wait_doubles_up_to_a_limit_and_jitter_takes_up_to_half_of_it() -> None:
    config = RetryConfig(max_attempts=6, base_delay=1, max_delay=5)
    for fraction, waits in [(1.0, [1, 2, 4, 5, 5]), (0.0, [0.5, 1, 2, 2.5, 2.5])]:
        calls = Calls(*(retryable_error() for _ in range(5)))
        await calls.run(config, fraction=lambda fraction=fraction: fraction)
        assert calls.waits == waits


async def test_many_attempts_do_not_overflow_the_wait() -> None:
    calls = Calls(*(retryable_error() for _ in range(1200)))
    await calls.run(RetryConfig(max_attempts=2000, base_delay=1, max_delay=7, jitter=False))
    assert calls.waits[-1] == 7


async def test_the_provider_sets_the_pace() -> None:
    calls = Calls(retryable_error(3), retryable_error(0), retryable_error(30))
    assert await calls.run() == "done"
    assert calls.waits == [3, 2, 30]


async def test_one_who_asks_for_too_long_a_wait_is_given_up_and_the_error_says_so() -> None:
    calls = Calls(retryable_error(31))
    with pytest.raises(
        ProviderError, match=r"busy; not retried, because it asks to wait 31 s .* is 30 s"
    ) as raised:
        await calls.run()
    assert (raised.value.retryable, raised.value.retry_after, raised.value.provider) == (True, 31, "test")
    assert raised.value.options == ("call again after 31 s", "raise retry.max_delay")
    assert (calls.made, calls.waits) == (1, [])


async def test_on_retry_hears_of_every_wait() -> None:
    told: list[tuple[int, Exception]] = []
    errors = [retryable_error(), ConnectionError()]
    calls = Calls(*errors)
    await calls.run(on_retry=lambda attempt, error: told.append((attempt, error)))
    assert told == [(1, errors[0]), (2, errors[1])]


async def test_an_on_retry_that_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(attempt: int, error: Exception) -> None:
        raise RuntimeError("secret text")

    calls = Calls(retryable_error(), retryable_error())
    assert await calls.run(on_retry=broken) == "done"
    assert [record.getMessage() for record in caplog.records] == ["on_retry_failed"] * 2
    assert "secret" not in caplog.text


async def test_a_cancelled_call_is_not_tried_again() -> None:
    calls = Calls(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await calls.run()
    assert calls.made == 1


async def test_a_wait_is_cancelled_at_once() -> None:
    calls = Calls(retryable_error())
    waiting = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(with_retry(calls, EVEN, sleep=sleep))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert calls.made == 1


# ── Retry-After ─────────────────────────────────────────────────────────────────────────────────────────────────────

NOW = datetime(2026, 3, 14, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0),
        ("120", 120),
        (" 7 ", 7),
        ("1.5", 1.5),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90),
        (format_datetime(NOW - timedelta(days=1), usegmt=True), 0),
        ("Sat, 14 Mar 2026 12:00:05 -0000", 5),
        (None, None),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("1e9", None),
        ("٣", None),
        ("9" * 400, None),
        ("Sat, 99 Mar 2026 12:00:05 GMT", None),
        ("Sat, 14 Mar 99999999999 12:00:05 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, NOW) == seconds
