"""Markers: find signals of importance in a text and weigh them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from acms.model import MarkerType
from acms.text.echo import unquoted
from acms.text.tokenizer import terms, words

#: Words that announce a marker when they start a line and a colon follows.
WORDS: Mapping[str, tuple[str, ...]] = {
    MarkerType.DECISION.value: ("Decision", "Decided", "Choosing", "Selected"),
    MarkerType.CONSTRAINT.value: ("Constraint", "Requirement", "Must", "Cannot", "Budget", "Limit"),
    MarkerType.FAILURE.value: ("Failed", "Error", "Didn't work", "Tried but"),
    MarkerType.GOAL.value: ("Goal", "Objective", "Task", "Need to"),
}

#: Default boosts; custom markers weigh `CUSTOM_WEIGHT`.
WEIGHTS: Mapping[str, float] = {"constraint": 0.4, "decision": 0.3, "goal": 0.3, "failure": 0.2}
CUSTOM_WEIGHT = 0.2


def line_start(words: Sequence[str]) -> str:
    """Return the pattern for any of the words at the start of a line, before a colon.

    List and emphasis signs of Markdown may stand around the word; an apostrophe may be typographic.
    """
    escaped = "|".join(re.escape(word).replace("'", "['\u2019]") for word in words)
    return rf"^[ \t>#*_-]*(?:{escaped})[*_]{{0,3}}:"


PATTERNS: Mapping[str, tuple[str, ...]] = {marker: (line_start(words),) for marker, words in WORDS.items()}
"""Regular expressions per marker, matched without regard to case at every line start."""


def freeze(patterns: Mapping[str, Sequence[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return patterns as a hashable value for `detect`."""
    frozen = tuple((marker, tuple(found)) for marker, found in patterns.items())
    return _DEFAULT if frozen == _DEFAULT else frozen


@lru_cache(maxsize=64)
def _compiled(patterns: tuple[tuple[str, tuple[str, ...]], ...]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple(
        (marker, re.compile("|".join(f"(?:{pattern})" for pattern in found), re.IGNORECASE | re.MULTILINE))
        for marker, found in patterns
        if found
    )


_DEFAULT = tuple((marker, tuple(found)) for marker, found in PATTERNS.items())


def detect(content: str, patterns: tuple[tuple[str, tuple[str, ...]], ...] = _DEFAULT) -> tuple[str, ...]:
    """Return the markers whose pattern is found in a text, in the order of the table.

    What `messages()` delimited as recalled is not searched: it was said before, if at all.
    """
    if patterns is _DEFAULT and ":" not in content:
        return ()
    found = tuple(marker for marker, pattern in _compiled(patterns) if pattern.search(content))
    if found and (said := unquoted(content)) is not content:
        return tuple(marker for marker, pattern in _compiled(patterns) if pattern.search(said))
    return found


@lru_cache(maxsize=64)
def own_terms(patterns: tuple[tuple[str, tuple[str, ...]], ...] = _DEFAULT) -> tuple[tuple[int, str], ...]:
    """Return the terms of the names and patterns of some markers, each with its marker: words of what carries it."""
    found: dict[tuple[int, str], None] = {}
    for marker, expressions in patterns:
        said = " ".join([marker, *(_NO_WORDS.sub(" ", expression) for expression in expressions)])
        found.update(dict.fromkeys((number, marker) for number in terms(words(said))))
    return tuple(found)


_NO_WORDS = re.compile(r"\\.|\[[^\]]*\]")
"""What in a regular expression stands for letters and is none: escapes and sets."""


def boost(markers: Sequence[str], weights: Mapping[str, float] = WEIGHTS) -> float:
    """Return the sum of the weights of some markers."""
    return sum([weights.get(marker, CUSTOM_WEIGHT) for marker in markers]) if markers else 0
