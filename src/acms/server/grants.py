"""Grants: namespaces that are shared, within a tenant, with keys and subjects that are bound to others.

A principal's grants are one value of the service's own tenant, beside the keys, under hashes of its tenant and its
name. They are read with every request of who is bound, and never kept: so a grant that was taken back anywhere is gone
everywhere with the next request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from acms.errors import NotFoundError, ValidationError
from acms.log import validation
from acms.model import Json, KVEntry
from acms.nouns import decode_noun, encode_noun
from acms.results import Grant
from acms.server.keys import Keys
from acms.server.principal import EVERYWHERE, Access, Action, Principal
from acms.server.tenants import OWN, Stores
from acms.storage.kv import list_entries, update_entry

__all__ = ["Grants"]

SUBJECT = "oidc:"
"""How the name of a subject begins."""


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
        """Return which namespaces a principal may use now, and for what."""
        if principal.namespaces is None:
            return EVERYWHERE
        entry = await (await self._stores.of(OWN)).kv.get(_key_of_principal(principal.tenant, principal.name))
        granted = {
            name: frozenset(Action(one) for one in row["actions"])
            for name, row in _grants_of_entry(entry).items()
        }
        return Access.of(principal.namespaces, granted)

    async def list(self, tenant: str, namespace: str | None = None) -> list[Grant]:
        """Return the grants of a tenant, or those on one of its namespaces, by namespace and principal."""
        store: Any = (await self._stores.of(OWN)).kv
        found: list[Grant] = []
        async for entry in list_entries(store, _prefix_of_tenant(tenant)):
            found += [
                decode_noun(Grant, row, wire=False, namespace=name, principal=entry.data["principal"])
                for name, row in _grants_of_entry(entry).items()
            ]
        chosen = [one for one in found if namespace in (None, one.namespace)]
        return sorted(chosen, key=lambda one: (one.namespace, one.principal))

    async def grant(
        self,
        tenant: str,
        namespace: str,
        principal: str,
        actions: Iterable[Action | str] = (Action.READ,),
        *,
        by: Principal | None = None,
    ) -> Grant:
        """Share a namespace with a principal of the same tenant, for these actions and no others.

        `by` is who does so; the operator, which the audit trail notes here, without it. `NotFoundError` for a key that
        is unknown or another tenant's.
        """
        _check_names(tenant, namespace)
        chosen = {validation.parse_choice(one, Action, "actions") for one in actions}
        if not chosen:
            raise ValidationError("must name at least one", field="actions", options=tuple(Action))
        chosen.add(Action.READ)  # writing and sharing require reading
        name = await self._named(tenant, principal)
        made = Grant(
            namespace=namespace,
            principal=name,
            actions=tuple(one.value for one in Action if one in chosen),
            created_at=self._clock(),
            by="" if by is None else by.key,
        )
        row = encode_noun(made, wire=False)
        del row["namespace"], row["principal"]
        target = {"namespace": namespace, "principal": name, "actions": list(made.actions)}
        async with nullcontext() if by is not None else self._audit.noted(tenant, "grantNamespace", target):
            await self._change(tenant, name, lambda rows: {**rows, namespace: row})
        return made

    async def revoke(
        self, tenant: str, namespace: str, principal: str, *, by: Principal | None = None
    ) -> bool:
        """Take a namespace back from a principal, wherever the service runs; return whether it was shared with it."""
        _check_names(tenant, namespace)
        name = await self._named(tenant, principal)
        was = False

        def without(rows: Mapping[str, Json]) -> dict[str, Json]:
            nonlocal was
            was = namespace in rows
            return {one: row for one, row in rows.items() if one != namespace}

        target = {"namespace": namespace, "principal": name}
        async with nullcontext() if by is not None else self._audit.noted(tenant, "revokeGrant", target):
            await self._change(tenant, name, without)
        return was

    async def _named(self, tenant: str, principal: str) -> str:
        """Return by which name a principal is known: a key by the first of its line."""
        if principal.startswith(SUBJECT):
            validation.validate_name(principal.removeprefix(SUBJECT), "principal")
            return principal
        try:
            key = await self._keys.get(principal)
        except NotFoundError:
            key = None
        if (
            key is None or key.tenant != tenant
        ):  # both cases get the same answer, so that it does not reveal which
            options = ("ask its owner for the id of the key",)
            raise NotFoundError(f"no key has the id {principal!r}", options=options)
        return key.principal or key.id

    async def _change(
        self, tenant: str, name: str, change: Callable[[Mapping[str, Json]], dict[str, Json]]
    ) -> None:
        def changed(entry: KVEntry | None) -> Json:
            return {"principal": name, "grants": change(_grants_of_entry(entry))}

        await update_entry((await self._stores.of(OWN)).kv, _key_of_principal(tenant, name), changed)


def _check_names(tenant: str, namespace: str) -> None:
    validation.validate_name(tenant, "tenant")
    validation.namespace_name(namespace)


def _prefix_of_tenant(tenant: str) -> str:
    """Return how the keys of a tenant's grants begin: of a hash, as no name can run into another one."""
    return f"grants/{sha256(tenant.encode()).hexdigest()}/"


def _key_of_principal(tenant: str, principal: str) -> str:
    return _prefix_of_tenant(tenant) + sha256(principal.encode()).hexdigest()


def _grants_of_entry(entry: KVEntry | None) -> dict[str, Any]:
    return {} if entry is None else dict(entry.data["grants"])
