"""Bodies of model providers: requests, answers, and logs that hold both, one call a record.

A request of OpenAI Responses has `input`, one of Anthropic `system` and `messages`, one of Gemini `contents`. A log has
them under `request` and `response`, a batch under `body`. Every request repeats the conversation so far; it is read
once. A record whose request does not go on where the one before ended begins a conversation of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from acms.branches.importers.conversation import (
    Conversation,
    as_mapping,
    as_mapping_list,
    has_content,
    join_call,
    make_turn,
    text_of,
)
from acms.branches.importers.repeats import Repeats
from acms.branches.importers.shapes import any_of, has_value, is_list, is_object, is_text
from acms.branches.importers.source import Source
from acms.branches.importers.trajectories import read_chat_message
from acms.log import foreign
from acms.log.foreign import Turn
from acms.log.repair import refer_by_hash
from acms.model import Json

__all__ = ["ANTHROPIC", "CHAT_LOG", "GEMINI", "RESPONSES", "read_bodies"]

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


def read_bodies(source: Source) -> Iterator[Conversation]:
    """Read the calls of a file in their order."""
    id, told = source.stem, Repeats()
    responses: dict[str, tuple[str, Repeats]] = {}
    for number, (_, value) in enumerate(source.records()):
        record = as_mapping(value)
        request, response = _request_of_record(record), _response_of_record(record)
        previous = request.get("previous_response_id") or response.get("previous_response_id")
        at = _time_of_record(request) or _time_of_record(record)
        turns = _join_calls(
            _translate_request(request, at) + _translate_response(response, _time_of_record(response) or at)
        )
        if previous in responses:
            id, told = responses[str(previous)]
            fresh = told.take_new(turns)
        else:
            fresh = told.take_new(turns)
            if number and len(fresh) == len(turns) and _is_whole_request(request):
                id, told = f"{source.stem}-{number}", Repeats()
                fresh = told.take_new(turns)
        if response.get("id"):
            responses[str(response["id"])] = id, told
        if fresh:
            yield Conversation(id=id, messages=fresh)


def _is_whole_request(request: Mapping[str, Json]) -> bool:
    """Return whether a record is a whole request, not one content or one answer of a conversation."""
    return any(name in request for name in ("input", "messages", "contents"))


def _request_of_record(record: Mapping[str, Json]) -> Mapping[str, Json]:
    for name in ("request", "body", "params"):
        if isinstance(record.get(name), Mapping):
            inner = as_mapping(record[name])
            return as_mapping(inner.get("body")) or inner
    return record


def _response_of_record(record: Mapping[str, Json]) -> Mapping[str, Json]:
    inner = as_mapping(record.get("response"))
    return as_mapping(inner.get("body")) or inner or record


def _translate_request(request: Mapping[str, Json], at: Json) -> list[Turn]:
    """Translate the messages of a request, its instructions first."""
    turns: list[Turn] = []
    instruction = request.get("systemInstruction") or request.get("system_instruction")
    for given in (
        request.get("instructions"),
        request.get("system"),
        as_mapping(instruction).get("parts") or instruction,
    ):
        if given:
            turns.append(make_turn("system", text_of(given), key="", at=at))
    items = request.get("input")
    if isinstance(items, str):
        turns.append(make_turn("user", items, key="", at=at))
    listed = (
        as_mapping_list(items)
        + as_mapping_list(request.get("data"))
        + as_mapping_list(request.get("messages"))
    )
    listed += as_mapping_list(request.get("contents")) + as_mapping_list(request.get("history"))
    if "role" in request and "parts" in request:
        listed.append(request)
    for message in listed:
        turns += _translate_item(message, at)
    return turns


def _translate_response(response: Mapping[str, Json], at: Json) -> list[Turn]:
    """Translate the answer of a provider, with its model and token usage."""
    details = {
        "model": response.get("model") or response.get("modelVersion"),
        "usage": response.get("usage") or response.get("usageMetadata"),
    }
    turns: list[Turn] = []
    for item in as_mapping_list(response.get("output")):
        turns += _translate_item(item, at)
    if choices := as_mapping_list(response.get("choices")):
        turns += read_chat_message(as_mapping(choices[0].get("message")), key="", at=at)
    if candidates := as_mapping_list(response.get("candidates")):
        turns += _translate_item({"role": "model", **as_mapping(candidates[0].get("content"))}, at)
    if response.get("type") == "message" and response.get("role") == "assistant":
        turns += _translate_item({"role": "assistant", "content": response.get("content")}, at)
    own = make_turn("assistant", key="", details=details).get("metadata")
    if turns and own:
        turns[-1]["metadata"] = own
    return turns


def _join_calls(turns: list[Turn]) -> list[Turn]:
    """Join the items of one answer: in Responses every call is one of its own."""
    joined: list[Turn] = []
    for turn in turns:
        whole = join_call(joined[-1], turn) if joined else None
        if whole is None:
            joined.append(turn)
        else:
            joined[-1] = {**whole, **{name: turn[name] for name in ("metadata",) if name in turn}}
    return joined


def _time_of_record(record: Mapping[str, Json]) -> Json:
    return next((record[name] for name in _TIMES if record.get(name) is not None), None)


def _translate_item(message: Mapping[str, Json], at: Json) -> list[Turn]:
    """Translate a message or an item of a provider; ids and states of the provider are left out."""
    named = {name: value for name, value in message.items() if name not in ("id", "created_at", "timestamp")}
    if "role" in named and "parts" not in named:
        named = {
            name: value
            for name, value in named.items()
            if name in ("role", "content", "type", "name", "tool_calls", "tool_call_id")
        }
    base = make_turn("assistant", key="", at=_time_of_record(message) or at)
    base.pop("role")
    return [
        {**base, **turn}
        for turn in foreign.parse_provider_message(named, keep=refer_by_hash)
        if has_content(turn)
    ]
