"""Compaction spans: the part of a log that a summary replaces, and the length of that summary.

Pure functions, independent of the summarizer. The newest messages stay, a tool group is never split, and leading
instructions are never summarised. Marked messages and later instructions stay unchanged while they are few; otherwise
they are quoted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from acms.log.in_force import Cover, Units, anchor_version
from acms.log.policy import CompactionPolicy, is_compaction_due
from acms.log.trust import is_instruction
from acms.model import Entry, Kind, Privacy, Role, Span
from acms.plan.prefix_cache import SLACK, grid_step
from acms.ports import TokenCounter, Turn
from acms.prompt_types import prefix_speaker
from acms.results import resolve_speaker
from acms.text.summary_form import LEAST, SHORTER
from acms.text.tokenizer import find_sentence_spans

INSTRUCTION = "instruction"
"""Marker under which a summarizer reads a system or developer message in the middle of a log."""
MARKED = 4
"""Marked messages and instructions stay unchanged while they take at most 1/`MARKED` of the budget."""
LEFT = 0.5
"""Largest share of the budget that a log should have after a compaction; above it no marked message stays unchanged.
The rest, up to the threshold, is for new messages, so that the next compaction is not due soon."""
SUMMARIES = 0.25
"""Share of the budget that summaries may take."""
FAN = 4
"""Number of adjacent summaries that are merged into one."""
GAIN = 0.4
"""Share of the budget that a compaction requested only by an append must free: each compaction changes every prompt
from its position on."""

SOON, LITTLE = 0.25, 0.2
"""In the last quarter of an epoch this share of the budget is enough: prompts show the summary from the next one on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The entries that one summary will replace."""

    #: Messages and earlier summaries, in reading order.
    entries: tuple[Entry, ...]
    #: Exactly the versions that become inactive: the entries and the versions that they replaced.
    spans: tuple[Span, ...]
    #: Active tokens before it, and tokens of the entries.
    before: int
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


def is_worthwhile(policy: CompactionPolicy, stretch: Stretch, said: int) -> bool:
    """Return whether to run a compaction requested by an append: the log is still too long, and it frees enough.

    `said` are the tokens of all messages of the log. Shortly before prompts move their start, less is enough.
    """
    budget = policy.budget or 0
    if not is_compaction_due(policy, stretch.before, stretch.before):
        return False
    distance = grid_step(budget, SLACK)
    soon = said % distance >= (1 - SOON) * distance
    return stretch.tokens - stretch.limit >= (LITTLE if soon else GAIN) * budget


class Outdated(NamedTuple):
    """Active summaries of entries some of which were retracted or edited since."""

    #: Remaining spans, by id, of the summaries that can be renewed.
    left: Mapping[str, tuple[Span, ...]] = {}
    #: Ids of those that cannot, because retention has deleted their source messages: only they still hold the text.
    stuck: Collection[str] = ()


UP_TO_DATE = Outdated()


def choose_stretch(
    found: Units, policy: CompactionPolicy, outdated: Outdated = UP_TO_DATE, *, messages: bool = True
) -> Stretch | str:
    """Return the stretch of the active entries to summarise, or the reason why no summary is worthwhile.

    An outdated summary is always included, together with the summaries after it; without `messages` only summaries are.
    A tool call without an answer stays: its answer may still come.
    """
    rows = sorted(
        [(list(unit.entries), unit.complete) for unit in found.units]
        + [([entry], True) for entry, _ in found.hidden],
        key=lambda row: (anchor_version(row[0][-1]), row[0][-1].version),
    )
    groups = [group for group, _ in rows]
    costs = [sum(entry.tokens for entry in group) for group in groups]
    before = sum(costs)
    lead = next((place for place, group in enumerate(groups) if not is_instruction(group[0])), len(groups))
    end = _find_tail_start(groups, costs, rows, policy, before)
    older = [
        (group, cost)
        for place, (group, cost) in enumerate(zip(groups, costs, strict=True))
        if lead <= place < end or group[0].id in outdated.left
    ]
    budget = policy.budget or before
    open_calls = {unit.entries[0].id for unit in found.units if not unit.complete}
    kept = _select_preserved(older, policy, budget, sum(costs[end:])) | open_calls.union(outdated.stuck)
    older = [(group, cost) for group, cost in older if group[0].id not in kept]
    summaries = [(group[0], cost) for group, cost in older if group[0].kind is Kind.SUMMARY]
    said = [(group, cost) for group, cost in older if messages and group[0].kind is not Kind.SUMMARY]
    new, old = sum(cost for _, cost in said), sum(cost for _, cost in summaries)
    most = int(budget * SUMMARIES)
    merged = _select_merged(summaries, policy, new, old, most, outdated)
    taken = {entry.id for entry in merged}.union(entry.id for group, _ in said for entry in group)
    entries = tuple(
        replace(entry, replaces=outdated.left.get(entry.id, entry.replaces))
        for group, _ in older
        for entry in group
        if entry.id in taken
    )
    renews = tuple(entry.version for entry in entries if entry.id in outdated.left)
    quoted = sum(entry.tokens for entry in entries if _is_verbatim(entry))
    again = sum(entry.tokens for entry in merged)
    limit = _compute_limit(policy, new, quoted, again, old - again, most)
    tokens = new + again
    if not renews and (len(entries) < 2 or tokens <= limit + LEAST // 2):
        return (
            f"{len(entries)} of {len(groups)} messages could be summarised, {tokens} tokens for a summary of up to "
            f"{limit}: the newest {len(groups) - end} stay, and what is marked or instructs while it is short"
        )
    levels = [int(entry.data.get("level", 1)) for entry in entries if entry.kind is Kind.SUMMARY]
    return Stretch(
        entries=entries,
        spans=spans_of_entries(entries),
        before=before,
        tokens=tokens,
        limit=limit,
        preserved=sum(1 for group in groups for e in group if e.kind is Kind.MESSAGE and e.id not in taken),
        level=1 + max(levels, default=0),
        renews=renews,
    )


def _select_preserved(
    older: Sequence[tuple[list[Entry], int]], policy: CompactionPolicy, budget: int, tail: int
) -> set[str]:
    """Return the marked messages and instructions that stay unchanged, given a tail of `tail` tokens."""
    room = budget // MARKED
    if policy.budget is not None:
        stays = tail + sum(cost for group, cost in older if group[0].kind is Kind.SUMMARY)
        room = min(room, max(0, int(LEFT * budget) - stays))
    kept: set[str] = set()
    for group, cost in reversed(older):
        if any(map(_is_verbatim, group)) and cost <= room:
            kept.add(group[0].id)
            room -= cost
    return kept


def _select_merged(
    summaries: Sequence[tuple[Entry, int]],
    policy: CompactionPolicy,
    new: int,
    old: int,
    most: int,
    outdated: Outdated,
) -> list[Entry]:
    """Return the earlier summaries to merge into the new one: all, if they are too many or take too many tokens.

    Otherwise those from the first outdated one on, so the reading order is preserved.
    """
    found = [entry for entry, _ in summaries]
    crowded = policy.budget is not None and old + new // SHORTER > most
    if len(found) > 1 and (len(found) >= FAN or crowded):
        return found
    if len(found) == 1 and crowded and new > 0:
        return found
    first = next((place for place, entry in enumerate(found) if entry.id in outdated.left), len(found))
    return found[first:]


def _is_verbatim(entry: Entry) -> bool:
    """Return whether an entry must be kept verbatim: it is marked or an instruction."""
    return bool(entry.markers) or is_instruction(entry)


def _find_tail_start(
    groups: Sequence[list[Entry]],
    costs: Sequence[int],
    rows: Sequence[tuple[list[Entry], bool]],
    policy: CompactionPolicy,
    before: int,
) -> int:
    """Return the number of groups that are older than the preserved tail."""
    end, kept = len(groups), 0
    while end > 0 and (kept < policy.preserve_recent_count or not rows[end - 1][1]):
        end -= 1
        kept += sum(1 for entry in groups[end] if entry.kind is Kind.MESSAGE)
    evicted = sum(costs[:end])
    while end > 0 and evicted > before - policy.keep * before:
        end -= 1
        evicted -= costs[end]
    return end


def _compute_limit(
    policy: CompactionPolicy, new: int, quoted: int, merged: int, staying: int, most: int
) -> int:
    """Return the token limit of a summary of new messages, some of them quoted, and of merged summaries."""
    if policy.summary_tokens is not None:
        return policy.summary_tokens
    wanted = (new - quoted) // SHORTER + quoted // 2
    wanted += merged
    if policy.budget is not None:
        wanted = min(wanted, max(most - staying, policy.budget // 16))
    return max(LEAST, wanted)


def spans_of_entries(entries: Iterable[Entry]) -> tuple[Span, ...]:
    """Return the versions of some entries and the versions they replaced, as ascending spans."""
    pieces = sorted(
        [(entry.version, entry.version) for entry in entries]
        + [span for entry in entries for span in entry.replaces]
    )
    found: list[Span] = []
    for first, last in pieces:
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def subtract_spans(found: Iterable[Span], gone: Sequence[tuple[int, int, int]]) -> tuple[Span, ...]:
    """Return spans without the removed parts `gone`, which must be in ascending order."""
    left: list[Span] = []
    for first, last in found:
        for start, end, _ in gone:
            if first <= start and end <= last:
                if first < start:
                    left.append((first, start - 1))
                first = end + 1
        if first <= last:
            left.append((first, last))
    return tuple(left)


def is_stretch_active(stretch: Stretch, cover: Cover, current: Iterable[Entry | None]) -> bool:
    """Return whether all entries that a summary replaces are still active and have their content (rule 1.4)."""
    return all(
        now is not None and now.state is old.state and cover.by(old.version) is None
        for old, now in zip(stretch.entries, current, strict=True)
    )


def turns_of_entries(entries: Iterable[Entry]) -> tuple[Turn, ...]:
    """Return some entries as turns for a summarizer, without entries that must not leave the engine."""
    return tuple(
        Turn(
            speaker="summary"
            if entry.kind is Kind.SUMMARY
            else resolve_speaker(entry.actor, entry.role) or Role.USER.value,
            text=entry.content,
            markers=entry.markers or ((INSTRUCTION,) if is_instruction(entry) else ()),
            version=entry.version,
            summary=entry.kind is Kind.SUMMARY,
        )
        for entry in entries
        if entry.content.strip() and entry.privacy is not Privacy.BLOCK
    )


def chunk_turns(said: Sequence[Turn], most: int, counter: TokenCounter) -> list[tuple[Turn, ...]]:
    """Split turns into runs of at most `most` tokens; a turn that is longer is cut between its sentences."""
    found: list[tuple[Turn, ...]] = []
    run: list[Turn] = []
    size = 0
    for turn in said:
        for piece in _split_turn(turn, most, counter):
            cost = counter.count(prefix_speaker(piece.speaker, piece.text)) + 2
            if run and size + cost > most:
                found.append(tuple(run))
                run, size = [], 0
            run.append(piece)
            size += cost
    return [*found, tuple(run)] if run else found


def _split_turn(turn: Turn, most: int, counter: TokenCounter) -> list[Turn]:
    def cost(text: str) -> int:
        return counter.count(prefix_speaker(turn.speaker, text)) + 2

    if cost(turn.text) <= most:
        return [turn]
    pieces: list[str] = []
    for first, last in find_sentence_spans(turn.text):
        sentence = turn.text[first:last]
        if pieces and cost(pieces[-1] + sentence) <= most:
            pieces[-1] += sentence
            continue
        while sentence:
            size = len(sentence)
            while size > 1 and cost(sentence[:size]) > most:
                half = size // 2
                size = sentence.rfind(" ", half // 2, half) + 1 or half
            pieces.append(sentence[:size])
            sentence = sentence[size:]
    return [
        Turn(
            speaker=turn.speaker, text=piece, markers=turn.markers, version=turn.version, summary=turn.summary
        )
        for piece in pieces
    ]


def complete_summary(text: str, said: Sequence[Turn], limit: int, count: Callable[[str], int]) -> str:
    """Return a model's summary within its limit, with omitted marked texts and details added as far as they fit.

    Models tend to omit names, numbers and paths, which cannot be reconstructed.
    """
    from acms.text.details import find_details  # these import numpy, and appends import this module
    from acms.text.extract import extract_summary

    if count(text) > limit:
        text = extract_summary(
            [Turn(speaker="summary", text=text, version=said[-1].version, summary=True)], limit, count
        )
    missing: list[Turn] = []
    for turn in said:
        if turn.markers and turn.text.strip() not in text:
            missing.append(turn)
            continue
        lines = [turn.text[first:last] for first, last in find_sentence_spans(turn.text)]
        kept = [line for line in lines if any(detail.text not in text for detail in find_details(line))]
        if kept:
            missing.append(replace(turn, text="".join(kept), markers=()))
    room = limit - count(text)
    while missing and room > 0:
        whole = f"{text}\n{extract_summary(missing, room, count)}".strip()
        over = count(whole) - limit
        if over <= 0:
            return whole
        room -= max(1, over)
    return text
