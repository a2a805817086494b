"""Mentions: which sentences of which messages say what is no longer so.

Only the sources of a fact that is retired are looked at, and never what the new one was made from: a message that
contradicts an old fact is not out of date because it names it. In a source a value is looked for by its words, and
those that count are compared letter by letter: numbers, dates, ids.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence

from acms.knowledge import Fact, Proposal
from acms.model import Entry, Kind, Span, State
from acms.text.chunks import spans
from acms.text.tokenizer import term

ENOUGH = 0.5
"""Share of the words of a fact that a sentence must have to say it, where its value is not found."""

_WORD = re.compile(r"\S+")
_EDGE = " \t\n.,;:!?\"'()[]{}<>“”„«»‘’…*_`–—"
_JOINTS = str.maketrans("", "", "-'’")
_PARTS = re.compile(r"[-/]")
_POSSESSIVE = re.compile(r"['’]s$")


def fold(text: str) -> tuple[str, ...]:
    """Return the words of a text as two texts are compared: punctuation at their edges and case of words aside.

    Signs, digits and mixed case stay: `-5` is not `5`, `mW` not `MW`.
    """
    found: list[str] = []
    for match in _WORD.finditer(unicodedata.normalize("NFKC", text)):
        word = _POSSESSIVE.sub("", match[0].strip(_EDGE))
        if word.translate(_JOINTS).isalpha() and (len(word) > 2 or word.istitle() or word.islower()):
            word = word.casefold()
        if word:
            found.append(word)
    return tuple(found)


def mentions(sentence: Sequence[str], value: Sequence[str]) -> bool:
    """Whether a folded sentence has all words of a folded value, or all that count where some say nothing."""
    there = set(sentence)
    there.update(part for word in sentence for part in _PARTS.split(word))
    telling = [word for word in value if term(word)] or list(value)
    whole = "".join(value)
    if not whole.isascii() and whole in "".join(sentence):  # not everybody puts spaces between words
        return True
    return bool(telling) and all(word in there for word in telling)


class Said:
    """Finds what was said of facts that are being retired."""

    def __init__(self, known: Sequence[Fact], around: Mapping[str, Sequence[Entry]]) -> None:
        self._known = known
        self._around = around

    def demoted(
        self, ends: Sequence[Fact], instead: Proposal | None, sources: Sequence[Entry]
    ) -> dict[str, list[Span]]:
        """Return the messages that say what some facts said, each with the spans of it that are still good.

        `instead` takes their place and was made from `sources`, which are good; None when they end. A message all of
        which is still good is not among them.
        """
        bad: dict[str, set[int]] = {}
        entries: dict[str, Entry] = {}
        new = fold(instead.value) if instead is not None else ()
        evidence = {entry.id for entry in sources}
        for fact in ends:
            old = fold(fact.value)
            if old and old == new:
                continue
            shared = {
                id
                for other in self._known
                if other.id != fact.id and fold(other.value) == old
                for id in other.sources
            }
            told = self._of_sources(fact, old, new)
            for id in fact.sources:
                for entry in self._around.get(id, ()):
                    if entry.id == id and id not in evidence and id not in shared:
                        entries[id] = entry
                        bad.setdefault(id, set()).update(told.get(id, set()))
        return {
            id: _good(entries[id].content, some)
            for id, some in bad.items()
            if some and entries[id].kind is Kind.MESSAGE and entries[id].state is State.LIVE
        }

    def _of_sources(self, fact: Fact, old: Sequence[str], new: Sequence[str]) -> dict[str, set[int]]:
        """Return the sentences of its sources that say a fact.

        A fact may cite all that was read. So where the value or the statement is found, a source without either says
        something else; where nothing is found, the citation alone is believed.
        """
        entries = {id: one for id in fact.sources for one in self._around.get(id, ()) if one.id == id}
        found = {id: _saying(one, old, new) if old else set[int]() for id, one in entries.items()}
        if old and new and mentions(new, old):
            return found
        if len(found) > 1:
            for id in [id for id, some in found.items() if not some]:
                found[id] = _sharing(entries[id].content, fact.content)
        if not any(found.values()) or len(found) == 1:
            return {id: some or _closest(entries[id].content, fact.content) for id, some in found.items()}
        return found


def _saying(entry: Entry, old: Sequence[str], new: Sequence[str]) -> set[int]:
    """Return which sentences of an entry have a value; one that is part of the new value is not meant with it."""
    inside = bool(new) and mentions(new, old)
    found: set[int] = set()
    for number, (start, end) in enumerate(spans(entry.content)):
        said = fold(entry.content[start:end])
        if mentions(said, old) and not (inside and mentions(said, new)):
            found.add(number)
    return found


def _closest(content: str, statement: str) -> set[int]:
    """Return which sentences are most likely to say a statement: those with enough of its words, or the best one."""
    shares = _shares(content, statement)
    enough = {number for number, share in enumerate(shares) if share >= ENOUGH}
    if enough or not shares or max(shares) == 0:
        return enough or set(range(len(shares)))
    return {shares.index(max(shares))}


def _sharing(content: str, statement: str) -> set[int]:
    """Return which sentences have enough of the words of a statement."""
    return {number for number, share in enumerate(_shares(content, statement)) if share >= ENOUGH}


def _shares(content: str, statement: str) -> list[float]:
    wanted = _terms(statement)
    return [len(wanted & _terms(content[start:end])) / max(1, len(wanted)) for start, end in spans(content)]


def _terms(text: str) -> set[int]:
    return {term(word.casefold()) for word in fold(text)} - {0}


def _good(content: str, bad: set[int]) -> list[Span]:
    """Return what is left of a text without some of its sentences."""
    found: list[Span] = []
    for number, (start, end) in enumerate(spans(content)):
        if number in bad:
            continue
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found
