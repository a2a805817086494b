"""All operations of the service, in the order of the document."""

from __future__ import annotations

from acms.server import contexts, forking, history, messages, service
from acms.server.operation import Operation

__all__ = ["OPERATIONS"]

OPERATIONS: tuple[Operation, ...] = (
    *contexts.operations.all,
    *messages.operations.all,
    *history.operations.all,
    *forking.operations.all,
    *service.operations.all,
)
