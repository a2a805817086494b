"""Make the table of related terms, `src/acms/data/related.bin`, from the database files of WordNet 3.0.

    python -m tests.conventions.related FOLDER OUT

FOLDER holds `data.noun`, `index.noun`, `cntlist.rev` and the like, as the sources of WordNet 3.0 and the packages made
of them do. The same files always make the same table. `acms/recall/synonyms.py` describes its format, NOTICE its
licence.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from acms.text.tokenizer import term

SENSES = 2
"""Most frequent senses of a word that count: rarer ones relate "title" to "deed"."""
HUB = 64
"""Related terms from which a term has none: what is related to everything tells nothing."""
_FILES = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
_BROADER, _SIMILAR, _DERIVED = "@", "&", "+"

Key = tuple[str, str]


class Link(NamedTuple):
    """A pointer of a synset; the places of two words, or 0 for all of them."""

    kind: str
    key: Key
    source: int
    target: int


class Synset(NamedTuple):
    """Words that mean the same, and what points from them."""

    words: list[str]
    links: list[Link]


def _lines(path: Path) -> Iterator[list[str]]:
    for line in path.read_text(encoding="latin-1").splitlines():
        if not line.startswith(" "):
            yield line.partition("|")[0].split()


def synsets(folder: Path) -> dict[Key, Synset]:
    """Return every synset by part of speech and offset."""
    found: dict[Key, Synset] = {}
    for name, part in _FILES.items():
        for row in _lines(folder / f"data.{name}"):
            count = int(row[3], 16)
            words = [re.sub(r"\(.*\)", "", row[4 + 2 * place]).lower() for place in range(count)]
            start = 5 + 2 * count
            links: list[Link] = []
            for at in range(start, start + 4 * int(row[start - 1]), 4):
                kind, offset, other, ends = row[at : at + 4]
                key = ("a" if other == "s" else other, offset)
                links.append(Link(kind, key, int(ends[:2], 16), int(ends[2:], 16)))
            found[part, row[0]] = Synset(words, links)
    return found


def related(folder: Path) -> dict[int, set[int]]:
    """Return the related terms of each term."""
    frequent: set[tuple[str, Key]] = set()
    for name, part in _FILES.items():
        for row in _lines(folder / f"index.{name}"):
            frequent.update((row[0], (part, offset)) for offset in row[-int(row[2]) :][:SENSES])
    met = Counter(row[0].partition("%")[0] for row in _lines(folder / "cntlist.rev"))
    found: dict[int, set[int]] = defaultdict(set)

    def usable(word: str, key: Key) -> bool:
        return word.isalpha() and len(word) > 2 and word in met and (word, key) in frequent

    def link(one: str, other: str) -> None:
        first, second = term(one), term(other)
        if first and second and first != second:
            found[first].add(second)
            found[second].add(first)

    every = synsets(folder)
    for key, synset in every.items():
        near = [word for word in synset.words if usable(word, key)]
        for place, word in enumerate(near):
            for other in near[place + 1 :]:
                link(word, other)
        for kind, target, source, end in synset.links:
            words = every[target].words
            if kind == _DERIVED and source and end:
                word, other = synset.words[source - 1], words[end - 1]
                if usable(word, key) and usable(other, target):
                    link(word, other)
            elif kind in (_BROADER, _SIMILAR):
                for word in near:
                    for other in words:
                        if usable(other, target):
                            link(word, other)
    return {number: others for number, others in found.items() if len(others) < HUB}


def table(found: dict[int, set[int]]) -> bytes:
    """Return the table as it lies in its file."""
    numbers = sorted(found.keys() | {other for others in found.values() for other in others})
    place = {number: at for at, number in enumerate(numbers)}
    rows = [sorted(place[other] for other in found.get(number, ())) for number in numbers]
    starts = np.cumsum([0, *map(len, rows)])
    assert len(numbers) <= 0xFFFF
    return b"".join(
        [
            np.array([len(numbers), *numbers, *starts], "<u4").tobytes(),
            np.array([at for row in rows for at in row], "<u2").tobytes(),
        ]
    )


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(table(related(Path(sys.argv[1]))))
