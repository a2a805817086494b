"""Intake of a log: messages of providers and servers are stored, repaired if needed, with notes on the repairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from acms.config import ACMSConfig
from acms.errors import ValidationError
from acms.log import foreign, repair, validation
from acms.log.foreign import Turn
from acms.log.native_items import EXTRA_FIELDS
from acms.model import EMPTY, Draft, Part, Raw, Role, Text

T = TypeVar("T")
DraftOf: TypeAlias = Callable[..., Draft]

__all__ = [
    "check_list",
    "fill_empty_turn",
    "is_empty_turn",
    "message_of",
    "plain_draft",
    "read_drafts",
    "read_message",
    "read_repaired",
]

_NOT_KEPT = "the bytes of media are not kept, only their hash: give ACMSConfig(media=…) a place for them"


def check_list(messages: object, most: int) -> Sequence[Mapping[str, Any]]:
    """Return a list of at most `most` mappings; raise `ValidationError` for any other value."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise ValidationError(f"must be a list, not {type(messages).__name__}", field="messages")
    if len(messages) > most:
        raise ValidationError(f"has {len(messages)} messages, the limit is {most}", field="messages")
    for n, message in enumerate(messages):
        if not isinstance(message, dict | Mapping):  # report the first one
            raise ValidationError(f"must be a mapping, not {type(message).__name__}", field=f"messages[{n}]")
    return messages


def message_of(role: str | Role, values: Mapping[str, Any], key: str | None) -> dict[str, Any]:
    """Return the arguments of `ingest` as a message of a list."""
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
    original = Raw(EXTRA_FIELDS, foreign.encode_strict_json({"content": turn.get("content")}))
    return {**turn, "content": "", "parts": [original]}


def read_message(
    message: Mapping[str, Any],
    field: str,
    keep: foreign.KeepMedia | None,
    check: Callable[[Sequence[Turn]], T],
    *,
    strict: bool,
    listed: bool = True,
) -> tuple[T, tuple[str, ...]]:
    """Parse a message for storage; return it with notes on its repairs.

    `check` converts the parsed turns, or raises. In a list, a message that cannot be repaired is stored as its JSON, so
    that it does not block the list; alone it is an error, as is every invalid value when `strict`.
    """
    notes: dict[str, None] = {}
    foreign.check_privacy_field(message, field)

    def refer(data: bytes, mime: str) -> str:
        notes[_NOT_KEPT] = None
        return repair.refer_by_hash(data, mime)

    keeper = keep if strict or keep is not None else refer

    def read(given: Mapping[str, Any]) -> T:
        return check(foreign.parse_provider_message(given, field, keep=keeper, strict=strict))

    try:
        return read(message), tuple(notes)
    except ValidationError as error:
        if strict:
            raise
        first = error
    for repaired, changed in repair.generate_repairs(message):
        try:
            return read(repaired), (*changed, *notes)
        except ValidationError:
            continue
    if listed:
        text, changed = repair.as_text(message)
        try:
            return read(text), changed
        except ValidationError:
            pass
    raise first


def read_repaired(message: Mapping[str, Any]) -> tuple[Turn, tuple[str, ...]]:
    """Return the role and the parts that a message is stored with, and notes on its repairs.

    Adapters compare them with the content of a log.
    """
    (unique,), renamed = repair.rename_repeated_calls([message])
    turn, notes = read_message(unique, "", None, _join_turns, strict=False)
    return turn, (*renamed, *notes)


def _join_turns(turns: Sequence[Turn]) -> Turn:
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


def plain_draft(
    draft: DraftOf, config: ACMSConfig, role: str | Role, values: Mapping[str, Any], **more: Any
) -> Draft | None:
    """Check the arguments of `ingest`; None for a message that has to be read as a provider's, or repaired."""
    validation.require_role_first(role, *values.values())
    content = values["content"]
    is_list = content is not None and not isinstance(content, str)
    if not config.strict and (is_list or (role == Role.ASSISTANT and not content)):
        return None
    try:
        return draft("", role=role, **values, **more)
    except ValidationError:
        if config.strict or is_empty_turn(dict(values)):
            raise
        return None


def read_drafts(
    draft: DraftOf,
    config: ACMSConfig,
    message: Mapping[str, Any],
    field: str,
    more: Mapping[str, Any] = EMPTY,
    *,
    listed: bool = False,
) -> tuple[list[Draft], tuple[str, ...]]:
    """Check one message, ours or a provider's, at the public boundary; a provider's may become several of ours.

    `more` is added to each of them. Also returns notes on the repairs.
    """
    given = [name for name in ("key", "idempotency_key", "id") if message.get(name) is not None]
    key_name = given[0] if given else "key"
    prefix = f"{field}." if field else ""

    def make_drafts(turns: Sequence[Turn]) -> list[Draft]:
        drafts: list[Draft] = []
        for turn in turns:
            if not config.strict and (listed or turn["role"] == Role.ASSISTANT):
                turn = fill_empty_turn(turn)
            drafts.append(draft(prefix, called=key_name, **{**turn, **more}))
        return drafts

    return read_message(message, field, config.media, make_drafts, strict=config.strict, listed=listed)
