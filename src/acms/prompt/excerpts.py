"""Excerpts: recalled messages, written into a prompt like minutes with speaker, date and session.

A first line explains the block. Nothing in an excerpt can close the block or pass for another speaker
(`acms.prompt_types`), and no role of a provider is imitated.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from acms.log.encoding import parse_entry_id
from acms.log.validity import label_at_end
from acms.model import Context, Entry, Role, Source, Text, ToolCall
from acms.plan.nodes import ComposedMessage, Piece
from acms.ports import Codec
from acms.prompt.fit_state import compose_message
from acms.prompt_types import SEPARATOR, format_paragraph, prefix_speaker
from acms.results import ContextItem, is_external
from acms.text import chat_messages

TOOL_CALL = "tool call"
"""Speaker of a tool call; its results follow an arrow."""
LATER = "later than the messages above"
"""Note on an edit, or on an excerpt of another session, that is newer than all earlier turns of this session."""
KNOWN_NOW = "known now"
"""Note on a fact: it holds whatever the age of the excerpts around it."""
ARROW = "→"

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
    names_session = any(not _is_own(item, own_logs) for item in items)
    pieces: list[Piece] = []
    group: tuple[str, str] | None = None
    for item in _sort_oldest_first(items):
        if not item.content:
            continue
        if item.group is not None and group == _group_of(item):
            pieces[-1] = _add_result(pieces[-1], item)
            continue
        group = None if item.group is None else _group_of(item)
        place = _name_place(item, own_logs, last_turn, names_session=names_session)
        text = chat_messages.escape_closing_mark(_write_paragraph(item, place), chat_messages.RECALLED)
        # The item's own count holds only for its text as it is, not with a day or a session.
        is_plain = text == prefix_speaker(item.speaker, item.content)
        tokens = item.token_count if same_counter and is_plain else None
        pieces.append(Piece(text, item.id, item.score, (item.id,), tokens))
    return tuple(pieces)


def _sort_oldest_first(items: Sequence[ContextItem]) -> list[ContextItem]:
    """Return facts and summaries, then messages of all sessions by time; a tool call stays beside its results.

    An edit has the time at which it was made, and so stands behind what it corrects. Messages of the same time have the
    order of their log.
    """
    call_places: dict[tuple[str, str], tuple[datetime, int]] = {}
    for item in items:
        if item.group is not None:
            call_places.setdefault(_group_of(item), (item.created_at, item.version))

    def sort_key(item: ContextItem) -> tuple[bool, datetime, int]:
        if item.source is Source.FACT or item.role is None:
            return False, _BEGIN, 0
        own_place = (item.created_at, item.version)
        return True, *(own_place if item.group is None else call_places[_group_of(item)])

    return sorted(items, key=sort_key)


def _group_of(item: ContextItem) -> tuple[str, str]:
    """Return the key of a tool call: its log, and the name of its tool group in that log."""
    return _owner_of(item), item.group or ""


def _owner_of(item: ContextItem) -> str:
    """Return the log that holds an item, or "" for an item that is no entry."""
    parsed = parse_entry_id(item.id)
    return "" if parsed is None else parsed[0]


def _is_own(item: ContextItem, own_logs: Collection[str]) -> bool:
    """Return whether an item is from this conversation, or of no session: a fact."""
    if item.source is Source.FACT or item.session_id is None:
        return True
    owner = _owner_of(item)
    return not owner or owner in own_logs


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


def write_block(
    pieces: tuple[Piece, ...], codec: Codec, explanation: str = chat_messages.EXCERPTS
) -> ComposedMessage:
    """Return recalled pieces as one message of quoted text, or as separate blocks where the format supports them."""
    if codec.search_results:
        return ComposedMessage(Role.USER, pieces, separator="\n", kind="recall", cited=True)
    opening = f"{chat_messages.RECALLED[0]}{explanation}{SEPARATOR}"
    return ComposedMessage(Role.USER, pieces, opening, SEPARATOR, chat_messages.RECALLED[1], "recall")


def cost_of_block(pieces: tuple[Piece, ...], codec: Codec) -> int:
    """Return the tokens of recalled pieces as one message; 0 if there are none."""
    return codec.cost(compose_message(write_block(pieces, codec), pieces)) if pieces else 0


def cost_of_frame(codec: Codec) -> int:
    """Return the tokens of a block of excerpts without any pieces."""
    return codec.cost(compose_message(write_block((), codec), ()))
