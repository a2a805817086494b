"""Read the answers of a provider: an object of its SDK, or the same as a mapping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from acms.errors import ValidationError
from acms.prompt_types import Diagnosis, Outcome

__all__ = [
    "get_count_field",
    "get_field",
    "get_text_field",
    "get_token_count",
    "iterate_list_field",
    "split_usage",
    "unknown_diagnosis",
]


def get_field(source: object, key: str) -> Any:
    """Return a field of an object or a mapping; None where it has none."""
    return source.get(key) if isinstance(source, Mapping) else getattr(source, key, None)


def split_usage(reply: object) -> tuple[object, object | None]:
    """Return the usage of an answer, and the answer itself, or None if `answer` is a usage already."""
    usage = get_field(reply, "usage")
    return (reply, None) if usage is None else (usage, reply)


def iterate_list_field(source: object, key: str) -> Iterator[object]:
    """Yield the entries of a list that a field holds; none where it holds no list."""
    entries = get_field(source, key)
    if isinstance(entries, list | tuple):
        yield from entries


def get_text_field(source: object, key: str) -> str:
    """Return a field that is a text; "" where it is none."""
    text = get_field(source, key)
    return text if isinstance(text, str) else ""


def get_count_field(source: object, key: str, default: int = 0) -> int:
    """Return a field that is a count; `default` where it is none."""
    count = get_field(source, key)
    return count if isinstance(count, int) and count >= 0 else default


def get_token_count(source: object, *names: str) -> int | None:
    """Return the number of tokens in the first of these fields that exists, or None.

    The names are spellings of one field: SDKs and the API write it differently.
    """
    for name in names:
        value = get_field(source, name)
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValidationError("must be a number of tokens", field=f"usage.{names[0]}")
            return value
    return None


def unknown_diagnosis(reason: str) -> Diagnosis:
    """Return a diagnosis without a statement about the request."""
    return Diagnosis(outcome=Outcome.UNKNOWN, reason=reason)
