"""Formats of model providers: what a `Prompt` renders to, and what a whole request counts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from acms.composition import Count, Exactness, Tool, Usage
from acms.errors import ValidationError

if TYPE_CHECKING:
    from acms.protocols import Codec
    from acms.providers.codecs.anthropic import AnthropicMessages
    from acms.providers.codecs.calibration import Calibration
    from acms.providers.codecs.openai_chat import OpenAIChat
    from acms.providers.codecs.openai_responses import OpenAIResponses

__all__ = [
    "AnthropicMessages",
    "Calibration",
    "Count",
    "Exactness",
    "OpenAIChat",
    "OpenAIResponses",
    "Tool",
    "Usage",
    "named",
]

_ROOMS = {
    "AnthropicMessages": "anthropic",
    "Calibration": "calibration",
    "OpenAIChat": "openai_chat",
    "OpenAIResponses": "openai_responses",
}
NAMED = {
    "openai-chat": ("OpenAIChat", "gpt-5"),
    "openai-responses": ("OpenAIResponses", "gpt-5"),
    "anthropic": ("AnthropicMessages", "claude-sonnet-4-5"),
}
"""Formats by name: the class, and the model when none is given."""


def named(name: str, model: str | None = None) -> Codec:
    """Return a format by its name, for a model; `ValidationError` when there is none with that name."""
    short = name.removesuffix("-messages")  # as the codec calls itself
    if short not in NAMED:
        raise ValidationError(f"{name!r} is not one of {', '.join(NAMED)}", field="codec")
    made, usual = NAMED[short]
    found: Codec = __getattr__(made)(usual if model is None else model)
    return found


def __getattr__(name: str) -> Any:
    """Import a format on first use."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"acms.providers.codecs.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
