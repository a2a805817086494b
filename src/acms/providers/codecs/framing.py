"""What a request of OpenAI consists of besides texts, in tokens.

Published for messages of text and for tools of plain parameters (cookbook, "How to count tokens with tiktoken",
sections 6 and 7): three tokens a message, its role, one and its name, and three for the reply; the constants of a tool
below. Everything else is charged so that it is not too little:

- Newer models: at most the headers that the format of gpt-oss adds (cookbook, "OpenAI harmony response format"): the
  channel of an assistant message, the heading over instructions, the lines around a list of tools.
- A tool call: its id, name and arguments, and `CALL`. The longest form published is harmony's `<|start|>assistant
  <|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>`, 13 tokens.
- A tool result: its id, its output, and `RESULT`: `<|start|>functions.{name} to=assistant<|channel|>commentary
  <|message|>{output}<|end|>`, and the name again.
- Parameters that the recipe does not cover: their JSON, which is longer than the TypeScript that a model is shown.
- Media: what was stated, else `MEDIA`, the most that an image costs in the tiled models (vision guide: 85 and eight
  tiles of 170).
- An item kept verbatim: its JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from acms.composition import CacheMark
from acms.model import Json, Role
from acms.protocols import TokenCounter
from acms.providers.codecs.openai_models import Published

PER_MESSAGE = 3
PER_NAME = 1
PRIMER = 3
CALL = 16
RESULT = 16
RAW = 8
MEDIA = 1_445

FUNCTION_OLD, FUNCTION = 10, 7
PROPERTIES, PROPERTY = 3, 3
ENUM, ENUM_ITEM = -3, 3
TOOLS = 12

_HEADERS = {Role.SYSTEM: 4, Role.DEVELOPER: 4, Role.USER: 0, Role.ASSISTANT: 2, Role.TOOL: 0}
"""Tokens that harmony has on top of the recipe: "# Instructions" and its blank line; a channel."""
_NAMESPACE = 40
"""Tokens around the tools in harmony: three headings, the namespace twice, the line that names their channel."""

KEY_CHARS = 64
"""The longest `prompt_cache_key` that is accepted."""

dump = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode
"""Write JSON so that equal values give equal texts."""


def thawed(value: Json) -> Json:
    """Return a JSON value with plain objects and lists in it, whatever mappings and sequences it came in."""
    if isinstance(value, Mapping):
        return {key: thawed(inner) for key, inner in value.items()}
    return [thawed(inner) for inner in value] if isinstance(value, list | tuple) else value


class Function(NamedTuple):
    """A tool as either API is told of it."""

    name: str
    description: str
    parameters: Json
    strict: bool


class Framing:
    """The tokens of everything that is not plain text, for one model and one counter."""

    def __init__(self, model: Published, counter: TokenCounter) -> None:
        self._model = model
        self._count = counter.count
        self._roles: dict[Role, int] = {}

    def role(self, role: Role) -> int:
        """Return the tokens of a message without its content and name."""
        cost = self._roles.get(role)
        if cost is None:
            extra = 0 if self._model.recipe else _HEADERS[role]
            cost = self._roles[role] = PER_MESSAGE + extra + self._count(role.value)
        return cost

    def name(self, name: str) -> int:
        """Return the tokens of the name of who speaks."""
        return PER_NAME + self._count(name)

    def call(self, call_id: str, name: str, arguments: str) -> int:
        """Return the tokens of one tool call in an assistant message."""
        return CALL + self._count(f"{call_id} {name} {arguments}")

    def result(self, call_id: str) -> int:
        """Return the tokens of a tool result without its output."""
        return RESULT + self._count(call_id) + self.role(Role.TOOL)

    def raw(self, item: str) -> int:
        """Return the tokens of an item that is kept verbatim."""
        return RAW + self._count(item)

    def tools(self, functions: Sequence[Function]) -> tuple[int, bool]:
        """Return the tokens of a list of tools, and whether all of them are as the recipe has them."""
        if not functions:
            return 0, True
        total = TOOLS if self._model.recipe else TOOLS + _NAMESPACE
        plain = True
        for function in functions:
            tokens, covered = self._function(function)
            total += tokens
            plain = plain and covered
        return total, plain

    def _function(self, function: Function) -> tuple[int, bool]:
        count = self._count
        line = f"{function.name}:{function.description.removesuffix('.')}"
        total = (FUNCTION_OLD if self._model.encoding == "cl100k_base" else FUNCTION) + count(line)
        properties = _plain_properties(function)
        if properties is None:
            return total + PROPERTIES + count(json.dumps(function.parameters, ensure_ascii=False)), False
        if properties:
            total += PROPERTIES
        for name, of in properties.items():
            total += PROPERTY
            if "enum" in of:
                total += ENUM + sum(ENUM_ITEM + count(item) for item in of["enum"])
            total += count(f"{name}:{of['type']}:{of['description'].removesuffix('.')}")
        return total, True


def _plain_properties(function: Function) -> Mapping[str, Mapping[str, Json]] | None:
    """Return the parameters of a tool that the recipe covers, None for one that it does not."""
    schema = function.parameters
    if function.strict or not function.description or not isinstance(schema, Mapping):
        return None
    if not schema.keys() <= {"type", "properties", "required"} or schema.get("type") != "object":
        return None
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        return None
    for of in properties.values():
        if not isinstance(of, Mapping) or not {"type", "description"} <= of.keys() <= _KNOWN:
            return None
        if of["type"] not in _TYPES or not isinstance(of["description"], str):
            return None
        items = of.get("enum", [""])
        if not isinstance(items, list | tuple) or not items or not all(isinstance(one, str) for one in items):
            return None
    return properties


_KNOWN = frozenset(("type", "description", "enum"))
_TYPES = ("string", "number", "integer", "boolean")


def cache_key(mark: CacheMark, tools: Json, messages: Iterable[Json]) -> str:
    """Return the key of a prefix: the caller's name for it, and a digest of its content, within `KEY_CHARS`."""
    content = dump([tools, list(messages)])
    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    name = f"{mark.id}:{mark.version}"
    if len(name) > KEY_CHARS - len(f"acms::{digest}"):
        name = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"acms:{name}:{digest}"
