"""The memory of a LlamaIndex agent: a session's log within a token budget."""

from __future__ import annotations

from typing import Any

from llama_index.core.async_utils import asyncio_run
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.memory import BaseMemory
from pydantic import ConfigDict, Field, SkipValidation

from acms.codecs import OpenAIChat
from acms.integrations.llama_index.chat_messages import DIALECT, extra, restored
from acms.integrations.model_input import Request, model_input, original
from acms.model import Role
from acms.ports import Codec
from acms.session import ACMS

__all__ = ["ACMSMemory"]


class ACMSMemory(BaseMemory):
    """The memory of an agent: every message is kept in a session, and `get` shows its log within a token budget.

    The count is that of `codec`, for what the memory returns: an agent's system prompt, its tools, and what it writes
    within a turn before it hands it over come on top. Messages come back as they were put; recalled text stands in a
    message of the user before the newest one. A long tool output that alone is beyond the budget comes back cut.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    session: ACMS = Field(exclude=True)
    budget: int
    codec: SkipValidation[Codec] = Field(default_factory=lambda: OpenAIChat("gpt-5"), exclude=True)

    @classmethod
    def class_name(cls) -> str:
        """Return the name it is serialised under; the session is not part of that."""
        return "ACMSMemory"

    @classmethod
    def from_defaults(cls, **kwargs: Any) -> ACMSMemory:
        """Return a memory with these fields."""
        return cls(**kwargs)

    async def aget(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:
        """Return what the model is shown for an input, by default for the last message of the user."""
        query = await _question(self.session) if input is None else input
        request = Request(codec=self.codec, budget=self.budget, query=query)
        shown = await model_input(
            self.session, request, DIALECT, known={}, extra=lambda message: extra(message, self.session)
        )
        return restored(shown)

    async def aget_all(self) -> list[ChatMessage]:
        """Return all messages in force as they were put; of one that was edited or withheld what is shown of it."""
        found: list[ChatMessage] = []
        for entry in await self.session.entries():
            kept = original(entry, DIALECT)
            role = MessageRole.USER if entry.role is None else MessageRole(entry.role.value)
            found.append(ChatMessage(role=role, content=entry.content) if kept is None else kept)
        return found

    async def aput(self, message: ChatMessage) -> None:
        """Append a message."""
        await self.aput_messages([message])

    async def aput_messages(self, messages: list[ChatMessage]) -> None:
        """Append messages in order, all or none."""
        if messages:
            await self.session.ingest_many([DIALECT.write(message) for message in messages])

    async def aset(self, messages: list[ChatMessage]) -> None:
        """Make the session hold just these messages: what is missing is retracted, and history keeps it."""
        await self.session.sync([DIALECT.write(message) for message in messages], gone="retract")

    async def areset(self) -> None:
        """Put all messages out of force. History keeps them: `acms.erasure` erases."""
        await self.session.clear()

    def get(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:
        """Return what the model is shown; see `aget`."""
        return asyncio_run(self.aget(input))

    def get_all(self) -> list[ChatMessage]:
        """Return all messages; see `aget_all`."""
        return asyncio_run(self.aget_all())

    def put(self, message: ChatMessage) -> None:
        """Append a message."""
        asyncio_run(self.aput(message))

    def put_messages(self, messages: list[ChatMessage]) -> None:
        """Append messages; see `aput_messages`."""
        asyncio_run(self.aput_messages(messages))

    def set(self, messages: list[ChatMessage]) -> None:
        """Make the session hold just these messages; see `aset`."""
        asyncio_run(self.aset(messages))

    def reset(self) -> None:
        """Put all messages out of force; see `areset`."""
        asyncio_run(self.areset())


async def _question(session: ACMS) -> str:
    said = [entry.content for entry in await session.entries(50) if entry.role is Role.USER]
    return said[-1] if said else ""
