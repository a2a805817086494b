"""A log as it was: requests that name a version, or the number of a message, read a view of the session at it."""

from __future__ import annotations

from acms.errors import ValidationError
from acms.model import Kind
from acms.protocols import StorageBackend
from acms.server.stores import Tenant
from acms.view import View

__all__ = ["moment", "view"]


async def view(tenant: Tenant, context: str, at_version: int | None, at_message: int | None) -> View:
    """Return the session of a context, or what it was at a version or right after a message."""
    session = await tenant.session(context)
    if at_version is None and at_message is None:
        return session
    return session.at(await moment(tenant.handle, context, at_version, at_message))


async def moment(
    storage: StorageBackend, context: str, at_version: int | None, at_message: int | None
) -> int:
    """Return the version that is meant; `ValidationError` when both are given, or the log does not go that far."""
    if at_version is not None:
        if at_message is not None:
            raise ValidationError("give atVersion or atMessage, not both", field="atMessage")
        return at_version
    assert at_message is not None
    if at_message == 0:
        return 0
    head = await storage.head(context)
    if at_message > head.messages:
        raise ValidationError(f"the log has {head.messages} messages", field="atMessage")
    low, high = at_message, head.version  # a version is never below the number of its message
    while low < high:
        middle = (low + high) // 2
        newest = await storage.read(context, at=middle, kinds=(Kind.MESSAGE,), newest=1)
        if newest and (newest[-1].position or 0) >= at_message:
            high = newest[-1].version
            if newest[-1].position == at_message:
                break
        else:
            low = middle + 1
    return high
