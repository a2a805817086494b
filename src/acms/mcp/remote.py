"""A session of a service, for the tools: each verb is an operation, with its checks, limits and audit."""

from __future__ import annotations

from collections.abc import Mapping

from acms.client import Client
from acms.client.session import RemoteSession
from acms.client.transport import build_api_path
from acms.errors import EntryNotFoundError
from acms.model import Entry, Json
from acms.nouns import decode_noun
from acms.prompt_types import Verdict

__all__ = ["Remote"]


class Remote:
    """A session of a service."""

    def __init__(self, client: Client, session: RemoteSession) -> None:
        self._client = client
        self.session = session

    async def verdict(self, id: str, query: str, budget: int | None) -> Verdict:
        """Request the verdict on one entry, even if it was no candidate."""
        log = self.session.log
        body = {"query": query, "about": [id], **({} if budget is None else {"budget": budget})}
        answer = await log.transport.call(
            "POST", build_api_path("contexts", await log.require_id(), "recall"), body=body
        )
        for row in answer.data["verdicts"]:
            return decode_noun(Verdict, row)
        raise EntryNotFoundError(f"the log has no entry {id!r}")

    async def entry(self, id: str) -> Entry:
        """Return an entry as the service does: redacted or withheld where it is private."""
        return await self.session.get(id)

    async def render(
        self, request: Mapping[str, Json], action: str | None, attempt: int
    ) -> Mapping[str, Json]:
        """Call `/orchestration/render`."""
        return await self._client.render(request, [self.session], action=action, attempt=attempt)

    async def cancel(self, job: str) -> None:
        """Cancel a job at the service."""
        await self.session.log.transport.call("POST", build_api_path("jobs", job, "cancel"))
