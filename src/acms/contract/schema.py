"""The v0 contract between a caller (CEO) and the engine (ACS): requests, replies, errors, and provider responses.

docs/how-to/acs.md describes it; the JSON Schemas are in `acms/schemas`. Input is validated here, once; `to_wire` writes
JSON that conforms to the schemas.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from acms.contract.wire import (
    MAX_LIST_ITEMS,
    Fields,
    parse_choice,
    parse_text,
    serialize_noun,
)
from acms.errors import ValidationError
from acms.model import Json, Layer, Privacy
from acms.results import Ledger

__all__ = [
    "OBJECT",
    "Action",
    "Candidate",
    "Code",
    "ErrorEnvelope",
    "Experience",
    "Fragment",
    "KVPolicy",
    "Layer",
    "Lod",
    "Metrics",
    "Notice",
    "Option",
    "ProviderRequest",
    "ProviderResponse",
    "Purpose",
    "RenderReply",
    "RenderRequest",
    "RiskLevel",
    "Variant",
    "letters",
    "size",
]

VERSION = "v0"
MAX_SNIPPET_CHARS = 100_000
"""Most characters of one rendition of a candidate: it is a snippet, and one call of a counter reads all of it."""
MAX_NAMES = 1_000
"""Most entities, and most citations, of a candidate."""


class Lod(StrEnum):
    """Level of detail: a fact or a title, a shortened text or a summary, the full text."""

    MACRO = "macro"
    MICRO = "micro"
    ATOMIC = "atomic"

    @property
    def rank(self) -> int:
        """0 for macro, 1 for micro, 2 for atomic: more is more detailed."""
        return _RANK[self.value]


_RANK = {"macro": 0, "micro": 1, "atomic": 2}


class Purpose(StrEnum):
    """The purpose of a session's candidate; other sources state none."""

    ANSWER = "answer"
    FILL = "fill"


class RiskLevel(StrEnum):
    """The cost of a wrong or incomplete answer."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Code(StrEnum):
    """Every code of an error or a warning: a closed set, so that callers can switch on it."""

    PROVIDER_TIMEOUT = "PROVIDER_TIMEOUT"
    PROVIDER_ERROR = "PROVIDER_ERROR"
    PROVIDER_UNAVAILABLE = "PROVIDER_UNAVAILABLE"
    ALL_PROVIDERS_FAILED = "ALL_PROVIDERS_FAILED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    BUDGET_TOO_SMALL = "BUDGET_TOO_SMALL"
    PRIVACY_VIOLATION = "PRIVACY_VIOLATION"
    INVALID_REQUEST = "INVALID_REQUEST"
    INTERNAL = "INTERNAL"
    # warnings
    PROJECT_EMPTY = "PROJECT_EMPTY"
    PARTIAL_DATA = "PARTIAL_DATA"
    LOW_COVERAGE = "LOW_COVERAGE"
    L1_EXPANSION = "L1_EXPANSION"
    PRIVACY_BLOCKED = "PRIVACY_BLOCKED"
    REDACTED = "REDACTED"
    TRUNCATED_BY_BUDGET = "TRUNCATED_BY_BUDGET"


class Action(StrEnum):
    """The actions that a caller may take after an error (the published catalogue)."""

    RETRY_WITH_REDUCED_SCOPE = "retry_with_reduced_scope"
    EXPLICIT_L1_EXPANSION = "explicit_l1_expansion"
    RETURN_L4_ONLY = "return_l4_only"
    RETRY_SAME = "retry_same"
    RETURN_MINIMAL = "return_minimal"
    SKIP_EXPERIENCE_PATH = "skip_experience_path"

    @classmethod
    def of(cls, value: object) -> Action:
        """Return an action by its name; `expand_l1` is another name of `explicit_l1_expansion`."""
        return cls.EXPLICIT_L1_EXPANSION if value == "expand_l1" else parse_choice(cls, value, "action")


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderRequest:
    """A request for context for an intent, within budgets (`render_request.v0`)."""

    #: Identity of this message, a UUID; a retry has a new one and the same `request_id`.
    id: str
    #: Echoed everywhere.
    request_id: str
    intent: str
    #: Hard cap of the tokens of all fragments.
    tokens_max: int
    #: Soft deadline of the whole answer, in milliseconds.
    time_ms: float
    risk: RiskLevel = RiskLevel.MEDIUM
    privacy: Privacy = Privacy.ALLOW
    #: Most units of experience; None leaves the number to the engine.
    experience_top_k: int | None = None
    #: Stated entities, of the lenient form; None if they are to be extracted from the intent.
    entities: tuple[str, ...] | None = None

    @classmethod
    def of(cls, data: object, *, lenient: bool = False) -> RenderRequest:
        """Parse the JSON of a request; raise `ValidationError` with the name of an invalid field.

        With `lenient` the intent may be an object `{goal, entities}` and unknown fields are ignored.
        """
        if isinstance(data, RenderRequest):
            return data
        body = Fields(data, "", None if lenient else _REQUEST)
        if body.value("version", None) != VERSION:
            raise ValidationError(f"must be {VERSION!r}", field="version")
        budgets = Fields(body.value("budgets"), "budgets", None if lenient else _BUDGETS)
        risk = RiskLevel.MEDIUM
        if body.value("risk_profile", None) is not None:
            profile = Fields(body.value("risk_profile"), "risk_profile", None if lenient else ("level",))
            risk = profile.choice(RiskLevel, "level")
        intent, entities = _parse_intent(body.value("intent"), lenient)
        top_k = budgets.value("experience_top_k", None)
        return cls(
            id=_parse_uuid(body.text("id", max_chars=64)),
            request_id=body.text("request_id", min_chars=1, max_chars=512),
            intent=intent,
            tokens_max=math.floor(budgets.number("tokens_max", minimum=0, maximum=100_000_000)),
            time_ms=budgets.number("time_ms", greater_than=0, maximum=86_400_000),
            risk=risk,
            privacy=body.choice(Privacy, "privacy_mode", "allow"),
            experience_top_k=None if top_k is None else budgets.integer("experience_top_k"),
            entities=entities,
        )

    def to_wire(self) -> dict[str, Json]:
        """Write the request as JSON."""
        budgets: dict[str, Json] = {"tokens_max": self.tokens_max, "time_ms": self.time_ms}
        if self.experience_top_k is not None:
            budgets["experience_top_k"] = self.experience_top_k
        return {
            "version": VERSION,
            "id": self.id,
            "intent": self.intent,
            "budgets": budgets,
            "risk_profile": {"level": self.risk.value},
            "privacy_mode": self.privacy.value,
            "request_id": self.request_id,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Another way to write a candidate: more or less detailed."""

    lod: Lod
    text: str
    #: Recounted by the engine before it is relied on.
    cost_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Something a provider offers."""

    #: Stable: the same thing has the same id in every reply.
    id: str
    source: Layer
    lod: Lod = Lod.MICRO
    #: None under privacy `block`.
    text: str | None = None
    entities: tuple[str, ...] = ()
    #: As claimed; recounted when there is a text.
    cost_tokens: int = 0
    #: Aware UTC; None when unknown: recency 0.
    timestamp: datetime | None = None
    citations: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()
    #: Relevance by the provider's own judgement, in [0, 1]; None if it states none.
    relevance: float | None = None
    privacy: Privacy = Privacy.ALLOW
    #: Set by sessions: "answer" is never below the cutoff, "fill" only uses tokens that others leave; not on the wire.
    purpose: Purpose | None = None
    #: Set by sessions: it is external text or derived from it; not on the wire.
    external: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """A piece of context for the model, at one level of detail."""

    id: str
    lod: Lod
    #: None under privacy `block`.
    text: str | None
    entities: tuple[str, ...] = ()
    cost_tokens: int
    source: Layer = Layer.L2

    def to_wire(self, *, extended: bool = False) -> dict[str, Json]:
        """Write the fragment as JSON."""
        return serialize_noun(self) if extended else serialize_noun(self, source=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVPolicy:
    """Advice for the caller's cache: keys to keep, to compress, to evict (`kv_policy` of a reply)."""

    pin: tuple[str, ...] = ()
    compress: tuple[str, ...] = ()
    evict: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: object) -> KVPolicy:
        """Parse a policy from the wire; a fourth name is refused, keys may repeat and conflict."""
        if isinstance(data, KVPolicy):
            return data
        body = Fields(data, "kv_policy", ("pin", "compress", "evict"))
        return cls(
            pin=body.strings("pin", ()),
            compress=body.strings("compress", ()),
            evict=body.strings("evict", ()),
        )

    def to_wire(self) -> dict[str, Json]:
        """Write the policy as JSON, all three lists."""
        return serialize_noun(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The cost and the coverage of a reply."""

    #: Sum over its fragments.
    used_tokens: int
    #: Milliseconds of choosing, without waiting for providers.
    planner_ms: float
    #: Share of the requested entities that the fragments cover; None if none were requested.
    coverage_entities: float | None = None

    def to_wire(self) -> dict[str, Json]:
        """Write the metrics as JSON."""
        return serialize_noun(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A warning about a degraded reply or provider response."""

    code: str
    message: str

    def to_wire(self) -> dict[str, Json]:
        """Write the warning as JSON."""
        return serialize_noun(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An action that could help after an error."""

    action: Action
    hint: str = ""

    def to_wire(self) -> dict[str, Json]:
        """Write the option as JSON."""
        return serialize_noun(self, "hint")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEnvelope:
    """The error of a reply without context, and the options to recover."""

    code: Code
    message: str
    retriable: bool
    #: From 1; no retry is offered when it equals `max_attempts`.
    attempt: int = 1
    max_attempts: int = 2
    options: tuple[Option, ...] = ()

    def to_wire(self) -> dict[str, Json]:
        """Write the envelope as JSON."""
        return serialize_noun(self) | {"options": [option.to_wire() for option in self.options]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """A unit of experience that was found (`slices.experience`)."""

    unit_id: str
    score: float
    summary: str | None = None
    refs: tuple[str, ...] = ()
    reason: str = ""

    def to_wire(self) -> dict[str, Json]:
        """Write the unit as JSON."""
        return serialize_noun(self, "refs", "reason")


def _empty_ledger() -> Ledger:
    return Ledger(dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderReply:
    """The answer to a request: fragments within the budget, or an error (`render_context_reply.v0`)."""

    request_id: str
    #: None when there is only an error.
    fragments: tuple[Fragment, ...] | None = None
    kv_policy: KVPolicy | None = None
    metrics: Metrics | None = None
    warnings: tuple[Notice, ...] = ()
    error: ErrorEnvelope | None = None
    experience: tuple[Experience, ...] = ()
    #: The verdict on each candidate by id; never on the wire.
    ledger: Ledger = field(default_factory=_empty_ledger, compare=False, repr=False)

    def to_wire(self, *, extended: bool = False) -> dict[str, Json]:
        """Return the reply as JSON that is valid against the schema of v0.

        `extended` adds the source of each fragment and the units of experience, which v0 does not have.
        """
        wire: dict[str, Json] = {"request_id": self.request_id}
        if self.fragments is not None:
            wire["fragments"] = [fragment.to_wire(extended=extended) for fragment in self.fragments]
        if self.kv_policy is not None:
            wire["kv_policy"] = self.kv_policy.to_wire()
        if self.metrics is not None:
            wire["metrics"] = self.metrics.to_wire()
        if self.error is not None:
            wire["error"] = self.error.to_wire()
        if self.warnings:
            wire["warnings"] = [warning.to_wire() for warning in self.warnings]
        if extended and self.experience:
            wire["slices"] = {"experience": [unit.to_wire() for unit in self.experience]}
        return wire


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRequest:
    """A request of the engine to one provider (`provider_request.v0`)."""

    request_id: str
    query: str
    entities: tuple[str, ...] = ()
    top_k: int = 20
    #: This provider's slice of the time.
    deadline_ms: int = 300
    #: True when L1 may be used.
    expansion: bool = False
    #: The effective mode, which must be honoured.
    privacy: Privacy = Privacy.ALLOW

    def to_wire(self) -> dict[str, Json]:
        """Write the request as JSON, all seven fields."""
        return serialize_noun(self, privacy="privacy_mode")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderResponse:
    """The response of a provider (`provider_response.v0`)."""

    request_id: str
    candidates: tuple[Candidate, ...]
    latency_ms: float = 0.0
    warnings: tuple[Notice, ...] = ()
    #: True when the deadline cut the search short.
    partial: bool = False

    @classmethod
    def of(cls, data: object) -> ProviderResponse:
        """Parse the JSON of a response; raise `ValidationError` with the name of an invalid field."""
        body = Fields(data)
        candidates = body.objects(
            "candidates", expected=f"a list of at most {MAX_LIST_ITEMS} candidates", max_items=MAX_LIST_ITEMS
        )
        warnings = body.objects("warnings", (), "a list of warnings", max_items=MAX_LIST_ITEMS)
        partial = body.value("partial", False)
        if not isinstance(partial, bool):
            raise ValidationError("must be true or false", field="partial")
        return cls(
            request_id=body.text("request_id", min_chars=1, max_chars=512),
            candidates=tuple(parse_candidate(item, path) for item, path in candidates),
            latency_ms=body.number("latency_ms", 0, minimum=0),
            warnings=tuple(_parse_notice(item, path) for item, path in warnings),
            partial=partial,
        )


# ── parsing ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_REQUEST = ("version", "id", "intent", "budgets", "risk_profile", "privacy_mode", "request_id")
_BUDGETS = ("tokens_max", "time_ms", "experience_top_k")
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\Z", re.IGNORECASE)


def _parse_uuid(text: str) -> str:
    if not _UUID.match(text):
        raise ValidationError("must be a UUID", field="id")
    return text.lower()


def _parse_intent(value: object, lenient: bool) -> tuple[str, tuple[str, ...] | None]:
    """Return the goal of an intent and its stated entities, None if it states none."""
    if lenient and isinstance(value, Mapping):
        body = Fields(value, "intent")
        goal = body.text("goal", min_chars=1, max_chars=100_000)
        is_stated = body.value("entities", None) is not None
        return goal, body.strings("entities") if is_stated else None
    intent = parse_text(value, "intent", min_chars=1, max_chars=100_000)
    if not intent.strip():
        raise ValidationError("must not be blank", field="intent")
    return intent, None


def parse_candidate(data: object, path: str) -> Candidate:
    """Parse a candidate of a response; `path` is its path in the response, for errors."""
    body = Fields(data, path)
    text = body.value("text", None)
    timestamp = body.value("timestamp", None)
    relevance = body.value("relevance", None)
    variants = body.objects("variants", (), f"a list of at most {len(Lod)} variants", max_items=len(Lod))
    return Candidate(
        id=body.text("id", min_chars=1, max_chars=512),
        source=body.choice(Layer, "source"),
        lod=body.choice(Lod, "lod", Lod.MICRO),
        text=None if text is None else body.text("text", max_chars=MAX_SNIPPET_CHARS),
        entities=body.strings("entities", max_items=MAX_NAMES),
        cost_tokens=body.integer("cost_tokens"),
        timestamp=None if timestamp is None else _parse_moment(timestamp, f"{path}.timestamp"),
        citations=body.strings("citations", (), max_items=MAX_NAMES),
        variants=tuple(_parse_variant(item, item_path) for item, item_path in variants),
        relevance=None if relevance is None else float(body.number("relevance", minimum=0, maximum=1)),
        privacy=body.choice(Privacy, "privacy", Privacy.ALLOW),
    )


def _parse_variant(data: object, path: str) -> Variant:
    body = Fields(data, path)
    return Variant(
        lod=body.choice(Lod, "lod"),
        text=body.text("text", max_chars=MAX_SNIPPET_CHARS),
        cost_tokens=body.integer("cost_tokens", 0),
    )


def _parse_moment(value: object, field: str) -> datetime:
    """Return a time in UTC from a `datetime` or from a text in RFC 3339; both must have a time zone."""
    moment = value
    if not isinstance(moment, datetime):
        text = parse_text(value, field, max_chars=64)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise ValidationError("must be a date and time of RFC 3339", field=field) from error
    if moment.tzinfo is None:
        raise ValidationError("must have a time zone", field=field)
    return moment.astimezone(UTC)


def _parse_notice(data: object, path: str) -> Notice:
    body = Fields(data, path)
    return Notice(code=body.text("code", max_chars=128), message=body.text("message", "", max_chars=4096))


OBJECT = 200
"""Characters added to the size of each candidate for everything except its texts."""


def size(one: Candidate) -> int:
    """Return the approximate size of a candidate, in characters."""
    return OBJECT + letters(one)


def letters(one: Candidate) -> int:
    """Return the number of characters in all renditions of a candidate."""
    return len(one.text or "") + sum(len(variant.text) for variant in one.variants)
