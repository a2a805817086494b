"""Conversations of every kind, made at random and interrupted anywhere, for the adapters to store and to show."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from acms.codecs import OpenAIChat
from tests.providers import judge

_WORDS = "harbour crane rope 48213 deploy München 列車 tests green pumpkin invoice 🚢 quay".split()
_ODD = ("half \ud83d", "a\0b", "")
BUDGETS = (300, 1_200, 100_000)
_CODEC = OpenAIChat("gpt-5")


class Call(NamedTuple):
    """A call of a tool."""

    id: str
    name: str
    arguments: dict[str, Any]


class Step(NamedTuple):
    """One message, of whichever framework."""

    role: str
    text: str = ""
    thought: str = ""
    calls: Sequence[Call] = ()
    #: The call that it answers.
    answers: Call | None = None


def random_conversation(random: Random, *, unique_ids: bool = False) -> list[Step]:
    """Return a conversation of some turns in which a tenth of the messages are missing; the last one is the user's.

    `unique_ids` is for frameworks that refuse a call whose id was used before.
    """
    steps: list[Step] = []
    for turn in range(random.randint(1, 6)):
        steps.append(Step("user", _random_text(random)))
        for round in range(random.randint(0, 3)):
            calls = _random_calls(random, f"{turn}_{round}", unique_ids)
            thought = _random_text(random) if random.random() < 0.3 else ""
            steps.append(Step("assistant", _random_text(random), thought, calls))
            steps += [Step("tool", _random_text(random, 150), answers=call) for call in calls]
    kept = [step for step in steps if random.random() > 0.1]
    return [*kept, Step("user", "and now?")]


def _random_calls(random: Random, id: str, unique_ids: bool) -> list[Call]:
    ids = [f"call_{id}_{number}" for number in range(random.choice([0, 1, 1, 2, 3]))]
    if ids and random.random() < 0.1:
        ids = [one + "__thought__" + "A" * 400 for one in ids]
    if ids and not unique_ids and random.random() < 0.1:
        ids = [ids[0]] * len(ids)
    return [Call(one, "disk", {"host": _random_text(random)}) for one in ids]


def _random_text(random: Random, most: int = 30) -> str:
    if random.random() < 0.1:
        return random.choice(_ODD)
    return " ".join(random.choices(_WORDS, k=random.randint(1, most)))


def assert_valid_request(
    messages: Sequence[dict[str, Any]], budget: int | None, instructions: str = ""
) -> None:
    """Assert that chat messages are a valid request within a budget."""
    system = [{"role": "system", "content": instructions}] if instructions else []
    payload: dict[str, Any] = {"messages": [*system, *messages]}
    assert judge.chat(payload) == []
    if budget is not None:
        assert _CODEC.count(payload).upper_bound <= budget
