"""LlamaIndex on ACMS logs: an agent's memory, a memory block, and a retriever.

memory = ACMSMemory(session=session, budget=8_000)
await ACMSFunctionAgent(llm=llm, tools=[…]).run("…", memory=memory)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.agent.workflow import AgentOutput, FunctionAgent
from llama_index.core.agent.workflow.workflow_events import ToolCallResult
from llama_index.core.async_utils import asyncio_run
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms import types
from llama_index.core.base.llms.types import ChatMessage, MessageRole, TextBlock, ToolCallBlock
from llama_index.core.memory import BaseMemory, BaseMemoryBlock
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from pydantic import ConfigDict, Field, PrivateAttr, SkipValidation

from acms.codecs import OpenAIChat
from acms.integrations.model_input import (
    Request,
    WrittenMessage,
    build_model_input,
    json_text,
    messages_of_entries,
    recall_items,
)
from acms.model import Raw, Role
from acms.ports import Codec, TokenCounter
from acms.session import ACMS, withdraw_from_session
from acms.text.chat_messages import MEDIA_TOKENS

__all__ = ["ACMSFunctionAgent", "ACMSMemory", "ACMSMemoryBlock", "ACMSRetriever"]

_FILES = (types.ImageBlock, types.AudioBlock, types.VideoBlock, types.DocumentBlock)


class ACMSMemory(BaseMemory):
    """The memory of an agent: every message is kept in a session, and `get` shows its log within a token budget.

    The count is that of `codec`, for the messages that the memory returns. An agent's system prompt and its tools are
    extra, and so is the current turn for agents that hand it over only at its end: all but `ACMSFunctionAgent`.
    Messages are returned as they were put; recalled text stands in a message of the user before the newest one.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    session: ACMS = Field(exclude=True)
    budget: int
    codec: SkipValidation[Codec] = Field(default_factory=lambda: OpenAIChat("gpt-5"), exclude=True)

    @classmethod
    def class_name(cls) -> str:
        """Return the name under which the memory is serialized, without its session."""
        return "ACMSMemory"

    @classmethod
    def from_defaults(cls, **kwargs: Any) -> ACMSMemory:
        """Return a memory with these fields."""
        return cls(**kwargs)

    async def aget(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:
        """Return the messages for an input of the model, by default for the last message of the user."""
        if input is None:
            questions = [entry.content for entry in await self.session.entries(50) if entry.role is Role.USER]
            input = questions[-1] if questions else ""
        request = Request(codec=self.codec, budget=self.budget, query=input)
        return await build_model_input(self.session, request, _DIALECT)

    async def aget_all(self) -> list[ChatMessage]:
        """Return all active messages as they were put; an edited or withheld one with its current content."""
        return messages_of_entries(await self.session.entries(), _DIALECT)

    async def aput(self, message: ChatMessage) -> None:
        """Append a message."""
        await self.aput_messages([message])

    async def aput_messages(self, messages: list[ChatMessage]) -> None:
        """Append messages in order, all or none."""
        if messages:
            await self.session.ingest_many([_DIALECT.write(message) for message in messages])

    async def aset(self, messages: list[ChatMessage]) -> None:
        """Make the session hold exactly these messages: others are retracted, and stay in the history."""
        stored_forms = [_DIALECT.write(message) for message in messages]
        result = await self.session.sync(stored_forms, gone="retract")
        listed_ids = {*result.unchanged, *result.appended, *result.replaced}
        other_entries = [entry for entry in await self.session.entries() if entry.id not in listed_ids]
        if other_entries:
            await withdraw_from_session(self.session, other_entries, reason="set")

    async def areset(self) -> None:
        """Retract all messages. History keeps them: `acms.erasure` erases."""
        await self.session.clear()

    def get(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:
        """Return the messages for the model; see `aget`."""
        return asyncio_run(self.aget(input))

    def get_all(self) -> list[ChatMessage]:
        """Return all messages; see `aget_all`."""
        return asyncio_run(self.aget_all())

    def put(self, message: ChatMessage) -> None:
        """Append a message; see `aput`."""
        asyncio_run(self.aput(message))

    def put_messages(self, messages: list[ChatMessage]) -> None:
        """Append messages; see `aput_messages`."""
        asyncio_run(self.aput_messages(messages))

    def set(self, messages: list[ChatMessage]) -> None:
        """Make the session hold just these messages; see `aset`."""
        asyncio_run(self.aset(messages))

    def reset(self) -> None:
        """Retract all messages; see `areset`."""
        asyncio_run(self.areset())


class ACMSFunctionAgent(FunctionAgent):
    """A `FunctionAgent` that hands its memory the calls and answers of tools as they come, not at the end of a turn."""

    async def take_step(self, ctx: Any, llm_input: Any, tools: Any, memory: BaseMemory) -> AgentOutput:
        """Ask the model, and store the calls of tools that it answers with."""
        step = await super().take_step(ctx, llm_input, tools, memory)
        return await self.finalize(ctx, step, memory) if step.tool_calls else step

    async def handle_tool_call_results(
        self, ctx: Any, results: list[ToolCallResult], memory: BaseMemory
    ) -> None:
        """Store the results of the tools."""
        await super().handle_tool_call_results(ctx, results, memory)
        # `finalize` moves what was collected to the memory, and only returns the answer that it is given.
        await self.finalize(ctx, AgentOutput(response=ChatMessage(), current_agent_name=self.name), memory)


class ACMSMemoryBlock(BaseMemoryBlock[str]):
    """A block of LlamaIndex's `Memory`: keeps the messages that leave its queue, and recalls for the last message."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: str = "recalled"
    session: ACMS = Field(exclude=True)
    budget: int = 1000
    _question: str = PrivateAttr(default="")

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        questions = [message.content or "" for message in messages or () if message.role is MessageRole.USER]
        self._question = questions[-1] if questions else ""
        return await self._text(self.budget)

    async def _aput(self, messages: list[ChatMessage]) -> None:
        await self.session.ingest_many([_DIALECT.write(message) for message in messages])

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        """Recall again with this number of tokens less; return None if nothing fits."""
        return await self._text(self.session.counter.count(content) - tokens_to_truncate) or None

    async def _text(self, budget: int) -> str:
        if budget <= 0 or not self._question.strip():
            return ""
        return (await recall_items(self.session, self._question, budget)).text()


class ACMSRetriever(BaseRetriever):
    """Retrieves what a session knows about a query, facts and messages, within a token budget; the best first.

    All sessions of a named namespace, such as a user, are searched. A node has the id of its entry, and as metadata its
    speaker, time and session.
    """

    def __init__(self, session: ACMS, *, budget: int = 2000, limit: int | None = None, **kwargs: Any) -> None:
        self._session = session
        self._budget = budget
        self._limit = limit
        super().__init__(**kwargs)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return asyncio_run(self._aretrieve(query_bundle))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return the recalled items for a query as nodes, best first."""
        items = await recall_items(self._session, query_bundle.query_str, self._budget, limit=self._limit)
        nodes: list[NodeWithScore] = []
        for item in items:
            metadata = {
                "role": item.role and item.role.value,
                "actor": item.actor_id,
                "session": item.session_id,
                "created_at": item.created_at.isoformat(),
            }
            node = TextNode(id_=item.id, text=item.content, metadata=metadata)
            nodes.append(NodeWithScore(node=node, score=item.score))
        return sorted(nodes, key=lambda node: node.score or 0.0, reverse=True)


class _Dialect:
    """A chat message is one message of a log; one with bytes is kept as text only."""

    vendor = "llama-index"

    def write(self, message: ChatMessage) -> dict[str, Any]:
        """Return the stored form of a message, with the original in a `Raw` part unless it holds bytes."""
        extra = message.additional_kwargs
        call_id = extra.get("tool_call_id") or extra.get("name")
        stored_form: dict[str, Any] = {
            "role": _convert_role(message.role, has_call=bool(call_id)),
            "parts": [],
        }
        if not _count_byte_blocks(message.blocks):
            stored_form["parts"].append(Raw(self.vendor, json_text(message.model_dump())))
        if stored_form["role"] is Role.TOOL:
            return {**stored_form, "content": message.content or "", "tool_call_id": str(call_id)}
        content: list[str | dict[str, Any]] = []
        calls: list[Any] = []
        for block in message.blocks:
            content += _content_of_block(block)
            if isinstance(block, ToolCallBlock):
                calls.append(_convert_tool_call(block))
        if not calls:
            calls = [_dump_call(call) for call in extra.get("tool_calls") or ()]
        return {**stored_form, "content": content, "tool_calls": calls}

    def read(self, json: str) -> ChatMessage:
        return ChatMessage.model_validate_json(json)

    def make(self, message: WrittenMessage) -> ChatMessage:
        """Return a message that ACMS wrote as a chat message of the framework."""
        blocks: list[Any] = []
        if message.text or message.results:
            blocks.append(TextBlock(text=message.text))
        for call in message.calls:
            block = ToolCallBlock(tool_call_id=call.call_id, tool_name=call.name, tool_kwargs=call.arguments)
            blocks.append(block)
        extra: dict[str, Any] = {}
        if message.results:
            _, result = message.results[0]
            extra["tool_call_id"] = result.call_id
        return ChatMessage(role=MessageRole(message.role.value), blocks=blocks, additional_kwargs=extra)

    def count_unwritten_tokens(self, message: ChatMessage, counter: TokenCounter) -> int:
        return MEDIA_TOKENS * _count_byte_blocks(message.blocks)


_DIALECT = _Dialect()


def _convert_role(role: MessageRole, *, has_call: bool) -> Role:
    """Return the role of a message in a log; a result without its call is a message of the user."""
    name = "tool" if role is MessageRole.FUNCTION else role.value
    if name not in list(Role):
        return Role.ASSISTANT
    if name == "tool" and not has_call:
        return Role.USER
    return Role(name)


def _content_of_block(block: Any) -> list[str | dict[str, Any]]:
    """Return a block as parts of a chat message; none for a call."""
    if isinstance(block, types.ThinkingBlock):
        return [{"type": "thinking", "thinking": block.content}] if block.content else []
    if isinstance(block, types.ImageBlock) and block.url:
        return [{"type": "image_url", "image_url": {"url": str(block.url)}}]
    if isinstance(block, _FILES):
        address = getattr(block, "url", None) or getattr(block, "path", None)
        return [f"[{block.block_type}: {address}]"]
    text = getattr(block, "text", "")
    return [text] if text else []


def _convert_tool_call(block: ToolCallBlock) -> dict[str, Any]:
    return {
        "id": block.tool_call_id or block.tool_name,
        "name": block.tool_name,
        "arguments": json_text(block.tool_kwargs),
    }


def _dump_call(call: Any) -> Any:
    """Return a call as clients of Chat Completions leave it beside a message."""
    return call if isinstance(call, dict) else call.model_dump()


def _count_byte_blocks(blocks: Sequence[Any]) -> int:
    """Count the blocks that hold bytes."""
    fields = ("image", "audio", "video", "data")
    files = [block for block in blocks if isinstance(block, _FILES)]
    return sum(any(getattr(block, name, None) for name in fields) for block in files)
