"""Logs as plain lists: the model that stories are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from acms.log import in_force as history
from acms.log.in_force import anchor_version
from acms.model import Context, Entry, Kind, Span, State, ToolCall, ToolResult


@dataclass(eq=False)
class Cell:
    """One entry as it was first read; forks hold the same cell, so what is erased once is erased for all."""

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
    #: What was in force at each version when that version was the newest.
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
    """Say what is read of a log, in order, the long way: newest first, each strikes out what it replaces.

    A fact goes on doing so after a newer fact, or a retraction that ends it, has struck it out.
    """
    struck: dict[int, Entry] = {}
    read: list[Entry] = []
    for entry in reversed(entries):
        by = struck.get(entry.version)
        ended = by is not None and (by.kind is Kind.FACT or by.data.get("reason") in ("removed", "archived"))
        if by is not None and not (entry.kind is Kind.FACT and ended):
            continue
        if entry.state is State.ERASED and entry.kind in (Kind.FACT, Kind.SUMMARY) and by is None:
            continue
        for first, last in entry.replaces:
            for version in range(first, min(last, entry.version - 1) + 1):
                struck.setdefault(version, entry)
        if entry.state is State.LIVE and (
            entry.kind is Kind.MESSAGE or (entry.kind is Kind.SUMMARY and entry.replaces)
        ):
            read.append(entry)
    return sorted(read, key=lambda entry: (anchor_version(entry), entry.version))


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


def check_atomic_groups(sequence: Sequence[Entry]) -> None:
    """Assert that units lose nothing, repeat nothing and never show half a tool group."""
    found = history.fold_atomic_groups(sequence, whole=True)
    shown = [entry for unit in found.units for entry in unit.entries]
    hidden = [entry for entry, _ in found.hidden]
    assert sorted(ids_of_entries([*shown, *hidden])) == sorted(ids_of_entries(sequence)), (
        "a unit lost or repeated an entry"
    )
    assert found.unresolved == []
    for unit in found.units:
        group = unit.entries[0].group
        if group is None:
            assert len(unit.entries) == 1
            continue
        assert ids_of_entries(unit.entries) == [entry.id for entry in sequence if entry.group == group], (
            "a group is split"
        )
        calls = {part.call_id for entry in unit.entries for part in entry.parts if isinstance(part, ToolCall)}
        answers = {
            part.call_id for entry in unit.entries for part in entry.parts if isinstance(part, ToolResult)
        }
        assert calls, "answers are shown without their calls"
        assert unit.complete == (calls <= answers)
