"""Passages: the texts of an entry that are embedded: the whole of a short one, the chunks of a long one.

A model reads so many words and no more, so a long text is split into chunks of about 170 words that end with a
sentence, of which the nearest counts. Who speaks is part of every text, and when it was said of the first. A fact is
one statement: its one text begins with its subject and attribute instead.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from acms.model import Draft, Kind
from acms.text.index_record import named

RECIPE = "said2"
"""Name of this recipe in a space: vectors of another one are never compared with these."""
WORDS = 170
"""Words of a chunk, at most, unless one sentence is longer."""
PARTS = 64
"""Chunks of one entry, at most."""

LONGEST = 1_000
"""Characters of what counts as one sentence: code and JSON have none."""

_END = re.compile(r"[.!?]+[\"')\]]*\s+|\n+")
_MONTHS = (
    "January February March April May June July August September October November December".split()
)  # fmt: skip


class Passage(NamedTuple):
    """A text to embed, and the characters of the content it stands for."""

    start: int
    end: int
    text: str


def passages(draft: Draft) -> list[Passage]:
    """Return the whole entry, or its chunks in order where it is long; nothing for one without content."""
    content = draft.content
    if not content.strip():
        return []
    speaker = draft.actor or (draft.role.value if draft.role else draft.kind.value)
    said = draft.created_at
    date = f"{said.day} {_MONTHS[said.month - 1]} {said.year}"
    if draft.kind is Kind.FACT:  # it stands alone, under its address
        about = named(draft)
        return [Passage(0, len(content), f"{about}: {content}" if about else content)]
    if len(content.split(None, WORDS + 1)) <= WORDS:
        return [Passage(0, len(content), f"{date} {speaker}: {content}")]
    (_, end), *rest = _chunks(content, spans(content))[:PARTS]
    first = Passage(0, end, f"{date} {speaker}: {content[:end]}")
    return [first, *(Passage(start, end, f"{speaker}: {content[start:end]}") for start, end in rest)]


def spans(content: str) -> list[tuple[int, int]]:
    """Return where the sentences of a text start and end; together they are the whole text."""
    found: list[tuple[int, int]] = []
    start = 0
    for end in (*(match.end() for match in _END.finditer(content)), len(content)):
        if not content[start:end].strip():
            continue
        while end - start > LONGEST:
            cut = content.rfind(" ", start + LONGEST // 2, start + LONGEST) + 1 or start + LONGEST
            found.append((start, cut))
            start = cut
        found.append((start, end))
        start = end
    return found


def _chunks(content: str, sentences: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    start, words = sentences[0][0], 0
    for first, last in sentences:
        size = len(content[first:last].split())
        if words and words + size > WORDS:
            found.append((start, first))
            start, words = first, 0
        words += size
    found.append((start, len(content)))
    return found
