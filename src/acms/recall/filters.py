"""Filters of a recall: which entries may be shown, by speaker, role, session, time, and metadata.

The index answers most filters. The others, metadata and the exact second of a message, are looked up in the entries
that pass all other filters, and remembered beside the index.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from acms.errors import ValidationError
from acms.log import validation
from acms.log.encoding import to_microseconds
from acms.model import Json, Kind, Role
from acms.recall.corpus import Field
from acms.text.index_record import Label

KEYS = ("role", "actor", "marker", "metadata", "after", "before", "session")
"""Keys of a filter."""

MINUTE = 60_000_000
"""Microseconds of the unit in which the index keeps times."""

Mask: TypeAlias = NDArray[np.bool_]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The conditions an entry must meet to be shown; all given ones must hold."""

    #: Any of these; None for all.
    roles: frozenset[Role] | None = None
    actors: frozenset[str] | None = None
    markers: frozenset[str] | None = None
    sessions: frozenset[str] | None = None
    #: Said at this time or later, and before that one; aware UTC.
    after: datetime | None = None
    before: datetime | None = None
    #: Names with the values that the caller noted under them.
    metadata: tuple[tuple[str, Json], ...] = ()

    @classmethod
    def of(cls, given: object) -> Where | None:
        """Return a filter from a caller's mapping, or None for an empty one.

        `ValidationError` names the invalid field, and for an unknown key all valid keys.
        """
        if not isinstance(given, Mapping):
            raise ValidationError(f"must be a mapping, not {type(given).__name__}", field="where")
        said: dict[str, Any] = {str(name): value for name, value in given.items() if value is not None}
        unknown = sorted(said.keys() - set(KEYS))
        if unknown:
            raise ValidationError(
                f"{unknown[0]!r} is no filter",
                field="where",
                options=(
                    f"filter by {', '.join(KEYS)}",
                    f'"metadata": {{{unknown[0]!r}: …}} for a key of yours',
                ),
            )
        noted = said.get("metadata", {})
        if not isinstance(noted, Mapping):
            raise ValidationError("must be a mapping of names to values", field="where.metadata")
        after, before = (
            None if said.get(name) is None else _parse_time_bound(said[name], f"where.{name}")
            for name in ("after", "before")
        )
        if after is not None and before is not None and before <= after:
            raise ValidationError("must be later than after", field="where.before")
        found = cls(
            roles=_parse_value_set(said.get("role"), "role", _validate_role),
            actors=_parse_value_set(said.get("actor"), "actor", validation.validate_name),
            markers=_parse_value_set(said.get("marker"), "marker", _validate_marker),
            sessions=_parse_value_set(said.get("session"), "session", validation.validate_name),
            after=after,
            before=before,
            metadata=tuple((validation.validate_name(name, "where.metadata"), noted[name]) for name in noted),
        )
        return None if found == cls() else found

    def likely(self, field: Field, owners: Collection[str]) -> Mask:
        """Return which entries in force it lets through as far as the index tells; `owners` are its sessions."""
        codes, labels = field.labels
        found = np.fromiter(map(self._labelled, labels), bool, len(labels))[codes]
        minutes = field.column("minute")
        if self.after is not None:
            found &= minutes >= to_microseconds(self.after) // MINUTE
        if self.before is not None:
            found &= minutes <= (to_microseconds(self.before) - 1) // MINUTE
        if self.sessions is not None:
            found &= field.snapshot.of(owners)[field.documents(np.arange(len(field)))]
        return found

    def open(self, field: Field) -> Mask:
        """Return of which entries in force the index does not tell all that it asks."""
        if self.metadata:
            return np.ones(len(field), bool)
        minutes = field.column("minute")
        found = np.zeros(len(field), bool)
        for end in (self.after, self.before):
            if end is not None and to_microseconds(end) % MINUTE:
                found |= minutes == to_microseconds(end) // MINUTE
        return found

    def holds(self, said: datetime, metadata: Mapping[str, Json]) -> bool:
        """Return whether it accepts a message with this time and this metadata."""
        timely = (self.after is None or said >= self.after) and (self.before is None or said < self.before)
        return timely and all(name in metadata and metadata[name] == value for name, value in self.metadata)

    def _labelled(self, label: Label) -> bool:
        return (
            (self.roles is None or label.role in self.roles)
            and (self.actors is None or label.actor in self.actors)
            and (self.markers is None or not self.markers.isdisjoint(label.markers))
        )


def _parse_time_bound(given: Any, field: str) -> datetime:
    """Return a time; a day alone begins at midnight UTC."""
    if isinstance(given, str) and len(given) == len("2026-01-01"):
        given = f"{given}T00:00+00:00"
    return validation.parse_moment(given, field)


def _parse_value_set(given: Any, name: str, check: Callable[[Any, str], T]) -> frozenset[T] | None:
    """Return one value or several as a set."""
    if given is None:
        return None
    values: list[Any] = list(given) if isinstance(given, list | tuple | set | frozenset) else [given]
    if not values:
        raise ValidationError("must name one at least", field=f"where.{name}")
    return frozenset([check(value, f"where.{name}") for value in values])


def _validate_role(given: Any, field: str) -> Role:
    return validation.parse_choice(given, Role, field)


def _validate_marker(given: Any, field: str) -> str:
    return (validation.validate_markers([given], field) or ("",))[0]


def complete_tool_groups(field: Field, found: Mask) -> Mask:
    """Return a mask of entries in force that divides no tool group: one that is let through takes all with it."""
    if field.kind is Kind.MESSAGE:
        for place in np.flatnonzero(found & (field.column("group") >= 0)).tolist():
            for member in field.snapshot.members(field.document(place)):
                at = field.place_of(member)
                if at >= 0:
                    found[at] = True
    return found
