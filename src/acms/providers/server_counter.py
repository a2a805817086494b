"""Token counts of whole requests by the server that receives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from acms.config import RetryConfig
from acms.errors import ConfigurationError
from acms.model import Json
from acms.prompt_types import Exactness
from acms.providers.http import Endpoint, EndpointProvider

__all__ = ["ServerTokenCounter"]

CountingAPI = Literal["llama.cpp", "vllm", "anthropic", "gemini"]

_HEADERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "anthropic": ("x-api-key", {"anthropic-version": "2023-06-01"}),
    "gemini": ("x-goog-api-key", {}),
}
"""The header of the key, and further headers, of providers that do not use a bearer token."""


class ServerTokenCounter(EndpointProvider):
    """Counts a whole request, tools and chat template included, by asking the server that receives it.

    `api` names what the server offers: `/apply-template` and `/tokenize` of llama.cpp, `/tokenize` of vLLM,
    `/v1/messages/count_tokens` of Anthropic or `:countTokens` of Gemini. `base_url` is the address of the
    server, with or without the `/v1` (Gemini: `/v1beta`) of its API. A request that cannot be counted is a
    `ProviderError`; a prompt then uses its own estimate and says so in `warnings`.

    Give an `Endpoint` in place of the address for headers, limits and addresses that are not trusted. Close it,
    or use it as a block: connections are kept open between calls.
    """

    exactness = Exactness.SERVER

    def __init__(
        self,
        base_url: str | Endpoint,
        *,
        api: CountingAPI,
        api_key: str | None = None,
        timeout: float = 10.0,
        max_retries: int = 1,
    ) -> None:
        if api not in get_args(CountingAPI):
            raise ConfigurationError(f"unknown api {api!r}; known: {', '.join(get_args(CountingAPI))}")
        if isinstance(base_url, Endpoint):
            if api_key is not None:
                raise ConfigurationError("an Endpoint has its own api_key")
            self._endpoint = base_url
        else:
            key_header, headers = _HEADERS.get(api, ("authorization", {}))
            self._endpoint = Endpoint(
                base_url.rstrip("/").removesuffix("/v1").removesuffix("/v1beta"),
                api_key=api_key,
                key_header=key_header,
                headers=headers,
                timeout=timeout,
                retry=RetryConfig(max_attempts=max_retries + 1),
            )
        self._api: CountingAPI = api
        #: Named in errors.
        self.provider = self._endpoint.provider

    def __repr__(self) -> str:
        return f"ServerTokenCounter({self._endpoint!r}, api={self._api!r})"

    async def count_request(self, payload: Mapping[str, Json], *, model: str) -> int:
        """Return the tokens of the request; `payload` is the request that a codec rendered for this model."""
        match self._api:
            case "llama.cpp":
                return await self._count_by_llama_cpp(payload)
            case "vllm":
                body = {
                    "model": model,
                    **_select_fields(payload, "messages", "tools"),
                    "add_generation_prompt": True,
                }
                return await self._endpoint.post(
                    "tokenize", body, lambda answer: _check_token_count(answer["count"])
                )
            case "anthropic":
                fields = ("messages", "system", "tools", "tool_choice", "thinking")
                body = {"model": model, **_select_fields(payload, *fields)}
                return await self._endpoint.post(
                    "v1/messages/count_tokens",
                    body,
                    lambda answer: _check_token_count(answer["input_tokens"]),
                )
            case _:  # gemini
                # The codec's payload has the fields of the Python SDK, with the settings under `config`.
                name = model if "/" in model else f"models/{model}"
                config = payload.get("config", {})
                request = {"model": name, "contents": payload["contents"]}
                request |= _select_fields(config, "systemInstruction", "tools")
                return await self._endpoint.post(
                    f"v1beta/{name}:countTokens",
                    {"generateContentRequest": request},
                    lambda answer: _check_token_count(answer["totalTokens"]),
                )

    async def _count_by_llama_cpp(self, payload: Mapping[str, Json]) -> int:
        prompt = await self._endpoint.post(
            "apply-template",
            _select_fields(payload, "messages", "tools"),
            lambda answer: _check_text(answer["prompt"]),
        )
        body = {"content": prompt, "add_special": True, "parse_special": True}
        return await self._endpoint.post("tokenize", body, lambda answer: len(answer["tokens"]))


def _select_fields(source: Mapping[str, Json], *names: str) -> dict[str, Any]:
    return {name: source[name] for name in names if name in source}


def _check_token_count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("not a number of tokens")
    return value


def _check_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value
