"""Messages over HTTP: append a batch, list them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from pydantic import ConfigDict, Discriminator, Field, Tag, create_model
from pydantic.alias_generators import to_camel

from acms.errors import TooLargeError, ValidationError
from acms.log import provider_messages, validation
from acms.log.read import replacements_at
from acms.model import ANY, Durability, Embedded, Entry, Json, Kind, Part, Role, Seen
from acms.nouns import (
    PARTS,
    answered_call_id,
    declare_wire_names,
    encode_noun,
    format_instant,
    text_of,
    write_part,
)
from acms.results import MessageReceipt, Synced
from acms.server import wire
from acms.server.operation import Body, Call, Operations, Query, Reply, Scope
from acms.server.replies import describe_list_reply, describe_single_reply, reply_with_data, reply_with_page
from acms.server.routes.contexts import build_etag_header
from acms.server.tenants import Tenant
from acms.server.versions import Version

__all__ = ["BriefEntry", "message_too_large_error", "operations"]

operations = Operations("messages")

_TAG = re.compile(r'"([A-Za-z0-9_.:-]{1,128})"')
_PASSED = frozenset((*validation.MESSAGE_ATTRIBUTES, "key", "tool_call_id")) - {"created_at", "privacy"}
"""Fields that are passed to the session unchanged."""
_PLAIN = frozenset(("role", "content"))

RoleName = Literal["system", "developer", "user", "assistant", "tool"]


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _GeneratedBody(Body):
    """A body whose model is generated: there is no source text whose docstrings could describe its fields."""

    model_config = ConfigDict(use_attribute_docstrings=False)


def _create_part_model(type: str, kind: Any) -> Any:
    """Return the body model of a message part: its fields and its type."""
    hints = get_type_hints(kind)
    model_fields: dict[str, Any] = {"type": (Literal[type], ...)}
    for field in fields(kind):
        default = ... if field.default is MISSING else field.default
        alias = to_camel(field.name)
        model_fields[f"{field.name}_"] = (hints[field.name], Field(default, alias=alias))
    return create_model(f"{kind.__name__}Body", __base__=_GeneratedBody, __doc__=kind.__doc__, **model_fields)


def read_part(body: Any) -> Part:
    """Parse a part of a message."""
    part_class: Any = PARTS[body.type]
    return part_class(**{field.name: getattr(body, f"{field.name}_") for field in fields(part_class)})


if TYPE_CHECKING:
    PartBody = Any
else:
    _BODIES = [_create_part_model(type, kind) for type, kind in PARTS.items()]
    PartBody = Annotated[reduce(or_, _BODIES), Field(discriminator="type")]


class FunctionBody(Body):
    """The nested form of a tool call, as chat completions have it."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class CallBody(Body):
    """A tool call: `id`, `name`, `arguments`; or `function`, as chat completions have it."""

    id: str
    name: str | None = None
    arguments: str | dict[str, Any] | None = None
    type: Literal["function"] | None = None
    function: FunctionBody | None = None


class MessageBody(Body):
    """A message to append."""

    role: RoleName
    """Role of the speaker."""
    content: str = ""
    """Text of the message."""
    parts: list[PartBody] | None = None
    """Content as parts: text, images, files and others."""
    tool_calls: list[CallBody] | None = None
    """Tool calls of an assistant message."""
    tool_call_id: str | None = None
    """Id of the call that a tool message answers."""
    actor_id: str | None = None
    """Id of the speaker."""
    metadata: dict[str, Any] | None = None
    """Any JSON object; kept with the message."""
    markers: list[str] | None = None
    """Markers of the message instead of those found in the text; `[]` for none."""
    created_at: str | None = None
    """Time of the message (RFC 3339); now by default."""
    privacy: Literal["allow", "redact", "block"] = "allow"
    """What to do with detected private data: store it, redact it, or refuse the message."""
    origin: Literal["system", "user", "assistant", "tool", "external", "derived"] | None = None
    """Source of the text, which decides how far it is trusted."""
    key: str | None = None
    """The client's own id of the message: appending it again changes nothing."""
    token_count: Annotated[int, Field(ge=1)] | None = None
    """Accepted and ignored: the service counts."""
    tool_name: str | None = None
    """Kept in `metadata`."""
    model: str | None = None
    """Kept in `metadata`."""


_OURS = frozenset(to_camel(name) for name in MessageBody.model_fields)
_NAMES = {to_camel(name): name for name in provider_messages.FIELDS}


def _discriminate_message(message: Any) -> str:
    """Return the tag of a message, by which pydantic chooses its model: this service's form, or a provider's."""
    is_foreign = isinstance(message, Mapping) and (
        not message.keys() <= _OURS
        or ("role" in message and not isinstance(message.get("content", ""), str))
        or provider_messages.is_gemini_content(message)
    )
    return "[theirs]" if is_foreign else "[ours]"


def _use_any_of(schema: dict[str, Any]) -> None:
    """Replace `oneOf` in a schema, since a message may match both forms."""
    schema["anyOf"] = schema.pop("oneOf", schema.get("anyOf"))


MessageInput = Annotated[
    Annotated[MessageBody, Tag("[ours]")] | Annotated[dict[str, Any], Tag("[theirs]")],
    Discriminator(_discriminate_message),
    Field(json_schema_extra=_use_any_of),
]
"""A message of this service's form, or one of Chat Completions, Responses, Anthropic or Gemini."""


class AppendBody(Body):
    """Messages to append in order, all or none."""

    messages: Annotated[list[MessageInput], Field(min_length=1)]
    """Messages of this service's form, or as a provider's API has them."""


class SyncBody(Body):
    """A complete list of messages, as an agent framework holds it."""

    messages: list[MessageInput]
    """The whole list, oldest first."""
    gone: Literal["keep", "retract"] = "keep"
    """Whether to retract messages that the list no longer has. Those before its first message are never retracted."""
    insert: Literal["append", "refuse"] = "append"
    """Whether a new message between older ones is appended at the end or refused: a log grows only at its end."""


# ── replies ─────────────────────────────────────────────────────────────────────────────────────────────────────────


_INNER = "key detected closes group covers replaces sources data batch total digest salt"
_BRIEF = declare_wire_names(**dict.fromkeys(_INNER.split()))
"""Omits the fields of an entry that a list does not show."""


@_BRIEF
@dataclass(frozen=True, slots=True, kw_only=True)
class BriefEntry(Entry):
    """One immutable record of a log, without its references to other records."""


@_BRIEF
@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMessage(Entry):
    """A message of the log."""

    #: Whether it is neither replaced nor retracted.
    in_force: bool


@_BRIEF
@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage(Entry):
    """A message as it was stored."""

    #: What the append survives.
    durability: Durability
    #: Where its vectors are.
    embedded: Embedded
    #: Whether this key had been appended before: nothing new was stored.
    repeated: bool
    #: What had to be repaired or cut so that it could be stored, in words.
    notes: tuple[str, ...]


class ListMessages(Query):
    """The messages to list."""

    cursor: Version | None = None
    """Version after which the page begins, or before which with `order=desc`: `nextCursor` of the previous page."""
    limit: Annotated[int, Field(ge=1, le=1000)] = 50
    """Largest number of items in the page."""
    order: Literal["asc", "desc"] = "asc"
    """`asc` lists the oldest first, `desc` the newest."""


# ── append ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@operations(
    "POST",
    "/contexts/{context_id}/messages",
    scope=Scope.APPEND,
    body=AppendBody,
    reply=describe_list_reply(StoredMessage),
    status=201,
    takes=("Idempotency-Key", "If-Match"),
    example={"messages": [{"role": "user", "content": "Which database should the orders service use?"}]},
)
async def append_messages(call: Call[None, AppendBody]) -> Reply:
    """Append messages, all or none.

    They get the next versions in order, and the current time unless they bring their own. With an `Idempotency-Key`, or
    a `key` on each message, a repeated request changes nothing and returns the stored messages with `repeated`. A
    provider's message can be sent unchanged: one with several tool results becomes several messages. With `If-Match`,
    an ETag of the context, the append is refused with 412 if another message was appended in between.
    """
    limits, messages = call.config.limits, call.body.messages
    context = call.path["context_id"]
    if len(messages) > limits.batch:
        raise TooLargeError(
            f"has {len(messages)} messages, the limit is {limits.batch}",
            field="messages",
            options=(f"split the list into parts of at most {limits.batch} messages",),
        )
    received_at = datetime.now(UTC)
    drafts = _build_drafts(messages, limits.message_bytes, received_at)
    last_message = _parse_if_match(call.headers)
    session = await call.tenant.session(context)
    key = _validate_idempotency_key(call.idempotency_key)
    receipts = await session.ingest_many(drafts, idempotency_key=key, last_message=last_message)
    foreign_messages = any(isinstance(message, dict) for message in messages)
    has_notes = any(receipt.notes for receipt in receipts)
    # Otherwise the reply is built from the request, which saves a read of the store.
    may_differ_from_request = foreign_messages or receipts[0].repeated or has_notes
    if may_differ_from_request:
        return await _read_back(call.tenant, receipts)
    created_at = format_instant(received_at)
    data = [
        _build_stored_message(context, draft, receipt, created_at)
        for draft, receipt in zip(drafts, receipts, strict=True)
    ]
    return Reply(body={"data": data}, headers={"ETag": f'"{receipts[-1].message_id}"'})


@operations(
    "POST",
    "/contexts/{context_id}/sync",
    scope=Scope.APPEND,
    body=SyncBody,
    reply=describe_single_reply(Synced),
    example={"messages": [{"role": "user", "content": "Which database should the orders service use?"}]},
)
async def sync_messages(call: Call[None, SyncBody]) -> Reply:
    """Make the log match a list of messages as a framework holds it, all or nothing, and return the changes.

    New messages are appended, messages with a changed text under their `key` or `id` are replaced, and text that ACMS
    added to a prompt is ignored. A list that was trimmed at its start retracts nothing; with `gone` other missing
    messages are retracted. The same list again changes nothing. With `insert`, a message between older ones is refused
    with 409.
    """
    body = call.body
    drafts = _build_drafts(body.messages, call.config.limits.message_bytes, datetime.now(UTC))
    session = await call.tenant.session(call.path["context_id"])
    return reply_with_data(await session.sync(drafts, gone=body.gone, insert=body.insert))


def message_too_large_error(size: int, max_bytes: int, field: str) -> TooLargeError:
    """Return the error for the text of a message that is too long for this service."""
    return TooLargeError(
        f"has {size} bytes, the limit is {max_bytes}",
        field=field,
        options=("split the text into several messages", "whoever runs the service can raise the limit"),
    )


def _build_drafts(
    messages: Sequence[MessageBody | dict[str, Any]], max_bytes: int, received_at: datetime
) -> list[dict[str, Any]]:
    """Return the arguments of `ingest` for each message; raise `TooLargeError` above `max_bytes`.

    A dict is a message of a provider's API and is passed on unchanged. `ingest` validates the contents.
    """
    drafts: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        field = f"messages[{index}]"
        if isinstance(message, dict):
            size = len(wire.encode_json(message))
            draft: dict[str, Any] = {"created_at": received_at}
            draft |= {_NAMES.get(name, name): value for name, value in message.items()}
        else:
            draft = {"role": message.role, "content": message.content, "created_at": received_at}
            size = _count_bytes(message.content)
            if not message.model_fields_set <= _PLAIN:
                size += _add_details(draft, message, field)
            if message.role == "tool" and message.tool_call_id is None and not message.parts:
                raise ValidationError("is required of a tool's message", field=f"{field}.toolCallId")
        if size > max_bytes:
            raise message_too_large_error(size, max_bytes, field)
        drafts.append(draft)
    return drafts


def _add_details(draft: dict[str, Any], message: MessageBody, field: str) -> int:
    """Add the fields of a message other than role and content to a draft, and return their size in bytes."""
    size = 0
    for name in message.model_fields_set & _PASSED:
        draft[name] = getattr(message, name)
    draft["privacy"] = message.privacy
    if message.created_at is not None:
        draft["created_at"] = validation.parse_moment(message.created_at, f"{field}.createdAt")
    if message.tool_name is not None:
        draft["metadata"] = {**(draft.get("metadata") or {}), "toolName": message.tool_name}
    if message.model is not None:
        draft["metadata"] = {**(draft.get("metadata") or {}), "model": message.model}
    if message.parts:
        draft["parts"] = [read_part(part) for part in message.parts]
        size += len(wire.encode_json([write_part(part) for part in draft["parts"]]))
    if message.tool_calls:
        calls = [call.model_dump(exclude_none=True) for call in message.tool_calls]
        draft["tool_calls"] = calls
        size += _count_bytes(json.dumps(calls, ensure_ascii=False))  # invalid numbers are refused later
    return size


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _validate_idempotency_key(key: str | None) -> str | None:
    """Return the key under which a batch is appended once; each of its messages gets the key with a number."""
    if key is None:
        return None
    max_chars = validation.NAME_CHARS - 8  # leaves space for the number
    if len(key) > max_chars:
        raise ValidationError(f"has {len(key)} characters, the limit is {max_chars}", field="Idempotency-Key")
    return validation.validate_name(key, "Idempotency-Key")


def _parse_if_match(headers: Mapping[str, str]) -> Seen:
    """Return the newest message that a client has seen, by its If-Match header."""
    header = headers.get("if-match")
    if header is None or header == "*":
        return ANY
    match = _TAG.fullmatch(header)
    if match is None:
        raise ValidationError("must be one ETag of this context", field="If-Match")
    return None if match[1] == "empty" else match[1]


def _build_stored_message(
    context: str, draft: Mapping[str, Any], receipt: MessageReceipt, received_at: str | None
) -> dict[str, Json]:
    """Serialize a message that was just stored, from the request and the receipt."""
    role, content = draft["role"], draft["content"]
    message: dict[str, Json] = {
        "id": receipt.message_id,
        "contextId": context,
        "kind": "message",
        "version": receipt.version,
        "position": receipt.position,
        "role": role,
        "content": content,
        "parts": [],
        "toolCallId": None,
        "toolName": None,
        "model": None,
        "actorId": None,
        "markers": receipt.markers,
        "metadata": {},
        "tokenCount": receipt.tokens,
        "createdAt": received_at,
        "origin": "system" if role == "developer" else role,
        "privacy": "allow",
        "episodeId": receipt.episode_id,
        "chainHash": receipt.chain_hash,
        "state": "live",
        "durability": receipt.durability,
        "embedded": receipt.embedded,
        "repeated": False,
        "notes": [],
    }
    if len(draft) > 3:  # more than role, content and the time of the batch
        metadata = draft.get("metadata") or {}
        parts, message["content"] = validation.build_message_parts(
            Role(role), content, draft.get("parts"), draft.get("tool_calls"), draft.get("tool_call_id")
        )
        message["parts"] = [write_part(part) for part in parts]
        message["toolCallId"] = answered_call_id(parts)
        message["toolName"], message["model"] = text_of(metadata, "toolName"), text_of(metadata, "model")
        message["actorId"], message["metadata"] = draft.get("actor_id"), metadata
        message["origin"] = draft.get("origin") or message["origin"]
        message["privacy"] = draft.get("privacy", "allow")
        message["createdAt"] = format_instant(draft["created_at"])
    return message


async def _read_back(tenant: Tenant, receipts: Sequence[MessageReceipt]) -> Reply:
    """Return the stored messages as a reply, read from the store, without those erased in the meantime."""
    entries = await tenant.handle.get([receipt.message_id for receipt in receipts])
    data: list[Json] = []
    for receipt, entry in zip(receipts, entries, strict=True):
        if entry is None:
            continue
        message = encode_noun(entry, BriefEntry)
        message["position"] = receipt.position  # a summary has the position of the message before it
        message["episodeId"] = receipt.episode_id
        message["durability"] = receipt.durability
        message["embedded"] = receipt.embedded
        message["repeated"] = receipt.repeated
        message["notes"] = receipt.notes
        data.append(message)
    return Reply(body={"data": data}, headers={"ETag": f'"{receipts[-1].message_id}"'})


# ── list ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@operations(
    "GET",
    "/contexts/{context_id}/messages",
    scope=Scope.READ,
    query=ListMessages,
    reply=describe_list_reply(ListedMessage, int),
)
async def list_messages(call: Call[ListMessages, None]) -> Reply:
    """List the messages of a log, including those that are no longer active.

    `cursor` is a version: later messages are listed, with `order=desc` earlier ones. `/at/{version}` lists the messages
    that are active at a version.
    """
    query, session = call.query, await call.tenant.session(call.path["context_id"])
    storage = session.storage
    head = await storage.head(call.path["context_id"])
    kinds, one_more_than_page = (Kind.MESSAGE,), query.limit + 1
    cursor = None if query.cursor is None else min(query.cursor, head.version + 1)
    if query.order == "asc":
        entries = await storage.read(
            head.context, at=head.version, after=cursor or 0, kinds=kinds, limit=one_more_than_page
        )
    else:
        entries = await storage.read(
            head.context, at=head.version, before=cursor, kinds=kinds, newest=one_more_than_page
        )
        entries.reverse()
    page = entries[: query.limit]
    replacements = await replacements_at(storage, head.context, head, head.version)
    data = [
        {**encode_noun(entry, BriefEntry), "inForce": replacements.replaced_by(entry.version) is None}
        for entry in session.internals.redactor.redact_entries(page)
    ]
    next_cursor = page[-1].version if len(entries) > query.limit else None
    return reply_with_page(data, next_cursor, headers=build_etag_header(head))
