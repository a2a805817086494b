"""Checkpoints of LangGraph: the SQLite file of `langgraph-checkpoint-sqlite`.

Each thread is a session: the messages of its newest checkpoint, under the channel that LangGraph itself calls
`messages`. They are read by LangGraph's own serializer, which is asked to build nothing but its known types: a file may
come from anywhere. Checkpoints of subgraphs are not read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from acms.branches import limits
from acms.branches.importers.conversation import Conversation, find_value
from acms.errors import ConfigurationError, TooLargeError, ValidationError
from acms.log.provider_messages import Turn
from acms.model import Json

MAGIC = b"SQLite format 3\x00"
"""The first bytes of a SQLite file."""
CHANNEL = "messages"
_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "developer": "developer"}
_CALLS = ("tool_use", "tool_call", "function_call")
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
            if connection.execute(_TABLE).fetchone() != ("table",):  # a view may compute without end
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
            messages = load((kind, checkpoint))["channel_values"].get(CHANNEL) or []
            known_messages = [message for message in messages if getattr(message, "type", None) in _ROLES]
            turns = [_translate_message(message) for message in known_messages]
        except Exception as error:  # whatever a foreign serializer raises about foreign bytes
            raise ValidationError(
                f"cannot be read: {error}", field=f"{path.name}: thread {thread}"
            ) from error
        yield Conversation(id=str(thread), messages=turns)


def _open_database(path: Path) -> sqlite3.Connection:
    """Open a file for reading; `immutable` keeps SQLite from creating files next to one in WAL mode."""
    uri = f"{path.as_uri()}?mode=ro"
    if not path.with_name(f"{path.name}-wal").exists():
        uri += "&immutable=1"
    return sqlite3.connect(uri, uri=True)


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
    calls: list[Json] = []
    for call in getattr(message, "tool_calls", None) or ():
        calls.append({"id": call["id"], "name": call["name"], "arguments": call["args"]})
    content = message.content
    if calls and isinstance(content, list):  # it repeats the calls in the form of a vendor
        content = [part for part in content if find_value(part, "type") not in _CALLS]
    turn: Turn = {
        "role": _ROLES[message.type],
        "content": content,
        "key": message.id,
        "name": getattr(message, "name", None),
        "tool_calls": calls,
        "tool_call_id": getattr(message, "tool_call_id", None),
    }
    return {name: value for name, value in turn.items() if value not in (None, [])}
