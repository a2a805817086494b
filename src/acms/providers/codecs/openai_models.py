"""What OpenAI has published about a model: its vocabulary, its framing, its prompt cache."""

from __future__ import annotations

import re
from typing import NamedTuple

RECIPE = ("gpt-3.5-turbo", "gpt-35-turbo", "gpt-4", "chatgpt-4o")
"""Families of the counting recipe of the cookbook ("How to count tokens with tiktoken")."""

VOCABULARIES = (
    ("gpt-3.5-turbo", "cl100k_base"),
    ("gpt-35-turbo", "cl100k_base"),
    ("gpt-4o", "o200k_base"),
    ("chatgpt-4o", "o200k_base"),
    ("gpt-4.1", "o200k_base"),
    ("gpt-4.5", "o200k_base"),
    ("gpt-4", "cl100k_base"),
    ("gpt-5", "o200k_base"),
    ("gpt-oss", "o200k_base"),
    ("o1", "o200k_base"),
    ("o3", "o200k_base"),
    ("o4", "o200k_base"),
)
"""Vocabulary by prefix of the model's name, the first that fits (tiktoken 0.14, `model.py`).

That of gpt-oss has further special tokens, which no text becomes.
"""

_OTHERS = re.compile(r"gpt-4\.|.*-(?:audio|search|realtime|transcribe|tts)\b")
"""Models whose names begin like those of the recipe and that are told more than they are sent."""
_NUMBERED = re.compile(r"gpt-(\d+)(?:\.(\d+))?(?=-|\Z)")
_KEPT_A_DAY = re.compile(
    r"(?:gpt-5(?:\.[1245])?(?:-codex(?:-mini)?|-chat-latest|-pro)?|gpt-4\.1)(?:-\d{4}-\d\d-\d\d)?\Z"
)
_NO_CACHE = re.compile(r"gpt-3\.?5|gpt-4(?:-|\Z)|gpt-4o-2024-05-13")


class Published(NamedTuple):
    """What is public about a model."""

    #: Name of its vocabulary, or of the newest public one when its own is not known to be public.
    encoding: str
    vocabulary: bool
    #: Whether the cookbook's recipe counts its requests.
    recipe: bool
    #: Whether it thinks before it answers, as all newer ones do.
    reasons: bool
    #: Whether it reads prefixes from a prompt cache, only those that end at a breakpoint, and keeps them for a day.
    caches: bool
    breakpoints: bool
    day: bool


def published(model: str) -> Published:
    """Return what is public about a model of this name; a fine-tuned one is like its base."""
    base = model.split(":")[1] if model.startswith("ft:") and model.count(":") else model
    encoding = next((name for prefix, name in VOCABULARIES if base.startswith(prefix)), None)
    number = _NUMBERED.match(base)
    breakpoints = bool(number and (int(number[1]), int(number[2] or 0)) >= (5, 6))
    return Published(
        encoding=encoding or "o200k_base",
        vocabulary=encoding is not None,
        recipe=base.startswith(RECIPE) and not _OTHERS.match(base),
        reasons=not base.startswith(("gpt-3", "gpt-4", "chatgpt-4")),
        caches=not _NO_CACHE.match(base),
        breakpoints=breakpoints,
        day=bool(_KEPT_A_DAY.match(base)),
    )
