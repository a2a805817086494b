"""Admission of requests: host name, origin, API key or access token, scope and rate limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic

from acms.errors import AuthenticationError, PermissionDeniedError, RateLimitError, UnreachableError
from acms.server.config import ServerConfig
from acms.server.grants import Grants
from acms.server.keys import Keys
from acms.server.oidc import Tokens
from acms.server.operation import Operation, Principal, Scope
from acms.server.principal import EVERYWHERE, Access
from acms.server.rates import Buckets, network_of_address

__all__ = ["Gate"]

_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_READS = frozenset({"GET", "HEAD"})
_ALLOWED: tuple[tuple[bytes, bytes], ...] = (
    (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE"),
    (
        b"access-control-allow-headers",
        b"authorization, content-type, idempotency-key, if-match, last-event-id, prefer, x-request-id,"
        b" mcp-protocol-version, mcp-method, mcp-name",
    ),
    (b"access-control-max-age", b"600"),
)
_EXPOSED = b"etag, location, preference-applied, retry-after, x-request-id"


class Gate:
    """Admits requests to operations."""

    def __init__(
        self,
        config: ServerConfig,
        keys: Keys,
        grants: Grants,
        tokens: Tokens | None = None,
        *,
        elapsed: Callable[[], float] = monotonic,
    ) -> None:
        limits = config.limits
        self._keys = keys
        self._grants = grants
        self._tokens = tokens
        self._ways = ("Authorization: Bearer acms_<id>_<secret>",)
        if tokens is not None:
            self._ways += ("Authorization: Bearer, and an access token of the identity provider",)
        self._open = config.auth == "off"
        self._writes = config.writes
        #: Without keys, the check of the host name keeps out web pages whose domain resolves to this machine.
        self._hosts = frozenset(_normalize_host(host) for host in config.hosts)
        if self._open and not self._hosts:
            self._hosts = _LOCAL | {_normalize_host(config.host)}
        self._origins = frozenset(config.origins)
        self._everybody = Principal(
            tenant=config.tenant, scopes=frozenset(Scope) if self._open else frozenset()
        )
        self._by_key = Buckets(limits.key_rate, limits.key_burst, clock=elapsed)
        self._by_tenant = Buckets(limits.tenant_rate, limits.tenant_burst, clock=elapsed)
        self._strangers = Buckets(limits.stranger_rate, limits.stranger_burst, clock=elapsed)

    def check_origin(self, method: str, headers: Mapping[str, str]) -> Sequence[tuple[bytes, bytes]]:
        """Check the host name and the origin of a request, and return the CORS headers for the answer.

        Raises `PermissionDeniedError` for an unknown host name, and for a write from a web page of an unknown origin.
        Reads from such a page are answered, but without CORS headers, so its browser does not show it the answer.
        """
        host = headers.get("host", "")
        if self._hosts and _normalize_host(_strip_port(host)) not in self._hosts:
            raise PermissionDeniedError(
                "the service does not answer to this host name",
                options=("call it by a name of this machine", "acms serve --name NAME"),
            )
        origin = headers.get("origin")
        if origin is None:
            return ()
        if origin not in self._origins:
            if method in _READS or _is_same_origin(origin, host):
                return ()
            raise PermissionDeniedError(
                "this web page may not use the service",
                options=("list it among the origins of the service",),
            )
        cors_headers = (
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", _EXPOSED),
            (b"vary", b"Origin"),
        )
        return (*cors_headers, *_ALLOWED) if method == "OPTIONS" else cors_headers

    async def admit(
        self,
        operation: Operation,
        headers: Mapping[str, str],
        address: str,
        admitted: Principal | None = None,
    ) -> Principal:
        """Return the caller of a request; raise an error if the request is not allowed.

        The errors are `AuthenticationError`, `PermissionDeniedError` and `RateLimitError`. A read-only service refuses
        every operation that writes. Unauthenticated requests never slow down a valid key or token, not even from the
        same address. `admitted` is the caller of a batch request that contains this one; it is not counted again.
        """
        if operation.writes and not self._writes:
            raise PermissionDeniedError(
                f"this service is read-only, and {operation.name} writes",
                options=("ask a service that writes: acms serve",),
            )
        if operation.scope is None:
            return self._everybody
        principal = admitted or await self.identify(headers, address)
        _check_scope(principal, operation.scope)
        if principal.namespaces is None:
            return principal  # it may use all namespaces, so it needs no grants
        return replace(principal, access=await self._grants.access(principal))

    async def confirm(self, admitted: Principal, authorization: str, scope: Scope | None) -> Access:
        """Return the namespaces that an admitted request may use now; raise the errors of `admit`, without counting."""
        if self._open:
            return EVERYWHERE
        principal = await self._authenticate(authorization)
        if principal.tenant != admitted.tenant:
            raise AuthenticationError(options=self._ways)
        if scope is not None:
            _check_scope(principal, scope)
        return await self._grants.access(principal)

    async def identify(self, headers: Mapping[str, str], address: str) -> Principal:
        """Return the owner of the key or token without checking rights; raise the errors of `admit`.

        The request counts against the rate limits of the key and its tenant, or without a valid key of its address.
        """
        if self._open:
            return self._everybody
        try:
            principal = await self._authenticate(headers.get("authorization", ""))
        except (AuthenticationError, UnreachableError):
            _check_rate_limit(self._strangers, network_of_address(address), "without a valid key")
            raise
        _check_rate_limit(self._by_key, principal.key, "with this key")
        _check_rate_limit(self._by_tenant, principal.tenant, "of this tenant")
        return principal

    async def _authenticate(self, authorization: str) -> Principal:
        """Return the owner of the key or token; raise `AuthenticationError` if it is not valid."""
        token = _parse_access_token(authorization)
        if self._tokens is not None and token is not None:
            return await self._tokens.find(token)
        principal = await self._keys.find(authorization)
        if principal is None:
            raise AuthenticationError(options=self._ways)
        return principal


def _check_scope(principal: Principal, scope: Scope) -> None:
    """Raise `PermissionDeniedError` if a key or token does not allow the scope."""
    if scope not in principal.scopes:
        denied = PermissionDeniedError(
            f"the key lacks the scope {scope.value}",
            options=("use a key that has it", "ask the operator of the service for one"),
        )
        denied.scope = scope.value
        raise denied
    if principal.namespaces is not None and scope is Scope.ADMIN:
        raise PermissionDeniedError("this concerns the whole tenant, but the key is bound to namespaces")


def _parse_access_token(authorization: str) -> str | None:
    """Return the access token of an Authorization header; None for an API key, and for any other text."""
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    is_jwt = token.count(".") == 2 and not token.startswith("acms_")
    return token if scheme.lower() == "bearer" and is_jwt else None


def _check_rate_limit(buckets: Buckets, name: str, scope_text: str) -> None:
    seconds = buckets.take(name)
    if seconds:
        raise RateLimitError(
            f"too many requests {scope_text}: wait {seconds:.1f} seconds", retry_after=seconds
        )


def _is_same_origin(origin: str, host: str) -> bool:
    """Return whether a page comes from the same host that it calls: then it is a page of the service itself."""
    return bool(host) and origin.partition("://")[2] == host


def _strip_port(host: str) -> str:
    """Return the name in a Host field, without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _normalize_host(name: str) -> str:
    return name.strip("[]").rstrip(".").lower()
