"""Rerank: a model that reads query and text together adjusts the order of the best candidates of the past.

This module decides which texts are scored and how the scores change the order; the plan yields the question, and its
driver calls the model. The model's scores are fused with the ranking scores, each measured in standard deviations from
the mean of the candidates (z-score normalisation: Renda and Straccia, "Web metasearch: rank vs. score based rank
aggregation methods", 2003): a model whose scores hardly differ changes little. Candidates that are not scored keep
their positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, pstdev

from acms.log.active_entries import Demotion, rendered_role
from acms.model import Entry, Kind, Privacy
from acms.prompt_types import prefix_speaker
from acms.recall.candidates import CandidateSet
from acms.recall.planner import Candidate, LoadedEntries, PlanSteps, RerankRequest, RerankScores, trim_entry
from acms.recall.request import Recall
from acms.recall.selection import best_first, move_external_last

RERANKER_SIGNAL = "rerank"
"""Name of its score among the parts of a relevance."""
RERANKER_SHARE = 1 / 4
"""Share of a reranker in a score.

With a third, a reranker that repeats what the embedder says takes 1.3 points of R@10 from LoCoMo; with a quarter 0.9.
"""


def rerank_candidates(
    candidates: CandidateSet, request: Recall, warnings: list[str]
) -> PlanSteps[CandidateSet]:
    """Ask a reranker for scores of the best candidates of the past, and reorder these candidates by them.

    If the reranker fails, the candidates stay as they are, and the reason is appended to `warnings`. Blocked messages
    are not sent.
    """
    past = list(candidates.past)
    best = _find_best(past, request.rerank, int(request.rerank * request.external_share))
    entries = [entry for index in best for entry in past[index].unit.entries]
    rows = {entry.id: entry for entry in entries if isinstance(entry, Entry)}
    missing = [entry.id for entry in entries if entry.id not in rows]
    if missing:
        loaded_rows: LoadedEntries = yield missing
        rows.update(loaded_rows.entries)
    texts: dict[int, str] = {}
    for index in best:
        text = _text_of_candidate(past[index], rows, candidates.trims)
        if text:
            texts[index] = text
    if not texts:
        return candidates
    answer: RerankScores = yield RerankRequest(request.query, tuple(texts.values()))
    if answer.warning:
        warnings.append(answer.warning)
        return candidates
    fused_scores = fuse_scores([past[index].score for index in texts], answer.values)
    fused_by_old_score: dict[float, float] = {}
    for index, reranker_score, fused_score in zip(texts, answer.values, fused_scores, strict=True):
        fused_by_old_score[past[index].score] = fused_score
        past[index] = _apply_score(past[index], reranker_score, fused_score)
    return replace(candidates, past=[_follow_leader(candidate, fused_by_old_score) for candidate in past])


def _find_best(past: Sequence[Candidate], limit: int, external_limit: int) -> list[int]:
    """Return the indexes of the best `limit` candidates; at most `external_limit` are external if others remain."""
    order = sorted(range(len(past)), key=lambda index: best_first(past[index]))
    external = [index for index in order if past[index].external]
    return move_external_last(order, external, external_limit)[:limit]


def _apply_score(candidate: Candidate, reranker_score: float, score: float) -> Candidate:
    return candidate._replace(
        score=score, parts=lambda: {RERANKER_SIGNAL: round(reranker_score, 4), **candidate.parts()}
    )


def _follow_leader(candidate: Candidate, fused_by_old_score: Mapping[float, float]) -> Candidate:
    """Return a companion with the fused score of its leader; any other candidate unchanged."""
    leader_score = fused_by_old_score.get(candidate.leader_score)
    return candidate if leader_score is None else candidate._replace(leader_score=leader_score)


def fuse_scores(ranking_scores: Sequence[float], reranker_scores: Sequence[float]) -> list[float]:
    """Fuse the scores of the ranking with those of a reranker; the results are in (0, 1], on the scale of the ranking.

    The reranker's scores are converted to that scale by their standard deviations. Candidates with equal ranking scores
    are ordered by the reranker alone.
    """
    ranking_mean, ranking_deviation = fmean(ranking_scores), pstdev(ranking_scores)
    reranker_mean, reranker_deviation = fmean(reranker_scores), pstdev(reranker_scores)
    scale = ranking_deviation or ranking_mean
    fused_scores: list[float] = []
    for ranking_score, reranker_score in zip(ranking_scores, reranker_scores, strict=True):
        deviations = (reranker_score - reranker_mean) / reranker_deviation if reranker_deviation else 0.0
        converted = ranking_mean + scale * deviations
        fused_score = (1 - RERANKER_SHARE) * ranking_score + RERANKER_SHARE * converted
        # A score of 0 would mean that nothing in a candidate answers.
        fused_scores.append(round(min(1.0, max(fused_score, 1e-6)), 6))
    return fused_scores


def _text_of_candidate(candidate: Candidate, rows: Mapping[str, Entry], trims: Mapping[str, Demotion]) -> str:
    """Return the text of a candidate for a reranker; "" if the text is blocked."""
    texts: list[str] = []
    for unit_entry in candidate.unit.entries:
        entry = rows[unit_entry.id]
        if entry.privacy is Privacy.BLOCK:
            return ""
        if entry.id in trims:
            entry = trim_entry(entry, trims[entry.id].spans)
        if entry.content.strip():
            texts.append(_format_entry(entry))
    return "\n".join(texts)


def _format_entry(entry: Entry) -> str:
    """Return the text of an entry, for a message with the name of its speaker before it."""
    speaker = entry.actor or rendered_role(entry) if entry.kind is Kind.MESSAGE else None
    return prefix_speaker(speaker, entry.content)
