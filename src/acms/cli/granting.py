"""Commands that share namespaces of a service with keys and subjects, and take them back."""

from __future__ import annotations

from typing import Annotated

import typer

from acms.cli.base import Shell, command
from acms.cli.keys import Tenant, served
from acms.cli.render import Column
from acms.errors import NotFoundError

GRANTS = (
    Column("namespace", "magenta"),
    Column("principal", "cyan"),
    Column("actions", of=lambda one: " ".join(one.actions)),
    Column("by", of=lambda one: one.by or "operator"),
    Column("made", "dim", of=lambda one: f"{one.created_at:%Y-%m-%d %H:%M:%S}"),
)

Namespace = Annotated[str, typer.Argument(metavar="NAMESPACE", help="What is shared.")]
Principal = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="Id of a key, or oidc: and the subject of a token.")
]


@command("acms grant orders 7kq2m9xd --tenant acme --allow read,write", namespace=None)
async def grant(
    shell: Shell,
    name: Namespace,
    principal: Principal,
    tenant: Tenant = "default",
    allow: Annotated[
        str, typer.Option("--allow", metavar="ACTION,…", help="read, write, share; reading goes with each.")
    ] = "read",
) -> None:
    """Share a namespace with a key or a subject."""
    from acms.server.grants import Grants

    actions = [one.strip() for one in allow.split(",")]
    async with served(shell.db) as (stores, keys):
        made = await Grants(stores, keys).grant(tenant, name, principal, actions)
    said = f"{made.principal} may {' '.join(made.actions)} in {made.namespace!r}"
    shell.show({"grant": made}, lambda: shell.line(said))


@command("acms grants orders --tenant acme", namespace=None)
async def grants(
    shell: Shell,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAMESPACE]", help="Only grants on this one.")
    ] = None,
    tenant: Tenant = "default",
) -> None:
    """List with whom namespaces are shared."""
    from acms.server.grants import Grants

    async with served(shell.db) as (stores, keys):
        found = await Grants(stores, keys).list(tenant, name)
    none = f"nothing is shared in {tenant!r}"
    shell.show({"grants": found}, lambda: shell.list(GRANTS, found, none=none))


@command("acms revoke orders 7kq2m9xd --tenant acme", namespace=None)
async def revoke(shell: Shell, name: Namespace, principal: Principal, tenant: Tenant = "default") -> None:
    """Take a namespace back, with the next request of the other."""
    from acms.server.grants import Grants

    async with served(shell.db) as (stores, keys):
        done = await Grants(stores, keys).revoke(tenant, name, principal)
    if not done:
        raise NotFoundError(f"{name!r} is not shared with {principal!r}", options=("acms grants",))
    shell.show({"revoked": principal}, lambda: shell.line(f"{principal} does not see {name!r} any more"))
