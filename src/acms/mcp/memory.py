"""The interface of the tools to a session, in this process or at a service."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from acms.jobs import requests
from acms.model import Entry, Json
from acms.prompt_types import Verdict
from acms.session import ACMS

if TYPE_CHECKING:
    from acms.client.session import RemoteSession
    from acms.contract.engine import ACS

__all__ = ["Local", "Memory"]


class Memory(Protocol):
    """A session, and the operations that differ between this process and a service."""

    @property
    def session(self) -> ACMS | RemoteSession:
        """The session that the connection is bound to."""
        ...

    async def verdict(self, id: str, query: str, budget: int | None) -> Verdict:
        """Return why a recall shows an entry or not; `EntryNotFoundError` if the log does not have it."""
        ...

    async def entry(self, id: str) -> Entry:
        """Return an entry, redacted or withheld where it is private."""
        ...

    async def render(
        self, request: Mapping[str, Json], action: str | None, attempt: int
    ) -> Mapping[str, Json]:
        """Answer a `render_request.v0` from the session, in its wire format."""
        ...

    async def cancel(self, job: str) -> None:
        """Cancel a job of the session; `ConflictError` if it is done."""
        ...


class Local:
    """A session of this process."""

    def __init__(self, session: ACMS) -> None:
        self.session = session
        #: The engine, and the number of erasures in the log when it was made.
        self._engine: ACS | None = None
        self._engine_epoch = 0

    async def verdict(self, id: str, query: str, budget: int | None) -> Verdict:
        """Return the verdict from the ledger of a recall."""
        return (await self.session.recall(query, budget=budget)).ledger.why(id)

    async def entry(self, id: str) -> Entry:
        """Return an entry after the privacy stage of the session."""
        return self.session.internals.redactor.redact_entry(await self.session.get(id))

    async def render(
        self, request: Mapping[str, Json], action: str | None, attempt: int
    ) -> Mapping[str, Json]:
        """Choose context for a request as the ACS contract defines it, and return the answer in its wire format.

        The same engine serves all attempts, because the second one refers to the first. It is replaced after an
        erasure: the results of earlier attempts may quote erased content.
        """
        from acms.contract.engine import ACS  # most clients never ask for it

        context = await self.session.context_id()
        epoch = 0 if context is None else (await self.session.storage.head(context)).epoch
        if self._engine is None or self._engine_epoch != epoch:
            self._engine = await asyncio.to_thread(ACS, [self.session])
            self._engine_epoch = epoch
        return (await self._engine.render(request, action=action, attempt=attempt)).to_wire()

    async def cancel(self, job: str) -> None:
        """Cancel a job in the storage."""
        await requests.cancel_job_by_id(self.session.storage, job)
