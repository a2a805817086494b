"""Exports of mem0: the memories that `get_all` returns, or a list of them.

A memory is a sentence without a subject and an attribute, so it becomes a message and not a fact: a reflector makes
facts of it, as of any other message. It keeps its id, its metadata and its time; another text in a later export is an
edit. Memories of one user (else of one agent, one run) are a session.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from acms.branches.importers.conversation import (
    Conversation,
    Record,
    as_mapping_list,
    has_content,
    parse_timestamp,
    record_at,
)
from acms.branches.importers.shapes import has_value, is_text
from acms.branches.importers.source import Source
from acms.log.provider_messages import Turn
from acms.model import Role

SHAPES = tuple((is_text(f"{at}memory"), has_value(f"{at}id")) for at in ("", "results.0.", "memories.0."))
_OWNERS = ("user_id", "agent_id", "app_id", "run_id")
_METADATA = ("agent_id", "app_id", "run_id", "categories", "expiration_date")


def read_mem0(source: Source) -> Iterator[Conversation]:
    """Read the memories of an export, those of each owner oldest first."""
    by_owner: dict[str, list[Turn]] = {}
    for record in source.records():
        for memory in _list_memories(record):
            if isinstance(memory.get("memory"), str):
                owners = [str(memory[name]) for name in _OWNERS if memory.get(name)]
                owner = owners[0] if owners else "mem0"
                by_owner.setdefault(owner, []).append(_translate_memory(memory))
    for owner, turns in by_owner.items():
        turns = [turn for turn in turns if has_content(turn)]
        turns.sort(key=_time_of_turn)
        yield Conversation(id=owner, messages=turns)


def _list_memories(record: Record) -> list[Record]:
    for name in ("results", "memories"):
        if name in record:
            return as_mapping_list(record[name])
    return [record]


def _time_of_turn(turn: Turn) -> datetime:
    return turn.get("created_at", datetime.min.replace(tzinfo=UTC))


def _translate_memory(memory: Record) -> Turn:
    """Translate a memory to a message of external origin, at the time of its last update.

    The origin is external because mem0's model wrote the text, not the user.
    """
    role = memory.get("role")
    if role not in (Role.USER, Role.ASSISTANT):
        role = Role.USER.value
    metadata = dict(record_at(memory, "metadata"))
    for name in _METADATA:
        if memory.get(name):
            metadata[name] = memory[name]
    turn: Turn = {
        "role": role,
        "content": memory["memory"],
        "origin": "external",
        "key": str(memory["id"]),
        "metadata": metadata,
    }
    if memory.get("actor_id"):
        turn["actor_id"] = str(memory["actor_id"])
    time = memory.get("updated_at") or memory.get("created_at")
    if time:
        turn["created_at"] = parse_timestamp(time)
    return turn
