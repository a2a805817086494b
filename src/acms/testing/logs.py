"""Writing and reading logs, as short as a test wants it."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from acms.errors import ACMSError
from acms.log.encoding import genesis, locate, verify
from acms.model import (
    Append,
    Context,
    ContextDraft,
    Draft,
    Entry,
    Head,
    Kind,
    Media,
    Origin,
    Privacy,
    Raw,
    Reasoning,
    Receipt,
    Role,
    State,
    Text,
    ToolCall,
    ToolResult,
)
from acms.ports import StorageBackend

WHEN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
"""The time of everything a test writes."""

DRAFT_FIELDS = tuple(field.name for field in fields(Draft))


class ManualClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, now: datetime = WHEN) -> None:
        self.now = now

    def __call__(self) -> datetime:
        """Return the time."""
        return self.now

    def advance(self, **by: float) -> None:
        """Move on, by the arguments of `timedelta`."""
        self.now += timedelta(**by)


def said(content: str, **fields: Any) -> Draft:
    """Make a message of three tokens."""
    chosen: dict[str, Any] = {"created_at": WHEN, "tokens": 3, "role": Role.USER, **fields}
    return Draft(content=content, **chosen)


def noted(content: str, **fields: Any) -> Draft:
    """Make a fact."""
    data = {"subject": "user", "attribute": "note", "value": content}
    chosen: dict[str, Any] = {
        "created_at": WHEN,
        "tokens": 2,
        "origin": Origin.DERIVED,
        "data": data,
        **fields,
    }
    return Draft(kind=Kind.FACT, content=content, **chosen)


def summed_up(first: int, last: int, **fields: Any) -> Draft:
    """Make a summary that stands for a span of versions."""
    chosen: dict[str, Any] = {
        "content": f"what was said from {first} to {last}",
        "created_at": WHEN,
        "tokens": 4,
        "origin": Origin.DERIVED,
        "covers": (first, last),
        "replaces": ((first, last),),
        **fields,
    }
    return Draft(kind=Kind.SUMMARY, **chosen)


def taken_back(*versions: int) -> Draft:
    """Make a retraction of some versions."""
    spans = tuple((version, version) for version in versions)
    return Draft(kind=Kind.RETRACTION, created_at=WHEN, replaces=spans, data={"reason": "undo"})


async def new(store: StorageBackend, key: str | None = None, **fields: Any) -> Context:
    """Create a context."""
    chosen: dict[str, Any] = {"counter": "words", "created_at": WHEN, **fields}
    return await store.create(ContextDraft(key=key, **chosen))


async def fork(store: StorageBackend, parent: Context, at: int | None = None, **fields: Any) -> Context:
    """Fork a context."""
    return await new(store, parent=parent.id, fork=at, **fields)


async def put(store: StorageBackend, context: Context, *drafts: Draft, **fields: Any) -> Receipt:
    """Append some drafts as one operation, or raise what refused them."""
    (result,) = await store.append([Append(context=context.id, drafts=drafts, **fields)])
    if isinstance(result, ACMSError):
        raise result
    return result


async def sound(store: StorageBackend, context: str) -> list[Entry]:
    """Read a whole log, assert everything that holds for any log, and return its entries.

    Versions have no gaps, positions and totals count, every id says where its entry lies, the head is what a
    recount of the entries gives, and the hash chain verifies from the first entry to the head.
    """
    head, entries = await store.head(context), await store.read(context)
    while head != (
        newer := await store.head(context)
    ):  # an append whose outcome nobody waited for may still come
        head, entries = newer, await store.read(context)
    assert head.context == context
    assert [entry.version for entry in entries] == list(range(1, head.version + 1)), "versions have gaps"
    messages = tokens = rewrites = batch = 0
    last: str | None = None
    for entry in entries:
        if entry.kind is Kind.MESSAGE:
            messages, tokens, last = messages + 1, tokens + entry.tokens, entry.id
        assert entry.position == (messages if entry.kind is Kind.MESSAGE else None), "a position is wrong"
        assert entry.total == tokens, "a running total is wrong"
        assert locate(entry.id) == (entry.context, entry.version), "an id points elsewhere"
        assert entry.batch in (batch, entry.version), "a batch does not start where an append started"
        batch = entry.batch
        rewrites += bool(entry.replaces)
        assert (entry.salt is None) == (entry.state is not State.LIVE), "a salt outlived its content"
        if entry.state is not State.LIVE:
            assert (entry.content, entry.parts, dict(entry.data), dict(entry.metadata)) == ("", (), {}, {})
        if entry.state is State.ERASED:
            assert entry.key is None, "a key outlived its entry"
    counted = (messages, tokens, last)
    assert (head.messages, head.tokens, head.last_message) == counted, "the head miscounts its log"
    assert head.rewrites >= rewrites
    oldest = await store.context(entries[0].context if entries else context)
    start = genesis(oldest.parent or oldest.id)
    assert list(verify(entries, head=start, version=0)) == []
    assert head.chain == (entries[-1].chain if entries else start)
    return entries


def drafted(entry: Entry) -> Draft:
    """Return the draft an entry was made from, its time as the same point in time in UTC."""
    return Draft(**{name: getattr(entry, name) for name in DRAFT_FIELDS})


async def stream(entries: Iterable[Entry]) -> AsyncIterator[Entry]:
    """Yield entries as an export does."""
    for entry in entries:
        yield entry


async def carry(source: StorageBackend, target: StorageBackend, *contexts: Context) -> None:
    """Restore contexts of one store in another, in the order given."""
    for context in contexts:
        entries = await source.read(context.id, after=context.fork or 0)
        await target.restore(await source.context(context.id), stream(entries))


def settled(head: Head) -> tuple[object, ...]:
    """Return what a restored head has in common with the one that was exported."""
    return head.version, head.messages, head.tokens, head.last_message, head.chain


def packed(*numbers: float) -> bytes:
    """Return a vector as a store keeps it."""
    return struct.pack(f"<{len(numbers)}f", *numbers)


async def refused(call: Awaitable[object], *errors: type[Exception]) -> bool:
    """Return whether a call was refused with one of some errors; any other error is raised."""
    try:
        await call
    except errors:
        return True
    return False


async def all_refused(calls: Iterable[Coroutine[Any, Any, object]], *errors: type[Exception]) -> None:
    """Assert that every call is refused with one of some errors."""
    waiting = list(calls)
    try:
        for number, call in enumerate(waiting):
            assert await refused(call, *errors), f"call {number} was accepted"
    finally:
        for call in waiting:
            call.close()


async def mixed(store: StorageBackend) -> tuple[Context, Context]:
    """Write a log with every kind of entry and a fork of it at version 7 that went on; return both."""
    parent = await new(store, "mixed")
    await put(store, parent, said("one"), said("two"), noted("three"))
    await put(store, parent, said("four", replaces=((1, 1),)))
    await put(store, parent, summed_up(1, 2), said("six"))
    await put(
        store,
        parent,
        taken_back(5),
        Draft(kind=Kind.EPISODE, created_at=WHEN, covers=(1, 6), closes="manual"),
    )
    await put(store, parent, said("nine"))
    child = await fork(store, parent, 7)
    await put(store, child, said("eight of the child"), noted("nine of the child", replaces=((3, 3),)))
    await put(store, child, said("ten of the child"), summed_up(4, 8), said("twelve of the child"))
    return parent, child


def everything() -> list[Draft]:
    """Return drafts that between them use every field, every part, and values near every limit."""
    return [*_messages(), *_parts(), *_records()]


def _messages() -> list[Draft]:
    """Return messages of plain text, with every label a message can have."""
    return [
        said(""),
        said("plain"),
        said(
            "\u202eright to left \u0645\u0631\u062d \U0001f469\u200d\U0001f680 e\u0301 \ufeff \r\n\t\x01 \u2028"
        ),
        said("".join(chr(0x4E00 + n % 20_000) for n in range(300_000))),
        said("first of all times", created_at=datetime(1, 1, 1, tzinfo=UTC)),
        said("before the epoch", created_at=datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        said("last of all times", created_at=datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        said("elsewhere", created_at=datetime(2026, 3, 1, 0, 30, 0, 1, tzinfo=timezone(timedelta(hours=14)))),
        said("dear", tokens=2**40),
        said("", role=None, tokens=0),
        *(said(role.value, role=role, origin=origin) for role, origin in zip(Role, Origin, strict=False)),
        *(said(level.value, privacy=level, origin=Origin.DERIVED) for level in Privacy),
        said(
            "marked",
            markers=("decision", "custom:a.b-c"),
            detected=True,
            actor="Ana \u00d1",
            episode=7,
            closes="x",
        ),
        said("keyed", key="k \U0001f511 ' \" %"),
    ]


def _parts() -> list[Draft]:
    """Return messages of every kind of part."""
    return [
        Draft(
            content="look\nlookup({})",
            created_at=WHEN,
            role=Role.ASSISTANT,
            origin=Origin.ASSISTANT,
            group="g1",
            parts=(
                Text("look"),
                Text(""),
                Reasoning("because", None),
                Reasoning("", "sig=="),
                ToolCall("call 1", "lookup", "{}"),
                ToolCall("call 1", "lookup", '{"not": json, \u00fc'),
            ),
        ),
        Draft(
            content="42",
            created_at=WHEN,
            role=Role.TOOL,
            origin=Origin.TOOL,
            group="g1",
            parts=(
                ToolResult("call 1", "42"),
                ToolResult("call 1", "", is_error=True),
                Text("42"),
                Text("43"),
            ),
        ),
        Draft(
            content="",
            created_at=WHEN,
            role=Role.USER,
            origin=Origin.EXTERNAL,
            parts=(
                Media("image/png", "https://example.com/\u00fc.png", "ab" * 32, 1105),
                Media("a/b", ""),
                Raw("vendor", '{"keys": "in\\u0020 this order",   "b":1, "a" : 2}'),
            ),
        ),
    ]


def _records() -> list[Draft]:
    """Return a message with data and metadata, and an entry of every other kind."""
    return [
        said(
            "nested",
            data={"null": None, "list": [1, [2.5, {"x": []}], True], "big": 2**63 - 1, "small": -(2**63)},
            metadata={
                "\u00fc": "\U0001f600",
                "": "",
                "float": 1e308,
                "tiny": 5e-324,
                "zero": -0.0,
                "b": False,
            },
        ),
        noted("cites", sources=("m_abc_1_000000", "elsewhere"), privacy=Privacy.REDACT),
        summed_up(1, 3),
        taken_back(4, 6, 7),
        Draft(kind=Kind.EPISODE, created_at=WHEN, covers=(1, 2), closes="manual", content="the start"),
    ]
