"""The knowledge sources of a service, from a file: `/orchestration/render` asks them besides the contexts.

[[sources]]
layer = "L2"
url = "https://kb.example.com/v1/search"
name = "handbook"                        # else the host
key_env = "HANDBOOK_KEY"                 # the variable of the environment that holds its key
deadline_ms = 200                        # else the layer's
timeout = 5.0
max_retries = 1
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from acms.errors import ConfigurationError
from acms.providers.http_source import HTTPSource

__all__ = ["load_http_sources"]

_FIELDS: Mapping[str, tuple[type, ...]] = {
    "layer": (str,), "url": (str,), "name": (str,), "key_env": (str,), "deadline_ms": (int, float),
    "timeout": (int, float), "max_retries": (int,),
}  # fmt: skip


def load_http_sources(file: Path, environment: Mapping[str, str] = os.environ) -> list[HTTPSource]:
    """Return the sources of a TOML file; the caller closes them. Raise `ConfigurationError` for a bad file."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:  # also bytes that are no UTF-8
        raise ConfigurationError(f"{file} is not TOML: {error}") from error
    extra = sorted(set(document) - {"sources"})
    if extra:
        raise ConfigurationError(f"{file} has {', '.join(extra)}: there are [[sources]] only")
    tables = document.get("sources", [])
    if not isinstance(tables, list):
        raise ConfigurationError(f"{file}: write each source below a line [[sources]]")
    return [
        _build_source(table, f"{file}: source {number}", environment)
        for number, table in enumerate(tables, 1)
    ]


def _build_source(table: Any, label: str, environment: Mapping[str, str]) -> HTTPSource:
    """Create the source that a table describes; `label` names the table in errors."""
    if not isinstance(table, dict):
        raise ConfigurationError(f"{label}: write each source below a line [[sources]]")
    options: dict[str, Any] = dict(table)
    for name, value in options.items():
        if name not in _FIELDS:
            raise ConfigurationError(f"{label}: {name} is unknown", options=tuple(_FIELDS))
        if isinstance(value, bool) or not isinstance(value, _FIELDS[name]):
            raise ConfigurationError(f"{label}: {name} must be {_FIELDS[name][0].__name__}")
    for name in ("layer", "url"):
        if name not in options:
            raise ConfigurationError(f"{label}: {name} is missing")
    variable = options.pop("key_env", None)
    api_key = None if variable is None else environment.get(variable)
    if variable is not None and not api_key:
        raise ConfigurationError(f"{label}: {variable} is not set in the environment")
    try:
        return HTTPSource(options.pop("url"), api_key=api_key, **options)
    except ConfigurationError as error:
        raise ConfigurationError(f"{label}: {error}", options=error.options) from error
