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
from acms.log.active_entries import Replacements
from acms.log.encoding import parse_entry_id
from acms.model import Entry, Kind, Span

_VALUE_WORDS = 6
"""Maximum words of a value; longer text is a statement."""

_WORD = re.compile(r"[^\W_]+(?:[.'’/+-][^\W_]+)*")
_NAME = re.compile(r"[A-ZÀ-Þ]|[^\W_]\d|\d[^\W_]")
_LETTER = re.compile(r"[^\W\d_]")


class _Statement(NamedTuple):
    """The parsed text of a fact: its words, folded, and the names that it may introduce."""

    words: frozenset[str]
    names: frozenset[str]
    #: The first word of the text if it looks like a name. Its capital may come from its position, so it counts as a
    #: name only if other facts use it as one.
    first_word: frozenset[str]
    #: The folded value if it contains no name, else "".
    nameless_value: str
    #: The whole text, folded, between spaces.
    text: str


MENTIONS = "mentions"
"""Key in the data of a fact: the names in the sentence it was made from, which the fact itself omits."""


def annotate_doubts(facts: Sequence[Fact], mentions: Mapping[str, Iterable[str]] = {}) -> list[Fact]:
    """Return facts with their premises, and the active ones with the reason of their doubt, if any.

    `facts` are all that a log ever held at a version, oldest first, each with the entry that retired it; `mentions` are
    the names in the sentence that a fact was made from, by the id of the fact.
    """
    statements = {fact.id: _parse_statement(fact, mentions.get(fact.id, ())) for fact in facts}
    names: set[str] = set()
    names.update(*mentions.values(), *(statement.names for statement in statements.values()))
    for id, statement in statements.items():
        statements[id] = statement._replace(names=statement.names | (statement.first_word & names))
    by_id = {fact.id: fact for fact in facts}
    index = _NameIndex(facts, statements)
    annotated: dict[str, Fact] = {}
    for fact in facts:
        introducing = index.facts_introducing(statements[fact.id])
        premises = _find_premises(fact, by_id, introducing)
        doubt = None if fact.retired else _find_doubt(fact, premises, annotated, by_id, statements)
        annotated[fact.id] = replace(fact, depends_on=premises, doubt=doubt)
    return list(annotated.values())


def sentence_names(sentence: str, content: str) -> list[str]:
    """Return the names in a sentence that are missing from the fact made from it, sorted."""
    return sorted(_extract_names(sentence)[0] - set(_fold_text(content).split()))


def _parse_statement(fact: Fact, mentions: Iterable[str] = ()) -> _Statement:
    """Return the words and the names of a fact; the names are those of its value, or of its text if it has none."""
    value = _short_value(fact)
    text = _fold_text(f"{fact.subject} {fact.content} {fact.value}")
    names, first_word = _extract_names(value or fact.content)
    if value:  # a value is no sentence, so its first word is capitalized only if it is a name
        names, first_word = names | first_word, frozenset[str]()
    nameless_value = _fold_text(value) if value and not names and _LETTER.search(value) else ""
    return _Statement(frozenset((*text.split(), *mentions)), names, first_word, nameless_value, f" {text} ")


def _short_value(fact: Fact) -> str:
    """Return the value of a fact, or "" if the value is a whole statement."""
    is_short = len(fact.value.split()) <= _VALUE_WORDS
    return fact.value if is_short and _fold_text(fact.value) != _fold_text(fact.content) else ""


def _extract_names(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the folded names in a statement, and separately its first word if that looks like a name.

    The first word may have its capital only because the sentence begins with it.
    """
    words = _WORD.findall(unicodedata.normalize("NFKC", text))
    names = [word for word in words if len(word) > 1 and _NAME.search(word) and _LETTER.search(word)]
    folded = frozenset(map(_fold_text, names))
    if not names or words[0] != names[0] or not words[0].istitle():
        return folded, frozenset()
    first_word = frozenset({_fold_text(words[0])})
    return folded - first_word, first_word


def _fold_text(text: str) -> str:
    """Return the words of a text in lower case, without possessive endings, joined by spaces."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(word.removesuffix("'s").removesuffix("’s") for word in _WORD.findall(plain))


class _NameIndex:
    """The facts that introduced each name: the first to contain it, and successors of that fact that contain it too.

    A fact with an already known name rests on that name and does not introduce it.
    """

    def __init__(self, facts: Sequence[Fact], statements: Mapping[str, _Statement]) -> None:
        self._by_name: dict[str, list[Fact]] = {}
        #: By a value that contains no name.
        self._by_value: dict[str, list[Fact]] = {}
        known_words: set[str] = set()
        for fact in facts:
            statement = statements[fact.id]
            for name in statement.names:
                introducing = self._by_name.setdefault(name, [])
                if name not in known_words or any(older.id in fact.replaces for older in introducing):
                    introducing.append(fact)
            if statement.nameless_value:
                self._by_value.setdefault(statement.nameless_value, []).append(fact)
            known_words.update(statement.text.split())
        self._order = {value: index for index, value in enumerate(self._by_value)}
        #: Maximum number of words of a value.
        self._max_words = max((len(value.split()) for value in self._by_value), default=0)
        #: Values in a script that may omit spaces, by their first characters.
        self._unspaced: dict[str, list[str]] = {}
        for value in self._by_value:
            if not value.isascii():
                self._unspaced.setdefault(value[:2], []).append(value)

    def facts_introducing(self, statement: _Statement) -> list[Fact]:
        """Return the facts that introduced the names in a statement."""
        facts: list[Fact] = []
        for name in sorted(statement.words & self._by_name.keys()):
            facts += self._by_name[name]
        phrases = self._find_phrases(statement.text)
        for value in sorted(phrases & self._by_value.keys(), key=self._order.__getitem__):
            facts += self._by_value[value]
        return facts

    def _find_phrases(self, text: str) -> set[str]:
        """Return the phrases of a text that may be values: word sequences, and values in scripts without spaces."""
        words = text.split()
        phrases: set[str] = set()
        for start in range(len(words)):
            for end in range(start + 1, min(start + self._max_words, len(words)) + 1):
                phrases.add(" ".join(words[start:end]))
        if self._unspaced:
            beginnings = {text[index : index + size] for index in range(len(text)) for size in (1, 2)}
            for beginning in beginnings & self._unspaced.keys():
                phrases.update(value for value in self._unspaced[beginning] if value in text)
        return phrases


def _find_premises(fact: Fact, by_id: Mapping[str, Fact], introducing: Iterable[Fact]) -> tuple[str, ...]:
    """Return the ids of the premises of a fact that were active when it was stated."""
    stated = [id for id in fact.depends_on if id in by_id and by_id[id].version < fact.version]
    implied = [other.id for other in introducing if _may_be_premise(other, fact)]
    return tuple(dict.fromkeys([*stated, *implied]))


def _may_be_premise(other: Fact, fact: Fact) -> bool:
    """Return whether a fact was active when another one was stated, and is not a value of the same thing."""
    if other.version >= fact.version or other.id in fact.replaces:
        return False
    if other.retired is not None and other.retired.version <= fact.version:
        return False
    is_same_address = bool(fact.attribute) and (other.subject, other.attribute) == (
        fact.subject,
        fact.attribute,
    )
    # An address that holds many values may hold both facts, so neither is a newer value of the other.
    holds_both = other.cardinality == fact.cardinality == "many"
    return not is_same_address or holds_both


def _find_doubt(
    fact: Fact,
    premises: Iterable[str],
    annotated: Mapping[str, Fact],
    by_id: Mapping[str, Fact],
    statements: Mapping[str, _Statement],
) -> Doubt | None:
    """Return why a fact is in doubt: its first premise, direct or indirect, that is no longer active."""
    for id in premises:
        premise = annotated[id]
        retired = premise.retired
        if retired is None:
            if premise.doubt is not None:
                return premise.doubt
        elif retired.reason != "archived":  # archived only because there were too many facts
            successor = by_id.get(retired.by)
            if successor is None or not _successor_supports(fact, premise, successor, statements):
                return Doubt.of(premise)
    return None


def _successor_supports(
    fact: Fact, premise: Fact, successor: Fact, statements: Mapping[str, _Statement]
) -> bool:
    """Return whether the successor of a premise still supports a fact that rests on the premise."""
    value = _short_value(successor)
    if not value:
        return False
    folded_value = _fold_text(value)
    if folded_value == _fold_text(premise.value):
        return True
    # The fact rests on names of the premise: these must be in the new value too.
    shared_names = statements[premise.id].names & statements[fact.id].words
    return bool(shared_names) and shared_names <= set(folded_value.split())


class DoubtLabel(NamedTuple):
    """The label of an entry in doubt, and the versions of the messages that raised the doubt."""

    label: str
    raised_by: tuple[int, ...] = ()


def doubt_labels(
    facts: Sequence[Fact], summaries: Iterable[Entry], owners: Collection[str]
) -> dict[int, DoubtLabel]:
    """Return the labels of the facts, messages and summaries of a log that are in doubt, by version.

    A message is labelled if it is the only source of a doubted fact. A summary is labelled if it replaces a source of
    the fact or of its premise, does not replace the messages that raised the doubt, and repeats the names. `owners` are
    the contexts whose entries the log reads.
    """
    labels: dict[int, DoubtLabel] = {}
    raised_by: dict[str, tuple[int, ...]] = {}
    for fact in facts:
        if fact.retired is not None:
            raised_by[fact.id] = versions_of_ids(fact.retired.evidence, owners)
    #: Versions of the sources of doubted and retired facts, each with the names that a summary may repeat.
    mentions: list[tuple[int, frozenset[str], DoubtLabel]] = []
    for fact in facts:
        sources = versions_of_ids(fact.sources, owners)
        if fact.doubt is not None:
            doubt_label = DoubtLabel(fact.doubt.label, raised_by[fact.doubt.premise])
            labels[fact.version] = doubt_label
            if len(fact.sources) == 1 and sources:
                labels[sources[0]] = doubt_label
        elif fact.retired is not None and fact.retired.reason in ("updated", "removed"):
            doubt_label = DoubtLabel(Doubt.of(fact).label, raised_by[fact.id])
        else:
            continue
        statement = _parse_statement(fact)
        names = statement.names or frozenset(filter(None, [statement.nameless_value]))
        mentions += [(source, names, doubt_label) for source in sources]
    for summary in summaries if mentions else ():
        label = _doubt_of_summary(summary, mentions)
        if label is not None:
            labels[summary.version] = DoubtLabel(label)
    return labels


def _doubt_of_summary(
    summary: Entry, mentions: Iterable[tuple[int, frozenset[str], DoubtLabel]]
) -> str | None:
    """Return the label of a summary that repeats the names of a doubted fact from one of its messages."""
    text = f" {_fold_text(summary.content)} "
    spans = summary.replaces if summary.covers is None else (summary.covers,)
    for source, names, doubt_label in mentions:
        has_seen_cause = any(_is_within_spans(version, spans) for version in doubt_label.raised_by)
        if not _is_within_spans(source, spans) or has_seen_cause:
            continue
        if any(f" {name} " in text for name in names):
            return doubt_label.label
    return None


def outdated_summary_labels(replacements: Replacements) -> dict[int, str]:
    """Return the labels of summaries whose messages were retracted or edited since, by version.

    `replacements` are those for searching. A summary that a later one replaced is labelled too, because a prompt may
    still show it for a while.
    """
    summaries = [entry for entry in replacements.replacing if entry.kind is Kind.SUMMARY]
    by_version = {entry.version: entry for entry in replacements.replacing} if summaries else {}
    labels: dict[int, str] = {}
    for summary in summaries:
        for first, _, replacing_version in replacements.changes(summary):
            change = by_version[replacing_version]
            if change.kind in (Kind.MESSAGE, Kind.RETRACTION):
                reason = "updated" if change.kind is Kind.MESSAGE else ""
                doubt = Doubt(
                    premise="",
                    premise_version=first,
                    by=change.id,
                    version=replacing_version,
                    reason=reason,
                )
                labels[summary.version] = doubt.label
                break
    return labels


def _is_within_spans(version: int, spans: Iterable[Span]) -> bool:
    return any(low <= version <= high for low, high in spans)


def versions_of_ids(ids: Iterable[str], owners: Collection[str]) -> tuple[int, ...]:
    """Return the versions of the entries among `ids` that a log reads."""
    origins = [parse_entry_id(id) for id in ids]
    return tuple([origin[1] for origin in origins if origin is not None and origin[0] in owners])
