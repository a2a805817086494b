"""Excerpts: recalled messages, written into a prompt like minutes with speaker, date and session.

A first line explains the block. Nothing in an excerpt can close the block or pass for another speaker
(`acms.prompt_types`), and no role of a provider is imitated.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime

from acms.log.encoding import parse_entry_id
from acms.log.validity import label_at_end
from acms.model import Context, Entry, Role, Source, Text, ToolCall, ToolResult
from acms.plan.nodes import ComposedMessage, MessageGroup, Piece
from acms.ports import Codec, TokenCounter
from acms.prompt_types import SEPARATOR, PromptMessage, format_paragraph, prefix_speaker
from acms.results import ContextItem, is_external
from acms.text import chat_messages, condense
from acms.text.records import Record
from acms.text.tokenizer import content_terms, split_words

TOOL_CALL = "tool call"
"""Speaker of a tool call; its results follow an arrow."""
NAMED_CALL = "earlier tool call (result not shown)"
NAMED_CALLS = "earlier tool calls (results not shown)"
"""Speaker of the calls that are named without their results, behind their number."""
COUNT_TOKENS = 14
"""Tokens of a line that only counts the earlier calls."""
LATER = "later than the messages above"
"""Note on an edit, or on an excerpt of another session, that is newer than all earlier turns of this session."""
FAILURES = frozenset(
    "error errors failed failure fails exception traceback denied refused fatal panic killed crashed abort aborted "
    "timeout cannot".split()
)
"""Words of the result of a tool that say that the call failed."""
_FAILURE = re.compile(rf"(?<!\b0 )(?<!\bno )\b(?:{'|'.join(sorted(FAILURES))})\b", re.IGNORECASE)
NEGATIONS = frozenset(
    "no not never none nothing without nor t n't nicht kein keine nie pas jamais nunca não non ne".split()
)
"""Words with which a message that holds the words of a fact says something else."""
KNOWN_NOW = "known now"
"""Note on a fact: it holds whatever the age of the excerpts around it."""
ARROW = "→"
SHORT_CALL = 30
"""Tokens for the arguments of an earlier call: a path or a query, and the beginnings of long values."""
SHORT_LINE = 40
"""Characters of the first and of the last line of the result of an earlier call."""
FAILURE_LINE = 160
"""Characters of the line that says what failed: an error message with its time and place."""

_BEGIN = datetime.min.replace(tzinfo=UTC)


def find_own_logs(context: Context | None) -> set[str]:
    """Return the ids of a conversation's log and of the logs it was forked from; none for one not yet begun."""
    return set() if context is None else {context.id, *(owner for owner, _ in context.lineage)}


def write_pieces(
    items: Sequence[ContextItem],
    context: Context | None,
    *,
    same_counter: bool,
    last_turn: Entry | None = None,
) -> tuple[Piece, ...]:
    """Return recalled items as pieces, oldest first; a tool call and its results are one piece.

    `context` is the log of the session, None for one not yet begun. If some items are from other logs, each piece names
    its session, except facts: they hold wherever they were stated. Pieces that are newer than `last_turn` say so.
    `same_counter` says that the tokens of the items were counted as the codec counts.
    """
    own_logs = find_own_logs(context)
    has_others = has_other_sessions(items, context)
    pieces: list[Piece] = []
    group: tuple[str, str] | None = None
    for item in _sort_oldest_first(items):
        if not item.content:
            continue
        if item.group is not None and group == _group_of(item):
            pieces[-1] = _add_result(pieces[-1], item)
            continue
        group = None if item.group is None else _group_of(item)
        place = _name_place(item, own_logs, last_turn, names_session=has_others)
        text = chat_messages.escape_closing_mark(_write_paragraph(item, place), chat_messages.RECALLED)
        # The item's own count holds only for its text as it is, not with a day or a session.
        is_plain = text == prefix_speaker(item.speaker, item.content)
        tokens = item.token_count if same_counter and is_plain else None
        pieces.append(Piece(text, item.id, item.score, (item.id,), tokens))
    return tuple(pieces)


def has_other_sessions(items: Sequence[ContextItem], context: Context | None) -> bool:
    """Return whether some items are of other sessions than that of a log."""
    own_logs = find_own_logs(context)
    return any(not _is_own(item, own_logs) for item in items)


def _sort_oldest_first(items: Sequence[ContextItem]) -> list[ContextItem]:
    """Return facts and summaries, then messages of all sessions by time; a tool call stays beside its results.

    An edit has the time at which it was made, and so stands behind what it corrects.
    """
    call_times: dict[tuple[str, str], datetime] = {}
    for item in items:
        if item.group is not None:
            call_times.setdefault(_group_of(item), item.created_at)

    def sort_key(item: ContextItem) -> tuple[bool, datetime]:
        if item.source is Source.FACT or item.role is None:
            return False, _BEGIN
        return True, item.created_at if item.group is None else call_times[_group_of(item)]

    return sorted(items, key=sort_key)


def _group_of(item: ContextItem) -> tuple[str, str]:
    """Return the key of a tool call: its log, and the name of its tool group in that log."""
    return _owner_of(item), item.group or ""


def _owner_of(item: ContextItem) -> str:
    """Return the log that holds an item."""
    parsed = parse_entry_id(item.id)
    return "" if parsed is None else parsed[0]


def drop_repeated_facts(items: Sequence[ContextItem]) -> list[ContextItem]:
    """Drop facts whose words all occur in one short message that is recalled too; a fact of one word stays.

    Not because of a question, a negation or external text: these hold the words without stating the fact.
    """
    messages: list[AbstractSet[int]] = []
    for item in items:
        if item.source is Source.FACT or item.group is not None or is_external(item):
            continue
        words = split_words(item.content)
        is_statement = "?" not in item.content and NEGATIONS.isdisjoint(words)
        terms = set(content_terms(words))
        if is_statement and len(terms) <= 60:  # a longer text holds many words by chance
            messages.append(terms)
    kept_items: list[ContextItem] = []
    for item in items:
        terms = set(content_terms(split_words(item.content))) if item.source is Source.FACT else set[int]()
        is_repeated = len(terms) > 1 and any(terms <= message for message in messages)
        if not is_repeated:
            kept_items.append(item)
    return kept_items


def _is_own(item: ContextItem, own_logs: Collection[str]) -> bool:
    """Return whether an item is from this conversation, or of no session: a fact."""
    if item.source is Source.FACT or item.session_id is None:
        return True
    parsed = parse_entry_id(item.id)
    return parsed is None or parsed[0] in own_logs


def _name_place(
    item: ContextItem, own_logs: Collection[str], last_turn: Entry | None, *, names_session: bool
) -> str | None:
    """Return the session that an excerpt names, and whether it is later than the messages above or holds now."""
    if item.source is Source.FACT:
        return None if label_at_end(item.content) else KNOWN_NOW
    places: list[str] = []
    if names_session:
        places.append("this session" if _is_own(item, own_logs) else f"session {item.session_id}")
    if last_turn is not None and _is_later(item, last_turn, own_logs):
        places.append(LATER)
    return ", ".join(places) or None


def note_current_fact(item: ContextItem) -> ContextItem:
    """Return a fact with the note that it holds now, unless a label says when it held; other items unchanged."""
    if item.source is not Source.FACT or label_at_end(item.content):
        return item
    return replace(item, content=f"{item.content} ({KNOWN_NOW})")


def _is_later(item: ContextItem, last_turn: Entry, own_logs: Collection[str]) -> bool:
    """Return whether an item was written after a turn: by version in its own log, where only an edit can be."""
    if _is_own(item, own_logs):
        return _owner_of(item) == last_turn.context and item.version > last_turn.version
    return item.created_at > last_turn.created_at


def _write_paragraph(item: ContextItem, place: str | None) -> str:
    """Return an item as a paragraph with its speaker, day and place."""
    calls = any(isinstance(part, ToolCall) for part in item.parts)
    speaks = any(isinstance(part, Text) and part.text.strip() for part in item.parts)
    speaker = TOOL_CALL if calls and not speaks else item.speaker
    return format_paragraph(speaker, item.content, item.day, place=place, external=is_external(item))


def _add_result(call: Piece, item: ContextItem) -> Piece:
    """Return a tool call with one more of its results behind an arrow, on the same line if both are one line."""
    result = chat_messages.escape_closing_mark(format_paragraph("", item.content), chat_messages.RECALLED)
    label = "(external text) " if is_external(item) else ""
    is_one_line = "\n" not in call.text + result and ARROW not in call.text
    gap = " " if is_one_line else "\n"
    tokens = None if call.tokens is None else call.tokens + item.token_count
    return call._replace(
        text=f"{call.text}{gap}{ARROW} {label}{result}",
        rank=max(call.rank, item.score),
        sources=(*call.sources, item.id),
        tokens=tokens,
    )


def write_earlier_calls(
    groups: Sequence[MessageGroup], counter: TokenCounter, *, line_tokens: int, tokens: int
) -> tuple[Piece, ...]:
    """Return tool calls in short, oldest first: a model that does not see its earlier calls repeats them.

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
    sources = tuple([id for message in group.messages for id in message.sources])
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


def write_block(
    pieces: tuple[Piece, ...], codec: Codec, explanation: str = chat_messages.EXCERPTS
) -> ComposedMessage:
    """Return recalled pieces as one message of quoted text, or as separate blocks where the format supports them."""
    if codec.search_results:
        return ComposedMessage(Role.USER, pieces, separator="\n", kind="recall", cited=True)
    opening = f"{chat_messages.RECALLED[0]}{explanation}{SEPARATOR}"
    return ComposedMessage(Role.USER, pieces, opening, SEPARATOR, chat_messages.RECALLED[1], "recall")


def write_frame(codec: Codec) -> PromptMessage:
    """Return an empty block of excerpts: the opening and closing text without any pieces."""
    empty = write_block((), codec)
    return PromptMessage(role=empty.role, parts=(Text(empty.opening + empty.closing),))
