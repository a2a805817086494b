"""Logs as plain lists: the model that stories are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from acms.log import active_entries as history
from acms.log.active_entries import anchor_version
from acms.model import Context, Entry, Kind, Span, State, ToolCall, ToolResult


@dataclass(eq=False)
class Cell:
    """One entry as it was first read. Forks share the cell, so an erasure affects all of them."""

    entry: Entry
    #: (Space, part) → (sequence number, data).
    derived: dict[tuple[str, int], tuple[int, bytes]] = field(default_factory=dict)


@dataclass(eq=False)
class Tree:
    """What the contexts of one fork tree have in common."""

    epoch: int = 0
    derived: int = 0


@dataclass(eq=False)
class Book:
    """One context as a list: a fork copies the list, which is what forking by reference must look like."""

    context: Context
    tree: Tree
    cells: list[Cell] = field(default_factory=list)
    parent: Book | None = None
    keys: dict[str, Cell] = field(default_factory=dict)
    rewrites: int = 0
    tail: dict[str, Any] = field(default_factory=dict)
    deleted: bool = False
    rev: int = 0
    #: Active entries at each version when that version was the newest.
    views: dict[int, list[str]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Id of the context."""
        return self.context.id

    @property
    def entries(self) -> list[Entry]:
        """The whole log."""
        return [cell.entry for cell in self.cells]


def find_active_entries(entries: Sequence[Entry]) -> list[Entry]:
    """Return the active entries in reading order, found the slow way: from the newest, each replaces older ones.

    A replaced fact still replaces others if a newer fact, or a retraction that ends it, replaced it.
    """
    replaced_by: dict[int, Entry] = {}
    active: list[Entry] = []
    for entry in reversed(entries):
        replacement = replaced_by.get(entry.version)
        if replacement is not None and not _ends_fact(replacement, entry):
            continue
        derived = entry.kind in (Kind.FACT, Kind.SUMMARY)
        if derived and entry.state is State.ERASED and replacement is None:
            continue
        for version in versions_of_spans(entry.replaces):
            if version < entry.version:
                replaced_by.setdefault(version, entry)
        is_summary = entry.kind is Kind.SUMMARY and bool(entry.replaces)
        if entry.state is State.LIVE and (entry.kind is Kind.MESSAGE or is_summary):
            active.append(entry)
    return sorted(active, key=lambda entry: (anchor_version(entry), entry.version))


def _ends_fact(replacement: Entry, entry: Entry) -> bool:
    """Return whether a fact was replaced by a newer fact, or by a retraction that ends it."""
    ends = replacement.kind is Kind.FACT or replacement.data.get("reason") in ("removed", "archived")
    return entry.kind is Kind.FACT and ends


def ids_of_entries(entries: Sequence[Entry]) -> list[str]:
    """Return the ids of some entries."""
    return [entry.id for entry in entries]


def spans_of_versions(versions: set[int]) -> tuple[Span, ...]:
    """Write versions as spans."""
    found: list[Span] = []
    for version in sorted(versions):
        if found and found[-1][1] == version - 1:
            found[-1] = (found[-1][0], version)
        else:
            found.append((version, version))
    return tuple(found)


def versions_of_spans(spans: Sequence[Span]) -> set[int]:
    """Return the versions in spans."""
    versions: set[int] = set()
    for first, last in spans:
        versions.update(range(first, last + 1))
    return versions


def check_atomic_groups(sequence: Sequence[Entry]) -> None:
    """Assert that atomic groups lose nothing, repeat nothing and never hold half a tool group."""
    folded = history.fold_atomic_groups(sequence, whole=True)
    ids = [entry.id for unit in folded.units for entry in unit.entries]
    ids += [entry.id for entry, _ in folded.hidden]
    assert sorted(ids) == sorted(ids_of_entries(sequence)), "a unit lost or repeated an entry"
    assert folded.unresolved == []
    for unit in folded.units:
        group = unit.entries[0].group
        if group is None:
            assert len(unit.entries) == 1
            continue
        members = [entry for entry in sequence if entry.group == group]
        assert ids_of_entries(unit.entries) == ids_of_entries(members), "a group is split"
        parts = [part for entry in unit.entries for part in entry.parts]
        calls = {part.call_id for part in parts if isinstance(part, ToolCall)}
        answers = {part.call_id for part in parts if isinstance(part, ToolResult)}
        assert calls, "answers are shown without their calls"
        assert unit.complete == (calls <= answers)
