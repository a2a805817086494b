"""Asking a chat model for one answer, in the form that most model servers speak: `/chat/completions`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from acms.errors import ProviderError
from acms.providers.arguments import model_name
from acms.providers.http import REFUSED, Endpoint, StatusError

__all__ = ["THINKING", "Chat"]

THINKING = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)
_LIMITS = ("max_tokens", "max_completion_tokens")


class Chat:
    """One chat model behind an endpoint.

    What a server refuses with status 400 or 422 is left out from the first answer without it on: the schema, and
    `max_tokens` where it wants `max_completion_tokens`.
    """

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.endpoint = endpoint
        self.model = model_name(model)
        self._schemas = True
        self._limit = _LIMITS[0]

    async def complete(
        self, system: str, prompt: str, *, max_tokens: int, schema: Mapping[str, Any] | None = None
    ) -> str:
        """Return the model's answer, without what it thought aloud; JSON that follows `schema` where it can.

        `ProviderError` when it gives none: `retryable` unless the model or a filter refused.
        """
        limit, asked = self._limit, schema is not None and self._schemas
        schema = schema if asked else None
        while True:
            try:
                text = await self._ask(system, prompt, limit, max_tokens, schema)
            except StatusError as error:
                if error.status not in REFUSED:
                    raise
                if error.param in _LIMITS and limit == _LIMITS[0]:
                    limit = _LIMITS[1]
                elif schema is not None:
                    schema = None
                else:
                    raise
            else:
                self._limit = limit
                self._schemas = self._schemas and not (asked and schema is None)
                return text

    async def _ask(
        self, system: str, prompt: str, limit: str, max_tokens: int, schema: Mapping[str, Any] | None
    ) -> str:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": prompt}],
            limit: max_tokens,
        }
        if schema is not None:
            form = {"name": "answer", "schema": schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        return await self.endpoint.post("chat/completions", body, self._read)

    def _read(self, answer: dict[str, Any]) -> str:
        choice = answer["choices"][0]
        message = choice["message"]
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(part["text"] for part in content if part["type"] == "text")
        text = THINKING.sub("", content or "", count=1).strip()
        if text:
            return text
        ending = choice.get("finish_reason")
        raise wordless(self.endpoint.provider, bool(message.get("refusal")) or ending == "content_filter")


def wordless(provider: str, refused: bool) -> ProviderError:
    """Return the error of an answer without words: the model or a filter refused, or it may say more next time."""
    return ProviderError(
        f"{provider}: the model {'refused' if refused else 'gave an empty answer'}",
        provider=provider,
        retryable=not refused,
    )
