"""Reading what a provider answers: an object of its SDK, or the same as a mapping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from acms.prompt_types import Diagnosis, Outcome

__all__ = ["number", "of", "rows", "split", "unknown", "word"]


def of(source: object, key: str) -> Any:
    """Return a field of an object or a mapping; None where it has none."""
    return source.get(key) if isinstance(source, Mapping) else getattr(source, key, None)


def split(answer: object) -> tuple[object, object | None]:
    """Return the usage of an answer, and the answer; the second is None where the usage alone was given."""
    usage = of(answer, "usage")
    return (answer, None) if usage is None else (usage, answer)


def rows(source: object, key: str) -> Iterator[object]:
    """Yield the entries of a list that a field holds; none where it holds no list."""
    found = of(source, key)
    yield from found if isinstance(found, list | tuple) else ()


def word(source: object, key: str) -> str:
    """Return a field that is a text; "" where it is none."""
    found = of(source, key)
    return found if isinstance(found, str) else ""


def number(source: object, key: str, default: int = 0) -> int:
    """Return a field that is a count; `default` where it is none."""
    found = of(source, key)
    return found if isinstance(found, int) and found >= 0 else default


def unknown(reason: str) -> Diagnosis:
    """Return a diagnosis that says nothing about the request."""
    return Diagnosis(outcome=Outcome.UNKNOWN, reason=reason)
