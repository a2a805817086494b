"""Import the names of a package on first use (PEP 562), to avoid the cost of unused modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def lazy_attributes(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package; `homes` maps each lazy name to its module.

    `dir` lists the names in `__all__` and the modules of the package, but not what its code imports for itself.
    """

    def find(name: str) -> Any:
        if name in homes:
            return getattr(import_module(homes[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        values = vars(sys.modules[package])
        modules = [name for name, value in values.items() if isinstance(value, ModuleType)]
        special = [name for name in values if name.startswith("__")]
        return sorted({*values.get("__all__", homes), *modules, *special})

    return find, names
