"""Faults of a proposal on its own, whatever values a model wrote into it."""

from __future__ import annotations

from datetime import UTC, datetime
from math import isfinite
from typing import Any

from acms.errors import ValidationError
from acms.knowledge import Proposal
from acms.log import validation

LABEL = 255
"""Characters of a subject, an attribute or a type."""
VALUE = 4_096
"""Bytes of a value."""
_ACTIONS = ("add", "update", "remove", "keep")


def find_fault(proposal: Proposal) -> str:
    """Return the fault of a proposal on its own, whatever values a model wrote into it, or "" if it has none."""
    # A reflector is third-party code: its types are not guaranteed.
    given: Any = proposal
    try:
        if given.action not in _ACTIONS:
            raise ValidationError(f"{given.action!r} is not one of {', '.join(_ACTIONS)}", field="action")
        _check_texts(given)
        _check_confidence(given.confidence)
        if given.cardinality not in (None, "one", "many"):
            raise ValidationError(f"{given.cardinality!r} is not one or many", field="cardinality")
        if given.scope not in ("session", "namespace"):
            raise ValidationError(f"{given.scope!r} is not session or namespace", field="scope")
        if not isinstance(given.negative, bool):
            raise ValidationError(f"{given.negative!r} is not true or false", field="negative")
        _check_times(given)
        sources = given.sources
        if not isinstance(sources, tuple | list) or not all(type(version) is int for version in sources):
            raise ValidationError(f"{sources!r} are not versions", field="sources")
    except ValidationError as error:
        return str(error)
    return ""


def _check_texts(given: Any) -> None:
    validation.validate_text(given.content, "content")
    for name in ("subject", "attribute", "fact_type"):
        if len(validation.validate_text(getattr(given, name), name)) > LABEL:
            raise ValidationError(f"is longer than {LABEL} characters", field=name)
    validation.validate_text(given.value, "value", limit=VALUE)
    for name in given.names:
        if not validation.validate_text(name, "names").strip() or len(name) > LABEL:
            raise ValidationError(f"each must have 1 to {LABEL} characters", field="names")
    validation.validate_text(given.reason, "reason")
    if given.fact_id is not None:
        validation.validate_text(given.fact_id, "fact_id")
    for id in given.depends_on:
        validation.validate_text(id, "depends_on")


def _check_confidence(given: Any) -> None:
    if isinstance(given, bool) or not isinstance(given, int | float) or not isfinite(given):
        raise ValidationError(f"{given!r} is not a number", field="confidence")
    if not 0 <= given <= 1:
        raise ValidationError(f"{given!r} is not between 0 and 1", field="confidence")


def _check_times(given: Any) -> None:
    for name in ("valid_from", "valid_to"):
        moment = getattr(given, name)
        if moment is not None and not isinstance(moment, datetime):
            raise ValidationError(f"{moment!r} is not a time", field=name)
    if None not in (given.valid_from, given.valid_to) and to_utc(given.valid_to) < to_utc(given.valid_from):
        raise ValidationError("is before valid_from", field="valid_to")


def to_utc(moment: datetime) -> datetime:
    """Return a moment in UTC; one without a zone is taken for UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
