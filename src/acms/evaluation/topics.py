"""What conversations of the evaluation are about: twenty things a project decides, and the noise around them.

The texts are in `acms/data/topics.json`; all of them were written for ACMS. The values of two topics share no word, and
no text names a value that it is not given, so that a keyword in a recalled item is there because the item is about it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from acms.knowledge import Cardinality

__all__ = ["Phrases", "Topic", "phrases"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One thing that is decided, in several phrasings.

    In a phrasing `{v}` is the value and `{old}` the one before; in noise `{a}` and `{b}` are values of others.
    """

    name: str
    subject: str
    attribute: str
    #: Of one category; one is decided, another corrects it, the others are named by noise.
    values: tuple[str, ...]
    #: As a reflector would word it.
    content: str
    fact_type: str
    cardinality: Cardinality = "one"
    #: With a marker of seed 004 at the start.
    marked: tuple[str, ...]
    plain: tuple[str, ...]
    #: Empty for what does not change.
    corrected: tuple[str, ...] = ()
    corrected_plain: tuple[str, ...] = ()
    questions: tuple[str, ...]
    #: Of other people, hearsay and reading: near the attribute, and about another value.
    noise: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrases:
    """Everything that scenarios are written from."""

    topics: tuple[Topic, ...]
    #: What may stand before a remark in passing.
    openers: tuple[str, ...]
    #: What the assistant says to a fact, with or without its value.
    acknowledged: tuple[str, ...]
    #: What it says to a remark in passing, with or without the value that was named.
    replies: tuple[str, ...]
    #: What a user says about nothing in particular, and what an assistant says to it.
    bland: tuple[str, ...]
    nods: tuple[str, ...]


@cache
def phrases() -> Phrases:
    """Return the texts that come with ACMS."""
    document = json.loads((files("acms") / "data" / "topics.json").read_text(encoding="utf-8"))
    topics = tuple(Topic(**_tuples(topic)) for topic in document.pop("topics"))
    return Phrases(topics=topics, **_tuples(document))


def _tuples(found: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
