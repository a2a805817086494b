"""Grants: namespaces that are shared, within a tenant, with keys and subjects that are bound to others.

A principal's grants are one value of the service's own tenant, beside the keys, under hashes of its tenant and its
name. They are read with every request of a bound principal and never cached: a revoked grant is gone everywhere with
the next request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from acms.errors import NotFoundError, ValidationError
from acms.log import validation
from acms.model import Grant, Json, KVEntry
from acms.nouns import decode_noun, encode_noun
from acms.server.keys import Keys
from acms.server.principal import EVERYWHERE, Access, Action, Principal
from acms.server.tenants import SERVICE_TENANT, Stores
from acms.storage.kv import list_entries, update_entry

__all__ = ["Grants"]

SUBJECT = "oidc:"
"""Prefix of the name of a subject."""


class Grants:
    """The grants of a service."""

    def __init__(
        self,
        stores: Stores,
        keys: Keys,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._stores = stores
        self._keys = keys
        self._audit = keys.audit
        self._clock = clock

    async def access(self, principal: Principal) -> Access:
        """Return the namespaces that a principal may use now, with the actions allowed in each."""
        if principal.namespaces is None:
            return EVERYWHERE
        store = (await self._stores.tenant(SERVICE_TENANT)).kv
        entry = await store.get(_key_of_principal(principal.tenant, principal.name))
        granted = {
            namespace: frozenset(Action(action) for action in row["actions"])
            for namespace, row in _grants_of_entry(entry).items()
        }
        return Access.with_grants(principal.namespaces, granted)

    async def list(self, tenant: str, namespace: str | None = None) -> list[Grant]:
        """Return the grants of a tenant, or those on one of its namespaces, by namespace and principal."""
        store: Any = (await self._stores.tenant(SERVICE_TENANT)).kv
        grants: list[Grant] = []
        async for entry in list_entries(store, _prefix_of_tenant(tenant)):
            principal = entry.data["principal"]
            for name, row in _grants_of_entry(entry).items():
                if namespace is None or name == namespace:
                    grants.append(decode_noun(Grant, row, wire=False, namespace=name, principal=principal))
        return sorted(grants, key=lambda grant: (grant.namespace, grant.principal))

    async def grant(
        self,
        tenant: str,
        namespace: str,
        principal: str,
        actions: Iterable[Action | str] = (Action.READ,),
        *,
        sharer: Principal | None = None,
    ) -> Grant:
        """Share a namespace with a principal of the same tenant, for these actions only.

        `principal` is a subject or the id of a key. `sharer` is the principal who shares the namespace. Without one the
        operator shares it, and the grant is recorded in the audit trail here. Raises `NotFoundError` for a key that is
        unknown or belongs to another tenant.
        """
        _check_names(tenant, namespace)
        allowed_actions = {validation.parse_choice(action, Action, "actions") for action in actions}
        if not allowed_actions:
            raise ValidationError("must name at least one", field="actions", options=tuple(Action))
        allowed_actions.add(Action.READ)  # writing and sharing require reading
        name = await self._resolve_principal(tenant, principal)
        grant = Grant(
            namespace=namespace,
            principal=name,
            actions=tuple(action.value for action in Action if action in allowed_actions),
            created_at=self._clock(),
            by="" if sharer is None else sharer.key,
        )
        row = encode_noun(grant, wire=False)
        del row["namespace"], row["principal"]
        target = {"namespace": namespace, "principal": name, "actions": list(grant.actions)}
        async with self._record(tenant, "grantNamespace", target, sharer):
            await self._change(tenant, name, lambda grants: {**grants, namespace: row})
        return grant

    async def revoke(
        self, tenant: str, namespace: str, principal: str, *, sharer: Principal | None = None
    ) -> bool:
        """Revoke a grant for all processes of the service; return whether the namespace was shared."""
        _check_names(tenant, namespace)
        name = await self._resolve_principal(tenant, principal)
        was_shared = False

        def remove(grants: dict[str, Json]) -> dict[str, Json]:
            nonlocal was_shared
            was_shared = grants.pop(namespace, None) is not None
            return grants

        target = {"namespace": namespace, "principal": name}
        async with self._record(tenant, "revokeGrant", target, sharer):
            await self._change(tenant, name, remove)
        return was_shared

    def _record(
        self, tenant: str, operation: str, target: Mapping[str, Json], sharer: Principal | None
    ) -> AbstractAsyncContextManager[None]:
        """Record an action of the operator around a block. The service itself records the actions of requests."""
        return self._audit.record(tenant, operation, target) if sharer is None else nullcontext()

    async def _resolve_principal(self, tenant: str, principal: str) -> str:
        """Return the name under which a principal has grants: a subject, or the id of a key before any rotation."""
        if principal.startswith(SUBJECT):
            validation.validate_name(principal.removeprefix(SUBJECT), "principal")
            return principal
        try:
            key = await self._keys.get(principal)
        except NotFoundError:
            key = None
        # The same error for both cases, so that it does not reveal whether another tenant has such a key.
        if key is None or key.tenant != tenant:
            options = ("ask its owner for the id of the key",)
            raise NotFoundError(f"no key has the id {principal!r}", options=options)
        return key.principal or key.id

    async def _change(
        self, tenant: str, name: str, change: Callable[[dict[str, Json]], dict[str, Json]]
    ) -> None:
        def change_entry(entry: KVEntry | None) -> Json:
            return {"principal": name, "grants": change(_grants_of_entry(entry))}

        store = (await self._stores.tenant(SERVICE_TENANT)).kv
        await update_entry(store, _key_of_principal(tenant, name), change_entry)


def _check_names(tenant: str, namespace: str) -> None:
    validation.validate_name(tenant, "tenant")
    validation.validate_namespace(namespace)


def _prefix_of_tenant(tenant: str) -> str:
    """Return the prefix of the keys of a tenant's grants: a hash, so that no name is the prefix of another."""
    return f"grants/{sha256(tenant.encode()).hexdigest()}/"


def _key_of_principal(tenant: str, principal: str) -> str:
    return _prefix_of_tenant(tenant) + sha256(principal.encode()).hexdigest()


def _grants_of_entry(entry: KVEntry | None) -> dict[str, Any]:
    return {} if entry is None else dict(entry.data["grants"])
