"""Queries: the words of a question as the index knows them, its vector, and whom it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from acms.recall.index import Floats
from acms.text.tokenizer import (
    find_names,
    primary_term,
    remove_function_words,
    searchable_terms,
    split_words,
    variant_terms,
)


@dataclass(frozen=True, slots=True)
class QueryWord:
    """A word of a query, with all terms that stand for it: a message that holds any of them holds the word."""

    terms: tuple[int, ...]
    #: Whether it is part of the name of a speaker.
    is_name: bool = False
    #: Markers that it names: what carries one of them holds the word.
    markers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query as a recall uses it."""

    words: tuple[QueryWord, ...]
    #: Of each name in it, a path, an amount, "roll back" as one word: the terms of its own words, and those under which
    #: the index may know it beside them.
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
        found = {word.terms[0]: word for word in self.words}
        for own, also in self.names:
            known = [number for number in also if holds(number)]
            for number in own if known else ():
                if number in found and not any(map(holds, found[number].terms)):
                    del found[number]
            found.update({number: QueryWord((number,)) for number in known if number not in found})
        return replace(self, words=tuple(found.values()), names=())


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

    Function words of English are left out unless there are no others; those of other languages weigh little, as they
    are in most messages.
    """
    everything = split_words(text)
    said = remove_function_words(everything)
    named = {speaker: frozenset(searchable_terms(speaker)) for speaker in speakers}
    variants = variant_terms(everything)
    found: dict[int, QueryWord] = {}
    asked: set[int] = set()
    for word in dict.fromkeys(said):
        number = primary_term(word)
        if number in found:
            continue
        asked.add(number)
        is_name = any(number in terms for terms in named.values())
        found[number] = QueryWord(
            (number, *variants[word]),
            is_name=is_name,
            markers=tuple(marker for own, marker in markers if own == number),
        )
    also = [
        (frozenset(map(primary_term, split_words(name.text))), name.also)
        for name in find_names(text)
        if len(name.text) > 1
    ]
    also += [(frozenset[int](), (primary_term(f"{one}{other}"),)) for one, other in pairwise(everything)]
    return Query(
        words=tuple(found.values()),
        names=tuple(also),
        space=space,
        vector=vector,
        speakers=frozenset(speaker for speaker, terms in named.items() if not asked.isdisjoint(terms)),
        marker_weights=marker_weights or {},
    )


def remove_speakers(text: str, speakers: Iterable[str]) -> str:
    """Return a question without the names of speakers; whole when nothing else is asked.

    The text that is embedded of every message names its speaker, so with a name a question would be nearest to
    whatever that one says; that a speaker is named counts already.
    """
    named = frozenset[int]().union(*(searchable_terms(speaker) for speaker in speakers))
    if not any(primary_term(word) in named for word in split_words(text)):
        return text
    rest = _NAME.sub(lambda found: "" if primary_term(found[1].lower()) in named else found[0], text)
    return " ".join(rest.split()) if split_words(rest) else text


_NAME = re.compile(r"(\w+)(?:['\u2019]s\b)?")
