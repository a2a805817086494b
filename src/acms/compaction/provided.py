"""Compactions made by a provider: stored as summaries of the entries before them, and sent back verbatim.

A readable summary replaces these entries for every reader. An opaque one, which only its provider can read, replaces
them only in prompts for that provider; all other readers still see the original messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from acms.compaction.plan import spans_of_entries
from acms.log import active_entries, read, trust
from acms.log.compacted import REDACTED_VENDOR_PREFIX, compaction_text
from acms.log.known_messages import COMPACTION_KEY_SUFFIX
from acms.log.provider_messages import EXTRA_FIELDS
from acms.log.validation import canonical_text
from acms.model import ANY, Draft, Entry, Head, Json, Kind, Origin, Part, Privacy, Raw, Seen, Text
from acms.nouns import episode_id
from acms.observability.events import Compacted
from acms.observability.logging import emit_event, log_event
from acms.privacy.modes import privacy_of_sources
from acms.results import Lost, MessageReceipt
from acms.session_state import SharedSession
from acms.write.episodes import Tail
from acms.write.queue import AppendRequest, AppendResult, LogChangedError, Writer

BuildReceipts = Callable[[str, AppendResult, int], Awaitable[list[MessageReceipt]]]
"""Returns the receipts of the messages of a context that were delivered, after a number of summaries before them."""


class _Batch(NamedTuple):
    """A compaction and the messages after it, which are appended together."""

    #: The message that holds a compaction; None for the messages before the first one.
    message: Draft | None = None
    #: Parts of the message up to the compaction.
    items: tuple[Raw, ...] = ()
    #: The message without these parts; None if nothing is left.
    rest: Draft | None = None
    #: The messages after it.
    following: tuple[Draft, ...] = ()


def holds_compaction(drafts: Sequence[Draft]) -> bool:
    """Return whether any of some messages holds a compaction."""
    return any(compaction_text(part) is not None for draft in drafts for part in draft.parts)


async def ingest_compactions(
    shared: SharedSession, writer: Writer, drafts: Sequence[Draft], seen: Seen, build_receipts: BuildReceipts
) -> list[MessageReceipt]:
    """Append messages, and each compaction among them as a summary of all active entries before it.

    Instructions and an unfinished tool group are not replaced. Each compaction is appended atomically with the messages
    up to the next one; if the call fails, it can be repeated with the same keys. A summary has a receipt like a
    message, with the position of the message before it. A compaction with no entries to replace stays a part of its
    message.
    """
    context = await shared.ensure()
    receipts: list[MessageReceipt] = []
    for batch in _split_batches(drafts, shared):
        summary, delivered = await _append_batch(shared, writer, context, batch, seen)
        seen = ANY  # the first batch has checked it
        summary_count = 0
        if summary is not None:
            summary_count = 1
            receipts.append(_build_receipt(context, summary, delivered))
            _emit_compacted(shared, context, summary, delivered)
        receipts += await build_receipts(context, delivered, summary_count)
    return receipts


def _split_batches(drafts: Sequence[Draft], shared: SharedSession) -> list[_Batch]:
    """Split messages into batches; each message that holds a compaction begins a new one."""
    batches = [_Batch()]
    for draft in drafts:
        compaction_end = 0  # number of parts up to the last compaction
        for count, part in enumerate(draft.parts, 1):
            if compaction_text(part) is not None:
                compaction_end = count
        if compaction_end == 0:
            last_batch = batches.pop()
            batches.append(last_batch._replace(following=(*last_batch.following, draft)))
            continue
        items = tuple(part for part in draft.parts[:compaction_end] if isinstance(part, Raw))
        rest = _strip_compaction(draft, draft.parts[compaction_end:], shared)
        batches.append(_Batch(message=draft, items=items, rest=rest))
    return [batch for batch in batches if batch.message is not None or batch.following]


def _strip_compaction(draft: Draft, parts: Sequence[Part], shared: SharedSession) -> Draft | None:
    """Return a message with only the `parts` after its compaction, or None if nothing is left."""
    if all(isinstance(part, Raw) and part.vendor == EXTRA_FIELDS for part in parts):
        return None
    text = canonical_text(parts)
    return replace(draft, parts=tuple(parts), content=text, tokens=shared.counter.count(text))


async def _append_batch(
    shared: SharedSession, writer: Writer, context: str, batch: _Batch, seen: Seen
) -> tuple[Draft | None, AppendResult]:
    """Append a batch; after a concurrent append its summary is built again. Return the summary and the delivery."""
    while True:
        head = await shared.storage.head(context)
        summary = None
        if batch.message is not None:
            summary = await _build_summary(shared, context, head, batch.message, batch.items)
        # Without a summary, the compaction stays a part of its message.
        first = batch.message if summary is None else batch.rest
        messages = batch.following if first is None else (first, *batch.following)
        request = AppendRequest(
            messages,
            shared.config.episodes,
            shared.config.retry,
            before=() if summary is None else (summary,),
            at=head.version,
            seen=seen,
            rewrites=head.rewrites,
            watch=shared.watch,
            reflect=shared.reflects,
        )
        try:
            delivered = await writer.post(context, request)
        except LogChangedError:  # something was appended since the head was read
            continue
        assert delivered is not None
        return summary, delivered


async def _build_summary(
    shared: SharedSession, context: str, head: Head, message: Draft, items: tuple[Raw, ...]
) -> Draft | None:
    """Return a compaction as a summary of all active entries, or None if there are none to replace.

    If the message was stored before, its key identifies the stored summary, whose spans and data are returned.
    """
    storage = shared.storage
    text = compaction_text(items[-1]) or ""
    summary = replace(
        message,
        kind=Kind.SUMMARY,
        role=None,
        actor=None,
        content=text,
        parts=(Text(text), *items) if text else items,
        tokens=shared.counter.count(text),
        key=None if message.key is None else message.key + COMPACTION_KEY_SUFFIX,
        origin=Origin.DERIVED,
    )
    if message.key is not None:
        for stored in await storage.read(context, at=head.version, kinds=(Kind.SUMMARY,)):
            if stored.key == summary.key:
                return replace(summary, replaces=stored.replaces, covers=stored.covers, data=stored.data)
        await shared.known.catch_up(storage, context)
        if shared.known.find_by_key(message.key) is not None:
            return None  # it was stored when there were no entries to replace
    replacements = await read.replacements_at(storage, context, head, head.version)
    entries = await read.read_conversation(storage, context, replacements, head.version)
    active = active_entries.effective_sequence(entries, replacements)
    covered = _select_covered(active)
    if not covered:
        return None
    messages = await read.messages_behind(storage, context, head, covered)
    spans = spans_of_entries(covered)
    return replace(
        summary,
        privacy=privacy_of_sources(covered) if message.privacy is Privacy.ALLOW else message.privacy,
        covers=(spans[0][0], spans[-1][1]),
        replaces=spans,
        data=await _build_summary_data(summary, active, covered, messages),
    )


def _select_covered(active: Sequence[Entry]) -> list[Entry]:
    """Return the entries that a provider's compaction replaces: all except instructions and open tool calls."""
    groups = active_entries.fold_atomic_groups(active, whole=True)
    complete: list[Entry] = []
    for group in groups.units:
        if group.complete:
            complete += group.entries
    hidden = [entry for entry, _ in groups.hidden]
    return [entry for entry in (*complete, *hidden) if not trust.is_instruction(entry)]


async def _build_summary_data(
    summary: Draft, active: Sequence[Entry], covered: Sequence[Entry], messages: Sequence[Entry]
) -> dict[str, Json]:
    """Return the data of a summary: token counts, the number of replaced entries, and its losses if it is readable."""
    from acms.compaction.lost import find_lost  # it imports stemmers

    before = after = sum(entry.tokens for entry in active)
    lost = Lost()
    if summary.content:
        after += summary.tokens - sum(entry.tokens for entry in covered)
        lost = await asyncio.to_thread(find_lost, messages, summary.content)
    covered_ids = {entry.id for entry in covered}
    preserved = [entry for entry in active if entry.kind is Kind.MESSAGE and entry.id not in covered_ids]
    last_part = summary.parts[-1]
    vendor = last_part.vendor if isinstance(last_part, Raw) else ""
    return {
        "before": before,
        "after": after,
        "preserved": len(preserved),
        "removed": len(covered),
        "summarizer": vendor.removeprefix(REDACTED_VENDOR_PREFIX),
        "lost": {"counts": dict(lost.counts), "ids": list(lost.ids)},
        trust.TRUST: trust.lowest_trust(map(trust.trust_of_entry, messages)).value,
        active_entries.ASKED: True,
    }


# ── results ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _build_receipt(context: str, summary: Draft, delivered: AppendResult) -> MessageReceipt:
    """Return the receipt of a summary, with the position of the message before it."""
    receipt, start = delivered.receipt, delivered.start
    position = receipt.head.messages
    following_positions = [position for position in receipt.positions[start:] if position is not None]
    if following_positions:
        position = following_positions[0] - 1
    return MessageReceipt(
        message_id=receipt.ids[start],
        version=receipt.versions[0] + start,
        position=position,
        chain_hash=receipt.chains[start].hex(),
        episode_id=episode_id(context, Tail.from_json(receipt.head.tail).episode),
        tokens=summary.tokens,
        markers=(),
        durability=receipt.durability,
        repeated=receipt.repeated,
    )


def _emit_compacted(shared: SharedSession, context: str, summary: Draft, delivered: AppendResult) -> None:
    """Log a compaction and report it as an event, unless it was stored before."""
    if delivered.receipt.repeated or summary.covers is None:
        return
    version = delivered.receipt.versions[0] + delivered.start
    removed = summary.data["removed"]
    log_event(logging.INFO, "compacted", context=context, version=version, removed=removed)
    event = Compacted(
        context_id=context,
        version=version,
        first=summary.covers[0],
        last=summary.covers[1],
        tokens_before=int(summary.data["before"]),
        tokens_after=int(summary.data["after"]),
    )
    emit_event(shared.config.on_event, event)
