"""Sources: what offers candidates beside the ranked messages: the facts of a log, and those of its namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acms.errors import SessionNotFoundError
from acms.log.read import profile
from acms.ports import StorageBackend
from acms.recall.fact_candidates import Known, Usual, known
from acms.recall.superseded import NONE, Stale

if TYPE_CHECKING:
    from acms.recall.corpus import Field
    from acms.recall.pipeline import Ranked, Reader

ABSENT = 2.0
"""Seconds for which it is believed that a namespace has none."""
NAMESPACES = 4096
"""Namespaces, and askers without a profile, of which it is remembered."""


class Profiles:
    """Which context holds the facts of a namespace: its id is remembered for good, that there is none for a moment."""

    def __init__(self, storage: StorageBackend) -> None:
        self._storage = storage
        self._found: dict[str, str] = {}
        #: Until when there is none, by namespace and by who asked.
        self._absent: dict[tuple[str, object], float] = {}

    async def find(self, namespace: str, asking: object = None) -> str | None:
        """Return the id of a namespace's profile; None when it has none.

        `asking` is what the caller knows of its own log: when that has changed, the store is asked again.
        """
        found = self._found.get(namespace)
        if found is not None:
            return found
        key, now = (namespace, asking), asyncio.get_running_loop().time()
        if now < self._absent.get(key, 0.0):
            return None
        context = await profile(self._storage, namespace)
        if context is None:
            if len(self._absent) >= NAMESPACES:
                self._absent.clear()
            self._absent[key] = now + ABSENT
            return None
        if len(self._found) >= NAMESPACES:
            self._found.clear()
        self._found[namespace] = context.id
        return context.id

    def forget(self, namespace: str) -> None:
        """Ask the store again: the profile was deleted."""
        self._found.pop(namespace, None)


@dataclass(frozen=True, slots=True)
class Beside:
    """What stands beside the ranked messages of a log."""

    #: The facts of the namespace, then those of each log.
    known: Sequence[Known] = ()
    #: What the namespace's profile says about messages of this log.
    stale: Stale = NONE
    #: The profile's whole index: content found to be gone is taken out of it.
    profile: tuple[str, Field] | None = None


NOTHING = Beside()


async def beside(
    reader: Reader, found: Ranked, namespace: str | None, others: Sequence[Ranked] = ()
) -> Beside:
    """Gather the facts in force of some ranked logs and, with a namespace, those of its profile."""
    fields = [(one.context, one.field.facts) for one in (found, *others)]
    stale, shared = NONE, None
    if namespace is not None:
        id = await reader.indexes.profiles.find(namespace, (found.context, found.made))
        if id is not None and id != found.context:
            shared, stale = await _profile(reader, id, namespace)
    if shared is not None:
        fields.insert(0, (shared[0], shared[1].facts))
    held = [(context, field) for context, field in fields if field is not None]
    if not held:
        return NOTHING
    ranking = found.ranking
    usual = Usual(ranking.often, len(found.field), ranking.usual)
    usual = usual.beside([field for _, field in held], found.question.terms)
    return Beside([known(*one, found.question, usual) for one in held], stale, shared)


async def _profile(reader: Reader, id: str, namespace: str) -> tuple[tuple[str, Field] | None, Stale]:
    """Return the index of a namespace's profile, caught up, and what it says about messages."""
    try:
        if (await reader.storage.context(id)).counter != reader.counter.name:
            return None, NONE  # its tokens were counted otherwise
        head = await reader.storage.head(id)
        now = await reader.indexes.in_force(id, head, head.version)
        spaces = () if reader.embedding is None else (reader.embedding.space,)
        field = await reader.indexes.field(id, head, head.version, now.cover, spaces)
    except SessionNotFoundError:
        reader.indexes.profiles.forget(namespace)
        return None, NONE
    if reader.embedding is not None:
        reader.embedding.heal(id, head.version)
    return (id, field), now.stale.as_profile()
