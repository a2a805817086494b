"""All operations of the service, in the order of the document."""

from __future__ import annotations

from acms.server import (
    compacting,
    contexts,
    entries,
    facts,
    forking,
    history,
    jobs,
    messages,
    moving,
    pins,
    prompting,
    recalling,
    render,
    service,
    trail,
)
from acms.server.operation import Operation

__all__ = ["OPERATIONS"]

OPERATIONS: tuple[Operation, ...] = (
    *contexts.operations.all,
    *messages.operations.all,
    *history.operations.all,
    *forking.operations.all,
    *recalling.operations.all,
    *prompting.operations.all,
    *facts.operations.all,
    *entries.operations.all,
    *compacting.operations.all,
    *jobs.operations.all,
    *pins.operations.all,
    *moving.operations.all,
    *render.operations.all,
    *trail.operations.all,
    *service.operations.all,
)
