"""Texts that a model refuses: too long for it, or not to be read at all."""

from __future__ import annotations

import re

from acms.errors import ProviderError

__all__ = ["InputRefusedError"]

TEXT_REFUSAL_STATUSES = (400, 413, 422)
"""Statuses by which a server refuses the texts of a request: it will refuse the same texts again."""

#: Messages of llama.cpp, vLLM, Ollama, OpenAI and Text Embeddings Inference, some of them with status 500.
_TOO_LONG = re.compile(
    r"too (large|long)|context (length|size|window)|maximum (context|input|sequence|model) |physical batch"
    r"|must have less than \d+ tokens|exceed\w* the .{0,40}(context|tokens)",
    re.IGNORECASE,
)


class InputRefusedError(ProviderError):
    """A model refused a text.

    An embedder of your own raises it for a text that is too long, or that its server does not accept: a session then
    embeds the text in parts, and leaves out the parts that are still refused.
    """


def says_too_long(message: object) -> bool:
    """Return whether the error message of a model server means that its input was too long."""
    return isinstance(message, str) and _TOO_LONG.search(message) is not None
