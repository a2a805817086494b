"""The input of a model of ADK: the log of the session within a token budget."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin

from acms.codecs import OpenAIChat
from acms.integrations.google_adk.events import EventDialect, report_agent_event
from acms.integrations.google_adk.sessions import ACMSSessionService
from acms.integrations.google_adk.visible import find_visible_events
from acms.integrations.model_input import Request, build_model_input
from acms.ports import Codec
from acms.prompt_types import Tool
from acms.session import ACMS

__all__ = ["ACMSPlugin"]


class ACMSPlugin(BasePlugin):
    """Show the model the log of its session within a token budget, instead of all of the session's events.

    The budget covers the whole request: instructions, tools, contents, by the count of `codec`. Events are shown
    unchanged; recalled text stands in a content of the user before the newest one. Messages of other agents of the
    session are shown as theirs. Events that ADK hides from an agent are not shown: rewound ones, other branches,
    earlier turns where it includes no contents. Contents that ADK adds itself stay.
    """

    def __init__(
        self, sessions: ACMSSessionService, *, budget: int, codec: Codec | None = None, name: str = "acms"
    ) -> None:
        super().__init__(name)
        self._sessions = sessions
        self._budget = budget
        self._codec = codec or OpenAIChat("gpt-5")

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Replace the request's contents by the log of those events that the agent may see."""
        session = callback_context.session
        visible = find_visible_events(llm_request.contents, session.events, callback_context.agent_name)
        added_texts = [_extract_text(content) for _, content in visible.added]
        request = Request(
            codec=self._codec,
            budget=self._budget,
            query=_extract_text(callback_context.user_content),
            instructions="\n\n".join(
                filter(None, [_extract_text(llm_request.config.system_instruction), *added_texts])
            ),
            tools=_convert_tools(llm_request.config.tools),
        )
        dialect = EventDialect(callback_context.agent_name)
        events_by_id = {event.id: event for event in session.events}
        async with self._sessions.use(session) as memory:
            hidden = await _find_event_entries(memory, visible.hidden)
            shown_events = await build_model_input(memory, request, dialect, events_by_id, hidden)
        # Contents that ADK added go behind the event that they followed, or to the start if it is not shown.
        shown_ids = {event.id for event in shown_events}
        contents = [content for id, content in visible.added if id not in shown_ids]
        for event in shown_events:
            if event.content is not None:
                contents.append(report_agent_event(event) if dialect.is_foreign(event) else event.content)
            contents += [content for id, content in visible.added if id == event.id]
        llm_request.contents = contents
        return None


async def _find_event_entries(memory: ACMS, events: Collection[str]) -> frozenset[str]:
    """Return the ids of the active entries that hold some events."""
    if not events:
        return frozenset()
    keys = await memory.keys([entry.id for entry in await memory.entries()])
    return frozenset(id for id, key in keys.items() if key in events)


def _extract_text(value: Any) -> str:
    """Return the text of instructions or a content: a string, a list, a part, or an object with parts."""
    if isinstance(value, list):
        return "\n\n".join(filter(None, map(_extract_text, value)))
    if isinstance(value, str):
        return value
    return getattr(value, "text", "") or _extract_text(getattr(value, "parts", ""))


def _convert_tools(tools: Sequence[Any] | None) -> list[Tool]:
    """Return the function declarations of tools as tools of a prompt."""
    converted: list[Tool] = []
    for tool in tools or ():
        for declaration in getattr(tool, "function_declarations", None) or ():
            schema = declaration.parameters_json_schema
            if schema is None and declaration.parameters is not None:
                schema = declaration.parameters.model_dump(mode="json", exclude_none=True)
            converted.append(
                Tool(
                    name=declaration.name,
                    description=declaration.description or "",
                    parameters=schema or {"type": "object"},
                )
            )
    return converted
