"""What can be called from outside: exported names with their signatures, HTTP operations, commands; not their words."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from acms.server import ServerConfig, create_app
from tests.conventions.reference import listed_by

from .book import Records
from .cli import application
from .sources import Talk

MODULES = (
    "acms acms.sync acms.prompt acms.codecs acms.pins acms.kv acms.acs acms.ceo acms.storage acms.providers "
    "acms.testing acms.client acms.evaluation acms.errors acms.server"
).split()
_QUALIFIED = re.compile(r"\b(?:[a-zA-Z_]\w*\.)+(?=[A-Za-z_])")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


# ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def names(_talk: Talk) -> Records:
    """Write every exported name: of a function its signature, of a class what can be seen of it."""
    found: Records = {}
    for module in map(importlib.import_module, MODULES):
        listed = listed_by(module)
        found[f"names {module.__name__}"] = listed
        for name in listed:
            value = getattr(module, name)
            if module.__name__ != "acms" and name not in ("ACMS", "View") and _again(name, value):
                continue
            found[f"name {module.__name__} {name}"] = _described(value)
    return found


def _again(name: str, value: object) -> bool:
    return getattr(importlib.import_module("acms"), name, None) is value


def _described(value: Any) -> Any:
    if inspect.isclass(value):
        return {"class": _bases(value), "call": _signature(value), "members": dict(sorted(_members(value)))}
    if callable(value) and hasattr(value, "__name__"):
        return _signature(value)
    return f"{type(value).__name__}"


def _bases(kind: type) -> list[str]:
    """Return the public classes it is one of: of errors and nouns, not how it is put together."""
    front = vars(importlib.import_module("acms")).values()
    return [one.__name__ for one in kind.__mro__[1:] if one in front or not _ours(one)]


def _ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("acms", "acms_eval")


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    if issubclass(kind, enum.Enum):
        yield from ((one.name, one.value) for one in kind)
    if dataclasses.is_dataclass(kind):
        yield from ((one.name, f"field {_annotation(one.type)}") for one in dataclasses.fields(kind))
    for name in dir(kind):
        owner = next((one for one in kind.__mro__ if name in vars(one)), None)
        if name.startswith("_") or owner is None or not _ours(owner):
            continue
        member = vars(owner)[name]
        if isinstance(member, staticmethod | classmethod):
            yield name, f"{type(member).__name__} {_signature(member.__func__)}"
        elif inspect.isfunction(member):
            yield name, _signature(member)
        elif isinstance(member, property) or hasattr(member, "func"):
            yield name, "property"


def _signature(value: Callable[..., Any]) -> str:
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(…)"
    kinds = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parts, bare = [], False
    for one in found.parameters.values():
        if one.kind is inspect.Parameter.KEYWORD_ONLY and not bare:
            parts.append("*")
        bare = bare or one.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)
        text = kinds.get(one.kind, "") + one.name
        if one.annotation is not inspect.Parameter.empty:
            text += f": {_annotation(one.annotation)}"
        parts.append(text if one.default is inspect.Parameter.empty else f"{text} = {_default(one.default)}")
    result = (
        ""
        if found.return_annotation is inspect.Signature.empty
        else f" -> {_annotation(found.return_annotation)}"
    )
    prefix = "async " if inspect.iscoroutinefunction(value) else ""
    return f"{prefix}({', '.join(parts)}){result}"


def _annotation(value: Any) -> str:
    """Write a type as it is called, not where it lives."""
    text = value if isinstance(value, str) else inspect.formatannotation(value)
    return _QUALIFIED.sub("", text)


def _default(value: Any) -> str:
    if callable(value) and not isinstance(value, type):
        return "<function>"
    return _QUALIFIED.sub("", _ADDRESS.sub("", repr(value)))


# ── HTTP ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def http(_talk: Talk) -> Records:
    """Write every operation: parameters, names of what it takes and gives, status codes."""
    document = await _document()
    schemas = document["components"]["schemas"]
    found: Records = {"http version": document["openapi"]}
    for path, methods in document["paths"].items():
        for method, said in methods.items():
            found[f"http {method.upper()} {path}"] = {
                "id": said.get("operationId"),
                "parameters": sorted(_parameter(one, document) for one in said.get("parameters", [])),
                "takes": _media(said.get("requestBody", {}).get("content", {})),
                "gives": {code: _answer(one) for code, one in said["responses"].items()},
                "security": said.get("security"),
            }
    for name, schema in schemas.items():
        found[f"schema {name}"] = _shape(schema)
    found["http problem"] = _shape(document["components"]["responses"]["Problem"])
    return found


async def _document() -> dict[str, Any]:
    """Ask the application for its document, without a server."""
    sent: list[Mapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": "/openapi.json", "raw_path": b"/openapi.json", "query_string": b"", "root_path": "",
        "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    app = create_app("memory://", ServerConfig(auth="off"))
    await app(scope, receive, send)
    found: dict[str, Any] = json.loads(b"".join(one.get("body", b"") for one in sent))
    return found


def _parameter(one: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    if "$ref" in one:
        one = document["components"]["parameters"][one["$ref"].rpartition("/")[2]]
    needed = "!" if one.get("required") else ""
    return f"{one['in']} {one['name']}{needed} {json.dumps(_shape(one.get('schema', {})), sort_keys=True)}"


def _answer(one: Mapping[str, Any]) -> Any:
    if "$ref" in one:
        return one["$ref"].rpartition("/")[2]
    names = {name: sorted(one[name]) for name in ("headers", "links") if one.get(name)}
    return {"media": _media(one.get("content", {})), **names}


def _media(content: Mapping[str, Any]) -> Any:
    return {media: _shape(one.get("schema", {})) for media, one in content.items()}


_WORDS = {"description", "title", "summary", "examples", "example"}


def _shape(schema: Any, *, named: bool = False) -> Any:
    """Return a schema without its words; `named` says that the keys are names, which may be any word."""
    if isinstance(schema, Mapping):
        return {
            key: _shape(value, named=key == "properties" and not named)
            for key, value in schema.items()
            if named or key not in _WORDS
        }
    return [_shape(one) for one in schema] if isinstance(schema, list) else schema


# ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def commands(_talk: Talk) -> Records:
    """Write every command: its arguments and options with defaults."""
    import typer.main

    return dict(_commands(typer.main.get_command(application()), "acms"))


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield f"command {path.replace(' ', '/')}", [_option(one) for one in command.params]
    for name, one in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(one, f"{path} {name}")


def _option(one: Any) -> str:
    """Write an argument or an option on a line."""
    kind = one.type_descriptor.annotation
    words = ["/".join([*one.opts, *one.secondary_opts]), getattr(kind, "__name__", str(kind))]
    words += [name for name in ("required", "multiple", "hidden", "is_eager") if getattr(one, name, False)]
    words += [
        f"{name}={getattr(one, name)}"
        for name in ("min", "max", "envvar", "metavar")
        if getattr(one, name, None) is not None
    ]
    words += [f"nargs={one.nargs}"] if one.nargs != 1 else []
    words += [] if one.default is None else [f"default={_default(one.default)}"]
    return " ".join(words)
