"""Rerank: a model that reads query and text together has the last word on the best candidates of the past.

Which texts it is asked about and what its scores change is decided here; who asks it is told by the plan, which yields
the question. What is not its to read stays as it was ranked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from acms.core.history import shown_role
from acms.core.offer import Offer
from acms.core.plan import Candidate, Choice, Pairs, Scores, Steps, trimmed
from acms.core.rank import raise_score
from acms.core.stale import Demotion
from acms.model import Entry, Kind, Privacy
from acms.projections import speak

SIGNAL = "rerank"
"""Name of its score among the parts of a relevance."""


def reranked(
    offered: Offer, query: str, most: int, min_relevance: float, warnings: list[str]
) -> Steps[Offer]:
    """Let a reranker score the best candidates of the past; why it did not is added to `warnings`.

    Its score is the relevance of a candidate, and markers raise it as they raise any other. Without an answer all stays
    as it was. The least relevance holds for what comes out. Of blocked messages nothing is shown to it.
    """
    order = sorted(range(len(offered.past)), key=lambda index: _best_first(offered.past[index]))[:most]
    entries = [entry for index in order for entry in offered.past[index].unit.entries]
    known = {entry.id: entry for entry in entries if isinstance(entry, Entry)}
    wanted = [entry.id for entry in entries if entry.id not in known]
    rows: Mapping[str, Entry] = {**known, **(yield wanted)} if wanted else known
    texts = {index: _text(offered.past[index], rows, offered.trims) for index in order}
    asked = [index for index in order if texts[index]]
    past = list(offered.past)
    if asked:
        scores: Scores = yield Pairs(query, tuple(texts[index] for index in asked))
        if scores.warning:
            warnings.append(scores.warning)
        for index, value in zip(asked, scores.values, strict=not scores.warning):
            past[index] = _scored(past[index], value)
    kept = [one for one in past if one.relevance >= min_relevance]
    reason = f"below the least relevance of {min_relevance:.2f}"
    low = [Choice(one, False, "min_relevance", reason) for one in past if one.relevance < min_relevance]
    return replace(offered, past=kept, rejected=[*offered.rejected, *low])


def _best_first(one: Candidate) -> tuple[float, float, int]:
    return -one.score, -one.relevance, one.unit.version


def _scored(one: Candidate, value: float) -> Candidate:
    return one._replace(
        relevance=value,
        score=raise_score(value, one.boost),
        parts={SIGNAL: round(value, 4), **one.parts},
    )


def _text(one: Candidate, rows: Mapping[str, Entry], trims: Mapping[str, Demotion]) -> str:
    """Return what a reranker reads of a candidate; "" when nothing of it is its to read."""
    found = [rows[entry.id] for entry in one.unit.entries]
    if any(entry.privacy is Privacy.BLOCK for entry in found):
        return ""
    shown = [trimmed(entry, trims[entry.id].spans) if entry.id in trims else entry for entry in found]
    return "\n".join(_said(entry) for entry in shown if entry.content.strip())


def _said(entry: Entry) -> str:
    """Return a message under the name of its speaker; a fact and a summary speak for themselves."""
    speaker = entry.actor or shown_role(entry) if entry.kind is Kind.MESSAGE else None
    return speak(speaker, entry.content)
