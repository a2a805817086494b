"""A client's request as the gateway reads it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acms.gateway import hints
from acms.gateway.digests import chain_digests, digest_of_message, digest_of_texts, key_messages, tools_digest
from acms.gateway.json_spans import Body, parse_body
from acms.gateway.lines import Position
from acms.gateway.protocols import Protocol, Reply

__all__ = ["ClientRequest", "MessageDigests", "position_of_answer", "read_request"]

_KNOWN_MESSAGES = 20_000
"""Messages whose digests are kept: the lists of some hundred conversations, at about 150 bytes each."""


class MessageDigests:
    """Digests of messages, by the text in which the client wrote them."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, str] = OrderedDict()

    def digest(self, message_json: str, message: Any) -> str:
        """Return the digest of a message's content; `message_json` is the key of the cache."""
        key = digest_of_texts(message_json)
        digest = self._known.get(key)
        if digest is not None:
            self._known.move_to_end(key)
            return digest
        digest = self._known[key] = digest_of_message(message)
        if len(self._known) > _KNOWN_MESSAGES:
            self._known.popitem(last=False)
        return digest


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """A request of a protocol that has memory."""

    protocol: Protocol
    headers: Mapping[str, str]
    body: Body
    #: The messages of the list.
    items: tuple[Mapping[str, Any], ...]
    #: The caller's keys of the messages, for the log.
    keys: tuple[str, ...]
    position: Position

    @property
    def namespace(self) -> str:
        """The namespace of its session."""
        return self.position.namespace

    @property
    def model(self) -> str:
        """The model that it names."""
        model = self.body.fields.get("model")
        return model if isinstance(model, str) else ""

    @property
    def can_be_trimmed(self) -> bool:
        """Whether its list is all of the conversation, so that nothing which the provider keeps is added."""
        return self.body.list_span is not None and not self.position.previous and not self.keeps_conversation

    @property
    def keeps_conversation(self) -> bool:
        """Whether the provider adds a conversation that it keeps."""
        return bool(self.body.fields.get("conversation"))

    def keyed_messages(self, reply: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
        """Return the messages of the request and then those of its answer, each with its key, as `sync` takes them."""
        items = [*self.items, *reply]
        digests = [*self.position.digests, *[digest_of_message(item) for item in reply]]
        keys = key_messages(self.protocol, items, digests)
        return [{**item, "key": key} for item, key in zip(items, keys, strict=True)]


def read_request(
    protocol: Protocol,
    raw_body: bytes,
    headers: Mapping[str, str],
    namespace: str,
    message_digests: MessageDigests,
) -> ClientRequest:
    """Parse a request; raise `ValueError` if its body is no JSON object with a list of messages."""
    body = parse_body(raw_body.decode("utf-8"), protocol.list_field)
    items, texts = _read_items(body, protocol)
    digests = [message_digests.digest(text, item) for text, item in zip(texts, items, strict=True)]
    hint = hints.find_session_hint(headers, body.fields)
    previous_id = body.fields.get("previous_response_id")
    previous = previous_id if isinstance(previous_id, str) else ""
    user_digests = [digest for item, digest in zip(items, digests, strict=True) if item.get("role") == "user"]
    seed = digest_of_texts(namespace, hint, previous)
    position = Position(
        namespace=namespace,
        hint=hint,
        explicit="x-acms-session" in headers,
        chains=tuple(chain_digests(protocol, items, digests, seed)),
        replies=tuple([index for index, item in enumerate(items) if protocol.is_reply(item)]),
        digests=tuple(digests),
        first_message=user_digests[0] if user_digests else "",
        tools=tools_digest(body.fields),
        previous=previous,
    )
    return ClientRequest(
        protocol=protocol,
        headers=headers,
        body=body,
        items=items,
        keys=tuple(key_messages(protocol, items, digests)),
        position=position,
    )


def position_of_answer(request: ClientRequest, reply: Reply) -> Position:
    """Return the position of a request's list with the answer appended."""
    protocol, position = request.protocol, request.position
    items = [*request.items, *reply.items]
    digests = [*position.digests, *[digest_of_message(item) for item in reply.items]]
    seed = digest_of_texts(position.namespace, position.hint, position.previous)
    return Position(
        namespace=position.namespace,
        hint=position.hint,
        explicit=position.explicit,
        chains=tuple(chain_digests(protocol, items, digests, seed)),
        replies=position.replies,
        digests=tuple(digests),
        first_message=position.first_message,
        tools=position.tools,
        previous=position.previous,
    )


def _read_items(body: Body, protocol: Protocol) -> tuple[tuple[Mapping[str, Any], ...], list[str]]:
    """Return the messages of a body, and the JSON of each as the client wrote it; a plain text is a user message."""
    messages = body.fields.get(protocol.list_field)
    if isinstance(messages, str) and messages:
        return ({"role": "user", "content": messages},), [messages]
    if not body.items or not all(isinstance(item, dict) for item in body.items):
        raise ValueError("there is no list of messages")
    return body.items, [body.slice(index) for index in range(len(body.items))]
