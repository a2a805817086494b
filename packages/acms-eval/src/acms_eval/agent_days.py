"""Days of an agent with tools: it looks things up, is told facts, is corrected, and is asked about all of it later.

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
"""The start of a call that a model wrote as text; the chat templates of some models teach them to double its braces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """The script of one day, as it is written in `data/days.json`."""

    name: str
    instructions: str
    #: Tools of the chat format.
    tools: tuple[Mapping[str, Any], ...]
    #: The text that a tool returns, by the tool and then by the value of its argument.
    outputs: Mapping[str, Mapping[str, str]]
    #: Of each turn: `user`, the message; `call`, the needed tool and its argument, where one is needed; `expected` and
    #: `forbidden` words of the answer, where it is graded.
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
    """Return the days that this package holds."""
    text = (files("acms_eval") / "data" / "days.json").read_text(encoding="utf-8")
    return [
        Day(
            name=record["name"],
            instructions=record["instructions"],
            tools=tuple(record["tools"]),
            outputs=record["outputs"],
            turns=tuple(record["turns"]),
        )
        for record in json.loads(text)
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
    day_turns: list[DayTurn] = []
    codec = OpenAIChat(model)
    async with ACMS(day.name, open_storage("memory://"), None) as session:
        for number, turn in enumerate(day.turns):
            if progress is not None:
                progress(day.name, number, len(day.turns))
            sent_at = _MORNING + timedelta(minutes=20 * number)
            await session.ingest("user", turn["user"], created_at=sent_at)
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
                tool_calls = _read_calls(reply, day)
                if not tool_calls:
                    answer = reply.text
                    break
                calls += [(name, _only_argument(arguments)) for name, arguments in tool_calls]
                await _store_calls(session, day, tool_calls, f"call_{number}_{attempt}", sent_at)
            if answer:
                await session.ingest("assistant", answer, created_at=sent_at)
            day_turns.append(
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
    return day_turns


def count_days(turns: Sequence[DayTurn]) -> dict[str, dict[str, int]]:
    """Return by day: tools called of those needed, answers right of those graded, requests, and those over budget."""
    counts: dict[str, dict[str, int]] = {}
    for turn in turns:
        day_counts = counts.setdefault(turn.day, dict.fromkeys(_COUNTS, 0))
        day_counts["called"] += turn.called is True
        day_counts["needed"] += turn.called is not None
        day_counts["right"] += turn.right is True
        day_counts["graded"] += turn.right is not None
        day_counts["requests"] += turn.requests
        day_counts["over budget"] += turn.over_budget
    return counts


_COUNTS = ("called", "needed", "right", "graded", "requests", "over budget")


def _read_calls(reply: Reply, day: Day) -> list[tuple[str, dict[str, Any]]]:
    """Return the tools that a reply calls, with their arguments.

    Small models often write a call as JSON in their text; a reply that is nothing else is taken as that call.
    """
    calls: Iterable[Any] = [call["function"] for call in reply.calls]
    if not reply.calls and (call_start := _WRITTEN_CALL.match(reply.text)):
        calls = [_parse_object(reply.text[call_start.end() :])]
    known_calls: list[tuple[str, dict[str, Any]]] = []
    for call in calls:
        arguments = call.get("arguments")
        if isinstance(arguments, str):
            arguments = _parse_object(arguments)
        if call.get("name") in day.outputs and isinstance(arguments, dict):
            known_calls.append((call["name"], arguments))
    return known_calls


def _parse_object(text: str) -> dict[str, Any]:
    """Return the JSON object that a text begins with, or an empty one."""
    try:
        document, _ = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _only_argument(arguments: Mapping[str, Any]) -> str:
    """Return the value of the argument; every tool of `data/days.json` takes exactly one."""
    return str(next(iter(arguments.values()), ""))


async def _store_calls(
    session: ACMS, day: Day, calls: Sequence[tuple[str, dict[str, Any]]], id: str, sent_at: datetime
) -> None:
    """Store calls and their results."""
    chat_calls = [
        {
            "id": f"{id}_{place}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for place, (name, arguments) in enumerate(calls)
    ]
    await session.ingest({"role": "assistant", "content": None, "tool_calls": chat_calls}, created_at=sent_at)
    for call, (name, arguments) in zip(chat_calls, calls, strict=True):
        value = _only_argument(arguments)
        output = day.outputs[name].get(value, f"nothing is known of {value!r}")
        result = {"role": "tool", "tool_call_id": call["id"], "content": output}
        await session.ingest(result, created_at=sent_at)


def _is_right(answer: str, turn: Mapping[str, Any]) -> bool:
    expected = all(carries(answer, word) for word in turn["expected"])
    outdated = any(carries(answer, word) for word in turn.get("forbidden", ()))
    return expected and not outdated
