"""The form of an extractive summary: how it is written, and read again when it is summarised in turn.

It has two kinds of lines, and one at its end with what else cannot be guessed again, each with a few words around it:

    - user (decision): "a marked message, verbatim"
    - user (constraint, 2 lines): "another one:
    how long it is tells where it ends"
    - assistant: sentences that say most
    Details: the invoice ORD-4312; reset after 30 s
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from acms.ports import Turn
from acms.text.changes import read_changes
from acms.text.tokenizer import find_sentence_spans

RECIPE = "extractive1"
"""Name of the recipe: another one writes another text."""
CUT = " […] "
"""Marks omitted text in a marked message."""
SHORTER = 5
"""By default a summary takes one part in this many of the tokens that it replaces."""
LEAST = 48
"""Tokens a summary may always have: less says nothing."""

CHANGE = "change"
"""What marks the line that says which file a call changed, and how."""
_NAME = "Details: "
_BREAK = "\n"
_LINE = re.compile(r"- ([^\n]{1,64}?): ")
_OPENED = re.compile(r'- ([^\n]{1,64}?) \(([^()\n]{1,120})\): "')
_SIZE = re.compile(r"(\d{1,7}) lines")
_FULL = re.compile(r"[.!?][\"')\]]*\Z|[。！？]\Z")
_CHINESE_END = re.compile(r"(?<=[。！？])")


class Line(NamedTuple):
    """A message, or a line of an earlier summary."""

    speaker: str
    text: str
    markers: tuple[str, ...] = ()
    #: Whether it is to be carried verbatim.
    anchor: bool = False
    #: Whether it comes from a list of details.
    listed: bool = False
    #: Whether it comes from an earlier summary.
    earlier: bool = False


class Piece(NamedTuple):
    """A part of the summary."""

    #: Number of its line, then of its sentence, then its place there.
    order: tuple[int, int, int]
    line: Line
    text: str
    tokens: int
    #: The lowest goes first when the whole is over the limit.
    keep: float
    #: Whether it goes to the list of details; whether it is a marked message, verbatim.
    listed: bool = False
    anchor: bool = False


def parse_turn(turn: Turn) -> Iterable[Line]:
    """Read a turn: a message is one line and one for each file it changes, a summary of this recipe has many."""
    speaker = " ".join(turn.speaker.split())[:64] or "unknown"
    if not turn.summary:
        text = turn.text.strip()
        if text:
            yield Line(speaker, text, turn.markers, anchor=bool(turn.markers))
        for change in read_changes(text):
            yield Line(speaker, change, (CHANGE,), anchor=True)
        return
    text = turn.text.strip()
    ends = [match.start() for match in re.finditer(_BREAK, text)] + [len(text)]
    number, place = 0, 0
    while number < len(ends):
        end = ends[number]
        opened = _OPENED.match(text, place, end)
        names = opened[2].split(", ") if opened else []
        size = _SIZE.fullmatch(names[-1]) if names else None
        last = number + int(size[1]) - 1 if size else number
        if not number <= last < len(ends):
            last = number
        close = ends[last]
        if opened and close > opened.end() + 1 and text[close - 1] == '"':
            said = text[opened.end() : close - 1].strip()
            if said:
                yield Line(opened[1], said, tuple(names[:-1] if size else names), anchor=True, earlier=True)
            number, end = last, close
        elif text.startswith(_NAME, place):
            for item in text[place + len(_NAME) : end].split("; "):
                if item.strip():
                    yield Line(speaker, item.strip(), listed=True, earlier=True)
        elif text[place:end].strip():
            line = _LINE.match(text, place, end)
            said = text[line.end() if line else place : end].strip()
            yield Line(line[1] if line else speaker, said, earlier=True)
        number, place = number + 1, end + 1


def sentences_of(line: Line) -> list[str]:
    """Return the sentences of a line."""
    if line.listed:
        return [line.text]
    text = line.text
    found = [text[start:end].strip() for start, end in find_sentence_spans(text)]
    if not text.isascii():
        found = [piece.strip() for part in found for piece in _CHINESE_END.split(part)]
    return [part for part in found if part]


def format_marked_line(line: Line, text: str) -> str:
    """Return the line of a marked message."""
    names = (" ".join(re.sub(r"[(),]", " ", marker).split()) for marker in line.markers)
    size = f", {text.count(_BREAK) + 1} lines" if _BREAK in text else ""
    return f'- {line.speaker} ({", ".join(filter(None, names))[:100] or "marked"}{size}): "{text}"'


def format_summary(chosen: Sequence[Piece]) -> str:
    """Return the summary in the order of the conversation, details at its end."""
    lines: list[str] = []
    listed: list[str] = []
    before: Piece | None = None
    for one in sorted(chosen, key=attrgetter("order")):
        if one.listed:
            listed.append(one.text)
            continue
        if one.anchor:
            lines.append(format_marked_line(one.line, one.text))
        elif (
            before is not None
            and not before.anchor
            and before.order[0] == one.order[0]
            and _FULL.search(before.text)  # else it could not be told from the next one when read again
        ):
            lines[-1] += f" {one.text}"
        else:
            lines.append(f"- {one.line.speaker}: {one.text}")
        before = one
    if listed:
        lines.append(_NAME + "; ".join(dict.fromkeys(listed)))
    return "\n".join(lines)


def sanitize_summary(text: str) -> str:
    """Return what a summarizer wrote without what no store can keep, and without space around it."""
    return text.replace("\0", "").encode("utf-8", "ignore").decode("utf-8").strip()
