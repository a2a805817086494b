"""The entries that a merge appends: copies from the other side, edits and retractions of this side, and a final record.

Copies keep content, speaker, time and trust. They name their original entry, so that its erasure also erases the copy.
Episodes of the other side become episodes of this one, the first of them within the episode that is open here. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime

from acms.branches.three_way import Edit, Gone, Learned, Log, Plan, Slot
from acms.log import facts as rules
from acms.log.encoding import to_microseconds
from acms.log.in_force import MERGED, SEEN, Cover
from acms.log.merges import KEPT
from acms.model import EMPTY, Draft, Entry, Json, Kind, Origin, Span
from acms.write import retirement
from acms.write.episodes import Tail

_FIELDS = tuple(field.name for field in fields(Draft))
REPLACED = "replaced"
"""Reason of the retraction of what this side has said in a tool group that it takes over from the other one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a merge is called in its record, and how drafts are counted and cleaned here."""

    session: str
    version: int
    strategy: str
    now: datetime
    #: Counts a draft as this side counts, and redacts content that must not be stored here.
    cleaned: Callable[[Draft], Draft]


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafts to append, in order, without the merge record and the changes to facts made from removed messages."""

    drafts: tuple[Draft, ...]
    #: The messages of this side that are edited or go, with their edits.
    gone: tuple[Entry, ...]
    #: Ordinals of the other side's episodes among the messages that come, and why each has ended; None: it has not.
    episodes: Mapping[int, str | None]


def build_merge_drafts(done: Plan, ours: Log, theirs: Log, terms: Terms) -> Drafts:
    """Return the drafts that apply a plan to this side."""
    return _Writing(done, ours, theirs, terms).written()


def build_merge_record(done: Plan, ours: Log, theirs: Log, terms: Terms) -> Draft:
    """Return the record of a merge: whom this side has seen by then, and how far."""
    names = {*ours.seen, *theirs.seen}
    seen = {name: max(ours.seen.get(name, 0), theirs.seen.get(name, 0)) for name in sorted(names)}
    data: dict[str, Json] = {
        "reason": MERGED,
        "session": terms.session,
        "context": theirs.context,
        "version": terms.version,
        "strategy": terms.strategy,
        SEEN: seen,
    }
    if done.kept:
        data[KEPT] = [entry.id for entry in done.kept]
    return _build_retraction((), (), data, terms.now)


def _build_retraction(
    replaces: Iterable[Span], sources: Iterable[str], data: Mapping[str, Json], now: datetime
) -> Draft:
    return Draft(
        kind=Kind.RETRACTION,
        created_at=now,
        origin=Origin.DERIVED,
        replaces=tuple(replaces),
        sources=tuple(sources),
        data=data,
    )


class _Writing:
    """One plan being written down."""

    def __init__(self, done: Plan, ours: Log, theirs: Log, terms: Terms) -> None:
        self._done = done
        self._ours = ours
        self._theirs = theirs
        self._terms = terms
        #: Keys taken by entries of this side and by incoming entries.
        self._keys = {entry.key for entry in (*ours.entries, *ours.facts, *ours.by.values())} - {None}

    def written(self) -> Drafts:
        done = self._done
        steps: list[tuple[int, Slot | Edit | Learned]] = [(one.entry.version, one) for one in done.comes]
        steps += [(one.shown.version, one) for one in done.edits]
        steps += [(one.fact.version, one) for one in done.learned]
        steps.sort(key=lambda step: step[0])
        found = [self._write(step) for _, step in steps]
        found += self._retractions()
        gone = [entry for edit in done.edits for entry in _entries_of_slot(edit.slot)]
        gone += [entry for slot, _ in done.retracted for entry in _entries_of_slot(slot)]
        return Drafts(tuple(found), tuple(gone), self._episodes())

    def _write(self, step: Slot | Edit | Learned) -> Draft:
        if isinstance(step, Slot):
            made = self._coming(step)
        elif isinstance(step, Edit):
            made = self._edited(step)
        else:
            made = self._learned(step)
        made = self._terms.cleaned(made)
        if made.key in self._keys:
            return replace(made, key=None)
        self._keys.add(made.key)
        return made

    def _coming(self, slot: Slot) -> Draft:
        entry, shown = slot.entry, slot.now
        assert shown is not None
        edited = () if shown is entry else (shown.id,)
        return replace(
            _draft_from_entry(shown),
            key=entry.key,
            created_at=entry.created_at,
            episode=entry.episode,
            closes=None,
            group=self._group(shown),
            replaces=(),
            sources=(*edited, entry.id, *entry.sources),
        )

    def _edited(self, edit: Edit) -> Draft:
        ours, shown = edit.slot, edit.shown
        said = ours.entry
        before = ours.now or said
        spans = {(said.version, said.version), (before.version, before.version), *_replaced_spans(before)}
        original = shown.sources[-1:] if self._theirs.origin(shown) != (shown.context, shown.version) else ()
        return replace(
            _draft_from_entry(shown),
            key=None,
            episode=said.episode,
            closes=None,
            group=self._group(shown),
            replaces=tuple(sorted(spans)),
            sources=tuple(dict.fromkeys((said.id, shown.id, *original))),
            data=EMPTY,  # no list of ours has said it
        )

    def _group(self, shown: Entry) -> str | None:
        """Return the tool group on this side for an entry of the other side; an edit may have changed it."""
        return None if shown.group is None else self._done.groups.get(shown.group, shown.group)

    def _learned(self, step: Learned) -> Draft:
        fact, ours = step.fact, self._ours
        place = self._theirs.origin(fact)
        again = [one for one in ours.facts if ours.undone(one) and ours.origin(one) == place]
        said = [id for id in fact.sources if not id.startswith("f_")]
        originals = [id for id in fact.sources if id.startswith("f_")]
        return replace(
            _draft_from_entry(fact),
            key=None,
            replaces=rules.single_spans([*step.ended, *again]),
            sources=(*said, fact.id, *originals),
            data=self._named(fact.data),
        )

    def _named(self, data: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return the data of a fact or a retraction, the messages it demotes by what they are called here."""
        if "demotes" not in data:
            return data
        return {**data, "demotes": [[self._done.ids.get(id, id), good] for id, good in data["demotes"]]}

    def _retractions(self) -> list[Draft]:
        """Return what puts messages and facts out of force: one entry for each of the other side, one of our own."""
        found: dict[str, tuple[Entry | None, list[Span]]] = {}
        for slot, by in self._done.retracted:
            _, spans = found.setdefault(by.id if by else "", (by, []))
            spans += [
                span
                for entry in _entries_of_slot(slot)
                for span in (_span_of_entry(entry), *_replaced_spans(entry))
            ]
        for gone in self._done.unlearned:
            _, spans = found.setdefault(gone.by.id if gone.by else "", (gone.by, []))
            spans += self._ended(gone)
        drafts: list[Draft] = []
        for by, spans in found.values():
            replaces = tuple(sorted(set(spans)))
            if by is None:
                ids = sorted(
                    {
                        entry.id
                        for slot, one in self._done.retracted
                        if one is None
                        for entry in _entries_of_slot(slot)
                    }
                )
                drafts.append(_build_retraction(replaces, ids, {"reason": REPLACED}, self._terms.now))
            else:
                first = by.data.get(MERGED, by.id)
                data = {**self._named(by.data), MERGED: first}
                drafts.append(_build_retraction(replaces, (*by.sources, by.id), data, by.created_at))
        return drafts

    def _ended(self, gone: Gone) -> Sequence[Span]:
        made = [one for one in self._ours.facts if one.kind is Kind.FACT]
        return retirement.spans_with_predecessors(gone.entries, made, Cover(self._ours.by.values()))

    def _episodes(self) -> dict[int, str | None]:
        """Return the episodes of the messages that come, in order, with why each ended."""
        found = dict.fromkeys(sorted({slot.entry.episode for slot in self._done.comes}), None)
        ended: dict[int, str | None] = {**found}
        for entry in self._theirs.entries:
            if entry.episode not in ended or entry.version <= self._theirs.common:
                continue
            if entry.kind is Kind.EPISODE:
                ended[entry.episode] = str(entry.data.get("reason", "manual"))
            elif entry.closes is not None and not entry.replaces:
                ended[entry.episode] = entry.closes
        return ended


def _draft_from_entry(entry: Entry) -> Draft:
    return Draft(**{name: getattr(entry, name) for name in _FIELDS})


def _span_of_entry(entry: Entry) -> Span:
    return entry.version, entry.version


def _replaced_spans(entry: Entry) -> tuple[Span, ...]:
    """Return what an edit is read in the place of."""
    return entry.replaces if entry.kind is Kind.MESSAGE else ()


def _entries_of_slot(slot: Slot) -> tuple[Entry, ...]:
    """Return a message and its edit in force."""
    return (slot.entry,) if slot.now is None or slot.now is slot.entry else (slot.entry, slot.now)


# ── where it comes in the log ───────────────────────────────────────────────────────────────────────────────────────


def assign_episodes(
    found: Sequence[Draft], episodes: Mapping[int, str | None], tail: Tail
) -> tuple[tuple[Draft, ...], Tail]:
    """Put drafts in their places behind the end of a log; return them and the end behind them.

    The first episode that comes goes on in the one that is open, else it begins a new one; every other is new. It ends
    with its last message that comes.
    """
    comes = [place for place, draft in enumerate(found) if draft.kind is Kind.MESSAGE and not draft.replaces]
    if not comes:
        return tuple(found), tail
    first = tail.episode if tail.episode and tail.closed is None else tail.episode + 1
    ordinals = {episode: first + place for place, episode in enumerate(episodes)}
    last = {found[place].episode: place for place in comes}
    drafts = list(found)
    for place in comes:
        draft = found[place]
        closes = episodes[draft.episode] if last[draft.episode] == place else None
        drafts[place] = replace(draft, episode=ordinals[draft.episode], closes=closes)
    newest = drafts[comes[-1]]
    turns = sum(1 for place in comes if drafts[place].episode == newest.episode)
    return tuple(drafts), replace(
        tail,
        episode=newest.episode,
        turns=turns + (tail.turns if newest.episode == tail.episode else 0),
        last=max(tail.last, *(to_microseconds(drafts[place].created_at) for place in comes)),
        closed=newest.closes,
    )
