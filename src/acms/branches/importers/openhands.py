"""Trajectories of OpenHands: a list of events, or the `history` of an evaluation's output.

An action is a message or a call, an observation is its result. Calls that one answer of the model made become one
message. Events of the older format have `action` or `observation`, those of the software agent SDK have `kind`.
State changes of the agent and its recall events are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from acms.branches.importers.conversation import (
    Conversation,
    Record,
    find_value,
    make_result_parts,
    make_tool_call,
    make_turn,
    record_at,
    records_at,
    text_of,
)
from acms.branches.importers.shapes import any_of, has_value, is_list, is_object, is_text
from acms.branches.importers.source import Source
from acms.log.provider_messages import Turn
from acms.model import Json

_KINDS = ("MessageEvent", "ActionEvent", "ObservationEvent", "SystemPromptEvent", "AgentErrorEvent")
SHAPES = (
    (any_of("source", "user", "agent", "environment"), is_text("action"), is_object("args")),
    (
        any_of("source", "user", "agent", "environment"),
        is_text("observation"),
        has_value("content"),
        has_value("extras"),
    ),
    (any_of("kind", *_KINDS), has_value("source"), has_value("timestamp")),
    (is_list("history"), has_value("history.0.source"), has_value("instance_id")),
)
_SKIPPED = frozenset(
    ("change_agent_state", "agent_state_changed", "null", "recall", "pause", "resume", "condensation")
)


def read_openhands(source: Source) -> Iterator[Conversation]:
    """Read the conversation of a trajectory, or of each run of an evaluation."""
    trajectory = _Trajectory(source)
    for number, record in enumerate(source.records()):
        if not isinstance(record.get("history"), list):
            trajectory.add(record, number)
            continue
        run = _Trajectory(source)
        for index, event in enumerate(records_at(record, "history")):
            run.add(event, index)
        yield Conversation(id=f"{source.stem}-{record.get('instance_id', number)}", messages=run.turns)
    if trajectory.turns:
        yield Conversation(id=source.stem, messages=trajectory.turns)


class _Trajectory:
    """The messages of one run while its events arrive."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.turns: list[Turn] = []
        #: The message of each answer of the model, by the id of the answer.
        self._answers: dict[Json, Turn] = {}

    def add(self, event: Record, position: int) -> None:
        """Add an event; the calls of one answer become one message."""
        kind = str(event.get("kind") or event.get("action") or event.get("observation"))
        base: dict[str, Any] = {"key": str(event.get("id", position)), "created_at": event.get("timestamp")}
        turn = None
        if kind not in _SKIPPED:
            turn = _translate_sdk(event, base) if "kind" in event else _translate_classic(event, base)
        if turn is None:
            self._source.skip(f"events of the type {kind}")
            return
        answer_id = None
        if turn["role"] == "assistant" and turn.get("parts"):
            answer_id = event.get("llm_response_id")
            answer_id = answer_id or find_value(event, "tool_call_metadata.model_response.id")
        if answer_id in self._answers:
            answer = self._answers[answer_id]
            answer["parts"] = [*answer["parts"], *turn["parts"]]
            return
        if answer_id:
            self._answers[answer_id] = turn
        self.turns.append(turn)


# ── OpenHands up to 1.0 ─────────────────────────────────────────────────────────────────────────────────────────────


def _translate_classic(event: Record, base: dict[str, Any]) -> Turn | None:
    """Translate an event of OpenHands up to 1.0: an observation, a message, or an action as a call of a tool."""
    args, metadata = record_at(event, "args"), record_at(event, "tool_call_metadata")
    action = event.get("action")
    if "observation" in event:
        id = metadata.get("tool_call_id") or f"event-{event.get('cause')}"
        is_error = event["observation"] == "error"
        return make_turn("tool", parts=make_result_parts(id, event.get("content"), is_error=is_error), **base)
    if action == "system":
        return make_turn("system", text_of(args.get("content")), **base)
    if event.get("source") == "user":
        return make_turn("user", text_of(args.get("content") or event.get("message")), **base)
    response = record_at(metadata, "model_response")
    details = {"model": response.get("model"), "usage": response.get("usage")}
    if action in ("message", "finish") and not metadata:
        text = text_of(args.get("content") or args.get("final_thought") or args.get("thought"))
        return make_turn("assistant", text, details=details, **base)
    id = metadata.get("tool_call_id") or f"event-{event.get('id')}"
    name = metadata.get("function_name") or action
    call = make_tool_call(id, name, _arguments_of_call(response, id) or _arguments_of_event(args))
    return make_turn("assistant", text_of(args.get("thought")), parts=[call], details=details, **base)


def _arguments_of_call(response: Record, id: Json) -> Json:
    """Return the arguments of a call as the model wrote them."""
    for choice in records_at(response, "choices"):
        for call in records_at(choice, "message.tool_calls"):
            if call.get("id") == id:
                return find_value(call, "function.arguments")
    return None


def _arguments_of_event(args: Record) -> Json:
    return {name: value for name, value in args.items() if name != "thought" and value not in (None, "")}


# ── the software agent SDK ──────────────────────────────────────────────────────────────────────────────────────────


def _translate_sdk(event: Record, base: dict[str, Any]) -> Turn | None:
    """Translate an event of the SDK, or return None for one that is no part of the conversation."""
    call_id = event.get("tool_call_id")
    match event.get("kind"):
        case "SystemPromptEvent":
            return make_turn("system", text_of([record_at(event, "system_prompt")]), **base)
        case "MessageEvent":
            message = record_at(event, "llm_message")
            role = str(message.get("role") or "user")
            return make_turn(role, text_of(message.get("content")), **base)
        case "ActionEvent":
            arguments = (
                find_value(event, "tool_call.arguments")
                or find_value(event, "tool_call.function.arguments")
                or event.get("action")
            )
            call = make_tool_call(call_id, event.get("tool_name"), arguments)
            return make_turn("assistant", text_of(event.get("thought")), parts=[call], **base)
        case "ObservationEvent":
            observation = record_at(event, "observation")
            output = observation.get("content") or observation.get("output") or observation
            is_error = observation.get("is_error") is True
            return make_turn("tool", parts=make_result_parts(call_id, output, is_error=is_error), **base)
        case "AgentErrorEvent":
            answer = make_result_parts(call_id, event.get("error"), is_error=True)
            return make_turn("tool", parts=answer, **base)
        case _:
            return None
