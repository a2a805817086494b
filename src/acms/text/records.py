"""Split a text into records, and find those that belong together.

A record is a line; of a long line, a sentence or an element of JSON. One line of an object, a section or a function
says little without the lines around it. A record is therefore shown with its block: the records at its depth or
deeper, and the one that opens them. Depth is what the outputs of tools have in common: indentation in code, YAML and
printed JSON, brackets in JSON without line breaks.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from acms.text.tokenizer import find_sentence_spans

MAX_BLOCK_RECORDS = 24
"""Records of a block: most objects and functions are smaller, and of a larger one the nearest records are enough."""
MAX_PARAGRAPH_RECORDS = 12
"""Records of a paragraph at the outermost depth; longer ones are logs, lists and tables, whose lines stand alone."""
MAX_LINE_CHARS = 400
"""Characters of a line that stays one record. Of longer ones the sentences, or the elements of JSON, are records."""
TABLE_HEADER_RECORDS = 2
"""Records at the beginning of a long paragraph that name the columns of a table."""

MIN_FIELD_RECORDS = 3
"""Records from which on the values under a key are compared; those under a rarer key are text like any other."""

_LINE = re.compile(r"[^\n]*(?:\n+|\Z)")
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]|,\s*', re.DOTALL)
_BRACKETS = re.compile(r"[\[{]+")
_CLOSING = re.compile(r"\s*[\])}]")
_HEADING = re.compile(r"\s*(#{1,6})\s")
_RULED_HEADING = re.compile(r"\s*(=|[-_*])\1{2,}+ [^\n]*\w[^\n]* \1{3,}\s*\Z")
"""A heading of a report, such as "==== FAILURES ====" and "____ test_login ____" below it."""
_EMPTY_LINE = re.compile(r"\n[ \t\r]*\n")
_KEY = re.compile(
    r"""(["'])(?P<quoted>[^"'\n]{1,60})\1\s*:"""  # JSON
    r"|^[ \t]*(?:[-*] )?(?P<line>[\w.-]++(?: [\w.-]++){0,2})(?::|[ \t]*=)(?=\s)"  # YAML, TOML, lists of properties
    r"|(?<![^\s,;|])(?P<assigned>[\w.-]++)=(?=\S)"  # logfmt
    r"|(?<![^\s>])<(?P<tag>[\w.:-]++)[^<>\n]{0,200}>",  # XML
    re.MULTILINE,
)
_ITEM = re.compile(r"\s*(?:- |[\"'\d])")
"""The beginning of an item in a printed list."""
_DELIMITERS = [re.compile(delimiter) for delimiter in (r"\t", r"\|", ";", ",", " {2,}", r"\s+")]
"""Between the columns of a table, the least ambiguous first."""

Field = tuple[int, str]
"""A field that records have in common: the depth and key of its values, or the number of a column."""
TEXT: Field = -1, ""
"""What stands in no field."""
KEYS: Field = -1, "keys"
"""The keys of a record."""


class Record(NamedTuple):
    """A line, or a sentence or an element of JSON in a long line."""

    start: int
    end: int
    #: Blanks before its line, or brackets around it within the line.
    depth: int


def split_records(text: str) -> list[Record]:
    """Return the records of a text in their order; together they are the whole text."""
    records: list[Record] = []
    start = 0
    for match in _LINE.finditer(text):
        line = text[start : match.end()]
        if not line.strip():  # blank lines belong to the next record
            continue
        records += _split_line(line, start, MAX_LINE_CHARS)
        start = match.end()
    if records and start < len(text):
        records[-1] = records[-1]._replace(end=len(text))
    return records


def split_record(text: str, record: Record) -> list[Record]:
    """Return the sentences of a record, or its elements if it is JSON."""
    return _split_line(text[record.start : record.end], record.start, 0)


def _split_line(line: str, offset: int, longest_line: int) -> list[Record]:
    """Return the records of a line that begins `offset` characters behind the beginning of its text."""
    content = line.lstrip()
    last_line = line.rstrip("\n").rpartition("\n")[2]
    depth = len(last_line) - len(last_line.lstrip())
    if len(content) <= longest_line:
        return [Record(offset, offset + len(line), depth)]
    if content[0] in "[{":
        elements = _split_json(line, longest_line)
        if len(elements) > 1:
            return [Record(offset + start, offset + end, depth + inner) for start, end, inner in elements]
    return [Record(offset + start, offset + end, depth) for start, end in find_sentence_spans(line)]


def _split_json(line: str, longest_element: int) -> list[Record]:
    """Return the elements of the long arrays and objects in a line; short ones stay whole."""
    cuts: list[tuple[int, int]] = [(0, 0)]
    # Of each open bracket its position, and the commas directly inside it.
    open_brackets: list[tuple[int, list[int]]] = []
    for match in _JSON_TOKEN.finditer(line):
        token = match[0][0]
        if token in "[{":
            open_brackets.append((match.start(), []))
        elif token == "," and open_brackets:
            open_brackets[-1][1].append(match.end())
        elif token in "]}" and open_brackets:
            start, commas = open_brackets.pop()
            if match.end() - start > longest_element:
                cuts += [(comma, len(open_brackets) + 1) for comma in commas]
    cuts.sort()
    ends = [position for position, _ in cuts[1:]] + [len(line)]
    elements: list[Record] = []
    for (start, depth), end in zip(cuts, ends, strict=True):
        brackets = _BRACKETS.match(line, start)
        if brackets is not None:
            depth += len(brackets[0]) - 1
        elements.append(Record(start, end, depth))
    return elements


def split_fields(text: str, records: Sequence[Record]) -> dict[Field, list[tuple[int, str]]]:
    """Return the values of each field with the indexes of their records: by keys, or by the columns of a table.

    An item of a printed list belongs to the key above it.
    """
    fields: defaultdict[Field, list[tuple[int, str]]] = defaultdict(list)
    field = TEXT
    for index, (start, end, depth) in enumerate(records):
        keys = list(_KEY.finditer(text, start, end))
        ends = [*[key.start() for key in keys], end]
        is_item = depth > field[0] and _ITEM.match(text, start) is not None
        field = field if is_item else TEXT
        fields[field].append((index, text[start : ends[0]].strip()))
        for key, value_end in zip(keys, ends[1:], strict=True):
            field = depth, key[key.lastgroup or 0]
            fields[KEYS].append((index, field[1]))
            fields[field].append((index, text[key.end() : value_end]))
    # A table has as many columns in most of its lines; a line with more or fewer, such as an error, stays text.
    for delimiter in _DELIMITERS:
        rows = [(index, delimiter.split(value)) for index, value in fields[TEXT] if value]
        ((columns, count),) = Counter(len(cells) for _, cells in rows).most_common(1) or [(0, 0)]
        if 3 * count > 2 * len(rows) and (columns > 1 or delimiter is _DELIMITERS[-1]):
            fields[TEXT] = [(index, " ".join(cells)) for index, cells in rows if len(cells) != columns]
            for index, cells in rows:
                for number, cell in enumerate(cells if len(cells) == columns else ()):
                    fields[-1, str(number)].append((index, cell))
            break
    for rare_field in [field for field, values in fields.items() if len(values) < MIN_FIELD_RECORDS]:
        if rare_field != TEXT:
            fields[TEXT] += fields.pop(rare_field)
    return fields


class Outline:
    """The records of a text, and which of them belong together."""

    def __init__(self, text: str, records: Sequence[Record]) -> None:
        contents = [text[record.start : record.end] for record in records]
        self._depths = [record.depth for record in records]
        self._outermost = min(self._depths, default=0)
        #: Of each record whether it says enough alone: an object in one line, or one sentence of a long line.
        self._is_complete = [
            _BRACKETS.match(content.lstrip()) is not None or _is_sentence(text, record)
            for content, record in zip(contents, records, strict=True)
        ]
        self._closes = [_CLOSING.match(content) is not None for content in contents]
        #: Level of each heading, 0 for other records.
        self._levels = [_level_of_heading(content) for content in contents]
        #: Of each record the nearest before it that stands less deep, -1 if none does.
        self._openers = _find_openers(self._depths)
        #: Of each record the nearest behind it that stands less deep, and the nearest that stands no deeper.
        self._ends = _find_ends(self._depths)
        self._child_ends = _find_ends(self._depths, or_equal=True)
        #: Records at which a paragraph or a section begins, in their order.
        self._borders = [
            index
            for index, depth in enumerate(self._depths)
            if depth == self._outermost and (self._levels[index] or _follows_empty_line(contents, index))
        ]
        self._headings = [index for index, level in enumerate(self._levels) if level]

    def list_block(self, index: int) -> list[int]:
        """Return the indexes of a record and of those it should be read with, the most important first.

        That is the record, the one that opens its block, the heading above it, and the others from near to far.
        """
        start, end = self._find_block(index)
        important_indexes = [start]
        if self._is_flat(index) and end - start > MAX_PARAGRAPH_RECORDS:
            important_indexes = list(range(start, start + TABLE_HEADER_RECORDS))
            start, end = index, index + 1
        elif end - start > MAX_BLOCK_RECORDS:
            start, end = self._find_nearest(index, start, end)
        heading = self._find_heading(index)
        if heading is not None:
            important_indexes.append(heading)
        nearest_first = sorted(range(start, end), key=lambda other_index: abs(other_index - index))
        return list(dict.fromkeys([index, *important_indexes, *nearest_first]))

    def _find_nearest(self, index: int, start: int, end: int) -> tuple[int, int]:
        """Return the nearest records of a block that is too large, without a part of any deeper block at its ends."""
        reach = MAX_BLOCK_RECORDS // 2
        depth = self._depths[index]
        start, end = max(start, index - reach), min(end, index + reach + 1)
        while self._depths[start] > depth:
            start += 1
        while self._depths[end - 1] > depth:
            end -= 1
        return start, end

    def _is_flat(self, index: int) -> bool:
        """Return whether a record stands at the outermost depth and opens nothing: it may be a line of a log."""
        opens = self._child_ends[index] > index + 1 or self._levels[index] > 0
        return self._depths[index] == self._outermost and not opens

    def _find_block(self, index: int) -> tuple[int, int]:
        """Return the start and end of the largest block around a record that is not too large, else of the smallest."""
        if self._levels[index]:
            return index, self._find_section_end(index)
        if self._child_ends[index] > index + 1:
            start, end = index, self._with_closing_bracket(self._child_ends[index])
        elif self._is_complete[index]:
            return index, index + 1
        else:
            start, end = self._find_siblings(index)
        while self._depths[start] > self._outermost:
            wider_start, wider_end = self._find_siblings(start)
            if wider_end - wider_start > MAX_BLOCK_RECORDS or wider_start == start:
                break
            start, end = wider_start, wider_end
        return start, end

    def _find_siblings(self, index: int) -> tuple[int, int]:
        """Return the start and end of the records around one at the same depth, with the records that enclose them.

        At the outermost depth that is its paragraph.
        """
        if self._depths[index] > self._outermost:
            return max(0, self._openers[index]), self._with_closing_bracket(self._ends[index])
        number = bisect_right(self._borders, index)
        start = self._borders[number - 1] if number else 0
        end = self._borders[number] if number < len(self._borders) else len(self._depths)
        return start, end

    def _with_closing_bracket(self, end: int) -> int:
        return end + 1 if end < len(self._closes) and self._closes[end] else end

    def _find_heading(self, index: int) -> int | None:
        """Return the heading of the section in which a record stands; for a heading, of the section around its own."""
        above = self._headings[: bisect_left(self._headings, index)]
        level = self._levels[index]
        return next(
            (
                other_heading
                for other_heading in reversed(above)
                if not level or self._levels[other_heading] < level
            ),
            None,
        )

    def _find_section_end(self, heading: int) -> int:
        level = self._levels[heading]
        below = self._headings[bisect_right(self._headings, heading) :]
        return next(
            (other_heading for other_heading in below if self._levels[other_heading] <= level),
            len(self._levels),
        )


def _level_of_heading(content: str) -> int:
    """Return the level of a heading of Markdown or of a report, 0 for any other record."""
    heading = _HEADING.match(content)
    if heading is not None:
        return len(heading[1])
    ruled_heading = _RULED_HEADING.match(content)
    if ruled_heading is None:
        return 0
    return 1 if ruled_heading[1] == "=" else 2


def _is_sentence(text: str, record: Record) -> bool:
    """Return whether a record is one sentence of a longer line that is not indented."""
    if record.depth > 0:
        return False
    borders = (record.start, record.end)
    return any(0 < border < len(text) and text[border - 1] != "\n" for border in borders)


def _find_openers(depths: Sequence[int]) -> list[int]:
    """Return for each record the nearest one before it that is less deep; -1 if there is none."""
    openers: list[int] = []
    outer: list[int] = []
    for index, depth in enumerate(depths):
        while outer and depths[outer[-1]] >= depth:
            outer.pop()
        openers.append(outer[-1] if outer else -1)
        outer.append(index)
    return openers


def _find_ends(depths: Sequence[int], *, or_equal: bool = False) -> list[int]:
    """Return for each record the next less deep one, or with `or_equal` the next that is no deeper.

    For a record without such a next one, it is the number of records.
    """
    ends = [len(depths)] * len(depths)
    open_indexes: list[int] = []  # records whose end is not found yet, the deepest last
    for index, depth in enumerate(depths):
        while open_indexes and depth < depths[open_indexes[-1]] + or_equal:
            ends[open_indexes.pop()] = index
        open_indexes.append(index)
    return ends


def _follows_empty_line(contents: Sequence[str], index: int) -> bool:
    """Return whether a record is the first, or stands behind an empty line."""
    if index == 0:
        return True
    previous_content, own_content = contents[index - 1], contents[index]
    gap = (
        previous_content[len(previous_content.rstrip()) :]
        + own_content[: len(own_content) - len(own_content.lstrip())]
    )
    return _EMPTY_LINE.search(gap) is not None


def split_outermost(records: Sequence[Record]) -> list[range]:
    """Return the indexes of records in parts that each begin at the outermost depth: lines of a log, functions."""
    outermost = min((record.depth for record in records), default=0)
    starts = [index for index, record in enumerate(records) if not index or record.depth == outermost]
    return [range(start, end) for start, end in pairwise([*starts, len(records)])]


def group_by_block(text: str, records: Sequence[Record], ranked_indexes: Iterable[int]) -> list[list[int]]:
    """Return ranked records, each in one list with those it should be read with; no index twice."""
    outline = Outline(text, records)
    blocks: list[list[int]] = []
    seen: set[int] = set()
    for index in ranked_indexes:
        if index not in seen:
            block = [member for member in outline.list_block(index) if member not in seen]
            blocks.append(block)
            seen.update(block)
    return blocks
