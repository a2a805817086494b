"""Compactions that a provider made, and hands out as an item that stands for what came before it in the conversation.

One of Anthropic says in words what it stands for; one of OpenAI is encrypted, and only OpenAI reads it. One that failed
says nothing and stands for nothing.
"""

from __future__ import annotations

import json

from acms.model import Json, Part, Raw

__all__ = ["REDACTED", "compaction_text", "parse_raw_json"]

REDACTED = "redacted-"
"""Before the vendor of a compaction of which something was taken out: its signature no longer holds."""


def parse_raw_json(raw: Raw) -> Json:
    """Return what a vendor's item holds; None when that is no JSON."""
    try:
        return json.loads(raw.json)
    except (ValueError, RecursionError):
        return None


def compaction_text(part: Part) -> str | None:
    """Return the text of a provider's compaction, "" of one that only the provider reads; None for every other part."""
    if not isinstance(part, Raw) or '"compaction"' not in part.json:
        return None
    match part.vendor.removeprefix(REDACTED), parse_raw_json(part):
        case "anthropic", {"type": "compaction", "content": str(text)} if text.strip():
            return text
        case "openai-responses", {"type": "compaction", "encrypted_content": str(sealed)} if sealed:
            return ""
        case _:
            return None
