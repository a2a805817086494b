"""Commands about pins: values under keys that prompts always show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import typer

from acms.cli.base import AsJson, Db, app, data_file, file_url, run
from acms.cli.render import Column, Screen, plain
from acms.errors import ConfigurationError, StorageError
from acms.log.in_force import preview
from acms.model import Json
from acms.ports import TokenCounter
from acms.prompt import pin_index
from acms.prompt.pins import KVPinRegistry, Pin, Pinned, create_pin_registry
from acms.providers.tokens import default_counter
from acms.storage import open_storage
from acms.storage.files import create_folder
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


@runtime_checkable
class _InFile(Protocol):
    """A store that is a file."""

    path: Path
    tenant: str


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
    if isinstance(storage, _InFile):
        return SQLiteKV(storage.path, tenant=storage.tenant)
    raise ConfigurationError("this store has no values under keys", options=("--kv sqlite:///pins.db",))


@asynccontextmanager
async def _opened(
    kv: str | None, db: str | None, namespace: str, *, write: bool = False
) -> AsyncGenerator[tuple[KVMemory, KVPinRegistry]]:
    """Open the values and the pins of a namespace; only a command that writes creates a file."""
    store = _home(kv, db)
    registry = create_pin_registry(store, namespace=namespace)
    if isinstance(store, _InFile):
        if not write and not store.path.exists():
            raise StorageError(
                f"there is no database at {store.path}",
                options=("acms pin NAMESPACE KEY --value TEXT", "name another with --kv or --db"),
            )
        if write and not kv and not db:
            create_folder(store.path.parent)
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


@app.command(epilog='Example:  acms pin user:123 style --value "Answer in German."')
def pin(
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
    db: Db = None,
    as_json: AsJson = False,
) -> None:
    """Show a value in every prompt of a namespace.

    What is said of a pin replaces what was said before: without --label it has none afterwards. The value may be
    stored before, later, or here.
    """
    given = _value(value, json_value)

    async def work() -> None:
        async with _opened(kv, db, namespace, write=True) as (store, registry):
            made = await registry.pin(key, label=label, role=role, priority=priority, tags=tag or ())
            entry = await (store.set(key, given[0]) if given else store.get(key))
        screen = Screen(as_json)

        def draw() -> None:
            if entry is None:
                screen.line(f"pinned {key!r}: nothing is stored under it yet, so nothing is shown")
            else:
                screen.line(f"pinned {key!r}: {_preview(entry.data)}")

        screen.show({"namespace": namespace, "pin": _json(made), "missing": entry is None}, draw)

    run(as_json, work())


@app.command(epilog="Example:  acms unpin user:123 style")
def unpin(namespace: Of, key: Key, kv: Kv = None, db: Db = None, as_json: AsJson = False) -> None:
    """Show a value no more; it stays stored."""

    async def work() -> None:
        async with _opened(kv, db, namespace) as (_, registry):
            found = await registry.unpin(key)
        screen = Screen(as_json)
        said = f"{key!r} is not shown any more; its value stays" if found else f"{key!r} was not pinned"
        screen.show({"namespace": namespace, "key": key, "unpinned": found}, lambda: screen.line(said))

    run(as_json, work())


PINS = (
    Column("order", right=True),
    Column("key", "cyan"),
    Column("label", "magenta"),
    Column("priority", right=True),
    Column("tags"),
    Column("tokens", right=True),
    Column("pinned", "dim"),
    Column("value"),
)


@app.command(epilog="Example:  acms pins user:123")
def pins(namespace: Of, kv: Kv = None, db: Db = None, as_json: AsJson = False) -> None:
    """List what every prompt of a namespace shows, in order.

    Tokens are those of the pin as it is shown, counted as o200k_base. A pin under whose key nothing is stored is
    marked: a prompt leaves it out.
    """

    async def work() -> None:
        async with _opened(kv, db, namespace) as (store, registry):
            found = await registry.list()
            entries = await asyncio.gather(*(store.get(one.key) for one in found))
        counter = default_counter()
        rows = [
            _row(place, one, entry, counter)
            for place, (one, entry) in enumerate(zip(found, entries, strict=True), 1)
        ]
        shown = [_text(one, entry) for one, entry in zip(found, entries, strict=True) if entry is not None]
        total = counter.count(pin_index.OPENING + "\n".join(shown)) if shown else 0
        screen = Screen(as_json)

        def draw() -> None:
            if not rows:
                screen.line(f"nothing is pinned in {namespace!r}")
                return
            screen.table(PINS, [_cells(row) for row in rows])
            screen.line(
                f"{len(shown)} shown, {total} tokens together; a prompt takes the first {pin_index.MAX_PINS} and "
                f"{pin_index.TRUNCATE_TOKENS} tokens unless it is told otherwise",
                "dim",
            )

        screen.show({"namespace": namespace, "pins": rows, "tokens": total}, draw)

    run(as_json, work())


def _text(one: Pin, entry: KVEntry) -> str:
    return pin_index.text(Pinned(one.key, entry.data, one.metadata))


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


def _cells(row: dict[str, Any]) -> list[str]:
    priority = row["priority"]
    return [
        str(row["order"]),
        row["key"],
        row["label"] or "",
        "" if priority is None else f"{priority:g}",
        " ".join(row["tags"]),
        "" if row["missing"] else str(row["tokens"]),
        _time(row["updated_at"]),
        "(missing)" if row["missing"] else _preview(row["value"]),
    ]


def _preview(value: Json) -> str:
    return preview(value if isinstance(value, str) else pin_index.compact(value), 120)


def _time(milliseconds: int) -> str:
    """Return a time as people read it; another program may have stored one that no calendar has."""
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
