"""LangChain on an ACMS log: the memory of an agent, a chat message history, a retriever.

    memory = ACMSMiddleware(open_storage("sqlite:///memory.db"), budget=8000)
    agent = create_agent(model, tools, middleware=[memory])
    agent.invoke({"messages": [("user", "…")]}, {"configurable": {"thread_id": "user_123"}})

A thread is a session. The messages of a run are stored under their ids, and the model is given the input that ACMS
makes of the whole log; no checkpointer is needed for that. Every class works in async and in blocking code.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.documents import Document
from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_config
from pydantic import ConfigDict

from acms.errors import ConfigurationError
from acms.integrations.langchain_messages import (
    Restored,
    chat_message,
    convert_tool_schema,
    message_of,
    restore_message_extras,
    serialize_message,
)
from acms.integrations.left_out import LeftBehind
from acms.integrations.model_input import Request, make_prompt, recall_items
from acms.integrations.sessions import Sessions
from acms.knowledge import Scope
from acms.model import Entry
from acms.ports import StorageBackend
from acms.prompt import Rendered
from acms.providers.codecs import OpenAIChat
from acms.runtime.portal import run_in_portal
from acms.session import ACMS

__all__ = ["ACMSChatMessageHistory", "ACMSMiddleware", "ACMSRetriever"]


class ACMSMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Stores a run in the session of its `thread_id`, and shows the model at most `budget` tokens of that.

    The budget covers the whole request, instructions and tools included, as Chat Completions counts it with the
    vocabulary o200k. Messages are shown as they were, with their ids; if the session is larger, messages relevant to
    the newest message of the user are recalled. Reasoning is sent with the messages of the current turn. `namespace`, a
    name or a function of a run's config, keeps users apart: in a named one the other sessions of the user are recalled
    too. `options` are those of `ACMS`. Raise `FitError` if the required parts do not fit.
    """

    def __init__(
        self,
        storage: StorageBackend,
        *,
        budget: int,
        namespace: str | Callable[[RunnableConfig], str] = "default",
        **options: Any,
    ) -> None:
        super().__init__()
        self._budget = budget
        self._namespace = namespace
        self._codec = OpenAIChat("gpt-5")
        self._sessions = Sessions(storage, **options)
        self._left_behind = LeftBehind()

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Store the messages of the run, show the model its part of the session, store the answer."""
        config = get_config()
        response = handler(run_in_portal(self._build_request(request, config)))
        run_in_portal(self._store(response.result, config))
        return response

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Store the messages of the run, show the model its part of the session, store the answer."""
        config = get_config()
        response = await handler(await self._build_request(request, config))
        await self._store(response.result, config)
        return response

    def after_agent(self, state: AgentState[Any], runtime: Any) -> None:
        """Store the messages after the last call of the model."""
        run_in_portal(self._store(state["messages"], get_config()))

    async def aafter_agent(self, state: AgentState[Any], runtime: Any) -> None:
        """Store the messages after the last call of the model."""
        await self._store(state["messages"], get_config())

    async def aclose(self) -> None:
        """Close the sessions; the caller closes the storage."""
        await self._sessions.aclose()

    def close(self) -> None:
        """Close the sessions; the caller closes the storage."""
        run_in_portal(self.aclose())

    async def _store(self, messages: Sequence[BaseMessage], config: RunnableConfig) -> None:
        async with self._session(config) as session:
            await session.sync([serialize_message(message) for message in messages])

    async def _build_request(self, request: ModelRequest[Any], config: RunnableConfig) -> ModelRequest[Any]:
        """Return the request with the messages that the budget allows."""
        parts = self._describe_request(request)
        async with self._session(config) as session:
            synced = await session.sync([serialize_message(message) for message in request.messages])
            hidden = await self._left_behind.find(session, synced)
            rendered = await make_prompt(session, parts, hidden).render(self._budget)
            instruction_count = 1 if parts.instructions.strip() else 0
            # Enough for the newest messages; an older one that is shown comes back without its other fields.
            entries = await session.entries(len(rendered.messages) - instruction_count + len(hidden))
            messages = await self._restore_messages(session, rendered, instruction_count, entries)
        return request.override(messages=cast(list[AnyMessage], messages))

    def _describe_request(self, request: ModelRequest[Any]) -> Request:
        """Return the parts of a request besides its messages; the newest message of the user is the query."""
        questions = [message.text for message in request.messages if isinstance(message, HumanMessage)]
        schemas = [convert_tool_schema(tool) for tool in request.tools]
        return Request(
            codec=self._codec,
            budget=self._budget,
            query=questions[-1] if questions else "",
            instructions="" if request.system_message is None else request.system_message.text,
            tools=[schema for schema in schemas if schema is not None],
        )

    async def _restore_messages(
        self, session: ACMS, rendered: Rendered, instruction_count: int, entries: Sequence[Entry]
    ) -> list[BaseMessage]:
        """Return the messages of a prompt behind its instructions, as LangChain messages.

        Other fields of the original messages are restored from `entries`, within the tokens that the prompt leaves.
        """
        chats = rendered.payload["messages"][instruction_count:]
        sources = [message.sources for message in rendered.messages[instruction_count:]]
        # A message made of one entry keeps that entry's key as its id.
        keys = await session.keys([ids[0] for ids in sources if len(ids) == 1])
        entries_by_id = {entry.id: entry for entry in entries}
        restored: list[Restored] = []
        for chat, ids in zip(chats, sources, strict=True):
            restored.append(message_of(chat, ids, keys, entries_by_id))
        spare_tokens = self._budget - rendered.tokens.upper_bound
        return restore_message_extras(restored, spare_tokens, self._codec.counter)

    def _session(self, config: RunnableConfig) -> AbstractAsyncContextManager[ACMS]:
        """Return a block that opens the session of a run."""
        thread = config.get("configurable", {}).get("thread_id")
        if thread is None:
            raise ConfigurationError(
                "a run must name its conversation",
                options=('agent.invoke(…, {"configurable": {"thread_id": "user_123"}})',),
            )
        namespace = self._namespace
        return self._sessions.use(namespace if isinstance(namespace, str) else namespace(config), str(thread))


class ACMSChatMessageHistory(BaseChatMessageHistory):
    """The messages of a session as a LangChain history; equal to the messages that were added, with their ids.

    Artifacts of tools that are not JSON are not kept. Clearing retracts the messages; `session.erase` deletes.
    """

    def __init__(self, session: ACMS) -> None:
        super().__init__()
        self.session = session

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]  # theirs is an attribute, or a property
        """Return the active messages, oldest first."""
        return run_in_portal(self.aget_messages())

    async def aget_messages(self) -> list[BaseMessage]:
        """Return the active messages, oldest first."""
        entries = await self.session.entries()
        keys = await self.session.keys([entry.id for entry in entries])
        entries_by_id = {entry.id: entry for entry in entries}
        restored = [message_of(chat_message(entry), (entry.id,), keys, entries_by_id) for entry in entries]
        return [message.message.model_copy(update=message.other_fields) for message in restored]

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append messages, all or none; one whose id is known replaces the stored message."""
        run_in_portal(self.aadd_messages(messages))

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append messages, all or none; one whose id is known replaces the stored message."""
        await self.session.sync([serialize_message(message) for message in messages])

    def clear(self) -> None:
        """Retract all messages."""
        run_in_portal(self.aclear())

    async def aclear(self) -> None:
        """Retract all messages."""
        await self.session.clear()


class ACMSRetriever(BaseRetriever):
    """The items that a recall of a session finds for a query, as LangChain documents, the most relevant first.

    `k` is the maximum number of documents, also in `invoke(query, k=3)`; `budget` is the maximum of their tokens. With
    `scope="namespace"` all sessions of a named namespace are searched. The metadata of a document has the role, the
    score, the time, the name of the session, and the metadata of the message.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    session: ACMS
    k: int = 8
    budget: int = 4000
    scope: Scope = "session"

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        return run_in_portal(self._documents(query, k))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        return await self._documents(query, k)

    async def _documents(self, query: str, k: int | None) -> list[Document]:
        """Return the recalled items for a query as documents, best first."""
        limit = self.k if k is None else k
        items = await recall_items(self.session, query, self.budget, limit=limit, scope=self.scope)
        documents: list[Document] = []
        for item in sorted(items, key=lambda item: -item.score):
            about = {"role": item.role and item.role.value, "score": item.score, "session": item.session_id}
            about |= {"created_at": item.created_at.isoformat(), "truncated": item.truncated}
            documents.append(
                Document(id=item.id, page_content=item.content, metadata={**item.metadata, **about})
            )
        return documents
