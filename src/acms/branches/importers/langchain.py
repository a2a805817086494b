"""Messages of LangChain in JSON, the state of a LangGraph thread, and runs of LangSmith.

A message is `messages_to_dict` (`type`, `data`), `dumpd` (`lc`, `kwargs`), or its fields. Of a state the channel
`messages` is read; of a list of states the newest. Of the runs of a trace the model calls are read, or the root run if
there are none. Each run repeats the earlier messages, which are read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from acms.branches.importers.conversation import (
    Conversation,
    Record,
    as_mapping,
    as_mapping_list,
    digest_text,
    find_value,
    make_result_parts,
    make_tool_call,
    make_turn,
    parse_turns,
    record_at,
    records_at,
    text_of,
)
from acms.branches.importers.documents import RecordSpan
from acms.branches.importers.repeats import Repeats
from acms.branches.importers.shapes import Field, Shape, any_of, has_value, is_list, is_object, is_text
from acms.branches.importers.source import Source
from acms.branches.importers.trajectories import read_chat_message
from acms.log.provider_messages import Turn
from acms.model import EMPTY, Json, Part

_ROLES = {
    "human": "user", "ai": "assistant", "system": "system", "tool": "tool", "developer": "developer",
    "HumanMessage": "user", "AIMessage": "assistant", "SystemMessage": "system", "ToolMessage": "tool",
    "HumanMessageChunk": "user", "AIMessageChunk": "assistant", "ToolMessageChunk": "tool",
    "function": "tool", "FunctionMessage": "tool",
}  # fmt: skip
_CALLS = ("tool_use", "tool_call", "function_call")
"""Parts of a content that repeat the calls in the form of a vendor."""


def _message_shapes(prefix: str) -> tuple[Shape, ...]:
    kind = any_of(f"{prefix}type", *_ROLES)
    fields: tuple[tuple[Field, ...], ...] = (
        (kind, is_object(f"{prefix}data"), has_value(f"{prefix}data.content")),
        (any_of(f"{prefix}lc", 1), is_list(f"{prefix}id"), has_value(f"{prefix}kwargs.content")),
        (kind, has_value(f"{prefix}content")),
    )
    return fields


MESSAGES = (*_message_shapes(""), *_message_shapes("messages.0."))
STATE = ((is_list("values.messages"), has_value("next")), (is_list("values.messages"), has_value("config")),
         (is_list("channel_values.messages"), has_value("channel_versions")))  # fmt: skip
LANGSMITH = ((is_text("run_type"), is_object("inputs"), has_value("id")),)


def read_messages(source: Source) -> Iterator[Conversation]:
    """Read a list of messages, or one message a line."""
    index = 0
    for record in source.records():
        messages = records_at(record, "messages") if "messages" in record else [record]
        for message in messages:
            yield Conversation(id=source.stem, messages=_translate_message(message, f"{index}"))
            index += 1


def read_states(source: Source) -> Iterator[Conversation]:
    """Read the newest state of each thread: a state holds all messages so far."""
    newest: dict[str, tuple[str, list[Turn]]] = {}
    for state in source.records():
        thread = find_value(state, "config.configurable.thread_id") or find_value(state, "metadata.thread_id")
        id = str(thread or source.stem)
        time = str(state.get("created_at") or state.get("ts") or "")
        if id in newest and newest[id][0] >= time:  # ISO times compare as text
            source.skip("older states of a thread")
            continue
        values = as_mapping(state.get("values") or state.get("channel_values"))
        turns: list[Turn] = []
        for index, message in enumerate(records_at(values, "messages")):
            turns += _translate_message(message, f"{index}")
        newest[id] = time, turns
    for id, (_, turns) in newest.items():
        yield Conversation(id=id, messages=turns)


# ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_fields(message: Record) -> tuple[str, Record]:
    """Return the kind and the fields of a message in any of its forms."""
    if isinstance(message.get("data"), Mapping):
        return str(message.get("type")), as_mapping(message["data"])
    if message.get("lc") == 1:
        path = message.get("id")
        kind = str(path[-1]) if isinstance(path, list) and path else ""
        return kind, record_at(message, "kwargs")
    return str(message.get("type")), message


def _translate_message(message: Record, position: str, *, created_at: Json = None) -> list[Turn]:
    """Translate a message; the key is its id, or its position if it has none."""
    if "role" in message and "type" not in message:
        return read_chat_message(message, key=position, created_at=created_at)
    kind, fields = _read_fields(message)
    role = _ROLES.get(kind) or str(fields.get("role") or kind)
    key = str(fields.get("id") or position)
    content = fields.get("content")
    if role == "tool":
        id = fields.get("tool_call_id") or f"call_{fields.get('name')}"
        answer = make_result_parts(id, content, is_error=fields.get("status") == "error")
        return [make_turn("tool", key=key, created_at=created_at, parts=answer)]
    calls = _read_calls(fields)
    if calls and isinstance(content, list):
        content = [part for part in content if find_value(part, "type") not in _CALLS]
    actor = fields.get("name") if role == "user" else None
    details = _read_details(fields) if role == "assistant" else EMPTY
    base = make_turn(role, key=key, created_at=created_at, actor=actor, details=details)
    turns = parse_turns({"role": role, "content": content or ""}, base)
    if calls:
        turns[-1]["parts"] = [*turns[-1].get("parts", ()), *calls]
    return turns


def _read_details(fields: Record) -> Record:
    """Return the model and the token usage of an answer."""
    response = record_at(fields, "response_metadata")
    return {
        "model": response.get("model_name") or response.get("model"),
        "usage": fields.get("usage_metadata") or response.get("token_usage"),
    }


def _read_calls(fields: Record) -> list[Part]:
    """Return the calls in LangChain's form, or if there are none those in OpenAI's form."""
    calls: list[Part] = []
    for call in records_at(fields, "tool_calls"):
        calls.append(make_tool_call(call.get("id"), call.get("name"), call.get("args")))
    if calls:
        return calls
    for call in records_at(fields, "additional_kwargs.tool_calls"):
        function = record_at(call, "function")
        calls.append(make_tool_call(call.get("id"), function.get("name"), function.get("arguments")))
    return calls


# ── LangSmith ───────────────────────────────────────────────────────────────────────────────────────────────────────

_THREADS = ("thread_id", "session_id", "conversation_id")
_MODEL = "llm"
"""The type of a run that calls a model."""


class _Run(NamedTuple):
    """A run as the first pass keeps it: its sort key and its position in the file."""

    start: str
    #: Decides between runs that start together.
    order: str
    span: RecordSpan
    trace: bytes
    kind: str


def read_runs(source: Source) -> Iterator[Conversation]:
    """Read the runs of each thread or trace in the order of their start.

    An export has the newest run first, so a first pass keeps where each run is, and a second one reads them in order.
    """
    runs, ids = _find_runs(source)
    repeats: dict[str, Repeats] = {}
    for run, value in zip(runs, source.load(run.span for run in runs), strict=True):
        id = ids[run.trace]
        record = as_mapping(value)
        messages = _translate_inputs(record) + _translate_outputs(record)
        turns = repeats.setdefault(id, Repeats()).take_new(messages)
        if turns:
            yield Conversation(id=id, messages=turns)


def _find_runs(source: Source) -> tuple[list[_Run], Mapping[bytes, str]]:
    """Return the runs to read, by their start, and the id of the thread of each trace (else of the trace itself).

    In a trace with calls of models only those are read, else its outermost run.
    """
    runs: list[_Run] = []
    ids: dict[bytes, str] = {}
    for span, value in source.located():
        record = as_mapping(value)
        kind = str(record.get("run_type"))
        trace = str(record.get("trace_id") or record.get("id"))
        digest = digest_text(trace)
        metadata = record_at(record, "extra.metadata")
        threads = [str(metadata[name]) for name in _THREADS if metadata.get(name)]
        if threads:
            ids[digest] = threads[0]
        ids.setdefault(digest, trace)
        if kind != _MODEL and record.get("parent_run_id"):
            source.skip(f"runs of the type {kind}")
            continue
        # The last part of the order is the run's own: its start and its id. A file may write anything here: a time with
        # an id has 59 characters, more is not kept.
        order = str(record.get("dotted_order") or record.get("id")).rpartition(".")[2]
        runs.append(_Run(str(record.get("start_time"))[:96], order[:96], span, digest, kind))
    runs.sort()
    traces_with_models = {run.trace for run in runs if run.kind == _MODEL}
    selected: list[_Run] = []
    for run in runs:
        if run.kind == _MODEL or run.trace not in traces_with_models:
            selected.append(run)
        else:
            source.skip(f"runs of the type {run.kind}")
    return selected, ids


def _translate_inputs(run: Record) -> list[Turn]:
    """Translate the messages that a run was given, or its input as one text of the user."""
    inputs, created_at = record_at(run, "inputs"), run.get("start_time")
    messages = inputs.get("messages")
    # A run has a list of message lists, one for each prompt of a batch: the first one is read.
    while isinstance(messages, list) and messages and isinstance(messages[0], list):
        messages = messages[0]
    if messages is None:
        text = inputs.get("input") or inputs.get("question") or inputs.get("prompt")
        return [make_turn("user", text_of(text), key="", created_at=created_at)] if text else []
    return _translate_messages(as_mapping_list(messages), created_at)


def _translate_messages(messages: Iterable[Record], created_at: Json) -> list[Turn]:
    turns: list[Turn] = []
    for message in messages:
        turns += _translate_message(message, "", created_at=created_at)
    return turns


def _translate_outputs(run: Record) -> list[Turn]:
    """Translate the answer of a run, in the form of LangChain, of OpenAI or of the traced function."""
    outputs, created_at = record_at(run, "outputs"), run.get("end_time")
    generation = outputs.get("generations")
    while isinstance(generation, list) and generation:
        generation = generation[0]
    generated = record_at(generation, "message")
    if generated:
        return _translate_message(generated, "", created_at=created_at)
    if records_at(outputs, "choices"):
        answer = record_at(run, "outputs.choices.0.message")
        details = {"model": outputs.get("model"), "usage": outputs.get("usage")}
        return read_chat_message(answer, key="", created_at=created_at, details=details)
    messages = records_at(outputs, "messages")
    if messages:  # the output repeats the input and adds to it
        input_count = len(records_at(run, "inputs.messages"))
        return _translate_messages(messages[input_count:], created_at)
    if outputs.get("role"):
        return read_chat_message(outputs, key="", created_at=created_at)
    text = outputs.get("output") or outputs.get("answer")
    return [make_turn("assistant", text_of(text), key="", created_at=created_at)] if text else []
