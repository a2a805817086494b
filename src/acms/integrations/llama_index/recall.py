"""What a session knows about a query, as a block of LlamaIndex's memory and as nodes of a retriever."""

from __future__ import annotations

from typing import Any

from llama_index.core.async_utils import asyncio_run
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.memory import BaseMemoryBlock
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from pydantic import ConfigDict, Field, PrivateAttr

from acms.integrations.llama_index.chat_messages import DIALECT
from acms.results import ContextItems
from acms.session import ACMS

__all__ = ["ACMSMemoryBlock", "ACMSRetriever"]


class ACMSMemoryBlock(BaseMemoryBlock[str]):
    """A block of LlamaIndex's `Memory`: keeps what its queue lets go, and recalls what answers the last message."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: str = "recalled"
    session: ACMS = Field(exclude=True)
    budget: int = 1000
    _asked: str = PrivateAttr(default="")

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        asked = [one.content or "" for one in messages or () if one.role is MessageRole.USER]
        self._asked = asked[-1] if asked else ""
        return await self._recall(self.budget) if self._asked.strip() else ""

    async def _aput(self, messages: list[ChatMessage]) -> None:
        await self.session.ingest_many([DIALECT.write(message) for message in messages])

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        """Recall again, in so many tokens less; None when that is none."""
        room = self.session.counter.count(content) - tokens_to_truncate
        return await self._recall(room) or None if room > 0 and self._asked.strip() else None

    async def _recall(self, budget: int) -> str:
        return (await _recall(self.session, self._asked, budget)).text()


class ACMSRetriever(BaseRetriever):
    """Retrieves what a session knows about a query, facts and messages, within a token budget; the best first.

    Of a named namespace, such as a user, all sessions are asked. A node has the id of its entry; who said it, when and
    in which session is its metadata.
    """

    def __init__(self, session: ACMS, *, budget: int = 2000, limit: int | None = None, **kwargs: Any) -> None:
        self._session = session
        self._budget = budget
        self._limit = limit
        super().__init__(**kwargs)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return asyncio_run(self._aretrieve(query_bundle))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        items = await _recall(self._session, query_bundle.query_str, self._budget, self._limit)
        nodes = [
            NodeWithScore(
                node=TextNode(
                    id_=item.id,
                    text=item.content,
                    metadata={
                        "role": item.role and item.role.value,
                        "actor": item.actor_id,
                        "session": item.session_id,
                        "created_at": item.created_at and item.created_at.isoformat(),
                    },
                ),
                score=item.score,
            )
            for item in items
        ]
        return sorted(nodes, key=lambda node: node.score or 0.0, reverse=True)


async def _recall(session: ACMS, query: str, budget: int, limit: int | None = None) -> ContextItems:
    scope = "session" if session.namespace == "default" else "namespace"
    return await session.recall(query, budget=budget, scope=scope, limit=limit, relevant_only=True)
