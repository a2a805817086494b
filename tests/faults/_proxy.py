"""A wire between a client and a server that can be cut at any message."""

from __future__ import annotations

import asyncio
from typing import Self


class Wire:
    """Forwards connections to a PostgreSQL server on 127.0.0.1, message by message.

    `async with Wire(port) as wire` listens; `wire.arm("client", 3, forwarded=False)` cuts the connection on which the
    third message from now on comes from the client, before it is passed on. Nothing may be encrypted.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._left = 0
        self._side = ""
        self._forwarded = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        #: How many connections were cut.
        self.cuts = 0
        #: While it is cleared, nobody is let in.
        self.open = True

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            await task
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.sockets[0].getsockname()[1]

    def url(self, of: str) -> str:
        """Return the URL of a database of the server by way of this wire."""
        head, _, name = of.rpartition("/")
        name, _, query = name.partition("?")
        user = head.rpartition("@")[0]
        plain = "sslmode=disable&gssencmode=disable"
        return f"{user}@127.0.0.1:{self.port}/{name}?{plain}{'&' if query else ''}{query}"

    def arm(self, side: str, nth: int, *, forwarded: bool) -> None:
        """Cut at the n-th message of one side, counted over all connections, before or after passing it on."""
        self._side, self._left, self._forwarded = side, nth, forwarded

    def cut(self) -> None:
        """Cut every connection, with the data under way on it, and accept no new ones."""
        self.open = False
        self.cuts += len(self._writers) // 2
        for writer in self._writers:
            writer.transport.abort()

    def disarm(self) -> None:
        """Cut nothing any more."""
        self._left = 0

    async def _accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(to_client)
        try:
            if not self.open:
                return
            server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(to_server)
            ends = (to_client, to_server)
            try:
                await asyncio.gather(
                    self._carry("client", client, to_server, ends, greeting=True),
                    self._carry("server", server, to_client, ends),
                )
            finally:
                self._writers.discard(to_server)
                to_server.transport.abort()
        except OSError:  # the server is down
            pass
        finally:
            self._writers.discard(to_client)
            self._tasks.discard(task)
            to_client.transport.abort()

    async def _carry(
        self,
        side: str,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        ends: tuple[asyncio.StreamWriter, ...],
        *,
        greeting: bool = False,
    ) -> None:
        try:
            while True:
                head = await source.readexactly(4 if greeting else 5)  # the first one has no type
                size = int.from_bytes(head[-4:], "big") - 4
                message = head + await source.readexactly(size)
                greeting = False
                cut = False
                if self._left and self._side == side:
                    self._left -= 1
                    cut = self._left == 0
                if not cut or self._forwarded:
                    target.write(message)
                    await target.drain()
                if cut:
                    self.cuts += 1
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass
        for end in ends:  # what was passed on is still delivered, then both see the end
            end.close()
