"""The earlier tool calls of a long turn in short: a model that does not see its earlier calls repeats them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from acms.model import ToolCall, ToolResult
from acms.plan.nodes import MessageGroup, Piece
from acms.ports import TokenCounter
from acms.prompt.excerpts import ARROW, TOOL_CALL
from acms.prompt_types import format_paragraph
from acms.text import chat_messages, condense
from acms.text.records import Record
from acms.text.tokenizer import split_words

NAMED_CALL = "earlier tool call (result not shown)"
NAMED_CALLS = "earlier tool calls (results not shown)"
"""Speaker of the calls that are named without their results, behind their number."""
COUNT_TOKENS = 14
"""Tokens of a line that only counts the earlier calls."""
FAILURES = frozenset(
    "error errors failed failure fails exception traceback denied refused fatal panic killed crashed abort aborted "
    "timeout cannot".split()
)
"""Words of the result of a tool that say that the call failed."""
_FAILURE = re.compile(rf"(?<!\b0 )(?<!\bno )\b(?:{'|'.join(sorted(FAILURES))})\b", re.IGNORECASE)
SHORT_CALL = 30
"""Tokens for the arguments of an earlier call: a path or a query, and the beginnings of long values."""
SHORT_LINE = 40
"""Characters of the first and of the last line of the result of an earlier call."""
FAILURE_LINE = 160
"""Characters of the line that says what failed: an error message with its time and place."""


def write_earlier_calls(
    groups: Sequence[MessageGroup], counter: TokenCounter, *, line_tokens: int, tokens: int
) -> tuple[Piece, ...]:
    """Return tool calls in short, oldest first.

    Calls whose results are unlike those of the other calls, such as a failure, get a line each with the result, as
    many as `line_tokens` hold. All others are named in one piece without their results, so that everything takes at
    most `tokens`; what does not fit is counted there. If all names fit, the newest calls get a line too.
    """
    calls = [group for group in groups if _name_calls(group, counter)]

    def name_others(lines: Mapping[int, Piece]) -> Piece | None:
        others = [call for index, call in enumerate(calls) if index not in lines]
        spare_tokens = tokens - _count_tokens(lines.values(), counter)
        return _write_named_calls(others, counter, spare_tokens) if others else None

    lines = _write_call_lines(calls, _find_unusual(calls), min(line_tokens, tokens - COUNT_TOKENS), counter)
    names = name_others(lines)
    if names is not None and len(names.sources) + len(lines) == len(calls):
        used_tokens = _count_tokens(lines.values(), counter)
        spare_tokens = min(line_tokens, tokens - counter.count(names.text)) - used_tokens
        newest_first = [index for index in reversed(range(len(calls))) if index not in lines]
        lines |= _write_call_lines(calls, newest_first, spare_tokens, counter)
        names = name_others(lines)
    in_order = [lines[index] for index in sorted(lines)]
    return tuple([names, *in_order] if names else in_order)


def _write_call_lines(
    calls: Sequence[MessageGroup], order: Sequence[int], tokens: int, counter: TokenCounter
) -> dict[int, Piece]:
    """Return by index a line with its result for each of the first calls of an order that fit some tokens."""
    lines: dict[int, Piece] = {}
    for index in order:
        line = _write_call_line(calls[index], counter)
        tokens -= counter.count(line.text)
        if tokens < 0:
            break
        lines[index] = line
    return lines


def _count_tokens(pieces: Iterable[Piece], counter: TokenCounter) -> int:
    return sum([counter.count(piece.text) for piece in pieces])


def _find_unusual(calls: Sequence[MessageGroup]) -> list[int]:
    """Return the indexes of calls that failed, and then of those whose results have words that few others have.

    If most calls failed, a failure is not unusual.
    """
    results = [" ".join(map(_shorten_result, _outputs_of(group))) for group in calls]
    records: list[Record] = []
    start = 0
    for result in results:
        records.append(Record(start, start + len(result), 0))
        start += len(result) + 1
    rarity = condense.measure_rarity("\n".join(results), records)
    typical = sorted(rarity)[len(rarity) // 2] if rarity else 0.0
    failed = {index for index, result in enumerate(results) if not FAILURES.isdisjoint(split_words(result))}
    if len(failed) > len(calls) / 2:
        failed = set()
    unusual = {index for index, value in enumerate(rarity) if value > 2 * typical}
    return sorted(failed | unusual, key=lambda index: (index not in failed, -rarity[index], -index))


def _outputs_of(group: MessageGroup) -> list[str]:
    """Return the outputs of a tool call."""
    return [
        part.output for message in group.messages for part in message.parts if isinstance(part, ToolResult)
    ]


def _write_call_line(group: MessageGroup, counter: TokenCounter) -> Piece:
    """Return a tool call and its results as one line."""
    results = [f" {ARROW} {_shorten_result(output)}" for output in _outputs_of(group)]
    sources = group.sources
    text = format_paragraph(TOOL_CALL, ", ".join(_name_calls(group, counter)) + "".join(results))
    return Piece(chat_messages.escape_closing_mark(text, chat_messages.RECALLED), sources[0], sources=sources)


def _write_named_calls(groups: Sequence[MessageGroup], counter: TokenCounter, tokens: int) -> Piece | None:
    """Return one piece that names calls without their results, the newest within `tokens`, and counts the others.

    None if not even the number of calls fits.
    """
    names: list[str] = []
    sources: list[str] = []

    def write() -> str:
        missing_count = len(groups) - len(names)
        missing = [f"{missing_count} not named"] if missing_count and names else []
        speaker = f"{len(groups)} {NAMED_CALLS}" if len(groups) > 1 else NAMED_CALL
        text = format_paragraph(speaker, ", ".join([*missing, *names]) or "not named")
        return chat_messages.escape_closing_mark(text, chat_messages.RECALLED)

    for group in reversed(groups):
        names.insert(0, ", ".join(_name_calls(group, counter)))
        if counter.count(write()) > tokens:
            del names[0]
            break
        sources.insert(0, group.messages[0].sources[0])
    if not sources and counter.count(write()) > tokens:
        return None
    id = groups[-1].messages[0].sources[0]
    return Piece(write(), sources[0] if sources else id, sources=tuple(sources) or (id,))


def _name_calls(group: MessageGroup, counter: TokenCounter) -> list[str]:
    """Return the calls of a group with short arguments."""
    names: list[str] = []
    for message in group.messages:
        for part in message.parts:
            if isinstance(part, ToolCall):
                arguments = condense.condense_arguments(part.arguments, SHORT_CALL, counter)
                names.append(f"{part.name}({condense.MARK.sub(condense.CUT, arguments)})")
    return names


def _shorten_result(output: str) -> str:
    """Return the output of a tool in one line: whole, the line of a failure, or its beginning and its end."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if not lines:
        return ""
    if len(lines) == 1 and len(lines[0]) <= 2 * SHORT_LINE:
        return lines[0]
    failure = _FAILURE.search(output)
    if failure is not None:
        return _quote_around(output, failure.start())
    first, last = lines[0], lines[-1]
    head = first if len(first) <= SHORT_LINE else first[: condense.end_of_head(first, SHORT_LINE)].rstrip()
    tail = last if len(last) <= SHORT_LINE else last[condense.start_of_tail(last, SHORT_LINE) :].lstrip()
    return f"{head} {condense.CUT} {tail}".strip()


def _quote_around(output: str, position: int) -> str:
    """Return the line of a text that holds a position, or a part of a long line, with marks where text is left out."""
    start = output.rfind("\n", 0, position) + 1
    end = output.find("\n", position)
    line = output[start : end if end >= 0 else len(output)].rstrip()
    if len(line) > FAILURE_LINE:
        begin = max(0, position - start - FAILURE_LINE // 4)
        line = line[condense.start_of_tail(line, len(line) - begin) :]
        line = line[: condense.end_of_head(line, FAILURE_LINE)] if len(line) > FAILURE_LINE else line
    line = line.strip()
    before = f"{condense.CUT} " if not output.lstrip().startswith(line) else ""
    after = f" {condense.CUT}" if not output.rstrip().endswith(line) else ""
    return f"{before}{line}{after}"
