"""Identity providers in a process of their own: lines `start PORT SECONDS USERS` and `stop PORT` of stdin run them."""

from __future__ import annotations

import json
import os
import sys
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from oidc_provider_mock import User, run_server_in_thread

os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"  # loopback


def main() -> None:
    running: dict[str, AbstractContextManager[Any]] = {}
    for line in sys.stdin:
        verb, port, *rest = line.split(" ", 3)
        if verb == "start":
            seconds, users = rest
            known = [User(sub=one.pop("sub"), claims=one) for one in json.loads(users)]
            age = timedelta(seconds=int(seconds))
            made = run_server_in_thread(port=int(port), access_token_max_age=age, user_claims=known)
            made.__enter__()
            running[port] = made
        else:
            running.pop(port.strip()).__exit__(None, None, None)
        print("done", flush=True)


if __name__ == "__main__":
    main()
