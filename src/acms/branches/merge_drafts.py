"""The entries that a merge appends: copies from the other side, edits and retractions of this side, and a final record.

Copies keep content, speaker, time and trust. They name their original entry, so that its erasure also erases the copy.
Episodes of the other side become episodes of this one, the first of them within the episode that is open here. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime

from acms.branches.three_way import AddedFact, Edit, MergeSide, Plan, Slot
from acms.log.active_entries import MERGED, SEEN, Replacements
from acms.log.encoding import is_fact_id, to_microseconds
from acms.log.facts import single_spans
from acms.log.merges import KEPT
from acms.model import EMPTY, Draft, Entry, Json, Kind, Origin, Span
from acms.write import retirement
from acms.write.episodes import Tail

_FIELDS = tuple(field.name for field in fields(Draft))
REPLACED = "replaced"
"""Reason of the retraction of messages of a tool group that this side takes over from the other one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The contents of the record of a merge, and how drafts are stored on this side."""

    session: str
    version: int
    strategy: str
    now: datetime
    #: Returns a draft with its tokens counted by this side's counter and its content redacted for this side.
    clean: Callable[[Draft], Draft]


@dataclass(frozen=True, slots=True)
class Drafts:
    """The drafts to append, in order, without the merge record and the changes to facts made from removed messages."""

    drafts: tuple[Draft, ...]
    #: The messages of this side that are edited or retracted, with their edits.
    replaced: tuple[Entry, ...]
    #: Ordinals of the other side's episodes among the added messages, and why each has ended, or None if it is open.
    episodes: Mapping[int, str | None]


def build_merge_drafts(plan: Plan, ours: MergeSide, theirs: MergeSide, terms: Terms) -> Drafts:
    """Return the drafts that apply a plan to this side."""
    return _DraftBuilder(plan, ours, theirs, terms).build()


def build_merge_record(plan: Plan, ours: MergeSide, theirs: MergeSide, terms: Terms) -> Draft:
    """Return the record of a merge: which logs this side has seen by then, and up to which version."""
    seen_versions: dict[str, Json] = {}
    for context_id in sorted({*ours.seen, *theirs.seen}):
        seen_versions[context_id] = max(ours.seen.get(context_id, 0), theirs.seen.get(context_id, 0))
    data: dict[str, Json] = {
        "reason": MERGED,
        "session": terms.session,
        "context": theirs.context,
        "version": terms.version,
        "strategy": terms.strategy,
        SEEN: seen_versions,
    }
    if plan.kept:
        data[KEPT] = [entry.id for entry in plan.kept]
    return _build_retraction((), (), data, terms.now)


def _build_retraction(
    replaces: Iterable[Span], sources: Iterable[str], data: Mapping[str, Json], created_at: datetime
) -> Draft:
    return Draft(
        kind=Kind.RETRACTION,
        created_at=created_at,
        origin=Origin.DERIVED,
        replaces=tuple(replaces),
        sources=tuple(sources),
        data=data,
    )


class _DraftBuilder:
    """Builds the drafts of one plan."""

    def __init__(self, plan: Plan, ours: MergeSide, theirs: MergeSide, terms: Terms) -> None:
        self._plan = plan
        self._ours = ours
        self._theirs = theirs
        self._terms = terms
        #: Keys of this side's entries and of the drafts so far.
        self._keys = {entry.key for entry in (*ours.entries, *ours.facts, *ours.replacing.values())} - {None}

    def build(self) -> Drafts:
        plan = self._plan
        by_version = [(slot.entry.version, self._copy_message(slot)) for slot in plan.added]
        by_version += [(edit.content.version, self._edit_message(edit)) for edit in plan.edits]
        by_version += [(added.fact.version, self._copy_fact(added)) for added in plan.added_facts]
        by_version.sort(key=lambda row: row[0])
        drafts: list[Draft] = []
        for _, draft in by_version:
            draft = self._terms.clean(draft)
            if draft.key in self._keys:  # a log has each key once: this side's entry keeps it
                draft = replace(draft, key=None)
            elif draft.key is not None:
                self._keys.add(draft.key)
            drafts.append(draft)
        drafts += self._build_retractions()
        replaced: list[Entry] = []
        for slot in [edit.slot for edit in plan.edits] + [slot for slot, _ in plan.retracted]:
            replaced += slot.entries
        return Drafts(tuple(drafts), tuple(replaced), self._find_episodes())

    def _copy_message(self, slot: Slot) -> Draft:
        """Return a message of the other side at its own time, with the content of its active edit."""
        entry, content = slot.entry, slot.current
        assert content is not None
        edits = () if content is entry else (content.id,)
        return replace(
            self._draft_from_entry(content),
            key=entry.key,
            created_at=entry.created_at,
            episode=entry.episode,
            replaces=(),
            sources=(*edits, entry.id, *entry.sources),
        )

    def _edit_message(self, edit: Edit) -> Draft:
        """Return an edit of a message of this side."""
        entry, content = edit.slot.entry, edit.content
        previous = edit.slot.current or entry
        spans = {*single_spans((entry, previous)), *_replaced_spans(previous)}
        # Cite the message where the content was first written too: its erasure must reach this edit.
        is_copy = self._theirs.origin(content) != (content.context, content.version)
        original = content.sources[-1:] if is_copy else ()
        return replace(
            self._draft_from_entry(content),
            key=None,
            episode=entry.episode,
            replaces=tuple(sorted(spans)),
            sources=tuple(dict.fromkeys((entry.id, content.id, *original))),
            data=EMPTY,  # it is not from a list that a sync compared with this side
        )

    def _copy_fact(self, added_fact: AddedFact) -> Draft:
        """Return a fact of the other side that supersedes ours, and replaces copies of it that an undone merge left."""
        fact, ours = added_fact.fact, self._ours
        origin = self._theirs.origin(fact)
        undone_copies = [copy for copy in ours.facts if ours.is_undone(copy) and ours.origin(copy) == origin]
        messages = [id for id in fact.sources if not is_fact_id(id)]
        originals = [id for id in fact.sources if is_fact_id(id)]
        return replace(
            self._draft_from_entry(fact),
            key=None,
            replaces=single_spans([*added_fact.superseded, *undone_copies]),
            sources=(*messages, fact.id, *originals),
            data=self._translate_data(fact.data),
        )

    def _draft_from_entry(self, entry: Entry) -> Draft:
        """Return an entry of the other side as a draft, a message in its tool group on this side."""
        draft = Draft(**{name: getattr(entry, name) for name in _FIELDS})
        if entry.kind is not Kind.MESSAGE:
            return draft
        group = entry.group
        if group is not None:
            group = self._plan.groups.get(group, group)
        return replace(draft, closes=None, group=group)

    def _translate_data(self, data: Mapping[str, Json]) -> Mapping[str, Json]:
        """Return the data of a fact or a retraction with the ids that demoted messages have on this side."""
        if "demotes" not in data:
            return data
        # Each demoted message with the spans of its text that are still valid.
        demoted = [[self._plan.ids.get(id, id), valid_spans] for id, valid_spans in data["demotes"]]
        return {**data, "demotes": demoted}

    def _build_retractions(self) -> list[Draft]:
        """Return one retraction for each reason: a retraction of the other side, or none for replaced tool groups."""
        # By the id of the other side's retraction; the empty id is that of the replaced tool groups, which have none.
        reasons: dict[str, Entry | None] = {}
        spans: dict[str, set[Span]] = {}
        replaced_ids: set[str] = set()
        for slot, reason in self._plan.retracted:
            id = reason.id if reason else ""
            reasons[id] = reason
            for entry in slot.entries:
                spans.setdefault(id, set()).update((*single_spans([entry]), *_replaced_spans(entry)))
                if reason is None:
                    replaced_ids.add(entry.id)
        facts = [fact for fact in self._ours.facts if fact.kind is Kind.FACT]
        replacements = Replacements(self._ours.replacing.values())
        for removed in self._plan.removed_facts:
            id = removed.reason.id if removed.reason else ""
            reasons.setdefault(id, removed.reason)
            chain = retirement.spans_with_predecessors(removed.facts, facts, replacements)
            spans.setdefault(id, set()).update(chain)
        drafts: list[Draft] = []
        for id, reason in reasons.items():
            sources: Sequence[str] = sorted(replaced_ids)
            data: Mapping[str, Json] = {"reason": REPLACED}
            created_at = self._terms.now
            if reason is not None:
                sources = (*reason.sources, reason.id)
                data = {**self._translate_data(reason.data), MERGED: reason.data.get(MERGED, reason.id)}
                created_at = reason.created_at
            drafts.append(_build_retraction(sorted(spans[id]), sources, data, created_at))
        return drafts

    def _find_episodes(self) -> dict[int, str | None]:
        """Return the episodes of the messages that are added from the other side, in order, with why each was closed.

        Only a close since the two sides parted counts; None for an episode that was not closed since then.
        """
        episodes: dict[int, str | None] = dict.fromkeys(
            sorted(slot.entry.episode for slot in self._plan.added)
        )
        for entry in self._theirs.entries:
            if entry.episode not in episodes or entry.version <= self._theirs.common:
                continue
            if entry.kind is Kind.EPISODE:  # closed by a call
                episodes[entry.episode] = str(entry.data.get("reason", "manual"))
            elif entry.closes is not None and not entry.replaces:  # an original message, not an edit of one
                episodes[entry.episode] = entry.closes
        return episodes


def _replaced_spans(entry: Entry) -> tuple[Span, ...]:
    """Return the positions that an edit takes."""
    return entry.replaces if entry.kind is Kind.MESSAGE else ()


# ── episodes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def assign_episodes(
    drafts: Sequence[Draft], episodes: Mapping[int, str | None], tail: Tail
) -> tuple[tuple[Draft, ...], Tail]:
    """Assign episodes to drafts that are appended to a log; return the drafts and the new end of the log.

    The first episode of the drafts continues the log's open episode, if there is one; each further episode is new. If
    an episode was closed on the other side, its last added message closes it here.
    """
    placed = list(drafts)
    added_indexes = [
        index for index, draft in enumerate(drafts) if draft.kind is Kind.MESSAGE and not draft.replaces
    ]
    if not added_indexes:
        return tuple(drafts), tail
    continues = bool(tail.episode) and tail.closed is None
    first_ordinal = tail.episode if continues else tail.episode + 1
    ordinals = {episode: first_ordinal + number for number, episode in enumerate(episodes)}
    last_of_episode = {drafts[index].episode: index for index in added_indexes}
    last_time = tail.last
    for index in added_indexes:
        draft = drafts[index]
        is_last = last_of_episode[draft.episode] == index
        closes = episodes[draft.episode] if is_last else None
        placed[index] = replace(draft, episode=ordinals[draft.episode], closes=closes)
        last_time = max(last_time, to_microseconds(draft.created_at))
    newest = placed[added_indexes[-1]]
    turns = sum(placed[index].episode == newest.episode for index in added_indexes)
    if newest.episode == tail.episode:
        turns += tail.turns
    end = replace(tail, episode=newest.episode, turns=turns, last=last_time, closed=newest.closes)
    return tuple(placed), end
