"""What was said: a statement, who made it, and a clause as the rules that look for statements see it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias

from acms.knowledge import Cardinality
from acms.model import MarkerType
from acms.providers.offline.rules.clauses import Clause
from acms.providers.offline.rules.phrases import PROJECT, USER, Cut, Topic, heading, is_value, topic

MARKED, PLAIN, WEAK = 0.95, 0.8, 0.6
"""How sure a rule is: of what a marker announces, of what is plainly said, and of what an assistant merely states."""

DECISION, CONSTRAINT, FAILURE, GOAL = (one.value for one in MarkerType)
PREFERENCE, FACT = "preference", "fact"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Something said to be so, or to be so no longer."""

    subject: str = ""
    #: Empty when only what is known tells what is meant ("make that 64,000").
    attribute: str = ""
    value: str = ""
    content: str = ""
    fact_type: str = FACT
    cardinality: Cardinality = "one"
    negative: bool = False
    confidence: float = PLAIN
    #: The value it stands in for, where that was said.
    old: str = ""
    #: It says that something was otherwise before.
    change: bool = False
    #: It says that `old` is no longer so, and nothing else.
    ended: bool = False
    #: The attribute is what the value is for, which may be a mere reason.
    loose: bool = False
    reason: str = ""
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    #: Place of the turn it was said in.
    version: int = 0
    #: The part of a sentence it was read from.
    said: str = ""
    #: Name of the rule that found it.
    rule: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """Who says it, which decides what "I" and "use" mean."""

    name: str
    role: str
    #: False for an assistant: what it merely states is no news.
    user: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A clause as a rule sees it."""

    #: Without openings and fillers.
    text: str
    clause: Clause
    speaker: Speaker
    change: bool
    marker: str | None
    #: Who does something, and the auxiliary verbs behind; always there, and empty when there is nobody.
    agent: re.Match[str] | None = None


def line(subject: str, attribute: str, value: str, reason: str = "") -> str:
    """Write a fact as a line of its own: what it is of, its value, and the reason in brackets."""
    if subject == USER:
        text = f"The user's {attribute} is {value}"
    elif subject in (PROJECT, ""):
        text = f"{heading([attribute])}: {value}"
    else:
        text = f"{heading([subject, attribute])}: {value}"
    if reason and is_value(reason, most=20):
        text += f" ({reason})"
    return f"{text}."


Made: TypeAlias = tuple[list[Statement], int] | None
"""Statements and where they end in the clause; None when a rule does not fit."""
Rule: TypeAlias = Callable[[Reading], Made]


def state(reading: Reading, of: Topic | None, value: str, found: Cut | None = None, **more: Any) -> Statement:
    """Return a statement of one value of a topic; of something known when there is no topic."""
    made = Statement(
        subject=of.subject if of else "",
        attribute=of.attribute if of else "",
        value=value,
        old=found.old if found else "",
        reason=found.reason if found else "",
        change=reading.change or bool(found and found.old),
    )
    return replace(made, **more)


def about(reading: Reading, raw: str) -> Topic | None:
    """Return the topic that a noun phrase of this speaker names."""
    return topic(raw, speaker=reading.speaker.name, role=reading.speaker.role)
