"""The retrieval index of a log, in memory: postings, vectors and a few fields per entry.

A `Segment` holds the entries one context owns and only grows; the entry of version v is document v - 1. A `Snapshot` is
the view of one read: the segments of a lineage, each up to a length. So a fork shares its ancestors' segments, a past
version is a prefix, and a reader never waits for a writer: new documents lie beyond the length it has taken.

Nothing is derived when a document is added that a later one could change: neighbourhoods, days, document frequencies
and average lengths are computed for each query from the prefix it sees (rule 2.9).
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from acms.log.active_entries import IndexedEntry
from acms.log.encoding import entry_id, parse_entry_id
from acms.model import Json, Kind
from acms.text.index_record import EMPTY, EXTERNAL, HEADER, REPLACES, Label, read_group, read_label
from acms.text.tokenizer import day_terms, searchable_terms

Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int64]
NO_POSITIONS: Ints = np.zeros(0, np.int64)


class Vectors:
    """The vectors of one space in one segment, in order of arrival; those of a document are adjacent."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        #: Unit vectors; the array is longer than their number. A reader keeps the array that it has begun to read.
        self.values: Floats = np.zeros((64, dimension), np.float32)
        #: Documents in order of arrival, and where the vectors of each begin; one more is where the last ones end.
        self.documents = np.zeros(64, np.int32)
        self.begin = np.zeros(65, np.int64)
        self.count = 0
        #: Index of a document in `documents`; -1 for one without vectors.
        self.slot = np.full(64, -1, np.int32)

    def extend(self, rows: Iterable[tuple[int, int, bytes]]) -> None:
        """Add (document, part, little-endian float16 vector) rows; documents that have vectors already are skipped."""
        vector_bytes = 2 * self.dimension
        slots = len(self.slot)
        new_rows: list[tuple[int, int, bytes]] = []
        for row in rows:
            document, _, data = row
            has_vectors = document < slots and self.slot[document] >= 0
            if len(data) == vector_bytes and not has_vectors:
                new_rows.append(row)
        if not new_rows:
            return
        new_rows.sort(key=itemgetter(0, 1))
        document_by_row = np.fromiter((document for document, _, _ in new_rows), np.int64, len(new_rows))
        first_rows = _find_run_starts(document_by_row)
        documents = document_by_row[first_rows]
        count = self.count + len(documents)
        vectors_before = int(self.begin[self.count])
        self._append_vectors([data for _, _, data in new_rows], vectors_before)
        self.documents = grow_array(self.documents, count)
        self.documents[self.count : count] = documents
        self.begin = grow_array(self.begin, count + 1)
        self.begin[self.count + 1 : count + 1] = vectors_before + np.append(first_rows[1:], len(new_rows))
        self.slot = grow_array(self.slot, int(documents[-1]) + 1, fill=-1)
        self.slot[documents] = np.arange(self.count, count)
        self.count = count

    def _append_vectors(self, data: Sequence[bytes], vectors_before: int) -> None:
        """Append vectors, scaled to length 1; `vectors_before` is the number of vectors so far."""
        self.values = grow_array(self.values, vectors_before + len(data))
        for start in range(0, len(data), VECTOR_BATCH):
            batch = data[start : start + VECTOR_BATCH]
            values = self.values[vectors_before + start :][: len(batch)]
            values[:] = np.frombuffer(b"".join(batch), "<f2").reshape(len(batch), self.dimension)
            norms = np.sqrt(np.einsum("ij,ij->i", values, values))
            values /= np.where(norms > 0, norms, 1)[:, None]

    @property
    def bytes(self) -> int:
        """Bytes it takes in memory."""
        return self.values.nbytes + self.documents.nbytes + self.begin.nbytes + self.slot.nbytes


def grow_array(values: NDArray[Any], size: int, *, fill: int = 0) -> NDArray[Any]:
    """Return an array that begins with some values and has room for `size`, the rest of it zeros or `fill`.

    A new array has half as many values again as the old one at least, so that few are copied.
    """
    if len(values) >= size:
        return values
    grown = np.zeros((max(size, len(values) * 3 // 2), *values.shape[1:]), values.dtype)
    grown[: len(values)] = values
    if fill:
        grown[len(values) :] = fill
    return grown


VECTOR_BATCH = 256
"""Vectors that are added at a time: they fit the processor's cache."""
MAX_DOCUMENTS = 1 << 24
"""Documents a segment can count: a posting is document << 8 | occurrences."""
RECORD_BATCH = 1_024
"""Records whose terms are unpacked at a time, to save memory."""
MAX_CACHED_DOCUMENTS = 4096
"""Cached documents of a segment."""
DAY_MINUTES = 1440
"""Minutes of a day."""

_HEADER = np.dtype(
    [
        ("minute", "<i4"),
        ("tokens", "<u4"),
        ("episode", "<u4"),
        ("nonce", "S6"),
        ("flags", "u1"),
        ("exact", "<u2"),
        ("label", "<u2"),
        ("group", "<u2"),
        ("terms", "<u2"),
        ("repeated", "<u2"),
    ]
)
_COLUMNS: Mapping[str, Any] = {
    "minute": np.int32,
    "tokens": np.uint32,
    "episode": np.uint32,
    "nonce": "S6",
    "flags": np.uint8,
    "exact": np.uint16,
    "label": np.uint32,
    "group": np.int32,
    "length": np.float32,
    "print": np.uint32,
}
assert _HEADER.itemsize == HEADER.size


class Segment:
    """The documents one context owns: versions `base` + 1 and on."""

    #: Erasure generation of its fork tree when it was built; the same for all logs that share it.
    epoch = 0
    #: Bytes it took in memory when it was last used.
    counted_bytes = 0

    def __init__(self, base: int) -> None:
        self.base = base
        self.count = 0
        self.columns: dict[str, NDArray[Any]] = {
            name: np.zeros(64, dtype) for name, dtype in _COLUMNS.items()
        }
        #: Documents that are not plain messages: facts, summaries, edits, retractions, and deleted content.
        self.special_documents: list[int] = []
        #: The first label is that of deleted content.
        self.labels: list[Label] = [Label(Kind.EPISODE, None, None, ())]
        self._label_codes: dict[bytes, int] = {}
        self._speaker_terms: list[tuple[int, ...]] = [()]
        self.groups: dict[str, int] = {}
        self.names: list[str] = []
        #: Documents of each tool group, and hashes of the calls that each document makes and answers.
        self.members: dict[int, list[int]] = {}
        self.links: dict[int, tuple[Sequence[int], Sequence[int]]] = {}
        #: Postings: as sorted arrays for the first documents, as open arrays by term for later ones.
        self._terms = np.zeros(0, np.uint32)
        self._starts = np.zeros(1, np.int64)
        self._frozen_postings = np.zeros(0, np.uint32)
        self._open_postings: dict[int, array[int]] = {}
        #: The terms of the documents, one document after the other: term << 8 | occurrences, and where each one ends.
        self._terms_by_document = array("I")
        self._ends = array("Q")
        self.spaces: dict[str, Vectors] = {}
        #: Documents whose content was found to be gone.
        self.blanked: set[int] = set()
        self._open_bytes = 0
        #: Cached documents, by position: successive recalls read the same ones.
        self.docs: dict[int, IndexedEntry] = {}
        #: Times and metadata of documents, by position: read when a filter needs them.
        self.filter_fields: dict[int, tuple[datetime, Mapping[str, Json]]] = {}

    @property
    def bytes(self) -> int:
        """Bytes it takes in memory; those of lists and dicts are estimated."""
        arrays = [*self.columns.values(), self._terms, self._starts, self._frozen_postings]
        total = sum(item.nbytes for item in arrays) + self._open_bytes
        total += 4 * len(self._terms_by_document) + 8 * len(self._ends)
        total += 500 * (len(self.docs) + len(self.filter_fields))  # a `IndexedEntry` with its strings
        return total + sum(vectors.bytes for vectors in self.spaces.values())

    def extend(self, records: Sequence[bytes | None]) -> None:
        """Append the index records of the next versions; None for an entry that has lost its record."""
        start, end = self.count, self.count + len(records)
        if end > MAX_DOCUMENTS:
            raise OverflowError(f"a log is indexed up to {MAX_DOCUMENTS} entries")
        if not records:
            return
        self.columns = {name: grow_array(column, end) for name, column in self.columns.items()}
        blank = HEADER.pack(0, 0, 0, b"", EMPTY, 0, 0, 0, 0, 0)
        data = [blank if record is None else record for record in records]
        buffer = np.frombuffer(b"".join(data), np.uint8)
        sizes = np.fromiter(map(len, data), np.int64, len(data))
        offsets = np.cumsum(sizes) - sizes
        headers = buffer[offsets[:, None] + np.arange(HEADER.size)].view(_HEADER)[:, 0]
        present = np.fromiter((record is not None for record in records), bool, len(records))
        self._add_fields(records, headers, present)
        term_offsets = offsets + HEADER.size + headers["label"] + headers["group"]
        keys = self._add_terms(buffer, term_offsets, headers, self._build_field_keys(present))
        if start == 0:
            self._freeze(keys)
        else:
            self._append_postings(keys)
        self.count = end

    def _add_fields(
        self, records: Sequence[bytes | None], headers: NDArray[Any], present: NDArray[np.bool_]
    ) -> None:
        """Fill the columns of new documents, except those that are computed from their terms.

        Documents that are no plain active messages (facts, summaries, edits, empty ones) are noted as special: a log
        without any needs no reading order.
        """
        start, end = self.count, self.count + len(records)
        columns = self.columns
        for name in ("minute", "tokens", "episode", "nonce", "flags", "exact"):
            columns[name][start:end] = headers[name]
        label_sizes, group_sizes = headers["label"].tolist(), headers["group"].tolist()
        codes = [0] * len(records)
        groups = [-1] * len(records)
        for index, record in enumerate(records):
            if record is None:
                continue
            group_start = HEADER.size + label_sizes[index]
            codes[index] = self._label(record[HEADER.size : group_start])
            if group_sizes[index]:
                group = record[group_start : group_start + group_sizes[index]]
                groups[index] = self._group(start + index, group)
        columns["label"][start:end] = codes
        columns["group"][start:end] = groups
        is_message = np.array([label.kind is Kind.MESSAGE for label in self.labels], bool)
        is_plain = present & ((headers["flags"] & REPLACES) == 0) & is_message[codes]
        self.special_documents += (start + np.flatnonzero(~is_plain)).tolist()

    def _append_postings(self, keys: NDArray[np.uint64]) -> None:
        """Append the keys (term << 32 | posting) of later documents to the open arrays of their terms."""
        terms = (keys >> np.uint64(32)).tolist()
        postings = keys.astype(np.uint32).tolist()
        for term, posting in zip(terms, postings, strict=True):
            open_postings = self._open_postings.get(term)
            if open_postings is None:
                open_postings = self._open_postings[term] = array("I")
                self._open_bytes += 180
            open_postings.append(posting)
        self._open_bytes += 5 * len(keys)

    def _freeze(self, keys: NDArray[np.uint64]) -> None:
        """Store the sorted keys (term << 32 | posting) of the first documents as arrays.

        These are the terms, where the postings of each term start, and all postings.
        """
        terms = (keys >> np.uint64(32)).astype(np.uint32)
        starts = _find_run_starts(terms)
        self._terms = terms[starts]
        self._starts = np.append(starts, len(keys))
        self._frozen_postings = keys.astype(np.uint32)

    def _label(self, data: bytes) -> int:
        """Return the code of an encoded label; a new label is added."""
        code = self._label_codes.get(data)
        if code is None:
            code = self._label_codes[data] = len(self.labels)
            label = read_label(data)
            self.labels.append(label)
            self._speaker_terms.append(tuple(searchable_terms(label.actor)) if label.actor else ())
            self._open_bytes += 400
        return code

    def _group(self, document: int, data: bytes) -> int:
        """Add a document to its tool group, or to the address of a fact; return the code of the group or address."""
        name, calls, answers = read_group(data)
        code = self.groups.get(name)
        if code is None:
            code = self.groups[name] = len(self.names)
            self.names.append(name)
        self.members.setdefault(code, []).append(document)
        self.links[document] = (calls, answers)
        self._open_bytes += 300
        return code

    def _add_terms(
        self, buffer: NDArray[np.uint8], starts: Ints, headers: NDArray[Any], field_keys: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        """Add the terms of new documents, and return the sorted keys of these terms and of their fields.

        A key is term << 32 | document << 8 | occurrences. `starts` are the offsets of the terms in the `buffer`.
        """
        first_document, document_count = self.count, len(headers)
        term_counts = headers["terms"].astype(np.int64)
        text_key_count = int(term_counts.sum())
        keys = np.empty(text_key_count + len(field_keys), np.uint64)
        keys[text_key_count:] = field_keys
        ends = len(self._terms_by_document) + np.cumsum(term_counts)
        self._ends.frombytes(ends.astype(np.uint64).tobytes())
        written_count = 0
        for low in range(0, document_count, RECORD_BATCH):
            batch = slice(low, low + RECORD_BATCH)
            batch_keys = self._build_text_keys(
                buffer, starts[batch], term_counts[batch], headers["repeated"][batch], first_document + low
            )
            keys[written_count : written_count + len(batch_keys)] = batch_keys
            written_count += len(batch_keys)
            # term << 8 | occurrences
            terms = batch_keys >> np.uint64(24) & ~np.uint64(255) | batch_keys & np.uint64(255)
            self._terms_by_document.frombytes(terms.astype(np.uint32).tobytes())
        field_documents = _documents_of_keys(field_keys) - first_document
        new_lengths = self.columns["length"][first_document : first_document + document_count]
        new_lengths += np.bincount(field_documents, minlength=document_count)
        return _sort_and_merge_keys(keys)

    def _build_text_keys(
        self,
        buffer: NDArray[np.uint8],
        starts: Ints,
        sizes: Ints,
        repeated_counts: NDArray[np.uint16],
        first_document: int,
    ) -> NDArray[np.uint64]:
        """Return the keys of the terms in some records; also set the lengths and fingerprints of their documents.

        A record has `sizes` terms of three bytes each, from its offset in `starts`; then a byte of occurrences for each
        of the first `repeated_counts` terms, as the others occur once. The first record is that of `first_document`.
        """
        ends = np.cumsum(sizes)
        documents = np.repeat(np.arange(len(sizes)), sizes)  # document of each term, from 0
        index_in_record = np.arange(len(documents)) - (ends - sizes)[documents]
        offsets = starts[documents] + 3 * index_in_record
        terms = buffer[offsets].astype(np.uint32)
        for byte in (1, 2):
            offsets += 1
            terms |= buffer[offsets].astype(np.uint32) << np.uint32(8 * byte)
        counts = np.ones(len(documents), np.uint64)
        repeated_terms = np.flatnonzero(index_in_record < repeated_counts[documents])
        count_starts = starts + 3 * sizes
        count_offsets = count_starts[documents[repeated_terms]] + index_in_record[repeated_terms]
        counts[repeated_terms] = buffer[count_offsets]
        keys = terms.astype(np.uint64)
        end_document = first_document + len(sizes)
        self.columns["length"][first_document:end_document] = np.bincount(documents, counts, len(sizes))
        self.columns["print"][first_document:end_document] = _fingerprint_documents(
            keys, documents, len(sizes)
        )
        keys <<= np.uint64(32)
        keys |= np.maximum(counts, np.uint64(1))
        documents += first_document
        keys |= documents.astype(np.uint64) << np.uint64(8)
        return keys

    def _build_field_keys(self, present: NDArray[np.bool_]) -> NDArray[np.uint64]:
        """Return the keys of the terms of new documents that come from the fields: date and speaker."""
        documents = self.count + np.flatnonzero(present)
        days, day_codes = np.unique(self.columns["minute"][documents] // DAY_MINUTES, return_inverse=True)
        terms_of_days = [day_terms(day) for day in days.tolist()]
        labels = self.columns["label"][documents]
        return np.concatenate(
            [
                _build_term_keys(terms_of_days, day_codes, documents),
                _build_term_keys(self._speaker_terms, labels, documents),
            ]
        )

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def terms_of(self, position: int) -> NDArray[np.uint32]:
        """Return the terms of a document, without its date and speaker: term << 8 | occurrences."""
        start = self._ends[position - 1] if position else 0
        return np.array(self._terms_by_document[start : self._ends[position]], np.uint32)

    def postings(self, term: int, count: int) -> NDArray[np.uint32]:
        """Return the postings (document << 8 | occurrences) of a term among the first `count` documents, ascending."""
        postings = np.zeros(0, np.uint32)
        row = int(self._terms.searchsorted(np.uint32(term)))  # of the same type, or all would be converted
        if row < len(self._terms) and int(self._terms[row]) == term:
            postings = self._frozen_postings[self._starts[row] : self._starts[row + 1]]
        open_postings = self._open_postings.get(term)
        if open_postings is not None:
            later_postings = np.frombuffer(open_postings.tobytes(), np.uint32)
            postings = np.concatenate([postings, later_postings]) if len(postings) else later_postings
        if len(postings) and int(postings[-1]) >> 8 >= count:
            end = np.uint32(min(count << 8, 0xFFFFFFFF))
            postings = postings[: np.searchsorted(postings, end)]
        return postings

    def add_vectors(self, space: str, rows: Iterable[tuple[int, int, bytes]]) -> None:
        """Add (version, part, float16 bytes) rows of a space; rows without bytes are skipped."""
        own_rows = [
            (version - self.base - 1, part, data)
            for version, part, data in rows
            if version > self.base and data
        ]
        if not own_rows:
            return
        vectors = self.spaces.get(space)
        if vectors is None:
            vectors = self.spaces[space] = Vectors(len(own_rows[0][2]) // 2)
        vectors.extend(own_rows)


def _build_term_keys(
    terms: Sequence[Sequence[int]], codes: NDArray[Any], documents: Ints
) -> NDArray[np.uint64]:
    """Return the keys (term << 32 | document << 8 | 1 occurrence) of documents whose terms depend on a code alone.

    `terms` are the terms of each code, `codes` the code of each document.
    """
    # One row for each code, filled up with 0, which is no term.
    table = np.zeros((len(terms), max(map(len, terms), default=0)), np.uint64)
    for row, terms_of_code in zip(table, terms, strict=True):
        row[: len(terms_of_code)] = terms_of_code
    shifted_terms = table[codes] << np.uint64(32)
    postings = documents.astype(np.uint64) << np.uint64(8) | np.uint64(1)
    keys = shifted_terms | postings[:, None]
    return keys[shifted_terms > 0]


def _sort_and_merge_keys(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Sort keys, and merge those of the same term and document: one of the text, others of the date or the speaker.

    Their occurrences are added, up to 255.
    """
    keys.sort()
    starts = _find_run_starts(keys >> np.uint64(8))
    if len(starts) == len(keys):
        return keys
    counts = np.add.reduceat(keys & np.uint64(255), starts)
    return keys[starts] & ~np.uint64(255) | np.minimum(counts, 255)


def _find_run_starts(values: NDArray[Any]) -> Ints:
    """Return the positions of the values that differ from the one before, and of the first value."""
    is_start = np.ones(len(values), bool)
    is_start[1:] = values[1:] != values[:-1]
    return np.flatnonzero(is_start)


def _documents_of_keys(keys: NDArray[np.uint64]) -> Ints:
    """Return the documents of some keys."""
    return (keys.astype(np.uint32) >> np.uint32(8)).astype(np.int64)


def _fingerprint_documents(terms: NDArray[np.uint64], documents: Ints, count: int) -> NDArray[np.uint64]:
    """Return a hash for each of `count` documents, which does not depend on the order of its terms.

    `documents` has the document of each term; the terms of a document are adjacent.
    """
    sums = np.zeros(count, np.uint64)
    if len(terms):
        first_terms = _find_run_starts(documents)
        sums[documents[first_terms]] = np.add.reduceat(_mix_bits(terms), first_terms)
    return sums & np.uint64(0xFFFFFFFF)


def _mix_bits(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    products = (numbers + np.uint64(0x9E3779B9)) * np.uint64(0xBF58476D1CE4E5)
    return (products ^ products >> np.uint64(27)) & np.uint64(0xFFFFFFFF)


class ToolCallState(NamedTuple):
    """Which calls and answers of a tool group are among some documents."""

    #: Whether any document holds a call.
    are_included: bool
    #: Whether the documents hold an answer to each of their calls.
    all_answered: bool


class Snapshot:
    """The view of one read: the segments of a lineage, oldest first, each up to a number of documents."""

    #: Number of the log of each document; None if all are of one log.
    logs: Ints | None = None

    def __init__(self, pieces: Sequence[tuple[str, Segment, int]]) -> None:
        """Take (owner, segment, documents of it) pieces that follow each other without a gap."""
        self.pieces = tuple(pieces)
        self.count = sum(count for _, _, count in pieces)
        self._vectors = [
            {space: (vectors, vectors.count) for space, vectors in list(segment.spaces.items())}
            for _, segment, _ in pieces
        ]
        self._columns: dict[str, NDArray[Any]] = {}
        self._postings: dict[int, NDArray[np.uint32]] = {}

    def column(self, name: str) -> NDArray[Any]:
        """Return a field of all documents."""
        column = self._columns.get(name)
        if column is None:
            parts = [segment.columns[name][:count] for _, segment, count in self.pieces]
            parts = parts or [np.zeros(0, _COLUMNS[name])]
            column = self._columns[name] = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return column

    def has_special_documents(self) -> bool:
        """Return whether any document is not a plain message, or has lost its content."""
        for _, segment, count in self.pieces:
            special = segment.special_documents
            if segment.blanked or (special and special[0] < count):
                return True
        return False

    def labels(self) -> tuple[NDArray[Any], list[Label]]:
        """Return the label of each document as an index into a list of labels, and that list."""
        labels: list[Label] = []
        codes: list[NDArray[Any]] = []
        for _, segment, count in self.pieces:
            codes_of_segment = segment.columns["label"][:count]
            codes.append(codes_of_segment.astype(np.int64) + len(labels) if labels else codes_of_segment)
            labels.extend(segment.labels[: int(codes_of_segment.max(initial=0)) + 1])
        if len(codes) == 1:
            return codes[0], labels
        return np.concatenate([np.zeros(0, np.int64), *codes]), labels

    def vectors(self, space: str, dimension: int) -> list[tuple[Segment, int, Vectors, int]]:
        """Return (segment, documents in this snapshot, vectors, documents with vectors) for each segment of a space."""
        rows: list[tuple[Segment, int, Vectors, int]] = []
        for (_, segment, count), spaces in zip(self.pieces, self._vectors, strict=True):
            vectors, size = spaces.get(space, (None, 0))
            if vectors is not None and size and vectors.dimension == dimension:
                rows.append((segment, count, vectors, size))
        return rows

    def postings(self, term: int) -> NDArray[np.uint32]:
        """Return the postings of a term, cached because those of a query are read several times."""
        postings = self._postings.get(term)
        if postings is None:
            if len(self._postings) >= 64:
                self._postings = {}  # replaced, not cleared: recalls in other threads read it
            postings = self._postings[term] = self._read_postings(term)
        return postings

    def _read_postings(self, term: int) -> NDArray[np.uint32]:
        """Return the postings of a term in all segments, with documents numbered across them."""
        parts: list[NDArray[np.uint32]] = []
        for _, segment, count in self.pieces:
            postings_of_segment = segment.postings(term, count)
            if len(postings_of_segment):
                parts.append(
                    postings_of_segment + np.uint32(segment.base << 8)
                    if segment.base
                    else postings_of_segment
                )
        if not parts:
            return np.zeros(0, np.uint32)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def terms_of(self, document: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return the terms of a document, without those of its date and speaker, and how often it holds each."""
        _, segment, position = self.find_segment(document)
        terms = segment.terms_of(position)
        return terms >> np.uint32(8), terms & np.uint32(255)

    def find_segment(self, document: int) -> tuple[str, Segment, int]:
        """Return the owner and segment of a document, and its position there."""
        for owner, segment, count in reversed(self.pieces):
            if document >= segment.base and document < segment.base + count:
                return owner, segment, document - segment.base
        raise IndexError(document)

    def doc(self, document: int) -> IndexedEntry:
        """Return a document."""
        owner, segment, position = self.find_segment(document)
        doc = segment.docs.get(position)
        if doc is None:
            if len(segment.docs) >= MAX_CACHED_DOCUMENTS:
                segment.docs.clear()
            doc = segment.docs[position] = self._doc(owner, segment, position, document + 1)
        return doc

    def version(self, document: int) -> int:
        """Return the version of a document in its log."""
        return document + 1

    def locate(self, document: int) -> tuple[str, int]:
        """Return the context that owns a document, and its version there."""
        return self.find_segment(document)[0], document + 1

    def documents(self) -> Iterable[int]:
        """Return all documents, also inactive ones."""
        return range(self.count)

    def find(self, id: str) -> int | None:
        """Return the document of an entry; None if it is not in the snapshot."""
        parsed = parse_entry_id(id)
        if parsed is None or not 1 <= parsed[1] <= self.count:
            return None
        document = parsed[1] - 1
        return document if self.doc(document).id == id else None

    def mask_owned(self, owners: Collection[str]) -> NDArray[np.bool_]:
        """Return which documents are entries that some contexts own."""
        is_owned = np.zeros(self.count, bool)
        for owner, segment, count in self.pieces:
            is_owned[segment.base : segment.base + count] = owner in owners
        return is_owned

    def _doc(self, owner: str, segment: Segment, position: int, version: int) -> IndexedEntry:
        """Return the document at a position of a segment, made from its columns."""
        columns = segment.columns
        label = segment.labels[columns["label"].item(position)]
        group: int = columns["group"].item(position)
        nonce: str = columns["nonce"].item(position).decode()
        return IndexedEntry(
            entry_id(label.kind, owner, version, nonce),
            version,
            label.kind,
            label.role,
            label.actor,
            label.markers,
            columns["tokens"].item(position),
            columns["episode"].item(position),
            None if group < 0 else segment.names[group],
            external=bool(columns["flags"].item(position) & EXTERNAL),
        )

    def is_ungrouped(self, document: int) -> bool:
        """Whether a document belongs to no tool group."""
        _, segment, position = self.find_segment(document)
        return bool(segment.columns["group"].item(position) < 0)

    def members(self, document: int) -> list[int]:
        """Return the documents of a document's tool group, itself at least, ascending."""
        _, segment, position = self.find_segment(document)
        group = int(segment.columns["group"][position])
        if group < 0:
            return [document]
        name = segment.names[group]
        members: list[int] = []
        for _, other_segment, count in self.pieces:
            code = other_segment.groups.get(name)
            if code is not None:
                members += [
                    other_segment.base + member for member in other_segment.members[code] if member < count
                ]
        return members

    def tool_call_state(self, documents: Iterable[int]) -> ToolCallState:
        """Return which calls and answers of a tool group are among some of its documents."""
        calls: set[int] = set()
        answers: set[int] = set()
        for document in documents:
            _, segment, position = self.find_segment(document)
            own_calls, own_answers = segment.links[position]
            calls.update(own_calls)
            answers.update(own_answers)
        return ToolCallState(are_included=bool(calls), all_answered=calls <= answers)
