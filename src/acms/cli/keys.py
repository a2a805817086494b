"""Commands about the HTTP service: its API keys, and the audit trail of a tenant."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acms.cli.base import Shell, app, command, data_file, file_url, made
from acms.cli.render import Column, fields_of
from acms.config import ACMSConfig
from acms.storage import open_storage

if TYPE_CHECKING:
    from acms.server.keys import Key, Keys
    from acms.server.tenants import Stores

keys = typer.Typer(
    help="Make and end the API keys of the HTTP service.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(keys, name="keys")

_SPAN = re.compile(r"([1-9]\d{0,5}|0)([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}

KEYS = (
    Column("id", "cyan"),
    Column("name"),
    Column("state"),
    Column("scopes", wide=True, of=lambda key: " ".join(key["scopes"])),
    Column("tenant", "magenta"),
    Column("namespaces", of=lambda key: "all" if key["namespaces"] is None else " ".join(key["namespaces"])),
    Column("expires", of=lambda key: key["expires_at"] or "never"),
    Column("used", "dim", of="used_on"),
    Column("made", "dim", of="created_at"),
)
AUDIT = (
    Column("operation", "magenta"),
    Column(
        "on", wide=True, of=lambda one: " ".join([f"{n}={v}" for n, v in one.target.items()]) or one.context
    ),
    Column("version", "cyan", right=True),
    Column("step"),
    Column("status", right=True),
    Column("key", of=lambda one: one.key or "operator"),
    Column("time", "dim", of=lambda one: f"{one.at:%Y-%m-%d %H:%M:%S}"),
    Column("request", "dim"),
)

KeyId = Annotated[str, typer.Argument(metavar="ID", help="Id of the key: what stands behind acms_.")]
Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="Whose data.")]


def span(text: str) -> timedelta:
    """Read a time as 30m, 12h or 90d."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a time such as 30m, 12h or 90d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


@asynccontextmanager
async def served(db: str | None, *, write: bool = False) -> AsyncGenerator[tuple[Stores, Keys]]:
    """Open what a service on this store would open; only a command that writes creates a file."""
    from acms.server.audit import Audit
    from acms.server.keys import Keys
    from acms.server.tenants import Engine, Stores, with_worker_enabled

    url = db or file_url(data_file())
    stores = Stores(url, with_worker_enabled(Engine(config=ACMSConfig.from_env()), False))
    if url.startswith("sqlite:"):
        path: Path | None = getattr(open_storage(url), "path", None)
        if path is not None:
            made(path, write, "acms keys create --tenant NAME", given=db is not None)
    try:
        yield stores, Keys(stores, Audit(stores))
    finally:
        await stores.aclose()


@command(
    "acms keys create --tenant acme --scopes context:read,memory:read --expires 90d",
    name="create",
    home=keys,
    namespace=None,
)
async def create(
    shell: Shell,
    tenant: Tenant,
    name: Annotated[str, typer.Option("--name", metavar="TEXT", help="Who will use it.")] = "",
    scopes: Annotated[
        str | None,
        typer.Option(
            "--scopes",
            metavar="SCOPE,…|all",
            help="What it is for; default: everything but erase and admin:config.",
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="90d", help="When it ends; default: never.")
    ] = None,
    namespaces: Annotated[
        str | None,
        typer.Option(
            "--namespaces",
            metavar="NAME,…|''",
            help="Bind it to these, or to none: beside them it sees only what is shared with it.",
        ),
    ] = None,
) -> None:
    """Make an API key and show it, this once."""
    end = None if expires is None else span(expires)
    async with served(shell.db, write=True) as (_, home):
        from acms.server.keys import USUAL
        from acms.server.operation import Scope

        chosen: list[str] | frozenset[Scope] = USUAL
        if scopes is not None:
            chosen = list(Scope) if scopes == "all" else [one.strip() for one in scopes.split(",")]
        bound = None if namespaces is None else [one.strip() for one in namespaces.split(",") if one.strip()]
        key, secret = await home.create(tenant, name=name, scopes=chosen, expires=end, namespaces=bound)
    _show(shell, key, secret)


@command("acms keys list --tenant acme", name="list", home=keys, namespace=None)
async def list_keys(
    shell: Shell,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="NAME", help="Only keys to its data.")
    ] = None,
) -> None:
    """List API keys, oldest first; never their secrets."""
    async with served(shell.db) as (_, home):
        found = await home.list(tenant)

    listed, none = [_listed(one) for one in found], "there are no keys: acms keys create --tenant NAME"
    shell.show({"keys": listed}, lambda: shell.list(KEYS, listed, none=none))


@command("acms keys rotate 7kq2m9xd --overlap 1d", name="rotate", home=keys, namespace=None)
async def rotate(
    shell: Shell,
    id: KeyId,
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="1d", help="How long the old one goes on at most.")
    ] = "1d",
) -> None:
    """Make a key that takes the place of another, and show it, this once."""
    time = span(overlap)
    async with served(shell.db) as (_, home):
        key, secret = await home.rotate(id, overlap=time)
    _show(shell, key, secret)


@command("acms keys revoke 7kq2m9xd", name="revoke", home=keys, namespace=None)
async def revoke(shell: Shell, id: KeyId) -> None:
    """End a key, within two seconds wherever the service runs."""
    async with served(shell.db) as (_, home):
        key = await home.revoke(id)
    shell.show({"key": _listed(key)}, lambda: shell.line(f"the key {id} opens nothing any more"))


@command("acms audit --tenant acme --limit 20", namespace=None)
async def audit(
    shell: Shell,
    tenant: Tenant = "default",
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=500, metavar="N", help="How many entries.")
    ] = 50,
    before: Annotated[
        int | None, typer.Option("--before", min=1, metavar="VERSION", help="Only older ones.")
    ] = None,
) -> None:
    """Show who changed what over HTTP, newest first.

    Never what was said.
    """
    from acms.server.audit import read_audit_trail

    async with served(shell.db) as (stores, _):
        found = await read_audit_trail(await stores.of(tenant), before=before, limit=limit)

    none = f"nothing was changed over HTTP in {tenant!r}"
    shell.show({"tenant": tenant, "entries": found}, lambda: shell.list(AUDIT, found, none=none))


def _show(shell: Shell, key: Key, secret: str) -> None:
    def draw() -> None:
        shell.line(secret)
        shell.line(f"opens {key.tenant!r} for {' '.join(sorted(key.scopes))}", "dim")
        shell.line("keep it now: it is stored nowhere and cannot be shown again", "dim")

    shell.show({"key": _listed(key), "secret": secret}, draw)


def _listed(key: Key) -> dict[str, Any]:
    """Return a key as it is shown, with what it is worth now."""
    state = "valid" if key.valid(datetime.now(UTC)) else "expired"
    state = state if key.revoked_at is None else "revoked"
    return {**fields_of(key), "scopes": sorted(key.scopes), "state": state}
