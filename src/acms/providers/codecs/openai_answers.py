"""What an answer of OpenAI says about its request: why the cache missed, and what was changed in it.

From developers.openai.com/api/docs: "Prompt cache diagnostics", "Keep the prefix unchanged", "Compaction"; names as in
the package openai 3.54. Only Responses has them.
"""

from __future__ import annotations

from collections.abc import Iterator

from acms.errors import ValidationError
from acms.prompt_types import Changed, Diagnosis, Outcome, ServerEdit, Usage
from acms.providers.codecs.answers import number, of, rows, split, unknown, word

__all__ = ["read"]

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


def read(reported: object, tokens: str, details: str) -> Usage:
    """Read an answer, or its usage alone; `tokens` and `details` are the names of its fields."""
    usage, answer = split(reported)
    total = of(usage, tokens)
    if not isinstance(total, int) or isinstance(total, bool):
        raise ValidationError(
            f"has no {tokens}: pass the usage of a response as the SDK or the API returns it", field="usage"
        )
    if of(usage, "cache_read_input_tokens") is not None:
        raise ValidationError("is that of another provider", field="usage")
    more = of(usage, details)
    cached, written = of(more, "cached_tokens") or 0, of(more, "cache_write_tokens") or 0
    if any(not isinstance(tokens, int) or tokens < 0 for tokens in (total, cached, written)):
        raise ValidationError("must be numbers of tokens", field="usage")
    return Usage(
        input_tokens=total,
        cached_tokens=cached,
        written_tokens=written,
        diagnosis=_diagnosis(answer),
        edits=tuple(_edits(answer)),
    )


def _diagnosis(answer: object) -> Diagnosis | None:
    """Return what the provider found; None where it says nothing."""
    told = of(answer, "prompt_cache_diagnostics")
    if told is None:
        return None
    match word(told, "type"):
        case "cache_hit":
            return Diagnosis(outcome=Outcome.HIT)
        case "cache_miss":
            reason = word(told, "reason")
            return Diagnosis(
                outcome=Outcome.MISS,
                changed=_REASONS.get(reason),
                reason=reason,
                missed_tokens=number(told, "cache_missed_tokens"),
            )
        case other:
            return unknown(other)


def _edits(answer: object) -> Iterator[ServerEdit]:
    """Yield what the provider changed: reasoning that it withheld, and compactions."""
    for one in rows(answer, "input_transformations"):
        kind = f"{word(one, 'type')}_{word(one, 'action')}"
        yield ServerEdit(kind=kind, place=word(one, "id"), reason=word(one, "reason"))
    for item in rows(answer, "output"):
        if word(item, "type") == "compaction":
            yield ServerEdit(kind="compaction", place=word(item, "id"))
