"""The verbs that read a session, at the head of its log or at a past version."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from acms.errors import NotFoundError, ValidationError, VectorsUnavailableError
from acms.knowledge import Fact, Scope
from acms.log import policy, read, validation
from acms.log.active_entries import anchor_version, preview_text
from acms.log.policy import ResolvedPolicy
from acms.log.read import count_active, read_active_sequence
from acms.model import Entry, EpisodeStatus, Kind, Role, State, client_supplied_key
from acms.nouns import episode_id
from acms.observability.operations import trace_class
from acms.ports import StorageBackend, TokenCounter
from acms.prompt_types import LoggedRender, RenderDetails
from acms.recall import request, window
from acms.results import (
    Branch,
    Citation,
    Compaction,
    ContextItems,
    Diff,
    Episode,
    HistoryEntry,
    HistoryPage,
    SessionStats,
    Tree,
)
from acms.runtime.threads import EACH, off_loop
from acms.session_internals import SessionInternals
from acms.session_state import SharedSession
from acms.text.chat_messages import ChatMessages
from acms.write.episodes import build_episodes

if TYPE_CHECKING:
    pass

__all__ = ["View"]


@trace_class
class View:
    """A session as it was at a version; it reads and cannot write."""

    def __init__(self, shared: SharedSession, at: int | str | None) -> None:
        self._shared = shared
        #: Internals that the other parts of ACMS read; not for programs.
        self.internals = SessionInternals(shared, at)

    def __repr__(self) -> str:
        end = "" if self.ends_at is None else f", at={self.ends_at!r}"
        shared = self._shared
        return f"{type(self).__name__}({self.session_id!r}, {shared.handle!r}, namespace={shared.namespace!r}{end})"

    async def _find(self) -> str | None:
        """Return the id of the log, or None if nothing was written."""
        return await self.internals.context_id()

    @property
    def session_id(self) -> str:
        """The caller's name for the conversation."""
        return self._shared.session_id

    @property
    def namespace(self) -> str:
        """The group of conversations to which it belongs, such as a user or a project."""
        return self._shared.namespace

    @property
    def ends_at(self) -> int | str | None:
        """The version at which it ends, or its tag until that is looked up; None for a session, which has no end."""
        return self.internals.ends_at

    @property
    def counter(self) -> TokenCounter:
        """The counter of the tokens of its messages."""
        return self._shared.counter

    @property
    def storage(self) -> StorageBackend:
        """The storage that holds its log."""
        return self._shared.storage

    async def context_id(self) -> str | None:
        """Return the id of its log, or None if nothing was written yet."""
        return await self._find()

    async def recall(
        self,
        query: str,
        *,
        budget: int | None = None,
        token_budget: int | None = None,
        include_current_episode: bool = True,
        min_relevance: float = 0.0,
        exclude: Iterable[str] = (),
        scope: Scope = "session",
        where: Mapping[str, Any] | None = None,
        limit: int | None = None,
        include_superseded: bool = False,
        relevant_only: bool = False,
    ) -> ContextItems:
        """Return the items that the model should see for a query, within a hard token budget.

        Order: facts, past messages and summaries, then the current episode, each oldest first; `item.rank` counts from
        the best. Facts are those of this log and of the namespace's profile, which is left out at a past version.
        Expired facts are left out, and so is a past message, or the part of it, that a newer fact contradicts;
        `include_superseded` shows them. A fact with a limited time says when it begins or ends.
        The newest message is always included, and cut if necessary. It is left out if it is the query itself, if
        `exclude`, a list of entry ids, names it, or without `include_current_episode`. A budget below 6 tokens returns
        nothing. A tool call and its answers come together.
        With `relevant_only` the current episode has no reserved share: its messages compete by relevance like all
        others. Use it for a prompt that shows the newest messages itself.
        With `scope="namespace"` all sessions of a named namespace except private ones are searched as if they were one
        log: items of other sessions come first, session by session, the oldest first. The namespace "default" refuses
        this, since it is shared by unrelated sessions.
        `where` filters messages by "role", "actor", "marker" and "session" (one or several), "after" (at that time
        or later) and "before" (aware, or ISO 8601; a day alone begins at midnight UTC), and "metadata", a mapping of
        values to match. A tool call comes with its answers if one of them matches. `limit` is the maximum number of
        items, the best by rank, with or without the latest message.
        `token_budget` is an alias of `budget`; passing both raises `TypeError`.
        Raises `ValidationError` for a blank query, and for an invalid budget, relevance or filter.
        """
        if budget is not None and token_budget is not None:
            raise TypeError("recall() takes budget or token_budget, not both")
        query = validation.validate_query(query)
        config = self._shared.config.recall
        if budget is None:
            budget = config.token_budget if token_budget is None else token_budget
            recall = self.internals.build_recall(query, budget, "token_budget")
        else:
            recall = self.internals.build_recall(query, budget)
        recall = replace(
            recall,
            include_current=validation.require_flag(include_current_episode, "include_current_episode"),
            min_relevance=validation.validate_fraction(min_relevance, "min_relevance"),
            exclude=frozenset(validation.validate_ids(exclude, "exclude")),
            floor=config.current_episode_budget_pct,
            namespace=self.internals.namespace_to_search(scope),
            where=None if where is None else request.parse_filter(where),
            limit=None if limit is None else validation.validate_integer(limit, "limit", minimum=1),
            include_superseded=validation.require_flag(include_superseded, "include_superseded"),
            only_relevant=validation.require_flag(relevant_only, "relevant_only"),
        )
        return await self.internals.run_recall(recall)

    async def window(self, budget: int, *, keep: Collection[str | Role] = ()) -> ContextItems:
        """Return the newest contiguous active messages within a budget of tokens, oldest first, tool groups whole.

        The newest message is always included, and cut if it alone exceeds the budget; a budget below 6 tokens returns
        nothing. `keep` names roles, such as "system", whose messages at the start of the log are kept in front.
        The window ends before an older message that does not fit, however short the ones before that are:
        `ledger.why_not` of that message says so, and `messages` cuts it and goes on.
        """
        shared = self._shared
        budget = validation.validate_budget(budget, "budget")
        roles = validation.parse_roles(keep, "keep")
        context = await self._find()
        if context is None:
            return shared.report_plan("window", self.internals.plan_nothing(budget))
        if roles:
            gathered = await window.gather_all(shared.storage, context, self.internals.at, shared.redactor)
        else:
            gathered = await window.gather_newest(
                shared.storage, context, self.internals.at, shared.frame, budget, shared.redactor
            )
        gathered = await self.internals.add_labels(gathered)
        plan = partial(window.plan_window, gathered, budget, shared.counter, shared.frame, roles)
        return shared.report_plan("window", await off_loop(plan, len(gathered.units) * EACH))

    async def messages(self, query: str, *, budget: int) -> ChatMessages:
        """Return chat messages ready for a provider: the newest messages, and recalled text for the query.

        If the whole history fits, it is returned. Otherwise come leading system messages, then the newest messages,
        with recalled text, facts first, as delimited data right before the newest user message. A message that does not
        fit is cut, and long arguments of a call inside their JSON: to half of the tokens that are left, or to all that
        older messages do not need. Nothing is shown twice, and every tool call is followed by its answers. Names of
        tools are sent with the characters that OpenAI accepts. Facts of the namespace's profile are recalled in both
        cases, but not at a past version. Of a turn with many tool calls only the newest are shown:
        `acms.prompt.Prompt` also names the others, so that an agent does not repeat them.
        Images and files of the user are parts; they cost the tokens they state, else 1,445 each. The cost
        (`acms.text.chat_messages.count_message_tokens`) never exceeds the budget. Raises `TokenBudgetExceededError` if
        the system messages and a newest tool call do not fit. The result is a list; its `sources` has for each message
        the ids of the entries it shows.
        """
        shared = self._shared
        context = await self._find()
        recall = self.internals.build_recall(query, budget)
        if context is None:
            shared.report_plan("messages", self.internals.plan_nothing(recall.budget))
            return ChatMessages()
        from acms.prompt.messages import chat_plan  # imported for the first prompt

        log = None if self.internals.render_log is None else await self.internals.render_log.begin()
        plan = await chat_plan(shared.reader(), context, self.internals.at, recall)
        shared.report_plan("messages", plan.items)
        if log is not None:
            from acms.prompt.render_log import manifest_of_messages

            details = {"budget": recall.budget, "tokens": plan.tokens, "counter": shared.counter.name}
            build_manifest = partial(
                manifest_of_messages, plan.messages, plan.messages.sources, plan.items, **details
            )
            log.add("messages", build_manifest)
        return plan.messages

    async def renders(self, *, limit: int = 50, after: str | None = None) -> list[LoggedRender]:
        """Return the logged renders of this session, newest first: prompts, `messages` and replies of the contract.

        They are kept if `ACMSConfig.renders` is enabled, within its limits of time and size. A fork does not inherit
        them, a past version has none, and erasing an entry deletes its renders in the whole fork tree. `after` is the
        id of the last one of the previous page.
        """
        limit = validation.validate_integer(limit, "limit", minimum=1, maximum=validation.PAGE)
        if self.ends_at is not None:
            await self._find()
            return []
        return await self.internals.open_renders().page(limit, after)

    async def sent(self, id: str, *, against: str | None = None) -> RenderDetails:
        """Return one of `renders` with its messages, the entries left out, and the request itself.

        It is compared with the render `against`, by default with the previous one of its kind. Text of the log is shown
        as the log has it now; `payload_note` says if that differs from the sent text.
        Raises `NotFoundError` if a render is no longer kept.
        """
        id = validation.validate_name(id, "id")
        against = None if against is None else validation.validate_name(against, "against")
        if self.ends_at is not None:
            raise NotFoundError(f"a past version has no render {id!r}", options=("ask the session itself",))
        return await self.internals.open_renders().details(id, against)

    async def entries(self, newest: int | None = None) -> list[Entry]:
        """Return the active messages and summaries, oldest first; with `newest` only that many of the last ones.

        Nothing is left out or cut, not even tool calls with missing answers. An edit has the position of the message it
        replaces.
        """
        shared = self._shared
        if newest is not None:
            newest = validation.validate_integer(newest, "newest")
        context = await self._find()
        if context is None:
            return []
        active = await read_active_sequence(shared.storage, context, self.internals.at, newest)
        characters = shared.redactor.count_unredacted_characters(active)
        return list(await off_loop(partial(shared.redactor.redact_entries, active), characters))

    async def history(self, *, limit: int = 50, after: int = 0) -> HistoryPage:
        """Return a page of the log, oldest first: entries with a version above `after`."""
        shared = self._shared
        limit = validation.validate_integer(limit, "limit", minimum=1, maximum=validation.PAGE)
        after = validation.validate_integer(after, "after")
        context = await self._find()
        if context is None:
            return HistoryPage(entries=())
        head = await shared.storage.head(context)
        version = read.version_to_read(head, self.internals.at)
        entries = await shared.storage.read(context, at=version, after=after, limit=limit + 1)
        replacements = await read.replacements_at(shared.storage, context, head, version)
        page = [
            HistoryEntry(
                id=entry.id,
                version=entry.version,
                position=entry.position,
                kind=entry.kind,
                role=entry.role,
                preview=preview_text(shared.redactor.redact_entry(entry).content),
                tokens=entry.tokens,
                created_at=entry.created_at,
                state=entry.state,
                in_force=replacements.replaced_by(entry.version) is None,
            )
            for entry in entries[:limit]
        ]
        return HistoryPage(entries=tuple(page), next_after=page[-1].version if len(entries) > limit else None)

    async def episodes(self, status: EpisodeStatus | str | None = None) -> list[Episode]:
        """List the episodes, oldest first: all, or with `status` only the open one or the closed ones."""
        if status not in (None, *EpisodeStatus):
            raise ValidationError(f"{status!r} is not open or closed", field="status")
        context = await self._find()
        if context is None:
            return []
        head = await self._shared.storage.head(context)
        version = read.version_to_read(head, self.internals.at)
        kinds = (Kind.MESSAGE, Kind.EPISODE, Kind.SUMMARY)
        entries = await self._shared.storage.read(context, at=version, kinds=kinds)
        replacements = await read.replacements_at(self._shared.storage, context, head, version)
        shown: list[Entry] = []
        for entry in entries:
            if entry.kind is not Kind.SUMMARY:
                shown.append(entry)
            elif replacements.replaced_by(entry.version) is None:
                shown.append(self._shared.redactor.redact_entry(entry))
        episodes = await off_loop(lambda: build_episodes(context, shown), len(shown) * EACH)
        return [episode for episode in episodes if status in (None, episode.status)]

    async def facts(
        self,
        *,
        subject: str | None = None,
        attribute: str | None = None,
        fact_type: str | None = None,
        history: bool = False,
        scope: Scope = "session",
        as_of: int | datetime | None = None,
        valid_at: datetime | None = None,
    ) -> list[Fact]:
        """List the active facts, oldest first; with `history` also retired ones, each with the reason.

        Addresses match without regard to case, articles, plurals and punctuation. With `scope="namespace"` the facts
        of the namespace's profile are listed; the namespace "default", shared by unrelated sessions, has none.

        A fact is active also before its `valid_from` and after its `valid_to`. `valid_at` limits the list to facts that
        are true at a moment. `as_of` is a version or a time: the list is the one that would have been returned then.
        """
        from acms.facts import request as facts

        facts.check_filter(subject, attribute, fact_type)
        version = self._check_time_of_facts(scope, history, as_of, valid_at)
        storage, context = self._shared.storage, await self._find()
        if scope == "namespace":
            profile = await read.find_profile(storage, validation.require_shared_namespace(self.namespace))
            context = None if profile is None else profile.id
        elif context is None and version:
            raise validation.missing_version_error(0, version)
        if context is None:
            return []
        if isinstance(as_of, int):
            as_of = None
        return await facts.read_facts(
            storage,
            context,
            version,
            subject=subject,
            attribute=attribute,
            fact_type=fact_type,
            history=history,
            as_of=None if as_of is None else validation.parse_moment(as_of, "as_of"),
            valid_at=None if valid_at is None else validation.parse_moment(valid_at, "valid_at"),
            redactor=self._shared.redactor,
        )

    def _check_time_of_facts(
        self, scope: str, history: bool, as_of: int | datetime | None, valid_at: datetime | None
    ) -> int | None:
        """Return the version at which facts are read; raise `ValidationError` if the arguments contradict."""
        validation.require_flag(history, "history")
        if scope not in ("session", "namespace"):
            raise ValidationError(f"{scope!r} is not session or namespace", field="scope")
        if scope == "namespace" and self.internals.at is not None:
            raise ValidationError("a past version of a session cannot search its namespace", field="scope")
        if history and valid_at is not None:
            raise ValidationError("history is not for one moment: leave one of them out", field="valid_at")
        if not isinstance(as_of, int):
            return self.internals.at
        if scope == "namespace":
            raise ValidationError("a version belongs to one session: give a time", field="as_of")
        version = validation.validate_integer(as_of, "as_of")
        if self.internals.at is not None and version > self.internals.at:
            raise ValidationError(f"this view ends at version {self.internals.at}", field="as_of")
        return version

    async def get(self, id: str) -> Entry:
        """Return any entry of this session by its id, as it was stored, whatever its privacy.

        A message may be named by the caller's key, which returns its newest edit. Show the result to the owner of the
        data, not to a model. Raises `EntryNotFoundError` if this version has no such entry.
        """
        return await self._shared.entry(await self._find(), self.internals.at, id, newest=True)

    async def keys(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the caller's keys of entries of this session by id; for an edit, the key of the message it edits.

        Entries without a key are left out. Adapters use this to find the originals of rendered messages: the ids are
        the `sources` of the messages of a prompt, and of `messages`.
        """
        ids = validation.validate_ids(ids, "ids")
        storage, context = self._shared.storage, await self._find()
        keys: dict[str, str] = {}
        if context is None:
            return keys
        lineage = dict((await storage.context(context)).lineage)
        # The last visible version of this log and of those it was forked from.
        last_versions = {**lineage, context: self.internals.at or float("inf")}
        for entry in await storage.get(ids):
            if entry is None or entry.kind is not Kind.MESSAGE:
                continue
            if entry.version > last_versions.get(entry.context, 0):
                continue
            original = entry
            version = anchor_version(entry)
            is_edit = version != entry.version
            if is_edit:
                (original,) = await storage.read(context, after=version - 1, before=version + 1)
            key = client_supplied_key(original.key)
            if key is not None:
                keys[entry.id] = key
        return keys

    async def forks(self) -> list[Branch]:
        """List the direct forks of this session, oldest first."""
        from acms.branches import forks

        context = await self._find()
        if context is None:
            return []
        return await forks.list_live_forks(self._shared.storage, context, self.internals.at)

    async def ancestry(self) -> list[Branch]:
        """List the forks that lead to this session: the first ancestor first, the session itself last."""
        from acms.branches import forks

        context = await self._find()
        return [] if context is None else await forks.read_ancestry(self._shared.storage, context)

    async def tree(self) -> Tree | None:
        """Return the whole fork tree of this session, or None if nothing was written yet."""
        from acms.branches import forks

        context = await self._find()
        return None if context is None else await forks.read_fork_tree(self._shared.storage, context)

    async def tags(self) -> dict[str, int]:
        """Return the named versions, inherited ones too, oldest first."""
        from acms.branches import forks

        context = await self._find()
        if context is None:
            return {}
        return await forks.read_tags(self._shared.storage, context, self.internals.at)

    async def diff(self, other: View | int | str) -> Diff:
        """Compare the active entries with another side: another session, or a version or tag of this one.

        The direction is from this side to the other: added entries are there and not here.
        """
        from acms.branches import forks

        this_side = forks.Side(self._shared, self.ends_at)
        if isinstance(other, View):
            other_side = forks.Side(other._shared, other.ends_at)
        else:
            other_side = forks.Side(self._shared, validation.validate_version_or_tag(other, "other"))
        return await forks.diff_sessions(this_side, other_side)

    async def compactions(self) -> list[Compaction]:
        """List every compaction so far, oldest first, also those that were undone."""
        from acms.compaction import job

        context = await self._find()
        if context is None:
            return []
        return await job.read_compactions(
            self._shared.storage, context, self.internals.at, redactor=self._shared.redactor
        )

    async def citations(self) -> list[Citation]:
        """List the cited entries with the number of their citations, the last cited one first; see `cite`."""
        from acms.recall import citation_counts

        context = await self._find()
        return [] if context is None else await citation_counts.load_citations(self._shared.storage, context)

    async def expand(self, version: int) -> list[Entry]:
        """Return the messages and earlier summaries that the summary at a version replaced.

        Raises `EntryNotFoundError` if there is no summary at this version.
        """
        from acms.compaction import job

        version = validation.validate_integer(version, "version")
        context = await self._find()
        replaced = await job.expand_summary(self._shared.storage, context, self.internals.at, version)
        return list(self._shared.redactor.redact_entries(replaced))

    async def policy(self) -> ResolvedPolicy:
        """Return the active policy, and the level from which each field comes."""
        shared = self._shared
        return await policy.resolve_policy(
            shared.storage,
            await self._find(),
            namespace=shared.namespace,
            service=shared.config.compaction,
            service_retention=shared.config.retention_seconds,
        )

    async def get_session_stats(self) -> SessionStats:
        """Return counts of the session: all messages ever stored, and the active ones."""
        from acms.log.facts import active_facts
        from acms.recall import citation_counts

        shared = self._shared
        context = await self._find()
        if context is None:
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
                counter=shared.counter.name,
                tier=shared.tier,
            )
        head = await shared.storage.head(context)
        version = read.version_to_read(head, self.internals.at)
        messages, tokens = await read.count_messages(shared.storage, context, head, version)
        replacements = await read.replacements_at(shared.storage, context, head, version)
        active_messages, active_tokens = await count_active(
            shared.storage, context, head, version, replacements
        )
        derived = await shared.storage.read(context, at=version, kinds=(Kind.FACT, Kind.SUMMARY))
        summaries = [entry for entry in derived if entry.kind is Kind.SUMMARY and entry.replaces]
        active_summaries = [
            summary
            for summary in summaries
            if summary.state is State.LIVE and replacements.replaced_by(summary.version) is None
        ]
        episodes = await self._newest_episode(context, version)
        citations = await citation_counts.load_citations(shared.storage, context)
        return SessionStats(
            session_id=self.session_id,
            version=version,
            messages=messages,
            tokens=tokens,
            active_messages=active_messages,
            active_tokens=active_tokens,
            episodes=episodes,
            current_episode_id=episode_id(context, episodes) if episodes else None,
            facts=len(active_facts(derived, replacements)),
            summaries=len(active_summaries),
            counter=shared.counter.name,
            tier=shared.tier,
            coverage=await self._measure_coverage(context, version),
            cited=len(citations),
            citations=sum([citation.count for citation in citations]),
        )

    async def _measure_coverage(self, context: str, version: int) -> float:
        """Return the share of the entries up to a version that have vectors, from 0 to 1; 1 without an embedder."""
        embedding = self._shared.embedding
        if embedding is None or not version:
            return 1.0
        try:
            missing = await self._shared.handle.missing(embedding.space, context=context, limit=version)
        except VectorsUnavailableError:
            return 0.0
        missing_up_to_version = [entry_version for _, entry_version in missing if entry_version <= version]
        return 1 - len(missing_up_to_version) / version

    async def _newest_episode(self, context: str, version: int) -> int:
        """Return the number of the newest message's episode, 0 if there is no message; edits do not count."""
        before = version + 1
        while before > 1:
            entries = await self._shared.storage.read(
                context, before=before, kinds=(Kind.MESSAGE,), newest=16
            )
            episodes = [entry.episode for entry in entries if not entry.replaces]
            if episodes:
                return episodes[-1]
            before = entries[0].version if entries else 0
        return 0
