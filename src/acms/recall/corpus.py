"""Field: the entries in force that one reader sees, in reading order, measured as ranking needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acms.log.in_force import Cover, anchor
from acms.model import Entry, Kind, State
from acms.recall.index import Floats, Ints, Snapshot
from acms.text.index_record import EMPTY, EXTERNAL, REPLACES, Label

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEAR = 2
"""Entries before and after one that count as its neighbourhood."""
BELIEF = 10
"""Entries of usual length that a speaker is believed to have said beforehand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The constants of the ranking, one set for every log, chosen by `benchmarks/tune.py` (decision 0056)."""

    #: BM25 (Robertson and Zaragoza, 2009): how soon repeating a term stops counting, how much the length of a text
    #: does, and how many terms a text of usual length has.
    k: float = 0.3
    b: float = 0.75
    length: float = 20.0
    #: Exponent of the inverse document frequency: above 1 the words that are everywhere speak less.
    rarity: float = 1.25
    #: What the two entries before and after one say, each over its distance, against what it says itself
    #: (passage retrieval with context: Callan, 1994).
    near: float = 0.75
    #: Pseudo-relevance feedback (Rocchio, 1971; RM3): how many of the best entries lend how many of their terms, and
    #: what such a term weighs against one that was asked.
    feedback: float = 0.35
    lenders: int = 16
    #: Factor of what the speaker says whom the query names, unless it names all.
    named: float = 1.5
    #: Exponent of an entry's tokens, which it costs in a budget (cost-scaled greedy choice: Lin and Bilmes, 2010).
    price: float = 0.3
    #: Share of meaning in a fused score (convex combination of normalised scores: Bruch et al., 2023).
    meaning: float = 0.5


WEIGHTS = Weights()
"""Those of every log."""


class Field:
    """The messages and summaries in force at the end of a snapshot, in the order in which they are read."""

    #: What of a log belongs to it.
    kind = Kind.MESSAGE

    def __init__(
        self,
        snapshot: Snapshot,
        cover: Cover,
        weights: Weights = WEIGHTS,
        *,
        order: Ints | None = None,
        facts: Ints | None = None,
        start: int = 0,
    ) -> None:
        """Take what a reader sees; of several logs also what is in force in `order`, and which `facts` are.

        The log that is asked begins at the place `start` then: it is the last one.
        """
        self.start = start
        self._facts = facts
        self.snapshot = snapshot
        self.weights = weights
        self.cover = cover
        #: Documents in reading order, and the place of each document in it, -1 for what is not in force; None when
        #: the log holds plain messages only and all are in force, in order.
        self.order: Ints | None = None
        self.place: Ints | None = None
        self._size = snapshot.count
        if order is not None:
            self._keep(order)
        elif cover or snapshot.odd():
            self._keep(reading_order(*present(snapshot, self.kind), cover, self.kind))

    def _keep(self, order: Ints) -> None:
        self.order = order
        self.place = np.full(self.snapshot.count, -1, np.int64)
        self.place[order] = np.arange(len(order))
        self._size = len(order)

    def __len__(self) -> int:
        return self._size

    def column(self, name: str) -> NDArray[Any]:
        """Return a field of the entries in force."""
        found = self.snapshot.column(name)
        return found if self.order is None else found[self.order]

    def document(self, place: int) -> int:
        """Return the document at a place."""
        return place if self.order is None else int(self.order[place])

    def place_of(self, document: int) -> int:
        """Return the place of a document; -1 when it is not in force."""
        return document if self.place is None else int(self.place[document])

    def marked(self) -> NDArray[np.bool_] | None:
        """Return which entries carry markers; None when none does."""
        by_label = self._marks
        return None if by_label is None else by_label[self.labels[0]]

    def carrying(self, marker: str) -> Ints:
        """Return the places of the entries that carry a marker."""
        codes, labels = self.labels
        return np.flatnonzero(
            np.fromiter((marker in label.markers for label in labels), bool, len(labels))[codes]
        )

    @cached_property
    def _marks(self) -> NDArray[np.bool_] | None:
        labels = self.labels[1]
        by_label = np.fromiter((bool(label.markers) for label in labels), bool, len(labels))
        return by_label if by_label.any() else None

    def documents(self, places: Ints) -> Ints:
        """Return the documents at some places."""
        return places if self.order is None else self.order[places]

    @cached_property
    def labels(self) -> tuple[NDArray[Any], list[Label]]:
        """Return the label of every entry in force as an index into a list."""
        codes, labels = self.snapshot.labels()
        return codes if self.order is None else codes[self.order], labels

    @cached_property
    def external(self) -> NDArray[np.bool_] | None:
        """Return which entries are external text, or were made from some; None if there are none."""
        found = (self.column("flags") & EXTERNAL) != 0
        return found if found.any() else None

    @cached_property
    def texts(self) -> int:
        """Return how many entries have content."""
        return int(np.count_nonzero((self.column("flags") & EMPTY) == 0))

    @cached_property
    def tokens(self) -> float:
        """Return how many tokens an entry has on average."""
        return float(self.column("tokens").mean()) if len(self) else 0.0

    @cached_property
    def newest(self) -> datetime | None:
        """Return when the newest entry was said, by its own time; None when there is none."""
        minutes = self.column("minute")
        return _EPOCH + int(minutes.max()) * timedelta(minutes=1) if len(minutes) else None

    @cached_property
    def days(self) -> tuple[int, ...]:
        """Return the first and the last day on which something was said, counted from 1970; none for nothing."""
        days = self.column("minute") // (24 * 60)
        return (int(days.min()), int(days.max())) if len(days) else ()

    @cached_property
    def facts(self) -> Facts | None:
        """Return the facts of the same logs that nothing replaced; None when they never held any."""
        if self._facts is not None:
            facts = Facts(self.snapshot, self.cover, self.weights, order=self._facts)
            return facts if len(self._facts) else None
        if not self.snapshot.odd() or all(label.kind is not Kind.FACT for label in self.snapshot.labels()[1]):
            return None
        return Facts(self.snapshot, self.cover, weights=self.weights)

    @cached_property
    def norms(self) -> Floats:
        """Return the length of every entry as BM25 normalises it: 1 for one of `Weights.length` terms."""
        weights = self.weights
        length: Floats = self.column("length")
        return np.asarray(
            np.float32(1 - weights.b) + (length + 1) * np.float32(weights.b / weights.length), np.float32
        )

    @cached_property
    def prices(self) -> Floats:
        """Return a factor for every entry: tokens cost, and who says little at a time says more with it."""
        tokens = np.maximum(self.column("tokens"), 1).astype(np.float32)
        codes, labels = self.labels
        return np.asarray(
            (tokens / np.float32(self.weights.length)) ** np.float32(-self.weights.price)
            * self._terseness(labels)[codes],
            np.float32,
        )

    def named(self, speakers: frozenset[str]) -> Floats:
        """Return a factor for every entry: whether one of some speakers said it; one factor for all without any."""
        if not speakers:
            return np.ones(1, np.float32)
        codes, labels = self.labels
        by_label = [self.weights.named if label.actor in speakers else 1.0 for label in labels]
        return np.array(by_label, np.float32)[codes]

    def _terseness(self, labels: Sequence[Label]) -> Floats:
        """Return for each label the mean length of all entries over that of its speaker's."""
        speakers: dict[str, int] = {}
        of = np.array(
            [speakers.setdefault(label.actor or str(label.role), len(speakers)) for label in labels], np.int64
        )
        if len(speakers) < 2 or not len(self):
            return np.ones(len(labels), np.float32)
        codes = of[self.labels[0].astype(np.int64)]
        total = np.bincount(codes, self.column("length"), len(speakers))
        count = np.bincount(codes, minlength=len(speakers))
        mean = max(float(total.sum()) / len(self), 1e-6)
        return (mean * (count + BELIEF) / (total + BELIEF * mean)).astype(np.float32)[of]

    def following(self, place: int) -> Ints:
        """Return the places of what is read after an entry; in other logs, of what was said later."""
        places = np.arange(len(self))
        if self.snapshot.logs is None:
            return places[place + 1 :]
        return np.flatnonzero(self._later(self.document(place), places > place))

    def later_than(self, document: int) -> Ints:
        """Return the places of what was said after a document, which may be a fact."""
        return np.flatnonzero(self._later(document, self.documents(np.arange(len(self))) > document))

    def _later(self, document: int, after: NDArray[np.bool_]) -> NDArray[np.bool_]:
        logs = self.snapshot.logs
        if logs is None:
            return after
        minutes = self.column("minute")
        same = logs[self.documents(np.arange(len(self)))] == logs[document]
        return np.where(same, after, minutes > self.snapshot.column("minute")[document])

    def latest(self, places: Ints) -> int:
        """Return which of some places was said last."""
        if self.snapshot.logs is None:
            return int(places.max())
        return int(places[np.lexsort((places, self.column("minute")[places]))[-1]])

    @cached_property
    def speakers(self) -> frozenset[str]:
        """Return who speaks, where that is known."""
        return frozenset(label.actor for label in self.labels[1] if label.actor is not None)

    def rarities(self, numbers: NDArray[np.uint32]) -> Floats:
        """Return the inverse document frequency of some terms among all that the log holds."""
        often = self.snapshot.often(numbers)
        return np.log(1 + (self.snapshot.count - often + 0.5) / (often + 0.5)).astype(np.float32)

    def postings(self, term: int) -> tuple[Ints, Floats]:
        """Return the places of the entries that hold a term, and how often."""
        found = self.snapshot.postings(term)
        places = (found >> np.uint32(8)).astype(np.int64)
        counts = (found & np.uint32(255)).astype(np.float32)
        if self.place is None:
            return places, counts
        places = self.place[places]
        there = places >= 0
        return places[there], counts[there]


def present(snapshot: Snapshot, kind: Kind) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which documents have content, and which of them are of a kind and no edits."""
    codes, labels = snapshot.labels()
    there = snapshot.column("nonce") != b""
    for _, segment, count in snapshot.pieces:
        there[[segment.base + document for document in segment.blanked if document < count]] = False
    kept = there if kind is Kind.FACT else there & ((snapshot.column("flags") & REPLACES) == 0)
    if len(labels):
        kept = kept & np.fromiter((label.kind is kind for label in labels), bool, len(labels))[codes]
    return there, kept


def reading_order(
    there: NDArray[np.bool_], kept: NDArray[np.bool_], cover: Cover, kind: Kind, base: int = 0
) -> Ints:
    """Return which entries of a log are in force, as they are read: by their places above the version `base`.

    `there` have content, and those `kept` are of the kind: messages, among which edits and summaries are read in the
    places of what they replace, or facts.
    """
    kept = kept.copy()
    for first, last in cover.spans():
        kept[max(0, first - 1 - base) : max(0, last - base)] = False
    placed: list[Entry] = []
    if kind is Kind.MESSAGE:
        placed = [
            entry
            for entry in cover.shown
            if base < entry.version <= base + len(there)
            and entry.state is State.LIVE
            and there[entry.version - 1 - base]
        ]
    kept[[entry.version - 1 - base for entry in placed]] = True
    order = np.flatnonzero(kept)
    if placed:
        anchors = order + 1 + base
        for entry in placed:
            anchors[np.searchsorted(order, entry.version - 1 - base)] = anchor(entry)
        order = order[np.lexsort((order, anchors))]
    return order


class Facts(Field):
    """The facts at the end of a snapshot that nothing puts out of force, oldest first."""

    kind = Kind.FACT


def around(values: Floats) -> Floats:
    """Return the sum of each value and of those before and after it, each over its distance."""
    summed = values.copy()
    for shift in range(1, NEAR + 1):
        part = values * np.float32(1 / shift)
        summed[shift:] += part[:-shift]
        summed[:-shift] += part[shift:]
    return summed
