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
from acms.recall.corpus import Corpus
from acms.text.index_record import MINUTE_MICROSECONDS, Label

KEYS = ("role", "actor", "marker", "metadata", "after", "before", "session")
"""Keys of a filter."""

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
    def parse(cls, mapping: object) -> Where | None:
        """Return a filter from a caller's mapping, or None for an empty one.

        `ValidationError` names the invalid field, and for an unknown key all valid keys.
        """
        if not isinstance(mapping, Mapping):
            raise ValidationError(f"must be a mapping, not {type(mapping).__name__}", field="where")
        values: dict[str, Any] = {str(name): value for name, value in mapping.items() if value is not None}
        unknown = sorted(values.keys() - set(KEYS))
        if unknown:
            hint = f'"metadata": {{{unknown[0]!r}: …}} for a key of yours'
            options = (f"filter by {', '.join(KEYS)}", hint)
            raise ValidationError(f"{unknown[0]!r} is not a filter", field="where", options=options)
        metadata = values.get("metadata", {})
        if not isinstance(metadata, Mapping):
            raise ValidationError("must be a mapping of names to values", field="where.metadata")
        after = _parse_time_bound(values.get("after"), "where.after")
        before = _parse_time_bound(values.get("before"), "where.before")
        if after is not None and before is not None and before <= after:
            raise ValidationError("must be later than after", field="where.before")
        names = [(validation.validate_name(name, "where.metadata"), metadata[name]) for name in metadata]
        where = cls(
            roles=_parse_value_set(values.get("role"), "role", _validate_role),
            actors=_parse_value_set(values.get("actor"), "actor", validation.validate_name),
            markers=_parse_value_set(values.get("marker"), "marker", _validate_marker),
            sessions=_parse_value_set(values.get("session"), "session", validation.validate_name),
            after=after,
            before=before,
            metadata=tuple(names),
        )
        return None if where == cls() else where

    def match_index(self, corpus: Corpus, owners: Collection[str]) -> Mask:
        """Return which active entries it accepts by the fields in the index; `owners` are the ids of its sessions."""
        label_codes, labels = corpus.labels
        is_label_accepted = np.fromiter(map(self._accepts_label, labels), bool, len(labels))
        is_accepted = is_label_accepted[label_codes]
        minutes = corpus.column("minute")
        if self.after is not None:
            is_accepted &= minutes >= to_microseconds(self.after) // MINUTE_MICROSECONDS
        if self.before is not None:
            is_accepted &= minutes <= (to_microseconds(self.before) - 1) // MINUTE_MICROSECONDS
        if self.sessions is not None:
            is_accepted &= corpus.snapshot.mask_owned(owners)[corpus.documents(np.arange(len(corpus)))]
        return is_accepted

    def find_undecided(self, corpus: Corpus) -> Mask:
        """Return which active entries must be read to decide, because the index lacks fields that the filter needs.

        The index has no metadata, and times only to the minute.
        """
        if self.metadata:
            return np.ones(len(corpus), bool)
        minutes = corpus.column("minute")
        is_undecided = np.zeros(len(corpus), bool)
        for bound in (self.after, self.before):
            if bound is not None and to_microseconds(bound) % MINUTE_MICROSECONDS:
                is_undecided |= minutes == to_microseconds(bound) // MINUTE_MICROSECONDS
        return is_undecided

    def matches(self, created_at: datetime, metadata: Mapping[str, Json]) -> bool:
        """Return whether it accepts a message with this time and this metadata."""
        if self.after is not None and created_at < self.after:
            return False
        if self.before is not None and created_at >= self.before:
            return False
        return all(name in metadata and metadata[name] == value for name, value in self.metadata)

    def _accepts_label(self, label: Label) -> bool:
        if self.roles is not None and label.role not in self.roles:
            return False
        if self.actors is not None and label.actor not in self.actors:
            return False
        return self.markers is None or not self.markers.isdisjoint(label.markers)


def _parse_time_bound(value: Any, field: str) -> datetime | None:
    """Return a time; a day alone begins at midnight UTC."""
    if value is None:
        return None
    if isinstance(value, str) and len(value) == len("2026-01-01"):
        value = f"{value}T00:00+00:00"
    return validation.parse_moment(value, field)


def _parse_value_set(value: Any, name: str, check: Callable[[Any, str], T]) -> frozenset[T] | None:
    """Return one value or several as a set."""
    if value is None:
        return None
    values: list[Any] = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
    if not values:
        raise ValidationError("must name at least one", field=f"where.{name}")
    return frozenset([check(item, f"where.{name}") for item in values])


def _validate_role(value: Any, field: str) -> Role:
    return validation.parse_choice(value, Role, field)


def _validate_marker(value: Any, field: str) -> str:
    markers = validation.validate_markers([value], field)
    return markers[0] if markers else ""


def complete_tool_groups(corpus: Corpus, is_accepted: Mask) -> Mask:
    """Accept all active entries of each tool group of which an entry is accepted; `is_accepted` is changed."""
    if corpus.kind is not Kind.MESSAGE:
        return is_accepted
    accepted_members = np.flatnonzero(is_accepted & (corpus.column("group") >= 0))
    for position in accepted_members.tolist():
        for document in corpus.snapshot.members(corpus.document(position)):
            member_position = corpus.position_of(document)
            if member_position >= 0:
                is_accepted[member_position] = True
    return is_accepted
