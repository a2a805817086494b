"""What is measured of a recall (seed 004, E4), from the texts that came back and the words that were asked for.

A keyword is found at the borders of words: "REST" is not in "interest", "March 1" not in "March 14", "48,000" not in
"148,000". One that is written in capitals (REST, AVA) must be written so; others are found without regard to case.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from math import log2

from acms.evaluation.nouns import Probe, Recalled, Score

__all__ = ["carries", "hit", "ndcg", "precision", "score", "stale", "stale_anywhere"]


@lru_cache(maxsize=4096)
def _pattern(keyword: str) -> re.Pattern[str]:
    words = r"\s+".join(map(re.escape, keyword.split()))
    flags = 0 if keyword.isupper() else re.IGNORECASE
    return re.compile(rf"(?<!\w)(?<!\d[.,]){words}(?!\w)(?![.,]\d)", flags)


def carries(text: str, keyword: str) -> bool:
    """Return whether a keyword stands in a text, as a word of its own."""
    return bool(keyword.split()) and _pattern(keyword).search(text) is not None


def _any(text: str, keywords: Sequence[str]) -> bool:
    return any(carries(text, keyword) for keyword in keywords)


def hit(probe: Probe, items: Sequence[Recalled]) -> bool:
    """Return whether every expected keyword is in what was recalled, in one item or in several (strict hit)."""
    return all(any(carries(item.text, keyword) for item in items) for keyword in probe.expected)


def stale(probe: Probe, items: Sequence[Recalled]) -> bool:
    """Return whether an item says what is no longer so, and not also what is so now."""
    return any(
        _any(item.text, probe.forbidden) and not all(carries(item.text, word) for word in probe.expected)
        for item in items
    )


def stale_anywhere(probe: Probe, items: Sequence[Recalled]) -> bool:
    """Return whether any item outside the current episode names what is no longer so."""
    return any(not item.current and _any(item.text, probe.forbidden) for item in items)


def precision(probe: Probe, items: Sequence[Recalled]) -> float | None:
    """Return the share of items that carry an expected keyword (E4.1); None when nothing was recalled."""
    return sum(_any(item.text, probe.expected) for item in items) / len(items) if items else None


def ndcg(probe: Probe, items: Sequence[Recalled], k: int = 5) -> float:
    """Return the discounted gain of the first k, best score first, over that of the best order (E4.2).

    Grade 2 is an expected keyword and at least half the best score of this recall, 1 a keyword, 0 neither; the gain is
    2 ** grade - 1. The best order puts the highest grades first and counts the first of them as 2. Nothing relevant is
    0. Items of equal score keep the order in which they are shown.
    """
    ranked = sorted(items, key=lambda item: -item.score)
    half = ranked[0].score / 2 if ranked else 0.0
    grades = [
        (2 if item.score >= half > 0 else 1) if _any(item.text, probe.expected) else 0 for item in ranked
    ]
    best = sorted(grades, reverse=True)
    if not best or not best[0]:
        return 0.0
    best[0] = 2

    def gain(found: Sequence[int]) -> float:
        return sum((2**grade - 1) / log2(place + 2) for place, grade in enumerate(found[:k]))

    return gain(grades) / gain(best)


def score(
    probe: Probe, items: Sequence[Recalled], *, tokens: int | None = None, seconds: float = 0.0
) -> Score:
    """Return all figures of one recall; `tokens` is what was used, by default the sum over the items."""
    past = [item for item in items if not item.current]
    return Score(
        probe=probe,
        hit=hit(probe, items),
        stale=stale(probe, items),
        stale_anywhere=stale_anywhere(probe, items),
        precision=precision(probe, items),
        precision_past=precision(probe, past),
        ndcg=ndcg(probe, items),
        items=len(items),
        tokens=sum(item.tokens for item in items) if tokens is None else tokens,
        seconds=seconds,
    )
