"""Formats of model providers: what a `Prompt` renders to, and what a whole request counts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from acms.composition import Count, Exactness, Tool, Usage

if TYPE_CHECKING:
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
]

_ROOMS = {
    "AnthropicMessages": "anthropic",
    "Calibration": "calibration",
    "OpenAIChat": "openai_chat",
    "OpenAIResponses": "openai_responses",
}


def __getattr__(name: str) -> Any:
    """Import a format on first use."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"acms.providers.codecs.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
