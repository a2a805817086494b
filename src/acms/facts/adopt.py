"""Adoption: a fork receives the facts that its parent later distilled from their common entries."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from acms.errors import ACMSError, ConflictError, SessionNotFoundError
from acms.log import read
from acms.log.encoding import parse_entry_id
from acms.log.facts import REVOKED, FactHistory, address_of, has_address
from acms.log.in_force import ENDED, Cover
from acms.model import Append, Context, Done, Draft, Entry, Expect, Failed, JobDraft, Kind, Lease, Span, State
from acms.observability.logging import log_event
from acms.ports import StorageBackend
from acms.storage.append_rules import split_segments
from acms.write.episodes import is_mark

_FIELDS = tuple(field.name for field in fields(Draft))


def is_inherited(id: str, runs: Iterable[tuple[str, int, int]]) -> bool:
    """Return whether an entry is among (owner, first, last) runs of a log."""
    place = parse_entry_id(id)
    return place is not None and any(
        owner == place[0] and first <= place[1] <= last for owner, first, last in runs
    )


def filter_adoptable(late: Iterable[Entry], runs: Sequence[tuple[str, int, int]], fork: int) -> list[Entry]:
    """Keep the entries that may derive from inherited entries alone; other facts a fact cites are not checked.

    Facts, retractions that end a fact, and marks of episodes that were reflected on.
    """
    return [
        entry
        for entry in late
        if entry.state is State.LIVE
        and (
            is_mark(entry)
            and entry.covers is not None
            and max(entry.covers[1], entry.data.get("upto", 0)) <= fork
            if entry.kind is Kind.SUMMARY
            else (entry.kind is Kind.FACT or entry.data.get("reason") == "removed")
            and entry.sources
            and all(is_inherited(id, runs) or id.startswith("f_") for id in entry.sources)
        )
    ]


def filter_grounded(
    found: Iterable[Entry], known: Mapping[str, Entry | None], runs: Sequence[tuple[str, int, int]]
) -> list[Entry]:
    """Keep the entries that derive from inherited entries alone, directly or through facts that do.

    `known` has every entry they cite, directly or not; None if it does not exist. An erased entry supports nothing.
    """
    bad = {id for id, entry in known.items() if entry is None or entry.state is State.ERASED}
    outside = [entry for id, entry in known.items() if entry is not None and not is_inherited(id, runs)]
    bad |= {entry.id for entry in outside if entry.kind is not Kind.FACT or not entry.sources}
    size = -1
    while size != len(bad):
        size = len(bad)
        bad |= {entry.id for entry in outside if bad.intersection(entry.sources)}
    return [one for one in found if is_mark(one) or (one.sources and not bad.intersection(one.sources))]


def filter_active(
    found: Sequence[Entry], facts: Sequence[Entry], replacing: Sequence[Entry], fork: int
) -> list[Entry]:
    """Keep the entries that would be active if the log held only the entries known to the fork.

    `found` derives from inherited entries, `facts` are all late ones, `replacing` all entries that replace others.
    Later additions and removals for a reason that the fork does not have are ignored. A fact also replaces the entries
    that its predecessors replaced.
    """
    ids = {entry.id for entry in found}
    cover = Cover(
        entry
        for entry in replacing
        if entry.version <= fork
        or entry.id in ids
        or not (entry.kind is Kind.FACT or entry.data.get("reason") in (*ENDED, REVOKED))
    )
    history = FactHistory(facts, cover)
    kept: list[Entry] = []
    for entry in found:
        if cover.by(entry.version) is not None:
            continue
        chain = history.chain(entry) if entry.kind is Kind.FACT else []
        if chain:
            spans = {span for one in (entry, *chain) for span in one.replaces}
            demotes = [row for one in (entry, *chain) for row in one.data.get("demotes", ())]
            data = {**entry.data, "demotes": demotes} if demotes else entry.data
            entry = replace(entry, replaces=tuple(sorted(spans)), data=data)
        kept.append(entry)
    return kept


def draft_adoptions(
    found: Iterable[Entry], own: Sequence[Entry], cover: Cover, fork: int, open_: int
) -> list[Draft]:
    """Return facts, and marks of episodes before `open_`, as the fork appends them, citing the originals.

    `own` are the fork's own entries and `cover` is its cover. Entries adopted before are left out, and so are those the
    fork has decided differently: it replaced the same entries, or filled the same address.
    """
    cited = {id for entry in own for id in entry.sources}
    filled = {address_of(one) for one in own if one.kind is Kind.FACT and cover.by(one.version) is None}
    marked = {entry.episode for entry in own if is_mark(entry)}
    drafts: list[Draft] = []
    for entry in found:
        replaces = clip_spans(entry.replaces, fork)
        decided = any(
            (cover.by(version) or 0) > fork for first, last in replaces for version in range(first, last + 1)
        )
        if entry.kind is Kind.SUMMARY:
            decided = entry.episode in marked or entry.episode >= open_
        elif entry.kind is Kind.RETRACTION:
            decided = decided or not replaces
        elif entry.data.get("cardinality") == "one" and has_address(address_of(entry)):
            decided = decided or address_of(entry) in filled
        if entry.id in cited or decided:
            continue
        draft = Draft(**{name: getattr(entry, name) for name in _FIELDS})
        drafts.append(
            replace(draft, key=f"adopt:{entry.id}", replaces=replaces, sources=(*entry.sources, entry.id))
        )
    return drafts


def clip_spans(spans: Iterable[Span], upto: int) -> tuple[Span, ...]:
    """Cut spans at a version."""
    return tuple((first, min(last, upto)) for first, last in spans if first <= upto)


ADOPT = "adopt"
_LATE = 32
"""Late facts a fork looks at itself: so few are read without leaving the event loop."""
_LEARNED = (Kind.FACT, Kind.SUMMARY, Kind.RETRACTION)


async def enqueue_adoption(storage: StorageBackend, parent: str, child: Context) -> bool:
    """Enqueue a job when the parent has facts that came too late for the fork; return whether it was needed."""
    late = await storage.read(parent, kinds=_LEARNED, after=child.fork or 0, limit=_LATE)
    found = filter_adoptable(late, _inherited_runs(child), child.fork or 0)
    if len(late) < _LATE:  # else the job looks at them all
        if not found:
            return False
        own = await storage.read(child.id, kinds=_LEARNED, after=child.fork or 0)
        if {fact.id for fact in found} <= {id for fact in own for id in fact.sources}:
            return False  # a named fork that was made before
    job = JobDraft(kind=ADOPT, dedupe=f"{ADOPT}:{child.id}")
    _unwrap_result(*await storage.append([Append(context=child.id, drafts=(), jobs=(job,))]))
    return True


async def handle_adopt_job(storage: StorageBackend, lease: Lease) -> Done | Failed | None:
    """Append the late facts of its parent to a fork: the handler of "adopt" jobs.

    Copies the facts with their sources, and cites the original. Repeating it adds nothing. Cancelled when the fork or
    its parent was deleted.
    """
    try:
        done = await adopt_late(storage, lease.job.context, lease)
        return None if done else Done(reason="the parent learned nothing later that the fork has to know")
    except SessionNotFoundError as error:
        return Failed(error=str(error), cancelled=True)


async def adopt_late(storage: StorageBackend, context: str, finish: Lease | None = None) -> bool:
    """Append the late facts of its parent to a fork; return whether there were any."""
    while True:
        child = await storage.context(context)
        if child.parent is None or child.fork is None:
            return False
        head = await storage.head(child.id)
        late = await _read_late_entries(storage, child)
        own = await storage.read(child.id, at=head.version, kinds=_LEARNED, after=child.fork)
        cover = await read.cover_at(storage, child.id, head, head.version)
        drafts = draft_adoptions(late, own, cover, child.fork, await _open_episode(storage, child))
        if not drafts:
            return False
        (result,) = await storage.append(
            [
                Append(
                    context=child.id,
                    drafts=tuple(drafts),
                    expect=Expect(rewrites=head.rewrites),
                    finish=finish,
                )
            ]
        )
        if type(result) is ConflictError:
            continue  # something was replaced or erased meanwhile: look again
        receipt = _unwrap_result(result)
        log_event(logging.INFO, "adopted", context=child.id, entries=len(drafts))
        return not receipt.repeated


async def _read_late_entries(storage: StorageBackend, child: Context) -> list[Entry]:
    """Return what the parent learned above a fork from what the fork has, and would not have unlearned without more."""
    assert child.parent is not None
    assert child.fork is not None
    runs = _inherited_runs(child)
    head = await storage.head(child.parent)
    late = await storage.read(child.parent, at=head.version, kinds=_LEARNED, after=child.fork)
    found = filter_adoptable(late, runs, child.fork)
    if not found:
        return []
    known: dict[str, Entry | None] = {}
    asked = {id for one in found for id in one.sources}
    while asked:
        wanted = sorted(asked)
        entries = await storage.get(wanted)
        known.update(zip(wanted, entries, strict=True))
        beyond = [entry for entry in entries if entry is not None and not is_inherited(entry.id, runs)]
        asked = {id for entry in beyond if entry.kind is Kind.FACT for id in entry.sources} - known.keys()
    replacing = await storage.read(child.parent, at=head.version, replacing=True) if head.rewrites else []
    found = filter_grounded(found, known, runs)
    return filter_active(found, late, replacing, child.fork)


async def _open_episode(storage: StorageBackend, child: Context) -> int:
    """Return the ordinal of the first episode that had not ended where a fork begins."""
    entries = await storage.read(child.id, at=child.fork, kinds=(Kind.MESSAGE, Kind.EPISODE), newest=_LATE)
    turns = [entry for entry in entries if entry.kind is Kind.MESSAGE and not entry.replaces]
    if not turns:
        return 0
    newest = turns[-1]
    ended = newest.closes is not None or any(
        entry.kind is Kind.EPISODE and entry.episode == newest.episode for entry in entries
    )
    return newest.episode + 1 if ended else newest.episode


def _inherited_runs(child: Context) -> list[tuple[str, int, int]]:
    return split_segments(child.id, child.lineage, 1, child.fork or 0)


def _unwrap_result(result: Any) -> Any:
    if isinstance(result, ACMSError):
        raise result
    return result
