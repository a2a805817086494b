"""Data of the pages, built from replies of the operations: pure functions of JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from acms.log.encoding import parse_entry_id

__all__ = [
    "build_diff_lines",
    "build_timeline_rows",
    "display_name_of_context",
    "format_entry_version",
    "group_by_subject",
    "rank_recalled_items",
    "suggest_inclusion",
    "sum_by_speaker",
]

JsonObject = Mapping[str, Any]

_ADVICE = {
    "budget": "a larger budget: it needs {tokens} tokens of its own",
    "contiguous": "a larger budget: something newer did not fit, and the window has no gaps",
    "window": "a larger budget, or a recall that asks for it",
    "fit": "a larger budget: the recall chose it, and the prompt had no room",
    "truncate": "a larger budget, or a lower priority number of its section",
    "omit": "a larger budget, or a lower priority number of its section",
    "pieces": "a larger share for the recall",
    "ceiling": "a higher ceiling of its section",
    "cutoff": "a question that asks for it more directly, or a recall without relevant_only",
    "trimmed": "includeSuperseded, or a version before what replaced it",
    "superseded": "includeSuperseded, or a version before what replaced it",
    "stale": "includeSuperseded, or a version before what replaced it",
    "hidden": "a version at which it was in force",
    "replaced": "a version before it was replaced",
    "retracted": "a version before it was taken back",
    "unread": "a query that asks for it, or a version at which it was in force",
    "summary": "undo of the compaction, or a version before it",
    "score": "a query that is closer to its words",
    "rank": "a query that is closer to its words",
    "irrelevant": "a query that is closer to its words, or a lower minRelevance",
    "min_relevance": "a lower minRelevance",
    "limit": "a higher limit",
    "external": "a larger budget: external text waits until all other text that answers fits",
    "query": "nothing: it is the question itself",
    "excluded": "leaving it out of exclude",
    "filter": "a filter that lets it through",
    "current_episode": "includeCurrentEpisode",
    "duplicate": "nothing: it is shown once already",
}


def suggest_inclusion(verdict: JsonObject) -> str:
    """Return a change that would include an entry that was left out."""
    if verdict["included"]:
        return ""
    advice = _ADVICE.get(verdict["rule"], "a larger budget or a closer query")
    return advice.format(tokens=verdict["tokens"])


def format_entry_version(id: str) -> str:
    """Return the version of an entry as people write it, or its id if that holds none."""
    parsed = parse_entry_id(id)
    return id if parsed is None else f"v{parsed[1]}"


def display_name_of_context(context: JsonObject) -> str:
    """Return the name of a context for people."""
    return context["name"] or context["key"] or context["id"]


def build_timeline_rows(
    history: Iterable[JsonObject], messages: Iterable[JsonObject]
) -> list[dict[str, Any]]:
    """Return rows of a log, newest first, with tool results nested below their calls and episode starts marked."""
    messages_by_id = {message["id"]: message for message in messages}
    rows_by_call: dict[str, dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    for entry in history:
        message = messages_by_id.get(entry["id"])
        details = message or {}
        calls = [part for part in details.get("parts", ()) if part.get("type") == "tool_call"]
        row = {**entry, "message": message, "calls": calls, "answers": [], "begins": None}
        calling_row = rows_by_call.get(details.get("toolCallId") or "")
        if calling_row is not None:
            calling_row["answers"].append(row)
            continue
        for call in calls:
            rows_by_call[call["callId"]] = row
        rows.append(row)
    _mark_episode_starts(rows)
    rows.reverse()
    return rows


def _mark_episode_starts(rows: Iterable[dict[str, Any]]) -> None:
    previous = None
    for row in rows:
        episode = (row["message"] or {}).get("episodeId")
        if episode and episode != previous:
            row["begins"] = episode
            previous = episode


def rank_recalled_items(result: JsonObject, other: JsonObject | None) -> list[dict[str, Any]]:
    """Return the items of a recall, best first, and mark those that another recall does not show."""
    verdicts = {verdict["id"]: verdict for verdict in result["verdicts"]}
    ids_of_other = None if other is None else {item["id"] for item in other["items"]}
    items: list[dict[str, Any]] = []
    for item in sorted(result["items"], key=lambda item: (-item["score"], item["version"])):
        verdict = verdicts.get(item["id"], {})
        only = ids_of_other is not None and item["id"] not in ids_of_other
        items.append({**item, "only": only, "parts": verdict.get("parts", {})})
    return items


def build_diff_lines(render: JsonObject) -> list[dict[str, Any]]:
    """Return the lines of a comparison with the previous render: the common blocks folded, the break, the changes."""
    same = [block for block in render["blocks"] if block["change"] == "same"]
    changed = [block for block in render["blocks"] if block["change"] != "same"]
    lines: list[dict[str, Any]] = []
    if same:
        tokens = sum(block["tokens"] for block in same)
        lines.append({"sign": "same", "count": len(same), "tokens": tokens, "blocks": same})
    lines.append({"sign": "break" if render["lost"] else "grew"})
    lines += [{"sign": block["change"], "block": block} for block in changed]
    lines += [{"sign": "removed", "block": block} for block in render["removed"]]
    return lines


def group_by_subject(facts: Sequence[JsonObject]) -> list[tuple[str, list[JsonObject]]]:
    """Return facts grouped by subject, the active ones first."""
    groups: dict[str, list[JsonObject]] = {}
    for fact in facts:
        groups.setdefault(fact["subject"] or "—", []).append(fact)
    for group in groups.values():
        group.sort(key=lambda fact: (fact["retired"] is not None, fact["attribute"], fact["version"]))
    return sorted(groups.items(), key=lambda item: item[0].lower())


def sum_by_speaker(messages: Iterable[JsonObject]) -> list[tuple[str, int, int]]:
    """Return messages and tokens by role, and by name for tools: the largest first."""
    counts = Counter[str]()
    tokens = Counter[str]()
    for message in messages:
        speaker = str(message["role"])
        if speaker == "tool" and message["toolName"]:
            speaker = f"tool {message['toolName']}"
        counts[speaker] += 1
        tokens[speaker] += message["tokenCount"]
    return [(speaker, counts[speaker], total) for speaker, total in tokens.most_common()]
