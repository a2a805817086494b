"""The caller of a request: a key or a subject, with its tenant, scopes and namespaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["EVERYWHERE", "Access", "Action", "Principal", "Scope"]


class Scope(StrEnum):
    """What a key may be used for."""

    READ = "context:read"
    APPEND = "context:append"
    FORK = "context:fork"
    COMPACT = "context:compact"
    MEMORY_READ = "memory:read"
    MEMORY_WRITE = "memory:write"
    ERASE = "erase"
    ADMIN = "admin:config"


class Action(StrEnum):
    """What a namespace is shared for."""

    READ = "read"
    WRITE = "write"
    SHARE = "share"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The namespaces that a principal may use, with its actions in each; None allows everything in the tenant."""

    granted: Mapping[str, frozenset[Action]] | None = None

    def allows(self, namespace: str, action: Action = Action.READ) -> bool:
        """Return whether an action is allowed in a namespace."""
        return self.granted is None or action in self.granted.get(namespace, ())

    @staticmethod
    def with_grants(own_namespaces: Iterable[str], granted: Mapping[str, frozenset[Action]]) -> Access:
        """Return the access of a principal with some namespaces of its own and grants on others."""
        return Access(granted={**granted, **dict.fromkeys(own_namespaces, frozenset(Action))})


EVERYWHERE = Access()


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The caller, taken from the key or the token alone, never from other parts of the request."""

    #: Id of the key, or `oidc:` and the subject of a token; "" when neither is required.
    key: str = ""
    tenant: str
    scopes: frozenset[Scope]
    #: The name under which namespaces are shared with it; that of a key stays when the key is rotated.
    name: str = ""
    #: Its own namespaces; it also sees those shared with it. None: it sees all namespaces of its tenant.
    namespaces: frozenset[str] | None = None
    access: Access = field(default=EVERYWHERE)
