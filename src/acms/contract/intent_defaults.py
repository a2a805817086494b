"""Intents: the verb, domain, complexity, urgency and risk of a user's text.

They are derived from tables of English words, so the same text always gives the same intent. A word also matches in its
regular forms (`implements`, `debugging`); a phrase matches literally. Complexity and urgency determine the budgets of a
request.
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
    """The task that a user wants done."""

    SEARCH = "search"
    EXPLAIN = "explain"
    DEBUG = "debug"
    IMPLEMENT = "implement"


class Domain(StrEnum):
    """The subject area of a task."""

    CODE = "code"
    DOCUMENTATION = "documentation"
    RESEARCH = "research"
    GENERAL = "general"


class Complexity(StrEnum):
    """The effort that a task takes."""

    SIMPLE = "simple"
    MEDIUM = "medium"
    COMPLEX = "complex"


class Urgency(StrEnum):
    """The urgency of a task."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Intent(NamedTuple):
    """The classified intent of a user's text."""

    #: The text itself, on one line.
    goal: str
    verb: Verb
    #: Confidence in the verb: its share of the words that name any verb; 0.0 if there are none.
    confidence: float
    domain: Domain
    complexity: Complexity
    urgency: Urgency
    risk: RiskLevel
    #: The words that matched, in the order of the text.
    keywords: tuple[str, ...]

    @property
    def clarification(self) -> str | None:
        """A clarifying question for the user, or None if the verb is clear."""
        if self.confidence > 0.5:
            return None
        return "Should something be found, explained, debugged or implemented?"


BUDGETS: Mapping[Complexity, tuple[int, int]] = {
    Complexity.SIMPLE: (2048, 500),
    Complexity.MEDIUM: (4500, 800),
    Complexity.COMPLEX: (8000, 2000),
}
"""Tokens and milliseconds by complexity."""

_DOMAINS = {
    Domain.CODE: "function, class, bug, error, debug, implement, refactor",
    Domain.DOCUMENTATION: "docs, readme, guide, tutorial, explain, how to",
    Domain.RESEARCH: "research, papers, analysis, study, comparison, evaluation",
}
#: The first row that matches applies: the highest complexity.
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
    """Classify the intent of a text; a slug such as `debug_memory_leak` is split into its words."""
    goal = " ".join(text.split())
    words = re.sub(r"[\W_]+", " ", goal.lower())
    verbs = _find_in_table(_VERBS, words)
    domains = _find_in_table(_DOMAINS, words)
    complexities = _find_in_table(_COMPLEXITIES, words)
    urgencies = _find_in_table(_URGENCIES, words)
    risks = _find_in_table(_RISKS, words)
    verb = max(verbs, key=lambda verb: len(verbs[verb]))
    domain = max(domains, key=lambda domain: len(domains[domain]))
    total = sum(map(len, verbs.values()))
    matches: set[tuple[int, str]] = set()
    for table in (verbs, domains, complexities, urgencies, risks):
        for row_matches in table.values():
            matches.update(row_matches)
    return Intent(
        goal=goal,
        verb=verb if total else Verb.SEARCH,
        confidence=len(verbs[verb]) / total if total else 0.0,
        domain=domain if domains[domain] else Domain.GENERAL,
        complexity=next((row for row, row_matches in complexities.items() if row_matches), Complexity.MEDIUM),
        urgency=next((row for row, row_matches in urgencies.items() if row_matches), Urgency.MEDIUM),
        risk=next((row for row, row_matches in risks.items() if row_matches), RiskLevel.MEDIUM),
        keywords=tuple(dict.fromkeys(word for _, word in sorted(matches))),
    )


def _find_in_table(table: Mapping[T, str], words: str) -> dict[T, list[tuple[int, str]]]:
    """Return for each row of a table the (offset, keyword) of its keywords that occur in a text."""
    matches: dict[T, list[tuple[int, str]]] = {}
    for row, keywords in table.items():
        matches[row] = []
        for keyword in keywords.split(", "):
            match = _compile_pattern(keyword).search(words)
            if match is not None:
                matches[row].append((match.start(), keyword))
    return matches


@cache
def _compile_pattern(word: str) -> re.Pattern[str]:
    """Compile a pattern for a word and its regular forms ("plan", "planned"), or for a phrase as it is."""
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
