"""Later statements: for what answers best, the later entry about the same subject, whatever words announce it.

No cue word is looked for, so it holds in every language. Two entries are about the same subject when they are alike in
their rare words (the cosine of their tf-idf vectors, binary term counts) and, where there are vectors, in meaning. The
later one is of the same speaker, or of either side where only roles are known, and in another episode.
It is shown with the earlier one and linked to it: "later, same subject". It is called no correction, and it replaces
nothing: only an edit, an explicit id and the address of a fact do (decision 0056).
"""

from __future__ import annotations

from functools import cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from acms.log.in_force import Doc
from acms.recall.corpus import Field
from acms.recall.fact_candidates import Known
from acms.recall.index import Floats, Ints
from acms.recall.rank import ABOVE, Later, Ranking, largest, wholes
from acms.text.tokenizer import term

LEADERS = 3
"""Best entries for which a later statement is looked for."""
LOOKED = 24
"""Later entries that share the rarest words, which are compared whole."""
ALIKE = 0.12
"""Least cosine of the words of two entries about the same subject."""
ALIKE_BOTH = 0.75
"""The same of the sum of the cosines of their words and of their vectors."""
NEARLY = 0.9
"""Share of the greatest likeness that is as good: what was changed twice is followed to its end."""
NUMBERS = 3_000
"""Numbers below this are told from words: amounts, days and years."""
STATEMENT = 48
"""Terms of a statement, at most: a longer text tells of many subjects."""


def later_statements(field: Field, ranking: Ranking) -> list[Later]:
    """Return the later statements about what the best entries say."""
    best = (place for place in ranking.places[:LOOKED].tolist() if _states(field, ranking, place))
    leaders = [place for place in islice(best, LEADERS) if ranking.relevance(place) > 0]
    return [one for place in leaders if (one := _after(field, ranking, place)) is not None]


def above_facts(ranking: Ranking, known: Known) -> None:
    """Let the messages stand above the best facts of a log that came after these and speak of the same subject.

    So a newer message outranks an older fact until the next reflection has read it.
    """
    field = ranking.field
    best = sorted(range(len(known.relevance)), key=lambda place: (-known.score(place, 0.0), place))[:LEADERS]
    for place in best:
        document = known.field.document(place)
        if known.relevance[place] > 0:
            # By versions: an edit stands where its message did.
            later = _nearest(field, ranking, document, field.later_than(document))
            if later is not None:
                known.later[place] = field.document(later) + 1
                ranking.lift(later, known.relevance[place], known.worth(place) + ABOVE)


def _after(field: Field, ranking: Ranking, place: int) -> Later | None:
    """Return the later statement about what one entry says; None without one."""
    snapshot = field.snapshot
    document = field.document(place)
    if not snapshot.alone(document) or field.column("length")[place] > STATEMENT:
        return None
    doc = snapshot.doc(document)
    codes, labels = field.labels
    same = np.array([_speaks_too(doc, label.actor, label.role is None) for label in labels], bool)
    places = field.following(place)
    there = same[codes[places].astype(np.int64)]
    there &= field.column("episode")[places] != doc.episode
    later = _nearest(field, ranking, document, places[there])
    return None if later is None else Later(later, place)


def _speaks_too(doc: Doc, actor: str | None, summary: bool) -> bool:
    """Whether a later entry is of the same speaker, or of either side where only roles are known."""
    return not summary and actor == doc.actor


def _nearest(field: Field, ranking: Ranking, document: int, places: Ints) -> int | None:
    """Return the place of the newest of the later entries that are most alike; None where none is alike enough."""
    if not len(places):
        return None
    places = places[field.column("length")[places] <= STATEMENT]
    numbers, _ = field.snapshot.terms_of(document)
    rare = _subjects(field, numbers)
    shared = np.zeros(len(field), np.float32)
    for number, weight in zip(numbers.tolist(), (rare * rare).tolist(), strict=True):
        shared[field.postings(number)[0]] += np.float32(weight)
    likely = places[largest(shared[places], LOOKED)]
    if ranking.space is not None:
        likely = np.union1d(likely, ranking.places[np.isin(ranking.places, places)][:LOOKED])
    likely = np.array([one for one in likely.tolist() if _states(field, ranking, one)], np.int64)
    if not len(likely):
        return None
    alike = _cosines(field, ranking, document, shared, likely)
    least = max(ALIKE if ranking.space is None else ALIKE_BOTH, NEARLY * float(alike.max()))
    about = likely[alike >= least]
    return field.latest(about) if len(about) else None


def _states(field: Field, ranking: Ranking, place: int) -> bool:
    """Whether an entry is no part of a tool group and says more than what is asked: the question itself does not."""
    document = field.document(place)
    said = field.snapshot.terms_of(document)[0].tolist()
    return field.snapshot.alone(document) and not ranking.itself.issuperset(said)


def _subjects(field: Field, terms: NDArray[np.uint32]) -> Floats:
    """Return what some terms tell of a subject: how rare they are; a number by itself tells nothing."""
    numbers = _numbers()
    told = numbers[np.minimum(numbers.searchsorted(terms), len(numbers) - 1)] == terms
    return np.where(told, np.float32(0), field.rarities(terms))


@cache
def _numbers() -> NDArray[np.uint32]:
    """Return the terms of numbers, ascending: `np.isin` would put them in order each time."""
    return np.array(sorted(term(str(number)) for number in range(NUMBERS)), np.uint32)


def _cosines(field: Field, ranking: Ranking, document: int, shared: Floats, places: Ints) -> Floats:
    """Return how alike one entry and some others are, in words and, where they have vectors, in meaning."""
    documents = field.documents(places)
    said = [field.snapshot.terms_of(other)[0] for other in (document, *documents.tolist())]
    squares = _subjects(field, np.concatenate(said)) ** 2
    norms = np.bincount(np.repeat(np.arange(len(said)), list(map(len, said))), squares, len(said))
    alike = shared[places] / np.sqrt(np.maximum(norms[1:] * norms[0], 1e-6))
    if ranking.space is not None:
        rows = wholes(field, ranking.space, ranking.dimension, np.append(documents, document))
        alike = alike + rows[:-1] @ rows[-1]
    return np.asarray(alike, np.float32)
