"""Candidates: the messages of the current episode and of the past that a plan may show, as units.

A unit is one entry, or a tool call with its answers. Everything here depends on a ranking alone, so a plan can be
recomputed, and a past version is queried like the newest one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from acms.log.active_entries import (
    NO_CALL,
    NO_DEMOTIONS,
    Demotion,
    Demotions,
    EntryGroup,
    IndexedEntry,
    SingleEntryGroup,
)
from acms.log.validity import UNLABELLED, Labels
from acms.model import Kind, Role, Source
from acms.ports import Frame
from acms.recall.corpus import Corpus
from acms.recall.exchanges import find_exchanges
from acms.recall.fact_candidates import FactIndex
from acms.recall.index import Ints
from acms.recall.planner import (
    Candidate,
    Choice,
    Topic,
    append_label,
    build_candidate,
    build_rejection,
    inactive_reason,
)
from acms.recall.ranking import Ranking
from acms.results import Verdict
from acms.text.index_record import EXTERNAL

FILTERED_REASON = "it is not what `where` asks for"
EXCLUDED_REASON = "excluded by the caller"
CURRENT_EPISODE_REASON = "the current episode was not asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSet:
    """Candidates for one plan, both oldest first, and the choices rejected before planning."""

    past: Sequence[Candidate]
    current: Sequence[Candidate]
    rejected: Sequence[Choice]
    #: Messages of the past by id of which only a part is offered, since the rest is outdated.
    trims: Mapping[str, Demotion] = field(default_factory=dict)
    #: The first and the last day of the messages; empty when there are none.
    days: tuple[int, ...] = ()

    @property
    def has_several_days(self) -> bool:
        """Whether the messages are of several days."""
        return len(set(self.days)) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions that an entry must meet to be a candidate."""

    min_relevance: float = 0.0
    #: Whether only entries above the cutoff are candidates.
    answers_only: bool = False
    exclude: Collection[str] = ()
    include_current: bool = True
    #: Whether the current episode is collected separately; otherwise it competes by relevance.
    episode: bool = True
    #: Tokens of the newest messages of the current episode that are collected; older ones compete by relevance.
    budget: int = 0
    #: Versions that are shown anyway, and so are not candidates.
    shown: Collection[int] = ()
    #: Messages with outdated statements, by facts of this log, and by facts of the namespace's profile. Such messages
    #: are shown only in the current episode.
    stale: Demotions = NO_DEMOTIONS
    profile: Demotions = NO_DEMOTIONS
    #: Labels of messages and summaries that may be outdated.
    labels: Labels = UNLABELLED


def group_at_index(corpus: Corpus, position: int) -> tuple[EntryGroup[IndexedEntry], str]:
    """Return the unit that an active entry belongs to, and the reason why it cannot be shown, or ""."""
    snapshot = corpus.snapshot
    document = corpus.document(position)
    if snapshot.is_ungrouped(document):
        return EntryGroup((snapshot.doc(document),)), ""
    members = snapshot.members(document)
    positions = sorted(member for member in map(corpus.position_of, members) if member >= 0)
    documents = [corpus.document(member) for member in positions]
    calls = snapshot.tool_call_state(documents)
    unit = EntryGroup(tuple(map(snapshot.doc, documents)), complete=calls.all_answered)
    if calls.are_included:
        return unit, ""
    for member in members:
        if snapshot.tool_call_state([member]).are_included and _is_summarised(corpus, member):
            # A summary covers the call, so the answer is shown without it.
            return EntryGroup((snapshot.doc(document)._replace(group=None),)), ""
    return unit, NO_CALL


def _is_summarised(corpus: Corpus, document: int) -> bool:
    """Return whether a summary replaces a document."""
    _, version = corpus.snapshot.locate(document)
    replacing_version = corpus.replacements.replaced_by(version)
    summary_versions = [
        entry.version for entry in corpus.replacements.substitutes if entry.kind is Kind.SUMMARY
    ]
    return replacing_version in summary_versions


def _find_group_before(corpus: Corpus, end: int) -> tuple[EntryGroup[IndexedEntry], int] | None:
    """Return the newest unit of the queried log that can be shown and ends before `end`, and where it ends."""
    for position in range(end - 1, corpus.start - 1, -1):
        unit, hidden_reason = group_at_index(corpus, position)
        if not hidden_reason and unit.entries[-1].version == corpus.document(position) + 1:
            return unit, position
    return None


def collect_candidates(
    corpus: Corpus, ranking: Ranking, conditions: Conditions, frame: Frame
) -> CandidateSet:
    """Collect the candidates of the current episode and, from the other ranked entries, those of the past."""
    rejections: list[Choice] = []
    considered_versions = set(conditions.shown)
    offered_versions = set(conditions.shown)  # of entries that are shown or candidates
    current: list[Candidate] = []
    current_episode = -1
    units = _current_candidates(corpus, ranking, conditions, frame) if conditions.episode else []
    for candidate, position in units:
        versions = [entry.version for entry in candidate.unit.entries]
        considered_versions.update(versions)
        if position >= 0:
            current_episode = candidate.unit.entries[-1].episode or -1
        rejection = _reject_current(candidate, position, ranking, conditions)
        if rejection is None:
            current.append(candidate)
            offered_versions.update(versions)
        else:
            rejections.append(rejection)
    past = _PastCandidates(
        corpus, ranking, conditions, frame, rejections, considered_versions, offered_versions, current_episode
    )
    past.collect()
    return CandidateSet(
        past=_add_warnings(past.in_order(), conditions.labels),
        current=_add_warnings(current, conditions.labels),
        rejected=rejections,
        trims=past.trims,
        days=corpus.days,
    )


def _reject_current(
    candidate: Candidate, position: int, ranking: Ranking, conditions: Conditions
) -> Choice | None:
    """Return the rejection of a unit of the current episode by a rule, or None; position -1 is the query itself."""
    if position < 0:
        return Choice(candidate, False, "query", "it is the query itself")
    if _is_excluded(candidate, conditions):
        return Choice(candidate, False, "excluded", EXCLUDED_REASON)
    if not ranking.allows(position):
        return Choice(candidate, False, "filter", FILTERED_REASON)
    if not conditions.include_current:
        return Choice(candidate, False, "current_episode", CURRENT_EPISODE_REASON)
    return None


def _is_excluded(candidate: Candidate, conditions: Conditions) -> bool:
    """Return whether the caller excluded an entry of a candidate."""
    return bool(conditions.exclude) and any(
        entry.id in conditions.exclude for entry in candidate.unit.entries
    )


class _PastCandidates:
    """Collects the ranked entries, best first, as candidates of the past, or rejects them."""

    def __init__(
        self,
        corpus: Corpus,
        ranking: Ranking,
        conditions: Conditions,
        frame: Frame,
        rejections: list[Choice],
        considered_versions: set[int],
        offered_versions: Collection[int],
        current_episode: int,
    ) -> None:
        self._corpus = corpus
        self._ranking = ranking
        self._conditions = conditions
        self._frame = frame
        self._rejections = rejections
        self._considered_versions = considered_versions
        self._current_episode = current_episode
        self._episodes = corpus.snapshot.column("episode")
        self._candidates: list[tuple[int, Candidate]] = []
        #: Versions of the entries that are shown or candidates: only these can stand for their duplicates.
        self._offered_versions = offered_versions
        #: Version of the best offered entry of each family of duplicates.
        self._best_duplicates: dict[int, int] = {}
        #: Version of the newest repetition of each tool group that was repeated with the same results.
        self._newest_repetitions: Mapping[int, int] = {}
        self._demotions: Mapping[int, Demotion] = {}
        #: Positions of a question and its answer, by both.
        self._exchanges: Mapping[int, tuple[int, int]] = {}
        #: Positions of the questions of the assistant that no answer is known of.
        self._unanswered: Collection[int] = frozenset()
        self.trims: dict[str, Demotion] = {}

    def in_order(self) -> list[Candidate]:
        """Return the collected candidates, oldest first."""
        return [candidate for _, candidate in sorted(self._candidates, key=itemgetter(0))]

    def collect(self) -> None:
        """Go through all ranked entries."""
        corpus, ranking, conditions = self._corpus, self._ranking, self._conditions
        documents = corpus.documents(ranking.positions)
        families = _group_duplicates(corpus, ranking)
        if conditions.stale or conditions.profile:
            self._demotions = _find_superseded(corpus, documents, families, conditions)
        if conditions.answers_only:
            exchanges = find_exchanges(corpus, ranking)
            self._exchanges = {key: pair for key, pair in exchanges.pairs.items() if self._may_pair(pair)}
            self._unanswered = exchanges.of_assistant.difference(self._exchanges)
            for version, position, family in zip(
                (documents + 1).tolist(), ranking.positions.tolist(), families, strict=True
            ):
                if self._exchanges.get(position, (-1, -1))[0] == position:
                    self._best_duplicates[family] = version
        groups = corpus.snapshot.column("group")[documents]
        self._newest_repetitions = _find_repeated_groups(corpus, documents[groups >= 0], ranking.allowed)
        columns = zip(
            documents.tolist(),
            ranking.positions.tolist(),
            groups.tolist(),
            families,
            self._flag_exempt_from_rules(groups),
            _single_candidates(corpus, ranking, documents, self._frame),
            strict=True,
        )
        rows = list(enumerate(columns))
        rows.sort(key=lambda row: families[row[0]] != row[0])  # of duplicates the newest comes first
        for index, (document, position, group, family, is_plain, candidate) in rows:
            version = document + 1
            if version in self._considered_versions:
                if version in self._offered_versions:
                    self._best_duplicates.setdefault(family, version)
            elif is_plain and self._is_only_copy(index, family, position):
                self._best_duplicates[family] = version
                self._candidates.append((position, candidate))
            else:
                self._collect_or_reject(candidate, document, position, group, family)

    def _is_only_copy(self, index: int, family: int, position: int) -> bool:
        """Return whether an entry is the best of its copies, and belongs to no exchange."""
        return family == index and family not in self._best_duplicates and position not in self._exchanges

    def _may_pair(self, positions: tuple[int, int]) -> bool:
        """Return whether a question and its answer can be one unit: neither is outdated, nor the question excluded."""
        versions = [self._corpus.document(position) + 1 for position in positions]
        question = self._corpus.snapshot.doc(versions[0] - 1)
        if question.id in self._conditions.exclude or not self._considered_versions.isdisjoint(versions):
            return False
        return not any(
            version in self._demotions or version in self._conditions.labels.times for version in versions
        )

    def _flag_exempt_from_rules(self, groups: Ints) -> list[bool]:
        """Return which ranked entries no rule rejects, unless they are duplicates: most of them, which saves time."""
        ranking, conditions = self._ranking, self._conditions
        has_conditions = bool(conditions.exclude) or bool(self._demotions) or ranking.allowed is not None
        if has_conditions or not conditions.include_current:
            return [False] * len(groups)
        relevances = ranking.relevances[ranking.positions].astype(float)
        is_plain = (groups < 0) & (relevances >= conditions.min_relevance)
        if conditions.answers_only:
            is_plain &= ranking.find_answers(ranking.positions)
            is_plain &= ~np.isin(ranking.positions, list(self._unanswered))
        return is_plain.tolist()

    def _collect_or_reject(
        self, candidate: Candidate, document: int, position: int, group: int, family: int
    ) -> None:
        """Collect an entry, or the tool group it belongs to, as a candidate unless a rule rejects it."""
        version = document + 1
        positions = [position]
        hidden_reason = ""
        exchange = self._exchanges.get(position)
        if group < 0 and exchange is None:
            self._considered_versions.add(version)
        else:
            if exchange is None:
                unit, hidden_reason = group_at_index(self._corpus, position)
            else:
                documents = map(self._corpus.document, exchange)
                unit = EntryGroup(tuple(map(self._corpus.snapshot.doc, documents)))
            self._considered_versions.update(entry.version for entry in unit.entries)
            positions = [self._corpus.position_of(entry.version - 1) for entry in unit.entries]
            group_candidate = build_candidate(unit, _source_of_group(unit), self._frame)
            candidate = _rank_group(group_candidate, self._ranking, positions)
        is_current = self._episodes[document] == self._current_episode
        if hidden_reason:
            rejection = Choice(candidate, False, "hidden", hidden_reason)
        else:
            rejection = self._reject(candidate, version, family, positions, is_current)
        if rejection is not None:
            self._rejections.append(rejection)
            return
        self._best_duplicates.setdefault(family, version)
        self._candidates.append((positions[-1], candidate))
        if version in self._demotions and not is_current:  # messages of the current episode are shown whole
            self.trims[candidate.unit.entries[0].id] = self._demotions[version]

    def _reject(
        self, candidate: Candidate, version: int, family: int, positions: Sequence[int], is_current: bool
    ) -> Choice | None:
        """Return the rejection of a unit by the first rule that applies, or None.

        A unit answers the query if any of its entries does.
        """
        conditions = self._conditions
        if _is_excluded(candidate, conditions):
            return Choice(candidate, False, "excluded", EXCLUDED_REASON)
        if not self._ranking.allows(positions[0]):
            return Choice(candidate, False, "filter", FILTERED_REASON)
        if is_current and not conditions.include_current:
            return Choice(candidate, False, "current_episode", CURRENT_EPISODE_REASON)
        if conditions.answers_only and not self._ranking.find_answers(np.array(positions)).any():
            return Choice(candidate, False, "cutoff", self._ranking.why_no_answer(positions[0]))
        if positions[0] in self._unanswered:
            return Choice(candidate, False, "unanswered", "a question of the assistant without its answer")
        if candidate.relevance < conditions.min_relevance and candidate.topic != Topic.USER_WORDS:
            reason = f"below the minimum relevance of {conditions.min_relevance:.2f}"
            return Choice(candidate, False, "min_relevance", reason)
        is_single = len(candidate.costs) == 1
        demotion = None if is_current else self._demotions.get(version)
        if demotion is not None:
            has_valid_part = is_single and bool(demotion.spans)
            if not has_valid_part:
                reason = f"states what {demotion.by} replaced; include_superseded=True shows it"
                return Choice(candidate, False, "superseded", reason)
        repetition = self._newest_repetitions.get(version)
        if repetition is not None and not candidate.markers:
            newest_version = self._corpus.snapshot.version(repetition - 1)
            return Choice(
                candidate, False, "duplicate", f"called again with the same result in v{newest_version}"
            )
        best_duplicate = self._best_duplicates.get(family)
        if (
            best_duplicate is not None
            and is_single
            and _has_no_other_markers(self._corpus, candidate, best_duplicate)
        ):
            reason = f"says the same as v{self._corpus.snapshot.version(best_duplicate - 1)}"
            return Choice(candidate, False, "duplicate", reason)
        return None


def _add_warnings(candidates: list[Candidate], labels: Labels) -> list[Candidate]:
    """Return candidates with a label on each message and summary that may be outdated."""
    if not labels.times:
        return candidates
    labelled_candidates: list[Candidate] = []
    for candidate in candidates:
        period = labels.times.get(candidate.unit.version)
        labelled_candidates.append(
            candidate if period is None else append_label(candidate, period.warning(labels.moment))
        )
    return labelled_candidates


def _find_superseded(
    corpus: Corpus, documents: Ints, families: Sequence[int], conditions: Conditions
) -> dict[int, Demotion]:
    """Return by version the candidates with outdated statements, and older duplicates of them.

    A tool group is shown whole or not at all, so all of it is outdated if one member is. `families` has for each
    document the index of its best duplicate.
    """
    demotions: dict[int, Demotion] = {}
    newest_by_family: dict[int, int] = {}  # version that made a duplicate outdated
    snapshot = corpus.snapshot
    groups = snapshot.column("group")[documents].tolist()
    versions = (documents + 1).tolist()
    # The log comes last: its own statements override those of the profile.
    for stale in (conditions.profile, conditions.stale):
        if not stale:
            continue
        for version, group, family in zip(versions, groups, families, strict=True):
            is_single = group < 0
            if is_single and not stale.may_include(version):
                continue
            members = snapshot.members(version - 1)
            demotion = stale.find_demotion(map(snapshot.doc, members))
            if demotion is None:
                continue
            demotions[version] = demotion if len(members) == 1 else demotion._replace(spans=())
            if stale.is_of_one_log:
                newest_by_family[family] = max(newest_by_family.get(family, 0), demotion.version)
    for version, family in zip(versions, families, strict=True):
        newest_version = newest_by_family.get(family, 0)
        if version < newest_version and version not in demotions:
            demotions[version] = conditions.stale.demotion_by(newest_version)
    return demotions


def _group_duplicates(corpus: Corpus, ranking: Ranking) -> list[int]:
    """Return for each candidate the index of its newest duplicate, which is its own index if there is none newer.

    Two entries are duplicates if they hold the same words, in any order, and both or neither are external text. The
    newest stands for all: of a value that was changed and changed back, it says which one is current.
    """
    documents = corpus.documents(ranking.positions)
    snapshot = corpus.snapshot
    fingerprints = snapshot.column("print")[documents].tolist()
    exact = snapshot.column("exact")[documents].tolist()
    external = (snapshot.column("flags")[documents] & EXTERNAL).tolist()
    keys = list(zip(fingerprints, exact, external, strict=True))
    newest_index: dict[tuple[int, int, int], int] = {}
    for index in np.lexsort((ranking.positions, snapshot.column("minute")[documents])).tolist():
        newest_index[keys[index]] = index
    has_words = [key[0] != 0 for key in keys]
    return [newest_index[key] if has_words[index] else index for index, key in enumerate(keys)]


def _find_repeated_groups(
    corpus: Corpus, documents: Ints, allowed: NDArray[np.bool_] | None
) -> dict[int, int]:
    """Return by version the entries of tool groups that were repeated later, with the version of the last repetition.

    A repetition has the same calls and the same results, so the older one adds nothing. `documents` are members of the
    groups to compare.
    """
    snapshot = corpus.snapshot
    logs = snapshot.logs
    fingerprints, exact = snapshot.column("print"), snapshot.column("exact")
    last_version_by_content: dict[object, int] = {}
    groups: list[tuple[tuple[int, ...], object]] = []
    for members in {tuple(snapshot.members(document)) for document in documents.tolist()}:
        positions = [corpus.position_of(member) for member in members]
        if min(positions) < 0 or (allowed is not None and not allowed[positions].all()):
            continue
        log = 0 if logs is None else int(logs[members[0]])
        content = (log, *((int(fingerprints[member]), int(exact[member])) for member in members))
        groups.append((members, content))
        last_version_by_content[content] = max(members[-1] + 1, last_version_by_content.get(content, 0))
    return {
        member + 1: last_version_by_content[content]
        for members, content in groups
        for member in members
        if members[-1] + 1 < last_version_by_content[content]
    }


_make_candidate: Callable[[Iterable[object]], Candidate] = partial(tuple.__new__, Candidate)
"""Make a candidate of all its fields at once: calling the class takes three times as long, and there are hundreds."""


def _single_candidates(
    corpus: Corpus, ranking: Ranking, documents: Ints, frame: Frame
) -> Iterator[Candidate]:
    """Yield each ranked entry as a candidate of its own, even if it belongs to a tool group.

    There are hundreds, and few are shown. So their fields are read a column at a time, and their documents on demand.
    """
    positions = ranking.positions
    codes, labels = corpus.labels
    label_codes: list[int] = codes[positions].tolist()
    frame_costs: dict[int, int] = {}
    sources: dict[int, Source] = {}
    markers: dict[int, tuple[str, ...]] = {}
    for code in set(label_codes):
        label = labels[code]
        role = Role.USER if label.role is Role.TOOL else label.role
        frame_costs[code] = frame.cost(role, (), label.actor)
        markers[code] = tuple(dict.fromkeys(label.markers))
        sources[code] = Source.MARKED if label.markers else Source.SIMILAR
        if label.kind is Kind.SUMMARY:
            sources[code] = Source.SUMMARY
    external = [False] * len(positions) if corpus.external is None else corpus.external[positions].tolist()
    columns = zip(
        label_codes,
        (documents + 1).tolist(),
        corpus.snapshot.column("tokens")[documents].tolist(),
        ranking.relevances[positions].tolist(),
        ranking.marks_of(positions),
        ranking.scores_of(positions),
        positions.tolist(),
        external,
        ranking.leader_scores(positions),
        ranking.topics_of(positions),
        strict=True,
    )
    doc_at = corpus.snapshot.doc
    for (
        code,
        version,
        tokens,
        relevance,
        boost,
        score,
        position,
        is_external,
        leader_score,
        topic,
    ) in columns:
        cost = tokens + frame_costs[code]
        parts = partial(ranking.parts, position)
        unit = SingleEntryGroup(doc_at, version, markers[code])
        fields = (unit, sources[code], (cost,), cost, relevance, boost, score, parts)
        yield _make_candidate((*fields, "", is_external, leader_score, topic))


def _has_no_other_markers(corpus: Corpus, candidate: Candidate, version: int) -> bool:
    """Return whether the entry of a version has all markers of a candidate."""
    return not candidate.markers or set(candidate.markers) <= set(corpus.snapshot.doc(version - 1).markers)


def _current_candidates(
    corpus: Corpus, ranking: Ranking, conditions: Conditions, frame: Frame
) -> list[tuple[Candidate, int]]:
    """Return the units of the current episode, oldest first, each with its position; -1 for the query itself."""
    newest = _find_group_before(corpus, len(corpus))
    query: list[tuple[Candidate, int]] = []
    if newest is not None and newest[1] == ranking.query_position:
        unit, position = newest
        query = [(build_candidate(unit, Source.CURRENT, frame), -1)]
        newest = _find_group_before(corpus, position)
    if newest is None:
        return query
    unit, position = newest
    candidates = _episode_candidates(corpus, unit.entries[-1].episode, position, conditions.budget, frame)
    positions = sorted(candidates)
    scored_candidates = _score_candidates(
        [candidates[position] for position in positions], ranking, positions
    )
    return [*zip(scored_candidates, positions, strict=True), *query]


def _episode_candidates(
    corpus: Corpus, episode: int, last: int, budget: int, frame: Frame
) -> dict[int, Candidate]:
    """Return the units of an episode up to the position `last`, by the position at which each ends.

    Of a long episode, these are only the newest units that the budget could hold, and the marked ones.
    """
    # An entry without an episode (0) is an episode of its own.
    positions = np.flatnonzero(corpus.column("episode") == episode) if episode else np.array([last])
    has_markers = corpus.marker_mask()
    remaining = budget
    candidates: dict[int, Candidate] = {}
    for position in _iterate_newest_first(positions[positions <= last], has_markers):
        is_marked = has_markers is not None and bool(has_markers[position])
        if remaining < 0 and not is_marked:
            continue
        unit, hidden_reason = group_at_index(corpus, position)
        last_entry = unit.entries[-1]
        is_last_of_unit = last_entry.version == corpus.document(position) + 1
        if hidden_reason or not is_last_of_unit or last_entry.episode != episode:
            continue
        candidate = build_candidate(unit, Source.CURRENT, frame)
        remaining -= candidate.tokens
        candidates[position] = candidate
    return candidates


def _iterate_newest_first(positions: Ints, has_markers: NDArray[np.bool_] | None) -> Iterator[int]:
    """Yield positions, newest first; beyond 4,096 of them, only those of entries with markers."""
    limit = 4_096
    recent_positions, older_positions = positions[-limit:], positions[:-limit]
    yield from reversed(recent_positions.tolist())
    if has_markers is not None:
        marked_positions = older_positions[has_markers[older_positions]]
        yield from reversed(marked_positions.tolist())


def _rank_group(candidate: Candidate, ranking: Ranking, positions: Sequence[int]) -> Candidate:
    """Return a unit with the score of its best entry, and with the greatest relevance of any of its entries.

    The score counts the tokens of all entries: a tool call is short, but its answer may be long.
    """
    best = max(positions, key=lambda position: (ranking.scores.with_marks[position], -position))
    (ranked_candidate,) = _score_candidates([candidate], ranking, [best])
    position_array = np.array(positions, np.int64)
    ranked_candidate = ranked_candidate._replace(
        topic=min(ranking.topics_of(position_array)),
        relevance=float(ranking.relevances[position_array].max()),
    )
    if len(positions) > 1:
        ranked_candidate = ranked_candidate._replace(score=ranking.score_at_cost(best, candidate.tokens))
    return ranked_candidate


def _score_candidates(
    units: Sequence[Candidate], ranking: Ranking, positions: Sequence[int]
) -> list[Candidate]:
    """Return units with relevance and score, each of the entry at the position of the same index."""
    position_array = np.array(positions, np.int64)
    relevances: list[float] = ranking.relevances[position_array].tolist()
    boosts = ranking.marks_of(position_array)
    scores = ranking.scores_of(position_array)
    leader_scores = ranking.leader_scores(position_array)
    scored_candidates: list[Candidate] = []
    for index, candidate in enumerate(units):
        scored_candidates.append(
            candidate._replace(
                relevance=relevances[index],
                boost=boosts[index],
                score=scores[index],
                parts=partial(ranking.parts, positions[index]),
                external=any(
                    entry.external for entry in candidate.unit.entries if isinstance(entry, IndexedEntry)
                ),
                leader_score=leader_scores[index],
            )
        )
    return scored_candidates


def _source_of_group(unit: EntryGroup[IndexedEntry]) -> Source:
    """Return the source of a past tool group: marked, or found by similarity."""
    return Source.MARKED if any(entry.markers for entry in unit.entries) else Source.SIMILAR


def merge_candidate_sets(facts: CandidateSet, messages: CandidateSet) -> CandidateSet:
    """Join two sets in order; the current episode is that of the second."""
    return CandidateSet(
        past=[*facts.past, *messages.past],
        current=messages.current,
        rejected=[*facts.rejected, *messages.rejected],
        trims={**facts.trims, **messages.trims},
        days=(*facts.days, *messages.days),
    )


def collect_fact_candidates(
    indexes: Sequence[FactIndex], conditions: Conditions, frame: Frame
) -> CandidateSet:
    """Return the candidates among the active facts, log by log, oldest first, and the rejected ones."""
    past: list[Candidate] = []
    rejections: list[Choice] = []
    for facts in indexes:
        for candidate in facts.candidates(frame):
            rejection = _reject_fact(candidate, facts, conditions)
            if rejection is None:
                past.append(candidate)
            else:
                rejections.append(rejection)
    return CandidateSet(past=past, current=(), rejected=rejections)


def _reject_fact(candidate: Candidate, facts: FactIndex, conditions: Conditions) -> Choice | None:
    """Return the rejection of a fact by a rule, or None."""
    version = candidate.unit.version
    if _is_excluded(candidate, conditions):
        return Choice(candidate, False, "excluded", EXCLUDED_REASON)
    if not facts.allows(version):
        return Choice(candidate, False, "filter", FILTERED_REASON)
    if conditions.answers_only and not facts.answers(version):
        return Choice(candidate, False, "cutoff", facts.why_no_answer())
    if candidate.relevance < conditions.min_relevance:
        reason = f"below the minimum relevance of {conditions.min_relevance:.2f}"
        return Choice(candidate, False, "min_relevance", reason)
    return None


class OmissionReasons:
    """The reasons why entries without a choice were not candidates."""

    def __init__(self, corpus: Corpus, ranking: Ranking, facts: Sequence[FactIndex] = ()) -> None:
        self._corpus = corpus
        self._ranking = ranking
        self._facts = facts

    def __iter__(self) -> Iterator[Verdict]:
        for doc in map(self._corpus.snapshot.doc, self._corpus.snapshot.documents()):
            if doc.kind in (Kind.MESSAGE, Kind.SUMMARY):
                yield self._explain_message(doc)
        for facts in self._facts:
            for doc in map(facts.corpus.snapshot.doc, facts.corpus.snapshot.documents()):
                if doc.kind is Kind.FACT:
                    yield _explain_fact(facts, doc)

    def why(self, id: str) -> Verdict | None:
        """Return why an entry was no candidate; None if there is no such entry at the version."""
        for facts in self._facts:
            doc = _find_doc(facts.corpus, id)
            if doc is not None and doc.kind is Kind.FACT:
                return _explain_fact(facts, doc)
        doc = _find_doc(self._corpus, id)
        return None if doc is None else self._explain_message(doc)

    def _explain_message(self, doc: IndexedEntry) -> Verdict:
        """Return the verdict on a message or a summary that was not a candidate."""
        corpus, ranking = self._corpus, self._ranking
        position = corpus.position_of(doc.version - 1)
        if position < 0:
            return build_rejection(doc, "hidden", _why_inactive(corpus, doc))
        _, hidden_reason = group_at_index(corpus, position)
        if hidden_reason:
            return build_rejection(doc, "hidden", hidden_reason)
        if not ranking.allows(position):
            return build_rejection(doc, "filter", FILTERED_REASON)
        if ranking.asks(position):
            return build_rejection(
                doc, "asks", "it is the query itself, or an earlier request of the same form"
            )
        relevance, score = ranking.relevance(position), ranking.score(position)
        if score <= 0:
            return build_rejection(doc, "irrelevant", "neither it nor a message next to it matches the query")
        verdict = build_rejection(doc, "rank", f"not among the {len(ranking.positions)} best")
        return replace(verdict, relevance=relevance, score=score, parts=ranking.parts(position))


def _find_doc(corpus: Corpus, id: str) -> IndexedEntry | None:
    document = corpus.snapshot.find(id)
    return None if document is None else corpus.snapshot.doc(document)


def _why_inactive(corpus: Corpus, doc: IndexedEntry) -> str:
    replacing_version = corpus.replacements.replaced_by(doc.version)
    if replacing_version is None:
        return "nothing of it is shown"
    return inactive_reason(replacing_version, corpus.snapshot.doc(replacing_version - 1).kind)


def _explain_fact(facts: FactIndex, doc: IndexedEntry) -> Verdict:
    """Return the verdict on a fact that was not a candidate."""
    position = facts.corpus.position_of(doc.version - 1)
    if position < 0:
        return build_rejection(doc, "hidden", _why_inactive(facts.corpus, doc))
    hidden_reason = facts.why_hidden(doc.version)
    if hidden_reason:
        return build_rejection(doc, "hidden", hidden_reason)
    if not facts.allows(doc.version):
        return build_rejection(doc, "filter", FILTERED_REASON)
    relevance = facts.relevance[position]
    if relevance <= 0:
        return build_rejection(doc, "irrelevant", "it does not match the query")
    verdict = build_rejection(doc, "rank", "not among the best facts")
    return replace(
        verdict,
        source=Source.FACT,
        relevance=relevance,
        score=facts.score(position),
        parts=facts.parts(position),
    )
