"""Request formats of model providers: what a `Prompt` renders to, and what a request costs in tokens."""

from typing import TYPE_CHECKING

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
from acms.providers.codecs import __dir__ as __dir__
from acms.providers.codecs import __getattr__ as __getattr__

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
