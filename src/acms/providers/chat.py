"""Asking a chat model for one answer, in the form that most model servers speak: `/chat/completions`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from acms.errors import ProviderError
from acms.providers.arguments import validate_model_name
from acms.providers.http import FIELD_REFUSAL_STATUSES, Endpoint, StatusError
from acms.providers.reflection_prompt import without_bounds

__all__ = ["BOUNDS", "SCHEMA", "TEMPERATURE", "THINKING", "Chat", "accepted_schema", "feature_to_leave_out"]

THINKING = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)
TEMPERATURE, BOUNDS, SCHEMA = "temperature", "bounds", "schema"
"""Features of a request that a server may refuse."""
_LIMITS = ("max_tokens", "max_completion_tokens")


def feature_to_leave_out(error: StatusError, refused_features: frozenset[str], schema: bool) -> str | None:
    """Return the feature to leave out of a request that a server refused, or None if no feature is left.

    This is the temperature if the server names it: models that think first take none. Otherwise it is the bounds of
    the schema, and then the schema itself, because servers seldom say what they object to in a schema.
    """
    if error.param == TEMPERATURE:
        return None if TEMPERATURE in refused_features else TEMPERATURE
    optional = (BOUNDS, SCHEMA) if schema else ()
    return next((feature for feature in optional if feature not in refused_features), None)


def accepted_schema(
    schema: Mapping[str, Any] | None, refused_features: frozenset[str]
) -> Mapping[str, Any] | None:
    """Return a schema without the features that a server refused, or None if it takes no schema."""
    if schema is None or SCHEMA in refused_features:
        return None
    return without_bounds(schema) if BOUNDS in refused_features else schema


class Chat:
    """One chat model behind an endpoint, at temperature 0: the same request has the same answer as far as it can.

    Features that a server refuses with status 400 or 422 are left out after the first answer without them: the
    temperature, the bounds of the schema or the schema, and `max_tokens` where it wants `max_completion_tokens`.
    """

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.endpoint = endpoint
        self.model = validate_model_name(model)
        self._refused: frozenset[str] = frozenset()
        self._limit = _LIMITS[0]

    async def complete(
        self, system: str, prompt: str, *, max_tokens: int, schema: Mapping[str, Any] | None = None
    ) -> str:
        """Return the model's answer without its thoughts, as JSON that follows `schema` where supported.

        Raise `ProviderError` if there is no answer: `retryable` unless the model or a filter refused.
        """
        limit_field, refused_features = self._limit, self._refused
        while True:
            body: dict[str, Any] = {
                "model": self.model,
                "messages": [{"role": "system", "content": system}, {"role": "user", "content": prompt}],
                limit_field: max_tokens,
            }
            if TEMPERATURE not in refused_features:
                body[TEMPERATURE] = 0
            allowed_schema = accepted_schema(schema, refused_features)
            if allowed_schema is not None:
                form = {"name": "answer", "schema": allowed_schema, "strict": True}
                body["response_format"] = {"type": "json_schema", "json_schema": form}
            try:
                text = await self.endpoint.post("chat/completions", body, self._read)
            except StatusError as error:
                if error.status not in FIELD_REFUSAL_STATUSES:
                    raise
                # Servers differ in the name of the token limit: try the other one.
                if error.param in _LIMITS and limit_field == _LIMITS[0]:
                    limit_field = _LIMITS[1]
                    continue
                feature = feature_to_leave_out(error, refused_features, schema is not None)
                if feature is None:
                    raise
                refused_features |= {feature}
            else:
                self._limit, self._refused = limit_field, refused_features
                return text

    def _read(self, answer: dict[str, Any]) -> str:
        """Return the text of an answer without the model's thoughts; raise if there is none."""
        choice = answer["choices"][0]
        message = choice["message"]
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(part["text"] for part in content if part["type"] == "text")
        text = THINKING.sub("", content or "", count=1).strip()
        if text:
            return text
        finish_reason = choice.get("finish_reason")
        raise empty_answer_error(
            self.endpoint.provider, bool(message.get("refusal")) or finish_reason == "content_filter"
        )


def empty_answer_error(provider: str, is_refusal: bool) -> ProviderError:
    """Return the error for an answer without text. It is retryable unless the model or a filter refused."""
    return ProviderError(
        f"{provider}: the model {'refused' if is_refusal else 'gave an empty answer'}",
        provider=provider,
        retryable=not is_refusal,
    )
