"""What pages show, made of what the operations answer: pure functions of JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from acms.log.encoding import parse_entry_id

__all__ = [
    "build_diff_lines",
    "build_timeline_rows",
    "by_speaker",
    "display_name_of_context",
    "format_entry_version",
    "group_by_subject",
    "rank_recalled_items",
    "suggest_inclusion",
]

Found = Mapping[str, Any]

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


def suggest_inclusion(verdict: Found) -> str:
    """Return what would bring an entry in that was left out."""
    if verdict["included"]:
        return ""
    said = _ADVICE.get(verdict["rule"], "a larger budget or a closer query")
    return said.format(tokens=verdict["tokens"])


def format_entry_version(id: str) -> str:
    """Return where an entry stands in its log, as people say it; its id where it does not tell."""
    found = parse_entry_id(id)
    return id if found is None else f"v{found[1]}"


def display_name_of_context(context: Found) -> str:
    """Return what a context is called for people."""
    return context["name"] or context["key"] or context["id"]


def build_timeline_rows(history: Iterable[Found], messages: Iterable[Found]) -> list[dict[str, Any]]:
    """Return a stretch of a log, newest first, tool calls with their answers folded in and episodes marked."""
    told = {one["id"]: one for one in messages}
    found: list[dict[str, Any]] = [
        {**entry, "message": told.get(entry["id"]), "answers": []} for entry in history
    ]
    calls: dict[str, dict[str, Any]] = {}
    kept: list[dict[str, Any]] = []
    for row in found:
        message = row["message"]
        asked = (message or {}).get("toolCallId")
        row["calls"] = [one for one in (message or {}).get("parts", ()) if one.get("type") == "tool_call"]
        if asked in calls:
            calls[asked]["answers"].append(row)
            continue
        calls |= {one["callId"]: row for one in row["calls"]}
        kept.append(row)
    episode = None
    for row in kept:
        now = (row["message"] or {}).get("episodeId")
        row["begins"] = now if now and now != episode else None
        episode = now or episode
    return kept[::-1]


def rank_recalled_items(found: Found, other: Found | None) -> list[dict[str, Any]]:
    """Return what a recall shows, best first, and whether another one shows it too."""
    both = set() if other is None else {one["id"] for one in other["items"]}
    told = {one["id"]: one for one in found["verdicts"]}
    ranked = sorted(found["items"], key=lambda one: (-one["score"], one["version"]))
    return [
        {
            **one,
            "only": other is not None and one["id"] not in both,
            "parts": told.get(one["id"], {}).get("parts", {}),
        }
        for one in ranked
    ]


def build_diff_lines(render: Found) -> list[dict[str, Any]]:
    """Return the lines of a comparison with the render before: a fold of what is the same, the break, what changed."""
    blocks = render["blocks"]
    same = [one for one in blocks if one["change"] == "same"]
    lines: list[dict[str, Any]] = []
    if same:
        lines.append(
            {"sign": "same", "count": len(same), "tokens": sum(one["tokens"] for one in same), "blocks": same}
        )
    lines.append({"sign": "break" if render["lost"] else "grew"})
    lines += [{"sign": one["change"], "block": one} for one in blocks if one["change"] != "same"]
    lines += [{"sign": "removed", "block": one} for one in render["removed"]]
    return lines


def group_by_subject(facts: Sequence[Found]) -> list[tuple[str, list[Found]]]:
    """Return facts by their subject, those in force first."""
    found: dict[str, list[Found]] = {}
    for one in facts:
        found.setdefault(one["subject"] or "—", []).append(one)
    return [
        (
            subject,
            sorted(some, key=lambda one: (one["retired"] is not None, one["attribute"], one["version"])),
        )
        for subject, some in sorted(found.items(), key=lambda pair: pair[0].lower())
    ]


def by_speaker(messages: Iterable[Found]) -> list[tuple[str, int, int]]:
    """Return messages and tokens by role, and by name for tools: the largest first."""
    count, tokens = Counter[str](), Counter[str]()
    for one in messages:
        name = f"tool {one['toolName']}" if one["role"] == "tool" and one["toolName"] else str(one["role"])
        count[name] += 1
        tokens[name] += one["tokenCount"]
    return [(name, count[name], total) for name, total in tokens.most_common()]
