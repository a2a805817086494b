"""The pipeline of a recall: rank the entries of a log, gather facts, plan, and build the result.

Only steps that read the log are async; the rest are pure functions of the data read, so a plan can be recomputed. A
plan made from the index requests the entries it has chosen, and no others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from acms.errors import SessionNotFoundError
from acms.log.active_entries import (
    NO_DEMOTIONS,
    Demotions,
    Replacements,
)
from acms.log.read import version_to_read
from acms.log.validity import Period
from acms.model import Kind, Role, State
from acms.ports import Frame, TokenCounter
from acms.privacy.redactor import read_redacted_entries
from acms.recall.planner import (
    Choice,
    LoadedEntries,
    PlanSteps,
    RerankRequest,
    build_choice_ledger,
    fit_to_budget,
)
from acms.recall.request import Markers, RankedLog, Reader, Recall
from acms.recall.selection import (
    divide_budget,
    limit_items,
    split_neighbours,
    warn_of_marked_messages,
)
from acms.recall.window import cut_warning
from acms.results import Certainty, ContextItem, ContextItems
from acms.runtime.threads import drive_generator

if TYPE_CHECKING:  # they bring numpy: loaded by the first recall
    from acms.recall.candidates import CandidateSet
    from acms.recall.corpus import Corpus, IndexedLog
    from acms.recall.embeddings import Embedding
    from acms.recall.fact_candidates import FactIndex
    from acms.recall.index import Floats
    from acms.recall.ranking import Ranking

THREAD_ABOVE = 20_000
"""Ranking more entries than this leaves the event loop to others (rule 2.11)."""


class ContentGone(Exception):
    """Raised when chosen entries have lost their content: plan again without them."""

    def __init__(self, ids: Iterable[str]) -> None:
        super().__init__()
        self.ids = tuple(ids)


async def _catch_up_index(
    reader: Reader, context: str | None, at: int | None, namespace: str | None
) -> IndexedLog:
    """Return the up-to-date index of a log, or of all sessions of a namespace if one is given.

    The index of a log that does not exist yet is empty.
    """
    from acms.recall.corpus import Corpus, IndexedLog
    from acms.recall.index import Snapshot

    version = non_messages = 0
    spaces = _vector_spaces(reader)
    if context is not None:
        head = await reader.storage.head(context)
        if reader.embedding is not None and await reader.embedding.ready(context, head.version):
            # Vectors were stored while this call waited: the newer head says so to the index.
            head = await reader.storage.head(context)
        version, non_messages = version_to_read(head, at), head.version - head.messages
        if namespace is None:
            replacements, stale = await reader.indexes.load_active_state(context, head, version)
            corpus = await reader.indexes.load_corpus(context, head, version, replacements, spaces)
            times: Mapping[int, Period] = {}
            if corpus.facts is not None or head.rewrites:
                times = await reader.indexes.load_valid_times(context, head, version)
            return IndexedLog(corpus, stale, times, version, non_messages)
    if namespace is None or reader.namespaces is None:
        return IndexedLog(Corpus(Snapshot(()), Replacements(())), NO_DEMOTIONS, {})
    log = await reader.namespaces.load_corpus(namespace, reader.counter.name, spaces, context)
    return log._replace(version=version, non_messages=non_messages)


def _vector_spaces(reader: Reader) -> Sequence[str]:
    """Return the names of the spaces whose vectors are read: that of the embedder, if there is one."""
    return () if reader.embedding is None else (reader.embedding.space,)


async def rank_log(
    reader: Reader,
    context: str | None,
    at: int | None,
    query: str,
    size: int,
    markers: Markers,
    weights: Mapping[str, float],
    request: Recall | None = None,
) -> RankedLog:
    """Bring the index of a log up to date, and rank the log's active entries at a version for a query.

    `size` is the number of candidates. `request` may extend the search to the namespace, and filter the candidates.
    """
    from acms.recall.asking_messages import add_subject_before, find_asking_messages
    from acms.recall.companions import add_companions
    from acms.recall.filter_evaluation import evaluate_filter
    from acms.recall.query import parse_query
    from acms.recall.ranking import Ranking

    log = await _catch_up_index(reader, context, at, None if request is None else request.namespace)
    corpus = log.corpus
    allowed = None
    if request is not None:
        allowed = await evaluate_filter(reader.storage, corpus, request.where, request.home)
    vector, warnings = await _embed_query(reader, query, corpus)
    embedding = reader.embedding
    space = None if vector is None or embedding is None else embedding.space
    question = parse_query(
        query, corpus.speakers, space=space, vector=vector, markers=markers, marker_weights=weights
    )
    asking = await find_asking_messages(reader.storage, corpus, question, query)
    searched = await add_subject_before(reader.storage, corpus, question, asking)
    if searched is not question:
        warnings.append("the question names no subject: that of the message before it is searched for too")

    def rank() -> Ranking:
        ranking = Ranking(
            corpus,
            searched,
            size,
            allowed,
            asking_positions=asking.positions,
            query_position=asking.query_position,
        )
        add_companions(corpus, ranking)
        return ranking

    ranking = await asyncio.to_thread(rank) if len(corpus) > THREAD_ABOVE else rank()
    without_vector = round((1 - ranking.coverage) * corpus.text_count)
    if embedding is not None and vector is None:
        ranking.coverage = 0.0  # nothing was compared by meaning, whatever vectors are stored
    elif without_vector and embedding is not None:
        is_shared = request is not None and request.namespace is not None
        warnings += await _warn_of_missing_vectors(reader, embedding, log, without_vector, context, is_shared)
    return RankedLog(
        context or "",
        log.version,
        corpus,
        ranking,
        log.stale,
        log.non_messages,
        log.times,
        tuple(warnings),
    )


async def _embed_query(reader: Reader, query: str, corpus: Corpus) -> tuple[Floats | None, list[str]]:
    """Embed a query without the names of speakers; return its vector, or None if there is none, and warnings."""
    from acms.recall.query import remove_speakers

    embedding = reader.embedding
    if embedding is None:
        return None, []
    vector = None
    warnings: list[str] = []
    text = reader.redactor.redact_text(remove_speakers(query, corpus.speakers))
    if embedding.reads(text):
        vector = await embedding.query(text)
        if vector is None:
            warnings.append("the embedder did not answer: ranked by words alone")
    else:
        warnings += embedding.warn_of_question()
    return vector, warnings


async def _warn_of_missing_vectors(
    reader: Reader, embedding: Embedding, log: IndexedLog, count: int, context: str | None, is_shared: bool
) -> list[str]:
    """Return warnings about `count` messages of a log that have no vector."""
    from acms.recall.scoring import find_without_vectors

    corpus = log.corpus

    def find_positions(corpus: Corpus) -> list[int]:
        return find_without_vectors(corpus, embedding.space, embedding.dimension).tolist()

    if is_shared or context is None:  # of other sessions it is not known why
        if count <= embedding.count_in_progress():
            return []
        return [f"{count:,} of {corpus.text_count:,} messages have no vector: ranked by words alone"]
    id = ""
    if count == 1:
        for position in find_positions(corpus):
            id = corpus.snapshot.doc(corpus.document(position)).id

    async def recount() -> int:
        newest = await _catch_up_index(reader, context, log.version, None)
        return len(find_positions(newest.corpus))

    return await embedding.warn_of_messages(context, count, corpus.text_count, id, recount)


async def run_recall(reader: Reader, context: str | None, at: int | None, request: Recall) -> ContextItems:
    """Recall the newest messages of the current episode and the past entries that answer a query, within a budget."""
    from acms.recall.ranking import MIN_CANDIDATES

    # A budget has one candidate for each 16 tokens, the size of a short entry.
    size = max(MIN_CANDIDATES, request.budget // 16) + len(request.exclude)
    while True:
        ranked = await rank_log(
            reader, context, at, request.query, size, request.markers, request.weights, request
        )
        ranked = _limit_candidates(ranked, request, reader.frame)
        facts = await gather_known_facts(reader, ranked, request)
        try:
            steps = plan_recall(ranked, request, reader.counter, reader.frame, facts)
            return await run_plan(steps, reader, request.budget)
        except ContentGone as gone:
            remove_gone_content(reader, gone, ranked, facts)


def _limit_candidates(ranked: RankedLog, request: Recall, frame: Frame) -> RankedLog:
    """Reduce or extend the ranked candidates to what the request needs, and decide whether other sessions count.

    Other sessions are searched only as far as they are about the query, unless they are so short that they are shown
    whole.
    """
    import numpy as np

    from acms.recall.companions import add_companions
    from acms.recall.query import find_content_words
    from acms.recall.topic import find_searched_others
    from acms.recall.user_words import find_user_words

    corpus, ranking = ranked.corpus, ranked.ranking
    if not request.only_relevant and _estimate_tokens(corpus, len(corpus), frame) <= request.budget:
        ranking.include_all()
    elif not request.exclude:  # excluded entries are still among the candidates, and would use up the limit
        ranking.limit_candidates(2 * request.budget)  # twice what the budget holds is enough to choose from
    if request.user_words:
        word_tokens = min(request.user_words, request.budget // 2)  # the answers need the rest
        ranking.keep_user_words(find_user_words(corpus, word_tokens))
    if request.only_relevant and ranking.asks_nothing:
        ranking.exclude_answers()
    if not corpus.start:  # no other session is searched
        return ranked
    is_unrelated = False
    if request.only_on_topic:
        searched = find_searched_others(corpus, ranking.query, ranking.scores, ranking.positions)
        ranking.limit_other_sessions(searched)
        add_companions(corpus, ranking)  # of what is searched
        others = ranking.positions[ranking.positions < corpus.start]
        is_unrelated = not ranking.find_answers(others).any()
    if request.others_whole and _estimate_tokens(corpus, corpus.start, frame) <= request.others_whole:
        ranking.include_always(np.arange(corpus.start))
    elif is_unrelated and find_content_words(ranking.query):
        warning = (
            f"none of {corpus.start:,} messages of other sessions matches enough of the question: "
            "none is recalled"
        )
        return replace(ranked, warnings=(*ranked.warnings, warning))
    return ranked


def _estimate_tokens(corpus: Corpus, size: int, frame: Frame) -> int:
    """Estimate the tokens that the first `size` entries of a corpus take in a prompt."""
    return int(corpus.column("tokens")[:size].sum()) + size * frame.cost(Role.USER, ())


def remove_gone_content(reader: Reader, gone: ContentGone, ranked: RankedLog, facts: KnownFacts) -> None:
    """Remove content found to be deleted from every index that may hold it."""
    reader.indexes.blank(ranked.context, ranked.corpus, gone.ids)
    if facts.profile is not None:
        reader.indexes.blank(*facts.profile, gone.ids)
    if reader.namespaces is not None:
        reader.namespaces.forget_order()


def plan_recall(
    ranked: RankedLog,
    request: Recall,
    counter: TokenCounter,
    frame: Frame,
    facts: KnownFacts | None = None,
) -> PlanSteps[ContextItems]:
    """Choose the ranked entries and known facts to show, and render them within the budget."""
    from acms.recall.candidates import (
        Conditions,
        collect_candidates,
        collect_fact_candidates,
        merge_candidate_sets,
    )

    facts = facts or KnownFacts()
    conditions = Conditions(
        min_relevance=request.min_relevance,
        exclude=request.exclude,
        include_current=request.include_current,
        answers_only=request.only_relevant,
        episode=not request.only_relevant,
        budget=request.budget,
        stale=NO_DEMOTIONS if request.include_superseded else ranked.stale,
        profile=NO_DEMOTIONS if request.include_superseded else facts.stale,
        labels=ranked.labels(request.moment),
    )
    candidates = collect_candidates(ranked.corpus, ranked.ranking, conditions, frame)
    if facts.indexes:
        fact_candidates = collect_fact_candidates(facts.indexes, conditions, frame)
        candidates = merge_candidate_sets(fact_candidates, candidates)
    warnings = list(ranked.warnings)
    if request.rerank:
        from acms.recall.rerank import rerank_candidates

        candidates = yield from rerank_candidates(candidates, request, warnings)
    if request.only_relevant:
        past, neighbours = split_neighbours(candidates.past, request.budget)
        candidates = replace(candidates, past=past, rejected=[*candidates.rejected, *neighbours])

    def choose(limit: int) -> list[Choice]:
        choices = divide_budget(
            candidates.past, candidates.current, limit, request.floor, request.external_share
        )
        if request.limit is None:
            return choices
        return limit_items(choices, request.limit, request.external_share)

    items, choices = yield from fit_to_budget(
        choose,
        request.budget,
        counter,
        frame,
        request.query,
        candidates.trims,
        with_days=candidates.has_several_days,
    )
    warnings += warn_of_marked_messages(choices, items, request.budget)
    return build_recall_result(ranked, candidates, items, choices, request.budget, warnings, facts.indexes)


def build_recall_result(
    ranked: RankedLog,
    candidates: CandidateSet,
    items: Sequence[ContextItem],
    choices: Sequence[Choice],
    budget: int,
    warnings: Sequence[str] = (),
    fact_indexes: Sequence[FactIndex] = (),
) -> ContextItems:
    """Build the result of a recall, with a ledger of the reasons for all items and omissions."""
    from acms.recall.candidates import OmissionReasons
    from acms.recall.confidence import estimate_confidence

    corpus, ranking = ranked.corpus, ranked.ranking

    def estimate() -> Certainty:
        return estimate_confidence(corpus, ranking, fact_indexes)

    cut_entries = [choice.candidate.unit.entries[-1] for choice in choices if choice.rule == "cut"]
    cuts = [cut_warning(entry.id, summary=entry.kind is Kind.SUMMARY) for entry in cut_entries]
    all_choices = [*choices, *candidates.rejected]
    reasons = OmissionReasons(corpus, ranking, fact_indexes)
    return ContextItems(
        items,
        budget=budget,
        ledger=build_choice_ledger(all_choices, (), (*warnings, *cuts), reasons, estimate),
        context=ranked.context,
        version=ranked.version,
        coverage=ranking.coverage,
        tier=tier_of_ranking(ranking),
    )


def tier_of_ranking(ranking: Ranking) -> str:
    """Return the ranking tier: "words", or the name of the model that compared meanings."""
    space = ranking.query.space  # model/dimension/format/recipe
    return "words" if space is None or not ranking.coverage else space.rsplit("/", 3)[0]


T = TypeVar("T")


async def run_plan(steps: PlanSteps[T], reader: Reader, tokens: int = 0) -> T:
    """Run a plan to its end, and answer its requests for redacted entries and reranker scores.

    Raise `ContentGone` if a requested entry has no content any more. A plan of many `tokens`, or one that cuts a long
    entry, runs off the event loop.
    """
    longest = 0

    async def answer(request: list[str] | RerankRequest) -> object:
        nonlocal longest
        if isinstance(request, RerankRequest):
            assert reader.reranking is not None
            query = reader.redactor.redact_text(request.query)
            return await reader.reranking.scores(request._replace(query=query))
        rows = await read_redacted_entries(reader.storage, request, reader.redactor)
        gone_ids = [id for id in request if id not in rows or rows[id].state is not State.LIVE]
        if gone_ids:
            raise ContentGone(gone_ids)
        longest = max([longest, *(len(row.content) for row in rows.values())])
        owners = {row.context for row in rows.values()}
        return LoadedEntries(rows, {owner: await reader.indexes.session_of(owner) for owner in owners})

    return await drive_generator(steps, answer, lambda: max(tokens, longest))


@dataclass(frozen=True, slots=True)
class KnownFacts:
    """Facts and profile data used along with the ranked messages of a log."""

    #: The facts of the namespace, then those of the log.
    indexes: Sequence[FactIndex] = ()
    #: Messages of this log with statements that facts of the namespace's profile made outdated.
    stale: Demotions = NO_DEMOTIONS
    #: Id and index of the profile, from which content found to be gone is removed.
    profile: tuple[str, Corpus] | None = None


async def gather_known_facts(reader: Reader, ranked: RankedLog, request: Recall) -> KnownFacts:
    """Score the active facts of a ranked log and, if the request names a profile, those of its namespace."""
    from acms.recall.fact_candidates import FactIndex, measure_rarities
    from acms.recall.filter_evaluation import evaluate_filter

    stale = NO_DEMOTIONS
    profile: tuple[str, Corpus] | None = None
    fact_logs = [(ranked.context, ranked.corpus.facts, ranked.times)]
    if request.profile is not None:
        log_state = (ranked.context, ranked.non_messages)
        profile_id = await reader.indexes.profiles.find(request.profile, log_state)
        log = None
        if profile_id is not None and profile_id != ranked.context:
            log = await _load_profile_index(reader, profile_id, request.profile)
        if profile_id is not None and log is not None:
            stale = log.stale.as_profile()
            profile = profile_id, log.corpus
            fact_logs.insert(0, (profile_id, log.corpus.facts, log.times))
    corpora = [facts for _, facts, _ in fact_logs if facts is not None]
    if not corpora:
        return KnownFacts()
    if ranked.corpus.snapshot.logs is not None:
        stale = stale.merge_for_index((), ranked.corpus.snapshot.find)
    rarities = measure_rarities(ranked.ranking, corpora)
    moment = request.moment or ranked.corpus.newest_time
    fact_indexes: list[FactIndex] = []
    for context, facts, times in fact_logs:
        if facts is None:
            continue
        index = FactIndex(
            context,
            facts,
            ranked.ranking,
            rarities,
            times,
            moment,
            include_ended=request.include_superseded,
            allowed=await evaluate_filter(reader.storage, facts, request.where, request.home),
        )
        fact_indexes.append(index)
    return KnownFacts(fact_indexes, stale, profile)


async def _load_profile_index(reader: Reader, profile_id: str, namespace: str) -> IndexedLog | None:
    """Return the up-to-date index of a namespace's profile, and request its missing vectors.

    None if the profile was deleted, or if another token counter counted its entries.
    """
    from acms.recall.corpus import IndexedLog

    indexes = reader.indexes
    try:
        if (await reader.storage.context(profile_id)).counter != reader.counter.name:
            return None
        head = await reader.storage.head(profile_id)
        replacements, stale = await indexes.load_active_state(profile_id, head, head.version)
        spaces = _vector_spaces(reader)
        corpus = await indexes.load_corpus(profile_id, head, head.version, replacements, spaces)
        times = await indexes.load_valid_times(profile_id, head, head.version)
    except SessionNotFoundError:
        indexes.profiles.forget(namespace)
        return None
    if reader.embedding is not None:
        reader.embedding.heal(profile_id, head.version)
    return IndexedLog(corpus, stale, times, head.version)
