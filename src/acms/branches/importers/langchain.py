"""Messages of LangChain in JSON, the state of a LangGraph thread, and runs of LangSmith.

A message is `messages_to_dict` (`type`, `data`), `dumpd` (`lc`, `kwargs`), or its fields. Of a state the channel
`messages` is read; of a list of states the newest. Of the runs of a trace the model calls are read, or the root run if
there are none. Each run repeats the earlier messages, which are read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from acms.branches.importers.conversation import (
    Conversation,
    as_mapping,
    as_mapping_list,
    make_result_parts,
    make_tool_call,
    make_turn,
    text_of,
)
from acms.branches.importers.documents import Span
from acms.branches.importers.repeats import Repeats
from acms.branches.importers.shapes import Field, Shape, any_of, has_value, is_list, is_object, is_text
from acms.branches.importers.source import Source
from acms.branches.importers.trajectories import read_chat_message
from acms.log import foreign
from acms.log.foreign import Turn
from acms.log.repair import refer_by_hash
from acms.model import EMPTY, Json

__all__ = ["LANGSMITH", "MESSAGES", "STATE", "read_messages", "read_runs", "read_states"]

_ROLES = {
    "human": "user", "ai": "assistant", "system": "system", "tool": "tool", "developer": "developer",
    "HumanMessage": "user", "AIMessage": "assistant", "SystemMessage": "system", "ToolMessage": "tool",
    "HumanMessageChunk": "user", "AIMessageChunk": "assistant", "ToolMessageChunk": "tool",
    "function": "tool", "FunctionMessage": "tool",
}  # fmt: skip
_CALLS = ("tool_use", "tool_call", "function_call")
"""Parts of a content that repeat the calls in the form of a vendor."""


def _message_shapes(at: str) -> tuple[Shape, ...]:
    kind = any_of(f"{at}type", *_ROLES)
    fields: tuple[tuple[Field, ...], ...] = (
        (kind, is_object(f"{at}data"), has_value(f"{at}data.content")),
        (any_of(f"{at}lc", 1), is_list(f"{at}id"), has_value(f"{at}kwargs.content")),
        (kind, has_value(f"{at}content")),
    )
    return fields


MESSAGES = (*_message_shapes(""), *_message_shapes("messages.0."))
STATE = ((is_list("values.messages"), has_value("next")), (is_list("values.messages"), has_value("config")),
         (is_list("channel_values.messages"), has_value("channel_versions")))  # fmt: skip
LANGSMITH = ((is_text("run_type"), is_object("inputs"), has_value("id")),)


def read_messages(source: Source) -> Iterator[Conversation]:
    """Read a list of messages, or one message a line."""
    index = 0
    for _, value in source.records():
        record = as_mapping(value)
        listed = as_mapping_list(record.get("messages")) if "messages" in record else [record]
        for message in listed:
            yield Conversation(id=source.stem, messages=_translate_message(message, f"{index}"))
            index += 1


def read_states(source: Source) -> Iterator[Conversation]:
    """Read the newest state of each thread."""
    newest: dict[str, tuple[str, list[Turn]]] = {}
    for _, value in source.records():
        state = as_mapping(value)
        values = as_mapping(state.get("values") or state.get("channel_values"))
        config = as_mapping(as_mapping(state.get("config")).get("configurable"))
        thread = str(
            config.get("thread_id") or as_mapping(state.get("metadata")).get("thread_id") or source.stem
        )
        time = str(state.get("created_at") or state.get("ts") or "")
        if thread in newest and newest[thread][0] >= time:
            source.skip("older states of a thread")
            continue
        messages = as_mapping_list(values.get("messages"))
        newest[thread] = (
            time,
            [turn for n, one in enumerate(messages) for turn in _translate_message(one, f"{n}")],
        )
    for thread, (_, turns) in newest.items():
        yield Conversation(id=thread, messages=turns)


# ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_fields(message: Mapping[str, Json]) -> tuple[str, Mapping[str, Json]]:
    """Return the kind and the fields of a message in any of its forms."""
    if isinstance(message.get("data"), Mapping):
        return str(message.get("type")), as_mapping(message["data"])
    if message.get("lc") == 1:
        path = message.get("id")
        return str(path[-1]) if isinstance(path, list) and path else "", as_mapping(message.get("kwargs"))
    return str(message.get("type")), message


def _translate_message(message: Mapping[str, Json], place: str, *, at: Json = None) -> list[Turn]:
    """Translate a message; the key is its id, or its place where it has none."""
    if "role" in message and "type" not in message:
        return read_chat_message(message, key=place, at=at)
    kind, fields = _read_fields(message)
    more = as_mapping(fields.get("additional_kwargs"))
    role = _ROLES.get(kind) or str(fields.get("role") or kind)
    key = str(fields.get("id") or place)
    if role == "tool":
        failed = fields.get("status") == "error"
        id = fields.get("tool_call_id") or f"call_{fields.get('name')}"
        return [
            make_turn(
                "tool", key=key, at=at, parts=make_result_parts(id, fields.get("content"), is_error=failed)
            )
        ]
    calls = [
        make_tool_call(one.get("id"), one.get("name"), one.get("args"))
        for one in as_mapping_list(fields.get("tool_calls"))
    ]
    for one in [] if calls else as_mapping_list(more.get("tool_calls")):
        function = as_mapping(one.get("function"))
        calls.append(make_tool_call(one.get("id"), function.get("name"), function.get("arguments")))
    content: Any = fields.get("content")
    if isinstance(content, list):
        content = [one for one in content if not calls or as_mapping(one).get("type") not in _CALLS]
    response = as_mapping(fields.get("response_metadata"))
    details = {
        "model": response.get("model_name") or response.get("model"),
        "usage": fields.get("usage_metadata") or response.get("token_usage"),
    }
    actor = fields.get("name") if role == "user" else None
    base = make_turn(role, key=key, at=at, actor=actor, details=details if role == "assistant" else EMPTY)
    found = foreign.parse_provider_message({"role": role, "content": content or ""}, keep=refer_by_hash)
    turns = [
        {**base, **turn, "key": f"{base['key']}:{n}" if n else base["key"]} for n, turn in enumerate(found)
    ]
    if calls:
        turns[-1]["parts"] = [*turns[-1].get("parts", ()), *calls]
    return turns


# ── LangSmith ───────────────────────────────────────────────────────────────────────────────────────────────────────

_THREADS = ("thread_id", "session_id", "conversation_id")
_MODEL = "llm"
"""The type of a run that calls a model."""
_SORTED = 96
"""Characters of a start and of an order that runs are sorted by: a time has 32, a time with an id 59."""


class _Run(NamedTuple):
    """A run as the first pass keeps it: its sort key and its position in the file."""

    start: str
    #: Decides between runs that start together.
    order: str
    span: Span
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
        told = repeats.setdefault(id, Repeats())
        turns = told.take_new(_translate_inputs(as_mapping(value)) + _translate_outputs(as_mapping(value)))
        if turns:
            yield Conversation(id=id, messages=turns)


def _find_runs(source: Source) -> tuple[list[_Run], Mapping[bytes, str]]:
    """Return the runs that are read, in their order, and the thread of each trace, or its own id."""
    runs: list[_Run] = []
    ids: dict[bytes, str] = {}
    for span, value in source.located():
        run = as_mapping(value)
        kind = str(run.get("run_type"))
        trace = str(run.get("trace_id") or run.get("id"))
        digest = blake2b(trace.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if thread := _thread_of_run(run):
            ids[digest] = str(thread)
        ids.setdefault(digest, trace)
        if kind != _MODEL and run.get("parent_run_id"):
            source.skip(f"runs of the type {kind}")
            continue
        start = str(run.get("start_time"))
        # The last part of the order is the run's own: its start and its id.
        order = str(run.get("dotted_order") or run.get("id")).rpartition(".")[2]
        runs.append(_Run(start[:_SORTED], order[:_SORTED], span, digest, kind))
    runs.sort()
    with_models = {run.trace for run in runs if run.kind == _MODEL}
    wanted: list[_Run] = []
    for run in runs:
        if run.kind == _MODEL or run.trace not in with_models:
            wanted.append(run)
        else:
            source.skip(f"runs of the type {run.kind}")
    return wanted, ids


def _thread_of_run(run: Mapping[str, Json]) -> Json:
    metadata = as_mapping(as_mapping(run.get("extra")).get("metadata"))
    return next((metadata[name] for name in _THREADS if metadata.get(name)), None)


def _translate_inputs(run: Mapping[str, Json]) -> list[Turn]:
    inputs = as_mapping(run.get("inputs"))
    messages = inputs.get("messages")
    while isinstance(messages, list) and messages and isinstance(messages[0], list):
        messages = messages[0]
    if messages is None:
        text = inputs.get("input") or inputs.get("question") or inputs.get("prompt")
        return [make_turn("user", text_of(text), key="", at=run.get("start_time"))] if text else []
    return [
        turn
        for one in as_mapping_list(messages)
        for turn in _translate_message(one, "", at=run.get("start_time"))
    ]


def _translate_outputs(run: Mapping[str, Json]) -> list[Turn]:
    """Translate the answer of a run, in the form of LangChain, of OpenAI or of the traced function."""
    outputs, at = as_mapping(run.get("outputs")), run.get("end_time")
    generations = outputs.get("generations")
    while isinstance(generations, list) and generations:
        generations = generations[0]
    if message := as_mapping(as_mapping(generations).get("message")):
        return _translate_message(message, "", at=at)
    if choices := as_mapping_list(outputs.get("choices")):
        answer = as_mapping(choices[0].get("message"))
        details = {"model": outputs.get("model"), "usage": outputs.get("usage")}
        return read_chat_message(answer, key="", at=at, details=details)
    if messages := as_mapping_list(outputs.get("messages")):
        known = len(as_mapping_list(as_mapping(run.get("inputs")).get("messages")))
        return [turn for one in messages[known:] for turn in _translate_message(one, "", at=at)]
    if outputs.get("role"):
        return read_chat_message(outputs, key="", at=at)
    text = outputs.get("output") or outputs.get("answer")
    return [make_turn("assistant", text_of(text), key="", at=at)] if text else []
