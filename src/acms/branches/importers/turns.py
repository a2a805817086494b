"""Admit imported messages: each is validated before the first one is stored, and none can instruct a model."""

from __future__ import annotations

from collections.abc import Iterable

from acms.branches import limits
from acms.errors import TooLargeError, ValidationError
from acms.log import provider_messages, validation
from acms.log.provider_messages import Turn
from acms.log.repair import refer_by_hash
from acms.log.trust import LEADING
from acms.model import Origin, Privacy, Role


def admit_turn(turn: Turn, *, trust: bool) -> Turn:
    """Return a message that `ingest` accepts; raise `ValidationError` for any other.

    A file may come from anywhere. Unless the caller trusts it, its system and developer messages become external text:
    they are rendered as text of a user, not as instructions.
    """
    role = validation.parse_choice(turn["role"], Role, "role")
    content = turn.get("content") or ""
    calls, call_id = turn.get("tool_calls"), turn.get("tool_call_id")
    validation.build_message_parts(role, content, turn.get("parts"), calls, call_id)
    validation.validate_optional_name(turn.get("actor_id"), "actor_id")
    validation.validate_optional_name(turn.get("key"), "key")
    validation.parse_choice(turn.get("privacy") or Privacy.ALLOW, Privacy, "privacy")
    admitted = dict(turn)
    admitted["metadata"] = validation.validate_metadata(turn.get("metadata") or {})
    admitted["markers"] = validation.validate_markers(turn.get("markers") or None)
    if turn.get("created_at") is not None:
        admitted["created_at"] = validation.parse_moment(turn["created_at"])
    admitted = {name: value for name, value in admitted.items() if value not in (None, {}, ())}
    return admitted if trust else _distrust_turn(admitted)


def _distrust_turn(turn: Turn) -> Turn:
    """Return a message as external text if its role would make it an instruction."""
    if turn["role"] in LEADING and turn.get("origin") in (None, Origin.SYSTEM):
        return {**turn, "origin": Origin.EXTERNAL.value}
    return turn


def admit_conversation(turns: Iterable[Turn], *, trust: bool) -> list[Turn]:
    """Return the messages of one conversation as `sync` takes them; `ValidationError` names the one at fault."""
    admitted: list[Turn] = []
    index_of_key: dict[str, int] = {}
    for index, turn in enumerate(turns):
        field = f"messages[{index}]"
        with limits.set_error_field(field):
            for message in provider_messages.parse_provider_message(turn, keep=refer_by_hash):
                admit_turn(message, trust=trust)
        first_index = index_of_key.setdefault(str(turn.get("key", index)), index)
        if first_index != index:
            raise ValidationError(f"has the key of messages[{first_index}]", field=field)
        admitted.append(turn if trust else _distrust_turn(turn))
        if len(admitted) > validation.LIST:
            raise TooLargeError(f"has more than {validation.LIST:,} messages", field="messages")
    return admitted
