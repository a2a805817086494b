"""Intake of a log: parse the messages that callers and providers hand over, repair them if needed, and note repairs."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from acms.config import ACMSConfig
from acms.errors import ValidationError
from acms.log import provider_messages, repair, validation
from acms.log.native_items import EXTRA_FIELDS
from acms.log.provider_messages import Turn
from acms.model import EMPTY, Draft, Part, Raw, Role, Text
from acms.observability.logging import log_event

T = TypeVar("T")
DraftOf: TypeAlias = Callable[..., Draft]

_MEDIA_NOTE = "the bytes of media are not kept, only their hash: give ACMSConfig(media=…) a place for them"

_EMPTY_NOTE = "an assistant message has no content: it is stored, but no model sees it"


def check_list(messages: object, max_messages: int) -> Sequence[Mapping[str, Any]]:
    """Return a list of at most `max_messages` mappings; raise `ValidationError` for any other value."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise ValidationError(f"must be a list, not {type(messages).__name__}", field="messages")
    if len(messages) > max_messages:
        raise ValidationError(
            f"has {len(messages)} messages, the limit is {max_messages}",
            field="messages",
            options=(f"split the list into parts of at most {max_messages} messages",),
        )
    for index, message in enumerate(messages):
        if not isinstance(message, dict | Mapping):  # `dict` first: that check is faster
            raise ValidationError(
                f"must be a mapping, not {type(message).__name__}", field=f"messages[{index}]"
            )
    return messages


def log_cut_texts(entry_id: str, notes: Iterable[str]) -> None:
    """Warn about the texts of a stored message that were cut."""
    cuts = repair.find_cut_notes(notes)
    if cuts:
        log_event(logging.WARNING, "text_cut", entry=entry_id, notes=cuts)


def message_from_arguments(role: str | Role, values: Mapping[str, Any], key: str | None) -> dict[str, Any]:
    """Return the arguments of one `ingest` in the form of a message of a list."""
    role = validation.parse_choice(role, Role, "role")
    message = {"role": role.value, **values, "idempotency_key": key}
    return {name: value for name, value in message.items() if value is not None}


def is_empty_turn(turn: Turn) -> bool:
    """Return whether a message has neither a text nor parts."""
    content = turn.get("content")
    has_text = content is not None and not (isinstance(content, str) and not content.strip())
    return not has_text and not any(turn.get(name) for name in ("parts", "tool_calls", "tool_call_id"))


def fill_empty_turn(turn: Turn) -> Turn:
    """Return an empty message with its original content in a part, so that it can be stored."""
    if not is_empty_turn(turn):
        return turn
    original = Raw(EXTRA_FIELDS, provider_messages.encode_strict_json({"content": turn.get("content")}))
    return {**turn, "content": "", "parts": [original]}


def read_message(
    message: Mapping[str, Any],
    field: str,
    keep: provider_messages.KeepMedia | None,
    convert: Callable[[Sequence[Turn]], T],
    *,
    strict: bool,
    refuse_invalid: bool = False,
) -> tuple[T, tuple[str, ...]]:
    """Parse a message for storage; return the converted turns, and notes on repairs.

    `convert` returns the result for the parsed turns, or raises `ValidationError`. A message that cannot be repaired is
    stored as its JSON: a framework would hand over the same list again, and `sync` could never store it. With
    `refuse_invalid` it raises the error. With `strict` nothing is repaired.
    """
    provider_messages.check_privacy_field(message, field)
    reader = _MessageReader(field, keep, convert, strict, refuse_invalid, notes={})
    # As it is.
    try:
        return reader.read(message)
    except ValidationError as error:
        if strict:
            raise
        first_error = error  # it names the field in the original message
    # Repaired.
    for repaired, repair_notes in repair.generate_repairs(message):
        with suppress(ValidationError):
            result, notes = reader.read(repaired)
            return result, (*repair_notes, *notes)
    if refuse_invalid:
        raise first_error
    # As its JSON.
    json_message, repair_notes = repair.message_as_json_text(message)
    try:
        result, _ = reader.read(json_message)
    except ValidationError:
        raise first_error from None
    return result, repair_notes


@dataclass(frozen=True, slots=True)
class _MessageReader(Generic[T]):
    """Parses one message, as it is or repaired, and collects notes on what is not kept of it."""

    field: str
    keep: provider_messages.KeepMedia | None
    convert: Callable[[Sequence[Turn]], T]
    strict: bool
    refuse_invalid: bool
    notes: dict[str, None]

    def read(self, message: Mapping[str, Any]) -> tuple[T, tuple[str, ...]]:
        """Parse a message; return its turns as `convert` returns them, and the notes so far."""
        keep = self._refer_to_media if self.keep is None and not self.strict else self.keep
        turns = provider_messages.parse_provider_message(message, self.field, keep=keep, strict=self.strict)
        unread_fields = _find_unread_fields(turns)
        if unread_fields and self.refuse_invalid and turns[0]["role"] != Role.ASSISTANT:
            raise ValidationError(
                "is not a field of a message, and the message has no content",
                field=f"{self.field}.{unread_fields[0]}" if self.field else unread_fields[0],
                options=("content",),
            )
        if unread_fields:
            names = ", ".join(unread_fields)
            self.notes[f"a message has no content, only unknown fields, which no model sees: {names}"] = None
        return self.convert(turns), tuple(self.notes)

    def _refer_to_media(self, data: bytes, mime: str) -> str:
        """Return a reference to bytes that are not kept."""
        self.notes[_MEDIA_NOTE] = None
        return repair.refer_by_hash(data, mime)


def read_repaired(message: Mapping[str, Any]) -> tuple[Turn, tuple[str, ...]]:
    """Return the role and the parts with which a message is stored, and notes on its repairs.

    Adapters compare both with the content of a log.
    """
    (unique,), rename_notes = repair.rename_repeated_calls([message])
    turn, notes = read_message(unique, "", None, _join_turns, strict=False)
    return turn, (*rename_notes, *notes)


def _join_turns(turns: Sequence[Turn]) -> Turn:
    """Return one turn with the role of the first turn and the parts of all."""
    joined: list[Part] = []
    for turn in map(fill_empty_turn, turns):
        parts, text = validation.build_message_parts(
            validation.parse_choice(turn["role"], Role, "role"),
            turn.get("content", ""),
            turn.get("parts"),
            turn.get("tool_calls"),
            turn.get("tool_call_id"),
        )
        joined += parts or (Text(text),)
    return {"role": turns[0]["role"], "parts": joined}


def draft_plain_message(
    make_draft: DraftOf, config: ACMSConfig, role: str | Role, values: Mapping[str, Any], **fields: Any
) -> Draft | None:
    """Return the draft for the arguments of `ingest`, or None if the message must be parsed or repaired first.

    `fields` are the other arguments of the draft.
    """
    validation.require_role_first(role, *values.values())
    content = values["content"]
    is_list = content is not None and not isinstance(content, str)
    # An answer of a model may have no text: `read_drafts` stores it even if it has no parts either.
    is_empty_answer = role == Role.ASSISTANT and (not content or (not is_list and not content.strip()))
    if not config.strict and (is_list or is_empty_answer):
        return None
    try:
        return make_draft(role=role, **values, **fields)
    except ValidationError:
        if config.strict or is_empty_turn(dict(values)):
            raise
        return None


def read_drafts(
    make_draft: DraftOf,
    config: ACMSConfig,
    message: Mapping[str, Any],
    field: str,
    overrides: Mapping[str, Any] = EMPTY,
) -> tuple[list[Draft], tuple[str, ...]]:
    """Return the drafts of one message in the form of ACMS or of a provider, and notes on repairs.

    A message of a provider may become several drafts. `overrides` are set in each of them. Ids that calls share were
    renamed before. An invalid message is refused, also as one of many.
    """
    key_names = [name for name in ("key", "idempotency_key", "id") if message.get(name) is not None]
    key_name = key_names[0] if key_names else "key"
    prefix = f"{field}." if field else ""

    has_empty_turn = False

    def make_drafts(turns: Sequence[Turn]) -> list[Draft]:
        nonlocal has_empty_turn
        drafts: list[Draft] = []
        for turn in turns:
            # An answer of a model may be empty; an empty message of another role is an error.
            if not config.strict and turn["role"] == Role.ASSISTANT and is_empty_turn(turn):
                has_empty_turn = True
                turn = fill_empty_turn(turn)
            with validation.prefix_field_errors(prefix):
                drafts.append(make_draft(key_name=key_name, **{**turn, **overrides}))
        return drafts

    drafts, notes = read_message(
        message, field, config.media, make_drafts, strict=config.strict, refuse_invalid=True
    )
    return drafts, (*notes, _EMPTY_NOTE) if has_empty_turn else notes


def _find_unread_fields(turns: Sequence[Turn]) -> list[str]:
    """Return the names of the unknown fields of a message that consists of nothing else."""
    parts = [part for turn in turns for part in turn.get("parts") or ()]
    has_content = any(turn.get("content") or turn.get("tool_call_id") for turn in turns)
    if has_content or not parts:
        return []
    names: list[str] = []
    for part in parts:
        if not isinstance(part, Raw) or part.vendor != EXTRA_FIELDS:
            return []
        extra = json.loads(part.json)
        if extra.keys() != {"fields"}:
            return []
        names += [name for fields in extra["fields"].values() for name in fields]
    return names
