"""The newest entries of a log: read a span of it, redacted and as units, and plan a window within a token budget."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from acms.log.active_entries import (
    EntryGroup,
    EntryGroups,
    Replacements,
    effective_sequence,
    find_older_summaries,
    fold_atomic_groups,
    rendered_role,
)
from acms.log.read import CONVERSATION_KINDS, read_conversation, replacements_at, version_to_read
from acms.log.trust import LEADING, is_instruction
from acms.log.validity import UNLABELLED, Labels
from acms.model import Entry, Head, Kind, Role, Source
from acms.ports import Frame, StorageBackend, TokenCounter
from acms.privacy.redactor import NO_REDACTION, Redactor
from acms.recall.planner import (
    Candidate,
    Choice,
    append_label,
    build_candidate,
    build_choice_ledger,
    choose_newest_suffix,
    finish_plan,
    fit_to_budget,
    inactive_reason,
)
from acms.results import ContextItem, ContextItems
from acms.runtime.threads import EACH, off_loop

if TYPE_CHECKING:  # they bring numpy: loaded by the first recall
    from acms.recall.index_cache import Indexes


@dataclass(frozen=True, slots=True)
class LogSpan:
    """A span of a log that ends at one version, as units."""

    context: str
    version: int
    replacements: Replacements
    units: list[EntryGroup[Entry]]
    #: Entries that cannot be shown, and why.
    hidden: list[tuple[Entry, str]]
    #: Whether it starts at the beginning of the log.
    whole: bool
    #: Identifies the state of the log: it changes with a rewrite and with the privacy mode, but not as the log grows.
    stamp: str = ""
    #: Active summaries of entries older than the units.
    older_summaries: Sequence[EntryGroup[Entry]] = ()
    #: Number of entries of the log, at its head, that are not messages.
    non_messages: int = 0
    #: Labels of its entries that may be outdated.
    labels: Labels = UNLABELLED

    @property
    def newest(self) -> datetime | None:
        """Time of the newest entry."""
        return self.units[-1].entries[-1].created_at if self.units else None


async def load_labels(indexes: Indexes, context: str, version: int, moment: datetime | None) -> Labels:
    """Return the labels of the messages and summaries of a log at a version and a moment."""
    head = await indexes.storage.head(context)
    if head.version == head.messages:
        return Labels({}, moment)
    return Labels(await indexes.load_valid_times(context, head, version), moment)


async def gather_all(
    storage: StorageBackend, context: str, at: int | None, redactor: Redactor = NO_REDACTION
) -> LogSpan:
    """Read all active entries of a log at a version, redacted by a stage."""
    head = await storage.head(context)
    version = version_to_read(head, at)
    replacements = await replacements_at(storage, context, head, version)
    entries = await read_conversation(storage, context, replacements, version)
    groups = await _fold_entries(entries, replacements, redactor)
    return _build_span(head, version, entries, replacements, groups, 0, redactor)


async def _fold_entries(
    entries: Sequence[Entry], replacements: Replacements, redactor: Redactor, after: int = 0
) -> EntryGroups:
    """Group the active entries above a version into units, as redacted by a stage."""

    def work() -> EntryGroups:
        return fold_atomic_groups(
            redactor.redact_entries(effective_sequence(entries, replacements, after=after)), whole=after == 0
        )

    return await off_loop(work, len(entries) * EACH + redactor.count_unredacted_characters(entries))


def _build_span(
    head: Head,
    version: int,
    entries: Sequence[Entry],
    replacements: Replacements,
    groups: EntryGroups,
    after: int,
    redactor: Redactor = NO_REDACTION,
) -> LogSpan:
    """Build the result of reading a log; `after` is the version before the first entry read, 0 for the whole log."""
    hidden = list(groups.hidden)
    if replacements:
        kind_by_version = {entry.version: entry.kind for entry in entries}
        for entry in entries:
            replacing_version = replacements.replaced_by(entry.version)
            if replacing_version is not None:
                reason = inactive_reason(replacing_version, kind_by_version.get(replacing_version))
                hidden.append((redactor.redact_entry(entry), reason))
    stamp = f"{head.context} {head.rewrites} {head.epoch} {redactor.mode or 'exact'}"
    older_summaries: list[EntryGroup[Entry]] = []
    if after:
        redacted = redactor.redact_entries(find_older_summaries(groups.units, replacements))
        older_summaries = [EntryGroup((entry,)) for entry in redacted]
    return LogSpan(
        head.context,
        version,
        replacements,
        groups.units,
        hidden,
        whole=after == 0,
        stamp=stamp,
        older_summaries=older_summaries,
        non_messages=head.version - head.messages,
    )


async def gather_newest(
    storage: StorageBackend,
    context: str,
    at: int | None,
    frame: Frame,
    budget: int,
    redactor: Redactor = NO_REDACTION,
) -> LogSpan:
    """Read back from a version until the entries fill a token budget or the log ends."""
    head = await storage.head(context)
    average_cost = 1.0
    if head.messages:
        average_cost = max(1.0, head.tokens / head.messages + frame.cost(Role.USER, ()))
    # A little more than the average, so that one read is often enough.
    size = int(budget / average_cost * 1.05) + 4

    def has_enough(units: Sequence[EntryGroup[Entry]]) -> bool:
        return count_group_tokens(units, frame) > budget

    return await _gather_back(storage, head, at, size, has_enough, redactor)


async def gather_last(
    storage: StorageBackend, context: str, at: int | None, messages: int, redactor: Redactor = NO_REDACTION
) -> LogSpan:
    """Read back from a version until a number of messages can be shown, or the log ends."""

    def has_enough(units: Sequence[EntryGroup[Entry]]) -> bool:
        return sum([len(unit.entries) for unit in units]) >= messages

    return await _gather_back(storage, await storage.head(context), at, messages + 4, has_enough, redactor)


async def gather_since(
    storage: StorageBackend,
    context: str,
    at: int | None,
    tokens: int,
    redactor: Redactor = NO_REDACTION,
    newest_summary: int | None = None,
) -> LogSpan:
    """Read back from a version to a unit that has at most `tokens` tokens of the log before it.

    Automatic summaries after the version `newest_summary` have no effect: the messages they replace are read in their
    original wording.
    """

    def has_enough(units: Sequence[EntryGroup[Entry]]) -> bool:
        return bool(units) and count_tokens_before(units[0]) <= tokens

    head = await storage.head(context)
    replacements = None
    if newest_summary is not None and head.rewrites:
        replacements = (
            await replacements_at(storage, context, head, version_to_read(head, at))
        ).without_automatic_after(newest_summary)
    return await _gather_back(storage, head, at, 64, has_enough, redactor, replacements)


async def _gather_back(
    storage: StorageBackend,
    head: Head,
    at: int | None,
    size: int,
    has_enough: Callable[[Sequence[EntryGroup[Entry]]], bool],
    redactor: Redactor,
    replacements: Replacements | None = None,
) -> LogSpan:
    """Read back from a version, at first `size` entries, until `has_enough` accepts the units or the log ends."""
    context, version = head.context, version_to_read(head, at)
    if replacements is None:
        replacements = await replacements_at(storage, context, head, version)
    size = min(size, max(version, 1))
    entries: list[Entry] = []
    for first, last in reversed(replacements.spans_to_read(version)):
        unread_end = last
        while unread_end >= first:
            page = await storage.read(context, at=unread_end, after=first - 1, newest=size)
            entries = page + entries
            unread_end = page[0].version - 1 if page else first - 1
            after = unread_end if unread_end >= first else _end_of_previous_stretch(replacements, first)
            groups = await _fold_entries(entries, replacements, redactor, after)
            is_enough = await off_loop(partial(has_enough, groups.units), len(entries) * EACH)
            # An unresolved tool group goes on further back.
            if after and is_enough and not groups.unresolved:
                return _build_span(head, version, entries, replacements, groups, after, redactor)
            size = 2 * size
    groups = await _fold_entries(entries, replacements, redactor)
    return _build_span(head, version, entries, replacements, groups, 0, redactor)


def count_tokens_before(unit: EntryGroup[Entry]) -> int:
    """Return how many tokens of the log lie before the newest entry of a unit."""
    last = unit.entries[-1]
    return last.total - last.tokens if last.kind is Kind.MESSAGE else last.total


def _end_of_previous_stretch(replacements: Replacements, first: int) -> int:
    """Return the last version before a stretch that has to be read; 0 when it is the first one."""
    return max((last for _, last in replacements.spans_to_read(first - 1)), default=0)


def count_group_tokens(units: Sequence[EntryGroup[Entry]], frame: Frame) -> int:
    """Return the cost of some units in a frame."""
    entries = [entry for unit in units for entry in unit.entries]
    return sum(
        [entry.tokens + frame.cost(rendered_role(entry), entry.parts, entry.actor) for entry in entries]
    )


def plan_window(
    span: LogSpan, budget: int, counter: TokenCounter, frame: Frame, keep: Collection[Role] = ()
) -> ContextItems:
    """Choose the newest contiguous units that fit a budget, and leading messages of the roles in `keep` before them."""
    leading_count = count_leading_groups(span, keep)
    units = [*span.older_summaries, *span.units]
    labels = span.labels.by_id(units[leading_count:], units[:leading_count])
    candidates = [build_window_candidate(unit, frame, labels) for unit in units]
    leading_candidates, other_candidates = candidates[:leading_count], candidates[leading_count:]
    leading_tokens = sum(candidate.tokens for candidate in leading_candidates)

    def choose(limit: int) -> list[Choice]:
        if leading_tokens > limit:
            reason = f"needs {leading_tokens} tokens, the budget is {limit}"
            omitted_choices = [Choice(candidate, False, "budget", reason) for candidate in leading_candidates]
            return omitted_choices + choose_newest_suffix(other_candidates, limit)
        reason = "a leading message of a role to keep"
        kept_choices = [Choice(candidate, True, "keep", reason) for candidate in leading_candidates]
        return kept_choices + choose_newest_suffix(other_candidates, limit - leading_tokens)

    items, choices = finish_plan(fit_to_budget(choose, budget, counter, frame))
    return ContextItems(
        items,
        budget=budget,
        ledger=build_choice_ledger(choices, span.hidden, list_cut_warnings(items)),
        context=span.context,
        version=span.version,
    )


def build_window_candidate(unit: EntryGroup[Entry], frame: Frame, labels: Mapping[str, str]) -> Candidate:
    """Return a unit of a window as a candidate with its label; `labels` are by id."""
    candidate = build_candidate(unit, Source.WINDOW, frame)
    return append_label(candidate, labels.get(unit.entries[0].id, "")) if labels else candidate


def list_cut_warnings(items: Sequence[ContextItem]) -> list[str]:
    """Return a warning for each item of a window that was cut."""
    return [cut_warning(item.id, summary=item.role is None) for item in items if item.truncated]


def cut_warning(id: str, *, summary: bool) -> str:
    """Return the warning that an entry was cut although it had to be shown."""
    return f"{'a summary' if summary else 'the latest message'} was cut to fit ({id})"


def count_leading_groups(span: LogSpan, roles: Collection[Role]) -> int:
    """Return how many units at the start of a log are of some roles; 0 if its start was not read.

    The newest unit does not count: it is shown in any case.
    """
    if not span.whole:
        return 0
    count = 0
    for unit in span.units[:-1]:
        if rendered_role(unit.entries[0]) not in roles:
            break
        count += 1
    return count


async def load_instructions(
    storage: StorageBackend, redactor: Redactor, span: LogSpan
) -> Sequence[EntryGroup[Entry]]:
    """Return the system and developer messages that a log begins with; they are read if only its end was gathered."""
    if span.whole:
        return span.units[: count_leading_groups(span, LEADING)]
    size = 16
    while True:
        entries = await storage.read(span.context, at=span.version, kinds=CONVERSATION_KINDS, limit=size)
        sequence = effective_sequence(entries, span.replacements)
        if entries:
            last = entries[-1].version
            sequence = [entry for entry in sequence if entry.version <= last or entry.replaces]
        units: list[EntryGroup[Entry]] = []
        for entry in sequence:
            if not is_instruction(entry):
                return units
            units.append(EntryGroup((redactor.redact_entry(entry),)))
        if len(entries) < size:
            return units
        size *= 2
