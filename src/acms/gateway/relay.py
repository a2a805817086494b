"""Relay an answer while a copy of it is read: its end is held back until the reply is recorded."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable

import httpx2

from acms.gateway.protocols import Protocol, Reply

__all__ = ["relay_bytes", "relay_reply"]

Finish = Callable[[Reply], Awaitable[None]]
"""Called with the complete reply before its last bytes are relayed; it must not raise."""


async def relay_bytes(answer: httpx2.Response) -> AsyncGenerator[bytes]:
    """Relay an answer."""
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    finally:
        await answer.aclose()


async def relay_reply(answer: httpx2.Response, protocol: Protocol, finish: Finish) -> AsyncGenerator[bytes]:
    """Relay the answer of a model, and pass the parsed reply to `finish` before the end is relayed."""
    is_stream = "event-stream" in answer.headers.get("content-type", "")
    relay = _relay_stream if is_stream else _relay_document
    try:
        async for chunk in relay(answer, protocol, finish):
            yield chunk
    finally:
        await answer.aclose()


async def _relay_stream(answer: httpx2.Response, protocol: Protocol, finish: Finish) -> AsyncGenerator[bytes]:
    """Relay a stream of events chunk by chunk; a stream that cannot be parsed is relayed, but not stored."""
    reader = protocol.open_reply()
    is_reading = True
    async for chunk in answer.aiter_raw():
        if is_reading:
            try:
                reader.feed(chunk)
                if reader.finished:
                    is_reading = False
                    await finish(reader.reply())
            except (LookupError, TypeError, ValueError, AttributeError):
                is_reading = False
        yield chunk


async def _relay_document(
    answer: httpx2.Response, protocol: Protocol, finish: Finish
) -> AsyncGenerator[bytes]:
    """Relay a JSON document as one chunk; a document that cannot be parsed is relayed, but not stored."""
    chunks = [chunk async for chunk in answer.aiter_raw()]
    document = b"".join(chunks)
    try:
        response = json.loads(document)
        reply = protocol.parse_reply(response)
    except (LookupError, TypeError, ValueError, AttributeError):
        reply = None
    if reply is not None:
        await finish(reply)
    yield document
