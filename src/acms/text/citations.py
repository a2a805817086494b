"""Citations: find the shown entries that a model's answer cites.

Sources are the citations of a provider's answer, whose source, document or cited text names an entry (`search_result`
and `document` blocks of Anthropic, annotations of OpenAI), and entry ids in its text. Names of entries that were not
shown are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

__all__ = ["Shows", "find_cited_ids", "texts_of"]

LEAST = 12
"""Characters of a cited text, at least: less is said by many entries."""
DEEP = 12
"""Levels of an answer that are read."""

_ID = re.compile(r"(?<![\w])[a-z]_[0-9a-z]{8,}_[0-9a-z]+_[0-9a-z]{6}(?![\w])")
_LISTS = ("citations", "annotations")
_NAMES = ("source", "url", "file_id", "document_id", "document_title", "title", "filename")
_TEXTS = ("text", "content", "output_text", "refusal")


@runtime_checkable
class Shows(Protocol):
    """Something that shows entries: recalled items, a rendered prompt."""

    def entry_texts(self) -> Mapping[str, str]:
        """Return the shown text of each entry, by its id."""
        ...


def texts_of(shown: object) -> dict[str, str] | None:
    """Return what some items or a prompt show of each entry; None where nothing was given."""
    return dict(shown.entry_texts()) if isinstance(shown, Shows) else None


def find_cited_ids(answer: object, shown: Mapping[str, str] | None) -> tuple[str, ...]:
    """Return the ids of the entries that an answer cites, each once, in order; without `shown` all ids that it names.

    An answer is a text, the object of a provider's SDK, or the same as a mapping.
    """
    found: dict[str, None] = {}
    plain = {id: " ".join(text.split()) for id, text in (shown or {}).items()}
    for name, text in _texts_in(_to_plain_data(answer), DEEP):
        if name == "cited_text":
            told = " ".join(text.split())
            found.update(dict.fromkeys(id for id, one in plain.items() if len(told) >= LEAST and told in one))
        else:
            found.update(dict.fromkeys(id for id in _ID.findall(text) if shown is None or id in shown))
    return tuple(found)


def _to_plain_data(answer: Any) -> Any:
    """Return an object of an SDK as plain data."""
    dump = getattr(answer, "model_dump", None)
    return dump(mode="json", exclude_none=True) if callable(dump) else answer


def _texts_in(value: Any, deep: int, name: str = "text") -> Iterator[tuple[str, str]]:
    """Yield what an answer says, with the name it says it under: its texts, and what its citations name."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, list | tuple) and deep:
        for one in value:
            yield from _texts_in(_to_plain_data(one), deep - 1, name)
    elif isinstance(value, Mapping) and value.get("type") == "search_result_location":
        yield "source", str(value.get("source", ""))  # what else it says may stand in other entries too
    elif isinstance(value, Mapping) and deep:
        for key, one in value.items():
            if key in _LISTS or key in _NAMES or key == "cited_text":
                yield from _texts_in(one, deep - 1, key)
            elif key in _TEXTS or isinstance(one, list | tuple | Mapping):
                yield from _texts_in(one, deep - 1)
