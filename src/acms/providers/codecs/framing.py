"""Token costs of an OpenAI request besides its texts.

Published for messages of text (cookbook, "How to count tokens with tiktoken", section 6): three tokens a message, its
role, one and its name, and three for the reply. Tools are shown to a model as TypeScript, nine tokens around it; a
first system message takes them in, which saves four and adds a line break to its text. Found by H. Marr (openai-chat-
tokens, 2023, MIT) and the same to the token as what the cookbook reports for two vocabularies (section 7), whose own
recipe is off where there is no system message. Everything else is charged so that it is not too little:

- Newer models: at most the headers that the format of gpt-oss adds (cookbook, "OpenAI harmony response format"): the
  channel of an assistant message, the heading over instructions, the lines around a list of tools.
- A tool call: its id, name and arguments, and `CALL`. The longest form published is harmony's `<|start|>assistant
  <|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>`, 13 tokens.
- A tool result: its id, its output, and `RESULT`: `<|start|>functions.{name} to=assistant<|channel|>commentary
  <|message|>{output}<|end|>`, and the name again.
- Fields of a tool without a measured cost, such as defaults or alternatives: their JSON, which is longer than
  TypeScript.
- Media: the stated cost, else `MEDIA`, the most for an image in the tiled models (vision guide: 85 and 8 tiles of 170).
- An item kept verbatim: its JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from acms.errors import PayloadError
from acms.model import Json, Role
from acms.ports import TokenCounter
from acms.prompt_types import CacheMark, CacheRates, Tool

RECIPE = ("gpt-3.5-turbo", "gpt-35-turbo", "gpt-4", "chatgpt-4o")
"""Families of the counting recipe of the cookbook ("How to count tokens with tiktoken")."""

VOCABULARIES = (
    ("gpt-3.5-turbo", "cl100k_base"),
    ("gpt-35-turbo", "cl100k_base"),
    ("gpt-4o", "o200k_base"),
    ("chatgpt-4o", "o200k_base"),
    ("gpt-4.1", "o200k_base"),
    ("gpt-4.5", "o200k_base"),
    ("gpt-4", "cl100k_base"),
    ("gpt-5", "o200k_base"),
    ("gpt-oss", "o200k_base"),
    ("o1", "o200k_base"),
    ("o3", "o200k_base"),
    ("o4", "o200k_base"),
)
"""Vocabulary by prefix of the model's name, the first that fits (tiktoken 0.14, `model.py`).

That of gpt-oss has further special tokens, which no text becomes.
"""

_NOT_BY_RECIPE = re.compile(r"gpt-4\.|.*-(?:audio|search|realtime|transcribe|tts)\b")
"""Models whose names begin like those of the recipe and that are told more than they are sent."""
_OPENAI = re.compile(r"gpt-|chatgpt-|o\d|codex|computer-use")
_NUMBERED = re.compile(r"gpt-(\d+)(?:\.(\d+))?(?=-|\Z)")
_CACHED_A_DAY = re.compile(
    r"(?:gpt-5(?:\.[1245])?(?:-codex(?:-mini)?|-chat-latest|-pro)?|gpt-4\.1)(?:-\d{4}-\d\d-\d\d)?\Z"
)
_CACHE_READ_RATES = (
    ("gpt-4.1", 0.25),
    ("gpt-4o", 0.5),
    ("chatgpt-4o", 0.5),
    ("gpt-4.5", 0.5),
    ("o3-mini", 0.5),
    ("o1", 0.5),
    ("o3", 0.25),
    ("o4", 0.25),
)
"""Price of a cached token in units of the input's, by prefix of the model's name; a tenth for all others."""
_NO_CACHE = re.compile(r"gpt-3\.?5|gpt-4(?:-|\Z)|gpt-4o-2024-05-13")


class Published(NamedTuple):
    """The public facts about a model."""

    #: Name of the counter of its texts: its vocabulary, the newest public one for a model of OpenAI whose own is not
    #: public, or an estimate for a model of another vendor.
    counter: str
    has_public_vocabulary: bool
    is_unpublished_openai: bool
    #: Whether it is a model of another vendor, whose requests a chat template writes.
    uses_template: bool
    #: Whether the cookbook's recipe counts its requests.
    follows_recipe: bool
    #: Whether it thinks before it answers, as all newer ones do.
    reasons: bool
    #: Whether it reads prefixes from a prompt cache, only those that end at a breakpoint, and keeps them for a day.
    has_cache: bool
    has_breakpoints: bool
    keeps_a_day: bool
    #: Rates for prompt tokens that are read from the cache, and written to it.
    rates: CacheRates
    #: Whether it drops reasoning when what stood before it has changed.
    binds_reasoning: bool


def find_published_traits(model: str) -> Published:
    """Return the public facts about a model of this name; a fine-tuned one is like its base."""
    # ft:base:organisation:name
    base = model.split(":")[1] if model.startswith("ft:") and model.count(":") else model
    encoding = next((name for prefix, name in VOCABULARIES if base.startswith(prefix)), None)
    number = _NUMBERED.match(base)
    version: tuple[int, ...] = (int(number[1]), int(number[2] or 0)) if number else ()
    has_breakpoints = version >= (5, 6)
    uses_template = encoding is None and not _OPENAI.match(base)
    return Published(
        counter=encoding or ("cautious/1" if uses_template else "o200k_base"),
        has_public_vocabulary=encoding is not None,
        is_unpublished_openai=encoding is None and not uses_template,
        uses_template=uses_template,
        follows_recipe=base.startswith(RECIPE) and not _NOT_BY_RECIPE.match(base),
        reasons=not base.startswith(("gpt-3", "gpt-4", "chatgpt-4")),
        has_cache=not _NO_CACHE.match(base),
        has_breakpoints=has_breakpoints,
        keeps_a_day=bool(_CACHED_A_DAY.match(base)),
        rates=_find_cache_rates(base, version),
        binds_reasoning=version >= (6, 2),
    )


def _find_cache_rates(base: str, version: tuple[int, ...]) -> CacheRates:
    """Return the cache rates of a model (pricing page, November 2026): reads cost 5 to 50 % of the input's price."""
    if version >= (5, 6):
        return CacheRates(cached=0.05 if version >= (6, 1) else 0.1, write=1.25, long=2.5)
    read_rate = next((cached for prefix, cached in _CACHE_READ_RATES if base.startswith(prefix)), 0.1)
    return CacheRates(cached=read_rate if not _NO_CACHE.match(base) else 1.0)


TEMPLATE_MESSAGE = 4
TEMPLATE_SYSTEM = 28
TEMPLATE_TOOLS = 100
"""Tokens that the chat templates of open models write, at most: around a message (ChatML: two marks and two line
breaks), a default system message, and the instructions around tools.
Measured with Qwen2.5, SmolLM2 and Gemma 3."""

PER_MESSAGE = 3
PER_NAME = 1
PRIMER = 3
CALL = 16
RESULT = 16
RAW = 8
MEDIA = 1_445

TOOLS = 9
IN_SYSTEM_MESSAGE = -4
"""Tokens around the tools, and fewer where a system message takes them in."""
UNMEASURED_FIELD = 4
"""Tokens for the fields of a tool that were not measured, besides their JSON."""

_HEADERS = {Role.SYSTEM: 4, Role.DEVELOPER: 4, Role.USER: 0, Role.ASSISTANT: 2, Role.TOOL: 0}
"""Tokens that harmony has on top of the recipe: "# Instructions" and its blank line; a channel."""
_NAMESPACE = 40
"""Tokens around the tools in harmony: three headings, the namespace twice, the line that names their channel."""

KEY_CHARS = 64
"""The longest `prompt_cache_key` that is accepted."""

dump = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode
"""Write JSON so that equal values give equal texts."""


def to_plain_json(value: Json) -> Json:
    """Return a JSON value with plain objects and lists in it, whatever mappings and sequences it came in."""
    if isinstance(value, Mapping):
        return {key: to_plain_json(inner) for key, inner in value.items()}
    return [to_plain_json(inner) for inner in value] if isinstance(value, list | tuple) else value


def serialize_tool(tool: Tool, schema_field: str) -> dict[str, Json]:
    """Return a tool's name, description and schema as fields; formats name the field of the schema differently."""
    fields: dict[str, Json] = {"name": tool.name}
    if tool.description:
        fields["description"] = tool.description
    fields[schema_field] = to_plain_json(tool.parameters)
    return fields


def check_strings(payload: Mapping[str, Json]) -> None:
    """Raise `PayloadError` for a text that providers refuse: with half a surrogate pair or a NUL character in it."""
    try:
        serialized = dump(payload)
        serialized.encode()
    except UnicodeEncodeError:
        raise PayloadError("contains half a surrogate pair", field="payload") from None
    if "\\u0000" in serialized and _holds_nul(payload):
        raise PayloadError("contains a NUL character", field="payload")


def _holds_nul(value: Json) -> bool:
    """Return whether a text or a name anywhere in a JSON value has a NUL character."""
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, Mapping):
        return any(_holds_nul(item) for pair in value.items() for item in pair)
    return isinstance(value, list | tuple) and any(map(_holds_nul, value))


class Framing:
    """The tokens of everything that is not plain text, for one model and one counter."""

    def __init__(self, model: Published, counter: TokenCounter) -> None:
        self._model = model
        self._count = counter.count
        self._roles: dict[Role, int] = {}

    @property
    def primer(self) -> int:
        """Tokens of a request besides its messages and tools.

        For OpenAI's models, the tokens that begin the reply. For a chat template, those of the default system message
        that it adds to a request without one; the beginning of its reply is part of what a calibration always adds.
        """
        return TEMPLATE_SYSTEM if self._model.uses_template else PRIMER

    def count_default_system(self, roles: Iterable[str]) -> int:
        """Return the tokens of the default system message, included in `primer`, that these roles make unnecessary."""
        return TEMPLATE_SYSTEM if self._model.uses_template and Role.SYSTEM.value in roles else 0

    def role(self, role: Role) -> int:
        """Return the tokens of a message without its content and name."""
        cost = self._roles.get(role)
        if cost is None:
            # An open model with a chat template, not one of OpenAI's.
            if self._model.uses_template:
                frame = TEMPLATE_MESSAGE
            else:
                frame = PER_MESSAGE + (0 if self._model.follows_recipe else _HEADERS[role])
            cost = self._roles[role] = frame + self._count(role.value)
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

    def tools(self, functions: Sequence[Tool]) -> tuple[int, bool]:
        """Return an upper bound on the tokens of some tools, and whether it is exact for all of their fields."""
        if not functions:
            return 0, True
        if self._model.uses_template:
            return TEMPLATE_TOOLS + sum([self._tool_in_template(tool) for tool in functions]), False
        unmeasured: list[Json] = []
        rendered_tools = [_render_typescript(function, unmeasured) for function in functions]
        rendered = "\n".join(["namespace functions {\n", *rendered_tools, "} // namespace functions"])
        total = TOOLS + self._count(rendered) + (0 if self._model.follows_recipe else _NAMESPACE)
        total += sum([UNMEASURED_FIELD + self._count(dump(to_plain_json(field))) for field in unmeasured])
        return total, not unmeasured

    def _tool_in_template(self, tool: Tool) -> int:
        function = {
            "name": tool.name,
            "description": tool.description,
            "parameters": to_plain_json(tool.parameters),
        }
        serialized = json.dumps({"type": "function", "function": function}, ensure_ascii=False)
        return self._count(serialized)

    def count_tools_in_system(self, system: str) -> int:
        """Return the tokens to add, a negative number, if a system message takes in the tools."""
        return IN_SYSTEM_MESSAGE + self._count(system + "\n") - self._count(system)


def _render_typescript(function: Tool, unmeasured: list[Json]) -> str:
    """Return a tool as TypeScript; append the fields whose rendering has not been measured to `unmeasured`."""
    schema = function.parameters if isinstance(function.parameters, Mapping) else {}
    if function.strict:
        unmeasured.append("strict")
    _collect_unmeasured_fields(schema, "object", unmeasured)
    comment = _render_comment(function.description, unmeasured)
    if not schema.get("properties"):
        return f"{comment}type {function.name} = () => any;\n"
    return (
        f"{comment}type {function.name} = (_: {{\n{_render_properties(schema, 0, unmeasured)}\n}}) => any;\n"
    )


_MEASURED_FIELDS: Mapping[str, frozenset[str]] = {
    "string": frozenset(("type", "description", "enum")),
    "number": frozenset(("type", "description")),
    "integer": frozenset(("type", "description")),
    "boolean": frozenset(("type", "description")),
    "array": frozenset(("type", "description", "items")),
    "object": frozenset(("type", "description", "properties", "required")),
}
"""What a property of a type can have for its form to be known."""


def _collect_unmeasured_fields(schema: Mapping[str, Json], kind: str, unmeasured: list[Json]) -> None:
    unmeasured_fields = {key: value for key, value in schema.items() if key not in _MEASURED_FIELDS[kind]}
    if unmeasured_fields:
        unmeasured.append(unmeasured_fields)


def _render_comment(description: Json, unmeasured: list[Json]) -> str:
    if not isinstance(description, str) or "\n" in description:
        unmeasured.append(description)
        return ""
    return f"// {description}\n" if description else ""


def _render_properties(schema: Mapping[str, Json], indent: int, unmeasured: list[Json]) -> str:
    """Return the properties of an object as lines of TypeScript."""
    properties, required = schema["properties"], schema.get("required", ())
    if not isinstance(properties, Mapping) or not isinstance(required, list | tuple):
        unmeasured.append(schema)
        return ""
    lines: list[str] = []
    for name, property in properties.items():
        description = property.get("description", "") if isinstance(property, Mapping) else ""
        lines += _render_comment(description, unmeasured).splitlines()
        optional_sign = "" if name in required else "?"
        lines.append(f"{name}{optional_sign}: {_render_type(property, indent, unmeasured)},")
    return "\n".join([" " * indent + line for line in lines])


def _render_type(schema: Json, indent: int, unmeasured: list[Json]) -> str:
    """Return the TypeScript type of a schema; what has not been measured is added to `unmeasured`."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if not isinstance(kind, str) or kind not in _MEASURED_FIELDS:
        unmeasured.append(schema)
        return "any"
    _collect_unmeasured_fields(schema, kind, unmeasured)
    match kind:
        case "string" if "enum" in schema:
            return _render_choices(schema["enum"], unmeasured)
        case "array":
            items = _render_type(schema["items"], indent, unmeasured) if "items" in schema else "any"
            return f"{items}[]"
        case "object" if not schema.get("properties"):
            unmeasured.append("object")
            return "object"
        case "object":
            return f"{{\n{_render_properties(schema, indent + 2, unmeasured)}\n}}"
        case "integer":
            return "number"
        case _:
            return kind


def _render_choices(choices: Json, unmeasured: list[Json]) -> str:
    """Return the choices of an enumeration as a TypeScript union; only texts have been measured."""
    is_list = isinstance(choices, list | tuple) and choices
    if not is_list or not all(isinstance(choice, str) for choice in choices):
        unmeasured.append(choices)
        return "string"
    return " | ".join([f'"{choice}"' for choice in choices])


def cache_key(mark: CacheMark, tools: Json, messages: Iterable[Json]) -> str:
    """Return the key of a prefix: the caller's name for it, and a digest of its content, within `KEY_CHARS`."""
    content = dump([tools, list(messages)])
    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    name = f"{mark.id}:{mark.version}"
    if len(name) > KEY_CHARS - len(f"acms::{digest}"):
        name = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"acms:{name}:{digest}"
