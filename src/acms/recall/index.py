"""The retrieval index of a log, in memory: postings, vectors and a few fields per entry.

A `Segment` holds the entries one context owns and only grows; the entry of version v is document v - 1. A `Snapshot` is
the view of one read: the segments of a lineage, each up to a length. So a fork shares its ancestors' segments, a past
version is a prefix, and a reader never waits for a writer: new documents lie beyond the length it has taken.

Nothing is derived when a document is added that a later one could change: neighbourhoods, days, document frequencies
and average lengths are computed for each query from the prefix it sees (rule 2.9).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from acms.log.encoding import entry_id, parse_entry_id
from acms.log.in_force import Doc
from acms.model import Json, Kind
from acms.text.index_record import EMPTY, EXTERNAL, HEADER, REPLACES, Label, read_group, read_label
from acms.text.tokenizer import day_terms, searchable_terms

Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int64]

BLOCK = 4096
"""Vectors in one block of memory; blocks are filled and never moved."""
SLAB = 32
"""Blocks of signs in one piece of memory, once there are many: they are gone through twice as fast."""
AT_HAND = 256
"""Vectors that are brought in at a time."""
THREE = 3
"""Rows of signs that are counted together: three times 64 is what a byte holds."""


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
        size = 2 * self.dimension
        kept = [
            row for row in rows if len(row[2]) == size and (row[0] >= len(self.slot) or self.slot[row[0]] < 0)
        ]
        if not kept:
            return
        of = np.fromiter((row[0] for row in kept), np.int64, len(kept))
        order = np.lexsort((np.fromiter((row[1] for row in kept), np.int64, len(kept)), of))
        owners = of[order]
        first = np.append(0, np.flatnonzero(owners[1:] != owners[:-1]) + 1)
        documents = owners[first]
        count = self.count + len(documents)
        while len(self.documents) < count:
            self.documents = np.concatenate([self.documents, np.zeros_like(self.documents)])
            self.begin = np.concatenate([self.begin, np.zeros(len(self.begin) - 1, np.int64)])
        while len(self.slot) <= int(documents[-1]):
            self.slot = np.concatenate([self.slot, np.full_like(self.slot, -1)])
        total = int(self.begin[self.count])
        self._fill([row[2] for row in kept], order, total)
        self.documents[self.count : count] = documents
        self.begin[self.count + 1 : count + 1] = total + np.append(first[1:], len(owners))
        self.slot[documents] = np.arange(self.count, count)
        self.straight = self.straight and bool((documents == self.slot[documents]).all())
        self.count = count

    def _fill(self, data: Sequence[bytes], order: Ints, total: int) -> None:
        """Add vectors in an order, in small batches: each is normalised and packed right after it is read."""
        done = 0
        while done < len(order):
            start = (total + done) % BLOCK
            if start == 0:
                self.blocks.append(np.zeros((BLOCK, self.dimension), np.float32))
                if len(self.signs) < len(self.blocks):
                    many = SLAB if len(self.signs) >= SLAB else 1
                    self.signs.extend(np.zeros((many, (self.dimension + 63) // 64, BLOCK), np.uint64))
            size = min(BLOCK - start, len(order) - done, AT_HAND)
            joined = b"".join([data[position] for position in order[done : done + size].tolist()])
            values = self.blocks[-1][start : start + size]
            widen_halves(np.frombuffer(joined, "<i2").reshape(size, self.dimension), values)
            norms = np.sqrt(np.einsum("ij,ij->i", values, values))
            values /= np.where(norms > 0, norms, 1)[:, None]
            self.signs[len(self.blocks) - 1][:, start : start + size] = pack_signs(values)
            done += size

    def rows(self, positions: Ints) -> Floats:
        """Return vectors by their positions."""
        found = np.empty((len(positions), self.dimension), np.float32)
        self.fill(found, np.arange(len(positions)), positions)
        return found

    def fill(self, found: Floats, own: Ints, positions: Ints) -> None:
        """Write the vectors at some positions into these rows of a matrix."""
        order = np.argsort(positions)
        own = own[order]
        for low, high, rows in self._taken(positions[order]):
            found[own[low:high]] = rows

    def products(self, positions: Ints, query: Floats) -> Floats:
        """Return the inner products of another vector with those at ascending positions, one by one the same."""
        found = np.empty(len(positions), np.float32)
        for low, high, rows in self._taken(positions):
            np.vecdot(rows, query, out=found[low:high])
        return found

    def _taken(self, positions: Ints) -> Iterator[tuple[int, int, Floats]]:
        """Yield vectors at ascending positions, block by block: first, last, and the rows."""
        ends = np.searchsorted(positions, np.arange(1, len(self.blocks) + 1) * BLOCK).tolist()
        start = 0
        for number, end in enumerate(ends):
            if start < end:
                own = positions[start:end] - number * BLOCK
                yield (
                    start,
                    end,
                    self.blocks[number].take(own, axis=0, mode="clip"),
                )  # not checked, so not twice
            start = end

    def scored(self, query: Floats, size: int) -> Floats:
        """Return the inner products of another vector with the first ones."""
        found = np.empty(size, np.float32)
        for low, block in zip(range(0, size, BLOCK), self.blocks, strict=False):
            part = found[low : low + BLOCK]
            np.dot(block[: len(part)], query, out=part)
        return found

    def apart(self, code: NDArray[np.uint64], size: int) -> NDArray[np.int16]:
        """Return in how many signs the nearest vector of each of the first documents differs from another one."""
        found = np.empty(int(self.begin[size]), np.int16)
        # Two operands of one shape: against one that is broadcast numpy takes twice as long. A block is gone through
        # whole, also when its last positions hold nothing yet.
        other = np.repeat(code[:, None], BLOCK, axis=1)
        mixed = np.empty(other.shape, np.uint64)
        counts = np.zeros((-(-len(code) // THREE), THREE, BLOCK), np.uint8)
        counted = counts.reshape(-1, BLOCK)[: len(code)]
        sums = np.empty((len(counts), BLOCK), np.uint8)
        for low, block in zip(range(0, len(found), BLOCK), self.signs, strict=False):
            np.bitwise_xor(block, other, out=mixed)
            np.bitwise_count(mixed, out=counted)
            np.add.reduce(counts, axis=1, dtype=np.uint8, out=sums)
            part = found[low : low + BLOCK]
            np.add.reduce(sums[:, : len(part)], axis=0, dtype=np.int16, out=part)
        return found if len(found) == size else np.minimum.reduceat(found, self.begin[:size])

    @property
    def bytes(self) -> int:
        """Bytes it takes in memory."""
        held = sum(block.nbytes for block in self.blocks) + sum(block.nbytes for block in self.signs)
        return held + self.documents.nbytes + self.begin.nbytes + self.slot.nbytes


def widen_halves(halves: NDArray[np.int16], out: Floats) -> None:
    """Write finite half-precision numbers, given by their bits, as single-precision ones.

    The bits are shifted and the exponent is corrected by a product, which is exact. It takes a third of the time of a
    conversion by numpy.
    """
    bits = out.view(np.int32)
    np.left_shift(halves, 13, out=bits, dtype=np.int32)
    bits &= _PLACES
    out *= np.float32(2.0**112)


_PLACES = np.int32(0x8FFFE000 - (1 << 32))
"""Sign, exponent and fraction of a half-precision number at their positions in a single-precision one."""


def pack_signs(values: Floats) -> NDArray[np.uint64]:
    """Return the signs of vectors as bits, 64 dimensions a row and a vector a column."""
    bits = np.packbits(values > 0, axis=1)
    width = -bits.shape[1] % 8
    padded = np.pad(bits, ((0, 0), (0, width))) if width else bits
    return np.ascontiguousarray(np.ascontiguousarray(padded).view(np.uint64).T)


DOCUMENTS = 1 << 24
"""Documents a segment can count: a posting is document << 8 | occurrences."""
BULK = 8
"""From this many cards on a new segment is built by sorting instead of one card after another."""
TOGETHER = 1024
"""Cards whose terms are unpacked at a time."""
VERY_MANY = 1 << 23
"""Keys that are put in order where they lie."""
SLICE = 1 << 20
"""Keys that are gone through at a time."""
DOCS = 4096
"""Documents of a segment that are kept as they were read."""
DOC_BYTES = 500
"""What each of them takes."""
DAY = 1440
"""Minutes of a day."""
ASKED = 64
"""Terms whose postings a snapshot keeps at hand."""

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

    #: Number of erasures in its fork tree when it was built: all logs that share it know it under this number.
    epoch = 0
    #: Bytes it took in memory when it was last used.
    counted = 0

    def __init__(self, base: int) -> None:
        self.base = base
        self.count = 0
        self.columns: dict[str, NDArray[Any]] = {
            name: np.zeros(64, dtype) for name, dtype in _COLUMNS.items()
        }
        #: Documents that are not plain messages: facts, summaries, edits, retractions, and deleted content.
        self.odd: list[int] = []
        #: The first one is that of deleted content; the others in the order in which they came.
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
        #: What each document says, document by document: term << 8 | occurrences, and where those of each end.
        self._terms_by_document = array("I")
        self._ends = array("Q")
        self.spaces: dict[str, Vectors] = {}
        #: Documents whose content was found to be gone.
        self.blanked: set[int] = set()
        self._bytes = 0
        #: Documents as they were read last, by position: the same ones are read by one recall after another.
        self.docs: dict[int, Doc] = {}
        #: When documents were said and what their callers noted, by position: read when a filter asks for it.
        self.noted: dict[int, tuple[datetime, Mapping[str, Json]]] = {}

    @property
    def bytes(self) -> int:
        """Bytes it takes in memory, counted."""
        arrays = (
            sum(column.nbytes for column in self.columns.values())
            + self._terms.nbytes
            + self._starts.nbytes
            + self._frozen.nbytes
            + 4 * len(self._terms_by_document)
            + 8 * len(self._ends)
        )
        arrays += DOC_BYTES * (len(self.docs) + len(self.noted))
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
            self._ends.append(len(self._terms_by_document))
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
        said = card[at + 3 * size : at + 3 * size + repeated]
        counts.update((number, count or 1) for number, count in zip(numbers[:repeated], said, strict=True))
        self._terms_by_document.extend([number << 8 | min(count, 255) for number, count in counts.items()])
        self._ends.append(len(self._terms_by_document))
        for number in (*day_terms(minute // DAY), *self._spoken[code]):
            counts[number] = counts.get(number, 0) + 1
        length = -said.count(0)  # terms added for a name do not make a text longer
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
        fields = (
            minute,
            tokens,
            episode,
            nonce,
            flags,
            exact,
            code,
            found,
            length,
            _fingerprint_terms(packed),
        )
        for column, value in zip(columns.values(), fields, strict=True):
            column[document] = value
        self.count += 1

    def _label(self, data: bytes) -> int:
        code = self._labels.get(data)
        if code is None:
            code = self._labels[data] = len(self.labels)
            label = read_label(data)
            self.labels.append(label)
            self._spoken.append(tuple(searchable_terms(label.actor)) if label.actor else ())
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
        also = self._also(there)
        total = int(sizes.sum())
        keys = np.empty(total + len(also), np.uint64)
        keys[total:] = also
        done = 0
        for low in range(0, len(sizes), TOGETHER):
            part = slice(low, low + TOGETHER)
            found = self._keys(buffer, starts[part], sizes[part], head["repeated"][part], low)
            keys[done : done + len(found)] = found
            done += len(found)
            said = found >> np.uint64(24) & ~np.uint64(255) | found & np.uint64(255)
            self._terms_by_document.frombytes(said.astype(np.uint32).tobytes())
        self._ends = array("Q", np.cumsum(sizes).astype(np.uint64).tobytes())
        lengths = self.columns["length"]
        lengths[: len(sizes)] += np.bincount(_documents_of_keys(also), minlength=len(sizes))
        keys = _sort_keys(keys)
        # A term of the text that is also one of the date or of the speaker.
        twice = _find_key_changes(keys, lambda near: near < 256)
        if len(twice):
            again = np.zeros(len(keys), bool)
            again[twice] = again[twice + 1] = True
            both = np.flatnonzero(again)
            some = keys[both]
            first = np.flatnonzero(np.diff(some >> np.uint64(8), prepend=np.uint64(0)))
            summed = np.add.reduceat(some & np.uint64(255), first)
            keys[both[first]] = some[first] & ~np.uint64(255) | np.minimum(summed, 255)
            np.subtract.at(lengths, _documents_of_keys(some[first]), np.maximum(summed, 255) - np.uint64(255))
            keys = np.delete(keys, twice + 1)
        begins = _find_key_changes(keys, lambda near: near >= 1 << 32) + 1
        begins = np.concatenate([np.zeros(min(1, len(keys)), np.int64), begins])
        self._terms = (keys[begins] >> np.uint64(32)).astype(np.uint32)
        self._starts = np.append(begins, len(keys))
        self._frozen = keys.astype(np.uint32)

    def _keys(
        self, buffer: NDArray[np.uint8], starts: Ints, sizes: Ints, repeated: NDArray[np.uint16], low: int
    ) -> NDArray[np.uint64]:
        """Return the keys of the terms of some cards, which begin at a document."""
        ends = np.cumsum(sizes)
        documents = np.repeat(np.arange(len(sizes)), sizes)
        rank = np.arange(len(documents)) - (ends - sizes)[documents]
        positions = starts[documents] + 3 * rank
        numbers = buffer[positions].astype(np.uint32)
        for byte in (1, 2):
            positions += 1
            numbers |= buffer[positions].astype(np.uint32) << np.uint32(8 * byte)
        counts = np.ones(len(documents), np.uint64)
        many = np.flatnonzero(rank < repeated[documents])
        counts[many] = buffer[(starts + 3 * sizes)[documents[many]] + rank[many]]
        wide = numbers.astype(np.uint64)
        columns = self.columns
        columns["length"][low : low + len(sizes)] = np.bincount(documents, counts, len(sizes))
        columns["print"][low : low + len(sizes)] = _fingerprint_documents(wide, documents, len(sizes))
        wide <<= np.uint64(32)
        wide |= np.maximum(counts, np.uint64(1))
        documents += low
        wide |= documents.astype(np.uint64) << np.uint64(8)
        return wide

    def _also(self, there: NDArray[np.bool_]) -> NDArray[np.uint64]:
        """Return the keys of the terms that come from the fields: date and speaker."""
        documents = np.flatnonzero(there)
        days, of_day = np.unique(self.columns["minute"][documents] // DAY, return_inverse=True)
        found = _build_term_keys([day_terms(day) for day in days.tolist()], of_day, documents)
        return np.concatenate(
            [found, _build_term_keys(self._spoken, self.columns["label"][documents], documents)]
        )

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def terms_of(self, position: int) -> NDArray[np.uint32]:
        """Return the terms of a document, without its date and speaker: term << 8 | occurrences."""
        start = self._ends[position - 1] if position else 0
        return np.array(self._terms_by_document[start : self._ends[position]], np.uint32)

    def postings(self, number: int, count: int) -> NDArray[np.uint32]:
        """Return the postings of a term among the first `count` documents, ascending."""
        found = np.zeros(0, np.uint32)
        at = int(self._terms.searchsorted(np.uint32(number)))  # of the same type, or all would be converted
        if at < len(self._terms) and int(self._terms[at]) == number:
            found = self._frozen[self._starts[at] : self._starts[at + 1]]
        later = self._open.get(number)
        if later is not None:
            added = np.frombuffer(later.tobytes(), np.uint32)
            found = np.concatenate([found, added]) if len(found) else added
        if len(found) and int(found[-1]) >> 8 >= count:
            found = found[: np.searchsorted(found, np.uint32(min(count << 8, 0xFFFFFFFF)))]
        return found

    def often(self, numbers: NDArray[np.uint32], count: int) -> Ints:
        """Return how many of the first `count` documents hold each of some terms."""
        if count < self.count:
            return np.array([len(self.postings(number, count)) for number in numbers.tolist()], np.int64)
        found = np.zeros(len(numbers), np.int64)
        if len(self._terms):
            at = np.minimum(self._terms.searchsorted(numbers), len(self._terms) - 1)
            found += np.where(self._terms[at] == numbers, self._starts[at + 1] - self._starts[at], 0)
        if self._open:
            opened = map(self._open.get, numbers.tolist(), repeat(()))
            found += np.fromiter(map(len, opened), np.int64, len(numbers))
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


def _build_term_keys(
    terms: Sequence[Sequence[int]], codes: NDArray[Any], documents: Ints
) -> NDArray[np.uint64]:
    """Return the keys of the terms that each document has by its code; a term is never 0."""
    table = np.zeros((len(terms), max(map(len, terms), default=0)), np.uint64)
    for row, numbers in zip(table, terms, strict=True):
        row[: len(numbers)] = numbers
    found = table[codes] << np.uint64(32)
    keys = found | (documents.astype(np.uint64) << np.uint64(8) | np.uint64(1))[:, None]
    return keys[found > 0]


def _sort_keys(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return keys in order; those of one kind ascend by document already, so all that is left is to sort by term.

    That is counted, 16 bits at a time, in half the time of comparing. Very many are compared where they lie: counting
    is no faster there, and takes four times the room.
    """
    if len(keys) > VERY_MANY:
        keys.sort()
        return keys
    terms = (keys >> np.uint64(32)).astype(np.uint32)
    order = np.lexsort((terms.astype(np.uint16), (terms >> np.uint32(16)).astype(np.uint8)))
    found = keys[order]
    found.sort(kind="stable")  # a term of texts and of fields: two runs
    return found


def _find_key_changes(
    keys: NDArray[np.uint64], is_change: Callable[[NDArray[np.uint64]], NDArray[np.bool_]]
) -> Ints:
    """Return the positions of the keys after which a new run begins: `is_change` tests the bits that differ."""
    found = [
        low
        + np.flatnonzero(
            is_change(keys[low + 1 : low + SLICE + 1] ^ keys[low : low + SLICE][: len(keys) - low - 1])
        )
        for low in range(0, len(keys), SLICE)
    ]
    return np.concatenate([np.zeros(0, np.int64), *found])


def _documents_of_keys(keys: NDArray[np.uint64]) -> Ints:
    """Return the documents of some keys."""
    return (keys.astype(np.uint32) >> np.uint32(8)).astype(np.int64)


def _fingerprint_terms(packed: NDArray[np.uint32]) -> int:
    """Return a number that is the same for the same terms in any order, and rarely otherwise."""
    numbers = packed[:, 0] | packed[:, 1] << 8 | packed[:, 2] << 16
    return int((_mix_bits(numbers.astype(np.uint64))).sum(dtype=np.uint64) & np.uint64(0xFFFFFFFF))


def _fingerprint_documents(numbers: NDArray[np.uint64], documents: Ints, count: int) -> NDArray[np.uint64]:
    sums = np.zeros(count, np.uint64)
    if len(numbers):
        first = np.flatnonzero(np.concatenate([[True], documents[1:] != documents[:-1]]))
        sums[documents[first]] = np.add.reduceat(_mix_bits(numbers), first)
    return sums & np.uint64(0xFFFFFFFF)


def _mix_bits(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = (numbers + np.uint64(0x9E3779B9)) * np.uint64(0xBF58476D1CE4E5)
    return (mixed ^ mixed >> np.uint64(27)) & np.uint64(0xFFFFFFFF)


class Snapshot:
    """The view of one read: the segments of a lineage, oldest first, each up to a number of documents."""

    #: Which log each document is of, by number; None when all are of one.
    logs: Ints | None = None

    def __init__(self, pieces: Sequence[tuple[str, Segment, int]]) -> None:
        """Take (owner, segment, documents of it) pieces that follow each other without a gap."""
        self.pieces = tuple(pieces)
        self.count = sum(count for _, _, count in pieces)
        self._held = [
            {space: (vectors, vectors.count) for space, vectors in list(segment.spaces.items())}
            for _, segment, _ in pieces
        ]
        self._columns: dict[str, NDArray[Any]] = {}
        self._postings: dict[int, NDArray[np.uint32]] = {}

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
        """Return the postings of a term; those of a question are asked for several times."""
        known = self._postings.get(number)
        if known is None:
            if len(self._postings) >= ASKED:
                self._postings = {}  # recalls in threads read it beside each other
            known = self._postings[number] = self._posted(number)
        return known

    def _posted(self, number: int) -> NDArray[np.uint32]:
        found: list[NDArray[np.uint32]] = []
        for _, segment, count in self.pieces:
            own = segment.postings(number, count)
            if len(own):
                found.append(own + np.uint32(segment.base << 8) if segment.base else own)
        if not found:
            return np.zeros(0, np.uint32)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def terms_of(self, document: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return the terms of a document, without those of its date and speaker, and how often it holds each."""
        _, segment, position = self.find_segment(document)
        found = segment.terms_of(position)
        return found >> np.uint32(8), found & np.uint32(255)

    def often(self, numbers: NDArray[np.uint32]) -> Ints:
        """Return how many documents hold each of some terms."""
        found = np.zeros(len(numbers), np.int64)
        for _, segment, count in self.pieces:
            found += segment.often(numbers, count)
        return found

    def find_segment(self, document: int) -> tuple[str, Segment, int]:
        """Return the owner and segment of a document, and its position there."""
        for owner, segment, count in reversed(self.pieces):
            if document >= segment.base and document < segment.base + count:
                return owner, segment, document - segment.base
        raise IndexError(document)

    def doc(self, document: int) -> Doc:
        """Return a document."""
        owner, segment, position = self.find_segment(document)
        found = segment.docs.get(position)
        if found is None:
            if len(segment.docs) >= DOCS:
                segment.docs.clear()
            found = segment.docs[position] = self._doc(owner, segment, position, document + 1)
        return found

    def version(self, document: int) -> int:
        """Return the version of a document in its log."""
        return document + 1

    def locate(self, document: int) -> tuple[str, int]:
        """Return the context that owns a document, and its version there."""
        return self.find_segment(document)[0], document + 1

    def documents(self) -> Iterable[int]:
        """Return all documents, also those that are out of force."""
        return range(self.count)

    def find(self, id: str) -> int | None:
        """Return the document of an entry; None when it is not here."""
        position = parse_entry_id(id)
        held = position is not None and 1 <= position[1] <= self.count
        return (
            position[1] - 1 if position is not None and held and self.doc(position[1] - 1).id == id else None
        )

    def of(self, owners: Collection[str]) -> NDArray[np.bool_]:
        """Return which documents are entries that some contexts own."""
        found = np.zeros(self.count, bool)
        for owner, segment, count in self.pieces:
            found[segment.base : segment.base + count] = owner in owners
        return found

    def _doc(self, owner: str, segment: Segment, position: int, version: int) -> Doc:
        columns = segment.columns
        label = segment.labels[columns["label"].item(position)]
        group: int = columns["group"].item(position)
        nonce: str = columns["nonce"].item(position).decode()
        return Doc(
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

    def alone(self, document: int) -> bool:
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
            _, segment, position = self.find_segment(document)
            made, given = segment.links[position]
            calls.update(made)
            answers.update(given)
        return bool(calls), calls <= answers
