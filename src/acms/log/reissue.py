"""An entry of one log as an entry of another: the same place and content under another id.

Everything is computed from the original and the id of the copy, so a copy that was interrupted, or is made by two at
once, comes out the same. The salt stays secret: nobody can compute it without the original's.

    nonce = base32(SHA-256("nonce" ‖ copy ‖ id of the original))
    salt  = SHA-256("salt" ‖ copy ‖ salt of the original)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256

from acms.log.hash_chain import Entropy, Stamp, base32, context_id, digest, links, locate, token
from acms.model import Entry

COPIED = "copied"
"""Setting of a copy: the context and version it was made of."""
COPIES = "copies"
"""Setting of an original: the ids of its copies. What is erased in it goes in them too."""
COPYING = "copying"
"""Setting of a copy that is not finished."""

Run = tuple[str, int, int]
"""Versions of one owner: (id of the context that has the rows, first, last)."""


def copy_of(context: str, version: int, name: str, attempt: int) -> str:
    """Return the id of a named copy of a context at a version; another one for every attempt."""
    return context_id(_drawn("context", context, str(version), name, str(attempt)))


def renamed(id: str, copy: str, runs: Sequence[Run]) -> str:
    """Return the id that an entry has in a copy of some runs; its own when it is not one of them."""
    place = locate(id)
    if place is None or not any(owner == place[0] and low <= place[1] <= high for owner, low, high in runs):
        return id
    return f"{id[0]}_{copy[2:]}_{base32(place[1])}_{token(_drawn('nonce', copy, id), 6)}"


def copied(batch: Sequence[Entry], head: bytes, copy: str, runs: Sequence[Run]) -> Iterator[Entry]:
    """Yield the entries of one append as a copy has them, behind the chain value `head`.

    What they cite of the copied log they cite of the copy. Of a tombstone only the digest is left, so it is kept.
    """
    written: list[Entry] = []
    for entry in batch:
        id = renamed(entry.id, copy, runs)
        sources = tuple([renamed(source, copy, runs) for source in entry.sources])
        made = replace(entry, id=id, context=copy, sources=sources)
        if "demotes" in entry.data:
            rows = [[renamed(id, copy, runs), good] for id, good in entry.data["demotes"]]
            made = replace(made, data={**entry.data, "demotes": rows})
        if "lost" in entry.data:
            ids = [renamed(id, copy, runs) for id in entry.data["lost"]["ids"]]
            made = replace(made, data={**entry.data, "lost": {**entry.data["lost"], "ids": ids}})
        if entry.salt is not None:
            salt = sha256(b"salt" + copy.encode() + entry.salt).digest()[:16]
            made = replace(made, salt=salt, digest=digest(made, id.rsplit("_", 1)[-1], salt))
        written.append(made)
    stamps = [Stamp("", b"", entry.digest) for entry in written]
    for entry, chain in zip(written, links(head, stamps), strict=True):
        yield replace(entry, chain=chain)


def _drawn(*what: str) -> Entropy:
    return lambda length: sha256("\0".join(what).encode()).digest()[:length]
