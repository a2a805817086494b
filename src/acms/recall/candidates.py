"""Candidates: the current episode and the matching past of a ranked log, as units for the planner.

Pure functions of a ranking, so a plan can be recomputed, and a past version is queried like the newest one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as given
from functools import partial
from itertools import repeat
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from acms.log.in_force import NO_CALL, NONE, Demotion, Doc, Lone, Stale, Unit
from acms.log.validity import UNLABELLED, Labels
from acms.model import Kind, Role, Source
from acms.ports import Frame
from acms.recall.corpus import Field
from acms.recall.fact_candidates import Known
from acms.recall.index import Ints
from acms.recall.planner import Candidate, Choice, append_label, build_candidate, version_in
from acms.recall.ranking import Ranking
from acms.results import Verdict
from acms.text.index_record import EXTERNAL

FILTERED = "it is not what `where` asks for"
NEWEST = 4096
"""Entries of the current episode that are looked at, beside the marked ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Candidates for one plan, both oldest first, and the choices rejected before planning."""

    past: Sequence[Candidate]
    current: Sequence[Candidate]
    rejected: Sequence[Choice]
    #: Messages of the past by id of which only a part is offered, since the rest is outdated.
    trims: Mapping[str, Demotion] = given(default_factory=dict)
    #: The first and the last day of the messages; empty when there are none.
    days: tuple[int, ...] = ()

    @property
    def dated(self) -> bool:
        """Whether the day tells one message from another."""
        return len(set(self.days)) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On which terms candidates are taken."""

    min_relevance: float = 0.0
    #: Whether only entries above the cutoff are candidates.
    answers_only: bool = False
    exclude: Collection[str] = ()
    include_current: bool = True
    #: Whether the current episode is offered apart; otherwise all of it competes by relevance.
    episode: bool = True
    #: Tokens that the current episode could fill: what lies further back competes by relevance.
    budget: int = 0
    #: Versions that are shown anyway and no candidates.
    shown: Collection[int] = ()
    #: The newest unit is the query itself.
    asks: bool = False
    #: Messages with outdated statements, known from this log and from the namespace's profile: these are shown only in
    #: the current episode.
    stale: Stale = NONE
    profile: Stale = NONE
    #: Labels of messages and summaries that may be outdated.
    labels: Labels = UNLABELLED


def group_at_index(field: Field, place: int) -> tuple[Unit[Doc], str]:
    """Return the unit an entry in force belongs to, and why it cannot be shown; "" when it can."""
    snapshot = field.snapshot
    document = field.document(place)
    members = snapshot.members(document)
    if len(members) == 1 and snapshot.alone(document):
        return Unit((snapshot.doc(document),)), ""
    places = sorted(place for place in map(field.place_of, members) if place >= 0)
    documents = [field.document(place) for place in places]
    calls, answered = snapshot.answered(documents)
    unit = Unit(tuple(snapshot.doc(document) for document in documents), complete=answered)
    if not calls:
        if any(snapshot.answered([one])[0] and _is_summarised(field, one) for one in members):
            return Unit((snapshot.doc(document)._replace(group=None),)), ""
        return unit, NO_CALL
    return unit, ""


def _is_summarised(field: Field, document: int) -> bool:
    by = field.cover.by(field.snapshot.place(document)[1])
    return any(one.version == by for one in field.cover.shown if one.kind is Kind.SUMMARY)


def find_newest_group(field: Field) -> Unit[Doc] | None:
    """Return the newest unit of the log asked that can be shown."""
    for place in range(len(field) - 1, field.start - 1, -1):
        unit, reason = group_at_index(field, place)
        if not reason and unit.entries[-1].version == field.document(place) + 1:
            return unit
    return None


def collect_candidates(field: Field, ranking: Ranking, terms: Terms, frame: Frame) -> Offer:
    """Divide the ranked entries into the current episode and the past."""
    rejected: list[Choice] = []
    taken: set[int] = set(terms.shown)
    current: list[Candidate] = []
    episode = -1
    for one, place in _current_candidates(field, ranking, terms, frame) if terms.episode else ():
        taken.update([entry.version for entry in one.unit.entries])
        if place >= 0:
            episode = one.unit.entries[-1].episode or -1
        if place < 0:
            rejected.append(Choice(one, False, "query", "it is the query itself"))
        elif any(entry.id in terms.exclude for entry in one.unit.entries):
            rejected.append(Choice(one, False, "excluded", "excluded by the caller"))
        elif not ranking.allows(place):
            rejected.append(Choice(one, False, "filter", FILTERED))
        elif not terms.include_current:
            rejected.append(Choice(one, False, "current_episode", "the current episode was not asked for"))
        else:
            current.append(one)
    offered = {entry.version for one in current for entry in one.unit.entries}.union(terms.shown)
    past = _Past(field, ranking, terms, frame, rejected, taken, offered, episode)
    past.take()
    return Offer(
        past=_add_warnings(past.in_order(), terms.labels),
        current=_add_warnings(current, terms.labels),
        rejected=rejected,
        trims=past.trims,
        days=field.days,
    )


class _Past:
    """Takes ranked entries as candidates of the past, best first, or rejects them."""

    def __init__(
        self,
        field: Field,
        ranking: Ranking,
        terms: Terms,
        frame: Frame,
        rejected: list[Choice],
        taken: set[int],
        offered: Collection[int],
        episode: int,
    ) -> None:
        self._field, self._ranking, self._terms, self._frame = field, ranking, terms, frame
        self._rejected, self._taken, self._episode = rejected, taken, episode
        self._episodes = field.snapshot.column("episode")
        self._found: list[tuple[int, Candidate]] = []
        #: Only an offered entry can replace duplicates of it, and only when it carries the same markers.
        self._offered = offered
        self._stands: dict[int, int] = {}
        self._old: Mapping[int, Demotion] = {}
        self.trims: dict[str, Demotion] = {}

    def in_order(self) -> list[Candidate]:
        """Return the candidates taken, oldest first."""
        return [one for _, one in sorted(self._found, key=itemgetter(0))]

    def take(self) -> None:
        """Go through everything that is ranked."""
        field, ranking, terms = self._field, self._ranking, self._terms
        documents = field.documents(ranking.places)
        families = _group_copies(field, ranking)
        if terms.stale or terms.profile:
            self._old = _find_superseded(field, documents, families, terms)
        groups = field.snapshot.column("group")[documents]
        plain = self._find_plain(groups)
        rest: list[tuple[int, int, int, Candidate, int]] = []
        ranked = zip(
            documents.tolist(),
            ranking.places.tolist(),
            groups.tolist(),
            _single_candidates(field, ranking, documents, self._frame),
            families,
            strict=True,
        )
        for index, (row, is_plain) in enumerate(zip(ranked, plain, strict=True)):
            document, place, _, one, family = row
            if is_plain and family == index and document + 1 not in self._taken:
                self._stands[family] = document + 1
                self._found.append((place, one))
            else:
                rest.append(row)
        for document, place, group, one, family in rest:
            version = document + 1
            if version not in self._taken:
                self._consider(one, document, place, group, family)
            elif version in self._offered:
                self._stands.setdefault(family, version)

    def _find_plain(self, groups: Ints) -> list[bool]:
        """Return for each ranked entry whether only a better copy could reject it, which holds for most."""
        ranking, terms = self._ranking, self._terms
        usual = terms.include_current and not (terms.exclude or self._old) and ranking.allowed is None
        if not usual:
            return [False] * len(groups)
        plain = (groups < 0) & (ranking.relevances[ranking.places].astype(float) >= terms.min_relevance)
        if terms.answers_only:
            plain &= ranking.find_answers(ranking.places)
        return plain.tolist()

    def _consider(self, one: Candidate, document: int, place: int, group: int, family: int) -> None:
        field, version, hidden, end = self._field, document + 1, "", place
        if group < 0:
            self._taken.add(version)
        else:
            unit, hidden = group_at_index(field, place)
            self._taken.update(entry.version for entry in unit.entries)
            places = [field.place_of(entry.version - 1) for entry in unit.entries]
            one = _rank_group(
                build_candidate(unit, _source_of_group(unit), self._frame), self._ranking, places
            )
            end = places[-1]
        current = self._episodes[document] == self._episode
        rule, reason = (
            ("hidden", hidden) if hidden else self._turned_down(one, version, family, place, current)
        )
        if rule:
            self._rejected.append(Choice(one, False, rule, reason))
            return
        self._stands.setdefault(family, version)
        self._found.append((end, one))
        if version in self._old and not current:  # the current one is never touched
            self.trims[one.unit.entries[0].id] = self._old[version]

    def _turned_down(
        self, one: Candidate, version: int, family: int, place: int, current: bool
    ) -> tuple[str, str]:
        """Return the rule by which something is no candidate, and the reason; nothing when it is one."""
        terms, single = self._terms, len(one.costs) == 1
        old, other = self._old.get(version), self._stands.get(family)
        if terms.exclude and any(entry.id in terms.exclude for entry in one.unit.entries):
            return "excluded", "excluded by the caller"
        if not self._ranking.allows(place):
            return "filter", FILTERED
        if current and not terms.include_current:
            return "current_episode", "the current episode was not asked for"
        if terms.answers_only and not self._ranking.find_answers(np.array([place]))[0]:
            return "cutoff", self._ranking.why_no_answer(place)
        if one.relevance < terms.min_relevance:
            return "min_relevance", f"below the least relevance of {terms.min_relevance:.2f}"
        if old is not None and not current and not (single and old.spans):
            return "superseded", f"says what {old.by} replaced; include_superseded=True shows it"
        copies = other is not None and single
        if copies and other is not None and _marked_alike(self._field, one, other):
            return "duplicate", f"says the same as v{self._field.snapshot.version(other - 1)}"
        return "", ""


def _add_warnings(found: list[Candidate], labels: Labels) -> list[Candidate]:
    """Return messages and summaries with the reason why one may not be so any more."""
    if not labels.times:
        return found
    periods = [labels.times.get(one.unit.version) for one in found]
    return [
        one if period is None else append_label(one, period.warning(labels.moment))
        for one, period in zip(found, periods, strict=True)
    ]


def _find_superseded(
    field: Field, documents: Ints, families: Sequence[int], terms: Terms
) -> dict[int, Demotion]:
    """Return the outdated candidates by version, including older duplicates of them.

    A tool group is shown whole or not at all, so one member is enough.
    """
    found: dict[int, Demotion] = {}
    same: dict[int, int] = {}
    snapshot = field.snapshot
    groups = snapshot.column("group")[documents].tolist()
    versions = (documents + 1).tolist()
    for stale in (terms.profile, terms.stale):  # what the log itself knows comes last and counts
        for index, version in enumerate(versions) if stale else ():
            if not stale.holds(version) and groups[index] < 0:
                continue
            members = snapshot.members(version - 1)
            demotion = stale.of(map(snapshot.doc, members))
            if demotion is not None:
                found[version] = demotion if len(members) == 1 else demotion._replace(spans=())
                if stale.alone:
                    same[families[index]] = max(same.get(families[index], 0), demotion.version)
    for family, version in zip(families, versions, strict=True) if same else ():
        if version < same.get(family, 0) and version not in found:
            found[version] = terms.stale.since(same[family])
    return found


def _group_copies(field: Field, ranking: Ranking) -> list[int]:
    """Return for each candidate the index of the best one that says the same: its own when there is no better one.

    Two entries say the same when they hold the same words, whatever their order. External text never takes the place of
    other text.
    """
    documents = field.documents(ranking.places)
    prints = field.snapshot.column("print")[documents].tolist()
    exact = field.snapshot.column("exact")[documents].tolist()
    external = (field.snapshot.column("flags")[documents] & EXTERNAL).tolist()
    first: dict[tuple[int, int, int], int] = {}
    return [
        first.setdefault(key, index) if key[0] else index
        for index, key in enumerate(zip(prints, exact, external, strict=True))
    ]


_filled: Callable[[Iterable[object]], Candidate] = partial(tuple.__new__, Candidate)
"""Make a candidate of all its fields at once: of hundreds few are shown, and calling the class takes three times as
long."""


def _single_candidates(field: Field, ranking: Ranking, documents: Ints, frame: Frame) -> Iterator[Candidate]:
    """Yield the ranked entries as units of one entry each, including members of tool groups, which are not units.

    There are hundreds and few are shown: their fields are read a column at a time, and the rest on demand.
    """
    codes, labels = field.labels
    places = ranking.places
    external = field.external
    known: dict[int, tuple[int, Source, tuple[str, ...]]] = {}
    said: list[int] = codes[places].tolist()
    for code in set(said):
        label = labels[code]
        source = Source.MARKED if label.markers else Source.SIMILAR
        known[code] = (
            frame.cost(Role.USER if label.role is Role.TOOL else label.role, (), label.actor),
            Source.SUMMARY if label.kind is Kind.SUMMARY else source,
            tuple(dict.fromkeys(label.markers)),
        )
    shared = [known[code] for code in said]
    tokens: list[int] = field.snapshot.column("tokens")[documents].tolist()
    costs = [cost + one[0] for cost, one in zip(tokens, shared, strict=True)]
    relevances: list[float] = ranking.relevances[places].tolist()
    return map(
        _filled,
        zip(
            map(Lone, repeat(field.snapshot.doc), (documents + 1).tolist(), [one[2] for one in shared]),
            [one[1] for one in shared],
            zip(costs, strict=True),
            costs,
            relevances,
            ranking.marks_of(places),
            ranking.scores_of(places),
            map(partial, repeat(ranking.parts), places.tolist()),
            repeat(""),
            repeat(False) if external is None else external[places].tolist(),
            ranking.leader_scores(places),
            ranking.distances(places),
            strict=False,
        ),
    )


def _marked_alike(field: Field, one: Candidate, other: int) -> bool:
    """Whether an entry carries no marker that another one lacks."""
    return not one.markers or set(one.markers) <= set(field.snapshot.doc(other - 1).markers)


def _current_candidates(
    field: Field, ranking: Ranking, terms: Terms, frame: Frame
) -> list[tuple[Candidate, int]]:
    """Return the units of the current episode, oldest first, each with its place; -1 for the query itself.

    Of a long episode only the newest units that the budget could hold, and the marked ones.
    """
    last = find_newest_group(field)
    if last is None:
        return []
    found: list[tuple[Candidate, int]] = []
    place = field.place_of(last.entries[-1].version - 1)
    if terms.asks:
        found.append((build_candidate(last, Source.CURRENT, frame), -1))
        before = _find_previous_group(field, place)
        if before is None:
            return found
        last, place = before
    episode = last.entries[-1].episode
    seen: set[int] = set()
    places = np.flatnonzero(field.column("episode") == episode) if episode else np.array([place])
    left = terms.budget
    marked = field.marked()
    for at in _iterate_newest_first(places[places <= place], marked):
        if left < 0 and (marked is None or not marked[at]):
            continue
        unit, reason = group_at_index(field, at)
        end = unit.entries[-1]
        if reason or end.version in seen or end.version != field.document(at) + 1 or end.episode != episode:
            continue
        seen.add(end.version)
        one = build_candidate(unit, Source.CURRENT, frame)
        left -= one.tokens
        found.append((one, at))
    asking = [pair for pair in found if pair[1] < 0]
    answering = sorted([pair for pair in found if pair[1] >= 0], key=itemgetter(1))
    places_found = [at for _, at in answering]
    scored = _score_candidates([one for one, _ in answering], ranking, places_found)
    return [*zip(scored, places_found, strict=True), *asking]


def _iterate_newest_first(places: Ints, marked: NDArray[np.bool_] | None) -> Iterator[int]:
    """Yield the newest places, then, of a long episode, those of marked entries only."""
    recent, older = places[-NEWEST:], places[:-NEWEST]
    yield from recent[::-1].tolist()
    if marked is not None:
        yield from older[marked[older]][::-1].tolist()


def _find_previous_group(field: Field, place: int) -> tuple[Unit[Doc], int] | None:
    for at in range(place - 1, field.start - 1, -1):
        unit, reason = group_at_index(field, at)
        if not reason and unit.entries[-1].version == field.document(at) + 1:
            return unit, at
    return None


def _rank_group(one: Candidate, ranking: Ranking, places: Sequence[int]) -> Candidate:
    """Return a unit with the relevance of its best entry at the price of all: showing one shows the others.

    A tool call is short and cheap; its answer is expensive and contains the answer to the query.
    """
    best = max(places, key=lambda place: (ranking.scores.marked[place], -place))
    (found,) = _score_candidates([one], ranking, [best])
    found = found._replace(distance=min(ranking.distances(np.array(places, np.int64))))
    return found if len(places) == 1 else found._replace(score=ranking.score_at_cost(best, one.tokens))


def _score_candidates(units: Sequence[Candidate], ranking: Ranking, places: Sequence[int]) -> list[Candidate]:
    """Return units with the relevance and the score of one of their entries each."""
    at = np.array(places, np.int64)
    relevances: list[float] = ranking.relevances[at].tolist()
    rows = zip(
        units,
        places,
        relevances,
        ranking.marks_of(at),
        ranking.scores_of(at),
        ranking.leader_scores(at),
        strict=True,
    )
    return [
        one._replace(
            relevance=relevance,
            boost=boost,
            score=score,
            parts=partial(ranking.parts, place),
            external=any(entry.external for entry in one.unit.entries if isinstance(entry, Doc)),
            leader_score=leader_score,
        )
        for one, place, relevance, boost, score, leader_score in rows
    ]


def _source_of_group(unit: Unit[Doc]) -> Source:
    """Return where a past tool group comes from: marked, or found by similarity."""
    return Source.MARKED if any(entry.markers for entry in unit.entries) else Source.SIMILAR


def merge_candidate_sets(offers: Sequence[Offer]) -> Offer:
    """Return several offers as one, in their order; the current episode is that of the last one."""
    return Offer(
        past=[one for each in offers for one in each.past],
        current=offers[-1].current,
        rejected=[one for each in offers for one in each.rejected],
        trims={id: demotion for each in offers for id, demotion in each.trims.items()},
        days=tuple([day for each in offers for day in each.days]),
    )


def collect_fact_candidates(logs: Sequence[Known], terms: Terms, frame: Frame) -> Offer:
    """Return the facts in force that answer, log by log, oldest first."""
    past: list[Candidate] = []
    rejected: list[Choice] = []
    for each in logs:
        for one in each.candidates(frame):
            if one.unit.entries[0].id in terms.exclude:
                rejected.append(Choice(one, False, "excluded", "excluded by the caller"))
            elif not each.allows(one.unit.version):
                rejected.append(Choice(one, False, "filter", FILTERED))
            elif terms.answers_only and not each.answers(one.unit.version):
                rejected.append(Choice(one, False, "cutoff", "below a quarter of the best relevance"))
            elif one.relevance < terms.min_relevance:
                reason = f"below the least relevance of {terms.min_relevance:.2f}"
                rejected.append(Choice(one, False, "min_relevance", reason))
            else:
                past.append(one)
    return Offer(past=past, current=(), rejected=rejected)


class Rest:
    """The reasons why the other ranked entries were not candidates."""

    def __init__(self, field: Field, ranking: Ranking, known: Sequence[Known] = ()) -> None:
        self._field = field
        self._ranking = ranking
        self._known = known

    def __iter__(self) -> Iterator[Verdict]:
        for doc in map(self._field.snapshot.doc, self._field.snapshot.documents()):
            if doc.kind in (Kind.MESSAGE, Kind.SUMMARY):
                yield _explain_message(self._field, self._ranking, doc)
        for known in self._known:
            for doc in map(known.field.snapshot.doc, known.field.snapshot.documents()):
                if doc.kind is Kind.FACT:
                    yield _explain_fact(known, doc)

    def why(self, id: str) -> Verdict | None:
        """Return why an entry was no candidate; None when nothing has such an entry at its version."""
        for known in self._known:
            found = known.field.snapshot.find(id)
            if found is not None and (doc := known.field.snapshot.doc(found)).kind is Kind.FACT:
                return _explain_fact(known, doc)
        found = self._field.snapshot.find(id)
        if found is None:
            return None
        return _explain_message(self._field, self._ranking, self._field.snapshot.doc(found))


def _explain_fact(known: Known, doc: Doc) -> Verdict:
    at = known.field.place_of(doc.version - 1)
    if at < 0:
        by = known.field.cover.by(doc.version)
        if by is not None:
            return _rejection_verdict(doc, "hidden", f"out of force since v{by}")
        return _rejection_verdict(doc, "hidden", "nothing of it is shown")
    if hidden := known.when.hidden(doc.version):
        return _rejection_verdict(doc, "hidden", hidden)
    if not known.allows(doc.version):
        return _rejection_verdict(doc, "filter", FILTERED)
    if known.relevance[at] <= 0:
        return _rejection_verdict(doc, "irrelevant", "it has nothing to do with the query")
    return Verdict(
        id=doc.id,
        version=version_in(doc),
        included=False,
        rule="rank",
        source=Source.FACT,
        relevance=known.relevance[at],
        score=known.score(at),
        parts=known.parts(at),
        tokens=doc.tokens,
        reason="not among the best facts",
    )


def _explain_message(field: Field, ranking: Ranking, doc: Doc) -> Verdict:
    at = field.place_of(doc.version - 1)
    if at < 0:
        by = field.cover.by(doc.version)
        return _rejection_verdict(
            doc, "hidden", "nothing of it is shown" if by is None else f"out of force since v{by}"
        )
    _, reason = group_at_index(field, at)
    if reason:
        return _rejection_verdict(doc, "hidden", reason)
    if not ranking.allows(at):
        return _rejection_verdict(doc, "filter", FILTERED)
    relevance, score = ranking.relevance(at), ranking.score(at)
    if score <= 0:
        return _rejection_verdict(doc, "irrelevant", "neither it nor a neighbour has to do with the query")
    return Verdict(
        id=doc.id,
        version=version_in(doc),
        included=False,
        rule="rank",
        relevance=relevance,
        score=score,
        parts=ranking.parts(at),
        tokens=doc.tokens,
        reason=f"not among the {len(ranking.places)} best",
    )


def _rejection_verdict(doc: Doc, rule: str, reason: str) -> Verdict:
    return Verdict(
        id=doc.id, version=version_in(doc), included=False, rule=rule, tokens=doc.tokens, reason=reason
    )
