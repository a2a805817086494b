"""Commands about pins: values under keys that prompts always show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Protocol, runtime_checkable

import typer

from acms.cli.base import InFile, Shell, command, data_file, file_url, made
from acms.cli.render import Column, plain
from acms.errors import ConfigurationError
from acms.log.in_force import preview_text
from acms.model import Json
from acms.ports import TokenCounter
from acms.prompt import pin_index
from acms.prompt.pins import KVPinRegistry, Pin, Pinned, create_pin_registry
from acms.providers.tokens import default_counter
from acms.storage import open_storage
from acms.storage.kv import KVEntry, KVMemory, SQLiteKV, open_kv
from acms.storage.kv_home import KVHome

Kv = Annotated[
    str | None,
    typer.Option(
        "--kv",
        envvar="ACMS_KV",
        metavar="URL",
        help="Where pins and their values lie; default: in the store.",
    ),
]
Of = Annotated[str, typer.Argument(metavar="NAMESPACE", help="Whose pins: user:123, a team, a project.")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key under which the value lies.")]


@runtime_checkable
class _HasValues(Protocol):
    """A log store that has values under keys."""

    def kv(self) -> KVHome:
        """Return them."""
        ...


def _home(kv: str | None, db: str | None) -> KVHome:
    """Return the key-value memory that is named, or that of the log store."""
    if kv is not None:
        return open_kv(kv)
    url = db or file_url(data_file())
    if url.startswith(("memory://", "sqlite://")):
        return open_kv(url)
    storage = open_storage(url)
    if isinstance(storage, _HasValues):
        return storage.kv()
    if isinstance(storage, InFile):
        return SQLiteKV(storage.path, tenant=storage.tenant)
    raise ConfigurationError("this store has no values under keys", options=("--kv sqlite:///pins.db",))


@asynccontextmanager
async def _opened(
    kv: str | None, db: str | None, namespace: str, *, write: bool = False
) -> AsyncGenerator[tuple[KVMemory, KVPinRegistry]]:
    """Open the values and the pins of a namespace; only a command that writes creates a file."""
    store = _home(kv, db)
    registry = create_pin_registry(store, namespace=namespace)
    if isinstance(store, InFile):
        made(store.path, write, "acms pin NAMESPACE KEY --value TEXT", given=bool(kv or db))
    async with store:
        yield store, registry


def _value(text: str | None, written: str | None) -> tuple[Json, ...]:
    """Return the value that was given, if any."""
    if text is not None and written is not None:
        raise typer.BadParameter("give --value or --json-value, not both", param_hint="--json-value")
    if written is None:
        return () if text is None else (text,)
    try:
        return (json.loads(written),)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"is not JSON: {error}", param_hint="--json-value") from error


@command('acms pin user:123 style --value "Answer in German."', namespace=None)
async def pin(
    shell: Shell,
    namespace: Of,
    key: Key,
    label: Annotated[
        str | None, typer.Option("--label", metavar="TEXT", help="Shown behind the key.")
    ] = None,
    priority: Annotated[
        float | None, typer.Option("--priority", metavar="N", help="The higher, the earlier.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="TEXT", help="May be repeated.")] = None,
    role: Annotated[
        str | None,
        typer.Option("--role", metavar="ROLE", help="system, developer or user; kept, not used here."),
    ] = None,
    value: Annotated[
        str | None, typer.Option("--value", metavar="TEXT", help="Store this text under the key.")
    ] = None,
    json_value: Annotated[
        str | None, typer.Option("--json-value", metavar="JSON", help="Store this value under the key.")
    ] = None,
    kv: Kv = None,
) -> None:
    """Show a value in every prompt of a namespace.

    What is said of a pin replaces what was said before: without --label it has none afterwards. The value may be
    stored before, later, or here.
    """
    given = _value(value, json_value)
    async with _opened(kv, shell.db, namespace, write=True) as (store, registry):
        pinned = await registry.pin(key, label=label, role=role, priority=priority, tags=tag or ())
        entry = await (store.set(key, given[0]) if given else store.get(key))

    def draw() -> None:
        if entry is None:
            shell.line(f"pinned {key!r}: nothing is stored under it yet, so nothing is shown")
        else:
            shell.line(f"pinned {key!r}: {_preview(entry.data)}")

    shell.show({"namespace": namespace, "pin": _json(pinned), "missing": entry is None}, draw)


@command("acms unpin user:123 style", namespace=None)
async def unpin(shell: Shell, namespace: Of, key: Key, kv: Kv = None) -> None:
    """Show a value no more; it stays stored."""
    async with _opened(kv, shell.db, namespace) as (_, registry):
        found = await registry.unpin(key)
    said = f"{key!r} is not shown any more; its value stays" if found else f"{key!r} was not pinned"
    shell.show({"namespace": namespace, "key": key, "unpinned": found}, lambda: shell.line(said))


PINS = (
    Column("value", wide=True, of=lambda row: "(missing)" if row["missing"] else _preview(row["value"])),
    Column("key", "cyan"),
    Column("tokens", right=True),
    Column("label", "magenta"),
    Column("priority", right=True, of=lambda row: "" if row["priority"] is None else f"{row['priority']:g}"),
    Column("tags", of=lambda row: " ".join(row["tags"])),
    Column("pinned", "dim", of=lambda row: _time(row["updated_at"])),
    Column("order", right=True),
)


@command("acms pins user:123", namespace=None)
async def pins(shell: Shell, namespace: Of, kv: Kv = None) -> None:
    """List what every prompt of a namespace shows, in order.

    Tokens are those of the pin as it is shown, counted as o200k_base. A pin under whose key nothing is stored is
    marked: a prompt leaves it out.
    """
    async with _opened(kv, shell.db, namespace) as (store, registry):
        found = await registry.list()
        entries = await asyncio.gather(*(store.get(one.key) for one in found))
    counter = default_counter()
    rows = [
        _row(place, one, entry, counter)
        for place, (one, entry) in enumerate(zip(found, entries, strict=True), 1)
    ]
    shown = [_text(one, entry) for one, entry in zip(found, entries, strict=True) if entry is not None]
    total = counter.count(pin_index.OPENING + "\n".join(shown)) if shown else 0

    def draw() -> None:
        shell.list(PINS, rows, none=f"nothing is pinned in {namespace!r}")
        if rows:
            shell.line(
                f"{len(shown)} shown, {total} tokens together; a prompt takes the first {pin_index.MAX_PINS} and "
                f"{pin_index.TRUNCATE_TOKENS} tokens unless it is told otherwise",
                "dim",
            )

    shell.show({"namespace": namespace, "pins": rows, "tokens": total}, draw)


def _text(one: Pin, entry: KVEntry) -> str:
    return pin_index.format_pin(Pinned(one.key, entry.data, one.metadata))


def _json(one: Pin) -> dict[str, Any]:
    return {"key": one.key, **plain(one.metadata)}


def _row(place: int, one: Pin, entry: KVEntry | None, counter: TokenCounter) -> dict[str, Any]:
    return {
        "order": place,
        **_json(one),
        "missing": entry is None,
        "tokens": None if entry is None else counter.count(_text(one, entry)),
        "value": None if entry is None else entry.data,
    }


def _preview(value: Json) -> str:
    return preview_text(value if isinstance(value, str) else pin_index.compact_json(value), 120)


def _time(milliseconds: int) -> str:
    """Return a time as people read it; another program may have stored one that no calendar has."""
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
