"""Validation of a single proposal, whose fields a model or third-party code may have filled with any values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any, get_args

from acms.errors import ValidationError
from acms.knowledge import Action, Cardinality, Proposal, Scope
from acms.log import validation

MAX_LABEL_CHARS = 255
"""Maximum characters of a subject, an attribute or a type: the same as for the name of a session."""
MAX_VALUE_BYTES = 4_096
"""Maximum bytes of a value: longer text belongs in the statement."""
TEXT_FIELDS = ("content", "subject", "attribute", "value", "fact_type", "reason")
"""Fields of a proposal that a model writes as text."""
_CHOICES: Mapping[str, Collection[object]] = {
    "action": get_args(Action),
    "cardinality": (*get_args(Cardinality), None),
    "scope": get_args(Scope),
}
_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(TEXT_FIELDS, str),
    "confidence": int | float,
    "negative": bool,
    "fact_id": str | None,
}


def find_type_error(proposal: Any) -> str | None:
    """Return a description of the first field of a proposal that has a wrong type; None if all types are right."""
    if not isinstance(proposal, Proposal):
        return f"is a {type(proposal).__name__}"
    for name, choices in _CHOICES.items():
        value = getattr(proposal, name)
        if not isinstance(value, str | None) or value not in choices:
            return f"{name} is none of {', '.join(str(choice) for choice in choices)}"
    for name, types in _TYPES.items():
        value = getattr(proposal, name)
        if not _has_type(value, types):
            return f"{name} is a {type(value).__name__}"
    for name in ("valid_from", "valid_to"):
        value = getattr(proposal, name)
        if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
            return f"{name} is no time with a time zone"
    if not _is_list_of(proposal.sources, int):
        return "sources are not versions"
    for name in ("names", "depends_on"):
        if not _is_list_of(getattr(proposal, name), str):
            return f"{name} is no list of texts"
    return None


def _has_type(value: object, types: Any) -> bool:
    """Return whether a value has a type; unlike in Python, a bool is not an int."""
    if isinstance(value, bool):
        return types is bool
    return isinstance(value, types)


def _is_list_of(values: object, item_type: type) -> bool:
    """Return whether a value is a list or tuple whose items all have a type."""
    return isinstance(values, tuple | list) and all(_has_type(value, item_type) for value in values)


def find_fault(proposal: Proposal) -> str | None:
    """Return a description of the first invalid field of a proposal, or None if the proposal is valid."""
    type_error = find_type_error(proposal)
    if type_error is not None:
        return type_error
    try:
        _check_texts(proposal)
    except ValidationError as error:
        return str(error)
    if not isfinite(proposal.confidence):
        return f"confidence: {proposal.confidence!r} is not a number"
    if not 0 <= proposal.confidence <= 1:
        return f"confidence: {proposal.confidence!r} is not between 0 and 1"
    start, end = proposal.valid_from, proposal.valid_to
    if start is not None and end is not None and to_utc(end) < to_utc(start):
        return "valid_to: is before valid_from"
    return None


def _check_texts(proposal: Proposal) -> None:
    """Raise `ValidationError` for a text, label, alias or id of a proposal that is too long or empty."""
    validation.validate_text(proposal.content, "content")
    validation.validate_text(proposal.value, "value", limit=MAX_VALUE_BYTES)
    validation.validate_text(proposal.reason, "reason")
    for name in ("subject", "attribute", "fact_type"):
        if len(validation.validate_text(getattr(proposal, name), name)) > MAX_LABEL_CHARS:
            raise ValidationError(f"is longer than {MAX_LABEL_CHARS} characters", field=name)
    for alias in proposal.names:
        if not validation.validate_text(alias, "names").strip() or len(alias) > MAX_LABEL_CHARS:
            raise ValidationError(f"each must have 1 to {MAX_LABEL_CHARS} characters", field="names")
    if proposal.fact_id is not None:
        validation.validate_text(proposal.fact_id, "fact_id")
    for id in proposal.depends_on:
        validation.validate_text(id, "depends_on")


def to_utc(moment: datetime) -> datetime:
    """Return a moment in UTC; a moment without a time zone counts as UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
