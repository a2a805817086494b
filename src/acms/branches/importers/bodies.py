"""Bodies of model providers: requests, answers, and logs that hold both, one call a record.

A request of OpenAI Responses has `input`, one of Anthropic `system` and `messages`, one of Gemini `contents`. A log has
them under `request` and `response`, a batch under `body`. Every request repeats the conversation so far; it is read
once. A record whose request does not go on where the one before ended begins a conversation of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from acms.branches.importers.conversation import (
    Conversation,
    Record,
    as_mapping,
    first_value,
    has_content,
    join_call,
    make_turn,
    parse_turns,
    record_at,
    records_at,
    text_of,
)
from acms.branches.importers.repeats import Repeats
from acms.branches.importers.shapes import any_of, has_value, is_list, is_object, is_text
from acms.branches.importers.source import Source
from acms.branches.importers.trajectories import read_chat_message
from acms.log.provider_messages import Turn
from acms.model import Json

RESPONSES = (
    (any_of("object", "response"), is_list("output")),
    (has_value("input"), is_text("model")),
    (is_list("input"), is_text("input.0.role")),
    (is_list("input"), is_text("input.0.type")),
    (has_value("request.input"), is_object("response")),
    (has_value("body.input"), has_value("custom_id")),
    (any_of("response.object", "response"), is_list("response.output")),
    (any_of("response.body.object", "response"), has_value("custom_id")),
    (any_of("object", "list"), is_list("data"), is_text("data.0.type")),
)
ANTHROPIC = (
    (is_list("messages"), has_value("system")),
    (is_list("request.messages"), has_value("request.system")),
    (is_list("request.messages"), any_of("response.type", "message")),
    (is_list("params.messages"), has_value("custom_id")),
    (is_list("body.messages"), has_value("body.system")),
)
GEMINI = (
    (is_list("contents"), is_list("contents.0.parts")),
    (is_list("request.contents"), is_list("request.contents.0.parts")),
    (is_list("parts"), any_of("role", "user", "model")),
    (is_list("history"), is_list("history.0.parts")),
    (is_list("candidates"), is_object("candidates.0.content")),
)
CHAT_LOG = (
    (is_list("request.messages"), is_list("response.choices")),
    (is_list("body.messages"), has_value("custom_id")),
    (any_of("object", "chat.completion"), is_list("choices")),
)
_TIMES = ("created_at", "timestamp", "created", "createTime", "time")
_STANDARD_FIELDS = ("role", "content", "type", "name", "tool_calls", "tool_call_id")
_PROVIDER_FIELDS = ("id", "created_at", "timestamp")


def read_bodies(source: Source) -> Iterator[Conversation]:
    """Read the calls of a file in their order.

    A call belongs to the conversation of the response it names, else to that of the call before. One that repeats
    nothing of it and holds a whole request begins another conversation.
    """
    id, repeats = source.stem, Repeats()
    #: The conversation of each response, by its id.
    responses: dict[str, tuple[str, Repeats]] = {}
    for number, record in enumerate(source.records()):
        request, response = _request_of_record(record), _response_of_record(record)
        turns = _translate_record(record, request, response)
        previous = str(request.get("previous_response_id") or response.get("previous_response_id"))
        if previous in responses:
            id, repeats = responses[previous]
        new_turns = repeats.take_new(turns)
        # A record that names no known response, and repeats no message, has nothing to do with the one before.
        may_begin = number > 0 and previous not in responses and _is_whole_request(request)
        repeats_nothing = len(new_turns) == len(turns)
        if may_begin and repeats_nothing:
            id, repeats = f"{source.stem}-{number}", Repeats()
            new_turns = repeats.take_new(turns)
        if response.get("id"):
            responses[str(response["id"])] = id, repeats
        if new_turns:
            yield Conversation(id=id, messages=new_turns)


def _is_whole_request(request: Record) -> bool:
    """Return whether a record is a whole request, not one content or one answer of a conversation."""
    return any(name in request for name in ("input", "messages", "contents"))


def _request_of_record(record: Record) -> Record:
    for name in ("request", "body", "params"):
        if isinstance(record.get(name), Mapping):
            request = as_mapping(record[name])
            return record_at(request, "body") or request
    return record


def _response_of_record(record: Record) -> Record:
    response = record_at(record, "response")
    return record_at(response, "body") or response or record


def _translate_record(record: Record, request: Record, response: Record) -> list[Turn]:
    """Translate the request and the response of one call of a model.

    In Responses, each item of an answer is a message of its own; tool calls are joined to the answer before them.
    """
    created_at = first_value(request, _TIMES) or first_value(record, _TIMES)
    turns = _translate_request(request, created_at)
    turns += _translate_response(response, first_value(response, _TIMES) or created_at)
    joined_turns: list[Turn] = []
    for turn in turns:
        joined_turn = join_call(joined_turns[-1], turn) if joined_turns else None
        if joined_turn is None:
            joined_turns.append(turn)
            continue
        if "metadata" in turn:
            joined_turn["metadata"] = turn["metadata"]
        joined_turns[-1] = joined_turn
    return joined_turns


def _translate_request(request: Record, created_at: Json) -> list[Turn]:
    """Translate the messages of a request, its instructions first."""
    turns: list[Turn] = []
    for name in ("instructions", "system", "systemInstruction", "system_instruction"):
        instruction = request.get(name)
        content = as_mapping(instruction).get("parts") or instruction
        if content:
            turns.append(make_turn("system", text_of(content), key="", created_at=created_at))
    if isinstance(request.get("input"), str):
        turns.append(make_turn("user", request["input"], key="", created_at=created_at))
    messages: list[Record] = []
    for name in ("input", "data", "messages", "contents", "history"):
        messages += records_at(request, name)
    if "role" in request and "parts" in request:
        messages.append(request)
    for message in messages:
        turns += _translate_item(message, created_at)
    return turns


def _translate_response(response: Record, created_at: Json) -> list[Turn]:
    """Translate the answer of a provider, with its model and token usage."""
    turns: list[Turn] = []
    for item in records_at(response, "output"):
        turns += _translate_item(item, created_at)
    for choice in records_at(response, "choices")[:1]:  # other choices are alternatives that were not used
        turns += read_chat_message(record_at(choice, "message"), key="", created_at=created_at)
    for candidate in records_at(response, "candidates")[:1]:
        turns += _translate_item({"role": "model", **record_at(candidate, "content")}, created_at)
    if response.get("type") == "message" and response.get("role") == "assistant":
        turns += _translate_item({"role": "assistant", "content": response.get("content")}, created_at)
    model = response.get("model") or response.get("modelVersion")
    usage = response.get("usage") or response.get("usageMetadata")
    metadata = make_turn("assistant", key="", details={"model": model, "usage": usage}).get("metadata")
    if turns and metadata:
        turns[-1]["metadata"] = metadata
    return turns


def _translate_item(message: Record, created_at: Json) -> list[Turn]:
    """Translate a message or an item of a provider; ids and states of the provider are left out."""
    if "role" in message and "parts" not in message:
        fields = {name: value for name, value in message.items() if name in _STANDARD_FIELDS}
    else:
        fields = {name: value for name, value in message.items() if name not in _PROVIDER_FIELDS}
    base = make_turn("", key="", created_at=first_value(message, _TIMES) or created_at)
    return [turn for turn in parse_turns(fields, base) if has_content(turn)]
