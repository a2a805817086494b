"""Messages for values that a schema refuses, the same in a shell, over HTTP and for MCP clients."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from acms.errors import ValidationError

__all__ = ["UNKNOWN_NAME", "build_unknown_name_error", "describe_input_error", "select_input_error"]

_Details = TypeVar("_Details", bound=Mapping[str, Any])
UNKNOWN_NAME = "extra_forbidden"
"""Type of the error about a name that the schema does not have."""
_MESSAGES: Mapping[str, str] = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "enum": "must be one of {expected}",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "has too many digits",
    "int_type": "must be a whole number",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "literal_error": "must be one of {expected}",
    "missing": "is required",
    "model_attributes_type": "must be an object",
    "model_type": "must be an object",
    "string_type": "must be a string",
}
"""Messages by the type of pydantic's error; the fields are those of its context."""

_LENGTH_MESSAGES: Mapping[str, tuple[str, str, str]] = {
    "string_too_long": ("must have at most", "max_length", "character"),
    "string_too_short": ("must have at least", "min_length", "character"),
    "too_long": ("must have at most", "max_length", "element"),
    "too_short": ("must have at least", "min_length", "element"),
}
"""Messages about a length, by the type of the error: beginning, field of the limit, and noun in the singular."""


def describe_input_error(details: Mapping[str, Any]) -> str:
    """Return our message for the details of an error of pydantic."""
    kind, context = details["type"], details.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind in _LENGTH_MESSAGES:
        beginning, limit_field, noun = _LENGTH_MESSAGES[kind]
        limit = context[limit_field]
        return f"{beginning} {limit} {noun if limit == 1 else noun + 's'}"
    template = _MESSAGES.get(kind)
    if template is not None:
        return template.format_map(context)
    message = str(details["msg"]).replace("Input should", "must", 1)
    return message[:1].lower() + message[1:]


def select_input_error(details: Sequence[_Details]) -> _Details:
    """Return the error to report: an unknown name, because a misspelt one also counts as missing, or the first."""
    for one in details:
        if one["type"] == UNKNOWN_NAME:
            return one
    return details[0]


def build_unknown_name_error(field: str, kind: str, known_names: Collection[str]) -> ValidationError:
    """Return the error for an unknown name of a kind, such as "parameter".

    It suggests the nearest known name, or lists all of them if none is near.
    """
    similar_name = _find_similar_name(field.rpartition(".")[2], known_names)
    if similar_name is not None:
        return ValidationError(f"is not a known {kind}; did you mean {similar_name}?", field=field)
    known = f"; the {kind}s are {', '.join(known_names)}" if known_names else ""
    return ValidationError(f"is not a known {kind}{known}", field=field)


def _find_similar_name(name: str, known_names: Collection[str]) -> str | None:
    """Return the known name that is spelt most alike, or has the name as one of its words, or None."""
    by_letters = {known.replace("_", "").lower(): known for known in known_names}
    similar = get_close_matches(name.replace("_", "").lower(), by_letters, n=1)
    if similar:
        return by_letters[similar[0]]
    for known in known_names:
        words = re.sub(r"([A-Z])", r"_\1", known).lower().split("_")
        if name.lower() in words:
            return known
    return None
