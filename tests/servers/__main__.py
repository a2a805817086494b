"""`python -m tests.servers`: a PostgreSQL server with an empty database until Ctrl-C."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress

from tests.servers.postgres import Server

if __name__ == "__main__":
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.default_int_handler)
    with suppress(KeyboardInterrupt), Server() as server:
        print(server.create_database(), flush=True)
        threading.Event().wait()
