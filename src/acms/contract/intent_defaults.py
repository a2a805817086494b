"""Intents: what a user's text asks for, how much that takes, how soon, and what a wrong answer may cost.

Tables of English words, so that the same text always means the same. A word counts in its regular forms too
(`implements`, `debugging`); a phrase counts as it stands. Complexity and urgency name the budgets of a request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from typing import NamedTuple, TypeVar

from acms.contract.schema import RiskLevel

T = TypeVar("T")


class Verb(StrEnum):
    """What is wanted of an agent."""

    SEARCH = "search"
    EXPLAIN = "explain"
    DEBUG = "debug"
    IMPLEMENT = "implement"


class Domain(StrEnum):
    """What it is about."""

    CODE = "code"
    DOCUMENTATION = "documentation"
    RESEARCH = "research"
    GENERAL = "general"


class Complexity(StrEnum):
    """How much it takes."""

    SIMPLE = "simple"
    MEDIUM = "medium"
    COMPLEX = "complex"


class Urgency(StrEnum):
    """How soon it is needed."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Intent(NamedTuple):
    """A user's text, understood."""

    #: The text itself, on one line.
    goal: str
    verb: Verb
    #: How sure the verb is: its share of the words that name one; 0.0 when none does.
    confidence: float
    domain: Domain
    complexity: Complexity
    urgency: Urgency
    risk: RiskLevel
    #: The words that decided, in the order of the text.
    keywords: tuple[str, ...]

    @property
    def clarification(self) -> str | None:
        """What to ask the user, when it is unclear what is wanted."""
        if self.confidence > 0.5:
            return None
        return "Should something be found, explained, debugged or implemented?"


BUDGETS: Mapping[Complexity, tuple[int, int]] = {
    Complexity.SIMPLE: (2048, 500),
    Complexity.MEDIUM: (4500, 800),
    Complexity.COMPLEX: (8000, 2000),
}
"""Tokens, and milliseconds."""
HURRY = 500
"""Milliseconds that something urgent may take, at most."""

_DOMAINS = {
    Domain.CODE: "function, class, bug, error, debug, implement, refactor",
    Domain.DOCUMENTATION: "docs, readme, guide, tutorial, explain, how to",
    Domain.RESEARCH: "research, papers, analysis, study, comparison, evaluation",
}
#: Of several the first counts: what is asked for at most.
_COMPLEXITIES = {
    Complexity.COMPLEX: "architecture, system, optimize, optimise, scale, integrate",
    Complexity.MEDIUM: "implement, create, build, design",
    Complexity.SIMPLE: "what is, how to, example, quick",
}
_URGENCIES = {
    Urgency.HIGH: "urgent, asap, critical, immediately, broken, down",
    Urgency.MEDIUM: "soon, today, important",
    Urgency.LOW: "eventually, someday, no hurry, no rush",
}
_VERBS = {
    Verb.DEBUG: "debug, bug, error, fix, broken, crash, fail, exception, traceback, leak",
    Verb.IMPLEMENT: "implement, create, build, design, refactor, integrate, optimize, optimise, write, add, migrate",
    Verb.EXPLAIN: "explain, what is, how to, how does, why, tutorial, guide, describe, summarize, summarise",
    Verb.SEARCH: "search, find, show, list, where, when, who, which, look up, research, papers, comparison",
}
_RISKS = {
    RiskLevel.HIGH: "production, security, payment, delete, irreversible, legal, medical, outage",
    RiskLevel.LOW: "example, draft, brainstorm, idea, sketch",
}


def classify_intent(text: str) -> Intent:
    """Return what a text asks for; a slug such as `debug_memory_leak` is read as its words."""
    goal = " ".join(text.split())
    said = re.sub(r"[\W_]+", " ", goal.lower())
    verbs = {verb: _find_keywords(words, said) for verb, words in _VERBS.items()}
    most = max(verbs.values(), key=len)
    total = sum(map(len, verbs.values()))
    domains = {domain: _find_keywords(words, said) for domain, words in _DOMAINS.items()}
    topic = max(domains, key=lambda domain: len(domains[domain]))
    groups = (_COMPLEXITIES, _URGENCIES, _RISKS)
    found = {at for group in groups for words in group.values() for at in _find_keywords(words, said)}
    found |= {at for group in (verbs, domains) for named in group.values() for at in named}
    return Intent(
        goal=goal,
        verb=next(verb for verb, named in verbs.items() if named is most) if total else Verb.SEARCH,
        confidence=len(most) / total if total else 0.0,
        domain=topic if domains[topic] else Domain.GENERAL,
        complexity=_first_match(_COMPLEXITIES, said, Complexity.MEDIUM),
        urgency=_first_match(_URGENCIES, said, Urgency.MEDIUM),
        risk=_first_match(_RISKS, said, RiskLevel.MEDIUM),
        keywords=tuple(dict.fromkeys(word for _, word in sorted(found))),
    )


def _first_match(table: Mapping[T, str], said: str, otherwise: T) -> T:
    return next((one for one, words in table.items() if _find_keywords(words, said)), otherwise)


def _find_keywords(words: str, said: str) -> list[tuple[int, str]]:
    """Return where words of a table stand, each once."""
    found: list[tuple[int, str]] = []
    for word in words.split(", "):
        match = _compile_pattern(word).search(said)
        if match is not None:
            found.append((match.start(), word))
    return found


@cache
def _compile_pattern(word: str) -> re.Pattern[str]:
    """Return a word with its regular forms, or a phrase as it stands."""
    if " " in word:
        return re.compile(rf"\b{word}\b")
    forms = [f"{word}(?:s|es|d|ed|ing|ly|ation|ations)?"]
    if word.endswith("e"):
        forms.append(f"{word[:-1]}(?:ing|ion|ions|ation|ations)")
    elif word.endswith("y"):
        forms.append(f"{word[:-1]}ies")
    else:
        forms.append(f"{word}{word[-1]}(?:ed|ing)")
    return re.compile(rf"\b(?:{'|'.join(forms)})\b")
