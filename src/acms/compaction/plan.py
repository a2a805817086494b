"""Plan a compaction: which entries of a log a summary replaces, and how long it may be.

Pure functions, independent of the summarizer. The newest messages stay, a tool group is never split, and leading
instructions are never summarised. Marked messages and later instructions stay unchanged while they are few; otherwise
they are quoted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from acms.log.active_entries import EntryGroups, Replacements, anchor_version, join_spans
from acms.log.policy import CompactionPolicy, is_compaction_due
from acms.log.trust import is_instruction
from acms.model import Entry, Kind, Privacy, Role, Span
from acms.plan.prefix_cache import SLACK, grid_step
from acms.ports import TokenCounter, Turn
from acms.prompt_types import prefix_speaker
from acms.results import resolve_speaker
from acms.text.summary_form import MIN_SUMMARY_TOKENS, SUMMARY_DIVISOR
from acms.text.tokenizer import find_sentence_spans

INSTRUCTION = "instruction"
"""Marker under which a summarizer reads a system or developer message in the middle of a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """The entries that one summary will replace, and the statistics of the compaction."""

    #: Messages and earlier summaries, in reading order.
    entries: tuple[Entry, ...]
    #: Exactly the versions that become inactive: the entries and the versions that they replaced.
    spans: tuple[Span, ...]
    #: Tokens of all active entries of the log before the compaction.
    active_tokens: int
    #: Tokens of the entries.
    tokens: int
    #: Tokens the summary may have.
    limit: int
    #: Number of messages that stay active.
    preserved: int
    #: 1 for a summary of messages; for one of summaries, one more than the highest level among them.
    level: int
    #: Versions of the summaries among the entries that are renewed because the entries they replaced have changed.
    renews: tuple[int, ...] = ()

    @property
    def covers(self) -> Span:
        """First and last version that the summary covers."""
        return self.spans[0][0], self.spans[-1][1]


def is_worthwhile(policy: CompactionPolicy, plan: CompactionPlan, total_tokens: int) -> bool:
    """Return whether the log is still too long and a compaction frees enough tokens.

    `total_tokens` are those of all messages of the log. A compaction changes every prompt from its position on, so it
    must free 40 % of the budget. In the last quarter of a cache window 20 % are enough: prompts then show the summary
    from the next window on, where their start moves anyway.
    """
    budget = policy.budget or 0
    if not is_compaction_due(policy, plan.active_tokens, plan.active_tokens):
        return False
    window = grid_step(budget, SLACK)
    is_last_quarter = total_tokens % window >= 0.75 * window
    required_share = 0.2 if is_last_quarter else 0.4
    return plan.tokens - plan.limit >= required_share * budget


class Outdated(NamedTuple):
    """Active summaries that are outdated: some of the entries they replaced were retracted or edited since."""

    #: By id of a summary that can be renewed: the spans that it replaced, without the changed entries.
    remaining_spans: Mapping[str, tuple[Span, ...]] = {}
    #: Ids of summaries that cannot be renewed, because retention has deleted the messages they were made from.
    unrenewable: Collection[str] = ()


UP_TO_DATE = Outdated()


class _Group(NamedTuple):
    """A message, a summary or a tool group."""

    entries: tuple[Entry, ...]
    #: False for a tool group some of whose calls have no answer yet.
    complete: bool
    tokens: int

    @property
    def first(self) -> Entry:
        return self.entries[0]

    @property
    def is_summary(self) -> bool:
        return self.first.kind is Kind.SUMMARY

    @property
    def sort_key(self) -> tuple[int, int]:
        return anchor_version(self.entries[-1]), self.entries[-1].version


def plan_compaction(
    active: EntryGroups, policy: CompactionPolicy, outdated: Outdated = UP_TO_DATE, *, messages: bool = True
) -> CompactionPlan | str:
    """Choose the active entries to summarise; return the plan, or the reason why no summary is worthwhile.

    An outdated summary is always included, together with the summaries after it. With `messages=False` only summaries
    are included. A tool call without an answer is left out: its answer may still come.
    """
    groups = _list_groups(active)
    active_tokens = _count_tokens(groups)
    tail_start = _find_tail_start(groups, policy, active_tokens)
    older = _select_older(groups, tail_start, policy, outdated)
    summaries = [group for group in older if group.is_summary]
    message_groups = [group for group in older if messages and not group.is_summary]
    message_tokens, summary_tokens = _count_tokens(message_groups), _count_tokens(summaries)
    merged = _select_summaries_to_merge(summaries, policy, message_tokens, summary_tokens, outdated)
    chosen_ids = {group.first.id for group in (*message_groups, *merged)}
    chosen = [group for group in older if group.first.id in chosen_ids]
    entries = _collect_entries(chosen, outdated)
    renews = tuple(entry.version for entry in entries if entry.id in outdated.remaining_spans)
    quoted_tokens = sum(entry.tokens for entry in entries if _is_verbatim(entry))
    merged_tokens = _count_tokens(merged)
    limit = _compute_limit(
        policy,
        new=message_tokens - quoted_tokens,
        quoted=quoted_tokens,
        merged=merged_tokens,
        staying=summary_tokens - merged_tokens,
    )
    tokens = message_tokens + merged_tokens
    if not renews and (len(entries) < 2 or tokens <= limit + MIN_SUMMARY_TOKENS // 2):
        return (
            f"{len(entries)} of {len(groups)} messages could be summarised, {tokens} tokens for a summary of up to "
            f"{limit}: the newest {len(groups) - tail_start} stay, and a few marked messages and instructions"
        )
    levels = [int(entry.data.get("level", 1)) for entry in entries if entry.kind is Kind.SUMMARY]
    return CompactionPlan(
        entries=tuple(entries),
        spans=spans_of_entries(entries),
        active_tokens=active_tokens,
        tokens=tokens,
        limit=limit,
        preserved=sum(_count_messages(group.entries) for group in groups) - _count_messages(entries),
        level=1 + max(levels, default=0),
        renews=renews,
    )


def _list_groups(active: EntryGroups) -> list[_Group]:
    """Return the active groups in reading order, and each hidden entry as a group of its own."""
    groups = [_Group((entry,), True, entry.tokens) for entry, _ in active.hidden]
    for group in active.units:
        tokens = sum(entry.tokens for entry in group.entries)
        groups.append(_Group(group.entries, group.complete, tokens))
    return sorted(groups, key=lambda group: group.sort_key)


def _collect_entries(groups: Iterable[_Group], outdated: Outdated) -> list[Entry]:
    """Return the entries of some groups; an outdated summary replaces only its remaining spans."""
    entries: list[Entry] = []
    for group in groups:
        for entry in group.entries:
            spans = outdated.remaining_spans.get(entry.id, entry.replaces)
            entries.append(replace(entry, replaces=spans))
    return entries


def _count_messages(entries: Iterable[Entry]) -> int:
    return sum(entry.kind is Kind.MESSAGE for entry in entries)


def _count_tokens(groups: Iterable[_Group]) -> int:
    return sum(group.tokens for group in groups)


def _find_tail_start(groups: Sequence[_Group], policy: CompactionPolicy, total_tokens: int) -> int:
    """Return the index from which on the newest groups stay; `total_tokens` are those of all groups.

    The groups that stay have at least `preserve_recent_count` messages and the share `keep` of the tokens.
    """
    start, preserved = len(groups), 0
    while start > 0 and (preserved < policy.preserve_recent_count or not groups[start - 1].complete):
        start -= 1
        preserved += _count_messages(groups[start].entries)
    older_tokens = _count_tokens(groups[:start])
    max_older_tokens = total_tokens - policy.keep * total_tokens
    while start > 0 and older_tokens > max_older_tokens:
        start -= 1
        older_tokens -= groups[start].tokens
    return start


def _select_older(
    groups: Sequence[_Group], tail_start: int, policy: CompactionPolicy, outdated: Outdated
) -> list[_Group]:
    """Return the groups before the tail that may be summarised, and every outdated summary that can be renewed.

    Leading instructions and open tool calls are left out. So are marked messages and other instructions, the newest
    first, while these take at most a quarter of the budget and half of the budget stays free for new messages, so that
    the next compaction is not due soon.
    """
    older: list[_Group] = []
    is_leading = True
    for index, group in enumerate(groups):
        is_leading = is_leading and is_instruction(group.first)
        is_outdated = group.first.id in outdated.remaining_spans
        if is_outdated or (index < tail_start and not is_leading):
            older.append(group)
    verbatim_budget = (policy.budget or _count_tokens(groups)) // 4
    if policy.budget is not None:
        summaries = [group for group in older if group.is_summary]
        staying_tokens = _count_tokens(groups[tail_start:]) + _count_tokens(summaries)
        verbatim_budget = min(verbatim_budget, max(0, int(0.5 * policy.budget) - staying_tokens))
    selected: list[_Group] = []
    for group in reversed(older):
        is_verbatim = any(map(_is_verbatim, group.entries))
        if is_verbatim and group.tokens <= verbatim_budget:
            verbatim_budget -= group.tokens
        elif group.complete and group.first.id not in outdated.unrenewable:
            selected.append(group)
    return selected[::-1]


def _select_summaries_to_merge(
    summaries: Sequence[_Group],
    policy: CompactionPolicy,
    message_tokens: int,
    summary_tokens: int,
    outdated: Outdated,
) -> Sequence[_Group]:
    """Return the earlier summaries to merge into the new one.

    These are all of them if they are too many or take too many tokens; otherwise those from the first outdated one on,
    which preserves the reading order. The tokens are those of the messages to summarise and of the earlier summaries.
    """
    exceeds_budget = False
    if policy.budget is not None:
        expected_tokens = summary_tokens + message_tokens // SUMMARY_DIVISOR
        exceeds_budget = expected_tokens > _budget_for_summaries(policy.budget)
    # A single summary, without new messages, would only be summarised again.
    has_something_to_merge = len(summaries) > 1 or message_tokens > 0
    if len(summaries) >= 4 or (exceeds_budget and has_something_to_merge):
        return summaries
    for index, group in enumerate(summaries):
        if group.first.id in outdated.remaining_spans:
            return summaries[index:]
    return ()


def _budget_for_summaries(budget: int) -> int:
    """Return the tokens that all summaries together may take: a quarter of the budget."""
    return int(budget * 0.25)


def _is_verbatim(entry: Entry) -> bool:
    """Return whether an entry must be kept verbatim: it is marked or an instruction."""
    return bool(entry.markers) or is_instruction(entry)


def _compute_limit(policy: CompactionPolicy, *, new: int, quoted: int, merged: int, staying: int) -> int:
    """Return the token limit of a summary, from the tokens of its sources.

    These are new messages, quoted messages and merged summaries; `staying` are the tokens of summaries that stay.
    """
    if policy.summary_tokens is not None:
        return policy.summary_tokens
    limit = new // SUMMARY_DIVISOR + quoted // 2 + merged
    if policy.budget is not None:
        remaining = _budget_for_summaries(policy.budget) - staying
        limit = min(limit, max(remaining, policy.budget // 16))
    return max(MIN_SUMMARY_TOKENS, limit)


def spans_of_entries(entries: Iterable[Entry]) -> tuple[Span, ...]:
    """Return the versions of some entries and of the entries they replaced, as ascending spans without overlap."""
    spans: list[Span] = []
    for entry in entries:
        spans += [(entry.version, entry.version), *entry.replaces]
    return tuple(join_spans(sorted(spans)))


def subtract_spans(spans: Iterable[Span], removed: Sequence[tuple[int, int, int]]) -> tuple[Span, ...]:
    """Remove parts from spans; parts are (first, last, replacing version) in ascending order."""
    remaining: list[Span] = []
    for first, last in spans:
        next_first = first
        for removed_first, removed_last, _ in removed:
            if next_first <= removed_first and removed_last <= last:
                if next_first < removed_first:
                    remaining.append((next_first, removed_first - 1))
                next_first = removed_last + 1
        if next_first <= last:
            remaining.append((next_first, last))
    return tuple(remaining)


def is_plan_current(
    plan: CompactionPlan, replacements: Replacements, current: Iterable[Entry | None]
) -> bool:
    """Return whether all entries of a plan are still active and have content; `current` are the stored entries."""
    for chosen, stored in zip(plan.entries, current, strict=True):
        is_unchanged = stored is not None and stored.state is chosen.state
        if not is_unchanged or replacements.replaced_by(chosen.version) is not None:
            return False
    return True


def turns_of_entries(entries: Iterable[Entry]) -> tuple[Turn, ...]:
    """Convert entries to turns for a summarizer; blocked and empty ones are left out."""
    turns: list[Turn] = []
    for entry in entries:
        if entry.privacy is Privacy.BLOCK or not entry.content.strip():
            continue
        is_summary = entry.kind is Kind.SUMMARY
        speaker = "summary"
        if not is_summary:
            speaker = resolve_speaker(entry.actor, entry.role) or Role.USER.value
        markers = entry.markers
        if not markers and is_instruction(entry):
            markers = (INSTRUCTION,)
        turns.append(
            Turn(
                speaker=speaker,
                text=entry.content,
                markers=markers,
                version=entry.version,
                summary=is_summary,
            )
        )
    return tuple(turns)


def chunk_turns(turns: Sequence[Turn], max_tokens: int, counter: TokenCounter) -> list[tuple[Turn, ...]]:
    """Split turns into runs of at most `max_tokens`; a turn that is longer is cut between its sentences."""
    chunks: list[tuple[Turn, ...]] = []
    chunk: list[Turn] = []
    chunk_tokens = 0
    for turn in turns:
        for piece in _split_turn(turn, max_tokens, counter):
            tokens = _count_turn_tokens(turn, piece, counter)
            if chunk and chunk_tokens + tokens > max_tokens:
                chunks.append(tuple(chunk))
                chunk, chunk_tokens = [], 0
            chunk.append(replace(turn, text=piece))
            chunk_tokens += tokens
    if chunk:
        chunks.append(tuple(chunk))
    return chunks


def _count_turn_tokens(turn: Turn, text: str, counter: TokenCounter) -> int:
    """Return the tokens of a text with its speaker, and of the two line breaks around it."""
    return counter.count(prefix_speaker(turn.speaker, text)) + 2


def _split_turn(turn: Turn, max_tokens: int, counter: TokenCounter) -> list[str]:
    """Split the text of a turn into pieces of whole sentences of at most `max_tokens`; longer sentences are cut."""
    if _count_turn_tokens(turn, turn.text, counter) <= max_tokens:
        return [turn.text]
    pieces: list[str] = []
    for first, last in find_sentence_spans(turn.text):
        sentence = turn.text[first:last]
        if pieces and _count_turn_tokens(turn, pieces[-1] + sentence, counter) <= max_tokens:
            pieces[-1] += sentence
            continue
        # Halve the sentence, at a blank if there is one, until a piece fits.
        while sentence:
            length = len(sentence)
            while length > 1 and _count_turn_tokens(turn, sentence[:length], counter) > max_tokens:
                half = length // 2
                length = sentence.rfind(" ", half // 2, half) + 1 or half
            pieces.append(sentence[:length])
            sentence = sentence[length:]
    return pieces


def complete_summary(text: str, turns: Sequence[Turn], limit: int, count: Callable[[str], int]) -> str:
    """Add marked texts and details that a model's summary omits, as far as they fit its token limit.

    Models tend to omit names, numbers and paths, which cannot be reconstructed. A summary over the limit is shortened.
    """
    from acms.text.details import find_details  # these import numpy, and appends import this module
    from acms.text.extract import extract_summary

    if count(text) > limit:
        summary = Turn(speaker="summary", text=text, version=turns[-1].version, summary=True)
        text = extract_summary([summary], limit, count)
    omitted: list[Turn] = []
    for turn in turns:
        if turn.markers and turn.text.strip() not in text:
            omitted.append(turn)
            continue
        omitted_sentences: list[str] = []
        for start, end in find_sentence_spans(turn.text):
            sentence = turn.text[start:end]
            if any(detail.text not in text for detail in find_details(sentence)):
                omitted_sentences.append(sentence)
        if omitted_sentences:
            omitted.append(replace(turn, text="".join(omitted_sentences), markers=()))
    # Token counts of joined texts do not add up: shorten the added text until the whole fits.
    remaining = limit - count(text)
    while omitted and remaining > 0:
        completed = f"{text}\n{extract_summary(omitted, remaining, count)}".strip()
        excess = count(completed) - limit
        if excess <= 0:
            return completed
        remaining -= max(1, excess)
    return text
