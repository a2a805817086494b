"""AI models behind a port: token counters, embedders, rerankers, summarizers, reflectors; sources of knowledge.

Modules that need an extra are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from acms.runtime.lazy import lazy_attributes

if TYPE_CHECKING:
    from acms.providers.anthropic import AnthropicReflector, AnthropicSummarizer
    from acms.providers.fastembed import FastEmbedEmbedder, FastEmbedReranker
    from acms.providers.http import Endpoint
    from acms.providers.http_embedder import HTTPEmbedder
    from acms.providers.http_reflector import HTTPReflector
    from acms.providers.http_reranker import HTTPReranker
    from acms.providers.http_source import HTTPSource
    from acms.providers.http_summarizer import HTTPSummarizer
    from acms.providers.local import LocalEmbedder
    from acms.providers.local_tokenizer import LocalTokenizer
    from acms.providers.offline.reflector import OfflineReflector
    from acms.providers.offline.summarizer import ExtractiveSummarizer
    from acms.providers.openai import OpenAIEmbedder, OpenAIReflector, OpenAISummarizer
    from acms.providers.refusal import InputRefusedError
    from acms.providers.retry import with_retry
    from acms.providers.server_counter import ServerTokenCounter
    from acms.providers.tokens import (
        BPETokenCounter,
        EstimatingTokenCounter,
        HeuristicTokenCounter,
        TiktokenCounter,
        default_counter,
    )

__all__ = [
    "AnthropicReflector",
    "AnthropicSummarizer",
    "BPETokenCounter",
    "Endpoint",
    "EstimatingTokenCounter",
    "ExtractiveSummarizer",
    "FastEmbedEmbedder",
    "FastEmbedReranker",
    "HTTPEmbedder",
    "HTTPReflector",
    "HTTPReranker",
    "HTTPSource",
    "HTTPSummarizer",
    "HeuristicTokenCounter",
    "InputRefusedError",
    "LocalEmbedder",
    "LocalTokenizer",
    "OfflineReflector",
    "OpenAIEmbedder",
    "OpenAIReflector",
    "OpenAISummarizer",
    "ServerTokenCounter",
    "TiktokenCounter",
    "default_counter",
    "with_retry",
]

_HOMES = {
    "AnthropicReflector": "acms.providers.anthropic",
    "AnthropicSummarizer": "acms.providers.anthropic",
    "Endpoint": "acms.providers.http",
    "ExtractiveSummarizer": "acms.providers.offline.summarizer",
    "FastEmbedEmbedder": "acms.providers.fastembed",
    "FastEmbedReranker": "acms.providers.fastembed",
    "HTTPEmbedder": "acms.providers.http_embedder",
    "HTTPReflector": "acms.providers.http_reflector",
    "HTTPReranker": "acms.providers.http_reranker",
    "HTTPSource": "acms.providers.http_source",
    "HTTPSummarizer": "acms.providers.http_summarizer",
    "InputRefusedError": "acms.providers.refusal",
    "LocalEmbedder": "acms.providers.local",
    "LocalTokenizer": "acms.providers.local_tokenizer",
    "OfflineReflector": "acms.providers.offline.reflector",
    "OpenAIEmbedder": "acms.providers.openai",
    "OpenAIReflector": "acms.providers.openai",
    "OpenAISummarizer": "acms.providers.openai",
    "ServerTokenCounter": "acms.providers.server_counter",
    "BPETokenCounter": "acms.providers.tokens",
    "EstimatingTokenCounter": "acms.providers.tokens",
    "HeuristicTokenCounter": "acms.providers.tokens",
    "TiktokenCounter": "acms.providers.tokens",
    "default_counter": "acms.providers.tokens",
    "with_retry": "acms.providers.retry",
}
__getattr__, __dir__ = lazy_attributes(__name__, _HOMES)
