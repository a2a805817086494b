"""Questions: texts that only ask, judged by their marks."""

from __future__ import annotations

import re

from acms.text.function_words import QUESTION_MARKS

_STATEMENT = re.compile(r"[.!;]\s|[。！；…\n]")
"""End of a sentence that is no question, with text behind it."""


def is_only_question(text: str) -> bool:
    """Return whether a text is one line of questions alone, without a sentence that states something."""
    text = text.strip()
    return text.endswith(QUESTION_MARKS) and _STATEMENT.search(text) is None
