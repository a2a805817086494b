"""A three-way merge: find the changes of the other side since this one last saw it, and those that conflict.

Each side is compared with its *base*: its state as the other side last saw it, which is the fork point for a fork that
was never merged. "Ours" is the side that is merged into, "theirs" the other one. An entry is the same on both sides if
it was first written at the same position; for a message this position is its *slot*. Messages are decided one by one,
or by tool group (the messages of parallel tool calls and their results); facts by their address (subject and attribute)
if it holds one value, else one by one. Pure; `merge_drafts` turns a plan into log entries.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from acms.log import trust
from acms.log.active_entries import Replacements, anchor_version
from acms.log.encoding import parse_entry_id
from acms.log.facts import Address, FactHistory, address_of, has_address
from acms.log.merges import KEPT, MergeConflict, Merges, MergeStrategy, Origin, Vector, vector_covers
from acms.model import Entry, Kind, Span, State


@dataclass(frozen=True, slots=True)
class Slot:
    """The position of one message in one log."""

    #: As it was first written in this log.
    entry: Entry
    #: The entry active there now, and the one that the other side last saw there.
    current: Entry | None
    base: Entry | None
    #: Whether this log has resolved a conflict by leaving it as it is, which the other side does not know.
    is_kept: bool = False

    @property
    def changed(self) -> bool:
        """Whether the message has another content than the other side last saw, or was kept in a conflict."""
        return self.is_kept or message_comparison_key(self.current) != message_comparison_key(self.base)

    @property
    def moved(self) -> bool:
        """Whether the message became active or inactive since the other side last saw it."""
        return (self.current is None) != (self.base is None)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The message and its active edit."""
        if self.current is None or self.current is self.entry:
            return (self.entry,)
        return (self.entry, self.current)


def message_comparison_key(entry: Entry | None) -> Hashable:
    """Return the content of a message, equal for two messages that say the same."""
    return None if entry is None else (entry.role, entry.content, entry.parts)


def fact_comparison_key(entry: Entry | None) -> Hashable:
    """Return a key that is equal for two facts that say the same: value, negation and validity."""
    if entry is None:
        return None
    data = entry.data
    value = data.get("value") or entry.content
    return value, data.get("negative") is True, data.get("valid_from"), data.get("valid_to")


class MergeSide:
    """One side of a merge."""

    def __init__(
        self,
        context: str,
        runs: Sequence[tuple[str, int, int]],
        common: int,
        *,
        replacing: Sequence[Entry],
        entries: Sequence[Entry],
        facts: Sequence[Entry],
        retractions: Sequence[Entry],
    ) -> None:
        """Take all replacing entries, facts and retractions, and the other entries to compare; each list ascending."""
        self.context = context
        self.common = common
        self.entries = entries
        self.replacing = {entry.version: entry for entry in replacing}
        self.replacements = Replacements(replacing, searchable=True)
        self.merges = Merges(retractions, self.replacements)
        #: The versions of every context that this side has seen.
        self.seen: Vector = self.merges.vector(runs)
        self.facts = facts
        self.current_facts = FactHistory(facts, self.replacements)

    def compare(self, known: Vector) -> None:
        """Build the slots, one for each message, and the base facts.

        The base is what the other side last saw of this log: all that `known` covers.
        """
        self._known = known
        known_replacing = self._select_known(self.replacing.values())
        self._base_replacements = self.replacements
        if len(known_replacing) < len(self.replacing):
            self._base_replacements = Replacements(known_replacing, searchable=True)
        self.base_facts = FactHistory(self._select_known(self.facts), self._base_replacements)
        # Messages that this side kept in the conflicts of merges that the other side does not know.
        kept_here: set[Origin | None] = set()
        for record in self.merges.effective:
            if not vector_covers(known, self.origin(record)):
                kept_here.update(map(parse_entry_id, record.data.get(KEPT, ())))
        self.slots: dict[Origin, Slot] = {}
        for entry in self.entries:
            if entry.kind is Kind.MESSAGE and not entry.replaces:
                self.slots[self.origin(entry)] = self._build_slot(entry, kept_here)

    def _select_known(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries that the other side has seen, without those of a merge that was undone."""
        return [
            entry
            for entry in entries
            if vector_covers(self._known, self.origin(entry)) and not self.is_undone(entry)
        ]

    def _build_slot(self, entry: Entry, kept_here: set[Origin | None]) -> Slot:
        """Return the slot of an original message, with the entries active there now and as the other side knows it."""
        base = None
        if vector_covers(self._known, self.origin(entry)):
            base = self._find_active(entry, self._base_replacements)
        current = self._find_active(entry, self.replacements)
        return Slot(entry, current, base, (entry.context, entry.version) in kept_here)

    def _find_active(self, entry: Entry, replacements: Replacements) -> Entry | None:
        """Return the message that is active at the position of an entry, or None."""
        replacing_version = replacements.replaced_by(entry.version)
        if replacing_version is not None:
            active = self.replacing.get(replacing_version)
        elif self.is_undone(entry):
            active = None
        else:
            active = entry
        if active is None or active.kind is not Kind.MESSAGE or active.state is not State.LIVE:
            return None
        return active

    def origin(self, entry: Entry) -> Origin:
        """Return where an entry was first written."""
        return self.merges.origin(entry)

    def is_undone(self, entry: Entry) -> bool:
        """Return whether an entry of this side came with a merge that was undone, so that it does not count."""
        return entry.version > self.common and self.merges.is_undone(entry)

    def find_retraction(self, entry: Entry) -> Entry | None:
        """Return the retraction that made an entry inactive, or None if there is none."""
        replacing_entry = self.replacing.get(self.replacements.replaced_by(entry.version) or 0)
        if replacing_entry is None or replacing_entry.kind is not Kind.RETRACTION:
            return None
        return replacing_entry


def find_touched_spans(replacing: Sequence[Entry], common: int) -> list[Span]:
    """Return the spans up to the common version that a side's own entries made inactive or active again.

    `replacing` are all entries of the side that replace others. An entry that is made inactive makes the spans that it
    had replaced active again, so these are followed too.
    """
    pending = [span for entry in replacing if entry.version > common for span in entry.replaces]
    touched: set[Span] = set()
    while pending:
        span = pending.pop()
        if span in touched:
            continue
        touched.add(span)
        for entry in replacing:
            if span[0] <= entry.version <= span[1]:
                pending += entry.replaces
    return sorted((first, min(last, common)) for first, last in touched if first <= common)


# ── the plan of a merge ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Pair:
    """One message on both sides."""

    theirs: Slot | None
    ours: Slot | None
    #: Whether this side has seen the message. If it has no slot for it, it has left the message out.
    seen_here: bool
    #: Whether both are paired only because they have the same key of the caller.
    by_key: bool = False
    #: Whether the other side has the same content twice under one key, as forks of older releases may have.
    repeated: bool = False

    @property
    def theirs_current(self) -> Entry | None:
        """The entry that the other side has active."""
        return None if self.theirs is None else self.theirs.current

    @property
    def ours_current(self) -> Entry | None:
        """The entry that this side has active."""
        return None if self.ours is None else self.ours.current

    @property
    def same_content(self) -> bool:
        """Whether both sides have the same content."""
        return message_comparison_key(self.theirs_current) == message_comparison_key(self.ours_current)

    @property
    def changed_there(self) -> bool:
        """Whether the other side changed the message, and this side has another content."""
        # The other side saw the message and left it out: for this side that is a removal.
        if self.theirs is None:
            return self.ours is not None and None not in (self.ours.current, self.ours.base)
        return self.theirs.changed and not self.same_content

    @property
    def changed_here(self) -> bool:
        """Whether this side changed the message."""
        if self.ours is None:  # this side saw the message and left it out
            return self.seen_here and self.theirs is not None and self.theirs.base is not None
        return self.ours.changed

    @property
    def entry(self) -> Entry:
        """The message, as the other side has it if it does."""
        slot = self.theirs or self.ours
        assert slot is not None
        return slot.entry


@dataclass(frozen=True, slots=True)
class Edit:
    """A message of this side to be edited to the content of the other side."""

    slot: Slot
    content: Entry


@dataclass(frozen=True, slots=True)
class AddedFact:
    """A fact of the other side to be added, and the facts of this side that it supersedes."""

    fact: Entry
    superseded: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class RemovedFacts:
    """Facts of this side to be retracted, and the other side's retraction that is the reason, if there is one."""

    facts: tuple[Entry, ...]
    reason: Entry | None


@dataclass(slots=True)
class Plan:
    """The changes that a merge makes to this side."""

    added: list[Slot] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    added_facts: list[AddedFact] = field(default_factory=list)
    #: Messages to be retracted, and the other side's retraction of each, if there is one.
    retracted: list[tuple[Slot, Entry | None]] = field(default_factory=list)
    removed_facts: list[RemovedFacts] = field(default_factory=list)
    conflicts: list[MergeConflict] = field(default_factory=list)
    #: Number of messages that are not edited because their content was erased or has expired here.
    gone: int = 0
    #: Whether both sides made the same change: nothing changes here, and the record says that it is known.
    agreed: bool = False
    #: Messages of this side that stay as they are in a conflict, although nothing was done to them here.
    kept: list[Entry] = field(default_factory=list)
    #: Tool groups and ids of the other side that have another name here.
    groups: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        changes = (
            self.added, self.edits, self.added_facts, self.retracted, self.removed_facts, self.conflicts, self.agreed
        )  # fmt: skip
        return any(changes)


def plan_merge(ours: MergeSide, theirs: MergeSide, strategy: MergeStrategy) -> Plan:
    """Compare two sides and decide each change of the other side: take it, leave it, or report a conflict."""
    ours.compare(theirs.seen)
    theirs.compare(ours.seen)
    plan = Plan()
    _MessageMerge(ours, theirs, strategy, plan).run()
    _FactMerge(ours, theirs, strategy, plan).run()
    return plan


def _resolution_of_strategy(strategy: MergeStrategy) -> Literal["ours", "theirs"] | None:
    return None if strategy == "refuse" else strategy


def _classify_conflict(base: Sequence[Entry], ours: Sequence[Entry], theirs: Sequence[Entry]) -> Literal[
    "modify/modify", "modify/delete", "add/add"
]:  # fmt: skip
    if not (ours and theirs):
        return "modify/delete"
    return "modify/modify" if base else "add/add"


def _present(entries: Iterable[Entry | None]) -> list[Entry]:
    return [entry for entry in entries if entry is not None]


@dataclass(frozen=True, slots=True)
class _MessageMerge:
    """Decides messages and tool groups."""

    _ours: MergeSide
    _theirs: MergeSide
    _strategy: MergeStrategy
    _plan: Plan
    #: Origins of this side's slots that the other side has too.
    _matched: set[Origin] = field(default_factory=set)
    #: Active messages that only this side has, by tool group.
    _own_slots_of_group: dict[str, list[Slot]] = field(default_factory=dict)

    def run(self) -> None:
        """Pair the messages of both sides and decide them: a single message by itself, a tool group as a whole."""
        pairs_to_decide = self._pair_theirs()
        pairs_to_decide += self._pair_removed()
        self._collect_own_slots()
        groups: dict[Hashable, list[_Pair]] = {}
        for pair in pairs_to_decide:
            group = pair.entry.group or id(pair)  # a message without a tool group is a group of its own
            groups.setdefault(group, []).append(pair)
            if pair.theirs is None:
                continue
            self._plan.agreed |= pair.theirs.changed and not pair.changed_there
            if pair.ours is not None:
                self._record_names(pair.theirs.entry, pair.ours.entry)
        for pairs in groups.values():
            changed_there = [pair for pair in pairs if pair.changed_there]
            if changed_there and not all(pair.repeated for pair in pairs):  # a repeat would be a second copy
                self._decide(pairs, changed_there)

    def _record_names(self, theirs: Entry, ours: Entry) -> None:
        """Note the id and the tool group that a message of the other side has on this side."""
        self._plan.ids[theirs.id] = ours.id
        if theirs.group is not None and ours.group is not None:
            self._plan.groups[theirs.group] = ours.group

    def _pair_theirs(self) -> list[_Pair]:
        """Return a pair for each slot of the other side, with our slot of the same origin, else of the same key."""
        by_key: dict[str, Origin] = {}
        for origin, slot in self._ours.slots.items():
            if slot.entry.key is not None and slot.entry.version > self._ours.common:
                by_key[slot.entry.key] = origin
        first_of_key: dict[str, Slot] = {}
        pairs: list[_Pair] = []
        for origin, slot in self._theirs.slots.items():
            if _is_trace_of_undone(self._theirs, slot):
                continue
            key = slot.entry.key
            match, first = origin, slot
            if key is not None:
                first = first_of_key.setdefault(key, slot)
                if origin not in self._ours.slots:
                    match = by_key.get(key, origin)
            self._matched.add(match)
            ours = self._ours.slots.get(match)
            repeats_first = message_comparison_key(first.current) == message_comparison_key(slot.current)
            is_repeat = ours is None and first is not slot and repeats_first
            seen_here = vector_covers(self._ours.seen, origin)
            pair = _Pair(
                theirs=slot, ours=ours, seen_here=seen_here, by_key=match != origin, repeated=is_repeat
            )
            pairs.append(pair)
        return pairs

    def _pair_removed(self) -> list[_Pair]:
        """Return a pair for each slot of this side that the other side saw, but no longer has."""
        return [
            _Pair(theirs=None, ours=slot, seen_here=True)
            for origin, slot in self._unmatched_slots()
            if vector_covers(self._theirs.seen, origin)
        ]

    def _collect_own_slots(self) -> None:
        """Collect by tool group the active messages of this side that the other side never saw."""
        for origin, slot in self._unmatched_slots():
            was_seen_there = vector_covers(self._theirs.seen, origin)
            if not was_seen_there and slot.entry.group is not None and slot.current is not None:
                self._own_slots_of_group.setdefault(slot.entry.group, []).append(slot)

    def _unmatched_slots(self) -> Iterator[tuple[Origin, Slot]]:
        """Yield the slots that this side added since the common version and the other side does not have.

        A slot is the place of a message, with its newest edit. Entries that an undone change left behind are no
        additions.
        """
        for origin, slot in self._ours.slots.items():
            added_since_common_version = slot.entry.version > self._ours.common
            if not added_since_common_version or origin in self._matched:
                continue
            if not _is_trace_of_undone(self._ours, slot):
                yield origin, slot

    def _decide(self, pairs: Sequence[_Pair], changed_there: Sequence[_Pair]) -> None:
        """Take the other side's change of a message or tool group if only that side changed it.

        Otherwise record a conflict and apply its resolution.
        """
        group = pairs[0].entry.group
        own_slots: list[Slot] = []
        if group is not None:
            group_here = self._plan.groups.get(group, group)
            own_slots = self._own_slots_of_group.get(group_here, [])
        group_conflict = group is not None and _is_moved_on_both_sides(pairs, changed_there, own_slots)
        has_conflict = group_conflict or any(pair.changed_here for pair in changed_there)
        if not has_conflict:
            self._take_theirs(changed_there)
            return
        conflict = self._build_conflict(pairs, changed_there, own_slots, group_conflict)
        self._plan.conflicts.append(conflict)
        if conflict.resolution == "theirs":
            self._take_theirs(pairs)
            self._plan.retracted += [(slot, None) for slot in own_slots]
            return
        for pair in changed_there:
            # Ours wins although nothing was done to it here. The record marks it as changed, so a merge in the other
            # direction takes it over.
            if pair.ours is not None and not pair.ours.changed:
                self._plan.kept.append(pair.ours.entry)

    def _build_conflict(
        self,
        pairs: Sequence[_Pair],
        changed_there: Sequence[_Pair],
        own_slots: Sequence[Slot],
        group_conflict: bool,
    ) -> MergeConflict:
        """Return the conflict about a message, a tool group or a key, without deciding anything."""
        base = _present(pair.theirs.base for pair in pairs if pair.theirs is not None)
        theirs = _present(pair.theirs_current for pair in pairs)
        ours = _present([pair.ours_current for pair in pairs] + [slot.current for slot in own_slots])
        kind: Literal["message", "tool_group", "key"] = "message"
        subject = changed_there[0].entry.id
        if group_conflict:
            kind, subject = "tool_group", pairs[0].entry.group or ""
        keyed = next((pair for pair in changed_there if pair.by_key), None)
        if keyed is not None and keyed.changed_here:
            kind, subject = "key", keyed.entry.key or ""
        return MergeConflict(
            kind=kind,
            type=_classify_conflict(base, ours, theirs),
            subject=subject,
            base=tuple(base),
            ours=tuple(sorted(ours, key=anchor_version)),
            theirs=tuple(sorted(theirs, key=anchor_version)),
            resolution=_resolution_of_strategy(self._strategy),
        )

    def _take_theirs(self, pairs: Iterable[_Pair]) -> None:
        """Give this side the content of the other one in some slots."""
        plan = self._plan
        for pair in pairs:
            content, ours = pair.theirs_current, pair.ours
            if ours is None:
                if pair.theirs is not None and content is not None:
                    plan.added.append(pair.theirs)
            elif content is None:  # the other side removed the message
                if ours.current is not None:
                    reason = None
                    if pair.theirs is not None:
                        reason = self._theirs.find_retraction(pair.theirs.entry)
                    plan.retracted.append((ours, reason))
            elif ours.entry.state is not State.LIVE:  # content erased or expired here is not restored
                plan.gone += 1
            elif not pair.same_content:
                plan.edits.append(Edit(ours, content))


def _is_moved_on_both_sides(
    pairs: Sequence[_Pair], changed_there: Sequence[_Pair], own_slots: Sequence[Slot]
) -> bool:
    """Return whether both sides have added messages to a tool group or removed some from it."""
    moved_here = bool(own_slots) or any(pair.ours is not None and pair.ours.moved for pair in pairs)
    moved_there = any(pair.theirs is None or pair.theirs.moved for pair in changed_there)
    return moved_here and moved_there


def _is_trace_of_undone(log: MergeSide, slot: Slot) -> bool:
    """Return whether a slot is left over from a merge that was undone: the message was never active since."""
    return slot.current is None and slot.base is None and log.is_undone(slot.entry)


@dataclass(frozen=True, slots=True)
class _FactMerge:
    """Decides facts, by address."""

    _ours: MergeSide
    _theirs: MergeSide
    _strategy: MergeStrategy
    _plan: Plan

    def run(self) -> None:
        """Decide the facts that the other side added or removed since this side last saw it."""
        origin_of = self._theirs.origin
        current = {origin_of(fact): fact for fact in self._theirs.current_facts.active}
        base = {origin_of(fact): fact for fact in self._theirs.base_facts.active}
        added = [fact for origin, fact in current.items() if origin not in base]
        removed = [fact for origin, fact in base.items() if origin not in current]
        if not added and not removed:
            return
        single = self._single_value_addresses()
        touched = {address_of(fact) for fact in (*added, *removed)} & single
        for address in sorted(touched):
            self._decide_address(address)
        added = [fact for fact in added if address_of(fact) not in touched]
        removed = [fact for fact in removed if address_of(fact) not in touched]
        self._decide_facts(added, removed)

    def _single_value_addresses(self) -> set[Address]:
        """Return the addresses that hold one value at a time."""
        addresses: set[Address] = set()
        for log in (self._ours, self._theirs):
            for fact in (*log.current_facts.active, *log.base_facts.active):
                if fact.data.get("cardinality") == "one" and has_address(address_of(fact)):
                    addresses.add(address_of(fact))
        return addresses

    def _decide_address(self, address: Address) -> None:
        """Decide an address that holds one value: take the other side's value if only that side changed it.

        If this side changed it too, the values are a conflict: the strategy of the merge decides whether theirs wins.
        """
        theirs, theirs_base = _facts_at(self._theirs, address)
        ours, ours_base = _facts_at(self._ours, address)
        their_contents, our_contents = _contents_of(theirs), _contents_of(ours)
        if their_contents == _contents_of(theirs_base):
            return
        if their_contents == our_contents:
            self._plan.agreed = True
            return
        superseded = _without_contents(ours, theirs)
        changed_here = our_contents != _contents_of(ours_base)
        if changed_here and self._record_conflict(theirs_base, ours, theirs) != "theirs":
            return
        added_facts = _without_contents(theirs, ours)
        for fact in added_facts:
            # The first one supersedes all of ours.
            self._plan.added_facts.append(AddedFact(fact, superseded if fact is added_facts[0] else ()))
        if not added_facts:
            reasons = _present(self._theirs.find_retraction(fact) for fact in theirs_base)
            self._plan.removed_facts.append(RemovedFacts(superseded, reasons[0] if reasons else None))

    def _decide_facts(self, added: Sequence[Entry], removed: Sequence[Entry]) -> None:
        """Decide facts at addresses that hold several values: each by itself.

        `removed` are facts that the other side superseded or retracted, `added` those that it added. Each side now has
        another version of a removed fact, or none.
        """
        #: Facts of this side that a fact of the other side supersedes, by its id.
        superseded_by: dict[str, list[Entry]] = {}
        #: Ids of facts of the other side that do not replace ours.
        refused_ids: set[str] = set()
        for fact in removed:
            theirs = _find_active_version(self._theirs.current_facts, fact)
            ours, ours_base = self._find_our_versions(fact)
            superseded = () if ours is None else (ours,)
            takes_theirs = self._takes_change(fact, theirs, ours, ours_base)
            if takes_theirs and theirs is None:
                reason = self._theirs.find_retraction(fact)
                self._plan.removed_facts.append(RemovedFacts(superseded, reason))
            elif takes_theirs and theirs is not None:
                superseded_by.setdefault(theirs.id, []).extend(superseded)
            elif theirs is not None:
                refused_ids.add(theirs.id)
        for fact in added:
            superseded = tuple(superseded_by.get(fact.id, ()))
            if not superseded and (fact.id in refused_ids or self._is_known(fact)):
                self._plan.agreed = True
            else:
                self._plan.added_facts.append(AddedFact(fact, superseded))

    def _takes_change(
        self, fact: Entry, theirs: Entry | None, ours: Entry | None, ours_base: Entry | None
    ) -> bool:
        """Return whether this side takes the other side's change of a fact; record agreement or a conflict."""
        if fact_comparison_key(theirs) == fact_comparison_key(ours):
            self._plan.agreed = True
            return False
        is_unchanged_here = fact_comparison_key(ours) == fact_comparison_key(ours_base)
        if is_unchanged_here:
            return True
        return self._record_conflict([fact], _present([ours]), _present([theirs])) == "theirs"

    def _is_known(self, fact: Entry) -> bool:
        """Return whether this side has an active fact of the same address and content."""
        ours, _ = _facts_at(self._ours, address_of(fact))
        return fact_comparison_key(fact) in _contents_of(ours)

    def _find_our_versions(self, fact: Entry) -> tuple[Entry | None, Entry | None]:
        """Return this side's version of a fact of the other side: now, and as the other side last saw it.

        Copies of one fact have the same origin. The entries of a history include superseded ones.
        """
        origin = self._theirs.origin(fact)
        for ours in self._ours.current_facts.entries:
            if self._ours.origin(ours) == origin:
                current = _find_active_version(self._ours.current_facts, ours)
                return current, _find_active_version(self._ours.base_facts, ours)
        return None, None

    def _record_conflict(
        self, base: Sequence[Entry], ours: Sequence[Entry], theirs: Sequence[Entry]
    ) -> Literal["ours", "theirs"] | None:
        """Record a conflict about facts; return its resolution, which is the side that wins.

        Content of low trust never supersedes facts of protected origin, whatever the strategy is.
        """
        resolution, reason = _resolution_of_strategy(self._strategy), ""
        their_trust = trust.lowest_trust(map(trust.trust_of_entry, theirs or base))
        if resolution == "theirs" and not trust.is_protected_origin(their_trust):
            our_trusts = [trust.trust_of_entry(fact) for fact in _without_contents(ours, theirs)]
            protected = [our_trust for our_trust in our_trusts if trust.is_protected_origin(our_trust)]
            if protected:
                resolution = "ours"
                reason = f"{their_trust.value} ends nothing that {protected[0].value} said"
        data = (theirs or ours or base)[0].data
        self._plan.conflicts.append(
            MergeConflict(
                kind="fact",
                type=_classify_conflict(base, ours, theirs),
                subject=f"{data.get('subject', '')} / {data.get('attribute', '')}",
                base=tuple(base),
                ours=tuple(ours),
                theirs=tuple(theirs),
                resolution=resolution,
                reason=reason,
            )
        )
        return resolution


def _facts_at(log: MergeSide, address: Address) -> tuple[list[Entry], list[Entry]]:
    """Return the active facts of an address, now and as the other side last saw them."""
    current = [fact for fact in log.current_facts.active if address_of(fact) == address]
    base = [fact for fact in log.base_facts.active if address_of(fact) == address]
    return current, base


def _contents_of(facts: Iterable[Entry]) -> set[Hashable]:
    return set(map(fact_comparison_key, facts))


def _without_contents(facts: Iterable[Entry], others: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return the facts of which no other has the same content."""
    other_contents = _contents_of(others)
    return tuple(fact for fact in facts if fact_comparison_key(fact) not in other_contents)


def _find_active_version(facts: FactHistory, fact: Entry) -> Entry | None:
    """Return a fact itself if it is active, else the active fact that supersedes it, or None if it was retracted."""
    for active in facts.active:
        if active.version == fact.version:
            return active
        if any(previous.version == fact.version for previous in facts.find_predecessors(active)):
            return active
    return None
