"""What the fault tests write, and what must be true of every file afterwards. Also used by the helper processes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from acms import Entry, Kind
from acms.log.encoding import genesis_hash, verify_chain
from acms.model import Append, Context, ContextDraft, ContextQuery, Draft, Receipt
from acms.ports import Handle, HasIntegrity, StorageBackend
from acms.storage import SQLiteStorage, open_storage

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SIZES = (20, 200, 700, 2_000, 9_000)


def open_at(where: str | Path, **options: Any) -> Handle:
    """Return a handle on a file, or on what a URL names; options are those of a file."""
    if isinstance(where, str) and where.startswith("postgresql://"):
        return open_storage(where)
    return SQLiteStorage(str(where).removeprefix("sqlite:///"), **options)


def content_of_key(key: str) -> str:
    """Return the text that belongs to a key, so that a reader knows what the writer must have stored."""
    start = sha256(key.encode()).hexdigest()
    size = SIZES[int(start[:4], 16) % len(SIZES)]
    return f"{key} {(start * (size // 64 + 1))[:size]}"


def draft_of_key(key: str) -> Draft:
    """Return the message that belongs to a key."""
    return Draft(content=content_of_key(key), key=key, created_at=NOW, tokens=len(key))


def append_of_keys(context: str, keys: Sequence[str]) -> Append:
    """Return one append of the messages that belong to some keys."""
    return Append(context=context, drafts=tuple(draft_of_key(key) for key in keys), tail=tail_of_keys(keys))


def tail_of_keys(keys: Sequence[str]) -> dict[str, str] | None:
    """Return the tail an append of some keys writes: two thirds write one, as a session always does."""
    return {"newest": keys[-1]} if sha256(keys[0].encode()).digest()[0] % 3 else None


def draw_batch(key: str, rng: random.Random) -> list[str]:
    """Return the keys of one append: mostly one message, sometimes three."""
    return [key] if rng.random() < 0.7 else [f"{key}.{n}" for n in range(3)]


async def shared_contexts(storage: StorageBackend, count: int) -> list[str]:
    """Return the ids of contexts that all writers of a file share."""
    return [
        (await storage.create(ContextDraft(key=f"shared-{n}", counter="chars", created_at=NOW))).id
        for n in range(count)
    ]


async def append_keys(storage: StorageBackend, context: str, *keys: str) -> Receipt:
    """Append the messages of some keys, or raise what refused them."""
    (result,) = await storage.append([append_of_keys(context, keys)])
    if isinstance(result, Exception):
        raise result
    return result


async def assert_store_sound(storage: StorageBackend) -> dict[str, list[Entry]]:
    """Assert every promise a store must keep whatever happened to it; return the entries of each context.

    SQLite finds nothing wrong in a file, versions have no gaps, the chain verifies, the head is what the rows say, a
    key has one row, and each message is the text of its key.
    """
    if isinstance(storage, HasIntegrity):
        assert await storage.integrity() == []
    found: dict[str, list[Entry]] = {}
    everything: list[Context] = list((await storage.contexts(ContextQuery(deleted=True, limit=1000))).items)
    for context in everything:
        entries = found[context.id] = await storage.read(context.id)
        head = await storage.head(context.id)
        assert [entry.version for entry in entries] == list(range(1, len(entries) + 1))
        assert list(verify_chain(entries, head=genesis_hash(context.id), version=0)) == []
        said = [entry for entry in entries if entry.kind is Kind.MESSAGE]
        assert head.version == len(entries)
        assert head.messages == len(said)
        assert head.tokens == sum(entry.tokens for entry in said)
        assert head.last_message == (said[-1].id if said else None)
        assert head.chain == (entries[-1].chain if entries else genesis_hash(context.id))
        assert [entry.position for entry in said] == list(range(1, len(said) + 1))
        keys = [entry.key for entry in entries if entry.key is not None]
        assert len(set(keys)) == len(keys)
        assert [entry.content for entry in entries if entry.key] == [content_of_key(key) for key in keys]
        batches: dict[int, list[str]] = {}
        for entry in entries:
            batches.setdefault(entry.batch, []).append(entry.key or "")
        tails = [written for batch in batches.values() if (written := tail_of_keys(batch)) is not None]
        assert dict(head.tail) == (tails[-1] if tails else {})
    return found


async def sound_file(path: Path) -> dict[str, list[Entry]]:
    """Open a file, assert every promise, close it."""
    storage = SQLiteStorage(path)
    try:
        return await assert_store_sound(storage)
    finally:
        await storage.aclose()
