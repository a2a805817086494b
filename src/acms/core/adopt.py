"""Which late facts a fork takes over (rule 1.10).

A fact is written after the messages it was distilled from, so a fork below it has the messages and not the fact. It is
adopted when everything it was made from is part of the fork; no model is asked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace

from acms.core.chain import locate
from acms.core.history import Cover
from acms.model import Draft, Entry, Kind, Span, State

_FIELDS = tuple(field.name for field in fields(Draft))


def inherits(id: str, runs: Iterable[tuple[str, int, int]]) -> bool:
    """Return whether an entry is among (owner, first, last) runs of a log."""
    place = locate(id)
    return place is not None and any(
        owner == place[0] and first <= place[1] <= last for owner, first, last in runs
    )


def candidates(facts: Iterable[Entry], runs: Sequence[tuple[str, int, int]]) -> list[Entry]:
    """Keep facts that may have been made from inherited entries alone; other facts they cite are not looked at."""
    return [
        fact
        for fact in facts
        if fact.state is State.LIVE
        and fact.sources
        and all(inherits(id, runs) or id.startswith("f_") for id in fact.sources)
    ]


def grounded(
    facts: Iterable[Entry], known: Mapping[str, Entry | None], runs: Sequence[tuple[str, int, int]]
) -> list[Entry]:
    """Keep facts that were made from inherited entries alone, directly or through facts like them.

    `known` has every entry they cite, directly or not; None for what does not exist. What was erased grounds nothing.
    """
    bad = {id for id, entry in known.items() if entry is None or entry.state is State.ERASED}
    outside = [entry for id, entry in known.items() if entry is not None and not inherits(id, runs)]
    bad |= {entry.id for entry in outside if entry.kind is not Kind.FACT or not entry.sources}
    size = -1
    while size != len(bad):
        size = len(bad)
        bad |= {entry.id for entry in outside if bad.intersection(entry.sources)}
    return [fact for fact in facts if fact.sources and not bad.intersection(fact.sources)]


def adopted(facts: Iterable[Entry], own: Sequence[Entry], cover: Cover, fork: int) -> list[Draft]:
    """Return facts as the fork appends them, citing the originals.

    `own` are the facts of the fork itself and `cover` what is out of force in it. What was adopted before is left out,
    and so is what the fork has decided otherwise: it replaced the same entries, or filled the same address.
    """
    cited = {id for fact in own for id in fact.sources}
    filled = {_address(fact) for fact in own if cover.by(fact.version) is None}
    found: list[Draft] = []
    for fact in facts:
        replaces = clipped(fact.replaces, fork)
        decided = any(
            (cover.by(version) or 0) > fork for first, last in replaces for version in range(first, last + 1)
        )
        exclusive = fact.data.get("cardinality") == "one" and _address(fact) in filled
        if fact.id in cited or decided or exclusive:
            continue
        draft = Draft(**{name: getattr(fact, name) for name in _FIELDS})
        found.append(
            replace(draft, key=f"adopt:{fact.id}", replaces=replaces, sources=(*fact.sources, fact.id))
        )
    return found


def clipped(spans: Iterable[Span], upto: int) -> tuple[Span, ...]:
    """Cut spans at a version."""
    return tuple((first, min(last, upto)) for first, last in spans if first <= upto)


def _address(fact: Entry) -> tuple[object, object]:
    return fact.data.get("subject"), fact.data.get("attribute")
