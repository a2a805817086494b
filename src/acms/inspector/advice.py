"""Why an entry was left out, in figures, and what would bring it in: pure functions of JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["count_tokens_ahead", "describe_figures", "suggest_inclusion"]

JsonObject = Mapping[str, Any]

_SIGNALS = {"message": "words", "near": "words of its neighbours", "meaning": "meaning", "mark": "its marker"}
"""What each signal of the ranking is called on the pages."""

_SPACE_RULES = ("budget", "contiguous", "window", "fit", "truncate", "omit")
_SHARE_RULES = ("pieces", "external", "neighbour", "ceiling")
_MATCH_RULES = ("cutoff", "irrelevant", "rank", "score", "neighbour", "min_relevance")

_ADVICE = {
    "external": "a larger budget: external text waits until all other text that answers fits",
    "ceiling": "a higher ceiling of its section",
    "trimmed": "includeSuperseded, or a version before what replaced it",
    "superseded": "includeSuperseded, or a version before what replaced it",
    "stale": "includeSuperseded, or a version before what replaced it",
    "replaced": "a version before it was replaced",
    "retracted": "a version before it was taken back",
    "summary": "undo of the compaction, or a version before it",
    "limit": "a higher limit",
    "query": "nothing: it is the question itself",
    "excluded": "leaving it out of exclude",
    "filter": "a filter that lets it through",
    "current_episode": "includeCurrentEpisode",
    "duplicate": "nothing: the same text is shown once already",
    "later": "nothing: it was written after this request; the next one can show it",
    "unasked": "a recall of this question in the prompt, or a larger share for it",
    "scope": "a recall with scope namespace",
    "silent": "a question that shares half of its words with that session, or a rare one, or names a speaker of it",
}
"""Advice for rules whose advice is the same for every entry."""


def describe_figures(verdict: JsonObject, free: int | None) -> str:
    """Return the figures behind a rejection: the free tokens, and the signals by which the entry matched."""
    figures: list[str] = []
    rule = verdict["rule"]
    if free is not None and rule in (*_SPACE_RULES, *_SHARE_RULES):
        figures.append(f"{free:,} tokens were free in all")
    elif free is not None and rule in _MATCH_RULES:
        figures.append(f"{free:,} tokens were free")
    if rule in _MATCH_RULES:
        figures.append(_describe_match(verdict))
    return "; ".join(figures)


def _describe_match(verdict: JsonObject) -> str:
    matched = [label for name, label in _SIGNALS.items() if verdict["parts"].get(name, 0) > 0]
    if not matched:
        return "no word and no meaning matched"
    return f"matched by {' and '.join(matched)}, relevance {verdict['relevance']:.2f}"


def count_tokens_ahead(verdicts: Iterable[JsonObject]) -> list[dict[str, Any]]:
    """Return verdicts with `ahead`: the tokens of the entries that rank before it and had no room either.

    A larger budget shows those first.
    """
    counted: list[dict[str, Any]] = []
    tokens_ahead = 0
    for verdict in sorted(verdicts, key=lambda verdict: -verdict["score"]):
        counted.append({**verdict, "ahead": tokens_ahead})
        if not verdict["included"] and verdict["rule"] in _SPACE_RULES:
            tokens_ahead += verdict["tokens"]
    return counted


def suggest_inclusion(verdict: JsonObject, free: int | None = None) -> str:
    """Return a change that would include an entry, or "" if none is known; `free` is the number of unused tokens."""
    if verdict["included"]:
        return ""
    rule = verdict["rule"]
    tokens = verdict["tokens"]
    if rule == "hidden":
        return _suggest_version(verdict["reason"])
    if rule in _SPACE_RULES:
        return _suggest_more_tokens(verdict, free)
    if rule == "pieces":
        return f"a larger share for the recall: it needs {tokens:,} tokens of its own"
    if rule == "min_relevance":
        return f"a minRelevance of at most {verdict['relevance']:.2f}"
    if rule == "cutoff" and "other session" in verdict["reason"]:
        return _ADVICE["silent"]
    if rule in _MATCH_RULES:
        return _suggest_match(verdict)
    return str(_ADVICE.get(rule, ""))


def _suggest_more_tokens(verdict: JsonObject, free: int | None) -> str:
    tokens, tokens_ahead = verdict["tokens"], verdict.get("ahead", 0)
    needs = f"it needs {tokens:,} tokens of its own"
    if tokens_ahead:
        needs += f", and what ranks before it and was left out too {tokens_ahead:,}"
    if free is None:
        return f"a larger budget: {needs}"
    missing_tokens = tokens + tokens_ahead - free
    if missing_tokens > 0:
        return f"a larger budget, about {missing_tokens:,} tokens more: {needs}"
    section = "the recall" if verdict["rule"] in ("budget", "fit") else "its section"
    return f"a larger share for {section}, as in all there were enough free tokens: {needs}"


def _suggest_version(reason: str) -> str:
    """Return the versions at which a hidden entry was active, if the reason says when it ended."""
    if "include_superseded" in reason:
        return "includeSuperseded"
    match = re.search(r"by v(\d+)", reason)
    return "" if match is None else f"a version before v{match[1]}"


def _suggest_match(verdict: JsonObject) -> str:
    if verdict["parts"].get("message", 0) > 0:
        return "a question with more of its words"
    return "a question with words of this message"
