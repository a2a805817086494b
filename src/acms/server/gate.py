"""Who may come in: the caller's key, its tenant and what it is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from acms.errors import AuthenticationError
from acms.server.config import ServerConfig
from acms.server.operation import Operation, Principal, Scope

__all__ = ["Gate"]


class Gate:
    """Admits requests to operations."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._everybody = Principal(tenant=config.tenant, scopes=frozenset(Scope))

    def visit(self, method: str, headers: Mapping[str, str]) -> Sequence[tuple[bytes, bytes]]:
        """Check by which name and from which page the service is called; return header fields for the answer."""
        return ()

    async def admit(self, operation: Operation, headers: Mapping[str, str], address: str) -> Principal:
        """Return who asks; `AuthenticationError`, `PermissionDeniedError` or `RateLimitError` when it may not."""
        if self._config.auth == "off" or operation.scope is None:
            return self._everybody
        raise AuthenticationError
