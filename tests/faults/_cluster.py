"""Three PostgreSQL servers, one of which takes writes, in quorum commit; a script promotes another one when it is lost.

What Patroni does, in the order in which it does it, without waiting for a lease to end: so a round takes seconds.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Self

import psutil

from tests.servers.postgres import Server, Standby

from ._proxy import Wire

NAMES = ("node1", "node2", "node3")
SETTINGS = {"wal_log_hints": "on", "wal_keep_size": "256MB", "wal_retrieve_retry_interval": "100ms"}
"""What a lost primary needs to be rewound, and a standby to find a new one soon."""
KEPT = {"synchronous_standby_names": f"ANY 1 ({', '.join(NAMES)})", "wal_keep_size": "256MB"}
"""What lies in the data folder: pg_rewind recovers a server without the arguments that we start it with."""
_FOLLOWING = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'quorum'"
_RECEIVED = "SELECT coalesce(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0'::pg_lsn"


class Cluster:
    """`async with Cluster() as cluster`: `cluster.primary` is the name of the server that takes writes.

    A server is followed by way of a wire of its own, which can be cut.
    """

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}
        self.wires: dict[str, Wire] = {}
        self.primary = NAMES[0]
        self._threads = ExitStack()
        self._wired = AsyncExitStack()

    async def __aenter__(self) -> Self:
        first = Server(fsync=True, settings=SETTINGS)
        await asyncio.to_thread(self._threads.enter_context, first)
        self.servers[NAMES[0]] = first
        self.servers |= {name: Standby(first, name=name, settings=SETTINGS) for name in NAMES[1:]}
        for name in NAMES[1:]:
            self._threads.callback(self.servers[name].close)
        await asyncio.gather(*(asyncio.to_thread(self.servers[name].start) for name in NAMES[1:]))
        for name, server in self.servers.items():
            self.wires[name] = await self._wired.enter_async_context(Wire(server.port))
            for setting, value in KEPT.items():
                server.execute(f"ALTER SYSTEM SET {setting} = '{value}'")
            server.execute("SELECT pg_reload_conf()")
        await asyncio.gather(*(self._follow(name) for name in NAMES[1:]))
        await self.complete()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._wired.aclose()
        await asyncio.to_thread(self._threads.close)

    def url(self, database: str) -> str:
        """Return an address that names all three."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers.values())
        return f"postgresql://postgres@{hosts}/{database}"

    @property
    def standbys(self) -> list[str]:
        """Those that do not take writes."""
        return [name for name in self.servers if name != self.primary]

    async def complete(self) -> None:
        """Wait until both others follow the primary."""
        while await self._asked(self.primary, _FOLLOWING) != 2:
            await asyncio.sleep(0.02)

    async def lose(self) -> None:
        """End the primary with SIGKILL."""
        await asyncio.to_thread(self.servers[self.primary].kill)

    async def promote(self) -> None:
        """Promote the standby that has received most, and let the other one follow it."""
        lost = self.primary
        received = {name: await self._asked(name, _RECEIVED) for name in self.standbys}
        self.primary = max(received, key=lambda name: received[name])
        await self._asked(self.primary, "SELECT pg_promote()")
        await self._follow(next(name for name in self.standbys if name != lost))

    async def rejoin(self, name: str) -> None:
        """Bring a lost primary back as a standby of the new one: what only it has is taken out of its files."""
        server, data = self.servers[name], self.servers[name].folder / "data"
        source = f"host=127.0.0.1 port={self.servers[self.primary].port} user=postgres dbname=postgres"
        await asyncio.to_thread(server.run, "pg_rewind", "--target-pgdata", data, "--source-server", source)
        self._stand_by(name, data)
        self.wires[name].open = True
        await asyncio.to_thread(server.start)
        await self.complete()

    def _stand_by(self, name: str, data: Path) -> None:
        with (data / "postgresql.auto.conf").open("a") as settings:  # those it has now are the new primary's
            settings.write(f"primary_conninfo = '{self._where(name)}'\n")
        signal, owner = data / "standby.signal", data.stat()
        signal.touch(mode=0o600)
        os.chown(signal, owner.st_uid, owner.st_gid)

    async def _follow(self, name: str) -> None:
        await self._asked(name, f"ALTER SYSTEM SET primary_conninfo = '{self._where(name)}'")
        await self._asked(name, "SELECT pg_reload_conf()")

    def _where(self, name: str) -> str:
        """Return what a standby follows the primary by."""
        plain = "user=postgres sslmode=disable gssencmode=disable"
        return f"host=127.0.0.1 port={self.wires[self.primary].port} {plain} application_name={name}"

    async def _asked(self, name: str, query: str) -> int:
        rows = await asyncio.to_thread(self.servers[name].execute, query)
        return int(rows[0][0]) if rows else 0

    @contextmanager
    def frozen(self, names: Sequence[str]) -> Generator[None]:
        """Stop every process of some servers while the block runs."""
        family: list[psutil.Process] = []
        for name in names:
            postmaster = psutil.Process(self.servers[name].pid)
            family += [postmaster, *postmaster.children(recursive=True)]
        for process in family:
            process.suspend()
        try:
            yield
        finally:
            for process in family:
                if process.is_running():
                    process.resume()
