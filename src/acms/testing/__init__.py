"""Suites that are shipped for third parties: a store or an embedder that passes its suite keeps the promise.

The suites need pytest and hypothesis, which the package itself does not, so they are imported on first use.
`HashEmbedder` needs neither.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from acms.errors import ConfigurationError

if TYPE_CHECKING:
    from acms.testing.embedder import EmbedderTests
    from acms.testing.hash_embedder import HashEmbedder
    from acms.testing.kv import KVMemoryTests
    from acms.testing.logs import ManualClock, sound
    from acms.testing.storage import StorageBackendTests
    from acms.testing.story import StorageStory, run_story

__all__ = [
    "EmbedderTests",
    "HashEmbedder",
    "KVMemoryTests",
    "ManualClock",
    "StorageBackendTests",
    "StorageStory",
    "run_story",
    "sound",
]

_MODULES = {
    "EmbedderTests": "embedder",
    "HashEmbedder": "hash_embedder",
    "KVMemoryTests": "kv",
    "ManualClock": "logs",
    "StorageBackendTests": "storage",
    "StorageStory": "story",
    "run_story": "story",
    "sound": "logs",
}
_SHARED = ("logs", "books")
"""Modules that the suites use."""


def __getattr__(name: str) -> Any:
    """Import a name on first use."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if module != "hash_embedder":
        _explain_failed_assertions(name, module)
    return getattr(import_module(f"{__name__}.{module}"), name)


def _explain_failed_assertions(name: str, module: str) -> None:
    """Let pytest explain the failed assertions of a suite; without pytest there is no suite."""
    try:
        import pytest
    except ImportError as missing:
        raise ConfigurationError(
            f"acms.testing.{name} is made of pytest tests, and {missing.name} is not installed",
            options=("pip install pytest anyio hypothesis",),
        ) from missing
    for each in (module, *_SHARED):
        pytest.register_assert_rewrite(f"{__name__}.{each}")
