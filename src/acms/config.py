"""Configuration: frozen values that are validated when they are created."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Any

from acms.errors import ConfigurationError, ValidationError
from acms.log.policy import CompactionPolicy
from acms.log.validation import parse_choice, validate_budget, validate_fraction, validate_markers
from acms.model import Privacy
from acms.observability.events import Event
from acms.text import markers as _markers

__all__ = [
    "ACMSConfig",
    "CacheConfig",
    "CompactionPolicy",
    "EpisodeBoundaryConfig",
    "PrivacyConfig",
    "RecallConfig",
    "ReflectionConfig",
    "RenderLogConfig",
    "RetryConfig",
    "WorkerConfig",
]


#: Patterns of messages that only close a topic: "done", "OK, that's finished.", "Thanks, that fixed it!".
#: They do not match "that is not done yet", "give me the complete list", or "thanks, but it still fails".
CLOSING_PATTERNS: tuple[str, ...] = (
    r"(?i)\A\W{0,9}(?:(?:ok(?:ay)?|great|perfect|good|nice|cool|all|everything|that|this|it|we|i|now)"
    r"(?:['\u2019](?:s|re|m)| is| are| am)?[\s,.!]{1,4}){0,3}"
    r"(?:done|finished|completed?)(?: (?:now|here|then|for (?:now|today)))?\W{0,9}\Z",
    r"(?i)\A\W{0,9}(?:(?:ok(?:ay)?|great|perfect|good|nice|cool|many)[\s,.!]{1,4}){0,2}(?:thanks|thank you|thx)\b"
    r"(?![^\n]*\b(?:but|not|still|however|now|next|also|please|can|could|would|will|what|how|why)\b)"
    r"[^?\n]{0,80}\Z",
)


def _check_minimum(value: float, name: str, minimum: float = 0) -> None:
    """Raise `ConfigurationError` if a setting is not a number of at least `minimum`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not value >= minimum:  # this form also refuses NaN
        raise ConfigurationError(f"{name} must be a number of at least {minimum}, was {value!r}")


def _validate_patterns(patterns: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the patterns as a tuple if each of them compiles; `name` is the setting in errors."""
    if isinstance(patterns, str):
        raise ConfigurationError(f"{name} must be a list of regular expressions, not a string")
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigurationError(f"{name}: {pattern!r} is not a regular expression: {error}") from error
    return tuple(patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeBoundaryConfig:
    """When an episode ends automatically."""

    #: After this many messages.
    max_turns: int = 6
    #: Before a message that comes more than this many seconds after the previous one.
    max_time_gap_seconds: float = 1800
    #: After a tool result that answers the last open call.
    close_on_tool_result: bool = True
    #: After a user or assistant text that matches one of these regular expressions (`re.search`).
    close_on_patterns: Sequence[str] = CLOSING_PATTERNS

    def __post_init__(self) -> None:
        _check_minimum(self.max_turns, "max_turns", 1)
        _check_minimum(self.max_time_gap_seconds, "max_time_gap_seconds")
        object.__setattr__(
            self, "close_on_patterns", _validate_patterns(self.close_on_patterns, "close_on_patterns")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallConfig:
    """Defaults of `recall`."""

    token_budget: int = 4000
    #: Share of the budget reserved for the current episode; the unused part is available to other items.
    current_episode_budget_pct: float = 0.4
    #: Share of a recall, also in a prompt, that text of the origin `external` may take while other relevant text is
    #: left out.
    external_budget_pct: float = 0.25
    #: Share of a prompt's free tokens that the recall of one turn may take next to a history, up to 6,000 tokens. A
    #: larger share finds more answers; a smaller one means fewer tokens that are paid in full.
    effort: float = 0.7
    #: Seconds that a reranker may take, retries and waits included, before a recall does without it.
    rerank_seconds: float = 5.0

    def __post_init__(self) -> None:
        _check_minimum(self.rerank_seconds, "recall.rerank_seconds", 0.001)
        try:
            validate_budget(self.token_budget, "recall.token_budget")
            validate_fraction(self.current_episode_budget_pct, "recall.current_episode_budget_pct")
            validate_fraction(self.external_budget_pct, "recall.external_budget_pct")
            validate_fraction(self.effort, "recall.effort")
        except ValidationError as error:
            raise ConfigurationError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyConfig:
    """How the texts of a session are redacted when they are shown and when they are stored (decision 0046)."""

    #: The mode of every message, fact and summary; an entry with a stricter mode keeps its own. None leaves texts
    #: unchanged, "allow" removes secrets, keys, cards and bank accounts, "redact" also removes email addresses and
    #: telephone numbers, "block" removes everything but ids and metadata.
    mode: Privacy | None = None
    #: Whether messages are redacted before they are stored, in this mode or at least as in "allow"; this cannot be
    #: undone.
    redact_before_persist: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.redact_before_persist, bool):
            raise ConfigurationError("privacy.redact_before_persist must be true or false")
        try:
            mode = None if self.mode is None else parse_choice(self.mode, Privacy, "privacy.mode")
        except ValidationError as error:
            raise ConfigurationError(str(error)) from error
        object.__setattr__(self, "mode", mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Limits of the in-memory caches of a store: recently read entries, and the indexes for ranking recalls."""

    #: Whether entries are cached. Indexes always are.
    enabled: bool = True
    #: Maximum bytes of text and parts of cached entries; the least recently used contexts are removed first.
    max_bytes: int = 64 * 1024 * 1024
    #: Maximum number of cached entries, and seconds after which they are read again; None for no limit.
    max_entries: int | None = None
    ttl_seconds: float | None = None
    #: Maximum bytes of the indexes, vectors included; the least recently used ones are removed first.
    index_bytes: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        _check_minimum(self.max_bytes, "cache.max_bytes")
        _check_minimum(self.index_bytes, "cache.index_bytes")
        if self.max_entries is not None:
            _check_minimum(self.max_entries, "cache.max_entries", 1)
        if self.ttl_seconds is not None:
            _check_minimum(self.ttl_seconds, "cache.ttl_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderLogConfig:
    """Whether a session keeps a log of the requests that were sent, and for how long: see `View.renders`."""

    enabled: bool = False
    #: Seconds after which a render is no longer shown; it is deleted when the log is next read or written.
    max_age_seconds: float = 7 * 24 * 3600
    #: Maximum bytes of the renders of one session, from 131,072 to 1,048,576; the oldest are deleted first.
    max_bytes: int = 512 * 1024

    def __post_init__(self) -> None:
        _check_minimum(self.max_age_seconds, "renders.max_age_seconds")
        _check_minimum(self.max_bytes, "renders.max_bytes", 131_072)
        if self.max_bytes > 1_048_576:
            raise ConfigurationError(f"renders.max_bytes is at most 1048576, was {self.max_bytes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryConfig:
    """How a call is retried that failed for a temporary reason and stored nothing."""

    max_attempts: int = 3
    #: Seconds to wait after the first attempt, and the maximum; each wait is `exponential_base` times the last one.
    base_delay: float = 0.5
    max_delay: float = 30.0
    exponential_base: float = 2.0
    #: Whether each wait is shortened by a random share of up to one half.
    jitter: bool = True
    #: Exceptions that `acms.providers.with_retry` retries in addition to errors of ACMS that are `retryable`.
    retryable_exceptions: tuple[type[Exception], ...] = (ConnectionError, TimeoutError)

    def __post_init__(self) -> None:
        _check_minimum(self.max_attempts, "retry.max_attempts", 1)
        _check_minimum(self.base_delay, "retry.base_delay")
        _check_minimum(self.max_delay, "retry.max_delay")
        _check_minimum(self.exponential_base, "retry.exponential_base", 1)
        classes = self.retryable_exceptions
        is_valid = isinstance(classes, tuple) and all(
            isinstance(item, type) and issubclass(item, Exception) for item in classes
        )
        if not is_valid:
            raise ConfigurationError(
                f"retry.retryable_exceptions must be a tuple of exception classes, was {classes!r}"
            )

    def delay(self, attempt: int, fraction: float) -> float:
        """Return the seconds to wait after a failed attempt, counted from 1; `fraction` in [0, 1] sets the jitter."""
        try:
            delay = min(self.max_delay, self.base_delay * self.exponential_base ** (attempt - 1))
        except OverflowError:
            delay = self.max_delay
        return delay * (0.5 + fraction / 2) if self.jitter else delay


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectionConfig:
    """How closed episodes are reflected on if the session has a reflector."""

    #: Whether the end of an episode requests a reflection; `session.reflect()` always does.
    enabled: bool = True
    #: Whether an ingest that ends an episode waits until it was reflected on, or an attempt at that has failed.
    inline: bool = False
    #: An episode with fewer messages is reflected on together with the next one.
    min_episode_turns: int = 2
    #: Proposals with less confidence are rejected.
    min_confidence: float = 0.7
    #: Maximum facts that one call of a reflector may add for each episode it reads.
    max_facts_per_call: int = 10
    #: Maximum tokens of a fact.
    max_fact_tokens: int = 200
    #: Maximum active facts; above it, the least confident and then the oldest ones are archived.
    max_active_facts: int = 100
    #: Maximum messages and tokens that one call reads, unless one episode alone has more.
    max_turns: int = 48
    max_tokens: int = 6000

    def __post_init__(self) -> None:
        _check_minimum(self.min_episode_turns, "reflection.min_episode_turns", 1)
        _check_minimum(self.max_facts_per_call, "reflection.max_facts_per_call", 1)
        _check_minimum(self.max_fact_tokens, "reflection.max_fact_tokens", 1)
        _check_minimum(self.max_active_facts, "reflection.max_active_facts", 1)
        _check_minimum(self.max_turns, "reflection.max_turns", 1)
        _check_minimum(self.max_tokens, "reflection.max_tokens", 1)
        try:
            validate_fraction(self.min_confidence, "reflection.min_confidence")
        except ValidationError as error:
            raise ConfigurationError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """How jobs are run in the background."""

    #: Whether a session runs the jobs that it requests; otherwise `acms worker` must run somewhere.
    enabled: bool = True
    #: Seconds for which an attempt holds a job before another worker may take it; extended while the attempt runs.
    lease_seconds: float = 30.0
    #: Maximum attempts of a job.
    max_attempts: int = 5
    #: Seconds between two searches of an idle worker for jobs that others requested.
    poll_seconds: float = 1.0
    #: Maximum jobs that the sessions of one storage handle run at a time.
    concurrency: int = 4

    def __post_init__(self) -> None:
        _check_minimum(self.lease_seconds, "worker.lease_seconds", 0.001)
        _check_minimum(self.max_attempts, "worker.max_attempts", 1)
        _check_minimum(self.poll_seconds, "worker.poll_seconds", 0.001)
        _check_minimum(self.concurrency, "worker.concurrency", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ACMSConfig:
    """The configuration of a session; the defaults suit most agents."""

    auto_detect_markers: bool = True
    #: Regular expressions by marker, matched at every line start (`^`); case is ignored.
    marker_patterns: Mapping[str, Sequence[str]] = field(default_factory=lambda: dict(_markers.PATTERNS))
    #: Boost by marker; built-in markers that are not named here keep their boost, and custom ones have 0.2.
    marker_weights: Mapping[str, float] = field(default_factory=dict)
    episodes: EpisodeBoundaryConfig = field(default_factory=EpisodeBoundaryConfig)
    recall: RecallConfig = field(default_factory=RecallConfig)
    reflection: ReflectionConfig = field(default_factory=ReflectionConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    retry: RetryConfig = field(default_factory=RetryConfig)
    #: The service's level of the policy; a namespace and a context may override it.
    compaction: CompactionPolicy = field(default_factory=CompactionPolicy)
    #: Seconds after which the content of a message that a summary replaces is deleted; None keeps it.
    retention_seconds: float | None = None
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    renders: RenderLogConfig = field(default_factory=RenderLogConfig)
    #: Called with every event after it happened; its exceptions are logged and have no other effect.
    on_event: Callable[[Event], Any] | None = None
    #: Stores the bytes of media inside a provider's message: `media(data, mime)` returns the reference that the log
    #: holds instead of them. The log never stores the bytes: with None it holds their hash.
    media: Callable[[bytes, str], str] | None = None
    #: Whether input is refused that is otherwise repaired: unknown fields, ill-formed text, values over a limit, empty
    #: messages, bytes of media without `media`.
    strict: bool = False

    def __post_init__(self) -> None:
        try:
            validate_markers(tuple(self.marker_patterns), "marker_patterns")
            validate_markers(tuple(self.marker_weights), "marker_weights")
        except ValidationError as error:
            raise ConfigurationError(str(error)) from error
        if self.retention_seconds is not None:
            _check_minimum(self.retention_seconds, "retention_seconds")
        if iscoroutinefunction(self.on_event):
            raise ConfigurationError("on_event must be a plain function: it is not awaited")
        if self.media is not None and (not callable(self.media) or iscoroutinefunction(self.media)):
            raise ConfigurationError("media must be a plain function of bytes and a type: it is not awaited")
        patterns: dict[str, Sequence[str]] = {}
        for marker, expressions in self.marker_patterns.items():
            patterns[str(marker)] = _validate_patterns(expressions, f"marker_patterns.{marker}")
        weights = dict(_markers.WEIGHTS)
        for marker, weight in self.marker_weights.items():
            _check_minimum(weight, f"marker_weights.{marker}")
            weights[str(marker)] = float(weight)
        object.__setattr__(self, "marker_patterns", patterns)
        object.__setattr__(self, "marker_weights", weights)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> ACMSConfig:
        """Read the configuration from environment variables such as ACMS_RECALL_TOKEN_BUDGET.

        The variables are ACMS_AUTO_DETECT_MARKERS, ACMS_STRICT, ACMS_PRIVACY_MODE, and ACMS_<GROUP>_<FIELD> for every
        number and switch of the nested values. Raises `ConfigurationError` for an unknown field or an invalid value.
        """
        environ = os.environ if environ is None else environ
        groups: dict[str, type[Any]] = {
            "EPISODES": EpisodeBoundaryConfig,
            "RECALL": RecallConfig,
            "CACHE": CacheConfig,
            "RETRY": RetryConfig,
            "COMPACTION": CompactionPolicy,
            "REFLECTION": ReflectionConfig,
            "WORKER": WorkerConfig,
            "PRIVACY": PrivacyConfig,
            "RENDERS": RenderLogConfig,
        }
        grouped: dict[str, dict[str, Any]] = {}
        top_level: dict[str, Any] = {}
        for name, text in environ.items():
            setting = name.removeprefix("ACMS_")
            group, _, field_name = setting.partition("_")
            field_name = field_name.lower()
            if name in ("ACMS_AUTO_DETECT_MARKERS", "ACMS_STRICT"):
                top_level[setting.lower()] = _parse_env_value(name, text, True)
            elif name == "ACMS_PRIVACY_MODE":
                grouped.setdefault(group, {})["mode"] = text.lower() or None
            elif name.startswith("ACMS_") and group in groups:
                default = getattr(groups[group](), field_name, "")
                if default is None:  # the field is a number without a limit
                    default = 0
                if not isinstance(default, int | float):
                    raise ConfigurationError(f"{name} is not a setting")
                grouped.setdefault(group, {})[field_name] = _parse_env_value(name, text, default)
        for group, settings in grouped.items():
            top_level[group.lower()] = groups[group](**settings)
        return cls(**top_level)


def _parse_env_value(name: str, text: str, default: float | bool) -> float | bool:
    """Parse the value of an environment variable as the type of its default: a switch or a number."""
    if isinstance(default, bool):
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise ConfigurationError(f"{name} must be true or false, was {text!r}")
    try:
        return type(default)(text)
    except ValueError as error:
        raise ConfigurationError(f"{name} must be a number, was {text!r}") from error
