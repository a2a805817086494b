"""Statements: which sentences of a message state a fact, and which messages a retired fact makes outdated.

Only the sources of a retired fact are searched, and never the sources of the new one: a message that contradicts an old
fact is not outdated because it names it. A value is found by its words, and the significant ones are compared letter by
letter: numbers, dates, ids.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from acms.knowledge import Fact
from acms.model import Entry, Span, State
from acms.text.tokenizer import content_term, find_sentence_spans

OVERLAP = 0.5
"""Share of the words of a fact that a sentence must have to state it if its value is not found: the majority."""

_EDGE = " \t\n.,;:!?\"'()[]{}<>“”„«»‘’…*_`–—"
_JOINTS = str.maketrans("", "", "-'’")
_PARTS = re.compile(r"[-/]")
_POSSESSIVE = re.compile(r"['’]s$")

Words = tuple[str, ...]
"""The folded words of a text."""


def fold_text(text: str) -> Words:
    """Return the words of a text for comparison, without punctuation at their edges and without case.

    Signs, digits and mixed case stay: `-5` is not `5`, `mW` not `MW`.
    """
    folded: list[str] = []
    for raw in unicodedata.normalize("NFKC", text).split():
        word = _POSSESSIVE.sub("", raw.strip(_EDGE))
        is_plain = word.translate(_JOINTS).isalpha()
        may_be_unit = len(word) <= 2 and not word.istitle() and not word.islower()
        if is_plain and not may_be_unit:
            word = word.casefold()
        if word:
            folded.append(word)
    return tuple(folded)


def mentions_value(sentence: Sequence[str], value: Sequence[str]) -> bool:
    """Return whether a folded sentence has all significant words of a folded value."""
    whole = "".join(value)
    if not whole.isascii() and whole in "".join(sentence):  # some scripts have no spaces between words
        return True
    words = set(sentence)
    for word in sentence:
        words.update(_PARTS.split(word))
    significant = [word for word in value if content_term(word)] or value
    return bool(significant) and words.issuperset(significant)


def states_fact(content: str, value: Words, statement: str) -> bool:
    """Return whether a text mentions the value of a fact, or overlaps with its statement if it has no value."""
    if value:
        return mentions_value(fold_text(content), value)
    return bool(_overlapping_sentences(content, statement))


def sentences_of_fact(content: str, value: Words, statement: str) -> set[int]:
    """Return which sentences of a text mention the value of a fact, or else are closest to its statement."""
    return _sentences_with_value(content, value, ()) or _closest_sentences(content, statement)


def find_outdated_messages(
    retired: Iterable[Fact],
    new_value: str,
    evidence: Iterable[Entry],
    known: Iterable[Fact],
    cited: Mapping[str, Entry],
) -> dict[str, list[Span]]:
    """Return the messages that state retired facts, each with the spans of it that are still valid.

    `new_value` replaces the value of the facts, or is empty if they end. The messages of `evidence`, which state the
    new fact, stay valid; so do those that `known` facts with the same value cite. A message that is wholly valid is not
    included. `cited` are the messages that the facts cite, by id.
    """
    stale: dict[str, set[int]] = {}
    new = fold_text(new_value)
    valid = {entry.id for entry in evidence}
    values = [(fact, fold_text(fact.value)) for fact in known]
    for fact in retired:
        old = fold_text(fact.value)
        if old and old == new:
            continue
        shared: set[str] = set()
        for other, value in values:
            if other.id != fact.id and value == old:
                shared.update(other.sources)
        for id, numbers in _stating_sentences(fact, old, new, cited).items():
            if id not in valid and id not in shared:
                stale.setdefault(id, set()).update(numbers)
    spans: dict[str, list[Span]] = {}
    for id, numbers in stale.items():
        entry = cited[id]
        if numbers and entry.state is State.LIVE:
            spans[id] = _remaining_spans(entry.content, numbers)
    return spans


def _stating_sentences(fact: Fact, old: Words, new: Words, cited: Mapping[str, Entry]) -> dict[str, set[int]]:
    """Return the sentences of each source of a fact that state it.

    A fact may cite everything that was read. So if one source has the value or the statement, a source without either
    states something else; if none has them, the citation alone counts.
    """
    contents = {id: cited[id].content for id in fact.sources if id in cited}
    found: dict[str, set[int]] = {}
    for id, content in contents.items():
        found[id] = _sentences_with_value(content, old, new)
    if old and new and mentions_value(new, old):
        return found  # the old value is part of the new one: without it no sentence states the old fact
    if len(found) > 1:
        for id, numbers in found.items():
            found[id] = numbers or _overlapping_sentences(contents[id], fact.content)
        if any(found.values()):
            return found
    for id, numbers in found.items():
        found[id] = numbers or _closest_sentences(contents[id], fact.content)
    return found


def _sentences_with_value(content: str, old: Words, new: Words) -> set[int]:
    """Return which sentences of a text have a value; one that is part of the new value does not count."""
    if not old:
        return set()
    is_part_of_new = bool(new) and mentions_value(new, old)
    found: set[int] = set()
    for number, (start, end) in enumerate(find_sentence_spans(content)):
        sentence = fold_text(content[start:end])
        if not mentions_value(sentence, old):
            continue
        if is_part_of_new and mentions_value(sentence, new):
            continue
        found.add(number)
    return found


def _closest_sentences(content: str, statement: str) -> set[int]:
    """Return the sentences with enough of the words of a statement, or the best one, or all if none has any."""
    shares = _sentence_overlaps(content, statement)
    best = max(shares, default=0)
    if best == 0:
        return set(range(len(shares)))
    if best < OVERLAP:
        return {shares.index(best)}
    return {number for number, share in enumerate(shares) if share >= OVERLAP}


def _overlapping_sentences(content: str, statement: str) -> set[int]:
    """Return which sentences have enough of the words of a statement."""
    shares = _sentence_overlaps(content, statement)
    return {number for number, share in enumerate(shares) if share >= OVERLAP}


def _sentence_overlaps(content: str, statement: str) -> list[float]:
    """Return the share of the words of a statement that each sentence has."""
    wanted = _folded_terms(statement)
    shares: list[float] = []
    for start, end in find_sentence_spans(content):
        common = wanted & _folded_terms(content[start:end])
        shares.append(len(common) / max(1, len(wanted)))
    return shares


def _folded_terms(text: str) -> set[int]:
    return {content_term(word.casefold()) for word in fold_text(text)} - {0}


def _remaining_spans(content: str, stale: set[int]) -> list[Span]:
    """Return the spans of a text without some of its sentences."""
    remaining: list[Span] = []
    for number, (start, end) in enumerate(find_sentence_spans(content)):
        if number in stale:
            continue
        if remaining and remaining[-1][1] == start:
            start, _ = remaining.pop()
        remaining.append((start, end))
    return remaining
