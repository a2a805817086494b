"""Which late facts a fork takes over (rule 1.10).

A fact is written after the messages it was distilled from, so a fork below it has the messages and not the fact. It is
adopted when everything it was made from is part of the fork, and so is the mark of an episode that was reflected on: no
model is asked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace

from acms.log.facts import REVOKED, Succession, address_of, has_address
from acms.log.hash_chain import locate
from acms.log.in_force import ENDED, Cover
from acms.model import Draft, Entry, Kind, Span, State
from acms.write.episodes import is_mark

_FIELDS = tuple(field.name for field in fields(Draft))


def inherits(id: str, runs: Iterable[tuple[str, int, int]]) -> bool:
    """Return whether an entry is among (owner, first, last) runs of a log."""
    place = locate(id)
    return place is not None and any(
        owner == place[0] and first <= place[1] <= last for owner, first, last in runs
    )


def candidates(late: Iterable[Entry], runs: Sequence[tuple[str, int, int]], fork: int) -> list[Entry]:
    """Keep what may have been made from inherited entries alone; other facts a fact cites are not looked at.

    Facts, retractions that say that one is no longer so, and marks of what was reflected on.
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
            and all(inherits(id, runs) or id.startswith("f_") for id in entry.sources)
        )
    ]


def grounded(
    found: Iterable[Entry], known: Mapping[str, Entry | None], runs: Sequence[tuple[str, int, int]]
) -> list[Entry]:
    """Keep what was made from inherited entries alone, directly or through facts like them.

    `known` has every entry they cite, directly or not; None for what does not exist. What was erased grounds nothing.
    """
    bad = {id for id, entry in known.items() if entry is None or entry.state is State.ERASED}
    outside = [entry for id, entry in known.items() if entry is not None and not inherits(id, runs)]
    bad |= {entry.id for entry in outside if entry.kind is not Kind.FACT or not entry.sources}
    size = -1
    while size != len(bad):
        size = len(bad)
        bad |= {entry.id for entry in outside if bad.intersection(entry.sources)}
    return [one for one in found if is_mark(one) or (one.sources and not bad.intersection(one.sources))]


def standing(
    found: Sequence[Entry], facts: Sequence[Entry], replacing: Sequence[Entry], fork: int
) -> list[Entry]:
    """Keep what would be in force if the log knew only what the fork knows.

    `found` is grounded, `facts` are all late ones, `replacing` all entries that put others out of force. What was
    learned or taken away later for a reason that the fork does not have is passed over. A fact takes along what those
    replaced that it stands in for.
    """
    ids = {entry.id for entry in found}
    cover = Cover(
        entry
        for entry in replacing
        if entry.version <= fork
        or entry.id in ids
        or not (entry.kind is Kind.FACT or entry.data.get("reason") in (*ENDED, REVOKED))
    )
    succession = Succession(facts, cover)
    kept: list[Entry] = []
    for entry in found:
        if cover.by(entry.version) is not None:
            continue
        chain = succession.chain(entry) if entry.kind is Kind.FACT else []
        if chain:
            spans = {span for one in (entry, *chain) for span in one.replaces}
            demotes = [row for one in (entry, *chain) for row in one.data.get("demotes", ())]
            data = {**entry.data, "demotes": demotes} if demotes else entry.data
            entry = replace(entry, replaces=tuple(sorted(spans)), data=data)
        kept.append(entry)
    return kept


def adopted(found: Iterable[Entry], own: Sequence[Entry], cover: Cover, fork: int, open_: int) -> list[Draft]:
    """Return facts, and marks of episodes that ended before one, as the fork appends them, citing the originals.

    `own` are the fork's own entries and `cover` what is out of force in it. What was adopted before is left out, and so
    is what the fork has decided otherwise: it replaced the same entries, or filled the same address.
    """
    cited = {id for entry in own for id in entry.sources}
    filled = {address_of(one) for one in own if one.kind is Kind.FACT and cover.by(one.version) is None}
    marked = {entry.episode for entry in own if is_mark(entry)}
    drafts: list[Draft] = []
    for entry in found:
        replaces = clipped(entry.replaces, fork)
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


def clipped(spans: Iterable[Span], upto: int) -> tuple[Span, ...]:
    """Cut spans at a version."""
    return tuple((first, min(last, upto)) for first, last in spans if first <= upto)
