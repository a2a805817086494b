"""Compare the active entries of two logs, which may share a beginning.

An entry is active unless a later one supersedes or retracts it. Up to the newest common version both logs have the same
entries: there, only those that are active on one side alone are a difference. After it, all entries can be. The caller
passes exactly these entries.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from acms.log.active_entries import Replacements, anchor_version, join_spans
from acms.log.facts import address_of, has_address
from acms.model import Entry, Kind, Span, State
from acms.results import Change, Delta
from acms.write.episodes import is_reflection_mark

READ_GAP = 31
"""Versions between two spans that are read along with them: that is faster than another read."""

Run: TypeAlias = tuple[str, int, int]
"""Owner, first and last version of a part of a log."""


@dataclass(frozen=True, slots=True)
class LogState:
    """One log at a version: whose entries it reads, and which of them are inactive."""

    #: Ascending, without a gap, from version 1.
    runs: Sequence[Run]
    replacements: Replacements
    context: str = ""
    version: int = 0

    def select_active(self, entries: Iterable[Entry]) -> dict[str, Entry]:
        """Return by id the entries that are active and still have their content."""
        active: dict[str, Entry] = {}
        for entry in entries:
            if entry.state is State.LIVE and self.replacements.replaced_by(entry.version) is None:
                active[entry.id] = entry
        return active

    def locate(self, spans: Iterable[Span]) -> tuple[Run, ...]:
        """Return spans as runs of their owners' versions, which are equal for all logs that share the entries."""
        runs: list[Run] = []
        for first, last in sorted(spans):
            for owner, low, high in self.runs:
                start, end = max(first, low), min(last, high)
                if start > end:
                    continue
                if runs and runs[-1][0] == owner and runs[-1][2] >= start - 1:
                    runs[-1] = (owner, runs[-1][1], max(end, runs[-1][2]))
                else:
                    runs.append((owner, start, end))
        return tuple(runs)


def find_common_version(left: Sequence[Run], right: Sequence[Run]) -> int:
    """Return the newest version up to which two logs are the same entries; 0 when they share nothing."""
    common = 0
    for (left_owner, _, left_last), (right_owner, _, right_last) in zip(left, right, strict=False):
        if left_owner != right_owner:
            break
        common = min(left_last, right_last)
        if left_last != right_last:
            break
    return common


def find_disputed_spans(left: Replacements, right: Replacements, last_version: int) -> list[Span]:
    """Return the versions up to `last_version` that are inactive on one side only, as ascending spans."""
    # Between two edges, all versions have the same state on each side: one check decides them all.
    edges = {1, last_version + 1}
    for first, last in (*left.spans(), *right.spans()):
        edges |= {first, last + 1}
    starts = sorted(edge for edge in edges if 1 <= edge <= last_version + 1)
    disputed: list[Span] = []
    for start, end in pairwise(starts):
        if (left.replaced_by(start) is None) != (right.replaced_by(start) is None):
            disputed.append((start, end - 1))
    return join_spans(disputed)


def compute_deltas(
    left: LogState, right: LogState, left_entries: Iterable[Entry], right_entries: Iterable[Entry]
) -> dict[Kind, Delta]:
    """Return the differences by kind. The entries of each side are those that may be active there."""
    left_active, right_active = left.select_active(left_entries), right.select_active(right_entries)
    removed: dict[Kind, _Subjects] = {}
    for id, entry in left_active.items():
        if id not in right_active and not is_reflection_mark(
            entry
        ):  # the mark that closes an episode has no content
            subjects = removed.setdefault(entry.kind, {})
            subjects.setdefault(_subject_of_entry(left, entry), []).append(entry)
    added: dict[Kind, _Subjects] = {}
    for id, entry in right_active.items():
        if id not in left_active and not is_reflection_mark(entry):
            subjects = added.setdefault(entry.kind, {})
            subjects.setdefault(_subject_of_entry(right, entry), []).append(entry)
    kinds = (Kind.MESSAGE, Kind.FACT, Kind.SUMMARY)
    return {kind: _compute_delta(removed.get(kind, {}), added.get(kind, {})) for kind in kinds}


_Subjects: TypeAlias = dict[Hashable, list[Entry]]
"""Entries by their subjects."""


def _subject_of_entry(side: LogState, entry: Entry) -> Hashable:
    """Return what identifies the subject of an entry on both sides.

    This is the position of a message, the positions that a summary replaces, the address of a fact, or else its id.
    """
    if entry.kind is Kind.FACT:
        address = address_of(entry)
        return address if has_address(address) else entry.id
    if entry.kind is Kind.SUMMARY:
        return side.locate(entry.replaces)
    version = anchor_version(entry)
    return side.locate([(version, version)])


def _compute_delta(removed: _Subjects, added: _Subjects) -> Delta:
    """Pair entries about the same subject: equal contents are no difference, unequal contents are a change."""
    changes: list[Change] = []
    for subject, removed_entries in removed.items():
        added_entries = added.get(subject, [])
        for entry in list(removed_entries):
            content = _content_to_compare(entry)
            equal_entries = [other for other in added_entries if _content_to_compare(other) == content]
            if equal_entries:
                removed_entries.remove(entry)
                added_entries.remove(equal_entries[0])
        # Several facts at one address are a set: none of them became another one.
        if len(removed_entries) == len(added_entries) == 1:
            changes.append(Change(before=removed_entries.pop(), after=added_entries.pop()))
    return Delta(
        added=_sort_by_version(added),
        removed=_sort_by_version(removed),
        changed=tuple(sorted(changes, key=lambda change: change.before.version)),
    )


def _content_to_compare(entry: Entry) -> object:
    return entry.content, entry.parts, entry.data.get("value") if entry.kind is Kind.FACT else None


def _sort_by_version(subjects: _Subjects) -> tuple[Entry, ...]:
    entries = [entry for group in subjects.values() for entry in group]
    return tuple(sorted(entries, key=lambda entry: entry.version))
