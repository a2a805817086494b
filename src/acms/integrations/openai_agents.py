"""An OpenAI Agents SDK session on an ACMS log.

    session = ACMSSession("user_123", open_storage("sqlite:///memory.db"))
    await Runner.run(agent, "…", session=session)

Items come back exactly as they went in, whatever their type: each is kept verbatim in a `Raw` part beside what ACMS
understands of it, so the same log can be recalled, windowed and rewound.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from acms.config import ACMSConfig
from acms.model import Entry, Json, Part, Raw, Role, Text, ToolCall, ToolResult
from acms.ports import Embedder, StorageBackend, TokenCounter
from acms.runtime.loops import PerLoop
from acms.session import ACMS

__all__ = ["ACMSSession"]

_VENDOR = "openai"


class ACMSSession:
    """The `Session` protocol of the OpenAI Agents SDK (0.24): four methods on one log.

    `memory` is the ACMS session underneath: use it for recall, history and time travel.
    """

    #: The SDK's own settings; its `limit` is the default of `get_items`.
    session_settings: Any = None

    def __init__(
        self,
        session_id: str,
        storage: StorageBackend,
        *,
        embedder: Embedder | Literal["auto"] | None = "auto",
        token_counter: TokenCounter | None = None,
        config: ACMSConfig | None = None,
        namespace: str = "default",
    ) -> None:
        self.session_id = session_id
        self.memory = ACMS(
            session_id, storage, embedder, token_counter=token_counter, config=config, namespace=namespace
        )
        self._locks: PerLoop[asyncio.Lock] = PerLoop(asyncio.Lock)

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the items in force, oldest first; with a limit the newest of them."""
        if limit is None:
            limit = getattr(self.session_settings, "limit", None)
        if limit is not None and limit <= 0:
            return []
        return [_item(entry) for entry in await self.memory.entries(limit)]

    async def add_items(self, items: Sequence[Any]) -> None:
        """Append items in order, all or none."""
        if items:
            await self.memory.ingest_many([_message(item) for item in items])

    async def pop_item(self) -> Any | None:
        """Put the newest item out of force and return it; None when there is none. History keeps it."""
        async with self._locks.here():
            newest = await self.memory.entries(1)
            if not newest:
                return None
            await self.memory.retract(newest[0].id, reason="popped", alone=True)
            return _item(newest[0])

    async def clear_session(self) -> None:
        """Put all items out of force. History keeps them."""
        async with self._locks.here():
            await self.memory.clear()

    async def close(self) -> None:
        """Let go of the storage."""
        await self.memory.close()


def _item(entry: Entry) -> Any:
    for part in entry.parts:
        if isinstance(part, Raw) and part.vendor == _VENDOR:
            return json.loads(part.json)
    for part in entry.parts:  # withheld: the frame of a call and of its answer stays
        if isinstance(part, ToolCall):
            arguments = {"name": part.name, "arguments": part.arguments}
            return {"type": "function_call", "call_id": part.call_id, **arguments}
        if isinstance(part, ToolResult):
            return {"type": "function_call_output", "call_id": part.call_id, "output": part.output}
    role = entry.role or Role.USER
    return {"role": "user" if role is Role.TOOL else role.value, "content": entry.content}


def _message(item: Any) -> dict[str, Any]:
    plain: Mapping[str, Json] = item if isinstance(item, Mapping) else item.model_dump(exclude_unset=True)
    kind = plain.get("type", "message")
    role, parts = Role.ASSISTANT, list[Part]()
    if kind == "message":
        role = Role(plain.get("role", "user"))
        text = _text(plain.get("content"))
        if text:
            parts.append(Text(text))
    elif kind == "function_call":
        parts.append(ToolCall(str(plain["call_id"]), str(plain["name"]), str(plain.get("arguments", ""))))
    elif kind == "function_call_output":
        role = Role.TOOL
        parts.append(ToolResult(str(plain["call_id"]), _text(plain.get("output"))))
    parts.append(Raw(_VENDOR, json.dumps(plain)))
    return {"role": role, "parts": parts}


def _text(content: Json) -> str:
    """Return the text of a content: a string, or the texts of a list of parts; without what no store can keep."""
    if isinstance(content, list | tuple):
        found = [part.get("text") for part in content if isinstance(part, Mapping)]
        content = "\n".join(text for text in found if isinstance(text, str))
    text = content if isinstance(content, str) else ""
    return text.replace("\0", "").encode(errors="replace").decode()
