"""Related: which terms mean nearly what another one does, for words of a question that nobody has said.

"What is this undertaking called?" is asked, "the project is called Dunlin" was said. The table is made of WordNet 3.0
(synonyms, derived words, the next broader and narrower ones, of the two most frequent senses of a word) by
`python -m tests.conventions.related`. It is English; a term of another language has none.

    count       of the terms that have related ones, 4 bytes
    terms       ascending, 4 bytes each
    starts      where the related ones of each begin among all of them, and the end of the last; 4 bytes each
    related     places of terms, 2 bytes each
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from acms.recall.corpus import Field
from acms.recall.vectors import Floats, Ints
from acms.text.tokenizer import term

NUMBERS = tuple(
    map(
        term,
        """two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
        eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million dozen couple
        several twice""".split(),
    )
)
"""What "how many" asks for. Only words: the numbers of its date are terms of every message."""


COMMON = 0.1
"""Share of the entries that hold a related term, at most."""


class Related:
    """Related terms by term, looked up in a table as it lies in a file."""

    def __init__(self, data: bytes) -> None:
        size = int(np.frombuffer(data, "<u4", 1)[0])
        self._terms = np.frombuffer(data, "<u4", size, 4)
        self._starts = np.frombuffer(data, "<u4", size + 1, 4 + 4 * size)
        self._places = np.frombuffer(data, "<u2", -1, 8 + 8 * size)

    def of(self, number: int) -> tuple[int, ...]:
        """Return the terms related to one, ascending."""
        at = int(self._terms.searchsorted(np.uint32(number)))  # of the same type, or all would be converted
        if at == len(self._terms) or int(self._terms[at]) != number:
            return ()
        found = self._places[self._starts[at] : self._starts[at + 1]]
        return tuple(self._terms[found].tolist())


def lent_by(field: Field, group: Sequence[int]) -> tuple[Ints, Floats] | None:
    """Return where any term of a group is, and how often; None where none is. What is everywhere tells nothing."""
    most = COMMON * len(field)
    known = [number for number in group if len(field.snapshot.postings(number))]
    found = [one for one in map(field.postings, known) if 0 < len(one[0]) <= most]
    if not found:
        return None
    where = np.concatenate([places for places, _ in found])
    sums = np.bincount(where, np.concatenate([counts for _, counts in found]))
    places = np.flatnonzero(sums)
    return places, sums[places].astype(np.float32)
