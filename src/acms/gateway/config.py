"""Settings of the gateway for its operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

from acms.errors import ConfigurationError
from acms.model import Privacy
from acms.providers.addresses import is_loopback_host

__all__ = ["DEFAULT_UPSTREAMS", "GatewayConfig", "Recall", "budget_of_model"]

Recall: TypeAlias = Literal["off", "trim", "namespace"]

DEFAULT_UPSTREAMS: Mapping[str, str] = MappingProxyType(
    {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com"}
)
"""Where requests go when no upstream of the name is given."""
KEY_VARIABLES: Mapping[str, str] = MappingProxyType(
    {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}
)
"""Environment variables that hold the provider key of an upstream; others have NAME_API_KEY."""

_WINDOWS: tuple[tuple[str, int], ...] = (
    ("claude-", 200_000),
    ("gpt-4.1", 1_047_576),
    ("gpt-4o", 128_000),
    ("gpt-4", 8_192),
    ("gpt-5", 272_000),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4", 200_000),
)
"""Published context windows in tokens, by the beginning of the model's name; the first that fits counts."""


def budget_of_model(model: str, default: int) -> int:
    """Return the published context window of a model in tokens, or the default for an unknown one."""
    for prefix, window in _WINDOWS:
        if model.startswith(prefix):
            return window
    return default


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """The address, the upstreams and the memory of the gateway."""

    #: Base URLs of providers by name. Requests are routed by their path; `/u/NAME/…` names one.
    upstreams: Mapping[str, str] = field(default_factory=lambda: DEFAULT_UPSTREAMS)
    #: Tokens that a request may have; `x-acms-budget` sets it for one request.
    budget: int = 100_000
    #: Use the published context window of the model where it is known, and `budget` elsewhere.
    budget_by_model: bool = False
    #: `off` recalls nothing, `trim` only what a request had to leave out, `namespace` from other sessions too.
    recall: Recall = "trim"
    #: Tokens of text from other sessions that one request may be given, with `recall="namespace"`.
    recall_tokens: int = 1_500
    #: Relevance, in [0, 1], that text from other sessions must have.
    min_relevance: float = 0.5
    #: Whether conversations are stored. Without it the gateway forwards bytes and does nothing else.
    store: bool = True
    #: How messages are redacted before they are stored; None stores them as they were said.
    privacy: Privacy | None = Privacy.ALLOW
    #: Seconds that memory may take before the client's own bytes are sent.
    memory_timeout: float = 2.0
    #: Bytes of a request body.
    body_bytes: int = 32 * 1024 * 1024
    host: str = "127.0.0.1"
    #: Whether an ACMS key is needed. Without one it must be this machine only.
    auth: Literal["required", "off"] = "off"
    #: Provider keys by upstream: sent in place of the ACMS key that a client gives as its provider key.
    provider_keys: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    #: Whether clients may name their namespace by `x-acms-namespace`.
    namespaces: bool = True
    #: Regular expressions that mark a side request, such as one for a title; added to the built-in ones.
    side_patterns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.recall not in ("off", "trim", "namespace"):
            raise ConfigurationError(f"recall is off, trim or namespace, not {self.recall!r}")
        if self.auth == "off" and not is_loopback_host(self.host):
            raise ConfigurationError(
                f"{self.host} can be reached from other machines, and no key is required",
                options=("--auth required, and acms keys create --tenant NAME", "--host 127.0.0.1"),
            )
        if self.budget < 1:
            raise ConfigurationError(f"budget must be at least 1, was {self.budget}")
        for name, url in self.upstreams.items():
            if not url.startswith(("http://", "https://")):
                raise ConfigurationError(f"the upstream {name!r} is not an http or https URL")

    def budget_for(self, model: str) -> int:
        """Return the tokens that a request to a model may have."""
        return budget_of_model(model, self.budget) if self.budget_by_model else self.budget
