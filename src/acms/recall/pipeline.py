"""The one pipeline behind every read: gather from the log, rank, plan, present.

Only steps that read the log are async; the rest are pure functions of the data read, so a plan can be recomputed. A
plan that knows entries only by position requests those it has chosen, and no others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from acms.errors import SessionNotFoundError
from acms.log.in_force import (
    NONE,
    Cover,
    Stale,
    Unit,
    Units,
    anchor_version,
    effective_sequence,
    fold_atomic_groups,
    rendered_role,
)
from acms.log.read import SHOWN, cover_at, read_stretches, version_of
from acms.log.trust import LEADING, is_instruction
from acms.log.validity import UNLABELLED, Labels, Period
from acms.model import Entry, Head, Kind, Role, Source, State
from acms.ports import Frame, StorageBackend, TokenCounter
from acms.privacy.stage import OPEN, Stage, read_redacted_entries
from acms.recall.planner import (
    Candidate,
    Choice,
    Pairs,
    Rows,
    Steps,
    append_label,
    build_candidate,
    build_choice_ledger,
    choose_newest_suffix,
    finish_plan,
    fit_to_budget,
)
from acms.recall.request import Markers, Ranked, Reader, Recall
from acms.recall.selection import divide_budget, limit_items, split_neighbours
from acms.results import Certainty, ContextItem, ContextItems
from acms.runtime.threads import EACH, drive_generator, off_loop

if TYPE_CHECKING:  # they bring numpy: loaded by the first recall
    import numpy as np
    from numpy.typing import NDArray

    from acms.recall.candidates import Offer, Terms
    from acms.recall.corpus import Field
    from acms.recall.fact_candidates import Known
    from acms.recall.index import Ints, Segment
    from acms.recall.index_cache import Indexes
    from acms.recall.ranking import Ranking

THREAD_ABOVE = 20_000
"""Ranking more entries than this leaves the event loop to others (rule 2.11)."""

SPACE = 8
"""Tokens by which a message may differ from a query that it is, save for the space around it."""

NOTED = 4_096
"""Entries that are read at a time for the fields of a filter."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """A stretch of a log up to one version, as units."""

    context: str
    version: int
    cover: Cover
    units: list[Unit[Entry]]
    #: Entries that cannot be shown, and why.
    hidden: list[tuple[Entry, str]]
    #: True when it starts at the beginning of the log.
    whole: bool
    #: State of the log: the same while it only grows, another one once anything in it was rewritten, and one for each
    #: mode of privacy it is read in.
    stamp: str = ""
    #: Ids of messages in a compacted span that the compaction kept: they stay where its summary does.
    stays: frozenset[str] = frozenset()
    #: Tokens by which the log grows between two moves of a start; 0 when nothing was measured.
    length: int = 0
    #: Active summaries of entries older than the units.
    older: Sequence[Unit[Entry]] = ()
    #: Number of entries of the log, at its head, that are not messages.
    made: int = 0
    #: Labels of its entries that may be outdated.
    labels: Labels = UNLABELLED

    @property
    def newest(self) -> datetime | None:
        """When the newest of it was said."""
        return self.units[-1].entries[-1].created_at if self.units else None


async def load_labels(indexes: Indexes, context: str, version: int, moment: datetime | None) -> Labels:
    """Return the labels of the messages and summaries of a log at a version and a moment."""
    head = await indexes.storage.head(context)
    made = head.version > head.messages
    return Labels(await indexes.valid_times(context, head, version) if made else {}, moment)


async def gather_all(storage: StorageBackend, context: str, at: int | None, stage: Stage = OPEN) -> Gathered:
    """Read everything in force at a version, as a stage lets it leave."""
    head = await storage.head(context)
    version = version_of(head, at)
    cover = await cover_at(storage, context, head, version)
    entries = await read_stretches(storage, context, cover, version)
    return _build_gathered(
        head, version, entries, cover, await _fold_entries(entries, cover, stage), 0, stage
    )


async def _fold_entries(entries: Sequence[Entry], cover: Cover, stage: Stage, after: int = 0) -> Units:
    """Group the active entries above a version into units, as redacted by a stage."""

    def work() -> Units:
        return fold_atomic_groups(
            stage.entries(effective_sequence(entries, cover, after=after)), whole=after == 0
        )

    return await off_loop(work, len(entries) * EACH + stage.unread(entries))


def _build_gathered(
    head: Head,
    version: int,
    entries: Sequence[Entry],
    cover: Cover,
    folded: Units,
    after: int,
    stage: Stage = OPEN,
) -> Gathered:
    hidden = list(folded.hidden)
    if cover:
        for entry in entries:
            by = cover.by(entry.version)
            if by is not None:
                hidden.append((stage.entry(entry), f"out of force since v{by}"))
    stamp = f"{head.context} {head.rewrites} {head.epoch} {stage.mode or 'exact'}"
    older = _find_older_summaries(cover, folded.units, stage) if after else ()
    return Gathered(
        head.context,
        version,
        cover,
        folded.units,
        hidden,
        whole=after == 0,
        stamp=stamp,
        older=older,
        made=head.version - head.messages,
    )


def _find_older_summaries(cover: Cover, found: Sequence[Unit[Entry]], stage: Stage) -> list[Unit[Entry]]:
    """Return the summaries in force from before some units, which need not be read to be known."""
    known = {entry.id for unit in found for entry in unit.entries}
    left = [
        entry
        for entry in cover.shown
        if entry.kind is Kind.SUMMARY and entry.state is State.LIVE and entry.id not in known
    ]
    return [Unit((stage.entry(entry),)) for entry in sorted(left, key=anchor_version)]


async def gather_newest(
    storage: StorageBackend,
    context: str,
    at: int | None,
    frame: Frame,
    budget: int,
    stage: Stage = OPEN,
    cover: Cover | None = None,
) -> Gathered:
    """Read back from a version until a budget is filled or the log ends; `cover` holds the superseded entries."""
    head = await storage.head(context)
    average = max(1.0, head.tokens / head.messages + frame.cost(Role.USER, ())) if head.messages else 1.0
    size = int(budget / average * 1.05) + 4
    return await _gather_back(
        storage, head, at, size, lambda found: cost_of(found, frame) > budget, stage, cover
    )


async def gather_last(
    storage: StorageBackend, context: str, at: int | None, messages: int, stage: Stage = OPEN
) -> Gathered:
    """Read back from a version until so many messages can be shown, or the log ends."""

    def enough(found: Sequence[Unit[Entry]]) -> bool:
        return sum([len(unit.entries) for unit in found]) >= messages

    return await _gather_back(storage, await storage.head(context), at, messages + 4, enough, stage)


async def gather_since(
    storage: StorageBackend,
    context: str,
    at: int | None,
    tokens: int,
    stage: Stage = OPEN,
    began: int | None = None,
) -> Gathered:
    """Read back from a version to a unit that has at most `tokens` tokens of the log before it.

    Automatic summaries created after `began` have no effect: the messages they cover are read in their original
    wording.
    """

    def enough(found: Sequence[Unit[Entry]]) -> bool:
        return bool(found) and count_tokens_before(found[0]) <= tokens

    head = await storage.head(context)
    cover = None
    if began is not None and head.rewrites:
        cover = (await cover_at(storage, context, head, version_of(head, at))).asked(began)
    return await _gather_back(storage, head, at, 64, enough, stage, cover)


async def _gather_back(
    storage: StorageBackend,
    head: Head,
    at: int | None,
    size: int,
    enough: Callable[[Sequence[Unit[Entry]]], bool],
    stage: Stage,
    cover: Cover | None = None,
) -> Gathered:
    """Read back from a version, first `size` entries, until `enough` accepts the units read or the log ends."""
    context, version = head.context, version_of(head, at)
    if cover is None:
        cover = await cover_at(storage, context, head, version)
    size = min(size, max(version, 1))
    entries: list[Entry] = []
    for first, last in reversed(cover.stretches(version)):
        end = last  # the unread part of this stretch ends here
        while end >= first:
            older = await storage.read(context, at=end, after=first - 1, newest=size)
            entries = older + entries
            end = older[0].version - 1 if older else first - 1
            after = end if end >= first else _end_of_previous_stretch(cover, first)
            folded = await _fold_entries(entries, cover, stage, after)
            sufficient = await off_loop(partial(enough, folded.units), len(entries) * EACH)
            if after and not folded.unresolved and sufficient:
                return _build_gathered(head, version, entries, cover, folded, after, stage)
            size = 2 * size
    return _build_gathered(
        head, version, entries, cover, await _fold_entries(entries, cover, stage), 0, stage
    )


def count_tokens_before(unit: Unit[Entry]) -> int:
    """Return how many tokens of the log lie before the newest entry of a unit."""
    last = unit.entries[-1]
    return last.total - last.tokens if last.kind is Kind.MESSAGE else last.total


def _end_of_previous_stretch(cover: Cover, first: int) -> int:
    """Return the last version before a stretch that has to be read; 0 when it is the first one."""
    return max((last for _, last in cover.stretches(first - 1)), default=0)


def cost_of(found: Sequence[Unit[Entry]], frame: Frame) -> int:
    """Return the cost of some units in a frame."""
    entries = [entry for unit in found for entry in unit.entries]
    return sum(
        [entry.tokens + frame.cost(rendered_role(entry), entry.parts, entry.actor) for entry in entries]
    )


def plan_window(
    gathered: Gathered, budget: int, counter: TokenCounter, frame: Frame, keep: Collection[Role] = ()
) -> ContextItems:
    """Choose the newest contiguous units; `keep` holds on to a leading run of messages of these roles."""
    lead = count_leading_groups(gathered, keep)
    found = [*gathered.older, *gathered.units]
    told = gathered.labels.by_id(found[lead:], found[:lead])
    candidates = [build_window_candidate(unit, frame, told) for unit in found]
    prefix, rest = candidates[:lead], candidates[lead:]
    led = sum(one.tokens for one in prefix)

    def choose(limit: int) -> list[Choice]:
        holds = led <= limit
        reason = (
            "a leading message of a role to keep" if holds else f"needs {led} tokens, the budget is {limit}"
        )
        kept = [Choice(one, holds, "keep" if holds else "budget", reason) for one in prefix]
        return kept + choose_newest_suffix(rest, limit - led if holds else limit)

    items, choices = finish_plan(fit_to_budget(choose, budget, counter, frame))
    return ContextItems(
        items,
        budget=budget,
        ledger=build_choice_ledger(choices, gathered.hidden, list_cut_warnings(items)),
        context=gathered.context,
        version=gathered.version,
    )


def build_window_candidate(unit: Unit[Entry], frame: Frame, told: Mapping[str, str]) -> Candidate:
    """Return a unit of a window with its label; `told` holds the labels by id."""
    one = build_candidate(unit, Source.WINDOW, frame)
    return append_label(one, told.get(unit.entries[0].id, "")) if told else one


def list_cut_warnings(items: Sequence[ContextItem]) -> list[str]:
    """Return a warning for each item of a window that was cut."""
    return [cut_warning(item.id, summary=item.role is None) for item in items if item.truncated]


def cut_warning(id: str, *, summary: bool) -> str:
    """Return the warning that something was cut which had to be shown."""
    return f"{'a summary' if summary else 'the latest message'} was cut to fit ({id})"


def count_leading_groups(gathered: Gathered, roles: Collection[Role]) -> int:
    """Return how many units at the start of a log are of some roles; 0 when its start was not read."""
    if not gathered.whole:
        return 0
    lead = 0
    for unit in gathered.units[:-1]:
        if rendered_role(unit.entries[0]) not in roles:
            break
        lead += 1
    return lead


async def load_instructions(
    storage: StorageBackend, stage: Stage, gathered: Gathered
) -> Sequence[Unit[Entry]]:
    """Return the system and developer messages that a log begins with, also when only its end was read."""
    if gathered.whole:
        return gathered.units[: count_leading_groups(gathered, LEADING)]
    size = 16
    while True:
        entries = await storage.read(gathered.context, at=gathered.version, kinds=SHOWN, limit=size)
        sequence = effective_sequence(entries, gathered.cover)
        if entries:
            sequence = [entry for entry in sequence if entry.version <= entries[-1].version or entry.replaces]
        found: list[Unit[Entry]] = []
        for entry in sequence:
            if not is_instruction(entry):
                return found
            found.append(Unit((stage.entry(entry),)))
        if len(entries) < size:
            return found
        size *= 2


# ── recall ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Gone(Exception):
    """Content that was chosen is no longer there: plan again without it."""

    def __init__(self, ids: Iterable[str]) -> None:
        super().__init__()
        self.ids = tuple(ids)


class _Caught(NamedTuple):
    """The data read: the index at a version, outdated messages, facts, and the count of non-message entries."""

    version: int
    field: Field
    stale: Stale = NONE
    #: The facts in force, by their places in the field, and when each of them is so.
    times: Mapping[int, Period] = MappingProxyType({})
    made: int = 0


async def _catch_up_index(
    reader: Reader, context: str | None, at: int | None, namespace: str | None
) -> _Caught:
    """Catch the index of a log up with its head, or with a namespace that of all its sessions.

    Of a log that does not exist yet an empty one is returned.
    """
    from acms.recall.corpus import Field
    from acms.recall.index import Snapshot

    version = made = 0
    spaces = () if reader.embedding is None else (reader.embedding.space,)
    if context is not None:
        head = await reader.storage.head(context)
        if reader.embedding is not None and await reader.embedding.ready(context, head.version):
            head = await reader.storage.head(context)
        version, made = version_of(head, at), head.version - head.messages
        if namespace is None:
            now = await reader.indexes.in_force(context, head, version)
            field = await reader.indexes.field(context, head, version, now.cover, spaces)
            told = field.facts is not None or head.rewrites
            times = await reader.indexes.valid_times(context, head, version) if told else {}
            return _Caught(version, field, now.stale, times, made)
    if namespace is None or reader.namespaces is None:
        return _Caught(0, Field(Snapshot(()), Cover(())))
    seen = await reader.namespaces.field(namespace, reader.counter.name, spaces, context)
    return _Caught(version, *seen, made)


async def rank_log(
    reader: Reader,
    context: str | None,
    at: int | None,
    query: str,
    size: int,
    markers: Markers,
    weights: Mapping[str, float],
    asked: Recall | None = None,
) -> Ranked:
    """Catch the index of a log up with its head and rank the active entries at a version.

    Rank those of its whole namespace, or only those that a filter accepts, when asked to.
    """
    from acms.recall.companions import add_companions
    from acms.recall.query import parse_query, remove_speakers
    from acms.recall.ranking import Ranking

    embedding = reader.embedding
    namespace = None if asked is None else asked.namespace
    log = await _catch_up_index(reader, context, at, namespace)
    field = log.field
    allowed = None if asked is None else await _evaluate_filter(reader, field, asked)
    vector = None
    warnings: list[str] = []
    if embedding is not None:
        text = reader.stage.text(remove_speakers(query, field.speakers))
        if embedding.reads(text):
            vector = await embedding.query(text)
            if vector is None:
                warnings.append("the embedder did not answer: ranked by words alone")
        warnings += embedding.take_notice()
    space = None if vector is None or embedding is None else embedding.space
    question = parse_query(
        query, field.speakers, space=space, vector=vector, markers=markers, marker_weights=weights
    )

    def work() -> Ranking:
        found = Ranking(field, question, size, allowed)
        add_companions(field, found)
        return found

    found = await asyncio.to_thread(work) if len(field) > THREAD_ABOVE else work()
    if embedding is not None and vector is None:
        found.coverage = 0.0
    elif without := round((1 - found.coverage) * field.texts):
        warnings.append(f"{without:,} of {field.texts:,} messages have no vector: ranked by words alone")
    return Ranked(
        context or "",
        log.version,
        field,
        found,
        log.stale,
        log.made,
        log.times,
        tuple(warnings),
    )


async def _evaluate_filter(reader: Reader, field: Field, asked: Recall) -> NDArray[np.bool_] | None:
    """Return which entries in force a filter lets through; None without one."""
    import numpy as np

    from acms.recall.filters import complete_tool_groups

    where = asked.where
    if where is None:
        return None
    owners: set[str] = set()
    for name in where.sessions or ():
        with suppress(SessionNotFoundError):
            owners.add((await reader.storage.context(name, namespace=asked.home)).id)
    found = where.likely(field, owners)
    places = np.flatnonzero(found & where.open(field))
    await _load_filter_fields(reader.storage, field, places)
    for place in places.tolist():
        _, segment, at = field.snapshot.where(field.document(place))
        found[place] = at in segment.noted and where.holds(*segment.noted[at])
    return complete_tool_groups(field, found)


async def _load_filter_fields(storage: StorageBackend, field: Field, places: Ints) -> None:
    """Look up the times and the metadata of some entries, log by log."""
    wanted: dict[str, dict[int, tuple[Segment, int]]] = {}
    for document in field.documents(places).tolist():
        _, segment, at = field.snapshot.where(document)
        if at not in segment.noted:
            owner, version = field.snapshot.place(document)
            wanted.setdefault(owner, {})[version] = segment, at
    for owner, versions in wanted.items():
        after, last = min(versions) - 1, max(versions)
        while after < last:
            end = min(last, after + NOTED)
            for entry in await storage.read(owner, after=after, before=end + 1, deleted=True):
                if entry.version in versions:
                    segment, at = versions[entry.version]
                    segment.noted[at] = entry.created_at, entry.metadata
            after = end


async def run_recall(reader: Reader, context: str | None, at: int | None, asked: Recall) -> ContextItems:
    """Return the current episode's newest messages and the past answers to the query (seed 004, steps 2-6)."""
    from acms.recall.ranking import CANDIDATES, SHORT
    from acms.recall.topic import concerns_others

    size = max(CANDIDATES, asked.budget // SHORT) + len(asked.exclude)
    while True:
        found = await rank_log(reader, context, at, asked.query, size, asked.markers, asked.weights, asked)
        if not asked.relevant and _is_held_whole(found.field, reader.frame, asked.budget):
            found.ranking.keep_all()
        elif not asked.exclude:  # twice what the budget holds is enough to choose from
            found.ranking.keep(2 * asked.budget)
        if asked.on_topic and found.field.start:
            ranking = found.ranking
            if not concerns_others(found.field, ranking.query, ranking.scores, ranking.places):
                ranking.close_others()
        if found.field.start and asked.others_whole:
            _hold_others(found, reader.frame, asked.others_whole)
        facts = await gather_known_facts(reader, found, asked)
        try:
            latest = await _load_latest_message(reader, found.field, asked.query)
            steps = plan_recall(found, asked, latest, reader.counter, reader.frame, facts)
            return await run_plan(steps, reader, asked.budget)
        except Gone as gone:
            remove_gone_content(reader, gone, found, facts)


def _is_held_whole(field: Field, frame: Frame, budget: int) -> bool:
    """Whether a budget holds every message in force, about: the plan counts exactly."""
    frames = len(field) * frame.cost(Role.USER, ())
    return int(field.column("tokens").sum()) + frames <= budget


def _hold_others(found: Ranked, frame: Frame, tokens: int) -> None:
    """Let other sessions be shown whole if all of them together take no more than so many tokens."""
    import numpy as np

    field = found.field
    frames = field.start * frame.cost(Role.USER, ())
    if int(field.column("tokens")[: field.start].sum()) + frames <= tokens:
        found.ranking.hold(np.arange(field.start))


def remove_gone_content(reader: Reader, gone: Gone, found: Ranked, beside: Beside) -> None:
    """Remove content found to be deleted from every index that may hold it."""
    reader.indexes.blank(found.context, found.field, gone.ids)
    if beside.profile is not None:
        reader.indexes.blank(*beside.profile, gone.ids)
    if reader.namespaces is not None:
        reader.namespaces.forget_order()


async def _load_latest_message(reader: Reader, field: Field, query: str) -> Entry | None:
    """Return the newest message when it may be the query itself."""
    from acms.recall.candidates import find_newest_group

    unit = find_newest_group(field)
    if unit is None or unit.entries[-1].role is not Role.USER:
        return None
    if abs(unit.entries[-1].tokens - reader.counter.count(query)) > SPACE:
        return None  # too long or too short to be it: not worth a look at its text
    id = unit.entries[-1].id
    (entry,) = await reader.storage.get([id])
    if entry is None or entry.state is not State.LIVE:
        raise Gone([id])
    return entry


def plan_recall(
    found: Ranked,
    asked: Recall,
    latest: Entry | None,
    counter: TokenCounter,
    frame: Frame,
    beside: Beside | None = None,
) -> Steps[ContextItems]:
    """Choose which ranked entries and known facts to show."""
    from acms.recall.candidates import collect_candidates, collect_fact_candidates, merge_candidate_sets

    terms = _build_terms(found, asked, latest, beside)
    offered = collect_candidates(found.field, found.ranking, terms, frame)
    known = () if beside is None else beside.known
    if known:
        offered = merge_candidate_sets([collect_fact_candidates(known, terms, frame), offered])
    warnings = list(found.warnings)
    if asked.rerank:
        from acms.recall.rerank import Reranked, rerank_candidates

        question = Reranked(
            query=asked.query,
            most=asked.rerank,
            external_share=asked.external_share,
        )
        offered = yield from rerank_candidates(offered, question, warnings)

    if asked.relevant:
        past, neighbours = split_neighbours(offered.past, asked.budget)
        offered = replace(offered, past=past, rejected=[*offered.rejected, *neighbours])

    def choose(limit: int) -> list[Choice]:
        found = divide_budget(offered.past, offered.current, limit, asked.floor, asked.external_share)
        return found if asked.limit is None else limit_items(found, asked.limit, asked.external_share)

    items, choices = yield from fit_to_budget(
        choose, asked.budget, counter, frame, asked.query, offered.trims, dated=offered.dated
    )
    left_out = len([choice for choice in choices if not choice.included and choice.candidate.markers])
    if left_out:
        warnings.append(f"{left_out} relevant marked messages did not fit the budget")
    return build_recall_result(found, offered, items, choices, asked.budget, warnings, known, asks=terms.asks)


def _build_terms(found: Ranked, asked: Recall, latest: Entry | None, beside: Beside | None) -> Terms:
    """Return the terms for candidates of a ranked log; a newest message that is the query itself is no answer."""
    from acms.recall.candidates import Terms

    asks = latest is not None and latest.content.strip() == asked.query.strip()
    itself = {latest.id} if latest is not None and asks and asked.relevant else frozenset[str]()
    return Terms(
        min_relevance=asked.min_relevance,
        exclude=asked.exclude | itself,
        include_current=asked.include_current,
        answers_only=asked.relevant,
        episode=not asked.relevant,
        budget=asked.budget,
        asks=asks,
        stale=NONE if asked.superseded else found.stale,
        profile=NONE if asked.superseded or beside is None else beside.stale,
        labels=found.labels(asked.moment),
    )


def build_recall_result(
    found: Ranked,
    offered: Offer,
    items: Sequence[ContextItem],
    choices: Sequence[Choice],
    budget: int,
    warnings: Sequence[str] = (),
    known: Sequence[Known] = (),
    *,
    asks: bool,
) -> ContextItems:
    """Return items with the reasons for them and for everything that was left out.

    `asks` tells that the newest message is the query itself.
    """
    from acms.recall.candidates import Rest, find_newest_group
    from acms.recall.confidence import estimate_confidence

    rest = Rest(found.field, found.ranking, known)

    def sure() -> Certainty:
        own = find_newest_group(found.field) if asks else None
        last = -1 if own is None else found.field.place_of(own.entries[0].version - 1)
        return estimate_confidence(found.field, found.ranking, known, asks=last)

    last_entries = [choice.candidate.unit.entries[-1] for choice in choices if choice.rule == "cut"]
    cuts = [cut_warning(entry.id, summary=entry.kind is Kind.SUMMARY) for entry in last_entries]
    return ContextItems(
        items,
        budget=budget,
        ledger=build_choice_ledger([*choices, *offered.rejected], (), (*warnings, *cuts), rest, sure),
        context=found.context,
        version=found.version,
        coverage=found.ranking.coverage,
        tier=tier_of_ranking(found),
    )


def tier_of_ranking(found: Ranked) -> str:
    """Return the ranking tier of a log: "words", or the name of the model that compared meanings."""
    space = found.ranking.query.space
    return "words" if space is None or not found.ranking.coverage else space.rsplit("/", 3)[0]


T = TypeVar("T")


async def run_plan(steps: Steps[T], reader: Reader, tokens: int = 0) -> T:
    """Answer a plan's requests for redacted entries and reranker scores until it is done.

    Entries read before a reranker ran are read again before they are shown: they may have been deleted since. A plan of
    many tokens is made off the event loop.
    """

    async def answer(wanted: list[str] | Pairs) -> object:
        if isinstance(wanted, Pairs):
            assert reader.reranking is not None
            return await reader.reranking.scores(wanted._replace(query=reader.stage.text(wanted.query)))
        rows = await read_redacted_entries(reader.storage, wanted, reader.stage)
        gone = [id for id in wanted if (row := rows.get(id)) is None or row.state is not State.LIVE]
        if gone:
            raise Gone(gone)
        owners = {row.context for row in rows.values()}
        return Rows(rows, {owner: await reader.indexes.session_of(owner) for owner in owners})

    return await drive_generator(steps, answer, tokens)


@dataclass(frozen=True, slots=True)
class Beside:
    """Facts and profile data used along with the ranked messages of a log."""

    #: The facts of the namespace, then those of each log.
    known: Sequence[Known] = ()
    #: The statements of the namespace's profile about messages of this log.
    stale: Stale = NONE
    #: The profile's whole index: content found to be gone is taken out of it.
    profile: tuple[str, Field] | None = None


NOTHING = Beside()


async def gather_known_facts(reader: Reader, found: Ranked, asked: Recall) -> Beside:
    """Gather the facts in force of a ranked log and, where a profile is asked too, those of its namespace."""
    from acms.recall.fact_candidates import Known, When, measure_rarities

    fields = [(found.context, found.field.facts, found.times)]
    stale, shared, id = NONE, None, None
    if asked.profile is not None:
        id = await reader.indexes.profiles.find(asked.profile, (found.context, found.made))
        if id is not None and id != found.context:
            shared = await _load_profile_index(reader, id, asked.profile)
    if shared is not None and id is not None:
        stale = shared.stale.as_profile()
        fields.insert(0, (id, shared.field.facts, shared.times))
    held = [(context, field, times) for context, field, times in fields if field is not None]
    if not held:
        return NOTHING
    if found.field.snapshot.logs is not None:
        stale = stale.of_many((), found.field.snapshot.find)
    rarities = measure_rarities(found.ranking, [field for _, field, _ in held])
    moment = asked.moment or found.field.newest
    known: list[Known] = []
    for context, field, times in held:
        when = When(times, moment, asked.superseded)
        allowed = await _evaluate_filter(reader, field, asked)
        known.append(Known(context, field, found.ranking, rarities, when, allowed))
    return Beside(known, stale, None if shared is None or id is None else (id, shared.field))


async def _load_profile_index(reader: Reader, id: str, namespace: str) -> _Caught | None:
    """Return the index of a namespace's profile, caught up; None when it cannot be asked."""
    try:
        if (await reader.storage.context(id)).counter != reader.counter.name:
            return None  # its tokens were counted otherwise
        head = await reader.storage.head(id)
        now = await reader.indexes.in_force(id, head, head.version)
        spaces = () if reader.embedding is None else (reader.embedding.space,)
        field = await reader.indexes.field(id, head, head.version, now.cover, spaces)
        times = await reader.indexes.valid_times(id, head, head.version)
    except SessionNotFoundError:
        reader.indexes.profiles.forget(namespace)
        return None
    if reader.embedding is not None:
        reader.embedding.heal(id, head.version)
    return _Caught(head.version, field, now.stale, times)
