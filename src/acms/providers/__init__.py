"""AI models behind a port: token counters, embedders, summarizers, reflectors.

What needs an extra is imported when asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acms.providers.extractive import ExtractiveSummarizer
    from acms.providers.local import LocalEmbedder
    from acms.providers.offline import OfflineReflector

__all__ = ["ExtractiveSummarizer", "LocalEmbedder", "OfflineReflector"]

_ROOMS = {"ExtractiveSummarizer": "extractive", "LocalEmbedder": "local", "OfflineReflector": "offline"}


def __getattr__(name: str) -> Any:
    """Import numpy and the model on first use."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
