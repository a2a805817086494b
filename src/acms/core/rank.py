"""Rank: how well a message answers a query, by the words they share.

BM25 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009) over stemmed words, with the statistics of
exactly the entries given, so a past version ranks as it did then (rule 2.9). No recency enters (decision 0007).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import log

from acms.model import Entry

K1 = 1.2
B = 0.9

#: Not `%B`: what is found must not depend on the locale of the process.
_MONTHS = (
    "January February March April May June July August September October November December".split()
)  # fmt: skip
_WORD = re.compile(r"\w+")
_STOP = frozenset(
    """a about after all also am an and any are as at be because been before being but by can could did do does doing
    done for from get got had has have having he her here hers him his how i if in into is it its just let like me more
    most my no not now of off on once only or other our out over own really said same she should so some such than that
    the their them then there these they this those through to too under until up us very was we were what when where
    which while who whom why will with would you your yours d ll m re s t ve""".split()
)


@lru_cache(maxsize=1)
def _stemmer() -> Callable[[str], str]:
    from snowballstemmer import EnglishStemmer

    return EnglishStemmer().stemWord


@lru_cache(maxsize=65_536)
def _term(word: str) -> str | None:
    return None if word in _STOP else _stemmer()(word)


def terms(text: str) -> list[str]:
    """Return the stemmed words of a text in order, without stop words; all its words when it has no other."""
    words = _WORD.findall(text.lower())
    found = [term for term in map(_term, words) if term is not None]
    return found or words


def document(entry: Entry) -> str:
    """Return what is indexed of an entry: when it was said, who spoke, and the text."""
    said = entry.created_at
    return f"{said.day} {_MONTHS[said.month - 1]} {said.year} {entry.actor or ''} {entry.content}"


def relevance(query: str, documents: Sequence[str]) -> list[float]:
    """Return the relevance of each document in [0, 1): BM25 over the most a text could score for this query."""
    wanted = dict.fromkeys(terms(query))
    counts = [Counter(terms(text)) for text in documents]
    lengths = [sum(count.values()) for count in counts]
    total = len(documents)
    average = (sum(lengths) / total if total else 0) or 1.0
    weights: dict[str, float] = {}
    for term in wanted:
        having = sum(term in count for count in counts)
        if having:
            weights[term] = log(1 + (total - having + 0.5) / (having + 0.5))
    best = sum(weights.values()) * (K1 + 1)
    if not best:
        return [0.0] * total
    return [
        _bm25(count, weights, length / average) / best for count, length in zip(counts, lengths, strict=True)
    ]


def _bm25(count: Mapping[str, int], weights: Mapping[str, float], length: float) -> float:
    score = 0.0
    for term, weight in weights.items():
        frequency = count.get(term, 0)
        if frequency:
            score += weight * frequency * (K1 + 1) / (frequency + K1 * (1 - B + B * length))
    return score


def fuse(relevance: float, boost: float) -> float:
    """Raise a relevance by the markers, staying in [0, 1]: what answers nothing gains nothing from its markers."""
    return min(1.0, relevance * (1 + boost))
