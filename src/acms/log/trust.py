"""Trust: how far a text is believed, which is never more than its least trusted source.

The trust of a message is its origin. A derived entry, a fact or a summary, stores the lowest class of its sources in
its data. Pure, and the only module that knows the order (decision 0073).
"""

from __future__ import annotations

from collections.abc import Iterable

from acms.model import Draft, Entry, Kind, Origin, Role

TRUST = "trust"
"""Key of the class in the data of a derived entry."""

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
"""The class of a message by its role, unless the caller gives one."""

LEADING = (Role.SYSTEM, Role.DEVELOPER)
"""Roles that instruct: no summary replaces their messages at the start of a log."""


def lowest_trust(classes: Iterable[Origin], *, default: Origin = Origin.EXTERNAL) -> Origin:
    """Return the least trusted of some classes; of none `default`."""
    return min(classes, key=RANK.__getitem__, default=default)


def is_protected_origin(origin: Origin) -> bool:
    """Whether tools and pages cannot end statements of a class: the application, the user, the assistant."""
    return RANK[origin] >= RANK[Origin.ASSISTANT]


def trust_of_entry(entry: Draft) -> Origin:
    """Return the class of an entry; `external` for derived entries written before the class was stored."""
    if entry.kind is Kind.MESSAGE:
        return entry.origin
    noted = entry.data.get(TRUST)
    return next((origin for origin in RANK if origin == noted), Origin.EXTERNAL)


def is_instruction(entry: Entry) -> bool:
    """Whether an entry is a message with a role that instructs, and of the class that may."""
    return entry.role in LEADING and entry.origin is Origin.SYSTEM
