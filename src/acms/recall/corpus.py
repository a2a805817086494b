"""Corpus: the active entries that one reader sees, in reading order, with the figures that ranking needs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acms.log.active_entries import Demotions, Replacements, anchor_version
from acms.log.validity import Period
from acms.model import Kind, Role, State
from acms.recall.index import DAY_MINUTES, Floats, Ints, Snapshot
from acms.text.index_record import EMPTY, EXTERNAL, REPLACES, Label
from acms.text.markers import CUSTOM_WEIGHT

if TYPE_CHECKING:
    from acms.recall.query import QueryWord

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEIGHBOUR_DISTANCE = 5
"""How many messages before and after one count as its neighbourhood: the farthest with 0.5**5, 3 percent."""
K1, B = 0.9, 0.4
"""Saturation and length normalization of BM25: the usual values of Anserini (Yang et al., 2017)."""


class Corpus:
    """The active messages and summaries at the end of a snapshot, in reading order."""

    def __init__(
        self,
        snapshot: Snapshot,
        replacements: Replacements,
        *,
        order: Ints | None = None,
        facts: Ints | None = None,
        start: int = 0,
        kind: Kind = Kind.MESSAGE,
    ) -> None:
        """Select the active entries of a kind; a corpus of messages also holds summaries.

        `replacements` holds the superseded and retracted entries of a single log. For several logs, the caller passes
        the documents of the active entries in reading `order` and those of the active `facts`; the queried log is the
        last one and begins at position `start`.
        """
        self.kind = kind
        self.start = start
        self._facts = facts
        self.snapshot = snapshot
        self.replacements = replacements
        #: Documents in reading order, and the position of each document, -1 for an inactive one. Both are None if the
        #: log holds only plain messages, all active: then a document is its position.
        self.order: Ints | None = None
        self.position_by_document: Ints | None = None
        self._size = snapshot.count
        if order is not None:
            self._set_order(order)
        elif replacements or snapshot.has_special_documents():
            self._set_order(
                reading_order(*mask_documents_by_kind(snapshot, self.kind), replacements, self.kind)
            )

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

    def marker_mask(self) -> NDArray[np.bool_] | None:
        """Return which entries carry markers; None if no entry carries any."""
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
    def user_labels(self) -> NDArray[np.bool_]:
        """Return which labels are of the user."""
        return np.array([label.role is Role.USER for label in self.labels[1]], bool)

    @cached_property
    def used_labels(self) -> NDArray[np.bool_]:
        """Return which labels any active entry has."""
        codes, labels = self.labels
        return np.bincount(codes, minlength=len(labels)) > 0

    @cached_property
    def newest_of_user(self) -> int:
        """Return the position of the newest entry of the user; -1 if there is none."""
        by_user = np.flatnonzero(self.user_labels[self.labels[0]])
        return int(by_user[-1]) if len(by_user) else -1

    @cached_property
    def text_count(self) -> int:
        """Return how many entries have content."""
        return int(np.count_nonzero((self.column("flags") & EMPTY) == 0))

    @cached_property
    def newest_time(self) -> datetime | None:
        """Return the time of the newest entry; None if there is none."""
        minutes = self.column("minute")
        return _EPOCH + int(minutes.max()) * timedelta(minutes=1) if len(minutes) else None

    @cached_property
    def days(self) -> tuple[int, ...]:
        """Return the first and the last day of the entries, counted from 1970; empty if there are none."""
        days = self.column("minute") // DAY_MINUTES
        return (int(days.min()), int(days.max())) if len(days) else ()

    @cached_property
    def facts(self) -> Corpus | None:
        """Return the active facts of the same logs; None if they never held any."""
        if self._facts is not None:
            facts = Corpus(self.snapshot, self.replacements, order=self._facts, kind=Kind.FACT)
            return facts if len(self._facts) else None
        _, labels = self.snapshot.labels()
        has_facts = self.snapshot.has_special_documents() and any(label.kind is Kind.FACT for label in labels)
        return Corpus(self.snapshot, self.replacements, kind=Kind.FACT) if has_facts else None

    @cached_property
    def norms(self) -> Floats:
        """Return the BM25 addend to the count of a term in each message: K1, more for a message longer than usual."""
        length: Floats = self.column("length")
        mean = max(1.0, float(length.mean())) if len(length) else 1.0
        return np.asarray(np.float32(K1 * (1 - B)) + length * np.float32(K1 * B / mean), np.float32)

    # Neighbourhoods are computed in an array with a cell for each message. `NEIGHBOUR_DISTANCE` empty cells lie before
    # and after the messages of each log. So the neighbourhoods of one log never reach into another log.

    @cached_property
    def _padding(self) -> Ints | None:
        """Return how many cells precede each message; None if there is only one log."""
        logs = self.snapshot.logs
        if logs is None:
            return None
        log_by_position = logs[self.documents(np.arange(len(self)))]
        is_new_log = log_by_position[1:] != log_by_position[:-1]
        logs_before = np.cumsum(np.concatenate([[0], is_new_log]).astype(np.int64)[: len(self)])
        return NEIGHBOUR_DISTANCE * (1 + logs_before)

    @cached_property
    def padded_size(self) -> int:
        """Return the number of cells, empty ones included."""
        padding = self._padding
        empty_before_last = NEIGHBOUR_DISTANCE if padding is None or not len(padding) else int(padding[-1])
        return len(self) + empty_before_last + NEIGHBOUR_DISTANCE

    def padded_positions(self, positions: Ints) -> Ints:
        """Return the cells of some messages."""
        return (
            positions + NEIGHBOUR_DISTANCE if self._padding is None else positions + self._padding[positions]
        )

    @cached_property
    def padded_norms(self) -> Floats:
        """Return `norms` of each cell; 1 for an empty one."""
        norms = np.ones(self.padded_size, np.float32)
        norms[self.padded_positions(np.arange(len(self)))] = self.norms
        return norms

    def neighbourhood(self, values: Floats) -> Floats:
        """Return each value with those of the neighbours, see `add_neighbours`."""
        cells = np.zeros(self.padded_size, np.float32)
        cell_by_position = self.padded_positions(np.arange(len(self)))
        cells[cell_by_position] = values
        return add_neighbours(cells)[cell_by_position]

    def word_postings(self, word: QueryWord) -> tuple[Ints, Floats]:
        """Return the positions of the messages that hold a word, ascending, and how often each holds it.

        A message holds the word if it holds any of its terms, or carries a marker that the word names. Of several terms
        in a message the most frequent one counts.
        """
        main_postings, *variants = (self.postings(term) for term in word.terms)
        other_postings = [postings for postings in variants if len(postings[0])]
        for marker in word.markers:
            marked_positions = self._find_marked(marker)
            if len(marked_positions):
                other_postings.append((marked_positions, np.ones(len(marked_positions), np.float32)))
        if not other_postings:
            return main_postings
        all_postings = [main_postings, *other_postings]
        positions = np.unique(np.concatenate([term_positions for term_positions, _ in all_postings]))
        counts = np.zeros(len(positions), np.float32)
        for term_positions, term_counts in all_postings:
            indexes = np.searchsorted(positions, term_positions)
            counts[indexes] = np.maximum(counts[indexes], term_counts)
        return positions, counts

    def mark_weights(self, weights: Mapping[str, float]) -> Floats | None:
        """Return the sum of the weights of the markers of each message; None if no message carries any."""
        if self._marked_labels is None:
            return None
        codes, labels = self.labels
        by_label = [sum(weights.get(marker, CUSTOM_WEIGHT) for marker in label.markers) for label in labels]
        return np.array(by_label, np.float32)[codes]

    def following(self, position: int) -> Ints:
        """Return the positions of the entries after an entry: in its own log by position, in other logs by time."""
        logs = self.snapshot.logs
        if logs is None:
            return np.arange(position + 1, len(self))
        document = self.document(position)
        positions = np.arange(len(self))
        is_same_log = logs[self.documents(positions)] == logs[document]
        is_later = self.column("minute") > self.snapshot.column("minute")[document]
        follows = np.where(is_same_log, positions > position, is_later)
        return np.flatnonzero(follows)

    @cached_property
    def speakers(self) -> frozenset[str]:
        """Return the names of the speakers, where they are known."""
        return frozenset(label.actor for label in self.labels[1] if label.actor is not None)

    def postings(self, term: int) -> tuple[Ints, Floats]:
        """Return the positions of the active entries that hold a term, and how often."""
        postings = self.snapshot.postings(term)  # document << 8 | count
        documents = (postings >> np.uint32(8)).astype(np.int64)
        counts = (postings & np.uint32(255)).astype(np.float32)
        if self.position_by_document is None:
            return documents, counts
        positions = self.position_by_document[documents]
        active = positions >= 0
        return positions[active], counts[active]

    def terms_at(self, position: int) -> frozenset[int]:
        """Return the different terms of the entry at a position."""
        return frozenset(self.snapshot.terms_of(self.document(position))[0].tolist())

    def count_holders(self, term: int) -> int:
        """Return how many entries of the log hold a term, active or not."""
        return len(self.snapshot.postings(term))

    def counts_at(self, term: int, positions: Ints) -> Floats:
        """Return how often the entries at some positions hold a term; at least one entry of the log must hold it."""
        postings = self.snapshot.postings(term)  # document << 8 | count, ascending
        keys = self.documents(positions).astype(np.uint32) << np.uint32(8)
        indexes = np.minimum(np.searchsorted(postings, keys), len(postings) - 1)
        found_postings = postings[indexes]
        holds_term = found_postings & ~np.uint32(255) == keys
        counts = found_postings & np.uint32(255)
        return np.where(holds_term, counts, 0).astype(np.float32)


class IndexedLog(NamedTuple):
    """The active entries of a log, or of all sessions of a namespace, as one reader sees them."""

    corpus: Corpus
    #: Messages with outdated statements.
    stale: Demotions
    #: The validity periods of the active facts, and of messages and summaries with a label, by version.
    times: Mapping[int, Period]
    version: int = 0
    #: Number of entries of the log, at its head, that are not messages.
    non_messages: int = 0


def mask_documents_by_kind(snapshot: Snapshot, kind: Kind) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which documents have content, and which of these are of a kind; edits of messages are left out."""
    codes, labels = snapshot.labels()
    has_content = snapshot.column("nonce") != b""
    for _, segment, count in snapshot.pieces:
        blanked_documents = [segment.base + document for document in segment.blanked if document < count]
        has_content[blanked_documents] = False
    is_label_of_kind = np.array([label.kind is kind for label in labels], bool)
    is_of_kind = has_content & is_label_of_kind[codes] if len(labels) else has_content
    if kind is not Kind.FACT:
        is_of_kind = is_of_kind & ((snapshot.column("flags") & REPLACES) == 0)
    return has_content, is_of_kind


def reading_order(
    has_content: NDArray[np.bool_],
    is_of_kind: NDArray[np.bool_],
    replacements: Replacements,
    kind: Kind,
    first_version: int = 1,
) -> Ints:
    """Return the indexes of the active entries of a log in reading order; index 0 is the entry of `first_version`.

    `has_content` and `is_of_kind` are the results of `mask_documents_by_kind` for the log. `replacements` holds its
    superseded and retracted entries, and the edits and summaries in their place. An edit or a summary of messages is
    read at the version of the entries that it replaces.
    """
    is_active = is_of_kind.copy()
    for first, last in replacements.spans():
        is_active[max(0, first - first_version) : max(0, last + 1 - first_version)] = False
    reading_versions = np.arange(len(is_active)) + first_version
    for entry in replacements.substitutes if kind is Kind.MESSAGE else ():
        index = entry.version - first_version
        if 0 <= index < len(is_active) and entry.state is State.LIVE and has_content[index]:
            is_active[index] = True
            reading_versions[index] = anchor_version(entry)
    order = np.flatnonzero(is_active)
    return order[np.argsort(reading_versions[order], kind="stable")]


def add_neighbours(cells: Floats) -> Floats:
    """Add to each value half of the values beside it, a quarter of the next ones, and so on up to NEIGHBOUR_DISTANCE.

    Neighbours lie along the last axis. Each side takes three additions: a sum of 2 cells, then of 4, then of 6.
    """
    sums_before = _add_preceding(cells)
    sums_after = _add_preceding(cells[..., ::-1])[..., ::-1]
    return sums_before + sums_after - cells


def _add_preceding(cells: Floats) -> Floats:
    """Add to each value the NEIGHBOUR_DISTANCE values before it, each weighted half as much as the one after it."""
    sums_of_two = _halved_sum(cells, cells, 1)
    sums_of_four = _halved_sum(sums_of_two, sums_of_two, 2)
    return _halved_sum(sums_of_four, sums_of_two, 4)


def _halved_sum(values: Floats, added_values: Floats, distance: int) -> Floats:
    """Add to each value the other one that lies `distance` cells before it, halved for each cell of the distance."""
    sums = values.copy()
    sums[..., distance:] += added_values[..., :-distance] * np.float32(0.5**distance)
    return sums
