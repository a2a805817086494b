"""The sources of a service: what `/orchestration/render` asks beside the contexts of a request, from a file.

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
    """Return the sources that a TOML file names; the caller closes them. Raise `ConfigurationError` for a bad file."""
    try:
        read = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:  # also bytes that are no UTF-8
        raise ConfigurationError(f"{file} is no TOML: {error}") from error
    if extra := set(read) - {"sources"}:
        raise ConfigurationError(f"{file} has {', '.join(sorted(extra))}: there are [[sources]] only")
    listed = read.get("sources", [])
    if not isinstance(listed, list):
        raise ConfigurationError(f"{file}: write each source below a line [[sources]]")
    return [
        _build_source(one, f"{file}: source {number}", environment) for number, one in enumerate(listed, 1)
    ]


def _build_source(given: Any, where: str, environment: Mapping[str, str]) -> HTTPSource:
    if not isinstance(given, dict):
        raise ConfigurationError(f"{where}: write each source below a line [[sources]]")
    for name, value in given.items():
        if name not in _FIELDS:
            raise ConfigurationError(f"{where}: {name} is unknown", options=tuple(_FIELDS))
        if isinstance(value, bool) or not isinstance(value, _FIELDS[name]):
            raise ConfigurationError(f"{where}: {name} must be {_FIELDS[name][0].__name__}")
    if missing := [name for name in ("layer", "url") if name not in given]:
        raise ConfigurationError(f"{where}: {missing[0]} is missing")
    options = {name: value for name, value in given.items() if name not in ("url", "key_env")}
    key = given.get("key_env")
    if key is not None and not environment.get(key):
        raise ConfigurationError(f"{where}: {key} is not set in the environment")
    try:
        return HTTPSource(given["url"], api_key=None if key is None else environment[key], **options)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}", options=error.options) from error
