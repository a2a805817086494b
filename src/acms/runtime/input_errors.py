"""Messages for values that a schema refuses, the same in a shell, over HTTP and for MCP clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["describe_input_error"]

_MESSAGES: Mapping[str, str] = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "enum": "must be one of {expected}",
    "extra_forbidden": "is not known here",
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
