"""Vectors of a segment in memory: filled in blocks that are never moved, compared whole or by their signs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

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
        """Add vectors in an order, a few at a time: what is done to them is done while they are at hand."""
        done = 0
        while done < len(order):
            start = (total + done) % BLOCK
            if start == 0:
                self.blocks.append(np.zeros((BLOCK, self.dimension), np.float32))
                if len(self.signs) < len(self.blocks):
                    many = SLAB if len(self.signs) >= SLAB else 1
                    self.signs.extend(np.zeros((many, (self.dimension + 63) // 64, BLOCK), np.uint64))
            size = min(BLOCK - start, len(order) - done, AT_HAND)
            joined = b"".join([data[place] for place in order[done : done + size].tolist()])
            values = self.blocks[-1][start : start + size]
            widened(np.frombuffer(joined, "<i2").reshape(size, self.dimension), values)
            norms = np.sqrt(np.einsum("ij,ij->i", values, values))
            values /= np.where(norms > 0, norms, 1)[:, None]
            self.signs[len(self.blocks) - 1][:, start : start + size] = signs(values)
            done += size

    def rows(self, places: Ints) -> Floats:
        """Return vectors by their places."""
        found = np.empty((len(places), self.dimension), np.float32)
        self.fill(found, np.arange(len(places)), places)
        return found

    def fill(self, found: Floats, own: Ints, places: Ints) -> None:
        """Write the vectors at some places into these rows of a matrix."""
        order = np.argsort(places)
        own = own[order]
        for low, high, rows in self._taken(places[order]):
            found[own[low:high]] = rows

    def products(self, places: Ints, query: Floats) -> Floats:
        """Return the inner products of another vector with those at ascending places, one by one the same."""
        found = np.empty(len(places), np.float32)
        for low, high, rows in self._taken(places):
            np.vecdot(rows, query, out=found[low:high])
        return found

    def _taken(self, places: Ints) -> Iterator[tuple[int, int, Floats]]:
        """Yield vectors at ascending places, of each block that has any: the first and last of them, and the rows."""
        ends = np.searchsorted(places, np.arange(1, len(self.blocks) + 1) * BLOCK).tolist()
        start = 0
        for number, end in enumerate(ends):
            if start < end:
                own = places[start:end] - number * BLOCK
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
        # whole, also when its last places hold nothing yet.
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
        """What it takes in memory."""
        held = sum(block.nbytes for block in self.blocks) + sum(block.nbytes for block in self.signs)
        return held + self.documents.nbytes + self.begin.nbytes + self.slot.nbytes


def widened(halves: NDArray[np.int16], out: Floats) -> None:
    """Write finite half-precision numbers, given by their bits, as single-precision ones.

    The bits are moved to their places and the exponent is corrected by a product, which is exact: a third of the time
    that numpy takes to convert them one by one.
    """
    bits = out.view(np.int32)
    np.left_shift(halves, 13, out=bits, dtype=np.int32)
    bits &= _PLACES
    out *= np.float32(2.0**112)


_PLACES = np.int32(0x8FFFE000 - (1 << 32))
"""Sign, exponent and fraction of a half-precision number at their places in a single-precision one."""


def signs(values: Floats) -> NDArray[np.uint64]:
    """Return the signs of vectors as bits, 64 dimensions a row and a vector a column."""
    bits = np.packbits(values > 0, axis=1)
    width = -bits.shape[1] % 8
    padded = np.pad(bits, ((0, 0), (0, width))) if width else bits
    return np.ascontiguousarray(np.ascontiguousarray(padded).view(np.uint64).T)
