"""What a model of ADK is shown: the log of the session within a token budget."""

from __future__ import annotations

from collections.abc import Sequence
from json import loads
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.genai import types

from acms.codecs import OpenAIChat
from acms.integrations.google_adk.events import DIALECT
from acms.integrations.google_adk.sessions import ACMSSessionService
from acms.integrations.model_input import RenderedMessage, Request, model_input, text_of
from acms.model import Role, ToolCall, ToolResult
from acms.ports import Codec, TokenCounter
from acms.prompt_types import PromptMessage, Tool
from acms.text.chat_messages import PER_MEDIUM

__all__ = ["ACMSPlugin"]


class ACMSPlugin(BasePlugin):
    """Show the model the log of its session within a token budget, instead of all of the session's events.

    The budget covers the whole request: instructions, tools, contents, by the count of `codec`. Events are shown as
    they are; recalled text stands in a content of the user before the newest one. What other agents of the session said
    is told as theirs.
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
        """Put what the log shows in the place of the request's contents."""
        session = callback_context.session
        memory = self._sessions.memory(
            app_name=session.app_name, user_id=session.user_id, session_id=session.id
        )
        request = Request(
            codec=self._codec,
            budget=self._budget,
            query=_texts(callback_context.user_content),
            instructions=_instructions(llm_request.config.system_instruction),
            tools=_tools(llm_request.config.tools),
        )
        agent = callback_context.agent_name
        shown = await model_input(
            memory,
            request,
            DIALECT,
            known={event.id: event for event in session.events},
            extra=lambda event: _extra(event, agent, memory.counter),
        )
        llm_request.contents = _contents(shown, agent)
        return None


def _texts(content: Any) -> str:
    parts = getattr(content, "parts", None) or ()
    return "\n".join(part.text for part in parts if getattr(part, "text", None))


def _instructions(given: Any) -> str:
    if isinstance(given, list):
        return "\n\n".join(_instructions(one) for one in given)
    return given if isinstance(given, str) else getattr(given, "text", None) or _texts(given)


def _tools(given: Sequence[Any] | None) -> list[Tool]:
    found: list[Tool] = []
    for tool in given or ():
        for one in getattr(tool, "function_declarations", None) or ():
            schema = one.parameters_json_schema
            if schema is None and one.parameters is not None:
                schema = one.parameters.model_dump(mode="json", exclude_none=True)
            found.append(
                Tool(
                    name=one.name, description=one.description or "", parameters=schema or {"type": "object"}
                )
            )
    return found


def _is_foreign(event: Event, agent: str) -> bool:
    return event.author not in ("user", agent)


def _extra(event: Event, agent: str, counter: TokenCounter) -> int:
    """Count what the codec does not see of an event: thoughts, inline files, who said it."""
    parts = (event.content and event.content.parts) or []
    thoughts = sum(counter.count(part.text) for part in parts if part.thought and part.text)
    foreign = counter.count(f"[{event.author}] :") + 8 if _is_foreign(event, agent) else 0
    return thoughts + PER_MEDIUM * sum(part.inline_data is not None for part in parts) + foreign


def _contents(shown: Sequence[RenderedMessage[Event]], agent: str) -> list[types.Content]:
    found: list[types.Content] = []
    names: dict[str, str] = {}
    for one in shown:
        names.update({part.call_id: part.name for part in one.message.parts if isinstance(part, ToolCall)})
        for event in one.originals:
            if event.content is not None:
                found.append(_reported(event) if _is_foreign(event, agent) else event.content)
        if not one.originals:
            found.append(_made(one.message, names))
    return found


def _reported(event: Event) -> types.Content:
    """Return what another agent said or did as text of the user: it is not this model's own."""
    said: list[str] = []
    for part in (event.content and event.content.parts) or ():
        if part.text and not part.thought:
            said.append(part.text)
        elif part.function_call:
            said.append(f"{part.function_call.name}({part.function_call.args or {}})")
        elif part.function_response:
            said.append(str(part.function_response.response or {}))
    return types.Content(role="user", parts=[types.Part(text=f"[{event.author}]: " + "\n".join(said))])


def _made(message: PromptMessage, names: dict[str, str]) -> types.Content:
    """Return what ACMS wrote as a content; `names` are those of the tools called, by id of the call."""
    if message.role is Role.TOOL:
        answers = [
            types.FunctionResponse(
                id=one.call_id, name=names.get(one.call_id, ""), response={"result": one.output}
            )
            for one in message.parts
            if isinstance(one, ToolResult)
        ]
        return types.Content(role="user", parts=[types.Part(function_response=one) for one in answers])
    parts = [types.Part(text=text_of(message))] if text_of(message) else []
    for one in message.parts:
        if isinstance(one, ToolCall):
            call = types.FunctionCall(id=one.call_id, name=one.name, args=_arguments(one.arguments))
            parts.append(types.Part(function_call=call))
    return types.Content(role="model" if message.role is Role.ASSISTANT else "user", parts=parts)


def _arguments(text: str) -> dict[str, Any]:
    found = loads(text)
    return found if isinstance(found, dict) else {}
