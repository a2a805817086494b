"""Identity providers: a real one in a process of its own, and one whose keys and tokens a test makes."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import jwt

AUDIENCE = "acms"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@dataclass(frozen=True, kw_only=True)
class Provider:
    """A provider that people sign in at."""

    issuer: str

    def token(self, subject: str, audience: str = AUDIENCE) -> str:
        """Sign a user in with the authorization code flow, and return the signed token."""
        asked = {"client_id": audience, "redirect_uri": "http://127.0.0.1/back", "response_type": "code"}
        with httpx2.Client(base_url=self.issuer, trust_env=False, timeout=60) as client:
            sent = client.post(
                "/oauth2/authorize", params={**asked, "scope": "openid"}, data={"sub": subject}
            )
            (code,) = parse_qs(urlsplit(sent.headers["location"]).query)["code"]
            form = {**asked, "grant_type": "authorization_code", "code": code, "client_secret": "any"}
            reply = client.post("/oauth2/token", data=form)
            return str(reply.json()["id_token"])

    def keys(self) -> list[dict[str, Any]]:
        with httpx2.Client(base_url=self.issuer, trust_env=False, timeout=60) as client:
            return list(client.get("/jwks").json()["keys"])


class Providers:
    """Providers in a process of their own."""

    def __init__(self) -> None:
        words = [sys.executable, "-W", "ignore", "-m", "tests.support.identity_providers"]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    @contextmanager
    def run(self, port: int, *users: Mapping[str, Any], seconds: int = 3600) -> Iterator[Provider]:
        """Run a provider until the block ends; its tokens last so many seconds. Each has a key of its own."""
        self._tell(f"start {port} {seconds} {json.dumps(users)}")
        try:
            yield Provider(issuer=f"http://localhost:{port}")
        finally:
            self._tell(f"stop {port}")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n", "the provider broke"

    def close(self) -> None:
        self._process.communicate(timeout=60)


def claims_of_token(token: str) -> dict[str, Any]:
    """Return the claims of a token, unchecked."""
    return dict(jwt.decode(token, options={"verify_signature": False}))


def unsigned_token(said: Mapping[str, Any], algorithm: str = "none", **header: Any) -> str:
    """Return a token without a signature."""
    parts = [json.dumps(one).encode() for one in ({"alg": algorithm, "typ": "JWT", **header}, dict(said))]
    return ".".join([*[base64.urlsafe_b64encode(one).decode().rstrip("=") for one in parts], ""])


@dataclass(kw_only=True)
class Pages:
    """A server whose answers by path a test writes."""

    issuer: str
    pages: dict[str, Any] = field(default_factory=lambda: {})
    #: Paths, as they were asked for.
    asked: list[str] = field(default_factory=list[str])
    #: While it is not set, requests are taken and not answered.
    answers: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, *keys: Mapping[str, Any], at: str | None = None, issuer: str | None = None) -> None:
        """Publish keys; `at` is where the discovery document says they are."""
        self.pages["/.well-known/openid-configuration"] = {
            "issuer": issuer or self.issuer,
            "jwks_uri": at or f"{self.issuer}/keys",
        }
        self.pages["/keys"] = {"keys": list(keys)}


@asynccontextmanager
async def serve_pages() -> AsyncIterator[Pages]:
    """Serve pages until the block ends."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ", 2)[1]
        found.asked.append(path)
        await found.answers.wait()
        page = found.pages.get(path)
        body = json.dumps(page).encode()
        status = "200 OK" if page is not None else "503 Unavailable"
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        )
        writer.write(body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    found = Pages(issuer=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    found.answers.set()
    async with server:
        yield found
