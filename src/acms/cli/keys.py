"""Commands for the HTTP service: API keys, and the audit trail of a tenant."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acms.cli.base import Shell, create_group, define_command, parse_version
from acms.cli.output import Column, fields_of
from acms.cli.stores import check_store_lasts, data_file, file_url, prepare_database_file, refuse_option
from acms.config import ACMSConfig
from acms.storage import open_storage

if TYPE_CHECKING:
    from acms.server.audit import Noted
    from acms.server.keys import Key, Keys
    from acms.server.tenants import Stores

keys = create_group("keys", "Manage API keys of the HTTP service; show who changed what.")

_DURATION = re.compile(r"([1-9]\d{0,5}|0)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

KEYS = (
    Column("id", "cyan"),
    Column("name"),
    Column("state"),
    Column("scopes", wide=True, value=lambda key: " ".join(key["scopes"])),
    Column("tenant", "magenta"),
    Column(
        "namespaces", value=lambda key: "all" if key["namespaces"] is None else " ".join(key["namespaces"])
    ),
    Column("expires", value=lambda key: key["expires_at"] or "never"),
    Column("used", "dim", value="used_on"),
    Column("made", "dim", value="created_at"),
)


def _format_target(entry: Noted) -> str:
    names = [f"{name}={value}" for name, value in entry.target.items()]
    return " ".join(names) or entry.context or ""


AUDIT = (
    Column("operation", "magenta"),
    Column("on", wide=True, value=_format_target),
    Column("version", "cyan", align_right=True),
    Column("step"),
    Column("status", align_right=True),
    Column("key", value=lambda entry: entry.key or "operator"),
    Column("time", "dim", value=lambda entry: f"{entry.at:%Y-%m-%d %H:%M:%S}"),
    Column("request", "dim"),
)

KeyId = Annotated[str, typer.Argument(metavar="ID", help="Id of the key: the part after acms_.")]
Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="Tenant of the data.")]


def parse_duration(text: str) -> timedelta:
    """Parse a duration such as 45s, 30m, 12h or 90d; raise `BadParameter` for any other text."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a time such as 45s, 30m, 12h or 90d")
    number, unit = match.groups()
    return timedelta(**{_UNITS[unit]: int(number)})


@asynccontextmanager
async def open_service_stores(db: str | None, *, write: bool = False) -> AsyncGenerator[tuple[Stores, Keys]]:
    """Open the stores and keys of a service on this store; only a command that writes creates a file."""
    from acms.server.audit import Audit
    from acms.server.keys import Keys
    from acms.server.tenants import Engine, Stores, with_worker_enabled

    check_store_lasts(db)
    url = db or file_url(data_file())
    with refuse_option("db"):
        stores = Stores(url, with_worker_enabled(Engine(config=ACMSConfig.from_env()), False))
    if url.startswith("sqlite:"):
        path: Path | None = getattr(open_storage(url), "path", None)
        if path is not None:
            prepare_database_file(path, write, "acms keys create --tenant NAME", is_named=db is not None)
    try:
        yield stores, Keys(stores, Audit(stores))
    finally:
        await stores.aclose()


NameOption = Annotated[str, typer.Option("--name", metavar="TEXT", help="Name of the key's user.")]
ScopesOption = Annotated[
    str | None,
    typer.Option(
        "--scopes",
        metavar="SCOPE,…|all",
        help="Allowed scopes; default: all but erase and admin:config.",
    ),
]
ExpiresOption = Annotated[
    str | None, typer.Option("--expires", metavar="90d", help="Time until it expires; default: never.")
]
NamespacesOption = Annotated[
    str | None,
    typer.Option(
        "--namespaces",
        metavar="NAME,…|''",
        help="Restrict it to these namespaces, or to none; shared ones are added.",
    ),
]


@define_command(
    "create",
    "acms keys create --tenant acme --scopes context:read,memory:read --expires 90d",
    group=keys,
    namespace=None,
)
async def create_key(
    shell: Shell,
    tenant: Tenant,
    name: NameOption = "",
    scopes: ScopesOption = None,
    expires: ExpiresOption = None,
    namespaces: NamespacesOption = None,
) -> None:
    """Create an API key and show it once."""
    lifetime = None if expires is None else parse_duration(expires)
    async with open_service_stores(shell.db, write=True) as (_, api_keys):
        from acms.server.keys import USUAL
        from acms.server.operation import Scope

        chosen: list[str] | frozenset[Scope] = USUAL
        if scopes is not None:
            chosen = list(Scope) if scopes == "all" else [scope.strip() for scope in scopes.split(",")]
        bound: list[str] | None = None
        if namespaces is not None:
            names = [name_in_option.strip() for name_in_option in namespaces.split(",")]
            bound = [name_in_option for name_in_option in names if name_in_option]
        key, secret = await api_keys.create(
            tenant, name=name, scopes=chosen, expires=lifetime, namespaces=bound
        )
    _show_secret(shell, key, secret)


@define_command("list", "acms keys list --tenant acme", group=keys, namespace=None)
async def list_keys(
    shell: Shell,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="NAME", help="Only keys of this tenant.")
    ] = None,
) -> None:
    """List the API keys, oldest first, without their secrets."""
    async with open_service_stores(shell.db) as (_, api_keys):
        rows = [_key_json(key) for key in await api_keys.list(tenant)]
    if_empty = "there are no keys: acms keys create --tenant NAME"
    shell.show_list({"keys": rows}, KEYS, rows, if_empty=if_empty)


@define_command("rotate", "acms keys rotate 7kq2m9xd --overlap 1d", group=keys, namespace=None)
async def rotate_key(
    shell: Shell,
    id: KeyId,
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="1d", help="Time until the old key expires.")
    ] = "1d",
) -> None:
    """Replace a key with a new one, and show the new one once."""
    overlap_time = parse_duration(overlap)
    async with open_service_stores(shell.db) as (_, api_keys):
        key, secret = await api_keys.rotate(id, overlap=overlap_time)
    _show_secret(shell, key, secret)


@define_command("revoke", "acms keys revoke 7kq2m9xd", group=keys, namespace=None)
async def revoke_key(shell: Shell, id: KeyId) -> None:
    """Revoke a key; all instances of the service refuse it within two seconds."""
    async with open_service_stores(shell.db) as (_, api_keys):
        key = await api_keys.revoke(id)
    shell.show_line({"key": _key_json(key)}, f"the key {id} opens nothing any more")


@define_command("audit", "acms keys audit --tenant acme --limit 20", group=keys, namespace=None)
async def show_audit_trail(
    shell: Shell,
    tenant: Tenant = "default",
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=500, metavar="N", help="Maximum number of entries.")
    ] = 50,
    before: Annotated[
        int | None,
        typer.Option(
            "--before", parser=parse_version, metavar="VERSION", help="Only entries before this version."
        ),
    ] = None,
) -> None:
    """Show the changes over HTTP and their keys, newest first.

    The audit trail contains no message text.
    """
    from acms.server.audit import read_audit_trail

    async with open_service_stores(shell.db) as (stores, _):
        entries = await read_audit_trail(await stores.tenant(tenant), before=before, limit=limit)

    if_empty = f"nothing was changed over HTTP in {tenant!r}"
    shell.show_list({"tenant": tenant, "entries": entries}, AUDIT, entries, if_empty=if_empty)


def _show_secret(shell: Shell, key: Key, secret: str) -> None:
    def draw() -> None:
        shell.line(secret)
        shell.line(f"opens {key.tenant!r} for {' '.join(sorted(key.scopes))}", "dim")
        shell.line("keep it now: it is stored nowhere and cannot be shown again", "dim")

    shell.show({"key": _key_json(key), "secret": secret}, draw)


def _key_json(key: Key) -> dict[str, Any]:
    """Return the fields of a key and its current state."""
    if key.revoked_at is not None:
        state = "revoked"
    elif key.valid(datetime.now(UTC)):
        state = "valid"
    else:
        state = "expired"
    return {**fields_of(key), "scopes": sorted(key.scopes), "state": state}
