"""The merges of a log: their records, the version vectors of both sides, and the origin of copied entries.

The entries of one merge are one append. The last of them is the *record*: a retraction that retracts nothing. It has
the merged session, its version, and a version vector: for every context whose entries either side had seen at that
time, the last version of it. A merge that was undone counts as never made. The module also has the result types of a
merge. Its functions are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from acms.errors import MergeConflictError
from acms.log.active_entries import MERGED, SEEN, UNDO, Replacements, is_merge_record
from acms.log.encoding import parse_entry_id
from acms.model import Entry, Kind, show_in_repr
from acms.results import Change, format_entry_line

KEPT = "kept"
"""Key in the data of a record: ids of messages of this side that won a conflict without having been changed here."""
ADOPTED = "adopt:"
"""Prefix of the key of an entry that a fork adopted from its parent."""

Origin: TypeAlias = tuple[str, int]
"""Where an entry was first written: the context that owned the row, and its version there."""
Vector: TypeAlias = Mapping[str, int]
"""A version vector: the last known version of each context."""


def vector_covers(vector: Vector, origin: Origin) -> bool:
    """Return whether a log with this version vector has seen an entry."""
    return origin[1] <= vector.get(origin[0], 0)


class Merges:
    """The merges of a log up to a version."""

    def __init__(self, retractions: Iterable[Entry], replacements: Replacements) -> None:
        """Take every retraction up to a version, and the replacements at that version."""
        undone_ids: set[str] = set()
        for entry in replacements.retirements:
            if entry.kind is Kind.RETRACTION and entry.data.get("reason") == UNDO:
                undone_ids.update(entry.sources)
        records = [entry for entry in retractions if is_merge_record(entry)]
        #: The records of merges that have effect, and of merges that were undone.
        self.effective = [record for record in records if record.id not in undone_ids]
        self.undone = [record for record in records if record.id in undone_ids]
        #: First versions of the appends of all merges, and of the undone ones.
        self._batches = {record.batch for record in records}
        self._undone_batches = {record.batch for record in self.undone}

    def vector(self, runs: Iterable[tuple[str, int, int]]) -> dict[str, int]:
        """Return the version vector of a log that reads some runs (owner, first, last), including its merges."""
        last_versions = [(owner, last) for owner, _, last in runs]
        for record in self.effective:
            last_versions += record.data[SEEN].items()
        vector: dict[str, int] = {}
        for owner, last in last_versions:
            vector[owner] = max(vector.get(owner, 0), last)
        return vector

    def origin(self, entry: Entry) -> Origin:
        """Return where an entry was first written; a copied or adopted entry names its original."""
        original: str | None = None
        if entry.kind is Kind.RETRACTION:
            original = entry.data.get(MERGED)
        elif entry.sources and self._is_copy(entry):
            original = entry.sources[-1]  # the original is the last source
        origin = None if original is None else parse_entry_id(original)
        return origin or (entry.context, entry.version)

    def _is_copy(self, entry: Entry) -> bool:
        return entry.batch in self._batches or (entry.key or "").startswith(ADOPTED)

    def is_undone(self, entry: Entry) -> bool:
        """Return whether an entry came with a merge that was undone."""
        return entry.batch in self._undone_batches


# ── results of a merge ──────────────────────────────────────────────────────────────────────────────────────────────

MergeStrategy: TypeAlias = Literal["refuse", "ours", "theirs"]
"""How conflicts are resolved: "refuse" merges nothing, otherwise the named side wins each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeConflict:
    """A message, group, fact or key that both sides changed in different ways since the fork or the last merge."""

    #: Subject of the conflict: a message, a tool group, a fact, or the message under a caller's key.
    kind: Literal["message", "tool_group", "fact", "key"]
    #: The change of each side, in the terms of git; the entries of a side that deleted are empty.
    type: Literal["modify/modify", "modify/delete", "add/add"]
    #: The id of the message or the group, the key, or the address of the fact as "subject / attribute".
    subject: str
    #: The entries at the fork or the last merge, on this side now, and on the other side now, under their own ids.
    base: tuple[Entry, ...] = ()
    ours: tuple[Entry, ...] = ()
    theirs: tuple[Entry, ...] = ()
    #: The side that won; None with the strategy "refuse".
    resolution: Literal["ours", "theirs"] | None = None
    #: Why the requested side did not win; "" if it won.
    reason: str = ""

    def __str__(self) -> str:
        resolution = f": {self.resolution}" if self.resolution else ""
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.kind} {self.subject} ({self.type}){resolution}{reason}"


@show_in_repr(
    "version", "ours", "theirs", "common", "dry_run", "appended", "changed", "retracted", "conflicts"
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The changes that a merge made, or would make, to this side; entries of the other side have their own ids."""

    #: Name of each side with its version, such as "user_123 v12"; this side with its version before the merge.
    ours: str
    theirs: str
    #: Newest version up to which both sides are the same log: the fork point.
    common: int
    strategy: MergeStrategy
    dry_run: bool
    #: Messages and facts of the other side that are appended here, in its order.
    appended: tuple[Entry, ...] = ()
    #: Messages and facts of this side that were changed: as they were here, and as they are on the other side.
    changed: tuple[Change, ...] = ()
    #: Messages and facts of this side that are retracted.
    retracted: tuple[Entry, ...] = ()
    conflicts: tuple[MergeConflict, ...] = ()
    #: Number of entries of the other side that were not merged because their content was erased or expired here.
    gone: int = 0
    #: Version of the record of the merge, for `undo`; None if nothing was written.
    version: int | None = None

    def __bool__(self) -> bool:
        """Return whether the merge changes this side or has conflicts."""
        return bool(self.appended or self.changed or self.retracted or self.conflicts)

    def __str__(self) -> str:
        """Format the merge as a diff: appended, changed and retracted entries, then the conflicts."""
        lines = [f"--- {self.ours}", f"+++ {self.theirs}"]
        if not self:
            unchanged = "already up to date" if self.version is None else "both sides changed the same"
            lines.append(f"    {unchanged}")
        changed: list[tuple[str, Entry]] = []
        for change in self.changed:
            changed += [("-", change.before), ("+", change.after)]
        lines += _describe_entries("appended", [("+", entry) for entry in self.appended])
        lines += _describe_entries("changed", changed)
        lines += _describe_entries("retracted", [("-", entry) for entry in self.retracted])
        for conflict in self.conflicts:
            lines.append(f"!! {conflict}")
            lines += _describe_side("ours", conflict.ours)
            lines += _describe_side("theirs", conflict.theirs)
        return "\n".join(lines)


def _describe_entries(title: str, signed: Sequence[tuple[str, Entry]]) -> list[str]:
    if not signed:
        return []
    rows = [f"{sign} v{entry.version} {format_entry_line(entry)}" for sign, entry in signed]
    return [f"@@ {title} @@", *rows]


def _describe_side(side: str, entries: Sequence[Entry]) -> list[str]:
    if not entries:
        return [f"   {side}: gone"]
    return [f"   {side}: v{entry.version} {format_entry_line(entry)}" for entry in entries]


def merge_conflict_error(merged: Merged) -> MergeConflictError:
    """Return the error that reports the conflicts of a merge with the ways to resolve them."""
    count = len(merged.conflicts)
    descriptions = "; ".join(map(str, merged.conflicts[:5]))
    if count > 5:
        descriptions += "; …"
    return MergeConflictError(
        f"{count} conflict{'s' if count > 1 else ''} with {merged.theirs}: {descriptions}",
        conflicts=merged.conflicts,
        options=(
            'merge with strategy="ours" to keep the version of this session',
            'merge with strategy="theirs" to take the version of the other session',
            "merge with dry_run=True to see all of them, resolve them on either side, and merge again",
        ),
    )
