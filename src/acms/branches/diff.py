"""Compare the active entries of two logs, which may share a beginning.

Up to the newest common version both logs have the same entries, so only entries that are superseded or retracted on one
side alone can differ there; above it all entries can. The caller passes exactly these entries.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from acms.log.facts import address_of, has_address
from acms.log.in_force import Cover, anchor_version
from acms.model import Entry, Kind, Span, State
from acms.results import Change, Delta
from acms.write.episodes import is_mark

Run: TypeAlias = tuple[str, int, int]
"""Owner, first and last version of a stretch of a log."""

GAP = 32
"""Versions between two stretches that are read rather than skipped."""


@dataclass(frozen=True, slots=True)
class LogState:
    """Where one log stands at a version: whose entries it reads, and which of them are out of force."""

    #: Ascending, without a gap, from version 1.
    runs: Sequence[Run]
    cover: Cover

    def in_force(self, entries: Iterable[Entry]) -> list[Entry]:
        """Keep the entries that are in force and still have their content."""
        return [
            entry for entry in entries if entry.state is State.LIVE and self.cover.by(entry.version) is None
        ]

    def place(self, spans: Iterable[Span]) -> tuple[Run, ...]:
        """Return where spans of versions lie, in the same words for every log that shares them."""
        found: list[Run] = []
        for first, last in sorted(spans):
            for owner, low, high in self.runs:
                start, end = max(first, low), min(last, high)
                if start > end:
                    continue
                if found and found[-1][0] == owner and found[-1][2] >= start - 1:
                    found[-1] = (owner, found[-1][1], max(end, found[-1][2]))
                else:
                    found.append((owner, start, end))
        return tuple(found)


def find_common_version(left: Sequence[Run], right: Sequence[Run]) -> int:
    """Return the newest version up to which two logs are the same entries; 0 when they share nothing."""
    found = 0
    for (one, _, one_last), (other, _, other_last) in zip(left, right, strict=False):
        if one != other:
            break
        found = min(one_last, other_last)
        if one_last != other_last:
            break
    return found


def find_disputed_spans(left: Cover, right: Cover, upto: int) -> list[Span]:
    """Return the versions up to one that are out of force on one side only, as ascending spans."""
    edges = {1, upto + 1}
    for first, last in (*left.spans(), *right.spans()):
        edges |= {first, last + 1}
    points = sorted(edge for edge in edges if 1 <= edge <= upto + 1)
    found: list[Span] = []
    for first, following in pairwise(points):
        if (left.by(first) is None) != (right.by(first) is None):
            if found and found[-1][1] == first - 1:
                found[-1] = (found[-1][0], following - 1)
            else:
                found.append((first, following - 1))
    return found


def merge_nearby_spans(spans: Iterable[Span]) -> list[Span]:
    """Join ascending spans that lie close together: one read instead of many."""
    found: list[Span] = []
    for first, last in spans:
        if found and first - found[-1][1] <= GAP:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def compute_deltas(
    left: LogState, right: LogState, before: Iterable[Entry], after: Iterable[Entry]
) -> dict[Kind, Delta]:
    """Return what differs by kind; `before` and `after` are what may be in force on the left and on the right."""
    one = {entry.id: entry for entry in left.in_force(before)}
    other = {entry.id: entry for entry in right.in_force(after)}
    removed = [entry for id, entry in one.items() if id not in other and not is_mark(entry)]
    added = [entry for id, entry in other.items() if id not in one and not is_mark(entry)]
    return {
        kind: _compute_delta(
            [(entry, _subject_of_entry(left, entry)) for entry in removed if entry.kind is kind],
            [(entry, _subject_of_entry(right, entry)) for entry in added if entry.kind is kind],
        )
        for kind in (Kind.MESSAGE, Kind.FACT, Kind.SUMMARY)
    }


def _subject_of_entry(side: LogState, entry: Entry) -> Hashable:
    """Return what an entry is about, the same on both sides: a place in the log, an address; None: only itself."""
    if entry.kind is Kind.FACT:
        address = address_of(entry)
        return address if has_address(address) else None
    if entry.kind is Kind.SUMMARY:
        return side.place(entry.replaces)
    place = anchor_version(entry)
    return side.place(((place, place),))


def _content_to_compare(entry: Entry) -> object:
    return entry.content, entry.parts, entry.data.get("value") if entry.kind is Kind.FACT else None


def _compute_delta(
    removed: Sequence[tuple[Entry, Hashable]], added: Sequence[tuple[Entry, Hashable]]
) -> Delta:
    """Pair entries about the same subject: equal contents are no difference, unequal contents are a change."""
    about: dict[Hashable, list[Entry]] = {}
    for entry, subject in added:
        about.setdefault(entry.id if subject is None else subject, []).append(entry)
    left: dict[Hashable, list[Entry]] = {}
    for entry, subject in removed:
        key = entry.id if subject is None else subject
        same = next(
            (
                other
                for other in about.get(key, ())
                if _content_to_compare(other) == _content_to_compare(entry)
            ),
            None,
        )
        if same is None:
            left.setdefault(key, []).append(entry)
        else:
            about[key].remove(same)
    changed: list[Change] = []
    for key, gone in left.items():
        come = about.get(key, [])
        if len(gone) == len(come) == 1:  # several facts at one address are a set: none became another
            changed.append(Change(before=gone.pop(), after=come.pop()))
    return Delta(
        added=_sort_by_version(about.values()),
        removed=_sort_by_version(left.values()),
        changed=tuple(sorted(changed, key=lambda change: change.before.version)),
    )


def _sort_by_version(groups: Iterable[Iterable[Entry]]) -> tuple[Entry, ...]:
    return tuple(sorted((entry for group in groups for entry in group), key=lambda entry: entry.version))
