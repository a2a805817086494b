"""Field: the entries in force that one reader sees, in reading order, measured as ranking by words needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acms.log.in_force import Cover, anchor
from acms.model import Entry, Kind, Role, State
from acms.recall.index import DAY, Snapshot
from acms.recall.vectors import Floats, Ints, Sums
from acms.recall.weights import WEIGHTS, Weights
from acms.text.index_record import ADDRESSED, EMPTY, ONE, QUESTION, REPLACES, TIMED, Label

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BEFORE, AFTER = 2, 1
"""Entries before and after one that count as its neighbourhood."""
FACTORS = 8
"""Factors that are kept: of two who talk, one is named, or none, and a time is asked for or not."""
LONGEST = 1024
"""Terms of an entry from which it counts as so long."""


class Sample(NamedTuple):
    """What the vectors of one space say on average: their sum, and entries that stand for all."""

    #: Of the first vectors of all entries, and how many these are.
    total: Sums
    known: int
    #: Entries, evenly spread; none where each has one vector, for then the sum says it all.
    places: Ints
    #: Of each segment: which of them have vectors there, these vectors, and where those of each begin.
    held: tuple[tuple[Ints, Floats, Ints], ...]


class Field:
    """The messages and summaries in force at the end of a snapshot, in the order in which they are read."""

    #: What of a log belongs to it.
    kind = Kind.MESSAGE

    def __init__(
        self, snapshot: Snapshot, cover: Cover, before: Field | None = None, weights: Weights = WEIGHTS
    ) -> None:
        """Take what a reader sees; `before` is a field of the same log at an earlier version, to go on from."""
        self.snapshot = snapshot
        self.weights = weights
        self.cover = cover
        #: Documents in reading order, and the place of each document in it, -1 for what is not in force; None when
        #: the log holds plain messages only and all are in force, in order.
        self.order: Ints | None = None
        self.place: Ints | None = None
        self._size = snapshot.count
        if cover or snapshot.odd():
            self._arrange()
        self._factors: dict[tuple[frozenset[str], bool, bool], Floats] = {}
        self._sampled: dict[tuple[str, int], Sample] = {}
        self._before: Measures | None = None
        if (
            before is not None
            and self.order is None
            and before.order is None
            and len(before) <= len(self)
            and before.weights == weights
        ):
            self._before = before.__dict__.get("measures")

    def _arrange(self) -> None:
        snapshot, cover = self.snapshot, self.cover
        codes, labels = snapshot.labels()
        of_kind = np.fromiter((label.kind is self.kind for label in labels), bool, len(labels))
        there = snapshot.column("nonce") != b""
        for _, segment, count in snapshot.pieces:
            there[[segment.base + document for document in segment.blanked if document < count]] = False
        kept = there if self.kind is Kind.FACT else there & ((snapshot.column("flags") & REPLACES) == 0)
        if len(labels):
            kept &= of_kind[codes]
        for first, last in cover.spans():
            kept[first - 1 : last] = False
        placed: list[Entry] = []
        if self.kind is Kind.MESSAGE:
            placed = [
                entry
                for entry in cover.shown
                if entry.version <= snapshot.count and entry.state is State.LIVE and there[entry.version - 1]
            ]
        kept[[entry.version - 1 for entry in placed]] = True
        order = np.flatnonzero(kept)
        if placed:
            anchors = order + 1
            for entry in placed:
                anchors[np.searchsorted(order, entry.version - 1)] = anchor(entry)
            order = order[np.lexsort((order, anchors))]
        self._keep(order)

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
    def facts(self) -> Facts | None:
        """Return the facts in force of the same log; None when it never held any."""
        if not self.snapshot.odd() or all(label.kind is not Kind.FACT for label in self.snapshot.labels()[1]):
            return None
        return Facts(self.snapshot, self.cover, weights=self.weights)

    @cached_property
    def measures(self) -> Measures:
        """Return what weighing words needs of the entries in force, whatever is asked."""
        found = None if self._before is None else self._before.grown(self)
        self._before = None
        return found or Measures.of(self)

    @cached_property
    def few(self) -> Ints:
        """Return the places of the entries that have a few terms only."""
        return np.flatnonzero(self.column("length") <= self.weights.few)

    @cached_property
    def speakers(self) -> frozenset[str]:
        """Return who speaks, where that is known."""
        return frozenset(label.actor for label in self.labels[1] if label.actor is not None)

    def factor(self, named: frozenset[str], dated: bool, replies: bool = False) -> Floats:
        """Return a factor for every entry: of its speaker's terseness, of that one being named, and of what it is.

        `dated` says that a time is asked for, `replies` that what the assistant said is: then it is as good as what the
        tersest one said. One factor stands for all when they are equal.
        """
        key = (named, dated, replies)
        found = self._factors.get(key)
        if found is None:
            by_label = self.measures.terse
            labels = self.labels[1]
            if named:
                by_label = by_label * np.array(
                    [self.weights.named if label.actor in named else 1.0 for label in labels], np.float32
                )
            if replies and len(by_label):
                theirs = np.array([label.role is Role.ASSISTANT and label.actor is None for label in labels])
                by_label = np.where(theirs, by_label.max(), by_label)
            if not len(by_label):
                by_label = np.ones(1, np.float32)
            found = by_label[:1] if (by_label == by_label[0]).all() else by_label.take(self.measures.said)
            flagged = self._asking_when if dated else self._asking
            if flagged is not None:
                found = found * flagged
            if (long := self._by_length) is not None:
                found = found * long
            if len(self._factors) < FACTORS:
                self._factors = {**self._factors, key: found}  # recalls in threads read it beside each other
        return found

    @cached_property
    def _by_length(self) -> Floats | None:
        """Return the factor of every entry's length; None when all are short."""
        length: Floats = self.column("length")
        full = self.weights.length
        if not len(length) or length.max() <= full:
            return None
        factors = (full / np.maximum(np.arange(LONGEST + 1), full)) ** self.weights.long
        return factors.astype(np.float32).take(np.minimum(length, LONGEST).astype(np.int64))

    @cached_property
    def _asking(self) -> Floats | None:
        return self._flagged(ADDRESSED | QUESTION)

    @cached_property
    def _asking_when(self) -> Floats | None:
        return self._flagged(ADDRESSED | QUESTION | TIMED)

    def _flagged(self, of_interest: int) -> Floats | None:
        """Return a factor for every entry by some of its flags; None when no entry has any of them."""
        flags = self.column("flags") & of_interest
        if not flags.any():
            return None
        weights = self.weights
        factors = {ADDRESSED: weights.addressed, QUESTION: weights.asking, TIMED: weights.timed}
        found = np.ones(256, np.float32)
        for flag, factor in factors.items():
            found[(np.arange(256) & flag) > 0] *= np.float32(factor)
        return found.take(flags)

    def sampled(self, space: str, dimension: int, draw: Callable[[], Sample]) -> Sample:
        """Return the sample of a space, drawn once: its vectors lie far apart, and to collect them takes long."""
        found = self._sampled.get((space, dimension))
        if found is None:
            found = draw()
            self._sampled = {(space, dimension): found}  # as above
        return found

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


class Facts(Field):
    """The facts in force at the end of a snapshot, oldest first."""

    kind = Kind.FACT

    def _keep(self, order: Ints) -> None:
        """Keep of the facts at one address only the newest where one of them says that it holds one value at a time."""
        at: dict[str, list[tuple[int, bool]]] = {}
        for document in order.tolist():
            address = self.snapshot.doc(document).group
            if address is not None:
                at.setdefault(address[1:], []).append((document, address[0] == ONE))
        older = [
            document
            for found in at.values()
            if len(found) > 1 and any(alone for _, alone in found)
            for document, _ in found[:-1]
        ]
        super()._keep(order[~np.isin(order, older)] if older else order)


class Measures(NamedTuple):
    """What weighing words needs of the entries in force, whatever is asked."""

    #: What is added to the count of a term: of each message, each neighbourhood, each day.
    message: Floats
    window: Floats
    day: Floats
    #: Day of every entry, as an index into those of the days.
    codes: Ints
    #: 1 after a question, else 0.
    question: Floats
    #: Factor of the speaker's terseness, by label.
    terse: Floats
    #: Label of every entry.
    said: Ints
    #: Day of the first code; None when days have gaps too wide to count through.
    first: int | None
    #: Terms of each day, and of each label, and entries of each label.
    by_day: Sums
    by_label: Sums
    entries: Sums
    #: Labels of each segment but the last: they number those that follow.
    inherited: tuple[int, ...]

    @classmethod
    def of(cls, field: Field) -> Measures:
        """Measure the entries in force."""
        inherited = _inherited(field)
        length: Floats = field.column("length")
        days = field.column("minute") // DAY
        first = int(days.min()) if len(days) else 0
        weights = field.weights
        wide = len(days) > 0 and int(days.max()) - first > 4 * len(days) + 4096
        if wide:
            _, days = np.unique(days, return_inverse=True)
            first = 0
        codes = (days - first).astype(np.int64)
        said, labels = field.labels
        said = said.astype(np.int64)
        by_day = np.bincount(codes, length).astype(np.float64, copy=False)
        by_label = np.bincount(said, length, len(labels)).astype(np.float64, copy=False)
        entries = np.bincount(said, minlength=len(labels)).astype(np.float64)
        return cls(
            room(length, weights.length, weights),
            room(sum_around(length), weights.length, weights),
            room(by_day.astype(np.float32), weights.day_length, weights),
            codes,
            _questions(field.column("flags")),
            _terseness(by_label, entries, len(length), labels, weights.terse),
            said,
            None if wide else first,
            by_day,
            by_label,
            entries,
            inherited,
        )

    def grown(self, field: Field) -> Measures | None:
        """Measure a field whose first entries are those measured here; None when all must be measured anew.

        All sums are of whole numbers, so they come out the same as when they are made in one go.
        """
        old, size, weights = len(self.codes), len(field), field.weights
        length: Floats = field.column("length")
        days = field.column("minute")[old:] // DAY
        inherited = _inherited(field)
        said, labels = field.labels
        if (
            self.first is None
            or old == 0
            or self.inherited != inherited
            or len(labels) < len(self.entries)
            or (size > old and (int(days.min()) < self.first or int(days.max()) - self.first > 4 * old))
        ):
            return None
        codes = (days - self.first).astype(np.int64)
        later = said[old:].astype(np.int64)
        least = max(0, old - AFTER)  # what the new ones are a neighbourhood of
        start = max(0, least - BEFORE)
        around = sum_around(length[start:])[least - start :]
        by_day = _added(self.by_day, codes, length[old:], 0)
        by_label = _added(self.by_label, later, length[old:], len(labels))
        entries = _added(self.entries, later, np.ones(len(later), np.float32), len(labels))
        return Measures(
            np.concatenate([self.message, room(length[old:], weights.length, weights)]),
            np.concatenate([self.window[:least], room(around, weights.length, weights)]),
            room(by_day.astype(np.float32), weights.day_length, weights),
            np.concatenate([self.codes, codes]),
            np.concatenate([self.question, _questions(field.column("flags")[old - 1 :])[1:]]),
            _terseness(by_label, entries, size, labels, weights.terse),
            np.concatenate([self.said, later]),
            self.first,
            by_day,
            by_label,
            entries,
            inherited,
        )


def _inherited(field: Field) -> tuple[int, ...]:
    return tuple(len(segment.labels) for _, segment, _ in field.snapshot.pieces[:-1])


def room(length: Floats, full: float, weights: Weights) -> Floats:
    """Return what is added to the count of a term in texts of some lengths; `full` terms add one."""
    return np.asarray(np.float32(weights.floor) + length * np.float32(1 / full), np.float32)


def _questions(flags: NDArray[Any]) -> Floats:
    """Return 1 for what follows a question."""
    found = np.zeros(len(flags), np.float32)
    found[1:] = (flags[:-1] & QUESTION) != 0
    return found


def _added(sums: Sums, codes: Ints, values: Floats, least: int) -> Sums:
    """Return sums by code with more values added."""
    more = np.bincount(codes, values, max(least, len(sums))).astype(np.float64, copy=False)
    more[: len(sums)] += sums
    return more


def _terseness(by_label: Sums, entries: Sums, size: int, labels: Sequence[Label], exponent: float) -> Floats:
    """Return a factor for each label: those who say little at a time say more with it."""
    speakers: dict[str, int] = {}
    of = [speakers.setdefault(label.actor or str(label.role), len(speakers)) for label in labels]
    if len(speakers) < 2 or not size:
        return np.ones(len(labels), np.float32)
    total, count = np.zeros(len(speakers)), np.zeros(len(speakers))
    np.add.at(total, of, by_label)
    np.add.at(count, of, entries)
    mean = max(float(total.sum()) / size, 1e-6)
    usual = (total + 10 * mean) / (count + 10)
    return ((mean / usual) ** exponent).astype(np.float32)[of]


def sum_around(values: Floats, out: Floats | None = None) -> Floats:
    """Return the sum of each value and those of its neighbourhood."""
    summed = np.empty_like(values) if out is None else out
    np.copyto(summed, values)
    for shift in range(1, BEFORE + 1):
        summed[shift:] += values[:-shift]
    for shift in range(1, AFTER + 1):
        summed[:-shift] += values[shift:]
    return summed
