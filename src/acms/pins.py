"""Pins: values under keys that a prompt always shows, within a token budget.

registry = create_pin_registry(kv, namespace="user:123")
await registry.pin("profile", label="User profile", priority=10)
"""

from acms.prompt.pins import (
    KVPinRegistry,
    Pin,
    PinMetadata,
    Pinned,
    PinnedKV,
    PinRegistry,
    create_pin_registry,
)

__all__ = ["KVPinRegistry", "Pin", "PinMetadata", "PinRegistry", "Pinned", "PinnedKV", "create_pin_registry"]
