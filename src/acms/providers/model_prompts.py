"""Prefixes that embedding models expect before a query, or before a passage (a text that is searched).

A model that was trained with prefixes ranks worse without them. The sources are the model cards of e5, EmbeddingGemma,
bge, nomic-embed-text, mxbai-embed-large, snowflake-arctic-embed and Qwen3-Embedding.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["PromptPrefixes", "find_prompts"]


class PromptPrefixes(NamedTuple):
    """The prefixes of a query and of a passage; empty where a model takes none."""

    query: str = ""
    passage: str = ""


_TASK = "Given a web search query, retrieve relevant passages that answer the query"
_SENTENCE = "Represent this sentence for searching relevant passages: "

#: The first pattern found in the name of a model, in lower case, determines its prefixes.
_PROMPTS_BY_PATTERN = tuple(
    (re.compile(pattern), prompts)
    for pattern, prompts in (
        (r"\be5-(mistral|.*-instruct)", PromptPrefixes(f"Instruct: {_TASK}\nQuery: ")),
        (r"\be5\b", PromptPrefixes("query: ", "passage: ")),
        (r"embedding-?gemma", PromptPrefixes("task: search result | query: ", "title: none | text: ")),
        (r"nomic-embed-text", PromptPrefixes("search_query: ", "search_document: ")),
        (r"bge-(small|base|large)-zh", PromptPrefixes("为这个句子生成表示以用于检索相关文章：")),
        (r"bge-(small|base|large)", PromptPrefixes(_SENTENCE)),
        (r"mxbai-embed-large", PromptPrefixes(_SENTENCE)),
        (r"arctic-embed.*v2|arctic-embed2", PromptPrefixes("query: ")),
        (r"arctic-embed", PromptPrefixes(_SENTENCE)),
        (r"qwen3-embedding", PromptPrefixes(f"Instruct: {_TASK}\nQuery:")),
    )
)


def find_prompts(model: str) -> PromptPrefixes:
    """Return the prefixes of a model by its name; empty ones for an unknown model."""
    name = model.lower().replace("_", "-")
    return next(
        (prompts for pattern, prompts in _PROMPTS_BY_PATTERN if pattern.search(name)), PromptPrefixes()
    )


def name_vector_space(model: str, passage_prompt: str) -> str:
    """Return the name under which vectors are stored: a model gives other vectors with another passage prefix."""
    return f"{model} {passage_prompt.strip()}".strip()
