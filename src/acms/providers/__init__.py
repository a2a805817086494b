"""AI models behind a port: token counters, embedders, rerankers, summarizers, reflectors; sources of knowledge.

What needs an extra is imported when asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acms.providers.anthropic import AnthropicReflector, AnthropicSummarizer
    from acms.providers.extractive import ExtractiveSummarizer
    from acms.providers.http import Endpoint
    from acms.providers.http_embedder import HTTPEmbedder
    from acms.providers.http_reflector import HTTPReflector
    from acms.providers.http_reranker import HTTPReranker
    from acms.providers.http_source import HTTPSource
    from acms.providers.http_summarizer import HTTPSummarizer
    from acms.providers.local import LocalEmbedder
    from acms.providers.offline import OfflineReflector
    from acms.providers.openai import OpenAIEmbedder, OpenAIReflector, OpenAISummarizer
    from acms.providers.retry import with_retry

__all__ = [
    "AnthropicReflector",
    "AnthropicSummarizer",
    "Endpoint",
    "ExtractiveSummarizer",
    "HTTPEmbedder",
    "HTTPReflector",
    "HTTPReranker",
    "HTTPSource",
    "HTTPSummarizer",
    "LocalEmbedder",
    "OfflineReflector",
    "OpenAIEmbedder",
    "OpenAIReflector",
    "OpenAISummarizer",
    "with_retry",
]

_ROOMS = {
    "AnthropicReflector": "anthropic",
    "AnthropicSummarizer": "anthropic",
    "Endpoint": "http",
    "ExtractiveSummarizer": "extractive",
    "HTTPEmbedder": "http_embedder",
    "HTTPReflector": "http_reflector",
    "HTTPReranker": "http_reranker",
    "HTTPSource": "http_source",
    "HTTPSummarizer": "http_summarizer",
    "LocalEmbedder": "local",
    "OfflineReflector": "offline",
    "OpenAIEmbedder": "openai",
    "OpenAIReflector": "openai",
    "OpenAISummarizer": "openai",
    "with_retry": "retry",
}


def __getattr__(name: str) -> Any:
    """Import numpy, the HTTP client and the model on first use."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
