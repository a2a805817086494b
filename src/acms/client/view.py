"""The verbs that read a session over HTTP, at the head of its log or at a past version."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from acms.client import nouns
from acms.client.log import Log
from acms.client.nouns import noun
from acms.client.transport import path
from acms.errors import EntryNotFoundError, ValidationError
from acms.knowledge import Fact
from acms.log import validation
from acms.log.policy import ResolvedPolicy
from acms.model import Entry, Json, Role
from acms.nouns import read
from acms.results import (
    Branch,
    Compaction,
    ContextItems,
    Diff,
    Episode,
    HistoryPage,
    Ledger,
    SessionStats,
    Tree,
)

__all__ = ["RemoteView"]


class RemoteView:
    """A session at a service as it was at a version; it reads and cannot write. See `acms.View`."""

    def __init__(self, log: Log, at: int | None) -> None:
        self.log = log
        self._at = at

    def __repr__(self) -> str:
        at = "" if self._at is None else f" at v{self._at}"
        return f"<{type(self).__name__} {self.log.session_id!r}{at}>"

    @property
    def session_id(self) -> str:
        """The caller's name for the conversation."""
        return self.log.session_id

    @property
    def namespace(self) -> str:
        """The group of conversations it belongs to: a user, a project."""
        return self.log.namespace

    async def recall(
        self,
        query: str,
        *,
        token_budget: int | None = None,
        include_current_episode: bool = True,
        min_relevance: float = 0.0,
        exclude: Iterable[str] = (),
        scope: str = "session",
        include_superseded: bool = False,
        relevant_only: bool = False,
    ) -> ContextItems:
        """Return what the model should see for a query, within a hard token budget; see `acms.View.recall`.

        The ledger knows what was chosen from, not the rest of the log.
        """
        if isinstance(exclude, str):
            raise ValidationError("must be a list of ids, not a string", field="exclude")
        self._check_scope(scope)
        context = await self._around()
        written = await self.log.ask(
            context,
            "recall",
            query=query,
            token_budget=token_budget,
            include_current_episode=include_current_episode,
            min_relevance=min_relevance,
            exclude=list(exclude),
            scope=scope,
            include_superseded=include_superseded,
            relevant_only=relevant_only,
            at_version=self._at,
            why=self.log.transport.why,
        )
        return nouns.items(context, written, "items")

    async def window(self, budget: int, *, keep: Collection[str | Role] = ()) -> ContextItems:
        """Return the newest contiguous messages in force within a budget; see `acms.View.window`."""
        budget = validation.budget(budget, "budget")
        context = await self.log.find()
        if context is None:
            self._nothing()
            return ContextItems((), budget=budget, ledger=Ledger(lambda: {}), context="", version=0)
        roles = ",".join(str(role) for role in keep) or None
        query = {"budget": budget, "keep": roles, "atVersion": self._at, "why": self.log.transport.why}
        body = (await self.log.transport.call("GET", path("contexts", context, "window"), query=query)).body
        return nouns.items(context, body, "data")

    async def messages(self, query: str, *, budget: int) -> list[dict[str, Json]]:
        """Return chat messages ready for a provider: the window, and what the past says; see `acms.View.messages`."""
        written = await self.log.ask(
            await self._around(), "chat", query=query, budget=budget, at_version=self._at
        )
        return nouns.value(list, written, "messages")

    async def history(self, *, limit: int = 50, after: int = 0) -> HistoryPage:
        """Return a page of the log, oldest first: entries with a version above `after`."""
        limit = validation.whole(limit, "limit", least=1, most=validation.PAGE)
        after = validation.whole(after, "after")
        context = await self.log.find()
        if context is None:
            self._nothing()
            return HistoryPage(entries=())
        query = {"limit": limit, "cursor": after, "atVersion": self._at}
        body = (await self.log.transport.call("GET", path("contexts", context, "history"), query=query)).body
        with nouns.reading("history"):
            return read(HistoryPage, {"entries": body["data"], "nextAfter": body["nextCursor"]})

    async def episodes(self, status: str | None = None) -> list[Episode]:
        """List the episodes, oldest first; `status` keeps only the open one or the closed ones."""
        if status not in (None, "open", "closed"):
            raise ValidationError(f"{status!r} is not open or closed", field="status")
        context = await self.log.find()
        if context is None:
            self._nothing()
            return []
        found = await self.log.all(context, "episodes", status=status, atVersion=self._at)
        return nouns.nouns(Episode, found)

    async def facts(
        self,
        *,
        subject: str | None = None,
        attribute: str | None = None,
        fact_type: str | None = None,
        history: bool = False,
        scope: str = "session",
    ) -> list[Fact]:
        """List the facts in force, oldest first; see `acms.View.facts`."""
        self._check_scope(scope)
        context = await (self._around() if scope == "namespace" else self.log.find())
        if context is None:
            self._nothing()
            return []
        written = await self.log.all(
            context,
            "facts",
            subject=subject,
            attribute=attribute,
            factType=fact_type,
            history=history,
            scope=scope,
            atVersion=self._at,
        )
        return nouns.nouns(Fact, written)

    async def get(self, id: str) -> Entry:
        """Return any entry of this session by its id; `EntryNotFoundError` when it has none with it at this version."""
        context = await self.log.find()
        if context is None:
            raise EntryNotFoundError(f"the session {self.session_id!r} has no entry {id!r}")
        return noun(Entry, await self.log.get(context, "entries", id, atVersion=self._at))

    async def forks(self) -> list[Branch]:
        """List what was forked from this session directly, oldest first."""
        context = await self.log.find()
        if context is None:
            return []
        found = nouns.nouns(Branch, await self.log.all(context, "forks"))
        return [one for one in reversed(found) if self._at is None or (one.fork or 0) <= self._at]

    async def ancestry(self) -> list[Branch]:
        """List the line of forks that leads to this session, the first one first, itself last."""
        context = await self.log.find()
        if context is None:
            return []
        return nouns.nouns(Branch, await self.log.get(context, "ancestry"))

    async def tree(self) -> Tree | None:
        """Return the whole fork tree this session belongs to; None when nothing was ever written."""
        context = await self.log.find()
        return None if context is None else nouns.tree(await self.log.get(context, "tree"))

    async def tags(self) -> dict[str, int]:
        """Return the named versions, inherited ones too, oldest first."""
        context = await self.log.find()
        if context is None:
            return {}
        found = await self.log.get(context, "tags")
        with nouns.reading("tags"):
            tags: dict[str, int] = {one["name"]: one["version"] for one in found}
            return {name: at for name, at in tags.items() if self._at is None or at <= self._at}

    async def diff(self, other: RemoteView | int | str) -> Diff:
        """Return how what is in force differs on another side: another session, or a version or tag of this one."""
        context = await self.log.known()
        query: dict[str, object] = {"atVersion": self._at}
        if isinstance(other, RemoteView):
            query |= {"other": await other.log.known(), "otherVersion": other._at}
        else:
            query["otherTag" if isinstance(other, str) else "otherVersion"] = other
        found = await self.log.get(context, "diff", **query)
        right = other.session_id if isinstance(other, RemoteView) else self.session_id
        return nouns.diff(found, self.session_id, right)

    async def compactions(self) -> list[Compaction]:
        """List every compaction so far, oldest first, also those that were undone."""
        context = await self.log.find()
        if context is None:
            return []
        return nouns.nouns(Compaction, await self.log.all(context, "compactions", atVersion=self._at))

    async def policy(self) -> ResolvedPolicy:
        """Return the policy in force, and which level each field comes from."""
        return noun(
            ResolvedPolicy, await self.log.get(await self.log.find() or await self.log.ensure(), "policy")
        )

    async def get_session_stats(self) -> SessionStats:
        """Return counts of the session: everything ever said, and what is in force."""
        context = await self.log.find()
        if context is None:
            self._nothing()
            return SessionStats(
                session_id=self.session_id,
                version=0,
                messages=0,
                tokens=0,
                active_messages=0,
                active_tokens=0,
                episodes=0,
                current_episode_id=None,
                facts=0,
                summaries=0,
                counter="",
            )
        written = await self.log.get(context, "stats", atVersion=self._at)
        return noun(SessionStats, written, session_id=self.session_id)

    def _check_scope(self, scope: str) -> None:
        if scope not in ("session", "namespace"):
            raise ValidationError(f"{scope!r} is not session or namespace", field="scope")
        if scope == "namespace" and self._at is not None:
            raise ValidationError("a past version of one session has no namespace around it", field="scope")

    async def _around(self) -> str:
        """Return the id of a context in the namespace: what was asked looks at what is around the session too.

        Of a session that nothing was written to the log is created, and stays empty.
        """
        found = await self.log.find()
        if found is None:
            self._nothing()
            found = await self.log.ensure()
        return found

    def _nothing(self) -> None:
        if self._at:
            raise ValidationError(f"the log ends at version 0, {self._at} does not exist yet", field="at")
