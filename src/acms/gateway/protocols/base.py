"""The interface of an adapter for one wire protocol."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from acms.gateway.events import EventParser

__all__ = ["Protocol", "Reply", "ReplyReader", "encode_json", "mappings_in", "text_of_content"]

encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

_TEXT_TYPES = ("text", "input_text", "output_text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A complete answer of a provider."""

    #: As elements of the list in which a client sends it back.
    items: tuple[Mapping[str, Any], ...] = ()
    #: The response, or as much of it as holds the usage.
    response: Mapping[str, Any] | None = None
    #: The id under which the provider keeps the answer, where it does.
    id: str = ""


class ReplyReader(ABC):
    """Puts a streamed answer together."""

    def __init__(self) -> None:
        self._events = EventParser()
        #: Whether the terminal event was seen.
        self.finished = False

    def feed(self, chunk: bytes) -> None:
        """Read a chunk of the stream."""
        for event in self._events.feed(chunk):
            if isinstance(event, dict):
                self._read_event(event)
        if self._events.finished:
            self.finished = True

    @abstractmethod
    def _read_event(self, event: Mapping[str, Any]) -> None:
        """Read one event."""

    @abstractmethod
    def reply(self) -> Reply:
        """Return the answer as far as it was read."""


class Element(NamedTuple):
    """An element of the list that is sent: its role, and its JSON."""

    role: str
    text: str


class Protocol(ABC):
    """One wire protocol: where its list of messages is, how answers are parsed, which rules the provider checks.

    An element is one member of that list: a message, or an item such as a tool call.
    """

    #: Name of the codec, path of the request, field of the list, and upstream.
    name: str
    path: str
    list_field: str
    upstream: str
    #: Whether the provider refuses a list that begins with a reply.
    begins_with_user: bool = False

    @abstractmethod
    def is_reply(self, item: Mapping[str, Any]) -> bool:
        """Return whether an element of the list comes from the model."""

    @abstractmethod
    def call_ids(self, item: Mapping[str, Any]) -> list[str]:
        """Return the ids of the tool calls in an element."""

    @abstractmethod
    def result_ids(self, item: Mapping[str, Any]) -> list[str]:
        """Return the ids of the calls that an element answers."""

    @abstractmethod
    def write_note(self, text: str) -> str:
        """Return a message of the user with a text of the gateway, as JSON."""

    @abstractmethod
    def parse_reply(self, response: Mapping[str, Any]) -> Reply:
        """Read an answer that came in one piece."""

    @abstractmethod
    def open_reply(self) -> ReplyReader:
        """Return a reader of a streamed answer."""

    def arrange(self, elements: Sequence[Element]) -> list[str]:
        """Return the elements of a trimmed list in an order that the provider takes."""
        return [element.text for element in elements]

    @abstractmethod
    def find_problem(self, items: Sequence[Mapping[str, Any]]) -> str:
        """Return why the provider would refuse the list, or "" if it would not."""

    def instructs(self, item: Mapping[str, Any]) -> bool:
        """Return whether an element is an instruction of the system or the developer."""
        return item.get("role") in ("system", "developer")

    def binds_to_next(self, item: Mapping[str, Any]) -> bool:
        """Return whether an element is only valid together with the next one."""
        return False

    def thinking_blocks(self, item: Mapping[str, Any]) -> list[int]:
        """Return the indexes of the blocks with signed thinking in the content of an element."""
        return []

    def cache_mark(self, item: Mapping[str, Any]) -> str:
        """Return the newest mark of the provider's cache in an element, as JSON, or ""."""
        return ""

    def with_cache_mark(self, message: str, mark: str) -> str:
        """Return an element, given as JSON, with a cache mark at its end, or unchanged if it can have none."""
        return message

    def user_text(self, item: Mapping[str, Any]) -> str:
        """Return the text that the user wrote in an element, or ""."""
        return text_of_content(item.get("content")) if item.get("role") == "user" else ""


def text_of_content(content: object) -> str:
    """Return the texts in the content of a message, one per line."""
    if isinstance(content, str):
        return content
    blocks = [block for block in mappings_in(content) if block.get("type") in _TEXT_TYPES]
    return "\n".join([block["text"] for block in blocks if isinstance(block.get("text"), str)])


def mappings_in(value: object) -> list[Mapping[str, Any]]:
    """Return the JSON objects in a list; none for a value that is no list."""
    return [element for element in value if isinstance(element, Mapping)] if isinstance(value, list) else []
