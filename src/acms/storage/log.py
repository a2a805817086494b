"""Decisions every store makes alike: is an append a repeat, does its expectation hold, what is the new head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from acms.core.validate import name
from acms.errors import (
    ACMSError,
    ConflictError,
    ForkDepthError,
    IdempotencyMismatchError,
    StorageError,
    ValidationError,
)
from acms.model import ANY, EMPTY, Append, Draft, Durability, Entry, Head, Kind, Receipt, State

MAX_LINEAGE = 64
"""Segments a fork may inherit before it must be copied instead."""


def check(op: Append, head: Head) -> None:
    """Raise when an append may not go on this head."""
    expected = op.expect.last_message
    if expected is not ANY and expected != head.last_message:
        raise ConflictError(
            f"the newest message is {head.last_message}, not {expected}",
            options=("read the head again and decide again",),
        )
    if op.expect.version is not None and op.expect.version != head.version:
        raise ConflictError(
            f"the log is at version {head.version}, not {op.expect.version}",
            options=("read the head again and decide again",),
        )
    if op.expect.rewrites is not None and op.expect.rewrites != head.rewrites:
        raise ConflictError(
            f"{head.rewrites - op.expect.rewrites} rewrites came between",
            options=("check that every target is still in force and submit again",),
        )
    for draft in op.drafts:
        for first, last in draft.replaces:
            if not 1 <= first <= last <= head.version:
                wrong = f"{first}..{last} is not a span of versions up to {head.version}"
                raise ValidationError(wrong, field="replaces")
        if draft.key is not None:
            name(draft.key, "key")


def check_read(newest: int | None, limit: int | None) -> None:
    """Raise when a read asks for the last and the first entries at once, or for less than none."""
    if newest is not None and limit is not None:
        raise ValidationError("newest and limit exclude each other", field="newest")
    for field, wanted in (("newest", newest), ("limit", limit)):
        if wanted is not None and wanted < 0:
            raise ValidationError(f"must not be negative, was {wanted}", field=field)


def repeats(op: Append, known: Sequence[Entry | None]) -> bool:
    """Return whether every draft of an append was stored before under its key; `known` has one entry per draft.

    `IdempotencyMismatchError` when only some were, or when a key was used for something else.
    """
    if not any(entry is not None for entry in known):
        return False
    for draft, entry in zip(op.drafts, known, strict=True):
        if entry is None:
            raise IdempotencyMismatchError(
                f"some keys of this append are new and others are not: {draft.key!r} is new",
                options=("repeat exactly the same append", "use new keys"),
            )
        if entry.state is State.LIVE and not same(draft, entry):
            raise IdempotencyMismatchError(
                f"key {draft.key!r} was used before for another entry", options=("use a new key",)
            )
    return True


def same(draft: Draft, entry: Entry) -> bool:
    """Return whether a draft says what an entry says; when it was said may differ between two tries."""
    return (
        draft.kind is entry.kind
        and draft.role is entry.role
        and draft.content == entry.content
        and draft.parts == entry.parts
        and dict(draft.data) == dict(entry.data)
        and dict(draft.metadata) == dict(entry.metadata)
    )


def receipt(
    head: Head, entries: Sequence[tuple[int, str, int | None, bytes]], durability: Durability
) -> Receipt:
    """Return the receipt for (version, id, position, chain) of new entries."""
    return Receipt(
        head=head,
        versions=(entries[0][0], entries[-1][0]) if entries else (head.version + 1, head.version),
        ids=tuple(id for _, id, _, _ in entries),
        positions=tuple(position for _, _, position, _ in entries),
        chains=tuple(chain for _, _, _, chain in entries),
        durability=durability,
    )


def repeated(head: Head, entries: Sequence[Entry], durability: Durability) -> Receipt:
    """Return the receipt for entries that were there before."""
    found = [(entry.version, entry.id, entry.position, entry.chain) for entry in entries]
    return replace(receipt(head, found, durability), repeated=True)


def counts(drafts: Sequence[Draft]) -> tuple[int, int, int]:
    """Return how many messages, message tokens and rewrites some drafts add."""
    messages = tokens = rewrites = 0
    for draft in drafts:
        if draft.kind is Kind.MESSAGE:
            messages += 1
            tokens += draft.tokens
        if draft.replaces:
            rewrites += 1
    return messages, tokens, rewrites


def kept(value: Any) -> Any:
    """Return a value of the caller as a store in memory keeps it: a mapping as a copy that nobody can write to."""
    return MappingProxyType(dict(value)) if isinstance(value, Mapping) else value


def blanked(entry: Entry, to: State) -> Entry:
    """Return what is left of an entry that expires or is erased."""
    key = None if to is State.ERASED else entry.key
    return replace(entry, content="", parts=(), data=EMPTY, metadata=EMPTY, salt=None, key=key, state=to)


def unexpected(error: Exception) -> ACMSError:
    """Return the refusal of an operation that failed on what the caller gave."""
    bad_input = isinstance(error, UnicodeEncodeError | OverflowError)
    refused = (ValidationError if bad_input else StorageError)(f"{type(error).__name__}: {error}")
    refused.__cause__ = error
    return refused


def job_number(id: str) -> int:
    """Return the number a job id is; 0, which no job has, when it is none."""
    return int(id) if id.isascii() and id.isdecimal() and len(id) <= 18 else 0


def segments(
    owner: str, lineage: Sequence[tuple[str, int]], first: int, last: int
) -> list[tuple[str, int, int]]:
    """Split versions first..last of a context into (owner, first, last) runs, ascending."""
    runs: list[tuple[str, int, int]] = []
    start = 1
    for ancestor, upto in lineage:
        if upto >= start:
            runs.append((ancestor, max(first, start), min(last, upto)))
            start = upto + 1
    runs.append((owner, max(first, start), last))
    return [(name, low, high) for name, low, high in runs if low <= high]


def inherit(parent: str, lineage: Sequence[tuple[str, int]], fork: int) -> tuple[tuple[str, int], ...]:
    """Return the lineage of a fork of `parent` at a version: its ancestors' segments cut there, then its own."""
    runs = segments(parent, lineage, 1, fork)
    if len(runs) > MAX_LINEAGE:
        raise ForkDepthError(
            f"a fork inherits at most {MAX_LINEAGE} segments",
            options=("copy the context instead of forking it",),
        )
    return tuple((owner, last) for owner, _, last in runs)
