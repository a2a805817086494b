"""The figures of one recall, from the texts that came back and the words that were asked for.

A keyword is found at the borders of words: "REST" is not in "interest", "March 1" not in "March 14", "48,000" not in
"148,000". One that is written in capitals (REST, AVA) must be written so; others are found without regard to case.

Where a figure depends on the order of items it is that of their scores, the best one first, and not the order in which
they are shown; items of equal score keep the latter. What a probe calls a decoy is passed over: hearsay that names the
value ("PostgreSQL is popular, but some prefer MongoDB") does not say what was decided.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import log2

from acms_eval.nouns import Probe, Recalled, Score
from acms_eval.turns import MONTHS

__all__ = [
    "carries",
    "exact_match",
    "hit",
    "hit_at",
    "ndcg",
    "outdated",
    "precision",
    "score",
    "stale",
    "stale_anywhere",
    "surfaced",
    "token_f1",
]


_ARTICLES = frozenset({"a", "an", "the"})
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ISO_DATE = re.compile(r"\b(\d{4})-(0[1-9]|1[0-2])-(\d{2})\b")
_ANSWER_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")


@lru_cache(maxsize=4096)
def _keyword_pattern(keyword: str) -> re.Pattern[str]:
    words = r"\s+".join(map(re.escape, keyword.split()))
    flags = 0 if keyword.isupper() else re.IGNORECASE
    return re.compile(rf"(?<!\w)(?<!\d[.,]){words}(?!\w)(?![.,]\d)", flags)


def carries(text: str, keyword: str) -> bool:
    """Return whether a keyword stands in a text, as a word of its own."""
    return bool(keyword.split()) and _keyword_pattern(keyword).search(text) is not None


def _carries_any(text: str, keywords: Sequence[str]) -> bool:
    return any(carries(text, keyword) for keyword in keywords)


def _carries_all(text: str, keywords: Sequence[str]) -> bool:
    return all(carries(text, keyword) for keyword in keywords)


def _without_decoys(probe: Probe, items: Sequence[Recalled]) -> Sequence[Recalled]:
    """Return the items without the probe's decoys, which name a value without stating it."""
    if not probe.decoys:
        return items
    cleaned: list[Recalled] = []
    for item in items:
        text = item.text
        if _carries_any(text, probe.expected):
            for decoy in probe.decoys:
                text = text.replace(decoy, "")
        cleaned.append(item if text == item.text else replace(item, text=text))
    return cleaned


def _best_first(items: Sequence[Recalled]) -> list[Recalled]:
    return sorted(items, key=lambda item: -item.score)


def hit(probe: Probe, items: Sequence[Recalled]) -> bool:
    """Return whether every expected keyword was recalled, in one item or in several (strict hit)."""
    items = _without_decoys(probe, items)
    return all(any(carries(item.text, keyword) for item in items) for keyword in probe.expected)


def hit_at(k: int, probe: Probe, items: Sequence[Recalled]) -> bool:
    """Return whether every expected keyword is in the k items of the best score."""
    return hit(probe, _best_first(items)[:k])


def outdated(probe: Probe, items: Sequence[Recalled]) -> bool | None:
    """Return whether the best item with only a superseded value ranks above the best one with the present value.

    True as well when no item has the present value. None where nothing was superseded.
    """
    if not probe.forbidden:
        return None
    for item in _best_first(_without_decoys(probe, items)):
        if _carries_all(item.text, probe.expected):
            return False
        if _carries_any(item.text, probe.forbidden):
            return True
    return False


def surfaced(probe: Probe, items: Sequence[Recalled]) -> float | None:
    """Return the share of the bonus keywords that were recalled; None where a probe has none."""
    shown = [any(carries(item.text, keyword) for item in items) for keyword in probe.bonus]
    return sum(shown) / len(shown) if shown else None


def stale(probe: Probe, items: Sequence[Recalled]) -> bool:
    """Return whether an item names a superseded value without the present one."""
    return any(
        _carries_any(item.text, probe.forbidden) and not _carries_all(item.text, probe.expected)
        for item in items
    )


def stale_anywhere(probe: Probe, items: Sequence[Recalled]) -> bool:
    """Return whether any item outside the current episode names a superseded value."""
    return any(not item.current and _carries_any(item.text, probe.forbidden) for item in items)


def precision(probe: Probe, items: Sequence[Recalled]) -> float | None:
    """Return the share of items that carry an expected keyword (E4.1); None when nothing was recalled."""
    cleaned = _without_decoys(probe, items)
    return (
        sum(_carries_any(item.text, probe.expected) for item in cleaned) / len(cleaned) if cleaned else None
    )


def ndcg(probe: Probe, items: Sequence[Recalled], k: int = 5) -> float:
    """Return the discounted gain of the first k, best score first, over that of the best order (E4.2).

    Grade 2 is an expected keyword and at least half the best score of this recall, 1 a keyword, 0 neither; the gain is
    2 ** grade - 1. The best order puts the highest grades first and counts the first of them as 2. Nothing relevant is
    0.
    """
    ranked = _best_first(_without_decoys(probe, items))
    half = ranked[0].score / 2 if ranked else 0.0
    grades = [
        (2 if item.score >= half > 0 else 1) if _carries_any(item.text, probe.expected) else 0
        for item in ranked
    ]
    best_order = sorted(grades, reverse=True)
    if not best_order or not best_order[0]:
        return 0.0
    best_order[0] = 2

    def gain(ordered_grades: Sequence[int]) -> float:
        return sum((2**grade - 1) / log2(index + 2) for index, grade in enumerate(ordered_grades[:k]))

    return gain(grades) / gain(best_order)


def exact_match(answer: str, expected: str) -> bool:
    """Return whether an answer has the same words as the expected one, in the same order."""
    return _answer_words(answer) == _answer_words(expected)


def token_f1(answer: str, expected: str) -> float:
    """Return the harmonic mean of precision and recall of an answer's words, as SQuAD counts them.

    Letter case, punctuation and articles do not count; 2023-05-07 is 7 May 2023; of Chinese and Japanese every
    character is a word. Rajpurkar et al., EMNLP 2016. Two answers without words are equal: 1.
    """
    answer_words, expected_words = _answer_words(answer), _answer_words(expected)
    if not answer_words or not expected_words:
        return float(answer_words == expected_words)
    common = (Counter(answer_words) & Counter(expected_words)).total()
    return 2 * common / (len(answer_words) + len(expected_words))


def _answer_words(text: str) -> list[str]:
    normalized = _ISO_DATE.sub(_write_date, text.lower()).translate(_NO_PUNCTUATION)
    return [word for word in _ANSWER_WORD.findall(normalized) if word not in _ARTICLES]


def _write_date(match: re.Match[str]) -> str:
    return f"{int(match[3])} {MONTHS[int(match[2]) - 1]} {match[1]}"


def score(
    probe: Probe,
    items: Sequence[Recalled],
    *,
    tokens: int | None = None,
    seconds: float = 0.0,
    paid: float | None = None,
) -> Score:
    """Return all figures of one recall; `tokens` is by default the sum over the items."""
    past = [item for item in items if not item.current]
    return Score(
        probe=probe,
        hit=hit(probe, items),
        hit_at_1=hit_at(1, probe, items),
        hit_at_5=hit_at(5, probe, items),
        outdated=outdated(probe, items),
        surfaced=surfaced(probe, items),
        stale=stale(probe, items),
        stale_anywhere=stale_anywhere(probe, items),
        precision=precision(probe, items),
        precision_past=precision(probe, past),
        ndcg=ndcg(probe, items),
        items=len(items),
        tokens=sum(item.tokens for item in items) if tokens is None else tokens,
        seconds=seconds,
        paid=paid,
    )
