"""A model server on loopback: embeddings, chat completions, messages and scores of texts, as most servers speak them.

It counts its requests, and misbehaves when told to: each call takes the next `Behave` of `script`, or `otherwise`.

    async with ModelServer() as server:
        server.script = [Behave(status=429, headers={"retry-after": "2"}), Behave(drop=True)]
        embedder = HTTPEmbedder(server.url, "test-embedding", dimension=server.dimension)
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from acms.testing import HashEmbedder

REASONS = {200: "OK", 302: "Found", 400: "Bad Request", 401: "Unauthorized", 429: "Too Many Requests"}


@dataclass(frozen=True, kw_only=True)
class Behave:
    """What the server does with one call."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    #: The answer; None gives the right one, or an error that suits the status.
    body: Any = None
    #: Bytes in place of an answer in JSON.
    raw: bytes | None = None
    #: The call waits for this before it is answered.
    until: asyncio.Event | None = None
    #: The connection is closed without an answer.
    drop: bool = False
    #: The connection is closed in the middle of the answer.
    cut: bool = False
    #: Blanks sent before the answer, without saying how long it will be.
    blanks: int = 0
    #: Blanks without end, one at a time and never late enough for a timeout of a single read.
    drip: bool = False
    #: The error, or the answer, repeats the key of the request.
    echo: bool = False
    #: The vectors of an embedding are given from the last to the first.
    shuffle: bool = False


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request that arrived."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def key(self) -> str:
        """The key it carries."""
        return self.headers.get("authorization", "").removeprefix("Bearer ") or self.headers.get(
            "x-api-key", ""
        )


class ModelServer:
    """Answers on 127.0.0.1 while its block is open, in the running event loop."""

    def __init__(
        self,
        *,
        dimension: int = 16,
        say: Callable[[dict[str, Any]], str] | None = None,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        #: What the next calls get, in order, and what every other one gets.
        self.script: list[Behave] = []
        self.otherwise = Behave()
        #: Makes the text of a chat answer from the body of the request.
        self.say = say or (lambda body: "An answer.")
        self.dimension = dimension
        #: Characters of a text above which embeddings and scores are refused, in the words of llama.cpp.
        self.longest: int | None = None
        self.calls: list[Call] = []
        #: Connections that are open now, that ever were, and the most calls that were under way at a time.
        self.connections = 0
        self.connected = 0
        self.under_way = 0
        self.most_at_once = 0
        #: Chosen by the system when it is 0.
        self.port = port
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The address to give to an OpenAI-compatible client."""
        return f"{self.root}/v1"

    @property
    def root(self) -> str:
        """The address to give to a client that adds /v1 itself."""
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    async def until(self, true: Callable[[ModelServer], bool]) -> None:
        """Wait until something is true of the server: a call arrived, a connection was closed."""
        async with asyncio.timeout(300), self._changed:
            await self._changed.wait_for(lambda: true(self))

    async def __aenter__(self) -> Self:
        self._changed = (
            asyncio.Condition()
        )  # of the running loop: a server may be started again on another one
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    # ── a connection ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await self._count(connections=1, connected=1)
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            self.connections -= 1
            with contextlib.suppress(asyncio.CancelledError):
                await self._count()

    async def _count(self, **changes: int) -> None:
        for name, change in changes.items():
            setattr(self, name, getattr(self, name) + change)
        self.most_at_once = max(self.most_at_once, self.under_way)
        async with self._changed:
            self._changed.notify_all()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except asyncio.IncompleteReadError:
            return False
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        call = Call(path=head[0].split(" ")[1], headers=headers, body=json.loads(body or b"{}"))
        self.calls.append(call)
        behave = self.script.pop(0) if self.script else self._usual(call)
        await self._count(under_way=1)
        try:
            if behave.until is not None:
                gone = asyncio.ensure_future(reader.read(1))  # ends when the client hangs up
                held = asyncio.ensure_future(behave.until.wait())
                try:
                    await asyncio.wait((gone, held), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    gone.cancel()
                    held.cancel()
                    await asyncio.gather(gone, held, return_exceptions=True)
                if not behave.until.is_set():
                    return False
            return await self._answer(call, behave, writer)
        finally:
            self.under_way -= 1

    def _usual(self, call: Call) -> Behave:
        texts = next((call.body[name] for name in ("input", "texts", "documents") if name in call.body), ())
        if self.longest is None or all(len(text) <= self.longest for text in texts):
            return self.otherwise
        message = "input (992 tokens) is too large to process. increase the physical batch size"
        return Behave(status=500, body={"error": {"code": 500, "message": message, "type": "server_error"}})

    async def _answer(self, call: Call, behave: Behave, writer: asyncio.StreamWriter) -> bool:
        if behave.drop:
            return False
        content = (
            behave.raw if behave.raw is not None else json.dumps(await self._said(call, behave)).encode()
        )
        headers = {"content-type": "application/json", **behave.headers}
        if behave.blanks or behave.drip:
            headers["connection"] = "close"
        else:
            headers["content-length"] = str(len(content))
        lines = [f"HTTP/1.1 {behave.status} {REASONS.get(behave.status, 'Error')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        while behave.drip:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.01)
        for start in range(0, behave.blanks, 65_536):
            writer.write(b" " * min(65_536, behave.blanks - start))
            await writer.drain()
        writer.write(content[: len(content) // 2] if behave.cut else content)
        await writer.drain()
        return not (behave.cut or behave.blanks)

    # ── what it says ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _said(self, call: Call, behave: Behave) -> Any:
        if behave.body is not None:
            return behave.body
        if behave.status != 200:
            key = call.key if behave.echo else ""
            error = {
                "message": f"no {key} {call.body}",
                "type": "test_error",
                "code": key or None,
                "param": None,
            }
            return {"type": "error", "error": error}
        if call.path.endswith("/embeddings"):
            return await self._vectors(call.body, behave)
        if call.path.endswith("/embed"):  # Cohere
            rows = (await self._vectors({**call.body, "input": call.body["texts"]}, behave))["data"]
            return {"id": "1", "embeddings": {"float": [row["embedding"] for row in rows]}}
        if call.path.endswith("/rerank"):
            return self._reranked(call.body, behave)
        if (tokens := _count_request(call)) is not None:
            return tokens
        text = self.say(call.body) + (f" {call.key}" if behave.echo else "")
        if call.path.endswith("/chat/completions"):
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            return {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 0,
                "model": call.body["model"],
                "choices": [choice],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
        if call.path.endswith("/messages"):
            return {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": call.body["model"],
                "content": [{"type": "text", "text": text}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "usage": {"input_tokens": 1, "output_tokens": 1},
            }
        raise LookupError(call.path)

    def _reranked(self, body: dict[str, Any], behave: Behave) -> Any:
        """The share of the words of the query that a text has; the best first, as most servers do."""
        asked = set(body["query"].lower().split())
        shares = [len(asked & set(text.lower().split())) / len(asked) for text in body["documents"]]
        rows = [{"index": place, "relevance_score": share} for place, share in enumerate(shares)]
        rows.sort(key=lambda row: -row["relevance_score"], reverse=behave.shuffle)
        return {"model": body["model"], "results": rows, "usage": {"total_tokens": 1}}

    async def _vectors(self, body: dict[str, Any], behave: Behave) -> Any:
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        found = await HashEmbedder(body.get("dimensions", self.dimension)).embed(texts)
        rows: list[dict[str, Any]] = []
        for place, vector in enumerate(np.asarray(found, np.float32)):
            coded: Any = vector.tolist()
            if body.get("encoding_format") == "base64":
                coded = base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
            rows.append({"object": "embedding", "index": place, "embedding": coded})
        if behave.shuffle:
            rows.reverse()
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        return {"object": "list", "model": body["model"], "data": rows, "usage": usage}


def _count_request(call: Call) -> Any:
    """Count words as the tokens of a request, in the form of the API that was asked; None for another route."""
    body = call.body
    if call.path.endswith("/apply-template"):
        return {"prompt": _render_template(body)}
    if call.path.endswith("/tokenize"):
        words = (body["content"] if "content" in body else _render_template(body)).split()
        return {"tokens": list(range(len(words)))} if "content" in body else {"count": len(words)}
    if call.path.endswith("/messages/count_tokens"):
        return {"input_tokens": len(_split_body(body))}
    if call.path.endswith(":countTokens"):
        return {"totalTokens": len(_split_body(body["generateContentRequest"]))}
    return None


def _render_template(body: Mapping[str, Any]) -> str:
    tools = [f"<tool> {json.dumps(tool)} </tool>" for tool in body.get("tools", ())]
    messages = [f"<start> {one['role']} {one['content']} <end>" for one in body["messages"]]
    return " ".join([*tools, *messages, "<start> assistant"])


def _split_body(body: Any) -> list[str]:
    return json.dumps(body, ensure_ascii=False).split()
