"""Trust: how far a text is believed, which is never more than its least trusted source.

A trust class is an `Origin`. The trust of a message is its origin. A derived entry, a fact or a summary, stores the
lowest class of its sources in its data. Only this module knows the order of the classes (decision 0073).
"""

from __future__ import annotations

from collections.abc import Iterable

from acms.model import Draft, Entry, Kind, Origin, Role

TRUST = "trust"
"""Key of the trust class in the data of a derived entry."""

RANK = {
    origin: rank
    for rank, origin in enumerate(
        (Origin.EXTERNAL, Origin.TOOL, Origin.DERIVED, Origin.ASSISTANT, Origin.USER, Origin.SYSTEM)
    )
}
"""Rank of each class; the least trusted class has 0."""

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
    """Return the least trusted of some classes, or `default` if there are none."""
    return min(classes, key=RANK.__getitem__, default=default)


def is_protected_origin(origin: Origin) -> bool:
    """Return whether text of a class is protected: text of tools and pages cannot end a fact of this class."""
    return RANK[origin] >= RANK[Origin.ASSISTANT]


def trust_of_entry(entry: Draft) -> Origin:
    """Return the class of an entry; `external` for derived entries written before the class was stored."""
    if entry.kind is Kind.MESSAGE:
        return entry.origin
    stored_class = entry.data.get(TRUST)
    return next((origin for origin in RANK if origin == stored_class), Origin.EXTERNAL)


def is_instruction(entry: Entry) -> bool:
    """Return whether an entry is an instruction: it has an instructing role, and the trust that the role requires."""
    return entry.role in LEADING and entry.origin is Origin.SYSTEM
