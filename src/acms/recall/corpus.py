"""Corpus: the active entries that one reader sees, in reading order, with the figures that ranking needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acms.log.in_force import Cover, Stale, anchor_version
from acms.log.validity import Period
from acms.model import Entry, Kind, Role, State
from acms.recall.index import DAY, Floats, Ints, Snapshot
from acms.text.index_record import EMPTY, EXTERNAL, REPLACES, Label
from acms.text.markers import CUSTOM_WEIGHT

if TYPE_CHECKING:
    from acms.recall.query import QueryWord

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
REACH = 5
"""How many messages before and after one count as its neighbourhood: the farthest with 0.5**5, 3 percent."""
K1, B = 0.9, 0.4
"""Saturation and length normalization of BM25: the usual values of Anserini (Yang et al., 2017)."""


class Corpus:
    """The active messages and summaries at the end of a snapshot, in reading order."""

    def __init__(
        self,
        snapshot: Snapshot,
        cover: Cover,
        *,
        order: Ints | None = None,
        facts: Ints | None = None,
        start: int = 0,
        kind: Kind = Kind.MESSAGE,
    ) -> None:
        """Take the entries a reader sees; for several logs also the active ones in `order`, and which `facts` are.

        The queried log is the last one; then it begins at position `start`. A corpus of messages also holds summaries.
        """
        self.kind = kind
        self.start = start
        self._facts = facts
        self.snapshot = snapshot
        self.cover = cover
        #: Documents in reading order, and the position of each document in it, -1 for inactive ones; None when the log
        #: holds plain messages only and all are active, in order.
        self.order: Ints | None = None
        self.position_by_document: Ints | None = None
        self._size = snapshot.count
        if order is not None:
            self._set_order(order)
        elif cover or snapshot.odd():
            self._set_order(reading_order(*mask_documents_by_kind(snapshot, self.kind), cover, self.kind))

    def _set_order(self, order: Ints) -> None:
        self.order = order
        self.position_by_document = np.full(self.snapshot.count, -1, np.int64)
        self.position_by_document[order] = np.arange(len(order))
        self._size = len(order)

    def __len__(self) -> int:
        return self._size

    def column(self, name: str) -> NDArray[Any]:
        """Return a field of the active entries."""
        column = self.snapshot.column(name)
        return column if self.order is None else column[self.order]

    def document(self, position: int) -> int:
        """Return the document at a position."""
        return position if self.order is None else int(self.order[position])

    def position_of(self, document: int) -> int:
        """Return the position of a document; -1 if it is not active."""
        return document if self.position_by_document is None else int(self.position_by_document[document])

    def marked(self) -> NDArray[np.bool_] | None:
        """Return which entries carry markers; None if none does."""
        is_marked = self._marked_labels
        return None if is_marked is None else is_marked[self.labels[0]]

    def _find_marked(self, marker: str) -> Ints:
        """Return the positions of the entries that carry a marker."""
        codes, labels = self.labels
        carries = np.array([marker in label.markers for label in labels], bool)
        return np.flatnonzero(carries[codes])

    @cached_property
    def _marked_labels(self) -> NDArray[np.bool_] | None:
        labels = self.labels[1]
        is_marked = np.array([bool(label.markers) for label in labels], bool)
        return is_marked if is_marked.any() else None

    def documents(self, positions: Ints) -> Ints:
        """Return the documents at some positions."""
        return positions if self.order is None else self.order[positions]

    @cached_property
    def labels(self) -> tuple[NDArray[Any], list[Label]]:
        """Return the label of every active entry as an index into a list."""
        codes, labels = self.snapshot.labels()
        return codes if self.order is None else codes[self.order], labels

    @cached_property
    def external(self) -> NDArray[np.bool_] | None:
        """Return which entries are external text, or were made from some; None if there are none."""
        external = (self.column("flags") & EXTERNAL) != 0
        return external if external.any() else None

    @cached_property
    def roles(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which labels are of the user, and which labels any active entry has."""
        codes, labels = self.labels
        users = np.array([label.role is Role.USER for label in labels], bool)
        return users, np.bincount(codes, minlength=len(labels)) > 0

    @cached_property
    def newest_of_user(self) -> int:
        """Return the position of the newest entry of the user; -1 if there is none."""
        by_user = np.flatnonzero(self.roles[0][self.labels[0]])
        return int(by_user[-1]) if len(by_user) else -1

    @cached_property
    def texts(self) -> int:
        """Return how many entries have content."""
        return int(np.count_nonzero((self.column("flags") & EMPTY) == 0))

    @cached_property
    def newest(self) -> datetime | None:
        """Return the time of the newest entry; None if there is none."""
        minutes = self.column("minute")
        return _EPOCH + int(minutes.max()) * timedelta(minutes=1) if len(minutes) else None

    @cached_property
    def days(self) -> tuple[int, ...]:
        """Return the first and the last day of the entries, counted from 1970; empty if there are none."""
        days = self.column("minute") // DAY
        return (int(days.min()), int(days.max())) if len(days) else ()

    @cached_property
    def facts(self) -> Corpus | None:
        """Return the active facts of the same logs; None if they never held any."""
        if self._facts is not None:
            facts = Corpus(self.snapshot, self.cover, order=self._facts, kind=Kind.FACT)
            return facts if len(self._facts) else None
        _, labels = self.snapshot.labels()
        has_facts = self.snapshot.odd() and any(label.kind is Kind.FACT for label in labels)
        return Corpus(self.snapshot, self.cover, kind=Kind.FACT) if has_facts else None

    @cached_property
    def norms(self) -> Floats:
        """Return the BM25 addend to the count of a term in each message: K1, more for a message longer than usual."""
        length: Floats = self.column("length")
        mean = max(1.0, float(length.mean())) if len(length) else 1.0
        return np.asarray(np.float32(K1 * (1 - B)) + length * np.float32(K1 * B / mean), np.float32)

    # Neighbourhoods are computed with REACH empty cells before the first message of each log and after the last: so
    # those of one log never reach into another one.

    @cached_property
    def _padding(self) -> Ints | None:
        """Return how many cells precede each message; None if there is only one log."""
        logs = self.snapshot.logs
        if logs is None:
            return None
        own = logs[self.documents(np.arange(len(self)))]
        begins = np.concatenate([[0], own[1:] != own[:-1]]).astype(np.int64)[: len(self)]
        return REACH * (1 + np.cumsum(begins))

    @cached_property
    def padded_size(self) -> int:
        """Return how many cells neighbourhoods are computed in."""
        padding = self._padding
        last = REACH if padding is None or not len(padding) else int(padding[-1])
        return len(self) + last + REACH

    def padded_positions(self, positions: Ints) -> Ints:
        """Return the cells of some messages."""
        return positions + REACH if self._padding is None else positions + self._padding[positions]

    @cached_property
    def position_by_cell(self) -> Ints:
        """Return the position of the message of each cell; -1 for an empty one."""
        positions = np.arange(len(self))
        by_cell = np.full(self.padded_size, -1, np.int64)
        by_cell[self.padded_positions(positions)] = positions
        return by_cell

    @cached_property
    def padded_norms(self) -> Floats:
        """Return `norms` of each cell; 1 for an empty one."""
        norms = np.ones(self.padded_size, np.float32)
        norms[self.padded_positions(np.arange(len(self)))] = self.norms
        return norms

    def neighbourhood(self, values: Floats) -> Floats:
        """Return each value with those of the neighbours, see `add_neighbours`."""
        cells = np.zeros(self.padded_size, np.float32)
        at = self.padded_positions(np.arange(len(self)))
        cells[at] = values
        return add_neighbours(cells)[at]

    def word_postings(self, word: QueryWord) -> tuple[Ints, Floats]:
        """Return the positions of the messages that hold any term of a word, ascending, and how often."""
        first, *variants = (self.postings(term) for term in word.terms)
        others = [postings for postings in variants if len(postings[0])]
        for marker in word.markers:
            marked = self._find_marked(marker)
            if len(marked):
                others.append((marked, np.ones(len(marked), np.float32)))
        if not others:
            return first
        positions = np.unique(np.concatenate([first[0], *(positions for positions, _ in others)]))
        counts = np.zeros(len(positions), np.float32)
        for own, own_counts in (first, *others):
            at = np.searchsorted(positions, own)
            counts[at] = np.maximum(counts[at], own_counts)
        return positions, counts

    def mark_weights(self, weights: Mapping[str, float]) -> Floats | None:
        """Return the sum of the weights of the markers of each message; None if no message carries any."""
        if self._marked_labels is None:
            return None
        codes, labels = self.labels
        by_label = [sum(weights.get(marker, CUSTOM_WEIGHT) for marker in label.markers) for label in labels]
        return np.array(by_label, np.float32)[codes]

    def following(self, position: int) -> Ints:
        """Return the positions of the entries read after an entry; in other logs, of later ones."""
        logs = self.snapshot.logs
        if logs is None:
            return np.arange(position + 1, len(self))
        document = self.document(position)
        is_same_log = logs[self.documents(np.arange(len(self)))] == logs[document]
        is_later = self.column("minute") > self.snapshot.column("minute")[document]
        return np.flatnonzero(np.where(is_same_log, np.arange(len(self)) > position, is_later))

    @cached_property
    def speakers(self) -> frozenset[str]:
        """Return the names of the speakers, where they are known."""
        return frozenset(label.actor for label in self.labels[1] if label.actor is not None)

    def postings(self, term: int) -> tuple[Ints, Floats]:
        """Return the positions of the entries that hold a term, and how often."""
        return self._unpack(self.snapshot.postings(term))

    def _unpack(self, postings: NDArray[np.uint32]) -> tuple[Ints, Floats]:
        """Return the positions and counts of some postings, without inactive entries."""
        documents = (postings >> np.uint32(8)).astype(np.int64)
        counts = (postings & np.uint32(255)).astype(np.float32)
        if self.position_by_document is None:
            return documents, counts
        positions = self.position_by_document[documents]
        active = positions >= 0
        return positions[active], counts[active]

    def postings_of_terms(self, terms: Sequence[int]) -> tuple[Ints, Floats]:
        """Return the postings of some terms, one after the other."""
        return self._unpack(np.concatenate([np.zeros(0, np.uint32), *map(self.snapshot.postings, terms)]))

    def count_holders(self, term: int) -> int:
        """Return how many entries hold a term."""
        postings = self.snapshot.postings(term)
        if self.position_by_document is None:
            return len(postings)
        return len(self._unpack(postings)[0])

    def counts_at(self, term: int, positions: Ints) -> Floats:
        """Return how often entries at some positions hold a term, which some entry holds."""
        postings = self.snapshot.postings(term)
        keys = self.documents(positions).astype(np.uint32) << np.uint32(8)
        nearest = postings[np.minimum(np.searchsorted(postings, keys), len(postings) - 1)]
        holds = nearest & ~np.uint32(255) == keys
        return np.where(holds, nearest & np.uint32(255), 0).astype(np.float32)


class IndexedLog(NamedTuple):
    """The active entries of a log, or of all sessions of a namespace, as one reader sees them."""

    corpus: Corpus
    #: Messages with outdated statements.
    stale: Stale
    #: The validity periods of the active facts, and of messages and summaries with a label, by version.
    times: Mapping[int, Period]
    version: int = 0
    #: Number of entries of the log, at its head, that are not messages.
    made: int = 0


def mask_documents_by_kind(snapshot: Snapshot, kind: Kind) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which documents have content, and which of them are of a kind and no edits."""
    codes, labels = snapshot.labels()
    present = snapshot.column("nonce") != b""
    for _, segment, count in snapshot.pieces:
        present[[segment.base + document for document in segment.blanked if document < count]] = False
    of_kind = np.array([label.kind is kind for label in labels], bool)
    kept = present & of_kind[codes] if len(labels) else present
    if kind is not Kind.FACT:
        kept = kept & ((snapshot.column("flags") & REPLACES) == 0)
    return present, kept


def reading_order(
    present: NDArray[np.bool_], kept: NDArray[np.bool_], cover: Cover, kind: Kind, base: int = 0
) -> Ints:
    """Return the active entries of a log in reading order, by their positions above the version `base`.

    Entries in `present` have content, and those in `kept` are of the kind: messages, among which edits and summaries
    are read at the positions of the entries they replace, or facts.
    """
    kept = kept.copy()
    for first, last in cover.spans():
        kept[max(0, first - 1 - base) : max(0, last - base)] = False
    replacing: list[Entry] = []
    for entry in cover.shown if kind is Kind.MESSAGE else ():
        is_here = base < entry.version <= base + len(present)
        if is_here and entry.state is State.LIVE and present[entry.version - 1 - base]:
            replacing.append(entry)
    kept[[entry.version - 1 - base for entry in replacing]] = True
    order = np.flatnonzero(kept)
    if replacing:
        anchors = order + 1 + base
        for entry in replacing:
            anchors[np.searchsorted(order, entry.version - 1 - base)] = anchor_version(entry)
        order = order[np.lexsort((order, anchors))]
    return order


def add_neighbours(cells: Floats) -> Floats:
    """Return each value with half of those beside it, a quarter of the next ones, and so on up to REACH.

    Along the last axis. Each side takes three additions: one neighbour is added to each cell, to these pairs the pairs
    two cells on, and to these fours the pair four cells on.
    """
    before = _add_preceding(cells)
    after = _add_preceding(cells[..., ::-1])[..., ::-1]
    return before + after - cells


def _add_preceding(cells: Floats) -> Floats:
    """Return each value with those before it."""
    pairs = _halved_sum(cells, cells, 1)
    fours = _halved_sum(pairs, pairs, 2)
    return _halved_sum(fours, pairs, 4)


def _halved_sum(values: Floats, others: Floats, distance: int) -> Floats:
    """Return each value with the other one at a distance before it, halved for each cell between."""
    summed = values.copy()
    summed[..., distance:] += others[..., :-distance] * np.float32(0.5**distance)
    return summed
