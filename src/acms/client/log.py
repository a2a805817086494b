"""One session's log at a service: its context and its transport."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from acms.client import nouns
from acms.client.transport import Transport, build_api_path
from acms.errors import SessionNotFoundError
from acms.log import validation
from acms.model import EMPTY, Json
from acms.results import ContextInfo

__all__ = ["Log"]


class Log:
    """One session's log at a service: found by its name when it is first read, created when it is first written."""

    def __init__(
        self,
        transport: Transport,
        session_id: str,
        namespace: str,
        id: str | None = None,
        description: Mapping[str, Json] = EMPTY,
    ) -> None:
        self.transport = transport
        self.session_id = session_id
        self.namespace = namespace
        self.id = id
        #: Name, labels and metadata that the first write stores; empty once they are stored.
        self.description = description
        self._creating: asyncio.Future[str] | None = None

    async def find(self) -> str | None:
        """Return the id of the context, or None if nothing was ever written."""
        if self.id is not None:
            return self.id
        query = {"key": self.session_id, "namespace": self.namespace}
        answer = await self.transport.call("GET", build_api_path("contexts"), query=query)
        contexts = nouns.read_noun_list(ContextInfo, answer.data)
        may_be_id = self.session_id.startswith("c_")
        if not contexts and may_be_id:
            try:
                answer = await self.transport.call("GET", build_api_path("contexts", self.session_id))
            except SessionNotFoundError:
                return None
            contexts = [nouns.read_noun(ContextInfo, answer.data)]
            validation.require_same_namespace(self.namespace, contexts[0].namespace, self.session_id)
        if contexts:
            self.namespace, self.id = contexts[0].namespace, contexts[0].id
        return self.id

    async def ensure(self) -> str:
        """Return the id of the context, which the first write creates; concurrent callers share one request."""
        if self.id is not None and not self.description:
            return self.id
        if self._creating is None:
            self._creating = asyncio.ensure_future(self._create_and_describe())
        creating = self._creating
        try:
            return await asyncio.shield(creating)
        finally:
            if creating.done() and self._creating is creating:
                self._creating = None

    async def _create_and_describe(self) -> str:
        """Create the context unless it exists, and store the description that is not stored yet."""
        id = self.id or await self._create()
        if self.description:
            await self.transport.call("PATCH", build_api_path("contexts", id), body=dict(self.description))
            self.description = EMPTY
        return id

    async def _create(self) -> str:
        """Create the context with its description, unless one with this id or key exists; return its id."""
        if self.session_id.startswith("c_"):
            existing = await self.find()
            if existing is not None:
                return existing
        body = {"key": self.session_id, "namespace": self.namespace, **self.description}
        answer = await self.transport.call("POST", build_api_path("contexts"), body=body)
        # For a known key the service returns the existing context, and ignores the description.
        was_created = answer.status == 201
        if was_created:
            self.description = EMPTY
        self.id = nouns.read_noun(ContextInfo, answer.data).id
        return self.id

    async def require_id(self) -> str:
        """Return the id of the context; `SessionNotFoundError` when nothing was ever written."""
        id = await self.find()
        if id is None:
            raise validation.missing_session_error(self.session_id)
        return id
