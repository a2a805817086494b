"""Queries: the words of a question as the index knows them, its vector, and whom it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from acms.recall.index import Floats
from acms.text.function_words import (
    POLITENESS,
    QUESTION_WORDS,
    asks_nothing,
    courtesies,
    find_function_pairs,
)
from acms.text.tokenizer import (
    ENGLISH,
    common_words,
    detect_language,
    find_names,
    function_terms,
    function_words,
    primary_term,
    remove_function_words,
    searchable_terms,
    split_words,
    subjectless_terms,
    variant_terms,
)


@dataclass(frozen=True, slots=True)
class QueryWord:
    """A word of a query with its terms: a message that holds any of them holds the word."""

    terms: tuple[int, ...]
    #: Whether it is part of the name of a speaker.
    is_name: bool = False
    #: Whether it names no subject by itself: a stop word of its language, or a number below 3,000.
    is_common: bool = False
    #: Markers that it names: an entry that carries one of them holds the word.
    markers: tuple[str, ...] = ()


class QueryName(NamedTuple):
    """Words of a query that the log may hold in another form: a path, an amount, "roll back" as one word."""

    #: Terms of its words in the query.
    own_terms: frozenset[int]
    #: Terms of its other forms.
    alternatives: tuple[int, ...]
    #: Whether the other forms count only in a log that holds none of its own terms.
    is_fallback: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query as a recall uses it."""

    words: tuple[QueryWord, ...]
    names: tuple[QueryName, ...] = ()
    #: Vector of the query, and the name of the space it belongs to.
    space: str | None = None
    vector: Floats | None = None
    #: Speakers that it names.
    speakers: frozenset[str] = frozenset()
    #: Weight of a mark, by marker; none for a missing marker.
    marker_weights: Mapping[str, float] = field(default_factory=dict[str, float])
    #: Whether it is a greeting, thanks or an acknowledgment.
    asks_nothing: bool = False
    #: Whether it names no subject: most of its words are function words, and the others are common.
    is_follow_up: bool = False

    def resolve_names(self, count_holders: Callable[[int], int]) -> Query:
        """Return the query with the forms of its names that a log holds as words; `count_holders` looks up a term.

        If the log holds another form of a name, words of the name that it does not hold are removed: they would only
        make every answer look worse.
        """
        words = {word.terms[0]: word for word in self.words}
        for name in self.names:
            held_alternatives = [term for term in name.alternatives if count_holders(term)]
            if not held_alternatives or (name.is_fallback and any(map(count_holders, name.own_terms))):
                continue
            for term in name.own_terms:
                if term in words and not any(map(count_holders, words[term].terms)):
                    del words[term]
            for term in held_alternatives:
                words.setdefault(term, QueryWord((term,)))
        return replace(self, words=tuple(words.values()), names=())


def parse_query(
    text: str,
    speakers: Iterable[str] = (),
    *,
    space: str | None = None,
    vector: Floats | None = None,
    markers: Collection[tuple[int, str]] = (),
    marker_weights: Mapping[str, float] | None = None,
) -> Query:
    """Parse the text of a question into a query; `speakers` are those of the log.

    `markers` pairs terms with markers: a word with such a term names the marker. Left out, unless there are no others,
    are function words of English and of scripts without spaces, question words, and words of politeness. Other function
    words weigh little, as they are in most messages.
    """
    all_words = split_words(text)
    variants = variant_terms(all_words)
    terms_by_speaker = {speaker: frozenset(searchable_terms(speaker)) for speaker in speakers}
    speaker_terms = frozenset[int]().union(*terms_by_speaker.values())
    words: dict[int, QueryWord] = {}
    pairs = find_function_pairs(text)
    unsearched = POLITENESS | QUESTION_WORDS | pairs.covered
    language = detect_language(all_words) or ENGLISH
    common = common_words(ENGLISH).union(common_words(language), unsearched)
    function = function_words(ENGLISH).union(function_words(language), unsearched)
    has_mostly_function_words = 2 * sum(word in function for word in all_words) > len(all_words)
    possible_words = [word for word in all_words if word not in unsearched] or all_words
    for word in remove_function_words(possible_words):
        term = primary_term(word)
        if term not in words:
            named_markers = tuple([marker for marker_term, marker in markers if marker_term == term])
            is_name = term in speaker_terms
            words[term] = QueryWord(
                (term, *variants[word]),
                is_name=is_name,
                is_common=not is_name and (word in common or term in subjectless_terms()),
                markers=named_markers,
            )
    is_courtesy = asks_nothing(text, all_words, pairs.covered)
    names_subject = not all(word.is_common for word in words.values())
    named_speakers = [name for name, terms in terms_by_speaker.items() if not terms.isdisjoint(words)]
    return Query(
        words=tuple(words.values()),
        names=(*_find_query_names(text, all_words), *_name_single_characters(pairs.single_characters)),
        space=space,
        vector=vector,
        speakers=frozenset(named_speakers),
        marker_weights=marker_weights or {},
        asks_nothing=is_courtesy,
        is_follow_up=has_mostly_function_words and not names_subject and not is_courtesy,
    )


def _find_query_names(text: str, words: Sequence[str]) -> list[QueryName]:
    """Return the names in a text, and each two adjacent words: the log may hold "rollback" for "roll back"."""
    names: list[QueryName] = []
    for name in find_names(text):
        if len(name.text) > 1:
            own_terms = frozenset(map(primary_term, split_words(name.text)))
            names.append(QueryName(own_terms, alternatives=name.extra_terms))
    for first, second in pairwise(words):
        names.append(QueryName(own_terms=frozenset(), alternatives=(primary_term(first + second),)))
    return names


def _name_single_characters(single_characters: Mapping[str, Iterable[str]]) -> Iterator[QueryName]:
    """Yield Chinese words of one character, which a log without their pairs may hold as parts of longer words."""
    for character, pairs in single_characters.items():
        pair_terms = frozenset(map(primary_term, pairs))
        yield QueryName(pair_terms, (primary_term(character),), is_fallback=True)


def remove_speakers(text: str, speakers: Iterable[str]) -> str:
    """Return a question without the names of speakers, or unchanged if it has no other words.

    The embedded text of every message names its speaker. So a question with a name would be nearest to anything that
    this speaker says, and naming a speaker counts already (`SPEAKER_FACTOR`).
    """
    name_terms = frozenset[int]().union(*(searchable_terms(speaker) for speaker in speakers))
    if not any(primary_term(word) in name_terms for word in split_words(text)):
        return text

    def remove_name(match: re.Match[str]) -> str:
        return "" if primary_term(match[1].lower()) in name_terms else match[0]

    remaining_text = _NAME.sub(remove_name, text)
    return " ".join(remaining_text.split()) if split_words(remaining_text) else text


_NAME = re.compile(r"(\w+)(?:['\u2019]s\b)?")


@lru_cache(maxsize=1)
def contentless_terms() -> frozenset[int]:
    """Return the primary terms of words that ask nothing: function words of English, and courtesies."""
    return function_terms() | frozenset(map(primary_term, courtesies()))


def find_content_words(query: Query) -> list[int]:
    """Return the indexes of the content words of a query; an empty list for a greeting or an acknowledgment.

    Content words are the names of speakers and all words but function words. Courtesies are among them only beside
    another content word: "the right night". Numbers below 100 are not among them if there are others: the day of the
    month is a word of every message of that day.
    """
    content: list[int] = []
    numbers: list[int] = []
    has_courtesies_only = True
    for index, word in enumerate(query.words):
        term = word.terms[0]
        if term in _small_numbers():
            numbers.append(index)
        elif word.is_name or term not in function_terms():
            content.append(index)
        if word.is_name or term not in contentless_terms():
            has_courtesies_only = False
    return [] if has_courtesies_only else content or numbers


def is_bare_reply(query: Query) -> bool:
    """Return whether a query consists of small numbers, or of one function word: "12" or "Why?"."""
    terms = [word.terms[0] for word in query.words if not word.is_name]
    is_number = [term in _small_numbers() for term in terms]
    is_function_word = len(terms) == 1 and terms[0] in contentless_terms()
    return len(terms) == len(query.words) and (all(is_number) or is_function_word)


@lru_cache(maxsize=1)
def _small_numbers() -> frozenset[int]:
    """Return the primary terms of the numbers below 100, as they are written with and without a leading zero."""
    spellings = [f"{number}" for number in range(100)] + [f"0{digit}" for digit in range(10)]
    return frozenset(map(primary_term, spellings))
