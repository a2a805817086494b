"""The bytes of media that come inside a message: kept where the caller says, never in a log."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import NamedTuple, TypeAlias

from acms.errors import ValidationError
from acms.log import validation
from acms.model import Json, Media

KeepMedia: TypeAlias = Callable[[bytes, str], str]
"""Keeps the bytes of media somewhere, given with their type, and returns the reference they are found under."""

_HINT = (
    "keep the bytes elsewhere and name them by a URL or the id of a file",
    "ACMSConfig(media=keep): keep(data, mime) stores them and returns a reference",
)


class Location(NamedTuple):
    """Where a value is in what the caller wrote, and what becomes of bytes."""

    field: str
    keep: KeepMedia | None
    vendor: str = "anthropic"

    def at(self, step: str) -> Location:
        """Return the location of something within the value."""
        joined = step if not self.field or step.startswith("[") else f".{step}"
        return self._replace(field=self.field + joined)

    def text(self, value: object) -> str:
        """Return a text, checked."""
        return validation.validate_text(value, self.field)

    def name(self, value: object) -> str:
        """Return a name, checked."""
        return validation.validate_name(value, self.field)


def refer_to_media(ref: object, mime: str, location: Location) -> Media:
    """Refer to media by a URL or the id of a file; bytes in a data: URL are kept elsewhere."""
    ref = location.text(ref)
    if not ref.startswith("data:"):
        return Media(mime, location.name(ref) if not ref.strip() else ref)
    head, _, data = ref.removeprefix("data:").partition(",")
    return keep_media_bytes(data, head.partition(";")[0] or mime, location)


def keep_media_bytes(data: object, mime: str, location: Location) -> Media:
    """Let the caller keep bytes that were given as base64, and refer to them."""
    written = data if isinstance(data, str) else location.text(data)
    if location.keep is None:
        raise ValidationError(f"holds the bytes of media ({mime}), which a log never stores", field=location.field,
                              options=_HINT)  # fmt: skip
    try:
        content = base64.b64decode(written, validate=False)
    except (binascii.Error, ValueError) as error:
        raise ValidationError(f"is not base64: {error}", field=location.field) from error
    return Media(mime, location.text(location.keep(content, mime)), sha256(content).hexdigest())


def replace_inline_bytes(value: Json, location: Location) -> Json:
    """Return a JSON value in which bytes are references: data: URLs, and base64 where a provider has media."""
    if isinstance(value, str):
        inline = value.startswith("data:") and ";base64," in value[:256]
        return refer_to_media(value, "*/*", location).ref if inline else value
    if isinstance(value, list | tuple):
        return [replace_inline_bytes(one, location.at(f"[{index}]")) for index, one in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    replaced: dict[str, Json] = {}
    for name, one in value.items():
        at = location.at(str(name))
        is_base64 = isinstance(one, str) and not one.startswith("data:") and _holds_base64(value, name)
        if is_base64:
            replaced[name] = keep_media_bytes(one, _guess_mime(value), at).ref
        else:
            replaced[name] = replace_inline_bytes(one, at)
    return replaced


def _holds_base64(within: Mapping[str, Json], name: str) -> bool:
    """Return whether a field holds base64: of a source, an image that was made, a file, or a sound with its format."""
    kind = within.get("type")
    if name == "data":
        return kind == "base64" or (kind is None and "format" in within)
    return name == "file_data" or (name == "result" and kind == "image_generation_call")


def _guess_mime(within: Mapping[str, Json]) -> str:
    if within.get("type") is None and "format" in within:
        return f"audio/{within['format']}"
    default = "*/*" if "file_data" in within else "image/*"
    return str(within.get("media_type") or default)
