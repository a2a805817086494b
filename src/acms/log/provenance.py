"""Which entries were made from which: how far an erasure reaches (rule 1.7), and the ids of copied entries.

A summary was made from the entries in its spans, a fact from its sources, and the edits of a message are one text in
several versions. The references of an entry outlive its content, so the answer is the same before and after an erasure.

An entry of a log has the same position and content in a copy of the log, but another id. The id is computed from the
original and the id of the copy, so an interrupted copy, or two concurrent ones, give the same result. The salt stays
secret: it cannot be computed without the original's.

    nonce = base32(SHA-256("nonce" ‖ copy ‖ id of the original))
    salt  = SHA-256("salt" ‖ copy ‖ salt of the original)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import NamedTuple

from acms.log.encoding import (
    Entropy,
    Stamp,
    chain_values,
    context_id,
    digest_draft,
    draw_token,
    encode_base32,
    parse_entry_id,
)
from acms.model import Entry, Kind, Span, State

Run = tuple[str, int, int]
"""Versions of one owner: (id of the context that has the rows, first, last)."""


class Link(NamedTuple):
    """An entry without its content: its location and its sources."""

    id: str
    #: Id of the context that has the row.
    owner: str
    version: int
    kind: Kind
    state: State
    #: The runs that a summary or an edit replaces.
    runs: tuple[Run, ...] = ()
    sources: tuple[str, ...] = ()


def source_spans(kind: Kind, replaces: tuple[Span, ...], covers: Span | None) -> tuple[Span, ...]:
    """Return the spans that an entry of a kind was made from: exact ones if it has them.

    A newer fact is not made from the one it replaces, nor a retraction from the entries it retracts.
    """
    if kind is Kind.SUMMARY:
        return replaces or (() if covers is None else (covers,))
    return replaces if kind is Kind.MESSAGE else ()


class Reached:
    """A growing set of entries that must go."""

    def __init__(self, links: Iterable[Link]) -> None:
        self.links: dict[str, Link] = {}
        #: By id: the entry that was given at the start, from which this one was reached.
        self.start: dict[str, str] = {}
        self._ids: dict[tuple[str, int], str] = {}
        self._all: dict[str, list[int]] = {}
        self._messages: dict[str, list[int]] = {}
        for link in links:
            self.add(link, link.id)

    def add(self, link: Link, cause: str) -> bool:
        """Add an entry that was reached from another one; return False when it was there."""
        if link.id in self.links:
            return False
        self.links[link.id] = link
        self.start[link.id] = self.start.get(cause, link.id)
        self._ids[link.owner, link.version] = link.id
        places = (self._all, self._messages) if link.kind is Kind.MESSAGE else (self._all,)
        for versions in places:
            insort(versions.setdefault(link.owner, []), link.version)
        return True

    def find_cause(self, link: Link) -> str | None:
        """Return the id of one of these that an entry was made from, if any; an edit only from messages."""
        for source in link.sources:
            if source in self.links:
                return source
        where = self._messages if link.kind is Kind.MESSAGE else self._all
        for owner, first, last in link.runs:
            versions = where.get(owner, ())
            index = bisect_left(versions, first)
            if index < len(versions) and versions[index] <= last:
                return self._ids[owner, versions[index]]
        return None

    def spread(self, links: Sequence[Link]) -> None:
        """Add everything among `links` that was made from one of these, directly or not."""
        waiting = sorted(links, key=lambda link: link.version)  # an entry comes after its sources
        while True:
            left: list[Link] = []
            for link in waiting:
                cause = self.find_cause(link)
                if cause is None:
                    left.append(link)
                else:
                    self.add(link, cause)
            if len(left) == len(waiting):
                return
            waiting = left


COPIED = "copied"
"""Setting of a copy: the context and version it was made of."""
COPIES = "copies"
"""Setting of an original: the ids of its copies. Entries erased in the original are erased in the copies too."""
COPYING = "copying"
"""Setting of a copy that is not finished."""


def copy_of(context: str, version: int, name: str, attempt: int) -> str:
    """Return the id of a named copy of a context at a version; another one for every attempt."""
    return context_id(_derived_entropy("context", context, str(version), name, str(attempt)))


def id_in_copy(id: str, copy: str, runs: Sequence[Run]) -> str:
    """Return the id that an entry has in a copy of some runs; its own when it is not one of them."""
    origin = parse_entry_id(id)
    if origin is None:
        return id
    context, version = origin
    if not any(owner == context and first <= version <= last for owner, first, last in runs):
        return id
    nonce = draw_token(_derived_entropy("nonce", copy, id), 6)
    return f"{id[0]}_{copy[2:]}_{encode_base32(version)}_{nonce}"


def copy_batch(batch: Sequence[Entry], head: bytes, copy: str, runs: Sequence[Run]) -> Iterator[Entry]:
    """Yield the entries of one append as a copy has them, after the chain value `head`.

    References to the copied log become references to the copy. Of a tombstone only the digest is left, so it is kept.
    """

    def copied_ids(ids: Iterable[str]) -> list[str]:
        return [id_in_copy(id, copy, runs) for id in ids]

    written: list[Entry] = []
    for entry in batch:
        id = id_in_copy(entry.id, copy, runs)
        data = dict(entry.data)
        if "demotes" in data:
            data["demotes"] = [[id_in_copy(demoted, copy, runs), spans] for demoted, spans in data["demotes"]]
        if "depends_on" in data:
            data["depends_on"] = copied_ids(data["depends_on"])
        if "lost" in data:
            data["lost"] = {**data["lost"], "ids": copied_ids(data["lost"]["ids"])}
        made = replace(entry, id=id, context=copy, sources=tuple(copied_ids(entry.sources)), data=data)
        if entry.salt is not None:
            salt = sha256(b"salt" + copy.encode() + entry.salt).digest()[:16]
            made = replace(made, salt=salt, digest=digest_draft(made, id.rsplit("_", 1)[-1], salt))
        written.append(made)
    stamps = [Stamp("", b"", entry.digest) for entry in written]
    for entry, chain in zip(written, chain_values(head, stamps), strict=True):
        yield replace(entry, chain=chain)


def _derived_entropy(*parts: str) -> Entropy:
    return lambda length: sha256("\0".join(parts).encode()).digest()[:length]
