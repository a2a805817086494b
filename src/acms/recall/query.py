"""Queries: the words of a question as the index knows them, its vector, and whom it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise

from acms.recall.index import Floats
from acms.text.tokenizer import (
    find_names,
    function_terms,
    primary_term,
    remove_function_words,
    searchable_terms,
    split_words,
    variant_terms,
)


@dataclass(frozen=True, slots=True)
class QueryWord:
    """A word of a query with its terms: a message that holds any of them holds the word."""

    terms: tuple[int, ...]
    #: Whether it is part of the name of a speaker.
    is_name: bool = False
    #: Markers that it names: an entry that carries one of them holds the word.
    markers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query as a recall uses it."""

    words: tuple[QueryWord, ...]
    #: Of each name in it, a path, an amount, "roll back" as one word: the terms of its own words, and those under which
    #: the index may also know it.
    names: tuple[tuple[frozenset[int], tuple[int, ...]], ...] = ()
    space: str | None = None
    vector: Floats | None = None
    #: Speakers whom it names.
    speakers: frozenset[str] = frozenset()
    #: Weight of a mark, by marker; none for a missing marker.
    marker_weights: Mapping[str, float] = field(default_factory=dict[str, float])

    def resolve_names(self, holds: Callable[[int], bool]) -> Query:
        """Return it with its names under the terms that a log holds.

        Words of such a name that the log does not hold are left out: they would only make every answer look worse.
        """
        words = {word.terms[0]: word for word in self.words}
        for own_terms, name_terms in self.names:
            known = [term for term in name_terms if holds(term)]
            if not known:
                continue
            for term in own_terms:
                if term in words and not any(map(holds, words[term].terms)):
                    del words[term]
            for term in known:
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
    """Return a question as the index asks it; `markers` are the terms that name one, each with its marker.

    Function words of English and words of politeness are left out unless there are no others; function words of other
    languages weigh little, as they are in most messages.
    """
    all_words = split_words(text)
    variants = variant_terms(all_words)
    speaker_terms = {speaker: frozenset(searchable_terms(speaker)) for speaker in speakers}
    name_terms = frozenset[int]().union(*speaker_terms.values())
    words: dict[int, QueryWord] = {}
    for word in _remove_politeness(remove_function_words(all_words)):
        term = primary_term(word)
        if term not in words:
            named_markers = tuple([marker for marker_term, marker in markers if marker_term == term])
            words[term] = QueryWord((term, *variants[word]), term in name_terms, named_markers)
    names: list[tuple[frozenset[int], tuple[int, ...]]] = []
    for name in find_names(text):
        if len(name.text) > 1:
            names.append((frozenset(map(primary_term, split_words(name.text))), name.also))
    for first, second in pairwise(all_words):  # "roll back" may be one word in the log
        names.append((frozenset(), (primary_term(first + second),)))
    return Query(
        words=tuple(words.values()),
        names=tuple(names),
        space=space,
        vector=vector,
        speakers=frozenset(name for name, terms in speaker_terms.items() if not terms.isdisjoint(words)),
        marker_weights=marker_weights or {},
    )


def remove_speakers(text: str, speakers: Iterable[str]) -> str:
    """Return a question without the names of speakers; whole if nothing else is asked.

    The embedded text of every message names its speaker, so with a name a question would be nearest to anything that
    this speaker says; that a speaker is named counts already.
    """
    name_terms = frozenset[int]().union(*(searchable_terms(speaker) for speaker in speakers))
    if not any(primary_term(word) in name_terms for word in split_words(text)):
        return text

    def remove_name(match: re.Match[str]) -> str:
        return "" if primary_term(match[1].lower()) in name_terms else match[0]

    rest = _NAME.sub(remove_name, text)
    return " ".join(rest.split()) if split_words(rest) else text


_NAME = re.compile(r"(\w+)(?:['\u2019]s\b)?")

_COURTESIES = """
    hi hey hello bye goodbye ciao hola hallo salut bonjour morning evening night thanks thank thx merci gracias danke
    grazie obrigado obrigada please sorry welcome cheers ok okay yes yeah yep yup no nope sure right alright great good
    nice fine cool perfect awesome wow lol haha hmm well continue go see later noted understood ja nein oui non si sí
    não sim bitte gern gut bien bueno bom
"""


#: Courtesies that are never what is asked for; "good", "right" or "night" may be.
_POLITENESS = frozenset(
    "please thanks thank thx hi hello hey bitte danke merci gracias grazie obrigado obrigada".split()
)


def _remove_politeness(words: Sequence[str]) -> Sequence[str]:
    """Return words without those of politeness; all of them if there are no others."""
    return [word for word in words if word not in _POLITENESS] or words


@lru_cache(maxsize=1)
def contentless_terms() -> frozenset[int]:
    """Return the primary terms of words that ask nothing: function words of English, and courtesies."""
    return function_terms() | frozenset(map(primary_term, _COURTESIES.split()))


def find_content_words(query: Query) -> list[int]:
    """Return the indexes of the content words of a query; none for a greeting or an acknowledgment.

    A courtesy counts like any other word if other content words are present: "the right night".
    """
    function = function_terms()
    content = [
        index for index, word in enumerate(query.words) if word.is_name or word.terms[0] not in function
    ]
    for index in content:
        word = query.words[index]
        if word.is_name or word.terms[0] not in contentless_terms():
            return content
    return []
