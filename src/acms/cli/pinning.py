"""Commands for pins: stored values that are in every prompt of a namespace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Protocol, runtime_checkable

import typer

from acms.cli.base import Shell, create_group, define_command
from acms.cli.output import Column, to_json_value
from acms.cli.stores import (
    FileStore,
    check_store_lasts,
    data_file,
    file_url,
    parse_store,
    prepare_database_file,
    refuse_option,
)
from acms.errors import ConfigurationError
from acms.log.active_entries import preview_text
from acms.model import Json
from acms.prompt import pin_index
from acms.prompt.pins import KVPinRegistry, Pin, Pinned, create_pin_registry
from acms.providers.tokens import default_counter
from acms.storage import open_storage
from acms.storage.kv import KVMemory, SQLiteKV, open_kv
from acms.storage.kv_base import BaseKV

pins = create_group("pin", "Pin values, so that they are in every prompt of a namespace.", default="set")

Kv = Annotated[
    str | None,
    typer.Option(
        "--kv",
        envvar="ACMS_KV",
        metavar="URL|FILE",
        callback=parse_store,
        help="Key-value store of the pins; default: the store of --db.",
    ),
]
PinNamespace = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="Namespace of the pins: user:123, a team, a project.")
]
Key = Annotated[str, typer.Argument(metavar="KEY", help="Key of the value.")]


@runtime_checkable
class _HasValues(Protocol):
    """A log store with a key-value store."""

    def kv(self) -> BaseKV:
        """Return the key-value store."""
        ...


def _create_kv(kv: str | None, db: str | None) -> BaseKV:
    """Return the key-value store of `--kv`, or that of the log store."""
    check_store_lasts(kv, "kv")
    check_store_lasts(db)
    if kv is not None:
        with refuse_option("kv"):
            return open_kv(kv)
    url = db or file_url(data_file())
    if url.startswith("sqlite://"):
        return open_kv(url)
    storage = open_storage(url)
    if isinstance(storage, _HasValues):
        return storage.kv()
    if isinstance(storage, FileStore):
        return SQLiteKV(storage.path, tenant=storage.tenant)
    raise ConfigurationError("this store does not support pins", options=("--kv sqlite:///pins.db",))


@asynccontextmanager
async def _open_pins(
    kv: str | None, db: str | None, namespace: str, *, write: bool = False
) -> AsyncGenerator[tuple[KVMemory, KVPinRegistry]]:
    """Open the values and pins of a namespace; only a command that writes creates a file."""
    store = _create_kv(kv, db)
    registry = create_pin_registry(store, namespace=namespace)
    if isinstance(store, FileStore):
        prepare_database_file(
            store.path, write, "acms pin NAMESPACE KEY --value TEXT", is_named=bool(kv or db)
        )
    async with store:
        yield store, registry


def _parse_value(text: str | None, json_text: str | None) -> tuple[Json, ...]:
    """Return the value of the options in a tuple, because the value may be null; empty without options."""
    if text is not None and json_text is not None:
        raise typer.BadParameter("give --value or --json-value, not both", param_hint="--json-value")
    if text is not None:
        return (text,)
    if json_text is None:
        return ()
    try:
        return (json.loads(json_text),)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"is not JSON: {error}", param_hint="--json-value") from error


LabelOption = Annotated[str | None, typer.Option("--label", metavar="TEXT", help="Label after the key.")]
PriorityOption = Annotated[
    float | None, typer.Option("--priority", metavar="N", help="Order: higher values come first.")
]
TagOption = Annotated[list[str] | None, typer.Option("--tag", metavar="TEXT", help="Tag; repeatable.")]
RoleOption = Annotated[
    str | None,
    typer.Option("--role", metavar="ROLE", help="system, developer or user; stored only."),
]
ValueOption = Annotated[
    str | None, typer.Option("--value", metavar="TEXT", help="Store this text under the key.")
]
JsonValueOption = Annotated[
    str | None, typer.Option("--json-value", metavar="JSON", help="Store this value under the key.")
]


@define_command("set", 'acms pin user:123 style --value "Answer in German."', group=pins, namespace=None)
async def pin_value(
    shell: Shell,
    namespace: PinNamespace,
    key: Key,
    label: LabelOption = None,
    priority: PriorityOption = None,
    tag: TagOption = None,
    role: RoleOption = None,
    value: ValueOption = None,
    json_value: JsonValueOption = None,
    kv: Kv = None,
) -> None:
    """Pin a value, so that it is in every prompt of a namespace.

    The options replace those of an existing pin: without --label, its label is removed. The value can be stored before,
    later, or with this command.
    """
    values = _parse_value(value, json_value)
    async with _open_pins(kv, shell.db, namespace, write=True) as (store, registry):
        pinned = await registry.pin(key, label=label, role=role, priority=priority, tags=tag or ())
        if values:
            entry = await store.set(key, values[0])
        else:
            entry = await store.get(key)

    def draw() -> None:
        if entry is None:
            shell.line(f"pinned {key!r}: nothing is stored under it yet, so nothing is shown")
        else:
            shell.line(f"pinned {key!r}: {_preview_value(entry.data)}")

    shell.show({"namespace": namespace, "pin": _pin_json(pinned), "missing": entry is None}, draw)


@define_command("remove", "acms pin remove user:123 style", group=pins, namespace=None)
async def unpin_value(shell: Shell, namespace: PinNamespace, key: Key, kv: Kv = None) -> None:
    """Unpin a value; it stays stored."""
    async with _open_pins(kv, shell.db, namespace) as (_, registry):
        unpinned = await registry.unpin(key)
    message = f"{key!r} was not pinned"
    if unpinned:
        message = f"{key!r} is not shown any more; its value stays"
    shell.show_line({"namespace": namespace, "key": key, "unpinned": unpinned}, message)


def _row_value(row: Mapping[str, Any]) -> str:
    return "(missing)" if row["missing"] else _preview_value(row["value"])


def _row_priority(row: Mapping[str, Any]) -> str:
    return "" if row["priority"] is None else f"{row['priority']:g}"


PINS = (
    Column("value", wide=True, value=_row_value),
    Column("key", "cyan"),
    Column("tokens", align_right=True),
    Column("label", "magenta"),
    Column("priority", align_right=True, value=_row_priority),
    Column("tags", value=lambda row: " ".join(row["tags"])),
    Column("pinned", "dim", value=lambda row: _format_time(row["updated_at"])),
    Column("order", align_right=True),
)


@define_command("list", "acms pin list user:123", group=pins, namespace=None)
async def list_pins(shell: Shell, namespace: PinNamespace, kv: Kv = None) -> None:
    """List the pins of a namespace, in prompt order.

    Tokens are those of the rendered pin, counted as o200k_base. A pin without a stored value is marked; prompts leave
    it out.
    """
    async with _open_pins(kv, shell.db, namespace) as (store, registry):
        pinned = await registry.list()
        entries = await asyncio.gather(*(store.get(pin.key) for pin in pinned))
    counter = default_counter()
    rows: list[dict[str, Any]] = []
    texts: list[str] = []
    for order, (pin, entry) in enumerate(zip(pinned, entries, strict=True), 1):
        row = {"order": order, **_pin_json(pin), "missing": entry is None, "tokens": None, "value": None}
        if entry is not None:
            text = pin_index.format_pin(Pinned(pin.key, entry.data, pin.metadata))
            texts.append(text)
            row |= {"tokens": counter.count(text), "value": entry.data}
        rows.append(row)
    total_tokens = counter.count(pin_index.OPENING + "\n".join(texts)) if texts else 0

    def draw() -> None:
        shell.list(PINS, rows, if_empty=f"nothing is pinned in {namespace!r}")
        if rows:
            shell.line(
                f"{len(texts)} shown, {total_tokens} tokens together; a prompt takes the first"
                f" {pin_index.MAX_PINS} and {pin_index.TRUNCATE_TOKENS} tokens by default",
                "dim",
            )

    shell.show({"namespace": namespace, "pins": rows, "tokens": total_tokens}, draw)


def _pin_json(pin: Pin) -> dict[str, Any]:
    return {"key": pin.key, **to_json_value(pin.metadata)}


def _preview_value(value: Json) -> str:
    text = value if isinstance(value, str) else pin_index.compact_json(value)
    return preview_text(text, 120)


def _format_time(milliseconds: int) -> str:
    """Return a Unix time as a date, or the number if it is out of the range of dates."""
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
