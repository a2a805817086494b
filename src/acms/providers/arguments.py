"""Checks of the arguments that providers of models share."""

from __future__ import annotations

from collections.abc import Sequence

from acms.errors import ConfigurationError, ValidationError


def model_name(given: object) -> str:
    """Return the name of a model; `ConfigurationError` when it is none."""
    if not isinstance(given, str) or not given.strip():
        raise ConfigurationError("model must be the name of a model")
    return given


def validate_positive_int(given: object, name: str) -> int:
    """Return a whole number above 0; `ConfigurationError` that names it when it is none."""
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ConfigurationError(f"{name} must be a whole number above 0, was {given!r}")
    return given


def check_texts(texts: Sequence[object]) -> None:
    """Raise `ValidationError` unless these are texts: a text alone is no list of them."""
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise ValidationError("must be a list of texts", field="texts")
