"""Doubt: facts that rest on what is no longer so, though nobody said that they are not.

A fact rests on an earlier one when its reflector says so (`depends_on`), or when it says the name that the earlier one
brought up: "since we chose Python, we use SQLAlchemy" rests on "the backend is in Python". Names are what is written
with capitals or digits; a value without any counts as a whole. Once the earlier one is replaced, ended or taken back,
what rests on it is in doubt, and what rests on that; it stays in force until somebody says otherwise. What is stated
again afterwards rests on nothing that had gone before.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from acms.knowledge import Doubt, Fact
from acms.log.encoding import parse_entry_id
from acms.log.in_force import Cover
from acms.model import Entry, Kind, Span

VALUE = 6
"""Words of a value, at most: what is longer is a statement."""

_WORD = re.compile(r"[^\W_]+(?:[.'’/+-][^\W_]+)*")
_NAME = re.compile(r"[A-ZÀ-Þ]|[^\W_]\d|\d[^\W_]")
_LETTER = re.compile(r"[^\W\d_]")


class _Statement(NamedTuple):
    """What a fact says: its words, folded, and the names that it may have brought up."""

    words: frozenset[str]
    names: frozenset[str]
    #: The first word of a statement, which has its capital for another reason: a name where others say it as one.
    first: frozenset[str]
    #: Its value, folded, where it has no name; "" when that says too little.
    whole: str
    #: All of it, folded, between spaces.
    text: str


MENTIONS = "mentions"
"""Names in the data of a fact, those of the sentence it was made from."""


def annotate_doubts(facts: Sequence[Fact], mentions: Mapping[str, Iterable[str]] = {}) -> list[Fact]:
    """Return facts with what they rest on, and why some of those in force are in doubt.

    `facts` are all that a log ever held at a version, oldest first, each with what retired it; `mentions` are names
    that stood in the sentence a fact was made from, by the id of the fact.
    """
    said = {fact.id: _parse_statement(fact, mentions.get(fact.id, ())) for fact in facts}
    names = frozenset[str]().union(*(own.names for own in said.values()), *mentions.values())
    said = {id: own._replace(names=own.names | (own.first & names)) for id, own in said.items()}
    by_id = {fact.id: fact for fact in facts}
    brought = _Brought(facts, said)
    found: dict[str, Fact] = {}
    for fact in facts:
        rests = _find_premises(fact, by_id, brought.of(said[fact.id]))
        doubt = None if fact.retired else _find_doubt(fact, rests, found, by_id, said)
        found[fact.id] = replace(fact, depends_on=rests, doubt=doubt)
    return list(found.values())


def sentence_names(sentence: str, content: str) -> list[str]:
    """Return the names in a sentence that what was made from it does not say, in order."""
    return sorted(_extract_names(sentence)[0] - set(_fold_text(content).split()))


def _parse_statement(fact: Fact, mentions: Iterable[str] = ()) -> _Statement:
    value = _short_value(fact)
    text = _fold_text(f"{fact.subject} {fact.content} {fact.value}")
    names, first = _extract_names(value or fact.content)
    if value:
        names, first = names | first, frozenset[str]()
    whole = _fold_text(value) if value and not names and _LETTER.search(value) else ""
    return _Statement(frozenset((*text.split(), *mentions)), names, first, whole, f" {text} ")


def _short_value(fact: Fact) -> str:
    """Return the value of a fact; "" where a statement stands in its place."""
    short = len(fact.value.split()) <= VALUE and _fold_text(fact.value) != _fold_text(fact.content)
    return fact.value if short else ""


def _extract_names(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names in a statement, folded, and its first word where only its place may make it one."""
    found = _WORD.findall(unicodedata.normalize("NFKC", text))
    named = [word for word in found if len(word) > 1 and _NAME.search(word) and _LETTER.search(word)]
    first = {_fold_text(found[0])} if found and found[0].istitle() and found[0] in named else set[str]()
    return frozenset(map(_fold_text, named)) - first, frozenset(first)


def _fold_text(text: str) -> str:
    plain = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(word.removesuffix("'s").removesuffix("’s") for word in _WORD.findall(plain))


class _Brought:
    """Which facts brought a name up: the first one that says it, and those that took its place and say it too.

    What says a name that was known already rests on it, and brings nothing up.
    """

    def __init__(self, facts: Sequence[Fact], said: Mapping[str, _Statement]) -> None:
        self._names: dict[str, list[Fact]] = {}
        self._whole: dict[str, list[Fact]] = {}
        known = set[str]()
        for fact in facts:
            own = said[fact.id]
            for key in own.names:
                before = self._names.setdefault(key, [])
                if key not in known or any(old.id in fact.replaces for old in before):
                    before.append(fact)
            if own.whole:
                self._whole.setdefault(own.whole, []).append(fact)
            known.update(own.text.split())
        self._place = {key: place for place, key in enumerate(self._whole)}
        self._longest = max((len(key.split()) for key in self._whole), default=0)
        #: Values in a script that may put no spaces, by how they begin.
        self._unspaced: dict[str, list[str]] = {}
        for key in self._whole:
            if not key.isascii():
                self._unspaced.setdefault(key[:2], []).append(key)

    def of(self, own: _Statement) -> list[Fact]:
        """Return the facts whose names something says."""
        found = [fact for key in sorted(own.words & self._names.keys()) for fact in self._names[key]]
        said, words = set[str](), own.text.split()
        for start in range(len(words)):
            for end in range(start + 1, min(start + self._longest, len(words)) + 1):
                said.add(" ".join(words[start:end]))
        starts = {own.text[at : at + size] for at in range(len(own.text)) for size in (1, 2)}
        for start in starts & self._unspaced.keys():
            said.update(key for key in self._unspaced[start] if key in own.text)
        whole = sorted(said & self._place.keys(), key=self._place.__getitem__)
        return found + [fact for key in whole for fact in self._whole[key]]


def _find_premises(fact: Fact, by_id: Mapping[str, Fact], named: Iterable[Fact]) -> tuple[str, ...]:
    """Return the ids of the facts that one rests on, as they stood when it was said."""
    near = [
        other.id
        for other in named
        if other.version < fact.version
        and (other.retired is None or other.retired.version > fact.version)
        and other.id not in fact.replaces
        and (
            not fact.attribute
            or (other.subject, other.attribute) != (fact.subject, fact.attribute)
            or other.cardinality == fact.cardinality == "many"
        )
    ]
    told = [id for id in fact.depends_on if id in by_id and by_id[id].version < fact.version]
    return tuple(dict.fromkeys([*told, *near]))


def _find_doubt(
    fact: Fact,
    rests: Iterable[str],
    found: Mapping[str, Fact],
    by_id: Mapping[str, Fact],
    said: Mapping[str, _Statement],
) -> Doubt | None:
    """Return why a fact is in doubt: the first thing that it rests on, directly or not, and that has gone."""
    for id in rests:
        premise = found[id]
        gone = premise.retired
        if gone is None:
            if premise.doubt is not None:
                return premise.doubt
        elif gone.reason != "archived" and not _successor_supports(fact, premise, by_id.get(gone.by), said):
            return Doubt.of(premise)
    return None


def _successor_supports(fact: Fact, premise: Fact, heir: Fact | None, said: Mapping[str, _Statement]) -> bool:
    """Whether what took the place of a premise still says what a fact takes from it."""
    if heir is None:
        return False
    value = _short_value(heir)
    if not value:
        return False
    if _fold_text(value) == _fold_text(premise.value):
        return True
    taken = said[premise.id].names & said[fact.id].words
    return bool(taken) and taken <= set(_fold_text(value).split())


class Doubted(NamedTuple):
    """What a reader is told of something in doubt, and the versions of the messages that brought the doubt up."""

    label: str
    news: tuple[int, ...] = ()


def doubt_labels(
    facts: Sequence[Fact], summaries: Iterable[Entry], owners: Collection[str]
) -> dict[int, Doubted]:
    """Return what a reader has to be told of facts, messages and summaries of a log that are in doubt, by version.

    Of messages those that alone said such a fact; of summaries those that stand for what said it, or for what said the
    premise, but not for what brought the doubt up, and repeat its names. `owners` are the contexts whose entries the
    log reads.
    """
    found: dict[int, Doubted] = {}
    spots: list[tuple[int, frozenset[str], Doubted]] = []
    news = {
        fact.id: versions_of_ids(fact.retired.evidence, owners) for fact in facts if fact.retired is not None
    }
    for fact in facts:
        told = fact.doubt.label if fact.doubt is not None else ""
        said_at = versions_of_ids(fact.sources, owners)
        if fact.doubt is not None:
            found[fact.version] = Doubted(told, news[fact.doubt.premise])
            if len(fact.sources) == 1 and said_at:
                found[said_at[0]] = found[fact.version]
        gone = fact.retired
        if told or (gone is not None and gone.reason in ("updated", "removed")):
            words = _parse_statement(fact)
            said = words.names or frozenset(filter(None, [words.whole]))
            why = found[fact.version] if told else Doubted(Doubt.of(fact).label, news[fact.id])
            spots += [(place, said, why) for place in said_at]
    for entry in summaries:
        text = f" {_fold_text(entry.content)} " if spots else ""
        held = entry.replaces if entry.covers is None else (entry.covers,)
        for place, keys, why in spots:
            if not _is_within_spans(place, held) or any(_is_within_spans(one, held) for one in why.news):
                continue
            if any(f" {key} " in text for key in keys):
                found[entry.version] = Doubted(why.label)
                break
    return found


def outdated_summary_labels(cover: Cover) -> dict[int, str]:
    """Return what a reader has to be told of summaries that stand for something retracted or edited since, by version.

    `cover` is that of what can still be found: also a summary that a later one stands for is told of, because a prompt
    may go on showing it for a while.
    """
    summaries = [entry for entry in cover.replacing if entry.kind is Kind.SUMMARY]
    by_version = {entry.version: entry for entry in cover.replacing} if summaries else {}
    found: dict[int, str] = {}
    for summary in summaries:
        for first, _, by in cover.changes(summary):
            change = by_version[by]
            if change.kind in (Kind.MESSAGE, Kind.RETRACTION):
                reason = "updated" if change.kind is Kind.MESSAGE else ""
                why = Doubt(premise="", premise_version=first, by=change.id, version=by, reason=reason)
                found[summary.version] = why.label
                break
    return found


def _is_within_spans(version: int, spans: Iterable[Span]) -> bool:
    return any(low <= version <= high for low, high in spans)


def versions_of_ids(ids: Iterable[str], owners: Collection[str]) -> tuple[int, ...]:
    """Return the versions of those of some entries that a log reads."""
    return tuple([place[1] for place in map(parse_entry_id, ids) if place is not None and place[0] in owners])
