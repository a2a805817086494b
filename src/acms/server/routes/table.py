"""All operations of the service, in the order of the document."""

from __future__ import annotations

from acms.server.operation import Operation
from acms.server.routes import (
    acs,
    audit_log,
    citations,
    compaction,
    contexts,
    entries,
    events,
    export,
    facts,
    forks,
    grants,
    health,
    history,
    jobs,
    messages,
    pins,
    prompts,
    recall,
    renders,
    webhooks,
)

__all__ = ["OPERATIONS"]

OPERATIONS: tuple[Operation, ...] = (
    *contexts.operations.all,
    *messages.operations.all,
    *history.operations.all,
    *events.operations.all,
    *forks.operations.all,
    *recall.operations.all,
    *prompts.operations.all,
    *citations.operations.all,
    *renders.operations.all,
    *facts.operations.all,
    *entries.operations.all,
    *compaction.operations.all,
    *jobs.operations.all,
    *pins.operations.all,
    *export.operations.all,
    *grants.operations.all,
    *acs.operations.all,
    *webhooks.operations.all,
    *audit_log.operations.all,
    *health.operations.all,
)
