"""A Redis server of our own: `with RedisServer() as server: server.url`."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.servers import debian
from tests.servers.process import PATIENCE, Service


class RedisServer(Service):
    """Debian's Redis; written data is there again after stop(), and after kill() but for the last second."""

    NAME = "redis"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _prepare(self, folder: Path) -> None:
        self._program, self._env = debian.find_program("usr/bin/redis-server", folder)

    def _command(self) -> list[str | Path]:
        words = f"--bind 127.0.0.1 --port {self.port} --daemonize no --appendonly yes --appendfsync everysec"
        return [self._program, *words.split(), "--dir", self.folder, "--save", ""]

    def _ready(self) -> bool:
        try:
            return self._say("PING") == b"+PONG\r\n"
        except OSError:  # not up yet; an error in the answer: still reading its file
            return False

    def clear(self) -> None:
        """Delete everything in every database."""
        assert self._say("FLUSHALL") == b"+OK\r\n"

    def _say(self, command: str) -> bytes:
        # Two words of its protocol, rather than a client that takes a fifth of a second to import.
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            connection.sendall(f"{command}\r\n".encode())
            return connection.recv(100)
