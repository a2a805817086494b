"""Adoption: a fork receives the facts that its parent distilled from their common entries after the fork was made.

Late entries (`late` in names) are those that the parent appended after the fork, which the fork therefore lacks. A
*mark* is a summary that records that an episode was reflected on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace

from acms.errors import ACMSError, ConflictError, SessionNotFoundError
from acms.log import read
from acms.log.active_entries import ENDED, Replacements
from acms.log.encoding import is_fact_id, parse_entry_id
from acms.log.facts import REVOKED, FactHistory, address_of, has_address
from acms.model import (
    Append,
    Context,
    Done,
    Draft,
    Entry,
    Expect,
    Failed,
    JobDraft,
    Json,
    Kind,
    Lease,
    Span,
    State,
)
from acms.observability.logging import log_event
from acms.ports import StorageBackend
from acms.storage.append_rules import split_segments
from acms.write.episodes import is_reflection_mark

ADOPT = "adopt"
"""Kind of the job."""
_MAX_CHECKED_INLINE = 32
"""Late entries that a fork checks itself, on the event loop; if there are more, a job checks them."""
_ADOPTABLE_KINDS = (Kind.FACT, Kind.SUMMARY, Kind.RETRACTION)
_DRAFT_FIELDS = tuple(field.name for field in fields(Draft))

Segment = tuple[str, int, int]
"""Entries that a fork inherited: their owner, and the first and last version."""


def is_inherited(id: str, segments: Iterable[Segment]) -> bool:
    """Return whether an entry is in one of the inherited segments."""
    parsed = parse_entry_id(id)
    if parsed is None:
        return False
    context, version = parsed
    return any(owner == context and first <= version <= last for owner, first, last in segments)


def filter_adoptable(late: Iterable[Entry], segments: Sequence[Segment], fork_version: int) -> list[Entry]:
    """Select from the entries that a parent appended after a fork those that cite only inherited entries and facts.

    These are facts, retractions that end a fact, and marks of episodes that were reflected on. `fork_version` is the
    last version that both share. Whether the cited facts come from inherited entries is checked by `filter_grounded`.
    """
    return [
        entry for entry in late if entry.state is State.LIVE and _is_adoptable(entry, segments, fork_version)
    ]


def _is_adoptable(entry: Entry, segments: Sequence[Segment], fork_version: int) -> bool:
    """Return whether an entry is of a kind that a fork adopts, and cites only inherited entries and facts."""
    if entry.kind is Kind.SUMMARY:
        if not is_reflection_mark(entry) or entry.covers is None:
            return False
        # The episode and the edits that were read for the mark must end before the fork.
        return max(entry.covers[1], entry.data.get("upto", 0)) <= fork_version
    if entry.kind is not Kind.FACT and entry.data.get("reason") != "removed":
        return False
    if not entry.sources:
        return False
    return all(is_inherited(id, segments) or is_fact_id(id) for id in entry.sources)


def filter_grounded(
    entries: Iterable[Entry], cited: Mapping[str, Entry | None], segments: Sequence[Segment]
) -> list[Entry]:
    """Select the entries that derive from inherited entries alone, directly or through other facts.

    `cited` has by id every entry that they cite, directly or through others; None if it does not exist. An entry that
    cites an erased one is left out.
    """
    ungrounded: set[str] = set()
    late_facts: list[Entry] = []
    for id, entry in cited.items():
        if entry is None or entry.state is State.ERASED:
            ungrounded.add(id)
        elif not is_inherited(id, segments):
            if entry.kind is Kind.FACT and entry.sources:
                late_facts.append(entry)
            else:
                ungrounded.add(id)
    # A fact that cites an ungrounded entry is ungrounded too: repeat until no more are found.
    while True:
        newly_found = {fact.id for fact in late_facts if not ungrounded.isdisjoint(fact.sources)}
        if newly_found <= ungrounded:
            break
        ungrounded |= newly_found
    grounded: list[Entry] = []
    for entry in entries:
        has_grounded_sources = entry.sources and ungrounded.isdisjoint(entry.sources)
        if is_reflection_mark(entry) or has_grounded_sources:
            grounded.append(entry)
    return grounded


def filter_active(
    entries: Sequence[Entry], facts: Sequence[Entry], replacing: Sequence[Entry], fork_version: int
) -> list[Entry]:
    """Select the entries that would be active in a log that holds only what the fork knows.

    `entries` derive from inherited entries, `facts` are all facts that the parent appended after the fork, `replacing`
    all entries of the parent that replace others. Facts and retractions that the fork does not know replace nothing. A
    fact also replaces the entries that its predecessors replaced.
    """
    ids = {entry.id for entry in entries}
    effective: list[Entry] = []
    for entry in replacing:
        is_known_to_fork = entry.version <= fork_version or entry.id in ids
        is_about_facts = entry.kind is Kind.FACT or entry.data.get("reason") in (*ENDED, REVOKED)
        if is_known_to_fork or not is_about_facts:
            effective.append(entry)
    replacements = Replacements(effective)
    history = FactHistory(facts, replacements)
    active: list[Entry] = []
    for entry in entries:
        if replacements.replaced_by(entry.version) is not None:
            continue
        if entry.kind is Kind.FACT:
            entry = _inherit_replacements(entry, history.find_predecessors(entry))
        active.append(entry)
    return active


def _inherit_replacements(fact: Entry, predecessors: Sequence[Entry]) -> Entry:
    """Return a fact that also replaces and demotes the entries that its predecessors replaced and demoted."""
    if not predecessors:
        return fact
    spans: set[Span] = set()
    demotes: list[Json] = []
    for entry in (fact, *predecessors):
        spans.update(entry.replaces)
        demotes += entry.data.get("demotes", ())
    data = {**fact.data, "demotes": demotes} if demotes else fact.data
    return replace(fact, replaces=tuple(sorted(spans)), data=data)


def draft_adoptions(
    entries: Iterable[Entry],
    own_entries: Sequence[Entry],
    replacements: Replacements,
    fork_version: int,
    open_episode: int,
) -> list[Draft]:
    """Draft copies of a parent's entries for a fork, which cite the originals.

    `own_entries` are those that only the fork has, `replacements` holds the replaced entries of the fork,
    `fork_version` is the last version that it shares with the parent, and `open_episode` the ordinal of the first
    episode that had not ended there. Entries that were adopted before are left out. So are entries about which the fork
    has decided itself: it replaced the same entries, filled the same address, or reflected on the same episode.
    """
    adopted_ids = {id for entry in own_entries for id in entry.sources}
    active_facts = [
        entry
        for entry in own_entries
        if entry.kind is Kind.FACT and replacements.replaced_by(entry.version) is None
    ]
    filled_addresses = set(filter(has_address, map(address_of, active_facts)))
    reflected_episodes = {entry.episode for entry in own_entries if is_reflection_mark(entry)}
    drafts: list[Draft] = []
    for entry in entries:
        replaces = clip_spans(entry.replaces, fork_version)
        if entry.id in adopted_ids or _is_replaced_after(replaces, replacements, fork_version):
            continue
        if entry.kind is Kind.SUMMARY:
            continues_in_fork = entry.episode >= open_episode
            if continues_in_fork or entry.episode in reflected_episodes:
                continue
        elif entry.kind is Kind.RETRACTION:
            if not replaces:  # it ended only entries that the fork never had
                continue
        elif entry.data.get("cardinality") == "one" and address_of(entry) in filled_addresses:
            continue
        draft = Draft(**{name: getattr(entry, name) for name in _DRAFT_FIELDS})
        sources = (*entry.sources, entry.id)
        drafts.append(replace(draft, key=f"adopt:{entry.id}", replaces=replaces, sources=sources))
    return drafts


def _is_replaced_after(spans: Iterable[Span], replacements: Replacements, fork_version: int) -> bool:
    """Return whether an entry of some spans was replaced after `fork_version`, that is, by the fork itself."""
    for first, last in spans:
        for version in range(first, last + 1):
            replacement = replacements.replaced_by(version)
            if replacement is not None and replacement > fork_version:
                return True
    return False


def clip_spans(spans: Iterable[Span], upto: int) -> tuple[Span, ...]:
    """Return the parts of some spans up to a version."""
    return tuple((first, min(last, upto)) for first, last in spans if first <= upto)


async def enqueue_adoption(storage: StorageBackend, parent: str, child: Context) -> bool:
    """Enqueue an adoption job if the parent learned facts after the fork; return whether a job was enqueued."""
    fork = child.fork or 0
    late = await storage.read(parent, kinds=_ADOPTABLE_KINDS, after=fork, limit=_MAX_CHECKED_INLINE)
    if len(late) < _MAX_CHECKED_INLINE:  # otherwise the job checks all of them
        adoptable = filter_adoptable(late, _list_inherited_segments(child), fork)
        if not adoptable:
            return False
        own_entries = await storage.read(child.id, kinds=_ADOPTABLE_KINDS, after=fork)
        adopted_ids = {id for entry in own_entries for id in entry.sources}
        if adopted_ids.issuperset(entry.id for entry in adoptable):
            return False
    job = JobDraft(kind=ADOPT, dedupe=f"{ADOPT}:{child.id}")
    (result,) = await storage.append([Append(context=child.id, drafts=(), jobs=(job,))])
    if isinstance(result, ACMSError):
        raise result
    return True


async def handle_adopt_job(storage: StorageBackend, lease: Lease) -> Done | Failed | None:
    """Append to the fork that is the context of a job the facts that its parent learned later; see `adopt_late`.

    Repeating the job adds nothing. It is cancelled if the fork or its parent was deleted.
    """
    try:
        has_adopted = await adopt_late(storage, lease.job.context, lease)
    except SessionNotFoundError as error:
        return Failed(error=str(error), cancelled=True)
    if has_adopted:
        return None
    return Done(reason="the parent learned nothing later that the fork has to know")


async def adopt_late(storage: StorageBackend, context: str, finish: Lease | None = None) -> bool:
    """Append to a fork the facts that its parent learned after the fork from messages that both share.

    Return whether any were new. `finish` is the lease of a job that the append completes.
    """
    while True:
        child = await storage.context(context)
        if child.parent is None or child.fork is None:
            return False
        head = await storage.head(child.id)
        late = await _read_late_entries(storage, child)
        own_entries = await storage.read(child.id, at=head.version, kinds=_ADOPTABLE_KINDS, after=child.fork)
        replacements = await read.replacements_at(storage, child.id, head, head.version)
        open_episode = await _find_open_episode(storage, child)
        drafts = draft_adoptions(late, own_entries, replacements, child.fork, open_episode)
        if not drafts:
            return False
        expect = Expect(rewrites=head.rewrites)
        append = Append(context=child.id, drafts=tuple(drafts), expect=expect, finish=finish)
        (result,) = await storage.append([append])
        if type(result) is ConflictError:
            continue  # something was replaced or erased meanwhile: look again
        if isinstance(result, ACMSError):
            raise result
        log_event(logging.INFO, "adopted", context=child.id, entries=len(drafts))
        return not result.repeated


async def _read_late_entries(storage: StorageBackend, child: Context) -> list[Entry]:
    """Return what the parent learned after the fork from inherited entries alone, if it would be active in the fork."""
    assert child.parent is not None
    assert child.fork is not None
    segments = _list_inherited_segments(child)
    head = await storage.head(child.parent)
    late = await storage.read(child.parent, at=head.version, kinds=_ADOPTABLE_KINDS, after=child.fork)
    adoptable = filter_adoptable(late, segments, child.fork)
    if not adoptable:
        return []
    cited = await _read_cited_entries(storage, adoptable, segments)
    replacing = await storage.read(child.parent, at=head.version, replacing=True) if head.rewrites else []
    grounded = filter_grounded(adoptable, cited, segments)
    return filter_active(grounded, late, replacing, child.fork)


async def _read_cited_entries(
    storage: StorageBackend, citing: Sequence[Entry], segments: Sequence[Segment]
) -> dict[str, Entry | None]:
    """Read by id every entry that some entries cite, directly or through facts that are not inherited."""
    cited: dict[str, Entry | None] = {}
    pending = {id for entry in citing for id in entry.sources}
    while pending:
        ids = sorted(pending)
        entries = await storage.get(ids)
        cited.update(zip(ids, entries, strict=True))
        pending = set()
        for entry in entries:
            if entry is not None and entry.kind is Kind.FACT and not is_inherited(entry.id, segments):
                pending.update(entry.sources)
        pending -= cited.keys()
    return cited


async def _find_open_episode(storage: StorageBackend, child: Context) -> int:
    """Return the ordinal of the first episode that had not ended where a fork begins."""
    # The newest message is among the last entries, because few edits follow a message.
    entries = await storage.read(child.id, at=child.fork, kinds=(Kind.MESSAGE, Kind.EPISODE), newest=32)
    messages = [entry for entry in entries if entry.kind is Kind.MESSAGE and not entry.replaces]
    if not messages:
        return 0
    newest = messages[-1]
    closed = {entry.episode for entry in entries if entry.kind is Kind.EPISODE}
    if newest.closes is not None or newest.episode in closed:
        return newest.episode + 1
    return newest.episode


def _list_inherited_segments(child: Context) -> list[Segment]:
    return split_segments(child.id, child.lineage, 1, child.fork or 0)
