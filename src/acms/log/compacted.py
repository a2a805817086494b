"""Compactions made by a provider, returned as an item that replaces the earlier part of the conversation.

An Anthropic compaction holds its summary as text. An OpenAI compaction is encrypted, and only OpenAI can read it. A
failed compaction has no content and replaces nothing.
"""

from __future__ import annotations

import json

from acms.model import Json, Part, Raw

REDACTED_VENDOR_PREFIX = "redacted-"
"""Prefix of the vendor of a compaction whose text was redacted: the provider's signature is no longer valid."""


def parse_raw_json(raw: Raw) -> Json:
    """Return the parsed JSON of a vendor's item, or None if it is not JSON."""
    try:
        return json.loads(raw.json)
    except (ValueError, RecursionError):
        return None


def compaction_text(part: Part) -> str | None:
    """Return the text of a provider's compaction, "" if it is encrypted, or None for any other part."""
    if not isinstance(part, Raw) or '"compaction"' not in part.json:  # spares parsing of most parts
        return None
    match part.vendor.removeprefix(REDACTED_VENDOR_PREFIX), parse_raw_json(part):
        case "anthropic", {"type": "compaction", "content": str(text)} if text.strip():
            return text
        case "openai-responses", {"type": "compaction", "encrypted_content": str(encrypted)} if encrypted:
            return ""
        case _:
            return None
