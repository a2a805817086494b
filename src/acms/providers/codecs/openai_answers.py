"""Read from an answer of OpenAI why the cache missed, and how the provider changed the request.

From developers.openai.com/api/docs: "Prompt cache diagnostics", "Keep the prefix unchanged", "Compaction"; names as in
the package openai 3.54. Only Responses has them.
"""

from __future__ import annotations

from collections.abc import Iterator

from acms.errors import ValidationError
from acms.prompt_types import Changed, Diagnosis, Outcome, ServerEdit, Usage
from acms.providers.codecs.answers import (
    get_count_field,
    get_field,
    get_text_field,
    iterate_list_field,
    split_usage,
    unknown_diagnosis,
)

__all__ = ["parse_usage"]

_REASONS = {
    "model_changed": Changed.MODEL,
    "prompt_cache_key_changed": Changed.KEY,
    "tools_changed": Changed.TOOLS,
    "input_changed": Changed.INPUT,
    "context_compacted": Changed.INPUT,
    "text_format_changed": Changed.SETTINGS,
    "reasoning_effort_changed": Changed.SETTINGS,
    "verbosity_changed": Changed.SETTINGS,
    "service_tier_changed": Changed.SETTINGS,
}


def parse_usage(reported: object, tokens: str, details: str) -> Usage:
    """Read an answer, or its usage alone; `tokens` and `details` are the names of its fields."""
    usage, answer = split_usage(reported)
    total = get_field(usage, tokens)
    if not isinstance(total, int) or isinstance(total, bool):
        raise ValidationError(
            f"has no {tokens}: pass the usage of a response as the SDK or the API returns it", field="usage"
        )
    if get_field(usage, "cache_read_input_tokens") is not None:
        raise ValidationError("is that of another provider", field="usage")
    token_details = get_field(usage, details)
    cached_tokens, written_tokens = (
        get_field(token_details, "cached_tokens") or 0,
        get_field(token_details, "cache_write_tokens") or 0,
    )
    if any(not isinstance(tokens, int) or tokens < 0 for tokens in (total, cached_tokens, written_tokens)):
        raise ValidationError("must be numbers of tokens", field="usage")
    return Usage(
        input_tokens=total,
        cached_tokens=cached_tokens,
        written_tokens=written_tokens,
        diagnosis=_parse_diagnosis(answer),
        edits=tuple(_parse_server_edits(answer)),
    )


def _parse_diagnosis(answer: object) -> Diagnosis | None:
    """Return the cache diagnosis of the provider; None if the answer has none."""
    diagnostics = get_field(answer, "prompt_cache_diagnostics")
    if diagnostics is None:
        return None
    match get_text_field(diagnostics, "type"):
        case "cache_hit":
            return Diagnosis(outcome=Outcome.HIT)
        case "cache_miss":
            reason = get_text_field(diagnostics, "reason")
            return Diagnosis(
                outcome=Outcome.MISS,
                changed=_REASONS.get(reason),
                reason=reason,
                missed_tokens=get_count_field(diagnostics, "cache_missed_tokens"),
            )
        case other:
            return unknown_diagnosis(other)


def _parse_server_edits(answer: object) -> Iterator[ServerEdit]:
    """Yield the changes made by the provider: reasoning that it withheld, and compactions."""
    for transformation in iterate_list_field(answer, "input_transformations"):
        kind = f"{get_text_field(transformation, 'type')}_{get_text_field(transformation, 'action')}"
        yield ServerEdit(
            kind=kind,
            place=get_text_field(transformation, "id"),
            reason=get_text_field(transformation, "reason"),
        )
    for item in iterate_list_field(answer, "output"):
        if get_text_field(item, "type") == "compaction":
            yield ServerEdit(kind="compaction", place=get_text_field(item, "id"))
