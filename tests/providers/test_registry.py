"""Providers by name: the ones that ship, the ones that are registered, and what a wrong name or setting says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acms import ConfigurationError, ProviderError
from acms.ports import ReflectionRequest, Turn
from acms.providers import (
    AnthropicReflector,
    ExtractiveSummarizer,
    HeuristicTokenCounter,
    HTTPReflector,
    OpenAIEmbedder,
    OpenAIReflector,
    registry,
)
from tests.providers.server import Behave, ModelServer

KEY = "sk-canary-0123456789abcdef"
REQUEST = ReflectionRequest(
    turns=(Turn(speaker="user", text="We use MySQL.", version=1),),
    max_summary_tokens=50,
    counter=HeuristicTokenCounter(),
)


@pytest.fixture(autouse=True)
def nothing_stays_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ACMS_MODEL_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_the_names_of_what_ships() -> None:
    assert registry.names("embedder") == ["fastembed", "http", "local", "openai"]
    assert registry.names("summarizer") == ["anthropic", "extractive", "http", "openai"]
    assert registry.names("reflector") == ["anthropic", "http", "offline", "openai"]
    assert registry.names("reranker") == ["fastembed", "http"]


def test_what_needs_no_server_is_made_by_its_name() -> None:
    assert isinstance(registry.create("summarizer", "extractive"), ExtractiveSummarizer)
    assert registry.create("reflector", "offline").model


def test_an_own_provider_is_made_with_its_settings() -> None:
    class Mine:
        def __init__(self, model: str, strict: bool = False) -> None:
            self.model, self.strict = model, strict

    registry.register("reflector", "mine", Mine)
    assert registry.names("reflector") == ["anthropic", "http", "mine", "offline", "openai"]
    assert "mine" not in registry.names("summarizer")
    made = registry.create("reflector", "mine", model="m", strict=True)
    assert (made.model, made.strict) == ("m", True)


@pytest.mark.parametrize("name", ["http", "mine", "", "  ", None])
def test_a_name_that_is_taken_or_none_is_refused(name: Any) -> None:
    registry.register("reflector", "mine", object)
    with pytest.raises(ConfigurationError):
        registry.register("reflector", name, object)


def test_what_cannot_be_called_is_no_factory() -> None:
    with pytest.raises(ConfigurationError, match="cannot be called"):
        registry.register("reflector", "mine", "acms.Mine")  # type: ignore[arg-type]


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="anthropic, http, offline, openai") as caught:
        registry.create("reflector", "gpt")
    assert caught.value.options == ("anthropic", "http", "offline", "openai")
    for call in (registry.names, lambda kind: registry.create(kind, "http")):
        with pytest.raises(ConfigurationError, match="embedder, reranker, summarizer, reflector"):
            call("tokenizer")


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("http", {"base_url": "http://127.0.0.1:1/v1"}, "missing a required argument: 'model'"),
        ("http", {"base_url": "http://127.0.0.1:1/v1", "model": "m", "api": KEY}, "argument 'api'"),
        ("offline", {"base_url": "http://127.0.0.1:1/v1"}, "argument 'base_url'"),
        ("openai", {"api_key": KEY, "temperature": 1}, "argument 'temperature'"),
    ],
)
def test_a_setting_that_is_missing_or_unknown_is_named(
    name: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        registry.create("reflector", name, **settings)
    assert name in str(caught.value)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("http", HTTPReflector), ("openai", OpenAIReflector), ("anthropic", AnthropicReflector)],
)
async def test_a_reflector_is_made_from_address_model_and_key(name: str, kind: type) -> None:
    async with ModelServer(say=lambda body: json.dumps({"proposals": [], "summary": "s"})) as server:
        address = server.root if name == "anthropic" else server.url
        reflector = registry.create("reflector", name, base_url=address, model="m", api_key=KEY)
        assert isinstance(reflector, kind)
        assert (await reflector.reflect(REQUEST)).summary == "s"
        assert [call.key for call in server.calls] == [KEY]
        await reflector.aclose()
        await server.until(lambda server: server.connections == 0)


@pytest.mark.parametrize(
    ("name", "variable"),
    [("http", "ACMS_MODEL_KEY"), ("openai", "OPENAI_API_KEY"), ("anthropic", "ANTHROPIC_API_KEY")],
)
async def test_a_key_comes_from_the_environment(
    name: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, KEY)
    async with ModelServer(say=lambda body: "[]") as server:
        address = server.root if name == "anthropic" else server.url
        reflector = registry.create("reflector", name, base_url=address, model="m")
        await reflector.reflect(REQUEST)
        server.otherwise = Behave(status=401, echo=True)
        with pytest.raises(ProviderError) as caught:
            await reflector.reflect(REQUEST)
        await reflector.aclose()
        assert {call.key for call in server.calls} == {KEY}
    assert KEY not in str(caught.value)


async def test_no_key_of_a_vendor_is_sent_to_any_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    async with ModelServer(say=lambda body: "[]") as server:
        async with registry.create("reflector", "http", base_url=server.url, model="m") as reflector:
            await reflector.reflect(REQUEST)
        assert [call.key for call in server.calls] == [""]


def test_without_a_key_openai_says_which_variable_to_set() -> None:
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY") as caught:
        registry.create("embedder", "openai")
    assert caught.value.options == ("set OPENAI_API_KEY",)
    assert caught.value.__context__ is None


async def test_a_client_can_be_a_setting_and_stays_open() -> None:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(api_key=KEY) as client:
        embedder = registry.create("embedder", "openai", client=client)
        assert isinstance(embedder, OpenAIEmbedder)
        await embedder.aclose()
        assert not client.is_closed()
