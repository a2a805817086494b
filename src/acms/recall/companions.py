"""Companions: what was said later about the best answers stands beside them, dated, and nothing is claimed of it.

No rule on free text tells a correction from another remark about the same subject: of 46 links read in natural chat
none was an update. So both are shown, in order of time, and the model judges. That something is superseded is said only
where structure proves it: an edit, a retraction, the address of a fact.
"""

from __future__ import annotations

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
    leaders: list[int] = []
    for place in ranking.places.tolist():
        if len(leaders) == LEADERS or ranking.scores.plain[place] <= 0:
            break
        if _is_statement(field, place) and not repeats_query(field, ranking.query, place):
            leaders.append(place)
    for leader in leaders:
        for companion in _find_companions(field, ranking, leader):
            ranking.accompany(companion, leader)


def _is_statement(field: Field, place: int) -> bool:
    """Whether an entry is short and belongs to no tool group."""
    return bool(field.column("length")[place] <= STATEMENT) and field.snapshot.alone(field.document(place))


def _find_companions(field: Field, ranking: Ranking, leader: int) -> list[int]:
    """Return the later statements that are nearest to one, by words and by meaning."""
    nearness = _measure_nearness(field, leader, _may_accompany(field, ranking, leader))
    if ranking.query.space is not None:
        nearness = _add_meaning(field, ranking, leader, nearness)
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


def _may_accompany(field: Field, ranking: Ranking, leader: int) -> NDArray[np.bool_]:
    """Return which entries are short statements of the same log said after another one, its answer left out."""
    allowed = field.column("length") <= STATEMENT
    allowed &= field.column("group") < 0
    later = np.zeros(len(field), bool)
    later[field.following(leader)] = True
    later[leader + 1 : leader + 2] = False
    allowed &= later
    return allowed if ranking.allowed is None else allowed & ranking.allowed


def _measure_nearness(field: Field, leader: int, allowed: NDArray[np.bool_]) -> Floats:
    """Return BM25 of every entry that is allowed for the words of one as a query; 0 for all others."""
    said, _ = field.snapshot.terms_of(field.document(leader))
    terms = [number for number in said.tolist() if number not in subjectless_terms()]
    postings = [field.postings(number) for number in terms]
    often = np.array([len(places) for places, _ in postings], np.int64)
    rarities = np.log(1 + (len(field) - often + 0.5) / (often + 0.5)).astype(np.float32)
    places = np.concatenate([np.zeros(0, np.int64), *(places for places, _ in postings)])
    counts = np.concatenate([np.zeros(0, np.float32), *(counts for _, counts in postings)])
    weights = np.repeat(rarities, often)
    chosen = allowed[places]
    places, counts, weights = places[chosen], counts[chosen], weights[chosen]
    gains = weights * np.float32(K1 + 1) * counts / (counts + field.norms[places])
    return np.bincount(places, gains, len(field)).astype(np.float32)


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
