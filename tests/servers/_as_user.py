"""Runs the launchers as a normal user. Started by root: what Python loads is loaded before root is given up.

`run FOLDER` starts PostgreSQL 18, PgBouncer and Redis with the programs at hand; `fetch FOLDER` PostgreSQL 15,
PgBouncer and Redis with programs fetched by the normal user, whatever is installed.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401
import os
import sys
from pathlib import Path

import psycopg
import redis

from tests.servers import debian, postgres
from tests.servers.pgbouncer import PgBouncer
from tests.servers.process import NOBODY, is_root
from tests.servers.redis import RedisServer


def main(what: str, folder: Path) -> None:
    if what == "fetch":
        debian.installed_program = lambda place: None
    elif is_root():
        # The environment and the cache may lie where only root reads: their programs are put where everybody does.
        package = postgres.link_wheel(folder / "wheel")
        postgres.wheel_folder = lambda: package
        places = ("usr/bin/redis-server", "usr/sbin/pgbouncer")
        programs = {place: debian.find_program(place, folder / Path(place).name) for place in places}
        debian.find_program = lambda place, _: programs[place]
    if is_root():
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    version = 15 if what == "fetch" else 18
    with (
        postgres.Server(version=version) as server,
        PgBouncer(server.create_database()) as pool,
        RedisServer() as cache,
        redis.Redis.from_url(cache.url) as client,
    ):
        if version == 18:
            server_says = (
                "SELECT current_setting('server_version_num')::int / 10000, '[1,2]'::vector <-> '[1,4]'"
            )
            with psycopg.connect(pool.url) as connection:
                connection.execute("CREATE EXTENSION vector")
        else:
            server_says = "SELECT current_setting('server_version_num')::int / 10000"
        client.set("a", "b")
        for _ in range(2):
            with psycopg.connect(pool.url) as connection:
                row = connection.execute(server_says).fetchone() or ()
            print(*row, client.get("a"))
            for part in (server, pool, cache):
                part.kill()
                part.start()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
