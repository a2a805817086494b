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


_ID = re.compile(r"(?<![\w])[a-z]_[0-9a-z]{8,}_[0-9a-z]+_[0-9a-z]{6}(?![\w])")
_CITATION_KEYS = frozenset(
    ("citations annotations cited_text source url file_id document_id document_title title filename").split()
)
_TEXTS = ("text", "content", "output_text", "refusal")


@runtime_checkable
class Shows(Protocol):
    """Something that shows entries: recalled items, a rendered prompt."""

    def entry_texts(self) -> Mapping[str, str]:
        """Return the shown text of each entry, by its id."""
        ...


def texts_of(source: object) -> dict[str, str] | None:
    """Return what some items or a prompt show of each entry; None where nothing was given."""
    return dict(source.entry_texts()) if isinstance(source, Shows) else None


def find_cited_ids(answer: object, shown: Mapping[str, str] | None) -> tuple[str, ...]:
    """Return the ids of the entries that an answer cites, each once, in order.

    `shown` holds the text of each entry that the model saw; ids of other entries are ignored. Without it, every id in
    the answer counts. An answer is a text, the object of a provider's SDK, or the same as a mapping.
    """
    cited_ids: list[str] = []
    shown_texts = {id: " ".join(text.split()) for id, text in (shown or {}).items()}
    for key, text in _find_texts(_to_plain_data(answer), depth=12):
        if key == "cited_text":
            quote = " ".join(text.split())
            if len(quote) >= 12:  # shorter texts occur in many entries
                cited_ids += [id for id, shown_text in shown_texts.items() if quote in shown_text]
        else:
            cited_ids += [id for id in _ID.findall(text) if shown is None or id in shown]
    return tuple(dict.fromkeys(cited_ids))


def _to_plain_data(answer: Any) -> Any:
    """Return an object of an SDK as plain data."""
    dump = getattr(answer, "model_dump", None)
    return dump(mode="json", exclude_none=True) if callable(dump) else answer


def _find_texts(value: Any, depth: int, name: str = "text") -> Iterator[tuple[str, str]]:
    """Yield (key, text) of every text in an answer and in its citations, down to `depth` levels."""
    if isinstance(value, str):
        yield name, value
    elif depth == 0:
        return
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _find_texts(_to_plain_data(item), depth - 1, name)
    elif isinstance(value, Mapping):
        yield from _find_texts_of_mapping(value, depth)


def _find_texts_of_mapping(value: Mapping[str, Any], depth: int) -> Iterator[tuple[str, str]]:
    if value.get("type") == "search_result_location":
        yield "source", str(value.get("source", ""))  # its other texts may occur in other entries too
        return
    for key, item in value.items():
        if key in _CITATION_KEYS:
            yield from _find_texts(item, depth - 1, key)
        elif key in _TEXTS or isinstance(item, list | tuple | Mapping):
            yield from _find_texts(item, depth - 1)
