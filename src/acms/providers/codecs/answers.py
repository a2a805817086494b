"""Read the answers of a provider: an object of its SDK, or the same as a mapping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from acms.prompt_types import Diagnosis, Outcome

__all__ = [
    "get_count_field",
    "get_field",
    "get_text_field",
    "iterate_list_field",
    "split_usage",
    "unknown_diagnosis",
]


def get_field(source: object, key: str) -> Any:
    """Return a field of an object or a mapping; None where it has none."""
    return source.get(key) if isinstance(source, Mapping) else getattr(source, key, None)


def split_usage(answer: object) -> tuple[object, object | None]:
    """Return the usage of an answer, and the answer; the second is None where the usage alone was given."""
    usage = get_field(answer, "usage")
    return (answer, None) if usage is None else (usage, answer)


def iterate_list_field(source: object, key: str) -> Iterator[object]:
    """Yield the entries of a list that a field holds; none where it holds no list."""
    found = get_field(source, key)
    yield from found if isinstance(found, list | tuple) else ()


def get_text_field(source: object, key: str) -> str:
    """Return a field that is a text; "" where it is none."""
    found = get_field(source, key)
    return found if isinstance(found, str) else ""


def get_count_field(source: object, key: str, default: int = 0) -> int:
    """Return a field that is a count; `default` where it is none."""
    found = get_field(source, key)
    return found if isinstance(found, int) and found >= 0 else default


def unknown_diagnosis(reason: str) -> Diagnosis:
    """Return a diagnosis without a statement about the request."""
    return Diagnosis(outcome=Outcome.UNKNOWN, reason=reason)
