"""A reflector on a model server that speaks `/chat/completions`."""

from __future__ import annotations

from acms.providers.chat import Chat
from acms.providers.http import Endpoint, EndpointProvider, resolve_endpoint
from acms.providers.reflector import ANSWER_TOKENS, ModelReflector

__all__ = ["HTTPReflector"]


class HTTPReflector(EndpointProvider, ModelReflector):
    """Facts by a chat model on a server: `base_url` ends where `/chat/completions` is added.

    One question for one request; passing failures of the connection are tried again up to `max_retries` times. The
    answer may have `max_tokens`; where the server can hold a model to a JSON schema it is asked to. An answer in which
    nothing can be read is a `ProviderError`, `retryable`: the job asks again. Turns and facts are handed over as data
    that cannot leave its place, and rules decide what the answer changes, not the model.

    Give an `Endpoint` in place of the address for headers, limits and addresses that are not trusted. Close it, or use
    it as a block: connections are kept open between calls.
    """

    def __init__(
        self,
        base_url: str | Endpoint,
        model: str,
        *,
        api_key: str | None = None,
        timeout: float = 120.0,
        max_retries: int = 3,
        max_tokens: int = ANSWER_TOKENS,
    ) -> None:
        self._endpoint = resolve_endpoint(base_url, api_key=api_key, timeout=timeout, max_retries=max_retries)
        super().__init__(Chat(self._endpoint, model), model, self._endpoint.provider, max_tokens)

    def __repr__(self) -> str:
        return f"HTTPReflector({self._endpoint!r}, {self.model!r})"
