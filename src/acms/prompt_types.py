"""What a prompt is made of, before and after a provider's format is chosen: messages, tools, counts, cache marks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from acms.model import Json, Part, Privacy, Role, Text

__all__ = [
    "CacheMark",
    "CachePrediction",
    "Change",
    "Count",
    "Exactness",
    "PromptMessage",
    "Redacted",
    "Tool",
    "Usage",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptMessage:
    """One message of a prompt, in no provider's format."""

    role: Role
    parts: tuple[Part, ...] = ()
    #: Who spoke, for providers that take a name.
    name: str | None = None
    #: Ids of the entries whose text it shows, in order; empty for what the caller wrote.
    sources: tuple[str, ...] = ()
    #: Tool group of the log, which tells apart calls with the same id.
    group: str | None = None
    #: Tokens of `text`, or of the output of a tool result that stands alone, by the counter of this name, where they
    #: were counted before.
    tokens: int | None = None
    counter: str = ""

    @property
    def text(self) -> str:
        """Its text parts, a line each."""
        return "\n".join([part.text for part in self.parts if isinstance(part, Text)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function the model may call."""

    name: str
    description: str = ""
    #: JSON Schema of its arguments.
    parameters: Mapping[str, Json] = field(default_factory=lambda: MappingProxyType({"type": "object"}))
    strict: bool = False


class Exactness(StrEnum):
    """How far a count of tokens can be relied on."""

    #: By the provider's public tokenizer and framing: what is sent never has more.
    EXACT = "exact"
    #: A stated quantile of what the provider has reported, or a published upper bound until it has.
    CALIBRATED = "calibrated"
    #: So many tokens for each byte of the payload, which relies on no measure of the text.
    BYTES = "bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The tokens of a whole request: roles, ids, tools and all."""

    #: Raw: by the codec's counter and its idea of framing; the truth when exact.
    tokens: int
    exactness: Exactness
    #: What a budget is compared with; equals `tokens` when exact.
    upper_bound: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMark:
    """The end of a prefix that a provider is asked to cache."""

    #: Messages in the prefix; 0 when it holds the tools only.
    messages: int
    id: str = "prompt"
    version: str = ""
    #: Seconds it should be kept; None leaves it to the provider.
    ttl: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a provider says a request took."""

    #: Tokens of the whole request, cached or not.
    input_tokens: int
    #: How many of them were read from its prompt cache, and how many were written to it.
    cached_tokens: int = 0
    written_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The first message of a prompt that is not as it was in the one before."""

    #: Its place among the messages; their number when the prompt ends before.
    index: int
    role: Role | None
    #: Scope it came from.
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePrediction:
    """What of a prompt its provider can read from the prompt cache, when another one was sent before it."""

    #: By the provider's rules: it reads no short prefix, and some only in steps.
    predicted_tokens: int = 0
    #: Raw tokens of what both begin with, tools and frame included.
    shared_tokens: int = 0
    #: None when the earlier prompt is the beginning of this one, and when there is none.
    first_change: Change | None = None
    #: What changed there, in words.
    reason: str = ""
    #: Name under which the provider keeps it, where a cache hint gave one.
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What the tokens of a request are used for, in raw tokens of the codec."""

    #: What the caller wrote for the system or the developer, and everything else that the caller wrote.
    system: int = 0
    written: int = 0
    #: Messages and summaries of a log.
    history: int = 0
    recalled: int = 0
    pins: int = 0
    #: Functions that are offered, and what the format takes by itself.
    tools: int = 0
    #: What is left of the budget; 0 without one.
    free: int = 0


class Redacted(NamedTuple):
    """An entry that is not shown as it was stored, and what was taken out of it."""

    entry: str
    #: The mode it was shown under; under `block` all of its text was withheld.
    mode: Privacy
    #: How often what was taken out, by kind.
    kinds: tuple[tuple[str, int], ...] = ()
