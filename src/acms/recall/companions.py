"""Companions: what was said later about the best answers stands beside them, dated, and nothing is claimed of it.

No rule on free text tells a correction from another remark about the same subject: of 46 links read in natural chat
none was an update. So both are shown, in order of time, and the model judges. That something is superseded is said only
where structure proves it: an edit, a retraction, the address of a fact.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from acms.recall.corpus import K1, Field
from acms.recall.index import Floats
from acms.recall.ranking import Ranking, repeats_query
from acms.recall.scoring import SIGMA
from acms.recall.vector_score import largest, vectors_of
from acms.text.tokenizer import subjectless_terms

LEADERS = 3
"""Best statements for which companions are looked for."""
STATEMENT = 60
"""Words of a statement, at most: a longer text tells of many things."""
COMPARED = 64
"""Later statements whose vectors are compared with that of a leader, of those that share the rarest words."""


def add_companions(field: Field, ranking: Ranking) -> None:
    """Let the nearest later statements to the best ones be chosen with them.

    For each of the three best: the nearest one of the same speaker, and the nearest of all that are left.
    """
    statements = (field.column("length") <= STATEMENT) & (field.column("group") < 0)
    leaders: list[int] = []
    for place in ranking.places.tolist():
        if len(leaders) == LEADERS or ranking.scores.plain[place] <= 0:
            break
        if statements[place] and not repeats_query(field, ranking.query, place):
            leaders.append(place)
    if not leaders:
        return
    if ranking.allowed is not None:
        statements &= ranking.allowed
    nearness = _measure_nearness(field, leaders, statements)
    companions: dict[int, int] = {}
    for leader, values in zip(leaders, nearness, strict=True):
        if ranking.query.space is not None:
            values = _add_meaning(field, ranking, leader, values)
        for companion in _find_nearest(field, leader, values):
            companions.setdefault(companion, leader)
    ranking.accompany(companions)


def _find_nearest(field: Field, leader: int, nearness: Floats) -> list[int]:
    """Return the nearest statement of the speaker of one, and the nearest of all that are left."""
    codes, labels = field.labels
    own = labels[codes[leader]]
    same_speaker = np.array([(label.role, label.actor) == (own.role, own.actor) for label in labels], bool)
    found: list[int] = []
    for values in (np.where(same_speaker[codes], nearness, np.float32(0)), nearness):
        values[found] = 0
        best = int(values.argmax())
        if values[best] > 0:
            found.append(best)
    return found


def _measure_nearness(field: Field, leaders: Sequence[int], allowed: NDArray[np.bool_]) -> Floats:
    """Return a row for each leader: BM25 of what was said after it for its words as a query; 0 for its answer."""
    terms: list[int] = []
    rows: list[int] = []
    for row, leader in enumerate(leaders):
        numbers, _ = field.snapshot.terms_of(field.document(leader))
        own = [number for number in numbers.tolist() if number not in subjectless_terms()]
        terms += own
        rows += [row] * len(own)
    places, counts, at = field.postings_of_terms(terms)
    often = np.bincount(at, minlength=len(terms))
    rarities = np.log(1 + (len(field) - often + 0.5) / (often + 0.5)).astype(np.float32)
    later = np.zeros((len(leaders), len(field)), bool)
    for row, leader in enumerate(leaders):
        later[row, field.following(leader)] = True
        later[row, leader + 1 : leader + 2] = False
    cells = np.array(rows, np.int64)[at] * len(field) + places
    chosen = (later & allowed).ravel()[cells]
    cells, places, counts, at = cells[chosen], places[chosen], counts[chosen], at[chosen]
    gains = rarities[at] * np.float32(K1 + 1) * counts / (counts + field.norms[places])
    found = np.bincount(cells, gains, later.size).astype(np.float32)
    return found.reshape(later.shape)


def _add_meaning(field: Field, ranking: Ranking, leader: int, nearness: Floats) -> Floats:
    """Return nearness by words and by meaning, in standard deviations, of the likely companions; 0 for all others.

    Likely are those that share the rarest words with the statement, and those that answer the query best: what shares
    no word with the statement shares its subject.
    """
    likely = largest(nearness, COMPARED)
    likely = likely[nearness[likely] > 0]
    later = field.following(leader)
    best = ranking.places[np.isin(ranking.places, later)][:COMPARED]
    best = best[(field.column("length")[best] <= STATEMENT) & (field.column("group")[best] < 0)]
    likely = np.union1d(likely, best[best != leader + 1])
    assert ranking.query.space is not None
    assert ranking.query.vector is not None
    sample = np.unique(np.linspace(0, len(field) - 1, COMPARED).astype(np.int64))
    wanted = np.concatenate([[leader], likely, sample])
    rows = vectors_of(field, ranking.query.space, len(ranking.query.vector), field.documents(wanted))
    cosines = rows[1:] @ rows[0]
    usual = cosines[len(likely) :]
    deviations = (cosines[: len(likely)] - usual.mean()) / max(float(usual.std()), 1e-3)
    found = np.zeros_like(nearness)
    found[likely] = nearness[likely] + np.float32(SIGMA) * np.maximum(0, deviations)
    return found
