"""Pins over HTTP: values under keys that the prompts of a namespace always show."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from acms.errors import NotFoundError
from acms.log import validation
from acms.model import KVEntry
from acms.nouns import encode_noun
from acms.prompt.pins import Pin, create_pin_registry
from acms.server.operation import Body, Call, Operations, Query, Reply, Scope
from acms.server.replies import describe_list_reply, describe_single_reply, reply_with_data, reply_with_page

__all__ = ["operations"]

operations = Operations("pins")

_PATH = "/pins/{namespace}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedValue:
    """A key that is always shown, and what lies under it."""

    key: str
    label: str | None
    role: Literal["system", "developer", "user"] | None
    #: The higher, the earlier.
    priority: float | None
    tags: tuple[str, ...]
    updated_at: datetime | None
    #: Whether nothing lies under the key: then it is not shown.
    missing: bool
    value: Any


class ListPins(Query):
    """The page of pins to list."""

    cursor: str | None = None
    """Key after which the page begins: `nextCursor` of the previous page."""
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    """Largest number of items in the page."""


class PinBody(Body):
    """A pin, and the value to store under its key."""

    key: Annotated[str, Field(min_length=1, max_length=512)]
    """Key of the pin in the store."""
    value: Any = None
    """Any JSON to store under the key; omit it to keep the stored value."""
    label: str | None = None
    """Title to show above the value."""
    role: Literal["system", "developer", "user"] | None = None
    """Role of the message that shows it."""
    priority: float | None = None
    """Higher priorities are shown first."""
    tags: Annotated[list[Annotated[str, Field(min_length=1)]], Field(default_factory=list[str])]
    """Tags of the pin."""


class Unpin(Query):
    """The pin to remove."""

    key: Annotated[str, Field(min_length=1, max_length=512)]
    """Key of the pin."""
    value: bool = False
    """Also delete the value stored under the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpinned:
    """The result of removing a pin."""

    key: str
    #: Whether it was pinned, and whether a value was deleted.
    unpinned: bool
    deleted: bool


def _pinned_value(pin: Pin, entry: KVEntry | None) -> PinnedValue:
    metadata: Any = pin.metadata  # untyped: another program may have stored fields of other types
    return PinnedValue(
        key=pin.key,
        label=metadata.label,
        role=metadata.role,
        priority=metadata.priority,
        tags=metadata.tags,
        updated_at=_parse_milliseconds(metadata.updated_at),
        missing=entry is None,
        value=None if entry is None else entry.data,
    )


def _parse_milliseconds(milliseconds: int | None) -> datetime | None:
    """Return a time, or None for a number outside the calendar, which another program may have stored."""
    try:
        return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


@operations(
    "GET", _PATH, scope=Scope.MEMORY_READ, query=ListPins, reply=describe_list_reply(PinnedValue, str)
)
async def list_pins(call: Call[ListPins, None]) -> Reply:
    """List the pins that the prompts of a namespace show: higher priority first, then the newest, then by key.

    A pin under whose key nothing is stored is listed as missing, and prompts leave it out.
    """
    store, query = call.tenant.kv, call.query
    pins = await create_pin_registry(store, namespace=call.path["namespace"]).list()
    keys = [pin.key for pin in pins]
    start = 0
    if query.cursor is not None:
        if query.cursor not in keys:
            raise NotFoundError(f"{query.cursor!r} is no longer pinned", options=("start again",))
        start = keys.index(query.cursor) + 1
    page = pins[start : start + query.limit]
    entries = await asyncio.gather(*(store.get(pin.key) for pin in page))
    has_more = len(pins) > start + len(page)
    data = [encode_noun(_pinned_value(pin, entry)) for pin, entry in zip(page, entries, strict=True)]
    return reply_with_page(data, page[-1].key if has_more else None)


@operations(
    "PUT",
    _PATH,
    scope=Scope.MEMORY_WRITE,
    body=PinBody,
    reply=describe_single_reply(PinnedValue),
    example={
        "key": "user:123/profile",
        "value": {"name": "Sam", "timezone": "America/Los_Angeles"},
        "label": "User profile",
        "priority": 10,
    },
)
async def put_pin(call: Call[None, PinBody]) -> Reply:
    """Pin a key, and store a value under it if one is given.

    The request replaces the whole description of the pin: without a label the pin has none. Keys belong to the whole
    tenant, and namespaces decide which prompts show them: two namespaces that pin one key show the same value.
    """
    store, body = call.tenant.kv, call.body
    has_value = "value" in body.model_fields_set
    if has_value:
        validation.serialize_document(body.value, "value")  # validates it before anything is pinned
    registry = create_pin_registry(store, namespace=call.path["namespace"])
    pin = await registry.pin(
        body.key, label=body.label, role=body.role, priority=body.priority, tags=body.tags
    )
    if has_value:
        entry = await store.set(body.key, body.value)
    else:
        entry = await store.get(body.key)
    return reply_with_data(_pinned_value(pin, entry))


@operations("DELETE", _PATH, scope=Scope.MEMORY_WRITE, query=Unpin, reply=describe_single_reply(Unpinned))
async def delete_pin(call: Call[Unpin, None]) -> Reply:
    """Remove a pin. The value under its key stays, unless `value=true`.

    `unpinned` is false if the key was not pinned; that is not an error.
    """
    store, key = call.tenant.kv, call.query.key
    registry = create_pin_registry(store, namespace=call.path["namespace"])
    deleted = False
    if call.query.value and any(pin.key == key for pin in await registry.list()):
        deleted = await store.delete(key)  # first, because a pin without a value can still be removed later
    unpinned = await registry.unpin(key)
    return reply_with_data(Unpinned(key=key, unpinned=unpinned, deleted=deleted))
