"""Condense the arguments and results of tools when they exceed their token budget.

Logs, tables, listings and JSON repeat much of the same in every record. The records worth their tokens are those that
the question names, those unlike the rest, such as the error among a thousand lines of success, the last and the first.
A record stands out by words that few others have (inverse document frequency within the text, Spärck Jones, 1972).
Values of the same field are compared with each other, whatever the format: one "FAILED" among many "paid" stands out,
and an id that is different in every record does not. In other text, words with digits make no record stand out. In
prose no record stands out: there every sentence has words of its own, and the oddest may be an instruction hidden in a
web page.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from math import fsum, log
from typing import TypeVar
from unicodedata import combining

from acms.log.encoding import quote_json
from acms.ports import TokenCounter
from acms.text.function_words import QUESTION_MARKS
from acms.text.records import (
    MAX_LINE_CHARS,
    TEXT,
    Record,
    group_by_block,
    split_fields,
    split_record,
    split_records,
)
from acms.text.tokenizer import split_words

CUT = "[…]"
"""Marks omitted text; the first mark in an output says how much was omitted, and from which entry."""
MARK = re.compile(r"\[…[^\]\n]*\]")
"""Any mark of a cut."""
MOST_CHARACTERS_PER_TOKEN = 128
"""Characters of the longest tokens that tokenizers have, which are runs of blanks."""
MORE_STEPS = 12
"""Steps tried behind the first one that does not fit: a later, smaller one may fit."""
MOST_BLOCKS = 200
"""Records that are shown with their blocks; if the budget has tokens for more, single records follow."""
END_RECORDS = 2
"""Records at the beginning and at the end that are shown before any other."""
MIN_RECORDS = 3
"""Records from which on some of a text are chosen; a shorter one is cut in its middle."""
SHORT_STRING_CHARS = 40
"""Characters of a string in a call's arguments that is never cut: ids, names, paths."""
MAX_WORD_CHARS = 60
"""Characters of a word that is never cut; what is longer, such as base64, has no words."""
FIRST_WIDE_CHARACTER = "\u2e80"
"""From here on characters stand for words or syllables (CJK), so that a text may be cut between any two of them."""

ZERO_WIDTH_JOINER = "\u200d"
"""Joins emoji to one character."""

TextSpan = tuple[int, int]
"""Start and end of a part of a text."""

_SENTENCE_MARKS = (".", "!", "。", "！", "।", "۔", *QUESTION_MARKS)
_CLOSING_SIGNS = " \t\r\n'\"’”)]}*_,"
"""Signs that may follow the end of a sentence, in Markdown and JSON too."""
_Word = TypeVar("_Word", str, int)
_VALUE = re.compile(r"[^\s\"'{}\[\]<>,]+")
"""A word or number in the value of a field."""
_PLAIN_WORD = re.compile(r"(?<![^\W\d_])[^\W\d_]{3,}+(?!(?:[^\W\d]|-){0,60}\d)")


def find_level(costs: Sequence[int], budget: int) -> int:
    """Return the largest cap for some costs so that their sum, each cut to the cap, is within a budget.

    Without costs, or if all of them fit as they are, nothing needs a cap: the largest cost (or the budget) is returned.
    """
    remaining = budget
    ascending = sorted(costs)
    for index, cost in enumerate(ascending):
        share = remaining // (len(ascending) - index)
        if cost > share:  # and so are all that follow: each gets the same
            return max(0, share)
        remaining -= cost
    return ascending[-1] if ascending else budget


def end_of_head(text: str, size: int) -> int:
    """Return where the first `size` characters of a text end without the beginning of a word or number."""
    for end in range(size, max(0, size - MAX_WORD_CHARS) - 1, -1):
        if _may_cut(text, end):
            return end
    return size


def start_of_tail(text: str, size: int) -> int:
    """Return where the last `size` characters of a text start without the end of a word or number."""
    start = len(text) - size
    for position in range(start, min(len(text), start + MAX_WORD_CHARS) + 1):
        if _may_cut(text, position):
            return position
    return start


def _may_cut(text: str, position: int) -> bool:
    """Return whether no word and no number reaches over a position: part of a number is another number."""
    if position <= 0 or position >= len(text):
        return True
    before, after = text[position - 1], text[position]
    if before.isspace() or after.isspace():
        return True
    is_joined = before == ZERO_WIDTH_JOINER or after == ZERO_WIDTH_JOINER or combining(after) > 0
    is_number = before.isdigit() and after.isdigit()
    return max(before, after) >= FIRST_WIDE_CHARACTER and not is_joined and not is_number


# ── outputs of tools ────────────────────────────────────────────────────────────────────────────────────────────────


def condense_output(
    text: str, tokens: int, counter: TokenCounter, *, question: str = "", entry_id: str = ""
) -> str:
    """Return a tool's output within `tokens`: unchanged if it fits, "" if no word fits beside a mark.

    The record that answers or stands out most is kept, then the last and the first, then alternately records that share
    rare words with the question and records that stand out, until the budget is filled; each with the object, section
    or function around it. If not even the best record fits, a part of it is shown. The first mark says how much is
    left out, and the id of the entry that holds all of it, as far as that takes at most a quarter of the tokens. The
    choice is cached as spans, without the text: a history shows the same outputs every turn.
    """
    if fits_budget(text, tokens, counter):
        return text
    key = hash(text), len(text), tokens, counter.name, hash(question), entry_id
    choice = _known_choices.get(key)
    if choice is None:
        if len(_known_choices) >= 4_096:
            _known_choices.clear()
        choice = _known_choices[key] = _choose_spans(text, tokens, counter, question, entry_id)
    spans, detail = choice
    return _join_spans(text, spans, entry_id, detail) if spans else _keep_beginning(text, tokens, counter)


class MarkDetail(IntEnum):
    """What the first mark of a cut text says."""

    NOTHING = 0
    SIZE = 1
    SIZE_AND_ENTRY = 2


_Choice = tuple[list[TextSpan], MarkDetail]
"""The spans of a text that are kept, and the mark between them."""
_known_choices: dict[tuple[int, int, int, str, int, str], _Choice] = {}


def keep_ends(text: str, tokens: int, counter: TokenCounter, *, entry_id: str = "") -> str:
    """Return a text within `tokens`: unchanged if it fits, else its head and its tail, with a mark between them.

    Only the mark is returned if no text fits beside it.
    """
    if fits_budget(text, tokens, counter):
        return text

    for detail, fits in _list_marks(text, tokens, counter, entry_id):
        spans = _choose_ends(text, tokens, fits, 0, len(text))
        if spans:
            return _join_spans(text, spans, entry_id, detail)
    return CUT


def fits_budget(text: str, tokens: int, counter: TokenCounter) -> bool:
    """Return whether a text has no more than so many tokens; a text too long for that is not counted."""
    if len(text) > MOST_CHARACTERS_PER_TOKEN * max(tokens, 0):
        return False
    return counter.count(text) <= tokens


def _keep_beginning(text: str, tokens: int, counter: TokenCounter) -> str:
    """Return the beginning of a text with the shortest mark, within so many tokens; "" if no word fits."""

    def write(size: int) -> str:
        return f"{text[: end_of_head(text, size)].rstrip()} {CUT}"

    limit = min(len(text) - 1, MOST_CHARACTERS_PER_TOKEN * max(tokens, 0))
    size = bisect_largest(limit, lambda size: counter.count(write(size)) <= tokens)
    return write(size) if text[: end_of_head(text, size)].strip() else ""


_Fits = Callable[[Sequence[TextSpan]], bool]
"""Whether some spans of a text fit its budget, with the marks between them."""


def _list_marks(
    text: str, tokens: int, counter: TokenCounter, entry_id: str
) -> list[tuple[MarkDetail, _Fits]]:
    """Return what the first mark may say within a quarter of the tokens, the most first, and what fits beside it."""

    def count(spans: Sequence[TextSpan], detail: MarkDetail) -> int:
        return counter.count(_join_spans(text, spans, entry_id, detail))

    marks: list[tuple[MarkDetail, _Fits]] = []
    for detail in sorted(MarkDetail, reverse=True):
        if detail is MarkDetail.NOTHING or 4 * count([], detail) <= tokens:
            marks.append((detail, lambda spans, detail=detail: count(spans, detail) <= tokens))
    return marks


def _choose_spans(text: str, tokens: int, counter: TokenCounter, question: str, entry_id: str) -> _Choice:
    """Return the spans of a text that are kept: whole records, or a part of the best one if not even that fits."""
    records = split_records(text)
    steps = _order_records(text, records, question) if len(records) >= MIN_RECORDS else []
    marks = _list_marks(text, tokens, counter, entry_id)
    for detail, fits in marks:
        spans = _choose_records(records, steps, fits)
        if spans:
            return spans, detail
    start, end = records[steps[0][0]][:2] if steps else (0, len(text))
    parts = split_record(text, records[steps[0][0]]) if steps else []
    if len(parts) > 1:
        steps = _order_records(text, parts, question)
        steps.insert(1, [0])  # the beginning of a line names it
    else:
        steps = []
    for detail, fits in marks:
        spans = _choose_records(parts, steps, fits) or _choose_ends(text, tokens, fits, start, end)
        if spans:
            return spans, detail
    return [], MarkDetail.NOTHING


def _choose_records(records: Sequence[Record], steps: Sequence[Sequence[int]], fits: _Fits) -> list[TextSpan]:
    """Return the spans of the records of the first steps that fit."""
    return _sort_records(records, fill_steps(steps, lambda some: fits(_sort_records(records, some))))


def fill_steps(steps: Sequence[Sequence[int]], fits: Callable[[Sequence[int]], bool]) -> list[int]:
    """Return the numbers of the first steps that fit together, and of the next ones that still fit beside them."""
    count = bisect_largest(
        len(steps), lambda size: fits([number for step in steps[:size] for number in step])
    )
    chosen = [number for step in steps[:count] for number in step]
    for step in steps[count + 1 : count + 1 + MORE_STEPS] if count else ():
        if fits([*chosen, *step]):
            chosen += step
    return chosen


def join_records(content: str, records: Sequence[Record], indexes: Sequence[int]) -> str:
    """Join some records in the order of the text, with a mark wherever others are omitted.

    A record that begins a line keeps its indentation and begins one here.
    """
    text = ""
    next_index = 0
    for index in sorted(set(indexes)):
        start, end, _ = records[index]
        record = content[start:end]
        begins_line = start > 0 and content[start - 1] == "\n"
        is_marked = text.rstrip().endswith(CUT) or record.lstrip().startswith(CUT)
        mark = "" if is_marked else CUT
        if index == next_index:
            text += record
        elif begins_line:
            text = "\n".join([part for part in (text.rstrip(), mark, record) if part])
        else:
            text = " ".join([part for part in (text.rstrip(), mark, record.lstrip()) if part])
        next_index = index + 1
    text = text.rstrip()
    if indexes and next_index < len(records) and not text.endswith(CUT):
        text += f" {CUT}"
    return text


def _sort_records(records: Sequence[Record], indexes: Iterable[int]) -> list[TextSpan]:
    """Return the spans of some records in the order of the text."""
    chosen = [records[index] for index in sorted(set(indexes))]
    return [(record.start, record.end) for record in chosen]


def _choose_ends(text: str, tokens: int, fits: _Fits, start: int, end: int) -> list[TextSpan]:
    """Return the head and the tail of a part of a text, two thirds and one third, in whole lines if any fits."""
    part = text[start:end]

    def ends_of_size(size: int) -> list[TextSpan]:
        tail = size // 3
        ends = (0, end_of_head(part, size - tail)), (start_of_tail(part, tail), len(part))
        return [
            (start + first, start + last)
            for first, last in _widen_cut(part, *ends)
            if part[first:last].strip()
        ]

    limit = min(len(part) - 1, MOST_CHARACTERS_PER_TOKEN * max(tokens, 0))
    size = bisect_largest(limit, lambda size: fits(ends_of_size(size)))
    return ends_of_size(size)


def _widen_cut(text: str, head: TextSpan, tail: TextSpan) -> list[TextSpan]:
    """Return a head and a tail without a line that is cut, unless it is long or nothing else is left."""
    whole_head, whole_tail = head, tail
    start, end = _find_line(text, head[1])
    if end - start <= MAX_LINE_CHARS:
        whole_head = 0, start
    start, end = _find_line(text, tail[0])
    if end - start <= MAX_LINE_CHARS:
        whole_tail = end, len(text)
    spans = [whole_head, whole_tail]
    return spans if any(text[start:end].strip() for start, end in spans) else [head, tail]


def _find_line(text: str, position: int) -> TextSpan:
    """Return the start and end of the line in which a position is; of no characters if it is between two lines."""
    if _begins_line(text, position):
        return position, position
    end = text.find("\n", position)
    return text.rfind("\n", 0, position) + 1, len(text) if end < 0 else end


def bisect_largest(limit: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number up to `limit` for which something holds, 0 if for none; bisected from below."""
    low, high = 0, min(limit, 8)
    while high < limit and holds(high):
        low, high = high, min(limit, 2 * high)
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _order_records(text: str, records: Sequence[Record], question: str) -> list[list[int]]:
    """Return the indexes of records in the order in which they are chosen, those of one block in one step.

    A block is chosen whole: two records of JSON with a part of each would read like one. Only the block of the best
    record may be larger than the budget, so its records are steps of their own, the nearest first.
    """
    count = len(records)
    likeness = _measure_likeness(text, records, question)
    rarity = measure_contrast(text, records)
    by_question = _sort_descending(likeness, [index for index in range(count) if likeness[index] > 0])
    by_rarity = _sort_descending(rarity, range(count))
    alternating: list[int] = []
    for pair in zip(by_question, by_rarity, strict=False):
        alternating += pair
    alternating = list(dict.fromkeys([*alternating, *by_question, *by_rarity]))
    best = _find_best(likeness, rarity)
    ends = [count - 1, 0, *range(1, END_RECORDS), *range(count - END_RECORDS, count - 1)]
    (best_block,) = group_by_block(text, records, [best])
    first_steps = dict.fromkeys([best, *ends[:2], *best_block, *ends[2:]])
    blocks = group_by_block(text, records, alternating[:MOST_BLOCKS])
    return [[index] for index in first_steps] + blocks + [[index] for index in alternating[MOST_BLOCKS:]]


def _find_best(likeness: Sequence[float], rarity: Sequence[float]) -> int:
    """Return the index of the record that answers most and stands out most, each measured by the largest value."""
    most_like, rarest = max(likeness) or 1.0, max(rarity) or 1.0
    values = [like / most_like + rare / rarest for like, rare in zip(likeness, rarity, strict=True)]
    return values.index(max(values))


def _sort_descending(values: Sequence[float], indexes: Iterable[int]) -> list[int]:
    """Return indexes by their values, the largest first."""
    return sorted(indexes, key=lambda index: -values[index])


def _measure_likeness(text: str, records: Sequence[Record], question: str) -> list[float]:
    """Return how rare the words are that each record shares with a question; 0 for none."""
    question_words = set(split_words(question))
    if not question_words:
        return [0.0] * len(records)
    shared_words = [
        question_words.intersection(split_words(text[record.start : record.end])) for record in records
    ]
    return sum_rarities(shared_words, len(records))


def _is_prose(text: str, records: Sequence[Record]) -> bool:
    """Return whether most of a text is in records that end as sentences do."""
    ends_with_sentence = [
        record.end - record.start for record in records if _ends_sentence(text[record.start : record.end])
    ]
    return 2 * sum(ends_with_sentence) > sum(record.end - record.start for record in records)


def _ends_sentence(record: str) -> bool:
    """Return whether a record is a sentence, possibly as a string of JSON; several dots end none."""
    sentence = record.rstrip(_CLOSING_SIGNS)
    return sentence.endswith(_SENTENCE_MARKS) and not sentence[:-1].endswith(_SENTENCE_MARKS)


def measure_contrast(text: str, records: Sequence[Record]) -> list[float]:
    """Return for each record how far it stands out from the others by its words; 0 in prose."""
    return [0.0] * len(records) if _is_prose(text, records) else measure_rarity(text, records)


def measure_rarity(text: str, records: Sequence[Record]) -> list[float]:
    """Return for each record how much rarer the words of its most unusual field are than usual in that field.

    Ids and times, which are different in every record, are therefore no more unusual than values that are always the
    same. Words outside of fields count by their rarity alone.
    """
    rarity = [0.0] * len(records)
    for field, values in split_fields(text, records).items():
        words: defaultdict[int, set[str]] = defaultdict(set)
        for index, value in values:
            words[index].update(map(str.casefold, (_PLAIN_WORD if field == TEXT else _VALUE).findall(value)))
        sums = sum_rarities(list(words.values()), len(records) if field == TEXT else len(words))
        means = [total / max(1, len(some)) for total, some in zip(sums, words.values(), strict=True)]
        usual = 0.0 if field == TEXT else fsum(means) / len(means)
        for index, mean in zip(words, means, strict=True):
            rarity[index] = max(rarity[index], round(mean - usual, 9))
    return rarity


def sum_rarities(words: Sequence[set[_Word]], count: int) -> list[float]:
    """Return the sum of the inverse document frequencies of the words of each record, of so many in all."""
    holders = Counter(word for record_words in words for word in record_words)
    idf = {word: log(count / held) for word, held in holders.items()}
    # An exact sum: the order of a set differs from process to process, and equal records must stay equal.
    return [fsum(idf[word] for word in record_words) for record_words in words]


def _join_spans(text: str, spans: Sequence[TextSpan], entry_id: str, detail: MarkDetail) -> str:
    """Return some spans in their order, with marks wherever text is left out."""
    joined_text = ""
    mark = (
        _format_mark(text, spans, entry_id if detail is MarkDetail.SIZE_AND_ENTRY else "") if detail else CUT
    )
    position = 0
    for start, end in [*spans, (len(text), len(text))]:
        part = text[start:end]
        if text[position:start].strip():
            begins_line = text[start - 1] == "\n"
            joined_text = f"{joined_text.rstrip()}\n{mark}\n" + (part if begins_line else part.lstrip())
            mark = CUT
        else:
            joined_text += text[position:start] + part
        position = end
    return joined_text.strip("\n")


def _format_mark(text: str, spans: Sequence[TextSpan], entry_id: str) -> str:
    """Return the mark that says how much of a text is left out, and which entry holds it.

    In lines if only whole lines are left out, else in characters.
    """
    gaps: list[TextSpan] = []
    position = 0
    for start, end in [*spans, (len(text), len(text))]:
        if text[position:start].strip():
            gaps.append((position, start))
        position = end
    source = f"; entry {entry_id}" if entry_id else ""
    lines = text.rstrip("\n").count("\n") + 1
    whole_lines = all(_begins_line(text, start) and _begins_line(text, end) for start, end in gaps)
    if whole_lines and lines >= 6:
        left_out = sum(text[start:end].strip("\n").count("\n") + 1 for start, end in gaps)
        return f"[… {left_out:,} of {lines:,} lines left out{source}]"
    left_out = sum(end - start for start, end in gaps)
    return f"[… {left_out:,} of {len(text):,} characters left out{source}]"


def _begins_line(text: str, position: int) -> bool:
    return position in (0, len(text)) or "\n" in text[position - 1 : position + 1]


# ── arguments of calls ──────────────────────────────────────────────────────────────────────────────────────────────


def condense_arguments(arguments: str, tokens: int, counter: TokenCounter) -> str:
    """Return the arguments of a call with its long strings cut, within so many tokens or as near as that gets.

    Of JSON only string values change, each to its head and tail with a mark of how much is missing; names, numbers and
    all else stay as written. Arguments that are no JSON are cut as one text.
    """
    if fits_budget(arguments, tokens, counter):
        return arguments
    strings = _find_string_values(arguments) if _is_json(arguments) else None
    lengths = [len(arguments)] if strings is None else [len(value) for _, value in strings]

    def write(size: int) -> str:
        if strings is None:
            return _shorten_string(arguments, size)
        return _replace_strings(arguments, strings, size)

    limit = max(0, max(lengths, default=0) - SHORT_STRING_CHARS)
    extra = bisect_largest(limit, lambda extra: counter.count(write(SHORT_STRING_CHARS + extra)) <= tokens)
    shortened = write(SHORT_STRING_CHARS + extra)
    return shortened if counter.count(shortened) < counter.count(arguments) else arguments


_STRING = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?', re.DOTALL)
"""A string of JSON, and the colon behind the name of a field."""


def _is_json(text: str) -> bool:
    """Return whether a text is JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    except RecursionError:  # valid so far, but nested too deeply to parse
        return True
    return True


def _find_string_values(text: str) -> list[tuple[TextSpan, str]]:
    """Return the long string values of a JSON text with their spans."""
    values: list[tuple[TextSpan, str]] = []
    for match in _STRING.finditer(text):
        is_name = match[2] is not None
        value = "" if is_name else json.loads(match[1], strict=False)
        if len(value) > SHORT_STRING_CHARS:
            values.append((match.span(1), value))
    return values


def _replace_strings(text: str, strings: Sequence[tuple[TextSpan, str]], size: int) -> str:
    """Return a JSON text in which strings longer than so many characters are cut."""
    parts: list[str] = []
    position = 0
    for (start, end), value in strings:
        shortened = _shorten_string(value, size)
        parts += [text[position:start], text[start:end] if shortened == value else quote_json(shortened)]
        position = end
    return "".join([*parts, text[position:]])


def _shorten_string(text: str, size: int) -> str:
    """Return head, mark and tail of a text, or the text if that is no shorter."""
    tail = size // 3
    head_end, tail_start = end_of_head(text, size - tail), start_of_tail(text, tail)
    mark = f" [… {tail_start - head_end:,} of {len(text):,} characters left out] "
    shortened = text[:head_end] + mark + text[tail_start:]
    return shortened if len(shortened) < len(text) else text
