"""Adoption: a fork is given the facts that its parent distilled later from what both have in common."""

from __future__ import annotations

import logging
from typing import Any

from acms.errors import ACMSError, ConflictError, SessionNotFoundError
from acms.facts import late_facts
from acms.log import read
from acms.model import Append, Context, Done, Entry, Expect, Failed, JobDraft, Kind, Lease
from acms.observability.logging import log
from acms.ports import StorageBackend
from acms.storage.append_rules import segments

ADOPT = "adopt"
_LATE = 32
"""Late facts a fork looks at itself: so few are read without leaving the event loop."""
_LEARNED = (Kind.FACT, Kind.SUMMARY, Kind.RETRACTION)


async def ask_for(storage: StorageBackend, parent: str, child: Context) -> bool:
    """Enqueue a job when the parent has facts that came too late for the fork; return whether it was needed."""
    late = await storage.read(parent, kinds=_LEARNED, after=child.fork or 0, limit=_LATE)
    found = late_facts.candidates(late, _inherited(child), child.fork or 0)
    if len(late) < _LATE:  # else the job looks at them all
        if not found:
            return False
        own = await storage.read(child.id, kinds=_LEARNED, after=child.fork or 0)
        if {fact.id for fact in found} <= {id for fact in own for id in fact.sources}:
            return False  # a named fork that was made before
    job = JobDraft(kind=ADOPT, dedupe=f"{ADOPT}:{child.id}")
    _done(*await storage.append([Append(context=child.id, drafts=(), jobs=(job,))]))
    return True


async def adopt(storage: StorageBackend, lease: Lease) -> Done | Failed | None:
    """Append the late facts of its parent to a fork: the handler of "adopt" jobs.

    Copies what was said with the sources, and cites the original. Doing it again adds nothing. Cancelled when the fork
    or its parent was deleted.
    """
    try:
        return None if await adopt_late(storage, lease.job.context, lease) else Done()
    except SessionNotFoundError as error:
        return Failed(error=str(error), cancelled=True)


async def adopt_late(storage: StorageBackend, context: str, finish: Lease | None = None) -> bool:
    """Append the late facts of its parent to a fork; return whether there were any."""
    while True:
        child = await storage.context(context)
        if child.parent is None or child.fork is None:
            return False
        head = await storage.head(child.id)
        late = await _late(storage, child)
        own = await storage.read(child.id, at=head.version, kinds=_LEARNED, after=child.fork)
        cover = await read.cover_at(storage, child.id, head, head.version)
        drafts = late_facts.adopted(late, own, cover, child.fork, await _open_episode(storage, child))
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
        receipt = _done(result)
        log(logging.INFO, "adopted", context=child.id, entries=len(drafts))
        return not receipt.repeated


async def _late(storage: StorageBackend, child: Context) -> list[Entry]:
    """Return what the parent learned above a fork from what the fork has, and would not have unlearned without more."""
    assert child.parent is not None
    assert child.fork is not None
    runs = _inherited(child)
    head = await storage.head(child.parent)
    late = await storage.read(child.parent, at=head.version, kinds=_LEARNED, after=child.fork)
    found = late_facts.candidates(late, runs, child.fork)
    if not found:
        return []
    known: dict[str, Entry | None] = {}
    asked = {id for one in found for id in one.sources}
    while asked:
        wanted = sorted(asked)
        entries = await storage.get(wanted)
        known.update(zip(wanted, entries, strict=True))
        beyond = [entry for entry in entries if entry is not None and not late_facts.inherits(entry.id, runs)]
        asked = {id for entry in beyond if entry.kind is Kind.FACT for id in entry.sources} - known.keys()
    replacing = await storage.read(child.parent, at=head.version, replacing=True) if head.rewrites else []
    found = late_facts.grounded(found, known, runs)
    return late_facts.standing(found, late, replacing, child.fork)


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


def _inherited(child: Context) -> list[tuple[str, int, int]]:
    return segments(child.id, child.lineage, 1, child.fork or 0)


def _done(result: Any) -> Any:
    if isinstance(result, ACMSError):
        raise result
    return result
