"""Receivers of webhooks: an HTTP server in a thread that keeps its requests, and answers as a test wants it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks import Webhook

Answer = Callable[[BaseHTTPRequestHandler], object]


def answer_status(code: int, **headers: str) -> Answer:
    """Answer with a status and nothing else."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in {"content-length": "0", **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()

    return answer


OK = answer_status(204)


class Receiver:
    """What arrived, in order."""

    def __init__(self) -> None:
        self.answer: Answer = OK
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.url = ""
        #: Set when a test ends: who waits in an answer waits no more.
        self.ends = threading.Event()

    def verified(self, secret: str) -> list[dict[str, Any]]:
        """Return the received requests, after their signatures were checked as receivers do."""
        webhook = Webhook(secret)
        for headers, body in self.requests:
            webhook.verify(body, headers)
        return [json.loads(body) for _, body in self.requests]

    def versions(self, context: str) -> list[int]:
        """Return the versions of a log that arrived."""
        said = [json.loads(body)["data"] for _, body in list(self.requests)]
        return [one["version"] for one in said if one["contextId"] == context]


@contextmanager
def running_receiver() -> Generator[Receiver]:
    """Receive until the block ends."""
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        _answered = False

        def do_POST(self) -> None:
            self._answered = False
            body = self.rfile.read(int(self.headers["content-length"]))
            found.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
            found.answer(self)
            self.close_connection = self.close_connection or not self._answered

        def send_response(self, code: int, message: str | None = None) -> None:
            self._answered = True
            super().send_response(code, message)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            del request, client_address  # who is called and hangs up is part of the test

    server = Server(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield found
    finally:
        found.ends.set()
        server.shutdown()
        thread.join(60)
        server.server_close()
