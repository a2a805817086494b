"""The memory service of ADK, over all sessions of a user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.session import Session
from google.genai import types

from acms.config import ACMSConfig
from acms.integrations.google_adk.events import EventDialect, namespace_of
from acms.integrations.model_input import recall_items
from acms.model import Role
from acms.ports import StorageBackend
from acms.results import ContextItem
from acms.session import ACMS, withdraw_from_session

__all__ = ["ACMSMemoryService"]

_MEMORIES = "memories"
"""The session of memories that are added without a session."""


class ACMSMemoryService(BaseMemoryService):
    """A memory service over the logs of a user: a search finds facts and messages, the best first.

    Beside an `ACMSSessionService` with the same storage no session needs to be added: events that are added again
    change nothing. A search returns at most `budget` tokens. A deleted memory is retracted, in its session too, and
    stays retracted when the session is added again; erasing its session deletes the text.
    """

    def __init__(
        self, storage: StorageBackend, *, budget: int = 2000, config: ACMSConfig | None = None
    ) -> None:
        self._storage = storage
        self._budget = budget
        self._config = config

    async def add_session_to_memory(self, session: Session) -> None:
        """Add the events of a session; those that are there already are known by their ids."""
        await self.add_events_to_memory(
            app_name=session.app_name, user_id=session.user_id, events=session.events, session_id=session.id
        )

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Add events, those without content left out; `custom_metadata` is not kept."""
        stored_forms = [
            EventDialect().write(event) for event in events if event.content and event.content.parts
        ]
        async with self._session(app_name, user_id, session_id or _MEMORIES) as session:
            await session.sync(
                list({stored_form["key"]: stored_form for stored_form in stored_forms}.values())
            )

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return the facts and messages that match a query, from all sessions of the user; none for a blank query."""
        if not query.strip():
            return SearchMemoryResponse()
        async with self._session(app_name, user_id, _MEMORIES) as session:
            items = await recall_items(session, query, self._budget, scope="namespace")
        ranked = sorted(items, key=lambda item: item.score, reverse=True)
        return SearchMemoryResponse(memories=[_memory_of_item(item) for item in ranked])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Retract a memory, with its edits, by the id that a search gave it; an unknown one changes nothing."""
        (entry,) = await self._storage.get([memory_id]) if memory_id else (None,)
        if entry is None:
            return
        context = await self._storage.context(entry.context)
        if context.namespace == namespace_of(app_name, user_id):
            async with self._session(app_name, user_id, context.key or context.id) as session:
                await withdraw_from_session(session, [entry], reason="deleted")

    def _session(self, app_name: str, user_id: str, session_id: str) -> ACMS:
        namespace = namespace_of(app_name, user_id)
        return ACMS(session_id, self._storage, config=self._config, namespace=namespace)


def _memory_of_item(item: ContextItem) -> MemoryEntry:
    """Return a recalled item as a memory of the framework."""
    content_role = "model"
    author = item.role and item.role.value
    if item.role is Role.USER:
        content_role = author = "user"
    return MemoryEntry(
        id=item.id,
        content=types.Content(role=content_role, parts=[types.Part(text=item.content)]),
        author=author,
        timestamp=item.created_at and item.created_at.isoformat(),
        custom_metadata={"session_id": item.session_id},
    )
