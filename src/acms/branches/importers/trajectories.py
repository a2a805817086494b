"""Trajectories of benchmarks: SWE-agent and mini-SWE-agent (`.traj`), tau-bench and tau2-bench (`.json`).

Their messages are those of Chat Completions with fields of their own, which are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from acms.branches.importers.conversation import (
    Conversation,
    Record,
    as_mapping,
    find_value,
    make_turn,
    parse_turns,
    records_at,
    text_of,
)
from acms.branches.importers.shapes import has_value, is_list, is_object, is_text
from acms.branches.importers.source import Source
from acms.errors import ValidationError
from acms.log.provider_messages import Turn
from acms.model import EMPTY, Json, Origin

SWE_AGENT = (
    (is_list("history"), is_list("trajectory")),
    (is_list("trajectory"), is_text("trajectory.0.observation"), has_value("trajectory.0.response")),
    (is_text("trajectory_format"), is_list("messages")),
)
TAU_BENCH = (
    (has_value("task_id"), is_list("traj")),
    (is_list("simulations"), has_value("simulations.0.task_id"), is_list("simulations.0.messages")),
    (has_value("task_id"), is_list("messages"), is_object("reward_info")),
)
_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "refusal", "function_call")


def read_chat_message(
    message: Record, *, key: str, created_at: Json = None, details: Record = EMPTY
) -> list[Turn]:
    """Translate a message of Chat Completions; fields that it has besides are left out."""
    fields: dict[str, Any] = {"content": ""}
    for name in _FIELDS:
        if message.get(name) is not None:
            fields[name] = message[name]
    if fields["role"] == "tool":  # the name of the tool: a result names its call instead
        fields.pop("name", None)
    return parse_turns(
        fields, make_turn(str(fields["role"]), key=key, created_at=created_at, details=details)
    )


# ── SWE-agent ───────────────────────────────────────────────────────────────────────────────────────────────────────


def read_swe_agent(source: Source) -> Iterator[Conversation]:
    """Read each run of a file."""
    for number, run in enumerate(source.records()):
        messages = records_at(run, "history") or records_at(run, "messages")
        model = (
            find_value(run, "info.config.model.model_name")
            or find_value(run, "info.model_name")
            or run.get("model")
        )
        turns: list[Turn] = []
        for index, message in enumerate(messages or _messages_of_steps(run)):
            if message.get("is_demo"):
                source.skip("demonstrations")
            else:
                turns += _translate_swe_agent(message, f"{index}", model)
        yield Conversation(id=f"{source.stem}-{number}" if number else source.stem, messages=turns)


def _messages_of_steps(run: Record) -> list[Record]:
    """Return the steps of a file without a history as messages."""
    messages: list[Record] = []
    for step in records_at(run, "trajectory"):
        messages.append({"role": "assistant", "content": step.get("response")})
        messages.append({"role": "user", "content": step.get("observation"), "message_type": "observation"})
    return messages


def _translate_swe_agent(message: Record, key: str, model: Json) -> list[Turn]:
    """Translate a message. An observation in the form of a user message gets the origin of a tool's result.

    Otherwise a tool's output would be trusted like the words of a user.
    """
    role = message.get("role")
    calls = message.get("tool_call_ids")
    if role == "tool" and isinstance(calls, list) and calls:
        message = {**message, "tool_call_id": calls[0]}
    created_at = message.get("timestamp") or find_value(message, "extra.timestamp")
    details = {"model": model if role == "assistant" else None}
    turns = read_chat_message(message, key=key, created_at=created_at, details=details)
    if role == "user" and message.get("message_type") == "observation":
        for turn in turns:
            turn["origin"] = Origin.TOOL.value
    return turns


# ── tau-bench ───────────────────────────────────────────────────────────────────────────────────────────────────────


def read_tau_bench(source: Source) -> Iterator[Conversation]:
    """Read each simulation of a file."""
    for run in _flatten_runs(value for _, value in source.located()):
        id = f"{source.stem}-{run.get('task_id')}"
        if run.get("trial") is not None:
            id = f"{id}-{run['trial']}"
        messages = records_at(run, "traj") or records_at(run, "messages")
        turns: list[Turn] = []
        for number, message in enumerate(messages):
            turns += _translate_tau(message, f"{number}", source)
        yield Conversation(id=id, messages=turns)


def _flatten_runs(values: Iterable[Json]) -> Iterator[Record]:
    for value in values:
        if isinstance(value, list):
            yield from _flatten_runs(value)
        elif "simulations" in as_mapping(value):
            yield from records_at(value, "simulations")
        else:
            yield as_mapping(value)


def _translate_tau(message: Record, key: str, source: Source) -> list[Turn]:
    """Translate a message; the tool calls of the simulated user are not part of the conversation."""
    role = message.get("role")
    if message.get("requestor") == "user" or (role == "user" and message.get("tool_calls")):
        source.skip("tool use of the simulated user")
        return []
    if role == "tool" and isinstance(message.get("tool_messages"), list):
        turns: list[Turn] = []
        for number, answer in enumerate(records_at(message, "tool_messages")):
            turns += _translate_tau(answer, f"{key}:{number}", source)
        return turns
    if role == "tool" and "tool_call_id" not in message:
        if not message.get("id"):
            raise ValidationError(
                "is a tool result without the id of its call", field=f"{source.name}: {key}"
            )
        message = {**message, "tool_call_id": message["id"], "content": text_of(message.get("content"))}
    details = {"usage": message.get("usage") if role == "assistant" else None}
    return read_chat_message(message, key=key, created_at=message.get("timestamp"), details=details)
