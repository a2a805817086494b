"""Policy: when a log is compacted, and how much of it stays verbatim.

A policy is resolved field by field from three levels: a value of the context wins over one of the namespace, and that
over one of the service (decision 11). Appends and explicit calls apply it; reads never do.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from math import ceil, isfinite
from typing import Any, TypeAlias, cast

from acms.errors import ConflictError, LegalHoldError, SessionNotFoundError, ValidationError
from acms.log import validation
from acms.log.validation import NAMESPACE, validate_budget, validate_fraction, validate_integer
from acms.model import Context, ContextDraft, ContextQuery, Json
from acms.ports import StorageBackend

LEVELS = ("service", "namespace", "context")
"""The levels at which a policy may be set; a later one overrides an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """When a log is compacted, and what stays as it is."""

    #: Compact when the active tokens reach this share of the budget.
    threshold: float = 0.8
    #: The newest messages that are never summarised.
    preserve_recent_count: int = 10
    #: Whether an append may ask for a compaction; an explicit one always works.
    enabled: bool = True
    #: Tokens that the active part of the log should stay below; None: no append ever asks for a compaction.
    budget: int | None = None
    #: Share of the active tokens, in [0, 1], that stays verbatim; the newest messages count towards it.
    keep: float = 0.0
    #: Maximum tokens of a summary; None: a fifth of the tokens it replaces.
    summary_tokens: int | None = None
    #: Tokens of the smallest prompt that shows a summary: the shortest text of a summary has at most a tenth of them.
    smallest_prompt: int = 4_000

    def __post_init__(self) -> None:
        validate_fraction(self.threshold, "threshold")
        validate_integer(self.preserve_recent_count, "preserve_recent_count")
        validation.require_flag(self.enabled, "enabled")
        validate_fraction(self.keep, "keep")
        if self.budget is not None:
            validate_budget(self.budget, "budget", minimum=1)
        if self.summary_tokens is not None:
            validate_integer(self.summary_tokens, "summary_tokens", minimum=1)
        validate_integer(self.smallest_prompt, "smallest_prompt", minimum=1)

    def to_json(self) -> dict[str, Json]:
        """Return every field by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


SERVICE = CompactionPolicy()
"""The policy of a service that configures none."""
FIELDS = tuple(field.name for field in fields(CompactionPolicy))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPolicy:
    """The policy that applies to one context, and the level from which each field comes."""

    policy: CompactionPolicy
    #: Seconds after which the content behind a summary is deleted; None: never.
    retention_seconds: float | None = None
    #: Whether a legal hold forbids that content is erased or expires.
    legal_hold: bool = False
    #: Field → "service", "namespace" or "context".
    levels: Mapping[str, str]


def merge_policy(stored: Mapping[str, Json], change: Mapping[str, Any]) -> dict[str, Json]:
    """Merge a partial policy into a stored one and check every field; None resets a field to the level above."""
    unknown = sorted(set(change) - set(FIELDS))
    if unknown:
        raise ValidationError(f"is not a field of a policy; fields: {', '.join(FIELDS)}", field=unknown[0])
    merged = {name: value for name, value in {**stored, **change}.items() if value is not None}
    CompactionPolicy(**merged)  # raises for an invalid value
    return merged


def _readable_fields(stored: object) -> dict[str, Any]:
    """Return the fields of a stored policy, or none if it is damaged, which only `verify` reports."""
    if not isinstance(stored, Mapping):
        return {}
    values = {name: value for name, value in cast("Mapping[str, Any]", stored).items() if name in FIELDS}
    try:
        CompactionPolicy(**values)
    except ValidationError:
        return {}
    return values


def is_compaction_due(policy: CompactionPolicy, active_tokens: int, added_tokens: int) -> bool:
    """Return whether an append shall request a compaction.

    `added_tokens` were added since the last request. A log that cannot be made shorter requests a compaction again when
    it has grown by a tenth of the budget, and not with every message.
    """
    if not policy.enabled or policy.budget is None:
        return False
    return active_tokens >= policy.threshold * policy.budget and added_tokens >= 0.1 * policy.budget


POLICY = "policy"
RETENTION = "retention_seconds"
HOLD = "legal_hold"
PRIVATE = "private"

Decide: TypeAlias = Callable[[Mapping[str, Json]], Mapping[str, Json]]
"""A function that returns the changes to make to settings, given the current ones."""


async def resolve_policy(
    storage: StorageBackend,
    context: str | None = None,
    *,
    namespace: str,
    service: CompactionPolicy = SERVICE,
    service_retention: float | None = None,
) -> ResolvedPolicy:
    """Return the policy that applies to a context, or to a namespace as a whole if `context` is None.

    `service` and `service_retention` are the values of the configuration.
    """
    own_settings = {} if context is None else (await storage.context(context)).settings
    shared_settings = await namespace_settings(storage, namespace)
    levels = dict.fromkeys((*FIELDS, RETENTION, HOLD), LEVELS[0])
    policy = service
    for level, settings in zip(LEVELS[1:], (shared_settings, own_settings), strict=True):
        overrides = _readable_fields(settings.get(POLICY, {}))
        policy = replace(policy, **overrides)
        levels.update(dict.fromkeys(overrides, level))
    if RETENTION in shared_settings:
        levels[RETENTION] = LEVELS[1]
    if own_settings.get(HOLD):
        levels[HOLD] = LEVELS[2]
    if shared_settings.get(HOLD):
        levels[HOLD] = LEVELS[1]
    return ResolvedPolicy(
        policy=policy,
        retention_seconds=shared_settings.get(RETENTION, service_retention),
        legal_hold=levels[HOLD] != LEVELS[0],
        levels=levels,
    )


async def change_context_policy(
    storage: StorageBackend,
    context: str,
    changes: Mapping[str, Any],
    *,
    service: CompactionPolicy,
    service_retention: float | None = None,
) -> ResolvedPolicy:
    """Change fields of a context's policy and return the resolved one; `ValidationError` names an invalid field."""
    updated = await update_settings(storage, context, _policy_decider(changes))
    return await resolve_policy(
        storage,
        context,
        namespace=updated.namespace,
        service=service,
        service_retention=service_retention,
    )


async def change_namespace(storage: StorageBackend, namespace: str, changes: Mapping[str, Any]) -> None:
    """Change fields of a namespace's policy, its retention or its legal hold; None resets one.

    The changes are made in one commit. The namespace needs no session.
    """
    fields = dict(changes)
    rules: dict[str, Json] = {}
    if RETENTION in fields:
        seconds = fields.pop(RETENTION)
        rules[RETENTION] = None if seconds is None else _round_up_retention(seconds)
    if HOLD in fields:
        held = fields.pop(HOLD)
        rules[HOLD] = True if held is not None and validation.require_flag(held, HOLD) else None

    def decide(settings: Mapping[str, Json]) -> Mapping[str, Json]:
        return {**rules, **_policy_decider(fields)(settings)} if fields else rules

    context = await _namespace_context(storage, namespace)
    await update_settings(storage, context.id, decide)


async def set_retention(storage: StorageBackend, namespace: str, seconds: float | None) -> None:
    """Set after how many seconds the content behind summaries is deleted; None uses the default of the service."""
    await change_namespace(storage, namespace, {RETENTION: seconds})


async def set_hold(storage: StorageBackend, namespace: str, held: bool) -> None:
    """Forbid, or allow again, that content of a namespace expires or is erased: a legal hold."""
    await change_namespace(storage, namespace, {HOLD: held})


def _round_up_retention(seconds: float) -> int:
    """Validate a retention and return it in whole seconds.

    It is rounded up: half a second must not become zero, which deletes at once.
    """
    if isinstance(seconds, float):
        if not isfinite(seconds):
            raise ValidationError(f"must be a number of seconds, was {seconds}", field=RETENTION)
        seconds = ceil(seconds)
    return validation.validate_integer(seconds, RETENTION)


async def set_private(storage: StorageBackend, context: str, private: bool) -> Context:
    """Hide the messages of a session from the other sessions of its namespace, or share them again."""
    validation.require_flag(private, PRIVATE)
    return await update_settings(storage, context, lambda _: {PRIVATE: True if private else None})


async def refuse_under_hold(storage: StorageBackend, contexts: Iterable[Context]) -> None:
    """Raise `LegalHoldError` if one of some contexts, or the namespace of one, is under legal hold."""
    held = await find_legal_hold(storage, contexts)
    if held is None:
        return
    context, level = held
    options: tuple[str, ...] = ()
    if level == LEVELS[1]:
        command = ["acms", "compact", "policy", "set", "--no-hold"]
        if context.namespace != validation.UNNAMED:
            command += ["--namespace", context.namespace]
        options = (f"{shlex.join(command)} lifts it",)
    raise LegalHoldError(f"{describe_hold(held)}: nothing was erased", options=options)


async def find_legal_hold(storage: StorageBackend, contexts: Iterable[Context]) -> tuple[Context, str] | None:
    """Return the first of some contexts that is under legal hold and the level of the hold, or None."""
    by_namespace: dict[str, Context] = {}
    for context in contexts:
        if context.settings.get(HOLD):
            return context, LEVELS[2]
        by_namespace.setdefault(context.namespace, context)
    for namespace, context in sorted(by_namespace.items()):
        if (await namespace_settings(storage, namespace)).get(HOLD):
            return context, LEVELS[1]
    return None


async def find_held_contexts(storage: StorageBackend, namespace: str) -> set[str]:
    """Return the ids of the contexts of a namespace that are under a legal hold of their own."""
    held_ids: set[str] = set()
    cursor: str | None = None
    while True:
        query = ContextQuery(namespace=namespace, where={HOLD: True}, after=cursor, limit=500)
        page = await storage.contexts(query)
        held_ids.update(context.id for context in page.items)
        if page.next_after is None:
            return held_ids
        cursor = page.next_after


def describe_hold(held: tuple[Context, str]) -> str:
    """Return the text that says what is under legal hold."""
    context, level = held
    if level == LEVELS[1]:
        return f"the namespace {context.namespace!r} is under legal hold"
    return f"the context {context.id} is under legal hold"


async def namespace_settings(storage: StorageBackend, namespace: str) -> Mapping[str, Json]:
    """Return the settings of a namespace: its policy, retention and hold; empty if none were ever set."""
    try:
        return (await storage.context(NAMESPACE, namespace=namespace)).settings
    except SessionNotFoundError:
        return {}


async def _namespace_context(storage: StorageBackend, namespace: str) -> Context:
    """Return the context that holds the settings of a namespace; create it if it does not exist."""
    validation.validate_namespace(namespace)
    draft = ContextDraft(key=NAMESPACE, namespace=namespace, counter="none", created_at=datetime.now(UTC))
    return await storage.create(draft)


def _policy_decider(changes: Mapping[str, Any]) -> Decide:
    def decide(settings: Mapping[str, Json]) -> Mapping[str, Json]:
        return {POLICY: merge_policy(_readable_fields(settings.get(POLICY)), changes) or None}

    return decide


async def update_settings(storage: StorageBackend, context: str, decide: Decide) -> Context:
    """Change settings based on their current values; decide again after a concurrent change."""
    while True:
        current = await storage.context(context)
        change = decide(current.settings)  # outside the try: its own errors are not retried
        try:
            return await storage.settings(current.id, change, rev=current.settings_rev)
        except ConflictError:
            continue
