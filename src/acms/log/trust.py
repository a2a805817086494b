"""Trust: how far a text is believed, which is never more than the least believed of what it was made from.

A message is trusted as its origin says. What ACMS made, a fact or a summary, notes the lowest class of what it was made
from in its data. Pure, and the only place that knows the order (decision 0073).
"""

from __future__ import annotations

from collections.abc import Iterable

from acms.model import Draft, Entry, Kind, Origin, Role

TRUST = "trust"
"""Name of the class in the data of what was derived."""

RANK = {
    origin: rank
    for rank, origin in enumerate(
        (Origin.EXTERNAL, Origin.TOOL, Origin.DERIVED, Origin.ASSISTANT, Origin.USER, Origin.SYSTEM)
    )
}
"""Each class with its place, the least trusted first."""

OF_ROLE = {
    Role.SYSTEM: Origin.SYSTEM,
    Role.DEVELOPER: Origin.SYSTEM,
    Role.USER: Origin.USER,
    Role.ASSISTANT: Origin.ASSISTANT,
    Role.TOOL: Origin.TOOL,
}
"""The class of what is said in a role, where its caller names none."""

LEADING = (Role.SYSTEM, Role.DEVELOPER)
"""Roles that instruct: no summary stands for what they say at the start of a log."""


def lowest_trust(classes: Iterable[Origin], *, default: Origin = Origin.EXTERNAL) -> Origin:
    """Return the least trusted of some classes; of none `default`."""
    return min(classes, key=RANK.__getitem__, default=default)


def is_protected_origin(origin: Origin) -> bool:
    """Whether what a class says ends by nothing that tools or pages say: the application, the user, the assistant."""
    return RANK[origin] >= RANK[Origin.ASSISTANT]


def trust_of_entry(entry: Draft) -> Origin:
    """Return the class of an entry; `external` of what was derived before this was noted."""
    if entry.kind is Kind.MESSAGE:
        return entry.origin
    noted = entry.data.get(TRUST)
    return next((origin for origin in RANK if origin == noted), Origin.EXTERNAL)


def is_instruction(entry: Entry) -> bool:
    """Whether an entry is a message with a role that instructs, and of the class that may."""
    return entry.role in LEADING and entry.origin is Origin.SYSTEM
