"""Rerank: a model that reads query and text together adjusts the order of the best candidates of the past.

This module decides which texts are scored and how the scores change the order; the plan yields the question, and its
driver calls the model. The model's scores are fused with the ranking scores, each measured in standard deviations from
the mean of the candidates (z-score normalisation: Renda and Straccia, "Web metasearch: rank vs. score based rank
aggregation methods", 2003): a model whose scores hardly differ changes little. Candidates that are not scored keep
their positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev

from acms.log.in_force import Demotion, rendered_role
from acms.model import Entry, Kind, Privacy
from acms.prompt_types import prefix_speaker
from acms.recall.candidates import Offer
from acms.recall.planner import Candidate, Pairs, Rows, Scores, Steps, trim_entry
from acms.recall.selection import best_first, move_external_last

SIGNAL = "rerank"
"""Name of its score among the parts of a relevance."""
SHARE = 1 / 3
"""Of a reranker in a score: it is one signal beside words and meaning. Half makes LoCoMo worse by 2 points of R@10."""
LEAST_SCORE = 1e-6
"""Of what a reranker was asked about, at least: a score of 0 says that nothing in it answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranked:
    """The question to a reranker, and limits that hold whatever it answers."""

    query: str
    #: Candidates it is asked about, at most.
    most: int
    #: Share of these candidates that external text has while other text is left out.
    external_share: float


def rerank_candidates(offered: Offer, asked: Reranked, warnings: list[str]) -> Steps[Offer]:
    """Let a reranker score the best candidates of the past; why it did not is added to `warnings`.

    The order of these candidates changes, and nothing else. Without an answer all stays as it was. Of blocked messages
    nothing is shown to it.
    """
    order = sorted(range(len(offered.past)), key=lambda index: best_first(offered.past[index]))
    external = [index for index in order if offered.past[index].external]
    order = move_external_last(order, external, int(asked.most * asked.external_share))[: asked.most]
    entries = [entry for index in order for entry in offered.past[index].unit.entries]
    known = {entry.id: entry for entry in entries if isinstance(entry, Entry)}
    wanted = [entry.id for entry in entries if entry.id not in known]
    rows: Mapping[str, Entry] = known
    if wanted:
        found: Rows = yield wanted
        rows = {**known, **found.entries}
    texts = {
        index: text
        for index in order
        if (text := _text_of_candidate(offered.past[index], rows, offered.trims))
    }
    past = list(offered.past)
    if texts:
        scores: Scores = yield Pairs(asked.query, tuple(texts.values()))
        if scores.warning:
            warnings.append(scores.warning)
        else:
            asked_about = list(texts)
            fused = fuse_scores([past[index].score for index in asked_about], scores.values)
            moved = {past[index].score: score for index, score in zip(asked_about, fused, strict=True)}
            for index, value, score in zip(asked_about, scores.values, fused, strict=True):
                past[index] = _apply_score(past[index], value, score)
            past = [_follow_leader(one, moved) for one in past]
    return replace(offered, past=past)


def _apply_score(one: Candidate, value: float, score: float) -> Candidate:
    return one._replace(score=score, parts=lambda: {SIGNAL: round(value, 4), **one.parts()})


def _follow_leader(one: Candidate, moved: Mapping[float, float]) -> Candidate:
    """Return a candidate with the new score of the statement that it stands beside."""
    leader_score = moved.get(one.leader_score)
    return one if leader_score is None else one._replace(leader_score=leader_score)


def fuse_scores(own: Sequence[float], given: Sequence[float]) -> list[float]:
    """Return scores fused with those that a reranker gave, both in standard deviations, on the scale of `own`.

    Candidates that tie are told apart by the reranker alone. All stay in (0, 1].
    """
    mean, spread = fmean(own), pstdev(own)
    given_mean, given_spread = fmean(given), pstdev(given)
    fused: list[float] = []
    for score, value in zip(own, given, strict=True):
        deviation = (value - given_mean) / given_spread if given_spread else 0.0
        opinion = mean + (spread or mean) * deviation
        moved = (1 - SHARE) * score + SHARE * opinion
        fused.append(round(min(1.0, max(moved, LEAST_SCORE)), 6))
    return fused


def _text_of_candidate(one: Candidate, rows: Mapping[str, Entry], trims: Mapping[str, Demotion]) -> str:
    """Return the text a reranker reads of a candidate; "" when it may read none of it."""
    found = [rows[entry.id] for entry in one.unit.entries]
    if any(entry.privacy is Privacy.BLOCK for entry in found):
        return ""
    shown = [trim_entry(entry, trims[entry.id].spans) if entry.id in trims else entry for entry in found]
    return "\n".join(_format_entry(entry) for entry in shown if entry.content.strip())


def _format_entry(entry: Entry) -> str:
    """Return a message under the name of its speaker; a fact and a summary speak for themselves."""
    speaker = entry.actor or rendered_role(entry) if entry.kind is Kind.MESSAGE else None
    return prefix_speaker(speaker, entry.content)
