"""Rollouts of Codex: `~/.codex/sessions/…/rollout-*.jsonl`, one item a line.

`response_item` lines are the conversation as the model had it: messages, calls and outputs of the Responses API.
Events repeat it for the screen and are not read. Reasoning keeps its summary; its encrypted content belongs to the
account that made it. Calls of custom, local and provider-defined tools become calls of functions. Rollouts before
September 2025 have the items without an envelope.
"""

from __future__ import annotations

from collections.abc import Iterator

from acms.branches.importers.conversation import (
    Conversation,
    Record,
    find_value,
    join_call,
    make_result_parts,
    make_tool_call,
    make_turn,
    parse_turns,
    record_at,
    records_at,
    text_of,
)
from acms.branches.importers.shapes import any_of, has_value, is_object
from acms.branches.importers.source import Source
from acms.log.native_items import read_call, read_result
from acms.log.provider_messages import Turn
from acms.model import Json, Part, Reasoning

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
    rollout = _Rollout(source.stem)
    for number, line in enumerate(source.records()):
        kind, payload = _unwrap_line(line)
        if kind == "session_meta":
            rollout.id = str(payload.get("id") or rollout.id)
        elif kind == "turn_context":
            rollout.model = payload.get("model") or rollout.model
        elif kind == "event_msg" and payload.get("type") == "token_count" and rollout.pending is not None:
            rollout.add_usage(find_value(payload, "info.last_token_usage"))
        elif kind != "response_item":
            source.skip(f"lines of the type {kind}")
        elif payload.get("type") == "reasoning":
            rollout.thoughts += _read_reasoning(payload)
        else:
            turn = rollout.translate_item(payload, number, line.get("timestamp"))
            if turn is None:
                source.skip(_reason_to_skip(payload))
            else:
                yield from rollout.add_turn(turn)
    if rollout.pending is not None:
        yield Conversation(id=rollout.id, messages=[rollout.pending])


class _Rollout:
    """The state of a rollout while its lines arrive."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.model: Json = None
        #: Reasoning that belongs to the next message of the assistant.
        self.thoughts: list[Part] = []
        #: The last message, which calls and token usage may still be added to.
        self.pending: Turn | None = None

    def add_usage(self, usage: Json) -> None:
        if usage and self.pending is not None:
            self.pending["metadata"] = {**self.pending.get("metadata", {}), "usage": usage}

    def add_turn(self, turn: Turn) -> Iterator[Conversation]:
        """Add a message, or join it to the pending one; yield the pending message if it is complete now."""
        self.thoughts = []
        joined_turn = None if self.pending is None else join_call(self.pending, turn)
        if joined_turn is None and self.pending is not None:
            yield Conversation(id=self.id, messages=[self.pending])
        self.pending = joined_turn or turn

    def translate_item(self, item: Record, number: int, created_at: Json) -> Turn | None:
        """Translate an item, or return None for one that is no part of the conversation."""
        key = f"{self.id}:{number}"
        id = item.get("call_id") or item.get("id")
        match item.get("type"):
            case "message":
                return self._translate_message(item, key, created_at)
            case "function_call":
                call: Part = make_tool_call(id, item.get("name"), item.get("arguments"))
            case "custom_tool_call":
                call = make_tool_call(id, item.get("name"), {"input": item.get("input")})
            case "local_shell_call":
                call = make_tool_call(id, "local_shell", item.get("action"))
            case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
                output = item.get("output")
                if isinstance(output, dict):  # the envelope of older versions
                    output = output.get("content", output)
                return make_turn("tool", key=key, created_at=created_at, parts=make_result_parts(id, output))
            case _:
                result = read_result(item)
                if result is not None:
                    return make_turn("tool", key=key, created_at=created_at, parts=result[:1])
                native_call = read_call(item)
                if native_call is None:
                    return None
                call = native_call[0]
        parts = [*self.thoughts, call]
        return make_turn(
            "assistant", key=key, created_at=created_at, parts=parts, details={"model": self.model}
        )

    def _translate_message(self, item: Record, key: str, created_at: Json) -> Turn | None:
        """Translate a message; None for an empty one, or one that Codex wrote in the name of the user."""
        role = str(item.get("role"))
        is_answer = role == "assistant"
        texts = [block.get("text") for block in records_at(item, "content")]
        if not is_answer and text_of([text for text in texts if text]).lstrip().startswith(_CONTEXT):
            return None
        base = make_turn(
            role, key=key, created_at=created_at, details={"model": self.model if is_answer else None}
        )
        (turn,) = parse_turns({"role": role, "content": item.get("content")}, base)
        if not (turn.get("content") or turn.get("parts")):
            return None
        if is_answer and self.thoughts:
            turn["parts"] = [*self.thoughts, *turn.get("parts", ())]
        return turn


def _unwrap_line(line: Record) -> tuple[str, Record]:
    """Return the type and the payload of a line; lines of older rollouts have no envelope."""
    kind = line.get("type")
    if kind in _ITEMS:
        return "response_item", line
    if kind is not None:
        return str(kind), record_at(line, "payload")
    if line.get("id"):
        return "session_meta", line
    return "state", line


def _reason_to_skip(item: Record) -> str:
    if item.get("type") == "message":
        return "messages of the program itself"
    return f"items of the type {item.get('type')}"


def _read_reasoning(item: Record) -> Iterator[Part]:
    for block in (*records_at(item, "summary"), *records_at(item, "content")):
        text = block.get("text")
        if isinstance(text, str) and text:
            yield Reasoning(text)
