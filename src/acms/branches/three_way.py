"""A three-way merge: find the changes of the other side since this one last saw it, and those that conflict.

Each side is compared with its state as the other one last saw it; for a fork that was never merged, the fork point.
An entry is the same on both sides if it was first written at the same position. A message is identified by its *slot*:
the content shown at its position. Decisions are made per *unit*: one message, or one tool group; for facts, an address
that holds one value, else one fact. Pure; `merge_drafts` turns a plan into log entries.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from acms.log import trust
from acms.log.encoding import parse_entry_id
from acms.log.facts import Address, FactHistory, address_of, has_address
from acms.log.in_force import Cover, anchor_version
from acms.log.merges import KEPT, MergeConflict, Merges, MergeStrategy, Origin, Vector, vector_covers
from acms.model import Entry, Kind, Span, State

Shown: TypeAlias = Entry | None
"""The active entry of a slot, or None if it has none."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one message in one log."""

    #: As it was said first in this log.
    entry: Entry
    #: The entry active there now, and the one that the other side last saw there.
    now: Shown
    before: Shown
    #: Whether this log has settled a conflict by leaving it as it is, which the other side does not know.
    kept: bool = False

    @property
    def changed(self) -> bool:
        """Whether something else is read there than the other side knows."""
        return self.kept or message_comparison_key(self.now) != message_comparison_key(self.before)

    @property
    def moved(self) -> bool:
        """Whether it has come into force or out of it since."""
        return (self.now is None) != (self.before is None)


def message_comparison_key(entry: Shown) -> Hashable:
    """Return what an entry says, the same for two that say the same."""
    return None if entry is None else (entry.role, entry.content, entry.parts)


def fact_comparison_key(entry: Entry) -> Hashable:
    """Return what a fact says is so, the same for two that say the same."""
    data = entry.data
    value = data.get("value") or entry.content
    return value, data.get("negative") is True, data.get("valid_from"), data.get("valid_to")


class Log:
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
        self.facts = facts
        self.by = {entry.version: entry for entry in replacing}
        self.cover = Cover(replacing, searchable=True)
        self.merges = Merges(retractions, self.cover)
        #: The versions of every context that this side has seen.
        self.seen: Vector = self.merges.vector(runs)
        self.before = self.cover
        self.slots: dict[Origin, Slot] = {}
        self.known: Vector = {}
        self._kept: set[Origin | None] = set()

    def face(self, known: Vector) -> None:
        """Look at it as the other side does, whose version vector this is."""
        self.known = known
        before = [
            one for one in self.by.values() if vector_covers(known, self.origin(one)) and not self.undone(one)
        ]
        self.before = self.cover if len(before) == len(self.by) else Cover(before, searchable=True)
        new = [one for one in self.merges.standing if not vector_covers(known, self.origin(one))]
        self._kept = {parse_entry_id(id) for one in new for id in one.data.get(KEPT, ())}
        for entry in self.entries:
            if entry.kind is Kind.MESSAGE and not entry.replaces:
                self.slots[self.origin(entry)] = self._slot(entry)

    def origin(self, entry: Entry) -> Origin:
        """Return where an entry was written first."""
        return self.merges.origin(entry)

    def undone(self, entry: Entry) -> bool:
        """Whether an entry of its own came with a merge that was undone, so that it does not count."""
        return entry.version > self.common and self.merges.took_back(entry)

    def void(self, slot: Slot) -> bool:
        """Whether a slot is nothing but the trace of a merge that was undone."""
        return slot.now is None and slot.before is None and self.undone(slot.entry)

    def reason(self, entry: Entry) -> Entry | None:
        """Return the retraction that put an entry out of force; None when that was none."""
        found = self.by.get(self.cover.by(entry.version) or 0)
        return found if found is not None and found.kind is Kind.RETRACTION else None

    def _slot(self, entry: Entry) -> Slot:
        known = vector_covers(self.known, self.origin(entry))
        plain = not self.undone(entry)
        before = self._visible(entry, self.before, plain) if known else None
        kept = (entry.context, entry.version) in self._kept
        return Slot(entry, self._visible(entry, self.cover, plain), before, kept)

    def _visible(self, entry: Entry, cover: Cover, plain: bool) -> Shown:
        by = cover.by(entry.version)
        found = (entry if plain else None) if by is None else self.by.get(by)
        if found is None or found.kind is not Kind.MESSAGE or found.state is not State.LIVE:
            return None
        return found


def find_touched_spans(log: Iterable[Entry], common: int) -> list[Span]:
    """Return the versions up to the common one that a side's own entries put out of force or brought back."""
    replacing = {entry.version: entry for entry in log}
    waiting = [span for entry in replacing.values() if entry.version > common for span in entry.replaces]
    found: set[Span] = set()
    while waiting:
        first, last = waiting.pop()
        if (first, last) not in found:
            found.add((first, last))
            inside = [one for one in replacing if first <= one <= last]
            waiting += [span for version in inside for span in replacing[version].replaces]
    return sorted((first, min(last, common)) for first, last in found if first <= common)


# ── what a merge does ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Pair:
    """One message on both sides."""

    theirs: Slot | None
    ours: Slot | None
    #: Whether this side has seen it; without a slot of its own it has left it out.
    known: bool
    #: Whether nothing but the caller's key says that both are the same.
    by_key: bool = False
    #: Whether the other side had said the same under the same key, as forks did that did not know inherited ones.
    again: bool = False

    @property
    def came(self) -> Shown:
        """The entry that the other side has active."""
        return None if self.theirs is None else self.theirs.now

    @property
    def stands(self) -> Shown:
        """The entry that this side has active."""
        return None if self.ours is None else self.ours.now

    @property
    def changed(self) -> bool:
        """Whether the other side changed it, and this side does not read the same."""
        if self.theirs is None:  # left out there, although it was seen
            return self.ours is not None and None not in (self.ours.now, self.ours.before)
        return self.theirs.changed and message_comparison_key(self.came) != message_comparison_key(
            self.stands
        )

    @property
    def here(self) -> bool:
        """Whether this side changed it as well."""
        if self.ours is None:
            return self.known and self.theirs is not None and self.theirs.before is not None
        return self.ours.changed

    @property
    def group(self) -> str | None:
        """The tool group it belongs to, as the other side calls it."""
        slot = self.theirs or self.ours
        assert slot is not None
        return slot.entry.group


@dataclass(frozen=True, slots=True)
class Edit:
    """A message of this side to be edited to the content of the other side."""

    slot: Slot
    shown: Entry


@dataclass(frozen=True, slots=True)
class Learned:
    """A fact of the other side that comes, and the facts of this side whose place it takes."""

    fact: Entry
    ended: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Gone:
    """Entries of this side that go, and the other side's retraction that says why; None: the merge itself."""

    entries: tuple[Entry, ...]
    by: Entry | None


@dataclass(slots=True)
class Plan:
    """What a merge does to this side."""

    comes: list[Slot] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    learned: list[Learned] = field(default_factory=list)
    #: Slots of messages, and facts, that go.
    retracted: list[tuple[Slot, Entry | None]] = field(default_factory=list)
    unlearned: list[Gone] = field(default_factory=list)
    conflicts: list[MergeConflict] = field(default_factory=list)
    gone: int = 0
    #: Whether both sides changed something to the same: nothing changes here, and the record says that it is known.
    agreed: bool = False
    #: Messages of this side that stay as they are in a conflict, although nothing was done to them here.
    kept: list[Entry] = field(default_factory=list)
    #: Tool groups and ids of the other side that have another name here.
    groups: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        appended = self.comes or self.edits or self.learned
        return bool(appended or self.retracted or self.unlearned or self.conflicts or self.agreed)


def plan_merge(ours: Log, theirs: Log, strategy: MergeStrategy) -> Plan:
    """Decide what becomes of everything the other side changed."""
    ours.face(theirs.seen)
    theirs.face(ours.seen)
    done = Plan()
    _Messages(ours, theirs, strategy, done).run()
    _Facts(ours, theirs, strategy, done).run()
    return done


def _resolution_of_strategy(strategy: MergeStrategy) -> Literal["ours", "theirs"] | None:
    return None if strategy == "refuse" else strategy


def _classify_conflict(base: Sequence[Entry], ours: Sequence[Entry], theirs: Sequence[Entry]) -> Literal[
    "modify/modify", "modify/delete", "add/add"
]:  # fmt: skip
    if not (ours and theirs):
        return "modify/delete"
    return "modify/modify" if base else "add/add"


class _Messages:
    """Messages and tool groups."""

    def __init__(self, ours: Log, theirs: Log, strategy: MergeStrategy, done: Plan) -> None:
        self._ours = ours
        self._theirs = theirs
        self._strategy: MergeStrategy = strategy
        self._plan = done
        #: What this side alone has said since, by tool group.
        self._alone: dict[str, list[Slot]] = {}

    def run(self) -> None:
        units: dict[Hashable, list[Pair]] = {}
        for pair in self._pairs():
            self._plan.agreed |= pair.theirs is not None and pair.theirs.changed and not pair.changed
            units.setdefault(pair.group or id(pair), []).append(pair)
            if pair.theirs is not None and pair.ours is not None:
                self._same(pair.theirs, pair.ours)
        for pairs in units.values():
            changed = [pair for pair in pairs if pair.changed]
            if changed and not all(pair.again for pair in pairs):
                self._decide(pairs, changed)

    def _same(self, theirs: Slot, ours: Slot) -> None:
        if theirs.entry.group is not None and ours.entry.group is not None:
            self._plan.groups[theirs.entry.group] = ours.entry.group
        self._plan.ids[theirs.entry.id] = ours.entry.id

    def _pairs(self) -> list[Pair]:
        """Match what both sides have, by where it was said first, else by the caller's key."""
        ours, theirs = self._ours, self._theirs
        keyed: dict[str | None, tuple[Origin, Slot]] = {
            slot.entry.key: (origin, slot)
            for origin, slot in ours.slots.items()
            if slot.entry.key is not None and slot.entry.version > ours.common
        }
        matched: set[Origin] = set()
        told: dict[str, Slot] = {}
        pairs: list[Pair] = []
        for origin, slot in theirs.slots.items():
            if theirs.void(slot):
                continue
            twin, place = ours.slots.get(origin), origin
            by_key = twin is None and slot.entry.key in keyed
            if by_key:
                place, twin = keyed[slot.entry.key]
            matched.add(place)
            first = slot if slot.entry.key is None else told.setdefault(slot.entry.key, slot)
            again = (
                twin is None
                and first is not slot
                and message_comparison_key(first.now) == message_comparison_key(slot.now)
            )
            pairs.append(Pair(slot, twin, vector_covers(ours.seen, origin), by_key, again))
        for origin, slot in ours.slots.items():
            if origin not in matched and slot.entry.version > ours.common and not ours.void(slot):
                pairs += self._missing(origin, slot)
        return pairs

    def _missing(self, origin: Origin, slot: Slot) -> list[Pair]:
        """Return a pair for a slot that the other side saw and left out; else record it as existing here alone."""
        if vector_covers(self._theirs.seen, origin):
            return [Pair(None, slot, known=True)]
        if slot.entry.group is not None and slot.now is not None:
            self._alone.setdefault(slot.entry.group, []).append(slot)
        return []

    def _decide(self, pairs: Sequence[Pair], changed: Sequence[Pair]) -> None:
        group = pairs[0].group
        alone = self._alone.get(self._plan.groups.get(group, group), []) if group is not None else []
        grown = bool(alone) or any(pair.ours is not None and pair.ours.moved for pair in pairs)
        there = any(pair.theirs is None or pair.theirs.moved for pair in changed)
        apart = group is not None and grown and there
        if not (apart or any(pair.here for pair in changed)):
            self._take(changed)
            return
        conflict = self._conflict(pairs, changed, alone, apart)
        self._plan.conflicts.append(conflict)
        if conflict.resolution == "theirs":
            self._take(pairs)
            self._plan.retracted += [(slot, None) for slot in alone]
        else:
            kept = [pair.ours for pair in changed if pair.ours is not None and not pair.ours.changed]
            self._plan.kept += [slot.entry for slot in kept]

    def _conflict(
        self, pairs: Sequence[Pair], changed: Sequence[Pair], alone: Sequence[Slot], apart: bool
    ) -> MergeConflict:
        base = [one for pair in pairs if pair.theirs is not None and (one := pair.theirs.before) is not None]
        theirs = [one for pair in pairs if (one := pair.came) is not None]
        ours = [one for pair in pairs if (one := pair.stands) is not None]
        ours += [one for slot in alone if (one := slot.now) is not None]
        keyed = next((pair for pair in changed if pair.by_key), None)
        first = changed[0].theirs or changed[0].ours
        assert first is not None
        kind: Literal["message", "tool_group", "key"] = "tool_group" if apart else "message"
        subject = (pairs[0].group or "") if apart else first.entry.id
        if keyed is not None and keyed.theirs is not None and keyed.here:
            kind, subject = "key", keyed.theirs.entry.key or ""
        return MergeConflict(
            kind=kind,
            type=_classify_conflict(base, ours, theirs),
            subject=subject,
            base=tuple(base),
            ours=tuple(sorted(ours, key=anchor_version)),
            theirs=tuple(sorted(theirs, key=anchor_version)),
            resolution=_resolution_of_strategy(self._strategy),
        )

    def _take(self, pairs: Iterable[Pair]) -> None:
        """Let this side read in some slots what the other one does."""
        done = self._plan
        for pair in pairs:
            came, ours = pair.came, pair.ours
            if ours is None:
                if came is not None and pair.theirs is not None:
                    done.comes.append(pair.theirs)
            elif came is None:
                if ours.now is not None:
                    by = None if pair.theirs is None else self._theirs.reason(pair.theirs.entry)
                    done.retracted.append((ours, by))
            elif ours.entry.state is not State.LIVE:  # content erased or expired here is not restored
                done.gone += 1
            elif message_comparison_key(came) != message_comparison_key(ours.now):
                done.edits.append(Edit(ours, came))


class _Facts:
    """Facts, by address."""

    def __init__(self, ours: Log, theirs: Log, strategy: MergeStrategy, done: Plan) -> None:
        self._ours = ours
        self._theirs = theirs
        self._strategy: MergeStrategy = strategy
        self._plan = done
        self._now = _facts_of(ours, before=False)
        self._before = _facts_of(ours, before=True)
        self._there = _facts_of(theirs, before=False)
        self._known = _facts_of(theirs, before=True)

    def run(self) -> None:
        origin = self._theirs.origin
        now = {origin(fact): fact for fact in self._there.in_force}
        before = {origin(fact): fact for fact in self._known.in_force}
        added = [fact for place, fact in now.items() if place not in before]
        removed = [fact for place, fact in before.items() if place not in now]
        if not added and not removed:
            return
        single = self._single({address_of(fact) for fact in (*added, *removed)})
        for where in single:
            self._one(where)
        self._many(
            [fact for fact in added if address_of(fact) not in single],
            [fact for fact in removed if address_of(fact) not in single],
        )

    def _single(self, addresses: set[Address]) -> list[Address]:
        """Return which addresses hold one value at a time."""
        some = [self._now, self._before, self._there, self._known]
        one = {
            address_of(fact)
            for found in some
            for fact in found.in_force
            if fact.data.get("cardinality") == "one"
        }
        return sorted(where for where in addresses if where in one and has_address(where))

    def _one(self, where: Address) -> None:
        """Decide one address that holds one value."""
        there, here = _facts_at_address(self._there, where), _facts_at_address(self._now, where)
        known, before = _facts_at_address(self._known, where), _facts_at_address(self._before, where)
        if _collect_fact_keys(there) == _collect_fact_keys(known):
            return
        if _collect_fact_keys(there) == _collect_fact_keys(here):
            self._plan.agreed = True
            return
        comes = [fact for fact in there if fact_comparison_key(fact) not in _collect_fact_keys(here)]
        ended = tuple(fact for fact in here if fact_comparison_key(fact) not in _collect_fact_keys(there))
        if _collect_fact_keys(before) != _collect_fact_keys(here) and not self._resolved(
            known, here, there, ended
        ):
            return
        if comes:
            self._plan.learned += [Learned(comes[0], ended), *(Learned(fact) for fact in comes[1:])]
        else:
            by = next((by for fact in known if (by := self._theirs.reason(fact)) is not None), None)
            self._plan.unlearned.append(Gone(ended, by))

    def _many(self, added: Sequence[Entry], removed: Sequence[Entry]) -> None:
        """Decide facts that stand beside others: each by itself."""
        taken: dict[str, list[Entry]] = {}
        refused: set[str] = set()
        for old in removed:
            heir = _find_successor(self._there, old)
            ours = self._ours_of(old)
            here = None if ours is None else _find_successor(self._now, ours)
            before = None if ours is None else _find_successor(self._before, ours)
            if _optional_fact_key(heir) == _optional_fact_key(here):
                self._plan.agreed = True
                refused.update(() if heir is None else (heir.id,))
                continue
            ended = () if here is None else (here,)
            if _optional_fact_key(before) != _optional_fact_key(here) and not self._resolved(
                [old], ended, () if heir is None else (heir,), ended
            ):
                refused.update(() if heir is None else (heir.id,))
            elif heir is not None:
                taken.setdefault(heir.id, []).extend(ended)
            else:
                self._plan.unlearned.append(Gone(ended, self._theirs.reason(old)))
        for fact in added:
            ended = tuple(taken.get(fact.id, ()))
            if not ended and (fact.id in refused or self._known_here(fact)):
                self._plan.agreed = True
                continue
            self._plan.learned.append(Learned(fact, ended))

    def _known_here(self, fact: Entry) -> bool:
        same = [one for one in self._now.in_force if address_of(one) == address_of(fact)]
        return any(fact_comparison_key(one) == fact_comparison_key(fact) for one in same)

    def _ours_of(self, fact: Entry) -> Entry | None:
        """Return what this side has of a fact of the other one."""
        place = self._theirs.origin(fact)
        return next((one for one in self._now.entries if self._ours.origin(one) == place), None)

    def _resolved(
        self, base: Sequence[Entry], ours: Sequence[Entry], theirs: Sequence[Entry], ended: Sequence[Entry]
    ) -> bool:
        """Note a conflict; return whether the other side has its way."""
        resolution, reason = _resolution_of_strategy(self._strategy), ""
        word = trust.lowest_trust(map(trust.trust_of_entry, theirs or base))
        if resolution == "theirs" and not trust.is_protected_origin(word):
            guarded = [fact for fact in ended if trust.is_protected_origin(trust.trust_of_entry(fact))]
            if guarded:
                resolution, reason = (
                    "ours",
                    f"{word.value} ends nothing that {trust.trust_of_entry(guarded[0]).value} said",
                )
        about = (theirs or ours or base)[0]
        self._plan.conflicts.append(
            MergeConflict(
                kind="fact",
                type=_classify_conflict(base, ours, theirs),
                subject=f"{about.data.get('subject', '')} / {about.data.get('attribute', '')}",
                base=tuple(base),
                ours=tuple(ours),
                theirs=tuple(theirs),
                resolution=resolution,
                reason=reason,
            )
        )
        return resolution == "theirs"


def _facts_of(log: Log, *, before: bool) -> FactHistory:
    """Return the facts of a side, as they are or as the other side last knew them."""
    if not before:
        return FactHistory(log.facts, log.cover)
    facts = [
        fact for fact in log.facts if vector_covers(log.known, log.origin(fact)) and not log.undone(fact)
    ]
    return FactHistory(facts, log.before)


def _facts_at_address(found: FactHistory, where: Address) -> list[Entry]:
    return [fact for fact in found.in_force if address_of(fact) == where]


def _collect_fact_keys(facts: Iterable[Entry]) -> frozenset[Hashable]:
    return frozenset(map(fact_comparison_key, facts))


def _optional_fact_key(fact: Entry | None) -> Hashable:
    return None if fact is None else fact_comparison_key(fact)


def _find_successor(found: FactHistory, fact: Entry) -> Entry | None:
    """Return the fact in force that stands where a fact did; None when nothing does."""
    for one in found.in_force:
        if any(old.version == fact.version for old in (one, *found.chain(one))):
            return one
    return None
