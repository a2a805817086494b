"""Events of ADK as messages of a log, and back."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps
from typing import Any
from urllib.parse import quote

from google.adk.events.event import Event
from google.genai import types

from acms.integrations.model_input import (
    Made,
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
from acms.text.chat_messages import PER_MEDIUM

__all__ = ["EventDialect", "events_of", "namespace_of", "report_agent_event"]


def namespace_of(app_name: str, user_id: str) -> str:
    """Return the namespace of a user of an app: recall, profiles and erasure go by it."""
    return f"{quote(app_name, safe='')}/{quote(user_id, safe='')}"


class EventDialect:
    """An event is one message of a log, and kept whole beside it; one without content has no text.

    `agent` is the agent that is called: its messages are its own, those of other agents are reported to it.
    """

    vendor = "google-adk"

    def __init__(self, agent: str = "model") -> None:
        self.agent = agent

    def write(self, message: Event) -> dict[str, Any]:
        """Return an event as `ingest` takes it."""
        role = Role.USER if message.author == "user" else Role.ASSISTANT
        role = Role.TOOL if message.get_function_responses() else role  # for any author
        parts = [part for one in _parts_of_event(message) for part in _convert_part(one, role)]
        parts.append(Raw(self.vendor, self.dumped(message)))
        written: dict[str, Any] = {"key": message.id, "role": role, "parts": parts}
        if message.author not in ("", "user"):
            written["metadata"] = {"author": message.author}
        return written

    def dumped(self, message: Event) -> str:
        """Return an event as it is kept: JSON of whatever a tool has put into it."""
        try:
            plain = message.model_dump(mode="json", by_alias=True, exclude_none=True, fallback=str)
        except ValueError:
            message = message.model_copy(deep=True)
            for answer in message.get_function_responses():
                answer.response = json_object(_output_of_response(answer), "result")
            plain = message.model_dump(mode="json", by_alias=True, exclude_none=True, fallback=str)
        return dumps(plain, ensure_ascii=False)

    def read(self, json: str) -> Event:
        """Return the event that was kept."""
        return Event.model_validate_json(json)

    def make(self, said: Made) -> Event:
        """Return a message written by ACMS as an event of the user or of the agent that is called."""
        own = said.role in (Role.ASSISTANT, Role.TOOL) and not said.results
        parts = [types.Part(text=said.text)] if said.text and not said.results else []
        for call in said.calls:
            given = json_object(call.arguments, "arguments")
            called = types.FunctionCall(id=call.call_id, name=call.name, args=given)
            parts.append(types.Part(function_call=called))
        for name, one in said.results:
            given = json_object(one.output, "result")
            answer = types.FunctionResponse(id=one.call_id, name=name, response=given)
            parts.append(types.Part(function_response=answer))
        content = types.Content(role="model" if own else "user", parts=parts)
        return Event(author=self.agent if own else "user", content=content)

    def unseen(self, message: Event, counter: TokenCounter) -> int:
        """Count inline files, the JSON around the answers of tools, and the name of the author."""
        found = counter.count(f"[{message.author}] :") + 8 if self.is_foreign(message) else 0
        found += PER_MEDIUM * sum(part.inline_data is not None for part in _parts_of_event(message))
        for answer in message.get_function_responses():
            found += counter.count(json_text(answer.response or {})) - counter.count(
                _output_of_response(answer)
            )
        return found

    def is_foreign(self, event: Event) -> bool:
        """Return whether another agent is the author."""
        return event.author not in ("user", self.agent)


def events_of(entries: Sequence[Entry]) -> list[Event]:
    """Return the events of entries; an edited or withheld one with its current content."""
    names: dict[str, str] = {}
    return [_event_of_entry(entry, names) for entry in entries]


def _event_of_entry(entry: Entry, names: dict[str, str]) -> Event:
    dialect = EventDialect(str(entry.metadata.get("author", "model")))
    kept = original_of_entry(entry, dialect)
    for answer in kept.get_function_responses() if kept is not None else ():
        names.setdefault(answer.id or answer.name or "", answer.name or "")
    shown = message_of_parts(entry.role or Role.USER, entry.parts or (Text(entry.content),), names)
    if kept is not None and is_entry_unchanged(entry, dialect.write(kept)):
        return kept
    made = dialect.make(shown)
    if kept is not None:
        return kept.model_copy(update={"content": made.content})
    return made.model_copy(
        update={"id": client_supplied_key(entry.key) or entry.id, "timestamp": entry.created_at.timestamp()}
    )


def report_agent_event(event: Event) -> types.Content:
    """Return the words and actions of another agent as text of the user: they are not this model's own."""
    said: list[str] = []
    for part in _parts_of_event(event):
        if part.text and not part.thought:
            said.append(part.text)
        elif part.function_call:
            said.append(f"{part.function_call.name}({part.function_call.args or {}})")
        elif part.function_response:
            said.append(str(part.function_response.response or {}))
    return types.Content(role="user", parts=[types.Part(text=f"[{event.author}]: " + "\n".join(said))])


def _output_of_response(answer: types.FunctionResponse) -> str:
    """Return the output of a tool: ADK wraps values that are no objects."""
    given = answer.response or {}
    return json_text(given["result"] if given.keys() == {"result"} else given)


def _parts_of_event(event: Event) -> list[types.Part]:
    return (event.content and event.content.parts) or []


def _convert_part(given: types.Part, role: Role) -> list[Part]:
    if given.function_call and role is Role.ASSISTANT:
        call = given.function_call
        return [ToolCall(call.id or call.name or "", call.name or "", json_text(call.args or {}))]
    if given.function_response and role is Role.TOOL:
        answer = given.function_response
        return [ToolResult(answer.id or answer.name or "", _output_of_response(answer))]
    if given.text:
        thought = given.thought and role is Role.ASSISTANT
        return [Reasoning(given.text) if thought else Text(given.text)]
    file = given.file_data
    if file and file.file_uri:
        if role is Role.USER and (file.mime_type or "").startswith("image/"):
            return [Media(file.mime_type or "", file.file_uri)]
        return [Text(f"[{file.mime_type}: {file.file_uri}]")]
    if given.inline_data:
        return [Text(f"[{given.inline_data.mime_type}: {given.inline_data.display_name or 'inline'}]")]
    code, result = given.executable_code, given.code_execution_result
    text = (code and code.code) or (result and result.output)
    return [Text(text)] if text else []
