"""The form of an extractive summary: how it is written, and how it is parsed when it is summarised again.

It has lines of marked messages and lines of sentences. A last line lists the details (names, ids, numbers) that are in
neither, each with a few words around it:

    - user (decision): "a marked message, verbatim"
    - user (constraint, 2 lines): "another one:
    how long it is tells where it ends"
    - assistant: sentences that say most
    Details: the invoice ORD-4312; reset after 30 s
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from acms.ports import Turn
from acms.text.file_changes import read_changes
from acms.text.tokenizer import find_sentence_spans

RECIPE = "extractive2"
"""Name of the recipe: another one writes another text."""
CUT = " […] "
"""Marks omitted text in a marked message."""
SUMMARY_DIVISOR = 5
"""By default a summary takes one part in this many of the tokens that it replaces."""
MIN_SUMMARY_TOKENS = 48
"""Tokens a summary may always have: less says nothing."""

CHANGE = "change"
"""Marker of a line that says which file a tool call changed, and how."""
_DETAILS = "Details: "
_BREAK = "\n"
_LINE = re.compile(r"- ([^\n]{1,64}?): ")
_OPENED = re.compile(r'- ([^\n]{1,64}?) \(([^()\n]{1,120})\): "')
_SIZE = re.compile(r"(\d{1,7}) lines")
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*\Z|[。！？]\Z")
_CHINESE_END = re.compile(r"(?<=[。！？])")


class Line(NamedTuple):
    """A message, or a line of an earlier summary."""

    speaker: str
    text: str
    markers: tuple[str, ...] = ()
    #: Whether it is to be carried verbatim.
    is_marked: bool = False
    #: Whether it comes from a list of details.
    is_detail: bool = False
    #: Whether it comes from an earlier summary.
    is_earlier: bool = False


class Piece(NamedTuple):
    """A part of the summary."""

    #: Number of its line, then of its sentence, then its place there.
    order: tuple[int, int, int]
    line: Line
    text: str
    tokens: int
    #: Importance: the pieces with the lowest values are left out when the summary is over the limit.
    keep: float
    #: Whether it belongs to the list of details, and whether it is a marked message, kept verbatim.
    is_detail: bool = False
    is_marked: bool = False


def parse_turn(turn: Turn) -> Iterable[Line]:
    """Yield the lines of a turn: those of a summary, or the message and one line for each file that it changes."""
    speaker = " ".join(turn.speaker.split())[:64] or "unknown"
    text = turn.text.strip()
    if turn.summary:
        yield from _parse_summary(text, speaker)
        return
    if text:
        yield Line(speaker, text, turn.markers, is_marked=bool(turn.markers))
    for change in read_changes(text):
        yield Line(speaker, change, (CHANGE,), is_marked=True)


def _parse_summary(text: str, speaker: str) -> Iterator[Line]:
    """Yield the lines of an earlier summary; a line that names no speaker gets `speaker`."""
    line_ends = [match.start() for match in re.finditer(_BREAK, text)] + [len(text)]
    number, start = 0, 0
    while number < len(line_ends):
        end = line_ends[number]
        opening = _OPENED.match(text, start, end)
        last_number = number if opening is None else _last_line_of_quote(opening, number, len(line_ends))
        end_of_quote = line_ends[last_number]
        if opening is not None and end_of_quote > opening.end() + 1 and text[end_of_quote - 1] == '"':
            quoted_text = text[opening.end() : end_of_quote - 1].strip()
            if quoted_text:
                yield Line(
                    opening[1], quoted_text, _markers_of_quote(opening), is_marked=True, is_earlier=True
                )
            number = last_number
        else:
            yield from _parse_unmarked_line(text[start:end], speaker)
        start = line_ends[number] + 1
        number += 1


def _parse_unmarked_line(content: str, speaker: str) -> Iterator[Line]:
    """Yield each detail of a list of details, or a line of sentences."""
    if content.startswith(_DETAILS):
        for detail in content[len(_DETAILS) :].split("; "):
            if detail.strip():
                yield Line(speaker, detail.strip(), is_detail=True, is_earlier=True)
    elif content.strip():
        yield _parse_sentences(content, speaker)


def _last_line_of_quote(opening: re.Match[str], number: int, count: int) -> int:
    """Return the number of the last line of a marked message that begins on line `number` of `count`.

    A message of several lines states how many it has: "(decision, 2 lines)".
    """
    size = _SIZE.fullmatch(opening[2].split(", ")[-1])
    last = number if size is None else number + int(size[1]) - 1
    is_valid = number <= last < count
    return last if is_valid else number


def _markers_of_quote(opening: re.Match[str]) -> tuple[str, ...]:
    names = opening[2].split(", ")
    return tuple(names[:-1] if _SIZE.fullmatch(names[-1]) else names)


def _parse_sentences(content: str, speaker: str) -> Line:
    """Return a line of sentences with the speaker that it names, else with `speaker`."""
    line = _LINE.match(content)
    if line is None:
        return Line(speaker, content.strip(), is_earlier=True)
    return Line(line[1], content[line.end() :].strip(), is_earlier=True)


def sentences_of(line: Line) -> list[str]:
    """Return the sentences of a line; a listed detail is one sentence."""
    if line.is_detail:
        return [line.text]
    text = line.text
    sentences = [text[start:end].strip() for start, end in find_sentence_spans(text)]
    if not text.isascii():
        sentences = [part.strip() for sentence in sentences for part in _CHINESE_END.split(sentence)]
    return [sentence for sentence in sentences if sentence]


def format_marked_line(line: Line, text: str) -> str:
    """Write a marked message as a line of a summary: its speaker, its markers and its text in quotes."""
    names = [" ".join(re.sub(r"[(),]", " ", marker).split()) for marker in line.markers]
    label = ", ".join(filter(None, names))[:100] or "marked"
    if _BREAK in text:
        label += f", {text.count(_BREAK) + 1} lines"
    return f'- {line.speaker} ({label}): "{text}"'


def format_summary(chosen: Sequence[Piece]) -> str:
    """Write the chosen pieces as a summary in the order of the conversation, with the details at its end."""
    lines: list[str] = []
    details: list[str] = []
    previous: Piece | None = None
    for piece in sorted(chosen, key=attrgetter("order")):
        if piece.is_detail:
            details.append(piece.text)
            continue
        if piece.is_marked:
            lines.append(format_marked_line(piece.line, piece.text))
        elif previous is not None and _continues_line(previous, piece):
            lines[-1] += f" {piece.text}"
        else:
            lines.append(f"- {piece.line.speaker}: {piece.text}")
        previous = piece
    if details:
        lines.append(_DETAILS + "; ".join(dict.fromkeys(details)))
    return "\n".join(lines)


def _continues_line(previous: Piece, piece: Piece) -> bool:
    """Return whether a sentence is written on the line of the one before it."""
    if previous.is_marked or previous.order[0] != piece.order[0]:
        return False
    # Without an end, the two could not be told apart when the summary is parsed.
    return _SENTENCE_END.search(previous.text) is not None


def sanitize_summary(text: str) -> str:
    """Return a summarizer's text without characters that no store accepts, and without surrounding space."""
    return text.replace("\0", "").encode("utf-8", "ignore").decode("utf-8").strip()
