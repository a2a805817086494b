"""Entries as plain JSON: what a store keeps and an export carries. Reading never revives anything but known values.

An unknown part or kind is a `CorruptRecordError`, never an import (T44).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from acms.errors import CorruptRecordError
from acms.model import (
    EMPTY,
    Context,
    Entry,
    Json,
    Kind,
    Media,
    Origin,
    Part,
    Privacy,
    Raw,
    Reasoning,
    Role,
    State,
    Text,
    ToolCall,
    ToolResult,
)

FORMAT = 1
"""Version of the export format."""


def parts_to_json(parts: Sequence[Part]) -> list[dict[str, Json]]:
    """Write parts as JSON objects."""
    written: list[dict[str, Json]] = []
    for part in parts:
        match part:
            case Text(text):
                written.append({"type": "text", "text": text})
            case Reasoning(text, signature):
                written.append({"type": "reasoning", "text": text, "signature": signature})
            case ToolCall(call_id, name, arguments):
                written.append(
                    {"type": "tool_call", "call_id": call_id, "name": name, "arguments": arguments}
                )
            case ToolResult(call_id, output, is_error):
                written.append(
                    {"type": "tool_result", "call_id": call_id, "output": output, "is_error": is_error}
                )
            case Media(mime, ref, sha256, tokens):
                written.append(
                    {"type": "media", "mime": mime, "ref": ref, "sha256": sha256, "tokens": tokens}
                )
            case Raw(vendor, raw):
                written.append({"type": "raw", "vendor": vendor, "json": raw})
    return written


_PARTS: Mapping[str, type[Part]] = {
    "text": Text,
    "reasoning": Reasoning,
    "tool_call": ToolCall,
    "tool_result": ToolResult,
    "media": Media,
    "raw": Raw,
}


def parts_from_json(written: Sequence[Mapping[str, Json]]) -> tuple[Part, ...]:
    """Read parts back."""
    return tuple(
        _PARTS[item["type"]](**{name: value for name, value in item.items() if name != "type"})
        for item in written
    )


def spans_from_json(written: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """Read spans of versions."""
    return tuple((int(first), int(last)) for first, last in written)


dump = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode
"""Write JSON the way every store writes it."""


def dump_flat(values: Mapping[str, Json]) -> str:
    """Write a mapping as `dump` does, in a fraction of the time when it holds whole numbers under plain names only."""
    items: list[str] = []
    for name in sorted(values):
        value = values[name]
        if type(value) is not int or not name.isidentifier():
            return dump(dict(values))
        items.append(f'"{name}":{value}')
    return "{" + ",".join(items) + "}"


def load_mapping(written: str | None) -> Mapping[str, Json]:
    """Read a JSON object; the shared empty mapping for None."""
    if written is None:
        return EMPTY
    try:
        value = json.loads(written)
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptRecordError(f"expected a JSON object: {error}") from error
    if not isinstance(value, dict):
        raise CorruptRecordError("expected a JSON object")
    return MappingProxyType(value)


def entry_to_json(entry: Entry) -> dict[str, Json]:
    """Write an entry with everything `restore` needs; fields with their default value are left out."""
    written: dict[str, Json] = {
        "version": entry.version,
        "id": entry.id,
        "kind": entry.kind,
        "created_at": entry.created_at.isoformat(),
        "content": entry.content,
        "tokens": entry.tokens,
        "total": entry.total,
        "batch": entry.batch,
        "origin": entry.origin,
        "digest": entry.digest.hex(),
        "chain": entry.chain.hex(),
        "context": entry.context,
    }
    optional: dict[str, Json] = {
        "position": entry.position,
        "key": entry.key,
        "role": entry.role,
        "actor": entry.actor,
        "parts": parts_to_json(entry.parts),
        "markers": list(entry.markers),
        "detected": entry.detected,
        "episode": entry.episode,
        "closes": entry.closes,
        "group": entry.group,
        "covers": entry.covers,
        "replaces": list(entry.replaces),
        "sources": list(entry.sources),
        "data": dict(entry.data),
        "metadata": dict(entry.metadata),
        "salt": base64.b64encode(entry.salt).decode() if entry.salt is not None else None,
    }
    written.update({name: value for name, value in optional.items() if value})
    if entry.privacy is not Privacy.ALLOW:
        written["privacy"] = entry.privacy
    if entry.state is not State.LIVE:
        written["state"] = entry.state
    return written


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where a text belongs")
    return value


def _optional(value: object) -> str | None:
    return None if value is None else _text(value)


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{type(value).__name__} where a number belongs")
    return value


def _time(value: str) -> datetime:
    found = datetime.fromisoformat(value)
    if found.tzinfo is None:
        raise ValueError(f"{value} names no time zone")
    return found.astimezone(UTC)


_FIELD_TYPES: Mapping[str, Any] = {"signature": str | None, "is_error": bool, "tokens": int}


def _checked_parts(written: Sequence[Mapping[str, Json]]) -> tuple[Part, ...]:
    """Read parts of an export, which nobody has checked before."""
    for item in written:
        for name, value in item.items():
            if not isinstance(value, _FIELD_TYPES.get(name, str)):
                raise TypeError(f"{type(value).__name__} in {name} of a part")
    return parts_from_json(written)


def entry_from_json(written: Mapping[str, Json]) -> Entry:
    """Read an exported entry; `CorruptRecordError` when it is not one."""
    try:
        salt = written.get("salt")
        covers = written.get("covers")
        role = written.get("role")
        return Entry(
            kind=Kind(written["kind"]),
            content=_text(written["content"]),
            key=_optional(written.get("key")),
            created_at=_time(written["created_at"]),
            tokens=_number(written["tokens"]),
            origin=Origin(written["origin"]),
            privacy=Privacy(written.get("privacy", "allow")),
            role=None if role is None else Role(role),
            actor=_optional(written.get("actor")),
            parts=_checked_parts(written.get("parts", ())),
            markers=tuple(_text(marker) for marker in written.get("markers", ())),
            detected=bool(written.get("detected", False)),
            episode=_number(written.get("episode", 0)),
            closes=_optional(written.get("closes")),
            group=_optional(written.get("group")),
            covers=None if covers is None else (int(covers[0]), int(covers[1])),
            replaces=spans_from_json(written.get("replaces", ())),
            sources=tuple(_text(source) for source in written.get("sources", ())),
            data=MappingProxyType(dict(written.get("data", {}))),
            metadata=MappingProxyType(dict(written.get("metadata", {}))),
            context=_text(written["context"]),
            version=_number(written["version"]),
            position=None if written.get("position") is None else _number(written["position"]),
            id=_text(written["id"]),
            batch=_number(written["batch"]),
            total=_number(written["total"]),
            salt=None if salt is None else base64.b64decode(salt),
            digest=bytes.fromhex(written["digest"]),
            chain=bytes.fromhex(written["chain"]),
            state=State(written.get("state", "live")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise CorruptRecordError(f"this is not an exported entry: {error}") from error


def context_to_json(context: Context) -> dict[str, Json]:
    """Write a context: the first line of an export."""
    return {
        "acms": FORMAT,
        "id": context.id,
        "namespace": context.namespace,
        "key": context.key,
        "root": context.root,
        "parent": context.parent,
        "fork": context.fork,
        "lineage": [list(segment) for segment in context.lineage],
        "counter": context.counter,
        "settings": dict(context.settings),
        "settings_rev": context.settings_rev,
        "created_at": context.created_at.isoformat(),
        "deleted_at": context.deleted_at.isoformat() if context.deleted_at else None,
    }


def context_from_json(written: Mapping[str, Json]) -> Context:
    """Read an exported context; `CorruptRecordError` when it is not one or comes from a newer release."""
    try:
        if written["acms"] != FORMAT:
            raise CorruptRecordError(f"this export has format {written['acms']}, this release reads {FORMAT}")
        deleted = written.get("deleted_at")
        return Context(
            id=_text(written["id"]),
            namespace=_text(written["namespace"]),
            key=_optional(written["key"]),
            root=_text(written["root"]),
            parent=_optional(written["parent"]),
            fork=None if written["fork"] is None else _number(written["fork"]),
            lineage=tuple((str(owner), int(upto)) for owner, upto in written["lineage"]),
            counter=_text(written["counter"]),
            settings=MappingProxyType(dict(written["settings"])),
            settings_rev=_number(written["settings_rev"]),
            created_at=_time(written["created_at"]),
            deleted_at=_time(deleted) if deleted else None,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CorruptRecordError(f"this is not an exported context: {error}") from error
