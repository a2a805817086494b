"""The bytes of media inside a message, which the caller keeps elsewhere and a log never stores."""

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
"""A function of the caller that keeps bytes of media of a type, and returns the reference under which it keeps them."""

_HINT = (
    "keep the bytes elsewhere and name them by a URL or the id of a file",
    "ACMSConfig(media=keep): keep(data, mime) stores them and returns a reference",
)


class Location(NamedTuple):
    """Where a value is in a message, for errors, and how its bytes and unknown parts are kept."""

    field: str
    #: None if bytes are refused.
    keep: KeepMedia | None
    #: The vendor under which parts that are not understood are kept.
    vendor: str = "anthropic"

    def at(self, step: str) -> Location:
        """Return the location of something within the value."""
        joined = step if not self.field or step.startswith("[") else f".{step}"
        return self._replace(field=self.field + joined)

    def text(self, value: object) -> str:
        """Return a value that must be a text; raise `ValidationError` with this location if it is none."""
        return validation.validate_text(value, self.field)

    def name(self, value: object) -> str:
        """Return a value that must be a name; raise `ValidationError` with this location if it is none."""
        return validation.validate_name(value, self.field)


def refer_to_media(ref: object, mime: str, location: Location) -> Media:
    """Refer to media by a URL or the id of a file; bytes in a data: URL are kept elsewhere."""
    ref = location.text(ref)
    if not ref.startswith("data:"):
        # A URL may be longer than a name, so only an empty one is refused as a name.
        return Media(mime, location.name(ref) if not ref.strip() else ref)
    head, _, data = ref.removeprefix("data:").partition(",")
    return keep_media_bytes(data, head.partition(";")[0] or mime, location)


def keep_media_bytes(data: object, mime: str, location: Location) -> Media:
    """Let the caller keep bytes that were given as base64, and refer to them."""
    encoded = data if isinstance(data, str) else location.text(data)
    if location.keep is None:
        raise ValidationError(f"contains the bytes of media ({mime}), which a log never stores", field=location.field,
                              options=_HINT)  # fmt: skip
    try:
        content = base64.b64decode(encoded, validate=False)
    except (binascii.Error, ValueError) as error:
        raise ValidationError(f"is not base64: {error}", field=location.field) from error
    return Media(mime, location.text(location.keep(content, mime)), sha256(content).hexdigest())


def replace_inline_bytes(value: Json, location: Location) -> Json:
    """Return a JSON value in which bytes are references: data: URLs, and base64 where a provider has media."""
    if isinstance(value, str):
        inline = value.startswith("data:") and ";base64," in value[:256]
        return refer_to_media(value, "*/*", location).ref if inline else value
    if isinstance(value, list | tuple):
        return [replace_inline_bytes(item, location.at(f"[{index}]")) for index, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    replaced: dict[str, Json] = {}
    for name, item in value.items():
        item_location = location.at(str(name))
        is_url = isinstance(item, str) and item.startswith("data:")
        if isinstance(item, str) and not is_url and _holds_base64(value, name):
            replaced[name] = keep_media_bytes(item, _guess_mime(value), item_location).ref
        else:
            replaced[name] = replace_inline_bytes(item, item_location)
    return replaced


def _holds_base64(item: Mapping[str, Json], name: str) -> bool:
    """Return whether a field of an item holds base64: of a source, a file, a generated image, or audio."""
    kind = item.get("type")
    if name == "data":
        return kind == "base64" or (kind is None and "format" in item)
    return name == "file_data" or (name == "result" and kind == "image_generation_call")


def _guess_mime(item: Mapping[str, Json]) -> str:
    if item.get("type") is None and "format" in item:
        return f"audio/{item['format']}"
    default = "*/*" if "file_data" in item else "image/*"
    return str(item.get("media_type") or default)
