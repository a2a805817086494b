"""Writing and reading logs, as short as a test wants it."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from acms.errors import ACMSError
from acms.log.encoding import genesis_hash, parse_entry_id, verify_chain
from acms.model import (
    Append,
    Context,
    ContextDraft,
    Draft,
    Entry,
    Head,
    Kind,
    Origin,
    Receipt,
    Role,
    State,
)
from acms.ports import StorageBackend

WHEN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
"""The time of everything a test writes."""

DRAFT_FIELDS = tuple(field.name for field in fields(Draft))


class ManualClock:
    """A clock that moves only by `advance`."""

    def __init__(self, now: datetime = WHEN) -> None:
        self.now = now

    def __call__(self) -> datetime:
        """Return the time."""
        return self.now

    def advance(self, **by: float) -> None:
        """Move on, by the arguments of `timedelta`."""
        self.now += timedelta(**by)


def draft_message(content: str, **fields: Any) -> Draft:
    """Make a message of three tokens."""
    chosen: dict[str, Any] = {"created_at": WHEN, "tokens": 3, "role": Role.USER, **fields}
    return Draft(content=content, **chosen)


def draft_fact(content: str, **fields: Any) -> Draft:
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


def draft_summary(first: int, last: int, **fields: Any) -> Draft:
    """Make a summary that replaces a span of versions."""
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


def draft_retraction(*versions: int) -> Draft:
    """Make a retraction of some versions."""
    spans = tuple((version, version) for version in versions)
    return Draft(kind=Kind.RETRACTION, created_at=WHEN, replaces=spans, data={"reason": "undo"})


async def create_log(store: StorageBackend, key: str | None = None, **fields: Any) -> Context:
    """Create a context."""
    chosen: dict[str, Any] = {"counter": "words", "created_at": WHEN, **fields}
    return await store.create(ContextDraft(key=key, **chosen))


async def fork_log(store: StorageBackend, parent: Context, at: int | None = None, **fields: Any) -> Context:
    """Fork a context."""
    return await create_log(store, parent=parent.id, fork=at, **fields)


async def append_drafts(store: StorageBackend, context: Context, *drafts: Draft, **fields: Any) -> Receipt:
    """Append some drafts as one operation, or raise what refused them."""
    (result,) = await store.append([Append(context=context.id, drafts=drafts, **fields)])
    if isinstance(result, ACMSError):
        raise result
    return result


async def sound(store: StorageBackend, context: str) -> list[Entry]:
    """Read a whole log, assert everything that holds for any log, and return its entries.

    Versions have no gaps, positions and running totals are right, every id holds the entry's context and version, the
    head is what a recount of the entries gives, and the hash chain verifies from the first entry to the head.
    """
    head, entries = await _read_log(store, context)
    assert head.context == context
    assert [entry.version for entry in entries] == list(range(1, head.version + 1)), "versions have gaps"
    messages = tokens = rewrites = batch = 0
    last: str | None = None
    for entry in entries:
        position = None
        if entry.kind is Kind.MESSAGE:
            messages += 1
            tokens += entry.tokens
            position = messages
            last = entry.id
        assert entry.position == position, "a position is wrong"
        assert entry.total == tokens, "a running total is wrong"
        assert parse_entry_id(entry.id) == (entry.context, entry.version), "an id points elsewhere"
        assert entry.batch in (batch, entry.version), "a batch does not start where an append started"
        batch = entry.batch
        rewrites += bool(entry.replaces)
        _check_blank_fields(entry)
    counted = (messages, tokens, last)
    assert (head.messages, head.tokens, head.last_message) == counted, "the head miscounts its log"
    assert head.rewrites >= rewrites
    oldest = await store.context(entries[0].context if entries else context)
    start = genesis_hash(oldest.parent or oldest.id)
    assert list(verify_chain(entries, head=start, version=0)) == []
    assert head.chain == (entries[-1].chain if entries else start)
    return entries


async def _read_log(store: StorageBackend, context: str) -> tuple[Head, list[Entry]]:
    """Return a head and its entries, read again while appends without a waiting client still arrive."""
    head = await store.head(context)
    while True:
        entries = await store.read(context)
        newest = await store.head(context)
        if newest == head:
            return head, entries
        head = newest


def _check_blank_fields(entry: Entry) -> None:
    """Assert that an expired entry has no content, and an erased one no key either."""
    assert (entry.salt is None) == (entry.state is not State.LIVE), "a salt outlived its content"
    if entry.state is not State.LIVE:
        assert (entry.content, entry.parts, dict(entry.data), dict(entry.metadata)) == ("", (), {}, {})
    if entry.state is State.ERASED:
        assert entry.key is None, "a key outlived its entry"


def draft_of_entry(entry: Entry) -> Draft:
    """Return the draft an entry was made from, its time as the same point in time in UTC."""
    return Draft(**{name: getattr(entry, name) for name in DRAFT_FIELDS})


async def stream_entries(entries: Iterable[Entry]) -> AsyncIterator[Entry]:
    """Yield entries as an export does."""
    for entry in entries:
        yield entry


async def restore_contexts(source: StorageBackend, target: StorageBackend, *contexts: Context) -> None:
    """Restore contexts of one store in another, in the order given."""
    for context in contexts:
        entries = await source.read(context.id, after=context.fork or 0)
        await target.restore(await source.context(context.id), stream_entries(entries))


def pack_vector(*numbers: float) -> bytes:
    """Return a vector as a store keeps it."""
    return struct.pack(f"<{len(numbers)}f", *numbers)
