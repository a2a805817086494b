"""Stale: what messages say that is no longer so, by the entries that retired a fact made from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from acms.log.facts import demoted
from acms.log.hash_chain import locate
from acms.log.in_force import Cover, Doc
from acms.model import Entry, Span


class Demotion(NamedTuple):
    """What became of one message."""

    #: The entry that replaced or ended what it says, in words, and its version.
    by: str
    version: int
    #: Characters of its content that are still good; none: nothing of it.
    spans: tuple[Span, ...]


class Stale:
    """The demoted messages that one log knows of; also of other logs, when it is the profile of a namespace."""

    __slots__ = ("_found", "_profile", "_versions")

    def __init__(self, found: Mapping[str, tuple[int, tuple[Span, ...]]], *, profile: bool = False) -> None:
        #: Version of the entry that did it, and characters that are still good.
        self._found = found
        self._profile = profile
        #: A message is looked up by its version, which needs no reading of it.
        self._versions = {place[1] for id in found if (place := locate(id)) is not None}

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._found)

    def holds(self, version: int) -> bool:
        """Whether a message of this version may be demoted."""
        return version in self._versions

    def as_profile(self) -> Stale:
        """Return the same as what the profile of a namespace knows."""
        return Stale(self._found, profile=True) if self._found else self

    def since(self, version: int) -> Demotion:
        """Return what becomes of a message that says no more than one that an entry demoted."""
        return Demotion(self._by(version), version, ())

    def of(self, docs: Iterable[Doc | Entry]) -> Demotion | None:
        """Return what became of one of some entries; None when nothing did."""
        for doc in docs:
            if doc.version in self._versions and doc.id in self._found:
                version, spans = self._found[doc.id]
                return Demotion(self._by(version), version, spans)
        return None

    def _by(self, version: int) -> str:
        return f"v{version} of the profile" if self._profile else f"v{version}"


NONE = Stale({})


def stale(cover: Cover) -> Stale:
    """Return what the entries with effect demote: undoing one of them restores everything."""
    spans = demoted(cover)
    if not spans:
        return NONE
    by: dict[str, int] = {}
    for entry in cover.retiring:  # the newest first
        for id, _ in entry.data.get("demotes", ()):
            by.setdefault(id, entry.version)
    return Stale({id: (by[id], good) for id, good in spans.items()})
