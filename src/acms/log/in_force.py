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
"""Adjacent inactive versions that are worth skipping when a log is read."""
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


def is_record(entry: Entry) -> bool:
    """Whether an entry is the record of a merge."""
    return entry.kind is Kind.RETRACTION and entry.data.get("reason") == MERGED and SEEN in entry.data


ASKED = "asked"
"""Key in the data of a summary: whether a caller asked for it; False when an append did, to stay in its budget."""


def is_automatic_summary(entry: Entry) -> bool:
    """Return whether a summary was requested only by an append: a prompt may omit it for a while."""
    return entry.kind is Kind.SUMMARY and entry.data.get(ASKED) is False


def is_sealed(entry: Entry) -> bool:
    """Return whether an entry is a summary that only its provider can read."""
    return entry.kind is Kind.SUMMARY and not entry.content and bool(entry.parts)


class Replacements:
    """The inactive versions of a log, and the entry that replaced or retracted each of them."""

    __slots__ = ("_by", "_first", "_last", "_searchable", "replacing", "retiring", "sealed", "shown")

    def __init__(self, replacing: Iterable[Entry], *, searchable: bool = False) -> None:
        """Collect the replacements from every entry up to a version that replaces others.

        The newest entry takes precedence: an entry that is itself replaced has no effect, so undoing a summary makes
        its span active again. Facts are an exception: entries replaced by a superseded or ended fact stay inactive.
        An erased summary counts as undone; so does an erased fact that was not superseded. `searchable` asks which
        entries can still be found: a summary then hides only earlier summaries, and the messages behind them are found
        in their original wording.
        """
        self._searchable = searchable
        #: The entries it was built from, oldest first.
        self.replacing = sorted(replacing, key=_version)
        #: Disjoint ascending spans of inactive versions: first and last version, and the entry that replaced them.
        self._first: list[int] = []
        self._last: list[int] = []
        self._by: list[int] = []
        #: Active edits and summaries, newest first, which are read at the first version they replace.
        self.shown: list[Entry] = []
        #: Facts and retractions with effect, newest first: they retire facts.
        self.retiring: list[Entry] = []
        #: Active summaries that only a provider can read, newest first: for all others they hide nothing.
        self.sealed: list[Entry] = []
        # Versions of entries that end or supersede a fact: what that fact replaced stays inactive.
        keeping: set[int] = set()
        summaries = [entry.version for entry in self.replacing if entry.kind is Kind.SUMMARY]
        for entry in reversed(self.replacing):
            if not self._has_effect(entry, keeping):
                continue
            if _keeps_replaced(entry):
                keeping.add(entry.version)
            if searchable and entry.kind is Kind.SUMMARY:
                for version in _versions_in_spans(summaries, entry.replaces):
                    self._add(version, version, entry.version)
            else:
                for first, last in entry.replaces:
                    self._add(first, min(last, entry.version - 1), entry.version)
            self._effects(entry).append(entry)

    def _has_effect(self, entry: Entry, keeping: Set[int]) -> bool:
        """Whether an entry still replaces others.

        A fact that was itself replaced still does if the entry that replaced it is among `keeping`.
        """
        by = self.replaced_by(entry.version)
        if entry.kind is Kind.FACT:
            is_erased = entry.state is State.ERASED
            return by in keeping if by is not None else not is_erased
        if by is not None:
            return False
        return entry.kind is not Kind.SUMMARY or not self._hides_nothing(entry)

    def apply_newer(self, newer: Sequence[Entry]) -> Replacements:
        """Return new replacements with newer entries, oldest first, applied too.

        The result equals the replacements collected from all entries. Only the newer ones are processed, unless they
        may reactivate older entries.
        """
        replacements = copy(self)
        for name in ("_by", "_first", "_last", "replacing", "retiring", "sealed", "shown"):
            setattr(replacements, name, list(getattr(self, name)))
        for entry in newer:
            was_applied = replacements._try_to_apply(entry)
            if not was_applied:
                return Replacements([*self.replacing, *newer], searchable=self._searchable)
        return replacements

    def batch(self, entry: Entry) -> list[Entry]:
        """Return the replacing entries that were appended after an entry, in the same append."""
        return [one for one in self.after(entry.version) if one.batch == entry.batch]

    def after(self, version: int) -> list[Entry]:
        """Return the replacing entries after a version, oldest first."""
        return self.replacing[bisect_right(self.replacing, version, key=_version) :]

    def asked(self, began: int) -> Replacements:
        """Return the replacements without the automatic summaries after the version `began`."""
        if not any(map(is_automatic_summary, self.after(began))):
            return self
        effective = [one for one in self.replacing if one.version <= began or not is_automatic_summary(one)]
        return Replacements(effective, searchable=self._searchable)

    def _try_to_apply(self, entry: Entry) -> bool:
        """Apply the newest entry; return False if older entries may become active again: only a rebuild finds them."""
        if entry.kind is Kind.SUMMARY or entry.state is State.ERASED:
            return False  # so seldom that a rebuild does no harm
        ended: list[Entry] = []
        for first, last in entry.replaces:
            last = min(last, entry.version - 1)
            ended += self._replacing_within(first, last)
            self._put(first, last, entry.version)
        if not all(self._end(old, entry) for old in ended):
            return False
        self._effects(entry).insert(0, entry)
        self.replacing.append(entry)
        return True

    def _replacing_within(self, first: int, last: int) -> list[Entry]:
        start = bisect_left(self.replacing, first, key=_version)
        return self.replacing[start : bisect_right(self.replacing, last, key=_version)]

    def _end(self, old: Entry, newer: Entry) -> bool:
        """Remove the effect of an entry that a newer one replaced; False if older entries may become active again."""
        effects = self._effects(old)
        index = bisect_left(effects, -old.version, key=_newest_first_key)
        has_effect = index < len(effects) and effects[index] is old
        if old.kind is Kind.FACT and _keeps_replaced(newer):
            return has_effect
        if old.kind is Kind.SUMMARY:
            return False  # so seldom that a rebuild does no harm
        if not has_effect:
            return True
        del effects[index]
        return old.version not in self._by or self._give_back(old.version)

    def _give_back(self, version: int) -> bool:
        """Reassign the versions an entry replaced to older replacements; False if one of these may take effect."""
        spans = list(zip(self._first, self._last, self._by, strict=True))
        freed = [(first, last) for first, last, by in spans if by == version]
        if any(self._replacing_within(first, last) for first, last in freed):
            return False
        kept = [span for span in spans if span[2] != version]
        self._first = [first for first, _, _ in kept]
        self._last = [last for _, last, _ in kept]
        self._by = [by for _, _, by in kept]
        older = [entry for entry in (*self.shown, *self.retiring) if entry.version < version]
        if self._searchable:
            older = [entry for entry in older if entry.kind is not Kind.SUMMARY]
        for entry in sorted(older, key=_newest_first_key):
            for start, end in entry.replaces:
                for first, last in freed:
                    self._add(max(first, start), min(last, end, entry.version - 1), entry.version)
        return True

    def _effects(self, entry: Entry) -> list[Entry]:
        """Return the list of entries with effect to which an entry belongs."""
        return self.shown if entry.kind in (Kind.MESSAGE, Kind.SUMMARY) else self.retiring

    def _hides_nothing(self, summary: Entry) -> bool:
        """Return whether a summary was erased, or can be read by a provider alone; the latter is remembered."""
        if is_sealed(summary):
            self.sealed.append(summary)
            return True
        return summary.state is State.ERASED

    def replaced_by(self, version: int) -> int | None:
        """Return the version of the entry that made this one inactive, or None if it is active."""
        index = bisect_right(self._first, version) - 1
        return self._by[index] if index >= 0 and version <= self._last[index] else None

    def edit_of(self, entry: Entry) -> Entry | None:
        """Return the active edit that is read instead of an entry, or None."""
        by = self.replaced_by(entry.version)
        if by is None:
            return None
        index = bisect_left(self.shown, -by, key=_newest_first_key)
        if index == len(self.shown) or self.shown[index].version != by:
            return None
        edit = self.shown[index]
        return edit if edit.kind is Kind.MESSAGE else None

    def edits(self, entry: Entry) -> list[Entry]:
        """Return all edits of an entry, oldest first, also those that were undone."""
        span = entry.version, entry.version
        return [one for one in self.after(entry.version) if one.kind is Kind.MESSAGE and span in one.replaces]

    def __bool__(self) -> bool:
        """Whether any version is inactive."""
        return bool(self._first)

    def spans(self) -> list[Span]:
        """Return the inactive versions as disjoint ascending spans."""
        return list(zip(self._first, self._last, strict=True))

    def changes(self, summary: Entry) -> list[tuple[int, int, int]]:
        """Return the spans of a summary that became inactive after it, as (first, last, replacing version)."""
        changes: list[tuple[int, int, int]] = []
        for first, last in summary.replaces:
            changes += self._inside(first, last)
        return [change for change in changes if change[2] > summary.version]

    def outdates(self, summary: Entry) -> bool:
        """Return whether an entry that a summary replaced has been replaced or retracted after it."""
        return bool(self.changes(summary))

    def stretches(self, last: int) -> list[Span]:
        """Return the spans of versions up to `last` that have to be read: long inactive runs are left out."""
        stretches: list[Span] = []
        start = 1
        for first, end in _join_spans(self.spans()):
            if end - first < LONG_RUN:
                continue
            stretches.append((start, min(first - 1, last)))
            start = end + 1
        stretches.append((start, last))
        return [(first, end) for first, end in stretches if first <= end]

    def _inside(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield the inactive parts of a span, as (first, last, replacing version)."""
        for at in range(bisect_left(self._last, first), bisect_right(self._first, last)):
            yield max(self._first[at], first), min(self._last[at], last), self._by[at]

    def _put(self, first: int, last: int, by: int) -> None:
        """Mark versions as inactive because of the entry `by`, which is newer than all earlier replacements."""
        # Cut the spans that overlap: what is left of the first one before, and of the last one behind.
        start, end = bisect_left(self._last, first), bisect_right(self._first, last)
        cut = [(first, last, by)]
        if start < end and self._first[start] < first:
            cut.insert(0, (self._first[start], first - 1, self._by[start]))
        if start < end and self._last[end - 1] > last:
            cut.append((last + 1, self._last[end - 1], self._by[end - 1]))
        self._first[start:end], self._last[start:end], self._by[start:end] = zip(*cut, strict=True)

    def _add(self, first: int, last: int, by: int) -> None:
        """Mark versions as replaced by the entry `by`, except those that a newer entry has replaced."""
        while first <= last:
            index = bisect_right(self._first, first) - 1
            if index >= 0 and self._last[index] >= first:
                first = self._last[index] + 1
                continue
            following = bisect_left(self._first, first)
            end = min(last, self._first[following] - 1) if following < len(self._first) else last
            self._first.insert(following, first)
            self._last.insert(following, end)
            self._by.insert(following, by)
            first = end + 1


def read_as(replacements: Replacements) -> Callable[[int], tuple[Entry | None, Entry | None]]:
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

    def read(version: int) -> tuple[Entry | None, Entry | None]:
        by = replacements.replaced_by(version)
        if by is None:
            return None, None
        cause = by_version[by]
        return (cause, None) if cause.kind is Kind.MESSAGE else (edits.get(version), cause)

    return read


def _newest_first_key(entry: Entry) -> int:
    return -entry.version


def _keeps_replaced(entry: Entry) -> bool:
    """Whether the entries that a fact replaced stay inactive when an entry makes that fact inactive."""
    return entry.kind is Kind.FACT or (entry.kind is Kind.RETRACTION and entry.data.get("reason") in ENDED)


def _versions_in_spans(versions: Sequence[int], spans: Iterable[Span]) -> list[int]:
    """Return which of some ascending versions lie in one of some spans."""
    found: list[int] = []
    for first, last in spans:
        found += versions[bisect_left(versions, first) : bisect_right(versions, last)]
    return found


def _join_spans(found: Iterable[Span]) -> list[Span]:
    """Join spans that follow each other without a gap."""
    joined: list[Span] = []
    for first, last in found:
        if joined and joined[-1][1] + 1 == first:
            joined[-1] = (joined[-1][0], last)
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
    for entry in replacements.shown:
        if entry.state is State.LIVE and anchor_version(entry) > after:
            sequence.append(entry)
    alone = _find_answers_to_summarized(sequence, entries, replacements, after)
    sequence = [replace(entry, group=None) if entry.version in alone else entry for entry in sequence]
    return sorted(sequence, key=lambda entry: (anchor_version(entry), entry.version))


def _find_answers_to_summarized(
    sequence: Sequence[Entry], entries: Sequence[Entry], replacements: Replacements, after: int
) -> set[int]:
    """Return the versions of active answers to calls that a summary replaced.

    `entries` may lack the versions of long inactive runs. A call that is missing there was replaced by a summary,
    unless a retraction made such a run, or entries up to `after` are missing too.
    """
    summaries = {entry.version for entry in replacements.shown if entry.kind is Kind.SUMMARY}
    grouped = [entry for entry in sequence if entry.group is not None]
    called = {entry.group for entry in grouped if _has_tool_calls(entry)}
    answers = [entry for entry in grouped if entry.group not in called]
    if not summaries or not answers:
        return set()
    calls = {entry.group: entry.version for entry in entries if entry.group and _has_tool_calls(entry)}
    retracted: list[Span] = []
    for entry in replacements.retiring:
        if entry.kind is Kind.RETRACTION:
            retracted += entry.replaces
    unread_is_summarized = not after and all(last - first < LONG_RUN for first, last in retracted)
    alone: set[int] = set()
    for entry in answers:
        call = calls.get(entry.group or "")
        if call is not None:
            is_summarized = replacements.replaced_by(call) in summaries
        else:
            is_summarized = unread_is_summarized and min(summaries) < entry.version
        if is_summarized:
            alone.add(entry.version)
    return alone


def _has_tool_calls(entry: Entry) -> bool:
    return any(isinstance(part, ToolCall) for part in entry.parts)


class IndexedEntry(NamedTuple):
    """An entry as the index knows it: everything that planning asks of it but the text."""

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
    #: Whether it is external text, or was made from some.
    external: bool = False


E = TypeVar("E", Entry, IndexedEntry)


class EntryGroup(NamedTuple, Generic[E]):
    """Entries that are shown together or not at all, in the order they are read, or their documents from the index."""

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


class Lone:
    """A unit of one indexed entry, which is read from the index on first access."""

    __slots__ = ("_entries", "_read", "markers", "version")
    complete = True

    def __init__(self, read: Callable[[int], IndexedEntry], version: int, markers: tuple[str, ...]) -> None:
        self._read = read
        self.version = version
        self.markers = markers
        self._entries: tuple[IndexedEntry, ...] | None = None

    @property
    def entries(self) -> tuple[IndexedEntry, ...]:
        """Return its entry."""
        found = self._entries
        if found is None:
            found = self._entries = (self._read(self.version - 1),)
        return found

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Lone):
            return self.entries == other.entries
        return isinstance(other, tuple) and (self.entries, True) == other

    def __repr__(self) -> str:
        return f"Lone(entries={self.entries!r})"


@dataclass(frozen=True, slots=True)
class EntryGroups:
    """A sequence as units."""

    units: list[EntryGroup[Entry]]
    #: Entries that cannot be shown, and why.
    hidden: list[tuple[Entry, str]]
    #: Entries whose tool call lies before the sequence: read further back to place them.
    unresolved: list[Entry]


NO_CALL = "its tool call is not in force"
"""Why the answer of a tool cannot be shown."""


def fold_atomic_groups(sequence: Sequence[Entry], *, whole: bool) -> EntryGroups:
    """Fold an effective sequence into units; `whole` is true if it starts at the beginning of the log.

    A tool group is positioned at its newest answer, so nothing before it moves when a late answer arrives. A group with
    open calls is shown too: its text, and the results received so far.
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
        if entry is not members[-1]:
            continue
        calls, answered = _call_ids(members)
        if calls:
            units.append(EntryGroup(tuple(members), complete=calls <= answered))
        elif whole:
            hidden += [(member, NO_CALL) for member in members]
        else:
            unresolved += members
    return EntryGroups(units, hidden, unresolved)


def _call_ids(members: Iterable[Entry]) -> tuple[set[str], set[str]]:
    """Return the ids of the calls that some entries make, and of those that they answer."""
    calls: set[str] = set()
    answered: set[str] = set()
    for member in members:
        for part in member.parts:
            if isinstance(part, ToolCall):
                calls.add(part.call_id)
            elif isinstance(part, ToolResult):
                answered.add(part.call_id)
    return calls, answered


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


class Stale:
    """The demoted messages that one log knows of; also of other logs, when it is the profile of a namespace."""

    __slots__ = ("_demoted", "_profile", "_versions", "alone")

    def __init__(
        self,
        demoted: Mapping[str, tuple[int, tuple[Span, ...]]],
        *,
        profile: bool = False,
        versions: Collection[int] | None = None,
    ) -> None:
        #: By message id: version of the entry that demoted it, and characters of it that are still valid.
        self._demoted = demoted
        self._profile = profile
        #: Whether all are of the log that knows of them, so that their versions compare with its own.
        self.alone = not profile and versions is None
        #: A message is looked up by its version, or by where an index of many logs has it: that needs no reading of it.
        self._versions: Collection[int] = set() if versions is None else versions
        if versions is None:
            places = [parse_entry_id(id) for id in demoted]
            self._versions = {place[1] for place in places if place is not None}

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._demoted)

    def holds(self, version: int) -> bool:
        """Whether a message of this version may be demoted."""
        return version in self._versions

    def as_profile(self) -> Stale:
        """Return the same as what the profile of a namespace knows."""
        return Stale(self._demoted, profile=True) if self._demoted else self

    def of_many(self, others: Iterable[Stale], find: Callable[[str], int | None]) -> Stale:
        """Return the demotions that this log and others know, for an index of many logs.

        `find` returns the number of a document in that index by message id, or None. In such an index `holds` and `of`
        are asked for the document's number plus one instead of a version.
        """
        demoted: dict[str, tuple[int, tuple[Span, ...]]] = {}
        for one in (*others, self):
            demoted |= one._demoted
        documents = [find(id) for id in demoted]
        versions = {document + 1 for document in documents if document is not None}
        return Stale(demoted, profile=self._profile, versions=versions) if demoted else NONE

    def since(self, version: int) -> Demotion:
        """Return a demotion by the entry at a version, for a message that only repeats a demoted one."""
        return self._demote(version, ())

    def of(self, docs: Iterable[IndexedEntry | Entry]) -> Demotion | None:
        """Return the demotion of the first demoted entry, or None."""
        for doc in docs:
            # The version comes first, since it needs no reading of the document.
            if doc.version in self._versions and doc.id in self._demoted:
                return self._demote(*self._demoted[doc.id])
        return None

    def _demote(self, version: int, spans: tuple[Span, ...]) -> Demotion:
        by = f"v{version} of the profile" if self._profile else f"v{version}"
        return Demotion(by, version, spans)


NONE = Stale({})


def find_demotions(replacements: Replacements) -> Stale:
    """Return the demotions of the entries with effect: undoing one of them restores everything."""
    demoted: dict[str, tuple[int, tuple[Span, ...]]] = {}
    for entry in replacements.retiring:  # the newest first
        for id, written in entry.data.get("demotes", ()):
            spans = tuple((start, end) for start, end in written)
            if id in demoted:
                by, newer_spans = demoted[id]
                demoted[id] = by, _intersect_spans(newer_spans, spans)
            else:
                demoted[id] = entry.version, spans
    return Stale(demoted) if demoted else NONE


def _intersect_spans(left: Sequence[Span], right: Sequence[Span]) -> tuple[Span, ...]:
    """Return the intersection of two ascending lists of spans."""
    cut: list[Span] = []
    for left_start, left_end in left:
        for right_start, right_end in right:
            start, end = max(left_start, right_start), min(left_end, right_end)
            if start < end:
                cut.append((start, end))
    return tuple(sorted(cut))
