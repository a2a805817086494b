"""AI models behind a port: token counters and embedders. What needs an extra is imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acms.providers.local import LocalEmbedder

__all__ = ["LocalEmbedder"]


def __getattr__(name: str) -> Any:
    """Import numpy and the embedder on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from acms.providers import local

    return getattr(local, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
