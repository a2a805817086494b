"""Microsoft Agent Framework on ACMS logs: an agent's history, and the part of it that its model is shown.

    history = ACMSHistoryProvider(storage, budget=8_000, namespace="user:1")
    agent = Agent(client, context_providers=[history], tools=[…])
    await agent.run("…", session=AgentSession(session_id="chat"))

Every request to the model, also those between calls of tools, is made of the log within the token budget.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

from agent_framework import (
    AgentSession,
    ChatContext,
    ChatMiddleware,
    Content,
    HistoryProvider,
    Message,
    SessionContext,
    SupportsAgentRun,
)

from acms.codecs import OpenAIChat
from acms.config import ACMSConfig
from acms.errors import ValidationError
from acms.integrations.model_input import (
    Request,
    WrittenMessage,
    build_model_input,
    json_text,
    messages_of_entries,
)
from acms.integrations.sessions import Sessions
from acms.model import Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.ports import Codec, StorageBackend, TokenCounter
from acms.prompt_types import Tool
from acms.session import ACMS
from acms.text.chat_messages import MEDIA_TOKENS

__all__ = ["ACMSHistoryProvider"]


class ACMSHistoryProvider(HistoryProvider):
    """A history provider whose sessions are ACMS sessions.

    The budget covers the whole request: instructions, tools, messages, by the count of `codec`. New input is stored
    before the model is called, its answers before the next request or at the end of the run. Messages are returned as
    they were made; recalled text stands in a message of the user before the newest one. Messages that other context
    providers add stay in front, and count. Sessions are in `namespace`; `session.state["acms"] = {"namespace":
    "user:1"}` sets another one for a session.
    """

    DEFAULT_SOURCE_ID: ClassVar[str] = "acms"

    def __init__(
        self,
        storage: StorageBackend,
        *,
        budget: int,
        namespace: str = "default",
        codec: Codec | None = None,
        config: ACMSConfig | None = None,
        source_id: str = DEFAULT_SOURCE_ID,
    ) -> None:
        super().__init__(source_id)
        self.budget = budget
        self.codec: Codec = codec or OpenAIChat("gpt-5")
        self._namespace = namespace
        self._sessions = Sessions(storage, config=config)

    def memory(self, session_id: str | None, state: Mapping[str, Any] | None = None) -> ACMS:
        """Return the ACMS session of a session, for recall, forks and time travel; it stays open until `aclose`."""
        return self._sessions.hand_out(*self._names(session_id, state))

    async def aclose(self) -> None:
        """Close the sessions; the caller closes the storage."""
        await self._sessions.aclose()

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        """Return all active messages as they were saved; an edited or withheld one with its current content."""
        async with self._sessions.use(*self._names(session_id, state)) as memory:
            return messages_of_entries(await memory.entries(), _DIALECT)

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Append messages in order, all or none."""
        if messages:
            async with self._sessions.use(*self._names(session_id, state)) as memory:
                await memory.ingest_many([_DIALECT.write(message) for message in messages])

    async def before_run(
        self,
        *,
        agent: SupportsAgentRun,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Make each request of the run from the log."""
        open_session = partial(self._sessions.use, *self._names(context.session_id, state))
        run = _Run(self, open_session, len(context.input_messages))
        context.metadata[self.source_id] = run
        context.extend_middleware(self.source_id, run)

    async def after_run(
        self,
        *,
        agent: SupportsAgentRun,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Store the messages of the run that are not stored yet: the model's last answer."""
        answered = context.response.messages if context.response else ()
        await context.metadata[self.source_id].store([*context.input_messages, *answered])

    def _names(self, session_id: str | None, state: Mapping[str, Any] | None) -> tuple[str, str]:
        """Return the namespace and the name of the ACMS session of a session."""
        if not session_id:
            raise ValidationError("a run without a session has no log", field="session_id")
        return (state or {}).get("namespace", self._namespace), session_id


class _Run(ChatMiddleware):
    """One run of an agent: its messages so far, and the requests they lead to."""

    def __init__(
        self,
        provider: ACMSHistoryProvider,
        open_session: Callable[[], AbstractAsyncContextManager[ACMS]],
        input_count: int,
    ) -> None:
        self._provider = provider
        self._open_session = open_session
        self._inputs = input_count
        self._id = uuid4().hex
        self._stored: dict[str, Message] = {}
        #: Index of the first message of the run in a request; messages of other providers stand before it.
        self._begins: int | None = None

    async def store(self, messages: Sequence[Message]) -> None:
        """Append the messages of a run that are not stored yet."""
        unstored = {f"{self._id}:{index}": message for index, message in enumerate(messages)}
        for key in self._stored:
            unstored.pop(key, None)
        if unstored:
            async with self._open_session() as memory:
                await memory.ingest_many([_DIALECT.write(message, key) for key, message in unstored.items()])
            self._stored.update(unstored)

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Store the new messages of a request, and replace its messages by those that the log shows."""
        messages = list(context.messages)
        # The first request holds the history, then the inputs of this run, which are stored.
        if self._begins is None:
            self._begins = len(messages) - self._inputs
        earlier_messages, run_messages = messages[: self._begins], messages[self._begins :]
        await self.store(run_messages)
        options = context.options or {}
        questions = [message.text for message in run_messages if message.role == "user"]
        instructions = [options.get("instructions") or "", *(message.text for message in earlier_messages)]
        request = Request(
            codec=self._provider.codec,
            budget=self._provider.budget,
            query=questions[-1] if questions else "",
            instructions="\n\n".join(instructions).strip(),
            tools=_convert_tools(options.get("tools") or ()),
        )
        async with self._open_session() as memory:
            context.messages = [
                *earlier_messages,
                *await build_model_input(memory, request, _DIALECT, self._stored),
            ]
        await call_next()


def _convert_tools(tools: Sequence[Any]) -> list[Tool]:
    """Return the functions among tools, which are sent with their parameters."""
    return [
        Tool(name=tool.name, description=tool.description or "", parameters=tool.parameters())
        for tool in tools
        if hasattr(tool, "parameters")
    ]


class _Dialect:
    """A message is one message of a log; one with bytes is kept as text only."""

    vendor = "agent-framework"

    def write(self, message: Message, key: str | None = None) -> dict[str, Any]:
        """Return the stored form of a message: its parts, then the original in a `Raw` part.

        A message with bytes has no `Raw` part, since a log does not store bytes.
        """
        role = Role(message.role)
        parts: list[Part] = []
        for content in message.contents:
            part = _convert_content(content, role)
            if part is not None:
                parts.append(part)
        if not any(content.type == "data" for content in message.contents):
            parts.append(Raw(self.vendor, json_text(message.to_dict())))
        stored_form: dict[str, Any] = {"role": role, "parts": parts or [Text("")]}
        if key:
            stored_form["key"] = key
        return stored_form

    def read(self, json: str) -> Message:
        return Message.from_json(json)

    def make(self, message: WrittenMessage) -> Message:
        """Return a message that ACMS wrote as a message of the framework."""
        contents: list[Content | str] = []
        if message.results:
            for _, result in message.results:
                contents.append(Content.from_function_result(result.call_id, result=result.output))
            return Message("tool", contents)
        if message.text:
            contents.append(message.text)
        for call in message.calls:
            contents.append(Content.from_function_call(call.call_id, call.name, arguments=call.arguments))
        return Message(message.role.value, contents)

    def count_unwritten_tokens(self, message: Message, counter: TokenCounter) -> int:
        return MEDIA_TOKENS * sum(content.type == "data" for content in message.contents)


_DIALECT = _Dialect()


def _convert_content(content: Content, role: Role) -> Part | None:
    """Return a content as a part of a message, or None if the log does not hold it."""
    match content.type:
        case "text" if content.text:
            return Text(content.text)
        case "text_reasoning" if content.text and role is Role.ASSISTANT:
            return Reasoning(content.text)
        case "function_call" if role is Role.ASSISTANT:
            arguments = json_text(content.arguments or {})
            return ToolCall(content.call_id or "", content.name or "", arguments)
        case "function_result" if role is Role.TOOL:
            failed = content.exception is not None
            return ToolResult(content.call_id or "", json_text(content.result), failed)
        case "uri":
            return _convert_file(content.media_type, content.uri, role)
        case "data":
            return Text(f"[{content.media_type}: inline]")
        case _:
            return None


def _convert_file(media_type: str | None, uri: str | None, role: Role) -> Part:
    if role is Role.USER and media_type is not None and media_type.startswith("image/"):
        return Media(media_type, uri or "")
    return Text(f"[{media_type}: {uri}]")
