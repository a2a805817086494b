"""Later statements: for what answers best, the later entry about the same subject, whatever words announce it.

No cue word is looked for, so it holds in every language. Two entries are about the same subject when they are alike in
their rare words (the cosine of their tf-idf vectors, binary term counts) and, where there are vectors, in meaning. The
later one is of the same speaker, or of either side where only roles are known, in another episode, says it in other
words, and is no more like anything else that was said before it.
It is shown with the earlier one and linked to it: "later, same subject". It is called no correction, and it replaces
nothing: only an edit, an explicit id and the address of a fact do (decision 0056).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

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
    best = [place for place in ranking.places[:LOOKED].tolist() if ranking.relevance(place) > 0]
    # What says just what is asked is asked about, or is the question itself, asked before: it takes no other's turn.
    said = [field.snapshot.terms_of(field.document(place))[0] for place in best]
    asked = [
        place for place, terms in zip(best, said, strict=True) if not _states(field, ranking, place, terms)
    ]
    leaders = [*asked[:LEADERS], *[place for place in best if place not in asked][:LEADERS]]
    return [one for place in leaders if (one := _after(field, ranking, place)) is not None]


def above_facts(ranking: Ranking, known: Known) -> None:
    """Let what came after the best facts of a log, or after what they come from, stand above them and be named by them.

    So a newer message outranks an older fact, until a reflection replaces it.
    """
    field = ranking.field
    best = sorted(range(len(known.relevance)), key=lambda place: (-known.score(place, 0.0), place))[:LEADERS]
    for place in best:
        document = known.field.document(place)
        if known.relevance[place] > 0:
            later = _after_source(field, ranking, known, document)
            if later is None:  # by versions: an edit stands where its message did
                external = known.doc(place).external
                places = _credible(field, field.later_than(document), external=external)
                later = _nearest(field, ranking, document, places, np.arange(len(field)))
            if later is not None:
                known.later[place] = field.document(later) + 1
                ranking.lift(later, known.relevance[place], known.worth(place) + ABOVE)


def _after_source(field: Field, ranking: Ranking, known: Known, document: int) -> int | None:
    """Return the place of the later statement about what a fact comes from; it was written when all was said."""
    period = known.when.times.get(document + 1)
    source = None if period is None else field.snapshot.find(period.source)
    place = -1 if source is None else field.place_of(source)
    later = None if place < 0 else _after(field, ranking, place)
    return None if later is None else later.place


def _after(field: Field, ranking: Ranking, place: int) -> Later | None:
    """Return the later statement about what one entry says; None without one."""
    snapshot = field.snapshot
    document = field.document(place)
    if not snapshot.alone(document) or field.column("length")[place] > STATEMENT:
        return None
    doc = snapshot.doc(document)
    codes, labels = field.labels
    same = np.array([_speaks_too(doc, label.actor, label.role is None) for label in labels], bool)
    same = same[codes.astype(np.int64)]
    places = _credible(field, field.following(place), external=doc.external)
    same &= field.column("episode") != doc.episode
    there = same[places] & (field.column("minute")[places] >= field.column("minute")[place])
    later = _nearest(field, ranking, document, places[there], np.flatnonzero(same))
    return None if later is None else Later(later, place)


def _credible(field: Field, places: Ints, *, external: bool) -> Ints:
    """Return the places whose entries may speak for an earlier one: external text only for external text."""
    return places if external or field.external is None else places[~field.external[places]]


def _speaks_too(doc: Doc, actor: str | None, summary: bool) -> bool:
    """Whether a later entry is of the same speaker, or of either side where only roles are known."""
    return not summary and actor == doc.actor


def _nearest(field: Field, ranking: Ranking, document: int, places: Ints, others: Ints) -> int | None:
    """Return the place of the newest of the later entries that are most alike; None where none is alike enough.

    Nor where it is more like what any of the others said before it in another episode: then it speaks of that.
    """
    places, alike = _likeness(field, ranking, document, places)
    says = field.snapshot.terms_of(document)[0]
    new = np.array([not _repeats(field, says, one) for one in places.tolist()], bool)
    places, alike = places[new], alike[new]
    least = max(ALIKE if ranking.space is None else ALIKE_BOTH, NEARLY * float(alike.max(initial=0.0)))
    about = places[alike >= least]
    others = others[~np.isin(others, np.append(about, field.place_of(document)))]
    episodes = field.column("episode")
    while len(about):
        place = field.latest(about)
        before = np.ones(len(field), bool)
        before[field.following(place)] = False
        rivals = others[before[others] & (episodes[others] != episodes[place])]
        rival = _likeness(field, ranking, field.document(place), rivals)[1].max(initial=0.0)
        if alike[places == place].item() >= NEARLY * float(rival):
            return place
        about = about[about != place]
    return None


def _likeness(field: Field, ranking: Ranking, document: int, places: Ints) -> tuple[Ints, Floats]:
    """Return those of some entries that may be most like one, ascending, and how alike they are."""
    places = places[field.column("length")[places] <= STATEMENT]
    numbers, _ = field.snapshot.terms_of(document)
    rare = _subjects(field, numbers)
    shared = np.zeros(len(field), np.float32)
    for number, weight in zip(numbers.tolist(), (rare * rare).tolist(), strict=True):
        shared[field.postings(number)[0]] += np.float32(weight)
    likely = places[largest(shared[places], LOOKED)]
    if ranking.space is not None:
        likely = np.union1d(likely, ranking.places[np.isin(ranking.places, places)][:LOOKED])
    said = {one: field.snapshot.terms_of(field.document(one))[0] for one in likely.tolist()}
    said = {one: terms for one, terms in said.items() if _states(field, ranking, one, terms)}
    likely = np.array(list(said), np.int64)
    return likely, _cosines(field, ranking, document, shared[likely], likely, [numbers, *said.values()])


def _states(field: Field, ranking: Ranking, place: int, said: NDArray[np.uint32]) -> bool:
    """Whether an entry is no part of a tool group and not the question itself."""
    asks = len(said) == len(ranking.itself) and ranking.itself.issuperset(said.tolist())
    return not asks and field.snapshot.alone(field.document(place))


def _repeats(field: Field, says: NDArray[np.uint32], place: int) -> bool:
    """Whether an entry says word for word what another one says: that changes nothing."""
    other = field.snapshot.terms_of(field.document(place))[0]
    return len(says) == len(other) and bool((says == other).all())


def _subjects(field: Field, terms: NDArray[np.uint32]) -> Floats:
    """Return what some terms tell of a subject: how rare they are; a number by itself tells nothing."""
    numbers = _numbers()
    told = numbers[np.minimum(numbers.searchsorted(terms), len(numbers) - 1)] == terms
    return np.where(told, np.float32(0), field.rarities(terms))


@cache
def _numbers() -> NDArray[np.uint32]:
    """Return the terms of numbers, ascending: `np.isin` would put them in order each time."""
    return np.array(sorted(term(str(number)) for number in range(NUMBERS)), np.uint32)


def _cosines(
    field: Field,
    ranking: Ranking,
    document: int,
    shared: Floats,
    places: Ints,
    said: Sequence[NDArray[np.uint32]],
) -> Floats:
    """Return how alike one entry and some others are, in words and, where they have vectors, in meaning.

    `shared` is what the words that each has in common with the one tell, `said` are the terms of the one and of each.
    """
    squares = _subjects(field, np.concatenate(said)) ** 2
    norms = np.bincount(np.repeat(np.arange(len(said)), list(map(len, said))), squares, len(said))
    alike = shared / np.sqrt(np.maximum(norms[1:] * norms[0], 1e-6))
    if ranking.space is not None and len(places):
        documents = np.append(field.documents(places), document)
        rows = wholes(field, ranking.space, ranking.dimension, documents)
        alike = alike + rows[:-1] @ rows[-1]
    return np.asarray(alike, np.float32)
