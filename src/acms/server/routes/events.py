"""Events of a log over HTTP: a stream of server-sent events that clients can resume."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated

from pydantic import Field

from acms.errors import ACMSError
from acms.events.follow import LogFollower, parse_cursor
from acms.model import Entry, Json
from acms.nouns import encode_noun
from acms.results import LogEvent
from acms.server import wire
from acms.server.operation import Call, Operations, Query, Reply, Scope
from acms.server.streams import PIECE_BYTES

__all__ = ["operations"]

operations = Operations("events")

EVENTS = "text/event-stream"


_EVENT: Json = {
    "type": "object",
    "description": "One server-sent event; one without data only moves the cursor.",
    "properties": {
        "event": {"type": "string", "enum": ["entry", "job"]},
        "id": {"type": "string", "description": "The cursor after it."},
        "data": {"type": "string", "description": "The entry, as `getEntry` returns it, or the job: JSON."},
        "retry": {"type": "integer", "description": "Milliseconds until a disconnected client reconnects."},
    },
}


class EventsQuery(Query):
    """The start of an event stream, and whether it stays open."""

    after: Annotated[str, Field(max_length=2048)] = "0"
    """Id of the last event that was handled, or a version; events after it are sent. 0 begins at the first."""
    follow: bool = True
    """Keep the stream open for new events; otherwise it ends at the newest one."""


@operations(
    "GET",
    "/contexts/{context_id}/events",
    scope=Scope.READ,
    query=EventsQuery,
    takes=("Last-Event-ID",),
    media=EVENTS,
    reply=_EVENT,
)
async def stream_events(call: Call[EventsQuery, None]) -> Reply:
    """Stream the new entries of a log and the changes of its jobs as server-sent events.

    Each `entry` is sent once, in the order of versions, as messages are listed. A `job` is sent with its current state,
    after the entries it appended. The id of an event is a cursor: a client that reconnects with `Last-Event-ID` or
    `after` continues there, at any process of the service, without a gap or a repetition. A comment is sent every 15
    seconds to keep the connection alive. The stream ends when the service stops, and within two seconds when the right
    to read the log ends or the log is deleted. An erasure in the log ends it too: resume it.
    """
    context = call.path["context_id"]
    streams = call.app.streams
    end_stream = streams.begin(call.principal.key)  # before the store is read, so that a refusal is cheap
    call.ends.append(end_stream)
    session = await call.tenant.session(context)
    storage = session.storage
    call.right.mark_as_stream((await storage.head(context)).epoch)
    start = call.headers.get("last-event-id") or call.query.after
    cursor = await parse_cursor(storage, context, start)
    followed = LogFollower(
        storage,
        context,
        cursor,
        session.internals.redactor,
        handle=call.tenant.handle,
        ended=streams.is_ending,
    )
    headers = {"X-Accel-Buffering": "no"}
    return Reply(body=_stream_event_lines(followed, call.query.follow), media=EVENTS, headers=headers)


async def _stream_event_lines(followed: LogFollower, follow: bool) -> AsyncGenerator[bytes]:
    """Yield the lines of a stream of events. An error ends it; the client receives the error when it reconnects."""
    yield b"retry: 2000\n\n"  # milliseconds
    events = followed.events(follow=follow)
    try:
        async for event in events:
            block = _format_event(event, followed)
            for start in range(0, len(block), PIECE_BYTES):
                yield block[start : start + PIECE_BYTES]
    except ACMSError:
        return
    finally:
        await events.aclose()


def _format_event(event: LogEvent | None, followed: LogFollower) -> bytes:
    """Serialize an event, or for None a comment that keeps the connection alive."""
    if event is None:
        return f": {followed.cursor}\nid: {followed.cursor}\n\n".encode()
    page = followed.page
    if event.entry is None or page is None:
        name, data = b"job", wire.encode_json(encode_noun(event.job))
    else:
        name, data = b"entry", page.serialize(event.entry, serialize_entry)
    return b"event: %s\nid: %s\ndata: %s\n\n" % (name, event.cursor.encode(), data)


def serialize_entry(entry: Entry) -> bytes:
    return wire.encode_json(encode_noun(entry, Entry))
