"""Rollouts of Codex: `~/.codex/sessions/…/rollout-*.jsonl`, one item a line.

`response_item` lines are the conversation as the model had it: messages, calls and outputs of the Responses API.
Events repeat it for the screen and are not read. Reasoning keeps its summary; its encrypted content belongs to the
account that made it. Calls of custom and local tools become calls of functions. Rollouts before September 2025 have
the items without an envelope.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from acms.branches.importers.conversation import (
    Conversation,
    as_mapping,
    as_mapping_list,
    join_call,
    make_result_parts,
    make_tool_call,
    make_turn,
    text_of,
)
from acms.branches.importers.shapes import any_of, has_value, is_object
from acms.branches.importers.source import Source
from acms.log import foreign
from acms.log.foreign import Turn
from acms.log.repair import refer_by_hash
from acms.model import Json, Part, Reasoning

__all__ = ["SHAPES", "read_codex"]

_KINDS = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
SHAPES = (
    (any_of("type", *_KINDS), is_object("payload"), has_value("timestamp")),
    (any_of("record_type", "state"),),
)
_ITEMS = frozenset(
    "message reasoning function_call function_call_output custom_tool_call custom_tool_call_output"
    " local_shell_call".split()
)
"""Types of lines in rollouts without an envelope."""
_CONTEXT = (
    "<environment_context>",
    "<user_instructions>",
    "<permissions instructions>",
    "# AGENTS.md instructions",
)
"""How messages begin that Codex writes in the name of the user or developer."""


def read_codex(source: Source) -> Iterator[Conversation]:
    """Read the conversation of a rollout, a message at a time."""
    id = source.stem
    model: Json = None
    thoughts: list[Part] = []
    pending: Turn | None = None
    for number, (_, value) in enumerate(source.records()):
        line = as_mapping(value)
        kind, payload = _unwrap_line(line)
        if kind == "session_meta":
            id = str(payload.get("id") or id)
        elif kind == "turn_context":
            model = payload.get("model") or model
        elif kind == "event_msg" and payload.get("type") == "token_count" and pending is not None:
            usage = as_mapping(payload.get("info")).get("last_token_usage")
            if usage:
                pending["metadata"] = {**pending.get("metadata", {}), "usage": usage}
        elif kind != "response_item":
            source.skip(f"lines of the type {kind}")
        elif payload.get("type") == "reasoning":
            thoughts += _read_reasoning(payload)
        else:
            turn = _translate_item(payload, f"{id}:{number}", line.get("timestamp"), model, thoughts)
            if turn is None:
                source.skip(_reason_to_skip(payload))
                continue
            thoughts = []
            merged = None if pending is None else join_call(pending, turn)
            if merged is None and pending is not None:
                yield Conversation(id=id, messages=[pending])
            pending = merged or turn
    if pending is not None:
        yield Conversation(id=id, messages=[pending])


def _unwrap_line(line: Mapping[str, Json]) -> tuple[str, Mapping[str, Json]]:
    """Return the type and the payload of a line; lines of older rollouts have no envelope."""
    kind = line.get("type")
    if kind in _ITEMS:
        return "response_item", line
    if kind is None:
        return ("session_meta", line) if line.get("id") else ("state", line)
    return str(kind), as_mapping(line.get("payload"))


def _reason_to_skip(item: Mapping[str, Json]) -> str:
    if item.get("type") == "message":
        return "messages of the program itself"
    return f"items of the type {item.get('type')}"


def _read_reasoning(item: Mapping[str, Json]) -> Iterator[Part]:
    for one in (*as_mapping_list(item.get("summary")), *as_mapping_list(item.get("content"))):
        if isinstance(one.get("text"), str) and one["text"]:
            yield Reasoning(one["text"])


def _translate_item(
    item: Mapping[str, Json], key: str, at: Json, model: Json, thoughts: list[Part]
) -> Turn | None:
    """Translate an item, or return None for one that says nothing."""
    kind, id = item.get("type"), item.get("call_id") or item.get("id")
    base: dict[str, Any] = {"key": key, "at": at}
    match kind:
        case "message":
            return _translate_message(item, base, model, thoughts)
        case "function_call":
            calls = make_tool_call(id, item.get("name"), item.get("arguments"))
        case "custom_tool_call":
            calls = make_tool_call(id, item.get("name"), {"input": item.get("input")})
        case "local_shell_call":
            calls = make_tool_call(id, "local_shell", item.get("action"))
        case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
            return make_turn("tool", parts=make_result_parts(id, _unwrap_output(item.get("output"))), **base)
        case _:
            return None
    return make_turn("assistant", parts=[*thoughts, calls], **base, details={"model": model})


def _translate_message(
    item: Mapping[str, Json], base: dict[str, Any], model: Json, thoughts: list[Part]
) -> Turn | None:
    role = str(item.get("role"))
    text = text_of([one.get("text") for one in as_mapping_list(item.get("content")) if one.get("text")])
    if role != "assistant" and text.lstrip().startswith(_CONTEXT):
        return None
    given = {"role": role, "content": item.get("content")}
    (turn,) = foreign.parse_provider_message(given, keep=refer_by_hash)
    if not (turn.get("content") or turn.get("parts")):
        return None
    own = make_turn(role, **base, details={"model": model if role == "assistant" else None})
    if role == "assistant" and thoughts:
        turn["parts"] = [*thoughts, *turn.get("parts", ())]
    return {**own, **turn}


def _unwrap_output(output: Json) -> Json:
    """Return the text of a tool's output, without the envelope that older versions put around it."""
    return output.get("content", output) if isinstance(output, dict) else output
