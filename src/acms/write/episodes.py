"""Episodes: where one ends, and why (rules of seed 004; order of closing from decision 0010).

An episode closes *after* the message that triggers it (the last missing tool result, a closing phrase, the maximum
number of turns) and *before* a message that comes after a long silence. The reason is a field of the message that ends
the episode, so the log needs no extra entry. A silence is only known from the next message: then the field stays empty,
and readers derive the reason. A closed episode stays the current one until the next message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from acms.config import CLOSING_PATTERNS, EpisodeBoundaryConfig
from acms.log.active_entries import GONE, Replacements, edit_and_end_lookup
from acms.log.encoding import to_microseconds
from acms.log.known_messages import ids_of_answers, ids_of_calls
from acms.model import EMPTY, Draft, Entry, EpisodeStatus, Json, Kind, Role
from acms.nouns import episode_id
from acms.results import Episode

MAX_TURNS = "max_turns"
TIME_GAP = "time_gap"
TOOL_RESULT = "tool_result"
PATTERN = "pattern"

_OPEN_CALLS = 1_024
"""Maximum number of unanswered calls in a tail, about a hundred kilobytes; older ones count as abandoned."""


@dataclass(slots=True, kw_only=True)  # not frozen, which is slower: one is built for every message
class Tail:
    """The state of the end of a log that is needed to place the next message; never modified."""

    #: Ordinal of the current episode, 0 before the first message, and the number of messages in it.
    episode: int = 0
    turns: int = 0
    #: Microseconds since 1970 of the newest message.
    last: int = 0
    #: Why the current episode was closed; None while it is open.
    closed: str | None = None
    #: Tool group that waits for answers, from its calls until they are answered or another role speaks.
    pending: str | None = None
    #: Unanswered calls: call id → tool group, oldest first.
    calls: Mapping[str, str] = field(default_factory=dict)
    #: `Head.tokens` when a compaction was last requested.
    asked: int = 0

    def to_json(self) -> dict[str, Json]:
        """Serialize the tail for a store; the later fields only if they differ from the default."""
        tail: dict[str, Json] = {"episode": self.episode, "turns": self.turns, "last": self.last}
        if self.closed is not None:
            tail["closed"] = self.closed
        if self.pending is not None:
            tail["pending"] = self.pending
        if self.calls:
            tail["calls"] = dict(self.calls)
        if self.asked:
            tail["asked"] = self.asked
        return tail

    @classmethod
    def from_json(cls, tail: Mapping[str, Json]) -> Tail:
        """Return a tail from the JSON that `to_json` returned."""
        return cls(**tail)


_CLOSING_CHARS = 200
"""A longer text cannot match the default patterns."""


def _is_closing_phrase(content: str, patterns: Sequence[str]) -> bool:
    if patterns is CLOSING_PATTERNS and len(content) > _CLOSING_CHARS:
        return False
    return any(pattern.search(content) for pattern in _compile_patterns(tuple(patterns)))


@lru_cache(maxsize=64)
def _compile_patterns(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for pattern in patterns)


class MessagePlacement(NamedTuple):
    """The placement of a message: its episode, why it ends that (or None), its tool group, and the tail after it."""

    episode: int
    closes: str | None
    group: str | None
    tail: Tail


def assign_episode(tail: Tail, draft: Draft, rules: EpisodeBoundaryConfig, group: str) -> MessagePlacement:
    """Decide the episode, its end and the tool group of the next message, and return them with the tail after it.

    `group` is the id of the tool group that the message starts if it makes calls.
    """
    now = to_microseconds(draft.created_at)
    calls = ids_of_calls(draft.parts)
    answered = [call_id for call_id in ids_of_answers(draft.parts) if call_id in tail.calls]
    is_gap = now - tail.last > rules.max_time_gap_seconds * 1_000_000
    # An answer belongs to the episode of its call, however late it comes.
    is_new = tail.episode == 0 or tail.closed is not None or (is_gap and not answered)
    episode = tail.episode + 1 if is_new else tail.episode
    turns = 1 if is_new else tail.turns + 1

    open_calls = tail.calls
    own_group: str | None = None
    if answered:
        own_group = open_calls[answered[0]]
        open_calls = {
            id: call_group
            for id, call_group in open_calls.items()
            if id not in answered or call_group != own_group
        }
    if calls:
        own_group = group
        older_calls = {id: call_group for id, call_group in open_calls.items() if id not in calls}
        open_calls = _newest_calls({**older_calls, **dict.fromkeys(calls, group)})
    pending = _pending_after(tail, draft, group, open_calls)
    closes = None if pending is not None else _closing_reason(draft, turns, rules)  # no end amid a tool group
    after = Tail(
        episode=episode,
        turns=turns,
        last=now,
        closed=closes,
        pending=pending,
        calls=open_calls,
        asked=tail.asked,
    )
    return MessagePlacement(episode, closes, own_group, after)


def _closing_reason(draft: Draft, turns: int, rules: EpisodeBoundaryConfig) -> str | None:
    """Return why a message ends its episode, or None; `turns` are the messages in it."""
    if rules.close_on_tool_result and draft.role is Role.TOOL:
        return TOOL_RESULT
    is_spoken = draft.role in (Role.USER, Role.ASSISTANT)
    if is_spoken and _is_closing_phrase(draft.content, rules.close_on_patterns):
        return PATTERN
    return MAX_TURNS if turns >= rules.max_turns else None


def _pending_after(
    tail: Tail, message: Draft, group: str | None, open_calls: Mapping[str, str]
) -> str | None:
    """Return the tool group that waits for answers after a message, or None; `group` is that of its own calls.

    A group stops waiting when a message of another role comes, but not at the late result of a call of another group.
    """
    if ids_of_calls(message.parts):
        return group
    return tail.pending if message.role is Role.TOOL and tail.pending in open_calls.values() else None


def _newest_calls(open_calls: Mapping[str, str]) -> dict[str, str]:
    return dict(list(open_calls.items())[-_OPEN_CALLS:])


def rebuild_tail(
    newest: Sequence[Entry], replacing: Sequence[Entry], older_calls: Mapping[str, str] = EMPTY
) -> Tail:
    """Rebuild the tail from the newest entries of a log, ascending: at least the whole last episode.

    `replacing` are the entries, from the first of the newest on, that replace or retract others. `older_calls` maps the
    ids of calls that were open before the newest entries to their groups; they stay open unless an entry makes calls of
    the same group.
    """
    edit_and_end_of = edit_and_end_lookup(Replacements(replacing, searchable=True))
    edits = [edit_and_end_of(entry.version)[0] for entry in newest]
    messages = [message for message in (*newest, *edits) if message is not None]
    calling_groups = {message.group for message in messages if ids_of_calls(message.parts)}
    open_calls: dict[str, _Call] = {}
    for id, group in older_calls.items():
        if group not in calling_groups:
            open_calls[id] = _Call(group, _Rank.OWN)
    tail = Tail()
    for entry in newest:
        if entry.kind is Kind.EPISODE:
            tail = replace(tail, closed=str(entry.data.get("reason", "manual")))
        elif entry.kind is Kind.MESSAGE and not entry.replaces:
            edit, ended_by = edit_and_end_of(entry.version)
            tail = _advance_tail(tail, entry, edit or entry, ended_by, open_calls)
    return tail


def _advance_tail(
    tail: Tail, original: Entry, message: Entry, ended_by: Entry | None, open_calls: dict[str, _Call]
) -> Tail:
    """Return the tail after a stored message, and update the open calls.

    `message` is its newest edit, or the original; `ended_by` is the entry that made it inactive, or None.
    """
    if ended_by is None:
        # An original message with sources was copied by a merge.
        _track_calls(open_calls, message, _Rank.COPIED if original.sources else _Rank.OWN)
    elif ended_by.data.get("reason") != GONE:
        _track_calls(open_calls, message, _Rank.ENDED)
    calls = {id: call.group for id, call in open_calls.items()}
    created_at = to_microseconds(original.created_at)
    return Tail(
        episode=original.episode,
        turns=tail.turns + 1 if original.episode == tail.episode else 1,
        # Merged entries keep their times, which may be earlier.
        last=max(tail.last, created_at) if original.sources else created_at,
        closed=original.closes,
        pending=_pending_after(tail, message, message.group, calls) if ended_by is None else tail.pending,
        calls=_newest_calls(calls),
    )


class _Rank(IntEnum):
    """The rank of a call among calls of the same id: a result answers the one of the highest rank, then the newest."""

    #: Retracted or cleared. A result joins the group of such a call, so that it is not shown without it.
    ENDED = 0
    #: Copied by a merge.
    COPIED = 1
    OWN = 2


class _Call(NamedTuple):
    """A call that waits for its result."""

    group: str
    rank: _Rank


def _track_calls(open_calls: dict[str, _Call], message: Entry, rank: _Rank) -> None:
    """Add the calls of a message to the open calls, and remove the calls that it answers."""
    if message.group is None:
        return
    for call_id in ids_of_calls(message.parts):
        previous = open_calls.get(call_id)
        if previous is None or rank >= previous.rank:
            open_calls.pop(call_id, None)  # inserted again as the last one: the order is by age
            open_calls[call_id] = _Call(message.group, rank)
    for call_id in ids_of_answers(message.parts):
        call = open_calls.get(call_id)
        if call is None or call.group != message.group:
            continue
        # A retracted result leaves an active call open.
        if rank is not _Rank.ENDED or call.rank is _Rank.ENDED:
            del open_calls[call_id]


def is_reflection_mark(entry: Entry) -> bool:
    """Return whether an entry is a mark: a summary of an episode that was reflected on, which replaces nothing.

    The summary of a compaction replaces entries. The episode and `covers` of a mark stay when its content is erased.
    """
    return entry.kind is Kind.SUMMARY and not entry.replaces


def build_episodes(context: str, entries: Sequence[Entry]) -> list[Episode]:
    """Return the episodes of a log from its messages, manual closes and the marks of reflections, ascending."""
    #: The messages of each episode, and by its index in that list the reason of a manual close.
    messages: list[list[Entry]] = []
    closed: dict[int, str] = {}
    summaries: dict[int, str] = {}
    for entry in entries:
        if is_reflection_mark(entry) and entry.content:
            summaries[entry.episode] = entry.content
        elif entry.kind is Kind.EPISODE and messages:
            closed[len(messages) - 1] = str(entry.data.get("reason", "manual"))
        elif entry.kind is Kind.MESSAGE and not entry.replaces:
            if messages and messages[-1][0].episode == entry.episode:
                messages[-1].append(entry)
                # The episode went on, so an earlier close did not end it.
                closed.pop(len(messages) - 1, None)
            else:
                messages.append([entry])

    episodes: list[Episode] = []
    for index, episode_messages in enumerate(messages):
        first, last = episode_messages[0], episode_messages[-1]
        reason = closed.get(index, last.closes)
        if reason is None and index < len(messages) - 1:
            reason = TIME_GAP
        episodes.append(
            Episode(
                id=episode_id(context, first.episode),
                ordinal=first.episode,
                status=EpisodeStatus.OPEN if reason is None else EpisodeStatus.CLOSED,
                first=first.version,
                last=last.version,
                messages=len(episode_messages),
                tokens=sum(entry.tokens for entry in episode_messages),
                reason=reason,
                started_at=first.created_at,
                ended_at=last.created_at,
                summary=summaries.get(first.episode),
            )
        )
    return episodes
