"""A summarizer on a model server that speaks `/chat/completions`."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from acms.errors import ConfigurationError, ProviderError
from acms.observability.logging import log_event
from acms.ports import SummaryRequest, Turn
from acms.prompt_types import OPENING
from acms.providers.arguments import validate_model_name
from acms.providers.chat import Chat
from acms.providers.http import Endpoint, EndpointProvider, resolve_endpoint
from acms.providers.reflector import ChatCompleter
from acms.providers.summary_repair import repair_summary

__all__ = ["HTTPSummarizer"]

_INSTRUCTION_TOKENS = 600
"""Tokens of the instructions and of the text around the conversation."""
_THINKING_TOKENS = 1_024
"""Tokens that an answer may have beyond the summary, for models that think before they write."""
_WORDS_PER_TOKEN = 0.7
"""The prompt limits the summary in words, because models count words better than tokens."""


class ModelSummarizer:
    """Summaries by any chat model."""

    def __init__(self, chat: ChatCompleter, model: str, window: int) -> None:
        self._chat = chat
        #: Names the model.
        self.model = validate_model_name(model)
        #: Tokens of a conversation that one call reads, without the instructions.
        self.window: int | None = compute_input_budget(window)

    async def summarize(self, request: SummaryRequest) -> str:
        """Return a text that can stand for the turns; `ProviderError` when the model gives none."""
        words = max(10, int(request.max_tokens * _WORDS_PER_TOKEN))
        answer = await self._chat.complete(
            _load_instructions(),
            f"Summarize this conversation in at most {words} words.\n\n"
            f"<conversation>\n{_serialize_turns(request.turns)}\n</conversation>",
            max_tokens=request.max_tokens + _THINKING_TOKENS,
        )
        text, repairs = repair_summary(answer, request.turns)
        if repairs:
            log_event(logging.INFO, "summary_repaired", model=self.model, **repairs)
        if not text:
            raise ProviderError(
                f"{self.model}: its summary contains nothing from the conversation",
                provider=self.model,
                retryable=True,
            )
        return text


class HTTPSummarizer(EndpointProvider, ModelSummarizer):
    """Summaries by a chat model: `base_url` ends where `/chat/completions` is added.

    `window` is the number of tokens the model reads in one call: a longer stretch is handed over in pieces. The turns
    are sent as data, one JSON object a line, so that nothing said in them can pass for an instruction or end the data.

    Give an `Endpoint` in place of the address for headers, limits and addresses that are not trusted. Close it, or use
    it as a block: connections are kept open between calls.
    """

    def __init__(
        self,
        base_url: str | Endpoint,
        model: str,
        *,
        api_key: str | None = None,
        window: int = 32_000,
        timeout: float = 60.0,
        max_retries: int = 3,
    ) -> None:
        self._endpoint = resolve_endpoint(base_url, api_key=api_key, timeout=timeout, max_retries=max_retries)
        super().__init__(Chat(self._endpoint, model), model, window)

    def __repr__(self) -> str:
        return f"HTTPSummarizer({self._endpoint!r}, {self.model!r})"


def compute_input_budget(window: int) -> int:
    """Return how many tokens of a conversation fit in a model's window, beside the instructions and the answer."""
    overhead = _INSTRUCTION_TOKENS + _THINKING_TOKENS
    if type(window) is not int or window < 2 * overhead:
        raise ConfigurationError(
            f"window must be a whole number of at least {2 * overhead} tokens, was {window!r}"
        )
    return window - overhead


@cache
def _load_instructions() -> str:
    return (files("acms.providers") / "prompts" / "summarize.md").read_text(encoding="utf-8")


_OPENING = re.compile(f"[{OPENING}]")


def _escape_character(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _serialize_turns(turns: Sequence[Turn]) -> str:
    """Write turns as data: line ends and the signs of a tag are escaped, so no text can close the block."""
    lines: list[str] = []
    for turn in turns:
        fields: dict[str, object] = {"speaker": turn.speaker, "said": turn.text}
        if turn.markers:
            fields["markers"] = list(turn.markers)
        lines.append(_OPENING.sub(_escape_character, json.dumps(fields, ensure_ascii=False)))
    return "\n".join(lines)
