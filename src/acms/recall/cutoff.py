"""Noise: what answers far worse than what answers best is left out, most of all where a fact says what was asked.

An answer may be spread over many messages, and then none of them answers well; where one does, less is needed of the
rest. So the floor under the scores is a share of the best one squared: it hardly cuts where nothing matches well. A
fact whose address holds one value at a time is another matter. When the query names its address and it comes close to
what answers best, the fact is the answer: what it was made from and what names its value stay with it, the rest has to
come close, and to hold as many words of what was asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from acms.log.in_force import Doc
from acms.model import Entry, Source
from acms.recall.candidates import Offer
from acms.recall.corpus import Field
from acms.recall.planner import Candidate, Choice, Steps
from acms.recall.rank import Ranking
from acms.text.index_record import named
from acms.text.tokenizer import rarity, terms, words

FLOOR = 0.2
"""Share of the square of the best score below which a score is noise."""
CLOSE = 0.95
"""Share of the score of an answer that is close to it."""
SLACK = 1e-6
"""What sums of the same weights in another order may differ by."""
FAR = 0.6
"""Share of the best score below which a fact is not taken for the answer."""
ASKED = 3
"""Of so many terms of a query one at least must be of the fact that says what was asked, one more when the query names
its attribute in full."""
LEADERS = 8
"""Best facts that are looked at."""
ASKING = frozenset(
    terms(
        words(
            "choose chose chosen pick use decide select settle go run build built make made write written"
            " have keep set want need called many much tool method kind type sort"
        )
    )
)
"""Words of a question that ask for what is so, or say of what sort it is, and do not name it."""
CALLED = frozenset(terms(words("called")))
NAME = frozenset(terms(words("name")))
SELF = "user"
"""Subject of what users say of themselves: they ask for "my name"."""


def stop(offered: Offer) -> Offer:
    """Leave out what answers too badly beside the best answer to be worth its room."""
    best = max([unmarked(one) if one.boost else one.score for one in offered.past], default=0.0)
    floor = FLOOR * best * best
    noise = [one for one in offered.past if one.score < floor]
    if not noise:
        return offered
    reason = f"a score below {floor:.2f} is noise beside one of {best:.2f}"
    rejected = [*offered.rejected, *(Choice(one, False, "noise", reason) for one in noise)]
    return replace(offered, past=[one for one in offered.past if one.score >= floor], rejected=rejected)


def unmarked(one: Candidate) -> float:
    """Return the score of a candidate as it would be without its markers: these say nothing about the query."""
    return one.score if not one.boost else 1 - (1 - one.score) ** (1 / (1 + one.boost))


def quiet(offered: Offer, query: Sequence[int], ranking: Ranking) -> Steps[Offer]:
    """Leave out what answers a query far worse than a fact that says what was asked; asks for the best facts.

    A fact and what it was made from count as one answer: as much as the best of them. What names its value stays too:
    that is about the answer. A fact that holds fewer of the words asked than another one, each of one value, is about
    something else: of "test framework" one fact may know both words and a better one only a framework. One that holds
    other words asked, and as much of what was asked, answers the other half of the question. What takes the place of
    an earlier statement need not repeat its words. `ranking` is that of the log asked.
    """
    field = ranking.field
    known = sorted((one for one in offered.past if one.source is Source.FACT), key=_best_first)[:LEADERS]
    if not known or not query:
        return offered
    rows = yield [_id(one) for one in known]
    asked = _asked(query)
    saying = [row for row in (rows[_id(one)] for one in known) if says(row, query)]
    saying = [row for row in saying if _terms(row, "attribute") & asked] or saying
    held = {row.id: _held(row) & asked for row in saying}
    saying = [row for row in saying if not any(held[row.id] < other for other in held.values())]
    if not saying:
        return offered
    scores = {entry.id: one.score for one in offered.past for entry in one.unit.entries}
    answers = {row.id: max(scores.get(id, 0.0) for id in (row.id, *row.sources)) for row in saying}
    kept = {*answers, *(id for row in saying for id in row.sources)}
    weights = _weights(ranking, asked)
    least = max(sum(weights[number] for number in held[row.id]) for row in saying) - SLACK
    told = set().union(*held.values())
    aside: set[str] = set()
    for row in rows.values():
        more = sum(weights[number] for number in _held(row) & asked - told)
        if row.id not in answers and _alone(row) and more < least:
            aside.update((row.id, *row.sources))
    aside -= kept
    rivals = max((score for id, score in scores.items() if id not in aside), default=0.0)
    best = max(answers, key=answers.__getitem__)
    if FAR * rivals > answers[best]:
        return offered
    floor = CLOSE * rivals
    about = {version for row in saying for version in _naming(field, _terms(row, "value"))}
    close = {entry.version for one in offered.past if one.score >= floor for entry in one.unit.entries}
    naming = _holding(field, weights, close, least)
    naming.update(field.document(place) + 1 for place in ranking.raised)
    reason = (
        f"v{rows[best].version} says what was asked; a score below {floor:.2f}, or another address, is noise"
    )
    past: list[Candidate] = []
    noise: list[Choice] = []
    for one in offered.past:
        entries = one.unit.entries
        ids = [entry.id for entry in entries]
        keep = not kept.isdisjoint(ids) or any(_among(entry, about, field) for entry in entries)
        if not keep and one.score >= floor and aside.isdisjoint(ids):
            keep = any(_among(entry, naming, field) or not _is(field, entry) for entry in entries)
        if keep:
            past.append(one)
        else:
            noise.append(Choice(one, False, "noise", reason))
    return replace(offered, past=past, rejected=[*offered.rejected, *noise], says=True)


def says(fact: Entry, query: Sequence[int]) -> bool:
    """Whether a fact is the one answer to what was asked.

    Its address holds one value at a time, and the query names half of its attribute at least, or nothing beyond the
    fact. Who names the value asks for something else.
    """
    if fact.data.get("cardinality") != "one":
        return False
    asked = _asked(query)
    attribute = _terms(fact, "attribute")
    value = _terms(fact, "value") - attribute - _terms(fact, "subject")
    if value and value <= asked:
        return False
    held = asked & _held(fact)
    named_by_half = bool(attribute) and 2 * len(attribute & asked) >= len(attribute)
    if attribute & NAME and fact.data.get("subject") != SELF and asked.isdisjoint(_terms(fact, "subject")):
        return False  # everything has a name
    enough = ASKED + (attribute <= asked)
    return held == asked or (named_by_half and enough * len(held) >= len(asked))


def _asked(query: Sequence[int]) -> set[int]:
    """Return the terms of a query that name what is asked for; all when none does. What is called asks for a name."""
    asked = set(query)
    return asked - ASKING | (NAME if asked & CALLED else set()) or asked


def _held(fact: Entry) -> set[int]:
    return set(terms(words(f"{fact.content} {named(fact)}")))


def _alone(fact: Entry) -> bool:
    return fact.data.get("cardinality") == "one" and bool(fact.data.get("attribute"))


def _naming(field: Field, value: set[int]) -> set[int]:
    """Return the versions of the entries that hold all terms of a value."""
    found: set[int] | None = None
    for number in value:
        held = set(field.documents(field.postings(number)[0]).tolist())
        found = held if found is None else found & held
    return {document + 1 for document in found or ()}


def _weights(ranking: Ranking, asked: set[int]) -> dict[int, float]:
    """Return how rare each of some terms is among the entries that were ranked."""
    size = len(ranking.field)
    often = {number: ranking.often.get(number, 0) for number in sorted(asked)}
    return {number: rarity(size, count) for number, count in often.items()}


def _holding(field: Field, weights: Mapping[int, float], versions: Collection[int], least: float) -> set[int]:
    """Return which of some entries of a log hold that much of what was asked, or more."""
    found = [(place, version) for version in versions if (place := _place(field, version)) >= 0]
    places = np.array([place for place, _ in found], np.int64)
    held = np.zeros(len(found))
    for number, weight in weights.items():
        those = field.postings(number)[0]
        held += weight * (those.searchsorted(places) < those.searchsorted(places + 1))
    return {version for (_, version), much in zip(found, held.tolist(), strict=True) if much >= least}


def _place(field: Field, version: int) -> int:
    return field.place_of(version - 1) if version <= field.snapshot.count else -1


def _among(entry: Entry | Doc, versions: Collection[int], field: Field) -> bool:
    return entry.version in versions and _is(field, entry)


def _is(field: Field, entry: Entry | Doc) -> bool:
    """Whether an entry is of a log, and not of another one at the same version."""
    snapshot = field.snapshot
    return entry.version <= snapshot.count and snapshot.doc(entry.version - 1).id == entry.id


def _terms(fact: Entry, name: str) -> set[int]:
    return set(terms(words(str(fact.data.get(name, "")))))


def _best_first(one: Candidate) -> tuple[float, int]:
    return -one.score, one.unit.version


def _id(one: Candidate) -> str:
    return one.unit.entries[0].id
