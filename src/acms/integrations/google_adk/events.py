"""Events of ADK as messages of a log, and back."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps
from typing import Any
from urllib.parse import quote

from google.adk.events.event import Event
from google.genai import types

from acms.integrations.model_input import (
    WrittenMessage,
    is_entry_unchanged,
    json_object,
    json_text,
    message_of_parts,
    original_of_entry,
)
from acms.model import (
    Entry,
    Media,
    Part,
    Raw,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    client_supplied_key,
)
from acms.ports import TokenCounter
from acms.text.chat_messages import MEDIA_TOKENS

__all__ = ["EventDialect", "events_of", "namespace_of", "report_agent_event"]


def namespace_of(app_name: str, user_id: str) -> str:
    """Return the namespace of a user of an app: recall, profiles and erasure go by it."""
    return f"{quote(app_name, safe='')}/{quote(user_id, safe='')}"


class EventDialect:
    """Converts events: each is one message of a log, with the whole event in a `Raw` part; its text may be empty.

    `agent` is the agent whose model is called: events of other agents are shown to it as reports.
    """

    vendor = "google-adk"

    def __init__(self, agent: str = "model") -> None:
        self.agent = agent

    def write(self, message: Event) -> dict[str, Any]:
        """Return an event as `ingest` takes it."""
        role = Role.USER if message.author == "user" else Role.ASSISTANT
        if message.get_function_responses():  # from any author: results must be stored as results
            role = Role.TOOL
        parts: list[Part] = []
        for part in _parts_of_event(message):
            parts += _convert_part(part, role)
        parts.append(Raw(self.vendor, self.dump(message)))
        stored_form: dict[str, Any] = {"key": message.id, "role": role, "parts": parts}
        if message.author not in ("", "user"):
            stored_form["metadata"] = {"author": message.author}
        return stored_form

    def dump(self, message: Event) -> str:
        """Serialize an event as JSON, with any value that a tool has put into it."""
        try:
            value = message.model_dump(mode="json", by_alias=True, exclude_none=True, fallback=str)
        except ValueError:
            # A tool returned a value that cannot be serialized: its text is stored instead.
            message = message.model_copy(deep=True)
            for answer in message.get_function_responses():
                answer.response = json_object(_output_of_response(answer), "result")
            value = message.model_dump(mode="json", by_alias=True, exclude_none=True, fallback=str)
        return dumps(value, ensure_ascii=False)

    def read(self, json: str) -> Event:
        """Parse a stored event."""
        return Event.model_validate_json(json)

    def make(self, message: WrittenMessage) -> Event:
        """Return a message written by ACMS as an event of the user or of the agent that is called."""
        parts: list[types.Part] = []
        if message.text and not message.results:
            parts.append(types.Part(text=message.text))
        for call in message.calls:
            arguments = json_object(call.arguments, "arguments")
            function_call = types.FunctionCall(id=call.call_id, name=call.name, args=arguments)
            parts.append(types.Part(function_call=function_call))
        for name, result in message.results:
            output = json_object(result.output, "result")
            function_response = types.FunctionResponse(id=result.call_id, name=name, response=output)
            parts.append(types.Part(function_response=function_response))
        if message.role in (Role.ASSISTANT, Role.TOOL) and not message.results:
            return Event(author=self.agent, content=types.Content(role="model", parts=parts))
        return Event(author="user", content=types.Content(role="user", parts=parts))

    def count_unwritten_tokens(self, message: Event, counter: TokenCounter) -> int:
        """Count inline files, the JSON around the results of tools, and the name of the author."""
        tokens = 0
        # Events of other agents are quoted under their name.
        if self.is_foreign(message):
            tokens += counter.count(f"[{message.author}] :") + 8
        tokens += MEDIA_TOKENS * sum(part.inline_data is not None for part in _parts_of_event(message))
        for answer in message.get_function_responses():
            tokens += counter.count(json_text(answer.response or {}))
            tokens -= counter.count(_output_of_response(answer))
        return tokens

    def is_foreign(self, event: Event) -> bool:
        """Return whether another agent is the author."""
        return event.author not in ("user", self.agent)


def events_of(entries: Sequence[Entry]) -> list[Event]:
    """Return the events of entries; an edited or withheld one with its current content."""
    names: dict[str, str] = {}
    return [_event_of_entry(entry, names) for entry in entries]


def _event_of_entry(entry: Entry, names: dict[str, str]) -> Event:
    """Return an entry as the event that was stored, with its current content if that was edited or withheld.

    `names` collects the names of called tools by call id, for results whose event does not state them.
    """
    dialect = EventDialect(str(entry.metadata.get("author", "model")))
    original = original_of_entry(entry, dialect)
    if original is not None:
        for answer in original.get_function_responses():
            names.setdefault(answer.id or answer.name or "", answer.name or "")
    current = message_of_parts(entry.role or Role.USER, entry.parts or (Text(entry.content),), names)
    if original is not None and is_entry_unchanged(entry, dialect.write(original)):
        return original
    event = dialect.make(current)
    if original is not None:
        return original.model_copy(update={"content": event.content})
    id = client_supplied_key(entry.key) or entry.id
    return event.model_copy(update={"id": id, "timestamp": entry.created_at.timestamp()})


def report_agent_event(event: Event) -> types.Content:
    """Return the words and actions of another agent as text of the user: they are not this model's own."""
    lines: list[str] = []
    for part in _parts_of_event(event):
        if part.text and not part.thought:
            lines.append(part.text)
        elif part.function_call:
            lines.append(f"{part.function_call.name}({part.function_call.args or {}})")
        elif part.function_response:
            lines.append(str(part.function_response.response or {}))
    text = f"[{event.author}]: " + "\n".join(lines)
    return types.Content(role="user", parts=[types.Part(text=text)])


def _output_of_response(answer: types.FunctionResponse) -> str:
    """Return the output of a tool as text. ADK wraps a value that is no object as `{"result": value}`."""
    response = answer.response or {}
    return json_text(response["result"] if response.keys() == {"result"} else response)


def _parts_of_event(event: Event) -> list[types.Part]:
    return (event.content and event.content.parts) or []


def _convert_part(part: types.Part, role: Role) -> list[Part]:
    """Return a part of an event as parts of a message; none if it has no text."""
    if part.function_call and role is Role.ASSISTANT:
        call = part.function_call
        name = call.name or ""
        return [ToolCall(call.id or name, name, json_text(call.args or {}))]
    if part.function_response and role is Role.TOOL:
        answer = part.function_response
        return [ToolResult(answer.id or answer.name or "", _output_of_response(answer))]
    if part.text:
        thought = part.thought and role is Role.ASSISTANT
        return [Reasoning(part.text) if thought else Text(part.text)]
    if part.file_data and part.file_data.file_uri:
        return [_convert_file(part.file_data.mime_type, part.file_data.file_uri, role)]
    if part.inline_data:
        return [Text(f"[{part.inline_data.mime_type}: {part.inline_data.display_name or 'inline'}]")]
    if part.executable_code and part.executable_code.code:
        return [Text(part.executable_code.code)]
    if part.code_execution_result and part.code_execution_result.output:
        return [Text(part.code_execution_result.output)]
    return []


def _convert_file(media_type: str | None, uri: str, role: Role) -> Part:
    if role is Role.USER and media_type is not None and media_type.startswith("image/"):
        return Media(media_type, uri)
    return Text(f"[{media_type}: {uri}]")
