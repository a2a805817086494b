"""Excerpts: recalled messages, written into a prompt like minutes with speaker, date and session.

A first line explains the block. Nothing in an excerpt can close the block or pass for another speaker
(`acms.prompt_types`), and no role of a provider is imitated.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime

from acms.log.encoding import parse_entry_id
from acms.model import Context, Role, Source, Text, ToolCall, ToolResult
from acms.plan.nodes import ComposedMessage, MessageGroup, Piece
from acms.ports import Codec, TokenCounter
from acms.prompt_types import SEPARATOR, PromptMessage, format_paragraph, prefix_speaker
from acms.results import ContextItem, is_external
from acms.text import chat_messages, condense
from acms.text.tokenizer import content_terms, split_words

TOOL_CALL = "tool call"
"""Speaker of a tool call; its results follow an arrow."""
LATER = "later than the messages above"
"""Note on an excerpt of another session that is newer than all earlier turns of this one: a correction, perhaps."""
ARROW = "→"
SHORT_CALL = 30
"""Tokens for the arguments of an earlier call: a path or a query, and the beginnings of long values."""
SHORT_LINE = 40
"""Characters of the first and of the last line of the result of an earlier call."""

_BEGIN = datetime.min.replace(tzinfo=UTC)


def find_own_logs(context: Context | None) -> set[str]:
    """Return the ids of a conversation's log and of the logs it was forked from; none for one not yet begun."""
    return set() if context is None else {context.id, *(owner for owner, _ in context.lineage)}


def write_pieces(
    items: Sequence[ContextItem],
    context: Context | None,
    *,
    same_counter: bool,
    last_turn: datetime | None = None,
) -> tuple[Piece, ...]:
    """Return recalled items as pieces, oldest first; a tool call and its results are one piece.

    `context` is the log of the session, None for one not yet begun. If some items are from other logs, each piece names
    its session, except facts: they hold wherever they were stated. Such pieces that are newer than `last_turn` say so.
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
        place = _name_session(item, own_logs, last_turn) if has_others else None
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
    """Return facts and summaries, then messages of all sessions by time; a tool call stays beside its results."""
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
    owner = parse_entry_id(item.id)
    return ("" if owner is None else owner[0], item.group or "")


def drop_repeated_facts(items: Sequence[ContextItem]) -> list[ContextItem]:
    """Drop facts whose words all occur in one short message that is recalled too; a fact of one word stays."""
    messages: list[AbstractSet[int]] = []
    for item in items:
        if item.source is not Source.FACT and item.group is None:
            terms = _terms_of_item(item)
            if len(terms) <= 60:  # a longer text holds many words by chance
                messages.append(terms)
    kept_items: list[ContextItem] = []
    for item in items:
        terms = _terms_of_item(item) if item.source is Source.FACT else set[int]()
        is_repeated = len(terms) > 1 and any(terms <= message for message in messages)
        if not is_repeated:
            kept_items.append(item)
    return kept_items


def _terms_of_item(item: ContextItem) -> set[int]:
    return set(content_terms(split_words(item.content)))


def _is_own(item: ContextItem, own_logs: Collection[str]) -> bool:
    """Return whether an item is from this conversation, or of no session: a fact."""
    if item.source is Source.FACT or item.session_id is None:
        return True
    parsed = parse_entry_id(item.id)
    return parsed is None or parsed[0] in own_logs


def _name_session(item: ContextItem, own_logs: Collection[str], last_turn: datetime | None) -> str | None:
    """Return how an excerpt names the session of an item; None for a fact."""
    if item.source is Source.FACT:
        return None
    if _is_own(item, own_logs):
        return "this session"
    is_later = last_turn is not None and item.created_at > last_turn
    return f"session {item.session_id}, {LATER}" if is_later else f"session {item.session_id}"


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


def write_short_calls(
    groups: Sequence[MessageGroup], counter: TokenCounter, max_tokens: int
) -> tuple[Piece, ...]:
    """Return the newest tool calls with their results, one line each, as many as `max_tokens` hold.

    A model that does not see its earlier calls repeats them. Short values of arguments, such as paths, are kept, and
    the first and the last line of a result.
    """
    pieces: list[Piece] = []
    for group in groups:
        calls: list[str] = []
        results: list[str] = []
        for message in group.messages:
            for part in message.parts:
                if isinstance(part, ToolCall):
                    arguments = condense.condense_arguments(part.arguments, SHORT_CALL, counter)
                    calls.append(f"{part.name}({condense.MARK.sub(condense.CUT, arguments)})")
                elif isinstance(part, ToolResult):
                    results.append(f" {ARROW} {_shorten_result(part.output)}")
        if not calls:
            continue
        sources = tuple([id for message in group.messages for id in message.sources])
        text = format_paragraph(TOOL_CALL, ", ".join(calls) + "".join(results))
        pieces.append(
            Piece(
                chat_messages.escape_closing_mark(text, chat_messages.RECALLED), sources[0], sources=sources
            )
        )
    costs = [counter.count(piece.text) for piece in pieces]
    while pieces and sum(costs[-len(pieces) :]) > max_tokens:
        del pieces[0]
    return tuple(pieces)


def _shorten_result(output: str) -> str:
    """Return the output of a tool in one line: whole, or the beginning of its first and the end of its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if not lines:
        return ""
    if len(lines) == 1 and len(lines[0]) <= 2 * SHORT_LINE:
        return lines[0]
    return f"{lines[0][:SHORT_LINE].rstrip()} {condense.CUT} {lines[-1][-SHORT_LINE:].lstrip()}"


def write_block(pieces: tuple[Piece, ...], codec: Codec, *, is_first: bool = True) -> ComposedMessage:
    """Return recalled pieces as one message of quoted text, or as separate blocks where the format supports them.

    The first block of a request explains its purpose; later ones refer to it.
    """
    if codec.search_results:
        return ComposedMessage(Role.USER, pieces, separator="\n", kind="recall", cited=True)
    explanation = chat_messages.EXCERPTS if is_first else chat_messages.MORE_EXCERPTS
    opening = f"{chat_messages.RECALLED[0]}{explanation}{SEPARATOR}"
    return ComposedMessage(Role.USER, pieces, opening, SEPARATOR, chat_messages.RECALLED[1], "recall")


def write_frame(codec: Codec) -> PromptMessage:
    """Return an empty block of excerpts: the opening and closing text without any pieces."""
    empty = write_block((), codec)
    return PromptMessage(role=empty.role, parts=(Text(empty.opening + empty.closing),))
