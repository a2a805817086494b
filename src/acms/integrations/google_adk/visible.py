"""Find the events of a session that ADK lets an agent see, from the contents of its request.

ADK decides on rewinds, branches, scopes and `include_contents`, and the contents are the result. They do not name their
events, so events are matched by their text, in order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from json import dumps
from typing import NamedTuple

from google.adk.events.event import Event
from google.adk.events.event_actions import EventCompaction
from google.genai import types

__all__ = ["Visible", "find_visible_events"]


class Visible(NamedTuple):
    """How the contents of a request differ from the events of its session."""

    #: Ids of the events that it leaves out.
    hidden: frozenset[str]
    #: Contents without an event, each with the id of the event before it; "" at the beginning.
    added: Sequence[tuple[str, types.Content]]


def find_visible_events(contents: Sequence[types.Content], events: Sequence[Event], agent: str) -> Visible:
    """Compare the contents of a request with the events of its session.

    A mark is a text that identifies a part in both. Events without a paired mark are hidden, contents without one
    were added by ADK. Events that ADK has compacted are not hidden, and its summary is not needed: the log selects
    on its own.
    """
    other_agents = {event.author for event in events}.difference(("user", agent))
    content_marks: list[tuple[str, int]] = []
    for index, content in enumerate(contents):
        content_marks += [(_unwrap_quote(mark, other_agents), index) for mark in _marks_of_content(content)]
    event_marks: list[tuple[str, str]] = []
    for event in events:
        parts = _parts_of_content(event.content)
        event_marks += [(_identify_event(part, event.author, other_agents), event.id) for part in parts]
    pairs = _pair_marks(content_marks, event_marks)
    shown_ids = {event_id for _, event_id in pairs}
    marked_ids = {event_id for mark, event_id in event_marks if mark}
    compactions = [event.actions.compaction for event in events if event.actions and event.actions.compaction]
    hidden_ids = [
        event.id
        for event in events
        if event.id in marked_ids - shown_ids and not _is_compacted(event, compactions)
    ]
    summaries = [_marks_of_content(compaction.compacted_content) for compaction in compactions]
    return Visible(frozenset(hidden_ids), _find_added_contents(contents, dict(pairs), summaries))


def _is_compacted(event: Event, compactions: Sequence[EventCompaction]) -> bool:
    """Return whether a summary of ADK covers the time of an event."""
    for compaction in compactions:
        if (compaction.start_timestamp or 0.0) <= event.timestamp <= (compaction.end_timestamp or 0.0):
            return True
    return False


def _find_added_contents(
    contents: Sequence[types.Content], event_of_content: Mapping[int, str], summaries: Sequence[list[str]]
) -> list[tuple[str, types.Content]]:
    """Return the contents without an event that are no summary, each with the id of the event before it.

    `event_of_content` has the ids of events by the index of the content, `summaries` the marks of ADK's summaries.
    """
    added: list[tuple[str, types.Content]] = []
    previous_id = ""
    for index, content in enumerate(contents):
        if index in event_of_content:
            previous_id = event_of_content[index]
        elif _marks_of_content(content) not in summaries:
            added.append((previous_id, content))
    return added


def _pair_marks(
    content_marks: Sequence[tuple[str, int]], event_marks: Sequence[tuple[str, str]]
) -> list[tuple[int, str]]:
    """Pair equal marks in order, then the moved ones: results of tools may be moved behind their calls.

    A mark has the index of its content, or the id of its event; each pair is returned as these two.
    """
    indexes: dict[str, list[int]] = {}
    for index, (mark, _) in enumerate(event_marks):
        if mark:
            indexes.setdefault(mark, []).append(index)
    pairs: dict[int, int] = {}
    last_event = -1
    for content_index, (mark, _) in enumerate(content_marks):
        candidates = indexes.get(mark, [])
        next_candidate = bisect_right(candidates, last_event)
        if next_candidate < len(candidates):
            last_event = candidates[next_candidate]
            pairs[content_index] = last_event
    # Marks without a pair may have been moved, so their order does not count.
    for event_index in pairs.values():
        indexes[event_marks[event_index][0]].remove(event_index)
    for content_index, (mark, _) in enumerate(content_marks):
        if content_index not in pairs and indexes.get(mark):
            pairs[content_index] = indexes[mark].pop(0)
    return [(content_marks[index][1], event_marks[event_index][1]) for index, event_index in pairs.items()]


def _parts_of_content(content: types.Content | None) -> Sequence[types.Part]:
    return (content and content.parts) or ()


def _marks_of_content(content: types.Content | None) -> list[str]:
    return [_mark_of_part(part) for part in _parts_of_content(content)]


def _mark_of_part(part: types.Part) -> str:
    """Return a text that identifies a part: its call, result, text or file."""
    if part.function_call:
        arguments = dumps(part.function_call.args or {}, sort_keys=True, default=str)
        return f"{part.function_call.name}({arguments})"
    if part.function_response:
        response = dumps(part.function_response.response or {}, sort_keys=True, default=str)
        return f"{part.function_response.name} = {response}"
    if part.text:
        return part.text
    data = part.file_data or part.inline_data or part.executable_code or part.code_execution_result
    return data.model_dump_json(exclude_none=True) if data else ""


def _identify_event(part: types.Part, author: str, other_agents: Collection[str]) -> str:
    """Return the mark that a part of an event has in a request: "" for thoughts, a quotation for other agents."""
    if part.thought:
        return ""
    if author not in other_agents:
        return _mark_of_part(part)
    text = part.text
    if part.function_call:
        text = str(dict(sorted((part.function_call.args or {}).items())))
    if part.function_response:
        text = str(part.function_response.response)
    return f"[{author}]\n{text}" if text else _mark_of_part(part)


def _unwrap_quote(mark: str, other_agents: Collection[str]) -> str:
    """Reduce ADK's quotation of another agent to its author and its inner lines; return other texts unchanged."""
    heading, _, quoted = mark.partition("\n")
    author, closing_bracket, _ = heading.partition("]")
    if not closing_bracket or author.removeprefix("[") not in other_agents:
        return mark
    inner_lines = quoted.split("\n")[1:-1]
    return f"{author}]\n" + "\n".join(inner_lines)
