"""Read from an answer of the Messages API why the cache missed, and how the provider changed the request.

From platform.claude.com/docs: "Cache diagnostics", "Context editing" (`applied_edits`), "Preserved thinking"
(`input_transformations`), "Compaction"; names as in the package anthropic 2.12.
"""

from __future__ import annotations

from collections.abc import Iterator

from acms.prompt_types import Changed, Diagnosis, Outcome, ServerEdit
from acms.providers.codecs.answers import (
    get_count_field,
    get_field,
    get_text_field,
    iterate_list_field,
    unknown_diagnosis,
)

__all__ = ["parse_diagnosis", "parse_server_edits"]

_REASONS = {
    "model_changed": Changed.MODEL,
    "system_changed": Changed.SYSTEM,
    "tools_changed": Changed.TOOLS,
    "messages_changed": Changed.MESSAGES,
}
_UNKNOWN = frozenset(("previous_message_not_found", "unavailable"))


def parse_diagnosis(answer: object) -> Diagnosis:
    """Return the provider's diagnosis of a cache miss.

    Without the field there was no difference, or no diagnosis was requested; an empty one is still pending.
    """
    diagnostics = get_field(answer, "diagnostics")
    if diagnostics is None:
        return Diagnosis(outcome=Outcome.SILENT)
    miss = get_field(diagnostics, "cache_miss_reason")
    if miss is None:
        return unknown_diagnosis("pending")
    reason = get_text_field(miss, "type")
    if reason in _UNKNOWN:
        return unknown_diagnosis(reason)
    return Diagnosis(
        outcome=Outcome.MISS,
        changed=_REASONS.get(reason),
        reason=reason,
        missed_tokens=get_count_field(miss, "cache_missed_input_tokens"),
    )


def parse_server_edits(answer: object) -> tuple[ServerEdit, ...]:
    """Return the changes made by the provider: cleared tool uses and thinking, dropped thinking, compactions."""
    return (*_parse_transformations(answer), *_parse_applied_edits(answer), *_parse_compactions(answer))


def _parse_transformations(answer: object) -> Iterator[ServerEdit]:
    for transformation in iterate_list_field(answer, "input_transformations"):
        yield ServerEdit(
            kind=get_text_field(transformation, "type"),
            place=get_text_field(transformation, "path"),
            reason=get_text_field(transformation, "reason"),
        )


def _parse_applied_edits(answer: object) -> Iterator[ServerEdit]:
    for edit in iterate_list_field(get_field(answer, "context_management"), "applied_edits"):
        cleared = get_count_field(edit, "cleared_tool_uses") or get_count_field(
            edit, "cleared_thinking_turns", 1
        )
        yield ServerEdit(
            kind=get_text_field(edit, "type"),
            count=cleared,
            tokens=get_count_field(edit, "cleared_input_tokens"),
        )


def _parse_compactions(answer: object) -> Iterator[ServerEdit]:
    for index, block in enumerate(iterate_list_field(answer, "content")):
        if get_text_field(block, "type") == "compaction":
            has_failed = get_field(block, "content") is None
            yield ServerEdit(
                kind="compaction", place=f"content.{index}", reason="failed" if has_failed else ""
            )
