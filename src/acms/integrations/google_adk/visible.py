"""Find the events of a session that ADK lets an agent see, from the contents of its request.

ADK decides on rewinds, branches, scopes and `include_contents`, and the contents are the result. They do not name their
events, so events are matched by their text, in order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from json import dumps
from typing import NamedTuple

from google.adk.events.event import Event
from google.genai import types

__all__ = ["Visible", "find_visible_events"]


class Visible(NamedTuple):
    """How the contents of a request differ from the events of its session."""

    #: Ids of the events that it leaves out.
    hidden: frozenset[str]
    #: Contents that no event says, each with the id of the event it stands behind; "" at the beginning.
    added: Sequence[tuple[str, types.Content]]


def find_visible_events(contents: Sequence[types.Content], events: Sequence[Event], agent: str) -> Visible:
    """Compare the contents of a request with the events of its session.

    Events that ADK has compacted are not left out: the log selects on its own, and ADK's summary is not needed.
    """
    others = {one.author for one in events}.difference(("user", agent))
    said = [
        (_unwrap_quote(mark, others), at)
        for at, one in enumerate(contents)
        for mark in map(_mark_of_part, _parts_of_content(one))
    ]
    kept = [
        (_event_mark(part, one.author, others), one.id)
        for one in events
        for part in _parts_of_content(one.content)
    ]
    pairs = _pair_marks([mark for mark, _ in said], [mark for mark, _ in kept])
    placed = {said[place][1]: kept[at][1] for place, at in pairs.items()}
    seen = {kept[at][1] for at in pairs.values()}
    compacted = [one.actions.compaction for one in events if one.actions and one.actions.compaction]
    spans = [(one.start_timestamp, one.end_timestamp) for one in compacted]
    missing = {id for mark, id in kept if mark} - seen
    hidden = {
        one.id
        for one in events
        if one.id in missing
        and not any((first or 0.0) <= one.timestamp <= (last or 0.0) for first, last in spans)
    }
    summaries = [list(map(_mark_of_part, _parts_of_content(one.compacted_content))) for one in compacted]
    added: list[tuple[str, types.Content]] = []
    last = ""
    for at, content in enumerate(contents):
        last = placed.get(at, last)
        if at not in placed and list(map(_mark_of_part, _parts_of_content(content))) not in summaries:
            added.append((last, content))
    return Visible(frozenset(hidden), added)


def _pair_marks(said: Sequence[str], kept: Sequence[str]) -> dict[int, int]:
    """Pair equal marks in order; then those that were moved, as answers of tools are behind their calls."""
    places: dict[str, list[int]] = {}
    for at, mark in enumerate(kept):
        if mark:
            places.setdefault(mark, []).append(at)
    pairs: dict[int, int] = {}
    last = -1
    for place, mark in enumerate(said):
        found = places.get(mark, ())
        later = bisect_right(found, last)
        if later < len(found):
            pairs[place] = last = found[later]
    taken = set(pairs.values())
    left = {mark: iter([at for at in found if at not in taken]) for mark, found in places.items()}
    for place, mark in enumerate(said):
        if place not in pairs and (at := next(left.get(mark, iter(())), None)) is not None:
            pairs[place] = at
    return pairs


def _parts_of_content(content: types.Content | None) -> Sequence[types.Part]:
    return (content and content.parts) or ()


def _mark_of_part(part: types.Part) -> str:
    if call := part.function_call:
        return f"{call.name}({dumps(call.args or {}, sort_keys=True, default=str)})"
    if answer := part.function_response:
        return f"{answer.name} = {dumps(answer.response or {}, sort_keys=True, default=str)}"
    if part.text:
        return part.text
    given = part.file_data or part.inline_data or part.executable_code or part.code_execution_result
    return given.model_dump_json(exclude_none=True) if given else ""


def _event_mark(part: types.Part, author: str, others: Collection[str]) -> str:
    """Return the mark of a part of an event in a request: "" for thoughts, a quote for other agents."""
    if part.thought or author not in others:
        return "" if part.thought else _mark_of_part(part)
    called, answer = part.function_call, part.function_response
    text = str(dict(sorted((called.args or {}).items()))) if called else part.text
    text = str(answer.response) if answer else text
    return f"[{author}]\n{text}" if text else _mark_of_part(part)


def _unwrap_quote(mark: str, others: Collection[str]) -> str:
    """Reduce a quotation of another agent to its heading and the text between its marks; keep other texts."""
    heading, _, told = mark.partition("\n")
    author, closed, _ = heading.partition("]")
    if not closed or author.removeprefix("[") not in others:
        return mark
    return f"{author}]\n" + "\n".join(told.split("\n")[1:-1])
