"""What an answer of the Messages API says about its request: why the cache missed, and what was changed in it.

From platform.claude.com/docs: "Cache diagnostics", "Context editing" (`applied_edits`), "Preserved thinking"
(`input_transformations`), "Compaction"; names as in the package anthropic 2.12.
"""

from __future__ import annotations

from collections.abc import Iterator

from acms.prompt_types import Changed, Diagnosis, Outcome, ServerEdit
from acms.providers.codecs.answers import number, of, rows, unknown, word

__all__ = ["diagnosis", "edits"]

_REASONS = {
    "model_changed": Changed.MODEL,
    "system_changed": Changed.SYSTEM,
    "tools_changed": Changed.TOOLS,
    "messages_changed": Changed.MESSAGES,
}
_UNKNOWN = frozenset(("previous_message_not_found", "unavailable"))


def diagnosis(answer: object) -> Diagnosis:
    """Return what the provider found: silence is no difference, or nobody asked; an empty diagnosis is not ready."""
    told = of(answer, "diagnostics")
    if told is None:
        return Diagnosis(outcome=Outcome.SILENT)
    found = of(told, "cache_miss_reason")
    if found is None:
        return unknown("pending")
    reason = word(found, "type")
    if reason in _UNKNOWN:
        return unknown(reason)
    return Diagnosis(
        outcome=Outcome.MISS,
        changed=_REASONS.get(reason),
        reason=reason,
        missed_tokens=number(found, "cache_missed_input_tokens"),
    )


def edits(answer: object) -> tuple[ServerEdit, ...]:
    """Return what the provider changed: cleared tool uses and thinking, dropped thinking, compactions."""
    return (*_transformed(answer), *_applied(answer), *_compacted(answer))


def _transformed(answer: object) -> Iterator[ServerEdit]:
    for one in rows(answer, "input_transformations"):
        yield ServerEdit(kind=word(one, "type"), place=word(one, "path"), reason=word(one, "reason"))


def _applied(answer: object) -> Iterator[ServerEdit]:
    for one in rows(of(answer, "context_management"), "applied_edits"):
        cleared = number(one, "cleared_tool_uses") or number(one, "cleared_thinking_turns", 1)
        yield ServerEdit(kind=word(one, "type"), count=cleared, tokens=number(one, "cleared_input_tokens"))


def _compacted(answer: object) -> Iterator[ServerEdit]:
    for at, block in enumerate(rows(answer, "content")):
        if word(block, "type") == "compaction":
            failed = of(block, "content") is None
            yield ServerEdit(kind="compaction", place=f"content.{at}", reason="failed" if failed else "")
