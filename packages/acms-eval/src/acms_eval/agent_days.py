"""Days of an agent with tools: it looks things up, is told things, is corrected, and is asked about all of it later.

The model itself decides what to call; the tools answer from a table. Every request is the default prompt of a growing
session within `BUDGET` tokens, by the count that the session learns from the server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import Any

from acms.errors import FitError
from acms.prompt import Prompt
from acms.providers.codecs import OpenAIChat
from acms.providers.http import Endpoint
from acms.session import ACMS
from acms.storage import open_storage
from acms_eval.answers import Reply, complete_chat
from acms_eval.metrics import carries

__all__ = ["BUDGET", "Day", "DayTurn", "count_days", "load_days", "run_day"]

BUDGET = 800
"""Tokens of a request, tools included: about half of what a whole day takes."""
_ROUNDS = 3
"""Requests of one turn: two calls of tools after one another, and the answer."""
_MORNING = datetime(2026, 3, 2, 9, tzinfo=UTC)
_WRITTEN_CALL = re.compile(r"\A(?:```(?:json)?|<tool_call>)?[\s{]*(?=\{\s*\"name\")")
"""What stands before a call in a text; templates teach some models to write its braces twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """What happens in a day, as `data/days.json` has it."""

    name: str
    instructions: str
    #: Tools of the chat format.
    tools: tuple[Mapping[str, Any], ...]
    #: By tool, then by the value of its argument: what it returns.
    outputs: Mapping[str, Mapping[str, str]]
    #: `user`; `call`, a tool and its argument, where one is needed; `expected` and `forbidden` words of the answer.
    turns: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DayTurn:
    """What an agent did in one turn."""

    day: str
    user: str
    #: Empty when the model only called tools, or no request fits the budget.
    answer: str
    #: Whether the tool that was needed was called with its argument; None where none was needed.
    called: bool | None
    #: Whether the answer names what was expected and nothing outdated; None for a turn that is not graded.
    right: bool | None
    requests: int
    #: Requests whose tokens by the server's count exceed the budget.
    over_budget: int


def load_days() -> list[Day]:
    """Return the days that come along."""
    text = (files("acms_eval") / "data" / "days.json").read_text(encoding="utf-8")
    return [
        Day(
            name=one["name"],
            instructions=one["instructions"],
            tools=tuple(one["tools"]),
            outputs=one["outputs"],
            turns=tuple(one["turns"]),
        )
        for one in json.loads(text)
    ]


async def run_day(
    endpoint: Endpoint,
    model: str,
    day: Day,
    *,
    budget: int = BUDGET,
    max_tokens: int = 64,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[DayTurn]:
    """Let a model live through a day, and return what it did in every turn."""
    done: list[DayTurn] = []
    codec = OpenAIChat(model)
    async with ACMS(day.name, open_storage("memory://"), None) as session:
        for number, turn in enumerate(day.turns):
            if progress is not None:
                progress(day.name, number, len(day.turns))
            now = _MORNING + timedelta(minutes=20 * number)
            await session.ingest("user", turn["user"], created_at=now)
            prompt = Prompt(codec).system(day.instructions).tools(day.tools).history(session)
            prompt = prompt.recall(session, turn["user"])
            calls: list[tuple[str, str]] = []
            answer, requests, over_budget = "", 0, 0
            for attempt in range(_ROUNDS):
                try:
                    rendered = await prompt.render(budget=budget)
                except FitError:  # the turn stays without an answer
                    break
                reply = await complete_chat(endpoint, model, rendered.payload, max_tokens=max_tokens)
                requests += 1
                over_budget += reply.prompt_tokens > budget
                if reply.usage is not None:
                    rendered.report(reply.usage)
                asked = _read_calls(reply, day)
                if not asked:
                    answer = reply.text
                    break
                calls += [(name, _argument(arguments)) for name, arguments in asked]
                await _store_calls(session, day, asked, f"call_{number}_{attempt}", now)
            if answer:
                await session.ingest("assistant", answer, created_at=now)
            done.append(
                DayTurn(
                    day=day.name,
                    user=turn["user"],
                    answer=answer,
                    called=tuple(turn["call"]) in calls if "call" in turn else None,
                    right=_is_right(answer, turn) if "expected" in turn else None,
                    requests=requests,
                    over_budget=over_budget,
                )
            )
    return done


def count_days(turns: Sequence[DayTurn]) -> dict[str, dict[str, int]]:
    """Return by day: tools called of those needed, answers right of those graded, requests, and those over budget."""
    counts: dict[str, dict[str, int]] = {}
    for turn in turns:
        one = counts.setdefault(turn.day, dict.fromkeys(_COUNTS, 0))
        one["called"] += turn.called is True
        one["needed"] += turn.called is not None
        one["right"] += turn.right is True
        one["graded"] += turn.right is not None
        one["requests"] += turn.requests
        one["over budget"] += turn.over_budget
    return counts


_COUNTS = ("called", "needed", "right", "graded", "requests", "over budget")


def _read_calls(reply: Reply, day: Day) -> list[tuple[str, dict[str, Any]]]:
    """Return the tools that a reply calls, with their arguments.

    Small models often write a call as JSON in their text; a reply that is nothing else is taken as that call.
    """
    calls: Iterable[Any] = [call["function"] for call in reply.calls]
    if not reply.calls and (before := _WRITTEN_CALL.match(reply.text)):
        calls = [_parse_object(reply.text[before.end() :])]
    found: list[tuple[str, dict[str, Any]]] = []
    for call in calls:
        arguments = call.get("arguments")
        if isinstance(arguments, str):
            arguments = _parse_object(arguments)
        if call.get("name") in day.outputs and isinstance(arguments, dict):
            found.append((call["name"], arguments))
    return found


def _parse_object(text: str) -> dict[str, Any]:
    """Return the JSON object that a text begins with, or an empty one."""
    try:
        found, _ = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _argument(arguments: Mapping[str, Any]) -> str:
    """Return the value of the only argument."""
    return str(next(iter(arguments.values()), ""))


async def _store_calls(
    session: ACMS, day: Day, calls: Sequence[tuple[str, dict[str, Any]]], id: str, now: datetime
) -> None:
    """Store calls and their results."""
    made = [
        {
            "id": f"{id}_{place}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for place, (name, arguments) in enumerate(calls)
    ]
    await session.ingest({"role": "assistant", "content": None, "tool_calls": made}, created_at=now)
    for call, (name, arguments) in zip(made, calls, strict=True):
        value = _argument(arguments)
        output = day.outputs[name].get(value, f"nothing is known of {value!r}")
        result = {"role": "tool", "tool_call_id": call["id"], "content": output}
        await session.ingest(result, created_at=now)


def _is_right(answer: str, turn: Mapping[str, Any]) -> bool:
    expected = all(carries(answer, word) for word in turn["expected"])
    outdated = any(carries(answer, word) for word in turn.get("forbidden", ()))
    return expected and not outdated
