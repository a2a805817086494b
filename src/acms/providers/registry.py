"""Providers by name, for command lines and configuration files."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from acms.errors import ConfigurationError

__all__ = ["create", "names", "register"]

_KINDS = ("embedder", "reranker", "summarizer", "reflector")
_KEY = "ACMS_MODEL_KEY"
_CLIENT_SETTINGS = ("base_url", "api_key", "timeout", "max_retries")

# providers that ship with ACMS, imported on first use: the module, and the class in it
_BUILT_IN: Mapping[tuple[str, str], tuple[str, str]] = {
    ("embedder", "fastembed"): ("fastembed", "FastEmbedEmbedder"),
    ("embedder", "http"): ("http_embedder", "HTTPEmbedder"),
    ("embedder", "local"): ("local", "LocalEmbedder"),
    ("embedder", "openai"): ("openai", "OpenAIEmbedder"),
    ("reranker", "fastembed"): ("fastembed", "FastEmbedReranker"),
    ("reranker", "http"): ("http_reranker", "HTTPReranker"),
    ("summarizer", "anthropic"): ("anthropic", "AnthropicSummarizer"),
    ("summarizer", "extractive"): ("offline.summarizer", "ExtractiveSummarizer"),
    ("summarizer", "http"): ("http_summarizer", "HTTPSummarizer"),
    ("summarizer", "openai"): ("openai", "OpenAISummarizer"),
    ("reflector", "anthropic"): ("anthropic", "AnthropicReflector"),
    ("reflector", "http"): ("http_reflector", "HTTPReflector"),
    ("reflector", "offline"): ("offline.reflector", "OfflineReflector"),
    ("reflector", "openai"): ("openai", "OpenAIReflector"),
}
_registered: dict[tuple[str, str], Callable[..., Any]] = {}


def register(kind: str, name: str, factory: Callable[..., Any]) -> None:
    """Register a factory under a name: of an embedder, a reranker, a summarizer or a reflector.

    The factory is called with the settings that `create` is given. A name that is taken is refused.
    """
    _check_kind(kind)
    if not isinstance(name, str) or not name.strip():
        raise ConfigurationError(f"the name of a {kind} must be a text that is not empty")
    if not callable(factory):
        raise ConfigurationError(f"the factory of {kind} {name!r} cannot be called")
    if (kind, name) in _BUILT_IN or (kind, name) in _registered:
        raise ConfigurationError(f"there is a {kind} {name!r} already", options=("choose another name",))
    _registered[kind, name] = factory


def names(kind: str) -> list[str]:
    """Return the names by which providers of a kind can be made, sorted; also of those whose extra is missing."""
    _check_kind(kind)
    return sorted(name for registered_kind, name in (*_BUILT_IN, *_registered) if registered_kind == kind)


def create(kind: str, name: str, **settings: Any) -> Any:
    """Create a provider by its name, with the arguments of its class as settings.

    For `openai` and `anthropic` the settings base_url, api_key, timeout and max_retries configure the client of the
    SDK; it reads missing ones from its own environment variables, and the provider's `aclose` closes it. A client
    passed as `client` stays open. Without api_key, `http` uses the environment variable ACMS_MODEL_KEY. Raise
    `MissingExtraError` without the SDK, `ConfigurationError` for an unknown name or setting.
    """
    _check_kind(kind)
    factory = _registered.get((kind, name))
    if factory is not None:
        return _call_factory(kind, name, factory, settings)
    if (kind, name) not in _BUILT_IN:
        known_names = names(kind)
        raise ConfigurationError(
            f"there is no {kind} {name!r}, only {', '.join(known_names)}", options=tuple(known_names)
        )
    module_name, class_name = _BUILT_IN[kind, name]
    module = import_module(f"acms.providers.{module_name}")
    factory = getattr(module, class_name)
    if name == "http" and "api_key" not in settings and isinstance(settings.get("base_url"), str):
        settings["api_key"] = os.environ.get(_KEY) or None
    if name not in ("openai", "anthropic") or "client" in settings:
        return _call_factory(kind, name, factory, settings)
    client_settings = {key: settings.pop(key) for key in _CLIENT_SETTINGS if key in settings}
    # Checked before a client is made, which would have to be closed.
    _check_settings(kind, name, factory, {"client": None, **settings})
    provider = factory(module.create_client(**client_settings), **settings)
    provider.owns_client = True
    return provider


def _call_factory(kind: str, name: str, factory: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    _check_settings(kind, name, factory, settings)
    return factory(**settings)


def _check_settings(kind: str, name: str, factory: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` for unknown or missing settings of a factory; the error quotes no value."""
    try:
        inspect.signature(factory).bind(**settings)
    except TypeError as error:
        raise ConfigurationError(f"{kind} {name!r}: {error}") from error


def _check_kind(kind: str) -> None:
    if kind not in _KINDS:
        raise ConfigurationError(f"{kind!r} is not one of {', '.join(_KINDS)}", options=_KINDS)
