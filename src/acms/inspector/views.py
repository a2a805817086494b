"""Data of the pages, built from replies of the operations: pure functions of JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from acms.log.encoding import parse_entry_id
from acms.log.validation import PROFILE

__all__ = [
    "build_diff_lines",
    "build_rejection",
    "build_timeline_rows",
    "context_of_entry",
    "count_sources",
    "display_name_of_context",
    "display_name_of_session",
    "format_entry_version",
    "group_by_subject",
    "last_question",
    "rank_recalled_items",
    "sort_found_items",
    "sum_by_speaker",
    "version_of_entry",
]

JsonObject = Mapping[str, Any]


def format_entry_version(id: str) -> str:
    """Return the version of an entry, such as "v12", or its id if that holds none."""
    context_and_version = parse_entry_id(id)
    return id if context_and_version is None else f"v{context_and_version[1]}"


def context_of_entry(id: str) -> str:
    """Return the id of the context whose log holds an entry, or "" if the id holds none."""
    context_and_version = parse_entry_id(id)
    return "" if context_and_version is None else context_and_version[0]


def version_of_entry(id: str) -> int:
    """Return the version of an entry, or 0 if the id holds none."""
    context_and_version = parse_entry_id(id)
    return 0 if context_and_version is None else context_and_version[1]


def build_rejection(id: str, rule: str, reason: str) -> dict[str, Any]:
    """Return a verdict on an entry that no recall decided about."""
    return {
        "id": id,
        "version": version_of_entry(id),
        "included": False,
        "rule": rule,
        "reason": reason,
        "relevance": 0.0,
        "score": 0.0,
        "parts": {},
        "tokens": 0,
    }


def display_name_of_context(context: JsonObject) -> str:
    """Return the name of a context for people."""
    return context["name"] or display_name_of_session(context["key"] or context["id"])


def display_name_of_session(session: str) -> str:
    """Return the name of a session for people: "profile" for the reserved name of a profile."""
    return "profile" if session == PROFILE else session


def count_sources(blocks: Iterable[JsonObject]) -> list[tuple[str, int]]:
    """Return the contexts whose entries a request shows, each with the number of entries: the most first."""
    ids = {id for block in blocks for id in block["sources"]}
    counts = Counter(context_of_entry(id) for id in ids)
    counts.pop("", None)
    return counts.most_common()


def last_question(blocks: Sequence[JsonObject]) -> str:
    """Return the text of the last message of the user in a request, or ""."""
    for block in reversed(blocks):
        if block["role"] == "user" and block["part"] in ("history", "written") and block["text"]:
            return str(block["text"])
    return ""


def build_timeline_rows(
    history: Iterable[JsonObject], messages: Iterable[JsonObject], renders: Iterable[JsonObject]
) -> list[dict[str, Any]]:
    """Return rows of a log, newest first, with tool results nested below their calls and episode starts marked.

    A row of the assistant names the `request` that it answers, if that is kept: the newest one that read the log up to
    the entry before.
    """
    requests_by_version = {render["version"]: render["id"] for render in reversed(list(renders))}
    messages_by_id = {message["id"]: message for message in messages}
    rows_by_call: dict[str, dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    for entry in history:
        message = messages_by_id.get(entry["id"])
        details = message or {}
        calls = [part for part in details.get("parts", ()) if part.get("type") == "tool_call"]
        row = {**entry, "message": message, "calls": calls, "answers": [], "begins": None}
        is_of_assistant = details.get("role") == "assistant"
        row["request"] = requests_by_version.get(entry["version"] - 1) if is_of_assistant else None
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


def rank_recalled_items(result: JsonObject, other_result: JsonObject | None) -> list[dict[str, Any]]:
    """Return the items of a recall, best first, and mark those that another recall does not show."""
    verdicts = {verdict["id"]: verdict for verdict in result["verdicts"]}
    ids_of_other = None if other_result is None else {item["id"] for item in other_result["items"]}
    items: list[dict[str, Any]] = []
    for item in sorted(result["items"], key=lambda item: (-item["score"], item["version"])):
        verdict = verdicts.get(item["id"], {})
        is_only_here = ids_of_other is not None and item["id"] not in ids_of_other
        items.append({**item, "only": is_only_here, "parts": verdict.get("parts", {})})
    return items


def sort_found_items(items: Sequence[JsonObject], query: str) -> list[JsonObject]:
    """Return the items that hold words of a query, those with the most words first; if none does, all by score."""
    words = query.lower().split()
    counts: dict[str, int] = {}
    for item in items:
        text = item["content"].lower()
        counts[item["id"]] = sum(word in text for word in words)
    any_matches = any(counts.values())
    matching = [item for item in items if counts[item["id"]] or not any_matches]
    return sorted(matching, key=lambda item: (-counts[item["id"]], -item["score"]))


def build_diff_lines(render: JsonObject) -> list[dict[str, Any]]:
    """Return the lines of a comparison with the previous render: the common blocks folded, the break, the changes."""
    same_blocks = [block for block in render["blocks"] if block["change"] == "same"]
    changed_blocks = [block for block in render["blocks"] if block["change"] != "same"]
    lines: list[dict[str, Any]] = []
    if same_blocks:
        tokens = sum(block["tokens"] for block in same_blocks)
        lines.append({"sign": "same", "count": len(same_blocks), "tokens": tokens, "blocks": same_blocks})
    lines.append({"sign": "break" if render["lost"] else "grew"})
    lines += [{"sign": block["change"], "block": block} for block in changed_blocks]
    lines += [{"sign": "removed", "block": block} for block in render["removed"]]
    return lines


def group_by_subject(facts: Sequence[JsonObject]) -> list[tuple[str, list[JsonObject]]]:
    """Return facts grouped by subject, the active ones first.

    A fact is `disputed` if its attribute can have one value and has another one too: in the profile and in a session.
    """
    values: dict[tuple[str, str], set[str]] = {}
    for fact in facts:
        if not fact["retired"] and fact["cardinality"] == "one":
            values.setdefault((fact["subject"], fact["attribute"]), set()).add(
                fact["value"] or fact["content"]
            )
    groups: dict[str, list[JsonObject]] = {}
    for fact in facts:
        others = values.get((fact["subject"], fact["attribute"]), set()) - {fact["value"] or fact["content"]}
        group = groups.setdefault(fact["subject"] or "—", [])
        group.append({**fact, "disputed": bool(others) and not fact["retired"]})
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
