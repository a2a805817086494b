"""Doubt: active facts whose premises are no longer active.

A fact rests on an earlier one when its reflector says so (`depends_on`), or when it contains a name that the earlier
one introduced: "since we chose Python, we use SQLAlchemy" rests on "the backend is in Python". Names are words with
capitals or digits; a value without any counts as a whole. Once the premise is replaced, ended or taken back, the facts
that rest on it are in doubt, and so are the facts that rest on those. They stay active until they are replaced or
ended. A fact that is stated again later does not rest on premises retired before then.
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
"""Maximum words of a value; longer text is a statement."""

_WORD = re.compile(r"[^\W_]+(?:[.'’/+-][^\W_]+)*")
_NAME = re.compile(r"[A-ZÀ-Þ]|[^\W_]\d|\d[^\W_]")
_LETTER = re.compile(r"[^\W\d_]")


class _Statement(NamedTuple):
    """The parsed text of a fact: its words, folded, and the names that it may introduce."""

    words: frozenset[str]
    names: frozenset[str]
    #: The first word of a statement, capitalized by position: a name only if other facts use it as one.
    first: frozenset[str]
    #: Its value, folded, if it has no name; "" if the value is not distinctive.
    whole: str
    #: All of it, folded, between spaces.
    text: str


MENTIONS = "mentions"
"""Key in the data of a fact: the names in the sentence it was made from."""


def annotate_doubts(facts: Sequence[Fact], mentions: Mapping[str, Iterable[str]] = {}) -> list[Fact]:
    """Return facts with their premises, and the active ones with the reason of their doubt, if any.

    `facts` are all that a log ever held at a version, oldest first, each with the entry that retired it; `mentions` are
    the names in the sentence that a fact was made from, by the id of the fact.
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
    """Return the names in a sentence that are missing from the fact made from it, sorted."""
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
    """Return the value of a fact, or "" if the value is a whole statement."""
    short = len(fact.value.split()) <= VALUE and _fold_text(fact.value) != _fold_text(fact.content)
    return fact.value if short else ""


def _extract_names(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names in a statement, folded, and its first word if only its position may capitalize it."""
    found = _WORD.findall(unicodedata.normalize("NFKC", text))
    named = [word for word in found if len(word) > 1 and _NAME.search(word) and _LETTER.search(word)]
    first = {_fold_text(found[0])} if found and found[0].istitle() and found[0] in named else set[str]()
    return frozenset(map(_fold_text, named)) - first, frozenset(first)


def _fold_text(text: str) -> str:
    plain = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(word.removesuffix("'s").removesuffix("’s") for word in _WORD.findall(plain))


class _Brought:
    """The facts that introduced each name: the first to contain it, and successors of that fact that contain it too.

    A fact with an already known name rests on that name and does not introduce it.
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
        #: Values in a script that may omit spaces, by their first characters.
        self._unspaced: dict[str, list[str]] = {}
        for key in self._whole:
            if not key.isascii():
                self._unspaced.setdefault(key[:2], []).append(key)

    def of(self, own: _Statement) -> list[Fact]:
        """Return the facts that introduced the names in a statement."""
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
    """Return the ids of the premises of a fact that were active when it was stated."""
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
    """Return why a fact is in doubt: its first premise, direct or indirect, that is no longer active."""
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
    """Whether the successor of a premise still supports a fact that rests on the premise."""
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
    """The label of an entry in doubt, and the versions of the messages that raised the doubt."""

    label: str
    news: tuple[int, ...] = ()


def doubt_labels(
    facts: Sequence[Fact], summaries: Iterable[Entry], owners: Collection[str]
) -> dict[int, Doubted]:
    """Return the labels of the facts, messages and summaries of a log that are in doubt, by version.

    A message is labelled if it is the only source of a doubted fact. A summary is labelled if it replaces a source of
    the fact or of its premise, does not replace the messages that raised the doubt, and repeats the names. `owners` are
    the contexts whose entries the log reads.
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
    """Return the labels of summaries whose messages were retracted or edited since, by version.

    `cover` is the searchable one: a summary that a later one replaced is labelled too, because a prompt may go on
    showing it for a while.
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
    """Return the versions of the entries among `ids` that a log reads."""
    return tuple([place[1] for place in map(parse_entry_id, ids) if place is not None and place[0] in owners])
