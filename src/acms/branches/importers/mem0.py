"""Exports of mem0: the memories that `get_all` returns, or a list of them.

A memory is a sentence without a subject and an attribute, so it becomes a message and not a fact: a reflector makes
facts of it, as of anything else that was said. It keeps its id, its metadata and its time; one that says something
else in a later export is an edit. Memories of one user (else of one agent, one run) are a session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from acms.branches.importers.chat import moment
from acms.branches.importers.conversation import Conversation, mapping, mappings
from acms.log.foreign import Turn
from acms.model import Json, Role

__all__ = ["conversations", "recognise"]

_OWNERS = ("user_id", "agent_id", "app_id", "run_id")
_KEPT = ("agent_id", "app_id", "run_id", "categories", "expiration_date")


def recognise(document: Json) -> bool:
    """Return whether a document is such an export."""
    first = next(iter(_listed(document)), {})
    return isinstance(first.get("memory"), str) and "id" in first


def conversations(document: Json) -> Iterator[Conversation]:
    """Read the memories of an export, those of each owner oldest first."""
    owned: dict[str, list[Turn]] = {}
    for one in _listed(document):
        if isinstance(one.get("memory"), str) and one["memory"].strip():
            owner = next((str(one[name]) for name in _OWNERS if one.get(name)), "mem0")
            owned.setdefault(owner, []).append(_turn(one))
    first = datetime.min.replace(tzinfo=UTC)
    for owner, turns in owned.items():
        ordered = sorted(turns, key=lambda turn: turn.get("created_at", first))
        yield Conversation(id=owner, messages=ordered)


def _listed(document: Json) -> list[Mapping[str, Json]]:
    inner = next(
        (mapping(document)[name] for name in ("results", "memories") if name in mapping(document)), document
    )
    return mappings(inner)


def _turn(memory: Mapping[str, Json]) -> Turn:
    role = memory.get("role")
    turn: Turn = {
        "role": role if role in (Role.USER, Role.ASSISTANT) else Role.USER.value,
        "content": memory["memory"],
        "origin": "external",
        "key": str(memory["id"]),
        "metadata": {
            **mapping(memory.get("metadata")),
            **{name: memory[name] for name in _KEPT if memory.get(name)},
        },
    }
    if memory.get("actor_id"):
        turn["actor_id"] = str(memory["actor_id"])
    said = memory.get("updated_at") or memory.get("created_at")
    return {**turn, "created_at": moment(said)} if said else turn
