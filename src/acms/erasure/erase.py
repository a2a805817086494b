"""Erasing, expiring and collecting: three ways to remove content permanently, and the proof of erasure.

*Erase* also removes everything derived from the content, in every fork. *Expire* is retention: it removes the content
and keeps the summary that replaces it. *Delete* only hides; a job *collects* entries that no fork reads any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import EllipsisType
from typing import Any, Literal, TypeVar

from acms.branches.forks import COLLECT_AFTER
from acms.erasure import proof
from acms.errors import ACMSError, EntryNotFoundError, LegalHoldError, SessionNotFoundError, ValidationError
from acms.facts.statements import fold_text, mentions_value
from acms.jobs.requests import COMPACT, PRIVACY
from acms.log import policy, validation
from acms.log.in_force import Cover, is_record
from acms.log.known import hash_sensitive_key
from acms.log.policy import CompactionPolicy
from acms.log.provenance import COPIED, COPIES, Link, Reached, Run, source_spans
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
from acms.storage.traces import LEAST

T = TypeVar("T")

LOOK_AGAIN = timedelta(days=1)
"""Retry interval of a job that waits for people, such as one under legal hold."""
BATCH = 500
"""Entries that are blanked in one commit."""
_CITES_ORIGINAL = {Kind.MESSAGE: "m_", Kind.FACT: "f_"}
"""Id prefixes of originals among the sources of a copy: facts also cite the messages they were derived from."""
PAGE = 500


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
    derived from it, and `Erasure.remaining` lists both.

    `verify` searches for residue; `Erasure.proof` is the level of that search. `rewrite` rewrites the file, or the
    server's tables, so that they hold no old version of a row. That needs space for one more copy, and on a server the
    rights of the tables' owner and a lock on each table in turn. A failure raises `StorageError` with the name of the
    file or table; each is then either unchanged or rewritten, and a repeated call continues. Raises
    `EntryNotFoundError` for an id or key the context does not read, and `LegalHoldError` before any change.
    """
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes) or not ids:
        raise ValidationError("must be a list of one id or more", field="ids")
    for id in ids:
        validation.validate_name(id, "ids")
    reader = await storage.context(context)
    found: list[Link] = []
    keyed: dict[str, Entry] | None = None
    for some in _split_batches(list(ids)):
        for id, entry in zip(some, await storage.get(some), strict=True):
            if entry is None or _owner_of_version(reader, entry.version) != entry.context:
                if keyed is None:
                    keyed = await _find_entries_by_key(storage, reader, ids)
                if id not in keyed:
                    raise EntryNotFoundError(f"the session {reader.key or reader.id!r} has no entry {id!r}")
                entry = keyed[id]
            found.append(_link_of_entry(await _context_of(storage, reader, entry), entry))
    return await _Erasing(storage, found, reason, service, progress, privacy).run(
        verify=verify, rewrite=rewrite
    )


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
    """Erase all entries that a context owns; its forks see tombstones. A deleted context is found by its id.

    Inherited entries belong to its ancestors and stay. Its name, settings and tags stay: they hold no entry content.
    """
    name = validation.validate_name(id_or_key, "id_or_key")
    found = [
        _link_of_entry(own, entry)
        async for own, entry in _iter_own_entries(storage, [await storage.context(name, namespace=namespace)])
    ]
    return await _Erasing(storage, found, reason, service, progress).run(verify=verify, rewrite=rewrite)


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
    unset variable erases nothing.
    """
    if namespace is ... and actor is ...:
        raise ValidationError("give a namespace, an actor or both", field="namespace")
    within = (
        None if namespace is ... else validation.namespace_name(_require_single_name(namespace, "namespace"))
    )
    who = None if actor is ... else _require_single_name(actor, "actor")
    contexts = await _list_contexts(storage, ContextQuery(namespace=within, deleted=True, limit=PAGE))
    found = [
        _link_of_entry(own, entry)
        async for own, entry in _iter_own_entries(
            storage, contexts, kinds=None if who is None else (Kind.MESSAGE,)
        )
        if who is None or entry.actor == who
    ]
    return await _Erasing(storage, found, reason, service, progress).run(verify=verify, rewrite=rewrite)


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
        raise ValidationError("must be the name of the tenant whose data goes", field="confirm")
    contexts = await _list_contexts(storage, ContextQuery(deleted=True, limit=PAGE))
    found = [_link_of_entry(own, entry) async for own, entry in _iter_own_entries(storage, contexts)]
    return await _Erasing(storage, found, reason, None, progress).run(verify=verify, rewrite=rewrite)


def _require_single_name(value: object, field: str) -> str:
    if not isinstance(value, str) or value.strip() in ("", "*"):
        raise ValidationError(f"must be the name of one {field}, was {value!r}", field=field)
    return validation.validate_name(value, field)


class _Erasing:
    """One erasure: the requested entries, and its progress."""

    def __init__(
        self,
        storage: StorageBackend,
        asked: Sequence[Link],
        reason: str,
        service: CompactionPolicy | None,
        progress: Progress | None,
        privacy: Privacy | None = None,
    ) -> None:
        self._storage = storage
        self._asked = asked
        self._reason = validation.validate_name(reason, "reason")
        self._service = service or CompactionPolicy()
        self._progress = progress
        self._privacy = privacy
        self._contexts: dict[str, Context] = {}
        #: Ids of the entries that are blank by now.
        self._gone = {link.id for link in asked if link.state is State.ERASED}
        self._texts: set[bytes] = set()
        #: Derived entries in the contexts known so far.
        self._made: list[Link] = []
        #: Facts that were stated by hand and cite no source.
        self._stated: list[str] = []
        #: Facts stated by hand that repeat an erased message; found before its text is erased.
        self._statements: list[Remaining] | None = None
        #: Messages as they were before they were blanked; only with `verify`.
        self._blanked: list[Entry] = []

    async def run(self, *, verify: bool, rewrite: bool) -> Erasure:
        """Erase the requested entries and those that cite them, until no new citations appear."""
        files = proof.require_rewritable_store(self._storage) if rewrite else None
        while True:
            doomed = await self._doomed()
            left = [link for link in doomed if link.id not in self._gone]
            if not left:
                break
            await self._check_holds(left)
            if self._statements is None:
                self._statements = await self._find_statements(doomed)
            if verify:
                await self._remember(left)
            await self._blank(left)
        await self._compact_again(doomed)
        await self._count_erased({link.owner for link in doomed if link.kind is Kind.MESSAGE})
        contexts = tuple(dict.fromkeys(link.owner for link in doomed))
        texts = sorted(self._texts)
        anew = None if files is None else await files.rewrite(contexts, texts)
        left = await self._residue(doomed, texts) if verify else []
        remaining = await self._find_remaining(doomed)
        asked = {link.id for link in self._asked}
        derived = (Kind.FACT, Kind.SUMMARY)
        return Erasure(
            ids=tuple(link.id for link in doomed),
            remaining=remaining,
            cascaded=tuple(link.id for link in doomed if link.id not in asked and link.kind in derived),
            contexts=contexts,
            residue=(*left, *(() if anew is None else anew.found)),
            verified=verify and not remaining,
            proof=proof.determine_proof_level(self._storage, anew, texts) if verify else None,
            rewritten=() if anew is None else anew.rewritten,
            unreached=proof.describe_unreached_data(self._storage, anew),
        )

    async def _doomed(self) -> list[Link]:
        """Return the entries to erase in the current state of the logs, the requested ones first."""
        await self._read_lineage(self._asked)
        self._gone.update(link.id for link in self._made if link.state is State.ERASED)
        return list((await self._close_over(self._asked)).links.values())

    async def _read_lineage(self, links: Iterable[Link]) -> None:
        """Read the derived entries of all contexts that may hold derivatives of some entries."""
        roots = {(await self._context(link.owner)).root for link in links}
        self._contexts.update(await _list_tree_contexts(self._storage, roots))
        self._made = [link async for link in _iter_derived_links(self._storage, self._contexts.values())]
        self._stated = [link.id for link in self._made if link.kind is Kind.FACT and not link.sources]

    async def _close_over(self, links: Iterable[Link]) -> Reached:
        """Return some entries with their edits and everything derived from them."""
        reached = Reached(links)
        copies = [one for one in self._contexts.values() if read_setting(one.settings, COPIED)]
        followed: set[str] = set()
        while True:
            reached.spread(self._made)
            new = [link for link in reached.links.values() if link.id not in followed]
            if not new:
                return reached
            for link in new:
                followed.add(link.id)
                for run in link.runs if link.kind is Kind.MESSAGE else ():
                    await self._reach(reached, link, run, kinds=(Kind.MESSAGE,))
                for copy in copies:
                    original = self._contexts.get(copy.settings[COPIED]["context"])
                    if (
                        original is not None
                        and link.version <= copy.settings[COPIED]["version"]
                        and _owner_of_version(original, link.version) == link.owner
                    ):
                        await self._reach(reached, link, (copy.id, link.version, link.version))

    async def _reach(
        self, reached: Reached, cause: Link, run: Run, *, kinds: Sequence[Kind] | None = None
    ) -> None:
        """Add some entries of one owner."""
        owner, first, last = run
        for entry in await self._storage.read(
            owner, after=first - 1, before=last + 1, kinds=kinds, deleted=True
        ):
            reached.add(_link_of_entry(await self._context(owner), entry), cause.id)
            if entry.state is State.ERASED:
                self._gone.add(entry.id)

    async def _context(self, id: str) -> Context:
        if id not in self._contexts:
            self._contexts[id] = await self._storage.context(id)
        return self._contexts[id]

    async def _check_holds(self, links: Sequence[Link]) -> None:
        """Raise `LegalHoldError` if a context that reads one of these is under legal hold."""
        oldest: dict[str, int] = {}
        for link in links:
            oldest[link.owner] = min(link.version, oldest.get(link.owner, link.version))
        readers = [
            context
            for context in self._contexts.values()
            if context.id in oldest
            or any(oldest.get(owner, upto + 1) <= upto for owner, upto in context.lineage)
        ]
        held = await _find_legal_hold(self._storage, readers)
        if held is not None:
            raise LegalHoldError(
                f"{held} is under legal hold: nothing was erased", options=("lift the hold first",)
            )

    async def _remember(self, links: Sequence[Link]) -> None:
        """Keep the texts to be erased, to search for them afterwards."""
        for some in _split_batches(links):
            for entry in await self._storage.get([link.id for link in some]):
                if entry is not None:
                    self._texts.update(text.encode() for text in proof.iter_erased_texts(entry))
                    if entry.kind is Kind.MESSAGE:
                        self._blanked.append(entry)

    async def _find_statements(self, doomed: Sequence[Link]) -> list[Remaining]:
        """Return the facts stated by hand whose value occurs in a message to be erased."""
        gone = {link.id for link in doomed}
        facts = await self._live([id for id in self._stated if id not in gone])
        values = [(one, fold_text(str(one.data.get("value", "")))) for one in facts]
        messages = [link.id for link in doomed if link.kind is Kind.MESSAGE] if facts else []
        found: list[Remaining] = []
        for said in await self._live(messages):
            words = fold_text(said.content)
            found += [
                _make_remaining(fact, "statement", said.id)
                for fact, value in values
                if value and mentions_value(words, value)
            ]
        return found

    async def _find_remaining(self, doomed: Sequence[Link]) -> tuple[Remaining, ...]:
        """Return every remaining entry that repeats erased content."""
        found = [
            *await self._find_originals(doomed),
            *await self._find_sources(doomed),
            *(self._statements or ()),
            *await self._find_repeats(),
        ]
        gone = {link.id for link in doomed}
        once = {one.id: one for one in reversed(found) if one.id not in gone}
        return tuple(reversed(once.values()))

    async def _find_originals(self, doomed: Sequence[Link]) -> list[Remaining]:
        """Return the originals of erased copies, and everything derived from these originals."""
        erased_of = {link.id: link.id for link in doomed}
        found: list[Remaining] = []
        waiting = list(doomed)
        while waiting:
            originals = [one async for one in self._originals(waiting) if one[0].id not in erased_of]
            if not originals:
                break
            for original, copy in originals:
                erased_of[original.id] = erased_of[copy]
            await self._read_lineage([original for original, _ in originals])
            reached = await self._close_over([original for original, _ in originals])
            waiting = []
            for link in reached.links.values():
                start = reached.start[link.id]
                if link.id in erased_of and link.id != start:
                    continue
                erased_of[link.id] = erased_of[start]
                waiting.append(link)
                if link.state is State.LIVE:
                    found.append(_make_remaining(link, "copy", erased_of[link.id]))
        return found

    async def _originals(self, links: Sequence[Link]) -> AsyncIterator[tuple[Link, str]]:
        """Yield the direct originals of some entries, each with the id of its copy.

        A message or a fact from a merge or an adoption cites its original as a source. An entry of a copied session has
        its original at the same version.
        """
        cited = {
            source: link.id
            for link in links
            if link.kind in _CITES_ORIGINAL
            for source in link.sources
            if source.startswith(_CITES_ORIGINAL[link.kind])
        }
        for entry in await self._get(list(cited)):
            yield _link_of_entry(await self._context(entry.context), entry), cited[entry.id]
        by_owner: dict[str, dict[int, str]] = {}
        for link in links:
            by_owner.setdefault(link.owner, {})[link.version] = link.id
        for owner, versions in by_owner.items():
            said = read_setting((await self._context(owner)).settings, COPIED)
            if said is None:
                continue
            try:
                original = await self._storage.context(said["context"])
            except SessionNotFoundError:  # the copy was imported from another store, without its original
                continue
            last = min(max(versions), said["version"])
            async for entry in self._entries(original, after=min(versions) - 1, last=last):
                if entry.version in versions:
                    yield _link_of_entry(await self._context(entry.context), entry), versions[entry.version]

    async def _find_sources(self, doomed: Sequence[Link]) -> list[Remaining]:
        """Return the source messages of erased facts, with their edits and copies."""
        gone = {link.id for link in doomed}
        fact_of = {
            id: link.id for link in doomed if link.kind is Kind.FACT for id in link.sources if id not in gone
        }
        messages = [
            _link_of_entry(await self._context(one.context), one)
            for one in await self._live(list(fact_of))
            if one.kind is Kind.MESSAGE
        ]
        if not messages:
            return []
        await self._read_lineage(messages)
        reached = await self._close_over(messages)
        return [
            _make_remaining(link, "source", fact_of[reached.start[link.id]])
            for link in reached.links.values()
            if link.kind is Kind.MESSAGE and link.state is State.LIVE
        ]

    async def _find_repeats(self) -> list[Remaining]:
        """Return the tenant's messages with the same content and the same time or key as a blanked one.

        They were added twice, for example by an import, and cite no original. Only messages that were blanked by a call
        with `verify` can be compared.
        """
        known: dict[tuple[str, object], Entry] = {}
        for entry in self._blanked:
            if len(entry.content.encode()) >= LEAST:
                known[entry.content, entry.created_at] = entry
                if entry.key is not None:
                    known[entry.content, entry.key] = entry
        found: list[Remaining] = []
        for one in await self._live(await proof.find_repeats(self._storage, known.values())):
            erased = known.get((one.content, one.created_at)) or known.get((one.content, one.key))
            if erased is not None and erased.role is one.role:
                found.append(_make_remaining(one, "copy", erased.id))
        return found

    async def _entries(self, context: Context, *, after: int, last: int) -> AsyncIterator[Entry]:
        """Yield the entries that a context reads after one version, up to and including another."""
        while after < last:
            page = await self._storage.read(
                context.id, after=after, before=last + 1, limit=PAGE, deleted=True
            )
            if not page:
                return
            for entry in page:
                yield entry
            after = page[-1].version

    async def _get(self, ids: Sequence[str]) -> list[Entry]:
        """Return the existing entries among some ids."""
        found: list[Entry] = []
        for some in _split_batches(ids):
            found += [one for one in await self._storage.get(some) if one is not None]
        return found

    async def _live(self, ids: Sequence[str]) -> list[Entry]:
        """Return the entries among some ids that still have content."""
        return [one for one in await self._get(ids) if one.state is State.LIVE]

    async def _blank(self, links: Sequence[Link]) -> None:
        """Blank entries newest first, so citing entries go before or together with those they cite."""
        asked = {link.id for link in self._asked}
        owners = {link.owner for link in links if link.id in asked}
        last = [link for link in links if link.id in asked or (len(owners) == 1 and link.owner in owners)]
        after = {link.id for link in last}
        done = 0
        for group in ([link for link in links if link.id not in after], last):
            by_owner: dict[str, list[Link]] = {}
            for link in sorted(group, key=lambda link: -link.version):
                by_owner.setdefault(link.owner, []).append(link)
            for owner, some in by_owner.items():
                for batch in _split_batches(some):
                    versions = [link.version for link in batch]
                    await self._storage.blank(
                        owner, versions, to=State.ERASED, audit={"reason": self._reason}
                    )
                    self._gone.update(link.id for link in batch)
                    done += len(batch)
                    if self._progress is not None:
                        self._progress(done, len(links))

    async def _compact_again(self, doomed: Sequence[Link]) -> None:
        """Request a compaction for each context that lost a summary: the entries it replaced are active again."""
        for owner in dict.fromkeys(link.owner for link in doomed if link.kind is Kind.SUMMARY):
            context = await self._storage.context(owner)
            if context.deleted_at is not None:
                continue
            found = await policy.resolve_policy(
                self._storage, owner, namespace=context.namespace, service=self._service
            )
            if not found.policy.enabled or found.policy.budget is None:
                continue
            said = {} if self._privacy is None else {PRIVACY: self._privacy.value}
            job = JobDraft(kind=COMPACT, dedupe=f"{COMPACT}:{owner}", payload=said)
            (result,) = await self._storage.append([Append(context=owner, drafts=(), jobs=(job,))])
            if isinstance(result, ACMSError) and not isinstance(result, SessionNotFoundError):
                raise result

    async def _count_erased(self, owners: set[str]) -> None:
        """Update the erasure count of every context that reads entries of these owners."""
        for context in self._contexts.values():
            if context.id in owners or any(owner in owners for owner, _ in context.lineage):
                await count_erased(self._storage, context.id)

    async def _residue(self, doomed: Sequence[Link], texts: Sequence[bytes]) -> list[str]:
        citing = [link for link in await self._doomed() if link.id not in self._gone]
        found = await proof.find_residue(self._storage, doomed, self._contexts, texts)
        return [*(f"{link.id} was made from it" for link in citing), *found]


# ── reading a tree ──────────────────────────────────────────────────────────────────────────────────────────────────


async def _list_contexts(storage: StorageBackend, query: ContextQuery) -> list[Context]:
    """Return every context of a query, oldest first."""
    found: list[Context] = []
    while True:
        page = await storage.contexts(query)
        found += page.items
        if page.next_after is None:
            return found[::-1]
        query = replace(query, after=page.next_after)


async def _list_tree_contexts(storage: StorageBackend, roots: Iterable[str]) -> dict[str, Context]:
    """Return every context of some fork trees, of their copies, and of the trees of their namespaces' profiles.

    Deleted contexts are included.
    """
    found: dict[str, Context] = {}
    waiting, namespaces = set(roots), set[str]()
    while waiting:
        query = ContextQuery(root=waiting.pop(), deleted=True, limit=PAGE)
        for context in await _list_contexts(storage, query):
            found[context.id] = context
            for copy in read_setting(context.settings, COPIES, ()):
                if copy not in found:
                    try:
                        waiting.add((await storage.context(copy)).root)
                    except SessionNotFoundError:  # the copy was planned but never created
                        continue
            if context.namespace not in namespaces:
                namespaces.add(context.namespace)
                known = await find_profile(storage, context.namespace)
                if known is not None and known.id not in found:
                    waiting.add(known.root)
    return found


async def _iter_own_entries(
    storage: StorageBackend, contexts: Iterable[Context], **selection: Any
) -> AsyncIterator[tuple[Context, Entry]]:
    """Yield the entries that contexts own, including deleted ones."""
    for context in contexts:
        after = context.fork or 0
        while True:
            page = await storage.read(context.id, after=after, limit=PAGE, deleted=True, **selection)
            for entry in page:
                yield context, entry
            if len(page) < PAGE:
                break
            after = page[-1].version


async def _find_entries_by_key(
    storage: StorageBackend, reader: Context, keys: Iterable[str]
) -> dict[str, Entry]:
    """Return the first messages that a context reads under some keys, by plain key or by its hash."""
    names = {name: key for key in keys for name in (hash_sensitive_key(key), key)}
    found: dict[str, Entry] = {}
    after = 0
    while True:
        page = await storage.read(reader.id, after=after, kinds=(Kind.MESSAGE,), limit=PAGE, deleted=True)
        found.update({names[one.key]: one for one in page if one.key in names and not one.replaces})
        if len(page) < PAGE:
            return found
        after = page[-1].version


async def _iter_derived_links(storage: StorageBackend, contexts: Iterable[Context]) -> AsyncIterator[Link]:
    """Yield the derived entries of some contexts: facts, summaries, edits, copies of a merge."""
    for context in contexts:
        async for _, entry in _iter_own_entries(storage, [context], kinds=(Kind.FACT, Kind.SUMMARY)):
            yield _link_of_entry(context, entry)
        async for _, entry in _iter_own_entries(storage, [context], kinds=(Kind.MESSAGE,), replacing=True):
            yield _link_of_entry(context, entry)
        async for _, entry in _iter_own_entries(storage, [context], kinds=(Kind.RETRACTION,)):
            if is_record(entry):
                kinds, before = (Kind.MESSAGE,), entry.batch - 1
                for copy in await storage.read(
                    context.id, after=before, at=entry.version, kinds=kinds, deleted=True
                ):
                    yield _link_of_entry(context, copy)


def _link_of_entry(context: Context, entry: Entry) -> Link:
    runs: list[Run] = []
    for first, last in source_spans(entry.kind, entry.replaces, entry.covers):
        runs += split_segments(context.id, context.lineage, first, last)
    return Link(entry.id, entry.context, entry.version, entry.kind, entry.state, tuple(runs), entry.sources)


def _make_remaining(one: Link | Entry, kind: Literal["source", "statement", "copy"], of: str) -> Remaining:
    owner = one.owner if isinstance(one, Link) else one.context
    return Remaining(id=one.id, kind=kind, of=of, context=owner, version=one.version)


def _owner_of_version(context: Context, version: int) -> str:
    """Return the id of the context that owns the row of a version."""
    return split_segments(context.id, context.lineage, version, version)[0][0]


async def _context_of(storage: StorageBackend, reader: Context, entry: Entry) -> Context:
    return reader if entry.context == reader.id else await storage.context(entry.context)


async def _find_legal_hold(storage: StorageBackend, contexts: Iterable[Context]) -> str | None:
    """Describe the first of some contexts or their namespaces that is under legal hold, or return None."""
    namespaces: set[str] = set()
    for context in contexts:
        if context.settings.get(policy.HOLD):
            return f"the context {context.id}"
        namespaces.add(context.namespace)
    for namespace in sorted(namespaces):
        if (await policy.namespace_settings(storage, namespace)).get(policy.HOLD):
            return f"the namespace {namespace!r}"
    return None


def _split_batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]


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
    found = await storage.read(context.id, kinds=(Kind.SUMMARY,), after=after, deleted=True)
    summary = next((one for one in found if one.data.get("job") == writer), None)
    if summary is None or summary.version not in (await _read_in_force(storage, context)).summaries:
        return Done(reason="its summary is no longer in force")
    tree = await _list_contexts(storage, ContextQuery(root=context.root, deleted=True, limit=PAGE))
    readers = [one for one in tree if one.id == context.id or one.deleted_at is None]
    held = await _find_legal_hold(storage, readers)
    if held is not None:
        return Retry(error=f"{held} is under legal hold", not_before=now + LOOK_AGAIN)
    return await _blank_expired_messages(storage, context, summary, readers, now, float(seconds))


async def _blank_expired_messages(
    storage: StorageBackend,
    context: Context,
    summary: Entry,
    readers: Sequence[Context],
    now: datetime,
    seconds: float,
) -> Done | Retry:
    standing = {one.id: await _read_in_force(storage, one) for one in readers}
    old: list[int] = []
    later: list[float] = []
    blocked = False
    for first, last in summary.replaces:
        after = first - 1
        while after < last:
            page = await storage.read(
                context.id, after=after, before=last + 1, kinds=(Kind.MESSAGE,), limit=PAGE, deleted=True
            )
            if not page:
                break
            after = page[-1].version
            for entry in page:
                if entry.state is not State.LIVE:
                    continue
                left = seconds - (now - entry.created_at).total_seconds()
                if left > 0:
                    later.append(left)
                elif all(
                    standing[one.id].stand_for(entry.version)
                    for one in readers
                    if _owner_of_version(one, entry.version) == entry.context
                ):
                    old.append(entry.version)
                else:
                    blocked = True
    for some in _split_batches(old):
        audit = {"reason": "retention", "seconds": seconds, "summary": summary.id}
        await storage.blank(context.id, some, to=State.EXPIRED, audit=audit)
    waits = [*later, *([LOOK_AGAIN.total_seconds()] if blocked else [])]
    if not waits:
        return Done()
    wait = min(min(waits), timedelta(days=365).total_seconds())
    why = "a fork still reads some of it as it was said" if blocked else "some of it is not old enough"
    return Retry(error=why, not_before=now + timedelta(seconds=wait))


@dataclass(frozen=True, slots=True)
class _InForce:
    """The superseded versions of a context, and its active summaries."""

    cover: Cover
    summaries: frozenset[int]

    def stand_for(self, version: int) -> bool:
        """Return whether an active summary replaces a version."""
        return self.cover.by(version) in self.summaries


async def _read_in_force(storage: StorageBackend, context: Context) -> _InForce:
    cover = Cover(await storage.read(context.id, replacing=True, deleted=True))
    live = (one for one in cover.shown if one.kind is Kind.SUMMARY and one.state is State.LIVE)
    return _InForce(cover, frozenset(one.version for one in live))


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
    tree = await _list_contexts(storage, ContextQuery(root=context.root, deleted=True, limit=PAGE))
    held = await _find_legal_hold(storage, tree)
    if held is not None:
        return Retry(error=f"{held} is under legal hold", not_before=now + LOOK_AGAIN)
    for one in tree:
        if one.deleted_at is None or now < one.deleted_at + COLLECT_AFTER:
            continue
        reads = [
            upto
            for other in tree
            if other.deleted_at is None
            for owner, upto in other.lineage
            if owner == one.id
        ]
        kept = max(reads, default=0)
        left = [
            entry.version
            async for _, entry in _iter_own_entries(storage, [one])
            if entry.version > kept and entry.state is not State.ERASED
        ]
        for some in _split_batches(left):
            await storage.blank(one.id, some, to=State.ERASED, audit={"reason": "collected"})
    return Done()
