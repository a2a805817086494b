"""The retrieval index of a log, in memory: postings, vectors and a few fields per entry.

A `Segment` holds the entries one context owns and only grows; the entry of version v is document v - 1. A `Snapshot` is
what one read sees of it: the segments of a lineage, each up to a length. So a fork shares its ancestors' segments, a
past version is a prefix, and a reader never waits for a writer: what is added lies beyond the length it has taken.

Nothing is derived when a document is added that a later one could change: neighbourhoods, days, document frequencies
and average lengths are computed for each query from the prefix it sees (rule 2.9).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from acms.core.cards import EMPTY, HEADER, REPLACES, Label, read_group, read_label
from acms.core.chain import entry_id
from acms.core.history import Doc
from acms.core.terms import day_terms, terms, words
from acms.model import Kind

Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int64]

DOCUMENTS = 1 << 24
"""Documents a segment can count: a posting is document << 8 | occurrences."""
BULK = 512
"""From this many cards on a new segment is built by sorting instead of one card after another."""
BLOCK = 4096
"""Vectors in one block of memory; blocks are filled and never moved."""
DAY = 1440
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


class Vectors:
    """The vectors of one space in one segment, in the order in which they came; those of a document come together."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.blocks: list[Floats] = []
        #: Sign bits of each block: 64 dimensions a row.
        self.signs: list[NDArray[np.uint64]] = []
        #: Documents in order of arrival, and where the vectors of each begin; one more is where the last ones end.
        self.documents = np.zeros(64, np.int32)
        self.begin = np.zeros(65, np.int64)
        self.count = 0
        #: Place of a document among `documents`; -1 for one without vectors.
        self.slot = np.full(64, -1, np.int32)
        #: Whether every document up to the last one has vectors, in order.
        self.straight = True

    def extend(self, rows: Iterable[tuple[int, int, bytes]]) -> None:
        """Add (document, part, little-endian float16 vector) rows; a document that has vectors keeps those it has."""
        found: dict[int, list[bytes]] = {}
        for document, _, data in sorted(rows, key=lambda row: row[:2]):
            if len(data) == 2 * self.dimension and (document >= len(self.slot) or self.slot[document] < 0):
                found.setdefault(document, []).append(data)
        if not found:
            return
        matrix = np.frombuffer(b"".join([data for parts in found.values() for data in parts]), "<f2")
        values = matrix.reshape(-1, self.dimension).astype(np.float32)
        norms = np.sqrt(np.einsum("ij,ij->i", values, values))
        values /= np.where(norms > 0, norms, 1)[:, None]
        count = self.count + len(found)
        while len(self.documents) < count:
            self.documents = np.concatenate([self.documents, np.zeros_like(self.documents)])
            self.begin = np.concatenate([self.begin, np.zeros(len(self.begin) - 1, np.int64)])
        while len(self.slot) <= max(found):
            self.slot = np.concatenate([self.slot, np.full_like(self.slot, -1)])
        sizes = np.fromiter(map(len, found.values()), np.int64, len(found))
        documents = np.fromiter(found, np.int32, len(found))
        total = int(self.begin[self.count])
        self._fill(values, total)
        self.documents[self.count : count] = documents
        self.begin[self.count + 1 : count + 1] = total + np.cumsum(sizes)
        self.slot[documents] = np.arange(self.count, count)
        self.straight = self.straight and bool((documents == self.slot[documents]).all())
        self.count = count

    def _fill(self, values: Floats, total: int) -> None:
        done = 0
        while done < len(values):
            start = (total + done) % BLOCK
            if start == 0:
                self.blocks.append(np.zeros((BLOCK, self.dimension), np.float32))
                self.signs.append(np.zeros(((self.dimension + 63) // 64, BLOCK), np.uint64))
            size = min(BLOCK - start, len(values) - done)
            some = values[done : done + size]
            self.blocks[-1][start : start + size] = some
            self.signs[-1][:, start : start + size] = signs(some)
            done += size

    def rows(self, places: Ints) -> Floats:
        """Return vectors by their places."""
        found = np.empty((len(places), self.dimension), np.float32)
        for here, rows in self._taken(places):
            found[here] = rows
        return found

    def products(self, places: Ints, query: Floats) -> Floats:
        """Return the inner products of vectors with another one, a block at a time: they are gone through only once."""
        found = np.empty(len(places), np.float32)
        for here, rows in self._taken(places):
            found[here] = np.einsum("ij,j->i", rows, query)
        return found

    def _taken(self, places: Ints) -> Iterator[tuple[Ints, Floats]]:
        """Yield vectors of each block that has any, and where among the places they stand."""
        order = np.argsort(places, kind="stable")
        blocks, rows = np.divmod(places[order], BLOCK)
        ends = np.searchsorted(blocks, np.arange(len(self.blocks)), side="right").tolist()
        start = 0
        for block, end in zip(self.blocks, ends, strict=False):
            if start < end:
                yield order[start:end], block[rows[start:end]]
            start = end

    @property
    def bytes(self) -> int:
        """What it takes in memory."""
        held = sum(block.nbytes for block in self.blocks) + sum(block.nbytes for block in self.signs)
        return held + self.documents.nbytes + self.begin.nbytes + self.slot.nbytes


def signs(values: Floats) -> NDArray[np.uint64]:
    """Return the signs of vectors as bits, 64 dimensions a row and a vector a column."""
    bits = np.packbits(values > 0, axis=1)
    width = -bits.shape[1] % 8
    padded = np.pad(bits, ((0, 0), (0, width))) if width else bits
    return np.ascontiguousarray(np.ascontiguousarray(padded).view(np.uint64).T)


class Segment:
    """The documents one context owns: versions `base` + 1 and on."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.count = 0
        self.columns: dict[str, NDArray[Any]] = {
            name: np.zeros(64, dtype) for name, dtype in _COLUMNS.items()
        }
        #: Documents that are no plain message: facts, summaries, edits, retractions, and what is gone.
        self.odd: list[int] = []
        #: The first one is that of what is gone; the others in the order in which they came.
        self.labels: list[Label] = [Label(Kind.EPISODE, None, None, ())]
        self._labels: dict[bytes, int] = {}
        self._spoken: list[tuple[int, ...]] = [()]
        self.groups: dict[str, int] = {}
        self.names: list[str] = []
        #: Documents of a tool group, and what each of them calls and answers.
        self.members: dict[int, list[int]] = {}
        self.links: dict[int, tuple[Sequence[int], Sequence[int]]] = {}
        self._terms = np.zeros(0, np.uint32)
        self._starts = np.zeros(1, np.int64)
        self._frozen = np.zeros(0, np.uint32)
        self._open: dict[int, array[int]] = {}
        self.spaces: dict[str, Vectors] = {}
        #: Documents whose content was found to be gone.
        self.blanked: set[int] = set()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """What it takes in memory, counted."""
        arrays = (
            sum(column.nbytes for column in self.columns.values())
            + self._terms.nbytes
            + self._starts.nbytes
            + self._frozen.nbytes
        )
        return arrays + self._bytes + sum(vectors.bytes for vectors in self.spaces.values())

    def extend(self, cards: Sequence[bytes | None]) -> None:
        """Add the cards of the versions that follow; None for an entry that has none any more."""
        if self.count + len(cards) > DOCUMENTS:
            raise OverflowError(f"a log is indexed up to {DOCUMENTS} entries")
        size = len(self.columns["flags"])
        if size < self.count + len(cards):
            more = max(size, self.count + len(cards) - size)
            self.columns = {
                name: np.concatenate([column, np.zeros(more, column.dtype)])
                for name, column in self.columns.items()
            }
        if self.count == 0 and len(cards) >= BULK:
            self._build(cards)
        else:
            for card in cards:
                self._add(card)

    # ── one card ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, card: bytes | None) -> None:
        document = self.count
        columns = self.columns
        if card is None:
            columns["flags"][document], columns["group"][document] = EMPTY, -1
            self.odd.append(document)
            self.count += 1
            return
        minute, tokens, episode, nonce, flags, exact, label, group, size, repeated = HEADER.unpack_from(card)
        at = HEADER.size
        code = self._label(card[at : at + label])
        at += label
        found = self._group(document, card[at : at + group]) if group else -1
        at += group
        packed = np.frombuffer(card, np.uint8, 3 * size, at).reshape(-1, 3).astype(np.uint32)
        numbers: list[int] = (packed @ np.array([1, 256, 65_536], np.uint32)).tolist()
        counts = dict.fromkeys(numbers, 1)
        counts.update(zip(numbers[:repeated], card[at + 3 * size : at + 3 * size + repeated], strict=True))
        for number in (*day_terms(minute // DAY), *self._spoken[code]):
            counts[number] = counts.get(number, 0) + 1
        length = 0
        for number, count in counts.items():
            count = min(count, 255)
            length += count
            posting = self._open.get(number)
            if posting is None:
                posting = self._open[number] = array("I")
                self._bytes += 180
            posting.append(document << 8 | count)
        self._bytes += 5 * len(counts)
        if flags & REPLACES or self.labels[code].kind is not Kind.MESSAGE:
            self.odd.append(document)
        fields = (minute, tokens, episode, nonce, flags, exact, code, found, length, _print(packed))
        for column, value in zip(columns.values(), fields, strict=True):
            column[document] = value
        self.count += 1

    def _label(self, data: bytes) -> int:
        code = self._labels.get(data)
        if code is None:
            code = self._labels[data] = len(self.labels)
            label = read_label(data)
            self.labels.append(label)
            self._spoken.append(tuple(terms(words(label.actor))) if label.actor else ())
            self._bytes += 400
        return code

    def _group(self, document: int, data: bytes) -> int:
        name, calls, answers = read_group(data)
        code = self.groups.get(name)
        if code is None:
            code = self.groups[name] = len(self.names)
            self.names.append(name)
        self.members.setdefault(code, []).append(document)
        self.links[document] = (calls, answers)
        self._bytes += 300
        return code

    # ── many cards ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _build(self, cards: Sequence[bytes | None]) -> None:
        blank = HEADER.pack(0, 0, 0, b"", EMPTY, 0, 0, 0, 0, 0)
        written = [blank if card is None else card for card in cards]
        buffer = np.frombuffer(b"".join(written), np.uint8)
        sizes = np.fromiter(map(len, written), np.int64, len(written))
        starts = np.cumsum(sizes) - sizes
        head = buffer[starts[:, None] + np.arange(HEADER.size)].view(_HEADER)[:, 0]
        size = len(cards)
        columns = self.columns
        for name in ("minute", "tokens", "episode", "nonce", "flags", "exact"):
            columns[name][:size] = head[name]
        columns["group"][:size] = -1
        labels = head["label"].tolist()
        groups = head["group"].tolist()
        codes: list[int] = []
        for document, card in enumerate(cards):
            if card is None:
                codes.append(0)
                continue
            start = HEADER.size + labels[document]
            codes.append(self._label(card[HEADER.size : start]))
            if groups[document]:
                columns["group"][document] = self._group(document, card[start : start + groups[document]])
        columns["label"][:size] = codes
        there = np.fromiter((card is not None for card in cards), bool, size)
        plain = np.fromiter((label.kind is Kind.MESSAGE for label in self.labels), bool, len(self.labels))
        usual = there & ((head["flags"] & REPLACES) == 0)
        usual &= plain[columns["label"][:size].astype(np.int64)]
        self.odd = np.flatnonzero(~usual).tolist()
        self._post(buffer, starts + HEADER.size + head["label"] + head["group"], head, there)
        self.count = size

    def _post(
        self,
        buffer: NDArray[np.uint8],
        starts: Ints,
        head: NDArray[Any],
        there: NDArray[np.bool_],
    ) -> None:
        """Sort the terms of all cards into postings: keys are term << 32 | document << 8 | occurrences."""
        sizes = head["terms"].astype(np.int64)
        documents = np.repeat(np.arange(len(sizes)), sizes)
        rank = np.arange(len(documents)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        places = np.repeat(starts, sizes) + 3 * rank
        packed = buffer.take(places).astype(np.uint32)
        for byte in (1, 2):
            places += 1
            packed |= buffer.take(places).astype(np.uint32) << np.uint32(8 * byte)
        numbers = packed.astype(np.uint64)
        counts = np.ones(len(documents), np.uint64)
        many = rank < np.repeat(head["repeated"].astype(np.int64), sizes)
        counts[many] = buffer[(np.repeat(starts + 3 * sizes, sizes) + rank)[many]]
        columns = self.columns
        columns["print"][: len(sizes)] = _prints(numbers, documents, len(sizes))
        extra_terms: list[NDArray[np.uint64]] = []
        extra_documents: list[Ints] = []
        days = columns["minute"][: len(sizes)] // DAY
        dated = np.flatnonzero(there)
        dated = dated[np.argsort(days[dated], kind="stable")]
        for said in np.split(dated, np.flatnonzero(np.diff(days[dated])) + 1) if len(dated) else ():
            self._also(day_terms(int(days[said[0]])), said, extra_terms, extra_documents)
        for code, spoken in enumerate(self._spoken):
            if spoken:
                said = np.flatnonzero(there & (columns["label"][: len(sizes)] == code))
                self._also(spoken, said, extra_terms, extra_documents)
        numbers = np.concatenate([numbers, *extra_terms])
        documents = np.concatenate([documents, *extra_documents])
        counts = np.concatenate([counts, np.ones(len(documents) - len(counts), np.uint64)])
        keys = numbers << np.uint64(32) | documents.astype(np.uint64) << np.uint64(8) | counts
        keys.sort()
        places_ = keys >> np.uint64(8)
        first = np.flatnonzero(np.concatenate([[True], places_[1:] != places_[:-1]])) if len(keys) else []
        if len(keys):
            summed = np.minimum(np.add.reduceat(keys & np.uint64(255), first), 255)
            keys = keys[first] & ~np.uint64(255) | summed
        numbers = (keys >> np.uint64(32)).astype(np.uint32)
        change = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
        begins = np.concatenate([[0], change]).astype(np.int64) if len(keys) else np.zeros(0, np.int64)
        self._terms = numbers[begins]
        self._starts = np.concatenate([begins, [len(keys)]]).astype(np.int64)
        self._frozen = (keys & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        columns["length"][: len(sizes)] = np.bincount(
            (self._frozen >> np.uint32(8)).astype(np.int64),
            (self._frozen & np.uint32(255)).astype(np.float64),
            len(sizes),
        )

    def _also(
        self,
        numbers: Sequence[int],
        documents: Ints,
        extra_terms: list[NDArray[np.uint64]],
        extra_documents: list[Ints],
    ) -> None:
        for number in numbers:
            extra_terms.append(np.full(len(documents), number, np.uint64))
            extra_documents.append(documents)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def postings(self, number: int, count: int) -> NDArray[np.uint32]:
        """Return the postings of a term among the first `count` documents, ascending."""
        found = np.zeros(0, np.uint32)
        at = int(np.searchsorted(self._terms, number))
        if at < len(self._terms) and int(self._terms[at]) == number:
            found = self._frozen[self._starts[at] : self._starts[at + 1]]
        later = self._open.get(number)
        if later is not None:
            added = np.frombuffer(later.tobytes(), np.uint32)
            found = np.concatenate([found, added]) if len(found) else added
        if len(found) and int(found[-1]) >> 8 >= count:
            found = found[: np.searchsorted(found, np.uint32(min(count << 8, 0xFFFFFFFF)))]
        return found

    def add_vectors(self, space: str, rows: Iterable[tuple[int, int, bytes]]) -> None:
        """Add (version, part, float16 bytes) rows of a space; no bytes stand for an entry without content."""
        own = [
            (version - self.base - 1, part, data)
            for version, part, data in rows
            if version > self.base and data
        ]
        if not own:
            return
        vectors = self.spaces.get(space)
        if vectors is None:
            vectors = self.spaces[space] = Vectors(len(own[0][2]) // 2)
        vectors.extend(own)


def _print(packed: NDArray[np.uint32]) -> int:
    """Return a number that is the same for the same terms in any order, and rarely otherwise."""
    numbers = packed[:, 0] | packed[:, 1] << 8 | packed[:, 2] << 16
    return int((_mixed(numbers.astype(np.uint64))).sum(dtype=np.uint64) & np.uint64(0xFFFFFFFF))


def _prints(numbers: NDArray[np.uint64], documents: Ints, count: int) -> NDArray[np.uint64]:
    sums = np.zeros(count, np.uint64)
    if len(numbers):
        first = np.flatnonzero(np.concatenate([[True], documents[1:] != documents[:-1]]))
        sums[documents[first]] = np.add.reduceat(_mixed(numbers), first)
    return sums & np.uint64(0xFFFFFFFF)


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = (numbers + np.uint64(0x9E3779B9)) * np.uint64(0xBF58476D1CE4E5)
    return (mixed ^ mixed >> np.uint64(27)) & np.uint64(0xFFFFFFFF)


class Snapshot:
    """What one read sees: the segments of a lineage, oldest first, each up to a number of documents."""

    def __init__(self, pieces: Sequence[tuple[str, Segment, int]]) -> None:
        """Take (owner, segment, documents of it) pieces that follow each other without a gap."""
        self.pieces = tuple(pieces)
        self.count = sum(count for _, _, count in pieces)
        self._held = [
            {space: (vectors, vectors.count) for space, vectors in list(segment.spaces.items())}
            for _, segment, _ in pieces
        ]
        self._columns: dict[str, NDArray[Any]] = {}

    def column(self, name: str) -> NDArray[Any]:
        """Return a field of all documents."""
        found = self._columns.get(name)
        if found is None:
            parts = [segment.columns[name][:count] for _, segment, count in self.pieces]
            parts = parts or [np.zeros(0, _COLUMNS[name])]
            found = self._columns[name] = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return found

    def odd(self) -> bool:
        """Whether any document is no plain message, or is gone."""
        return any(
            bool(segment.blanked) or (len(segment.odd) > 0 and segment.odd[0] < count)
            for _, segment, count in self.pieces
        )

    def labels(self) -> tuple[NDArray[Any], list[Label]]:
        """Return the label of each document as an index into a list, which has none that came later."""
        labels: list[Label] = []
        codes: list[NDArray[Any]] = []
        for _, segment, count in self.pieces:
            own = segment.columns["label"][:count]
            codes.append(own.astype(np.int64) + len(labels) if labels else own)
            labels.extend(segment.labels[: int(own.max(initial=0)) + 1])
        if len(codes) == 1:
            return codes[0], labels
        return np.concatenate([np.zeros(0, np.int64), *codes]), labels

    def vectors(self, space: str, dimension: int) -> list[tuple[Segment, int, Vectors, int]]:
        """Return each segment with vectors of a space, its documents, and how many of them had vectors."""
        found: list[tuple[Segment, int, Vectors, int]] = []
        for (_, segment, count), spaces in zip(self.pieces, self._held, strict=True):
            vectors, size = spaces.get(space, (None, 0))
            if vectors is not None and size and vectors.dimension == dimension:
                found.append((segment, count, vectors, size))
        return found

    def postings(self, number: int) -> NDArray[np.uint32]:
        """Return the postings of a term."""
        found: list[NDArray[np.uint32]] = []
        for _, segment, count in self.pieces:
            own = segment.postings(number, count)
            if len(own):
                found.append(own + np.uint32(segment.base << 8) if segment.base else own)
        if not found:
            return np.zeros(0, np.uint32)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def where(self, document: int) -> tuple[str, Segment, int]:
        """Return the owner and segment of a document, and its place there."""
        for owner, segment, count in reversed(self.pieces):
            if document >= segment.base and document < segment.base + count:
                return owner, segment, document - segment.base
        raise IndexError(document)

    def doc(self, document: int) -> Doc:
        """Return a document."""
        owner, segment, place = self.where(document)
        columns = segment.columns
        label = segment.labels[columns["label"].item(place)]
        group: int = columns["group"].item(place)
        nonce: str = columns["nonce"].item(place).decode()
        return Doc(
            entry_id(label.kind, owner, document + 1, nonce),
            document + 1,
            label.kind,
            label.role,
            label.actor,
            label.markers,
            columns["tokens"].item(place),
            columns["episode"].item(place),
            None if group < 0 else segment.names[group],
        )

    def alone(self, document: int) -> bool:
        """Whether a document belongs to no tool group."""
        _, segment, place = self.where(document)
        return bool(segment.columns["group"].item(place) < 0)

    def members(self, document: int) -> list[int]:
        """Return the documents of a document's tool group, itself at least, ascending."""
        _, segment, place = self.where(document)
        group = int(segment.columns["group"][place])
        if group < 0:
            return [document]
        name = segment.names[group]
        found: list[int] = []
        for _, other, count in self.pieces:
            code = other.groups.get(name)
            if code is not None:
                found.extend(other.base + member for member in other.members[code] if member < count)
        return found

    def answered(self, documents: Iterable[int]) -> tuple[bool, bool]:
        """Return whether the documents of a tool group hold its calls, and an answer to each of them."""
        calls: set[int] = set()
        answers: set[int] = set()
        for document in documents:
            _, segment, place = self.where(document)
            made, given = segment.links[place]
            calls.update(made)
            answers.update(given)
        return bool(calls), calls <= answers
