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


class ReachedEntries:
    """The entries that an erasure reaches: a set that grows until nothing more was made from its members."""

    def __init__(self, links: Iterable[Link]) -> None:
        self.links: dict[str, Link] = {}
        #: By id: the id of the entry to be erased from which this one was reached, directly or indirectly.
        self.start: dict[str, str] = {}
        #: Ids by owner and version; then the ascending versions of all entries, and of messages, by owner.
        self._ids: dict[tuple[str, int], str] = {}
        self._versions: dict[str, list[int]] = {}
        self._message_versions: dict[str, list[int]] = {}
        for link in links:
            self.add(link, link.id)

    def add(self, link: Link, cause: str) -> bool:
        """Add an entry that was reached from the entry `cause`; return False if it is a member already."""
        if link.id in self.links:
            return False
        self.links[link.id] = link
        self.start[link.id] = self.start.get(cause, link.id)
        self._ids[link.owner, link.version] = link.id
        insort(self._versions.setdefault(link.owner, []), link.version)
        if link.kind is Kind.MESSAGE:
            insort(self._message_versions.setdefault(link.owner, []), link.version)
        return True

    def find_cause(self, link: Link) -> str | None:
        """Return the id of a member that an entry was made from, or None; an edit is made only from messages."""
        for source in link.sources:
            if source in self.links:
                return source
        versions_by_owner = self._message_versions if link.kind is Kind.MESSAGE else self._versions
        for owner, first, last in link.runs:
            versions = versions_by_owner.get(owner, ())
            index = bisect_left(versions, first)
            if index < len(versions) and versions[index] <= last:
                return self._ids[owner, versions[index]]
        return None

    def spread(self, links: Sequence[Link]) -> None:
        """Add each of some entries that was made from a member, directly or indirectly."""
        # In one log an entry comes after its sources, but a source may be in another log: repeat until none is found.
        unreached = sorted(links, key=lambda link: link.version)
        while True:
            still_unreached: list[Link] = []
            for link in unreached:
                cause = self.find_cause(link)
                if cause is None:
                    still_unreached.append(link)
                else:
                    self.add(link, cause)
            if len(still_unreached) == len(unreached):
                return
            unreached = still_unreached


COPIED = "copied"
"""Setting of a copy: the context and the version that were copied."""
COPIES = "copies"
"""Setting of an original: the ids of its copies. Entries erased in the original are erased in the copies too."""
COPYING = "copying"
"""Setting of a copy that is not finished."""


def id_of_copy(context: str, version: int, name: str, attempt: int) -> str:
    """Return the id of a named copy of a context at a version; each attempt has another id."""
    return context_id(_derived_entropy("context", context, str(version), name, str(attempt)))


def id_in_copy(id: str, copy: str, runs: Sequence[Run]) -> str:
    """Return the id that an entry has in a copy of some runs, or its own id if it is in none of them."""
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

    References to the copied log become references to the copy. An entry without content has no salt: its digest cannot
    be computed again, so the digest of the original is kept.
    """

    def copied_ids(ids: Iterable[str]) -> list[str]:
        return [id_in_copy(id, copy, runs) for id in ids]

    copies: list[Entry] = []
    for entry in batch:
        id = id_in_copy(entry.id, copy, runs)
        data = dict(entry.data)
        if "demotes" in data:
            data["demotes"] = [[id_in_copy(demoted, copy, runs), spans] for demoted, spans in data["demotes"]]
        if "depends_on" in data:
            data["depends_on"] = copied_ids(data["depends_on"])
        if "lost" in data:
            data["lost"] = {**data["lost"], "ids": copied_ids(data["lost"]["ids"])}
        copied = replace(entry, id=id, context=copy, sources=tuple(copied_ids(entry.sources)), data=data)
        if entry.salt is not None:
            salt = sha256(b"salt" + copy.encode() + entry.salt).digest()[:16]
            copied = replace(copied, salt=salt, digest=digest_draft(copied, id.rsplit("_", 1)[-1], salt))
        copies.append(copied)
    stamps = [Stamp("", b"", entry.digest) for entry in copies]  # a chain value needs only the digest
    for entry, chain in zip(copies, chain_values(head, stamps), strict=True):
        yield replace(entry, chain=chain)


def _derived_entropy(*parts: str) -> Entropy:
    """Return a source of bytes that are always the same for the same parts."""
    return lambda length: sha256("\0".join(parts).encode()).digest()[:length]
