"""Policies and holds: what the service, a namespace and a context say about compaction and retention.

The service's level is the configuration of the process. A namespace keeps its own in the settings of an ordinary
context with a reserved name, so that no store needs another table; a context keeps its own in its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

from acms.errors import ConflictError, SessionNotFoundError
from acms.log import validation
from acms.log.policy import CompactionPolicy, ResolvedPolicy, changed, resolved
from acms.log.validation import NAMESPACE
from acms.model import Context, ContextDraft, Json
from acms.ports import StorageBackend

POLICY = "policy"
RETENTION = "retention_seconds"
HOLD = "legal_hold"

Decide: TypeAlias = Callable[[Mapping[str, Json]], Mapping[str, Json]]
"""Says what to change in settings, given what they are."""


async def resolve(
    storage: StorageBackend, context: str | None, *, namespace: str, service: CompactionPolicy
) -> ResolvedPolicy:
    """Return the policy in force of a context, or of one that does not exist yet."""
    own = {} if context is None else (await storage.context(context)).settings.get(POLICY, {})
    return resolved(service, (await namespace_settings(storage, namespace)).get(POLICY, {}), own)


async def change(
    storage: StorageBackend, context: str, changes: Mapping[str, Any], *, service: CompactionPolicy
) -> ResolvedPolicy:
    """Change fields of a context's policy and return the one in force; `ValidationError` names a wrong field."""
    found = await update(storage, context, _policy(changes))
    return await resolve(storage, context, namespace=found.namespace, service=service)


async def change_namespace(
    storage: StorageBackend, namespace: str, changes: Mapping[str, Any]
) -> Mapping[str, Json]:
    """Change fields of a namespace's policy and return all that it says."""
    context = await _namespace(storage, namespace)
    found = await update(storage, context.id, _policy(changes))
    return dict(found.settings.get(POLICY, {}))


async def set_retention(storage: StorageBackend, namespace: str, seconds: float | None) -> None:
    """Set after how many seconds content that a summary stands for is deleted; None leaves it to the service."""
    context = await _namespace(storage, namespace)
    checked = None if seconds is None else validation.whole(int(seconds), RETENTION)
    await update(storage, context.id, _fixed({RETENTION: checked}))


async def set_hold(storage: StorageBackend, namespace: str, held: bool) -> None:
    """Forbid, or allow again, that anything of a namespace expires or is erased."""
    context = await _namespace(storage, namespace)
    await update(storage, context.id, _fixed({HOLD: True if held else None}))


async def namespace_settings(storage: StorageBackend, namespace: str) -> Mapping[str, Json]:
    """Return what a namespace says: its policy, retention and hold; nothing when it was never told."""
    try:
        return (await storage.context(NAMESPACE, namespace=namespace)).settings
    except SessionNotFoundError:
        return {}


async def _namespace(storage: StorageBackend, namespace: str) -> Context:
    draft = ContextDraft(key=NAMESPACE, namespace=namespace, counter="none", created_at=datetime.now(UTC))
    return await storage.create(draft)


def _policy(changes: Mapping[str, Any]) -> Decide:
    def decide(old: Mapping[str, Json]) -> Mapping[str, Json]:
        return {POLICY: changed(old.get(POLICY, {}), changes) or None}

    return decide


def _fixed(change: Mapping[str, Json]) -> Decide:
    def decide(_: Mapping[str, Json]) -> Mapping[str, Json]:
        return change

    return decide


async def update(storage: StorageBackend, context: str, decide: Decide) -> Context:
    """Change settings by what they are; decides again when somebody else was first."""
    while True:
        found = await storage.context(context)
        change = decide(found.settings)  # outside: what it refuses is not decided again
        try:
            return await storage.settings(found.id, change, rev=found.settings_rev)
        except ConflictError:
            continue
