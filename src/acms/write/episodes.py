"""Episodes: where one ends, and why (rules of seed 004; order of closing from decision 0010).

An episode closes *after* the message that triggers it (tool results all in, a closing phrase, enough turns) and
*before* a message that comes after a long silence. The end is a field of the message that ends it, so the log needs no
extra entry; a silence is seen from the next message, so there the field stays empty and the reason is derived.
A closed episode stays the current one until the next message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from acms.config import CLOSING_PATTERNS, EpisodeBoundaryConfig
from acms.log.encoding import to_microseconds
from acms.log.in_force import GONE, Cover, read_as
from acms.model import EMPTY, Draft, Entry, EpisodeStatus, Json, Kind, Role, ToolCall, ToolResult
from acms.nouns import episode_id
from acms.results import Episode

MAX_TURNS = "max_turns"
TIME_GAP = "time_gap"
TOOL_RESULT = "tool_result"
PATTERN = "pattern"

_OPEN_CALLS = 1_024
"""How many unanswered calls a tail remembers; older ones count as abandoned."""


@dataclass(slots=True, kw_only=True)  # not frozen: one is made for every message
class Tail:
    """The state of the end of a log that is needed to place the next message; never modified."""

    #: Ordinal of the current episode, 0 before the first message; messages in it.
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
    #: `Head.tokens` when a compaction was last asked for.
    asked: int = 0

    def to_json(self) -> dict[str, Json]:
        """Serialize the tail for a store: only values that differ from the default."""
        written: dict[str, Json] = {"episode": self.episode, "turns": self.turns, "last": self.last}
        if self.closed is not None:
            written["closed"] = self.closed
        if self.pending is not None:
            written["pending"] = self.pending
        if self.calls:
            written["calls"] = dict(self.calls)
        if self.asked:
            written["asked"] = self.asked
        return written

    @classmethod
    def from_json(cls, written: Mapping[str, Json]) -> Tail:
        """Read a tail back."""
        return cls(**written)


_CLOSING_CHARS = 200
"""No longer text can match the default patterns."""


def _is_closing_phrase(content: str, patterns: Sequence[str]) -> bool:
    if patterns is CLOSING_PATTERNS and len(content) > _CLOSING_CHARS:
        return False
    return any(pattern.search(content) for pattern in _compile_patterns(tuple(patterns)))


@lru_cache(maxsize=64)
def _compile_patterns(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern) for pattern in patterns)


class Place(NamedTuple):
    """Where a message goes: its episode, why it ends it, its tool group; and the tail after it."""

    episode: int
    closes: str | None
    group: str | None
    tail: Tail


def assign_episode(tail: Tail, draft: Draft, rules: EpisodeBoundaryConfig, group: str) -> Place:
    """Decide the episode, its end and the tool group of the next message; `group` is used when it starts one."""
    now = to_microseconds(draft.created_at)
    calls: Sequence[str] = ()
    answered: Sequence[str] = ()
    if draft.parts:
        calls = [part.call_id for part in draft.parts if isinstance(part, ToolCall)]
        answered = [
            part.call_id
            for part in draft.parts
            if isinstance(part, ToolResult) and part.call_id in tail.calls
        ]
    gap = now - tail.last > rules.max_time_gap_seconds * 1_000_000
    new = tail.episode == 0 or tail.closed is not None or (gap and not answered)
    episode = tail.episode + 1 if new else tail.episode
    turns = 1 if new else tail.turns + 1

    open_calls = tail.calls
    member: str | None = None
    if answered:
        member = tail.calls[answered[0]]
        open_calls = {
            call_id: of for call_id, of in tail.calls.items() if call_id not in answered or of != member
        }
    if calls:
        member = group
        kept = {call_id: of for call_id, of in tail.calls.items() if call_id not in calls}
        kept.update(dict.fromkeys(calls, group))
        open_calls = dict(list(kept.items())[-_OPEN_CALLS:])
    pending = group if calls else _still_pending(tail, draft.role, open_calls)

    closes: str | None = None
    if pending is None:
        if rules.close_on_tool_result and draft.role is Role.TOOL:
            closes = TOOL_RESULT
        elif draft.role in (Role.USER, Role.ASSISTANT) and _is_closing_phrase(
            draft.content, rules.close_on_patterns
        ):
            closes = PATTERN
        elif turns >= rules.max_turns:
            closes = MAX_TURNS
    after = Tail(
        episode=episode,
        turns=turns,
        last=now,
        closed=closes,
        pending=pending,
        calls=open_calls,
        asked=tail.asked,
    )
    return Place(episode, closes, member, after)


def _still_pending(tail: Tail, role: Role | None, open_calls: Mapping[str, str]) -> str | None:
    """Return the group that is still waited for; a stray or late result of another call ends no waiting."""
    return tail.pending if role is Role.TOOL and tail.pending in open_calls.values() else None


def tail_of(newest: Sequence[Entry], replacing: Sequence[Entry], older: Mapping[str, str] = EMPTY) -> Tail:
    """Rebuild the tail from the newest entries of a log, ascending: at least the whole last episode.

    `replacing` are the entries since the first of these that replace or retract others. Of the open calls that are
    known already, `older` ones wait on; others count as abandoned.
    """
    read = read_as(Cover(replacing, searchable=True))
    now = [said for entry in newest for said in (entry, read(entry.version)[0]) if said is not None]
    called = {said.group for said in now if _has_tool_calls(said)}
    waiting = {id: (group, _OWN) for id, group in older.items() if group not in called}
    tail = Tail()
    for entry in newest:
        if entry.kind is Kind.EPISODE:
            tail = replace(tail, closed=str(entry.data.get("reason", "manual")))
        if entry.kind is not Kind.MESSAGE or entry.replaces:
            continue
        edit, ended = read(entry.version)
        said, at = edit or entry, to_microseconds(entry.created_at)
        if ended is None or ended.data.get("reason") != GONE:
            _track_calls(waiting, said, _LOST if ended else _COPIED if entry.sources else _OWN)
        calls = {id: group for id, (group, _) in waiting.items()}
        pending = tail.pending
        if ended is None:
            pending = said.group if _has_tool_calls(said) else _still_pending(tail, entry.role, calls)
        tail = Tail(
            episode=entry.episode,
            turns=tail.turns + 1 if entry.episode == tail.episode else 1,
            last=max(tail.last, at) if entry.sources else at,  # merged entries may be from any time
            closed=entry.closes,
            pending=pending,
            calls=dict(list(calls.items())[-_OPEN_CALLS:]),
        )
    return tail


_LOST, _COPIED, _OWN = range(3)
"""Which call of an id waits for the result: one in force, said here rather than brought by a merge, then the newest.

The result of a call that was taken back or cleared joins it, and is not shown.
"""


def _track_calls(waiting: dict[str, tuple[str, int]], said: Entry, weight: int) -> None:
    """Let the calls of a message wait for their results, and its results end that."""
    for part in said.parts if said.group is not None else ():
        if not isinstance(part, ToolCall | ToolResult):
            continue
        group, before = waiting.get(part.call_id, (None, _LOST))
        if isinstance(part, ToolCall) and weight >= before:
            waiting.pop(part.call_id, None)  # the newest comes last
            waiting[part.call_id] = (said.group or "", weight)
        elif isinstance(part, ToolResult) and group == said.group and (weight or not before):
            del waiting[part.call_id]


def _has_tool_calls(said: Entry) -> bool:
    return any(isinstance(part, ToolCall) for part in said.parts)


def is_mark(entry: Entry) -> bool:
    """Whether an entry marks an episode as reflected on and sums it up: a summary that replaces nothing.

    Its ordinal and `covers` outlive its content; a summary written by a compaction replaces entries.
    """
    return entry.kind is Kind.SUMMARY and not entry.replaces


def build_episodes(context: str, entries: Sequence[Entry]) -> list[Episode]:
    """List the episodes of a log from its messages, manual closes and the marks of reflections, ascending."""
    found: list[Episode] = []
    summaries: dict[int, str] = {}
    for entry in entries:
        if is_mark(entry) and entry.content:
            summaries[entry.episode] = entry.content
        if entry.kind is Kind.EPISODE and found:
            found[-1] = replace(
                found[-1], status=EpisodeStatus.CLOSED, reason=str(entry.data.get("reason", "manual"))
            )
        if entry.kind is not Kind.MESSAGE or entry.replaces:
            continue
        if found and found[-1].ordinal == entry.episode:
            last = found[-1]
            found[-1] = replace(
                last,
                last=entry.version,
                messages=last.messages + 1,
                tokens=last.tokens + entry.tokens,
                ended_at=entry.created_at,
                status=EpisodeStatus.CLOSED if entry.closes else EpisodeStatus.OPEN,
                reason=entry.closes,
            )
            continue
        if found and found[-1].status is EpisodeStatus.OPEN:
            found[-1] = replace(found[-1], status=EpisodeStatus.CLOSED, reason=TIME_GAP)
        found.append(
            Episode(
                id=episode_id(context, entry.episode),
                ordinal=entry.episode,
                status=EpisodeStatus.CLOSED if entry.closes else EpisodeStatus.OPEN,
                first=entry.version,
                last=entry.version,
                messages=1,
                tokens=entry.tokens,
                reason=entry.closes,
                started_at=entry.created_at,
                ended_at=entry.created_at,
            )
        )
    if summaries:
        found = [replace(one, summary=summaries.get(one.ordinal)) for one in found]
    return found
