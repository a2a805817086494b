"""Reads of a log: the active entries at a version, their size, one entry, the profile of a namespace."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from acms.errors import SessionNotFoundError
from acms.knowledge import Fact
from acms.log.active_entries import LONG_RUN, Replacements, effective_sequence
from acms.log.doubt import doubt_labels, outdated_summary_labels, versions_of_ids
from acms.log.facts import collect_facts, valid_times
from acms.log.validation import PROFILE, missing_version_error
from acms.log.validity import Period
from acms.model import Context, Entry, Head, Kind, Span, State
from acms.ports import StorageBackend

CONVERSATION_KINDS = (Kind.MESSAGE, Kind.SUMMARY)
"""Kinds of entries that are part of the conversation."""


def version_to_read(head: Head, at: int | None) -> int:
    """Return the version to read: `at`, or the newest for None; raise `NotFoundError` if it does not exist yet."""
    if at is None:
        return head.version
    if at > head.version:
        raise missing_version_error(head.version, at)
    return at


@runtime_checkable
class HasReplacements(Protocol):
    """A store that caches replacements."""

    async def replacements(self, context: str, head: Head, version: int, *, searchable: bool) -> Replacements:
        """Return the replacements at a version."""
        ...


async def replacements_at(
    storage: StorageBackend, context: str, head: Head, version: int, *, searchable: bool = False
) -> Replacements:
    """Return the replacements at a version, for reading or with `searchable` for searching.

    The result is shared: callers must not modify it.
    """
    if not head.rewrites:
        return Replacements(())
    if isinstance(storage, HasReplacements):
        return await storage.replacements(context, head, version, searchable=searchable)
    return Replacements(await storage.read(context, at=version, replacing=True), searchable=searchable)


async def valid_times_at(
    storage: StorageBackend, context: str, head: Head, version: int
) -> dict[int, Period]:
    """Return by version the periods in which the active facts, messages and summaries at a version are true.

    A message has a period if all facts made from it end; its period then has the last of these ends. Messages and
    summaries in doubt have a period with the reason of the doubt.
    """
    fact_entries = await storage.read(context, at=version, kinds=(Kind.FACT,))
    replacements = await replacements_at(storage, context, head, version, searchable=True)
    times: dict[int, Period] = {}
    if fact_entries:
        facts = collect_facts(fact_entries, replacements, replacements.replacing)
        times = await _fact_times(storage, context, version, facts)
    for summary, label in outdated_summary_labels(replacements).items():
        times.setdefault(summary, Period(doubt=label))
    return times


async def _fact_times(
    storage: StorageBackend, context: str, version: int, facts: Sequence[Fact]
) -> dict[int, Period]:
    """Return the periods from all facts of a log at a version: for active facts, messages and summaries."""
    times = valid_times(facts)
    has_retired = any(fact.retired for fact in facts)
    if not has_retired and all(period.end is None for period in times.values()):
        return times
    owners = {context, *(owner for owner, _ in (await storage.context(context)).lineage)}
    times = _message_ends(facts, times, owners) | times
    if has_retired:
        summaries = await storage.read(context, at=version, kinds=(Kind.SUMMARY,))
        for labelled_version, doubt in doubt_labels(facts, summaries, owners).items():
            period = times.get(labelled_version, Period())
            times[labelled_version] = period._replace(doubt=doubt.label, raised_by=doubt.raised_by)
    return times


def _message_ends(
    facts: Sequence[Fact], times: Mapping[int, Period], owners: Collection[str]
) -> dict[int, Period]:
    """Return by version the messages all of whose known facts end, each with the last end."""
    ends: dict[int, list[datetime | None]] = {}
    for fact in facts:
        if fact.version in times:
            for source in versions_of_ids(fact.sources, owners):
                ends.setdefault(source, []).append(times[fact.version].end)
    periods: dict[int, Period] = {}
    for source, all_ends in ends.items():
        known_ends = [end for end in all_ends if end is not None]
        if len(known_ends) == len(all_ends):
            periods[source] = Period(end=max(known_ends))
    return periods


async def read_conversation(
    storage: StorageBackend, context: str, replacements: Replacements, version: int
) -> list[Entry]:
    """Read the messages and summaries of a log up to a version, without the long inactive runs."""
    entries: list[Entry] = []
    for first, last in replacements.spans_to_read(version):
        entries += await storage.read(context, at=last, after=first - 1, kinds=CONVERSATION_KINDS)
    return entries


async def find_entry(storage: StorageBackend, context: str, at: int | None, id: str) -> Entry | None:
    """Return an entry of a log by its id, or None if the log does not have it at a version."""
    (entry,) = await storage.get([id])
    if entry is None or entry.version > version_to_read(await storage.head(context), at):
        return None
    # The entry may belong to another log: this log has it only if a read of this log returns it.
    own = await storage.read(context, after=entry.version - 1, before=entry.version + 1)
    return own[0] if own and own[0].id == id else None


async def find_profile(storage: StorageBackend, namespace: str) -> Context | None:
    """Return the profile of a namespace, the context of its facts, or None if it has no facts yet."""
    try:
        return await storage.context(PROFILE, namespace=namespace)
    except SessionNotFoundError:
        return None


async def read_active_sequence(
    storage: StorageBackend, context: str, at: int | None, newest: int | None
) -> list[Entry]:
    """Return the effective sequence at a version, or its newest entries."""
    head = await storage.head(context)
    version = version_to_read(head, at)
    replacements = await replacements_at(storage, context, head, version)
    if newest is None:
        entries = await read_conversation(storage, context, replacements, version)
        return effective_sequence(entries, replacements)
    size = newest + 16  # some of the newest entries may be inactive
    while True:
        entries = await storage.read(context, at=version, newest=size)
        after = entries[0].version - 1 if entries else 0
        active = effective_sequence(entries, replacements, after=after)
        if after == 0 or len(active) >= newest:
            return active[max(0, len(active) - newest) :]
        size *= 2


async def messages_behind(
    storage: StorageBackend, context: str, head: Head, entries: Sequence[Entry]
) -> tuple[Entry, ...]:
    """Return entries with each earlier summary among them expanded to the messages it replaced.

    The messages are returned in their current form: edits apply, and retracted messages are left out. A summary whose
    messages have lost their content by retention is returned in their place.
    """
    if all(entry.kind is not Kind.SUMMARY for entry in entries):
        return tuple(entries)
    replacements = await replacements_at(storage, context, head, head.version, searchable=True)
    found: list[Entry] = []
    for entry in entries:
        if entry.kind is Kind.SUMMARY:
            found += await _expand_summary(storage, context, replacements, entry)
        else:
            found.append(entry)
    return tuple(found)


async def _expand_summary(
    storage: StorageBackend, context: str, replacements: Replacements, summary: Entry
) -> Sequence[Entry]:
    """Return the active messages that a summary replaced, or the summary if one of them has lost its content."""
    messages: list[Entry] = []
    for first, last in summary.replaces:
        rows = await storage.read(context, at=last, after=first - 1, kinds=CONVERSATION_KINDS)
        messages += [row for row in rows if row.kind is Kind.MESSAGE]
    for message in messages:
        if message.state is not State.LIVE and replacements.replaced_by(message.version) is None:
            return [summary]
    # The sequence also has the edits and summaries of the whole log: only the messages read here belong to it.
    versions = {message.version for message in messages}
    return [entry for entry in effective_sequence(messages, replacements) if entry.version in versions]


async def count_active(
    storage: StorageBackend, context: str, head: Head, version: int, replacements: Replacements
) -> tuple[int, int]:
    """Count the active messages at a version, and the tokens of these and of the active summaries."""
    if head.epoch:  # an entry of the fork tree lost its content, and only reading the entries shows which
        entries = await read_conversation(storage, context, replacements, version)
        sequence = effective_sequence(entries, replacements)
        messages = sum(1 for entry in sequence if entry.kind is Kind.MESSAGE)
        return messages, sum(entry.tokens for entry in sequence)
    messages, tokens = await _message_counts(storage, context, version)
    for first, last in _combine_reads(replacements.spans()):
        if last - first < LONG_RUN:
            rows = await storage.read(context, at=last, after=first - 1, kinds=(Kind.MESSAGE,))
            inactive = [row.tokens for row in rows if replacements.replaced_by(row.version) is not None]
            messages -= len(inactive)
            tokens -= sum(inactive)
        else:
            # All of a long span is inactive: running totals give its size without reading its entries.
            messages_before, tokens_before = await _message_counts(storage, context, first - 1)
            messages_at_end, tokens_at_end = await _message_counts(storage, context, last)
            messages -= messages_at_end - messages_before
            tokens -= tokens_at_end - tokens_before
    summaries = [entry.tokens for entry in replacements.substitutes if entry.kind is Kind.SUMMARY]
    return messages, tokens + sum(summaries)


async def count_messages(storage: StorageBackend, context: str, head: Head, version: int) -> tuple[int, int]:
    """Count the messages up to a version, and their tokens, without erased ones."""
    messages, tokens = await _message_counts(storage, context, version)
    if head.epoch:
        for entry in await storage.read(context, at=version, kinds=(Kind.MESSAGE,)):
            if entry.state is State.ERASED:
                messages -= 1
                tokens -= entry.tokens
    return messages, tokens


def _combine_reads(spans: Iterable[Span]) -> list[Span]:
    """Combine ascending spans into reads of at most `LONG_RUN` versions; a longer span stays alone.

    The versions between combined spans are read too, which is cheaper than a second read.
    """
    merged: list[Span] = []
    for first, last in spans:
        if merged and last - merged[-1][0] < LONG_RUN:
            merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return merged


async def _message_counts(storage: StorageBackend, context: str, version: int) -> tuple[int, int]:
    """Return the number of messages stored up to a version, and their tokens."""
    if version == 0:
        return 0, 0
    newest = await storage.read(context, at=version, kinds=(Kind.MESSAGE,), newest=1)
    return (newest[0].position or 0, newest[0].total) if newest else (0, 0)
