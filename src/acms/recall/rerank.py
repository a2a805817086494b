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

from acms.log.in_force import Demotion, rendered_role
from acms.model import Entry, Kind, Privacy
from acms.prompt_types import prefix_speaker
from acms.recall.candidates import CandidateSet
from acms.recall.planner import Candidate, Pairs, RerankScores, Rows, Steps, trim_entry
from acms.recall.request import Recall
from acms.recall.selection import best_first, move_external_last

SIGNAL = "rerank"
"""Name of its score among the parts of a relevance."""
SHARE = 1 / 3
"""Share of a reranker in a score: it is a third signal. Half makes LoCoMo worse by 2 points of R@10."""


def rerank_candidates(offered: CandidateSet, asked: Recall, warnings: list[str]) -> Steps[CandidateSet]:
    """Let a reranker score the best candidates of the past; why it did not is added to `warnings`.

    Only the order of these candidates changes. Without an answer nothing changes. Blocked messages are not sent.
    """
    past = list(offered.past)
    best = _find_best(past, asked.rerank, int(asked.rerank * asked.external_share))
    entries = [entry for index in best for entry in past[index].unit.entries]
    rows = {entry.id: entry for entry in entries if isinstance(entry, Entry)}
    missing = [entry.id for entry in entries if entry.id not in rows]
    if missing:
        loaded: Rows = yield missing
        rows.update(loaded.entries)
    texts = {index: _text_of_candidate(past[index], rows, offered.trims) for index in best}
    texts = {index: text for index, text in texts.items() if text}
    if not texts:
        return offered
    answer: RerankScores = yield Pairs(asked.query, tuple(texts.values()))
    if answer.warning:
        warnings.append(answer.warning)
        return offered
    fused = fuse_scores([past[index].score for index in texts], answer.values)
    new_scores = {past[index].score: score for index, score in zip(texts, fused, strict=True)}
    for index, value, score in zip(texts, answer.values, fused, strict=True):
        past[index] = _apply_score(past[index], value, score)
    return replace(offered, past=[_follow_leader(one, new_scores) for one in past])


def _find_best(past: Sequence[Candidate], limit: int, external_limit: int) -> list[int]:
    """Return the indexes of the best candidates, with at most so many of external text while there is other text."""
    order = sorted(range(len(past)), key=lambda index: best_first(past[index]))
    external = [index for index in order if past[index].external]
    return move_external_last(order, external, external_limit)[:limit]


def _apply_score(one: Candidate, value: float, score: float) -> Candidate:
    return one._replace(score=score, parts=lambda: {SIGNAL: round(value, 4), **one.parts()})


def _follow_leader(one: Candidate, new_scores: Mapping[float, float]) -> Candidate:
    """Return a candidate with the new score of the statement that it accompanies."""
    leader_score = new_scores.get(one.leader_score)
    return one if leader_score is None else one._replace(leader_score=leader_score)


def fuse_scores(own: Sequence[float], given: Sequence[float]) -> list[float]:
    """Return scores fused with those that a reranker gave, both in standard deviations, on the scale of `own`.

    Candidates that tie are told apart by the reranker alone. All stay in (0, 1].
    """
    mean, deviation = fmean(own), pstdev(own)
    given_mean, given_deviation = fmean(given), pstdev(given)
    fused: list[float] = []
    for score, value in zip(own, given, strict=True):
        deviations = (value - given_mean) / given_deviation if given_deviation else 0.0
        opinion = mean + (deviation or mean) * deviations
        mixed = (1 - SHARE) * score + SHARE * opinion
        # A score of 0 would mean that nothing in a candidate answers.
        fused.append(round(min(1.0, max(mixed, 1e-6)), 6))
    return fused


def _text_of_candidate(one: Candidate, rows: Mapping[str, Entry], trims: Mapping[str, Demotion]) -> str:
    """Return the text a reranker reads of a candidate; "" if it may read none of it."""
    texts: list[str] = []
    for indexed in one.unit.entries:
        entry = rows[indexed.id]
        if entry.privacy is Privacy.BLOCK:
            return ""
        if entry.id in trims:
            entry = trim_entry(entry, trims[entry.id].spans)
        if entry.content.strip():
            texts.append(_format_entry(entry))
    return "\n".join(texts)


def _format_entry(entry: Entry) -> str:
    """Return a message under the name of its speaker; a fact and a summary speak for themselves."""
    speaker = entry.actor or rendered_role(entry) if entry.kind is Kind.MESSAGE else None
    return prefix_speaker(speaker, entry.content)
