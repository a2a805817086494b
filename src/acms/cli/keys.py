"""Commands about the HTTP service: its API keys, and the audit trail of a tenant."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acms.cli.base import AsJson, Db, app, data_file, file_url, run
from acms.cli.render import Column, Screen, plain
from acms.config import ACMSConfig
from acms.errors import StorageError
from acms.storage import open_storage
from acms.storage.files import create_folder

if TYPE_CHECKING:
    from acms.server.audit import Noted
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
    Column("tenant", "magenta"),
    Column("name"),
    Column("state"),
    Column("made", "dim"),
    Column("expires"),
    Column("used", "dim"),
    Column("scopes"),
)
AUDIT = (
    Column("version", "cyan", right=True),
    Column("time", "dim"),
    Column("step"),
    Column("operation", "magenta"),
    Column("key"),
    Column("status", right=True),
    Column("request", "dim"),
    Column("on"),
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
    from acms.server.tenants import Engine, Stores, working

    url = db or file_url(data_file())
    stores = Stores(url, working(Engine(config=ACMSConfig.from_env()), False))
    if url.startswith("sqlite:"):
        path: Path | None = getattr(open_storage(url), "path", None)
        if path is not None and not path.exists() and not write:
            raise StorageError(
                f"there is no database at {path}",
                options=("acms keys create --tenant NAME", "name another with --db"),
            )
        if path is not None and write and not db:
            create_folder(path.parent)
    try:
        yield stores, Keys(stores, Audit(stores))
    finally:
        await stores.aclose()


@keys.command(
    "create",
    epilog="Example:  acms keys create --tenant acme --scopes context:read,memory:read --expires 90d",
)
def create(
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
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Make an API key and show it, this once."""
    end = None if expires is None else span(expires)

    async def work() -> None:
        async with served(db, write=True) as (_, home):
            from acms.server.keys import USUAL
            from acms.server.operation import Scope

            chosen: list[str] | frozenset[Scope] = USUAL
            if scopes is not None:
                chosen = list(Scope) if scopes == "all" else [one.strip() for one in scopes.split(",")]
            key, secret = await home.create(tenant, name=name, scopes=chosen, expires=end)
        _show(as_json, key, secret)

    run(as_json, work())


@keys.command("list", epilog="Example:  acms keys list --tenant acme")
def list_keys(
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="NAME", help="Only keys to its data.")
    ] = None,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """List API keys, oldest first; never their secrets."""

    async def work() -> None:
        async with served(db) as (_, home):
            found = await home.list(tenant)
        screen = Screen(as_json)

        def draw() -> None:
            if found:
                screen.table(KEYS, [_row(one) for one in found])
            else:
                screen.line("there are no keys: acms keys create --tenant NAME")

        screen.show({"keys": [_json(one) for one in found]}, draw)

    run(as_json, work())


@keys.command("rotate", epilog="Example:  acms keys rotate 7kq2m9xd --overlap 1d")
def rotate(
    id: KeyId,
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="1d", help="How long the old one goes on at most.")
    ] = "1d",
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Make a key that takes the place of another, and show it, this once."""
    time = span(overlap)

    async def work() -> None:
        async with served(db) as (_, home):
            key, secret = await home.rotate(id, overlap=time)
        _show(as_json, key, secret)

    run(as_json, work())


@keys.command("revoke", epilog="Example:  acms keys revoke 7kq2m9xd")
def revoke(id: KeyId, db: Db = None, as_json: AsJson = False) -> None:
    """End a key, within two seconds wherever the service runs."""

    async def work() -> None:
        async with served(db) as (_, home):
            key = await home.revoke(id)
        screen = Screen(as_json)
        screen.show({"key": _json(key)}, lambda: screen.line(f"the key {id} opens nothing any more"))

    run(as_json, work())


@app.command(epilog="Example:  acms audit --tenant acme --limit 20")
def audit(
    tenant: Tenant = "default",
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=500, metavar="N", help="How many entries.")
    ] = 50,
    before: Annotated[
        int | None, typer.Option("--before", min=1, metavar="VERSION", help="Only older ones.")
    ] = None,
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Show who changed what over HTTP, newest first; never what was said."""

    async def work() -> None:
        from acms.server.audit import trail

        async with served(db) as (stores, _):
            found = await trail(await stores.of(tenant), before=before, limit=limit)
        screen = Screen(as_json)

        def draw() -> None:
            if found:
                screen.table(AUDIT, [_step(one) for one in found])
            else:
                screen.line(f"nothing was changed over HTTP in {tenant!r}")

        screen.show({"tenant": tenant, "entries": found}, draw)

    run(as_json, work())


def _show(as_json: bool, key: Key, secret: str) -> None:
    screen = Screen(as_json)

    def draw() -> None:
        screen.line(secret)
        screen.line(f"opens {key.tenant!r} for {' '.join(sorted(key.scopes))}", "dim")
        screen.line("keep it now: it is stored nowhere and cannot be shown again", "dim")

    screen.show({"key": _json(key), "secret": secret}, draw)


def _json(key: Key) -> dict[str, Any]:
    return {**plain(key), "scopes": sorted(key.scopes), "state": _state(key)}


def _state(key: Key) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "valid" if key.valid(datetime.now(UTC)) else "expired"


def _row(key: Key) -> list[str]:
    def day(at: datetime | None) -> str:
        return "" if at is None else f"{at:%Y-%m-%d %H:%M}"

    return [
        key.id,
        key.tenant,
        key.name,
        _state(key),
        day(key.created_at),
        day(key.expires_at) or "never",
        key.used_on or "",
        " ".join(sorted(key.scopes)),
    ]


def _step(one: Noted) -> list[str]:
    named = [f"{name}={value}" for name, value in one.target.items()]
    return [
        str(one.version),
        f"{one.at:%Y-%m-%d %H:%M:%S}",
        one.step,
        one.operation,
        one.key or "operator",
        "" if one.status is None else str(one.status),
        one.request or "",
        " ".join(named) or one.context or "",
    ]
