"""Request formats of model providers: what a `Prompt` renders to, and what a request costs in tokens."""

from typing import TYPE_CHECKING, Any

from acms.providers import codecs as _codecs
from acms.providers.codecs import (
    CacheRates,
    Changed,
    Count,
    Diagnosis,
    Exactness,
    Outcome,
    ServerEdit,
    Tool,
    Usage,
    named,
)

if TYPE_CHECKING:
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


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__


def __getattr__(name: str) -> Any:
    """Return a codec, imported on first use.

    A misspelt name is an `ImportError`: of an `AttributeError`, `from acms.codecs import …` would hide the text.
    """
    try:
        return _codecs.__getattr__(name)
    except AttributeError:
        from difflib import get_close_matches

        similar = [] if name.startswith("_") else get_close_matches(name, __all__, n=1)
        if not similar:
            raise
        raise ImportError(f"{__name__} has no {name!r}: did you mean {similar[0]!r}?") from None
