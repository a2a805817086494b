"""Noise: where a fact says what was asked, what answers far worse is left out.

A floor under the scores of messages alone costs evidence at every height (figures in docs): an answer may be spread
over many of them. A fact whose address holds one value at a time is another matter. When the query names its address
and nothing else answers better, the fact is the answer: what it was made from and what names its value stay with it,
the rest has to come close.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from acms.core.cards import named
from acms.core.field import Field
from acms.core.history import Doc
from acms.core.offer import Offer
from acms.core.plan import Candidate, Choice, Steps
from acms.core.terms import terms, words
from acms.model import Entry, Source

CLOSE = 0.8
"""Share of the score of an answer that is close to it."""
ASKED = 3
"""Of so many terms of a query one at least must be of the fact that says what was asked."""
LEADERS = 8
"""Best facts that are looked at."""
ASKING = frozenset(
    terms(
        words(
            "choose chose chosen pick use decide select settle go run build built have keep set want need called"
            " many much tool method kind type sort"
        )
    )
)
"""Words of a question that ask for what is so, or say of what sort it is, and do not name it."""


def quiet(offered: Offer, query: Sequence[int], field: Field) -> Steps[Offer]:
    """Leave out what answers a query far worse than a fact that says what was asked; asks for the best facts.

    A fact and what it was made from count as one answer: as much as the best of them. What names its value stays too:
    that is about the answer. So does an answer by whose attribute alone a word of the query is named: of "test
    framework" one fact may know the tests and a better one only a framework. `field` is the log that was ranked.
    """
    known = sorted((one for one in offered.past if one.source is Source.FACT), key=_best_first)[:LEADERS]
    if not known or not query:
        return offered
    rows = yield [_id(one) for one in known]
    saying = [row for row in (rows[_id(one)] for one in known) if says(row, query)]
    if not saying:
        return offered
    scores = {entry.id: one.score for one in offered.past for entry in one.unit.entries}
    answers = {row.id: max(scores.get(id, 0.0) for id in (row.id, *row.sources)) for row in saying}
    evidence = {id for row in saying for id in row.sources}
    best = max(answers, key=answers.__getitem__)
    aside = {row.id for row in rows.values() if row.id not in answers and _apart(row, query)}
    others = scores.keys() - answers.keys() - evidence - aside
    naming = set(query) - ASKING
    whole = bool(naming) and any(
        naming <= _held(row) for row in saying
    )  # nothing names more of what was asked
    if not whole and answers[best] < max((scores[id] for id in others), default=0.0):
        return offered
    floor = CLOSE * answers[best]
    kept: set[str] = set()
    told: set[int] = set()
    for id, score in sorted(answers.items(), key=lambda one: -one[1]):
        if score >= floor or not _terms(rows[id], "attribute").intersection(query) <= told:
            kept.add(id)
            told.update(_held(rows[id]).intersection(query))
    about = {version for id in kept for version in _naming(field, _terms(rows[id], "value"))}
    kept.update(id for one in tuple(kept) for id in rows[one].sources)
    reason = (
        f"v{rows[best].version} says what was asked; a score below {floor:.2f}, or another address, is noise"
    )
    past: list[Candidate] = []
    noise: list[Choice] = []
    for one in offered.past:
        ids = [entry.id for entry in one.unit.entries]
        names = any(entry.version in about and _is(field, entry) for entry in one.unit.entries)
        if names or not kept.isdisjoint(ids) or (one.score >= floor and aside.isdisjoint(ids)):
            past.append(one)
        else:
            noise.append(Choice(one, False, "noise", reason))
    return replace(offered, past=past, rejected=[*offered.rejected, *noise])


def says(fact: Entry, query: Sequence[int]) -> bool:
    """Whether a fact is the one answer to what was asked.

    Its address holds one value at a time, and the query names half of its attribute at least, or nothing beyond the
    fact. Who names the value asks for something else.
    """
    if fact.data.get("cardinality") != "one":
        return False
    asked = set(query) - ASKING or set(query)
    attribute = _terms(fact, "attribute")
    value = _terms(fact, "value") - attribute - _terms(fact, "subject")
    if value and value <= asked:
        return False
    held = asked & _held(fact)
    named_by_half = bool(attribute) and 2 * len(attribute & asked) >= len(attribute)
    return held == asked or (named_by_half and ASKED * len(held) >= len(asked))


def _held(fact: Entry) -> set[int]:
    return set(terms(words(f"{fact.content} {named(fact)}")))


def _apart(fact: Entry, query: Sequence[int]) -> bool:
    """Whether a fact is about something else: its address holds one value, and the query names nothing of either."""
    attribute = _terms(fact, "attribute")
    about = attribute | _terms(fact, "value")
    return fact.data.get("cardinality") == "one" and bool(attribute) and about.isdisjoint(query)


def _naming(field: Field, value: set[int]) -> set[int]:
    """Return the versions of the entries that hold all terms of a value."""
    found: set[int] | None = None
    for number in value:
        held = set(field.documents(field.postings(number)[0]).tolist())
        found = held if found is None else found & held
    return {document + 1 for document in found or ()}


def _is(field: Field, entry: Entry | Doc) -> bool:
    """Whether an entry is of a log, and not of another one at the same version."""
    return field.snapshot.doc(entry.version - 1).id == entry.id


def _terms(fact: Entry, name: str) -> set[int]:
    return set(terms(words(str(fact.data.get(name, "")))))


def _best_first(one: Candidate) -> tuple[float, int]:
    return -one.score, one.unit.version


def _id(one: Candidate) -> str:
    return one.unit.entries[0].id
