"""Trajectories of OpenHands: a list of events, or the `history` of an evaluation's output.

An action is a message or a call, an observation is its result. Calls that one answer of the model made become one
message. Events of the older format have `action` or `observation`, those of the software agent SDK have `kind`.
State changes of the agent and its recall events are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from acms.branches.importers.conversation import (
    Conversation,
    as_mapping,
    as_mapping_list,
    make_result_parts,
    make_tool_call,
    make_turn,
    text_of,
)
from acms.branches.importers.shapes import any_of, has_value, is_list, is_object, is_text
from acms.branches.importers.source import Source
from acms.log.foreign import Turn
from acms.model import Json

__all__ = ["SHAPES", "read_openhands"]

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
_SILENT = frozenset(
    ("change_agent_state", "agent_state_changed", "null", "recall", "pause", "resume", "condensation")
)


def read_openhands(source: Source) -> Iterator[Conversation]:
    """Read the conversation of a trajectory, or of each run of an evaluation."""
    events: list[Turn] = []
    for number, (_, value) in enumerate(source.records()):
        record = as_mapping(value)
        if isinstance(record.get("history"), list):
            run = f"{source.stem}-{record.get('instance_id', number)}"
            yield Conversation(id=run, messages=_translate_events(as_mapping_list(record["history"]), source))
        else:
            events += [turn for turn in [_translate_event(record, f"{number}", source)] if turn is not None]
    if events:
        yield Conversation(id=source.stem, messages=_merge_calls(events))


def _translate_events(events: list[Mapping[str, Json]], source: Source) -> list[Turn]:
    turns = [_translate_event(event, f"{number}", source) for number, event in enumerate(events)]
    return _merge_calls([turn for turn in turns if turn is not None])


def _merge_calls(turns: list[Turn]) -> list[Turn]:
    """Join the calls that one answer of the model made, and put their results behind them."""
    merged: list[Turn] = []
    by_answer: dict[str, Turn] = {}
    for turn in turns:
        answer = turn.pop("answer", None)
        first = by_answer.get(answer) if answer else None
        if first is None:
            merged.append(turn)
            if answer:
                by_answer[answer] = turn
        else:
            first["parts"] = [*first["parts"], *turn["parts"]]
    return merged


def _translate_event(event: Mapping[str, Json], place: str, source: Source) -> Turn | None:
    """Translate an event, or return None for one that is no part of the conversation."""
    key, at = str(event.get("id", place)), event.get("timestamp")
    kind = str(event.get("kind") or event.get("action") or event.get("observation"))
    if kind in _SILENT:
        source.skip(f"events of the type {kind}")
        return None
    turn = _sdk_turn(event, key, at) if "kind" in event else _classic_turn(event, key, at)
    if turn is None:
        source.skip(f"events of the type {kind}")
    return turn


# ── OpenHands up to 1.0 ─────────────────────────────────────────────────────────────────────────────────────────────


def _classic_turn(event: Mapping[str, Json], key: str, at: Json) -> Turn | None:
    args, metadata = as_mapping(event.get("args")), as_mapping(event.get("tool_call_metadata"))
    if "observation" in event:
        id = metadata.get("tool_call_id") or f"event-{event.get('cause')}"
        failed = event["observation"] == "error"
        return make_turn(
            "tool", key=key, at=at, parts=make_result_parts(id, event.get("content"), is_error=failed)
        )
    if event.get("action") == "system":
        return make_turn("system", text_of(args.get("content")), key=key, at=at)
    if event.get("source") == "user":
        return make_turn("user", text_of(args.get("content") or event.get("message")), key=key, at=at)
    response = as_mapping(metadata.get("model_response"))
    details = {"model": response.get("model"), "usage": response.get("usage")}
    if event.get("action") in ("message", "finish") and not metadata:
        text = text_of(args.get("content") or args.get("final_thought") or args.get("thought"))
        return make_turn("assistant", text, key=key, at=at, details=details)
    id = metadata.get("tool_call_id") or f"event-{event.get('id')}"
    name = metadata.get("function_name") or event.get("action")
    made = make_tool_call(id, name, _find_arguments(response, id) or _own_arguments(args))
    turn = make_turn("assistant", text_of(args.get("thought")), key=key, at=at, parts=[made], details=details)
    return {**turn, "answer": response.get("id")}


def _find_arguments(response: Mapping[str, Json], id: Json) -> Json:
    """Return the arguments of a call as the model wrote them."""
    for choice in as_mapping_list(response.get("choices")):
        for one in as_mapping_list(as_mapping(choice.get("message")).get("tool_calls")):
            if one.get("id") == id:
                return as_mapping(one.get("function")).get("arguments")
    return None


def _own_arguments(args: Mapping[str, Json]) -> Json:
    return {name: value for name, value in args.items() if name != "thought" and value not in (None, "")}


# ── the software agent SDK ──────────────────────────────────────────────────────────────────────────────────────────


def _sdk_turn(event: Mapping[str, Json], key: str, at: Json) -> Turn | None:
    match event.get("kind"):
        case "SystemPromptEvent":
            return make_turn(
                "system", text_of([dict(as_mapping(event.get("system_prompt")))]), key=key, at=at
            )
        case "MessageEvent":
            message = as_mapping(event.get("llm_message"))
            role = str(message.get("role") or "user")
            return make_turn(role, text_of(message.get("content")), key=key, at=at)
        case "ActionEvent":
            made = as_mapping(event.get("tool_call"))
            arguments = made.get("arguments") or as_mapping(made.get("function")).get("arguments")
            parts = [
                make_tool_call(
                    event.get("tool_call_id"), event.get("tool_name"), arguments or event.get("action")
                )
            ]
            turn = make_turn("assistant", text_of(event.get("thought")), key=key, at=at, parts=parts)
            return {**turn, "answer": event.get("llm_response_id")}
        case "ObservationEvent":
            seen = as_mapping(event.get("observation"))
            output = seen.get("content") or seen.get("output") or dict(seen)
            answer = make_result_parts(
                event.get("tool_call_id"), output, is_error=seen.get("is_error") is True
            )
            return make_turn("tool", key=key, at=at, parts=answer)
        case "AgentErrorEvent":
            answer = make_result_parts(event.get("tool_call_id"), event.get("error"), is_error=True)
            return make_turn("tool", key=key, at=at, parts=answer)
        case _:
            return None
