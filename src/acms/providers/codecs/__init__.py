"""Formats of model providers: the payload that a `Prompt` renders to, and the tokens of a whole request."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

from acms.errors import ValidationError
from acms.model import Json
from acms.prompt_types import (
    CacheRates,
    Changed,
    Count,
    Diagnosis,
    Exactness,
    Outcome,
    ServerEdit,
    Tool,
    Usage,
)
from acms.runtime.lazy import lazy_attributes

if TYPE_CHECKING:
    from acms.ports import Codec
    from acms.providers.codecs.anthropic import AnthropicMessages
    from acms.providers.codecs.calibration import Calibration
    from acms.providers.codecs.gemini import Gemini
    from acms.providers.codecs.openai_chat import OpenAIChat
    from acms.providers.codecs.openai_responses import OpenAIResponses

__all__ = [
    "AnthropicMessages",
    "CacheRates",
    "Calibration",
    "Changed",
    "Count",
    "Diagnosis",
    "Exactness",
    "Gemini",
    "OpenAIChat",
    "OpenAIResponses",
    "Outcome",
    "ServerEdit",
    "Tool",
    "Usage",
    "named",
]

_HOMES = {
    "AnthropicMessages": "acms.providers.codecs.anthropic",
    "Calibration": "acms.providers.codecs.calibration",
    "Gemini": "acms.providers.codecs.gemini",
    "OpenAIChat": "acms.providers.codecs.openai_chat",
    "OpenAIResponses": "acms.providers.codecs.openai_responses",
}
__getattr__, __dir__ = lazy_attributes(__name__, _HOMES)

NAMED = {
    "openai-chat": ("OpenAIChat", "gpt-5"),
    "openai-responses": ("OpenAIResponses", "gpt-5"),
    "anthropic": ("AnthropicMessages", "claude-sonnet-4-5"),
    "gemini": ("Gemini", "gemini-3-pro"),
}
"""Formats by name: the class, and the model when none is given."""
_VENDORS = {
    "claude": "anthropic",
    "google": "gemini",
    "gpt": "openai",
    "chat": "openai-chat",
    "responses": "openai-responses",
}
"""Names that people try, and the beginning of the names that they mean."""


def named(
    name: str,
    model: str | None = None,
    *,
    max_tokens: int | None = None,
    calibrated: Mapping[str, Json] | None = None,
) -> Codec:
    """Return a format by its name, for a model; raise `ValidationError` if there is none with that name.

    `max_tokens` is for a format that states it; `calibrated` is the saved state of a `Calibration`.
    """
    format_name = name.removesuffix("-messages")  # the codec's own name is "anthropic-messages"
    if format_name not in NAMED:
        raise _unknown_codec_error(name)
    if max_tokens is not None and format_name != "anthropic":
        raise ValidationError(f"{name} does not state it", field="max_tokens")
    class_name, default_model = NAMED[format_name]
    options = {} if max_tokens is None else {"max_tokens": max_tokens}
    codec: Any = __getattr__(class_name)(default_model if model is None else model, **options)
    if calibrated is not None:
        codec.calibration.restore(calibrated)
    return cast("Codec", codec)


def _unknown_codec_error(name: str) -> ValidationError:
    """Return the error for an unknown format; it proposes the formats with a similar name or of the same vendor."""
    vendor = _VENDORS.get(name.lower(), name.lower())
    similar = [known for known in NAMED if known.startswith(vendor)] or get_close_matches(vendor, NAMED)
    return ValidationError(
        f"{name!r} is not one of {', '.join(NAMED)}",
        field="codec",
        options=[f"did you mean {' or '.join(similar)}?"] if similar else (),
    )
