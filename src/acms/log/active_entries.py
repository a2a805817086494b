"""Which entries are active at a version, in which order they are read, and which messages are outdated.

Everything here is a pure function of the entries up to a version, so time travel, edits, retractions and compaction
are one mechanism. The *effective sequence* is the active messages and summaries, each at its position: a message at its
version, a summary or an edit at the first version it replaces (rule 1.5). An *atomic group* is never split in an
output: one message, or a tool call with all its answers (rule 1.18). A message is *demoted* by the entry that retired a
fact made from it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from acms.log.encoding import parse_entry_id
from acms.log.trust import LEADING, is_instruction
from acms.model import Entry, Kind, Part, Role, Span, State, ToolCall, ToolResult

LONG_RUN = 64
"""Adjacent inactive versions that are worth skipping when a log is read; fewer cost less than a second query."""
ENDED = ("removed", "archived")
"""Reasons of retractions that end a fact without making it untrue that it took the place of others."""

_version = attrgetter("version")

UNDO = "undo"
"""Reason of the retraction of a rewrite."""
GONE = "gone"
"""Reason of the retraction of messages that a synced list no longer has: they count as never stored."""
MERGED = "merged"
"""Reason of the record of a merge; in the data of a copied retraction, the id of the original."""
SEEN = "seen"
"""Version vector in the data of the record of a merge."""


def is_merge_record(entry: Entry) -> bool:
    """Return whether an entry is the record of a merge."""
    return entry.kind is Kind.RETRACTION and entry.data.get("reason") == MERGED and SEEN in entry.data


ASKED = "asked"
"""Key in the data of a summary: True if a caller requested it, False if an append did because the log was long."""


def is_automatic_summary(entry: Entry) -> bool:
    """Return whether a summary was requested only by an append: a prompt may omit it for a while."""
    return entry.kind is Kind.SUMMARY and entry.data.get(ASKED) is False


def is_sealed(entry: Entry) -> bool:
    """Return whether an entry is a summary that only its provider can read."""
    return entry.kind is Kind.SUMMARY and not entry.content and bool(entry.parts)


class Replacements:
    """The inactive versions of a log, and the entry that replaced or retracted each of them."""

    __slots__ = (
        "_first_versions",
        "_last_versions",
        "_replacing_versions",
        "_searchable",
        "replacing",
        "retirements",
        "sealed_summaries",
        "substitutes",
    )

    def __init__(self, replacing: Iterable[Entry], *, searchable: bool = False) -> None:
        """Collect the replacements from every entry up to a version that replaces others.

        The newest entry takes precedence: an entry that is itself replaced has no effect, so undoing a summary makes
        its span active again. Facts are an exception: entries replaced by a superseded or ended fact stay inactive.
        An erased summary counts as undone; so does an erased fact that was not superseded. The replacements for
        searching (`searchable`) decide which entries can still be found: in them a summary hides only earlier
        summaries, and the messages behind them are found in their original wording.
        """
        self._searchable = searchable
        #: The entries it was built from, oldest first.
        self.replacing = sorted(replacing, key=_version)
        #: Disjoint ascending spans of inactive versions: first and last version, and the entry that replaced them.
        self._first_versions: list[int] = []
        self._last_versions: list[int] = []
        self._replacing_versions: list[int] = []
        #: Active edits and summaries, newest first. Each is read in place of the entries that it replaces.
        self.substitutes: list[Entry] = []
        #: Facts and retractions with effect, newest first. They retire facts.
        self.retirements: list[Entry] = []
        #: Active summaries that only a provider can read, newest first. For all other readers they hide nothing.
        self.sealed_summaries: list[Entry] = []
        # Versions of entries that end or supersede a fact: the entries which that fact replaced stay inactive.
        keeping_versions: set[int] = set()
        summary_versions = [entry.version for entry in self.replacing if entry.kind is Kind.SUMMARY]
        for entry in reversed(self.replacing):
            if not self._has_effect(entry, keeping_versions):
                continue
            if _keeps_replaced(entry):
                keeping_versions.add(entry.version)
            if searchable and entry.kind is Kind.SUMMARY:
                for version in _versions_in_spans(summary_versions, entry.replaces):
                    self._fill_span(version, version, entry.version)
            else:
                for first, last in entry.replaces:
                    self._fill_span(first, min(last, entry.version - 1), entry.version)
            self._effects(entry).append(entry)

    def _has_effect(self, entry: Entry, keeping_versions: Set[int]) -> bool:
        """Return whether an entry still replaces others.

        A fact that was itself replaced still has effect if `keeping_versions` has the entry that replaced it.
        """
        replacing_version = self.replaced_by(entry.version)
        if entry.kind is Kind.FACT:
            if replacing_version is not None:
                return replacing_version in keeping_versions
            return entry.state is not State.ERASED
        if replacing_version is not None:
            return False
        return entry.kind is not Kind.SUMMARY or not self._hides_nothing(entry)

    def apply_newer(self, newer: Sequence[Entry]) -> Replacements:
        """Return new replacements with newer entries, oldest first, applied too.

        The result equals the replacements collected from all entries. Only the newer ones are processed, unless they
        may reactivate older entries.
        """
        replacements = copy(self)
        for name in self.__slots__:
            if name != "_searchable":  # all other attributes are lists
                setattr(replacements, name, list(getattr(self, name)))
        for entry in newer:
            was_applied = replacements._try_to_apply(entry)
            if not was_applied:
                return Replacements([*self.replacing, *newer], searchable=self._searchable)
        return replacements

    def replacing_in_append(self, entry: Entry) -> list[Entry]:
        """Return the replacing entries that were appended after an entry, in the same append."""
        return [later for later in self.replacing_after(entry.version) if later.batch == entry.batch]

    def replacing_after(self, version: int) -> list[Entry]:
        """Return the replacing entries after a version, oldest first."""
        return self.replacing[bisect_right(self.replacing, version, key=_version) :]

    def without_automatic_after(self, version: int) -> Replacements:
        """Return the replacements without the automatic summaries after a version."""
        if not any(map(is_automatic_summary, self.replacing_after(version))):
            return self
        remaining: list[Entry] = []
        for entry in self.replacing:
            if entry.version <= version or not is_automatic_summary(entry):
                remaining.append(entry)
        return Replacements(remaining, searchable=self._searchable)

    def _try_to_apply(self, entry: Entry) -> bool:
        """Apply the newest entry; return False if older entries may become active again: only a rebuild finds them."""
        if entry.kind is Kind.SUMMARY or entry.state is State.ERASED:
            return False  # these are rare, so a rebuild is cheap enough
        replaced: list[Entry] = []
        for first, last in entry.replaces:
            last = min(last, entry.version - 1)
            replaced += self._replacing_within(first, last)
            self._overwrite_span(first, last, entry.version)
        if not all(self._remove_effect(older, entry) for older in replaced):
            return False
        self._effects(entry).insert(0, entry)
        self.replacing.append(entry)
        return True

    def _replacing_within(self, first: int, last: int) -> list[Entry]:
        start = bisect_left(self.replacing, first, key=_version)
        return self.replacing[start : bisect_right(self.replacing, last, key=_version)]

    def _remove_effect(self, replaced: Entry, newer: Entry) -> bool:
        """Remove the effect of an entry that a newer one replaced; False if older entries may become active again."""
        effects = self._effects(replaced)
        index = bisect_left(effects, -replaced.version, key=_newest_first_key)
        has_effect = index < len(effects) and effects[index] is replaced
        if replaced.kind is Kind.FACT and _keeps_replaced(newer):
            # The fact keeps its effect. If an earlier retraction had ended that effect, it returns: only a rebuild
            # restores it.
            return has_effect
        if replaced.kind is Kind.SUMMARY:
            return False  # these are rare, so a rebuild is cheap enough
        if not has_effect:
            return True
        del effects[index]
        return replaced.version not in self._replacing_versions or self._reassign_versions(replaced.version)

    def _reassign_versions(self, version: int) -> bool:
        """Reassign the versions an entry replaced to older replacements; False if one of these may take effect."""
        spans = list(zip(self._first_versions, self._last_versions, self._replacing_versions, strict=True))
        freed = [(first, last) for first, last, replacing_version in spans if replacing_version == version]
        if any(self._replacing_within(first, last) for first, last in freed):
            return False
        kept = [span for span in spans if span[2] != version]
        self._first_versions = [first for first, _, _ in kept]
        self._last_versions = [last for _, last, _ in kept]
        self._replacing_versions = [replacing_version for _, _, replacing_version in kept]
        older = [entry for entry in (*self.substitutes, *self.retirements) if entry.version < version]
        if self._searchable:  # for a search, summaries hide only summaries, and no freed version is one
            older = [entry for entry in older if entry.kind is not Kind.SUMMARY]
        for entry in sorted(older, key=_newest_first_key):
            for start, end in entry.replaces:
                for first, last in freed:
                    self._fill_span(max(first, start), min(last, end, entry.version - 1), entry.version)
        return True

    def _effects(self, entry: Entry) -> list[Entry]:
        """Return the list of entries with effect to which an entry belongs."""
        return self.substitutes if entry.kind in (Kind.MESSAGE, Kind.SUMMARY) else self.retirements

    def _hides_nothing(self, summary: Entry) -> bool:
        """Return whether a summary was erased or only a provider can read it; keep the latter for its provider."""
        if is_sealed(summary):
            self.sealed_summaries.append(summary)
            return True
        return summary.state is State.ERASED

    def replaced_by(self, version: int) -> int | None:
        """Return the version of the entry that made this one inactive, or None if it is active."""
        index = bisect_right(self._first_versions, version) - 1
        return (
            self._replacing_versions[index] if index >= 0 and version <= self._last_versions[index] else None
        )

    def edit_of(self, entry: Entry) -> Entry | None:
        """Return the active edit that is read instead of an entry, or None."""
        replacing_version = self.replaced_by(entry.version)
        if replacing_version is None:
            return None
        index = bisect_left(self.substitutes, -replacing_version, key=_newest_first_key)
        if index == len(self.substitutes) or self.substitutes[index].version != replacing_version:
            return None  # it was retracted
        edit = self.substitutes[index]
        return edit if edit.kind is Kind.MESSAGE else None

    def edits_of(self, entry: Entry) -> list[Entry]:
        """Return all edits of an entry, oldest first, also those that were undone."""
        span = entry.version, entry.version
        edits: list[Entry] = []
        for later in self.replacing_after(entry.version):
            if later.kind is Kind.MESSAGE and span in later.replaces:
                edits.append(later)
        return edits

    def __bool__(self) -> bool:
        """Return whether any version is inactive."""
        return bool(self._first_versions)

    def spans(self) -> list[Span]:
        """Return the inactive versions as disjoint ascending spans."""
        return list(zip(self._first_versions, self._last_versions, strict=True))

    def changes(self, summary: Entry) -> list[tuple[int, int, int]]:
        """Return the spans of a summary that became inactive after it, as (first, last, replacing version)."""
        changes: list[tuple[int, int, int]] = []
        for first, last in summary.replaces:
            changes += self._inactive_within(first, last)
        return [change for change in changes if change[2] > summary.version]

    def is_outdated(self, summary: Entry) -> bool:
        """Return whether a summary is outdated: an entry behind it was replaced or retracted later."""
        return bool(self.changes(summary))

    def spans_to_read(self, last: int) -> list[Span]:
        """Return the spans of versions up to `last` that have to be read: long inactive runs are left out."""
        to_read: list[Span] = []
        start = 1
        for first, end in join_spans(self.spans()):
            if end - first < LONG_RUN:
                continue
            to_read.append((start, min(first - 1, last)))
            start = end + 1
        to_read.append((start, last))
        return [(first, end) for first, end in to_read if first <= end]

    def _inactive_within(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield the inactive parts of a span, as (first, last, replacing version)."""
        firsts, lasts = self._first_versions, self._last_versions
        for index in range(bisect_left(lasts, first), bisect_right(firsts, last)):
            yield max(firsts[index], first), min(lasts[index], last), self._replacing_versions[index]

    def _overwrite_span(self, first: int, last: int, replacing_version: int) -> None:
        """Mark versions as replaced by an entry that is newer than all earlier replacements."""
        firsts, lasts, replacing = self._first_versions, self._last_versions, self._replacing_versions
        # Cut the spans that overlap. Of the first one a piece before this span may remain, of the last one a piece
        # after it.
        start, end = bisect_left(lasts, first), bisect_right(firsts, last)
        pieces = [(first, last, replacing_version)]
        if start < end and firsts[start] < first:
            pieces.insert(0, (firsts[start], first - 1, replacing[start]))
        if start < end and lasts[end - 1] > last:
            pieces.append((last + 1, lasts[end - 1], replacing[end - 1]))
        firsts[start:end], lasts[start:end], replacing[start:end] = zip(*pieces, strict=True)

    def _fill_span(self, first: int, last: int, replacing_version: int) -> None:
        """Mark versions as replaced by an entry, except those that a newer entry has replaced."""
        firsts, lasts = self._first_versions, self._last_versions
        while first <= last:
            index = bisect_right(firsts, first) - 1
            if index >= 0 and lasts[index] >= first:  # a newer entry has replaced these versions: skip them
                first = lasts[index] + 1
                continue
            following = bisect_left(firsts, first)
            end = min(last, firsts[following] - 1) if following < len(firsts) else last
            firsts.insert(following, first)
            lasts.insert(following, end)
            self._replacing_versions.insert(following, replacing_version)
            first = end + 1


def edit_and_end_lookup(replacements: Replacements) -> Callable[[int], tuple[Entry | None, Entry | None]]:
    """Return a function that returns the edit and the end of a message by its version.

    The edit is the entry read instead of the message, and the end the entry that retracted it; each may be None.
    `replacements` are those for searching, in which summaries end no message. For an ended message the edit is its
    newest one, even if that edit had been undone.
    """
    by_version = {entry.version: entry for entry in replacements.replacing}
    edits: dict[int, Entry] = {}
    for entry in replacements.replacing:
        if entry.kind is Kind.MESSAGE:
            edits.update((first, entry) for first, _ in entry.replaces)

    def find_edit_and_end(version: int) -> tuple[Entry | None, Entry | None]:
        replacing_version = replacements.replaced_by(version)
        if replacing_version is None:
            return None, None
        cause = by_version[replacing_version]
        return (cause, None) if cause.kind is Kind.MESSAGE else (edits.get(version), cause)

    return find_edit_and_end


def _newest_first_key(entry: Entry) -> int:
    return -entry.version


def _keeps_replaced(entry: Entry) -> bool:
    """Return whether the entries that a fact replaced stay inactive when an entry makes that fact inactive."""
    return entry.kind is Kind.FACT or (entry.kind is Kind.RETRACTION and entry.data.get("reason") in ENDED)


def _versions_in_spans(versions: Sequence[int], spans: Iterable[Span]) -> list[int]:
    """Return which of some ascending versions lie in one of some spans."""
    found: list[int] = []
    for first, last in spans:
        found += versions[bisect_left(versions, first) : bisect_right(versions, last)]
    return found


def join_spans(spans: Iterable[Span], max_gap: int = 0) -> list[Span]:
    """Join ascending spans that overlap, or that have at most `max_gap` versions between them."""
    joined: list[Span] = []
    for first, last in spans:
        if joined and first <= joined[-1][1] + 1 + max_gap:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined


def anchor_version(entry: Entry) -> int:
    """Return the version at which an entry is read: its own, or the first one it replaces."""
    if entry.replaces and entry.kind in (Kind.MESSAGE, Kind.SUMMARY):
        return min(first for first, _ in entry.replaces)
    return entry.version


def effective_sequence(
    entries: Sequence[Entry], replacements: Replacements, *, after: int = 0
) -> list[Entry]:
    """Return the effective sequence above a version; `entries` ascend and hold at least every entry above it.

    Erased and expired entries are left out. An answer that arrived after a summary replaced its call belongs to no tool
    group.
    """
    newer = [entry for entry in entries if entry.version > after] if after else entries
    sequence = [
        entry
        for entry in newer
        if entry.kind is Kind.MESSAGE and not entry.replaces and entry.state is State.LIVE
    ]
    if not replacements:
        return sequence
    sequence = [entry for entry in sequence if replacements.replaced_by(entry.version) is None]
    for entry in replacements.substitutes:
        if entry.state is State.LIVE and anchor_version(entry) > after:
            sequence.append(entry)
    groupless_versions = _find_answers_to_summarized(sequence, entries, replacements, after)
    for index, entry in enumerate(sequence):
        if entry.version in groupless_versions:
            sequence[index] = replace(entry, group=None)
    return sorted(sequence, key=lambda entry: (anchor_version(entry), entry.version))


def _find_answers_to_summarized(
    sequence: Sequence[Entry], entries: Sequence[Entry], replacements: Replacements, after: int
) -> set[int]:
    """Return the versions of active answers to calls that a summary replaced.

    For example, v3 calls a tool, a summary replaces v1 to v5, and the result of the call arrives later. `entries` may
    lack the versions of long inactive runs. A call that is missing there was replaced by a summary, unless a retraction
    made such a run, or entries up to `after` are missing too.
    """
    summaries = {entry.version for entry in replacements.substitutes if entry.kind is Kind.SUMMARY}
    grouped = [entry for entry in sequence if entry.group is not None]
    calling_groups = {entry.group for entry in grouped if _has_tool_calls(entry)}
    answers = [entry for entry in grouped if entry.group not in calling_groups]
    if not summaries or not answers:
        return set()
    call_versions = {
        entry.group: entry.version for entry in entries if entry.group and _has_tool_calls(entry)
    }
    missing_is_summarized = not after and not _has_long_retraction(replacements)
    answers_to_summarized: set[int] = set()
    for answer in answers:
        call_version = call_versions.get(answer.group or "")
        if call_version is not None:
            is_summarized = replacements.replaced_by(call_version) in summaries
        else:
            is_summarized = missing_is_summarized and min(summaries) < answer.version
        if is_summarized:
            answers_to_summarized.add(answer.version)
    return answers_to_summarized


def _has_long_retraction(replacements: Replacements) -> bool:
    """Return whether a retraction made a run of versions inactive that reads of the log skip."""
    for entry in replacements.retirements:
        if entry.kind is Kind.RETRACTION and any(last - first >= LONG_RUN for first, last in entry.replaces):
            return True
    return False


def _has_tool_calls(entry: Entry) -> bool:
    return any(isinstance(part, ToolCall) for part in entry.parts)


class IndexedEntry(NamedTuple):
    """An entry as a recall index holds it: all fields that planning needs, without the text."""

    id: str
    version: int
    kind: Kind
    role: Role | None
    actor: str | None
    markers: tuple[str, ...]
    tokens: int
    episode: int
    group: str | None
    parts: tuple[Part, ...] = ()
    #: Whether it is external text, or was made from external text.
    external: bool = False


E = TypeVar("E", Entry, IndexedEntry)


class EntryGroup(NamedTuple, Generic[E]):
    """Entries, or their records in an index, that are shown together or not at all, in the order they are read."""

    entries: tuple[E, ...]
    #: False for a tool group some of whose calls have no answer yet.
    complete: bool = True

    @property
    def version(self) -> int:
        """Version of its newest entry."""
        return max(entry.version for entry in self.entries)

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers of all its entries."""
        return tuple(dict.fromkeys(marker for entry in self.entries for marker in entry.markers))


class SingleEntryGroup:
    """A group of one indexed entry, which is read from the index on first access.

    It has the attributes of an `EntryGroup`; most entries that an index finds are never read.
    """

    __slots__ = ("_entries", "_read_entry", "markers", "version")
    complete = True

    def __init__(
        self, read_entry: Callable[[int], IndexedEntry], version: int, markers: tuple[str, ...]
    ) -> None:
        self._read_entry = read_entry
        self.version = version
        self.markers = markers
        self._entries: tuple[IndexedEntry, ...] | None = None

    @property
    def entries(self) -> tuple[IndexedEntry, ...]:
        """The only entry of the group, as a tuple."""
        entries = self._entries
        if entries is None:
            entries = self._entries = (
                self._read_entry(self.version - 1),
            )  # versions begin at 1, documents at 0
        return entries

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SingleEntryGroup):
            return self.entries == other.entries
        # An `EntryGroup` is a tuple of its entries and whether it is complete.
        return isinstance(other, tuple) and (self.entries, True) == other

    def __repr__(self) -> str:
        return f"SingleEntryGroup(entries={self.entries!r})"


@dataclass(frozen=True, slots=True)
class EntryGroups:
    """A sequence of entries, folded into groups that are shown together or not at all."""

    units: list[EntryGroup[Entry]]
    #: Entries that cannot be shown, and why.
    hidden: list[tuple[Entry, str]]
    #: Entries whose tool call lies before the sequence: read further back to place them.
    unresolved: list[Entry]


def find_older_summaries(units: Sequence[EntryGroup[Entry]], replacements: Replacements) -> list[Entry]:
    """Return the active summaries that are not among some units, in reading order."""
    shown_ids = {entry.id for unit in units for entry in unit.entries}
    summaries: list[Entry] = []
    for entry in replacements.substitutes:
        if entry.kind is Kind.SUMMARY and entry.state is State.LIVE and entry.id not in shown_ids:
            summaries.append(entry)
    return sorted(summaries, key=anchor_version)


NO_CALL = "its tool call is not active"
"""Why the answer of a tool cannot be shown."""


def fold_atomic_groups(sequence: Sequence[Entry], *, whole: bool) -> EntryGroups:
    """Fold an effective sequence into groups; `whole` is true if it starts at the beginning of the log.

    A tool group is positioned at its newest answer, so nothing before it moves when a late answer arrives. A group with
    open calls is shown too: its text, and the results received so far. If the call of an answer is missing, the answer
    cannot be shown, or is unresolved if the call may lie before the sequence.
    """
    groups: dict[str, list[Entry]] = {}
    for entry in sequence:
        if entry.group is not None:
            groups.setdefault(entry.group, []).append(entry)
    units: list[EntryGroup[Entry]] = []
    hidden: list[tuple[Entry, str]] = []
    unresolved: list[Entry] = []
    for entry in sequence:
        if entry.group is None:
            units.append(EntryGroup((entry,)))
            continue
        members = groups[entry.group]
        if entry is not members[-1]:  # the group is placed at its last member
            continue
        made_ids, answered_ids = _call_ids(members)
        if made_ids:
            units.append(EntryGroup(tuple(members), complete=made_ids <= answered_ids))
        elif whole:
            hidden += [(member, NO_CALL) for member in members]
        else:
            unresolved += members
    return EntryGroups(units, hidden, unresolved)


def _call_ids(members: Iterable[Entry]) -> tuple[set[str], set[str]]:
    """Return the ids of the calls that some entries make, and the ids of the calls that they answer."""
    made_ids: set[str] = set()
    answered_ids: set[str] = set()
    for member in members:
        for part in member.parts:
            if isinstance(part, ToolCall):
                made_ids.add(part.call_id)
            elif isinstance(part, ToolResult):
                answered_ids.add(part.call_id)
    return made_ids, answered_ids


def group_spans(target: Entry, members: Iterable[Entry]) -> tuple[Span, ...]:
    """Return the spans that the retraction of an entry makes inactive: the entry and its whole tool group.

    For an edit in the group, the spans it replaced are included; otherwise they would become active again.
    """
    spans = {(target.version, target.version)}
    for entry in members:
        is_in_group = target.group is not None and entry.group == target.group
        if is_in_group and entry.version != target.version:
            spans.update(entry.replaces, [(entry.version, entry.version)])
    return tuple(sorted(spans))


def rendered_role(entry: Entry | IndexedEntry) -> Role | None:
    """Return the role under which an entry is shown.

    A tool result without a call is shown as user text. So is a message with an instructing role but without the trust
    that such a role requires.
    """
    if entry.role is Role.TOOL and entry.group is None:
        return Role.USER
    if isinstance(entry, Entry) and entry.role in LEADING and not is_instruction(entry):
        return Role.USER
    return entry.role


FACT = "fact"
"""The speaker of a fact in a prompt."""


def display_name_of(entry: Entry | IndexedEntry) -> str | None:
    """Return the name under which an entry is shown, or None if its role is shown instead."""
    return FACT if entry.kind is Kind.FACT else entry.actor


def preview_text(content: str, length: int = 100) -> str:
    """Return the start of a text on one line."""
    line = " ".join(content[: 4 * length].split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


class Demotion(NamedTuple):
    """The reason why one message is outdated, and the parts of it that are still valid."""

    #: The entry that replaced or ended its content, in words, and the version of that entry.
    by: str
    version: int
    #: Characters of its content that are still valid; empty if none are.
    spans: tuple[Span, ...]


class Demotions:
    """The demoted messages that one log knows of. The profile of a namespace knows of messages in other logs too."""

    __slots__ = ("_demoted", "_profile", "_versions", "is_of_one_log")

    def __init__(
        self,
        demoted: Mapping[str, tuple[int, tuple[Span, ...]]],
        *,
        profile: bool = False,
        versions: Collection[int] | None = None,
    ) -> None:
        #: By message id: the version of the entry that demoted it, and the characters of it that are still valid.
        self._demoted = demoted
        self._profile = profile
        #: Whether all messages are of the log that knows of them, so that their versions compare with its own.
        self.is_of_one_log = not profile and versions is None
        #: Versions of the messages, or their numbers in an index of many logs: these are known without reading them.
        self._versions: Collection[int] = set() if versions is None else versions
        if versions is None:
            origins = [parse_entry_id(id) for id in demoted]
            self._versions = {origin[1] for origin in origins if origin is not None}

    def __bool__(self) -> bool:
        """Return whether any message is demoted."""
        return bool(self._demoted)

    def may_include(self, version: int) -> bool:
        """Return whether a message of this version may be demoted."""
        return version in self._versions

    def as_profile(self) -> Demotions:
        """Return the same demotions as those that the profile of a namespace knows."""
        return Demotions(self._demoted, profile=True) if self._demoted else self

    def merge_for_index(
        self, others: Iterable[Demotions], find_document: Callable[[str], int | None]
    ) -> Demotions:
        """Return the demotions that this log and others know, for an index of many logs.

        `find_document` returns the number of a document in that index by message id, or None. In such an index a
        document has its number plus one in place of a version.
        """
        demoted: dict[str, tuple[int, tuple[Span, ...]]] = {}
        for demotions in (*others, self):
            demoted |= demotions._demoted
        documents = [find_document(id) for id in demoted]
        versions = {document + 1 for document in documents if document is not None}
        return Demotions(demoted, profile=self._profile, versions=versions) if demoted else NO_DEMOTIONS

    def demotion_by(self, version: int) -> Demotion:
        """Return a demotion by the entry at a version, for a message that only repeats a demoted one."""
        return self._demote(version, ())

    def find_demotion(self, entries: Iterable[IndexedEntry | Entry]) -> Demotion | None:
        """Return the demotion of the first demoted entry, or None."""
        for entry in entries:
            # The version is compared first: it is known without reading the document.
            if entry.version in self._versions and entry.id in self._demoted:
                return self._demote(*self._demoted[entry.id])
        return None

    def _demote(self, version: int, spans: tuple[Span, ...]) -> Demotion:
        by = f"v{version} of the profile" if self._profile else f"v{version}"
        return Demotion(by, version, spans)


NO_DEMOTIONS = Demotions({})


def find_demotions(replacements: Replacements) -> Demotions:
    """Return the demotions by the entries with effect; undoing such an entry also undoes its demotions."""
    demoted: dict[str, tuple[int, tuple[Span, ...]]] = {}
    for entry in replacements.retirements:  # the newest first
        for id, written in entry.data.get("demotes", ()):
            spans = tuple((start, end) for start, end in written)
            if id in demoted:
                newest_version, newer_spans = demoted[id]
                demoted[id] = newest_version, _intersect_spans(newer_spans, spans)
            else:
                demoted[id] = entry.version, spans
    return Demotions(demoted) if demoted else NO_DEMOTIONS


def _intersect_spans(left: Sequence[Span], right: Sequence[Span]) -> tuple[Span, ...]:
    """Return the intersection of two ascending lists of spans."""
    common: list[Span] = []
    for left_start, left_end in left:
        for right_start, right_end in right:
            start, end = max(left_start, right_start), min(left_end, right_end)
            if start < end:
                common.append((start, end))
    return tuple(sorted(common))
