"""Pins: values under keys that a prompt always shows, within a cap of tokens.

registry = create_pin_registry(kv, namespace="user:123")
await registry.pin("profile", label="User profile", priority=10)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, Protocol, cast

from acms.errors import ValidationError
from acms.log import validation
from acms.log.encoding import to_microseconds
from acms.model import Json, KVEntry, Role
from acms.observability.events import Event, PinsLoaded, PinsSkipped
from acms.plan.nodes import PINS, Omit, Scope
from acms.ports import KVMemory
from acms.prompt import pin_index, summary_coverage
from acms.prompt.pin_index import INDEX_KEY, MAX_PINS, TRUNCATE_TOKENS, Pin, PinMetadata, Pinned
from acms.storage.kv import change_entry, update_entry
from acms.storage.kv_base import Clock, utc_now

__all__ = [
    "KVPinRegistry",
    "Pin",
    "PinMetadata",
    "PinRegistry",
    "Pinned",
    "PinnedKV",
    "create_pin_registry",
]


class PinRegistry(Protocol):
    """Knows which keys are pinned, in which order."""

    async def pin(self, key: str, metadata: PinMetadata | None = None) -> Pin:
        """Pin a key, or change the metadata of a pinned key."""
        ...

    async def unpin(self, key: str) -> bool:
        """Unpin a key; return whether it was pinned."""
        ...

    async def list(self) -> Sequence[Pin]:
        """Return the pins, those to be shown first first."""
        ...


class KVPinRegistry:
    """The pins of one namespace, in one entry of a key-value memory; made by `create_pin_registry`.

    Tasks, threads and processes that pin and unpin at once lose nothing on a store that can compare and set (all of
    ours). On one that cannot, only the tasks of one event loop are safe.
    """

    def __init__(self, store: KVMemory, *, namespace: str, index_key: str, clock: Clock) -> None:
        self.namespace = namespace
        #: Key of the entry in which the pins lie.
        self.index_key = pin_index.index_key(namespace, index_key)
        self._reserved_prefix = f"{index_key}:"
        self._store = _validate_store(store)
        self._clock = clock

    async def pin(
        self,
        key: str,
        metadata: PinMetadata | None = None,
        *,
        label: str | None = None,
        role: Role | str | None = None,
        priority: float | None = None,
        tags: Sequence[str] = (),
    ) -> Pin:
        """Pin a key, or change the metadata of a pinned key; return the pin as stored.

        The new metadata replaces the old: a second call without a label removes the label. The value need not exist
        yet. `metadata` is an alternative to the arguments after it, and may have an `updated_at` of its own. Raise
        `ValidationError`, which names the last pins, when the namespace has too many.
        """
        validation.validate_key(key)
        if key.startswith(self._reserved_prefix):
            raise ValidationError(f"{key!r} is reserved for the list of pins", field="key")
        if metadata is None:
            metadata = PinMetadata(
                label=label,
                role=cast("Role | None", role),  # checked below, like the tags
                priority=priority,
                tags=cast("tuple[str, ...]", tags),
            )
        elif label is not None or role is not None or priority is not None or tags:
            raise ValidationError("give it, or label, role, priority and tags, not both", field="metadata")
        pin = Pin(key, pin_index.validate_pin_metadata(metadata))

        def change(entry: KVEntry | None) -> Json:
            return pin_index.add_pin(_data_of_entry(entry), self.index_key, pin, now=self._timestamp())

        stored = await update_entry(self._store, self.index_key, change)
        return pin_index.pin_of_key(stored.data, self.index_key, key)

    async def unpin(self, key: str) -> bool:
        """Unpin a key, whose value stays; return whether it was pinned."""
        validation.validate_key(key)
        was_pinned = False

        def change(entry: KVEntry | None) -> tuple[Json, Mapping[str, Json]] | None:
            nonlocal was_pinned
            data = _data_of_entry(entry)
            index = pin_index.remove_pin(data, self.index_key, key, now=self._timestamp())
            was_pinned = index is not data
            return (index, entry.metadata) if entry is not None and was_pinned else None

        await change_entry(self._store, self.index_key, change)
        return was_pinned

    async def list(self) -> tuple[Pin, ...]:
        """Return the pins: higher priority first, then the newest, then by key; none where there is no index."""
        return pin_index.parse_pins(_data_of_entry(await self._store.get(self.index_key)), self.index_key)

    def _timestamp(self) -> int:
        return to_microseconds(self._clock()) // 1000


def _validate_store(store: KVMemory) -> KVMemory:
    if not callable(getattr(store, "get", None)):
        raise ValidationError(
            f"must be a key-value memory, not {type(store).__name__}",
            field="store",
            options=("acms.kv.open_kv(url)",),
        )
    return store


def _lists_pins(registry: object) -> bool:
    """Return whether an object is a registry of pins, and not a key-value memory, which lists its own keys."""
    lists = callable(getattr(registry, "list", None))
    reads = callable(getattr(registry, "get", None))
    return lists and not reads and not isinstance(registry, type)


def _data_of_entry(entry: KVEntry | None) -> Json:
    return None if entry is None else entry.data


def create_pin_registry(
    store: KVMemory, *, namespace: str, index_key: str = INDEX_KEY, clock: Clock = utc_now
) -> KVPinRegistry:
    """Return the pins of a namespace, such as "user:123", in a key-value memory.

    They lie under the key `<index_key>:<namespace>`, in a shape that other programs read too. Nothing is read
    or written before the first call.
    """
    return KVPinRegistry(store, namespace=namespace, index_key=index_key, clock=clock)


class PinnedKV:
    """A part of a prompt that shows pinned values: one message, within a cap of tokens.

    At most the first `max_pins` are shown; a pin without a value is skipped and reported (`PinsSkipped`). `strategy` is
    `{"truncate_tokens": n}`, which omits whole pins from the last one on, then cuts the one that is left, or "omit",
    which omits all pins when the budget is short. The block is not shrunk below `reserve` tokens. `role` is the role of
    the block: system, developer or user, and always user when it contains a stored summary, which never instructs; the
    roles of single pins do not affect it. `format` formats one pin and its output is shown verbatim; by default a pin
    is written as `- key (label)` with its value indented below, and cannot pass for another.

    It holds no state: any number of renders may use it concurrently. The caller owns the store.
    """

    def __init__(
        self,
        *,
        store: KVMemory,
        namespace: str | None = None,
        registry: PinRegistry | None = None,
        max_pins: int = MAX_PINS,
        strategy: Mapping[str, int] | Literal["omit"] = MappingProxyType(
            {"truncate_tokens": TRUNCATE_TOKENS}
        ),
        role: Role | str = Role.DEVELOPER,
        priority: int = PINS,
        format: Callable[[Pinned], str] | None = None,
        reserve: int = 0,
    ) -> None:
        registry_namespace = getattr(registry, "namespace", None)
        if registry is None:
            if namespace is None:
                raise ValidationError("give it, or a registry", field="namespace")
            registry = create_pin_registry(store, namespace=namespace)
        elif not _lists_pins(registry):
            raise ValidationError(
                f"must be a pin registry, not {type(registry).__name__}",
                field="registry",
                options=("create_pin_registry(store, namespace=…)",),
            )
        elif namespace is not None and registry_namespace is not None and namespace != registry_namespace:
            raise ValidationError(
                f"is {namespace!r}, that of the registry is {registry_namespace!r}", field="namespace"
            )
        #: Whose pins they are: names them in events and errors.
        self.namespace = validation.validate_name(namespace or registry_namespace or "default", "namespace")
        self._registry = registry
        self._store = _validate_store(store)
        self._max_pins = validation.validate_integer(
            max_pins, "max_pins", minimum=1, maximum=pin_index.MOST_PINS
        )
        self._strategy = pin_index.parse_pin_strategy(strategy)
        self._role = pin_index.parse_block_role(role)
        self._priority = validation.validate_integer(priority, "priority")
        if format is not None and not callable(format):
            raise ValidationError(f"must be a function, not {type(format).__name__}", field="format")
        self._format = format or pin_index.format_pin
        self._reserve = self._validate_reserve(reserve)

    def _validate_reserve(self, reserve: int) -> int:
        """Return the tokens kept for the pins; an error if the strategy could not keep so many."""
        tokens = validation.validate_integer(reserve, "reserve", maximum=validation.BUDGET)
        if tokens and isinstance(self._strategy, Omit):
            raise ValidationError("has no effect with strategy='omit'", field="reserve")
        if not isinstance(self._strategy, Omit) and tokens > (self._strategy.tokens or 0):
            raise ValidationError(
                f"is {tokens}, more than the cap of {self._strategy.tokens}",
                field="reserve",
                options=("raise truncate_tokens",),
            )
        return tokens

    async def render(self, request: object = None) -> Scope:
        """Read the pins and their values, and return them as a scope; an empty one where nothing is pinned.

        The index is read first, then all values at once. If the request has a `tell`, it gets the event `PinsLoaded`,
        and `PinsSkipped` if pins were skipped.
        """
        pins = tuple(await self._registry.list())
        shown_pins, pins_beyond = pins[: self._max_pins], pins[self._max_pins :]
        entries = await asyncio.gather(*(self._store.get(pin.key) for pin in shown_pins))
        texts: list[tuple[str, str]] = []
        missing_keys: list[str] = []
        for pin, entry in zip(shown_pins, entries, strict=True):
            if entry is None:
                missing_keys.append(pin.key)
                continue
            pinned = Pinned(pin.key, entry.data, pin.metadata)
            texts.append((pin.key, pin_index.apply_formatter(pinned, self.namespace, self._format)))
        tell: Callable[[Event], object] | None = getattr(request, "tell", None)
        if tell is not None:
            tell(PinsLoaded(namespace=self.namespace, keys=tuple(key for key, _ in texts)))
            if missing_keys or pins_beyond:
                beyond_keys = tuple(pin.key for pin in pins_beyond)
                tell(PinsSkipped(namespace=self.namespace, missing=tuple(missing_keys), beyond=beyond_keys))
        return pin_index.build_pin_block(
            self.namespace,
            texts,
            # A summary never instructs: a block with one is the user's, whatever role was asked for.
            role=Role.USER if any(map(summary_coverage.is_stored, entries)) else self._role,
            priority=self._priority,
            strategy=self._strategy,
            floor=self._reserve,
        )
