"""Every argument of every verb is given every kind of wrong value: each is refused by an error of ACMS, or fine."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from acms import ACMS, ACMSError
from acms.errors import MESSAGE_CHARS
from tests.support.talk import ingest_texts

HOSTILE: list[Any] = [
    None, "", " ", "a\0b", "\ud800", "x" * 1_100_000, "🙂", 5, -1, 0, 10**30, 1.5, float("nan"), True, [], {},
    [None], [{}], ["\ud800"], {"a": 1}, {1: 2}, b"x", object(), ACMS, datetime(2026, 1, 1), {"x"}, len,
]  # fmt: skip
GIVEN: dict[str, Any] = {
    "role": "user", "content": "hello", "query": "orders", "budget": 50, "version": 1, "name": "t", "subject": "s",
    "attribute": "a", "value": "v", "ids": [], "answer": "yes", "messages": [{"role": "user", "content": "x"}],
}  # fmt: skip
"""Arguments that a verb needs, by name."""
FLAGS = (
    "alone",
    "move",
    "verify",
    "dry_run",
    "history",
    "private",
    "relevant_only",
    "include_current_episode",
)


def _parameters_of(verb: str) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(getattr(ACMS, verb)).parameters.values())[1:]
    return [parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]


def _arguments() -> Iterator[tuple[str, str]]:
    """Yield each verb that is awaited, with each of its arguments."""
    for verb in dir(ACMS):
        if not verb.startswith("_") and inspect.iscoroutinefunction(getattr(ACMS, verb)):
            for parameter in _parameters_of(verb):
                yield verb, parameter.name


async def _make_call(session: ACMS, verb: str, argument: str, value: object) -> dict[str, Any]:
    """Return the arguments of a call, all fine but one."""
    entry = (await session.entries(newest=1))[0]
    arguments: dict[str, Any] = {}
    for parameter in _parameters_of(verb):
        if parameter.default is parameter.empty:
            arguments[parameter.name] = GIVEN.get(parameter.name, entry.id)
    if "other" in arguments:
        arguments["other"] = await session.fork()
    if "job" in arguments:
        arguments["job"] = await session.compact()
    return {**arguments, argument: value}


@pytest.mark.parametrize(("verb", "argument"), list(_arguments()))
async def test_a_wrong_value_is_refused_by_a_short_error(verb: str, argument: str) -> None:
    session = ACMS("s", "memory://", None)
    await ingest_texts(session, "We use PostgreSQL for orders.", "Noted.")
    for value in HOSTILE:
        if argument == "timeout" and isinstance(value, int | float):
            continue  # a number of seconds, which may end before the job
        call = await _make_call(session, verb, argument, value)
        try:
            await getattr(session, verb)(**call)
        except ACMSError as error:
            assert len(str(error)) <= MESSAGE_CHARS + 1
            assert str(error).encode(), "it can be printed"
        else:
            assert argument not in FLAGS or value in (True, False), f"{value!r} is no flag"
        if not await session.entries(newest=1):  # the verb has cleared, erased or deleted it
            await ingest_texts(session, "We use PostgreSQL for orders.", "Noted.")
    await session.close()
