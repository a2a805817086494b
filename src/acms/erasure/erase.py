"""Erasing, expiring and collecting: three ways in which content goes for ever, and how that is proved.

*Erase* takes everything that was made from the content along, in every fork. *Expire* is retention: the content goes,
and the summary that stands for it stays. *Delete* only hides; what no fork reads any more is *collected* by a job.
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
from acms.facts.consolidate import fold_text, mentions_value
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
"""When a job that must wait for people, such as one under legal hold, looks again."""
BATCH = 500
"""Entries that go in one commit."""
_CITES_ORIGINAL = {Kind.MESSAGE: "m_", Kind.FACT: "f_"}
"""How the ids of originals begin among the sources of a copy: facts also cite the messages they were made from."""
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
    """Erase entries that a context reads, and whatever was made from them, in every fork of its tree.

    Each is named by its id, or a message by the caller's key: that goes with the content, and names nothing after it.
    Their edits and what they edit go, every summary that stands for one of them, every fact and summary that names one
    as a source, directly or not, also in the profile of the namespace; and the same in copies of these contexts. A
    summary's context is asked to be compacted again where the policy says so (`service` is its outermost level), in the
    privacy mode of whoever asks, else in that of whoever works it off. Repeating completes what was interrupted.

    An entry that a merge, a copy or a fork's adoption of facts brought here is a copy. Its original stays, with
    everything made from it, and `Erasure.remaining` lists both.

    With `verify` what is left is looked for; `Erasure.proof` says how far that goes. With `rewrite` the file, or the
    tables of the server that held it, are written anew, so that no old version of a row lies in them: that takes room
    for one more copy, and on a server the right of the owner of the tables and, table by table, a lock. What stops it
    is a `StorageError` that names the file or table: each is then as it was or anew, and repeating goes on.
    `EntryNotFoundError` for an id or a key the context does not read, `LegalHoldError` before anything was changed.
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
    """Erase everything a context ever said itself; its forks see tombstones. A deleted one is found by its id.

    What it inherited is its ancestors'. Its name, settings and tags stay: they say nothing that was said.
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
    """Erase a whole namespace, or what one actor said: in one namespace, or wherever the tenant has it.

    A name that is left out is not asked for; one that is given must name something: None, an empty one and "*" raise
    `ValidationError`, so a variable that was never filled erases nothing.
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
    """Erase everything the tenant of this handle has; `confirm` must be its name."""
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
    """One erasure: what it was asked to take, and what went so far."""

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
        #: Ids of what is blank by now.
        self._gone = {link.id for link in asked if link.state is State.ERASED}
        self._texts: set[bytes] = set()
        #: What was made from something, in the contexts that are known by now.
        self._made: list[Link] = []
        #: Facts that were stated by hand and name no source.
        self._stated: list[str] = []
        #: Facts by hand that repeat an erased message; looked for while its text is there.
        self._statements: list[Remaining] | None = None
        #: Messages that were blanked, as they were; only with `verify`.
        self._blanked: list[Entry] = []

    async def run(self, *, verify: bool, rewrite: bool) -> Erasure:
        """Take away what was asked for and what cites it, until nothing new does."""
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
        """Return what must go as the logs are now: what was asked for first."""
        await self._read_lineage(self._asked)
        self._gone.update(link.id for link in self._made if link.state is State.ERASED)
        return list((await self._close_over(self._asked)).links.values())

    async def _read_lineage(self, links: Iterable[Link]) -> None:
        """Read what was made from something, in all contexts that may hold what was made from some entries."""
        roots = {(await self._context(link.owner)).root for link in links}
        self._contexts.update(await _list_tree_contexts(self._storage, roots))
        self._made = [link async for link in _iter_derived_links(self._storage, self._contexts.values())]
        self._stated = [link.id for link in self._made if link.kind is Kind.FACT and not link.sources]

    async def _close_over(self, links: Iterable[Link]) -> Reached:
        """Return some entries with their edits and everything that was made from them."""
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
        """Raise when a context that reads one of these is under legal hold."""
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
        """Keep the texts that go, to look for them afterwards."""
        for some in _split_batches(links):
            for entry in await self._storage.get([link.id for link in some]):
                if entry is not None:
                    self._texts.update(text.encode() for text in proof.iter_erased_texts(entry))
                    if entry.kind is Kind.MESSAGE:
                        self._blanked.append(entry)

    async def _find_statements(self, doomed: Sequence[Link]) -> list[Remaining]:
        """Return the facts by hand whose value a message has that goes."""
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
        """Return every place that says what is erased and stays."""
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
        """Return what erased entries are copies of, and everything that was made from that."""
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
        """Yield what some entries are direct copies of, each with the id of its copy.

        A message or a fact that a merge or an adoption brought names its original as a source. An entry of a copied
        session has its original at the same version.
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
            except SessionNotFoundError:  # the copy was brought from another store, without its original
                continue
            last = min(max(versions), said["version"])
            async for entry in self._entries(original, after=min(versions) - 1, last=last):
                if entry.version in versions:
                    yield _link_of_entry(await self._context(entry.context), entry), versions[entry.version]

    async def _find_sources(self, doomed: Sequence[Link]) -> list[Remaining]:
        """Return the messages that erased facts were made from, with the edits and copies of these."""
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
        """Return the messages of the tenant that say the same at the same time or under the same key.

        Those were brought twice, by an import for example, and name no original. Only what was blanked by a call with
        `verify` can be looked for.
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
        """Yield what a context reads behind a version, up to another one."""
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
        """Return those of some entries that exist."""
        found: list[Entry] = []
        for some in _split_batches(ids):
            found += [one for one in await self._storage.get(some) if one is not None]
        return found

    async def _live(self, ids: Sequence[str]) -> list[Entry]:
        """Return those of some entries that have their content."""
        return [one for one in await self._get(ids) if one.state is State.LIVE]

    async def _blank(self, links: Sequence[Link]) -> None:
        """Blank entries, those that cite others before these or in the same commit: newest first."""
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
        """Ask for a compaction where a summary went: what it stood for is in force again."""
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
        """Note how much was erased in every context that reads entries of these."""
        for context in self._contexts.values():
            if context.id in owners or any(owner in owners for owner, _ in context.lineage):
                await count_erased(self._storage, context.id)

    async def _residue(self, doomed: Sequence[Link], texts: Sequence[bytes]) -> list[str]:
        citing = [link for link in await self._doomed() if link.id not in self._gone]
        found = await proof.find_residue(self._storage, doomed, self._contexts, texts)
        return [*(f"{link.id} was made from it" for link in citing), *found]


# ── what is read of a tree ──────────────────────────────────────────────────────────────────────────────────────────


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

    Deleted ones too.
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
                    except SessionNotFoundError:  # it was to be made, and never was
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
    """Yield the entries that contexts own, deleted ones too."""
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
    """Return what a context reads that was said first under some keys, as they are or as they were hidden."""
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
    """Yield everything in some contexts that was made from something: facts, summaries, edits, copies of a merge."""
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
    """Return the id of the context that has the row of a version."""
    return split_segments(context.id, context.lineage, version, version)[0][0]


async def _context_of(storage: StorageBackend, reader: Context, entry: Entry) -> Context:
    return reader if entry.context == reader.id else await storage.context(entry.context)


async def _find_legal_hold(storage: StorageBackend, contexts: Iterable[Context]) -> str | None:
    """Return what of some contexts is under legal hold, in words; None when nothing is."""
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
    """Work off a job "expire": delete the content of old messages that a summary stands for.

    The payload names the summary by the job that wrote it behind a version (a log that came from another store may have
    one of another job with this id), and the retention in seconds. A message expires when it is older and, in every
    live context that reads it, a summary in force stands for it; summaries and derived rows stay.
    Until all of them are gone the job comes back: when the next one is old enough, or in a day.
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
    """What is out of force in a context, and which summaries are in force."""

    cover: Cover
    summaries: frozenset[int]

    def stand_for(self, version: int) -> bool:
        """Return whether a summary in force stands for a version."""
        return self.cover.by(version) in self.summaries


async def _read_in_force(storage: StorageBackend, context: Context) -> _InForce:
    cover = Cover(await storage.read(context.id, replacing=True, deleted=True))
    live = (one for one in cover.shown if one.kind is Kind.SUMMARY and one.state is State.LIVE)
    return _InForce(cover, frozenset(one.version for one in live))


async def collect_deleted_entries(
    storage: StorageBackend, lease: Lease, *, clock: Callable[[], datetime] = _utc_now
) -> Done | Retry:
    """Work off a job "collect": erase what only deleted contexts of a tree still have.

    Of every context of the tree that was deleted `COLLECT_AFTER` ago or earlier, its own entries that no live context
    reads. What others made from them stays: deleting a conversation does not unlearn what it taught. A context that was
    brought back keeps everything; one that was deleted again since is looked at again when its time has come.
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
