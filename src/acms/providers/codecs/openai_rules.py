"""What both APIs of OpenAI refuse: tools, names and cache keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from acms.errors import PayloadError
from acms.model import Json
from acms.providers.codecs.framing import KEY_CHARS

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
"""A name of a tool, and of who speaks."""
FUNCTIONS = 128
"""Tools that a request may offer."""


def fault(message: str, field: str, *options: str) -> PayloadError:
    """Return the error of a payload that would be refused."""
    return PayloadError(message, field=field, options=options)


def check_key(payload: Mapping[str, Json]) -> None:
    """Raise `PayloadError` for a key of the prompt cache that is too long."""
    key = payload.get("prompt_cache_key", "")
    if not isinstance(key, str) or len(key) > KEY_CHARS:
        raise fault(f"must be a string of at most {KEY_CHARS} characters", "prompt_cache_key")


def check_name(name: Json, field: str) -> None:
    """Raise `PayloadError` for what is no name of a tool."""
    if not isinstance(name, str) or not NAME.match(name):
        raise fault("must have 1 to 64 letters, digits, _ and -", field)


def check_tools(payload: Mapping[str, Json], function_of: Callable[[Mapping[str, Json]], Json]) -> None:
    """Raise `PayloadError` for tools that would be refused; `function_of` is None for one that is no function."""
    if "tools" not in payload:
        return
    tools = payload["tools"]
    if not isinstance(tools, list) or not 1 <= len(tools) <= FUNCTIONS:
        raise fault(f"must be a list of 1 to {FUNCTIONS} tools: leave it out without one", "tools")
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        field = f"tools[{index}]"
        offered = function_of(tool) if isinstance(tool, Mapping) else {}
        if offered is None:
            continue
        if not isinstance(offered, Mapping) or not offered:
            raise fault('must be a tool of the type "function"', field)
        check_name(offered.get("name"), f"{field}.name")
        if offered["name"] in seen:
            raise fault("must be another name than that of the tools before it", f"{field}.name")
        seen.add(offered["name"])
        schema = offered.get("parameters", {"type": "object"})
        if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
            raise fault('must be a JSON Schema of {"type": "object"}', f"{field}.parameters")
        if offered.get("strict") and not _closed(schema):
            raise fault(
                'of a strict tool must say "additionalProperties": false and list every property in "required": '
                "write it so, or leave `strict` out",
                f"{field}.parameters",
            )


def _closed(schema: Mapping[str, Json]) -> bool:
    every = set(schema.get("properties", ()))
    return schema.get("additionalProperties") is False and every == set(schema.get("required", ()))
