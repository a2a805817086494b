"""Commands that grant keys and subjects access to namespaces of a service, and revoke it."""

from __future__ import annotations

from typing import Annotated

import typer

from acms.cli.base import Shell, create_group, define_command
from acms.cli.keys import Tenant, open_service_stores
from acms.cli.output import Column
from acms.errors import NotFoundError

grants = create_group("grants", "Share namespaces of a service with keys and subjects.")

GRANTS = (
    Column("namespace", "magenta"),
    Column("principal", "cyan"),
    Column("actions", value=lambda grant: " ".join(grant.actions)),
    Column("by", value=lambda grant: grant.by or "operator"),
    Column("made", "dim", value=lambda grant: f"{grant.created_at:%Y-%m-%d %H:%M:%S}"),
)

Namespace = Annotated[str, typer.Argument(metavar="NAMESPACE", help="Namespace to share.")]
Principal = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="Id of a key, or oidc: and the subject of a token.")
]


@define_command(
    "add", "acms grants add orders 7kq2m9xd --tenant acme --allow read,write", group=grants, namespace=None
)
async def share_namespace(
    shell: Shell,
    name: Namespace,
    principal: Principal,
    tenant: Tenant = "default",
    allow: Annotated[
        str, typer.Option("--allow", metavar="ACTION,…", help="read, write, share; each includes read.")
    ] = "read",
) -> None:
    """Share a namespace with a key or subject."""
    from acms.server.grants import Grants

    actions = [action.strip() for action in allow.split(",")]
    async with open_service_stores(shell.db) as (stores, keys):
        grant = await Grants(stores, keys).grant(tenant, name, principal, actions)
    message = f"{grant.principal} may {' '.join(grant.actions)} in {grant.namespace!r}"
    shell.show_line({"grant": grant}, message)


@define_command("list", "acms grants list orders --tenant acme", group=grants, namespace=None)
async def list_grants(
    shell: Shell,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAMESPACE]", help="Only grants on this namespace.")
    ] = None,
    tenant: Tenant = "default",
) -> None:
    """List the grants on namespaces."""
    from acms.server.grants import Grants

    async with open_service_stores(shell.db) as (stores, keys):
        shared_grants = await Grants(stores, keys).list(tenant, name)
    if_empty = f"nothing is shared in {tenant!r}"
    shell.show_list({"grants": shared_grants}, GRANTS, shared_grants, if_empty=if_empty)


@define_command("revoke", "acms grants revoke orders 7kq2m9xd --tenant acme", group=grants, namespace=None)
async def revoke_grant(
    shell: Shell, name: Namespace, principal: Principal, tenant: Tenant = "default"
) -> None:
    """Revoke access to a namespace, effective with the next request."""
    from acms.server.grants import Grants

    async with open_service_stores(shell.db) as (stores, keys):
        revoked = await Grants(stores, keys).revoke(tenant, name, principal)
    if not revoked:
        raise NotFoundError(f"{name!r} is not shared with {principal!r}", options=("acms grants list",))
    shell.show_line({"revoked": principal}, f"{principal} does not see {name!r} any more")
