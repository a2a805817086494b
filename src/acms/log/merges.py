"""Merges as a log has them: their records, what each knew, and where a copied entry was said first.

The entries of one merge are one append. Its last one is the *record*: a retraction that puts nothing out of force and
says which session was merged, up to which version, and what both sides knew then, as a version vector: the last version
of every context whose entries were seen. A merge that is undone counts as never made. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from acms.log.encoding import locate
from acms.log.in_force import Cover
from acms.model import Entry, Kind, Span

MERGED = "merged"
"""Reason of the record of a merge; in the data of a copied retraction, the id of the original."""
SEEN = "seen"
"""The version vector in the data of a record."""
KEPT = "kept"
"""Ids in the data of a record: messages that stay as they are in a conflict, although nothing was done to them here."""
UNDO = "undo"
"""Reason of the retraction of a rewrite."""
ADOPTED = "adopt:"
"""What the key of an entry begins with that a fork took over from its parent."""

Origin: TypeAlias = tuple[str, int]
"""Where an entry was written first: the context that owned the row, and its version there."""
Vector: TypeAlias = Mapping[str, int]
"""Last version that is known of each context."""


def is_record(entry: Entry) -> bool:
    """Whether an entry is the record of a merge."""
    return entry.kind is Kind.RETRACTION and entry.data.get("reason") == MERGED and SEEN in entry.data


def batch_of(record: Entry) -> Span:
    """Return the versions that a merge has written, its record being the last."""
    return record.batch, record.version


def knows(vector: Vector, origin: Origin) -> bool:
    """Whether a log with this version vector has seen an entry."""
    return origin[1] <= vector.get(origin[0], 0)


class Merges:
    """The merges of a log up to a version."""

    def __init__(self, retractions: Iterable[Entry], cover: Cover) -> None:
        """Take every retraction up to the version, and what is out of force there."""
        undoing = {
            id
            for one in cover.retiring
            if one.kind is Kind.RETRACTION and one.data.get("reason") == UNDO
            for id in one.sources
        }
        records = [entry for entry in retractions if is_record(entry)]
        self.standing = [one for one in records if one.id not in undoing]
        self.undone = [one for one in records if one.id in undoing]
        self._batches = {one.batch for one in records}
        self._undone = {one.batch for one in self.undone}

    def vector(self, runs: Iterable[tuple[str, int, int]]) -> dict[str, int]:
        """Return what a log that reads these runs has seen, by itself and by its merges."""
        found: dict[str, int] = {}
        for rows in (
            ((owner, last) for owner, _, last in runs),
            *(one.data[SEEN].items() for one in self.standing),
        ):
            for owner, last in rows:
                found[owner] = max(found.get(owner, 0), last)
        return found

    def origin(self, entry: Entry) -> Origin:
        """Return where an entry was written first: what a merge has copied names it, and so does what was adopted."""
        named: str | None = None
        if entry.kind is Kind.RETRACTION:
            named = entry.data.get(MERGED)
        elif entry.sources and (entry.batch in self._batches or (entry.key or "").startswith(ADOPTED)):
            named = entry.sources[-1]
        return (None if named is None else locate(named)) or (entry.context, entry.version)

    def took_back(self, entry: Entry) -> bool:
        """Whether an entry came with a merge that was undone."""
        return entry.batch in self._undone
