"""Compactions made by a provider: stored as summaries of the entries before them, and sent back verbatim.

A readable summary replaces these entries for every reader. An opaque one, which only its provider can read, hides
nothing: prompts for that provider begin with it, and all other readers still see the original messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from acms.compaction import span
from acms.log import in_force, read, trust
from acms.log.compacted import REDACTED, compaction_text
from acms.log.foreign import AS_GIVEN
from acms.log.known import KEY
from acms.log.validation import canonical_text
from acms.model import ANY, Draft, Entry, Head, Json, Kind, Origin, Part, Privacy, Raw, Seen, Text
from acms.nouns import episode_id
from acms.observability.events import Compacted
from acms.observability.logging import emit_event, log_event
from acms.privacy.modes import privacy_of_sources
from acms.results import Lost, MessageReceipt
from acms.session_state import SharedSession
from acms.write.episodes import Tail
from acms.write.queue import AppendRequest, Delivered, Overtaken, Writer

__all__ = ["holds_compaction", "ingest_compactions"]

Stored = Callable[[str, Delivered, int], Awaitable[list[MessageReceipt]]]


class _Batch(NamedTuple):
    """A compaction and the messages after it, which are appended together."""

    #: The message that holds a compaction, its items up to that, and the message without them; None without one.
    given: Draft | None = None
    items: tuple[Raw, ...] = ()
    rest: Draft | None = None
    following: tuple[Draft, ...] = ()


def holds_compaction(drafts: Sequence[Draft]) -> bool:
    """Return whether one of some messages holds a compaction."""
    return any(compaction_text(part) is not None for draft in drafts for part in draft.parts)


async def ingest_compactions(
    shared: SharedSession, writer: Writer, drafts: Sequence[Draft], seen: Seen, stored: Stored
) -> list[MessageReceipt]:
    """Append messages, and each compaction among them as a summary of all active entries before it.

    Instructions and an unfinished tool group are not covered. Each compaction is appended atomically with the messages
    up to the next one: if the call fails between two, repeat it with the same keys. A summary has a receipt like a
    message, with the position of the message before it; one with no entries to replace stays a part of its message.
    """
    context = await shared.ensure()
    receipts: list[MessageReceipt] = []
    for batch in _split_batches(drafts, shared):
        made, delivered = await _append_batch(shared, writer, context, batch, seen)
        seen = ANY
        if made is not None:
            receipts.append(_build_receipt(context, made, delivered))
            _emit_compacted(shared, context, made, delivered)
        receipts += await stored(context, delivered, 0 if made is None else 1)
    return receipts


def _split_batches(drafts: Sequence[Draft], shared: SharedSession) -> list[_Batch]:
    """Split messages at their compactions."""
    found = [_Batch()]
    for draft in drafts:
        places = [place for place, part in enumerate(draft.parts) if compaction_text(part) is not None]
        if not places:
            found[-1] = found[-1]._replace(following=(*found[-1].following, draft))
            continue
        items = tuple([part for part in draft.parts[: places[-1] + 1] if isinstance(part, Raw)])
        found.append(_Batch(draft, items, _strip_compaction(draft, draft.parts[places[-1] + 1 :], shared)))
    return [batch for batch in found if batch.given is not None or batch.following]


def _strip_compaction(draft: Draft, parts: Sequence[Part], shared: SharedSession) -> Draft | None:
    """Return a message without its leading compaction, or None if nothing else is in it."""
    if all(isinstance(part, Raw) and part.vendor == AS_GIVEN for part in parts):
        return None
    text = canonical_text(parts)
    return replace(draft, parts=tuple(parts), content=text, tokens=shared.counter.count(text))


async def _append_batch(
    shared: SharedSession, writer: Writer, context: str, batch: _Batch, seen: Seen
) -> tuple[Draft | None, Delivered]:
    """Append a batch, rebuilding its summary whenever another append came first."""
    while True:
        head = await shared.storage.head(context)
        made = (
            None
            if batch.given is None
            else await _build_summary(shared, context, head, batch.given, batch.items)
        )
        first = batch.rest if made is not None else batch.given
        request = AppendRequest(
            batch.following if first is None else (first, *batch.following),
            shared.config.episodes,
            shared.config.retry,
            before=() if made is None else (made,),
            at=head.version,
            seen=seen,
            rewrites=head.rewrites,
            watch=shared.watch,
            reflect=shared.reflects,
        )
        try:
            delivered = await writer.post(context, request)
        except Overtaken:
            continue
        assert delivered is not None
        return made, delivered


async def _build_summary(
    shared: SharedSession, context: str, head: Head, given: Draft, items: tuple[Raw, ...]
) -> Draft | None:
    """Return a compaction as a summary of all active entries, or None if there are none."""
    storage = shared.storage
    text = compaction_text(items[-1]) or ""
    made = replace(
        given,
        kind=Kind.SUMMARY,
        role=None,
        actor=None,
        content=text,
        parts=(Text(text), *items) if text else items,
        tokens=shared.counter.count(text),
        key=None if given.key is None else given.key + KEY,
        origin=Origin.DERIVED,
    )
    if made.key is not None:
        before = await storage.read(context, at=head.version, kinds=(Kind.SUMMARY,))
        known = next((entry for entry in before if entry.key == made.key), None)
        if known is not None:
            return replace(made, replaces=known.replaces, covers=known.covers, data=known.data)
        await shared.known.catch_up(storage, context)
        if shared.known.under(given.key or "") is not None:
            return None  # it was stored when there were no entries to replace
    cover = await read.cover_at(storage, context, head, head.version)
    found = in_force.effective_sequence(
        await read.read_stretches(storage, context, cover, head.version), cover
    )
    covered = _covered_entries(found)
    if not covered:
        return None
    said = await read.messages_behind(storage, context, head, covered)
    spans = span.spans_of_entries(covered)
    return replace(
        made,
        privacy=privacy_of_sources(covered) if given.privacy is Privacy.ALLOW else given.privacy,
        covers=(spans[0][0], spans[-1][1]),
        replaces=spans,
        data=await _build_summary_data(shared, made, found, covered, said),
    )


def _covered_entries(found: Sequence[Entry]) -> list[Entry]:
    """Return the entries that a provider's compaction replaces: all except instructions and open tool calls."""
    folded = in_force.fold_atomic_groups(found, whole=True)
    closed = [entry for unit in folded.units if unit.complete for entry in unit.entries]
    hidden = [entry for entry, _ in folded.hidden]
    return [entry for entry in (*closed, *hidden) if not trust.is_instruction(entry)]


async def _build_summary_data(
    shared: SharedSession,
    made: Draft,
    found: Sequence[Entry],
    covered: Sequence[Entry],
    said: Sequence[Entry],
) -> dict[str, Json]:
    """Return the data of a summary: token counts, the number of replaced entries, and its losses if it is readable."""
    from acms.compaction.lost import find_lost  # it imports stemmers

    gone = {entry.version for entry in covered}
    before = sum(entry.tokens for entry in found)
    taken = sum(entry.tokens for entry in covered) - made.tokens
    missing = await asyncio.to_thread(find_lost, said, made.content) if made.content else Lost()
    return {
        "before": before,
        "after": before - taken if made.content else before,
        "preserved": sum(1 for entry in found if entry.kind is Kind.MESSAGE and entry.version not in gone),
        "removed": len(covered),
        "summarizer": _vendor_of_draft(made),
        "lost": {"counts": dict(missing.counts), "ids": list(missing.ids)},
        trust.TRUST: trust.lowest_trust(map(trust.trust_of_entry, said)).value,
        in_force.ASKED: True,
    }


def _vendor_of_draft(made: Draft) -> str:
    last = made.parts[-1]
    return last.vendor.removeprefix(REDACTED) if isinstance(last, Raw) else ""


# ── results ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _build_receipt(context: str, made: Draft, delivered: Delivered) -> MessageReceipt:
    receipt, start = delivered.receipt, delivered.start
    behind = [position for position in receipt.positions[start:] if position is not None]
    return MessageReceipt(
        message_id=receipt.ids[start],
        version=receipt.versions[0] + start,
        position=behind[0] - 1 if behind else receipt.head.messages,
        chain_hash=receipt.chains[start].hex(),
        episode_id=episode_id(context, Tail.from_json(receipt.head.tail).episode),
        tokens=made.tokens,
        markers=(),
        durability=receipt.durability,
        repeated=receipt.repeated,
    )


def _emit_compacted(shared: SharedSession, context: str, made: Draft, delivered: Delivered) -> None:
    if delivered.receipt.repeated or made.covers is None:
        return
    version = delivered.receipt.versions[0] + delivered.start
    removed = made.data["removed"]
    log_event(logging.INFO, "compacted", context=context, version=version, removed=removed)
    event = Compacted(
        context_id=context,
        version=version,
        first=made.covers[0],
        last=made.covers[1],
        tokens_before=int(made.data["before"]),
        tokens_after=int(made.data["after"]),
    )
    emit_event(shared.config.on_event, event)
