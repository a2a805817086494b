"""Exports of mem0: the memories that `get_all` returns, or a list of them.

A memory is a sentence without a subject and an attribute, so it becomes a message and not a fact: a reflector makes
facts of it, as of anything else that was said. It keeps its id, its metadata and its time; one that says something
else in a later export is an edit. Memories of one user (else of one agent, one run) are a session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from acms.branches.importers.conversation import Conversation, as_mapping, as_mapping_list, parse_timestamp
from acms.branches.importers.shapes import has_value, is_text
from acms.branches.importers.source import Source
from acms.log.foreign import Turn
from acms.model import Json, Role

__all__ = ["SHAPES", "read_mem0"]

SHAPES = tuple((is_text(f"{at}memory"), has_value(f"{at}id")) for at in ("", "results.0.", "memories.0."))
_OWNERS = ("user_id", "agent_id", "app_id", "run_id")
_KEPT = ("agent_id", "app_id", "run_id", "categories", "expiration_date")


def read_mem0(source: Source) -> Iterator[Conversation]:
    """Read the memories of an export, those of each owner oldest first."""
    owned: dict[str, list[Turn]] = {}
    for _, value in source.records():
        for one in _list_memories(value):
            if isinstance(one.get("memory"), str) and one["memory"].strip():
                owner = next((str(one[name]) for name in _OWNERS if one.get(name)), "mem0")
                owned.setdefault(owner, []).append(_translate_memory(one))
    first = datetime.min.replace(tzinfo=UTC)
    for owner, turns in owned.items():
        ordered = sorted(turns, key=lambda turn: turn.get("created_at", first))
        yield Conversation(id=owner, messages=ordered)


def _list_memories(value: Json) -> list[Mapping[str, Json]]:
    for name in ("results", "memories"):
        if name in as_mapping(value):
            return as_mapping_list(as_mapping(value)[name])
    return [as_mapping(value)]


def _translate_memory(memory: Mapping[str, Json]) -> Turn:
    role = memory.get("role")
    turn: Turn = {
        "role": role if role in (Role.USER, Role.ASSISTANT) else Role.USER.value,
        "content": memory["memory"],
        "origin": "external",
        "key": str(memory["id"]),
        "metadata": {
            **as_mapping(memory.get("metadata")),
            **{name: memory[name] for name in _KEPT if memory.get(name)},
        },
    }
    if memory.get("actor_id"):
        turn["actor_id"] = str(memory["actor_id"])
    said = memory.get("updated_at") or memory.get("created_at")
    return {**turn, "created_at": parse_timestamp(said)} if said else turn
