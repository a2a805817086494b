"""A conversation of an export, and what its readers share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from acms.log.foreign import Turn
from acms.model import Json

__all__ = ["Conversation", "mapping", "mappings"]

_WORD = re.compile(r"[^\W_]+")
_LONGEST = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation of an export: it becomes a session."""

    #: What the product calls it, the same in every export.
    id: str
    #: Empty where it has none.
    title: str = ""
    #: What was said, oldest first, each with its key.
    messages: Sequence[Turn] = ()

    @property
    def ending(self) -> str:
        """What the session's name ends with: a title may change, an id does not."""
        return self.id[:8]

    @property
    def name(self) -> str:
        """A name for the session: words of the title and the beginning of the id, or the id alone."""
        words = "-".join(_WORD.findall(self.title.lower()))[:_LONGEST].strip("-")
        return f"{words}-{self.ending}" if words else self.id


def mapping(value: Any) -> Mapping[str, Json]:
    """Return a JSON object, an empty one for anything else: exports leave fields out, or write null."""
    return cast("Mapping[str, Json]", value) if isinstance(value, Mapping) else {}


def mappings(value: Any) -> list[Mapping[str, Json]]:
    """Return the objects of a JSON list, none for anything else."""
    return [mapping(one) for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
