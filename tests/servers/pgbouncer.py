"""A PgBouncer of our own: `with PgBouncer(server.url("x")) as pool: pool.url`."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from tests.servers import debian
from tests.servers.process import Service


class PgBouncer(Service):
    """Debian's PgBouncer in transaction mode in front of one database: each transaction may get another connection."""

    NAME = "bouncer"

    def __init__(self, url: str, *, connections: int = 4) -> None:
        super().__init__()
        self._target = urlsplit(url)
        self._connections = connections

    @property
    def url(self) -> str:
        return f"postgresql://{self._target.username or 'postgres'}@127.0.0.1:{self.port}{self._target.path}"

    def _prepare(self, folder: Path) -> None:
        self._program, self._env = debian.find_program("usr/sbin/pgbouncer", folder)
        there = self._target
        login = f"user={there.username or 'postgres'}" + (
            f" password={there.password}" if there.password else ""
        )
        (folder / "pgbouncer.ini").write_text(f"""\
[databases]
{there.path.lstrip("/")} = host={there.hostname} port={there.port or 5432} {login}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {self._connections}
max_client_conn = 500
ignore_startup_parameters = extra_float_digits
""")
        (folder / "pgbouncer.ini").chmod(0o644)

    def _command(self) -> list[str | Path]:
        return [self._program, self.folder / "pgbouncer.ini"]
