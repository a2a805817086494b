"""Who was made from what: what must go when something is erased (rule 1.7).

A summary was made from what its spans hold, a fact from its sources, and the edits of a message are one text in several
versions. What an entry says of others outlives its content, so the answer is the same after an erasure as before it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from acms.model import Kind, Span, State

Run = tuple[str, int, int]
"""Versions of one owner: (id of the context that has the rows, first, last)."""


class Link(NamedTuple):
    """An entry without its content: where it lies and what it was made from."""

    id: str
    #: Id of the context that has the row.
    owner: str
    version: int
    kind: Kind
    state: State
    #: What a summary stands for, what an edit stands instead of.
    runs: tuple[Run, ...] = ()
    sources: tuple[str, ...] = ()


def spans(kind: Kind, replaces: tuple[Span, ...], covers: Span | None) -> tuple[Span, ...]:
    """Return the spans an entry of a kind was made from: exact ones where it has them.

    A newer fact is not made from the one it replaces, nor a retraction from what it takes back.
    """
    if kind is Kind.SUMMARY:
        return replaces or (() if covers is None else (covers,))
    return replaces if kind is Kind.MESSAGE else ()


class Reached:
    """A growing set of entries that must go."""

    def __init__(self, links: Iterable[Link]) -> None:
        self.links: dict[str, Link] = {}
        self._all: dict[str, list[int]] = {}
        self._messages: dict[str, list[int]] = {}
        for link in links:
            self.add(link)

    def add(self, link: Link) -> bool:
        """Add an entry; return False when it was there."""
        if link.id in self.links:
            return False
        self.links[link.id] = link
        places = (self._all, self._messages) if link.kind is Kind.MESSAGE else (self._all,)
        for versions in places:
            insort(versions.setdefault(link.owner, []), link.version)
        return True

    def cited_by(self, link: Link) -> bool:
        """Return whether an entry was made from one of these; an edit only from messages."""
        if any(source in self.links for source in link.sources):
            return True
        where = self._messages if link.kind is Kind.MESSAGE else self._all
        return any(_holds(where.get(owner, ()), first, last) for owner, first, last in link.runs)

    def spread(self, links: Sequence[Link]) -> None:
        """Add everything among `links` that was made from one of these, directly or not."""
        waiting = sorted(
            links, key=lambda link: link.version
        )  # what is made comes after what it is made from
        while True:
            left: list[Link] = []
            for link in waiting:
                if self.cited_by(link):
                    self.add(link)
                else:
                    left.append(link)
            if len(left) == len(waiting):
                return
            waiting = left


def _holds(versions: Sequence[int], first: int, last: int) -> bool:
    index = bisect_left(versions, first)
    return index < len(versions) and versions[index] <= last
