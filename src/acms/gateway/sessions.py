"""The sessions of lines: opened once, written in order, forked where lines part.

A line is one branch of a conversation; see `acms.gateway.lines`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from acms.config import ACMSConfig
from acms.errors import ACMSError
from acms.gateway.lines import Line
from acms.gateway.requests import ClientRequest
from acms.ports import Embedder, StorageBackend
from acms.results import Synced
from acms.session import ACMS

__all__ = ["LABEL", "LineSessions"]

LABEL = "gateway"
"""Label of the sessions that the gateway made."""
_OPEN = 256
"""Sessions that are kept open; the least recently used one is closed."""


class LineSessions:
    """The sessions of lines over one store."""

    def __init__(
        self, storage: StorageBackend, config: ACMSConfig, embedder: Embedder | Literal["auto"] | None
    ) -> None:
        self.storage = storage
        self._config = config
        self._embedder: Embedder | Literal["auto"] | None = embedder
        self._open: OrderedDict[tuple[str, str], ACMS] = OrderedDict()
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}

    def lock(self, namespace: str, name: str) -> asyncio.Lock:
        """Return the lock of a line, which its requests take in turn."""
        return self._locks.setdefault((namespace, name), asyncio.Lock())

    async def sync(
        self, request: ClientRequest, line: Line, reply: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[ACMS, Synced]:
        """Store the messages of a request, and the reply to it, in the session of its line.

        The caller must hold the line's lock.
        """
        session = await self._open_line(request, line)
        synced = await session.sync(request.keyed_messages(reply))
        return session, synced

    async def aclose(self) -> None:
        """Close all sessions."""
        while self._open:
            _, session = self._open.popitem()
            await session.close()

    async def _open_line(self, request: ClientRequest, line: Line) -> ACMS:
        """Return the session of a line: an open one, a fork of the line's parent, or a new one.

        The session that was used least recently is closed when more than `_OPEN` are open.
        """
        key = (request.namespace, line.name)
        session = self._open.get(key)
        if session is None and line.parent:
            session = await self._fork(request.namespace, line)
        if session is None:
            session = self._new_session(request, line)
        self._open[key] = session
        self._open.move_to_end(key)
        if len(self._open) > _OPEN:
            oldest_key, oldest_session = self._open.popitem(last=False)
            self._locks.pop(oldest_key, None)
            await oldest_session.close()
        return session

    def _new_session(self, request: ClientRequest, line: Line) -> ACMS:
        client = request.headers.get("user-agent", "").partition(" ")[0][:100]
        metadata = {"client": client, "model": request.model[:100], "protocol": request.protocol.name}
        if line.parent:
            metadata["parent"] = line.parent
        return ACMS(
            line.name,
            self.storage,
            self._embedder,
            config=self._config,
            namespace=request.namespace,
            labels=[LABEL],
            metadata=metadata,
        )

    async def _fork(self, namespace: str, line: Line) -> ACMS | None:
        """Return a fork of the line's parent that shares its messages up to `line.shared`.

        Return None if the parent's log does not have that message; the whole list is then stored in a new session.
        """
        parent = self._open.get((namespace, line.parent))
        parent = parent or ACMS(
            line.parent, self.storage, self._embedder, config=self._config, namespace=namespace
        )
        try:
            shared = await parent.get(line.shared)
            return await parent.fork(at=shared.version, session_id=line.name)
        except ACMSError:
            return None
