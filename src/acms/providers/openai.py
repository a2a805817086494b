"""Models of OpenAI, and of servers that are compatible with it, over its SDK (extra `openai`)."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any

from acms.errors import MissingExtraError
from acms.model import Json
from acms.providers.http_embedder import ModelEmbedder
from acms.providers.http_summarizer import ModelSummarizer
from acms.providers.reflector import ANSWER_TOKENS, ModelReflector
from acms.providers.sdk import ClientProvider, SDKChat, call_sdk, create_sdk_client, validate_client

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from openai import AsyncOpenAI


__all__ = ["OpenAIEmbedder", "OpenAIReflector", "OpenAISummarizer"]

_PROVIDER = "openai"
_CHAT = "gpt-6-luna"
_CLIENT = "AsyncOpenAI"


def create_client(**settings: Any) -> AsyncOpenAI:
    """Make a client from its settings (base_url, api_key, timeout, max_retries) and the variables the SDK reads."""
    try:
        from openai import AsyncOpenAI
    except ImportError as error:
        raise MissingExtraError("openai", "openai") from error
    return create_sdk_client(AsyncOpenAI, settings, "OPENAI_API_KEY")


class _Chat(SDKChat):
    def _ask(self, system: str, prompt: str, max_tokens: int, settings: Mapping[str, Any]) -> Awaitable[Any]:
        return self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "system", "content": system}, {"role": "user", "content": prompt}],
            max_completion_tokens=max_tokens,
            **settings,
        )

    def _schema_setting(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        form = {"name": "answer", "schema": schema, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": form}}

    def _extract_text(self, answer: Any) -> tuple[str, bool]:
        choice = answer.choices[0]
        is_refusal = bool(choice.message.refusal) or choice.finish_reason == "content_filter"
        return choice.message.content or "", is_refusal


class OpenAIEmbedder(ClientProvider, ModelEmbedder):
    """An embedding model over an `AsyncOpenAI` client.

    `dimension` may be left out for OpenAI's own models; for any other one it must be given. A model of the
    text-embedding-3 family is asked for as many numbers as `dimension` says. Of a longer text the first `longest` bytes
    of UTF-8 are embedded. Many texts go in several requests, one after the other; when one fails for good,
    `ProviderError` is raised and none of the vectors is returned; `InputRefusedError` when the server refuses the
    texts themselves. What the card of a known model asks for is put before a query and before a passage. How often a
    call is tried, and how long it may take, is set on the client; so is its end.
    """

    def __init__(
        self,
        client: AsyncOpenAI,
        model: str = "text-embedding-3-small",
        *,
        dimension: int | None = None,
        longest: int = 8_000,
    ) -> None:
        ClientProvider.__init__(self, validate_client(client, _CLIENT))
        ModelEmbedder.__init__(self, model, _PROVIDER, dimension, longest)

    async def _ask(self, texts: list[str], extra_fields: Mapping[str, Json]) -> NDArray[np.float32]:
        return await call_sdk(
            lambda: self._client.embeddings.create(input=texts, **self._settings()),
            lambda answer: self._parse_vectors(
                [{"index": row.index, "embedding": row.embedding} for row in answer.data], len(texts)
            ),
            _PROVIDER,
        )


class OpenAIReflector(ClientProvider, ModelReflector):
    """Facts by a chat model over an `AsyncOpenAI` client.

    One question for one request, tried as often and for as long as is set on the client. The answer may have
    `max_tokens`, what the model thinks first included. An answer in which nothing can be read is a `ProviderError`,
    `retryable`: the job asks again. Rules decide what the answer changes, not the model.
    """

    def __init__(self, client: AsyncOpenAI, model: str = _CHAT, *, max_tokens: int = ANSWER_TOKENS) -> None:
        ClientProvider.__init__(self, validate_client(client, _CLIENT))
        ModelReflector.__init__(self, _Chat(client, model, _PROVIDER), model, _PROVIDER, max_tokens)


class OpenAISummarizer(ClientProvider, ModelSummarizer):
    """Summaries by a chat model over an `AsyncOpenAI` client.

    `window` is the number of tokens the model reads in one call: a longer stretch is handed over in pieces. How often a
    call is tried, and how long it may take, is set on the client.
    """

    def __init__(self, client: AsyncOpenAI, model: str = _CHAT, *, window: int = 128_000) -> None:
        ClientProvider.__init__(self, validate_client(client, _CLIENT))
        ModelSummarizer.__init__(self, _Chat(client, model, _PROVIDER), model, window)
