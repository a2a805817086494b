"""Sources: what offers candidates beside the ranked messages: the facts of a log, and those of its namespace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acms.errors import SessionNotFoundError
from acms.recall.fact_candidates import Known, Usual
from acms.recall.later import above_facts
from acms.recall.superseded import NONE, Stale

if TYPE_CHECKING:
    from acms.recall.corpus import Field
    from acms.recall.request import Ranked, Reader


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
    usual = Usual.of(found.ranking, [field for _, field in held])
    known = [Known(*one, found.question, usual) for one in held]
    rankings = {one.context: one.ranking for one in (found, *others)}
    for one in known:
        if one.context in rankings:
            above_facts(rankings[one.context], one)
    return Beside(known, stale, shared)


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
