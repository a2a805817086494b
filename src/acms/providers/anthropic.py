"""Models of Anthropic over its SDK (extra `anthropic`)."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any

from acms.errors import MissingExtraError
from acms.providers.chat import TEMPERATURE
from acms.providers.http_summarizer import ModelSummarizer
from acms.providers.reflector import ANSWER_TOKENS, ModelReflector
from acms.providers.sdk import ClientProvider, SDKChat, create_sdk_client, validate_client

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic


__all__ = ["AnthropicReflector", "AnthropicSummarizer"]

_PROVIDER = "anthropic"
_CHAT = "claude-haiku-5-5"
_CLIENT = "AsyncAnthropic"


def create_client(**settings: Any) -> AsyncAnthropic:
    """Make a client from its settings (base_url, api_key, timeout, max_retries) and the variables the SDK reads."""
    try:
        from anthropic import AsyncAnthropic
    except ImportError as error:
        raise MissingExtraError("anthropic", "anthropic") from error
    return create_sdk_client(AsyncAnthropic, settings, "ANTHROPIC_API_KEY")


class _Chat(SDKChat):
    #: The SDK has no temperature: current models take none.
    unsupported = SDKChat.unsupported | {TEMPERATURE}

    def _ask(self, system: str, prompt: str, max_tokens: int, settings: Mapping[str, Any]) -> Awaitable[Any]:
        return self.client.messages.create(
            model=self.model,
            system=system,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=max_tokens,
            **settings,
        )

    def _schema_setting(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}

    def _extract_text(self, answer: Any) -> tuple[str, bool]:
        text = "".join(block.text for block in answer.content if block.type == "text")
        return text, answer.stop_reason == "refusal"


class AnthropicReflector(ClientProvider, ModelReflector):
    """Facts by a chat model over an `AsyncAnthropic` client.

    One question for one request, tried as often and for as long as is set on the client. The answer may have
    `max_tokens`. An answer in which nothing can be read is a `ProviderError`, `retryable`: the job asks again. Rules
    decide what the answer changes, not the model.
    """

    def __init__(
        self, client: AsyncAnthropic, model: str = _CHAT, *, max_tokens: int = ANSWER_TOKENS
    ) -> None:
        ClientProvider.__init__(self, validate_client(client, _CLIENT))
        ModelReflector.__init__(self, _Chat(client, model, _PROVIDER), model, _PROVIDER, max_tokens)


class AnthropicSummarizer(ClientProvider, ModelSummarizer):
    """Summaries by a chat model over an `AsyncAnthropic` client.

    `window` is the number of tokens the model reads in one call: a longer stretch is handed over in pieces. How often a
    call is tried, and how long it may take, is set on the client.
    """

    def __init__(self, client: AsyncAnthropic, model: str = _CHAT, *, window: int = 128_000) -> None:
        ClientProvider.__init__(self, validate_client(client, _CLIENT))
        ModelSummarizer.__init__(self, _Chat(client, model, _PROVIDER), model, window)
