"""Erasing, expiring and collecting: three ways to remove content permanently, and the proof of erasure.

*Erase* also removes everything derived from the content, in every fork. *Expire* is retention: it removes the content
and keeps the summary that replaces it. *Delete* only hides; a job *collects* entries that no fork reads any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import EllipsisType
from typing import Any, Literal, NamedTuple, TypeVar

from acms.branches.export import PAGE, read_pages
from acms.branches.forks import COLLECT_AFTER, find_context, find_context_to_erase, list_contexts
from acms.erasure import proof
from acms.erasure.quotes import QuoteIndex
from acms.errors import ACMSError, EntryNotFoundError, SessionNotFoundError, ValidationError
from acms.facts.statements import fold_text, mentions_value
from acms.jobs.requests import COMPACT, PRIVACY
from acms.log import policy, validation
from acms.log.active_entries import Replacements, is_merge_record
from acms.log.known_messages import hash_sensitive_key
from acms.log.policy import CompactionPolicy
from acms.log.provenance import COPIED, COPIES, Link, ReachedEntries, Run, source_spans
from acms.log.read import find_profile
from acms.log.settings import read_setting
from acms.model import (
    Append,
    Context,
    ContextQuery,
    Done,
    Entry,
    Failed,
    JobDraft,
    Kind,
    Lease,
    Privacy,
    Retry,
    State,
)
from acms.observability.operations import trace_function
from acms.ports import Progress, StorageBackend
from acms.results import Erasure, Remaining
from acms.storage.append_rules import split_segments
from acms.storage.sessions import count_erased
from acms.storage.traces import MIN_TEXT_BYTES

T = TypeVar("T")
RemainingKind = Literal["source", "statement", "copy"]

LOOK_AGAIN = timedelta(days=1)
"""Retry interval of a job that waits for people, such as one under legal hold."""
_CITES_ORIGINAL = {Kind.MESSAGE: "m_", Kind.FACT: "f_"}
"""Id prefixes of originals among the sources of a copy: facts also cite the messages they were derived from."""


# ── erase ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def erase_entries(
    storage: StorageBackend,
    context: str,
    ids: Sequence[str],
    *,
    verify: bool = False,
    rewrite: bool = False,
    reason: str = "erased",
    service: CompactionPolicy | None = None,
    privacy: Privacy | None = None,
    progress: Progress | None = None,
) -> Erasure:
    """Erase entries that a context reads, and everything derived from them, in every fork of its tree.

    `ids` are entry ids, or the caller's keys of messages; a key is erased with its content and then finds nothing.
    Also erased are their edits and the entries they edit, every summary that replaces one of them, and every fact and
    summary that cites one as a source, directly or indirectly, including in the profile of the namespace and in copies
    of these contexts. If the policy enables it (`service` is its outermost level), the context of an erased summary is
    compacted again, in the mode `privacy`, or else in the worker's mode. Repeating the call completes an interrupted
    one.

    An entry that came by a merge, a copy or a fork's adoption of facts is a copy. Its original stays, with everything
    derived from it, and `Erasure.remaining` lists both, and the entries that quote an erased message.

    `verify` searches for residue; `Erasure.proof` is the level of that search. `rewrite` rewrites the file, or the
    server's tables, so that they hold no old version of a row. That needs space for one more copy, and on a server the
    rights of the tables' owner and a lock on each table in turn. A failure raises `StorageError` with the name of the
    file or table; each is then either unchanged or rewritten, and a repeated call continues. Raises
    `EntryNotFoundError` for an id or key the context does not read, and `LegalHoldError` before any change.
    """
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes) or not ids:
        raise ValidationError("must be a list of at least one id", field="ids")
    for id in ids:
        validation.validate_name(id, "ids")
    reader = await storage.context(context)
    by_key: dict[str, Entry] | None = None
    links: list[Link] = []
    for batch in _split_batches(list(ids)):
        for id, entry in zip(batch, await storage.get(batch), strict=True):
            # An id of an entry that this context does not read is unknown here; it may still be a key.
            if entry is None or _owner_of_version(reader, entry.version) != entry.context:
                if by_key is None:
                    by_key = await _find_entries_by_key(storage, reader, ids)
                if id not in by_key:
                    raise EntryNotFoundError(f"the session {reader.key or reader.id!r} has no entry {id!r}")
                entry = by_key[id]
            owner = reader if entry.context == reader.id else await storage.context(entry.context)
            links.append(_link_of_entry(owner, entry))
    erasing = _Erasing(storage, links, reason, service, progress, privacy)
    return await erasing.run(verify=verify, rewrite=rewrite)


@trace_function
async def erase_context(
    storage: StorageBackend,
    id_or_key: str,
    *,
    namespace: str = "default",
    verify: bool = False,
    rewrite: bool = False,
    reason: str = "erased",
    service: CompactionPolicy | None = None,
    progress: Progress | None = None,
) -> Erasure:
    """Erase all entries that a context owns; its forks see tombstones.

    A deleted context is found by its id, and by its key if no live one has it; `ConflictError` if several had it.
    Inherited entries belong to its ancestors and stay. Its name, settings and tags stay: they hold no entry content.
    """
    name = validation.validate_name(id_or_key, "id_or_key")
    context = await find_context_to_erase(storage, name, namespace=namespace)
    links = [_link_of_entry(context, entry) async for entry in _iter_own_entries(storage, context)]
    return await _Erasing(storage, links, reason, service, progress).run(verify=verify, rewrite=rewrite)


@trace_function
async def erase_subject(
    storage: StorageBackend,
    *,
    namespace: str | EllipsisType = ...,
    actor: str | EllipsisType = ...,
    verify: bool = False,
    rewrite: bool = False,
    reason: str = "erased",
    service: CompactionPolicy | None = None,
    progress: Progress | None = None,
) -> Erasure:
    """Erase a whole namespace, or the messages of one actor in one namespace or in all of the tenant's.

    An omitted name does not filter. A given name must not be None, empty or "*", which raise `ValidationError`: an
    unset variable erases nothing. `Erasure.ids` is empty, and `verified` false, if the name is not found.
    """
    if namespace is ... and actor is ...:
        raise ValidationError("give a namespace, an actor or both", field="namespace")
    selected: str | None = None
    if namespace is not ...:
        selected = validation.validate_namespace(_require_single_name(namespace, "namespace"))
    speaker: str | None = None
    selection: dict[str, Any] = {}
    if actor is not ...:
        speaker = _require_single_name(actor, "actor")
        selection = {"kinds": (Kind.MESSAGE,)}
    links: list[Link] = []
    contexts = await list_contexts(storage, ContextQuery(namespace=selected, deleted=True))
    for context in contexts:
        async for entry in _iter_own_entries(storage, context, **selection):
            if speaker is None or entry.actor == speaker:
                links.append(_link_of_entry(context, entry))
    erasing = _Erasing(storage, links, reason, service, progress, finds_quotes=speaker is not None)
    erasure = await erasing.run(verify=verify, rewrite=rewrite)
    is_unknown = not links if speaker is not None else not contexts
    return replace(erasure, verified=False, proof=None) if is_unknown else erasure


@trace_function
async def erase_tenant(
    storage: StorageBackend,
    *,
    confirm: str,
    verify: bool = False,
    rewrite: bool = False,
    reason: str = "erased",
    progress: Progress | None = None,
) -> Erasure:
    """Erase all entries of the tenant of this handle; `confirm` must be its name."""
    if confirm != storage.tenant:
        raise ValidationError("must be the name of the tenant whose data is erased", field="confirm")
    links: list[Link] = []
    for context in await list_contexts(storage, ContextQuery(deleted=True)):
        links += [_link_of_entry(context, entry) async for entry in _iter_own_entries(storage, context)]
    erasing = _Erasing(storage, links, reason, None, progress, finds_quotes=False)
    return await erasing.run(verify=verify, rewrite=rewrite)


def _require_single_name(value: object, field: str) -> str:
    if not isinstance(value, str) or value.strip() in ("", "*"):
        raise ValidationError(f"must be the name of one {field}, was {value!r}", field=field)
    return validation.validate_name(value, field)


class _Erasing:
    """One erasure: the requested entries, and its progress."""

    def __init__(
        self,
        storage: StorageBackend,
        requested: Sequence[Link],
        reason: str,
        service: CompactionPolicy | None,
        progress: Progress | None,
        privacy: Privacy | None = None,
        finds_quotes: bool = True,
    ) -> None:
        self._storage = storage
        self._requested = requested
        self._requested_ids = {link.id for link in requested}
        self._reason = validation.validate_name(reason, "reason")
        self._service = service or CompactionPolicy()
        self._progress = progress
        self._privacy = privacy
        self._contexts: dict[str, Context] = {}
        #: Ids of the entries whose content is erased by now.
        self._blank_ids = {link.id for link in requested if link.state is State.ERASED}
        #: Erased texts to search for afterwards; only with `verify`.
        self._texts: set[bytes] = set()
        #: Derived entries in the contexts known so far.
        self._derived: list[Link] = []
        #: Facts stated by hand that repeat an erased message; found before its text is erased.
        self._statements: list[Remaining] | None = None
        #: The texts of erased messages, to find quotes of them; None if whole namespaces are erased.
        self._quotes = QuoteIndex() if finds_quotes else None
        #: Messages as they were before they were blanked; only with `verify`.
        self._blanked_messages: list[Entry] = []

    async def run(self, *, verify: bool, rewrite: bool) -> Erasure:
        """Erase the requested entries and those that cite them; return the erased and the remaining entries."""
        store = proof.require_rewritable_store(self._storage) if rewrite else None
        links = await self._erase_links(verify=verify)
        await self._request_compactions(links)
        await self._count_erased({link.owner for link in links if link.kind is Kind.MESSAGE})
        contexts = tuple(dict.fromkeys(link.owner for link in links))
        texts = sorted(self._texts)
        rewriting = None if store is None else await store.rewrite(contexts, texts)
        residue: list[str] = []
        if verify:
            residue += await self._find_residue(links, texts)
            residue += [] if self._quotes is None else self._quotes.list_gaps()
        if rewriting is not None:
            residue += rewriting.found
        remaining = await self._find_remaining(links)
        cascaded: list[str] = []
        for link in links:
            if link.id not in self._requested_ids and link.kind in (Kind.FACT, Kind.SUMMARY):
                cascaded.append(link.id)
        return Erasure(
            ids=tuple(link.id for link in links),
            remaining=remaining,
            cascaded=tuple(cascaded),
            contexts=contexts,
            residue=tuple(residue),
            verified=verify and not residue and not remaining,
            proof=proof.determine_proof_level(self._storage, rewriting, texts) if verify else None,
            rewritten=() if rewriting is None else rewriting.rewritten,
            unreached=proof.describe_unreached_data(self._storage, rewriting),
        )

    async def _erase_links(self, *, verify: bool) -> list[Link]:
        """Erase the entries and those derived from them, also by other tasks meanwhile; return all that are erased."""
        while True:
            links = await self._find_links()
            pending = [link for link in links if link.id not in self._blank_ids]
            if not pending:
                return links
            await self._check_holds(pending)
            if self._statements is None:
                self._statements = await self._find_statements(links)
            if verify or self._quotes is not None:
                await self._remember_texts(pending, verify=verify)
            await self._erase_content(pending)

    async def _find_links(self) -> list[Link]:
        """Return the requested entries and those derived from them, as the logs are now; the requested ones first."""
        await self._read_lineage(self._requested)
        self._blank_ids.update(link.id for link in self._derived if link.state is State.ERASED)
        return list((await self._collect_affected(self._requested)).links.values())

    async def _read_lineage(self, links: Iterable[Link]) -> None:
        """Read the derived entries of all contexts that may hold derivatives of some entries."""
        roots = {(await self._load_context(link.owner)).root for link in links}
        self._contexts.update(await _list_tree_contexts(self._storage, roots))
        self._derived = []
        for context in self._contexts.values():
            self._derived += [link async for link in _iter_derived_links(self._storage, context)]

    async def _collect_affected(self, links: Iterable[Link]) -> ReachedEntries:
        """Return some entries with their edits, their copies and everything derived from any of these.

        Each round follows the entries that the last one added, until no more are added.
        """
        reached = ReachedEntries(links)
        copies = [context for context in self._contexts.values() if read_setting(context.settings, COPIED)]
        followed: set[str] = set()
        while True:
            reached.spread(self._derived)
            new_links = [link for link in reached.links.values() if link.id not in followed]
            if not new_links:
                return reached
            for link in new_links:
                followed.add(link.id)
                if link.kind is Kind.MESSAGE:
                    for run in link.runs:
                        await self._add_run(reached, link, run, kinds=(Kind.MESSAGE,))
                for copy in copies:
                    if self._is_copied(link, copy):
                        await self._add_run(reached, link, (copy.id, link.version, link.version))

    def _is_copied(self, link: Link, copy: Context) -> bool:
        """Return whether a copied session has a copy of an entry."""
        origin = copy.settings[COPIED]
        original = self._contexts.get(origin["context"])
        if original is None or link.version > origin["version"]:
            return False
        return _owner_of_version(original, link.version) == link.owner

    async def _add_run(
        self, reached: ReachedEntries, cause: Link, run: Run, *, kinds: Sequence[Kind] | None = None
    ) -> None:
        """Add a run of entries of one owner, which `cause` led to."""
        owner, first, last = run
        rows = await self._storage.read(owner, after=first - 1, before=last + 1, kinds=kinds, deleted=True)
        for entry in rows:
            reached.add(await self._make_link(entry), cause.id)
            if entry.state is State.ERASED:
                self._blank_ids.add(entry.id)

    async def _load_context(self, id: str) -> Context:
        if id not in self._contexts:
            self._contexts[id] = await self._storage.context(id)
        return self._contexts[id]

    async def _make_link(self, entry: Entry) -> Link:
        return _link_of_entry(await self._load_context(entry.context), entry)

    async def _check_holds(self, links: Sequence[Link]) -> None:
        """Raise `LegalHoldError` if a context that reads one of these is under legal hold."""
        oldest: dict[str, int] = {}  # lowest version to erase, by owner
        for link in links:
            oldest[link.owner] = min(link.version, oldest.get(link.owner, link.version))
        readers: list[Context] = []
        for context in self._contexts.values():
            # The lineage has the last version that a fork inherits from each ancestor.
            inherits = any(owner in oldest and oldest[owner] <= last for owner, last in context.lineage)
            if inherits or context.id in oldest:
                readers.append(context)
        await policy.refuse_under_hold(self._storage, readers)

    async def _remember_texts(self, links: Sequence[Link], *, verify: bool) -> None:
        """Keep the texts to be erased, to search for them afterwards."""
        for entry in await self._get_entries([link.id for link in links]):
            if self._quotes is not None and entry.kind is Kind.MESSAGE:
                self._quotes.add(entry)
            if not verify:
                continue
            self._texts.update(text.encode() for text in proof.iter_erased_texts(entry))
            if entry.kind is Kind.MESSAGE:
                self._blanked_messages.append(entry)

    async def _find_statements(self, links: Sequence[Link]) -> list[Remaining]:
        """Return the facts stated by hand whose value occurs in a message to be erased."""
        erased_ids = {link.id for link in links}
        fact_ids: list[str] = []
        for link in self._derived:  # a fact without sources was stated by hand
            if link.kind is Kind.FACT and not link.sources and link.id not in erased_ids:
                fact_ids.append(link.id)
        values: list[tuple[Entry, tuple[str, ...]]] = []
        for fact in await self._get_live_entries(fact_ids):
            value = fold_text(str(fact.data.get("value", "")))
            if value:
                values.append((fact, value))
        if not values:
            return []
        statements: list[Remaining] = []
        for message in await self._get_live_entries([link.id for link in links if link.kind is Kind.MESSAGE]):
            text = fold_text(message.content)
            for fact, value in values:
                if mentions_value(text, value):
                    statements.append(_make_remaining(fact, "statement", message.id))
        return statements

    async def _find_remaining(self, links: Sequence[Link]) -> tuple[Remaining, ...]:
        """Return every remaining entry that repeats erased content."""
        erased_ids = {link.id for link in links}
        by_id: dict[str, Remaining] = {}
        for remaining in (
            *await self._find_originals(links),
            *await self._find_sources(links),
            *(self._statements or ()),
            *await self._find_repeats(),
            *await proof.find_quotes(self._storage, self._contexts.values(), self._quotes, erased_ids),
        ):
            if remaining.id not in erased_ids:
                by_id.setdefault(remaining.id, remaining)
        return tuple(by_id.values())

    async def _find_originals(self, links: Sequence[Link]) -> list[Remaining]:
        """Return the originals of erased copies, and everything derived from these originals."""
        # Id of an entry that repeats erased content → id of the erased entry.
        erased_of = {link.id: link.id for link in links}
        remaining: list[Remaining] = []
        pending = list(links)
        while pending:
            originals: dict[str, Link] = {}
            copy_of: dict[str, str] = {}
            async for original, copy in self._iter_originals(pending):
                if original.id not in erased_of:
                    originals[original.id] = original
                    copy_of[original.id] = copy
            if not originals:
                break
            erased_of |= {id: erased_of[copy] for id, copy in copy_of.items()}
            await self._read_lineage(originals.values())
            reached = await self._collect_affected(originals.values())
            pending = []
            for link in reached.links.values():
                start = reached.start[link.id]  # the original that led to it
                if link.id in erased_of and link.id != start:
                    continue
                erased_of[link.id] = erased_of[start]
                pending.append(link)
                if link.state is State.LIVE:
                    remaining.append(_make_remaining(link, "copy", erased_of[link.id]))
        return remaining

    async def _iter_originals(self, links: Sequence[Link]) -> AsyncIterator[tuple[Link, str]]:
        """Yield the direct originals of some entries, each with the id of its copy.

        A message or a fact from a merge or an adoption cites its original as a source. An entry of a copied session has
        its original at the same version.
        """
        copy_of: dict[str, str] = {}
        by_owner: dict[str, dict[int, str]] = {}
        for link in links:
            by_owner.setdefault(link.owner, {})[link.version] = link.id
            prefix = _CITES_ORIGINAL.get(link.kind)
            for source in link.sources:
                if prefix is not None and source.startswith(prefix):
                    copy_of[source] = link.id
        for entry in await self._get_entries(list(copy_of)):
            yield await self._make_link(entry), copy_of[entry.id]
        for owner, versions in by_owner.items():
            origin = read_setting((await self._load_context(owner)).settings, COPIED)
            if origin is None:
                continue
            original = await find_context(self._storage, origin["context"])
            if original is None:  # the copy was imported from another store
                continue
            first, last = min(versions), min(max(versions), origin["version"])
            async for page in read_pages(self._storage, original.id, after=first - 1, at=last, deleted=True):
                for entry in page:
                    if entry.version in versions:
                        yield await self._make_link(entry), versions[entry.version]

    async def _find_sources(self, links: Sequence[Link]) -> list[Remaining]:
        """Return the source messages of erased facts, with their edits and copies."""
        erased_ids = {link.id for link in links}
        fact_of: dict[str, str] = {}
        for link in links:
            if link.kind is Kind.FACT:
                fact_of.update((id, link.id) for id in link.sources if id not in erased_ids)
        messages: list[Link] = []
        for entry in await self._get_live_entries(list(fact_of)):
            if entry.kind is Kind.MESSAGE:
                messages.append(await self._make_link(entry))
        if not messages:
            return []
        await self._read_lineage(messages)
        reached = await self._collect_affected(messages)
        remaining: list[Remaining] = []
        for link in reached.links.values():
            if link.kind is Kind.MESSAGE and link.state is State.LIVE:
                remaining.append(_make_remaining(link, "source", fact_of[reached.start[link.id]]))
        return remaining

    async def _find_repeats(self) -> list[Remaining]:
        """Return the tenant's messages with the same content and the same time or key as a blanked one.

        They were added twice, for example by an import, and cite no original. Only messages that were blanked by a call
        with `verify` can be compared.
        """
        blanked: dict[tuple[str, object], Entry] = {}
        for entry in self._blanked_messages:
            if len(entry.content.encode()) >= MIN_TEXT_BYTES:  # shorter texts are equal by chance
                blanked[entry.content, entry.created_at] = entry
                if entry.key is not None:
                    blanked[entry.content, entry.key] = entry
        remaining: list[Remaining] = []
        repeat_ids = await proof.find_repeats(self._storage, blanked.values())
        for entry in await self._get_live_entries(repeat_ids):
            erased = blanked.get((entry.content, entry.created_at)) or blanked.get((entry.content, entry.key))
            if erased is not None and erased.role is entry.role:
                remaining.append(_make_remaining(entry, "copy", erased.id))
        return remaining

    async def _get_entries(self, ids: Sequence[str]) -> list[Entry]:
        """Return the existing entries among some ids."""
        entries: list[Entry] = []
        for batch in _split_batches(ids):
            entries += [entry for entry in await self._storage.get(batch) if entry is not None]
        return entries

    async def _get_live_entries(self, ids: Sequence[str]) -> list[Entry]:
        """Return the entries among some ids that still have content."""
        return [entry for entry in await self._get_entries(ids) if entry.state is State.LIVE]

    async def _erase_content(self, links: Sequence[Link]) -> None:
        """Erase the content of entries, newest first, so citing entries go before or together with those they cite."""
        requested_owners = {link.owner for link in links if link.id in self._requested_ids}
        # The requested entries go last: a call that was interrupted can then be repeated, as it finds them. If they
        # are all in one log, its other entries go with them.
        first_by_owner: dict[str, list[Link]] = {}
        last_by_owner: dict[str, list[Link]] = {}
        for link in sorted(links, key=lambda link: -link.version):
            is_last = link.id in self._requested_ids or requested_owners == {link.owner}
            by_owner = last_by_owner if is_last else first_by_owner
            by_owner.setdefault(link.owner, []).append(link)
        blanked_count = 0
        for owner, owned in (*first_by_owner.items(), *last_by_owner.items()):
            for batch in _split_batches(owned):
                versions = [link.version for link in batch]
                await self._storage.blank(owner, versions, to=State.ERASED, audit={"reason": self._reason})
                self._blank_ids.update(link.id for link in batch)
                blanked_count += len(batch)
                if self._progress is not None:
                    self._progress(blanked_count, len(links))

    async def _request_compactions(self, links: Sequence[Link]) -> None:
        """Request a compaction for each context that lost a summary: the entries it replaced are active again."""
        for owner in dict.fromkeys(link.owner for link in links if link.kind is Kind.SUMMARY):
            context = await self._storage.context(owner)
            if context.deleted_at is not None:
                continue
            resolved = await policy.resolve_policy(
                self._storage, owner, namespace=context.namespace, service=self._service
            )
            if not resolved.policy.enabled or resolved.policy.budget is None:
                continue
            payload = {} if self._privacy is None else {PRIVACY: self._privacy.value}
            job = JobDraft(kind=COMPACT, dedupe=f"{COMPACT}:{owner}", payload=payload)
            (result,) = await self._storage.append([Append(context=owner, drafts=(), jobs=(job,))])
            if isinstance(result, ACMSError) and not isinstance(result, SessionNotFoundError):
                raise result

    async def _count_erased(self, owners: set[str]) -> None:
        """Update the erasure count of every context that reads entries of these owners."""
        for context in self._contexts.values():
            read_owners = {context.id, *(owner for owner, _ in context.lineage)}
            if not owners.isdisjoint(read_owners):
                await count_erased(self._storage, context.id)

    async def _find_residue(self, links: Sequence[Link], texts: Sequence[bytes]) -> list[str]:
        citing = [link for link in await self._find_links() if link.id not in self._blank_ids]
        residue = [f"{link.id} was made from it" for link in citing]
        return residue + await proof.find_residue(self._storage, links, self._contexts, texts)


# ── reading a tree ──────────────────────────────────────────────────────────────────────────────────────────────────


async def _list_tree_contexts(storage: StorageBackend, roots: Iterable[str]) -> dict[str, Context]:
    """Return every context of some fork trees, of their copies, and of the trees of their namespaces' profiles.

    Deleted contexts are included.
    """
    contexts: dict[str, Context] = {}
    pending, namespaces = set(roots), set[str]()
    while pending:
        for context in await list_contexts(storage, ContextQuery(root=pending.pop(), deleted=True)):
            contexts[context.id] = context
            for id in read_setting(context.settings, COPIES, ()):
                copy = None if id in contexts else await find_context(storage, id)
                if copy is not None:  # otherwise it was planned but never created
                    pending.add(copy.root)
            if context.namespace not in namespaces:
                namespaces.add(context.namespace)
                profile = await find_profile(storage, context.namespace)
                if profile is not None and profile.id not in contexts:
                    pending.add(profile.root)
    return contexts


async def _iter_own_entries(
    storage: StorageBackend, context: Context, **selection: Any
) -> AsyncIterator[Entry]:
    """Yield the entries that a context owns, also of a deleted one."""
    async for page in read_pages(storage, context.id, after=context.fork or 0, deleted=True, **selection):
        for entry in page:
            yield entry


async def _find_entries_by_key(
    storage: StorageBackend, reader: Context, keys: Iterable[str]
) -> dict[str, Entry]:
    """Return the first message under each key that a context reads; a log may have a sensitive key as its hash."""
    key_of_name = {name: key for key in keys for name in (hash_sensitive_key(key), key)}
    entries: dict[str, Entry] = {}
    async for page in read_pages(storage, reader.id, kinds=(Kind.MESSAGE,), deleted=True):
        for entry in page:
            if entry.key in key_of_name and not entry.replaces:
                entries[key_of_name[entry.key]] = entry
    return entries


async def _iter_derived_links(storage: StorageBackend, context: Context) -> AsyncIterator[Link]:
    """Yield the derived entries of a context: facts, summaries, edits, copies of a merge."""
    async for entry in _iter_own_entries(storage, context, kinds=(Kind.FACT, Kind.SUMMARY)):
        yield _link_of_entry(context, entry)
    async for entry in _iter_own_entries(storage, context, kinds=(Kind.MESSAGE,), replacing=True):
        yield _link_of_entry(context, entry)
    async for record in _iter_own_entries(storage, context, kinds=(Kind.RETRACTION,)):
        if not is_merge_record(record):
            continue
        for entry in await storage.read(
            context.id, after=record.batch - 1, at=record.version, kinds=(Kind.MESSAGE,), deleted=True
        ):
            yield _link_of_entry(context, entry)


def _link_of_entry(context: Context, entry: Entry) -> Link:
    runs: list[Run] = []
    for first, last in source_spans(entry.kind, entry.replaces, entry.covers):
        runs += split_segments(context.id, context.lineage, first, last)
    return Link(entry.id, entry.context, entry.version, entry.kind, entry.state, tuple(runs), entry.sources)


def _make_remaining(entry: Link | Entry, kind: RemainingKind, erased_id: str) -> Remaining:
    owner = entry.owner if isinstance(entry, Link) else entry.context
    return Remaining(id=entry.id, kind=kind, of=erased_id, context=owner, version=entry.version)


def _owner_of_version(context: Context, version: int) -> str:
    """Return the id of the context that owns the row of a version."""
    return split_segments(context.id, context.lineage, version, version)[0][0]


def _split_batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), PAGE):
        yield items[start : start + PAGE]


# ── expire and collect: jobs ────────────────────────────────────────────────────────────────────────────────────────


def _utc_now() -> datetime:
    return datetime.now(UTC)


async def expire_messages(
    storage: StorageBackend, lease: Lease, *, clock: Callable[[], datetime] = _utc_now
) -> Done | Retry | Failed:
    """Run an "expire" job: delete the content of old messages that a summary replaces.

    The payload identifies the summary by the job that wrote it after a version (an imported log may have a summary by
    another job with this id), and holds the retention in seconds. A message expires when it is older and an active
    summary replaces it in every live context that reads it; summaries and derived rows stay. Until all messages have
    expired the job is retried: when the next one is old enough, or in a day.
    """
    context = await storage.context(lease.job.context)
    writer, seconds = lease.job.payload.get("job"), lease.job.payload.get("seconds")
    if not isinstance(writer, str) or not isinstance(seconds, int | float):
        return Failed(error="the payload names no job that wrote a summary and no seconds")
    now = clock()
    after = lease.job.payload.get("after", 0)
    summaries = await storage.read(context.id, kinds=(Kind.SUMMARY,), after=after, deleted=True)
    summary = next((entry for entry in summaries if entry.data.get("job") == writer), None)
    if summary is None or not (await _read_coverage(storage, context)).is_active(summary):
        return Done(reason="its summary is no longer in force")
    tree = await list_contexts(storage, ContextQuery(root=context.root, deleted=True))
    readers = [member for member in tree if member.id == context.id or member.deleted_at is None]
    hold = await policy.find_legal_hold(storage, readers)
    if hold is not None:
        return Retry(error=policy.describe_hold(hold), not_before=now + LOOK_AGAIN)
    return await _blank_expired_messages(storage, context, summary, readers, now, float(seconds))


async def _blank_expired_messages(
    storage: StorageBackend,
    context: Context,
    summary: Entry,
    readers: Sequence[Context],
    now: datetime,
    seconds: float,
) -> Done | Retry:
    """Blank the messages behind a summary that are older than `seconds` and that no reader shows any more.

    Return when to look again if some are too new, or are still read by a fork.
    """
    coverage = [(reader, await _read_coverage(storage, reader)) for reader in readers]
    expired_versions: list[int] = []
    # Seconds until the next message is old enough; at most a year.
    wait = timedelta(days=365).total_seconds()
    too_new = blocked = False
    async for message in _iter_replaced_messages(storage, context, summary):
        age = (now - message.created_at).total_seconds()
        if age < seconds:
            too_new = True
            wait = min(wait, seconds - age)
        elif _is_replaced_everywhere(message, coverage):
            expired_versions.append(message.version)
        else:
            blocked = True
    for versions in _split_batches(expired_versions):
        audit = {"reason": "retention", "seconds": seconds, "summary": summary.id}
        await storage.blank(context.id, versions, to=State.EXPIRED, audit=audit)
    if not blocked and not too_new:
        return Done()
    reason = "some of it is not old enough"
    if blocked:
        reason = "a fork still reads some of it as it was said"
        wait = min(wait, LOOK_AGAIN.total_seconds())
    return Retry(error=reason, not_before=now + timedelta(seconds=wait))


async def _iter_replaced_messages(
    storage: StorageBackend, context: Context, summary: Entry
) -> AsyncIterator[Entry]:
    """Yield the messages that a summary replaces and that still have content."""
    for first, last in summary.replaces:
        pages = read_pages(storage, context.id, after=first - 1, at=last, kinds=(Kind.MESSAGE,), deleted=True)
        async for page in pages:
            for message in page:
                if message.state is State.LIVE:
                    yield message


class _Coverage(NamedTuple):
    """The superseded versions of a context, and the versions of its active summaries."""

    replacements: Replacements
    summaries: frozenset[int]

    def is_active(self, summary: Entry) -> bool:
        return summary.version in self.summaries

    def is_replaced(self, version: int) -> bool:
        """Return whether an active summary replaces a version."""
        return self.replacements.replaced_by(version) in self.summaries


async def _read_coverage(storage: StorageBackend, context: Context) -> _Coverage:
    replacements = Replacements(await storage.read(context.id, replacing=True, deleted=True))
    live_entries = [entry for entry in replacements.substitutes if entry.state is State.LIVE]
    summaries = frozenset(entry.version for entry in live_entries if entry.kind is Kind.SUMMARY)
    return _Coverage(replacements, summaries)


def _is_replaced_everywhere(message: Entry, coverage: Iterable[tuple[Context, _Coverage]]) -> bool:
    """Return whether an active summary replaces a message in each of the contexts that read it."""
    for reader, reader_coverage in coverage:
        reads_it = _owner_of_version(reader, message.version) == message.context
        if reads_it and not reader_coverage.is_replaced(message.version):
            return False
    return True


async def collect_deleted_entries(
    storage: StorageBackend, lease: Lease, *, clock: Callable[[], datetime] = _utc_now
) -> Done | Retry:
    """Run a "collect" job: erase the entries of a tree that only deleted contexts still read.

    These are the own entries of every context that was deleted `COLLECT_AFTER` ago or earlier, unless a live context
    reads them. Entries derived from them in other contexts stay: deleting a conversation does not delete its facts. A
    restored context keeps everything; if it was deleted again since, the job is retried when that deletion is due.
    """
    context = await storage.context(lease.job.context)
    now = clock()
    if context.deleted_at is None:
        return Done(reason="the session was brought back")
    if now < context.deleted_at + COLLECT_AFTER:
        return Retry(error="it can still be brought back", not_before=context.deleted_at + COLLECT_AFTER)
    tree = await list_contexts(storage, ContextQuery(root=context.root, deleted=True))
    hold = await policy.find_legal_hold(storage, tree)
    if hold is not None:
        return Retry(error=policy.describe_hold(hold), not_before=now + LOOK_AGAIN)
    # The newest version of each context that a live context reads.
    last_read_version: dict[str, int] = {}
    for reader in tree:
        if reader.deleted_at is None:
            for owner, last_inherited in reader.lineage:
                last_read_version[owner] = max(last_inherited, last_read_version.get(owner, 0))
    for deleted in tree:
        if deleted.deleted_at is None or now < deleted.deleted_at + COLLECT_AFTER:
            continue
        versions: list[int] = []
        async for entry in _iter_own_entries(storage, deleted):
            if entry.version > last_read_version.get(deleted.id, 0) and entry.state is not State.ERASED:
                versions.append(entry.version)
        for batch in _split_batches(versions):
            await storage.blank(deleted.id, batch, to=State.ERASED, audit={"reason": "collected"})
    return Done()
