"""Internals of a session that prompts, the contract, the servers and the adapters read; not for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from acms.errors import ValidationError
from acms.knowledge import Scope
from acms.log import validation
from acms.log.active_entries import Replacements
from acms.observability.operations import trace_class
from acms.ports import StorageBackend, TokenCounter
from acms.privacy.redactor import Redactor
from acms.recall import pipeline, request, window
from acms.results import ContextItems, IndexStats
from acms.session_state import SharedSession
from acms.storage.cache import CachedStorage, CacheStats
from acms.text.markers import terms_of_markers

if TYPE_CHECKING:
    from acms.prompt.render_log import RenderLog

__all__ = ["SessionInternals"]


@trace_class
class SessionInternals:
    """A session or view as the other parts of ACMS read it."""

    def __init__(self, shared: SharedSession, at: int | str | None) -> None:
        self._shared = shared
        #: The version at which it ends, or None for the head; only valid once there is no tag.
        self.at = 0 if isinstance(at, str) else at
        #: The tag of that version, until the first use looks it up.
        self._tag = at if isinstance(at, str) else None
        #: Whether its tag or version is known to exist.
        self._exists = at is None

    @property
    def session_id(self) -> str:
        """The caller's name for the conversation."""
        return self._shared.session_id

    @property
    def counter(self) -> TokenCounter:
        """How the tokens of its messages are counted."""
        return self._shared.counter

    @property
    def storage(self) -> StorageBackend:
        """The storage that holds its log."""
        return self._shared.storage

    @property
    def ends_at(self) -> int | str | None:
        """The version at which it ends, or its tag until that is looked up; None for a session, which goes on."""
        return self.at if self._tag is None else self._tag

    @property
    def effort(self) -> float:
        """Share of a prompt's free tokens that the recall of one turn may take, see `RecallConfig`."""
        return self._shared.config.recall.effort

    @property
    def external_share(self) -> float:
        """Share of a recall that external text may take, see `RecallConfig.external_budget_pct`."""
        return self._shared.config.recall.external_budget_pct

    @property
    def redactor(self) -> Redactor:
        """The redaction applied to its entries before recalls, windows, prompts and lists show them."""
        return self._shared.redactor

    @property
    def render_log(self) -> RenderLog | None:
        """The log of its sent requests, or None if `ACMSConfig.renders` is disabled or at a past version."""
        return self.open_renders() if self._shared.config.renders.enabled and self.ends_at is None else None

    def open_renders(self) -> RenderLog:
        """Return the log of its sent requests, also if none are kept any more."""
        from acms.prompt.render_log import RenderLog  # the first render that is kept loads it

        shared = self._shared
        return RenderLog(shared.storage, shared.config.renders, shared.redactor, shared.find, shared.renders)

    @property
    def cache_stats(self) -> CacheStats | None:
        """The statistics of the cache in front of the storage, or None if caching is disabled."""
        storage = self._shared.storage
        return storage.stats if isinstance(storage, CachedStorage) else None

    @property
    def index_stats(self) -> IndexStats:
        """The statistics of the indexes of the storage handle."""
        return self._shared.index_stats

    async def context_id(self) -> str | None:
        """Return the id of its log, or None if nothing was written.

        The first call replaces a tag by its version; `NotFoundError` if there is no such tag or version.
        """
        context = await self._shared.find()
        if self._exists:
            return context
        storage = self._shared.storage
        if self._tag is not None:
            from acms.branches import forks

            self.at = await forks.version_of_tag(storage, context, self._tag)
            self._tag = None
        elif self.at is not None and self.at > 0:
            newest = 0 if context is None else (await storage.head(context)).version
            if self.at > newest:
                raise validation.missing_version_error(newest, self.at)
        self._exists = True
        return context

    async def read_span(
        self,
        *,
        budget: int | None = None,
        messages: int | None = None,
        since: int | None = None,
        began: int | None = None,
    ) -> window.LogSpan:
        """Return the active entries as atomic groups, oldest first, with labels on entries that may be outdated.

        Without arguments these are all groups; with `budget` or `messages` the newest groups that fill that number of
        tokens or messages, where the first group may exceed it. With `since`, they begin with the last group that has
        at most `since` tokens of the log before it, and automatic summaries later than version `began` do not count.
        Tokens are by the session's counter.
        """
        shared = self._shared
        if budget is not None:
            budget = validation.validate_integer(budget, "budget")
        if messages is not None:
            messages = validation.validate_integer(messages, "messages")
        if since is not None:
            since = validation.validate_integer(since, "since")
        context = await self.context_id()
        if context is None:
            return self.gather_nothing()
        store, redactor, at = shared.storage, shared.redactor, self.at
        if messages is not None:
            gathered = await window.gather_last(store, context, at, messages, redactor)
        elif budget is not None:
            gathered = await window.gather_newest(store, context, at, shared.frame, budget, redactor)
        elif since is not None:
            gathered = await window.gather_since(store, context, at, since, redactor, began)
        else:
            gathered = await window.gather_all(store, context, at, redactor)
        return await self.add_labels(gathered)

    async def add_labels(self, gathered: window.LogSpan) -> window.LogSpan:
        """Return gathered entries with labels on those that may be outdated, as of now or of a past version's end."""
        if not gathered.non_messages:
            return gathered
        shared = self._shared
        moment = shared.clock() if self.at is None else gathered.newest
        labels = await window.load_labels(shared.indexes, gathered.context, gathered.version, moment)
        return replace(gathered, labels=labels)

    async def recall_for_prompt(
        self,
        query: str,
        *,
        budget: int,
        others_whole: int = 0,
        user_words: int = 0,
        exclude: Iterable[str] = (),
        scope: Scope | None = None,
        min_relevance: float = 0.0,
        where: Mapping[str, Any] | None = None,
        limit: int | None = None,
        include_superseded: bool = False,
    ) -> ContextItems:
        """Return the items that a prompt shows in addition to its history: all above the relevance cutoff.

        The default `scope` is "namespace", and "session" in the namespace "default" and at a past version. Other
        sessions are shown whole if their whole text takes at most `others_whole` tokens. In the log of an agent short
        messages of the user come first, up to `user_words` tokens.
        """
        if scope is None:
            has_other_sessions = self.at is None and self._shared.namespace != validation.UNNAMED
            scope = "namespace" if has_other_sessions else "session"
        recall = replace(
            self.build_recall(query, budget),
            min_relevance=min_relevance,
            exclude=frozenset(exclude),
            namespace=self.namespace_to_search(scope),
            where=None if where is None else request.parse_filter(where),
            limit=limit,
            include_superseded=include_superseded,
            only_relevant=True,
            only_on_topic=True,
            others_whole=others_whole,
            user_words=user_words,
        )
        return await self.run_recall(recall)

    async def run_recall(self, recall: request.Recall) -> ContextItems:
        """Run a recall and report its plan; return no items if there is no log, namespace or profile to read."""
        shared = self._shared
        context = await self.context_id()
        has_log = context is not None or recall.namespace is not None
        if not has_log and not await self._has_profile():
            return shared.report_plan("recall", self.plan_nothing(recall.budget))
        items = await pipeline.run_recall(shared.reader(), context, self.at, recall)
        return shared.report_plan("recall", items)

    def build_recall(self, query: str, budget: int, budget_field: str = "budget") -> request.Recall:
        """Return a recall with the fields that all recalls of this session share; `budget_field` appears in errors."""
        shared = self._shared
        return request.Recall(
            query=validation.repair_and_validate_text(query, "query"),
            budget=validation.validate_budget(budget, budget_field),
            weights=shared.config.marker_weights,
            markers=terms_of_markers(shared.patterns),
            home=shared.namespace,
            profile=shared.namespace if self.at is None else None,
            moment=shared.clock() if self.at is None else None,
            rerank=shared.candidates,
            external_share=shared.config.recall.external_budget_pct,
        )

    def namespace_to_search(self, scope: str) -> str | None:
        """Return the namespace whose sessions are all searched, or None for this session alone."""
        if scope not in ("session", "namespace"):
            raise ValidationError(f"{scope!r} is not session or namespace", field="scope")
        if scope == "session":
            return None
        if self.at is not None:
            raise ValidationError("a past version of a session cannot search its namespace", field="scope")
        return validation.require_shared_namespace(self._shared.namespace)

    async def _has_profile(self) -> bool:
        """Return whether the namespace has a profile."""
        return (
            self.at is None and await self._shared.indexes.profiles.find(self._shared.namespace) is not None
        )

    def plan_nothing(self, budget: int) -> ContextItems:
        """Return an empty plan for a log without entries."""
        return window.plan_window(self.gather_nothing(), budget, self._shared.counter, self._shared.frame)

    def gather_nothing(self) -> window.LogSpan:
        """Return an empty result for a log without entries."""
        return window.LogSpan("", 0, Replacements(()), [], [], whole=True)
