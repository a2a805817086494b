"""Statements: which sentences of a message state a fact, and which messages a retired fact makes outdated.

Only the sources of a retired fact are searched, and never the sources of the new one: a message that contradicts an old
fact may name it and is not outdated. A sentence states a value if it has all significant words of the value.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from acms.knowledge import Fact
from acms.model import Entry, Span, State
from acms.text.tokenizer import content_term, find_sentence_spans

MIN_OVERLAP = 0.5
"""Share of the words of a fact that a sentence must have to state it if its value is not found: the majority."""

_PUNCTUATION = " \t\n.,;:!?\"'()[]{}<>“”„«»‘’…*_`–—"
_DELETE_JOINERS = str.maketrans("", "", "-'’")
_COMPOUND_SEPARATOR = re.compile(r"[-/]")
_POSSESSIVE_ENDING = re.compile(r"['’]s$")

Words = tuple[str, ...]
"""The folded words of a text."""


def fold_text(text: str) -> Words:
    """Return the words of a text for comparison, in lower case and without punctuation around them.

    Signs stay, and so does the case of short words in mixed case, which may be units: `-5` is not `5`, `mW` not `MW`.
    """
    folded: list[str] = []
    for raw in unicodedata.normalize("NFKC", text).split():
        word = _POSSESSIVE_ENDING.sub("", raw.strip(_PUNCTUATION))
        is_plain = word.translate(_DELETE_JOINERS).isalpha()
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
    words_and_parts = set(sentence)
    for word in sentence:
        words_and_parts.update(_COMPOUND_SEPARATOR.split(word))
    content_words = [word for word in value if content_term(word)]
    significant = content_words or value
    return bool(significant) and words_and_parts.issuperset(significant)


def states_fact(content: str, value: Words, statement: str) -> bool:
    """Return whether a text mentions the value of a fact, or overlaps with its statement if it has no value."""
    if value:
        return mentions_value(fold_text(content), value)
    return bool(_find_overlapping_sentences(content, statement))


def find_sentences_of_fact(content: str, value: Words, statement: str) -> set[int]:
    """Return the indexes of the sentences with the value of a fact, or else of those closest to its statement."""
    return _find_sentences_with_value(content, value, ()) or _find_closest_sentences(content, statement)


def find_outdated_messages(
    retired: Iterable[Fact],
    new_value: str,
    evidence: Iterable[Entry],
    known: Iterable[Fact],
    cited: Mapping[str, Entry],
) -> dict[str, list[Span]]:
    """Return by id the messages that state retired facts, each with its spans that are still valid.

    `new_value` replaces the value of the facts, or is empty if they end. Messages in `evidence`, which state the new
    fact, stay valid, and so do those cited by other `known` facts with the same value. `cited` has by id the messages
    that the retired facts cite.
    """
    new = fold_text(new_value)
    evidence_ids = {entry.id for entry in evidence}
    known_by_value: dict[Words, list[Fact]] = {}
    for fact in known:
        known_by_value.setdefault(fold_text(fact.value), []).append(fact)
    outdated_sentences: dict[str, set[int]] = {}  # indexes of sentences, by id of the message
    for fact in retired:
        old = fold_text(fact.value)
        if old and old == new:
            continue  # the value is still true
        valid_ids = set(evidence_ids)
        for other in known_by_value.get(old, ()):
            if other.id != fact.id:
                valid_ids.update(other.sources)
        for id, sentences in _find_stating_sentences(fact, old, new, cited).items():
            if id not in valid_ids:
                outdated_sentences.setdefault(id, set()).update(sentences)
    valid_spans: dict[str, list[Span]] = {}
    for id, sentences in outdated_sentences.items():
        entry = cited[id]
        if sentences and entry.state is State.LIVE:
            valid_spans[id] = _find_remaining_spans(entry.content, sentences)
    return valid_spans


def _find_stating_sentences(
    fact: Fact, old: Words, new: Words, cited: Mapping[str, Entry]
) -> dict[str, set[int]]:
    """Return by id of each source of a fact the indexes of the sentences that state it.

    A fact may cite everything that was read. So if some source has the value or the statement, sources without either
    do not state the fact; if no source has them, the closest sentences of each source count. `old` is the value of the
    fact, `new` the value that replaces it.
    """
    contents = {id: cited[id].content for id in fact.sources if id in cited}
    found: dict[str, set[int]] = {}
    for id, content in contents.items():
        found[id] = _find_sentences_with_value(content, old, new)
    if old and new and mentions_value(new, old):
        return found  # words of the statement may state the new value: only the old value itself counts
    if len(found) > 1:
        for id, sentences in found.items():
            found[id] = sentences or _find_overlapping_sentences(contents[id], fact.content)
        if any(found.values()):
            return found
    for id, sentences in found.items():
        found[id] = sentences or _find_closest_sentences(contents[id], fact.content)
    return found


def _find_sentences_with_value(content: str, old: Words, new: Words) -> set[int]:
    """Return the indexes of the sentences with the value `old`; if it is part of `new`, not of those with `new`."""
    if not old:
        return set()
    is_part_of_new = bool(new) and mentions_value(new, old)
    found: set[int] = set()
    for index, (start, end) in enumerate(find_sentence_spans(content)):
        sentence = fold_text(content[start:end])
        states_new = is_part_of_new and mentions_value(sentence, new)
        if mentions_value(sentence, old) and not states_new:
            found.add(index)
    return found


def _find_closest_sentences(content: str, statement: str) -> set[int]:
    """Return the indexes of the sentences with most words of a statement, else of the best one, else of all."""
    shares = _measure_overlaps(content, statement)
    best = max(shares, default=0)
    if best == 0:
        return set(range(len(shares)))
    if best < MIN_OVERLAP:
        return {shares.index(best)}
    return {index for index, share in enumerate(shares) if share >= MIN_OVERLAP}


def _find_overlapping_sentences(content: str, statement: str) -> set[int]:
    """Return the indexes of the sentences that have at least the share `MIN_OVERLAP` of the words of a statement."""
    shares = _measure_overlaps(content, statement)
    return {index for index, share in enumerate(shares) if share >= MIN_OVERLAP}


def _measure_overlaps(content: str, statement: str) -> list[float]:
    """Return the share of the words of a statement that each sentence has."""
    wanted = _extract_terms(statement)
    shares: list[float] = []
    for start, end in find_sentence_spans(content):
        common = wanted & _extract_terms(content[start:end])
        shares.append(len(common) / max(1, len(wanted)))
    return shares


def _extract_terms(text: str) -> set[int]:
    """Return the search terms of the words of a text, without stop words."""
    terms = {content_term(word.casefold()) for word in fold_text(text)}
    return terms - {0}  # the term of every stop word


def _find_remaining_spans(content: str, removed: set[int]) -> list[Span]:
    """Return the spans of a text without some of its sentences, given by index; adjacent spans are joined."""
    remaining: list[Span] = []
    for index, (start, end) in enumerate(find_sentence_spans(content)):
        if index in removed:
            continue
        if remaining and remaining[-1][1] == start:
            start, _ = remaining.pop()
        remaining.append((start, end))
    return remaining
