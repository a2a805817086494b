"""Events of ADK as messages of a log, and back."""

from __future__ import annotations

from json import dumps
from typing import Any
from urllib.parse import quote

from google.adk.events.event import Event
from google.genai import types

from acms.integrations.model_input import original
from acms.model import Entry, Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult

__all__ = ["DIALECT", "event_of", "namespace_of", "role_of"]


def namespace_of(app_name: str, user_id: str) -> str:
    """Return the namespace of a user of an app: recall, profiles and erasure go by it."""
    return f"{quote(app_name, safe='')}/{quote(user_id, safe='')}"


class EventDialect:
    """An event is one message of a log, and kept whole beside it; one without content says nothing."""

    vendor = "google-adk"

    def write(self, message: Event) -> dict[str, Any]:
        """Return an event as `ingest` takes it."""
        role = role_of(message)
        given = (message.content and message.content.parts) or []
        parts = [part for one in given for part in _part(one, role)]
        parts.append(Raw(self.vendor, message.model_dump_json(by_alias=True, exclude_none=True)))
        written: dict[str, Any] = {"key": message.id, "role": role, "parts": parts}
        if message.author not in ("", "user"):
            written["metadata"] = {"author": message.author}
        return written

    def read(self, json: str) -> Event:
        """Return the event that was kept."""
        return Event.model_validate_json(json)


DIALECT = EventDialect()


def role_of(event: Event) -> Role:
    """Return who speaks: answers of tools are tools', whoever's author they are."""
    if event.get_function_responses():
        return Role.TOOL
    return Role.USER if event.author == "user" else Role.ASSISTANT


def event_of(entry: Entry) -> Event:
    """Return the event of an entry; of one that was edited or withheld with what is shown of it."""
    kept = original(entry, DIALECT)
    if kept is not None:
        written = [part for part in DIALECT.write(kept)["parts"] if not isinstance(part, Raw)]
        if written == [part for part in entry.parts if not isinstance(part, Raw)]:
            return kept
    author = "user" if entry.role in (None, Role.USER) else str(entry.metadata.get("author", "model"))
    content = types.Content(
        role="user" if author == "user" else "model", parts=[types.Part(text=entry.content)]
    )
    if kept is not None:
        return kept.model_copy(update={"content": content})
    return Event(
        id=entry.key or entry.id, author=author, content=content, timestamp=entry.created_at.timestamp()
    )


def _part(given: types.Part, role: Role) -> list[Part]:
    if given.function_call and role is Role.ASSISTANT:
        call = given.function_call
        return [
            ToolCall(call.id or call.name or "", call.name or "", dumps(call.args or {}, ensure_ascii=False))
        ]
    if given.function_response and role is Role.TOOL:
        answer = given.function_response
        return [ToolResult(answer.id or answer.name or "", dumps(answer.response or {}, ensure_ascii=False))]
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
    return [Text(text)] if (text := (code and code.code) or (result and result.output)) else []
