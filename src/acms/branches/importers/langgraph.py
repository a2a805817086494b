"""Checkpoints of LangGraph: the SQLite file of `langgraph-checkpoint-sqlite`.

Each thread is a session: the messages of its newest checkpoint, under the channel that LangGraph itself calls
`messages`. They are read by LangGraph's own serializer, which is asked to build nothing but its known types: a file may
come from anywhere. Checkpoints of subgraphs are their own affair and are not read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from acms.branches import limits
from acms.branches.importers.conversation import Conversation
from acms.errors import ConfigurationError, TooLargeError, ValidationError
from acms.log.foreign import Turn

__all__ = ["MAGIC", "read_checkpoints"]

MAGIC = b"SQLite format 3\x00"
"""How such a file begins."""
CHANNEL = "messages"
_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "developer": "developer"}
_TABLE = "SELECT type FROM sqlite_master WHERE name = 'checkpoints'"
_SIZE = "SELECT total(length(checkpoint)) FROM checkpoints"
_NEWEST = """
    SELECT thread_id, type, checkpoint FROM checkpoints AS newest
    WHERE checkpoint_ns = '' AND checkpoint_id = (
        SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = newest.thread_id AND checkpoint_ns = '')
    ORDER BY thread_id
"""


def read_checkpoints(path: Path) -> Iterator[Conversation]:
    """Read the threads of a file, which is not written to."""
    load = _get_deserializer()
    try:
        with closing(_open_database(path.resolve())) as connection:
            if connection.execute(_TABLE).fetchone() != ("table",):  # a view could compute for ever
                raise sqlite3.DatabaseError("it has no table named checkpoints")
            if connection.execute(_SIZE).fetchone()[0] > limits.IMPORT_BYTES:
                raise TooLargeError(
                    f"has more than {limits.IMPORT_BYTES:,} bytes of checkpoints", field=path.name
                )
            rows = connection.execute(_NEWEST).fetchall()
    except sqlite3.Error as error:
        raise ValidationError(
            f"is a SQLite file, but none of LangGraph's checkpoints: {error}",
            field=path.name,
        ) from error
    for thread, kind, checkpoint in rows:
        try:
            values = load((kind, checkpoint))["channel_values"]
            held = values.get(CHANNEL) or []
            turns = [
                _translate_message(message) for message in held if getattr(message, "type", None) in _ROLES
            ]
        except Exception as error:  # whatever a foreign serializer raises about foreign bytes
            raise ValidationError(
                f"cannot be read: {error}", field=f"{path.name}: thread {thread}"
            ) from error
        yield Conversation(id=str(thread), messages=turns)


def _open_database(path: Path) -> sqlite3.Connection:
    """Open a file for reading. SQLite would leave files beside one in WAL mode that no program has open."""
    in_use = path.with_name(f"{path.name}-wal").exists()
    return sqlite3.connect(f"{path.as_uri()}?mode=ro{'' if in_use else '&immutable=1'}", uri=True)


def _get_deserializer() -> Callable[[tuple[str, bytes]], Any]:
    try:
        from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    except ImportError:
        raise ConfigurationError(
            "checkpoints of LangGraph are read by its own serializer, which is not installed",
            options=("pip install langgraph-checkpoint-sqlite",),
        ) from None
    return JsonPlusSerializer(allowed_msgpack_modules=None).loads_typed


def _translate_message(message: Any) -> Turn:
    """Read a message of LangChain; its id is its key."""
    calls = [
        {"id": one["id"], "name": one["name"], "arguments": one["args"]} for one in _tool_calls_of(message)
    ]
    content = message.content
    if calls and isinstance(content, list):  # the calls again, in the form of a vendor
        content = [one for one in content if not isinstance(one, dict) or one.get("type") not in _CALLS]
    turn: Turn = {"role": _ROLES[message.type], "content": content, "key": message.id}
    more = {
        "name": getattr(message, "name", None),
        "tool_calls": calls,
        "tool_call_id": getattr(message, "tool_call_id", None),
    }
    return {name: value for name, value in {**turn, **more}.items() if value not in (None, [])}


_CALLS = ("tool_use", "tool_call", "function_call")


def _tool_calls_of(message: Any) -> list[dict[str, Any]]:
    return list(getattr(message, "tool_calls", None) or ())
