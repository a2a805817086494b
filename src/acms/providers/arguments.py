"""Checks and preparation of arguments, shared by providers of models."""

from __future__ import annotations

from collections.abc import Sequence

from acms.errors import ConfigurationError, ValidationError


def validate_model_name(value: object) -> str:
    """Return the name of a model; `ConfigurationError` when it is none."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError("model must be the name of a model")
    return value


def validate_positive_int(value: object, name: str) -> int:
    """Return a whole number above 0; `ConfigurationError` that names it when it is none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name} must be a whole number above 0, was {value!r}")
    return value


def check_texts(texts: Sequence[object]) -> None:
    """Raise `ValidationError` unless these are texts: a text alone is no list of them."""
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise ValidationError("must be a list of texts", field="texts")


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates (half characters), which a tokenizer refuses, by question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")
